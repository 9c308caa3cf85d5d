"""`python -m benchmarks.papers`: run a table of a paper."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from . import __doc__ as usage
from .catalogue import PAPERS
from .running import run_table
from .tables import RESULTS


def main() -> None:
    args = arguments().parse_args()
    tables = PAPERS[args.paper].tables
    if args.table not in tables:
        raise SystemExit(f"--table must be one of {', '.join(tables)}, got {args.table!r}.")
    table = replace(tables[args.table], results=args.results)
    if table.needs_data and not (args.data and (args.data / "uci").is_dir()):
        raise SystemExit(f"--data must be a folder that holds uci/NAME/, got {args.data}.")
    if table.results_path.exists() and not args.resume:
        raise SystemExit(
            f"{table.results_path} is there. Give --resume to go on with it, or delete it to begin "
            "anew."
        )
    only = dict(text.split("=", 1) for text in args.only)
    choices = {column: texts.split(",") for column, texts in only.items()}
    if unknown := choices.keys() - set(table.key_columns):
        raise SystemExit(f"--only has {unknown}; the columns are {', '.join(table.key_columns)}.")
    run_table(table, args.data, choices, args.jobs, args.seed)


def arguments() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "benchmarks.papers", description=usage, formatter_class=formatter
    )
    parser.add_argument("paper", choices=PAPERS)
    tables = "; ".join(f"{name}: {', '.join(paper.tables)}" for name, paper in PAPERS.items())
    parser.add_argument("--table", help=f"by the paper's number or our name ({tables})")
    parser.add_argument("--data", type=Path, help="folder that holds uci/NAME/")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSVs")
    parser.add_argument("--resume", action="store_true", help="go on with a table")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--seed", type=int, default=0, help="random_state of every method")
    parser.add_argument("--only", nargs="+", default=[], metavar="COLUMN=A,B", help="cells to run")
    return parser


if __name__ == "__main__":
    main()

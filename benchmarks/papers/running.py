"""Run the cells of a table in processes of their own, and keep what is done."""

from __future__ import annotations

import subprocess
import time
import warnings
from pathlib import Path

from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from .._common import append_csv, environment, set_threads
from .tables import DEVIATION, HERE, Cell, Figures, Table


def run_table(table: Table, data: Path, only: dict[str, list[str]], n_jobs: int, seed: int) -> None:
    """Run the cells that are not yet measured, and append each as soon as it is done."""
    done = table.measured()
    cells = [
        cell
        for cell in table.published()
        if table.key(cell) not in done
        and not table.why_lacking(cell)
        and all(cell[column] in texts for column, texts in only.items())
    ]
    print(f"{table.title}: {len(done)} cells are done, {len(cells)} to do", flush=True)
    jobs = (delayed(measure)(table, cell, data, seed) for cell in cells)
    for row in Parallel(n_jobs, return_as="generator_unordered")(jobs):
        append_csv(table.results_path, row)
        print(", ".join(table.key(row)), *_shown(table, row), flush=True)


def measure(table: Table, cell: Cell, data: Path, seed: int) -> Figures:
    """What a cell gives here, beside what is published, with its provenance."""
    set_threads(1)
    start, used = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # of fits that end early, as published ones do
        figures = table.run(cell, data, seed)
    seconds = {"wall_s": time.perf_counter() - start, "cpu_s": time.process_time() - used}
    key = dict(zip(table.key_columns, table.key(cell), strict=True))
    names = [name for m in table.measures for name in (m, m + DEVIATION)]
    published = {f"published_{name}": cell[name] for name in names}
    where = {"seed": seed, "commit": commit()}
    return {**key, **figures, **published, **_rounded(seconds), **where, **environment()}


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in seconds.items()}


def _shown(table: Table, row: Cell) -> list[str]:
    shown = []
    for m in table.measures:
        if row.get(m) in (None, ""):
            continue
        printed, deviation = row["published_" + m], row[f"published_{m}{DEVIATION}"]
        beside = f" (published {printed}±{deviation})" if printed else ""
        shown.append(f"{m} {float(row[m]):.4g}{beside}")
    return shown


def commit() -> str:
    """The commit of the code, marked if files but results were changed since."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, cwd=HERE)
        return done.stdout.strip()

    changed = git("diff", "--name-only", "HEAD", "--", ":/", ":(exclude,top)benchmarks/results")
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")

"""Claim: above 100,000 rows of many inputs, an index finds neighbours many times sooner.

Part "search": time to build, CPU time and recall of 129 neighbours of new rows, of our exact search
(products of float32, checked), faiss's cells and graph, and USearch's (extra `benchmarks`). Part
"fit": NNGPRegressor with both kinds of search. Rows have 20 inputs, of which six numbers tell most.
`recall` is the share of the exact neighbours, `nlpd` in nats per row.

    python benchmarks/bench_neighbour_search.py
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from _common import Array, Clock, Row, parser, set_threads, write_csv

from skgpstoch import NNGPRegressor
from skgpstoch.maths.indexed import library
from skgpstoch.maths.nearest import Nearest

D, LATENT, N_NEW, K = 20, 6, 1000, 129
SIZES = (200_000, 1_000_000)


def table(n: int, seed: int) -> tuple[Array, Array]:
    """Rows near a surface of six dimensions, and a rough function of four of them."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, LATENT))
    A, B = rng.normal(size=(2, LATENT, D))
    X = np.tanh(Z @ A / np.sqrt(LATENT)) + 0.3 * np.sin(Z @ B) + 0.05 * rng.normal(size=(n, D))
    f = np.sin(Z[:, 0]) * np.cos(2 * Z[:, 1]) + 0.5 * np.sin(1.5 * Z[:, 2] * Z[:, 3])
    return X, f + 0.1 * rng.normal(size=n)


# --- search ---------------------------------------------------------------------------------------
Search = Callable[[Array], Array]


def ours(rows: Array, is_approximate: bool) -> Iterator[tuple[str, Search]]:
    """Our searches, made as they are first asked."""
    nearest = Nearest(torch.from_numpy(rows), is_approximate=is_approximate)
    nearest.of(torch.from_numpy(rows[:1]), K)
    yield "", lambda Q: nearest.of(torch.from_numpy(Q), K).numpy()


def cells(rows: Array, n_cells: int) -> Iterator[tuple[str, Search]]:
    """Cells of faiss."""
    faiss = library()
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(D), D, n_cells)
    index.cp.niter, index.cp.max_points_per_centroid = 10, 40
    index.train(rows.astype(np.float32))
    index.add(rows.astype(np.float32))
    for n_probed in (16, 32, 64, 128):
        index.nprobe = n_probed
        yield f", {n_probed} searched", lambda Q: index.search(Q.astype(np.float32), K)[1]


def graph(rows: Array) -> Iterator[tuple[str, Search]]:
    """A graph of faiss."""
    index = library().IndexHNSWFlat(D, 16)
    index.hnsw.efConstruction = 100
    index.add(rows.astype(np.float32))
    for n_tried in (128, 256):
        index.hnsw.efSearch = n_tried
        yield f", {n_tried} tried", lambda Q: index.search(Q.astype(np.float32), K)[1]


def usearch(rows: Array) -> Iterator[tuple[str, Search]]:
    """A graph of USearch."""
    from usearch.index import Index

    index = Index(ndim=D, metric="l2sq", dtype="f32", connectivity=16, expansion_add=100)
    index.add(np.arange(len(rows)), rows.astype(np.float32), threads=1)
    for n_tried in (128, 256):
        index.expansion_search = n_tried
        yield (
            f", {n_tried} tried",
            lambda Q: index.search(Q.astype(np.float32), K, threads=1).keys.astype(np.int64),
        )


def searches(args: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each search; the first one is exact."""
    for n in args.sizes:
        X, _ = table(n + N_NEW, args.seed)
        rows, Q = X[:n], X[n:]
        root = int(np.sqrt(n))
        kinds: dict[str, Callable[[], Iterator[tuple[str, Search]]]] = {
            "exact": partial(ours, rows, False),
            "approximate": partial(ours, rows, True),
            f"faiss, {2 * root} cells": partial(cells, rows, 2 * root),
            f"faiss, {8 * root} cells": partial(cells, rows, 8 * root),
            "faiss, graph": partial(graph, rows),
            "USearch, graph": partial(usearch, rows),
        }
        exact: Array | None = None
        for kind, make in kinds.items():
            clock = Clock()
            found = make()
            with clock:
                name, search = next(found)
            build = clock.cpu
            for setting, ask in chain([(name, search)], found):
                with Clock() as asking:
                    numbers = ask(Q)
                exact = numbers if exact is None else exact
                pairs = zip(numbers, exact, strict=True)
                recall = float(np.mean([len(set(a) & set(b)) / K for a, b in pairs]))
                yield said("search", n, kind + setting, build, asking.cpu, recall=recall)


# --- fit ------------------------------------------------------------------------------------------
def fits(args: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each kind of search."""
    for n in args.sizes:
        X, y = table(n + N_NEW, args.seed)
        for search in ("approximate", "exact"):
            model = NNGPRegressor(search=search, random_state=args.seed)
            with Clock() as fitting:
                model.fit(X[:n], y[:n])
            model.predict(X[n : n + 1])  # the first makes the index
            with Clock() as asking:
                score = model.log_predictive_density(X[n:], y[n:])
            nlpd = -float(score.mean())
            yield said("fit", n, search, fitting.cpu, asking.cpu, nlpd=nlpd)


def said(part: str, n: int, method: str, make: float, ask: float, **scores: Any) -> Row:
    """Print a result, and return it; CPU seconds, and microseconds for each row asked."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row = {"part": part, "n_rows": n, "method": method, "make_cpu_s": make}
    row |= {"ask_cpu_us": 1e6 * ask / N_NEW, **scores, "peak_so_far_mb": peak}
    print(*(f"{v:.4g}" if isinstance(v, float) else v for v in row.values()), flush=True)
    return row


def main() -> None:
    arguments = parser(__doc__, "neighbour_search.csv")
    arguments.add_argument("--part", choices=("search", "fit"), default=None)
    arguments.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    args = arguments.parse_args()
    set_threads(args.threads)
    library().omp_set_num_threads(args.threads)
    parts = {"search": searches, "fit": fits}
    chosen = [run for name, run in parts.items() if args.part in (None, name)]
    rows = [row for run in chosen for row in run(args)]
    write_csv(args.output, rows, seed=args.seed, n_threads=args.threads)


if __name__ == "__main__":
    main()

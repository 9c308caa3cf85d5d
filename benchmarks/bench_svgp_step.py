"""Claims: a step of ours takes at most 0.6 of GPyTorch's, and SOLVE-GP at most 0.7 of SVGP's at 2M.

One training step on 8 inputs in float32, learned inducing points, Matérn-3/2 with ARD, Gaussian
likelihood, the steps of the methods taking turns:

- SVGPRegressor with each solver against GPyTorch's VariationalStrategy with a
  CholeskyVariationalDistribution and Adam, at M = b = 512 and 1,024;
- SolveGPRegressor with 512 + 512 points against SVGPRegressor with 1,024, for each solver;
- the ingredients alone: products (b, M)(M, M), and decomposition and inverses of order M;
- what a step of ours spends, operator by operator, beside its count of floating-point operations at
  the ingredients' rates.

    python benchmarks/bench_svgp_step.py --threads 2

The profiler slows down small operators, and also writes lines to stderr. Needs gpytorch.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from _common import Row, parser, set_threads, write_csv
from _gpytorch import Training
from bench_step_cost import Step, batches, make_data, medians, time_steps, training_step
from torch import Tensor

from skgpstoch import SolveGPRegressor, SVGPRegressor

SOLVERS = ("collapsed", "natural", "adam")
BAR, SOLVEGP_BAR = 0.6, 0.7
Rates = dict[tuple[str, str], float]
"""(group, type) → floating-point operations a second."""

N = 20_000  # rows

PRODUCTS, CHOLESKY = "matrix products", "Cholesky decompositions"
TRIANGULAR, INVERSES, SOLVES = "triangular solves", "inverses from factors", "solves with factors"
OPTIMISER, REST = "optimiser", "element by element, and the rest"


def product_flops(dims: list[list[int]]) -> float:
    """2mnk of the last two arguments that are matrices: (…, m, k) and (…, k, n)."""
    left, right = [d for d in dims if len(d) >= 2][-2:]
    n_products = left[0] if len(left) == 3 else 1
    return 2.0 * n_products * left[-2] * left[-1] * right[-1]


def batched(dims: list[int], flops: float) -> float:
    """``flops`` for each matrix of a batch."""
    return flops * (dims[0] if len(dims) == 3 else 1)


OPERATORS: dict[str, tuple[str, Callable[[list[list[int]]], float]]] = {
    "aten::mm": (PRODUCTS, product_flops),
    "aten::bmm": (PRODUCTS, product_flops),
    "aten::addmm": (PRODUCTS, product_flops),
    "aten::baddbmm": (PRODUCTS, product_flops),
    "aten::linalg_cholesky_ex": (CHOLESKY, lambda d: batched(d[0], d[0][-1] ** 3 / 3)),
    "aten::linalg_solve_triangular": (
        TRIANGULAR,
        lambda d: batched(d[0], float(d[0][-1] ** 2 * d[1][-1])),
    ),
    "aten::cholesky_inverse": (INVERSES, lambda d: batched(d[0], 2 * d[0][-1] ** 3 / 3)),
    "aten::cholesky_solve": (SOLVES, lambda d: batched(d[1], 2.0 * d[1][-1] ** 2 * d[0][-1])),
    "aten::_fused_adamw_": (OPTIMISER, lambda d: 0.0),
}
"""Name → the group it belongs to, and its floating-point operations, from its arguments' shapes."""


# --- steps ----------------------------------------------------------------------------------------
def our_step(model: Any, X: Tensor, y: Tensor, b: int, seed: int) -> Step:
    """One step of the package's training loop."""
    model.set_params(batch_size=b, random_state=seed)
    return training_step(model, X, y)


def svgp(solver: str, M: int) -> SVGPRegressor:
    """Ours with M points; where they start does not change what a step costs."""
    return SVGPRegressor(solver=solver, n_inducing=M, inducing_points="random")


def solvegp(solver: str, M: int) -> SolveGPRegressor:
    """Ours with M + M points."""
    return SolveGPRegressor(solver=solver, n_inducing=M, n_orthogonal=M, inducing_points="random")


def gpytorch_step(X: Tensor, y: Tensor, M: int, seed: int) -> Step:
    """One step of GPyTorch's."""
    torch.manual_seed(seed)
    training = Training(X[:M].clone(), len(X), natural=False, learning_rate=0.01)
    return lambda rows: training.step(X.index_select(0, rows), y[:, 0].index_select(0, rows))


# --- in turn --------------------------------------------------------------------------------------
def compare(
    steps: dict[str, Step], b: int, n_steps: int, repeats: int, seed: int, bar: float
) -> Iterator[Row]:
    """A row for each method: its time, and the median ratio to the last one's in the same turn."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            times[name].append(time_steps(step, N, b, n_steps, seed + repeat))
    *_, last = steps
    reference = times[last][1:]  # the first turn is the warm-up
    for name, turns in times.items():
        wall, cpu = (
            statistics.median(a[k] / r[k] for a, r in zip(turns[1:], reference, strict=True))
            for k in (0, 1)
        )
        row = {"method": name, "b": b, **medians(turns[1:]), "ratio": wall, "cpu_ratio": cpu}
        verdict = "" if name == last else f"bar {bar}: {'pass' if wall <= bar else 'FAIL'}"
        print(
            f"{name:34} b = {b:<5} {1e3 * row['wall_s']:9.2f} ms ({1e3 * row['cpu_s']:9.2f} ms CPU)"
            f"  ratio {wall:6.3f} (CPU {cpu:6.3f})  {verdict}",
            flush=True,
        )
        yield row


def against_gpytorch(M: int, n_steps: int, repeats: int, seed: int) -> Iterator[Row]:
    """Each solver, and GPyTorch."""
    X, y = make_data(N, seed)
    steps = {f"SVGP {M}, {s}": our_step(svgp(s, M), X, y, M, seed) for s in SOLVERS}
    steps[f"GPyTorch SVGP {M}"] = gpytorch_step(X, y, M, seed)
    for row in compare(steps, M, n_steps, repeats, seed, BAR):
        yield {"part": "against GPyTorch", "M": M, **row}


def against_svgp(M: int, b: int, n_steps: int, repeats: int, seed: int) -> Iterator[Row]:
    """SOLVE-GP with M + M points, and SVGP with 2M."""
    X, y = make_data(N, seed)
    for s in SOLVERS:
        steps = {
            f"SOLVE-GP {M}+{M}, {s}": our_step(solvegp(s, M), X, y, b, seed),
            f"SVGP {2 * M}, {s}": our_step(svgp(s, 2 * M), X, y, b, seed),
        }
        for row in compare(steps, b, n_steps, repeats, seed, SOLVEGP_BAR):
            yield {"part": "SOLVE-GP against SVGP", "M": 2 * M, **row}


# --- ingredients ----------------------------------------------------------------------------------
def ingredients(M: int, b: int, dtype: torch.dtype, seed: int) -> dict[str, tuple[Step, float]]:
    """Group → the bare operator, and its floating-point operations."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(b, M, generator=generator, dtype=dtype)
    eye = torch.eye(M, dtype=dtype)
    B = A.mT @ A / b + eye
    L = torch.linalg.cholesky(B)
    return {
        PRODUCTS: (lambda _: A @ B, 2.0 * b * M**2),
        CHOLESKY: (lambda _: torch.linalg.cholesky_ex(B), M**3 / 3),
        TRIANGULAR: (lambda _: torch.linalg.solve_triangular(L, eye, upper=False), float(M**3)),
        INVERSES: (lambda _: torch.cholesky_inverse(L), 2 * M**3 / 3),
        SOLVES: (lambda _: torch.cholesky_solve(A[:1].mT, L), 2.0 * M**2),
    }


def bare(M: int, b: int, repeats: int, seed: int) -> Iterator[Row]:
    """Time and rate of each ingredient."""
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        for group, (operator, flops) in ingredients(M, b, dtype, seed).items():
            seconds = [time_steps(operator, 1, 1, 3, seed)[0] for _ in range(repeats + 1)]
            wall = statistics.median(seconds[1:])
            print(
                f"M = {M:<5} b = {b:<5} {group:24}{name}{1e3 * wall:9.2f} ms "
                f"{1e-9 * flops / wall:8.1f} GFLOP/s",
                flush=True,
            )
            yield {
                **{"part": "ingredients", "M": M, "b": b, "group": group, "dtype": name},
                **{"wall_s": wall, "flops": flops, "flops_per_s": flops / wall},
            }


# --- profile --------------------------------------------------------------------------------------
def operator_events(step: Step, minibatches: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Events of the ATen operators of some steps, each with the microseconds of its own."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        for rows in minibatches:
            step(rows)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    events = [e for e in events if e.get("cat") == "cpu_op"]
    events.sort(key=lambda e: (e["tid"], e["ts"], -e["dur"]))
    callers: list[dict[str, Any]] = []
    for event in events:
        event |= {"own": event["dur"], "repeats": False}
        while callers and not _is_inside(event, callers[-1]):
            callers.pop()
        if callers:
            callers[-1]["own"] -= event["dur"]
            event["repeats"] = callers[-1]["name"] == event["name"]  # the same, with its output
        callers.append(event)
    return events


def _is_inside(event: dict[str, Any], other: dict[str, Any]) -> bool:
    return event["tid"] == other["tid"] and event["ts"] < other["ts"] + other["dur"]


def classify(event: dict[str, Any]) -> tuple[str, str, float]:
    """Group, type and floating-point operations of an event."""
    group, count = OPERATORS.get(event["name"], (REST, None))
    if count is None or group == OPTIMISER:
        return group, "", 0.0
    arguments = event["args"]
    types = [t for t in arguments["Input type"] if t in ("float", "double")]
    dtype = {"float": "float32", "double": "float64"}[types[0]]
    flops = 0.0 if event["repeats"] else count([d for d in arguments["Input Dims"] if d])
    return group, dtype, flops


def profiled(solver: str, M: int, b: int, n_steps: int, rates: Rates, seed: int) -> Iterator[Row]:
    """What a step of ours spends on each group of operators, and what their flops would take."""
    step = our_step(svgp(solver, M), *make_data(N, seed), b, seed)
    time_steps(step, N, b, 3, seed)  # warm up
    wall, _ = time_steps(step, N, b, n_steps, seed)
    events = operator_events(step, list(batches(N, b, n_steps, seed)))
    table: dict[tuple[str, str], list[float]] = {}
    for event in events:
        group, dtype, flops = classify(event)
        total = table.setdefault((group, dtype), [0, 0.0, 0.0])
        for k, amount in enumerate((not event["repeats"], event["own"] * 1e-6, flops)):
            total[k] += amount / n_steps
    spent = sum(seconds for _, seconds, _ in table.values())
    print(f"SVGP {M}, {solver}, b = {b}: {1e3 * wall:.2f} ms a step, profiled {1e3 * spent:.2f} ms")
    floor = 0.0
    for (group, dtype), (calls, seconds, flops) in sorted(table.items(), key=lambda i: -i[1][1]):
        ideal = flops / rates[group, dtype] if flops else 0.0
        floor += ideal
        print(
            f"  {group:34}{dtype:9}{calls:8.1f} calls{1e3 * seconds:9.2f} ms "
            f"{100 * seconds / spent:5.1f} %{1e-9 * flops:9.3f} GFLOP, alone {1e3 * ideal:8.2f} ms",
            flush=True,
        )
        yield {
            **{"part": "profile", "method": f"SVGP {M}, {solver}", "M": M, "b": b},
            **{"group": group, "dtype": dtype, "calls": calls, "wall_s": seconds},
            **{"share": seconds / spent, "flops": flops, "alone_s": ideal},
        }
    print(
        f"  the step takes {wall / floor:.2f} times what its products and factorisations do alone"
    )


def main() -> None:
    arguments = parser(__doc__, "bench_svgp_step.csv")
    arguments.add_argument("--inducing", nargs="+", type=int, default=[512, 1024], help="M = b")
    arguments.add_argument("--orthogonal", type=int, default=512, help="M of SOLVE-GP's M + M")
    arguments.add_argument("--steps", type=int, default=10, help="steps in a turn")
    arguments.add_argument("--repeats", type=int, default=9, help="turns")
    args = arguments.parse_args()
    set_threads(args.threads)
    effort = args.steps, args.repeats, args.seed
    rows: list[Row] = []
    for M in args.inducing:
        rows += against_gpytorch(M, *effort)
    for b in (args.orthogonal, 2 * args.orthogonal):
        rows += against_svgp(args.orthogonal, b, *effort)
    for M in args.inducing:
        alone = list(bare(M, M, args.repeats, args.seed))
        rates = {(r["group"], r["dtype"]): r["flops_per_s"] for r in alone}
        rows += alone
        for solver in SOLVERS:
            rows += profiled(solver, M, M, args.steps, rates, args.seed)
    write_csv(args.output, rows, seed=args.seed)


if __name__ == "__main__":
    main()

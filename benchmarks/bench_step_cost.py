"""Claims: a training step costs the same for any n, no b², and little more than bare PyTorch.

Time and peak memory of one SCGD step (network of layers 128 and D, linear kernel, Adam, noise as
the last validation left it) for a range of batch sizes b, feature counts D and data sizes n, the
others at b = D = 128 and n = 10⁵; and the ratio of a step at b = D = 128 to a hand-written PyTorch
loop of the same arithmetic, the two taking turns. The bar of the ratio is 1.3.

    python benchmarks/bench_step_cost.py

Memory is what PyTorch's allocator holds at the worst moment of a step beyond what it held before;
its profiler, which tells, also writes lines to stderr.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from _common import Clock, Row, parser, set_threads, write_csv
from sklearn.gaussian_process.kernels import DotProduct
from torch import Tensor, nn

from skgpstoch import SCGDGaussianProcessRegressor
from skgpstoch.estimators.runs import in_units, prepared
from skgpstoch.training.loop import Trainer

Step = Callable[[Tensor], object]  # of the indices of the rows of a minibatch

WIDTH, INPUTS = 128, 8
BASE = {"b": 128, "D": 128, "n": 100_000}
SWEEPS = {
    "b": (16, 32, 64, 128, 256, 512, 1024),
    "D": (32, 64, 128, 256, 512),
    "n": (1_000, 10_000, 100_000, 1_000_000),
}
LEARNING_RATE, WEIGHT_DECAY, NOISE = 0.01, 0.01, 0.1
BAR = 1.3


def make_data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """X (n, 8) and a smooth y (n, 1)."""
    X = torch.randn(n, INPUTS, generator=torch.Generator().manual_seed(seed))
    return X, torch.sin(2 * X[:, :1]) + X[:, 1:2] * X[:, 2:3]


def training_step(model: Any, X: Tensor, y: Tensor) -> Step:
    """One step of the package's training loop, as a fit of this estimator would begin it."""
    recipe, data = model._recipe(), model._validate(X.numpy(), y.numpy(), True)
    run = prepared(model, recipe, in_units(recipe, data, None), None)
    trainer = Trainer(
        run.objective,
        run.optimizer,
        run.minibatches(),
        max_iter=100,
        batch_size=run.plan.batch_size,
        schedule=run.plan.schedule,
        generator=run.problem.generator,
    )
    return lambda rows: trainer.train_step(
        run.problem.X.index_select(0, rows), run.problem.rows[rows]
    )


def our_step(X: Tensor, y: Tensor, b: int, D: int, seed: int) -> Step:
    """One step of SCGD."""
    model = SCGDGaussianProcessRegressor(
        DotProduct(sigma_0=0, sigma_0_bounds="fixed"),
        hidden_layer_sizes=(WIDTH, D),
        learning_rate_init=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        noise="validation",  # no step learns it
        noise_variance=NOISE,
        batch_size=b,
        random_state=seed,
    )
    return training_step(model, X, y)


def bare_step(X: Tensor, y: Tensor, b: int, D: int, seed: int) -> Step:
    """The same arithmetic by hand: running G and c, F⁻¹, the loss, its gradients, Adam."""
    n = len(X)
    net = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, D), nn.ReLU())
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
    )
    G, c = torch.zeros(D, D, dtype=torch.float64), torch.zeros(D, 1, dtype=torch.float64)
    ridge = NOISE * torch.eye(D, dtype=torch.float64)
    rate = 2 * b / (20 * D + b)

    def step(rows: Tensor) -> Tensor:
        x, t = X.index_select(0, rows), y.index_select(0, rows)
        Z = net(x)  # (b, D)
        with torch.no_grad():
            Zd = Z.double()
            G.lerp_(Zd.T @ Zd / b, rate)
            c.lerp_(Zd.T @ t.double() / b, rate)
            L = torch.linalg.cholesky(n * G + ridge)
            F_inv = torch.cholesky_inverse(L)
            w = F_inv @ (n * c)
            r = Z @ w.float() - t
            log_det = 2 * L.diagonal().log().sum()
            loss = r.square().mean() / NOISE + (w.square().sum() + log_det) / n
            dZ = (r @ w.T.float() / NOISE + Z @ F_inv.float()) / b  # (b, D)
        optimizer.zero_grad()
        Z.backward(dZ)
        optimizer.step()
        return loss

    return step


def batches(n: int, b: int, n_steps: int, seed: int) -> Iterator[Tensor]:
    """Rows of ``n_steps`` minibatches."""
    yield from torch.randint(n, (n_steps, b), generator=torch.Generator().manual_seed(seed))


def time_steps(step: Step, n: int, b: int, n_steps: int, seed: int) -> tuple[float, float]:
    """Wall and CPU seconds of a step."""
    with Clock() as clock:
        for rows in batches(n, b, n_steps, seed):
            step(rows)
    return clock.wall / n_steps, clock.cpu / n_steps


def medians(times: list[tuple[float, float]]) -> Row:
    """Medians over the repeats."""
    wall, cpu = map(statistics.median, zip(*times, strict=True))
    return {"wall_s": wall, "cpu_s": cpu}


def peak_bytes(step: Step, rows: Tensor) -> int:
    """Most that PyTorch's CPU allocator holds during a step, beyond what it held before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step(rows)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    memory = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]")
    held = peak = 0
    for _, size in memory:
        held += size
        peak = max(peak, held)
    return peak


def sweep(n_steps: int, repeats: int, seed: int) -> Iterator[Row]:
    """Time and memory of a step along each axis."""
    for axis, values in SWEEPS.items():
        for value in values:
            size = {**BASE, axis: value}
            n, b, D = size["n"], size["b"], size["D"]
            step = our_step(*make_data(n, seed), b, D, seed)
            time_steps(step, n, b, n_steps // 5, seed)  # warm up
            times = medians([time_steps(step, n, b, n_steps, seed + k) for k in range(repeats)])
            memory = peak_bytes(step, next(batches(n, b, 1, seed)))
            print(
                f"{axis} = {value:<8} {1e3 * times['wall_s']:8.3f} ms a step "
                f"({1e3 * times['cpu_s']:.3f} ms CPU) {memory / 2**20:8.2f} MiB",
                flush=True,
            )
            yield {"axis": axis, **size, **times, "step_bytes": memory}


def overhead(n_steps: int, repeats: int, seed: int) -> list[Row]:
    """Our step against the bare one, repeat by repeat in turn."""
    n, b, D = BASE["n"], BASE["b"], BASE["D"]
    X, y = make_data(n, seed)
    steps = {"ours": our_step(X, y, b, D, seed), "bare": bare_step(X, y, b, D, seed)}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            times[name].append(time_steps(step, n, b, n_steps, seed + repeat))
    ours, bare = (times[name][1:] for name in steps)  # the first turn is the warm-up
    wall, cpu = (
        statistics.median(a[k] / b[k] for a, b in zip(ours, bare, strict=True)) for k in (0, 1)
    )
    rows: list[Row] = [
        {"axis": f"overhead, {name}", **BASE, **medians(times[name][1:])} for name in steps
    ]
    for row in rows:
        print(f"{row['axis']}: {1e3 * row['wall_s']:.3f} ms ({1e3 * row['cpu_s']:.3f} ms CPU)")
    verdict = "pass" if wall < BAR else "FAIL"
    print(f"median ratio {wall:.3f} (of CPU times {cpu:.3f}) -> {verdict} (bar {BAR})")
    return [{**row, "ratio": wall, "cpu_ratio": cpu} for row in rows]


def main() -> None:
    arguments = parser(__doc__, "bench_step_cost.csv")
    arguments.add_argument("--steps", type=int, default=200, help="steps in a repeat")
    arguments.add_argument("--repeats", type=int, default=15)
    arguments.add_argument("--only-overhead", action="store_true")
    args = arguments.parse_args()
    set_threads(args.threads)
    rows = overhead(args.steps, args.repeats, args.seed)
    if not args.only_overhead:
        rows += sweep(args.steps, max(3, args.repeats // 3), args.seed)
    write_csv(args.output, rows, seed=args.seed)


if __name__ == "__main__":
    main()

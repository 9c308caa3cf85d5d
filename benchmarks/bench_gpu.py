"""What only a GPU can say: its tests, time to accuracy beside GPyTorch, times of steps, memory.

One command, ten minutes at most, for whoever has another GPU; please send the CSV:

    python benchmarks/bench_gpu.py

Parts, each in a process of its own that ends at a time limit; what was measured by then is kept:

    tests       all tests marked gpu; what pytest says is written beside the CSV (.txt)
    accuracy    test NLPD against wall time on the device: SCGD and SVGPRegressor by whole fits from
                scratch, and GPyTorch's SVGP, Adam and natural gradients, where it is installed
    steps       seconds of a training step on the CPU and on the device, at two sizes, and the
                device's peak memory
    neighbours  NNGPRegressor on a field of many rows, and with a network, and the default in the
                same time: seconds, NLPD and rows predicted a second, on the CPU and on the device
    predictions rows a second, mean and standard deviation, from arrays to arrays, on the CPU and on
                the device; the device's peak memory

``--device cpu`` runs a small version of all, to see that this script works. Without a GPU and
without ``--device`` it ends with status 2; with 1 where a test failed or a part was cut.
``--data DIR`` takes kin40k, or another ``--set``, in place of a smooth function of eight inputs.
Times on the device are taken when it is done with what it was asked for, after steps that warm it
up; the CPU has all cores, or ``--threads``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _common import (
    Array,
    Clock,
    Row,
    Split,
    gaussian_scores,
    load_split,
    parser,
    set_threads,
    split_table,
    synchronize,
    write_csv,
)
from bench_neighbours import drawn_field

import skgpstoch as sg
from skgpstoch.data.devices import HOST, is_host, resolve_device
from skgpstoch.training.loop import Trainer

ROOT = Path(__file__).parents[1]
LIMITS = {"tests": 150, "accuracy": 140, "steps": 120, "neighbours": 140, "predictions": 50}
"""Seconds of each part: ten minutes together."""

DONE = re.compile(r"\b(PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)\b")
MAX_ITER = [1, 2, 4, 8, 16, 32, 64, 128, 256]
INPUTS = 8


class Scale(NamedTuple):
    """How much is measured."""

    rows: int = 40_000  # of which a tenth are for tests
    inducing: int = 512
    fit_seconds: float = 12.0  # of the longest fit; all of a method take about twice as long
    peer_seconds: float = 30.0  # of each run of GPyTorch
    sizes: tuple[tuple[int, int, int], ...] = ((256, 256, 12), (1024, 1024, 28))  # M, b, pixels
    step_seconds: float = 1.0  # of the measured steps of a case
    steps: int = 60  # at most
    queries: int = 200_000  # rows to predict
    field: int = 100_000  # rows of a field
    max_time: float = 15.0  # of deep neighbours and of the default


SMALL = Scale(2_000, 32, 1.0, 2.0, ((16, 64, 6), (32, 128, 8)), 0.2, 10, 5_000, 1_000, 4.0)
WARM_STEPS, WARM_SECONDS = 5, 1.0  # before steps are measured, at most


def scale_of(args: argparse.Namespace) -> Scale:
    """All of it on an accelerator, little on the CPU."""
    return SMALL if is_host(resolve_device(args.device)) else Scale()


# --- the device -----------------------------------------------------------------------------------
def describe(device: torch.device) -> Row:
    """Columns of every row."""
    found: Row = {"device": str(device), "device_name": "", "device_GiB": "", "driver": ""}
    if not is_host(device):
        properties = torch.get_device_module(device).get_device_properties(device)
        found["device_name"] = properties.name
        found["device_GiB"] = round(properties.total_memory / 2**30, 1)
        found["driver"] = driver()
    return {**found, "toolkit": torch.version.cuda or torch.version.hip or ""}


def driver() -> str:
    """The version of NVIDIA's driver, where its tool is installed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=20, check=False)
    return found.stdout.partition("\n")[0].strip()


def forget_peak(device: torch.device) -> None:
    """Measure peaks of memory from here."""
    if not is_host(device):
        torch.get_device_module(device).reset_peak_memory_stats(device)


def peak_mib(device: torch.device) -> float | str:
    """The most memory that tensors held on an accelerator since then; of the CPU nothing."""
    if is_host(device):
        return ""
    return torch.get_device_module(device).max_memory_allocated(device) / 2**20


def both(device: torch.device) -> list[torch.device]:
    """The device, and the CPU."""
    return list(dict.fromkeys([device, HOST]))


# --- data -----------------------------------------------------------------------------------------
def smooth(X: Array) -> Array:
    """Of eight inputs, (n, 8) → (n,)."""
    return np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + np.cos(X[:, 3] + X[:, 4])


def make_data(args: argparse.Namespace, scale: Scale) -> Split:
    """Rows of a set, or of a smooth function with noise of standard deviation 0.1."""
    if args.data is not None:
        return load_split(args.data, args.set, rows=scale.rows * 9 // 10)
    rng = np.random.default_rng(args.seed)
    X = rng.standard_normal((scale.rows, INPUTS))
    y = smooth(X) + 0.1 * rng.standard_normal(scale.rows)
    rows = np.arange(scale.rows)
    return split_table(np.column_stack([X, y]), *np.split(rows, [scale.rows * 9 // 10]))


# --- part: tests ----------------------------------------------------------------------------------
def tests_command() -> list[str]:
    """All tests that need a GPU, a line each."""
    workers = str(min(4, os.cpu_count() or 1))
    options = ["-m", "gpu", "-n", workers, "-v", "--color=no", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", *options]


def count_tests(lines: list[str]) -> Row:
    """How tests ended."""
    ends = [DONE.search(line) for line in lines if "::" in line and "%]" in line]
    counts = Counter(end[1] for end in ends if end)
    failed = counts["FAILED"] + counts["ERROR"]
    return {"n_passed": counts["PASSED"], "n_failed": failed, "n_skipped": counts["SKIPPED"]}


def run_tests(args: argparse.Namespace) -> list[Row]:
    """Counts, and what pytest says as a file."""
    log = args.output.with_suffix(".txt")
    log.parent.mkdir(parents=True, exist_ok=True)
    status, seconds = limited(tests_command(), log, LIMITS["tests"], ROOT)
    lines = log.read_text(errors="replace").splitlines()
    print("\n".join(line for line in lines if line.startswith(("FAILED", "ERROR"))))
    row = {"method": "pytest -m gpu", "wall_s": seconds, **count_tests(lines), "status": status}
    print(f"{row}: {log}", flush=True)
    return [row]


# --- part: accuracy -------------------------------------------------------------------------------
def accuracy(args: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Points of NLPD against wall time."""
    scale = scale_of(args)
    data, M = make_data(args, scale), scale.inducing
    common: Row = {"device": str(device), "random_state": args.seed}
    makers: dict[str, Callable[[int], Any]] = {
        "SCGD": lambda k: sg.SCGDGaussianProcessRegressor(max_iter=k, **common),
        f"SVGP {M}": lambda k: sg.SVGPRegressor(
            solver="collapsed", n_inducing=M, batch_size=M, max_iter=k, **common
        ),
    }
    few = Split(*(part[:512] for part in data))
    for make in makers.values():
        make(1).fit(few.X_train, few.y_train)  # libraries load what they load
    for method, make in makers.items():
        yield from fits(method, make, data, scale.fit_seconds, device)
    yield from peers(data, scale, args.seed, device)


def fits(
    method: str, make: Callable[[int], Any], data: Split, most: float, device: torch.device
) -> Iterator[Row]:
    """Whole fits of more and more epochs, until the next would take too long."""
    for max_iter in MAX_ITER:
        model = make(max_iter)
        forget_peak(device)
        with Clock() as clock:
            model.fit(data.X_train, data.y_train)
        peak = peak_mib(device)
        mean, std = model.predict(data.X_test, return_std=True)
        scores = gaussian_scores(data.y_test, mean, std)._asdict()
        seconds = {"wall_s": clock.wall, "cpu_s": clock.cpu}
        yield {"method": method, "n_iter": model.n_iter_, **seconds, **scores, "peak_MiB": peak}
        if 2 * clock.wall > most or model.n_iter_ < max_iter:
            return


def peers(data: Split, scale: Scale, seed: int, device: torch.device) -> Iterator[Row]:
    """GPyTorch on the same device."""
    if importlib.util.find_spec("gpytorch") is None:
        yield {"method": "GPyTorch", "note": "not installed: ours alone"}
        return
    from _gpytorch import svgp_trace  # optional

    few = Split(*(part[:512] for part in data))
    options: dict[str, Any] = {"seed": seed, "device": device, "learning_rate": 0.01}
    M = scale.inducing
    for natural, name in ((False, "Adam"), (True, "natural")):
        options["natural"] = natural
        list(svgp_trace(few, n_inducing=16, batch_size=32, budget=0.5, n_points=2, **options))
        forget_peak(device)
        sizes = {"n_inducing": M, "batch_size": M, "budget": scale.peer_seconds, "n_points": 12}
        for point in svgp_trace(data, **sizes, **options):
            scores = gaussian_scores(data.y_test, point.mean, point.std)._asdict()
            seconds = {"wall_s": point.wall, "cpu_s": point.cpu, "n_iter": point.n_iter}
            method = f"GPyTorch SVGP {M} {name}"
            yield {"method": method, **seconds, **scores, "peak_MiB": peak_mib(device)}


def report_accuracy(rows: list[Row]) -> list[Row]:
    """When each method first had GPyTorch's lowest NLPD, or without it one that all have."""
    runs: dict[str, list[Row]] = {}
    for row in rows:
        if "nlpd" in row:
            runs.setdefault(row["method"], []).append(row)
    lowest = {method: min(r["nlpd"] for r in run) for method, run in runs.items()}
    theirs = [nlpd for method, nlpd in lowest.items() if method.startswith("GPyTorch")]
    if not lowest:
        return []
    target = min(theirs) if theirs else max(lowest.values())
    found = []
    for method, run in runs.items():
        first = min((r["wall_s"] for r in run if r["nlpd"] <= target), default=math.inf)
        found.append({"method": method, "target_nlpd": target, "wall_s": first})
        print(
            f"{method:28} NLPD {target:.3f} {f'in {first:.2f} s' if first < math.inf else 'never'}"
        )
    return found


# --- part: steps ----------------------------------------------------------------------------------
class EnoughError(Exception):
    """Steps have been measured."""


class StepTimer:
    """Times the steps of a fit from inside, and ends it."""

    def __init__(self, device: torch.device, scale: Scale) -> None:
        self.device, self.scale = device, scale
        self.n_warm = self.n_steps = 0
        self.seconds = 0.0
        self.started: float | None = None
        self.first: float | None = None

    def after_step(self) -> None:
        """Called when the host is done with a step."""
        now = time.perf_counter()
        if self.started is None:
            self.n_warm += 1
            self.first = now if self.first is None else self.first
            if self.n_warm >= WARM_STEPS or now - self.first > WARM_SECONDS:
                synchronize(self.device)
                forget_peak(self.device)
                self.started = time.perf_counter()
            return
        self.n_steps += 1
        if self.n_steps >= self.scale.steps or now - self.started > self.scale.step_seconds:
            synchronize(self.device)
            self.seconds = (time.perf_counter() - self.started) / self.n_steps
            raise EnoughError

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Time the steps of what is fitted inside."""
        original = Trainer.train_step

        def train_step(*args: Any) -> Any:
            loss = original(*args)
            self.after_step()
            return loss

        setattr(Trainer, "train_step", train_step)  # noqa: B010 (mypy refuses an assignment)
        try:
            yield
        except EnoughError:
            pass
        finally:
            setattr(Trainer, "train_step", original)  # noqa: B010


def step_cases(size: tuple[int, int, int], seed: int) -> dict[str, tuple[Any, Array, Array]]:
    """Estimators that do not stop, and data."""
    M, b, pixels = size
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((8 * b, INPUTS)).astype(np.float32)
    images = rng.random((4 * b, pixels**2)).astype(np.float32)
    y, bright = smooth(X), (images[:, 0] > 0.5).astype(int)
    loop: dict[str, Any] = {"max_iter": 1000, "batch_size": b, "random_state": seed}
    sparse = loop | {"n_inducing": M, "inducing_points": "random"}
    network = loop | {"early_stopping": False}
    patches = loop | {"batch_size": b // 8, "n_inducing": M // 8, "inducing_points": "random"}
    solve = {**sparse, "n_inducing": M // 2, "n_orthogonal": M // 2, "solver": "natural"}
    made = {
        "SCGD": sg.SCGDGaussianProcessRegressor(**network),
        **{
            f"SVGP, {solver}": sg.SVGPRegressor(solver=solver, **sparse)
            for solver in ("collapsed", "natural", "adam")
        },
        "SOLVE-GP, natural": sg.SolveGPRegressor(**solve),
        "DLM": sg.DLMRegressor(**sparse),
        "deep kernel ensemble": sg.DeepKernelEnsembleRegressor(**network),
        "deep": sg.DeepGPRegressor(**sparse),
    }
    images_of = sg.ConvolutionalGPClassifier(image_shape=(pixels, pixels), **patches)
    cases = {name: (model, X, y) for name, model in made.items()}
    return {**cases, "convolutional, classes": (images_of, images, bright)}


def steps(args: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Seconds of a step on both, size by size."""
    scale = scale_of(args)
    for size in scale.sizes:
        for name, (model, X, y) in step_cases(size, args.seed).items():
            for where in both(device):
                timer = StepTimer(where, scale)
                with timer.watching():
                    model.set_params(device=str(where)).fit(X, y)
                sizes = {"M": size[0], "b": model.batch_size, "n_iter": timer.n_steps}
                measured = {"where": str(where), "step_s": timer.seconds, **sizes}
                yield {"method": name, **measured, "peak_MiB": peak_mib(where)}


# --- part: neighbours -----------------------------------------------------------------------------
def neighbours(args: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Fits by neighbours, shallow and deep, and by the default, which has them among its models."""
    scale, common = scale_of(args), {"random_state": args.seed}
    field, table = drawn_field(scale.field, args.seed).data, make_data(args, scale)
    limited_to = {"max_time": scale.max_time, **common}
    deep = sg.NNGPRegressor(hidden_layer_sizes=(256, 256), **limited_to)
    cases: dict[str, tuple[Any, Split]] = {
        "neighbours, a field": (sg.NNGPRegressor(**common), field),
        "deep neighbours": (deep, table),
        "the default": (sg.AutoGaussianProcessRegressor(**limited_to), table),
    }
    for name, (model, data) in cases.items():
        for where in both(device):
            forget_peak(where)
            with Clock() as fit:
                model.set_params(device=str(where)).fit(data.X_train, data.y_train)
            with Clock() as prediction:
                mean, std = model.predict(data.X_test, return_std=True)
            rate = {"rows": len(data.X_train), "rows_per_s": len(data.X_test) / prediction.wall}
            scores = gaussian_scores(data.y_test, mean, std)._asdict()
            seconds = {"wall_s": fit.wall, "cpu_s": fit.cpu}
            measured = {"where": str(where), **seconds, **scores, **rate}
            yield {"method": name, **measured, "peak_MiB": peak_mib(where)}


# --- part: predictions ----------------------------------------------------------------------------
def predictions(args: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Rows a second on both, of models fitted on the device."""
    scale = scale_of(args)
    data, common = make_data(args, scale), {"device": str(device), "random_state": args.seed}
    X = np.resize(data.X_test, (scale.queries, data.X_test.shape[1]))
    models = {
        "SCGD": sg.SCGDGaussianProcessRegressor(max_iter=5, **common),
        f"SVGP {scale.inducing}": sg.SVGPRegressor(
            solver="natural", n_inducing=scale.inducing, max_iter=2, **common
        ),
        "deep kernel ensemble": sg.DeepKernelEnsembleRegressor(max_iter=2, **common),
    }
    for name, model in models.items():
        model.fit(data.X_train, data.y_train)
        for where in both(device):
            model.set_params(device=str(where))
            rows = X if where == device else X[: len(X) // 10]  # the CPU takes its time
            model.predict(rows[:1000], return_std=True)
            forget_peak(where)
            with Clock() as clock:
                model.predict(rows, return_std=True)
            rate = {"rows": len(rows), "rows_per_s": len(rows) / clock.wall}
            yield {"method": name, "where": str(where), **rate, "peak_MiB": peak_mib(where)}


COMPLETE = "complete"
PARTS: dict[str, Callable[[argparse.Namespace, torch.device], Iterator[Row]]] = {
    "accuracy": accuracy,
    "steps": steps,
    "neighbours": neighbours,
    "predictions": predictions,
}


# --- processes ------------------------------------------------------------------------------------
def limited(
    command: list[str], output: Path, seconds: float, cwd: Path | None
) -> tuple[str, float]:
    """Run a command, with all that it starts, for so long at most; how it ended, and seconds."""
    start = time.perf_counter()
    with output.open("w") as file:
        process = subprocess.Popen(command, stdout=file, cwd=cwd, start_new_session=True)
        try:
            status = process.wait(seconds)
            ended = COMPLETE if status == 0 else f"ended with status {status}"
        except subprocess.TimeoutExpired:
            ended = f"cut after {seconds:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return ended, time.perf_counter() - start


def run_part(part: str) -> list[Row]:
    """Rows of a part in a process of its own, and a last one that says how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows"
        command = [sys.executable, *sys.argv, "--child", part]
        status, seconds = limited(command, output, LIMITS[part], None)
        lines = [line for line in output.read_text().splitlines() if line.endswith("}")]
        rows: list[Row] = [json.loads(line) for line in lines if line.startswith("{")]
    for row in rows:
        print({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()})
    if part == "accuracy":
        rows += report_accuracy(rows)
    print(f"{part}: {status}, {seconds:.0f} s", flush=True)
    return [*rows, {"method": "all", "wall_s": seconds, "status": status}]


def run_child(args: argparse.Namespace) -> None:
    """One part; a line for each row as soon as there is one."""
    set_threads(args.threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few epochs
        for row in PARTS[args.child](args, resolve_device(args.device)):
            print(json.dumps(row, default=float), flush=True)


def main() -> int:
    arguments = parser(__doc__, "bench_gpu.csv")
    arguments.set_defaults(threads=len(os.sched_getaffinity(0)))  # a rival to the GPU
    arguments.add_argument("--device", help='"cuda", "cuda:1"; "cpu": a small version of all')
    arguments.add_argument("--data", type=Path, help="folder that holds uci/NAME/")
    arguments.add_argument("--set", default="kin40k")
    arguments.add_argument("--parts", nargs="+", choices=list(LIMITS), default=list(LIMITS))
    arguments.add_argument("--child", help=argparse.SUPPRESS)
    args = arguments.parse_args()
    device = resolve_device(args.device or "auto")
    if args.device is None and is_host(device):
        print("There is no GPU here that PyTorch can use: --device cpu tries this script without.")
        return 2
    args.device = str(device)
    if args.child:
        run_child(args)
        return 0
    set_threads(args.threads)
    rows: list[Row] = []
    for part in args.parts:
        found = run_tests(args) if part == "tests" else run_part(part)
        rows += [{"part": part, **row} for row in found]
    data = "synthetic" if args.data is None else args.set
    write_csv(args.output, rows, seed=args.seed, data=data, **describe(device))
    return int(any(row.get("status", COMPLETE) != COMPLETE for row in rows))


if __name__ == "__main__":
    sys.exit(main())

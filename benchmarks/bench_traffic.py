"""Claim: a training step waits at most once for the device, a block of predictions for its result.

What an accelerator is asked for, counted on the pretend one of the tests (tests/pretend_device.py),
which needs no GPU: operations, copies of arrays to the device and back, and waits, where the host
asks what a tensor holds. Copies to the host are not counted as waits again. Means over

- the steps of the training loop, but for the first epoch, where arrays are placed that stay; of
  the drop-in estimator the evaluations of the evidence;
- the same epochs: what an epoch waits for beyond its steps, evaluations among it (`epoch_waits`,
  copies to the host included);
- one block more of predictions, the mean and the standard deviation or probabilities.

    python benchmarks/bench_traffic.py

Counts are not times, and depend on neither machine nor seed; they do on versions, and a little on
the size. All is small: 600 rows, b = 100, M = 20. The table is printed as the guide has it.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import Array, Row, parser, set_threads, write_csv

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pretend_device  # which is neither installed nor here
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import skgpstoch as sg
from skgpstoch.data import devices
from skgpstoch.training import exact_search
from skgpstoch.training.loop import Trainer

N, B = 600, 100  # rows, and those of a minibatch
EPOCHS = 4
N_IMAGES, PIXELS = 60, 36
MOST = 1.0  # waits of a step, the bar

Counts = Array  # of operations, copies to the device, copies to the host, and waits
STEP = ("operations", "to_device", "to_host", "waits")


class Tables(NamedTuple):
    """Inputs, and targets of each kind."""

    X: Array
    y: Array
    counts: Any
    classes: Any
    images: Array


def make_tables(seed: int) -> Tables:
    """Rows of a sine, and images whose class is the sign of their first pixel."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(N)
    classes = (y > 0).astype(int) + (X[:, 1] > 1)
    return Tables(X, y, rng.poisson(np.exp(y)), classes, rng.standard_normal((N_IMAGES, PIXELS)))


# --- estimators -----------------------------------------------------------------------------------
class Case(NamedTuple):
    """An estimator, its data, and what is counted: the calls of a method."""

    model: Any
    X: Array
    y: Array
    owner: type = Trainer
    method: str = "train_step"

    @property
    def unit(self) -> str:
        """What a call is."""
        return "step" if self.owner is Trainer else "evaluation"


def cases(seed: int) -> dict[str, Case]:
    """By the names that the guide has."""
    t = make_tables(seed)
    loop: dict[str, Any] = {"max_iter": EPOCHS, "batch_size": B, "random_state": seed}
    sparse = loop | {"n_inducing": 20}
    network = loop | {"early_stopping": False}
    made: dict[str, tuple[Any, Any, Any]] = {
        "SCGD, network": (sg.SCGDGaussianProcessRegressor(**network), t.X, t.y),
        "SCGD, Fourier": (sg.SCGDGaussianProcessRegressor(RBF(), **network), t.X, t.y),
        "Minimax": (sg.MinimaxGaussianProcessRegressor(**network), t.X, t.y),
        "BSGD": (sg.BSGDGaussianProcessRegressor(**network), t.X, t.y),
    }
    for solver in ("collapsed", "natural", "adam", "lbfgs"):
        made[f'SVGP, "{solver}"'] = (sg.SVGPRegressor(solver=solver, **sparse), t.X, t.y)
    counts = sg.SVGPRegressor(likelihood="poisson", **sparse)
    patches = loop | {"image_shape": (6, 6), "n_inducing": 10, "batch_size": 20}
    basis = loop | {"n_components": 200, "n_subset": 0, "basis_batch_size": 50}
    solve = sg.SolveGPRegressor(n_orthogonal=10, solver="natural", **sparse)
    made |= {
        "SVGP, counts": (counts, t.X, t.counts),
        "SVGP, classes": (sg.SVGPClassifier(**sparse), t.X, t.classes),
        'SOLVE-GP, "natural"': (solve, t.X, t.y),
        "DLM": (sg.DLMRegressor(**sparse), t.X, t.y),
        "DLM, classes": (sg.DLMClassifier(**sparse), t.X, t.classes),
        "FITC": (sg.FITCRegressor(**sparse), t.X, t.y),
        "deep kernel ensemble": (sg.DeepKernelEnsembleRegressor(**network), t.X, t.y),
        "the same, classes": (sg.DeepKernelEnsembleClassifier(**network), t.X, t.classes),
        "deep": (sg.DeepGPRegressor(**sparse), t.X, t.y),
        "deep, classes": (sg.DeepGPClassifier(**sparse), t.X, t.classes),
        "convolutional, classes": (
            sg.ConvolutionalGPClassifier(**patches),
            t.images,
            (t.images[:, 0] > 0).astype(int),
        ),
        "QSGP": (sg.QSGPRegressor(**basis), t.X, t.y),
        "QSRVM": (sg.QSRVMRegressor(**loop), t.X, t.y),
    }
    exact = ConstantKernel() * RBF() + WhiteKernel()
    drop_in = sg.GaussianProcessRegressor(exact, random_state=seed)
    evidence = (exact_search.Search, "__call__")
    return {
        **{name: Case(*case) for name, case in made.items()},
        "drop-in": Case(drop_in, t.X[:200], t.y[:200], *evidence),
    }


# --- counts ---------------------------------------------------------------------------------------
def seen(traffic: pretend_device.Traffic) -> Counts:
    """All that was counted so far; a copy to the host is not counted as a wait again."""
    waits = traffic.n_waits - traffic.waits["copy to host"]
    return np.array([traffic.n_operations, traffic.to_device, traffic.to_host, waits], float)


@contextlib.contextmanager
def counted(owner: type, name: str, traffic: pretend_device.Traffic) -> Iterator[list[Counts]]:
    """What each call of a method asks for."""
    found: list[Counts] = []
    original = getattr(owner, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        before = seen(traffic)
        result = original(*args, **kwargs)
        found.append(seen(traffic) - before)
        return result

    setattr(owner, name, method)
    try:
        yield found
    finally:
        setattr(owner, name, original)


def block_counts(model: Any, X: Array, traffic: pretend_device.Traffic) -> Counts:
    """What one block more of predictions asks for."""
    size = model.posterior_.block_rows if hasattr(model, "posterior_") else 0
    if not size:
        return np.full(len(STEP), np.nan)
    rows = np.resize(X, (3 * size, X.shape[1]))
    predict: Callable[[Array], Any] = getattr(model, "predict_proba", None) or (
        lambda some: model.predict(some, return_std=True)
    )
    totals = []
    for n_blocks in (1, 2, 3):  # the first also places what stays
        before = seen(traffic)
        predict(rows[: n_blocks * size])
        totals.append(seen(traffic) - before)
    return totals[2] - totals[1]


def measure(case: Case, traffic: pretend_device.Traffic) -> Row:
    """Means of a step, the most waits of any, and of a block."""
    model = case.model.set_params(device=pretend_device.NAME)
    calls_of_epochs = counted(Trainer, "run_sound_epoch", traffic)
    with counted(case.owner, case.method, traffic) as calls, calls_of_epochs as epochs:
        model.fit(case.X, case.y)
    later = np.array(calls[-(-len(calls) // EPOCHS) :])
    step, block = later.mean(0), block_counts(model, case.X, traffic)
    beyond = np.nan
    if epochs:
        n_steps = len(later) / len(epochs[1:])
        beyond = (np.mean(epochs[1:], 0) - n_steps * step)[2:].sum()
    return {
        "unit": case.unit,
        "n_counted": len(later),
        **dict(zip(STEP, step.round(3), strict=True)),
        "most_waits": later[:, -1].max(),
        "epoch_waits": beyond,
        **{f"block_{name}": value for name, value in zip(STEP, block, strict=True)},
    }


def table_row(name: str, row: Row) -> str:
    """As the guide has it."""
    keys = [*STEP, "epoch_waits", "block_operations", "block_to_host", "block_waits"]
    cells = [row[key] for key in keys]
    shown = ["" if np.isnan(c) else f"{c:.0f}" if c == round(c) else f"{c:.1f}" for c in cells]
    return "\n".join(f"{'* -' if k == 0 else '  -'} {c}" for k, c in enumerate([name, *shown]))


def main() -> None:
    arguments = parser(__doc__, "bench_traffic.csv")
    arguments.add_argument("--only", default="", help="cases whose names contain this text")
    args = arguments.parse_args()
    set_threads(args.threads)
    pretend_device.install()
    devices.ACCELERATORS = (*devices.ACCELERATORS, pretend_device.NAME)
    warnings.simplefilter("ignore")  # few epochs
    rows: list[Row] = []
    with pretend_device.pretending() as traffic:
        for name, case in cases(args.seed).items():
            if args.only in name:
                rows.append({"estimator": name, **measure(case, traffic)})
                print(table_row(name, rows[-1]), flush=True)
    over = [r["estimator"] for r in rows if r["unit"] == "step" and r["waits"] > MOST]
    print(f"more than {MOST:g} wait a step: {', '.join(over) or 'none'}")
    write_csv(args.output, rows, device="pretend", seed=args.seed)


if __name__ == "__main__":
    main()

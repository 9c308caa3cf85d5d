"""Claims: calibrated classes on digits, GPC's probabilities in the plane, memory flat in n.

Part "digits" (scikit-learn's, 10 classes, 75 % / 25 % stratified): accuracy, log-loss, Brier
score, expected calibration error and times of SVGPClassifier and SolveGPClassifier, and of
scikit-learn's SVC(probability=True), calibrated SVC, GaussianProcessClassifier and
LogisticRegression, all on pixels divided by 16. The verdict: accuracy at least 0.985, and a
log-loss below those of both SVC(probability=True) and GaussianProcessClassifier.

Part "plane" (two moons, and a banana across a blob): how far P(y = 1) is from that of
GaussianProcessClassifier with the same kernel, largest and mean, on a grid over the rows and on
test rows; ours with as many points as rows, and with fewer that are learned. Samples from the
posterior say how far Laplace's approximation is off, which GaussianProcessClassifier makes. The
verdict is of ours with all points: with a kernel of variance 1, where Laplace is accurate, within
0.02 of GaussianProcessClassifier everywhere; with the kernel that it fits, nearer to the samples
than it is, on average.

Part "memory": a fit of one epoch to memory-mapped rows of 20 float32, each in a fresh process; the
peak of its resident set (VmHWM, Linux) less the size of the data, and how that grows with n.

    python benchmarks/bench_classification.py --threads 2
    python benchmarks/bench_classification.py --parts digits --splits 0 1 2 3 4
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import Array, Clock, Row, parser, set_threads, write_csv
from _peers import SampledClassifier
from bench_memory import resident, write_data
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, make_moons
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from torch import nn

from skgpstoch import SolveGPClassifier, SVGPClassifier

ACCURACY = 0.985
AGREEMENT = 0.02
PARTS = ("digits", "plane", "memory")


# --- digits ---------------------------------------------------------------------------------------
def convolutions(seed: int) -> nn.Module:
    """Features of 8×8 images."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 32),
        )


def classifiers(seed: int) -> dict[str, Any]:
    """Name → estimator: ours first."""
    models = {
        "SVGPClassifier": SVGPClassifier(random_state=seed),
        "SVGPClassifier, one length": SVGPClassifier(
            ConstantKernel() * RBF(2.0), random_state=seed
        ),
        "SVGPClassifier, robust-max": SVGPClassifier(
            ConstantKernel() * RBF(2.0), likelihood="robustmax", random_state=seed
        ),
        "SVGPClassifier, convolutions": SVGPClassifier(
            feature_map=convolutions(seed), n_inducing=100, random_state=seed
        ),
        "SolveGPClassifier": SolveGPClassifier(random_state=seed),
        "calibrated SVC": CalibratedClassifierCV(SVC(random_state=seed), ensemble=False),
        "GaussianProcessClassifier": GaussianProcessClassifier(1.0 * RBF(2.0), random_state=seed),
        "LogisticRegression": LogisticRegression(max_iter=2000),
    }
    if "probability" in SVC().get_params():  # deprecated in scikit-learn 1.9, gone from 1.11
        models["SVC(probability=True)"] = SVC(probability=True, random_state=seed)
    return models


def class_scores(y: NDArray[np.int64], proba: Array) -> Row:
    """Scores of probabilities (n, C) of classes 0, …, C − 1."""
    n, n_bins = len(y), 15
    confidence, hit = proba.max(1), proba.argmax(1) == y  # (n,)
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    gaps = np.bincount(bins, hit - confidence, n_bins)
    return {
        "accuracy": float(hit.mean()),
        "log_loss": float(-np.log(np.maximum(proba[np.arange(n), y], 1e-300)).mean()),
        "brier": float(np.square(proba - np.eye(proba.shape[1])[y]).sum(1).mean()),
        "ece": float(np.abs(gaps).sum() / n),
    }


def digits(args: argparse.Namespace) -> Iterator[Row]:
    """All classifiers on each split."""
    X, y = load_digits(return_X_y=True)
    X = X / 16.0
    for split in args.splits:
        X_train, X_test, y_train, y_test = train_test_split(
            X, y, test_size=0.25, stratify=y, random_state=split
        )
        X_train, y_train = X_train[: args.train_rows], y_train[: args.train_rows]
        for name, model in classifiers(args.seed).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # SVC's, of what is to be removed
                with Clock() as fit:
                    model.fit(X_train, y_train)
            with Clock() as predict:
                proba = model.predict_proba(X_test)
            row = {"part": "digits", "split": split, "method": name, **class_scores(y_test, proba)}
            row |= {"wall_s": fit.wall, "cpu_s": fit.cpu, "predict_s": predict.wall}
            print(
                f"digits {split:2} {name:27} accuracy {row['accuracy']:.4f}  log-loss "
                f"{row['log_loss']:.4f}  Brier {row['brier']:.4f}  ECE {row['ece']:.4f}  "
                f"{fit.wall:7.2f} s, predict {predict.wall:.3f} s",
                flush=True,
            )
            yield row


def digits_verdict(rows: list[Row]) -> None:
    """Print whether ours, averaged over the splits, keep what the claim says."""
    means: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(r["method"] for r in rows):
        own = [r for r in rows if r["method"] == name]
        means[name] = {k: float(np.mean([r[k] for r in own])) for k in ("accuracy", "log_loss")}
    rivals = [n for n in means if n in ("SVC(probability=True)", "GaussianProcessClassifier")]
    least = min(means[n]["log_loss"] for n in rivals)
    for name in (n for n in means if n.startswith(("SVGP", "SolveGP"))):
        accuracy, loss = means[name]["accuracy"], means[name]["log_loss"]
        good = accuracy >= ACCURACY and loss < least
        print(
            f"{name}: accuracy {accuracy:.4f} (bar {ACCURACY}), log-loss {loss:.4f} "
            f"(bar {least:.4f}) -> {'pass' if good else 'FAIL'}"
        )


# --- the plane ------------------------------------------------------------------------------------
def moons(n: int, seed: int) -> tuple[Array, NDArray[np.int64]]:
    """Two moons that overlap."""
    return make_moons(n, noise=0.3, random_state=seed)


def banana(n: int, seed: int) -> tuple[Array, NDArray[np.int64]]:
    """A parabola with noise, and a blob across it."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    X = rng.standard_normal((n, 2)) * np.where(y[:, None] == 1, (1.0, 0.8), (1.2, 0.7))
    X[:, 1] += np.where(y == 1, 1.0, X[:, 0] ** 2 - 1.0)
    return X, y


PLANE_SETS = {"two moons": moons, "banana": banana}


def plane(args: argparse.Namespace) -> Iterator[Row]:
    """Differences of probabilities from GaussianProcessClassifier's, and from sampled ones."""
    for name, draw in PLANE_SETS.items():
        X, y = draw(args.plane_rows, args.seed)
        axes = [np.linspace(a, b, 40) for a, b in zip(X.min(0), X.max(0), strict=True)]
        places = {
            "grid": np.stack(np.meshgrid(*axes), -1).reshape(-1, 2),
            "test rows": draw(1000, args.seed + 1)[0],
        }
        for optimizer in (None, "fmin_l_bfgs_b"):
            gpc = GaussianProcessClassifier(1.0 * RBF(1.0), optimizer=optimizer).fit(X, y)
            for row in gaps(gpc, X, y, places, args):
                yield {"part": "plane", "set": name, "fitted": optimizer is not None, **row}
                show_gaps(name, optimizer is not None, row)


def gaps(
    gpc: GaussianProcessClassifier,
    X: Array,
    y: NDArray[np.int64],
    places: dict[str, Array],
    args: argparse.Namespace,
) -> Iterator[Row]:
    """Ours with GPC's kernel, each beside GPC and two chains of samples."""
    kernel = gpc.kernel_
    kernel = kernel.set_params(**{h: "fixed" for h in kernel.get_params() if h.endswith("_bounds")})
    chains = [SampledClassifier(kernel, args.draws, args.seed + k).fit(X, y) for k in (0, 1)]
    of_chains = {p: [chain.predict_proba(rows) for chain in chains] for p, rows in places.items()}
    fixed = {"likelihood": "bernoulli", "mean": "zero", "random_state": args.seed}
    models = {
        "Z = X": SVGPClassifier(kernel, inducing_points=X, learn_inducing_points=False, **fixed),
        f"{args.few} points": SVGPClassifier(kernel, n_inducing=args.few, **fixed),
    }
    for method, model in models.items():
        with Clock() as clock:
            model.fit(X, y)
        for place, rows in places.items():
            sampled = np.mean(of_chains[place], 0)
            p, laplace = (m.predict_proba(rows)[:, 1] for m in (model, gpc))
            pairs = {
                "from_gpc": p - laplace,
                "from_sampled": p - sampled,
                "gpc_from_sampled": laplace - sampled,
                "of_chains": of_chains[place][0] - of_chains[place][1],
            }
            row: Row = {"method": method, "place": place, "kernel": str(kernel), "n": len(X)}
            for pair, gap in pairs.items():
                row |= {f"largest_{pair}": float(np.abs(gap).max())}
                row |= {f"mean_{pair}": float(np.abs(gap).mean())}
            yield {**row, "wall_s": clock.wall}


def show_gaps(name: str, fitted: bool, row: Row) -> None:
    """Print one line; the verdict is of all rows as points."""
    verdict = ""
    if row["method"] == "Z = X":
        nearer = row["mean_from_sampled"] < row["mean_gpc_from_sampled"]
        good = nearer if fitted else row["largest_from_gpc"] <= AGREEMENT
        verdict = f"-> {'pass' if good else 'FAIL'}"
    figures = (
        f"{title} {row[f'largest_{pair}']:.4f} {row[f'mean_{pair}']:.4f}"
        for title, pair in (
            ("|ours - GPC|", "from_gpc"),
            ("|ours - sampled|", "from_sampled"),
            ("|GPC - sampled|", "gpc_from_sampled"),
            ("|chain - chain|", "of_chains"),
        )
    )
    start = f"{name:9} {row['kernel']:28} {row['method']:9} {row['place']:9}"
    print(start, "  ".join(figures), verdict, flush=True)


# --- memory ---------------------------------------------------------------------------------------
def fit_in_child(args: argparse.Namespace) -> Row:
    """Fit the memory-mapped arrays in ``args.child``, and measure."""
    X, labels = (np.load(args.child / f"{name}.npy", mmap_mode="r") for name in ("X", "labels"))
    before = resident()["VmHWM"]
    model = SVGPClassifier(
        n_inducing=args.memory_inducing, batch_size=1024, max_iter=1, random_state=args.seed
    )
    with Clock() as clock:
        model.fit(X, labels)
    data = X.nbytes + labels.nbytes
    peak = resident()["VmHWM"]
    return {
        **{"part": "memory", "n": len(X), "data_bytes": data, "before_fit_bytes": before},
        **{"peak_bytes": peak, "beyond_data_bytes": peak - data, "wall_s": clock.wall},
    }


def memory(args: argparse.Namespace) -> Iterator[Row]:
    """One process for each n."""
    for n in args.rows:
        with tempfile.TemporaryDirectory() as folder:
            write_data(Path(folder), n, 20, args.seed)
            target = np.load(Path(folder) / "y.npy", mmap_mode="r")
            np.save(Path(folder) / "labels.npy", target > 0)
            command = [sys.executable, *sys.argv, "--child", folder]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        row = json.loads(output)
        print(
            f"memory n = {n:<8} data {row['data_bytes'] / 1e6:6.0f} MB  before the fit "
            f"{row['before_fit_bytes'] / 1e6:5.0f} MB  peak {row['peak_bytes'] / 1e6:6.0f} MB  "
            f"beyond the data {row['beyond_data_bytes'] / 1e6:6.0f} MB  {row['wall_s']:.1f} s",
            flush=True,
        )
        yield row


def memory_growth(rows: list[Row]) -> None:
    """Print what a row adds to the peak, beyond itself."""
    few, many = rows[0], rows[-1]
    if few is many:
        return
    more = many["n"] - few["n"]
    each = (many["beyond_data_bytes"] - few["beyond_data_bytes"]) / more
    data = (many["data_bytes"] - few["data_bytes"]) / more
    print(
        f"a row of {data:.0f} bytes adds {each:.0f} bytes beyond itself: {each / data:.1f} copies"
    )


def main() -> None:
    arguments = parser(__doc__, "bench_classification.csv")
    add = arguments.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS)
    add("--splits", nargs="+", type=int, default=[0], help="seeds of the splits of digits")
    add("--train-rows", type=int, help="of digits; default: all")
    add("--plane-rows", type=int, default=200)
    add("--few", type=int, default=32, help="learned points of the plane part")
    add("--draws", type=int, default=40_000, help="of each chain")
    add("--rows", nargs="+", type=int, default=[200_000, 1_000_000], help="n of the memory part")
    add("--memory-inducing", type=int, default=128)
    add("--child", type=Path, help=argparse.SUPPRESS)
    args = arguments.parse_args()
    set_threads(args.threads)
    if args.child:
        print(json.dumps(fit_in_child(args)))
        return
    rows: list[Row] = []
    if "digits" in args.parts:
        rows += digits(args)
        digits_verdict(rows)
    if "plane" in args.parts:
        rows += plane(args)
    if "memory" in args.parts:
        measured = list(memory(args))
        memory_growth(measured)
        rows += measured
    write_csv(args.output, rows, seed=args.seed)


if __name__ == "__main__":
    main()

"""Record what every public estimator computes, and compare two such records.

    python benchmarks/record_results.py old.npz          # the old tree first on PYTHONPATH
    python benchmarks/record_results.py new.npz          # the new one; the same machine
    python benchmarks/record_results.py --compare old.npz new.npz --tol 1e-10

A change that should move no number is one for which the comparison finds nothing above the
tolerance. It compares quantities relative to max(1, max|old|), and exits with 1 if any is above.

Where training amplifies rounding, or a draw is from a singular covariance, even harmless changes
move results. Which those are is seen by a record of data that are perturbed in their last bits:
with ``--perturb`` a record is of these, and ``--compare OLD NEW --perturbed THAT`` tells how far
each quantity of the table moves by that alone.

A record is a flat archive of arrays named "case/quantity". Cases are small: about a hundred rows
and a few epochs, so that training does not amplify rounding. Only the public API is used, so that
the same script runs in both trees. What raises is recorded as the text of its error, as
"case/error" where it was a fit, and does not stop the run. ``--only TEXT`` records the cases whose
names contain the text; ``--unmerged`` switches the merging of equal rows off, which orders them.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.gaussian_process.kernels import (
    RBF,
    DotProduct,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)
from threadpoolctl import threadpool_limits
from torch import nn

import skgpstoch
from skgpstoch import (
    ADMMGaussianProcessRegressor,
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    BSGDGaussianProcessRegressor,
    ConvolutionalGPClassifier,
    ConvolutionalGPRegressor,
    DeepGPClassifier,
    DeepGPRegressor,
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
    DLMClassifier,
    DLMRegressor,
    ExpectedLogLikelihood,
    FITCRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    LogLoss,
    MinimaxGaussianProcessRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMClassifier,
    QSRVMRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPClassifier,
    SolveGPRegressor,
    SquareLoss,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.likelihoods import Bernoulli, Categorical, Gaussian, Laplace, Poisson, StudentT

N_PROBES = 12  # rows that all is predicted for
N_CHUNKS = 3  # of a stream

Params = dict[str, Any]
Record = dict[str, np.ndarray]


# ---- data ----------------------------------------------------------------------------------------
class Data(NamedTuple):
    """Rows, and what goes with them as keyword arguments: their exposure, if they have one."""

    X: np.ndarray
    y: np.ndarray
    given: dict[str, np.ndarray]

    def some(self, rows: slice) -> Data:
        """Some of the rows."""
        return Data(self.X[rows], self.y[rows], {k: v[rows] for k, v in self.given.items()})


def perturbed(data: Data) -> Data:
    """The same, but for the last bits of real numbers."""
    rng = np.random.default_rng(1)
    eps = np.finfo(np.float64).eps
    X = data.X * (1.0 + eps * rng.integers(-1, 2, data.X.shape))
    is_real = data.y.dtype.kind == "f"
    y = data.y * (1.0 + eps * rng.integers(-1, 2, data.y.shape)) if is_real else data.y
    return Data(X, y, data.given)


def make_data() -> dict[str, Data]:
    """Every data set, by its name."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (100, 2)) * [1.0, 2.0] + [0.5, -1.0]
    f = np.sin(X[:, 0]) + 0.2 * X[:, 1]
    exposure = rng.uniform(0.5, 4.0, 100)
    X3 = rng.uniform(-2, 2, (80, 3))
    both = np.column_stack([np.sin(X3[:, 0]) + X3[:, 2], 10.0 * np.cos(X3[:, 1])])
    X_many = rng.uniform(-3, 3, (4100, 2))  # more than a block of 4,096
    many = np.sin(X_many[:, 0]) + 0.3 * X_many[:, 1]
    pixels = np.random.default_rng(2).uniform(0, 1, (40, 64))
    return {
        "line": Data(X[:, :1], np.sin(X[:, 0]) + 0.1 * X[:, 0], {}),
        "wave": Data(X, 5.0 + 3.0 * f + 0.4 * rng.standard_normal(100), {}),
        "two outputs": Data(X3, both + 0.1 * rng.standard_normal(both.shape), {}),
        "counts": Data(X, rng.poisson(np.exp(f)), {}),
        "exposed": Data(X, rng.poisson(exposure * np.exp(f)), {"exposure": exposure}),
        "two classes": Data(X, np.where(X[:, 1] > np.sin(2.0 * X[:, 0]), "up", "down"), {}),
        "three classes": Data(X, np.digitize(f, [-0.7, 0.4]) * 10 - 5, {}),
        "many": Data(X_many, many + 0.2 * rng.standard_normal(4100), {}),
        "many classes": Data(X_many, (many > 0.0).astype(int), {}),
        "images": Data(pixels, pixels[:, :8].sum(1), {}),
        "two kinds of images": Data(pixels, (pixels[:, :8].sum(1) > 4.0).astype(int), {}),
    }


# ---- parameters ----------------------------------------------------------------------------------
COMMON: Params = {"batch_size": 32, "dtype": "float64", "random_state": 0}
FINITE: Params = {**COMMON, "hidden_layer_sizes": (8, 6), "n_estimators": 1, "max_iter": 5}
SPARSE: Params = {**COMMON, "n_inducing": 8, "max_iter": 4}
SINGLE: Params = {"dtype": "float32"}
BRIEF: Params = {"max_iter": 2}
ONCE: Params = {"max_iter": 1}  # where "auto" is L-BFGS, tens of iterations
LARGE: Params = {"batch_size": 512, "max_iter": 2}
LBFGS: Params = {"solver": "lbfgs", "max_iter": 1}
NATURAL: Params = {"solver": "natural"}
ADAM: Params = {"solver": "adam"}
COLLAPSED: Params = {"solver": "collapsed"}
POISSON: Params = {"likelihood": "poisson"}
WARM: Params = {"warm_start": True}
LINEAR: Params = {"hidden_layer_sizes": ()}
FOURIER: Params = {"hidden_layer_sizes": (), "n_components": 20}
NEURAL: Params = {"hidden_layer_sizes": (6, 4), "max_iter": 6}
FIXED: Params = {"hyperparameters": "fixed"}
ADADELTA: Params = {"solver": "adadelta", "learning_rate": "constant", "learning_rate_init": 1.0}
ARD = 1.0 * RBF([1.0, 2.0])
POINTS = np.column_stack([np.linspace(-2, 3, 7), np.linspace(-6, 4, 7)])
OTHERS = POINTS[::-1] * [1.0, -0.5] + 0.5


def network() -> nn.Module:
    """A feature map of the user's own, with a layer that is frozen."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4), nn.SiLU())
    layers[0].requires_grad_(False)
    return layers


OF_FINITE: dict[str, Params] = {
    "default": {},
    "float32": SINGLE,
    "two networks": {"n_estimators": 2},
    "networks by auto": {"n_estimators": "auto", **SINGLE},
    "linear": LINEAR,
    "rbf": {"kernel": RBF(), **FOURIER},
    "matern white": {"kernel": 2.0 * Matern([1.0, 2.0], nu=2.5) + WhiteKernel(0.2), **FOURIER},
    "deep rbf": {"kernel": RBF(), "n_components": 16},
    "feature map": {"feature_map": network()},
    "learned noise": {"noise": "learned"},
    "profiled noise": {"noise": "profiled"},
    "no early stopping": {"early_stopping": False},
    "raw target": {"normalize_y": False},
    "adadelta": ADADELTA,
}
OF_SCGD: dict[str, Params] = {
    "three networks": {"n_estimators": 3, **SINGLE},
    "dot product white": {"kernel": DotProduct(1.0) + WhiteKernel(0.1), **LINEAR},
    "sum": {"kernel": 1.0 * RBF(2.0) + 0.5 * DotProduct(1.0), **FOURIER},
    "product": {"kernel": RBF(2.0) * Matern(3.0, nu=1.5), **FOURIER},
    "fixed white": {"kernel": ARD + WhiteKernel(0.1, "fixed"), **FOURIER},
    "deep sum": {"kernel": RBF(2.0) + DotProduct(), "n_components": 16},
    "tanh": {"activation": "tanh"},
    "validated noise": {"noise": "validation", **LINEAR},
    "profiled long": {"noise": "profiled", "max_iter": 65},  # after 200 steps it changes
    "noise variance": {"noise_variance": 0.5, "noise": "learned"},
    "constant rate": {"learning_rate": "constant"},
    "theory": {"learning_rate": "theory", "averaging": "theory"},
    "averaging": {"averaging": 0.9},
    "learned weights": {"weights": "learned", "noise": "learned"},
    "patience": {"n_iter_no_change": 2, "tol": 0.05, "max_iter": 30},
    "validation fraction": {"validation_fraction": 0.3},
    "weight decay": {"weight_decay": 0.5},
    "batch by auto": {"batch_size": "auto"},
    "paper": {
        **ADADELTA,
        "kernel": DotProduct(0.0, "fixed"),
        "averaging": 0.9,
        "weights": "learned",
        "noise": "learned",
        "early_stopping": False,
        "weight_decay": 0,
    },
}
OF_MINIMAX: dict[str, Params] = {
    "dual step": {"dual_step": 0.3},
}
EXACT: Params = {"kernel": RBF() + WhiteKernel(0.1), "n_components": None, **LINEAR}
OF_BSGD: dict[str, Params] = {
    "rational quadratic": {"kernel": RationalQuadratic() + WhiteKernel(0.1), **LINEAR},
    "exact": EXACT,
    "exact ard last": {**EXACT, "kernel": ARD, "early_stopping": False},
    "exact deep": {"kernel": RBF(), "n_components": None},
    "exact fixed white": {**EXACT, "kernel": RBF() + WhiteKernel(0.1, "fixed")},
}
PERIODIC: Params = {"kernel": 1.0 * ExpSineSquared(1.0, 6.0) + DotProduct(), **LINEAR}
OF_SPARSE: dict[str, Params] = {
    "default": ONCE,
    "float32": {**SINGLE, **NATURAL},
    "rbf ard": {"kernel": ARD, **ONCE},
    "white": {"kernel": ARD + WhiteKernel(0.3), **NATURAL},
    "fixed white": {"kernel": ARD + WhiteKernel(0.3, "fixed"), **ADAM},
    "given points": {"inducing_points": POINTS, "n_inducing": 7, **NATURAL},
    "zero mean": {"mean": "zero", **NATURAL},
    "unwhitened": {"whiten": False, **ADAM},
    "early stopping": {"early_stopping": True, **NATURAL},
    "raw target": {"normalize_y": False, **NATURAL},
}
OF_SVGP: dict[str, Params] = {
    "float32 collapsed": {**SINGLE, **COLLAPSED},
    "float32 adam": {**SINGLE, **ADAM},
    "float32 student": {**SINGLE, **NATURAL, "likelihood": StudentT(0.5, 8.0)},
    "float32 laplace": {**SINGLE, **ADAM, "likelihood": Laplace(0.5)},
    "gaussian given": {"likelihood": Gaussian(0.5), **NATURAL},
    "dot product": {"kernel": 0.5 * DotProduct(1.0) + WhiteKernel(0.1), **NATURAL},
    "sum": {"kernel": 1.0 * RBF(2.0) + DotProduct(), **NATURAL},
    "power": {"kernel": DotProduct(1.0) ** 2 * RationalQuadratic(3.0), **NATURAL},
    "deep": {**NEURAL, **NATURAL},
    "deep adam": {**NEURAL, **ADAM},
    "deep lbfgs": {**NEURAL, **LBFGS},
    "feature map": {"feature_map": network(), **NATURAL},
    "averaging": {"averaging": 0.5, **NATURAL},
    "deep collapsed": {**NEURAL, **COLLAPSED},
    "deep rbf": {**NEURAL, **SINGLE, "kernel": RBF(), **NATURAL},
    "conditional variance": {"inducing_points": "conditional_variance", **NATURAL},
    "random points": {"inducing_points": "random", **ONCE},
    "fixed points": {"learn_inducing_points": False, **NATURAL},
    "early stopping lbfgs": {"early_stopping": True, **LBFGS},
    "patience": {"n_iter_no_change": 1, "tol": 0.1, "early_stopping": True, **NATURAL},
    "constant rate": {"learning_rate": "constant", **NATURAL},
    "theory": {"learning_rate": "theory", **ADAM},
    "averaging collapsed": {"averaging": 0.5, **COLLAPSED},
    "log1p collapsed": {"loss": "log1p", **COLLAPSED},
    "log1p lbfgs": {"loss": "log1p", **LBFGS},
    "log1p natural": {"loss": "log1p", **NATURAL},
    "log1p adam": {"loss": "log1p", **ADAM},
    "beta": {"beta": 0.2, **NATURAL},
    "beta collapsed": {"beta": 0.2, **COLLAPSED},
    "beta lbfgs": {"beta": 2.0, "loss": ExpectedLogLikelihood(), **LBFGS},
    "square beta": {"beta": 0.3, "loss": SquareLoss(), **NATURAL},
}
OF_COUNTS: dict[str, Params] = {
    "exp": {**POISSON, **NATURAL},
    "softplus": {"likelihood": Poisson("softplus"), **NATURAL},
    "softplus log": {"likelihood": Poisson("softplus"), "loss": "log", **ADAM},
    "softplus square": {"likelihood": Poisson("softplus"), "loss": "square", **NATURAL},
    "square": {**POISSON, "loss": "square", **NATURAL},
    "log float32": {**POISSON, "loss": "log", **SINGLE},
}
OF_SOLVE: dict[str, Params] = {
    "default": ONCE,
    "float32": {**SINGLE, **NATURAL},
    "numbers": {"n_orthogonal": 12, **NATURAL},
    "given": {"orthogonal_points": OTHERS, **NATURAL},
    "both given": {
        "n_inducing": 7,
        "inducing_points": POINTS,
        "orthogonal_points": OTHERS,
        **ONCE,
    },
    "conditional variance": {"inducing_points": "conditional_variance", **NATURAL},
    "unwhitened": {"whiten": False, **ADAM},
    "kernel": {"kernel": ARD + WhiteKernel(0.1), "mean": "zero", **NATURAL},
    "beta": {"beta": 0.3, **COLLAPSED},
    "log1p": {"loss": "log1p", **NATURAL},
    "log": {"loss": "log", **NATURAL},
    "square": {"loss": "square", **ONCE},
}
OF_DLM: dict[str, Params] = {
    "default": {},
    "float32": SINGLE,
    "betas": {"beta": [0.1, 1.0, 10.0], **BRIEF},
    "betas no refit": {"beta": [0.1, 1.0], "refit": False, **BRIEF},
    "beta by auto": {"beta": "auto", "max_iter": 1},
    "fixed": {**FIXED, **ONCE},
    "fixed square": {**FIXED, "loss": "square", **LBFGS},
    "fixed betas": {**FIXED, "beta": [0.1, 1.0], **ONCE},
    "square": {"loss": SquareLoss(), "beta": 0.5, **ONCE},
    "early stopping": {"early_stopping": True},
    "kernel": {"kernel": ARD + WhiteKernel(0.2), **NATURAL},
    "elbo": {"loss": ExpectedLogLikelihood(), **ONCE},
    "refused": {"solver": "lbfgs"},
}
OF_CLASSIFIERS: dict[str, Params] = {
    "default": {},
    "float32": {**SINGLE, **NATURAL},
    "rbf ard": {"kernel": ARD},
    "early stopping": {"early_stopping": True},
    "given points": {"inducing_points": POINTS, "n_inducing": 7, "mean": "zero"},
    "unwhitened": {"whiten": False, **ADAM},
}
OF_STREAMS: dict[str, Params] = {"default": {}, "float32": SINGLE}
OF_SPARSE_STREAMS: dict[str, Params] = {**OF_STREAMS, "natural": NATURAL, "adam": ADAM}
OF_MANY: dict[str, Params] = {
    "natural": {**LARGE, **NATURAL},
    "lbfgs": LBFGS,
    "float32": {**LARGE, **SINGLE},
}
SOLVERS = ("collapsed", "lbfgs", "natural", "adam")
CLASSES = {"bernoulli": "two classes", "softmax": "three classes", "robustmax": "three classes"}
NOISES = {"gaussian": "wave", "student_t": "wave", "laplace": "wave"}
LIKELIHOODS = {**NOISES, "poisson": "exposed", **CLASSES}  # and the data of each
GRADIENTS: dict[str, Params] = {
    f"by {gradient}": {"loss": LogLoss(gradient, n_samples=5), **BRIEF}
    for gradient in ("exact", "biased", "smoothed", "product")
}


# ---- cases ---------------------------------------------------------------------------------------
class Group(NamedTuple):
    """An estimator, data, how it is fitted to them, and the parameters of each case."""

    name: str
    estimator: type
    data: str
    params: dict[str, Params]
    how: str = "once"


OF_DEEP: dict[str, Params] = {
    "default": {},
    "one layer": {"n_layers": 1},
    "three layers": {"n_layers": 3, "hidden_dims": 3},
    "solve": {"posterior": "solve"},
    "odvgp": {"posterior": "odvgp"},
    "odvgp unwhitened": {"posterior": "odvgp", "whiten": False},
    "natural": NATURAL,
    "adam": ADAM,
    "log": {"loss": "log"},
    "kernels": {"kernel": 2.0 * RBF(1.0), "hidden_kernel": RBF(1.0)},
}
OF_IMAGES: dict[str, Params] = {
    "default": {},
    "plain": {"location_kernel": None, "global_kernel": None, "patch_weights": "uniform"},
    "solve": {"posterior": "solve"},
    "hidden": {"hidden_channels": 2},
    "pixels": {"hidden_channels": (2, 3), "patch_correlation": "none"},
    "channels": {"image_shape": (4, 4, 4), "patch_shape": 2},
    "stride": {"stride": 2, "patch_shape": (3, 2)},
}
OF_QSGP: dict[str, Params] = {
    "default": {"n_components": 100},
    "inducing": {"basis": "inducing", "n_components": 30},
    "augment": {"basis": "inducing", "n_components": 30, "augment": True},
    "adagrad": {"solver": "adagrad", "n_components": 100},
    "learned kernel": {"learn_kernel": True, "n_components": 100},
    "blocks": {"n_dense": 0, "basis_batch_size": 32, "n_components": 100},
    "stop": {"early_stopping": True, "n_components": 100},
}
OF_NETWORKS: dict[str, Params] = {
    "default": {},
    "two": {"n_estimators": 2},
    "fourier": {"kernel": 2.0 * RBF(1.0), **FOURIER},
    "linear": LINEAR,
    "no waves": {"n_waves": 0},
    "not calibrated": {"calibrate": False},
    "trained to the end": {"early_stopping": False},
}
OF_NOISY_NETWORKS: dict[str, Params] = {
    "gaussian": {"likelihood": "gaussian", "noise": "constant"},
    "student t": {"likelihood": "student_t"},
    "square": {"likelihood": "gaussian", "loss": "square"},
}
OF_DROP_IN: dict[str, Params] = {
    "default": {"kernel": 1.0 * RBF()},
    "svgp": {"kernel": 1.0 * RBF(), "method": "svgp"},
    "solve": {"kernel": 1.0 * RBF(), "method": "solve"},
}
OF_GPCV: dict[str, Params] = {
    "default": {},
    "naive": {"scheme": "naive", "cv": 3},
    "coordinate": {"solver": "coordinate"},
    "blocks": {"block_size": 40},
    "no noise": {"learn_noise": False},
}


def trained_by(likelihood: str, losses: str, **params: Any) -> dict[str, Params]:
    """Cases of a likelihood with these losses and all solvers that each can have."""
    cases: dict[str, Params] = {}
    for loss, solver in itertools.product(losses.split(), SOLVERS):
        closed = loss == "elbo" and likelihood == "gaussian"
        closed = closed or (loss == "square" and likelihood in NOISES)
        if not closed and (solver == "collapsed" or (solver == "lbfgs" and loss != "elbo")):
            continue
        solved = LBFGS if solver == "lbfgs" else {"solver": solver}
        cases[f"{loss} {solver}"] = {"likelihood": likelihood, "loss": loss, **params, **solved}
    return cases


def grid(name: str, pair: tuple[type, type], losses: str, **params: Any) -> Iterator[Group]:
    """Every likelihood, by the regressor or the classifier of a pair."""
    for likelihood, data in LIKELIHOODS.items():
        cases = trained_by(likelihood, losses, **params)
        yield Group(f"{name} {likelihood}", pair[likelihood in CLASSES], data, cases)


def finite_groups() -> Iterator[Group]:
    """SCGD, MINIMAX and BSGD."""
    for name, cls, own in (
        ("scgd", SCGDGaussianProcessRegressor, OF_SCGD),
        ("minimax", MinimaxGaussianProcessRegressor, OF_MINIMAX),
        ("bsgd", BSGDGaussianProcessRegressor, OF_BSGD),
    ):
        brief = BRIEF if name == "minimax" else {}  # whose projections amplify rounding
        cases = {case: {**brief, **params} for case, params in {**OF_FINITE, **own}.items()}
        yield Group(name, cls, "wave", cases)
        learned = {**OF_STREAMS, "learned noise": {"noise": "learned"}}
        yield Group(f"{name} outputs", cls, "two outputs", learned)
        yield Group(f"{name} warm", cls, "wave", {"default": WARM}, "twice")
        fourier = {**OF_STREAMS, "rbf": {"kernel": ARD, **FOURIER}}
        yield Group(f"{name} stream", cls, "wave", fourier, "stream")
        yield Group(f"{name} fit and stream", cls, "wave", {"default": {}}, "both")
        yield Group(f"{name} many", cls, "many", {"default": LARGE})
    bsgd = BSGDGaussianProcessRegressor
    yield Group("bsgd line", bsgd, "line", {"periodic": PERIODIC})
    yield Group("bsgd outputs", bsgd, "two outputs", {"exact": EXACT})
    yield Group("bsgd warm", bsgd, "wave", {"exact": {**EXACT, **WARM}}, "twice")


def option_groups() -> Iterator[Group]:
    """The options of the sparse variational family."""
    solved = {"lbfgs": LBFGS, "adam": ADAM}
    yield Group("svgp", SVGPRegressor, "wave", {**OF_SPARSE, **OF_SVGP})
    yield Group("svgp line", SVGPRegressor, "line", {"periodic": {**PERIODIC, **NATURAL}})
    yield Group("fitc", FITCRegressor, "wave", {**OF_SPARSE, **solved})
    yield Group("solve", SolveGPRegressor, "wave", OF_SOLVE)
    for whiten, name in ((True, "odvgp"), (False, "odvgp unwhitened")):  # the latter has no L-BFGS
        prior = {"posterior": "odvgp", "whiten": whiten, "n_orthogonal": 12}
        cases = trained_by("gaussian", "elbo", **prior)
        yield Group(name, SolveGPRegressor, "wave", cases)
    for data in ("counts", "exposed"):
        yield Group(f"svgp {data}", SVGPRegressor, data, OF_COUNTS)
    probit = {"probit": {"likelihood": Bernoulli("probit")}}
    own = {"deep": NEURAL, "averaging": {"averaging": 0.5}}
    robust = {"robustmax": {"likelihood": Categorical(link="robustmax", epsilon=0.01)}}
    yield Group("svgp two", SVGPClassifier, "two classes", {**OF_CLASSIFIERS, **probit, **own})
    yield Group("solve three", SolveGPClassifier, "three classes", {**OF_CLASSIFIERS, **robust})


def direct_groups() -> Iterator[Group]:
    """The options of direct loss minimisation."""
    yield Group("dlm", DLMRegressor, "wave", OF_DLM)
    for likelihood, data in LIKELIHOODS.items():
        cls = DLMClassifier if likelihood in CLASSES else DLMRegressor
        cases = {name: {**params, "likelihood": likelihood} for name, params in GRADIENTS.items()}
        yield Group(f"dlm gradient {likelihood}", cls, data, cases)
    betas = {"betas": {"beta": [0.1, 1.0], **BRIEF}, "fixed": FIXED}
    counts = {name: {**POISSON, **params} for name, params in betas.items()}
    yield Group("dlm exposed", DLMRegressor, "exposed", counts)
    probit = {"probit": {"likelihood": Bernoulli("probit")}}
    yield Group("dlm two", DLMClassifier, "two classes", {**probit, **betas})
    yield Group("dlm three", DLMClassifier, "three classes", {"default": {}, **betas})


def manner_groups() -> Iterator[Group]:
    """Several outputs, streams, warm starts and many rows, in the sparse variational family."""
    prior = {"odvgp": {"posterior": "odvgp", "whiten": False, **ADAM}}
    for name, cls, data, own in (
        ("svgp", SVGPRegressor, "wave", {}),
        ("fitc", FITCRegressor, "wave", {}),
        ("solve", SolveGPRegressor, "wave", prior),
        ("dlm", DLMRegressor, "wave", {}),
        ("svgp two", SVGPClassifier, "two classes", {}),
        ("solve three", SolveGPClassifier, "three classes", {}),
        ("dlm three", DLMClassifier, "three classes", {}),
    ):
        yield Group(f"{name} stream", cls, data, {**OF_SPARSE_STREAMS, **own}, "stream")
        yield Group(f"{name} fit and stream", cls, data, {"natural": NATURAL}, "both")
        solved = {"natural": NATURAL, "adam": ADAM, **({} if "dlm" in name else {"lbfgs": LBFGS})}
        warm = {k: {**v, **WARM} for k, v in {**solved, **own}.items()}
        yield Group(f"{name} warm", cls, data, warm, "twice")
        if data == "wave":
            yield Group(f"{name} outputs", cls, "two outputs", {"default": ONCE, **solved})
        many = {k: v for k, v in OF_MANY.items() if k in solved or k == "float32"}
        yield Group(f"{name} many", cls, "many" if data == "wave" else "many classes", many)
    exposed = {"natural": {**POISSON, **NATURAL}, "adam": {**POISSON, **ADAM}}
    yield Group("svgp exposed stream", SVGPRegressor, "exposed", exposed, "stream")


def other_groups() -> Iterator[Group]:
    """Deep and convolutional processes, ensembles, QSGP, QSRVM, GPCV, and the drop-ins."""
    pairs = {
        "deep": (DeepGPRegressor, DeepGPClassifier, OF_DEEP),
        "qsgp": (QSGPRegressor, QSGPClassifier, OF_QSGP),
        "rvm": (QSRVMRegressor, QSRVMClassifier, {"default": {}}),
        "networks": (DeepKernelEnsembleRegressor, DeepKernelEnsembleClassifier, OF_NETWORKS),
        "drop-in": (GaussianProcessRegressor, GaussianProcessClassifier, OF_DROP_IN),
    }
    for name, (regressor, classifier, cases) in pairs.items():
        yield Group(name, regressor, "wave", cases)
        yield Group(f"{name} outputs", regressor, "two outputs", {"default": {}})
        yield Group(f"{name} two", classifier, "two classes", cases)
        yield Group(f"{name} three", classifier, "three classes", {"default": {}})
    yield Group("networks of noise", DeepKernelEnsembleRegressor, "wave", OF_NOISY_NETWORKS)
    yield Group("images", ConvolutionalGPRegressor, "images", OF_IMAGES)
    yield Group("image classes", ConvolutionalGPClassifier, "two kinds of images", OF_IMAGES)
    for cls, data in (
        (DeepGPRegressor, "wave"),
        (ConvolutionalGPClassifier, "two kinds of images"),
    ):
        yield Group(f"{cls.__name__} warm", cls, data, {"default": WARM}, "twice")
        yield Group(f"{cls.__name__} stream", cls, data, {"default": {}}, "stream")
    yield Group("gpcv", ADMMGaussianProcessRegressor, "wave", OF_GPCV)
    yield Group("gpcv outputs", ADMMGaussianProcessRegressor, "two outputs", {"default": {}})
    yield Group("automatic", AutoGaussianProcessRegressor, "wave", {"default": {}})
    yield Group("automatic two", AutoGaussianProcessClassifier, "two classes", {"default": {}})


def groups() -> Iterator[Group]:
    """All of them."""
    yield from finite_groups()
    yield from option_groups()
    yield from direct_groups()
    yield from grid("svgp", (SVGPRegressor, SVGPClassifier), "elbo log square")
    yield from grid("solve", (SolveGPRegressor, SolveGPClassifier), "elbo")
    for posterior in ("solve", "odvgp"):
        pair = SolveGPRegressor, SolveGPClassifier
        yield from grid(f"losses {posterior}", pair, "log square", posterior=posterior)
    yield from manner_groups()
    yield from other_groups()


# ---- what is recorded ----------------------------------------------------------------------------
Quantity = Callable[[Any, Data, Data], Any]  # of a fitted estimator, the probes and all rows

OF_REGRESSION: dict[str, Quantity] = {
    "mean": lambda m, p, a: m.predict(p.X, **p.given),
    "mean of all": lambda m, p, a: m.predict(a.X, **a.given),
    "std": lambda m, p, a: m.predict(p.X, return_std=True, **p.given)[1],
    "predict_std": lambda m, p, a: m.predict_std(p.X, **p.given),
    "latent mean": lambda m, p, a: m.predict(p.X, latent=True),
    "latent std": lambda m, p, a: m.predict(p.X, return_std=True, latent=True)[1],
    "latent covariance": lambda m, p, a: m.predict(p.X, return_cov=True, latent=True)[1],
    "interval": lambda m, p, a: m.predict_interval(p.X, **p.given),
    "latent interval": lambda m, p, a: m.predict_interval(p.X, 0.5, latent=True),
    "sample_y": lambda m, p, a: m.sample_y(p.X, 3, random_state=1, **p.given),
    "latent sample_y": lambda m, p, a: m.sample_y(p.X, 2, random_state=2, latent=True),
    "log_predictive_density": lambda m, p, a: m.log_predictive_density(p.X, p.y, **p.given),
    "log_marginal_likelihood": lambda m, p, a: m.log_marginal_likelihood(a.X, a.y, **a.given),
    "score": lambda m, p, a: m.score(p.X, p.y, **p.given),
}
OF_CLASSIFICATION: dict[str, Quantity] = {
    "predict": lambda m, p, a: m.predict(p.X),
    "predict_proba": lambda m, p, a: m.predict_proba(p.X),
    "predict_proba of all": lambda m, p, a: m.predict_proba(a.X),
    "predict_log_proba": lambda m, p, a: m.predict_log_proba(p.X),
    "latent mean": lambda m, p, a: m.latent_mean_and_variance(p.X)[0],
    "latent variance": lambda m, p, a: m.latent_mean_and_variance(p.X)[1],
    "log_predictive_density": lambda m, p, a: m.log_predictive_density(p.X, p.y),
    "score": lambda m, p, a: m.score(a.X, a.y),
}
ATTRIBUTES = (
    "log_marginal_likelihood_value_",
    "loss_curve_",
    "validation_scores_",
    "n_iter_",
    "best_iter_",
    "noise_variance_",
    "inducing_points_",
    "orthogonal_points_",
    "solver_",
    "beta_",
    "beta_path_",
    "classes_",
    "n_features_in_",
)


def kernel_values(kernel: Any) -> np.ndarray:
    """Hyper-parameters of a fitted kernel, the fixed ones among them."""
    values = [v for _, v in sorted(kernel.get_params().items()) if np.ndim(v) < 2]
    numbers = [np.ravel(v) for v in values if np.asarray(v).dtype.kind in "fi"]
    return np.concatenate([n for n in numbers if n.size], dtype=np.float64)


def fitted_attributes(model: Any) -> dict[str, Callable[[], Any]]:
    """Those that a fitted estimator has, by their names."""
    found = {name: (lambda name=name: getattr(model, name)) for name in ATTRIBUTES}
    found = {name: value for name, value in found.items() if hasattr(model, name)}
    if hasattr(model, "kernel_"):
        found["kernel_.theta"] = lambda: model.kernel_.theta
        found["kernel_ values"] = lambda: kernel_values(model.kernel_)
    if hasattr(model, "likelihood_"):
        found["likelihood_"] = lambda: parameters(model.likelihood_)
    return found


def parameters(module: nn.Module) -> np.ndarray:
    """All of a module's, in the order of their names."""
    named = sorted(module.named_parameters())
    return np.concatenate([np.empty(0), *(p.detach().double().numpy().ravel() for _, p in named)])


def as_array(value: Any) -> np.ndarray:
    """Numbers as float64, all else as text."""
    array = np.asarray(value)
    if array.dtype.kind in "fiub":
        return array.astype(np.float64)
    return array if array.dtype.kind == "U" else np.asarray(str(value))


def told(error: Exception) -> np.ndarray:
    """An error as text."""
    return np.asarray(f"{type(error).__name__}: {error}")


def fitted(group: Group, params: Params, data: Data) -> Any:
    """The estimator of a case, fitted in its manner."""
    own = group.estimator().get_params()
    usual = SPARSE if "inducing_points" in own else FINITE
    model = group.estimator(**{**{k: v for k, v in usual.items() if k in own}, **params})
    if group.how != "stream":
        model.fit(data.X, data.y, **data.given)
    if group.how == "twice":
        model.fit(data.X, data.y, **data.given)
    if group.how in ("stream", "both"):
        every = {"classes": np.unique(data.y)} if is_classifier(model) else {}
        for first in range(N_CHUNKS):
            chunk = data.some(slice(first, None, N_CHUNKS))
            model.partial_fit(chunk.X, chunk.y, **chunk.given, **every)
    return model


def record_case(group: Group, params: Params, data: Data) -> Record:
    """Every quantity of a case."""
    torch.manual_seed(0)
    try:
        model = fitted(group, params, data)
    except Exception as error:
        return {"error": told(error)}
    probes = data.some(slice(N_PROBES))
    methods = OF_CLASSIFICATION if is_classifier(model) else OF_REGRESSION
    wanted: dict[str, Callable[[], Any]] = {
        **{name: (lambda f=f: f(model, probes, data)) for name, f in methods.items()},
        **fitted_attributes(model),
    }
    record = {}
    for name, compute in wanted.items():
        try:
            record[name] = as_array(compute())
        except Exception as error:
            record[name] = told(error)
    return record


def record_all(path: str, only: str, perturb: bool) -> None:
    """Run the cases and write what they compute."""
    sets, record, seconds = make_data(), {}, {}
    if perturb:
        sets = {name: perturbed(data) for name, data in sets.items()}
    start = time.perf_counter()
    for group in groups():
        for name, params in group.params.items():
            case, begun = f"{group.name}: {name}", time.perf_counter()
            if only not in case:
                continue
            results = record_case(group, params, sets[group.data])
            record |= {f"{case}/{quantity}": value for quantity, value in results.items()}
            seconds[case] = time.perf_counter() - begun
    elapsed = time.perf_counter() - start
    np.savez_compressed(path, **record, elapsed=np.asarray(elapsed))
    for name, value in record.items():
        if name.endswith("/error"):
            print(f"{name}: {value}")
    slowest = sorted(seconds, key=seconds.__getitem__)[-5:]
    print("slowest:", ", ".join(f"{case} {seconds[case]:.1f} s" for case in slowest))
    print(f"{len(seconds)} cases, {len(record)} quantities, {elapsed:.0f} s: {path}")


# ---- comparison ----------------------------------------------------------------------------------
def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Largest |a − b|, relative to max(1, max|a|); infinite where they cannot be compared."""
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return np.inf
    if a.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else np.inf
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    gap = np.abs(np.where(same, 0.0, a) - np.where(same, 0.0, b))
    scale = max(1.0, np.abs(a[np.isfinite(a)]).max(initial=0.0))
    return float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0) / scale)


def identical(a: np.ndarray, b: np.ndarray) -> bool:
    """To the last bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def load(path: str) -> Record:
    """A record, without the time that it took."""
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files if name != "elapsed"}


def report_missing(old: Record, new: Record) -> int:
    """Print what only one side has, whole cases as one; return how many."""
    messages = []
    for side, have, lack in (("old", old, new), ("new", new, old)):
        cases = {name.rsplit("/", 1)[0] for name in lack}
        for name in (name for name in have if name not in lack):
            case = name.rsplit("/", 1)[0]
            if case not in cases:
                messages.append(f"in the {side} record alone: {case}")
            elif name == f"{case}/error":
                messages.append(f"fails in the {side} record alone: {case}: {have[name]}")
            elif f"{case}/error" not in lack:  # where it fails, it has nothing else
                messages.append(f"in the {side} record alone: {name}")
    for message in dict.fromkeys(messages):
        print(message)
    return len(messages)


def report_moved(
    moved: dict[str, float], old: Record, new: Record, perturbed: Record | None
) -> None:
    """Print a row for each case that has such quantities, and texts that differ."""
    worst: dict[str, list[str]] = {}
    for name in sorted(moved, key=moved.__getitem__, reverse=True):
        worst.setdefault(name.rsplit("/", 1)[0], []).append(name)
    for case, names in worst.items():
        quantity = names[0].rsplit("/", 1)[1]
        row = f"{case:36} {quantity:30} {moved[names[0]]:8.1e}  ({len(names)} quantities)"
        if perturbed is not None:
            gaps = [difference(old[n], perturbed[n]) for n in names if n in perturbed]
            row += f"  by perturbation {max(gaps, default=np.nan):8.1e}"
        print(row)
        for name in names:
            if "U" in (old[name].dtype.kind, new[name].dtype.kind):
                print(f"    {name}\n        old: {old[name]}\n        new: {new[name]}")


def compare(old: Record, new: Record, tol: float, perturbed: Record | None) -> bool:
    """Print what differs; return whether anything does."""
    common = [name for name in old if name in new]
    bitwise = sum(identical(old[name], new[name]) for name in common)
    gaps = {name: difference(old[name], new[name]) for name in common}
    moved = {name: gap for name, gap in gaps.items() if not gap <= tol}
    print(f"{len(common)} quantities in both records: {bitwise} equal to the last bit,")
    print(f"{len(common) - bitwise - len(moved)} others within {tol:g}, {len(moved)} not.")
    report_moved(moved, old, new, perturbed)
    both = sum(name.endswith("/error") for name in common)
    print(f"{both} cases fail in both records.")
    return bool(report_missing(old, new) or moved)


def main() -> None:
    """Record, or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", nargs="?", help="the record to write")
    parser.add_argument("--only", default="", help="cases whose names contain this text")
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="records to compare")
    parser.add_argument("--perturb", action="store_true", help="perturb the data's last bits")
    parser.add_argument("--perturbed", help="when comparing, a record of perturbed data")
    parser.add_argument("--tol", type=float, default=1e-10)
    parser.add_argument("--unmerged", action="store_true", help="equal rows are not merged")
    arguments = parser.parse_args()
    if arguments.unmerged:  # as before they were, and in the order they are given in
        importlib.import_module("skgpstoch.data.equal_rows").MERGED_ROWS = 0
    if arguments.compare:
        old, new = map(load, arguments.compare)
        perturbed_old = load(arguments.perturbed) if arguments.perturbed else None
        sys.exit(compare(old, new, arguments.tol, perturbed_old))
    if arguments.output is None:
        parser.error("name a record to write, or two to --compare")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with threadpool_limits(1):
        print(f"skgpstoch of {skgpstoch.__file__}")
        record_all(arguments.output, arguments.only, arguments.perturb)


if __name__ == "__main__":
    main()

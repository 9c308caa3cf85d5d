"""One thread, no drawing on screens, and what several test modules share; what keeps tests quick.

Families. A promise that a family's common code keeps is tested with one class of the family
(families.py says which), or with COVERING, two classes of the sparse family that have all its parts
between them, but for the networks of SVGP. What depends on a method's own objective is marked
every_finite, every_regressor and so on.

Fits. `fitted_once` fits equal estimators to equal data once a session (in each process), and gives
every test a copy of its own. It is for tests of what a fitted model does, not of how it is fitted.

Processes. A test that starts processes, which import all anew, is marked `processes`: CI runs it,
the default run does not. Default solvers of small sparse models begin at the exact optimum of some
rows, which takes half a second: give solver="natural" where that is not what is tested.

Times. A test that takes more than .2 to .4 s is slow if quicker ones of its file see most of what
it does: the default run is to take four minutes, and CI fifteen. pytest prints the slowest tests
(`--durations` in setup.cfg), and people judge them. No test fails by the clock, because machines
differ and are busy.
"""

from __future__ import annotations

import copy
import functools
import gc
import os
import sys
from typing import Any

# Small matrices gain nothing from a second thread, and results must not depend on the machine: not
# in threads that tests start, either, which take the number from here when libraries are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import joblib
import numpy as np
import pretend_device
import pytest
import torch
from families import assert_all_match, checks_by_family, is_left_to_another, is_slow_case, named
from sklearn.base import is_classifier, is_regressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern
from sklearn.utils.estimator_checks import parametrize_with_checks

import skgpstoch
import skgpstoch.objectives.optimal_q
import skgpstoch.training.optimizers
import skgpstoch.training.recipes.layers
from skgpstoch.data import devices, row_sample
from skgpstoch.estimators.parameters import FiniteParameters
from skgpstoch.methods.automatic import automatic_classifier, automatic_regressor
from skgpstoch.methods.automatic.class_process import ExactProcessClassifier
from skgpstoch.methods.automatic.process import ExactProcessRegressor

collect_ignore = ["reading_child.py"]  # a program of tests/fuzzed.py

# Before the first backward pass of the process, when torch counts devices.
if pretend_device.WHY_NOT is None:
    pretend_device.install()

# Deep processes predict with 64 draws of their layers: a quarter of these is the same code.
DEEP_DRAWS = skgpstoch.training.recipes.layers.PREDICTIVE_DRAWS = 16

# What collection makes stays: to look through it again and again takes seconds.
gc.disable()
torch.manual_seed(0)  # for modules that are made when tests are collected
torch.set_num_threads(1)
os.environ.setdefault("MPLBACKEND", "Agg")

NAMED = [getattr(skgpstoch, name) for name in skgpstoch.__all__]
PUBLIC = [each for each in NAMED if isinstance(each, type)]
OF_OTHERS = [  # estimators around others: tests/test_ensembles.py
    skgpstoch.AutoGaussianProcessClassifier,
    skgpstoch.AutoGaussianProcessRegressor,
    skgpstoch.ConstantVarianceRegressor,
    skgpstoch.StackedDensityRegressor,
]
SINGLE = [cls for cls in PUBLIC if cls not in OF_OTHERS]
ESTIMATORS = [cls for cls in SINGLE if is_classifier(cls()) or is_regressor(cls())]
INDUCING = [cls for cls in ESTIMATORS if "inducing_points" in cls().get_params()]
IMAGES = [cls for cls in INDUCING if "image_shape" in cls().get_params()]
DEEP = [cls for cls in INDUCING if "n_layers" in cls().get_params()]
SPARSE = [cls for cls in INDUCING if cls not in IMAGES + DEEP]
DROP_IN = [cls for cls in ESTIMATORS if "max_exact" in cls().get_params()]
BASIS = [cls for cls in ESTIMATORS if "basis_batch_size" in cls().get_params()]
HELD_OUT = [cls for cls in ESTIMATORS if "block_size" in cls().get_params()]
NETWORKS = [cls for cls in ESTIMATORS if "n_waves" in cls().get_params()]
NEIGHBOURS = [cls for cls in ESTIMATORS if "n_neighbors" in cls().get_params()]
FINITE = [cls for cls in ESTIMATORS if issubclass(cls, FiniteParameters)]
TRAINED = FINITE + SPARSE
CLASSIFIERS = [cls for cls in SPARSE if is_classifier(cls())]
SPARSE_REGRESSORS = [cls for cls in SPARSE if cls not in CLASSIFIERS]
DIRECT = [cls for cls in SPARSE if "hyperparameters" in cls().get_params()]
BOUNDS = [cls for cls in SPARSE_REGRESSORS if cls not in [*DIRECT, skgpstoch.FITCRegressor]]

FINITE_ONE = skgpstoch.SCGDGaussianProcessRegressor
SPARSE_ONE = skgpstoch.SVGPRegressor
COVERING = [skgpstoch.SolveGPRegressor, skgpstoch.DLMClassifier]

QUICK_FINITE = {"hidden_layer_sizes": (16,), "n_estimators": 1}
QUICK_SPARSE = {"n_inducing": 10, "inducing_points": "random"}
QUICK_BASIS = {"n_subset": 50}
QUICK_NEIGHBOURS = {
    "kernel": ConstantKernel() * Matern(nu=1.5),
    "n_neighbors": 10,
    "n_neighbors_predict": 20,
}
QUICK_FOURIER = {"n_components": 100}
QUICK_CONJUGATE = {"solver": "collapsed"}
QUICK_OTHER = {"solver": "natural"}
QUICK_DEEP = {"n_samples": 1}


def quick_parameters(cls):
    """Those with which an estimator of this class fits in a fraction of a second."""
    if cls in DROP_IN + HELD_OUT:
        return {"random_state": 0}
    if cls in BASIS:
        fourier = QUICK_FOURIER if "n_components" in cls().get_params() else {}
        return {**QUICK_BASIS, **fourier, "max_iter": 5, "random_state": 0}
    if cls in NEIGHBOURS:
        return {**QUICK_NEIGHBOURS, "max_iter": 10, "random_state": 0}
    own = QUICK_FINITE if cls in FINITE + NETWORKS else QUICK_SPARSE
    if cls in INDUCING:
        own = own | (QUICK_CONJUGATE if cls in BOUNDS else QUICK_OTHER)
        own = own | (QUICK_DEEP if cls in DEEP else {})
    return {**own, "max_iter": 10, "random_state": 0}


def constructor(cls):
    """A function that makes a quick estimator of this class, but for the parameters given."""
    return lambda **params: cls(**{**quick_parameters(cls), **params})


def has(cls, params):
    """Whether a class has these parameters, and the solver where that depends on the loss."""
    allowed = {"collapsed": BOUNDS, "lbfgs": [cls for cls in SPARSE if cls not in DIRECT]}
    return params.keys() <= cls().get_params().keys() and cls in allowed.get(
        params.get("solver"), SPARSE
    )


_fits: dict[str, Any] = {}


def fitted_once(model, *data, method="fit"):
    """A copy of this new estimator, fitted to these data once a session."""
    key = joblib.hash((model, data, method))
    if key not in _fits:
        _fits[key] = getattr(model, method)(*data)
    return copy.deepcopy(_fits[key])


def on_each(fixture, classes):
    """A mark of tests that are for each of these classes, not for the one that stands for them."""
    return pytest.mark.parametrize(fixture, classes, ids=named, indirect=True)


def sklearn_checks(estimators):
    """scikit-learn's checks, most of them with one class a family in the default run."""
    mark = parametrize_with_checks(estimators)
    names, pairs = mark.args
    return pytest.mark.parametrize(names, list(checks_by_family(list(pairs))), **mark.kwargs)


def svgp_for_log_loss(**params):
    """SVGP whose covariance of q is learned by gradients: an objective of another kind."""
    return SPARSE_ONE(**{"loss": "log", "solver": "natural", **params})


# Fewer than 20 rows are warned of; tests that are not about it use as few to be quick.
few_rows = pytest.mark.filterwarnings("ignore:[0-9]+ rows are (too )?few to learn")
# Training of an epoch or two, or with absurd learning rates, may do harm, and says so.
harmful = pytest.mark.filterwarnings("ignore:No epoch of training improved")

every_regressor = on_each("regressor", FINITE + SPARSE_REGRESSORS)
every_objective = on_each("regressor", [*FINITE, SPARSE_ONE, svgp_for_log_loss])
every_finite = on_each("finite", FINITE)
every_bound = on_each("sparse_regressor", BOUNDS)
every_classifier = on_each("classifier", CLASSIFIERS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Some cases and examples are slow.

    Tests marked gpu need one, also where the marker is selected; "pretend" needs none.
    """
    if not any("::" in arg for arg in config.args):  # which are some cases of a test, perhaps
        assert_all_match(items)
    there = torch.cuda.is_available()
    for item in items:
        for mark in [*item.iter_markers("by_default"), *item.iter_markers("slow_cases")]:
            if is_slow_case(item.callspec.id, mark):
                item.add_marker(pytest.mark.slow)
        is_example = isinstance(item, pytest.DoctestItem)
        if is_example and is_left_to_another("examples in docstrings", item.name):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("gpu") and not there:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if "pretend" in getattr(item, "fixturenames", ()) and pretend_device.WHY_NOT:
            item.add_marker(pytest.mark.skip(reason=pretend_device.WHY_NOT))


def pytest_collection_finish() -> None:
    """What is there by now is never looked through; what tests make is."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def seeded():
    """Modules that a test makes are the same whatever ran before it.

    Without a GPU, torch.manual_seed formats the stack for each absent device, which takes longer
    than most tests.
    """
    seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
    seed(0)


@pytest.fixture(autouse=True)
def watched():
    """Nobody is at the keyboard, but the first interrupt of a test is kept as if somebody were."""
    with skgpstoch.on_interrupt("keep"):
        yield


@pytest.fixture(autouse=True)
def figures_closed():
    """A test meets no figure of a doctest and leaves none: pyplot warns of the 21st."""
    close_figures()
    yield
    close_figures()


def close_figures():
    """Close what pyplot holds, if anything has imported it."""
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def few_iterations(monkeypatch):
    """Epochs of solver="lbfgs" of two iterations, not ten: each is a search for the best q(w)."""
    monkeypatch.setattr(skgpstoch.training.optimizers, "LBFGS_ITERATIONS", 2)


def cut_newton(monkeypatch, settles):
    """Two steps to the best q(w) of a likelihood that has no closed form, where any will do."""
    newton = skgpstoch.objectives.optimal_q.damped_newton
    monkeypatch.setattr(
        skgpstoch.objectives.optimal_q,
        "damped_newton",
        lambda *args: (newton(*args[:5], 2)[0], settles),
    )


@pytest.fixture
def few_newton_steps(monkeypatch):
    """Two to the best q(w), that count as settled: as many do not go from another start."""
    cut_newton(monkeypatch, True)


@pytest.fixture
def few_newton_steps_from_both_starts(monkeypatch):
    """Two to the best q(w), and two from the other start."""
    cut_newton(monkeypatch, False)


def let_few_be_many(monkeypatch, n_sample):
    """Take a table that is small for a large one, of which so many rows decide."""
    for name, most in (("SAMPLE_ROWS", n_sample), ("MERGED_ROWS", n_sample), ("GATHERED_ROWS", 0)):
        monkeypatch.setattr(row_sample, name, most)


def let_defaults_be_of_many(monkeypatch, n_sample, of_numbers=None, **networks):
    """Let recommended defaults take few rows for many, and fit small networks in float64."""
    let_few_be_many(monkeypatch, n_sample)
    small = {"dtype": "float64", "max_iter": 2, "n_estimators": 2, "hidden_layer_sizes": (8,)}
    small |= {"calibrate": False}
    for module, more in ((automatic_regressor, of_numbers or {}), (automatic_classifier, {})):
        of_networks = functools.partial(module.of_networks, **{**small, **networks, **more})
        monkeypatch.setattr(module, "of_networks", of_networks)
    for model in (skgpstoch.AutoGaussianProcessRegressor, skgpstoch.AutoGaussianProcessClassifier):
        monkeypatch.setattr(model, "_most_raced", 0)


@pytest.fixture(scope="module")
def one_kernel():
    """Processes of recommended defaults have one kernel: to race all takes five times as long."""
    with pytest.MonkeyPatch.context() as patch:
        for module, cls in (
            (automatic_regressor, ExactProcessRegressor),
            (automatic_classifier, ExactProcessClassifier),
        ):
            patch.setattr(module, cls.__name__, functools.partial(cls, kernels=["rbf"]))
        yield


@pytest.fixture
def few_are_many(monkeypatch):
    """Take a table that is small for a large one, of which 300 rows decide."""
    let_few_be_many(monkeypatch, 300)


@pytest.fixture
def pretend(monkeypatch):
    """An accelerator, device="pretend", and its traffic."""
    monkeypatch.setattr(devices, "ACCELERATORS", (*devices.ACCELERATORS, pretend_device.NAME))
    with pretend_device.pretending() as traffic:
        yield traffic
    devices._placed.cache_clear()


@pytest.fixture(params=[FINITE_ONE, SPARSE_ONE], ids=named)
def regressor(request):
    """A regressor's class of each family."""
    return request.param


@pytest.fixture
def quick(regressor):
    """Constructor of a regressor that fits in a fraction of a second: quick(**parameters)."""
    return constructor(regressor)


@pytest.fixture(params=[FINITE_ONE], ids=named)
def finite(request):
    """A class of the finite-dimensional family."""
    return request.param


@pytest.fixture
def quick_finite(finite):
    """As `quick`, of the finite-dimensional family."""
    return constructor(finite)


@pytest.fixture(params=[SPARSE_ONE], ids=named)
def sparse_regressor(request):
    """A regressor that maximises a bound, for any likelihood, by default."""
    return request.param


@pytest.fixture
def quick_sparse(sparse_regressor):
    """As `quick`, of these."""
    return constructor(sparse_regressor)


@pytest.fixture(params=[skgpstoch.SVGPClassifier], ids=named)
def classifier(request):
    """A classifier's class."""
    return request.param


@pytest.fixture
def quick_classifier(classifier):
    """Constructor of a classifier that fits in a fraction of a second."""
    return constructor(classifier)


@pytest.fixture(scope="session")
def sine():
    """200 rows of a sine of the first of two inputs, with noise of standard deviation 0.1."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (200, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(200)
    X.flags.writeable = y.flags.writeable = False
    return X, y


@pytest.fixture(scope="session")
def counts(sine):
    """200 counts of rate exposure·exp(sine of the first input), and their exposures."""
    X, _ = sine
    rng = np.random.default_rng(1)
    exposure = rng.uniform(0.5, 4.0, len(X))
    return X, rng.poisson(exposure * np.exp(np.sin(X[:, 0]))), exposure


@pytest.fixture(scope="session")
def two_classes(sine):
    """200 rows of two classes, by the side of a sine that their second input is on."""
    X, _ = sine
    return X, np.where(X[:, 1] > np.sin(2.0 * X[:, 0]), "up", "down")


@pytest.fixture(scope="session")
def three_classes(sine):
    """200 rows of three classes, stripes along a sine."""
    X, _ = sine
    return X, np.digitize(X[:, 1] - np.sin(X[:, 0]), [-1.0, 1.0]) * 10 - 5


@pytest.fixture
def close_to():
    """Comparison of two fitted regressors' predictive means and standard deviations."""

    def check(a, b, X, rtol=0.0, atol=0.0):
        for one, other in zip(
            a.predict(X, return_std=True), b.predict(X, return_std=True), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)

    return check

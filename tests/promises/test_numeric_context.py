"""Models are functions of their parameters, data and seeds, not of what the process has set."""

from __future__ import annotations

import contextlib

import joblib
import numpy as np
import pytest
import torch
from conftest import (
    BASIS,
    CLASSIFIERS,
    DEEP,
    DROP_IN,
    FINITE,
    HELD_OUT,
    IMAGES,
    NETWORKS,
    TRAINED,
    constructor,
)
from families import by_family, slow_cases
from numpy.testing import assert_array_equal
from sklearn.base import clone, is_classifier
from sklearn.gaussian_process.kernels import RBF, DotProduct, Matern, WhiteKernel

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    DLMRegressor,
    NNGPClassifier,
    NNGPRegressor,
    SVGPRegressor,
)
from skgpstoch.likelihoods import Poisson
from skgpstoch.maths.gaussian import _sobol_normals
from skgpstoch.models.features.network import MemberLinear


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def all_at_once():
    """What is not the process's own must be undone for each of them."""
    with (
        default_dtype(torch.bfloat16),
        torch.device("meta"),  # as torch.set_default_device: it keeps no numbers
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        yield


SURROUNDINGS = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "all at once": all_at_once,
}
EITHER = ["float64", "all at once"]
LAYERS = {"hidden_layer_sizes": (4,)}
FEW = slice(0, 40)
FOURIER = Matern(nu=0.5) + DotProduct() + RBF() * Matern() + WhiteKernel()


def small(cls, **params):
    """A fit of some milliseconds."""
    is_plain = {"kernel", "hidden_layer_sizes"} & params.keys()
    layers = {} if is_plain or "hidden_layer_sizes" not in cls().get_params() else LAYERS
    points = {} if cls in FINITE else {"inducing_points": "kmeans", "n_inducing": 5}
    return constructor(cls)(**{**points, **layers, "max_iter": 2, **params})


def data(model, sine):
    X, y = (a[FEW] for a in sine)
    if type(model) in CLASSIFIERS:
        return X, np.digitize(y, [-0.5, 0.5])
    return X, np.round(np.exp(y)) if getattr(model, "likelihood", "") == "poisson" else y


def results(model, X, y):
    """What a fit came to, and predictions of every kind."""
    model.fit(X, y)
    found = [model.loss_curve_, model.predict(X), model.log_predictive_density(X, y)]
    if type(model) in CLASSIFIERS:
        return [*found, model.predict_proba(X), *model.latent_mean_and_variance(X)]
    joint = model.predict(X, return_cov=True, latent=True)
    return [*found, model.predict_std(X), model.sample_y(X), *joint]


_expected = {}


def assert_unmoved(model, sine, where):
    X, y = data(model, sine)
    key = joblib.hash(model)
    if key not in _expected:  # once for all numeric_context
        _expected[key] = results(clone(model), X, y)
    expected = _expected[key]
    _sobol_normals.cache_clear()
    try:
        with SURROUNDINGS[where]():
            found = results(model, X, y)
    finally:
        _sobol_normals.cache_clear()
    for one, other in zip(found, expected, strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        assert_array_equal(one, other)


@pytest.mark.parametrize("where", ["all at once"])
@pytest.mark.parametrize("cls", by_family("same bits whatever torch is set to", TRAINED))
def test_deep_models_are_the_same_to_the_bit(cls, where, sine):
    assert_unmoved(small(cls), sine, where)


OTHERS = [*BASIS, *HELD_OUT, *DROP_IN, *IMAGES, *DEEP, *NETWORKS]


def shortest(cls):
    """Parameters of a fit of some milliseconds."""
    short = {"n_subset": 20} if cls in BASIS else {}
    short |= {"image_shape": (4, 4), "patch_shape": (3, 3)} if cls in IMAGES else {}
    return short if cls in HELD_OUT + DROP_IN else {"max_iter": 2, **short}


AUTOMATIC = [AutoGaussianProcessRegressor, AutoGaussianProcessClassifier]
OTHERS += [NNGPRegressor, NNGPClassifier]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:y looks noisy")
@pytest.mark.parametrize(
    "cls", by_family("same bits whatever torch is set to", [*OTHERS, *AUTOMATIC])
)
@slow_cases("Auto", "Conv", "QSGP", "ADMM", "NNGPClassifier")
def test_other_models_are_the_same_to_the_bit(cls, sine):
    X, y = (a[FEW] for a in sine)
    X = np.tile(X, 8) if cls in IMAGES else X
    y = (y > 0.0).astype(int) if is_classifier(cls()) else y
    make = constructor(cls) if cls in OTHERS else cls
    short = shortest(cls) if cls in OTHERS else {"random_state": 0}

    def found(model):
        model.fit(X, y)
        names = ("predict", "predict_std", "predict_proba", "predict_interval", "sample_y")
        return [getattr(model, name)(X) for name in names if hasattr(model, name)]

    expected = found(make(**short))
    with all_at_once():
        moved = found(make(**short))
    for one, other in zip(moved, expected, strict=True):
        assert_array_equal(one, other)


KINDS = {
    "ensemble": (FINITE[0], {"n_estimators": 2}),
    "adadelta": (FINITE[0], {"solver": "adadelta"}),
    "learned weights": (FINITE[-1], {"weights": "learned", "noise": "learned"}),
    "fourier": (FINITE[0], {"kernel": FOURIER, "hidden_layer_sizes": (), "n_components": 11}),
    "fixed kernel": (SVGPRegressor, {"kernel": RBF(1.0, "fixed") + WhiteKernel(0.1)}),
    "lbfgs": (SVGPRegressor, {"solver": "lbfgs", "inducing_points": "conditional_variance"}),
    "adam": (SVGPRegressor, {"solver": "adam"}),
    "student": (SVGPRegressor, {"likelihood": "student_t", "solver": "natural"}),
    "laplace": (SVGPRegressor, {"likelihood": "laplace", "solver": "natural"}),
    "counts": (SVGPRegressor, {"likelihood": "poisson", "solver": "natural"}),
    "square loss": (DLMRegressor, {"loss": "square", "beta": [0.1, 1.0]}),
    "robustmax": (CLASSIFIERS[0], {"likelihood": "robustmax"}),
    "log loss of classes": (CLASSIFIERS[0], {"loss": "log"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("where", EITHER)
@pytest.mark.parametrize("kind", KINDS)
@slow_cases("student|laplace|learned weights|robustmax|counts|ada|ensemble|log loss", "float64")
def test_models_of_every_kind_are_the_same_to_the_bit(kind, where, sine):
    cls, params = KINDS[kind]
    assert_unmoved(small(cls, **params), sine, where)


def test_a_module_of_the_user_may_choose_to_be_imprecise(sine):
    """An autocast of its own is no matter of ours."""

    class Coarse(torch.nn.Linear):
        def forward(self, X):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                seen.append(torch.is_autocast_enabled("cpu"))
                return super().forward(X).to(X)

    seen = []
    model = small(FINITE[0], feature_map=Coarse(2, 3), hidden_layer_sizes=())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model.fit(*data(model, sine))
        assert torch.is_autocast_enabled("cpu")  # as it was
    assert all(seen)


@pytest.mark.parametrize("where", ["float64", "bfloat16"])
def test_initial_weights_are_drawn_in_float32(where):
    """Whatever they are cast to."""

    def layer():
        return MemberLinear(1, 3, 2, torch.Generator("cpu").manual_seed(0))

    expected = layer().state_dict()
    with SURROUNDINGS[where]():
        found = layer().state_dict()
    assert all(found[name].dtype == torch.float32 for name in found)
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_likelihoods_check_their_parameters_in_float64():
    with default_dtype(torch.float16):
        assert Poisson(exposure=1e-9).exposure == 1e-9  # no 0, of which it would complain
    with torch.device("meta"):
        Poisson(exposure=2.0)

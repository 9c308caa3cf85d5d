"""What "auto" means for deep and convolutional models: a table of sizes, parameters and plans."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
from conftest import DEEP_DRAWS
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF
from torch import nn

from skgpstoch import (
    ConvolutionalGPClassifier,
    ConvolutionalGPRegressor,
    DeepGPClassifier,
    DeepGPRegressor,
    SVGPRegressor,
)
from skgpstoch.models.layers import DeepFeatures
from skgpstoch.training.recipes.images import HiddenImages
from skgpstoch.training.recipes.inducing import InducingPoints
from skgpstoch.training.recipes.kernel_choice import KernelChoice
from skgpstoch.training.recipes.layers import Layers, drawn
from skgpstoch.training.recipes.networks import Network
from skgpstoch.training.recipes.patches import Patches
from skgpstoch.training.recipes.plan import Sizes, Start


def recipe(cls, **params):
    """Return that of an estimator; a classifier of three classes."""
    model = cls(**params)
    if "Classifier" in cls.__name__:
        model.classes_ = [0, 1, 2]
    return model._recipe()


def plan(cls, n_rows, n_features, **params):
    """Return the fields of a plan that may be asked for."""
    made = recipe(cls, **params).plan(Sizes(n_rows, n_rows, n_features))
    return dataclasses.asdict(made) | {"n_held_out": made.folds.size}


DEEP = {  # n_rows, parameters, what is expected
    "few rows": (100, {}, {"solver": "collapsed", "n_inducing": 100, "batch_size": 100}),
    "steps at least": (100, {}, {"max_iter": 2000, "dtype": "float32"}),
    "rows": (2000, {}, {"n_inducing": 128, "batch_size": 512, "max_iter": 500}),
    "steps": (51_200, {}, {"max_iter": 60}),
    "steps at most": (512_000, {}, {"max_iter": 20}),
    "few rows of two kinds": (
        100,
        {"posterior": "solve"},
        {"n_inducing": 50, "n_orthogonal": 50},
    ),
    "two kinds": (2000, {"posterior": "odvgp"}, {"n_inducing": 128, "n_orthogonal": 128}),
    "numbers": (
        2000,
        {"posterior": "solve", "n_inducing": 200, "n_orthogonal": 300, "max_iter": 7},
        {"n_inducing": 200, "n_orthogonal": 300, "max_iter": 7},
    ),
    "points": (
        2000,
        {"inducing_points": [[0.0, 1.0]] * 150},
        {"n_inducing": 150},
    ),
    "log": (2000, {"loss": "log"}, {"solver": "natural", "n_inducing": 128}),
    "held out": (
        2000,
        {"early_stopping": True},
        {"n_held_out": 200, "holds_out": True, "evaluates": True},
    ),
    "to the end": (2000, {}, {"n_held_out": 0, "evaluates": False, "patience": math.inf}),
    "shallow": (100, {"n_layers": 1}, {"solver": "collapsed", "max_iter": 2000}),
}


@pytest.mark.parametrize("case", DEEP)
def test_deep_plans(case):
    n_rows, params, expected = DEEP[case]
    found = plan(DeepGPRegressor, n_rows, 2, **params)
    assert {name: found[name] for name in expected} == expected


def test_classes_have_natural_gradients():
    found = plan(DeepGPClassifier, 2000, 2)
    assert (found["solver"], found["n_inducing"]) == ("natural", 128)
    found = plan(ConvolutionalGPClassifier, 500, 64)
    assert (found["solver"], found["n_inducing"]) == ("natural", 256)


def test_streams_go_on_with_the_points_that_there_are():
    sizes, start = Sizes(5, 5, 2, streams=True), Start(None)
    for params in ({}, {"posterior": "solve"}):
        made = recipe(DeepGPRegressor, early_stopping=True, **params).plan(sizes, start)
        assert (made.n_inducing, made.n_orthogonal, made.folds.size) == (0, 0, 0)
        assert made.solver == "collapsed"


IMAGES = {  # n_rows, n_features, parameters, what is expected
    "few images": (100, 64, {}, {"solver": "lbfgs", "n_inducing": 512, "dtype": "float64"}),
    "images": (2000, 64, {}, {"solver": "collapsed", "n_inducing": 512, "batch_size": 512}),
    "few patches": (20, 64, {}, {"n_inducing": 256}),  # of 36 × 20
    "patches of two kinds": (
        10,
        64,
        {"posterior": "solve"},
        {"n_inducing": 180, "n_orthogonal": 180},
    ),
    "more than patches": (5, 16, {"n_inducing": 21}, {"n_inducing": 20}),
    "small images": (5, 16, {}, {"n_inducing": 20}),  # of which there are 4 × 5
    "steps": (2000, 64, {"solver": "natural"}, {"max_iter": 125}),
    "few of LBFGS": (2000, 64, {"solver": "lbfgs"}, {"max_iter": 20, "batch_size": 2000}),
    "hidden": (100, 64, {"hidden_channels": 2}, {"solver": "collapsed", "batch_size": 100}),
    "hidden patches": (2000, 784, {"hidden_channels": 2}, {"batch_size": 113}),  # 2¹⁶ / 24²
    "batch": (2000, 784, {"hidden_channels": 2, "batch_size": 50}, {"batch_size": 50}),
}


@pytest.mark.parametrize("case", IMAGES)
def test_plans_of_images(case):
    n_rows, n_features, params, expected = IMAGES[case]
    found = plan(ConvolutionalGPRegressor, n_rows, n_features, **params)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("cls", "n_features", "params", "message"),
    [
        (DeepGPRegressor, 2, {"n_inducing": 3, "inducing_points": [[0.0, 1.0]]}, "n_inducing=3"),
        (DeepGPRegressor, 2, {"solver": "lbfgs"}, "solver='lbfgs' cannot be used with"),
        (ConvolutionalGPRegressor, 64, {"image_shape": (4, 4)}, "image_shape must be"),
        (
            ConvolutionalGPRegressor,
            64,
            {"solver": "lbfgs", "hidden_channels": 2},
            "solver='lbfgs' cannot be used with hidden_channels",
        ),
    ],
)
def test_plans_that_are_impossible(cls, n_features, params, message):
    with pytest.raises(ValueError, match=message):
        plan(cls, 100, n_features, **params)


@pytest.mark.parametrize(
    ("n_rows", "n_samples", "expected"),
    [(100, "auto", 10), (400, "auto", 4), (1499, "auto", 2), (1500, "auto", 1), (100, 3, 3)],
)
def test_few_rows_are_drawn_more_than_once(n_rows, n_samples, expected):
    features = drawn(
        DeepFeatures([nn.Identity()], SimpleNamespace(n_features=1, blocks=(1,))), n_samples, n_rows
    )
    assert (features.n_samples, features.n_nodes) == (expected, DEEP_DRAWS)


@pytest.mark.parametrize(
    ("params", "n_features", "expected"),
    [
        ({}, 3, (3,)),
        ({}, 50, (50,)),
        ({}, 200, (100,)),
        ({"n_layers": 3}, 3, (3, 3)),
        ({"n_layers": 1}, 3, ()),
        ({"n_layers": 3, "hidden_dims": 5}, 3, (5, 5)),
        ({"n_layers": 3, "hidden_dims": [5, 2]}, 3, (5, 2)),
    ],
)
def test_widths_of_layers(params, n_features, expected):
    assert recipe(DeepGPRegressor, **params).features.widths(n_features) == expected


@pytest.mark.parametrize("cls", [ConvolutionalGPClassifier, ConvolutionalGPRegressor])
def test_responses_need_a_fit(cls):
    with pytest.raises(NotFittedError):
        cls().patch_responses([[0.0] * 64])


POINTS = {"kernel": KernelChoice.of(RBF(7.0)), "points": "random", "learned": False}


@pytest.mark.parametrize(
    ("builder", "cls", "decided"),
    [
        (InducingPoints, SVGPRegressor, {**POINTS, "network": Network(layers=(3,))}),
        (Layers, DeepGPRegressor, {**POINTS, "n_samples": 3, "n_layers": 4}),
        (
            Patches,
            ConvolutionalGPRegressor,
            {**POINTS, "hidden": None, "learns_weights": False, "stride": 3},
        ),
        (HiddenImages, ConvolutionalGPRegressor, {"channels": (2, 3), "shares_weights": None}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_caller_decides_wins(builder, cls, decided):
    """Over the parameters of the estimator, which say all else."""
    made = builder.of(cls(hidden_channels=1) if builder is Patches else cls(), **decided)
    assert {name: getattr(made, name) for name in decided} == decided

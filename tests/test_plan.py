"""What "auto" comes to: plans as a table of parameters and sizes. Nothing is fitted."""

import math

import pytest
import torch
from sklearn.gaussian_process.kernels import RBF, ExpSineSquared

from skgpstoch import (
    BSGDGaussianProcessRegressor,
    MinimaxGaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
)
from skgpstoch.training.optimizers import SCHEDULES
from skgpstoch.training.recipes.plan import Folds, Sizes

SCGD, MINIMAX, BSGD = (
    SCGDGaussianProcessRegressor,
    MinimaxGaussianProcessRegressor,
    BSGDGaussianProcessRegressor,
)
USER = {"feature_map": torch.nn.Linear(3, 4)}
ALL_ROWS = {"early_stopping": False}
PERIODIC = {"kernel": ExpSineSquared()}

PLANS = [  # class, parameters, rows, what the plan says
    # K is 10,000/n, at most five, two for MINIMAX; networks of ours that are validated, no kernel
    (SCGD, {}, 200, {"folds": Folds(5, 20)}),
    (SCGD, {}, 4000, {"folds": Folds(3, 400)}),
    (SCGD, {}, 20_000, {"folds": Folds(1, 2000)}),
    (SCGD, {}, 60, {"folds": Folds(5, 10)}),  # 50 rows judge
    (SCGD, {}, 20, {"folds": Folds(5, 4)}),  # all do
    (SCGD, {}, 7, {"folds": Folds(3, 2)}),
    (SCGD, {}, 2, {"folds": Folds(1, 1)}),
    (MINIMAX, {}, 50, {"folds": Folds(5, 10)}),
    (MINIMAX, {}, 200, {"folds": Folds(2, 25)}),
    (MINIMAX, {}, 2000, {"folds": Folds(2, 200)}),
    (MINIMAX, {}, 20_000, {"folds": Folds(1, 2000)}),
    (BSGD, {}, 200, {"folds": Folds(5, 20)}),
    (SCGD, {"n_estimators": 3}, 20_000, {"folds": Folds(3, 2000)}),
    (SCGD, {"n_estimators": 3, **ALL_ROWS}, 200, {"folds": Folds(3)}),
    (SCGD, {"kernel": RBF()}, 200, {"folds": Folds(1, 20)}),
    (SCGD, {"hidden_layer_sizes": ()}, 200, {"folds": Folds(1, 20)}),
    (SCGD, USER, 200, {"folds": Folds(1, 20)}),
    (BSGD, PERIODIC, 200, {"folds": Folds(1, 20)}),
    (BSGD, {"kernel": RBF(), "n_components": None}, 200, {"folds": Folds(1, 20)}),
    # rows that are held out
    (SCGD, {"validation_fraction": 0.3, "n_estimators": 2}, 200, {"folds": Folds(2, 60)}),
    (SCGD, {"validation_fraction": 0.9, "n_estimators": 2}, 200, {"folds": Folds(2, 100)}),
    (SCGD, ALL_ROWS, 200, {"folds": Folds(), "holds_out": False, "evaluates": True}),
    (SCGD, {}, 200, {"holds_out": True, "evaluates": True, "shuffles": True}),
    # minibatches: n/64 of the rows that are trained on, between 128 and 512, and no more than these
    (SCGD, ALL_ROWS, 100, {"batch_size": 100, "window_rows": 39 * 100}),
    (SCGD, ALL_ROWS, 200, {"batch_size": 128, "window_rows": 39 * 128}),
    (SCGD, ALL_ROWS, 20_000, {"batch_size": 312, "window_rows": 39 * 312}),
    (SCGD, ALL_ROWS, 10**6, {"batch_size": 512, "window_rows": 39 * 512}),
    (SCGD, {}, 20_000, {"batch_size": 281, "window_rows": 39 * 312}),
    (SCGD, {"batch_size": 30}, 200, {"batch_size": 30, "window_rows": 39 * 30}),
    # epochs that make as many steps as there are rows: 350 to 8,000, of few rows 3 a row
    (SCGD, ALL_ROWS, 20, {"max_iter": 100}),
    (SCGD, ALL_ROWS, 100, {"max_iter": 300}),
    (SCGD, ALL_ROWS, 200, {"max_iter": 175}),  # of two steps
    (SCGD, ALL_ROWS, 1000, {"max_iter": 125}),  # of eight
    (SCGD, ALL_ROWS, 4000, {"max_iter": 125}),  # of 32
    (SCGD, ALL_ROWS, 10**6, {"max_iter": 5}),  # of 1,954
    (SCGD, {"max_iter": 7}, 200, {"max_iter": 7}),
    # what parameters say outright
    (SCGD, {}, 200, {"solver": "adam", "rate": 0.01, "schedule": SCHEDULES["one-cycle"]}),
    (SCGD, {}, 200, {"dtype": "float32", "patience": math.inf, "tol": 0.0}),
    (SCGD, {"solver": "adadelta", "learning_rate": "theory"}, 200, {"solver": "adadelta"}),
    (SCGD, {"learning_rate": "theory"}, 200, {"schedule": SCHEDULES["theory"]}),
    (SCGD, {"n_iter_no_change": 3, "tol": 0.1}, 200, {"patience": 3, "tol": 0.1}),
    (MINIMAX, {"learning_rate_init": 0.5, "dtype": "float64"}, 200, {"rate": 0.5}),
]
STREAMS = [  # the same of a chunk of more: nothing is held out, and there is one network
    (SCGD, {}, 200, {"folds": Folds(), "batch_size": 128, "holds_out": True}),
    (SCGD, {"n_estimators": 3, **USER}, 200, {"folds": Folds()}),
]
REFUSED = [
    (
        SCGD,
        {"n_estimators": 2, **USER},
        200,
        "n_estimators=2 needs networks: set hidden_layer_sizes",
    ),
    (
        SCGD,
        {"n_estimators": 2, "hidden_layer_sizes": ()},
        200,
        "needs networks: set hidden_layer_sizes",
    ),
    (BSGD, {"n_estimators": 2, **PERIODIC}, 200, "n_estimators must be 1 for this kernel, got 2"),
]


def make_plan(cls, params, n_rows, streams=False):
    return cls(**params)._recipe().plan(Sizes(n_rows, n_rows, 3, streams=streams))


def described(value):
    return getattr(value, "__name__", "") or (str(value) if isinstance(value, int) else None)


@pytest.mark.parametrize(("cls", "params", "n_rows", "expected"), PLANS, ids=described)
def test_plan(cls, params, n_rows, expected):
    plan = make_plan(cls, params, n_rows)
    assert {name: getattr(plan, name) for name in expected} == expected


@pytest.mark.parametrize(("cls", "params", "n_rows", "expected"), STREAMS, ids=described)
def test_plan_of_a_chunk(cls, params, n_rows, expected):
    plan = make_plan(cls, params, n_rows, streams=True)
    assert {name: getattr(plan, name) for name in expected} == expected


@pytest.mark.parametrize(("cls", "params", "n_rows", "message"), REFUSED, ids=described)
def test_plans_that_are_refused(cls, params, n_rows, message):
    with pytest.raises(ValueError, match=message):
        make_plan(cls, params, n_rows)

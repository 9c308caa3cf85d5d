"""What "auto" means for very many basis functions: parameters and sizes give a plan, without rows.

Each row of the table names what it changes, and the fields of the plan that follow from it.
"""

import math

import pytest
import torch
from sklearn.gaussian_process import kernels as sk

from skgpstoch import QSGPRegressor, QSRVMRegressor, kernels
from skgpstoch.likelihoods import Gaussian
from skgpstoch.models.features.basis_functions import FourierBasis
from skgpstoch.models.posteriors.chevron import ChevronModel, ChevronPosterior
from skgpstoch.training.optimizers import SCHEDULES
from skgpstoch.training.recipes.basis import FourierFunctions, KernelFunctions, dense_columns
from skgpstoch.training.recipes.plan import Folds, Sizes, Start

INDUCING = {"basis": "inducing"}
ADAGRAD = {"solver": "adagrad"}
NEVER = math.inf


def planned(cls, params, n_rows, start=None):
    return cls(**params)._recipe().plan(Sizes(n_rows, n_rows), start)


@pytest.mark.parametrize(
    ("params", "n_rows", "expected"),
    [
        # ---- basis functions
        ({}, 100, {"n_inducing": 1000, "dtype": "float32"}),
        ({}, 20_000, {"n_inducing": 5000}),
        ({}, 10**6, {"n_inducing": 10_000}),
        ({"n_components": 60}, 100, {"n_inducing": 60}),
        (INDUCING, 100, {"n_inducing": 100, "dtype": "float64"}),
        (INDUCING, 10**6, {"n_inducing": 10_000}),
        ({**INDUCING, "n_components": 30}, 100, {"n_inducing": 30}),
        ({**INDUCING, "early_stopping": True}, 100, {"n_inducing": 90}),
        # ---- steps: pairs of Fourier features are evaluated together
        ({}, 100, {"batch_size": 1024, "rate": 1.0}),
        (INDUCING, 100, {"batch_size": 2048}),
        ({"basis_batch_size": 1}, 100, {"batch_size": 1}),
        ({**INDUCING, "basis_batch_size": 32}, 100, {"batch_size": 32}),
        # ---- sweeps
        ({}, 100, {"max_iter": 20, "solver": "newton"}),
        ({"learn_kernel": True}, 100, {"max_iter": 60}),
        ({"n_components": 10**6}, 100, {"max_iter": 5}),
        ({"n_components": 10**7}, 100, {"max_iter": 1}),
        ({"n_components": 10**7, "max_iter": 7}, 100, {"max_iter": 7}),
        # ---- the end: two sweeps of all rows without a gain
        ({}, 100, {"patience": 2, "tol": 1e-4}),
        ({}, 16_384, {"patience": 2}),
        ({}, 16_385, {"patience": NEVER}),
        ({"batch_size": 50}, 100, {"patience": NEVER}),
        ({"learn_kernel": True}, 100, {"patience": NEVER}),
        ({"early_stopping": True}, 100, {"patience": NEVER}),
        ({"early_stopping": True, "n_iter_no_change": 3}, 100, {"patience": 3}),
        # ---- held-out rows
        ({}, 100, {"holds_out": False, "evaluates": False, "folds": Folds()}),
        (
            {"early_stopping": True, "validation_fraction": 0.2},
            100,
            {"holds_out": True, "evaluates": True, "folds": Folds(1, 20)},
        ),
        # ---- AdaGrad: 3,000 steps, of as many functions
        (ADAGRAD, 100, {"max_iter": 3000, "solver": "adagrad", "patience": NEVER}),
        ({**ADAGRAD, "n_components": 10**4}, 100, {"max_iter": 600}),
        ({**ADAGRAD, **INDUCING, "basis_batch_size": 30}, 100, {"max_iter": 750}),
        ({**ADAGRAD, "max_iter": 4, "n_iter_no_change": 2}, 100, {"max_iter": 4, "patience": 2}),
        (ADAGRAD, 100, {"schedule": SCHEDULES["one-cycle"]}),
        ({**ADAGRAD, "learning_rate": "theory"}, 100, {"schedule": SCHEDULES["theory"]}),
    ],
)
def test_plan_of_qsgp(params, n_rows, expected):
    plan = planned(QSGPRegressor, params, n_rows)
    assert {name: getattr(plan, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("params", "n_rows", "expected"),
    [
        # A function for each row, however many.
        ({}, 100, {"n_inducing": 100, "batch_size": 1024, "dtype": "float64"}),
        ({}, 30_000, {"n_inducing": 30_000}),
        ({"early_stopping": True}, 100, {"n_inducing": 90, "folds": Folds(1, 10)}),
        # 500 sweeps, or fewer that make 2,000 steps; the bound falls whenever a function goes.
        ({}, 100, {"max_iter": 500, "patience": NEVER}),
        ({}, 10**6, {"max_iter": 3}),
        ({"basis_batch_size": 10}, 100, {"max_iter": 200, "batch_size": 10}),
        ({"max_iter": 7, "n_iter_no_change": 3}, 100, {"max_iter": 7, "patience": 3}),
    ],
)
def test_plan_of_relevance_vectors(params, n_rows, expected):
    plan = planned(QSRVMRegressor, params, n_rows)
    assert {name: getattr(plan, name) for name in expected} == expected


def test_a_warm_start_goes_on_with_the_functions_that_there_are():
    likelihood, shift = Gaussian(torch.ones(1)), torch.zeros(1)
    basis = FourierBasis(kernels.from_sklearn(sk.RBF()), 1, 44, seed=0)
    posterior = ChevronPosterior(ChevronModel(basis, likelihood, shift, 0, shift.dtype), 10.0)
    assert planned(QSGPRegressor, {}, 10**6, Start(posterior)).n_inducing == 44


@pytest.mark.parametrize(
    ("asked", "m", "n_swept", "n_outputs", "expected"),
    [
        ("auto", 1000, 100, 1, 1000),  # all, where they are few
        ("auto", 1024, 100, 1, 1024),
        ("auto", 1025, 100, 1, 100),
        ("auto", 1000, 100, 18, 1000),  # each output has a matrix of its own
        ("auto", 1000, 100, 19, 100),
        ("auto", 60, 100, 3, 60),
        ("auto", 10**6, 16_384, 1, 19),  # h and C have 20 million numbers
        ("auto", 10**7, 16_384, 10, 0),
        (0, 1000, 100, 1, 0),
        (70, 60, 100, 1, 60),
    ],
)
def test_dense_columns(asked, m, n_swept, n_outputs, expected):
    assert dense_columns(asked, m, n_swept, n_outputs) == expected


@pytest.mark.parametrize(
    ("batch_size", "n_rows", "expected"),
    [("auto", 100, 100), ("auto", 10**6, 16_384), (50, 100, 50), (500, 100, 100)],
)
def test_rows_of_a_sweep(batch_size, n_rows, expected):
    assert QSGPRegressor(batch_size=batch_size)._recipe().n_swept(n_rows) == expected


def test_a_builder_says_what_it_has_no_functions_for():
    kernel = None
    FourierFunctions().check(kernel, 1, augments=False, learns_kernel=True)
    KernelFunctions().check(kernel, 1, augments=True, learns_kernel=False)
    with pytest.raises(ValueError, match="augment=True needs basis='inducing'"):
        FourierFunctions().check(kernel, 1, augments=True, learns_kernel=False)
    with pytest.raises(ValueError, match="learn_kernel=True needs basis='fourier'"):
        KernelFunctions().check(kernel, 1, augments=False, learns_kernel=True)

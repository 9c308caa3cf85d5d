"""One path, three tables: the same fit to rows in memory, in chunks, and on ranks.

A new estimator is a sheet and a recipe, and says nothing of where rows are.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from thread_group import on_ranks
from three_tables import in_chunks, on_every_table, on_parts, same_on_all

from skgpstoch import (
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.data import SequenceRows, row_sample
from skgpstoch.estimators.regressor import Regressor
from skgpstoch.likelihoods import Gaussian
from skgpstoch.models.features.network import NetworkFeatures
from skgpstoch.models.sparse import ConstantMean, SparseModel
from skgpstoch.objectives.natural import RunningObjective
from skgpstoch.training.recipes.plan import Plan
from skgpstoch.training.recipes.recipe import Recipe, started

N = 600
RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, (N, 2))
Y = 1.0 + X @ [2.0, -1.0] + 0.1 * RNG.standard_normal(N)
NEW = RNG.uniform(-1.0, 1.0, (50, 2))
FIXED = ConstantKernel(1.0, "fixed") * RBF(1.5, "fixed")
POINTS = RNG.uniform(-1.0, 1.0, (40, 2))
pytestmark = pytest.mark.usefixtures("few_are_many")


@dataclass(frozen=True, kw_only=True)
class Lines(Recipe):
    """Bayesian linear regression, f(x) = μ + wᵀx/√d, by running statistics of minibatches."""

    max_iter: int
    sums: bool = True

    def plan(self, sizes, start=None):
        return Plan("natural", "float64", max_iter=self.max_iter, batch_size=100, rate=0.01)

    def sums_rows(self, plan):
        return self.sums

    def objective(self, problem):
        likelihood, level = started(self.likelihood, problem.rows)
        features = NetworkFeatures(torch.nn.Identity(), problem.X.shape[1])
        model = SparseModel(features, likelihood, ConstantMean(level)).to(problem.X)
        return RunningObjective(model, n_rows=problem.rows.n_effective, conjugate=True)

    def attributes(self, fitted):
        return {"noise_": float(fitted.posterior.likelihood.noise_variance.item())}


@dataclass(eq=False, repr=False, kw_only=True)
class LinesRegressor(Regressor):
    """Its sheet of parameters."""

    max_iter: int = 5
    learning_rate_init: float = 0.01
    sums: bool = True

    _parameter_constraints = {**Regressor._parameter_constraints, "max_iter": [int]}  # noqa: RUF012
    _shape_parameters = ()

    def _recipe(self) -> Any:
        return Lines(likelihood=Gaussian(), max_iter=self.max_iter, sums=self.sums)


MODEL = LinesRegressor(dtype="float64", random_state=0)
KNOWN = {"dtype": "float64", "random_state": 0}


def closed(**params):
    """What a pass over all rows decides alone: kernel, noise and points are given."""
    given = {
        "kernel": FIXED + WhiteKernel(0.1, "fixed"),
        "inducing_points": POINTS,
        "learn_inducing_points": False,
        "mean": "zero",
        "normalize_y": False,
        "solver": "natural",
    }
    return SVGPRegressor(**{**given, **KNOWN, **params})


def alike(models):
    return same_on_all(models, NEW)


@pytest.mark.slow
@on_every_table
@slow_cases("^in_chunks")
def test_a_new_estimator_fits_wherever_rows_are(fits):
    whole, models = clone(MODEL).fit(X, Y), fits(MODEL, X, Y)
    assert_allclose(whole.predict(NEW), 1.0 + NEW @ [2.0, -1.0], atol=0.05)
    assert_allclose(alike(models), whole.predict(NEW), atol=0.05)  # the mean is a sample's
    assert models[-1].noise_ == pytest.approx(whole.noise_, rel=0.2)


@pytest.mark.slow
def test_sums_over_rows_do_not_depend_on_how_they_are_split():
    one = on_ranks(lambda group: clone(MODEL).fit(X, Y), 1)[0]
    assert_allclose(alike(on_parts(MODEL, X, Y)), one.predict(NEW), atol=1e-10)


def test_what_is_no_sum_over_rows_is_gathered_or_refused():
    model = clone(MODEL).set_params(sums=False)
    assert_array_equal(alike(on_parts(model, X, Y)), clone(model).fit(X, Y).predict(NEW))
    with pytest.raises(ValueError, match="LinesRegressor with these parameters needs all 600 rows"):
        in_chunks(model, X, Y)


@on_every_table
@pytest.mark.parametrize("weighted", ["not", "few", "all"])
@slow_cases("not-on_ranks", "few-on_parts", "all-in")
def test_a_closing_pass_is_that_of_rows_in_memory(fits, weighted):
    weight = np.where(np.arange(N) == 3, 2.0, 1.0)
    if weighted == "all":
        weight = np.random.default_rng(3).integers(0, 3, N).astype(float)
    of_rows = {} if weighted == "not" else {"sample_weight": weight}
    whole = closed().fit(X, Y, **of_rows)
    models = fits(closed(), X, Y, **of_rows)
    assert_allclose(alike(models), whole.predict(NEW), atol=1e-10)
    assert_allclose(models[-1].predict_std(NEW), whole.predict_std(NEW), atol=1e-10)
    bounds = [model.log_marginal_likelihood_value_ for model in (models[-1], whole)]
    assert_allclose(*bounds, rtol=1e-8)
    assert models[-1].posterior_.n_rows == (weight.sum() if of_rows else N)


@on_every_table
def test_few_rows_are_fitted_as_in_memory(fits, monkeypatch):
    monkeypatch.setattr(row_sample, "GATHERED_ROWS", N)
    model = SVGPRegressor(n_inducing=15, solver="natural", max_iter=5, **KNOWN)
    whole = clone(model).fit(X[:200], Y[:200])
    assert_allclose(alike(fits(model, X[:200], Y[:200])), whole.predict(NEW), atol=1e-9)


@pytest.mark.slow
@on_every_table
@pytest.mark.parametrize("n_rows", [200, N])  # few, and many
@by_default("600-on_parts", "200-on_ranks")
def test_held_out_rows_have_the_numbers_that_were_given(fits, n_rows, monkeypatch):
    monkeypatch.setattr(row_sample, "GATHERED_ROWS", 200)
    weight = np.where(np.arange(n_rows) % 4 == 0, 0.0, 1.0)
    model = DeepKernelEnsembleRegressor(
        n_estimators=2, max_iter=2, hidden_layer_sizes=(10,), **KNOWN
    )
    for each in fits(model, X[:n_rows], Y[:n_rows], sample_weight=weight):
        held_out = each.held_out_
        assert_allclose(held_out.mean + held_out.error, Y[held_out.rows, None], atol=1e-6)
        assert (np.diff(held_out.rows) > 0).all()


@pytest.mark.slow
@on_every_table
@pytest.mark.parametrize(
    "model",
    [
        SVGPClassifier(n_inducing=20, solver="natural", max_iter=3, random_state=0),
        DeepKernelEnsembleClassifier(
            hidden_layer_sizes=(16,), n_estimators=2, max_iter=8, random_state=0
        ),
    ],
    ids=["svgp", "networks"],
)
@slow_cases("networks-(in_one_order|on_ranks_in_chunks)")
@by_default("svgp-on_ranks", "networks-in_chunks")
def test_classes_of_any_rows_are_everybodys(fits, model):
    """In order, so that ranks and chunks have few each; one is in the last row alone."""
    order = np.argsort(Y, kind="stable")
    labels = np.array(["low", "middle", "high"], dtype=object)[np.digitize(Y[order], [0.0, 2.0])]
    labels[N - 1] = "once"
    models = fits(model, X[order], labels)
    for each in models:
        assert each.classes_.tolist() == ["high", "low", "middle", "once"]
    alike(models)
    assert models[-1].score(X[order], labels) > 0.8


@pytest.mark.slow
@on_every_table
@slow_cases("on_ranks")
def test_targets_are_transformed_alike(fits):
    """A sample of all rows says how, though chunks and ranks have other targets."""
    order = np.argsort(Y)
    model = closed(normalize_y=True, target_transform="yeo-johnson")
    mean = alike(fits(model, X[order], np.exp(Y[order])))
    assert np.abs(np.log(mean) - 1.0 - NEW @ [2.0, -1.0]).mean() < 0.3
    both = alike(fits(closed(target_transform="log"), X, np.exp(np.stack([Y, -Y], 1))))
    assert np.abs(np.log(both[:, 0] * both[:, 1])).mean() < 0.2


@on_every_table
@pytest.mark.parametrize(
    ("params", "y", "wrong", "message"),
    [
        (
            {"likelihood": "poisson", "kernel": FIXED, "max_iter": 1},
            np.round(np.exp(Y)),
            2.5,
            "y must hold count",
        ),
        ({"target_transform": "log"}, np.exp(Y), -1.0, "y must be"),
        ({}, Y, np.nan, "NaN"),
    ],
    ids=["counts", "log", "NaN"],
)
def test_a_bad_row_is_named_and_leaves_the_estimator_as_it_was(fits, params, y, wrong, message):
    """Be the row in the sample or not, in a chunk or on one rank."""
    model = closed(**params).fit(X[:100], y[:100])
    bad = np.append(y[:-1], wrong)
    with pytest.raises(ValueError, match=message):
        fits(model, X, bad)
    before = model.predict(NEW), set(vars(model))
    with pytest.raises(ValueError, match=message):
        model.fit(SequenceRows(X, bad, chunk_rows=97))
    assert_array_equal(model.predict(NEW), before[0])
    assert set(vars(model)) == before[1]
    assert not [t for t in threading.enumerate() if t.name == "read_ahead"]

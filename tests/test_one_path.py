"""A new estimator is a sheet and a recipe: it fits to arrays, chunks and ranks without a word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from thread_group import on_ranks

from skgpstoch.data import ChunkRows, SequenceRows, row_sample
from skgpstoch.estimators.regressor import Regressor
from skgpstoch.features.network import NetworkFeatures
from skgpstoch.likelihoods.real import Gaussian
from skgpstoch.models.sparse import ConstantMean, SparseModel
from skgpstoch.objectives.natural import RunningObjective
from skgpstoch.recipes.plan import Plan
from skgpstoch.recipes.recipe import Recipe, started

N = 600
RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, (N, 2))
Y = 1.0 + X @ [2.0, -1.0] + 0.1 * RNG.standard_normal(N)
NEW = RNG.uniform(-1.0, 1.0, (50, 2))


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


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    for name, most in (("SAMPLE_ROWS", 250), ("MERGED_ROWS", 250), ("GATHERED_ROWS", 0)):
        monkeypatch.setattr(row_sample, name, most)


def pieces():
    return ((X[i : i + 70], Y[i : i + 70]) for i in range(0, N, 70))


def on_parts(model, *cuts):
    """Each rank's model, fitted to the rows between its cuts."""

    def fit(group):
        mine = slice(*cuts[group.rank : group.rank + 2])
        return clone(model).fit(X[mine], Y[mine])

    return on_ranks(fit, len(cuts) - 1)


def test_a_new_estimator_fits_wherever_rows_are():
    whole = clone(MODEL).fit(X, Y)
    assert_allclose(whole.predict(NEW), 1.0 + NEW @ [2.0, -1.0], atol=0.05)
    for rows in (SequenceRows(X, Y, chunk_rows=97), ChunkRows(pieces)):
        model = clone(MODEL).fit(rows)
        assert_allclose(model.predict(NEW), whole.predict(NEW), atol=0.02)
        assert model.noise_ == pytest.approx(whole.noise_, rel=0.2)
        several = on_ranks(lambda group, rows=rows: clone(MODEL).fit(rows), 2)
        assert_allclose(several[1].predict(NEW), whole.predict(NEW), atol=0.02)
    one, (first, second) = on_parts(MODEL, 0, N)[0], on_parts(MODEL, 0, 250, N)
    assert_array_equal(second.predict(NEW), first.predict(NEW))
    assert_allclose(first.predict(NEW), one.predict(NEW), atol=1e-10)


def test_what_is_no_sum_over_rows_is_gathered_or_refused():
    model = clone(MODEL).set_params(sums=False)
    whole = clone(model).fit(X, Y)
    for each in on_parts(model, 0, 250, N):
        assert_array_equal(each.predict(NEW), whole.predict(NEW))
    with pytest.raises(ValueError, match="LinesRegressor with these parameters needs all 600 rows"):
        clone(model).fit(SequenceRows(X, Y, chunk_rows=97))

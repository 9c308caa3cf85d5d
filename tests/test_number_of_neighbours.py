"""Predictions take as few neighbours as predict rows left out as well as the most do."""

import numpy as np
import pytest
import torch
from families import slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import kernels as sk

from skgpstoch import NNGPRegressor, load
from skgpstoch.data.rows import Rows
from skgpstoch.likelihoods.real import Gaussian
from skgpstoch.models.calibration.held_out import Predicted
from skgpstoch.objectives.neighbour_calibration import FEWER, JudgedNeighbours, fewest


def table(n_rows, length_scale, noise):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n_rows, 2))
    y = np.sin(X @ [2.0, 1.0] / length_scale) + noise * rng.normal(size=n_rows)
    kernel = sk.ConstantKernel(1.0, "fixed") * sk.Matern(length_scale, "fixed", nu=1.5)
    return kernel + sk.WhiteKernel(noise**2, "fixed"), X, y


def fitted(n_rows, length_scale, noise, **params):
    kernel, X, y = table(n_rows, length_scale, noise)
    given = {"n_neighbors_predict": "auto", "max_iter": 1, "random_state": 0, **params}
    return NNGPRegressor(kernel, **given).fit(X, y), X, y


@pytest.mark.parametrize(
    ("n_rows", "length_scale", "noise", "expected"),
    [(600, 0.05, 0.2, 32), (600, 2.0, 2.0, 128), (250, 0.05, 0.2, 128)],
    ids=["near rows tell all", "noise hides what far rows tell", "too few rows to tell"],
)
@slow_cases("^noise hides what far rows tell$")
def test_rows_left_out_choose_how_many_neighbours_predict(n_rows, length_scale, noise, expected):
    model, X, _ = fitted(n_rows, length_scale, noise)
    assert model.posterior_.n_neighbors == expected
    same, *_ = fitted(n_rows, length_scale, noise, n_neighbors_predict=expected)
    assert_array_equal(model.predict(X), same.predict(X))
    assert_array_equal(model.held_out_.log_density, same.held_out_.log_density)


@pytest.mark.slow
def test_a_fitted_model_can_be_given_another_number_and_takes_its_own_again(tmp_path):
    model, X, _ = fitted(600, 0.05, 0.2)
    chosen = model.predict_std(X)
    assert not np.array_equal(model.set_params(n_neighbors_predict=128).predict_std(X), chosen)
    model.set_params(n_neighbors_predict="auto").save(tmp_path / "model")
    assert_array_equal(model.predict_std(X), chosen)
    assert_array_equal(load(tmp_path / "model").predict_std(X), chosen)


@pytest.mark.slow
def test_fewer_neighbours_hardly_change_predictions():
    model, X, y = fitted(800, 0.05, 0.3)
    assert model.posterior_.n_neighbors < 128
    fewer = model.log_predictive_density(X, y), model.predict_std(X)
    model.set_params(n_neighbors_predict=None)
    assert fewer[0].mean() > model.log_predictive_density(X, y).mean() - 0.01
    assert_allclose(fewer[1].mean(), model.predict_std(X).mean(), rtol=0.05)


def judged(n_neighbors, loss, error=0.0, latent=1.0, n_rows=400):
    """Return what rows left out say whose densities are lower by these losses."""
    one = torch.ones(n_rows, 1, dtype=torch.float64)
    rows = Rows(torch.zeros_like(one))
    held_out = Predicted(-loss, one * (1.0 + error), one, latent * one, one)
    return JudgedNeighbours(n_neighbors, Gaussian(one[0]), None, rows, held_out)


NONE = torch.zeros(400, dtype=torch.float64)
SURE = NONE + 0.004
BY_CHANCE = 0.2 * torch.linspace(-1.0, 1.0, 400, dtype=torch.float64)


@pytest.mark.parametrize(
    ("worse", "expected"),
    [
        ({"loss": SURE}, True),
        ({"loss": NONE + 0.006}, False),
        ({"loss": BY_CHANCE}, False),  # 0 ± .006
        ({"loss": BY_CHANCE - 0.01}, True),
        ({"loss": NONE, "error": 0.004}, True),
        ({"loss": NONE, "error": 0.006}, False),
        ({"loss": NONE, "latent": 1.07}, True),
        ({"loss": NONE, "latent": 1.08}, False),
    ],
    ids=str,
)
def test_fewer_are_as_good_if_densities_errors_and_f_are(worse, expected):
    most = judged(128, NONE)
    assert judged(64, **worse).is_as_good_as(most) == expected


def test_the_search_ends_at_the_first_number_that_is_worse():
    asked = []

    def of(good):
        def tried(n_neighbors):
            asked.append(n_neighbors)
            return judged(n_neighbors, NONE if n_neighbors in good else NONE + 1.0)

        return tried

    most = judged(128, NONE)
    assert fewest(most, of({64, 32})).n_neighbors == 32
    assert fewest(most, of({64})).n_neighbors == 64
    assert fewest(most, of({32})).n_neighbors == 128
    assert asked == [*FEWER, *FEWER, 64]
    few = judged(128, NONE[:100], n_rows=100)
    assert fewest(few, of({64, 32})).n_neighbors == 128

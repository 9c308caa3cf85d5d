"""Predictions of nearest neighbours are wider where rows nearby were predicted badly."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import kernels as sk

import skgpstoch
from skgpstoch import NNGPRegressor
from skgpstoch.data.rows import Rows
from skgpstoch.models.calibration.nearby import ErrorsNearby, ratio, scores

KERNEL = 1.0 * sk.Matern(0.5, nu=1.5) + sk.WhiteKernel(0.1)
QUICK = {"kernel": KERNEL, "max_iter": 2, "n_neighbors_predict": 24, "random_state": 0}


def rows_with_two_noises(n, P=1, seed=0):
    """The noise on the right is ten times that on the left."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2))
    noise = np.where(X[:, 0] > 0, 0.5, 0.05)[:, None]
    y = np.sin(3 * X[:, 1:]) + noise * rng.normal(size=(n, P))
    return X, y if P > 1 else y[:, 0]


@pytest.fixture(scope="module")
def fitted():
    return NNGPRegressor(**QUICK).fit(*rows_with_two_noises(1200))


def coverage(model, X, y):
    low, high = model.predict_interval(X, 0.9).T
    return np.mean((low < y) & (y < high))


def test_both_sides_are_covered(fitted):
    X, y = rows_with_two_noises(1500, seed=1)
    left = X[:, 0] < 0
    plain = NNGPRegressor(**QUICK, calibrate=False).fit(*rows_with_two_noises(1200))
    for side in (left, ~left):
        assert 0.82 < coverage(fitted, X[side], y[side]) < 0.98
    assert coverage(plain, X[left], y[left]) > 0.99
    gain = fitted.log_predictive_density(X, y).mean() - plain.log_predictive_density(X, y).mean()
    assert gain > 0.4
    assert_allclose(fitted.predict(X), plain.predict(X), atol=1e-8)


def test_rows_left_out_get_the_density_of_new_rows(fitted):
    X, y = rows_with_two_noises(1500, seed=2)
    new = fitted.log_predictive_density(X, y)
    assert abs(fitted.held_out_.log_density.mean() - new.mean()) < 0.08


def test_one_noise_needs_no_neighbours():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 2))
    model = NNGPRegressor(**QUICK).fit(X, np.sin(3 * X[:, 0]) + 0.2 * rng.normal(size=600))
    assert model.posterior_.spread.nearby is None


@pytest.mark.parametrize("P", [1, 2])
def test_ratios_are_those_of_the_equation(P):
    model = NNGPRegressor(**QUICK).fit(*rows_with_two_noises(400, P))
    posterior, scale = model.posterior_, model.posterior_.spread
    spread = scale.nearby
    X = torch.tensor(np.random.default_rng(3).normal(size=(7, 2)))
    place = posterior.located(X)
    for q, r in zip(place, spread(place), strict=True):
        near = (spread.places - q).square().sum(1).argsort()[: spread.k]
        w, sizes = spread.weight[near, None], spread.sizes[near]
        assert_allclose(r, (spread.prior + (w * sizes).sum(0)) / (spread.prior + w.sum()))
    q, likelihood = posterior.predictive(X, Rows(X[:, :P]))
    usual = posterior.moments(X, posterior.nearest.of(place, posterior.n_neighbors))[1]
    share = usual / posterior.kernel.diag(X)[:, None]
    factor2 = share**2 + (1.0 - share**2) * (scale.scale * spread(place)).square()
    assert_allclose(q.var[0], factor2 * usual)
    noise = posterior.likelihood.noise_variance
    assert_allclose(likelihood.noise_variance, factor2 * noise)


def test_scores_are_laplaces():
    rng = np.random.default_rng(0)
    sizes, r = torch.tensor(rng.exponential(size=(50, 2))), torch.tensor(rng.uniform(1, 2, (50, 2)))
    weight = torch.tensor(rng.uniform(0.5, 2, 50))
    found = [(weight * scores(sizes, c * r, weight)).sum() for c in (1.0, 3.0)]
    assert_allclose(*found)  # b makes up for any factor
    b = (weight[:, None] * sizes / r).sum(0) / 50
    expected = torch.distributions.Laplace(0.0, r * b).log_prob(sizes).sum(1) + 2 * np.log(2.0)
    assert_allclose(scores(sizes, r, weight), expected)


def test_a_row_of_weight_2_counts_twice():
    sizes = torch.tensor([[1.0], [3.0]])[None]
    twice = ratio(sizes[:, [0, 1, 1]], torch.ones(1, 3), 4.0)
    assert_allclose(ratio(sizes, torch.tensor([[1.0, 2.0]]), 4.0), twice)


def test_few_rows_or_no_errors_choose_nothing():
    places = torch.rand(200, 2, dtype=torch.float64)
    u, weight = torch.ones(200, 1, dtype=torch.float64), torch.ones(200, dtype=torch.float64)
    for n, errors in [(40, u), (200, 0 * u), (200, torch.inf * u)]:
        found, r = ErrorsNearby.best(places[:n], errors[:n], weight[:n])
        assert found is None
        assert (r == 1).all()


def test_draws_and_covariance_have_the_spread(fitted):
    X = np.array([[-0.5, 0.1], [-0.52, 0.1], [0.5, 0.1], [0.5, 0.9]])
    std = fitted.predict_std(X, latent=True)
    _, cov = fitted.predict(X, return_cov=True, latent=True)
    assert_allclose(np.sqrt(np.diag(cov)), std)
    values = fitted.sample_functions(200, random_state=0)(X)
    assert_allclose(np.std(values, axis=-1).ravel(), std, rtol=0.2)
    draws = fitted.sample_y(X, 4000, random_state=0)
    spread = np.quantile(draws, [0.05, 0.95], axis=1).T
    assert_allclose(spread, fitted.predict_interval(X, 0.9), rtol=0.1, atol=0.05)


def test_files_and_new_rows_keep_the_spread(fitted, tmp_path):
    X = rows_with_two_noises(50, seed=4)[0]
    fitted.save(tmp_path / "model")
    loaded = skgpstoch.load(tmp_path / "model")
    assert_array_equal(loaded.predict_std(X), fitted.predict_std(X))
    more = fitted.condition_on(*rows_with_two_noises(30, seed=5))
    assert more.posterior_.spread.nearby.k == fitted.posterior_.spread.nearby.k
    assert_allclose(more.predict_std(X), fitted.predict_std(X), rtol=0.1)
    whole = fitted.predict_std(X)
    assert_array_equal(
        np.concatenate([fitted.predict_std(X[:20]), fitted.predict_std(X[20:])]), whole
    )


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_far_from_rows_predictions_return_to_the_prior(noise):
    """Errors of rows left out are those near rows; they say nothing of the sill."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (300, 1))
    y = np.sin(X[:, 0]) + noise * rng.standard_normal(300)
    models = [
        NNGPRegressor(max_iter=2, calibrate=each, random_state=0).fit(X, y)
        for each in (True, False)
    ]
    far, plain = (model.predict_std([[1e6]], latent=True) for model in models)
    assert_allclose(far, plain, rtol=1e-6)
    assert models[0].kernel_ == models[1].kernel_

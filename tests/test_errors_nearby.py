"""Predictions of nearest neighbours are wider where rows nearby were predicted badly."""

import math

import numpy as np
import pytest
import torch
from families import by_default
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import kernels as sk

import skgpstoch
from skgpstoch import NNGPRegressor
from skgpstoch.data.rows import Rows
from skgpstoch.models.calibration.tails import TailChoice
from skgpstoch.models.posteriors.nearby import (
    ErrorScale,
    ErrorsNearby,
    Given,
    Widths,
    ratio,
    scores,
)
from skgpstoch.objectives.neighbour_calibration import best_tails_and_spread

KERNEL = 1.0 * sk.Matern(0.5, nu=1.5) + sk.WhiteKernel(0.1)
SMOOTH = 1.0 * sk.Matern(1.0, nu=2.5) + sk.WhiteKernel(0.1)
QUICK = {"kernel": KERNEL, "max_iter": 2, "n_neighbors_predict": 64, "random_state": 0}


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_rows_left_out_get_the_density_of_new_rows(fitted):
    X, y = rows_with_two_noises(1500, seed=2)
    new = fitted.log_predictive_density(X, y)
    assert abs(fitted.held_out_.log_density.mean() - new.mean()) < 0.08


@pytest.mark.slow
def test_one_noise_needs_no_neighbours():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 2))
    model = NNGPRegressor(**QUICK).fit(X, np.sin(3 * X[:, 0]) + 0.2 * rng.normal(size=600))
    assert model.posterior_.spread.nearby is None


def process(seed, n, noise):
    """A field of a known process, and y with this standard deviation of the noise at rows X."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 2))
    K = sk.Matern(0.1, nu=2.5)(X) + 1e-9 * np.eye(n)
    f = np.linalg.cholesky(K) @ rng.standard_normal(n)
    return X, f + noise(X) * rng.standard_normal(n)


def of_process(X, y):
    """The model whose kernel is that of the process."""
    matern = sk.ConstantKernel(1.0, "fixed") * sk.Matern(0.1, "fixed", nu=2.5)
    kernel = matern + sk.WhiteKernel(1e-4, "fixed")
    kept = {"normalize_y": False, "mean": "zero", "max_iter": 1, "n_neighbors": 8}
    return NNGPRegressor(kernel, n_neighbors_predict=32, random_state=0, **kept).fit(X, y)


@pytest.mark.slow
def test_a_process_with_one_noise_gains_nothing_by_chance():
    """Errors given all rows would promise .01 nats more, and lose .03 on new rows."""
    X, y = process(1, 2000, lambda X: 1e-2)
    model = of_process(X[:1200], y[:1200])
    held, new = model.held_out_.log_density, model.log_predictive_density(X[1200:], y[1200:])
    error = np.hypot(held.std() / np.sqrt(len(held)), new.std() / np.sqrt(len(new)))
    assert abs(held.mean() - new.mean()) < 2 * error
    model.posterior_.spread = None
    assert new.mean() > model.log_predictive_density(X[1200:], y[1200:]).mean() - 1e-3


@pytest.mark.slow
def test_noise_that_varies_is_found():
    X, y = process(0, 2400, lambda X: np.where(X[:, 0] > 0.5, 0.1, 0.01))
    model = of_process(X[:1400], y[:1400])
    held, new = model.held_out_.log_density, model.log_predictive_density(X[1400:], y[1400:])
    assert abs(held.mean() - new.mean()) < 0.15
    spread = model.posterior_.spread
    kept = spread.factor, spread.exponent, spread.most_odds
    model.posterior_.spread = ErrorScale(*kept, None, spread.tails)
    assert new.mean() > model.log_predictive_density(X[1400:], y[1400:]).mean() + 0.1


def test_errors_of_neighbours_do_not_know_the_row():
    """They are those of each neighbour given the others; a row of weight 2 has those of one row."""
    X, y = rows_with_two_noises(60, 2)
    weight = np.random.default_rng(0).integers(1, 3, 60)
    p = NNGPRegressor(**QUICK).fit(X, y, sample_weight=weight).posterior_
    i = torch.tensor([3, 17])
    given, N = p.left_out(i, 8), p.nearest.others(i, p.n_neighbors)
    K, w = p.kernel(p.features), p.weight[:, None]
    for row in range(2):
        for place, j in enumerate(N[row, :8]):
            rest = N[row][N[row] != j]
            for out in range(2):
                C = K[rest][:, rest] + p.noise[rest, out].diag()
                beta = torch.linalg.solve(C, K[rest, j])
                var = K[j, j] - beta @ K[rest, j] + (p.noise * w)[j, out]
                error = p.residual[j, out] - beta @ p.residual[rest, out]
                assert_allclose(given.sizes[row, place, out], error.abs() / var.sqrt(), rtol=1e-8)
    assert_array_equal(given.weight, p.weight[N[:, :8]])


@pytest.mark.slow
@pytest.mark.parametrize("P", [1, 2])
@by_default("2")
def test_ratios_are_those_of_the_equation(P):
    model = NNGPRegressor(**QUICK).fit(*rows_with_two_noises(400, P))
    posterior, scale = model.posterior_, model.posterior_.spread
    posterior.mean_variance.zero_()  # ω is of f around a known mean
    nearby, noise = scale.nearby, posterior.variance
    X = torch.tensor(np.random.default_rng(3).normal(size=(7, 2)))
    given = posterior.given_nearest(X, nearby.k)
    w, sizes = given.weight[..., None], given.sizes / nearby.usual
    r = (nearby.prior + (w * sizes).sum(1)) / (nearby.prior + w.sum(1))
    odds = given.var / (posterior.kernel.diag(X)[:, None] - given.var)
    known = torch.minimum(scale.most_odds / odds, torch.ones_like(odds))
    assert bool((known < 1).any() and (known == 1).any())
    k = posterior.kernel.diag(X)[:, None]
    s = (torch.minimum(given.var, k * scale.most_odds / (1.0 + scale.most_odds)) + noise).sqrt()
    assert scale.exponent != 1.0
    factor2 = 1.0 + known * ((scale.factor * s ** (scale.exponent - 1.0) * r).square() - 1.0)
    q, likelihood = posterior.predictive(X, Rows(X[:, :P]))
    of_f, of_noise = q.var[0] / given.var, likelihood.ratio.square()
    assert_allclose(q.var[0] + of_noise * noise, factor2 * (given.var + noise))
    share = (given.var - given.by_noise) / (given.var + noise)
    tails = 1.0 + known * (scale.tails - 1.0)
    of_noise = of_noise * tails  # ρ, and λ below
    of_process = (of_f * given.var - of_noise * given.by_noise) / (given.var - given.by_noise)
    assert_allclose(of_process / of_noise, (tails * factor2) ** (2 * share - 1))
    assert_allclose(scale.tails, (posterior.likelihood.noise_variance / noise).mean())


@pytest.mark.slow
def test_deviations_that_vary_too_little_are_spread():
    rng = np.random.default_rng(0)
    s = np.exp(rng.normal(size=(4000, 1)))
    u, one = 2.0 * s**0.4 * rng.normal(size=s.shape), np.ones_like(s)
    reach = np.abs(u * s).max() / s
    tails, spread = best_tails_and_spread(TailChoice(), u, s, one, one, one, reach)
    assert math.isinf(tails.df)
    assert_allclose([*spread.factor, spread.exponent], [2.0, 1.4], rtol=0.03)
    kept = best_tails_and_spread(TailChoice(scales=False), u, s, one, one, one, reach)[1]
    assert (*kept.factor, kept.exponent) == (1.0, 1.0)


def test_deviations_grow_to_those_of_the_prior():
    """They neither overshoot where neighbours become few, nor cancel where all is known."""
    var = torch.logspace(-20, 0, 200, dtype=torch.float64)[:, None] * (1.0 - 1e-12)
    one = torch.ones_like(var)
    rest = {"mean": one, "by_noise": 0.0 * one, "sizes": one[:, None], "weight": one}
    given = Given(var=var, odds=var / (1.0 - var), **rest)
    o, none = torch.full((1,), 0.05, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    widths = ErrorScale(torch.ones_like(o), 2.0, o, None, 1.0)(given, none)
    std = widths.of_f * var.sqrt()
    assert bool((std.diff(dim=0) > 0.0).all() and (std < 1.0 + 1e-9).all())
    near = var < 0.01
    assert_allclose(std[near], var[near], rtol=1e-10)


def test_what_is_nearly_all_noise_or_process_changes_alone():
    one, F2 = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[0.25]], dtype=torch.float64)
    rest = {"mean": one, "odds": one, "sizes": one, "weight": one}
    f = Given(var=1e-6 * one, by_noise=1e-7 * one, **rest)
    assert_allclose(Widths.of(F2, f, one[0]), [[[0.925**0.5]], [[0.5]]], rtol=1e-2)
    f = Given(var=one, by_noise=1e-9 * one, **rest)
    assert_allclose(Widths.of(F2, f, 1e-9 * one[0]), [[[0.5]], [[1.0]]], rtol=1e-3)


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


@pytest.mark.slow
def test_heavy_tails_are_those_of_the_noise():
    """Half of the errors are twenty times as large, and f has light tails."""
    X, f = process(3, 1000, lambda X: 0.0)
    rng = np.random.default_rng(3)
    y = f + rng.choice([0.05, 1.0], 1000) * rng.standard_normal(1000)
    kernel = 1.0 * sk.Matern(0.1, nu=2.5) + sk.WhiteKernel(0.3)
    model = NNGPRegressor(kernel, max_iter=3, random_state=0).fit(X[:700], y[:700])
    assert model.posterior_.spread.tails > 2
    mean, std = model.predict(X[700:], return_std=True, latent=True)
    of_y = model.predict_std(X[700:])
    off = np.std((f[700:] - mean) / std)
    assert 0.8 < off < 1.5
    model.posterior_.spread.tails = 1.0
    assert np.std((f[700:] - mean) / model.predict_std(X[700:], latent=True)) > 1.15 * off
    assert_allclose(model.predict_std(X[700:]), of_y)


@pytest.mark.filterwarnings("ignore:Outliers in X")
def test_rows_of_which_no_other_tells_anything_do_no_harm():
    X = np.r_[np.linspace(0, 20, 200), 1e4 * np.arange(1, 11)][:, None]
    kernel = 25.0 * sk.RBF(2.0) + sk.WhiteKernel(0.1)
    options = {"normalize_y": False, "max_iter": 1, "random_state": 0}
    noise = 0.1 * np.random.default_rng(0).standard_normal(len(X))
    model = NNGPRegressor(kernel, **options).fit(X, 5.0 * np.sin(X[:, 0]) + noise)
    assert np.isfinite(model.held_out_.log_density).all()
    assert np.isfinite(model.predict_std([[3.0], [5e3]])).all()


def test_few_rows_or_no_errors_choose_nothing():
    u, near = torch.ones(200, 1, dtype=torch.float64), torch.ones(200, 32, dtype=torch.float64)
    given = Given(u, u, u, u, near[..., None], near)
    for n, errors in [(40, u), (200, 0 * u), (200, torch.inf * u)]:
        part = Given(*(column[:n] for column in given))
        found, r = ErrorsNearby.best(errors[:n], near[:n, 0], part)
        assert found is None
        assert (r == 1).all()


@pytest.mark.slow
def test_draws_and_covariance_have_the_spread(fitted):
    X = np.array([[-0.5, 0.1], [-0.52, 0.1], [0.5, 0.1], [0.5, 0.9]])
    std = fitted.predict_std(X, latent=True)
    _, cov = fitted.predict(X, return_cov=True, latent=True)
    assert_allclose(np.sqrt(np.diag(cov)), std)
    values = fitted.sample_functions(100, random_state=0)(X)
    assert_allclose(np.std(values, axis=-1).ravel(), std, rtol=0.2)
    draws = fitted.sample_y(X, 2000, random_state=0)
    spread = np.quantile(draws, [0.05, 0.95], axis=1).T
    assert_allclose(spread, fitted.predict_interval(X, 0.9), rtol=0.1, atol=0.05)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The optimal value found")  # without noise
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize(("kernel", "n"), [(None, 2), (SMOOTH, 5)], ids=["chosen", "smooth"])
@by_default("smooth-0.05")
def test_far_from_rows_predictions_return_to_the_prior(kernel, n, noise):
    """Errors of rows left out are those near rows; they say nothing of the sill."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (120, 1))
    y = np.sin(X[:, 0]) + noise * rng.standard_normal(120)
    models = [
        NNGPRegressor(kernel, max_iter=n, calibrate=each, random_state=0).fit(X, y)
        for each in (True, False)
    ]
    Q = [[1e6], [11.0]]
    far, plain = (model.predict_std(Q, latent=True) for model in models)
    assert_allclose(far[0], plain[0], rtol=1e-6)
    assert far[1] > 0.9 * plain[1]  # just outside: no row left out was as far from others
    assert models[0].kernel_ == models[1].kernel_

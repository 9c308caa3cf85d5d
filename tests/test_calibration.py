"""What ensembles choose by rows that no member has seen."""

import copy
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import fitted_once
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import cumulative_trapezoid, trapezoid
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.gaussian_process.kernels import Matern, WhiteKernel
from torch.testing import assert_close

from skgpstoch import (
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
    DLMRegressor,
)
from skgpstoch.data.arrays import resolve_seed
from skgpstoch.data.deadline import Deadline
from skgpstoch.data.equal_rows import observations
from skgpstoch.data.rows import Data, Rows
from skgpstoch.likelihoods import Gaussian, Laplace, SharedStudentT
from skgpstoch.likelihoods.skewed import Skewed
from skgpstoch.maths.gaussian import Marginals
from skgpstoch.methods.dlm.fits import split_rows
from skgpstoch.models.calibration.held_out import (
    CONFIDENCES,
    N_CONFIDENCES,
    PRIOR,
    UNCHANGED,
    USUAL,
    Calibration,
    HeldOut,
    calibrate,
    most_suitable,
    scaled,
    stretched,
)
from skgpstoch.models.calibration.spread import best_spread
from skgpstoch.models.features.network import PeriodicInputs
from skgpstoch.models.mixture import MixturePosterior, Spread
from skgpstoch.objectives.ensemble import EnsembleObjective

ALL = [True] * 7
NO_OUTLIERS = [*ALL[:5], False, False]


def only(*names):
    return [name in names for name in Calibration._fields[:-1]]


def test_without_rows_there_is_what_is_usual():
    for free, usual in ((ALL, USUAL), (NO_OUTLIERS, Calibration())):
        assert_allclose(calibrate(lambda choice: 0.0, free)[:-1], usual[:-1], atol=1e-5)
    assert Calibration().outliers == (0.0, 1.0)


def test_many_rows_decide_and_few_are_weighed_against_the_prior():
    def loss(weight):
        return lambda choice: 0.5 * weight * (choice.log_scale + 0.6) ** 2

    for weight in (1.0, 10.0, 1e4):
        for usual in (0.0, -1.0):
            found = calibrate(loss(weight), only("log_scale"), Calibration(usual))
            share = weight / (weight + PRIOR.log_scale**-2)
            assert_allclose(found.log_scale, -0.6 * share + usual * (1.0 - share), atol=1e-5)
            assert found[1:] == Calibration()[1:]


def test_the_spread_of_means_stays_a_share():
    found = calibrate(
        lambda choice: -1e3 * choice.mean_shrinkage, only("log_scale", "mean_shrinkage")
    )
    assert 0.99 < found.mean_shrinkage <= 1.0
    found = calibrate(
        lambda choice: 1e3 * choice.mean_shrinkage, only("log_scale", "mean_shrinkage")
    )
    assert 0.0 <= found.mean_shrinkage < 0.01


@pytest.mark.parametrize("gain", [3.0, 5.0, 10.0, 50.0])
def test_disagreement_is_found_though_it_has_no_slope_at_nought(gain):
    """The review's example, whose minimum is not where the search might end."""

    def loss(choice):
        return -gain * choice.disagreement_scale**2 + 0.5 * gain * choice.disagreement_scale**4

    grid = np.linspace(0.0, 2.0, 2001)
    best = grid[
        np.argmin(
            -gain * grid**2 + 0.5 * gain * grid**4 + 0.5 * (grid / PRIOR.disagreement_scale) ** 2
        )
    ]
    assert_allclose(calibrate(loss, ALL).disagreement_scale, best, atol=2e-3)


def test_all_changes_are_found_together():
    """A loss with a known minimum among changes that depend on each other."""
    best = np.array([-1.5, 0.4, 1.0, 0.7, 0.3, -2.0, 1.5])
    A = 1e6 * (np.eye(7) + 0.5)

    def loss(choice):
        away = choice[:-1] - best
        return 0.5 * away @ A @ away

    assert_allclose(calibrate(loss, ALL)[:-1], best, atol=1e-3)


def test_deviations_or_all_of_f_are_scaled():
    g = torch.Generator().manual_seed(0)
    mean, var = torch.randn(2, 3, 5, 1, generator=g, dtype=torch.float64)
    q, choice = Marginals(mean, var.square()), Calibration(log_scale=0.7, mean_shrinkage=0.5)
    near = 0.5 * (mean + mean.mean(0))
    wide = scaled(q, choice, None)
    assert_close(wide.mean, near)
    assert_close(wide.var, math.exp(1.4) * q.var)
    doubtful = scaled(q, choice._replace(disagreement_scale=0.3), None)
    assert_close(doubtful.mean, near)
    assert_close(doubtful.var, wide.var + 0.09 * mean.var(0, correction=0))
    centre = torch.tensor([2.0], dtype=torch.float64)
    sure = scaled(q, choice, centre)
    assert_close(sure.mean, 2.0 + math.exp(0.7) * (near - 2.0))
    assert_close(sure.var, wide.var)


def test_noise_is_stretched():
    like = torch.ones(1, dtype=torch.float64)
    assert_close(
        stretched(Laplace(0.5 * like), like, Calibration(0.3), True).scale,
        0.5 * math.exp(0.3) * like,
    )
    choice = Calibration(0.3, tails=-math.log(2.0))
    heavier = stretched(SharedStudentT(0.5 * like, 6.0 * like), like, choice, False)
    assert_close(heavier.scale, 0.5 * like)
    assert_close(heavier.df, 4.0 * like)
    assert heavier.outliers == (0.0, 1.0)
    choice = Calibration(log_odds=-math.log(4.0), log_width=math.log(3.0))
    wider = stretched(SharedStudentT(0.5 * like), like, choice, True)
    assert_allclose(wider.outliers, (0.2, 3.0))
    assert repr(wider) == "SharedStudentT(scale=[0.5], df=4, outliers=(0.2, 3))"


# ---- the exponent of deviations ----------------------------------------------------------------


def flat(n, exponent, n_outputs=1):
    """Rows whose deviations vary more than two members say, by this exponent."""
    g = torch.Generator().manual_seed(1)
    z, log_std = torch.randn(2, n, n_outputs, generator=g, dtype=torch.float64)
    y = (exponent * log_std).exp() * z
    q = Marginals(torch.zeros_like(z).repeat(2, 1, 1), (2.0 * log_std).exp().repeat(2, 1, 1))
    noise = Gaussian(1e-9 * torch.ones(n_outputs).double()).requires_grad_(False)
    return HeldOut(Rows(y), q, noise, True)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_deviations_that_are_too_flat_are_found(n_outputs):
    assert_allclose(flat(5000, 1.3, n_outputs).spread(UNCHANGED).exponent, 1.3, atol=0.05)
    assert_allclose(flat(5000, 1.0, n_outputs).spread(UNCHANGED).exponent, 1.0, atol=0.05)


def test_a_few_rows_move_the_exponent_little():
    assert 1.0 < flat(30, 1.5).spread(UNCHANGED).exponent < 1.3
    assert 1.0 < flat(5, 1.5).spread(UNCHANGED).exponent < 1.1


def test_a_row_of_weight_two_is_two_rows_to_the_exponent():
    held_out = flat(300, 1.3)
    twice = torch.arange(300).repeat(2)
    q = Marginals(*(a[:, twice] for a in held_out.q))
    both = held_out._replace(rows=held_out.rows[twice], q=q)
    weighted = held_out._replace(
        rows=Rows(held_out.rows.y, torch.full((300,), 2.0, dtype=torch.float64))
    )
    (a, exponent), (b, same) = (each.spread(UNCHANGED) for each in (both, weighted))
    assert_allclose(exponent, same, rtol=1e-4)
    assert_close(a, b, rtol=1e-4, atol=0.0)


class EverywhereTheSame(Gaussian):
    """Noise that does not ask for the scales of rows."""

    @property
    def noise_variance(self):
        return self.log_noise.exp()


def test_one_member_has_no_exponent():
    """Its posterior is no mixture that deviations could be spread in."""
    held_out = flat(20, 1.0)
    one = held_out._replace(q=Marginals(*(a[:1] for a in held_out.q)))
    fixed = held_out._replace(learns_noise=False)
    same = held_out._replace(likelihood=EverywhereTheSame())
    assert same.spread(UNCHANGED) is None
    assert [each.spread(UNCHANGED) is None for each in (held_out, one, fixed)] == [
        False,
        True,
        True,
    ]


SPREADS = [("shared_student_t", "input"), ("gaussian", "constant"), ("laplace", "input")]


@pytest.fixture(scope="module", params=SPREADS, ids=str)
def spread_out(request):
    """Two members, two outputs in units of their own, and the model with its deviations spread."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (120, 1))
    y = np.sin(X) + np.exp(0.5 * X) * rng.standard_normal((120, 2))
    likelihood, noise = request.param
    plain = DeepKernelEnsembleRegressor(
        likelihood=likelihood, noise=noise, n_estimators=2, max_iter=5, random_state=0
    ).fit(X, y * [1.0, 50.0])
    spread = Spread(torch.tensor([1.4, 0.9], dtype=torch.float64), 1.5)
    model, parts = copy.copy(plain), plain.posterior_.parts
    for part in parts:
        part.likelihood.reach = None  # of outliers, which does not change with the spread
    plain.posterior_ = MixturePosterior(parts, 0.8, 0.3)
    model.posterior_ = MixturePosterior(parts, 0.8, 0.3, spread)
    return plain, model


@pytest.mark.slow
@slow_cases("laplace")
@by_default("shared")
def test_means_stay_and_deviations_are_spread(spread_out):
    plain, _ = spread_out
    X, unit = np.linspace(-3, 3, 40)[:, None], plain._y_scaling.scale
    (mean, std), (same, other) = (m.predict(X, return_std=True) for m in spread_out)
    assert_allclose(same, mean, rtol=1e-9)
    ratio = [1.4, 0.9] * (std / unit) ** 0.5
    assert_allclose(other, ratio * std, rtol=1e-9)
    ends = (m.predict_interval(X, 0.8) for m in spread_out)
    expected, found = (np.moveaxis(end, 1, 0) - mean for end in ends)
    assert_allclose(found, ratio * expected, rtol=1e-6, atol=1e-9)
    latent = (m.predict_std(X, latent=True) for m in spread_out)
    assert_allclose(ratio * next(latent), next(latent), rtol=1e-9)


@pytest.mark.slow
@slow_cases("laplace")
@by_default("gaussian")
def test_the_spread_distribution_is_one(spread_out):
    """Distribution function, intervals, densities, and draws."""
    _, model = spread_out
    X, z = np.array([[1.5]]), np.linspace(-8.0, 8.0, 2001)
    mean, std = (part[0] for part in model.predict(X, return_std=True))
    grid = mean + np.sinh(z)[:, None] * std  # far out, and fine near the mean
    cdf = model.predictive_cdf(np.repeat(X, len(z), 0), grid)
    assert (np.diff(cdf, axis=0) >= 0.0).all()
    assert_allclose(cdf[[0, -1]], [[0.0, 0.0], [1.0, 1.0]], atol=1e-6)
    ends = model.predict_interval(X, 0.8)[0]
    assert_allclose(model.predictive_cdf(np.repeat(X, 2, 0), ends)[:, 0], [0.1, 0.9], atol=1e-8)
    draws = model.sample_y(X, 20_000, random_state=0)[0]
    assert_allclose(draws.mean(1), mean, atol=0.03 * std.max())
    for j in range(2):
        assert_allclose((draws[j] < ends[:, [j]]).mean(1), [0.1, 0.9], atol=0.01)
        of_draws = np.searchsorted(np.sort(draws[j]), grid[:, j]) / draws.shape[1]
        assert np.abs(of_draws - cdf[:, j]).max() < 0.015


@pytest.mark.slow
def test_the_spread_density_is_that_of_its_distribution(outlying):
    model = DeepKernelEnsembleRegressor(n_estimators=2, max_iter=2, random_state=0)
    model = fitted_once(model, *outlying)
    spread = Spread(torch.tensor([1.4], dtype=torch.float64), 1.5)
    model.posterior_ = MixturePosterior(model.posterior_.parts, 0.8, 0.3, spread)
    mean, std = (part.item() for part in model.predict([[1.5]], return_std=True))
    z = np.linspace(-10.0, 10.0, 4001)
    rows, y = np.full((len(z), 1), 1.5), mean + std * np.sinh(z)
    p = np.exp(model.log_predictive_density(rows, y))
    assert_allclose(trapezoid(p, y), 1.0, atol=1e-4)
    found, cdf = cumulative_trapezoid(p, y, initial=0.0), model.predictive_cdf(rows, y)
    assert_allclose(found, cdf, atol=1e-4)
    assert_allclose(trapezoid(p * y, y), mean, atol=1e-2 * std)


@pytest.mark.slow
@slow_cases("laplace")
def test_covariances_are_spread(spread_out):
    plain, model = spread_out
    X = np.linspace(-2, 2, 5)[:, None]
    (_, cov), (_, other) = (m.predict(X, return_cov=True) for m in spread_out)
    if "student" not in repr(model.likelihood_):
        ratio = model.predict_std(X) / plain.predict_std(X)
        assert_allclose(other, ratio[:, None] * cov * ratio, rtol=1e-8)
    assert_allclose(np.sqrt(other[range(5), range(5)]), model.predict_std(X), rtol=1e-8)
    draws = model.sample_y(X, 8000, random_state=0, latent=True)  # (5, 2, S)
    _, cov = model.predict(X, return_cov=True, latent=True)
    for j in range(2):
        size = np.sqrt(np.outer(cov[..., j].diagonal(), cov[..., j].diagonal()))
        assert_allclose(np.cov(draws[:, j]) / size, cov[..., j] / size, atol=0.08)


@pytest.mark.slow
@slow_cases("shared")
def test_spread_predictions_do_not_depend_on_the_batch_and_survive_pickling(spread_out):
    _, model = spread_out
    X = np.linspace(-3, 3, 11)[:, None]
    whole = model.predict_interval(X, 0.9)
    alone = np.concatenate([model.predict_interval(row[None], 0.9) for row in X])
    assert_allclose(alone, whole, rtol=1e-9)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict_interval(X, 0.9), whole)
    assert set(model.posterior_.state_dict()) >= {"factor"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Errors have heavy tails")  # there are outliers
def test_the_unit_of_y_changes_nothing_about_its_spread(outlying):
    X, y = outlying
    y = y * np.exp(0.7 * X[:, 0])
    models = [
        DeepKernelEnsembleRegressor(
            likelihood="gaussian", noise="constant", n_estimators=2, max_iter=6, random_state=0
        ).fit(X, z)
        for z in (y, 8.0 * y + 1024.0)
    ]
    assert abs(models[0].posterior_.spread.exponent - 1.0) > 0.01
    query = np.linspace(-3, 3, 7)[:, None]
    a, b = (model.predict_interval(query) for model in models)
    assert_allclose(8.0 * a + 1024.0, b, rtol=1e-5)


# ---- skew --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixture():
    """Three components in two rows of two outputs, with outliers, and their skew predictions."""
    g = torch.Generator().manual_seed(3)
    mean, root = torch.randn(2, 3, 2, 2, generator=g, dtype=torch.float64)
    base = SharedStudentT(torch.tensor([0.3, 0.5]).double(), torch.tensor([5.0, 9.0]).double())
    base.outliers = (0.1, 2.0)
    base.requires_grad_(False)
    return Marginals(mean, root.square()), Skewed(base, torch.tensor([0.4, -0.7]).double())


def test_skewness_is_a_map_and_its_inverse(mixture):
    q, skewed = mixture
    y = torch.linspace(-1e4, 1e4, 2001, dtype=torch.float64)[:, None, None]
    for of_rows in (skewed.map(q), Skewed(skewed.symmetric, torch.zeros(2).double()).map(q)):
        mapped = of_rows(y)
        assert (mapped.diff(dim=0) > 0.0).all()
        assert_close(of_rows.inverse(mapped), y.expand_as(mapped), rtol=1e-7, atol=1e-7)
    assert_close(mapped, y.expand_as(mapped), rtol=1e-7, atol=1e-7)  # a skewness of 0


@pytest.mark.parametrize("j", [0, 1])
def test_skew_densities_are_proper_and_keep_their_moments(mixture, j):
    q, skewed = mixture
    alone = Marginals(*(part[..., j : j + 1] for part in q))
    base = SharedStudentT(skewed.symmetric.scale[[j]], skewed.symmetric.df[[j]])
    base.outliers = skewed.symmetric.outliers
    base.requires_grad_(False)
    of_one = Skewed(base, skewed.skew[[j]])
    grid = torch.linspace(-14.0, 14.0, 20_001, dtype=torch.float64).sinh()
    rows = Marginals(*(part[:, :1].expand(-1, len(grid), -1) for part in alone))
    p, y = of_one.log_predictive(grid[:, None], rows).exp().numpy(), grid.numpy()
    assert_allclose(trapezoid(p, y), 1.0, atol=1e-6)
    cdf = of_one.cdf(grid[:, None], rows).mean(0)[:, 0].numpy()
    assert_allclose(cumulative_trapezoid(p, y, initial=0.0), cdf, atol=1e-5)
    mean, var = (part[0, 0].item() for part in of_one.moments(alone).mixture_moments())
    assert_allclose(trapezoid(p * y, y), mean, atol=1e-3)
    assert_allclose(trapezoid(p * (y - mean) ** 2, y), var, rtol=5e-3)
    third = trapezoid(p * np.arctan((y - mean) / np.sqrt(var)) ** 3, y)
    same = base.log_predictive(grid[:, None], rows).exp().numpy()
    before = trapezoid(same * np.arctan((y - mean) / np.sqrt(var)) ** 3, y)
    assert (third > before + 0.005) if j == 0 else (third < before - 0.005)


def test_skew_quantiles_are_the_inverse_of_the_distribution(mixture):
    q, skewed = mixture
    for probability in (0.001, 0.3, 0.975):
        y = skewed.quantile(q, probability)
        assert_close(skewed.cdf(y, q).mean(0), torch.full_like(y, probability), rtol=1e-8, atol=0.0)
    # Of both outputs, as they are drawn from one member: the marginals are those of the parts.
    joint = skewed.log_predictive(y, q)
    assert joint.shape == (2,)
    unskewed = Skewed(skewed.symmetric, torch.zeros(2).double())
    assert_close(unskewed.log_predictive(y, q), skewed.symmetric.log_predictive(y, q))


@torch.no_grad()
def test_outliers_reach_no_further_than_errors():
    """Of two groups of y: deviations were 5.8 times the errors, as uncertain rows' were 8."""
    g = torch.Generator().manual_seed(0)
    certain = torch.arange(400) < 300
    upper = torch.rand(400, generator=g) < torch.where(certain, 0.05, 0.4)
    y = torch.where(upper, 1.0, -1.0) + 0.02 * torch.randn(400, generator=g)
    mean, std = torch.where(certain, -1.0, -0.2), torch.where(certain, 0.02, 0.7)
    q = Marginals(mean[None, :, None].double(), std.square()[None, :, None].double())
    likelihood = SharedStudentT(torch.full((1,), 0.02).double())
    held_out = HeldOut(Rows(y[:, None].double()), q, likelihood, True)
    choice = held_out.best()
    assert choice.reach == tuple((held_out.rows.y - q.mean[0]).abs().amax(0).tolist())
    q, noise = held_out.mixture(choice)
    assert noise.reach == choice.reach
    two = torch.cat([held_out.rows.y, 5.0 * held_out.rows.y], 1)
    both = held_out._replace(rows=Rows(two), q=Marginals(*(a.repeat(1, 1, 2) for a in held_out.q)))
    assert both.reach == tuple((two - both.q.mean[0]).abs().amax(0).tolist())
    mean, var = noise.moments(q).mixture_moments()
    rms_error = (held_out.rows.y - mean).square().mean().sqrt()
    assert 0.7 < var.mean().sqrt() / rms_error < 1.0


def skew_rows(n, skew):
    """Rows with these skewnesses of y, and what two members say of them."""
    g = torch.Generator().manual_seed(4)
    shape = (n, len(skew))
    mean, root = torch.randn(2, *shape, generator=g, dtype=torch.float64)
    q = Marginals(mean.repeat(2, 1, 1), root.square().repeat(2, 1, 1))
    base = SharedStudentT(torch.ones(len(skew)).double(), 8.0 * torch.ones(len(skew)).double())
    base.requires_grad_(False)
    f = mean + root * torch.randn(shape, generator=g, dtype=torch.float64)
    y = Skewed(base, torch.tensor(skew).double()).map(q)(
        base.sample_around(f, Marginals(mean, root.square()), g)
    )
    return HeldOut(Rows(y), q, base, True)


@pytest.mark.slow
def test_skewness_is_found():
    held_out = skew_rows(6000, [0.5, -0.3])
    assert_allclose(held_out.skew(UNCHANGED, None), [0.5, -0.3], atol=0.05)
    mirrored = held_out._replace(
        rows=Rows(-held_out.rows.y), q=held_out.q._replace(mean=-held_out.q.mean)
    )
    found = held_out.skew(UNCHANGED, None)
    assert_allclose(mirrored.skew(UNCHANGED, None), -found, atol=1e-4)
    assert abs(skew_rows(6000, [0.0]).skew(UNCHANGED, None).item()) < 0.05
    assert 0.0 < skew_rows(20, [0.5]).skew(UNCHANGED, None).item() < 0.25
    gaussian = held_out._replace(likelihood=Gaussian(torch.ones(2)))
    assert gaussian.skew(UNCHANGED, None) is None


@pytest.mark.slow
def test_skew_predictions_are_of_one_distribution(outlying):
    plain = DeepKernelEnsembleRegressor(n_estimators=2, max_iter=2, random_state=0)
    plain = fitted_once(plain, *outlying)
    model, parts = copy.copy(plain), plain.posterior_.parts
    spread = Spread(torch.tensor([1.2]).double(), 1.3)
    plain.posterior_ = MixturePosterior(parts, 0.8, 0.3, spread)
    model.posterior_ = MixturePosterior(parts, 0.8, 0.3, spread, torch.tensor([0.6]).double())
    X = np.linspace(-3.0, 3.0, 5)[:, None]
    for a, b in zip(plain.predict(X, True), model.predict(X, True), strict=True):
        assert_allclose(a, b, rtol=1e-12)
    (_, a), (_, b) = (m.predict(X, return_cov=True) for m in (plain, model))
    assert_allclose(a, b, rtol=1e-12)
    mean, std = model.predict(X, return_std=True)
    draws, ends = model.sample_y(X, 20_000, random_state=0), model.predict_interval(X, 0.8)
    assert_allclose(draws.mean(1), mean, atol=0.03 * std.max())
    assert_allclose((draws[..., None] < ends[:, None]).mean(1), [[0.1, 0.9]] * 5, atol=0.01)
    assert_allclose(model.predictive_cdf(X, ends[:, 1]), 0.9, atol=1e-9)
    latent = [m.predict_interval(X, 0.8, latent=True) for m in (plain, model)]
    assert_array_equal(*latent)
    again = pickle.loads(pickle.dumps(model))
    alone = [again.predict_interval(row[None], 0.8)[0] for row in X]
    assert_allclose(alone, ends, rtol=1e-9)
    step = 1e-5
    p = (model.predictive_cdf(X, mean + step) - model.predictive_cdf(X, mean - step)) / (2.0 * step)
    assert_allclose(model.log_predictive_density(X, mean), np.log(p), rtol=1e-5, atol=1e-5)


# ---- classes -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noisy():
    """Classes that are drawn with probabilities of 0.2 and 0.8, among useless inputs."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1200, 6))
    p = np.where(X[:, 0] > 0, 0.8, 0.2)
    return X, (rng.uniform(size=1200) < p).astype(int)


def ensemble(**params):
    common = {"n_estimators": 2, "random_state": 0}
    return DeepKernelEnsembleClassifier(**{**common, "max_iter": 60, **params})


@pytest.fixture(scope="module")
def fitted(noisy):
    X, y = noisy
    return ensemble().fit(X[:300], y[:300])


@pytest.mark.slow
def test_overconfident_networks_are_made_less_sure(fitted, noisy):
    X, y = noisy
    log_p = fitted.predict_log_proba(X[300:])
    found = -log_p[np.arange(900), y[300:]].mean()
    assert found < math.log(2.0) - 0.05

    def tempered(log_factor):
        logits = math.exp(log_factor) * (log_p[:, 1] - log_p[:, 0])
        return np.logaddexp(0.0, np.where(y[300:] == 1, -logits, logits)).mean()

    best = minimize_scalar(tempered, bounds=(-3.0, 3.0), method="bounded").fun
    assert found < best + 0.03


@pytest.mark.slow
def test_every_other_network_of_classes_is_plain(noisy):
    X, y = noisy
    network = ensemble(max_iter=1).fit(X[:200], y[:200]).posterior_
    shares = [part.model.features.network[1].share.item() for part in network.parts]
    assert shares == [1.0, 0.0]
    network = ensemble(max_iter=1, n_waves=4).fit(X[:200], y[:200]).posterior_
    assert all(part.model.features.network[1].share.item() == 1.0 for part in network.parts)


def test_plain_members_see_inputs_alone():
    g = torch.Generator().manual_seed(0)
    X = torch.randn(7, 3, generator=g)
    layer = PeriodicInputs(3, 3, 4, torch.arange(3), 2, g)
    Z = layer(X)
    assert (Z[[0, 2], :, :-3] != 0.0).all()
    assert (Z[1, :, :-3] == 0.0).all()
    assert_close(Z[..., -3:], X.expand(3, -1, -1))
    layer.keep_(1)
    assert_close(layer(X), Z[1:2])


def test_a_likelihood_of_predictions_has_no_bound(noisy):
    X, y = noisy
    model = DLMRegressor(likelihood="shared_student_t", loss="elbo", n_inducing=5)
    with pytest.raises(ValueError, match="has no lower bound on the marginal likelihood"):
        model.fit(X[:50], y[:50] + 0.1 * X[:50, 0])


# ---- where there is little to go by --------------------------------------------------------------


def test_a_search_without_a_finite_loss_changes_nothing():
    usual = Calibration(-0.5)
    for value in (math.inf, math.nan):
        assert calibrate(lambda choice, value=value: value, NO_OUTLIERS, usual) == usual
        assert calibrate(lambda choice, value=value: value, ALL) == Calibration()
    assert most_suitable(lambda scales: np.full(len(scales), np.nan)) == Calibration()


def test_few_rows_of_folds_change_little():

    def losses(scales):
        return np.array(scales) / 4.0  # one nat less from one end to the other

    assert abs(most_suitable(losses).log_scale) <= 0.125
    assert most_suitable(lambda scales: 1e4 * losses(scales)).log_scale == -3.0


@pytest.mark.parametrize("best", [-3.0, -2.9, -1.4, 0.0, 0.6, 1.0])
def test_the_best_confidence_is_found_among_all(best):
    """By half as many losses."""
    n_losses = 0

    def losses(scales):
        nonlocal n_losses
        n_losses += len(scales)
        return 1e3 * np.abs(np.array(scales) - best)

    totals = losses(CONFIDENCES) + 0.5 * (CONFIDENCES / PRIOR.log_scale) ** 2
    n_losses = 0
    assert most_suitable(losses).log_scale == CONFIDENCES[totals.argmin()]
    assert n_losses <= N_CONFIDENCES


def test_a_search_that_is_late_returns_the_best_so_far():
    losses = iter([3.0, 1.0])
    now = Deadline(0.0, lambda: 1.0)
    found = calibrate(lambda choice: next(losses), only("log_scale"), Calibration(0.0), now)
    assert abs(found.log_scale) == 0.5  # those near the usual come first: by exp(-2), 90 % held .14


def test_a_time_limit_of_the_user_s_is_not_the_search_s():
    """Such as a signal's handler that raises in the middle of a fit."""

    def loss(choice):
        raise TimeoutError("the user's")

    with pytest.raises(TimeoutError, match="the user's"):
        calibrate(loss, only("log_scale"))


@pytest.mark.slow
def test_counts_are_drawn_as_counts():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (120, 2))
    y = rng.poisson(np.exp(1.0 + X[:, 0]))
    params = {"hidden_layer_sizes": (8,), "max_iter": 20, "random_state": 0}
    model = DeepKernelEnsembleRegressor(likelihood="poisson", n_estimators=2, **params)
    draws = model.fit(X, y).sample_y(X[:20], 4000, random_state=0)
    assert (draws >= 0).all()
    assert_allclose(draws, np.round(draws))
    assert_allclose(draws.mean(1), model.predict(X[:20]), rtol=0.15)


@pytest.mark.slow
def test_what_few_rows_change_is_near_what_folds_tell(monkeypatch):
    """Sixteen rows that happen to be predicted well do not make all intervals narrow."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((160, 2))
    y = X[:, 0] + 0.3 * rng.standard_normal(160)
    best, unseen, found = HeldOut.best, EnsembleObjective.unseen, []

    def lucky(self, X, rows):  # y is what is predicted, at these rows
        rows, q, latent = unseen(self, X, rows)
        return replace(rows, y=q.mean.mean(0)), q, latent

    def recorded(self, *args):
        found.append(best(self, *args))
        return found[-1]

    monkeypatch.setattr(EnsembleObjective, "unseen", lucky)
    monkeypatch.setattr(HeldOut, "best", recorded)
    DeepKernelEnsembleRegressor(n_estimators=8, max_iter=5, random_state=0).fit(X, y)
    of_folds, of_mixture = found[:2]
    assert abs(of_mixture.log_scale - of_folds.log_scale) < 0.2
    assert abs(of_mixture.log_width - of_folds.log_width) < 0.2


@pytest.mark.slow
def test_what_is_predicted_is_what_was_chosen(noisy, monkeypatch):
    """Without a closing pass, the mixture's score of unseen rows is the least that there was."""
    X, y = noisy
    chosen = []

    def calibrate(self, X, rows):
        original(self, X, rows)
        n = rows.n_unseen
        q = self.functions(self.model.features.members(X[:n]), self.present_roots())[0].double()
        choice = self.calibration
        at_rows = rows[:n].to(torch.float64)
        mixed = scaled(q, choice, self.model.mean.value.double())
        log_p = self.model.likelihood.of(at_rows).log_predictive(at_rows.y, mixed)
        chosen.append((X[:n].double(), at_rows.y, log_p))

    original = EnsembleObjective.calibrate
    monkeypatch.setattr(EnsembleObjective, "calibrate", calibrate)
    monkeypatch.setattr(EnsembleObjective, "closes", lambda self, rows: False)
    model = ensemble(max_iter=20).fit(X[:300], y[:300])
    rows, codes, log_p = chosen[0]
    q, likelihood = model.posterior_.predictive(rows, Rows(codes))
    assert_close(likelihood.log_predictive(codes, q), log_p.double(), rtol=1e-5, atol=1e-6)


# ---- one model -----------------------------------------------------------------------------------


def sparse(**params):
    return DLMRegressor(**{"n_inducing": 15, "max_iter": 10, "random_state": 0, **params})


@pytest.fixture(scope="module")
def outlying():
    """A curve whose errors are sometimes ten times as large."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (600, 1))
    width = np.where(rng.uniform(size=600) < 0.1, 1.0, 0.1)
    return X, np.sin(X[:, 0]) + width * rng.standard_normal(600)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [[0.1, 1.0], 0.5])
@slow_cases("beta0")
def test_deviations_are_scaled_and_means_stay(beta, outlying):
    model = sparse(beta=beta, calibrate=True, max_iter=4).fit(*outlying)
    plain = sparse(beta=beta, calibrate=False, max_iter=4).fit(*outlying)
    query = np.linspace(-4, 4, 20)[:, None]
    (mean, std), (same, other) = (one.predict(query, return_std=True) for one in (plain, model))
    assert_allclose(same, mean, rtol=1e-6, atol=1e-8)
    assert np.ptp(other / std) < 1e-6
    factor = other[0] / std[0]
    assert abs(factor - 1.0) > 1e-3
    assert_allclose(model.noise_variance_, factor**2 * plain.noise_variance_, rtol=1e-6)
    cov = plain.predict(query[:3], return_cov=True)[1]
    assert_allclose(model.predict(query[:3], return_cov=True)[1], factor**2 * cov, rtol=1e-6)


def held_out_of(X, y, fraction):
    data = observations(Data(X, y[:, None]))[0]
    return data[split_rows(data, fraction, resolve_seed(0), False)[1]]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"noise": "input"},
        {"noise": "input", "likelihood": "shared_student_t"},
        {"kernel": Matern() + WhiteKernel(0.3, "fixed")},
        {"likelihood": "shared_student_t"},
    ],
    ids=repr,
)
@slow_cases(r"noise': 'input'\}", r"shared_student_t'\}$")
def test_models_predict_what_the_search_promised(params, outlying, monkeypatch):
    promised, best = [], HeldOut.best

    def remembered(self):
        promised.append((self, found := best(self)))
        return found

    monkeypatch.setattr(HeldOut, "best", remembered)
    model = sparse(beta=[1.0], refit=False, **params).fit(*outlying)
    ((held_out, choice),) = promised
    data = held_out_of(*outlying, 0.1)
    found = model.log_predictive_density(data.X, data.y[:, 0]).sum()
    unit = model._y_scaling.scale.item()
    expected = -held_out.loss(choice) - len(data) * np.log(unit)
    assert_allclose(found, expected, rtol=1e-7)
    if "kernel" in params:
        assert_allclose(model.noise_variance_, 0.3 * unit**2)


@pytest.mark.slow
def test_warm_starts_go_on_from_what_was_trained(outlying):
    """Changes do not add up."""
    model = sparse(beta=[1.0], warm_start=True, noise="input", max_iter=2)
    plain = clone(model).set_params(calibrate=False)
    for _ in range(3):
        model.fit(*outlying)
        plain.fit(*outlying)
    query = np.linspace(-3, 3, 7)[:, None]
    assert_allclose(model.predict(query), plain.predict(query), rtol=1e-6)
    trained, _ = model.posterior_.model.trained_noise
    assert_close(trained.noise_variance, plain.posterior_.model.likelihood.noise_variance)


@pytest.mark.slow
def test_the_bound_is_that_of_the_calibrated_model(outlying):
    X, y = outlying
    model = sparse(beta=[1.0]).fit(X, y)
    inputs, rows, posterior = model._labelled(Data(X, y[:, None]))
    q = posterior.marginals(inputs)
    expected = posterior.likelihood.expected_log_prob(rows.y, q).sum()
    expected = expected.item() - posterior.weights.kl().sum().item()
    expected -= 600 * np.log(model._y_scaling.scale.item())
    assert_allclose(model.log_marginal_likelihood_value_, expected, rtol=1e-8)


@pytest.mark.slow
def test_rows_held_out_are_predicted_better(outlying):
    X, y = outlying
    held_out = held_out_of(X, y, 0.1)
    model, plain = (
        sparse(beta=[1.0], refit=False, calibrate=c).fit(X, y).log_predictive_density
        for c in ("auto", False)
    )
    X, y = held_out.X, held_out.y[:, 0]
    assert model(X, y).sum() > plain(X, y).sum() + 0.1


@pytest.mark.slow
def test_tails_and_outliers_of_one_model(outlying):
    X, y = outlying
    model = sparse(
        likelihood="shared_student_t", beta=[1.0], validation_fraction=0.3, max_iter=150
    ).fit(X, y)
    share, width = model.likelihood_.outliers
    assert 0.05 < share < 0.2
    assert 4.0 < width < 20.0
    inside = model.predict_interval(X, 0.8)
    assert 0.75 < ((inside[:, 0] < y) & (y < inside[:, 1])).mean() < 0.85


@pytest.mark.slow
@pytest.mark.parametrize("params", [{"loss": "square"}, {"likelihood": "poisson"}], ids=repr)
@slow_cases("square")
def test_where_there_is_nothing_to_calibrate(params, outlying):
    X, y = outlying
    y = np.round(np.exp(y)) if "likelihood" in params else y
    fits = [sparse(beta=[1.0], calibrate=c, max_iter=3, **params).fit(X, y) for c in (True, False)]
    query = np.linspace(-4, 4, 20)[:, None]
    assert_allclose(fits[0].predict(query), fits[1].predict(query), rtol=1e-12)


def test_each_output_has_a_scale_of_its_own():
    rng = np.random.default_rng(0)
    mean, std = np.zeros((400, 2)), np.exp(0.3 * rng.normal(size=(400, 2)))
    y = np.array([1.4, 0.5]) * std * rng.normal(size=(400, 2))

    def log_density(y):
        return -0.5 * np.square(y / std).sum(1) - np.log(std).sum(1)

    both = best_spread(log_density, y, mean, std)
    assert_allclose(both.ratio(std).mean(0), [1.4, 0.5], rtol=0.1)
    assert_allclose(both.exponent, 1.0, atol=0.15)

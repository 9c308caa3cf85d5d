"""Deep kernel ensembles, noise of inputs and its likelihoods, against what they stand for."""

import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import trapezoid
from scipy.stats import norm, t
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, DotProduct, WhiteKernel
from torch.testing import assert_close

from skgpstoch import (
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
    DLMRegressor,
    NNGPRegressor,
    SCGDGaussianProcessRegressor,
    SVGPRegressor,
)
from skgpstoch.data.rows import Rows
from skgpstoch.estimators import runs
from skgpstoch.likelihoods import Gaussian, Laplace, SharedStudentT, StudentT
from skgpstoch.likelihoods.base import differentiate
from skgpstoch.losses import LogLoss
from skgpstoch.maths.gaussian import Marginals
from skgpstoch.methods.deep_kernel_ensemble.plan import ensemble_plan, scale_rate
from skgpstoch.models.calibration.held_out import ITERATES_SCALES
from skgpstoch.models.features.network import NetworkFeatures, multilayer_perceptron
from skgpstoch.models.mixture import MixturePosterior
from skgpstoch.models.sparse import ConstantMean, RowScale, SparseModel
from skgpstoch.objectives.ensemble import EnsembleObjective
from skgpstoch.training.history import History
from skgpstoch.training.recipes import networks
from skgpstoch.training.recipes.plan import Plan, Sizes, Training
from skgpstoch.training.recipes.recipe import Problem
from skgpstoch.training.tables import InMemory

QUICK = {"hidden_layer_sizes": (16,), "max_iter": 20, "n_estimators": 2, "random_state": 0}


def finite(**params):
    usual = {"likelihood": "gaussian", "noise": "constant"}
    return DeepKernelEnsembleRegressor(**{**QUICK, **usual, **params})


@pytest.fixture(scope="module")
def funnel():
    """Noise of sin(x) that grows with x."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (600, 1))
    std = 0.05 * np.exp(0.5 * (X[:, 0] + 3.0))
    return X, np.sin(X[:, 0]) + std * rng.standard_normal(600)


@pytest.fixture(scope="module")
def fitted(funnel):
    return finite(likelihood="shared_student_t", noise="input", max_iter=80).fit(*funnel)


# ---- likelihoods of rows -----------------------------------------------------------------------


def some_rows(n=40, P=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    y, mean = torch.randn(2, n, P, generator=g, dtype=torch.float64)
    var, ratio = torch.rand(2, n, P, generator=g, dtype=torch.float64) + 0.1
    return 3.0 * y, Marginals(mean[None], var[None]), ratio


def with_outliers(scale):
    likelihood = SharedStudentT(scale)
    likelihood.outliers = 0.2, 3.0
    return likelihood


def within_reach(scale):
    likelihood = with_outliers(scale)
    likelihood.reach = 1.5, 0.9
    return likelihood


OF_NO_MODEL = [
    ((1.0, 2.0), None),
    ((-0.1, 2.0), None),
    ((0.1, -2.0), None),
    ((0.1, 0.5), None),
    ((0.1, 2.0), 0.0),
    ((0.1, 2.0), ()),
    ((0.1, 2.0), [1.0, 1.0]),
    ((0.1, math.nan), None),
    ((0.1, 2.0), (1.0,)),
    ((0.1, 2.0), (1.0, -1.0)),
    ((0.1, 2.0), (1.0, "1")),
]
REACHES = [None, (1.5, 0.9), (0.01, 100.0)]
ADDITIVE = [Gaussian, Laplace, StudentT, SharedStudentT, with_outliers]


@pytest.mark.parametrize("make", ADDITIVE)
@torch.no_grad()
def test_the_scale_of_a_row_is_that_of_a_likelihood_of_its_own(make):
    y, q, ratio = some_rows(6)
    likelihood = make(torch.tensor([0.3, 0.7], dtype=torch.float64))
    of_rows = likelihood.scaled(ratio)
    for i in range(6):
        row = Marginals(q.mean[:, [i]], q.var[:, [i]])
        own = likelihood.in_units(ratio[i])
        for function in ("log_predictive", "expected_log_prob", "cdf"):
            together = getattr(of_rows, function)(y, q)
            alone = getattr(own, function)(y[[i]], row)
            index = (slice(None), [i]) if function == "cdf" else [i]
            assert_close(together[index], alone, rtol=1e-10, atol=1e-12)
        assert_close(of_rows.quantile(q, 0.9)[[i]], own.quantile(row, 0.9), rtol=1e-8, atol=1e-9)
        assert_close(of_rows.moments(q).var[:, [i]], own.moments(row).var, rtol=1e-12, atol=0)
        at = of_rows.at_rows(torch.tensor([i]))
        assert_close(at.log_predictive(y[[i]], row), own.log_predictive(y[[i]], row))


@pytest.mark.parametrize("make", [*ADDITIVE, within_reach])
@pytest.mark.parametrize("function", ["expected", "predictive"])
def test_gradients_of_rows_with_scales(make, function):
    y, q, ratio = some_rows()
    ratio.requires_grad_()
    likelihood = make(torch.tensor([0.3, 0.7], dtype=torch.float64))
    of_rows = likelihood.scaled(ratio)
    value_of = of_rows.expected_log_prob if function == "expected" else of_rows.log_predictive
    expected = differentiate(of_rows, value_of, y, q)
    if function == "expected":
        found = (of_rows.expected_log_prob(y, q), *of_rows.expected_gradients(y, q)[1:])
    else:
        found = of_rows.predictive_gradients(y, q)
    assert_close(found, expected, rtol=1e-6, atol=1e-8)
    leaves = [ratio, *likelihood.parameters()]
    slopes = torch.autograd.grad(found[0].sum(), leaves)
    assert_close(slopes, torch.autograd.grad(expected[0].sum(), leaves), rtol=1e-6, atol=1e-8)


def test_quick_gradients_of_student_t_are_close():
    y, q, _ = some_rows(400)
    likelihood = StudentT(torch.tensor([0.3, 0.7], dtype=torch.float64))
    exact = likelihood.predictive_gradients(y, q)
    quick = likelihood.float().predictive_gradients(y.float(), Marginals(*(a.float() for a in q)))
    for a, b in zip(quick, exact, strict=True):
        assert_close(a.double(), b, rtol=2e-3, atol=1e-3)


@torch.no_grad()
def test_a_shared_precision_makes_predictions_student_t():
    y, q, _ = some_rows()
    likelihood = SharedStudentT(torch.tensor([0.3, 0.7], dtype=torch.float64), 5.0).for_outputs(2)
    own = t(5.0, q.mean[0].numpy(), (q.var[0] + likelihood.scale.square()).sqrt().numpy())
    assert_allclose(likelihood.log_predictive(y, q), own.logpdf(y).sum(1), rtol=1e-12)
    assert_allclose(likelihood.cdf(y, q)[0], own.cdf(y), rtol=1e-12)
    assert_allclose(likelihood.quantile(q, 0.1), own.ppf(0.1), rtol=1e-10)
    assert_allclose(likelihood.moments(q).var[0], own.var(), rtol=1e-12)
    g = torch.Generator().manual_seed(0)
    f = q.mean + q.var.sqrt() * torch.randn(20_000, *y.shape, generator=g, dtype=torch.float64)
    draws = likelihood.sample_around(f, Marginals(q.mean[0], q.var[0]), g)
    below = (draws < likelihood.quantile(q, 0.1)).double().mean(0)
    assert_allclose(below, 0.1, atol=0.01)
    mixture = Marginals(torch.cat([q.mean, q.mean + 2.0]), torch.cat([q.var, q.var]))
    end = likelihood.quantile(mixture, 0.3)
    assert_allclose(likelihood.cdf(end, mixture).mean(0), 0.3, rtol=1e-9)


@pytest.mark.parametrize("reach", REACHES, ids=str)
@torch.no_grad()
def test_outliers_are_rows_with_larger_deviations(reach):
    y, q, ratio = some_rows()
    likelihood = with_outliers(torch.tensor([0.3, 0.7], dtype=torch.float64)).scaled(ratio)
    likelihood.reach = reach
    own = (q.var[0] + likelihood.scale.square()).sqrt().numpy()
    far = 3.0 * own if reach is None else np.clip(3.0 * own, own, np.maximum(own, reach))
    usual, outlier = (t(4.0, q.mean[0].numpy(), scale) for scale in (own, far))
    density = 0.8 * usual.pdf(y) + 0.2 * outlier.pdf(y)
    assert_allclose(likelihood.log_predictive(y, q), np.log(density).sum(1), rtol=1e-12)
    assert_allclose(likelihood.cdf(y, q)[0], 0.8 * usual.cdf(y) + 0.2 * outlier.cdf(y), rtol=1e-12)
    assert_allclose(likelihood.moments(q).var[0], 0.8 * usual.var() + 0.2 * outlier.var())
    alone = likelihood.moments(Marginals(q.mean, 0.0 * q.var)).var
    assert_close(likelihood.noise_variance.expand_as(alone[0]), alone[0])
    for probability in (0.001, 0.1, 0.5, 0.9):
        found = likelihood.cdf(likelihood.quantile(q, probability), q)[0]
        assert_allclose(found, probability, rtol=1e-9)
    g = torch.Generator().manual_seed(0)
    f = q.mean + q.var.sqrt() * torch.randn(20_000, *y.shape, generator=g, dtype=torch.float64)
    draws = likelihood.sample_around(f, Marginals(q.mean[0], q.var[0]), g)
    alone = likelihood.sample_predictive(q, 20_000, g)
    for each in (draws, alone):
        for probability in (0.01, 0.3, 0.9):
            below = (each < likelihood.quantile(q, probability)).double().mean(0)
            assert_allclose(below, probability, atol=0.015)


@pytest.mark.parametrize("make", [SharedStudentT, with_outliers, within_reach])
@torch.no_grad()
def test_noise_of_a_known_f_is_what_predictions_have_without_variance(make):
    y, q, _ = some_rows()
    likelihood = make(torch.tensor([0.3, 0.7], dtype=torch.float64))
    known = Marginals(q.mean, 0.0 * q.var)
    assert_close(likelihood.log_prob(y, q.mean[0]).sum(1), likelihood.log_predictive(y, known))
    f = q.mean.expand(3, -1, -1)
    assert_close(likelihood.log_prob(y, f)[2], likelihood.log_prob(y, q.mean[0]))
    far = likelihood.noise_quantile(0.99)
    assert_close(likelihood.quantile(known, 0.99), q.mean[0] + far)
    draws = likelihood.sample(torch.zeros(20_000, 2), torch.Generator().manual_seed(0))
    assert_allclose((draws < far).double().mean(0), 0.99, atol=0.003)


def test_the_reach_of_outliers_is_in_units_of_y():
    y, q, _ = some_rows()
    likelihood, unit = within_reach(torch.tensor([0.3, 0.7]).double()), torch.tensor([2.0, 50.0])
    other = likelihood.in_units(unit.double())
    assert other.reach == (3.0, 45.0)
    scaled = Marginals(unit * q.mean, unit.square() * q.var)
    expected = likelihood.log_predictive(y, q) - unit.double().log().sum()
    assert_close(other.log_predictive(unit * y, scaled), expected)
    assert_close(other.moments(scaled).var, unit.square() * likelihood.moments(q).var)


@torch.no_grad()
def test_joint_covariances_take_the_least_outliers_of_a_mixture():
    """So that noise, what they leave of a row's variance, is never negative."""
    likelihood, root = within_reach(torch.tensor([0.3, 0.7]).double()), 0.0
    mean = torch.zeros(2, 3, 2, dtype=torch.float64)
    var = torch.tensor([0.01, 4.0]).double()[:, None, None].expand(2, 3, 2)
    V = 4.0 + torch.tensor([0.09, 0.49]).double()
    least = (torch.maximum(V, torch.tensor([1.5, 0.9]).double() ** 2) / V).sqrt()
    half = 0.5 * likelihood.df.double()
    root = half.sqrt() * (torch.lgamma(half - 0.5) - torch.lgamma(half)).exp()
    found = likelihood.joint_root(Marginals(mean, var))
    assert_close(found, ((0.8 + 0.2 * least) * root).expand(3, 2))
    few = likelihood.joint_root(Marginals(mean[:1], var[:1]))
    assert (few > found).all()


@pytest.mark.parametrize(("outliers", "reach"), OF_NO_MODEL)
def test_outliers_of_files_are_some(outliers, reach):
    likelihood = SharedStudentT(torch.ones(2))
    likelihood.outliers, likelihood.reach = outliers, reach
    with pytest.raises(ValueError, match="has no such outliers, or no such reach"):
        likelihood.check_parts()


@pytest.mark.slow
def test_predictions_have_the_reach_of_outliers(fitted):
    parts = [part.likelihood for part in fitted.posterior_.parts]
    assert all(part.outliers[0] > 0.0 and 0.0 < part.reach[0] < 100.0 for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("reach", [None, 0.5])
def test_joint_covariances_are_those_of_draws(funnel, reach):
    """Of members with one precision a row, outliers, and disagreement."""
    model = finite(likelihood="shared_student_t", n_estimators=3, max_iter=5).fit(*funnel)
    model.posterior_.mean_shrinkage, model.posterior_.disagreement_scale = 0.6, 1.5
    for part in model.posterior_.parts:
        part.likelihood.outliers = 0.1, 2.0 if reach is None else 9.0
        part.likelihood.reach = reach and (reach,)
        part.likelihood.log_df_minus_2.fill_(math.log(18.0))
    model.posterior_.likelihood = model.posterior_.parts[0].likelihood
    X = np.linspace(-3, 3, 4)[:, None]
    cov = model.predict(X, return_cov=True)[1]
    draws = model.sample_y(X, 60_000)
    unit = np.sqrt(np.outer(cov.diagonal(), cov.diagonal()))
    assert_allclose(np.cov(draws) / unit, cov / unit, atol=0.02)
    latent = model.predict(X, return_cov=True, latent=True)[1]
    away = ~np.eye(4, dtype=bool)
    assert np.abs(cov / latent - 1.0)[away].max() > 0.05


@torch.no_grad()
def test_disagreement_is_a_part_of_f(funnel):
    """Moments, joint covariances and draws are of the same mixture."""
    posterior = finite(n_estimators=3, max_iter=3).fit(*funnel).posterior_
    X = torch.from_numpy(funnel[0][:6])
    each = [part.marginals(X) for part in posterior.parts]
    q = Marginals(*(torch.cat(both) for both in zip(*each, strict=True)))
    apart = q.mean - q.mean.mean(0)
    posterior.mean_shrinkage, posterior.disagreement_scale = 0.5, 2.0
    posterior.factor = None  # of the spread
    together = posterior.marginals(X)
    assert_close(together.mean, q.mean.mean(0) + 0.5 * apart)
    assert_close(together.var, q.var + 4.0 * apart.square().mean(0))
    total = together.var.mean(0) + together.mean.var(0, correction=0)
    cov = posterior.covariance(X)
    assert_close(cov.diagonal(dim1=-2, dim2=-1).mT, total)
    f = posterior.sample(X, 40_000, torch.Generator().manual_seed(0))[..., 0]
    unit = total.sqrt() @ total.sqrt().mT
    assert_close(torch.cov(f.mT) / unit, cov[0] / unit, rtol=0.0, atol=0.03)
    y = posterior.sample_y(X, Rows(X), 40_000, torch.Generator().manual_seed(1))[..., 0]
    noise = posterior.likelihood.noise_variance
    found, expected = torch.cov(y.mT), cov[0] + noise * torch.eye(6)
    assert_close(found / (unit + noise), expected / (unit + noise), rtol=0.0, atol=0.03)


# ---- the objective -----------------------------------------------------------------------------


def test_members_minimise_what_they_should():
    g = torch.Generator().manual_seed(0)
    n, d, K = 60, 4, 3
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.randn(n, 1, generator=g, dtype=torch.float64)
    weight = torch.rand(n, generator=g, dtype=torch.float64)
    network = multilayer_perceptron(d, (8, 8), "gelu", g, K, 8).to(X)
    features = NetworkFeatures(network, 8, K, skip=d)
    fold = torch.full((n,), -1, dtype=torch.int32)
    fold[:4] = -2
    fold[4:19] = torch.arange(15, dtype=torch.int32) // 5
    likelihood = Gaussian(torch.tensor([0.3], dtype=torch.float64))
    mean = ConstantMean(torch.full((1,), 0.2, dtype=torch.float64))
    scale = RowScale(torch.zeros(K, features.n_features, 1, dtype=torch.float64))
    model = SparseModel(features, likelihood, mean, None, LogLoss(), 0.7, scale)
    rows = Rows(y, weight, None, None, fold)
    objective = EnsembleObjective(model, rows)
    with torch.no_grad():
        for p in (objective.means, objective.roots, scale.weights):
            p.add_(0.1 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    parameters = list(objective.train().parameters())
    found = objective(X[4:], rows[4:], g)
    gradients = torch.autograd.grad(found, parameters, allow_unused=True, materialize_grads=True)

    Z, R, a = features.members(X[4:]), objective.roots[:, 0].diag_embed(), scale.weights
    mu, v = (Z @ objective.means)[..., 0] + mean.value, (Z @ R).square().sum(-1)
    noise = likelihood.noise_variance * scale(Z)[..., 0] ** 2
    log_p = -0.5 * ((2 * math.pi * (v + noise)).log() + (y[4:, 0] - mu).square() / (v + noise))
    seen = (fold[4:] != torch.arange(K)[:, None]).double() * weight[4:]
    kl = 0.5 * (objective.means.square().sum((1, 2)) + R.square().sum((1, 2)) - R.shape[1])
    kl = kl - R.diagonal(dim1=1, dim2=2).abs().log().sum(1) + 0.5 * a.square().sum((1, 2))
    n_seen = seen.sum(1)
    expected = (-(seen * log_p).sum(1) / n_seen + 0.7 * kl / n_seen).sum()
    assert_close(found, expected)
    by_hand = torch.autograd.grad(expected, parameters, allow_unused=True, materialize_grads=True)
    assert_close(gradients, by_hand, rtol=1e-8, atol=1e-12)


class Fixed(torch.nn.Module):
    """Features without parameters."""

    def forward(self, X):
        return torch.cat([X, X.square(), torch.sin(X)], 1)


def test_with_fixed_features_the_posterior_is_that_of_the_marginal_likelihood(funnel):
    X, y = funnel
    kernel = DotProduct(0.0, "fixed") + WhiteKernel(0.2, "fixed")
    exact = SCGDGaussianProcessRegressor(kernel, feature_map=Fixed(), early_stopping=False)
    exact = exact.set_params(max_iter=1, random_state=0).fit(X, y)
    found = finite(
        kernel=kernel, feature_map=Fixed(), loss="elbo", mean="zero", early_stopping=False
    ).set_params(n_estimators="auto", hidden_layer_sizes="auto", max_iter=1)
    found.fit(X, y)
    query = np.linspace(-4, 4, 50)[:, None]
    for a, b in zip(found.predict(query, True), exact.predict(query, True), strict=True):
        assert_allclose(a, b, rtol=1e-8)
    evidence = exact.log_marginal_likelihood_value_
    assert_allclose(found.log_marginal_likelihood_value_, evidence, rtol=1e-8)


@pytest.mark.slow
def test_a_mixture_of_one_is_itself(fitted, funnel):
    X = torch.from_numpy(funnel[0][:20])
    part = fitted.posterior_.parts[0]
    one = MixturePosterior([part])
    rows = Rows(X)
    for a, b in zip(one.marginals(X), part.marginals(X), strict=True):
        assert torch.equal(a, b)
    assert_close(one.covariance(X), part.covariance(X))
    q, likelihood = one.predictive(X, rows)
    alone, of_part = part.predictive(X, rows)
    y = torch.zeros(20, 1, dtype=torch.float64)
    assert_close(likelihood.log_predictive(y, q), of_part.log_predictive(y, alone))
    draws = [p.sample_y(X, rows, 5, torch.Generator().manual_seed(1)) for p in (one, part)]
    assert draws[0].shape == draws[1].shape


# ---- predictions -------------------------------------------------------------------------------


@pytest.mark.slow
def test_noise_follows_the_inputs(fitted, funnel):
    std = fitted.predict_std([[-2.5], [2.5]])
    assert 0.05 < std[0] < 0.15
    assert 0.5 < std[1] < 1.4
    X, y = funnel
    truth = norm(np.sin(X[:, 0]), 0.05 * np.exp(0.5 * (X[:, 0] + 3.0)))
    assert fitted.log_predictive_density(X, y).mean() > truth.logpdf(y).mean() - 0.1
    interval = fitted.predict_interval(funnel[0], 0.8)
    inside = (interval[:, 0] < funnel[1]) & (funnel[1] < interval[:, 1])
    assert 0.74 < inside.mean() < 0.88


def test_densities_intervals_moments_and_draws_are_of_one_distribution(fitted):
    row = np.array([[1.3]])
    grid = np.linspace(-40, 40, 80_001)
    density = np.exp(fitted.log_predictive_density(np.repeat(row, len(grid), 0), grid))
    assert_allclose(trapezoid(density, grid), 1.0, atol=1e-4)
    mean, std = fitted.predict(row, return_std=True)
    assert_allclose(trapezoid(grid * density, grid), mean[0], atol=1e-3)
    low, high = fitted.predict_interval(row, 0.9)[0]
    inside = (grid > low) & (grid < high)
    assert_allclose(trapezoid(density[inside], grid[inside]), 0.9, atol=2e-3)
    draws = fitted.sample_y(row, 20_000)[0]
    assert_allclose(np.mean((draws > low) & (draws < high)), 0.9, atol=0.01)
    assert_allclose(draws.mean(), mean[0], atol=0.05 * std[0])
    _, cov = fitted.predict(np.repeat(row, 2, 0), return_cov=True)
    assert_allclose(np.sqrt(cov.diagonal()), std[0], rtol=1e-9)


@pytest.mark.slow
def test_fits_repeat_and_survive_pickling(funnel):
    X, y = (a[:200] for a in funnel)
    fitted = finite(likelihood="shared_student_t", noise="input", max_iter=5).fit(X, y)
    again = clone(fitted).fit(X, y)
    query = X[:10]
    assert_array_equal(again.predict_interval(query), fitted.predict_interval(query))
    other = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(other.predict_std(query), fitted.predict_std(query))
    one_by_one = np.concatenate([fitted.predict_std(row[None]) for row in query])
    assert_allclose(one_by_one, fitted.predict_std(query), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {"kernel": RBF(), "n_components": 50, "hidden_layer_sizes": (), "n_estimators": 1},
        {"hidden_layer_sizes": (), "n_estimators": 1},
        {"n_waves": 0, "likelihood": "laplace"},
        {"loss": "square"},
        {"loss": "elbo", "noise": "input"},
        {"beta": 0.1},
        {"early_stopping": False},
    ],
    ids=repr,
)
@slow_cases("loss': 'square", "n_waves", "beta", "early")
def test_features_losses_and_likelihoods_combine(params, funnel):
    X, y = (a[:300] for a in funnel)
    model = finite(**params).fit(X, y)
    assert np.isfinite(model.log_predictive_density(X, y)).all()
    assert model.score(X, y) > 0.2


@pytest.mark.slow
def test_two_outputs_and_weights(funnel):
    X, y = funnel
    Y = np.stack([y, 5.0 - y], 1)
    weight = np.where(X[:, 0] > 0, 2.0, 0.0)
    model = finite(noise="input", likelihood="student_t", max_iter=3).fit(
        X, Y, sample_weight=weight
    )
    assert model.predict(X[:7]).shape == (7, 2)
    assert model.sample_y(X[:7], 3).shape == (7, 2, 3)
    assert model.predict_interval(X[:7]).shape == (7, 2, 2)


@pytest.mark.slow
def test_classes(funnel):
    X = funnel[0][:200]
    y = np.digitize(X[:, 0], [-1.0, 1.0])
    for labels in (y, y > 0):
        model = DeepKernelEnsembleClassifier(loss="log", **{**QUICK, "max_iter": 15}).fit(X, labels)
        assert model.score(X, labels) > 0.9
        assert_allclose(model.predict_proba(X[:5]).sum(1), 1.0)


@pytest.mark.slow
def test_inputs_without_a_say_are_scaled_down():
    """Their scales have a larger rate than the layers, and no weight decay."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 8))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.standard_normal(400)
    model = finite(max_iter=40, weight_decay=5.0).fit(X, y)
    for part in model.posterior_.parts:
        scale = part.model.features.network[0].input_scale.abs()[0, 0]
        assert scale[0] > 2.0 * scale[1:].mean()


def test_groups_of_the_optimiser(funnel):
    X = torch.from_numpy(funnel[0][:100])
    model = finite(max_iter=1).fit(*funnel)
    recipe = model._recipe()
    plan = recipe.plan(Sizes(100, 100))
    rows = Rows(torch.zeros(100, 1, dtype=torch.float64))
    scaling = recipe.input_scaling(funnel[0], None)
    objective = recipe.objective(Problem.of(InMemory(X, rows), scaling, plan, torch.Generator()))
    scales, network, rest = objective.param_groups()
    assert [tuple(p.shape) for p in scales["params"]] == [(2, 1, 1)]
    assert scales["rate"] > network["rate"] == rest["rate"]
    assert "weight_decay" not in scales
    assert network["weight_decay"] == model.weight_decay
    groups = [id(p) for group in (scales, network, rest) for p in group["params"]]
    assert sorted(groups) == sorted(id(p) for p in objective.parameters() if p.requires_grad)


def test_scales_of_inputs_get_as_far_in_fewer_steps():
    def steps_and_rate(n_rows):
        plan = ensemble_plan(Training(early_stopping=True), n_rows)
        n_batches = math.ceil((n_rows - plan.folds.n_untrained) / plan.batch_size)
        return plan.max_iter * n_batches, scale_rate(plan, n_rows)

    few, many = steps_and_rate(1000), steps_and_rate(12_000)
    assert few[0] < many[0]
    assert few[0] * few[1] == pytest.approx(many[0] * many[1])
    hurried = Plan("adam", "float32", max_iter=1, batch_size=64)
    assert scale_rate(hurried, 60) == 20.0


def test_two_networks_see_large_minibatches_of_many_rows():
    """The rate grows with them, but not with what the user has chosen."""

    def plan(n_rows, **given):
        return ensemble_plan(Training(early_stopping=True, **given), n_rows)

    some, many, own = plan(99_999), plan(100_000), plan(100_000, batch_size=1024)
    assert (some.folds.n_folds, some.batch_size) == (3, 256)
    assert (many.folds.n_folds, many.batch_size) == (2, 1024)
    assert own.batch_size == many.batch_size
    assert own.rate == some.rate < many.rate


@pytest.mark.slow
def test_training_ends_where_folds_do_not_improve(funnel):
    """After a quarter of the epochs, or those that are asked for; never without folds."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 5)), rng.standard_normal(200)  # nothing to be learned
    model = finite(max_iter=80, likelihood="shared_student_t", noise="input").fit(X, y)
    assert model.n_iter_ - model.best_iter_ >= 20
    assert model.n_iter_ < 80
    assert clone(model).set_params(n_iter_no_change=4).fit(X, y).n_iter_ < model.n_iter_
    assert clone(model).set_params(early_stopping=False).fit(X, y).n_iter_ == 80


@pytest.mark.parametrize(
    ("losses", "ends"),
    [
        ([3.0, 2.0, 1.9, 1.8, 1.7, 1.6], True),
        ([3.0, 2.0, 2.5, 2.4, 2.3, 2.2], False),  # a rate that is too high for both
        ([3.0, 2.0, 1.9, 1.8, 1.7], False),  # too soon
    ],
)
def test_training_ends_if_losses_are_better_and_scores_are_not(losses, ends):
    scores = [2.0, 1.0, *[1.5] * (len(losses) - 2)]
    history = History(losses, scores, list(range(1, len(losses) + 1)), best_iter=2)
    assert history.overfits(4) == ends
    assert not history.overfits(math.inf)


def of_two_members(n_unseen, n_fold, n):
    """An objective before training, of whose rows some are held out by folds, and some by all."""
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(n, 3, generator=g), torch.randn(n, 1, generator=g)
    features = NetworkFeatures(multilayer_perceptron(3, (4,), "tanh", g, 2), 4, 2, skip=3)
    scale = RowScale(torch.randn(2, 8, 1, generator=g))
    mean = ConstantMean(torch.zeros(1))
    model = SparseModel(
        features, SharedStudentT(torch.tensor([0.5])), mean, None, LogLoss(), 1.0, scale
    )
    numbers = torch.tensor([-2, 0, 1, -1], dtype=torch.int32)
    sizes = torch.tensor([n_unseen, n_fold, n_fold, n - n_unseen - 2 * n_fold])
    objective = EnsembleObjective(model, rows := Rows(y, fold=numbers.repeat_interleave(sizes)))
    objective.means.normal_(generator=g)
    return objective, X, rows


@pytest.mark.parametrize(("n_columns", "n_features"), [(50, 55), (51, 4)])
def test_inputs_of_wide_tables_are_no_features(n_columns, n_features, monkeypatch):
    """The closing pass takes D³: with max_time=5, a fit of 200 rows and 5,000 columns took 39 s."""
    monkeypatch.setattr(networks, "MOST_SKIPPED", 50)
    X = np.random.default_rng(0).normal(size=(20, n_columns))
    model = SCGDGaussianProcessRegressor(
        hidden_layer_sizes=(4,), n_estimators=1, max_iter=1, random_state=0
    )
    with pytest.warns(UserWarning, match="more features"):
        model.fit(X, X[:, 0])
    assert model.posterior_.features.n_features == n_features


@torch.no_grad()
def test_iterates_are_judged_by_what_calibration_and_mixing_make_of_them():
    objective, X, rows = of_two_members(20, 30, 100)

    def losses(found, scale):
        """−Σ log p of each member, and of their mixture, with other deviations."""
        of, q, latent = found
        std = math.exp(scale) * (q.var + (0.5 * RowScale.of(latent)) ** 2).sqrt()
        log_p = torch.from_numpy(t.logpdf(of.y, 4.0, q.mean, std)[..., 0])
        mixed = log_p.logsumexp(0) - math.log(len(log_p))
        return -log_p.sum(1).numpy(), -float(mixed.sum())

    def penalty(scale):
        return 0.5 * (scale / 0.3) ** 2

    blind, of_all = objective.blind(X, rows), objective.unseen(X[:20], rows[:20])
    of_fold, scale = min((losses(blind, s)[1] + penalty(s), s) for s in ITERATES_SCALES)
    mixed = min(losses(of_all, s)[1] + penalty(s) for s in ITERATES_SCALES)
    alone = losses(of_all, scale)[0].mean()
    assert scale > 0.0
    assert_allclose(objective.evaluate(X, rows), of_fold / 60 + (mixed - alone) / 20, rtol=1e-4)
    objective.calibrates = False
    assert_allclose(objective.evaluate(X, rows), losses(blind, 0.0)[1] / 60, rtol=1e-4)


# ---- rows that have not been seen --------------------------------------------------------------


def tailed(**params):
    return finite(likelihood="shared_student_t", noise="input", n_estimators=3, **params)


@pytest.mark.slow
def test_densities_of_rows_that_were_not_seen(funnel):
    X, y = (a[:200] for a in funnel)
    model = tailed(max_iter=15).fit(X, y)
    held_out = model.held_out_.log_densities(200)
    plan = model._recipe().plan(Sizes(200, 200))
    n_known = plan.folds.n_unseen + 3 * plan.folds.size
    assert held_out.shape == (200,)
    assert np.isfinite(held_out).sum() == n_known < 200
    known = np.isfinite(held_out)
    assert model.held_out_.is_whole.sum() == plan.folds.n_unseen
    seen = model.log_predictive_density(X, y)
    assert -0.1 < (seen - held_out)[known].mean() < 0.5
    assert np.corrcoef(seen[known], held_out[known])[0, 1] > 0.7
    in_other_units = tailed(max_iter=15).fit(X, 10.0 * y + 3.0)
    assert_allclose(
        in_other_units.held_out_.log_densities(200), held_out - math.log(10.0), atol=1e-4
    )


@pytest.mark.slow
def test_densities_are_in_the_order_of_the_rows(funnel):
    """Whatever it is; of equal rows they are the same, of rows of weight 0 there are none."""
    X, y = (a[:150] for a in funnel)
    expected = tailed(max_iter=4).fit(X, y).held_out_.log_densities(150)
    order = np.random.default_rng(0).permutation(150)
    found = tailed(max_iter=4).fit(X[order], y[order]).held_out_.log_densities(150)
    assert_array_equal(found, expected[order])
    weight = np.repeat([0.0, 2.0, 1.0], 50)
    weighted = tailed(max_iter=4).fit(X, y, sample_weight=weight).held_out_.log_densities(150)
    twice = np.r_[50:100, 50:150]
    found = tailed(max_iter=4).fit(X[twice], y[twice]).held_out_.log_densities(150)
    assert np.isnan(weighted[:50]).all()
    assert np.isfinite(weighted[50:]).any()
    assert_array_equal(found, weighted[twice])


@torch.no_grad()
def test_a_member_is_asked_for_rows_that_it_is_blind_to():
    objective, X, rows = of_two_members(2, 5, 20)
    features, scale, y = objective.model.features, objective.model.scale, rows.y
    block, q, latent = objective.blind(X, rows)
    assert torch.equal(block.y, y[2:12])
    for k in range(2):
        mine, of_fold = slice(2 + 5 * k, 7 + 5 * k), slice(5 * k, 5 * k + 5)
        phi = features.members(X[mine])
        expected = objective.functions(phi, objective.present_roots())[0]
        assert_close(q.mean[0, of_fold], expected.mean[k])
        assert_close(q.var[0, of_fold], expected.var[k])
        assert_close(latent[0, of_fold], phi[k] @ scale.weights[k])


def test_a_member_ignores_what_is_constant_in_its_rows(funnel):
    """A level of one row: the member blind to it was 1,500 deviations of y off."""
    x, y = funnel
    left_out = finite(max_iter=1).fit(x, y).held_out_.rows[0]
    model = finite(max_iter=3).fit(np.column_stack([x, np.arange(len(x)) == left_out]), y)
    assert left_out in model.held_out_.rows
    networks = [part.model.features.network for part in model.posterior_.parts]
    rows = torch.tensor([[0.5, 0.0], [0.5, 24.0]])
    assert sum(bool((network(rows).diff(dim=1) == 0.0).all()) for network in networks) == 1


@pytest.mark.slow
def test_means_of_skewed_targets_that_are_off_are_told():
    """They follow the bulk of the rows, and were a quarter of a deviation too low in silence."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-3, 3, (600, 1)), rng.exponential(1.0, 600)
    told = f"over 600 training rows y averages {y.mean():.3g}"
    with pytest.warns(UserWarning, match=told) as caught:
        tailed(max_iter=20).fit(X, y)
    assert any("likelihood='gaussian'" in str(each.message) for each in caught)
    with pytest.warns(UserWarning, match="heavy tails"):
        right = finite(noise="input", max_iter=20).fit(X, y)
    assert abs(right.predict(X).mean() - y.mean()) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("n_copies", [0, 30])
def test_many_rows_leave_as_those_of_neighbours_do(funnel, monkeypatch, n_copies):
    """Which merge copies among any number of rows: few rows had been left out by both."""
    monkeypatch.setattr(runs, "MERGED_ROWS", 100)
    copied = np.r_[:200, :n_copies]
    X, y = (a[copied] for a in funnel)
    networks = tailed(max_iter=2).fit(X, y).held_out_
    kernel = RBF() + WhiteKernel()
    options = {"hidden_layer_sizes": (4,), "max_iter": 1, "random_state": 0}
    near = NNGPRegressor(kernel, **options).fit(X, y).held_out_
    found, distinct = set(copied[networks.rows[networks.is_whole]]), set(copied[near.rows])
    assert len(distinct) == 20
    assert len(found & distinct) >= (18 if n_copies else 20)
    order = np.random.default_rng(0).permutation(len(X))
    again = tailed(max_iter=2).fit(X[order], y[order]).held_out_
    assert_array_equal(np.sort(copied[order[again.rows]]), np.sort(copied[networks.rows]))


@pytest.mark.slow
def test_there_are_no_such_densities_without_folds(funnel):
    X, y = (a[:100] for a in funnel)
    model = finite(early_stopping=False, max_iter=2).fit(X, y)
    assert model.held_out_ is None
    alone = finite(n_estimators=1, max_iter=5).fit(X, y)
    assert len(alone.held_out_.rows) == 10
    assert alone.held_out_.is_whole is None
    labels = np.digitize(X[:, 0], [-1.0, 1.0])
    found = DeepKernelEnsembleClassifier(**QUICK).fit(X, labels).held_out_
    assert found.log_density.max() < 0.1  # with the gain of a mixture


# ---- the sparse family -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("make", [SVGPRegressor, DLMRegressor])
@by_default("DLM")
def test_sparse_processes_have_noise_of_inputs(make, funnel):
    model = make(noise="input", n_inducing=10, max_iter=25, random_state=0).fit(*funnel)
    std = model.predict_std([[-2.5], [2.5]])
    assert std[1] > 3.0 * std[0]
    constant = make(n_inducing=10, max_iter=25, random_state=0).fit(*funnel)
    gain = model.log_predictive_density(*funnel) - constant.log_predictive_density(*funnel)
    least = 0.0 if make is DLMRegressor else 0.2  # whose q(f) follows the noise in part
    assert gain.mean() > least


@pytest.mark.slow
def test_a_constant_second_function_is_constant_noise(funnel):
    """Noise of inputs differs from constant noise in the second function alone."""
    X, y = funnel
    model = SVGPRegressor(noise="input", n_inducing=10, max_iter=5, random_state=0).fit(X, y)
    inner = model.posterior_.model
    inner.scale.weights.data.zero_()
    q, likelihood = model.posterior_.predictive(torch.from_numpy(X[:9]), Rows(torch.zeros(9, 1)))
    assert_close(likelihood.ratio, torch.ones(9, 1, dtype=torch.float64))
    plain = inner.likelihood.log_predictive(torch.zeros(9, 1, dtype=torch.float64), q)
    assert_close(likelihood.log_predictive(torch.zeros(9, 1, dtype=torch.float64), q), plain)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_estimators": 3, "hidden_layer_sizes": ()}, "n_estimators=3 needs networks"),
        ({"likelihood": "poisson", "noise": "input"}, "noise='input' needs additive noise"),
        ({"loss": "square", "noise": "input"}, "noise='input' needs additive noise"),
        ({"loss": LogLoss("product"), "noise": "input"}, "a gradient other than"),
    ],
)
def test_parameters_that_do_not_agree(params, message, funnel):
    X, y = funnel
    y = np.abs(np.round(y)) if params.get("likelihood") == "poisson" else y
    with pytest.raises(ValueError, match=message):
        finite(**params).fit(X, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "varies"),
    [
        ({}, True),
        ({"likelihood": "poisson"}, False),
        ({"likelihood": "negative_binomial"}, True),
        ({"loss": "square", "likelihood": "gaussian"}, False),
        ({"noise": "constant"}, False),
    ],
    ids=repr,
)
def test_noise_varies_where_it_can(params, varies, funnel):
    X, y = funnel[0][:100], np.abs(np.round(funnel[1][:100]))
    model = DeepKernelEnsembleRegressor(**{**QUICK, "max_iter": 1}, **params).fit(X, y)
    assert (model.posterior_.model.scale is not None) == varies


@pytest.mark.parametrize("name", ["warm_start", "solver", "n_inducing", "hyperparameters"])
def test_there_are_no_parameters_without_use(name):
    with pytest.raises(TypeError, match=name):
        DeepKernelEnsembleRegressor(**{name: None})


def test_there_are_no_streams():
    assert not hasattr(DeepKernelEnsembleRegressor(), "partial_fit")
    assert not hasattr(DeepKernelEnsembleClassifier(), "partial_fit")


@pytest.mark.slow
def test_counts_and_classes_do_not_run_away_from_their_rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (300, 1))
    y = rng.poisson(np.exp(0.6 * X[:, 0] + 0.2)).astype(float)
    far = np.array([[6.2], [10.0], [1e3], [1e30]])
    options = {"n_estimators": 2, "max_iter": 10, "random_state": 0}
    counts = DeepKernelEnsembleRegressor(likelihood="poisson", **options).fit(X, y)
    mean, std = counts.predict(far, return_std=True)
    assert_array_equal(mean, mean[0])
    assert_array_equal(std, std[0])
    assert mean[0] < 5.0 * y.max()
    classes = DeepKernelEnsembleClassifier(**options).fit(X, y > 2.0)
    p = classes.predict_proba(far)
    assert_array_equal(p, p[[0]].repeat(4, 0))
    assert p[0, 1] != classes.predict_proba([[5.0]])[0, 1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:No event was counted")
def test_counts_that_are_all_zero_are_expected_to_be(tmp_path):
    """Nothing bounds the variance of their log-rate, so means of rows held out were 10⁴ to NaN."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    options = {**QUICK, "max_iter": 100, "likelihood": "negative_binomial"}
    model = DeepKernelEnsembleRegressor(**options).fit(X, np.zeros(60, int))
    held_out = model.held_out_
    assert (held_out.mean < 0.05).all()
    assert np.isfinite(held_out.std).all()
    model.save(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The largest count", "ignore:No event was counted")
@pytest.mark.parametrize(
    "likelihood", [pytest.param("poisson", marks=pytest.mark.slow), "negative_binomial"]
)
def test_far_means_are_near_the_counts(likelihood):
    """Not 10⁶ and 10⁷⁰ times as high, as exp(v/2) made them; and draws are of the same rates."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (80, 2))
    y = rng.poisson(3.0, 80).astype(float)
    y[7] = 1e8
    far = 3.0 * np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    options = {"n_estimators": 2, "max_iter": 10, "random_state": 0, "likelihood": likelihood}
    for counts, most in ((y, 1e3), (np.full(80, 7.0), 5.0), (np.zeros(80), 5.0)):
        model = DeepKernelEnsembleRegressor(**options).fit(X, counts)
        mean = model.predict(far)
        assert (mean <= most * max(counts.mean(), 1.0 / 80)).all()
        f, std = model.predict(far, return_std=True, latent=True)
        draws = model.sample_y(far, 400, random_state=0, latent=True)
        assert_allclose(draws.mean(1), f, atol=5.0 * std.max() / 20.0)


@pytest.mark.slow
def test_six_rows_do_not_decide_on_the_dispersion_of_sixty():
    """It is .3; six rows that no network sees alone said .09, and intervals were half as wide."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, (60, 1))
    y = rng.poisson(np.exp(6 + np.sin(X[:, 0])) * rng.gamma(1 / 0.3, 0.3, 60)).astype(float)
    options = {**QUICK, "hidden_layer_sizes": (8,), "likelihood": "negative_binomial"}
    model = DeepKernelEnsembleRegressor(**options).fit(X, y)
    assert 0.15 < float(model.likelihood_.dispersion) < 0.6


@pytest.mark.slow
def test_the_dispersion_of_counts_follows_the_inputs():
    """And densities, moments, quantiles and joint draws are those of one distribution."""
    rng = np.random.default_rng(0)
    X = np.repeat([[-1.0], [1.0]], 200, axis=0) + 0.1 * rng.standard_normal((400, 1))
    shape = np.where(X[:, 0] > 0.0, 0.5, 20.0)
    y = rng.poisson(5.0 * rng.gamma(shape, 1.0 / shape)).astype(float)
    options = {**QUICK, "max_iter": 40, "likelihood": "negative_binomial"}
    model = DeepKernelEnsembleRegressor(**options).fit(X, y)
    ends = np.array([[-1.0], [1.0]])
    mean, std = model.predict(ends, return_std=True)
    assert_allclose(mean, 5.0, rtol=0.25)
    dispersion = (std**2 - mean) / mean**2
    assert dispersion[0] < 0.3
    assert 1.0 < dispersion[1] < 4.0
    k = np.arange(400.0)
    rows = np.repeat(ends, 400, axis=0)
    p = np.exp(model.log_predictive_density(rows, np.tile(k, 2))).reshape(2, 400).T
    assert_allclose(p.sum(0), 1.0, atol=1e-4)
    assert_allclose(k @ p, mean, rtol=1e-3)
    cdf = model.predict_distribution(ends).cdf(np.full(2, 3.0))
    assert_allclose(cdf, p[:4].sum(0), atol=1e-9)
    draws = model.sample_y(ends, 4000, random_state=0)
    assert_allclose(draws.mean(1), mean, rtol=0.15)
    assert_allclose((draws <= 3.0).mean(1), cdf, atol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "params"),
    [
        pytest.param(1e6, {"likelihood": "poisson"}, marks=pytest.mark.slow),
        pytest.param(1e9, {"likelihood": "poisson"}, marks=pytest.mark.slow),
        (1e5, {"likelihood": "negative_binomial", "max_iter": 40}),
    ],
)
def test_large_counts_are_predicted_nearly_as_closely_as_they_tell(size, params):
    """Not 13, 1,200 and 4 times as vaguely: training is by counts in a larger unit."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (300, 1))

    def counts(X):
        return rng.poisson(size * np.exp(0.5 * np.sin(2 * X[:, 0]))).astype(float)

    options = {"n_estimators": 2, "random_state": 0, **params}
    model = DeepKernelEnsembleRegressor(**options).fit(X, counts(X))
    new = rng.uniform(-1.8, 1.8, (200, 1))
    y, (mean, std) = counts(new), model.predict(new, return_std=True)
    assert np.median(std / np.sqrt(mean)) < 2.0
    assert np.median(np.abs(y - mean) / std) < 1.0
    best = 0.5 * np.log(2.0 * np.pi * np.e * mean).mean()
    assert -model.log_predictive_density(new, y).mean() < best + 0.2


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_held_out_counts_are_judged_with_their_own_weights(likelihood):
    """Rows of weight 0, and copies, are numbered in the whole table; a fit was lost."""
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(size=(60, 1))] * 2)
    y, weight = np.tile(rng.poisson(np.exp(X[:60, 0] + 4.0)), 2), np.tile([0.0, *[1.0] * 59], 2)
    model = DeepKernelEnsembleRegressor(
        likelihood=likelihood, hidden_layer_sizes=(8,), n_estimators=2, max_iter=3, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of copies, and of training that has just begun
        diagnosis = model.fit(X, y, sample_weight=weight).diagnose()
    assert "dispersion" in [finding.name for finding in diagnosis]
    assert set(model.held_out_.rows) <= set(np.flatnonzero(weight))

"""Closed forms against quadrature, and both against scipy; the tails, in log space."""

import copy
import functools
import itertools
import math
import pickle
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from families import slow_cases
from numpy.testing import assert_allclose
from scipy.special import digamma, expit, logsumexp, polygamma
from scipy.stats import kstest, laplace, norm, t
from sklearn.base import BaseEstimator, clone
from sklearn.gaussian_process import kernels as sk
from thread_group import on_ranks
from torch.testing import assert_close

from skgpstoch import SVGPRegressor, likelihoods
from skgpstoch.data import arrays
from skgpstoch.data.rows import Rows, Whole
from skgpstoch.kernels import from_sklearn
from skgpstoch.likelihoods import (
    AdditiveNoise,
    Bernoulli,
    Categorical,
    ClassLikelihood,
    Gaussian,
    Laplace,
    Likelihood,
    NegativeBinomial,
    OneVsRest,
    Poisson,
    StudentT,
    make_likelihood,
)
from skgpstoch.likelihoods.base import mixture_log_mean
from skgpstoch.likelihoods.counts import limits_of_f
from skgpstoch.likelihoods.negative_binomial import (
    STIRLING,
    log_rising,
    logit_beta_nodes,
    rising_slope,
)
from skgpstoch.maths.first_order import with_slopes
from skgpstoch.maths.gaussian import (
    Marginals,
    log_density,
    log_half_moment,
    log_ndtr,
    quadrature_nodes,
)

NOISE = torch.tensor([0.3, 2.0], dtype=torch.float64)


class OwnPoisson(Likelihood):
    """Counts of rate log(1 + exp(f)): what a likelihood of one's own has to say."""

    def log_prob(self, y, f):
        rate = torch.nn.functional.softplus(f)
        return y * rate.log() - rate - torch.lgamma(y + 1.0)


def marginals(n_components, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (n_components, 6, 2)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    var = 0.05 + torch.rand(shape, generator=generator, dtype=torch.float64)
    y = torch.randn(shape[1:], generator=generator, dtype=torch.float64)
    return y, Marginals(mean, var)


def test_log_density_is_scipys():
    y, q = marginals(1)
    expected = norm.logpdf(y, q.mean[0], q.var[0].sqrt())
    assert_allclose(log_density(y, q.mean[0], q.var[0]), expected, rtol=1e-12)


@pytest.mark.parametrize("n_components", [1, 3])
@torch.no_grad()
def test_gaussian_closed_forms_equal_quadrature(n_components):
    y, q = marginals(n_components)
    gaussian = Gaussian(NOISE)
    exact = gaussian.expected_log_prob(y, q)
    assert exact.shape == (6,)
    assert_close(exact, Likelihood.expected_log_prob(gaussian, y, q), rtol=1e-12, atol=1e-12)
    # N(y | f, σ²) is no polynomial in f: 20 nodes are enough where v is not far above σ².
    narrow = Marginals(q.mean, 0.2 * q.var)
    exact = gaussian.log_predictive(y, narrow)
    assert exact.shape == (6,)
    assert_close(exact, Likelihood.log_predictive(gaussian, y, narrow), rtol=1e-8, atol=1e-8)


@torch.no_grad()
def test_gaussian_closed_forms_equal_integrals():
    y, q = marginals(1)
    gaussian = Gaussian(NOISE)
    f = torch.linspace(-15, 15, 20_001, dtype=torch.float64)[:, None, None, None]
    weights = log_density(f, q.mean, q.var).exp() * 30 / 20_000
    log_p = torch.from_numpy(norm.logpdf(y, f, NOISE.sqrt()))
    expected = (weights * log_p).sum(0)[0].sum(-1), (weights * log_p.exp()).sum(0)[0].log().sum(-1)
    assert_close(gaussian.expected_log_prob(y, q), expected[0], rtol=1e-10, atol=1e-10)
    assert_close(gaussian.log_predictive(y, q), expected[1], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_gaussian_density_of_a_mixture_is_the_mean_of_its_components():
    y, q = marginals(4)
    var = q.var + NOISE
    densities = np.exp(norm.logpdf(y, q.mean, var.sqrt()).sum(-1))  # (S, N)
    assert_allclose(Gaussian(NOISE).log_predictive(y, q), np.log(densities.mean(0)), rtol=1e-12)


@torch.no_grad()
def test_gaussian_moments_and_draws():
    _, q = marginals(2)
    gaussian = Gaussian(NOISE)
    moments = gaussian.moments(q)
    assert torch.equal(moments.mean, q.mean)
    assert_close(moments.var, q.var + NOISE, rtol=1e-14, atol=0)
    f = torch.tensor([1.0, -2.0], dtype=torch.float64).expand(50_000, 3, 2)
    y = gaussian.sample(f, torch.Generator().manual_seed(0))
    assert ((y.mean((0, 1)) - f[0, 0]).abs() <= 4 * (NOISE / 150_000).sqrt()).all()
    assert ((y.var((0, 1)) - NOISE).abs() <= 4 * NOISE * math.sqrt(2 / 150_000)).all()


def test_moments_of_a_mixture():
    _, q = marginals(3)
    generator = torch.Generator().manual_seed(0)
    mean, var = q.mixture_moments()
    f = q.mean + q.var.sqrt() * torch.randn(100_000, *q.mean.shape, generator=generator)
    f = f.flatten(0, 1)
    assert ((f.mean(0) - mean).abs() <= 4 * (var / len(f)).sqrt()).all()
    assert_close(f.var(0), var, rtol=0.02, atol=0)


@pytest.mark.parametrize("n_nodes", [1, 5, 20])
def test_quadrature_is_exact_for_polynomials(n_nodes):
    _, q = marginals(2)
    f, log_weights = quadrature_nodes(q, n_nodes)
    assert f.shape == (n_nodes, *q.mean.shape)
    z = (f - q.mean) / q.var.sqrt()
    for degree in range(min(2 * n_nodes, 12)):
        moment = 0.0 if degree % 2 else math.prod(range(1, degree, 2))  # E[zᵈ]
        actual = (log_weights.exp() * z**degree).sum(0)
        assert_close(actual, torch.full_like(actual, moment), rtol=1e-10, atol=1e-10)


def test_own_poisson_in_the_tail_is_finite():
    """y = 300 under a rate of about 1/20: every p(y | f) is below the least float."""
    q = Marginals(*(torch.full((1, 1, 1), a, dtype=torch.float64) for a in (-3.0, 0.25)))
    y = torch.full((1, 1), 300.0, dtype=torch.float64)
    assert float(OwnPoisson().log_predictive(y, q)) == pytest.approx(-1396.7, abs=0.1)
    f, log_weights = quadrature_nodes(q)
    assert float((log_weights.exp() * OwnPoisson().log_prob(y, f).exp()).sum()) == 0.0


def test_own_poisson_quadrature_equals_integrals():
    y, q = marginals(1)
    y = y.abs().mul(3).round()
    f = torch.linspace(-15, 15, 20_001, dtype=torch.float64)[:, None, None, None]
    weights = log_density(f, q.mean, q.var).exp() * 30 / 20_000
    log_p = OwnPoisson().log_prob(y, f)
    expected = (weights * log_p).sum(0)[0].sum(-1), (weights * log_p.exp()).sum(0)[0].log().sum(-1)
    assert_close(OwnPoisson().expected_log_prob(y, q), expected[0], rtol=1e-6, atol=1e-6)
    assert_close(OwnPoisson().log_predictive(y, q), expected[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("distance", [0.0, 10.0, 1e3, 1e8])
@torch.no_grad()
def test_gaussian_density_in_the_tail(distance):
    y, q = marginals(1)
    y = y + distance
    expected = norm.logpdf(y, q.mean[0], (q.var[0] + NOISE).sqrt()).sum(-1)
    assert_allclose(Gaussian(NOISE).log_predictive(y, q), expected, rtol=1e-12)
    assert torch.isfinite(Likelihood.log_predictive(Gaussian(NOISE), y, q)).all()


def test_mixture_log_mean_does_not_underflow():
    log_p = torch.tensor([[-5000.0, 0.0], [-5000.0 + math.log(3.0), -1e9]], dtype=torch.float64)
    expected = torch.tensor([-5000.0 + math.log(2.0), -math.log(2.0)], dtype=torch.float64)
    assert_close(mixture_log_mean(log_p), expected, rtol=1e-14, atol=1e-12)


SCALARS = {
    "gaussian": lambda: Gaussian(0.3),
    "laplace": lambda: Laplace(0.7),
    "narrow laplace": lambda: Laplace(0.01),
    "student_t": lambda: StudentT(0.3, 4.0),
    "heavy student_t": lambda: StudentT(0.01, 2.1),
    "light student_t": lambda: StudentT(0.3, 300.0),
    "logit": lambda: Bernoulli("logit"),
    "probit": lambda: Bernoulli("probit"),
    "exp": lambda: Poisson("exp"),
    "exp, exposure": lambda: Poisson("exp", exposure=100.0),
    "negative_binomial": lambda: NegativeBinomial(0.5),
    "vast negative_binomial": lambda: NegativeBinomial(20.0, exposure=100.0),
    "little negative_binomial": lambda: NegativeBinomial(0.01),
    "softplus": lambda: Poisson("softplus"),
    "softplus, exposure": lambda: Poisson("softplus", exposure=1e-3),
}
"""One latent for each output."""

ALL = SCALARS | {
    "softmax": lambda: Categorical(3),
    "robustmax": lambda: Categorical(3, "robustmax"),
    "one_vs_rest": lambda: OneVsRest(3),
}

VARIANCES = [1e-12, 1e-6, 1e-3, 0.1, 1.0, 10.0, 100.0]
"""Variances of q, on either side of the likelihoods' own widths."""


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def grid_of_cases(targets, variances):
    """Every combination with some means: a list of (y, mean, var), y (N, 1), and q (1, N, 1)."""
    cases = list(itertools.product(targets, (0.2, 3.0, -15.0), variances))
    y, mean, var = f64(cases).T[..., None]
    return cases, y, Marginals(mean[None], var[None])


def single(mean, var):
    """q of one component, row and output."""
    return Marginals(f64([[[mean]]]), f64([[[var]]]))


def targets(likelihood):
    if isinstance(likelihood, Poisson):
        return [0.0, 1.0, 7.0, 1e4]
    return [0.0, 1.0] if isinstance(likelihood, Bernoulli) else [0.0, 3.0]


def example(likelihood, n_rows=7, n_components=1, dtype=torch.float64, seed=0):
    """Targets and marginals of some rows."""
    generator = torch.Generator().manual_seed(seed)
    n_outputs = 1 if isinstance(likelihood, Categorical) else 2
    shape = (n_components, n_rows, likelihood.n_latents(n_outputs))
    mean = torch.randn(shape, generator=generator, dtype=dtype)
    var = 0.05 + torch.rand(shape, generator=generator, dtype=dtype)
    f = mean[0] + var[0].sqrt() * torch.randn(shape[1:], generator=generator, dtype=dtype)
    return likelihood.sample(f, generator).to(dtype), Marginals(mean, var)


@functools.cache
def panels():
    """Gauss-Legendre nodes and weights of [−1, 1]."""
    return np.polynomial.legendre.leggauss(4)


def integration_grid(likelihood, y, mean, var):
    """Nodes and weights on f, dense wherever p(y | f) or q(f), or both, can have features."""
    sizes = 10.0 ** np.linspace(-8, 4, 240)
    spread = np.concatenate([-sizes[::-1], [0.0], sizes])
    centres = [mean, 0.0] + ([] if isinstance(likelihood, Bernoulli) else [y])
    edges = [mean + math.sqrt(var) * np.linspace(-12, 12, 601)] + [c + spread for c in centres]
    for _ in range(5):  # and around the mode of their product
        f = np.unique(np.concatenate(edges))
        log_q = norm.logpdf(f, mean, math.sqrt(var))
        log_joint = likelihood.log_prob(f64(y), f64(f)).detach().numpy() + log_q
        i = log_joint.argmax()
        near = np.abs(f - f[i]) > 0
        gap = np.abs(f - f[i])[near].min()
        edges += [f[i] + gap * width * np.linspace(-1, 1, 81) for width in (1, 30, 1000)]
    f = f[(f > mean - 2e4) & (f < mean + 2e4)]
    nodes, weights = panels()
    half = 0.5 * np.diff(f)[:, None]
    return (f[:-1, None] + half * (1 + nodes)).ravel(), (half * weights).ravel()


def log_expectation(likelihood, y, mean, var):
    """log ∫ p(y | f) N(f | mean, var) df."""
    f, weights = integration_grid(likelihood, y, mean, var)
    log_p = likelihood.log_prob(f64(y), f64(f)).detach().numpy()
    return logsumexp(log_p + norm.logpdf(f, mean, math.sqrt(var)), b=weights)


def expected_log(likelihood, y, mean, var):
    """∫ log p(y | f) N(f | mean, var) df."""
    f, weights = integration_grid(likelihood, y, mean, var)
    q = weights * np.exp(norm.logpdf(f, mean, math.sqrt(var)))
    log_p = likelihood.log_prob(f64(y), f64(f)).detach().numpy()
    return (q[q > 0] * log_p[q > 0]).sum()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCALARS)
@torch.no_grad()
@slow_cases("narrow", "(heavy|light) student", "exposure", "^negative", "little")
def test_predictive_densities_are_integrals(name):
    likelihood = SCALARS[name]()
    cases, y, q = grid_of_cases(targets(likelihood), VARIANCES)
    expected = [log_expectation(likelihood, *case) for case in cases]
    assert_allclose(likelihood.log_predictive(y, q), expected, rtol=1e-6, atol=3e-7)


@pytest.mark.parametrize("name", SCALARS)
@torch.no_grad()
@slow_cases("narrow", "(heavy|light) student", "exposure", "^negative", "little")
def test_expected_log_probabilities_are_integrals(name):
    likelihood = SCALARS[name]()
    tolerance, variances = 1e-8, VARIANCES
    if name == "probit" or name.startswith("softplus"):  # twenty nodes
        tolerance, variances = 1e-6, [1e-12, 0.01, 0.3]
    elif name.startswith("exp"):  # E exp(f) is in the tail of a wide q, beyond the grid
        variances = VARIANCES[:-1]
    cases, y, q = grid_of_cases(targets(likelihood), variances)
    expected = [expected_log(likelihood, *case) for case in cases]
    actual = likelihood.expected_log_prob(y, q)
    assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ALL)
def test_jensen(name):
    """E[log p] ≤ log E[p], and a mixture is averaged inside or outside of the logarithm."""
    likelihood = ALL[name]()
    y, q = example(likelihood, n_components=3)
    inside, outside = likelihood.log_predictive(y, q), likelihood.expected_log_prob(y, q)
    assert inside.shape == outside.shape == (7,)
    assert (outside <= inside + 1e-3 * (name == "softmax")).all()
    components = [Marginals(mean[None], var[None]) for mean, var in zip(*q, strict=True)]
    densities = torch.stack([likelihood.log_predictive(y, c) for c in components])
    assert_close(inside, mixture_log_mean(densities), rtol=1e-10, atol=1e-10)
    values = torch.stack([likelihood.expected_log_prob(y, c) for c in components])
    assert_close(outside, values.mean(0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("grad_mode", [True, False])
def test_expected_gradients_are_derivatives(name, grad_mode):
    likelihood = ALL[name]()
    y, q = example(likelihood)
    with torch.set_grad_enabled(grad_mode):
        gradients = likelihood.expected_gradients(y, q)
    assert not any(a.requires_grad for a in gradients)
    assert gradients[0].shape == (7,)
    assert gradients[1].shape == gradients[2].shape == q.mean.shape[1:]
    expected = Likelihood.expected_gradients(likelihood, y, q)
    for actual, wanted in zip(gradients[:2], expected[:2], strict=True):
        assert_close(actual, wanted, rtol=1e-9, atol=1e-9)
    if name == "softmax":  # Price's theorem holds of the integral, not of a finite sum
        assert_close(gradients[2], expected[2], rtol=0.0, atol=0.02)
    else:
        assert_close(gradients[2], expected[2], rtol=1e-9, atol=1e-9)
    assert not likelihood.log_concave or (gradients[2] <= 0.0).all()


@pytest.mark.parametrize("name", ALL)
def test_autograd_is_finite_differences(name):
    """Of both expectations, by q and by the likelihood's parameters."""
    likelihood = ALL[name]()
    y, q = example(likelihood, n_rows=3)
    names = [name for name, _ in likelihood.named_parameters()]
    inputs = [a.requires_grad_() for a in (*q, *(p.detach() for p in likelihood.parameters()))]
    for method in ("log_predictive", "expected_log_prob"):

        def value(mean, var, *parameters, method=method):
            other = copy.deepcopy(likelihood)
            for parameter, replacement in zip(names, parameters, strict=True):
                delattr(other, parameter)
                setattr(other, parameter, replacement)
            return getattr(other, method)(y, Marginals(mean, var))

        assert torch.autograd.gradcheck(value, inputs, atol=1e-6, rtol=1e-5)


ROUGH = ("laplace", "narrow laplace", "robustmax", "one_vs_rest")  # of several f, or with a kink
SMOOTH = [name for name in ALL if name not in ROUGH]


@pytest.mark.parametrize("variance", [0.0, 1e-20, 1e-12])
@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_by_a_variance_of_nearly_nothing(name, variance):
    """They are ½E[g″], and ½E[g″ + g′²] of the predictive density: g of the mean alone."""
    likelihood = ALL[name]()
    y, q = example(likelihood, n_rows=5)
    mean, var = q.mean.requires_grad_(), torch.full_like(q.var, variance).requires_grad_()
    log_p = likelihood.log_prob(y, mean[0])
    (first,) = torch.autograd.grad(log_p.sum(), mean, create_graph=True)
    by_output = [torch.autograd.grad(a.sum(), mean, retain_graph=True)[0] for a in first.unbind(-1)]
    second = torch.stack(by_output).diagonal(dim1=0, dim2=-1)
    cases = {
        "expected_log_prob": ("expected_gradients", 0.5 * second),
        "log_predictive": ("predictive_gradients", 0.5 * (second + first.square())),
    }
    for function, (of_derivatives, expected) in cases.items():
        value = getattr(likelihood, function)(y, Marginals(mean, var))
        d_mean, d_var = torch.autograd.grad(value.sum(), (mean, var))
        assert_close(d_mean, first, rtol=1e-5, atol=1e-6)
        assert_close(d_var, expected, rtol=1e-4, atol=1e-5)
        derivatives = getattr(likelihood, of_derivatives)(y, Marginals(mean, var))
        assert_close(derivatives[2], expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_are_finite(name, dtype):
    """No value or gradient is NaN or infinite, however far the data and wide or narrow q."""
    likelihood = ALL[name]().to(dtype)
    exp = isinstance(likelihood, Poisson) and likelihood.link == "exp"
    discrete = isinstance(likelihood, Bernoulli | Categorical)
    y = [0.0, 1.0] if discrete else [0.0, 1.0, 1e4]
    means = [-1e3, -30.0, 0.0, 30.0, 1e3]
    variances = [1e-12, 1e-6, 1.0, 1e3]
    grid = torch.cartesian_prod(*(torch.tensor(a, dtype=dtype) for a in (y, means, variances)))
    y, mean, var = grid.T[..., None]
    if isinstance(likelihood, Categorical):
        mean = mean * torch.tensor([1.0, -1.0, 0.5], dtype=dtype)
        var = var * torch.tensor([1.0, 0.1, 10.0], dtype=dtype)
    q = Marginals(mean[None].requires_grad_(), var[None].clone().requires_grad_())
    density = likelihood.log_predictive(y, q)
    gradients = torch.autograd.grad(density.sum(), q)
    assert all(a.isfinite().all() for a in (density, *gradients))
    if exp:  # exp(μ + v/2) overflows
        keep = (mean + 0.5 * var < (80.0 if dtype == torch.float32 else 700.0))[:, 0]
        y, q = y[keep], Marginals(q.mean[:, keep], q.var[:, keep])
    gradients = likelihood.expected_gradients(y, q)
    assert all(a.isfinite().all() and a.dtype == dtype for a in gradients)
    assert not likelihood.log_concave or (gradients[2] <= 0.0).all()
    if not exp:
        moments = likelihood.moments(q)
        assert all(a.isfinite().all() and a.dtype == dtype for a in moments)
        assert (moments.var >= 0.0).all()


@pytest.mark.parametrize("name", ALL)
def test_float32_is_float64_rounded(name):
    likelihood = ALL[name]()
    y, q = example(likelihood)
    single = copy.deepcopy(likelihood).float()
    y32, q32 = y.float(), Marginals(q.mean.float(), q.var.float())
    for method in ("log_predictive", "expected_log_prob"):
        actual, expected = getattr(single, method)(y32, q32), getattr(likelihood, method)(y, q)
        assert actual.dtype == torch.float32
        assert_close(actual.double(), expected, rtol=1e-4, atol=1e-4)
    for actual, expected in zip(
        single.expected_gradients(y32, q32), likelihood.expected_gradients(y, q), strict=True
    ):
        assert actual.dtype == torch.float32
        assert_close(actual.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_rows_do_not_depend_on_each_other(name):
    likelihood = ALL[name]()
    y, q = example(likelihood, n_rows=11, n_components=2)
    order = [3, 10, 0, 7, 1, 9, 2, 8, 4, 6, 5]
    # Quasi-random sums are the same to the last bit.
    tolerance = 0.0 if name == "softmax" else 1e-12
    for method in ("log_predictive", "expected_log_prob"):
        whole = getattr(likelihood, method)(y, q)
        rows = [
            getattr(likelihood, method)(y[[i]], Marginals(q.mean[:, [i]], q.var[:, [i]]))
            for i in order
        ]
        assert_close(torch.cat(rows), whole[order], rtol=tolerance, atol=tolerance)
    means = likelihood.moments(q).mean
    rows = [likelihood.moments(Marginals(q.mean[:, [i]], q.var[:, [i]])).mean for i in order]
    assert_close(torch.cat(rows, 1), means[:, order], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_nothing_global_is_random(name):
    likelihood = ALL[name]()
    state = torch.get_rng_state()
    y, q = example(likelihood)
    again, _ = example(likelihood)
    assert torch.equal(y, again)
    likelihood.log_predictive(y, q)
    likelihood.expected_gradients(y, q)
    assert torch.equal(torch.get_rng_state(), state)


# A sample variance of heavy tails has no variance.
# One against the rest has the normalised probabilities of several models, not those of a mixture.
@pytest.mark.parametrize(
    "name", [name for name in ALL if name not in ("heavy student_t", "one_vs_rest")]
)
@torch.no_grad()
@slow_cases("narrow", "light", "exposure")
def test_moments_are_those_of_draws(name):
    likelihood = ALL[name]()
    _, q = example(likelihood, n_rows=3)
    moments = likelihood.moments(q)
    generator = torch.Generator().manual_seed(1)
    n_draws = 100_000
    z = torch.randn(n_draws, *q.mean.shape[1:], generator=generator, dtype=torch.float64)
    y = likelihood.sample(q.mean[0] + q.var[0].sqrt() * z, generator)
    if isinstance(likelihood, Categorical):
        y = (y == torch.arange(3)).double()
    error = (moments.var[0] / n_draws).sqrt()
    # Softmax's probabilities are averages over 512 points.
    assert ((y.mean(0) - moments.mean[0]).abs() <= 4.5 * error + 2e-3 * (name == "softmax")).all()
    square = (y - moments.mean[0]).square()
    error = square.std(0) / math.sqrt(n_draws)
    bias = 2e-3 * (name == "softmax") + 1e-4 * (name == "robustmax")
    assert ((square.mean(0) - moments.var[0]).abs() <= 5 * error + bias).all()


@torch.no_grad()
def test_draws_have_the_distribution_of_the_noise():
    f = torch.zeros(20_000, 1, dtype=torch.float64)
    for likelihood, distribution in [
        (Gaussian(0.49), norm(scale=0.7)),
        (Laplace(0.7), laplace(scale=0.7)),
        (StudentT(0.7, 2.5), t(2.5, scale=0.7)),
    ]:
        y = likelihood.sample(f, torch.Generator().manual_seed(0))
        assert kstest(y[:, 0].numpy(), distribution.cdf).pvalue > 1e-3
        assert_allclose(likelihood.log_prob(y, f), distribution.logpdf(y), rtol=1e-9, atol=1e-12)
        assert float(likelihood.noise_quantile(0.9)) == pytest.approx(distribution.ppf(0.9))
        assert float(likelihood.noise_quantile(0.1)) == pytest.approx(distribution.ppf(0.1))
        assert float(likelihood.noise_variance) == pytest.approx(distribution.var())


@pytest.mark.parametrize("name", [n for n in SCALARS if isinstance(SCALARS[n](), AdditiveNoise)])
@pytest.mark.parametrize("var", [1e-6, 1.0, 1e3])
def test_the_density_is_the_derivative_of_the_distribution(name, var):
    likelihood = SCALARS[name]()
    q = Marginals(torch.full((2, 50, 1), 0.3).double(), torch.full((2, 50, 1), var).double())
    q = q._replace(mean=q.mean * f64([1.0, -1.0])[:, None, None])
    y = torch.linspace(-3, 3, 50, dtype=torch.float64)[:, None].requires_grad_()
    distribution = likelihood.cdf(y, q).mean(0)
    (density,) = torch.autograd.grad(distribution.sum(), y)
    expected = likelihood.log_predictive(y, q).exp().detach()
    assert_close(density[:, 0], expected, rtol=1e-6, atol=1e-9)
    assert float(likelihood.cdf(y + 1e9, q).detach().min()) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", [n for n in SCALARS if isinstance(SCALARS[n](), AdditiveNoise)])
@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("probability", [1e-3, 0.5, 0.975])
@torch.no_grad()
def test_quantiles_invert_the_distribution(name, n_components, probability):
    likelihood = SCALARS[name]()
    _, q = example(likelihood, n_components=n_components)
    quantile = likelihood.quantile(q, probability)
    assert quantile.shape == (7, 2)
    actual = likelihood.cdf(quantile, q).mean(0)
    assert_close(actual, torch.full_like(actual, probability), rtol=1e-9, atol=1e-12)
    if n_components == 1:
        assert_close(AdditiveNoise.quantile(likelihood, q, probability), quantile)


@pytest.mark.parametrize(("spread", "power", "most"), [(0.3, 0, 15), (3.0, 6, 74)])
@pytest.mark.parametrize("probability", [0.001, 0.025, 0.5, 0.975])
def test_quantiles_of_mixtures_take_few_steps(spread, power, most, probability, monkeypatch):
    """At most hardly more than bisection, with variances of 1e-8 beside others."""
    generator = torch.Generator().manual_seed(0)
    mean = spread * torch.randn(64, 200, 1, generator=generator, dtype=torch.float64)
    var = torch.rand(64, 200, 1, generator=generator, dtype=torch.float64) ** power + 1e-8
    calls, cdf = [], Marginals.cdf
    monkeypatch.setattr(Marginals, "cdf", lambda self, x: calls.append(1) or cdf(self, x))
    found = Marginals(mean, var).quantile(probability)
    level = torch.full_like(found, probability)
    assert_close(cdf(Marginals(mean, var), found), level, rtol=1e-9, atol=0.0)
    assert 5 < len(calls) <= most


@pytest.mark.parametrize("link", ["exp", "softplus"])
@pytest.mark.parametrize("mean", [-2.0, 1.5, 4.0])
@pytest.mark.parametrize("var", [1e-6, 0.1, 2.0])
@torch.no_grad()
@slow_cases("1e-06.*softplus", r"2\.0.*exp", "^0.1.*softplus", "^1e.*4.0-soft", "2.0-1.5-softplus")
def test_count_quantiles_are_sums_of_the_predictive_probabilities(link, mean, var):
    likelihood = Poisson(link, exposure=2.0)
    q = Marginals(f64([[[mean]], [[mean - 1.0]]]), f64([[[var]], [[2.0 * var]]]))  # (2, 1, 1)
    counts = torch.arange(4000, dtype=torch.float64)[:, None]
    rows = Marginals(q.mean.expand(2, 4000, 1), q.var.expand(2, 4000, 1))
    distribution = likelihood.log_predictive(counts, rows).exp().cumsum(0)
    for probability in (0.025, 0.5, 0.975):
        quantile = int(likelihood.quantile(q, probability))
        assert distribution[quantile] >= probability - 1e-5
        assert quantile == 0 or distribution[quantile - 1] < probability + 1e-5


@torch.no_grad()
def test_great_counts_have_quantiles():
    """Far narrower, given f, than q: the quantiles of the rate."""
    q = single(12.0, 1.0)
    for probability in (0.1, 0.9):
        expected = math.exp(norm.ppf(probability, 12.0, 1.0))
        assert float(Poisson().quantile(q, probability)) == pytest.approx(expected, rel=1e-4)
    assert float(Poisson().quantile(single(-30.0, 1e-6), 0.99)) == 0.0
    assert np.isfinite(float(Poisson().quantile(single(500.0, 1e3), 0.99)))


@pytest.mark.parametrize("name", ["logit", "probit"])
@torch.no_grad()
def test_probabilities_of_two_classes(name):
    likelihood = SCALARS[name]()
    _, q = example(likelihood, n_components=2)
    mean, var = likelihood.moments(q)
    assert_close(var, mean * (1 - mean), rtol=1e-12, atol=0.0)
    flipped = likelihood.moments(Marginals(-q.mean, q.var)).mean
    assert_close(mean + flipped, torch.ones_like(mean), rtol=1e-12, atol=0.0)
    for mean, var in [(0.0, 100.0), (5.0, 100.0), (-30.0, 10.0)]:
        p = float(likelihood.moments(single(mean, var)).mean)
        expected = math.exp(log_expectation(likelihood, 1.0, mean, var))
        assert p == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("link", ["softmax", "robustmax"])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
@torch.no_grad()
def test_probabilities_of_classes_sum_to_one(link, n_classes):
    likelihood = Categorical(n_classes, link)
    y, q = example(likelihood, n_components=2)
    mean, var = likelihood.moments(q)
    assert mean.shape == var.shape == (2, 7, n_classes)
    assert_close(mean.sum(-1), torch.ones(2, 7).double(), rtol=1e-12, atol=0.0)
    codes = torch.arange(n_classes).double().expand(7, -1)[..., None]  # (7, C, 1)
    log_p = torch.stack([likelihood.log_predictive(codes[:, c], q) for c in range(n_classes)], -1)
    assert_close(log_p.exp(), mean.mean(0), rtol=1e-12, atol=1e-12)
    f = q.mean
    assert_close(likelihood.log_prob(y, f).shape, torch.Size([2, 7, 1]))
    total = sum(likelihood.log_prob(codes[:, c], f).exp() for c in range(n_classes))
    assert_close(total, torch.ones_like(total))


@torch.no_grad()
def test_softmax_of_two_classes_is_logistic():
    likelihood = Categorical(2)
    y, q = example(likelihood, n_rows=50)
    difference = Marginals(q.mean[..., 1:] - q.mean[..., :1], q.var.sum(-1, keepdim=True))
    logit = Bernoulli()
    for method, tolerance in (("log_predictive", 2e-3), ("expected_log_prob", 5e-3)):
        expected = getattr(logit, method)(y, difference)
        assert_close(getattr(likelihood, method)(y, q), expected, rtol=0.0, atol=tolerance)
    _, d_mean, d_var = likelihood.expected_gradients(y, q)
    _, expected_mean, expected_var = logit.expected_gradients(y, difference)
    assert_close(d_mean[:, 1:], expected_mean, rtol=0.0, atol=5e-3)
    assert_close(d_var[:, 1:], expected_var, rtol=0.0, atol=5e-3)


@torch.no_grad()
def test_robustmax_of_two_classes_is_a_normal_probability():
    likelihood = Categorical(2, "robustmax", epsilon=0.01)
    y, q = example(likelihood, n_rows=50)
    z = (q.mean[..., 1] - q.mean[..., 0]) / q.var.sum(-1).sqrt()
    p = torch.special.ndtr(z)
    expected = 0.01 + 0.98 * p
    assert_close(likelihood.moments(q).mean[..., 1], expected, rtol=0.0, atol=1e-3)
    win = torch.where(y[:, 0] == 1.0, p[0], 1.0 - p[0])
    expected = win * math.log(0.99) + (1 - win) * math.log(0.01)
    assert_close(likelihood.expected_log_prob(y, q), expected, rtol=0.0, atol=0.02)


@torch.no_grad()
def test_blocks_of_rows_change_nothing(monkeypatch):
    for link in ("softmax", "robustmax"):
        likelihood = Categorical(3, link)
        y, q = example(likelihood, n_rows=9, n_components=2)
        whole = likelihood.log_predictive(y, q), likelihood.expected_log_prob(y, q)
        with monkeypatch.context() as context:
            context.setattr("skgpstoch.likelihoods.probabilities.BLOCK_FLOATS", 2 * 512 * 3 * 2)
            blocks = likelihood.log_predictive(y, q), likelihood.expected_log_prob(y, q)
            std_of_blocks = likelihood.probability_std(q)
        assert all(torch.equal(a, b) for a, b in zip(whole, blocks, strict=True))
        assert torch.equal(likelihood.probability_std(q), std_of_blocks)


# ---- how certain probabilities are ---------------------------------------------------------------

CLASSES = {
    "logit": lambda: Bernoulli("logit"),
    "probit": lambda: Bernoulli("probit"),
    "softmax of two": lambda: Categorical(2),
    "softmax": lambda: Categorical(3),
    "robustmax": lambda: Categorical(3, "robustmax", epsilon=0.05),
    "one_vs_rest": lambda: OneVsRest(3),
    "own": lambda: OwnLogistic(),
    "own of three": lambda: OwnSoftmax(3),
}


class OwnLogistic(Bernoulli):
    """Two classes that say nothing but log_prob."""

    log_class_probs = ClassLikelihood.log_class_probs
    class_probabilities = ClassLikelihood.class_probabilities


class OwnSoftmax(Categorical):
    """Several classes that say nothing but log_prob."""

    log_class_probs = ClassLikelihood.log_class_probs


def class_example(likelihood, n_rows=7, n_components=1):
    generator = torch.Generator().manual_seed(3)
    shape = (n_components, n_rows, likelihood.n_latents(1))
    mean = 2.0 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return Marginals(mean, 2.0 * torch.rand(shape, generator=generator, dtype=torch.float64))


def central_variance(g, mean, var):
    """∫ (g(f) − ∫gq)² q df by trapezoids, dense where g bends."""
    std = math.sqrt(var)
    f = np.unique(np.r_[mean + std * np.linspace(-12, 12, 8001), np.linspace(-60, 60, 60001)])
    f = f[np.abs(f - mean) < 12 * std]
    q = norm.pdf(f, mean, std)
    value = g(f)
    return np.trapezoid(np.square(value - np.trapezoid(value * q, f)) * q, f)


@pytest.mark.parametrize(("name", "g"), [("logit", expit), ("probit", norm.cdf)])
@pytest.mark.parametrize("mean", [0.0, 0.4, -3.0, 7.0, -30.0])
@torch.no_grad()
def test_variances_of_two_classes_are_integrals(name, g, mean):
    for var in (1e-3, 0.1, 0.999, 1.0, 1.001, 4.0, 50.0, 1e4):
        q = single(mean, var)
        found = float(CLASSES[name]().class_probabilities(q).var)
        if mean == -30.0 and name == "probit" and var < 4.0:
            continue  # where Φ²q is, the grid is not
        expected = central_variance(g, -abs(mean), var)  # where g has all its digits
        assert found == pytest.approx(expected, rel=1e-6)
        flipped = CLASSES[name]().class_probabilities(single(-mean, var))
        assert float(flipped.var) == found
        assert float(flipped.mean) == pytest.approx(1.0 - g_mean(name, q), abs=1e-12)


def g_mean(name, q):
    return float(CLASSES[name]().moments(q).mean)


@pytest.mark.parametrize("mean", [0.0, 2.0, -40.0, 300.0])
@torch.no_grad()
def test_tiny_variances_are_those_of_the_slope(mean):
    """g'(μ)²·v, to all digits, where neither moment of g has any left of their difference."""
    slopes = {"logit": expit(mean) * expit(-mean), "probit": norm.pdf(mean)}
    for name, slope in slopes.items():
        for var in (1e-8, 1e-16, 1e-30):
            found = float(CLASSES[name]().class_probabilities(single(mean, var)).var)
            tolerance = 2e-5 if name == "probit" else 1e-7  # g''(μ)²v²
            assert found == pytest.approx(slope**2 * var, rel=tolerance, abs=1e-300)


@torch.no_grad()
def test_a_very_uncertain_function_has_variances_of_a_coin():
    for name in ("logit", "probit"):
        q = Marginals(torch.zeros(1, 3, 1).double(), f64([1e6, 1e12, 1e30]).reshape(1, 3, 1))
        std = CLASSES[name]().probability_std(q)
        assert_close(std[1:], torch.full((2, 2), 0.5).double(), rtol=1e-5, atol=0.0)
        assert ((std > 0.499) & (std <= 0.5)).all()


@pytest.mark.parametrize("name", CLASSES)
@torch.no_grad()
@slow_cases("own of three", "softmax of two")
def test_variances_of_probabilities_are_those_of_draws(name):
    likelihood = CLASSES[name]()
    q = class_example(likelihood)
    generator = torch.Generator().manual_seed(1)
    n_draws = 100_000
    z = torch.randn(n_draws, *q.mean.shape[1:], generator=generator, dtype=torch.float64)
    p = likelihood.log_class_probs(q.mean[0] + q.var[0].sqrt() * z).exp()
    assert_close(p.sum(-1), torch.ones_like(p[..., 0]))
    mean, var = likelihood.class_probabilities(q)
    if mean.shape[-1] == 1:
        p = p[..., 1:]
    error = p.std(0) / math.sqrt(n_draws)
    quasi = 4e-3 if likelihood.n_latents(1) > 1 and "robustmax" not in name else 0.0
    assert ((p.mean(0) - mean[0]).abs() <= 4.5 * error + quasi).all()
    square = (p - mean[0]).square()
    error = square.std(0) / math.sqrt(n_draws)
    assert ((square.mean(0) - var[0]).abs() <= 5.0 * error + quasi).all()
    if name != "one_vs_rest":  # whose probabilities are those of several models, normalised
        expected = likelihood.moments(q).mean
        assert_close(mean[..., -expected.shape[-1] :], expected, rtol=0.0, atol=1e-5)


@torch.no_grad()
def test_softmax_of_two_classes_is_as_certain_as_logistic():
    likelihood = Categorical(2)
    q = class_example(likelihood, n_rows=50)
    difference = Marginals(q.mean[..., 1:] - q.mean[..., :1], q.var.sum(-1, keepdim=True))
    expected = Bernoulli().probability_std(difference)
    found = likelihood.probability_std(q)
    assert_close(found, expected, rtol=0.0, atol=5e-3)
    assert torch.equal(found[:, 0], found[:, 1])
    robust = Categorical(2, "robustmax", epsilon=0.01)
    win = torch.special.ndtr(difference.mean[0] / difference.var[0].sqrt())
    std = robust.probability_std(q)
    assert_close(std, (0.98 * (win * (1.0 - win)).sqrt()).expand(-1, 2), rtol=0.0, atol=1e-3)
    assert torch.equal(std[:, 0], std[:, 1])


@pytest.mark.parametrize("name", CLASSES)
@torch.no_grad()
def test_variances_of_a_mixture_are_within_and_between(name):
    likelihood = CLASSES[name]()
    q = class_example(likelihood, n_components=3)
    mean, var = likelihood.class_probabilities(q)
    expected = (var.mean(0) + (mean - mean.mean(0)).square().mean(0)).sqrt()
    std = likelihood.probability_std(q)
    assert std.shape == (7, max(2, likelihood.n_latents(1)))
    assert_close(std, expected.expand_as(std))


@pytest.mark.parametrize("name", CLASSES)
@torch.no_grad()
def test_certainties_at_extremes(name):
    """Finite, not negative and at most ½, and those of two classes the same."""
    likelihood = CLASSES[name]()
    means = f64([-1e6, -700.0, -1.0, 0.0, 1e-3, 40.0, 1e6])
    variances = f64([0.0, 1e-300, 1e-20, 1.0, 1e3, 1e12])
    mean, var = torch.cartesian_prod(means, variances).T[..., None]
    C = likelihood.n_latents(1)
    mean, var = mean * torch.linspace(1.0, -1.0, C).double(), var * 10.0 ** torch.arange(C).double()
    if name == "robustmax":
        var = var.clamp_min(1e-20)  # which quotients of deviations need
    std = likelihood.probability_std(Marginals(mean[None], var[None]))
    assert std.isfinite().all()
    assert ((std >= 0.0) & (std <= 0.5)).all()
    assert std.shape[1] > 2 or torch.equal(std[:, 0], std[:, 1])
    one_by_one = [
        likelihood.probability_std(Marginals(*(a[None, [i]] for a in (mean, var))))
        for i in range(len(mean))
    ]
    assert_close(torch.cat(one_by_one), std, rtol=1e-12, atol=1e-300)


@torch.no_grad()
def test_poisson_with_exposure():
    y, q = example(Poisson())
    exposure = torch.arange(1.0, 8.0).double()[:, None]
    likelihood = Poisson()
    given = likelihood.given(exposure)
    assert likelihood.exposure is None
    assert likelihood.given(None) is likelihood
    shifted = Marginals(q.mean + exposure.log(), q.var)
    for method in ("log_predictive", "expected_log_prob"):
        expected = getattr(likelihood, method)(y, shifted)
        assert_close(getattr(given, method)(y, q), expected, rtol=1e-10, atol=1e-10)
    assert_close(given.moments(q).mean, likelihood.moments(shifted).mean)
    assert_close(given.quantile(q, 0.9), likelihood.quantile(shifted, 0.9))
    with pytest.raises(ValueError, match="exposure must be None with Gaussian"):
        Gaussian().given(exposure)


@torch.no_grad()
def test_counts_without_dispersion_are_poisson():
    poisson, without = Poisson(exposure=3.0), NegativeBinomial(1e-8, exposure=3.0)
    y, q = example(poisson, n_components=2)
    for method in ("log_predictive", "expected_log_prob", "cdf"):
        expected = getattr(poisson, method)(y, q)
        assert_close(getattr(without, method)(y, q), expected, rtol=1e-4, atol=1e-4)
    assert_close(without.moments(q), poisson.moments(q), rtol=1e-5, atol=0.0)


@torch.no_grad()
@pytest.mark.parametrize("mean", [1e4, 1e9])
def test_large_counts_without_dispersion_are_poisson(mean):
    """The least dispersion made the deviation of 10⁹ thirty times that of Poisson counts."""
    poisson, without = Poisson(), NegativeBinomial(f64(1e-15))
    q = Marginals(f64([[[math.log(mean)]] * 3]), f64([[[1e-9]] * 3]))
    y = (mean + math.sqrt(mean) * f64([[-2.0], [0.0], [2.0]])).round()
    for method in ("log_predictive", "expected_log_prob", "cdf"):
        expected = getattr(poisson, method)(y, q)
        assert_close(getattr(without, method)(y, q), expected, rtol=0.0, atol=1e-5)
    assert_close(without.moments(q), poisson.moments(q), rtol=1e-5, atol=0.0)
    assert_close(without.quantile(q, 0.1), poisson.quantile(q, 0.1), rtol=1e-8, atol=0.0)
    slopes = without.by_log_dispersion(y, q.mean[0])
    assert_close(slopes, 0.5e-15 * ((y - mean).square() - y), rtol=0.1, atol=1e-7)


@pytest.mark.parametrize("a", [1.05, 5.0, 1e6])
@pytest.mark.parametrize("b", [1.0, 1.001, 1.1, 3.0, 1e4])
def test_nodes_of_a_beta_variables_logit_have_its_moments(a, b):
    """Also where the tail below reaches so far that its odds are all rounding; without warnings."""
    t, weights = logit_beta_nodes(np.array([a]), np.array([b]))
    mean = weights[:, 0] @ t[:, 0]
    var = polygamma(1, a) + polygamma(1, b)
    assert abs(mean - (digamma(b) - digamma(a))) < 1e-9 * np.sqrt(var)
    assert_allclose(weights[:, 0] @ (t[:, 0] - mean) ** 2, var, rtol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("y", [0.0, 3.0, 1e4, 1e9])
def test_ratios_of_gamma_functions_do_not_jump(y):
    """Where Stirling's series takes over."""
    k = f64([STIRLING * (1.0 - 1e-12), STIRLING])
    for function in (log_rising, rising_slope):
        low, high = function(f64(y), k)
        assert_close(low, high, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@torch.no_grad()
def test_a_row_with_a_ratio_has_a_dispersion_of_its_own():
    y, q = example(NegativeBinomial(), n_components=2)
    ratio = 0.5 + torch.rand(q.mean.shape, dtype=torch.float64)
    scaled = NegativeBinomial(0.5, exposure=3.0).scaled(ratio)
    for s, n in itertools.product(range(2), range(len(y))):
        own = NegativeBinomial(0.5 * ratio[s, n].square(), exposure=3.0)
        one = Marginals(*(part[[s]][:, [n]] for part in q))
        assert_close(scaled.log_components(y, q)[s, n], own.log_components(y[[n]], one)[0, 0])
        assert_close(scaled.moments(q).var[s, n], own.moments(one).var[0, 0])
        assert_close(scaled.of_components(torch.full((1, len(y)), s)).ratio[0], ratio[s])
    by_count = scaled.cdf(y, q) - torch.where(y > 0.0, scaled.cdf(y - 1.0, q), 0.0)
    p = mixture_log_mean(scaled.log_components(y, q))
    assert_close(by_count[0], p.exp(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "likelihood",
    [Poisson("exp", 3.0), Poisson("softplus", 3.0), NegativeBinomial(0.7, 3.0)],
    ids=repr,
)
@torch.no_grad()
def test_moments_of_counts_are_integrals(likelihood):
    dispersion = getattr(likelihood, "dispersion", torch.zeros(()))
    for mean, var in [(0.5, 0.3), (-3.0, 4.0), (20.0, 1.0)]:
        f, weights = integration_grid(likelihood, 0.0, mean, var)
        q = weights * norm.pdf(f, mean, math.sqrt(var))
        rate = likelihood.log_rate(f64(np.minimum(f, 300.0))).exp().numpy()
        first, second = (q * rate).sum(), (q * rate**2).sum()
        actual = likelihood.moments(single(mean, var))
        assert float(actual.mean) == pytest.approx(first, rel=1e-7)
        of_counts = first + (1.0 + float(dispersion)) * second - first**2
        assert float(actual.var) == pytest.approx(of_counts, rel=1e-6)


@torch.no_grad()
def test_initial_means_fit_the_marginal_distribution():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(501, 2, generator=generator, dtype=torch.float64)
    assert_close(Gaussian().initial_mean(Rows(y)), y.mean(0))
    for likelihood in (Laplace(), StudentT()):
        assert_close(likelihood.initial_mean(Rows(y)), y.median(0).values)
    ones = (y > 0.5).double()
    for link in ("logit", "probit"):
        likelihood = Bernoulli(link)
        f = likelihood.initial_mean(Rows(ones))
        p = likelihood.log_prob(torch.ones_like(f), f).exp()
        assert_close(p, ones.mean(0), rtol=0.0, atol=2e-3)
        assert likelihood.initial_mean(Rows(torch.zeros_like(y))).isfinite().all()
    codes = torch.tensor([0.0, 0.0, 2.0]).double()[:, None]
    f = Categorical(3).initial_mean(Rows(codes))
    assert_close(f.softmax(-1), f64([2.5, 0.5, 1.5]) / 4.5)
    assert float(f.sum()) == pytest.approx(0.0, abs=1e-12)
    for link in ("exp", "softplus"):
        counts = torch.poisson(y.exp(), generator=generator)
        exposure = 1.0 + torch.rand(501, 1, generator=generator, dtype=torch.float64)
        f = Poisson(link).initial_mean(Rows(counts, exposure=exposure))
        rate = Poisson(link).log_rate(f).exp()
        assert_close(rate, (counts.sum(0) + 0.5) / exposure.sum(), rtol=1e-9, atol=0.0)
        assert Poisson(link).initial_mean(Rows(torch.zeros_like(y))).isfinite().all()


@torch.no_grad()
def test_scales_are_initialised_from_the_targets():
    generator = torch.Generator().manual_seed(0)
    f = torch.full((20_001, 1), 5.0, dtype=torch.float64)
    for truth in (Laplace(0.3), StudentT(0.3, 4.0)):
        likelihood = make_likelihood("laplace" if isinstance(truth, Laplace) else "student_t")
        likelihood = likelihood.for_outputs(1)
        likelihood.initialise(Rows(truth.sample(f, generator)))
        assert float(likelihood.scale) == pytest.approx(0.3, rel=0.05)
        assert likelihood.log_scale.requires_grad
        likelihood.initialise(Rows(f))  # constant: nothing to go by
        assert float(likelihood.scale) == pytest.approx(0.3, rel=0.05)
        mostly = f.clone()
        mostly[:100] += 1.0
        likelihood.initialise(Rows(mostly))
        assert 0.0 < float(likelihood.scale) < 0.05
    gaussian = Gaussian(0.5)
    gaussian.initialise(Rows(f))
    assert float(gaussian.noise_variance) == pytest.approx(0.5)


def test_counts_are_checked():
    Poisson().check_targets(np.array([[0], [3]]))
    Gaussian().check_targets(np.array([[-0.5]]))
    for wrong in (-1.0, 0.5, np.nan, np.inf):
        with pytest.raises(ValueError, match=f"y must hold counts .*, got {wrong}"):
            Poisson().check_targets(np.array([[1.0], [wrong]]))


@pytest.mark.parametrize("name", ALL)
def test_likelihoods_are_copied_pickled_and_cloned(name):
    class Estimator(BaseEstimator):
        def __init__(self, likelihood=None):
            self.likelihood = likelihood

    likelihood = ALL[name]()
    y, q = example(likelihood)
    expected = likelihood.log_predictive(y, q)
    for other in (
        copy.deepcopy(likelihood),
        pickle.loads(pickle.dumps(likelihood)),
        clone(Estimator(likelihood)).likelihood,
        make_likelihood(likelihood),
        likelihood.for_outputs(2),
    ):
        assert other is not likelihood
        assert type(other) is type(likelihood)
        assert_close(other.log_predictive(y, q), expected)
        for parameter in other.parameters():
            parameter.data.add_(1.0)
    assert_close(likelihood.log_predictive(y, q), expected)
    assert repr(likelihood).startswith(type(likelihood).__name__ + "(")
    assert "\n" not in repr(likelihood)


def test_parameters_for_each_output():
    likelihood = StudentT(0.5, 3.0).for_outputs(3)
    assert likelihood.log_scale.shape == likelihood.log_df_minus_2.shape == (3,)
    assert likelihood.log_scale.requires_grad
    assert repr(likelihood) == "StudentT(scale=[0.5, 0.5, 0.5], df=[3, 3, 3])"
    assert_close(likelihood.for_outputs(3).scale, likelihood.scale)
    with pytest.raises(
        ValueError, match=r"log_scale of Student.* 2 outputs of y, got shape \(3,\)"
    ):
        likelihood.for_outputs(2)
    assert Poisson().n_latents(3) == 3
    assert Categorical(4).n_latents(1) == Categorical().for_classes(4).n_latents(1) == 4
    robust = Categorical(link="robustmax", epsilon=0.1).for_classes(3)
    assert repr(robust) == "Categorical(n_classes=3, link='robustmax', epsilon=0.1)"
    assert Categorical(3).log_concave
    assert not robust.log_concave
    assert not StudentT().log_concave


def test_likelihoods_by_name():
    classes = {
        "gaussian": Gaussian,
        "student_t": StudentT,
        "laplace": Laplace,
        "poisson": Poisson,
        "negative_binomial": NegativeBinomial,
        "bernoulli": Bernoulli,
        "softmax": Categorical,
        "robustmax": Categorical,
    }
    for name, cls in classes.items():
        assert type(make_likelihood(name)) is cls
    assert make_likelihood("bernoulli").link == "logit"
    assert make_likelihood("robustmax").link == "robustmax"
    with pytest.raises(ValueError, match=r"likelihood must be .*'gaussian'.*got 'normal'"):
        make_likelihood("normal")
    with pytest.raises(TypeError, match=r"likelihood must be .*'softmax'.*got None"):
        make_likelihood(None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(0.0), r"noise_variance must be finite and greater than 0, got 0\.0"),
        (lambda: Laplace(-1.0), r"scale must be finite and greater than 0, got -1\.0"),
        (lambda: Laplace(math.nan), "scale must be finite"),
        (lambda: StudentT(df=2.0), r"df must be finite and greater than 2, got 2\.0"),
        (lambda: Bernoulli("cauchit"), r"link must be one of .*probit.*, got 'cauchit'"),
        (lambda: Poisson("log"), r"link must be one of .*softplus.*, got 'log'"),
        (lambda: Poisson(exposure=0.0), r"exposure must be positive, got 0\.0"),
        (lambda: Categorical(1), "n_classes must be at least 2, or None, got 1"),
        (lambda: Categorical(link="max"), r"link must be one of .*robustmax.*, got 'max'"),
        (lambda: Categorical(epsilon=1.0), r"epsilon must be inside \(0, 1\), got 1\.0"),
        (lambda: Categorical().n_latents(1), "does not know n_classes yet"),
        (lambda: Laplace().quantile(None, 1.0), r"probability must be inside \(0, 1\), got 1\.0"),
        (lambda: Poisson().quantile(None, 0.0), r"probability must be inside \(0, 1\), got 0\.0"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_normal_tails():
    """Values and derivatives of log Φ, where torch's own derivative is wrong, and of moments."""
    z = f64([-1e9, -1e6, -101.0, -99.0, -30.0, -1.0, 0.0, 1.0, 6.0, 40.0]).requires_grad_()
    value = log_ndtr(z)
    assert_allclose(value.detach(), norm.logcdf(z.detach()), rtol=1e-12, atol=1e-300)
    (derivative,) = torch.autograd.grad(value.sum(), z)
    expected = np.exp(norm.logpdf(z.detach()[4:]) - norm.logcdf(z.detach()[4:]))
    assert_allclose(derivative[4:], expected, rtol=1e-10)
    assert_allclose(derivative[:2], [1e9, 1e6], rtol=1e-10)
    for mean, var, k in [(0.3, 2.0, 1.0), (-50.0, 0.1, 3.0), (50.0, 0.1, 3.0), (0.0, 1e6, 20.0)]:
        std = math.sqrt(var)
        expected = 0.5 * k**2 * var - k * mean + norm.logcdf(mean / std - k * std)
        assert float(log_half_moment(f64(mean), f64(var), k)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("method", ["log_prob", "moments", "sample"])
def test_what_a_likelihood_must_define(method):
    class Incomplete(Likelihood):
        pass

    with pytest.raises(NotImplementedError, match=f"Incomplete must define {method}"):
        getattr(Incomplete(), method)(*[None] * (1 if method == "moments" else 2))


@pytest.mark.parametrize("hook", ["noise_variance", "noise_quantile", "cdf"])
def test_what_an_additive_noise_must_define(hook):
    class Incomplete(AdditiveNoise):
        pass

    incomplete = Incomplete()
    arguments = {"noise_variance": None, "noise_quantile": (0.5,), "cdf": (None, None)}[hook]
    with pytest.raises(NotImplementedError, match=f"Incomplete must define {hook}"):
        incomplete.noise_variance if arguments is None else getattr(incomplete, hook)(*arguments)
    with pytest.raises(NotImplementedError, match="Bernoulli must define quantile"):
        Bernoulli().quantile(None, 0.5)


class Uniform(AdditiveNoise):
    """ε ~ U(−w, w), by a name that nobody expects."""

    scale_powers: ClassVar[dict[str, float]] = {"log_width": 1.0}

    def __init__(self):
        super().__init__()
        self.log_width = torch.nn.Parameter(torch.zeros(1))

    @property
    def noise_variance(self):
        return self.log_width.exp().square() / 3.0


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_a_function_without_variance_is_known(name, dtype):
    """Densities are p(y | f), and nothing is NaN, with a variance of nothing or of next to it."""
    likelihood = ALL[name]().to(dtype)
    means = torch.tensor([0.0, 1e-310, -1.7e-183, -3.0, 4.0], dtype=dtype)
    variances = torch.tensor([0.0, 5e-324, 1e-310, 1e-200, 1e-40], dtype=dtype)
    mean, var = torch.cartesian_prod(means, variances).T[..., None]
    y = torch.ones_like(mean)
    if name in ("softmax", "robustmax", "one_vs_rest"):
        mean = mean * torch.tensor([1.0, -1.5, 0.5], dtype=dtype)
        var = var.expand_as(mean)
    q = Marginals(mean[None], var[None])
    known = likelihood.log_prob(y, mean).sum(-1)
    if name == "one_vs_rest":  # whose probabilities are normalised
        known = likelihood.log_class_probs(mean)[:, 1]
    if name == "robustmax":
        known, q = known[5 * 3 :], Marginals(q.mean[:, 5 * 3 :], q.var[:, 5 * 3 :])  # but for ties
        y = y[5 * 3 :]
    np.testing.assert_allclose(likelihood.log_predictive(y, q), known, rtol=1e-4, atol=1e-6)
    if name != "one_vs_rest":
        np.testing.assert_allclose(likelihood.expected_log_prob(y, q), known, rtol=1e-4, atol=1e-6)
    found = [*likelihood.moments(q), *likelihood.expected_gradients(y, q)]
    found += likelihood.predictive_gradients(y, q)
    if isinstance(likelihood, AdditiveNoise):
        found += [likelihood.cdf(y, q), likelihood.quantile(q, 0.9)]
    if name not in ("robustmax", "one_vs_rest") and likelihood.log_concave:
        found += likelihood.product_samples(y.double(), q.double(), 2, torch.Generator())[:1]
    assert all(a.isfinite().all() for a in found)


@pytest.mark.parametrize("name", [name for name in ALL if "exp" not in name])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_huge_means_and_variances_have_densities(name, dtype):
    likelihood = ALL[name]().to(dtype)
    means = torch.tensor([-1e15, -1e6, 1e6, 1e10], dtype=dtype)
    variances = torch.tensor([0.0, 1e-12, 1.0, 1e6, 1e12], dtype=dtype)
    mean, var = torch.cartesian_prod(means, variances).T[:, None, :, None]
    if name in ("softmax", "robustmax", "one_vs_rest"):
        mean, var = (a.expand(-1, -1, 3) for a in (mean, var))
    q, y = Marginals(mean, var), torch.ones(mean.shape[1], 1, dtype=dtype)
    found = [*likelihood.moments(q), likelihood.log_predictive(y, q)]
    found += likelihood.expected_gradients(y, q)
    assert all(a.isfinite().all() for a in found)


@pytest.mark.parametrize("mean", [0.0, -1.7e-183, -3.0, 50.0])
def test_a_function_without_variance_has_its_own_probability(mean):
    q = Marginals(torch.full((1, 1, 1), mean).double(), torch.zeros(1, 1, 1).double())
    p = Bernoulli().moments(q).mean.item()
    np.testing.assert_allclose(p, expit(mean), rtol=1e-12)
    assert Bernoulli().class_probabilities(q).var.item() <= 1e-30


def test_noise_of_ones_own_changes_with_the_unit_of_y():
    small = Uniform()
    large = small.in_units(torch.tensor([10.0]))
    torch.testing.assert_close(large.noise_variance, 100.0 * small.noise_variance)

    class Nameless(Uniform):
        scale_powers: ClassVar[dict[str, float]] = {"log_scale": 1.0}

    with pytest.raises(NotImplementedError, match=r"none of the parameters \['log_scale'\]"):
        Nameless().in_units(torch.tensor([10.0]))


def test_noise_that_ignores_its_ratio_cannot_depend_on_the_inputs():
    X = np.linspace(-1.0, 1.0, 20)[:, None]
    model = SVGPRegressor(likelihood=Uniform(), noise="input", loss="log", n_inducing=3)
    with pytest.raises(ValueError, match="does not multiply its noise by `times_ratio`"):
        model.fit(X, X[:, 0])


def test_every_likelihood_is_tested_here():
    found = {
        name
        for name, value in vars(likelihoods).items()
        if isinstance(value, type) and issubclass(value, Likelihood)
    }
    tested = {type(make()).__name__ for make in ALL.values()}
    # That with a shared precision is no mean over q: tests/test_deep_kernel_ensemble.py.
    assert found == tested | {"Likelihood", "AdditiveNoise", "ClassLikelihood", "SharedStudentT"}


def squares(x):
    return with_slopes(x.detach()[:, 0] ** 2, (x, 2.0 * x.detach()))


def probabilities(x):
    q = Marginals(x[None], torch.ones_like(x)[None])
    return Bernoulli("logit").log_predictive(torch.ones_like(x), q)


def kernels(x):
    return from_sklearn(sk.DotProduct() * sk.RBF())(x, x.detach() + 1.0).sum(1)


@pytest.mark.parametrize("function", [squares, probabilities, kernels])
def test_first_derivatives_by_formulas_have_no_others(function):
    """Which autograd would otherwise take to be 0, beside what else depends on the inputs."""
    x = torch.ones(3, 1).double().requires_grad_()
    (alone,) = torch.autograd.grad(function(x).sum(), x)
    (slope,) = torch.autograd.grad(function(x).sum() + (x**3).sum(), x, create_graph=True)
    assert_close(slope.detach(), alone + 3.0)
    with pytest.raises(RuntimeError, match="Second derivatives are not available"):
        torch.autograd.grad(slope.sum(), x)


def test_limits_of_f_are_those_of_the_rates_of_all_rows(monkeypatch):
    rng = np.random.default_rng(0)
    e, w = rng.uniform(0.5, 2.0, (50, 1)), rng.uniform(0.5, 2.0, 50)
    y = rng.poisson(e * 20.0 * rng.gamma(0.3, 1.0 / 0.3, (50, 1))).astype(float)
    columns = dict(zip(("y", "weight", "exposure"), map(torch.tensor, (y, w, e)), strict=True))
    rows, likelihood = Rows(**columns), likelihoods.Poisson()
    rate = (w @ y[:, 0] + 0.5) / (w @ e[:, 0])
    excess = w @ (np.square(y - e * rate) - y)[:, 0] / (w @ np.square(e * rate)[:, 0])
    var = np.log1p(max(excess, 1.0))
    highest = np.log(((y + 0.5) / e).max()) + np.sqrt(var)
    expected = np.array([[np.log(rate) - 0.5 * var], [np.sqrt(var)], [highest]])
    assert excess > 1.0
    assert_allclose(limits_of_f(likelihood, rows), expected)
    monkeypatch.setattr(arrays.row_blocks, "__defaults__", (7,))
    assert_allclose(limits_of_f(likelihood, rows), expected)

    def of_part(group):
        whole = Whole(50, float(w.sum()), group)
        return limits_of_f(likelihood, replace(rows[group.rank :: 3], whole=whole))

    for found in on_ranks(of_part, 3):
        assert_allclose(found, expected)
    assert limits_of_f(Gaussian(1.0), rows) is None
    assert limits_of_f(likelihoods.Poisson(link="softplus"), rows) is None

"""Closed forms against quadrature, and both against scipy; the tails, in log space."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import norm
from torch.testing import assert_close

from skgpstoch import likelihoods
from skgpstoch.gaussian import Marginals, log_density, quadrature_nodes
from skgpstoch.likelihoods import Gaussian, Likelihood, mixture_log_mean

NOISE = torch.tensor([0.3, 2.0], dtype=torch.float64)


class Poisson(Likelihood):
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


def test_poisson_in_the_tail_is_finite():
    """y = 300 under a rate of about 1/20: every p(y | f) is below the least float."""
    q = Marginals(*(torch.full((1, 1, 1), a, dtype=torch.float64) for a in (-3.0, 0.25)))
    y = torch.full((1, 1), 300.0, dtype=torch.float64)
    assert float(Poisson().log_predictive(y, q)) == pytest.approx(-1396.7, abs=0.1)
    f, log_weights = quadrature_nodes(q)
    assert float((log_weights.exp() * Poisson().log_prob(y, f).exp()).sum()) == 0.0


def test_poisson_quadrature_equals_integrals():
    y, q = marginals(1)
    y = y.abs().mul(3).round()
    f = torch.linspace(-15, 15, 20_001, dtype=torch.float64)[:, None, None, None]
    weights = log_density(f, q.mean, q.var).exp() * 30 / 20_000
    log_p = Poisson().log_prob(y, f)
    expected = (weights * log_p).sum(0)[0].sum(-1), (weights * log_p.exp()).sum(0)[0].log().sum(-1)
    assert_close(Poisson().expected_log_prob(y, q), expected[0], rtol=1e-6, atol=1e-6)
    assert_close(Poisson().log_predictive(y, q), expected[1], rtol=1e-6, atol=1e-6)


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


@pytest.mark.parametrize("method", ["log_prob", "moments", "sample"])
def test_what_a_likelihood_must_define(method):
    class Incomplete(Likelihood):
        pass

    with pytest.raises(NotImplementedError, match=f"Incomplete must define {method}"):
        getattr(Incomplete(), method)(*[None] * (1 if method == "moments" else 2))


def test_every_likelihood_is_tested_here():
    found = {
        name
        for name, value in vars(likelihoods).items()
        if isinstance(value, type) and issubclass(value, Likelihood)
    }
    assert found == {"Likelihood", "Gaussian"}

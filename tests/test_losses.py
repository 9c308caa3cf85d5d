"""Losses and their gradients, exact and sampled, against dense integrals; and their best q(w)."""

import itertools
import math
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from families import by_default, slow_cases
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import gammaln, log_ndtr, logsumexp
from scipy.stats import kstest, norm, t
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from test_sparse import (
    ALL_LIKELIHOODS,
    dense_features,
    dense_kl,
    full_covariance,
    gradients,
    k,
    log_normal,
    make_problem,
    random_moments,
)
from torch.testing import assert_close

from skgpstoch import FITCRegressor
from skgpstoch.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Laplace,
    Likelihood,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from skgpstoch.likelihoods.rejection import accept_reject
from skgpstoch.likelihoods.sampled import peak, widest
from skgpstoch.losses import (
    ExpectedLogLikelihood,
    FullyIndependent,
    LogLoss,
    Loss,
    SquareLoss,
    make_loss,
    monte_carlo_gradients,
    product_gradients,
)
from skgpstoch.maths.gaussian import Marginals
from skgpstoch.maths.linalg import NotPositiveDefiniteError
from skgpstoch.models import sparse
from skgpstoch.models.calibration import square_loss
from skgpstoch.models.features.base import Basis
from skgpstoch.models.posteriors.blocks import WeightMoments
from skgpstoch.models.sparse import SparsePosterior
from skgpstoch.objectives import optimal_q
from skgpstoch.objectives.adam import GradientObjective
from skgpstoch.objectives.elbo import expected_score
from skgpstoch.objectives.lbfgs import FullBatchObjective
from skgpstoch.objectives.natural import ProfiledObjective

F64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def f64(values):
    return torch.tensor(values, dtype=F64)


# ---- densities of scalars
def log_normal_density(x, mean, var):
    return -0.5 * (math.log(2.0 * math.pi * var) + (x - mean) ** 2 / var)


def log_laplace(y, f, scale):
    return -abs(y - f) / scale - math.log(2.0 * scale)


def log_softplus(f):
    return np.where(f < -30.0, f, np.log(np.logaddexp(0.0, np.maximum(f, -30.0))))


def log_poisson(y, log_rate):
    with np.errstate(over="ignore"):
        return y * log_rate - np.exp(log_rate) - gammaln(y + 1.0)


def log_student(y, f, scale, df):
    return t.logpdf(y, df, f, scale)


LOG_P = {
    "gaussian": (log_normal_density, (0.3,)),
    "laplace": (log_laplace, (0.7,)),
    "narrow_laplace": (log_laplace, (0.01,)),
    "student_t": (log_student, (0.3, 4.0)),
    "heavy_student_t": (log_student, (0.05, 2.2)),
    "logit": (lambda y, f: -np.logaddexp(0.0, (1.0 - 2.0 * y) * f), ()),
    "probit": (lambda y, f: log_ndtr((2.0 * y - 1.0) * f), ()),
    "exp": (lambda y, f: log_poisson(y, f), ()),
    "exp_exposure": (lambda y, f: log_poisson(y, f + math.log(30.0)), ()),
    "softplus": (lambda y, f: log_poisson(y, log_softplus(f)), ()),
    "softplus_exposure": (lambda y, f: log_poisson(y, log_softplus(f) + math.log(0.02)), ()),
}
"""log p(y | f, parameters) and the parameters."""

SCALARS = {
    "gaussian": lambda noise=0.3: Gaussian(noise),
    "laplace": lambda scale=0.7: Laplace(scale),
    "narrow_laplace": lambda scale=0.01: Laplace(scale),
    "student_t": lambda scale=0.3, df=4.0: StudentT(scale, df),
    "heavy_student_t": lambda scale=0.05, df=2.2: StudentT(scale, df),
    "logit": lambda: Bernoulli("logit"),
    "probit": lambda: Bernoulli("probit"),
    "exp": lambda: Poisson("exp"),
    "exp_exposure": lambda: Poisson("exp", 30.0),
    "softplus": lambda: Poisson("softplus"),
    "softplus_exposure": lambda: Poisson("softplus", 0.02),
}
scalars = pytest.mark.parametrize("name", SCALARS)

HARD = {
    "gaussian": [(30.0, 0.0, 0.5), (-1e4, 2.0, 10.0), (0.5, 0.0, 1e-6)],
    "laplace": [(40.0, 0.0, 0.5), (-200.0, 0.0, 10.0), (1.0, 0.0, 1e-6), (0.001, 0.0, 10.0)],
    "narrow_laplace": [(5.0, 0.0, 1.0), (0.3, 0.0, 10.0), (0.0, 2.0, 1e-6), (-0.02, 0.0, 1e-3)],
    "student_t": [(8.0, 0.0, 1.0), (-100.0, 0.0, 0.1), (4.0, 0.0, 10.0), (2.0, 0.0, 1e-6)],
    "heavy_student_t": [(3.0, 0.0, 1.0), (1e3, 0.0, 1.0), (0.5, 0.0, 10.0), (-2.0, 0.0, 0.1)],
    "logit": [(1.0, -40.0, 1.0), (0.0, 60.0, 10.0), (1.0, -8.0, 1e-6), (0.0, 30.0, 30.0)],
    "probit": [(1.0, -30.0, 1.0), (0.0, 50.0, 10.0), (1.0, -6.0, 1e-6), (1.0, 20.0, 10.0)],
    "exp": [
        (300.0, -3.0, 0.25), (1e4, -10.0, 10.0), (1e4, 10.0, 1e-6), (0.0, 10.0, 10.0),
        (0.0, -10.0, 1e-6), (3.0, 8.0, 0.5), (1e4, 0.0, 1e-6),
    ],
    "exp_exposure": [(300.0, -3.0, 0.25), (0.0, 5.0, 1.0)],
    "softplus": [
        (300.0, -3.0, 0.25), (1e4, -10.0, 10.0), (0.0, 10.0, 10.0), (0.0, -10.0, 1e-6),
        (1e4, 10.0, 1e-6), (5.0, 50.0, 2.0),
    ],
    "softplus_exposure": [(300.0, -3.0, 0.25), (0.0, 500.0, 10.0)],
}  # fmt: skip
"""(y, μ, v) where y is far from what q expects, or q far wider or narrower than p(y | f)."""


def cases(name, step=1):
    """Moderate and all hard ones: the list, y (N, 1) and q (1, N, 1)."""
    counts = name.startswith(("exp", "softplus"))
    targets = (0.0, 1.0, 7.0) if counts else (0.0, 1.0)
    moderate = list(itertools.product(targets, (0.2, -2.0), (0.01, 0.5, 4.0)))
    found = moderate[::step] + HARD[name]
    return found, *as_rows(found)


def as_rows(found):
    y, mean, var = f64(found).T[..., None]
    return y, Marginals(mean[None], var[None])


# ---- q(f) p(y | f), by quadrature on panels
NODES, WEIGHTS = np.polynomial.legendre.leggauss(5)


def bisect(h, inside, outside):
    """Where h, true inside, becomes false."""
    for _ in range(50):
        middle = 0.5 * (inside + outside)
        inside, outside = (middle, outside) if h(middle) else (inside, middle)
    return outside


def panel_edges(name, log_joint, y, mean, var, parameters):
    std = math.sqrt(var)
    if "student" in name:  # two modes, perhaps
        near = parameters[0] * np.sinh(np.linspace(-11.0, 11.0, 1501))
        return np.union1d(mean + std * np.linspace(-14.0, 14.0, 1501), y + near)
    reach = 14.0 * std + var * (abs(y) + abs(y - mean) + abs(mean) + 1.0)
    reach += 14.0 * var / (parameters[0] if parameters else 1.0)
    low, high = mean - reach, mean + reach
    for _ in range(25):  # the mode
        f = np.linspace(low, high, 41)
        values = log_joint(f)
        i = values.argmax()
        low, high = f[max(i - 1, 0)], f[min(i + 1, 40)]
    mode, least = f[i], values[i] - 46.0
    ends = [bisect(lambda f: log_joint(f) > least, mode, mode + s * 2.0 * reach) for s in (-1, 1)]
    edges = np.union1d(np.linspace(ends[0], mode, 401), np.linspace(mode, ends[1], 401))
    return np.union1d(edges, [y]) if "laplace" in name and ends[0] < y < ends[1] else edges


def product(name, y, mean, var, parameters=None):
    """q̃(f) = q(f) p(y | f)/Z: its nodes f and weights w, log Z, and moments of its score."""
    log_p, defaults = LOG_P[name]
    parameters = defaults if parameters is None else parameters

    def log_joint(f):
        return log_p(y, f, *parameters) + log_normal_density(f, mean, var)

    edges = panel_edges(name, log_joint, y, mean, var, parameters)
    half = 0.5 * np.diff(edges)[:, None]
    f = (edges[:-1, None] + half * (1.0 + NODES)).ravel()
    log_w = log_joint(f) + np.log((half * WEIGHTS).ravel())
    log_z = logsumexp(log_w)
    w = np.exp(log_w - log_z)
    # In units of √v: the score is x/√v.
    x = (f - mean) / math.sqrt(var)
    a, b = w @ x, 0.5 * (w @ (x**2) - 1.0)
    errors = (w @ (x - a) ** 2) ** 0.5, 0.5 * (w @ (x**2 - 1.0 - 2.0 * b) ** 2) ** 0.5
    scale = np.array([math.sqrt(var), var])
    alpha, delta = np.array([a, b]) / scale
    return SimpleNamespace(
        f=f, w=w, edges=edges, log_z=log_z, alpha=alpha, delta=delta, std=np.array(errors) / scale
    )  # a, b


def products(name, found):
    """log Z, α and δ of all cases: (N,) each."""
    all_ = [product(name, *case) for case in found]
    return all_, *(np.array([getattr(p, key) for p in all_]) for key in ("log_z", "alpha", "delta"))


@scalars
def test_scores_are_derivatives_of_the_integral(name):
    """What the tests below compare with: α and δ are central differences of log Z."""
    for y, mean, var in cases(name)[0][::4]:
        p, h = product(name, y, mean, var), 1e-4
        by_mean, by_var = (
            [product(name, y, *at).log_z for at in pair]
            for pair in (
                ((mean + h * math.sqrt(var), var), (mean - h * math.sqrt(var), var)),
                ((mean, var * (1 + h)), (mean, var * (1 - h))),
            )
        )
        size = 1e-5 * (1.0 + abs(p.log_z))
        assert p.alpha * math.sqrt(var) == pytest.approx(-np.diff(by_mean)[0] / (2 * h), abs=size)
        assert p.delta * var == pytest.approx(-np.diff(by_var)[0] / (2 * h), abs=size)


# ---- log-loss, exact
ACCURACY = {"gaussian": 1e-9, "probit": 1e-9, "laplace": 1e-7, "narrow_laplace": 1e-7}


def check_gradients(found, actual, alpha, delta, tolerance):
    """To a part of what is natural: 1/√v and 1/v are the scales of scores."""
    for (y, mean, var), a, d, *expected in zip(
        found, *(x[:, 0] for x in actual), alpha, delta, strict=True
    ):
        std = math.sqrt(var)
        wanted = [pytest.approx(e, rel=tolerance, abs=tolerance / s)
                  for e, s in zip(expected, (std, var), strict=True)]  # fmt: skip
        assert [float(a), float(d)] == wanted, (y, mean, var)


@scalars
def test_log_loss_and_its_gradient_are_those_of_the_integral(name):
    found, y, q = cases(name)
    _, log_z, alpha, delta = products(name, found)
    tolerance = ACCURACY.get(name, 1e-6)
    value, mean, var = SCALARS[name]().predictive_gradients(y, q)
    np.testing.assert_allclose(value.detach(), log_z, rtol=tolerance, atol=tolerance)
    check_gradients(found, (mean, var), alpha, delta, tolerance)
    assert not mean.requires_grad
    assert not var.requires_grad


@pytest.mark.parametrize("name", ["gaussian", "probit"])
def test_log_loss_in_closed_form(name):
    found, y, q = cases(name)
    value = LogLoss().expected_score(y, SCALARS[name](), q, 0 * y[:, 0]).value
    y, mean, var = np.array(found).T
    expected = norm.logpdf(y, mean, np.sqrt(var + 0.3))
    if name == "probit":
        expected = norm.logcdf((2 * y - 1) * mean / np.sqrt(1 + var))
    np.testing.assert_allclose(value.detach(), expected, rtol=1e-11)


def outputs(name, seed=1, N=6):
    """y, q and a likelihood of two outputs, each with parameters of its own; exposures (N, 1)."""
    g = generator(seed)
    P = 3 if name in ("softmax", "robustmax") else 2
    mean = torch.randn(1, N, P, generator=g, dtype=F64)
    q = Marginals(mean, 0.05 + 2.0 * torch.rand(1, N, P, generator=g, dtype=F64))
    likelihood = ALL_LIKELIHOODS[name]().for_outputs(P)
    for parameter in likelihood.parameters():
        parameter.data += torch.linspace(0.0, 0.5, P, dtype=F64)
    if isinstance(likelihood, Poisson):
        likelihood = likelihood.given(0.5 + torch.arange(N, dtype=F64)[:, None])
    f = mean[0] + q.var[0].sqrt() * torch.randn(N, P, generator=g, dtype=F64)
    return likelihood.sample(f.detach(), g).detach(), q, likelihood


every = pytest.mark.parametrize("name", ALL_LIKELIHOODS)


@every
def test_predictive_gradients_are_autograd_of_the_predictive_density(name):
    """By q and by the likelihood's parameters, of several outputs, with exposures."""
    y, q, likelihood = outputs(name)
    inputs = [a.clone().requires_grad_() for a in q]
    parameters = list(likelihood.parameters())
    dense = likelihood.log_predictive(y, Marginals(*inputs))
    weights = torch.linspace(1.0, 2.0, len(y), dtype=F64)
    by_mean, by_var = torch.autograd.grad(dense.sum(), inputs, retain_graph=True)
    value, mean, var = likelihood.predictive_gradients(y, q)
    tol = {"softmax": 2e-2, "robustmax": 1e-3}.get(name, 1e-7)
    assert value.shape == y.shape[:1]
    assert mean.shape == var.shape == q.mean.shape[1:]
    assert_close(value, dense, rtol=0, atol=tol)
    assert_close(mean, by_mean[0], rtol=0, atol=tol)
    assert_close(var, by_var[0], rtol=0, atol=tol)
    if parameters:
        ours, theirs = (
            torch.autograd.grad((v * weights).sum(), parameters) for v in (value, dense)
        )
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other, rtol=1e-9, atol=1e-9)
    else:
        assert not value.requires_grad


@every
def test_the_curvature_is_the_second_derivative(name):
    """∂²/∂μ² log E[p] = 2δ − α², by differences of α; κ is minus that, and never negative."""
    y, q, likelihood = outputs(name)
    term = LogLoss().expected_score(y, likelihood, q, torch.zeros(len(y), dtype=F64))
    h, tol = 1e-5, {"softmax": 5e-2, "robustmax": 5e-3}.get(name, 1e-5)
    for j in range(q.mean.shape[2]):
        shift = h * torch.eye(q.mean.shape[2], dtype=F64)[j]
        ends = [
            likelihood.predictive_gradients(y, q._replace(mean=q.mean + s * shift))[1][:, j]
            for s in (1, -1)
        ]
        second = (ends[0] - ends[1]) / (2 * h)
        assert_close((2 * term.explained - term.mean**2)[:, j], second, rtol=tol, atol=tol)
        assert_close(term.curvature[:, j], (-second).clamp_min(0.0), rtol=tol, atol=tol)
    assert torch.equal(term.explained, term.residual)


def product_rule(mean, var, n_nodes=40):
    """Nodes (K, N, 3) and log weights (K,) of independent normals; with their graph."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    z = torch.cartesian_prod(*[torch.from_numpy(nodes)] * 3)[:, None]
    w = torch.cartesian_prod(*[torch.from_numpy(weights)] * 3).prod(1) / (2 * math.pi) ** 1.5
    return mean + var.sqrt() * z, w.log()


def test_softmax_is_the_integral_in_three_dimensions():
    y, q, likelihood = outputs("softmax")
    mean, var = (a[0].clone().requires_grad_() for a in q)
    f, log_w = product_rule(mean, var)
    log_p = torch.log_softmax(f, -1).gather(-1, y.long().expand(len(f), -1, 1))[..., 0]
    expected = torch.logsumexp(log_w[:, None] + log_p, 0)
    by_mean, by_var = torch.autograd.grad(expected.sum(), (mean, var))
    value, d_mean, d_var = likelihood.predictive_gradients(y, q)
    assert_close(value, expected.detach(), rtol=0, atol=5e-3)
    assert_close(d_mean, by_mean, rtol=0, atol=5e-3)
    assert_close(d_var, by_var, rtol=0, atol=5e-3)


def test_robustmax_is_the_integral_over_the_greatest():
    y, q, likelihood = outputs("robustmax")
    mean, var = (a[0].clone().requires_grad_() for a in q)
    z = torch.linspace(-10.0, 10.0, 2001, dtype=F64)
    expected = []
    for i, c in enumerate(y[:, 0].long()):
        std, rest = var[i].sqrt(), [j for j in range(3) if j != c]
        f = (mean[i, c] + std[c] * z).detach()
        density = torch.distributions.Normal(mean[i, c], std[c]).log_prob(f).exp()
        below = torch.special.ndtr((f[:, None] - mean[i, rest]) / std[rest]).prod(1)
        win = (density * below).sum() * (f[1] - f[0])
        expected.append(torch.log(win * (1 - 1e-3) + (1 - win) * 1e-3 / 2))
    expected = torch.stack(expected)
    by_mean, by_var = torch.autograd.grad(expected.sum(), (mean, var))
    value, d_mean, d_var = likelihood.predictive_gradients(y, q)
    assert_close(value, expected.detach(), rtol=0, atol=1e-4)
    assert_close(d_mean, by_mean, rtol=0, atol=1e-3)
    assert_close(d_var, by_var, rtol=0, atol=1e-3)


def two_classes(found):
    """Rows of two latents whose difference has these means and variances, y in {0, 1}."""
    y, q = as_rows(found)
    mean = torch.cat([-0.25 * q.mean, 0.75 * q.mean], -1)
    return y, Marginals(mean, torch.cat([0.3 * q.var, 0.7 * q.var], -1))


IMPROBABLE = [(1.0, -30.0, 1.0), (0.0, 25.0, 4.0), (1.0, -3.0, 6.0), (0.0, 1.0, 0.5), (1.0, 9.0, 2)]


def test_softmax_of_improbable_classes_is_logistic():
    y, q = two_classes(IMPROBABLE)
    _, log_z, alpha, delta = products("logit", IMPROBABLE)
    value, mean, var = Categorical(2).predictive_gradients(y, q)
    np.testing.assert_allclose(value, log_z, rtol=0, atol=1.5e-2)
    for c, sign in enumerate((-1.0, 1.0)):
        np.testing.assert_allclose(sign * mean[:, c], alpha, rtol=0, atol=1e-2)
        np.testing.assert_allclose(var[:, c], delta, rtol=0, atol=1e-2)


def test_softmax_under_a_wide_q_is_logistic():
    """Where Newton's steps to the mode of q(f) p(y | f) go astray unless they are damped."""
    found = list(itertools.product((0.0, 1.0), (-30.0, -10.0, -3.0), (20.0, 100.0, 1000.0)))
    y, q = two_classes(found)
    _, log_z, alpha, delta = products("logit", found)
    value, mean, var = Categorical(2).predictive_gradients(y, q)
    np.testing.assert_allclose(value, log_z, rtol=0, atol=0.1)
    np.testing.assert_allclose(mean[:, 1], alpha, rtol=0.1, atol=0.02)
    np.testing.assert_allclose(var[:, 1], delta, rtol=0.1, atol=0.02)
    draws = Categorical(2).product_samples(y, q, 1000, generator(2))
    assert draws.acceptance_rate > 0.2


# ---- draws from q(f) p(y | f) (uPS)
N_DRAWS = 25_000


@scalars
@slow_cases("narrow_laplace", "heavy", "exposure")
def test_product_sampling_is_unbiased(name):
    """α and δ of each row within 4 standard errors, which the integral knows."""
    found, y, q = cases(name, 4)
    all_, _, alpha, delta = products(name, found)
    value, mean, var = product_gradients(y, SCALARS[name](), q, N_DRAWS, generator(3))
    error = np.array([p.std for p in all_]) / math.sqrt(N_DRAWS)
    z = (np.stack([mean[:, 0], var[:, 0]], 1) - np.stack([alpha, delta], 1)) / error
    assert np.abs(z).max() < 4.0, z
    assert np.abs(z).max() > 0.1
    assert value.isfinite().all()


@pytest.mark.parametrize(
    "name", ["gaussian", "laplace", "narrow_laplace", "student_t", "heavy_student_t"]
)
@slow_cases("narrow", "heavy")
def test_product_sampling_is_unbiased_for_the_likelihoods_parameters(name):
    """d log Z/dθ = E[∂ log p(y | f)/∂θ] of noise, scale and degrees of freedom."""
    log_p, defaults = LOG_P[name]
    for case in cases(name, 7)[0]:
        y, q = as_rows([case])
        likelihood = SCALARS[name]()
        value, _, _ = product_gradients(y, likelihood, q, N_DRAWS, generator(4))
        estimates = torch.autograd.grad(value.sum(), list(likelihood.parameters()))
        for j, estimate in enumerate(estimates):
            # Parameters are log σ², log s and log(ν − 2).
            h = 1e-5 * (defaults[j] - (2.0 if j == 1 else 0.0))
            up, down = ([*defaults[:j], defaults[j] + s * h, *defaults[j + 1 :]] for s in (1, -1))
            p = product(name, *case)
            slope = (log_p(case[0], p.f, *up) - log_p(case[0], p.f, *down)) / 2e-5
            expected = p.w @ slope
            error = math.sqrt(p.w @ (slope - expected) ** 2 / N_DRAWS)
            assert abs(float(estimate) - expected) < 4.0 * error + 1e-7, case
            ends = [product(name, *case, parameters=at).log_z for at in (up, down)]
            tolerance = 1e-4 * (1.0 + abs(ends[0]))
            assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "logit", "probit", "exp"])
@slow_cases("gaussian")
def test_the_papers_proposals_are_unbiased(name):
    """α and δ within 4 standard errors, where y is not far from what q expects."""
    y_, means = (
        ((0.0, 1.0), (-0.5, 1.0)) if name in ("logit", "probit") else ((1.0, 2.0), (0.2, 1.5))
    )
    found = list(itertools.product(y_, means, (0.05, 1.0)))
    y, q = as_rows(found)
    all_, _, alpha, delta = products(name, found)
    _, mean, var = product_gradients(y, SCALARS[name](), q, N_DRAWS, generator(3), "normal")
    error = np.array([p.std for p in all_]) / math.sqrt(N_DRAWS)
    z = (np.stack([mean[:, 0], var[:, 0]], 1) - np.stack([alpha, delta], 1)) / error
    assert 0.1 < np.abs(z).max() < 4.0, z


@pytest.mark.parametrize("name", ["gaussian", "laplace", "logit", "probit", "exp", "softplus"])
def test_the_papers_proposals_are_as_wide_as_their_bound_holds(name):
    """The largest k up to 10 with √k max p in [a, b] ≤ max p, on a grid; and none is exceeded."""
    log_p, parameters = LOG_P[name]
    moderate = itertools.product((0.0, 1.0), (-3.0, 0.5, 2.0), (0.05, 2.0))
    found = [*moderate, (1.0, -30.0, 0.5)]
    y, q = as_rows(found)
    everywhere = np.union1d(np.linspace(-60.0, 60.0, 48_001), [0.0, 1.0])

    def ours(f):
        return SCALARS[name]().log_prob(y, f)

    best = peak(ours, 1.0 + y.abs())
    widths = widest(ours, q.mean[0], q.var[0], best)[:, 0].tolist()
    for (y_, mean, var), width, height in zip(
        found, widths, ours(best)[:, 0].tolist(), strict=True
    ):
        most = log_p(y_, everywhere, *parameters).max()
        assert height == pytest.approx(most, abs=1e-6)

        def holds(k, y=y_, mean=mean, var=var, most=most):
            reach = math.sqrt(var * k * math.log(k) / (k - 1.0))
            inside = np.append(np.linspace(mean - reach, mean + reach, 2001), y)
            inside = inside[abs(inside - mean) <= reach]
            return 0.5 * math.log(k) + log_p(y, inside, *parameters).max() <= most

        assert width == max([1, *(k for k in range(2, 11) if holds(k))])
        log_ratio = log_normal_density(everywhere, mean, var) - log_normal_density(
            everywhere, mean, width * var
        )
        assert (log_ratio + log_p(y_, everywhere, *parameters)).max() <= height + 1e-9
    assert {1.0, 10.0} <= set(widths)


def test_the_papers_proposals_say_why_they_are_rejected(monkeypatch):
    """An outlier is no sign of a likelihood that is not log-concave."""
    monkeypatch.setattr("skgpstoch.likelihoods.rejection.MAX_ROUNDS", 20)
    y, q = as_rows([(30.0, 0.0, 0.1)])
    with pytest.raises(NotPositiveDefiniteError, match=r"far from what q.*proposal='envelope'"):
        product_gradients(y, Gaussian(0.01), q, 3, generator(), "normal")


def test_what_the_papers_proposals_are_not_for():
    for likelihood in (StudentT(0.3, 4.0), Categorical(3)):
        with pytest.raises(
            ValueError, match="proposal='normal' needs a log-concave likelihood of one"
        ):
            LogLoss("product", proposal="normal").check(likelihood)


@pytest.mark.slow
def test_many_draws_find_what_is_exact():
    """One draw finds the bound's best q(f) of a count; more and more find that of the log-loss."""
    y, beta, n = 6.0, 0.3, 200
    z, w = np.polynomial.hermite_e.hermegauss(80)

    def cost(theta, is_bound):
        """β KL[N(m, e²ʳ) ‖ N(0, 1)] and the loss of the count, by Gauss and Hermite."""
        mean, r = theta
        log_p = log_poisson(y, mean + math.exp(r) * z)
        gain = w @ log_p / w.sum() if is_bound else logsumexp(log_p, b=w / w.sum())
        return 0.5 * beta * (mean**2 + math.exp(2.0 * r) - 1.0 - 2.0 * r) - gain

    def descend(growth):
        """The mean of n descents with draws of their own."""
        g, rows = generator(), torch.full((n, 1), y, dtype=F64)
        mean, r = torch.full((2, n, 1), 1.5, dtype=F64) * f64([1.0, -0.9])[:, None, None]
        for step in range(150):
            var, rate = (2.0 * r).exp(), 0.3 / (1.0 + step) ** 0.5
            q = Marginals(mean[None], var[None])
            loss = LogLoss("biased", 1 + growth * step)
            term = loss.expected_score(rows, Poisson(), q, rows[:, 0] * 0.0, g)
            mean = mean - rate * (beta * mean - term.mean)
            r = r - rate * (beta * (var - 1.0) - 2.0 * var * term.explained)
        return [float(mean.mean()), float(r.mean())]

    bound, exact = (minimize(cost, [1.5, -1.3], args=(b,)).x for b in (True, False))
    assert abs(bound - exact).max() > 0.19
    assert_allclose(descend(growth=0), bound, atol=0.02)
    assert_allclose(descend(growth=1), exact, atol=0.02)


@scalars
@slow_cases("narrow", "heavy", "exposure")
def test_draws_follow_the_product(name):
    found, y, q = cases(name, 5)
    with torch.no_grad():
        f = SCALARS[name]().product_samples(y, q, 5000, generator(5)).f  # (S, N, 1)
    assert f.dtype == F64
    for i, case in enumerate(found):
        p = product(name, *case)
        below = np.concatenate([[0.0], p.w.reshape(-1, len(NODES)).sum(1).cumsum()])
        sample = f[:, i, 0].numpy()
        distance = kstest(sample, lambda x, b=below, p=p: np.interp(x, p.edges, b)).statistic
        assert distance * math.sqrt(len(sample)) < 2.1, case  # one in 3000


def test_draws_of_two_latents_follow_the_product():
    """Their difference that of the logistic likelihood, their sum given it that of q."""
    y, q = two_classes(IMPROBABLE)
    draws = Categorical(2).product_samples(y, q, 20_000, generator(6))
    assert draws.acceptance_rate > 0.2
    f = draws.f.numpy()
    for i, case in enumerate(IMPROBABLE):
        p = product("logit", *case)
        below = np.concatenate([[0.0], p.w.reshape(-1, len(NODES)).sum(1).cumsum()])
        d = f[:, i, 1] - f[:, i, 0]
        distance = kstest(d, lambda x, b=below, p=p: np.interp(x, p.edges, b)).statistic
        assert distance * math.sqrt(len(d)) < 2.1, case
        # 0.7 f₀ + 0.3 f₁ is independent of the difference under q, and so under q̃.
        mean, var = q.mean[0, i].numpy(), q.var[0, i].numpy()
        weights = var[::-1] / var.sum()
        sum_ = norm(weights @ mean, math.sqrt(weights**2 @ var))
        assert kstest(f[:, i] @ weights, sum_.cdf).statistic * math.sqrt(len(d)) < 2.1
        assert abs(np.corrcoef(f[:, i] @ weights, d)[0, 1]) < 4.0 / math.sqrt(len(d))


def test_product_sampling_of_improbable_classes_is_unbiased():
    y, q = two_classes(IMPROBABLE)
    all_, _, alpha, delta = products("logit", IMPROBABLE)
    _, mean, var = product_gradients(y, Categorical(2), q, N_DRAWS, generator(7))
    # The score by one latent has the variance of q beside that of the difference.
    for c, sign in enumerate((-1.0, 1.0)):
        v = q.var[0, :, c].numpy()
        error = np.sqrt(np.array([p.std[0] for p in all_]) ** 2 + 1.0 / v) / math.sqrt(N_DRAWS)
        assert (np.abs(sign * mean[:, c].numpy() - alpha) < 4.0 * error).all()
        assert (np.abs(var[:, c].numpy() - delta) < 12.0 / v / math.sqrt(N_DRAWS)).all()


@pytest.mark.parametrize("n_classes", [3, 10])
def test_product_sampling_of_many_classes_is_unbiased(n_classes):
    g = generator(8)
    mean = 3.0 * torch.randn(1, 5, n_classes, generator=g, dtype=F64)
    q = Marginals(mean, 0.1 + 3.0 * torch.rand(1, 5, n_classes, generator=g, dtype=F64))
    y = torch.arange(5.0, dtype=F64)[:, None] % n_classes
    likelihood = Categorical(n_classes)
    draws = likelihood.product_samples(y, q, N_DRAWS, g)
    assert draws.acceptance_rate > 0.2
    f = draws.f
    # Two estimates of the same: the score of q, and (Bonnet) the slope of log p, at other draws.
    score = (f[: N_DRAWS // 2] - q.mean) / q.var
    slope = torch.nn.functional.one_hot(y[:, 0].long(), n_classes) - f[N_DRAWS // 2 :].softmax(-1)
    error = ((score.var(0) + slope.var(0)) / (N_DRAWS // 2)).sqrt()
    assert float(((score.mean(0) - slope.mean(0)) / error).abs().max()) < 4.0
    _, exact, _ = likelihood.predictive_gradients(y, q)
    assert_close(slope.mean(0), exact, rtol=0, atol=0.03)


# ---- how they are drawn
def sweep(name, n=9):
    """y from nothing to 10⁴ (or both classes), μ in [−10, 10], v in [10⁻⁶, 10]."""
    y = [0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 1e3, 1e4]
    y = y[:2] if name in ("logit", "probit") else y
    means, variances = np.linspace(-10.0, 10.0, n), 10.0 ** np.arange(-6, 2)
    return as_rows(list(itertools.product(y, means, variances)))


@scalars
@slow_cases("narrow_laplace", "heavy", "exposure")
def test_envelopes_are_upper_bounds_whose_mass_is_what_is_accepted(name):
    likelihood = SCALARS[name]()
    found, y, q = cases(name)
    with torch.no_grad():
        envelope = likelihood.product_envelope(y, q)
        low, high = envelope.ends
        unit = torch.linspace(-1.0, 2.0, 30_001, dtype=F64)[:, None, None]
        x = low + (high - low) * (unit + 1e-9)
        height = envelope.log_height(x)
        assert height.isfinite().all()
        if "student" in name:  # of u = log τ
            half = 0.5 * likelihood.df
            total = q.var + likelihood.scale.square() * (-x).exp()
            target = half * (x - x.expm1()) - 0.5 * (total.log() + (y - q.mean).square() / total)
        else:
            f, (log_p, parameters) = x.numpy(), LOG_P[name]
            target = torch.from_numpy(log_p(y.numpy(), f, *parameters))
            target = target + torch.distributions.Normal(q.mean, q.var.sqrt()).log_prob(x)
        slack = 1e-9 * (1.0 + target.amax(0).abs())
        assert float((target - height - slack).max()) <= 0.0
        # Both integrated by the same trapezoids: the share of proposals that is accepted.
        share = (torch.logsumexp(target, 0) - torch.logsumexp(height, 0)).exp()[:, 0]
    for i in range(0, len(found), 3) if name != "gaussian" else ():  # which needs none
        row = Marginals(q.mean[:, [i]], q.var[:, [i]])
        draws = likelihood.product_samples(y[[i]], row, 20_000, generator(i))
        rate, p = draws.acceptance_rate, float(share[i])
        assert rate == pytest.approx(p, abs=5.0 * math.sqrt(p * (1 - p) / 20_000) + 2e-3), found[i]


@scalars
@slow_cases("narrow_laplace", "heavy", "exposure")
def test_proposals_are_accepted_whatever_the_row_is(name):
    y, q = sweep(name)
    draws = SCALARS[name]().product_samples(y, q, 5, generator(9))
    assert draws.f.isfinite().all()
    assert draws.acceptance_rate > 0.3
    worst = min(
        SCALARS[name]().product_samples(a, Marginals(*(b[None] for b in b_)), 200, generator(1))
        .acceptance_rate
        for a, *b_ in zip(y.split(60), q.mean[0].split(60), q.var[0].split(60), strict=True)
    )  # fmt: skip
    assert worst > 0.2


def test_only_what_is_pending_is_proposed_for():
    """Row i accepts its (i + 1)-th proposal: what is asked for, and what that counts as."""
    seen, count = [], torch.zeros(4, 2)

    def propose(rows):
        seen.append(rows.tolist())
        count[rows] += 1.0
        ready = count[rows, 0] > rows
        log_ratio = torch.where(ready, 0.0, -torch.inf)[:, None].expand(-1, 2)
        return rows[:, None].double().expand(-1, 2), log_ratio

    draws = accept_reject(propose, 1, torch.zeros(4, 2, dtype=F64), generator())
    assert seen == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    assert draws.n_proposed == 2 * (4 + 3 + 2 + 1)
    assert draws.acceptance_rate == 8 / 20
    assert torch.equal(draws.f[0, :, 1], torch.arange(4.0, dtype=F64))


def test_an_accepted_draw_is_kept_while_another_output_waits():
    """Else draws would be conditional on the others' waiting."""
    turn = iter(range(10))

    def propose(rows):
        i = next(turn)
        x = torch.full((len(rows), 2), float(i), dtype=F64)
        return x, torch.tensor([[0.0, 0.0 if i == 3 else -torch.inf]]).expand(len(rows), 2)

    draws = accept_reject(propose, 1, torch.zeros(1, 2, dtype=F64), generator())
    assert draws.f[0, 0].tolist() == [0.0, 3.0]
    assert draws.n_proposed == 2 + 3


@every
def test_draws_are_those_of_the_generator(name):
    y, q, likelihood = outputs(name)
    before, state = [a.clone() for a in (y, *q)], torch.get_rng_state()
    if name == "robustmax":
        for gradient in ("biased", "smoothed", "product"):
            with pytest.raises(ValueError, match="gradient='exact'"):
                LogLoss(gradient).check(likelihood)
        return
    for gradient in ("biased", "smoothed", "product"):
        loss, none = LogLoss(gradient, n_samples=3), torch.zeros(len(y), dtype=F64)
        one, again, other = (
            loss.expected_score(y, likelihood, q, none, generator(s)) for s in (1, 1, 2)
        )
        assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
        assert not torch.equal(one.mean, other.mean)
        # Without a generator there are no draws: predictions are judged exactly.
        exact = LogLoss().expected_score(y, likelihood, q, none)
        assert torch.equal(loss.expected_score(y, likelihood, q, none).mean, exact.mean)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(before, (y, *q), strict=True))


# ---- plain Monte Carlo (bMC)
def repeated(name, n, row=2):
    """n times the same row."""
    y, q, likelihood = outputs(name)
    if isinstance(likelihood, Poisson):
        likelihood = likelihood.given(likelihood.exposure[[row]].expand(n, 1))
    many = Marginals(*(a[:, [row]].expand(1, n, -1) for a in q))
    return y[[row]].expand(n, -1), many, likelihood


sampled = pytest.mark.parametrize("name", [n for n in ALL_LIKELIHOODS if n != "robustmax"])


@sampled
@slow_cases("laplace", "poisson$")
def test_one_draw_gives_the_gradient_of_the_expected_loss_and_many_the_log_losss(name):
    """E ∇ log p(y | f) = ∇ E log p(y | f): the bias of S = 1, which falls with S."""
    n = 20_000
    y, q, one = repeated(name, 1)
    _, of_log, of_log_by_var = one.predictive_gradients(y, q)
    _, of_expected, _ = one.expected_gradients(y, q)
    slack, bias = 1e-2 if name == "softmax" else 1e-6, {}
    for S, size in ((1, n), (8, n // 4), (64, n // 16)):
        y, q, likelihood = repeated(name, size)
        _, mean, _ = monte_carlo_gradients(y, likelihood, q, S, 0.0, generator(S))
        error, bias[S] = mean.std(0) / math.sqrt(size), (mean.mean(0) - of_log[0]).abs()
        if S == 1:
            assert ((mean.mean(0) - of_expected[0]).abs() < 4.0 * error + slack).all()
            worst = int((bias[1] / error).argmax())
            assert float(bias[1][worst]) > 8.0 * float(error[worst])
    assert float(bias[8][worst]) < 0.5 * float(bias[1][worst])
    assert float(bias[64][worst]) < 0.15 * float(bias[1][worst])
    y, q, one = repeated(name, 1)
    value, mean, var = monte_carlo_gradients(y, one, q, 400_000, 0.0, generator(1))
    assert_close(value, one.predictive_gradients(y, q)[0], rtol=0, atol=1.5e-2)
    assert_close(mean, of_log, rtol=0, atol=3e-2)
    assert_close(var, of_log_by_var, rtol=0, atol=3e-2)


@sampled
@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_sampled_values_and_gradients_belong_together(name, jitter):
    """At the same draws, by central differences, and by the likelihood's parameters."""
    y, q, likelihood = outputs(name)

    def value(q):
        return monte_carlo_gradients(y, likelihood, q, 7, jitter, generator(2))[0].detach()

    total, mean, var = monte_carlo_gradients(y, likelihood, q, 7, jitter, generator(2))
    g = generator(3)
    d_mean, d_var = (torch.randn(mean.shape, generator=g, dtype=F64) for _ in range(2))
    ends = [value(Marginals(q.mean + h * d_mean, q.var + h * d_var)) for h in (1e-6, -1e-6)]
    slope = (mean * d_mean + var * d_var).sum(1)
    assert_close((ends[0] - ends[1]) / 2e-6, slope, rtol=1e-6, atol=1e-6)
    for parameter in likelihood.parameters():
        (ours,) = torch.autograd.grad(total.sum(), parameter, retain_graph=True)
        step = torch.randn(parameter.shape, generator=g, dtype=F64)
        parameter.data += 1e-6 * step
        up = value(q).sum()
        parameter.data -= 2e-6 * step
        down = value(q).sum()
        parameter.data += 1e-6 * step
        assert float((up - down) / 2e-6) == pytest.approx(float((ours * step).sum()), rel=1e-5)


@sampled
def test_smoothing_adds_jitter_inside_the_logarithm(name):
    """log(ε + p): of a q of no width, where draws do not matter, and of many draws."""
    y, q, likelihood = outputs(name)
    eps = 0.05
    narrow = q._replace(var=torch.full_like(q.var, 1e-24))
    value, mean, _ = monte_carlo_gradients(y, likelihood, narrow, 4, eps, generator())
    f = q.mean[0].clone().requires_grad_()
    expected = (eps + likelihood.log_prob(y, f).exp()).log().sum(-1)
    (slope,) = torch.autograd.grad(expected.sum(), f, retain_graph=True)
    assert_close(value, expected, rtol=0, atol=1e-9)
    assert_close(mean, slope, rtol=0, atol=1e-9)
    loss = LogLoss("smoothed", n_samples=4, jitter=eps)
    term = loss.expected_score(y, likelihood, narrow, torch.zeros(len(y), dtype=F64), generator())
    assert_close(term.value, expected, rtol=0, atol=1e-9)


KINDS = ["exact", "biased", "smoothed", "product"]


@scalars
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_no_value_or_gradient_is_infinite(name, dtype):
    y, q = sweep(name)
    y, q = y.to(dtype), Marginals(q.mean.to(dtype), q.var.to(dtype))
    none = torch.zeros(len(y), dtype=dtype)
    likelihood = SCALARS[name]().to(dtype)
    parameters = list(likelihood.parameters())
    for kind in KINDS:
        term = LogLoss(kind, n_samples=3).expected_score(y, likelihood, q, none, generator())
        assert all(a.isfinite().all() for a in term), kind
        assert {a.dtype for a in term} == {dtype}
        assert (term.curvature >= 0.0).all()
        for g in torch.autograd.grad(term.value.sum(), parameters) if parameters else ():
            assert g.isfinite().all()


@pytest.mark.parametrize("name", ["softmax", "robustmax"])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_no_value_or_gradient_of_classes_is_infinite(name, dtype):
    grid = torch.cartesian_prod(
        torch.arange(3.0), torch.linspace(-30.0, 30.0, 7), 10.0 ** torch.arange(-6.0, 3.0, 2.0)
    ).to(dtype)
    y, mean, var = grid.T[..., None]
    mean = mean * torch.tensor([1.0, -1.0, 0.5], dtype=dtype)
    q = Marginals(mean[None], (var * torch.tensor([1.0, 0.1, 10.0], dtype=dtype))[None])
    none = torch.zeros(len(y), dtype=dtype)
    for kind in KINDS if name == "softmax" else KINDS[:1]:
        loss = LogLoss(kind, n_samples=3)
        term = loss.expected_score(y, ALL_LIKELIHOODS[name](), q, none, generator())
        assert all(a.isfinite().all() and a.dtype == dtype for a in term), kind


@every
def test_jensen(name):
    """β-ELBO ≥ log-loss, row by row."""
    y, q, likelihood = outputs(name, N=40)
    none = torch.zeros(len(y), dtype=F64)
    expected, log = (
        loss.expected_score(y, likelihood, q, none).value
        for loss in (ExpectedLogLikelihood(), LogLoss())
    )
    assert (expected <= log + 5e-3 * (name == "softmax")).all()
    assert float((log - expected).detach().mean()) > 1e-3


# ---- square loss and Brier's score
def dense_square(name, y, mean, var, likelihood):
    """(y − E[y])², or Brier's score, with a graph to q."""
    z = torch.linspace(-12.0, 12.0, 6001, dtype=F64)[:, None, None]
    weights = torch.exp(-0.5 * z**2) / torch.exp(-0.5 * z**2).sum()
    f = mean + var.sqrt() * z
    if name == "softmax":
        f, log_w = product_rule(mean, var)
        p = (log_w.exp()[:, None, None] * f.softmax(-1)).sum(0)
        return (torch.nn.functional.one_hot(y[:, 0].long(), 3) - p).square().sum(1)
    exposure = getattr(likelihood, "exposure", None)
    g = {
        "logit": torch.sigmoid,
        "probit": torch.special.ndtr,
        "poisson": lambda f: exposure * f.exp(),
        "negative_binomial": lambda f: exposure * f.exp(),
        "poisson_softplus": lambda f: exposure * torch.nn.functional.softplus(f),
    }.get(name, lambda f: f)
    return (y - (weights * g(f)).sum(0)).square().sum(1)


@pytest.mark.parametrize("name", [n for n in ALL_LIKELIHOODS if n != "robustmax"])
def test_square_loss_is_that_of_the_mean(name):
    y, q, likelihood = outputs(name)
    mean, var = (a[0].clone().requires_grad_() for a in q)
    expected = dense_square(name, y, mean, var, likelihood)
    by_mean, by_var = torch.autograd.grad(expected.sum(), (mean, var), materialize_grads=True)
    none = torch.zeros(len(y), dtype=F64)
    term = SquareLoss().expected_score(y, likelihood, q, none)
    tol = {"softmax": 2e-2, "poisson_softplus": 1e-6}.get(name, 1e-8)
    size = 1.0 + float(expected.detach().max())
    assert_close(term.value, -expected.detach(), rtol=0, atol=tol * size)
    assert_close(term.mean, -by_mean, rtol=0, atol=tol * size)
    assert_close(term.explained, -by_var, rtol=0, atol=tol * size)
    assert torch.equal(term.explained, term.residual)
    judged = SquareLoss().of_predictions(y, likelihood, q)
    assert_close(judged, expected.detach(), rtol=0, atol=tol * size)
    additive = name in ("gaussian", "laplace", "student_t")
    assert SquareLoss().is_conjugate(likelihood) == additive
    if additive:
        assert torch.equal(term.curvature, torch.full_like(y, 2.0))
        assert float(term.explained.abs().max()) == 0.0


def test_briers_score_of_robustmax():
    """By the probabilities of winning, which another test has against integrals."""
    y, q, likelihood = outputs("robustmax")
    none = torch.zeros(len(y), dtype=F64)
    term = SquareLoss().expected_score(y, likelihood, q, none)
    codes = [torch.full_like(y, c) for c in range(3)]
    p = torch.stack([likelihood.log_predictive(c, q).exp() for c in codes], 1)
    expected = (torch.nn.functional.one_hot(y[:, 0].long(), 3) - p).square().sum(1)
    assert_close(term.value, -expected, rtol=1e-9, atol=1e-9)
    h, shift = 1e-5, torch.tensor([0.3, -1.0, 0.5], dtype=F64)
    ends = [
        SquareLoss().expected_score(y, likelihood, q._replace(mean=q.mean + s * shift), none).value
        for s in (h, -h)
    ]
    assert_close((ends[0] - ends[1]) / (2 * h), term.mean @ shift, rtol=1e-5, atol=1e-7)


def test_the_curvature_of_the_square_loss_is_gauss_newtons():
    """2(∂E[y]/∂μ)² of a row, single output."""
    for name in ("logit", "probit", "poisson", "poisson_softplus"):
        y, q, likelihood = outputs(name)
        q, y = Marginals(q.mean[..., :1], q.var[..., :1]), y[:, :1]
        likelihood = likelihood.for_outputs(1)
        mean = q.mean.clone().requires_grad_()
        (slope,) = torch.autograd.grad(likelihood.moments(Marginals(mean, q.var)).mean.sum(), mean)
        none = torch.zeros(len(y), dtype=F64)
        term = SquareLoss().expected_score(y, likelihood, q, none)
        assert_close(term.curvature, 2.0 * slope[0].square(), rtol=1e-6, atol=1e-9)


# ---- (C2), the β-ELBO and FITC in closed form
def dense_matrices(p):
    """Q_ff, diag(K_ff), and y − mean of each output."""
    P = dense_features(p.model, p.X)
    diagonal = k(p.model, p.X, p.X).diagonal()
    return P @ P.mT, diagonal, p.y - p.model.mean.value, torch.eye(len(p.X), dtype=F64)


def collapsed_square(p):
    """(C2): min over q of Σ(y − μ)² + β KL = yᵀ(I + (2/β)Q)⁻¹y = β yᵀ(βI + 2Q)⁻¹y."""
    Q, _, y, eye = dense_matrices(p)
    return (y * torch.linalg.solve(eye + (2.0 / p.model.beta) * Q, y)).sum()


def collapsed_expected(p):
    """min over q of −Σ E[log p] + β KL: a Gaussian integral of noise βσ², to the power 1/β."""
    Q, diagonal, y, eye = dense_matrices(p)
    n, beta, total = len(p.X), p.model.beta, 0.0
    for j, noise in enumerate(p.model.likelihood.noise_variance):
        zero = torch.zeros(n, dtype=F64)
        power = log_normal(y[:, j], zero, Q + beta * noise * eye)
        power = power + 0.5 * n * torch.log(2 * math.pi * beta * noise)
        total = total - beta * power + 0.5 * n * torch.log(2 * math.pi * noise)
        total = total + 0.5 * (diagonal - Q.diagonal()).sum() / noise
    return total


def fitc_evidence(p):
    """−log N(y | mean, Q + diag(K − Q) + σ²I)."""
    Q, diagonal, y, eye = dense_matrices(p)
    A = Q + torch.diag(diagonal - Q.diagonal())
    zero = torch.zeros(len(p.X), dtype=F64)
    noises = p.model.likelihood.noise_variance
    return -sum(log_normal(y[:, j], zero, A + noise * eye) for j, noise in enumerate(noises))


NOISES = torch.tensor([0.1, 0.3], dtype=F64)
CONJUGATE = {
    "square": (collapsed_square, SquareLoss(), 0.7),
    "square, much regularised": (collapsed_square, SquareLoss(), 30.0),
    "expected, beta=0.2": (collapsed_expected, ExpectedLogLikelihood(), 0.2),
    "expected, beta=5": (collapsed_expected, ExpectedLogLikelihood(), 5.0),
    "fitc": (fitc_evidence, FullyIndependent(), 1.0),
}
conjugate = pytest.mark.parametrize(("dense", "loss", "beta"), CONJUGATE.values(), ids=CONJUGATE)


@pytest.mark.parametrize("layers", [(), (3,)], ids=["inputs", "network"])
@pytest.mark.parametrize("shape", [{}, {"P": 2}, {"M2": 4}, {"M2": 4, "P": 2}], ids=str)
@conjugate
@slow_cases(r"\{'P': 2\}", r"\{'M2': 4\}")
def test_collapsed_objectives_and_their_gradients(dense, loss, beta, shape, layers):
    """By kernel, points, network, mean and noise; what is best in closed form is found."""
    if shape.get("M2") and dense is not collapsed_square:
        pytest.skip("S is block-diagonal")
    likelihood = Gaussian(NOISES[: shape.get("P", 1)])
    p = make_problem(2, likelihood=likelihood, loss=loss, beta=beta, layers=layers, **shape)
    expected = dense(p)
    best = optimal_q.optimal_q(p.model, p.X, p.rows)
    assert_close(-best.value, expected.detach(), rtol=1e-9, atol=1e-8)
    total = FullBatchObjective(p.model, len(p.X))(p.X, p.rows, p.generator)
    assert_close(len(p.X) * total.detach(), expected.detach(), rtol=1e-9, atol=1e-8)
    ours, theirs = gradients(len(p.X) * total, p.model), gradients(expected, p.model)
    assert float(ours["features.points"].abs().max()) > 1e-3
    for key in ours:
        assert_close(ours[key], theirs[key], rtol=1e-7, atol=1e-7, msg=lambda m, k=key: k + m)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "student_t"])
@pytest.mark.parametrize("shape", [{"P": 2}, {"M2": 4, "P": 2}], ids=str)
def test_square_losss_best_q(name, shape):
    """m = (PᵀP + ½βI)⁻¹Pᵀy and the prior's S, whatever the noise is."""
    p = make_problem(likelihood=ALL_LIKELIHOODS[name](), loss=SquareLoss(), beta=0.4, **shape)
    q = optimal_q.optimal_q(p.model, p.X, p.rows).q
    P = dense_features(p.model, p.X).detach()
    y = (p.y - p.model.mean.value).detach()
    m = torch.linalg.solve(P.mT @ P + 0.2 * torch.eye(P.shape[1], dtype=F64), P.mT @ y)
    assert_close(q.mean, m, rtol=1e-8, atol=1e-8)
    assert all(S is None for S in q.covariances)
    assert_close(q.kl, 0.5 * m.square().sum(), rtol=1e-8, atol=1e-8)


@conjugate
def test_nothing_is_better_than_the_best(dense, loss, beta):
    """Any other q has a greater loss, by the values of rows alone."""
    shape = {"M2": 4} if dense is collapsed_square else {}
    p = make_problem(likelihood=Gaussian(NOISES), loss=loss, beta=beta, P=2, **shape)
    best, basis = optimal_q.optimal_q(p.model, p.X, p.rows), p.model.features.basis(p.X)

    def objective(q):
        total, term, _ = expected_score(p.model, basis, p.rows, q)
        assert_close(term.value.sum(), total)
        return float((total - beta * q.kl).detach())

    assert objective(best.q) == pytest.approx(float(best.value), abs=1e-8)
    for size in (1e-3, 0.1):
        noise = torch.randn(best.q.mean.shape, generator=p.generator, dtype=F64)
        mean = best.q.mean + size * noise
        covariances = best.q.covariances
        if dense is not collapsed_square:
            covariances = tuple(S * (1.0 + size) for S in covariances)
        S = full_covariance([None if S is None else S for S in covariances], best.q.sizes).expand(
            2, -1, -1
        )
        worse = WeightMoments(mean, covariances, best.q.sizes, dense_kl(mean, S))
        assert objective(worse) < float(best.value) - 1e-9


def test_expected_loss_of_two_blocks_is_least_at_its_best():
    """β-ELBO with S block-diagonal: gradients by m and S vanish."""
    p = make_problem(M2=4, P=2, loss=ExpectedLogLikelihood(), beta=0.3)
    q = optimal_q.optimal_q(p.model, p.X, p.rows).q
    P = dense_features(p.model, p.X).detach()
    m = q.mean.clone().requires_grad_()
    parts = [S.clone().requires_grad_() for S in q.covariances]
    S = full_covariance(parts, q.sizes)
    mean = P @ m + p.model.mean.value.detach()
    var = torch.einsum("nd,pde,ne->np", P, S, P)
    value = -0.5 * ((p.y - mean).square() + var).sum() / 0.1 - 0.3 * dense_kl(m, S)
    for g in torch.autograd.grad(value, [m, *parts]):
        assert float(g.abs().max()) < 1e-7


def test_fitc_predicts_by_the_textbook():
    """Snelson & Ghahramani (2006), equations 2.10 and 2.11, with inverses."""
    p = make_problem(likelihood=Gaussian(NOISES), loss=FullyIndependent(), P=2)
    found = optimal_q.optimal_q(p.model, p.X, p.rows)
    posterior = SparsePosterior(p.model, found, found.value, len(p.X))
    X = torch.randn(7, 2, generator=p.generator, dtype=F64)
    Z = p.model.features.inducing_points.detach()
    with torch.no_grad():
        q = posterior.marginals(X)
        K_uu, K_fu, K_su = (k(p.model, A, Z) for A in (Z, p.X, X))
        K_inv = torch.linalg.inv(K_uu)
        residual = k(p.model, p.X, p.X).diagonal() - (K_fu @ K_inv * K_fu).sum(1)
        for j, noise in enumerate(NOISES):
            weights = 1.0 / (residual + noise)
            Sigma = torch.linalg.inv(K_uu + (K_fu.mT * weights) @ K_fu)
            y = p.y[:, j] - p.model.mean.value[j]
            mean = K_su @ Sigma @ (K_fu.mT * weights) @ y + p.model.mean.value[j]
            var = k(p.model, X, X).diagonal() - (K_su @ (K_inv - Sigma) * K_su).sum(1)
            assert_close(q.mean[0, :, j], mean, rtol=1e-8, atol=1e-8)
            assert_close(q.var[0, :, j], var, rtol=1e-8, atol=1e-8)


def test_fitc_with_points_at_the_rows_is_exact():
    rng = np.random.default_rng(0)
    X, grid = rng.uniform(-3, 3, (30, 2)), rng.uniform(-4, 4, (15, 2))
    y = np.sin(X[:, 0]) + 0.2 * rng.standard_normal(30)
    kernel = ConstantKernel(1.7, "fixed") * RBF([0.7, 1.1], "fixed") + WhiteKernel(0.04, "fixed")
    exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    ours = FITCRegressor(
        kernel, inducing_points=X, learn_inducing_points=False, mean="zero", normalize_y=False,
        solver="lbfgs", dtype="float64",
    ).fit(X, y)  # fmt: skip
    for one, other in zip(ours.predict(grid, True), exact.predict(grid, True), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    assert ours.log_marginal_likelihood_value_ == pytest.approx(
        exact.log_marginal_likelihood_value_, abs=1e-6
    )


# ---- log-loss of a model
def dense_log_loss(p, mean, var):
    """Σ −log E[p(y | f)] by trapezoids or a product rule, with a graph to q."""
    likelihood = p.model.likelihood
    if isinstance(likelihood, Categorical):
        return -likelihood.log_predictive(p.y, Marginals(mean[None], var[None])).sum()
    if not isinstance(likelihood, Gaussian | Bernoulli | Poisson):
        return -likelihood.log_predictive(p.y, Marginals(mean[None], var[None])).sum()
    z = torch.linspace(-10.0, 10.0, 8001, dtype=F64)[:, None, None]
    f = (mean + var.sqrt() * z).detach()
    log_q = torch.distributions.Normal(mean, var.sqrt()).log_prob(f)
    if isinstance(likelihood, Gaussian):
        log_p = torch.distributions.Normal(f, likelihood.noise_variance.sqrt()).log_prob(p.y)
    elif isinstance(likelihood, Bernoulli):
        sign = 2.0 * p.y - 1.0
        link = likelihood.link
        log_p = torch.nn.functional.logsigmoid(sign * f)
        log_p = torch.special.log_ndtr(sign * f) if link == "probit" else log_p
    elif isinstance(likelihood, NegativeBinomial):
        alpha = likelihood.dispersion.double()
        odds = p.exposure.log() + f + alpha.log()
        log_p = torch.distributions.NegativeBinomial(1.0 / alpha, logits=odds).log_prob(p.y)
    else:
        rate = f.exp() if likelihood.link == "exp" else torch.nn.functional.softplus(f)
        log_p = torch.distributions.Poisson(p.exposure * rate).log_prob(p.y)
    step = (var.sqrt().detach() * (z[1, 0, 0] - z[0, 0, 0])).log()
    return -(torch.logsumexp(log_q + log_p, 0) + step).sum()


def dense_dlm(p, m, S):
    """(C1)."""
    P = dense_features(p.model, p.X)
    residual = k(p.model, p.X, p.X).diagonal() - P.square().sum(1)
    mean = P @ m + p.model.mean.value
    var = torch.einsum("nd,pde,ne->np", P, S, P) + residual[:, None]
    return dense_log_loss(p, mean, var) + p.model.beta * dense_kl(m, S)


@pytest.mark.parametrize("shape", [{}, {"M2": 3}], ids=str)
@every
def test_gradient_of_the_log_loss_objective(name, shape):
    """(C1) of m, S and all hyper-parameters as parameters, against one dense computation."""
    P = 2 if name in ("gaussian", "student_t", "poisson") else 1
    p = make_problem(3, likelihood=ALL_LIKELIHOODS[name](), P=P, loss=LogLoss(), beta=0.6, **shape)
    objective = GradientObjective(p.model, len(p.X))
    with torch.no_grad():
        for parameter in (*objective.means, *objective.roots):
            parameter += 0.3 * torch.randn(parameter.shape, generator=p.generator, dtype=F64)
    loss = objective(p.X, p.rows, p.generator)
    m = torch.cat(list(objective.means))
    roots = [R.tril() for R in objective.roots]
    S = full_covariance([R @ R.mT for R in roots], p.model.features.blocks)
    expected = dense_dlm(p, m, S) / len(p.X)
    tol = {"softmax": 2e-2, "robustmax": 2e-3}.get(name, 1e-6)
    assert_close(loss, expected, rtol=tol, atol=tol)
    ours, theirs = gradients(loss, objective), gradients(expected, objective)
    for key in ours:
        assert_close(ours[key], theirs[key], rtol=tol, atol=tol, msg=lambda m, k=key: k + m)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{"M2": 3}], ids=str)
@every
@by_default("logit", "gaussian")
def test_best_mean_given_covariances(name, shape, monkeypatch):
    """Newton's steps end where (C1) is stationary in m; S is kept; a full batch agrees."""
    P = 2 if name in ("gaussian", "student_t", "poisson") else 1
    p = make_problem(4, likelihood=ALL_LIKELIHOODS[name](), P=P, loss=LogLoss(), beta=0.6, **shape)
    like = random_moments(p)
    found = optimal_q.optimal_q(p.model, p.X, p.rows, like=like, tol=1e-14, max_iter=200)
    with monkeypatch.context() as few:
        few.setattr(optimal_q, "MOST_VARIANCES", 0)  # none are kept, but found in each pass
        again = optimal_q.optimal_q(p.model, p.X, p.rows, like=like, tol=1e-14, max_iter=200)
    assert_close(again.q.mean, found.q.mean, rtol=1e-6, atol=1e-6)
    for S, kept in zip(found.q.covariances, like.covariances, strict=True):
        assert torch.equal(S, kept)
    S = full_covariance(like.covariances, like.sizes)
    m = found.q.mean.clone().requires_grad_()
    value = dense_dlm(p, m, S)
    (slope,) = torch.autograd.grad(value, m)
    tol = {"softmax": 0.1, "robustmax": 5e-3}.get(name, 1e-4)
    assert float(slope.abs().max()) < tol
    assert float(found.value) == pytest.approx(-float(value.detach()), abs=max(tol, 1e-5))
    assert_close(found.q.kl, dense_kl(found.q.mean, S), rtol=1e-9, atol=1e-9)
    start = dense_dlm(p, like.mean, S).detach()
    assert float(value.detach()) < float(start)
    # The same by averages of sites, S of roots that no step is taken of.
    objective = ProfiledObjective(p.model, len(p.X), averaging=0.5)
    with torch.no_grad():
        for root, covariance in zip(objective.roots, like.covariances, strict=True):
            root.copy_(torch.linalg.cholesky(covariance))
        for _ in range(45):
            loss = objective(p.X, p.rows, p.generator)
    assert_close(len(p.X) * loss, -found.value, rtol=1e-5, atol=1e-4)
    assert_close(objective.q().mean, found.q.mean, rtol=0, atol=2e-2 if name == "softmax" else 1e-3)


def test_profiled_gradient_is_at_the_mean_after_the_step():
    """By hyper-parameters and roots: partial derivatives at m, and at S as it is."""
    p = make_problem(4, likelihood=Bernoulli("probit"), loss=LogLoss(), beta=0.6, M2=3)
    objective = ProfiledObjective(p.model, len(p.X), averaging=0.7)
    with torch.no_grad():
        for root in objective.roots:
            root += 0.2 * torch.randn(root.shape, generator=p.generator, dtype=F64)
    loss = objective(p.X, p.rows, p.generator)
    m = objective.mean.clone()
    assert float(m.abs().max()) > 0.1
    S = full_covariance([R.tril() @ R.tril().mT for R in objective.roots], (5, 3))
    expected = dense_dlm(p, m, S) / len(p.X)
    assert_close(loss, expected, rtol=1e-8, atol=1e-8)
    ours, theirs = gradients(loss, objective), gradients(expected, objective)
    for key in ours:
        assert_close(ours[key], theirs[key], rtol=1e-6, atol=1e-6, msg=lambda m, k=key: k + m)


@pytest.mark.slow
def test_all_gradients_lead_to_the_same_mean():
    """Averages of many sampled steps: those without bias end at the exact best mean."""
    p = make_problem(4, likelihood=Poisson("exp"), loss=LogLoss(), beta=0.6)
    like = random_moments(p)
    best = optimal_q.optimal_q(p.model, p.X, p.rows, like=like, tol=1e-14, max_iter=200).q.mean
    found = {}
    for kind in ("product", "biased"):
        p.model.loss = LogLoss(kind, n_samples=20)
        objective = ProfiledObjective(p.model, len(p.X))
        with torch.no_grad():
            objective.roots[0].copy_(torch.linalg.cholesky(like.covariances[0]))
            for step in range(60):
                objective.averaging = 2.0 / (step + 4.0)
                objective(p.X, p.rows, p.generator)
        found[kind] = float((objective.q().mean - best).abs().max())
    assert found["product"] < 0.06
    assert found["product"] < found["biased"]


# ---- calibration of the square loss
@pytest.mark.parametrize("shape", [{}, {"P": 2}], ids=str)
@pytest.mark.parametrize(
    ("name", "weight"), [("gaussian", 1.0), ("student_t", 1.0), ("gaussian", 0.1)]
)
def test_calibrated_scale_is_that_of_errors_left_out(name, weight, shape):
    """Each of 30 rows predicted from the others: e²/var is 1 on average; the mean is the same.

    Of rows that weigh less than one no more was to be left out; their variances fell to 0.
    """
    p = make_problem(
        5, n=30, likelihood=ALL_LIKELIHOODS[name](), loss=SquareLoss(), beta=0.4, **shape
    )
    rows = replace(p.rows, weight=torch.full((30,), weight, dtype=p.X.dtype))
    found = optimal_q.optimal_q(p.model, p.X, rows)
    model, scaled = square_loss.calibrated(p.model, p.X, rows, found)
    posterior = SparsePosterior(model, scaled, scaled.value, 30)
    ratios = []
    with torch.no_grad():
        basis = p.model.features.basis(p.X)
        mean = basis.phi @ found.q.mean + p.model.mean.value
        q = posterior.marginals(p.X)
        assert_close(q.mean[0], mean, rtol=1e-9, atol=1e-9)
        noise = model.likelihood.noise_variance
        assert_close(noise, noise[:1].expand_as(noise))
        # The calibrated kernel and noise, by dense formulas.
        Z = model.features.inducing_points
        scale = noise[0] / 0.2
        K_uu, K_fu = scale * k(p.model, Z, Z), scale * k(p.model, p.X, Z)
        diagonal = scale * k(p.model, p.X, p.X).diagonal()
        y = p.y - p.model.mean.value
        for i in range(30):
            rest = [j for j in range(30) if j != i]
            A = torch.linalg.inv(K_uu + weight * K_fu[rest].mT @ K_fu[rest] / noise[0])
            error = y[i] - weight * K_fu[i] @ A @ K_fu[rest].mT @ y[rest] / noise[0]
            explained = K_fu[i] @ (torch.linalg.inv(K_uu) - A) @ K_fu[i]
            ratios.append(error.square() / (diagonal[i] - explained + noise[0]))
        assert float(torch.stack(ratios).mean()) == pytest.approx(1.0, rel=1e-7)
        # And all rows' predictive variances.
        A = torch.linalg.inv(K_uu + weight * K_fu.mT @ K_fu / noise[0])
        var = diagonal - (K_fu @ (torch.linalg.inv(K_uu) - A) * K_fu).sum(1)
        assert_close(q.var[0], var[:, None].expand_as(q.var[0]), rtol=1e-7, atol=1e-9)


def test_calibration_of_two_blocks_keeps_the_mean():
    p = make_problem(5, n=30, M2=4, loss=SquareLoss(), beta=0.4)
    found = optimal_q.optimal_q(p.model, p.X, p.rows)
    model, scaled = square_loss.calibrated(p.model, p.X, p.rows, found)
    with torch.no_grad():
        mean = p.model.features.basis(p.X).phi @ found.q.mean
        again = model.features.basis(p.X).phi @ scaled.q.mean
    assert_close(again, mean, rtol=1e-9, atol=1e-9)
    assert all(S is not None for S in scaled.q.covariances)
    # Errors in other units are those errors, and so is the scale.
    other = make_problem(5, n=30, M2=4, loss=SquareLoss(), beta=0.4)
    other.rows.y.mul_(10.0)
    with torch.no_grad():
        other.model.mean.value *= 10.0
    found = optimal_q.optimal_q(other.model, other.X, other.rows)
    ten, _ = square_loss.calibrated(other.model, other.X, other.rows, found)
    ratio = ten.likelihood.noise_variance / model.likelihood.noise_variance
    assert float(ratio.detach()) == pytest.approx(100.0)


def test_calibration_keeps_one_block_at_a_time(monkeypatch):
    p = make_problem(5, n=30, loss=SquareLoss(), beta=0.4)
    found, alive, most = optimal_q.optimal_q(p.model, p.X, p.rows), [], []
    whole, _ = square_loss.calibrated(p.model, p.X, p.rows, found)
    leave_one_out = square_loss.leave_one_out

    def watched(*args):
        left_out = leave_one_out(*args)
        alive.append(weakref.ref(left_out[0]))
        most.append(sum(each() is not None for each in alive))
        return left_out

    monkeypatch.setattr(square_loss, "leave_one_out", watched)
    monkeypatch.setattr(sparse, "block_rows", lambda device, n_features: 4)
    model, _ = square_loss.calibrated(p.model, p.X, p.rows, found)
    assert len(alive) == 8
    assert max(most) <= 2
    assert_close(
        model.likelihood.noise_variance, whole.likelihood.noise_variance, rtol=1e-9, atol=0
    )


def test_a_row_of_leverage_1_leaves_predictions_finite():
    row, noise = torch.ones(1, 1, dtype=torch.float64), torch.tensor([0.25], dtype=torch.float64)
    joint = SimpleNamespace(products=lambda phi: 0.25 * phi[None])  # φᵀS = σ², so that H = 1
    q = Marginals(row[None], 0.25 * row[None])
    left_out = square_loss.leave_one_out(Basis(row, row[:, 0]), row, q, joint, noise, row)
    assert all(part.isfinite().all() for part in left_out)
    assert square_loss.variance_scale([left_out]) == square_loss.LEAST_SCALE  # it says nothing


# ---- losses by name, and what they say of themselves
def test_losses_by_name():
    for name, cls in (("elbo", ExpectedLogLikelihood), ("log", LogLoss), ("square", SquareLoss)):
        assert type(make_loss(name)) is cls
    mine = LogLoss("biased", n_samples=3)
    assert make_loss(mine) is mine
    assert repr(mine) == "LogLoss(gradient='biased', n_samples=3)"
    with pytest.raises(ValueError, match=r"loss must be a Loss or one of .*'square'.* got 'brier'"):
        make_loss("brier")
    with pytest.raises(TypeError, match=r"loss must be a Loss or one of .* got 3"):
        make_loss(3)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (LogLoss("unbiased"), "'gradient' parameter of LogLoss must be a str among .*'unbiased'"),
        (LogLoss(n_samples=0), "'n_samples' parameter of LogLoss .* Got 0"),
        (LogLoss(jitter=0.0), r"'jitter' parameter of LogLoss .* Got 0\.0"),
    ],
)
def test_bad_parameters(loss, message):
    with pytest.raises(ValueError, match=message):
        loss.check(Gaussian())


def test_what_a_loss_must_define():
    class Incomplete(Loss):
        pass

    y, q, likelihood = outputs("gaussian")
    with pytest.raises(NotImplementedError, match="Incomplete must define expected_score"):
        Incomplete().expected_score(y, likelihood, q, y[:, 0])
    with pytest.raises(NotImplementedError, match="Incomplete has no closed form"):
        Incomplete().conjugate(likelihood, y[:, 0])
    assert Incomplete().covariance(likelihood) == "gradient"
    assert Incomplete().site_noise(likelihood) is None
    assert not Incomplete().is_conjugate(likelihood)


def test_a_likelihood_of_ones_own_has_all_gradients():
    """log_prob and moments alone: by quadrature, by draws from q and, if concave, from q·p."""

    class Own(Likelihood):
        def log_prob(self, y, f):
            return torch.nn.functional.logsigmoid((2.0 * y - 1.0) * f)

        def moments(self, q):
            return Bernoulli("logit").moments(q)

    found = list(itertools.product((0.0, 1.0), (0.2, -2.0), (0.01, 0.5)))
    y, q = as_rows(found)
    _, log_z, alpha, delta = products("logit", found)
    likelihood, none = Own(), torch.zeros(len(y), dtype=F64)
    term = LogLoss().expected_score(y, likelihood, q, none)
    np.testing.assert_allclose(term.value, log_z, atol=1e-7)
    check_gradients(found, (term.mean, term.explained), alpha, delta, 1e-6)
    _, mean, _ = product_gradients(y, likelihood, q, 20_000, generator())
    std = q.var[0, :, 0].sqrt().numpy()
    np.testing.assert_allclose(mean[:, 0].numpy() * std, alpha * std, atol=0.04)

    class Bimodal(Own):
        log_concave = False

    with pytest.raises(ValueError, match="gradient='product' needs a log-concave likelihood"):
        product_gradients(y, Bimodal(), q, 3, generator())

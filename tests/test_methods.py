"""The methods against the exact GP, and against the paper's formulas in dense algebra."""

import math
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from families import by_default, slow_cases
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from torch.testing import assert_close

from skgpstoch import (
    ADMMGaussianProcessRegressor,
    BSGDGaussianProcessRegressor,
    MinimaxGaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
)
from skgpstoch.data.devices import BLOCK_ROWS
from skgpstoch.data.rows import Rows
from skgpstoch.kernels import from_sklearn
from skgpstoch.likelihoods import Gaussian
from skgpstoch.maths.averages import RunningStatistics
from skgpstoch.maths.linear_regression import (
    batch_statistics,
    exact_statistics,
    most_likely,
    negative_log_evidence,
    spectrum,
)
from skgpstoch.methods import bsgd
from skgpstoch.methods.bsgd import BSGDObjective, KernelBSGDObjective
from skgpstoch.methods.minimax import MinimaxObjective, project_above
from skgpstoch.methods.scgd import SCGDObjective
from skgpstoch.models.features.fourier import KernelFeatures
from skgpstoch.models.features.network import NetworkFeatures, multilayer_perceptron
from skgpstoch.models.posteriors.conjugate import ConjugatePosterior, ConjugateWeights
from skgpstoch.models.posteriors.exact import ExactPosterior
from skgpstoch.models.posteriors.iterative import IterativePosterior
from skgpstoch.objectives import evidence

ESTIMATORS = [
    SCGDGaussianProcessRegressor,
    MinimaxGaussianProcessRegressor,
    BSGDGaussianProcessRegressor,
]
MAPS = ["network", "skip", "linear", "fourier"]
SEEDS = range(4)
parametrize_problem = pytest.mark.parametrize("problem", SEEDS, indirect=True)
parametrize_map = pytest.mark.parametrize("problem", [*MAPS, *SEEDS], indirect=True)


def exactly(actual, expected, tolerance=1e-8):
    assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def make_features(name, n_inputs, width, generator, n_members=1):
    network = multilayer_perceptron(n_inputs, (6, width), "tanh", generator, n_members).double()
    if name in ("network", "skip"):
        return NetworkFeatures(network, width, n_members, skip=n_inputs * (name == "skip"))
    expression = 1.7 * sk.DotProduct(0.6)
    if name == "fourier":
        stationary = sk.Matern([1.0 + 0.3 * i for i in range(width)], nu=1.5) * sk.RBF(2.0)
        expression = expression + 0.8 * stationary + sk.RBF(1.5)
    return KernelFeatures(from_sklearn(expression), network, width, n_components=8, seed=5)


def make_problem(seed, name="network", n_members=1, n_folds=0):
    """Small random data, features and hyper-parameters; `n_folds` rows in each member's fold."""
    generator = torch.Generator().manual_seed(seed)

    def between(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    n, d, D, P = between(25, 45), between(1, 5), between(2, 7), between(1, 4)
    features = make_features(name, d, D, generator, n_members)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = torch.randn(n, P, generator=generator, dtype=torch.float64)
    fold = torch.full((n,), -1)
    for k in range(n_members):
        fold[k * n_folds : (k + 1) * n_folds] = k
    noise = 0.2 + torch.rand(P, generator=generator, dtype=torch.float64)
    ridge = 0.2 + torch.rand(P, generator=generator, dtype=torch.float64)
    rows = Rows(y, fold=fold if n_folds else None)
    return SimpleNamespace(
        X=X, y=y, rows=rows, features=features, noise=noise, ridge=ridge, generator=generator
    )


@pytest.fixture
def problem(request):
    """A map by its name, or a network of random shape by its seed."""
    if isinstance(request.param, str):
        return make_problem(10 + MAPS.index(request.param), request.param)
    return make_problem(request.param)


def eye(n):
    return torch.eye(n, dtype=torch.float64)


def nlml(Z, y, noise, signal):
    """−log N(y | 0, τ²ZZᵀ + σ²I) of each output, (P,), by n×n matrices."""
    n = len(Z)
    values = []
    for p in range(y.shape[1]):
        C = signal[p] * Z @ Z.T + noise[p] * eye(n)
        quadratic = y[:, p] @ torch.linalg.inv(C) @ y[:, p]
        values.append(0.5 * (quadratic + torch.linalg.slogdet(C)[1] + n * math.log(2 * math.pi)))
    return torch.stack(values)


def optimal_weights(Z, y, ridge):
    """ŵ = (ZᵀZ + λI)⁻¹Zᵀy, (D, P)."""
    G = Z.T @ Z
    columns = [torch.linalg.inv(G + r * eye(len(G))) @ Z.T @ y[:, p] for p, r in enumerate(ridge)]
    return torch.stack(columns, 1)


def make_objective(cls, problem, noise="learned", **options):
    """An objective at the problem's noise, and at its ridge where that is not the noise."""
    options = {"noise_variance": 0.1, "noise_bounds": (1e-8, 1e2), "weight_decay": 0.0} | options
    objective = cls(problem.features, problem.rows, noise=noise, **options).double()
    with torch.no_grad():
        objective.log_noise.copy_(problem.noise.log())
        objective.log_ridge.copy_(problem.ridge.log())
    return objective


def gradients(loss, objective):
    """By name, of the free parameters the loss depends on."""
    names, parameters = zip(*objective.named_parameters(), strict=True)
    free = [p.requires_grad for p in parameters]
    grads = iter(
        torch.autograd.grad(
            loss, [p for p in parameters if p.requires_grad], allow_unused=True, retain_graph=True
        )
    )
    found = {name: next(grads) for name, is_free in zip(names, free, strict=True) if is_free}
    return {name: g for name, g in found.items() if g is not None}


def assert_same_gradients(loss, expected_loss, objective):
    actual, expected = gradients(loss, objective), gradients(expected_loss, objective)
    assert expected.keys() <= actual.keys()
    for name, g in actual.items():
        exactly(g, expected.get(name, torch.zeros_like(g)))


# ---- (A1) and the posterior of w
@parametrize_map
def test_evidence_is_that_of_the_exact_gp(problem):
    Z = problem.features.members(problem.X).detach()
    s = spectrum(batch_statistics(Z, problem.y))
    signal = problem.noise / problem.ridge
    expected = nlml(Z[0], problem.y, problem.noise, signal)
    exactly(negative_log_evidence(s, problem.noise, problem.ridge)[0], expected)
    log_density = [
        multivariate_normal(
            cov=signal[p] * Z[0] @ Z[0].T + problem.noise[p] * eye(len(problem.X))
        ).logpdf(problem.y[:, p])
        for p in range(len(signal))
    ]
    assert_allclose(-expected, log_density, rtol=1e-10)


@pytest.mark.parametrize("shape", [(3, 7), (7, 7), (1, 1), (20, 1), (2, 30)])
def test_evidence_for_any_number_of_rows_and_features(shape):
    generator = torch.Generator().manual_seed(0)
    Z = torch.randn(shape, generator=generator, dtype=torch.float64)
    y = torch.randn(shape[0], 2, generator=generator, dtype=torch.float64)
    noise, ridge = torch.tensor([[0.3, 0.7], [0.01, 2.0]]).double(), torch.tensor([[0.3, 2.0]] * 2)
    s = spectrum(batch_statistics(Z[None], y))
    actual = negative_log_evidence(s, noise, ridge.double())  # (C, K, P)
    for c in range(2):
        exactly(actual[c, 0], nlml(Z, y, noise[c], noise[c] / ridge[c]))


def test_evidence_is_the_papers_loss_at_the_optimal_weights():
    p = make_problem(3)
    Z = p.features.members(p.X)[0].detach()
    (n, D), w = Z.shape, optimal_weights(Z, p.y, p.noise)
    F = Z.T @ Z + p.noise[:, None, None] * eye(D)
    loss = (Z @ w - p.y).square().sum(0) / p.noise + w.square().sum(0) + torch.logdet(F)
    loss = loss + (n - D) * p.noise.log()  # l(θ), sec. 2.2
    s = spectrum(batch_statistics(Z[None], p.y))
    exactly(
        2 * negative_log_evidence(s, p.noise, p.noise)[0], loss + n * math.log(2 * math.pi), 1e-10
    )


def dense_posterior(Z, y, Z_new, noise, signal):
    """Mean (N, P) and covariance (P, N, N) of the exact GP with kernel τ²ZZᵀ."""
    mean, cov = [], []
    for p in range(y.shape[1]):
        C_inv = torch.linalg.inv(signal[p] * Z @ Z.T + noise[p] * eye(len(Z)))
        cross = signal[p] * Z_new @ Z.T
        mean.append(cross @ C_inv @ y[:, p])
        cov.append(signal[p] * Z_new @ Z_new.T - cross @ C_inv @ cross.T)
    return torch.stack(mean, 1), torch.stack(cov)


def conjugate_posterior(problem):
    s = spectrum(exact_statistics(problem.features.members, problem.X, problem.y))
    return ConjugatePosterior(problem.features, ConjugateWeights(s, problem.noise, problem.ridge))


@parametrize_map
@torch.no_grad()
def test_posterior_is_that_of_the_exact_gp(problem):
    X_new = torch.randn(9, problem.X.shape[1], generator=problem.generator, dtype=torch.float64)
    Z, Z_new = problem.features(problem.X), problem.features(X_new)
    signal = problem.noise / problem.ridge
    mean, cov = dense_posterior(Z, problem.y, Z_new, problem.noise, signal)
    posterior = conjugate_posterior(problem)
    q = posterior.marginals(X_new)
    exactly(q.mean[0], mean)
    exactly(q.var[0], cov.diagonal(dim1=1, dim2=2).T)
    exactly(posterior.covariance(X_new), cov)
    exactly(posterior.log_evidence(), -nlml(Z, problem.y, problem.noise, signal))
    assert posterior.n_rows == len(problem.X)


@torch.no_grad()
def test_samples_have_the_moments_of_the_posterior():
    p = make_problem(1)
    posterior, m = conjugate_posterior(p), 40_000
    X = p.X[:3]
    f = posterior.sample(X, m, p.generator)  # (m, N, P)
    mean, cov = posterior.marginals(X).mean[0], posterior.covariance(X)
    var = cov.diagonal(dim1=1, dim2=2)  # (P, N)
    assert ((f.mean(0) - mean).abs() <= 4 * (var.T / m).sqrt()).all()
    centred = (f - mean).permute(2, 0, 1)  # (P, m, N)
    error = centred.mT @ centred / m - cov
    assert (error.abs() <= 4 * ((var[:, :, None] * var[:, None] + cov**2) / m).sqrt()).all()


@torch.no_grad()
def test_refit_is_the_posterior_of_the_other_rows():
    p = make_problem(2)
    other = make_problem(2)
    other.X, other.y = p.X[:11] + 0.1, p.y[:11] - 0.2
    actual, expected = (
        conjugate_posterior(p).refit(other.X, Rows(other.y)),
        conjugate_posterior(other),
    )
    exactly(actual.marginals(p.X).mean, expected.marginals(p.X).mean, 1e-12)
    exactly(actual.marginals(p.X).var, expected.marginals(p.X).var, 1e-12)
    exactly(actual.log_evidence(), expected.log_evidence(), 1e-12)


@pytest.mark.parametrize("expression", [1.3 * sk.RBF([1.0, 2.0]), sk.RationalQuadratic(0.7, 2.0)])
@torch.no_grad()
def test_exact_posterior_against_dense_algebra(expression):
    generator = torch.Generator().manual_seed(0)
    X, X_new = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (25, 6))
    y = torch.randn(25, 2, generator=generator, dtype=torch.float64)
    noise, kernel = torch.tensor([0.1, 0.5], dtype=torch.float64), from_sklearn(expression)
    posterior = ExactPosterior(kernel, torch.nn.Identity(), Gaussian(noise), X, Rows(y))
    q, cov = posterior.marginals(X_new), posterior.covariance(X_new)
    for p in range(2):
        twin = GaussianProcessRegressor(expression, alpha=noise[p].item(), optimizer=None)
        twin.fit(X.numpy(), y[:, p].numpy())
        mean, expected_cov = twin.predict(X_new.numpy(), return_cov=True)
        assert_allclose(q.mean[0, :, p], mean, rtol=1e-8)
        assert_allclose(q.var[0, :, p], np.diag(expected_cov), rtol=1e-8)
        assert_allclose(cov[p], expected_cov, rtol=1e-8, atol=1e-10)
        log_evidence = float(posterior.log_evidence()[p])
        assert_allclose(log_evidence, twin.log_marginal_likelihood_value_, rtol=1e-10)
    f = posterior.sample(X_new, 20_000, generator)
    var = q.var[0]
    assert ((f.mean(0) - q.mean[0]).abs() <= 4 * (var / 20_000).sqrt()).all()
    assert ((f.var(0) - var).abs() <= 4 * var * math.sqrt(2 / 20_000)).all()
    refitted = posterior.refit(X[:5], Rows(y[:5]))
    expected = ExactPosterior(kernel, torch.nn.Identity(), Gaussian(noise), X[:5], Rows(y[:5]))
    exactly(refitted.marginals(X_new).mean, expected.marginals(X_new).mean, 1e-12)


# ---- SCGD, full batch, b_t = 1
@parametrize_map
def test_scgd_gradient_is_that_of_the_exact_evidence(problem):
    objective = make_objective(SCGDObjective, problem, averaging=1.0, weights="profiled")
    for _ in range(2):  # b_t = 1 forgets the first call
        loss = objective(problem.X, problem.rows, problem.generator)
    noise = objective.log_noise.exp()
    Z = problem.features.members(problem.X)[0]
    exact = nlml(Z, problem.y, noise, torch.ones_like(noise)).sum() / len(problem.X)
    assert_same_gradients(loss, exact, objective)
    assert objective.epoch_loss(0.0) == pytest.approx(exact.item(), rel=1e-8)


def test_scgd_gradient_is_the_same_with_and_without_an_inverse():
    """Of few rows it comes from the factor, of more than half as many as features by an inverse."""
    p = make_problem(3)
    D, few = p.features.n_features, 1
    assert 2 * few < D
    gradients = []
    for b in (few, D):
        objective = make_objective(SCGDObjective, p, averaging=0.1, weights="profiled")
        objective.running.start_from(exact_statistics(p.features.members, p.X, p.y))
        Z = p.features.members(p.X[:b]).detach()
        b_rows = torch.full((1, 1), float(few), dtype=torch.float64)
        (_, dZ), *_ = objective.gradients(Z, p.y[None, :b], b_rows, lambda sums: sums)
        gradients.append(dZ[:, :few])
    exactly(*gradients, 1e-12)


@parametrize_problem
def test_scgd_gradient_with_a_signal_variance_of_its_own(problem):
    objective = make_objective(
        SCGDObjective, problem, noise="validation", averaging=1.0, weights="profiled"
    )
    loss = objective(problem.X, problem.rows, problem.generator)
    Z = problem.features.members(problem.X)[0]
    exact = nlml(Z, problem.y, problem.noise, problem.noise / problem.ridge).sum()
    assert_same_gradients(loss, exact / len(problem.X), objective)


@pytest.mark.parametrize("at_optimum", [True, False])
@parametrize_problem
def test_scgd_gradient_with_learned_weights(problem, at_optimum):
    """That of l(θ), sec. 2.2, at any w, which at ŵ is that of the evidence."""
    objective = make_objective(SCGDObjective, problem, averaging=1.0, weights="learned")
    Z, y = problem.features.members(problem.X)[0], problem.y
    w, noise = objective.w, objective.log_noise.exp()
    w.data.normal_(generator=problem.generator)
    if at_optimum:
        w.data.copy_(optimal_weights(Z.detach(), y, problem.noise))
    loss = objective(problem.X, problem.rows, problem.generator)
    n, D = Z.shape
    expected = (Z @ w[0] - y).square().sum(0) / noise + w[0].square().sum(0)
    expected = expected + torch.logdet(Z.T @ Z + noise[:, None, None] * eye(D))
    expected = (expected + (n - D) * noise.log()).sum()
    assert_same_gradients(loss, expected / (2 * n), objective)
    if at_optimum:
        exact = nlml(Z, y, noise, torch.ones_like(noise)).sum() / n
        assert_same_gradients(loss, exact, objective)


def test_scgd_in_the_order_of_the_paper():
    """Sec. 3.2: the gradient has F̃_t of the steps before, to which F_i(θ_t) are added after it."""
    p, b, rate = make_problem(5), 8, 0.3
    options = {"averaging": rate, "weights": "learned", "order": "step-first"}
    objective = make_objective(SCGDObjective, p, **options)
    objective.ridge_average.copy_(p.noise)
    objective.w.data.normal_(generator=p.generator)
    n, w, F = len(p.y), objective.w[0], None
    for t in range(4):
        with torch.no_grad():  # as steps would
            objective.log_noise += 0.3
            p.features.network[0].weight *= 1.2
        some = slice(b * t, b * (t + 1))
        loss = objective(p.X[some], p.rows[some], p.generator)
        Z, noise = p.features.members(p.X[some])[0], objective.log_noise.exp()
        sums = n / b * Z.T @ Z + noise[:, None, None] * eye(Z.shape[1])  # n/|S| Σ F_i, (P, D, D)
        F = sums.detach() if F is None else F
        g = n / b * (Z @ w - p.y[some]).square().sum(0) / noise + w.square().sum(0)
        g = g + (n - Z.shape[1]) * noise.log() + (torch.linalg.inv(F) * sums).sum((1, 2))
        assert_same_gradients(loss, g.sum() / (2 * n), objective)
        # The first minibatch is all of F̃_1 and F̃_2, as averages begin with those of what was seen.
        F = torch.lerp(F, sums.detach(), max(rate, 1 / (t + 1)))


@pytest.mark.parametrize("name", ["network", "skip"])
@pytest.mark.parametrize("cls", [SCGDObjective, BSGDObjective])
def test_gradient_of_an_ensemble_is_that_of_members_blind_to_their_fold(cls, name):
    p = make_problem(4, name, n_members=3, n_folds=4)
    options = {"averaging": 1.0, "weights": "profiled"} if cls is SCGDObjective else {}
    objective = make_objective(cls, p, **options)
    loss = objective(p.X, p.rows, p.generator)
    actual = gradients(loss, objective)
    Z, noise = p.features.members(p.X), objective.log_noise.exp()
    exact = []
    for k in range(3):
        seen = p.rows.fold != k
        assert int(seen.sum()) == len(p.X) - 4
        exact.append(nlml(Z[k][seen], p.y[seen], noise, torch.ones_like(noise)).sum() / seen.sum())
    expected = gradients(sum(exact), objective)
    for key in actual.keys() - {"log_noise"}:
        exactly(actual[key], expected[key])
    exactly(actual["log_noise"], expected["log_noise"] / 3)  # the noise is theirs together
    if cls is BSGDObjective:
        exactly(loss.detach(), sum(exact).detach() / 3)


# ---- MINIMAX
def make_minimax(problem, penalty=1.7, **options):
    """At A = F and w = ŵ of all rows."""
    options = {"penalty": penalty, "dual_step": 0.0} | options
    objective = make_objective(MinimaxObjective, problem, X=problem.X, **options)
    with torch.no_grad():
        Z = problem.features.members(problem.X)
        ridge = objective.ridge
        objective.A.copy_(mean_F(Z[0], ridge))
        objective.w.copy_(optimal_weights(Z[0], problem.y, ridge))
    return objective


def mean_F(Z, ridge):
    """F/n, (1, P, D, D)."""
    return (Z.T @ Z + ridge[:, None, None] * eye(Z.shape[1]))[None] / len(Z)


@pytest.mark.parametrize("noise", ["learned", "validation"])
@parametrize_map
def test_minimax_is_the_evidence_where_the_constraint_holds(problem, noise):
    objective = make_minimax(problem, noise=noise, dual_step=0.5)
    Z = problem.features.members(problem.X)[0].detach()
    exact = nlml(Z, problem.y, problem.noise, problem.noise / objective.ridge).sum() / len(Z)
    for scale in (0.0, 0.1, 1.0):
        B = torch.randn(objective.B.shape, generator=problem.generator, dtype=torch.float64)
        objective.B.copy_(scale * B / B.norm(dim=(-2, -1), keepdim=True))
        loss = objective(problem.X, problem.rows, problem.generator)
        exactly(loss.detach(), exact)


@parametrize_problem
def test_minimax_gradient_is_that_of_the_saddle_function(problem):
    """Ψ of (3.2) by autograd, at random A, B and w, away from the constraint."""
    objective = make_minimax(problem)
    generator, A, w, B = problem.generator, objective.A, objective.w, objective.B
    with torch.no_grad():
        root = torch.randn(A.shape, generator=generator, dtype=A.dtype)
        A.copy_(A + 0.3 * root @ root.mT / A.shape[-1])
        w.add_(torch.randn(w.shape, generator=generator, dtype=w.dtype))
        B.copy_(torch.randn(B.shape, generator=generator, dtype=B.dtype))
        B /= 2 * B.norm(dim=(-2, -1), keepdim=True)
    loss = objective(problem.X, problem.rows, generator)
    Z, noise = problem.features.members(problem.X)[0], objective.log_noise.exp()
    (n, D), psi = Z.shape, torch.zeros(())
    for p in range(len(noise)):
        full, F = n * A[0, p], Z.T @ Z + noise[p] * eye(D)
        g = (Z @ w[0, :, p] - problem.y[:, p]).square().sum() / noise[p]
        g = g + w[0, :, p].square().sum() + (n - D) * noise[p].log()
        penalty = 1.7 * torch.trace(B[0, p] @ (full - F).T) / full.square().sum().sqrt()
        psi = psi + g + torch.logdet(full) + penalty + n * math.log(2 * math.pi)
    exactly(loss.detach(), psi.detach() / (2 * n))
    assert_same_gradients(loss, psi / (2 * n), objective)


@parametrize_map
def test_minimax_gradient_at_the_saddle_point_is_exact(problem):
    """With μB = −‖F‖F⁻¹ the gradient by A vanishes and the others are those of the evidence."""
    F = mean_F(problem.features.members(problem.X)[0].detach(), problem.noise)
    scaled = F.norm(dim=(-2, -1), keepdim=True) * torch.linalg.inv(F)
    penalty = float(scaled.norm(dim=(-2, -1)).max())
    objective = make_minimax(problem, penalty=penalty)
    objective.B.copy_(-scaled / penalty)
    loss = objective(problem.X, problem.rows, problem.generator)
    noise = objective.log_noise.exp()
    Z = problem.features.members(problem.X)[0]
    exact = nlml(Z, problem.y, noise, torch.ones_like(noise)).sum() / len(Z)
    assert_same_gradients(loss, exact, objective)


def test_minimax_ascends_to_the_norm_of_the_gap():
    """On all rows B → (A − F)/‖A − F‖, where ⟨B, A − F⟩ is the norm that the penalty stands for."""
    p = make_problem(0)
    objective = make_minimax(p, dual_step=0.2)
    X = p.X[:1].expand_as(p.X)  # rows that are all the same, so that any of them are all
    objective.data = (X, p.rows)
    F = mean_F(p.features.members(X)[0].detach(), p.noise)
    gap = objective.A.detach() - F
    norm_gap = gap.norm(dim=(-2, -1), keepdim=True)
    for _ in range(300):
        objective.ascend(3, p.generator)
    exactly(objective.B, gap / norm_gap)
    exactly((objective.B * gap).sum((-2, -1)), norm_gap[..., 0, 0])


@pytest.mark.parametrize("seed", range(5))
def test_projection_is_the_nearest_matrix_above_the_floor(seed):
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(2, 3, 5, 5, generator=generator, dtype=torch.float64)
    floor = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    projected = project_above(A, floor)
    exactly(projected, projected.mT, 1e-14)
    assert (torch.linalg.eigvalsh(projected) >= floor[..., None] - 1e-12).all()
    exactly(project_above(projected + 1e-9 * eye(5), floor), projected)
    least = floor[..., None, None] * eye(5)
    exactly(project_above(0.9 * least, floor), least)
    # ⟨A − proj(A), M − proj(A)⟩ ≤ 0 for every M of the convex set
    for _ in range(20):
        root = torch.randn(A.shape, generator=generator, dtype=torch.float64)
        M = root @ root.mT + floor[..., None, None] * eye(5)
        symmetric = 0.5 * (A + A.mT)
        assert (((symmetric - projected) * (M - projected)).sum((-2, -1)) <= 1e-10).all()


def test_minimax_keeps_its_constraints():
    p = make_problem(1)
    objective = make_minimax(p, noise_bounds=(0.05, 1.0))
    with torch.no_grad():
        objective.A.neg_()
        objective.log_noise.fill_(-20.0)
    objective.step_end()
    assert_allclose(objective.noise_variance, 0.05, rtol=1e-12)
    floor = objective.ridge / len(p.X)
    assert (torch.linalg.eigvalsh(objective.A)[0] >= floor[:, None] * (1 - 1e-12)).all()


# ---- BSGD
@pytest.mark.parametrize("noise", ["learned", "validation"])
@parametrize_map
def test_bsgd_is_the_exact_gp_of_the_minibatch(problem, noise):
    objective = make_objective(BSGDObjective, problem, noise=noise)
    for b in (1, 7, len(problem.X)):
        X, y = problem.X[:b], problem.y[:b]
        loss = objective(X, problem.rows[:b], problem.generator)
        variance = objective.log_noise.exp()
        ridge = variance if noise == "learned" else objective.ridge
        exact = nlml(problem.features.members(X)[0], y, variance, variance / ridge).sum() / b
        exactly(loss.detach(), exact.detach())
        assert_same_gradients(loss, exact, objective)


def test_bsgd_sees_rows_of_zeros():
    """With linear features a row of zeros has none, but the evidence of the noise."""
    p = make_problem(0)
    p.features = NetworkFeatures(torch.nn.Identity(), p.X.shape[1])
    p.X[:5], p.y[:5] = 0.0, 0.0
    objective = make_objective(BSGDObjective, p)
    loss = objective(p.X, p.rows, p.generator)
    noise = objective.log_noise.exp()
    exact = nlml(p.X, p.y, noise, torch.ones_like(noise)).sum() / len(p.X)
    exactly(loss.detach(), exact.detach())
    assert_same_gradients(loss, exact, objective)


@parametrize_problem
def test_bsgd_is_scgd_without_the_factor(problem):
    """Sec. 4.2: F̃ = Σ_S F_i, the sum of the minibatch without n/b."""
    b = 9
    batch = SimpleNamespace(**vars(problem))
    batch.X, batch.y, batch.rows = problem.X[:b], problem.y[:b], problem.rows[:b]
    options = {"averaging": 1.0, "weights": "profiled"}
    scgd = make_objective(SCGDObjective, batch, **options)  # knows of no other rows
    bsgd = make_objective(BSGDObjective, problem)
    losses = (o(batch.X, batch.rows, batch.generator) for o in (scgd, bsgd))
    first, second = (gradients(loss, o) for loss, o in zip(losses, (scgd, bsgd), strict=True))
    for name, g in second.items():
        exactly(first[name], g)


KERNELS = [
    sk.RBF([0.7, 1.5, 3.0, 0.9]),
    0.6 * sk.Matern(1.3, nu=1.5) + sk.DotProduct(0.5),
    sk.ExpSineSquared(1.1, 3.0) * sk.RBF(2.0),
    sk.RationalQuadratic(0.9, 1.7) + sk.ConstantKernel(0.3),
]


@pytest.mark.parametrize("expression", KERNELS, ids=str)
def test_kernel_bsgd_is_the_exact_gp_of_the_minibatch(expression):
    generator = torch.Generator().manual_seed(0)
    network = multilayer_perceptron(2, (5, 4), "tanh", generator).double()
    network.append(torch.nn.Flatten(0, 1))  # (1, N, 4) → (N, 4)
    options = {"noise_variance": 0.3, "noise_bounds": (1e-8, 1e2), "weight_decay": 0.0}
    objective = KernelBSGDObjective(from_sklearn(expression), network, 2, **options)
    log_noise = objective.likelihood.log_noise
    log_noise.data.copy_(torch.tensor([-1.0, 0.2]))
    X = torch.randn(15, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(15, 2, generator=generator, dtype=torch.float64)
    loss = objective(X, Rows(y), generator)
    K = objective.kernel(network(X))
    exact = torch.zeros(())
    for p in range(2):
        C = K + log_noise[p].exp() * eye(15)
        exact = exact + y[:, p] @ torch.linalg.inv(C) @ y[:, p] + torch.linalg.slogdet(C)[1]
    exact = 0.5 * (exact + 2 * 15 * math.log(2 * math.pi)) / 15
    exactly(loss.detach(), exact.detach())
    assert_same_gradients(loss, exact, objective)


# ---- the running statistics
@pytest.mark.parametrize("b", [1, 4, 20])
@pytest.mark.parametrize("averaging", ["auto", "theory", 0.02, 0.9])
@slow_cases("-4$")
def test_time_average_of_the_running_statistics_is_exact(averaging, b):
    """Σ_t F̃_t/T → F for fixed θ, whatever the batch size."""
    generator = torch.Generator().manual_seed(b)
    n, T = 60, 600
    Z = torch.randn(1, n, 3, generator=generator, dtype=torch.float64) + 0.5
    y = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    running = RunningStatistics(1, 3, 2, averaging, window=40)
    n_rows = torch.tensor([float(n)], dtype=torch.float64)
    mean = [torch.zeros_like(a) for a in running.total(n_rows)]
    for _ in range(T):
        rows = torch.randperm(n, generator=generator)[:b]
        n_seen = torch.tensor([float(b)], dtype=torch.float64)
        running.update(Z[:, rows], y[None, rows], n_seen, b)
        for total, a in zip(mean, running.total(n_rows), strict=True):
            total += a / T
    exact = batch_statistics(Z, y)
    products = (
        Z[0][:, :, None] * Z[0][:, None],
        Z[0][:, :, None] * y[:, None],
        y.square(),
    )
    for actual, expected, rows in zip(mean, exact, products, strict=False):
        error = n * rows.std(0) / math.sqrt(b * T)
        assert ((actual[0] - expected[0]).abs() <= 5 * error).all()


@pytest.mark.slow
def test_theory_averages_converge_without_a_time_average():
    generator = torch.Generator().manual_seed(0)
    Z = torch.randn(1, 60, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(60, 1, generator=generator, dtype=torch.float64)
    errors = []
    running, one = RunningStatistics(1, 3, 1, "theory", 40), torch.ones(1, dtype=torch.float64)
    for _ in range(4000):
        row = torch.randint(60, (1,), generator=generator)
        running.update(Z[:, row], y[None, row], one, 1)
        errors.append(float((running.gram - Z.mT @ Z / 60).norm()))
    early, late = np.mean(errors[:100]), np.mean(errors[-1000:])
    assert late < 0.45 * early  # b_t is a tenth, the error about its root


# ---- the closing pass
@pytest.mark.parametrize("n", [BLOCK_ROWS - 1, BLOCK_ROWS, 2 * BLOCK_ROWS + 1])
def test_closing_pass_in_blocks_is_the_dense_one(n):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, 3, generator=generator)  # float32, as in training
    y = torch.randn(n, 2, generator=generator)
    keep = torch.rand(1, n, generator=generator) < 0.5
    S = exact_statistics(lambda X: X.double().tanh()[None], X, y)
    Z, y = X.double().tanh(), y.double()
    exactly(S.gram[0], Z.T @ Z, 1e-12)
    exactly(S.cross[0], Z.T @ y, 1e-12)
    exactly(S.square[0], y.square().sum(0), 1e-12)
    assert float(S.n_rows) == n
    S = exact_statistics(lambda X: X.double().tanh()[None], X, y, keep)
    exactly(S.gram[0], Z[keep[0]].T @ Z[keep[0]], 1e-12)
    exactly(S.cross[0], Z[keep[0]].T @ y[keep[0]], 1e-12)
    assert float(S.n_rows) == float(keep.sum())


@pytest.mark.parametrize("noise", ["learned", "validation", "profiled"])
@torch.no_grad()
def test_solution_is_the_posterior_of_all_rows(noise):
    """Those of the folds included, and at the closing noise and ridge."""
    p = make_problem(5, n_members=2, n_folds=3)
    options = {"averaging": "auto", "weights": "profiled"}
    objective = make_objective(SCGDObjective, p, noise=noise, **options)
    objective.closing_noise.copy_(p.noise.log() - 1.0)
    objective.closing_ridge.copy_(p.ridge.log() + 1.0)
    posterior = objective.solution(p.X, p.rows)
    sigma2, ridge = posterior.weights.noise_variance, posterior.weights.ridge
    if noise == "learned":
        exactly(sigma2, p.noise)
        exactly(ridge, p.noise)
    if noise == "validation":
        exactly(sigma2, p.noise / math.e)
        exactly(ridge, p.ridge * math.e)
    Z = p.features(p.X)  # the members, joined
    mean, cov = dense_posterior(Z, p.y, Z[:5], sigma2, sigma2 / ridge)
    exactly(posterior.marginals(p.X[:5]).mean[0], mean)
    exactly(posterior.covariance(p.X[:5]), cov)
    exactly(posterior.log_evidence(), -nlml(Z, p.y, sigma2, sigma2 / ridge))


def unseen_log_variance(Z, fold, ridge):
    """Mean log h of the rows of each fold, by n×n matrices, for a kernel ZₖZₖᵀ for each fold k."""
    found = []
    for k, Zk in enumerate(Z):
        train, test = Zk[fold != k], Zk[fold == k]
        K_inv = torch.linalg.inv(train @ train.T + ridge * eye(len(train)))
        cross = test @ train.T
        f = (test.square().sum(1) - ((cross @ K_inv) * cross).sum(1)) / ridge
        found.append(f.log1p())
    return torch.cat(found).mean()


@torch.no_grad()
def test_joined_members_are_as_uncertain_of_unseen_rows_as_each_member(monkeypatch):
    """With fewer rows than joined features, λ is raised; with more, or a single one, it is not."""
    p, matched = make_problem(1, n_members=3, n_folds=8), []
    p.features = make_features("network", p.X.shape[1], 40, p.generator, 3)
    objective = make_objective(SCGDObjective, p, noise="validation", weights="profiled")
    ridge = p.ridge.mean() * 1e-3
    objective.closing_ridge.fill_(ridge.log())
    objective.match_joined(p.X, p.rows)
    members, fold = p.features.members(p.X), p.rows.fold
    joined = p.features(p.X).expand(3, -1, -1)
    wanted = unseen_log_variance(members, fold, ridge)
    assert unseen_log_variance(joined, fold, ridge) > wanted + 0.3
    found = unseen_log_variance(joined, fold, objective.closing_ridge[0].exp())
    assert wanted < found <= wanted + 0.15 + 1e-6
    large = torch.full_like(objective.closing_ridge, 5.0)
    large[0] = ridge.log()  # only the first is raised
    raised = objective.closing_ridge[0].clone()
    objective.closing_ridge.copy_(large)
    objective.match_joined(p.X, p.rows)
    exactly(objective.closing_ridge[1:], large[1:])
    assert abs(objective.closing_ridge[0] - raised) < 0.3  # the grid is another
    for K, D in [(3, 40), (3, 3), (1, 150)]:
        p.features = make_features("network", p.X.shape[1], D, p.generator, K)
        rows = replace(p.rows, fold=p.rows.fold.clamp_max(K - 1))
        objective = make_objective(SCGDObjective, p, noise="validation", weights="profiled")
        monkeypatch.setattr(
            objective, "match_joined", lambda X, rows, KD=(K, D): matched.append(KD)
        )
        objective.calibrate(p.X, rows)
    assert matched == [(3, 40)]
    monkeypatch.setattr(evidence, "MAX_MATCHED_ROWS", len(p.X))
    p.features = make_features("network", p.X.shape[1], 40, p.generator, 3)
    objective = make_objective(SCGDObjective, p, noise="validation", weights="profiled")
    monkeypatch.setattr(objective, "match_joined", lambda *_: matched.append("many rows"))
    objective.calibrate(p.X, p.rows)
    assert matched == [(3, 40)]


@torch.no_grad()
def held_out_score(problem, noise, ridge):
    """Mean −log N(y | m, σ²(1 + h)) over the rows that a member has not seen."""
    scores = []
    for k, Z in enumerate(problem.features.members(problem.X)):
        seen = problem.rows.fold != k
        train, test, y = Z[seen], Z[~seen], problem.y
        mean = test @ optimal_weights(train, y[seen], ridge)
        h = [test @ torch.linalg.inv(train.T @ train + r * eye(Z.shape[1])) * test for r in ridge]
        std = (noise * (1 + torch.stack(h, 2).sum(1))).sqrt()
        scores.extend(-norm.logpdf(y[~seen], mean, std).sum(1))
    return np.mean(scores)


@parametrize_problem
def test_evaluation_without_validation_rows_is_the_exact_evidence(problem):
    Z = problem.features.members(problem.X)[0].detach()
    options = {"averaging": "auto", "weights": "learned"}
    objective = make_objective(SCGDObjective, problem, **options)
    exact = nlml(Z, problem.y, problem.noise, torch.ones_like(problem.noise)).sum() / len(Z)
    assert_allclose(objective.evaluate(problem.X, problem.rows), exact, rtol=1e-10)
    profiled = make_objective(SCGDObjective, problem, noise="profiled", **options)
    assert profiled.evaluate(problem.X, problem.rows) < exact
    noise, ridge = profiled.noise_variance, profiled.ridge
    found = most_likely(spectrum(batch_statistics(Z[None], problem.y)))
    exactly(torch.stack(found), torch.stack([noise, ridge]))


def test_evaluation_of_an_ensemble_is_the_mean_of_its_members():
    p = make_problem(2, n_members=2)
    objective = make_objective(SCGDObjective, p, averaging="auto", weights="profiled")
    Z, signal = p.features.members(p.X).detach(), torch.ones_like(p.noise)
    exact = sum(nlml(Zk, p.y, p.noise, signal).sum() for Zk in Z) / (2 * len(p.X))
    assert_allclose(objective.evaluate(p.X, p.rows), exact, rtol=1e-10)


@pytest.mark.parametrize("n_members", [1, 3])
def test_evaluation_is_the_predictive_density_of_unseen_rows(n_members):
    p = make_problem(6, n_members=n_members, n_folds=5)
    options = {"averaging": "auto", "weights": "profiled"}
    objective = make_objective(SCGDObjective, p, **options)
    expected = held_out_score(p, p.noise, p.noise)
    assert_allclose(objective.evaluate(p.X, p.rows), expected, rtol=1e-10)
    objective = make_objective(SCGDObjective, p, noise="validation", **options)
    score = objective.evaluate(p.X, p.rows)
    noise, ridge = objective.noise_variance, objective.ridge
    assert_allclose(score, held_out_score(p, noise, ridge), rtol=1e-10)
    assert score < min(held_out_score(p, 0.9 * noise, ridge), expected)
    assert score < held_out_score(p, 1.1 * noise, ridge)


def test_evaluation_extrapolates_from_a_bounded_number_of_rows(monkeypatch):
    """ZᵀZ and Zᵀy of the first m training rows stand for n/m times theirs."""
    monkeypatch.setattr(evidence, "EVALUATION_ROWS", 0)
    monkeypatch.setattr(evidence, "MIN_EVALUATION_ROWS", 12)
    p = make_problem(6, n_folds=5)
    objective = make_objective(SCGDObjective, p, averaging="auto", weights="profiled")
    score = objective.evaluate(p.X, p.rows)
    n = len(p.X) - 5
    Z, y = p.features.members(p.X)[0].detach(), p.y
    scale = n / 12
    part, ridge = slice(5, 17), p.noise / scale  # n/m·G + λI = n/m·(G + λm/n·I)
    mean = Z[:5] @ optimal_weights(Z[part], y[part], ridge)
    h = []
    for r in p.noise:
        F = scale * Z[part].T @ Z[part] + r * eye(Z.shape[1])
        h.append((Z[:5] @ torch.linalg.inv(F) * Z[:5]).sum(1))
    std = (p.noise * (1 + torch.stack(h, 1))).sqrt()
    assert_allclose(score, -norm.logpdf(y[:5], mean, std).sum(1).mean(), rtol=1e-10)


@pytest.mark.parametrize("noise", ["learned", "profiled"])
@torch.no_grad()
def test_stream_of_all_rows_at_once_has_the_closing_posterior(noise):
    p = make_problem(1)
    assert len(p.X) <= 20 * p.features.n_features  # fewer than the window
    options = {"averaging": 1.0, "weights": "profiled"}
    objective = make_objective(SCGDObjective, p, noise=noise, **options)
    objective(p.X, p.rows, p.generator)
    streamed = objective.running_solution()
    closing = objective.solution(p.X, p.rows)
    exactly(streamed.marginals(p.X).mean, closing.marginals(p.X).mean)
    exactly(streamed.marginals(p.X).var, closing.marginals(p.X).var)
    exactly(streamed.log_evidence(), closing.log_evidence())


# ---- estimators against sklearn
@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(70, 3))
    y = 5.0 + 3.0 * np.sin(X @ [1.0, 0.5, -0.2]) + 0.4 * rng.normal(size=70)
    return X, y, rng.normal(size=(8, 3))


def fit(cls, data, **options):
    options = {"hidden_layer_sizes": (), "dtype": "float64", "max_iter": 4} | options
    return cls(random_state=0, **options).fit(*data[:2])


def assert_same_model(model, data):
    """That of sklearn's exact GP with the fitted kernel: densities, moments and evidence."""
    X, y, X_new = data
    twin = GaussianProcessRegressor(
        model.kernel_, alpha=0.0, optimizer=None, normalize_y=model.normalize_y
    ).fit(X, y)
    scale = y.std() if model.normalize_y else 1.0
    mean, std = twin.predict(X_new, return_std=True)
    _, cov = twin.predict(X_new, return_cov=True)
    actual_mean, actual_std = model.predict(X_new, return_std=True)
    assert_allclose(actual_mean, mean, rtol=1e-8, atol=1e-8)
    assert_allclose(actual_std, std, rtol=1e-8)
    assert_allclose(model.predict(X_new, return_cov=True)[1], cov, rtol=1e-8, atol=1e-8)
    log_evidence = twin.log_marginal_likelihood_value_ - len(y) * math.log(scale)
    assert_allclose(model.log_marginal_likelihood_value_, log_evidence, rtol=1e-8)
    assert_allclose(model.log_marginal_likelihood(X, y), log_evidence, rtol=1e-8)
    noise = model.noise_variance_
    assert_allclose(noise, model.kernel_.k2.noise_level * scale**2, rtol=1e-10)
    latent = model.predict_std(X_new, latent=True)
    assert_allclose(latent**2 + noise, std**2, rtol=1e-8)
    _, latent_cov = model.predict(X_new, return_cov=True, latent=True)
    assert_allclose(latent_cov + noise * np.eye(len(X_new)), cov, rtol=1e-8, atol=1e-8)
    assert_allclose(
        model.log_predictive_density(X_new, y[: len(X_new)]),
        norm.logpdf(y[: len(X_new)], mean, std),
        rtol=1e-7,
    )


@pytest.mark.parametrize("normalize_y", [True, False])
@pytest.mark.parametrize("noise", ["validation", "profiled", "learned"])
@pytest.mark.parametrize("cls", ESTIMATORS)
def test_linear_kernel_equals_sklearn(cls, noise, normalize_y, data):
    kernel = sk.DotProduct(1.3) + sk.WhiteKernel(0.1)
    model = fit(cls, data, kernel=kernel, noise=noise, normalize_y=normalize_y)
    assert model.kernel_ != kernel
    assert_same_model(model, data)


@pytest.mark.parametrize("normalize_y", [True, False])
@pytest.mark.parametrize(
    "kernel",
    [
        0.7 * sk.RBF([1.0, 2.0, 3.0]) + sk.WhiteKernel(0.1),
        sk.Matern(1.5, nu=2.5) * sk.DotProduct(1.0) + sk.WhiteKernel(0.2),
        sk.RationalQuadratic(2.0, 0.5) + sk.WhiteKernel(0.1, (1e-3, 1.0)),
    ],
    ids=str,
)
def test_general_kernel_equals_sklearn(kernel, normalize_y, data):
    options = {"kernel": kernel, "n_components": None, "normalize_y": normalize_y}
    model = fit(BSGDGaussianProcessRegressor, data, batch_size=16, **options)
    assert model.kernel_ != kernel
    assert_same_model(model, data)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_general_kernel_of_many_rows_is_solved_by_iterations(is_weighted, data, monkeypatch):
    X, y, X_new = data
    weight = np.arange(len(y)) % 3.0 if is_weighted else None
    options = {"n_components": None, "max_iter": 3, "hidden_layer_sizes": (8,), "random_state": 0}
    model = BSGDGaussianProcessRegressor(sk.RBF(), **options)
    exact = clone(model).fit(X, y, sample_weight=weight)
    monkeypatch.setattr(bsgd, "MAX_EXACT_ROWS", 20)
    model.fit(X, y, sample_weight=weight)
    assert isinstance(model.posterior_, IterativePosterior)
    assert math.isnan(model.log_marginal_likelihood_value_)
    known, expected = (m.log_marginal_likelihood(X, y, weight) for m in (model, exact))
    assert known == pytest.approx(expected, rel=1e-12)
    assert model.kernel_ == exact.kernel_
    for actual, expected in zip(
        model.predict(X_new, return_cov=True), exact.predict(X_new, return_cov=True), strict=True
    ):
        assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)
    std, expected = (m.predict(X_new, return_std=True)[1] for m in (model, exact))
    assert_allclose(std, expected, rtol=1e-5)


FIXED = [0.05, 20.0]  # less and more than there is


@pytest.mark.parametrize("level", FIXED)
@pytest.mark.parametrize("cls", ESTIMATORS)
def test_fixed_noise_stays_exactly_that(cls, level, data):
    kernel = sk.DotProduct(1.3) + sk.WhiteKernel(level, "fixed")
    model = fit(cls, data, kernel=kernel, normalize_y=False)
    assert model.noise_variance_ == pytest.approx(level, rel=1e-12)
    assert_same_model(model, data)


@pytest.mark.parametrize("level", FIXED)
def test_fixed_noise_of_a_general_kernel_stays_exactly_that(level, data):
    kernel = sk.RationalQuadratic() + sk.WhiteKernel(level, "fixed")
    model = fit(BSGDGaussianProcessRegressor, data, kernel=kernel, normalize_y=False)
    assert model.noise_variance_ == pytest.approx(level, rel=1e-12)
    assert_same_model(model, data)


@pytest.mark.parametrize("kernel", [sk.DotProduct(1.3), sk.RationalQuadratic()], ids=str)
def test_noise_may_be_bounded_by_zero(kernel, data):
    """A bound that sklearn's kernels allow."""
    kernel = kernel + sk.WhiteKernel(0.1, (0.0, 10.0))
    model = fit(BSGDGaussianProcessRegressor, data, kernel=kernel, normalize_y=False)
    assert 0 < model.noise_variance_ <= 10
    assert np.isfinite(model.log_marginal_likelihood_value_)


@pytest.mark.parametrize(
    ("cls", "kernel", "noise"),
    [
        (SCGDGaussianProcessRegressor, sk.DotProduct(1.3), "learned"),
        (MinimaxGaussianProcessRegressor, sk.DotProduct(1.3), "validation"),
        (BSGDGaussianProcessRegressor, sk.DotProduct(1.3), "profiled"),
        (BSGDGaussianProcessRegressor, sk.RationalQuadratic(), "auto"),
    ],
)
def test_noise_stays_within_its_bounds(cls, kernel, noise, data):
    kernel = kernel + sk.WhiteKernel(20.1, (20.0, 40.0))
    options = {"noise": noise, "normalize_y": False, "learning_rate": "constant"}
    with pytest.warns(ConvergenceWarning, match=r"close to the specified lower bound 20\.0"):
        model = fit(cls, data, kernel=kernel, max_iter=10, **options)
    assert model.noise_variance_ == pytest.approx(20.0, rel=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {},  # an ensemble
        {"n_estimators": 1, "noise": "learned"},
        {"kernel": 1.2 * sk.Matern(2.0, nu=1.5) + sk.DotProduct(), "n_components": 30},
        {"feature_map": torch.nn.Linear(3, 4)},
        {"kernel": 1.2 * sk.RBF(2.0), "n_components": 30, "n_estimators": 2},
    ],
    ids=["ensemble", "network", "fourier", "module", "fourier-ensemble"],
)
def test_predictions_are_those_of_an_exact_gp_on_the_features(options, data):
    X, y, X_new = data
    X = (X - X.mean(0)) / X.std(0)  # what is done inside, and then changes nothing
    model = fit(SCGDGaussianProcessRegressor, (X, y), **{"hidden_layer_sizes": (7, 5)} | options)
    features, weights = model.posterior_.features, model.posterior_.weights
    Z, Z_new = (features(torch.from_numpy(A)).detach().numpy() for A in (X, X_new))
    signal = float(weights.noise_variance / weights.ridge)
    twin = GaussianProcessRegressor(
        sk.ConstantKernel(signal) * sk.DotProduct(0.0, "fixed"),
        alpha=float(weights.noise_variance),
        optimizer=None,
        normalize_y=True,
    ).fit(Z, y)
    mean, std = model.predict(X_new, return_std=True, latent=True)
    expected_mean, expected_std = twin.predict(Z_new, return_std=True)
    assert_allclose(mean, expected_mean, rtol=1e-8)
    assert_allclose(std, expected_std, rtol=1e-7)
    log_evidence = twin.log_marginal_likelihood_value_ - len(y) * math.log(y.std())
    assert_allclose(model.log_marginal_likelihood_value_, log_evidence, rtol=1e-8)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_outputs_are_gps_of_their_own_on_shared_features(cls, data):
    X, y, X_new = data
    Y = np.stack([y, 100.0 * X[:, 1] + y], 1)
    model = fit(cls, (X, Y), kernel=sk.DotProduct(1.3))
    weights, sigma_0 = model.posterior_.weights, model.posterior_.features.kernel.sigma_0.item()
    mean, std = model.predict(X_new, return_std=True)
    cov = model.predict(X_new, return_cov=True)[1]
    log_evidence = 0.0
    for p in range(2):
        noise, ridge = float(weights.noise_variance[p]), float(weights.ridge[p])
        kernel = noise / ridge * sk.DotProduct(sigma_0) + sk.WhiteKernel(noise)
        twin = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None, normalize_y=True)
        twin.fit(X, Y[:, p])
        expected_mean, expected_cov = twin.predict(X_new, return_cov=True)
        assert_allclose(mean[:, p], expected_mean, rtol=1e-8, atol=1e-8)
        assert_allclose(std[:, p] ** 2, np.diag(expected_cov), rtol=1e-8)
        assert_allclose(cov[..., p], expected_cov, rtol=1e-8, atol=1e-8)
        assert_allclose(model.noise_variance_[p], noise * Y[:, p].var(), rtol=1e-10)
        log_evidence += twin.log_marginal_likelihood_value_ - len(Y) * math.log(Y[:, p].std())
    assert_allclose(model.log_marginal_likelihood_value_, log_evidence, rtol=1e-8)


# ---- few rows ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Training ended after max_iter")
@pytest.mark.parametrize("cls", ESTIMATORS[:2])
@by_default("SCGD")
def test_intervals_of_few_rows_are_wide_enough(cls):
    """The rows that choose the noise must not be a handful: coverage was .59 and .63."""
    X, y = make_friedman1(1500, n_features=6, noise=1.0, random_state=0)
    for seed in (1, 2):
        rows = slice(20 * seed, 20 * (seed + 1))
        model = cls(hidden_layer_sizes=(32,), random_state=seed)
        model.fit(X[rows], y[rows])
        low, high = model.predict_interval(X[1000:]).T
        assert ((y[1000:] >= low) & (y[1000:] <= high)).mean() > 0.82


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        ADMMGaussianProcessRegressor(max_iter=2),
        BSGDGaussianProcessRegressor(sk.RBF(), n_components=None, max_iter=2),
    ],
    ids=str,
)
def test_exact_processes_keep_their_rows_where_tools_for_scikit_learns_look(model):
    rng = np.random.default_rng(0)
    X, y = 5.0 + rng.standard_normal((30, 2)), rng.standard_normal(30)
    assert not hasattr(model, "X_train_")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    order = np.lexsort(model.X_train_.T), np.lexsort(X.T)
    assert_allclose(model.X_train_[order[0]], X[order[1]])
    assert_allclose(model.y_train_[order[0]], y[order[1]])
    features = SCGDGaussianProcessRegressor(max_iter=1, random_state=0).fit(X, y)
    assert not hasattr(features, "X_train_")

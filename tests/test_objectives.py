"""Any likelihood, loss and solver on any feature map: a basis is all that they ask for."""

import copy
import math

import pytest
import torch
from families import slow_cases
from sklearn.gaussian_process.kernels import RBF
from test_sparse import dense_features, k, make_problem, random_moments

from skgpstoch.data.rows import Rows
from skgpstoch.kernels import from_sklearn
from skgpstoch.likelihoods import Bernoulli, Categorical, Gaussian, Laplace, Poisson, StudentT
from skgpstoch.losses import ExpectedScore, LogLoss, SquareLoss
from skgpstoch.maths.gaussian import Marginals
from skgpstoch.maths.linear_regression import exact_statistics, spectrum
from skgpstoch.models.features.base import Basis
from skgpstoch.models.features.fourier import KernelFeatures
from skgpstoch.models.features.inducing import InducingFeatures
from skgpstoch.models.features.network import NetworkFeatures, multilayer_perceptron
from skgpstoch.models.features.orthogonal import OrthogonalFeatures
from skgpstoch.models.posteriors.conjugate import ConjugatePosterior, ConjugateWeights
from skgpstoch.models.sparse import ConstantMean, SparseModel
from skgpstoch.objectives import natural
from skgpstoch.objectives.adam import GradientObjective
from skgpstoch.objectives.elbo import FARTHEST_TARGET, sites_of
from skgpstoch.objectives.gaussian_rows import row_sums, term_of_features, term_of_points
from skgpstoch.objectives.lbfgs import FullBatchObjective, gradients_at
from skgpstoch.objectives.natural import ProfiledObjective, RunningObjective
from skgpstoch.objectives.optimal_q import optimal_q
from skgpstoch.training.loop import train
from skgpstoch.training.optimizers import constant, make_optimizer
from skgpstoch.training.tables import InMemory

F64 = torch.float64


def network_features():
    generator = torch.Generator().manual_seed(0)
    network = multilayer_perceptron(2, (6,), "tanh", generator).to(F64)
    return NetworkFeatures(network, 6, skip=2).to(F64)


def kernel_features():
    kernel = from_sklearn(2.0 * RBF([1.0, 1.5]))
    return KernelFeatures(kernel, torch.nn.Identity(), 2, 14, seed=0)


FEATURES = {"network": network_features, "kernel": kernel_features}


@pytest.fixture(scope="module")
def inputs():
    generator = torch.Generator().manual_seed(1)
    X = 4.0 * torch.rand(80, 2, generator=generator, dtype=F64) - 2.0
    return X, torch.sin(X[:, :1]) + 0.3 * X[:, 1:]


def targets(likelihood, f):
    generator = torch.Generator().manual_seed(2)
    if isinstance(likelihood, Categorical):
        return torch.bucketize(f, torch.tensor([-0.5, 0.5], dtype=F64)).double()
    return likelihood.sample(f, generator).detach().double()


def trained(objective, X, rows, solver, max_iter=15):
    history = train(
        objective,
        InMemory(X, rows),
        optimizer=make_optimizer(solver, objective.param_groups(), 0.05),
        max_iter=1 if solver == "lbfgs" else max_iter,
        batch_size=len(X) if solver == "lbfgs" else len(X) // 2,
        schedule=constant,
        generator=torch.Generator().manual_seed(3),
    )
    return objective.solution(X, rows), history


LIKELIHOODS = {
    "student_t": StudentT(0.1),
    "laplace": Laplace(0.1),
    "softmax": Categorical(3),
    "bernoulli": Bernoulli(),
    "poisson": Poisson(),
    "gaussian": Gaussian(0.01),
}


@pytest.mark.parametrize(
    ("kind", "name", "solver"),
    [
        (list(FEATURES)[(i + j) % len(FEATURES)], name, solver)  # which take turns
        for i, name in enumerate(LIKELIHOODS)
        for j, solver in enumerate(["natural", "adam", "lbfgs"])
    ],
)
@slow_cases(
    "bernoulli-(natural|lbfgs)",
    "laplace-adam",
    "softmax-adam",
    "softmax-lbfgs",
    "network-student_t-lbfgs",
)
@slow_cases("student_t-adam", "laplace-natural", "kernel-laplace")
def test_likelihoods_train_on_finite_features(kind, name, solver, inputs):
    few = (name, solver) == ("softmax", "lbfgs")  # evaluations of many steps of Newton's
    X, f = (a[: 25 if few else 40] for a in inputs)
    likelihood = LIKELIHOODS[name].for_outputs(1)
    rows = Rows(targets(likelihood, f))
    mean = ConstantMean(likelihood.initial_mean(rows))
    model = SparseModel(FEATURES[kind](), copy.deepcopy(likelihood), copy.deepcopy(mean))
    objectives = {
        "natural": lambda: RunningObjective(model, len(X), conjugate=False),
        "adam": lambda: GradientObjective(model, len(X)),
        "lbfgs": lambda: FullBatchObjective(model, len(X)),
    }
    posterior, _ = trained(objectives[solver](), X, rows, solver, max_iter=10)
    q = posterior.marginals(X)
    before = Marginals(mean.value.detach().expand_as(q.mean), torch.ones_like(q.var))
    start = likelihood.log_predictive(rows.y, before)
    reached = posterior.likelihood.log_predictive(rows.y, q)
    assert reached.mean() > start.mean() + 0.05
    assert (q.var > 0).all()
    assert math.isfinite(float(posterior.log_evidence()))


@pytest.mark.parametrize("loss", [LogLoss(), SquareLoss()], ids=["log", "square"])
@pytest.mark.parametrize("kind", FEATURES)
def test_losses_train_on_finite_features(kind, loss, inputs):
    X, f = inputs
    likelihood = Gaussian(0.01).for_outputs(1)
    rows = Rows(targets(likelihood, f))
    mean = ConstantMean(torch.zeros(1, dtype=F64))
    model = SparseModel(FEATURES[kind](), likelihood, mean, loss=loss)
    if loss.covariance(likelihood) == "gradient":
        objective = ProfiledObjective(model, len(X))
    else:
        objective = RunningObjective(model, len(X), conjugate=True)
    posterior, _ = trained(objective, X, rows, "adam")
    q = posterior.marginals(X)
    assert (q.mean[0] - f).square().mean() < 0.02
    assert (q.var > 0).all()


@pytest.mark.parametrize("kind", FEATURES)
def test_gaussian_likelihood_gives_the_exact_posterior(kind, inputs):
    """The variational model of finite features has no gap: it is Bayesian linear regression."""
    X, f = inputs
    features = FEATURES[kind]()
    rows = Rows(targets(Gaussian(0.01), f))
    noise = torch.full((1,), 0.02, dtype=F64)
    s = spectrum(exact_statistics(features.members, X, rows.y))
    exact = ConjugatePosterior(features, ConjugateWeights(s, noise, noise))
    mean = ConstantMean(torch.zeros(1, dtype=F64))
    model = SparseModel(features, Gaussian(noise), mean)
    posterior = FullBatchObjective(model, len(X)).solution(X, rows)
    for ours, theirs in zip(posterior.marginals(X), exact.marginals(X), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(posterior.log_evidence(), exact.log_evidence(), rtol=1e-9, atol=0.0)
    torch.testing.assert_close(posterior.covariance(X), exact.covariance(X), rtol=1e-7, atol=1e-9)
    draws = posterior.sample(X, 2000, torch.Generator().manual_seed(0))
    error = (draws.mean(0) - exact.marginals(X).mean[0]).abs()
    assert (error < 5.0 * (exact.marginals(X).var[0] / 2000).sqrt()).all()


@pytest.mark.parametrize("kind", FEATURES)
def test_gradient_of_the_bound_is_that_of_the_exact_evidence(kind, inputs):
    """By the network's parameters or the kernel's: at the best q there is no gap."""
    X, f = inputs
    features = FEATURES[kind]()
    rows = Rows(targets(Gaussian(0.01), f))
    likelihood = Gaussian(torch.full((1,), 0.02, dtype=F64))
    mean = ConstantMean(torch.zeros(1, dtype=F64)).requires_grad_(False)
    objective = FullBatchObjective(SparseModel(features, likelihood, mean), len(X))
    params = [p for p in objective.parameters() if p.requires_grad]
    gradients = gradients_at(objective.model, X, rows, optimal_q(objective.model, X, rows), params)
    phi = features(X)
    C = phi @ phi.mT + likelihood.noise_variance * torch.eye(len(X), dtype=F64)
    y = rows.y
    nlml = 0.5 * ((y * torch.linalg.solve(C, y)).sum() + torch.logdet(C)) / len(X)
    expected = torch.autograd.grad(nlml, params)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def points(n_others=0):
    kernel = from_sklearn(2.0 * RBF([1.0, 1.5]))
    Z = torch.linspace(-1.5, 1.5, 14, dtype=F64).reshape(7, 2)
    parts = kernel.double(), torch.nn.Identity(), Z, torch.tensor([1.0, 2.0], dtype=F64), 2
    if not n_others:
        return InducingFeatures(*parts)
    return OrthogonalFeatures(*parts, orthogonal_points=Z[:n_others].flip(1))


SUMS = {**FEATURES, "points": points, "orthogonal": lambda: points(3)}


@pytest.mark.parametrize("kind", SUMS)
def test_sums_over_rows_give_the_gradient_of_every_row(kind, inputs, monkeypatch):
    """Of two outputs and weighted rows, after a step: what the general data term gives."""
    X, f = inputs
    y = torch.cat([f, 1.0 - f.square()], 1)
    rows = Rows(y, weight=torch.arange(80, dtype=F64) % 3)
    found = []
    for has_sums in (True, False):
        noise, mean = torch.tensor([0.05, 0.2], dtype=F64), torch.tensor([0.3, -0.2], dtype=F64)
        model = SparseModel(SUMS[kind](), Gaussian(noise), ConstantMean(mean), beta=0.8)
        objective = RunningObjective(
            model, 160.0, mean_weight=rows.mean_weight, conjugate=True, averaging=0.6
        )
        if not has_sums:
            monkeypatch.setattr(natural, "has_row_sums", lambda model: False)
        generator = torch.Generator()
        objective(X[:30], rows[:30], generator)
        loss = objective(X[30:], rows[30:], generator)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in objective.parameters())])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("term", [term_of_points, term_of_features])
def test_the_data_term_of_gaussian_rows_is_that_of_autograd(term):
    """Dense algebra and autograd by all parameters, at some q(w); two outputs, weighted rows."""
    p = make_problem(P=2, layers=(3,))
    model, q = p.model, random_moments(p)
    weight = torch.arange(len(p.X), dtype=F64) % 3
    rows = Rows(p.y, weight=weight)
    phi, noise = dense_features(model, p.X), model.likelihood.noise_variance
    explained = torch.einsum("nd,pde,ne->np", phi, q.covariances[0], phi)
    residual = k(model, p.X, p.X).diagonal() - phi.square().sum(1)
    square = (p.y - phi @ q.mean - model.mean.value).square() + explained + residual[:, None]
    expected = -0.5 * (weight[:, None] * ((2.0 * math.pi * noise).log() + square / noise)).sum()
    value = term(model, p.X, rows, lambda phi, offset: (row_sums(phi, rows, offset), q))
    params = list(model.parameters())
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=0.0)
    pairs = zip(*(torch.autograd.grad(a, params) for a in (value, expected)), strict=True)
    for ours, theirs in pairs:
        assert theirs.abs().max() > 0.0
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_sites_of_steep_rows_point_no_further_than_a_few_prior_deviations():
    """A row without curvature would point to infinity; only near the best q may it do so."""
    one = torch.ones(1, 1, dtype=F64)
    mean = ConstantMean(torch.zeros(1, dtype=F64))
    model = SparseModel(NetworkFeatures(torch.nn.Identity(), 1), StudentT(1.0), mean)
    term = ExpectedScore(one[0], 7.0 * one, 0.0 * one, 0.0 * one, curvature=0.0 * one)
    basis, q = Basis(one, one[0]), Marginals(0.0 * one[None], one[None])
    sites = sites_of(model, basis, term, q)
    assert float(sites.cross / sites.precision[0]) == pytest.approx(FARTHEST_TARGET)
    assert float(sites_of(model, basis, term, q, exact=True).precision) == 0.0


def test_sites_of_rows_do_not_depend_on_others():
    """They add up, whichever rows are on a rank or in a block, where prior variances differ."""
    X, f = torch.tensor([[0.1], [1.0], [20.0]], dtype=F64), torch.zeros(3, 1, dtype=F64)
    mean = ConstantMean(torch.zeros(1, dtype=F64))
    model = SparseModel(NetworkFeatures(torch.nn.Identity(), 1), StudentT(1.0), mean)

    def sites(rows):
        one = torch.ones(len(rows), 1, dtype=F64)
        term = ExpectedScore(one[:, 0], 7.0 * one, 0.0 * one, 0.0 * one, curvature=0.0 * one)
        basis = Basis(X[rows], X[rows].square()[:, 0])
        return sites_of(model, basis, term, Marginals(f[rows][None], f[rows][None]))

    for whole, *parts in zip(sites([0, 1, 2]), sites([0]), sites([1, 2]), strict=True):
        torch.testing.assert_close(whole, sum(parts))

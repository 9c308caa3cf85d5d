"""QSGP: estimators from sampled basis functions, block-wise steps, bases, and the estimators.

The yardstick is (D1) of Evans & Nair, written out with dense matrices in `bound_by_parts`, and what
estimators give on average over *all* index sets of a tiny problem, to rounding.
"""

import copy
import itertools
import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from torch.testing import assert_close

import skgpstoch.models.posteriors.base
from skgpstoch import QSGPClassifier, QSGPRegressor, QSRVMRegressor, kernels
from skgpstoch.data.rows import Rows
from skgpstoch.likelihoods import Bernoulli, Gaussian, Laplace
from skgpstoch.maths.gaussian import Marginals
from skgpstoch.models.features.basis_functions import FourierBasis, KernelBasis
from skgpstoch.models.posteriors.chevron import ChevronModel, ChevronPosterior, block_kl
from skgpstoch.objectives.blockwise import BlockwiseObjective, block_newton, exact_enough
from skgpstoch.objectives.proximal import ProximalObjective, trust
from skgpstoch.objectives.quadruply import (
    BestCoefficient,
    StochasticObjective,
    controlled,
    prior_squares,
    seen,
    site_marginals,
    squares,
)
from skgpstoch.training.exact_search import best_on
from skgpstoch.training.optimizers import SparseAdagrad
from skgpstoch.training.recipes.basis import as_latent
from skgpstoch.training.recipes.kernel_choice import default_kernel

KERNEL = sk.ConstantKernel(1.3) * sk.RBF([0.8, 1.5])
BASES = ["fourier", "dense"]  # S = I, and S = k(Z, Z)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def make_basis(kind, m, seed=0):
    kernel = kernels.from_sklearn(KERNEL)
    if kind == "fourier":
        return FourierBasis(kernel, 2, m, seed)
    return KernelBasis(kernel, 1.5 * normal(m, 2, seed=7), is_diagonal=kind == "diagonal")


def make_model(kind="fourier", m=4, c=1, P=1, likelihood=None, seed=0):
    """A model with any weights: no optimum, at which errors of first order would not show."""
    likelihood = likelihood or Gaussian(torch.linspace(0.3, 0.5, P))
    shift = torch.linspace(0.2, -0.4, P, dtype=torch.float64)
    model = ChevronModel(make_basis(kind, m, seed), likelihood, shift, c, torch.float64)
    W = 0.5 * normal(m, P, 1 + c, seed=1)
    W[..., 1:] *= torch.ones(m, c).tril().double()[:, None]
    r = torch.arange(c)
    W[r, :, 1 + r] = 0.3 + W[r, :, 1 + r].abs()
    model.columns.copy_(W)
    model.std[c:] = 0.4 + 0.3 * normal(m, P, seed=2)[c:].abs()
    return model.double()


def make_rows(n=3, P=1, binary=False, weight=None):
    X = normal(n, 2, seed=3)
    y = X @ normal(2, P, seed=4) + 0.3 * normal(n, P, seed=5)
    return X, Rows((y > 0).double() if binary else y, weight)


def everything(basis):
    return torch.arange(basis.n_groups)


def dense_factor(W, std):
    """C, (P, m, m), from μ and its dense columns (m, P, 1 + c) and its diagonal (m, P)."""
    C = W.shape[2]
    dense = W[..., 1:].permute(1, 0, 2)
    return torch.cat([dense, torch.diag_embed(std.mT)[..., C - 1 :]], 2)


def precision_of(model):
    basis = model.basis
    S = basis.precision(everything(basis))
    return torch.diag(S) if basis.is_diagonal else S


def divergence(model, W):
    """KL[q ‖ p] of all outputs, without log|S| where S is dense."""
    S, C = precision_of(model), dense_factor(W, model.std)
    mu = W[..., 0].mT
    log_s = S.logdet() if model.basis.is_diagonal else 0.0
    total = 0.0
    for p in range(len(mu)):
        total = total + mu[p] @ S @ mu[p] + (C[p].T @ S @ C[p]).trace() - len(S) - log_s
        total = total - 2.0 * C[p].diagonal().log().sum()
    return 0.5 * total


def bound_by_parts(model, X, rows, W=None):
    """−ELBO of all rows by dense matrices, (D1) for a Gaussian likelihood."""
    W = model.columns if W is None else W
    phi = model.basis.columns(X, everything(model.basis))
    f = (phi @ W[..., 0]) + model.shift
    var = (phi @ dense_factor(W, model.std)).square().sum(2).mT
    q = Marginals(f[None], var[None])
    sites = rows.weighted(model.likelihood.expected_log_prob(rows.y, q)).sum()
    return divergence(model, W) - sites


def stochastic(model, X, rows, n_control=0, batch_size=2, **options):
    defaults = {"learns_kernel": False, "learns_noise": False, "warm_up": 0}
    objective = StochasticObjective(
        model,
        X,
        rows,
        batch_size=batch_size,
        n_control=n_control,
        noise_bounds=(1e-6, 1e6),
        generator=generator(11),
        **{**defaults, **options},
    )
    objective.coefficient.products.fill_(1.0)  # β = 1, before a step of the test's own
    if objective.approximates:
        objective.prior_coefficient.products.fill_(1.0)
    return objective


def index_sets(total, size):
    """All that are drawn with replacement, each with its probability's share."""
    return [torch.tensor(sorted(s)) for s in itertools.product(range(total), repeat=size)]


def subsets(total, size):
    return [torch.tensor(s) for s in itertools.combinations(range(total), size)]


def mean_of_estimates(objective, size, n_batch):
    """The average of −ELBO's estimates over all index sets I, J and K, in the order of autograd."""
    X, rows, std = objective.X, objective.rows, objective.model.std.clone()
    values = []
    sets = index_sets(objective.model.basis.n_groups, size)
    for i, j, k in itertools.product(sets, sets, index_sets(len(X), n_batch)):
        values.append(objective.gaussian(i, j, X[k], rows[k]))
        objective.model.std.copy_(std)  # which a step replaces by its closed form
    return torch.stack(values).mean()


# ---- (D1) and its estimators
def test_dense_matrices_give_the_bound_of_the_paper():
    """(D1) as it is printed: the yardstick of what follows is itself compared."""
    model, (X, rows) = make_model(m=4, c=2), make_rows()
    phi, noise = model.basis.columns(X, everything(model.basis)), 0.3
    y, mu = rows.y[:, 0] - model.shift, model.columns[:, 0, 0]
    C = dense_factor(model.columns, model.std)[0]
    assert_close(C, C.tril())
    of_mu = (mu @ phi.T @ phi @ mu - 2.0 * y @ phi @ mu) / noise + mu @ mu
    of_C = (C.T @ phi.T @ phi @ C).trace() / noise + (C.T @ C).trace()
    of_C = of_C - 2.0 * C.diagonal().log().sum()
    twice = 3 * math.log(2.0 * math.pi * noise) + y @ y / noise + of_mu + of_C - 4
    assert_close(bound_by_parts(model, X, rows), 0.5 * twice, rtol=1e-6, atol=1e-6)  # σ² is float32
    assert_close(-ChevronPosterior(model, 3).bound_of(X, rows), bound_by_parts(model, X, rows))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", BASES)
@slow_cases("^dense-2$")
def test_terms_of_any_column_without_bias(kind, size):
    """L_μ's and L_C's squares, linear and prior terms: any column is treated alike."""
    m, n = 4, 3
    basis, (X, rows) = make_basis(kind, m), make_rows(n)
    phi, w = basis.columns(X, everything(basis)), normal(1, m, 1, seed=6)
    exact = (phi @ w[0]).square().sum(), (rows.y * (phi @ w[0])).sum()
    S = torch.eye(m).double() if basis.is_diagonal else basis.precision(everything(basis))
    of_data, linear, prior = [], [], []
    sets = index_sets(basis.n_groups, size)
    for i, j in itertools.product(sets, sets):
        I, J = basis.members(i), basis.members(j)  # noqa: E741
        s = basis.diagonal(i) if basis.is_diagonal else basis.cross(i, j)
        prior.append(prior_squares(s, w[:, I], w[:, J], m))
        for k in index_sets(n, 2):
            f_I, f_J = seen(phi[k][:, I], w[:, I], m), seen(phi[k][:, J], w[:, J], m)
            of_data.append(n / 2 * squares(f_I, f_J))
            linear.append(n / 2 * (rows.y[k] * f_I[0]).sum())
    assert_close(torch.stack(of_data).mean(), exact[0], rtol=1e-10, atol=1e-10)
    assert_close(torch.stack(linear).mean(), exact[1], rtol=1e-10, atol=1e-10)
    assert_close(torch.stack(prior).mean(), (w[0].T @ S @ w[0]).sum(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("size", "n_batch", "n_control"), [(1, 2, 2), (2, 1, 0)])
@pytest.mark.parametrize(("kind", "m"), [("fourier", 4), ("dense", 3), ("diagonal", 3)])
@slow_cases("diagonal", "dense-3-2", "dense-3")
def test_estimates_of_the_bound_without_bias(kind, m, n_control, size, n_batch):
    """All of (D1): μ, dense and diagonal columns, log|S|; and the gradients of all of it (F.1)."""
    model, (X, rows) = make_model(kind, m, c=1), make_rows()
    objective = stochastic(model, X, rows, n_control)
    model.likelihood.requires_grad_(True)
    W = model.columns.clone().requires_grad_()
    truth = bound_by_parts(model, X, rows, W)
    d_W, d_noise = torch.autograd.grad(truth, [W, model.likelihood.log_noise])
    mean = mean_of_estimates(objective, size, n_batch)
    assert_close(mean, truth, rtol=1e-10, atol=1e-10)
    mean.backward()
    estimated = model.flat.grad.to_dense().view_as(W)
    below = torch.arange(m)[:, None] >= torch.arange(-1, 1)  # what is above C's diagonal stays 0
    assert_close(estimated, d_W * below[:, None], rtol=1e-10, atol=1e-10)
    assert_close(model.likelihood.log_noise.grad, d_noise, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n_control", [0, 2])
def test_gradient_by_the_kernel_without_bias(n_control):
    """The control variate keeps its own basis, so that it has no say in these."""
    model, (X, rows) = make_model("fourier", 4, c=1), make_rows()
    objective = stochastic(model, X, rows, n_control)
    parameters = list(model.basis.kernel.requires_grad_(True).parameters())
    truth = torch.autograd.grad(bound_by_parts(model, X, rows), parameters)
    found = torch.autograd.grad(mean_of_estimates(objective, 1, 2), parameters)
    for a, b in zip(found, truth, strict=True):
        assert float(b.abs().max()) > 1e-2
        assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_estimates_of_several_outputs_and_of_weighted_rows():
    weight = torch.tensor([0.5, 2.0, 1.0]).double()
    model, (X, rows) = make_model("fourier", 4, c=1, P=2), make_rows(P=2, weight=weight)
    objective = stochastic(model, X, rows, n_control=3)
    std, values = model.std.clone(), []
    sets = index_sets(2, 1)
    for i, j in itertools.product(sets, sets):
        values.append(objective.gaussian(i, j, X, rows))
        model.std.copy_(std)
    exact = bound_by_parts(model, X, rows)
    assert_close(torch.stack(values).mean(), exact, rtol=1e-10, atol=1e-10)


def test_a_minibatch_of_weighted_rows_without_bias():
    """Rows are drawn uniformly, whatever each counts for."""
    weight = torch.tensor([0.5, 4.0, 1.0]).double()
    model, (X, rows) = make_model("fourier", 4, c=1), make_rows(weight=weight)
    mean = mean_of_estimates(stochastic(model, X, rows), 1, 1)
    assert_close(mean, bound_by_parts(model, X, rows), rtol=1e-10, atol=1e-10)


def test_approximate_covariances_are_of_the_kernel_that_their_mean_is_of():
    """Where the kernel moves, Nyström's control variate stays as it was begun."""
    model, (X, rows) = make_model("kernel", 6, c=2), make_rows()
    objective = stochastic(model, X, rows, n_control=3, learns_kernel=True)
    with torch.no_grad():
        for each in model.basis.kernel.parameters():
            each += 0.3
        W = model.columns.double().permute(1, 0, 2)
        u = sum(objective.nystrom(groups) @ W[:, members] for groups, members in model.blocks())
    assert_close(u, objective.u, rtol=1e-12, atol=1e-12)


def test_an_odd_number_of_fourier_features_without_bias():
    """The last cosine has no sine: its group is half as large as the others."""
    model, (X, rows) = make_model("fourier", 3, c=1), make_rows()
    mean = mean_of_estimates(stochastic(model, X, rows), 1, 2)
    assert_close(mean, bound_by_parts(model, X, rows), rtol=1e-10, atol=1e-10)


def test_the_same_odd_function_may_be_drawn_twice():
    basis, X = make_basis("fourier", 5), make_rows()[0]
    whole = basis.columns(X, everything(basis))
    assert_close(basis.columns(X, torch.tensor([2, 2])), whole[:, [2, 2]])


@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("n_control", [0, 8])
def test_all_rows_and_all_functions_give_the_bound_itself(kind, n_control):
    model, (X, rows) = make_model(kind, 6, c=2), make_rows(20)
    objective = stochastic(model, X, rows, n_control)
    groups = everything(model.basis)
    truth = bound_by_parts(model, X, rows)
    assert_close(
        objective.gaussian(groups, groups, X, rows),
        truth,
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("n_control", [0, 20])
@slow_cases("0-dense", "20-fourier")
def test_draws_of_larger_problems_are_about_the_bound(kind, n_control):
    model, (X, rows) = make_model(kind, 40, c=3), make_rows(60)
    objective = stochastic(model, X, rows, n_control, batch_size=20)
    std, values, random = model.std.clone(), [], generator(1)
    with torch.no_grad():
        for _ in range(200):
            groups = torch.randperm(model.basis.n_groups, generator=random)[:8]
            values.append(float(60 * objective(groups, rows, random)))
            model.std.copy_(std)
    z = (np.mean(values) - float(bound_by_parts(model, X, rows))) / (np.std(values) / 200**0.5)
    assert abs(z) < 4.0


def test_independent_index_sets_are_needed():
    """With J = I the square of one estimate is taken, and its variance is added."""
    m, n, size = 4, 3, 2
    basis, X = make_basis("dense", m), make_rows(n)[0]
    phi, w = basis.columns(X, everything(basis)).detach(), normal(1, m, 1, seed=6)
    exact = (phi @ w[0]).square().sum()
    f = [seen(phi[:, i], w[:, i], m) for i in index_sets(m, size)]
    mean = torch.stack([squares(f_I, f_I) for f_I in f]).mean()
    bias = (m * (phi * w[0].T).square().sum() - exact) / size
    assert_close(mean, exact + bias, rtol=1e-12, atol=1e-12)
    assert float(bias) > 0.1 * float(exact)


def test_diagonal_columns_are_set_to_their_closed_form():
    """c_ii = (‖φ_i‖²/σ² + s_ii)^(−1/2), of the functions that were seen; others stay."""
    for kind in BASES:
        model, (X, rows) = make_model(kind, 6, c=2), make_rows(20)
        objective, before = stochastic(model, X, rows), model.std.clone()
        i = torch.tensor([1, 2])
        objective.gaussian(i, i, X, rows)
        phi, s = model.basis.columns(X, everything(model.basis)), precision_of(model).diagonal()
        optimum = (phi.square().sum(0) / model.likelihood.noise_variance.double() + s).rsqrt()
        members = model.basis.members(i)
        seen_now = torch.zeros(6, dtype=torch.bool)
        seen_now[members] = True
        seen_now[:2] = False  # which are dense
        assert_close(model.std[seen_now, 0], optimum[seen_now].detach(), rtol=1e-6, atol=0.0)
        assert_close(model.std[~seen_now], before[~seen_now], rtol=0.0, atol=0.0)


# ---- the control variate
def test_control_variate_has_mean_zero():
    m, p = 4, 3
    basis, X = make_basis("dense", m), make_rows(p)[0]
    phi, W = basis.columns(X, everything(basis)).detach(), normal(2, m, 3, seed=6)
    h, sets, added = phi @ W, index_sets(m, 2), []
    for i, j in itertools.product(sets, sets):
        of_control = squares(seen(phi[:, i], W[:, i], m), seen(phi[:, j], W[:, j], m))
        added.append(controlled(torch.zeros(2, 3), of_control, h.square().sum(1)))
    assert float(torch.stack(added).std()) > 1.0
    assert_close(torch.stack(added).mean(0), torch.zeros(2, 3).double(), rtol=0.0, atol=1e-10)


@pytest.mark.slow
def test_variance_falls_with_the_rows_of_the_control_variate():
    """Of the value and of the gradient, for 0, 1 % and 10 % of the rows."""
    n, of_value, of_gradient = 2000, [], []
    for p in (0, 20, 200):
        model, (X, rows) = make_model("fourier", 40, c=0), make_rows(n)
        model.columns[..., 0].mul_(8.0)  # so that it is the basis functions that are noisy
        objective = stochastic(model, X, rows, p, batch_size=n)
        std, values, gradients, random = model.std.clone(), [], [], generator(1)
        for _ in range(60):
            value = objective(torch.randperm(20, generator=random)[:4], rows, random)
            gradient = torch.autograd.grad(value, model.flat)[0].to_dense()
            values.append(value.item())
            gradients.append(gradient)
            model.std.copy_(std)
        of_value.append(np.var(values))
        of_gradient.append(float(torch.stack(gradients).var(0).sum()))
    for variance, factor in ((of_value, 8.0), (of_gradient, 3.0)):
        assert variance[0] > variance[1] > variance[2]
        assert variance[0] > factor * variance[2]


def test_any_coefficient_leaves_the_control_variate_unbiased():
    model, (X, rows) = make_model("fourier", 4, c=1), make_rows()
    objective = stochastic(model, X, rows, 2)
    objective.coefficient.products[0] *= torch.tensor([0.3, 0.8])
    truth = bound_by_parts(model, X, rows)
    assert_close(mean_of_estimates(objective, 1, 1), truth, rtol=1e-10, atol=1e-10)


def test_best_coefficient_is_the_one_of_least_variance():
    """Of pairs with a known mean of the second; and no more than 1."""
    c = normal(500, 1, 2, seed=1)
    a = torch.tensor([0.4, 3.0]).double() * c + normal(500, 1, 2, seed=2)
    best = BestCoefficient(torch.zeros(1, 2))
    assert_close(best.value(), torch.zeros(1, 2).double())
    for pair in zip(a + 5.0, c + 5.0, strict=True):
        best.see(*pair, torch.tensor(5.0).double())
    assert_close(best.value(), torch.tensor([[0.4, 1.0]]).double(), rtol=0.0, atol=0.15)


@pytest.mark.slow
def test_few_rows_of_the_control_variate_do_not_raise_the_variance():
    """As β = 1 does, four times; what it has learned is the objective's, steps later."""
    n, of_value = 2000, []
    for p, learns in ((0, False), (3, False), (3, True)):
        model, (X, rows) = make_model("fourier", 40, c=0), make_rows(n)
        model.columns[..., 0].mul_(8.0)
        objective, random = stochastic(model, X, rows, p, batch_size=n), generator(1)
        std, values = model.std.clone(), []
        for _ in range(130):
            with torch.no_grad():
                values.append(objective(torch.randperm(20, generator=random)[:4], rows, random))
            model.std.copy_(std)
            if learns:
                objective.step_end()
        of_value.append(float(torch.stack(values[50:]).var()))
    assert of_value[1] > 1.3 * of_value[0]
    assert of_value[2] < 1.02 * of_value[0]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["prior", "targets"])
def test_control_variates_of_the_prior_and_of_the_targets_take_noise_away(part):
    """Nyström's of a dense S, and that of yᵀΦμ, which is exact where P are all rows (F.2)."""
    model, (X, rows) = make_model("dense", 40, c=0), make_rows(60)
    model.std.fill_(1e-3)  # alike, so that which of them are sampled does not matter
    if part == "targets":
        model.columns.mul_(1e-3)  # so that what is noisy is linear in μ
    variances = []
    for n_control in (0, 60):
        objective, random = stochastic(model, X, rows, n_control), generator(1)
        if part == "prior":
            model.likelihood.set_noise_(torch.tensor(1e6).double())
        std, values = model.std.clone(), []
        for _ in range(60):
            i, j = (torch.randperm(40, generator=random)[:10] for _ in range(2))
            with torch.no_grad():
                values.append(objective.gaussian(i, j, X, rows))
            model.std.copy_(std)
        variances.append(float(torch.stack(values).var()))
    assert variances[1] < 0.1 * variances[0]


@pytest.mark.parametrize("kind", BASES)
def test_running_vector_follows_the_weights(kind):
    """h = Φ_P W after steps of AdaGrad; without these it would be far off."""
    model, (X, rows) = make_model(kind, 12, c=2, P=2), make_rows(30, P=2)
    objective = stochastic(model, X, rows, 6, batch_size=10)
    optimizer, random, before = SparseAdagrad([model.flat]), generator(), objective.h.clone()
    for _ in range(10):
        groups = torch.randperm(model.basis.n_groups, generator=random)[:3]

        def loss(groups=groups):
            optimizer.zero_grad()
            value = objective(groups, rows, random)
            value.backward()
            return value

        optimizer.step(loss)
        objective.step_end()
    phi = model.basis.columns(objective.control_X, everything(model.basis))
    W = model.columns.permute(1, 0, 2)
    assert_close(objective.h, phi @ W, rtol=1e-9, atol=1e-9)
    if objective.approximates:
        u = objective.nystrom(everything(model.basis)) @ W
        assert_close(objective.u, u, rtol=1e-9, atol=1e-9)
    assert float((objective.h - before).abs().max()) > 0.1


# ---- the bound of other likelihoods
LOG_CONCAVE = {
    "logistic": (lambda: Bernoulli("logit"), True),
    "laplace": (lambda: Laplace(0.5), False),
}


@pytest.mark.parametrize("name", LOG_CONCAVE)
def test_site_bound_is_a_lower_bound_and_tight(name):
    make, binary = LOG_CONCAVE[name]
    m, n = 4, 6
    model = make_model("dense", m, c=1, likelihood=make().double())
    X, rows = make_rows(n, binary=binary)
    phi, W = model.basis.columns(X, torch.arange(m)), model.columns.permute(1, 0, 2)
    exact = model.likelihood.expected_log_prob(rows.y, model.marginals(X)).detach()
    gaps = []
    for size in range(1, m + 1):
        values = []
        for i, j in itertools.product(subsets(m, size), subsets(m, size)):
            f_I, f_J = seen(phi[:, i], W[:, i], m), seen(phi[:, j], W[:, j], m)
            of_diagonal = (m / size) ** 2 * (phi[:, j].square() @ model.std[j].square()).mT
            q = site_marginals(f_I, f_J, of_diagonal, model.shift)
            values.append(model.likelihood.expected_log_prob(rows.y, q))
        gaps.append((exact.view(-1) - torch.stack(values).mean(0).view(-1)).detach())
    assert float(torch.stack(gaps).min()) > -1e-9
    assert float(gaps[0].max()) > 0.05
    means = [float(gap.mean()) for gap in gaps]
    assert means == sorted(means, reverse=True)
    assert_close(gaps[-1], torch.zeros(n).double(), rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", LOG_CONCAVE)
def test_objective_of_other_likelihoods_is_an_upper_bound(name, size):
    make, binary = LOG_CONCAVE[name]
    model = make_model("dense", 3, c=0, likelihood=make().double())
    X, rows = make_rows(6, binary=binary)
    model.std.mul_(3.0)  # variances are where the sets J matter
    objective, std, values = stochastic(model, X, rows), model.std.clone(), []
    for i, j in itertools.product(subsets(3, size), subsets(3, size)):
        values.append(objective.other(i, j, X, rows).detach())
        model.std.copy_(std)
    assert torch.stack(values).mean() >= bound_by_parts(model, X, rows).detach() - 1e-9


def test_objective_of_other_likelihoods_is_exact_with_all_functions():
    for make, binary in LOG_CONCAVE.values():
        for kind in BASES:
            model = make_model(kind, 4, c=1, likelihood=make().double())
            X, rows = make_rows(6, binary=binary)
            groups = everything(model.basis)
            truth = bound_by_parts(model, X, rows)
            value = stochastic(model, X, rows).other(groups, groups, X, rows)
            assert_close(value, truth, rtol=1e-9, atol=1e-9)


# ---- block-wise steps
def blockwise(model, X, rows, rate=1.0, **options):
    options = {"learns_noise": False, **options}
    return BlockwiseObjective(model, X, rows, n_swept=len(X), rate=lambda sweep: rate, **options)


def sweeps(objective, n, size):
    """Visit all groups n times, `size` at a time; the loss before each step."""
    losses = []
    groups = everything(objective.model.basis)
    for sweep in range(n):
        for block in groups[torch.randperm(len(groups), generator=generator(sweep))].split(size):
            losses.append(objective(block, objective.rows, generator()).item())
        objective.epoch_end()
    return losses


def exact_posterior(model, X, rows):
    """Mean (m, P) and covariances (P, m, m) of Bayesian linear regression."""
    phi, S = model.basis.columns(X, everything(model.basis)).detach(), precision_of(model).detach()
    noise = model.likelihood.noise_variance.detach().double()
    y = (rows.y - model.shift).detach()
    weight = torch.ones(len(X)).double() if rows.weight is None else rows.weight
    H = torch.stack([phi.T @ (weight[:, None] * phi) / v + S for v in noise])
    b = phi.T @ (weight[:, None] * y) / noise
    return torch.linalg.solve(H, b.T[..., None])[..., 0].T, torch.linalg.inv(H)


@pytest.mark.parametrize("kind", [*BASES, "diagonal"])
def test_full_covariance_in_one_block_is_bayesian_linear_regression(kind):
    """After one step, from anywhere."""
    m = 7 if kind == "fourier" else 6
    model, (X, rows) = make_model(kind, m, c=m, P=2), make_rows(15, P=2)
    sweeps(blockwise(model, X, rows), 1, m)
    mean, covariance = exact_posterior(model, X, rows)
    C = dense_factor(model.columns, model.std)
    assert_close(model.columns[..., 0], mean, rtol=1e-8, atol=1e-8)
    assert_close(C @ C.mT, covariance, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("c", [0, 3, 8])
@slow_cases("0-dense", "3-fourier", "8-fourier", "8-dense")
def test_small_blocks_converge_to_the_same(kind, c):
    model, (X, rows) = make_model(kind, 8, c=c), make_rows(15)
    sweeps(blockwise(model, X, rows), 60, 2 if kind == "fourier" else 5)
    mean, covariance = exact_posterior(model, X, rows)
    assert_close(model.columns[..., 0], mean, rtol=1e-6, atol=1e-6)
    if c == 8:
        C = dense_factor(model.columns, model.std)
        assert_close(C @ C.mT, covariance, rtol=1e-4, atol=1e-5)


LIKELIHOODS = {
    "gaussian": (lambda: Gaussian(0.3), False),
    "bernoulli": (lambda: Bernoulli("logit"), True),
    "laplace": (lambda: Laplace(0.4), False),
}


@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_loss_is_the_bound_and_falls_at_every_step(name, kind):
    """From scratch at each step; C stays lower triangular with a positive diagonal."""
    make, binary = LIKELIHOODS[name]
    model = make_model(kind, 8, c=3, likelihood=make().double())
    X, rows = make_rows(12, binary=binary)
    objective, losses = blockwise(model, X, rows), []
    for step in range(16):
        truth = bound_by_parts(model, X, rows).item() / 12
        block = torch.randperm(model.basis.n_groups, generator=generator(step))[:2]
        losses.append(objective(block, rows, generator()).item())
        assert losses[-1] == pytest.approx(truth, rel=1e-9, abs=1e-9)
        C = dense_factor(model.columns, model.std)[0]
        assert_close(C, C.tril(), rtol=0.0, atol=0.0)
        assert bool((C.diagonal() > 0.0).all())
    assert (np.diff(losses) < 1e-10).all()
    assert losses[0] - losses[-1] > 0.1


@pytest.mark.parametrize("c", [0, 8])
@pytest.mark.parametrize("name", ["bernoulli", "laplace"])
def test_loss_falls_at_every_step_where_variances_are_large(name, c):
    """Sites' curvatures change with the variance, which Newton's step for C takes as given."""
    make, binary = LIKELIHOODS[name]
    X, rows = make_rows(12, binary=binary)
    basis = fourier(sk.ConstantKernel(1000.0) * sk.RBF(1.0), 8)
    shift = torch.zeros(1).double()
    model = ChevronModel(basis, make().double(), shift, c, torch.float64)
    losses = sweeps(blockwise(model, X, rows), 10, 4)
    assert (np.diff(losses) < 1e-8).all()


def test_mean_field_scales_at_the_optimum():
    """Proposition 1: c_ii = (‖φ_i‖²/σ² + s_ii)^(−1/2)."""
    for kind in [*BASES, "diagonal"]:
        model, (X, rows) = make_model(kind, 6, c=0, P=2), make_rows(15, P=2)
        sweeps(blockwise(model, X, rows), 1, 3)
        phi = model.basis.columns(X, everything(model.basis)).detach()
        noise, s = model.likelihood.noise_variance.detach().double(), precision_of(model).diagonal()
        optimum = (phi.square().sum(0)[:, None] / noise + s[:, None]).rsqrt()
        assert_close(model.std, optimum.detach(), rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_weight_2_is_the_row_twice(name):
    make, binary = LIKELIHOODS[name]
    X, rows = make_rows(10, binary=binary)
    weight = torch.tensor([2.0, 1.0] * 5).double()
    twice = torch.arange(10).repeat_interleave(weight.long())
    fitted = []
    for here, some in ((X, Rows(rows.y, weight)), (X[twice], rows[twice])):
        model = make_model("fourier", 8, c=2, likelihood=make().double())
        losses = sweeps(blockwise(model, here, some), 3, 2)
        fitted.append((model.columns, model.std, torch.tensor(losses)))
    for a, b in zip(*fitted, strict=True):
        assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n_swept", [1, 5])
def test_rows_of_a_sweep_stand_for_all(n_swept):
    """A sweep over some rows is one with all of these n/p times as heavy."""
    model, (X, rows) = make_model("fourier", 8, c=2), make_rows(20)
    objective = BlockwiseObjective(
        model, X, rows, n_swept=n_swept, rate=lambda sweep: 1.0, learns_noise=False
    )
    sweep = objective.begin(generator())
    assert len(sweep.X) == n_swept
    heavy = Rows(sweep.rows.y, torch.full((n_swept,), 20 / n_swept).double())
    truth = bound_by_parts(model, sweep.X, heavy).detach() / 20
    groups = torch.tensor([1])
    found = objective.step(sweep, groups, model.basis.members(groups))
    assert_close(found, truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradient_of_the_kernel_over_a_sweep(name):
    """Summed over blocks it is that of the whole bound, at weights that do not move."""
    make, binary = LIKELIHOODS[name]
    model = make_model("fourier", 8, c=3, likelihood=make().double())
    X, rows = make_rows(12, binary=binary)
    kernel = model.basis.kernel.requires_grad_(True)
    truth = torch.autograd.grad(bound_by_parts(model, X, rows) / 12, list(kernel.parameters()))
    objective = blockwise(model, X, rows, rate=1e-12, learns_kernel=True)
    for block in torch.arange(4).split(2):
        objective(block, rows, generator()).backward()
    for p, expected in zip(kernel.parameters(), truth, strict=True):
        assert float(expected.abs().max()) > 1e-3
        assert_close(p.grad, expected, rtol=1e-7, atol=1e-8)


def test_noise_after_a_sweep_is_that_of_the_greatest_bound():
    model, (X, rows) = make_model("fourier", 8, c=3), make_rows(12)
    model.likelihood.requires_grad_(True)
    sweeps(blockwise(model, X, rows, learns_noise=True), 1, 2)
    slope = torch.autograd.grad(bound_by_parts(model, X, rows), model.likelihood.log_noise)[0]
    assert_close(slope, torch.zeros(1).double(), rtol=0.0, atol=1e-5)


def test_block_newton_is_the_minimum_over_columns_that_are_lower_triangular():
    """Its gradient, written out, is zero at the new weights."""
    m, c = 5, 3
    A = normal(m, m)
    H, W = (A @ A.T + torch.eye(m))[None], 0.3 * normal(1, m, 1 + c, seed=1)
    members = torch.arange(m)
    below = (members[:, None] >= torch.arange(-1, c)).double()
    W, G = W * below, normal(1, m, 1 + c, seed=2)
    j = torch.arange(c)
    W[:, j, 1 + j] = 1.0
    step = block_newton(W, G, H, members)
    after, new = G + H @ step, W + step
    after[:, j, 1 + j] -= 1.0 / new[:, j, 1 + j]
    assert_close(after * below, torch.zeros_like(W), rtol=0.0, atol=1e-9)
    assert_close(step * (1.0 - below), torch.zeros_like(W), rtol=0.0, atol=0.0)
    assert bool((new[:, j, 1 + j] > 0.0).all())


# ---- q(w)
@pytest.mark.parametrize("kind", BASES)
def test_divergence_from_the_prior(kind):
    model = make_model(kind, 6, c=2, P=2)
    S = precision_of(model).detach()
    prior = torch.distributions.MultivariateNormal(torch.zeros(6).double(), precision_matrix=S)
    C = dense_factor(model.columns, model.std)
    q = torch.distributions.MultivariateNormal(model.columns[..., 0].T, scale_tril=C)
    truth = torch.distributions.kl_divergence(q, prior).sum()
    assert_close(model.kl(), truth, rtol=1e-8, atol=1e-8)
    if kind == "fourier":
        parts = [torch.tensor(i) for i in ([0, 3], [1, 2, 4, 5])]
        s = torch.ones(6, 1).double()
        shares = [block_kl(model.columns[i], model.std[i], s[i], i) for i in parts]
        assert_close(sum(shares), truth, rtol=1e-8, atol=1e-8)


def test_posterior_moments_and_draws():
    model, X = make_model("dense", 6, c=2, P=2), make_rows(5)[0]
    posterior = ChevronPosterior(model, 5)
    phi = model.basis.columns(X, torch.arange(6)).detach()
    half = phi @ dense_factor(model.columns, model.std)
    mean, K = (phi @ model.columns[..., 0]) + model.shift, half @ half.mT
    q = posterior.marginals(X)
    assert_close(q.mean[0], mean.detach())
    assert_close(q.var[0], K.diagonal(dim1=1, dim2=2).T)
    assert_close(posterior.covariance(X).detach(), K)
    draws = posterior.sample(X, 20_000, generator()).detach()
    se = K.diagonal(dim1=1, dim2=2).T.sqrt() / 20_000**0.5
    assert bool(((draws.mean(0) - mean).abs() < 4.5 * se).all())
    for p in range(2):
        assert_close(torch.cov(draws[..., p].T), K[p], rtol=0.1, atol=0.03 * K[p].max().item())


# ---- bases
FOURIER = {
    "rbf": sk.RBF(0.8),
    "matern 0.5": sk.Matern(0.8, nu=0.5),
    "matern 1.5": sk.Matern(0.8, nu=1.5),
    "matern 2.5": sk.Matern(0.8, nu=2.5),
    "relevance": sk.ConstantKernel(2.0) * sk.RBF([0.5, 3.0]),
    "product": sk.RBF([0.9, 2.0]) * sk.Matern(1.5, nu=1.5),
    "sum": sk.ConstantKernel(2.0) * sk.RBF(0.5) + sk.ConstantKernel(0.5) * sk.Matern(2.0, nu=2.5),
}


def fourier(kernel, m, seed=0):
    return FourierBasis(kernels.from_sklearn(kernel), 2, m, seed)


@pytest.mark.parametrize("name", FOURIER)
@pytest.mark.parametrize("m", [4000, 4001])
def test_fourier_features_are_of_the_kernel(name, m):
    X = normal(6, 2, seed=3)
    phi = fourier(FOURIER[name], m).columns(X, torch.arange((m + 1) // 2)).detach()
    assert phi.shape == (6, m)
    K = torch.from_numpy(FOURIER[name](X.numpy()))
    assert_close(phi @ phi.T, K, rtol=0.0, atol=4.5 * K.max().item() / (m / 2) ** 0.5)


@pytest.mark.parametrize("m", [8, 9])
@pytest.mark.parametrize("name", ["relevance", "sum"])
def test_any_fourier_features_are_columns_of_the_whole(name, m):
    basis, X = fourier(FOURIER[name], m), normal(6, 2, seed=3)
    whole = basis.columns(X, everything(basis))
    assert sorted(basis.members(everything(basis)).tolist()) == list(range(m))
    for size in range(1, basis.n_groups + 1):
        for groups in subsets(basis.n_groups, size):
            some = basis.columns(X, groups)
            assert_close(some, whole[:, basis.members(groups)], rtol=1e-12, atol=1e-12)


def test_fourier_features_of_a_seed():
    X, groups = normal(6, 2, seed=3), torch.tensor([0, 5, 4_999_999])
    phi = fourier(KERNEL, 10**7).columns(X, groups)
    again = fourier(KERNEL, 10**7).columns(X, groups)
    other = fourier(KERNEL, 10**7, seed=1).columns(X, groups)
    assert torch.equal(phi, again)
    assert not torch.allclose(phi, other, rtol=0.1)
    scale = phi.abs().max().item()
    single = fourier(KERNEL, 10**7).columns(X.float(), groups)
    assert single.dtype == torch.float32
    assert_close(single.double(), phi, rtol=0.0, atol=1e-5 * scale)


@pytest.mark.parametrize(
    "kernel", [sk.RationalQuadratic(), sk.ExpSineSquared(), sk.DotProduct()], ids=str
)
def test_kernels_without_fourier_features(kernel):
    X = np.random.default_rng(0).normal(size=(10, 2))
    name = type(kernel).__name__
    with pytest.raises(TypeError, match=name):
        QSGPRegressor(kernel=sk.RBF() + kernel, n_subset=0).fit(X, X[:, 0])


def test_too_few_features_for_the_terms_of_a_kernel():
    """The number that was given is named, and the least that would do."""
    kernel = sk.RBF() + sk.Matern()
    with pytest.raises(ValueError, match="got 1") as one:
        fourier(kernel, 1)
    least = int(str(one.value).split("at least ")[1].split(" ")[0])
    assert fourier(kernel, least).n_components == least


def test_kernel_basis():
    basis, X = make_basis("dense", 5), normal(6, 2, seed=3)
    Z, i, j = basis.points, torch.tensor([0, 3]), torch.tensor([1, 3, 4])
    K = torch.from_numpy(KERNEL(Z.numpy()))
    assert_close(basis.columns(X, j), torch.from_numpy(KERNEL(X.numpy(), Z[j].numpy())))
    assert_close(basis.precision(i), K[i][:, i])
    assert_close(basis.cross(i, j), K[i][:, j])
    assert_close(basis.diagonal(i), K.diagonal()[i])


# ---- AdaGrad
def test_sparse_adagrad_is_adagrad():
    own = torch.nn.Parameter(normal(4, 3))
    reference = torch.nn.Parameter(own.detach().clone())
    one = SparseAdagrad([own], eps=1e-10)
    other = torch.optim.Adagrad([reference], lr=0.1, eps=1e-10)
    for step in range(5):
        own.grad, reference.grad = normal(4, 3, seed=step), normal(4, 3, seed=step)
        one.step(lambda: None)
        other.step()
        assert_close(own, reference, rtol=1e-13, atol=1e-13)


def test_sparse_adagrad_leaves_other_rows_alone():
    p = torch.nn.Parameter(normal(5, 2))
    dense = torch.nn.Parameter(p.detach().clone())
    before, rows = p.detach().clone(), torch.tensor([3, 1, 3])  # one of them twice
    optimizer, reference = SparseAdagrad([p]), torch.optim.Adagrad([dense], lr=0.1)
    for step in range(3):
        p.grad = torch.sparse_coo_tensor(
            rows[None], normal(3, 2, seed=step), (5, 2), check_invariants=True
        )
        dense.grad = p.grad.to_dense()
        optimizer.step(lambda: None)
        reference.step()
    assert torch.equal(p[[0, 2, 4]], before[[0, 2, 4]])
    assert not bool((p[[1, 3]] == before[[1, 3]]).any())
    assert_close(p, dense, rtol=1e-12, atol=1e-12)


def test_sparse_adagrad_needs_no_closure():
    """As any optimiser of torch."""
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    assert SparseAdagrad([p]).step() is None
    assert_close(p.detach(), torch.full((2,), 0.9))


# ---- estimators
FIXED = sk.ConstantKernel(1.0, "fixed") * sk.RBF(0.7, "fixed") + sk.WhiteKernel(0.02, "fixed")
QUICK = {"n_components": 60, "n_subset": 0, "kernel": FIXED, "random_state": 0}
INDUCING = {**QUICK, "basis": "inducing", "dtype": "float64"}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (60, 1))
    return X, 2.0 + 3.0 * (np.sin(X[:, 0]) + 0.1 * rng.standard_normal(60))


def test_a_function_on_every_row_gives_the_mean_of_the_exact_process(data):
    X, y = data
    model = QSGPRegressor(**INDUCING, n_dense=60).fit(X, y)
    exact = GaussianProcessRegressor(FIXED, optimizer=None, normalize_y=True).fit(X, y)
    points = np.linspace(-4, 4, 50)[:, None]
    assert_allclose(model.predict(points), exact.predict(points), rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("estimator", [QSGPRegressor, QSRVMRegressor, QSGPClassifier])
@slow_cases("Classifier")
@slow_cases("^QSGPRegressor$")
def test_a_kernel_without_anything_to_learn_is_used_as_it_is(data, estimator):
    """The search for a start raised torch's error."""
    X, y = data
    if estimator is QSGPClassifier:
        y = y > 2.0
    model = estimator(kernel=FIXED, max_iter=10, random_state=0).fit(X, y)
    assert "RBF(length_scale=0.7)" in str(model.kernel_)
    assert model.score(X, y) > 0.9


def test_augmented_variance_is_that_of_proposition_4():
    X = np.linspace(-3, 3, 30)[:, None]
    y = 3.0 * np.sin(X[:, 0])
    points, scale, latent = np.linspace(-4, 30, 60)[:, None], y.std(), []
    kernel = sk.RBF(0.2, "fixed") + sk.WhiteKernel(0.02, "fixed")
    options = {**INDUCING, "kernel": kernel, "n_components": 30, "n_dense": 30}
    for augment in (False, True):
        model = QSGPRegressor(**options, augment=augment).fit(X, y)
        q = model.posterior_.marginals(torch.from_numpy(points - X.mean(0)))
        latent.append(q.var[0, :, 0].detach().numpy())
        predicted = model.predict(points, return_std=True)[1]
    K, k = kernel.k1(X), kernel.k1(points, X)
    own = (k @ np.linalg.inv(K @ K / 0.02 + K) * k).sum(1)
    assert_allclose(latent[0], own, rtol=0.0, atol=1e-6)
    assert_allclose(latent[1], own + 1.0 / ((k**2).sum(1) / 0.02 + 1.0), rtol=0.0, atol=1e-6)
    assert (latent[1] >= latent[0]).all()
    assert_allclose([latent[0][-1], latent[1][-1]], [0.0, 1.0], atol=1e-6)
    # In the units of y, with or without the noise, it is the prior's.
    assert scale * 0.99 < predicted[-1] < 1.02 * scale


def test_many_fourier_features_are_the_exact_process(data):
    X, y = data
    points = np.linspace(-3, 3, 20)[:, None]
    options = {**QUICK, "n_components": 1000, "n_dense": 0, "basis_batch_size": 500}
    model = QSGPRegressor(**options, max_iter=1).fit(X, y)
    exact = GaussianProcessRegressor(FIXED, optimizer=None, normalize_y=True).fit(X, y)
    assert_allclose(model.predict(points), exact.predict(points), atol=0.15 * y.std())


@pytest.mark.slow
def test_many_components_are_stored_as_two_numbers_each(data):
    """μ, c_ii and a seed."""
    X, y = data
    options = {**QUICK, "n_components": 20_000, "n_dense": 0, "basis_batch_size": 256}
    model = QSGPRegressor(**options, max_iter=1).fit(X[:30], y[:30])
    stored = pickle.dumps(model)
    assert len(stored) < 300_000
    assert_array_equal(pickle.loads(stored).predict(X), model.predict(X))


@pytest.mark.slow
def test_a_million_components(data):
    X, y = data
    options = {**QUICK, "n_components": 10**6, "n_dense": 0, "basis_batch_size": 64}
    model = QSGPRegressor(**options, max_iter=1).fit(X[:30], y[:30])
    assert model.score(X[:30], y[:30]) > 0.9


@pytest.mark.parametrize("basis", ["fourier", "inducing"])
def test_predictions_row_by_row_and_from_a_pickle(basis, data):
    X, y = data
    model = QSGPRegressor(**{**QUICK, "basis": basis}, n_dense=10, max_iter=2).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    for rows in (slice(7, 8), slice(20, 23)):
        for a, b in zip(model.predict(X[rows], return_std=True), (mean, std), strict=True):
            assert_allclose(a, b[rows], rtol=1e-6)
    again = pickle.loads(pickle.dumps(model)).predict(X, return_std=True)
    assert_array_equal(again[0], mean)
    assert_array_equal(again[1], std)


def test_equal_seeds_give_equal_models(data):
    a, b = (QSGPRegressor(**QUICK, max_iter=2).fit(*data).predict(data[0]) for _ in range(2))
    assert_array_equal(a, b)
    other = QSGPRegressor(**{**QUICK, "random_state": 1}, max_iter=2).fit(*data).predict(data[0])
    assert not np.array_equal(a, other)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_warm_start_goes_on(data):
    options = {**QUICK, "n_dense": 0, "basis_batch_size": 5, "batch_size": 1000}
    model = QSGPRegressor(**options, max_iter=2, warm_start=True).fit(*data)
    first = list(model.loss_curve_)
    model.fit(*data)
    assert model.loss_curve_[-2] < first[-1] < first[0]
    assert model.posterior_.model.basis.n_components == 60
    with pytest.raises(ValueError, match="warm_start"):
        model.set_params(n_components=30).fit(*data)


@pytest.mark.filterwarnings("ignore:Errors have heavy tails")
def test_laplace_noise_resists_outliers(data):
    X, y = data
    bad = y.copy()
    bad[::8] += 60.0
    errors = {}
    kernel = sk.ConstantKernel(1.0) * sk.RBF(0.7) + sk.WhiteKernel(0.05)
    for name in ("gaussian", "laplace"):
        model = QSGPRegressor(**{**QUICK, "kernel": kernel}, likelihood=name).fit(X, bad)
        errors[name] = np.sqrt(np.mean((model.predict(X) - 2.0 - 3.0 * np.sin(X[:, 0])) ** 2))
    assert errors["laplace"] < 0.3 * errors["gaussian"]
    assert errors["laplace"] < 2.0


def test_outputs_are_fitted_as_they_are_alone(data):
    """With a kernel that is fixed nothing couples them."""
    X, y = data
    Y = np.c_[y, np.cos(X[:, 0])]
    options = {**QUICK, "dtype": "float64", "max_iter": 2, "n_dense": 5}
    together = QSGPRegressor(**options).fit(X, Y).predict(X, return_std=True)
    assert together[0].shape == together[1].shape == (60, 2)
    for p in range(2):
        alone = QSGPRegressor(**options).fit(X, Y[:, p]).predict(X, return_std=True)
        for a, b in zip(together, alone, strict=True):
            assert_allclose(a[:, p], b, rtol=1e-7)


def test_sample_weight_2_is_the_row_twice(data):
    X, y = data
    weight = np.tile([1, 2], 30)
    options = {**QUICK, "dtype": "float64", "n_dense": 60}
    one = QSGPRegressor(**options).fit(X, y, sample_weight=weight)
    two = QSGPRegressor(**options).fit(X.repeat(weight, 0), y.repeat(weight))
    for a, b in zip(*(m.predict(X, return_std=True) for m in (one, two)), strict=True):
        assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("solver", ["newton", "adagrad", "sgd"])
@slow_cases("adagrad")
def test_classes_are_any_labels(solver):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    options = {"n_components": 60, "n_subset": 0, "random_state": 0, "solver": solver}
    if solver == "adagrad":
        options |= {"basis_batch_size": 25, "batch_size": 50, "max_iter": 40, "n_dense": 0}
    kernel = sk.ConstantKernel(4.0) * sk.RBF(1.5)
    for edges in ([0.0], [-0.5, 0.5]):
        y = np.array(["low", "mid", "up"])[np.digitize(X[:, 0], edges)]
        model = QSGPClassifier(**options, kernel=kernel).fit(X, y)
        p = model.predict_proba(X)
        assert model.classes_.tolist() == sorted(set(y))
        assert_allclose(p.sum(1), 1.0, rtol=1e-6)
        assert p.shape == (60, len(edges) + 1)
        assert_array_equal(model.classes_[p.argmax(1)], model.predict(X))
        assert model.score(X, y) > (0.9 if solver == "newton" else 0.65)


@pytest.mark.slow
@pytest.mark.parametrize("basis", ["fourier", "inducing"])
@slow_cases("inducing")
def test_adagrad_learns_a_sine(basis, data):
    X, y = data
    options = {**QUICK, "basis": basis, "n_dense": 0}
    steps = {"basis_batch_size": 30, "batch_size": 60, "max_iter": 50}
    model = QSGPRegressor(**options, **steps, solver="adagrad").fit(X, y)
    assert model.score(X, y) > 0.7


SHORT = {**QUICK, "kernel": sk.RBF(0.3) + sk.WhiteKernel(0.02)}  # much too short a length-scale


@pytest.mark.slow
def test_kernel_goes_on_learning_in_small_steps(data):
    fixed = QSGPRegressor(**SHORT).fit(*data)
    options = {**SHORT, "learning_rate_init": 0.1, "max_iter": 60, "n_iter_no_change": 60}
    learned = QSGPRegressor(**options, learn_kernel=True).fit(*data)
    assert learned.kernel_.k1.length_scale > 0.31
    assert fixed.kernel_.k1.length_scale == pytest.approx(0.3)
    assert learned.loss_curve_[-1] < fixed.loss_curve_[-1] - 0.01


@pytest.mark.slow
def test_training_does_not_end_before_the_kernel_is_learned(data):
    """Whose first step is after a quarter of the sweeps."""
    learned = QSGPRegressor(**SHORT, learn_kernel=True).fit(*data)
    assert learned.n_iter_ > 5
    assert learned.kernel_.k1.length_scale != pytest.approx(0.3, rel=1e-3)


@pytest.mark.slow
def test_learning_the_kernel_does_no_harm(data):
    fixed = QSGPRegressor(**SHORT).fit(*data)
    learned = QSGPRegressor(**{**SHORT, "max_iter": "auto"}, learn_kernel=True).fit(*data)
    assert learned.loss_curve_[-1] < fixed.loss_curve_[-1] - 0.1


def test_basis_batch_size_counts_basis_functions(data):
    """A frequency has two of these."""
    seen_sizes = set()
    inner = BlockwiseObjective.move

    def move(self, sweep, after, block, *rest):
        seen_sizes.add(len(block.members))
        return inner(self, sweep, after, block, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockwiseObjective, "move", move)
        QSGPRegressor(**QUICK, basis_batch_size=10, max_iter=1).fit(*data)
    assert 5 < max(seen_sizes) <= 10


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"augment": True}, ValueError, "augment=True needs basis='inducing'"),
        ({"basis": "inducing", "learn_kernel": True}, ValueError, "learn_kernel=True needs"),
        ({"kernel": sk.DotProduct()}, TypeError, "DotProduct"),
        ({"likelihood": "poisson"}, ValueError, "likelihood"),
        ({"n_dense": -1}, ValueError, "n_dense"),
        ({"n_components": True}, ValueError, "n_components"),
        ({"n_dense": True}, ValueError, "n_dense"),
        ({"n_subset": False}, ValueError, "n_subset"),
        ({"basis_batch_size": True}, ValueError, "basis_batch_size"),
        ({"kernel": sk.RBF([1.0, 1.0])}, ValueError, "kernel has 2 length-scales"),
        ({**INDUCING, "kernel": sk.RBF([1.0, 1.0])}, ValueError, "kernel has 2 length-scales"),
        ({"solver": "adam"}, ValueError, "solver"),
        ({"solver": "sgd", "n_control": 0}, ValueError, "n_control must be at least 1"),
    ],
)
def test_parameters_that_do_not_agree(params, error, message, data):
    with pytest.raises(error, match=message):
        QSGPRegressor(**{**QUICK, **params}).fit(*data)


def test_failing_to_fit_leaves_the_model_as_it_was(data):
    model = QSGPRegressor(**QUICK, max_iter=1).fit(*data)
    before = copy.deepcopy(model.predict(data[0]))
    with pytest.raises(ValueError, match="augment"):
        model.set_params(augment=True).fit(*data)
    assert_array_equal(model.set_params(augment=False).predict(data[0]), before)


def test_frames_and_arrays_are_alike(data):
    X, y = data
    frame = pd.DataFrame(X, columns=["x"])
    a = QSGPRegressor(**QUICK, max_iter=1).fit(frame, pd.Series(y)).predict(frame)
    assert_array_equal(a, QSGPRegressor(**QUICK, max_iter=1).fit(X, y).predict(X))


def test_augmented_variance_counts_rows_by_their_weights(data):
    """Proposition 4: Σ_l (w_l/σ²) k(x_l, x)² of all rows, where each is a point."""
    X, y = data
    weight = 0.1 + 3.0 * np.random.default_rng(0).random(len(X))
    options = {**QUICK, "n_subset": 0, "basis": "inducing", "n_components": len(X), "max_iter": 2}
    options |= {"kernel": sk.RBF(0.7) + sk.WhiteKernel(0.1, "fixed")}
    plain, augmented = (
        QSGPRegressor(**options, augment=augment).fit(X, y, sample_weight=weight)
        for augment in (False, True)
    )
    grid = np.linspace(-5, 5, 7)[:, None]
    K, scale = sk.RBF(0.7)(grid, X), augmented._y_scaling.scale[0]
    expected = 1.0 / (K**2 @ (weight / 0.1) + 1.0)
    found = [m.predict_std(grid, latent=True) ** 2 / scale**2 for m in (augmented, plain)]
    assert_allclose(found[0] - found[1], expected, rtol=1e-6)


def test_a_constant_keeps_its_value_and_its_bounds_in_classifiers():
    fixed = as_latent(sk.ConstantKernel(1.0, "fixed") * sk.RBF(), 0.1, 1.0)
    assert fixed.k2.k1.constant_value == 1.0
    assert fixed.k1.constant_value == pytest.approx(28.9)
    bounded = as_latent(sk.ConstantKernel(1.0, (0.5, 2.0)) * sk.RBF(), 0.1, 1.0)
    assert from_sklearn_value(bounded) == pytest.approx(28.9)
    free = as_latent(sk.ConstantKernel(1.0) * sk.RBF(), 0.1, 1.0)
    assert free.k1.constant_value == pytest.approx(28.9)


def from_sklearn_value(kernel):
    """k(x, x) as training has it, within bounds."""
    module = kernels.from_sklearn(kernel)
    module.clamp_()
    return float(module.diag(torch.zeros(1, 1, dtype=torch.float64)).detach())


def test_all_functions_and_rows_give_the_bound_itself():
    """methods.md, D: m̃ = m and ñ = n reproduce (D1)."""
    model = make_model("fourier", 6, c=2)
    X, rows = make_rows(8)
    objective = stochastic(model, X, rows)
    objective.batch_size = len(X)
    groups = torch.arange(model.basis.n_groups)
    expected = bound_by_parts(model, X, rows).detach() / len(X)
    found = objective(groups, rows, generator()).detach()  # which moves diagonal columns
    assert_close(found, expected, rtol=1e-10, atol=0.0)


# ---- proximal steps
def proximal(model, X, rows, n_control=4, batch_size=3, rate=0.5):
    return ProximalObjective(
        model,
        X,
        rows,
        batch_size=batch_size,
        n_control=n_control,
        rate=lambda sweep: rate,
        learns_noise=False,
    )


def windows(n, size, stride=1):
    """Each J there can be, or some."""
    return [((first + torch.arange(size)) % n).sort().values for first in range(0, n, stride)]


def estimates(objective, X, rows, size, stride=1):
    """f̂ and its measured variance for each J there can be, or some, (n_groups, P, n, C)."""
    sweep, n = objective.begin(generator()), objective.model.basis.n_groups
    found = [objective.estimate(sweep, J, X, rows) for J in windows(n, size, stride)]
    return torch.stack([s.h for s, _ in found]), torch.stack([v for _, v in found])


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("kind", BASES)
def test_kriged_estimates_of_f_without_bias(kind, size):
    """On average over all J; also of every dense column, and of rows that P has not."""
    m = 14 if kind == "fourier" else 7  # in 7 groups
    model, (X, rows) = make_model(kind, m, c=2), make_rows(9)
    objective = proximal(model, X, rows)
    exact, _ = model.project(X)
    f, variance = estimates(objective, X, rows, size)
    assert_close(f.mean(0), exact, rtol=1e-10, atol=1e-10)
    assert (variance.max() > 0.0) == (size < 7)
    assert_close(f[:, :, :4], exact[:, :4].expand(7, -1, -1, -1), rtol=0.0, atol=1e-4)  # known on P


@pytest.mark.parametrize("size", [3, 6])
@pytest.mark.parametrize("kind", BASES)
def test_estimates_of_variances_without_bias(kind, size):
    """Of what diagonal columns bring, on average over all J."""
    model, (X, rows) = make_model(kind, 14 if kind == "fourier" else 7, c=2), make_rows(9)
    model.std.copy_(torch.rand(model.std.shape, generator=generator(), dtype=model.std.dtype))
    objective = proximal(model, X, rows)
    sweep, exact = objective.begin(generator()), objective.say(X, torch.arange(7))[1]
    found = [objective.estimate(sweep, J, X, rows)[0].v for J in windows(7, size)]
    assert_close(torch.stack(found).mean(0), exact, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_kriging_takes_the_noise_of_sampled_functions_away():
    """The control variate's own kernel says what is left: k's variance given P, for k(x, x)."""
    X, rows = make_rows(200)
    model = make_model("fourier", 300, c=0)
    plain, kriged = (proximal(model, X, rows, n_control=p) for p in (1, 100))
    before, after = (estimates(o, X, rows, 20)[0].var(0).mean() for o in (plain, kriged))
    assert 0.0 < after < 1e-2 * before


@pytest.mark.slow
def test_the_variance_of_an_estimate_is_measured():
    """By the halves of J, on average over draws, of which 50 have no function in common."""
    (X, rows), model = make_rows(20), make_model("fourier", 4000, c=0)
    f, measured = estimates(proximal(model, X, rows, n_control=1), X, rows, 40, stride=20)
    true = (f - model.project(X)[0]).square()
    off = (measured - true).mean((1, 2, 3))
    assert off.mean().abs() < 3.0 * off.std() / math.sqrt(50.0)
    assert off.std() < 4.0 * true.mean()  # the test could fail
    assert trust(torch.tensor([[[0.0, 3.0]]]), torch.tensor([[1.0]])).tolist() == [[1.0, 0.25]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", BASES)
@slow_cases("dense")
def test_the_optimum_is_where_proximal_steps_without_noise_end(kind):
    """With all rows and functions, in blocks: the exact posterior, mean and covariance."""
    model, (X, rows) = make_model(kind, 8, c=8), make_rows(12)
    objective = proximal(model, X, rows, n_control=6, batch_size=12, rate=0.8)
    everyone = everything(model.basis)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objective, "some_groups", lambda size, generator: everyone)
        sweeps(objective, 100, max(1, model.basis.n_groups // 2))
    mean, covariance = exact_posterior(model, X, rows)
    phi = model.basis.columns(X, everyone)
    C = dense_factor(model.columns, model.std)
    assert_close(phi @ model.columns[:, 0, 0], phi @ mean[:, 0], rtol=1e-5, atol=1e-5)
    assert_close(phi @ C[0] @ C[0].T @ phi.T, phi @ covariance[0] @ phi.T, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Training ended after max_iter")
@pytest.mark.parametrize(("basis", "size"), [("fourier", 20), ("inducing", 60)])
@slow_cases("inducing")
def test_proximal_steps_learn_as_newton_does(basis, size):
    """Of functions that are drawn; at the same number of sweeps."""
    X = 1.5 * normal(120, 2).numpy()
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.1 * normal(120, seed=1).numpy()
    settings = {"basis": basis, "n_components": 60, "n_dense": 8, "basis_batch_size": size}
    settings |= {"n_subset": 60, "max_iter": 20, "random_state": 0}
    truth = QSGPRegressor(solver="newton", **settings).fit(X, y).predict(X)
    found = QSGPRegressor(solver="sgd", **settings).fit(X, y).predict(X)
    assert np.sqrt(np.mean((found - truth) ** 2)) < 0.1 * np.sqrt(np.mean((truth - y) ** 2)) + 0.01


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Training ended after max_iter")
@pytest.mark.filterwarnings("ignore:Errors at neighbouring rows")  # noise is fixed too low
def test_proximal_steps_bear_few_rows():
    """Of a problem with a condition of 10⁷, in as few passes as five."""
    X = normal(400, 3).numpy()
    y = X[:, 0] + np.sin(X[:, 1]) + 0.05 * normal(400, seed=1).numpy()
    kernel = sk.ConstantKernel(100.0) * sk.RBF(3.0) + sk.WhiteKernel(1e-3, "fixed")
    settings = {"n_components": 200, "n_subset": 0, "n_dense": 0, "random_state": 0}
    few = {"batch_size": 32, "n_control": 64, "max_iter": 5 * 300 // 32}
    exact = QSGPRegressor(kernel, **settings)
    found = QSGPRegressor(kernel, solver="sgd", basis_batch_size=50, **few, **settings)
    errors = [m.fit(X[:300], y[:300]).predict(X[300:]) - y[300:] for m in (exact, found)]
    assert np.linalg.norm(errors[1]) < 1.6 * np.linalg.norm(errors[0])


# ---- on an accelerator ---------------------------------------------------------------------------

SUM = sk.RBF() + sk.ConstantKernel(0.5) * sk.Matern(nu=1.5) * sk.RBF(3.0) + sk.WhiteKernel(0.1)
SHAPES = {
    "all dense": {"n_components": 40},
    "some dense": {"n_components": 40, "n_dense": 13},
    "odd": {"n_components": 41, "n_dense": 13},
    "terms": {"kernel": SUM, "n_components": 41, "n_dense": 0, "learn_kernel": True},
    "laplace": {"n_components": 40, "n_dense": 13, "likelihood": "laplace"},
    "points": {"n_components": 40, "n_dense": 13, "basis": "inducing", "augment": True},
    "sampled": {"n_components": 40, "n_dense": 13, "solver": "sgd"},
}


def shaped(shape, **params):
    plan = {"batch_size": 50, "basis_batch_size": 8, "n_subset": 0, "max_iter": 2}
    return QSGPRegressor(**plan | SHAPES[shape] | {"random_state": 0} | params)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@by_default("odd", "sampled")
def test_an_accelerator_finds_what_the_cpu_does(shape, sine, pretend):
    X, y = sine
    ours, theirs = (shaped(shape, device=d).fit(X, y) for d in ("pretend", None))
    assert_allclose(ours.loss_curve_, theirs.loss_curve_, rtol=1e-12)
    for one, other in zip(*(m.predict(X, return_std=True) for m in (ours, theirs)), strict=True):
        assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "of_block"), [("all dense", 1), ("some dense", 1), ("odd", 2), ("terms", 2)]
)
@by_default("odd")
def test_a_step_asks_whether_its_block_has_a_factor(shape, of_block, sine, pretend):
    """And, where a cosine is without its sine, whether that is in the block; nothing is copied."""

    def traffic(n_sweeps):
        pretend.clear()
        shaped(shape, device="pretend", max_iter=n_sweeps, tol=0.0).fit(*sine)
        return np.array([pretend.n_waits, pretend.to_device])

    n_blocks, of_epoch = math.ceil(math.ceil(SHAPES[shape]["n_components"] / 2) / 4), 3
    waits, copies = traffic(4) - traffic(3)
    assert waits <= of_block * n_blocks + of_epoch
    assert copies == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["odd", "laplace", "points"])
def test_predictions_wait_for_nothing_but_themselves(shape, sine, pretend, monkeypatch):
    X, y = sine
    monkeypatch.setattr(skgpstoch.models.posteriors.base, "BLOCK_ROWS", 20)
    model = shaped(shape).fit(X, y).set_params(device="pretend")
    for ask in (model.predict, model.predict_std, lambda X: model.log_predictive_density(X, y)):
        pretend.clear()
        ask(X)
        assert pretend.n_waits == pretend.to_host


@pytest.mark.parametrize("seed", [1, 2])
def test_the_search_begins_at_a_likely_length_scale(seed):
    """From the default, it ended where the second input did not matter (R² .1)."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (150, 2))
    y = 1.5 * np.cos(3 * X[:, 1]) - 0.2 * X[:, 0] + 0.2 * rng.normal(size=150)
    X, y = (torch.from_numpy((a - a.mean(0)) / a.std(0)) for a in (X, y[:, None]))
    start = default_kernel(X) + sk.WhiteKernel(0.1)
    found = best_on(start, X, y)
    assert 0.2 < found.k1.k2.length_scale[1] < 1.0
    assert found.k2.noise_level < 0.1


@pytest.mark.slow
def test_the_search_does_not_begin_where_the_function_is_noise():
    """Twelve useless inputs make short length-scales likeliest before any step."""
    rng = np.random.default_rng(0)
    X = np.hstack([rng.uniform(-2, 2, (200, 3)), rng.normal(size=(200, 12))])
    y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.15 * rng.normal(size=200)
    X, y = (torch.from_numpy((a - a.mean(0)) / a.std(0)) for a in (X, y[:, None]))
    found = best_on(default_kernel(X) + sk.WhiteKernel(0.1), X, y)
    assert found.k1.k2.length_scale[:2].max() < 0.1 * np.median(found.k1.k2.length_scale)
    assert found.k2.noise_level < 0.1


@pytest.mark.parametrize("solver", ["newton", "sgd"])
def test_steps_keep_their_digits_where_there_is_next_to_no_noise(solver):
    """In float32 they went away from the optimum: R² of −5 million on 100 rows of a smooth f."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (60, 3))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    f = sk.ConstantKernel(1.0, "fixed") * sk.RBF([1.0, 1.5, 1.5])
    kernel = f + sk.WhiteKernel(1e-8, "fixed")
    known = {"kernel": kernel, "n_components": 200, "solver": solver, "random_state": 0}
    short, long = (QSGPRegressor(dtype=d, **known).fit(X, y) for d in ("float32", "float64"))
    assert_allclose(short.loss_curve_[-1], long.loss_curve_[-1], atol=1e-3)
    assert_allclose(short.predict(X + 0.1), long.predict(X + 0.1), atol=1e-3)


def test_rounding_decides_how_precise_functions_are():
    for level, dtype in ((1e2, torch.float32), (1e3, torch.float64)):
        assert exact_enough(torch.float32, torch.tensor([[1.0, level]]), 100) is dtype

"""GPCV-ADMM: the identities of methods.md E, schemes, and what users must never meet."""

import math
import pickle
import warnings

import distributed
import joblib
import numpy as np
import pytest
import torch
from conftest import fitted_once
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor as SklearnGP
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GroupKFold, KFold, TimeSeriesSplit
from torch.testing import assert_close

from skgpstoch import ADMMGaussianProcessRegressor, load
from skgpstoch.data import equal_rows
from skgpstoch.data.rows import Rows
from skgpstoch.kernels import from_sklearn
from skgpstoch.kernels.products import KernelRows
from skgpstoch.likelihoods import Gaussian
from skgpstoch.maths.conjugate_gradients import conjugate_gradients
from skgpstoch.maths.linalg import NotPositiveDefiniteError
from skgpstoch.maths.pivoted_cholesky import LowRankInverse, pivoted_cholesky
from skgpstoch.methods.gpcv import fold_loss, multipliers, objective
from skgpstoch.methods.gpcv.coordinates import first_pace, next_pace
from skgpstoch.methods.gpcv.fold_loss import Fold, FoldLoss
from skgpstoch.models.posteriors import iterative
from skgpstoch.models.posteriors.exact import ExactPosterior
from skgpstoch.models.posteriors.iterative import IterativePosterior
from skgpstoch.training.recipes import fitted_errors

F64 = torch.float64
PERIODIC = sk.ConstantKernel(1.2) * sk.ExpSineSquared(0.9, 1.3) * sk.RBF(2.0) + sk.RBF(0.7)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def make_fold(P=2, T=14, V=9, weighted=True):
    n = T + V
    weight = 1.0 + torch.arange(n, dtype=F64)[:, None] % 3 if weighted else torch.ones(n, 1)
    return Fold(3.0 * normal(n, 1, seed=1), normal(n, P, seed=2), weight.to(F64), T)


THETA = torch.from_numpy(np.append(PERIODIC.theta, np.log(0.2)))


def make_problem(keeps=True):
    return FoldLoss(make_fold(), THETA, PERIODIC, 0.2, True, keeps)


def dense(problem, theta=THETA):
    """C and K_VT, differentiable by a θ that is given."""
    kernel = from_sklearn(PERIODIC)
    fold, T = problem.fold, problem.fold.n_trained
    sizes = [p.numel() for p in kernel.parameters()]
    names = [name for name, _ in kernel.named_parameters()]
    parts = theta[: sum(sizes)].split(sizes)
    values = {
        n: p.reshape(q.shape) for n, p, q in zip(names, parts, kernel.parameters(), strict=True)
    }
    K = torch.func.functional_call(kernel, values, (fold.X, fold.X[:T]))
    return K[:T] + torch.diag(theta[-1].exp() / fold.weight[:T, 0]), K[T:]


def dense_lagrangian(problem, theta, z, dual, rho):
    C, K_VT = dense(problem, theta)
    T = problem.fold.n_trained
    r, e = C @ z - problem.fold.y[:T], problem.fold.y[T:] - K_VT @ z
    loss = (problem.fold.weight[T:] * e.square()).sum()
    return loss + (dual * r).sum() + 0.5 * rho * r.square().sum()


# ---- maths ---------------------------------------------------------------------------------------


def test_conjugate_gradients_solve_every_column_by_itself():
    A = normal(30, 30)
    A = A @ A.mT + torch.eye(30)
    B = normal(30, 3, seed=1) * torch.tensor([1.0, 1e-8, 1e8])
    found = conjugate_gradients(lambda V: A @ V, B, tol=1e-10)
    assert found.converged
    assert_close(found.solution, torch.linalg.solve(A, B), rtol=1e-6, atol=0.0)
    alone = conjugate_gradients(lambda V: A @ V, B[:, :1], tol=1e-10)
    assert_close(alone.solution, found.solution[:, :1], rtol=1e-9, atol=0.0)
    again = conjugate_gradients(lambda V: A @ V, B, start=found.solution, tol=1e-9)
    assert again.n_iter == 0


def test_conjugate_gradients_say_when_they_have_not_ended():
    A = torch.diag(torch.logspace(-6, 6, 50, dtype=F64))
    found = conjugate_gradients(lambda V: A @ V, torch.ones(50, 1, dtype=F64), max_iter=3)
    assert found.n_iter == 3
    assert not found.converged
    inverse = A.diagonal()[:, None].reciprocal()
    found = conjugate_gradients(lambda V: A @ V, torch.ones(50, 1, dtype=F64), None, inverse.mul)
    assert found.n_iter == 1
    zero = conjugate_gradients(lambda V: A @ V, torch.zeros(50, 1, dtype=F64))
    assert zero.converged
    assert not bool(zero.solution.any())


def test_pivoted_cholesky_is_from_below_and_ends_where_nothing_is_left():
    X = normal(40, 2)
    K = from_sklearn(sk.RBF(1.0))(X).detach()
    L, pivots = pivoted_cholesky(K.diagonal(), lambda i: K[i], 10)
    assert len(set(pivots.tolist())) == 10
    assert float(torch.linalg.eigvalsh(K - L @ L.mT).min()) > -1e-12
    assert_close((L @ L.mT)[pivots], K[pivots], rtol=0.0, atol=1e-12)
    low, _ = pivoted_cholesky((X @ X.mT).diagonal(), lambda i: X[i] @ X.mT, 10, tol=1e-9)
    assert low.shape == (40, 2)


def test_low_rank_inverse():
    L, noise, V = normal(20, 3), 0.1 + torch.rand(20, 1, dtype=F64), normal(20, 2, seed=3)
    whole = L @ L.mT + torch.diag(noise[:, 0])
    assert_close(LowRankInverse(L, noise)(V), torch.linalg.solve(whole, V), rtol=1e-10, atol=1e-12)


# ---- identities ----------------------------------------------------------------------------------

both_memories = pytest.mark.parametrize("keeps", [True, False])


@pytest.fixture
def small_blocks(monkeypatch):
    """So that a matrix has several."""
    from skgpstoch.data import devices
    from skgpstoch.kernels import products as kernel_products

    monkeypatch.setattr(kernel_products, "LEAST_ROWS", 5)
    monkeypatch.setattr(devices, "HOST_ELEMENTS", 64)


@both_memories
def test_gradient_is_that_of_the_lagrangian(keeps, small_blocks):
    problem = make_problem(keeps)
    z, dual, rho = normal(14, 2, seed=5), normal(14, 2, seed=6), 3.0
    at = problem.lagrangian(z, dual, rho)
    theta = THETA.clone().requires_grad_()
    value = dense_lagrangian(problem, theta, z, dual, rho)
    (expected,) = torch.autograd.grad(value, theta)
    assert_close(at.value, value.detach(), rtol=1e-12, atol=0.0)
    assert_close(problem.gradient(z, at.slope), expected, rtol=1e-9, atol=1e-9)
    step = 1e-5
    for j in range(len(expected)):
        moved = torch.eye(len(expected), dtype=F64)[j] * step
        up, down = (
            dense_lagrangian(problem, THETA + sign * moved, z, dual, rho) for sign in (1.0, -1.0)
        )
        assert float((up - down) / (2.0 * step)) == pytest.approx(float(expected[j]), rel=1e-5)


@both_memories
@pytest.mark.parametrize("dense_rows", [0, 500])
@pytest.mark.parametrize("squared", [0, 60])
def test_best_weights_are_the_dense_solution(keeps, dense_rows, squared, small_blocks, monkeypatch):
    monkeypatch.setattr(fold_loss, "DENSE_ROWS", dense_rows)
    monkeypatch.setattr(
        fold_loss, "SQUARED", {True: squared, False: squared}
    )  # 0: by the errors of rows held out
    problem = make_problem(keeps)
    dual, rho = normal(14, 2, seed=6), 3.0
    C, K_VT = dense(problem)
    W = problem.weight_V
    A = 2.0 * K_VT.mT @ (W * K_VT) + rho * C @ C
    b = 2.0 * K_VT.mT @ (W * problem.y_V) + C @ (rho * problem.y_T - dual)
    found = problem.best_weights(dual, rho, torch.zeros_like(dual))
    assert problem.ended
    assert_close(found, torch.linalg.solve(A, b), rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("dense_rows", [0, 500])
def test_best_weights_with_hardly_any_noise(dense_rows, monkeypatch):
    """The square of C has twice the digits that there are: by its parts, least squares have not."""
    monkeypatch.setattr(fold_loss, "DENSE_ROWS", dense_rows)
    monkeypatch.setattr(fold_loss, "FOLD_RANK", {True: 20, False: 20})
    X, y, rho = normal(300, 2), normal(300, 1, seed=1), 100.0
    fold = Fold(X, torch.sin(2.0 * X[:, :1]) + 0.01 * y, torch.ones(300, 1, dtype=F64), 220)
    kernel = sk.Matern(1.0, nu=1.5)
    problem = FoldLoss(fold, torch.zeros(1, dtype=F64), kernel, 1e-4, False, True)
    K = from_sklearn(kernel)(X, X[:220]).detach()
    C, K_VT = K[:220] + 1e-4 * torch.eye(220, dtype=F64), K[220:]
    dual = normal(220, 1, seed=2)
    A = torch.cat([2.0**0.5 * K_VT, rho**0.5 * C])
    b = torch.cat([2.0**0.5 * problem.y_V, rho**0.5 * (problem.y_T - dual / rho)])
    found = problem.best_weights(dual, rho, torch.zeros_like(dual))
    assert problem.ended
    expected = torch.linalg.lstsq(A, b).solution
    assert float((A @ (found - expected)).norm() / (A @ expected).norm()) < 1e-6


@pytest.mark.parametrize("shape", [sk.RBF([0.8, 1.3]), sk.Matern(1.1, nu=1.5)])
def test_products_of_float32_are_close(shape, small_blocks):
    """Where distances are products of matrices."""
    kernel = from_sklearn(1.7 * shape)
    X, v, u = 3.0 + normal(60, 2), normal(40, 2, seed=1), normal(60, 2, seed=2)
    exact, ours = (KernelRows(kernel, A, A[:40], keeps=False) for A in (X, X.float()))
    assert ours.form is not None
    assert exact.form is None
    assert_close(ours.product(v), exact.product(v), rtol=1e-4, atol=1e-4)
    params = list(kernel.parameters())
    for a, b in zip(ours.gradients(v, u, params), exact.gradients(v, u, params), strict=True):
        assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_systems_that_do_not_end_are_reported(monkeypatch, sine):
    monkeypatch.setattr(fold_loss, "DENSE_ROWS", 0)
    monkeypatch.setattr(fold_loss, "FOLD_RANK", {True: 1, False: 1})
    monkeypatch.setattr(
        fold_loss,
        "conjugate_gradients",
        lambda *args, **_: conjugate_gradients(*args[:4], tol=0.0, max_iter=1),
    )
    with pytest.warns(ConvergenceWarning) as found:
        ADMMGaussianProcessRegressor(1.0 * sk.RBF(0.8), max_iter=1, random_state=0).fit(*sine)
    assert any("Conjugate gradients did not converge" in str(warning.message) for warning in found)


@both_memories
def test_consistent_weights_have_no_constraint_left(keeps, small_blocks):
    problem = make_problem(keeps)
    z, dual = problem.consistent()
    at = problem.lagrangian(z, dual, 7.0)
    C, K_VT = dense(problem)
    exact = torch.linalg.solve(C, problem.y_T)
    loss = (problem.weight_V * (problem.y_V - K_VT @ exact).square()).sum()
    assert_close(z, exact, rtol=1e-6, atol=1e-8)
    assert_close(at.value, loss, rtol=1e-6, atol=0.0)
    assert float(at.residual.abs().max()) < 1e-6

    def of_theta(theta):  # the loss of the hold-out, whose gradient λ gives without its own
        C, K_VT = dense(problem, theta)
        errors = problem.y_V - K_VT @ torch.linalg.solve(C, problem.y_T)
        return (problem.weight_V * errors.square()).sum()

    theta = THETA.clone().requires_grad_()
    (expected,) = torch.autograd.grad(of_theta(theta), theta)
    assert_close(problem.gradient(z, at.slope), expected, rtol=1e-5, atol=1e-6)


def exact_loss(theta, kernel, X, y, folds, noise):
    """Mean squared error of rows held out, by scikit-learn."""
    gp_kernel, total, n = kernel.clone_with_theta(theta), 0.0, 0
    for trained, held_out in folds:
        gp = SklearnGP(gp_kernel, alpha=noise, optimizer=None).fit(X[trained], y[trained])
        total, n = total + np.sum((y[held_out] - gp.predict(X[held_out])) ** 2), n + len(held_out)
    return total / n


@pytest.fixture
def sine():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (90, 1))
    return X, np.sin(2.0 * X[:, 0]) + 0.2 * rng.standard_normal(90)


FIXED_NOISE = {"learn_noise": False, "normalize_y": False, "tol": 1e-5}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["holdout", "naive", "consensus"])
@slow_cases("consensus")
def test_fits_end_at_the_least_error(scheme, sine):
    X, y = sine
    folds = list(KFold(3).split(X))
    kernel = sk.RBF(0.8)
    model = ADMMGaussianProcessRegressor(kernel, cv=folds, scheme=scheme, **FIXED_NOISE).fit(X, y)
    if scheme == "consensus":
        groups = [folds]
    else:
        groups = [[f] for f in folds][: 1 if scheme == "holdout" else 3]
    best = [
        minimize(exact_loss, kernel.theta, (kernel, X, y, group, 0.1), tol=1e-12).x
        for group in groups
    ]
    found = np.log(model.kernel_.length_scale)
    assert found == pytest.approx(np.mean(best), abs=2e-3)
    assert model.history_["gap"][-1].max() < 1e-3
    shape = (model.n_iter_, len(groups))
    assert {name: a.shape for name, a in model.history_.items()} == {
        **dict.fromkeys(("objective", "loss", "gap", "rho", "z_norm"), shape),
        "theta": (*shape, 1),
    }
    assert model.history_["theta"][-1].mean() == pytest.approx(found, abs=1e-12)
    if scheme == "consensus":
        expected = exact_loss(np.array([found]), kernel, X, y, folds, 0.1)
        assert model.loss_curve_[-1] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "begin"), [("holdout", 0.25), ("consensus", 3.0)])
@pytest.mark.parametrize("unit", [1.0, 100.0])
@slow_cases(r"100\.0-consensus", r"1\.0-holdout", "100.0-holdout")
def test_coordinate_steps_get_to_the_optimum_of_joint_ones(scheme, begin, unit, sine):
    """Not relaxed, they go a hundredth of the way in ten iterations."""
    X, y = sine
    options = {"scheme": scheme, "random_state": 0} | FIXED_NOISE | {"tol": 1e-3}
    kernel = sk.ConstantKernel(unit**2, "fixed") * sk.RBF(begin) + sk.WhiteKernel(0.04 * unit**2)
    models = {
        solver: ADMMGaussianProcessRegressor(kernel, solver=solver, **options).fit(X, unit * y)
        for solver in ("joint", "coordinate")
    }
    joint, found = (model.history_["theta"][-1, 0, 0] for model in models.values())
    assert abs(joint - math.log(begin)) > 0.5
    assert found == pytest.approx(joint, abs=0.01)
    assert models["coordinate"].n_iter_ < 30
    assert models["coordinate"].loss_curve_[-1] == pytest.approx(
        models["joint"].loss_curve_[-1], rel=1e-4
    )


@pytest.mark.slow
def test_coordinate_steps_find_several_hyper_parameters(sine):
    """In a valley that no coordinate goes along."""
    X, y = (a[:30] for a in sine)
    kernel = sk.ConstantKernel(0.3) * sk.RBF(0.6) + sk.WhiteKernel(0.1, "fixed")
    losses = [
        ADMMGaussianProcessRegressor(
            kernel, solver=solver, random_state=0, normalize_y=False, learn_noise=False
        )
        .fit(X, y)
        .loss_curve_[-1]
        for solver in ("joint", "coordinate")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)


def test_relaxations_are_secants():
    pace = next_pace(first_pace(4, 98.0), torch.tensor([4.0, 4.0, 4.0, 4.0], dtype=F64))
    assert_close(pace[1], torch.full((4,), 50.0, dtype=F64))  # (2 + ρ)/2
    after = next_pace(pace, torch.tensor([1.0, -4.0, 8.0, -40.0], dtype=F64))
    assert_close(after[1] / pace[1], torch.tensor([4.0 / 3.0, 0.5, 2.0, 0.3], dtype=F64))


@pytest.mark.slow
def test_noise_is_learned_where_the_scale_is_not(sine):
    """A kernel of any scale has but its ratio to the noise in the loss."""
    X, y = sine
    folds = list(KFold(3).split(X))
    options = {"cv": folds, "normalize_y": False, "tol": 1e-4}
    free = ADMMGaussianProcessRegressor(1.0 * sk.RBF(0.8) + sk.WhiteKernel(0.1), **options)
    fixed = ADMMGaussianProcessRegressor(sk.RBF(0.8) + sk.WhiteKernel(0.1), **options)
    free.fit(X, y)
    fixed.fit(X, y)
    assert len(free.history_["theta"][0, 0]) == len(fixed.history_["theta"][0, 0]) == 2
    assert_allclose(free.predict(X), fixed.predict(X), atol=5e-3)
    for a, b in zip(
        free.predict(X, return_std=True), fixed.predict(X, return_std=True), strict=True
    ):
        assert_allclose(a, b, atol=5e-3)


@pytest.mark.slow
def test_scale_is_that_of_errors_held_out(sine):
    X, y = sine
    folds = list(KFold(3).split(X))
    kernel = 1.0 * sk.RBF(0.8) + sk.WhiteKernel(0.1)
    model = ADMMGaussianProcessRegressor(kernel, cv=folds, random_state=0).fit(X, y)
    z, kernel = (y - y.mean()) / y.std(), model.kernel_
    scores = []
    for trained, out in folds:
        gp = SklearnGP(kernel.k1, alpha=kernel.k2.noise_level, optimizer=None)
        mean, std = gp.fit(X[trained], z[trained]).predict(X[out], return_std=True)
        scores.append((z[out] - mean) ** 2 / (std**2 + kernel.k2.noise_level))
    n = len(y)  # of which the two hyper-parameters take two
    assert np.sum(np.concatenate(scores)) == pytest.approx(n - 2.0, rel=1e-4)
    gp = SklearnGP(kernel, alpha=0.0, optimizer=None, normalize_y=True).fit(X, y)
    assert_allclose(model.predict(X), gp.predict(X), atol=1e-7)
    assert model.log_marginal_likelihood(X, y) == pytest.approx(
        gp.log_marginal_likelihood_value_ - len(y) * np.log(y.std()), abs=1e-3
    )


# ---- the posterior of many rows --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_iterative_posterior_is_the_exact_one(weighted, small_blocks, monkeypatch):
    monkeypatch.setattr(iterative, "COLUMNS", 7)
    X, y, X_new = normal(60, 2), normal(60, 2, seed=1), normal(20, 2, seed=2)
    weight = 1.0 + torch.arange(60.0, dtype=F64) % 3 if weighted else None
    rows = Rows(y, weight)
    noise, kernel = torch.tensor([0.1, 0.1], dtype=F64), sk.ConstantKernel(1.5) * sk.RBF([0.8, 1.2])
    posteriors = [
        ExactPosterior(from_sklearn(kernel), torch.nn.Identity(), Gaussian(noise), X, rows),
        IterativePosterior(from_sklearn(kernel), Gaussian(noise), X, rows),
    ]
    with torch.no_grad():
        for _ in range(2):
            exact, found = posteriors
            for a, b in zip(exact.marginals(X_new), found.marginals(X_new), strict=True):
                assert_close(a, b, rtol=1e-6, atol=1e-7)
            assert_close(exact.covariance(X_new), found.covariance(X_new), rtol=1e-4, atol=1e-6)
            draws = found.sample(X_new, 4000, torch.Generator().manual_seed(0))
            q = exact.marginals(X_new)
            z = (draws.mean(0) - q.mean[0]) / (q.var[0] / 4000).sqrt()
            assert float(z.abs().max()) < 5.0
            posteriors = [exact.scale_(1.7), found.scale_(1.7)]


@pytest.mark.slow
@pytest.mark.parametrize("length_scale", [1.0, 0.2])
def test_variances_by_iterations_err_by_a_share_of_the_noise(length_scale):
    """Residuals r of 1e-6 of k* leave errors rᵀC⁻¹r of a tenth of the variance and the noise."""
    X, X_new = (3.0 * torch.special.ndtr(normal(n, 2, seed=n)) for n in (700, 20))
    y = normal(700, 1)
    noise, kernel = torch.tensor([1e-6], dtype=F64), sk.RBF(length_scale)
    exact, found = (
        ExactPosterior(from_sklearn(kernel), torch.nn.Identity(), Gaussian(noise), X, Rows(y)),
        IterativePosterior(from_sklearn(kernel), Gaussian(noise), X, Rows(y)),
    )
    with torch.no_grad():
        var = exact.marginals(X_new).var + noise
        for of_f in (found.marginals(X_new).var[0, :, 0], found.covariance(X_new)[0].diagonal()):
            assert_close(of_f + noise, var[0, :, 0], rtol=3e-3, atol=0.0)


@pytest.mark.slow
def test_rows_beyond_block_size_give_the_same_model(sine):
    X, y = sine
    kernel = 1.0 * sk.RBF(0.8) + sk.WhiteKernel(0.1)
    kept = ADMMGaussianProcessRegressor(kernel, random_state=0).fit(X, y)
    made = ADMMGaussianProcessRegressor(kernel, random_state=0, block_size=10).fit(X, y)
    assert isinstance(made.posterior_, IterativePosterior)
    for a, b in zip(
        kept.predict(X, return_std=True), made.predict(X, return_std=True), strict=True
    ):
        assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="block_size=10"):
        made.log_marginal_likelihood(X, y)
    assert_allclose(made.predict(X[:7]), made.predict(X)[:7], rtol=1e-10)


@pytest.mark.slow
def test_files_of_many_rows_hold_no_preconditioner(sine, tmp_path):
    """A stranger's would make predictions take thousands of iterations; it is most of the file."""
    X, y = sine
    kernel = 1.0 * sk.RBF(0.8) + sk.WhiteKernel(0.1)
    model = ADMMGaussianProcessRegressor(kernel, random_state=0, block_size=10).fit(X, y)
    held = {"X": X.nbytes, "noise": y.nbytes, "alpha": y.nbytes}
    buffers = model.posterior_.named_buffers(recurse=False)
    assert {name: tensor.nbytes for name, tensor in buffers} == held
    model.save(tmp_path / "model.gp")
    for a, b in zip(
        model.predict(X, return_std=True),
        load(tmp_path / "model.gp").predict(X, return_std=True),
        strict=True,
    ):
        assert_array_equal(a, b)


def test_a_singular_covariance_of_many_rows_says_so(monkeypatch):
    monkeypatch.setattr(iterative, "MOST_ITERATIONS", 2)
    monkeypatch.setattr(iterative, "POSTERIOR_RANK", 5)
    kernel, noise = from_sklearn(sk.Matern(1.0, nu=0.5)), torch.tensor([1e-6])
    with pytest.raises(NotPositiveDefiniteError, match="conjugate gradients"):
        IterativePosterior(kernel, Gaussian(noise), normal(300, 3), Rows(normal(300, 1)))


# ---- folds -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_splitters_know_rows_by_their_numbers(monkeypatch, sine):
    X, y = sine
    seen = []
    original = fold_loss.Fold.__new__

    def spy(cls, *args):
        seen.append(args)
        return original(cls, *args)

    monkeypatch.setattr(fold_loss.Fold, "__new__", spy)
    X = np.r_[X, X[:10]]  # rows that are the same stay apart
    y = np.r_[y, y[:10]]
    splitter = TimeSeriesSplit(3)
    ADMMGaussianProcessRegressor(cv=splitter, normalize_y=False, random_state=0).fit(X, y)
    pairs = list(splitter.split(X))
    assert len(seen) == 3
    for (trained, held_out), (_, y_fold, _, n_trained) in zip(pairs, seen, strict=True):
        assert n_trained == len(trained)
        assert_array_equal(y_fold[:, 0].numpy(), y[np.r_[trained, held_out]])


@pytest.mark.slow
@pytest.mark.parametrize("cv", [3, 0.25, KFold(4), [(np.arange(60), np.arange(60, 90))]])
@by_default("cv3", "0.25")
def test_folds_of_any_kind(cv, sine):
    model = ADMMGaussianProcessRegressor(cv=cv, random_state=0).fit(*sine)
    assert model.score(*sine) > 0.9


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"cv": 1}, "n_splits|cv"),
        ({"cv": 1.5}, "'cv' parameter"),
        ({"cv": 91}, "cv=91"),
        (
            {"cv": [(np.arange(9), np.arange(0))]},
            "rows of positive sample_weight both to train on and held out",
        ),
        ({"scheme": "both"}, "'scheme' parameter"),
        ({"n_restarts": 1, "kernel": sk.RBF(1.0, (1e-3, np.inf))}, "n_restarts=1 needs"),
        ({"kernel": sk.PairwiseKernel()}, "kernel"),
        ({"block_size": 0}, "'block_size' parameter"),
        ({"n_jobs": 0}, "'n_jobs' parameter"),
        ({"cv": [(np.arange(60), np.arange(59, 90))]}, "the first is row 59"),
        ({"cv": [([0, 1], [2, 100])]}, "from 0 to 89"),
        ({"cv": [([0, 1], [2, -1])]}, "from 0 to 89"),
        ({"cv": [([0.5, 1.2], [3.0])]}, "row indices"),
        ({"cv": [1, 2, 3]}, "gives no folds"),
        ({"cv": [("a", "b")]}, "row indices"),
        ({"cv": GroupKFold(3)}, "cv.split.X, y, groups"),
        ({"cv": 0.999}, "cv=0.999"),
        ({"kernel": 2.0 * (sk.RBF() + sk.WhiteKernel(0.2))}, "WhiteKernel as a term of a sum"),
    ],
)
def test_bad_parameters(params, match, sine):
    model = fitted_once(ADMMGaussianProcessRegressor(random_state=0), *sine)
    before = model.predict(sine[0])
    model.set_params(**params)
    with pytest.raises((ValueError, TypeError), match=match):
        model.fit(*sine)
    assert_array_equal(model.predict(sine[0]), before)


def failing(monkeypatch, which):
    """Let folds of some sizes fail."""
    original = FoldLoss.__init__

    def init(self, fold, *args):
        if which(fold):
            raise NotPositiveDefiniteError("no factor")
        original(self, fold, *args)

    monkeypatch.setattr(multipliers.FoldLoss, "__init__", init)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["naive", "consensus"])
def test_a_fold_that_fails_does_not_lose_the_others(scheme, sine, monkeypatch):
    X, y = sine
    folds = [(np.arange(60), np.arange(60, 90)), (np.arange(30, 90), np.arange(30))]
    options = {"kernel": sk.RBF(0.8), **FIXED_NOISE}
    alone = ADMMGaussianProcessRegressor(cv=folds[:1], **options).fit(X, y)
    first = float(y[0])
    failing(monkeypatch, lambda fold: float(fold.y[0, 0]) != first)
    message = "1 of 2 folds failed and are ignored: no factor"
    with pytest.warns(ConvergenceWarning, match=message) as found:
        model = ADMMGaussianProcessRegressor(cv=folds, scheme=scheme, **options).fit(X, y)
    assert {warning.filename for warning in found} == {__file__}
    assert_allclose(model.predict(X), alone.predict(X), rtol=1e-6)
    failing(monkeypatch, lambda fold: True)
    with pytest.raises(NotPositiveDefiniteError, match=r"Every fold failed\. no factor"):
        model.fit(X, y)
    assert_allclose(model.predict(X), alone.predict(X), rtol=1e-6)


def test_divergence_raises_rho_and_is_said(sine, monkeypatch):
    steps = []

    def astray(together, state, bounds):
        steps.append(0)
        if len(steps) not in (1, 3):  # twice, which is said once
            return joint(together, state, bounds)
        together.locals = [
            local._replace(dual=1e6 * torch.ones_like(local.dual)) for local in together.locals
        ]
        return state.theta, state.pace

    joint = multipliers.STEP_OF_SOLVER["joint"]
    monkeypatch.setitem(multipliers.STEP_OF_SOLVER, "joint", astray)
    with pytest.warns(
        ConvergenceWarning, match="diverged in 1 of 1 searches, so rho was raised to 1000"
    ) as told:
        model = ADMMGaussianProcessRegressor(sk.RBF(0.8), random_state=0).fit(*sine)
    assert len(steps) > 3
    assert len(told) == 1
    assert model.history_["rho"][0] == 1000.0
    assert model.score(*sine) > 0.9


# ---- what users must never meet --------------------------------------------------------------


@pytest.mark.slow
def test_one_seed_gives_the_same_bits_and_touches_nothing(sine):
    state, numbers = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    options = {"random_state": 3, "cv": 0.3, "n_restarts": 1}
    fits = [ADMMGaussianProcessRegressor(**options).fit(*sine) for _ in range(2)]
    for a, b in zip(*(m.predict(sine[0], return_std=True) for m in fits), strict=True):
        assert_array_equal(a, b)
    assert_array_equal(torch.get_rng_state(), state)
    assert_array_equal(np.random.get_state()[1], numbers)  # noqa: NPY002
    again = pickle.loads(pickle.dumps(fits[0]))
    assert_array_equal(again.predict(sine[0]), fits[0].predict(sine[0]))
    assert clone(fits[0]).get_params() == fits[0].get_params()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["naive", "consensus"])
@slow_cases("naive")
def test_jobs_give_the_same_model(scheme, sine):
    options = {"scheme": scheme, "random_state": 0, "max_iter": 3, "tol": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        alone = ADMMGaussianProcessRegressor(**options).fit(*sine)
        with joblib.parallel_config("threading", n_jobs=2):
            model = ADMMGaussianProcessRegressor(**options).fit(*sine)
    assert_allclose(model.predict(sine[0]), alone.predict(sine[0]), rtol=1e-6)


@pytest.mark.slow
def test_jobs_of_dask(sine):
    alone = fitted_once(ADMMGaussianProcessRegressor(random_state=0), *sine)
    with (
        distributed.Client(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
        ),
        joblib.parallel_config("dask"),
    ):
        model = ADMMGaussianProcessRegressor(random_state=0).fit(*sine)
    assert_allclose(model.predict(sine[0]), alone.predict(sine[0]), rtol=1e-6)


@pytest.mark.slow
def test_restarts_keep_the_least_error(sine):
    """From a length-scale that is far too large there is no way back."""
    kernel = sk.ConstantKernel(1.0, "fixed") * sk.RBF(50.0, (0.1, 100.0))
    options = {**FIXED_NOISE, "tol": 1e-3, "random_state": 0}
    with pytest.warns(UserWarning, match="Errors at neighbouring rows .* set n_restarts"):
        one = ADMMGaussianProcessRegressor(kernel, **options).fit(*sine)
    several = ADMMGaussianProcessRegressor(kernel, n_restarts=5, **options).fit(*sine)
    assert several.loss_curve_[-1] < 0.5 * one.loss_curve_[-1]
    assert several.score(*sine) > 0.9


def test_nothing_to_learn(sine):
    X, y = sine
    kernel = sk.RBF(0.8, "fixed") + sk.WhiteKernel(0.1, "fixed")
    model = ADMMGaussianProcessRegressor(kernel, normalize_y=False, random_state=0).fit(X, y)
    gp = SklearnGP(kernel, optimizer=None).fit(X, y)
    assert model.n_iter_ == 1
    assert_allclose(model.predict(X), gp.predict(X), atol=1e-8)
    assert_allclose(model.predict_std(X), gp.predict(X, return_std=True)[1], rtol=1e-6)


@pytest.mark.parametrize("level", [0.0, 3.0])
@pytest.mark.parametrize("normalize_y", [True, False])
def test_a_constant_target(level, normalize_y, sine):
    model = ADMMGaussianProcessRegressor(normalize_y=normalize_y, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mean, std = model.fit(sine[0], np.full(90, level)).predict(sine[0], return_std=True)
    assert_allclose(mean, level, atol=1e-3)
    assert np.isfinite(std).all()


@pytest.mark.slow
def test_means_of_many_rows_need_no_variances(sine, monkeypatch):
    model = ADMMGaussianProcessRegressor(sk.RBF(0.8), block_size=10, random_state=0).fit(*sine)
    mean, _ = model.predict(sine[0], return_std=True)
    monkeypatch.setattr(IterativePosterior, "solve", None)
    assert_allclose(model.predict(sine[0]), mean, rtol=1e-12)
    with pytest.raises(ValueError, match="exposure"):
        model.predict(sine[0], exposure=2.0)


def test_covariances_are_made_by_blocks_where_there_is_no_memory(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *_: torch.empty(10**8, 10**8))
    assert make_problem().covariances.whole is None


@pytest.mark.slow
def test_weights_are_repetitions(sine):
    X, y = sine
    weight = np.random.default_rng(1).integers(0, 4, len(X))
    options = {"random_state": 0, "cv": 2}
    weighted = ADMMGaussianProcessRegressor(**options).fit(X, y, sample_weight=weight)
    repeated = ADMMGaussianProcessRegressor(**options).fit(X.repeat(weight, 0), y.repeat(weight))
    for a, b in zip(*(m.predict(X, return_std=True) for m in (weighted, repeated)), strict=True):
        assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("cv", [None, 3, 0.25])
@slow_cases("None")
def test_folds_of_rows_too_many_to_merge(cv, sine, monkeypatch):
    """Copies stay together, a row of weight 2 is the row twice, and no order matters."""
    monkeypatch.setattr(equal_rows, "MERGED_ROWS", 10)
    X, y = sine
    weight = 1.0 + np.arange(len(X)) % 2
    number = np.random.default_rng(0).permutation(np.arange(len(X)).repeat(weight.astype(int)))
    model = ADMMGaussianProcessRegressor(1.0 * sk.RBF(0.8), cv=cv, random_state=0)
    weighted = model.fit(X, y, sample_weight=weight).predict(X, return_std=True)
    repeated = model.fit(X[number], y[number]).predict(X, return_std=True)
    assert_allclose(repeated, weighted, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("times", [0.2, 5.0])
@slow_cases(r"5\.0")
def test_noise_is_that_of_a_single_row(times, sine):
    """Weights that are all the same leave the noise what it is."""
    X, y = sine
    folds = list(KFold(3).split(X))
    weight = np.full(len(X), times)
    model = fitted_once(ADMMGaussianProcessRegressor(1.0 * sk.RBF(0.8), cv=folds), X, y)
    noise = model.noise_variance_
    model.fit(X, y, sample_weight=weight)
    assert 0.6 * noise < model.noise_variance_ < 1.6 * noise


@pytest.mark.slow
def test_weights_are_repetitions_of_both_sides():
    """Whatever the splitter does with rows that are there several times."""
    X, y = normal(50, 1).numpy(), normal(50, seed=1).numpy()
    weight = 1 + np.arange(50) % 3
    number = np.arange(50).repeat(weight)
    pair = np.arange(30), np.arange(30, 50)
    options = {"learn_noise": True, "normalize_y": False, "kernel": 1.0 * sk.RBF(1.0, "fixed")}
    weighted = ADMMGaussianProcessRegressor(cv=[pair], **options).fit(X, y, sample_weight=weight)
    pair = tuple(np.flatnonzero(np.isin(number, part)) for part in pair)
    repeated = ADMMGaussianProcessRegressor(cv=[pair], **options).fit(X[number], y[number])
    assert_allclose(weighted.predict(X), repeated.predict(X), atol=1e-3)
    assert weighted.noise_variance_ == pytest.approx(repeated.noise_variance_, rel=1e-2)


def test_few_rows_held_out_do_not_decide_alone(sine):
    X, y = sine
    model = ADMMGaussianProcessRegressor(1.0 * sk.RBF(0.8), cv=0.001, random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert 0.5 < np.sqrt(np.mean(((y - mean) / std) ** 2)) < 2.0


@pytest.mark.slow
def test_the_scale_stays_within_bounds(sine):
    X, y = sine
    bounded = sk.ConstantKernel(1.0, (0.99, 1.01)) * sk.RBF(0.8) + sk.WhiteKernel(0.1, (0.05, 0.2))
    with pytest.warns(ConvergenceWarning, match="close to the specified"):
        kernel = ADMMGaussianProcessRegressor(bounded, random_state=0).fit(X, y).kernel_
    assert 0.99 <= kernel.k1.k1.constant_value <= 1.01
    assert 0.05 <= kernel.k2.noise_level <= 0.2
    fixed = sk.ConstantKernel(2.0, "fixed") * sk.RBF(0.8) + sk.WhiteKernel(0.1)
    with pytest.warns(UserWarning, match="Free the ConstantKernel, or set learn_noise=False"):
        kernel = ADMMGaussianProcessRegressor(fixed, random_state=0).fit(X, y).kernel_
    assert kernel.k1.k1.constant_value == 2.0
    assert kernel.k2.noise_level == pytest.approx(0.1)


@pytest.mark.slow
def test_masks_are_rows(sine):
    trained = np.arange(90) % 3 > 0
    masks, numbers = (trained, ~trained), (np.flatnonzero(trained), np.flatnonzero(~trained))
    fits = [ADMMGaussianProcessRegressor(cv=[pair]).fit(*sine) for pair in (masks, numbers)]
    assert_array_equal(*(model.predict(sine[0]) for model in fits))


@pytest.mark.slow
def test_draws_of_many_rows_where_conjugate_gradients_are_inexact():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (90, 1))
    y = np.sin(2.0 * X[:, 0]) + 0.05 * rng.standard_normal(90)
    kernel = 1.0 * sk.RBF(0.8) + sk.WhiteKernel(0.1)
    model = ADMMGaussianProcessRegressor(kernel, block_size=10, random_state=0).fit(X, y)
    grid = np.linspace(-4, 4, 150)[:, None]
    assert np.isfinite(model.sample_y(grid, 3, random_state=0)).all()
    _, cov = model.predict(grid, return_cov=True)
    assert np.linalg.eigvalsh(cov).min() > 0.0


# ---- steps -----------------------------------------------------------------------------------


def one_state(sine, rho=3.0):
    """A fold, away from its optimum."""
    X, y = (torch.from_numpy(a) for a in sine)
    fold = Fold(X, y[:, None], torch.ones(90, 1, dtype=F64), 60)
    nothing, theta = torch.empty(0, 1, dtype=F64), torch.tensor([math.log(1.2)], dtype=F64)
    options = multipliers.Options(sk.RBF(1.2), 0.01, False, True, "joint", 1e-3, 1)
    state = multipliers.State(theta, [multipliers.Local(fold, *[nothing] * 3)], rho, 1.0)
    return multipliers.begin(state, options)[0], options


@pytest.mark.slow
def test_multipliers_become_those_of_the_constrained_optimum(sine):
    state, options = one_state(sine)
    bounds = torch.tensor([[-5.0, 5.0]], dtype=F64)
    gaps = []
    for _ in range(8):
        state = multipliers.iterate(state._replace(rho=3.0), bounds, options)
        gaps.append(state.gap)
    assert gaps[-1] < 1e-3 * gaps[0]
    (local,) = state.locals
    _, dual = FoldLoss(local.fold, state.theta, *options[:4]).consistent()
    assert_close(local.dual, dual, rtol=1e-2, atol=1e-3 * float(dual.abs().max()))


def test_multipliers_rise_by_rho_times_the_gap(sine):
    state, options = one_state(sine)
    bounds = torch.tensor([[0.0, 0.0]], dtype=F64)
    (full,) = multipliers.iterate(state, bounds, options).locals
    assert float(full.pending.abs().max()) > 0.0
    after = multipliers.iterate(state._replace(locals=[full]), bounds, options).locals[0]
    assert_close(after.dual - full.dual, full.pending)


def test_a_search_has_settled_where_nothing_moves_and_constraints_are_met(sine):
    state, _ = one_state(sine)
    met = state._replace(value=1.0, loss=1.0, moved=0.0)
    assert met.has_settled(0.01)
    assert not met._replace(moved=0.1).has_settled(0.01)
    assert not met._replace(value=1.5, gap=1e-2).has_settled(0.01)
    assert not met._replace(descends=True).has_settled(0.01)


def test_coordinates_stay_within_bounds_and_do_not_end_where_they_can_descend(sine):
    X, y = (a[:80] for a in sine)
    kernel = sk.RBF(3.0, (2.5, 9.0)) + sk.WhiteKernel(0.01, "fixed")
    options = {"solver": "coordinate", "n_restarts": 0, "random_state": 0}
    model = ADMMGaussianProcessRegressor(kernel, **options)
    with pytest.warns(ConvergenceWarning, match="lower bound 2.5"):
        model.fit(X, y)
    assert model.n_iter_ > 1
    assert np.exp(model.history_["theta"]).min() == pytest.approx(2.5)  # from above
    assert model.history_["rho"].max() == 100.0


@pytest.mark.slow
def test_outputs_share_the_kernel(sine):
    X, y = sine
    Y = np.c_[y, 3.0 * y + 1.0]
    model = ADMMGaussianProcessRegressor(random_state=0).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == Y.shape
    assert_allclose(mean[:, 1], 3.0 * mean[:, 0] + 1.0, atol=1e-8)
    assert_allclose(std[:, 1], 3.0 * std[:, 0], rtol=1e-8)
    assert model.noise_variance_.shape == (2,)


@pytest.mark.slow
def test_warm_start_goes_on(sine):
    X, y = sine
    kernel = 1.0 * sk.RBF(3.0) + 0.5 * sk.RBF(0.3) + sk.WhiteKernel(0.1)
    model = ADMMGaussianProcessRegressor(kernel, random_state=0, tol=1e-3).fit(X, y)
    loss, mean = model.loss_curve_[-1], model.predict(X)
    model.set_params(warm_start=True).fit(X, y)
    assert model.n_iter_ <= 2
    assert model.loss_curve_[0] == pytest.approx(loss, rel=1e-3)
    assert_allclose(model.predict(X), mean, atol=0.02)
    with pytest.raises(ValueError, match="warm_start=True"):
        model.set_params(kernel=sk.RBF()).fit(X, y)


@pytest.mark.slow
def test_a_killed_fit_resumes_to_the_same_bits(tmp_path, sine, monkeypatch):
    monkeypatch.setattr(multipliers, "GAP_ROUNDING", 0.0)
    options = {"random_state": 0, "tol": 1e-8, "max_iter": 4, "checkpoint_dir": tmp_path}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        whole = ADMMGaussianProcessRegressor(**{**options, "checkpoint_dir": None}).fit(*sine)
        calls, original = [], objective.iterate

        def third_dies(*args):
            calls.append(0)
            if len(calls) == 3:
                raise RuntimeError("killed")
            return original(*args)

        monkeypatch.setattr("skgpstoch.training.checkpoint.CHECKPOINT_SECONDS", 0.0)
        monkeypatch.setattr(objective, "iterate", third_dies)
        with pytest.raises(RuntimeError, match="killed"):
            ADMMGaussianProcessRegressor(**options).fit(*sine)
        resumed = ADMMGaussianProcessRegressor(**options).fit(*sine)
    assert len(calls) == 5
    assert_array_equal(resumed.predict(sine[0]), whole.predict(sine[0]))
    assert_array_equal(resumed.history_["theta"], whole.history_["theta"])


def test_ctrl_c_leaves_a_usable_model(sine, monkeypatch):
    calls, original = [], objective.iterate

    def second_is_interrupted(*args):
        calls.append(0)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(objective, "iterate", second_is_interrupted)
    with pytest.warns(ConvergenceWarning, match="interrupted after 1 of 100"):
        model = ADMMGaussianProcessRegressor(random_state=0, tol=1e-9).fit(*sine)
    assert model.score(*sine) > 0.9


@pytest.mark.slow
def test_unfinished_searches_and_bounds_get_warnings(sine):
    with pytest.warns(ConvergenceWarning, match="did not converge in 1 iterations"):
        ADMMGaussianProcessRegressor(random_state=0, tol=0.0, max_iter=1).fit(*sine)
    kernel = sk.RBF(5.0, (4.0, 10.0))
    with pytest.warns(ConvergenceWarning, match="close to the specified lower bound"):
        ADMMGaussianProcessRegressor(kernel, random_state=0).fit(*sine)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-12, 1e12])
@slow_cases("1e-12")
def test_units_do_not_matter(scale, sine):
    X, y = sine
    model = ADMMGaussianProcessRegressor(random_state=0).fit(X, y)
    other = ADMMGaussianProcessRegressor(random_state=0).fit(X * scale, y * scale)
    assert_allclose(other.predict(X * scale) / scale, model.predict(X), rtol=1e-5, atol=1e-6)


COORDINATE = {"solver": "coordinate", "scheme": "holdout", "max_iter": 1, "n_restarts": 0}


@pytest.mark.slow
@pytest.mark.parametrize("params", [{}, COORDINATE, {"block_size": 20}], ids=str)
@by_default("coordinate")
def test_an_accelerator_finds_what_the_cpu_does(params, sine, pretend):
    """Bounds and θ are the host's, all else is the device's."""
    X, y = (a[:40] for a in sine)
    kernel = sk.ConstantKernel(1.0, (0.9, 1.1)) * sk.RBF(1.0, (0.95, 1.05)) + sk.WhiteKernel(0.1)
    options = {"max_iter": 3, "random_state": 0, "n_restarts": 1} | params

    def found(device):
        model = ADMMGaussianProcessRegressor(kernel, device=device, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return [model.fit(X, y).history_["theta"], *model.predict(X, return_std=True)]

    for one, other in zip(found("pretend"), found(None), strict=True):
        assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_coordinate_steps_that_cycle_keep_the_best_iterate():
    rng = np.random.default_rng(19)
    n, d = int(rng.integers(25, 70)), int(rng.integers(1, 4))
    X = rng.uniform(-3, 3, (n, d))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(n)
    kernel = 1.0 * sk.RationalQuadratic()
    model = ADMMGaussianProcessRegressor(kernel, solver="coordinate", max_iter=10, random_state=0)
    with pytest.warns(ConvergenceWarning, match="did not converge in 10"):
        model.fit(X, y)
    assert model.loss_curve_[-1] > model.loss_curve_[0] > min(model.loss_curve_)  # they cycle
    assert model.best_iter_ < model.n_iter_ == 10
    best = model.history_["theta"][model.best_iter_ - 1, 0]
    assert model.history_["loss"][model.best_iter_ - 1, 0] < 1.01 * min(model.loss_curve_)
    assert math.log(model.kernel_.k2.alpha) == pytest.approx(best[1])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_outliers_are_judged_without_their_rows(sine, monkeypatch):
    """Rows are trained in another order; merged ones have one place, and are left out together."""
    X, y = np.tile(sine[0][:40], (3, 1)), np.tile(sine[1][:40], 3)
    judge, found = fitted_errors.left_out_at, []

    def watched(fitted, data, rows, *of_rows):
        found.append((fitted, rows, *judge(fitted, data, rows, *of_rows)))
        return found[-1][2:]

    monkeypatch.setattr(fitted_errors, "left_out_at", watched)
    y[40:] += 0.3
    ADMMGaussianProcessRegressor(1.0 * sk.RBF(0.8), max_iter=1, random_state=0).fit(X, y)
    ((fitted, rows, without, _),) = found
    posterior, Y = fitted.posterior, fitted.scaled_targets(fitted.whole)
    assert len(posterior.X) < 120
    assert len(rows) == 120
    for row in (0, 7, 40):
        others = np.flatnonzero(fitted.places != fitted.places[row])
        kept = np.unique(fitted.places[others])
        K = posterior.kernel(posterior.X).detach().numpy()
        C = (posterior.factor[0] @ posterior.factor[0].mT).numpy()
        mean = K[fitted.places[row], kept] @ np.linalg.solve(
            C[np.ix_(kept, kept)], posterior.y.numpy()[kept]
        )
        assert_allclose(without[row], Y[row] - mean, rtol=1e-6)

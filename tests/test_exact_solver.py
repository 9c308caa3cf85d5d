"""Algebra of exact processes, of one matrix and of a batch, against other ways to compute it."""

import pytest
import torch
from scipy.stats import multivariate_normal
from torch.testing import assert_close

from skgpstoch.kernels.distances import matern_3, squared_distance
from skgpstoch.maths.exact_solver import ExactSolver
from skgpstoch.maths.linalg import cholesky, mirror_

NOISE = 0.1


def kernel(A, B):
    return matern_3(squared_distance(A, B))[0]


def covariance(X):
    return kernel(X, X) + NOISE * torch.eye(len(X), dtype=torch.float64)


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(90, 2, generator=generator, dtype=torch.float64)
    return X, torch.randn(90, 3, generator=generator, dtype=torch.float64)


def test_densities_are_those_of_scipy(rows):
    X, Y = rows
    C = covariance(X)
    found = ExactSolver.of(C, Y, "C").log_density(Y)
    assert_close(float(found), multivariate_normal(cov=C.numpy()).logpdf(Y.T.numpy()).sum())


def test_slopes_are_those_of_autograd(rows):
    X, Y = rows
    C = covariance(X).requires_grad_()
    ExactSolver.given(torch.linalg.cholesky(C), Y).log_density(Y).backward()
    solver = ExactSolver.of(C.detach(), Y, "C")
    assert_close(solver.slope(), C.grad)
    assert_close(mirror_(solver.slope_()), C.grad)  # which overwrites L


def test_a_variance_scales_the_slope(rows):
    X, Y = rows
    variance = torch.tensor(2.5, dtype=torch.float64)
    C = covariance(X).requires_grad_()
    L = torch.linalg.cholesky(variance * C)
    ExactSolver.given(L, Y).log_density(Y).backward()
    solver = ExactSolver.of_(C.detach().clone(), Y)
    assert_close(mirror_(solver.slope_(float(variance))), C.grad)


def test_matrices_without_a_factor_have_no_solver(rows):
    X, Y = rows
    assert ExactSolver.of_(covariance(X) - torch.eye(len(X)), Y) is None


def test_neighbours_of_all_other_rows_leave_one_out(rows):
    """A batch of n neighbourhoods of n − 1 rows, as nearest-neighbour processes have."""
    X, Y = rows
    n = len(X)
    others = torch.arange(n).expand(n, n)[~torch.eye(n, dtype=torch.bool)].view(n, n - 1)
    C, K = covariance(X), kernel(X, X)
    of_batch = ExactSolver.of(C[others[:, :, None], others[:, None]], Y[others], "C")
    K_star = K.gather(1, others)[:, None]  # (n, 1, n − 1)
    mean = of_batch.mean(K_star)[:, 0]
    variance = of_batch.variance(K.diagonal()[:, None], K_star)[:, 0] + NOISE
    residual, expected = ExactSolver.of(C, Y, "C").left_out()
    assert_close(Y - mean, residual, rtol=1e-10, atol=1e-10)
    assert_close(variance, expected, rtol=1e-10, atol=1e-10)
    joint = of_batch.covariance(K.diagonal()[:, None, None], K_star)[:, 0, 0]
    assert_close(joint + NOISE, expected, rtol=1e-10, atol=1e-10)


def test_a_batch_is_its_matrices(rows):
    X, Y = rows
    C = torch.stack([covariance(X), 2.0 * covariance(X)])
    both = ExactSolver.of(C, Y.expand(2, -1, -1), "C")
    each = [ExactSolver.of(one, Y, "C") for one in C]
    for name in ("square", "log_density"):
        assert_close(getattr(both, name)(Y), torch.stack([getattr(one, name)(Y) for one in each]))
    assert_close(both.slope(), torch.stack([one.slope() for one in each]))
    for k, one in enumerate(each):
        assert_close(tuple(found[k] for found in both.left_out()), one.left_out())


def test_more_rows_are_those_of_all_rows(rows):
    X, Y = rows
    C = covariance(X)
    first = ExactSolver.of(C[:70, :70], Y[:70], "C")
    found = first.extended(C[70:, :70], C[70:, 70:], Y, cholesky)
    assert_close(found, ExactSolver.of(C, Y, "C"))

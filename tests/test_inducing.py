"""Inducing points: the backward pass of the whitened features, and where the points start."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern
from torch.testing import assert_close

from skgpstoch.kernels import from_sklearn
from skgpstoch.maths.linalg import inverse_cholesky
from skgpstoch.models.features.inducing import InducingFeatures, whiten
from skgpstoch.training.recipes.points import (
    INITIALIZATIONS,
    choose_points,
    largest_conditional_variances,
    unit_of_kernel,
)

F64 = torch.float64
IDENTITY = torch.nn.Identity()
methods = pytest.mark.parametrize("method", INITIALIZATIONS)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make_kernel(length_scale=1.0):
    return from_sklearn(ConstantKernel(2.0) * Matern(length_scale, nu=1.5))


# ---- whitening
@pytest.mark.parametrize("M", [1, 6])
def test_whitening_is_a_cholesky_decomposition_with_its_gradient(M):
    """Value and gradients by both arguments, whatever weights the output gets."""
    g = generator()
    A = torch.randn(M, 2 * M, generator=g, dtype=F64)
    K = (A @ A.mT + torch.eye(M, dtype=F64)).requires_grad_()
    B = torch.randn(9, M, generator=g, dtype=F64, requires_grad=True)
    weights = torch.randn(9, M, generator=g, dtype=F64)
    inverse = torch.linalg.inv(torch.linalg.cholesky(K.detach()))
    P = whiten(B, K, inverse)
    expected = torch.linalg.solve_triangular(torch.linalg.cholesky(K), B.mT, upper=False).mT
    assert_close(P, expected, rtol=1e-10, atol=1e-10)
    assert_close(P @ P.mT, B @ torch.linalg.inv(K) @ B.mT, rtol=1e-10, atol=1e-10)
    B_bar, K_bar = torch.autograd.grad((weights * P.sin()).sum(), (B, K))
    B_dense, K_dense = torch.autograd.grad((weights * expected.sin()).sum(), (B, K))
    assert_close(B_bar, B_dense, rtol=1e-9, atol=1e-10)
    assert_close(K_bar, 0.5 * (K_dense + K_dense.mT), rtol=1e-9, atol=1e-10)
    assert_close(K_bar, K_bar.mT, rtol=1e-12, atol=1e-12)


def test_whitening_passes_finite_differences():
    g = generator(1)
    A = torch.randn(4, 8, generator=g, dtype=F64)
    K, B = A @ A.mT, torch.randn(5, 4, generator=g, dtype=F64).requires_grad_()

    def features(B, root):
        full = root @ root.mT + K
        return whiten(B, full, torch.linalg.inv(torch.linalg.cholesky(full.detach())))

    root = torch.randn(4, 4, generator=g, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(features, (B, root))


def test_whitening_of_one_argument_alone():
    K, B = torch.eye(3, dtype=F64) * 4.0, torch.ones(2, 3, requires_grad=True)
    P = whiten(B, K, torch.eye(3, dtype=F64) / 2.0)
    assert P.dtype == torch.float32
    P.sum().backward()
    assert_close(B.grad, torch.full((2, 3), 0.5))


def test_jitter_is_a_multiple_of_the_prior_variance_and_failures_are_recorded():
    Z = torch.zeros(3, 1, dtype=F64)
    features = InducingFeatures(make_kernel(), IDENTITY, Z, torch.ones(1, dtype=F64), 1)
    K, inverse = features.condition(Z)
    L = torch.linalg.inv(inverse)
    expected = features.covariances.among(Z) + 1e-8 * 2.0 * torch.eye(3, dtype=F64)
    assert_close(K, expected, rtol=0, atol=0)
    assert_close(L @ L.mT, expected.detach(), rtol=0, atol=1e-12)
    assert not bool(features.failed)
    features.inverse_factor(-torch.eye(3, dtype=F64))
    assert bool(features.failed)


@pytest.mark.parametrize("N", [1, 64, 65, 200, 300])
def test_inverse_by_halves(N):
    A = torch.randn(2, N, 2 * N, generator=generator(), dtype=F64)
    A = A @ A.mT / N + 0.01 * torch.eye(N, dtype=F64)
    R, failed = inverse_cholesky(A)
    assert failed.tolist() == [False, False]
    assert_close(R, torch.linalg.inv(torch.linalg.cholesky(A)), rtol=1e-9, atol=1e-10)
    assert torch.equal(R, R.tril())
    A[1, N - 1, N - 1] = -1.0
    assert inverse_cholesky(A)[1].tolist() == [False, True]


def test_features_of_many_points_in_training_and_after():
    """By halves with jitter, or LAPACK's decomposition of the same matrix."""
    Z = torch.randn(150, 2, generator=generator(), dtype=F64)
    features = InducingFeatures(make_kernel(0.3), IDENTITY, Z, torch.ones(2, dtype=F64), 2)
    K, inverse = features.condition(Z)
    L = torch.linalg.cholesky(K)
    assert_close(inverse, torch.linalg.inv(L).detach(), rtol=1e-6, atol=1e-6)


# ---- where points start
@methods
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_points_are_many_deterministic_and_of_the_type_of_the_rows(method, dtype):
    X = torch.randn(60, 3, generator=generator(), dtype=dtype)
    before = X.clone()
    one, other = (
        choose_points(method, X, 12, make_kernel(), IDENTITY, generator(5)) for _ in range(2)
    )
    assert one.shape == (12, 3)
    assert one.dtype == dtype
    assert torch.equal(one, other)
    assert torch.equal(X, before)
    assert not one.requires_grad
    assert len(torch.unique(one, dim=0)) == 12
    one += 1.0  # is no view of the rows
    assert torch.equal(X, before)
    low, high = X.min(0).values, X.max(0).values
    assert bool(((other >= low - 1e-5) & (other <= high + 1e-5)).all())


@methods
def test_as_many_points_as_rows_are_the_rows(method):
    X = torch.randn(15, 2, generator=generator(), dtype=F64)
    points = choose_points(method, X, 15, make_kernel(), IDENTITY, generator())
    order = points[:, 0].argsort()
    assert torch.equal(points[order], X[X[:, 0].argsort()])


@methods
def test_repeated_rows(method):
    """Fewer distinct rows than points: finite points, each of them one of the rows."""
    X = torch.randn(4, 2, generator=generator(), dtype=F64).repeat(10, 1)
    points = choose_points(method, X, 8, make_kernel(), IDENTITY, generator())
    assert points.shape == (8, 2)
    assert float(torch.cdist(points, X).amin(1).max()) < 1e-6


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
@methods
def test_constant_columns_do_not_matter(method, value):
    """Nor does how far they are from zero, or the scale of the others."""
    X = torch.randn(300, 2, generator=generator(), dtype=F64)
    wide = torch.cat([X, torch.full((300, 1), value, dtype=F64)], 1)
    with_, without = (
        choose_points(method, A, 10, make_kernel(), IDENTITY, generator()) for A in (wide, X)
    )
    assert_close(with_[:, 2], torch.full((10,), value, dtype=F64), rtol=1e-12, atol=1e-12)

    def spread(points):
        return float(torch.cdist(X, points).amin(1).square().mean())

    assert spread(with_[:, :2]) < 1.2 * spread(without)


def test_kmeans_does_not_depend_on_the_scale_or_origin_of_columns():
    X = torch.randn(400, 2, generator=generator(), dtype=F64)
    moved = X * torch.tensor([1e3, 1e-3], dtype=F64) + torch.tensor([5e5, 2.0], dtype=F64)
    one, other = (
        choose_points("kmeans", A, 8, make_kernel(), IDENTITY, generator()) for A in (X, moved)
    )
    back = (other - torch.tensor([5e5, 2.0], dtype=F64)) / torch.tensor([1e3, 1e-3], dtype=F64)
    assert_close(back, one, rtol=0, atol=1e-5)


def test_kmeans_sees_only_columns_that_vary_in_their_units():
    X = torch.randn(200, 2, generator=generator(), dtype=F64)
    unit = torch.tensor([1.0, 1e6], dtype=F64)
    arguments = ("kmeans", X, 10, make_kernel(), IDENTITY)
    first, again = (choose_points(*arguments, generator(5), unit=u) for u in (unit, 3.0 * unit))
    alone = choose_points("kmeans", X[:, :1], 10, make_kernel(), IDENTITY, generator(5))
    assert_close(first, again, rtol=1e-9, atol=1e-9)
    assert_close(first[:, :1], alone, rtol=1e-9, atol=1e-9)


def test_the_unit_of_points_is_the_shortest_length_scale():
    most = torch.tensor([1.0, 2.0], dtype=F64)
    sums = RBF([0.5, 1e3]) + ConstantKernel() * Matern([0.7, 3.0], nu=1.5)
    assert unit_of_kernel(from_sklearn(sums), most).tolist() == pytest.approx([0.5, 3.0])
    assert unit_of_kernel(from_sklearn(RBF(1e3)), most).tolist() == pytest.approx([10.0, 20.0])
    assert unit_of_kernel(from_sklearn(DotProduct()), most).tolist() == [1.0, 2.0]


def test_largest_conditional_variances():
    """Each point is the one of largest variance given those before it, by dense formulas."""
    X = torch.randn(30, 2, generator=generator(3), dtype=F64)
    kernel = from_sklearn(ConstantKernel(1.5) * RBF(0.8))
    with torch.no_grad():
        chosen = largest_conditional_variances(kernel, X, 8)
        K = kernel(X)
    assert len(set(chosen.tolist())) == 8
    for j in range(1, 8):
        c = chosen[:j]
        var = K.diagonal() - (K[:, c] @ torch.linalg.inv(K[c][:, c]) * K[:, c]).sum(1)
        assert float(var[chosen[j]]) == pytest.approx(float(var.max()), rel=1e-6)


def test_largest_conditional_variances_of_a_kernel_of_low_rank():
    """Where nothing is left to explain, other rows all the same, and no NaN."""
    X = torch.zeros(10, 1, dtype=F64)
    with torch.no_grad():
        chosen = largest_conditional_variances(make_kernel(), X, 6)
    assert len(set(chosen.tolist())) == 6


def test_conditional_variance_sees_the_network():
    """In the space that the kernel is on: a network that drops a column makes it irrelevant."""
    X = torch.randn(50, 2, generator=generator(), dtype=F64)
    network = torch.nn.Linear(2, 1, bias=False).to(F64)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0, 0.0]]))
    kernel = from_sklearn(ConstantKernel(1.0) * RBF(1.0))
    points = choose_points("conditional_variance", X, 5, kernel, network, generator())
    with torch.no_grad():
        rows = X[largest_conditional_variances(kernel, X[:, :1], 5)]
    assert torch.equal(points, rows)


def test_points_outlive_the_units_they_are_learned_in():
    Z = torch.tensor([[1e3, 1e-3], [2e3, -1e-3]], dtype=F64)
    unit = torch.tensor([1e3, 1e-3], dtype=F64)
    features = InducingFeatures(make_kernel([1e3, 1e-3]), IDENTITY, Z, unit, 2)
    assert_close(features.inducing_points, Z, rtol=1e-14, atol=0)
    np.testing.assert_allclose(features.points.detach().numpy(), [[1.0, 1.0], [2.0, -1.0]])


# ---- a state that is kept for a while
def made_features(training):
    network = torch.nn.BatchNorm1d(2).double()
    kernel, Z = make_kernel(), torch.randn(5, 2, generator=generator(), dtype=F64)
    return InducingFeatures(kernel, network, Z, torch.ones(2, dtype=F64), 2).train(training)


@torch.no_grad()
def test_a_state_is_kept_for_a_while(monkeypatch):
    features, calls = made_features(training=False), []
    condition = InducingFeatures.condition
    monkeypatch.setattr(
        InducingFeatures, "condition", lambda self, *Z: calls.append(1) or condition(self, *Z)
    )
    X = torch.randn(3, 2, generator=generator(1), dtype=F64)
    expected, names = features.basis(X), set(features.state_dict())
    calls.clear()
    with features.frozen():
        found = [features.basis(X) for _ in range(3)]
    assert len(calls) == 1
    assert_close(found[2].phi, expected.phi)
    assert set(features.state_dict()) == names
    with pytest.raises(KeyboardInterrupt), features.frozen():
        raise KeyboardInterrupt
    assert (features.n_frozen, set(features.state_dict())) == (0, names)


def test_no_state_is_kept_in_training_nor_for_gradients():
    """A network that normalises by its batch has rows and points in one."""
    features = made_features(training=True)
    with torch.no_grad(), features.frozen():
        assert features.n_frozen == 0
    with features.eval().frozen():
        assert features.n_frozen == 0

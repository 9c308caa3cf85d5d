"""Sets of orthogonal inducing points, and bounds of them, against dense formulas in NumPy."""

import numpy as np
import pytest
import torch
from families import by_default, slow_cases
from numpy.testing import assert_allclose
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    ExpSineSquared,
    Matern,
    WhiteKernel,
)
from torch.testing import assert_close

from skgpstoch import DeepGPRegressor, SolveGPClassifier, SolveGPRegressor
from skgpstoch.data.rows import Rows
from skgpstoch.kernels import from_sklearn
from skgpstoch.likelihoods import Gaussian
from skgpstoch.models.features.inducing import InducingFeatures
from skgpstoch.models.features.orthogonal import OrthogonalFeatures
from skgpstoch.models.sparse import ConstantMean, SparseModel, SparsePosterior
from skgpstoch.objectives.optimal_q import dependent_bound, optimal_q

F64 = torch.float64
KERNEL = ConstantKernel(1.3) * Matern([0.8, 1.5], nu=1.5)
NOISE = 0.1
RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 2))
Y = np.sin(2.0 * X[:, :1]) + 0.3 * RNG.standard_normal((40, 1))
POINTS = X[:16] + 0.05
TIGHT = {"rtol": 0, "atol": 1e-9}


def model_of(M, sizes=None, points=POINTS, prior=False):
    """A model of M points and sets of others, in the order of `points`."""
    points = torch.from_numpy(points)
    args = (from_sklearn(KERNEL), torch.nn.Identity(), points[:M], torch.ones(2, dtype=F64), 2)
    if sizes is None:
        features, blocks = InducingFeatures(*args), (False,)
    else:
        others = points[M : M + sum(sizes)]
        features = OrthogonalFeatures(*args, orthogonal_points=others, sizes=sizes)
        blocks = (False, *(prior for _ in sizes))
    features.jitter = None
    mean = ConstantMean(torch.full((1,), 0.2, dtype=F64))
    return SparseModel(features, Gaussian(NOISE).for_outputs(1), mean, blocks)


def best(model):
    """The best q(w), and the bound there."""
    return optimal_q(model, torch.from_numpy(X), Rows(torch.from_numpy(Y)))


def decomposed(points, sizes, A, B):
    """c(A, B) after all sets; c_b(A, O_b) and C_b⁻¹ of each: the decomposition, repeated."""

    def c(b, A, B):
        if b == 0:
            return KERNEL(A, B)
        V, C_inv = sets[b - 1], inverses[b - 1]
        return c(b - 1, A, B) - c(b - 1, A, V) @ C_inv @ c(b - 1, V, B)

    sets, inverses = np.split(points, np.cumsum(sizes))[:-1], []
    for b, V in enumerate(sets):
        inverses.append(np.linalg.inv(c(b, V, V)))
    return c(len(sets), A, B), [(c(b, A, V), inverses[b]) for b, V in enumerate(sets)]


def dense_bound(points, sizes):
    """max over q of the bound by NumPy, and q(f) there at X: its mean and covariance.

    With f = Σ_b c_b(x, O_b) C_b⁻¹ v_b + f⊥, the v_b independent in p and with covariances of their
    own in q, the best mean is that of all v together, S_b = (C_b⁻¹ + C_b⁻¹ cᵀc C_b⁻¹/σ²)⁻¹.
    """
    residual, parts = decomposed(points, sizes, X, X)
    y = Y[:, 0] - 0.2
    W = np.hstack([c @ C_inv for c, C_inv in parts])  # f = W v + f⊥
    prior = np.zeros((sum(sizes),) * 2)  # its inverse
    S, start = np.zeros_like(prior), 0
    for size, (_, C_inv) in zip(sizes, parts, strict=True):
        at = slice(start, start + size)
        prior[at, at] = C_inv
        S[at, at] = np.linalg.inv(C_inv + W[:, at].T @ W[:, at] / NOISE)
        start += size
    m = np.linalg.solve(prior + W.T @ W / NOISE, W.T @ y / NOISE)
    covariance = W @ S @ W.T + residual
    fit = ((y - W @ m) ** 2 + np.diag(covariance)).sum() / NOISE
    log_dets = np.linalg.slogdet(prior)[1] + np.linalg.slogdet(S)[1]
    kl = 0.5 * (np.trace(prior @ S) + m @ prior @ m - len(m) - log_dets)
    return -0.5 * (fit + len(X) * np.log(2 * np.pi * NOISE)) - kl, 0.2 + W @ m, covariance


@pytest.mark.parametrize("sizes", [(6,), (6, 4), (5, 4, 3), (4, 3, 5, 2)])
def test_bound_and_predictions_by_numpy(sizes):
    model = model_of(sizes[0], sizes[1:])
    found = best(model)
    bound, mean, covariance = dense_bound(POINTS[: sum(sizes)], sizes)
    assert_allclose(float(found.value), bound, **TIGHT)
    posterior = SparsePosterior(model.for_predictions(), found, found.value, len(X))
    with torch.no_grad():
        marginals = posterior.marginals(torch.from_numpy(X))
        joint = posterior.covariance(torch.from_numpy(X))
    assert_allclose(marginals.mean[0, :, 0], mean, **TIGHT)
    assert_allclose(marginals.var[0, :, 0], np.diag(covariance), **TIGHT)
    assert_allclose(joint[0], covariance, **TIGHT)


def test_an_empty_set_changes_nothing():
    for sizes in ((7, 0), (0, 7)):
        two, three = best(model_of(6, (7,))), best(model_of(6, sizes))
        assert_close(three.value, two.value, **TIGHT)
        assert_close(three.q.mean, two.q.mean, **TIGHT)


def test_features_are_those_of_one_decomposition():
    """P and its gradient, where each set is factorised by itself and all points are at once."""
    rows, target = torch.from_numpy(X), torch.from_numpy(RNG.standard_normal((40, 14)))
    model = model_of(5, (4, 3, 2))
    features = model.features
    points = torch.cat([features.points, features.others])
    K = features.kernel(points)
    joint = features.kernel(rows, points) @ torch.linalg.inv(torch.linalg.cholesky(K)).mT
    found = features.basis(rows)
    with torch.no_grad():
        assert_close(features.basis(rows).phi, joint, **TIGHT)
    assert_close(found.phi, joint, **TIGHT)
    parameters = [*features.coordinates(), *features.kernel.parameters()]
    ours, theirs = (
        torch.autograd.grad((phi * target).sum(), parameters) for phi in (found.phi, joint)
    )
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_sets_bound_as_one_set_does_with_their_q():
    """The bound of q(w) in sets is that of one q(w) of all points, block-diagonal in w."""
    found = best(model_of(5, (4, 3)))
    joint = best(model_of(12))
    phi = model_of(12).features.basis(torch.from_numpy(X))
    S = torch.block_diag(*(S[0] for S in found.q.covariances))
    mean = phi.phi @ found.q.mean + 0.2
    var = ((phi.phi @ S) * phi.phi).sum(1) + phi.residual()
    fit = ((torch.from_numpy(Y) - mean).square()[:, 0] + var).sum() / NOISE
    m = found.q.mean[:, 0]
    kl = 0.5 * (S.trace() + m @ m - len(m) - torch.logdet(S))
    bound = -0.5 * (fit + len(X) * np.log(2 * np.pi * NOISE)) - kl
    assert_close(found.value, bound, **TIGHT)
    assert_close(found.q.mean, joint.q.mean, **TIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("prior", [False, True])
@by_default("True")
def test_each_set_raises_the_bound(prior):
    """SGPR(Z) ≤ Z and O₁ ≤ Z, O₁ and O₂ ≤ Z and O₁ ∪ O₂ ≤ SGPR(all)."""
    for seed in range(20):
        points = X[np.random.default_rng(seed).permutation(40)[:16]]
        models = [model_of(6, sizes, points, prior) for sizes in (None, (5,), (5, 5), (10,))]
        bounds = [float(best(model).value) for model in (*models, model_of(16, None, points))]
        assert (np.diff(bounds) >= -1e-9).all(), (seed, bounds)
        assert bounds[2] > bounds[0] + 1e-3


def dense_dependent_bound(points):
    """(14) of the paper by inverses, and Titsias' bound, both of all the points."""
    K, K_zf = KERNEL(X), KERNEL(points, X)
    Q = K_zf.T @ np.linalg.solve(KERNEL(points), K_zf)
    A, y = Q + NOISE * np.eye(len(X)), Y[:, 0] - 0.2
    log_det = np.linalg.slogdet(2 * np.pi * A)[1]
    log_normal = -0.5 * (y @ np.linalg.solve(A, y) + log_det)
    dependent = log_normal - 0.5 * np.trace(np.linalg.solve(A, K - Q))
    return dependent, log_normal - 0.5 * np.trace(K - Q) / NOISE


@pytest.mark.slow
def test_the_bound_of_appendix_a_by_numpy():
    """Over 50 choices of points, in sets or not; never below Titsias' bound of as many."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        sizes = tuple(rng.integers(1, 6, rng.integers(1, 4)))
        points = rng.standard_normal((sum(sizes), 2))
        model = model_of(sizes[0], sizes[1:] or None, points)
        bound = float(dependent_bound(model, torch.from_numpy(X), Rows(torch.from_numpy(Y))))
        expected, titsias = dense_dependent_bound(points)
        assert_allclose(bound, expected, rtol=1e-9, err_msg=str(seed))
        assert bound > titsias


# ---- estimators
QUICK = {"n_inducing": 8, "random_state": 0, "max_iter": 4}


@pytest.mark.parametrize(
    "model",
    [
        SolveGPRegressor(n_orthogonal=(6, 5), **QUICK),
        SolveGPRegressor(n_orthogonal=(6, 5), solver="collapsed", **QUICK),
        SolveGPRegressor(n_orthogonal=(6, 5), solver="adam", whiten=False, **QUICK),
        SolveGPRegressor(n_orthogonal=(6, 5), posterior="odvgp", solver="natural", **QUICK),
        SolveGPClassifier(n_orthogonal=np.array([6, 5]), **QUICK),
        DeepGPRegressor(posterior="solve", n_orthogonal=[6, 5], **QUICK),
    ],
)
@slow_cases("model4", "model0")
def test_estimators_of_sets(model):
    y = Y[:, 0] > 0 if isinstance(model, SolveGPClassifier) else Y[:, 0]
    model.fit(X, y)
    features = model.posterior_.model.features
    assert features.blocks == (8, 6, 5)
    assert np.shape(model.orthogonal_points_)[-2:] == (11, 2)
    assert model.score(X, y) > (0.8 if y.dtype == bool else 0.0)
    again = model.set_params(warm_start=True).fit(X, y)
    assert again.posterior_.model.features.blocks == (8, 6, 5)
    with pytest.raises(ValueError, match=r"n_orthogonal=\(5, 6\)"):
        model.set_params(n_orthogonal=(5, 6)).fit(X, y)


@pytest.mark.slow
@pytest.mark.parametrize("n", [80, 400])
def test_few_points_do_not_lose_an_input(n):
    """Training began at a usual length-scale and lost the third input (R² of .83 and .85)."""
    X, y = make_friedman1(n + 400, noise=1.0, random_state=1)
    model = SolveGPRegressor(n_inducing=20, n_orthogonal=20, random_state=0).fit(X[:n], y[:n])
    assert model.score(X[n:], y[n:]) > 0.88


@pytest.mark.parametrize(("posterior", "n_columns"), [("odvgp", 500), ("solve", 4000)])
@slow_cases("solve")
def test_points_of_two_kinds_learn_from_wide_tables(posterior, n_columns):
    """The first step from the usual start led to a constant, in silence."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(280, 5))
    X = Z @ rng.normal(size=(5, n_columns)) + rng.normal(size=(280, n_columns))
    y = np.sin(Z[:, 0]) + Z[:, 1] + 0.2 * rng.normal(size=280)
    model = SolveGPRegressor(posterior=posterior, max_iter=1, random_state=0)
    with pytest.warns(UserWarning, match="more features"):
        model.fit(X[:80], y[:80])
    assert model.score(X[80:], y[80:]) > 0.7


def test_a_kernel_that_is_no_covariance_is_told_of():
    """Most steps are refused, so that training ended where it began, in silence."""
    generator = np.random.default_rng(0)
    X = generator.uniform(-3.0, 3.0, (120, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * generator.normal(size=120)
    kernel = 1.0 * ExpSineSquared(1.0, 3.0) * RBF(2.0) + WhiteKernel()
    few = {"n_inducing": 20, "n_orthogonal": 20, "solver": "lbfgs", "random_state": 0}
    model = SolveGPRegressor(kernel, **few)
    with pytest.warns(ConvergenceWarning, match="no step lowers it.*ExpSineSquared of several"):
        model.fit(X, y)


def test_fewer_rows_than_points_of_sets():
    model = SolveGPRegressor(n_inducing=8, n_orthogonal=(20, 60), random_state=0)
    with pytest.warns(
        UserWarning, match="n_orthogonal=80 is more than the number of distinct rows"
    ):
        model.fit(X[:20], Y[:20, 0])
    sizes = model.posterior_.model.features.blocks
    assert sum(sizes[1:]) == len(model.orthogonal_points_) <= 20
    assert sizes[1] < sizes[2]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SolveGPRegressor(n_orthogonal=(5, 0)), "n_orthogonal must be positive integers"),
        (SolveGPRegressor(n_orthogonal=(5, 1.5)), "n_orthogonal must be positive integers"),
        (SolveGPRegressor(n_orthogonal={}), "n_orthogonal must be positive integers"),
        (
            SolveGPRegressor(n_orthogonal=(5, 6), posterior="odvgp", whiten=False, solver="adam"),
            "n_orthogonal must be a number",
        ),
        (SolveGPRegressor(n_orthogonal=(5, 6), orthogonal_points=X[:10]), "n_orthogonal=11 must"),
        (DeepGPRegressor(n_orthogonal=(5, 6)), "n_orthogonal must have its default value"),
    ],
)
def test_sets_that_cannot_be(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y[:, 0])

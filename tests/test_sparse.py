"""The sparse variational family against dense formulas that are written out here, in float64."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from families import slow_cases
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from torch import distributions
from torch.testing import assert_close

from skgpstoch import SolveGPRegressor, SVGPRegressor
from skgpstoch.data.rows import Rows
from skgpstoch.kernels import from_sklearn
from skgpstoch.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Laplace,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from skgpstoch.losses import Log1pBound
from skgpstoch.models.features.inducing import InducingFeatures
from skgpstoch.models.features.network import multilayer_perceptron
from skgpstoch.models.features.orthogonal import DecoupledFeatures, OrthogonalFeatures
from skgpstoch.models.posteriors.blocks import WeightMoments
from skgpstoch.models.posteriors.sites import Sites, conjugate_sites, optimal_moments
from skgpstoch.models.sparse import ConstantMean, SparseModel, SparsePosterior
from skgpstoch.objectives import optimal_q
from skgpstoch.objectives.adam import GradientObjective
from skgpstoch.objectives.elbo import expected_score, sites_of
from skgpstoch.objectives.lbfgs import FullBatchObjective
from skgpstoch.objectives.natural import RunningObjective

F64 = torch.float64


# ---- problems
def draw_targets(likelihood, g, n, P, signal):
    """y of the kind that the likelihood is for; and exposures, or None."""
    y = signal + 0.3 * torch.randn(n, P, generator=g, dtype=F64)
    exposure = None
    if isinstance(likelihood, StudentT | Laplace):
        y[::6] += 3.0
    if isinstance(likelihood, Bernoulli):
        y = (y > 0.0).to(F64)
    if isinstance(likelihood, Categorical):
        y = (y[:, :1] * 2.0).round().clamp(-1, 1) + 1.0
    if isinstance(likelihood, Poisson):
        exposure = 0.5 + torch.rand(n, 1, generator=g, dtype=F64)
        y = torch.poisson(exposure * y.exp(), generator=g)
    return y, exposure


def make_problem(
    seed=0, n=24, d=2, M=5, M2=0, P=1, likelihood=None, prior=False, loss=None, layers=(), beta=1.0
):
    """Data, and a model of them with random points, parameters and prior mean."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=g, dtype=F64)
    points = X[torch.randperm(n, generator=g)[: M + M2]] + 0.05
    unit = torch.linspace(0.5, 2.0, d, dtype=F64)
    network = multilayer_perceptron(d, layers, "tanh", g).to(F64)
    width = layers[-1] if layers else d
    lengths = np.linspace(0.8, 1.5, width)
    kernel = from_sklearn(ConstantKernel(1.3) * Matern(lengths, nu=1.5))
    args = (kernel, network, points[:M], unit, width)
    if M2:
        features = OrthogonalFeatures(*args, orthogonal_points=points[M:])
    else:
        features = InducingFeatures(*args)
    features.jitter = None
    likelihood = Gaussian(0.1) if likelihood is None else likelihood
    likelihood = likelihood.for_outputs(P)
    y, exposure = draw_targets(likelihood, g, n, P, torch.sin(2.0 * X[:, :1]))
    level = 0.2 * torch.randn(likelihood.n_latents(P), generator=g, dtype=F64)
    blocks = (False, prior) if M2 else (False,)
    mean = ConstantMean(level)
    model = SparseModel(features, likelihood, mean, blocks, loss, beta)
    rows = Rows(y, exposure=exposure)
    return SimpleNamespace(X=X, y=y, exposure=exposure, rows=rows, model=model, generator=g)


def random_moments(p):
    """Some q(w), of the model's structure."""
    sizes, P = p.model.features.blocks, len(p.model.mean.value)
    m = 0.5 * torch.randn(sum(sizes), P, generator=p.generator, dtype=F64)
    covariances = []
    for size, is_prior in zip(sizes, p.model.prior_blocks, strict=True):
        A = torch.randn(P, size, size, generator=p.generator, dtype=F64)
        S = A @ A.mT / size + 0.1 * torch.eye(size, dtype=F64)
        covariances.append(None if is_prior else S)
    kl = dense_kl(m, full_covariance(covariances, sizes))
    return WeightMoments(m, tuple(covariances), sizes, kl)


def full_covariance(covariances, sizes):
    """S as one matrix: (P, D, D)."""
    P = max([len(S) for S in covariances if S is not None], default=1)
    blocks = [
        torch.eye(size, dtype=F64).expand(P, -1, -1) if S is None else S
        for S, size in zip(covariances, sizes, strict=True)
    ]
    return torch.stack([torch.block_diag(*parts) for parts in zip(*blocks, strict=True)])


# ---- the same, densely
def k(model, A, B):
    """Matérn 3/2 from all pairs of differences, on the outputs of the network."""
    features = model.features
    A, B = (features.network(a).reshape(len(a), -1) for a in (A, B))
    variance = features.kernel.k1.log_constant_value.exp()
    a = ((A[:, None] - B) / features.kernel.k2.log_length_scale.exp()).square().sum(-1)
    a = math.sqrt(3.0) * (a + 1e-300).sqrt()
    return variance * (1.0 + a) * torch.exp(-a)


def paper(p):
    """The matrices of Shi, Titsias & Mnih (2020), by inverses."""
    model, X, y = p.model, p.X, p.y - p.model.mean.value
    Z, noise = model.features.inducing_points, model.likelihood.noise_variance
    K_uu, K_fu = k(model, Z, Z), k(model, X, Z)
    K_inv = torch.linalg.inv(K_uu)
    Q_ff, K_ff = K_fu @ K_inv @ K_fu.T, k(model, X, X)
    m = SimpleNamespace(K_uu=K_uu, K_fu=K_fu, K_inv=K_inv, Q_ff=Q_ff, K_ff=K_ff, y=y, noise=noise)
    m.C_ff, m.eye = K_ff - Q_ff, torch.eye(len(X), dtype=F64)
    m.A = [Q_ff + s * m.eye for s in noise]
    if hasattr(model.features, "orthogonal_points"):
        V = model.features.orthogonal_points
        K_vu, K_fv = k(model, V, Z), k(model, X, V)
        m.C_vv = k(model, V, V) - K_vu @ K_inv @ K_vu.T
        m.C_fv, m.C_inv = K_fv - K_fu @ K_inv @ K_vu.T, torch.linalg.inv(m.C_vv)
    return m


def log_normal(y, mean, covariance):
    return distributions.MultivariateNormal(mean, covariance).log_prob(y)


def kl_normal(m, S, K):
    q = distributions.MultivariateNormal(m, 0.5 * (S + S.mT))
    return distributions.kl_divergence(
        q, distributions.MultivariateNormal(torch.zeros_like(m), 0.5 * (K + K.mT))
    )


def dense_kl(m, S):
    """KL[N(m, S) ‖ N(0, I)], summed over outputs."""
    eye = torch.eye(len(m), dtype=F64)
    return sum(kl_normal(m[:, j], S[j], eye) for j in range(m.shape[1]))


def titsias_bound(p):
    """(B3), summed over outputs."""
    m = paper(p)
    return sum(
        log_normal(m.y[:, j], torch.zeros(len(p.X), dtype=F64), m.A[j])
        - m.C_ff.trace() / (2.0 * m.noise[j])
        for j in range(p.y.shape[1])
    )


def appendix_bound(p):
    """(14) of the paper, as printed, summed over outputs; of Z and O alike."""
    m, total = paper(p), 0.0
    Q = m.Q_ff + (m.C_fv @ m.C_inv @ m.C_fv.T if hasattr(m, "C_fv") else 0.0)
    for j in range(p.y.shape[1]):
        A = Q + m.noise[j] * m.eye
        total = total + log_normal(m.y[:, j], torch.zeros(len(p.X), dtype=F64), A)
        total = total - 0.5 * (torch.linalg.inv(A) @ (m.K_ff - Q)).trace()
    return total


def log1p_bound(p):
    """(B3) with its tighter diagonal."""
    m = paper(p)
    return sum(
        log_normal(m.y[:, j], torch.zeros(len(p.X), dtype=F64), m.A[j])
        - 0.5 * torch.log1p(m.C_ff.diagonal() / m.noise[j]).sum()
        for j in range(p.y.shape[1])
    )


def best_orthogonal(m, j):
    """(B4)."""
    A_inv = torch.linalg.inv(m.A[j])
    inner = torch.linalg.inv(m.C_vv + m.C_fv.T @ A_inv @ m.C_fv)
    mean = m.C_vv @ inner @ m.C_fv.T @ A_inv @ m.y[:, j]
    S = m.C_vv @ torch.linalg.inv(m.C_vv + m.C_fv.T @ m.C_fv / m.noise[j]) @ m.C_vv
    return mean, S


def solve_bound(p):
    """(B5), summed over outputs."""
    m, total = paper(p), 0.0
    B = m.C_fv @ m.C_inv @ m.C_fv.T
    for j in range(p.y.shape[1]):
        m_v, S_v = best_orthogonal(m, j)
        residual = m.C_ff - B @ torch.linalg.inv(B + m.noise[j] * m.eye) @ B
        total = total + log_normal(m.y[:, j], m.C_fv @ m.C_inv @ m_v, m.A[j])
        total = total - residual.trace() / (2.0 * m.noise[j]) - kl_normal(m_v, S_v, m.C_vv)
    return total


def odvgp_bound(p, m_v):
    """Equation (10) of the paper, at the means m_v (M₂, P)."""
    m, total = paper(p), 0.0
    for j in range(p.y.shape[1]):
        total = total + log_normal(m.y[:, j], m.C_fv @ m.C_inv @ m_v[:, j], m.A[j])
        total = total - m.C_ff.trace() / (2.0 * m.noise[j])
        total = total - 0.5 * m_v[:, j] @ m.C_inv @ m_v[:, j]
    return total


def exact_evidence(p):
    noise, zero = p.model.likelihood.noise_variance, torch.zeros(len(p.X), dtype=F64)
    K, y = k(p.model, p.X, p.X), p.y - p.model.mean.value
    eye = torch.eye(len(p.X), dtype=F64)
    return sum(log_normal(y[:, j], zero, K + noise[j] * eye) for j in range(y.shape[1]))


def dense_features(model, X):
    """P of one Cholesky decomposition of Z ∪ O."""
    points = torch.cat(model.features.all_points())
    L = torch.linalg.cholesky(k(model, points, points))
    return k(model, X, points) @ torch.linalg.inv(L).mT


def log_density(likelihood, y, f, exposure):
    """log p(y | f) of real numbers, two classes or counts."""
    if isinstance(likelihood, Gaussian):
        return distributions.Normal(f, likelihood.log_noise.exp().sqrt()).log_prob(y)
    if isinstance(likelihood, Laplace):
        return distributions.Laplace(f, likelihood.log_scale.exp()).log_prob(y)
    if isinstance(likelihood, StudentT):
        df = 2.0 + likelihood.log_df_minus_2.exp()
        return distributions.StudentT(df, f, likelihood.log_scale.exp()).log_prob(y)
    if isinstance(likelihood, NegativeBinomial):
        count = likelihood.dispersion.reciprocal()
        odds = f + exposure.log() + likelihood.log_dispersion
        return distributions.NegativeBinomial(count, logits=odds).log_prob(y)
    if isinstance(likelihood, Poisson):
        rate = f.exp() if likelihood.link == "exp" else torch.log1p(f.exp())
        return distributions.Poisson(exposure * rate).log_prob(y)
    if likelihood.link == "logit":
        return distributions.Bernoulli(logits=f).log_prob(y)
    return torch.special.log_ndtr((2.0 * y - 1.0) * f)


def expected_on_grid(likelihood, y, mean, var, exposure, n_nodes):
    """Σᵢ E[log p(yᵢ | fᵢ)] by trapezoids in f, whose weights carry the gradient: (N, P) → ()."""
    z = torch.linspace(-10.0, 10.0, n_nodes, dtype=F64)[:, None, None]
    std = var.detach().sqrt()
    f = mean.detach() + std * z
    weights = distributions.Normal(mean, var.sqrt()).log_prob(f).exp() * std * (z[1] - z[0])
    return (weights * log_density(likelihood, y, f, exposure)).sum()


def expected_softmax(y, mean, var):
    """The same by a product rule in the three latents of a row."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(14)
    z = torch.cartesian_prod(*[torch.from_numpy(nodes)] * 3)[:, None]  # (K, 1, 3)
    w = torch.cartesian_prod(*[torch.from_numpy(weights)] * 3).prod(1) / (2 * math.pi) ** 1.5
    log_p = torch.log_softmax(mean + var.sqrt() * z, -1)
    return (w[:, None] * log_p.gather(-1, y.long().expand(len(z), -1, 1))[..., 0]).sum()


def expected_robustmax(likelihood, y, mean, var):
    """The same by P(f_y is the greatest), on a grid of f_y."""
    total, others = 0.0, likelihood.epsilon / (mean.shape[1] - 1)
    z = torch.linspace(-9.0, 9.0, 801, dtype=F64)
    for i, c in enumerate(y[:, 0].long()):
        std = var[i].sqrt()
        f = mean[i, c].detach() + std[c].detach() * z
        density = distributions.Normal(mean[i, c], std[c]).log_prob(f).exp()
        rest = [j for j in range(mean.shape[1]) if j != c]
        below = torch.special.ndtr((f[:, None] - mean[i, rest]) / std[rest]).prod(1)
        win = (density * below).sum() * std[c].detach() * (z[1] - z[0])
        total = total + win * math.log(1 - likelihood.epsilon) + (1 - win) * math.log(others)
    return total


def dense_expectation(p, mean, var):
    likelihood = p.model.likelihood
    if isinstance(likelihood, Categorical) and likelihood.link == "softmax":
        return expected_softmax(p.y, mean, var)
    if isinstance(likelihood, Categorical):
        return expected_robustmax(likelihood, p.y, mean, var)
    n_nodes = 20001 if isinstance(likelihood, Laplace) else 2001  # it has a kink
    exposure = torch.ones(1, 1, dtype=F64) if p.exposure is None else p.exposure
    return expected_on_grid(likelihood, p.y, mean, var, exposure, n_nodes)


def dense_data_term(p, m, S):
    """Σᵢ E[log p(yᵢ | fᵢ)] at q(w) = N(m, S): m (D, P), S (P, D, D)."""
    P, model = dense_features(p.model, p.X), p.model
    residual = k(model, p.X, p.X).diagonal() - P.square().sum(1)
    mean = P @ m + model.mean.value
    explained = torch.einsum("nd,pde,ne->np", P, S, P)
    if not isinstance(model.loss, Log1pBound):
        return dense_expectation(p, mean, explained + residual[:, None])
    noise = model.likelihood.noise_variance
    value = dense_expectation(p, mean, explained)
    return value - 0.5 * torch.log1p(residual[:, None] / noise).sum()


def dense_elbo(p, m, S):
    """(B2)."""
    return dense_data_term(p, m, S) - dense_kl(m, S)


def gradients(value, model):
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(value, parameters.values(), materialize_grads=True)
    return dict(zip(parameters, found, strict=True))


ALL_LIKELIHOODS = {
    "gaussian": lambda: Gaussian(0.1),
    "student_t": lambda: StudentT(0.3, 3.5),
    "laplace": lambda: Laplace(0.4),
    "logit": lambda: Bernoulli("logit"),
    "probit": lambda: Bernoulli("probit"),
    "softmax": lambda: Categorical(3),
    "robustmax": lambda: Categorical(3, "robustmax"),
    "poisson": lambda: Poisson("exp"),
    "negative_binomial": lambda: NegativeBinomial(0.5),
    "poisson_softplus": lambda: Poisson("softplus"),
}
likelihoods = pytest.mark.parametrize("name", ALL_LIKELIHOODS)
SHAPES = {
    "svgp": {},
    "solve": {"M2": 4},
    "odvgp": {"M2": 4, "prior": True},
    "solve_outputs": {"M2": 4, "P": 2},
    "odvgp_outputs": {"M2": 3, "P": 2, "prior": True},
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


# ---- scikit-learn's exact process
@pytest.mark.parametrize("solver", ["lbfgs", "collapsed"])
@pytest.mark.parametrize("loss", ["elbo", "log1p"])
@pytest.mark.parametrize("name", ["rbf", "matern"])
def test_points_at_the_rows_are_exact(solver, loss, name):
    rng = np.random.default_rng(0)
    X, grid = rng.uniform(-3, 3, (30, 2)), rng.uniform(-4, 4, (15, 2))
    y = np.sin(X[:, 0]) + 0.2 * rng.standard_normal(30)
    base = {"rbf": RBF([0.7, 1.1], "fixed"), "matern": Matern([0.8, 2.0], "fixed", nu=1.5)}[name]
    kernel = ConstantKernel(1.7, "fixed") * base + WhiteKernel(0.04, "fixed")
    exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    ours = SVGPRegressor(
        kernel, inducing_points=X, mean="zero", solver=solver, loss=loss, normalize_y=False,
        dtype="float64",
    ).fit(X, y)  # fmt: skip
    for one, other in zip(ours.predict(grid, True), exact.predict(grid, True), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    assert ours.log_marginal_likelihood_value_ == pytest.approx(
        exact.log_marginal_likelihood_value_, abs=1e-6
    )


def test_orthogonal_points_at_the_rest_of_the_rows_give_the_exact_mean():
    """S is block-diagonal, but m is that of all points."""
    rng = np.random.default_rng(1)
    X, grid = rng.uniform(-3, 3, (30, 2)), rng.uniform(-4, 4, (15, 2))
    y = np.sin(X[:, 0]) + 0.2 * rng.standard_normal(30)
    kernel = ConstantKernel(1.7, "fixed") * Matern(1.0, "fixed", nu=1.5) + WhiteKernel(
        0.04, "fixed"
    )
    exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    for posterior in ("solve", "odvgp"):
        ours = SolveGPRegressor(
            kernel, inducing_points=X[:12], orthogonal_points=X[12:], mean="zero", solver="lbfgs",
            posterior=posterior, normalize_y=False, learn_inducing_points=False,
        ).fit(X, y)  # fmt: skip
        np.testing.assert_allclose(ours.predict(grid), exact.predict(grid), rtol=0, atol=1e-6)
        assert ours.log_marginal_likelihood_value_ < exact.log_marginal_likelihood_value_


# ---- bounds
def random_family(seed, degenerate):
    """A regression problem, as SGPR(Z), ODVGP, SOLVE-GP, SGPR(Z ∪ O), the same with log1p."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(10, 40)), int(rng.integers(1, 4))
    M, M2, P = (int(rng.integers(1, top)) for top in (n // 2, n // 2, 4))
    length = 10 ** (rng.uniform(0.5, 1.2) if degenerate else rng.uniform(-0.7, 0.5))
    base = Matern(length, nu=[0.5, 1.5, 2.5][seed % 3])
    kernel = from_sklearn(ConstantKernel(10 ** rng.uniform(-1, 1)) * base)
    X = torch.from_numpy(rng.standard_normal((n, d)))
    noise = torch.from_numpy(10 ** rng.uniform(-2.5 if degenerate else -4, 0.5, P))
    with torch.no_grad():
        L = torch.linalg.cholesky(kernel(X) + 1e-8 * torch.eye(n, dtype=F64))
    y = L @ torch.from_numpy(rng.standard_normal((n, P)))
    y += noise.sqrt() * torch.from_numpy(rng.standard_normal((n, P)))
    near = torch.from_numpy(rng.standard_normal((M2, d)))
    Z = X[:M].clone()
    V = Z[rng.integers(0, M, M2)] + 0.05 * near if degenerate else X[M : M + M2].clone()

    def bound(points, others=None, prior=False, loss=None, dependent=False):
        args = (kernel, torch.nn.Identity(), points, torch.ones(d, dtype=F64), d)
        features = InducingFeatures(*args)
        if others is not None:
            features = OrthogonalFeatures(*args, orthogonal_points=others)
        features.jitter = None
        mean = ConstantMean(torch.zeros(P, dtype=F64))
        blocks = (False,) if others is None else (False, prior)
        model = SparseModel(features, Gaussian(noise), mean, blocks, loss)
        if dependent:
            return float(optimal_q.dependent_bound(model, X, Rows(y)))
        return float(optimal_q.optimal_q(model, X, Rows(y)).value)

    union, zero = torch.cat([Z, V]), torch.zeros(n, dtype=F64)
    with torch.no_grad():
        K, eye = kernel(X), torch.eye(n, dtype=F64)
        exact = sum(float(log_normal(y[:, j], zero, K + noise[j] * eye)) for j in range(P))
    chain = [
        bound(Z),
        bound(Z, V, True),
        bound(Z, V),
        bound(union),
        bound(union, loss=Log1pBound()),
    ]
    appendix = [bound(points, dependent=True) for points in (Z, union)]
    return [*chain, exact], [chain[0], appendix[0], exact], [chain[3], appendix[1], exact]


@pytest.mark.slow
@pytest.mark.parametrize("degenerate", [False, True])
@slow_cases("True")
def test_bounds_are_in_order(degenerate):
    """SGPR(Z) ≤ ODVGP ≤ SOLVE ≤ SGPR(Z ∪ O) ≤ log1p ≤ the exact evidence; SGPR ≤ (14) ≤ that.

    With a smoother kernel the jitter of the union, 10⁻¹⁰, can cost nats.
    """
    for seed in range(20):
        for chain in random_family(seed, degenerate):
            slack = (1e-5 if degenerate else 1e-8) * (1.0 + abs(chain[-1]))
            assert (np.diff(chain) >= -slack).all(), (seed, chain)


def test_no_orthogonal_covariance_is_lost_when_points_coincide():
    """O = Z adds nothing to SGPR(Z), whose C_vv is zero."""
    X = torch.linspace(-1, 1, 30, dtype=F64)[:, None]
    kernel = from_sklearn(ConstantKernel(1.0) * RBF(1.5))
    for Z, V in ((X[::4], X[::4]), (X[::2], X[1::2])):
        args = (kernel, torch.nn.Identity(), Z, torch.ones(1, dtype=F64), 1)
        elbo = []
        features = (InducingFeatures(*args), OrthogonalFeatures(*args, orthogonal_points=V))
        for f, blocks in zip(features, ((False,), (False, False)), strict=True):
            f.jitter = None
            mean = ConstantMean(torch.zeros(1, dtype=F64))
            model = SparseModel(f, Gaussian(0.01).for_outputs(1), mean, blocks)
            elbo.append(float(optimal_q.optimal_q(model, X, Rows(X.sin())).value))
        assert elbo[1] == pytest.approx(elbo[0], abs=1e-3)


@pytest.mark.parametrize("P", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_collapsed_bounds(seed, P):
    """(B3), its log1p variant, (B5) and equation (10) of the paper, by inverses."""
    noise = torch.tensor([0.1, 0.4], dtype=F64)[:P]
    svgp = make_problem(seed, P=P, likelihood=Gaussian(noise))
    tight = make_problem(seed, P=P, likelihood=Gaussian(noise), loss=Log1pBound())
    solve = make_problem(seed, P=P, M2=4, likelihood=Gaussian(noise))
    odvgp = make_problem(seed, P=P, M2=4, likelihood=Gaussian(noise), prior=True)
    m = paper(odvgp)
    m_v = torch.stack([best_orthogonal(m, j)[0] for j in range(P)], 1)
    expected = (
        titsias_bound(svgp),
        log1p_bound(tight),
        solve_bound(solve),
        odvgp_bound(odvgp, m_v),
    )
    for p, value in zip((svgp, tight, solve, odvgp), expected, strict=True):
        assert_close(
            optimal_q.optimal_q(p.model, p.X, p.rows).value, value.detach(), rtol=1e-10, atol=1e-8
        )


@pytest.mark.parametrize("M2", [0, 4])
def test_the_bound_of_dependent_u_and_f(M2, monkeypatch):
    """(14), as printed, whatever the blocks; weights are repeated rows, errors are noise."""
    noise = torch.tensor([0.1, 0.4], dtype=F64)
    p = make_problem(1, P=2, M2=M2, likelihood=Gaussian(noise))
    expected = appendix_bound(p).detach()
    for block in (2048, 7):
        monkeypatch.setattr(optimal_q, "PAIRED_ROWS", block)
        assert_close(optimal_q.dependent_bound(p.model, p.X, p.rows), expected, rtol=0, atol=1e-9)
    times = torch.arange(len(p.X)) % 3
    weighted = optimal_q.dependent_bound(p.model, p.X, Rows(p.y, weight=times.to(F64)))
    repeated = [a.repeat_interleave(times, 0) for a in (p.X, p.y)]
    assert_close(
        weighted,
        optimal_q.dependent_bound(p.model, repeated[0], Rows(repeated[1])),
        rtol=0,
        atol=1e-9,
    )
    known = optimal_q.dependent_bound(p.model, p.X, Rows(p.y, noise=torch.full_like(p.y, 0.3)))
    p.model.likelihood = Gaussian(noise + 0.3)
    assert_close(known, appendix_bound(p).detach(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("P", [1, 2])
def test_best_orthogonal_moments(P):
    """(B4): u and v in the paper's coordinates, m_v = L_v m and S_v = L_v S L_vᵀ."""
    p = make_problem(M2=4, P=P)
    with torch.no_grad():
        m, q = paper(p), optimal_q.optimal_q(p.model, p.X, p.rows).q
        L = torch.linalg.cholesky(m.C_vv)
        for j in range(P):
            m_v, S_v = best_orthogonal(m, j)
            assert_close(L @ q.mean[5:, j], m_v, rtol=1e-9, atol=1e-9)
            assert_close(L @ q.covariances[1][j] @ L.T, S_v, rtol=1e-9, atol=1e-9)
            # q(u), given q(v): the posterior of u for the targets y − C_fv C_vv⁻¹ m_v.
            y = m.y[:, j] - m.C_fv @ m.C_inv @ m_v
            S_u = torch.linalg.inv(m.K_inv + m.K_inv @ m.K_fu.T @ m.K_fu @ m.K_inv / m.noise[j])
            L_u = torch.linalg.cholesky(m.K_uu)
            assert_close(L_u @ q.covariances[0][j] @ L_u.T, S_u, rtol=1e-9, atol=1e-9)
            m_u = S_u @ m.K_inv @ m.K_fu.T @ y / m.noise[j]
            assert_close(L_u @ q.mean[:5, j], m_u, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_marginals_and_bound_of_any_q(seed):
    """(B1) and (B2) in the coordinates of u and v."""
    p = make_problem(seed, M2=4, P=2)
    q = random_moments(p)
    with torch.no_grad():
        m, model = paper(p), p.model
        basis = model.features.basis(p.X)
        marginals, residual = model.marginals(basis, q, q.products(basis.phi)), basis.residual()
        L_u, L_v = torch.linalg.cholesky(m.K_uu), torch.linalg.cholesky(m.C_vv)
        H, C = m.K_fu @ m.K_inv, m.C_fv @ m.C_inv
        kl = 0.0
        for j in range(2):
            m_u, m_v = L_u @ q.mean[:5, j], L_v @ q.mean[5:, j]
            S_u = L_u @ q.covariances[0][j] @ L_u.T
            S_v = L_v @ q.covariances[1][j] @ L_v.T
            mean = H @ m_u + C @ m_v + model.mean.value[j]
            var = H @ S_u @ H.T + m.C_ff + C @ (S_v - m.C_vv) @ C.T
            assert_close(marginals.mean[0, :, j], mean, rtol=1e-10, atol=1e-10)
            assert_close(marginals.var[0, :, j], var.diagonal(), rtol=1e-10, atol=1e-10)
            kl += kl_normal(m_u, S_u, m.K_uu) + kl_normal(m_v, S_v, m.C_vv)
        assert_close(residual, (m.C_ff - m.C_fv @ C.T).diagonal(), rtol=1e-9, atol=1e-9)
        assert_close(q.weights().kl().sum(), kl, rtol=1e-9, atol=1e-9)
        value = dense_expectation(p, marginals.mean[0], marginals.var[0])
        total, _, _ = expected_score(model, basis, p.rows, q)
        assert_close(total, value, rtol=1e-9, atol=1e-8)


def test_features_are_those_of_one_decomposition():
    p = make_problem(M=6, M2=5, layers=(3,))
    basis = p.model.features.basis(p.X)
    assert_close(basis.phi, dense_features(p.model, p.X), rtol=1e-9, atol=1e-9)
    assert_close(basis.prior, k(p.model, p.X, p.X).diagonal(), rtol=1e-12, atol=1e-12)
    assert_close(p.model.features(p.X), basis.phi, rtol=0, atol=0)


# ---- the best q of given sites
def dense_moments(sites, sizes, prior_blocks):
    G, c = sites
    eye = torch.eye(len(c), dtype=F64)
    m = torch.stack([torch.linalg.inv(eye + G[j]) @ c[:, j] for j in range(len(G))], 1)
    ends, covariances = np.cumsum(sizes), []
    for size, end, is_prior in zip(sizes, ends, prior_blocks, strict=True):
        part = G[:, end - size : end, end - size : end] + torch.eye(size, dtype=F64)
        covariances.append(None if is_prior else torch.linalg.inv(part))
    return m, covariances


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("noise", [1.0, 1e-2, 1e-4])
def test_elimination_by_blocks_gives_the_dense_mean(prior, noise):
    p = make_problem(n=60, M=12, M2=10, P=2, prior=prior)
    phi = p.model.features.basis(p.X).phi.detach()
    noises = torch.tensor([noise, 3.0 * noise], dtype=F64)
    sites, blocks = conjugate_sites(phi.mT @ phi, phi.mT @ p.y, noises), (False, prior)
    m, covariances = dense_moments(sites, (12, 10), blocks)
    q = optimal_moments(sites, (12, 10), blocks)
    assert_close(q.mean, m, rtol=1e-8, atol=1e-8)
    for S, expected in zip(q.covariances, covariances, strict=True):
        assert (S is None and expected is None) or torch.allclose(S, expected, rtol=1e-7, atol=1e-9)
    assert_close(q.kl, dense_kl(m, full_covariance(covariances, (12, 10))), rtol=1e-8, atol=1e-7)


@shapes
def test_gaussian_optimum_is_stationary_and_odvgp_keeps_the_prior(shape):
    """ODVGP is SOLVE-GP with S_v := C_vv; every free part of q is a maximum of (B2)."""
    p = make_problem(**shape)
    q = optimal_q.optimal_q(p.model, p.X, p.rows).q
    if shape.get("prior"):
        assert q.covariances[1] is None
    check_stationary(p, q, 1e-7)


def check_stationary(p, q, atol):
    """∂(B2)/∂m and ∂(B2)/∂S are zero, on the scale of q's standard deviations; (B2)."""
    m = q.mean.clone().requires_grad_()
    parts = [None if S is None else S.clone().requires_grad_() for S in q.covariances]
    value = dense_elbo(p, m, full_covariance(parts, q.sizes))
    free = [S for S in parts if S is not None]
    by_m, *by_S = torch.autograd.grad(value, [m, *free])
    std = torch.stack([S.diagonal() for S in full_covariance(parts, q.sizes)], 1).detach().sqrt()
    assert float((std * by_m).abs().max()) < atol
    for S, g in zip(free, by_S, strict=True):
        R = torch.linalg.cholesky(S.detach())
        assert float((R.mT @ (0.5 * (g + g.mT)) @ R).abs().max()) < atol
    return float(value.detach())


# Accuracy of the package's quadratures: of values in nats per row, and of derivatives.
VALUE = {"softmax": 5e-3, "robustmax": 1e-5, "laplace": 1e-7}
GRADIENT = {
    "laplace": 1e-6,
    "probit": 1e-4,
    "poisson_softplus": 1e-4,
    "robustmax": 1e-3,
    "softmax": 3e-2,
}
STATIONARY = {"softmax": 1e-2, "robustmax": 5e-3}


@pytest.mark.parametrize("shape", [{"M2": 4}, {"M2": 4, "prior": True}], ids=str)
@likelihoods
@slow_cases(
    r"laplace-\{'M2': 4\}$", r"student_t-\{'M2': 4, 'prior", "robustmax.*prior", r"robustmax-\{'M2"
)
def test_best_q_is_stationary(name, shape):
    """From zero sites, for every likelihood."""
    P = 2 if name in ("student_t", "poisson") else 1
    p = make_problem(3, likelihood=ALL_LIKELIHOODS[name](), P=P, **shape)
    found = optimal_q.optimal_q(p.model, p.X, p.rows, tol=1e-13, max_iter=200)
    value = check_stationary(p, found.q, STATIONARY.get(name, 1e-5))
    assert float(found.value) == pytest.approx(value, abs=len(p.X) * VALUE.get(name, 1e-9))
    start = p.model.moments(p.model.zero_sites())
    with torch.no_grad():
        prior = dense_elbo(p, start.mean, full_covariance(start.covariances, start.sizes))
    assert float(found.value) > float(prior)


@pytest.mark.slow
def test_outliers_have_negative_precisions():
    """Of a likelihood that is not log-concave: at its best q they count, and S may exceed I."""
    p = make_problem(3, likelihood=StudentT(0.1, 3.0))
    found = optimal_q.optimal_q(p.model, p.X, p.rows, tol=1e-13, max_iter=200)
    basis = p.model.features.basis(p.X)
    _, term, marginals = expected_score(p.model, basis, p.rows, found.q)
    assert float(term.explained.max()) > 0.0
    free = sites_of(p.model, basis, term, marginals, exact=True)
    assert_close(p.model.moments(free).mean, found.q.mean, rtol=0, atol=1e-5)
    clamped = sites_of(p.model, basis, term, marginals)
    assert bool((torch.linalg.eigvalsh(clamped.precision) > -1e-9).all())
    assert float((free.precision - clamped.precision).abs().max()) > 0.1


@pytest.mark.slow
def test_passes_over_blocks_of_rows_are_one_pass(monkeypatch):
    for likelihood in (None, StudentT(0.3)):
        p = make_problem(M2=4, likelihood=likelihood)
        whole = optimal_q.optimal_q(p.model, p.X, p.rows, tol=1e-12)
        with monkeypatch.context() as patch:
            patch.setattr("skgpstoch.data.devices.BLOCK_ROWS", 7)
            parts = optimal_q.optimal_q(p.model, p.X, p.rows, tol=1e-12)
        assert_close(parts.value, whole.value, rtol=1e-10, atol=1e-10)
        assert_close(parts.q.mean, whole.q.mean, rtol=1e-6, atol=1e-6)


# ---- gradients
@pytest.mark.parametrize("shape", [{}, {"M2": 4}, {"M2": 3, "prior": True}], ids=str)
@likelihoods
def test_gradient_of_the_data_term(name, shape):
    """In closed form, against autograd through one dense decomposition, at some q."""
    P = 2 if name in ("gaussian", "laplace") else 1
    p = make_problem(1, likelihood=ALL_LIKELIHOODS[name](), P=P, **shape)
    q = random_moments(p)
    total, _, _ = expected_score(p.model, p.model.features.basis(p.X), p.rows, q)
    expected = dense_data_term(p, q.mean, full_covariance(q.covariances, q.sizes))
    tol = GRADIENT.get(name, 1e-9)
    assert_close(total, expected, rtol=0, atol=len(p.X) * max(tol, 1e-7))
    ours, dense = gradients(total, p.model), gradients(expected, p.model)
    assert {key for key in ours if key.startswith("likelihood")} == {
        f"likelihood.{key}" for key, _ in p.model.likelihood.named_parameters()
    }
    for key in ours:
        assert_close(ours[key], dense[key], rtol=tol, atol=tol, msg=lambda m, k=key: k + m)


@pytest.mark.parametrize("loss", [None, Log1pBound()], ids=["titsias", "log1p"])
@pytest.mark.parametrize("layers", [(), (3,)], ids=["inputs", "network"])
@shapes
def test_gradient_of_the_gaussian_data_term(shape, layers, loss):
    """To rounding, by points, kernel, network, mean and noise."""
    noise = torch.tensor([0.1, 0.3], dtype=F64)[: shape.get("P", 1)]
    p = make_problem(2, likelihood=Gaussian(noise), layers=layers, loss=loss, **shape)
    q = random_moments(p)
    total, _, _ = expected_score(p.model, p.model.features.basis(p.X), p.rows, q)
    expected = dense_data_term(p, q.mean, full_covariance(q.covariances, q.sizes))
    assert_close(total, expected, rtol=1e-9, atol=1e-9)
    ours, dense = gradients(total, p.model), gradients(expected, p.model)
    assert ("features.network.0.weight" in ours) == bool(layers)
    for key in ours:
        assert_close(ours[key], dense[key], rtol=1e-7, atol=1e-7, msg=lambda m, k=key: k + m)


@pytest.mark.parametrize("layers", [(), (3,)], ids=["inputs", "network"])
@pytest.mark.parametrize(
    ("dense", "shape"),
    [
        (titsias_bound, {}),
        (log1p_bound, {"loss": Log1pBound()}),
        (solve_bound, {"M2": 4}),
        (solve_bound, {"M2": 4, "P": 2}),
    ],
    ids=["B3", "log1p", "B5", "B5_outputs"],
)
def test_partial_derivatives_at_the_best_q_are_total_ones(dense, shape, layers):
    """The envelope theorem: what L-BFGS is told is the gradient of the collapsed bound."""
    p = make_problem(2, layers=layers, **shape)
    loss = FullBatchObjective(p.model, len(p.X))(p.X, p.rows, p.generator)
    expected = dense(p)
    assert_close(-len(p.X) * loss, expected, rtol=1e-10, atol=1e-8)
    ours, total = gradients(-len(p.X) * loss, p.model), gradients(expected, p.model)
    for key in ours:
        assert_close(ours[key], total[key], rtol=1e-7, atol=1e-7, msg=lambda m, k=key: k + m)


@pytest.mark.parametrize("name", ["gaussian", "student_t", "poisson"])
@slow_cases("student_t")
def test_total_derivatives_are_finite_differences(name):
    """Of the bound at its best q, along a random direction of each parameter."""
    p = make_problem(4, likelihood=ALL_LIKELIHOODS[name](), M2=3)
    objective = FullBatchObjective(p.model, len(p.X))
    objective(p.X, p.rows, p.generator).backward()
    start, tight = objective.present_sites(), {"tol": 1e-15, "max_iter": 100}
    found = gradients(objective(p.X, p.rows, p.generator), p.model)
    for key, parameter in p.model.named_parameters():
        step = torch.randn(parameter.shape, generator=p.generator, dtype=F64)
        values = []
        for size in (1e-4, -1e-4):
            parameter.data.add_(step, alpha=size)
            values.append(float(optimal_q.optimal_q(p.model, p.X, p.rows, start, **tight).value))
            parameter.data.sub_(step, alpha=size)
        slope = (values[1] - values[0]) / (2e-4 * len(p.X))
        assert float((found[key] * step).sum()) == pytest.approx(slope, rel=2e-4, abs=1e-5), key


# ---- natural gradients
@pytest.mark.parametrize("shape", [{}, {"M2": 4}, {"M2": 4, "prior": True}], ids=str)
def test_one_natural_step_is_enough_for_a_gaussian_likelihood(shape):
    """The sites of any q are those of the best one."""
    p = make_problem(P=2, **shape)
    best = optimal_q.optimal_q(p.model, p.X, p.rows)
    for _ in range(2):
        q, basis = random_moments(p), p.model.features.basis(p.X)
        _, term, marginals = expected_score(p.model, basis, p.rows, q)
        sites = sites_of(p.model, basis, term, marginals)
        assert_close(sites.precision, best.sites.precision, rtol=1e-9, atol=1e-9)
        assert_close(sites.cross, best.sites.cross, rtol=1e-9, atol=1e-9)
        assert_close(p.model.moments(sites).mean, best.q.mean, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_natural_loss_is_at_the_mean_after_the_step_and_the_covariances_before_it(beta):
    """And so is its gradient: against one dense computation."""
    p = make_problem(3, likelihood=ALL_LIKELIHOODS["logit"](), M2=3, beta=beta)
    objective = RunningObjective(p.model, 24, conjugate=False, averaging=0.6)
    objective(p.X, p.rows, p.generator)
    before = objective.q()
    loss = objective(p.X, p.rows, p.generator)
    after = objective.q()
    assert float((after.mean - before.mean).abs().max()) > 1e-2
    S = full_covariance(before.covariances, before.sizes)
    data = dense_data_term(p, after.mean, S)
    kl = dense_kl(after.mean, full_covariance(after.covariances, after.sizes))
    assert_close(after.kl, kl, rtol=1e-9, atol=1e-9)
    assert_close(24 * loss, beta * kl - data, rtol=1e-8, atol=1e-8)
    ours, dense = gradients(24 * loss, p.model), gradients(-data, p.model)
    for key in ours:
        assert_close(ours[key], dense[key], rtol=1e-7, atol=1e-7, msg=lambda m, k=key: k + m)


def test_one_collapsed_step_on_all_rows_is_the_best_q():
    p = make_problem(P=2)
    objective = RunningObjective(p.model, len(p.X), conjugate=True)
    loss = objective(p.X, p.rows, p.generator)
    best = optimal_q.optimal_q(p.model, p.X, p.rows)
    assert_close(objective.q().mean, best.q.mean, rtol=1e-9, atol=1e-9)
    assert_close(loss, -best.value / len(p.X), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("conjugate", [True, False])
def test_running_averages_of_a_partition_are_the_sites_of_all_rows(conjugate):
    p = make_problem(n=24, M2=4, P=2)
    objective = RunningObjective(p.model, 24, conjugate=conjugate)
    for t, rows in enumerate(torch.randperm(24, generator=p.generator).split(6)):
        objective.averaging = 1.0 / (t + 1.0)
        objective(p.X[rows], p.rows[rows], p.generator)
    found, best = objective.present_sites(), optimal_q.optimal_q(p.model, p.X, p.rows)
    assert_close(found.precision, best.sites.precision, rtol=1e-9, atol=1e-9)
    assert_close(found.cross, best.sites.cross, rtol=1e-9, atol=1e-9)
    assert_close(objective.q().mean, best.q.mean, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_running_averages_converge_with_a_falling_rate():
    """Robbins–Monro steps of minibatches, whose sites depend on q, end at the best q."""
    p = make_problem(n=24, likelihood=Bernoulli("logit"))
    objective = RunningObjective(p.model, 24, conjugate=False)
    best = optimal_q.optimal_q(p.model, p.X, p.rows)
    for t in range(300):
        objective.averaging = 1.0 / (t / 4 + 2.0)
        rows = torch.randperm(24, generator=p.generator)[:12]
        objective(p.X[rows], p.rows[rows], p.generator)
    assert_close(objective.q().mean, best.q.mean, rtol=0, atol=0.1)
    assert_close(objective.q().covariances[0], best.q.covariances[0], rtol=0, atol=0.02)


@pytest.mark.parametrize("name", ["logit", "softmax", "poisson"])
def test_sites_of_minibatches_add_up(name):
    p = make_problem(likelihood=ALL_LIKELIHOODS[name](), M2=3)
    q, whole = random_moments(p), None
    for rows in [slice(None), *torch.arange(24).split(8)]:
        basis = p.model.features.basis(p.X[rows])
        _, term, marginals = expected_score(p.model, basis, p.rows[rows], q)
        sites = sites_of(p.model, basis, term, marginals)
        if whole is None:
            whole, total = sites, Sites(*(torch.zeros_like(part) for part in sites))
        else:
            total = total + sites
    assert_close(total.precision, whole.precision, rtol=1e-9, atol=1e-9)
    assert_close(total.cross, whole.cross, rtol=1e-9, atol=1e-9)


def test_how_far_averages_look_back():
    """b(2 − γ)/γ is 5 D rows, at least 2,500 and no more than there are."""
    p = make_problem()
    features = p.model.features
    for D, n, b, window in (
        (5, 10**6, 500, 2500), (800, 10**6, 500, 4000), (5, 900, 100, 900), (5, 100, 100, 100),
    ):  # fmt: skip
        features.n_features = 5
        objective = RunningObjective(p.model, n, conjugate=True)
        features.n_features, objective.n_steps = D, 10**6
        rate = objective.rate(b)
        assert b * (2.0 - rate) / rate == pytest.approx(window)
        objective.n_steps = 0
        assert objective.rate(b) == 1.0
        objective.averaging = 0.7
        assert objective.rate(b) == 0.7


# ---- four solvers, one q
def minimise_q(objective, p):
    """L-BFGS on the parameters of q alone."""
    objective.model.requires_grad_(False)
    params = [q for q in objective.parameters() if q.requires_grad]
    optimizer = torch.optim.LBFGS(
        params, max_iter=2000, tolerance_grad=1e-10, tolerance_change=1e-16, history_size=50,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure():
        optimizer.zero_grad()
        loss = objective(p.X, p.rows, p.generator)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return objective


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gaussian", {}),
        ("gaussian", {"M2": 3, "prior": True}),
        ("logit", {"M2": 3}),
        ("logit", {"M2": 3, "prior": True}),
    ],
    ids=str,
)
@slow_cases(r"logit-\{'M2': 3\}$", "gaussian-.*prior")
def test_solvers_agree_on_q(name, shape):
    p = make_problem(5, n=16, M=4, likelihood=ALL_LIKELIHOODS[name](), **shape)
    best = optimal_q.optimal_q(p.model, p.X, p.rows, tol=1e-15, max_iter=200)
    found = {"lbfgs": FullBatchObjective(p.model, 16), "adam": GradientObjective(p.model, 16)}
    if not shape.get("prior"):
        found["adam in u"] = GradientObjective(p.model, 16, whiten=False)
    found["lbfgs"](p.X, p.rows, p.generator)
    for solver, objective in found.items():
        if solver != "lbfgs":
            minimise_q(objective, p)
    found["natural"] = RunningObjective(p.model, 16, conjugate=False, averaging=0.6)
    if name == "gaussian":
        found["collapsed"] = RunningObjective(p.model, 16, conjugate=True)
    for solver in {"natural", "collapsed"} & found.keys():
        for _ in range(30):
            loss = found[solver](p.X, p.rows, p.generator)
        assert_close(loss, -best.value / 16, rtol=1e-8, atol=1e-8)
    for solver, objective in found.items():
        q, atol = objective.q(), 1e-4 if solver.startswith(("adam", "lbfgs")) else 1e-7
        assert_close(q.mean, best.q.mean, rtol=0, atol=atol, msg=lambda m, s=solver: s + m)
        for S, expected in zip(q.covariances, best.q.covariances, strict=True):
            if expected is not None:
                assert_close(S, expected, rtol=0, atol=atol, msg=lambda m, s=solver: s + m)
        assert_close(q.kl.detach(), best.q.kl, rtol=0, atol=10 * atol)


@pytest.mark.parametrize("white", [True, False])
@shapes
def test_loss_of_parameters_is_the_bound(shape, white):
    """−(B2) per row at the present q, which is the prior at first, in either coordinates."""
    if shape.get("prior") and not white:
        pytest.skip("is DecoupledFeatures")
    p = make_problem(loss=Log1pBound(), **shape)
    objective = GradientObjective(p.model, len(p.X), whiten=white)
    q = objective.q()
    for S in q.covariances:
        if S is not None:
            assert_close(S, torch.eye(S.shape[1], dtype=F64).expand_as(S), rtol=0, atol=1e-8)
    with torch.no_grad():
        for parameter in (*objective.means, *objective.roots):
            noise = torch.randn(parameter.shape, generator=p.generator, dtype=F64)
            parameter += 0.1 * noise * parameter.requires_grad
    q = objective.q()
    loss = objective(p.X, p.rows, p.generator)
    expected = dense_elbo(p, q.mean, full_covariance(q.covariances, q.sizes))
    assert_close(-len(p.X) * loss, expected, rtol=1e-8, atol=1e-8)
    sites = objective.present_sites()
    assert_close(p.model.moments(sites).mean, q.mean, rtol=1e-7, atol=1e-7)


def test_without_whitening_the_gradient_reaches_the_kernel_through_u():
    """q(u) is fixed where q(w) is not: against autograd through dense decompositions."""
    p = make_problem(6)
    objective = GradientObjective(p.model, len(p.X), whiten=False)
    with torch.no_grad():
        objective.means[0].normal_(generator=p.generator)
        objective.roots[0] += 0.3 * torch.randn(5, 5, generator=p.generator, dtype=F64)
    loss = objective(p.X, p.rows, p.generator)
    K = k(p.model, p.model.features.inducing_points, p.model.features.inducing_points)
    inverse = torch.linalg.inv(torch.linalg.cholesky(K))
    R = inverse @ objective.roots[0].tril()
    expected = -dense_elbo(p, inverse @ objective.means[0], R @ R.mT) / len(p.X)
    assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    ours, dense = gradients(loss, objective), gradients(expected, objective)
    for key in ours:
        assert_close(ours[key], dense[key], rtol=1e-6, atol=1e-7, msg=lambda m, k=key: k + m)


# ---- posteriors
def fitted(p):
    found = optimal_q.optimal_q(p.model, p.X, p.rows, tol=1e-12)
    return SparsePosterior(p.model, found, found.value, len(p.X))


@pytest.mark.parametrize("shape", [{}, {"M2": 4}, {"M2": 4, "prior": True}], ids=str)
@pytest.mark.parametrize(
    "name", [n for n in ALL_LIKELIHOODS if n not in ("student_t", "robustmax")]
)
@slow_cases(r"\{'M2': 4\}$")
def test_variances_are_between_zero_and_the_priors(name, shape):
    p = make_problem(7, likelihood=ALL_LIKELIHOODS[name](), **shape)
    posterior = fitted(p)
    X = torch.cat([p.X, p.model.features.inducing_points, 5.0 * p.X]).detach()
    with torch.no_grad():
        var, prior = posterior.marginals(X).var[0], k(p.model, X, X).diagonal()
    assert bool((var >= 0.0).all())
    assert bool((var <= prior[:, None] * (1.0 + 1e-9)).all())


@shapes
def test_joint_covariance_and_draws(shape):
    p = make_problem(8, **shape)
    posterior = fitted(p)
    X = torch.randn(6, 2, generator=p.generator, dtype=F64)
    with torch.no_grad():
        q, covariance = posterior.marginals(X), posterior.covariance(X)
        P_full = dense_features(p.model, X)
        covariances = [None if R is None else R @ R.mT for R in posterior.weights.roots]
        S = full_covariance(covariances, p.model.features.blocks)
        expected = P_full @ S @ P_full.mT + k(p.model, X, X) - P_full @ P_full.mT
        assert_close(covariance, expected.expand_as(covariance), rtol=1e-9, atol=1e-9)
        variances = covariance.diagonal(dim1=1, dim2=2).mT
        assert_close(variances, q.var[0], rtol=1e-9, atol=1e-10)
        n = 4000
        f = posterior.sample(X, n, p.generator)  # (n, N, P)
    error = variances.sqrt() / math.sqrt(n)
    assert float(((f.mean(0) - q.mean[0]) / error).abs().max()) < 4.5
    for j in range(f.shape[2]):
        sample, C = torch.cov(f[:, :, j].mT), covariance[j]
        error = ((C.diagonal()[:, None] * C.diagonal() + C.square()) / n).sqrt()
        assert float(((sample - C) / error).abs().max()) < 4.5


def test_draws_where_nothing_is_left_to_explain():
    """Points at the rows of a smooth function: the residual process is rounding."""
    X = torch.linspace(-1, 1, 50, dtype=F64)[:, None]
    kernel = from_sklearn(ConstantKernel(1.0) * RBF(1.0))
    features = InducingFeatures(kernel, torch.nn.Identity(), X, torch.ones(1, dtype=F64), 1)
    features.jitter = None
    mean = ConstantMean(torch.zeros(1, dtype=F64))
    model = SparseModel(features, Gaussian(0.01).for_outputs(1), mean, (False,))
    found = optimal_q.optimal_q(model, X, Rows(X.sin()))
    posterior = SparsePosterior(model, found, found.value, 50)
    with torch.no_grad():
        f = posterior.sample(X, 200, torch.Generator().manual_seed(0))
        q = posterior.marginals(X)
    z = (f.mean(0) - q.mean[0]) / (q.var[0] / 200).sqrt()
    assert float(z.abs().max()) < 5.0


def test_posterior_remembers_what_it_came_from():
    p = make_problem(M2=4, P=2)
    found = optimal_q.optimal_q(p.model, p.X, p.rows)
    posterior = SparsePosterior(p.model, found, found.value, len(p.X))
    assert_close(posterior.sites.cross, found.sites.cross, rtol=1e-8, atol=1e-8)
    assert_close(posterior.log_evidence().sum(), found.value, rtol=0, atol=0)
    again = optimal_q.optimal_q(posterior.model.for_evidence(), p.X, p.rows)
    assert_close(again.value, found.value, rtol=1e-10, atol=1e-10)
    for R, S in zip(posterior.weights.roots, found.q.covariances, strict=True):
        assert_close(R @ R.mT, S, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["svgp", "solve", "decoupled"])
def test_frozen_features_are_the_same(kind):
    p = make_decoupled() if kind == "decoupled" else make_problem(M2=4 if kind == "solve" else 0)
    features = p.model.features
    before = features.basis(p.X)
    features.freeze()
    frozen = features.basis(p.X)
    for one, other in zip(before[:3], frozen[:3], strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
    with torch.no_grad():
        features.points += 1.0
        assert torch.equal(features.basis(p.X).phi, frozen.phi)
        features.reopen()
        assert not torch.allclose(features.basis(p.X).phi, frozen.phi)


@pytest.mark.parametrize("shape", [{}, {"M2": 4}], ids=str)
def test_features_in_float32(shape):
    """With the same jitter, as training has them."""
    p = make_problem(M=8, **shape)
    single = copy.deepcopy(p.model.features).float()
    p.model.features.jitter = single.jitter = 1e-5
    double, rough = p.model.features.basis(p.X), single.basis(p.X.float())
    assert rough.phi.dtype == torch.float32
    assert_close(rough.phi.double(), double.phi, rtol=0, atol=1e-3)
    assert_close(rough.prior.double(), double.prior, rtol=1e-5, atol=1e-5)


# ---- ODVGP with the mean in the coordinates a = C_vv⁻¹ m_v
def make_decoupled(seed=0, M2=12, P=2, n_columns=5):
    p = make_problem(seed, M=5, P=P, likelihood=Gaussian(0.1))
    old = p.model.features
    others = torch.randn(M2, 2, generator=p.generator, dtype=F64)
    p.model.features = DecoupledFeatures(
        old.kernel, old.network, old.inducing_points.detach(), old.unit, 2,
        orthogonal_points=others, n_outputs=P, n_columns=n_columns,
    )  # fmt: skip
    p.model.features.jitter = None
    with torch.no_grad():
        p.model.features.coefficients.normal_(generator=p.generator)
    return p


@pytest.mark.slow
def test_decoupled_mean_and_its_price():
    p = make_decoupled()
    m, a = paper(p), p.model.features.coefficients
    assert_close(p.model.features.basis(p.X).shift, m.C_fv @ a, rtol=1e-9, atol=1e-9)
    price = 0.5 * (a * (m.C_vv @ a)).sum()
    assert_close(p.model.features.penalty(), price, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        draws = torch.stack([p.model.features.penalty(p.generator) for _ in range(400)])
    error = draws.std() / math.sqrt(len(draws))
    assert float(error) > 0.0
    assert abs(float((draws.mean() - price.detach()) / error)) < 4.0


def test_decoupled_bound():
    """Equation (10) at m_v = C_vv a, and its gradient; the best a gives ODVGP."""
    p = make_decoupled()
    m, features = paper(p), p.model.features
    expected = odvgp_bound(p, m.C_vv @ features.coefficients)
    found = optimal_q.optimal_q(p.model, p.X, p.rows)
    assert_close(found.value, expected.detach(), rtol=1e-10, atol=1e-8)
    total, _, _ = expected_score(p.model, features.basis(p.X), p.rows, found.q)
    ours, dense = gradients(total - features.penalty(), p.model), gradients(expected, p.model)
    for key in ours:
        assert_close(ours[key], dense[key], rtol=1e-6, atol=1e-6, msg=lambda t, k=key: k + t)
    with torch.no_grad():
        m_v = torch.stack([best_orthogonal(m, j)[0] for j in range(2)], 1)
        features.coefficients.copy_(m.C_inv @ m_v)
    args = (features.kernel, features.network, features.inducing_points.detach(), features.unit, 2)
    joint = OrthogonalFeatures(*args, orthogonal_points=features.orthogonal_points.detach())
    joint.jitter = None
    likelihood, mean = p.model.likelihood, p.model.mean
    odvgp = optimal_q.optimal_q(SparseModel(joint, likelihood, mean, (False, True)), p.X, p.rows)
    assert_close(optimal_q.optimal_q(p.model, p.X, p.rows).value, odvgp.value, rtol=1e-9, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
@slow_cases("poisson")
def test_far_means_of_counts_with_a_trend_are_near_the_counts(likelihood):
    """Not 10²⁰ times the largest count, from exp(v/2) of a prior variance of 100."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (100, 2))
    y = rng.poisson(100.0 * np.exp(X[:, 0])).astype(float)
    model = SVGPRegressor(likelihood=likelihood, n_inducing=20, random_state=0).fit(X, y)
    assert (model.predict([[200.0, 0.0], [6.0, 6.0]]) < 20.0 * y.max()).all()
    assert abs(model.predict(X).sum() / y.sum() - 1.0) < 0.02

"""Deep processes: the identities of methods.md, F.1, and what the estimators promise."""

import math

import numpy as np
import pytest
import torch
from conftest import DEEP, DEEP_DRAWS, named
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern
from torch import nn

from skgpstoch import (
    DeepGPClassifier,
    DeepGPRegressor,
    LogLoss,
    SolveGPRegressor,
    SVGPRegressor,
)
from skgpstoch.data.rows import Rows
from skgpstoch.kernels import from_sklearn
from skgpstoch.likelihoods import Gaussian
from skgpstoch.maths.gaussian import Marginals
from skgpstoch.models.calibration.square_loss import ErrorsLeftOut, leave_one_out, variance_scale
from skgpstoch.models.deep import DeepModel
from skgpstoch.models.features.inducing import InducingFeatures
from skgpstoch.models.features.orthogonal import OrthogonalFeatures
from skgpstoch.models.layers import DeepFeatures, GPLayer
from skgpstoch.models.posteriors.blocks import VariationalWeights
from skgpstoch.models.sparse import ConstantMean, SparseModel
from skgpstoch.objectives.natural import RunningObjective
from skgpstoch.objectives.optimal_q import (
    evidence_bound,
    evidence_error,
    optimal_q,
    survey,
    variances_of,
)

QUICK = {"n_inducing": 8, "max_iter": 20, "random_state": 0}
JITTER = 1e-8  # of training in float64


def normal(*shape, seed=0):
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def features(kernel, Z, O=None):  # noqa: E741
    """P of a kernel of scikit-learn's."""
    arguments = (from_sklearn(kernel), nn.Identity(), Z, torch.ones(Z.shape[1]).to(Z), Z.shape[1])
    if O is None:
        return InducingFeatures(*arguments)
    return OrthogonalFeatures(*arguments, orthogonal_points=O)


def layer(kernel, Z, O=None, n_outputs=2, noise=1e-3, prior_blocks=None):  # noqa: E741
    """One whose q(w) is something."""
    P = features(kernel, Z, O)
    blocks = prior_blocks or (False,) * len(P.blocks)
    W = torch.eye(Z.shape[1], n_outputs, dtype=torch.float64)
    made = GPLayer(P, W, noise, blocks)
    with torch.no_grad():
        made.means.copy_(normal(*made.means.shape, seed=1))
        for b, root in enumerate(made.roots):
            if not blocks[b]:
                size = root.shape[-1]
                root.copy_(0.5 * torch.eye(size) + 0.1 * normal(*root.shape, seed=b + 2).tril())
    return made


def deep_model(layers, last, noise=0.1, n_samples=1, n_nodes=64, n_outputs=1, **more):
    maps = DeepFeatures(layers, last, n_samples, n_nodes)
    mean = ConstantMean(torch.zeros(n_outputs, dtype=torch.float64))
    return DeepModel(maps, Gaussian(torch.full((n_outputs,), noise).double()), mean, **more)


@pytest.fixture
def data():
    X = normal(30, 2)
    return X, Rows(torch.sin(X.sum(1, keepdim=True)) + 0.1 * normal(30, 1, seed=9))


KERNEL = ConstantKernel(0.5) * RBF(1.3)


# ---- F1: layers ----------------------------------------------------------------------------------
@pytest.mark.parametrize("prior", [None, (False,), (False, False), (False, True)])
def test_a_layers_moments_are_those_of_the_joint_distribution(prior):
    Z, H = normal(5, 2), normal(7, 2, seed=3)
    others = None if prior is None or len(prior) == 1 else normal(4, 2, seed=4)
    made = layer(KERNEL, Z, others, 3, 1e-3, prior)
    mean, var = made.moments(H)
    points = Z if others is None else torch.cat([Z, others])
    jitter = JITTER * 0.5 * torch.eye(len(points))
    K = made.features.kernel(points) + jitter
    k = made.features.kernel(H, points)
    # u = Lw for the joint factor L of all points, which whitens Z first and then what is left of O.
    L = torch.linalg.cholesky(K)
    A = k @ torch.linalg.inv(K)
    weights = made.weights()
    for p in range(3):
        roots = [
            torch.eye(n) if R is None else R[0].double()
            for n, R in zip(made.features.blocks, weights.roots, strict=True)
        ]
        S = torch.block_diag(*(R.double() @ R.double().mT for R in roots))
        of_u = L @ S @ L.mT
        given = made.features.kernel(H).diagonal() - (A @ K * A).sum(1)
        expected = (A @ of_u * A).sum(1) + given + 1e-3
        assert_allclose(var[:, p].detach(), expected.detach(), rtol=0, atol=1e-6)
        mu = H @ made.mean_map[:, p] + A @ L @ weights.mean[:, p]
        assert_allclose(mean[:, p].detach(), mu.detach(), rtol=0, atol=1e-6)


def test_functions_that_share_a_covariance_have_the_divergence_of_copies():
    one = layer(KERNEL, normal(5, 2), n_outputs=3)
    weights, roots = one.weights(), [one.roots[0].tril().expand(3, -1, -1)]
    each = VariationalWeights(weights.mean, roots, weights.sizes)
    assert_allclose(one.kl().item(), each.kl().sum().item(), rtol=1e-12)
    basis = one.features.basis(normal(6, 2, seed=5))
    shared, copied = (w.marginals(basis.phi, basis.residual()) for w in (weights, each))
    for a, b in zip(shared, copied, strict=True):
        assert_allclose(a.detach(), b.detach(), rtol=1e-12)


def test_without_a_process_a_layer_is_its_mean():
    Z, X = normal(6, 2), normal(9, 2, seed=3)
    nothing = layer(ConstantKernel(1e-24, "fixed") * RBF(1.0), Z, noise=0.0)
    maps = DeepFeatures([nothing], features(KERNEL, Z), n_samples=3)
    shallow = features(KERNEL, Z).basis(X)
    for drawn in (generator(), None):
        basis = maps.basis(X, drawn)
        S = basis.n_samples
        assert (64 if drawn is None else 3) == S
        assert_allclose(basis.phi.detach(), shallow.phi.detach().repeat(S, 1), atol=1e-8)
        assert_allclose(basis.residual().detach(), shallow.residual().detach().repeat(S), atol=1e-8)


def test_draws_have_the_moments():
    made = layer(KERNEL, normal(5, 2))
    maps = DeepFeatures([made], features(KERNEL, normal(4, 2)))
    H = normal(3, 2, seed=8)
    with torch.no_grad():
        mean, var = made.moments(H)
        drawn, nodes = (
            maps.propagate(H, S, drawn)[-1].unflatten(0, (S, 3))
            for S, drawn in ((20_000, generator()), (1024, None))
        )
        errors = (drawn.mean(0) - mean).abs() / (var / 20_000).sqrt()
        assert errors.max() < 4
        assert_allclose(drawn.var(0), var, rtol=0.05)
        assert_allclose(nodes.mean(0), mean, atol=1e-8)
        assert_allclose(nodes.var(0), var, rtol=2e-3)


# ---- F3, F4: the bound ---------------------------------------------------------------------------
@pytest.fixture
def narrow():
    """Two layers of one function each, of one input, and a q(w)."""
    made = layer(ConstantKernel(0.3) * RBF(0.8), normal(4, 1), n_outputs=1, noise=1e-2)
    last = features(ConstantKernel(1.0) * RBF(0.9), normal(5, 1, seed=2))
    model = deep_model([made], last, noise=0.5)
    X = normal(6, 1, seed=3)
    rows = Rows(torch.cos(2 * X))
    q = model.moments(optimal_q(model, X, rows).sites)
    return model, X, rows, q


def by_quadrature(model, X, rows, q, n_nodes=300):
    """(F3), by Gauss and Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    nodes, weights = torch.from_numpy(nodes), torch.from_numpy(weights / math.sqrt(2 * math.pi))
    mean, var = model.features.inner[0].moments(X)
    H = mean + var.sqrt() * nodes  # (N, nodes)
    basis = model.features.last.basis(H.reshape(-1, 1))
    f = model.marginals(basis, q, q.products(basis.phi))
    f = Marginals(*(part.view(1, -1, 1) for part in f))
    y = rows.y.expand(-1, n_nodes).reshape(-1, 1)
    value = model.likelihood.expected_log_prob(y, f).view(-1, n_nodes)
    return (value * weights).sum() - q.kl - model.features.inner[0].kl()


@pytest.mark.slow
def test_the_bound_is_that_of_quadrature_and_gradients_are_unbiased(narrow):
    model, X, rows, q = narrow
    parameters = [p for p in model.features.parameters() if p.requires_grad]
    exact = by_quadrature(model, X, rows, q)
    wanted = torch.autograd.grad(exact, parameters)
    objective = RunningObjective(model, len(X), conjugate=True)
    objective.keep(q)
    objective.average_conjugate = lambda *_: None  # q(w) is given
    values, gradients = [], []
    model.features.n_samples = 50
    for seed in range(100):
        loss = -len(X) * objective(X, rows, generator(seed))
        values.append(loss.item())
        grads = torch.autograd.grad(loss, parameters)
        gradients.append(torch.cat([g.flatten() for g in grads]))
    values, gradients = np.array(values), torch.stack(gradients)
    assert abs(values.mean() - exact.item()) < 4 * values.std() / 10
    wanted = torch.cat([g.flatten() for g in wanted])
    errors = (gradients.mean(0) - wanted).abs() / (gradients.std(0) / 10 + 1e-9)
    assert errors.max() < 4.5  # of some forty numbers


def test_nodes_are_close_to_quadrature(narrow):
    model, X, rows, q = narrow
    exact = by_quadrature(model, X, rows, q).item()
    model.features.n_nodes = 1024
    found = evidence_bound(model, X, rows, q).item()
    assert abs(found - exact) < 1e-3 * len(X)
    assert evidence_error(model, X, rows, q) > 0


def test_the_closed_form_is_the_best_and_its_value_is_the_bound(data):
    X, rows = data
    model = deep_model([layer(KERNEL, X[:6])], features(KERNEL, X[:8]))
    found = optimal_q(model, X, rows)
    value, _ = survey(model, X, rows, found.q, exact=True)
    assert_allclose(found.value.item(), (value - model.penalty()).item(), rtol=1e-10)  # (F6)
    for seed in range(5):
        step = 1e-2 * normal(*found.q.mean.shape, seed=seed)
        m = found.q.mean + step
        kl = found.q.kl + 0.5 * (m.square().sum() - found.q.mean.square().sum())
        worse, _ = survey(model, X, rows, found.q._replace(mean=m, kl=kl), exact=True)
        assert worse < value


@pytest.mark.parametrize("n_inner", [0, 1])
def test_variances_that_are_known_are_those_of_any_mean(data, n_inner):
    X, rows = data
    model = deep_model([layer(KERNEL, X[:6])] * n_inner, features(KERNEL, X[:8]))
    like = optimal_q(model, X, rows).q
    q = like._replace(mean=like.mean + normal(*like.mean.shape))
    value, sites = survey(model, X, rows, q, True, variances_of(model, X, rows, like))
    expected, expected_sites = survey(model, X, rows, q, True)
    assert_allclose(value.item(), expected.item(), rtol=1e-12)
    for a, b in zip(sites, expected_sites, strict=True):
        assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_copies_of_rows_that_count_for_less_change_nothing(data):
    X, rows = data
    model = SparseModel(
        features(KERNEL, X[:8]), Gaussian(), ConstantMean(torch.zeros(1, dtype=torch.float64))
    )
    once = optimal_q(model, X, rows)
    often = optimal_q(model, X.repeat(3, 1), rows.repeated(3))
    assert_allclose(once.q.mean, often.q.mean, rtol=1e-9)
    assert_allclose(once.value.item(), often.value.item(), rtol=1e-12)
    assert rows.repeated(1) is rows


def test_bounds_grow_with_orthogonal_points(data):
    X, rows = data
    inner, Z, others = layer(KERNEL, X[:6]), X[:5], X[5:10]
    sizes = (Z, None), (Z, others), (torch.cat([Z, others]), None)
    values = [
        optimal_q(deep_model([inner], features(KERNEL, *points)), X, rows).value for points in sizes
    ]
    assert values[0] <= values[1] + 1e-8
    assert values[1] <= values[2] + 1e-8


def test_a_rotation_of_an_isotropic_kernels_inputs_changes_nothing(data):
    X, rows = data
    Q, _ = torch.linalg.qr(normal(2, 2, seed=5))
    nothing = layer(ConstantKernel(1e-24, "fixed") * RBF(1.0), X[:6], noise=0.0)
    nothing.mean_map = Q
    rotated = optimal_q(deep_model([nothing], features(KERNEL, X[:6] @ Q)), X, rows).value
    shallow = SparseModel(
        features(KERNEL, X[:6]), Gaussian(0.1), ConstantMean(torch.zeros(1, dtype=torch.float64))
    )
    kl = nothing.kl().item()
    assert_allclose(rotated.item() + kl, optimal_q(shallow, X, rows).value.item(), rtol=1e-7)


# ---- F7: the log-loss of mixtures ----------------------------------------------------------------
def test_the_log_loss_of_draws_is_that_of_their_mixture():
    S, N = 4, 5
    likelihood, loss = Gaussian(0.3), LogLoss()
    y = normal(N, 1, seed=7)
    mean = normal(S * N, 1).requires_grad_()
    var = (0.1 + normal(S * N, 1, seed=1).square()).requires_grad_()
    rows = Rows(y).repeated(S)

    def mixed(mean, var):
        q = Marginals(mean.view(S, N, 1), var.view(S, N, 1))
        return likelihood.log_predictive(y, q).sum()

    term = loss.expected_score(rows.y, likelihood, Marginals(mean[None], var[None]), var[:, 0])
    term = loss.of_samples(term, S).weighted(rows)
    assert_allclose(term.value.sum().item(), mixed(mean, var).item(), rtol=1e-6)
    of_mean, of_var = torch.autograd.grad(mixed(mean, var), (mean, var))
    assert_allclose(term.mean.detach(), of_mean, rtol=1e-6, atol=1e-9)
    assert_allclose(term.explained.detach(), of_var, rtol=1e-6, atol=1e-9)
    noise = likelihood.log_noise
    a, b = (torch.autograd.grad(v, noise)[0] for v in (term.value.sum(), mixed(mean, var)))
    assert_allclose(a, b, rtol=1e-6)


# ---- estimators ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def step():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (120, 2))
    return X, np.sign(X[:, 0]) + 0.1 * rng.standard_normal(120)


@pytest.fixture(scope="module")
def fitted(step):
    return DeepGPRegressor(**QUICK, posterior="solve").fit(*step)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["svgp", "solve"])
def test_a_single_layer_is_a_shallow_model(step, posterior):
    X, y = step
    options = {"n_inducing": 8, "max_iter": 20, "random_state": 0}
    options |= {"solver": "collapsed", "kernel": Matern(nu=1.5)}
    deep = DeepGPRegressor(n_layers=1, posterior=posterior, **options).fit(X, y)
    shallow = (SVGPRegressor if posterior == "svgp" else SolveGPRegressor)(**options).fit(X, y)
    assert deep.elbo_ == shallow.log_marginal_likelihood_value_
    assert deep.elbo_std_ == 0
    assert deep.kernel_ == shallow.kernel_
    for ours, theirs in zip(deep.predict(X, True), shallow.predict(X, True), strict=True):
        assert_array_equal(ours, theirs)
    assert deep.hidden(X) == []


@pytest.mark.slow
def test_predictions_do_not_depend_on_blocks_or_calls(fitted, step):
    X, _ = step
    mean, std = fitted.predict(X, return_std=True)
    again = [fitted.predict(X[i : i + 1], return_std=True) for i in range(5)]
    assert_allclose(mean[:5], [m[0] for m, _ in again], rtol=1e-10)
    assert_allclose(std[:5], [s[0] for _, s in again], rtol=1e-10)
    assert_array_equal(mean, fitted.predict(X))


@pytest.mark.slow
def test_covariances_and_draws_are_those_of_the_marginals(fitted, step):
    X = step[0][:12]
    mean, std = fitted.predict(X, return_std=True)
    same, cov = fitted.predict(X, return_cov=True)
    assert_allclose(same, mean)
    assert_allclose(np.sqrt(np.diag(cov)), std, rtol=1e-9)
    assert np.linalg.eigvalsh(cov).min() > 0
    draws = fitted.sample_y(X, 200)
    assert np.abs(draws.mean(1) - mean).max() < 0.3 * std.max()
    assert_allclose(draws.std(1), std, rtol=0.25)
    low, high = fitted.predict_interval(X, 0.8, latent=True).T
    inside = (fitted.sample_y(X, 200, latent=True) > low[:, None]).mean()
    assert 0.85 < inside < 0.95
    assert (high > low).all()


@pytest.mark.slow
def test_layers_are_known(fitted, step):
    X, _ = step
    ((mean, std),) = fitted.hidden(X)
    assert mean.shape == std.shape == (120, 2)
    assert (std > 0).all()
    first, last = fitted.layers_
    assert first.mean.shape == (16, 2)
    assert_allclose(first.mean_map, np.eye(2))
    assert last.kernel == fitted.kernel_
    assert first.inducing_points.shape == last.orthogonal_points.shape == (8, 2)
    assert np.abs(first.inducing_points).max() < 1.5  # in the units of X
    assert 0 < fitted.elbo_std_ < 30
    assert fitted.elbo_ == fitted.log_marginal_likelihood_value_


@pytest.mark.parametrize(
    "params",
    [
        {"solver": "adam"},
        {"solver": "adam", "posterior": "odvgp", "whiten": False},
        {"solver": "natural", "posterior": "odvgp"},
        {"loss": "log", "n_samples": 3},
        {"loss": "square"},
        {"likelihood": "student_t"},
        {"n_layers": 3, "hidden_dims": [1, 4]},
        {"hidden_kernel": Matern(nu=2.5)},
        {"early_stopping": True},
        {"dtype": "float64", "inducing_points": "conditional_variance"},
    ],
    ids=str,
)
def test_every_choice_fits(step, params):
    X, y = step
    model = DeepGPRegressor(**{**QUICK, "max_iter": 5, **params}).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert np.isfinite(model.log_predictive_density(X, y)).all()


@pytest.mark.slow
@pytest.mark.parametrize("cls", DEEP, ids=named)
@by_default("DeepGPRegressor")
def test_the_same_seed_is_the_same_model_and_training_goes_on(step, cls):
    X, y = step
    y = y > 0 if cls is DeepGPClassifier else y
    one, other = (cls(**{**QUICK, "max_iter": 10}, warm_start=True).fit(X, y) for _ in range(2))
    assert_array_equal(one.loss_curve_, other.loss_curve_)
    before = one.loss_curve_[-1]
    assert one.fit(X, y).loss_curve_[0] < other.loss_curve_[0]
    assert np.isfinite(before)
    streamed = cls(**QUICK)
    for _ in range(3):
        streamed.partial_fit(X, y)
    assert streamed.score(X, y) > 0.3


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_layers": 0}, "n_layers"),
        ({"n_layers": True}, "'n_layers' parameter"),
        ({"hidden_dims": True}, "'hidden_dims' parameter"),
        ({"n_samples": True}, "'n_samples' parameter"),
        ({"hidden_dims": [3, 3]}, "hidden_dims must be a positive integer or a list of 1"),
        ({"hidden_dims": [[3]]}, "hidden_dims must be positive integers"),
        ({"hidden_dims": [2.5]}, "hidden_dims"),
        (
            {"hidden_kernel": RBF([1.0, 2.0, 3.0])},
            "hidden_kernel has 3 length-scales, but an input of the hidden layer has",
        ),
        ({"solver": "lbfgs"}, "solver"),
        ({"n_orthogonal": 5}, "n_orthogonal must have its default value with posterior='svgp'"),
    ],
    ids=str,
)
def test_wrong_parameters_are_named(step, params, message):
    with pytest.raises(ValueError, match=message):
        DeepGPRegressor(**{**QUICK, **params}).fit(*step)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "params"),
    [
        ([0, 1], {"n_layers": 3, "hidden_dims": [1, 2]}),
        ([0, 1, 2, 2, 2], {}),
    ],
    ids=str,
)
@by_default("2, 2, 2")
def test_functions_without_an_input_of_their_own_do_no_harm(step, columns, params):
    X, y = step
    X = np.c_[X, np.zeros(len(X))][:, columns]
    model = DeepGPRegressor(**{**QUICK, "max_iter": 100, **params}).fit(X, y)
    assert model.score(X, y) > 0.9


@pytest.mark.slow
def test_a_constant_is_a_constant(step):
    _, y = step
    X = np.ones((120, 3))
    model = DeepGPRegressor(**{**QUICK, "max_iter": 120}).fit(X, y)
    mean, std = model.predict(X[:2], return_std=True)
    assert_allclose(mean, y.mean(), atol=0.1)
    assert_allclose(std, y.std(), rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["solve", "odvgp"])
@slow_cases("solve")
def test_a_warm_start_goes_on_with_the_points_that_there_are(step, posterior):
    X, y = step
    model = DeepGPRegressor(**QUICK, warm_start=True, posterior=posterior).fit(X, y)
    noise = model.posterior_.features.inner[0].noise
    with pytest.warns(UserWarning, match="6 rows are too few"):
        model.fit(X[:6], y[:6])
    assert model.posterior_.features.n_nodes == DEEP_DRAWS
    assert {part.jitter for part in model.posterior_.features.each[:-1]} == {1e-5}
    assert model.posterior_.features.inner[0].noise == noise
    assert model.layers_[0].inducing_points.shape == (8, 2)
    with pytest.raises(ValueError, match="hidden_dims=1"):
        model.set_params(hidden_dims=1).fit(X, y)


@pytest.mark.slow
def test_the_square_loss_has_variances_of_the_mixture(step):
    X, y = step
    model = DeepGPRegressor(**{**QUICK, "max_iter": 60}, loss="square").fit(X[:80], y[:80])
    mean, std = model.predict(X[80:], return_std=True)
    assert 0.3 < np.mean(np.square((y[80:] - mean) / std)) < 3


def test_rows_left_out_are_those_of_fits_without_them(data):
    X, rows = data
    model = deep_model([layer(KERNEL, X[:6])], features(KERNEL, X[:8]), n_nodes=4).requires_grad_(
        False
    )
    rows = Rows(rows.y[:5])
    X = X[:5]
    found = optimal_q(model, X, rows)
    joint, noise = model.moments(found.sites), model.site_noise
    basis, block = next(model.bases(X, rows))
    q = model.marginals(basis, joint, joint.products(basis.phi))
    left_out = leave_one_out(basis, block.y, q, joint, noise, torch.ones(5, 1))
    square, var, spread, _ = left_out
    for i in range(5):
        others = torch.arange(5) != i
        without = model.moments(optimal_q(model, X[others], Rows(rows.y[others])).sites)
        basis, _ = next(model.bases(X[i : i + 1], Rows(rows.y[i : i + 1])))
        p = model.marginals(basis, without, without.products(basis.phi))
        error = rows.y[i] - p.mean[0]
        assert_allclose(square[i].detach(), error.mean(0).detach() ** 2, rtol=1e-6)
        assert_allclose(var[i].detach(), (p.var[0].mean(0) + noise).detach(), rtol=1e-6)
        assert_allclose(spread[i].detach(), error.var(0, correction=0).detach(), rtol=1e-6)
    scale = variance_scale(
        [ErrorsLeftOut(*(a[:2] for a in left_out)), ErrorsLeftOut(*(a[2:] for a in left_out))]
    )
    assert_allclose((square / (scale * var + spread)).mean().detach(), 1.0, rtol=1e-6)


def test_held_out_squares_are_of_the_mean_of_the_mixture():
    q = Marginals(torch.tensor([[[1.0]], [[-1.0]]]).double(), torch.full((2, 1, 1), 0.1).double())
    assert Gaussian().squared_error(torch.zeros(1, 1).double(), q) == 0.0


def test_deep_models_have_constant_noise():
    with pytest.raises(TypeError, match="'noise'"):
        DeepGPRegressor(noise="input")


def test_hidden_needs_a_fit(step):
    with pytest.raises(NotFittedError):
        DeepGPRegressor().hidden(step[0])


def test_hidden_layers_are_not_silently_nan():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    model = DeepGPRegressor(n_inducing=5, max_iter=1, random_state=0).fit(X, X[:, 0])
    model._x_scaling = model._x_scaling._replace(scale=np.full(2, 5e-324))  # as in an edited file
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="predicts nan for"):
        model.hidden(X[:3])

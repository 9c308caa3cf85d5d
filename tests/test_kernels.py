"""Torch kernels against scikit-learn's own."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor as SklearnGP
from sklearn.gaussian_process import kernels as sk
from torch.func import functional_call

from skgpstoch import (
    GaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
    SVGPRegressor,
    kernels,
    load,
)
from skgpstoch.kernels import (
    TiedKernel,
    expressions,
    from_sklearn,
    join_white_noise,
    matrices,
    split_white_noise,
    to_sklearn,
)
from skgpstoch.models.features.fourier import has_features

D = 3
MATERN_NU = (0.5, 1.5, 2.5, math.inf)
STATIONARY = [
    sk.RBF(0.7),
    sk.RBF([1.3]),  # one entry: isotropic in scikit-learn
    sk.RBF([0.5, 1.0, 2.0]),
    *(sk.Matern(0.8, nu=nu) for nu in MATERN_NU),
    *(sk.Matern([0.5, 1.0, 2.0], nu=nu) for nu in MATERN_NU),
    sk.RationalQuadratic(0.9, alpha=1.7),
    sk.ExpSineSquared(1.2, periodicity=2.3),
]
LEAVES = [*STATIONARY, sk.DotProduct(0.6), sk.ConstantKernel(2.5), sk.WhiteKernel(0.3)]
FIXED = [
    sk.RBF([0.5, 1.0, 2.0], "fixed"),
    sk.RationalQuadratic(0.9, 1.7, alpha_bounds="fixed"),
    sk.ExpSineSquared(1.2, 2.3, length_scale_bounds="fixed"),
    sk.DotProduct(0.0, "fixed"),
]


def random_expression(rng, depth=3):
    """A random tree over all leaves, some of them fixed, and all operators."""
    if depth == 0 or rng.random() < 0.15:
        pool = LEAVES + FIXED
        return copy.deepcopy(pool[rng.integers(len(pool))])
    operator = rng.integers(5)
    if operator == 0:
        return random_expression(rng, depth - 1) ** 2
    k1, k2 = random_expression(rng, depth - 1), random_expression(rng, depth - 1)
    return k1 + k2 if operator < 3 else k1 * k2


LP = sk.ExpSineSquared(0.7, 1.3) * sk.RBF(0.7)  # of one length-scale, tied
TIED = [
    2.0 * TiedKernel(LP, [("k1__length_scale", "k2__length_scale")]),
    TiedKernel(
        sk.RBF([0.5, 1.0, 2.0]) + 0.4 * sk.Matern([0.5, 1.0, 2.0], nu=1.5) + 0.4,
        [("k1__k2__k2__length_scale", "k1__k1__length_scale"), ("k2__constant_value",)],
    )
    + sk.RBF(),
    TiedKernel(
        sk.RBF(0.5, "fixed") * sk.DotProduct(0.3) + sk.RBF(0.5, "fixed"),
        [("k1__k1__length_scale", "k2__length_scale")],
    ),
]
EXPRESSIONS = [
    *TIED,
    sk.RationalQuadratic(0.9, 1.7) ** 1.5,
    *(random_expression(np.random.default_rng(seed)) for seed in range(20)),
]
KERNELS = LEAVES + FIXED + EXPRESSIONS
parametrize_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: str(k)[:60])


@pytest.fixture(name="X")
def fixture_x():
    return np.random.default_rng(0).normal(size=(7, D))


@pytest.fixture(name="Y")
def fixture_y():
    return np.random.default_rng(1).normal(size=(5, D))


def theta_jacobian(module, X):
    """∂k(X)/∂theta by autograd, (N, N, n_dims)."""
    names, parameters = zip(
        *((name, p.detach()) for name, p in module.named_parameters()), strict=True
    )

    def covariance(*values):
        return functional_call(module, dict(zip(names, values, strict=True)), (X,))

    jacobian = torch.autograd.functional.jacobian(covariance, parameters)
    return torch.cat([J.reshape(len(X), len(X), -1) for J in jacobian], dim=2)


@parametrize_kernel
def test_values_equal_sklearn(kernel, X, Y):
    module = from_sklearn(kernel)
    x, y = torch.tensor(X), torch.tensor(Y)
    tolerance = {"rtol": 1e-10, "atol": 1e-10}
    assert_allclose(module(x).detach(), kernel(X), **tolerance)
    assert_allclose(module(x, y).detach(), kernel(X, Y), **tolerance)
    assert_allclose(module.diag(x).detach(), kernel.diag(X), **tolerance)
    assert_allclose(module.diag(x).detach(), module(x).diagonal().detach(), **tolerance)


@parametrize_kernel
def test_theta_gradient_equals_sklearn(kernel, X):
    module = from_sklearn(kernel)
    _, expected = kernel(X, eval_gradient=True)  # (N, N, n_dims)
    if kernel.n_dims == 0:
        assert not module(torch.tensor(X)).requires_grad
        return
    assert_allclose(theta_jacobian(module, torch.tensor(X)), expected, rtol=1e-10, atol=1e-10)


@parametrize_kernel
def test_theta_and_bounds_equal_sklearn(kernel):
    module = from_sklearn(kernel)
    assert_allclose(module.theta.detach(), kernel.theta, rtol=1e-14, atol=1e-14)
    assert_allclose(module.bounds, kernel.bounds.reshape(-1, 2), rtol=1e-14)
    assert sum(p.numel() for p in module.parameters()) == kernel.n_dims


def test_parameters_are_in_the_order_of_theta():
    kernel = sk.ExpSineSquared(2.0, 3.0) + sk.RationalQuadratic(5.0, 7.0) * sk.RBF([11.0, 13.0])
    module = from_sklearn(kernel)
    assert_allclose(module.theta.exp().detach(), [2.0, 3.0, 7.0, 5.0, 11.0, 13.0])
    vector = torch.nn.utils.parameters_to_vector(module.parameters())
    assert torch.equal(module.theta, vector)


@parametrize_kernel
def test_round_trip(kernel):
    fitted = to_sklearn(from_sklearn(kernel))
    assert fitted is not kernel
    assert fitted.hyperparameters == kernel.hyperparameters  # names, bounds, fixed, in order
    assert_allclose(fitted.theta, kernel.theta, rtol=1e-12, atol=1e-12)
    before, after = kernel.get_params(), fitted.get_params()
    assert before.keys() == after.keys()
    for name, value in before.items():
        if name.endswith("ties"):
            assert after[name] == value
        elif isinstance(value, (float, list)):
            assert_allclose(np.squeeze(after[name]), np.squeeze(value), rtol=1e-12)


@parametrize_kernel
def test_round_trip_of_changed_values(kernel, X):
    theta = np.random.default_rng(2).normal(scale=0.3, size=kernel.n_dims)
    module = from_sklearn(kernel)
    torch.nn.utils.vector_to_parameters(torch.tensor(theta), module.parameters())
    fitted = to_sklearn(module)
    assert_allclose(fitted.theta, theta, rtol=1e-12, atol=1e-12)
    assert_allclose(module(torch.tensor(X)).detach(), fitted(X), rtol=1e-10, atol=1e-10)


def test_original_kernel_is_left_alone():
    kernel = 2.0 * sk.RBF([1.0, 2.0])
    module = from_sklearn(kernel)
    with torch.no_grad():
        module.k2.log_length_scale.add_(1.0)
    to_sklearn(module)
    assert_array_equal(kernel.k2.length_scale, [1.0, 2.0])
    kernel.k1.constant_value = 5.0
    assert to_sklearn(module).k1.constant_value == pytest.approx(2.0, rel=1e-12)


def test_sub_kernels_convert_on_their_own():
    module = from_sklearn((sk.RBF(2.0) + sk.DotProduct(3.0)) ** 2)
    assert isinstance(module, kernels.Exponentiation)
    assert module.exponent == 2
    assert to_sklearn(module.kernel.k2) == sk.DotProduct(to_sklearn(module).kernel.k2.sigma_0)


def test_same_object_twice_gives_two_parameters():
    rbf = sk.RBF(1.0)
    module = from_sklearn(rbf + rbf)
    assert module.theta.shape == (2,)


def test_fixed_hyperparameters_are_buffers():
    module = from_sklearn(sk.RationalQuadratic(0.9, 1.7, alpha_bounds="fixed"))
    assert [name for name, _ in module.named_parameters()] == ["log_length_scale"]
    assert set(module.state_dict()) == {"log_length_scale", "log_alpha"}
    with torch.no_grad():
        module.log_length_scale.add_(1.0)
    fitted = to_sklearn(module)
    assert fitted.alpha == 1.7
    assert fitted.length_scale == pytest.approx(0.9 * math.e, rel=1e-12)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (sk.RBF([1.0, 2.0]), {"length_scale": [1.0, 2.0]}),
        (sk.Matern(3.0, nu=2.5), {"length_scale": 3.0, "nu": 2.5}),
        (sk.RationalQuadratic(3.0, 4.0), {"length_scale": 3.0, "alpha": 4.0}),
        (sk.ExpSineSquared(3.0, 4.0), {"length_scale": 3.0, "periodicity": 4.0}),
        (sk.DotProduct(3.0), {"sigma_0": 3.0}),
        (sk.ConstantKernel(3.0), {"constant_value": 3.0}),
        (sk.WhiteKernel(3.0), {"noise_level": 3.0}),
    ],
    ids=str,
)
def test_values_are_properties(kernel, expected):
    for name, value in expected.items():
        actual = torch.as_tensor(getattr(from_sklearn(kernel), name)).detach()
        assert actual.shape == np.shape(value)
        assert_allclose(actual, value, rtol=1e-14)


@pytest.mark.slow
def test_clamp_projects_onto_the_bounds():
    kernel = sk.RBF([1.0, 2.0, 3.0], [(0.5, 2.0), (1.0, 4.0), (1.0, 9.0)]) * sk.ConstantKernel(
        1.0, (0.0, 10.0)
    )
    module = from_sklearn(kernel + sk.WhiteKernel(7.0, "fixed"))
    parameters = list(module.parameters())
    optimiser = torch.optim.SGD(parameters, lr=1.0)
    for parameter, gradient in zip(parameters, ([9.0, -9.0, 0.0], -9.0), strict=True):
        parameter.grad = torch.tensor(gradient, dtype=parameter.dtype)
    optimiser.step()
    module.clamp_()
    assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))
    assert_allclose(module.theta.exp().detach(), [0.5, 4.0, 3.0, 10.0], rtol=1e-14)
    assert module.k2.noise_level == pytest.approx(7.0)


def test_zero_values_and_lower_bounds(X):
    """Free values at 0 have theta = -inf; clamp_ lifts them to a positive lower bound."""
    kernel = sk.DotProduct(0.0, (1e-3, 1.0)) + sk.ConstantKernel(0.0, (0.0, 1.0))
    module = from_sklearn(kernel)
    assert_allclose(module(torch.tensor(X)).detach(), X @ X.T, rtol=1e-12, atol=1e-12)
    assert to_sklearn(module).k1.sigma_0 == 0.0
    module(torch.tensor(X)).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())
    module.clamp_()
    assert_allclose(module.theta.exp().detach(), [1e-3, 0.0], rtol=1e-12)


def test_white_noise_is_on_the_diagonal_of_k_x_only(X):
    x = torch.tensor(X)
    module = from_sklearn(sk.ConstantKernel(1.0) + sk.WhiteKernel(0.5))
    assert_array_equal(module(x).detach(), 1 + 0.5 * np.eye(len(X)))
    assert_array_equal(module(x, x).detach(), np.ones((len(X), len(X))))


@pytest.mark.parametrize("kernel", [*STATIONARY, sk.DotProduct(0.6)], ids=str)
def test_input_gradients(kernel, X, Y):
    module = from_sklearn(kernel).requires_grad_(False)
    x, y = torch.tensor(X, requires_grad=True), torch.tensor(Y, requires_grad=True)
    assert torch.autograd.gradcheck(module, (x, y))
    assert torch.autograd.gradcheck(module, (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [*LEAVES, *EXPRESSIONS], ids=lambda k: str(k)[:60])
def test_gradients_at_coincident_points_are_finite(kernel, dtype, X):
    x = torch.tensor(np.repeat(X, 2, axis=0), dtype=dtype, requires_grad=True)
    module = from_sklearn(kernel, dtype)
    loss = module(x).sum() + module(x, x[::3].detach().clone()).sum() + 0 * x.sum()
    loss.backward()
    for leaf in (x, *module.parameters()):
        assert torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize("kernel", STATIONARY, ids=str)
def test_gradient_at_zero_distance_is_zero(kernel):
    x = torch.full((1, D), 0.3, dtype=torch.float64, requires_grad=True)
    module = from_sklearn(kernel)
    module(x, torch.full((1, D), 0.3, dtype=torch.float64)).sum().backward()
    for leaf in (x, *module.parameters()):
        assert_array_equal(leaf.grad, np.zeros(leaf.shape))


@pytest.mark.parametrize("kernel", STATIONARY, ids=str)
def test_diagonal_is_exactly_one(kernel, X):
    K = from_sklearn(kernel)(torch.tensor(X + 100.0))
    assert_array_equal(K.diagonal().detach(), np.ones(len(X)))


@pytest.mark.parametrize("kernel", STATIONARY, ids=str)
def test_translation_invariance(kernel, X, Y):
    X, Y = np.round(X * 2**10) / 2**10, np.round(Y * 2**10) / 2**10  # the shift is exact
    x, y = torch.tensor(X + 2**20), torch.tensor(Y + 2**20)
    module = from_sklearn(kernel)
    assert_allclose(module(x, y).detach(), kernel(X, Y), rtol=1e-10, atol=1e-10)
    assert_allclose(module(x).detach(), kernel(X), rtol=1e-10, atol=1e-10)


def test_float32_far_from_the_origin():
    rng = np.random.default_rng(3)
    X, Y = ((1e4 + rng.normal(size=(n, D))).astype(np.float32) for n in (40, 30))
    for kernel in STATIONARY:
        module = from_sklearn(kernel, torch.float32)
        K = module(torch.tensor(X), torch.tensor(Y))
        assert K.dtype == torch.float32
        expected = kernel(X.astype(float), Y.astype(float))
        assert_allclose(K.detach(), expected, atol=2e-6)


def test_float32_over_many_length_scales():
    """Neighbours in a long series: ‖x‖² / ℓ² = 10⁸ must not drown (x − y)² / ℓ² = 10⁻²."""
    X = np.linspace(0, 2e4, 200_001)[:300, None].astype(np.float32)
    X = np.concatenate([X, [[2e4]]]).astype(np.float32)
    for kernel in (sk.RBF(1.0), sk.Matern(1.0, nu=0.5), sk.ExpSineSquared(1.0, 7.0)):
        K = from_sklearn(kernel)(torch.tensor(X), torch.tensor(X[:-1])).detach()
        assert_allclose(K, kernel(X.astype(float), X[:-1].astype(float)), atol=1e-5)


@parametrize_kernel
def test_covariances_have_the_dtype_of_the_inputs(kernel, X, Y):
    for parameter_dtype in (torch.float32, torch.float64):
        module = from_sklearn(kernel, parameter_dtype)
        for dtype in (torch.float32, torch.float64):
            x, y = torch.tensor(X, dtype=dtype), torch.tensor(Y, dtype=dtype)
            assert {module(x).dtype, module(x, y).dtype, module.diag(x).dtype} == {dtype}
        assert all(t.dtype == parameter_dtype for t in module.state_dict().values())


def test_diag_does_not_form_the_matrix():
    x = torch.zeros(200_000, D)  # the matrix would take 160 GB
    module = from_sklearn((sk.RBF() * sk.DotProduct() + sk.WhiteKernel()) ** 2)
    assert module.diag(x).shape == (200_000,)


def test_survives_pickle_and_deepcopy(X):
    module = from_sklearn(2.0 * sk.RBF([1.0, 2.0, 3.0]) + sk.WhiteKernel())
    x = torch.tensor(X)
    for twin in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert torch.equal(twin(x), module(x))
        assert torch.equal(twin.bounds, module.bounds)
        assert to_sklearn(twin) == to_sklearn(module)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@parametrize_kernel
def test_cuda_equals_cpu(kernel, X, Y):
    module = from_sklearn(kernel).to("cuda")
    x, y = torch.tensor(X, device="cuda"), torch.tensor(Y, device="cuda")
    assert_allclose(module(x).detach().cpu(), kernel(X), rtol=1e-10, atol=1e-10)
    assert_allclose(module(x, y).detach().cpu(), kernel(X, Y), rtol=1e-10, atol=1e-10)
    assert_allclose(module.diag(x).detach().cpu(), kernel.diag(X), rtol=1e-10, atol=1e-10)
    module.clamp_()
    assert_allclose(to_sklearn(module).theta, kernel.theta, rtol=1e-12, atol=1e-12)


class MyRBF(sk.RBF):
    """A user's kernel that an isinstance check would take for an RBF."""


@pytest.mark.parametrize(
    "kernel",
    [
        MyRBF(),
        sk.RBF() + MyRBF(),
        sk.PairwiseKernel(),
        sk.CompoundKernel([sk.RBF()]),
        sk.RBF() * sk.PairwiseKernel(),
        None,
        "rbf",
    ],
)
def test_unsupported_kernels(kernel):
    with pytest.raises(TypeError, match=r"RBF, Matern, .*WhiteKernel, Sum, .*got "):
        from_sklearn(kernel)


def test_class_instead_of_instance():
    with pytest.raises(TypeError, match="an instance, got the class RBF"):
        from_sklearn(sk.RBF)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (sk.Matern(nu=2.0), "nu of Matern must be 0.5, 1.5, 2.5 or inf, got 2.0"),
        (sk.RBF(0.0), "length_scale of RBF must be positive, got 0.0"),
        (sk.RBF([1.0, -1.0]), "length_scale of RBF must be positive"),
        (sk.ConstantKernel(-1.0), "constant_value of ConstantKernel must be non-negative"),
        (sk.WhiteKernel(math.nan), "noise_level of WhiteKernel must be non-negative, got nan"),
        (sk.RationalQuadratic([1.0, 2.0]), "length_scale of RationalQuadratic must be a scalar"),
        (sk.ExpSineSquared(1.0, [1.0, 2.0]), "periodicity of ExpSineSquared must be a scalar"),
    ],
)
def test_unsupported_values(kernel, message):
    with pytest.raises(ValueError, match=message):
        from_sklearn(kernel)


def test_column_mismatch(X):
    module = from_sklearn(sk.RBF([1.0, 2.0]))
    with pytest.raises(ValueError, match="kernel has 2 length-scales, but X has 3 columns"):
        module(torch.tensor(X))
    with pytest.raises(ValueError, match="X has 1 columns, but Y has 3"):
        from_sklearn(sk.RBF())(torch.tensor(X[:, :1]), torch.tensor(X))


W = sk.WhiteKernel(0.2, (1e-3, 3.0))
A, B, C = sk.RBF(2.0), 3.0 * sk.Matern(1.5), sk.DotProduct(0.5)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (A + W, A),
        (W + A, A),
        (A + W + B, A + B),
        ((A + B) + (C + W), (A + B) + C),
        ((W + A) + (B + C), A + (B + C)),
        (A + (B + (W + C)), A + (B + C)),
        (A * W + W + C, A * W + C),
    ],
    ids=str,
)
def test_split_and_join_white_noise(kernel, expected):
    before = str(kernel)
    rest, white = split_white_noise(kernel)
    assert str(rest) == str(expected)  # == of sklearn's sums ignores the order
    assert rest == expected
    assert white is W
    joined = join_white_noise(rest, 0.7, white)
    assert str(joined) == f"{expected} + WhiteKernel(noise_level=0.7)"
    assert joined.k2.noise_level_bounds == W.noise_level_bounds
    assert str(kernel) == before


@pytest.mark.parametrize("kernel", [A, A + B, A * W, (A + W) ** 2, A * (B + W)], ids=str)
def test_split_without_top_level_white_noise(kernel):
    rest, white = split_white_noise(kernel)
    assert rest is kernel
    assert white is None
    assert join_white_noise(rest, 0.7, white) is kernel


def test_split_errors():
    with pytest.raises(ValueError, match="at most one additive WhiteKernel, got 2"):
        split_white_noise(W + A + sk.WhiteKernel())
    with pytest.raises(ValueError, match="at most one additive WhiteKernel, got 2"):
        split_white_noise(W + sk.WhiteKernel())
    with pytest.raises(ValueError, match="a term besides the WhiteKernel"):
        split_white_noise(W)


# ---- kernels of one's own
class Cauchy(sk.RBF):
    """1/(1 + r²), as the user writes it."""

    def __call__(self, X, Y=None, eval_gradient=False):
        return 1.0 / (1.0 - 2.0 * np.log(super().__call__(X, Y)))


class TorchCauchy(kernels.Radial):
    """The same in torch."""

    @property
    def profile(self):
        return lambda r2: (1.0 / (1.0 + r2), -((1.0 + r2) ** -2.0))


@pytest.mark.slow
def test_a_kernel_that_is_a_profile(monkeypatch, X):
    """It has all but random features, of which its spectral density is not known."""
    monkeypatch.setitem(expressions.MODULES, Cauchy, TorchCauchy)
    kernel = 2.0 * Cauchy(0.7)
    module = from_sklearn(kernel)
    assert_allclose(module(torch.tensor(X)).detach(), kernel(X), rtol=1e-10)
    assert not has_features(module)
    y = np.sin(X[:, 0])
    model = SVGPRegressor(kernel, n_inducing=5, max_iter=5, random_state=0)
    with pytest.warns(UserWarning, match=f"{len(X)} rows are too few"):
        model.fit(X, y)
    assert isinstance(model.kernel_.k2, Cauchy)
    assert model.kernel_ != kernel
    assert np.isfinite(model.predict(X)).all()
    with pytest.raises(TypeError, match="TorchCauchy has no finite features"):
        SCGDGaussianProcessRegressor(kernel, hidden_layer_sizes=(), random_state=0).fit(X, y)


def test_a_radial_kernel_needs_a_profile():
    class Unknown(kernels.Radial):
        pass

    with pytest.raises(NotImplementedError, match="Unknown must define nu or profile"):
        Unknown(sk.RBF())(torch.zeros(2, 1))


# ---- covariances of all rows, and traces of their gradients --------------------------------------

C = sk.ConstantKernel
SUMS_OF_PRODUCTS = [
    *LEAVES[:-2],
    *FIXED,
    2.0 * sk.RBF([0.5, 1.0, 2.0]) + sk.WhiteKernel(0.3),
    C(2.0) * C(0.5, "fixed") * sk.Matern([0.5, 1.0, 2.0], nu=1.5) + sk.DotProduct(0.4) + C(0.7),
    sk.RBF(0.7) * sk.ExpSineSquared(1.2, 2.3) * C(3.0) + C(0.6) * sk.WhiteKernel(0.2),
    (sk.RationalQuadratic(0.9, 1.7) + sk.Matern(0.8, nu=2.5) + sk.WhiteKernel(0.1)) * C(1.5),
    sk.DotProduct(0.3) * sk.RBF(1.1) + sk.RBF(1.1),
]
WITH_A_GRAPH = [
    *TIED,
    (2.0 * sk.RBF(0.7)) ** 2,
    sk.WhiteKernel(0.3) * sk.DotProduct(0.6) + sk.RBF(0.7),
    (sk.RBF(0.7) + sk.RBF(2.0)) * (sk.DotProduct(0.6) + C(0.5)),
]


@pytest.mark.parametrize("kernel", SUMS_OF_PRODUCTS + WITH_A_GRAPH, ids=str)
@pytest.mark.parametrize("block", [7, 100])
def test_covariances_and_traces_are_those_of_sklearn(kernel, block, monkeypatch):
    monkeypatch.setattr(matrices.Covariance, "block_rows", block)
    rng = np.random.default_rng(0)
    X, Z, G = rng.normal(size=(30, D)), rng.normal(size=(9, D)), rng.normal(size=(30, 30))
    G += G.T
    covariance = matrices.covariance_of(kernel, X, torch.device("cpu"))
    is_sum = kernel not in WITH_A_GRAPH
    assert isinstance(covariance, matrices.TermsCovariance) == is_sum
    theta = kernel.theta + 0.1 * rng.normal(size=kernel.n_dims)
    moved = kernel.clone_with_theta(theta) if kernel.n_dims else kernel
    K, gradient = moved(X, eval_gradient=True)
    covariance.set_theta(theta)
    lower = covariance.empty()
    pull = covariance.gram_(lower, pulls=True)
    assert_allclose(lower.numpy()[np.tril_indices(30)], K[np.tril_indices(30)], rtol=1e-10)
    found = pull(torch.from_numpy(np.tril(G)))
    assert_allclose(found, np.einsum("ij,ijk->k", G, gradient), rtol=1e-8, atol=1e-9)
    assert_allclose(covariance.cross(Z), moved(Z, X), rtol=1e-10, atol=1e-12)
    assert_allclose(covariance.among(Z), moved(Z), rtol=1e-10, atol=1e-12)
    assert_allclose(covariance.diag(Z), moved.diag(Z), rtol=1e-10)


@pytest.mark.parametrize("kernel", [sk.RBF(np.ones(D)), sk.Matern(np.ones(D), nu=0.5)])
def test_traces_of_rows_that_are_far_apart_are_exact(kernel):
    """Products lose what pairs of near rows differ by, if all are millions of units away."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.choice([-1e7, 1e7], size=(10, 1)), D, 1).repeat(3, 0)
    X += rng.normal(size=(30, D))
    covariance = matrices.covariance_of(kernel, X, torch.device("cpu"))
    pull = covariance.gram_(covariance.empty(), pulls=True)
    found = pull(torch.ones(30, 30, dtype=torch.float64))
    assert_allclose(found, kernel(X, eval_gradient=True)[1].sum((0, 1)), rtol=1e-6)


def test_length_scales_of_other_columns_are_refused():
    covariance = matrices.covariance_of(sk.RBF([1.0, 2.0]), np.zeros((5, 3)), torch.device("cpu"))
    with pytest.raises(ValueError, match="kernel has 2 length-scales, but X has 3 columns"):
        covariance.gram_(covariance.empty())


# ---- hyper-parameters that parts share -----------------------------------------------------------


def test_a_tied_hyper_parameter_is_all_of_those_that_it_stands_for(X):
    """Values are those of the parts, and the slope is the sum of theirs."""
    apart = sk.ExpSineSquared(0.7, 1.3) * sk.RBF(0.2, (1e-3, 5.0))
    tied = TiedKernel(apart, [("k2__length_scale", "k1__length_scale")])
    whole = sk.ExpSineSquared(0.7, 1.3) * sk.RBF(0.7)
    assert tied.n_dims == 2
    assert_allclose(np.exp(tied.theta), [0.7, 1.3])
    assert_allclose(np.exp(tied.bounds), [[1e-5, 1e5]] * 2)  # of the first one
    (K, slopes), (expected, parts) = tied(X, eval_gradient=True), whole(X, eval_gradient=True)
    assert_allclose(K, expected, rtol=1e-12)
    l1, p, l2 = np.moveaxis(parts, 2, 0)
    assert_allclose(slopes, np.stack([l1 + l2, p], 2), rtol=1e-12, atol=1e-12)
    moved = tied.clone_with_theta(np.log([2.0, 3.0]))
    assert moved.kernel.k1.length_scale == moved.kernel.k2.length_scale == pytest.approx(2.0)
    assert apart.k2.length_scale == 0.2
    assert clone(tied) == tied


def test_a_tied_parameter_is_one_in_torch_and_stays_so():
    module = from_sklearn(2.0 * TiedKernel(LP, [("k1__length_scale", "k2__length_scale")]))
    for found in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        inner = found.k2.kernel
        assert inner.k1.log_length_scale is inner.k2.log_length_scale
        assert len(list(found.parameters())) == len(found.theta) == 3


@pytest.mark.parametrize(
    ("ties", "message"),
    [
        ([("k1__length_scale", "k2__nu")], r"got \['k2__nu'\]"),
        ([("k1__length_scale", "k2__length_scale")] * 2, "each name only once"),
    ],
)
def test_ties_are_checked(ties, message):
    with pytest.raises(ValueError, match=message):
        from_sklearn(TiedKernel(LP, ties))
    with pytest.raises(ValueError, match="of one length"):
        TiedKernel(
            sk.RBF([1.0, 2.0]) + sk.RBF(), [("k1__length_scale", "k2__length_scale")]
        ).leaders()


def test_one_that_follows_is_not_set():
    """A search over it would score the same kernel again and again."""
    tied = TiedKernel(clone(LP), [("k1__length_scale", "k2__length_scale")])
    for name in ("kernel__k2__length_scale", "kernel__k2__length_scale_bounds"):
        with pytest.raises(ValueError, match=f"{name} is tied to .*; set {name.replace('2', '1')}"):
            tied.set_params(**{name: (1.0, 2.0)})
    assert tied.set_params(kernel__k1__length_scale=3.0).whole.k2.length_scale == 3.0


def test_a_model_of_a_tied_kernel_is_kept(tmp_path, X):
    """Another estimator's evidence at the same θ is scikit-learn's, and a file has all of it."""
    kernel = TIED[0] + sk.WhiteKernel(0.1)
    y = np.sin(X[:, 0])
    ours, theirs = (
        cls(kernel, optimizer=None).fit(X[:, :1], y)
        for cls in (GaussianProcessRegressor, SklearnGP)
    )
    theta = kernel.theta
    found, slope = ours.log_marginal_likelihood(theta, eval_gradient=True)
    expected, by_sklearn = theirs.log_marginal_likelihood(theta, eval_gradient=True)
    assert found == pytest.approx(expected, rel=1e-9)
    assert_allclose(slope, by_sklearn, rtol=1e-7)
    ours.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.kernel_ == ours.kernel_
    assert_allclose(loaded.predict(X[:, :1]), ours.predict(X[:, :1]), rtol=1e-12)
    assert_allclose(
        loaded.log_marginal_likelihood(theta), ours.log_marginal_likelihood(theta), rtol=1e-12
    )

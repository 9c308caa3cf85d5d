"""The public interface of the regressors: what each option and method promises."""

import copy
import pickle
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from conftest import (
    DIRECT,
    FINITE_ONE,
    SPARSE_ONE,
    SPARSE_REGRESSORS,
    constructor,
    every_finite,
    every_regressor,
    few_rows,
    fitted_once,
    harmful,
    named,
)
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone, is_regressor
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    CompoundKernel,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import skgpstoch
from skgpstoch import (
    BSGDGaussianProcessRegressor,
    ConstantVarianceRegressor,
    DLMRegressor,
    FITCRegressor,
    MinimaxGaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.metrics import neg_log_predictive_density_scorer

GRID = np.column_stack([np.linspace(-2.9, 2.9, 40), np.zeros(40)])
TRUTH = np.sin(GRID[:, 0])
LINEAR = {"hidden_layer_sizes": (), "dtype": "float64"}


@pytest.fixture
def two_outputs(sine):
    X, y = sine
    return X, np.column_stack([y, 5.0 - 3.0 * X[:, 1] + 0.5 * y])


@pytest.fixture
def fitted(quick, sine):
    return fitted_once(quick(), *sine)


@pytest.fixture
def fitted_two(quick, two_outputs):
    return fitted_once(quick(), *two_outputs)


KINDS = [
    *[(FINITE_ONE, kind) for kind in ("network", "two outputs", "fourier")],
    (BSGDGaussianProcessRegressor, "general kernel"),
    *[(SPARSE_ONE, kind) for kind in ("network", "two outputs", "fourier", "general kernel")],
    (SolveGPRegressor, "two outputs"),
    (DLMRegressor, "two outputs"),
    (FITCRegressor, "two outputs"),
]
"""Of posteriors. Sparse ones take the kernel of "fourier" as it is."""


def kind_named(kind):
    return f"{named(kind[0])}-{kind[1]}"


@pytest.fixture(params=KINDS, ids=kind_named)
def any_model(request, sine, two_outputs):
    """One of each kind of posterior, trained in float64, with its data."""
    cls, kind = request.param
    X, y = two_outputs if kind == "two outputs" else sine
    params = {"hidden_layer_sizes": (16,)}
    if kind == "fourier":
        kernel = 1.5 * RBF([1.0, 3.0]) + WhiteKernel(0.1)
        params = {"kernel": kernel, "hidden_layer_sizes": (), "n_components": 30}
    if kind == "general kernel":
        kernel = RationalQuadratic(2.0) + WhiteKernel(0.1)
        params = {"kernel": kernel, "hidden_layer_sizes": (), "n_components": None}
    params = {name: value for name, value in params.items() if name in cls().get_params()}
    model = constructor(cls)(dtype="float64", max_iter=5, **params)
    return fitted_once(model, X[:150], y[:150]), X, y


def network_of(model):
    """The fitted network below the kernel."""
    posterior = model.posterior_
    return getattr(posterior, "model", posterior).features.network


def leaves(kernel):
    """The terms and factors of an sklearn kernel expression."""
    if hasattr(kernel, "k1"):
        return leaves(kernel.k1) + leaves(kernel.k2)
    return leaves(kernel.kernel) if hasattr(kernel, "kernel") else [kernel]


def scale_of(model):
    """Standard deviations that the model divided y by."""
    return model.noise_variance_ / leaves(model.kernel_)[-1].noise_level


@pytest.mark.slow
# ------------------------------------------------------------------------------------- accuracy
@every_finite
@slow_cases("Minimax")
def test_a_sine_is_learned_with_honest_uncertainty(quick_finite, sine):
    model = quick_finite(hidden_layer_sizes=(64,), max_iter=80).fit(*sine)
    mean, std = model.predict(GRID, return_std=True)
    assert np.sqrt(np.mean((mean - TRUTH) ** 2)) < 0.06
    assert 0.005 < model.noise_variance_ < 0.02  # 0.1²
    assert std == pytest.approx(0.1, rel=0.5)
    rng = np.random.default_rng(1)
    X = rng.uniform(-3, 3, (2000, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(2000)
    lower, upper = model.predict_interval(X).T
    assert 0.9 < np.mean((lower < y) & (y < upper)) < 0.99
    assert -model.log_predictive_density(X, y).mean() < -0.65  # −0.88 is the truth's


@every_finite
@slow_cases("Minimax")
def test_random_fourier_features_come_near_the_exact_gp(finite, sine):
    """With its own fitted kernel the exact GP predicts the same, up to the features' error."""
    X, y = sine
    kernel = RBF(1.5) + WhiteKernel(0.05)
    model = finite(
        kernel, **LINEAR, n_components=400, max_iter=3, random_state=0, early_stopping=False
    ).fit(X[:, :1], y)
    exact = GaussianProcessRegressor(model.kernel_, alpha=0, optimizer=None, normalize_y=True)
    mean, std = exact.fit(X[:, :1], y).predict(GRID[:, :1], return_std=True)
    assert_allclose(model.predict(GRID[:, :1]), mean, atol=0.05)
    assert_allclose(model.predict_std(GRID[:, :1]), std, rtol=0.1)


@pytest.mark.parametrize("sigma_0_bounds", [(1e-5, 1e5), "fixed"])
def test_linear_kernel_is_the_exact_gp(finite, sine, sigma_0_bounds):
    X, y = sine
    kernel = DotProduct(0.5, sigma_0_bounds) + WhiteKernel(0.05)
    model = finite(kernel, **LINEAR, max_iter=3, random_state=0).fit(X, y)
    assert_is_sklearns_gp(model, X, y)


@pytest.mark.parametrize(
    "kernel",
    [
        RationalQuadratic(2.0, 1.5) + WhiteKernel(0.05),
        2.0 * ExpSineSquared(1.0, 6.0) * RBF(2.0) + WhiteKernel(0.05),
        Matern([1.0, 2.0], nu=2.5) + ConstantKernel(0.5) + WhiteKernel(0.05, "fixed"),
        DotProduct(0.5) ** 2 + WhiteKernel(0.05),
    ],
    ids=str,
)
def test_bsgd_with_a_kernel_as_it_is_is_the_exact_gp(sine, kernel):
    X, y = sine
    model = BSGDGaussianProcessRegressor(
        kernel, **LINEAR, n_components=None, batch_size=64, max_iter=3, random_state=0
    ).fit(X, y)
    assert_is_sklearns_gp(model, X, y)
    assert not np.array_equal(model.kernel_.theta, kernel.theta)  # it has learned something


def assert_is_sklearns_gp(model, X, y):
    exact = GaussianProcessRegressor(model.kernel_, alpha=0, optimizer=None, normalize_y=True)
    exact.fit(X, y)
    mean, std = exact.predict(GRID, return_std=True)
    assert_allclose(model.predict(GRID), mean, rtol=1e-6, atol=1e-7)
    assert_allclose(model.predict_std(GRID), std, rtol=1e-6)
    evidence = exact.log_marginal_likelihood_value_ - len(X) * np.log(exact._y_train_std)
    assert model.log_marginal_likelihood_value_ == pytest.approx(evidence, rel=1e-7)


@pytest.mark.slow
# ------------------------------------------------------------------------------------ predictions
def test_shapes(fitted, fitted_two, sine):
    X, n = GRID[:7], 7
    assert fitted.predict(X).shape == fitted.predict_std(X).shape == (n,)
    assert fitted.predict_interval(X).shape == (n, 2)
    assert fitted.predict(X, return_cov=True)[1].shape == (n, n)
    assert fitted.sample_y(X, 5).shape == (n, 5)
    assert fitted_two.predict(X).shape == fitted_two.predict_std(X).shape == (n, 2)
    assert fitted_two.predict_interval(X).shape == (n, 2, 2)
    assert fitted_two.predict(X, return_cov=True)[1].shape == (n, n, 2)
    assert fitted_two.sample_y(X, 5).shape == (n, 2, 5)
    assert fitted_two.noise_variance_.shape == (2,)
    for model, y in [(fitted, np.zeros(n)), (fitted_two, np.zeros((n, 2)))]:
        assert model.log_predictive_density(X, y).shape == (n,)
        assert isinstance(model.log_marginal_likelihood(X, y), float)
        assert isinstance(model.log_marginal_likelihood_value_, float)
        assert all(a.dtype == np.float64 for a in model.predict(X, return_std=True))


@slow_cases("SVGPRegressor-network", "DLM", "SCGDGaussian-fourier")
def test_the_forms_of_the_prediction_agree(any_model):
    model, _, _ = any_model
    mean, std = model.predict(GRID, return_std=True)
    same_mean, cov = model.predict(GRID, return_cov=True)
    assert_array_equal(model.predict(GRID), mean)
    assert_array_equal(model.predict_std(GRID), std)
    assert_allclose(same_mean, mean, rtol=1e-10, atol=1e-10)
    cov = cov.reshape(len(GRID), len(GRID), -1)
    variance = np.einsum("iip->ip", cov).reshape(std.shape)
    assert_allclose(np.sqrt(variance), std, rtol=1e-7)
    for C in np.moveaxis(cov, -1, 0):
        assert_allclose(C, C.T, rtol=1e-10, atol=1e-12)
        assert np.linalg.eigvalsh(C).min() > 0
    half = norm.ppf(0.9) * std
    from_mean = model.predict_interval(GRID, 0.8) - mean[:, None]  # an end itself may be near 0
    assert_allclose(from_mean, np.stack([-half, half], 1), rtol=1e-12)


def test_latent_excludes_exactly_the_noise(any_model):
    model, _, _ = any_model
    mean, std = model.predict(GRID, return_std=True)
    f_mean, f_std = model.predict(GRID, return_std=True, latent=True)
    assert_array_equal(f_mean, mean)
    assert_array_equal(model.predict_std(GRID, latent=True), f_std)
    assert (f_std >= 0).all()
    assert_allclose(std**2 - f_std**2, np.broadcast_to(model.noise_variance_, std.shape), rtol=1e-7)
    cov, f_cov = (model.predict(GRID, return_cov=True, latent=flag)[1] for flag in (False, True))
    identity = np.eye(len(GRID)).reshape(len(GRID), len(GRID), *[1] * (cov.ndim - 2))
    assert_allclose(cov - f_cov, identity * model.noise_variance_, atol=1e-9)
    width = np.diff(model.predict_interval(GRID, latent=True), axis=1)[:, 0]
    assert_allclose(width, 2 * norm.ppf(0.975) * f_std, rtol=1e-9)


def test_interval_widens_with_the_coverage(fitted):
    widths = [np.diff(fitted.predict_interval(GRID, c)).mean() for c in (0.5, 0.95, 0.999)]
    assert widths == sorted(widths)
    assert_array_equal(fitted.predict_interval(GRID), fitted.predict_interval(GRID, 0.95))


@pytest.mark.parametrize("latent", [False, True])
@slow_cases(
    "(network|fourier)-True", "DLMRegressor-two outputs-False", "FITCRegressor-two outputs-True"
)
def test_draws_have_the_predicted_moments(any_model, latent):
    model, _, _ = any_model
    X, S = GRID[::8], 20_000
    draws = model.sample_y(X, S, random_state=1, latent=latent)
    mean, cov = model.predict(X, return_cov=True, latent=latent)
    draws, cov = draws.reshape(len(X), -1, S), cov.reshape(len(X), len(X), -1)
    for p in range(draws.shape[1]):
        std = np.sqrt(np.diag(cov[..., p]))
        z = (draws[:, p].mean(1) - mean.reshape(len(X), -1)[:, p]) / (std / np.sqrt(S))
        assert np.abs(z).max() < 4.5
        scale = np.outer(std, std)
        assert_allclose(np.cov(draws[:, p]) / scale, cov[..., p] / scale, atol=0.05)


def test_draws_follow_their_seed(fitted):
    assert_array_equal(fitted.sample_y(GRID), fitted.sample_y(GRID, 1, random_state=0))
    assert_array_equal(fitted.sample_y(GRID, 3), fitted.sample_y(GRID, 3))
    assert not np.array_equal(fitted.sample_y(GRID), fitted.sample_y(GRID, random_state=1))
    fresh = [fitted.sample_y(GRID, random_state=None) for _ in range(2)]
    assert not np.array_equal(*fresh)


def test_log_predictive_density_is_that_of_the_normal(any_model):
    model, X, y = any_model
    mean, std = model.predict(X, return_std=True)
    expected = norm.logpdf(y, mean, std).reshape(len(X), -1).sum(1)
    assert_allclose(model.log_predictive_density(X, y), expected, rtol=1e-10, atol=1e-10)


def test_log_marginal_likelihood_of_the_training_rows_is_the_fitted_value(any_model):
    model, X, y = any_model
    value = model.log_marginal_likelihood(X[:150], y[:150])
    if type(model) in DIRECT:  # q is the best for another loss
        assert value > model.log_marginal_likelihood_value_
        return
    assert value == pytest.approx(model.log_marginal_likelihood_value_, rel=1e-9)


@pytest.mark.parametrize(
    "any_model",
    [kind for kind in KINDS if kind[0] not in SPARSE_REGRESSORS],
    ids=str,
    indirect=True,
)
def test_evidence_and_predictive_density_obey_the_chain_rule(any_model):
    """log p(y₂ | y₁) = log p(y₁, y₂) − log p(y₁), for the joint prediction of new rows.

    Sparse models have a bound instead.
    """
    model, X, y = any_model
    rows = slice(150, 165)
    gain = model.log_marginal_likelihood(X[:165], y[:165]) - model.log_marginal_likelihood_value_
    mean, cov = model.predict(X[rows], return_cov=True)
    mean, cov, new = mean.reshape(15, -1), cov.reshape(15, 15, -1), y[rows].reshape(15, -1)
    density = sum(
        multivariate_normal.logpdf(new[:, p], mean[:, p], cov[..., p]) for p in range(new.shape[1])
    )
    assert gain == pytest.approx(density, rel=1e-6)


@slow_cases("SVGPRegressor-network", "DLM", "SCGDGaussian-fourier")
def test_units_of_y(any_model):
    """With c·y means scale by c, variances by c², densities by 1/c, for each output."""
    model, X, y = any_model
    c = 8.0  # exact in floating point, so that nothing else changes
    other = clone(model).fit(X[:150], c * y[:150])
    n_outputs = y[0].size
    shift = n_outputs * np.log(c)
    assert_allclose(other.predict(GRID), c * model.predict(GRID), rtol=1e-9, atol=1e-9)
    assert_allclose(other.predict_std(GRID), c * model.predict_std(GRID), rtol=1e-9)
    assert_allclose(other.noise_variance_, c**2 * model.noise_variance_, rtol=1e-9)
    assert_allclose(other.sample_y(GRID), c * model.sample_y(GRID), rtol=1e-7, atol=1e-7)
    density = model.log_predictive_density(X, y) - shift
    assert_allclose(other.log_predictive_density(X, c * y), density, rtol=1e-7, atol=1e-7)
    for value, reference in [
        (other.log_marginal_likelihood_value_, model.log_marginal_likelihood_value_),
        (
            other.log_marginal_likelihood(X[:150], c * y[:150]),
            model.log_marginal_likelihood(X[:150], y[:150]),
        ),
    ]:
        assert value == pytest.approx(reference - 150 * shift, rel=1e-8)
    assert_allclose(other.loss_curve_, model.loss_curve_, rtol=1e-8)  # of the scaled y


def test_normalize_y_changes_nothing_where_y_is_standard(quick, sine, close_to):
    X, y = sine
    y = (y - y.mean()) / y.std()
    one, other = (
        quick(normalize_y=flag, dtype="float64", max_iter=5).fit(X, y) for flag in (True, False)
    )
    close_to(one, other, GRID, rtol=1e-5, atol=1e-6)
    assert one.log_marginal_likelihood_value_ == pytest.approx(
        other.log_marginal_likelihood_value_, rel=1e-6
    )


@pytest.mark.slow
@slow_cases("SVGP")
def test_without_normalize_y_units_are_the_users(quick, sine):
    X, y = sine
    model = quick(normalize_y=False, max_iter=90).fit(X, 2.0 * y + 1.0)
    assert model.score(X, 2.0 * y + 1.0) > 0.9
    assert 0.02 < model.noise_variance_ < 0.2  # 0.2² if it were trained longer
    value = model.log_marginal_likelihood(X, 2.0 * y + 1.0)
    assert value == pytest.approx(model.log_marginal_likelihood_value_, rel=1e-4)


def test_score_is_r2(fitted, fitted_two, two_outputs):
    X, Y = two_outputs
    assert fitted.score(X, Y[:, 0]) == r2_score(Y[:, 0], fitted.predict(X)) > 0.8
    assert fitted_two.score(X, Y) == r2_score(Y, fitted_two.predict(X)) > 0.8


@pytest.mark.slow
@slow_cases("SVGP")
def test_outputs_have_weights_and_noise_of_their_own(quick, two_outputs):
    X, Y = two_outputs
    rng = np.random.default_rng(2)
    Y = np.column_stack([Y[:, 0], 100.0 * rng.standard_normal(len(Y))])  # the second is noise
    model = quick(max_iter=120, validation_fraction=0.5).fit(X, Y)  # noise is of these rows
    assert model.noise_variance_[0] < 0.05
    assert model.noise_variance_[1] == pytest.approx(Y[:, 1].var(), rel=0.3)
    assert r2_score(Y[:, 0], model.predict(X)[:, 0]) > 0.9


# ----------------------------------------------------------------------------------------- inputs
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_data_frames(quick, sine, frame):
    X, y = sine
    df = frame(dict(zip(["speed", "load"], X.T, strict=True)))
    series = pd.Series(y) if frame is pd.DataFrame else pl.Series(y)
    model = quick(max_iter=3).fit(df, series)
    assert list(model.feature_names_in_) == ["speed", "load"]
    assert model.n_features_in_ == 2
    reference = fitted_once(quick(max_iter=3), X, y)
    assert_allclose(model.predict(df), reference.predict(X), rtol=1e-5, atol=1e-6)
    density = reference.log_predictive_density(X, y)
    assert_allclose(model.log_predictive_density(df, series), density, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(df[["load", "speed"]])
    with pytest.warns(UserWarning, match="feature names"):
        model.predict(X)
    two = quick(max_iter=3).partial_fit(
        df, frame(dict(zip("ab", np.column_stack([y, y]).T, strict=True)))
    )
    assert two.predict(df).shape == (len(y), 2)
    assert list(two.feature_names_in_) == ["speed", "load"]


def memory_map(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    return np.load(tmp_path / "X.npy", mmap_mode="r")


def read_only(X, tmp_path):
    X = X.copy()
    X.flags.writeable = False
    return X


@pytest.mark.parametrize(
    "convert",
    [
        lambda X, _: np.asfortranarray(X),
        lambda X, _: np.repeat(X, 2, axis=0)[::2],
        lambda X, _: X.tolist(),
        lambda X, _: X.astype(object),
        lambda X, _: X.astype(">f8"),
        lambda X, _: torch.from_numpy(X.copy()),
        memory_map,
        read_only,
    ],
    ids=["fortran", "strided", "list", "object", "big-endian", "torch", "memmap", "read-only"],
)
def test_the_container_does_not_matter(quick_finite, two_outputs, tmp_path, convert):
    X, Y = two_outputs
    converted = convert(X, tmp_path)
    (tmp_path / "y").mkdir()
    model = quick_finite(max_iter=3).fit(converted, convert(Y, tmp_path / "y"))
    reference = fitted_once(quick_finite(max_iter=3), X, Y)
    # Sums over columns in another order differ in their last bits.
    assert_allclose(model.predict(converted), reference.predict(X), rtol=1e-5, atol=1e-6)
    assert_array_equal(np.asarray(converted, dtype=float), X)  # nothing was written


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int64", "uint16", "bool"])
@slow_cases("int8", "uint16", "float16")
def test_number_types(quick_finite, dtype):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2 if dtype == "bool" else 60, (80, 3)).astype(dtype)
    y = X[:, 0].astype(dtype)  # what the integers are is also exact in the floating types
    model, reference = (
        quick_finite(max_iter=3).fit(A, b) for A, b in [(X, y), (X.astype(float), y.astype(float))]
    )
    assert_allclose(model.predict(X), reference.predict(X.astype(float)), rtol=1e-5, atol=1e-5)
    assert model.predict(X).dtype == np.float64


def test_float32_and_float64_training_agree(quick, sine, close_to):
    models = [quick(dtype=dtype, max_iter=5).fit(*sine) for dtype in ("float32", "float64")]
    close_to(*models, GRID, rtol=1e-2, atol=1e-2)
    assert not np.array_equal(models[0].predict(GRID), models[1].predict(GRID))


@pytest.mark.parametrize("matrix", [sparse.csr_matrix, sparse.coo_array])
def test_sparse_inputs_are_refused_clearly(quick, fitted, sine, matrix):
    X, y = sine
    for call in (quick().fit, quick().partial_fit, fitted.score):
        with pytest.raises(TypeError, match=r"[Ss]parse data was passed"):
            call(matrix(X), y)
    with pytest.raises(TypeError, match=r"[Ss]parse data was passed"):
        fitted.predict(matrix(X))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["X", "y"])
def test_not_finite_data_are_refused(quick, fitted, sine, value, where):
    X, y = (a.copy() for a in sine)
    (X if where == "X" else y)[3] = value
    for call in (
        quick().fit,
        quick().partial_fit,
        fitted.log_predictive_density,
        fitted.log_marginal_likelihood,
    ):
        with pytest.raises(ValueError, match=rf"Input {where} contains (NaN|infinity)"):
            call(X, y)
    if where == "X":
        for call in (fitted.predict, fitted.predict_std, fitted.predict_interval, fitted.sample_y):
            with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
                call(X)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros(5), np.zeros(5), "Expected 2D array"),
        (np.zeros((5, 2, 1)), np.zeros(5), "dim 3"),
        (np.zeros((5, 2)), np.zeros((5, 1, 1)), "dim 3"),
        (np.zeros((5, 2)), np.zeros(4), "inconsistent numbers of samples"),
        (np.zeros((5, 2)), np.zeros((5, 0)), "minimum of 1"),
        (np.zeros((5, 0)), np.zeros(5), "0 feature"),
        (np.zeros((0, 2)), np.zeros(0), "0 sample"),
        (np.zeros((1, 2)), np.zeros(1), "1 sample"),
        (np.zeros((5, 2)), None, "requires y to be passed"),
        (np.zeros((5, 2)), list("abcde"), "y must be numeric"),
        (np.full((5, 2), "a"), np.zeros(5), "could not convert string to float"),
        (np.zeros((5, 2), complex), np.zeros(5), "Complex data not supported"),
        (np.zeros((5, 2)), np.zeros(5, complex), "Complex data not supported"),
    ],
)
def test_misshapen_data_are_refused(quick, X, y, message):
    model = quick()
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    assert not hasattr(model, "n_features_in_")


def test_other_numbers_of_columns_are_refused(fitted, fitted_two, sine):
    X, y = sine
    with pytest.raises(ValueError, match=r"3 features, but .* is expecting 2"):
        fitted.predict(np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"3 features, but .* is expecting 2"):
        fitted.partial_fit(np.zeros((4, 3)), np.zeros(4))
    for call in (fitted_two.log_predictive_density, fitted_two.log_marginal_likelihood):
        with pytest.raises(ValueError, match=r"y must have shape \('n_samples', 2\).*got"):
            call(X, y)


def test_methods_need_a_fit(quick, sine):
    X, y = sine
    model = quick()
    for name in ("predict", "predict_std", "predict_interval", "sample_y"):
        with pytest.raises(NotFittedError):
            getattr(model, name)(X)
    for name in ("log_predictive_density", "log_marginal_likelihood", "score"):
        with pytest.raises(NotFittedError):
            getattr(model, name)(X, y)


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"hidden_layer_sizes": (0,)}, ValueError),
        ({"hidden_layer_sizes": (8.5,)}, ValueError),
        ({"hidden_layer_sizes": "128"}, ValueError),
        ({"hidden_layer_sizes": -1}, ValueError),
        ({"hidden_layer_sizes": ((8,),)}, ValueError),
        ({"hidden_layer_sizes": None}, ValueError),
        ({"feature_map": nn.Linear}, ValueError),
        ({"feature_map": nn.Linear(5, 4)}, ValueError),
        ({"feature_map": nn.Flatten(0)}, ValueError),
        ({"batch_size": 0}, ValueError),
        ({"batch_size": 16.0}, ValueError),
        ({"batch_size": "full"}, ValueError),
        ({"max_iter": 0}, ValueError),
        ({"max_iter": "all"}, ValueError),
        ({"solver": "sgd"}, ValueError),
        ({"learning_rate_init": 0.0}, ValueError),
        ({"learning_rate_init": "auto"}, ValueError),
        ({"learning_rate": "adaptive"}, ValueError),
        ({"weight_decay": -0.1}, ValueError),
        ({"early_stopping": "yes"}, ValueError),
        ({"validation_fraction": 1.0}, ValueError),
        ({"n_iter_no_change": 0}, ValueError),
        ({"tol": -1.0}, ValueError),
        ({"normalize_y": "yes"}, ValueError),
        ({"warm_start": "yes"}, ValueError),
        ({"device": "tpu"}, ValueError),
        ({"device": 0}, ValueError),
        ({"device": "mps"}, ValueError),
        ({"dtype": "float16"}, ValueError),
        ({"dtype": torch.float32}, ValueError),
        ({"checkpoint_dir": 3}, ValueError),
        ({"verbose": -1}, ValueError),
        ({"random_state": "seed"}, ValueError),
        ({"kernel": "rbf"}, ValueError),
        ({"kernel": RBF}, ValueError),
        ({"kernel": WhiteKernel()}, ValueError),
        ({"kernel": RBF() + WhiteKernel() + WhiteKernel()}, ValueError),
        ({"kernel": CompoundKernel([RBF()])}, TypeError),
        ({"kernel": RBF(-1.0), "hidden_layer_sizes": ()}, ValueError),
        ({"kernel": RBF([1.0] * 3), "hidden_layer_sizes": ()}, ValueError),
        ({"kernel": Matern(nu=2.0)}, ValueError),
    ],
    ids=lambda p: ",".join(f"{k}={v}" for k, v in p.items()) if isinstance(p, dict) else None,
)
def test_bad_parameters_are_named(quick, sine, params, error):
    model = quick(**params)
    name, hyper_parameters = next(iter(params)), "length_scale|nu of Matern|kernel"
    with pytest.raises(error, match=hyper_parameters if name == "kernel" else name):
        model.fit(*sine)
    assert not hasattr(model, "n_features_in_")


@every_finite
@pytest.mark.parametrize(
    "params",
    [
        {"n_components": 0, "kernel": RBF()},
        {"n_components": 1, "kernel": RBF() + Matern(nu=1.5)},
        {"n_estimators": 0},
        {"n_estimators": "many"},
        {"early_stopping": "auto"},
        {"noise": "fixed"},
        {"noise_variance": 0.0},
    ],
    ids=lambda p: ",".join(f"{k}={v}" for k, v in p.items()),
)
def test_bad_parameters_of_the_finite_family_are_named(quick_finite, sine, params):
    with pytest.raises(ValueError, match=next(iter(params))):
        quick_finite(**params).fit(*sine)


@pytest.mark.parametrize(
    ("cls", "params"),
    [
        (SCGDGaussianProcessRegressor, {"activation": "sine"}),
        (SCGDGaussianProcessRegressor, {"averaging": 0.0}),
        (SCGDGaussianProcessRegressor, {"averaging": 1.5}),
        (SCGDGaussianProcessRegressor, {"averaging": "paper"}),
        (SCGDGaussianProcessRegressor, {"weights": "exact"}),
        (MinimaxGaussianProcessRegressor, {"dual_step": -1.0}),
    ],
)
def test_bad_parameters_of_one_method_are_named(cls, params, sine):
    with pytest.raises(ValueError, match=next(iter(params))):
        cls(**params).fit(*sine)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda m: m.predict(GRID, return_std=True, return_cov=True), "return_std and return_cov"),
        (lambda m: m.predict_interval(GRID, coverage=95), "coverage must be .* got 95"),
        (lambda m: m.predict_interval(GRID, coverage=0.0), "coverage"),
        (lambda m: m.predict_interval(GRID, coverage=np.nan), "coverage"),
        (lambda m: m.predict_interval(GRID, coverage="0.95"), "coverage"),
        (lambda m: m.sample_y(GRID, n_samples=-1), "n_samples"),
        (lambda m: m.sample_y(GRID, n_samples=2.5), "n_samples"),
        (lambda m: m.sample_y(GRID, random_state="a"), "random_state must be None, an int"),
    ],
)
def test_bad_arguments_are_named(fitted, call, match):
    with pytest.raises((ValueError, TypeError), match=match):
        call(fitted)


# ---------------------------------------------------------------------------------------- kernels
KERNELS = [
    RBF(),
    RBF([1.0, 5.0]),
    2.0 * RBF(1.5) + WhiteKernel(0.1),
    WhiteKernel(0.1) + Matern(nu=0.5),
    Matern([1.0, 2.0], nu=1.5),
    Matern(nu=2.5) * RBF([2.0, 3.0]),
    Matern(nu=np.inf),
    0.5 * RBF() + 2.0 * DotProduct(),
    RBF() + Matern(nu=1.5) + DotProduct() + WhiteKernel(),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@slow_cases(r"0\.707", "WhiteKernel", r"RBF\(length_scale=\[1, 5\]\)$", r"-RBF\(length_scale=1\)$")
def test_kernel_expressions(quick_finite, sine, kernel):
    before = copy.deepcopy(kernel)
    model = quick_finite(kernel=kernel, hidden_layer_sizes=(), n_components=60, max_iter=15).fit(
        *sine
    )
    assert model.score(*sine) > 0.9
    assert model.kernel is kernel
    assert kernel == before
    assert fitted_part(model, kernel).theta != pytest.approx(kernel.theta, abs=1e-6)


def fitted_part(model, kernel):
    """kernel_, without the signal variance that the fit puts in front, in the order of `kernel`."""
    names = [type(k).__name__ for k in leaves(kernel) if not isinstance(k, WhiteKernel)]
    noise = [k for k in leaves(kernel) if isinstance(k, WhiteKernel)]
    found = leaves(model.kernel_)
    present = [type(k).__name__ for k in found]
    assert isinstance(found[-1], WhiteKernel) == bool(noise)
    extra = len(present) - len(names) - len(noise)
    assert extra in (0, 1)
    assert present[extra : len(present) - len(noise)] == names
    inner = model.kernel_.k1 if noise else model.kernel_
    return inner.k2 if extra else inner


@pytest.mark.filterwarnings("ignore:The optimal value found")
def test_kernel_hyper_parameters_keep_to_their_bounds(quick_finite, sine):
    kernel = ConstantKernel(2.0, "fixed") * RBF([0.9, 1.0], (0.85, 1.05)) * Matern(
        3.0, "fixed", nu=1.5
    ) + WhiteKernel(0.5, (0.4, 0.6))
    model = quick_finite(kernel=kernel, hidden_layer_sizes=(), n_components=40, max_iter=8).fit(
        *sine
    )
    constant, rbf, matern, white = leaves(model.kernel_)[-4:]
    assert constant.constant_value == pytest.approx(2.0, rel=1e-12)
    assert constant.constant_value_bounds == "fixed"
    assert ((rbf.length_scale >= 0.85 - 1e-9) & (rbf.length_scale <= 1.05 + 1e-9)).all()
    assert not np.allclose(rbf.length_scale, [0.9, 1.0])
    assert matern.length_scale == pytest.approx(3.0, rel=1e-12)
    assert 0.4 - 1e-9 <= white.noise_level <= 0.6 + 1e-9


@pytest.mark.parametrize("noise", ["auto", "learned", "profiled"])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_a_fixed_white_kernel_is_the_noise(quick_finite, two_outputs, noise, n_outputs):
    X, Y = two_outputs
    Y = Y if n_outputs == 2 else Y[:, 0]
    kernel = RBF() + WhiteKernel(0.07, "fixed")
    model = quick_finite(kernel=kernel, n_components=30, max_iter=4, noise=noise).fit(X, Y)
    assert_allclose(model.noise_variance_, 0.07 * Y.var(0), rtol=1e-6)
    assert leaves(model.kernel_)[-1].noise_level == pytest.approx(0.07, rel=1e-12)
    assert_allclose(
        model.predict_std(GRID) ** 2 - model.predict_std(GRID, latent=True) ** 2,
        np.broadcast_to(0.07 * Y.var(0), model.predict(GRID).shape),
        rtol=1e-6,
    )


@pytest.mark.parametrize("noise", ["auto", "validation", "profiled", "learned"])
@pytest.mark.parametrize("early_stopping", [True, False])
@slow_cases("False-learned", "False-(auto|profiled)", "True-(validation|learned)")
def test_noise_options(quick_finite, sine, noise, early_stopping):
    """Each finds the noise of a model that is able to fit: 0.01."""
    model = quick_finite(
        kernel=RBF(1.5) + WhiteKernel(0.05),
        hidden_layer_sizes=(),
        n_components=30,
        noise=noise,
        early_stopping=early_stopping,
        max_iter=30,
        learning_rate_init=0.1,
    ).fit(*sine)
    assert 0.006 < model.noise_variance_ < (0.04 if noise == "learned" else 0.02)
    level = leaves(model.kernel_)[-1].noise_level
    assert model.noise_variance_ == pytest.approx(level * sine[1].var(), rel=1e-6)


@pytest.mark.slow
def test_kernel_on_a_network(quick_finite, sine):
    model = quick_finite(kernel=RBF() + WhiteKernel(0.1), n_components=40, max_iter=30).fit(*sine)
    assert model.score(*sine) > 0.9
    assert [type(k).__name__ for k in leaves(model.kernel_)][-2:] == ["RBF", "WhiteKernel"]


def test_bsgd_with_a_general_kernel_on_a_network(sine):
    kernel = RationalQuadratic() + WhiteKernel(0.1)
    model = BSGDGaussianProcessRegressor(kernel, max_iter=3, random_state=0).fit(*sine)
    assert model.score(*sine) > 0.9
    assert model.predict_std(GRID).shape == (len(GRID),)


@pytest.mark.parametrize(
    "kernel", [RationalQuadratic(), ConstantKernel() + RBF(), DotProduct() ** 2], ids=str
)
@pytest.mark.parametrize("cls", [SCGDGaussianProcessRegressor, MinimaxGaussianProcessRegressor])
def test_kernels_without_features_are_refused(cls, sine, kernel):
    with pytest.raises(TypeError, match="kernel"):
        cls(kernel).fit(*sine)


def test_bsgd_limits_what_a_general_kernel_is_for():
    X = np.arange(10_001.0)[:, None]
    model = BSGDGaussianProcessRegressor(RationalQuadratic(), hidden_layer_sizes=(), max_iter=1)
    with pytest.raises(
        ValueError,
        match=r"y must have one column for more than 10000 rows.*2 columns and 10001 rows",
    ):
        model.fit(X, np.hstack([X, X]))
    ensemble = BSGDGaussianProcessRegressor(RationalQuadratic(), n_estimators=2, max_iter=1)
    with pytest.raises(ValueError, match="n_estimators must be 1 for this kernel, got 2"):
        ensemble.fit(X[:5], X[:5, 0])
    general = BSGDGaussianProcessRegressor(RationalQuadratic())
    with pytest.raises(ValueError, match=r"partial_fit.*RationalQuadratic"):
        general.partial_fit(X[:5], X[:5, 0])


@every_regressor
def test_kernel_parameters_can_be_set_and_searched(regressor):
    model = regressor(2.0 * RBF(1.0) + WhiteKernel(0.1))
    model.set_params(kernel__k1__k2__length_scale=3.0, kernel__k2__noise_level=0.5)
    assert model.kernel == 2.0 * RBF(3.0) + WhiteKernel(0.5)


# ------------------------------------------------------------------------------------ feature maps
def test_feature_map_is_copied_and_trained(quick, sine):
    module = nn.Sequential(nn.Linear(2, 16), nn.Tanh())
    before = copy.deepcopy(module.state_dict())
    model = quick(feature_map=module, max_iter=30).fit(*sine)
    assert model.feature_map is module
    assert module.training
    assert all(p.grad is None and p.requires_grad for p in module.parameters())
    assert all(torch.equal(a, before[k]) for k, a in module.state_dict().items())
    assert model.score(*sine) > 0.9
    trained = network_of(model).state_dict()
    assert not torch.equal(trained["0.weight"].float(), before["0.weight"])


class Watched(nn.Module):
    """Linear features, and what is shown to them (a list shared by all copies)."""

    def __init__(self, seen):
        super().__init__()
        self.layer = nn.Linear(2, 4)
        self.see = seen.append  # copied with the module by reference

    def forward(self, X):
        self.see((self.training, X.detach().clone()))
        return torch.cat([X, torch.tanh(self.layer(X))], 1)


def test_feature_map_sees_the_inputs_as_they_are(quick, sine):
    X, y = sine
    seen = []
    quick(feature_map=Watched(seen), max_iter=1).fit(1000.0 + X, y)
    rows = torch.cat([X for training, X in seen if training])
    assert {training for training, _ in seen} == {True, False}
    low, high = torch.tensor(1000.0 + X).aminmax(dim=0)
    assert (rows >= low - 1e-3).all()
    assert (rows <= high + 1e-3).all()


@pytest.mark.slow
@pytest.mark.parametrize("layer", [nn.Dropout(0.2), nn.BatchNorm1d(16)], ids=["dropout", "norm"])
@slow_cases("SVGPRegressor-norm", "SCGD.*dropout", "dropout")
def test_layers_with_two_modes(quick, sine, layer):
    """Training uses one, predictions the other: they depend neither on chance nor on the batch."""
    module = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), layer)
    model = quick(feature_map=module, max_iter=25).fit(*sine)
    mean, std = model.predict(GRID, return_std=True)
    assert_array_equal(model.predict(GRID), mean)
    assert_allclose(model.predict(GRID[3:4]), mean[3:4], rtol=1e-10)
    assert_allclose(model.predict_std(GRID[3:4]), std[3:4], rtol=1e-10)
    assert model.score(*sine) > 0.8
    again = quick(feature_map=module, max_iter=25).fit(*sine)
    assert_array_equal(again.predict(GRID), mean)
    if isinstance(layer, nn.BatchNorm1d):
        assert layer.num_batches_tracked == 0
        assert network_of(model)[2].num_batches_tracked > 0


@pytest.mark.parametrize("then", ["fit", "partial_fit", "both"])
def test_frozen_parameters_stay(quick, sine, then):
    module = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8))
    module[0].requires_grad_(False)
    model = quick(feature_map=module, max_iter=3)
    if then != "partial_fit":
        model.fit(*sine)
    if then != "fit":
        model.partial_fit(*sine).partial_fit(*sine)
    network = network_of(model)
    assert torch.equal(network[0].weight.float(), module[0].weight)
    assert not torch.equal(network[2].weight.float(), module[2].weight)


def test_feature_map_without_parameters_is_the_linear_model(quick_finite, sine, close_to):
    flat = quick_finite(feature_map=nn.Flatten(), noise="profiled").fit(*sine)
    linear = quick_finite(hidden_layer_sizes=(), noise="profiled").fit(*sine)
    close_to(flat, linear, GRID, atol=0.01)  # which weighs and centres the inputs otherwise
    X, y = sine
    slope = np.polyfit(X[:, 0], y, 1)[0]
    assert linear.predict([[1.0, 0.0]]) - linear.predict([[0.0, 0.0]]) == pytest.approx(
        slope, rel=0.1
    )


class Pair(nn.Module):
    def forward(self, X):
        return X, X


class Detached(nn.Linear):
    def forward(self, X):
        return super().forward(X).detach()


@pytest.mark.parametrize("module", [Pair(), nn.Flatten(0)], ids=["tuple", "vector"])
def test_feature_map_must_return_a_matrix(quick, sine, module):
    with pytest.raises(ValueError, match=r"feature_map must map .* got (tuple|shape \(4,\))"):
        quick(feature_map=module).fit(*sine)


def test_feature_map_that_cannot_be_trained_is_refused(quick, sine):
    with pytest.raises(ValueError, match=r"feature_map must .* detached"):
        quick(feature_map=Detached(2, 8)).fit(*sine)


@pytest.mark.slow
def test_feature_map_with_a_kernel_in_a_search(quick_finite, sine):
    X, y = sine
    module = nn.Sequential(nn.Linear(2, 8), nn.Tanh())
    model = quick_finite(
        kernel=RBF() + WhiteKernel(0.1), n_components=30, feature_map=module, max_iter=4
    )
    search = GridSearchCV(model, {"batch_size": [20, 50]}, cv=2).fit(X, y)
    copied = pickle.loads(pickle.dumps(search))
    assert_array_equal(copied.predict(GRID), search.predict(GRID))
    assert clone(model).fit(X, y).predict(GRID).shape == (len(GRID),)


# ------------------------------------------------------------------------------- training options
@pytest.mark.parametrize("activation", ["identity", "relu", "tanh", "logistic", "silu", "gelu"])
@slow_cases("identity", "logistic", "gelu")
def test_activations(quick_finite, sine, activation):
    X, y = sine
    model = quick_finite(activation=activation).fit(X, y)
    assert model.score(X, y) > (0.2 if activation == "identity" else 0.8)


@harmful
@pytest.mark.parametrize("layers", [8, [8], (8,), np.array([8]), (8, 4, 4)], ids=str)
def test_layer_sizes(quick, sine, layers):
    model = quick(hidden_layer_sizes=layers, max_iter=2).fit(*sine)
    assert model.hidden_layer_sizes is layers
    if layers is not None and np.size(layers) == 1:
        reference = fitted_once(quick(hidden_layer_sizes=(8,), max_iter=2), *sine)
        assert_array_equal(model.predict(GRID), reference.predict(GRID))


@pytest.mark.parametrize("solver", ["adam", "adadelta"])
@pytest.mark.parametrize("schedule", ["one-cycle", "constant", "theory"])
@slow_cases("(constant|theory)-adadelta")
def test_solvers_and_schedules(quick_finite, sine, solver, schedule):
    rate = {"adam": 0.02, "adadelta": 1.0}[solver]
    model = quick_finite(
        solver=solver, learning_rate=schedule, learning_rate_init=rate, max_iter=30
    )
    model.fit(*sine)
    assert model.score(*sine) > 0.75
    assert len(set(model.loss_curve_)) == 30


@pytest.mark.parametrize("batch_size", [1, 64, 10_000, "auto"])
@slow_cases("SVGPRegressor-1", "10000", "SCGDGaussian-1$")
def test_batch_sizes(quick, sine, batch_size):
    X, y = (a[:40] for a in sine) if batch_size == 1 else sine
    model = quick(batch_size=batch_size, max_iter=4, learning_rate_init=0.003).fit(X, y)
    assert np.isfinite(model.predict(GRID)).all()
    assert model.score(*sine) > 0.5


@pytest.mark.parametrize(
    ("cls", "params"),
    [
        (SCGDGaussianProcessRegressor, {"weights": "learned"}),
        (SCGDGaussianProcessRegressor, {"averaging": "theory"}),
        (SCGDGaussianProcessRegressor, {"averaging": 0.9}),
        (SCGDGaussianProcessRegressor, {"averaging": 1}),
        (MinimaxGaussianProcessRegressor, {"dual_step": 1.0}),
    ],
)
def test_parameters_of_one_method(cls, params, sine):
    X, y = sine
    common = {"hidden_layer_sizes": (16,), "max_iter": 30, "n_estimators": 1, "random_state": 0}
    model = cls(**common, **params).fit(X, y)
    assert model.score(X, y) > 0.85


PAPER = {
    "kernel": DotProduct(0, "fixed"),
    "solver": "adadelta",
    "learning_rate": "constant",
    "learning_rate_init": 1.0,
    "noise": "learned",
    "early_stopping": False,
    "max_iter": 25,
    "weight_decay": 0,
    "batch_size": 32,
}


@pytest.mark.slow
@every_finite
@by_default("SCGD")
def test_the_papers_own_algorithm(finite, sine):
    own = {SCGDGaussianProcessRegressor: {"averaging": 0.9, "weights": "learned"}}
    model = finite(**PAPER, **own.get(finite, {}), random_state=0).fit(*sine)
    assert model.score(*sine) > 0.9
    assert (
        model.log_marginal_likelihood_value_
        > norm.logpdf(sine[1], sine[1].mean(), sine[1].std()).sum()
    )


@pytest.mark.slow
@every_finite
@pytest.mark.parametrize("early_stopping", [True])
@slow_cases("BSGD", "Minimax")
def test_ensembles(quick_finite, sine, early_stopping):
    one, three = (
        quick_finite(n_estimators=k, early_stopping=early_stopping, max_iter=15).fit(*sine)
        for k in (1, 3)
    )
    assert three.score(*sine) > 0.85
    assert three.posterior_.features.n_members == 3
    draws, mean = three.sample_y(GRID, 2000, latent=True), three.predict(GRID)
    assert_allclose(draws.mean(1), mean, atol=0.05)
    assert not np.array_equal(one.predict(GRID), mean)


@pytest.mark.parametrize(
    "params",
    [
        {"feature_map": nn.Sequential(nn.Linear(2, 8), nn.Tanh())},
        {"kernel": RBF(), "hidden_layer_sizes": (), "n_components": 20},
        {"kernel": RBF() + WhiteKernel(), "hidden_layer_sizes": (8,), "n_components": 20},
        {"kernel": DotProduct()},
        {"hidden_layer_sizes": ()},
    ],
    ids=["feature_map", "fourier", "fourier on a network", "dot product", "linear"],
)
def test_ensembles_of_anything_work_or_say_so(quick_finite, sine, params):
    model = quick_finite(**{**params, "n_estimators": 3, "max_iter": 4})
    refusal = ""
    try:
        model.fit(*sine)
    except ValueError as error:
        refusal = str(error)
    assert "n_estimators" in refusal or np.isfinite(model.predict(GRID)).all()


def test_early_stopping_keeps_the_iterate_of_the_best_score(quick, sine):
    model = quick(max_iter=20, early_stopping=True).fit(*sine)
    scores = model.validation_scores_
    assert len(scores) == model.n_iter_ == len(model.loss_curve_) == 20
    assert model.best_iter_ == 1 + int(np.argmin(scores))


def test_without_early_stopping_there_are_no_validation_scores(quick, sine):
    model = quick(early_stopping=False, max_iter=20).fit(*sine)
    assert model.validation_scores_ is None
    assert model.n_iter_ == len(model.loss_curve_) == 20
    assert 1 <= model.best_iter_ <= 20
    assert model.score(*sine) > 0.8


@pytest.mark.parametrize("early_stopping", [True, False])
def test_n_iter_no_change_stops(quick, sine, early_stopping):
    model = quick(n_iter_no_change=3, tol=1e3, early_stopping=early_stopping).fit(*sine)
    assert model.n_iter_ == 4  # the first is the best, and no other improves by 1000
    assert 1 <= model.best_iter_ <= 4  # what counts as the best does not depend on tol


def test_validation_rows_rejoin_the_closing_pass(quick, sine):
    """The evidence is that of all rows: the posterior has seen those that were held out."""
    X, y = sine
    model = quick(early_stopping=True, validation_fraction=0.5, dtype="float64", max_iter=5).fit(
        X, y
    )
    value = model.log_marginal_likelihood(X, y)
    assert model.log_marginal_likelihood_value_ == pytest.approx(value, rel=1e-9)
    assert model.posterior_.n_rows == len(X)


def test_verbose_prints_every_epoch(quick, sine, capsys):
    quick(max_iter=3).fit(*sine)
    assert capsys.readouterr() == ("", "")
    model = quick(max_iter=3, early_stopping=True, verbose=1).fit(*sine)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Epoch 1", "Epoch 2", "Epoch 3"]
    assert f"{model.loss_curve_[-1]:.4f}" in lines[-1]
    assert f"{model.validation_scores_[-1]:.4f}" in lines[-1]


# --------------------------------------------------------------------------- warm starts, streams
WARM = [
    {},
    {"n_estimators": 3},
    {
        "kernel": 2.0 * RBF([0.7, 3.0]) + WhiteKernel(0.1),
        "n_components": 30,
        "hidden_layer_sizes": (),
    },
    {"feature_map": nn.Sequential(nn.Linear(2, 8), nn.Tanh())},
]


@pytest.mark.parametrize("params", WARM, ids=["network", "ensemble", "fourier", "module"])
def test_warm_start_goes_on_from_the_features(quick_finite, sine, params):
    X, y = sine
    model = quick_finite(**params, max_iter=10, early_stopping=False).fit(X, y)
    features = copy.deepcopy(model.posterior_.features.state_dict())
    model.set_params(warm_start=True, learning_rate_init=1e-12, max_iter=1, weight_decay=0).fit(
        X, y
    )
    for name, value in model.posterior_.features.state_dict().items():
        assert_allclose(value, features[name], rtol=1e-5, atol=1e-7)
    cold = model.set_params(warm_start=False).fit(X, y)
    assert any(
        not np.allclose(value, features[name])
        for name, value in cold.posterior_.features.state_dict().items()
    )


@pytest.mark.slow
def test_warm_start_of_a_general_kernel(sine):
    kernel = RationalQuadratic() + WhiteKernel(0.5)
    model = BSGDGaussianProcessRegressor(
        kernel, hidden_layer_sizes=(), max_iter=15, random_state=0, batch_size=32
    ).fit(*sine)
    theta = model.kernel_.theta
    model.set_params(warm_start=True, learning_rate_init=1e-12, max_iter=1).fit(*sine)
    assert_allclose(model.kernel_.theta, theta, rtol=1e-4)


def test_warm_start_without_a_first_fit_is_a_fit(quick, sine):
    warm, cold = (
        quick(warm_start=True, max_iter=3).fit(*sine),
        fitted_once(quick(max_iter=3), *sine),
    )
    assert_array_equal(warm.predict(GRID), cold.predict(GRID))


@pytest.mark.parametrize("change", ["hidden_layer_sizes", "n_features", "kernel"])
def test_warm_start_refuses_another_shape(quick_finite, sine, change):
    X, y = sine
    model = quick_finite(warm_start=True, max_iter=2).fit(X, y)
    before = model.predict(GRID)
    if change == "hidden_layer_sizes":
        model.set_params(hidden_layer_sizes=(9,))
    elif change == "kernel":
        model.set_params(kernel=RBF(), n_components=7)
    else:
        X = X[:, :1]
    with pytest.raises(ValueError, match="warm_start"):
        model.fit(X, y)
    assert_array_equal(model.predict(GRID), before)


@few_rows
def test_warm_start_with_more_rows(finite, sine):
    """ "auto" may choose other numbers for more rows, but not another model."""
    X, y = sine
    model = finite(hidden_layer_sizes=(8,), max_iter=2, warm_start=True, random_state=0)
    model.fit(X[:10], y[:10])
    big = np.tile(X, (30, 1)), np.tile(y, 30)
    assert np.isfinite(model.fit(*big).predict(GRID)).all()


@slow_cases("SVGP")
def test_warm_start_after_a_stream(quick, sine):
    model = quick(warm_start=True, max_iter=12).fit(*sine).partial_fit(*sine).fit(*sine)
    assert model.score(*sine) > 0.8


def chunks(X, y, size=50):
    for start in range(0, len(X), size):
        yield X[start : start + size], y[start : start + size]


def stream_data(n_outputs=1, frequency=1.0):
    rng = np.random.default_rng(3)
    X = rng.uniform(-3, 3, (1500, 2))
    F = np.column_stack([np.sin(frequency * X[:, 0]), 5 + X[:, 1]])[:, :n_outputs]
    Y = F + 0.1 * rng.standard_normal(F.shape)
    return X, Y if n_outputs == 2 else Y[:, 0]


@pytest.mark.slow
@every_finite
@pytest.mark.parametrize("n_outputs", [2])
@slow_cases("BSGD")
def test_a_stream_improves_the_model(quick_finite, n_outputs):
    X, Y = stream_data(n_outputs, frequency=2.0)
    model, scores, densities = quick_finite(hidden_layer_sizes=(64,)), [], []
    for chunk in chunks(X[:1200], Y[:1200]):
        assert model.partial_fit(*chunk) is model
        if model.n_iter_ in (1, 24):
            mean, new = model.predict(X[1200:]), Y[1200:]
            scores.append(r2_score(new, mean, multioutput="raw_values")[0])
            densities.append(model.log_predictive_density(X[1200:], new).mean())
    assert scores[0] < 0.3
    assert scores[-1] > 0.6
    assert densities[-1] > densities[0] + 0.3
    assert model.predict(X[:3]).shape == Y[:3].shape
    assert np.ravel(model.noise_variance_)[0] < 0.3
    assert len(model.loss_curve_) == model.n_iter_ == 24


@pytest.mark.slow
@pytest.mark.parametrize("n_estimators", [1, 3])
@slow_cases("-1$")
def test_a_stream_goes_on_from_a_fit(quick_finite, n_estimators):
    X, y = stream_data()
    model = quick_finite(n_estimators=n_estimators, max_iter=30).fit(X[:300], y[:300])
    fitted = model.score(X[1200:], y[1200:])
    std = model.predict_std(GRID).mean()
    model.partial_fit(X[300:310], y[300:310])  # a few rows do not undo the fit
    assert model.score(X[1200:], y[1200:]) > fitted - 0.05
    assert model.predict_std(GRID).mean() == pytest.approx(std, rel=0.3)
    for chunk in chunks(X[300:1200], y[300:1200]):
        model.partial_fit(*chunk)
    assert model.score(X[1200:], y[1200:]) > fitted - 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {"kernel": RBF() + WhiteKernel(0.1), "hidden_layer_sizes": (), "n_components": 40},
        {"hidden_layer_sizes": ()},
        {"feature_map": nn.Sequential(nn.Linear(2, 16), nn.ReLU())},
    ],
    ids=["fourier", "linear", "module"],
)
@slow_cases("module")
def test_streams_of_other_features(quick_finite, params):
    X, y = stream_data()
    model = quick_finite(**params)
    for chunk in chunks(X[:1200], y[:1200]):
        model.partial_fit(*chunk)
    assert model.score(X[1200:], y[1200:]) > 0.25
    assert np.isfinite(model.log_marginal_likelihood_value_)
    assert_allclose(
        model.predict(GRID, return_cov=True)[1].diagonal() ** 0.5, model.predict_std(GRID)
    )


@pytest.mark.parametrize("layer", [nn.Dropout(0.2), nn.BatchNorm1d(16)], ids=["dropout", "norm"])
@slow_cases("SVGPRegressor-norm", "SCGDGaussian-dropout")
def test_streams_of_modules_with_two_modes(quick, layer):
    """The posterior of the chunks is that of the features that predict."""
    X, y = stream_data()
    model = quick(feature_map=nn.Sequential(nn.Linear(2, 16), nn.ReLU(), layer))
    for i, chunk in enumerate(chunks(X[:300], y[:300])):
        score = model.partial_fit(*chunk).score(X[1200:], y[1200:])
        assert score > (0.3 if i == 0 else 0.6), i


@every_finite
def test_a_linear_stream_is_the_linear_fit(quick_finite):
    """Nothing is to be trained, and the window is long: the chunks' statistics are all rows'."""
    rng = np.random.default_rng(0)
    X, kernel = rng.normal(size=(90, 10)), DotProduct(1.0, "fixed")
    y = X @ rng.normal(size=10) + rng.normal(size=90)
    params = {"kernel": kernel, **LINEAR, "normalize_y": False, "noise": "profiled"}
    stream = quick_finite(**params)
    for chunk in chunks(X, y, 30):
        stream.partial_fit(*chunk)
    fit = quick_finite(**params).fit(X, y)
    assert_allclose(stream.predict(X), fit.predict(X), rtol=1e-8, atol=1e-8)
    assert_allclose(stream.predict_std(X), fit.predict_std(X), rtol=1e-8)
    assert stream.log_marginal_likelihood_value_ == pytest.approx(
        fit.log_marginal_likelihood_value_, rel=1e-9
    )


def test_single_rows_can_be_streamed(quick, sine):
    X, y = sine
    model = quick().partial_fit(X[:20], y[:20])
    for i in range(20, 25):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    assert np.isfinite(model.predict(GRID, return_std=True)).all()


def test_streams_keep_scalings_and_refuse_other_shapes(quick, sine):
    X, y = sine
    model = quick().partial_fit(X, 1000.0 + y)
    model.partial_fit(X[:30], 1000.0 + y[:30])
    assert model.predict(GRID) == pytest.approx(1000.0, abs=3)
    with pytest.raises(ValueError, match="3 features"):
        model.partial_fit(np.zeros((5, 3)), y[:5])
    with pytest.raises(ValueError, match="y must have shape"):
        model.partial_fit(X, np.column_stack([y, y]))


def test_fit_forgets_a_stream(quick, sine, close_to):
    X, y = sine
    used, fresh = quick(max_iter=3).partial_fit(X, -y), quick(max_iter=3)
    for model in (used, fresh):
        model.fit(X[:, :1], y).partial_fit(X[:50, :1], y[:50])
    assert_array_equal(used.predict(GRID[:, :1]), fresh.predict(GRID[:, :1]))


def test_a_pickled_stream_goes_on(quick, sine):
    X, y = sine
    model = quick().partial_fit(X[:100], y[:100])
    other = pickle.loads(pickle.dumps(model))
    for m in (model, other):
        m.partial_fit(X[100:], y[100:])
    assert_array_equal(model.predict(GRID), other.predict(GRID))


def test_a_stream_does_not_keep_its_rows(quick):
    sizes = []
    for n_rows in (300, 3000):
        X = np.random.default_rng(0).normal(size=(n_rows, 5))
        sizes.append(len(pickle.dumps(quick().partial_fit(X, X[:, 0]))))
    assert sizes[1] < sizes[0] + 1000


# ----------------------------------------------------------------------- scikit-learn's machinery
@every_regressor
def test_parameters_round_trip(regressor):
    model = regressor(batch_size=7, kernel=RBF(2.0))
    params = model.get_params(deep=False)
    assert regressor(**params).get_params(deep=False) == params
    assert "batch_size=7" in repr(model)
    assert "batch_size" in model._repr_html_()
    assert is_regressor(model)
    assert model.__sklearn_tags__().target_tags.multi_output
    with pytest.raises(TypeError):
        regressor(None, (128,))  # all but the kernel are keywords


def test_clone_and_pickle(quick_finite, sine):
    X, y = sine
    model = quick_finite(kernel=RBF() + WhiteKernel(0.1), n_components=20, max_iter=3).fit(X, y)
    copied = pickle.loads(pickle.dumps(model))
    assert_array_equal(copied.predict(GRID), model.predict(GRID))
    assert_array_equal(copied.sample_y(GRID), model.sample_y(GRID))
    assert copied.kernel_ == model.kernel_
    fresh = clone(model)
    assert not hasattr(fresh, "posterior_")
    assert_array_equal(fresh.fit(X, y).predict(GRID), model.predict(GRID))


@pytest.mark.slow
def test_pipeline_and_grid_search(quick_finite, sine):
    X, y = sine
    pipeline = make_pipeline(StandardScaler(), quick_finite(max_iter=10))
    name = pipeline.steps[-1][0]
    search = GridSearchCV(
        pipeline,
        {f"{name}__activation": ["identity", "relu"]},
        scoring=neg_log_predictive_density_scorer,
        cv=2,
    ).fit(X, y)
    assert search.best_params_ == {f"{name}__activation": "relu"}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    train, test = train_test_split(np.arange(len(X)), random_state=0)
    assert search.best_estimator_.fit(X[train], y[train]).score(X[test], y[test]) > 0.7


def test_target_transformer(quick, sine):
    X, y = sine
    model = TransformedTargetRegressor(quick(max_iter=30), func=np.log, inverse_func=np.exp)
    assert model.fit(X, np.exp(y)).score(X, np.exp(y)) > 0.9


# -------------------------------------------------------------------------------------- callbacks
class Recording:
    """A callback that keeps what it is told, and the values of each epoch; it may stop the fit."""

    max_propagation_depth = None

    def __init__(self, stop_after=None):
        self.calls = []
        self.losses, self.scores = [], []
        self.stop_after = stop_after

    def setup(self, estimator, context):
        self.calls.append(("setup", context))

    def on_fit_task_begin(self, estimator, context):
        self.calls.append(("begin", context))

    def on_fit_task_end(self, estimator, context):
        self.calls.append(("end", context))
        if context.task_name != "epoch":
            return False
        self.losses.append(estimator.loss_curve_[-1])
        self.scores += (estimator.validation_scores_ or [])[-1:]
        return self.stop_after is not None and context.task_id + 1 >= self.stop_after

    def teardown(self, estimator, context):
        self.calls.append(("teardown", context))

    def of(self, hook, task_name):
        return [c for name, c in self.calls if name == hook and c.task_name == task_name]


@pytest.fixture
def callbacks():
    """scikit-learn's callbacks, from 1.9 on."""
    return pytest.importorskip("sklearn.callback")


def test_callbacks_are_told_of_every_epoch(callbacks, quick, sine):
    recording = Recording()
    model = quick(max_iter=6, early_stopping=True).set_callbacks(recording).fit(*sine)
    assert recording.calls[0][0] == "setup"
    assert recording.calls[-1][0] == "teardown"
    [fit] = recording.of("begin", "fit")
    assert fit.max_subtasks == 6
    assert recording.of("end", "fit") == [fit]
    epochs = recording.of("end", "epoch")
    assert epochs == recording.of("begin", "epoch")
    assert [context.task_id for context in epochs] == list(range(6))
    assert all(context.parent is fit for context in epochs)
    assert recording.losses == model.loss_curve_
    assert recording.scores == model.validation_scores_
    names = [name for name, context in recording.calls if context.task_name == "epoch"]
    assert names == ["begin", "end"] * 6


def test_callbacks_change_nothing(callbacks, quick, sine):
    plain, called = (
        fitted_once(quick(max_iter=3), *sine),
        quick(max_iter=3).set_callbacks(Recording()).fit(*sine),
    )
    assert_array_equal(plain.predict(GRID), called.predict(GRID))
    extra = set(vars(called)) - set(vars(plain))
    assert extra == {"_skl_callbacks"}


def test_callbacks_are_not_saved(callbacks, quick, sine, tmp_path):
    """Their reader lacked their class, and scikit-learn's context of the fit was refused."""
    asked = []

    class Saving(Recording):
        def on_fit_task_begin(self, estimator, context, **known):
            if context.task_name == "fit":
                with pytest.raises(NotFittedError, match="wait for the end of the fit"):
                    estimator.predict(GRID)

        def on_fit_task_end(self, estimator, context, **known):
            if context.task_name == "fit":
                estimator.save(tmp_path / "model")
                asked.append(estimator.predict(GRID))

    quick(max_iter=3).set_callbacks(Saving()).fit(*sine)
    model = skgpstoch.load(tmp_path / "model")
    assert not hasattr(model, "_skl_callbacks")
    assert_array_equal(model.predict(GRID), asked[0])


def test_callbacks_see_the_fits_of_a_wrapper(callbacks, quick, sine):
    recording = Recording()
    ConstantVarianceRegressor(quick(max_iter=3), cv=2).set_callbacks(recording).fit(*sine)
    assert len(recording.of("end", "fit")) == 4
    assert len(recording.of("end", "epoch")) == 9


def test_a_callback_can_stop_the_fit(callbacks, quick, sine):
    recording = Recording(stop_after=3)
    model = quick(max_iter=20).set_callbacks(recording).fit(*sine)
    assert model.n_iter_ == len(model.loss_curve_) == 3
    assert len(recording.of("end", "fit")) == 1
    assert np.isfinite(model.predict(GRID)).all()


@pytest.mark.slow
@slow_cases("SCGD")
def test_callbacks_in_a_pipeline_and_a_search(callbacks, quick, sine):
    recording = Recording()
    pipeline = make_pipeline(StandardScaler(), quick(max_iter=3)).set_callbacks(recording)
    pipeline.fit(*sine)
    assert len(recording.of("end", "epoch")) == 3
    recording = Recording()
    grid = {f"{pipeline.steps[-1][0]}__batch_size": [50, 100]}
    search = GridSearchCV(
        make_pipeline(StandardScaler(), quick(max_iter=3)), grid, cv=2
    ).set_callbacks(recording)
    search.fit(*sine)
    epochs = recording.of("end", "epoch")
    assert len(epochs) == 3 * (2 * 2 + 1)  # candidates × folds, and the final fit
    assert np.isfinite(recording.losses).all()
    assert all(depth(context) > 2 for context in epochs)


def depth(context):
    return 0 if context.parent is None else 1 + depth(context.parent)


def test_progress_bar(callbacks, quick, sine, capsys):
    pytest.importorskip("rich")
    model = quick(max_iter=8, n_iter_no_change=2, tol=1e3)  # stops before the bar is full
    model.set_callbacks(callbacks.ProgressBar()).fit(*sine)
    out = capsys.readouterr().out
    assert type(model).__name__ in out
    assert "100%" in out


@pytest.mark.parametrize("noise", ["auto", "profiled"])
def test_scoring_monitor(callbacks, quick_finite, sine, noise):
    """scikit-learn's own score per epoch gets data and a fitted estimator, and changes nothing."""
    monitor = callbacks.ScoringMonitor(scoring="r2")
    model = quick_finite(max_iter=4, noise=noise).set_callbacks(monitor).fit(*sine)
    scores = [entry["r2"] for entry in monitor.get_logs().data if "r2" in entry]
    assert len(scores) >= 4
    assert scores[model.best_iter_ - 1] == pytest.approx(model.score(*sine), abs=0.05)
    plain = quick_finite(max_iter=4, noise=noise).fit(*sine)
    assert_array_equal(model.predict(GRID), plain.predict(GRID))


def last_score(callbacks, model, scoring, *given, **of_rows):
    monitor = callbacks.ScoringMonitor(scoring=scoring)
    model.set_callbacks(monitor).fit(*given, **of_rows)
    return [entry[scoring] for entry in monitor.get_logs().data if scoring in entry][-1]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.slow
def test_callbacks_get_labels_weights_and_targets_that_are_not_transformed(callbacks, sine):
    """They got codes, no weights and transformed targets, so that scores were wrong in silence."""
    X, y = sine
    labels = np.array(["low", "middle", "high"])[np.digitize(y, [-0.5, 0.5])]
    few = {"solver": "natural", "max_iter": 5, "random_state": 0}
    classes = SVGPClassifier(**few)
    found = last_score(callbacks, classes, "accuracy", X, labels)
    assert found == pytest.approx(classes.score(X, labels), abs=0.05)
    of_log = SVGPRegressor(target_transform="log", **few)
    found = last_score(callbacks, of_log, "r2", X, np.exp(y))
    assert found == pytest.approx(of_log.score(X, np.exp(y)), abs=0.05)
    weight = np.where(y > 0.0, 50.0, 1.0)
    weighted = SVGPRegressor(n_inducing=2, **few)
    found = last_score(callbacks, weighted, "r2", X, y, sample_weight=weight)
    assert found == pytest.approx(weighted.score(X, y, sample_weight=weight), abs=0.05)
    assert abs(found - weighted.score(X, y)) > 0.1


@pytest.mark.slow
def test_loss_curve_is_the_negative_log_evidence_per_row(sine):
    """Its last value and the exact one are of one kind: nats per row of the scaled y."""
    X, y = sine
    model = SCGDGaussianProcessRegressor(
        hidden_layer_sizes=(16,), early_stopping=False, max_iter=80, random_state=0
    ).fit(X, y)
    exact = -(model.log_marginal_likelihood_value_ / len(X) + np.log(y.std()))
    assert model.loss_curve_[-1] == pytest.approx(exact, abs=0.2)
    assert all(later < earlier + 0.5 for earlier, later in pairwise(model.loss_curve_))

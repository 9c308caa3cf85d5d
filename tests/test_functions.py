"""Functions drawn from posteriors: their moments, and that they stay the same."""

import numpy as np
import pytest
import torch
from conftest import ESTIMATORS, fitted_once, named, quick_parameters
from families import by_family, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF, DotProduct, Matern, RationalQuadratic, WhiteKernel

from skgpstoch import (
    DeepGPRegressor,
    DeepKernelEnsembleRegressor,
    GaussianProcessRegressor,
    QSGPRegressor,
    QSRVMRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
    SVGPRegressor,
)

GRID = np.array([[-3.5, 0.0], [-2.0, 1.0], [-1.9, 1.0], [0.2, 0.0], [4.0, -2.0], [9.0, 9.0]])
N_DRAWS = 500
KERNEL = 1.3 * Matern([0.9, 3.0], nu=2.5) + WhiteKernel(0.02)
SPARSE = {"n_inducing": 8, "max_iter": 3, "random_state": 0}
REGRESSORS = [cls for cls in ESTIMATORS if not is_classifier(cls())]
REFUSED = [DeepGPRegressor, QSGPRegressor, QSRVMRegressor]


@pytest.fixture(scope="module")
def rows(sine):
    X, y = sine
    return X[:40], 5.0 + 3.0 * y[:40]


def z_scores(draws, mean, cov):
    """Of means and of products of deviations of draws (n, S), which should be standard normal."""
    n_draws = draws.shape[1]
    var = np.diag(cov)
    of_mean = (draws.mean(1) - mean) / np.sqrt(var / n_draws)
    error = draws - mean[:, None]
    spread = np.sqrt((np.outer(var, var) + cov**2) / n_draws)
    return np.concatenate([of_mean, ((error @ error.T / n_draws - cov) / spread).ravel()])


def check_moments(model, draws, options):
    mean, cov = model.predict(GRID, return_cov=True, **options)
    assert np.abs(z_scores(draws, mean, cov)).max() < 4.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel", [KERNEL, 0.5 * RBF(2.0) + 0.3 * DotProduct() + RBF(0.7)], ids=str
)
@pytest.mark.parametrize("alpha", [0.01, np.linspace(0.01, 1.0, 40)], ids=["one", "rows"])
@slow_cases("one-0", "rows-1", "^one-1.14")
def test_moments_of_the_drop_in(kernel, alpha, rows):
    model = GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None, normalize_y=True)
    model.fit(*rows)
    draws = model.sample_functions(N_DRAWS, random_state=0)(GRID)
    mean, cov = model.predict(GRID, return_cov=True)
    white = 0.02 if isinstance(kernel.k2, WhiteKernel) else 0.0
    cov = cov - white * rows[1].var() * np.eye(len(GRID))
    assert np.abs(z_scores(draws, mean, cov)).max() < 4.5


@pytest.mark.slow
def test_moments_of_the_prior():
    model = GaussianProcessRegressor(1.3 * Matern([0.9, 3.0], nu=0.5))
    check_moments(model, model.sample_functions(N_DRAWS, random_state=1)(GRID), {})


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(KERNEL, **SPARSE),
        SVGPRegressor(KERNEL, noise="input", solver="natural", **SPARSE),
        SolveGPRegressor(KERNEL, n_orthogonal=(4, 2), **SPARSE),
        SolveGPRegressor(KERNEL, n_orthogonal=6, posterior="odvgp", solver="natural", **SPARSE),
        SolveGPRegressor(KERNEL, n_orthogonal=6, posterior="odvgp", solver="adam", **SPARSE),
        SCGDGaussianProcessRegressor(hidden_layer_sizes=(8,), max_iter=3, random_state=0),
        DeepKernelEnsembleRegressor(n_estimators=3, max_iter=3, random_state=0),
    ],
    ids=lambda model: named(type(model)),
)
@slow_cases("SVGPRegressor1", "SVGPRegressor0", "SolveGPRegressor[12]", "SolveGP")
def test_moments_of_other_posteriors(model, rows):
    model = fitted_once(model, *rows)
    draws = model.sample_functions(N_DRAWS, random_state=0)(GRID)
    check_moments(model, draws, {"latent": True})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", by_family("functions", REGRESSORS))
def test_functions_are_the_same_everywhere(cls, sine):
    model = cls(**quick_parameters(cls))
    if "image_shape" in model.get_params():
        model.set_params(image_shape=(1, 2), patch_shape=(1, 1))
    model = fitted_once(model, *sine)
    if cls in REFUSED:
        with pytest.raises(
            ValueError, match="The posterior of this model cannot draw functions of X"
        ):
            model.sample_functions()
        return
    functions = model.sample_functions(3, random_state=0)
    values = functions(GRID)
    assert values.shape == (len(GRID), 3)
    assert_allclose(functions(GRID[3:]), values[3:], rtol=1e-7, atol=1e-9)
    assert_array_equal(model.sample_functions(3, random_state=0)(GRID), values)
    assert (model.sample_functions(3, random_state=1)(GRID) != values).all()
    # Near the data, functions are near the mean.
    near = sine[0][:5]
    error = functions(near) - model.predict(near)[:, None]
    assert np.abs(error).max() < 5.0 * model.predict_std(near).max()


def test_functions_stay_when_the_model_does_not(rows):
    X, y = rows
    model = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, y)
    functions = model.sample_functions(2)
    before = functions(GRID)
    model.fit(X[:5], y[:5])
    assert_array_equal(functions(GRID), before)


@pytest.mark.slow
def test_several_targets(rows):
    X, y = rows
    model = GaussianProcessRegressor(KERNEL, optimizer=None, normalize_y=True)
    model.fit(X, np.column_stack([y, -20.0 * y]))
    draws = model.sample_functions(200, random_state=0)(GRID[:2])
    assert draws.shape == (2, 2, 200)
    mean, std = model.predict(GRID[:2], return_std=True)
    assert (np.abs(draws.mean(2) - mean) < 5.0 * std / np.sqrt(200)).all()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sgpr", "scgd", "nngp"])
@slow_cases("sgpr")
def test_many_rows(method, rows):
    model = GaussianProcessRegressor(
        KERNEL, method=method, optimizer=None, normalize_y=True, random_state=0
    ).fit(*rows)
    draws = model.sample_functions(300, random_state=0)(GRID[:4])
    mean, std = model.predict(GRID[:4], return_std=True)
    assert (np.abs(draws.mean(1) - mean) < 5.0 * std / np.sqrt(300)).all()


@pytest.mark.parametrize("cls", [GaussianProcessRegressor, SVGPRegressor], ids=named)
def test_gradients_of_functions(cls, rows):
    model = cls(KERNEL, random_state=0).fit(*rows)
    functions = model.sample_functions(2, random_state=0)
    X = torch.tensor(GRID[:1], requires_grad=True)
    values = functions.torch(X)
    assert_allclose(values.detach(), functions(GRID[:1]), rtol=1e-10)
    (found,) = torch.autograd.grad(values[0, 1], X)
    step = 1e-5 * np.eye(2)
    expected = [(functions(GRID[:1] + s) - functions(GRID[:1] - s))[0, 1] / 2e-5 for s in step]
    assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)


def test_errors(rows):
    with pytest.raises(NotFittedError):
        SVGPRegressor().sample_functions()
    model = GaussianProcessRegressor(1.0 * RationalQuadratic(), alpha=0.1, optimizer=None).fit(
        *rows
    )
    with pytest.raises(TypeError, match="RationalQuadratic has no finite features"):
        model.sample_functions()
    with pytest.raises(ValueError, match="n_samples"):
        model.sample_functions(0)
    model = GaussianProcessRegressor(KERNEL, optimizer=None).fit(*rows)
    with pytest.raises(ValueError, match="features"):
        model.sample_functions()(GRID[:, :1])


@pytest.mark.parametrize("X", [GRID, torch.ones(2), torch.ones(0, 2), torch.ones(3, 1)])
@pytest.mark.parametrize("cls", [GaussianProcessRegressor, SVGPRegressor])
def test_tensors_of_another_shape_are_refused(cls, X, rows):
    functions = cls(KERNEL, random_state=0).fit(*rows).sample_functions()
    with pytest.raises(ValueError, match=r"X must be a tensor of shape|X has 1 (features|columns)"):
        functions.torch(X)

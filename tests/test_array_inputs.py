"""Tensors as inputs, whatever scikit-learn's array_api_dispatch says: predictions are NumPy's."""

import numpy as np
import pytest
import sklearn
import torch
from conftest import named
from families import slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skgpstoch import (
    AutoGaussianProcessRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    SVGPRegressor,
)

GPR = GaussianProcessRegressor(1.0 * RBF() + WhiteKernel(0.01), optimizer=None)


@pytest.fixture(params=[False, True], ids=["off", "on"])
def dispatch(request, monkeypatch):
    """scikit-learn's setting, which needs a variable of SciPy's."""
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    with sklearn.config_context(array_api_dispatch=request.param):
        yield


@pytest.mark.parametrize(
    "model",
    [GPR, GaussianProcessClassifier(), SVGPRegressor(n_inducing=5, max_iter=2, random_state=0)],
    ids=lambda model: named(type(model)),
)
@slow_cases("on-SVGP")
def test_tensors_are_read(model, dispatch, sine):
    X, y = (a[:40] for a in sine)
    y = y > 0.0 if isinstance(model, GaussianProcessClassifier) else y
    expected = model.fit(X, y).predict(X)
    X_t, y_t = torch.tensor(X, requires_grad=True), torch.tensor(y)
    found = model.fit(X_t, y_t).predict(X_t)
    assert type(found) is np.ndarray
    assert_array_equal(found, expected)
    assert model.score(X_t, y_t) == pytest.approx(model.score(X, y))


@pytest.mark.parametrize(
    ("dtype", "tol"), [(torch.float32, 1e-5), (torch.float16, 0.05), (torch.bfloat16, 0.5)]
)
def test_tensors_of_fewer_digits(dtype, tol, dispatch, sine):
    X, y = (a[:40] for a in sine)
    expected = GPR.fit(X, y).predict(X)
    found = GPR.fit(torch.tensor(X).to(dtype), torch.tensor(y).to(dtype)).predict(X)
    assert_allclose(found, expected, atol=tol)


def test_tensors_of_a_device(pretend, dispatch, sine):
    X, y = (a[:40] for a in sine)
    expected = GPR.fit(X, y).predict(X)
    X_t, y_t = torch.tensor(X).to("pretend"), torch.tensor(y).to("pretend")
    model = GPR.fit(X_t, y_t)
    assert_array_equal(model.predict(X_t), expected)
    assert_array_equal(model.predict_gradient(X_t)[0], model.predict_gradient(X)[0])
    model.condition_on(X_t[:2] + 1.0, y_t[:2])
    assert len(model.X_train_) == 42


@pytest.mark.parametrize("make", [AutoGaussianProcessRegressor, GaussianProcessClassifier])
@pytest.mark.parametrize("y", [3, np.array(3.0)])
def test_a_single_number_is_no_target(make, y):
    with pytest.raises(ValueError, match="target for each row of X, got the number 3"):
        make().fit(np.ones((3, 2)), y)

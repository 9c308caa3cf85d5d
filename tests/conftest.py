"""One thread, no drawing on screens, and the fixtures that several test modules share."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import skgpstoch

torch.manual_seed(0)  # for modules that are made when tests are collected
# Small matrices gain nothing from a second thread, and results must not depend on the machine.
torch.set_num_threads(1)
os.environ.setdefault("MPLBACKEND", "Agg")

REGRESSORS = [getattr(skgpstoch, name) for name in skgpstoch.__all__]
QUICK = {"hidden_layer_sizes": (16,), "n_estimators": 1, "max_iter": 25, "random_state": 0}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked gpu need one, also where the marker is selected."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def seeded():
    """Modules that a test makes are the same whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(params=REGRESSORS, ids=lambda cls: cls.__name__.removesuffix("ProcessRegressor"))
def regressor(request):
    """Each of the public regressors' classes."""
    return request.param


@pytest.fixture
def quick(regressor):
    """Constructor of a regressor that fits in a fraction of a second: quick(**parameters)."""
    return lambda **params: regressor(**{**QUICK, **params})


@pytest.fixture(scope="session")
def sine():
    """200 rows of a sine of the first of two inputs, with noise of standard deviation 0.1."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (200, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(200)
    X.flags.writeable = y.flags.writeable = False
    return X, y


@pytest.fixture
def close_to():
    """Comparison of two fitted regressors' predictive means and standard deviations."""

    def check(a, b, X, rtol=0.0, atol=0.0):
        for one, other in zip(
            a.predict(X, return_std=True), b.predict(X, return_std=True), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)

    return check

"""bayesian-optimization maximises with our drop-in in place of scikit-learn's class."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skgpstoch import GaussianProcessRegressor

pytest.importorskip("bayes_opt")

import bayes_opt
from bayes_opt import bayesian_optimization

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]


def hill(x, y):
    return -((x - 2.0) ** 2) - (y + 1.0) ** 2 + 5.0


def maximised(acquisition=None, bounds=None):
    optimizer = bayes_opt.BayesianOptimization(
        hill,
        bounds or {"x": (-4.0, 4.0), "y": (-3.0, 3.0)},
        acquisition_function=acquisition,
        random_state=0,
        verbose=0,
    )
    optimizer.maximize(init_points=4, n_iter=8)
    return optimizer


@pytest.fixture
def swapped(monkeypatch):
    monkeypatch.setattr(bayesian_optimization, "GaussianProcessRegressor", GaussianProcessRegressor)


@pytest.mark.parametrize("name", ["UpperConfidenceBound", "ExpectedImprovement"])
def test_maxima(name, swapped):
    parameters = {} if name == "UpperConfidenceBound" else {"xi": 0.01}
    optimizer = maximised(getattr(bayes_opt.acquisition, name)(**parameters))
    assert type(optimizer._gp) is GaussianProcessRegressor
    assert optimizer.max["target"] > 4.5
    mean, std = optimizer.predict({"x": 2.0, "y": -1.0}, return_std=True)
    assert_allclose(mean, 5.0, atol=0.5)
    assert std < 1.0


def test_integers(swapped):
    optimizer = maximised(bounds={"x": (-4, 4, int), "y": (-3.0, 3.0)})
    assert optimizer.max["target"] > 4.0
    assert float(optimizer.max["params"]["x"]).is_integer()


def test_as_good_as_with_scikit_learn(monkeypatch):
    theirs = maximised().max["target"]
    monkeypatch.setattr(bayesian_optimization, "GaussianProcessRegressor", GaussianProcessRegressor)
    ours = maximised().max["target"]
    assert ours > theirs - 0.2
    assert np.isfinite(ours)

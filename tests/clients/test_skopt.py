"""scikit-optimize searches with our drop-in as its surrogate, by gradients of its predictions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from skgpstoch import GaussianProcessRegressor, SVGPRegressor

pytest.importorskip("skopt")

import skopt
from skopt.learning import GaussianProcessRegressor as TheirRegressor
from skopt.learning.gaussian_process import kernels as their_kernels

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

rng = np.random.default_rng(0)
X = rng.uniform(0.0, 1.0, (30, 2))
y = np.sin(6.0 * X[:, 0]) + X[:, 1]
KERNEL = ConstantKernel(1.0, (0.01, 1000.0)) * Matern([1.0, 1.0], [(0.01, 100.0)] * 2, nu=2.5)
FEW = {"acq_optimizer_kwargs": {"n_points": 200, "n_restarts_optimizer": 2}, "random_state": 0}
ASKED = {"return_std": True, "return_mean_grad": True, "return_std_grad": True}


def valley(x):
    return (x[0] - 0.3) ** 2 + (x[1] - 0.8) ** 2


def surrogate(**parameters):
    return GaussianProcessRegressor(
        KERNEL, normalize_y=True, n_restarts_optimizer=1, random_state=0, **parameters
    )


@pytest.mark.parametrize(
    "kernel",
    [
        their_kernels.Matern([0.7, 1.3], nu=2.5),
        their_kernels.Matern(0.8, nu=1.5),
        their_kernels.RBF([0.5, 1.2]),
        their_kernels.RationalQuadratic(0.8, 1.2),
        their_kernels.ConstantKernel(2.0) * their_kernels.RBF(0.6),
    ],
    ids=str,
)
def test_predictions_and_gradients_are_theirs(kernel):
    theirs = TheirRegressor(kernel, alpha=1e-3, optimizer=None, normalize_y=True).fit(X, y)
    ours = GaussianProcessRegressor(ours_of(kernel), alpha=1e-3, optimizer=None, normalize_y=True)
    ours.fit(X, y)
    for row in rng.uniform(0.0, 1.0, (5, 1, 2)):
        both = (model.predict(row, **ASKED) for model in (ours, theirs))
        for one, other in zip(*both, strict=True):
            assert one.shape == other.shape
            assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def ours_of(kernel):
    """scikit-learn's kernel of the same name and parameters: theirs are subclasses."""
    if isinstance(kernel, their_kernels.Product):
        return ours_of(kernel.k1) * ours_of(kernel.k2)
    parameters = {k: v for k, v in kernel.get_params().items() if k in vars(kernel)}
    base = next(c for c in type(kernel).__mro__ if c.__module__.startswith("sklearn"))
    return base(**parameters)


@pytest.mark.parametrize("acquisition", ["gp_hedge", "LCB", "PVRS", "MES"])
def test_gp_minimize(acquisition):
    found = skopt.gp_minimize(
        valley,
        [(0.0, 1.0)] * 2,
        base_estimator=surrogate(),
        acq_func=acquisition,
        n_calls=14,
        n_initial_points=6,
        n_points=200,
        random_state=0,
    )
    assert found.fun < 0.01
    model = found.models[-1]
    assert isinstance(model, GaussianProcessRegressor)
    assert len(model.X_train_) == len(model.y_train_) == 14
    again = skopt.gp_minimize(
        valley,
        [(0.0, 1.0)] * 2,
        base_estimator=clone(surrogate()),
        acq_func=acquisition,
        n_calls=7,
        n_initial_points=6,
        n_points=200,
        random_state=0,
    )
    if acquisition != "MES":  # which draws from the global generator
        assert again.x_iters == found.x_iters[:7]


def test_gradients_are_used():
    optimizer = skopt.Optimizer([(0.0, 1.0)] * 2, surrogate(), n_initial_points=2, random_state=0)
    assert optimizer.acq_optimizer == "lbfgs"


def test_several_points_at_once():
    optimizer = skopt.Optimizer([(0.0, 1.0)] * 2, surrogate(), n_initial_points=4, **FEW)
    for _ in range(3):
        points = optimizer.ask(n_points=4)
        result = optimizer.tell(points, [valley(x) for x in points])
    assert result.fun < 0.1
    assert len({tuple(x) for x in result.x_iters}) == 12


def test_seconds_of_calls():
    def timed(x):
        return valley(x), 1.0 + x[0]

    optimizer = skopt.Optimizer(
        [(0.0, 1.0)] * 2, surrogate(), n_initial_points=4, acq_func="EIps", **FEW
    )
    optimizer.run(timed, n_iter=7)
    assert len(optimizer.models) == 4
    assert min(value for value, _ in optimizer.yi) < 0.2


def test_searches_of_hyper_parameters():
    space = {"max_iter": (1, 5), "n_inducing": (3, 20)}
    model = SVGPRegressor(random_state=0)
    search = skopt.BayesSearchCV(
        model, space, n_iter=5, cv=2, random_state=0, optimizer_kwargs={"n_initial_points": 3}
    )
    search.fit(X, y)
    assert search.best_estimator_.predict(X).shape == (30,)

"""Length-scales that a search of the evidence has missed."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.metrics import log_loss, r2_score

from skgpstoch import SolveGPRegressor, SVGPClassifier, SVGPRegressor
from skgpstoch.kernels import from_sklearn
from skgpstoch.kernels.distances import matern_3
from skgpstoch.training.recipes.short_scales import (
    CENTRES,
    NEAR,
    SPREAD,
    Judge,
    distances,
    shortened,
    shorter,
)

FAST = {
    "one": lambda X: np.sin(3.0 * X[:, 0]),
    "two": lambda X: np.sin(3.0 * X[:, 0]) + np.cos(2.5 * X[:, 1]),
    "beside a plane": lambda X: np.sin(3.0 * X[:, 0]) + 0.5 * X[:, 1:6].sum(1),
    "product": lambda X: np.sin(3.0 * X[:, 0]) * X[:, 1],
    "steps": lambda X: np.floor(2.0 * X[:, 0]) % 2.0,
}
ANY = torch.zeros(3, dtype=torch.float64)
LONG = torch.full((3,), 5.0, dtype=torch.float64)


def rows(name, seed=2, n=300, d=30, n_new=500):
    r = np.random.default_rng(seed)
    X = r.normal(size=(n + n_new, d))
    y = FAST[name](X) + 0.1 * r.normal(size=len(X))
    return X[:n], y[:n], X[n:], y[n:]


def judged(n=80, seed=0):
    r = np.random.default_rng(seed)
    X = torch.from_numpy(r.normal(size=(n, 3)))
    R = torch.sin(4.0 * X[:, :1]) + 0.1 * torch.from_numpy(r.normal(size=(n, 1)))
    return X, R - R.mean(), torch.ones(n, dtype=torch.float64)


def test_the_evidence_is_that_of_scikit_learn_at_the_best_scale():
    X, R, precision = judged()
    judge = Judge(ANY, X, R, precision, matern_3, 0.0)
    evidence, rho, c = judge.judged(distances(X / LONG)[None])
    shape = Matern(LONG.numpy(), nu=1.5)
    kernel = ConstantKernel(float(rho * c)) * shape + WhiteKernel(float((1.0 - rho) * c))
    model = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(X, R)
    expected = model.log_marginal_likelihood_value_ + 0.5 * len(X) * (1.0 + np.log(2.0 * np.pi))
    assert_allclose(float(evidence), expected, rtol=1e-8)
    for factor in (0.9, 1.1):  # c is the best one
        other = model.log_marginal_likelihood(
            kernel.theta + np.log([factor, 1.0, 1.0, 1.0, factor])
        )
        assert other < model.log_marginal_likelihood_value_


def test_only_the_input_that_varies_fast_gets_a_shorter_length_scale():
    new = shortened(Judge(ANY, *judged(), matern_3, 0.5), LONG)
    assert new.scales[0] < 0.5
    assert_allclose(new.scales[1:], LONG[1:])


@pytest.mark.parametrize("seed", range(4))
def test_noise_and_a_plane_keep_long_length_scales(seed):
    r = np.random.default_rng(seed)
    X, precision = torch.from_numpy(r.normal(size=(150, 20))), torch.ones(150)
    scales, noise = torch.full((20,), 5.0), torch.from_numpy(r.normal(size=(150, 1)))
    judge = Judge(torch.zeros(20), X, noise, precision, matern_3, 0.0)
    assert shortened(judge, scales) is None
    plane = X[:, :4].sum(1, keepdim=True) + 0.1 * noise
    judge = Judge(torch.zeros(20), X, plane - plane.mean(), precision, matern_3, 0.9)
    assert shortened(judge, scales) is None


def test_a_single_length_scale_gets_shorter():
    X, _, precision = judged()
    both = torch.sin(4.0 * X[:, :1]) + torch.cos(4.0 * X[:, 1:2])
    judge = Judge(ANY[:1], X[:, :2], both - both.mean(), precision, matern_3, 0.5)
    new = shortened(judge, LONG[:1])
    assert new.scales.shape == (1,)
    assert new.scales < 0.5


@pytest.mark.parametrize("d", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_function_with_many_periods_is_found(d):
    """R² was 0; rows near each other tell."""
    r = np.random.default_rng(0)
    X = r.uniform(0.0, 60.0, (900, d))
    y = np.sin(3.0 * X[:, 0]) + 0.2 * r.normal(size=900)
    model = SVGPRegressor(random_state=0).fit(X[:400], y[:400])
    assert r2_score(y[400:], model.predict(X[400:])) > 0.7


def test_rows_with_little_precision_count_for_little():
    X, R, precision = judged()
    wild = torch.where(torch.arange(len(R))[:, None] % 4 == 0, 30.0 * R.flip(0), R)
    precision[::4] = 1e-4
    blind = Judge(ANY, X, wild, torch.ones_like(precision), matern_3, 0.5)
    assert shortened(blind, LONG) is None
    assert shortened(Judge(ANY, X, wild, precision, matern_3, 0.5), LONG).scales[0] < 0.5


@pytest.mark.parametrize(
    ("bounds", "least"), [((1e-5, 1e5), 0.1), ((2.0, 10.0), 2.0), ("fixed", 5.0)]
)
def test_length_scales_stay_within_their_bounds(bounds, least):
    X, R, precision = judged()
    kernel = from_sklearn(ConstantKernel() * Matern(LONG.numpy(), bounds, nu=1.5))
    new = shorter(kernel, X, R, precision)
    assert (new is None) == (least >= 2.0)
    if new is not None:
        assert least <= new.scales[0] < 0.5


def test_many_rows_cost_what_few_do():
    X, R, precision = judged(2000)
    assert len(Judge(ANY, X, R, precision, matern_3, 0.0).R) <= SPREAD + CENTRES * NEAR


@pytest.mark.parametrize(
    "name", ["two", *(pytest.param(n, marks=pytest.mark.slow) for n in FAST if n != "two")]
)
def test_functions_that_vary_fast_along_few_of_many_inputs_are_found(name):
    """R² was 0 to .6 with each of these, as with scikit-learn's own process."""
    X, y, X_new, y_new = rows(name)
    model = SVGPRegressor(random_state=0).fit(X, y)
    assert r2_score(y_new, model.predict(X_new)) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_they_are_found_with_orthogonal_points(name):
    X, y, X_new, y_new = rows(name)
    model = SolveGPRegressor(random_state=0).fit(X, y)
    assert r2_score(y_new, model.predict(X_new)) > 0.8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*length_scale:sklearn.exceptions.ConvergenceWarning")
def test_they_are_found_by_a_given_kernel():
    X, y, X_new, y_new = rows("two")
    kernel = ConstantKernel() * RBF(np.full(30, 3.0)) + WhiteKernel(0.1)
    model = SVGPRegressor(kernel=kernel, random_state=0).fit(X, y)
    assert r2_score(y_new, model.predict(X_new)) > 0.8


@pytest.mark.parametrize("name", ["one", pytest.param("two", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:Errors have heavy tails")  # after so few epochs
@pytest.mark.slow
def test_they_are_found_in_minibatches(name):
    """R² was 0 after all of the training, too, of 5,000 rows."""
    X, y, X_new, y_new = rows(name, n=2200)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model = SVGPRegressor(max_iter=3, n_inducing=100, random_state=0).fit(X, y)
    assert r2_score(y_new, model.predict(X_new)) > 0.8


def test_a_kernel_that_explains_noise_as_f_does_not_count_it_twice():
    """With a fixed variance of 1, exact evidence of noise is highest where f is white."""
    r = np.random.default_rng(0)
    X, y = r.normal(size=(1000, 5)), r.normal(size=1000)
    model = SVGPRegressor(RBF(), n_inducing=100, random_state=0).fit(X, y)
    assert model.noise_variance_ < 1.2 * y.var()


@pytest.mark.parametrize("kernel", [None, RBF(0.5) + RBF(2.0)])
def test_points_are_those_of_the_parameter(kernel):
    """Random rows, which stand in where points are placed after such a start, were left."""
    X, y, *_ = rows("one", n=1200, d=2)
    model = SVGPRegressor(
        kernel, inducing_points="conditional_variance", learn_inducing_points=False
    ).set_params(n_inducing=9, batch_size=200, max_iter=1, random_state=0)
    points = model.fit(X, y).inducing_points_
    between = np.linalg.norm(points[:, None] - points, axis=2) + 9.0 * np.eye(9)
    assert between.min() > 1.0  # of random rows, .3


@pytest.mark.slow
@pytest.mark.parametrize("n", [200, 600, 1200])
def test_classes_are_found(n):
    """The log loss of 600 rows was that of the shares, .69."""
    r = np.random.default_rng(2)
    X = r.normal(size=(n + 1000, 30))
    y = r.uniform(size=len(X)) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(3.0 * X[:, 0])))
    model = SVGPClassifier(random_state=0).fit(X[:n], y[:n])
    assert log_loss(y[n:], model.predict_proba(X[n:])) < 0.52

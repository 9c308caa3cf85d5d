"""n_restarts of sparse processes: another start finds what the first does not."""

import joblib
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.gaussian_process.kernels import ExpSineSquared, WhiteKernel

from skgpstoch import FITCRegressor, SolveGPRegressor, SVGPClassifier, SVGPRegressor

KERNEL = 1.0 * ExpSineSquared(1.0, 0.02, periodicity_bounds=(1e-2, 1e1)) + WhiteKernel(0.1)


@pytest.fixture(scope="module")
def season():
    """A sine of noise, and a kernel that starts at a three-hundredth of its period."""
    rng = np.random.RandomState(8)
    X = rng.choice(np.linspace(0, 30, 1000), 60, replace=False)[:, None]
    return X, np.sin(X[:, 0]) + 0.5 * rng.standard_normal(60)


def model(cls, n_restarts, **params):
    if cls is SolveGPRegressor:
        params["n_orthogonal"] = 5
    shared = {"n_inducing": 15, "solver": "lbfgs", "max_iter": 5, "random_state": 0}
    return cls(KERNEL, n_restarts=n_restarts, **shared | params)


@pytest.mark.parametrize(
    "cls",
    [
        SVGPRegressor,
        pytest.param(SolveGPRegressor, marks=pytest.mark.slow),
        pytest.param(FITCRegressor, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_restart_finds_the_period(cls, season):
    one, several = model(cls, 0).fit(*season), model(cls, 3).fit(*season)
    assert several.log_marginal_likelihood_value_ > one.log_marginal_likelihood_value_ + 10.0
    assert several.kernel_.get_params()["k1__k2__periodicity"] == pytest.approx(2 * np.pi, rel=0.1)
    assert len(several.loss_curve_) == several.n_iter_


@pytest.mark.slow
def test_the_first_start_is_the_usual_one(season):
    """Where it is the best, all is as without restarts."""
    kernel = 1.0 * ExpSineSquared(2.7, 6.2, periodicity_bounds=(1e-2, 1e1)) + WhiteKernel(0.2)
    one, several = (model(SVGPRegressor, n).set_params(kernel=kernel, tol=1e-3) for n in (0, 2))
    one, several = one.fit(*season), several.fit(*season)
    assert several.log_marginal_likelihood_value_ >= one.log_marginal_likelihood_value_


@pytest.mark.parametrize(
    "backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)]
)  # whose workers have another number of threads
def test_jobs_find_the_same_to_the_last_bit(backend, season):
    alone, together = (model(SVGPRegressor, 3, max_iter=1) for _ in range(2))
    alone.fit(*season)
    with joblib.parallel_config(backend, n_jobs=2):
        together.fit(*season)
    assert alone.kernel_ == together.kernel_
    assert_array_equal(alone.predict(season[0]), together.predict(season[0]))


@pytest.mark.filterwarnings("ignore:Errors at neighbouring rows")
@pytest.mark.parametrize("noise", ["fixed", (1e-5, 1e5)])
def test_restarts_of_a_kernel_without_anything_to_learn(season, noise):
    """NumPy's error was raised."""
    kernel = ExpSineSquared(1.0, 0.5, "fixed", "fixed") + WhiteKernel(0.1, noise)
    model = SVGPRegressor(kernel, n_restarts=2, random_state=0).fit(*season[:2])
    assert model.kernel_.k1 == kernel.k1


def test_restarts_need_lbfgs(season):
    X, y = season
    with pytest.raises(ValueError, match=r"n_restarts=2 needs solver='lbfgs'.*solver='natural'"):
        model(SVGPRegressor, 2, solver="natural").fit(X, y)
    with pytest.raises(ValueError, match="n_restarts"):
        model(SVGPRegressor, -1).fit(X, y)
    streams = SVGPClassifier(n_inducing=5, n_restarts=1, loss="log", max_iter=1)
    with pytest.warns(UserWarning, match=r"n_restarts=1 was ignored"):
        streams.fit(X, y > 0)

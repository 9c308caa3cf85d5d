"""Edges of what users may give: numbers that overflow, arrays of every kind, calls out of order."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import DotProduct

from skgpstoch import SVGPRegressor
from skgpstoch.likelihoods import Poisson
from skgpstoch.maths.gaussian import Marginals

# ---- numbers that overflow ---------------------------------------------------------------------


def poisson(**params):
    params = {"likelihood": "poisson", "random_state": 0, "max_iter": 5, **params}
    return SVGPRegressor(inducing_points="random", **params)


def predictions(model, X, y):
    """All that a regressor says of rows."""
    yield from model.predict(X, return_std=True)
    yield from model.predict(X, return_std=True, latent=True)
    yield model.predict_interval(X)
    yield model.sample_y(X, 2)
    yield model.log_predictive_density(X, y)


@pytest.mark.parametrize("counts", [(0, 1e6), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("solver", ["lbfgs", "natural", "adam"])
@pytest.mark.filterwarnings("error:.*beyond float64")
def test_degenerate_counts_have_finite_predictions(counts, solver):
    X = np.random.default_rng(2).standard_normal((len(counts), 3))
    model = poisson(solver=solver, max_iter=2).fit(X, counts)
    far, y = np.concatenate([X, 3.0 * X, 1e3 * X]), np.tile(counts, 3)
    assert all(np.isfinite(a).all() for a in predictions(model, far, y))


def test_the_default_kernel_of_rates_has_no_absurd_variance():
    """One count among zeros is most likely with any variance: E[rate] was 10⁶³, and more."""
    X = np.random.default_rng(2).standard_normal((20, 1))
    model = poisson(solver="lbfgs", max_iter=1).fit(X, [1e6, *[0] * 19])
    assert model.predict(1e3 * X).max() < 1e6 * np.exp(50.0)


def test_rates_beyond_float64_are_cut_with_a_warning():
    X = np.linspace(-1.0, 1.0, 10)[:, None]
    y = np.round(np.exp(3.0 * X[:, 0]))
    model = poisson(kernel=DotProduct()).fit(X, y)
    with pytest.warns(RuntimeWarning, match=r"beyond float64 at 2 rows.*predict_interval"):
        mean, std = model.predict([[-1e4], [0.0], [1e4]], return_std=True)
    assert np.isfinite([mean, std]).all()
    assert mean[1] < 10.0
    draws, interval = (f([[1e4]]) for f in (model.sample_y, model.predict_interval))
    assert (draws >= 0.0).all()  # not an integer that has overflowed
    assert np.isfinite(interval).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_of_counts_are_finite_however_uncertain(dtype):
    mean, var = (
        torch.tensor(a, dtype=dtype)[None, :, None]
        for a in ([-1e5, 0.0, 1e3, 2.0, 2.0], [1e3, 1e5, 1e3, 0.0, 0.5])
    )
    moments = Poisson().moments(Marginals(mean, var))
    assert all(a.isfinite().all() and (a >= 0.0).all() for a in moments)
    rate = np.exp(2.25)  # of the last, a lognormal
    known = [rate, rate + rate**2 * np.expm1(0.5)]
    assert np.allclose([float(a[0, -1, 0]) for a in moments], known, rtol=1e-5)
    draws = Poisson().sample(mean[0], torch.Generator().manual_seed(0))
    assert (draws >= 0.0).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"y": 1e16}, "counts of at most 1e.15.*larger unit"),
        ({"exposure": 1e40}, "exposure must be between 1e-30 and 1e.30.*another unit"),
        ({"exposure": 1e-40}, "exposure must be between 1e-30 and 1e.30.*another unit"),
    ],
    ids=str,
)
def test_counts_and_exposures_beyond_their_types_are_refused(given, words):
    X, y = np.eye(4), np.full(4, given.get("y", 1.0))
    with pytest.raises(ValueError, match=words):
        poisson().fit(X, y, exposure=given.get("exposure"))

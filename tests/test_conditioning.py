"""Posteriors given more rows, with the hyper-parameters that they have."""

import copy

import numpy as np
import pytest
import torch
from conftest import ESTIMATORS, IMAGES, fitted_once, named, quick_parameters
from families import by_family, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF, Matern, PairwiseKernel, WhiteKernel

from skgpstoch import (
    ADMMGaussianProcessRegressor,
    DeepGPRegressor,
    DeepKernelEnsembleRegressor,
    DLMRegressor,
    FITCRegressor,
    GaussianProcessRegressor,
    NNGPRegressor,
    QSGPRegressor,
    QSRVMRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
    SVGPRegressor,
)
from skgpstoch.data.rows import Rows
from skgpstoch.likelihoods import Gaussian
from skgpstoch.maths.linalg import NotPositiveDefiniteError
from skgpstoch.models.posteriors.blocks import moments_of
from skgpstoch.models.posteriors.exact import ExactPosterior
from skgpstoch.objectives.optimal_q import evidence_bound, optimal_q

GRID = np.column_stack([np.linspace(-3.5, 3.5, 20), np.linspace(2.0, -2.0, 20)])
KERNEL = 1.3 * Matern([0.9, 3.0], nu=2.5) + WhiteKernel(0.02)


@pytest.fixture(scope="module")
def rows(sine):
    X, y = sine
    return X[:60], y[:60], X[60:75], y[60:75]


def same_predictions(a, b, rtol=1e-8):
    assert_allclose(a.predict(GRID), b.predict(GRID), rtol=rtol, atol=rtol)
    assert_allclose(a.predict_std(GRID), b.predict_std(GRID), rtol=rtol, atol=rtol)


# ---- the drop-in ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        GaussianProcessRegressor(KERNEL, optimizer=None),
        SVGPRegressor(n_inducing=5, max_iter=1, random_state=0),
        NNGPRegressor(kernel=KERNEL, max_iter=1, random_state=0),
        SCGDGaussianProcessRegressor(n_components=4, max_iter=1, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_targets_far_beyond_the_fit_leave_it_as_it_was(model, rows):
    """Sums of squares overflowed, and the next prediction was NaN."""
    X, y, X_new, _ = rows
    before = model.fit(X, y).predict(GRID)
    with pytest.raises(ValueError, match="y is too far from the targets of fit"):
        model.condition_on(X_new[:2], [0.0, 1e308])
    assert_array_equal(model.predict(GRID), before)


@pytest.mark.parametrize(
    "model",
    [
        SCGDGaussianProcessRegressor(n_components=4, max_iter=1, random_state=0),
        ADMMGaussianProcessRegressor(max_iter=1, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_known_errors_are_refused_where_all_rows_have_the_same_noise(model, rows):
    """They were ignored."""
    X, y, X_new, y_new = rows
    before = model.fit(X, y).predict(GRID)
    with pytest.raises(ValueError, match="y_std must be None here"):
        model.condition_on(X_new, y_new, y_std=0.5)
    assert_array_equal(model.predict(GRID), before)


@pytest.mark.parametrize("kernel", [KERNEL, PairwiseKernel(gamma=0.5, metric="rbf")], ids=str)
@pytest.mark.parametrize("alpha", [1e-10, 0.03, "rows"])
@slow_cases(r"(0\.03|rows)-Pairwise")
def test_as_a_fit_to_all_rows(kernel, alpha, rows):
    X, y, X_new, y_new = rows
    of_rows = np.linspace(0.01, 0.2, len(y) + len(y_new))
    first, new, both = (alpha,) * 3
    if alpha == "rows":
        first, new, both = of_rows[: len(y)], of_rows[len(y) :], of_rows
    elif isinstance(kernel, PairwiseKernel):
        first = both = max(alpha, 1e-3)
        new = None
    model = GaussianProcessRegressor(kernel, alpha=first, optimizer=None).fit(X, y)
    assert model.condition_on(X_new, y_new, alpha=new) is model
    whole = GaussianProcessRegressor(kernel, alpha=both, optimizer=None)
    whole.fit(np.concatenate([X, X_new]), np.concatenate([y, y_new]))
    same_predictions(model, whole)
    for name in ("L_", "alpha_", "X_train_", "y_train_", "log_marginal_likelihood_value_"):
        assert_allclose(getattr(model, name), getattr(whole, name), rtol=1e-6, atol=1e-7)
    theta = model.kernel_.theta
    assert_allclose(
        model.log_marginal_likelihood(theta), model.log_marginal_likelihood_value_, rtol=1e-8
    )


def test_row_by_row_of_several_targets(rows):
    X, y, X_new, y_new = rows
    Y, Y_new = (np.column_stack([a, 3.0 + 5.0 * a**2]) for a in (y, y_new))
    model = GaussianProcessRegressor(KERNEL, normalize_y=True, optimizer=None).fit(X, Y)
    mean, scale = model._y_train_mean, model._y_train_std
    for x, t in zip(X_new, Y_new, strict=True):
        model.partial_fit(x[None], t[None])
    whole = GaussianProcessRegressor(KERNEL, optimizer=None)
    whole.fit(np.concatenate([X, X_new]), (np.concatenate([Y, Y_new]) - mean) / scale)
    assert_allclose(model.predict(GRID), whole.predict(GRID) * scale + mean, rtol=1e-8, atol=1e-8)
    assert_allclose(model.predict_std(GRID), whole.predict_std(GRID) * scale, rtol=1e-8, atol=1e-8)


def test_partial_fit_is_first_a_fit(rows):
    X, y, X_new, y_new = rows
    model = GaussianProcessRegressor(KERNEL).partial_fit(X, y)
    fitted = GaussianProcessRegressor(KERNEL).fit(X, y)
    assert_array_equal(model.predict(GRID), fitted.predict(GRID))
    same_predictions(model.partial_fit(X_new, y_new), fitted.condition_on(X_new, y_new), 1e-14)
    assert model.kernel_ == fitted.kernel_


@pytest.mark.parametrize("method", ["sgpr", "svgp", "scgd", "nngp"])
def test_many_rows(method, rows):
    X, y, X_new, y_new = rows
    model = GaussianProcessRegressor(KERNEL, method=method, optimizer=None, random_state=0)
    model.fit(X, y)
    inner = copy.deepcopy(model.estimator_).condition_on(X_new, y_new)
    model.condition_on(X_new, y_new)
    assert_array_equal(model.estimator_.predict(GRID), inner.predict(GRID))
    assert len(model.X_train_) == len(model.y_train_) == len(X) + len(X_new)


@pytest.mark.filterwarnings("ignore:The optimal value")
def test_known_noise_of_many_rows(rows):
    X, y, X_new, y_new = rows
    of_rows = np.linspace(0.01, 0.2, len(y) + len(y_new))
    model = GaussianProcessRegressor(
        KERNEL, alpha=of_rows[: len(y)], method="svgp", random_state=0
    ).fit(X, y)
    model.condition_on(X_new, y_new, alpha=of_rows[len(y) :])
    exact = GaussianProcessRegressor(model.kernel_, alpha=of_rows, optimizer=None)
    exact.fit(np.concatenate([X, X_new]), np.concatenate([y, y_new]))
    assert_allclose(model.predict(GRID), exact.predict(GRID), atol=0.05)
    theta = model.kernel_.theta
    assert_allclose(
        model.log_marginal_likelihood(theta), model.log_marginal_likelihood_value_, rtol=1e-3
    )


def test_errors_leave_the_model_as_it_was(rows):
    X, y, X_new, y_new = rows
    model = GaussianProcessRegressor(1.0 * RBF(), alpha=0.0, optimizer=None).fit(X[:5], y[:5])
    before = model.predict(GRID)
    with pytest.raises(NotPositiveDefiniteError, match="not returning a positive definite"):
        model.condition_on(X[:1], y[:1])
    with pytest.raises(ValueError, match="y must have the shape"):
        model.condition_on(X_new, np.column_stack([y_new, y_new]))
    with pytest.raises(ValueError, match="features"):
        model.condition_on(X_new[:, :1], y_new)
    assert_array_equal(model.predict(GRID), before)
    assert len(model.X_train_) == 5
    with pytest.raises(NotFittedError):
        GaussianProcessRegressor().condition_on(X, y)
    given = GaussianProcessRegressor(KERNEL, alpha=np.full(60, 0.1), optimizer=None).fit(X, y)
    with pytest.raises(ValueError, match="alpha must be given"):
        given.condition_on(X_new, y_new)


# ---- other estimators ----------------------------------------------------------------------------

SPARSE = [
    SVGPRegressor(n_inducing=15, max_iter=5, random_state=0),
    SVGPRegressor(n_inducing=15, max_iter=5, random_state=0, solver="natural", noise="input"),
    SolveGPRegressor(n_inducing=8, n_orthogonal=8, max_iter=5, random_state=0),
    SolveGPRegressor(
        n_inducing=8,
        n_orthogonal=8,
        max_iter=5,
        random_state=0,
        posterior="odvgp",
        solver="natural",
    ),
    FITCRegressor(n_inducing=15, max_iter=3, random_state=0),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", SPARSE, ids=lambda model: f"{named(type(model))}-{model.solver}")
@slow_cases("SVGPRegressor-auto", "FITC")
def test_sparse_posteriors_have_the_best_q_of_all_rows(model, rows):
    X, y, X_new, y_new = rows
    takes_weights = not isinstance(model, FITCRegressor)
    weight = np.linspace(0.5, 2.0, len(y_new)) if takes_weights else np.ones(len(y_new))
    model = fitted_once(model, X, y)
    inner, scaling = model.posterior_.model, model._y_scaling
    data = model._validate(X, y, False, None, None, None)
    # The best q(w) for the first rows alone, from which the rest is added.
    X_1, rows_1, _ = model._labelled(data)
    start = optimal_q(inner, X_1, rows_1)
    bound = evidence_bound(inner, X_1, rows_1, start.q)
    model.posterior_ = inner.posterior(start, bound, rows_1.n_effective)
    model.condition_on(X_new, y_new, sample_weight=weight if takes_weights else None)

    X_2 = torch.cat([X_1, model._x_scaling.tensor(X_new, torch.float64, X_1.device)])
    y_2 = torch.cat([rows_1.y, scaling.tensor(y_new[:, None], torch.float64, X_1.device)])
    both = torch.cat([torch.ones(len(y)), torch.from_numpy(weight)])
    rows_2 = Rows(y_2, weight=both)
    expected = optimal_q(inner, X_2, rows_2)
    found = moments_of(model.posterior_.weights)
    assert_allclose(found.mean, expected.q.mean, rtol=1e-6, atol=1e-8)
    for S, S_2 in zip(found.covariances, expected.q.covariances, strict=True):
        assert (S is None) == (S_2 is None)
        if S is not None:
            assert_allclose(S, S_2, rtol=1e-6, atol=1e-8)
    if inner.is_bound:
        bound = evidence_bound(inner, X_2, rows_2, expected.q)
        assert_allclose(model.posterior_.log_evidence().sum(), bound, rtol=1e-8)
        assert_allclose(
            model.log_marginal_likelihood_value_,
            float(bound) - rows_2.n_effective * np.log(scaling.scale).sum(),
            rtol=1e-8,
        )


def test_finite_features(rows):
    X, y, X_new, y_new = rows
    model = SCGDGaussianProcessRegressor(
        hidden_layer_sizes=(8,), n_estimators=1, max_iter=10, random_state=0
    )
    model = fitted_once(model, X, y)
    whole = copy.deepcopy(model)
    data = whole._validate(np.concatenate([X, X_new]), np.concatenate([y, y_new]), False)
    X_2, rows_2, posterior = whole._labelled(data)
    whole.posterior_ = posterior.refit(X_2, rows_2)
    model.condition_on(X_new, y_new)
    same_predictions(model, whole, 1e-6)
    assert_allclose(model.posterior_.log_evidence(), whole.posterior_.log_evidence(), rtol=1e-6)


def test_exact_posteriors(rows):
    X, y, X_new, y_new = rows
    kernel = GaussianProcessRegressor(1.0 * RBF([1.0, 2.0]), optimizer=None, alpha=0.1).fit(X, y)
    first = kernel._exact_model().posterior()
    noise = Gaussian(torch.tensor([0.1, 0.4], dtype=torch.float64))

    def posterior(X, y, weight):
        X, Y = torch.tensor(X), torch.tensor(np.column_stack([y, y**2]))
        rows = Rows(Y, weight=torch.from_numpy(weight))
        return X, rows, lambda: ExactPosterior(first.kernel, first.network, noise, X, rows)

    weight = np.linspace(0.5, 3.0, len(y) + len(y_new))
    *_, start = posterior(X, y, weight[: len(y)])
    X_2, rows_2, _ = posterior(X_new, y_new, weight[len(y) :])
    *_, whole = posterior(np.concatenate([X, X_new]), np.concatenate([y, y_new]), weight)
    found, expected = start().extended(X_2, rows_2), whole()
    grid = torch.from_numpy(GRID)
    for a, b in zip(found.marginals(grid), expected.marginals(grid), strict=True):
        assert_allclose(a.detach(), b.detach(), rtol=1e-8, atol=1e-10)
    assert_allclose(found.log_evidence().detach(), expected.log_evidence().detach(), rtol=1e-10)
    assert found.n_rows == pytest.approx(expected.n_rows)


@pytest.mark.slow
def test_counts_are_near_the_fit_to_all_rows(counts):
    X, y, exposure = counts
    model = SVGPRegressor(
        n_inducing=20, likelihood="poisson", max_iter=10, random_state=0, inducing_points="random"
    ).fit(X[:150], y[:150], exposure=exposure[:150])
    whole = copy.deepcopy(model)
    before = model.predict(GRID, latent=True)
    data = whole._validate(X, y, False, None, exposure, None)
    X_2, rows_2, posterior = whole._labelled(data)
    found = optimal_q(posterior.model, X_2, rows_2, posterior.sites)
    whole.posterior_ = posterior.model.posterior(found, posterior.elbo, 200.0)
    model.condition_on(X[150:], y[150:], exposure=exposure[150:])
    after, best = (each.predict(GRID, latent=True) for each in (model, whole))
    assert np.abs(after - best).max() < 0.2 * np.abs(before - best).max()
    assert np.isnan(model.log_marginal_likelihood_value_)


REFUSED = [
    DeepGPRegressor,
    DeepKernelEnsembleRegressor,
    DLMRegressor,
    QSGPRegressor,
    QSRVMRegressor,
]
CONDITIONED = [cls for cls in ESTIMATORS if not is_classifier(cls()) and cls not in IMAGES]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", by_family("more rows without a fit", CONDITIONED))
def test_every_regressor_learns_or_says_that_it_cannot(cls, sine):
    model = fitted_once(cls(**quick_parameters(cls)), *sine)
    far = np.array([[3.5, 0.0]])
    before, error = model.predict(far), abs(model.predict(far)[0] - 3.0)
    rows = (np.repeat(far, 50, 0), np.full(50, 3.0))
    if cls in REFUSED:
        with pytest.raises(ValueError, match=r"condition_on cannot add rows .*Call fit with"):
            model.condition_on(*rows)
        assert_array_equal(model.predict(far), before)
    else:
        model.condition_on(*rows)
        assert abs(model.predict(far)[0] - 3.0) < error

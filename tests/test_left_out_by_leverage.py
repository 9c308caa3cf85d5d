"""What fits say of rows without the rows' own targets, and what is told of it."""

import warnings

import numpy as np
import pytest
import torch
from families import slow_cases
from numpy.testing import assert_allclose
from sklearn.datasets import make_classification
from sklearn.gaussian_process import kernels as sk

from skgpstoch import (
    DLMClassifier,
    DLMRegressor,
    FITCRegressor,
    GaussianProcessRegressor,
    QSGPClassifier,
    SolveGPClassifier,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.likelihoods import Gaussian
from skgpstoch.maths.gaussian import Marginals
from skgpstoch.training.recipes import fitted_errors
from skgpstoch.training.recipes.fitted_errors import Followed


def messages(fit, *args, **params):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fit(*args, **params)
    return model, [str(w.message) for w in caught]


def test_rows_left_out_of_a_gaussian_process_are_those_of_its_inverse():
    """Rasmussen & Williams, eq. 5.12."""
    rng = np.random.default_rng(0)
    X, noise = torch.from_numpy(rng.uniform(-2, 2, (30, 1))), 0.1
    y = torch.sin(2.0 * X) + noise**0.5 * torch.from_numpy(rng.normal(size=X.shape))
    K = torch.from_numpy((1.0 * sk.RBF(1.0))(X.numpy()))
    C = torch.linalg.inv(K + noise * torch.eye(30, dtype=torch.float64))
    q = Marginals((K @ C @ y)[None], (K - K @ C @ K).diagonal()[None, :, None])
    likelihood = Gaussian(torch.tensor([noise], dtype=torch.float64))
    found = Followed.of(q, y, likelihood, lambda _: q.var[0]).without_own()
    precision = C.diagonal()[:, None]
    assert_allclose(found.mean[0], y - C @ y / precision, rtol=1e-9)
    assert_allclose(found.var[0], 1.0 / precision - noise, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "is_told"), [(8, True), (4, False)])
def test_classes_that_are_predicted_too_often_are_told(seed, is_told):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3300, 4))
    f = 2.0 * np.sin(1.5 * X[:, 0]) + X[:, 1] * X[:, 2]
    y = rng.random(3300) < 1.0 / (1.0 + np.exp(5.0 - 1.5 * f))
    model, said = messages(QSGPClassifier(random_state=seed).fit, X[:300], y[:300])
    too_often = model.predict_proba(X[300:])[:, 1].mean() > 2.0 * y.mean()
    assert any("has a mean probability of" in text for text in said) == too_often == is_told


@pytest.mark.slow
@pytest.mark.parametrize("is_balanced", [True, False])
def test_weights_that_make_f_follow_a_rare_class_are_told(is_balanced):
    """A row of weight 5 counts as five rows, which agree."""
    X, y = make_classification(2400, 8, weights=[0.9], random_state=2)
    X = (X - X[:400].mean(0)) / X[:400].std(0)
    weight = 200.0 / np.bincount(y[:400])[y] if is_balanced else np.ones(len(y))
    fit = QSGPClassifier(random_state=0).fit
    model, said = messages(fit, X[:400], y[:400], sample_weight=weight[:400])
    of_new = slice(400, None)
    p = np.average(model.predict_proba(X[of_new])[:, 1], weights=weight[of_new])
    is_off = abs(p - np.average(y[of_new], weights=weight[of_new])) > 0.05
    is_told = any("of the rows, by weight, has a mean" in text for text in said)
    assert is_told == is_off == is_balanced


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("Model", "is_judged"), [(DLMClassifier, False), (SVGPClassifier, True)])
@slow_cases("^SVGPClassifier-True$")
def test_losses_other_than_the_bound_have_no_leverages(Model, is_judged):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (150, 2))
    model = Model(n_inducing=20, random_state=0, max_iter=5).fit(X, np.sin(2 * X[:, 0]) > 0.0)
    assert ("shares of classes" in {f.name for f in model.diagnose()}) == is_judged


@pytest.mark.parametrize("noise", [0.1, 0.0])
def test_pieces_without_noise_in_the_kernel_are_told_when_they_have_doubled(noise):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (160, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + noise * rng.normal(size=160)
    model = GaussianProcessRegressor(random_state=0).fit(X[:40], y[:40])
    model, said = messages(model.partial_fit, X[40:50], y[40:50])
    assert said == []
    model, said = messages(model.partial_fit, X[50:], y[50:])
    assert any("y looks noisy" in text for text in said) == (noise > 0.0)
    (found,) = (f for f in model.diagnose() if f.name == "missing noise")
    assert (found.value > found.limit) == (noise > 0.0)


@pytest.mark.slow
def test_rates_trained_for_the_density_may_vary_as_counts_do():
    """Their variance was left out, and SVGP's leverages were taken: a dispersion of 7."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (200, 1))
    y = rng.poisson(np.exp(1.0 + np.sin(2 * X[:, 0])) * rng.gamma(2.0, 0.5, 200))
    model = DLMRegressor(likelihood="poisson", n_inducing=20, random_state=0).fit(X, y)
    (found,) = (f for f in model.diagnose() if f.name == "dispersion")
    error = (y - model.predict(X)) / model.predict_std(X)
    assert found.value == pytest.approx(np.square(error).mean(), rel=1e-6)
    assert found.severity == "fine"


def test_variance_that_rows_cannot_tell_is_no_leverage():
    """Five points leave most of f's variance untold; all of it was a leverage, 615 of 1,000."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 1))
    y = rng.poisson(5.0, 300)
    kernel = sk.ConstantKernel(1.0, "fixed") * sk.RBF(0.1, "fixed")
    model = SVGPRegressor(kernel, likelihood="poisson", n_inducing=5, random_state=0)
    model, said = messages(model.fit, X, y)
    (found,) = (f for f in model.diagnose() if f.name == "dispersion")
    assert found.value == pytest.approx(1.0, abs=0.15)
    assert not any("as much as predicted" in text for text in said)


def test_f_follows_a_row_as_much_as_it_weighs():
    """Of small weights, leverages were those of rows of weight 1, and the dispersion was 21."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (200, 1))
    y = rng.poisson(np.exp(1.5 + np.sin(1.5 * X[:, 0])))
    kernel = sk.ConstantKernel(1.0, "fixed") * sk.RBF(0.7, "fixed")
    model = SVGPRegressor(kernel, likelihood="poisson", n_inducing=30, random_state=0)
    model, said = messages(model.fit, X, y, np.full(200, 0.02))
    (found,) = (f for f in model.diagnose() if f.name == "dispersion")
    assert found.value == pytest.approx(1.0, abs=0.2)
    assert not any("as much as predicted" in text for text in said)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("Model", [SolveGPClassifier, QSGPClassifier])
@slow_cases("^SolveGPClassifier$")
def test_what_rows_tell_is_that_of_all_weights_together(Model):
    """q(w) has blocks of covariances, or a diagonal one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    sizes = {"n_components": 30} if Model is QSGPClassifier else {"n_inducing": 6}
    posterior = Model(random_state=0, max_iter=3, **sizes).fit(X, X[:, 0] > 0.0).posterior_
    Z, curvature = torch.from_numpy(X), torch.from_numpy(rng.uniform(0.1, 0.2, (40, 1)))
    if Model is QSGPClassifier:
        ((groups, members),) = posterior.model.blocks()
        phi = posterior.model.basis.columns(Z, groups, members)
        A = posterior.model.precision(groups, members)[0] + phi.mT @ (curvature * phi)
    else:
        phi = posterior.basis(Z).phi
        A = torch.eye(phi.shape[1], dtype=torch.float64) + posterior.precision[0]
    expected = (phi * torch.linalg.solve(A, phi.mT).mT).sum(1, keepdim=True)
    assert_allclose(posterior.told(Z, curvature), expected, rtol=1e-6)
    assert (posterior.marginals(Z).var[0] > 1.001 * expected).any()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "given"),
    [
        *((SVGPRegressor, given) for given in ("", "y_std", "sample_weight", "outputs")),
        *((FITCRegressor, given) for given in ("", "y_std", "outputs")),
    ],
)
@slow_cases("^SVGPRegressor-outputs$")
def test_errors_of_rows_left_out_are_those_of_fits_without_them(make, given, monkeypatch):
    """Of the linear model of the points' functions; FITC's residuals are noise."""
    rng = np.random.default_rng(0)
    X, more = rng.uniform(-2.0, 2.0, (40, 2)), rng.uniform(0.1, 2.0, 40)
    y = np.sin(2.0 * X[:, 0]) + 0.2 * rng.standard_normal(40)
    of_rows = {given: more} if given in ("y_std", "sample_weight") else {}
    y = np.column_stack([y, X[:, 1] ** 2]) if given == "outputs" else y
    judge, found = fitted_errors.left_out_at, []

    def watched(fitted, data, rows, error, noise):
        found.append((fitted, data, rows, noise, *judge(fitted, data, rows, error, noise)))
        return found[-1][4:]

    monkeypatch.setattr(fitted_errors, "left_out_at", watched)
    make(n_inducing=8, random_state=0).fit(X, y, **of_rows)
    ((fitted, data, rows, noise, without, z),) = found
    model = fitted.posterior.model
    with torch.no_grad():
        basis = fitted.posterior.basis(fitted.x_scaling.tensor(data.X, torch.float64, "cpu"))
        phi = basis.phi.numpy()
        Y = fitted.scaled_targets(data) - model.offset(basis).numpy().reshape(-1, y[0].size)
        residual = basis.residual().numpy().reshape(-1, 1)
    w = np.ones(40) if data.weight is None else data.weight
    D = noise / w[rows, None] + residual * (make is FITCRegressor)
    for i in (0, 7, 23):
        (row,), others = np.flatnonzero(rows == i), np.delete(np.arange(len(rows)), i)
        for p in range(Y.shape[1]):
            A = phi[others] / D[others, [p], None]
            S = np.linalg.inv(np.eye(phi.shape[1]) + phi[others].T @ A)
            error = Y[i, p] - phi[i] @ S @ A.T @ Y[others, p]
            assert_allclose(without[row, p], error, rtol=1e-3, atol=1e-6)
            variance = phi[i] @ S @ phi[i] + residual[i, 0] + noise[row, p]
            assert_allclose(z[row, p], error / np.sqrt(variance), rtol=1e-3, atol=1e-6)

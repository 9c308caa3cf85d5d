"""BoTorch optimises acquisition functions of our estimators."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import Matern, PairwiseKernel, WhiteKernel

from skgpstoch import (
    ADMMGaussianProcessRegressor,
    AutoGaussianProcessRegressor,
    BSGDGaussianProcessRegressor,
    DeepKernelEnsembleRegressor,
    GaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
    SVGPRegressor,
)

pytest.importorskip("botorch")

from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.optim import optimize_acqf

from skgpstoch.botorch import BoTorchModel

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

rng = np.random.default_rng(0)
X = rng.uniform(-3, 3, (60, 2))
y = 4.0 + 3.0 * np.sin(X[:, 0]) + 0.1 * rng.standard_normal(60)
Y = np.column_stack([y, X[:, 1] * 20.0])
BATCHES = torch.tensor(rng.uniform(-3, 3, (5, 3, 2)))
KERNEL = 1.3 * Matern([0.9, 3.0], nu=2.5) + WhiteKernel(0.02)
QUICK = {"max_iter": 3, "random_state": 0}
MODELS = {
    "drop-in": GaussianProcessRegressor(KERNEL, normalize_y=True),
    "drop-in, many rows": GaussianProcessRegressor(
        KERNEL, normalize_y=True, method="svgp", random_state=0
    ),
    "sparse": SVGPRegressor(n_inducing=10, **QUICK),
    "orthogonal": SolveGPRegressor(n_inducing=10, n_orthogonal=5, **QUICK),
    "finite": SCGDGaussianProcessRegressor(hidden_layer_sizes=(8,), **QUICK),
    "exact": BSGDGaussianProcessRegressor(hidden_layer_sizes=(8,), **QUICK),
    "iterative": ADMMGaussianProcessRegressor(max_iter=3, random_state=0),
    "ensemble": DeepKernelEnsembleRegressor(n_estimators=2, **QUICK),
}
every_model = pytest.mark.parametrize("name", MODELS)
fits = {}


def fitted(name):
    if name not in fits:
        fits[name] = MODELS[name].fit(X, y)
    return fits[name]


@every_model
@pytest.mark.parametrize("noise", [False, True])
def test_moments_are_those_of_predict(name, noise):
    estimator = fitted(name)
    found = BoTorchModel(estimator).posterior(BATCHES, observation_noise=noise)
    assert found.mean.shape == found.variance.shape == (5, 3, 1)
    options = {} if isinstance(estimator, GaussianProcessRegressor) else {"latent": not noise}
    for batch, mean, cov in zip(BATCHES, found.mean, found.mvn.covariance_matrix, strict=True):
        expected_mean, expected = estimator.predict(batch.numpy(), return_cov=True, **options)
        if isinstance(estimator, GaussianProcessRegressor) and not noise:
            white = estimator.kernel_.k2.noise_level * y.var()
            if estimator.estimator_ is not None:
                white = np.square(estimator._y_train_std) * estimator._model()[0].white
            expected = expected - white * np.eye(3)
        assert_allclose(mean[:, 0], expected_mean, rtol=1e-6)
        if noise and name == "ensemble":  # whose noise is no Gaussian's
            cov, expected = cov.diagonal(), np.diag(expected)
        assert_allclose(cov, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())
    one = BoTorchModel(estimator).posterior(BATCHES[:, :1], observation_noise=noise)
    assert_allclose(one.variance, found.variance[:, :1], rtol=1e-4)


@every_model
def test_gradients_are_those_of_finite_differences(name):
    model = BoTorchModel(fitted(name))

    def value(X):
        posterior = model.posterior(X)
        return (posterior.mvn.covariance_matrix.sum((1, 2)) + posterior.mean.sum((1, 2))).sum()

    X_ = BATCHES[:2].clone().requires_grad_()
    (found,) = torch.autograd.grad(value(X_), X_)
    assert found.abs().max() > 1e-3
    step = torch.zeros_like(BATCHES[:2])
    step[1, 2, 0] = 1e-5
    expected = (value(BATCHES[:2] + step) - value(BATCHES[:2] - step)) / 2e-5
    assert_allclose(found[1, 2, 0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["drop-in", "sparse"])
def test_acquisitions_are_optimised(name):
    model = BoTorchModel(fitted(name))
    bounds = torch.tensor([[-3.0, -3.0], [3.0, 3.0]], dtype=torch.float64)
    acquisition = qLogExpectedImprovement(model, best_f=y.max())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found, value = optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=16)
        random = acquisition(6.0 * torch.rand(50, 2, 2, dtype=torch.float64) - 3.0)
    assert found.shape == (2, 2)
    assert value >= random.max() - 1e-6
    analytic = LogExpectedImprovement(model, best_f=y.max())
    assert torch.isfinite(analytic(BATCHES[:, :1])).all()


def test_several_outputs():
    estimator = GaussianProcessRegressor(KERNEL, normalize_y=True, optimizer=None).fit(X, Y)
    model = BoTorchModel(estimator)
    assert model.num_outputs == 2
    posterior = model.posterior(BATCHES)
    assert posterior.mean.shape == (5, 3, 2)
    mean, std = estimator.predict(BATCHES[0].numpy(), return_std=True)
    noisy = model.posterior(BATCHES, observation_noise=True)
    assert_allclose(posterior.mean[0], mean, rtol=1e-8)
    assert_allclose(noisy.variance[0].sqrt(), std, rtol=1e-6)
    second = model.posterior(BATCHES, output_indices=[1])
    assert_allclose(second.mean[..., 0], posterior.mean[..., 1])
    total = ScalarizedPosteriorTransform(torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert_allclose(
        model.posterior(BATCHES, posterior_transform=total).mean[..., 0],
        posterior.mean @ torch.tensor([1.0, 2.0], dtype=torch.float64),
    )


def test_batches_of_any_shape_and_type():
    model = BoTorchModel(fitted("sparse"))
    once = model.posterior(BATCHES)
    many = model.posterior(BATCHES.float()[:, None].expand(5, 4, 3, 2))
    assert many.mean.shape == (5, 4, 3, 1)
    assert many.mean.dtype == torch.float64
    assert_allclose(many.mean[:, 2], once.mean, rtol=1e-4)
    alone = model.posterior(BATCHES[0])
    assert_allclose(alone.mean, once.mean[0])
    noise = torch.full((5, 3, 1), 0.7, dtype=torch.float64)
    assert_allclose(
        model.posterior(BATCHES, observation_noise=noise).variance - once.variance, noise
    )


@pytest.mark.parametrize("name", ["drop-in", "sparse"])
def test_more_observations(name):
    estimator = fitted(name)
    before = estimator.predict(X[:3])
    model = BoTorchModel(estimator)
    there = torch.tensor([[2.0, 2.0]], dtype=torch.float64)
    more = model.condition_on_observations(there, torch.tensor([[9.0]], dtype=torch.float64))
    assert more.posterior(there).mean > model.posterior(there).mean
    assert more.posterior(there).variance < model.posterior(there).variance
    np.testing.assert_array_equal(estimator.predict(X[:3]), before)
    with pytest.raises(ValueError, match="single batch"):
        model.condition_on_observations(BATCHES, BATCHES[..., :1])


def test_pickles():
    model = BoTorchModel(fitted("drop-in"))
    again = pickle.loads(pickle.dumps(model))
    assert_allclose(again.posterior(BATCHES).mean, model.posterior(BATCHES).mean)


def test_what_is_refused():
    with pytest.raises(TypeError, match="must be an expression"):
        BoTorchModel(GaussianProcessRegressor(PairwiseKernel(), alpha=0.1).fit(X, y))
    with pytest.raises(TypeError, match="got AutoGaussianProcessRegressor"):
        BoTorchModel(AutoGaussianProcessRegressor(random_state=0).fit(X[:30], y[:30]))
    counts = SVGPRegressor(likelihood="poisson", n_inducing=5, max_iter=2, random_state=0)
    model = BoTorchModel(counts.fit(X, np.round(np.abs(y))))
    with pytest.raises(ValueError, match="needs additive noise"):
        model.posterior(BATCHES, observation_noise=True)

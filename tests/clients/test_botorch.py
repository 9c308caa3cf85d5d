"""BoTorch optimises acquisition functions of our estimators."""

from __future__ import annotations

import copy
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
from botorch.acquisition.knowledge_gradient import qKnowledgeGradient
from botorch.acquisition.monte_carlo import qNoisyExpectedImprovement
from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
from botorch.acquisition.objective import IdentityMCObjective, ScalarizedPosteriorTransform
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel, ScaleKernel

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


# ---- more observations -------------------------------------------------------------------------

MORE, TARGETS = torch.tensor(rng.uniform(-3, 3, (2, 2, 2))), torch.tensor(rng.normal(size=(2, 2)))


@pytest.mark.parametrize("name", ["drop-in", "finite", "exact", "iterative", "at its points"])
def test_more_observations_are_those_of_condition_on(name):
    """Exactly, of posteriors of rows or weights, and of a sparse one at its inducing points."""
    points = MORE[0].numpy() if name == "at its points" else None
    if points is not None:
        few = np.concatenate([X[:8], points])
        estimator = SVGPRegressor(inducing_points=few, learn_inducing_points=False, **QUICK)
        estimator.fit(X, y)
    else:
        estimator = fitted(name)
    before = estimator.predict(X[:3])
    more = BoTorchModel(estimator).condition_on_observations(MORE[0], TARGETS[0][:, None])
    again = copy.deepcopy(estimator).condition_on(MORE[0].numpy(), TARGETS[0].numpy())
    np.testing.assert_array_equal(estimator.predict(X[:3]), before)
    found, expected = more.posterior(BATCHES), BoTorchModel(again).posterior(BATCHES)
    assert_allclose(found.mean, expected.mean, rtol=1e-4, atol=1e-4)
    assert_allclose(found.variance, expected.variance, rtol=1e-3, atol=1e-6)
    noise = more.posterior(BATCHES, observation_noise=True).variance - found.variance
    plain = BoTorchModel(estimator)
    expected = plain.posterior(BATCHES, observation_noise=True).variance
    assert_allclose(noise, expected - plain.posterior(BATCHES).variance, rtol=1e-4, atol=1e-9)


@every_model
def test_batches_of_observations(name):
    model = BoTorchModel(fitted(name))
    Y = torch.stack([TARGETS, TARGETS + 1.0, 2.0 * TARGETS])[..., None]  # three of each batch
    many = model.condition_on_observations(MORE, Y)
    assert many.batch_shape == (3, 2)
    found = many.posterior(BATCHES[:1])
    assert found.mean.shape == (3, 2, 3, 1)
    for i, j in np.ndindex(3, 2):
        one = model.condition_on_observations(MORE[j], Y[i, j]).posterior(BATCHES[0])
        assert_allclose(found.mean[i, j], one.mean, rtol=1e-6, atol=1e-8)
        assert_allclose(found.variance[i, j], one.variance, rtol=1e-5, atol=1e-8)
    one_by_one = model.condition_on_observations(MORE[:, :1], Y[..., :1, :])
    one_by_one = one_by_one.condition_on_observations(MORE[:, 1:], Y[..., 1:, :])
    again = one_by_one.posterior(BATCHES[:1])
    assert_allclose(again.mean, found.mean, rtol=1e-6, atol=1e-6)
    assert_allclose(again.variance, found.variance, rtol=1e-5, atol=1e-6)


def test_noise_of_observations():
    rows = GaussianProcessRegressor(KERNEL, alpha=rng.uniform(0.1, 0.2, 60), optimizer=None)
    model = BoTorchModel(rows.fit(X, y))
    with pytest.raises(ValueError, match="The noise of new rows is not known"):
        model.condition_on_observations(MORE[0], TARGETS[0][:, None])
    sharp, blunt = (
        model.condition_on_observations(MORE[0], TARGETS[0][:, None], noise=torch.tensor([[s]]))
        for s in (1e-6, 1e6)
    )
    assert_allclose(sharp.posterior(MORE[0]).mean[:, 0], TARGETS[0], rtol=1e-4, atol=1e-4)
    assert_allclose(blunt.posterior(MORE[0]).mean, model.posterior(MORE[0]).mean, rtol=1e-4)
    nothing = model.fantasize(MORE[0, :0], SOBOL, observation_noise=torch.tensor([[0.1]]))
    assert_allclose(nothing.posterior(BATCHES[0]).mean[2], model.posterior(BATCHES[0]).mean)


SOBOL = SobolQMCNormalSampler(torch.Size([8]), seed=0)


@pytest.fixture(scope="module")
def same():
    """A model of ours, and BoTorch's own with the same hyper-parameters."""
    kernel = 1.7 * Matern([0.9, 1.5], nu=2.5) + WhiteKernel(0.02)
    ours = GaussianProcessRegressor(kernel, optimizer=None, alpha=0.001).fit(X, y)
    covariance = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)).double()
    rows = torch.tensor(X), torch.tensor(y)[:, None]
    theirs = SingleTaskGP(*rows, covar_module=covariance, outcome_transform=None).double()
    theirs.mean_module.constant.data.zero_()
    covariance.outputscale = torch.tensor(1.7, dtype=torch.float64)
    covariance.base_kernel.lengthscale = torch.tensor([[0.9, 1.5]], dtype=torch.float64)
    theirs.likelihood.noise = torch.tensor([0.021], dtype=torch.float64)
    return BoTorchModel(ours), theirs.eval()


ACQUISITIONS = {
    "gradient": (8, lambda model, **o: qKnowledgeGradient(model, 8, sampler=SOBOL, **o)),
    "gradient of noisy means": (
        8,
        lambda model, **o: qKnowledgeGradient(
            model,
            8,
            sampler=SOBOL,
            objective=IdentityMCObjective(),
            inner_sampler=SobolQMCNormalSampler(torch.Size([16]), seed=1),
            **o,
        ),
    ),
    "improvement": (
        0,
        lambda model, **o: qNoisyExpectedImprovement(
            model,
            torch.tensor(X[:8]),
            sampler=SobolQMCNormalSampler(torch.Size([64]), seed=0),
            prune_baseline=False,
            cache_root=False,
            **o,
        ),
    ),
    "two steps": (
        3 + 3 * 2,
        lambda model: qMultiStepLookahead(
            model,
            batch_sizes=[1, 1],
            samplers=[SobolQMCNormalSampler(torch.Size([n]), seed=0) for n in (3, 2)],
        ),
    ),
}


def rows_of(name):
    n_fantasies = ACQUISITIONS[name][0]
    shape = (3, n_fantasies + (1 if name == "two steps" else 2), 2)
    return torch.tensor(np.random.default_rng(0).uniform(-3, 3, shape)).requires_grad_()


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("name", ["gradient", "improvement"])
def test_acquisitions_are_those_of_botorchs_own_model(name, pending, same):
    at, found = rows_of(name), []
    for model in same:
        make = ACQUISITIONS[name][1]
        value = make(model, **({"X_pending": MORE[0]} if pending else {}))(at)
        found.append((value.detach(), torch.autograd.grad(value.sum(), at)[0]))
    for ours, theirs in zip(*found, strict=True):
        assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)
    assert found[0][1].abs().max() > 1e-3


@pytest.mark.parametrize("name", ["gradient of noisy means", "two steps"])
def test_slopes_of_fantasies_have_those_of_variances(name, same):
    """Values are those of BoTorch's own model; of slopes that leaves out what caches hold."""
    ours, theirs = map(ACQUISITIONS[name][1], same)
    at = rows_of(name)
    value = ours(at)
    assert_allclose(value.detach(), theirs(at).detach(), rtol=1e-6)
    (slope,) = torch.autograd.grad(value.sum(), at)
    with torch.no_grad():
        step = 1e-5 * torch.tensor(np.random.default_rng(1).normal(size=at.shape))
        rise = (ours(at + step) - ours(at - step)).sum()
    assert_allclose(2.0 * (slope * step).sum(), rise, rtol=1e-4)


def test_knowledge_gradient_is_optimised():
    model = BoTorchModel(fitted("sparse"))
    bounds = torch.tensor([[-3.0, -3.0], [3.0, 3.0]], dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        acquisition = qKnowledgeGradient(
            model, 4, current_value=model.posterior(torch.tensor(X)).mean.max()
        )
        found, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=2, raw_samples=8)
    assert found.shape == (1, 2)
    assert value > 0.0


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
    with pytest.raises(ValueError, match="needs additive Gaussian noise"):
        model.posterior(BATCHES, observation_noise=True)

"""Use fitted regressors as BoTorch models, for its acquisition functions; this needs botorch.

A :class:`BoTorchModel` gives the posterior of the estimator's f, in the units of the estimator's X
and y. Posteriors are in float64, in batches, and differentiable with respect to the inputs. The
hyper-parameters are those that `fit` found.

>>> from botorch.acquisition import qLogExpectedImprovement  # doctest: +SKIP
>>> model = BoTorchModel(GaussianProcessRegressor(kernel).fit(X, y))  # doctest: +SKIP
>>> acquisition = qLogExpectedImprovement(model, best_f=y.max())  # doctest: +SKIP
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

try:
    from botorch.models.model import FantasizeMixin, Model
    from botorch.posteriors import GPyTorchPosterior
    from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
    from linear_operator import to_linear_operator
except ImportError as error:
    raise ImportError(
        "skgpstoch.botorch needs BoTorch. Install it with `pip install botorch`."
    ) from error

from sklearn.utils.validation import check_is_fitted

from .data.arrays import Scaling
from .data.rows import Rows
from .estimators.base import predictor
from .estimators.regressor import Regressor
from .estimators.validation import transformer_of
from .kernels import split_white_noise
from .likelihoods.real import AdditiveNoise
from .maths.linalg import cholesky, tri_solve
from .methods.drop_in.exact import ExactModel
from .methods.drop_in.many_rows import ManyRowsModel
from .methods.drop_in.regressor import GaussianProcessRegressor
from .models.posteriors.base import Posterior
from .models.posteriors.batches import batched_moments


class LatentModel(NamedTuple):
    """A posterior of f at scaled rows, and the units of X and y."""

    posterior: Posterior
    x_scaling: Scaling
    y_scaling: Scaling
    white: np.ndarray | None = None
    """Noise variance of a new scaled y, (P,) or (); None: that of the posterior's likelihood."""
    alpha: Any = 0.0
    """Variance added to observed y, but not to predicted y; None: it differs between rows."""


def latent_of(estimator: Any) -> LatentModel:
    """Return the latent posterior of a fitted regressor.

    Raises
    ------
    TypeError
        If the estimator is not a regressor of skgpstoch with one posterior.
    ValueError
        If the estimator has a `target_transform`.
    """
    check_is_fitted(estimator)
    if isinstance(estimator, GaussianProcessRegressor):
        model, scaling = estimator._model()
        if isinstance(model, ExactModel):
            white = split_white_noise(estimator.kernel_)[1]
            level = np.array(0.0 if white is None else white.noise_level)
            inputs = Scaling.identity(estimator.n_features_in_)
            alpha = None if estimator._alpha_train.ndim else estimator._alpha_train
            return LatentModel(model.posterior(latent=True), inputs, scaling, level, alpha)
        many = cast(ManyRowsModel, model)
        inner, noise = latent_of(many.estimator), estimator._noise
        unit = inner.y_scaling.scale**2
        return inner._replace(
            y_scaling=inner.y_scaling.within(scaling),
            white=many.white / unit,
            alpha=noise.alpha / unit if noise.alpha_of_rows is None else None,
        )
    if isinstance(estimator, Regressor) and isinstance(estimator.posterior_, Posterior):
        if transformer_of(estimator) is not None:
            raise ValueError(
                f"target_transform must be None, got {estimator.target_transform!r}, "
                "because BoTorch's posteriors are Gaussian. Transform y first and fit the "
                "regressor to that."
            )
        posterior = copy.deepcopy(predictor(estimator)[1])
        return LatentModel(posterior, estimator._x_scaling, estimator._y_scaling)
    raise TypeError(
        "estimator must be a GaussianProcessRegressor or another regressor of skgpstoch with a "
        f"posterior_, got {type(estimator).__name__}."
    )


class PosteriorModel(Model, FantasizeMixin):
    """Base class of BoTorch models of f; a subclass defines the moments and the noise.

    Everything is in float64, and in the units of X and y.
    """

    @abstractmethod
    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (..., q, P) and covariance (..., P, q, q) of f at X (..., q, d)."""

    @abstractmethod
    def noise(self, X: Tensor) -> Tensor:
        """Return the noise variance of a predicted y, (..., q, P)."""

    @abstractmethod
    def observed_noise(self, X: Tensor) -> Tensor:
        """Return the noise variance of an observed y, (..., q, P)."""

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Any:
        """Return the joint posterior of f, or of y, within each batch of rows.

        Parameters
        ----------
        X : Tensor of shape (..., q, d)
            Batches of q rows.
        output_indices : list of int or None, default=None
            Targets to return; None: all.
        observation_noise : bool or Tensor, default=False
            False: the posterior of f. True: that of y, with the learned noise that `predict` uses
            added to the variances of rows. A tensor that broadcasts to (..., q, P): noise variances
            to add instead.
        posterior_transform : PosteriorTransform or None, default=None
            Transform that is applied to the posterior.

        Returns
        -------
        posterior : GPyTorchPosterior
            Joint posterior of each batch, in float64.
        """
        X = X.double()
        mean, cov = self.moments(X)
        if isinstance(observation_noise, Tensor):
            cov = cov + torch.diag_embed(observation_noise.double().expand_as(mean).mT)
        elif observation_noise:
            cov = cov + torch.diag_embed(self.noise(X).expand_as(mean).mT)
        chosen = list(range(self.num_outputs)) if output_indices is None else output_indices
        posterior = GPyTorchPosterior(distribution(mean[..., chosen], cov[..., chosen, :, :]))
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def fantasize(
        self, X: Tensor, sampler: Any, observation_noise: Tensor | None = None, **kwargs: Any
    ) -> ConditionedModel:
        """Return the model conditioned on draws of y at X, one for each draw and batch.

        Parameters
        ----------
        X : Tensor of shape (..., q, d)
            Batches of rows.
        sampler : MCSampler
            Sampler that draws y.
        observation_noise : Tensor or None, default=None
            Noise variance of y, which broadcasts to (..., q, P); None: that of the fit.
        """
        if observation_noise is None:
            observation_noise = self.observed_noise(X.double())
        return super().fantasize(X, sampler, observation_noise=observation_noise, **kwargs)

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None
    ) -> ConditionedModel:
        """Return the model conditioned on more rows; it is differentiable with respect to them.

        f is treated as Gaussian. The result is exact with a Gaussian likelihood and no random
        hidden layers.

        Parameters
        ----------
        X : Tensor of shape (..., q, d)
            Inputs of new rows.
        Y : Tensor of shape (..., q, P)
            Targets of the new rows; batch axes that X lacks are fantasies for the same rows.
        noise : Tensor or None, default=None
            Noise variance of Y, which broadcasts to its shape; None: that of the fit.
        """
        X, Y = X.double(), Y.double()
        noise = self.observed_noise(X) if noise is None else noise.double()
        shape = torch.broadcast_shapes(noise.shape, (*X.shape[:-1], self.num_outputs))
        return ConditionedModel(self, X, Y, noise.expand(shape))


class BoTorchModel(PosteriorModel):
    """A BoTorch model of a fitted regressor.

    Parameters
    ----------
    estimator : regressor
        A fitted `GaussianProcessRegressor` whose kernel runs in torch, or any other fitted
        regressor of skgpstoch with a `posterior_`: sparse, with finite features, or with networks.
        The estimator is not changed.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.
    TypeError
        If the estimator is of another kind, or its kernel does not run in torch.
    ValueError
        If the estimator has a `target_transform`.
    """

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.estimator = estimator
        posterior, x_scaling, y_scaling, self.white, self.alpha = latent_of(estimator)
        self.f = posterior.requires_grad_(False)
        for name, (offset, scale) in {"x": x_scaling, "y": y_scaling}.items():
            self.register_buffer(f"{name}_offset", torch.as_tensor(offset, dtype=torch.float64))
            self.register_buffer(f"{name}_scale", torch.as_tensor(scale, dtype=torch.float64))

    @property
    def num_outputs(self) -> int:
        """Number of targets."""
        return len(self.y_scale)

    @property
    def batch_shape(self) -> torch.Size:
        """Shape (), because this is one model that takes batches of inputs."""
        return torch.Size()

    def _scaled(self, X: Tensor) -> Tensor:
        """Return batches of rows (B, q, d) in the scaling of the posterior."""
        return (X.reshape(-1, *X.shape[-2:]) - self.x_offset) / self.x_scale

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        mean, cov = batched_moments(self.f, self._scaled(X))  # (B, q, P), (B, P, q, q)
        mean = mean * self.y_scale + self.y_offset
        cov = cov * self.y_scale.square()[:, None, None]
        batch = X.shape[:-2]
        return mean.reshape(*batch, *mean.shape[1:]), cov.reshape(*batch, *cov.shape[1:])

    def noise(self, X: Tensor) -> Tensor:
        if self.white is not None:
            return self._in_units(self.white).expand(*X.shape[:-1], self.num_outputs)
        rows = self._scaled(X).flatten(0, 1)
        f, likelihood = self.f.predictive(rows, Rows(rows[:, :1]))
        if not isinstance(likelihood, AdditiveNoise):
            raise ValueError(
                "observation_noise=True needs additive Gaussian noise, got likelihood "
                f"{likelihood!r}, whose y is not Gaussian given f. Use "
                "observation_noise=False."
            )
        (_, of_y), (_, of_f) = likelihood.moments(f).mixture_moments(), f.mixture_moments()
        return self._in_units(of_y - of_f).reshape(*X.shape[:-1], -1)

    def observed_noise(self, X: Tensor) -> Tensor:
        if self.alpha is None:
            raise ValueError(
                "The noise of new rows is not known, because the estimator was fitted with "
                "one alpha for each row. Pass it as `noise` or `observation_noise`."
            )
        return self.noise(X) + self._in_units(self.alpha)

    def _in_units(self, variance: Any) -> Tensor:
        """Convert variances of the scaled y to squared units of y."""
        return torch.as_tensor(variance).to(self.y_scale) * self.y_scale.square()


class ConditionedModel(PosteriorModel):
    """A model conditioned on additional observations (X′, Y′) with noise S, in batches.

    With m and c the mean and covariance of f before, and C = c(X′, X′) + S = LLᵀ,

        m(X) + c(X, X′)C⁻¹(Y′ − m(X′)),   c(X, X) − VᵀV,   V = L⁻¹c(X′, X)

    Parameters
    ----------
    model : PosteriorModel
        The model before conditioning.
    X : Tensor of shape (..., q, d)
    Y, noise : Tensor of shape (..., q, P)
        Targets, and S.
    """

    def __init__(self, model: PosteriorModel, X: Tensor, Y: Tensor, noise: Tensor) -> None:
        super().__init__()
        self.model = model
        self.X, self.Y, self.S = X, Y, noise

    @property
    def num_outputs(self) -> int:
        """Number of targets."""
        return self.model.num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the observations."""
        shapes = (self.X.shape[:-2], self.Y.shape[:-2], self.model.batch_shape)
        return torch.broadcast_shapes(*shapes)

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        batch = torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
        joint = [rows.expand(*batch, *rows.shape[-2:]) for rows in (self.X, X)]
        mean, cov = self.model.moments(torch.cat(joint, -2))
        k = self.X.shape[-2]
        C = cov[..., :k, :k] + torch.diag_embed(self.S.mT)
        L = cholesky(C, "covariance of the observations")  # (..., P, k, k)
        V = tri_solve(L, cov[..., :k, k:])
        error = tri_solve(L, (self.Y - mean[..., :k, :]).mT[..., None])  # L⁻¹(Y′ − m(X′))
        shift = (V.mT @ error)[..., 0].mT  # (..., q, P)
        return mean[..., k:, :] + shift, cov[..., k:, k:] - V.mT @ V

    def noise(self, X: Tensor) -> Tensor:
        return self.model.noise(X)

    def observed_noise(self, X: Tensor) -> Tensor:
        return self.model.observed_noise(X)


def distribution(mean: Tensor, cov: Tensor) -> Any:
    """Return N(mean, cov) of means (..., q, P) and covariances (..., P, q, q).

    GPyTorch factorises the covariances, with jitter, only when they are needed.
    """
    if mean.shape[-1] == 1:
        return MultivariateNormal(mean.squeeze(-1), to_linear_operator(cov.squeeze(-3)))
    of_outputs = MultivariateNormal(mean.mT, to_linear_operator(cov))
    return MultitaskMultivariateNormal.from_batch_mvn(of_outputs, task_dim=-1)

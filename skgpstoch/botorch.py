"""Fitted regressors as models of BoTorch, for its acquisition functions; needs botorch.

A :class:`BoTorchModel` has the posterior of f of the estimator inside, in the units of its X and y:
differentiable by the inputs, in batches, in float64. Hyper-parameters are what `fit` has found.

>>> from botorch.acquisition import qLogExpectedImprovement  # doctest: +SKIP
>>> model = BoTorchModel(GaussianProcessRegressor(kernel).fit(X, y))  # doctest: +SKIP
>>> acquisition = qLogExpectedImprovement(model, best_f=y.max())  # doctest: +SKIP
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

try:
    from botorch.models.model import Model
    from botorch.posteriors import GPyTorchPosterior
    from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
except ImportError as error:
    raise ImportError(
        "skgpstoch.botorch needs BoTorch: install it, for example by `pip install botorch`."
    ) from error

from sklearn.utils.validation import check_is_fitted

from .data.arrays import Scaling
from .data.rows import Rows
from .drop_in.exact import ExactModel
from .drop_in.many_rows import ManyRowsModel
from .drop_in.regressor import GaussianProcessRegressor
from .estimators.base import predictor
from .estimators.regressor import Regressor
from .estimators.targets import transformer_of
from .kernels import split_white_noise
from .likelihoods.real import AdditiveNoise
from .posteriors.base import Posterior
from .posteriors.batches import batched_moments


class LatentModel(NamedTuple):
    """A posterior of f of scaled rows, and the units of X and y."""

    posterior: Posterior
    x_scaling: Scaling
    y_scaling: Scaling
    white: np.ndarray | None
    """Noise variance of a new scaled y, (P,) or (); None: the posterior's likelihood says."""


def latent_of(estimator: Any) -> LatentModel:
    """Return what is inside a fitted regressor.

    Raises
    ------
    TypeError
        If it is no regressor of ours with one posterior.
    ValueError
        If its target is transformed.
    """
    check_is_fitted(estimator)
    if isinstance(estimator, GaussianProcessRegressor):
        model, scaling = estimator._model()
        if isinstance(model, ExactModel):
            white = split_white_noise(estimator.kernel_)[1]
            level = np.array(0.0 if white is None else white.noise_level)
            inputs = Scaling.identity(estimator.n_features_in_)
            return LatentModel(model.posterior(latent=True), inputs, scaling, level)
        many = cast(ManyRowsModel, model)
        inner = latent_of(many.estimator)
        level = many.white / inner.y_scaling.scale**2
        return inner._replace(y_scaling=inner.y_scaling.within(scaling), white=level)
    if isinstance(estimator, Regressor) and isinstance(estimator.posterior_, Posterior):
        if transformer_of(estimator) is not None:
            raise ValueError(
                f"target_transform must be None, got {estimator.target_transform!r}: BoTorch's "
                "posteriors are Gaussian. Fit the regressor to the transformed y."
            )
        posterior = copy.deepcopy(predictor(estimator)[1])
        return LatentModel(posterior, estimator._x_scaling, estimator._y_scaling, None)
    raise TypeError(
        "estimator must be a GaussianProcessRegressor or another regressor of skgpstoch with a "
        f"posterior_, got {type(estimator).__name__}."
    )


class BoTorchModel(Model):
    """The posterior of a fitted regressor, as BoTorch asks for it.

    Parameters
    ----------
    estimator : regressor
        A fitted `GaussianProcessRegressor`, with a kernel that runs in torch, or any other fitted
        regressor of skgpstoch with a `posterior_`: sparse, finite-dimensional, networks. It is not
        changed.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.
    TypeError
        If it is of another kind, or its kernel does not run in torch.
    ValueError
        If it has a `target_transform`.
    """

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.estimator = estimator
        posterior, x_scaling, y_scaling, self.white = latent_of(estimator)
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
        """(): one model, which is asked in batches."""
        return torch.Size()

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
            Targets that are wanted; None for all.
        observation_noise : bool or Tensor, default=False
            Whether it is of y: the learned noise, as `predict` has it, adds to the variances of
            rows. A tensor that broadcasts to (..., q, P) is what is added.
        posterior_transform : PosteriorTransform or None, default=None
            What BoTorch does with it.

        Returns
        -------
        posterior : GPyTorchPosterior
            In float64.
        """
        batches = (X.double().reshape(-1, *X.shape[-2:]) - self.x_offset) / self.x_scale
        mean, cov = batched_moments(self.f, batches)  # (B, q, P), (B, P, q, q)
        mean = mean * self.y_scale + self.y_offset
        cov = cov * self.y_scale.square()[:, None, None]
        if isinstance(observation_noise, Tensor):
            given = observation_noise.double().expand(*X.shape[:-1], -1)
            cov = cov + torch.diag_embed(given.reshape(mean.shape).mT)
        elif observation_noise:
            cov = cov + torch.diag_embed(self._noise(batches).mT)
        chosen = list(range(self.num_outputs)) if output_indices is None else output_indices
        found = distribution(mean[..., chosen], cov[:, chosen], X.shape[:-2])
        posterior = GPyTorchPosterior(found)
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def _noise(self, batches: Tensor) -> Tensor:
        """Return the noise variance of new rows, (B, q, P)."""
        B, q, _ = batches.shape
        if self.white is not None:
            white = torch.as_tensor(self.white, dtype=torch.float64, device=batches.device)
            return (white * self.y_scale.square()).expand(B, q, -1)
        rows = batches.flatten(0, 1)
        f, likelihood = self.f.predictive(rows, Rows(rows[:, :1]))
        if not isinstance(likelihood, AdditiveNoise):
            raise ValueError(
                f"observation_noise=True needs additive noise, got {likelihood!r}: its y is not "
                "Gaussian given f."
            )
        (_, of_y), (_, of_f) = likelihood.moments(f).mixture_moments(), f.mixture_moments()
        return ((of_y - of_f) * self.y_scale.square()).unflatten(0, (B, q))

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> BoTorchModel:
        """Return the model of more rows, by `condition_on` of a copy of the estimator.

        Parameters
        ----------
        X : Tensor of shape (n, d)
            Inputs of new rows.
        Y : Tensor of shape (n, P)
            Their targets.

        Raises
        ------
        ValueError
            If there are batches of rows: this is one model.
        """
        if X.ndim != 2 or Y.ndim != 2 or kwargs:
            raise ValueError(
                "condition_on_observations takes X (n, d) and Y (n, m), a single batch, and no "
                f"more, got {tuple(X.shape)}, {tuple(Y.shape)} and {sorted(kwargs)}: the model of "
                "an estimator has no batches."
            )
        estimator = copy.deepcopy(self.estimator)
        y = Y if self._takes_columns() else Y[:, 0]
        return BoTorchModel(estimator.condition_on(X, y))

    def _takes_columns(self) -> bool:
        """Whether the y of the estimator has two dimensions."""
        shape = getattr(self.estimator, "y_train_", None)
        return len(self.estimator._y_shape) == 1 if shape is None else shape.ndim == 2


def distribution(mean: Tensor, cov: Tensor, batch_shape: torch.Size) -> Any:
    """Return N(mean, cov) of means (B, q, P) and covariances (B, P, q, q) in this shape."""
    mean = mean.mT.reshape(*batch_shape, *mean.mT.shape[1:])  # (..., P, q)
    cov = cov.reshape(*batch_shape, *cov.shape[1:])
    if mean.shape[-2] == 1:
        return MultivariateNormal(mean.squeeze(-2), cov.squeeze(-3))
    return MultitaskMultivariateNormal.from_batch_mvn(MultivariateNormal(mean, cov), task_dim=-1)

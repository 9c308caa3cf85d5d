"""Estimators of the sparse variational family: model, solvers, streams and fitted attributes."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from .. import kernels
from ..data.rows import Data, Rows
from ..features.inducing import InducingFeatures
from ..features.points import choose_points
from ..likelihoods.base import Likelihood
from ..likelihoods.real import Gaussian
from ..losses import ExpectedLogLikelihood, Loss, TighterBound, make_loss
from ..models.deep import DeepModel
from ..models.layers import DeepFeatures
from ..models.sparse import RowScale, SparseModel, SparsePosterior
from ..objectives.base import Objective
from ..objectives.optimal_q import optimal_q
from ..objectives.variational import VariationalObjective
from ..posteriors.base import Posterior
from .base import BaseGP
from .checkpoint_key import changed_shape
from .network_kernel import KernelChoice
from .parameters import InducingParameters, LossParameters, TrainingParameters
from .partial_fit import StreamsMixin
from .plan import Plan, given_number, n_points, sparse_plan
from .sparse_model import (
    given_points,
    in_units,
    input_unit,
    make_kernel,
    make_objective,
    start_likelihood,
    start_mean,
)
from .warm_start import fitted_number, load_fitted


class Start(NamedTuple):
    """What a fit begins from.

    Parameters
    ----------
    posterior : SparsePosterior
        A fitted one.
    is_fixed : bool, default=False
        Whether kernel, likelihood and points stay as they are there.
    """

    posterior: SparsePosterior
    is_fixed: bool = False

    @property
    def model(self) -> SparseModel:
        """Its model."""
        return self.posterior.model


@dataclass(eq=False, repr=False, kw_only=True)
class SparseGP(KernelChoice, InducingParameters, TrainingParameters, StreamsMixin, BaseGP):
    """What regressors and classifiers of the sparse variational family share.

    Attributes
    ----------
    kernel_ : sklearn kernel
        The fitted kernel, on X or on the network's outputs.
    likelihood_ : Likelihood
        The fitted likelihood.
    log_marginal_likelihood_value_ : float
        The bound on log p(y | X), in nats, summed over all rows; NaN after `partial_fit`, and where
        there is none (likelihood="shared_student_t").
    """

    _standardises: ClassVar[bool] = True
    _shape_parameters: ClassVar[tuple[str, ...]] = (
        "kernel",
        "hidden_layer_sizes",
        "activation",
        "feature_map",
        "n_inducing",
        "inducing_points",
        "mean",
        "likelihood",
        "normalize_y",
    )

    # ---- hooks of estimators -----------------------------------------------------------------

    @abstractmethod
    def _make_likelihood(self) -> Likelihood:
        """The likelihood that the parameters ask for, for one output."""

    @abstractmethod
    def _make_loss(self) -> Loss:
        """What is trained for."""

    def _kl_weight(self) -> float:
        """β."""
        return 1.0

    def _prior_blocks(self, features: InducingFeatures) -> tuple[bool, ...]:
        """Whether S_b stays the prior's."""
        return (False,) * len(features.blocks)

    def _start(self) -> Start | None:
        fitted = super()._start()
        return None if fitted is None else Start(cast(SparsePosterior, fitted))

    # ---- plan --------------------------------------------------------------------------------

    def _plan(self, data: Data, n_given: int, start: Any, streams: bool = False) -> Plan:
        likelihood, loss = self._make_likelihood(), self._make_loss()
        self._check_network()
        check_choices(likelihood, loss, self._split_kernel()[1], data)
        plan = sparse_plan(
            self,
            len(data),
            likelihood,
            loss,
            streams=streams,
            has_network=self._has_network(),
            shares_noise=data.y_std is None and not self._noise_of_inputs(),
            batch_needed=self._batch_needed(),
            beta=self._kl_weight(),
        )
        if streams and hasattr(self, "posterior_"):
            return plan  # with the points that there are, however few these rows
        M, M2 = self._n_points(len(data), n_given, plan.folds.n_untrained, start)
        return replace(plan, n_inducing=M, n_orthogonal=M2)

    def _batch_needed(self) -> int | None:
        """Usual rows of a minibatch where there is no bound of all rows, only estimates."""
        return None

    def _n_points(
        self, n_rows: int, n_given: int, n_untrained: int, start: Any, shares: bool = False
    ) -> tuple[int, int]:
        """M and M₂; `shares`: whether orthogonal points want rows of their own."""
        if start is not None:
            fitted = len(start.model.features.points)
            return fitted_number(self, "n_inducing", fitted), 0
        if not isinstance(self.inducing_points, str):
            given = len(self.inducing_points)
            return given_number(self.n_inducing, "n_inducing", given), 0
        likelihood, loss = self._make_likelihood(), self._make_loss()
        n_trained, n_given = n_rows - n_untrained, n_given - n_untrained
        return n_points(self, n_trained, n_given, likelihood, loss, shares), 0

    # ---- the model ---------------------------------------------------------------------------

    def _objective(
        self, X: Tensor, rows: Rows, plan: Plan, start: Any, generator: torch.Generator
    ) -> Objective:
        n_held_out = rows.n_held_out  # which come first
        X, rows = X[n_held_out:], rows[n_held_out:]
        white = self._split_kernel()[1]
        noise = None if white is None else self._initial_noise()
        likelihood = start_likelihood(self._make_likelihood(), rows, noise)
        mean = start_mean(self.mean, likelihood, rows)
        fitted = None if start is None else start.model.for_training()
        features: Any = self._features(X, rows, len(mean.value), plan, fitted, generator)
        blocks, loss = self._prior_blocks(features), self._make_loss()
        kind = DeepModel if isinstance(features, DeepFeatures) else SparseModel
        scale = None
        if self._noise_of_inputs():
            scale = RowScale(rows.y.new_zeros(sum(features.blocks), rows.y.shape[1]))
        model = kind(features, likelihood, mean, blocks, loss, plan.beta, scale)
        self._set_trainable(model, len(X))
        if fitted is not None:
            load_fitted(model, fitted, changed_shape(self))
            if self.mean == "zero":  # a constant may have been learned before
                model.mean.value.data.zero_()
        if start is not None and start.is_fixed:
            model.requires_grad_(False)
        objective = self._build(model.to(X.device), rows.n_effective, rows, plan)
        if start is not None and start.is_fixed and not objective.is_closed():
            objective.start_from(start.posterior)
        return objective

    def _features(
        self,
        X: Tensor,
        rows: Rows,
        n_latents: int,
        plan: Plan,
        fitted: SparseModel | None,
        generator: torch.Generator,
    ) -> InducingFeatures:
        """P, before training."""
        network, width = self._network(X, generator)
        most = self._make_likelihood().most_prior_variance
        kernel = make_kernel(self._split_kernel()[0], network, X, rows, most)
        points = self._start_points("inducing_points", X, fitted)
        if points is None:
            method, weight = self.inducing_points, rows.weight
            M = plan.n_inducing
            points = choose_points(method, X, M, kernel, network.eval(), generator, weight)
        return InducingFeatures(kernel, network.eval(), points, input_unit(X, rows), width)

    def _start_points(self, name: str, X: Tensor, fitted: SparseModel | None) -> Tensor | None:
        """Points to start from: those of the last fit (warm_start), or a parameter's; or None."""
        if fitted is not None:
            return getattr(fitted.features, name).detach().to(X)
        given = getattr(self, name)
        if given is None or isinstance(given, str):
            return None
        return given_points(name, given, X, self._x_scaling)

    def _set_trainable(self, model: SparseModel, n_rows: int) -> None:
        """What is learned: all but what is fixed, and points that are as many as the rows."""
        if not self._learns_noise() or model.covariance == "prior":  # which has no use for it
            model.likelihood.requires_grad_(False)
        features = cast(InducingFeatures, model.features)
        if self.kernel is None and model.covariance == "prior":
            # Its variance only counts in proportion to beta, and more of it fits ever better.
            cast(Any, features.kernel).k1.requires_grad_(False)
        model.mean.requires_grad_(self.mean == "constant")
        features.learn_points(self.learn_inducing_points and len(features.points) < n_rows)
        self._freeze_network(features.network)

    def _build(
        self, model: SparseModel, n_rows: float, rows: Rows, plan: Plan
    ) -> VariationalObjective:
        """The solver's objective."""
        objective = make_objective(
            model,
            n_rows,
            plan,
            self.averaging,
            self.whiten,
            mean_weight=rows.mean_weight,
            weight_decay=self._weight_decay(n_rows),
            noise_bounds=self._noise_bounds(),
        )
        objective.has_user_module = self._has_user_module()
        return objective

    # ---- streams -----------------------------------------------------------------------------

    def _check_streams(self) -> None:
        if self.solver == "lbfgs":
            raise ValueError("partial_fit needs minibatches, but solver='lbfgs' has none.")

    def _stream_objective(
        self, X: Tensor, rows: Rows, plan: Plan, generator: torch.Generator
    ) -> Objective:
        loss = self._make_loss()
        if loss.covariance(self._make_likelihood()) == "prior":
            raise ValueError(
                f"partial_fit needs a loss that tells of variances, which {loss!r} does not: they "
                "are found by a pass over all rows."
            )
        if not hasattr(self, "posterior_"):
            objective = cast(VariationalObjective, self._objective(X, rows, plan, None, generator))
        else:
            posterior = cast(SparsePosterior, self.posterior_)
            model = posterior.model.for_training(X)
            model.loss, model.beta = loss, plan.beta
            n_rows = rows.n_effective + posterior.n_rows
            self._set_trainable(model, math.ceil(n_rows))
            objective = self._build(model, n_rows, rows, plan)
            objective.start_from(posterior)
        objective.streams = True
        return objective

    # ---- fitted attributes -------------------------------------------------------------------

    @property
    def _model(self) -> SparseModel:
        return cast(SparsePosterior, self.posterior_).model

    def _set_fitted(self, plan: Plan) -> None:
        model = self._model
        self._set_points()
        self.solver_ = plan.solver
        self.likelihood_ = model.likelihood
        self.kernel_ = self._fitted_kernel()
        self.log_marginal_likelihood_value_ = float(self.posterior_.log_evidence().sum())

    def _set_points(self) -> None:
        """Where inducing points are, in the units of X."""
        features = cast(InducingFeatures, self._model.features)
        points = [p.detach().double().numpy() for p in features.all_points()]
        offset, scale = self._x_scaling
        self.inducing_points_ = points[0] * scale + offset
        self.__dict__.pop("orthogonal_points_", None)
        if len(points) > 1:
            self.orthogonal_points_ = points[1] * scale + offset

    def _fitted_kernel(self) -> sk.Kernel:
        """In units of the scaled y, and of X where there is no network."""
        model, (_, white) = self._model, self._split_kernel()
        features = cast(InducingFeatures, model.features)
        fitted = kernels.to_sklearn(features.kernel)
        if self.kernel is None and not list(features.network.parameters()):
            scale = self._x_scaling.scale
            scale = scale if np.ndim(fitted.k2.length_scale) else scale[0]
            in_units(fitted.k2, scale)
        if not isinstance(model.likelihood, Gaussian):
            return fitted
        noise = float(model.likelihood.noise_variance.mean())
        return kernels.join_white_noise(fitted, noise, white)

    def _evidence_of(self, posterior: Posterior, X: Tensor, rows: Rows) -> float:
        model = cast(SparsePosterior, posterior).model.for_evidence()
        if not model.likelihood.has_bound:
            raise ValueError(f"The evidence has no bound with the likelihood {model.likelihood!r}.")
        return float(optimal_q(model, X, rows).value)


def check_choices(
    likelihood: Likelihood, loss: Loss, white: sk.WhiteKernel | None, data: Data
) -> None:
    """Raise a ValueError where parameters do not agree."""
    loss.check(likelihood)
    if loss.bounds_evidence and not likelihood.has_bound:
        raise ValueError(f"likelihood={likelihood!r} has no bound on the evidence; use loss='log'.")
    follows = loss.covariance(likelihood) == "prior"
    if white is not None and not isinstance(likelihood, Gaussian):
        raise ValueError(
            f"kernel has a WhiteKernel, the noise of likelihood='gaussian', but the likelihood "
            f"is {likelihood!r}."
        )
    if white is not None and follows and white.hyperparameter_noise_level.fixed:
        raise ValueError(
            "kernel has a fixed WhiteKernel, but the noise variance of the square loss follows "
            "from beta."
        )
    if data.y_std is not None and follows:
        raise ValueError("y_std must be None with the square loss, which knows no noise variance.")


@dataclass(eq=False, repr=False, kw_only=True)
class LossChoice(LossParameters):
    """A choice of likelihood and loss, from parameters."""

    def _make_loss(self) -> Loss:
        loss = make_loss(self.loss)
        if self.bound == "titsias":
            return loss
        if not isinstance(loss, ExpectedLogLikelihood):
            raise ValueError(f"bound='log1p' needs loss='elbo', got {self.loss!r}.")
        return TighterBound()

    def _kl_weight(self) -> float:
        return float(self.beta)

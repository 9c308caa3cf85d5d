"""Estimators with very many basis functions: kernel, basis, model, plan and fitted attributes."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from .. import kernels
from ..data.rows import Data, Rows
from ..features.basis_functions import BasisFunctions
from ..likelihoods.base import Likelihood
from ..likelihoods.real import AdditiveNoise
from ..objectives.base import Objective
from ..objectives.blockwise import BasisObjective, BlockwiseObjective
from ..posteriors.base import Posterior
from ..posteriors.chevron import ChevronModel, ChevronPosterior
from ..training.exact_search import best_on
from ..training.optimizers import SCHEDULES, Schedule, constant, one_cycle
from .base import BaseGP
from .checkpoint_key import changed_shape
from .network_kernel import START_NOISE, KernelChoice, default_kernel
from .parameters import AUTO, POSITIVE_INTEGER, TrainingParameters
from .plan import Folds, Plan
from .sparse_model import start_likelihood
from .warm_start import load_fitted

MOST_SWEPT = 16_384  # rows, of "auto"
BLOCK = 2048  # basis functions of a step, of "auto"
LEAST_STEPS = 2_000  # of "auto", for very many basis functions; else SWEEPS
SWEEPS = 20
LEARNING = 3  # times that, where the kernel learns
DIAGONAL_ROWS = 4  # for each diagonal column of C, up to which the bound knows the noise
PATIENCE = 2  # sweeps without an improvement by `tol`, where there is no noise
TOL = 1e-4
LOGIT_SLOPE = 1.7  # of the logistic function that is closest to Φ, over Φ's
MOST_LATENT_VARIANCE = 100.0


@dataclass(eq=False, repr=False, kw_only=True)
class BasisParameters:
    """Very many basis functions.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Where its hyper-parameters start; a top-level WhiteKernel is the noise. None: a constant
        times an RBF kernel with a length-scale for each input, up to 64 of these.
    batch_size : int or "auto", default="auto"
        Rows of a sweep over all basis functions; "auto" is 16,384.
    basis_batch_size : int or "auto", default="auto"
        Basis functions of a step; "auto" is 2,048.
    max_iter : int or "auto", default="auto"
        Sweeps; "auto" is 20, three times that where the kernel learns, or fewer that make 2,000
        steps, one at least. Where a sweep has all rows and the kernel does not learn, training ends
        earlier after two sweeps that gain less than `tol`.
    learning_rate_init : float, default=1.0
        How far a step goes towards the optimum of a block, at most 1.
    learning_rate : {"auto", "one-cycle", "constant", "theory"}, default="auto"
        How that falls from sweep to sweep, where these have other rows; otherwise it stays. "auto"
        is "theory", t^(−3/4).
    early_stopping : bool, default=False
        Keep the iterate that predicts held-out rows best.
    n_iter_no_change : int or None, default=None
        Stop after this many sweeps without an improvement by `tol`; None: two, where a sweep has
        all rows, and else train to the end.
    tol : float, default=0.0001
        Improvement that counts, in nats per row.
    n_subset : int, default=1000
        Rows whose exact Gaussian process finds the kernel to start from; 0: the kernel as it is.
        A classifier's has −1 and 1, centred, for targets.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        Basis functions and q(w), on the CPU: μ and C in the type of training, the kernel in
        float64. Fourier features are a seed.
    kernel_ : sklearn kernel
        The kernel, without noise.
    likelihood_ : Likelihood
        The fitted likelihood.
    loss_curve_ : list of float
        Minus the evidence lower bound of every sweep, nats per row, of the scaled y where it is
        scaled; without log|k(Z, Z)| where basis="inducing". For solver="adagrad" an estimate, of
        more than that where the likelihood is not Gaussian.
    n_iter_, best_iter_ : int
        Sweeps done, and the one whose iterate was kept; 0 is the start.
    """

    basis_batch_size: int | str = "auto"
    learning_rate_init: float = 1.0
    learning_rate: str = "auto"
    early_stopping: bool | str = False
    tol: float = TOL
    n_subset: int = 1000

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "learning_rate_init": [Interval(Real, 0, 1, closed="right")],
        "learning_rate": [StrOptions({"auto", *SCHEDULES})],
        "basis_batch_size": [POSITIVE_INTEGER, AUTO],
        "n_subset": [Interval(Integral, 0, None, closed="left")],
    }


@dataclass(eq=False, repr=False, kw_only=True)
class BasisGP(BasisParameters, TrainingParameters, KernelChoice, BaseGP):
    """What regressors and classifiers with very many basis functions share."""

    _standardises: ClassVar[bool] = True
    _shape_parameters: ClassVar[tuple[str, ...]] = ("kernel", "basis", "n_components", "n_dense")
    _blockwise: ClassVar[type[BlockwiseObjective]] = BlockwiseObjective
    _block: ClassVar[int] = BLOCK
    _sweeps: ClassVar[int] = SWEEPS
    _patience: ClassVar[float] = PATIENCE

    # ---- hooks of estimators -----------------------------------------------------------------

    @abstractmethod
    def _make_likelihood(self) -> Likelihood:
        """The likelihood that the parameters ask for, for one output."""

    @abstractmethod
    def _basis(
        self, kernel: kernels.Kernel, X: Tensor, plan: Plan, generator: torch.Generator
    ) -> BasisFunctions:
        """φ and S."""

    @abstractmethod
    def _n_components(self, n_rows: int, start: Any) -> int:
        """m."""

    def _dtype(self) -> str:
        """Of training."""
        return self.dtype

    def _check_kernel(self, kernel: kernels.Kernel, n_features: int) -> None:
        """Raise an error where there are no basis functions of this kernel."""

    def _learns_kernel(self) -> bool:
        return False

    def _schedule(self) -> Schedule:
        """Of the steps, where sweeps have different rows."""
        return SCHEDULES["theory" if self.learning_rate == "auto" else self.learning_rate]

    def _group_size(self) -> int:
        """Basis functions that are evaluated together."""
        return 1

    def _codes(self, rows: Rows, shift: Tensor) -> Tensor:
        """Targets, about 0, of the exact process that the kernel is started from, (N, P)."""
        return rows.y - shift

    # ---- plan --------------------------------------------------------------------------------

    def _plan(self, data: Data, n_given: int, start: Any, streams: bool = False) -> Plan:
        n, folds = len(data), Folds()
        if self.early_stopping:
            folds = Folds.of(n, self.validation_fraction)
        n_trained = n - folds.n_untrained
        m = self._n_components(n_trained, start)
        block = self._block if self.basis_batch_size == "auto" else int(self.basis_batch_size)
        most = self._sweeps * (LEARNING if self._learns_kernel() else 1)
        sweeps = min(most, max(1, math.ceil(LEAST_STEPS * block / m)))
        is_whole = self._n_swept(n_trained) == n_trained
        stops = is_whole and not self.early_stopping and not self._learns_kernel()
        return Plan(
            solver="newton",
            dtype=self._dtype(),
            max_iter=sweeps if self.max_iter == "auto" else int(self.max_iter),
            batch_size=max(1, block // self._group_size()),
            schedule=one_cycle,  # of the kernel
            rate=self.learning_rate_init,
            patience=self.n_iter_no_change or (self._patience if stops else math.inf),
            tol=self.tol,
            holds_out=bool(self.early_stopping),
            evaluates=bool(self.early_stopping),
            folds=folds,
            n_inducing=m,
        )

    def _n_swept(self, n_rows: int) -> int:
        """p."""
        asked = MOST_SWEPT if self.batch_size == "auto" else int(self.batch_size)
        return min(asked, n_rows)

    def _dense_columns(self, m: int, n_swept: int, n_outputs: int) -> int:
        """c."""
        return 0

    # ---- the model ---------------------------------------------------------------------------

    def _objective(
        self, X: Tensor, rows: Rows, plan: Plan, start: Any, generator: torch.Generator
    ) -> Objective:
        n_held_out = rows.n_held_out  # which come first
        X, rows = X[n_held_out:], rows[n_held_out:]
        likelihood = start_likelihood(self._make_likelihood(), rows, None)
        shift = likelihood.initial_mean(rows.to(torch.float64)).to(X)
        if isinstance(likelihood, AdditiveNoise) and bool(getattr(self, "normalize_y", False)):
            shift = torch.zeros_like(shift)
        fitted = None if start is None else cast(ChevronPosterior, start).model
        if fitted is None:
            kernel = self._start_kernel(X, rows, shift, likelihood)
            basis = self._basis(kernel, X, plan, generator)
        else:
            if changed := changed_shape(self):
                raise ValueError(
                    f"warm_start=True goes on with the model that was fitted before, but {changed} "
                    "asks for another one. Set it back, or fit with warm_start=False."
                )
            basis = copy.deepcopy(fitted.basis)
        c = self._dense_columns(basis.n_components, self._n_swept(len(X)), len(shift))
        model = ChevronModel(basis, likelihood, shift, c, X.dtype, **self._model_options())
        if fitted is not None:
            load_fitted(model, fitted, "the shape of y")
        return self._build(model.to(X.device), X, rows, plan, generator)

    def _model_options(self) -> dict[str, Any]:
        return {}

    def _build(
        self, model: ChevronModel, X: Tensor, rows: Rows, plan: Plan, generator: torch.Generator
    ) -> BasisObjective:
        """The solver's objective."""
        rate, is_whole = self.learning_rate_init, self._n_swept(len(X)) == len(X)
        schedule = constant if is_whole else self._schedule()
        return self._blockwise(
            model,
            X,
            rows,
            n_swept=self._n_swept(len(X)),
            rate=lambda sweep: rate * schedule(sweep, plan.max_iter),
            **self._learning(model, plan, rows.n_effective),
        )

    def _learning(self, model: ChevronModel, plan: Plan, n_rows: float) -> dict[str, Any]:
        """Which hyper-parameters are learned, and when.

        A diagonal column takes its weight to be alone: m of them on n rows of noise σ² explain
        σ²m/n, however many really are determined, and the noise of the best bound is r²/(1 − m/n).
        Where these are many, it is that of the start, or r² where that is more.
        """
        low, high = self._noise_bounds()
        learns = isinstance(model.likelihood, AdditiveNoise) and low < high
        n_diagonal = model.basis.n_components - model.n_dense
        is_safe = len(model.s) > 0 or n_diagonal <= n_rows / DIAGONAL_ROWS
        if learns and not is_safe:
            low = float(cast(AdditiveNoise, model.likelihood).noise_variance.detach().min())
        return {
            "learns_kernel": self._learns_kernel(),
            "learns_noise": learns,
            "counts_variance": is_safe,
            "warm_up": plan.max_iter // 4 if self._learns_kernel() else 0,
            "noise_bounds": (low, high),
        }

    def _start_kernel(
        self, X: Tensor, rows: Rows, shift: Tensor, likelihood: Likelihood
    ) -> kernels.Kernel:
        """k at the exact optimum of some rows, and the likelihood's noise from there, in place."""
        expression, white = self._split_kernel()
        if expression is None:
            expression = default_kernel(X.shape[1])
        self._check_kernel(kernels.from_sklearn(expression), X.shape[1])
        found, size = expression + (white or START_NOISE), min(self.n_subset, len(X))
        if size:
            found = best_on(found, X[:size], self._codes(rows, shift)[:size])
        expression, level = found.k1, float(np.clip(found.k2.noise_level, *self._noise_bounds()))
        if isinstance(likelihood, AdditiveNoise):
            likelihood.set_noise_(level)
        elif size:
            variance = float(expression.diag(X[:size].cpu().double().numpy()).mean())
            expression = as_latent(expression, level, variance)
        kernel = kernels.from_sklearn(expression)
        kernel.clamp_()
        return kernel.to(X.device)

    # ---- fitted attributes -------------------------------------------------------------------

    @property
    def _model(self) -> ChevronModel:
        return cast(ChevronPosterior, self.posterior_).model

    def _set_fitted(self, plan: Plan) -> None:
        likelihood = self._model.likelihood
        self.likelihood_ = likelihood
        self.kernel_ = kernels.to_sklearn(self._model.basis.kernel)
        if self.kernel is None:  # which has seen X scaled
            self.kernel_.k2.length_scale = self.kernel_.k2.length_scale * self._x_scaling.scale
        if isinstance(likelihood, AdditiveNoise):
            noise = float(likelihood.noise_variance.mean())
            self.kernel_ = kernels.join_white_noise(self.kernel_, noise, self._split_kernel()[1])
        if self.kernel is not None and (self.n_subset or self._learns_kernel()):
            self.kernel_._check_bounds_params()  # which warns

    def _evidence_of(self, posterior: Posterior, X: Tensor, rows: Rows) -> float:
        return float(cast(ChevronPosterior, posterior).bound_of(X, rows))


def as_latent(kernel: sk.Kernel, noise: float, variance: float) -> sk.Kernel:
    """The kernel of a logistic model's f, from that of a regression on −1 and 1 with this noise.

    P(y > 0) = Φ(g/σ) for a regression g, and about logistic(1.7 g/σ).
    """
    factor = min(LOGIT_SLOPE**2 / noise, MOST_LATENT_VARIANCE / variance)
    scale = getattr(kernel, "k1", None) if isinstance(kernel, sk.Product) else None
    if isinstance(scale, sk.ConstantKernel) and not scale.hyperparameter_constant_value.fixed:
        low, high = scale.constant_value_bounds
        if low <= factor * scale.constant_value <= high:
            scale.constant_value *= factor
            return kernel
    return sk.ConstantKernel(factor, "fixed") * kernel

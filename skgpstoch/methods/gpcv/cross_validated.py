"""Regressors whose kernel is found by cross-validation: folds, starts and fitted attributes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import KFold, ShuffleSplit, check_cv
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from ...data.rows import Data, Rows
from ...estimators.checkpoint_key import changed_shape
from ...estimators.network_kernel import START_NOISE, KernelChoice, default_kernel
from ...estimators.parameters import N_JOBS, POSITIVE, POSITIVE_INTEGER
from ...estimators.plan import Plan
from ...estimators.regressor import GPRegressor, check_shared_noise
from ...kernels import join_white_noise, to_sklearn
from ...posteriors.base import Posterior
from ...posteriors.exact import ExactPosterior
from ...training.exact_search import best_on
from .fold_loss import Fold
from .iterative import IterativePosterior

FEW_ROWS = 500  # whose marginal likelihood finds where the default kernel starts

OfAllRows = ExactPosterior | IterativePosterior


class Start(NamedTuple):
    """Where a search begins, and what of it is learned."""

    kernel: sk.Kernel
    noise: float
    noise_bounds: tuple[float, float]  # equal, where the noise stays
    calibrates: bool  # whether the scale of kernel and noise is found at the end

    @property
    def theta(self) -> np.ndarray:
        """Log-hyper-parameters, the noise last, (D,)."""
        return np.append(self.kernel.theta, [math.log(self.noise)] * self.learns_noise)

    @property
    def bounds(self) -> np.ndarray:
        """Of the same, (D, 2)."""
        of_noise = [np.log(self.noise_bounds)] * self.learns_noise
        return np.vstack([self.kernel.bounds.reshape(-1, 2), *of_noise])

    @property
    def learns_noise(self) -> bool:
        """Whether σ² is among θ."""
        return self.noise_bounds[0] < self.noise_bounds[1]


@dataclass(eq=False, repr=False, kw_only=True)
class CrossValidatedGPRegressor(KernelChoice, GPRegressor):
    """A kernel by cross-validation, and the posterior of all rows.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Where its hyper-parameters start, any that scikit-learn has in torch here; a top-level
        WhiteKernel is the noise. None: a constant times an RBF kernel with a length-scale for each
        input, up to 64 of these, that starts from the optimum of the marginal likelihood of 500
        rows. Hyper-parameters refer to the scaled y.
    cv : int, float, splitter or iterable, default=2
        Folds. An int: so many, of shuffled rows; a float between 0 and 1: one, with this fraction
        of the rows held out; or a scikit-learn splitter, or pairs of row numbers or masks; None is
        5.
    learn_noise : bool, default=True
        Whether the noise is learned, and the scale of all variances is that of the errors of rows
        held out, within bounds of the kernel, unless a ConstantKernel is fixed. Outputs have the
        same noise, relative to their variance. False: it is that of the WhiteKernel, or
        `noise_variance`.
    noise_variance : float, default=0.1
        Where the noise starts, relative to the scaled y, if `kernel` has no WhiteKernel.
    n_restarts : int, default=0
        Searches from random hyper-parameters, log-uniform within their bounds, besides the first;
        the one with the least error is kept.
    block_size : int, default=8192
        Rows up to which covariances are kept, and the final posterior has a Cholesky factor. Of
        more rows, products with covariances are made by blocks, in memory of some hundred numbers a
        row, and the posterior is found by conjugate gradients.
    n_jobs : int or None, default=None
        Folds and restarts that are computed at a time, by joblib; None is 1, unless in a
        :func:`joblib.parallel_config`.
    normalize_y : bool, default=True
        Whether the target is standardised inside; results are in its own units.
    dtype : {"float32", "float64"}, default="float64"
        Of covariances during training; all else is float64. With little noise float32 ends at a
        worse optimum.

    Attributes
    ----------
    loss_curve_ : list of float
        Squared error of rows held out at every iteration, of the scaled y where it is scaled.
    kernel_ : sklearn kernel
        The kernel, and the noise as a WhiteKernel where `kernel` has one; variances refer to the
        scaled y.
    likelihood_ : Likelihood
        The noise, in the units of y.
    validation_scores_ : None
        There are none besides the loss.
    """

    cv: Any = 2
    learn_noise: bool = True
    noise_variance: float = 0.1
    n_restarts: int = 0
    block_size: int = 8192
    n_jobs: int | None = None
    normalize_y: bool = True
    dtype: str = "float64"

    _standardises: ClassVar[bool] = True
    _shape_parameters: ClassVar[tuple[str, ...]] = ("kernel", "learn_noise")

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "cv": ["cv_object", Interval(Real, 0, 1, closed="neither")],
        "learn_noise": ["boolean"],
        "noise_variance": [POSITIVE],
        "n_restarts": [Interval(Integral, 0, None, closed="left")],
        "block_size": [POSITIVE_INTEGER],
        "n_jobs": N_JOBS,
        "normalize_y": ["boolean"],
    }

    # ---- rows --------------------------------------------------------------------------------

    def _numbers_rows(self) -> bool:
        return not isinstance(self.cv, Real)

    def _distinct(self, data: Data) -> Data:
        return data if self._numbers_rows() else super()._distinct(data)

    def _folds(self, X: Tensor, rows: Rows, seed: int, n_folds: int | None = None) -> list[Fold]:
        """All folds, or the first ones."""
        cv = self.cv
        if isinstance(cv, Integral):
            if int(cv) > len(X):
                raise ValueError(f"cv={cv} must be at most the number of distinct rows, {len(X)}.")
            cv = KFold(int(cv), shuffle=True, random_state=seed)
        elif isinstance(cv, Real):
            cv = ShuffleSplit(1, test_size=float(cv), random_state=seed)
        try:
            given = list(check_cv(cv).split(X.cpu().numpy(), rows.y[:, 0].cpu().numpy()))
            pairs = [(trained, held_out) for trained, held_out in given]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"cv={self.cv!r} gives no folds of {len(X)} rows: {error} A splitter that asks for "
                "more than X and y can be given as its pairs, list(cv.split(X, y, groups))."
            ) from error
        if not pairs:
            raise ValueError(f"cv={self.cv!r} must give one fold at least.")
        return [fold_of(X, rows, *row_numbers(pair, len(X))) for pair in pairs[:n_folds]]

    # ---- hyper-parameters --------------------------------------------------------------------

    def _begin(self, X: Tensor, rows: Rows, posterior: Any) -> Start:
        """Where to start: from a posterior that was fitted before, or None."""
        expression, _ = self._split_kernel()
        kernel, noise = expression or default_kernel(X.shape[1]), self._initial_noise()
        if "WhiteKernel" in repr(kernel):
            raise ValueError(f"A WhiteKernel must be a term of its own, got kernel={self.kernel}.")
        low, high = self._noise_bounds()
        is_scaled = has_free_scale(kernel) or not has_fixed_scale(kernel)
        calibrates = self.learn_noise and low < high and is_scaled
        if posterior is not None:
            kernel, noise = self._fitted_before(posterior, kernel, X)
        elif expression is None:
            table = torch.cat([X.double(), rows.y.double()], 1).unique(dim=0)
            some = torch.linspace(0, len(table) - 1, min(len(table), FEW_ROWS)).round().long()
            X_some, y = table[some.to(X.device)].tensor_split([X.shape[1]], 1)
            found = best_on(kernel + START_NOISE, X_some, y - y.mean(0))
            kernel, noise = found.k1, float(found.k2.noise_level) if calibrates else noise
        # Of a kernel of any scale the loss knows but the ratio to the noise, which then stays.
        learns_noise = calibrates and not has_free_scale(kernel)
        return Start(kernel, noise, (low, high) if learns_noise else (noise, noise), calibrates)

    def _fitted_before(
        self, posterior: OfAllRows, kernel: sk.Kernel, X: Tensor
    ) -> tuple[sk.Kernel, float]:
        if changed := changed_shape(self):
            raise ValueError(
                f"warm_start=True goes on with the model that was fitted before, but {changed} "
                "asks for another one. Set it back, or fit with warm_start=False."
            )
        fitted, one = to_sklearn(posterior.kernel), X[:1].cpu().double().numpy()
        kernel = kernel.clone_with_theta(fitted.theta)
        factor = float((fitted.diag(one) / kernel.diag(one))[0])  # that has no place in θ
        return kernel, float(posterior.likelihood.noise_variance.mean()) / factor

    def _starts(self, start: Start, seed: int) -> Tensor:
        """θ of every restart, (R, D)."""
        low, high = start.bounds.T
        if self.n_restarts and not np.isfinite(start.bounds).all():
            raise ValueError(
                f"n_restarts={self.n_restarts} needs hyper-parameters with finite bounds, got "
                f"kernel={start.kernel} with {np.exp(start.bounds)}."
            )
        random = np.random.RandomState(seed)
        others = [random.uniform(low, high) for _ in range(self.n_restarts)]
        return torch.from_numpy(np.clip([start.theta, *others], low, high))

    # ---- fitted attributes -------------------------------------------------------------------

    def _set_fitted(self, plan: Plan) -> None:
        posterior = cast(OfAllRows, self.posterior_)
        noise = float(posterior.likelihood.noise_variance.mean())
        self.kernel_ = to_sklearn(posterior.kernel)
        if self.kernel is None:  # which has seen X scaled
            self.kernel_.k2.length_scale = self.kernel_.k2.length_scale * self._x_scaling.scale
        self.kernel_ = join_white_noise(self.kernel_, noise, self._split_kernel()[1])
        if self.kernel is not None:
            self.kernel_._check_bounds_params()  # which warns
        self.likelihood_ = posterior.likelihood.in_units(torch.from_numpy(self._y_scaling.scale))
        of_outputs = self.likelihood_.noise_variance.detach().numpy()
        self.noise_variance_ = float(of_outputs[0]) if self._y_shape == () else of_outputs

    def _mean(self, X: Any, latent: bool, exposure: Any, y_std: Any) -> np.ndarray:
        check_is_fitted(self)
        if isinstance(self.posterior_, ExactPosterior):
            return super()._mean(X, latent, exposure, y_std)
        X, posterior = self._query(X)  # noise has no mean, and variances are dear
        posterior.likelihood.of(self._known(X, exposure, y_std))
        (mean,) = self._collect(len(X), lambda block: (posterior.mean(X[block]),))
        offset, scale = self._y_scaling
        return mean * scale + offset

    def _evidence_of(self, posterior: Posterior, X: Tensor, rows: Rows) -> float:
        check_shared_noise(posterior, rows)
        if len(X) > self.block_size:
            raise ValueError(
                f"The marginal likelihood of {len(X)} rows needs a factor of their covariance, "
                f"which is not computed for more than block_size={self.block_size}."
            )
        fitted = cast(OfAllRows, posterior)
        exact = ExactPosterior(fitted.kernel, nn.Identity(), fitted.likelihood, X, rows)
        return float(exact.log_evidence().sum())


def has_free_scale(kernel: sk.Kernel) -> bool:
    """Whether kernels of any scale are among those with other hyper-parameters."""
    if isinstance(kernel, sk.Sum):
        return has_free_scale(kernel.k1) and has_free_scale(kernel.k2)
    if isinstance(kernel, sk.Product):
        return has_free_scale(kernel.k1) or has_free_scale(kernel.k2)
    if isinstance(kernel, sk.Exponentiation):
        return has_free_scale(kernel.kernel)
    return isinstance(kernel, sk.ConstantKernel) and not kernel.hyperparameter_constant_value.fixed


def has_fixed_scale(kernel: sk.Kernel) -> bool:
    """Whether there is a constant that is to stay as it is."""
    constants = (sk.ConstantKernel,)
    if isinstance(kernel, constants):
        return bool(kernel.hyperparameter_constant_value.fixed)
    parts = [getattr(kernel, name, None) for name in ("k1", "k2", "kernel")]
    return any(has_fixed_scale(part) for part in parts if isinstance(part, sk.Kernel))


def scale_bounds(
    kernel: sk.Kernel, noise: float, noise_bounds: tuple[float, float]
) -> tuple[float, float]:
    """Of the c for which c·σ², and the constant in front of c·k, are within their bounds."""
    low, high = (bound / noise for bound in noise_bounds)
    constant = kernel.k1 if isinstance(kernel, sk.Product) else None
    if isinstance(constant, sk.ConstantKernel):
        least, most = (bound / constant.constant_value for bound in constant.constant_value_bounds)
        low, high = max(low, least), min(high, most)
    return (low, high) if low <= high else (1.0, 1.0)


def row_numbers(pair: tuple[Any, Any], n_rows: int) -> list[np.ndarray]:
    """Numbers of the rows that are trained on, and of those held out, from numbers or masks."""
    found = []
    for part in pair:
        part = np.asarray(part)
        if part.dtype == bool and part.shape == (n_rows,):
            part = np.flatnonzero(part)
        is_number = part.ndim == 1 and (part.dtype.kind in "iu" or not len(part))
        if not is_number or (len(part) and not 0 <= part.min() <= part.max() < n_rows):
            raise ValueError(
                f"cv must give pairs of row numbers from 0 to {n_rows - 1}, or of masks of "
                f"{n_rows} rows, got {part!r}."
            )
        found.append(part.astype(np.int64))
    if len(both := np.intersect1d(*found)):
        raise ValueError(
            f"cv must hold out rows that are not trained on, got {len(both)} on either side, the "
            f"first of them number {both[0]}."
        )
    return found


def fold_of(X: Tensor, rows: Rows, trained: np.ndarray, held_out: np.ndarray) -> Fold:
    """These rows, as far as they have a weight, those to train on first."""
    if rows.weight is not None:
        counts = (rows.weight > 0).cpu().numpy()
        trained, held_out = (part[counts[part]] for part in (trained, held_out))
    if not len(trained) or not len(held_out):
        raise ValueError(
            "cv must give folds with rows on either side, and a sample_weight that is positive for "
            f"some of either, got {len(trained)} to train on and {len(held_out)} held out."
        )
    index = torch.from_numpy(np.r_[trained, held_out].astype(np.int64)).to(X.device)
    some = rows[index]
    one = torch.ones(len(index), dtype=torch.float64, device=X.device)
    weight = one if some.weight is None else some.weight.double()
    return Fold(X.index_select(0, index), some.y.double(), weight[:, None], len(trained))

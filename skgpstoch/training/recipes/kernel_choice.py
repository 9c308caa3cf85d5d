"""The kernel and the noise that an estimator's parameters specify, and their starting values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ... import kernels
from ...data.arrays import Scaling
from ...data.messages import warn
from ...data.rows import Rows
from ...kernels.distances import wrong_scales
from ...likelihoods.base import Likelihood
from ...likelihoods.real import Gaussian
from .findings import column_names

NOISE_BOUNDS = (1e-8, 1e2)  # of σ², for a target of variance 1
MIN_NOISE = 1e-12  # replaces a WhiteKernel of 0, whose logarithm is infinite
MOST_RELEVANT_INPUTS = 64  # with more inputs, most default kernels have one length-scale for all
MOST_SCALES = 512  # inputs, above which all default kernels but those of sparse processes have
SCALE_ROWS = 2000  # rows that set the default kernel's first length-scales, and units of points
FAR_FROM_ORIGIN = 200.0  # deviations of a column, beyond which squares hide how rows differ
START_NOISE = sk.WhiteKernel(0.1, NOISE_BOUNDS)


class KernelChoice(NamedTuple):
    """A kernel expression, without the top-level WhiteKernel that stands for Gaussian noise."""

    expression: sk.Kernel | None  # None: the method's default
    white: sk.WhiteKernel | None
    start_noise: float  # σ² to start from
    noise_bounds: tuple[float, float]  # of σ²; equal ends if it is fixed
    learns_noise: bool  # False if there is a WhiteKernel with a fixed level

    @classmethod
    def of(cls, kernel: sk.Kernel | None, noise: float = 0.0, least: float = 0.0) -> KernelChoice:
        """Split a kernel parameter.

        Parameters
        ----------
        kernel : sklearn kernel or None
            The parameter.
        noise : float, default=0.0
            σ² to start from if there is no WhiteKernel; clipped to the bounds.
        least : float, default=0.0
            Lower bound of σ², unless it is fixed.
        """
        expression, white = (None, None) if kernel is None else kernels.split_white_noise(kernel)
        if white is None:
            low, high = NOISE_BOUNDS
        elif white.hyperparameter_noise_level.fixed:
            low = high = max(white.noise_level, MIN_NOISE)
        else:
            low, high = (max(bound, MIN_NOISE) for bound in white.noise_level_bounds)
        if low < high:
            low = max(low, least)
        level = noise if white is None else white.noise_level
        is_fixed = white is not None and white.hyperparameter_noise_level.fixed
        start = float(np.clip(level, low, high))
        return cls(expression, white, start, (low, high), not is_fixed)

    def input_scaling(
        self, X: np.ndarray, weight: np.ndarray | None, standardizes: bool
    ) -> Scaling:
        """Return the scaling of X below the kernel; a user's kernel keeps the user's units."""
        if self.expression is None and standardizes:
            return Scaling.robust(X, weight)
        if self.expression is not None and kernels.contains(self.expression, sk.DotProduct):
            tell_far_origin(self.expression, X)
            return Scaling.identity(X.shape[1])  # a dot product changes if X is shifted
        return Scaling.centered(X, weight)

    def in_units(self, fitted: Any, x_scaling: Scaling) -> sk.Kernel:
        """Return a fitted kernel for the user's X; :func:`default_kernel` was fitted to scaled X.

        Change the default kernel in place.
        """
        if self.expression is None:
            in_units(fitted.k2, x_scaling.scale)
        return fitted

    @property
    def is_fixed(self) -> bool:
        """Whether neither the kernel nor the noise has anything to learn."""
        given = self.expression is not None and self.expression.n_dims == 0
        return given and not self.learns_noise


def tell_far_origin(kernel: sk.Kernel, X: np.ndarray, names: Sequence[Any] | None = None) -> None:
    """Warn of columns that are too far from 0 for a DotProduct, which measures from there.

    *Measured* on 300 coordinates with a slope and noise: with a mean of 100 deviations the RMSE is
    that of centred columns, with 300 up to 2.5 times as much, with 3,000 nine times, with variances
    of 0; nearest neighbours then have covariances that are not positive definite.
    """
    if not kernels.contains(kernel, sk.DotProduct):
        return
    mean, std = X.mean(0), X.std(0)
    far = np.flatnonzero((std > 0.0) & (np.abs(mean) > FAR_FROM_ORIGIN * std))
    if len(far):
        j = far[np.argmax(np.abs(mean[far]) / std[far])]
        warn(
            f"Column {column_names([j], names)} of X has a mean of {mean[j]:.3g} and a deviation "
            f"of {std[j]:.3g}. DotProduct measures from 0: its large values hide by rounding how "
            "rows differ, and means and deviations can be wrong. Subtract the columns' means, as "
            "with StandardScaler(with_std=False).",
            about="far origin",
        )


def n_varying(X: Tensor | np.ndarray) -> int:
    """Return how many columns are not constant; all of those of one row, or of very many."""
    if len(X) == 1 or X.shape[1] > MOST_SCALES:
        return X.shape[1]
    a = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
    return int(np.count_nonzero(a.min(0) != a.max(0)))  # a difference may overflow


def default_kernel(X: Tensor) -> sk.Kernel:
    """Return a kernel for standardised inputs and targets."""
    n_features = X.shape[1]
    n_scales = n_features if n_varying(X) <= MOST_RELEVANT_INPUTS else 1
    shape = sk.RBF(np.full(n_scales, math.sqrt(n_features)), (1e-3, 1e4))
    return sk.ConstantKernel(1.0, (1e-3, 1e3)) * shape


def has_free_scale(kernel: sk.Kernel) -> bool:
    """Tell whether hyper-parameters can give the kernel any scale."""
    if isinstance(kernel, sk.Sum):
        return has_free_scale(kernel.k1) and has_free_scale(kernel.k2)
    if isinstance(kernel, sk.Product):
        return has_free_scale(kernel.k1) or has_free_scale(kernel.k2)
    if isinstance(kernel, sk.Exponentiation | kernels.TiedKernel):
        return has_free_scale(kernel.kernel)
    return isinstance(kernel, sk.ConstantKernel) and not kernel.hyperparameter_constant_value.fixed


def in_units(kernel: Any, scale: np.ndarray | float) -> None:
    """Multiply a kernel's length-scales and their bounds by `scale`, in place."""
    with np.errstate(over="ignore"):  # bounds beyond the largest number are infinite
        kernel.length_scale = kernel.length_scale * scale
        if not isinstance(kernel.length_scale_bounds, str):
            bounds = np.multiply.outer(scale, np.ravel(kernel.length_scale_bounds))
            kernel.length_scale_bounds = bounds if np.ndim(scale) else tuple(bounds)


@torch.no_grad()
def make_kernel(
    expression: sk.Kernel | None, network: nn.Module, X: Tensor, rows: Rows, most_variance: float
) -> kernels.Kernel:
    """Make k on the network's outputs from an expression, or the default with data-based scales."""
    if expression is None:
        G = network.eval()(X[:SCALE_ROWS])
        G = G.reshape(-1, G.shape[-1])
        if rows.weight is None:
            spread = G.double().std(0, correction=0)
        else:
            some, G = rows[:SCALE_ROWS], G.double()
            spread = some.mean((G - some.mean(G)).square()).sqrt()
        spread = torch.minimum(spread, input_unit(G, rows))
        varied = spread[spread > 1e-9 * spread.max()]  # as many as half may be constant
        usual = (varied if len(varied) else torch.ones_like(spread)).median()
        # A column that hardly varies among these rows may vary much among the others.
        scale = torch.where(spread < 0.1 * usual, usual, spread) * (0.5 * math.sqrt(G.shape[1]))
        shape = sk.Matern(scale.cpu().numpy(), (1e-5, 1e5), nu=1.5)
        expression = sk.ConstantKernel(1.0, (1e-5, most_variance)) * shape
    return kernels.from_sklearn(expression).to(X.device)


def input_unit(X: Tensor, rows: Rows) -> Tensor:
    """Return the scale of each column, which no few rows rule, or 1 if the column is constant."""
    some = X[:SCALE_ROWS].cpu().double().numpy()  # rows are in random order
    weight = None if rows.weight is None else rows.weight[:SCALE_ROWS].cpu().double().numpy()
    return torch.from_numpy(Scaling.robust(some, weight).scale).to(X)


def check_no_noise(white: sk.WhiteKernel | None, likelihood: Likelihood) -> None:
    """Raise a ValueError if the kernel has noise that is not the likelihood's."""
    if white is not None and not isinstance(likelihood, Gaussian):
        raise ValueError(
            "kernel must not contain a WhiteKernel, which is the noise of "
            f"likelihood='gaussian', got likelihood={likelihood!r}."
        )


def named_kernel(name: str, expression: sk.Kernel, n_inputs: int, inputs: str) -> kernels.Kernel:
    """Make the kernel that parameter `name` specifies, for inputs of `n_inputs` numbers each.

    Raises
    ------
    ValueError
        If the kernel contains noise or does not suit these inputs. The message names the parameter.
    """
    try:
        kernel = kernels.from_sklearn(expression)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    for part in kernel.modules():
        if isinstance(part, kernels.WhiteNoise):
            raise ValueError(
                f"{name} must not contain a WhiteKernel, got {expression}. The noise "
                "belongs to the likelihood, or to a WhiteKernel at the top level of kernel."
            )
        n_scales = getattr(part, "length_scale", torch.ones(1, device="cpu")).numel()
        if n_scales not in (1, n_inputs):
            raise ValueError(wrong_scales(n_scales, f"{inputs} has {n_inputs} numbers", name))
    return kernel

"""The noise of the exact model when it is fitted to many rows, and kernels with and without it.

The model of :mod:`skgpstoch.methods.drop_in.exact` is f ~ GP(0, k) and y = f + N(0, alpha), with a
WhiteKernel of variance s among the terms of k. A method for many rows has the noise σ² = s + alpha,
and predicts f with s, as the exact model does. If the kernel has no WhiteKernel and alpha is only a
jitter, a WhiteKernel is added, because an approximation needs noise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk

from ...data.arrays import Scaling
from ...kernels import join_white_noise, split_white_noise
from ...training.recipes.kernel_choice import NOISE_BOUNDS

NEGLIGIBLE_ALPHA = 1e-6  # share of the target's variance; a smaller alpha is only a jitter

LEAST_START_NOISE = 0.1
"""Least noise at the start of training, as a share of the target's variance. A sparse posterior of
all rows may need noise where some of the rows need hardly any, and training does not recover from
too little."""


class Noise(NamedTuple):
    """The noise of the model, for targets in units of their scaling.

    Parameters
    ----------
    kernel : sklearn kernel
        The kernel of the model, with the WhiteKernel that was added, if one was.
    alpha : float
        The part of σ² that predictions do not include; if rows differ, what they have in common.
    alpha_of_rows : ndarray of shape (n_samples,) or None
        What each row has besides.
    note : str
        Remark for `method_reason_`.
    """

    kernel: sk.Kernel
    alpha: float
    alpha_of_rows: np.ndarray | None
    note: str


def exceeds_jitter(alpha: float | np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Tell for each target of Y (n, P) whether alpha is noise, and not only a jitter."""
    return np.asarray(alpha > NEGLIGIBLE_ALPHA * np.square(Scaling.standard(Y).scale))


def noise_of(kernel: sk.Kernel, alpha: np.ndarray, Y: np.ndarray, is_fixed: bool) -> Noise:
    """Return the noise of the model for targets Y (n, P): alpha () or (n,).

    A WhiteKernel that is added is as small as it may be where the kernel is fixed.
    """
    least, variance = float(np.min(alpha)), float(np.square(Scaling.standard(Y).scale).mean())
    scalar = least if exceeds_jitter(least, Y).all() else 0.0
    of_rows = alpha - scalar if alpha.ndim else None
    if split_white_noise(kernel)[1] is not None or scalar > 0.0:
        return Noise(kernel, scalar, of_rows, "")
    low, high = (bound * variance for bound in NOISE_BOUNDS)
    white = sk.WhiteKernel(low if is_fixed else LEAST_START_NOISE * variance, (low, high))
    note = (
        "; a WhiteKernel was added, because the approximation needs noise, and predictions "
        "include it"
    )
    return Noise(kernel + white, 0.0, of_rows, note)


def with_noise(kernel: sk.Kernel, least: float) -> sk.Kernel:
    """Raise the variance of a kernel's WhiteKernel to at least `least`, if it is free."""
    if found := free_noise(kernel):
        at, white = found
        theta = kernel.theta
        theta[at] = np.log(np.clip(least, white.noise_level, white.noise_level_bounds[1]))
        return kernel.clone_with_theta(theta)
    return kernel


def trained_kernel(noise: Noise, start: sk.Kernel, is_fixed: bool) -> sk.Kernel:
    """Return the kernel that a method for many rows is given: its WhiteKernel includes alpha."""
    expression, white = split_white_noise(start)
    if white is None:
        white = sk.WhiteKernel(noise.alpha, "fixed")
    elif white.hyperparameter_noise_level.fixed:
        white = sk.WhiteKernel(white.noise_level + noise.alpha, "fixed")
    else:
        bounds = np.add(white.noise_level_bounds, noise.alpha)
        white = sk.WhiteKernel(white.noise_level + noise.alpha, tuple(bounds))
    kernel = clone(expression) + white
    return fixed(kernel) if is_fixed else kernel


def fixed(kernel: sk.Kernel) -> sk.Kernel:
    """Return the kernel with all its hyper-parameters fixed."""
    names = [name for name in kernel.get_params() if name.endswith("_bounds")]
    return clone(kernel).set_params(**dict.fromkeys(names, "fixed"))


def fitted_kernel(noise: Noise, trained: sk.Kernel) -> sk.Kernel:
    """Return the model's kernel at the θ of the trained one, whose WhiteKernel comes last."""
    if trained.n_dims == 0:
        return clone(noise.kernel)
    theta = list(split_white_noise(trained)[0].theta)
    if found := free_noise(noise.kernel):
        at, white = found
        level = max(noise_level(trained) - noise.alpha, white.noise_level_bounds[0])
        theta.insert(at, np.log(level))
    return noise.kernel.clone_with_theta(np.array(theta))


def noise_level(kernel: sk.Kernel) -> float:
    """Return the variance of a kernel's WhiteKernel, or 0."""
    white = split_white_noise(kernel)[1]
    return 0.0 if white is None else float(white.noise_level)


def without_alpha(noise: Noise, trained: sk.Kernel) -> sk.Kernel:
    """Return the fitted kernel; a variance of all terms that was trained too goes into these."""
    if trained.n_dims == 0:
        return clone(noise.kernel)
    expression, level = split_white_noise(trained)[0], noise_level(trained) - noise.alpha
    if is_scaled(expression, split_white_noise(noise.kernel)[0]):
        expression = scaled(expression.k2, expression.k1.constant_value) or expression
    return join_white_noise(expression, max(level, 0.0), split_white_noise(noise.kernel)[1])


def is_scaled(kernel: sk.Kernel, inner: sk.Kernel) -> bool:
    """Tell whether a kernel is a constant times a kernel with the structure of `inner`."""
    return type(kernel) is sk.Product and kernel.n_dims == inner.n_dims + 1


def scaled(kernel: sk.Kernel, factor: float) -> sk.Kernel | None:
    """Multiply a kernel by a factor through its own constants; None if they cannot take it."""
    if type(kernel) is sk.ConstantKernel and not kernel.hyperparameter_constant_value.fixed:
        return sk.ConstantKernel(factor * kernel.constant_value, kernel.constant_value_bounds)
    if type(kernel) is sk.Product:
        if (k1 := scaled(kernel.k1, factor)) is not None:
            return sk.Product(k1, kernel.k2)
        k2 = scaled(kernel.k2, factor)
        return None if k2 is None else sk.Product(kernel.k1, k2)
    if type(kernel) is sk.Sum:
        k1, k2 = scaled(kernel.k1, factor), scaled(kernel.k2, factor)
        return None if k1 is None or k2 is None else sk.Sum(k1, k2)
    return None


def free_noise(kernel: sk.Kernel) -> tuple[int, sk.WhiteKernel] | None:
    """Return the position in θ of a sum's WhiteKernel, and that kernel, if it is free."""
    if type(kernel) is sk.WhiteKernel:
        return None if kernel.hyperparameter_noise_level.fixed else (0, kernel)
    if type(kernel) is not sk.Sum:
        return None
    if found := free_noise(kernel.k1):
        return found
    found = free_noise(kernel.k2)
    return found and (kernel.k1.n_dims + found[0], found[1])

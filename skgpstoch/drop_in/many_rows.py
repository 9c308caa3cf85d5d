"""The same model by a method for many rows: which, from where it starts, and what it is fitted to.

A sparse posterior has the kernel of the exact one, and noise. Of the model of
:mod:`skgpstoch.drop_in.exact`, f ~ GP(0, k) and y = f + N(0, alpha), with a WhiteKernel of variance
s among the terms of k, the noise of a method for many rows is σ² = s + alpha; what is predicted is
f with s, as there. Where the kernel has no WhiteKernel and alpha is but a jitter, there would be no
noise, and an approximation needs some: a WhiteKernel is added.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk

from ..kernels import join_white_noise, split_white_noise
from ..kernels.matrices import set_theta, why_object
from ..methods.scgd import SCGDGaussianProcessRegressor
from ..methods.solvegp import SolveGPClassifier, SolveGPRegressor
from ..methods.svgp import SVGPClassifier, SVGPRegressor
from ..objectives.lbfgs import gradients_at
from ..objectives.optimal_q import optimal_q
from ..training.exact_search import TrainingSet, search_evidence

START_ROWS = 1000
"""Random rows whose exact optimum training starts from."""

JITTER = 1e-6
"""Share of the target's variance, below which an alpha is no noise."""

START_NOISE = 0.1
"""Share of the target's variance that the noise starts from at least: what some rows need next to
none of, a sparse posterior of all of them may; from too little of it training does not recover."""

STEPS = 600
"""Minibatches that training takes, or what makes an epoch."""

BATCH_SIZE = 512

NOISE_BOUNDS = (1e-8, 1e2)
"""Bounds of an added WhiteKernel, in units of the target's variance."""

SPARSE: dict[str, Callable[..., Any]] = {"svgp": SVGPRegressor, "solve": SolveGPRegressor}
CLASSIFIERS: dict[str, Callable[..., Any]] = {"svgp": SVGPClassifier, "solve": SolveGPClassifier}


def choose(
    method: str, automatic: tuple[str, str], n_rows: int, max_exact: int, kernel: sk.Kernel
) -> tuple[str, str]:
    """The method for so many rows, and why.

    Parameters
    ----------
    method : str
        What was asked for.
    automatic : tuple of str
        The method that takes all rows into one matrix, and that for more rows.
    n_rows, max_exact : int
        Rows that there are, and up to which one matrix is reasonable.
    kernel : sklearn kernel
        What a method for many rows has to know in torch.

    Raises
    ------
    ValueError
        If a method was asked for that does not take the kernel.
    """
    small, large = automatic
    unknown = why_object(kernel)
    if method != "auto":
        reason = f"{method=}"
    else:
        is_small = n_rows <= max_exact
        method = small if is_small or unknown else large
        more = "not more" if is_small else "more"
        reason = f"method='auto' is {method!r} for {n_rows} rows, {more} than {max_exact=}"
        if unknown and not is_small:
            reason += ", as no other takes this kernel: all rows are in one matrix"
            warnings.warn(f"{reason}, {8e-9 * n_rows**2:.2g} GB.", UserWarning, stacklevel=5)
    if unknown is None:
        return method, reason
    if method != small:
        raise ValueError(
            f"kernel must be one that runs in torch for method={method!r}, but {unknown}. Only "
            f"method={small!r} takes any kernel."
        )
    return method, f"{reason}; the kernel object computes itself, in NumPy: {unknown}"


class Noise(NamedTuple):
    """The noise of the model, for targets in units of their scaling.

    Parameters
    ----------
    kernel : sklearn kernel
        The kernel of the model, with the WhiteKernel that was added, if one was.
    alpha : float
        The part of σ² that is not predicted; where rows differ, of all of them.
    alpha_of_rows : ndarray of shape (n_samples,) or None
        What rows have besides.
    note : str
        What is to be known of it.
    """

    kernel: sk.Kernel
    alpha: float
    alpha_of_rows: np.ndarray | None
    note: str


def noise_of(kernel: sk.Kernel, alpha: np.ndarray, variance: float) -> Noise:
    """The noise of the model for a target of this variance: alpha () or (n,)."""
    least = float(np.min(alpha))
    scalar = least if least > JITTER * variance else 0.0
    of_rows = alpha - scalar if alpha.ndim else None
    if split_white_noise(kernel)[1] is not None or scalar > 0.0:
        return Noise(kernel, scalar, of_rows, "")
    low, high = (bound * variance for bound in NOISE_BOUNDS)
    white = sk.WhiteKernel(START_NOISE * variance, (low, high))
    note = "; a WhiteKernel was added, as an approximation needs noise: predictions have it"
    return Noise(kernel + white, 0.0, of_rows, note)


def start_kernel(
    noise: Noise, X: np.ndarray, Y: np.ndarray, alpha: np.ndarray, search: tuple, device: Any
) -> sk.Kernel:
    """The kernel at the exact optimum of some rows.

    `search` are the optimiser, the number of restarts and the random state.
    """
    optimizer, n_restarts, random_state = search
    if optimizer is None or noise.kernel.n_dims == 0:
        return noise.kernel
    some = random_state.permutation(len(X))[:START_ROWS]
    alpha = alpha[some] if alpha.ndim else alpha
    rows = TrainingSet(X[some], Y[some], alpha, device)
    then = " Training on all rows follows: interrupt again to end it."
    found, _ = search_evidence(noise.kernel, rows, optimizer, n_restarts, random_state, then)
    return with_noise(found, START_NOISE * float(np.mean(np.square(Y))))


def with_noise(kernel: sk.Kernel, least: float) -> sk.Kernel:
    """A kernel whose WhiteKernel, if it has a free one, has this variance at least."""
    if found := free_noise(kernel):
        at, white = found
        theta = kernel.theta
        theta[at] = np.log(np.clip(least, white.noise_level, white.noise_level_bounds[1]))
        return kernel.clone_with_theta(theta)
    return kernel


def trained_kernel(noise: Noise, start: sk.Kernel, is_fixed: bool) -> sk.Kernel:
    """What a method for many rows is given: a WhiteKernel with alpha, and bounds, or none."""
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
    """The kernel with none of its hyper-parameters free."""
    names = [name for name in kernel.get_params() if name.endswith("_bounds")]
    return clone(kernel).set_params(**dict.fromkeys(names, "fixed"))


def fitted_kernel(noise: Noise, trained: sk.Kernel) -> sk.Kernel:
    """The kernel of the model at the θ of what was trained, whose WhiteKernel comes last."""
    if trained.n_dims == 0:
        return clone(noise.kernel)
    theta = list(split_white_noise(trained)[0].theta)
    if found := free_noise(noise.kernel):
        at, white = found
        level = max(noise_level(trained) - noise.alpha, white.noise_level_bounds[0])
        theta.insert(at, np.log(level))
    return noise.kernel.clone_with_theta(np.array(theta))


def noise_level(kernel: sk.Kernel) -> float:
    """The variance of a kernel's WhiteKernel, or 0."""
    white = split_white_noise(kernel)[1]
    return 0.0 if white is None else float(white.noise_level)


def without_alpha(noise: Noise, trained: sk.Kernel) -> sk.Kernel:
    """The fitted kernel where a variance of all terms is trained too, and comes first."""
    if trained.n_dims == 0:
        return clone(noise.kernel)
    expression, level = split_white_noise(trained)[0], noise_level(trained) - noise.alpha
    if is_scaled(expression, split_white_noise(noise.kernel)[0]):
        expression = scaled(expression.k2, expression.k1.constant_value) or expression
    return join_white_noise(expression, max(level, 0.0), split_white_noise(noise.kernel)[1])


def is_scaled(kernel: sk.Kernel, inner: sk.Kernel) -> bool:
    """Whether a kernel is a constant times one of the structure of another."""
    return type(kernel) is sk.Product and kernel.n_dims == inner.n_dims + 1


def scaled(kernel: sk.Kernel, factor: float) -> sk.Kernel | None:
    """A kernel times a factor that constants of its own take; None where they cannot."""
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
    """A sum's WhiteKernel that is not fixed, and how many numbers of θ come before its own."""
    if type(kernel) is sk.WhiteKernel:
        return None if kernel.hyperparameter_noise_level.fixed else (0, kernel)
    if type(kernel) is not sk.Sum:
        return None
    if found := free_noise(kernel.k1):
        return found
    found = free_noise(kernel.k2)
    return found and (kernel.k1.n_dims + found[0], found[1])


def make_regressor(method: str, kernel: sk.Kernel, n_rows: int, **parameters: Any) -> Any:
    """An estimator for many rows, of the same model."""
    if method == "scgd":
        return SCGDGaussianProcessRegressor(kernel, hidden_layer_sizes=(), **parameters)
    if method == "sgpr":
        return SVGPRegressor(kernel, mean="zero", solver="lbfgs", **parameters)
    if n_rows > START_ROWS:  # up to which L-BFGS has all rows at each step
        n_batches = math.ceil(n_rows / BATCH_SIZE)
        parameters |= {"batch_size": BATCH_SIZE, "max_iter": math.ceil(STEPS / n_batches)}
    return SPARSE[method](kernel, mean="zero", **parameters)


def make_classifier(method: str, kernel: sk.Kernel, **parameters: Any) -> Any:
    """An estimator for many rows, with a latent function for each class."""
    return CLASSIFIERS[method](kernel, mean="zero", **parameters)


def bound_at(
    estimator: Any, noise: Noise, theta: np.ndarray, X: np.ndarray, y: np.ndarray
) -> tuple[float, np.ndarray]:
    """The bound of a sparse posterior at another θ of the model's kernel, and its gradient.

    With the inducing points where they are, and the best q(w) there.
    """
    found, of_kernel = free_noise(noise.kernel), theta
    level = noise_level(noise.kernel)
    if found:
        of_kernel, level = np.delete(theta, found[0]), np.exp(theta[found[0]])
    y_std = None if noise.alpha_of_rows is None else np.sqrt(noise.alpha_of_rows)
    data = estimator._validate(X, y, False, None, None, y_std)
    X_, rows, posterior = estimator._labelled(data)
    model = posterior.model.for_training(X_)
    parameters = list(model.features.kernel.parameters())
    set_theta(parameters, of_kernel)
    model.likelihood.log_noise.data.fill_(math.log(level + noise.alpha))
    at_best = optimal_q(model, X_, rows)
    parameters.append(model.likelihood.log_noise)
    slopes = gradients_at(model, X_, rows, at_best, parameters)  # of the loss per row
    *parts, of_noise = (-rows.n_effective * g.reshape(-1).cpu().numpy() for g in slopes)
    gradient = np.concatenate([np.empty(0), *parts])
    if found:
        gradient = np.insert(gradient, found[0], of_noise.sum() * level / (level + noise.alpha))
    return np.float64(at_best.value), gradient

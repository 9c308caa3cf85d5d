"""From parameters and rows to a variational model: points, kernel, model, and its solver."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils.validation import check_array
from torch import Tensor, nn

from .. import kernels
from ..data.arrays import Scaling, readable
from ..data.rows import Rows
from ..features.inducing import InducingFeatures
from ..features.orthogonal import DecoupledFeatures, OrthogonalFeatures
from ..likelihoods.base import Likelihood
from ..likelihoods.real import Gaussian
from ..models.sparse import ConstantMean, SparseModel
from ..objectives.adam import GradientObjective
from ..objectives.lbfgs import FullBatchObjective
from ..objectives.natural import ProfiledObjective, RunningObjective
from ..objectives.variational import VariationalObjective
from .plan import Plan

SCALE_ROWS = 2000  # that the default kernel's length-scales and the units of points start from
MOST_COLUMNS = 256  # of a decoupled mean's price that a step looks at, unless points are more


def input_unit(X: Tensor, rows: Rows) -> Tensor:
    """Standard deviation of each column, 1 where it is constant; rows are in random order."""
    some = X[:SCALE_ROWS].cpu().double().numpy()
    weight = None if rows.weight is None else rows.weight[:SCALE_ROWS].cpu().double().numpy()
    return torch.from_numpy(Scaling.standard(some, weight).scale).to(X)


@torch.no_grad()
def make_kernel(
    expression: sk.Kernel | None,
    network: nn.Module,
    X: Tensor,
    rows: Rows,
    most_variance: float,
) -> kernels.Kernel:
    """k on the network's outputs: an expression's, or the default, started from these."""
    if expression is None:
        G = network.eval()(X[:SCALE_ROWS])
        G = G.reshape(-1, G.shape[-1])
        some = rows[:SCALE_ROWS]
        if some.weight is None:
            spread = G.double().std(0, correction=0)
        else:
            G = G.double()
            spread = some.mean((G - some.mean(G)).square()).sqrt()
        varied = spread[spread > 1e-9 * spread.max()]  # half of all columns may be constant
        usual = (varied if len(varied) else torch.ones_like(spread)).median()
        # Of a column that hardly varies among these rows, others may lie far away.
        scale = torch.where(spread < 0.1 * usual, usual, spread) * (0.5 * math.sqrt(G.shape[1]))
        shape = sk.Matern(scale.cpu().numpy(), (1e-5, 1e5), nu=1.5)
        expression = sk.ConstantKernel(1.0, (1e-5, most_variance)) * shape
    return kernels.from_sklearn(expression).to(X.device)


def named_kernel(name: str, expression: sk.Kernel, n_inputs: int, inputs: str) -> kernels.Kernel:
    """That of a parameter, for `inputs` that are `n_inputs` numbers; without noise.

    Raises
    ------
    ValueError
        If it is not a kernel for these; it says which parameter it is of.
    """
    try:
        kernel = kernels.from_sklearn(expression)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    for part in kernel.modules():
        if isinstance(part, kernels.WhiteNoise):
            raise ValueError(
                f"{name} must be without a WhiteKernel, got {expression}: noise is that of the "
                "likelihood, or a term of kernel at its top level."
            )
        n_scales = getattr(part, "length_scale", torch.ones(1)).numel()
        if n_scales not in (1, n_inputs):
            raise ValueError(
                f"{name}: a length_scale has {n_scales} entries, but {inputs} has {n_inputs} "
                f"numbers, got {expression}."
            )
    return kernel


def in_units(kernel: sk.Kernel, scale: np.ndarray | float) -> None:
    """Give length-scales, and their bounds, in other units: `scale` times as large."""
    kernel.length_scale = kernel.length_scale * scale
    if not isinstance(kernel.length_scale_bounds, str):
        bounds = np.multiply.outer(scale, np.ravel(kernel.length_scale_bounds))
        kernel.length_scale_bounds = bounds if np.ndim(scale) else tuple(bounds)


def given_points(name: str, points: Any, X: Tensor, scaling: Scaling) -> Tensor:
    """Points of the user's, scaled as X is.

    Raises
    ------
    ValueError
        If they are not points like the rows of X.
    """
    points = check_array(readable(points), dtype=np.float64, input_name=name)
    if points.shape[1] != X.shape[1]:
        raise ValueError(f"{name} must have {X.shape[1]} columns, as X has, got {points.shape[1]}.")
    return scaling.tensor(points, X.dtype, X.device)


def both_kinds(
    choose: Callable[[int], Tensor],
    sizes: tuple[int, int],
    given: Sequence[Tensor | None],
    n_rows: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor | None]:
    """Z and O: where neither is given, two parts of one set if there are rows for it.

    Parameters
    ----------
    choose : callable
        Number of points ↦ points, or fewer where there are no more.
    sizes : tuple of int
        M and M₂; of 0, or of a single point to choose, there is no O.
    given : sequence of (Tensor or None)
        Z, and O if there is any, where they are.
    n_rows : int
        Rows to choose from.
    generator : torch.Generator or None
        Which part a point is in; None: the first ones are Z.
    """
    (M, M2), (points, others) = sizes, (*given, None)[:2]
    if M2 and points is None and others is None and n_rows >= M + M2:
        both = choose(M + M2)
        if len(both) == 1:
            return both, None
        if generator is not None:
            both = both[torch.randperm(len(both), generator=generator, device=both.device)]
        M = min(M, max(1, len(both) * M // (M + M2)))
        return both[:M], both[M:]
    points = choose(M) if points is None else points
    if not M2:
        return points, None
    return points, choose(M2) if others is None else others


def make_features(
    arguments: tuple[Any, ...], others: Tensor | None, n_outputs: int, decoupled: bool = False
) -> InducingFeatures:
    """P from the arguments of :class:`InducingFeatures`, with orthogonal points if any."""
    if others is None:
        return InducingFeatures(*arguments)
    if not decoupled:
        return OrthogonalFeatures(*arguments, orthogonal_points=others)
    n_columns = max(len(arguments[2]), MOST_COLUMNS)
    return DecoupledFeatures(
        *arguments, orthogonal_points=others, n_outputs=n_outputs, n_columns=n_columns
    )


def start_likelihood(likelihood: Likelihood, rows: Rows, noise: float | None) -> Likelihood:
    """One for the outputs of rows, started from them, or with this noise variance."""
    likelihood = likelihood.for_outputs(rows.y.shape[1])
    if isinstance(likelihood, Gaussian) and noise is not None:
        likelihood.log_noise.data.fill_(math.log(noise))
    likelihood.initialise(rows.to(torch.float64))
    return likelihood.to(rows.y.device)


def start_mean(kind: str, likelihood: Likelihood, rows: Rows) -> ConstantMean:
    """Zero, or the constant that fits the targets of rows."""
    n_latents = likelihood.n_latents(rows.y.shape[1])
    level = rows.y.new_zeros(n_latents)
    if kind == "constant":
        level = likelihood.initial_mean(rows.to(torch.float64)).to(level)
    return ConstantMean(level)


def make_objective(
    model: SparseModel, n_rows: float, plan: Plan, averaging: float | str, whiten: bool, **more: Any
) -> VariationalObjective:
    """The solver's objective; `more` are those of :class:`VariationalObjective`."""
    if plan.solver == "lbfgs":
        return FullBatchObjective(model, n_rows, **more)
    if plan.solver == "adam":
        return GradientObjective(model, n_rows, whiten=whiten, **more)
    if model.covariance == "gradient":
        return ProfiledObjective(model, n_rows, averaging=averaging, **more)
    collapsed = plan.solver == "collapsed"
    return RunningObjective(model, n_rows, conjugate=collapsed, averaging=averaging, **more)

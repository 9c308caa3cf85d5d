"""Fit an exact process with one kernel: precisions, hyper-parameters, tails.

Targets far from what other rows predict count for less; the rest is in :mod:`.process_evidence`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from ...data.arrays import Scaling
from ...data.devices import HOST
from ...data.held_out import HeldOutPredictions
from ...data.known_errors import told_by
from ...data.rows import Data, Rows
from .process_evidence import (
    KERNEL_SHAPES,
    LogPosterior,
    Process,
    ProcessRows,
    Shape,
    curvature,
    laplace_draws,
    search,
)
from .student_mixture import LeftOut, Tails, calibrated

NORMAL_SCALE = 1.4826  # of a normal distribution, over the median of its deviations
GROSS_TARGET = 20.0  # deviations from the median, beyond which a target is less precise at first
GROSS_ERROR = 10.0  # deviations from what other rows predict, beyond which it stays so
MOST_GROSS = 0.3  # share of such errors; more are not mistakes, but noise that differs by row
SETTLING_ROUNDS = 2  # of searches, in which precisions and hyper-parameters settle


class Conditioned(NamedTuple):
    """A process, and for left-out rows: y minus its mean, its variance and log p(y), each (N,)."""

    process: Process
    residual: torch.Tensor
    var: torch.Tensor
    log_p: torch.Tensor

    @classmethod
    def given(cls, shape: Shape, z: np.ndarray, rows: ProcessRows) -> Conditioned:
        """Condition on rows, and leave each of them out."""
        process = Process.given(shape, z, rows)
        return cls(process, *process.left_out(rows))


class FittedKernel(NamedTuple):
    """For one output: the best z, a process for each draw, tails, and predictions of N rows."""

    z: np.ndarray
    draws: list[Process]
    tails: Tails
    held_out: HeldOutPredictions


def fit_kernel(
    shape: Shape,
    rows: ProcessRows,
    searched: torch.Tensor,
    normals: np.ndarray,
    before: FittedKernel | None,
) -> FittedKernel:
    """Learn hyper-parameters, precisions and tails of one kernel and output, and condition on rows.

    Hyper-parameters come from the rows with the numbers `searched`; their draws use `normals`
    (S, D). The search of the first kernel starts twice. If there is one draw, that of others starts
    where that of the kernel before ended: with 500 rows .08 nats better on the mean of 14 tables,
    and a fifth quicker, but with 60 rows .01 worse.
    """
    starts = [shape.start(rows)]
    if before is None:
        starts += rough_optimum(shape, rows.some(searched))
    elif len(normals) == 1 and before.z.shape == starts[0].shape:
        starts = [before.z]
    z, some = best_settled(shape, rows.some(searched), starts)
    found = [Conditioned.given(shape, z, rows)]
    precision = rows.precision
    if len(searched) < len(rows.y):  # the others are judged by the model of the searched ones
        precision = left_out_precisions(found[0], rows)
    precision = precision.index_copy(0, searched, some.precision)
    is_final = len(normals) == 1 and torch.equal(precision, rows.precision)
    rows = rows._replace(precision=precision)
    curved, has_many = None, shape.known(rows).has_many_scales
    if normals.any() or has_many:
        curved = curvature(LogPosterior(shape, rows if normals.any() else some), z)
    if not is_final:
        draws = laplace_draws(LogPosterior(shape, rows), z, normals[:, : len(z)], curved)
        found = [Conditioned.given(shape, of_draw, rows) for of_draw in draws]
    processes, *columns = zip(*found, strict=True)
    left_out = LeftOut(*(torch.stack(values).cpu().numpy() for values in columns))
    tails = calibrated(left_out, rows.weight.cpu().numpy())
    lost = optimism(curved[0]) / len(rows.y) if curved is not None and has_many else 0.0
    tails = tails._replace(log_factor=tails.log_factor + 0.5 * math.log1p(2.0 * lost))
    noise = torch.stack([rows.noise(process.theta) for process in processes])
    held_out = left_out.predictions(tails, rows.y.cpu().numpy(), noise.cpu().numpy())
    held_out = held_out._replace(log_density=held_out.log_density - lost)
    return FittedKernel(z, [process.to(HOST) for process in processes], tails, held_out)


def optimism(h: np.ndarray) -> float:
    """Return by how many nats densities of left-out rows are too high where scales are many.

    Rows that are left out have determined the scales all the same: half a nat for each that they
    determine, tr(I − H⁻¹) of them, with the eigenvalues h (D,) of H (:func:`curvature`). Tails are
    as much wider as that says of the squares of errors. *Measured* on eight made-up tables of 100
    to 450 rows and 100 to 200 inputs, of which three to all, or none, matter, three samples each:
    where scales of their own lost .02 to .07 nats, they lose 0 to .006; where they gain .25 to 1,
    they still do, and 90 % intervals hold .89 to .93 (they held .78 to .9).
    """
    return 0.5 * float((1.0 - 1.0 / h).sum())


def rough_optimum(shape: Shape, rows: ProcessRows) -> list[np.ndarray]:
    """Return a further start of the first kernel, if it is smooth: the optimum of the rough one.

    A function with many periods between rows looks like noise to a smooth kernel where its search
    starts. *Measured* on 450 rows of y = sin 20a + .3b + noise of .2: all kernels inherited that
    optimum, with an RMSE of .75; now it is .22. Where kernels are searched one by one, NLPD of 60
    to 300 rows of sin 3a + bc + .3d + noise of .1 is .13 to .53 lower, of 42 other made-up tables
    0 to .13, and of 86 samples of eleven real ones the same to .0001 on average (−.11 to +.12). The
    process takes a quarter longer.
    """
    rough, start = KERNEL_SHAPES["rough"], shape.start(rows)
    if shape.profile in (None, rough.profile) or rough.start(rows).shape != start.shape:
        return []
    return [search(LogPosterior(rough, rows), start)]


def best_settled(
    shape: Shape, rows: ProcessRows, starts: list[np.ndarray]
) -> tuple[np.ndarray, ProcessRows]:
    """Return the best z from several starts, and rows with precisions, which depend on it."""
    found = [settled(shape, rows, start) for start in starts]
    if len(found) == 1:
        return found[0]
    objective = LogPosterior(shape, rows)
    return max(found, key=lambda each: objective(each[0], False)[0])


def settled(shape: Shape, rows: ProcessRows, z: np.ndarray) -> tuple[np.ndarray, ProcessRows]:
    """Return the best z, from a start, and rows with precisions, which depend on it."""
    for _ in range(SETTLING_ROUNDS):
        z = search(LogPosterior(shape, rows), z)
        precision = left_out_precisions(Conditioned.given(shape, z, rows), rows)
        if torch.equal(precision == 1.0, rows.precision == 1.0):
            break
        rows = rows._replace(precision=precision)
    return z, rows


def antithetic(n_draws: int, n_columns: int, rng: np.random.Generator) -> np.ndarray:
    """Return standard normal numbers (S, D), in pairs of ε and −ε; for one draw, 0."""
    half = rng.standard_normal((n_draws // 2, n_columns))
    return np.concatenate([half, -half]) if n_draws > 1 else np.zeros((1, n_columns))


def relative_weights(rows: Data) -> np.ndarray:
    """Return weights of mean 1, (n,).

    A weight of 2 for every row is no reason to believe that rows hold less noise, as two
    observations that agree would be. *Measured* with weights from .6 to 2 at 80 rows: 95 %
    intervals held 94 % of new rows with weights as they are, 96 % with weights of mean 1.
    """
    weight = rows.row_counts.astype(np.float64)
    return weight / weight.mean()


def relative_precisions(rows: Data) -> np.ndarray:
    """Return how much targets with known errors say of the scale of y, (n, P)."""
    y = rows.y.reshape(len(rows), -1)
    if rows.y_std is None:
        return np.ones(y.shape)
    errors = rows.y_std.reshape(y.shape)
    return np.stack([told_by(*each, rows.weight) for each in zip(y.T, errors.T, strict=True)], 1)


def target_precisions(rows: Data) -> np.ndarray:
    """Return precisions of targets before X is used, (n, P): less than 1 far from the median.

    So one target of 1e6 among 60 dominates neither the units nor the first search.
    """
    y = Scaling.standard(rows.y, rows.weight)
    error = torch.from_numpy((rows.y - y.offset) / y.scale)
    weight = None if rows.weight is None else torch.from_numpy(rows.weight)
    weighted = Rows(error, weight)
    error = (error - weighted.median(error)).abs()
    return gross_precisions(error, weighted.median(error), GROSS_TARGET).numpy()


def left_out_precisions(conditioned: Conditioned, rows: ProcessRows) -> torch.Tensor:
    """Return precisions of targets, (N,): less than 1 where other rows predict something else."""
    error = (conditioned.residual / conditioned.var.sqrt()).abs()
    middle = Rows(error[:, None], rows.weight).median(error[:, None])
    return gross_precisions(error, middle, GROSS_ERROR)


def gross_precisions(error: torch.Tensor, middle: torch.Tensor, most: float) -> torch.Tensor:
    """Return 1, or 1/error² for errors larger than `most`, whose noise is as large as they are.

    Errors are in units of the standard deviation of normal errors with this median, `middle`; if
    that is 0, or very many were large, none is.
    """
    unit = torch.where(middle > 0.0, NORMAL_SCALE * middle, torch.inf)
    is_gross = error > most * unit
    is_gross &= is_gross.double().mean(0) <= MOST_GROSS
    return torch.where(is_gross, unit / error, 1.0).square()

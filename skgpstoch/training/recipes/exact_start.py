"""Where training with few inducing points starts: the optimum of the exact evidence of some rows.

An evaluation of the exact evidence costs as much as one of the bound, but it has no inducing
points, so the hyper-parameters reach their optimum in a tenth of the evaluations. The points are
then placed to suit the kernel. Likelihoods other than the Gaussian have a bound in its place, with
all these rows as points; from the default start, few points may end at a constant f.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ...data.rows import Rows
from ...likelihoods.real import Gaussian
from ...models.sparse import SparseModel
from ...objectives.all_rows import AllRowsObjective, ExactObjective
from ...objectives.optimal_q import optimal_q
from ..loop import train
from ..optimizers import constant, make_optimizer
from ..tables import InMemory
from .feature_builder import FeatureBuilder
from .plan import Start
from .recipe import Problem

LBFGS_TOL = 1e-6  # go on if ten iterations gain at least so many nats per row
AUTO_TOL = 1e-3  # the same if solver="auto" chose L-BFGS and the points are trained as well
AUTO_GAIN = 0.1  # nats of all rows together: a smaller gain is never worth ten more iterations
LBFGS_EPOCHS = 20
SITES_EPOCHS = 3  # of the bound in place of the evidence, whose evaluations take iterations
RAISE, MOST_RAISES = 4.0, 20  # factor by which the noise is raised, and how often at most


def auto_tol(n_rows: float, trains_points: bool) -> float:
    """Return the gain of ten iterations, in nats per row, that is worth ten more iterations.

    *Measured* on two synthetic tables of 700 to 2,000 rows: training the points for three times as
    long raises the bound by .006 nats per row, and does not improve predictions of other rows.
    """
    return max(AUTO_TOL if trains_points else LBFGS_TOL, AUTO_GAIN / n_rows)


class ModelAlone(NamedTuple):
    """What a :class:`Start` needs to know of a posterior, before there is one."""

    model: SparseModel


def exact_start(model: SparseModel, problem: Problem, builder: FeatureBuilder) -> Start:
    """Move a model to where some rows, all as points, are most likely, and its points with it."""
    some = slice(problem.plan.start_rows)
    X, rows = problem.X[some], problem.rows[some]
    bounds, n = builder.kernel.noise_bounds, rows.n_effective
    is_exact = isinstance(model.likelihood, Gaussian)
    if is_exact:
        exact = ExactObjective(model, n, noise_bounds=bounds)
        learn(exact, problem, X, rows, LBFGS_EPOCHS, auto_tol(n, trains_points=False))
    else:
        bound = AllRowsObjective(model, n, noise_bounds=bounds, X=X, rows=rows)
        learn(bound, problem, X, rows, SITES_EPOCHS, AUTO_TOL)
    builder.place(model.features, problem)
    if is_exact:
        raise_noise(exact, problem.X, problem.rows)
    return Start(ModelAlone(model), is_new=True)


def learn(
    objective: ExactObjective | AllRowsObjective,
    problem: Problem,
    X: Tensor,
    rows: Rows,
    max_iter: int,
    tol: float,
) -> None:
    """Maximise the evidence of rows, or its bound, over hyper-parameters."""
    if objective.is_closed():
        return
    train(
        objective,
        InMemory(X, rows),
        optimizer=make_optimizer("lbfgs", objective.param_groups(), 1.0, objective.step_end),
        max_iter=max_iter,
        batch_size=len(X),
        schedule=constant,
        generator=problem.generator,
        n_iter_no_change=1,
        tol=tol,
        evaluate=lambda: objective.evaluate(X, rows),
    )


@torch.no_grad()
def raise_noise(exact: ExactObjective, X: Tensor, rows: Rows) -> None:
    """Add the points' residual variance to the noise, and raise the noise while the bound grows.

    If the exact noise is zero and points are few, the bound tends to −∞. So it does with orthogonal
    points, however many, because q(w) has no correlations between the two sets.
    """
    model = exact.model
    log_noise = cast(Gaussian, model.likelihood).log_noise
    if not log_noise.requires_grad:
        return
    best, bound = log_noise.clone(), optimal_q(model, X, rows).value
    residual = rows.mean(model.features.basis(X).residual()[:, None])
    raised = (best.exp() + residual).log()
    for _ in range(MOST_RAISES):
        log_noise.copy_(raised)
        exact.step_end()
        reached = optimal_q(model, X, rows).value
        if not reached > bound:
            break
        best, bound, raised = log_noise.clone(), reached, log_noise + math.log(RAISE)
    log_noise.copy_(best)

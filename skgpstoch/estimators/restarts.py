"""n_restarts: train by L-BFGS from several hyper-parameters, and keep the best.

The first training begins where it does without restarts. The others begin at random
hyper-parameters of kernel and noise, in ranges that suit the scale of the rows
(:mod:`skgpstoch.training.starts`); all else starts the same. They are independent joblib jobs, so
how many run at a time does not change the result.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed

from ..kernels import to_sklearn
from ..kernels.matrices import set_theta
from ..likelihoods.real import AdditiveNoise
from ..maths.linalg import NotPositiveDefiniteError
from ..training.history import History
from ..training.jobs import threads_as
from ..training.starts import LATENT_VARIANCE, NOISE_SHARES, likely_bounds
from .runs import Run, optimizer_of, train_run

SCALE_ROWS = 2000  # whose span tells which length-scales are likely


class Trained(NamedTuple):
    """A run after training, what happened, and the loss of all rows."""

    run: Run
    history: History
    loss: float


def best_of_restarts(run: Run, train_first: Callable[[Run], History]) -> tuple[Run, History]:
    """Train a run, and its restarts if it has any; return the best.

    An interrupt ends the training that is running, and those that have not begun.
    """
    others = restarts(run) if run.plan.n_restarts else []
    history = train_first(run)
    if not others:
        return run, history
    best = Trained(run, history, loss_of(run))
    if history.status != "interrupted":
        n_threads = torch.get_num_threads()
        jobs = (delayed(train_again)(other, n_threads) for other in others)
        for trained in Parallel(return_as="generator")(jobs):
            best = min(best, trained, key=lambda t: t.loss)
            if trained.history.status == "interrupted":
                break
    return best.run._replace(problem=run.problem, checkpoint=run.checkpoint), best.history


def restarts(run: Run) -> list[Run]:
    """Return copies of a run at other hyper-parameters, drawn by its generator's seed."""
    objective: Any = run.objective
    likely, learns_noise = likely_hyperparameters(objective, run)
    random_state = np.random.RandomState(run.problem.generator.initial_seed() % 2**32)
    runs = []
    low, high = likely.T
    for theta in random_state.uniform(low, high, (run.plan.n_restarts, len(likely))):
        moved = copy.deepcopy(objective)
        of_kernel = theta[:-1] if learns_noise else theta
        free = [p for p in moved.model.features.kernel.parameters() if p.requires_grad]
        set_theta(free, of_kernel)
        if learns_noise:
            moved.model.likelihood.log_noise.data.fill_(theta[-1])
        moved.step_end()  # within bounds
        generator = torch.Generator(run.problem.X.device).manual_seed(
            run.problem.generator.initial_seed()
        )
        problem = run.problem._replace(generator=generator)
        runs.append(run._replace(problem=problem, objective=moved, checkpoint=None))
    return runs


@torch.no_grad()
def likely_hyperparameters(objective: Any, run: Run) -> tuple[np.ndarray, bool]:
    """Return likely ranges of the trained ones, (n, 2), and whether the last is the noise."""
    features, likelihood = objective.model.features, objective.model.likelihood
    is_real = isinstance(likelihood, AdditiveNoise)
    variance = float(run.problem.rows.y.var(0, correction=0).mean()) if is_real else LATENT_VARIANCE
    some = features.network(run.problem.X[:SCALE_ROWS]).cpu().double().numpy()
    bounds = likely_bounds(to_sklearn(features.kernel), some, variance)
    free = [p.requires_grad for p in features.kernel.parameters() for _ in range(p.numel())]
    bounds = bounds[np.array(free, dtype=bool)]
    if not (is_real and likelihood.log_noise.requires_grad):
        return bounds, False
    of_noise = np.clip(np.log(np.multiply(NOISE_SHARES, variance)), *objective.log_noise_bounds)
    return np.vstack([bounds, of_noise]), True


def train_again(run: Run, n_threads: int) -> Trained:
    """Train from one start, in any process; if that fails, the loss is infinite."""
    run = run._replace(optimizer=optimizer_of(run.objective, run.plan))
    try:
        with threads_as(n_threads):
            history = train_run(run)
            return Trained(run, history, loss_of(run))
    except NotPositiveDefiniteError:
        return Trained(run, History(status="failed"), math.inf)


def loss_of(run: Run) -> float:
    """Return the loss of all rows, per row; infinite rather than NaN."""
    loss = run.objective.evaluate(run.problem.X, run.problem.rows)
    return loss if math.isfinite(loss) else math.inf

"""What "auto" comes to: a fit's plan, decided once by pure functions of parameters and sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from ..likelihoods.base import Likelihood
from ..likelihoods.real import Gaussian
from ..losses import Loss
from ..objectives.ensemble import MANY_ROWS
from ..training.optimizers import SCHEDULES, Schedule, constant

USUAL_BATCH = 512  # rows of a minibatch
MAX_INDUCING = 512  # of "auto"; half of it unless q(w) is known, half of it for few rows
FEW_ROWS = 1000  # up to which, too, "auto" maximises the bound of all rows
FEW_POINTS = 20
ROWS_PER_POINT = 4  # at least, of "auto", where q's covariance is learned by gradients
LBFGS_TOL = 1e-6  # nats per row, gained by ten iterations, that are worth ten more
FEW_DIRECT = 4000  # up to which there are eight networks, not three
LEAST_OF_SEVERAL = 50
MOST_JUDGES = 10_000  # rows in a fold, of the usual fraction, and rows that no member sees
N_EVALUATIONS = 25  # of the objective during a fit, for the choice of the best iterate


@dataclass(frozen=True)
class Folds:
    """Rows that are held out: the first ones, in random order.

    Parameters
    ----------
    n_folds : int, default=1
        K disjoint sets, one for each member of an ensemble.
    size : int, default=0
        Rows in each.
    n_unseen : int, default=0
        Rows before them that are in none, and not trained on at all.
    """

    n_folds: int = 1
    size: int = 0
    n_unseen: int = 0

    @property
    def n_untrained(self) -> int:
        """Rows that are not trained on at all; of several folds, other members see each."""
        return self.n_unseen + (self.size if self.n_folds == 1 else 0)

    @classmethod
    def of(cls, n_rows: int, fraction: float, n_folds: int = 1) -> Folds:
        """Folds of a fraction of the rows each."""
        most = n_rows // max(2, n_folds)
        return cls(n_folds, min(max(1, round(fraction * n_rows)), most))


@dataclass(frozen=True)
class Plan:
    """What a fit does."""

    solver: str
    dtype: str  # of the data
    max_iter: int
    batch_size: int
    schedule: Schedule
    patience: float  # epochs without an improvement after which to stop
    tol: float  # what counts as one
    holds_out: bool
    evaluates: bool  # whether iterates are scored at all; without scores the last one is kept
    folds: Folds = Folds()
    n_inducing: int = 0  # M
    n_orthogonal: int = 0  # M₂
    beta: float = 1.0
    rate: float = 1.0  # of learning
    shuffles: bool = True  # whether rows come in random order, or as they are
    window_rows: float = 0.0  # that running statistics look back on at least

    def closed(self) -> Plan:
        """For an objective that has nothing to train, only to solve."""
        return replace(self, max_iter=1)

    @property
    def evaluate_every(self) -> int:
        """Epochs from one evaluation to the next."""
        return math.ceil(self.max_iter / N_EVALUATIONS)


EXACTLY = Plan("", "float64", 1, 1, constant, math.inf, 0.0, holds_out=False, evaluates=False)
"""Of predictions: nothing is trained, in float64."""


def epochs(n_steps: int, n_rows: int, batch_size: int) -> int:
    """As many as make this number of steps."""
    return math.ceil(n_steps / math.ceil(n_rows / batch_size))


def direct_plan(p: Any, n_rows: int, has_networks: bool) -> Plan:
    """For parameters p of an ensemble with finite features that is trained for a loss.

    Parameters
    ----------
    p : WithFiniteFeatures and TrainingParameters
        The estimator's.
    n_rows : int
        Distinct rows.
    has_networks : bool
        Whether there are networks of ours, of which there can be several.
    """
    few = n_rows <= FEW_DIRECT
    many = 6 if is_classifier(p) else 3
    auto = (8 if few else many) if has_networks and n_rows >= LEAST_OF_SEVERAL else 1
    K = auto if p.n_estimators == "auto" else int(p.n_estimators)
    if K > 1 and not has_networks:
        raise ValueError(
            f"n_estimators={K} needs networks to be joined: hidden_layer_sizes, and "
            "feature_map=None."
        )
    if K > 1 and n_rows < 2 * K:
        raise ValueError(f"n_estimators={K} needs {2 * K} rows at least, got {n_rows}.")
    folds = Folds(K)
    if p.early_stopping:
        folds = Folds.of(min(n_rows, MOST_JUDGES * 10), p.validation_fraction, K)
        if K > 1:  # by which the mixture is judged, as no member is blind to another's fold
            n_unseen = min(n_rows // (10 if few else 20), MOST_JUDGES)
            size = min(folds.size, (n_rows - n_unseen) // K)
            folds = replace(folds, size=size, n_unseen=n_unseen)
    n_trained = n_rows - folds.n_untrained
    usual = 128 if few else 256 if n_rows < MANY_ROWS else USUAL_BATCH
    b = min(usual if p.batch_size == "auto" else int(p.batch_size), n_trained)
    n_steps = int(np.clip(750 * (n_rows / 1000) ** 0.6, 300, 6000))
    if is_classifier(p):  # which overfit sooner
        n_steps = max(n_steps // 2, 300)
    return Plan(
        solver="adam",
        dtype=p.dtype,
        max_iter=epochs(n_steps, n_trained, b) if p.max_iter == "auto" else int(p.max_iter),
        batch_size=b,
        schedule=SCHEDULES[p.learning_rate],
        rate=p.learning_rate_init,
        patience=p.n_iter_no_change or math.inf,
        tol=p.tol,
        holds_out=bool(p.early_stopping),
        evaluates=bool(p.early_stopping),
        folds=folds,
    )


# ---- the sparse variational family -----------------------------------------------------------


def sparse_plan(
    p: Any,
    n_rows: int,
    likelihood: Likelihood,
    loss: Loss,
    *,
    streams: bool = False,
    has_network: bool,
    shares_noise: bool = True,
    batch_needed: int | None = None,
    beta: float = 1.0,
) -> Plan:
    """For parameters p of a sparse variational estimator; points are counted by :func:`n_points`.

    Parameters
    ----------
    p : InducingParameters and TrainingParameters
        The estimator's.
    n_rows : int
        Distinct rows.
    likelihood, loss : Likelihood and Loss
        What is trained for.
    streams : bool, default=False
        Whether these are a chunk of more.
    has_network : bool
        Whether there is a network below the kernel.
    shares_noise : bool, default=True
        Whether all rows have the same noise variance.
    batch_needed : int or None, default=None
        Rows of a minibatch, if batch_size="auto", where there is no bound of all rows, only
        estimates; None: there is one.
    beta : float, default=1.0
        Weight of the KL divergence.
    """
    n = math.inf if streams else n_rows
    solver = choose_solver(p.solver, n, likelihood, loss, shares_noise, batch_needed is not None)
    is_lbfgs = solver == "lbfgs"
    holds_out = has_network if p.early_stopping == "auto" else bool(p.early_stopping)
    held_out = holds_out and not streams
    folds = Folds.of(n_rows, p.validation_fraction) if held_out else Folds()
    n_trained = n_rows - folds.n_untrained
    b = min(
        (batch_needed or USUAL_BATCH) if p.batch_size == "auto" else int(p.batch_size), n_trained
    )
    n_steps = int(np.clip(30 * n_trained / b, 500, 3000))
    auto = 20 if is_lbfgs else epochs(n_steps, n_trained, b)
    stops_itself = is_lbfgs and p.n_iter_no_change is None
    return Plan(
        solver=solver,
        dtype="float64" if is_lbfgs else p.dtype,
        max_iter=auto if p.max_iter == "auto" else int(p.max_iter),
        batch_size=n_trained if is_lbfgs else b,
        schedule=constant if is_lbfgs else SCHEDULES[p.learning_rate],
        rate=p.learning_rate_init,
        patience=2 if stops_itself else p.n_iter_no_change or math.inf,
        tol=max(p.tol, LBFGS_TOL) if stops_itself else p.tol,
        holds_out=holds_out,
        evaluates=holds_out or is_lbfgs,
        folds=folds,
        beta=beta,
    )


def choose_solver(
    asked: str,
    n_rows: float,
    likelihood: Likelihood,
    loss: Loss,
    shares_noise: bool,
    needs_minibatches: bool,
) -> str:
    """The solver, chosen if it is "auto".

    Raises
    ------
    ValueError
        If the one that is asked for has no use for the loss.
    """
    collapses = loss.site_noise(likelihood) is not None
    if asked == "collapsed" and not collapses:
        raise ValueError(
            "solver='collapsed' needs likelihood='gaussian' and the loss 'elbo', or additive "
            f"noise and the loss 'square', got {likelihood!r} and {loss!r}; solver='natural' "
            "is its counterpart."
        )
    if asked == "collapsed" and not shares_noise:
        raise ValueError(
            "solver='collapsed' needs rows that have the same noise, but y_std is given, or "
            "noise='input'; solver='natural' is its counterpart."
        )
    if asked == "lbfgs" and loss.covariance(likelihood) == "gradient":
        raise ValueError(
            f"solver='lbfgs' needs a loss with a closed form for the best covariance, which "
            f"{loss!r} has not with {likelihood!r}; use 'natural' or 'adam'."
        )
    if asked == "lbfgs" and needs_minibatches:
        raise ValueError(
            "solver='lbfgs' needs whiten=True with the prior's covariance at orthogonal "
            "points: without, the price of the mean is a random estimate."
        )
    if asked != "auto":
        return asked
    if loss.is_noisy():
        return "adam"  # Newton's steps need curvatures
    if loss.is_conjugate(likelihood) and n_rows <= FEW_ROWS and not needs_minibatches:
        return "lbfgs"
    return "collapsed" if collapses and shares_noise else "natural"


def n_points(
    p: Any, n_trained: int, n_given: int, likelihood: Likelihood, loss: Loss, shares: bool
) -> int:
    """M, for this many distinct rows to train on.

    Parameters
    ----------
    p : InducingParameters
        The estimator's.
    n_trained, n_given : int
        Distinct rows to train on, and rows as they were given.
    likelihood, loss : Likelihood and Loss
        What is trained for.
    shares : bool
        Whether orthogonal points want rows of their own.

    Raises
    ------
    ValueError
        If more points than rows are asked for.
    """
    if p.n_inducing != "auto":
        M = int(p.n_inducing)
        if max(n_trained, n_given) < M:
            raise ValueError(
                f"n_inducing={M} must be at most the number of rows to train on, {n_trained}."
            )
        return min(M, n_trained)
    conjugate = isinstance(likelihood, Gaussian)
    most = MAX_INDUCING // (1 if conjugate else 2) // (1 if n_trained > FEW_ROWS else 2)
    if loss.covariance(likelihood) == "gradient":  # of which S has M²/2 parameters
        most = min(most, max(FEW_POINTS, n_trained // ROWS_PER_POINT))
    M = min(most, n_trained)
    return min(M, max(1, n_trained // 2)) if shares else M


def n_others(p: Any, n_trained: int, n_given: int, M: int) -> int:
    """M₂ beside M points.

    Raises
    ------
    ValueError
        If more points than rows are asked for.
    """
    if p.n_orthogonal == "auto":
        return min(M, max(1, n_trained - M))
    if int(p.n_orthogonal) > max(n_trained, n_given):
        raise ValueError(
            f"n_orthogonal={p.n_orthogonal} must be at most the number of rows to train on, "
            f"{n_trained}."
        )
    return min(int(p.n_orthogonal), n_trained)


def given_number(asked: int | str, name: str, n_given: int) -> int:
    """The number of points that there are, which a parameter must not contradict."""
    if asked not in ("auto", n_given):
        raise ValueError(
            f"{name}={asked} must be 'auto' or the number of the points that are "
            f"given or, with warm_start, were fitted before: {n_given}."
        )
    return n_given

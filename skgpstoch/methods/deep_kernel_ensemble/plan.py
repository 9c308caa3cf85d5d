"""The plan of a deep kernel ensemble: how many networks, held-out rows and steps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...objectives.ensemble import MANY_ROWS
from ...training.optimizers import SCHEDULES
from ...training.recipes.feature_builder import USUAL_BATCH
from ...training.recipes.plan import Folds, Plan, Training, epochs

FEW_DIRECT = 4000  # rows up to which there are eight networks, not three
MANY_BATCH = 1024  # rows of a minibatch for many rows
MANY_RATE = 2**0.5  # times the learning rate, as minibatches of many rows have less noise
STEP_LIMIT, STEP_LIMIT_OF_MANY = 6000, 5000
"""Most steps, also for many rows without classes. *Measured* in the same time on 294,611 flights
and three made-up tables of 200,000 rows: minibatches of 1,024 rows are better than those of 512 by
.002 to .04 nats, and two networks better than three by .001 to .01."""
LEAST_OF_SEVERAL = 50  # rows for which there are several networks
SCALE_STEPS = 10_000  # of the networks' size, that scales of inputs could go in a fit
MOST_SCALE_RATE = 20.0
MOST_JUDGES = 10_000  # rows in a fold, of the usual fraction, and rows that no member sees


def ensemble_size(asked: int | str, n_rows: int, has_networks: bool, of_classes: bool) -> int:
    """Return the number K of networks.

    Raises
    ------
    ValueError
        If several members are asked for without networks of ours, or with too few rows.
    """
    many = 6 if of_classes else 3 if n_rows < MANY_ROWS else 2
    auto = 8 if n_rows <= FEW_DIRECT else many
    auto = auto if has_networks and n_rows >= LEAST_OF_SEVERAL else 1
    K = auto if asked == "auto" else int(asked)
    if K > 1 and not has_networks:
        raise ValueError(
            f"n_estimators={K} needs networks: set hidden_layer_sizes, with kernel=None and "
            "feature_map=None."
        )
    if K > 1 and n_rows < 2 * K:
        raise ValueError(f"n_estimators={K} needs at least {2 * K} rows, got {n_rows}.")
    return K


def ensemble_plan(
    training: Training,
    n_rows: int,
    n_estimators: int | str = "auto",
    has_networks: bool = True,
    of_classes: bool = False,
) -> Plan:
    """Return the plan for so many distinct rows; a pure function.

    Only our own networks (`has_networks`) can be several. Networks for classes (`of_classes`)
    overfit sooner.
    """
    t, few, many = training, n_rows <= FEW_DIRECT, n_rows >= MANY_ROWS and not of_classes
    K = ensemble_size(n_estimators, n_rows, has_networks, of_classes)
    folds = Folds(K)
    if t.early_stopping:
        folds = Folds.of(min(n_rows, MOST_JUDGES * 10), t.validation_fraction, K)
        if K > 1:  # by which the mixture is judged, as no member is blind to another's fold
            n_unseen = min(n_rows // (10 if few else 20), MOST_JUDGES)
            size = min(folds.size, (n_rows - n_unseen) // K)
            folds = replace(folds, size=size, n_unseen=n_unseen)
    n_trained = n_rows - folds.n_untrained
    usual = 64 if few else 256 if n_rows < MANY_ROWS else MANY_BATCH if many else USUAL_BATCH
    b = min(usual if t.batch_size == "auto" else int(t.batch_size), n_trained)
    power = 0.4 if n_rows < 1000 else 0.6
    most = STEP_LIMIT_OF_MANY if many else STEP_LIMIT
    n_steps = int(np.clip(750 * (n_rows / 1000) ** power, 300, most))
    if of_classes:  # measured: twice as many gain on one of three tables
        n_steps = max(n_steps // 2, 300)
    max_iter = epochs(n_steps, n_trained, b) if t.max_iter == "auto" else int(t.max_iter)
    return Plan(
        solver="adam",
        dtype=t.dtype,
        max_iter=max_iter,
        batch_size=b,
        schedule=SCHEDULES[t.learning_rate],
        rate=t.learning_rate_init * (MANY_RATE if many and t.batch_size == "auto" else 1.0),
        patience=t.n_iter_no_change or math.inf,
        tol=t.tol,
        holds_out=bool(t.early_stopping),
        evaluates=bool(t.early_stopping),
        folds=folds,
    )


def scale_rate(plan: Plan, n_rows: int) -> float:
    """Return the learning rate of the inputs' scales, relative to the networks'.

    The fewer the steps, the larger it is, because scales must get as far in few steps as in many.
    RealMLP's factor is 6.
    """
    n_steps = plan.max_iter * math.ceil((n_rows - plan.folds.n_untrained) / plan.batch_size)
    return min(SCALE_STEPS / n_steps, MOST_SCALE_RATE)

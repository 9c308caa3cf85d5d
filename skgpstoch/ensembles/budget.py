"""How many epochs of how many networks there is time for."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier

from ..methods.deep_kernel_ensemble import ensemble_plan
from ..recipes.recipe import Training

TRIAL_ROWS = 1000  # that the time of a step is measured with
TRIAL_STEPS = 10
LEAST_TRAINED = 30
FEWEST = 2  # networks
AMPLE = 3.0  # times the time of the networks, in which there is a second model, too
USED = 0.4  # of the time by steps, as one network alone is quicker than its share of several


def affordable(networks: Any, X: Any, y: Any, max_time: float | None) -> dict[str, Any]:
    """Return epochs and networks, or nothing if there is time for as many as there should be."""
    if max_time is None:
        return {}
    training, of_classes = Training.of(networks), is_classifier(networks)
    plan = ensemble_plan(training, len(X), networks.n_estimators, of_classes=of_classes)
    per_epoch, K = -(-len(X) // plan.batch_size), plan.folds.n_folds
    K = max(1, min(K, len(np.unique(X[:TRIAL_ROWS], axis=0)) // 2))  # rows may be repeated
    fixed, per_step = trial_times(networks, X, y, plan.batch_size, K)
    left = max(USED * max_time - 3.0 * fixed, 0.0)
    steps = left / per_step / K
    if steps > AMPLE * plan.max_iter * per_epoch:
        return {}
    if 4.0 * steps < plan.max_iter * per_epoch:  # of fewer networks there are more
        steps, K = steps * K / min(K, FEWEST), min(K, FEWEST)
    n_epochs = int(max(LEAST_TRAINED, steps) // per_epoch)
    return {"max_iter": min(plan.max_iter, max(1, n_epochs)), "n_estimators": K}


def trial_times(
    networks: Any, X: Any, y: Any, batch_size: int, n_networks: int
) -> tuple[float, float]:
    """Measure the seconds that a fit of a network to some rows takes without steps, and a step's.

    Several networks for classes are measured with two: one alone has another closing pass.

    Returns
    -------
    fixed, per_step : float
        Seconds.
    """
    order, K = np.random.default_rng(0).permutation(len(X)), 1
    if is_classifier(networks):  # one of each class
        K = min(FEWEST, n_networks)
        order = np.concatenate([np.unique(y, return_index=True)[1], order])
    some, seconds = order[: max(TRIAL_ROWS, len(order) - len(X))], []
    n_batches = -(-len(some) // min(batch_size, len(some)))
    for n_epochs in (1, 1 + -(-TRIAL_STEPS // n_batches)):  # the first also warms up
        trial = clone(networks).set_params(verbose=0, n_estimators=K, calibrate=False)
        trial.set_params(batch_size=min(batch_size, len(some)), max_iter=n_epochs)
        start = time.perf_counter()
        trial.fit(X[some], y[some])
        seconds.append(time.perf_counter() - start)
    n_more = (n_epochs - 1) * n_batches
    per_step = max(seconds[1] - seconds[0], 0.1 * seconds[1]) / n_more
    return max(seconds[1] - n_epochs * n_batches * per_step, 0.0) / K, per_step / K

"""Calibrate how much standard deviations vary between rows, on held-out rows.

Most models vary their uncertainty between rows too little: intervals are too narrow where the model
is least certain, and too wide elsewhere. With the mean m and the standard deviation s of a row,

    Y' = m + r(s)(Y − m),   r(s) = c·(s/s̄)^(γ − 1),   so that   s' = c·s̄·(s/s̄)^γ,

has the density p(m + (y − m)/r)/r: a distribution of the same shape, whatever c and γ are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize

from ..mixture import Spread

SCALE_PRIOR = 0.1  # prior standard deviation of log c, if the scale was chosen before
EXPONENT_PRIOR = 0.1  # prior standard deviation of γ around 1
SPREAD_LIMITS = ((-3.0, 3.0), (0.5, 2.0))  # limits of log c and γ


def best_spread(
    log_density: Callable[[np.ndarray], np.ndarray],
    y: np.ndarray,
    mean: np.ndarray,
    std: np.ndarray,
    weight: np.ndarray | None = None,
    scale_prior: float = SCALE_PRIOR,
    exponent_prior: float = EXPONENT_PRIOR,
) -> Spread:
    """Return c and γ with the best log score; the priors of log c and γ are normal around 0 and 1.

    Parameters
    ----------
    log_density : callable
        Maps values of y (N, P) at the same rows to log p(y), (N,).
    y, mean, std : ndarray of shape (N, P)
        Targets of held-out rows, and their predicted means and standard deviations.
    weight : ndarray of shape (N,) or None, default=None
        How many rows each counts for.
    scale_prior, exponent_prior : float
        Standard deviations of log c and γ.

    Returns
    -------
    spread : Spread
        The function r(s), for each output.
    """
    share = np.ones(len(y)) if weight is None else weight
    log_std = np.log(np.maximum(std, np.finfo(np.float64).tiny))
    centre = share @ log_std / share.sum()  # log s̄, (P,)

    def loss(x: np.ndarray) -> float:
        log_r = x[0] + (x[1] - 1.0) * (log_std - centre)
        log_p = log_density(mean + (y - mean) * np.exp(-log_r)) - log_r.sum(1)
        prior = (x[0] / scale_prior) ** 2 + ((x[1] - 1.0) / exponent_prior) ** 2
        return float(0.5 * prior - share @ log_p)

    log_c, exponent = argmin(loss, np.array([0.0, 1.0]), SPREAD_LIMITS)
    return Spread(np.exp(log_c - (exponent - 1.0) * centre), float(exponent))


def argmin(
    loss: Callable[[np.ndarray], float],
    start: np.ndarray,
    limits: Sequence[tuple[float, float]],
) -> np.ndarray:
    """Return the minimiser of a loss in nats, or the start if the loss is not finite."""
    if not np.isfinite(first := loss(start)):
        return start
    options = {"eps": 1e-6}  # of differences: sums of thousands of nats are exact to 1e-11
    found = minimize(loss, start, method="L-BFGS-B", bounds=limits, options=options)
    return np.asarray(found.x) if found.fun < first else start

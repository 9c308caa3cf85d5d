"""Calibrate how much standard deviations vary between rows, on held-out rows.

Most models vary their uncertainty between rows too little: intervals are too narrow where the model
is least certain, and too wide elsewhere. With the mean m and the standard deviation s of a row,

    Y' = m + r(s)(Y − m),   r(s) = c·(s/s̄)^(γ − 1),   so that   s' = c·s̄·(s/s̄)^γ,

has the density p(m + (y − m)/r)/r: a distribution of the same shape, whatever c and γ are, but for
outliers with a reach, which stays. Each output has its own c, as networks are surer of some than of
others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize

from ..mixture import Spread

SCALE_PRIOR = 0.1  # prior standard deviation of log c, if the scale was chosen before
SCALES_PRIOR = 0.3  # the same for several outputs, as that scale was chosen for all of them
EXPONENT_PRIOR = 0.1  # prior standard deviation of γ around 1
SCALE_LIMITS, EXPONENT_LIMITS = (-3.0, 3.0), (0.5, 2.0)  # of log c and γ


def best_spread(
    log_density: Callable[[np.ndarray], np.ndarray],
    y: np.ndarray,
    mean: np.ndarray,
    std: np.ndarray,
    weight: np.ndarray | None = None,
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
    exponent_prior : float
        Standard deviation of γ.

    Returns
    -------
    spread : Spread
        The function r(s), for each output.
    """
    share = np.ones(len(y)) if weight is None else weight
    log_std = np.log(np.maximum(std, np.finfo(np.float64).tiny))
    centre = share @ log_std / share.sum()  # log s̄, (P,)

    def loss(x: np.ndarray) -> float:
        log_r = x[:-1] + (x[-1] - 1.0) * (log_std - centre)
        log_p = log_density(mean + (y - mean) * np.exp(-log_r)) - log_r.sum(1)
        of_scales = np.square(x[:-1] / scale_prior).sum()
        prior = of_scales + ((x[-1] - 1.0) / exponent_prior) ** 2
        return float(0.5 * prior - share @ log_p)

    scale_prior = SCALE_PRIOR if len(centre) == 1 else SCALES_PRIOR
    start = np.append(np.zeros_like(centre), 1.0)
    *log_c, exponent = argmin(loss, start, [SCALE_LIMITS] * len(centre) + [EXPONENT_LIMITS])
    return Spread(np.exp(np.array(log_c) - (exponent - 1.0) * centre), float(exponent))


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

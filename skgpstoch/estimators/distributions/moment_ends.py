"""How far moments of y = g(Z) are integrated, if Z has heavy tails or g rises without bound.

The part of E|y − c|ᵏ beyond z is about P(Z beyond z)·|g(z) − c|ᵏ. It rises, falls, and may rise
again, as for exp(Z) of a Student-t distributed Z, whose mean is infinite, although the tail that
makes it so may have a probability of 10⁻⁵⁰. Integrals end where the part is negligible, or else
least, before it rises to its largest where hardly any probability is left. If it is not small
there, the moment does not exist for practical purposes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .law import Law

N_PARTS = 161  # numbers on either side at which the part beyond is evaluated
FIRST_PART, LAST_PART = 0.3, 1e6  # standard deviations from the centre
LAST_SHARE = 1e-6  # share of the way to an end of the map that is left out
FINISHED = 1e-9  # share of the largest part, at which integrals end
REMOTE = 1e-9  # probability beyond, at which no part may be the largest so far
LEAST_CLEAR = 0.2  # share of the largest part from which a moment does not exist
"""A moment whose integral ends at such a share is uncertain by about half of it."""


def moment_ends(
    law: Law,
    p: int,
    centre: np.ndarray,
    width: np.ndarray,
    limits: tuple[float, float],
    g: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Return ends of the integrals of moments 1 and 2, (2, 2, N), and whether these exist, (2, N).

    Parameters
    ----------
    law : Law
        The law of Z, whose output p is looked at.
    centre, width : ndarray of shape (N,)
        Place of each distribution.
    limits : tuple of float
        Ends of the map.
    g : callable
        The map, of arrays of any shape.
    """
    ends, exists = np.empty((2, 2, len(centre))), np.ones((2, len(centre)), bool)
    rows, c = np.arange(len(centre)), g(centre)[:, None]
    for side, limit in enumerate(limits):
        far = width[:, None] * np.geomspace(FIRST_PART, LAST_PART, N_PARTS)
        if np.isfinite(limit):
            whole = np.abs(limit - centre)[:, None]
            near_end = 1.0 - np.geomspace(1.0, LAST_SHARE, N_PARTS)[1:]
            far = np.sort(np.hstack([np.minimum(far, whole * near_end[-1]), whole * near_end]), 1)
        z = centre[:, None] + (far if side else -far)
        tail = law.tail(rows, z, np.full(z.shape, bool(side)), p)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            log_tail, log_rise = np.log(tail), np.log(np.abs(g(z) - c))
            for k in range(2):
                part = np.where(tail > 0.0, log_tail + (k + 1.0) * log_rise, np.inf)  # 0: unknown
                left = part - np.maximum.accumulate(part, axis=1)
                is_remote = np.logical_or.accumulate((left == 0.0) & (tail < REMOTE), axis=1)
                left = np.where(np.isnan(left) | is_remote, 0.0, left)
                is_enough = left <= np.log(FINISHED)
                cut = np.where(is_enough.any(1), is_enough.argmax(1), left.argmin(1))
                ends[k, side] = z[rows, cut]
                is_point = (part == -np.inf).all(1)
                exists[k] &= (left[rows, cut] <= np.log(LEAST_CLEAR)) | is_point
    return ends, exists

"""Expectation propagation with all rows, by grids and inverses, for tests of pseudo-targets."""

import math

import numpy as np


def propagated(K, p_of, c, reach, start=0.0, n_sweeps=80):
    """Pseudo-targets, their variances and the evidence, for p(y | f) of each row at f (n, G).

    Rasmussen & Williams, sec. 3.6, with all sites changed at once. Grids reach so many standard
    deviations, and sites start from this precision.
    """
    n, z = len(K), np.linspace(-reach, reach, 2001)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    tau, nu = np.full(n, start), np.zeros(n)
    prior = np.linalg.inv(K)
    for _ in range(n_sweeps):
        S = np.linalg.inv(prior + np.diag(tau))
        mean = S @ (prior @ np.full(n, c) + nu)
        v = 1.0 / (1.0 / np.diag(S) - tau)
        mu = v * (mean / np.diag(S) - nu)
        f = mu[:, None] + np.sqrt(v)[:, None] * z
        p = p_of(f) * density
        Z = p.sum(1)
        first = (p * f).sum(1) / Z
        second = (p * (f - first[:, None]) ** 2).sum(1) / Z
        tau, nu = 0.5 * (tau + 1 / second - 1 / v), 0.5 * (nu + first / second - mu / v)
    D, t = 1.0 / tau, nu / tau
    C, r = K + np.diag(D), t - c
    joint = -0.5 * (r @ np.linalg.solve(C, r) + np.linalg.slogdet(2 * math.pi * C)[1])
    beside = -0.5 * (np.log(2 * math.pi * (v + D)) + (t - mu) ** 2 / (v + D))
    return t, D, joint + (np.log(Z) - beside).sum()

"""Figures as printed in the papers that the benchmarks compare with."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """Mean over the paper's splits, and their standard deviation or the mean's standard error."""

    mean: float
    std: float


# Shi, Titsias and Mnih, "Sparse Orthogonal Variational Inference for Gaussian Processes", tables 2
# and 6, five random splits of 64 % for training, 16 % for validation and 20 % for testing,
# Matérn-3/2 with a shared length scale, 100 epochs of Adam at 0.01 in batches of 1,024: method,
# inducing points, then kin40k and protein, each with its standard error (not standard deviation).
# The target is standardised; the log-likelihood is in nats per row, the higher the better.
SOLVEGP_SETS = ("kin40k", "protein")
SOLVEGP_TABLES = {
    "loglik": """  Table 2
        SVGP     1024       0.094±0.003 -0.963±0.006
        SVGP     1536       0.129±0.003 -0.949±0.005
        ODVGP    1024+1024  0.137±0.003 -0.956±0.005
        ODVGP    1024+8096  0.144±0.002 -0.946±0.005
        SOLVE-GP 1024+1024  0.187±0.002 -0.943±0.005
        SVGP     2048       0.137±0.003 -0.940±0.005
    """,
    "rmse": """  Table 6
        SVGP     1024       0.193±0.001  0.630±0.004
        SVGP     1536       0.182±0.001  0.621±0.004
        ODVGP    1024+1024  0.183±0.001  0.625±0.004
        ODVGP    1024+8096  0.180±0.001  0.618±0.004
        SOLVE-GP 1024+1024  0.172±0.001  0.618±0.004
        SVGP     2048       0.177±0.001  0.615±0.004
    """,
}


def solvegp_table(measure: str) -> dict[tuple[str, str, str], Published]:
    """Published ``measure`` ("loglik", "rmse"), by (set, method, inducing points)."""
    table = {}
    for line in SOLVEGP_TABLES[measure].splitlines()[1:-1]:
        method, points, *figures = line.split()
        for name, figure in zip(SOLVEGP_SETS, figures, strict=True):
            table[name, method, points] = Published(*map(float, figure.split("±")))
    return table


# Test log-likelihoods, negated, on the twenty splits of Gal and Ghahramani, "Dropout as a Bayesian
# Approximation" (2016), in nats per row of the target in its own units: the best without
# pretraining ("published") and TabPFN v2's, as issue 28 of this project collected them. wine_red's
# targets lie on a lattice, on which densities can be made as large as one likes.
GAL_NLL: dict[str, dict[str, float]] = {
    "boston": {"published": 2.35},
    "concrete": {"published": 2.83, "TabPFN v2": 2.21},
    "energy": {"published": 0.53, "TabPFN v2": 0.15},
    "power": {"published": 2.60, "TabPFN v2": 2.28},
    "yacht": {"published": 0.16, "TabPFN v2": -0.73},
    "wine_red": {"published": 0.89},
}

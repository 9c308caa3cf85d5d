"""Figures as printed in the papers that the benchmarks compare with."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """Mean over the paper's splits, and their standard deviation or the mean's standard error."""

    mean: float
    std: float


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

"""Compute moments of targets on a lattice; see :mod:`skgpstoch.ensembles.rounded_targets`."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ..ensembles.rounded_targets import MOST_CELLS, WINDOW, Lattice
from .distributions import Weighted
from .graph import Value


def rounded_moments(given: Weighted, lattice: Lattice) -> tuple[Value, Value]:
    """Return mean and variance of y, (N, 1), if a share of y is rounded to the nearest atom.

    If many atoms are within six standard deviations, they are those of the density.
    """
    mean, var = given.moments()
    graph, std, edges, share = mean.graph, var.sqrt(), lattice.edges[None], lattice.weight
    low, high = (below(mean + std * z, edges) for z in (-WINDOW, WINDOW))
    cdf, _ = given.cdf_and_density(graph.constant(edges))  # (N, J − 1)
    place = np.arange(edges.shape[1], dtype=np.float64)[None]
    cdf = graph.where(low - place > 0.0, 0.0, graph.where(high - place > 0.0, cdf, 1.0))
    end = mean * 0.0
    P = graph.concat([cdf, end + 1.0], 1) - graph.concat([end, cdf], 1)
    from_mean = lattice.atoms - mean
    shift = (P * from_mean).sum(1) * share
    square = (P * from_mean.square()).sum(1) * share + var * (1.0 - share)
    is_coarse = high - low < MOST_CELLS
    rounded = (square - shift.square()).at_least(0.0)
    return graph.where(is_coarse, mean + shift, mean), graph.where(is_coarse, rounded, var)


def below(y: Value, edges: np.ndarray) -> Value:
    """Return how many edges (1, J − 1) are below y (N, 1), as (N, 1)."""
    return (y - edges > 0.0).map("Cast", to=TensorProto.DOUBLE).sum(1)

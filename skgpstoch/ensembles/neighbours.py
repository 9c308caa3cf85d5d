"""Nearest neighbours in the recommended default: a rough kernel and a smoother one.

Above the rows that an exact process can take, they are the processes of the race. Their scores come
from leaving out rows one by one, and cost no further fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.gaussian_process import kernels as sk

from ..data.arrays import Scaling, resolve_seed
from ..data.rows import Data
from ..recipes.kernel_choice import MOST_RELEVANT_INPUTS
from .race import Entrant

NEIGHBOURS = {0.5: "neighbours (rough)", 1.5: "neighbours"}
"""Of models by the smoothness ν of their Matérn kernels. Where both fit well, the rough kernel has
the better density, and the other the better mean."""
BOUNDS = (1e-5, 1e5)  # of hyper-parameters, for X and y of variance 1


def of_neighbours(estimator: Any, p: Any, data: Data, groups: Sequence[int]) -> list[Entrant]:
    """Return nearest neighbours with kernels of different smoothness.

    Parameters
    ----------
    estimator : type
        NNGPRegressor.
    p : AutomaticParameters
        Device and seed.
    data : Data
        The rows, encoded.
    groups : sequence of int
        A number for each column; the one-hot levels of a category have the same.
    """
    kernels = {"neighbours": None}  # chooses ν itself
    if data.X.shape[1] <= MOST_RELEVANT_INPUTS:
        units = input_units(data, np.asarray(groups))
        kernels = {name: matern(units, nu) for nu, name in NEIGHBOURS.items()}
    seed = resolve_seed(p.random_state)

    def entrant(name: str, kernel: sk.Kernel | None) -> Entrant:
        def make(left: float | None) -> Any:
            return estimator(kernel, max_time=left, device=p.device, verbose=0, random_state=seed)

        return Entrant(name, make)

    return [entrant(*pair) for pair in kernels.items()]


def input_units(data: Data, groups: np.ndarray) -> np.ndarray:
    """Return the unit of each column, (d,): one for all levels of a category, however rare."""
    scale = Scaling.standard(data.X, data.weight).scale
    _, place = np.unique(groups, return_inverse=True)
    total = np.sqrt(np.bincount(place, np.square(scale)))
    return np.where(np.bincount(place)[place] > 1, total[place], scale)


def matern(units: np.ndarray, nu: float) -> sk.Kernel:
    """Return a kernel for columns of these units, and a target of variance 1."""
    scale = units * np.sqrt(len(units))
    bounds = np.multiply.outer(units, BOUNDS)
    return sk.ConstantKernel(1.0, BOUNDS) * sk.Matern(scale, bounds, nu=nu)

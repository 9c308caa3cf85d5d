"""Nearest neighbours in the recommended default: a rough kernel and a smoother one.

Above the rows that an exact process can take, they are the processes of the race. Their scores come
from leaving out rows one by one, and cost no further fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.gaussian_process import kernels as sk

from ...data.arrays import Scaling, resolve_seed
from ...data.deadline import Deadline
from ...data.rows import Data
from ...training.recipes.kernel_choice import MOST_RELEVANT_INPUTS, START_NOISE
from ..nngp.recipe import deep_epochs
from .race import Entrant, Judged, raw_weights, standard_score

NEIGHBOURS = {1.5: "neighbours", 0.5: "neighbours (rough)"}
"""Of models by the smoothness ν of their Matérn kernels. Where both fit well, the rough kernel has
the better density, and the other the better mean."""
CHOOSES_ITSELF = {"neighbours": None}  # ν, as its kernel is not given
DEEP = "neighbours (deep)"
DEEP_LAYERS = (128, 128, 128)
FEATURES_NU = 1.5  # smoothness of the kernel on the outputs of a network
LEAST_PROMISE = 0.1  # weight of neighbours in X, or
CLEAR_SCORE = 0.3  # nats per row of a standardised target, that promise more by a network
MOST_SEARCHED = 5_000_000  # numbers of X: in more, a search takes longer than all else
LEAST_TIME = (4.0, 3e-4)  # seconds of max_time for neighbours in X, and more for each row
COLUMN_TIME = 0.02  # the same for each column of X, in the neighbours' share of the time
LATENT_TIME = (8.0, 2e-3)
"""The same for each row and latent function, in half of which most steps are made. *Measured* on
18,000 rows, which take 32 s of a CPU: those that had 12 s made 20 of 90 steps, and a log loss of
.343, networks of .312."""
MOST_SETTLED = 100_000  # rows times functions; *measured*: a fit of so many takes 46 s of a CPU
TIME_SHARE = 0.3  # of the time that is left, for each of these
LATENT_TIME_SHARE = 0.5  # the same for neighbours of classes or counts, which are one model
FOLLOWED = 2.5  # the same, from which on networks may add nothing
LONG_STEPS = 1000
"""Of such a network, where there is little noise. *Measured* (NLPD, RMSE of the default, CPU
seconds) with 600, then 1,000: 12,000 rows of kin40k −2.584, .0375 (75), −2.665, .0326 (96); 2,500
of it −1.256, .1026, −1.301, .0993; of bike −10.71, .0055, −11.02, .0055; of pol −8.48, .0860,
−8.42, .0868."""
DEEP_SECONDS = (20.0, 3e-4)  # of the time that is left, and for each row
BOUNDS = (1e-5, 1e5)  # of hyper-parameters, for X and y of variance 1
FOLLOWING = 1 / 3
"""Share of the epochs that a kernel of another smoothness takes from there. *Measured* (NLPD of
ν = 1/2 from the start, after ν = 3/2): bike −7.86, −8.15; protein .838, .833; from ν = 1/2 to
3/2 bike loses: −9.16, −8.67."""


def of_neighbours(estimator: Any, p: Any, data: Data, groups: Sequence[int]) -> list[Entrant]:
    """Return nearest neighbours with kernels of different smoothness, if they would not take long.

    Parameters
    ----------
    estimator : type
        NNGPRegressor.
    p : AutomaticParameters
        Device, seed and time.
    data : Data
        The rows, encoded.
    groups : sequence of int
        A number for each column; the one-hot levels of a category have the same.
    """
    if takes_long(p, data, *LEAST_TIME, TIME_SHARE):
        return []
    kernels: dict[str, Any] = CHOOSES_ITSELF
    if data.X.shape[1] <= MOST_RELEVANT_INPUTS:
        units = input_units(data, np.asarray(groups))
        kernels = {name: matern(units, nu) for nu, name in NEIGHBOURS.items()}
    return entrants_of(estimator, p, kernels, TIME_SHARE, n_neighbors_predict="auto")


def of_latent_neighbours(
    estimator: Any, p: Any, data: Data, n_functions: int, **params: Any
) -> list[Entrant]:
    """Return nearest neighbours for classes or counts with so many latent functions, likewise."""
    is_large = n_functions * len(data) > MOST_SETTLED
    least, per_row = LATENT_TIME
    if is_large or takes_long(p, data, least, n_functions * per_row, LATENT_TIME_SHARE):
        return []
    return entrants_of(estimator, p, CHOOSES_ITSELF, LATENT_TIME_SHARE, **params)


def takes_long(p: Any, data: Data, least: float, per_row: float, share: float) -> bool:
    """Tell whether neighbours need more than `max_time`, or than all other models together.

    They have a share of the time, and make twenty steps at least. *Measured*, CPU seconds of twenty
    steps: 1.8 with 100 columns, 6.2 with 400, 15 with 800, 35 with 1,500.
    """
    needed = least + per_row * len(data) + COLUMN_TIME / share * data.X.shape[1]
    is_late = p.max_time is not None and p.max_time < needed
    return bool(is_late or data.X.size > MOST_SEARCHED)


def entrants_of(
    estimator: Any, p: Any, kernels: Mapping[str, Any], share: float, **params: Any
) -> list[Entrant]:
    """Return neighbours with each of these kernels, which take a share of the time that is left."""
    params |= {"device": p.device, "verbose": 0, "random_state": resolve_seed(p.random_state)}

    def entrant(name: str, kernel: sk.Kernel | None) -> Entrant:
        def make(left: float | None) -> Any:
            return estimator(kernel, max_time=None if left is None else share * left, **params)

        return Entrant(name, make, follow=from_neighbours)

    return [entrant(*pair) for pair in kernels.items()]


def from_neighbours(model: Any, found: list[Judged]) -> Any:
    """Return neighbours that start where those of another smoothness have ended."""
    for name, other, _ in found:
        if name == NEIGHBOURS[1.5]:
            kernel = model.kernel.clone_with_theta(other.kernel_.theta)
            return model.set_params(kernel=kernel, max_iter=math.ceil(FOLLOWING * other.n_iter_))
    return model


def of_deep_neighbours(estimator: Any, p: Any, data: Data, is_first: bool = False) -> Entrant:
    """Return neighbours in the outputs of a network, where others promise that they are good.

    If time is limited, ensembles of networks take all of it. Those that come first are before them.
    """
    kernel = sk.ConstantKernel(1.0, BOUNDS) * sk.Matern(1.0, "fixed", nu=FEATURES_NU)
    seed = resolve_seed(p.random_state)

    def make(left: float | None) -> Any:
        given = {"max_time": left, "device": p.device, "verbose": p.verbose, "random_state": seed}
        given["n_neighbors_predict"] = "auto"
        return estimator(kernel, hidden_layer_sizes=DEEP_LAYERS, **given)

    def longer(model: Any, found: list[Judged]) -> Any:
        if has_little_noise(found, data):
            model.set_params(max_iter=deep_epochs(len(data), LONG_STEPS))
        return model

    promises = must_be_deep if is_first else promises_depth
    return Entrant(DEEP, make, is_promising=promises, follow=longer)


def must_be_deep(found: list[Judged], data: Data, deadline: Deadline | None) -> bool:
    """Tell whether time is limited, and there is so little noise that they come before ensembles.

    *Measured* in a minute (NLPD, RMSE; ensembles first, then they): 36,000 rows of kin40k −2.69,
    .040, then −2.71, .024; 13,500 of pol −5.86, .058, then −8.39, .065; 4,500 of pol in 40 seconds
    −4.52, .077, then −8.26, .080; 9,000 of kin40k −2.18, .0532, then −2.13, .0528.
    """
    is_limited = deadline is not None and has_time_for_depth(data, deadline)
    return is_limited and has_little_noise(found, data)


def promises_depth(found: list[Judged], data: Data, deadline: Deadline | None) -> bool:
    """Tell whether a network may find better neighbours, and has the time to.

    It may if neighbours in X have a weight, or if there is little noise: errors are then those of
    the function, which neighbours follow.
    """
    names = [each.name for each in found]
    if DEEP in names or not has_time_for_depth(data, deadline):
        return False
    if has_little_noise(found, data):
        return True
    near = np.isin(names, list(NEIGHBOURS.values()))
    return bool(raw_weights(found, data)[near].sum() >= LEAST_PROMISE)


def has_time_for_depth(data: Data, deadline: Deadline | None) -> bool:
    """Tell whether there is enough time to train a network for neighbours."""
    least, per_row = DEEP_SECONDS
    is_late = deadline is not None and deadline.left() < least + per_row * len(data)
    return not is_late and data.X.size <= MOST_SEARCHED


def has_little_noise(found: list[Judged], data: Data) -> bool:
    """Tell whether a model predicts far better than a constant."""
    return best_score(found, data) >= CLEAR_SCORE


def are_followed(found: list[Judged], data: Data) -> bool:
    """Tell whether neighbours are so good that many rows' networks may not be worth their time."""
    return best_score(found, data) >= FOLLOWED


def best_score(found: list[Judged], data: Data) -> float:
    """Return the best score of some models, in nats per row of a standardised target."""
    return max(standard_score(each, data) for each in found)


def input_units(data: Data, groups: np.ndarray) -> np.ndarray:
    """Return the unit of each column, (d,): one for all levels of a category, however rare."""
    scale = Scaling.standard(data.X, data.weight).scale
    _, place = np.unique(groups, return_inverse=True)
    total = np.sqrt(np.bincount(place, np.square(scale)))
    return np.where(np.bincount(place)[place] > 1, total[place], scale)


def matern(units: np.ndarray, nu: float) -> sk.Kernel:
    """Return a kernel and a noise for columns of these units, and a target of variance 1."""
    scale = units * np.sqrt(len(units))
    bounds = np.multiply.outer(units, BOUNDS)
    return sk.ConstantKernel(1.0, BOUNDS) * sk.Matern(scale, bounds, nu=nu) + START_NOISE

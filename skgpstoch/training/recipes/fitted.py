"""A finished fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ...data.arrays import Scaling
from ...data.equal_rows import MOST_COPIES
from ...data.held_out import HeldOutPredictions
from ...data.rows import Data
from ...likelihoods.real import AdditiveNoise
from ...objectives.base import Objective
from ...objectives.closing import Budget
from ..history import History
from .plan import Plan


class Fitted(NamedTuple):
    """A finished fit, from which the estimator's fitted attributes are made."""

    posterior: Any
    x_scaling: Scaling
    y_scaling: Scaling
    y_shape: tuple[int, ...]  # shape of one row of the user's y
    plan: Plan
    history: History
    objective: Objective | None = None
    data: Data | None = None  # the data as given, rows of weight 0 included
    places: np.ndarray | None = None  # index of the training row that each weighted row became
    budget: Budget | None = None  # work done within max_time, if that was set
    numbers: np.ndarray | None = None  # row numbers of `data` among all rows, if it is a sample
    transformer: Any = None  # of the user's y to the target, fitted; None if they are the same
    names: Sequence[Any] | None = None  # of the columns of X; None if it has none

    @property
    def whole(self) -> Data | None:
        """The rows of positive weight; None for a stream, whose earlier chunks are gone."""
        if self.data is None or (self.objective is not None and self.objective.streams):
            return None
        return self.data.counted()

    @property
    def judged(self) -> Data | None:
        """The same rows; weights that training has divided, because they were huge, are divided."""
        data = self.whole
        if data is None or data.weight is None or data.weight.mean() <= MOST_COPIES:
            return data
        return data.in_unit(data.n_effective / self.posterior.n_rows)

    def among_first(self, n_first: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the given rows that became one of the first training rows, and which one each."""
        data, places = cast(Data, self.data), cast(np.ndarray, self.places)
        given = np.arange(len(data)) if data.weight is None else np.flatnonzero(data.weight)
        is_first = places < n_first
        return given[is_first], places[is_first]

    def numbered(self, found: HeldOutPredictions) -> HeldOutPredictions:
        """Return predictions for rows of `data`, with the rows numbered as in the whole table."""
        return found if self.numbers is None else found.numbered(self.numbers[found.rows])

    def scaled_targets(self, data: Data) -> np.ndarray:
        """Return y of some rows, scaled, (n, P)."""
        offset, scale = self.y_scaling
        return np.asarray((data.y.reshape(len(data), -1) - offset) / scale)

    def in_units(self, log_density: Any, n_rows: float) -> Any:
        """Convert a log density of n_rows rows from the scaled y to y in the user's units."""
        return log_density - n_rows * float(np.log(self.y_scaling.scale).sum())

    def per_output(self, values: Tensor) -> float | np.ndarray:
        """Return values (P,), one per output, as a number if the user's y has one dimension."""
        array = values.detach().numpy()
        return float(array[0]) if self.y_shape == () else array

    def of_budget(self) -> dict[str, Any]:
        """Return the attribute that describes the work that was done within `max_time`."""
        return {"budget_": None if self.budget is None else self.budget._asdict()}

    def of_noise(self, likelihood: AdditiveNoise) -> dict[str, Any]:
        """Return the attributes that describe additive noise."""
        likelihood = likelihood.in_units(torch.from_numpy(self.y_scaling.scale))
        variance = self.per_output(likelihood.noise_variance)
        return {"likelihood_": likelihood, "noise_variance_": variance}

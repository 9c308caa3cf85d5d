"""Parameters that the estimators of NNGP share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sklearn.utils._param_validation import StrOptions

from ...estimators.parameters import POSITIVE_INTEGER


@dataclass(eq=False, repr=False, kw_only=True)
class NeighbourParameters:
    """How many neighbours, and among which rows.

    Parameters
    ----------
    n_neighbors : int, default=32
        Number of neighbours of each row in training; all other rows if there are fewer.
    n_neighbors_predict : int or None, default=None
        Number of neighbours of predictions; None is 128.
    loss : {"auto", "vecchia", "leave_one_out"}, default="auto"
        Neighbours of training: earlier rows in a random order, so that the sum of the losses is a
        density of all rows ("vecchia"), or any other rows ("leave_one_out"). "auto" is "vecchia".
    """

    n_neighbors: int = 32
    n_neighbors_predict: int | None = None
    loss: str = "auto"
    learning_rate_init: float = 0.1
    dtype: str = "float64"

    _first_parameters: ClassVar[tuple[str, ...]] = ("n_neighbors",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_neighbors": [POSITIVE_INTEGER],
        "n_neighbors_predict": [POSITIVE_INTEGER, None],
        "loss": [StrOptions({"auto", "vecchia", "leave_one_out"})],
    }

"""NNGP: the exact process, conditioned on the nearest neighbours of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sklearn.utils._param_validation import StrOptions

from ...calibration.tails import TailChoice
from ...estimators.docs import public_estimator
from ...estimators.parameters import (
    ACTIVATION,
    POSITIVE_INTEGER,
    NetworkParameters,
    TargetParameters,
    TrainingParameters,
)
from ...estimators.regressor import GeneralRegressor
from ...likelihoods.base import make_likelihood
from .recipe import NeighbourRecipe


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class NNGPRegressor(TargetParameters, NetworkParameters, TrainingParameters, GeneralRegressor):
    """Nearest-neighbour Gaussian-process regression: exact where it matters, at any size.

    Each prediction is that of the exact process given the rows nearest to it, under the kernel: one
    small Cholesky factor a row, whatever the number of training rows.
    """

    n_neighbors: int = 32
    n_neighbors_predict: int | None = None
    loss: str = "auto"
    likelihood: str = "auto"
    mean: str = "constant"
    calibrate: bool = True
    activation: str = "gelu"
    learning_rate_init: float = 0.1
    dtype: str = "float64"

    _first_parameters: ClassVar[tuple[str, ...]] = ("n_neighbors", "likelihood", "loss")
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_neighbors": [POSITIVE_INTEGER],
        "n_neighbors_predict": [POSITIVE_INTEGER, None],
        "activation": ACTIVATION,
        "mean": [StrOptions({"zero", "constant"})],
        "calibrate": ["boolean"],
        "loss": [StrOptions({"auto", "vecchia", "leave_one_out"})],
        "likelihood": [StrOptions({"auto", "gaussian", "shared_student_t"})],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("likelihood",)

    def _recipe(self) -> NeighbourRecipe:
        name = "gaussian" if self.likelihood == "auto" else self.likelihood
        choice = TailChoice(
            True, self.likelihood != "shared_student_t", self.likelihood != "gaussian"
        )
        tails = choice if self.calibrate else None
        return NeighbourRecipe.of(self, likelihood=make_likelihood(name), tails=tails)

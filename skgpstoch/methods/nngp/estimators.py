"""NNGP: the exact process, conditioned on the nearest neighbours of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sklearn.utils._param_validation import StrOptions

from ...calibration.tails import TailChoice
from ...estimators.docs import public_estimator
from ...estimators.parameters import (
    ACTIVATION,
    NetworkParameters,
    TargetParameters,
    TrainingParameters,
)
from ...estimators.regressor import GeneralRegressor
from ...likelihoods.base import make_likelihood
from .parameters import NeighbourParameters
from .recipe import NeighbourRecipe


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class NNGPRegressor(
    NeighbourParameters, TargetParameters, NetworkParameters, TrainingParameters, GeneralRegressor
):
    """Nearest-neighbour Gaussian-process regression: exact where it matters, at any size.

    Each prediction is that of the exact process given the rows nearest to it, under the kernel: one
    small Cholesky factor a row, whatever the number of training rows.
    """

    likelihood: str = "auto"
    activation: str = "gelu"

    _first_parameters: ClassVar[tuple[str, ...]] = ("n_neighbors", "likelihood", "loss")
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "activation": ACTIVATION,
        "likelihood": [StrOptions({"auto", "gaussian", "shared_student_t"})],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("likelihood",)

    def _recipe(self) -> NeighbourRecipe:
        name = "gaussian" if self.likelihood == "auto" else self.likelihood
        choice = TailChoice(
            True, self.likelihood != "shared_student_t", self.likelihood != "gaussian"
        )
        return NeighbourRecipe.of(self, likelihood=make_likelihood(name), tails=choice)

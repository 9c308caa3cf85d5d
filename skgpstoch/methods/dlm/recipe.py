"""The recipe of direct loss minimisation: β, and what is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ...data.findings import Finding
from ...likelihoods.real import AdditiveNoise
from ...losses import LogLoss
from ...training.recipes.fitted import Fitted
from ...training.recipes.plan import Plan
from ...training.recipes.variational import VariationalRecipe

UNJUDGED = Finding(
    "calibration",
    "calibrate",
    0.0,
    math.inf,
    severity="note",
    text="Kernel, noise and function were trained for the density of the same rows, and no rows "
    "were held out to judge it: intervals are probably too narrow.",
    advice="Set calibrate=True (which takes no more time with refit=False), give several beta, or "
    "set hyperparameters='fixed'.",
)


@dataclass(frozen=True, kw_only=True)
class DLMRecipe(VariationalRecipe):
    """A variational model, with the choice of β and of what is trained.

    Parameters
    ----------
    betas : object
        The parameter beta: a number, several, or "auto".
    hyperparameters : {"joint", "fixed", "fixed-from-prior"}
        What is trained for the loss, and where q starts.
    calibrates : bool or "auto"
        Whether the predictive distribution is recalibrated on held-out rows.
    """

    betas: Any
    hyperparameters: str
    calibrates: bool | str

    @property
    def holds_out(self) -> bool:
        """Whether a fit to some of the rows comes before the fit to all."""
        return not isinstance(self.betas, Real) or self.calibrates is True

    def sums_rows(self, plan: Plan) -> bool:
        is_one_fit = not self.holds_out and self.hyperparameters == "joint"
        return is_one_fit and super().sums_rows(plan)

    def check_streams(self) -> None:
        super().check_streams()
        if self.holds_out or self.hyperparameters != "joint":
            raise ValueError(
                "partial_fit needs a number for beta, calibrate='auto' or False, and "
                f"hyperparameters='joint', got beta={self.betas!r}, calibrate={self.calibrates!r} "
                f"and hyperparameters={self.hyperparameters!r}."
            )

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        return super().attributes(fitted) | {"beta_": fitted.plan.beta}

    def training_findings(self, fitted: Fitted) -> Iterator[Finding]:
        yield from super().training_findings(fitted)
        is_joint = self.hyperparameters == "joint" and isinstance(self.loss, LogLoss)
        if is_joint and isinstance(self.likelihood, AdditiveNoise) and not self.holds_out:
            yield UNJUDGED

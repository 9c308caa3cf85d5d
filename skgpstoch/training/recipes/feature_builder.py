"""The interface between feature builders and the recipe of the variational family."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from sklearn.gaussian_process import kernels as sk

from ...data.arrays import Scaling
from ...likelihoods.base import Likelihood
from ...models.sparse import SparseModel
from .fitted import Fitted
from .kernel_choice import KernelChoice
from .networks import Network
from .plan import Sizes, Start
from .recipe import Problem

USUAL_BATCH = 512  # rows of a minibatch
STEPS = (500, 30, 3000)  # least steps; epochs; most steps


class FeatureSizes(NamedTuple):
    """Sizes that a builder chooses for a given number of rows."""

    n_inducing: int  # M
    n_orthogonal: int  # M₂
    batch_needed: int | None  # default batch size if the bound can only be estimated; else None
    has_gram: bool = False  # whether the covariance of f between rows is a kernel of the inputs
    are_rows: bool = False  # whether all points are chosen from the rows


class FeatureBuilder(Protocol):
    """Builds the features of a variational model, and describes them before they are built."""

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        """Make one from an estimator's parameters, except the fields in `decided`."""

    @property
    def kernel(self) -> KernelChoice:
        """The kernel of f, and the noise."""

    @property
    def network(self) -> Network | None:
        """The network below the kernel."""

    @property
    def posterior(self) -> str:
        """The family of q: "svgp", "solve" or "odvgp"."""

    @property
    def n_inducing(self) -> int | str:
        """Number of inducing points that was asked for."""

    @property
    def n_orthogonal(self) -> int | str:
        """Number of orthogonal points that was asked for."""

    @property
    def sees_inputs(self) -> bool:
        """Whether the kernel sees the rows of X themselves."""

    @property
    def chooses_inputs(self) -> bool:
        """Whether the fit must learn which columns of X matter."""

    def n_choices(self, n_rows: int, n_features: int) -> int:
        """Return the number of candidates for points that so many rows have."""

    @property
    def steps(self) -> tuple[int, int, int]:
        """Training steps for "auto": least number, number of epochs, largest number."""

    def sizes(
        self, sizes: Sizes, n_untrained: int, recipe: Any, start: Start | None
    ) -> FeatureSizes:
        """Return how many points there are; raise a ValueError if parameters do not agree."""

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """Return the scaling between the user's X and the inputs of the features."""

    def build(
        self, problem: Problem, likelihood: Likelihood, n_latents: int, fitted: SparseModel | None
    ) -> Any:
        """Make the features, as they start training or as a fitted model left them."""

    def place(self, features: Any, problem: Problem) -> None:
        """Choose the points again, for a kernel that has been learned."""

    def set_trainable(self, features: Any, n_rows: int, learns_variance: bool) -> None:
        """Set which parameters of the features are trained."""

    def fitted_kernel(self, features: Any, x_scaling: Scaling) -> sk.Kernel:
        """Return the kernel for the user's X."""

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        """Return the fitted attributes specific to the builder, such as points, in user units."""

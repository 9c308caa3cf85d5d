"""Interface of feature builders to the recipe of the variational family."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from sklearn.gaussian_process import kernels as sk

from ..data.arrays import Scaling
from ..likelihoods.base import Likelihood
from ..models.sparse import SparseModel
from .kernel_choice import KernelChoice
from .networks import Network
from .plan import Sizes
from .recipe import Fitted, Problem
from .warm_start import Start

USUAL_BATCH = 512  # rows of a minibatch
STEPS = (500, 30, 3000)  # at least; times the rows over those of a minibatch; at most


class FeatureSizes(NamedTuple):
    """Sizes that a builder chooses for a given number of rows."""

    n_inducing: int  # M
    n_orthogonal: int  # M₂
    batch_needed: int | None  # usual rows of a minibatch if the bound is only estimated
    has_gram: bool = False  # whether the covariance of f between rows is a kernel's
    are_rows: bool = False  # whether all points are chosen from the rows


class FeatureBuilder(Protocol):
    """Builds the features of a variational model, and describes them before they are built."""

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
        """Points that were asked for."""

    @property
    def n_orthogonal(self) -> int | str:
        """The same of orthogonal ones."""

    @property
    def sees_inputs(self) -> bool:
        """Whether the kernel's inputs are the rows of X."""

    @property
    def chooses_inputs(self) -> bool:
        """Whether it has to be learned which columns of X matter."""

    def n_choices(self, n_rows: int, n_features: int) -> int:
        """How many points there are to choose from, of so many rows."""

    @property
    def steps(self) -> tuple[int, int, int]:
        """Steps of "auto": at least; times rows over those of a minibatch; at most."""

    def sizes(
        self, sizes: Sizes, n_untrained: int, recipe: Any, start: Start | None
    ) -> FeatureSizes:
        """How many points there are; a ValueError where parameters do not agree."""

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """The scaling between the user's X and the features'."""

    def build(
        self, problem: Problem, likelihood: Likelihood, n_latents: int, fitted: SparseModel | None
    ) -> Any:
        """P, before training, or where a fitted model left it."""

    def place(self, features: Any, problem: Problem) -> None:
        """Move points to where they start with a kernel that has been learned."""

    def set_trainable(self, features: Any, n_rows: int, learns_variance: bool) -> None:
        """Train what is to be trained of the features."""

    def fitted_kernel(self, features: Any, x_scaling: Scaling) -> sk.Kernel:
        """The kernel, for the user's X."""

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        """Points and all else that is the builder's own, in the user's units."""

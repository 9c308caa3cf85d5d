"""Build features of inducing points, with or without orthogonal points, and choose their number.

The builder is for :class:`~skgpstoch.training.recipes.variational.VariationalRecipe`. With
orthogonal points, q(f) is that of SOLVE-GP or ODVGP; without them, that of SVGP.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ... import kernels
from ...data.arrays import Scaling, named_array
from ...likelihoods.base import Likelihood
from ...likelihoods.counts import prior_variance_limit
from ...likelihoods.real import Gaussian
from ...models.features.inducing import Covariances, InducingFeatures
from ...models.features.orthogonal import DecoupledFeatures, OrthogonalFeatures
from ...models.sparse import SparseModel
from .feature_builder import STEPS, USUAL_BATCH, FeatureSizes
from .fitted import Fitted
from .kernel_choice import KernelChoice, in_units, input_unit, make_kernel
from .networks import Network, build_network
from .plan import OfParameters, Sizes, Start, given_number, positive_integers
from .points import (
    arrays_of_points,
    choose_points,
    fitted_points,
    scaled_points,
    unit_of_kernel,
)
from .recipe import Problem
from .variational_plan import VariationalChoices

MAX_INDUCING = 512  # most points for "auto"; half if not Gaussian, and half again for few rows
HALVED_ROWS = 1000  # up to so many rows, "auto" is half of that
HALVED_SHARED_ROWS = 2000  # the same if there are orthogonal points and L-BFGS sees all rows
ALL_POINTS, ALL_SITES = 512, 256  # up to so many rows, all are points (Gaussian noise; others)
FEW_POINTS = 20
ROWS_PER_POINT = 4  # at least, for "auto", if q's covariance is learned by gradients
MOST_COLUMNS = 256  # columns per step of a decoupled mean's divergence; M if that is more


@dataclass(frozen=True, kw_only=True)
class InducingBuilder(OfParameters):
    """Base class of inducing-point builders: how many points there are, and which are trained.

    `kernel` is the kernel k and the noise. All other fields are parameters of estimators, which
    :mod:`skgpstoch.estimators.parameters` documents: `points` is `inducing_points`, and `learned`
    is `learn_inducing_points`.
    """

    kernel: KernelChoice
    n_inducing: int | str = "auto"
    points: Any = "kmeans"
    learned: bool = True
    posterior: str = "svgp"
    n_orthogonal: int | str = "auto"
    sets: tuple[int, ...] = ()  # sizes of the sets of orthogonal points, if there are several
    orthogonal_points: Any = None
    whiten: bool = True

    steps = STEPS

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        """Take the fields that are not in `decided` from an estimator's parameters."""
        p = parameters
        made = {
            "kernel": KernelChoice.of(p.kernel),
            "points": p.inducing_points,
            "learned": p.learn_inducing_points,
        }
        asked = getattr(p, "n_orthogonal", "auto")
        if isinstance(asked, Sized) and not isinstance(asked, str):
            made["sets"] = sets = positive_integers("n_orthogonal", asked)
            made["n_orthogonal"] = sum(sets)
        return super().of(p, **made | decided)

    # ---- what is known before ----------------------------------------------------------------

    @property
    def network(self) -> Network | None:
        return None

    @property
    def is_orthogonal(self) -> bool:
        """Whether there are orthogonal points."""
        return self.posterior != "svgp"

    @property
    def is_decoupled(self) -> bool:
        """Whether the mean at orthogonal points is learned as coefficients of kernel functions."""
        return self.posterior == "odvgp" and not self.whiten

    @property
    def has_gram(self) -> bool:
        """Whether the covariance of f between rows is that of a kernel of the inputs."""
        return False

    @property
    def method(self) -> str:
        """How to choose points that are not given."""
        return self.points if isinstance(self.points, str) else "kmeans"

    @property
    def sees_inputs(self) -> bool:
        return self.network is None

    @property
    def chooses_inputs(self) -> bool:
        return True

    def n_choices(self, n_rows: int, n_features: int) -> int:
        return n_rows

    def sizes(
        self, sizes: Sizes, n_untrained: int, recipe: VariationalChoices, start: Start | None
    ) -> FeatureSizes:
        self.check()
        M, M2 = 0, 0
        if not (sizes.streams and start):  # a stream keeps the fitted points
            M, M2 = self.n_points(sizes, n_untrained, recipe, start)
        needed = USUAL_BATCH if self.is_decoupled else None
        are_rows = isinstance(self.points, str) and not self.is_orthogonal
        return FeatureSizes(M, M2, needed, self.has_gram and not sizes.streams, are_rows)

    def check(self) -> None:
        """Raise a ValueError where parameters do not agree."""
        if self.is_decoupled and self.sets:
            raise ValueError(
                "n_orthogonal must be a number with posterior='odvgp' and whiten=False, "
                f"which has one mean for all points, got {self.sets}."
            )
        if self.is_orthogonal:
            return
        given = {"n_orthogonal": self.n_orthogonal, "orthogonal_points": self.orthogonal_points}
        for name, value in given.items():
            if value is not None and not (isinstance(value, str) and value == "auto"):
                raise ValueError(
                    f"{name} must have its default value with posterior='svgp', which has "
                    "no orthogonal points. Use posterior='solve' or 'odvgp'."
                )

    def n_points(
        self, sizes: Sizes, n_untrained: int, recipe: VariationalChoices, start: Start | None
    ) -> tuple[int, int]:
        """Return M and M₂."""
        n = sizes.n_rows - n_untrained
        if start is not None:
            features = start.posterior.model.features
            M = start.number("n_inducing", self.n_inducing, len(features.points))
            return M, self.n_fitted_orthogonal(features, start) if self.is_orthogonal else 0
        if isinstance(self.points, str):
            takes_all = self.has_gram and recipe.takes_all_rows
            M = n_inducing(self.n_inducing, n, recipe, self.is_orthogonal, takes_all)
        else:
            given = len(named_array(self.points, "inducing_points"))
            M = given_number(self.n_inducing, "n_inducing", given)
        if not self.is_orthogonal:
            return M, 0
        if self.orthogonal_points is not None:
            given = len(named_array(self.orthogonal_points, "orthogonal_points"))
            return M, given_number(self.n_orthogonal, "n_orthogonal", given)
        return M, n_orthogonal(self.n_orthogonal, n, M)

    def n_fitted_orthogonal(self, features: Any, start: Start) -> int:
        """Return M₂ of a fitted model."""
        others = getattr(features, "others", None)
        if others is None:
            raise ValueError(
                "warm_start=True continues a model without orthogonal points, but the "
                "parameters now ask for some. Set them back, or fit with warm_start=False."
            )
        if self.sets or len(features.blocks) > 2:
            start.check_unchanged(("n_orthogonal",))
        return start.number("n_orthogonal", self.n_orthogonal, len(others))

    # ---- features ----------------------------------------------------------------------------

    def start_points(
        self,
        choose: Callable[[int], Tensor],
        given: Sequence[Tensor | None],
        n_rows: int,
        problem: Problem,
    ) -> tuple[Tensor, Tensor | None]:
        """Return inducing points Z and orthogonal points O, given or chosen from the rows.

        If neither is given and there are enough rows, choose one set and split it into Z and O.

        Parameters
        ----------
        choose : callable
            Number of points ↦ points, or fewer if there are no more.
        given : sequence of (Tensor or None)
            Z and O, or Z alone; None for points that are not given.
        n_rows : int
            Number of rows to choose from.
        problem : Problem
            Its plan has M and M₂. O is None if M₂ = 0, or if only one point can be chosen.
        """
        M, M2 = problem.plan.n_inducing, problem.plan.n_orthogonal
        points, others = (*given, None)[:2]
        if M2 and points is None and others is None and n_rows >= M + M2:
            both = choose(M + M2)
            if len(both) == 1:
                return both, None
            if self.method != "conditional_variance":  # its first points are the best: they are Z
                generator = problem.generator
                both = both[torch.randperm(len(both), generator=generator, device=both.device)]
            M = min(M, max(1, len(both) * M // (M + M2)))
            return both[:M], both[M:]
        points = choose(M) if points is None else points
        if not M2:
            return points, None
        return points, choose(M2) if others is None else others

    def points_of_rows(
        self,
        problem: Problem,
        kernel: kernels.Kernel,
        network: nn.Module,
        fitted: SparseModel | None = None,
        unit: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return Z and O, from the last fit, from the parameters or chosen from the rows."""
        if fitted is not None:
            given = fitted_points(fitted.features, problem.X)
        else:
            given = [
                scaled_points("inducing_points", self.points, problem),
                scaled_points("orthogonal_points", self.orthogonal_points, problem),
            ]
        return self.chosen_rows(problem, kernel, network, given, unit)

    def chosen_rows(
        self,
        problem: Problem,
        kernel: kernels.Kernel,
        network: nn.Module,
        given: Sequence[Tensor | None],
        unit: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return Z and O, given or chosen from the rows, with distances measured in `unit`."""
        X, generator, weight = problem.X, problem.generator, problem.rows.weight

        def choose(n_points: int) -> Tensor:
            return choose_points(self.method, X, n_points, kernel, network, generator, weight, unit)

        return self.start_points(choose, given, len(X), problem)

    @torch.no_grad()
    def place(self, features: Any, problem: Problem) -> None:
        """Choose points by distances in units of length-scales, and learn them in these units.

        The bound then has similar curvature in all coordinates of points. *Measured*: L-BFGS needs
        a third of the evaluations (kin40k, 2,000 rows).
        """
        unit = unit_of_kernel(features.kernel, input_unit(problem.X, problem.rows))
        both = self.points_of_rows(problem, features.kernel, features.network, unit=unit)
        features.unit.copy_(unit)
        for parameter, points in zip(features.coordinates(), both, strict=False):
            parameter.copy_(cast(Tensor, points) / unit)

    def set_trainable(self, features: Any, n_rows: int, learns_variance: bool) -> None:
        if self.kernel.expression is None and not learns_variance:
            features.kernel.k1.requires_grad_(False)  # else it would grow without limit
        features.learn_points(self.learned and len(features.points) < n_rows)

    # ---- fitted ------------------------------------------------------------------------------

    def fitted_kernel(self, features: Any, x_scaling: Scaling) -> sk.Kernel:
        fitted: Any = kernels.to_sklearn(features.kernel)
        if self.kernel.expression is None and not list(features.network.parameters()):
            scale = x_scaling.scale
            in_units(fitted.k2, scale if np.ndim(fitted.k2.length_scale) else scale[0])
        return fitted


@dataclass(frozen=True, kw_only=True)
class InducingPoints(InducingBuilder):
    """Inducing points, with or without orthogonal points, and with or without a network below."""

    network: Network | None = None

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        p, network = parameters, None
        if hasattr(p, "hidden_layer_sizes"):
            network = Network.of(p.hidden_layer_sizes, p.feature_map, p.weight_decay)
        return super().of(p, **{"network": network} | decided)

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        if self.network is not None:
            return self.network.input_scaling(X, weight)
        return self.kernel.input_scaling(X, weight, standardizes=True)

    @property
    def has_gram(self) -> bool:
        given = self.kernel.expression
        is_white = given is not None and kernels.contains(given, sk.WhiteKernel)
        return self.network is None and not (is_white or self.is_decoupled)

    def build(
        self, problem: Problem, likelihood: Likelihood, n_latents: int, fitted: SparseModel | None
    ) -> InducingFeatures:
        X, rows = problem.X, problem.rows
        network: nn.Module = nn.Sequential()
        width = X.shape[1]
        if self.network is not None:
            network, width = build_network(self.network, X, problem.generator)
        network = network.eval()
        most = prior_variance_limit(likelihood, rows)
        kernel = make_kernel(self.kernel.expression, network, X, rows, most)
        # If points are placed again after the kernel is learned, any rows do until then.
        plan = problem.plan
        are_placed = plan.start_rows and not plan.only_scales and isinstance(self.points, str)
        chooser = replace(self, points="random") if are_placed else self
        points, unit = chooser.points_of_rows(problem, kernel, network, fitted), input_unit(X, rows)
        kind = self.is_decoupled, network, self.sets
        return make_features(kernel, points, unit, width, n_latents, *kind)

    def set_trainable(self, features: Any, n_rows: int, learns_variance: bool) -> None:
        super().set_trainable(features, n_rows, learns_variance)
        if self.network is not None:
            self.network.freeze(features.network)

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        points = arrays_of_points(fitted.posterior.model.features)
        offset, scale = fitted.x_scaling
        names = ("inducing_points_", "orthogonal_points_")
        return {name: p * scale + offset for name, p in zip(names, points, strict=False)}


# ---- how many ------------------------------------------------------------------------------------


def n_inducing(
    asked: int | str,
    n_trained: int,
    recipe: VariationalChoices,
    shares: bool,
    takes_all: bool = False,
) -> int:
    """Return M, at most the number of rows.

    Parameters
    ----------
    asked : int or "auto"
        The parameter.
    n_trained : int
        Distinct rows to train on.
    recipe : VariationalChoices
        The likelihood and how q's covariance is found.
    shares : bool
        Whether orthogonal points need rows of their own.
    takes_all : bool, default=False
        Whether all rows may be points if they are few.
    """
    if asked != "auto":
        return min(int(asked), n_trained)
    conjugate = isinstance(recipe.likelihood, Gaussian)
    few = HALVED_SHARED_ROWS if shares and takes_all and conjugate else HALVED_ROWS
    most = MAX_INDUCING // (1 if conjugate else 2) // (1 if n_trained > few else 2)
    if recipe.covariance == "gradient":  # then S has M²/2 parameters to learn
        most = min(most, max(FEW_POINTS, n_trained // ROWS_PER_POINT))
    if takes_all and not shares and n_trained <= (ALL_POINTS if conjugate else ALL_SITES):
        return n_trained
    M = min(most, n_trained)
    return min(M, max(1, n_trained // 2)) if shares else M


def n_orthogonal(asked: int | str, n_trained: int, M: int) -> int:
    """Return M₂, the number of orthogonal points besides M inducing points."""
    if asked == "auto":
        return min(M, max(1, n_trained - M))
    return min(int(asked), n_trained)


def shares_of(n_points: int, sets: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of points in each set: `sets`, or in proportion if points are fewer."""
    ends = [n_points * end // sum(sets) for end in itertools.accumulate(sets, initial=0)]
    return tuple(b - a for a, b in itertools.pairwise(ends))


def make_features(
    kernel: kernels.Kernel | Covariances,
    both: tuple[Tensor, Tensor | None],
    unit: Tensor,
    width: int,
    n_outputs: int,
    decoupled: bool = False,
    network: nn.Module | None = None,
    sets: tuple[int, ...] = (),
) -> InducingFeatures:
    """Make the features of points Z, and O if there are any; see :class:`InducingFeatures`.

    If `sets` is given, O is split into sets of these sizes, or in proportion if O has fewer points.
    """
    points, others = both
    arguments = (kernel, nn.Identity() if network is None else network, points, unit, width)
    if others is None:
        return InducingFeatures(*arguments)
    if not decoupled:
        sizes = shares_of(len(others), sets) if sets else None
        return OrthogonalFeatures(*arguments, orthogonal_points=others, sizes=sizes)
    n_columns = max(len(points), MOST_COLUMNS)
    return DecoupledFeatures(
        *arguments, orthogonal_points=others, n_outputs=n_outputs, n_columns=n_columns
    )

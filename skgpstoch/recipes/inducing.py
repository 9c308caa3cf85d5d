"""Inducing points, of one kind or two: how many, where they start, and their features.

A builder for :class:`~skgpstoch.recipes.variational.VariationalRecipe`. With orthogonal points
beside the others q is that of SOLVE-GP or ODVGP, else that of SVGP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from .. import kernels
from ..data.arrays import Scaling, named_array
from ..data.rows import Rows
from ..features.inducing import Covariances, InducingFeatures
from ..features.orthogonal import DecoupledFeatures, OrthogonalFeatures
from ..likelihoods.base import Likelihood
from ..likelihoods.real import Gaussian
from ..maths.pivoted_cholesky import pivoted_cholesky
from ..models.sparse import SparseModel
from .feature_builder import STEPS, USUAL_BATCH, FeatureSizes
from .networks import build_network
from .recipe import (
    Fitted,
    KernelChoice,
    Network,
    OfParameters,
    Problem,
    Sizes,
    Start,
    given_number,
    in_units,
)
from .variational import VariationalRecipe

INITIALIZATIONS = ("kmeans", "conditional_variance", "random")
CANDIDATE_ROWS = 20  # rows that inducing points are chosen from, for each point
MAX_INDUCING = 512  # of "auto"; half of it unless q(w) is known, half of it for few rows
HALVED_ROWS = 1000  # up to which "auto" is half of that
HALVED_SHARED_ROWS = 2000  # the same beside as many orthogonal points, where L-BFGS sees all rows
ALL_POINTS, ALL_SITES = 512, 256  # rows up to which all are points: of Gaussian noise; of others
FEW_POINTS = 20
ROWS_PER_POINT = 4  # at least, of "auto", where q's covariance is learned by gradients
SCALE_ROWS = 2000  # that the default kernel's length-scales and the units of points start from
UNITS = 10.0  # standard deviations of a column, beyond which a length-scale is no unit of points
MOST_COLUMNS = 256  # of a decoupled mean's divergence that a step looks at, or M if that is more


@dataclass(frozen=True, kw_only=True)
class InducingBuilder(OfParameters):
    """What builders of inducing points share: how many there are, and what is trained of them.

    The kernel is k, and the noise. All else are parameters of estimators, as their groups
    (:mod:`skgpstoch.estimators.parameters`) document them: `points` is `inducing_points`, and
    `learned` is `learn_inducing_points`.
    """

    kernel: KernelChoice
    n_inducing: int | str = "auto"
    points: Any = "kmeans"
    learned: bool = True
    posterior: str = "svgp"
    n_orthogonal: int | str = "auto"
    orthogonal_points: Any = None
    whiten: bool = True

    steps = STEPS

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        """Take what is not decided here from an estimator's parameters."""
        p = parameters
        made = {
            "kernel": KernelChoice.of(p.kernel),
            "points": p.inducing_points,
            "learned": p.learn_inducing_points,
        }
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
        """Whether the mean at orthogonal points is learned by coefficients of kernel functions."""
        return self.posterior == "odvgp" and not self.whiten

    @property
    def has_gram(self) -> bool:
        """Whether the covariance of f between rows is that of a kernel of the inputs."""
        return False

    @property
    def method(self) -> str:
        """How points are chosen that are not given."""
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
        self, sizes: Sizes, n_untrained: int, recipe: VariationalRecipe, start: Start | None
    ) -> FeatureSizes:
        self.check()
        M, M2 = 0, 0
        if not (sizes.streams and start):  # which goes on with the points that there are
            M, M2 = self.n_points(sizes, n_untrained, recipe, start)
        needed = USUAL_BATCH if self.is_decoupled else None
        are_rows = isinstance(self.points, str) and not self.is_orthogonal
        return FeatureSizes(M, M2, needed, self.has_gram and not sizes.streams, are_rows)

    def check(self) -> None:
        """Raise a ValueError where parameters do not agree."""
        if self.is_orthogonal:
            return
        given = {"n_orthogonal": self.n_orthogonal, "orthogonal_points": self.orthogonal_points}
        for name, value in given.items():
            if value is not None and not (isinstance(value, str) and value == "auto"):
                raise ValueError(
                    f"{name} must be left as it is with posterior='svgp', which has no orthogonal "
                    "points; posterior='solve' and 'odvgp' have."
                )

    def n_points(
        self, sizes: Sizes, n_untrained: int, recipe: VariationalRecipe, start: Start | None
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
            M = given_number(self.n_inducing, "n_inducing", len(self.points))
        if not self.is_orthogonal:
            return M, 0
        if self.orthogonal_points is not None:
            given = len(self.orthogonal_points)
            return M, given_number(self.n_orthogonal, "n_orthogonal", given)
        return M, n_orthogonal(self.n_orthogonal, n, M)

    def n_fitted_orthogonal(self, features: Any, start: Start) -> int:
        """Return M₂ of a fitted model."""
        others = getattr(features, "others", None)
        if others is None:
            raise ValueError(
                "warm_start=True goes on from a model without orthogonal points, but they are "
                "asked for now; set that back, or fit with warm_start=False."
            )
        return start.number("n_orthogonal", self.n_orthogonal, len(others))

    # ---- features ----------------------------------------------------------------------------

    def start_points(
        self,
        choose: Callable[[int], Tensor],
        given: Sequence[Tensor | None],
        n_rows: int,
        problem: Problem,
    ) -> tuple[Tensor, Tensor | None]:
        """Return Z and O: where neither is given, two parts of one set if there are rows for it.

        Parameters
        ----------
        choose : callable
            Number of points ↦ points, or fewer where there are no more.
        given : sequence of (Tensor or None)
            Z, and O if there is any, where they are.
        n_rows : int
            Rows to choose from.
        problem : Problem
            Plans M and M₂; of 0, or of a single point to choose, there is no O.
        """
        M, M2 = problem.plan.n_inducing, problem.plan.n_orthogonal
        points, others = (*given, None)[:2]
        if M2 and points is None and others is None and n_rows >= M + M2:
            both = choose(M + M2)
            if len(both) == 1:
                return both, None
            if self.method != "conditional_variance":  # of which the first ones, the best, are Z
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
        """Return Z and O: those of the last fit, the parameters', or chosen from the rows."""
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
        """Return Z and O where they are given, or chosen from the rows, in some unit."""
        X, generator, weight = problem.X, problem.generator, problem.rows.weight

        def choose(n_points: int) -> Tensor:
            return choose_points(self.method, X, n_points, kernel, network, generator, weight, unit)

        return self.start_points(choose, given, len(X), problem)

    @torch.no_grad()
    def place(self, features: Any, problem: Problem) -> None:
        """Choose points by distances in length-scales, in whose units they are learned.

        *Measured*: L-BFGS comes as far in a third of the evaluations (kin40k, 2,000 rows), as all
        coordinates of points then curve the bound alike.
        """
        unit = unit_of_kernel(features.kernel, input_unit(problem.X, problem.rows))
        both = self.points_of_rows(problem, features.kernel, features.network, unit=unit)
        features.unit.copy_(unit)
        for parameter, points in zip(features.coordinates(), both, strict=False):
            parameter.copy_(cast(Tensor, points) / unit)

    def set_trainable(self, features: Any, n_rows: int, learns_variance: bool) -> None:
        if self.kernel.expression is None and not learns_variance:
            features.kernel.k1.requires_grad_(False)  # more of it would fit ever better
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
    """Inducing points, and orthogonal ones beside them, with or without a network below."""

    network: Network | None = None

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        p = parameters
        network = Network.of(p.hidden_layer_sizes, p.activation, p.feature_map, p.weight_decay)
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
        most = likelihood.most_prior_variance
        kernel = make_kernel(self.kernel.expression, network, X, rows, most)
        # Points that are placed once the kernel is learned may be any rows until then.
        are_placed = problem.plan.start_rows and isinstance(self.points, str)
        chooser = replace(self, points="random") if are_placed else self
        points, unit = chooser.points_of_rows(problem, kernel, network, fitted), input_unit(X, rows)
        return make_features(kernel, points, unit, width, n_latents, self.is_decoupled, network)

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
    recipe: VariationalRecipe,
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
    recipe : VariationalRecipe
        Says what is trained for.
    shares : bool
        Whether orthogonal points want rows of their own.
    takes_all : bool, default=False
        Whether few rows may all be points.
    """
    if asked != "auto":
        return min(int(asked), n_trained)
    conjugate = isinstance(recipe.likelihood, Gaussian)
    few = HALVED_SHARED_ROWS if shares and takes_all and conjugate else HALVED_ROWS
    most = MAX_INDUCING // (1 if conjugate else 2) // (1 if n_trained > few else 2)
    if recipe.covariance == "gradient":  # of which S has M²/2 parameters
        most = min(most, max(FEW_POINTS, n_trained // ROWS_PER_POINT))
    if takes_all and not shares and n_trained <= (ALL_POINTS if conjugate else ALL_SITES):
        return n_trained
    M = min(most, n_trained)
    return min(M, max(1, n_trained // 2)) if shares else M


def n_orthogonal(asked: int | str, n_trained: int, M: int) -> int:
    """Return M₂ beside M points; as :func:`n_inducing`."""
    if asked == "auto":
        return min(M, max(1, n_trained - M))
    return min(int(asked), n_trained)


# ---- where they start ----------------------------------------------------------------------------


def scaled_points(name: str, points: Any, problem: Problem) -> Tensor | None:
    """Return a user's points, scaled as X is; None where there are none.

    Raises
    ------
    ValueError
        If they are not points like the rows of X.
    """
    if points is None or isinstance(points, str):
        return None
    X = problem.X
    points = named_array(points, name)
    if points.shape[1] != X.shape[1]:
        raise ValueError(f"{name} must have {X.shape[1]} columns, as X has, got {points.shape[1]}.")
    return problem.x_scaling.tensor(points, X.dtype, X.device)


def fitted_points(features: Any, X: Tensor) -> list[Tensor | None]:
    """Return the points of fitted features, where X is."""
    return [points.detach().to(X) for points in features.all_points()]


def arrays_of_points(features: InducingFeatures) -> list[np.ndarray]:
    """Return every set of points as an array."""
    return [points.detach().double().numpy() for points in features.all_points()]


@torch.no_grad()
def choose_points(
    method: str,
    X: Tensor,
    n_points: int,
    kernel: kernels.Kernel,
    network: nn.Module,
    generator: torch.Generator,
    weight: Tensor | None = None,
    unit: Tensor | None = None,
) -> Tensor:
    """Inducing points from the rows X (N, d), N ≥ n_points: (n_points, d).

    Parameters
    ----------
    method : {"kmeans", "conditional_variance", "random"}
        Centres of clusters; rows, each of which is the one of largest variance given those before
        it (Burt, Rasmussen & van der Wilk, 2020); or random rows. As many points as rows are the
        rows themselves.
    X : Tensor of shape (N, d)
        Rows in random order.
    n_points : int
        M.
    kernel, network : Kernel and nn.Module
        k and g, for "conditional_variance".
    generator : torch.Generator
        For "kmeans".
    weight : Tensor of shape (N,) or None, default=None
        How often each row counts, for "kmeans".
    unit : Tensor of shape (d,) or None, default=None
        Scale of each column, for "kmeans"; None is its standard deviation.
    """
    candidates = X[: max(CANDIDATE_ROWS * n_points, 2000)]
    if n_points == len(X) or method == "random":
        return X[:n_points].clone()
    if method == "conditional_variance":
        G = network(candidates).reshape(len(candidates), -1)
        return candidates[largest_conditional_variances(kernel, G, n_points)]
    rows = candidates.cpu().double().numpy()
    counts = None if weight is None else weight[: len(rows)].cpu().double().numpy()
    offset, scale = Scaling.standard(rows, counts)
    scale = scale if unit is None else unit.cpu().double().numpy()
    centres = centres_of_clusters((rows - offset) / scale, n_points, generator, counts)
    return torch.from_numpy(centres * scale + offset).to(X)


def centres_of_clusters(
    rows: np.ndarray, n_clusters: int, generator: torch.Generator, counts: np.ndarray | None = None
) -> np.ndarray:
    """Of k-means on rows (N, d), each of which counts for some: (n_clusters, d)."""
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    kmeans = MiniBatchKMeans(
        n_clusters, init="random", n_init=1, max_iter=10, batch_size=4096, random_state=seed
    )
    # Of fewer distinct rows than points this one does not warn: no filter, which threads share.
    return kmeans.fit(rows, sample_weight=counts).cluster_centers_


def largest_conditional_variances(kernel: kernels.Kernel, X: Tensor, n_points: int) -> Tensor:
    """Pivots of an incomplete Cholesky decomposition of k(X, X), O(N·M²): indices (n_points,)."""
    X = X.double()
    _, pivots = pivoted_cholesky(kernel.diag(X), lambda i: kernel(X[i][None], X)[0], n_points)
    return pivots


# ---- features and kernels ------------------------------------------------------------------------


def make_features(
    kernel: kernels.Kernel | Covariances,
    both: tuple[Tensor, Tensor | None],
    unit: Tensor,
    width: int,
    n_outputs: int,
    decoupled: bool = False,
    network: nn.Module | None = None,
) -> InducingFeatures:
    """Make P of Z, and O if there is any, as :class:`InducingFeatures` has the arguments."""
    points, others = both
    arguments = (kernel, nn.Identity() if network is None else network, points, unit, width)
    if others is None:
        return InducingFeatures(*arguments)
    if not decoupled:
        return OrthogonalFeatures(*arguments, orthogonal_points=others)
    n_columns = max(len(points), MOST_COLUMNS)
    return DecoupledFeatures(
        *arguments, orthogonal_points=others, n_outputs=n_outputs, n_columns=n_columns
    )


def input_unit(X: Tensor, rows: Rows) -> Tensor:
    """Return the standard deviation of each column, 1 where it is constant."""
    some = X[:SCALE_ROWS].cpu().double().numpy()  # rows are in random order
    weight = None if rows.weight is None else rows.weight[:SCALE_ROWS].cpu().double().numpy()
    return torch.from_numpy(Scaling.standard(some, weight).scale).to(X)


def unit_of_kernel(kernel: kernels.Kernel, most: Tensor) -> Tensor:
    """Return the shortest length-scale of each column, at most so many of another unit, (d,)."""
    shapes = (kernels.Radial, kernels.RationalQuadratic)
    parts = [part for part in kernel.modules() if isinstance(part, shapes)]
    unit = UNITS * most if parts else most
    for part in parts:
        unit = torch.minimum(unit, part.length_scale.detach().to(unit))
    return unit


@torch.no_grad()
def make_kernel(
    expression: sk.Kernel | None, network: nn.Module, X: Tensor, rows: Rows, most_variance: float
) -> kernels.Kernel:
    """Make k on the network's outputs: an expression's, or the default, started from these."""
    if expression is None:
        G = network.eval()(X[:SCALE_ROWS])
        G = G.reshape(-1, G.shape[-1])
        if rows.weight is None:
            spread = G.double().std(0, correction=0)
        else:
            some, G = rows[:SCALE_ROWS], G.double()
            spread = some.mean((G - some.mean(G)).square()).sqrt()
        varied = spread[spread > 1e-9 * spread.max()]  # half of all columns may be constant
        usual = (varied if len(varied) else torch.ones_like(spread)).median()
        # Of a column that hardly varies among these rows, others may lie far away.
        scale = torch.where(spread < 0.1 * usual, usual, spread) * (0.5 * math.sqrt(G.shape[1]))
        shape = sk.Matern(scale.cpu().numpy(), (1e-5, 1e5), nu=1.5)
        expression = sk.ConstantKernel(1.0, (1e-5, most_variance)) * shape
    return kernels.from_sklearn(expression).to(X.device)


def named_kernel(name: str, expression: sk.Kernel, n_inputs: int, inputs: str) -> kernels.Kernel:
    """Make the kernel of a parameter, for `inputs` that are `n_inputs` numbers; without noise.

    Raises
    ------
    ValueError
        If it is not a kernel for these; it says which parameter it is of.
    """
    try:
        kernel = kernels.from_sklearn(expression)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    for part in kernel.modules():
        if isinstance(part, kernels.WhiteNoise):
            raise ValueError(
                f"{name} must be without a WhiteKernel, got {expression}: noise is that of the "
                "likelihood, or a term of kernel at its top level."
            )
        n_scales = getattr(part, "length_scale", torch.ones(1, device="cpu")).numel()
        if n_scales not in (1, n_inputs):
            raise ValueError(
                f"{name}: a length_scale has {n_scales} entries, but {inputs} has {n_inputs} "
                f"numbers, got {expression}."
            )
    return kernel

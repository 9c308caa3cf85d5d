"""The exact process, locally: each row is conditioned on the training rows nearest to it.

Vecchia, "Estimation and model identification for continuous spatial processes", JRSS B 50, 1988;
Datta, Banerjee, Finley & Gelfand, "Hierarchical nearest-neighbor Gaussian process models for large
geostatistical datasets", JASA 111, 2016. The equations are in :mod:`skgpstoch.maths.conditionals`.
Rows are near if the kernel says so: distances are in its length-scales.
The error of a learned mean is that of :mod:`.mean_error`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...data.arrays import row_blocks
from ...data.devices import BLOCK_ROWS
from ...data.rows import Rows
from ...kernels import Kernel
from ...kernels.expressions import WhiteNoise
from ...likelihoods.base import Likelihood
from ...likelihoods.real import AdditiveNoise
from ...maths.conditionals import Conditional, log_density
from ...maths.gaussian import Marginals, standard_normal
from ...maths.nearest import Nearest, first_where
from .base import Posterior
from .functions import Functions, prior_functions
from .joint import JointErrors
from .mean_error import apart, with_mean_error_again
from .nearby import LEAST_KNOWN, ErrorScale, Given, Widths
from .places import Observed, Places, noise_of_rows, observed
from .sets import Sets, lag, located, set_blocks

Neighbours = TypeVar("Neighbours", bound="NeighbourPosterior")
MOST_IN_BLOCK = 1 << 24  # covariances of a block of sets, of which gradients keep each part's
ENOUGH = 128  # neighbours for a summary of the mean
_found: WeakKeyDictionary[nn.Module, Nearest] = WeakKeyDictionary()  # by posterior
_places: WeakKeyDictionary[nn.Module, Places] = WeakKeyDictionary()  # likewise
_joint: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()  # the log evidence
TINIEST = torch.finfo(torch.float64).tiny
NEXT_TO_NOTHING = 1e-9  # share of the noise below which known variances are rounding


def forget_targets(posterior: nn.Module) -> None:
    """Let what follows from targets be computed anew when it is next asked for."""
    _joint.pop(posterior, None)
    _places.pop(posterior, None)


def knows_joint(posterior: nn.Module | None) -> bool:
    """Tell whether the log evidence has been computed."""
    return posterior in _joint


def differs_by_row(kernel: Kernel) -> bool:
    """Tell whether f differs between rows at one place: by white noise within a product."""
    return any(isinstance(part, WhiteNoise) for part in kernel.modules())


def columns_of(
    X: Tensor, rows: Rows, network: nn.Module, mean: Tensor, noise: Tensor
) -> dict[str, Tensor]:
    """Return what is kept of training rows."""
    w = rows.y.new_ones(len(X)) if rows.weight is None else rows.weight.to(rows.y)
    D = noise_of_rows(noise, rows)
    G, r = network(X), rows.y - mean
    inputs = X[:, :0] if G is X else X  # which no file needs twice
    return {"inputs": inputs, "features": G, "residual": r, "noise": D, "weight": w}


def appended(posterior: Neighbours, X: Tensor, rows: Rows) -> Neighbours:
    """Return a posterior that keeps more rows, but for what follows from all of them."""
    p, other = posterior, copy.copy(posterior)
    other._buffers = dict(p._buffers)
    new = columns_of(X, rows, p.network, p.constant, p.variance)
    for name, value in new.items():
        other._buffers[name] = torch.cat([getattr(p, name), value])
    other._n_rows = p.n_rows + rows.n_effective
    return other


def observed_residuals(posterior: NeighbourPosterior) -> tuple[Tensor, Observed]:
    """Return the features of the places whose densities count, and the residuals there."""
    p, w = posterior, posterior.weight
    known = p.noise * w[:, None] - p.variance
    known = known.where(known.abs() > NEXT_TO_NOTHING * p.variance, 0.0)
    rows = Rows(p.residual, weight=w, noise=known if bool(known.any()) else None)
    if differs_by_row(p.kernel):
        return p.features, Observed(rows)
    first, seen = observed(p.X, rows)
    return p.features[first], seen


def lag_of(posterior: NeighbourPosterior) -> Tensor | None:
    """Return by how much places are farther because of their noise, (q,)."""
    places = posterior.places
    if not posterior.noise_counts:
        return None
    return lag(posterior.kernel, places.G, places.D, places.weight * places.n_rows)


def size_of_sets(posterior: NeighbourPosterior) -> int:
    """Return the number of a row and its neighbours."""
    return min(posterior.n_neighbors, len(posterior.residual)) + 1


class NeighbourPosterior(Posterior):
    """p(f | y_N) at each row, with the m nearest training rows N, for y = c + f(g(x)) + ε.

    Parameters
    ----------
    kernel : Kernel
        The kernel on the features g(x).
    network : nn.Module
        The features g: (N, d) → (N, e).
    likelihood : AdditiveNoise
        p(y | f) of new rows.
    mean : Tensor of shape (P,)
        The constant c, known until :func:`.with_mean_error` tells its error.
    X, rows : Tensor of shape (N, d) and Rows
        The training rows, in float64.
    noise : Tensor of shape (P,)
        σ².
    n_neighbors, n_joint : int
        m of predictions, and of the joint density of all rows.
    is_approximate : bool, default=False
        Whether the search for neighbours may miss some.
    """

    noise_counts = True  # in the choice of neighbours
    most_mean_variance: Any = math.inf  # of the mean, given the first row's f
    share_of_variance = 0.0  # by which the mean's expectation is below the likeliest mean
    inputs: Tensor
    features: Tensor
    residual: Tensor
    noise: Tensor
    weight: Tensor
    constant: Tensor
    variance: Tensor
    mean_variance: Tensor

    def __init__(
        self,
        kernel: Kernel,
        network: nn.Module,
        likelihood: AdditiveNoise,
        mean: Tensor,
        X: Tensor,
        rows: Rows,
        noise: Tensor,
        n_neighbors: int,
        n_joint: int,
        is_approximate: bool = False,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.network = network
        self.likelihood = likelihood
        self.n_neighbors = n_neighbors
        self.n_joint = n_joint
        self.is_approximate = is_approximate
        self._n_rows = rows.n_effective
        self.spread: ErrorScale | None = None  # F
        with torch.no_grad():
            given = columns_of(X, rows, network, mean, noise)
        given |= {"constant": mean, "variance": noise, "mean_variance": torch.zeros_like(mean)}
        for name, value in given.items():
            self.register_buffer(name, value.detach().clone())

    @property
    def X(self) -> Tensor:
        """The training rows, (N, d)."""
        return self.inputs if self.inputs.shape[1] else self.features

    @property
    def y(self) -> Tensor:
        """Their targets, (N, P)."""
        return self.residual + self.constant

    @property
    def block_rows(self) -> int:
        return max(1, min(BLOCK_ROWS, MOST_IN_BLOCK // size_of_sets(self) ** 2))

    @property
    def gradient_rows(self) -> int:
        """Fewer if neighbours have more columns than there are neighbours."""
        return max(1, super().gradient_rows // (1 + self.features.shape[1] // size_of_sets(self)))

    @property
    def summary(self) -> NeighbourPosterior:
        return self.with_neighbors(min(self.n_neighbors, ENOUGH))

    @property
    def nearest(self) -> Nearest:
        """Finds neighbours; made when it is needed, and neither saved nor copied."""
        found = _found.get(self)
        if found is None or found.rows.device != self.residual.device:
            rows = self.located(self.places.G), lag_of(self)
            found = _found[self] = Nearest(*rows, self.is_approximate)
        return found

    @property
    def places(self) -> Places:
        """What the training rows tell of f, by distinct places; likewise."""
        found = _places.get(self)
        if found is None or found.G.device != self.residual.device:
            of_rows = self.features, self.noise, self.residual, self.weight
            is_row = differs_by_row(self.kernel)
            found = Places.of_rows(*of_rows) if is_row else Places.merged(self.X, *of_rows)
            _places[self] = found
        return found

    def with_neighbors(
        self, n_neighbors: int, is_approximate: bool | None = None
    ) -> NeighbourPosterior:
        """Return the posterior whose predictions are given so many rows, found in this way."""
        is_approximate = self.is_approximate if is_approximate is None else is_approximate
        if (n_neighbors, is_approximate) == (self.n_neighbors, self.is_approximate):
            return self
        other = copy.copy(self)
        other.n_neighbors, other.is_approximate = n_neighbors, is_approximate
        _places[other] = self.places
        if is_approximate == self.is_approximate:
            _found[other] = self.nearest
        return other

    def located(self, G: Tensor) -> Tensor:
        """Return features in the units in which the kernel falls, (N, e)."""
        return located(self.kernel, G)

    def refit(self, X: Tensor, rows: Rows) -> NeighbourPosterior:
        """Return the posterior given other data, with the same hyper-parameters."""
        likelihood = cast(AdditiveNoise, self.likelihood)
        parts = self.kernel, self.network, likelihood, self.constant
        search = self.n_neighbors, self.n_joint, self.is_approximate
        other = NeighbourPosterior(*parts, X, rows, self.variance, *search)
        return with_mean_error_again(other, self)

    def extended(self, X: Tensor, rows: Rows) -> Self:
        """Return the posterior given more rows, with the same hyper-parameters."""
        return with_mean_error_again(appended(self, X, rows), self)

    # ---- predictions -------------------------------------------------------------------------

    def conditional(self, G: Tensor, N: Tensor, n_errors: int, places: Places) -> Conditional:
        """Return the conditional of f at rows G given places N."""
        none = self.residual.new_zeros(len(G), self.residual.shape[1])
        sets = Sets.of(G, (none, none), places[:3], N)
        return Conditional.of(sets.covariances(self.kernel), sets.D, sets.y, n_errors)

    def said(
        self, c: Conditional, G: Tensor, N: Tensor, places: Places, of_mean: Tensor | float
    ) -> Given:
        """Return what places N say of f at rows G, and the errors there; `of_mean` is var c."""
        k = c.precision.shape[-1]
        near, precision = N[:, :k], c.precision.permute(1, 2, 0)
        w = places.weight[near] * (near >= 0)
        variance = 1.0 / precision + (places.variance - places.D)[near]
        error = c.alpha[..., :k].permute(1, 2, 0) / precision
        sizes = error.abs() / variance.clamp_min(TINIEST).sqrt()
        var, prior = c.var.clamp_min(0.0).mT, self.kernel.diag(G)[:, None]
        odds = var / (prior - var).clamp_min(LEAST_KNOWN * prior)
        h = apart(c).mT
        mean = c.mean.mT + self.constant - self.share_of_variance * of_mean * h
        return Given(mean, var + of_mean * h.square(), c.by_noise.mT, odds, sizes, w)

    def given(
        self,
        G: Tensor,
        N: Tensor,
        n_errors: int = 0,
        places: Places | None = None,
        of_mean: Tensor | float = 0.0,
    ) -> Given:
        """Return f at rows G given places N, with errors of the nearest ones, block by block."""
        n_errors = min(n_errors, N.shape[1])
        places = self.places if places is None else places
        whole: list[Tensor] = []  # small tensors kept from each block would fragment the memory
        for b in set_blocks(len(G), N.shape[1] + 1, G.device):
            c = self.conditional(G[b], N[b], n_errors, places)
            part = self.said(c, G[b], N[b], places, of_mean)
            whole = whole or [each.new_empty(len(G), *each.shape[1:]) for each in part]
            for tensor, rows in zip(whole, part, strict=True):
                tensor[b] = rows
        return Given(*whole)

    def marginals(self, X: Tensor) -> Marginals:
        return self._marginals(X)[0]

    def _marginals(self, X: Tensor) -> tuple[Marginals, Widths | None]:
        """Return q(f), and by which factors its deviations and the noise's are wider."""
        given = self.given_nearest(self.network(X), self.n_errors)
        if self.spread is None:
            return Marginals(given.mean[None], given.var[None]), None
        wider = self.spread(given, self.variance)
        return Marginals(given.mean[None], (wider.of_f.square() * given.var)[None]), wider

    @property
    def n_errors(self) -> int:
        """How many neighbours' errors say how wide predictions are."""
        return 0 if self.spread is None else self.spread.n_errors

    def given_nearest(self, G: Tensor, n_errors: int = 0) -> Given:
        """Return f at rows G given the rows nearest to them."""
        N = self.nearest.of(self.located(G), self.n_neighbors)
        return self.given(G, N, n_errors, of_mean=self.mean_variance)

    def predictive(self, X: Tensor, rows: Rows) -> tuple[Marginals, Likelihood]:
        q, wider = self._marginals(X)
        likelihood = cast(AdditiveNoise, self.likelihood.of(rows))
        return q, likelihood if wider is None else likelihood.scaled(wider.of_noise)

    @torch.no_grad()
    def left_out(self, i: Tensor, n_errors: int = 0) -> Given:
        """Predict f at training rows, each without it; other rows at its place stay."""
        of_rows = self.noise[i], self.residual[i], self.weight[i]
        places, rest = self.places.without(i, *of_rows)
        G, own = self.features[i], places.of_row[i, None]
        N = self.nearest.of(self.located(G), self.n_neighbors + 1)
        N = torch.where(own == N, rest[:, None], N)
        N = first_where(N, N >= 0, min(self.n_neighbors, N.shape[1]))
        return self.given(G, N, n_errors, places, self.mean_variance)

    # ---- the evidence ------------------------------------------------------------------------

    @torch.no_grad()
    def log_evidence(self) -> Tensor:
        """Return Σ log p(y_i | y_N(i)), (P,), with N(i) the nearest among rows before i.

        It is computed when it is first asked for: predictions do without.
        """
        found = _joint.get(self)
        if found is None:
            found = _joint[self] = self.joint()
        return found

    def joint(self) -> Tensor:
        """Compute the log evidence, (P,)."""
        return self.log_joint(self.kernel, self.variance)[0]

    def log_joint(
        self, kernel: Kernel, noise: Tensor, parameters: Sequence[Tensor] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the same for any kernel and σ² (P,).

        Also return the slopes of its sum by parameters on which these depend.
        """
        G, seen = observed_residuals(self)
        every = torch.arange(len(G), device=G.device)
        D, r = seen.means(every, noise)
        beside = cast(Tensor, seen.log_density_about_means(every, noise)).sum(0)
        value, slopes = beside.detach(), slopes_of(beside.sum(), parameters)
        of_noise = lag(kernel, G, D.detach(), seen.total_weight(every))
        nearest = Nearest(located(kernel, G), of_noise, self.is_approximate)
        for block in row_blocks(len(r), BLOCK_ROWS):
            i = every[block]
            N = nearest.earlier(i, min(self.n_joint, len(r) - 1))
            for some in set_blocks(len(i), N.shape[1] + 1, i.device):
                j = i[some]
                sets = Sets.of(G[j], (D[j], r[j]), (G, D, r), N[some])
                K = sets.covariances(kernel)
                found = log_density(K.detach(), sets.D.detach(), sets.y.detach())
                value = value + found.value.sum(-1)
                if parameters:
                    pairs = (K, found.by_K), (sets.D, found.by_D), (sets.y, found.by_y)
                    by_parts = torch.stack([(x * dx).sum() for x, dx in pairs]).sum()
                    for slope, more in zip(slopes, slopes_of(by_parts, parameters), strict=True):
                        slope += more
        return value, slopes

    # ---- several rows together ---------------------------------------------------------------

    def near_and_given(self, G: Tensor) -> tuple[Tensor, Conditional]:
        """Return the places near rows of features G, and f of the rows given these, with β."""
        near = self.nearest.of(self.located(G), self.n_neighbors)
        k = min(self.n_errors, near.shape[1])
        blocks = set_blocks(len(G), near.shape[1] + 1, G.device)
        each = [self.conditional(G[some], near[some], k, self.places) for some in blocks]
        return near, Conditional(*(torch.cat(part, 1) for part in zip(*each, strict=True)))

    @torch.no_grad()
    def together(self, X: Tensor) -> tuple[Given, JointErrors, Tensor]:
        """Return f at each row, the errors of all rows together, and by what these are wider."""
        G, places = self.network(X), self.places
        near, c = self.near_and_given(G)
        used, N = near.unique(return_inverse=True)
        Z, of_mean = torch.cat([places.G[used], G]), self.mean_variance
        given = self.said(c, G, near, places, of_mean)
        of_f = torch.ones_like(given.var)
        if self.spread is not None:
            of_f = self.spread(given, self.variance).of_f
        return given, JointErrors(self.kernel, Z, places.D[used], N, c.beta, of_mean), of_f

    def covariance(self, X: Tensor) -> Tensor:
        """Return the joint covariance, whose diagonal has the variances of :meth:`marginals`."""
        given, errors, of_f = self.together(X)
        cov, wider = errors.covariance(), of_f.mT
        cov.diagonal(dim1=-2, dim2=-1).copy_(given.var.mT)  # which A C Aᵀ has but for rounding
        return cov * wider[:, :, None] * wider[:, None]

    def functions(self, n_samples: int, generator: torch.Generator) -> Functions:
        """Draw f by Matheron's rule, with the neighbours of each row alone."""
        G, D, y = (places := self.places)[:3]
        f = prior_functions(self.kernel, G.shape[1], n_samples, y.shape[1], generator)
        z = standard_normal((n_samples, *y.shape), y, generator)
        drawn = torch.cat([f(G[b]) for b in row_blocks(len(G), BLOCK_ROWS)], 1)
        error = y - drawn - D.sqrt() * z  # (S, n, P)
        mean = standard_normal((n_samples, 1, y.shape[1]), y, generator) * self.mean_variance.sqrt()
        mean = mean - self.share_of_variance * self.mean_variance

        def values(X: Tensor) -> Tensor:
            at = self.network(X)
            near, c = self.near_and_given(at)
            drawn = f(at) + torch.einsum("pbm,sbmp->sbp", c.beta, error[:, near]) + self.constant
            drawn = drawn + mean * apart(c).mT
            if self.spread is None:
                return drawn
            given = self.said(c, at, near, places, self.mean_variance)
            return given.mean + self.spread(given, self.variance).of_f * (drawn - given.mean)

        return values

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        given, errors, of_f = self.together(X)
        return given.mean + of_f * errors.draws(given.var, n_samples, generator)

    def sample_y(self, X: Tensor, rows: Rows, n_samples: int, generator: torch.Generator) -> Tensor:
        q, likelihood = self.predictive(X, rows)
        f = self.sample(X, n_samples, generator)
        each = Marginals(q.mean[0], q.var[0])
        return cast(AdditiveNoise, likelihood).sample_around(f, each, generator)


def slopes_of(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient by each parameter; 0 if the value does not depend on it."""
    if not parameters or not value.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(p) if slope is None else slope.clone()
        for p, slope in zip(parameters, found, strict=True)
    ]

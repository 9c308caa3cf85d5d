"""The exact process, locally: each row is conditioned on the training rows nearest to it.

Vecchia, "Estimation and model identification for continuous spatial processes", JRSS B 50, 1988;
Datta, Banerjee, Finley & Gelfand, "Hierarchical nearest-neighbor Gaussian process models for large
geostatistical datasets", JASA 111, 2016. The equations are in :mod:`skgpstoch.maths.conditionals`.
Rows are near if the kernel says so: distances are in its length-scales.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...data.arrays import row_blocks
from ...data.devices import BLOCK_ROWS, block_elements
from ...data.rows import Rows
from ...kernels import Kernel
from ...kernels.sets import nearness, within
from ...likelihoods.base import Likelihood
from ...likelihoods.real import AdditiveNoise
from ...maths.conditionals import Conditional, log_density
from ...maths.gaussian import Marginals, standard_normal
from ...maths.linalg import tri_solve
from ...maths.nearest import Nearest
from .base import Posterior
from .functions import Functions, prior_functions

MOST_ORDERED_ROWS = 100_000  # up to which a fit also computes the joint density of all rows
_found: WeakKeyDictionary[nn.Module, Nearest] = WeakKeyDictionary()  # by posterior
TINIEST = torch.finfo(torch.float64).tiny


def noise_of_rows(noise: Tensor, rows: Rows) -> Tensor:
    """Return the noise variance of each row's y, (N, P): (σ² + s²)/w."""
    D = noise.expand_as(rows.y) if rows.noise is None else noise + rows.noise
    return D if rows.weight is None else D / rows.weight.to(D)[:, None]


def set_blocks(n_rows: int, n_of_set: int, device: torch.device) -> Any:
    """Return blocks of rows whose matrices fit into a core's cache."""
    return row_blocks(n_rows, max(1, block_elements(device) // (2 * n_of_set**2)))


class Sets(NamedTuple):
    """Rows with their neighbours: features S (b, q, e), noise D and y (P, b, q).

    A neighbour that is not there has covariance 0 with the others, and y = 0.
    """

    S: Tensor
    D: Tensor
    y: Tensor
    is_there: Tensor | None  # (b, q); None if all are

    @classmethod
    def of(cls, G: Tensor, own: tuple[Tensor, Tensor], all_rows: Any, N: Tensor) -> Sets:
        """Put rows G (b, e), with own D and y (b, P), before their neighbours N (b, m).

        `all_rows` has the features (n, e), D and y (n, P) of the rows that are numbered.
        """
        absent = N < 0
        N = N.clamp_min(0)
        of_neighbours = all_rows[0].index_select(0, N.flatten()).unflatten(0, N.shape)
        S = torch.cat([G[:, None], of_neighbours], 1)
        D, y = (
            torch.cat([of_row[:, None], of_all[N]], 1).permute(2, 0, 1)
            for of_row, of_all in zip(own, all_rows[1:], strict=True)
        )
        if not bool(absent.any()):
            return cls(S, D, y, None)
        is_there = torch.nn.functional.pad(~absent, (1, 0), value=True)
        return cls(S, torch.where(is_there, D, 1.0), torch.where(is_there, y, 0.0), is_there)

    def covariances(self, kernel: Kernel) -> Tensor:
        """Return K of each set, (b, q, q)."""
        K = within(kernel, self.S).expand(-1, self.S.shape[1], self.S.shape[1])
        if self.is_there is None:
            return K
        here = self.is_there.to(K)
        return K * (here[:, :, None] * here[:, None])


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
        The constant c.
    X, rows : Tensor of shape (N, d) and Rows
        The training rows, in float64.
    noise : Tensor of shape (P,)
        σ².
    n_neighbors, n_joint : int
        m of predictions, and of the joint density of all rows.
    """

    inputs: Tensor
    features: Tensor
    residual: Tensor
    noise: Tensor
    weight: Tensor
    constant: Tensor
    variance: Tensor
    evidence: Tensor

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
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.network = network
        self.likelihood = likelihood
        self.n_neighbors = n_neighbors
        self.n_joint = n_joint
        self._n_rows = rows.n_effective
        self.spread: nn.Module | None = None  # F, of places (N, e) and shares (N, P)
        with torch.no_grad():
            given = self.columns(X, rows, mean, noise)
        for name, value in {**given, "constant": mean, "variance": noise}.items():
            self.register_buffer(name, value.detach().clone())
        self.register_buffer("evidence", torch.full_like(mean, torch.nan))

    def columns(self, X: Tensor, rows: Rows, mean: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """Return what is kept of training rows."""
        w = rows.y.new_ones(len(X)) if rows.weight is None else rows.weight.to(rows.y)
        D = noise_of_rows(noise, rows)
        G, r = self.network(X), rows.y - mean
        inputs = X[:, :0] if G is X else X  # which no file needs twice
        return {"inputs": inputs, "features": G, "residual": r, "noise": D, "weight": w}

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
        return BLOCK_ROWS

    @property
    def nearest(self) -> Nearest:
        """Finds neighbours; made when it is needed, and neither saved nor copied."""
        found = _found.get(self)
        if found is None or found.rows.device != self.residual.device:
            found = _found[self] = Nearest(self.located(self.features))
        return found

    def located(self, G: Tensor) -> Tensor:
        """Return features in the units in which the kernel falls, (N, e)."""
        return G * nearness(self.kernel, G.shape[1]).sqrt().to(G)

    def log_evidence(self) -> Tensor:
        return self.evidence

    def refit(self, X: Tensor, rows: Rows) -> NeighbourPosterior:
        """Return the posterior given other data, with the same hyper-parameters."""
        likelihood = cast(AdditiveNoise, self.likelihood)
        parts = self.kernel, self.network, likelihood, self.constant
        sizes = self.n_neighbors, self.n_joint
        return NeighbourPosterior(*parts, X, rows, self.variance, *sizes).find_joint_()

    def extended(self, X: Tensor, rows: Rows) -> NeighbourPosterior:
        """Return the posterior given more rows, with the same hyper-parameters.

        The joint density of all rows is found if it was before.
        """
        other = self.appended(X, rows)
        return other if bool(self.evidence.isnan().any()) else other.find_joint_()

    def appended(self, X: Tensor, rows: Rows) -> Self:
        """Return the same without the evidence, which is still that of the first rows."""
        other = copy.copy(self)
        other._buffers = dict(self._buffers)
        for name, value in self.columns(X, rows, self.constant, self.variance).items():
            other._buffers[name] = torch.cat([getattr(self, name), value])
        other._n_rows = self.n_rows + rows.n_effective
        return other

    # ---- predictions -------------------------------------------------------------------------

    @property
    def all_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Features, D and y of the training rows."""
        return self.features, self.noise, self.residual

    def conditional(self, G: Tensor, N: Tensor) -> Conditional:
        """Return the conditional of f at rows G given rows N."""
        none = self.residual.new_zeros(len(G), self.residual.shape[1])
        sets = Sets.of(G, (none, none), self.all_rows, N)
        return Conditional.of(sets.covariances(self.kernel), sets.D, sets.y)

    def given(self, G: Tensor, N: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of f at rows G given rows N, each (b, P)."""
        c = self.conditional(G, N)
        return c.mean.mT + self.constant, c.var.clamp_min(0.0).mT

    def moments(self, G: Tensor, N: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same, block by block."""
        blocks = set_blocks(len(G), N.shape[1] + 1, G.device)
        parts = [self.given(G[block], N[block]) for block in blocks]
        mean, var = (torch.cat(part) for part in zip(*parts, strict=True))
        return mean, var

    def marginals(self, X: Tensor) -> Marginals:
        return self._marginals(X)[0]

    def _marginals(self, X: Tensor) -> tuple[Marginals, Tensor | None]:
        """Return q(f), whose deviations are F(x) times those given neighbours, and F, (N, P)."""
        G = self.network(X)
        place = self.located(G)
        mean, var = self.moments(G, self.nearest.of(place, self.n_neighbors))
        if self.spread is None:
            return Marginals(mean[None], var[None]), None
        F = self.spread(place, self.share_left(G, var))
        return Marginals(mean[None], (F.square() * var)[None]), F

    def share_left(self, G: Tensor, var: Tensor) -> Tensor:
        """Return the share of the prior variance of f that is left given y, (N, P)."""
        return (var / self.kernel.diag(G)[:, None].clamp_min(TINIEST)).clamp(0.0, 1.0)

    def predictive(self, X: Tensor, rows: Rows) -> tuple[Marginals, Likelihood]:
        q, F = self._marginals(X)
        likelihood = cast(AdditiveNoise, self.likelihood.of(rows))
        return q, likelihood if F is None else likelihood.scaled(F)

    @torch.no_grad()
    def left_out(self, i: Tensor) -> tuple[Tensor, Tensor]:
        """Predict f at training rows without these: mean and variance, each (b, P)."""
        return self.moments(self.features[i], self.nearest.others(i, self.n_neighbors))

    # ---- the evidence ------------------------------------------------------------------------

    @torch.no_grad()
    def find_joint_(self) -> NeighbourPosterior:
        """Compute Σ log p(y_i | y_N(i)) with N(i) among rows before i, if that takes little time.

        It is NaN for more rows.
        """
        if len(self.residual) > MOST_ORDERED_ROWS:
            self.evidence = torch.full_like(self.constant, torch.nan)
        else:
            self.evidence = self.log_joint(self.kernel, self.variance)[0]
        return self

    def log_joint(
        self, kernel: Kernel, noise: Tensor, parameters: Sequence[Tensor] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Return Σ log p(y_i | y_N(i)), (P,), with N(i) the nearest among rows before i.

        It is that of any kernel and σ² (P,). Also return the slopes of its sum by parameters on
        which these depend.
        """
        w, r = self.weight, self.residual
        D = self.noise + (noise - self.variance) / w[:, None]
        value, slopes = torch.zeros_like(self.constant), [torch.zeros_like(p) for p in parameters]
        near = nearness(kernel, self.features.shape[1])
        nearest = Nearest(self.features * near.sqrt().to(self.features))
        for block in row_blocks(len(r), BLOCK_ROWS):
            i = torch.arange(block.start, block.stop, device=r.device)
            N = nearest.earlier(i, min(self.n_joint, len(r) - 1))
            for some in set_blocks(len(i), N.shape[1] + 1, i.device):
                own = self.features[i[some]], (D[i[some]], r[i[some]])
                sets = Sets.of(*own, (self.features, D, r), N[some])
                K = sets.covariances(kernel)
                found = log_density(K.detach(), sets.D.detach(), sets.y, w[i[some]])
                value = value + found.value.sum(-1)
                if parameters:
                    surrogate = (K * found.by_K).sum() + (sets.D * found.by_D).sum()
                    for slope, more in zip(slopes, slopes_of(surrogate, parameters), strict=True):
                        slope += more
        return value, slopes

    # ---- several rows together ---------------------------------------------------------------

    @torch.no_grad()
    def chain(self, X: Tensor) -> Chain:
        """Condition each row of X on training rows and on earlier rows of X."""
        G = self.network(X)
        place, n = self.located(G), len(self.residual)
        j = torch.arange(len(G), device=G.device)
        E = Nearest(place).earlier(j, min(self.n_joint, max(1, len(G) - 1)))
        N = torch.cat([torch.where(E < 0, E, E + n), self.nearest.of(place, self.n_neighbors)], 1)
        none = self.residual.new_zeros(len(G), self.residual.shape[1])
        joined = zip(self.all_rows, (G, none, none), strict=True)
        all_rows = tuple(torch.cat(pair) for pair in joined)
        U, var = [], []
        for some in set_blocks(len(G), N.shape[1] + 1, G.device):
            sets = Sets.of(G[some], (none[some], none[some]), all_rows, N[some])
            c = Conditional.of(sets.covariances(self.kernel), sets.D, sets.y)
            U.append(c.beta[..., : E.shape[1]])
            var.append(c.var)
        return Chain(E, torch.cat(U, 1), torch.cat(var, 1).clamp_min(0.0))

    def covariance(self, X: Tensor) -> Tensor:
        """Return the joint covariance, whose diagonal has the variances of :meth:`marginals`."""
        chain, var = self.chain(X), self.marginals(X).var[0].mT  # (P, N)
        cov = chain.covariance()
        ratio = (var / cov.diagonal(dim1=-2, dim2=-1).clamp_min(TINIEST)).sqrt()
        return cov * ratio[:, :, None] * ratio[:, None]

    def functions(self, n_samples: int, generator: torch.Generator) -> Functions:
        """Draw f by Matheron's rule, with the neighbours of each row alone."""
        G, y = self.features, self.residual
        f = prior_functions(self.kernel, G.shape[1], n_samples, y.shape[1], generator)
        z = standard_normal((n_samples, *y.shape), y, generator)
        error = y - f(G) - self.noise.sqrt() * z  # (S, n, P)

        def values(X: Tensor) -> Tensor:
            at = self.network(X)
            place = self.located(at)
            near = self.nearest.of(place, self.n_neighbors)
            blocks = set_blocks(len(at), near.shape[1] + 1, at.device)
            given = [self.conditional(at[some], near[some]) for some in blocks]
            beta = torch.cat([c.beta for c in given], 1)  # (P, N, m)
            drawn = f(at) + torch.einsum("pbm,sbmp->sbp", beta, error[:, near])
            if self.spread is not None:
                parts = ([c.mean for c in given], [c.var.clamp_min(0.0) for c in given])
                mean, var = (torch.cat(part, 1).mT for part in parts)  # (N, P)
                drawn = mean + self.spread(place, self.share_left(at, var)) * (drawn - mean)
            return self.constant + drawn

        return values

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        q, F = self._marginals(X)
        chain, mean = self.chain(X), q.mean[0]  # (N, P)
        P, N = chain.var.shape
        z = standard_normal((P, N, n_samples), mean, generator)
        drawn = chain.draw(z).permute(2, 1, 0)
        return mean + (drawn if F is None else F * drawn)

    def sample_y(self, X: Tensor, rows: Rows, n_samples: int, generator: torch.Generator) -> Tensor:
        q, likelihood = self.predictive(X, rows)
        f = self.sample(X, n_samples, generator)
        return cast(AdditiveNoise, likelihood).sample_around(f, q.mean[0], generator)


def slopes_of(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient by each parameter; 0 if the value does not depend on it."""
    if not parameters or not value.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(p) if slope is None else slope.clone()
        for p, slope in zip(parameters, found, strict=True)
    ]


class Chain(NamedTuple):
    """f_j − E f_j = Σ_l U_jl (f_E(j)l − E f_E(j)l) + √v_j z_j, for rows j in order."""

    E: Tensor  # numbers of earlier rows, (N, m); −1 where there is none
    U: Tensor  # (P, N, m)
    var: Tensor  # v, (P, N)

    def covariance(self) -> Tensor:
        """Return (I − U)⁻¹ diag(v) (I − U)⁻ᵀ, (P, N, N)."""
        P, N = self.var.shape
        whole = torch.zeros(P, N, N + 1, dtype=self.U.dtype, device=self.U.device)
        at = torch.where(self.E < 0, N, self.E).expand(P, -1, -1)
        whole.scatter_(2, at, -self.U)
        half = tri_solve(whole[..., :N] + torch.eye(N).to(whole), torch.diag_embed(self.var.sqrt()))
        return half @ half.mT

    def draw(self, z: Tensor) -> Tensor:
        """Return f − E f from standard normal z, (P, N, S)."""
        g = self.var.sqrt()[..., None] * z
        for j, E in enumerate(self.E):
            is_there = E >= 0
            g[:, j] += torch.einsum("pm,pms->ps", self.U[:, j, is_there], g[:, E[is_there]])
        return g

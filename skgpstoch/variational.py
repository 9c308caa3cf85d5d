"""Five ways to train a sparse model: they differ in where q(w) comes from.

======================== ===========================================================================
"collapsed", "natural"   the sites are averages over recent minibatches (:mod:`skgpstoch.running`);
                         with "collapsed" without the noise, which then acts at once
"natural", other losses  where S has no closed form: m as above, by Newton's steps, and the roots of
                         S as parameters
"lbfgs"                  the best q of all rows, at every evaluation of the bound
"adam"                   m and the roots of S are parameters like the others
======================== ===========================================================================

Everything else, points, kernel, network, noise, follows gradients: Adam's steps on minibatches, or
L-BFGS on all rows. The closing pass finds the best q of all rows, or the best m where S has no
closed form, whatever the solver was.
"""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from ._objective import Objective, surrogate
from .inducing import Basis, whiten
from .likelihoods import Gaussian
from .linalg import NotPositiveDefiniteError
from .sites import Moments, Sites
from .sparse import Solution, SparseModel, SparsePosterior
from .weights import VariationalWeights

NETWORK_RATE = 0.1  # of the learning rate of kernels and points, for weights of networks
CLOSING: dict[str, Any] = {"tol": 1e-5, "max_iter": 20}  # nats per row; passes over all rows
INNER: dict[str, Any] = {"tol": 1e-10, "max_iter": 100}  # as close as L-BFGS needs it
REJECTED = 1e10  # a loss that a line search steps back from


class VariationalObjective(Objective):
    """Σ loss + β KL of a sparse model, per row: −ELBO (B2), or another.

    Parameters
    ----------
    model : SparseModel
        Features, likelihood, mean and bound.
    n_rows : int
        n.
    weight_decay : float, default=0.0
        Decoupled decay of the network's parameters.
    noise_bounds : tuple of float, default=(1e-8, 1e2)
        The interval that σ² of a Gaussian likelihood is kept in.
    """

    streams: bool = False
    rest_rate: float = 1.0
    n_rows: Tensor

    def __init__(
        self,
        model: SparseModel,
        n_rows: int,
        *,
        weight_decay: float = 0.0,
        noise_bounds: tuple[float, float] = (1e-8, 1e2),
    ) -> None:
        super().__init__()
        self.model = model.eval()  # until training begins: layers such as Dropout draw
        self.weight_decay = weight_decay
        self.log_noise_bounds = (math.log(noise_bounds[0]), math.log(noise_bounds[1]))
        self.register_buffer("n_rows", torch.tensor(float(n_rows), dtype=torch.float64))

    def q(self) -> Moments:
        """The present q(w)."""
        raise NotImplementedError

    def param_groups(self) -> list[dict[str, Any]]:
        network = list(self.model.features.network_parameters())
        in_network = {id(p) for p in network}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in in_network]
        of_network = {"params": network, "weight_decay": self.weight_decay, "rate": NETWORK_RATE}
        return [of_network, {"params": rest, "rate": self.rest_rate}]

    def per_row(self, total: Tensor, n_batch: int, kl: Tensor, generator: Any) -> Tensor:
        """The objective over n, from the data term of n_batch rows."""
        penalty = self.model.features.penalty(generator)
        cost = kl if penalty is None else kl + penalty
        return self.model.beta / float(self.n_rows) * cost - total / n_batch

    def step_end(self) -> None:
        self.model.features.kernel.clamp_()
        likelihood = self.model.likelihood
        if isinstance(likelihood, Gaussian):
            likelihood.log_noise.data.clamp_(*self.log_noise_bounds)

    def is_finite(self) -> bool:
        return not bool(self.model.features.failed) and super().is_finite()

    @torch.no_grad()
    def evaluate(self, X: Tensor, targets: Tensor) -> float:
        """Loss of predictions for the held-out rows, which come first; per row."""
        n_held_out = int((targets[:, -1] >= 0).sum())
        q = self.q().to(X.dtype)
        total = 0.0
        for basis, rows in self.model.bases(X[:n_held_out], targets[:n_held_out], X.dtype):
            marginals, _ = self.model.marginals(basis, q, q.products(basis.phi))
            total += float(self.model.loss.of_predictions(rows, marginals).sum())
        return total / n_held_out

    def present_sites(self) -> Sites | None:
        """Where the closing pass starts, for a likelihood that is not Gaussian; None: the prior."""
        return None

    def solution(self, X: Tensor, targets: Tensor) -> SparsePosterior:
        """The best q(w) of all rows, in float64."""
        model = self.closing_model()
        found = model.best(X, targets, self.present_sites(), self.kept(), **CLOSING)
        if model.loss.covariance(model.likelihood) == "prior":
            model, found = model.calibrated(X, targets, found)
        is_bound = model.loss.bounds_evidence and model.beta == 1.0
        elbo = found.value if is_bound else model.evidence_bound(X, targets, found.q)
        return SparsePosterior(model, found, elbo, len(X))

    def kept(self) -> Moments | None:
        """The q(w) whose covariances are learned by gradients, if they are, in float64."""
        how = self.model.loss.covariance(self.model.likelihood)
        return self.q().to(torch.float64) if how == "gradient" else None

    def closing_model(self) -> SparseModel:
        """The model as predictions have it."""
        model = copy.deepcopy(self.model).double().eval()
        model.features.jitter = None
        return model

    def running_solution(self) -> SparsePosterior:
        """The present q(w), for streams."""
        unknown = torch.full((), torch.nan, dtype=torch.float64)
        sites = cast(Sites, self.present_sites())
        found = Solution(self.model.moments(sites, self.kept()), sites, unknown)
        return SparsePosterior(self.closing_model(), found, unknown, int(self.n_rows))

    def start_from(self, posterior: SparsePosterior) -> None:
        """Go on from a fitted q(w)."""
        raise NotImplementedError

    def attach(self, X: Tensor, targets: Tensor) -> None:
        """Go on with other rows, of a stream."""
        self.n_rows += len(X)


def make_roots(factors: list[Tensor], n_outputs: int, fixed: tuple[bool, ...]) -> nn.ParameterList:
    """R_b as parameters, one for each output, that start from the factors given."""
    roots = [root.detach().expand(n_outputs, -1, -1).clone() for root in factors]
    return nn.ParameterList(
        nn.Parameter(root, requires_grad=not is_fixed)
        for root, is_fixed in zip(roots, fixed, strict=True)
    )


def identities(features: Any) -> list[Tensor]:
    """I of every block, the roots of the prior."""
    like = features.points
    return [torch.eye(n, dtype=like.dtype, device=like.device) for n in features.blocks]


def free_roots(roots: nn.ParameterList, fixed: tuple[bool, ...]) -> list[Tensor | None]:
    """R_b, triangular; None where S_b stays the prior's."""
    return [None if f else root.tril() for root, f in zip(roots, fixed, strict=True)]


@torch.no_grad()
def moments_of(weights: VariationalWeights) -> Moments:
    """The same q(w)."""
    covariances = tuple(None if R is None else R @ R.mT for R in weights.roots)
    return Moments(weights.mean, covariances, weights.sizes, weights.kl().sum())


class FullBatchObjective(VariationalObjective):
    """The bound at the best q(w) of all rows, for L-BFGS; in float64, and by blocks of rows."""

    precision: Tensor
    cross: Tensor
    value: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zero = self.model.zero_sites(self.model.features.points.device)
        self.register_buffer("precision", zero.precision)
        self.register_buffer("cross", zero.cross)
        self.register_buffer("value", zero.cross.new_tensor(-math.inf))

    def q(self) -> Moments:
        return self.model.moments(self.present_sites())

    def present_sites(self) -> Sites:
        """Of the best q(w) so far, not of a step that was rejected."""
        return Sites(self.precision, self.cross)

    def keep(self, found: Solution) -> None:
        """Go on from here."""
        self.register_buffer("precision", found.sites.precision)
        self.register_buffer("cross", found.sites.cross)
        self.register_buffer("value", found.value)

    def evaluate(self, X: Tensor, targets: Tensor) -> float:
        """The bound itself, where no rows are held out."""
        trained = targets[:, -1] < 0
        found = self.best(X[trained], targets[trained])
        self.keep(found)
        if bool(trained.all()):
            return -float(found.value) / len(X)
        return super().evaluate(X, targets)

    def best(self, X: Tensor, targets: Tensor) -> Solution:
        """The best q(w), or an error where K_uu is of no use."""
        found = self.model.best(X, targets, self.present_sites(), **INNER)
        failed = self.model.features.failed
        if bool(failed):
            failed.fill_(False)
            raise NotPositiveDefiniteError("The covariance of the inducing points is not finite.")
        return found

    def forward(self, X: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        params = [p for p in self.parameters() if p.requires_grad]
        asked = [p.detach().clone() for p in params]
        self.step_end()  # what L-BFGS sees is the bound at the nearest point within bounds
        inside = [p.detach() == before for p, before in zip(params, asked, strict=True)]
        try:
            value, gradients = self.value_and_gradients(X, targets, params)
        except NotPositiveDefiniteError:
            if not bool(self.value.isfinite()):
                raise
            value, gradients = (
                self.value.new_tensor(REJECTED),
                [torch.zeros_like(p) for p in params],
            )
        for p, before in zip(params, asked, strict=True):
            p.data.copy_(before)
        pairs = zip(params, gradients, inside, strict=True)
        return surrogate(value, *((p, gradient * free) for p, gradient, free in pairs))

    def value_and_gradients(
        self, X: Tensor, targets: Tensor, params: list[nn.Parameter]
    ) -> tuple[Tensor, list[Tensor]]:
        """The objective per row at the best q(w), and its gradient by each parameter."""
        found = self.best(X, targets)
        gradients = [torch.zeros_like(p) for p in params]
        for basis, rows in self.model.bases(X, targets) if params else ():
            total, _, _ = self.model.data_term(basis, rows, found.q)
            parts = torch.autograd.grad(total, params, allow_unused=True, materialize_grads=True)
            for sum_, part in zip(gradients, parts, strict=True):
                sum_ -= part / len(X)
        if found.value >= self.value:
            self.keep(found)
        return -found.value / len(X), gradients


class GradientObjective(VariationalObjective):
    """m and R_b, S_b = R_b R_bᵀ, as parameters, in the coordinates of w or (whiten=False) of u.

    Without whitening u = L w has the mean Lm and the root LR, so that w's come from those of u as
    features come from covariances.
    """

    def __init__(self, *args: Any, whiten: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.whiten = whiten
        model, P = self.model, len(self.model.mean.value)
        like = model.features.points.detach()
        self.means = nn.ParameterList(like.new_zeros(size, P) for size in model.features.blocks)
        factors = [root.to(like) for root in self.factors()]
        self.roots = make_roots(factors, P, model.has_prior_covariance)

    def factors(self) -> list[Tensor]:
        """L of every block: I in the coordinates of w."""
        features = self.model.features
        if self.whiten:
            return identities(features)
        factors = features.basis(features.inducing_points[:1]).factors
        return [torch.linalg.inv(inverse).tril() for _, inverse in factors]

    @torch.no_grad()
    def start_from(self, posterior: SparsePosterior) -> None:
        posterior = copy.deepcopy(posterior).to(self.n_rows.device)
        means = posterior.weights.mean.split(posterior.weights.sizes)
        for b, L in enumerate(self.factors()):
            self.means[b].copy_(L.double() @ means[b])
            root = posterior.weights.roots[b]
            if root is not None:
                self.roots[b].copy_(L.double() @ root)

    def present_sites(self) -> Sites:
        """Of the present q(w): of several blocks, without what is between them."""
        q = self.q().to(torch.float64)
        P = q.mean.shape[1]
        if self.model.loss.covariance(self.model.likelihood) != "sites":  # m is all that counts
            return self.model.zero_sites(q.mean.device)._replace(cross=q.mean)
        blocks = []
        for size, S in zip(q.sizes, q.covariances, strict=True):
            identity = torch.eye(size, dtype=torch.float64, device=q.mean.device).repeat(P, 1, 1)
            blocks.append(0.0 * identity if S is None else torch.linalg.inv(S) - identity)
        precision = torch.stack([torch.block_diag(*parts) for parts in zip(*blocks, strict=True)])
        return Sites(precision, q.mean + torch.einsum("bij,jb->ib", precision, q.mean))

    def weights(self, basis: Basis) -> VariationalWeights:
        """q(w), in the coordinates of w."""
        means, roots = list(self.means), [root.tril() for root in self.roots]
        if not self.whiten:
            for b, (K, inverse) in enumerate(basis.factors):
                P, size = len(roots[b]), means[b].shape[0]
                rows = torch.cat([means[b].mT, roots[b].mT.reshape(-1, size)])
                white = whiten(rows, K, inverse)
                means[b], roots[b] = white[:P].mT, white[P:].reshape(P, size, size).mT
        pairs = zip(roots, self.model.has_prior_covariance, strict=True)
        free = [None if is_prior else root for root, is_prior in pairs]
        return VariationalWeights(torch.cat(means), free, self.model.features.blocks)

    def forward(self, X: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        basis, rows = self.model.features.basis(X), self.model.rows(targets)
        weights, residual = self.weights(basis), basis.residual()
        q = weights.marginals(basis.phi, residual)
        q = q._replace(mean=q.mean + self.model.offset(basis))
        total, _ = self.model.data_term_of(rows, q, residual, generator)
        return self.per_row(total, len(X), weights.kl().sum(), generator)

    @torch.no_grad()
    def q(self) -> Moments:
        features = self.model.features
        return moments_of(self.weights(features.basis(features.inducing_points[:1])))

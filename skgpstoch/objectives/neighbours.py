"""Learn a kernel from the densities of rows given their neighbours, by minibatches of rows.

    −log p(y) ≈ −Σᵢ log p(y_i | y_N(i))

"vecchia": N(i) are rows before i, in random order, so the sum is a proper density of all rows
(Vecchia, 1988; Guinness, "Permutation and grouping methods for sharpening Gaussian process
approximations", Technometrics 60, 2018). "leave_one_out": N(i) are any other rows, so the sum is
that of predictions (Rasmussen & Williams, sec. 5.4.2; Jankowiak & Pleiss, "Scalable
cross-validation losses for Gaussian process models", 2021). Either sum is over rows, so minibatches
are unbiased; neighbours come from all rows.
"""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..data.deadline import Deadline
from ..data.devices import BLOCK_ROWS
from ..data.rows import Rows
from ..kernels import Kernel
from ..kernels.sets import nearness
from ..likelihoods.real import Gaussian
from ..maths.conditionals import log_density
from ..maths.nearest import Nearest
from ..models.calibration.held_out import Predicted
from ..models.calibration.tails import TailChoice, best_tails
from ..models.calibration.tails import log_density as log_density_of_errors
from ..models.posteriors.mean_error import with_mean_error
from ..models.posteriors.nearby import (
    N_NEARBY,
    Given,
)
from ..models.posteriors.neighbours import (
    NeighbourPosterior,
    Sets,
    differs_by_row,
)
from ..models.posteriors.places import Observed, observed
from ..models.posteriors.sets import lag
from .base import Objective, surrogate
from .closing import LEAST_JUDGES, seconds_of
from .neighbour_calibration import FEWER, JudgedNeighbours, fewest

Pair = tuple[Tensor, Observed]  # places

NOISE_RATE = 3.0  # factor of the learning rate of log σ²
JUDGED_ROWS = 2000  # left out, one by one, to judge spread, scale and tails
"""*Measured* on tables of 10,000 rows, NLPD by 10,000 of these and by 2,000: kin40k −.633, −.627;
protein .566, .562; bike −11.500, −11.529; elevators .350, .351; pol −2.787, −2.790. The fit takes
two thirds of the time, and half of it in two dimensions."""
BRIEFLY = 1000, 64  # rows left out, and neighbours given, to choose iterates of a network
TIMED_ROWS = 128  # left out, to measure the time that it takes
MOST_CLOSING_SHARE = 0.3  # of the time for these
TINIEST = torch.finfo(torch.float64).tiny


class NeighbourObjective(Objective):
    """−log p(y_i | y_N(i)) of the rows of a minibatch, per row.

    Parameters
    ----------
    kernel, network, mean
        Those of :class:`~skgpstoch.models.posteriors.neighbours.NeighbourPosterior`.
    likelihood : Gaussian
        The noise.
    noise_bounds : tuple of float
        Bounds of σ²; equal ends fix it.
    n_neighbors, n_neighbors_predict : int
        m in training and in predictions.
    is_ordered : bool
        Whether neighbours are earlier rows only.
    n_epoch : int
        Number of rows in an epoch, evenly spread over all rows.
    tails : TailChoice or None
        What rows left out may choose; None: nothing.
    is_approximate : bool, default=False
        Whether the search for neighbours may miss some.
    seeks_fewer : bool, default=False
        Whether rows left out may choose fewer neighbours for predictions.
    """

    n_done: Tensor
    held_out: Predicted | None = None  # of the first rows, each given others
    n_used = 0  # rows in an epoch
    n_judged: int = JUDGED_ROWS  # rows that are left out, one by one, to judge scale and tails
    n_parts = 1  # of a search on the same rows; between them, what stands for y may change
    likelihood: Any  # Gaussian, or of classes

    def __init__(
        self,
        kernel: Kernel,
        network: nn.Module,
        likelihood: Gaussian,
        mean: Tensor,
        *,
        noise_bounds: tuple[float, float],
        n_neighbors: int,
        n_neighbors_predict: int,
        is_ordered: bool,
        n_epoch: int,
        tails: TailChoice | None,
        is_approximate: bool = False,
        seeks_fewer: bool = False,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.network = network
        self.likelihood = likelihood
        self.likelihood.requires_grad_(bool(noise_bounds[0] < noise_bounds[1]))
        self.noise_bounds = noise_bounds
        self.mean = nn.Parameter(mean.detach().clone())
        self.n_neighbors = n_neighbors
        self.n_neighbors_predict = n_neighbors_predict
        self.tails = tails
        self.is_ordered = is_ordered
        self.n_epoch = n_epoch
        self.is_approximate = is_approximate
        self.seeks_fewer = seeks_fewer
        self.register_buffer("n_done", torch.zeros((), dtype=torch.long, device="cpu"))
        self.data: Pair | None = None  # of training
        self.trains_features = any(p.requires_grad for p in network.parameters())
        self.has_network = any(True for _ in network.parameters())
        self.found: tuple[Tensor, Tensor] | None = None  # in this epoch

    def param_groups(self) -> list[dict[str, Any]]:
        """Return networks' parameters, others, and the noise, which may have far to go."""
        network, rest = super().param_groups()
        chosen = {id(p) for p in self.likelihood.parameters()}
        of_noise = [p for p in rest["params"] if id(p) in chosen]
        others = [p for p in rest["params"] if id(p) not in chosen]
        noise = {**rest, "params": of_noise, "rate": NOISE_RATE}
        return [network, {**rest, "params": others}, noise]

    def minibatch_source(self, X: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """Return places among an epoch's rows for X, which are the same in every epoch."""
        self.use(*self.observed(X, rows))
        n, n_places = min(self.n_epoch, len(X)), len(cast(Pair, self.data)[0])
        self.n_used = n = n if n < n_places else n - n % n_places  # each place equally often
        return torch.arange(n, device=X.device)[:, None], rows[:n]

    def observed(self, X: Tensor, rows: Rows) -> Pair:
        """Return the places whose densities count: of all rows at one, if they are ordered.

        Else measurements at one place would have no other place among their neighbours.
        """
        if not self.is_ordered or differs_by_row(self.kernel):
            return X, Observed(rows)
        first, seen = observed(X, rows)
        return X[first], seen

    def use(self, X: Tensor, seen: Observed) -> None:
        """Train on these places."""
        self.data, self.found = (X, seen), None

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        if self.found is None:
            self.found = self.find()
        i, N = self.found
        return self.loss_at(i[X[:, 0]], N[X[:, 0]], generator)

    @property
    def noise_variance(self) -> Tensor:
        """σ², (P,)."""
        return self.likelihood.noise_variance

    def take_over(self, other: NeighbourObjective) -> None:
        """Continue with what another objective has learned, but for the kernel."""
        self.likelihood.load_state_dict(other.likelihood.state_dict())
        self.mean.data.copy_(other.mean)

    def features(self, X: Tensor) -> Tensor:
        """Return the features of all rows, in float64, block by block and without a graph."""
        with torch.no_grad():
            return torch.cat([self.network(block).double() for block in X.split(BLOCK_ROWS)])

    def nearest_of(self, G: Tensor) -> Nearest:
        """Return what finds neighbours among rows with these features."""
        return Nearest(self.located(G), self.lag(G), self.is_approximate)

    def lag(self, G: Tensor) -> Tensor | None:
        """Return by how much places are farther because of their noise, (q,)."""
        seen = cast(Pair, self.data)[1]
        every = torch.arange(len(G), device=G.device)
        D, _ = seen.means(every, self.noise_variance)
        return lag(self.kernel, G, D, seen.total_weight(every))

    def located(self, G: Tensor) -> Tensor:
        """Return features in the units in which the kernel falls, (n, e)."""
        return G * nearness(self.kernel, G.shape[1]).sqrt().to(G)

    def spread(self, n_rows: int) -> Tensor:
        """Return the numbers of so many rows, evenly spread over all rows; others in each epoch.

        Of fewer rows, some come several times.
        """
        X, _ = cast(Pair, self.data)
        n, k = len(X), n_rows
        # Shifts by the golden ratio are even: every row comes equally often in the long run.
        shift = 0.5 * (math.sqrt(5.0) - 1.0) * int(self.n_done) % 1.0
        places = (torch.arange(k, dtype=torch.float64, device=X.device) + shift) * (n / k)
        return places.long().clamp_max(n - 1)

    @torch.no_grad()
    def find(self, n_rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the numbers of rows, evenly spread over all rows, and neighbours.

        None: as many as in an epoch.
        """
        X, _ = cast(Pair, self.data)
        some = self.n_used if n_rows is None else min(n_rows, len(X))
        i, nearest = self.spread(some), self.nearest_of(self.features(X))
        search = nearest.earlier if self.is_ordered else nearest.others
        return i, search(i, self.n_neighbors)

    def sets_at(
        self, i: Tensor, N: Tensor, generator: torch.Generator | None
    ) -> tuple[Sets, Tensor]:
        """Return rows i with rows N, and their covariances, with graphs."""
        X, seen = cast(Pair, self.data)
        used = torch.cat([i, N.clamp_min(0).flatten()])  # some rows several times
        place = torch.arange(len(used), device=used.device)
        if self.has_network or seen.start is not None:  # once for each row
            used, place = used.unique(return_inverse=True)
        X, (D, y) = X.index_select(0, used), seen.means(used, self.noise_variance)
        i, N = place[: len(i)], torch.where(N < 0, N, place[len(i) :].view_as(N))
        G = self.network(X, generator) if self.trains_features else self.network(X)
        G = G.double()
        r = y - self.mean
        sets = Sets.of(G.index_select(0, i), (D[i], r[i]), (G, D, r), N)
        return sets, sets.covariances(self.kernel)

    def loss_at(self, i: Tensor, N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the loss of rows i, given rows N."""
        seen = cast(Pair, self.data)[1]
        n = len(i) * seen.mean_weight
        sets, K = self.sets_at(i, N, generator)
        found = log_density(K.detach(), sets.D.detach(), sets.y.detach())
        pairs = [(K, found.by_K), (sets.D, found.by_D), (sets.y, found.by_y)]
        gradients = [(x, -dx / n) for x, dx in pairs if x.requires_grad]
        loss = surrogate(-found.value.sum() / n, *gradients)
        beside = seen.log_density_about_means(i, self.noise_variance)
        return loss if beside is None else loss - beside.sum() / n

    def gain(self, i: Tensor) -> float:
        """Return what the log evidence of rows i has beside their densities, per usual weight."""
        return 0.0

    def evaluate(
        self, X: Tensor, rows: Rows, most: int | None = None, n_neighbors: int | None = None
    ) -> float:
        """Return the score of held-out rows: of so many at most, given so many neighbours."""
        return score_of(*errors_held_out(self, X, rows, most, n_neighbors), rows)

    def step_end(self) -> None:
        self.kernel.clamp_()
        low, high = map(math.log, self.noise_bounds)
        self.likelihood.log_noise.data.clamp_(low, high)

    def epoch_end(self) -> None:
        self.n_done += 1
        self.found = None

    def climb_end(self) -> None:
        """Let others follow the kernel after a search on fixed rows."""
        self.epoch_end()

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        self.found = None  # of another kernel
        return super().load_state_dict(*args, **options)

    def detach_rows(self) -> None:
        self.data = self.found = None

    # ---- the posterior -----------------------------------------------------------------------

    @torch.no_grad()
    def hurry(self, X: Tensor, rows: Rows, deadline: Deadline, wanted: float) -> float:
        """Choose how many rows judge the tails; return the seconds of the closing pass."""
        posterior, n = self.posterior(X, rows), min(len(X), TIMED_ROWS)

        def leave_out() -> None:
            self.left_out(posterior, X, rows, n)

        leave_out()  # the first time, what finds neighbours is made
        per_row = seconds_of(leave_out, deadline.clock) / n
        most = MOST_CLOSING_SHARE * deadline.left() / per_row
        self.n_judged = int(min(max(most, LEAST_JUDGES), JUDGED_ROWS))
        # *Measured*: half the neighbours take a quarter of the time, and a quarter of them a tenth.
        others = sum((fewer / self.n_neighbors_predict) ** 2 for fewer in FEWER)
        share = 1.0 + self.seeks_fewer * others
        return share * per_row * min(len(X), self.n_judged)

    @torch.no_grad()
    def posterior(self, X: Tensor, rows: Rows) -> NeighbourPosterior:
        """Return the posterior given these rows, whose tails are those of the noise."""
        fitted = copy.deepcopy(self).double().eval()
        noise = fitted.likelihood.noise_variance
        parts = fitted.kernel, fitted.network, fitted.likelihood, fitted.mean.detach()
        search = self.n_neighbors_predict, self.n_neighbors, self.is_approximate
        return NeighbourPosterior(*parts, X.double(), rows.to(torch.float64), noise, *search)

    @torch.no_grad()
    def solution(self, X: Tensor, rows: Rows) -> NeighbourPosterior:
        """Return the posterior given all rows, with the tails that suit rows left out."""
        posterior = self.posterior(X, rows)
        if self.mean.requires_grad:
            with_mean_error(posterior)

        def judged(n_neighbors: int) -> JudgedNeighbours:
            posterior.n_neighbors = n_neighbors
            given = self.left_out(posterior, X, rows, self.n_judged)
            return JudgedNeighbours.of(posterior, given, rows[: len(given.mean)], self.tails)

        found = judged(posterior.n_neighbors)
        if self.seeks_fewer:
            found = fewest(found, judged)
        self.held_out = found.held_out.cpu()
        return found.told(posterior)

    def left_out(self, posterior: NeighbourPosterior, X: Tensor, rows: Rows, most: int) -> Given:
        """Predict f at the first rows, which are in random order, each given the others."""
        i = torch.arange(min(len(X), most), device=X.device)
        return posterior.left_out(i, self.n_errors)

    @property
    def n_errors(self) -> int:
        """How many neighbours' errors are looked at to judge spread, scale and tails."""
        return 0 if self.tails is None else N_NEARBY[-1]

    def __deepcopy__(self, memo: dict[int, Any]) -> NeighbourObjective:
        rows = self.data, self.found
        self.data = self.found = None
        other = super().__deepcopy__(memo)
        self.data, self.found = rows
        return other


@torch.no_grad()
def errors_held_out(
    objective: NeighbourObjective,
    X: Tensor,
    rows: Rows,
    most: int | None = None,
    n_neighbors: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return errors of held-out rows in standard deviations, and these, each (k, P).

    They are of at most so many rows, given so many neighbours; None: as many as there are.
    """
    n = rows.n_held_out
    posterior = objective.posterior(X[n:], rows[n:])
    if n_neighbors is not None:
        posterior.n_neighbors = min(n_neighbors, posterior.n_neighbors)
    k = n if most is None else min(n, most)
    mean, var = posterior.marginals(X[:k].double()).mixture_moments()
    D = posterior.variance if rows.noise is None else posterior.variance + rows.noise[:k].double()
    s = (var + D).clamp_min(TINIEST).sqrt()
    return (rows.y[:k].double() - mean) / s, s


def score_of(u: Tensor, s: Tensor, rows: Rows) -> float:
    """Return the negative log density of the first rows' errors, with the tails that suit them."""
    judged, errors = rows[: len(u)].to(torch.float64), u.cpu().numpy()
    weight = judged.weighted(torch.ones_like(u))[:, :1].cpu().numpy()
    density = log_density_of_errors(errors, best_tails(errors, TailChoice(), weight))
    return float(judged.mean(s.log() - torch.from_numpy(density).to(s)).sum())

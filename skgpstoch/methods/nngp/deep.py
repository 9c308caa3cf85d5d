"""Features that are learned together with the conditional of each row given its neighbours.

A network first learns the mean of y by its squared error, or classes by their log loss. Principal
directions of its last layer, beside the inputs, are then the space in which neighbours are found,
and everything is trained on leave-one-out densities. Rows left out choose the dropout and the
iterate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ...data.deadline import Deadline
from ...data.rows import Rows
from ...maths.cells import NearlyNearest
from ...maths.modules import Module
from ...models.features.near import NearFeatures
from ...models.posteriors.nearby import Given
from ...models.posteriors.neighbours import NeighbourPosterior
from ...objectives.base import Objective
from ...objectives.neighbour_classes import NeighbourClassObjective
from ...objectives.neighbours import BRIEFLY, NeighbourObjective
from ...objectives.pseudo_targets import JUDGED_TARGETS
from ...training.loop import train
from ...training.optimizers import SCHEDULES, make_optimizer
from ...training.recipes.plan import epochs, overfit_patience
from ...training.recipes.recipe import Problem

DIRECTIONS = 16  # of the last layer
DROPOUTS = (0.0, 0.1)  # of which rows left out choose, if rows are few
DROPOUT_ROWS = 5000
FEW_ERRORS = 0.1  # of the variance of y, that the mean leaves, for dropout to be tried
"""*Measured* (NLPD without and with dropout): kin40k −2.74, −1.74; protein .223, .336. Two
small and noisy tables gain .13 and .23 nats by it."""
MEAN_STEPS, MEAN_RATE, MEAN_BATCH = 1500, 3e-3, 256
MEAN_TIME = RIVAL_TIME = 0.2  # of the time that is left, if it is limited
GATE_RATE = 10.0  # factor of the rate of what is not a network's
DECAY = 1e-2


class MeanLoss(NamedTuple):
    """What a network learns first.

    Parameters
    ----------
    of_rows : callable
        The losses (N, ·) of linear functions f (N, Q) of the last hidden layer at rows.
    n_outputs : int
        Q.
    of_constant : float
        The loss of the best constant f.
    """

    of_rows: Callable[[Tensor, Rows], Tensor]
    n_outputs: int
    of_constant: float


def squared_errors(rows: Rows) -> MeanLoss:
    """Return the squared errors of targets."""
    variance = float(rows.y.double().var(0, correction=0).mean())
    return MeanLoss(lambda f, some: (f - some.y.to(f)).square(), rows.y.shape[1], variance)


def log_losses(rows: Rows, n_classes: int) -> MeanLoss:
    """Return the log losses of codes of classes."""
    share = torch.bincount(rows.y[:, 0].long(), minlength=n_classes).double() / len(rows.y)

    def of_rows(f: Tensor, some: Rows) -> Tensor:
        return -f.log_softmax(1).gather(1, some.y.long())

    return MeanLoss(of_rows, n_classes, float(torch.special.entr(share).sum()))


class MeanObjective(Objective):
    """The loss of a linear function of the last hidden layer."""

    weight_decay = DECAY
    rest_rate = GATE_RATE

    def __init__(self, features: NearFeatures, width: int, loss: MeanLoss) -> None:
        super().__init__()
        self.features, self.of_rows = features, loss.of_rows
        kind: dict[str, Any] = {"dtype": torch.float32, "device": features.gate.device}
        self.network = nn.utils.skip_init(nn.Linear, width, loss.n_outputs, **kind)
        nn.init.zeros_(self.network.weight)
        nn.init.zeros_(self.network.bias)

    def outputs(self, X: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return f, (N, Q); drop units if there is a generator."""
        f: Tensor = self.network(self.features.hidden(X, generator))
        return f

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        losses = self.of_rows(self.outputs(X, generator), rows)
        return rows.weighted(losses).sum() / rows.n_effective

    @torch.no_grad()
    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Return the loss of held-out rows, which come first."""
        held = slice(rows.n_held_out)
        return float(rows[held].mean(self.of_rows(self.outputs(X[held]), rows[held])).mean())


class Learned(NamedTuple):
    """Features, the loss of rows left out (NaN without training), and whether time cut training."""

    features: nn.Module
    error: float = math.nan
    is_cut: bool = False


def learned_mean(
    problem: Problem,
    layers: tuple[int, ...],
    activation: str,
    loss: MeanLoss,
    deadline: Deadline | None = None,
) -> Learned:
    """Return features whose last layer predicts y."""
    X, rows, generator = problem.X, problem.rows, problem.generator
    n, found = rows.n_held_out, list[Learned]()
    state = generator.get_state()
    for dropout in DROPOUTS if len(X) <= DROPOUT_ROWS else DROPOUTS[:1]:
        if found and found[0].error < FEW_ERRORS * loss.of_constant:
            break
        generator.set_state(state)
        features = NearFeatures(X[n:], layers, activation, dropout, DIRECTIONS, generator)
        objective = MeanObjective(features, layers[-1], loss)
        table = problem.table.trained(n, objective.minibatch_source)
        batch = min(MEAN_BATCH, max(1, table.n_rows // 2))
        n_epochs = epochs(MEAN_STEPS, table.n_rows, batch)
        objective.overfit_patience = overfit_patience(n_epochs)
        history = train(
            objective,
            table,
            optimizer=make_optimizer("adam", objective.param_groups(), MEAN_RATE),
            max_iter=n_epochs,
            batch_size=batch,
            schedule=SCHEDULES["one-cycle"],
            generator=generator,
            evaluate=lambda objective=objective: objective.evaluate(X, rows),
            evaluate_every=math.ceil(n_epochs / 30),
            deadline=None if deadline is None else deadline.part(MEAN_TIME),
        )
        is_cut = history.status == "deadline"
        found.append(Learned(objective.features, history.best_score, is_cut))
    best = min(found, key=lambda each: each.error)
    cast(NearFeatures, best.features).set_directions_(X[n:])
    return best._replace(is_cut=any(each.is_cut for each in found))


class OfUser(Module):
    """A network of the user, (N, d) → (N, e), whose layers draw from torch's own generator."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, X: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.network(X)


def feature_kernel(nu: float) -> sk.Kernel:
    """Return a kernel on features, whose scales are their own."""
    return sk.ConstantKernel(1.0, (1e-5, 1e5)) * sk.Matern(1.0, "fixed", nu=nu)


class DeepNeighbourObjective(NeighbourObjective):
    """The same objective with features that are trained, judged by rows left out.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`NeighbourObjective`.
    decay, rate : float
        Weight decay of networks, and the factor of their learning rate.
    plain : Plain or None
        The same on the inputs alone.
    """

    def __init__(
        self, *args: Any, decay: float, rate: float, plain: Plain | None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.weight_decay, self.network_rate = decay, rate
        self.rival = plain
        self.has_user_module = isinstance(self.network, OfUser)
        self.replaced_by: NeighbourObjective | None = None

    def param_groups(self) -> list[dict[str, Any]]:
        """Return networks' parameters, others, and the noise; scales of inputs are no network's."""
        network, rest, noise = super().param_groups()
        named = dict(self.named_parameters())
        layers = [p for name, p in named.items() if name.startswith("network.network")]
        chosen = {id(p) for p in layers}
        scales = [p for p in network["params"] if id(p) not in chosen]
        layers = [p for p in layers if p.requires_grad]
        return [
            {**network, "params": layers},
            {**rest, "params": [*scales, *rest["params"]]},
            noise,
        ]

    def nearest_of(self, G: Tensor) -> NearlyNearest:
        """Return the same but for a few neighbours, as features move in any case."""
        return NearlyNearest(self.located(G), self.lag(G))

    def evaluate(self, X: Tensor, rows: Rows, *briefly: int | None) -> float:
        return super().evaluate(X, rows, *(briefly or BRIEFLY))

    def hurry(self, X: Tensor, rows: Rows, deadline: Deadline, wanted: float) -> float:
        """Leave time to train the process on the inputs alone, too."""
        seconds = super().hurry(X, rows, deadline, wanted)
        return seconds if self.rival is None else seconds + RIVAL_TIME * max(deadline.left(), 0.0)

    def calibrate(self, X: Tensor, rows: Rows) -> None:
        """Prefer the inputs alone if they predict rows left out better."""
        rival, self.rival = self.rival, None
        if rival is not None and rows.n_held_out and rival.score < self.evaluate(X, rows):
            self.replaced_by = rival.trained()

    def solution(self, X: Tensor, rows: Rows) -> Any:
        if self.replaced_by is None:
            return super().solution(X, rows)
        found = self.replaced_by.solution(X, rows)
        self.held_out = self.replaced_by.held_out
        return found

    def left_out(self, posterior: NeighbourPosterior, X: Tensor, rows: Rows, most: int) -> Given:
        """Predict f at the rows that the network has not seen, given those that it has."""
        n, G = rows.n_held_out, posterior.features[:most]
        trained = self.posterior(X[n:], rows[n:]).with_neighbors(posterior.n_neighbors)
        return trained.given_nearest(G[:n], self.n_errors)


class DeepNeighbourClassObjective(DeepNeighbourObjective, NeighbourClassObjective):
    """The objective of classes with features that are trained."""

    def judged(self, numbers: Tensor, rows: Rows) -> Sequence[Tensor]:
        """Return the rows that the network has not seen."""
        return [numbers[: min(rows.n_held_out, JUDGED_TARGETS)]]


class Plain(NamedTuple):
    """The process on the inputs alone: its score on rows left out, and how to train it on all."""

    score: float
    is_cut: bool  # whether there was too little time for its start
    trained: Callable[[], NeighbourObjective]

"""Where NNGP starts: which smoothness suits the rows, and about which hyper-parameters.

Kernels of different smoothness ν climb on the log densities of the same rows, each given few rows
before it. Where they end, these are comparable, because their sums are densities of all rows, and
the kernels have as many hyper-parameters.

*Measured* against Adam alone (NLPD, CPU s): kin40k −1.157 in 10.5, −1.152 in 5.7; protein .245 in
8.8, .217 in 4.7; bike −11.80 in 6.6, −11.91 in 4.7; elevators .347 in 8.3, .350 in 5.6; 8,000 rows
of a Matérn-3/2 field .0950 with ν = 5/2 in 3.9, .0916 with ν = 3/2 in 2.4. Eleven tables of 500 and
1,500 rows take half the time; 20 are predicted better, 24 worse, by a median of .0005.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ... import kernels
from ...data.deadline import Deadline, has_passed
from ...data.rows import Rows
from ...kernels.sets import nearness, within
from ...likelihoods.real import Gaussian
from ...maths.nearest import Nearest
from ...models.posteriors.places import TINIEST, Observed
from ...objectives.neighbours import NeighbourObjective
from ...training.interrupts import was_interrupted
from ...training.loop import train
from ...training.optimizers import SCHEDULES, make_optimizer
from ...training.recipes.findings import LEAST_CORRELATION
from ...training.recipes.plan import epochs
from ...training.recipes.short_scales import set_scales, shorter
from ...training.starts import log_bounds, smoother
from ...training.tables import InMemory
from .climb import Climb

SMOOTHNESS = (1.5, 0.5, 2.5)
"""The first one is tried even if there is no time. *Measured* (NLPD, ν = 1/2, 3/2, 5/2): protein
.338, .471, .511; bike −7.86, −8.17, −7.86; kin40k −.51, −.95, −1.05."""

ROUNDS = ((512, 20, 10.0), (2048, 15, 8.0), (16384, 0, 0.0))
"""On the densities of how many rows kernels climb, in how many steps at most, and by how many nats
a kernel may be less likely than the best one and go on. *Measured*: of 18 fits to 50,000 rows of
Matérn-3/2 fields, ν was 5/2 in 5 when 4,096 rows had the last word, and is in none."""
FOR_ALL = 2048  # with more rows, only kernels climb that fewer could not tell apart
STEEP, SURE, MOST_AGAIN = 0.5, 0.25, 3
"""While a climb on `FOR_ALL` rows gains so many nats a row, it is far from its end, and a kernel
goes on, with another climb, if it lags by less than this share of what the best one has gained.
*Measured* on bike (2,500 rows, noise-free): ν = 5/2 led by 20 nats of 2,887 after one climb, and
was 2,400 behind at the end; NLPD −6.8 and −7.8 became −9.7 and −9.9."""

SHORTENING = 0.25  # factor of all length-scales, before kernels climb
MANY_INPUTS = 4  # for which a second climb starts from shorter length-scales
LONG = 0.5  # length-scale in spreads of the rows, from which on it may say nothing
NOISES = (0.4, 0.9)  # with which they are judged, too, in units of the variance of y

OWN_TIME = 0.4  # of the time that is left for all climbs, for one

SIGHT_ROWS, SIGHT_NEIGHBORS = 200, 16  # whose correlations are looked at
SEEN = 0.5  # correlation with near rows that a longer length-scale has at least
MOST_DOUBLINGS = 100


@torch.no_grad()
def in_sight(expression: sk.Kernel, X: Tensor) -> sk.Kernel:
    """Return a kernel under which rows near each other correlate: the same one if they do.

    Else they would teach nothing, as no gradient reaches them: all free length-scales are doubled,
    within their bounds, until they do. Each term of a sum is asked by itself, because one that is
    constant or linear correlates everywhere.
    """
    k = expression
    if type(k) is sk.Sum:
        return sk.Sum(in_sight(k.k1, X), in_sight(k.k2, X))
    if type(k) is sk.Product and type(k.k1) is sk.ConstantKernel:
        return sk.Product(k.k1, in_sight(k.k2, X))
    if type(k) is sk.Product and type(k.k2) is sk.ConstantKernel:
        return sk.Product(in_sight(k.k1, X), k.k2)
    return term_in_sight(k, X)


def term_in_sight(term: sk.Kernel, X: Tensor) -> sk.Kernel:
    """Return such a kernel for one term; the same one if it does not fall with distance."""
    G, found = X.double(), term
    kernel = kernels.from_sklearn(term).to(X.device)
    weight = nearness(kernel, G.shape[1])
    if len(G) < 2 or not bool(weight.any()):
        return term
    i = torch.linspace(0, len(G) - 1, min(SIGHT_ROWS, len(G)), device=G.device).long()
    near = Nearest(G * weight.sqrt().to(G)).others(i, SIGHT_NEIGHBORS)
    S = torch.cat([G[i][:, None], G[near]], 1)
    if correlation_within(kernel, S) >= LEAST_CORRELATION:
        return term
    for _ in range(MOST_DOUBLINGS):
        longer = rescaled(found, 2.0)
        if np.array_equal(longer.theta, found.theta):
            break
        found = longer
        if correlation_within(kernels.from_sklearn(found).to(X.device), S) >= SEEN:
            break
    return found


def rescaled(kernel: sk.Kernel, factor: float) -> sk.Kernel:
    """Return the kernel with all free length-scales multiplied, within their bounds."""
    found = smoother(kernel, factor)
    if found.n_dims:
        found.theta = np.clip(found.theta, *log_bounds(found).T)
    return found


def correlation_within(kernel: kernels.Kernel, S: Tensor) -> float:
    """Return the median correlation of f at the first row of sets S with that at the others."""
    K = within(kernel, S).expand(len(S), S.shape[1], -1)
    variance = K.diagonal(dim1=-2, dim2=-1)
    return float((K[:, 0] / (variance[:, :1] * variance).sqrt())[:, 1:].median())


def with_shorter_scales(
    objective: NeighbourObjective, X: Tensor, seen: Observed
) -> tuple[sk.Kernel, Tensor] | None:
    """Return a kernel of which some length-scales are shorter, and σ², if rows are likelier.

    It is None if there are none, or if the kernel is none of distances, or y is not real.
    """
    likelihood = objective.likelihood
    if not isinstance(likelihood, Gaussian):
        return None
    with torch.no_grad():
        D, y = seen.means(torch.arange(len(X), device=X.device), likelihood.noise_variance)
        precision = 1.0 / D.mean(1).clamp_min(TINIEST)
        new = shorter(objective.kernel, X, y - objective.mean, precision)
        if new is None:
            return None
        kernel = copy.deepcopy(objective.kernel)
        set_scales(kernel, new)
    return kernels.to_sklearn(kernel), new.noise


def likeliest(
    made: Sequence[NeighbourObjective], X: Tensor, seen: Observed, part: Deadline | None = None
) -> NeighbourObjective:
    """Climb with each objective, and return the one that fits best.

    The first one climbs in any case, others if there is time in this part of the fit.
    """
    left = list(made)
    for n_rows, n_steps, tie in ROUNDS:
        if n_rows > FOR_ALL and (len(left) == 1 or len(X) <= FOR_ALL):
            break
        for _ in range(1 + MOST_AGAIN):
            reached, gained = climbed(left, X, seen, n_rows, n_steps, part)
            best_first = sorted(left, key=lambda each: -reached[each])
            best = best_first[0]
            is_steep = n_rows == FOR_ALL and gained[best] > STEEP * min(n_rows, len(X))
            most = SURE * gained[best] if is_steep else tie
            left = [each for each in best_first if reached[each] >= reached[best] - most]
            if not is_steep or len(left) == 1 or is_over(part):
                break
    for objective in made:
        objective.detach_rows()
    left[0].start_is_cut = any(objective.start_is_cut for objective in made)
    return left[0]


def climbed(
    left: Sequence[NeighbourObjective],
    X: Tensor,
    seen: Observed,
    n_rows: int,
    n_steps: int,
    part: Deadline | None,
) -> tuple[dict[NeighbourObjective, float], dict[NeighbourObjective, float]]:
    """Return the log density of some rows that each objective reaches, and what it has gained."""
    reached, gained = dict.fromkeys(left, -math.inf), dict.fromkeys(left, 0.0)
    for each in left:
        if is_over(part) and left[0].n_done:
            each.start_is_cut = True
            continue
        own = None if part is None else part.part(OWN_TIME)
        for _ in range(each.n_parts):
            climb = Climb(each, X, seen, n_rows, own)
            reached[each] = climb.run(n_steps // each.n_parts)
            gained[each] += climb.gained
            if is_over(own):
                break
    return reached, gained


def in_range(
    make: Callable[[sk.Kernel], NeighbourObjective],
    expressions: Sequence[sk.Kernel],
    X: Tensor,
    seen: Observed,
    deadline: Deadline | None = None,
    is_given: bool = False,
) -> list[NeighbourObjective]:
    """Return objectives of each kernel, the first with the shortened length-scales that fit best.

    They are not shorter than rows are apart, n^(−1/d). Climbs stay in a box about their start, and
    would end before they reach short ones: *measured* on 100,000 rows of fields in the plane, with
    ranges of .03, ν = 1/2 was then chosen for 3/2, and the variance was five to eight times too
    large. Each length-scale is judged with the noise that suits it, because a function that varies
    fast is likelier than none where there is more noise than at the start. Between those that see
    none of it, chance decides, so all are tried. If the noise cannot be so large, or there is none
    as for classes, f would be that noise: the first that is not likelier ends the search. Given
    kernels start where they are then, or if a length-scale is below half the spread of rows.

    Of many inputs, rows are too far apart for that, and a climb from length-scales of √d spreads
    misses one that is short. So another one starts from one spread. *Measured* on humidity by hour
    and day (1,000 rows, 28 inputs): NLPD .56 → .49 and .57 → .55 in 1.2 times the time; ten other
    fits stay as they are.
    """
    d = max(int((X[0] != X).any(0).sum()), 1)
    n_shorter = int(math.log(len(X) ** (-1.0 / d), SHORTENING))
    chosen, found = [], None
    for expression in expressions:
        best, highest = make(expression), -math.inf
        has_noise = best.noise_bounds[0] <= NOISES[0] and NOISES[-1] <= best.noise_bounds[1]
        is_asked = not is_given or (has_noise and is_long(expression, X))
        starts = with_shorter(expression, n_shorter if is_asked else 0)
        for k, each in enumerate(starts if len(starts) > 1 else ()):
            if is_over(deadline):
                break
            tried = make(each) if k else best
            climb = Climb(tried, X, seen, ROUNDS[0][0], None, found)
            if has_noise:
                found = climb.i, climb.N  # the same, as length-scales are shortened together
            value = climb.settle_noise(NOISES) if has_noise else climb.value()
            tried.detach_rows()
            if value > highest:
                best, highest = tried, value
            elif not has_noise:
                break
        chosen.append(best)
        shorter = rescaled(expression, d**-0.5)
        is_free = not np.array_equal(shorter.theta, expression.theta)
        if has_noise and d >= MANY_INPUTS and is_free and is_long(expression, X):
            chosen.append(make(shorter))
    return chosen


def is_long(expression: sk.Kernel, X: Tensor) -> bool:
    """Tell whether no free length-scale of a kernel is below half the spread of rows."""
    spread, values = X.double().std(0, correction=0).cpu().numpy(), expression.get_params()
    names = [h.name for h in expression.hyperparameters if not h.fixed]
    least = LONG * spread
    return all(np.all(values[n] >= least) for n in names if n.endswith("length_scale"))


def with_shorter(expression: sk.Kernel, most: int) -> list[sk.Kernel]:
    """Return a kernel, and others whose free length-scales are shortened, within their bounds."""
    found = [expression]
    for k in range(1, most + 1):
        shorter = rescaled(expression, SHORTENING**k)
        if np.array_equal(shorter.theta, found[-1].theta):
            break
        found.append(shorter)
    return found


def is_over(deadline: Deadline | None) -> bool:
    """Tell whether there is no time left, or the user has interrupted the fit."""
    return was_interrupted() or has_passed(deadline)


def train_briefly(
    objective: NeighbourObjective,
    X: Tensor,
    rows: Rows,
    rate: float,
    batch_size: int,
    generator: torch.Generator,
    n_steps: int,
    deadline: Deadline | None = None,
) -> None:
    """Train an objective for so many steps, or for fewer by a deadline."""
    table = InMemory(X, rows).trained(0, objective.minibatch_source)
    history = train(
        objective,
        table,
        optimizer=make_optimizer("adam", objective.param_groups(), rate, objective.step_end),
        max_iter=epochs(n_steps, table.n_rows, batch_size),
        batch_size=batch_size,
        schedule=SCHEDULES["one-cycle"],
        generator=generator,
        deadline=deadline,
    )
    objective.start_is_cut |= history.status == "deadline"

"""One training run: what is trained on which rows, from how many starts, and in which time."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from joblib import Parallel, delayed

from ..data.arrays import resolve_seed
from ..data.deadline import Allowance, Clock, Deadline
from ..data.devices import is_host, resolve_device
from ..data.equal_rows import (
    MERGED_ROWS,
    copies_last,
    merged,
    observations,
    ordered,
    with_places,
    with_possible_counts,
)
from ..data.rows import Data
from ..kernels import to_sklearn
from ..kernels.matrices import set_theta
from ..likelihoods.real import AdditiveNoise
from ..maths.linalg import NotPositiveDefiniteError
from ..models.posteriors.base import Posterior
from ..objectives.base import Objective
from ..objectives.closing import FULL, N_EVALUATIONS, SHORT, SURE, Budget, members_in_time
from ..training.checkpoint import (
    AnyCheckpoint,
    CheckpointOfGroup,
    checkpoint_of,
    copy_of,
    same_form,
    seed_of,
)
from ..training.history import History
from ..training.interrupts import was_interrupted
from ..training.loop import Observer, Trainer, train
from ..training.observers import Saved
from ..training.optimizers import make_optimizer
from ..training.recipes.exact_start import learn, search_again
from ..training.recipes.plan import Plan, Start, within_sample
from ..training.recipes.recipe import Problem, Recipe
from ..training.starts import LATENT_VARIANCE, NOISE_SHARES, likely_bounds, threads_as
from ..training.tables import InMemory, Sampled, Table
from .importances import spread_of
from .weights import warn_of_fractions

BATCH_LAYERS = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
)
INSTANCE_LAYERS = (torch.nn.InstanceNorm1d, torch.nn.InstanceNorm2d, torch.nn.InstanceNorm3d)

TRIAL_STEPS, TRIAL_SECONDS = 5, 0.2  # steps that are timed, and seconds after which they end


class Run(NamedTuple):
    """A problem, and what solves it."""

    problem: Problem
    objective: Objective
    optimizer: torch.optim.Optimizer | None
    checkpoint: AnyCheckpoint | None = None
    deadline: Deadline | None = None  # of training
    all_members: int = 1  # without a deadline
    whole: Allowance | None = None  # of training and the closing pass, if there is a deadline

    @property
    def table(self) -> Table:
        """The rows."""
        return self.problem.table

    @property
    def plan(self) -> Plan:
        """How to train."""
        return self.problem.plan

    @property
    def n_untrained(self) -> int:
        """How many of the first rows no member is trained on."""
        return self.plan.folds.n_untrained if self.plan.folds.size else 0

    def minibatches(self) -> Table:
        """Return the source of minibatches, made from rows that some member trains on."""
        return self.table.trained(self.n_untrained, self.objective.minibatch_source)

    def solution(self) -> Posterior:
        """Return the posterior at the present iterate; a quick one after an interrupt."""
        if self.table.group.size == 1 and was_interrupted():
            self.objective.closing = SHORT
        return self.objective.solution(*self.table.every_row())

    def seen_solution(self) -> Posterior:
        """Return the same on one rank alone; in a group, the posterior of the sample."""
        if self.table.group.size == 1:
            return self.solution()
        return self.objective.solution(self.problem.X, self.problem.rows)


def in_units(recipe: Recipe, data: Data, start: Start | None) -> InMemory:
    """Return rows in memory, merged as the recipe allows."""
    table = InMemory(data=data, places=np.arange(len(data)), n_given=data.size)
    rule, are_many = recipe.equal_rows, len(data) > MERGED_ROWS
    if not recipe.weighs_relatively:
        warn_of_fractions(data.weight)
    if rule == "as given" or (rule == "keep" and are_many):
        return replace(table, data=with_possible_counts(data))
    if rule == "keep":
        units, places = ordered(data)
    elif rule == "copies last" and are_many:
        units, places, n_distinct = copies_last(data)
        table = replace(table, n_distinct=n_distinct)
    elif recipe.keeps_apart(recipe.plan(table.sizes, start)):
        units, places = observations(data, len(data) if rule == "merge many" else None)
        units = with_places(units) if recipe.holds_out_places else units
    else:
        units, places = merged(data)
    if not recipe.weighs_relatively or units.weight is None:
        return replace(table, data=with_possible_counts(units), places=places)
    unit = usual_weight(units.weight)
    return replace(table, data=units.in_unit(unit), places=places, weight_unit=unit)


def usual_weight(weight: np.ndarray) -> float:
    """Return the mean of weights, or their median if a few make the mean more than twice as large.

    One weight of 10,000 among 80 rows made the noise of new rows 130 times too small.
    """
    if not np.ptp(weight):
        return float(weight[0])
    mean, median = float(weight.mean()), float(np.median(weight))
    return mean if mean <= 2.0 * median else median


def prepared(estimator: Any, recipe: Recipe, table: Table, start: Start | None) -> Run:
    """Plan, scale the rows, and make the objective."""
    plan = recipe.plan(table.sizes, start)
    if isinstance(table, Sampled):
        plan = within_sample(plan, len(table.data))
    checkpoint, seed = kept(estimator, table, start, plan.beta)
    generator = torch.Generator(resolve_device(estimator.device)).manual_seed(seed)
    set_scalings(estimator, recipe, table.data, start)
    estimator._weight_unit = table.weight_unit
    table = table.scaled(estimator._tensors, plan, generator)
    problem = Problem.of(table, estimator._x_scaling, plan, generator, start)
    if recipe.deadline is None:
        return begin(recipe, problem, checkpoint)
    return begin_in_time(recipe, problem, checkpoint, recipe.deadline)


def set_scalings(estimator: Any, recipe: Recipe, data: Data, start: Start | None) -> None:
    """Set the scalings of X and y; those of X stay in a warm start."""
    if start is None:
        estimator._x_scaling = recipe.input_scaling(data.X, data.weight)
        estimator._x_spread = spread_of(data.X, data.weight)
    elif len(estimator._x_scaling.offset) != data.X.shape[1]:
        raise ValueError(
            f"X has {data.X.shape[1]} features, but warm_start=True continues a fit "
            f"with {len(estimator._x_scaling.offset)}."
        )
    estimator._y_scaling = recipe.target_scaling(data)


def kept(estimator: Any, table: Table, *more: Any) -> tuple[AnyCheckpoint | None, int]:
    """Return the checkpoint of exactly this fit, if there shall be one, and the fit's seed."""
    if isinstance(table, Sampled):  # the sample may be that of other rows
        seed, more = table.seed, (*more, (table.whole.n_rows, table.whole.weight))
    else:
        seed = resolve_seed(estimator.random_state)
    if estimator.checkpoint_dir is None:
        return None, seed
    file = checkpoint_of(estimator, table.data, seed, *more)
    seed = seed_of(estimator, file, seed)
    return CheckpointOfGroup(file, table.group) if isinstance(table, Sampled) else file, seed


def begin(recipe: Recipe, problem: Problem, checkpoint: AnyCheckpoint | None) -> Run:
    """Make the objective and its optimiser."""
    problem = problem._replace(start=recipe.start(problem))
    plan, objective = problem.plan, recipe.objective(problem).to(problem.X.device)
    if problem.table.group.size > 1:
        refuse_batch_statistics(objective)
    if checkpoint is not None and problem.table.group.flag(was_interrupted()):
        checkpoint = None  # this run starts where a search was cut, and not where the fit does
    optimizer = optimizer_of(objective, plan)
    if optimizer is None and objective.is_closed():  # there is nothing to train, only to solve
        problem = problem._replace(plan=replace(plan, max_iter=1))
    return Run(problem, objective, optimizer, checkpoint, all_members=plan.folds.n_folds)


def refuse_batch_statistics(objective: torch.nn.Module) -> None:
    """Raise a ValueError if a layer of the user averages over the rows of a minibatch."""
    for layer in objective.modules():
        if averages_rows(layer):
            raise ValueError(
                f"feature_map must not contain {type(layer).__name__} in a group of "
                "processes, because each rank would average over its own rows only. Use "
                "LayerNorm or GroupNorm."
            )


def averages_rows(layer: torch.nn.Module) -> bool:
    """Tell whether a torch layer averages over the rows of a minibatch."""
    if isinstance(layer, INSTANCE_LAYERS):
        return layer.track_running_stats
    return isinstance(layer, BATCH_LAYERS)


def optimizer_of(objective: Objective, plan: Plan) -> torch.optim.Optimizer | None:
    """Return a new optimiser of an objective's parameters."""
    return make_optimizer(plan.solver, objective.param_groups(), plan.rate, objective.step_end)


def train_run(run: Run, *observers: Observer) -> History:
    """Train a run in place."""
    objective, plan = run.objective, run.plan
    saved = [] if run.checkpoint is None else [Saved(run.checkpoint)]
    return train(
        objective,
        run.minibatches(),
        optimizer=run.optimizer,
        deadline=run.deadline,
        max_iter=plan.max_iter,
        batch_size=plan.batch_size,
        schedule=plan.schedule,
        generator=run.problem.generator,
        evaluate=functools.partial(objective.evaluate, run.problem.X, run.problem.rows)
        if plan.evaluates
        else None,
        # L-BFGS often ends after few epochs, which must not depend on max_iter.
        evaluate_every=1 if plan.solver == "lbfgs" else math.ceil(plan.max_iter / N_EVALUATIONS),
        n_iter_no_change=plan.patience,
        tol=plan.tol,
        observers=[*saved, *observers],
    )


# ---- a deadline ----------------------------------------------------------------------------------


def begin_in_time(
    recipe: Recipe,
    problem: Problem,
    checkpoint: AnyCheckpoint | None,
    deadline: Deadline,
) -> Run:
    """Make a run that ends before a deadline, with fewer members if that predicts better."""
    state, whole = problem.generator.get_state(), Allowance(deadline)
    whole.used()  # counts from here
    run = begin(recipe, problem, checkpoint)
    all_members = run.all_members
    per_step, begun = seconds_per_step(run, deadline.clock), problem.generator.get_state()

    def with_members(n_members: int) -> Run:
        if n_members >= all_members:
            problem.generator.set_state(begun)
            return run
        problem.generator.set_state(state)  # so networks are those of a fit with so many members
        return begin(recipe, with_fewer(recipe, problem, n_members), checkpoint)

    resumed = run_to_resume(with_members, checkpoint, problem.X.device)
    if resumed is None:
        n_members = members_in_time(all_members, n_steps(run), deadline.left() / per_step)
        resumed = with_members(n_members)
    run = resumed
    per_step *= run.plan.folds.n_folds / all_members
    closing = run.objective.hurry(
        run.problem.X, run.problem.rows, deadline, n_steps(run) * per_step
    )
    deadline = deadline.earlier(SURE * closing)
    return run._replace(deadline=deadline, all_members=all_members, whole=whole)


def n_steps(run: Run) -> int:
    """Return the number of steps of a run that nothing cuts short."""
    return run.plan.max_iter * -(-run.minibatches().n_rows // run.plan.batch_size)


def seconds_per_step(run: Run, clock: Clock) -> float:
    """Measure the time of a training step, and leave everything as it was.

    The first step does not count: it imports what torch's optimisers need, and sets up kernels.
    """
    plan, objective = run.plan, run.objective
    before, seconds = copy_of(objective.state_dict()), [clock()]
    generator = torch.Generator(run.problem.X.device)
    generator.set_state(run.problem.generator.get_state())
    source = run.minibatches()
    options: dict[str, Any] = {"max_iter": plan.max_iter, "batch_size": plan.batch_size}
    trial = Trainer(
        objective,
        optimizer_of(objective, plan),
        source,
        schedule=plan.schedule,
        generator=generator,
        **options,
    )
    objective.train()
    with objective.undisturbed(run.problem.X.device):
        while len(seconds) < 2 + TRIAL_STEPS and (
            len(seconds) < 3 or seconds[-1] - seconds[1] < TRIAL_SECONDS
        ):
            float(trial.train_step(*source.drawn(plan.batch_size, generator)))  # waits for its end
            seconds.append(clock())
    objective.load_state_dict(before)
    return statistics.median(b - a for a, b in itertools.pairwise(seconds[1:]))


def with_fewer(recipe: Recipe, problem: Problem, n_members: int) -> Problem:
    """Return the problem of a fit with fewer members."""
    plan = recipe.plan_of(problem.table.sizes, n_members)
    if isinstance(problem.table, Sampled):
        plan = within_sample(plan, len(problem.X))
    table = problem.table.folded(plan.folds.numbers(len(problem.X), problem.X.device))
    return problem._replace(plan=plan, rows=table.rows, table=table)


def run_to_resume(
    with_members: Callable[[int], Run], checkpoint: AnyCheckpoint | None, device: torch.device
) -> Run | None:
    """Return a run with as many members as a killed fit had, if its checkpoint is one's of it."""
    if checkpoint is None:
        return None
    with contextlib.suppress(Exception):  # a damaged file is reported where it is read to resume
        state = checkpoint.load(device)
        if state is not None and (n_members := len(state["objective"]["folds"])) > 0:
            run = with_members(n_members)
            return run if same_form(run.objective.state_dict(), state["objective"]) else None
    return None


def budget_of(run: Run, history: History) -> Budget | None:
    """Return what there was time for, and what was planned; None without a limit.

    Also None after an interrupt, which cut what the limit did not.
    """
    if run.deadline is None or was_interrupted():
        return None
    n_members, closing = run.plan.folds.n_folds, run.objective.closing
    start_is_cut = run.objective.start_is_cut
    done, wanted = history.n_steps, n_steps(run)
    is_cut = history.status == "deadline" and done < wanted
    is_cut = is_cut or n_members < run.all_members or closing != FULL or start_is_cut
    members = n_members, run.all_members
    budget = Budget(done, wanted, *members, closing.name, not is_cut, start_is_cut=start_is_cut)
    if isinstance(run.table, Sampled) or not is_host(run.problem.X.device):
        return budget  # its thread also waits for other ranks, for rows or for a device
    unused = 0.0 if run.whole is None else 1.0 - run.whole.share()
    n_threads = torch.get_num_threads()
    return budget._replace(core_share=history.core_share, n_threads=n_threads, unused=unused)


# ---- several starts ------------------------------------------------------------------------------


SCALE_ROWS = 2000  # whose span tells which length-scales are likely


class Trained(NamedTuple):
    """A run after training, what happened, and the loss of all rows."""

    run: Run
    history: History
    loss: float


def best_of_restarts(run: Run, train_first: Callable[[Run], History]) -> tuple[Run, History]:
    """Train a run, and its restarts if it has any (n_restarts); return the best.

    The first training begins where it does without restarts. The others begin at random
    hyper-parameters of kernel and noise, in ranges that suit the scale of the rows
    (:mod:`skgpstoch.training.starts`); all else starts the same. They are independent joblib jobs,
    so how many run at a time does not change the result.

    An interrupt ends the training that is running, and those that have not begun.
    """
    others = restarts(run) if run.plan.n_restarts else []
    history = train_first(run)
    if history.status in run.plan.seeks_shorter:
        seek_shorter(run)
    if not others:
        return run, history
    best = Trained(run, history, loss_of(run))
    if history.status != "interrupted" and not was_interrupted():
        n_threads = torch.get_num_threads()
        jobs = (delayed(train_again)(other, n_threads) for other in others)
        for trained in Parallel(return_as="generator")(jobs):
            best = min(best, trained, key=lambda t: t.loss)
            if trained.history.status == "interrupted" or was_interrupted():
                break
    return best.run._replace(problem=run.problem, checkpoint=run.checkpoint), best.history


def seek_shorter(run: Run) -> None:
    """Train a run again from shorter length-scales, while all its rows are likelier with them."""
    objective, problem, plan = cast(Any, run.objective), run.problem, run.plan
    X, rows = problem.X, problem.rows
    search = functools.partial(learn, objective, problem, X, rows, plan.max_iter, plan.tol)
    search_again(search, objective, X, rows)


def restarts(run: Run) -> list[Run]:
    """Return copies of a run at other hyper-parameters, drawn by its generator's seed."""
    objective: Any = run.objective
    likely, learns_noise = likely_hyperparameters(objective, run)
    random_state = np.random.RandomState(run.problem.generator.initial_seed() % 2**32)
    runs = []
    low, high = likely.T
    for theta in random_state.uniform(low, high, (run.plan.n_restarts, len(likely))):
        moved = copy.deepcopy(objective)
        of_kernel = theta[:-1] if learns_noise else theta
        free = [p for p in moved.model.features.kernel.parameters() if p.requires_grad]
        set_theta(free, of_kernel)
        if learns_noise:
            moved.model.likelihood.log_noise.data.fill_(theta[-1])
        moved.step_end()  # within bounds
        generator = torch.Generator(run.problem.X.device).manual_seed(
            run.problem.generator.initial_seed()
        )
        table = InMemory(run.problem.X, run.problem.rows)  # without what other processes need not
        problem = run.problem._replace(generator=generator, table=table)
        runs.append(run._replace(problem=problem, objective=moved, checkpoint=None))
    return runs


@torch.no_grad()
def likely_hyperparameters(objective: Any, run: Run) -> tuple[np.ndarray, bool]:
    """Return likely ranges of the trained ones, (n, 2), and whether the last is the noise."""
    features, likelihood = objective.model.features, objective.model.likelihood
    is_real = isinstance(likelihood, AdditiveNoise)
    variance = float(run.problem.rows.y.var(0, correction=0).mean()) if is_real else LATENT_VARIANCE
    some = features.network(run.problem.X[:SCALE_ROWS]).cpu().double().numpy()
    bounds = likely_bounds(to_sklearn(features.kernel), some, variance)
    free = [p.requires_grad for p in features.kernel.parameters() for _ in range(p.numel())]
    bounds = bounds[np.array(free, dtype=bool)]
    noise = getattr(likelihood, "log_noise", None)  # Laplace noise has another scale, not drawn
    if not (is_real and noise is not None and noise.requires_grad):
        return bounds, False
    of_noise = np.clip(np.log(np.multiply(NOISE_SHARES, variance)), *objective.log_noise_bounds)
    return np.vstack([bounds, of_noise]), True


def train_again(run: Run, n_threads: int) -> Trained:
    """Train from one start, in any process; if that fails, the loss is infinite."""
    run = run._replace(optimizer=optimizer_of(run.objective, run.plan))
    try:
        with threads_as(n_threads):
            history = train_run(run)
            return Trained(run, history, loss_of(run))
    except NotPositiveDefiniteError:
        return Trained(run, History(status="failed"), math.inf)


def loss_of(run: Run) -> float:
    """Return the loss of all rows, per row; infinite rather than NaN."""
    loss = run.objective.evaluate(run.problem.X, run.problem.rows)
    return loss if math.isfinite(loss) else math.inf

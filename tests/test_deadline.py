"""Fits that end by a deadline; clocks are pretended, so nothing here waits or depends on speed."""

import dataclasses
import itertools
import warnings

import numpy as np
import pytest
import torch
from families import by_default
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from skgpstoch import DeepKernelEnsembleClassifier, DeepKernelEnsembleRegressor
from skgpstoch.data.deadline import Allowance, Deadline, seconds_left
from skgpstoch.data.rows import Rows
from skgpstoch.objectives.base import Objective
from skgpstoch.objectives.closing import (
    FULL,
    LEAST_JUDGES,
    SURE,
    Budget,
    Closing,
    ClosingCost,
    extrapolated,
    members_in_time,
)
from skgpstoch.objectives.ensemble import EnsembleObjective
from skgpstoch.objectives.optimal_q import damped_newton
from skgpstoch.training import checkpoint as checkpoints
from skgpstoch.training.checkpoint import Checkpoint
from skgpstoch.training.history import HURRIED_STEPS
from skgpstoch.training.loop import Observer, train
from skgpstoch.training.observers import Saved
from skgpstoch.training.optimizers import make_optimizer, one_cycle
from skgpstoch.training.tables import InMemory

N_ROWS, BATCH = 40, 10  # four steps an epoch


class Clock:
    """Tells the time that it is told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Slow(Objective):
    """A parabola whose steps and evaluations take pretended time, and that notes its rates."""

    def __init__(self, clock, per_step=1.0, per_score=0.0):
        super().__init__()
        self.x = nn.Parameter(torch.ones(1))
        self.clock, self.per_step, self.per_score = clock, per_step, per_score
        self.rates, self.scored_at = [], []

    def forward(self, X, rows, generator):
        self.rates.append(self.optimizer.param_groups[-1]["lr"])
        self.clock.now += self.per_step
        return (self.x - 0.3).square().sum()

    def evaluate(self):
        self.clock.now += self.per_score
        self.scored_at.append(len(self.rates))
        return float((self.x.detach() - 0.3).square().sum())


def run(objective, seconds=None, max_iter=25, **options):
    """Train it, at most 100 steps, and return the history."""
    objective.optimizer = make_optimizer("adam", objective.param_groups(), 0.1)
    deadline = None
    if seconds is not None:
        deadline = Deadline(objective.clock() + seconds, objective.clock, objective.clock)
    X = torch.zeros(N_ROWS, 1)
    return train(
        objective,
        InMemory(X, Rows(X)),
        optimizer=objective.optimizer,
        deadline=deadline,
        max_iter=max_iter,
        batch_size=BATCH,
        schedule=one_cycle,
        generator=torch.Generator().manual_seed(0),
        evaluate=objective.evaluate,
        **options,
    )


# ---- clocks ------------------------------------------------------------------------------------


def test_a_deadline_tells_what_is_left():
    clock = Clock()
    deadline = Deadline(110.0, clock)
    assert deadline.left() == 10.0
    assert deadline.earlier(4.0).left() == 6.0
    assert seconds_left(None) is None
    clock.now = 111.0
    assert deadline.left() == -1.0
    assert seconds_left(deadline) > 0.0


def test_an_allowance_begins_when_it_is_first_looked_at():
    clock = Clock()
    allowance = Allowance(Deadline(110.0, clock), spent=0.0)
    clock.now = 105.0
    assert allowance.share() == 0.0
    clock.now = 107.0
    assert_allclose(allowance.share(), 0.4)
    resumed = Allowance(Deadline(117.0, clock), spent=allowance.used())
    assert_allclose(resumed.share(), 0.2)
    assert Allowance(Deadline(90.0, clock)).share() == 1.0


# ---- training ----------------------------------------------------------------------------------


def test_with_ample_time_training_is_what_it_is_without_a_limit():
    free, ample = Slow(Clock()), Slow(Clock())
    expected, history = run(free), run(ample, seconds=1000.0)
    assert history.status == expected.status == "max_iter"
    assert ample.rates == free.rates
    assert history == expected
    assert torch.equal(ample.x, free.x)


@pytest.mark.parametrize("seconds", [25.5, 33.0, 60.0, 99.0])
def test_the_schedule_ends_with_the_time(seconds):
    objective = Slow(Clock())
    history = run(objective, seconds)
    assert history.status == "deadline"
    assert history.n_steps == len(objective.rates)
    assert seconds - 1.0 <= history.n_steps <= seconds + 1.0
    expected = [0.1 * one_cycle(100.0 * i / seconds, 100) for i in range(history.n_steps)]
    assert_allclose(objective.rates[HURRIED_STEPS:], expected[HURRIED_STEPS:], rtol=1e-6, atol=1e-9)
    assert objective.rates[-1] < 0.06 * max(objective.rates)


def test_steps_that_become_slower_bend_the_schedule():
    objective = Slow(Clock())
    forward = objective.forward

    def slower(*args):
        objective.per_step = 1.0 if len(objective.rates) < 30 else 3.0
        return forward(*args)

    objective.forward = slower
    history = run(objective, seconds=60.0)
    assert history.n_steps == 40
    assert objective.clock.now - 100.0 <= 62.0
    assert objective.rates[-1] < 0.02 * max(objective.rates)


def test_the_last_iterate_is_scored_before_the_deadline():
    objective = Slow(Clock(), per_step=0.7, per_score=3.0)
    history = run(objective, seconds=81.5, max_iter=1000)
    assert objective.clock.now - 100.0 <= 82.5
    assert history.scored_epochs[-1] == history.n_iter
    assert history.n_steps % (N_ROWS // BATCH)  # the last epoch was cut short


def test_there_are_a_few_steps_without_any_time():
    objective = Slow(Clock())
    history = run(objective, seconds=-3.0)
    assert history.n_steps == HURRIED_STEPS
    assert max(objective.rates) > 4.0 * objective.rates[-1]
    assert np.isfinite(history.best_score)


def test_long_epochs_are_scored_as_often_as_time_asks_for():
    """A deadline far before the last epoch: scores follow the time, not the number of epochs."""
    objective = Slow(Clock(), per_step=0.25)
    run(objective, seconds=20.0, max_iter=500, evaluate_every=20)
    assert 20 <= len(objective.scored_at) <= 27


def test_a_resumed_run_has_what_was_left(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.0)
    whole, killed, resumed = (Slow(Clock()) for _ in range(3))
    expected = run(whole, seconds=60.0)

    class Killer(Observer):
        def on_epoch(self, trainer):
            if trainer.history.n_iter == 7:
                raise RuntimeError("killed")

    saved = Saved(Checkpoint(tmp_path, "a"))

    with pytest.raises(RuntimeError, match="killed"):
        run(killed, 60.0, observers=[saved, Killer()])
    history = run(resumed, 60.0, observers=[Saved(Checkpoint(tmp_path, "a"))])
    assert history.status == "deadline"
    assert history.n_steps == expected.n_steps
    assert len(resumed.rates) == expected.n_steps - 28
    assert_allclose(resumed.rates, whole.rates[28:])
    assert torch.equal(resumed.x, whole.x)
    assert not list(tmp_path.iterdir())


def test_time_goes_on_where_training_is_rolled_back():
    objective = Slow(Clock())
    forward, diverges = objective.forward, iter([False] * 20 + [True] + [False] * 100)

    def diverging(*args):
        return forward(*args) * (torch.nan if next(diverges) else 1.0)

    objective.forward = diverging
    history = run(objective, seconds=50.0)
    assert history.n_rollbacks == 1
    assert 50.0 <= objective.clock.now - 100.0 <= 51.0


# ---- what there is time for --------------------------------------------------------------------


def test_fewer_networks_are_trained_where_there_is_little_time():
    assert members_in_time(8, 900, np.inf) == members_in_time(8, 900, 900) == 8
    assert members_in_time(8, 900, 301) == 8
    found = [members_in_time(8, 900, n) for n in (0, 10, 100, 150, 200, 299)]
    assert found == sorted(found)
    assert found[0] == 1
    assert found[-1] < 8
    assert members_in_time(1, 900, 0) == 1


def test_the_closing_pass_is_as_thorough_as_time_allows():
    cost = ClosingCost(of_weights=1.0, of_calibration=0.5)
    full = SURE * cost.of(FULL)
    assert cost.choose(10.0 + full, 10.0) == FULL
    assert cost.choose(9.9 + full, 10.0) == Closing("short")
    assert cost.choose(2.5, 0.01).name == "short"
    assert cost.choose(5.0, 10.0) == Closing("none")
    assert cost.of(FULL) > cost.of(Closing("short")) > cost.of(Closing("none"))
    assert ClosingCost(0.05, 0.05).choose(-1.0, 10.0) == Closing("short")
    hurried = ClosingCost(0.0, 10.0).choose(20.0, 40.0)  # of many rows, some judge
    assert 0.2 < hurried.judging < 0.3
    assert ClosingCost(0.0, 10.0).of(hurried) == 10.0 * hurried.judging


def test_scores_of_iterates_and_predictions_for_held_out_rows_take_their_time():
    slow = ClosingCost(0.0, 0.0, of_predictions=5.0, of_scoring=1.0)
    assert slow.choose(60.0, 10.0) == FULL
    hurried = slow.choose(20.0, 10.0)  # ten seconds of steps, 25 of scores and 5 of predictions
    assert hurried.name == "short"
    assert_allclose(hurried.scoring, 0.4)
    assert_allclose(hurried.judging, 3.0 / (SURE * 5.0))
    assert_allclose(slow.of(hurried), 5.0 * hurried.judging)
    assert 0.0 < slow.choose(-1.0, 10.0).scoring < 0.02


def test_what_was_cut_is_said_in_full():
    said = Budget(120, 900, 3, 8, "short", False).shortage
    assert said == (
        "max_time was too short: it allowed 120 of 900 steps, 3 of 8 networks and part of "
        "the closing pass over all rows. More time gives better predictions."
    )
    busy = Budget(430, 6116, 8, 8, "full", False, 0.4, 4).shortage
    assert busy.startswith("max_time was too short: it allowed 430 of 6116 steps. ")
    assert "had a core for only 40% of its time" in busy
    assert "torch used 4 threads" in busy
    assert "torch.set_num_threads(1)" in busy
    assert "threads" not in Budget(430, 6116, 8, 8, "full", False, 0.4, 1).shortage
    assert "busy" not in Budget(430, 6116, 8, 8, "full", False, 0.9, 4).shortage
    said = Budget(9, 900, 1, 1, "full", False, start_is_cut=True).shortage
    assert "it allowed part of the search for a start and 9 of 900 steps." in said
    said = Budget(900, 900, 1, 1, "full", False, unused=0.36, start_is_cut=True).shortage
    assert "slow" not in said  # the search takes a share of the time, whatever the machine
    assert "part of the search for a start, which may take only a share of it, and 36% was" in said
    late = Budget(20, 900, 1, 1, "full", False, unused=-3.0).shortage
    assert "The fit took 4 times as long" in late
    said = Budget(900, 900, 2, 2, "none", False).shortage
    assert said.startswith(
        "max_time was too short: it allowed none of the closing pass over all rows. "
    )


def test_seconds_of_many_rows_follow_from_those_of_few():
    def seconds(n):
        return 2.0 + 0.01 * n

    for n_rows in (5, 100, 700, 10_000):
        assert_allclose(extrapolated(seconds, n_rows), seconds(n_rows))


def test_newton_steps_end_with_the_time():
    calls = []

    def survey(q, exact):
        calls.append(q)
        return -(q - 1.0).square().sum(), 0.5 * (q + 1.0)

    start, limits = torch.zeros(1), (0.0, 1e-12, 12)
    late, _ = damped_newton(survey, lambda s: s, start, *limits, Deadline(99.0, Clock()))
    assert torch.equal(late.q, start)
    assert len(calls) == 1
    ample, _ = damped_newton(survey, lambda s: s, start, *limits, Deadline(101.0, Clock()))
    assert_allclose(float(ample.q), 1.0, atol=1e-2)


# ---- estimators --------------------------------------------------------------------------------


def table(n=120):
    X = np.random.default_rng(0).uniform(-3, 3, (n, 2))
    return X, np.sin(X[:, 0]) + 0.1 * X[:, 1]


def fit_by(model, seconds, tick, n=120, core_share=1.0, slow=0.0):
    """Fit by a clock that goes on by `tick` whenever it is looked at; one with a core does less.

    The first ten times it goes on by `slow` in addition.
    """
    times, clock = itertools.count(), Clock()

    def look():
        clock.now = tick * (n_looks := next(times)) + slow * min(n_looks, 10)
        return clock.now

    deadline = Deadline(seconds, look, lambda: core_share * clock.now)
    X, y = table(n)
    data = model._validate(X, y > 0 if is_classifier(model) else y, True)
    model._fit(dataclasses.replace(model._recipe(), deadline=deadline), data)
    model._diagnosis.warn()  # as `fit` does at its end
    return model


SMALL = {"hidden_layer_sizes": (8,), "max_iter": 60, "random_state": 0, "max_time": 50.0}


@pytest.mark.slow
@pytest.mark.parametrize("cls", [DeepKernelEnsembleRegressor, DeepKernelEnsembleClassifier])
@by_default("Regressor")
def test_what_was_cut_is_said_and_recorded(cls):
    with pytest.warns(
        ConvergenceWarning, match=r"max_time was too short: it allowed \d+ of 120 steps"
    ) as w:
        model = fit_by(cls(**SMALL), 0.9, tick=0.1)
    assert len(w) == 1
    budget = model.budget_
    assert budget["n_steps"] < budget["all_steps"] == 120
    assert budget["n_estimators"] < budget["all_estimators"] == 8
    assert budget["closing_pass"] != "full"
    assert not budget["is_enough"]
    with pytest.warns(ConvergenceWarning):
        again = fit_by(cls(**SMALL), 0.9, tick=0.1)
    X, _ = table()
    assert_array_equal(model.predict(X), again.predict(X))


@pytest.mark.parametrize(("share", "is_busy"), [(0.25, True), (0.95, False)])
def test_other_programs_on_the_cores_are_told_of(share, is_busy):
    model = DeepKernelEnsembleRegressor(**SMALL, n_estimators=1)
    with pytest.warns(ConvergenceWarning, match="max_time was too short: it allowed") as caught:
        fit_by(model, 0.9, tick=0.1, core_share=share)
    assert ("training had a core for only 25% of its time" in str(caught[0].message)) == is_busy
    assert_allclose(model.budget_["core_share"], share, rtol=1e-6)


@pytest.mark.slow
def test_time_that_was_left_was_not_too_short():
    """If other programs end while it runs, a fit that was planned with few networks ends early."""
    model = DeepKernelEnsembleRegressor(**SMALL)
    with pytest.warns(ConvergenceWarning, match=r"The fit planned \d of 8 networks") as caught:
        fit_by(model, 40.0, tick=0.01, slow=1.0)
    assert "too short" not in str(caught[0].message)
    assert model.budget_["unused"] > 0.3
    assert not model.budget_["is_enough"]


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "is_hurried"), [(0.9, True), (1e6, False)])
@by_default("True")
def test_in_little_time_classes_are_scored_by_some_of_the_rows(monkeypatch, seconds, is_hurried):
    """At 100,000 rows scores and predictions of all that is held out took longer than max_time."""
    n_scored, evaluate = [], EnsembleObjective.fold_losses

    def fold_losses(self, X, rows, log_scales):
        n_scored.append(len(X))
        return evaluate(self, X, rows, log_scales)

    monkeypatch.setattr(EnsembleObjective, "fold_losses", fold_losses)
    model = DeepKernelEnsembleClassifier(**{**SMALL, "max_iter": 1}, n_estimators=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit_by(model, seconds, tick=0.1, n=8000)
    n_unseen, n_folds = 400, 1600
    assert (n_scored[-1] < n_folds // 2) == is_hurried
    assert len(model.held_out_.rows) == (LEAST_JUDGES if is_hurried else n_unseen + n_folds)


@pytest.mark.slow
def test_with_ample_time_a_fit_is_what_it_is_without_a_limit():
    X, y = table()
    few = {**SMALL, "max_iter": 10}
    model = fit_by(DeepKernelEnsembleRegressor(**few), 1e6, tick=0.1)
    assert model.budget_["is_enough"]
    assert model.budget_["n_steps"] == 20
    free = DeepKernelEnsembleRegressor(**{**few, "max_time": None}).fit(X, y)
    assert_array_equal(model.predict_std(X), free.predict_std(X))
    assert free.budget_ is None


@pytest.mark.slow
def test_a_number_of_networks_that_was_asked_for_is_kept():
    model = DeepKernelEnsembleRegressor(**SMALL, n_estimators=3)
    with pytest.warns(ConvergenceWarning, match="max_time was too short: it allowed"):
        fit_by(model, 0.9, tick=0.1)
    assert model.budget_["n_estimators"] == len(model.posterior_.members) == 3


@pytest.mark.slow
def test_a_resumed_fit_has_as_many_networks(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(Checkpoint, "remove", lambda self: None)  # as if it were killed at the end
    model = DeepKernelEnsembleRegressor(**SMALL, checkpoint_dir=tmp_path)
    with pytest.warns(ConvergenceWarning, match=r"\d of 8 networks"):
        fit_by(model, 0.9, tick=0.1)
    with pytest.warns(ConvergenceWarning, match=r"\d of 8 networks"):
        fit_by(model, 500.0, tick=0.1)  # with time for all of them


def test_wrong_limits_are_refused():
    for wrong in (0, -1.0, "x", True):
        with pytest.raises((ValueError, TypeError), match="max_time"):
            DeepKernelEnsembleRegressor(max_time=wrong).fit(*table())

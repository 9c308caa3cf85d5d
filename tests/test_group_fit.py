"""Fits of a group: the same model however rows are split, on every rank, or one error on all."""

from __future__ import annotations

import functools
import itertools
import threading
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from shared import global_state
from sklearn.base import BaseEstimator, clone
from sklearn.callback import ScoringMonitor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, DotProduct
from sklearn.model_selection import GridSearchCV
from thread_group import on_ranks

from skgpstoch import (
    BSGDGaussianProcessRegressor,
    ConstantVarianceRegressor,
    DeepGPRegressor,
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
    DLMRegressor,
    FITCRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    MinimaxGaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
    StackedDensityRegressor,
    SVGPClassifier,
    SVGPRegressor,
    on_interrupt,
)
from skgpstoch.data import SequenceRows, row_sample
from skgpstoch.data.groups import ONE, current, using
from skgpstoch.estimators.runs import Run, refuse_batch_statistics
from skgpstoch.estimators.validation import check_labels
from skgpstoch.methods.automatic.process import ExactProcessRegressor
from skgpstoch.training import interrupts
from skgpstoch.training.history import Pace
from skgpstoch.training.loop import Trainer

pytestmark = pytest.mark.usefixtures("few_are_many")

N = 600
RNG = np.random.default_rng(0)
X = RNG.uniform(-3.0, 3.0, (N, 2))
F = np.sin(X[:, 0]) * np.cos(X[:, 1])
Y = F + 0.1 * RNG.standard_normal(N)
LABELS = np.digitize(Y, [-0.3, 0.3])
NEW = np.random.default_rng(1).uniform(-3.0, 3.0, (50, 2))
OF_NEW = np.sin(NEW[:, 0]) * np.cos(NEW[:, 1])

CUTS = {"one": [0, N], "uneven": [0, 0, 599, N], "two": [0, 250, N]}
FEWER_CUTS = {name: CUTS[name] for name in ("one", "uneven")}
KNOWN = {"random_state": 0, "dtype": "float64"}


def small(cls=SVGPRegressor, **params):
    given = {"n_inducing": 15, "max_iter": 3, "solver": "natural", **KNOWN}
    return cls(**{**given, **params})


def fitted(model, cuts, X=X, y=Y, **of_rows):
    """Each rank's model, fitted to its part of the rows."""

    def fit(group):
        part = slice(*cuts[group.rank : group.rank + 2])
        of_part = {name: column[part] for name, column in of_rows.items()}
        return clone(model).fit(X[part], y[part], **of_part)

    return on_ranks(fit, len(cuts) - 1)


def predicted(model, X=NEW):
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)


def parameters(model):
    """Every tensor of a fitted model."""
    state = model.posterior_.state_dict().values()
    return [tensor for tensor in state if isinstance(tensor, torch.Tensor)]


def check_splits(model, tolerance, y=Y, X=X, new=NEW, splits=FEWER_CUTS, **of_rows):
    """Models are the same on all ranks, and predict alike for all splits; return one of them.

    To the last bit it is their parameters: where arrays lie in memory may change how a product of
    matrices is rounded.
    """
    expected = None
    for cuts in splits.values():
        models = fitted(model, cuts, X, y, **of_rows)
        found = [predicted(each, new) for each in models]
        for each, other in zip(models[1:], found[1:], strict=True):
            assert_allclose(other, found[0], atol=1e-14)
            for own, of_first in zip(*map(parameters, (each, models[0])), strict=True):
                assert_array_equal(own, of_first)  # NaN where there is no bound
            assert each.n_iter_ == models[0].n_iter_
            assert each.n_features_in_ == X.shape[1]
        expected = found[0] if expected is None else expected
        assert_allclose(found[0], expected, atol=tolerance)
    return models[0]


# ---- the same model ----------------------------------------------------------------------------

BY_DIFFERENCES = 1e-7
"""Calibration has slopes by differences of 1e-6, so that rounding is 1e-8 in what it finds."""

SUMMED = {
    "collapsed": (small(solver="collapsed"), 1e-11),
    "natural": (small(likelihood="student_t"), 1e-11),
    "non_stationary": (small(likelihood="student_t", kernel=DotProduct() + RBF()), 1e-10),
    "adam": (small(solver="adam"), 1e-11),
    "solve": (small(SolveGPRegressor, n_orthogonal=10), 1e-11),
    "dlm": (small(DLMRegressor, solver="auto", beta=1.0), 1e-11),
    "fitc": (small(FITCRegressor), 1e-11),
    "scgd": (SCGDGaussianProcessRegressor(max_iter=3, hidden_layer_sizes=(10,), **KNOWN), 1e-8),
    "scgd_small": (  # minibatches of far fewer rows than features
        SCGDGaussianProcessRegressor(
            kernel=RBF(),
            hidden_layer_sizes=(),
            n_components=60,
            batch_size=8,
            max_iter=3,
            **KNOWN,
        ),
        1e-8,
    ),
    "scgd_learned": (
        SCGDGaussianProcessRegressor(
            max_iter=3, hidden_layer_sizes=(10,), weights="learned", noise="learned", **KNOWN
        ),
        1e-8,
    ),
    "minimax": (
        MinimaxGaussianProcessRegressor(max_iter=2, hidden_layer_sizes=(10,), **KNOWN),
        1e-7,  # of 15 seeds, 1e-14 to 1e-8
    ),
    "ensemble": (
        DeepKernelEnsembleRegressor(
            n_estimators=2, max_iter=4, learning_rate_init=0.03, hidden_layer_sizes=(15,), **KNOWN
        ),
        BY_DIFFERENCES,
    ),
    "ensemble_classes": (
        DeepKernelEnsembleClassifier(
            n_estimators=2, max_iter=5, learning_rate_init=0.05, hidden_layer_sizes=(15,), **KNOWN
        ),
        BY_DIFFERENCES,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMMED)
@slow_cases("scgd_(small|learned)", "ensemble_classes", "non_stationary", "adam")
def test_the_same_model_however_rows_are_split(name, monkeypatch):
    model, tolerance = SUMMED[name]
    splits = CUTS if name == "natural" else FEWER_CUTS
    if "ensemble" in name:  # whose means are closed where the sample is all rows
        monkeypatch.setattr(row_sample, "SAMPLE_ROWS", N)
        splits = {"one": [0, N], "two": [0, N - 1, N]}
    y = LABELS if "classes" in name else Y
    found = check_splits(model, tolerance, y, splits=splits)
    if "classes" in name:
        assert found.score(X, y) > 0.6
    else:
        assert np.sqrt(np.mean((found.predict(NEW) - OF_NEW) ** 2)) < 0.45


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (small(likelihood="laplace"), Y),
        (small(likelihood="poisson"), np.random.default_rng(2).poisson(np.exp(F))),
        (small(SVGPClassifier, likelihood="bernoulli"), LABELS > 0),
        (small(SVGPClassifier, likelihood="softmax"), LABELS),
    ],
    ids=["laplace", "poisson", "bernoulli", "softmax"],
)
@slow_cases("softmax", "laplace", "poisson")
def test_likelihoods_begin_alike_however_rows_are_split(model, y):
    """Where a first step begins is where the rows of all ranks are, not those of one."""
    order = np.argsort(y, kind="stable")  # the first rank has small ones, and the first class
    check_splits(model, 1e-9, y[order], X[order], splits={"one": [0, N], "two": [0, 200, N]})


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (DeepGPRegressor(n_inducing=8, max_iter=2, random_state=0), Y),
        (BSGDGaussianProcessRegressor(max_iter=2, hidden_layer_sizes=(10,), **KNOWN), Y),
    ],
    ids=["deep", "bsgd"],
)
@by_default("bsgd")
def test_draws_differ_but_ranks_do_not(model, y):
    """Where f is drawn, each rank draws for its own rows."""
    check_splits(model, 0.1, y)


@pytest.mark.slow
def test_weights_are_repetitions_however_rows_are_split():
    """Rank 0's are all 1, rank 1's 0 or 2, and all of rank 2's are 0: it has no rows."""
    weight = np.ones(N)
    weight[200:400] = 2.0 * RNG.integers(0, 2, 200)
    weight[400:] = 0.0
    cuts = {"one": [0, N], "by_weight": [0, 200, 400, N]}
    model = small()
    found = check_splits(model, 1e-11, splits=cuts, sample_weight=weight)
    without = weight > 0.0
    fewer = fitted(
        model, [0, 100, without.sum()], X[without], Y[without], sample_weight=weight[without]
    )
    assert_allclose(found.predict(NEW), fewer[0].predict(NEW), atol=1e-11)


@pytest.mark.slow
def test_what_is_known_of_rows_is_shared():
    counts = np.random.default_rng(2).poisson(3.0 * np.exp(F))
    check_splits(
        small(likelihood="poisson", normalize_y=False), 1e-11, counts, exposure=np.full(N, 3.0)
    )
    splits = {name: CUTS[name] for name in ("one", "two")}
    check_splits(small(), 1e-11, splits=splits, y_std=np.full(N, 0.1))
    check_splits(small(solver="collapsed"), 1e-11, np.column_stack([Y, F]), splits=splits)


N_FITS = itertools.count()


class Sign(BaseEstimator):
    """Takes numbers as they are in one fit, and turns their signs in the next."""

    def fit(self, y):
        self.sign_ = (-1.0) ** next(N_FITS)
        return self

    def transform(self, y):
        return self.sign_ * y

    def inverse_transform(self, z):
        return self.sign_ * z


@pytest.mark.slow
@pytest.mark.parametrize("is_stored", [False, True])
@slow_cases("False")
def test_a_transformation_of_targets_is_that_of_rank_0(is_stored):
    rows = (SequenceRows(X, Y, chunk_rows=100), None) if is_stored else None

    def fit(group, transform=None):
        given = rows or (X[part_of(group)], Y[part_of(group)])
        return small(target_transform=transform).fit(*given)

    means = [m.predict(NEW) for m in on_ranks(functools.partial(fit, transform=Sign()), 2)]
    assert_array_equal(means[1], means[0])
    assert_allclose(means[0], on_ranks(fit, 2)[0].predict(NEW), atol=1e-9)


def test_targets_that_cannot_be_transformed_are_an_error_of_all():
    y = np.exp(Y)
    y[N - 1] = -1.0
    for most in (N, 20):  # whether it is in the sample
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(row_sample, "SAMPLE_ROWS", most)
            fit = lambda g: small(target_transform="log").fit(X[part_of(g)], y[part_of(g)])  # noqa: E731
            all_raise(fit, "y must be")
    all_raise(
        lambda group: small(likelihood="poisson", target_transform="log").fit(X, np.round(y)),
        "target_transform must be None if y holds counts",
    )


@pytest.mark.slow
def test_stopping_early_is_decided_together():
    model = SCGDGaussianProcessRegressor(
        max_iter=40, hidden_layer_sizes=(10,), early_stopping=True, n_iter_no_change=2, **KNOWN
    )
    found = check_splits(model, 1e-9, splits={"one": [0, N], "uneven": [0, 30, N]})
    assert found.n_iter_ < 40
    assert len(found.validation_scores_) > 2


@pytest.mark.slow
def test_a_warm_start_goes_on_together():
    def fit(group):
        half = slice(0, 400) if group.rank == 0 else slice(400, N)
        model = small(warm_start=True, random_state=0)
        first = model.fit(X[half], Y[half]).predict(NEW)
        return first, model.fit(X[half], Y[half]).predict(NEW)

    (first, second), other = on_ranks(fit, 2)
    assert_array_equal(other[1], second)
    assert np.abs(second - first).max() > 1e-6
    errors = [np.sqrt(np.mean((p - OF_NEW) ** 2)) for p in (first, second)]
    assert errors[1] < 1.1 * errors[0]


@pytest.mark.slow
def test_frames_and_names_of_columns():
    frame = pd.DataFrame(X, columns=["a", "b"])
    models = on_ranks(lambda group: small().fit(frame.iloc[group.rank :: 3], Y[group.rank :: 3]), 3)
    for model in models:
        assert model.feature_names_in_.tolist() == ["a", "b"]
    of_arrays = on_ranks(lambda group: small().fit(X[group.rank :: 3], Y[group.rank :: 3]), 3)
    assert_array_equal(models[1].predict(frame[:20]), of_arrays[1].predict(X[:20]))


# ---- errors ------------------------------------------------------------------------------------


def all_raise(fit, match, error=ValueError, size=2):
    """Every rank raises, and says why; return the errors."""
    raised = on_ranks(fit, size, expect=error)
    for each in raised:
        assert match in str(each), each
    return raised


def part_of(group):
    return slice(group.rank, N, group.size)


@pytest.mark.parametrize(
    ("each", "said", "unit"),
    [
        (1.0 / N, "taken as shares of 600 rows. To say so yourself", N),
        (1.0 / 50, "600 rows. A weight is a number of rows, so the data count for that few", 1),
    ],
)
@slow_cases(r"^0\.02")
def test_weights_of_all_ranks_may_be_shares(each, said, unit):
    """No rank alone knew that they sum to 1, so that the rows of all counted as one."""
    with pytest.warns(UserWarning, match=said) as told:
        found = fitted(small(), CUTS["uneven"], sample_weight=np.full(N, each))
    assert sum(said in str(one.message) for one in told) == 1
    with warnings.catch_warnings(action="ignore"):
        expected = fitted(small(), CUTS["uneven"], sample_weight=np.full(N, unit * each))
    assert_allclose(found[0].predict(NEW), expected[0].predict(NEW), rtol=1e-6)


def test_weights_of_classes_are_told_with_the_rows_of_all_ranks():
    y = (np.arange(N) % 20 == 0).astype(int)
    weight = np.where(y, 19.0, 1.0)
    with pytest.warns(UserWarning, match="each row of class 1 counts as 19 that") as told:
        fitted(small(SVGPClassifier), CUTS["uneven"], y=y, sample_weight=weight)
    assert sum("by class alone" in str(one.message) for one in told) == 1


@pytest.mark.filterwarnings("error")
def test_few_labels_of_a_rank_are_not_taken_for_numbers():
    """scikit-learn warns of more classes than half of the rows, which all ranks have together."""
    on_ranks(lambda group: check_labels(np.arange(30)), 2)
    with pytest.warns(UserWarning, match="greater than 50%"):
        check_labels(np.arange(30))


def test_bad_rows_of_one_rank_are_an_error_of_all():
    def with_nan(group):
        mine = X[part_of(group)].copy()
        mine[3, 0] = np.nan if group.rank else 0.0
        small().fit(mine, Y[part_of(group)])

    first, second = all_raise(with_nan, "NaN")
    assert str(first).startswith("rank 1: ")
    assert not str(second).startswith("rank")
    all_raise(
        lambda group: small().fit(X[part_of(group), : 2 - group.rank], Y[part_of(group)]),
        "must be the same on all ranks, got X of shape (n, 2), y of shape (n,) on ranks [0]; X of "
        "shape (n, 1), y of shape (n,) on ranks [1]. ",
    )
    all_raise(
        lambda group: small().fit(X[part_of(group)], None if group.rank else Y[part_of(group)]), "y"
    )
    all_raise(
        lambda group: small().fit(X[:0], Y[:0]),
        "X must have rows of positive weight, got none in any process",
    )
    all_raise(
        lambda group: small().fit(X[: group.rank], Y[: group.rank]), "must have at least two rows"
    )
    all_raise(
        lambda group: small().fit(X, Y, np.zeros(N)),
        "X must have rows of positive weight, got none in any process",
    )
    all_raise(lambda group: small().fit(X, Y, np.full(N, -1.0)), "Negative values in data passed")
    all_raise(
        lambda group: small().fit(None if group.rank else X, Y), "X must have rows", TypeError
    )
    all_raise(
        lambda group: small(SVGPClassifier).fit(X, LABELS.astype(str) if group.rank else LABELS),
        "y",
    )


def test_parameters_must_be_the_same():
    said = all_raise(
        lambda group: small(n_inducing=15 + group.rank).fit(X, Y), "n_inducing must be"
    )
    assert "got 15 on ranks [0]; 16 on ranks [1]" in str(said[0])
    all_raise(lambda group: small(max_iter=[3, "auto"][group.rank]).fit(X, Y), "max_iter must be")
    all_raise(
        lambda group: [small(), small(SolveGPRegressor)][group.rank].fit(X, Y), "estimator must be"
    )
    all_raise(lambda group: small(n_inducing=15 - 16 * group.rank).fit(X, Y), "n_inducing")
    torch.manual_seed(0)  # of networks alone, in this test
    networks = [torch.nn.Linear(2, 2) for _ in range(2)]
    all_raise(
        lambda group: small(feature_map=networks[group.rank]).fit(X, Y), "feature_map must be"
    )
    half = on_ranks(
        lambda group: small(random_state=group.rank).fit(X[part_of(group)], Y[part_of(group)]), 2
    )
    assert_array_equal(half[0].predict(NEW), half[1].predict(NEW))  # rank 0's seed is all's


def test_a_failed_fit_leaves_the_estimator_as_it_was():
    def fit(group):
        model = small().fit(X[part_of(group)], Y[part_of(group)])
        before = model.predict(NEW), set(vars(model))
        with pytest.raises(ValueError, match="NaN"):
            model.fit(X[part_of(group)], np.where(group.rank, np.nan, Y[part_of(group)]))
        return before[1] == set(vars(model)) and np.array_equal(before[0], model.predict(NEW))

    assert on_ranks(fit, 2) == [True, True]


def test_searches_and_streams_are_refused():
    search = GridSearchCV(small(), {"n_inducing": [5, 10]}, cv=2, error_score="raise")
    all_raise(lambda group: clone(search).fit(X, Y), "Search outside of process_group")
    all_raise(
        lambda group: small().partial_fit(X, Y), "partial_fit cannot run inside process_group"
    )
    drop_in = GaussianProcessRegressor(optimizer=None)
    all_raise(
        lambda group: clone(drop_in).partial_fit(X, Y),
        "partial_fit cannot run inside process_group",
    )
    model = small().fit(X[:100], Y[:100])
    all_raise(
        lambda group: model.condition_on(X, Y), "condition_on cannot run inside process_group"
    )


def test_nothing_global_changes():
    before, n_threads = global_state(), threading.active_count()
    fitted(small(), CUTS["two"])
    fitted(GaussianProcessRegressor(optimizer=None), [0, 30, 60], X[:60], Y[:60])
    assert global_state() == before
    assert threading.active_count() == n_threads


# ---- rows that rank 0 fits for all -------------------------------------------------------------

GATHERED = {
    "exact": (GaussianProcessRegressor(random_state=0), Y),
    "laplace": (GaussianProcessClassifier(random_state=0), LABELS),
    "processes": (ExactProcessRegressor(kernels=["rbf"], random_state=0), Y),
    "stack": (
        StackedDensityRegressor(
            [("a", small(n_inducing=5)), ("b", GaussianProcessRegressor(optimizer=None))], cv=2
        ),
        Y,
    ),
    "constant": (ConstantVarianceRegressor(GaussianProcessRegressor(optimizer=None), cv=2), Y),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GATHERED)
@pytest.mark.filterwarnings("ignore:y looks noisy")
def test_few_rows_are_fitted_as_in_one_process(name):
    model, y = GATHERED[name]
    alone = clone(model).fit(X[:60], y[:60])
    models = fitted(model, [0, 0, 50, 60], X[:60], y[:60])
    for each in models:
        assert_array_equal(predicted(each), predicted(alone))
        assert set(vars(each)) == set(vars(alone))


@pytest.mark.slow
def test_gathered_rows_of_any_kind():
    frame = pd.DataFrame(X[:80], columns=["a", "b"])
    model = ConstantVarianceRegressor(small(n_inducing=5), cv=2)
    found = on_ranks(
        lambda g: clone(model).fit(frame[g.rank * 40 :][:40], Y[g.rank * 40 :][:40]), 2
    )
    assert found[1].feature_names_in_.tolist() == ["a", "b"]
    weight = np.append(np.ones(60), np.zeros(20))

    def with_weights(group):
        part = slice(group.rank * 40, group.rank * 40 + 40)
        w = weight[part] if group.rank else None  # those that are not given are ones
        return clone(model).fit(X[part], Y[part], w)

    alone = clone(model).fit(X[:80], Y[:80], weight)
    assert_array_equal(on_ranks(with_weights, 2)[1].predict(NEW), alone.predict(NEW))
    drop_in = GaussianProcessRegressor()
    all_raise(
        lambda g: clone(drop_in).fit(X[: 5 * g.rank, : 2 - g.rank], None),
        "y must have 5 rows on rank 1",
    )
    all_raise(
        lambda g: clone(drop_in).fit(X[:5, : 2 - g.rank], Y[:5]), "X must have the same columns"
    )
    all_raise(
        lambda g: clone(drop_in).fit(X[:0], Y[:0]),
        "X must have rows of positive weight, got none in any process",
    )
    text = np.array(["a"] * 5)
    classes = GaussianProcessClassifier()
    all_raise(
        lambda g: clone(classes).fit(X[:5], [LABELS[:5], text][g.rank]),
        "y must be of the same kind",
    )


# ---- callbacks, interrupts and time ------------------------------------------------------------


class Ending(ScoringMonitor):
    """Tells how often it was called, and ends the fit at an epoch, or raises."""

    def __init__(self, told, epoch=np.inf, error=None):
        super().__init__(scoring="r2")
        self.told, self.epoch, self.error = told, epoch, error

    def setup(self, estimator, context):
        self.told.append("setup")

    def teardown(self, estimator, context):
        self.told.append("teardown")

    def on_fit_task_begin(self, estimator, context, **known):
        pass

    def on_fit_task_end(self, estimator, context, *, X, fitted_estimator, **known):
        if context.task_name == "epoch":
            self.told.append(fitted_estimator.predict(X[:5]).shape == (5,))
            if len(self.told) > self.epoch:
                if self.error is not None:
                    raise self.error
                return True
        return False


@pytest.mark.slow
def test_callbacks_are_of_rank_0_and_stop_all():
    told = [[], []]

    def fit(group):
        model = small(max_iter=6)
        model.set_callbacks(Ending(told[group.rank], 2))
        return model.fit(X[part_of(group)], Y[part_of(group)])

    models = on_ranks(fit, 2)
    assert [model.n_iter_ for model in models] == [2, 2]
    assert told == [["setup", True, True, "teardown"], []]
    assert_array_equal(*(model.predict(NEW) for model in models))

    def fail(group):
        model = small(max_iter=6)
        model.set_callbacks(Ending([], 1, RuntimeError("of a callback")))
        model.fit(X[part_of(group)], Y[part_of(group)])

    all_raise(fail, "of a callback", RuntimeError)


@pytest.mark.slow
def test_verbose_is_of_rank_0(capsys):
    fitted(small(verbose=1), CUTS["two"])
    assert capsys.readouterr().out.count("Epoch 1:") == 1


@pytest.mark.slow
@pytest.mark.parametrize("presses", [[1], [0, 1]])
@pytest.mark.parametrize("solver", ["natural", "collapsed", "adam"])
@slow_cases("(collapsed|adam)-presses0", "presses0", "adam")
def test_an_interrupt_of_any_rank_ends_all_at_the_same_step(presses, solver, monkeypatch, recwarn):
    """As the handler of SIGINT does, in the middle of an epoch."""
    step_end = Trainer.train_step

    def train_step(trainer, X, rows):
        if trainer.step == 7 and trainer.group.rank in presses:
            interrupts.mark()
        return step_end(trainer, X, rows)

    monkeypatch.setattr(Trainer, "train_step", train_step)

    def fit(group):
        with on_interrupt("keep"):
            model = small(max_iter=50, batch_size=60, solver=solver)
            model.fit(X[part_of(group)], Y[part_of(group)])
            assert interrupts.was_interrupted() is False  # outside of a fit
            with pytest.raises(KeyboardInterrupt), interrupts.one_fit():
                interrupts.mark()  # the second one, on any rank
        return model

    models = on_ranks(fit, 2)
    assert [model.n_iter_ for model in models] == [1, 1]
    assert_array_equal(*(model.predict(NEW) for model in models))
    told = [w for w in recwarn.list if issubclass(w.category, ConvergenceWarning)]
    assert len([w for w in told if "was interrupted after 1 of 50 epochs" in str(w.message)]) == 1


def test_an_interrupt_after_training_leaves_a_complete_model(monkeypatch):
    solution = Run.solution

    def closing(run):
        if current().rank:
            interrupts.mark()
        return solution(run)

    monkeypatch.setattr(Run, "solution", closing)

    def fit(group):
        with on_interrupt("keep"):
            return small().fit(X[part_of(group)], Y[part_of(group)])

    with pytest.warns(
        ConvergenceWarning, match="interrupted after training had ended; the model is complete"
    ):
        models = on_ranks(fit, 2)
    assert [model.n_iter_ for model in models] == [3, 3]


@pytest.mark.slow
def test_max_time_ends_all_at_the_same_step():
    model = DeepKernelEnsembleRegressor(
        max_iter=10_000, hidden_layer_sizes=(10,), max_time=0.5, **KNOWN
    )

    def fit(group):
        return clone(model).fit(X[part_of(group)], Y[part_of(group)])

    first, second = on_ranks(fit, 2)
    assert first.n_iter_ == second.n_iter_ < 10_000
    assert first.budget_ == second.budget_
    assert_array_equal(first.predict(NEW), second.predict(NEW))


def disturbed(monkeypatch, value):
    """Let rank 1 have a wrong parameter after the second step."""
    train_step = Trainer.train_step

    def wrong(self, X, rows):
        loss = train_step(self, X, rows)
        if (self.group.rank, self.step, self.history.n_rollbacks) == (1, 2, 0):
            with torch.no_grad():
                next(self.objective.parameters()).fill_(value)
        return loss

    monkeypatch.setattr(Trainer, "train_step", wrong)


def test_parameters_that_are_infinite_on_one_rank_are_undone_on_all(monkeypatch):
    disturbed(monkeypatch, np.inf)
    models = on_ranks(
        lambda group: small(batch_size=N).fit(X[part_of(group)], Y[part_of(group)]), 2
    )
    assert_array_equal(models[0].predict(NEW), models[1].predict(NEW))
    assert models[0].n_iter_ == 3


def test_parameters_that_differ_are_an_error_on_all(monkeypatch):
    disturbed(monkeypatch, 7.0)

    def fit(group):
        small(batch_size=N).fit(X[part_of(group)], Y[part_of(group)])

    for error in on_ranks(fit, 2, RuntimeError):
        assert "Parameters differ between ranks after 2 epochs" in str(error)


def test_layers_that_average_over_rows_are_refused():
    averages = torch.nn.Sequential(torch.nn.InstanceNorm1d(3, track_running_stats=True))
    with pytest.raises(ValueError, match="feature_map must not contain InstanceNorm1d in a group"):
        refuse_batch_statistics(averages)
    refuse_batch_statistics(torch.nn.Sequential(torch.nn.InstanceNorm1d(3)))


def test_gathering_few_rows_is_a_part_of_max_time(monkeypatch):
    validate = DeepKernelEnsembleRegressor._given

    def slow(*args):
        time.sleep(0.1)
        return validate(*args)

    def ended(estimator, recipe, *rows):
        raise ValueError(f"{recipe.deadline.left():.3f} s are left")

    monkeypatch.setattr(row_sample, "GATHERED_ROWS", 10**6)
    monkeypatch.setattr(DeepKernelEnsembleRegressor, "_given", slow)
    monkeypatch.setattr(DeepKernelEnsembleRegressor, "_fit", ended)
    with using(ONE), pytest.raises(ValueError, match=r"^-.* s are left"):
        DeepKernelEnsembleRegressor(max_time=0.05).fit(X, Y)


def test_a_group_looks_at_its_clock_less_often_than_it_steps():
    """Steps take 1 ms of 2 s, and from the 600th on 4 ms: the pace is found again."""
    source = SimpleNamespace(group=SimpleNamespace(size=2), n_rows=100)
    options = dict.fromkeys(("objective", "optimizer", "schedule", "generator"))
    trainer = Trainer(**options, source=source, max_iter=5000, batch_size=100)
    looks = []

    def passed():
        return (trainer.step + 3 * max(0, trainer.step - 600)) / 2000

    def share():
        looks.append(trainer.step)
        return passed()

    trainer.pace = Pace(SimpleNamespace(share=share), source.group)
    steps = [*range(700), *range(650, 5000)]  # after a roll-back at the 700th
    for trainer.step in steps:
        if trainer.pace.is_late(trainer.step):
            break
        assert abs(trainer.pace.used(trainer.step) - passed()) < 0.15
    assert abs(passed() - 1.0) < 0.01
    assert len(looks) < 0.15 * trainer.step

"""Fits to rows that are read in chunks, and predictions for them."""

from __future__ import annotations

import threading
import time
import warnings

import numpy as np
import pytest
import torch
from families import slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from pages import DOC, run_page
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from thread_group import on_ranks

from skgpstoch import (
    DeepKernelEnsembleRegressor,
    DLMRegressor,
    QSGPRegressor,
    SCGDGaussianProcessRegressor,
    SVGPClassifier,
    SVGPRegressor,
    predict_to,
)
from skgpstoch.data import ChunkRows, ParquetRows, SequenceRows
from skgpstoch.data.chunk import concatenated
from skgpstoch.data.counter_rng import row_hashes
from skgpstoch.data.groups import ONE, using
from skgpstoch.data.rows import Rows
from skgpstoch.estimators import base
from skgpstoch.models import sparse
from skgpstoch.objectives import ensemble
from skgpstoch.objectives.ensemble import EnsembleObjective
from skgpstoch.objectives.natural import RunningObjective
from skgpstoch.training import checkpoint, stored_rows
from skgpstoch.training.checkpoint import sampling_seed
from skgpstoch.training.loop import Trainer

pytestmark = pytest.mark.usefixtures("few_are_many")

N, NEW = 2000, 200
KERNEL = ConstantKernel(1.0, "fixed") * RBF(1.5, "fixed")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (N, 2))
    f = np.sin(X[:, 0]) * np.cos(X[:, 1])
    return X, f + 0.1 * rng.standard_normal(N)


@pytest.fixture(scope="module")
def new(table):
    X = np.random.default_rng(1).uniform(-3.0, 3.0, (NEW, 2))
    return X, np.sin(X[:, 0]) * np.cos(X[:, 1])


def closed(**params):
    """What a pass over all rows decides alone: kernel, noise and points are given."""
    Z = np.random.default_rng(2).uniform(-3.0, 3.0, (80, 2))
    given = {
        "kernel": KERNEL + WhiteKernel(0.1, "fixed"),
        "inducing_points": Z,
        "learn_inducing_points": False,
        "mean": "zero",
        "normalize_y": False,
        "solver": "natural",
        "dtype": "float64",
        "random_state": 0,
    }
    return SVGPRegressor(**(given | params))


def chunks_of(*arrays, size):
    """A factory of iterators over pieces of arrays."""
    n = len(arrays[0])
    return lambda: (tuple(a[i : i + size] for a in arrays) for i in range(0, n, size))


# ---- the closing pass ----------------------------------------------------------------------------


@pytest.mark.slow
def test_newtons_passes_are_those_of_arrays(table, new):
    X, y = table
    counts = np.random.default_rng(4).poisson(np.exp(y)).astype(float)
    params = {"likelihood": "poisson", "kernel": KERNEL}
    whole = closed(**params).fit(X, counts)
    model = closed(**params).fit(SequenceRows(X, counts, chunk_rows=317))
    assert_allclose(model.predict(new[0]), whole.predict(new[0]), rtol=1e-3)


class FilledAgain:
    """A store that reads each slice into the same memory."""

    def __init__(self, rows):
        self.rows, self.memory, self.shape = rows, np.empty_like(rows), rows.shape

    def __getitem__(self, index):
        part = self.rows[index]
        self.memory[: len(part)] = part
        return self.memory[: len(part)]


def test_slices_are_copies(table, tmp_path):
    """A store lost half of its targets, and a transformer wrote into the rows of the user."""
    X, y = table
    made = {"buffer_rows": 400, "chunk_rows": 100}
    SequenceRows(FilledAgain(X), FilledAgain(y), **made).shuffle_to(tmp_path / "rows.parquet")
    shuffled = concatenated(list(ParquetRows(tmp_path / "rows.parquet", target="y").chunks()))
    order = shuffled.y.argsort()
    assert_array_equal(shuffled.y[order], np.sort(y))
    assert_array_equal(shuffled.X[order], X[y.argsort()])
    given, scaler = X.copy(), StandardScaler(copy=False)
    rows = SequenceRows(given, y, transform=scaler, **made)
    expected = StandardScaler().fit_transform(X)
    for _ in range(2):
        passed = np.vstack([chunk.X for chunk in rows.chunks()])
        assert_allclose(passed, expected, rtol=1e-9, atol=1e-12)
    assert_array_equal(given, X)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("each", [1.0 / N, 10.0 / N])
def test_weights_of_all_rows_may_be_shares(table, new, each, size):
    """The sample alone took its weights so, and all rows together counted as one."""
    X, y = table
    is_told = each == 1.0 / N
    words = "sample_weight sums to "

    def fitted(weight):
        rows = SequenceRows(X, y, weight, chunk_rows=100)
        return on_ranks(lambda group: closed().fit(rows), size)[0]

    with warnings.catch_warnings(record=True, action="always") as told:
        model = fitted(np.full(N, each))
    (said,) = {str(one.message) for one in told if words in str(one.message)}
    assert f"{words}{N * each:.3g} over {N} rows" in said
    assert ("taken as shares" in said) == is_told
    with warnings.catch_warnings(action="ignore"):
        other = fitted(np.full(N, 1.0 if is_told else each))
    assert_allclose(model.predict(new[0]), other.predict(new[0]), rtol=1e-6, atol=1e-9)
    assert (np.abs(model.predict(new[0]) - new[1]).mean() < 0.1) == is_told


# ---- training ------------------------------------------------------------------------------------

REGRESSORS = {
    "svgp": lambda: SVGPRegressor(n_inducing=80, solver="collapsed", max_iter=4, random_state=0),
    "student_t": lambda: SVGPRegressor(
        likelihood="student_t", n_inducing=80, solver="natural", max_iter=4, random_state=0
    ),
    "dlm": lambda: DLMRegressor(n_inducing=80, beta=1.0, max_iter=4, random_state=0),
    "scgd": lambda: SCGDGaussianProcessRegressor(
        hidden_layer_sizes=(32,), n_estimators=1, max_iter=6, random_state=0
    ),
    "networks": lambda: DeepKernelEnsembleRegressor(
        hidden_layer_sizes=(32,), max_iter=8, n_estimators=2, random_state=0
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REGRESSORS)
@slow_cases("student_t", "networks", "dlm")
def test_regressors_learn_from_a_shuffle_buffer(name, table, new):
    X, y = table
    rows = SequenceRows(X, y, chunk_rows=317, buffer_rows=700)
    model, again = (REGRESSORS[name]().fit(rows) for _ in range(2))
    assert_array_equal(model.predict(new[0]), again.predict(new[0]))
    assert np.sqrt(np.mean((model.predict(new[0]) - new[1]) ** 2)) < 0.12
    assert model.n_features_in_ == 2
    assert not [t for t in threading.enumerate() if t.name == "read_ahead"]


@pytest.mark.parametrize("n_rows", [200, 400])  # few, and many
def test_the_first_pass_is_a_part_of_max_time(n_rows, table, monkeypatch):
    X, y = table[0][:n_rows], table[1][:n_rows]

    def slow():
        time.sleep(0.1)
        yield X, y

    def ended(estimator, recipe, *rest):
        raise ValueError(f"{recipe.deadline.left():.3f} s are left")

    monkeypatch.setattr(DeepKernelEnsembleRegressor, "_fit", ended)
    monkeypatch.setattr(base, "prepared", ended)
    model = DeepKernelEnsembleRegressor(max_time=0.05)
    with (
        pytest.warns(
            ConvergenceWarning, match="max_time was used up by the first pass over the rows"
        ),
        pytest.raises(ValueError, match=r"^-.* s are left"),
    ):
        model.fit(ChunkRows(slow))


@pytest.mark.slow
def test_a_step_of_rows_that_count_is_timed(table, monkeypatch):
    X, y = table
    timed, drawn = [], stored_rows.InChunks.drawn

    def watched(*args):
        timed.append(drawn(*args))
        return timed[-1]

    monkeypatch.setattr(stored_rows.InChunks, "drawn", watched)
    weight = np.where(np.arange(N) < 1000, 0.0, 1.0)  # of the first chunks all are 0
    model = DeepKernelEnsembleRegressor(max_time=0.5, batch_size=64, hidden_layer_sizes=(8,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(SequenceRows(X, y, weight, chunk_rows=200))
    assert {len(X) for X, _ in timed} == {64}


def test_passes_are_in_order(table):
    X, y = (torch.from_numpy(each) for each in table)

    def tensors(chunk):
        return X[chunk.rows], Rows(y[chunk.rows, None])

    none = X[:0], Rows(y[:0, None])
    reader = stored_rows.Reader(SequenceRows(*table, chunk_rows=300), N, tensors, none)
    for block in (slice(0, 500), slice(500, 700), slice(0, 100)):  # on, and from 0 again
        assert torch.equal(reader.block(block)[0], X[block])
    with pytest.raises(IndexError, match="Rows are read in order"):
        reader.block(slice(900, 1000))
    reader.close()


# ---- what a sample must not decide ---------------------------------------------------------------


def recorded(monkeypatch, cls, name="forward"):
    """Record the minibatches that objectives of a class see."""
    seen, original = [], getattr(cls, name)

    def forward(self, X, rows, generator):
        seen.append((X, rows))
        return original(self, X, rows, generator)

    monkeypatch.setattr(cls, name, forward)
    return seen


def test_the_bound_counts_all_rows_when_some_are_held_out(table, monkeypatch):
    X, y = table
    counts = []
    original = RunningObjective.__init__

    def init(self, model, n_rows, **options):
        counts.append(n_rows)
        original(self, model, n_rows, **options)

    monkeypatch.setattr(RunningObjective, "__init__", init)
    params = {"n_inducing": 20, "solver": "collapsed", "max_iter": 1, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SVGPRegressor(early_stopping=True, **params).fit(SequenceRows(X, y, chunk_rows=317))
    assert counts == [N - 150]  # half of the sample is held out


@pytest.mark.slow
def test_members_of_an_ensemble_are_blind_to_their_folds(table, monkeypatch):
    X, y = table
    seen = recorded(monkeypatch, EnsembleObjective)
    model = DeepKernelEnsembleRegressor(n_estimators=2, max_iter=2, random_state=0)
    model.fit(SequenceRows(X, y, chunk_rows=317))
    folds = torch.cat([rows.fold for _, rows in seen])
    _, counts = folds.unique(return_counts=True)
    assert set(folds.tolist()) == {-1, 0, 1}
    assert counts[1] == counts[2]
    held_out = model.held_out_
    assert (np.diff(held_out.rows) > 0).all()
    assert_allclose(y[held_out.rows] - held_out.mean[:, 0], held_out.error[:, 0], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "rows"),
    [
        (1, lambda X, y: ChunkRows(chunks_of(X, y, size=100), buffer_rows=200)),
        (2, lambda X, y: SequenceRows(X, y, chunk_rows=1000, buffer_rows=200)),
    ],
    ids=["one_order", "few_units"],
)
def test_short_epochs_come_to_all_rows(size, rows, table, monkeypatch):
    """Also to the last of each unit, where units are more than an epoch reads of them."""
    X, y = table
    monkeypatch.setattr(stored_rows, "EPOCH_ROWS", 500)
    monkeypatch.setattr(stored_rows, "EPOCH_ROWS", 500)
    seen = recorded(monkeypatch, RunningObjective)
    params = {"n_inducing": 80, "solver": "collapsed", "max_iter": 8, "random_state": 0}
    on_ranks(lambda group: SVGPRegressor(**params).fit(rows(X, y)), size)
    n_distinct = len(torch.cat([known.y for _, known in seen]).unique())
    assert n_distinct == N


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "group"])
def test_without_a_random_state_a_killed_fit_resumes(is_stored, table, tmp_path, monkeypatch):
    X, y = table
    params = {"n_inducing": 10, "solver": "natural", "max_iter": 4, "checkpoint_dir": tmp_path}
    begun, original = [], Trainer.run_epoch

    def run_epoch(self):
        begun.append(self.history.n_iter)
        if len(begun) == 3:
            raise RuntimeError("killed")
        return original(self)

    def fit():
        given = (SequenceRows(X, y, chunk_rows=317),) if is_stored else (X, y)
        with using(ONE):  # a group of one rank
            SVGPRegressor(**params).fit(*given)

    monkeypatch.setattr(Trainer, "run_epoch", run_epoch)
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match="killed"):
        fit()
    fit()
    assert begun == [0, 1, 2, 2, 3]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_networks_that_are_closed_keep_no_features_of_all_rows(table, monkeypatch):
    X, y = table
    monkeypatch.setattr(ensemble, "MANY_ROWS", 1000)
    monkeypatch.setattr(sparse, "block_rows", lambda device, width: 256)
    widest = []
    original = torch.cat

    def cat(tensors, *args, **kwargs):
        found = original(tensors, *args, **kwargs)
        widest.append(len(found))
        return found

    monkeypatch.setattr(ensemble.torch, "cat", cat)
    model = DeepKernelEnsembleRegressor(
        loss="elbo", likelihood="gaussian", n_estimators=1, max_iter=2, random_state=0
    )
    model.fit(SequenceRows(X, y, chunk_rows=317))
    assert max(widest) < 1000


# ---- what cannot be done -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda rows, y: SVGPRegressor().fit(rows, y), "y must be None if X is a source"),
        (lambda rows, y: SVGPRegressor().fit(rows, None, y), "sample_weight must be None"),
        (lambda rows, y: QSGPRegressor().fit(rows), "needs all 2,000 rows in memory"),
        (lambda rows, y: SVGPRegressor(solver="lbfgs").fit(rows), "needs all 2,000 rows in memory"),
    ],
)
def test_what_needs_arrays_says_so(fit, message, table):
    X, y = table
    with pytest.raises(ValueError, match=message):
        fit(SequenceRows(X, y, chunk_rows=317), y)


def test_rows_without_targets(table):
    with pytest.raises(ValueError, match="y"):
        SVGPRegressor().fit(SequenceRows(table[0]))


@pytest.mark.parametrize("in_order", [True, False])
def test_a_source_that_runs_short_is_named(in_order, table, monkeypatch):
    X, y = table
    n_passes = 0

    def later_without_some(self, generator):
        nonlocal n_passes
        n_passes += 1
        for chunk in SequenceRows.read(self, generator):
            yield chunk[:-10] if n_passes > 2 and generator is None else chunk

    def chunks():
        nonlocal n_passes
        n_passes += 1
        weight = np.ones(N) if n_passes < 3 else (np.arange(N) < N - 60).astype(float)
        return chunks_of(X, y, weight, size=100)()

    changed = type("Changed", (SequenceRows,), {"read": later_without_some})
    rows = changed(X, y, chunk_rows=400) if in_order else ChunkRows(chunks, buffer_rows=200)
    model = closed() if in_order else closed(kernel=None, max_iter=5)
    with pytest.raises(
        ValueError, match=r"X gave 1,9\d0 rows in one pass \(without held-out rows\), but 2,000 in"
    ):
        model.fit(rows)
    assert not [t for t in threading.enumerate() if t.name == "read_ahead"]


def test_a_bad_chunk_leaves_the_estimator_as_it_was(table, new):
    X, y = table
    model = closed().fit(X, y)
    before = model.predict(new[0])
    bad = X.copy()
    bad[1500, 1] = np.nan
    with pytest.raises(ValueError, match="rows 1268 to 1584"):
        model.fit(SequenceRows(bad, y, chunk_rows=317))
    assert_array_equal(model.predict(new[0]), before)
    assert not [t for t in threading.enumerate() if t.name == "read_ahead"]


# ---- predictions ---------------------------------------------------------------------------------


def test_rows_that_one_rank_cannot_read_are_an_error_of_all(table):
    def fit(group):
        rows = chunks_of(*(column[: N * (1 - group.rank)] for column in table), size=450)
        SVGPRegressor(solver="natural").fit(ChunkRows(rows))

    first, second = on_ranks(fit, 2, expect=ValueError)
    assert str(first) == f"rank 1: {second}"
    assert "has 0 rows" in str(second)


@pytest.mark.parametrize(
    ("wrong", "params", "message"),
    [
        (2.5, {"likelihood": "poisson"}, "2.5"),
        (
            -1.0,
            {"target_transform": "log", "solver": "natural"},
            "rows 1500 to 1999: y must be positive for target_transform='log'",
        ),
        (
            -1.0,
            {"target_transform": FunctionTransformer(np.log, np.exp), "solver": "natural"},
            "rows 1500 to 1999: y must be in the domain where target_transform=",
        ),
        (np.nan, {"solver": "natural"}, "NaN"),
    ],
)
def test_a_row_that_the_sample_has_not_is_an_error_of_all(wrong, params, message, table):
    """Or the other ranks would wait for the one that reads it."""
    X, y = table[0].copy(), np.floor(np.exp(table[1])) + 1.0
    model = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0, **params)
    (X if wrong != wrong else y)[np.argmax(row_hashes(sampling_seed(model), np.arange(N)))] = wrong

    def fit(group):
        clone(model).fit(SequenceRows(X, y, chunk_rows=500))

    assert message in str(on_ranks(fit, 2, expect=ValueError)[0])


def test_predictions_are_written_by_chunk(table, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    X, y = table
    model = make_pipeline(StandardScaler(), closed()).fit(X, y)
    predict_to(model, SequenceRows(X, chunk_rows=450), tmp_path / "p.parquet", coverage=0.9)
    found = pq.ParquetFile(tmp_path / "p.parquet")
    assert found.num_row_groups == 5
    written = found.read().to_pydict()
    assert_allclose(written["mean"], model.predict(X), atol=1e-10)
    interval = model[-1].predict_interval(model[:-1].transform(X), 0.9)
    assert_allclose(np.stack([written["lower"], written["upper"]], 1), interval, atol=1e-10)


def test_probabilities_are_written_by_class(table, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    X, y = table
    model = SVGPClassifier(n_inducing=10, solver="natural", max_iter=3).fit(X[:300], y[:300] > 0)
    predict_to(model, SequenceRows(X), tmp_path / "p.parquet")
    written = pq.read_table(tmp_path / "p.parquet").to_pydict()
    assert list(written) == ["prediction", "probability_False", "probability_True"]
    assert_allclose(written["probability_True"], model.predict_proba(X)[:, 1], atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda m, X: (m, X, "p.parquet"), TypeError, "rows must be ParquetRows"),
        (lambda m, X: (m, SequenceRows(X), "p.parquet", 2.0), ValueError, "coverage"),
    ],
)
def test_what_cannot_be_written(arguments, error, message, table):
    X, y = table
    model = closed().fit(X, y)
    with pytest.raises(error, match=message):
        predict_to(*arguments(model, X))


def test_parquet_from_end_to_end(table, new, tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    X, y = table
    for k in range(2):
        frame = pd.DataFrame(X[k::2], columns=["a", "b"]).assign(y=y[k::2])
        frame.to_parquet(tmp_path / f"part{k}.parquet", row_group_size=300)
    rows = ParquetRows(str(tmp_path / "*.parquet"), target="y")
    model = closed().fit(rows)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    named = pd.DataFrame(new[0], columns=["a", "b"])
    assert_allclose(model.predict(named), closed().fit(X, y).predict(new[0]), atol=1e-10)
    predict_to(model, ParquetRows(str(tmp_path / "part0.parquet"), target="y"), tmp_path / "out")
    assert len(pd.read_parquet(tmp_path / "out")) == N // 2


@pytest.mark.pages
def test_the_code_of_the_guide_runs(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.undo()  # the page's tables are large enough
    monkeypatch.chdir(tmp_path)
    scope = run_page(DOC / "user_guide" / "larger_than_memory.rst")
    X, model = scope["X"], scope["model"]
    error = model.predict(pd_frame(X[:500])) - scope["y"][:500]
    assert np.sqrt(np.mean(error**2)) < 0.1


def pd_frame(X):
    import pandas as pd

    return pd.DataFrame(X, columns=["a", "b"])

"""The recommended defaults on tables that are read in chunks."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from conftest import let_defaults_be_of_many
from families import slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from shared import Names
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from thread_group import on_ranks
from three_tables import on_every_table, same_on_all

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    SVGPRegressor,
    on_interrupt,
    predict_to,
)
from skgpstoch.data import ChunkRows, ParquetRows, SequenceRows, row_sample, table_parts
from skgpstoch.data.arrays import resolve_seed
from skgpstoch.data.counter_rng import row_hashes
from skgpstoch.data.groups import ALONE
from skgpstoch.data.parquet_writer import write_parquet
from skgpstoch.data.table_parts import ColumnFacts, facts_of, merged, read_as
from skgpstoch.data.tables import TableEncoder
from skgpstoch.methods.automatic import automatic_classifier, automatic_regressor, read_tables
from skgpstoch.methods.automatic.read_tables import read, read_through
from skgpstoch.training import interrupts
from skgpstoch.training.loop import Trainer

# Networks of few epochs, which a linear model is ahead of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:A linear model predicts rows"),
    pytest.mark.usefixtures("one_kernel"),
]

N = 1600


@pytest.fixture(scope="module")
def table():
    """A frame with a category and missing values, the mean of y, and y."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (N, 2))
    place = rng.choice(["north", "south", "west"], N)
    f = np.sin(X[:, 0]) + np.where(place == "north", 2.0, 0.0)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(place=pd.Categorical(place))
    frame.loc[::9, "b"] = np.nan
    return frame, f, f + 0.1 * rng.standard_normal(N)


@pytest.fixture
def few_are_many(monkeypatch):
    monkeypatch.setattr(row_sample, "SAMPLE_ROWS", 700)
    monkeypatch.setattr(row_sample, "MERGED_ROWS", 700)
    monkeypatch.setattr(automatic_regressor, "MOST_ALONE", 2000)


@pytest.fixture
def small_networks(monkeypatch):
    small = {"n_estimators": 2, "max_iter": 6, "hidden_layer_sizes": (32,)}
    for module in (automatic_regressor, automatic_classifier):
        of_networks = functools.partial(module.of_networks, **small)
        monkeypatch.setattr(module, "of_networks", of_networks)


@pytest.mark.slow
def test_tables_are_encoded_chunk_by_chunk(table, few_are_many, small_networks, tmp_path):
    frame, f, y = table
    pytest.importorskip("pyarrow")
    frame.assign(y=np.exp(y)).to_parquet(tmp_path / "rows.parquet", row_group_size=400)
    rows = ParquetRows(tmp_path / "rows.parquet", target="y")
    model = AutoGaussianProcessRegressor(target_transform="log", random_state=0)
    model.fit(rows)
    assert list(model.estimators_) == ["networks"]
    assert model.feature_names_in_.tolist() == ["a", "b", "place"]
    median = np.log(model.predict_distribution(frame[::4]).median())
    assert np.sqrt(np.mean((median - f[::4]) ** 2)) < 0.3
    held_out = model.estimators_["networks"].held_out_
    assert_allclose(np.isfinite(held_out.log_density), True)
    assert_allclose(held_out.mean + held_out.error, y[held_out.rows, None], atol=1e-4)
    assert model.report().calibration is not None
    assert len(model.feature_importances_) == 3
    predict_to(model, rows, tmp_path / "predictions.parquet")
    written = pd.read_parquet(tmp_path / "predictions.parquet")
    assert_allclose(written["mean"], model.predict(frame), rtol=1e-6)


def levels_told(is_late=False):
    """A model that knows levels that say nothing of y, all rows as they are encoded, and these."""
    rng = np.random.default_rng(0)
    level = rng.integers(800, size=N).astype(str)
    frame, y = pd.DataFrame({"x": np.arange(N) * 0.1, "level": level}), rng.normal(size=N)
    model = AutoGaussianProcessRegressor(max_time=9.0, random_state=0)
    source = SequenceRows(frame, y, chunk_rows=300)
    with pytest.MonkeyPatch.context() as patched:
        if is_late:
            patched.setattr(read_tables, "LONGEST_PASS", 0.0)
        stored = read(model, source, None, None)
    _, by_fold = stored.learn(model)
    X = np.concatenate([chunk.X for chunk in stored.encoded(by_fold).X.chunks()])
    return model, X[:, 1], frame, y


@pytest.mark.slow
def test_levels_are_told_by_all_rows(few_are_many, monkeypatch):
    """Many levels are not in the sample; rows are not told of their own target."""
    monkeypatch.setattr("skgpstoch.data.level_effects.LEAST_TOLD", -1e9)  # y is chance
    model, own, frame, y = levels_told()
    alone = TableEncoder()
    alone.fit_transform(frame, y)
    told, expected = (each.transform(frame)[:, 1] for each in (model._encoder, alone))
    line = np.polyval(np.polyfit(expected, told, 1), expected)  # units are the sample's
    assert_allclose(told, line, atol=1e-12)
    assert np.corrcoef(own, y)[0, 1] < 0.1 < 0.5 < np.corrcoef(told, y)[0, 1]


@pytest.mark.slow
def test_levels_are_told_by_the_sample_if_time_is_short(few_are_many):
    with pytest.warns(UserWarning, match="max_time=9.0 leaves no time to read all rows once more"):
        _, own, frame, y = levels_told(is_late=True)
    sample = sampled_numbers(700)
    others = ~np.isin(frame["level"], frame["level"][sample])
    assert others.any()
    assert len(np.unique(own[others])) <= 5  # folds
    assert abs(np.corrcoef(own[sample], y[sample])[0, 1]) < 0.2


@pytest.mark.slow
def test_classes_that_the_sample_has_not(table, few_are_many, small_networks):
    frame, f, _ = table
    labels = np.where(f > 0.5, "high", "low").astype(object)
    hidden = np.setdiff1d(np.arange(N), sampled_numbers(700))[:3]
    labels[hidden] = "rare"
    model = AutoGaussianProcessClassifier(random_state=0)
    model.fit(SequenceRows(frame, labels, chunk_rows=300))
    assert model.classes_.tolist() == ["high", "low", "rare"]
    assert model.predict_proba(frame).shape == (N, 3)
    assert model.score(frame, labels) > 0.85


def sampled_numbers(size, n_rows=N):
    """Which rows the fit with random_state=0 samples."""
    seed = resolve_seed(resolve_seed(0))
    return np.argsort(row_hashes(seed, np.arange(n_rows)))[:size]


@pytest.mark.slow
@on_every_table
@slow_cases("on_parts", "one_order")
def test_few_rows_are_a_table_in_memory(fits, table):
    X, y, weight = table[0][:80], table[2][:80], np.where(np.arange(80) % 4 == 0, 0.0, 1.0)
    model = AutoGaussianProcessRegressor(random_state=0)
    whole, models = clone(model).fit(X, y, weight), fits(model, X, y, sample_weight=weight)
    assert list(models[-1].estimators_) == list(whole.estimators_) == ["process"]
    assert_array_equal(same_on_all(models, table[0]), whole.predict(table[0]))
    held_out = models[-1].estimators_["process"].held_out_
    assert_allclose(held_out.mean + held_out.error, y[held_out.rows, None], atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "y", "message"),
    [
        (lambda frame, y: SequenceRows(frame, y), True, "y must be None if X is a source"),
        (lambda frame, y: SequenceRows(frame), False, "must have a y to fit to"),
        (
            lambda frame, y: SequenceRows(frame, y, exposure=abs(y)),
            False,
            "exposure must be None with target='auto'",
        ),
    ],
)
def test_targets_are_in_the_rows(rows, y, message, table):
    frame, _, targets = table
    with pytest.raises(ValueError, match=message):
        AutoGaussianProcessRegressor().fit(rows(frame, targets), targets if y else None)


# ---- columns of all rows -------------------------------------------------------------------------


@pytest.mark.slow
def test_levels_and_missing_values_that_the_sample_has_not(table, few_are_many, small_networks):
    frame, _, y = table
    hidden = np.setdiff1d(np.arange(N), sampled_numbers(700))[:3]
    frame = frame.assign(place=frame["place"].astype(object))
    frame.loc[hidden, "place"] = "far away"
    frame.loc[hidden[0], "a"] = np.nan
    model = AutoGaussianProcessRegressor(random_state=0)
    model.fit(SequenceRows(frame, y, chunk_rows=300))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a level that training rows had not
        assert np.isfinite(model.predict(frame)).all()
    assert model._encoder.levels[2] == {"north", "south", "west", "far away"}
    assert len(model._encoder.missing_columns) == 2  # of a, which is missing once, and of b


def test_columns_that_are_missing_in_the_sample():
    X = np.full((200, 2), np.nan, dtype=object)
    X[:, 0] = np.arange(200.0)
    X[np.setdiff1d(np.arange(200), sampled_numbers(50, 200))[0], 1] = "late"
    source = SequenceRows(X, np.arange(200.0), chunk_rows=30)
    automatic = AutoGaussianProcessRegressor(random_state=0)
    found, held = read_through(automatic, source, 50, resolve_seed(resolve_seed(0)))
    assert [known._replace(where="") for known in held] == [
        ColumnFacts("0", "numbers", ""),
        ColumnFacts("1", "categories", "", levels=frozenset(["late"]), is_missing=True),
    ]
    table = read_as(found.sample.X, "from_dtype", held)
    assert table.columns[1].kind == "categories"
    assert table.columns[1].levels == {None, "late"}


def test_kinds_of_columns_in_any_order():
    numbers, texts = np.array([[1.0], [np.nan]]), np.array([["a"], ["b"]], dtype=object)
    nothing = np.array([[None]])
    parts = [facts_of(X, "from_dtype", f"chunk {k}") for k, X in enumerate((nothing, numbers))]
    for several in (parts, parts[::-1]):
        assert merged(several)[0][1:3] == ("numbers", "chunk 1")
        assert merged(several)[0].elsewhere == {None}
    with pytest.raises(ValueError, match="chunk 3: column 0 of X holds categories, but numbers"):
        merged([*parts, facts_of(texts, "from_dtype", "chunk 3")])
    with pytest.raises(ValueError, match="chunk 3: Column 0 of X contains infinity"):
        facts_of(np.array([[np.inf]]), "from_dtype", "chunk 3")


def test_too_many_levels_are_not_kept(monkeypatch):
    monkeypatch.setattr(table_parts, "MOST_LEVELS", 3)
    parts = [facts_of(np.array([list(each)], dtype=object).T, [0], "") for each in ("ab", "bcd")]
    assert merged(parts[:1])[0].elsewhere == {"a", "b"}
    assert merged(parts)[0].elsewhere == frozenset()


# ---- a group of processes ------------------------------------------------------------------------

M = 400


@pytest.fixture
def whole_batches(monkeypatch):
    """Each step is by all rows, so that the order of rows changes rounding alone."""
    normal = {"likelihood": "gaussian", "noise": "constant", "loss": "elbo"}
    let_defaults_be_of_many(monkeypatch, 300, of_numbers=normal, batch_size=M)


def on_parts(model, source, size, expect=None):
    """Each rank's model, or error."""
    return on_ranks(lambda group: clone(model).fit(source()), size, expect)


@pytest.fixture
def hard(table):
    """M rows with strings, a column of many levels, a rare level and a rare missing value."""
    frame, _, y = table
    many = np.random.default_rng(1).integers(120, size=M).astype(str)
    frame = frame[:M].assign(place=frame["place"][:M].astype(str), many=many)
    frame.loc[M - 1, ["a", "many"]] = np.nan, "rare"
    return frame, y[:M]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])  # of 3 row groups
@slow_cases("^[12]$")
def test_ranks_read_row_groups_of_their_own(size, hard, whole_batches, tmp_path):
    pytest.importorskip("pyarrow")
    frame, y = hard
    frame.assign(y=np.exp(y)).to_parquet(tmp_path / "rows.parquet", row_group_size=140)
    model = AutoGaussianProcessRegressor(target_transform="yeo-johnson", random_state=0)
    source = functools.partial(ParquetRows, tmp_path / "rows.parquet", target="y")
    alone = clone(model).fit(source())
    models = on_parts(model, source, size)
    assert_allclose(same_on_all(models, frame), alone.predict(frame), rtol=1e-8)
    held_out = [each.estimators_["networks"].held_out_ for each in (alone, models[-1])]
    assert_array_equal(held_out[1].rows, held_out[0].rows)
    assert_allclose(models[-1].scores_["score"], alone.scores_["score"], rtol=1e-8)
    assert models[-1].feature_names_in_.tolist() == [*frame.columns]
    assert "rare" in models[-1]._encoder.levels[3]
    assert models[-1].report().calibration["n_rows"].sum() > 0


def test_an_enum_of_polars_has_no_order_in_files_either(tmp_path):
    """Parquet says that its levels have an order; missing and unseen ones are as in memory."""
    rng, levels = np.random.default_rng(0), ["b", "a", "c", "new"]
    k, x = rng.integers(0, 4, 60), rng.normal(size=60)
    texts = [["b", "a", "c", None][each] for each in k]
    frame = pl.DataFrame({"x": x, "k": pl.Series(texts, dtype=pl.Enum(levels))})
    query = pl.DataFrame({"x": [0.0] * 5, "k": pl.Series([*levels, None], dtype=pl.Enum(levels))})
    y = x + np.array([0.0, 3.0, -3.0, 1.0])[k] + 0.1 * rng.normal(size=60)
    frame.with_columns(y=y).write_parquet(tmp_path / "rows.parquet")
    model = AutoGaussianProcessRegressor(random_state=0)
    stored = clone(model).fit(ParquetRows(tmp_path / "rows.parquet", target="y"))
    plain = model.fit(frame.with_columns(pl.col("k").cast(pl.Categorical)), y)
    with pytest.warns(UserWarning, match="such as 'new'"):
        assert_allclose(stored.predict(query), plain.predict(query), rtol=1e-8)


def chunks_of(X, y):
    """A factory of iterators over pieces."""
    return lambda: ((X[i : i + 50], y[i : i + 50]) for i in range(0, M, 50))


@pytest.mark.slow
def test_rows_in_one_order_and_rows_in_memory(hard, whole_batches):
    """A group has the same model from pieces in one order, from slices, and from arrays."""
    frame, y = hard
    model = AutoGaussianProcessRegressor(random_state=0)
    of_slices = on_parts(model, lambda: SequenceRows(frame, y, chunk_rows=350), 3)
    of_pieces = on_parts(model, lambda: ChunkRows(chunks_of(frame, y)), 2)

    def of_arrays(group):
        mine = slice(0, 150) if group.rank == 0 else slice(150, M)
        return clone(model).fit(frame[mine], y[mine])

    expected = same_on_all(on_ranks(of_arrays, 2), frame)
    assert_allclose(same_on_all(of_slices, frame), expected, atol=1e-8)
    assert_allclose(same_on_all(of_pieces, frame), expected, atol=1e-8)


@pytest.mark.slow
def test_levels_are_told_alike_by_chunks_of_any_ranks(hard, whole_batches):
    """With weights, and rows that have none."""
    frame, y = hard
    weight = 1.0 + np.arange(M) % 2
    weight[::5] = 0.0
    model = AutoGaussianProcessRegressor(random_state=0)
    source = functools.partial(SequenceRows, frame, y, weight, chunk_rows=70)

    def of_chunks(group):
        own = clone(model)
        _, by_fold = read(own, source(), None, None).learn(own)
        return {j: means.means for j, means in by_fold.items()}

    alone, several = of_chunks(ALONE), on_ranks(of_chunks, 3)
    for found in several:
        assert_allclose(found[3], alone[3], rtol=1e-12)


@pytest.mark.slow
def test_classes_and_weights_of_ranks(table, whole_batches):
    """One class is on one rank alone, and not in the sample; another rank has no weight."""
    frame, f = table[0][:M], table[1][:M]
    labels = np.where(f > 0.5, "high", "low").astype(object)
    weight = np.where(np.arange(M) < 200, 0.0, 1.0 + np.arange(M) % 2)
    order = sampled_numbers(M, M)
    labels[order[weight[order] > 0.0][-1]] = "rare"
    model = AutoGaussianProcessClassifier(random_state=0)
    models = on_parts(model, lambda: SequenceRows(frame, labels, weight, chunk_rows=200), 2)
    assert models[0].classes_.tolist() == ["high", "low", "rare"]
    alone = clone(model).fit(SequenceRows(frame, labels, weight, chunk_rows=200))
    proba = same_on_all(models, frame, "predict_proba")
    assert_allclose(proba, alone.predict_proba(frame), atol=5e-3)  # iterations end by a tolerance


def test_what_is_wrong_with_rows_is_told_on_all_ranks(hard, whole_batches):
    frame, y = hard
    row = sampled_numbers(M, M)[-1]  # which is not in the sample
    where = f"rows {row // 100 * 100} to {row // 100 * 100 + 99}: "
    infinite, negative, missing = frame.copy(), np.exp(y), y.copy()
    infinite.loc[row, "a"], negative[row], missing[row] = np.inf, -1.0, np.nan
    text = frame.astype(object)
    text.loc[row, "a"] = "x"
    plain = AutoGaussianProcessRegressor(random_state=0)
    log = clone(plain).set_params(target_transform="log")
    wrong = [
        (plain, (infinite, y), f"{where}Column 'a' of X contains infinity"),
        (plain, (frame, missing), f"{where}y has missing values"),
        (plain, (text, y), f"{where}Column 'a' of X holds float, str"),
        (log, (frame, negative), f"{where}target_transform must give a finite value"),
        (plain, (frame, y, np.zeros(M)), "has no rows of positive weight"),
        (plain, (frame, y, np.arange(M) == 3), "at least two rows of positive weight, got 1"),
        (plain, (frame,), "must have a y to fit to"),
    ]
    for model, given, message in wrong:
        rows = functools.partial(SequenceRows, *given, chunk_rows=100)
        for error in on_parts(model, rows, 2, ValueError):
            assert message in str(error)

    def fit(group):
        clone(plain).fit(SequenceRows(frame, y + group.rank, chunk_rows=100))

    for error in on_ranks(fit, 2, ValueError):
        assert "X must be the same on all ranks, got SequenceRows of 4 units" in str(error)


@pytest.mark.slow
def test_an_interrupt_of_one_rank_keeps_what_all_have(hard, whole_batches, monkeypatch):
    train_step = Trainer.train_step

    def interrupted(trainer, X, rows):
        if trainer.step == 0 and trainer.group.rank == 1:
            interrupts.mark()
        return train_step(trainer, X, rows)

    monkeypatch.setattr(Trainer, "train_step", interrupted)
    frame, y = hard

    def fit(group):
        with on_interrupt("keep"):
            rows = SequenceRows(frame, y, chunk_rows=100)
            return AutoGaussianProcessRegressor(random_state=0).fit(rows)

    with pytest.warns(ConvergenceWarning, match="was interrupted after 1 of 2 epochs"):
        models = on_ranks(fit, 2)
    same_on_all(models, frame)
    assert models[0].estimators_["networks"].n_iter_ == 1


@pytest.mark.slow
def test_max_time_and_callbacks(hard, whole_batches):
    pytest.importorskip("sklearn.callback")
    frame, y = hard
    told = [Names(), Names()]

    def fit(group):
        model = AutoGaussianProcessRegressor(max_time=20.0, random_state=0)
        model.set_callbacks(told[group.rank])
        return model.fit(SequenceRows(frame, y, chunk_rows=100))

    models = on_ranks(fit, 2)
    same_on_all(models, frame)
    assert models[1].budget_ == models[0].budget_ is not None
    names = told[0]
    assert names.begun[0] == names.ended[-1] == ("AutoGaussianProcessRegressor", "fit")
    assert sorted(names.begun) == sorted(names.ended)
    assert ("DeepKernelEnsembleRegressor", "epoch") in names.begun


def test_chunks_and_columns_are_named(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30.0)
    wider = ChunkRows(lambda: iter([(X, y), (np.ones((30, 3)), y)]))
    with pytest.raises(ValueError, match="chunk 1: X has 3 columns, but the first rows have 2"):
        AutoGaussianProcessRegressor().fit(wider)
    X[3, 1] = np.inf
    write_parquet(tmp_path / "p.parquet", ["a", "far", "y"], [np.column_stack([X, y])])
    with pytest.raises(ValueError, match="Column 'far' of X contains infinity"):
        AutoGaussianProcessRegressor().fit(ParquetRows(tmp_path / "p.parquet", "y"))


@pytest.mark.parametrize("way", ["source", "ranks"])
def test_levels_of_weights_that_are_shares_are_those_of_rows(table, way, few_are_many, monkeypatch):
    """Their means shrank to that of all rows, as if all counted as one."""
    monkeypatch.setattr(row_sample, "GATHERED_ROWS", 0)
    monkeypatch.setattr(AutoGaussianProcessRegressor, "_most_raced", 0)
    frame, _, y = table
    name = np.arange(N) % 100
    X = frame.assign(place=name.astype(str))

    def means(each):
        weight = np.full(N, each)

        def learned(group):
            part = slice(group.rank, None, group.size)
            own = X[part], y[part], weight[part]
            model = AutoGaussianProcessRegressor(random_state=0)
            given = (SequenceRows(*own), None, None) if way == "source" else own
            known = read(model, *given)
            known.learn(model)
            return model._encoder.encoders[2].means, known.rows.weight

        return on_ranks(learned, 1 if way == "source" else 2)[0]

    (expected, _), (found, weight) = means(1.0), means(1.0 / N)
    assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert_allclose(weight, 1.0, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:max_time was too short")
@pytest.mark.parametrize("names", [[0, 1], [("a", 1), ("a", 2)]])
def test_names_of_columns_may_be_no_texts(names, small_networks):
    """As `pandas.read_csv(header=None, chunksize=...)` gives them; narwhals' words were raised."""
    frame, y = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2))), np.arange(60.0)
    frame.columns = names
    source = SequenceRows(frame, y)
    assert not hasattr(AutoGaussianProcessRegressor(max_time=0.5).fit(source), "feature_names_in_")
    model = SVGPRegressor(n_inducing=3, max_iter=1).fit(source)
    assert not hasattr(model, "feature_names_in_")
    model.predict(frame)

"""Rows that are read in chunks: those of arrays, in bounded memory, with errors that say where."""

import gc
import itertools
import pickle
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skgpstoch import AutoGaussianProcessRegressor
from skgpstoch.data import ChunkRows, ParquetRows, SequenceRows
from skgpstoch.data.counter_rng import row_hashes
from skgpstoch.data.parquet_rows import files_of
from skgpstoch.data.parquet_writer import write_parquet
from skgpstoch.data.read_ahead import read_ahead
from skgpstoch.data.scan import scan

N = 1000
NAMES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal([0.0, 1e6, -3.0], [1.0, 1.0, 1e-4], size=(N, 3))
    weight = rng.integers(4, size=N).astype(float)
    return X, X[:, 0] + rng.normal(size=N), weight


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parquet")
    write_files(folder, table)
    return folder


def write_files(folder, table):
    """Three files, with row groups of 130 rows, and one file without rows."""
    X, y, weight = table
    A = np.column_stack([X, y, weight])
    for k, part in enumerate((A[:400], A[400:400], A[400:900], A[900:])):
        groups = (part[start : start + 130] for start in range(0, len(part), 130))
        write_parquet(folder / f"{k}.parquet", [*NAMES, "y", "w"], groups)


@pytest.fixture(params=["parquet", "sequence", "chunks"])
def rows(request, table, folder):
    X, y, weight = table
    if request.param == "parquet":
        return ParquetRows(folder, "y", sample_weight="w", buffer_rows=200)
    if request.param == "sequence":
        return SequenceRows(X, y, weight, chunk_rows=90, buffer_rows=200)
    return ChunkRows(lambda: parts_of(table, 150), buffer_rows=200)


def parts_of(arrays, size):
    for start in range(0, len(arrays[0]), size):
        yield tuple(a[start : start + size] for a in arrays)


def collected(chunks, name="X"):
    return np.concatenate([getattr(chunk, name) for chunk in chunks])


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "read_ahead"]


# ---- the same as arrays ------------------------------------------------------------------------


def test_chunks_are_the_table_in_order(rows, table):
    chunks = list(rows.chunks())
    for name, array in zip(("X", "y", "weight"), table, strict=True):
        assert_array_equal(collected(chunks, name), array)
    assert_array_equal(collected(chunks, "rows"), np.arange(N))
    assert rows.n_rows == N
    assert rows.n_features == 3
    assert rows.dtype == np.float64
    assert rows.feature_names in (None, NAMES)


def test_a_scan_is_that_of_the_array(rows, table):
    X, _, weight = table
    found = scan(rows, 50, seed=3)
    counted = weight > 0.0
    assert (found.n_rows, found.n_effective) == (counted.sum(), weight.sum())
    numbers = np.flatnonzero(counted)
    chosen = numbers[np.argsort(row_hashes(3, numbers))[:50]]
    assert_array_equal(found.sample.rows, chosen)
    assert_array_equal(found.sample.X, X[chosen])


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.integers(0, 40),
)
def test_what_is_found_does_not_depend_on_chunks(sizes, n_sample):
    rng = np.random.default_rng(sum(sizes))
    n = sum(sizes) + 1
    X = rng.normal(size=(n, 2))
    y, weight = X[:, 0].copy(), rng.integers(3, size=n).astype(float)
    weight[-1] = 1.0
    bounds = [0, *np.cumsum(sizes), n]

    def factory():
        for start, stop in itertools.pairwise(bounds):
            yield X[start:stop], y[start:stop], weight[start:stop]

    found = scan(ChunkRows(factory), n_sample, seed=1)
    assert found.n_rows == (weight > 0.0).sum()
    assert found.n_effective == weight.sum()
    counted = np.flatnonzero(weight)
    expected = counted[np.argsort(row_hashes(1, counted))[:n_sample]]
    assert_array_equal([] if found.sample is None else found.sample.rows, expected)


def test_classes_are_those_of_all_chunks(table):
    X = table[0]
    y = np.array(["no", "yes", "perhaps"])[np.arange(N) % 3]
    y[-1] = "never"
    source = SequenceRows(X, y, chunk_rows=100)
    assert_array_equal(scan(source, 5, 0, classes=True).classes, np.unique(y))
    with pytest.raises(ValueError, match="rows 0 to 99: y must be numeric"):
        scan(source, 5, 0)


def test_float32_stays(table):
    X = table[0].astype(np.float32)
    assert next(SequenceRows(X).chunks()).X.dtype == np.float32
    assert next(ChunkRows(lambda: iter([X, X])).chunks()).X.dtype == np.float32


def test_patterns_follow_no_links_below_two_stars(tmp_path, monkeypatch):
    """Two links of a folder to itself have 2⁴⁰ paths, without end; one repeated its rows."""
    places = ["a", "deep/b", "deep/er/c", ".hidden/d", "deep/.e"]
    for place in places:
        path = tmp_path / f"{place}.parquet"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(tmp_path)
    every = [str(tmp_path / f"{place}.parquet") for place in places[:3]]
    for pattern in ("**/*.parquet", "**", "**/**/*.parquet"):
        found = files_of(tmp_path / pattern)
        assert [path for path in found if path.endswith(".parquet")] == every
    assert files_of(tmp_path / "deep" / "**" / "er" / "*.parquet") == every[2:]
    of_link = [str(tmp_path / "one" / "deep" / name) for name in ("b.parquet", "er")]
    assert files_of(tmp_path / "one" / "deep" / "*") == of_link
    monkeypatch.chdir(tmp_path)
    assert files_of("**/c.*") == ["deep/er/c.parquet"]


def test_sources_are_pickled(folder, table):
    for source in (ParquetRows(folder, "y"), SequenceRows(table[0])):
        source.n_features  # noqa: B018
        copy = pickle.loads(pickle.dumps(source))
        assert_array_equal(collected(copy.chunks()), collected(source.chunks()))


# ---- order -------------------------------------------------------------------------------------


def test_shuffles_are_permutations_that_seed_and_epoch_decide(rows, table):
    X, y, weight = table
    orders = [
        collected(rows.shuffled(*which), "rows") for which in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    for order in orders:
        assert_array_equal(np.sort(order), np.flatnonzero(weight))
    assert_array_equal(orders[0], orders[1])
    assert not any((orders[0] == other).all() for other in orders[2:])
    for chunk in rows.shuffled(0, 0):
        assert len(chunk) <= 13  # a sixteenth of the buffer
        assert_array_equal(chunk.X, X[chunk.rows])
        assert_array_equal(chunk.y, y[chunk.rows])


def test_rows_of_very_many_buffers_are_counted_before_a_shuffle(tmp_path):
    """A file of 29 kB that said 2⁶² rows had a temporary file for each of its 2 million rows."""

    class Told(SequenceRows):
        n_rows = 2**62

    few = Told(np.arange(6.0)[:, None], chunk_rows=2, buffer_rows=2)
    assert few.count() == 6
    few.shuffle_to(tmp_path / "a.parquet")
    assert sorted(pd.read_parquet(tmp_path / "a.parquet")["x0"]) == list(range(6))
    Told.n_rows = 512 * 2
    assert few.count() == 1024


@pytest.mark.slow
def test_a_buffer_of_all_rows_shuffles_evenly():
    source = SequenceRows(np.arange(40.0)[:, None], chunk_rows=7)
    order = np.array([collected(source.shuffled(s, 0), "rows") for s in range(200)])
    sd = np.sqrt((40**2 - 1) / 12 / 200)
    assert np.abs(order.mean(0) - 19.5).max() < 4.5 * sd


def test_shares_are_a_partition(rows, table):
    numbers = [collected(rows.share(k, 3).chunks(), "rows") for k in range(3)]
    assert_array_equal(np.sort(np.concatenate(numbers)), np.arange(N))
    nested = collected(rows.share(1, 2).share(1, 2).chunks(), "rows")
    assert_array_equal(nested, collected(rows.share(3, 4).chunks(), "rows"))
    part = rows.share(2, 3)
    assert_array_equal(collected(part.chunks()), table[0][numbers[2]])
    assert part.n_rows == len(numbers[2])
    assert list(rows.share(50, 60).chunks()) == []
    with pytest.raises(ValueError, match="rank must be between 0 and 2, got 3"):
        rows.share(3, 3)


def test_shuffle_to_writes_all_rows_in_random_order(rows, table, tmp_path):
    X, y, weight = table
    rows.shuffle_to(tmp_path / "s.parquet", seed=2)
    columns = {"target": "y", "sample_weight": "w" if rows.feature_names else "sample_weight"}
    chunks = list(ParquetRows(tmp_path / "s.parquet", **columns).chunks())
    order = np.argsort(row_hashes(2, np.arange(N)))
    assert_array_equal(collected(chunks), X[order])
    assert_array_equal(collected(chunks, "y"), y[order])
    assert_array_equal(collected(chunks, "weight"), weight[order])
    assert [path.name for path in tmp_path.iterdir()] == ["s.parquet"]


def test_an_array_may_be_filled_again_for_each_chunk(tmp_path):
    """The shuffle wrote the last chunk's y beside all X."""
    values = np.random.default_rng(0).normal(size=(3, 100, 2))

    def chunks():
        buffer = np.empty((100, 2))
        for each in values:
            buffer[:] = each
            yield buffer[:, :1], buffer[:, 1]

    ChunkRows(chunks).shuffle_to(tmp_path / "s.parquet")
    (chunk,) = ParquetRows(tmp_path / "s.parquet", target="y").chunks()
    found = np.column_stack([chunk.X, chunk.y])
    given = np.vstack(values)
    assert_array_equal(found[found[:, 0].argsort()], given[given[:, 0].argsort()])


@pytest.mark.parametrize(
    ("kind", "unit"),
    [("mean", 1.0), ("variance", 1.0), ("labels", 1.0), ("mean", 1e250), ("variance", 1e-250)],
)
def test_sorted_rows_are_warned_of(kind, unit, tmp_path):
    rng = np.random.default_rng(0)
    y = unit * rng.normal(size=4000)
    key = {"mean": y, "variance": np.abs(y), "labels": y > 0.5}[kind]
    values = key if kind == "labels" else y
    X, classes = y[:, None] / unit, kind == "labels"
    in_order = SequenceRows(
        X[np.argsort(key)], values[np.argsort(key)], chunk_rows=100, buffer_rows=400
    )
    with pytest.warns(UserWarning, match=r"sorted.*shuffle_to"):
        scan(in_order, 5, 0, classes=classes)
    in_order.shuffle_to(tmp_path / "s.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scan(SequenceRows(X, values, chunk_rows=100, buffer_rows=400), 5, 0, classes=classes)
        scan(ParquetRows(tmp_path / "s.parquet", "y", buffer_rows=400), 5, 0, classes=classes)
        scan(SequenceRows(X, rng.standard_cauchy(4000), chunk_rows=50, buffer_rows=400), 5, 0)


@pytest.mark.filterwarnings("error")
def test_targets_of_any_size_are_scanned():
    """The first chunk may be tiny beside the next, or have no size."""
    y = np.random.default_rng(0).normal(size=(3000, 2))
    for sizes in ([1e-290, 1e-270, 1e290], [0.0, 1e-290, 1.0], [1e250, 1e-250, 0.0]):
        scaled = y * np.repeat(sizes, 1000)[:, None] * [1.0, 0.0]
        scan(SequenceRows(y, scaled, chunk_rows=100, buffer_rows=2900), 5, 0)
    assert scan(SequenceRows(y, y * [1.0, 1e200], chunk_rows=100), 5, 0).n_rows == 3000


@pytest.mark.filterwarnings("error")
def test_few_rows_that_count_are_not_sorted():
    """Each chunk has one, or nearly so, and explains itself."""
    y = np.random.default_rng(0).normal(size=4000)
    for each in (1, 3):
        weight = (np.arange(4000) % 100 < each).astype(float)
        rows = SequenceRows(y[:, None], y, weight, chunk_rows=100, buffer_rows=400)
        assert scan(rows, 5, 0).n_rows == 40 * each
    for seed in range(5):
        weight = 1.0 + np.random.default_rng(seed).pareto(0.7, 4000)
        scan(SequenceRows(y[:, None], y, weight, chunk_rows=100, buffer_rows=400), 5, 0)


def test_rows_that_are_sorted_a_little_need_a_larger_buffer():
    """Of y's variance a buffer's rows explain 12 %, but 4 % where they are half of all."""
    rng = np.random.default_rng(0)
    trend = np.linspace(-(3.0**0.5), 3.0**0.5, 4000)
    y = 0.15**0.5 * trend + 0.85**0.5 * rng.normal(size=4000)

    def chunks():
        yield from ((y[i : i + 100, None], y[i : i + 100]) for i in range(0, 4000, 100))

    with pytest.warns(UserWarning, match="The rows seem to be sorted"):
        scan(ChunkRows(chunks, buffer_rows=400), 5, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scan(ChunkRows(chunks, buffer_rows=2000), 5, 0)


# ---- tables ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(300) < 0.1, np.nan, rng.normal(40.0, 9.0, 300)),
            "town": pd.Categorical(np.array(["x", "y", "z"])[rng.integers(3, size=300)]),
            "work": np.array(["none", "half", "full"])[rng.integers(3, size=300)],
            "member": rng.random(300) < 0.5,
            "y": rng.normal(size=300),
        }
    )
    path = tmp_path_factory.mktemp("people") / "people.parquet"
    frame.to_parquet(path, row_group_size=70)
    return frame, path


def encoder():
    return make_column_transformer(
        (SimpleImputer(), ["age"]),
        (OneHotEncoder(sparse_output=False), ["town", "work"]),
        remainder="passthrough",
    )


def test_columns_that_are_no_numbers_are_transformed(people):
    frame, path = people
    X = frame.drop(columns="y")
    fitted = encoder().fit(X)
    rows = ParquetRows(path, "y", transform=fitted)
    assert_allclose(collected(rows.chunks()), fitted.transform(X).astype(float))
    assert rows.feature_names == list(fitted.get_feature_names_out())
    unfitted = encoder()
    rows = ParquetRows(path, "y", transform=unfitted)  # fitted on all rows, as there are few
    assert_allclose(collected(rows.chunks()), fitted.transform(X).astype(float))
    assert not hasattr(unfitted, "transformers_")
    part = rows.share(1, 2)
    assert part.inputs is rows.inputs
    chunks = [pl.DataFrame(X[:100]), pl.DataFrame(X[100:])]
    found = collected(ChunkRows(lambda: iter(chunks), transform=encoder()).chunks())
    assert_allclose(found[:, 1:], fitted.transform(X).astype(float)[:, 1:])


def test_shuffle_to_keeps_columns_as_they_are(people, tmp_path):
    frame, path = people
    ParquetRows(path, "y", transform=encoder(), buffer_rows=100).shuffle_to(tmp_path / "s.parquet")
    found = pd.read_parquet(tmp_path / "s.parquet")[list(frame)]
    order = np.argsort(row_hashes(0, np.arange(300)))
    pd.testing.assert_frame_equal(
        found.astype({"town": str}), frame.iloc[order].reset_index(drop=True).astype({"town": str})
    )


def test_an_unfitted_transformer_sees_a_random_sample(table, monkeypatch):
    monkeypatch.setattr("skgpstoch.data.row_source.TRANSFORM_ROWS", 20)
    X, y, weight = table
    rows = SequenceRows(X, y, weight, transform=StandardScaler(), chunk_rows=100)
    counted = np.flatnonzero(weight)
    chosen = counted[np.argsort(row_hashes(0, counted))[:20]]
    assert_allclose(rows.inputs.transform.mean_, X[chosen].mean(0))


def test_types_of_files_are_reconciled(tmp_path):
    ints = pa.table({"a": pa.array([1, None, 3], pa.int32()), "y": [1, 2, 3]})
    floats = pa.table({"y": [0.5], "a": pa.array([2.5], pa.float32())})
    pq.write_table(ints, tmp_path / "0.parquet")
    pq.write_table(floats, tmp_path / "1.parquet")
    rows = ParquetRows(str(tmp_path / "*.parquet"), "y", transform=SimpleImputer())
    assert_allclose(collected(rows.chunks())[:, 0], [1.0, 13 / 6, 3.0, 2.5])
    assert_allclose(collected(rows.chunks(), "y"), [1.0, 2.0, 3.0, 0.5])
    with pytest.raises(ValueError, match=r"0.parquet, row group 0: column 'a' of X has missing"):
        list(ParquetRows(tmp_path, "y").chunks())


# ---- errors ------------------------------------------------------------------------------------


def test_bad_rows_are_named(table, tmp_path):
    X, y, weight = (array.copy() for array in table)
    X[731, 1] = np.nan
    chunks = ChunkRows(lambda: parts_of((X, y), 100))
    with pytest.raises(ValueError, match=r"chunk 7: column 'x1' of X has missing .* in row 731"):
        scan(chunks, 5, 0)
    write_files(tmp_path, (X, y, weight))
    with pytest.raises(ValueError, match=r"2.parquet, row group 2: column 'b' of X .* in row 731"):
        list(ParquetRows(tmp_path, "y").shuffled(0, 0))
    X[731, 1] = np.inf
    with pytest.raises(ValueError, match="rows 700 to 799: column 'x1' of X is infinite in 1 of"):
        list(SequenceRows(X, chunk_rows=100).chunks())
    X[731, 1], y[731] = 0.0, np.nan
    with pytest.raises(ValueError, match="chunk 7: y has missing values"):
        list(chunks.chunks())
    weight[731] = -1.0
    with pytest.raises(ValueError, match="rows 700 to 799: sample_weight is negative in 1 of 100"):
        list(SequenceRows(X, sample_weight=weight, chunk_rows=100).chunks())
    with pytest.raises(ValueError, match="exposure is not positive"):
        list(SequenceRows(X, exposure=weight).chunks())
    assert readers() == []


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ((np.ones((5, 3)), np.ones(5)), "chunk 1: X has 3 columns, but the first rows have 2"),
        ((np.ones(5), np.ones(5)), "chunk 1: X must have two dimensions"),
        ((np.ones((5, 2)), np.ones(4)), r"chunk 1: y has shape \(4,\), but X has 5 rows"),
        ((np.ones((5, 2)), np.ones(6)), r"chunk 1: y has shape \(6,\), but X has 5 rows"),
        ((np.ones((0, 2)), np.ones(6)), r"chunk 1: y has shape \(6,\), but X has 0 rows"),
        (
            (np.ones((5, 2)), np.ones(5), np.ones(9)),
            r"chunk 1: sample_weight has shape \(9,\), but X has 5 rows",
        ),
        (np.ones((5, 2)), "chunk 1 has no y, unlike chunk 0"),
        ((np.ones((5, 2)), np.ones((5, 2))), "chunk 1: y has shape"),
        ((np.ones((5, 2)), np.array(["a"] * 5)), "chunk 1: y has dtype object"),
        ((np.full((5, 2), "a"), np.ones(5)), "chunk 1: X must be numeric"),
        ((np.ones((5, 2)), np.ones(5), np.ones(5), 1), "chunk 1 must be X, .*got 4 parts"),
        ({"X": np.ones((5, 2)), "z": 1}, "chunk 1: keys must be X and some of y, sample_weight"),
        ((np.zeros((5, 2), "M8[D]"), np.ones(5)), "chunk 1: X must be numeric, got dates"),
    ],
)
def test_chunks_that_differ_are_named(second, message):
    first = (np.ones((4, 2)), np.ones(4))
    with pytest.raises(ValueError, match=message):
        list(ChunkRows(lambda: iter([first, second])).chunks())


def test_a_store_without_a_slice_is_named():
    class Store:
        shape = (200,)

        def __getitem__(self, rows):
            return np.ones(100) if rows.start == 0 else None

    said = "rows 100 to 199: y must have one value for each row of X, got None"
    with pytest.raises(ValueError, match=said):
        list(SequenceRows(np.ones((200, 2)), Store(), chunk_rows=100).chunks())


@pytest.mark.parametrize("error", [OSError("gone"), KeyError("part 2"), StopIteration()])
def test_a_store_that_fails_names_the_rows(error):
    class Store:
        shape = (200,)

        def __getitem__(self, rows):
            if rows.start:
                raise error
            return np.ones(100)

    with pytest.raises(ValueError, match=f"rows 100 to 199 cannot be read: {type(error).__name__}"):
        list(SequenceRows(np.ones((200, 2)), Store(), chunk_rows=100).chunks())


def test_factories_are_asked_for():
    chunks = iter([np.ones((4, 2))])
    with pytest.raises(TypeError, match=r"factory must be a function .*got list_iterator"):
        ChunkRows(chunks)
    with pytest.raises(ValueError, match="gave 0 rows in this pass, but 4 were expected"):
        list(ChunkRows(lambda: chunks).chunks())
    rest = iter([np.ones((4, 2)), np.zeros((4, 2))])
    with pytest.raises(ValueError, match="chunk 0 begins with other rows than in the first pass"):
        list(ChunkRows(lambda: map(np.asarray, rest)).chunks())
    frames = [pd.DataFrame({"a": [1.0, np.nan]}), pd.DataFrame({"a": [2.0, np.nan]})]
    again = ChunkRows(lambda: iter(frames), transform=SimpleImputer())
    assert [len(list(again.chunks())) for _ in range(2)] == [2, 2]
    with pytest.raises(TypeError, match="must return an iterator of chunks, got ndarray"):
        list(ChunkRows(lambda: np.ones((4, 2))).chunks())
    with pytest.raises(TypeError, match="X must be dense"):
        list(ChunkRows(lambda: iter([sparse.eye(3).tocsr()])).chunks())
    with pytest.raises(ValueError, match="0 rows"):
        list(ChunkRows(lambda: iter([])).chunks())


def test_each_pass_of_a_factory_has_as_many_rows_as_every_other_pass():
    lengths = iter([])  # numbers of chunks of the passes to come
    rows = ChunkRows(lambda: (np.full((4, 1), i) for i in range(next(lengths))))
    lengths = iter([9, 3, 2])
    begun = rows.read(None)
    assert [chunk.first for chunk in itertools.islice(begun, 3)] == [0, 4, 8]
    begun.close()
    with pytest.raises(ValueError, match="gave 8 rows in this pass, but 12 were expected"):
        list(rows.share(0, 2).chunks())
    lengths = iter([3, 4, 2])
    assert len(list(rows.share(0, 2).chunks())) == 2
    given = []
    with pytest.raises(ValueError, match="gave 16 rows in this pass, but 12 were expected"):
        given.extend(rows.read(None))
    with pytest.raises(ValueError, match="gave 8 rows in this pass, but 12 were expected"):
        given.extend(rows.read(None))
    assert [chunk.first for chunk in given] == [0, 4, 8, 0, 4]
    known = ChunkRows(lambda: itertools.repeat(np.ones((4, 1))), n_rows=12)  # without end
    with pytest.raises(ValueError, match="gave 16 rows in this pass, but 12 were expected"):
        list(known.chunks())
    with pytest.raises(TypeError, match="n_rows must be an integer, got '12'"):
        ChunkRows(lambda: iter([]), n_rows="12")


def test_sequences_must_have_rows(table):
    with pytest.raises(TypeError, match="X must be dense"):
        SequenceRows(sparse.eye(3).tocsr())
    with pytest.raises(TypeError, match=r"ChunkRows\(factory\)"):
        SequenceRows(iter([1]))
    with pytest.raises(TypeError, match="sink_parquet"):
        SequenceRows(pl.LazyFrame({"a": [1.0]}))
    with pytest.raises(ValueError, match="y must have one value for each row of X, 1000, got 3"):
        SequenceRows(table[0], np.ones(3))
    with pytest.raises(ValueError, match="chunk_rows must be at least 1, got 0"):
        SequenceRows(table[0], chunk_rows=0)


@pytest.mark.parametrize("kind", ["bytes", "zone"])
def test_columns_that_pyarrow_cannot_convert_are_named(tmp_path, kind):
    """Of pyarrow's own errors, no file and no column could be guessed."""
    ends = pa.py_buffer(np.arange(0, 81, 2, dtype=np.int32).tobytes())
    bytes_ = pa.StringArray.from_buffers(40, ends, pa.py_buffer(b"\xff\xfe" * 40))
    zone = pa.array(np.arange(40), pa.timestamp("us", "Nowhere/Land"))
    table = pa.table({"when": bytes_ if kind == "bytes" else zone, "y": np.arange(40.0)})
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=r"rows.parquet, row group 0 cannot be read.*'when' \("):
        AutoGaussianProcessRegressor().fit(ParquetRows(tmp_path, "y"))


def test_metadata_of_polars_on_a_column_of_words(tmp_path):
    field = pa.field("k", pa.string(), metadata={b"_PL_ENUM_VALUES": b""})
    columns = [pa.array(list("ab") * 20), pa.array(np.arange(40.0))]
    table = pa.table(columns, schema=pa.schema([field, ("y", pa.float64())]))
    pq.write_table(table, tmp_path / "rows.parquet")
    encode = make_column_transformer((OneHotEncoder(sparse_output=False), ["k"]))
    (chunk,) = ParquetRows(tmp_path, "y", transform=encode).chunks()
    assert_array_equal(chunk.X[:2], np.eye(2))


def test_files_that_cannot_be_read_are_named(table, tmp_path):
    write_files(tmp_path, table)
    rows = ParquetRows(tmp_path, "y")
    whole = (tmp_path / "2.parquet").read_bytes()
    (tmp_path / "2.parquet").write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"2.parquet cannot be read as Parquet"):
        ParquetRows(tmp_path, "y")
    with pytest.raises(ValueError, match=r"2.parquet, row group 0 cannot be read"):
        list(rows.chunks())
    (tmp_path / "2.parquet").write_bytes(b"\0" * 2000 + whole[2000:])  # pages are damaged
    with pytest.raises(ValueError, match=r"2.parquet, row group 0 cannot be read"):
        list(rows.chunks())
    (tmp_path / "2.parquet").write_bytes((tmp_path / "3.parquet").read_bytes())
    with pytest.raises(ValueError, match=r"2.parquet has 100 rows, but had 500"):
        list(rows.chunks())
    write_parquet(tmp_path / "2.parquet", ["a", "b", "y"], [np.ones((130, 3))])
    with pytest.raises(ValueError, match=r"2.parquet, row group 0: column 'c' is missing, but was"):
        list(rows.chunks())
    text = np.full(130, "u", object)
    columns = (text, *np.ones((3, 130)))
    write_parquet(tmp_path / "2.parquet", ["a", "b", "c", "y"], [columns])
    with pytest.raises(ValueError, match=r"2.parquet, row group 0: column 'a' is .*string"):
        list(rows.chunks())


def test_columns_that_cannot_be_read_are_named(people, tmp_path):
    frame, path = people
    with pytest.raises(ValueError, match=r"Column 'town' must be numbers or booleans.*transform"):
        ParquetRows(path, "y").chunks().__next__()
    with pytest.raises(ValueError, match=r"people.parquet must have one column 'z', got 0"):
        ParquetRows(path, "z", ["age"])
    with pytest.raises(
        ValueError, match="'age' must be used only once, got it as features and target"
    ):
        ParquetRows(path, "age", ["age"])
    with pytest.raises(TypeError, match="features must be a list"):
        ParquetRows(path, "y", "age")
    dated = frame[["age", "y"]].assign(day=pd.Timestamp("2020-01-01"))
    dated.to_parquet(tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="Column 'day' holds dates"):
        ParquetRows(tmp_path, "y").chunks().__next__()
    frame[["age", "y"]].to_parquet(tmp_path / "a.parquet")
    with pytest.raises(
        ValueError, match=r"b.parquet has columns that .*a.parquet does not have: day"
    ):
        ParquetRows(tmp_path, "y")
    with pytest.raises(TypeError, match="sink_parquet"):
        ParquetRows(pl.LazyFrame({"a": [1.0]}))
    with pytest.raises(ValueError, match="there is none at"):
        ParquetRows(tmp_path / "*.csv")


def test_what_yields_parts_of_a_table_is_refused():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(9, 2)))
    groups = pd.DataFrame({"a": [0.0, 1.0], "b": [0.0, 1.0]}).groupby("a")
    for X in (loader, groups):
        with pytest.raises(TypeError, match=f"X must hold rows, got a {type(X).__name__}"):
            AutoGaussianProcessRegressor().fit(X, np.zeros(9))


# ---- reading ahead, writing, memory ------------------------------------------------------------


def test_one_item_is_made_ahead_and_no_more():
    made = []
    items = read_ahead(made.append(k) or k for k in range(10))
    assert made == []
    for k in range(3):
        assert next(items) == k
        time.sleep(0.02)
        assert len(made) == k + 2
    items.close()
    assert readers() == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_readers_end_with_errors(error):
    def broken():
        yield 1
        raise error("here")

    items = read_ahead(broken())
    assert next(items) == 1
    with pytest.raises(error, match="here"):
        next(items)
    assert readers() == []


@pytest.mark.slow
def test_readers_end_when_nobody_reads(rows):
    assert len(next(iter(rows.chunks()))) > 0
    chunks = rows.shuffled(0, 0)
    next(chunks)
    del chunks
    gc.collect()
    assert readers() == []


@pytest.mark.processes
def test_a_read_that_hangs_does_not_keep_the_process_alive():
    script = (
        "import time\n"
        "from skgpstoch.data import read_ahead\n"
        "read_ahead.LONGEST_WAIT = 0.1\n"
        "items = read_ahead.read_ahead(time.sleep(600 * k) or k for k in range(3))\n"
        "print(next(items))\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, b"0\n"), done.stderr


def test_files_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "p.parquet"
    groups = [(np.array(["a", "b"], object), np.ones(2)), (np.array(["c"], object), np.zeros(1))]
    write_parquet(path, ["label", "p"], groups)
    assert pq.read_table(path).to_pydict() == {"label": ["a", "b", "c"], "p": [1.0, 1.0, 0.0]}
    assert pq.ParquetFile(path).num_row_groups == 2

    def broken():
        yield np.ones((3, 2))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_parquet(path, ["a", "b"], broken())
    assert pq.read_table(path).column_names == ["label", "p"]
    assert [each.name for each in tmp_path.iterdir()] == ["p.parquet"]
    write_parquet(path, ["a"], [])
    assert pq.read_table(path).num_rows == 0


class Growing:
    """Rows of a list, which may get longer."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return np.array(self.rows[index])


def test_rows_that_were_added_after_opening_are_told_of(tmp_path):
    """If a longer file begins with a row group of the old size, its other rows were left out."""
    path, block = tmp_path / "p.parquet", np.ones((4, 2))
    write_parquet(path, ["a", "y"], [block])
    rows, grown = ParquetRows(path, "y"), [[0.0], [1.0]]
    write_parquet(path, ["a", "y"], [block, block])
    with pytest.raises(ValueError, match="has 8 rows, but had 4 when it was opened"):
        list(rows.chunks())
    rows = SequenceRows(Growing(grown))
    grown += grown
    with pytest.raises(ValueError, match="X has 4 rows, but had 2 when SequenceRows was made"):
        list(rows.chunks())


def test_a_file_that_is_replaced_after_opening_is_told_of(tmp_path):
    """A model of both was fitted, because number, names and types of all were the same."""
    path, block = tmp_path / "p.parquet", np.arange(8.0).reshape(4, 2)
    write_parquet(path, ["a", "y"], [block])
    rows = ParquetRows(path, "y")
    write_parquet(path, ["a", "y"], [block])  # the same rows again
    (chunk,) = rows.chunks()
    assert_array_equal(chunk.y, block[:, 1])
    write_parquet(path, ["a", "y"], [block + 3.0])
    with pytest.raises(ValueError, match=r"p.parquet, row group 0: the file was written again aft"):
        list(rows.chunks())
    (chunk,) = ParquetRows(path, "y").chunks()
    assert_array_equal(chunk.y, block[:, 1] + 3.0)


def test_memory_is_bounded_by_the_buffer():
    block = np.random.default_rng(0).normal(size=(5000, 8))
    source = ChunkRows(lambda: (block.copy() for _ in range(60)), buffer_rows=20_000)
    source.n_features  # noqa: B018
    tracemalloc.start()
    scan(source, 1000, 0)
    sum(len(chunk) for chunk in source.shuffled(0, 0))
    peak = tracemalloc.get_traced_memory()[1]  # without the buffer, whose memory is the system's
    tracemalloc.stop()
    buffer = 20_000 * 9 * 8
    # A chunk is made, one waits, one is used, each with y and numbers of rows; all are 19 MB.
    assert peak < 0.5 * buffer + 3 * block.nbytes * 10 / 8, peak / buffer


MEMORY = """
import sys, threading, numpy as np, psutil, pyarrow.parquet as pq
from skgpstoch.data import ParquetRows
from skgpstoch.data.read_ahead import read_ahead
from skgpstoch.data.scan import scan
rows = ParquetRows(sys.argv[1], "y")
process, peak, done = psutil.Process(), 0, threading.Event()
def sample():
    global peak
    while not done.wait(0.001):
        peak = max(peak, process.memory_info().rss)
def bare():
    for unit in rows.units:
        with pq.ParquetFile(unit.path) as file:
            for batch in file.iter_batches(16_384, [unit.number], use_threads=False):
                yield len(batch)
thread = threading.Thread(target=sample)
thread.start()
rows.n_features, sum(read_ahead(bare())), sum(read_ahead(bare()))
base = peak  # what pyarrow needs to decode a row group
n = scan(rows, 10_000, 0).n_rows
n += sum(len(chunk) for epoch in range(2) for chunk in rows.shuffled(0, epoch))
done.set(); thread.join()
print(n, (peak - base) / (rows.buffer_rows * 10 * 8))
"""


@pytest.mark.slow
def test_passes_over_two_million_rows_of_parquet_need_less_than_two_buffers(tmp_path):
    rng = np.random.default_rng(0)
    groups = (rng.normal(size=(100_000, 9)) for _ in range(20))
    write_parquet(tmp_path / "t.parquet", [*"abcdefgh", "y"], groups)
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "t.parquet")]
    done = subprocess.run(command, capture_output=True, check=True, timeout=300)
    n, buffers = done.stdout.split()
    assert int(n) == 6_000_000
    assert float(buffers) < 2.0  # measured 1.1, once 1.8; all rows are 7.6


def test_the_footer_of_a_file_is_read_once_in_a_pass(tmp_path, monkeypatch):
    """It was read for each row group, which took the square of their number."""
    path, table = tmp_path / "many.parquet", pa.table({"a": np.arange(20.0), "y": np.ones(20)})
    pq.write_table(table, path, row_group_size=1)
    rows, known = ParquetRows(path, "y"), []
    open_file = pq.ParquetFile

    def opening(path, **options):
        known.append(options["metadata"] is not None)
        return open_file(path, **options)

    monkeypatch.setattr(pq, "ParquetFile", opening)
    read = [chunk.X[0, 0] for chunk in rows.read(np.random.default_rng(0))]
    assert sorted(read) == list(range(20))
    assert known == [False] + [True] * 19


def test_a_file_that_changes_within_a_pass_is_told(tmp_path):
    path, table = tmp_path / "many.parquet", pa.table({"a": np.arange(20.0), "y": np.ones(20)})
    pq.write_table(table, path, row_group_size=1)
    reading = ParquetRows(path, "y").read(None)
    next(reading)
    pq.write_table(table.append_column("b", pa.array(np.ones(20))).slice(5), path, row_group_size=1)
    with pytest.raises(ValueError, match="has 15 rows, but had 20 when it was opened"):
        list(reading)

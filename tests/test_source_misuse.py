"""Sources of rows where arrays, other files or fitted transformers are asked for."""

import base64
import io
import itertools
import os
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone, is_classifier
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.random_projection import GaussianRandomProjection
from thread_group import on_ranks

from skgpstoch import (
    AutoGaussianProcessRegressor,
    FITCRegressor,
    GaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
    StackedDensityRegressor,
    SVGPClassifier,
    SVGPRegressor,
    predict_to,
)
from skgpstoch.data import (
    ChunkRows,
    ParquetRows,
    SequenceRows,
    parquet_rows,
    parquet_writer,
    whole_file,
)

pytestmark = pytest.mark.usefixtures("one_kernel")

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

X = np.random.default_rng(0).normal(size=(300, 2))
Y = X[:, 0] + 0.1 * X[:, 1]
MODEL = SVGPRegressor(n_inducing=10, solver="natural", max_iter=1, random_state=0)
FEW = 80
"""Rows to which the default fits processes alone."""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y}).to_parquet(path)
    return path


@pytest.mark.parametrize("linked", [False, True])
def test_rows_are_not_written_over_the_file_that_they_are_read_from(path, linked):
    target = path
    if linked:
        target = path.with_name("link.parquet")
        target.symlink_to(path)
    rows = ParquetRows(path, "y")
    model = clone(MODEL).fit(rows)
    with pytest.raises(ValueError, match="must not be one of the files that are read"):
        predict_to(model, rows, target)
    with pytest.raises(ValueError, match="must not be one of the files that are read"):
        rows.shuffle_to(target)
    assert len(pd.read_parquet(path)) == 300


@pytest.mark.parametrize("view", [lambda Z: Z, lambda Z: np.asarray(Z)[:, :2]])
def test_memory_maps_know_their_file(tmp_path, view):
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    with pytest.raises(ValueError, match="must not be one of the files that are read"):
        SequenceRows(view(mapped)).shuffle_to(tmp_path / "rows.npy")
    with pytest.raises(ValueError, match="must not be one of the files that are read"):
        SequenceRows(X, view(mapped)).shuffle_to(tmp_path / "rows.npy")


def test_where_nothing_can_be_written_is_seen_first(path):
    rows = ParquetRows(path, "y")
    with pytest.raises(FileNotFoundError, match=r"Create '.*none' first"):
        rows.shuffle_to(path.parent / "none" / "a.parquet")
    with pytest.raises(IsADirectoryError, match="must be a file"):
        rows.shuffle_to(path.parent)


def test_new_rows_are_transformed_as_those_of_the_fit(path):
    rows = ParquetRows(path, "y", transform=StandardScaler())
    model = clone(MODEL).fit(rows)
    new = path.with_name("new.parquet")
    pd.DataFrame({"a": X[:50, 0] + 1.0, "b": X[:50, 1], "y": Y[:50]}).to_parquet(new)
    out = path.with_name("out.parquet")
    with pytest.raises(ValueError, match=r"transform=training_rows\.transform_"):
        predict_to(model, ParquetRows(new, "y", transform=StandardScaler()), out)
    looked_at = ParquetRows(new, "y", transform=StandardScaler())
    assert looked_at.feature_names == ["a", "b"]  # fits the transformer
    with pytest.raises(ValueError, match=r"transform=training_rows\.transform_"):
        predict_to(model, looked_at, out)
    predict_to(model, rows, out)
    predict_to(model, ParquetRows(new, "y", transform=rows.transform_), out)
    Z = rows.transform_.transform(pd.read_parquet(new)[["a", "b"]])
    expected = model.predict(pd.DataFrame(Z, columns=["a", "b"]))
    np.testing.assert_allclose(pd.read_parquet(out)["mean"], expected, rtol=1e-10)


def test_predictions_are_for_columns_by_name(path):
    model = clone(MODEL).fit(ParquetRows(path, "y"))
    other, out = path.with_name("other.parquet"), path.with_name("out.parquet")
    pd.DataFrame({"b": X[:, 1], "a": X[:, 0]}).to_parquet(other)
    predict_to(model, ParquetRows(other), out)
    expected = model.predict(pd.DataFrame(X, columns=["a", "b"]))
    np.testing.assert_allclose(pd.read_parquet(out)["mean"], expected, rtol=1e-10)
    with pytest.raises(ValueError, match=r"no others, got \['y'\] as well\. Drop"):
        predict_to(model, ParquetRows(path), out)
    unnamed = clone(MODEL).fit(X, Y)
    with pytest.warns(UserWarning, match="X has feature names, but SVGPRegressor was fitted with"):
        predict_to(unnamed, ParquetRows(other), out)  # by position, as with a frame
    of_arrays = make_pipeline(FunctionTransformer(lambda X: X[:, ::-1]), clone(MODEL))
    with pytest.warns(UserWarning, match="X has feature names, but Pipeline was fitted without"):
        predict_to(of_arrays.fit(X, Y), ParquetRows(other), out)  # an array, as in its fit
    expected = of_arrays.predict(X[:, ::-1])
    np.testing.assert_allclose(pd.read_parquet(out)["mean"], expected, rtol=1e-10)


def test_defaults_predict_for_frames_by_name(path):
    frame = pd.DataFrame({"a": X[:, 0], "c": np.where(X[:, 1] > 0, "u", "v"), "y": Y})
    frame[:FEW].to_parquet(path)
    model = AutoGaussianProcessRegressor(random_state=0).fit(ParquetRows(path, "y"))
    other, out = path.with_name("other.parquet"), path.with_name("out.parquet")
    frame[["c", "a"]].to_parquet(other)
    predict_to(model, ParquetRows(other), out)
    expected = model.predict(frame[["a", "c"]])
    np.testing.assert_allclose(pd.read_parquet(out)["mean"], expected, rtol=1e-10)


@pytest.mark.slow
def test_defaults_know_the_names_of_stored_columns(path):
    pd.read_parquet(path)[:FEW].to_parquet(path)
    model = AutoGaussianProcessRegressor(random_state=0).fit(ParquetRows(path, "y"))
    assert list(model.feature_names_in_) == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pd.DataFrame(X[:, ::-1], columns=["b", "a"]))


@pytest.mark.parametrize(
    "use",
    [
        lambda rows, model: model.predict(rows),
        lambda rows, model: model.predict_interval(rows),
        lambda rows, model: make_pipeline(StandardScaler(), MODEL).fit(rows),
        lambda rows, model: GridSearchCV(MODEL, {"n_inducing": [5]}).fit(rows),
    ],
)
def test_what_needs_arrays_says_what_to_do(use):
    rows = SequenceRows(X, Y)
    model = clone(MODEL).fit(X, Y)
    with pytest.raises(TypeError, match="predict_to"):
        use(rows, model)


@pytest.mark.parametrize("model", [MODEL, AutoGaussianProcessRegressor()])
def test_a_target_must_be_named(path, model):
    with pytest.raises(ValueError, match=r"must have a y to fit to\. Name its column"):
        model.fit(ParquetRows(path))
    for names in (str(path), [str(path), str(path)], [path]):
        with pytest.raises(TypeError, match="Read files with"):
            model.fit(names)


STACK = StackedDensityRegressor([("one", MODEL)])


@pytest.mark.parametrize(
    ("model", "method"),
    [(GaussianProcessRegressor(), "fit"), (STACK, "fit"), (MODEL, "partial_fit")],
    ids=["drop-in", "stack", "stream"],
)
def test_fits_that_take_no_source_say_so_and_ask_for_targets(model, method):
    fit = getattr(clone(model), method)
    with pytest.raises(TypeError, match="read in chunks and cannot be used as an array"):
        fit(SequenceRows(X, Y))
    with pytest.raises(ValueError, match="requires y to be passed, but the target y is None"):
        fit(X)
    with pytest.raises(TypeError, match="X"):
        fit()


@pytest.mark.parametrize("method", ["score", "log_predictive_density", "condition_on"])
@pytest.mark.parametrize("model", [MODEL, AutoGaussianProcessRegressor()])
def test_a_source_without_targets_is_no_array_either(model, method):
    if not hasattr(ask := clone(model), method):
        return
    with pytest.raises(TypeError, match="read in chunks and cannot be used as an array"):
        getattr(ask, method)(SequenceRows(X, Y))
    name = rf"{type(model).__name__}\.{method}\(\) missing 1 required positional argument: 'y'"
    with pytest.raises(TypeError, match=name):
        getattr(ask, method)(X)


def test_predictions_of_a_source_name_predict_to(tmp_path):
    """Where columns are text, too: the message asked for a `transform` that the model has."""
    path = tmp_path / "table.parquet"
    frame = pd.DataFrame({"a": np.tile([0.0, 1.0, 2.0], 20), "g": np.tile(["u", "v"], 30)})
    frame.assign(y=frame["a"]).to_parquet(path)
    rows = ParquetRows(path, target="y")
    model = AutoGaussianProcessRegressor(random_state=0, max_time=0.5).fit(rows)
    with pytest.raises(TypeError, match=r"predict with skgpstoch\.predict_to\(model, rows, path"):
        model.predict(rows)


def test_chunks_have_their_columns_in_one_order(frame_chunks):
    for columns in (["c", "b", "a"], ["a", "b", "d"]):
        with pytest.raises(ValueError, match=r"chunk 2: X has the column '[cd]' where chunk 0 has"):
            clone(MODEL).fit(ChunkRows(lambda c=columns: iter(frame_chunks(c))))


@pytest.mark.parametrize("kind", [pa.table, pa.record_batch], ids=["table", "batch"])
def test_columns_of_arrow_have_names(kind):
    """As arrays, those in another order were read in silence, in chunks, sequences and predict."""
    first = kind({"a": pa.array(X[:, 0]), "b": pa.array(X[:, 1])})
    other = kind({"b": pa.array(X[:, 1]), "a": pa.array(X[:, 0])})
    model = clone(MODEL).fit(first, Y)
    for known in (model, clone(MODEL).fit(SequenceRows(first, Y))):
        assert known.feature_names_in_.tolist() == ["a", "b"]
        with pytest.raises(ValueError, match="Feature names must be in the same order"):
            known.predict(other)
    rows = ChunkRows(lambda: iter([(first, Y), (first, Y)]))
    np.testing.assert_array_equal([chunk.X for chunk in rows.chunks()], [X, X])
    with pytest.raises(ValueError, match="chunk 1: X has the column 'b' where chunk 0 has 'a'"):
        list(ChunkRows(lambda: iter([(first, Y), (other, Y)])).chunks())


def test_columns_that_a_chunk_lacks_are_named():
    frame = pd.DataFrame(X, columns=["a", "b"])
    others = {r"It lacks \['a'\]\.$": frame[["b"]], r"It adds \['z'\]\.$": frame.assign(z=0.0)}
    for message, other in others.items():
        with pytest.raises(ValueError, match="chunk 1: X has . columns.* have 2. " + message):
            clone(MODEL).fit(ChunkRows(lambda z=other: iter([(frame, Y), (z, Y)])))


@pytest.fixture
def frame_chunks():
    """Three chunks, the last one of which has these columns."""
    rng = np.random.default_rng(0)
    frames = [pd.DataFrame(rng.normal(size=(20, 3)), columns=list("abc")) for _ in range(3)]

    def made(columns):
        last = frames[2].set_axis(columns, axis=1)
        return [(X, X.iloc[:, 0]) for X in [*frames[:2], last]]

    return made


def test_targets_are_the_same_in_each_pass():
    calls = itertools.count()

    def chunks():
        sign = (-1.0) ** next(calls)
        X = np.random.default_rng(0).normal(size=(40, 2))
        yield X, sign * X[:, 0]

    with pytest.raises(ValueError, match="begins with other rows than in the first pass"):
        clone(MODEL).fit(ChunkRows(chunks))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": 3}, "target must be the name of a column, or a list of names, got 3"),
        ({"sample_weight": ["y", 3]}, "sample_weight must be the name"),
        ({"features": 3}, "features must be the name"),
        ({"paths": b"rows.parquet"}, "paths must be a path, a pattern or a list of these"),
        ({"paths": ["rows.parquet", 3]}, "paths must be a path, a pattern or a list of these"),
    ],
)
def test_names_of_columns_and_files_are_texts(given, message, tmp_path):
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"x": [1.0, 2.0], "y": [0.0, 1.0]}).to_parquet(path)
    with pytest.raises(TypeError, match=message):
        ParquetRows(**{"paths": path, **given})


def test_texts_among_targets_name_their_chunk():
    chunks = [(X[:40], Y[:40]), (X[:40], np.array(["a"] * 40))]
    with pytest.raises(ValueError, match="chunk 1: y must be numeric, got"):
        AutoGaussianProcessRegressor().fit(ChunkRows(lambda: iter(chunks)))


@pytest.mark.parametrize("make", [list, lambda y: pd.Series(y, dtype="string")])
def test_rows_without_a_label_are_refused(make):
    y = make([*"ab" * 149, "a", np.nan])
    for rows in (SequenceRows(X, y), ChunkRows(lambda: iter([(X, y)]))):
        with pytest.raises(
            ValueError, match="y has missing values in 1 of 300 rows, first in row 299 of all"
        ):
            list(rows.chunks())


@pytest.mark.parametrize(
    ("of_later", "message"),
    [
        (lambda X, y: (X[:, 0], y), r"chunk 1: X must have two dimensions, got shape \(40,\)"),
        (lambda X, y: (X[:, :, None], y), "chunk 1: X must have two dimensions"),
        (lambda X, y: (X, np.c_[y, y]), r"chunk 1: y has shape \(40, 2\), but the first y has"),
        (lambda X, y: (pd.DataFrame(X), y), "chunk 1: X is a pandas.*chunk 0 is a numpy.ndarray"),
    ],
)
def test_later_chunks_of_another_kind_are_named_by_the_default(of_later, message):
    first = X[:40], Y[:40]
    rows = ChunkRows(lambda: iter([first, of_later(*first)]))
    with pytest.raises(ValueError, match=message):
        AutoGaussianProcessRegressor().fit(rows)


BAD_CHUNKS = [
    ((None, Y[:40]), "X must be an array or a frame, got NoneType"),
    ((X[:40], 1.0), "y must have one value for each row of X, got 1.0"),
    ((X[:40], Y[:40], 2.0), "sample_weight must have one value for each row"),
    (([[1.0], [1.0, 2.0]] * 20, Y[:40]), "X must have rows of numbers, all of the same length"),
    ((X[:40], [[1.0], [1.0, 2.0]] * 20), "y must have rows of numbers, all of the same length"),
    (([[10**400, 1]] * 40, Y[:40]), "X has an integer beyond"),
    ((X[:40, 0], Y[:40]), r"X must have two dimensions, got shape \(40,\)"),
    ((X[:40, :, None], Y[:40]), r"X must have two dimensions, got shape \(40, 2, 1\)"),
]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("chunk", "message"), BAD_CHUNKS, ids=[m[:15] for _, m in BAD_CHUNKS])
@pytest.mark.parametrize("model", [MODEL, AutoGaussianProcessRegressor()], ids=["one", "default"])
def test_bad_chunks_are_named_wherever_they_are(model, chunk, message, is_first):
    good = [(X[40:80], Y[40:80])]
    chunks = [chunk, *good] if is_first else [*good, chunk]
    named = f"chunk {len(chunks) - 1 - is_first}: .*{message}"
    with pytest.raises((TypeError, ValueError), match=named):
        clone(model).fit(ChunkRows(lambda: iter(chunks)))


@pytest.mark.parametrize("model", [MODEL, AutoGaussianProcessRegressor()], ids=["one", "default"])
def test_integers_among_targets_that_no_float_holds_name_their_chunk(model):
    with pytest.raises(ValueError, match="chunk 0: y has an integer beyond"):
        clone(model).fit(ChunkRows(lambda: iter([(X[:40], [10**400] * 40)])))


def test_integers_that_no_float_holds_name_their_column():
    frame = pd.DataFrame({"a": [10**400] + [1] * 39, "b": range(40)})
    with pytest.raises(ValueError, match="Column 'a' of X has an integer beyond"):
        AutoGaussianProcessRegressor().fit(frame, Y[:40])


def test_weights_of_sequences_are_called_as_the_user_calls_them():
    with pytest.raises(
        ValueError, match="sample_weight must have one value for each row of X, 300"
    ):
        SequenceRows(X, Y, sample_weight=np.ones(3))


COLUMNS = {
    "sample_weight": np.full(len(X), 2.0),
    "y_std": np.full(len(X), 0.1),
    "exposure": np.full(len(X), 2.0),
}
FEW_STEPS = {"n_inducing": 5, "max_iter": 1, "random_state": 0}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of short fits
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(
    "model",
    [
        SCGDGaussianProcessRegressor(max_iter=1, random_state=0),
        FITCRegressor(**FEW_STEPS),
        SVGPRegressor(**FEW_STEPS),
        SVGPClassifier(**FEW_STEPS),
    ],
    ids=lambda model: type(model).__name__,
)
def test_columns_of_sources_are_refused_as_arrays_are(model, column):
    y = (Y > 0).astype(int) if is_classifier(model) else Y
    known = {column: COLUMNS[column]}
    try:
        expected = model.fit(X, y, **known).predict(X)
    except (TypeError, ValueError):
        with pytest.raises((TypeError, ValueError), match=column):
            model.fit(SequenceRows(X, y, **known))
    else:
        np.testing.assert_array_equal(model.fit(SequenceRows(X, y, **known)).predict(X), expected)


@pytest.mark.slow
def test_missing_numbers_are_predicted_where_the_model_takes_them(path):
    frame = pd.DataFrame(X[:FEW], columns=["a", "b"]).assign(y=Y[:FEW])
    frame.loc[::5, "b"] = np.nan
    frame.to_parquet(path)
    out, rows = path.with_name("out.parquet"), ParquetRows(path, "y")
    default = AutoGaussianProcessRegressor(random_state=0).fit(rows)
    filled = make_pipeline(SimpleImputer(), clone(MODEL)).fit(frame[["a", "b"]], frame["y"])
    for model in (default, filled):
        predict_to(model, rows, out)
        expected = model.predict(frame[["a", "b"]])
        np.testing.assert_allclose(pd.read_parquet(out)["mean"], expected, rtol=1e-10)
    with pytest.raises(ValueError, match="column 'b' of X has missing values"):
        predict_to(clone(MODEL).fit(pd.DataFrame(X, columns=["a", "b"]), Y), rows, out)


def fifo_in(folder, name):
    path = folder / name
    os.mkfifo(path)
    return path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_pipes_are_refused_as_they_may_never_end(path, tmp_path):
    alone = fifo_in(tmp_path, "pipe.parquet")
    for given in (alone, tmp_path):
        with pytest.raises(ValueError, match=r"pipe\.parquet cannot be read.* a pipe"):
            ParquetRows(given, "y")
    rows = ParquetRows(path, "y")
    path.unlink()
    fifo_in(tmp_path, path.name)
    with pytest.raises(ValueError, match=r"row group 0 cannot be read.* a pipe"):
        list(rows.read(None))


@pytest.mark.parametrize("days", [2_932_897, -719_163, 2**31 - 1])  # a day after 9999, before 1
def test_days_that_pandas_does_not_know_name_their_column(tmp_path, days):
    day = pa.array([0, 1, days], pa.int32()).cast(pa.date32())
    path = tmp_path / "days.parquet"
    pq.write_table(pa.table({"a": [1.0, 2.0, 3.0], "day": day, "y": [1.0, 2.0, 3.0]}), path)
    with pytest.raises(ValueError, match=r"row group 0 cannot be read: .* They are 'day' \(date32"):
        list(ParquetRows(path, "y", transform=StandardScaler()).read(None))


@pytest.mark.skipif(not hasattr(pa, "string_view"), reason="an older pyarrow")
@pytest.mark.parametrize("kind", ["string_view", "binary_view"])
def test_views_of_strings_are_shuffled_and_joined_with_strings(tmp_path, kind):
    words = pa.array(["one", "two", "three"] * 5, getattr(pa, kind)())
    plain = words.cast(getattr(pa, kind.removesuffix("_view"))())
    for name, each in (("a", words), ("b", plain)):
        pq.write_table(pa.table({"w": each, "y": np.arange(15.0)}), tmp_path / f"{name}.parquet")
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    ParquetRows(paths, "y").shuffle_to(tmp_path / "c.parquet")
    found = pq.read_table(tmp_path / "c.parquet")
    assert sorted(found["w"].to_pylist()) == sorted(2 * words.to_pylist())


@pytest.mark.parametrize("parameters", [b"{}", b"[1]", b"", b'{"freq": 5}', b"[" * 10_000])
def test_odd_periods_are_errors_that_name_the_file(tmp_path, parameters):
    """They were those of pandas, which reads these types once it has written any file."""
    pd.DataFrame({"a": [1.0]}).to_parquet(io.BytesIO())
    path, name = tmp_path / "periods.parquet", b"ARROW:extension:name"
    of_type = {name: b"pandas.period", b"ARROW:extension:metadata": parameters}
    fields = [pa.field("c", pa.int64(), metadata=of_type), pa.field("y", pa.float64())]
    pq.write_table(pa.table([[1, 2, 3], [1.0, 2.0, 3.0]], schema=pa.schema(fields)), path)
    with pytest.raises(ValueError, match=r"periods\.parquet"):
        list(ParquetRows(path, "y", transform=StandardScaler()).read(None))


def test_columns_that_change_keep_their_places_and_notes():
    from skgpstoch.data.parquet_columns import with_columns  # needs pyarrow

    table = pa.table({"a": [1, 2], "b": [3, 4], "c": [5, 6]}).replace_schema_metadata({"k": "v"})
    changed = {
        j: (pa.field(name, pa.float64()), pa.chunked_array([[0.5, float(j)]]))
        for j, name in ((2, "c"), (0, "d"))
    }
    found = with_columns(table, changed)
    assert found.to_pydict() == {"d": [0.5, 0.0], "b": [3, 4], "c": [0.5, 2.0]}
    assert (found.schema.metadata, found.schema.field("b").type) == ({b"k": b"v"}, pa.int64())
    assert with_columns(table, {}) is table


def test_only_the_index_columns_of_pandas_are_left_out(tmp_path):
    path = tmp_path / "rows.parquet"
    names = ["__index_level_0__", "__index_level_0__x", "a", "y"]
    pq.write_table(pa.table({name: np.arange(3.0) for name in names}), path)
    assert ParquetRows(path, "y").roles.features == ["__index_level_0__x", "a"]
    frame = pd.DataFrame({"id": [9, 7, 8], "a": [0.0, 1.0, 2.0], "y": [1.0, 2.0, 3.0]})
    frame.set_index("id").to_parquet(path)
    assert ParquetRows(path, "y").roles.features == ["a"]
    assert ParquetRows(path, "y", ["id", "a"]).roles.features == ["id", "a"]
    other = tmp_path / "others.parquet"
    frame.set_index("id").rename_axis("number").to_parquet(other)
    assert ParquetRows([path, other], "y", ["a"]).roles.features == ["a"]
    assert ParquetRows([path, other], "y").roles.features == ["a"]
    table = pq.read_table(path)
    for told in (
        b"{",
        b"[]",
        b'{"index_columns": 1}',
        b'{"index_columns": "a"}',
        b"[" * 100_000,
        b"\xff",
    ):
        pq.write_table(table.replace_schema_metadata({b"pandas": told}), path)
        assert ParquetRows(path, "y").roles.features == ["a", "id"]


@pytest.mark.parametrize("make", [SequenceRows, lambda *rows: ChunkRows(lambda: iter([rows]))])
@pytest.mark.parametrize("Model", [AutoGaussianProcessRegressor, SVGPRegressor])
def test_rows_without_columns_are_refused_as_arrays_are(Model, make):
    with pytest.raises(ValueError, match=r"Found array with 0 feature\(s\)"):
        Model().fit(make(np.empty((60, 0)), Y[:60]))


def test_lists_are_refused_however_many_there_are(tmp_path):
    """To look for equal lists took minutes, and no signal was heard."""
    path = tmp_path / "lists.parquet"
    lists = pa.array([[1, 2]] * 20_000)
    pq.write_table(pa.table({"a": np.arange(20_000.0), "s": lists, "y": np.zeros(20_000)}), path)
    began = time.process_time()
    with pytest.raises(ValueError, match="'s' of X holds ndarray"):
        AutoGaussianProcessRegressor().fit(ParquetRows(path, "y"))
    assert time.process_time() - began < 20.0  # it took more than a minute


@pytest.mark.parametrize("stored", [True, False])
def test_chunks_of_many_levels_are_shuffled(stored, tmp_path):
    """Each has 90, whose numbers pandas keeps in 8 bits; all have 270."""
    frames = [
        pd.DataFrame({"a": np.arange(90.0), "c": pd.Categorical([f"{k} {i}" for i in range(90)])})
        for k in range(3)
    ]
    for k, frame in enumerate(frames):
        frame.assign(y=k).to_parquet(tmp_path / f"{k}.parquet")
    rows = ChunkRows(lambda: iter((frame, np.full(90, k)) for k, frame in enumerate(frames)))
    if stored:
        rows = ParquetRows(tmp_path / "*.parquet", "y")
    rows.shuffle_to(tmp_path / "out")
    found = pd.read_parquet(tmp_path / "out")
    expected = pd.concat(frame.astype({"c": str}).assign(y=k) for k, frame in enumerate(frames))
    assert found["c"].dtype == "category"
    assert sorted(found.to_numpy().tolist()) == sorted(expected.to_numpy().tolist())


def test_levels_that_a_column_does_not_have_are_refused(tmp_path):
    """Their rows were written from what lies elsewhere in memory, or nothing was: a crash."""
    path = tmp_path / "levels.parquet"
    levels = pa.DictionaryArray.from_arrays(pa.array([3] * 100, pa.int8()), ["u", "v", "w", "x"])
    table = pa.table({"a": np.arange(100.0), "c": levels, "y": np.arange(100.0)})
    pq.write_table(table, path, compression="NONE")
    rows_3 = b"\x02\xc8\x01\x03"  # 100 times the number 3, of two bits
    content = path.read_bytes()
    assert content.count(rows_3) == 1
    path.write_bytes(content.replace(rows_3, b"\x08\xc8\x01\x64"))  # 100, of eight
    uses = [
        lambda: ParquetRows(path, "y").shuffle_to(tmp_path / "out.parquet"),
        lambda: AutoGaussianProcessRegressor().fit(ParquetRows(path, "y")),
        lambda: SVGPClassifier().fit(ParquetRows(path, "c", ["a"])),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=r"levels\.parquet, row group 0 .*out of bounds.*'c'"):
            use()


@pytest.mark.parametrize("path", [3, b"rows.parquet", "a\0.parquet"])
def test_words_that_are_no_path_are_named(path):
    rows, model = SequenceRows(X, Y), clone(MODEL).fit(X, Y)
    for write in (rows.shuffle_to, lambda path: predict_to(model, rows, path)):
        with pytest.raises((TypeError, ValueError), match="path must"):
            write(path)


def test_a_file_that_counts_too_many_rows_takes_no_memory_for_their_places(tmp_path):
    """Each bucket of 2**62 rows had a path before a row was read."""
    table = pa.table({"a": np.arange(8.0)})
    buckets = parquet_writer.Buckets(tmp_path, 2**56, 4)
    for part in (table[:4], table[4:]):
        buckets.add(np.asarray(part["a"]).astype(np.int64) * 2**59 - 2**61, part)
    found = [each["a"].to_pylist() for each in buckets.tables()]
    assert [a for each in found for a in each] == list(range(8))
    assert not list(tmp_path.iterdir())


def test_a_page_that_says_that_it_is_long_takes_what_it_has(tmp_path, monkeypatch):
    """Of a buffered stream, pyarrow takes as much as the page says before it reads any of it."""
    path, n = tmp_path / "page.parquet", 20_000
    table = pa.table({"x": n * ["x" * 60], "y": np.arange(float(n))})
    whole = {"data_page_size": 2**21, "use_dictionary": False, "compression": "NONE"}
    pq.write_table(table, path, row_group_size=n, **whole)
    content = path.read_bytes()
    size = next(i for i in range(64 * n, 64 * n + 99) if 2 * page_size(i) in content)
    sizes = page_size(size) + page_size(2**27 - 1)  # without compression, and with it
    path.write_bytes(content.replace(2 * page_size(size), sizes))
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    with pytest.raises(ValueError, match=r"row group 0 cannot be read: .*smaller .* than expected"):
        list(ParquetRows(path, target="y").tables())
    assert pool.max_memory() < max(before + 1, 20_000_000)
    monkeypatch.setattr(parquet_rows, "LARGE_FILE", 0)
    with pytest.raises(ValueError, match=r"row group 0 cannot be read: .*smaller .* than expected"):
        list(ParquetRows(path, target="y").tables())
    assert pool.max_memory() > 100_000_000


def page_size(size):
    """Write a field of a page's header: twice the number, in four times seven bits."""
    return bytes([0x15] + [2 * size >> 7 * i & 127 | 128 for i in range(3)] + [2 * size >> 21])


def test_a_footer_that_contradicts_itself_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": np.arange(8.0), "y": np.arange(8.0)}), path)
    state = path.read_bytes()
    at = len(state) - 8 - int.from_bytes(state[-8:-4], "little")
    eight, nine = b"\x16\x10", b"\x16\x12"  # a field of 64 bits, and a number times two
    path.write_bytes(state[:at] + state[at:].replace(eight, nine, 1))
    with pytest.raises(ValueError, match="rows, but its row groups have"):
        ParquetRows(path, target="y")


def shuffled(rows, path):
    rows.shuffle_to(path)
    return pd.read_parquet(path)


def chunks(*columns):
    """Chunks of the rows of columns, whose types may differ."""
    y = np.arange(2.0)
    return ChunkRows(lambda: ((pd.DataFrame({"a": column}), y) for column in columns))


@pytest.mark.parametrize(
    ("first", "later", "kind"),
    [
        ([1, 2], [0.5, 1e300], "float64"),  # was an error of pyarrow
        (np.float32([0.1, 0.2]), [0.1, 1e300], "float64"),  # was infinite
        (np.int8([1, 2]), [300, 4], "int64"),
    ],
)
def test_rows_of_chunks_are_written_with_a_type_for_all(first, later, kind, tmp_path):
    found = shuffled(chunks(first, later), tmp_path / "rows.parquet")["a"]
    assert found.dtype == kind
    assert sorted(found) == sorted([*map(float, first), *map(float, later)])


@pytest.mark.parametrize("later", [[0, 2], ["u", "v"], pd.to_datetime(["2024", "2025"])])
def test_chunks_whose_types_do_not_go_together_are_named(later, tmp_path):
    """Whole numbers became true, and dates were counted in microseconds."""
    with pytest.raises(ValueError, match=r"types that do not go together: .* a "):
        chunks([True, False], later).shuffle_to(tmp_path / "rows.parquet")


@pytest.mark.parametrize("name", ["y", "sample_weight"])
def test_a_column_called_as_a_role_is_not_lost(name, tmp_path):
    """The target replaced the feature."""
    frame = pd.DataFrame({name: X[:, 0], "b": X[:, 1]})
    rows = SequenceRows(frame, Y, sample_weight=np.ones(300))
    with pytest.raises(ValueError, match=f"2 are called '{name}'"):
        rows.shuffle_to(tmp_path / "rows.parquet")


def test_columns_of_any_byte_order_and_name_are_written(tmp_path):
    frame = pd.DataFrame({parquet_writer.HASHES: X[:, 0]})
    found = shuffled(SequenceRows(frame, Y.astype(">f8")), tmp_path / "rows.parquet")
    assert_allclose(np.sort(found[parquet_writer.HASHES]), np.sort(X[:, 0]))
    assert_allclose(np.sort(found["y"]), np.sort(Y))
    for column in (pd.cut(X[:, 0], 3), np.array(["u", 1] * 150, dtype=object)):
        rows = SequenceRows(pd.DataFrame({"a": column}), Y)
        with pytest.raises(ValueError, match=r"column 'a' .* cannot be written"):
            rows.shuffle_to(tmp_path / "others.parquet")


def test_a_shuffle_of_no_rows_leaves_the_old_file_alone(tmp_path):
    """It wrote 0 bytes."""
    path, target = tmp_path / "none.parquet", tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": X[:0, 0], "y": Y[:0]}), path)
    target.write_bytes(b"old")
    with pytest.raises(ValueError, match=r"0 rows to write to .*rows\.parquet"):
        ParquetRows(path, target="y").shuffle_to(target)
    assert target.read_bytes() == b"old"


def test_names_of_columns_that_are_no_text_are_refused_with_the_file(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"abcdefgh": X[:, 0], "y": Y}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"\xffbcdefgh"))
    with pytest.raises(ValueError, match=r"rows\.parquet cannot be read as Parquet"):
        ParquetRows(path, target="y")


def test_what_a_killed_shuffle_has_left_is_removed_by_the_next(tmp_path):
    """Its buckets, of the size of the table, stayed beside the file."""
    path = tmp_path / "rows.parquet"
    killed = tmp_path / f".{path.name}.{'0' * 32}.tmp"
    killed.touch()
    whole_file.beside(killed).mkdir()
    (whole_file.beside(killed) / "0.arrows").touch()
    with whole_file.whole_file(path) as unfinished:  # another process, which writes
        whole_file.beside(unfinished).mkdir()
        SequenceRows(X, Y).shuffle_to(path)
        assert whole_file.beside(unfinished).exists()
        whole_file.beside(unfinished).rmdir()
        unfinished.write_bytes(path.read_bytes())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("seed", [None, "a", 1.5])
def test_seeds_that_are_no_integers_are_named(seed, tmp_path):
    with pytest.raises(TypeError, match="seed must be an integer"):
        SequenceRows(X, Y).shuffle_to(tmp_path / "rows.parquet", seed=seed)


@pytest.mark.parametrize("footer", ["encrypted", "plain"])
def test_encrypted_files_are_not_called_damaged(footer, tmp_path):
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        """No secrets."""

        def __init__(self, _):
            encryption.KmsClient.__init__(self)

        def wrap_key(self, key, _):
            return base64.b64encode(key)

    wanted = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["a"]}, plaintext_footer=footer == "plain"
    )
    connection = encryption.KmsConnectionConfig()
    properties = encryption.CryptoFactory(Keys).file_encryption_properties(connection, wanted)
    table, path = pa.table({"a": X[:, 0], "y": Y}), tmp_path / "rows.parquet"
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(ValueError, match=r"rows.parquet.* It is encrypted; write it without"):
        clone(MODEL).fit(ParquetRows(path, "y"))


class Columns(FunctionTransformer):
    """Returns what a function of rows and of the number of calls makes of them."""

    def __init__(self, make):
        super().__init__()
        self.make, self.n_calls = make, 0

    def transform(self, X):
        self.n_calls += 1
        return self.make(X, self.n_calls)


def in_turn_reversed(rows, n_calls):
    frame = pd.DataFrame(rows, columns=["a", "b"])
    return frame[["b", "a"]] if n_calls > 1 else frame


TRANSFORMS = {
    "other columns": (in_turn_reversed, r"chunk 0: `transform` returned the columns \['b', 'a'\]"),
    "no column": (lambda rows, _: rows[:, :0], r"chunk 0: .* must have columns, .* \(100, 0\)"),
    "a tuple": (lambda rows, _: (rows, None), "chunk 0: the result of `transform` must have rows"),
    "fewer rows": (lambda rows, _: rows[1:], r"one row for each of the 100 .* got shape \(99, 2\)"),
}


@pytest.mark.parametrize(("make", "message"), TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("model", [MODEL, AutoGaussianProcessRegressor()], ids=["sparse", "auto"])
def test_what_a_transform_returns_is_checked(model, make, message):
    """Columns were taken by their position, in silence."""
    chunks = [(X[:150], Y[:150]), (X[150:], Y[150:])]
    source = ChunkRows(lambda: iter(chunks), transform=Columns(make))
    with pytest.raises(ValueError, match=message):
        clone(model).fit(source)


def test_targets_in_another_order_are_refused():
    frames = [pd.DataFrame(X[:, ::k], columns=["p", "q"][::k]) for k in (1, -1)]
    source = ChunkRows(lambda: iter((X, frame) for frame in frames))
    with pytest.raises(ValueError, match=r"chunk 1: y has the columns \['q', 'p'\], but in the"):
        clone(MODEL).fit(source)


class NoMemory:
    """Rows that do not fit into memory."""

    shape = (300, 2)

    def __getitem__(self, rows):
        raise MemoryError("4 GB")


def no_memory():
    yield X[:100], Y[:100]
    raise MemoryError


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda: SequenceRows(NoMemory(), Y), "Reading rows 0 to .*: 4 GB. Lower chunk_rows"),
        (lambda: ChunkRows(no_memory), "Reading chunk 1 ran out of memory. Make smaller chunks"),
    ],
)
def test_rows_that_do_not_fit_are_named(source, message):
    """The device was blamed."""
    with pytest.raises(MemoryError, match=message):
        clone(MODEL).fit(source())


BAD_ROWS = {
    "count": ({"likelihood": "poisson"}, {"y": -1.0}, "y must hold counts"),
    "log": ({"target_transform": "log"}, {"y": -1.0}, "y must be positive for target_transform"),
    "weight": ({}, {"sample_weight": 1e300}, "sample_weight must be 0 or between"),
}


@pytest.mark.parametrize(("params", "bad", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_the_chunk_of_a_bad_row_is_named(params, bad, message):
    """Only what every model refuses was named, and the rest said of the shuffle buffer."""
    arrays = {"y": np.ones(300), "sample_weight": np.ones(300)}
    for name, value in bad.items():
        arrays[name][250] = value
    source = SequenceRows(X, **arrays, chunk_rows=100)
    with pytest.raises(ValueError, match=f"rows 200 to 299: {message}"):
        clone(MODEL).set_params(solver="auto", **params).fit(source)


def test_a_wrong_parameter_names_no_chunk():
    with pytest.raises(ValueError, match=r"^likelihood must be"):
        clone(MODEL).set_params(likelihood="none").fit(SequenceRows(X, Y))


PIPELINES = [
    make_pipeline(StandardScaler(), FunctionTransformer(np.tanh)),
    make_pipeline(make_pipeline(StandardScaler(), FunctionTransformer()), "passthrough"),
    FeatureUnion([("a", make_pipeline(StandardScaler(), FunctionTransformer()))]),
]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=["pipeline", "nested", "union"])
def test_pipelines_that_end_in_a_step_without_a_fit_are_fitted(pipeline):
    """Scikit-learn takes them for fitted."""
    source = SequenceRows(X, Y, transform=pipeline)
    assert clone(MODEL).fit(source).n_features_in_ == 2
    expected = clone(pipeline).fit(X).transform(X)
    assert_allclose(source.transform_.transform(X), expected)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names", "ignore:Errors")
def test_ranks_use_the_transform_that_rank_0_fits():
    """Each fitted its own, at random, so that their rows had other features."""

    def fit(group):
        source = SequenceRows(X, Y, chunk_rows=50, transform=GaussianRandomProjection(2))
        return clone(MODEL).fit(source), source.transform_

    (first, of_first), (second, of_second) = on_ranks(fit, 2)
    assert_allclose(of_first.components_, of_second.components_, rtol=0.0)
    assert_allclose(first.predict(X), second.predict(X), rtol=0.0)


def test_transforms_of_ranks_are_picklable():
    """Both say so; the other one waited in vain."""

    def fit(group):
        scaled = make_pipeline(FunctionTransformer(lambda rows: rows), StandardScaler())
        clone(MODEL).fit(SequenceRows(X, Y, transform=scaled))

    for error in on_ranks(fit, 2, expect=(ValueError, RuntimeError)):
        assert "transform must be picklable" in str(error)


def test_paths_and_columns_may_come_from_generators(path):
    """The check of their types used them up."""
    source = ParquetRows(path.parent.glob("*.parquet"), iter(["y"]), features=iter("ab"))
    assert source.stored_names == ["a", "b"]
    assert clone(MODEL).fit(source).n_features_in_ == 2


@pytest.mark.parametrize("role", ["target", "y_std", "features"])
def test_no_column_for_a_role_is_told(path, role):
    with pytest.raises(ValueError, match=f"{role} must name at least one column, got none"):
        ParquetRows(path, **{"target": "y", role: []})


@pytest.mark.skipif(os.name != "posix", reason="names are texts")
def test_files_whose_names_are_not_in_utf_8_are_read(path):
    name = os.fsdecode(os.fsencode(path.parent) + b"/\xe9.parquet")
    os.rename(path, name)
    assert clone(MODEL).fit(ParquetRows(path.parent, target="y")).n_features_in_ == 2


def test_chunks_without_rows_and_one_column_of_targets_have_any_names():
    frames = [pd.DataFrame(), pd.DataFrame({"t": Y[:150]}), pd.DataFrame({"u": Y[150:]})]
    chunks = [(X[:0], frames[0]), (X[:150], frames[1]), (X[150:], frames[2])]
    model = clone(MODEL).fit(ChunkRows(lambda: iter(chunks)))
    assert_allclose(model.predict(X), clone(MODEL).fit(X, Y).predict(X), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_chunks_of_other_columns_are_told_before_a_transform_is_fitted(kind):
    """The words were Python's."""
    library = pd if kind == "pandas" else pytest.importorskip("polars")
    frames = [library.DataFrame({"a": X[:, 0]}), library.DataFrame({"b": X[:, 0]})]
    source = ChunkRows(lambda: iter((f, Y) for f in frames), transform=StandardScaler())
    with pytest.raises(ValueError, match="chunk 1: X has the column 'b' where chunk 0 has 'a'"):
        clone(MODEL).fit(source)


def test_a_transform_that_returns_arrays_of_another_width_is_told():
    made = Columns(lambda rows, n_calls: np.ones((len(rows), min(n_calls, 2))))
    source = SequenceRows(X, Y, chunk_rows=100, transform=made)
    with pytest.raises(ValueError, match="X has 2 columns, but the first rows have 1"):
        AutoGaussianProcessRegressor().fit(source)


def test_a_file_that_may_not_be_read_is_not_called_encrypted(tmp_path):
    (tmp_path / "decrypted").mkdir()
    missing = tmp_path / "decrypted" / "rows.parquet"
    missing.touch()
    with pytest.raises(ValueError, match="It is not a Parquet file, or"):
        ParquetRows(missing, target="y")

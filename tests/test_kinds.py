"""Dates, durations and objects as data: refused with what to do, wherever numbers are needed."""

import warnings
from datetime import timedelta

import numpy as np
import pandas as pd
import polars as pl
import pytest
from families import by_default, slow_cases
from scipy import sparse
from sklearn.base import clone, is_regressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import Ridge

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    ConstantVarianceRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
    StackedDensityRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.data import ChunkRows, ParquetRows, SequenceRows
from skgpstoch.data.array_inputs import real_target, warn_of_long_integers
from skgpstoch.data.read_table import validate_table
from skgpstoch.data.scan import scan

pytestmark = pytest.mark.usefixtures("one_kernel")

N = 24
DAYS = np.datetime64("2020-01-01") + np.arange(N).astype("timedelta64[D]")
NUMBERS = np.arange(N, dtype=np.float64)
QUICK = SVGPRegressor(n_inducing=5, solver="natural", max_iter=1, random_state=0)
EVERY = {
    "sparse": QUICK,
    "finite": SCGDGaussianProcessRegressor(max_iter=1, hidden_layer_sizes=(4,)),
    "drop_in": GaussianProcessRegressor(RBF(), optimizer=None),
    "default": AutoGaussianProcessRegressor(),
    "constant variance": ConstantVarianceRegressor(Ridge()),
    "stacked": StackedDensityRegressor([("a", QUICK), ("b", QUICK)]),
}
TIMES = {
    "dates": DAYS,
    "durations": DAYS - DAYS[0],
    "a frame": pd.DataFrame({"y": DAYS}),
    "a zone": pd.Series(pd.DatetimeIndex(DAYS, tz="UTC")),
    "periods": pd.Series(pd.period_range("2020-01-01", periods=N, freq="D")),
    "polars": pl.Series(DAYS),
}
OBJECTS = {
    "stamps": (list(pd.Series(DAYS)), "of type Timestamp"),
    "deltas": ([timedelta(days=int(i)) for i in range(N)], "of type timedelta"),
    "intervals": (pd.Series(pd.interval_range(0, N, N)), "of type Interval"),
    "words": (
        np.array(["much"] * N, object),
        "got the string 'much'.*AutoGaussianProcessClassifier",
    ),
    "texts": (NUMBERS.astype(str), "got strings .dtype <U.*AutoGaussianProcessClassifier"),
    "none": (np.array([None, *NUMBERS[1:]], object), "y contains NaN"),
    "pandas' missing": (pd.Series([pd.NA, *NUMBERS[1:]], dtype="Float64"), "y contains NaN"),
    "complex objects": (np.array([*NUMBERS[1:], 1j], object), "of type complex"),
    "complex": (NUMBERS + 0j, "Complex data not supported"),
}


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(size=(N, 2))


@pytest.mark.parametrize("y", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("model", EVERY.values(), ids=EVERY)
def test_dates_are_no_targets(model, y, X):
    with pytest.raises(ValueError, match=r"y must be numeric, got dates .* numpy.timedelta64"):
        model.fit(X, y)


@pytest.mark.parametrize("name", ["sample_weight", "y_std"])
@pytest.mark.parametrize("model", [QUICK, EVERY["default"]], ids=["sparse", "default"])
def test_dates_are_no_weights_and_no_errors(model, name, X):
    with pytest.raises(ValueError, match=f"{name} must be numeric, got"):
        model.fit(X, NUMBERS, **{name: pd.Series(DAYS)})


@pytest.mark.parametrize(("y", "message"), OBJECTS.values(), ids=OBJECTS)
@pytest.mark.parametrize("model", EVERY.values(), ids=EVERY)
def test_other_objects_are_no_targets(model, y, message, X):
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)


def test_dates_among_inputs_are_named(X):
    frame = pd.DataFrame({"a": X[:, 0], "day": DAYS})
    models = [QUICK, EVERY["drop_in"], EVERY["constant variance"], SVGPClassifier()]
    for model in models:
        for given in (frame, DAYS[:, None], pl.DataFrame({"a": X[:, 0], "day": DAYS})):
            with pytest.raises(ValueError, match=r"X must be numeric, got dates .*[Dd]ate.*Auto"):
                model.fit(given, NUMBERS > 9)


@pytest.mark.parametrize("fill", [0.0, np.nan])
@by_default("nan")
def test_sparse_columns_are_dense_ones(fill, X):
    frame = pd.DataFrame(X, columns=["a", "b"])
    sparse = frame.astype(pd.SparseDtype(float, fill))
    for model in (QUICK, EVERY["drop_in"]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a fit of one step
            expected = model.fit(frame, NUMBERS).predict(frame)
            np.testing.assert_array_equal(model.fit(sparse, NUMBERS).predict(sparse), expected)


def test_cells_are_numbers(X):
    lists = [[1.0, 2.0]] * N
    ours = [model for name, model in EVERY.items() if name != "constant variance"]
    for model in ours:  # that one passes X on
        for frame in (pd.DataFrame({"b": X[:, 0], "a": lists}), pl.DataFrame({"a": lists})):
            with pytest.raises((ValueError, TypeError), match=r"X.*\ba\b|'a' of X holds"):
                model.fit(frame, NUMBERS)
        with pytest.raises(ValueError, match="X must have rows of numbers, all of the same length"):
            model.fit([[1.0, 2.0], [3.0]] * (N // 2), NUMBERS)


def test_a_frame_needs_columns(X):
    frame = pd.DataFrame(X)[[]]
    for model in EVERY.values():
        with pytest.raises(ValueError, match=r"0 feature.s. .*while a minimum of 1 is required"):
            model.fit(frame, NUMBERS)


@pytest.mark.parametrize(
    "y",
    [
        pd.Series(NUMBERS, dtype="Float64"),
        pd.Series(NUMBERS, dtype="Int64"),
        NUMBERS.astype(object),
        NUMBERS.tolist(),
        pl.Series(NUMBERS),
    ],
    ids=lambda y: f"{type(y).__name__} {getattr(y, 'dtype', '')}",
)
@slow_cases("Float64_1", "list", "Int64", "object")
def test_numbers_of_any_kind_are_targets(y, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fit of one step
        expected = QUICK.fit(X, NUMBERS).predict(X)
        np.testing.assert_array_equal(QUICK.fit(X, y).predict(X), expected)


def test_truth_values_are_targets():
    np.testing.assert_array_equal(real_target([True, False]), [True, False])


@pytest.mark.parametrize("make", [np.asarray, pd.Series, lambda y: pd.array(y, dtype="boolean")])
def test_yes_and_no_are_numbers_of_a_regression(make):
    """The recommended default failed on them, if it trained networks."""
    found = real_target(make([True, False, True]))
    assert found.dtype == np.float64
    assert found.tolist() == [1.0, 0.0, 1.0]


def test_texts_among_the_inputs_are_named():
    X = pd.DataFrame({"a": np.arange(20.0), "b": list("0123456789") * 2, "city": list("uv") * 10})
    with pytest.raises(ValueError, match=r"float: 'u', in city. Encode .* AutoGaussian"):
        SVGPRegressor().fit(X, X["a"])


@pytest.mark.parametrize("model", [SVGPRegressor(), EVERY["drop_in"], SVGPClassifier()])
def test_estimators_that_accept_missing_values_are_recommended(model, X):
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"X contains NaN\. .* AutoGaussianProcess.* imputer") as e:
        model.fit(X, NUMBERS > 9)
    kinds = [kind for kind in ("Regressor", "Classifier") if f"AutoGaussianProcess{kind}" in str(e)]
    assert [type(model).__name__.endswith(kind) for kind in kinds] == [True]
    assert "HistGradientBoosting" not in str(e)


@pytest.mark.parametrize("make", [iter, set, lambda a: dict(enumerate(a)).values()])
@pytest.mark.parametrize(
    "model", [SVGPRegressor(), EVERY["drop_in"], EVERY["default"], SVGPClassifier()]
)
def test_what_can_be_read_only_once_is_refused_by_name(make, model, X):
    rows = make([tuple(row) for row in X.tolist()])
    with pytest.raises(TypeError, match=f"X must be an array or a list, got {type(rows).__name__}"):
        model.fit(rows, NUMBERS)
    with pytest.raises(TypeError, match="y must be an array or a list, got "):
        model.fit(X, make(NUMBERS.tolist()))


@pytest.mark.parametrize("model", [SVGPRegressor(), EVERY["drop_in"]])
def test_complex_numbers_are_refused_by_name(model, X):
    for name, data in {"X": (X + 0j, NUMBERS), "y": (X, NUMBERS + 0j)}.items():
        with pytest.raises(ValueError, match=f"Complex data not supported: {name} holds complex"):
            model.fit(*data)
    with pytest.raises(ValueError, match="Complex data not supported: y holds complex"):
        SVGPClassifier().fit(X, np.where(NUMBERS > 9.0, 1j, 1.0))


def test_no_points_are_refused_by_name(X):
    for points in ([], np.empty((0, 2)), np.empty((3, 0))):
        for n_inducing in ("auto", 5):
            with pytest.raises(ValueError, match="inducing_points must be an array of numbers"):
                SVGPRegressor(n_inducing=n_inducing, inducing_points=points).fit(X, NUMBERS)


def test_texts_are_refused_as_targets_of_a_score(X):
    model = clone(EVERY["drop_in"]).fit(X, NUMBERS)
    with pytest.raises(ValueError, match="y must be numeric, got strings"):
        model.score(X, NUMBERS.astype(str))


@pytest.mark.parametrize(
    "model", [SVGPClassifier(), AutoGaussianProcessClassifier(), GaussianProcessClassifier()]
)
@pytest.mark.parametrize(
    "make",
    [
        list,
        pd.Series,
        lambda y: pd.Series(y, dtype="string"),
        lambda y: pd.Series(y, dtype="category"),
    ],
    ids=["list", "objects", "string", "category"],
)
def test_rows_without_a_label_are_refused(make, model, X):
    """In a list beside strings, NaN was taken for a label 'nan'."""
    with pytest.raises(ValueError, match=r"y has no label \(None, NaN\) in 1 of 24 rows"):
        model.fit(X, make([*"ab" * 11, "a", np.nan]))


@pytest.mark.parametrize("model", [QUICK, EVERY["drop_in"]])
def test_targets_of_a_score_have_the_shape_of_predictions(model, X):
    fitted = clone(model).fit(X, NUMBERS)
    assert fitted.score(X, NUMBERS[:, None]) == fitted.score(X, NUMBERS)
    with pytest.raises(
        ValueError, match=r"y must have the shape \(24,\) of predictions, got \(24, 2"
    ):
        fitted.score(X, np.column_stack([NUMBERS, NUMBERS]))
    with pytest.raises(ValueError, match="y must hold the targets of these rows, got None"):
        fitted.score(X, None)


def test_length_scales_are_compared_with_what_the_kernel_acts_on(X):
    kernel = RBF([1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="kernel has 3 length-scales, but X has 2 columns"):
        SVGPRegressor(kernel).fit(X, NUMBERS)
    with pytest.raises(ValueError, match="but it acts on the 5 outputs of the network"):
        SVGPRegressor(kernel, hidden_layer_sizes=(5,)).fit(X, NUMBERS)


BEYOND = [10**400] * N


@pytest.mark.parametrize(
    ("name", "fit"),
    [
        ("X", lambda m, X: m.fit(list(zip(BEYOND, NUMBERS, strict=True)), NUMBERS)),
        ("y", lambda m, X: m.fit(X, BEYOND)),
        ("y", lambda m, X: m.fit(X, NUMBERS).score(X, BEYOND)),
        ("sample_weight", lambda m, X: m.fit(X, NUMBERS, sample_weight=BEYOND)),
    ],
)
@pytest.mark.parametrize("model", [QUICK, EVERY["default"]])
def test_integers_beyond_floats_are_refused(model, name, fit, X):
    with pytest.raises(ValueError, match=f"{name} has an integer beyond 1.8e308"):
        fit(clone(model), X)


@pytest.mark.parametrize("model", [QUICK, EVERY["default"]])
def test_both_infinities_are_one_error(model, X):
    """And no warning of their sum."""
    y = np.where(NUMBERS < 2, np.inf, np.where(NUMBERS > N - 3, -np.inf, NUMBERS))
    with pytest.raises(ValueError, match="y contains infinity"):
        clone(model).fit(X, y)


def test_records_become_frames(X):
    records = pd.DataFrame(X, columns=["a", "b"]).to_records(index=False)
    for model in (QUICK, EVERY["default"]):
        with pytest.raises(TypeError, match=r"got a structured array\. Use pandas\.DataFrame\(X\)"):
            model.fit(records, NUMBERS)


@pytest.mark.parametrize("model", [QUICK, EVERY["default"], EVERY["drop_in"], SVGPClassifier()])
def test_sparse_matrices_name_the_cure(model, X):
    with pytest.raises(TypeError, match=r"X must be dense.*X\.toarray\(\).*sparse_output=False"):
        model.fit(sparse.csr_array(X), NUMBERS > 9)
    if is_regressor(model):
        with pytest.raises(TypeError, match=r"y must be dense.*y\.toarray\(\)"):
            model.fit(X, sparse.csr_matrix(NUMBERS[:, None]))


def arrow_integers():
    pytest.importorskip("pyarrow")
    return pd.array([*LONG[1:], None], dtype="int64[pyarrow]")


LONG = [2**60 + i for i in range(20)]
LONG_TABLES = {
    "array": lambda: np.array(LONG)[:, None],
    "other byte order": lambda: np.array(LONG, ">i8")[:, None],
    "pandas": lambda: pd.DataFrame({"id": LONG}),
    "missing": lambda: pd.DataFrame({"id": pd.array([*LONG[1:], None], dtype="Int64")}),
    "objects": lambda: np.array(LONG, object)[:, None],
    "list": lambda: [[each] for each in LONG],
    "pandas, Arrow": lambda: pd.DataFrame({"id": arrow_integers()}),
    "pandas, objects": lambda: pd.DataFrame({"id": [*LONG[1:], None]}, dtype=object),
    "polars, decimal": lambda: pl.DataFrame({"id": LONG}, {"id": pl.Decimal(38, 0)}),
    "polars": lambda: pl.DataFrame({"id": [*LONG[1:], None]}),
    "Arrow": lambda: pytest.importorskip("pyarrow").table({"id": [*LONG[1:], None]}),
}


@pytest.mark.parametrize("name", LONG_TABLES)
def test_long_integers_are_warned_of(name):
    X, where = LONG_TABLES[name](), "column 'id' of X"
    where = "X" if isinstance(X, np.ndarray | list) else where
    with pytest.warns(UserWarning, match=f"{where} has integers from 115292.* rounds to 16 digits"):
        warn_of_long_integers(X, "X")


@pytest.mark.filterwarnings("error")
def test_integers_that_float64_has_are_not_warned_of():
    for values in (np.array([2**53, -(2**53)]), np.empty(0, int), np.array([1e300])):
        warn_of_long_integers(values, "y")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("asked", [["id"], [0], [True, False]])
@pytest.mark.parametrize("name", ["pandas", "missing", "polars", "Arrow"])
def test_long_integers_that_are_names_stay_as_they_are(name, asked):
    """They are levels, which nothing rounds."""
    X = LONG_TABLES[name]()
    made = pl.DataFrame if name == "polars" else pd.DataFrame
    if name == "Arrow":
        X = X.append_column("x", [[0.0] * len(X)])
    else:
        X = made({"id": X["id"], "x": np.zeros(len(X))})
    model = AutoGaussianProcessRegressor(categorical_features=asked)
    validate_table(model, X, np.zeros(len(X)), reset=True)
    with pytest.warns(UserWarning, match="column 'id' of X has integers from"):
        validate_table(model.set_params(categorical_features=["x"]), X, reset=True)


def stored(name, path):
    """Rows of two columns, of which one has long integers, that are read in chunks."""
    frame = pd.DataFrame({"x": np.arange(20.0), "id": LONG})
    if name == "Parquet":
        pytest.importorskip("pyarrow")
        frame.assign(y=0.0).to_parquet(path / "rows.parquet", row_group_size=6)
        return ParquetRows(path / "rows.parquet", target="y")
    if name == "chunks":
        return ChunkRows(lambda: ((frame[i : i + 6], np.zeros(6)) for i in range(0, 18, 6)))
    return SequenceRows(frame.astype(np.int64).to_numpy(), np.zeros(20))


@pytest.mark.parametrize("name", ["Parquet", "chunks", "sequence"])
def test_long_integers_that_are_read_in_chunks_are_warned_of(name, tmp_path):
    source = stored(name, tmp_path)
    with pytest.warns(UserWarning, match="has integers from .* rounds to 16 digits") as told:
        scan(source, 10, 0)
    said = [str(each.message) for each in told if "has integers" in str(each.message)]
    column = 1 if name == "sequence" else "id"
    assert [text.split(" has")[0] for text in said] == [f"column {column!r} of X"]
    few = SequenceRows(np.array([[2**53], [-(2**53)]]), np.zeros(2))
    with warnings.catch_warnings(action="error"):
        scan(few, 10, 0)


@pytest.mark.slow
def test_fits_warn_of_long_integers():
    X, y = np.arange(20.0)[:, None], np.array(LONG)
    model = SVGPRegressor(n_inducing=5, max_iter=1)
    with pytest.warns(UserWarning, match="y has integers from"):
        model.fit(X, y)
    for tried in (model, AutoGaussianProcessRegressor(max_time=1)):
        with pytest.warns(UserWarning, match="X has integers from"):
            tried.fit(y[:, None], X[:, 0])

"""Tables as users have them: categories, missing values, dates; scaling where a few rows rule."""

import datetime as dt
import functools
import pickle
import re
import warnings
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest
from families import by_default
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    DeepKernelEnsembleRegressor,
    GaussianProcessRegressor,
    SVGPRegressor,
)
from skgpstoch.data import ParquetRows
from skgpstoch.data.arrays import Scaling, quantiles
from skgpstoch.data.categories import OneHot
from skgpstoch.data.columns import columns_of, zone_name
from skgpstoch.data.frames import join
from skgpstoch.data.misread import told_of_texts
from skgpstoch.data.missing_codes import missing_codes
from skgpstoch.data.numeric import Dates, Numbers, gaps_of, without_gaps
from skgpstoch.data.read_table import category_mask
from skgpstoch.data.tables import TableEncoder
from skgpstoch.data.target_means import (
    LevelSums,
    LevelTargets,
    TargetMeans,
    Targets,
    folds_of,
    prior_rows,
    sums,
)
from skgpstoch.methods.automatic import automatic_classifier
from skgpstoch.methods.automatic.strange_targets import looks_like_counts
from skgpstoch.training.recipes.row_findings import of_missing_targets

pytestmark = [
    pytest.mark.filterwarnings("ignore:max_time=0.01 could not be kept"),
    pytest.mark.usefixtures("one_kernel"),
]

Quick = functools.partial(AutoGaussianProcessRegressor, max_time=0.01, random_state=0)
QuickClassifier = functools.partial(AutoGaussianProcessClassifier, max_time=0.01, random_state=0)


@pytest.fixture(scope="module")
def people():
    """A frame with all that users have, and a target that depends on it."""
    rng = np.random.default_rng(0)
    n = 200
    town = np.array([f"town {j}" for j in range(200)])[rng.integers(200, size=n)]
    frame = pd.DataFrame(
        {
            "age": rng.normal(40.0, 10.0, n),
            "work": pd.Categorical(np.array(["none", "half", "full"])[rng.integers(3, size=n)]),
            "town": town,
            "member": rng.random(n) < 0.5,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(900, size=n), "D"),
            "children": pd.array(rng.integers(4, size=n), dtype="Int64"),
        }
    )
    frame.loc[::10, "age"] = np.nan
    frame.loc[3::17, ["work", "town", "children"]] = None
    y = frame["age"].fillna(40.0) + 5.0 * np.char.str_len(town) + 3.0 * frame["member"]
    return frame, (y + rng.normal(size=n)).to_numpy()


def as_polars(frame):
    listed = {c: [None if pd.isna(v) else v for v in frame[c]] for c in frame}
    return pl.DataFrame(listed).with_columns(pl.col("work").cast(pl.Categorical))


def encoded(X, y, *args, **params):
    return TableEncoder(**params).fit_transform(X, y, *args)


# ---- what becomes of columns -------------------------------------------------------------------


def test_columns_of_a_frame(people):
    X, y = people
    encoder = TableEncoder()
    Z = encoder.fit_transform(X, y)
    # age and whether it is missing; three kinds of work and none; mean and effect of town; member;
    # days with week and year; children and whether they are missing
    assert [e.width for e in encoder.encoders] == [2, 4, 2, 1, 5, 2]
    age = X["age"].to_numpy()
    assert_array_equal(Z[:, 1], np.isnan(age))
    assert_array_equal(Z[:, 0], np.where(np.isnan(age), np.nanmedian(age), age))
    work = X["work"].to_numpy()
    expected = [work == level for level in ("full", "half", "none")] + [pd.isna(work)]
    assert_array_equal(Z[:, 2:6], np.transpose(expected))
    assert_array_equal(Z[:, 8], X["member"])
    days = (X["since"] - pd.Timestamp("1970-01-01")).dt.days.to_numpy()
    assert_array_equal(Z[:, 9], days)
    assert_allclose(Z[:, 10:14].T, waves(days, 7.0) + waves(days, 365.2425), atol=1e-9)


def test_columns_that_say_what_is_missing(people):
    X, y = people
    X = X.assign(pet=pd.Categorical(np.where(np.arange(200) % 7 == 0, None, "cat")))
    X.loc[5, "since"] = pd.NaT
    encoder = TableEncoder()
    Z = encoder.fit_transform(X, y)
    expected = [X[name].isna() for name in ("age", "work", "since", "children", "pet")]
    assert_array_equal(Z[:, encoder.missing_columns].T, expected)
    encoder.fit_transform(X[["member", "town"]], y)
    assert encoder.missing_columns == []


def test_levels_of_four_rows_are_columns():
    """Means from other rows would say less of them, and what they say is uncertain."""
    X = pd.DataFrame({"a": [f"{j:02}" for j in range(20)] * 4})
    y = np.random.default_rng(0).normal(size=80)
    assert encoded(X, y).shape == (80, 20)
    assert encoded(X[:79], y[:79]).shape == (79, 1)
    assert encoded(X, y, np.arange(80) % 79 + 0.0).shape == (80, 1)  # of weight 0 is none


def test_missing_levels_are_levels():
    X = pd.DataFrame({"a": np.tile([None, *(f"{j}" for j in range(11))], 15)})
    encoder = TableEncoder()
    Z = encoder.fit_transform(X, np.random.default_rng(0).normal(size=180))
    assert_array_equal(Z[:, encoder.missing_columns].T, [X["a"].isna()])


def waves(days, period):
    angle = 2 * np.pi * days / period
    return [np.sin(angle), np.cos(angle)]


def test_rows_by_level():
    j = np.arange(300)
    X = pd.DataFrame(
        {
            "number": j / 10,
            "three": np.array(["a", "b", None], dtype=object)[j % 3],
            "flag": pd.array(np.where(j % 7, j % 4 == 0, None), dtype="boolean"),
            "two": np.where(j % 5, "u", "v"),
            "many": np.array([f"{k}" for k in range(12)])[j % 12],
            "size": pd.Categorical(
                np.array(["S", "L"])[j % 2], categories=["S", "L"], ordered=True
            ),
        }
    )
    encoder = TableEncoder()
    Z = encoder.fit_transform(X, j % 7 + 0.0)
    found = {(name, level): rows for name, level, rows in encoder.rows_by_level(Z)}
    names = {name for name, _ in found}
    assert names == {"'three'", "'flag'", "'two'", "'many'", "'size'"}
    assert_array_equal(found["'three'", None], X["three"].isna())
    assert_array_equal(found["'three'", "b"], X["three"] == "b")
    assert_array_equal(found["'flag'", 1.0], X["flag"].fillna(False))
    assert_array_equal(found["'flag'", None], X["flag"].isna())
    for name in ("two", "many", "size"):
        for level in X[name].unique():
            assert_array_equal(found[f"'{name}'", level], X[name] == level)


def test_frames_of_two_libraries_are_the_same(people):
    X, y = people
    encoder = TableEncoder()
    Z = encoder.fit_transform(X, y)
    assert_array_equal(encoded(as_polars(X), y), Z)
    assert_array_equal(encoder.transform(as_polars(X)), encoder.transform(X))


def test_objects_are_what_they_hold(people):
    X, y = people
    A = X.drop(columns="since").astype(object).to_numpy()
    assert_array_equal(encoded(A, y), encoded(X.drop(columns="since"), y))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, None, False], [1.0, np.nan, 0.0]),
        ([np.True_, None, np.False_], [1.0, np.nan, 0.0]),  # of frame.iloc[0].to_frame().T
        ([Decimal("1.5"), None, 2], [1.5, np.nan, 2.0]),
        ([dt.timedelta(hours=12), None, dt.timedelta(2)], [0.5, np.nan, 2.0]),
        ([np.timedelta64(12, "h"), None, np.timedelta64(2, "D")], [0.5, np.nan, 2.0]),
        ([np.datetime64("1970-01-02"), None, np.datetime64("1970-01-01T12")], [1.0, np.nan, 0.5]),
        ([dt.date(1970, 1, 2), None, dt.datetime(1970, 1, 1, 12)], [1.0, np.nan, 0.5]),
        ([pd.NA, np.float32("nan"), 1], [np.nan, np.nan, 1.0]),
    ],
)
def test_cells_that_are_numbers(values, expected):
    for X in (pd.DataFrame({"a": values}, dtype=object), np.array([values], dtype=object).T):
        assert_array_equal(columns_of(X)[0].values, expected)


def test_dates_of_a_time_zone_are_by_its_clock():
    hours = pd.date_range("2020-01-01", periods=100, freq="h", tz="Europe/Berlin")
    X, y = pd.DataFrame({"when": hours}), np.arange(100.0)
    naive = pd.DataFrame({"when": hours.tz_localize(None)})
    encoder = TableEncoder()
    assert_array_equal(encoder.fit_transform(X, y), encoded(naive, y))
    with pytest.raises(ValueError, match=r"'when' .* time zone UTC, .* Europe/Berlin"):
        encoder.transform(pd.DataFrame({"when": hours.tz_convert("UTC")}))


# How a zone is given, its name, and whether polars reads it from Arrow.
ZONES = [
    ("UTC", "UTC", True),
    ("Europe/Berlin", "Europe/Berlin", True),
    ("Asia/Kolkata", "Asia/Kolkata", True),
    ("America/New_York", "America/New_York", True),
    ("America/Argentina/Buenos_Aires", "America/Argentina/Buenos_Aires", True),
    ("America/Port-au-Prince", "America/Port-au-Prince", True),
    ("Etc/GMT+5", "UTC-05:00", True),
    (ZoneInfo("Australia/Lord_Howe"), "Australia/Lord_Howe", True),
    (dt.UTC, "UTC", True),
    (dt.timezone(-dt.timedelta(hours=3)), "UTC-03:00", True),
    (dt.timezone(dt.timedelta(hours=5, minutes=30)), "UTC+05:30", False),
    (dt.timezone(dt.timedelta(hours=2), "our_zone 2"), "UTC+02:00", True),
]


def frames_of(series, in_polars):
    """Frames of every library with one column, `when`."""
    pa = pytest.importorskip("pyarrow")
    frame = series.rename("when").to_frame()
    yield frame
    yield frame.astype({"when": series.dt.as_unit("ns").dtype})
    yield frame.convert_dtypes(dtype_backend="pyarrow")
    yield (table := pa.Table.from_pandas(frame))
    if in_polars:
        yield pl.from_arrow(table)


@pytest.mark.parametrize(("zone", "name", "in_polars"), ZONES, ids=[str(z[0]) for z in ZONES])
def test_time_zones_of_any_name(zone, name, in_polars):
    moments = pd.Series(pd.date_range("2020-03-01", periods=300, freq="7h", tz="UTC"))
    moments[7] = pd.NaT
    clock, y = moments.dt.tz_convert(zone), np.arange(300.0)
    encoder = TableEncoder()
    wanted = encoder.fit_transform(clock.rename("when").to_frame(), y)
    assert_array_equal(wanted, encoded(clock.dt.tz_localize(None).rename("when").to_frame(), y))
    for frame in frames_of(clock, in_polars):
        (column,) = columns_of(frame)
        assert (column.kind, column.time_zone) == ("dates", name)
        assert_array_equal(TableEncoder().fit_transform(frame, y), wanted)
        assert_array_equal(encoder.transform(frame), wanted)
    for other in ("Pacific/Auckland", None):
        told = rf"is in (the time zone {other}|no time zone), but .* time zone {re.escape(name)}\."
        with pytest.raises(ValueError, match=told):
            encoder.transform(moments.dt.tz_convert(other).rename("when").to_frame())


def test_an_unknown_time_zone_keeps_its_name():
    """As of a machine without a database of time zones, or with another one."""
    assert zone_name("Mars/Olympus_Mons") == "Mars/Olympus_Mons"
    assert zone_name("+nonsense") == "+nonsense"
    assert zone_name("-09:30") == "UTC-09:30"


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["America/New_York", dt.timezone(dt.timedelta(hours=5))], ids=str)
@by_default("New_York")
def test_time_zones_in_files(zone, tmp_path):
    pytest.importorskip("pyarrow")
    moments = pd.Series(pd.date_range("2020-03-01", periods=60, freq="7h", tz=zone))
    y = np.sin(moments.dt.hour.to_numpy() / 24.0 * 2.0 * np.pi)
    frame = pd.DataFrame({"when": moments, "y": y})
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=25)
    model = Quick().fit(ParquetRows(tmp_path / "rows.parquet", target="y"))
    wanted = Quick().fit(frame[["when"]], y).predict(frame[["when"]])
    assert_array_equal(model.predict(frame[["when"]]), wanted)
    for backend in ("pyarrow", "numpy_nullable"):
        stored = pd.read_parquet(tmp_path / "rows.parquet", dtype_backend=backend)
        assert_array_equal(model.predict(stored[["when"]]), wanted)
    with pytest.raises(ValueError, match=r"'when' .* time zone Pacific/Auckland"):
        model.predict(frame[["when"]].assign(when=moments.dt.tz_convert("Pacific/Auckland")))


@pytest.mark.parametrize(
    ("freq", "periods"), [("h", [1]), ("D", [7, 365.2425]), ("MS", [365.2425]), ("YS", [])]
)
def test_dates_have_the_periods_that_they_hold(freq, periods):
    n = 600 if freq == "D" else 100
    X = pd.DataFrame({"when": pd.date_range("2020-01-01", periods=n, freq=freq)})
    encoder = TableEncoder()
    assert encoder.fit_transform(X, np.arange(float(n))).shape[1] == 1 + 2 * len(periods)
    assert list(encoder.encoders[0].periods) == periods


def test_durations_are_no_numbers():
    """Seconds would be taken for days."""
    X = pd.DataFrame({"wait": pd.to_timedelta(np.arange(40), "h"), "x": np.arange(40.0)})
    encoder = TableEncoder()
    encoder.fit_transform(X, np.arange(40.0))
    with pytest.raises(TypeError, match=r"'wait' .* numbers, but held durations .*unit='s'"):
        encoder.transform(X.assign(wait=X["wait"].dt.total_seconds()))
    with pytest.raises(TypeError, match="'x' of X holds durations, but held numbers"):
        encoder.transform(X.assign(x=X["wait"]))


def dated(n_days, per_day, seed=0):
    """Times, whose days have effects beside a season, the targets, and these effects."""
    rng = np.random.default_rng(seed)
    day = np.repeat(np.arange(n_days), per_day)
    hours = 24 * day + rng.integers(24, size=len(day))
    X = pd.DataFrame({"when": pd.Timestamp("2020-01-01") + pd.to_timedelta(hours, "h")})
    effect = rng.normal(size=n_days)[day]
    y = 0.02 * day + effect + 0.1 * rng.standard_normal(len(day))
    return X.assign(x=rng.normal(size=len(day))), y, effect


def test_days_that_rows_share_have_effects():
    """But no means, which have the trend."""
    X, y, effect = dated(60, 8)
    encoder = TableEncoder()
    Z = encoder.fit_transform(X, y)
    assert Z.shape[1] == 1 + 2 * 2 + 1 + 2  # days, day and week, x, mean and effect
    assert not Z[:, -2].any()
    assert np.corrcoef(Z[:, -1], effect)[0, 1] > 0.9  # the curve of dates tells some of it
    own = np.array([np.ptp(Z[X["when"].dt.date == day, -1]) for day in X["when"].dt.date.unique()])
    assert (own > 0.0).all()  # rows do not see their own fold
    assert_allclose(encoder.of_columns(np.arange(8.0)), [0 + 1 + 2 + 3 + 4 + 6 + 7, 5])
    later = X[:3].assign(when=X["when"][:3] + pd.Timedelta(days=365))
    with pytest.warns(UserWarning, match="day of 'when' of X has levels .*such as '2020-12-31'"):
        Z, (new,) = encoder.transform_with_new(later)
    assert_array_equal(Z[:, -2:], 0.0)
    assert_array_equal(new.stand_ins[:, :, :-2], np.broadcast_to(Z[:, :-2], (6, 3, 6)))
    drawn, effects = new.stand_ins[:, 0, -1], encoder.encoders[-1].means[:-1, -1]
    assert np.isin(drawn, effects).all()
    assert_allclose(drawn.std(), effects.std(), rtol=0.1)


@pytest.mark.parametrize(("n_days", "per_day"), [(9, 50), (60, 3)])
def test_few_or_single_days_have_no_effects(n_days, per_day):
    X, y, _ = dated(n_days, per_day)
    encoder = TableEncoder()
    assert encoder.fit_transform(X, y).shape[1] == encoder.encoders[0].width + 1
    later = X.assign(when=X["when"] + pd.Timedelta(days=365))
    assert not encoder.transform_with_new(later)[1]


def test_days_without_effects_have_none():
    """Nor have those of which hardly any are left beside noise."""
    X, y, effect = dated(60, 8)
    noise = np.random.default_rng(1).standard_normal(len(y))
    for target in (y - effect, noise + 0.1 * effect):
        encoder = TableEncoder()
        assert not encoder.fit_transform(X, target)[:, -2:].any()
        later = X.assign(when=X["when"] + pd.Timedelta(days=365))
        assert not encoder.transform_with_new(later)[1]


def test_ordered_categories_are_numbers_in_their_order():
    size = pd.Categorical(["big", "small", None, "huge"], ["small", "big", "huge"], ordered=True)
    X = pd.DataFrame({"size": size})
    encoder = TableEncoder()
    assert_array_equal(encoder.fit_transform(X, np.arange(4.0)), [[1, 0], [0, 0], [1, 1], [2, 0]])
    assert_array_equal(encoder.transform(X.astype(object)), encoder.transform(X))
    full = X.drop(index=2)
    assert_array_equal(encoded(full, np.arange(3.0))[:, 0], [1, 0, 2])
    pa = pytest.importorskip("pyarrow")
    halves = [
        pa.Table.from_pandas(X[rows], preserve_index=False) for rows in (slice(2), slice(2, 4))
    ]
    of_arrow = pa.concat_tables(halves)
    assert_array_equal(encoded(of_arrow, np.arange(4.0)), encoded(X, np.arange(4.0)))
    assert_array_equal(encoder.transform(of_arrow), encoder.transform(X))


def test_constant_and_empty_columns_are_left_out(people):
    X, y = people
    more = X.assign(one=1.0, same="x", never=np.nan, none=None)
    encoder = TableEncoder()
    assert_array_equal(encoder.fit_transform(more, y), encoded(X, y))
    assert_array_equal(encoder.transform(more.assign(none="now")), encoder.transform(more))
    assert encoded(np.ones((5, 2)), np.arange(5.0)).shape == (5, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_finite_numbers_pass_as_they_are(dtype):
    X = np.random.default_rng(0).normal(size=(50, 3)).astype(dtype)
    encoder = TableEncoder()
    assert encoder.fit_transform(X, X[:, 0]) is X
    assert encoder.transform(X) is X


# ---- new rows ----------------------------------------------------------------------------------


def test_levels_that_training_rows_did_not_have(people):
    X, y = people
    encoder = TableEncoder()
    encoder.fit_transform(X, y)
    new = X[:3].assign(work="other", town="elsewhere")
    with pytest.warns(UserWarning, match="has levels that the training rows did not have") as said:
        Z = encoder.transform(new)
    assert ["'work'" in str(said[0].message), "'elsewhere'" in str(said[1].message)] == [True] * 2
    assert_array_equal(Z[:, 2:6], 0.0)
    means = encoder.encoders[2].means
    assert_array_equal(Z[:, 6], means[-1, 0])
    assert means[:-1, 0].min() < means[-1, 0] < means[:-1, 0].max()


def test_levels_that_were_texts_are_named_where_they_are_numbers():
    encoder, y = TableEncoder(), np.arange(6.0)
    encoder.fit_transform(pd.DataFrame({"town": list("121212")}), y)
    numbers = pd.DataFrame({"town": pd.Categorical([2, 1])})
    with pytest.warns(UserWarning, match=r"such as 1\. .* If it is '1', which they had, convert"):
        encoder.transform(numbers)


def test_new_levels_are_told_once_a_fit(people):
    X, y = people
    encoder = TableEncoder()
    encoder.fit_transform(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="'work'"):  # which nobody has read then
            encoder.transform(X[:3].assign(work="other"))
    with pytest.warns(UserWarning, match="'work'"):
        encoder.transform(X[:3].assign(work="other"))
    with pytest.warns(UserWarning, match="'town'") as said:
        encoder.transform(X[:3].assign(work="third", town="elsewhere"))
    assert len(said) == 1
    encoder = TableEncoder()
    encoder.fit_transform(X, y)
    with pytest.warns(UserWarning, match="'work'"):
        encoder.transform(X[:3].assign(work="other"))


def test_numbers_that_are_missing_for_the_first_time():
    X = np.random.default_rng(0).normal(size=(51, 2))
    X[:9, 1] = 500.0 * np.arange(1, 10)  # has a scaling
    encoder = TableEncoder()
    encoder.fit_transform(X, X[:, 0])
    with pytest.warns(
        UserWarning, match=r"Column 1 of X has missing values, but it had none in the training rows"
    ):
        Z = encoder.transform(np.array([[0.5, np.nan]]))
    assert_array_equal(Z, encoder.transform(np.array([[0.5, np.median(X[:, 1])]])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once a fit
        assert_array_equal(encoder.transform(np.array([[0.5, np.nan]])), Z)


def test_numbers_in_place_of_categories(people):
    X, y = people
    encoder = TableEncoder()
    encoder.fit_transform(X, y)
    with pytest.raises(
        TypeError, match=r"'age' of X holds categories, but held numbers in the training rows"
    ):
        encoder.transform(X.assign(age="old"))


# ---- which columns are categories --------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [[True, False, True], [0, 2], ["a", "c"], np.array([0, 2]), ("a", "c")]
)
def test_categories_by_mask_position_or_name(given):
    assert_array_equal(category_mask(given, ["a", "b", "c"], 3), [True, False, True])


def test_categories_of_numbers():
    X = np.array([[3.0, 1.0], [3.0, 2.0], [5.0, 3.0], [7.0, 4.0]])
    encoder = TableEncoder([0])
    Z = encoder.fit_transform(X, np.arange(4.0))
    assert_array_equal(Z[:, :3], [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    with pytest.warns(UserWarning, match=r"Column 0 of X has levels .* such as 4\.0"):
        assert_array_equal(encoder.transform(np.array([[4.0, 1.0]]))[:, :3], [[0, 0, 0]])
    assert encoded(X, np.arange(4.0), categorical_features=None) is X


@pytest.mark.parametrize("X", [[{"a": "x"}] * 40, [["x", 1.0]] * 40])
def test_rows_that_are_no_table_get_advice(X):
    with pytest.raises((TypeError, ValueError), match=r"Use pandas\.DataFrame\(X\)"):
        AutoGaussianProcessRegressor().fit(X, np.arange(40.0))


def test_a_series_is_no_table(people):
    X, y = people
    for model in (AutoGaussianProcessRegressor(), SVGPRegressor()):
        with pytest.raises(ValueError, match=r"got a Series of length .*frame\[\['a'\]\]"):
            model.fit(X["work"], y)


@pytest.mark.parametrize(
    "given", [[0, 3], [-1], ["a", "d"], [True, False], [0.5], "a", [[0]], [["a", "b"]], [1, [2]]]
)
def test_bad_categories(given):
    with pytest.raises(ValueError, match="categorical_features must be 'from_dtype', None"):
        category_mask(given, ["a", "b", "c"], 3)


def test_categories_whose_names_are_pairs():
    """As in a frame whose columns have several levels."""
    names = [("a", "b"), ("a", "c"), ("b", "c")]
    assert_array_equal(category_mask([("a", "c")], names, 3), [False, True, False])
    with pytest.raises(ValueError, match="categorical_features must be 'from_dtype', None"):
        category_mask([("a", "d")], names, 3)


def test_the_name_of_one_category_alone():
    with pytest.raises(ValueError, match=r"got 'a'\. Pass a list of names, \['a'\]\."):
        category_mask("a", ["a", "b", "c"], 3)


def test_strings_that_are_no_categories(people):
    X, y = people
    with pytest.raises(ValueError, match=r"'town' of X holds categories, but categorical_features"):
        encoded(X, y, categorical_features=["work"])


# ---- errors name the column --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([[1], [2]], "list"),
        ([1.0, "a"], "float, str"),
        ([{"a": 1}, None], "dict"),
        ([1j, 2.0], "complex, float"),
        (
            [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2020, 1, 1)],
            "times of several time zones",
        ),
        ([dt.date(2020, 1, 1), "today"], "date, str"),
        ([np.timedelta64(1, "D"), 2.0], "float, timedelta64"),
        ([np.timedelta64(1, "M"), np.timedelta64(2, "Y")], "durations in months or years"),
    ],
)
def test_cells_that_are_neither_numbers_nor_levels(values, found):
    X = pd.DataFrame({"good": [1.0, 2.0], "bad": pd.Series(values, dtype=object)})
    with pytest.raises(
        TypeError, match=rf"Column 'bad' of X holds {found}, but every argument must"
    ):
        encoded(X, np.arange(2.0))


def test_new_rows_may_miss_all_of_a_column_of_objects():
    when = pd.Series([dt.date(2020, 1, d) for d in range(1, 30)], dtype=object)
    none = pd.Series([None] * 29, dtype=object)
    X = pd.DataFrame({"when": when, "none": none, "z": np.arange(29.0)})
    new = pd.DataFrame({"when": None, "none": ["now", "then"], "z": [1.0, 2.0]}).astype(object)
    for table, rows in ((X, new), (X.to_numpy(), new.to_numpy())):
        encoder = TableEncoder()
        encoder.fit_transform(table, np.arange(29.0))
        with pytest.warns(UserWarning, match="of X has missing values, but it had none"):
            found = encoder.transform(rows)
        assert np.isfinite(found).all()


def test_times_of_one_zone_may_be_objects():
    X = pd.DataFrame({"at": pd.date_range("2020", periods=29, freq="31h", tz="Europe/Berlin")})
    as_objects = X.astype(object)
    assert_array_equal(encoded(as_objects, np.arange(29.0)), encoded(X, np.arange(29.0)))


def test_integers_of_arrow_may_be_large():
    pa = pytest.importorskip("pyarrow")
    numbers = pa.array([2**62, 2**60 + 1, None, 5] * 5)
    y = np.arange(20.0)
    X = pd.DataFrame({"a": [2.0**62, 2.0**60, np.nan, 5.0] * 5})
    for large in (
        pa.table({"a": numbers}),
        pd.DataFrame({"a": pd.Series(numbers, dtype="int64[pyarrow]")}),
    ):
        assert_array_equal(encoded(large, y), encoded(X, y))


def test_nested_types():
    X = pl.DataFrame({"bad": [{"a": 1}, {"a": 2}], "good": [1.0, 2.0]})
    with pytest.raises(TypeError, match=r"Column 'bad' of X holds Struct"):
        encoded(X, np.arange(2.0))
    X = pd.DataFrame({"bad": [[1], [2]]})
    with pytest.raises(TypeError, match=r"Column 'bad' of X is categorical, .* got list"):
        encoded(X, np.arange(2.0), categorical_features=["bad"])


def test_levels_of_several_kinds():
    X = pd.DataFrame({"bad": pd.Series([1, "a"], dtype=object)})
    with pytest.raises(TypeError, match=r"Column 'bad' .* got int, str\. Convert it"):
        encoded(X, np.arange(2.0), categorical_features=[0])


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, np.asarray])
def test_infinity_names_its_column(kind):
    X = np.ones((20, 3))
    X[7, 2] = np.inf
    X = kind(X)
    with pytest.raises(ValueError, match=r"Column .*2.* of X contains infinity"):
        Quick().fit(X, np.arange(20.0))


def test_a_category_in_every_row_is_warned_of(people):
    X, y = people
    with pytest.warns(UserWarning, match=r"Column 'id' .* a different category in every row"):
        encoded(X.assign(id=[f"row {i}" for i in range(len(X))]), y)


# ---- the model does not depend on what it should not -------------------------------------------


def test_order_of_rows_changes_nothing(people):
    X, y = people
    order = np.random.default_rng(1).permutation(len(y))
    assert_array_equal(encoded(X.iloc[order], y[order]), encoded(X, y)[order])


def test_a_row_of_weight_two_is_the_row_twice(people):
    X, y = people
    weight = np.where(np.arange(len(y)) < 30, 2.0, 1.0)
    twice = encoded(pd.concat([X, X[:30]]), np.r_[y, y[:30]])
    assert_array_equal(twice, np.vstack([Z := encoded(X, y, weight), Z[:30]]))


def test_a_row_of_weight_zero_is_none(people):
    X, y = people
    weight = np.where(np.arange(len(y)) % 3 == 0, 0.0, 1.0)
    counts = weight > 0.0
    assert_array_equal(encoded(X, y, weight)[counts], encoded(X[counts], y[counts]))


def test_units_change_nothing(people):
    X, y = people
    Z = encoded(X, y)
    other = encoded(X.assign(age=X["age"] / 7.0 - 3.0), 1e3 * y + 5.0)
    assert_allclose(other[:, 0], Z[:, 0] / 7.0 - 3.0)
    assert_allclose(other[:, 1:], Z[:, 1:], atol=1e-9)


# ---- target statistics -------------------------------------------------------------------------


def test_training_rows_are_not_told_their_own_target():
    """Of many levels with nothing to say, what rows are told has no part in their targets."""
    rng = np.random.default_rng(0)
    n = 2000
    X, y = pd.DataFrame({"a": rng.integers(200, size=n).astype(str)}), rng.normal(size=n)
    encoder = TableEncoder()
    Z = encoder.fit_transform(X, y)
    assert np.corrcoef(Z[:, 0], y)[0, 1] < 0.06
    assert np.corrcoef(encoder.transform(X)[:, 0], y)[0, 1] > 0.25


def test_means_are_drawn_to_the_mean_of_all_as_variances_say():
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(300), 5)
    truth = 2.0 * rng.normal(size=300)
    y = (truth[codes] + 4.0 * rng.normal(size=1500))[:, None]
    targets = Targets.of([codes, np.arange(1500.0)], y, None)
    labels = codes.astype(object)
    encoder, _ = TargetMeans.fit(labels, {j: j for j in range(300)}, targets)
    raw = np.bincount(codes, y[:, 0]) / 5
    slope = np.polyfit(raw, encoder.means[:-1, 0], 1)[0]
    assert slope == pytest.approx(5 / (5 + 4.0**2 / 2.0**2), rel=0.15)
    error = np.square(encoder.means[:-1, 0] - truth).mean()
    assert error < 0.7 * np.square(raw - truth).mean()


def test_sums_of_parts_tell_of_levels_as_all_rows_do():
    rng = np.random.default_rng(0)
    codes, weight = rng.integers(30, size=300), rng.uniform(0.5, 2.0, 300)
    y = codes[:, None] * [1.0, -2.0] + rng.normal(size=(300, 2))
    labels, levels = codes.astype(object), {j: j for j in range(30)}
    numbers = np.arange(300)
    parts = [LevelSums(levels, 2), LevelSums(levels, 2)]
    for rows in (slice(120), slice(120, 300)):
        parts[0].add(labels[rows], numbers[rows], y[rows], weight[rows])
    parts[1].add(labels, numbers, y, weight)
    targets = Targets.of([codes, numbers.astype(float)], y, weight)
    expected = TargetMeans.fit(labels, levels, targets)[0](labels)
    for part in parts:
        of_new, of_training = part.means()
        assert_allclose(of_new(labels), expected, rtol=1e-12)
        assert_allclose(of_training(labels, numbers), without_own_fold(codes, y, weight))
        assert_allclose(of_new(np.array(["other"])), [np.average(y, 0, weight)])


def without_own_fold(codes, y, weight):
    """What rows are told, one by one, with the prior of all rows."""
    n, total = sums(codes, 30, y, weight)
    prior, fold = prior_rows(n, total, sums(codes, 30, y**2, weight)[1]), folds_of(np.arange(300))
    found = []
    for code, own in zip(codes, fold, strict=True):
        others, level = fold != own, (fold != own) & (codes == code)
        mean, w = np.average(y[others], 0, weight[others]), weight[level]
        found.append((w @ y[level] + prior * mean) / (w.sum() + prior))
    return found


def test_other_levels_are_not_counted():
    counted = LevelSums({"a": 0, "b": 1}, 1)
    labels = np.array(["d", "b", "c", "a", "a"], dtype=object)
    counted.add(labels, np.arange(5), np.arange(5.0)[:, None], None)
    assert counted.n_rows == 3


def test_means_at_levels_do_not_tell_what_y_is():
    """All of a class at a level agree in everything, and y does not depend on the level."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.integers(120, size=1800).astype(str)})
    y = rng.integers(2, size=1800)
    Z = TableEncoder().fit_transform(X, y, None, np.array([0, 1]))[:, 0]
    assert abs(Z[y == 1].mean() - Z[y == 0].mean()) < 0.1 * Z.std()


def test_copies_are_told_the_same_without_each_other():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.integers(150, size=300).astype(str), "b": rng.normal(size=300)})
    y = rng.normal(size=300)
    once, twice = encoded(X, y), encoded(pd.concat([X, X]), np.r_[y, y])
    weighted = encoded(X, y, np.full(300, 2.0))
    assert_allclose(twice, np.r_[weighted, weighted], rtol=1e-12)
    assert once.shape == weighted.shape


def test_effects_are_not_adjusted_for_very_many_columns():
    """Which have no curves; a fit of a frame with 401 numbers and a category failed."""
    rng = np.random.default_rng(0)
    level, x = np.arange(120) % 40, rng.normal(size=(120, 401))
    effect = rng.normal(size=40)[level]
    X = pd.DataFrame(x).add_prefix("x").assign(a=level.astype(str))
    encoder = TableEncoder()
    Z = encoder.fit_transform(X, effect + 0.1 * rng.normal(size=120))
    assert np.corrcoef(Z[:, -1], effect)[0, 1] > 0.9
    assert not encoder.line(x).any()


def test_shares_of_classes():
    y = np.array(["a", "b", "c", "c"])
    assert_array_equal(LevelTargets.of(y, None, np.unique(y))(y).sum(0), [1, 1])
    assert LevelTargets.of(y, None, np.array(["a", "b", "c", "not here"])).labels.tolist() == [
        "a",
        "b",
    ]
    y = np.arange(100) % 30
    assert LevelTargets.of(y, None, np.unique(y))(y).shape == (100, 20)


# ---- scaling where a few rows rule -------------------------------------------------------------


def test_whole_numbers_are_scaled_as_numbers_are():
    A = np.arange(12).reshape(6, 2) ** 2
    assert_array_equal(Scaling.standard(A), Scaling.standard(A.astype(float)))


def test_quantiles_count_rows_as_their_weights():
    rng = np.random.default_rng(0)
    a, w = rng.normal(size=50), rng.integers(1, 4, size=50)
    levels = [0.1, 0.25, 0.5, 0.9]
    expected = np.quantile(np.repeat(a, w), levels, method="averaged_inverted_cdf")
    assert_allclose(quantiles(a, levels, w.astype(float)), expected)
    assert_allclose(quantiles(np.repeat(a, w), levels), expected)
    assert_allclose(quantiles(-a, levels), -quantiles(a, [1.0 - q for q in levels])[::1])


@pytest.mark.parametrize("draw", ["normal", "exponential", "uniform", "laplace", "lognormal"])
def test_robust_scaling_is_standard_where_tails_are_usual(draw):
    A = getattr(np.random.default_rng(0), draw)(size=(300, 2))
    assert_array_equal(Scaling.robust(A), Scaling.standard(A))
    sides = np.sign(A - np.median(A))
    assert_array_equal(Scaling.robust(sides), Scaling.standard(sides))


def test_columns_of_many_magnitudes():
    """Values near one end are told apart, whatever the other end reaches."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(lo, 2 * lo, 100) for lo in (2.0, 10.0, 1e4, 3e5)])
    encoder = Numbers.fit("x", x, None)
    code = encoder(x)[:, 0]
    assert_array_equal(np.argsort(code), np.argsort(x))
    ends = [np.std(code[k : k + 100]) for k in (0, 100, 200, 300)]
    assert min(ends) > 0.02 * code.std()  # 2e-5 of the standard deviation without a scaling
    assert_allclose(Numbers.fit("x", -x, None)(-x)[:, 0], -code)
    assert_allclose(Numbers.fit("x", 7.0 * x + 3.0, None)(7.0 * x + 3.0)[:, 0], code)
    twice = Numbers.fit("x", x, np.full(len(x), 2.0))
    assert_allclose(twice(x)[:, 0], code)


@pytest.mark.parametrize(
    "x",
    [
        np.arange(99.0),
        np.random.default_rng(0).normal(size=99),
        np.arange(99) % 2.0,
        np.r_[np.zeros(80), np.arange(19.0)],
        np.exp(np.random.default_rng(0).normal(size=99)),
    ],
)
def test_other_columns_stay(x):
    assert Numbers.fit("x", x, None).scaling is None


def test_robust_scaling_where_a_row_rules():
    A = np.random.default_rng(0).normal(3.0, 2.0, (60, 2))
    clean = Scaling.standard(A)
    A[5, 0] = 1e6
    scaling = Scaling.robust(A)
    assert_allclose(scaling.offset[0], clean.offset[0], atol=1.0)
    assert_allclose(scaling.scale[0], clean.scale[0], rtol=0.3)
    assert scaling.offset[1] == clean.offset[1]
    moved = Scaling.robust(-7.0 * A + 1.0)
    assert_allclose(moved.offset, -7.0 * scaling.offset + 1.0)
    assert_allclose(moved.scale, 7.0 * scaling.scale)


def test_the_largest_numbers_have_a_scaling():
    A = np.array([-1.7e308, 1.7e308, 0.0, 1e308, -1e308] * 4)[:, None]
    scaling = Scaling.robust(A)
    assert np.isfinite(scaling.scale).all()
    assert encoded(A, A[:, 0] / 1e300).shape == (20, 1)


def test_inputs_with_heavy_tails_are_tamed_whatever_their_unit():
    x = np.exp(3.0 * np.random.default_rng(0).normal(size=300))[:, None]
    Z = encoded(x, x[:, 0])
    assert Z.std() < 4.0
    assert_array_equal(np.argsort(Z[:, 0]), np.argsort(x[:, 0]))
    assert_allclose(encoded(1e3 * x - 5.0, x[:, 0]), Z, atol=1e-6)


def test_wide_gaps_between_groups_of_numbers_are_narrowed():
    rng = np.random.default_rng(0)
    near = rng.uniform(0.0, 2.0, 120)
    x = near + np.repeat([-500.0, 0.0, 1e5], 40)
    edges = [(x[part].min(), x[part].max()) for part in (slice(40), slice(40, 80), slice(80, 120))]
    width = sum(high - low for low, high in edges)
    Z = encoded(x[:, None], near)[:, 1]
    assert_array_equal(np.argsort(Z), np.argsort(x))
    assert_allclose(np.ptp(Z), 3.0 * width)  # of two gaps, each as wide as all groups
    for part, (low, _) in zip((slice(40), slice(40, 80), slice(80, 120)), edges, strict=True):
        assert_allclose(Z[part] - Z[part].min(), x[part] - low, atol=1e-9)
    order = rng.permutation(np.repeat(np.arange(120), 2))  # copies, in any order
    assert_array_equal(gaps_of(x[order]), gaps_of(x))
    gaps, middle = gaps_of(x), 0.5 * (edges[1][1] + edges[2][0])
    assert_allclose(without_gaps(np.array([middle]), gaps) - Z[40:80].max(), 0.5 * width)
    encoder = TableEncoder()
    found = encoder.fit_transform(np.where(near > 1.9, np.nan, x)[:, None], near)
    assert found.shape == (120, 3)
    assert np.ptp(found[:, 1]) < 4.0 * width
    asked = [*encoder.rows_asked(np.array([[middle], [-500.0], [0.5], [3e4]]))]
    assert [finding.value for finding in asked] == [0.5, 0.5]
    assert "in a gap between groups" in asked[1].text


@pytest.mark.parametrize(("n_far", "n_gaps"), [(9, 0), (11, 1)])
def test_a_group_has_one_in_twenty_of_the_numbers(n_far, n_gaps):
    x = np.r_[np.linspace(0.0, 1.0, 200 - n_far), 1_000.0 + np.linspace(0.0, 1.0, n_far)]
    assert (0 if gaps_of(x) is None else len(gaps_of(x))) == n_gaps


@pytest.mark.parametrize(("n_groups", "n_gaps"), [(6, 5), (20, 19), (21, 0)])
def test_a_column_has_many_gaps(n_groups, n_gaps):
    x = np.repeat(1_000.0 * np.arange(n_groups), 40) + np.tile(np.linspace(0.0, 1.0, 40), n_groups)
    assert (0 if gaps_of(x) is None else len(gaps_of(x))) == n_gaps


def test_far_groups_are_no_magnitudes():
    rng = np.random.default_rng(0)
    x = np.r_[rng.uniform(0.0, 1.0, 60), rng.uniform(1_000.0, 1_001.0, 40)]  # median in one group
    assert_array_equal(encoded(x[:, None], x)[:, 0], x)


@pytest.mark.parametrize(
    "x",
    [
        np.repeat([0.0, 1.0], 50),
        np.arange(100.0) + 250.0 * (np.arange(100) > 50),  # not so wide
        np.r_[np.arange(97.0), 1e6, 1e6 + 1.0, 1e6 + 2.0],  # a few outliers
        np.exp(3.0 * np.random.default_rng(0).normal(size=300)),
        np.r_[np.linspace(0.0, 1e-9, 50), 1.0 + np.linspace(0.0, 1e-9, 50)],  # rounding
        np.r_[np.linspace(-1e308, -0.9e308, 50), np.linspace(1.7e308, 1.79e308, 50)],
    ],
    ids=["levels", "small", "outliers", "log-normal", "rounding", "huge"],
)
def test_other_columns_have_no_gaps(x):
    assert gaps_of(x) is None


@pytest.mark.slow
def test_one_target_does_not_ruin_the_others():
    X, y = make_friedman1(260, noise=1.0, random_state=0)
    spoilt = y[:60].copy()
    spoilt[3] = 1e6
    model = DeepKernelEnsembleRegressor(n_estimators=2, max_iter=40, random_state=0)
    error = np.median(np.abs(model.fit(X[:60], spoilt).predict(X[60:]) - y[60:]))
    assert error < 3.0  # a constant has 3.6, and it was 205
    assert np.median(model.predict_std(X[60:])) < 10.0


# ---- counts ------------------------------------------------------------------------------------


def test_counts_are_known_when_seen():
    rng = np.random.default_rng(0)
    assert looks_like_counts(rng.poisson(3.0, 300))
    assert looks_like_counts(rng.poisson(3.0, 300).astype(float)[:, None])
    assert not looks_like_counts(rng.poisson(3.0, 300) - 2)
    assert not looks_like_counts(rng.poisson(3.0, 300) + 0.5)
    assert not looks_like_counts(np.arange(300))
    assert not looks_like_counts(rng.integers(2, size=300))
    assert not looks_like_counts(1000 * rng.poisson(3.0, 300))
    assert not looks_like_counts(1e200 * rng.poisson(3.0, 300))


# ---- the estimators ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_regressor_of_a_frame(people):
    X, y = people
    model = Quick().fit(X, y)
    assert model.n_features_in_ == 6
    assert list(model.feature_names_in_) == list(X.columns)
    predicted = model.predict(X)
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict(as_polars(X)), predicted)
    assert model.predict_interval(X).shape == (200, 2)
    with pytest.raises(ValueError, match=r"feature names should match"):
        model.predict(X[list(X.columns)[::-1]])
    with pytest.raises(ValueError, match="y contains NaN"):
        model.fit(X, np.where(np.arange(200) == 1, np.nan, y))
    assert_array_equal(model.predict(X), predicted)


@pytest.mark.slow
def test_rows_that_miss_what_matters_have_wide_intervals():
    """What the encoder says is missing, processes know as noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 2))
    y = 2.0 * X[:, 0] + np.sin(X[:, 1]) + 0.1 * rng.normal(size=500)
    X[rng.random(500) < 0.15, 0] = np.nan
    missing, inside = np.isnan(X[100:, 0]), []
    for seed in range(4):  # one set of draws moves the share by .03
        model = Quick(max_time=None, random_state=seed).fit(X[:100], y[:100])
        low, high = model.predict_interval(X[100:]).T
        inside.append((low < y[100:]) & (y[100:] < high))
        assert np.median((high - low)[missing]) > 5.0 * np.median((high - low)[~missing])
    assert np.mean(inside, 0)[missing].mean() > 0.8  # it was .36


@pytest.mark.slow
def test_a_classifier_of_a_frame(people):
    X, y = people
    model = QuickClassifier().fit(X, np.where(y > np.median(y), "old", "young"))
    assert model.predict_proba(X).shape == (200, 2)
    assert set(model.predict(as_polars(X))) <= {"old", "young"}


def test_labels_by_the_thousands_are_refused(monkeypatch):
    monkeypatch.setattr(automatic_classifier, "MOST_CLASSES", 10)
    X = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.raises(ValueError, match=r"y has 30 classes, .* at most 10.*Regressor"):
        QuickClassifier().fit(X, np.arange(60) % 30)


def test_nothing_is_warned_of_a_usual_frame(people):
    X, y = people
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoded(X, y)


def test_target_means_do_not_tell_labels_of_rows_that_are_alike():
    """Of a category alone, whose rows differ in nothing but their labels."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.integers(60, size=400).astype(str)})
    y = rng.integers(2, size=400)
    Z = TableEncoder().fit_transform(X, y, None, np.array([0, 1]))
    assert abs(np.corrcoef(Z[:, 0], y)[0, 1]) < 0.1


def test_rows_of_one_fold_alone_are_told_a_finite_number():
    """Where all rows that count are of one fold, no other row says anything to them."""
    numbers = np.arange(40)
    fold = folds_of(numbers)
    labels = np.array(["a", "b"] * 20, dtype=object)
    y = np.random.default_rng(0).normal(size=(40, 1))
    told = LevelSums({"a": 0, "b": 1}, 1)
    told.add(labels, numbers, y, (fold == fold[0]).astype(float))
    assert np.isfinite(told.means()[1](labels, numbers)).all()


def test_texts_that_read_as_numbers():
    """A column of numbers with a "?" among them was a category without a word."""
    rng = np.random.default_rng(0)
    y, numbers = rng.normal(size=100), [f"{v:.2f}" for v in rng.normal(size=100)]
    codes = [str(10_000 + k % 50) for k in range(100)]
    for values, named in ((numbers, ""), (["?", *numbers[1:]], " (not '?', for example)")):
        X = pd.DataFrame({"a": values, "b": codes})  # b: whole numbers alone may be codes
        with pytest.warns(
            UserWarning, match=r"Column 'a' of X holds \d+ different strings"
        ) as said:
            TableEncoder().fit_transform(X, y)
        assert [f" of them read as numbers{named}." in str(w.message) for w in said] == [True]
        TableEncoder(["a", "b"]).fit_transform(X, y)


def test_dates_that_are_strings_are_told():
    days = pd.date_range("2024-01-01", periods=40).strftime("%Y-%m-%d")
    y = np.arange(40.0)
    for texts, told in ((days, True), (days + " 10:30", True), ([f"code-{i}" for i in y], False)):
        X = pd.DataFrame({"a": y, "when": np.resize(texts[:30], 40)})
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            TableEncoder().fit_transform(X, y)
        found = [w for w in said if "'when' of X holds dates or times as str" in str(w.message)]
        assert len(found) == told


DAYS = pd.date_range("2024-01-03 08:10", periods=40, freq="290h")
AMOUNTS = 137.5 * np.arange(-20.0, 20.0)
DOT_AND_COMMA = str.maketrans(",.", ".,")


def told_of(values):
    """What the warning says of a column of strings; None without one."""
    (column,) = columns_of(pd.DataFrame({"a": values}), None)
    return told_of_texts(column)


@pytest.mark.parametrize(
    "form",
    [
        "%Y-%m",
        "%d.%m.%Y",
        "%m/%d/%y",
        "%d-%m-%Y",
        "%Y/%m/%d",
        "%Y%m%d",
        "%b %d, %Y",
        "%d %B %Y",
        "%a, %d-%b-%Y",
        "%H:%M",
        "%I:%M %p",
        "%d.%m.%Y %H:%M:%S",
        "%Y-%m-%dT%H:%M:%SZ",
    ],
)
@pytest.mark.parametrize("missing", [[], ["n/a"]])
@pytest.mark.filterwarnings("ignore:Could not infer format")  # pandas knows no years of two digits
def test_dates_of_any_form_are_told_and_their_cure_works(form, missing):
    column = pd.Series([*DAYS.strftime(form), *missing])
    told = told_of(column)
    assert "dates or times as strings" in told
    (code,) = re.findall(r"for example with (pandas.*\))\.$", told)
    found = eval(code, {"pandas": pd, "column": column}).dt.tz_localize(None)
    assert_array_equal(
        found[: len(DAYS)], pd.to_datetime(DAYS.strftime(form), format=form).tz_localize(None)
    )
    assert found[len(DAYS) :].isna().all()


@pytest.mark.parametrize(
    ("form", "unit"),
    [("{:.1f}", ""), ("{:,.1f}", ""), ("{:,.1f}", " kg"), ("{:.1f}", "%"), ("{:.0f}", "GB")],
)
@pytest.mark.parametrize("is_comma", [False, True])
def test_numbers_of_any_form_are_told_and_their_cure_works(form, unit, is_comma):
    texts = [form.format(number) for number in AMOUNTS]
    texts = [text.translate(DOT_AND_COMMA) if is_comma else text for text in texts]
    column = pd.Series([f"{text}{unit} " for text in texts])
    (code,) = re.findall(r"for example with (pandas.*'coerce'\));", told_of(column))
    found = eval(code, {"pandas": pd, "column": column})
    assert_allclose(found, [float(form.replace(",", "").format(n)) for n in AMOUNTS])


def test_points_may_be_between_thousands():
    told = told_of([f"{1_000_000 + 1_234 * i:,}".replace(",", ".") for i in range(40)])
    assert "pandas.to_numeric(column.str.replace('.', ''), errors='coerce')" in told


def test_amounts_of_money_are_told():
    told = told_of([f"{'-' if n < 0 else ''}${abs(n):,.2f}" for n in AMOUNTS])
    assert "pandas.to_numeric(column.str.replace('$', '').str.replace(',', ''), errors" in told


@pytest.mark.parametrize(
    "form",
    [
        *(
            "{0:05}",
            "A{0}",
            "{0}{1}",
            "1.{2}.{0}",
            "10.0.{0}.1",
            "{0}-{3}",
            "555-{0:04}",
            "{0}/{3}",
        ),
        *("Marker {3}", "Decoy-{3}", "MAR-1{0:03}", "{0}:{3}", "{2}:8{2}"),
    ],
)
def test_codes_are_no_dates_or_numbers(form):
    assert told_of([form.format(i, "ABCD"[i % 4], i % 7, i + 10) for i in range(40)]) is None


@pytest.mark.parametrize(
    ("number", "low", "high", "told"),
    [
        (-999, -3, 3, True),
        (9999, 0, 9, True),
        (-1, 0, 6, True),
        (-9_999_999, 0, 6, True),
        (-1, 0, 30, False),
        (0, 1, 6, False),
        (-0.5, 0, 3, False),
    ],
)
def test_numbers_that_stand_for_missing_ones_are_told(number, low, high, told):
    """90 % intervals of these rows held .46 to .88, in silence."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random(300) < 0.1, number, rng.uniform(low, high, 300))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        TableEncoder().fit_transform(np.column_stack([x, rng.normal(size=300)]), x)
    found = [w for w in said if f"of X is {number}" in str(w.message)]
    assert all(f"column.mask(column == {number}" in str(w.message) for w in found)
    assert len(found) == told


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(n_inducing=5, max_iter=2, random_state=0),
        GaussianProcessRegressor(RBF() + WhiteKernel(), normalize_y=True),
    ],
    ids=lambda model: type(model).__name__,
)
def test_targets_that_stand_for_missing_ones_are_told(model, method):
    """From 5 % of the rows on f learned them in silence, with deviations of some 300."""
    X = np.random.default_rng(0).normal(size=(200, 2))
    y = np.where(np.arange(200) % 16 == 0, -999.0, X[:, 0])
    with pytest.warns(UserWarning, match=r"y is -999 in 6\.5% .*keep = ~np\.isin\(y, \[-999\]\)"):
        getattr(clone(model), method)(X, y)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_targets_are_told_before_they_are_transformed(method):
    X = np.random.default_rng(0).normal(size=(90, 2))
    y = np.where(np.arange(90) % 9 == 0, -999.0, X[:, 0])
    shape = {"n_inducing": 5, "max_iter": 2, "random_state": 0}
    model = SVGPRegressor(target_transform="yeo-johnson", **shape)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        getattr(model, method)(X, y)
    assert sum(str(each.message).startswith("y is -999 in 11.1%") for each in said) == 1


@pytest.mark.slow
def test_the_default_tells_targets_that_stand_for_missing_ones():
    X = np.random.default_rng(0).normal(size=(100, 2))
    Y = np.column_stack([X[:, 0], np.where(np.arange(100) % 9 == 0, -999.0, X[:, 1])])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        AutoGaussianProcessRegressor(max_time=1, random_state=0).fit(X, Y)
    found = [text for each in said if "missing value" in (text := str(each.message))]
    assert len(found) == 1
    assert found[0].startswith("y[:, 1] is -999 in 12.0%")


def test_findings_name_columns_of_frames():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(100, 2)), columns=["a", "b"])
    X.loc[::10, "b"], X.loc[:1, "a"] = -999.0, 1e7
    model = SVGPRegressor(n_inducing=5, max_iter=2, random_state=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(X, np.arange(100.0))
    texts = [str(each.message) for each in said]
    assert any("in columns 'a' that" in text for text in texts)
    assert any(text.startswith("Column 'b' of X is -999") for text in texts)


def test_dates_that_stand_for_missing_ones_are_told():
    days = pd.Series(DAYS).where(np.arange(40) % 8 > 0, pd.Timestamp("1900-01-01"))
    with pytest.warns(UserWarning, match=r"'a' of X is 1900-01-01 in 12.5%.* == '1900-01-01'\)"):
        TableEncoder().fit_transform(pd.DataFrame({"a": days, "b": AMOUNTS}), AMOUNTS)
    assert days.mask(days == "1900-01-01").isna().sum() == 5


@pytest.mark.parametrize("codes", [(-999, -998), (-9, -8, -7), (997, 998, 999)])
def test_several_codes_of_one_column_are_told(codes):
    """Tables that tell why a number is missing were taken at their word."""
    rng = np.random.default_rng(0)
    x = np.r_[np.resize(codes, 40), rng.uniform(1.0, 3.0, 260)]
    X = pd.DataFrame({"a": x, "b": rng.normal(size=300)})
    *first, last = codes
    told = f"'a' of X is {', '.join(map(str, first))} or {last} in 13.3%"
    with pytest.warns(UserWarning, match=told) as said:
        TableEncoder().fit_transform(X, x)
    cure = f"column.mask(column.isin([{', '.join(map(str, codes))}]))"
    assert any(cure in str(warning.message) for warning in said)


@pytest.mark.parametrize(
    "x",
    [
        np.r_[np.full(4, -999.0), np.arange(100.0)],  # few
        np.r_[np.full(20, -999.0), np.arange(19.0), np.arange(19.0)],  # levels
        np.r_[np.full(20, -999.0), np.full(11, 3.0), np.arange(100.0)],  # repeated as often
        np.r_[np.zeros(20), np.linspace(50.0, 90.0, 100)],
        np.r_[np.repeat([-3.0, -2.0, -1.0], 10), np.linspace(0.0, 2.0, 100)],
        np.full(20, np.nan),
    ],
    ids=["few", "levels", "repeated", "dose", "small", "none"],
)
def test_other_numbers_stand_for_themselves(x):
    assert missing_codes(x) is None


@pytest.mark.parametrize(
    "y",
    [
        np.r_[np.full(30, np.log(1e-6)), np.linspace(0.0, 3.0, 70)],  # the logarithm of 0
        np.r_[np.full(60, -1.0), np.linspace(2.0, 3.0, 40)],  # most rows
        np.r_[np.arange(100.0) % 30.0, 100.0 + np.arange(100.0) % 5.0],  # groups
    ],
    ids=["logarithm", "most", "groups"],
)
def test_other_targets_stand_for_themselves(y):
    assert list(of_missing_targets(y)) == []


@pytest.mark.parametrize(
    ("texts", "cure"),
    [
        (["True", "false"], "column.str.lower() == 'true'"),
        (["1,5", "2,25"], "pandas.to_numeric(column.str.replace(',', '.'), errors='coerce')"),
        (["a", "b"], "pandas.to_numeric"),
    ],
)
def test_strings_where_numbers_were_are_told_how_to_be_converted(texts, cure):
    encoder = TableEncoder()
    encoder.fit_transform(
        pd.DataFrame({"a": [0.0, 1.0, 0.0], "b": [1.0, 2.0, 4.0]}), np.arange(3.0)
    )
    with pytest.raises(TypeError, match=re.escape(f"Convert it, for example with {cure}.")):
        encoder.transform(pd.DataFrame({"a": texts, "b": [1.0, 2.0]}))


def test_numbers_as_strings_need_not_be_dropped():
    """As each row had another one, the best column was told to be dropped."""
    X = pd.DataFrame({"a": [f"{n:.1f}".replace(".", ",") for n in AMOUNTS]})
    with pytest.warns(UserWarning, match="40 of them read as numbers") as said:
        TableEncoder().fit_transform(X, AMOUNTS)
    assert not any("Drop it" in str(warning.message) for warning in said)


@pytest.mark.parametrize(
    "X", [np.ones(20), pd.Series({"a": 1.0, "b": "x"}), {"a": 1.0}], ids=["array", "row", "dict"]
)
@pytest.mark.parametrize("cls", [SVGPRegressor, AutoGaussianProcessRegressor])
def test_rows_without_a_second_dimension_are_refused_in_few_words(cls, X):
    with pytest.raises((ValueError, TypeError)) as caught:
        cls().fit(X, np.ones(len(X)))
    is_dict = isinstance(X, dict)
    assert ("pandas.DataFrame(X)" if is_dict else "frame.iloc[[0]]") in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("cls", [SVGPRegressor, AutoGaussianProcessRegressor])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_unknown_targets_are_refused_with_advice(cls, value):
    y = np.arange(30.0)
    y[3] = value
    with pytest.raises(ValueError, match=r"Input y contains .*keep = np.isfinite\(y\)"):
        cls().fit(np.arange(30.0)[:, None], y)


def test_names_of_likelihoods_are_guessed():
    with pytest.raises(ValueError, match="Did you mean 'poisson'"):
        SVGPRegressor(likelihood="poison").fit(np.ones((5, 1)), np.ones(5))


def test_encoders_of_edited_files_are_no_larger_than_any():
    """Graphs and scores took gigabytes and seconds."""
    with pytest.raises(ValueError, match="60000 levels are too many"):
        OneHot({str(i): i for i in range(60_000)})(np.array(["1", "2"], dtype=object))
    days = Numbers("day", 0.0, True, False, None)
    with pytest.raises(ValueError, match="4 periods, but at most 3"):
        Dates(days, (1.0, 2.0, 3.0, 4.0)).check_parts()
    for period in (0.0, -1.0, 1e300):
        with pytest.raises(ValueError, match="the periods of dates must be among"):
            Dates(days, (7.0, period)).check_parts()


# ---- chunks of frames ----------------------------------------------------------------------------


@pytest.mark.parametrize("more", [[3, 1], [3, None]])
def test_categories_stay_categories_where_chunks_have_other_levels(more):
    """Those of integers became numbers, in silence: a hundred levels were one slope."""
    chunks = [pd.DataFrame({"a": pd.Categorical(v), "x": 0.5}) for v in ([1, 2], more)]
    found = join(chunks)
    assert isinstance(found["a"].dtype, pd.CategoricalDtype)
    assert found["a"].cat.categories.tolist() == [1, 2, 3]
    expected = [1.0, 2.0, 3.0, more[1]]
    assert [None if pd.isna(v) else v for v in found["a"]] == expected
    assert chunks[0]["a"].cat.categories.tolist() == [1, 2]  # a chunk is the user's
    same = pd.CategoricalDtype([3, 2, 1], ordered=True)
    ordered = [chunk[["a"]].assign(a=chunk["a"].astype(same)) for chunk in chunks]
    assert join(ordered)["a"].dtype == same


def test_long_integers_that_are_categories_stay_apart():
    """A missing value makes the levels of a chunk floats."""
    ids = 2**53 + np.arange(4)
    chunks = [pd.DataFrame({"a": pd.Categorical(v)}) for v in (ids[1:], [2.0**53, None])]
    levels = join(chunks)["a"].cat.categories.tolist()
    assert levels == [2**53 + 1, 2**53 + 2, 2**53 + 3, 2**53]


def test_levels_that_no_row_has_are_left_out_where_chunks_are_joined():
    """Samples of many chunks would keep the levels of all rows."""
    chunks = [pd.DataFrame({"a": pd.Categorical([k, 10 + k])})[:1] for k in range(2)]
    assert join(chunks)["a"].cat.categories.tolist() == [0, 1]


@pytest.mark.parametrize("missing", [np.nan, None])
def test_categories_stay_categories_where_a_chunk_has_none(missing):
    chunks = [pd.DataFrame({"a": pd.Categorical([1, 2])}), pd.DataFrame({"a": [missing] * 2})]
    for given in (chunks, chunks[::-1]):
        assert join(given)["a"].cat.categories.tolist() == [1, 2]
    assert join([chunks[0], pd.DataFrame({"a": [0.5]})])["a"].dtype == float  # numbers, as given


POLARS_TYPES = [
    ("Int8", "Int64", "Int64"),
    ("Int64", "Float32", "Float64"),
    ("Boolean", "Int8", "Int8"),
    ("Date", "Datetime", "Datetime"),
    ("Categorical", "String", "String"),
    ("Null", "String", "String"),
    ("Enum", "Enum", "String"),
]


@pytest.mark.parametrize(("first", "second", "expected"), POLARS_TYPES)
def test_types_of_one_kind_may_differ_between_chunks_of_polars(first, second, expected):
    """They raised the library's error."""
    pl = pytest.importorskip("polars")

    def chunk(name, level):
        values = [level] if name in ("Categorical", "String", "Enum") else [None]
        kind = pl.Enum([level]) if name == "Enum" else getattr(pl, name)
        return pl.DataFrame({"a": pl.Series(values, dtype=kind)})

    found = join([chunk(first, "u"), chunk(second, "v")])
    assert found["a"].dtype == getattr(pl, expected)
    assert len(found) == 2


def test_types_of_other_kinds_in_chunks_of_polars_are_refused():
    pl = pytest.importorskip("polars")
    chunks = [pl.DataFrame({"a": [1]}), pl.DataFrame({"a": ["1"]})]
    with pytest.raises(ValueError, match=r"'a' of X has types .* in different chunks: Int64, Str"):
        join(chunks)
    decimals = pl.DataFrame({"a": pl.Series([1], dtype=pl.Decimal(10, 2))})
    with pytest.raises(ValueError, match="types that do not go together in different chunks"):
        join([decimals, pl.DataFrame({"a": [True]})])

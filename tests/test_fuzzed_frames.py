"""Frames of random columns: a sound fit, or a message that names the column and its cure."""

import warnings

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from families import slow_cases

from skgpstoch import AutoGaussianProcessClassifier, AutoGaussianProcessRegressor, SVGPRegressor

N = 60
WHEN = pd.date_range("2020-02-27", periods=N, freq="36h")
KINDS = {
    "float64": lambda rng: pd.Series(rng.normal(size=N)),
    "float32": lambda rng: pd.Series(rng.normal(size=N).astype(np.float32)),
    "int8": lambda rng: pd.Series(rng.integers(-100, 100, N).astype(np.int8)),
    "Int64": lambda rng: pd.Series(rng.integers(0, 9, N), dtype="Int64"),
    "bool": lambda rng: pd.Series(rng.random(N) < 0.3),
    "boolean": lambda rng: pd.Series(rng.random(N) < 0.3, dtype="boolean"),
    "string": lambda rng: pd.Series(rng.choice(["a", "b", "ü"], N), dtype="string"),
    "object": lambda rng: pd.Series(rng.choice(["no", "yes"], N).astype(object)),
    "numbers as objects": lambda rng: pd.Series(rng.normal(size=N).astype(object)),
    "category": lambda rng: pd.Series(rng.choice(list("xyz"), N), dtype="category"),
    "ordered": lambda rng: pd.Series(
        pd.Categorical(rng.choice(["low", "high"], N), ["low", "high"], ordered=True)
    ),
    "category of numbers": lambda rng: pd.Series(rng.integers(0, 5, N)).astype("category"),
    "missing strings": lambda rng: pd.Series([None] * N, dtype="string"),
    "integers of Arrow": lambda rng: pd.Series(rng.integers(0, 2**62, N), dtype="int64[pyarrow]"),
    "date as objects": lambda rng: pd.Series(list(rng.permutation(WHEN.date)), dtype=object),
    "zone as objects": lambda rng: pd.Series(list(WHEN.tz_localize("UTC")), dtype=object),
    "date": lambda rng: pd.Series(rng.permutation(WHEN)),
    "zone": lambda rng: pd.Series(WHEN.tz_localize("America/New_York")),
    "duration": lambda rng: pd.Series(pd.to_timedelta(rng.integers(0, 9, N), "h")),
    "constant": lambda rng: pd.Series(np.full(N, 3.0)),
    "empty": lambda rng: pd.Series(np.full(N, np.nan)),
    "huge": lambda rng: pd.Series(1e12 * rng.normal(size=N)),
    "beyond squares": lambda rng: pd.Series(1e300 * rng.normal(size=N)),
    "text": lambda rng: pd.Series([f"row {k}" for k in range(N)]),
    "infinite": lambda rng: pd.Series(np.where(rng.random(N) < 0.7, np.inf, 1.0)),
    "period": lambda rng: pd.Series(WHEN.to_period("D")),
    "complex": lambda rng: pd.Series(rng.normal(size=N) + 1j),
    "lists": lambda rng: pd.Series([[1, 2]] * N),
    "mixed": lambda rng: pd.Series(["a", 1] * (N // 2), dtype=object),
}
REFUSED = {"infinite", "period", "mixed", "complex", "lists"}
INDICES = [
    lambda rng: pd.RangeIndex(N),
    lambda rng: pd.Index(rng.integers(0, 5, N)),
    lambda rng: pd.DatetimeIndex(rng.permutation(WHEN)),
    lambda rng: pd.MultiIndex.from_arrays([rng.integers(0, 3, N), np.arange(N)]),
]


def frame_of(rng):
    """Return a frame, y, and the kinds of its columns."""
    kinds = rng.choice(list(KINDS), rng.integers(1, 5)).tolist()
    frame = pd.DataFrame({f"{k} {kind}": KINDS[kind](rng) for k, kind in enumerate(kinds)})
    for name in frame:
        if rng.random() < 0.4 and frame[name].dtype not in (bool, np.int8):
            frame.loc[rng.random(N) < rng.choice([0.05, 0.5]), name] = None
    known = pd.Series(rng.normal(size=N))
    frame.insert(int(rng.integers(len(frame.columns) + 1)), "known", known)
    y = np.sin(2.0 * known.to_numpy()) + 0.1 * rng.normal(size=N)
    if rng.random() < 0.3:  # duplicates
        half = rng.integers(0, N // 2, N)
        frame, y = frame.iloc[half], y[half]
    order = rng.permutation(N)
    frame = frame.iloc[order].set_axis(INDICES[rng.integers(len(INDICES))](rng))
    library = rng.choice(["pandas", "polars", "arrow"])
    # In polars and Arrow, periods are numbers.
    return stored(frame, "pandas" if "period" in kinds else library), y[order], kinds


def stored(frame, library):
    """Return a frame as another library stores it; the frame itself if that library cannot."""
    try:
        if library == "polars":
            return pl.from_pandas(frame)
        return frame if library == "pandas" else pa.Table.from_pandas(frame, preserve_index=False)
    except (TypeError, ValueError, pa.ArrowException):
        return frame


def rows_of(X, index):
    return nw.from_native(X, eager_only=True)[index.tolist()].to_native()


def refused_column(fit, X, y):
    """Return the name of a column with which an error says what is wrong."""
    with pytest.raises((TypeError, ValueError)) as raised:
        fit(X, y)
    named = [name for name in nw.from_native(X).columns if name in str(raised.value)]
    assert named, str(raised.value)
    return named[0]


def fit_a_frame(seed):
    """Fit to a random frame, and predict it in another order; or read which column is refused."""
    rng = np.random.default_rng(seed)
    X, y, kinds = frame_of(rng)
    is_class = bool(rng.random() < 0.3)
    cls = AutoGaussianProcessClassifier if is_class else AutoGaussianProcessRegressor
    y = np.where(y > np.median(y), "up", "down") if is_class else y
    model = cls(random_state=0)
    if REFUSED & set(kinds):
        assert refused_column(model.fit, X, y).partition(" ")[2] in REFUSED, kinds
        return
    model.fit(X, y)
    predict = model.predict_proba if is_class else model.predict_std
    predicted = predict(X)
    assert np.isfinite(predicted).all(), kinds
    some = rng.permutation(N)[: rng.integers(1, N + 1)]
    given = predict(rows_of(X, some)), predicted[some]
    np.testing.assert_allclose(*given, rtol=1e-5, atol=1e-6, err_msg=str(kinds))


@pytest.fixture(autouse=True)
def faults_of_numpy():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_fuzzed_frames(seed):
    fit_a_frame(seed)


@pytest.mark.parametrize("seed", range(4))
@slow_cases("^[^0]")
def test_fuzzed_frames_where_all_must_be_numbers(seed):
    for number in range(10 * seed, 10 * seed + 10):
        X, y, kinds = frame_of(np.random.default_rng(number))
        model = SVGPRegressor(n_inducing=5, inducing_points="random", max_iter=1, solver="natural")
        try:
            model.fit(X, y)
        except (TypeError, ValueError):
            assert refused_column(model.fit, X, y) != "known", kinds
        else:
            assert np.isfinite(model.predict_std(X)).all(), kinds

"""Frames of random columns in the default: a sound fit, or a message that names the column."""

import warnings

import numpy as np
import pandas as pd
import pytest

from skgpstoch import AutoGaussianProcessClassifier, AutoGaussianProcessRegressor

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
    "date": lambda rng: pd.Series(rng.permutation(WHEN)),
    "zone": lambda rng: pd.Series(WHEN.tz_localize("America/New_York")),
    "duration": lambda rng: pd.Series(pd.to_timedelta(rng.integers(0, 9, N), "h")),
    "constant": lambda rng: pd.Series(np.full(N, 3.0)),
    "empty": lambda rng: pd.Series(np.full(N, np.nan)),
    "huge": lambda rng: pd.Series(1e12 * rng.normal(size=N)),
    "text": lambda rng: pd.Series([f"row {k}" for k in range(N)]),
    "infinite": lambda rng: pd.Series(np.where(rng.random(N) < 0.7, np.inf, 1.0)),
    "period": lambda rng: pd.Series(WHEN.to_period("D")),
    "mixed": lambda rng: pd.Series(["a", 1] * (N // 2), dtype=object),
}
REFUSED = {"infinite", "period", "mixed"}


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
    return frame.iloc[order], y[order], kinds


def fit_a_frame(seed):
    """Fit to a random frame, and predict it in another order; or read which column is refused."""
    rng = np.random.default_rng(seed)
    frame, y, kinds = frame_of(rng)
    is_class = bool(rng.random() < 0.3)
    cls = AutoGaussianProcessClassifier if is_class else AutoGaussianProcessRegressor
    y = np.where(y > np.median(y), "up", "down") if is_class else y
    model = cls(random_state=0)
    if REFUSED & set(kinds):
        with pytest.raises((TypeError, ValueError)) as raised:
            model.fit(frame, y)
        named = [name for name in frame if repr(name) in str(raised.value)]
        assert named, f"{kinds}: {raised.value}"
        assert named[0].partition(" ")[2] in REFUSED, f"{kinds}: {raised.value}"
        return
    model.fit(frame, y)
    predicted = model.predict_proba(frame) if is_class else model.predict_std(frame)
    assert np.isfinite(predicted).all(), kinds
    again = model.predict(frame.iloc[::-1])[::-1]
    if is_class:
        assert (again == model.predict(frame)).all(), kinds
    else:
        np.testing.assert_allclose(again, model.predict(frame), atol=1e-6, err_msg=str(kinds))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_fuzzed_frames(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit_a_frame(seed)

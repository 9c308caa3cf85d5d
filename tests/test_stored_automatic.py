"""The recommended defaults on tables that are read in chunks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from thread_group import on_ranks

from skgpstoch import AutoGaussianProcessClassifier, AutoGaussianProcessRegressor, predict_to
from skgpstoch.data import ParquetRows, SequenceRows
from skgpstoch.data.level_sums import Told
from skgpstoch.data.tables import TableEncoder
from skgpstoch.ensembles.stored_automatic import StoredSample
from skgpstoch.estimators import group_fit

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
    monkeypatch.setattr(group_fit, "SAMPLE_ROWS", 700)
    monkeypatch.setattr(group_fit, "MERGED_ROWS", 700)


def test_tables_are_encoded_chunk_by_chunk(table, few_are_many, tmp_path):
    frame, f, y = table
    pytest.importorskip("pyarrow")
    frame.assign(y=np.exp(y)).to_parquet(tmp_path / "rows.parquet", row_group_size=400)
    rows = ParquetRows(tmp_path / "rows.parquet", target="y")
    model = AutoGaussianProcessRegressor(max_time=1.5, target_transform="log", random_state=0)
    model.fit(rows)
    assert list(model.estimators_) == ["networks"]
    assert model.feature_names_in_.tolist() == ["a", "b", "place"]
    median = np.log(model.predict_distribution(frame).median())
    assert np.sqrt(np.mean((median - f) ** 2)) < 0.3
    held_out = model.estimators_["networks"].held_out_
    assert_allclose(np.isfinite(held_out.log_density), True)
    assert model.report().calibration is not None
    assert len(model.feature_importances_) == 3
    predict_to(model, rows, tmp_path / "predictions.parquet")
    written = pd.read_parquet(tmp_path / "predictions.parquet")
    assert_allclose(written["mean"], model.predict(frame), rtol=1e-6)


def test_levels_are_told_by_all_rows(few_are_many):
    """Many levels are not in the sample; rows are not told of their own target."""
    rng = np.random.default_rng(0)
    level = rng.integers(800, size=N)
    frame, y = (
        pd.DataFrame({"x": np.arange(N) * 0.1, "level": level.astype(str)}),
        rng.normal(size=N),
    )
    model = AutoGaussianProcessRegressor(random_state=0)
    stored = StoredSample.of(model, SequenceRows(frame, y, chunk_rows=300), None, None)
    model._learned(*model._checked(stored.sample.X, stored.sample.y, None, least=2))
    rows = stored.encoded(model, Told.of(stored.sample.y, None, None))
    alone = TableEncoder()
    alone.fit_transform(frame, y)
    told, expected = (each.transform(frame)[:, 1] for each in (model._encoder, alone))
    line = np.polyval(np.polyfit(expected, told, 1), expected)  # units are the sample's
    assert_allclose(told, line, atol=1e-12)
    own = np.concatenate([chunk.X[:, 1] for chunk in rows.chunks()])
    assert np.corrcoef(own, y)[0, 1] < 0.1 < 0.5 < np.corrcoef(told, y)[0, 1]


def test_classes_that_the_sample_has_not(table, few_are_many):
    frame, f, _ = table
    labels = np.where(f > 0.5, "high", "low").astype(object)
    hidden = np.setdiff1d(np.arange(N), sampled_numbers(frame, labels))[:3]
    labels[hidden] = "rare"
    model = AutoGaussianProcessClassifier(max_time=1.5, random_state=0)
    model.fit(SequenceRows(frame, labels, chunk_rows=300))
    assert model.classes_.tolist() == ["high", "low", "rare"]
    assert model.predict_proba(frame).shape == (N, 3)
    assert model.score(frame, labels) > 0.85


def sampled_numbers(frame, labels):
    """Which rows the fit with random_state=0 samples."""
    from skgpstoch.data.arrays import resolve_seed
    from skgpstoch.data.row_hash import row_hashes

    seed = resolve_seed(resolve_seed(0))
    return np.argsort(row_hashes(seed, np.arange(N)))[:700]


def test_few_rows_are_a_table_in_memory(table):
    frame, _, y = table
    few = slice(80)
    of_arrays = AutoGaussianProcessRegressor(random_state=0).fit(frame[few], y[few])
    model = AutoGaussianProcessRegressor(random_state=0)
    model.fit(SequenceRows(frame[few], y[few], chunk_rows=30))
    assert list(model.estimators_) == list(of_arrays.estimators_) == ["process"]
    assert_allclose(model.predict(frame), of_arrays.predict(frame), atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "y", "message"),
    [
        (lambda frame, y: SequenceRows(frame, y), True, "y must be None where X is a source"),
        (lambda frame, y: SequenceRows(frame), False, "has no y"),
    ],
)
def test_targets_are_in_the_rows(rows, y, message, table):
    frame, _, targets = table
    with pytest.raises(ValueError, match=message):
        AutoGaussianProcessRegressor().fit(rows(frame, targets), targets if y else None)


def test_a_group_of_processes_needs_arrays(table):
    frame, _, y = table

    def fit(group):
        return AutoGaussianProcessRegressor().fit(SequenceRows(frame, y))

    errors = on_ranks(fit, 2, expect=ValueError)
    assert all("X must be arrays or frames" in str(error) for error in errors)

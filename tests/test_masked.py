"""Masked arrays: masked entries are missing values, and never read as the numbers below a mask."""

import numpy as np
import pytest
from families import by_default, slow_cases
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import Ridge

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    ConstantVarianceRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    NNGPRegressor,
    SCGDGaussianProcessRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.data import ChunkRows, SequenceRows
from skgpstoch.metrics import interval_coverage, negative_log_predictive_density

pytestmark = pytest.mark.usefixtures("one_kernel")

QUICK = {"n_inducing": 5, "max_iter": 1, "random_state": 0}
WRONG = 1e6  # what is stored below a mask


@pytest.fixture(scope="module")
def table(sine):
    """Rows with NaN, and the same with masks on wrong numbers."""
    X, y = (a[:40].copy() for a in sine)
    X[::7, 0] = np.nan
    masked = np.ma.MaskedArray(np.where(np.isnan(X), WRONG, X), np.isnan(X))
    return X, masked, y


@pytest.mark.slow
@pytest.mark.parametrize("cls", [AutoGaussianProcessRegressor, AutoGaussianProcessClassifier])
@by_default("Classifier")
def test_the_defaults_take_them_as_missing(cls, table):
    X, masked, y = table
    y = y if cls is AutoGaussianProcessRegressor else y > 0.0
    expected = cls(random_state=0).fit(X, y)
    found = cls(random_state=0).fit(masked, np.ma.MaskedArray(y))
    assert np.array_equal(found.predict(X), expected.predict(X))
    assert np.array_equal(found.predict(masked), expected.predict(X))


@pytest.mark.slow
def test_kinds_of_columns(table):
    """Whole numbers, dates and objects have missing values, too."""
    _, masked, y = table
    rng = np.random.default_rng(0)
    mask = masked.mask
    whole = rng.integers(0, 50, masked.shape)
    days = np.datetime64("2020-01-01") + whole
    levels = np.array(["a", "b", "c"], dtype=object)[whole % 3]
    for values, nothing, kind in (
        (whole, np.nan, float),
        (days, np.datetime64("NaT"), days.dtype),
        (levels, None, object),
    ):
        with_missing = values.astype(kind)
        with_missing[mask] = nothing
        model = AutoGaussianProcessRegressor(random_state=0).fit(with_missing, y)
        expected = model.predict(with_missing)
        assert np.array_equal(model.predict(np.ma.MaskedArray(values, mask)), expected)


@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(**QUICK),
        SVGPClassifier(**QUICK),
        SCGDGaussianProcessRegressor(hidden_layer_sizes=(4,), max_iter=1, random_state=0),
        NNGPRegressor(1.0 * RBF(), max_iter=1, random_state=0),
        GaussianProcessRegressor(optimizer=None),
    ],
    ids=lambda model: type(model).__name__,
)
@slow_cases("SVGPClassifier")
def test_the_others_refuse_them(model, table):
    _, masked, y = table
    X = masked.data.copy()
    X[masked.mask] = 0.0
    y = y if not hasattr(model, "predict_proba") else (y > 0.0).astype(int)
    of_y = np.ma.MaskedArray(y, np.arange(len(y)) == 3)
    with pytest.raises(ValueError, match="X has 6 masked of 80 entries"):
        model.fit(masked, y)
    with pytest.raises(ValueError, match="y has 1 masked of 40 entries"):
        model.fit(X, of_y)
    if isinstance(model, SVGPRegressor | SVGPClassifier):
        with pytest.raises(ValueError, match="sample_weight has 1 masked of 40 entries"):
            model.fit(X, y, np.ma.MaskedArray(np.ones(40), of_y.mask))
    model.fit(np.ma.MaskedArray(X), np.ma.MaskedArray(y))  # nothing is masked
    with pytest.raises(ValueError, match="X has 6 masked of 80 entries"):
        model.predict(masked)
    with pytest.raises(ValueError, match="y has 1 masked of 40 entries"):
        model.log_predictive_density(X, of_y)


def test_targets_of_the_default(table):
    X, _, y = table
    with pytest.raises(ValueError, match="y has 1 masked of 40 entries"):
        AutoGaussianProcessRegressor().fit(X, np.ma.MaskedArray(y, y == y[5]))


@pytest.mark.parametrize(
    "model",
    [
        GaussianProcessRegressor(optimizer=None),
        GaussianProcessClassifier(optimizer=None),
        AutoGaussianProcessRegressor(random_state=0),
        AutoGaussianProcessClassifier(random_state=0),
        ConstantVarianceRegressor(Ridge()),
    ],
    ids=lambda model: type(model).__name__,
)
@slow_cases("AutoGaussianProcessClassifier")
def test_scores_refuse_them(model, sine):
    X, y = (a[:40] for a in sine)
    y = y if not hasattr(model, "predict_proba") else (y > 0.0).astype(int)
    mask = np.arange(40) == 3
    model = clone(model).fit(X, y)
    with pytest.raises(ValueError, match="y has 1 masked of 40 entries"):
        model.score(X, np.ma.MaskedArray(y, mask))
    with pytest.raises(ValueError, match="sample_weight has 1 masked of 40 entries"):
        model.score(X, y, sample_weight=np.ma.MaskedArray(np.ones(40), mask))
    assert model.score(X, np.ma.MaskedArray(y)) == model.score(X, y)


@pytest.mark.slow
def test_rows_in_chunks(table):
    X, masked, y = table
    expected = AutoGaussianProcessRegressor(random_state=0).fit(X, y).predict(X)
    for rows in (
        SequenceRows(masked, y, chunk_rows=25),
        ChunkRows(lambda: ((masked[i : i + 25], y[i : i + 25]) for i in range(0, 40, 25))),
    ):
        found = AutoGaussianProcessRegressor(random_state=0).fit(rows).predict(X)
        assert np.array_equal(found, expected)
    rows = SequenceRows(X, np.ma.MaskedArray(y, y == y[5]))
    with pytest.raises(ValueError, match="y has 1 masked of 40 entries"):
        AutoGaussianProcessRegressor().fit(rows)


def test_metrics_refuse_them(table):
    y = np.ma.MaskedArray([1.0, 2.0, WRONG], [False, False, True])
    with pytest.raises(ValueError, match="y_true has 1 masked of 3 entries"):
        negative_log_predictive_density(y, np.ones(3), np.ones(3))
    with pytest.raises(ValueError, match="y_interval has 3 masked of 6 entries"):
        interval_coverage(np.ones(3), np.ma.MaskedArray(np.ones((3, 2)), np.ones((3, 2)) * [0, 1]))

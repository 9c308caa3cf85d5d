"""Exposures of counts in the recommended default."""

import functools
import warnings

import numpy as np
import pytest
from conftest import let_defaults_be_of_many
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.metrics import get_scorer, r2_score
from thread_group import on_ranks

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    log_predictive_density,
)
from skgpstoch.data import ChunkRows
from skgpstoch.display import RegressionCalibrationDisplay
from skgpstoch.methods.automatic import automatic_regressor

pytestmark = pytest.mark.usefixtures("one_kernel")

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module", autouse=True)
def networks_alone():
    """Counts have no neighbours, which tests/test_neighbours_in_race.py has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automatic_regressor, "of_latent_neighbours", lambda *given, **named: [])
        yield


@pytest.fixture(scope="module")
def claims():
    """Counts of frames with a category, their exposures and rates."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(-2, 2, 240), "b": rng.choice(list("uvw"), 240)})
    years = rng.uniform(0.1, 10.0, 240)
    rate = np.exp(0.5 * np.sin(2 * X.a) + (X.b == "u")).to_numpy()
    return X, rng.poisson(rate * years).astype(float), years, rate


@pytest.fixture(scope="module")
def insurer(claims):
    X, y, years, _ = claims
    few = functools.partial(automatic_regressor.of_networks, n_estimators=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automatic_regressor, "of_networks", few)
        model = AutoGaussianProcessRegressor(target="count", random_state=0)
        return model.fit(X, y, exposure=years)


@pytest.mark.slow
def test_exposures_multiply_the_rates_of_counts(claims, insurer):
    X, y, years, rate = claims
    assert np.corrcoef(np.log(insurer.predict(X)), np.log(rate))[0, 1] > 0.95
    assert_allclose(insurer.predict(X, exposure=years), years * insurer.predict(X), rtol=1e-6)
    X, y, years = X[:120], y[:120], years[:120]
    mean, std = insurer.predict(X, return_std=True, exposure=years)
    assert_array_equal(insurer.predict_std(X, exposure=years), std)
    draws = insurer.sample_y(X, 300, exposure=years)
    assert np.abs((draws.mean(1) - mean) / std).max() < 5.0 / np.sqrt(300)
    low, high = insurer.predict_interval(X, 0.9, exposure=years).T
    assert 0.85 < ((low <= y) & (y <= high)).mean() < 0.99
    law = insurer.predict_distribution(X, exposure=years)
    assert_allclose(law.logpmf(y), insurer.log_predictive_density(X, y, exposure=years))
    assert insurer.score(X, y, exposure=years) == r2_score(y, mean)


@pytest.mark.slow
def test_a_new_level_keeps_the_exposure_of_its_row(claims, insurer):
    X, _, years, _ = claims
    new = X.head(6).assign(b=["new", "u", "new", "v", "new", "w"])
    with pytest.warns(UserWarning, match="'b'"):
        rate = insurer.predict(new)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = insurer.predict(new, exposure=years[:6])
        draws = insurer.sample_y(new, 400, exposure=years[:6])
    assert_allclose(counts, years[:6] * rate, rtol=1e-6)
    assert_allclose(draws.mean(1), counts, rtol=0.25)


@pytest.mark.slow
def test_exposures_of_rows_in_chunks_and_on_ranks(monkeypatch):
    """Many rows, of which a sample has 100, are fitted with the exposures that they have."""
    let_defaults_be_of_many(monkeypatch, 100, max_iter=15)
    rng = np.random.default_rng(1)
    X, years = rng.uniform(-2, 2, (400, 1)), np.repeat([0.1, 10.0], 200)
    y = rng.poisson(3.0 * years).astype(float)

    def of_part(group):
        rows = slice(200 * group.rank, 200 * (group.rank + 1))  # all of one exposure
        model = AutoGaussianProcessRegressor(target="count", random_state=0)
        return model.fit(X[rows], y[rows], exposure=years[rows])

    chunks = ChunkRows(lambda: ({"X": X, "y": y, "exposure": years} for _ in range(1)))
    of_chunks = AutoGaussianProcessRegressor(target="count", random_state=0).fit(chunks)
    for model in (*on_ranks(of_part, 2), of_chunks):
        assert_allclose(model.predict([[-1.0], [1.0]]), 3.0, rtol=0.1)
    with pytest.raises(ValueError, match="exposure must be None if X is a source"):
        of_chunks.fit(chunks, exposure=years)
    with pytest.raises(ValueError, match="has exposure, which AutoGaussianProcessClassifier"):
        AutoGaussianProcessClassifier().fit(chunks)


def test_the_calibration_of_counts_takes_their_exposures(claims, insurer):
    X, y, years, _ = claims
    shown = RegressionCalibrationDisplay.from_estimator(insurer, X, y, exposure=years)
    mean, std = insurer.predict(X, return_std=True, exposure=years)
    known = RegressionCalibrationDisplay.from_predictions(y, mean, std)
    assert_allclose(shown.observed, known.observed)


def test_exposures_that_mean_nothing_are_refused(claims, insurer):
    X, y, years, _ = claims
    with pytest.raises(ValueError, match="exposure must be None with target='auto'"):
        AutoGaussianProcessRegressor().fit(X, y, exposure=years)
    with pytest.raises(ValueError, match=r"exposure must be positive and finite, got -1\.0"):
        insurer.predict(X, exposure=-1.0)
    with pytest.raises(ValueError, match=r"exposure must have shape \(240,\)"):
        clone(insurer).fit(X, y, exposure=years[:-1])
    with pytest.raises(ValueError, match="exposure must be given"):
        log_predictive_density(insurer, X, y)
    for judge in (insurer.score, insurer.log_predictive_density, insurer.predictive_cdf):
        with pytest.raises(ValueError, match="exposure must be given"):
            judge(X, y)
    with pytest.raises(ValueError, match="exposure must be given"):
        get_scorer("neg_mean_squared_error")(insurer, X, y)


@pytest.mark.slow
def test_counts_that_are_all_zero_are_fitted_with_a_word_on_events_alone():
    """Their dispersion is unknown, and held-out deviations may be beyond the numbers."""
    X = np.random.default_rng(0).uniform(-2, 2, (30, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "No event was counted")
        model = AutoGaussianProcessRegressor(target="count", random_state=0).fit(X, np.zeros(30))
    assert model.predict(X).max() < 0.2
    assert all(np.isfinite(each.held_out_.std).all() for each in model.estimators_.values())

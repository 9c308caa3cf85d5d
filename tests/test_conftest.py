"""What keeps the tests quick does what it says."""

import conftest
import numpy as np
from conftest import FINITE_ONE, constructor, fitted_once
from numpy.testing import assert_array_equal


def test_equal_fits_are_made_once_and_every_test_has_a_copy(sine, monkeypatch):
    monkeypatch.setattr(conftest, "_fits", {})
    X, y = sine
    quick, fits = constructor(FINITE_ONE), []
    fit = FINITE_ONE.fit
    monkeypatch.setattr(FINITE_ONE, "fit", lambda *args: fits.append(args) or fit(*args))
    first = fitted_once(quick(max_iter=1), X, y)
    first.posterior_.weights.noise_variance.fill_(0.0)
    first.loss_curve_.clear()
    second = fitted_once(quick(max_iter=1), X.copy(), y.copy())
    assert len(fits) == 1
    assert_array_equal(second.predict_std(X), quick(max_iter=1).fit(X, y).predict_std(X))
    assert len(second.loss_curve_) == 1
    assert second.feature_map is None
    for model, targets in (
        (quick(max_iter=2), y),
        (quick(max_iter=1, random_state=1), y),
        (quick(max_iter=1), y + 1e-9),
    ):
        n_fits = len(fits)
        other = fitted_once(model, X, targets)
        assert len(fits) == n_fits + 1
        assert not np.array_equal(other.predict(X), second.predict(X))
    streamed = fitted_once(quick(max_iter=1), X, y, method="partial_fit")
    assert streamed.n_iter_ == 1
    assert len(fits) == n_fits + 1

"""What keeps the tests quick does what it says."""

import time
from types import SimpleNamespace

import conftest
import numpy as np
import pytest
from conftest import CPU_SECONDS, FINITE_ONE, constructor, fitted_once
from numpy.testing import assert_array_equal


def run_guarded(monkeypatch, seconds, *marks):
    """A test with these marks that takes this much CPU time, within the guard."""
    clock = iter([10.0, 10.0 + seconds])
    item = SimpleNamespace(get_closest_marker=lambda name: name if name in marks else None)
    with monkeypatch.context() as patch:
        patch.setattr(time, "process_time", lambda: next(clock))
        guard = conftest.pytest_runtest_call(item)
        next(guard)
        with pytest.raises(StopIteration):
            guard.send(None)


def test_a_test_that_takes_long_fails(monkeypatch):
    run_guarded(monkeypatch, 0.9 * CPU_SECONDS)
    with pytest.raises(pytest.fail.Exception, match=rf"took {1.1 * CPU_SECONDS:.1f} s of CPU time"):
        run_guarded(monkeypatch, 1.1 * CPU_SECONDS)


@pytest.mark.parametrize("mark", ["slow", "gpu"])
def test_tests_outside_of_the_default_run_may_take_long(monkeypatch, mark):
    run_guarded(monkeypatch, 100.0 * CPU_SECONDS, mark)


def test_an_error_is_told_before_the_time_that_it_took():
    guard = conftest.pytest_runtest_call(SimpleNamespace())
    next(guard)
    with pytest.raises(ZeroDivisionError):
        guard.throw(ZeroDivisionError())


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

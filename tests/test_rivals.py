"""Programs that take cores from a fit are told of."""

import itertools
import warnings

import numpy as np
import pytest
import torch

from skgpstoch import AutoGaussianProcessRegressor, GaussianProcessRegressor
from skgpstoch.estimators import context as rivals


def warnings_of_fit(model, monkeypatch, n_threads=4, seconds=10.0, rate=300.0):
    """Fit for so many seconds on a system that takes a core so many times in each."""
    looks = itertools.count()
    monkeypatch.setattr(rivals.time, "monotonic", lambda: seconds * (next(looks) > 0))
    taken = itertools.chain([5], itertools.repeat(5 + rate * seconds))
    monkeypatch.setattr(rivals, "preemptions", lambda: next(taken))
    monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
    X = np.random.default_rng(0).uniform(size=(30, 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, X[:, 0])
    return [str(w.message) for w in caught if "Other programs" in str(w.message)]


def test_a_fit_whose_threads_wait_for_each_other_is_told_of(monkeypatch):
    model = GaussianProcessRegressor(optimizer=None)
    (said,) = warnings_of_fit(model, monkeypatch)
    assert "300 times a second" in said
    assert "torch used 4 threads" in said
    assert "OMP_NUM_THREADS=1" in said


@pytest.mark.parametrize("fine", [{"n_threads": 1}, {"seconds": 4.0}, {"rate": 190.0}])
def test_other_fits_are_not(fine, monkeypatch):
    model = GaussianProcessRegressor(optimizer=None)
    assert not warnings_of_fit(model, monkeypatch, **fine)


@pytest.mark.slow
def test_models_inside_others_do_not_warn_again(monkeypatch):
    model = AutoGaussianProcessRegressor(random_state=0)
    assert len(warnings_of_fit(model, monkeypatch)) == 1


def test_a_failed_fit_is_watched_no_more(monkeypatch):
    with pytest.raises(ValueError, match="kernel"):
        GaussianProcessRegressor(kernel="rbf").fit(np.zeros((3, 1)), np.zeros(3))
    assert not rivals.IS_WATCHED.get()
    assert rivals.preemptions() >= 0

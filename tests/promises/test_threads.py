"""Fits in threads: no state of the process is changed, and models are those of fits in turn."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from conftest import FINITE_ONE, SPARSE, SPARSE_ONE, constructor, named
from families import by_default, slow_cases
from numpy.testing import assert_array_equal
from sklearn.cluster import MiniBatchKMeans
from torch import nn

from skgpstoch import SCGDGaussianProcessRegressor, SVGPClassifier
from skgpstoch.objectives.base import global_rng
from skgpstoch.training.loop import Trainer

CPU = torch.device("cpu")


class Slow(nn.Module):
    """Lets other threads in, in the middle of a step."""

    def forward(self, X):
        time.sleep(1e-3)
        return X


class Noisy(nn.Module):
    """Draws by itself, as a module of the user's may."""

    def forward(self, X):
        return X + 0.1 * torch.randn(X.shape).to(X) if self.training else X


STOCHASTIC = {
    "dropout": lambda: nn.Dropout(0.3),
    "feature dropout": lambda: nn.AlphaDropout(0.3),
    "rrelu": nn.RReLU,
    "noise": Noisy,
}


def stochastic(cls, layer, seed, **params):
    """With layers that draw, and that are interrupted."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), layer(), Slow())
    params = {"feature_map": module, "max_iter": 3, "batch_size": 20, **params}
    if cls in SPARSE:
        params["n_inducing"] = 4
    return constructor(cls)(**{**params, "random_state": seed})


def few(cls, sine):
    X, y = sine[0][:40], sine[1][:40]
    return X, y > 0 if hasattr(cls, "predict_proba") else y


def in_threads(models, X, y):
    """Fitted at the same time."""
    barrier = threading.Barrier(len(models))

    def fit(model):
        barrier.wait()
        return model.fit(X, y)

    with ThreadPoolExecutor(len(models)) as pool:
        return list(pool.map(fit, models))


def assert_same_in_threads(make, X, y):
    """As one after the other, with the global generator as it was."""
    references = [make(seed).fit(X, y) for seed in range(3)]
    models = [make(seed) for seed in range(3)]
    state = torch.get_rng_state()
    in_threads(models, X, y)
    assert torch.equal(torch.get_rng_state(), state)
    for model, reference in zip(models, references, strict=True):
        assert model.loss_curve_ == reference.loss_curve_
        assert_array_equal(model.predict(X), reference.predict(X))


@pytest.mark.slow
@pytest.mark.parametrize("layer", STOCHASTIC.values(), ids=STOCHASTIC)
@slow_cases("feature dropout", "rrelu")
@by_default("dropout")
def test_stochastic_layers_draw_the_same_in_threads(sine, layer):
    cls = SCGDGaussianProcessRegressor
    assert_same_in_threads(lambda seed: stochastic(cls, layer, seed), *few(cls, sine))


@pytest.mark.slow
@pytest.mark.parametrize("cls", [FINITE_ONE, SPARSE_ONE, SVGPClassifier], ids=named)
@slow_cases("SVGPClassifier")
@by_default("SCGD")
def test_dropout_in_threads(sine, cls):
    def make(seed):
        return stochastic(cls, lambda: nn.Dropout(0.3), seed)

    assert_same_in_threads(make, *few(cls, sine))


@pytest.mark.slow
def test_streams_in_threads(sine):
    """partial_fit trains by the same loop."""

    class Stream(SCGDGaussianProcessRegressor):
        def fit(self, X, y):
            for _ in range(3):
                self.partial_fit(X, y)
            return self

    cls = SCGDGaussianProcessRegressor
    parameters = stochastic(cls, nn.Dropout, 0).get_params()

    def make(seed):
        return Stream(**{**parameters, "random_state": seed})

    assert_same_in_threads(make, *few(cls, sine))


def test_fits_in_fits(sine):
    """A module that fits a model itself, in a step: the same thread may borrow twice."""
    cls = SCGDGaussianProcessRegressor
    X, y = few(cls, sine)
    inner = []

    class Fitting(nn.Linear):
        def forward(self, Z):
            if self.training and not inner:
                inner.append(stochastic(cls, nn.Dropout, 5).fit(X, y))
            return super().forward(Z)

    model = constructor(cls)(feature_map=Fitting(2, 3), max_iter=2)
    thread = threading.Thread(target=model.fit, args=(X, y), daemon=True)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()
    assert_array_equal(inner[0].predict(X), stochastic(cls, nn.Dropout, 5).fit(X, y).predict(X))


def test_networks_of_our_own_need_not_wait(sine):
    """They borrow nothing, and train while another thread has the generator."""
    X, y = few(SCGDGaussianProcessRegressor, sine)
    model = constructor(FINITE_ONE)(hidden_layer_sizes=(4,), max_iter=2)
    thread = threading.Thread(target=model.fit, args=(X, y), daemon=True)
    with global_rng(CPU):
        thread.start()
        thread.join(10.0)
        assert not thread.is_alive()


def test_callbacks_do_not_have_the_generator(sine, monkeypatch):
    """They may wait for fits in other threads."""
    cls = SCGDGaussianProcessRegressor
    X, y = few(cls, sine)
    others = []

    def run_sound_epoch(self):
        sound = original(self)
        if not others:
            others.append(stochastic(cls, nn.Dropout, 1))
            thread = threading.Thread(target=others[0].fit, args=(X, y), daemon=True)
            thread.start()
            thread.join(10.0)
            assert not thread.is_alive()
        return sound

    original = Trainer.run_sound_epoch
    monkeypatch.setattr(Trainer, "run_sound_epoch", run_sound_epoch)
    stochastic(cls, nn.Dropout, 0).fit(X, y)
    assert hasattr(others[0], "posterior_")


@pytest.mark.gpu
def test_a_fit_on_the_cpu_leaves_the_generators_of_gpus(sine):
    cls = SCGDGaussianProcessRegressor
    model = stochastic(cls, nn.Dropout, 0).set_params(device="cpu")
    torch.cuda.manual_seed_all(7)
    states = torch.cuda.get_rng_state_all()
    model.fit(*few(cls, sine))
    pairs = zip(torch.cuda.get_rng_state_all(), states, strict=True)
    assert all(torch.equal(after, before) for after, before in pairs)


# --------------------------------------------------------------------------------------- warnings
DISTINCT = {"all rows": 40, "as many rows as points": 6, "fewer": 3, "one": 1}


@pytest.mark.parametrize("n_distinct", DISTINCT.values(), ids=DISTINCT)
@pytest.mark.parametrize("cls", SPARSE[:2], ids=named)
def test_filters_of_warnings_are_the_process_s_own(sine, monkeypatch, cls, n_distinct):
    """Threads share them: to change them for a moment is to change them for all, or for good."""
    X, y = few(cls, sine)
    X = X[np.arange(len(X)) % n_distinct]
    callers, filters, fit = [], [], MiniBatchKMeans.fit

    def enter(self):
        callers.append(sys._getframe(1).f_globals["__name__"])
        return original(self)

    def watched(self, *args, **options):
        filters.append(list(warnings.filters))
        return fit(self, *args, **options)

    original = warnings.catch_warnings.__enter__
    monkeypatch.setattr(warnings.catch_warnings, "__enter__", enter)
    monkeypatch.setattr(MiniBatchKMeans, "fit", watched)
    before = list(warnings.filters)
    model = constructor(cls)(inducing_points="kmeans", n_inducing=6, max_iter=2).fit(X, y)
    assert filters == [before] * len(filters)
    assert filters or n_distinct < 6  # as many points as distinct rows: there is nothing to choose
    assert not [name for name in callers if name.startswith(("skgpstoch", "torch"))]
    assert np.isfinite(model.predict(X)).all()

"""NNGPClassifier with a network: neighbours are near in features that it has learned."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process.kernels import Matern
from sklearn.metrics import log_loss
from torch import nn

from skgpstoch import NNGPClassifier, load
from skgpstoch.data.rows import Rows
from skgpstoch.methods.nngp import deep
from skgpstoch.models.features.near import NearFeatures

QUICK = {"hidden_layer_sizes": (16, 16), "max_iter": 2, "random_state": 0}


def stripes(n=400, d=10, seed=0):
    """Three classes along a direction between many inputs, which plain neighbours hardly see."""
    X = np.random.default_rng(seed).standard_normal((n, d))
    waves = np.sin(1.5 * X.sum(1) / np.sqrt(d))
    return X, np.array(["a", "b", "c"])[np.digitize(waves, [-0.5, 0.5])]


@pytest.fixture(scope="module")
def fitted():
    return NNGPClassifier(1.0 * Matern(1.0, "fixed", nu=1.5), **QUICK).fit(*stripes())


@pytest.mark.slow
def test_a_network_finds_what_matters(fitted):
    """Neighbours on the inputs have a log loss of .8."""
    X, y = stripes(500, seed=1)
    assert isinstance(fitted.posterior_.network, NearFeatures)
    assert log_loss(y, fitted.predict_proba(X)) < 0.6


@pytest.mark.slow
def test_a_network_is_kept_where_it_is_better():
    (X, y), new = stripes(1000), stripes(1000, seed=1)
    plain = NNGPClassifier(random_state=0).fit(X, y)
    model = NNGPClassifier(hidden_layer_sizes=(64, 64), random_state=0).fit(X, y)
    assert isinstance(model.posterior_.network, NearFeatures)
    scores = [log_loss(new[1], each.predict_proba(new[0])) for each in (plain, model)]
    assert scores[1] < 0.7 * scores[0]


@pytest.mark.slow
def test_the_inputs_alone_are_kept_where_they_are_better():
    X = np.random.default_rng(0).uniform(0, 4, (150, 2))
    y = X.astype(int).sum(1) % 2  # a board, which a network of two units does not learn
    model = NNGPClassifier(hidden_layer_sizes=(2,), max_iter=1, random_state=0).fit(X, y)
    assert isinstance(model.posterior_.network, nn.Sequential)
    assert not len(model.posterior_.network)


@pytest.mark.slow
def test_rows_that_the_network_has_not_seen_are_judged(fitted):
    assert len(fitted.held_out_.rows) == 40  # a tenth
    assert_allclose(fitted.held_out_.mean.sum(1), 1.0)


@pytest.mark.slow
def test_it_is_saved_pickled_and_goes_on(fitted, tmp_path):
    X, y = stripes(60, seed=2)
    fitted.save(tmp_path / "model")
    expected = fitted.predict_proba(X)
    for again in (load(tmp_path / "model"), pickle.loads(pickle.dumps(fitted))):
        assert_array_equal(again.predict_proba(X), expected)
        before = log_loss(y, expected)
        assert log_loss(y, again.condition_on(X, y).predict_proba(X)) < 0.8 * before


def test_predictions_do_not_depend_on_the_batch(fitted):
    X, _ = stripes(30, seed=2)
    whole = fitted.predict_proba(X)
    assert_allclose(np.vstack([fitted.predict_proba(x[None]) for x in X]), whole, atol=1e-10)
    assert_allclose(fitted.predict_proba(X[::-1])[::-1], whole, atol=1e-14)


@pytest.mark.parametrize("C", [2, 3])
def test_a_network_of_ones_own(C):
    X, y = stripes(120)
    network = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 2))
    kernel = 1.0 * Matern(1.0, "fixed", nu=1.5)
    model = NNGPClassifier(kernel, feature_map=network, max_iter=1, random_state=0)
    model.fit(X, np.where(y == "c", "b", y) if C == 2 else y)
    assert_allclose(model.predict_proba(X).sum(1), 1.0)


def test_the_first_loss_is_the_log_loss_of_classes():
    codes = torch.tensor([0, 2, 1, 2, 2])[:, None]
    rows, f = Rows(codes), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    loss = deep.log_losses(rows, 3)
    assert_allclose(loss.of_rows(f, rows).mean(), nn.functional.cross_entropy(f, codes[:, 0]))
    shares = torch.tensor([0.2, 0.2, 0.6]).double()
    assert_allclose(loss.of_constant, -float((shares * shares.log()).sum()))
    some = replace(rows, y=codes[:2])
    assert loss.of_rows(f[:2], some).shape == (2, 1)


@pytest.mark.slow
def test_the_graph_predicts_as_the_model(fitted):
    onnx = pytest.importorskip("skgpstoch.onnx")
    runtime = pytest.importorskip("onnxruntime")
    X, _ = stripes(20, seed=2)
    session = runtime.InferenceSession(onnx.to_onnx(fitted).SerializeToString())
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {session.get_inputs()[0].name: X}), strict=True))
    assert_allclose(found["probabilities"], fitted.predict_proba(X), atol=1e-6)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model(fitted):
    again = NNGPClassifier(1.0 * Matern(1.0, "fixed", nu=1.5), **QUICK).fit(*stripes())
    X, _ = stripes(20, seed=2)
    assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))

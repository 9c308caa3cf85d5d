"""Neighbours that an index of faiss finds, and what is said where it is not installed."""

import sys

import numpy as np
import pytest
import torch
from conftest import few_rows
from families import slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import kernels as sk

import skgpstoch
from skgpstoch import NNGPClassifier, NNGPRegressor
from skgpstoch.maths import nearest as nearest_module
from skgpstoch.maths.nearest import Nearest

rng = np.random.default_rng(0)
X = rng.uniform(-1.0, 1.0, (3100, 4)) @ rng.normal(size=(4, 12)) + 0.1 * rng.normal(size=(3100, 12))
y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=len(X))
NEW, TRAIN = slice(0, 100), slice(100, 800)


@pytest.fixture(autouse=True)
def index_of_few_rows(monkeypatch):
    monkeypatch.setattr(nearest_module, "FEWEST_INDEXED", 500)


@pytest.mark.parametrize("unit", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize("has_lag", [False, True])
def test_an_index_finds_most(unit, has_lag):
    rows = unit * torch.tensor(X)
    lag = unit**2 * torch.linspace(0.0, 1.0, len(X), dtype=torch.float64) if has_lag else None
    nearly, exact = Nearest(rows, lag, is_approximate=True), Nearest(rows, lag)
    i = torch.arange(0, len(X), 31)
    for search in ("others", "earlier"):
        found, expected = (getattr(each, search)(i, 20) for each in (nearly, exact))
        pairs = zip(found.tolist(), expected.tolist(), strict=True)
        shares = [len(set(a) & set(b)) / len(set(b)) for a, b in pairs]
        assert np.mean(shares) > 0.99
    assert set(nearly.indices) == {3100, 1550, 775}
    together = nearly.of(rows[i], 9)
    assert torch.equal(together, torch.cat([nearly.of(rows[j : j + 1], 9) for j in i.tolist()]))


def test_cells_with_too_few_rows_leave_the_search_to_products(monkeypatch):
    rows = torch.tensor(X)
    nearly, exact = Nearest(rows, is_approximate=True), Nearest(rows)
    nearly.of(rows[:1], 1)
    nearly.indices[len(X)].of_faiss.nprobe = 1
    assert torch.equal(nearly.of(rows[:50], 400), exact.of(rows[:50], 400))


def test_rows_at_one_place_have_an_index():
    found = Nearest(torch.ones(600, 20), is_approximate=True).others(torch.tensor([0, 599]), 7)
    assert bool((found >= 0).all())


@pytest.mark.slow
@pytest.mark.parametrize("cls", [NNGPRegressor, NNGPClassifier])
@slow_cases("NNGPClassifier")
def test_estimators_search_as_they_are_told(cls, tmp_path):
    targets = y if cls is NNGPRegressor else np.where(y > 0.0, "up", "down")
    model = cls(sk.RBF(2.0), n_neighbors=16, search="approximate", max_iter=1, random_state=0)
    model.fit(X[TRAIN], targets[TRAIN])
    ask = model.predict if cls is NNGPRegressor else model.predict_proba
    nearly = ask(X[NEW])
    assert model.posterior_.nearest.indices
    model.save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model")
    assert_array_equal(getattr(again, ask.__name__)(X[NEW]), nearly)
    model.set_params(search="exact")
    assert_allclose(ask(X[NEW]), nearly, atol=0.02)
    assert not model._asked(model.posterior_).nearest.indices
    assert_array_equal(again.set_params(search="exact").predict(X[NEW]), model.predict(X[NEW]))


@few_rows
def test_without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    model = NNGPRegressor(search="approximate", max_iter=1)
    with pytest.raises(ImportError, match=r"pip install faiss-cpu.*or set search='exact'"):
        model.fit(X[:50], y[:50])
    assert not hasattr(model, "posterior_")
    model.set_params(search="exact").fit(X[:50], y[:50])
    with pytest.raises(ImportError, match="faiss"):
        model.set_params(search="approximate").predict(X[:5])
    with pytest.raises(ValueError, match="'search' parameter"):
        model.set_params(search="some").fit(X[:50], y[:50])

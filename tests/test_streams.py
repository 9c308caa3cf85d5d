"""Streams may begin with a single row, and go on as if their first rows had come together."""

import copy
import pickle

import numpy as np
import pytest
from families import slow_cases
from numpy.testing import assert_array_equal
from sklearn.gaussian_process.kernels import RBF

import skgpstoch
from skgpstoch import (
    DeepGPRegressor,
    FITCRegressor,
    NNGPClassifier,
    NNGPRegressor,
    SCGDGaussianProcessRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.estimators.streams import BEGINNING

FEW = {"n_inducing": 8, "random_state": 0}
MODELS = [
    SVGPRegressor(**FEW),
    SVGPRegressor(**FEW, target_transform="yeo-johnson"),
    SVGPRegressor(**FEW, likelihood="poisson"),
    SVGPClassifier(**FEW),
    FITCRegressor(**FEW),
    DeepGPRegressor(**FEW),
    SCGDGaussianProcessRegressor(hidden_layer_sizes=(4,), random_state=0),
    NNGPRegressor(1.0 * RBF(), max_iter=1, random_state=0),
    NNGPClassifier(1.0 * RBF(), max_iter=1, random_state=0),
]


def is_classifier(model):
    return hasattr(model, "predict_proba")


@pytest.fixture(scope="module")
def rows(sine, counts):
    def of(model):
        X, y = sine
        if getattr(model, "likelihood", None) == "poisson":
            X, y, _ = counts
        return X, (y > 0.0 if is_classifier(model) else y)

    return of


def learn(model, X, y):
    options = {"classes": [False, True]} if is_classifier(model) else {}
    return model.partial_fit(X, y, **options)


def said(model, X):
    return model.predict_proba(X) if is_classifier(model) else model.predict(X, return_std=True)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{type(m).__name__}-{m.kernel}")
@slow_cases("DeepGP", "FITC", "NNGPClassifier", "SVGPRegressor-None1")
def test_single_rows_are_a_chunk(model, rows):
    X, y = rows(model)
    single, together = copy.deepcopy(model), copy.deepcopy(model)
    for i in range(BEGINNING + 1):
        learn(single, X[i : i + 1], y[i : i + 1])
        assert np.isfinite(said(single, X[:30])).all()
    learn(learn(together, X[:BEGINNING], y[:BEGINNING]), X[i:][:1], y[i:][:1])
    assert_array_equal(said(single, X), said(together, X))
    assert not hasattr(single, "_beginning")


def test_after_one_row_it_is_uncertain(rows):
    """Of what it has not seen: y has no scale yet."""
    for model in (SVGPRegressor(**FEW), NNGPRegressor(random_state=0)):
        mean, std = model.partial_fit([[0.0, 0.0]], [7.0]).predict([[30.0, 0.0]], return_std=True)
        assert mean == pytest.approx(7.0, abs=1e-6)
        assert std > 0.5


def test_weights_and_errors_of_some_chunks(rows):
    """Rows without a weight count once, and rows without an error have none."""
    X, y = rows(MODELS[0])
    weight, error = np.arange(1.0, 7.0), np.full(6, 0.3)
    model = SVGPRegressor(**FEW).partial_fit(X[:5], y[:5])
    model.partial_fit(X[5:11], y[5:11], weight, y_std=error)
    model.partial_fit(X[11:BEGINNING], y[11:BEGINNING])
    n_rest = BEGINNING - 11
    weight, error = (
        np.concatenate([np.full(5, usual), given, np.full(n_rest, usual)])
        for given, usual in ((weight, 1.0), (error, 0.0))
    )
    whole = SVGPRegressor(**FEW)
    whole.partial_fit(X[:BEGINNING], y[:BEGINNING], weight, y_std=error)
    assert_array_equal(said(model, X), said(whole, X))


def test_a_beginning_is_saved_and_ends_with_a_fit(rows, tmp_path):
    X, y = rows(MODELS[0])
    model = SVGPRegressor(**FEW).partial_fit(X[:3], y[:3])
    model.save(tmp_path / "model.safetensors")
    expected = said(copy.deepcopy(model).partial_fit(X[3:30], y[3:30]), X)
    for other in (
        pickle.loads(pickle.dumps(model)),
        skgpstoch.load(tmp_path / "model.safetensors"),
    ):
        assert_array_equal(said(other.partial_fit(X[3:30], y[3:30]), X), expected)
    before = said(model.fit(X, y), X)
    assert_array_equal(said(SVGPRegressor(**FEW).fit(X, y), X), before)
    assert not hasattr(model, "_beginning")


def test_a_first_row_of_one_class_needs_the_others(rows):
    X, y = rows(SVGPClassifier())
    with pytest.raises(ValueError, match="one class"):
        SVGPClassifier(**FEW).partial_fit(X[:1], y[:1])

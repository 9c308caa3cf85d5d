"""skl2onnx converts pipelines that end in our estimators."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpstoch import (
    AutoGaussianProcessRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    NNGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)

skl2onnx = pytest.importorskip("skl2onnx")
runtime = pytest.importorskip("onnxruntime")

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

rng = np.random.default_rng(0)
X = rng.standard_normal((80, 3))
y = X[:, 0] + 0.1 * rng.standard_normal(80)


@pytest.fixture(autouse=True, scope="module")
def converters():
    from skgpstoch.onnx import register_converters

    register_converters()


def run(model, X, **options):
    proto = skl2onnx.to_onnx(model, X[:1], target_opset=18, options={id(model): options})
    session = runtime.InferenceSession(proto.SerializeToString())
    return session.run(None, {"X": X})


@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(max_iter=3, random_state=0),
        NNGPRegressor(max_iter=3, random_state=0),  # has a loop, whose body takes outer constants
        AutoGaussianProcessRegressor(random_state=0),
    ],
    ids=["sparse", "neighbours", "default"],
)
def test_pipelines_of_regressors(model):
    pipeline = make_pipeline(StandardScaler(), model).fit(X, y)
    mean, std = run(pipeline, X)
    exact = pipeline.predict(X, return_std=True)
    np.testing.assert_allclose(mean[:, 0], exact[0], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(std[:, 0], exact[1], rtol=1e-8)


def test_the_error_without_converters_says_how_to_register_them(monkeypatch):
    from skl2onnx import _parse, _supported_operators

    model = SVGPRegressor(max_iter=3, random_state=0).fit(X, y)
    for known in (_supported_operators.sklearn_operator_name_map, _parse.sklearn_parsers_map):
        monkeypatch.delitem(known, SVGPRegressor)
    with pytest.raises(RuntimeError, match=r"Call skgpstoch\.onnx\.register_converters\(\)"):
        run(make_pipeline(StandardScaler(), model), X)


def test_columns_that_come_apart_are_joined():
    columns = make_column_transformer((StandardScaler(), [0, 1]), ("passthrough", [2]))
    pipeline = make_pipeline(columns, SVGPRegressor(max_iter=3, random_state=0)).fit(X, y)
    np.testing.assert_allclose(run(pipeline, X)[0][:, 0], pipeline.predict(X), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("labels", [(y > 0).astype(int), np.where(y > 0, "a", "b")], ids=["0", "a"])
def test_pipelines_of_classifiers(labels):
    pipeline = make_pipeline(StandardScaler(), GaussianProcessClassifier()).fit(X, labels)
    label, probability = run(pipeline, X, zipmap=False)
    np.testing.assert_array_equal(label, pipeline.predict(X))
    np.testing.assert_allclose(probability, pipeline.predict_proba(X), atol=1e-6)
    of_classes = run(pipeline, X, zipmap=True)[1]
    assert set(of_classes[0]) == set(np.unique(labels).tolist())


def test_opsets_that_are_too_old_are_refused():
    model = GaussianProcessClassifier().fit(X, y > 0)
    with pytest.raises(NotImplementedError, match="target_opset=15"):
        skl2onnx.to_onnx(model, X[:1], target_opset=15)


def test_the_drop_in_has_the_options_of_scikit_learns_own_converter():
    model = GaussianProcessRegressor(alpha=0.01).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    (alone,) = run(model, X, optim="cdist")
    np.testing.assert_allclose(alone[:, 0], mean, rtol=1e-8, atol=1e-8)
    both = run(model, X, return_std=True)
    np.testing.assert_array_equal(both[0], alone)
    np.testing.assert_allclose(both[1][:, 0], std, rtol=1e-6)


def test_each_column_of_a_table_is_an_input():
    from skl2onnx.common.data_types import DoubleTensorType, StringTensorType

    frame = pd.DataFrame({"town": np.where(X[:, 1] > 0.0, "Bath", "Hull"), "size": X[:, 0]})
    model = AutoGaussianProcessRegressor(max_time=3, random_state=0).fit(frame, y)
    types = {"town": StringTensorType([None, 1]), "size": DoubleTensorType([None, 1])}
    proto = skl2onnx.convert_sklearn(model, initial_types=list(types.items()), target_opset=18)
    session = runtime.InferenceSession(proto.SerializeToString())
    given = {"town": frame[["town"]].to_numpy(object), "size": frame[["size"]].to_numpy()}
    mean, _ = session.run(None, given)
    np.testing.assert_allclose(mean[:, 0], model.predict(frame), rtol=1e-7)


@pytest.mark.parametrize(("dtype", "atol"), [("float64", 1e-12), ("float32", 1e-5)])
def test_classifiers_within_those_of_scikit_learn(dtype, atol):
    model = OneVsRestClassifier(SVGPClassifier(n_inducing=8, max_iter=2, random_state=0))
    model.fit(X, np.digitize(y, [-0.5, 0.5]))
    _, p = run(model, X.astype(dtype), zipmap=False)
    assert p.dtype == dtype
    np.testing.assert_allclose(p, model.predict_proba(X), atol=atol)

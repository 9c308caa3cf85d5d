"""skops and MLflow keep our estimators, alone and inside scikit-learn's, to the last bit."""

import numpy as np
import pytest
from conftest import ESTIMATORS, IMAGES, constructor, named
from pages import DOC, run_page
from sklearn.base import is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process.kernels import RBF, Matern
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skgpstoch
from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    DLMRegressor,
    GaussianProcessRegressor,
    LogLoss,
    SquareLoss,
    StackedDensityRegressor,
    SVGPClassifier,
    SVGPRegressor,
    metrics,
)
from skgpstoch.likelihoods import Poisson

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]  # theirs, and few rows

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (40, 4))
Y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(40)
QUICK = {"n_inducing": 6, "max_iter": 2, "random_state": 0}


def every():
    """An estimator of each public class."""
    for cls in ESTIMATORS:
        shape = {"image_shape": (2, 2), "patch_shape": (2, 1)} if cls in IMAGES else {}
        model = constructor(cls)(**shape)
        if "max_iter" in model.get_params():
            model.set_params(max_iter=2)
        yield pytest.param(model, id=named(cls))
    for model in (
        AutoGaussianProcessRegressor(random_state=0),
        AutoGaussianProcessClassifier(random_state=0),
        StackedDensityRegressor(
            [("a", SVGPRegressor(**QUICK)), ("b", DLMRegressor(**QUICK))], cv=2
        ),
    ):
        yield pytest.param(model, id=named(type(model)))


INSIDE = [
    make_pipeline(SimpleImputer(), SVGPRegressor(**QUICK)),
    GridSearchCV(SVGPClassifier(**QUICK), {"max_iter": [1, 2]}, cv=2),
    make_pipeline(StandardScaler(), SVGPRegressor(**QUICK)),
    TransformedTargetRegressor(SVGPRegressor(**QUICK)),
    GridSearchCV(GaussianProcessRegressor(alpha=0.1), {"kernel": [RBF(), 2.0 * Matern()]}, cv=2),
    GridSearchCV(DLMRegressor(**QUICK), {"loss": [LogLoss(), SquareLoss()]}, cv=2),
    GridSearchCV(SVGPRegressor(**QUICK, likelihood="poisson"), {"likelihood": [Poisson()]}, cv=2),
    *(
        GridSearchCV(SVGPRegressor(**QUICK), {"max_iter": [1, 2]}, scoring=scorer, cv=2)
        for scorer in (
            metrics.neg_crps_scorer,
            metrics.neg_log_predictive_density_scorer,
            metrics.neg_coverage_error_scorer,
        )
    ),
]


def fitted(model):
    if "poisson" in str(model):
        return model.fit(X, np.round(np.abs(Y)))
    return model.fit(X, np.where(Y > 0, "up", "down") if is_classifier(model) else Y)


@pytest.mark.parametrize("model", [*every(), *INSIDE])
def test_skops(model, tmp_path):
    io = pytest.importorskip("skops.io")
    model = fitted(model)
    io.dump(model, tmp_path / "model")
    found = set(io.get_untrusted_types(file=tmp_path / "model"))
    assert found <= set(skgpstoch.TRUSTED_TYPES)
    again = io.load(tmp_path / "model", trusted=skgpstoch.TRUSTED_TYPES)
    assert np.array_equal(again.predict(X), model.predict(X))
    if hasattr(model, "predict_std"):
        assert np.array_equal(again.predict_std(X), model.predict_std(X))


@pytest.mark.parametrize(
    "model",
    [SVGPRegressor(**QUICK), AutoGaussianProcessRegressor(random_state=0), INSIDE[0]],
    ids=["sparse", "default", "pipeline"],
)
def test_mlflow(model, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    model = fitted(model)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.create_experiment("saving", artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment("saving")
    with mlflow.start_run():
        logged = mlflow.sklearn.log_model(
            model,
            name="gp",
            skops_trusted_types=skgpstoch.TRUSTED_TYPES,
            pip_requirements=["skgpstoch"],
        )
    again = mlflow.sklearn.load_model(logged.model_uri)
    assert np.array_equal(again.predict(X), model.predict(X))
    served = mlflow.pyfunc.load_model(logged.model_uri)
    assert np.array_equal(served.predict(X), model.predict(X))


def test_the_page(tmp_path, monkeypatch):
    pytest.importorskip("skops.io")
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    blocks = "skops", "mlflow", "mlflow-stranger", "mlflow-run", "skl2onnx"
    run_page(DOC / "user_guide" / "saving_and_serving.rst", *blocks)

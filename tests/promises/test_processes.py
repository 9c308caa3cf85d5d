"""Fits in other processes: models are those of fits in turn.

All are in one module, so that they share two processes that take seconds to start.
"""

import warnings

import joblib
import numpy as np
import pytest
from conftest import SPARSE_ONE, constructor
from numpy.testing import assert_allclose, assert_array_equal
from shared import GRID, Names, fit_predict, results
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpstoch import (
    ADMMGaussianProcessRegressor,
    DLMRegressor,
    StackedDensityRegressor,
    SVGPRegressor,
)
from skgpstoch.metrics import make_coverage_scorer, neg_log_predictive_density_scorer

pytestmark = pytest.mark.processes


def test_other_processes_get_the_same_bits(quick_finite, sine):
    X, y = sine
    models = [
        quick_finite(),
        quick_finite(kernel=RBF() + WhiteKernel(0.1), hidden_layer_sizes=(), n_components=30),
        quick_finite(n_estimators=2),
    ]
    models.append(constructor(SPARSE_ONE)())
    models = [model.set_params(max_iter=5) for model in models]
    there = joblib.Parallel(n_jobs=2)(
        joblib.delayed(fit_predict)(clone(model), X, y, GRID) for model in models
    )
    for model, expected in zip(models, there, strict=True):
        assert_array_equal(results(model.fit(X, y), GRID), expected)


def test_processes_give_the_same_bits_and_share_a_checkpoint_dir(sine, tmp_path):
    params = {"beta": [0.01, 1.0, 30.0], "hyperparameters": "fixed", "max_iter": 3}
    quick = constructor(DLMRegressor)
    one = quick(**params).fit(*sine)
    two = quick(**params, n_jobs=2, checkpoint_dir=tmp_path).fit(*sine)
    assert_array_equal(one.validation_scores_, two.validation_scores_)
    assert_array_equal(results(one), results(two))
    assert one.loss_curve_ == two.loss_curve_


def test_folds_in_processes_give_the_same_model(sine):
    X, y = (a[:90] for a in sine)
    options = {"scheme": "naive", "random_state": 0, "max_iter": 3, "tol": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        alone = ADMMGaussianProcessRegressor(**options).fit(X, y)
        with joblib.parallel_config("loky", n_jobs=2):
            model = ADMMGaussianProcessRegressor(**options).fit(X, y)
    assert_allclose(model.predict(X), alone.predict(X), rtol=1e-6)


def test_callbacks_of_stacks_end_where_models_are_fitted_elsewhere(sine):
    """Other processes tell copies."""
    pytest.importorskip("sklearn.callback")
    names = Names()
    models = [(name, SVGPRegressor(n_inducing=5, max_iter=2)) for name in ("one", "other")]
    StackedDensityRegressor(models, cv=2, n_jobs=2).set_callbacks(names).fit(*sine)
    assert names.begun[0] == names.ended[-1] == ("StackedDensityRegressor", "fit")


def test_scorers_work_in_parallel_searches(sine):
    """Loky pickles the scorers and the search ranks by them."""
    pipeline = make_pipeline(StandardScaler(), BayesianRidge())
    scoring = {"nlpd": neg_log_predictive_density_scorer, "coverage": make_coverage_scorer(0.9)}
    grid = {"bayesianridge__lambda_init": [None, 1e-3], "bayesianridge__max_iter": [1, 300]}
    search = GridSearchCV(pipeline, grid, scoring=scoring, refit="nlpd", cv=3, n_jobs=2)
    search.fit(*sine)
    nlpd, coverage = (search.cv_results_[f"mean_test_{name}"] for name in scoring)
    assert search.best_index_ == nlpd.argmax()
    assert np.all((coverage <= 0) & (coverage >= -1))
    serial = cross_val_score(search.best_estimator_, *sine, scoring=scoring["nlpd"], cv=3)
    assert serial.mean() == pytest.approx(search.best_score_, rel=1e-12)

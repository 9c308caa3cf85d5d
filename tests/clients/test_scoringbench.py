"""The guide's wrapper in ScoringBench, and its scores of our distributions.

ScoringBench is on no index: ``SUITES`` in the environment is a folder with a clone of it.

    git clone https://github.com/jonaslandsgesell/ScoringBench $SUITES/ScoringBench
    pip install openml pyarrow tqdm

Run with PascalKnoll's fork at a938a66, July 2026. What has changed since is at the guide's page.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from pages import DOC, blocks_of
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skgpstoch
from skgpstoch import GaussianProcessRegressor, SVGPRegressor

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]  # theirs

CLONE = Path(os.environ.get("SUITES", "")) / "ScoringBench"
PAGE = DOC / "user_guide" / "other_packages.rst"
SINCE = {  # what the page says of clones that are newer
    "scoringbench.wrappers": "scoringbench.univariate.wrappers",
    "self.range_)": "self.range_, train_range=self.range_)",
}
MODELS = {
    "drop-in": GaussianProcessRegressor(RBF([1.0, 1.0]) + WhiteKernel(0.1), normalize_y=True),
    "pipeline": make_pipeline(
        StandardScaler(), SVGPRegressor(n_inducing=20, target_transform="log", random_state=0)
    ),
}


@pytest.fixture(scope="module")
def bench():
    """Its modules of wrappers, scores and folds, and the guide's wrapper."""
    if not CLONE.is_dir():
        pytest.skip("no clone: set SUITES to a folder that has ScoringBench")
    sys.path.insert(0, str(CLONE))
    pytest.importorskip("scoringbench")
    text = dict(blocks_of(PAGE))["scoringbench"]
    room = "scoringbench"
    if importlib.util.find_spec("scoringbench.univariate"):
        room = "scoringbench.univariate"
        for before, after in SINCE.items():
            assert before in text
            text = text.replace(before, after)
    names = {"np": np} | {name: getattr(skgpstoch, name) for name in skgpstoch.__all__}
    exec(text, names)
    cv, metrics = (importlib.import_module(f"{room}.{name}") for name in ("cv", "metrics"))
    yield names, cv, metrics
    sys.path.remove(str(CLONE))


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(-3, 3, (160, 2)), columns=["a", "b"])
    return X, pd.Series(np.exp(np.sin(X["a"]) + 0.2 * rng.standard_normal(160)), name="y")


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_ours(name, bench, table):
    (page, _, metrics), (X, y) = bench, table
    wrapper = page["Benchmarked"](MODELS[name]).fit(X[:120], y[:120])
    found = wrapper.predict_distribution(X[120:])
    ours = skgpstoch.predict_distribution(wrapper.estimator_, X[120:])
    assert_allclose(found.mean, ours.mean())
    assert_allclose(found.probas.sum(1), 1.0)
    scores = metrics.compute_metrics(found, y[120:].to_numpy())
    assert_allclose(scores["mae"], np.abs(y[120:] - ours.mean()).mean())
    assert_allclose(scores["crps"], ours.crps(y[120:].to_numpy()).mean(), rtol=0.01)
    low, high = ours.interval(0.9)
    covered = ((low <= y[120:]) & (y[120:] <= high)).mean()
    assert abs(scores["coverage_90"] - covered) <= 0.05  # two rows of forty


def test_folds(bench, table):
    (page, cv, _), (X, y) = bench, table
    scores = cv.run_fold(X[:120], X[120:], y[:120], y[120:], page["models"], 0)["skgpstoch"]
    assert scores["r2"] > 0.8
    assert 0.0 < scores["crps"] < 0.5 * y.std()

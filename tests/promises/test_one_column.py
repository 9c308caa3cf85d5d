"""Targets of one column, (n, 1), as frames of one column are, are one output, as (n,) is."""

import copy
import functools
import inspect

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from conftest import DROP_IN, ESTIMATORS, IMAGES, constructor
from families import named, slow_cases
from numpy.testing import assert_array_equal
from sklearn.base import is_regressor
from sklearn.exceptions import DataConversionWarning
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from thread_group import on_ranks

from skgpstoch import (
    AutoGaussianProcessRegressor,
    ConstantVarianceRegressor,
    GaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
    StackedDensityRegressor,
    SVGPClassifier,
    SVGPRegressor,
    metrics,
)
from skgpstoch.data import ChunkRows, ParquetRows, SequenceRows
from skgpstoch.methods.automatic.process import ExactProcessRegressor

N = 40
RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (N, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(N)
PIXELS = np.hstack([X, RNG.uniform(-1.0, 1.0, (N, 14))])
COLUMN = Y[:, None]
SPARSE = functools.partial(SVGPRegressor, n_inducing=5, solver="collapsed", max_iter=2)
FINITE = functools.partial(
    SCGDGaussianProcessRegressor, hidden_layer_sizes=(4,), n_estimators=1, max_iter=2
)
PAIR = [("gp", SPARSE(random_state=0)), ("ridge", ConstantVarianceRegressor(Ridge()))]
AROUND_OTHERS = {
    "automatic": functools.partial(AutoGaussianProcessRegressor, max_time=0.01, random_state=0),
    "constant variance": functools.partial(ConstantVarianceRegressor, Ridge()),
    "stacked": functools.partial(StackedDensityRegressor, PAIR, cv=2),
    "processes": functools.partial(ExactProcessRegressor, kernels=["rbf"], random_state=0),
}
QUICK = {
    named(cls): functools.partial(
        constructor(cls), **({"image_shape": (4, 4)} if cls in IMAGES else {})
    )
    for cls in ESTIMATORS
    if is_regressor(cls())
}
EVERY = QUICK | AROUND_OTHERS
SCORERS = [
    metrics.neg_log_predictive_density_scorer,
    metrics.neg_crps_scorer,
    metrics.neg_coverage_error_scorer,
]
pytestmark = pytest.mark.filterwarnings(
    "ignore:Training ended after",
    "ignore:No epoch of training",
    "ignore:max_time",
    "ignore:y looks",
)


def of_column(model, *data, method="fit", **of_rows):
    """The model, fitted to a column of targets, of which all but the drop-in warn."""
    if type(model) in DROP_IN:  # as scikit-learn's
        return getattr(model, method)(*data, **of_rows)
    with pytest.warns(DataConversionWarning, match="A column-vector y"):
        return getattr(model, method)(*data, **of_rows)


def predictions(model, X):
    """All that a model predicts, by name."""
    found = {
        "mean": model.predict(X),
        "std": model.predict_std(X),
        "both": np.stack(model.predict(X, return_std=True)),
        "interval": model.predict_interval(X, 0.8),
        "draws": model.sample_y(X, 3, random_state=0),
        "quantile": model.predict_distribution(X).ppf(0.3),
    }
    if "return_cov" in inspect.signature(model.predict).parameters:
        is_own = type(model) not in DROP_IN  # whose predict is of f
        latent = {"latent": True} if is_own else {}
        found["cov"] = model.predict(X, return_cov=True, **latent)[1]
    return found


def scores(model, X, y):
    """All that a model says of targets, by name."""
    found = {
        "density": model.log_predictive_density(X, y),
        "cdf": model.predictive_cdf(X, y),
        "R2": model.score(X, y),
    }
    return found | {type(scorer).__name__: scorer(model, X, y) for scorer in SCORERS}


def assert_same(found, wanted):
    """Bits and shapes are the same."""
    assert found.keys() == wanted.keys()
    for name, values in found.items():
        assert np.shape(values) == np.shape(wanted[name]), name
        assert_array_equal(values, wanted[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
@slow_cases("BSGD", "Minimax", "FITC", "DLM", "SolveGP", "ADMM", "Conv", "QS", "Deep", "processes")
def test_a_column_of_targets_is_one_output(make):
    rows = PIXELS if "image_shape" in make().get_params() else X
    wanted = make().fit(rows, Y)
    model = of_column(make(), rows, pd.DataFrame({"y": Y}))
    found = predictions(model, rows[:7])
    assert_same(found, predictions(wanted, rows[:7]))
    shapes = {name: values.shape for name, values in found.items() if name != "cov"}
    own = {"mean": (7,), "std": (7,), "quantile": (7,)}
    assert shapes == own | {"both": (2, 7), "interval": (7, 2), "draws": (7, 3)}
    assert found.get("cov", np.empty((7, 7))).shape == (7, 7)
    assert_same(scores(model, rows, COLUMN), scores(wanted, rows, Y))
    if hasattr(model, "held_out_"):
        assert_same(model.held_out_._asdict(), wanted.held_out_._asdict())


@pytest.mark.parametrize("make", [SPARSE, *AROUND_OTHERS.values()], ids=["sparse", *AROUND_OTHERS])
def test_two_columns_are_two_outputs(make):
    if not make().__sklearn_tags__().target_tags.multi_output:
        with pytest.raises(ValueError, match="y should be a 1d array"):
            make().fit(X, np.column_stack([Y, -Y]))
        return
    model = make().fit(X, np.column_stack([Y, -Y]))
    assert model.predict(X[:7]).shape == model.predict_std(X[:7]).shape == (7, 2)
    assert model.predict_interval(X[:7]).shape == (7, 2, 2)
    with pytest.raises(ValueError, match="y must have"):
        model.log_predictive_density(X, COLUMN)


@pytest.mark.parametrize(
    "y",
    [
        COLUMN,
        COLUMN.tolist(),
        COLUMN.astype(object),
        np.asfortranarray(np.column_stack([Y, Y]))[:, :1],
        torch.from_numpy(COLUMN),
        pd.DataFrame({"y": Y}, dtype="Float64"),
        pl.DataFrame({"y": Y}),
    ],
    ids=["array", "lists", "objects", "view", "tensor", "nullable", "polars"],
)
@slow_cases("view", "tensor", "objects")
def test_columns_of_any_kind_are_one_output(y):
    wanted = SPARSE(random_state=0).fit(X, Y)
    model = of_column(SPARSE(random_state=0), X, y)
    assert_same(predictions(model, X[:7]), predictions(wanted, X[:7]))
    assert_same(scores(model, X, y), scores(wanted, X, Y))


@pytest.mark.parametrize(
    ("params", "of_rows", "y"),
    [
        ({"solver": "natural"}, {"y_std": np.full((N, 1), 0.1)}, Y),
        ({"target_transform": "log"}, {}, np.exp(Y)),
        (
            {"likelihood": "poisson", "solver": "natural"},
            {"exposure": np.ones(N)},
            np.arange(N) % 4,
        ),
        ({"likelihood": "student_t", "solver": "natural"}, {"sample_weight": np.ones(N)}, Y),
    ],
    ids=["errors", "transform", "counts", "tails"],
)
def test_a_column_of_each_kind_of_target(params, of_rows, y):
    make = functools.partial(SPARSE, **params, random_state=0)
    model, wanted = of_column(make(), X, y[:, None], **of_rows), make().fit(X, y, **of_rows)
    assert_same(predictions(model, X[:7]), predictions(wanted, X[:7]))
    known = {name: values for name, values in of_rows.items() if name != "sample_weight"}
    density = model.log_predictive_density(X, y[:, None], **known)
    assert_array_equal(density, wanted.log_predictive_density(X, y, **known))


DROPPED_IN = {"exact": {}, "svgp": {"kernel": 1.0 * RBF() + WhiteKernel(0.1), "method": "svgp"}}
CONDITIONED = {"sparse": SPARSE, "finite": FINITE} | {
    name: functools.partial(GaussianProcessRegressor, **params)
    for name, params in DROPPED_IN.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("make", CONDITIONED.values(), ids=CONDITIONED)
def test_later_rows_may_be_columns_or_not(make):
    first, then = slice(0, 25), slice(25, N)
    names = ["condition_on"] if make is SPARSE else ["condition_on", "partial_fit"]
    begun = of_column(make(random_state=0), X[first], COLUMN[first])
    other = make(random_state=0).fit(X[first], Y[first])
    for name in names:
        cases = [(begun, Y), (begun, COLUMN), (other, COLUMN), (other, Y)]
        models = [copy.deepcopy(model) for model, _ in cases]
        found = [
            predictions(getattr(model, name)(X[then], y[then]), X[:7])
            for model, (_, y) in zip(models, cases, strict=True)
        ]
        for each in found[:3]:
            assert_same(each, found[3])
        with pytest.raises(ValueError, match="y must have"):
            getattr(models[0], name)(X[then], np.column_stack([Y, Y])[then])


def test_a_stream_of_columns_warns_once():
    model = of_column(FINITE(random_state=0), X, COLUMN, method="partial_fit")
    model.partial_fit(X, COLUMN).partial_fit(X, Y)
    assert model.predict(X).shape == (N,)


def test_stored_columns_are_one_output(tmp_path):
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y}).to_parquet(tmp_path / "rows.parquet")
    parts = functools.partial(iter, [(X, COLUMN)])
    stored = ParquetRows(tmp_path / "rows.parquet", target=["y"])
    for rows in (stored, SequenceRows(X, COLUMN), ChunkRows(parts)):
        model = SPARSE(random_state=0).fit(rows)
        new = pd.DataFrame(X, columns=["a", "b"]) if rows is stored else X
        assert model.predict(new).shape == model.predict_std(new).shape == (N,)


def test_ranks_may_have_columns_or_not():
    parts = [(slice(0, 15), Y), (slice(15, N), COLUMN)]

    def fit(group):
        rows, y = parts[group.rank]
        return SPARSE(random_state=0).fit(X[rows], y[rows])

    wanted = SPARSE(random_state=0).fit(X, Y)
    with pytest.warns(DataConversionWarning):
        models = on_ranks(fit, 2)
    for model in models:
        assert_same(predictions(model, X[:7]), predictions(wanted, X[:7]))


def test_labels_of_ranks_may_be_columns():
    labels = np.where(Y > 0.0, "up", "down")

    def fit(group):
        rows = slice(20 * group.rank, 20 * group.rank + 20)
        model = SVGPClassifier(n_inducing=5, max_iter=1, solver="natural", random_state=0)
        return model.fit(X[rows], labels[rows, None])

    with pytest.warns(DataConversionWarning):
        models = on_ranks(fit, 2)
    assert all(model.classes_.tolist() == ["down", "up"] for model in models)


def test_a_search_warns_once_and_its_last_fit_once():
    search = GridSearchCV(SPARSE(random_state=0), {"n_inducing": [3, 5]}, cv=2)
    with pytest.warns(DataConversionWarning) as told:
        search.fit(X, COLUMN)
    columns = [each for each in told if each.category is DataConversionWarning]
    assert len(columns) == 2
    assert all(each.filename == __file__ for each in columns)
    assert search.predict(X).shape == (N,)

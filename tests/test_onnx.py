"""Graphs of fitted models, run by ONNX Runtime, predict what the models do."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from families import by_default, slow_cases
from scipy.special import ndtr, stdtr
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import kernels as k
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skgpstoch
from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    BSGDGaussianProcessRegressor,
    ConstantVarianceRegressor,
    ConvolutionalGPRegressor,
    DeepGPRegressor,
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
    DLMRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    NNGPClassifier,
    NNGPRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
    StackedDensityRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.estimators.base import predictor
from skgpstoch.kernels import TiedKernel
from skgpstoch.likelihoods import Bernoulli, Poisson

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pd = pytest.importorskip("pandas")

from skgpstoch.methods.automatic.process import ExactProcessRegressor  # noqa: E402
from skgpstoch.methods.automatic.row_weights import RowWeights  # noqa: E402
from skgpstoch.methods.nngp import deep  # noqa: E402
from skgpstoch.onnx import CannotExport, export, to_onnx  # noqa: E402
from skgpstoch.onnx.graph import Graph, Value, model_of  # noqa: E402
from skgpstoch.onnx.series import normal_cdf, student_cdf  # noqa: E402
from skgpstoch.onnx.tables import arcsinh  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.usefixtures("one_kernel"),
]
CLOSE = 1e-10  # of |value| + std
QUICK = {"n_inducing": 10, "solver": "natural", "max_iter": 2}

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (60, 3))
F = np.sin(2.0 * X[:, 0]) + X[:, 1]
y = 5.0 + 3.0 * F + 0.3 * rng.standard_normal(len(X))
X_NEW = rng.uniform(-2.5, 2.5, (37, 3))
TWO, THREE = np.median(F) < F, np.digitize(F, np.quantile(F, [0.3, 0.7]))


def run(model_or_proto, X, outputs=None, **options):
    proto = model_or_proto
    if not hasattr(proto, "SerializeToString"):
        proto = to_onnx(model_or_proto, outputs, **options)
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        proto.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    given = X if isinstance(X, dict) else {"X": np.asarray(X, np.float64)}
    return dict(zip(names, session.run(None, given), strict=True))


def predicted(model, X, outputs):
    """Mean, std, and the ends of intervals of 90 %, in the shapes of a graph."""
    mean, std = (np.reshape(a, (len(X), -1)) for a in model.predict(X, return_std=True))
    found = {"mean": mean, "std": std}
    if "quantiles" in outputs:
        found["quantiles"] = model.predict_interval(X, 0.9).reshape(len(X), 2, -1).swapaxes(1, 2)
    return found


def assert_same_numbers(model, X=X_NEW, outputs=("mean", "std", "quantiles")):
    """Predictions agree to 1e-10, or as a change of X by its last digit changes the model's own."""
    levels = {"quantiles": (0.05, 0.95)} if "quantiles" in outputs else {}
    found = run(model, X, outputs, **levels)
    exact = predicted(model, X, outputs)
    moved = predicted(model, np.nextafter(X, np.inf), outputs)
    size = np.abs(exact["mean"]) + exact["std"]
    for name in outputs:
        scale = size[..., None] if name == "quantiles" else size
        rounding = np.max(np.abs(moved[name] - exact[name]) / scale)
        assert np.max(np.abs(found[name] - exact[name]) / scale) < CLOSE + 30.0 * rounding


def assert_same_classes(model, X=X_NEW):
    found = run(model, X)
    p = model.predict_proba(X)
    np.testing.assert_allclose(found["probabilities"], p, rtol=CLOSE, atol=1e-14)  # of 1 − p
    np.testing.assert_array_equal(found["label"], model.predict(X))


# ---- kernels and estimators ----------------------------------------------------------------------

KERNELS = [
    k.RBF(),
    k.RBF([1.0, 2.0, 0.5]),
    k.Matern(nu=0.5),
    k.Matern(nu=1.5),
    k.Matern(nu=2.5),
    2.0 * k.RationalQuadratic(alpha=0.5) + k.ConstantKernel(0.5),
    k.RBF() * k.ExpSineSquared(1.0, 3.0) + k.DotProduct(),
    k.RBF() ** 2 + k.DotProduct() ** 2,
    TiedKernel(k.RBF() + k.Matern(), [("k1__length_scale", "k2__length_scale")]),
]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@slow_cases(
    r"\[1, 2, 0\.5",
    r"nu=2\.5",
    "nu=[01]",
    r"RBF\(length_scale=1\) \*\*",
    r"^RBF\(length_scale=1\)$",
)
def test_kernels(kernel):
    assert_same_numbers(
        GaussianProcessRegressor(kernel + k.WhiteKernel(0.1), optimizer=None).fit(X, y)
    )
    assert_same_numbers(SVGPRegressor(kernel, n_inducing=10, max_iter=2, random_state=0).fit(X, y))


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["linear", "cosine", "polynomial", "rbf", "laplacian"])
@slow_cases("cosine", "laplacian")
@by_default("polynomial")
def test_kernels_that_are_left_to_scikit_learn(metric):
    kernel = 2.0 * k.PairwiseKernel(metric=metric, gamma=0.3) + k.RBF() ** 2 + k.WhiteKernel(0.5)
    assert_same_numbers(GaussianProcessRegressor(kernel, optimizer=None).fit(X, y))
    if metric == "polynomial":
        options = {"degree": 2, "coef0": 0.5}
        kernel = k.PairwiseKernel(0.1, metric=metric, pairwise_kernels_kwargs=options) ** 2
        assert_same_numbers(GaussianProcessRegressor(kernel, alpha=0.1, optimizer=None).fit(X, y))
    if metric == "cosine":
        assert_same_classes(GaussianProcessClassifier(kernel.k1.k1.k2, optimizer=None).fit(X, TWO))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [k.RBF(0.7), k.PairwiseKernel(metric="cosine")], ids=str)
def test_rows_in_float32(kernel):
    kernel += k.WhiteKernel(1e-4)
    rows = X.astype(np.float32)
    assert_same_numbers(GaussianProcessRegressor(kernel, optimizer=None).fit(rows, y))
    assert_same_classes(GaussianProcessClassifier(kernel.k1, optimizer=None).fit(rows, TWO))


ENDS = np.array([1e20, 3.4e38, -3.4e38, 1e160, 1e300, -1e300, 1.7e308])


@pytest.mark.parametrize(
    "model",
    [
        *[
            GaussianProcessRegressor(k.Matern(nu=nu), alpha=0.1, optimizer=None)
            for nu in (1.5, 2.5)
        ],
        GaussianProcessRegressor(k.RationalQuadratic(), alpha=0.1, optimizer=None),
        SVGPRegressor(n_inducing=10, max_iter=2, random_state=0),
        DeepKernelEnsembleRegressor(
            n_estimators=2, hidden_layer_sizes=(8,), max_iter=3, random_state=0
        ),
    ],
    ids=str,
)
@slow_cases("^Deep")
def test_rows_at_the_ends_of_floats_are_as_finite_as_predictions(model):
    far = X_NEW[: len(ENDS)].copy()
    far[:, 0] = ENDS
    mean, std = model.fit(X, y).predict(far, return_std=True)
    found = run(model, far)
    np.testing.assert_allclose(found["mean"][:, 0], mean, rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(found["std"][:, 0], std, rtol=1e-6)


def test_heavy_tails_at_the_ends_of_floats():
    graph = Graph()
    proto = model_of(
        graph, {"X": (11, 1)}, {"found": (arcsinh(Value(graph, "X")), 11, [None, 1])}, ""
    )
    np.testing.assert_allclose(run(proto, ENDS[:, None])["found"][:, 0], np.arcsinh(ENDS))


def test_white_noise_alone():
    assert_same_numbers(GaussianProcessRegressor(k.WhiteKernel(), optimizer=None).fit(X, y))


REGRESSORS = {
    "orthogonal points": SolveGPRegressor(n_inducing=10, n_orthogonal=(6, 4), max_iter=2),
    "networks": SCGDGaussianProcessRegressor(hidden_layer_sizes=(8, 8), max_iter=2),
    "tanh": SCGDGaussianProcessRegressor(hidden_layer_sizes=(8,), activation="tanh", max_iter=2),
    "Fourier features": BSGDGaussianProcessRegressor(
        k.RBF() + k.DotProduct(), hidden_layer_sizes=(), n_components=21, max_iter=2
    ),
    "a kernel of all rows, on a network": BSGDGaussianProcessRegressor(
        k.RationalQuadratic(), hidden_layer_sizes=(4,), max_iter=2
    ),
    "basis functions": QSGPRegressor(n_components=40, max_iter=2),
    "relevance vectors": QSRVMRegressor(max_iter=2),
    "log-loss": DLMRegressor(likelihood="shared_student_t", n_inducing=10, max_iter=2),
    "ensemble": DeepKernelEnsembleRegressor(n_estimators=2, hidden_layer_sizes=(8,), max_iter=3),
    "drop-in for many rows": GaussianProcessRegressor(
        k.RBF() + k.WhiteKernel(0.1), method="svgp", optimizer=None
    ),
    "normalised": GaussianProcessRegressor(k.RBF() + k.WhiteKernel(0.1), normalize_y=True),
}


@pytest.mark.parametrize("name", REGRESSORS)
@slow_cases("relevance", "normalised")
@slow_cases("^ensemble$")
def test_regressors(name):
    model = REGRESSORS[name]
    if "random_state" in model.get_params():
        model.set_params(random_state=0)
    assert_same_numbers(model.fit(X, y))


@pytest.mark.parametrize("name", ["networks", "Fourier features"])
def test_a_fit_that_a_stream_has_gone_on_from(name):
    model = clone(REGRESSORS[name]).set_params(random_state=0).fit(X, y)
    assert_same_numbers(model.partial_fit(X[:20] + 0.1, y[:20]))


ACTIVATIONS_OF = {
    "identity": (1,),
    "relu": (8, 1),
    "tanh": (8,),
    "logistic": (2, 3),
    "silu": (3, 2),
}


@pytest.mark.parametrize(("activation", "sizes"), ACTIVATIONS_OF.items())
def test_networks_before_weights(activation, sizes):
    options = {"hidden_layer_sizes": sizes, "activation": activation, "max_iter": 2}
    assert_same_numbers(SCGDGaussianProcessRegressor(random_state=0, **options).fit(X, y))


@pytest.mark.parametrize("labels", [None, TWO, THREE], ids=["numbers", "two", "three"])
@pytest.mark.parametrize("sizes", [(8, 1), (2,)])
@slow_cases("sizes0-(two|three)")
def test_networks_before_points(sizes, labels):
    options = {"hidden_layer_sizes": sizes, "n_inducing": 10, "max_iter": 2, "random_state": 0}
    if labels is None:
        assert_same_numbers(SVGPRegressor(**options).fit(X, y))
    else:
        assert_same_classes(SVGPClassifier(**options).fit(X, labels))


@pytest.mark.slow
def test_several_outputs():
    Y = np.column_stack([y, X[:, 2] - y])
    assert_same_numbers(SVGPRegressor(**QUICK).fit(X, Y))
    ensemble = DeepKernelEnsembleRegressor(
        n_estimators=2, hidden_layer_sizes=(8,), max_iter=3, random_state=0
    )
    assert_same_numbers(ensemble.fit(X, Y))


def test_quantiles_that_no_output_has_are_refused():
    model = SVGPRegressor(**QUICK).fit(X_NEW, X_NEW[:, 0])
    with pytest.raises(ValueError, match="needs 'quantiles' among the outputs"):
        to_onnx(model, quantiles=(0.05, 0.95))


@pytest.mark.slow
def test_other_likelihoods_have_moments():
    for likelihood in ("student_t", "laplace"):
        model = SVGPRegressor(likelihood=likelihood, **QUICK).fit(X, y)
        assert_same_numbers(model, outputs=("mean", "std"))
        with pytest.raises(CannotExport, match="quantiles of"):
            to_onnx(model, "quantiles")
    counts = rng.poisson(np.exp(0.5 * F)).astype(float)
    for likelihood in ("poisson", "negative_binomial"):
        model = SVGPRegressor(likelihood=likelihood, **QUICK).fit(X, counts)
        assert_same_numbers(model, outputs=("mean", "std"))


CLASSIFIERS = {
    "Laplace": GaussianProcessClassifier(optimizer=None),
    "logit": SVGPClassifier(**QUICK),
    "basis functions": QSGPClassifier(n_components=40, max_iter=2),
    "ensemble": DeepKernelEnsembleClassifier(n_estimators=2, hidden_layer_sizes=(8,), max_iter=3),
    "default": AutoGaussianProcessClassifier(),
}


@pytest.mark.parametrize("labels", [TWO, THREE], ids=["two", "three"])
@pytest.mark.parametrize("name", CLASSIFIERS)
@slow_cases("basis functions-two", "default-three", "logit-two", "ensemble-three", "Laplace-three")
def test_classifiers(name, labels):
    model = CLASSIFIERS[name].set_params(random_state=0)
    assert_same_classes(model.fit(X, labels.astype(int)))
    if name == "ensemble":  # inputs far from all rows count as nearer ones
        assert_same_classes(model, 10.0 * X_NEW)


def test_probit_and_labels():
    words = np.where(TWO, "yes", "no")
    model = SVGPClassifier(likelihood=Bernoulli("probit"), **QUICK).fit(X, words)
    assert_same_classes(model)


@pytest.mark.parametrize("variance", [1e-6, 0.3, 1.0, 30.0, 1e4])
@slow_cases(r"0\.3", "^30")
def test_certain_and_uncertain_functions_have_the_mean_of_the_logistic_function(variance):
    kernel = k.ConstantKernel(variance) * k.RBF(0.3)
    assert_same_classes(SVGPClassifier(kernel, **QUICK).fit(X, TWO))


# ---- the recommended default ---------------------------------------------------------------------


BY_ROW = RowWeights(np.array([0.6, 0.15, 0.25]), 1.5, 0.7, 5.0, 0.4)


@pytest.fixture(scope="module")
def table():
    """Numbers that are missing, heavy tails, and a gap."""
    apart = X[:, 0] + 1e3 * (np.arange(len(X)) % 2)
    given = np.column_stack([X, np.exp(4.0 * X[:, 0]), np.ones(len(X)), apart])
    given[::6, 1] = np.nan
    return given


@pytest.mark.slow
@pytest.mark.parametrize("discrete", ["auto", False])
@by_default("auto")
def test_the_default_with_its_calibration(table, discrete):
    target = np.round(y) if discrete else y
    model = AutoGaussianProcessRegressor(discrete=discrete, random_state=0).fit(table, target)
    assert (model.atoms_ is not None) == bool(discrete)
    new = table[:20] + 0.01
    new[3, 1], new[4:7, -1] = np.nan, (-1e4, 500.0, 1e300)
    assert_same_numbers(model, new)


@pytest.mark.slow
@pytest.mark.parametrize(("discrete", "by_row"), [("auto", None), (False, None), (False, BY_ROW)])
@slow_cases("False-None")
def test_means_with_weights_of_their_own(table, discrete, by_row):
    """Of two processes, which learned different targets; also with weights of each row."""
    model = AutoGaussianProcessRegressor(discrete=discrete, max_time=1, random_state=0)
    given = np.round(y) if discrete else y
    models = [clone(model).fit(table[:50], target[:50]) for target in (given, 2.0 * given + 1.0)]
    model = models[0]
    assert (model.atoms_ is not None) == bool(discrete)
    model.estimators_ = {str(j): each.estimators_["process"] for j, each in enumerate(models)}
    model.weights_, model.mean_weights_ = np.array([0.8, 0.2]), np.array([0.1, 0.9])
    model.row_weights_ = by_row
    assert_same_numbers(model, table[:20] + 0.01)


def fed(frame):
    """Columns as a graph takes them, each (n, 1): strings, numbers, days since 1970."""
    found = {}
    for name, column in frame.items():
        if column.dtype.kind == "M":
            column = (column - pd.Timestamp(0)) / pd.Timedelta(days=1)
        elif column.dtype.name == "category" and column.cat.categories.dtype.kind in "iufb":
            column = column.astype(float)
        elif column.dtype.kind not in "iufb":
            found[name] = column.astype(object).fillna("").to_numpy(object)[:, None]
            continue
        found[name] = column.to_numpy(np.float64)[:, None]
    return found


def odd_frame(n, seed):
    """Categories of all kinds, numbers, dates; nearly all with missing values."""
    rng = np.random.default_rng(seed)
    sizes = ["s", "m", "l", "xl", "never"]
    frame = pd.DataFrame(
        {
            "x": rng.uniform(-2.0, 2.0, n),
            "few": rng.choice(np.array(["a", "b", "c", None], dtype=object), n),
            "two": rng.choice(["yes", "no"], n),
            "many": rng.integers(0, 20, n).astype(str).astype(object),
            "size": pd.Categorical(rng.choice(sizes[:4], n), categories=sizes, ordered=True),
            "code": pd.Categorical(rng.choice([3, 7, 11], n)),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.uniform(0, 18, n), unit="D"),
            "add_1": rng.random(n) < 0.5,
            "same": np.ones(n),
        }
    )
    for name in ("x", "many", "size", "day"):
        frame.loc[rng.random(n) < 0.1, name] = None
    F = frame["x"].fillna(1.0) + (frame["few"] == "a") + frame["many"].fillna("3").astype(int) / 5
    return frame, np.asarray(F + 0.2 * rng.standard_normal(n))


def unseen(frame):
    """Rows some of which have levels, or missing ones, that training rows did not have."""
    frame = frame.copy()
    frame["size"] = frame["size"].where(frame.index != 1, "never")
    frame["code"] = pd.Categorical(frame["code"].astype(int).where(frame.index != 2, 12))
    frame.loc[[3, 4], "many"], frame.loc[4, "few"], frame.loc[5, "two"] = "new", "new", None
    frame.loc[[4, 6], "day"] = pd.Timestamp("2024-03-01 07:00")
    return frame


@pytest.mark.slow
@pytest.mark.parametrize("discrete", [False, "auto"])
@slow_cases("auto")
def test_tables_with_categories_and_dates(discrete):
    frame, target = odd_frame(90, 0)
    model = AutoGaussianProcessRegressor(discrete=discrete, max_time=5, random_state=0)
    model.fit(frame, np.round(target) if discrete else target)
    assert sum(model._encoder.has_days) == 1
    assert (model.atoms_ is not None) == bool(discrete)
    outputs = ("mean", "std", "quantiles")
    for new in (odd_frame(15, 1)[0], unseen(odd_frame(15, 1)[0])):
        found = run(model, fed(new), outputs, quantiles=(0.05, 0.95))
        exact = predicted(model, new, outputs)
        for name in outputs:
            np.testing.assert_allclose(found[name], exact[name], rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("n_missing", [1, 2, 90])
def test_numbers_that_few_rows_lack(n_missing):
    """Others stand in for them, beside known levels and new ones."""
    frame, target = odd_frame(90, 0)
    frame["x"] = frame["x"].fillna(1.0).where(np.arange(90) >= n_missing % 90)
    model = AutoGaussianProcessRegressor(max_time=2, discrete=False, random_state=0)
    model.fit(frame, target)
    assert any(getattr(e, "stand_ins", None) is not None for e in model._encoder.encoders) == (
        n_missing < 90
    )
    new, outputs = unseen(odd_frame(15, 1)[0]), ("mean", "std", "quantiles")
    new.loc[[0, 2, 5], "x"] = np.nan
    found = run(model, fed(new), outputs, quantiles=(0.05, 0.95))
    exact = predicted(model, new, outputs)
    for name in outputs:
        np.testing.assert_allclose(found[name], exact[name], rtol=1e-7)


@pytest.mark.slow
def test_counts_at_new_levels():
    """Parts of mixtures over known levels were widened, as those of numbers are."""
    frame, target = odd_frame(90, 0)
    counts = np.random.default_rng(0).poisson(np.exp(0.5 * target))
    model = AutoGaussianProcessRegressor(target="count", max_time=1, random_state=0)
    model.fit(frame, counts)
    new = unseen(odd_frame(15, 1)[0])
    found, exact = run(model, fed(new)), predicted(model, new, ())
    for name in ("mean", "std"):
        np.testing.assert_allclose(found[name], exact[name], rtol=1e-7)


@pytest.mark.slow
def test_new_levels_where_the_prediction_is_not_the_mean_of_the_density():
    """Deviations of copies are about their own predictions."""
    level = np.arange(60) % 3
    frame, target = pd.DataFrame({"a": X[:60, 0], "g": list("abc" * 20)}), y[:60] + level
    model, other = (
        AutoGaussianProcessRegressor(max_time=2, discrete=False, random_state=0).fit(frame, t)
        for t in (target, 3.0 * target[::-1])
    )
    model.estimators_ = {"one": model.estimators_["process"], "two": other.estimators_["process"]}
    model.weights_, model.mean_weights_ = np.array([0.4, 0.6]), np.array([1.0, 0.0])
    new = frame.assign(g="d")
    with pytest.warns(UserWarning, match="has levels that the training rows did not have"):
        exact = predicted(model, new, ("mean", "std"))
    found = run(model, fed(new), ("mean", "std"))
    law = model.predict_distribution(new)
    np.testing.assert_allclose(found["mean"], exact["mean"], rtol=1e-7)
    np.testing.assert_allclose(found["std"], exact["std"], rtol=1e-7)
    draws = law.sample(20_000, random_state=0)
    size = np.sqrt(np.square(draws - exact["mean"].ravel()[:, None]).mean(1))
    np.testing.assert_allclose(exact["std"].ravel(), size, rtol=0.03)


@pytest.mark.slow
def test_labels_of_tables_with_categories_and_dates():
    frame, target = odd_frame(90, 0)
    model = AutoGaussianProcessClassifier(max_time=5, random_state=0)
    model.fit(frame, np.where(target > np.median(target), "high", "low"))
    new = unseen(odd_frame(15, 1)[0])
    found = run(model, fed(new))
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(new), rtol=1e-7)
    np.testing.assert_array_equal(found["label"], model.predict(new))


@pytest.mark.slow
def test_flags_of_missing_values_may_be_an_array():
    rows = np.column_stack([X[:20, 0], np.where(X[:20, 1:] > 0.0, 0.5, 0.0)])
    model = ExactProcessRegressor(kernels=["linear"], missing_columns=np.array([1, 2]))
    assert_same_numbers(model.set_params(random_state=0).fit(rows, y[:20]), rows)
    model.set_params(random_state=19).fit(rows, y[:20])  # where a flag below 0 gave no std
    found = run(model, [[0.0, -1.0, 2.0]], ("std",))["std"]
    assert np.isfinite(found).all()


@pytest.mark.slow
def test_columns_that_no_input_can_hold_are_named():
    frame, target = odd_frame(60, 0)
    frame.loc[:20, "few"] = ""
    model = AutoGaussianProcessRegressor(max_time=2, random_state=0).fit(frame[["few"]], target)
    with pytest.raises(CannotExport, match="'few', which has missing values and empty strings"):
        to_onnx(model)
    frame = frame[["two"]].rename(columns={"two": "mean"})
    model = AutoGaussianProcessRegressor(max_time=2, random_state=0).fit(frame, target)
    with pytest.raises(CannotExport, match="a column called 'mean', as an output is"):
        to_onnx(model)
    model.n_features_in_ = 10**9  # as a file may say; its names would take gigabytes
    to_onnx(model, "std")
    model.fit(frame.rename(columns={"mean": ""}), target)
    with pytest.raises(CannotExport, match="a column without a name"):
        to_onnx(model)


@pytest.mark.slow
def test_stacks():
    parts = [
        ("sparse", SVGPRegressor(**QUICK)),
        ("exact", GaussianProcessRegressor(k.RBF() + k.WhiteKernel(0.1), optimizer=None)),
    ]
    assert_same_numbers(StackedDensityRegressor(parts).fit(X, y))


# ---- what a graph is -----------------------------------------------------------------------------


@pytest.mark.slow
def test_any_number_of_rows():
    model = DeepKernelEnsembleRegressor(
        n_estimators=2, hidden_layer_sizes=(8,), max_iter=3, random_state=0
    ).fit(X, y)
    many = rng.uniform(-2.5, 2.5, (5_000, 3))  # more than a block of predictions
    assert_same_numbers(model, many)
    assert_same_numbers(model, many[:1])


def test_the_file_is_of_standard_operators(tmp_path):
    import onnx

    model = SVGPRegressor(**QUICK).fit(X, y)
    export(model, tmp_path / "model.onnx", outputs=["std", "mean"])
    proto = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert {node.domain for node in proto.graph.node} == {""}
    assert [output.name for output in proto.graph.output] == ["std", "mean"]
    assert list(run(proto, X_NEW)) == ["std", "mean"]


@pytest.mark.parametrize(
    ("outputs", "quantiles", "message"),
    [
        ("median", (0.5,), "outputs must be one or more distinct names"),
        (["mean", "mean"], (0.5,), "outputs must be one or more distinct names"),
        ([], (0.5,), "outputs must be one or more distinct names"),
        ("quantiles", (0.0, 0.5), r"probabilities between 0 and 1, got \(0.0, 0.5\)"),
        ("quantiles", (math.nan,), r"probabilities between 0 and 1, got \(nan,\)"),
        ("quantiles", (), r"probabilities between 0 and 1, got \(\)"),
        ("quantiles", 0.5, "probabilities between 0 and 1, got 0.5"),
    ],
)
def test_bad_requests(outputs, quantiles, message):
    model = GaussianProcessRegressor(optimizer=None).fit(X, y)
    with pytest.raises(ValueError, match=message):
        to_onnx(model, outputs, quantiles)


def test_models_that_are_not_fitted():
    for model in (SVGPRegressor(), GaussianProcessRegressor()):
        with pytest.raises(NotFittedError):
            to_onnx(model)


def test_pipelines_are_for_skl2onnx():
    pipeline = make_pipeline(StandardScaler(), GaussianProcessRegressor(optimizer=None)).fit(X, y)
    with pytest.raises(CannotExport, match=r"support Pipeline. Call .*register_converters"):
        to_onnx(pipeline)


@pytest.mark.slow
def test_parts_without_a_graph_are_named():
    few = {"max_iter": 1, "random_state": 0, "solver": "natural"}
    images = rng.standard_normal((20, 16))
    chi2 = GaussianProcessRegressor(k.PairwiseKernel(metric="chi2"), alpha=0.1, optimizer=None)
    cases = {
        r"PairwiseKernel\(gamma=1.0, metric=chi2\)": chi2.fit(np.abs(X), y),
        "DeepFeatures": DeepGPRegressor(n_inducing=5, **few).fit(X, y),
        "PatchCovariances": ConvolutionalGPRegressor(
            image_shape=(4, 4), patch_shape=(2, 2), n_inducing=5, **few
        ).fit(images, images[:, 0]),
        "robustmax": SVGPClassifier(likelihood="robustmax", n_inducing=5, **few).fit(X, THREE),
        "softplus": SVGPRegressor(likelihood=Poisson("softplus"), n_inducing=5, **few).fit(
            X, np.round(np.abs(y))
        ),
        "ConstantVarianceRegressor": ConstantVarianceRegressor(
            GaussianProcessRegressor(optimizer=None)
        ).fit(X, y),
    }
    for name, model in cases.items():
        with pytest.raises(CannotExport, match=name):
            to_onnx(model)


# ---- nearest neighbours --------------------------------------------------------------------------

NEAR = {
    "kernel": 1.0 * k.Matern(nu=1.5),  # the default is searched for, in two seconds
    "n_neighbors": 10,
    "n_neighbors_predict": 20,
    "max_iter": 2,
    "random_state": 0,
}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [None, *KERNELS], ids=str)
@slow_cases(r"\[1, 2, 0\.5", r"nu=2\.5", "nu=[01]")
def test_nearest_neighbours(kernel):
    kernel = None if kernel is None else kernel + k.WhiteKernel(0.1)
    assert_same_numbers(NNGPRegressor(**{**NEAR, "kernel": kernel}).fit(X, y))


@pytest.mark.slow
def test_a_trend_goes_on_far_from_all_neighbours():
    model = NNGPRegressor(**{**NEAR, "kernel": k.DotProduct() + k.RBF()}).fit(X, y)
    assert_same_numbers(model, 10.0 ** np.array([[3.0], [6.0], [9.0]]) * X_NEW[:3])


@pytest.mark.slow
def test_nearest_neighbours_of_far_rows():
    """Rounding hid the distances between neighbours, and graphs said NaN."""
    far = 10.0 ** np.arange(1, 41)
    model = NNGPRegressor(**NEAR).fit(X, y)
    for rows in (np.outer(far, np.ones(X.shape[1])), np.outer(far, np.eye(X.shape[1])[0])):
        assert_same_numbers(model, rows)


@pytest.mark.filterwarnings("ignore:Outliers in X")
@pytest.mark.parametrize("far", [1e12, 1e30])
def test_nearest_neighbours_beside_a_far_training_row(far):
    """It moved the centre, from which rounding hid the distances between all others."""
    rows = np.array(X)
    rows[0, 0] = far
    assert_same_numbers(NNGPRegressor(**NEAR).fit(rows, y))


@pytest.mark.slow
@pytest.mark.parametrize("labels", [TWO, THREE], ids=["two", "three"])
@by_default("three")
def test_classes_by_nearest_neighbours(labels):
    assert_same_classes(NNGPClassifier(**NEAR).fit(X, labels))


@pytest.mark.slow
def test_nearest_neighbours_of_several_outputs_in_a_network(monkeypatch):
    monkeypatch.setattr(deep, "MEAN_STEPS", 20)
    model = NNGPRegressor(hidden_layer_sizes=(4,), **NEAR).fit(X, np.column_stack([y, y**2]))
    assert_same_numbers(model)


@pytest.mark.slow
def test_nearest_neighbours_with_errors_nearby():
    rng = np.random.default_rng(0)
    rows = rng.uniform(-2, 2, (250, 2))
    rows[:30] = rows[0]  # which are one place
    noise = np.where(rows[:, 0] > 0, 0.5, 0.05) * rng.standard_normal(250)
    model = NNGPRegressor(**NEAR).fit(rows, np.sin(3 * rows[:, 0]) + noise)
    assert model.posterior_.spread.nearby is not None
    assert_same_numbers(model, rng.uniform(-3, 3, (20, 2)))


def test_a_graph_holds_only_so_many_rows(monkeypatch):
    monkeypatch.setattr("skgpstoch.onnx.neighbours.MOST_IN_GRAPH", 100)
    with pytest.raises(CannotExport, match=r"among 50 rows.*contains the training rows"):
        to_onnx(NNGPRegressor(**NEAR).fit(X[:50], y[:50]))


# ---- functions that ONNX Runtime has not in float64 ----------------------------------------------


@pytest.mark.parametrize("df", [None, 2.05, 3.0, 8.5, 60.0, 400.0])
def test_distribution_functions_are_right_in_the_tails(df):
    z = np.concatenate([np.linspace(-30.0, 30.0, 4001), [-1e9, 1e9, -1e-9, 0.0]])
    exact = ndtr(z) if df is None else stdtr(df, z)
    graph = Graph()
    given = Value(graph, "X")
    cdf = normal_cdf(given) if df is None else student_cdf(df, given)
    found = run(model_of(graph, {"X": (11, 1)}, {"cdf": (cdf, 11, [None, 1])}, ""), z[:, None])[
        "cdf"
    ]
    counts = exact > 1e-300
    np.testing.assert_allclose(found[counts, 0], exact[counts], rtol=3e-12)


def test_every_public_estimator_is_exported_or_refused():
    """A new estimator must be thought of here."""
    from skgpstoch.onnx.estimators import class_probabilities, distribution

    known = {*distribution.registry, *class_probabilities.registry}
    for name in skgpstoch.__all__:
        estimator = getattr(skgpstoch, name)
        if isinstance(estimator, type) and hasattr(estimator, "predict"):
            has_graph = any(base in known for base in estimator.__mro__[:-1])
            assert has_graph or name == "ConstantVarianceRegressor", name


@pytest.fixture(scope="module")
def orthogonal():
    return SolveGPRegressor(n_inducing=5, n_orthogonal=5, max_iter=1, random_state=0).fit(X, y)


@pytest.mark.parametrize("far", [1e20, 1e100])
def test_points_far_away_are_as_in_predictions(far, orthogonal):
    """As in edited files: distances of all points to rows are rounded alike."""
    model = copy.deepcopy(orthogonal)
    model.posterior_.model.features.frozen_1.fill_(far)
    assert_same_numbers(model, outputs=("mean", "std"))


def test_graphs_read_the_lower_half_of_factors():
    """As predictions do, whatever an edited file has above."""
    model = GaussianProcessRegressor(k.RBF(), alpha=0.1, optimizer=None).fit(X, y)
    model.L_ = model.L_ + np.triu(np.ones_like(model.L_), 1)
    assert_same_numbers(model)


def test_a_point_far_away_has_the_centre_of_predictions():
    """Or other distances of all rows to all points, as the centre's last digit is 2."""
    model = QSGPRegressor(basis="inducing", n_components=20, n_subset=20, max_iter=1)
    model.set_params(random_state=0).fit(X, y)
    model.posterior_.model.basis.points[0] = 1e16
    std = model.predict_std(X_NEW)
    np.testing.assert_allclose(run(model, X_NEW)["std"][:, 0], std, rtol=1e-8)


def test_graphs_are_not_silently_infinite(orthogonal):
    model = copy.deepcopy(orthogonal)
    model.posterior_.weights.root_0.data.fill_(1e160)
    with pytest.raises(ValueError, match="SolveGPRegressor predicts inf for"):
        to_onnx(model)


@pytest.mark.slow
def test_graphs_take_the_same_neighbours_where_errors_differ():
    error = np.where(np.arange(len(X)) % 9, 40.0, 0.05)
    few = {"n_neighbors": 6, "n_neighbors_predict": 6, "random_state": 0}
    model = skgpstoch.NNGPRegressor(1.0 * k.RBF(1.0, (0.5, 2.0)), **few).fit(X, y, y_std=error)
    assert predictor(model)[1].nearest.has_lag
    assert_same_numbers(model)


@pytest.mark.slow
@pytest.mark.parametrize("other", [3.0, np.nan], ids=["constant", "missing"])
def test_graphs_of_columns_that_the_default_leaves_out(other):
    """Its members saw fewer columns than its graph, whose check raised an IndexError."""
    given = np.column_stack([np.full(len(X), other), X])
    model = AutoGaussianProcessRegressor(max_time=0.1, random_state=0).fit(given, y)
    assert_same_numbers(model, given[:9])


def test_graphs_of_the_default_are_not_silently_infinite():
    model = AutoGaussianProcessRegressor(max_time=0.1, random_state=0).fit(X, y)
    (((process, *_), *_),) = model.estimators_["process"]._processes
    process.theta.signal.fill_(1e160)
    with pytest.raises(ValueError, match="AutoGaussianProcessRegressor predicts inf for"):
        to_onnx(model)


def test_graphs_are_valid_or_refused(tmp_path):
    """ONNX Runtime would refuse it, where the model is served."""
    X = np.linspace(0.0, 1.0, 30)[:, None]
    model = skgpstoch.QSGPClassifier(n_components=6, max_iter=1, random_state=0).fit(
        X, X[:, 0] > 0.5
    )
    weights = model.posterior_.model
    columns, std = weights.flat.detach(), weights.std.detach()
    weights.flat, weights.std = (torch.nn.Parameter(a.repeat(2, 1)) for a in (columns, std))
    with pytest.raises(ValueError, match="QSGPClassifier has no valid graph"):
        to_onnx(model)
    weights.flat, weights.std = (torch.nn.Parameter(a) for a in (columns.repeat(1, 9), std))
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="6 components have 62 columns"):
        to_onnx(skgpstoch.load(tmp_path / "model"))
    weights.flat = torch.nn.Parameter(columns[None])
    with pytest.raises(
        ValueError, match=r"ChevronModel.flat has the shape \(1, 6, 7\), not \(m, c\)"
    ):
        model.save(tmp_path / "model")


@pytest.mark.slow
def test_labels_that_no_graph_holds():
    labels = np.where(np.arange(60) % 2, 2**63 + 5, 7).astype(np.uint64)
    model = SVGPClassifier(n_inducing=5, max_iter=1, random_state=0).fit(X[:60], labels)
    with pytest.raises(CannotExport, match="the class 9223372036854775813"):
        to_onnx(model, ("label",))


def test_an_export_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    X = np.linspace(-3, 3, 30)[:, None]
    model = SVGPRegressor(n_inducing=5, max_iter=2, random_state=0).fit(X, np.sin(X[:, 0]))
    path = tmp_path / "model.onnx"
    path.write_text("before")

    def full(self, data):
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        skgpstoch.onnx.export(model, path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(TypeError, match="path must be a str"):
        skgpstoch.onnx.export(model, 3)


@pytest.mark.parametrize("reach", [0.2, 1.5])
def test_outliers_of_graphs_have_a_reach(reach):
    few = {"n_estimators": 2, "hidden_layer_sizes": (8,), "max_iter": 3, "random_state": 0}
    model = DeepKernelEnsembleRegressor(likelihood="shared_student_t", **few).fit(X, y)
    for part in (model.posterior_, *model.posterior_.parts):
        part.likelihood.outliers, part.likelihood.reach = (0.2, 6.0), None
    wider = model.predict(X_NEW, return_std=True)[1]
    for part in (model.posterior_, *model.posterior_.parts):
        part.likelihood.reach = (reach,)
    assert np.all(model.predict(X_NEW, return_std=True)[1] < wider)
    assert_same_numbers(model)

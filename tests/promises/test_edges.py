"""Edges of what users may give: numbers that overflow, arrays of every kind, calls out of order."""

import copy
import pickle
import warnings

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from conftest import (
    ESTIMATORS,
    IMAGES,
    INDUCING,
    QUICK_FINITE,
    constructor,
    few_rows,
    fitted_once,
)
from families import by_family, slow_cases
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.ensemble import AdaBoostClassifier
from sklearn.gaussian_process.kernels import (
    RBF,
    DotProduct,
    ExpSineSquared,
    RationalQuadratic,
    WhiteKernel,
)
from sklearn.linear_model import Ridge
from sklearn.utils.validation import has_fit_parameter

from skgpstoch import (
    ADMMGaussianProcessRegressor,
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    BSGDGaussianProcessRegressor,
    ConstantVarianceRegressor,
    ConvolutionalGPRegressor,
    DLMRegressor,
    FITCRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    NNGPRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.data import ParquetRows, arguments
from skgpstoch.data.rows import Data
from skgpstoch.estimators.base import representations
from skgpstoch.estimators.validation import validate_inputs
from skgpstoch.likelihoods import Poisson, StudentT
from skgpstoch.maths.gaussian import Marginals
from skgpstoch.training.checkpoint import checkpoint_of

pytestmark = pytest.mark.usefixtures("one_kernel")

# ---- numbers that overflow ---------------------------------------------------------------------


def poisson(**params):
    params = {"likelihood": "poisson", "random_state": 0, "max_iter": 5, **params}
    return SVGPRegressor(inducing_points="random", **params)


def predictions(model, X, y):
    """All that a regressor says of rows."""
    yield from model.predict(X, return_std=True)
    yield from model.predict(X, return_std=True, latent=True)
    yield model.predict_interval(X)
    yield model.sample_y(X, 2)
    yield model.log_predictive_density(X, y)


@pytest.mark.parametrize("counts", [(0, 1e3), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("solver", ["natural", "adam"])
@pytest.mark.filterwarnings("error:.*beyond float64", "ignore:No event was counted")
def test_degenerate_counts_have_finite_predictions(counts, solver):
    X = np.random.default_rng(2).standard_normal((len(counts), 3))
    with pytest.warns(UserWarning, match=f"{len(counts)} rows are too few to learn a kernel"):
        model = poisson(solver=solver).fit(X, counts)
    far, y = np.concatenate([X, 3.0 * X, 1e3 * X]), np.tile(counts, 3)
    assert all(np.isfinite(a).all() for a in predictions(model, far, y))


@pytest.mark.slow
def test_the_default_kernel_of_rates_has_no_absurd_variance(few_iterations):
    """One count among zeros is most likely with any variance: E[rate] was 10⁶³, and more."""
    X = np.random.default_rng(2).standard_normal((20, 1))
    model = poisson(solver="lbfgs", max_iter=1).fit(X, [1e6, *[0] * 19])
    assert model.predict(1e3 * X).max() < 1e6 * np.exp(50.0)


@few_rows
def test_rates_beyond_float64_are_cut_with_a_warning():
    X = np.linspace(-1.0, 1.0, 10)[:, None]
    y = np.round(np.exp(3.0 * X[:, 0]))
    model = poisson(kernel=DotProduct()).fit(X, y)
    with pytest.warns(RuntimeWarning, match=r"overflows float64 at 2 rows.*predict_interval"):
        mean, std = model.predict([[-1e4], [0.0], [1e4]], return_std=True)
    assert np.isfinite([mean, std]).all()
    assert mean[1] < 10.0
    draws, interval = (f([[1e4]]) for f in (model.sample_y, model.predict_interval))
    assert (draws >= 0.0).all()  # not an integer that has overflowed
    assert np.isfinite(interval).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_of_counts_are_finite_however_uncertain(dtype):
    mean, var = (
        torch.tensor(a, dtype=dtype)[None, :, None]
        for a in ([-1e5, 0.0, 1e3, 2.0, 2.0], [1e3, 1e5, 1e3, 0.0, 0.5])
    )
    moments = Poisson().moments(Marginals(mean, var))
    assert all(a.isfinite().all() and (a >= 0.0).all() for a in moments)
    rate = np.exp(2.25)  # of the last, a lognormal
    known = [rate, rate + rate**2 * np.expm1(0.5)]
    assert np.allclose([float(a[0, -1, 0]) for a in moments], known, rtol=1e-5)
    draws = Poisson().sample(mean[0], torch.Generator().manual_seed(0))
    assert (draws >= 0.0).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"y": 1e16}, "counts of at most 1e.15.*larger unit"),
        ({"exposure": 1e40}, "exposure must be between 1e-30 and 1e.30.*Rescale them"),
        ({"exposure": 1e-40}, "exposure must be between 1e-30 and 1e.30.*Rescale them"),
    ],
    ids=str,
)
def test_counts_and_exposures_beyond_their_types_are_refused(given, words):
    X, y = np.eye(4), np.full(4, given.get("y", 1.0))
    with pytest.raises(ValueError, match=words):
        poisson().fit(X, y, exposure=given.get("exposure"))


@pytest.mark.parametrize("y", [[-1.7e308, 1.7e308], [1.7e308, 1.7e308], [0.0, -1e302]], ids=str)
def test_targets_whose_sums_overflow_are_refused(y, tmp_path):
    """Not with bare warnings of NumPy, nor predictions of inf."""
    X, y = np.eye(4), np.array(2 * y)
    words = r"y must be at most 1e\+301 in size, got 1(.7)?e\+30\d. Measure y in a larger unit"
    for model in (
        AutoGaussianProcessRegressor(),
        DLMRegressor(),
        GaussianProcessRegressor(normalize_y=True),
        ConstantVarianceRegressor(Ridge()),
    ):
        with pytest.raises(ValueError, match=words):
            model.fit(X, y)
    pd.DataFrame(X).assign(y=y).rename(columns=str).to_parquet(tmp_path / "rows.parquet")
    for model in (AutoGaussianProcessRegressor(), DLMRegressor()):
        with pytest.raises(ValueError, match=words):
            model.fit(ParquetRows(tmp_path / "rows.parquet", target="y"))


# ---- arrays of every kind ----------------------------------------------------------------------


def with_grad(a):
    return torch.tensor(np.array(a)).requires_grad_()


def strided(a):
    every_second = (slice(None, None, 2),) * a.ndim
    wide = np.zeros([2 * n for n in a.shape], a.dtype)
    wide[every_second] = a
    return wide[every_second]


def frame(a, dtype):
    return (pd.DataFrame(a) if a.ndim == 2 else pd.Series(a)).astype(dtype)


def polars_frame(a):
    return pl.DataFrame(a, [f"c{i}" for i in range(a.shape[1])]) if a.ndim == 2 else pl.Series(a)


FORMS = {
    "Fortran": np.asfortranarray,
    "strided": strided,
    "object": lambda a: a.astype(np.float32).astype(object),
    "big-endian": lambda a: a.astype(">f8"),
    "Float64": lambda a: frame(a, "Float64"),
    "polars": polars_frame,
    "tensor": lambda a: torch.tensor(np.array(a)),
    "tensor with grad": with_grad,
    "bfloat16": lambda a: torch.tensor(np.array(a)).bfloat16().requires_grad_(),
}
WHOLE = {
    "Int64": lambda a: frame(a, "Int64"),
    "boolean": lambda a: frame(a.astype(bool), "boolean"),
    "bool": lambda a: a.astype(bool),
    "int8 tensor": lambda a: torch.tensor(np.array(a)).to(torch.int8),
    "polars bool": lambda a: polars_frame(a.astype(bool)),
}
RNG = np.random.default_rng(0)
EIGHTHS = np.round(8.0 * RNG.standard_normal((24, 3))) / 8.0  # exact in bfloat16
ZEROS_AND_ONES = (EIGHTHS > 0.0).astype(float)


def whatever_is_given(model, form, X, *of_rows, **known):
    """What a fit, and another pass, to these numbers in this form predict of them."""
    X, y, *weight = map(form, (X, *of_rows))
    known = {name: form(a) for name, a in known.items()}
    model.fit(X, y, *weight, **known).partial_fit(X, y, sample_weight=(weight or [None])[0])
    if is_classifier(model):
        return model.predict_proba(X), model.predict_log_proba(X), model.score(X, y, *weight)
    return (
        *model.predict(X, return_std=True, **known),
        model.predict_interval(X, **known),
        model.log_predictive_density(X, y, **known),
        model.log_marginal_likelihood(X, y, *weight, **known),
        model.score(X, y, *weight),
    )


def kinds(X):
    """Estimators, and numbers for them: all of eighths, or all of zeros and ones."""
    ones = ZEROS_AND_ONES[:, 0]
    quick = {"max_iter": 2, "random_state": 0}
    sparse = {**quick, "solver": "natural", "inducing_points": "random", "n_inducing": 5}
    finite = SCGDGaussianProcessRegressor(hidden_layer_sizes=4, **quick)
    return {
        "finite": (finite, (X, X[:, :2], np.ones(24)), {}),
        "sparse": (SVGPRegressor(**sparse), (X, X[:, 1:]), {"y_std": np.abs(X[::-1, 1:])}),
        "classes": (SVGPClassifier(**sparse), (X, ones, ones[::-1]), {}),
    }


_expected = {}


def check_form(form, model, columns, known):
    key = joblib.hash((model, columns, known))
    if key not in _expected:  # once for all forms
        _expected[key] = whatever_is_given(clone(model), np.array, *columns, **known)
    expected = _expected[key]
    given = whatever_is_given(clone(model), form, *columns, **known)
    assert all(np.array_equal(a, b) for a, b in zip(expected, given, strict=True))


@few_rows  # of one kind of label
@pytest.mark.parametrize("kind", kinds(EIGHTHS))
@pytest.mark.parametrize("name", FORMS)
@slow_cases(
    "(strided|object|big-endian|Float64|polars|tensor|bfloat16).*-(sparse|classes)",
    "strided",
    "object",
    "big-endian",
)
def test_the_same_numbers_are_the_same_model(kind, name):
    if (kind, name) == ("classes", "object"):
        pytest.skip("scikit-learn refuses labels that are objects")
    check_form(FORMS[name], *kinds(EIGHTHS)[kind])


@few_rows
@pytest.mark.parametrize("kind", kinds(EIGHTHS))
@pytest.mark.parametrize("name", WHOLE)
@slow_cases("(boolean|bool|int8 tensor)-(sparse|classes)", "int8 tensor", "Int64-(sparse|finite)")
def test_zeros_and_ones_may_be_of_any_type(kind, name):
    check_form(WHOLE[name], *kinds(ZEROS_AND_ONES)[kind])


@pytest.mark.usefixtures("few_iterations")
@pytest.mark.parametrize("name", FORMS)
def test_points_may_be_of_any_type(name):
    X, y, points = EIGHTHS, ZEROS_AND_ONES[:, 0], EIGHTHS[:5]
    make = SolveGPRegressor(max_iter=1, random_state=0)
    plain = clone(make).set_params(inducing_points=points, orthogonal_points=-points)
    form = FORMS[name]
    given = clone(make).set_params(inducing_points=form(points), orthogonal_points=form(-points))
    assert np.array_equal(fitted_once(plain, X, y).predict(X), given.fit(X, y).predict(X))


def test_exposures_and_weights_may_be_tensors_with_a_graph():
    X, y, e = EIGHTHS, np.round(np.abs(8.0 * EIGHTHS[:, 0])), np.arange(1.0, 25.0)
    make = poisson(solver="natural", n_inducing=5, max_iter=2)
    plain = clone(make).fit(X, y, e, exposure=e)
    given = clone(make).fit(*map(with_grad, (X, y, e)), exposure=with_grad(e) * 1.0)
    assert np.array_equal(plain.predict(X), given.predict(with_grad(X) * 1.0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_memory_maps_are_not_copied(tmp_path, dtype):
    X = np.memmap(tmp_path / "X", dtype, "w+", shape=(100, 3))
    X[:] = np.random.default_rng(0).standard_normal(X.shape)
    model = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0)
    assert np.shares_memory(validate_inputs(model, X), X)
    assert np.shares_memory(model._validate(X, X[:, 0], True).X, X)
    assert np.shares_memory(model._validate(X, X[:, 0], True, np.ones(100)).X, X)


# ---- messages ----------------------------------------------------------------------------------

COUNTS = np.abs(np.round(4.0 * EIGHTHS[:, 0]))
QUICK = {"max_iter": 2, "random_state": 0}


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (np.full(24, 1e-320), "sample_weight must be 0 or between 1e-30 and 1e.30"),
        (np.full(24, 1e308), "sample_weight must be 0 or between 1e-30 and 1e.30"),
        (["a"] * 24, "sample_weight must be numeric"),
        (np.ones(24) + 1j, "sample_weight must be numeric"),
        (np.full(24, np.nan), "sample_weight contains NaN"),
        (-np.ones(24), "Negative values.*sample_weight"),
        (np.ones(5), r"sample_weight.*\(5,\), expected \(24,\)"),
        (np.ones((24, 2)), "Sample weights must be 1D"),
        (True, "sample_weight must be a number, or one for each row, got True"),
    ],
    ids=["tiny", "huge", "text", "complex", "nan", "negative", "short", "matrix", "boolean"],
)
@pytest.mark.parametrize("cls", [SCGDGaussianProcessRegressor, SVGPRegressor, SVGPClassifier])
def test_weights_that_cannot_be_are_named(cls, method, weight, words):
    with pytest.raises(ValueError, match=words):
        getattr(cls(**QUICK), method)(EIGHTHS, ZEROS_AND_ONES[:, 0], sample_weight=weight)


@pytest.mark.parametrize("name", ["y_std", "exposure"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ones(24) + 1j, "must be numeric"),
        (["a"] * 1000, "must be numeric, got .{,100}$"),
        (np.ones(5), r"must have.*got \(5,\)"),
        (-1.0, "must be (positive|finite)"),
        (np.nan, "must be (positive|finite)"),
        (np.inf, "must be (positive|finite)"),
        (1e40, "must be (at most 1e.15 times|between 1e-30 and 1e.30)"),
        (True, "must be a number, or one for each row, got True"),
        (np.True_, "must be a number, or one for each row, got .*True"),
        (np.array(True), r"must be a number, or one for each row, got array\(True\)"),
    ],
    ids=[
        "complex",
        "text",
        "short",
        "negative",
        "nan",
        "inf",
        "huge",
        "boolean",
        "numpy's",
        "array",
    ],
)
def test_what_rows_cannot_have_is_named(name, value, words):
    model = SVGPRegressor(solver="natural", **QUICK)
    if name == "exposure":
        model.set_params(likelihood="poisson")
    model = fitted_once(model, EIGHTHS, COUNTS)
    for call in (model.fit, model.partial_fit, model.log_predictive_density):
        with pytest.raises(ValueError, match=f"{name} {words}"):
            call(EIGHTHS, COUNTS, **{name: value})
    with pytest.raises(ValueError, match=f"{name} {words}"):
        model.predict(EIGHTHS, **{name: value})


@pytest.mark.parametrize("n_samples", [True, np.True_, 0, 1.0])
def test_numbers_of_draws_are_positive_integers(n_samples):
    model = fitted_once(SVGPRegressor(**QUICK), EIGHTHS, COUNTS)
    with pytest.raises(ValueError, match=f"n_samples must be an integer.*{n_samples}"):
        model.sample_y(EIGHTHS, n_samples)


def test_draws_that_no_memory_can_hold_are_refused(monkeypatch):
    """Before any is drawn: 10⁹ draws at eight rows take 64 GB."""
    monkeypatch.setattr(arguments, "host_memory", lambda: 32e9)
    models = (
        fitted_once(SVGPRegressor(**QUICK), EIGHTHS, COUNTS),
        AutoGaussianProcessRegressor(random_state=0).fit(EIGHTHS, EIGHTHS[:, 0]),
        GaussianProcessRegressor(),
    )
    words = r"n_samples must be .* memory, got 1000000000: 8 .* 64 GB, .* half of the 32 GB"
    for model in models:
        for draw in (model.sample_y, lambda X, n, m=model: m.predict_distribution(X).sample(n)):
            with pytest.raises(ValueError, match=words):
                draw(EIGHTHS[:8], 10**9)


@pytest.mark.parametrize("cls", [SCGDGaussianProcessRegressor, BSGDGaussianProcessRegressor])
@pytest.mark.parametrize("name", ["exposure", "y_std"])
def test_the_evidence_of_finite_features_ignores_nothing(cls, name):
    kernel = RationalQuadratic() if cls is BSGDGaussianProcessRegressor else None
    model = cls(kernel, hidden_layer_sizes=(), **QUICK).fit(EIGHTHS, COUNTS)
    with pytest.raises(ValueError, match=f"{name} must be None"):
        model.log_marginal_likelihood(EIGHTHS, COUNTS, **{name: 1.0})


WHEN = pd.date_range("2020-01-01", periods=20)
ODD_FRAMES = {
    "an object column of timestamps": pd.DataFrame({"at": WHEN.astype(object)}),
    "periods": pd.DataFrame({"at": WHEN.to_period("D")}),
    "periods as objects": pd.DataFrame({"at": WHEN.to_period("D").astype(object)}),
    "two of one name": pd.DataFrame(np.ones((20, 2)), columns=["at", "at"]),
    "a plan": pl.LazyFrame({"at": np.ones(20)}),
    "levels": pd.DataFrame({"at": pd.Categorical(["a"] * 20), "z": pd.array([1] * 20, "Int64")}),
    "no levels": pd.DataFrame(
        {"at": pd.Categorical([None] * 20, ["a"]), "z": pd.array([1] * 20, "Int64")}
    ),
    "complex": pd.DataFrame({"at": np.full(20, 1j), "z": pd.array([True] * 20, "boolean")}),
    "missing": pl.DataFrame({"z": np.ones(20), "at": [None, *range(19)]}),
    "infinite": pd.DataFrame({"z": np.ones(20), "at": np.full(20, np.inf)}),
    "times of Arrow": pa.table({"z": np.ones(20), "at": WHEN}),
    "missing of Arrow": pa.table({"z": np.ones(20), "at": [None, *range(19)]}),
    "strings of Arrow": pa.table({"z": np.ones(20), "at": ["a"] * 20}),
    "one name of Arrow": pa.table([np.ones(20), np.ones(20)], names=["at", "at"]),
}


@pytest.mark.parametrize(
    ("estimator", "frame", "cure"),
    [
        (SVGPRegressor, "an object column of timestamps", "in at. Convert dates to numbers"),
        (SVGPRegressor, "levels", "in at. Encode strings and categories"),
        (SVGPRegressor, "no levels", "in at. Encode strings and categories"),
        (SVGPRegressor, "complex", "complex numbers in column 'at'"),
        (SVGPRegressor, "missing", "contains NaN, in at. SVGPRegressor does not accept missing"),
        (SVGPRegressor, "infinite", "contains infinity .*, in at."),
        (SVGPRegressor, "times of Arrow", "in column 'at', of dtype timestamp"),
        (SVGPRegressor, "missing of Arrow", "contains NaN, in at."),
        (SVGPRegressor, "strings of Arrow", "in at. Encode strings"),
        (SVGPRegressor, "one name of Arrow", "2 columns called 'at'"),
        (AutoGaussianProcessRegressor, "one name of Arrow", "2 columns called 'at'"),
        (SVGPRegressor, "periods", "Periods become dates by"),
        (SVGPRegressor, "periods as objects", "in at. Convert dates to numbers"),
        (AutoGaussianProcessRegressor, "periods as objects", "Periods become dates by"),
        (SVGPRegressor, "two of one name", "2 columns called 'at'"),
        (AutoGaussianProcessRegressor, "two of one name", "2 columns called 'at'"),
        (SVGPRegressor, "a plan", r"call collect\(\)"),
        (AutoGaussianProcessRegressor, "a plan", r"call collect\(\)"),
    ],
)
def test_frames_that_cannot_be_read_come_with_a_cure(estimator, frame, cure):
    with pytest.raises((TypeError, ValueError), match=cure):
        estimator().fit(ODD_FRAMES[frame], np.arange(20.0))


@pytest.mark.parametrize(
    ("estimator", "name", "meant"),
    [
        (SVGPRegressor, "n_inducingg", "Did you mean 'n_inducing'?"),
        (AutoGaussianProcessRegressor, "max_tme", "Did you mean 'max_time'?"),
        (AutoGaussianProcessRegressor, "n_jobs", "torch.set_num_threads"),
    ],
)
def test_parameters_that_are_misspelt_are_guessed(estimator, name, meant):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'.*") as raised:
        estimator(**{name: 1})
    assert meant in str(raised.value)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_messages_name_the_class_and_the_method_that_was_called(method):
    unexpected = rf"FITCRegressor\.{method}\(\) got an unexpected .*'y_sdt'.* mean 'y_std'"
    with pytest.raises(TypeError, match=unexpected):
        getattr(FITCRegressor(), method)(EIGHTHS, COUNTS, y_sdt=1)
    bad = BSGDGaussianProcessRegressor(kernel=3)
    with pytest.raises(ValueError, match=r"'kernel' parameter of BSGDGaussianProcessRegressor"):
        getattr(bad, method)(EIGHTHS, COUNTS)


# ---- calls out of order ------------------------------------------------------------------------

WAVE = np.linspace(-2.0, 2.0, 60)[:, None]
SINE = np.sin(2.0 * WAVE[:, 0])


def fitted(cls, **params):
    own = {"n_inducing": 8, "solver": "natural"} if cls in INDUCING else QUICK_FINITE
    return fitted_once(cls(**{"random_state": 0, "max_iter": 30, **own, **params}), WAVE, SINE)


def refuses(call, words):
    """A call refuses, naming what has changed, and leaves the model as it was."""
    model = call.__self__
    before = model.predict(WAVE)
    with pytest.raises(ValueError, match=words):
        call(WAVE, SINE)
    assert np.array_equal(before, model.predict(WAVE))


@pytest.mark.parametrize(
    ("cls", "params"),
    [
        (SCGDGaussianProcessRegressor, {"dtype": "float64"}),
        (SCGDGaussianProcessRegressor, {"solver": "adadelta"}),
        (SVGPRegressor, {"dtype": "float64"}),
        (SVGPRegressor, {"solver": "adam"}),
        (SVGPRegressor, {"solver": "collapsed"}),
        (SolveGPRegressor, {"dtype": "float64", "solver": "adam"}),
        (FITCRegressor, {"dtype": "float64"}),
        (DLMRegressor, {"dtype": "float64", "solver": "adam"}),
    ],
)
@slow_cases("params[567]")
def test_a_stream_goes_on_with_another_solver_or_type(cls, params):
    model = fitted(cls)
    score = model.score(WAVE, SINE)
    for start in (0, 1):
        model.set_params(**params).partial_fit(WAVE[start::2], SINE[start::2])
    assert model.score(WAVE, SINE) > score - 0.1


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"likelihood": "student_t"}, "likelihood='student_t' .before: 'auto'"),
        ({"normalize_y": False}, "normalize_y=False .before: True"),
        ({"inducing_points": WAVE[:5]}, r"inducing_points=<array of shape \(5, 1\), digest \w+>"),
        ({"hidden_layer_sizes": (3,)}, r"hidden_layer_sizes=\(3,\) .before: \(\)"),
        ({"kernel": RationalQuadratic()}, "kernel=RationalQuadratic.*before: None"),
    ],
    ids=str,
)
def test_a_stream_of_another_model_says_what_has_changed(params, words):
    refuses(fitted(SVGPRegressor).set_params(**params).partial_fit, words)


def test_points_that_numpy_abbreviates_are_compared_too():
    points = np.linspace(-2.0, 2.0, 2000)[:, None]
    model = SVGPRegressor(inducing_points=points)
    before = representations(model, ["inducing_points"])
    other = points.copy()
    other[1000] += 1.0
    model.set_params(inducing_points=other)
    assert representations(model, ["inducing_points"]) != before


@pytest.mark.parametrize(
    ("model", "params", "words"),
    [
        (
            SVGPRegressor,
            {"kernel": DotProduct()},
            r"but kernel=DotProduct\(.* .before: None. changes it",
        ),
        (SVGPRegressor, {"likelihood": "laplace"}, "but likelihood='laplace' .before: 'auto'"),
        (SVGPRegressor, {"hidden_layer_sizes": (3,)}, r"but hidden_layer_sizes=\(3,\)"),
        (SVGPRegressor, {"n_inducing": 5}, "n_inducing=5 must be 'auto' or 8, the number"),
        (ConvolutionalGPRegressor, {"posterior": "solve"}, "without orthogonal points"),
        (SCGDGaussianProcessRegressor, {"hidden_layer_sizes": 3}, "but hidden_layer_sizes=3"),
    ],
)
@slow_cases("ConvolutionalGP")
def test_a_warm_start_from_another_model_says_what_has_changed(model, params, words):
    refuses(fitted(model).set_params(warm_start=True, **params).fit, words)


@pytest.mark.filterwarnings("ignore:The noise variance")  # y has none
@pytest.mark.parametrize("exact_first", [True, False])
def test_a_warm_start_between_features_and_kernels_as_they_are(exact_first):
    kernels = [RationalQuadratic(), RBF()][:: 1 if exact_first else -1]
    few = {"kernel": kernels[0], "hidden_layer_sizes": (), "n_components": 20, "max_iter": 2}
    model = fitted(BSGDGaussianProcessRegressor, **few)
    refuses(model.set_params(warm_start=True, kernel=kernels[1]).fit, "but kernel=.*before: ")


@pytest.mark.slow
def test_a_warm_start_without_a_mean_has_none():
    model = SVGPRegressor(n_inducing=8, max_iter=2, normalize_y=False, random_state=0)
    model.fit(WAVE, SINE + 5.0).set_params(mean="zero", warm_start=True).fit(WAVE, SINE + 5.0)
    assert float(model.posterior_.model.mean.value) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("cls", [SCGDGaussianProcessRegressor, SVGPRegressor, DLMRegressor])
@slow_cases("DLM")
def test_copies_in_the_middle_of_a_stream_go_on_alike(cls, tmp_path):
    model = fitted(cls).partial_fit(WAVE[::2], SINE[::2])
    joblib.dump(model, tmp_path / "model")
    loaded = pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model")
    copies = (*loaded, copy.deepcopy(model))
    expected = model.partial_fit(WAVE[1::2], SINE[1::2]).predict(WAVE)
    for other in copies:
        assert np.array_equal(expected, other.partial_fit(WAVE[1::2], SINE[1::2]).predict(WAVE))
    assert not hasattr(clone(model), "posterior_")
    assert np.array_equal(model.fit(WAVE, SINE).predict(WAVE), fitted(cls).predict(WAVE))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["elbo", "log"])
def test_streams_go_on_from_the_square_loss(loss):
    """Whose kernel and noise are scaled together when it ends."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (200, 1))
    y = 3.0 + 5.0 * (np.sin(X[:, 0]) + 0.1 * rng.standard_normal(200))
    model = SVGPRegressor(loss="square", n_inducing=15, max_iter=20, random_state=0).fit(X, y)
    before = model.predict(X)
    model.set_params(loss=loss).partial_fit(X[:5], y[:5])
    assert np.abs(model.predict(X) - before).max() < 0.5


def test_errors_of_python_name_what_was_given():
    X, y = np.zeros((5, 1)), np.zeros(5)
    with pytest.raises(TypeError, match=r"\.fit\(\) got an unexpected.*'exposures'"):
        SVGPRegressor().fit(X, y, exposures=y)
    with pytest.raises(TypeError, match=r"\.fit\(\) got an unexpected.*'y_std'"):
        SCGDGaussianProcessRegressor().fit(X, y, y_std=y)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (SVGPRegressor(), "kernel__length_scale"),
        (SVGPRegressor(likelihood=StudentT()), "likelihood__df"),
        (GaussianProcessRegressor(), "kernel__k1__length_scale"),
    ],
    ids=["none", "likelihood", "drop-in"],
)
def test_parts_without_parameters_are_told(model, name):
    """AttributeError: 'NoneType' object has no attribute 'set_params'."""
    with pytest.raises(ValueError, match=f"{name} cannot be set, because .* has no parameters"):
        model.set_params(**{name: 1.0})
    kernel = RBF(2.0) + WhiteKernel()
    assert SVGPRegressor().set_params(kernel=kernel, kernel__k1__length_scale=3.0).kernel is kernel
    assert kernel.k1.length_scale == 3.0


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 1 has no StringDType")
def test_labels_of_numpys_own_strings():
    X, of_string = np.arange(40.0)[:, None], np.dtypes.StringDType(na_object=None)
    y = np.where(X[:, 0] > 20, "b", "a").astype(of_string)
    model = SVGPClassifier(n_inducing=5, max_iter=2, random_state=0).fit(X, y)
    assert (model.predict(X) == y).all()
    stream = SVGPClassifier(n_inducing=5, random_state=0).partial_fit(X, y, classes=np.unique(y))
    assert stream.classes_.tolist() == ["a", "b"]
    y[3] = None
    with pytest.raises(ValueError, match=r"y has no label .* in 1 of 40 rows"):
        model.fit(X, y)


def test_chunks_have_exposures_or_have_none():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (40, 1)), rng.poisson(3.0, 40)
    params = {"likelihood": "poisson", "n_inducing": 5, "solver": "natural", "random_state": 0}
    with_them = SVGPRegressor(**params).partial_fit(X, y, exposure=2.0)
    without = SVGPRegressor(**params).partial_fit(X, y)
    for model, known in ((with_them, {}), (without, {"exposure": 2.0})):
        before = model.predict(X, exposure=1.0)
        with pytest.raises(ValueError, match="exposure must be given for all chunks or for none"):
            model.partial_fit(X, y, **known)
        assert (model.predict(X, exposure=1.0) == before).all()


@pytest.mark.parametrize("first", [True, False])
@slow_cases("False")
def test_appended_chunks_have_exposures_if_the_first_had(first):
    """Counts of long exposures, appended to counts without, made means 4.8 times too large."""
    rng = np.random.default_rng(0)
    X, y, exposure = rng.uniform(-1, 1, (180, 1)), rng.poisson(3.0, 180), np.full(180, 2.0)
    known, unknown = {"exposure": exposure}, {}
    model = NNGPRegressor(likelihood="poisson", max_iter=1, random_state=0)
    model.partial_fit(X, y, **(known if first else unknown))
    with pytest.raises(ValueError, match="exposure must be given for all chunks or for none"):
        model.partial_fit(X, y, **(unknown if first else known))


def test_weights_that_sum_to_one_are_shares():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (30, 1)), rng.standard_normal(30)
    model = SVGPRegressor(n_inducing=5, solver="natural", max_iter=1, random_state=0)
    with pytest.warns(UserWarning, match="sums to 1 over 30 rows.* divide them by their mean"):
        model.fit(X, y, np.full(30, 1 / 30))
    assert np.allclose(model.predict_std(X), clone(model).fit(X, y).predict_std(X), rtol=1e-5)
    model.fit(X, y, np.full(30, 0.1))  # three rows, without a warning
    assert not np.allclose(model.predict_std(X), clone(model).fit(X, y).predict_std(X), rtol=1e-5)


@pytest.mark.slow
def test_boosting_with_proportions():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (80, 2))
    y = X[:, 0] > 0.0
    params = {"n_inducing": 5, "max_iter": 5, "solver": "natural", "random_state": 0}
    one = SVGPClassifier(**params).fit(X, y)
    with pytest.warns(UserWarning, match="sums to 1 over 80 rows"):
        boosted = AdaBoostClassifier(SVGPClassifier(**params), n_estimators=1).fit(X, y)
    assert boosted.estimators_[0].predict_proba(X).max() > one.predict_proba(X).max() - 0.05


# ---- scalars of NumPy --------------------------------------------------------------------------
SCALARS_OF_NUMPY = {bool: np.bool_, int: np.int64, float: np.float64, str: np.str_}


@pytest.mark.filterwarnings("ignore:ADMM did not converge")
@pytest.mark.filterwarnings("ignore:The noise variance")  # y is noise
@pytest.mark.parametrize("cls", by_family("scalars of NumPy", ESTIMATORS))
def test_parameters_may_be_scalars_of_numpy(cls):
    """As a search takes them from arrays of strings, numbers or booleans; the model is the same."""
    params = {"max_iter": 2} if "max_iter" in cls().get_params() else {}
    params |= {"image_shape": (4, 4), "patch_shape": (3, 3)} if cls in IMAGES else {}
    params |= {"learn_kernel": False} if "learn_kernel" in cls().get_params() else {}
    model = constructor(cls)(**params)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 16 if cls in IMAGES else 2)), np.arange(30.0) % 2
    given = model.get_params(deep=False)
    kinds = {name: SCALARS_OF_NUMPY.get(type(value)) for name, value in given.items()}
    same = {name: kind(given[name]) for name, kind in kinds.items() if kind is not None}
    assert len(same) > 3
    other = clone(model).set_params(**same).fit(X, y)
    np.testing.assert_array_equal(other.predict(X), model.fit(X, y).predict(X))


@pytest.mark.slow
@pytest.mark.parametrize("cls", [NNGPRegressor, AutoGaussianProcessRegressor])
def test_seconds_may_be_of_half_precision(cls, one_kernel):
    """They became infinite when the fit's beginning was added, and the fit ended in a NaN."""
    X, y = np.linspace(-1.0, 1.0, 40)[:, None], np.linspace(-1.0, 1.0, 40) ** 2
    model = cls(max_time=np.float16(30.0), random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, atol=0.1)


@pytest.mark.slow
def test_scalars_of_numpy_change_no_stream_and_no_warm_start(tmp_path):
    """Nor the file of a fit."""
    X, y = np.linspace(-1.0, 1.0, 40)[:, None], np.linspace(-1.0, 1.0, 40)
    same = {
        "mean": np.str_("zero"),
        "n_inducing": np.int64(5),
        "learning_rate_init": np.float32(0.5),
    }
    model = SVGPRegressor(mean="zero", n_inducing=5, learning_rate_init=0.5, max_iter=2)
    for method in ("fit", "partial_fit"):
        fitted = getattr(clone(model).set_params(warm_start=True, random_state=0), method)(X, y)
        getattr(fitted.set_params(**same), method)(X, y)
    identities = {
        checkpoint_of(
            m.set_params(checkpoint_dir=tmp_path, random_state=0), Data(X, y), 0, None
        ).identity
        for m in (clone(model), clone(model).set_params(**same))
    }
    assert len(identities) == 1


# ---- messages ----------------------------------------------------------------------------------
HOSTILE = [
    (GaussianProcessRegressor, "alpha", {}),
    (GaussianProcessRegressor, "alpha", []),
    (GaussianProcessRegressor, "alpha", ["a"]),
    (GaussianProcessRegressor, "optimizer", 3),
    (ADMMGaussianProcessRegressor, "cv", []),
    (SolveGPRegressor, "orthogonal_points", {}),
    (SolveGPRegressor, "orthogonal_points", [["a"]]),
    (SVGPRegressor, "inducing_points", {}),
    (SVGPRegressor, "inducing_points", [[]]),
    (SVGPRegressor, "n_inducing", 10**30),
    (SVGPRegressor, "hidden_layer_sizes", (4, 10**30)),
    (SCGDGaussianProcessRegressor, "hidden_layer_sizes", 10**30),
    (SCGDGaussianProcessRegressor, "weight_decay", 1e9),
]


@pytest.mark.parametrize(("cls", "name", "value"), HOSTILE)
def test_errors_name_the_parameter(cls, name, value):
    X = np.random.default_rng(0).standard_normal((20, 2))
    with pytest.raises(ValueError, match=name):
        cls(**{name: value}).fit(X, X[:, 0])


ROWS = np.random.default_rng(0).standard_normal((30, 2))
RAGGED = [[1.0], [1.0, 2.0]] * 15


@pytest.mark.parametrize(
    "cls",
    [
        AutoGaussianProcessClassifier,
        AutoGaussianProcessRegressor,
        GaussianProcessClassifier,
        GaussianProcessRegressor,
        SVGPClassifier,
        SVGPRegressor,
    ],
)
def test_targets_of_unlike_rows_or_with_one_name_twice_are_named(cls):
    twice = pd.DataFrame(ROWS > 0.0, columns=["kind", "kind"])
    with pytest.raises(ValueError, match="y must have rows of numbers, all of the same length"):
        cls().fit(ROWS, RAGGED)
    with pytest.raises(ValueError, match="y has 2 columns called 'kind'"):
        cls().fit(ROWS, twice)


@pytest.mark.parametrize(
    "cls", [AutoGaussianProcessRegressor, GaussianProcessRegressor, SVGPRegressor]
)
def test_targets_without_columns_are_named(cls):
    with pytest.raises(
        ValueError, match=r"y has 0 column\(s\) \(shape=\(30, 0\)\) while a minimum of 1"
    ):
        cls().fit(ROWS, np.zeros((30, 0)))


@pytest.mark.parametrize("method", ["score", "condition_on", "log_predictive_density"])
def test_targets_that_are_asked_about_are_named(method):
    model = SVGPRegressor(n_inducing=5, solver="natural", max_iter=2).fit(ROWS, ROWS[:, 0])
    for y, message in (
        (RAGGED, "y must have rows"),
        (pd.DataFrame(ROWS, columns=["a", "a"]), "y has 2"),
    ):
        with pytest.raises(ValueError, match=message):
            getattr(model, method)(ROWS, y)


@pytest.mark.parametrize(
    "model",
    [
        ConstantVarianceRegressor(Ridge()),
        GaussianProcessClassifier(optimizer=None),
        GaussianProcessRegressor(optimizer=None),
        SVGPClassifier(n_inducing=5, solver="natural", max_iter=2, random_state=0),
        SVGPRegressor(n_inducing=5, solver="natural", max_iter=2, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_scores_take_the_weights_that_fits_take(model):
    days = pd.Series(pd.date_range("2020", periods=30))
    y = ROWS[:, 0] > 0.0 if hasattr(model, "predict_proba") else ROWS[:, 0]
    model = clone(model).fit(ROWS, y)
    for weight in (["a"] * 30, [10**400] * 30, RAGGED, days, days - days[0], -np.ones(30)):
        with pytest.raises(ValueError, match="sample_weight"):
            model.score(ROWS, y, sample_weight=weight)
        if has_fit_parameter(model, "sample_weight"):
            with pytest.raises(ValueError, match="sample_weight"):
                clone(model).fit(ROWS, y, sample_weight=weight)
    assert model.score(ROWS, y, sample_weight=2.5) == pytest.approx(model.score(ROWS, y))


@pytest.mark.parametrize("label", [{"a": 1}, {1}, [1, 2, 3]], ids=str)
def test_groups_that_cannot_be_told_apart_are_named(label):
    groups = [label] * 29 + [[1]]  # rows of unlike lengths, so that these stay objects
    with pytest.raises(ValueError, match="groups must have labels that are numbers or texts"):
        AutoGaussianProcessRegressor().fit(ROWS, ROWS[:, 0], groups=groups)


def test_cells_of_the_default_that_are_no_numbers_are_named():
    with pytest.raises(TypeError, match="X must be numeric unless it is a data frame"):
        AutoGaussianProcessRegressor().fit([{1}] * 30, ROWS[:, 0])


@pytest.mark.parametrize(
    "cls", [GaussianProcessClassifier, SVGPClassifier, AutoGaussianProcessClassifier]
)
@pytest.mark.parametrize("labels", [[1, "a"], ["a", 0.5]])
def test_labels_of_several_types_are_named(cls, labels):
    X = np.random.default_rng(0).standard_normal((20, 2))
    kinds = " and ".join(sorted(type(label).__name__ for label in labels))
    with pytest.raises(ValueError, match=f"y must hold labels of one type, got {kinds}"):
        cls().fit(X, np.array(10 * labels, dtype=object))


@pytest.mark.parametrize(
    "cls", [GaussianProcessClassifier, SVGPClassifier, AutoGaussianProcessClassifier]
)
@pytest.mark.parametrize("missing", [None, np.nan])
def test_rows_without_a_label_are_counted(cls, missing):
    X = np.random.default_rng(0).standard_normal((20, 2))
    y = ["a"] * 10 + [missing] * 10
    for given in (y, np.array(y, dtype=object)):
        with pytest.raises(ValueError, match=r"y has no label \(None, NaN\) in 10 of 20 rows"):
            cls().fit(X, given)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ...")],
)
def test_memory_that_runs_out_on_the_host_is_named(error, monkeypatch):
    def out_of_memory(*args):
        raise error

    monkeypatch.setattr(SCGDGaussianProcessRegressor, "_train_recipe", out_of_memory)
    model = SCGDGaussianProcessRegressor(hidden_layer_sizes=10**9)
    with pytest.raises(
        MemoryError, match=r"ran out of memory .*hidden_layer_sizes \(now 1000000000"
    ):
        model.fit(np.zeros((3, 1)), np.zeros(3))


@pytest.mark.parametrize(
    "model", [GaussianProcessRegressor(optimizer=None), SVGPRegressor(max_iter=1)], ids=str
)
@slow_cases("^Gaussian")
@pytest.mark.slow
def test_joint_predictions_without_memory_name_the_cure(model):
    """No machine has 128 TB; torch and NumPy spoke of their allocators."""
    X = np.linspace(0.0, 1.0, 8)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a short fit
        model.fit(X, X[:, 0])
    far = np.zeros((4_000_000, 1))
    with pytest.raises(
        MemoryError, match=r"sample_y\. Rows are drawn jointly.* fewer rows at a time"
    ):
        model.sample_y(far)
    with pytest.raises(MemoryError, match=r"covariance of n rows has n \* n numbers\. Give fewer"):
        model.predict(far, return_cov=True)


@pytest.mark.slow
def test_words_of_python_are_those_of_the_class(sine):
    X, y = sine
    model = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0).fit(X, y)
    with pytest.raises(
        TypeError, match=r"SVGPRegressor\.diagnose\(\) takes 0 positional arguments"
    ):
        model.diagnose(X)
    with pytest.raises(TypeError, match=r"SVGPRegressor\.log_marginal_likelihood\(\) missing 1"):
        model.log_marginal_likelihood()
    for wrong in (lambda: model.fit(X, 0.0), lambda: model.log_predictive_density(X, 3.0)):
        with pytest.raises(ValueError, match="a target for each row of X, got the num"):
            wrong()
    with pytest.raises(ValueError, match=r"got 'price'\. For a column of a data frame, pass"):
        model.fit(X, "price")
    with pytest.raises(TypeError, match="X must be an array or a data frame, got None"):
        model.predict(None)
    with pytest.raises(ValueError, match=r"a target for each row of X, got one dict\."):
        model.fit(X, {"price": 1.0})
    kernel = 1.0 * ExpSineSquared(1.0, 3.0) * RBF(4.0) + WhiteKernel(1e-3)
    with pytest.raises(ValueError, match="as ExpSineSquared of several columns is not"):
        SVGPRegressor(kernel).fit(np.random.default_rng(0).uniform(-2, 2, (66, 2)), np.arange(66.0))


def test_a_network_in_a_periodic_kernel_is_named(sine):
    X, y = sine[0][:, :1], sine[1]
    model = BSGDGaussianProcessRegressor(ExpSineSquared(1.0, 1.0), random_state=0)
    with pytest.raises(ValueError, match=r"features \(hidden_layer_sizes=\(\) leaves the network"):
        model.fit(X, y)
    model.set_params(hidden_layer_sizes=(), max_iter=1).fit(X, y)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones(30), "array.*Give values of rows by name, such as y_std="),
        ([0.1] * 30, "Give values of rows by name"),
        ("no", "got 'no'"),
        (None, "got None"),
    ],
)
def test_values_of_rows_are_no_flag(given, message, sine):
    X, y = sine
    model = SVGPRegressor(n_inducing=5, max_iter=1).fit(X[:30], y[:30])
    with pytest.raises(TypeError, match=f"return_std must be True or False, .*{message}"):
        model.predict(X[:30], given)
    with pytest.raises(TypeError, match="latent must be True or False"):
        model.predict_std(X[:30], latent=given)
    assert len(model.predict(X[:30], np.True_)) == len(model.predict(X[:30], 1)) == 2


def test_assumed_finite_rows_are_looked_at_in_fits(sine):
    X, y = sine
    unseen = X[:30].copy()
    unseen[2] = np.nan
    with config_context(assume_finite=True):
        with pytest.raises(ValueError, match="contains NaN"):
            SVGPRegressor(n_inducing=5, max_iter=1).fit(unseen, y[:30])
        with pytest.raises(ValueError, match="sample_weight contains NaN"):
            SVGPRegressor(n_inducing=5, max_iter=1).fit(X[:30], y[:30], unseen[:, 0])
        with pytest.raises(ValueError, match="alpha must be 0 or positive, got nan"):
            GaussianProcessRegressor(alpha=unseen[:, 0] ** 2).fit(X[:30], y[:30])
        model = SVGPRegressor(n_inducing=5, max_iter=1).fit(X[:30], y[:30])
        with pytest.raises(ValueError, match=r"not checked for NaN.*assume_finite=True"):
            model.predict(unseen)


def test_known_errors_of_predictions_are_refused_by_what_fit_says_of_them():
    model = AutoGaussianProcessRegressor(random_state=0)
    model.fit(EIGHTHS, np.sin(COUNTS), y_std=0.1)
    with pytest.raises(TypeError, match="Only `fit` takes y_std"):
        model.predict(EIGHTHS, y_std=0.1)


def test_methods_without_exposure_say_nothing_of_known_errors():
    model = SVGPRegressor(likelihood="poisson")
    with pytest.raises(TypeError, match="Exposures of counts are taken by") as raised:
        arguments.check_names(model, model.save, ["exposure"])
    assert "known errors" not in str(raised.value)

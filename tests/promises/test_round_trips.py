"""Every estimator, likelihood and kernel, through every way to keep a model: the same bits."""

import contextlib
import copy
import io
import pickle
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import DEEP, ESTIMATORS, IMAGES, SPARSE, constructor, named
from families import by_default, by_family, slow_cases, some_of
from numpy.testing import assert_array_equal
from sklearn.base import clone, is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skgpstoch
from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    ConstantVarianceRegressor,
    DeepKernelEnsembleRegressor,
    DLMClassifier,
    DLMRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    LogLoss,
    QSGPRegressor,
    SCGDGaussianProcessRegressor,
    SquareLoss,
    StackedDensityRegressor,
    SVGPClassifier,
    SVGPRegressor,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # few rows, few iterations
    pytest.mark.usefixtures("one_kernel"),
]

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (40, 4))
Y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(40)
COUNTS = RNG.poisson(np.exp(Y))
CLASSES = np.array(["down", "level", "up"])[np.digitize(Y, [-0.5, 0.5])]
FRAME = pd.DataFrame(
    {
        "number": np.where(RNG.random(40) < 0.1, np.nan, X[:, 0]),
        "level": pd.Categorical(RNG.choice(["x", "y", "z"], 40)),
        "text": RNG.choice(["u", "v"], 40),
        "day": pd.date_range("2020-01-01", periods=40),
        "size": pd.Categorical(RNG.choice([1, 2, 3], 40), ordered=True),
        "flag": RNG.random(40) > 0.5,
    }
)
QUERY = X[::2] + 0.1
QUICK = {"n_inducing": 6, "inducing_points": "random"}
QUICK |= {"solver": "natural", "max_iter": 2, "random_state": 0}

LIKELIHOODS = {
    SVGPRegressor: ["gaussian", "student_t", "laplace", "poisson", "negative_binomial"],
    DLMRegressor: ["gaussian", "student_t", "shared_student_t", "laplace", "poisson"],
    QSGPRegressor: ["gaussian", "laplace"],
}
OF_CLASSES = ["bernoulli", "softmax", "robustmax"]
KERNELS = [
    sk.RBF(0.5, "fixed"),
    2.0 * sk.Matern(nu=1.5) + sk.WhiteKernel(0.1),
    sk.ConstantKernel(0.5, "fixed") * sk.RationalQuadratic() + sk.DotProduct(),
    sk.ExpSineSquared() ** 2,
    sk.Matern(nu=0.5) * sk.RBF(np.float32(2.0)),
]


def save(model, folder):
    model.save(folder / "model")
    return skgpstoch.load(folder / "model")


def dump(model, folder, **options):
    joblib.dump(model, folder / "model.joblib")
    return joblib.load(folder / "model.joblib", **options)


WAYS = {
    "save": save,
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
    "oldest pickle": lambda model, _: pickle.loads(pickle.dumps(model, protocol=0)),
    "joblib": dump,
    "memory map": lambda model, folder: dump(model, folder, mmap_mode="r"),
    "deep copy": lambda model, _: copy.deepcopy(model),
    "copy": lambda model, _: copy.copy(model),
}


FEW_WAYS = {name: WAYS[name] for name in ("save", "pickle")}


def bits(model, query=QUERY):
    """All that a model says of rows, and of itself."""
    found = {"predict": model.predict(query)}
    with contextlib.suppress(TypeError, NotImplementedError):
        found["std"] = model.predict(query, return_std=True)[1]
    for name in ("predict_proba", "predict_std", "predict_interval", "latent_mean_and_variance"):
        with contextlib.suppress(AttributeError, ValueError):  # not of all classes
            found[name] = getattr(model, name)(query)
    if hasattr(model, "sample_y"):
        found["draws"] = model.sample_y(query, 2, random_state=3)
    if hasattr(model, "log_predictive_density"):
        y = found["predict"]
        y = y if is_classifier(model) else np.abs(np.round(y))  # which may be counts
        found["density"] = model.log_predictive_density(query, y)
    return {name: [np.asarray(part).tobytes() for part in a] for name, a in found.items()}


def check_ways(model, folder, query=QUERY, ways=WAYS):
    expected = bits(model, query)
    for name, way in ways.items():
        assert bits(way(model, folder), query) == expected, name


def targets(model):
    return CLASSES if is_classifier(model) else Y


def fit(model, inputs=X, y=None, **known):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(inputs, targets(model) if y is None else y, **known)


# ---- every estimator ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("cls", by_family("same bits in every file", ESTIMATORS))
def test_every_estimator(cls, tmp_path):
    shape = {"image_shape": (2, 2), "patch_shape": (2, 1)} if cls in IMAGES else {}
    model = constructor(cls)(**shape)
    if "max_iter" in model.get_params():
        model.set_params(max_iter=2)
    for name in {"n_inducing", "n_samples"} & model.get_params().keys():
        model.set_params(**{name: 6})
    inputs = X.copy()
    inputs[:, -1] = 1.0  # a constant column has no spread
    fit(model, inputs)
    check_ways(model, tmp_path)
    assert_is_plain(model)


@by_default("SVGPRegressor", "NNGPClassifier")
@pytest.mark.parametrize("cls", ESTIMATORS, ids=named)
@slow_cases("^NNGPClassifier$")
def test_a_subclass_with_fewer_parameters(cls, tmp_path):
    class Mine(cls):
        def __init__(self, n_extra=2, random_state=0):
            super().__init__(**{**params, "random_state": random_state})
            self.n_extra = n_extra

        def predict(self, X):
            return super().predict(X)

    params = constructor(cls)().get_params(deep=False)
    if cls in IMAGES:
        params |= {"image_shape": (2, 2), "patch_shape": (2, 1)}
    if "checkpoint_dir" in params:
        params["checkpoint_dir"] = tmp_path
    model = fit(Mine())
    expected = fit(cls(**params)).predict(X)
    model.save(tmp_path / "model")
    loaded = skgpstoch.load(tmp_path / "model", objects={"Mine": Mine})
    for each in (model, loaded, fit(clone(model)), fit(model)):
        assert_array_equal(each.predict(X), expected)
    assert np.isfinite(model.score(X, targets(model)))
    assert loaded.n_extra == 2


def stack():
    linear = ConstantVarianceRegressor(
        GaussianProcessRegressor(sk.RBF(), optimizer=None, alpha=0.1)
    )
    return StackedDensityRegressor([("gp", SVGPRegressor(**QUICK)), ("constant", linear)], cv=2)


OTHERS = {
    "process": (lambda: AutoGaussianProcessRegressor(random_state=0), Y),
    "counts": (lambda: AutoGaussianProcessRegressor(target="count", random_state=0), COUNTS),
    "classes": (lambda: AutoGaussianProcessClassifier(random_state=0), CLASSES),
    "stack": (stack, Y),
    "one variance": (lambda: stack().estimators[1][1], Y),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", some_of(OTHERS, ["classes", "stack"]))
@slow_cases("classes")
def test_estimators_around_others(name, tmp_path):
    make, y = OTHERS[name]
    model = fit(make(), y=y)
    check_ways(model, tmp_path)
    assert_is_plain(model)


@pytest.mark.slow
@pytest.mark.parametrize("y", [Y, CLASSES], ids=["numbers", "classes"])
@slow_cases("numbers")
def test_data_frames(y, tmp_path):
    cls = AutoGaussianProcessRegressor if y is Y else AutoGaussianProcessClassifier
    model = fit(cls(random_state=0), FRAME, y)
    check_ways(model, tmp_path, FRAME.iloc[::3])
    assert list(save(model, tmp_path).feature_names_in_) == list(FRAME)


@pytest.mark.parametrize(
    ("cls", "likelihood"), [(cls, name) for cls, names in LIKELIHOODS.items() for name in names]
)
@by_default("shared", "QSGPRegressor-laplace", "SVGPRegressor-(laplace|poisson)")
def test_every_likelihood(cls, likelihood, tmp_path):
    params = {"n_components": 20, "n_subset": 20} if cls is QSGPRegressor else QUICK
    params = {**params, "max_iter": 2, "random_state": 0}
    y = COUNTS if likelihood in ("poisson", "negative_binomial") else Y
    check_ways(fit(cls(likelihood=likelihood, **params), y=y), tmp_path, ways=FEW_WAYS)


@pytest.mark.parametrize("likelihood", OF_CLASSES)
@pytest.mark.parametrize("cls", [SVGPClassifier, DLMClassifier], ids=named)
@slow_cases("DLM", "robustmax")
def test_every_likelihood_of_classes(cls, likelihood, tmp_path):
    y = np.where(Y > 0, "up", "down") if likelihood == "bernoulli" else CLASSES
    check_ways(fit(cls(likelihood=likelihood, **QUICK), y=y), tmp_path, ways=FEW_WAYS)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("cls", [*SPARSE, *DEEP], ids=named)
def test_every_estimator_with_every_likelihood_and_kernel(cls, kernel, tmp_path):
    """Those that it has: the others are refused by name."""
    names, found = LIKELIHOODS[DLMRegressor], 0
    if is_classifier(cls()):  # which have no noise
        names, kernel = OF_CLASSES, kernel.k1 if "White" in repr(kernel) else kernel
    for name in names if "likelihood" in cls().get_params() else [None]:
        chosen = {} if name is None else {"likelihood": name}
        y = {"poisson": COUNTS, "bernoulli": np.where(Y > 0, "up", "down")}.get(name)
        model = constructor(cls)(kernel=kernel, n_inducing=6, max_iter=2, **chosen)
        try:
            fit(model, X[:, :1], y)
        except ValueError as error:
            if "likelihood" not in str(error):
                raise
            continue
        found += 1
        check_ways(
            model, tmp_path, QUERY[:, :1], {n: WAYS[n] for n in ("save", "pickle", "joblib")}
        )
    assert found > 0


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda kernel: GaussianProcessRegressor(kernel, alpha=0.1, optimizer=None),
        lambda kernel: GaussianProcessClassifier(kernel, optimizer=None),
        lambda kernel: SVGPRegressor(kernel, **QUICK),
    ],
    ids=["exact", "Laplace", "sparse"],
)
@slow_cases(r"exact-(0\.7|1\.41)", r"Laplace-(0\.7|1\.41|Exp)", r"sparse-(0\.7|1\.41|Exp)")
def test_every_kernel(make, kernel, tmp_path):
    model = fit(make(kernel), X[:, :1])
    check_ways(model, tmp_path, QUERY[:, :1], FEW_WAYS)
    assert repr(save(model, tmp_path).kernel) == repr(kernel)


@pytest.mark.parametrize(
    "model",
    [
        GaussianProcessRegressor(sk.PairwiseKernel(metric="laplacian"), alpha=0.1, optimizer=None),
        GaussianProcessRegressor(sk.CompoundKernel([sk.RBF()]).kernels[0], optimizer=None),
        GaussianProcessClassifier(multi_class="one_vs_one", optimizer=None),
        GaussianProcessRegressor(sk.RBF([1.0, 2.0, 3.0, 4.0]), alpha=0.1, optimizer=None),
        SVGPRegressor(mean="zero", normalize_y=False, **QUICK),
        DLMRegressor(loss=SquareLoss(), **QUICK),
        DLMRegressor(loss=LogLoss(), **QUICK),
        SCGDGaussianProcessRegressor(sk.RBF(), max_iter=2, random_state=np.random.RandomState(5)),
    ],
    ids=lambda model: type(model).__name__,
)
@slow_cases("DLMRegressor1", "GaussianProcessRegressor0")
def test_other_parameters(model, tmp_path):
    check_ways(fit(clone(model)), tmp_path)


@pytest.mark.slow
def test_outputs_weights_and_names(tmp_path):
    model = SVGPRegressor(**QUICK).set_params(random_state=1)
    frame = pd.DataFrame(X, columns=list("abcd"))
    fit(model, frame, np.column_stack([Y, -Y]), sample_weight=RNG.uniform(0.5, 2, len(X)))
    check_ways(model, tmp_path, frame.iloc[::2])


# ---- fits that go on ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cls", [SCGDGaussianProcessRegressor, SVGPRegressor, DLMRegressor, SVGPClassifier], ids=named
)
@pytest.mark.parametrize("name", ["save", "pickle"])
@slow_cases("save-(SCGD|DLM)", "pickle-(SVGPR|SVGPC)")
def test_streams_go_on(cls, name, tmp_path):
    model = constructor(cls)(max_iter=2)
    y = np.where(Y > 0, "up", "down") if is_classifier(model) else Y
    model.partial_fit(X[::2], y[::2])
    other = WAYS[name](model, tmp_path)
    assert bits(other.partial_fit(X[1::2], y[1::2])) == bits(model.partial_fit(X[1::2], y[1::2]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["save", "pickle"])
@slow_cases("pickle")
def test_warm_starts_go_on(name, tmp_path):
    model = fit(SVGPRegressor(warm_start=True, **{**QUICK, "solver": "auto"}))
    assert bits(fit(WAYS[name](model, tmp_path))) == bits(fit(model))


@pytest.mark.parametrize("cls", by_family("same bits in every file", ESTIMATORS))
def test_estimators_that_are_not_fitted(cls, tmp_path):
    model = cls(kernel=KERNELS[1])
    for name in ("save", "pickle", "copy"):
        other = WAYS[name](model, tmp_path)
        assert repr(other.get_params()) == repr(model.get_params())
        assert vars(other).keys() == vars(model).keys()
        assert [hasattr(other, name) for name in dir(cls)] == [
            hasattr(model, name) for name in dir(cls)
        ]
        other._repr_html_()  # which looks at all attributes


# ---- inside others -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        make_pipeline(StandardScaler(), SVGPRegressor(**QUICK)),
        TransformedTargetRegressor(SVGPRegressor(**QUICK), func=np.cbrt, inverse_func=np.cos),
        GridSearchCV(SVGPRegressor(**QUICK), {"likelihood": ["gaussian", "laplace"]}, cv=2),
    ],
    ids=lambda model: type(model).__name__,
)
@slow_cases("GridSearch")
def test_wrapped(model, tmp_path):
    model = fit(model, y=Y)
    for way in (WAYS["pickle"], dump):
        assert way(model, tmp_path).predict(QUERY).tobytes() == model.predict(QUERY).tobytes()


@pytest.mark.slow
def test_others_in_a_stack_are_asked_for(tmp_path):
    parts = [("gp", GaussianProcessRegressor()), ("ridge", ConstantVarianceRegressor(Ridge()))]
    model = fit(StackedDensityRegressor(parts, cv=2))
    model.save(tmp_path / "model")
    asked = "Pass the classes or functions as objects={'Ridge': Ridge}"
    with pytest.raises(ValueError, match=asked):
        skgpstoch.load(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model", objects={"Ridge": Ridge, "Lasso": LinearRegression})
    assert bits(again) == bits(model)


# ---- what a state is made of -------------------------------------------------------------------


def assert_is_plain(model):
    """A pickle names our class, NumPy and Python's own alone, and so do files of skops."""
    unpickler = Watched(io.BytesIO(pickle.dumps(model)))
    assert type(unpickler.load()) is type(model)
    assert unpickler.found.pop(type(model).__name__) == type(model).__module__
    assert {module.partition(".")[0] for module in unpickler.found.values()} <= {"numpy"}
    assert kinds(model.__getstate__()) <= {dict, list, str, np.ndarray}


class Watched(pickle.Unpickler):
    """Knows what it was asked to import."""

    def __init__(self, file):
        super().__init__(file)
        self.found = {}

    def find_class(self, module, name):
        self.found[name] = module
        return super().find_class(module, name)


def kinds(state):
    if isinstance(state, np.ndarray):
        assert state.dtype.kind in "biuf"
    if isinstance(state, dict):
        return {dict}.union(*(kinds(v) for v in (*state, *state.values())))
    return {type(state)}.union(*map(kinds, state)) if isinstance(state, list) else {type(state)}


@pytest.mark.slow
def test_pickles_are_small():
    """As a fit of ten seconds ago left them: matrices by halves, networks in float32."""
    model = fit(SVGPRegressor(n_inducing=40, max_iter=2, random_state=0))
    size = len(pickle.dumps(model))
    tensors = {t.data_ptr(): t.nbytes for t in model.posterior_.state_dict().values()}
    assert size < 0.7 * sum(tensors.values()) + 20_000
    ensemble = fit(DeepKernelEnsembleRegressor(max_iter=2, random_state=0))
    buffer = io.BytesIO()
    torch.save(ensemble.posterior_, buffer)
    assert len(pickle.dumps(ensemble)) < 0.75 * buffer.tell()


def test_equal_models_have_equal_pickles():
    a, b = (fit(SVGPRegressor(**QUICK)) for _ in range(2))
    assert pickle.dumps(a) == pickle.dumps(b)
    assert joblib.hash(a) == joblib.hash(b)

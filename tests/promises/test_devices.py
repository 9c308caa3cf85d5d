"""Fits and predictions on an accelerator, a pretend one: as on the CPU, and with little traffic.

The same operations give the same bits on both. Branches that are others on purpose, each with its
reason:

- kernels of few rows are scikit-learn's own objects on the CPU, where that is quicker
  (kernels/matrices.py);
- squared distances of many columns are products of matrices on the CPU, and the few pairs that lose
  digits are mended, which an accelerator would have to count (kernels/distances.py);
- where a gradient is summed pair by pair, the CPU goes by columns (kernels/distances.py);
- patches are gathered by the operation whose gradient is exact to the bit
  (models/features/patches.py);
- draws by rejection are proposed eight times before anybody asks whether all are accepted, where
  the CPU asks each time (likelihoods/rejection.py);
- blocks are of as many numbers as are quick (data/devices.py).

The fixture `alike` has the CPU take the accelerator's, and then all is compared to the last bit.
`test_branches_of_the_cpu` compares without it, to a tolerance.
"""

import functools
import gc
import inspect
import itertools
import pickle
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch
from conftest import DROP_IN, ESTIMATORS, FINITE_ONE, IMAGES, OF_OTHERS, constructor, named
from families import PROMISES, by_default, representatives, slow_cases, some_of, unless
from numpy.testing import assert_allclose, assert_array_equal
from shared import Calls, kill
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import kernels as sk
from sklearn.linear_model import Ridge
from torch import nn

import skgpstoch as sg
import skgpstoch.kernels.distances
import skgpstoch.kernels.matrices
import skgpstoch.likelihoods.rejection
import skgpstoch.models.features.patches
from skgpstoch import likelihoods
from skgpstoch.data import devices
from skgpstoch.methods.automatic import automatic_classifier, automatic_regressor
from skgpstoch.training.checkpoint import Checkpoint
from skgpstoch.training.loop import Trainer

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (40, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(len(X))
OUTPUTS = np.column_stack([Y, np.cos(X[:, 1])])
COUNTS = RNG.poisson(np.exp(Y))
CLASSES = np.digitize(X[:, 1] - np.sin(X[:, 0]), [-1.0, 1.0]) * 10 - 5
PIXELS = RNG.standard_normal((len(X), 36))
FEW = 4  # rows that are predicted
FULL = sk.ConstantKernel() * sk.RBF() + sk.WhiteKernel(0.1)

TWO_CLASSES = (sg.QSGPClassifier, sg.QSRVMClassifier)
QUICK = {"max_iter": 1, "batch_size": 20, "n_inducing": 5}
NATURAL = {"solver": "natural"}
CHEAP = {
    sg.ADMMGaussianProcessRegressor: {"max_iter": 1},
    sg.DLMClassifier: {"max_iter": 1, "loss": sg.LogLoss("product", n_samples=2)},
}


@pytest.fixture
def alike(monkeypatch):
    """The CPU takes the branches of accelerators."""
    monkeypatch.setattr(devices, "HOST_ELEMENTS", devices.MOST_ELEMENTS)
    for module in (
        skgpstoch.kernels.distances,
        skgpstoch.models.features.patches,
        skgpstoch.likelihoods.rejection,
    ):
        monkeypatch.setattr(module, "is_host", lambda device: False)


def quick(cls, **params):
    """A model that is fitted in a few steps."""
    own = cls().get_params()
    some = {name: value for name, value in QUICK.items() if name in own}
    if cls in IMAGES:
        some |= {"image_shape": (6, 6)}
    if cls in (sg.DeepGPRegressor, sg.DeepGPClassifier):
        some |= {"n_samples": 2}
    if cls in DROP_IN:
        some["kernel"] = FULL if cls is sg.GaussianProcessRegressor else sk.RBF()
    some |= {"n_waves": 4} if "n_waves" in own else {}
    some |= CHEAP.get(cls, {}) | params
    return constructor(cls)(**{name: value for name, value in some.items() if name in own})


def rows_of(cls):
    return PIXELS if cls in IMAGES else X


def targets_of(cls):
    """What a model of this class can be fitted to."""
    if not is_classifier(cls()):
        return Y
    return CLASSES > 0 if cls in TWO_CLASSES else CLASSES


def everything(model, X, y, **known):
    """All that a model says of rows."""
    found = [getattr(model, name, None) for name in LEARNED]
    if is_classifier(model):
        asked = {name: (X,) for name in OF_CLASSES}
    else:
        asked = {"predict": (X,), "predict_std": (X,), "predict_interval": (X, 0.8)}
        asked |= {"predictive_cdf": (X, y), "sample_y": (X, 2, 3)}
        found += [covariance(model, X)]
    if type(model) not in DROP_IN:
        asked["log_marginal_likelihood"] = X, y
    for name, given in (asked | {"log_predictive_density": (X, y)}).items():
        method = getattr(model, name, None)
        found += [] if method is None else [answer(method, *given, **known_by(method, known))]
    return flat(found)


def answer(method, *given, **known):
    """What it returns, or why it refuses."""
    try:
        return method(*given, **known)
    except ValueError as error:
        return str(error)


def covariance(model, X):
    """Of f, which all likelihoods have."""
    if isinstance(model, tuple(OF_OTHERS)):
        return None
    of_f = {} if type(model) in DROP_IN else {"latent": True}
    return answer(model.predict, X, return_cov=True, **of_f)


def known_by(method, known):
    names = inspect.signature(method).parameters
    return {name: value for name, value in known.items() if name in names}


def flat(parts):
    """Numbers and texts of parts that may be tuples."""
    parts = [p for part in parts for p in (part if isinstance(part, tuple) else (part,))]
    return [p if isinstance(p, str) else np.asarray(p, dtype=float) for p in parts if p is not None]


OF_CLASSES = "predict_proba", "predict_log_proba", "latent_mean_and_variance", "predict_std"
LEARNED = ("loss_curve_", "validation_scores_", "log_marginal_likelihood_value_")


def compared(found, expected, **tolerance):
    """Assert that two models say the same, to the last bit or to a tolerance."""
    for a, b in zip(found, expected, strict=True):
        if tolerance and not isinstance(b, str):
            assert_allclose(a, b, **tolerance)
        else:
            assert_array_equal(a, b)


def assert_on_host(model):
    """What was fitted has nothing of the device but its name, a parameter of models."""
    assert b"pretend_device" not in pickle.dumps(model)


# ---- what is done with every estimator ---------------------------------------------------------


class Case:
    """An estimator, its data, and where it is."""

    def __init__(self, cls, device, monkeypatch=None, folder=None):
        self.cls, self.device = cls, device
        self.monkeypatch, self.folder = monkeypatch, folder
        self.X = rows_of(cls)
        self.y = targets_of(cls)

    def make(self, **params):
        return quick(self.cls, device=self.device, **params)

    def said_by(self, model, **known):
        assert_on_host(model)
        of_few = {name: value[:FEW] for name, value in known.items()}
        return everything(model, self.X[:FEW], self.y[:FEW], **of_few)


def plain(case):
    return case.said_by(case.make().fit(case.X, case.y))


def weights(case):
    weight = np.arange(len(case.X)) % 3 * 0.7
    return case.said_by(case.make().fit(case.X, case.y, sample_weight=weight))


def exposure(case):
    case.y, known = COUNTS, {"exposure": np.linspace(0.5, 2.0, len(X))}
    model = case.make(likelihood="poisson", loss="elbo", **NATURAL)
    return case.said_by(model.fit(case.X, case.y, **known), **known)


def known_noise(case):
    known = {"y_std": np.linspace(0.1, 0.5, len(X))}
    model = case.make(likelihood="gaussian", **NATURAL)
    return case.said_by(model.fit(case.X, case.y, **known), **known)


def outputs(case):
    case.y = OUTPUTS
    return case.said_by(case.make().fit(case.X, case.y))


def stream(case):
    model = case.make()
    some = {"classes": np.unique(case.y)} if is_classifier(model) else {}
    model.partial_fit(case.X[:25], case.y[:25], **some)
    return case.said_by(model.partial_fit(case.X[25:], case.y[25:]))


def warm_start(case):
    model = case.make(warm_start=True).fit(case.X, case.y)
    return case.said_by(model.fit(case.X[:35], case.y[:35]))


def checkpoint(case):
    model = case.make(checkpoint_dir=case.folder / str(case.device is None))
    kill(model, (case.X, case.y), 1, case.monkeypatch)
    resumed = case.said_by(model.fit(case.X, case.y))
    compared(resumed, plain(case))
    return resumed


def ctrl_c(case):
    step, count = Trainer.train_step, [0]

    def interrupted(trainer, *args):
        count[0] += 1
        if count[0] == 2:
            raise KeyboardInterrupt
        return step(trainer, *args)

    with case.monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", interrupted)
        with sg.on_interrupt(), pytest.warns(ConvergenceWarning, match="interrupted"):
            model = case.make(max_iter=4).fit(case.X, case.y)
    return case.said_by(model)


def callbacks(case):
    """They are shown a model after every epoch that predicts, and end the fit."""
    seen = []

    class Shown(Calls):
        def on_fit_task_end(self, estimator, context, *, fitted_estimator):
            if context.task_name == "epoch":
                seen.append(everything(fitted_estimator, X[:FEW], Y[:FEW]))
            return len(seen) == 2

    model = case.make(max_iter=5).set_callbacks(Shown()).fit(case.X, case.y)
    assert len(seen) == 2
    case.monkeypatch.delattr(model, "_skl_callbacks")  # which cannot be pickled
    return [*case.said_by(model), *(a for shown in seen for a in shown)]


def user_module(case):
    """One that draws, too."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.2), nn.Tanh())
    model = case.make(feature_map=module, hidden_layer_sizes=()).fit(case.X, case.y)
    assert all(p.device.type == "cpu" for p in module.parameters())
    return case.said_by(model)


def held_out(case):
    return case.said_by(case.make(early_stopping=True).fit(case.X, case.y))


def double(case):
    return case.said_by(case.make(dtype="float64").fit(case.X, case.y))


def takes(name):
    return lambda cls: name in inspect.signature(cls.fit).parameters


def counts(cls):
    """Tell whether it takes exposures with a likelihood of counts, not only to refuse them."""
    return takes("exposure")(cls) and str in cls._parameter_constraints["likelihood"]


def has(name):
    return lambda cls: name in cls().get_params()


def stream_after_fit(case):
    model = case.make().fit(case.X[:25], case.y[:25])
    return case.said_by(model.partial_fit(case.X[25:], case.y[25:]))


def trains(cls):
    return cls not in DROP_IN


ONE_OF_EACH = representatives(PROMISES.index("same bits on an accelerator"), ESTIMATORS)
SCENARIOS = {  # with whom, and who stands for all in the default run
    plain: (lambda cls: True, ONE_OF_EACH),
    weights: (takes("sample_weight"), [sg.SVGPClassifier]),
    exposure: (counts, [sg.SVGPRegressor]),
    known_noise: (takes("y_std"), [sg.SVGPRegressor]),
    outputs: (lambda cls: not is_classifier(cls()), [FINITE_ONE]),
    stream: (lambda cls: hasattr(cls, "partial_fit"), [sg.MinimaxGaussianProcessRegressor]),
    stream_after_fit: (lambda cls: hasattr(cls, "partial_fit"), [FINITE_ONE]),
    warm_start: (has("warm_start"), []),  # there is one below
    checkpoint: (has("checkpoint_dir"), [sg.SVGPRegressor]),
    ctrl_c: (trains, [sg.MinimaxGaussianProcessRegressor]),
    callbacks: (trains, [sg.SVGPRegressor]),
    user_module: (has("feature_map"), [FINITE_ONE]),
    held_out: (has("early_stopping"), [sg.SVGPRegressor]),
    double: (has("dtype"), []),
}


def pairs():
    for scenario, (fits, covering) in SCENARIOS.items():
        for cls in filter(fits, ESTIMATORS):
            marks = unless(cls not in covering)
            yield pytest.param(scenario, cls, marks=marks, id=f"{scenario.__name__}-{named(cls)}")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("scenario", "cls"), list(pairs()))
@slow_cases("plain-(SVGP|SCGD|ADMM|Convolutional|DeepKernel|GaussianProcess|QSGP)")
@slow_cases("^plain-DeepGPRegressor$")
def test_every_estimator_is_the_same_to_the_last_bit(
    scenario, cls, alike, pretend, monkeypatch, tmp_path
):
    expected = scenario(Case(cls, None, monkeypatch, tmp_path))
    before = pretend.n_operations
    compared(scenario(Case(cls, "pretend", monkeypatch, tmp_path)), expected)
    assert pretend.n_operations > before


# ---- likelihoods, losses, solvers, and other parts ---------------------------------------------

LIKELIHOODS = {  # and targets
    "gaussian": Y,
    "student_t": Y,
    "shared_student_t": Y,
    "laplace": Y,
    "poisson": COUNTS,
    "softplus": COUNTS,
    "outputs": OUTPUTS,
    "bernoulli": CLASSES > 0,
    "probit": CLASSES > 0,
    "softmax": CLASSES,
    "robustmax": CLASSES,
}
MADE = {
    "softplus": likelihoods.Poisson("softplus"),
    "probit": likelihoods.Bernoulli("probit"),
    "outputs": "gaussian",
}
LOSSES = {
    "elbo": "elbo",
    "log": "log",
    "square": "square",
    **{name: sg.LogLoss(name, n_samples=2) for name in ("exact", "biased", "smoothed", "product")},
}
SOLVERS = ("collapsed", "lbfgs", "natural", "adam")
COVERING_PARTS = [
    ("gaussian", "elbo", "lbfgs"),
    ("student_t", "elbo", "natural"),
    ("shared_student_t", "log", "natural"),
    ("laplace", "elbo", "adam"),
    ("poisson", "log", "natural"),
    ("softplus", "smoothed", "adam"),
    ("bernoulli", "elbo", "natural"),
    ("softmax", "biased", "adam"),
]


def products():
    for parts in itertools.product(LIKELIHOODS, LOSSES, SOLVERS):
        marks = () if parts in COVERING_PARTS else pytest.mark.slow
        yield pytest.param(*parts, marks=marks)


def of_parts(device, likelihood, loss, solver):
    """What a model of these parts says, or why there is none."""
    y = LIKELIHOODS[likelihood]
    cls = sg.DLMRegressor if y.dtype.kind == "f" or y is COUNTS else sg.DLMClassifier
    parts = {"likelihood": MADE.get(likelihood, likelihood), "loss": LOSSES[loss]}
    params = {"kernel": None, "solver": solver, "max_iter": 1, **parts, "device": device}
    model = answer(quick(cls, **params).fit, X, y)
    return [model] if isinstance(model, str) else everything(model, X[:FEW], y[:FEW])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("likelihood", "loss", "solver"), list(products()))
@by_default("student_t", "softplus", "bernoulli", "lbfgs")
@slow_cases("bernoulli", "softplus")
def test_parts_are_the_same_to_the_last_bit(
    likelihood, loss, solver, alike, few_iterations, few_newton_steps_from_both_starts, pretend
):
    parts = likelihood, loss, solver
    expected = of_parts(None, *parts)
    assert parts not in COVERING_PARTS or len(expected) > 1
    compared(of_parts("pretend", *parts), expected)


RBF = sk.RBF([1.0, 2.0])
OPTIONS = {  # an estimator's other branches; those in the default run are named first
    "learned weights": (FINITE_ONE, {"weights": "learned"}),
    "odvgp": (sg.SolveGPRegressor, {"posterior": "odvgp", **NATURAL}),
    "inducing basis": (
        sg.QSGPRegressor,
        {"basis": "inducing", "augment": True, "n_components": 20},
    ),
    "adagrad": (sg.QSGPRegressor, {"solver": "adagrad"}),
    "noise of inputs": (sg.SVGPRegressor, {"noise": "input", **NATURAL}),
    "betas": (sg.DLMRegressor, {"beta": [0.1, 1.0], "hyperparameters": "fixed"}),
    "coordinates": (sg.ADMMGaussianProcessRegressor, {"kernel": FULL, "solver": "coordinate"}),
    "drop-in sgpr": (sg.GaussianProcessRegressor, {"method": "sgpr"}),
    "theory": (FINITE_ONE, {"averaging": "theory"}),
    "random features": (FINITE_ONE, {"kernel": FULL, "hidden_layer_sizes": ()}),
    "adadelta": (FINITE_ONE, {"solver": "adadelta"}),
    "two networks": (FINITE_ONE, {"n_estimators": 2}),
    "noise by validation": (FINITE_ONE, {"noise": "validation"}),
    "noise that is learned": (sg.BSGDGaussianProcessRegressor, {"noise": "learned"}),
    "decay": (FINITE_ONE, {"weight_decay": 0.1}),
    "whitened": (sg.SVGPRegressor, {"whiten": True, "solver": "adam"}),
    "not whitened": (sg.SVGPRegressor, {"whiten": False, "solver": "adam"}),
    "log1p": (sg.SVGPRegressor, {"loss": "log1p", "solver": "collapsed"}),
    "constant mean": (sg.SVGPRegressor, {"mean": "constant"}),
    "network on inputs": (sg.SVGPRegressor, {"hidden_layer_sizes": (4,)}),
    "averages": (sg.SVGPRegressor, {"averaging": 0.1, **NATURAL}),
    "k-means": (sg.SVGPRegressor, {"inducing_points": "kmeans"}),
    "three layers": (sg.DeepGPRegressor, {"n_layers": 3, "solver": "adam"}),
    "deep solve": (sg.DeepGPRegressor, {"posterior": "solve"}),
    "conv odvgp": (sg.ConvolutionalGPClassifier, {"posterior": "odvgp", "global_kernel": None}),
    "conv layers": (
        sg.ConvolutionalGPClassifier,
        {"hidden_channels": (2,), "max_iter": 1},
    ),
    "uniform weights": (sg.ConvolutionalGPRegressor, {"patch_weights": "uniform"}),
    "gaussian networks": (sg.DeepKernelEnsembleRegressor, {"likelihood": "gaussian"}),
    "naive": (sg.ADMMGaussianProcessRegressor, {"kernel": FULL, "scheme": "naive"}),
    "holdout": (sg.ADMMGaussianProcessRegressor, {"kernel": FULL, "scheme": "holdout"}),
    "iterative": (sg.ADMMGaussianProcessRegressor, {"kernel": FULL, "block_size": 8}),
    "learned kernel": (sg.QSGPRegressor, {"learn_kernel": True, "max_iter": 4}),
    "diagonal": (sg.QSGPRegressor, {"n_dense": 4}),
    "basis laplace": (sg.QSGPRegressor, {"likelihood": "laplace"}),
    **{
        f"drop-in {method}": (sg.GaussianProcessRegressor, {"method": method})
        for method in ("svgp", "nngp", "scgd")
    },
    "drop-in classes": (sg.GaussianProcessClassifier, {"method": "svgp"}),
    "one against one": (sg.GaussianProcessClassifier, {"multi_class": "one_vs_one"}),
    "no optimizer": (sg.GaussianProcessRegressor, {"optimizer": None}),
    **{
        f"kernel {i}": (sg.SVGPRegressor, {"kernel": kernel})
        for i, kernel in enumerate(
            [
                RBF + sk.WhiteKernel(),
                sk.Matern(nu=0.5) * sk.ConstantKernel(2.0),
                sk.Matern(nu=1.5) + sk.Matern(nu=2.5),
                sk.RationalQuadratic(),
                sk.ExpSineSquared() * RBF,
                sk.DotProduct() ** 2 + RBF,
                sk.Exponentiation(RBF, 1.5),
            ]
        )
    },
    "kernel of one's own": (sg.GaussianProcessRegressor, {"kernel": sk.Matern(nu=0.7) + FULL}),
}
DEFAULT_OPTIONS = 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "option",
    [
        pytest.param(name, marks=() if i < DEFAULT_OPTIONS else pytest.mark.slow)
        for i, name in enumerate(OPTIONS)
    ],
)
@slow_cases("adagrad", "betas")
def test_options_are_the_same_to_the_last_bit(option, alike, pretend):
    cls, params = OPTIONS[option]

    def said(device):
        case = Case(cls, device)
        return case.said_by(case.make(**params).fit(case.X, case.y))

    compared(said("pretend"), said(None))


# ---- estimators around others ------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """Estimators that choose for the user choose small models, at once."""
    for module, name in (
        (automatic_classifier, "DeepKernelEnsembleClassifier"),
        (automatic_regressor, "DeepKernelEnsembleRegressor"),
    ):
        make = functools.partial(quick_inside, getattr(sg, name))
        monkeypatch.setattr(module, name, make)


def quick_inside(cls, **params):
    small = {"hidden_layer_sizes": (8,), "n_estimators": 2, "calibrate": False}
    return quick(cls, **{**params, **(small if "n_waves" in cls().get_params() else QUICK)})


def stack(device):
    models = [("gp", quick(sg.SVGPRegressor, device=device))]
    models.append(("linear", sg.ConstantVarianceRegressor(Ridge(), cv=2)))
    return sg.StackedDensityRegressor(models, cv=2)


AROUND = {
    "automatic": lambda device: sg.AutoGaussianProcessRegressor(device=device, random_state=0),
    "automatic classes": lambda device: sg.AutoGaussianProcessClassifier(
        device=device, random_state=0
    ),
    "stack": stack,
    "one variance": lambda device: sg.ConstantVarianceRegressor(
        quick(sg.SVGPRegressor, device=device), cv=2
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", some_of(AROUND, ["automatic"]))
def test_estimators_around_others(name, small, one_kernel, alike, pretend, monkeypatch):
    rows = np.concatenate([X, X + 0.01])

    def said(device):
        model = AROUND[name](device)
        y = np.tile(CLASSES if is_classifier(model) else Y, 2)
        return everything(model.fit(rows, y), rows[:FEW], y[:FEW])

    expected = said(None)
    pretend.clear()
    compared(said("pretend"), expected)
    assert pretend.n_operations > 100


# ---- from one device to the other --------------------------------------------------------------

MOVED = [FINITE_ONE, sg.DLMClassifier, sg.GaussianProcessClassifier]
moved = pytest.mark.parametrize(
    "cls",
    [pytest.param(c, marks=() if c in MOVED else pytest.mark.slow) for c in ESTIMATORS],
    ids=named,
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@moved
@slow_cases("DLM")
def test_models_predict_on_either_device(cls, alike, pretend):
    """Fitted on the device: on the CPU after a pickle, and back again; nothing is left behind."""
    case = Case(cls, "pretend")
    model = case.make().fit(case.X, case.y)
    expected = case.said_by(model)
    moved = pickle.loads(pickle.dumps(model)).set_params(device=None)
    pretend.clear()
    compared(case.said_by(moved), expected)
    assert pretend.n_operations == 0
    moved.set_params(device="pretend")
    compared(case.said_by(moved), expected)
    assert pretend.n_operations > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_default_moves_its_models(small, one_kernel, alike, pretend):
    rows, y = np.concatenate([X, X + 0.01]), np.tile(Y, 2)
    model = AROUND["automatic"]("pretend").fit(rows, y)
    expected = model.predict(X)
    moved = model.set_params(device="cpu")
    pretend.clear()
    compared([moved.predict(X)], [expected])
    assert pretend.n_operations == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("cls", [FINITE_ONE, sg.SVGPClassifier, sg.GaussianProcessRegressor])
@slow_cases("SVGPClassifier")
def test_predictions_leave_nothing_on_the_device(cls, pretend):
    case = Case(cls, "pretend")
    model = case.make().fit(case.X, case.y)
    case.said_by(model)
    devices._placed.cache_clear()
    gc.collect()
    assert pretend.alive == 0


def test_without_the_device_predictions_are_on_the_cpu(monkeypatch, pretend):
    case = Case(FINITE_ONE, "pretend")
    model = case.make().fit(case.X, case.y)
    expected = model.predict(X)
    monkeypatch.setattr(torch.get_device_module("pretend"), "device_count", lambda: 0)
    with pytest.warns(UserWarning, match="predicting on the CPU"):
        assert_array_equal(model.predict(X), expected)


@pytest.mark.slow
def test_a_checkpoint_of_the_device_is_resumed_there_alone(pretend, monkeypatch, tmp_path):
    """As its generator is of the device: elsewhere the fit starts anew, or is the same."""
    case = Case(FINITE_ONE, "pretend")
    model = case.make(checkpoint_dir=tmp_path)
    kill(model, (X, Y), 1, monkeypatch)
    (file,) = tmp_path.iterdir()
    state = Checkpoint(tmp_path, file.stem).load(torch.device("cpu"))
    assert {t.device.type for t in state["objective"].values() if torch.is_tensor(t)} == {"cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        here = clone(model).set_params(device=None).fit(X, Y)
    expected = quick(FINITE_ONE).fit(X, Y)
    compared(everything(here, X[:FEW], Y[:FEW]), everything(expected, X[:FEW], Y[:FEW]))


# ---- branches that differ ----------------------------------------------------------------------

BRANCHES = {  # what is special about each is said on top of this module
    "few rows": (sg.GaussianProcessRegressor, {}, 1e-9),
    "few rows of classes": (sg.GaussianProcessClassifier, {}, 1e-6),
    "patches": (sg.ConvolutionalGPRegressor, {"dtype": "float64"}, 1e-7),
    "many columns": (sg.SVGPRegressor, {"dtype": "float64"}, 1e-7),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("branch", BRANCHES)
def test_branches_of_the_cpu(branch, pretend):
    cls, params, rtol = BRANCHES[branch]

    def said(device):
        case = Case(cls, device)
        case.X = PIXELS if branch == "many columns" else case.X
        return case.said_by(case.make(**params).fit(case.X, case.y))

    compared(said("pretend"), said(None), rtol=rtol, atol=rtol)


# ---- traffic -----------------------------------------------------------------------------------


class Step(NamedTuple):
    """What a training step asked of the device."""

    operations: int
    to_device: int
    to_host: int
    waits: int


def read(traffic):
    return np.array(
        [traffic.n_operations, traffic.to_device, traffic.to_host, traffic.n_waits], dtype=int
    )


@pytest.fixture
def steps(pretend, monkeypatch):
    """The traffic of every training step so far."""
    found, step = [], Trainer.train_step

    def counted(trainer, *args):
        before = read(pretend)
        loss = step(trainer, *args)
        found.append(Step(*(read(pretend) - before).tolist()))
        return loss

    monkeypatch.setattr(Trainer, "train_step", counted)
    return found


QUIET = {
    "scgd": (FINITE_ONE, {}),
    "scgd kernel": (FINITE_ONE, {"kernel": FULL, "hidden_layer_sizes": ()}),
    **{f"svgp {s}": (sg.SVGPRegressor, {"solver": s}) for s in ("natural", "collapsed", "adam")},
    "svgp poisson": (sg.SVGPRegressor, {"likelihood": "poisson", **NATURAL}),
    "svgp student_t": (sg.SVGPRegressor, {"likelihood": "student_t", **NATURAL}),
    "svgp laplace": (sg.SVGPRegressor, {"likelihood": "laplace", **NATURAL}),
    "svgp classes": (sg.SVGPClassifier, {}),
    "solve": (sg.SolveGPRegressor, NATURAL),
    "dlm": (sg.DLMRegressor, {}),
    "dlm classes": (sg.DLMClassifier, {"loss": "log"}),
    "dlm square": (sg.DLMRegressor, {"loss": "square"}),
    "dlm product": (sg.DLMClassifier, {}),
    "qsgp": (sg.QSGPRegressor, {"n_components": 20, "n_subset": 0, "basis_batch_size": 10}),
    "networks": (sg.DeepKernelEnsembleRegressor, {}),
    "networks of classes": (sg.DeepKernelEnsembleClassifier, {}),
    "deep": (sg.DeepGPRegressor, {}),
    "deep classes": (sg.DeepGPClassifier, {}),
    "convolutional": (sg.ConvolutionalGPRegressor, {}),
    "convolutional classes": (sg.ConvolutionalGPClassifier, {}),
    "convolutional layers": (
        sg.ConvolutionalGPClassifier,
        {"hidden_channels": (2,)},
    ),
}


FIRST = [
    "scgd",
    "svgp natural",
    "svgp collapsed",
    "svgp adam",
    "dlm",
    "dlm classes",
    "qsgp",
    "networks",
    "deep",
    "convolutional",
]  # in the default run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", some_of(QUIET, FIRST))
@slow_cases("dlm classes", "adam", "qsgp")
def test_steps_wait_once_at_most(name, steps):
    """And copy nothing onto the device, but for constants that are placed in the first."""
    cls, params = QUIET[name]
    case = Case(cls, "pretend")
    y = COUNTS if params.get("likelihood") == "poisson" else case.y
    case.make(**{"max_iter": 2, "batch_size": 20, **params}).fit(case.X, y)
    assert len(steps) >= 3
    later = steps[1:]
    most = 2 if name == "dlm product" else 1  # which draws twice, and asks each time if all are
    of_sweeps = steps[::2] if name == "qsgp" else []  # which asks for sizes, to choose a type
    for step in steps:
        assert step.waits <= most + (step in of_sweeps)
    assert max(step.to_host for step in steps) <= 1
    assert max(step.to_device for step in later) == 0, later
    assert min(step.operations for step in steps) > 20


ASKED = {
    "mean": lambda model: model.predict,
    "std": lambda model: functools.partial(model.predict, return_std=True),
    "interval": lambda model: model.predict_interval,
    "draws": lambda model: model.sample_y,
    "density": lambda model: lambda X: model.log_predictive_density(X, np.ones(len(X))),
    "distribution": lambda model: lambda X: model.predictive_cdf(X, np.ones(len(X))),
}
ASKED_OF_CLASSES = {
    "probabilities": lambda model: model.predict_proba,
    "deviations": lambda model: model.predict_std,
    "latent": lambda model: model.latent_mean_and_variance,
}
BLOCK = 8
SEARCHED = ("robust", "networks", "deep")  # distributions whose quantiles have no closed form


def traffic_of_blocks(ask, rows, n_blocks, pretend):
    pretend.clear()
    ask(np.tile(rows[:BLOCK], (n_blocks, 1)))
    return read(pretend)


PREDICT = {
    name: QUIET[name] for name in ("scgd", "svgp natural", "svgp classes", "networks of classes")
} | {
    "robust": (sg.SVGPRegressor, {"likelihood": "student_t", **NATURAL}),
    "networks": QUIET["networks"],
    "deep": QUIET["deep"],
    "convolutional": QUIET["convolutional"],
}
FIRST_BLOCKS = ["scgd", "svgp natural", "svgp classes", "networks"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", some_of(PREDICT, FIRST_BLOCKS))
@slow_cases("networks")
def test_blocks_of_predictions_wait_for_results_alone(name, pretend, monkeypatch):
    cls, params = PREDICT[name]
    case = Case(cls, "pretend")
    model = case.make(**params).fit(case.X, case.y)
    monkeypatch.setattr(type(model.posterior_), "block_rows", BLOCK)
    monkeypatch.setattr(devices.map_blocks, "__defaults__", (BLOCK,))
    for way, bound in (ASKED_OF_CLASSES if is_classifier(model) else ASKED).items():
        ask = bound(model)
        one, two, four = (traffic_of_blocks(ask, case.X, n, pretend) for n in (1, 2, 4))
        _, to_device, to_host, waits = (four - two) / 2
        results = 3 if is_classifier(model) else 2
        if way in ("interval", "distribution") and name in SEARCHED:
            # Found by SciPy on the host, or step by step. An accelerator is asked every few steps:
            # to go on blindly to the last one would take longer than to ask.
            assert to_device <= 4
            assert waits - to_host <= 12
            continue
        assert way == "draws" or four[0] > two[0] > one[0], way  # some draw for all rows at once
        assert to_device == 0, way
        assert to_host == waits <= results, way


# ---- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [FINITE_ONE, sg.SVGPRegressor], ids=named)
def test_predictions_go_on_in_blocks_that_fit(cls, pretend):
    """The same but for the rounding of products of other shapes."""
    case = Case(cls, "pretend")
    model = case.make().fit(X, Y)
    rows = np.tile(X, (50, 1))
    expected = model.predict(rows, return_std=True)
    before, pretend.budget = read(pretend), float("inf")
    pretend.clear()
    model.predict(rows, return_std=True)
    needed, n_operations = pretend.peak - pretend.alive, pretend.n_operations
    pretend.clear()
    pretend.budget = pretend.alive + 0.5 * needed
    found = model.predict(rows, return_std=True)
    assert pretend.peak <= pretend.budget
    assert pretend.n_operations > n_operations
    assert before.any()
    compared(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_a_budget_too_small_for_a_row_is_an_error(pretend):
    model = Case(FINITE_ONE, "pretend").make().fit(X, Y)
    pretend.budget = pretend.alive + 2000
    with pytest.raises(MemoryError, match="Predict fewer rows at a time"):
        model.predict(X)
    pretend.budget = float("inf")
    assert np.isfinite(model.predict(X)).all()


def test_a_block_takes_a_part_of_the_memory_that_is_free(pretend):
    device = torch.device("pretend", 0)
    sizes = []
    for free in (1e15, 1e9, 1e6, 1.0):
        pretend.budget = pretend.alive + free
        sizes.append(devices.block_elements(device))
    assert sizes[0] == devices.MOST_ELEMENTS
    assert sizes[1] * 8 * devices.PARTS <= 1e9 < sizes[1] * 16 * devices.PARTS
    assert sizes[2:] == [devices.LEAST_ELEMENTS] * 2


@pytest.mark.slow
@pytest.mark.parametrize("cls", [FINITE_ONE, sg.SVGPRegressor], ids=named)
def test_a_step_that_does_not_fit_says_what_to_lower(cls, pretend, monkeypatch):
    step = Trainer.train_step

    def starved(trainer, *args):
        pretend.budget = pretend.alive + 500
        return step(trainer, *args)

    model = Case(cls, "pretend").make()
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", starved)
        with pytest.raises(MemoryError, match="batch_size"):
            model.fit(X, Y)
    assert not hasattr(model, "posterior_")
    pretend.budget = float("inf")
    assert np.isfinite(model.fit(X, Y).predict(X)).all()


@pytest.mark.slow
def test_a_warm_start_goes_on_from_a_calibrated_model(alike, pretend):
    """Which keeps the noise as it was trained."""

    def said(device):
        case = Case(sg.DLMRegressor, device)
        params = {"hyperparameters": "fixed", "calibrate": True, "warm_start": True, "max_iter": 2}
        model = case.make(loss="log", **params).fit(X, Y)
        return case.said_by(model.fit(X, Y))

    compared(said("pretend"), said(None))


def test_an_error_of_memory_keeps_none(pretend):
    """Notebooks keep the last error, and with it what its frames hold."""
    case = Case(FINITE_ONE, "pretend")
    gc.collect()
    before = pretend.alive
    pretend.budget = before + 30_000
    with pytest.raises(MemoryError, match="batch_size") as caught:
        case.make().fit(np.tile(X, (20, 1)), np.tile(Y, 20))
    gc.collect()
    assert pretend.alive == before, caught

"""Fits and predictions on an accelerator, a pretend one: as on the CPU, and with little traffic.

The same operations give the same bits on both. Branches that are others on purpose, each with its
reason:

- kernels of few rows are scikit-learn's own objects on the CPU, where that is quicker
  (kernels/matrices.py);
- squared distances of many columns are products of matrices on the CPU, and the few pairs that lose
  digits are mended, which an accelerator would have to count (kernels/distances.py);
- where a gradient is summed pair by pair, the CPU goes by columns (kernels/distances.py);
- patches are gathered by the operation whose gradient is exact to the bit (features/patches.py);
- blocks are of as many numbers as are quick (data/devices.py).

The fixture `alike` has the CPU take the accelerator's, and then all is compared to the last bit.
`test_branches_of_the_cpu` compares without it, to a tolerance.
"""

import inspect
import pickle

import numpy as np
import pytest
import torch
from conftest import DROP_IN, ESTIMATORS, FINITE_ONE, IMAGES, OF_OTHERS, constructor, named
from numpy.testing import assert_allclose, assert_array_equal
from shared import Calls, kill
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import kernels as sk
from torch import nn

import skgpstoch as sg
import skgpstoch.features.patches
import skgpstoch.kernels.distances
import skgpstoch.kernels.matrices
from skgpstoch.data import devices
from skgpstoch.training.loop import Trainer

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (40, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(len(X))
OUTPUTS = np.column_stack([Y, np.cos(X[:, 1])])
COUNTS = RNG.poisson(np.exp(Y))
CLASSES = np.digitize(X[:, 1] - np.sin(X[:, 0]), [-1.0, 1.0]) * 10 - 5
PIXELS = RNG.standard_normal((len(X), 36))
FEW = 7  # rows that are predicted
FULL = sk.ConstantKernel() * sk.RBF() + sk.WhiteKernel(0.1)

TWO_CLASSES = (sg.QSGPClassifier, sg.QSRVMClassifier)
QUICK = {"max_iter": 2, "batch_size": 20, "n_inducing": 6}
NATURAL = {"solver": "natural"}
CHEAP = {
    sg.ADMMGaussianProcessRegressor: {"max_iter": 1},
    sg.DLMClassifier: {"max_iter": 1, "loss": sg.LogLoss("product", n_samples=2)},
}


@pytest.fixture
def alike(monkeypatch):
    """The CPU takes the branches of accelerators."""
    monkeypatch.setattr(skgpstoch.kernels.matrices, "SINGLE_BLOCK_ROWS", 0)
    monkeypatch.setattr(devices, "HOST_ELEMENTS", devices.MOST_ELEMENTS)
    for module in (skgpstoch.kernels.distances, skgpstoch.features.patches):
        monkeypatch.setattr(module, "is_host", lambda device: False)


def quick(cls, **params):
    """A model that is fitted in a few steps."""
    own = cls().get_params()
    some = {name: value for name, value in QUICK.items() if name in own}
    if cls in IMAGES:
        some |= {"image_shape": (6, 6), "n_samples": 2, "n_predict_samples": 2}
    if cls in (sg.DeepGPRegressor, sg.DeepGPClassifier):
        some |= {"n_samples": 2, "n_predict_samples": 2}
    if cls in DROP_IN:
        some["kernel"] = FULL if cls is sg.GaussianProcessRegressor else sk.RBF()
    some |= {"n_waves": 10} if "n_waves" in own else {}
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
    """What was fitted has nothing of the device but its name, a parameter."""
    content = pickle.dumps(model)
    assert b"pretend_device" not in content
    assert content.count(b"pretend") <= (model.device is not None)


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
        with pytest.warns(ConvergenceWarning, match="interrupted"):
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
    model = case.make(feature_map=module).fit(case.X, case.y)
    assert all(p.device.type == "cpu" for p in module.parameters())
    return case.said_by(model)


def held_out(case):
    return case.said_by(case.make(early_stopping=True).fit(case.X, case.y))


def double(case):
    return case.said_by(case.make(dtype="float64").fit(case.X, case.y))


def takes(name):
    return lambda cls: name in inspect.signature(cls.fit).parameters


def has(name):
    return lambda cls: name in cls().get_params()


def trains(cls):
    return cls not in DROP_IN


SCENARIOS = {  # with whom, and who stands for all in the default run
    plain: (lambda cls: True, ESTIMATORS),
    weights: (takes("sample_weight"), [FINITE_ONE, sg.SVGPClassifier]),
    exposure: (takes("exposure"), [sg.SVGPRegressor]),
    known_noise: (takes("y_std"), [sg.SVGPRegressor]),
    outputs: (lambda cls: not is_classifier(cls()), [sg.SVGPRegressor, FINITE_ONE]),
    stream: (lambda cls: hasattr(cls, "partial_fit"), [FINITE_ONE, sg.DLMClassifier]),
    warm_start: (has("warm_start"), [FINITE_ONE, sg.SolveGPRegressor]),
    checkpoint: (has("checkpoint_dir"), [FINITE_ONE, sg.SVGPRegressor]),
    ctrl_c: (trains, [sg.MinimaxGaussianProcessRegressor]),
    callbacks: (trains, [sg.SVGPRegressor]),
    user_module: (has("feature_map"), [FINITE_ONE, sg.DLMRegressor]),
    held_out: (has("early_stopping"), [sg.SVGPRegressor]),
    double: (has("dtype"), [FINITE_ONE]),
}


def pairs():
    for scenario, (fits, covering) in SCENARIOS.items():
        for cls in filter(fits, ESTIMATORS):
            marks = () if cls in covering else pytest.mark.slow
            yield pytest.param(scenario, cls, marks=marks, id=f"{scenario.__name__}-{named(cls)}")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("scenario", "cls"), list(pairs()))
def test_every_estimator_is_the_same_to_the_last_bit(
    scenario, cls, alike, pretend, monkeypatch, tmp_path
):
    expected = scenario(Case(cls, None, monkeypatch, tmp_path))
    before = pretend.n_operations
    compared(scenario(Case(cls, "pretend", monkeypatch, tmp_path)), expected)
    assert pretend.n_operations > before

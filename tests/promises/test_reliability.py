"""What users must never meet: lost state, side effects, irreproducible or non-finite results."""

import contextlib
import copy
import os
import pickle
import random
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import shared
import torch
from conftest import (
    ESTIMATORS,
    FINITE,
    FINITE_ONE,
    SPARSE_ONE,
    SPARSE_REGRESSORS,
    constructor,
    every_finite,
    every_objective,
    every_regressor,
    fitted_once,
    harmful,
    named,
    on_each,
    svgp_for_log_loss,
)
from families import slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, RationalQuadratic, WhiteKernel
from sklearn.linear_model import Ridge
from sklearn.utils import check_random_state
from torch import nn

import skgpstoch.training.checkpoint
import skgpstoch.training.loop
from skgpstoch import (
    AutoGaussianProcessRegressor,
    BSGDGaussianProcessRegressor,
    ConstantVarianceRegressor,
    DLMRegressor,
    FITCRegressor,
    GaussianProcessRegressor,
    MinimaxGaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
    StackedDensityRegressor,
    SVGPRegressor,
)
from skgpstoch.data.devices import BLOCK_ROWS
from skgpstoch.maths.linalg import NotPositiveDefiniteError
from skgpstoch.models.posteriors.conjugate import ConjugatePosterior
from skgpstoch.training.checkpoint import SUFFIX

GRID = np.column_stack([np.linspace(-2.9, 2.9, 40), np.zeros(40)])
FOURIER = {"kernel": RBF() + WhiteKernel(0.1), "hidden_layer_sizes": (), "n_components": 30}


class Hooked(nn.Module):
    """A small network that shows each batch of its outputs to a hook, which may replace them."""

    def __init__(self, hook, n_inputs=2):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.network = nn.Sequential(nn.Linear(n_inputs, 8), nn.Tanh())
        self.hook = hook  # a function: copies of the module share it

    def forward(self, X):
        Z = self.network(X)
        replaced = self.hook(self, Z)
        return Z if replaced is None else replaced


def in_training(action, batch, once=True):
    """A hook that acts on the given batch of the training (counted from 0), and on later ones."""
    count = [0]

    def hook(module, Z):
        if not module.training:
            return None
        count[0] += 1
        acts = count[0] == batch + 1 if once else count[0] > batch
        return action(Z) if acts else None

    return hook


def throw(error):
    def action(*args):
        raise error

    return action


def everything_of(model, X):
    """All predictions of a model, as one array."""
    std, draws = model.predict_std(X), model.sample_y(X, 2, random_state=3)
    return np.concatenate([a.reshape(len(X), -1) for a in (model.predict(X), std, draws)], axis=1)


# ------------------------------------------------------------------------------- no side effects
def test_constructor_parameters_are_the_users(finite, sine):
    X, y = sine
    module = nn.Sequential(nn.Linear(2, 8), nn.Tanh())
    given = {
        "kernel": 2.0 * RBF([1.0] * 8) + WhiteKernel(0.1),
        "hidden_layer_sizes": [4],
        "feature_map": module,
        "n_components": 20,
        "max_iter": 1,
        "device": torch.device("cpu"),
        "random_state": np.random.RandomState(0),
    }
    model = finite(**given)
    before, weights = model.get_params(), copy.deepcopy(module.state_dict())
    theta = given["kernel"].theta.copy()
    model.fit(X, y).partial_fit(X, y)
    everything_of(model, X)
    after = model.get_params()
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in given)
    assert {k: v for k, v in after.items() if not hasattr(v, "theta")} == {
        k: v for k, v in before.items() if not hasattr(v, "theta")
    }
    assert_array_equal(given["kernel"].theta, theta)
    assert given["hidden_layer_sizes"] == [4]
    assert all(torch.equal(value, weights[k]) for k, value in module.state_dict().items())
    assert all(p.requires_grad and p.dtype == torch.float32 for p in module.parameters())


def global_state():
    name, keys, *rest = check_random_state(None).get_state()  # NumPy's global generator
    return {
        "numpy": (name, keys.tolist(), *rest),
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "errors": np.geterr(),
        "filters": list(warnings.filters),
        "environment": dict(os.environ),
        "directory": sorted(os.listdir()),
    }


@every_finite
@pytest.mark.parametrize("random_state", [None])
@pytest.mark.parametrize("kind", ["network", "fourier", "dropout"])
@slow_cases("(fourier|dropout)-None-(BSGD|Minimax)")
def test_global_state_is_untouched(finite, sine, random_state, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = sine
    module = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2))
    params = {"dropout": {"feature_map": module}, "fourier": FOURIER, "network": {}}[kind]
    model = finite(**{"hidden_layer_sizes": (8,), **params}, max_iter=2, random_state=random_state)
    clone(model).fit(X, y)  # the first of a process imports what sets filters of its own
    before = global_state()
    model.fit(X, y).partial_fit(X, y)
    model.sample_y(X, random_state=random_state)
    model.predict_interval(X)
    model.predict(X[:50], return_cov=True)
    model.log_marginal_likelihood(X, y)
    after = global_state()
    assert {name for name in before if before[name] != after[name]} == set()


@harmful
@pytest.mark.parametrize("random_state", [0, None])
def test_the_global_seeds_have_no_influence(quick, sine, random_state):
    """With an int nothing but it matters; with None the seed is fresh, whatever the global one."""
    X, y = sine
    predictions = []
    module = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2))
    for seed in (1, 1, 2):
        check_random_state(None).seed(seed)
        torch.manual_seed(seed)
        random.seed(seed)
        model = quick(max_iter=1, feature_map=module, random_state=random_state).fit(X, y)
        predictions.append(model.predict(GRID))
    same = [np.array_equal(predictions[0], other) for other in predictions[1:]]
    assert same == [True, True] if random_state == 0 else same == [False, False]


GENERAL = {"kernel": RationalQuadratic() + WhiteKernel(), "hidden_layer_sizes": ()}


@pytest.mark.parametrize(
    ("finite", "params"),
    [(FINITE_ONE, {}), (FINITE_ONE, FOURIER), (BSGDGaussianProcessRegressor, GENERAL)],
    ids=["network", "fourier", "general kernel"],
    indirect=["finite"],
)
def test_the_users_default_dtype_is_no_obstacle(quick_finite, sine, params):
    X, y = sine
    torch.set_default_dtype(torch.float64)
    try:
        model = quick_finite(**params, max_iter=12).fit(X, y)
        if params is not GENERAL:
            model.partial_fit(X, y)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert model.score(X, y) > 0.7


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@slow_cases("SVGPRegressor-no_grad", "SCGDGaussian-inference")
def test_fits_where_gradients_are_off(quick, sine, context):
    X, y = sine
    with context():
        inside = quick(max_iter=3).fit(X, y).partial_fit(X, y)
    outside = quick(max_iter=3).fit(X, y).partial_fit(X, y)
    assert_array_equal(inside.predict(GRID), outside.predict(GRID))


# -------------------------------------------------------------------------------- reproducibility
def each_kind(kinds):
    """A mark: one class of the finite family with all kinds, the others with the first."""
    first = next(iter(kinds))
    return pytest.mark.parametrize(
        ("finite", "params"),
        [
            pytest.param(cls, params, id=f"{named(cls)}-{kind}")
            for cls in FINITE
            for kind, params in kinds.items()
            if cls is FINITE_ONE or kind == first
        ],
        indirect=["finite"],
    )


REPRODUCIBLE = {
    "network": {},
    "ensemble": {"n_estimators": 3},
    "fourier": FOURIER,
    "dropout": {"feature_map": nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.3))},
    "learned noise": {"noise": "learned", "early_stopping": False},
}


@pytest.mark.slow
@each_kind(REPRODUCIBLE)
@slow_cases("BSGD", "SCGDGaussian-(network|learned)", "ensemble", "fourier")
def test_a_seed_names_the_result_to_the_bit(quick_finite, sine, params):
    X, y = sine
    params = {**params, "max_iter": 4}
    model = quick_finite(**params).fit(X, y)
    found = everything_of(model, GRID)
    for again in (
        clone(model).fit(X, y),
        pickle.loads(pickle.dumps(quick_finite(**params))).fit(X, y),
        copy.deepcopy(model).fit(X, y),
    ):
        assert_array_equal(everything_of(again, GRID), found)
        assert again.loss_curve_ == model.loss_curve_
        assert again.validation_scores_ == model.validation_scores_
        assert again.log_marginal_likelihood_value_ == model.log_marginal_likelihood_value_
    other = clone(model).set_params(random_state=1).fit(X, y)
    assert not np.array_equal(other.predict(GRID), model.predict(GRID))
    streams = [
        quick_finite(**params).partial_fit(X, y).partial_fit(X[:70], y[:70]) for _ in range(2)
    ]
    assert_array_equal(*(everything_of(stream, GRID) for stream in streams))


def test_random_state_objects(quick, sine):
    models = [quick(max_iter=5, random_state=np.random.RandomState(7)).fit(*sine) for _ in range(2)]
    assert_array_equal(models[0].predict(GRID), models[1].predict(GRID))
    again = models[0].fit(*sine)  # the object has moved on
    assert not np.array_equal(again.predict(GRID), models[1].predict(GRID))


@pytest.mark.slow
@slow_cases("SCGD")
def test_threads_get_the_same_bits_and_leave_the_global_generator(quick, sine):
    """Networks of our own need no global generator, which threads could only share."""
    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(quick(max_iter=5).fit, *sine) for _ in range(4)]
        models = [future.result() for future in futures]
    assert torch.equal(torch.get_rng_state(), before)
    expected = everything_of(quick(max_iter=5).fit(*sine), GRID)
    for model in models:
        assert_array_equal(everything_of(model, GRID), expected)


@pytest.mark.slow
def test_predictions_do_not_depend_on_batches_order_or_calls(quick_finite, sine):
    """Across the edges of the blocks in which rows are predicted."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-4, 4, (2 * BLOCK_ROWS + 5, 2))
    for params in ({}, {"n_estimators": 3}, FOURIER):
        model = quick_finite(**params, max_iter=5).fit(*sine)
        mean, std = model.predict(X, return_std=True)
        order = rng.permutation(len(X))
        shuffled = model.predict(X[order], return_std=True)
        assert_allclose(shuffled[0], mean[order], rtol=1e-10, atol=1e-10)
        assert_allclose(shuffled[1], std[order], rtol=1e-10, atol=1e-10)
        for rows in (slice(0, 1), slice(4090, 4100), slice(-6, None), slice(0, 1000)):
            part = model.predict(X[rows], return_std=True)
            assert_allclose(part[0], mean[rows], rtol=1e-10, atol=1e-10)
            assert_allclose(part[1], std[rows], rtol=1e-10, atol=1e-10)
        model.sample_y(X[:10], random_state=None)
        model.log_marginal_likelihood(*sine)
        again = model.predict(X, return_std=True)
        assert_array_equal(again, [mean, std])
        density = model.log_predictive_density(X, X[:, 0])
        assert_allclose(
            model.log_predictive_density(X[order], X[order, 0]), density[order], rtol=1e-9
        )


def test_exact_predictor_does_not_depend_on_batches_or_order(sine):
    model = BSGDGaussianProcessRegressor(
        RationalQuadratic() + WhiteKernel(), hidden_layer_sizes=(), max_iter=2, random_state=0
    ).fit(*sine)
    X = np.random.default_rng(1).uniform(-4, 4, (BLOCK_ROWS + 300, 2))
    mean, std = model.predict(X, return_std=True)
    for rows in (slice(0, 1), slice(4090, 4100), slice(None, None, -1)):
        part = model.predict(X[rows], return_std=True)
        assert_allclose(part[0], mean[rows], rtol=1e-10, atol=1e-10)
        assert_allclose(part[1], std[rows], rtol=1e-10, atol=1e-10)


# ---------------------------------------------------------------------------------- failed calls
def nan_at(X, y):
    X = X.copy()
    X[7] = np.nan
    return X, y


def hooked(action, batch):
    return {"feature_map": Hooked(in_training(action, batch, once=False), n_inputs=1)}


FAILURES = {
    "parameter": (lambda: {"batch_size": -1}, None, ValueError),
    "device": (lambda: {"device": "cuda:99"}, None, ValueError),
    "kernel": (lambda: {"kernel": WhiteKernel()}, None, ValueError),
    "data": (dict, nan_at, ValueError),
    "lengths": (dict, lambda X, y: (X, y[1:]), ValueError),
    "module": (lambda: {"feature_map": Hooked(throw(ZeroDivisionError()), 1)}, None, Exception),
    "first batch": (lambda: hooked(throw(ZeroDivisionError()), 0), None, ZeroDivisionError),
    "a later batch": (lambda: hooked(throw(ZeroDivisionError()), 3), None, ZeroDivisionError),
    "divergence": (lambda: hooked(lambda Z: Z * np.nan, 0), None, NotPositiveDefiniteError),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(
    ("before", "method"),
    [
        ("nothing", "fit"),
        ("nothing", "partial_fit"),
        ("fit", "fit"),
        ("partial_fit", "partial_fit"),
    ],
)
@slow_cases(
    "SVGPRegressor-nothing",
    "SVGPRegressor-fit-.*divergence",
    "SVGPRegressor-partial_fit-partial_fit-(?!divergence)",
)
def test_a_failed_call_leaves_the_estimator_as_it_was(quick, sine, failure, method, before):
    make_params, spoil, error = FAILURES[failure]
    X, y = sine[0][:, :1], sine[1]
    grid, params = GRID[:, :1], make_params()
    if before != "nothing" and method == "partial_fit" and "feature_map" in params:
        pytest.skip("a stream goes on with the features that it started with")
    model = quick(max_iter=5, batch_size=40)
    if before != "nothing":
        model = fitted_once(model, X, y, method=before)
        predictions = everything_of(model, grid)
    model.set_params(**params)
    attributes = dict(vars(model))
    curve = list(getattr(model, "loss_curve_", []))
    data = (X, y) if spoil is None else spoil(X, y)
    with pytest.raises(error):
        getattr(model, method)(*data)
    assert vars(model).keys() == attributes.keys()
    assert all(vars(model)[k] is v for k, v in attributes.items())
    if before != "nothing":
        model.set_params(**{name: quick().get_params()[name] for name in params})
        assert_array_equal(everything_of(model, grid), predictions)
        assert model.loss_curve_ == curve


@pytest.mark.parametrize("start", ["fit", "partial_fit"])
@slow_cases("SVGPRegressor-partial_fit")
def test_a_stream_goes_on_after_a_failed_chunk(quick, sine, start):
    """What the failed call had begun to change is not shared with the estimator."""
    X, y = sine
    armed = []

    def hook(module, Z):
        if module.training and armed and armed.pop() == "fail":
            raise ZeroDivisionError

    model = quick(feature_map=Hooked(hook), batch_size=20, max_iter=3)
    getattr(model, start)(X[:100], y[:100])
    if start == "fit":
        model.partial_fit(X[100:130], y[100:130])
    before = everything_of(model, GRID)
    reference = copy.deepcopy(model).partial_fit(X[130:150], y[130:150])
    armed += ["fail", "wait", "wait", "wait"]  # until some steps have been made
    with pytest.raises(ZeroDivisionError):
        model.partial_fit(X[:120], y[:120])
    assert_array_equal(everything_of(model, GRID), before)
    model.partial_fit(X[130:150], y[130:150])
    assert_array_equal(everything_of(model, GRID), everything_of(reference, GRID))


def test_a_failed_closing_pass_leaves_the_estimator_as_it_was(quick, sine, monkeypatch):
    X, y = sine
    model = fitted_once(quick(max_iter=10), X, y)
    attributes = dict(vars(model))
    for error in (ZeroDivisionError, KeyboardInterrupt):
        monkeypatch.setattr(type(model), "_finish", throw(error()))
        with pytest.raises(error):
            model.fit(X, -y)
        assert vars(model).keys() == attributes.keys()
        assert all(vars(model)[k] is v for k, v in attributes.items())
    assert model.score(X, y) > 0.7


class Calls:
    """A callback of scikit-learn that acts at the end of the given epoch."""

    def __init__(self, action, epoch=2, hook="end"):
        self.action, self.epoch, self.hook = action, epoch, hook
        self.torn_down = False

    def setup(self, estimator, context):
        self.act("setup", context)

    def on_fit_task_begin(self, estimator, context):
        self.act("begin", context)

    def on_fit_task_end(self, estimator, context):
        self.act("end", context)

    def teardown(self, estimator, context):
        self.torn_down = True

    def act(self, hook, context):
        task = self.epoch if context.task_name == "epoch" else None
        if hook == self.hook and (task is None or task == context.task_id):
            if hook == "end" and task is None:
                return
            self.action()


@pytest.mark.parametrize("hook", ["setup", "begin", "end"])
def test_a_failing_callback_leaves_the_estimator_as_it_was(quick, sine, hook):
    pytest.importorskip("sklearn.callback")
    X, y = sine
    model = fitted_once(quick(), X, y)
    callback = Calls(throw(ZeroDivisionError()), hook=hook)
    model.set_callbacks(callback)
    attributes = dict(vars(model))
    with pytest.raises(ZeroDivisionError):
        model.fit(X, -y)
    assert vars(model).keys() == attributes.keys()
    assert all(vars(model)[k] is v for k, v in attributes.items())
    assert callback.torn_down
    assert not any(name.startswith("_callback") for name in vars(model))


# ----------------------------------------------------------------------------------------- Ctrl-C
def assert_usable(model, X, y):
    assert np.isfinite(everything_of(model, GRID)).all()
    assert (model.predict_std(GRID) > 0).all()
    assert len(model.loss_curve_) == model.n_iter_
    assert np.isfinite(model.log_predictive_density(X, y)).all()


def interrupted(fit, X, y, match="interrupted after"):
    """The result of a fit that Ctrl-C ends: a model, with a warning."""

    def call():
        try:
            return fit(X, y)
        except KeyboardInterrupt:  # which would end all tests
            pytest.fail("Ctrl-C came through")

    with skgpstoch.on_interrupt(), pytest.warns(ConvergenceWarning, match=match):
        return call()


def test_ctrl_c_in_a_callback_keeps_the_best_iterate(quick, sine):
    pytest.importorskip("sklearn.callback")
    X, y = sine
    model = quick(max_iter=25, early_stopping=True)
    model.set_callbacks(Calls(throw(KeyboardInterrupt()), epoch=14))
    interrupted(model.fit, X, y, "interrupted after 15 of 25 epochs")
    assert model.n_iter_ == 15
    assert model.best_iter_ == 1 + int(np.argmin(model.validation_scores_))
    assert_usable(model, X, y)
    assert model.score(X, y) > 0.5


@every_objective
@pytest.mark.parametrize(("batch", "early_stopping"), [(0, False), (31, True)])
@slow_cases("31-True-(BSGD|svgp)")
def test_ctrl_c_in_a_batch(quick, sine, batch, early_stopping):
    """Two batches make an epoch; in the first of them there is no iterate but the initial one."""
    X, y = sine
    module = Hooked(in_training(throw(KeyboardInterrupt()), batch))
    model = quick(feature_map=module, early_stopping=early_stopping, batch_size=100, max_iter=25)
    interrupted(model.fit, X, y, r"interrupted after \d+ of 25 epochs")
    passes = 4 if isinstance(model, MinimaxGaussianProcessRegressor) else 2  # of each epoch
    assert model.n_iter_ == batch // passes
    assert_usable(model, X, y)


def test_ctrl_c_in_an_evaluation(quick, sine):
    X, y = sine
    count = [0]

    def hook(module, Z):
        count[0] += not module.training
        if count[0] == 8:
            count[0] += 1
            raise KeyboardInterrupt

    model = quick(feature_map=Hooked(hook), max_iter=25)
    interrupted(model.fit, X, y)
    assert 0 < model.n_iter_ < 25
    assert_usable(model, X, y)


@on_each("regressor", [FINITE_ONE, BSGDGaussianProcessRegressor, SPARSE_ONE, svgp_for_log_loss])
def test_ctrl_c_after_a_divergence_keeps_the_sound_iterate(quick, sine):
    """The interrupted epoch has already made NaN of the parameters.

    MINIMAX notices within the step, by its projection.
    """
    X, y = sine

    def hook(module, Z):
        if module.training and module.network[0].weight.isnan().any():
            raise KeyboardInterrupt
        if module.training and Z.requires_grad and fired and fired.pop():
            return Z * np.nan
        return None

    for epoch_first in (True, False):
        fired = [True] if epoch_first else [True, False, False, False, False]
        model = quick(feature_map=Hooked(hook), batch_size=50)
        interrupted(model.fit, X, y)
        assert_usable(model, X, y)


def test_ctrl_c_in_a_stream(quick, sine):
    X, y = sine
    armed = []

    def hook(module, Z):
        if module.training and armed and armed.pop() == "fire":
            raise KeyboardInterrupt

    model = quick(feature_map=Hooked(hook), batch_size=20).partial_fit(X[:100], y[:100])
    armed += ["fire", "wait", "wait"]
    interrupted(model.partial_fit, X[100:], y[100:])
    assert_usable(model, X, y)
    assert_usable(model.partial_fit(X, y), X, y)


# ------------------------------------------------------------------------------------ checkpoints
@pytest.fixture(autouse=True)
def save_every_epoch(monkeypatch):
    monkeypatch.setattr(skgpstoch.training.checkpoint, "CHECKPOINT_SECONDS", 0.0)


class Killed(BaseException):
    """Stands for the end of the process: nothing may catch it."""


def kill_after_save(monkeypatch, n_saves):
    """The process dies right after a checkpoint was written."""
    save, count = skgpstoch.training.checkpoint.Checkpoint.save, [0]

    def dying(self, state):
        save(self, state)
        count[0] += 1
        if count[0] == n_saves:
            raise Killed

    monkeypatch.setattr(skgpstoch.training.checkpoint.Checkpoint, "save", dying)


def kill_in_step(monkeypatch, step):
    """The process dies within an epoch."""
    train_step = skgpstoch.training.loop.Trainer.train_step

    def dying(self, X, y):
        if self.step == step:
            raise Killed
        return train_step(self, X, y)

    monkeypatch.setattr(skgpstoch.training.loop.Trainer, "train_step", dying)


def kill_in_closing_pass(monkeypatch):
    monkeypatch.setattr(skgpstoch.estimators.base.BaseGP, "_finish", throw(Killed()))


EPOCHS = 5
KILLS = {
    "after the first epoch": lambda m: kill_after_save(m, 1),
    "after the second epoch": lambda m: kill_after_save(m, 2),
    "after the last epoch": lambda m: kill_after_save(m, EPOCHS),
    "within the first epoch": lambda m: kill_in_step(m, 1),
    "within the fourth epoch": lambda m: kill_in_step(m, 7),
    "in the closing pass": kill_in_closing_pass,
}
RESUMED = REPRODUCIBLE | {
    "batch norm": {"feature_map": nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU())},
    "adadelta": {"solver": "adadelta", "learning_rate_init": 1.0, "learning_rate": "theory"},
    "float64": {"dtype": "float64"},
}


def kill(model, data, how, monkeypatch):
    with monkeypatch.context() as patch:
        KILLS[how](patch)
        with pytest.raises(Killed):
            model.fit(*data)
    assert not hasattr(model, "posterior_")


def assert_same_fit(model, reference):
    assert_array_equal(everything_of(model, GRID), everything_of(reference, GRID))
    for name in ("loss_curve_", "validation_scores_", "n_iter_", "best_iter_"):
        assert getattr(model, name) == getattr(reference, name), name
    assert_array_equal(model.noise_variance_, reference.noise_variance_)


@pytest.mark.parametrize("how", KILLS)
@slow_cases("SVGP.*(second|last|fourth)", "second epoch", "last epoch", "SVGPRegressor-within")
def test_a_killed_fit_resumes_to_the_same_bits(quick, sine, tmp_path, monkeypatch, capsys, how):
    params = {"max_iter": EPOCHS, "batch_size": 100}
    reference = fitted_once(quick(**params), *sine)
    model = quick(**params, checkpoint_dir=tmp_path / "new" / "folder")
    kill(model, sine, how, monkeypatch)
    model.set_params(verbose=1).fit(*sine)
    assert_same_fit(model, reference)
    assert not list((tmp_path / "new" / "folder").iterdir())
    first = capsys.readouterr().out.partition(":")[0]
    expected = {
        "after the first epoch": "Epoch 2",
        "after the second epoch": "Epoch 3",
        "within the fourth epoch": "Epoch 4",
        "within the first epoch": "Epoch 1",
    }
    assert first == expected.get(how, first)


@pytest.mark.slow
@each_kind(RESUMED)
@slow_cases("SCGDGaussian-(network|float64|learned)", "ensemble", "fourier", "BSGD")
def test_whatever_is_trained_resumes(quick_finite, sine, tmp_path, monkeypatch, params):
    params = {**params, "max_iter": EPOCHS}
    reference = quick_finite(**params).fit(*sine)
    model = quick_finite(**params, checkpoint_dir=str(tmp_path))
    for how in ("after the second epoch", "within the fourth epoch"):
        kill(model, sine, how, monkeypatch)
    assert list(tmp_path.iterdir())
    assert_same_fit(model.fit(*sine), reference)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "params"),
    [
        (SCGDGaussianProcessRegressor, {"weights": "learned"}),
        (MinimaxGaussianProcessRegressor, {"dual_step": 0.3}),
        (
            BSGDGaussianProcessRegressor,
            {"kernel": RationalQuadratic() + WhiteKernel(), "hidden_layer_sizes": ()},
        ),
    ],
    ids=["learned weights", "longer dual steps", "general kernel"],
)
def test_what_is_special_to_one_method_resumes(cls, params, sine, tmp_path, monkeypatch):
    params = {"hidden_layer_sizes": (8,), **params, "max_iter": EPOCHS, "random_state": 0}
    reference = cls(**params).fit(*sine)
    model = cls(**params, checkpoint_dir=tmp_path)
    kill(model, sine, "after the second epoch", monkeypatch)
    assert_same_fit(model.fit(*sine), reference)


@pytest.mark.parametrize("how", ["after the last epoch", "in the closing pass"])
def test_a_converged_fit_does_not_train_on(quick, sine, tmp_path, monkeypatch, how):
    params = {"n_iter_no_change": 3, "tol": 1e3}
    reference = quick(**params).fit(*sine)
    assert reference.n_iter_ == 4
    model = quick(**params, checkpoint_dir=tmp_path)
    monkeypatch.setitem(KILLS, "after the last epoch", lambda m: kill_after_save(m, 4))
    kill(model, sine, how, monkeypatch)
    assert_same_fit(model.fit(*sine), reference)


@pytest.mark.slow
@slow_cases("SVGP")
def test_rollbacks_are_remembered(quick, sine, tmp_path, monkeypatch):
    def model(**params):
        module = Hooked(in_training(lambda Z: Z * np.nan, 3))
        return quick(feature_map=module, batch_size=100, max_iter=EPOCHS, **params)

    reference = model().fit(*sine)
    assert not np.array_equal(  # it has been rolled back
        reference.predict(GRID),
        quick(feature_map=Hooked(lambda *_: None), batch_size=100, max_iter=EPOCHS)
        .fit(*sine)
        .predict(GRID),
    )
    resumed = model(checkpoint_dir=tmp_path)
    kill(resumed, sine, "after the second epoch", monkeypatch)
    assert_same_fit(resumed.fit(*sine), reference)


@pytest.mark.slow
@slow_cases("SVGP")
def test_ctrl_c_can_be_resumed(quick, sine, tmp_path):
    """An interrupted fit gives a usable model, and the next call takes up its training."""
    reference = quick(feature_map=Hooked(lambda *_: None)).fit(*sine)
    model = quick(
        feature_map=Hooked(in_training(throw(KeyboardInterrupt()), 8)), checkpoint_dir=tmp_path
    )
    interrupted(model.fit, *sine)
    assert_usable(model, *sine)
    assert list(tmp_path.iterdir())
    assert_same_fit(model.fit(*sine), reference)
    assert not list(tmp_path.iterdir())


@every_finite
def test_without_a_seed_a_resumed_fit_keeps_its_validation_rows(
    quick_finite, sine, tmp_path, monkeypatch
):
    seen = []

    def hook(module, Z):
        if module.training:
            seen[-1].update(tuple(z) for z in Z.detach()[:, :2].numpy().round(3).tolist())

    class Inputs(Hooked):
        def forward(self, X):
            self.hook(self, X)
            return self.network(X)

    params = {"feature_map": Inputs(hook), "random_state": None, "checkpoint_dir": tmp_path}
    model = quick_finite(**params, max_iter=EPOCHS, validation_fraction=0.4)
    seen.append(set())
    kill(model, sine, "after the second epoch", monkeypatch)
    seen.append(set())
    model.fit(*sine)
    if not isinstance(model, MinimaxGaussianProcessRegressor):  # which masks them instead
        assert len(seen[0]) == 120
    assert seen[0] == seen[1]


OTHER_FITS = {
    "y": lambda p, X, y: (p, X, y + 1e-9),
    "X": lambda p, X, y: (p, X + 1e-9, y),
    "rows": lambda p, X, y: (p, X[1:], y[1:]),
    "outputs": lambda p, X, y: (p, X, np.column_stack([y, y])),
    "seed": lambda p, X, y: ({**p, "random_state": 5}, X, y),
    "batch_size": lambda p, X, y: ({**p, "batch_size": 99}, X, y),
    "max_iter": lambda p, X, y: ({**p, "max_iter": 4}, X, y),
    "learning rate": lambda p, X, y: ({**p, "learning_rate_init": 0.01000001}, X, y),
    "dtype": lambda p, X, y: ({**p, "dtype": "float64"}, X, y),
    "length scale": lambda p, X, y: ({**p, "kernel": RBF(1.00001) + WhiteKernel(0.1)}, X, y),
    "bounds": lambda p, X, y: ({**p, "kernel": RBF(1, (0.9, 1.1)) + WhiteKernel(0.1)}, X, y),
    "module": lambda p, X, y: ({**p, "feature_map": make_module(2)}, X, y),
    "kind of module": lambda p, X, y: ({**p, "feature_map": make_module(1, nn.Sigmoid())}, X, y),
}


def make_module(seed, activation=None):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 8), activation or nn.Tanh())


@pytest.mark.parametrize("other", OTHER_FITS)
@slow_cases("kind of module", "learning rate", "bounds", "rows")
def test_other_fits_do_not_resume(sine, tmp_path, monkeypatch, other):
    """One folder serves many fits: none takes up another's training."""
    cls = SCGDGaussianProcessRegressor
    first = {
        "kernel": RBF() + WhiteKernel(0.1),
        "feature_map": make_module(1),
        "n_components": 20,
        "n_estimators": 1,
        "max_iter": 3,
        "random_state": 0,
    }
    kill(cls(**first, checkpoint_dir=tmp_path), sine, "after the first epoch", monkeypatch)
    left = set(tmp_path.iterdir())
    params, X, y = OTHER_FITS[other](first, *sine)
    fresh, beside = cls(**params).fit(X, y), cls(**params, checkpoint_dir=tmp_path).fit(X, y)
    assert_same_fit(beside, fresh)
    assert set(tmp_path.iterdir()) == left  # and the first may still be resumed


@pytest.mark.slow
def test_other_methods_and_warm_starts_do_not_resume(sine, tmp_path, monkeypatch):
    params = {"hidden_layer_sizes": (8,), "max_iter": EPOCHS, "random_state": 0}
    killed = BSGDGaussianProcessRegressor(**params, checkpoint_dir=tmp_path)
    kill(killed, sine, "after the second epoch", monkeypatch)
    assert_same_fit(
        SCGDGaussianProcessRegressor(**params, checkpoint_dir=tmp_path).fit(*sine),
        SCGDGaussianProcessRegressor(**params).fit(*sine),
    )
    X, y = sine
    warm = {**params, "warm_start": True, "n_estimators": 1}
    one = BSGDGaussianProcessRegressor(**warm, checkpoint_dir=tmp_path).fit(X, -y)
    with monkeypatch.context() as patch:
        kill_after_save(patch, 2)
        with pytest.raises(Killed):
            one.fit(X, y)
    reference = BSGDGaussianProcessRegressor(**warm).fit(X, 2 * y).fit(X, y)
    beside = BSGDGaussianProcessRegressor(**warm, checkpoint_dir=tmp_path).fit(X, 2 * y)
    assert_same_fit(beside.fit(X, y), reference)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None], ids=["empty", "text", "cut"])
@slow_cases("SVGPRegressor-(empty|text)")
def test_a_damaged_checkpoint_is_no_dead_end(quick, sine, tmp_path, monkeypatch, content):
    """The fit starts anew with a warning, or the error says which file to delete."""
    model = quick(max_iter=EPOCHS, checkpoint_dir=tmp_path)
    kill(model, sine, "after the second epoch", monkeypatch)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1000] if content is None else content)
    refusal = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(*sine)
        except ValueError as error:
            refusal = str(error)
    if refusal:
        assert str(path) in refusal
    else:
        assert any("checkpoint" in str(w.message) for w in caught)
        assert_same_fit(model, fitted_once(quick(max_iter=EPOCHS), *sine))


def test_a_checkpoint_folder_that_cannot_be_written_is_named(quick, sine, tmp_path):
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "below"):
        with pytest.raises((ValueError, OSError), match="file"):
            quick(checkpoint_dir=folder).fit(*sine)


def test_checkpoints_are_not_written_all_the_time(quick, sine, tmp_path, monkeypatch):
    monkeypatch.setattr(skgpstoch.training.checkpoint, "CHECKPOINT_SECONDS", 3600.0)
    written = []
    monkeypatch.setattr(torch, "save", lambda state, path: written.append(path) or path.touch())
    quick(checkpoint_dir=tmp_path).fit(*sine)
    assert len(written) <= 1


SCRIPT = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import skgpstoch.training.checkpoint
import skgpstoch.training.loop
from shared import victim
torch.set_num_threads(1)
skgpstoch.training.checkpoint.CHECKPOINT_SECONDS = 0.0
model, X, y = victim(sys.argv[2])
model.fit(X, y)
"""


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_process_killed_by_the_system_resumes_to_the_same_bits(tmp_path, capsys):
    command = [sys.executable, "-u", "-c", SCRIPT, os.path.dirname(shared.__file__), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("Epoch 6:"):
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert [path.suffix for path in tmp_path.iterdir()].count(SUFFIX) == 1
    model, X, y = shared.victim(tmp_path)
    model.fit(X, y)
    first = int(capsys.readouterr().out.split(":")[0].split()[1])
    assert 5 < first <= 25
    assert not list(tmp_path.glob(f"*{SUFFIX}"))
    assert_same_fit(model, shared.victim(None)[0].fit(X, y))


# ----------------------------------------------------------------------------- non-finite training
@every_objective
@pytest.mark.parametrize(("batch", "value"), [(0, np.nan), (5, np.inf)])
@slow_cases("0-nan-(BSGD|svgp)", "5-inf-(Minimax|SVGP)")
def test_a_loss_that_is_not_finite_once_is_rolled_back(quick, sine, batch, value):
    X, y = sine
    module = Hooked(in_training(lambda Z: Z * value, batch))
    model = quick(feature_map=module, batch_size=100, max_iter=8).fit(X, y)
    assert model.n_iter_ == len(model.loss_curve_) == 8
    assert np.isfinite(model.loss_curve_).all()
    assert_usable(model, X, y)
    assert model.score(X, y) > 0.5


@harmful
def test_rollbacks_reduce_the_learning_rate(quick, sine):
    """Steps of 50 leave the region where this module is finite; those of 50/2ᵏ do not."""

    def hook(module, Z):
        return Z * np.nan if module.network[0].weight.abs().max() > 5 else None

    model = quick(
        feature_map=Hooked(hook),
        learning_rate="constant",
        learning_rate_init=50.0,
        max_iter=5,
        batch_size=100,
    )
    assert_usable(model.fit(*sine), *sine)
    assert model.n_iter_ == 5


def test_a_gradient_that_is_not_finite_once_is_rolled_back(quick, sine):
    """The loss of the batch is finite; the parameters after the step are not."""
    X, y = sine

    armed = ["fire", *["wait"] * 5]

    def hook(module, Z):
        if module.training and Z.requires_grad and armed and armed.pop() == "fire":
            Z.register_hook(lambda gradient: gradient * np.nan)

    model = quick(feature_map=Hooked(hook), batch_size=100, max_iter=8)
    assert_usable(model.fit(X, y), X, y)
    assert model.score(X, y) > 0.5


def test_an_evaluation_that_is_not_finite_once_is_rolled_back(quick, sine):
    X, y = sine
    count = [0]

    def hook(module, Z):
        count[0] += not module.training
        return Z * np.nan if count[0] == 9 and not module.training else None

    model = quick(feature_map=Hooked(hook), max_iter=10).fit(X, y)
    assert_usable(model, X, y)
    assert np.isfinite(model.validation_scores_).all()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@slow_cases("SVGPRegressor-partial", "SCGDGaussian-fit")
def test_training_that_keeps_diverging_says_why(quick, sine, method):
    module = Hooked(in_training(lambda Z: Z * np.nan, 4, once=False))
    model = quick(feature_map=module, batch_size=40)
    with pytest.raises(NotPositiveDefiniteError, match="learning_rate_init"):
        getattr(model, method)(*sine)


@harmful
@pytest.mark.parametrize("rate", [1e3, 1e30])
@each_kind({"network": {}, "fourier": FOURIER, "learned noise": {"noise": "learned"}})
@slow_cases("BSGD", "learned")
def test_absurd_learning_rates_recover_or_say_why(quick_finite, sine, rate, params):
    X, y = sine
    model = quick_finite(**params, learning_rate_init=rate, max_iter=5)
    try:
        model.fit(X, y)
    except NotPositiveDefiniteError as error:
        complaint = str(error)
        assert "learning rate" in complaint or "learning_rate_init" in complaint
    else:
        assert_usable(model, X, y)
        assert model.predict_std(GRID).max() < 100 * y.std()


# ---------------------------------------------------------------------------------- difficult data
def sound(model, X, y):
    """Finite predictions with positive deviations, within reason."""
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()
    assert np.isfinite(model.predict(X[:20], return_cov=True)[1]).all()
    assert np.isfinite(model.sample_y(X[:20])).all()
    assert np.isfinite(model.log_predictive_density(X, y)).all()
    assert np.isfinite(model.log_marginal_likelihood_value_)
    assert (np.asarray(model.noise_variance_) > 0).all()
    return model


KINDS = {
    "network": {},
    "ensemble": {"n_estimators": 3},
    "fourier": FOURIER,
    "linear": {"hidden_layer_sizes": ()},
}
SPARSE_KINDS = {
    "collapsed": {},
    "network": {"hidden_layer_sizes": (8,)},
    "lbfgs": {"kernel": RBF() + WhiteKernel(0.1), "solver": "lbfgs", "max_iter": 4},
    "student_t": {"likelihood": "student_t", "solver": "natural"},
    "adam": {"solver": "adam", "whiten": False},
}
SOME_KINDS = {  # which are objectives, features, likelihoods and solvers of every kind
    SCGDGaussianProcessRegressor: ("network", "fourier"),
    BSGDGaussianProcessRegressor: ("linear",),
    MinimaxGaussianProcessRegressor: ("ensemble",),
    SVGPRegressor: ("collapsed", "student_t", "adam"),
    svgp_for_log_loss: ("network",),
    SolveGPRegressor: (),
    DLMRegressor: ("adam",),
    FITCRegressor: ("lbfgs",),
}
ALL_KINDS = {
    f"{named(cls)}, {name}": (cls, params)
    for cls in [*FINITE, *SPARSE_REGRESSORS, svgp_for_log_loss]
    for name, params in (KINDS if cls in FINITE else SPARSE_KINDS).items()
    if name in SOME_KINDS.get(cls, [name])
}


@pytest.fixture(params=ALL_KINDS.values(), ids=ALL_KINDS)
def quick_kind(request):
    """Constructor of a quick regressor of each kind."""
    cls, params = request.param
    return lambda **others: constructor(cls)(**{**params, **others})


def finds_noise_at_once(model):
    """Whether it needs no more than five epochs for it."""
    return isinstance(model, tuple(FINITE)) or model.solver_ == "lbfgs"


few_iterations = pytest.mark.usefixtures("few_iterations")

# That hyper-parameters are at their bounds, or that the kernel cannot see what is not there, is so.
nothing_to_learn = pytest.mark.filterwarnings(
    "ignore:The optimal value found", "ignore:With the kernel .* f is almost constant over the rows"
)


@few_iterations
@nothing_to_learn
@pytest.mark.parametrize("value", [0.0, -1e8])
@slow_cases(
    r"(BSGD|ensemble|fourier|FITC|student).*-0\.0",
    "(SCGDGaussian, network|DLM|collapsed|SVGPRegressor, adam|log_loss).*-1",
)
def test_constant_target(quick_kind, sine, value):
    X, _ = sine
    y = np.full(len(X), value)
    model = sound(quick_kind(max_iter=5).fit(X, y), X, y)
    assert_allclose(model.predict(X), value, rtol=1e-6, atol=1e-6)
    assert (model.predict_std(X) < (0.1 if finds_noise_at_once(model) else 1.5)).all()


@pytest.mark.slow
@few_iterations
@nothing_to_learn
@slow_cases("FITC", "SCGDGaussian, network", "SVGPRegressor, adam", "student_t", "ensemble")
def test_constant_and_duplicated_columns(quick_kind, sine):
    X, y = sine
    plain = fitted_once(quick_kind(max_iter=5), X, y).score(X, y)
    wide = np.column_stack([X, np.zeros(len(X)), np.full(len(X), 7.0), X])
    model = sound(quick_kind(max_iter=5).fit(wide, y), wide, y)
    assert model.score(wide, y) > plain - 0.15
    nothing = np.full_like(X, 4.0)
    model = sound(quick_kind(max_iter=5).fit(nothing, y), nothing, y)
    assert_allclose(model.predict(nothing), y.mean(), atol=0.3)
    if finds_noise_at_once(model):
        assert model.predict_std(nothing)[0] == pytest.approx(y.std(), rel=0.3)


@few_iterations
@nothing_to_learn
@pytest.mark.filterwarnings("ignore:Errors have heavy tails")
@slow_cases("ensemble", "fourier", "collapsed", "student", "SVGPRegressor, adam")
def test_duplicated_rows(quick_kind, sine):
    X, y = np.repeat(sine[0][:8], 25, axis=0), np.repeat(sine[1][:8], 25)
    sound(quick_kind(max_iter=5).fit(X, y), X, y)


@few_iterations
@pytest.mark.parametrize(("n_rows", "n_outputs"), [(2, 1), (3, 2), (12, 1)])
@slow_cases(
    "(BSGD|ensemble|fourier|FITC|student).*-2-1",
    "(SCGDGaussian, network|DLM|collapsed|SVGPRegressor, adam|log_loss).*-12-1",
    "-3-2",
)
def test_few_rows(quick_kind, sine, n_rows, n_outputs):
    X, y = sine[0][:n_rows], sine[1][:n_rows]
    if n_outputs == 2:
        y = np.column_stack([y, y**2])
    for early_stopping in (True, False):
        model = quick_kind(max_iter=2, early_stopping=early_stopping)
        if hasattr(model, "n_inducing"):
            model.set_params(n_inducing="auto")
        too_few = pytest.warns(UserWarning, match=f"{n_rows} rows are too few")
        with too_few if n_rows < 20 else contextlib.nullcontext():
            model.fit(X, y)
        sound(model, X, y)
        assert model.predict_std(X).max() < 10 * max(y.std(), 0.1)


@few_iterations
@slow_cases("BSGD", "SCGDGaussian, network", "DLM", "FITC", "log_loss")
def test_one_column(quick_kind, sine):
    X, y = sine[0][:, :1], sine[1]
    assert sound(quick_kind(max_iter=10).fit(X, y), X, y).score(X, y) > 0.3


@few_iterations
@slow_cases("ensemble", "fourier", "collapsed", "student", "SVGPRegressor, adam")
def test_more_columns_than_rows(quick_kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 100))
    y = X[:, 0] + 0.1 * rng.normal(size=20)
    model = quick_kind(max_iter=5)
    if isinstance(getattr(model.kernel, "k1", None), RBF):
        model.set_params(kernel=RBF(10.0) + WhiteKernel(0.1))
    with pytest.warns(UserWarning, match=r"more features \(100\) than rows \(20\)"):
        model.fit(X, y)
    sound(model, X, y)


@few_iterations
@pytest.mark.parametrize("scale", [1e-150, 1e150])
@slow_cases(
    "(fourier|collapsed|BSGD|log_loss).*-1e-150",
    "FITC.*-1",
    r"student_t.*\+",
    "ensemble.*-150",
    r"DLM.*\+",
)
def test_scale_of_the_target(quick_kind, sine, scale):
    X, y = sine
    unit = fitted_once(quick_kind(max_iter=5), X, y)
    model = sound(quick_kind(max_iter=5).fit(X, scale * y), X, scale * y)
    assert_allclose(model.predict(GRID) / scale, unit.predict(GRID), rtol=1e-2, atol=1e-3)
    assert_allclose(model.predict_std(GRID) / scale, unit.predict_std(GRID), rtol=1e-2)


@few_iterations
@pytest.mark.parametrize("offset", [1e9])
@slow_cases("BSGD", "SCGDGaussian, network", "DLM", "FITC", "student")
def test_offset_of_the_inputs(quick_kind, sine, offset):
    """Time stamps, say: what the kernel does not depend on must not cost digits."""
    X, y = sine
    near = fitted_once(quick_kind(max_iter=5), X, y)
    far = quick_kind(max_iter=5).fit(X + offset, y)
    sound(far, X + offset, y)
    assert far.score(X + offset, y) == pytest.approx(near.score(X, y), abs=0.02)


def test_offset_of_the_target(quick, sine):
    X, y = sine
    near = fitted_once(quick(max_iter=5), X, y)
    far = quick(max_iter=5).fit(X, y + 1e9)
    assert_allclose(far.predict(GRID) - 1e9, near.predict(GRID), atol=1e-2)
    assert_allclose(far.predict_std(GRID), near.predict_std(GRID), rtol=1e-2)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scale_of_the_inputs_that_are_standardised(quick, sine, scale):
    X, y = sine
    model = sound(quick(max_iter=5).fit(X * [scale, 1.0], y), X * [scale, 1.0], y)
    plain = fitted_once(quick(max_iter=5), X, y).score(X, y)
    assert model.score(X * [scale, 1.0], y) == pytest.approx(plain, abs=0.05)


@few_iterations
@pytest.mark.filterwarnings("ignore:Outliers in X")  # as there should be: tests/test_diagnose.py
@pytest.mark.filterwarnings("ignore:Errors have heavy tails")  # likewise
@slow_cases("ensemble", "fourier", "collapsed", "SVGPRegressor, adam", "log_loss")
def test_outliers(quick_kind, sine):
    X, y = (a.copy() for a in sine)
    X[3], y[5] = 1e6, -1e6
    model = sound(quick_kind(max_iter=5).fit(X, y), X, y)
    assert model.predict_std(sine[0]).max() < 1e7


@pytest.mark.parametrize("scale", [1e200, 1e300])
@pytest.mark.parametrize("where", ["X", "y"])
def test_extreme_scales_work_or_are_refused(quick, sine, scale, where):
    X, y = sine
    X, y = (X * scale, y) if where == "X" else (X, y * scale)
    try:
        model = quick(max_iter=5).fit(X, y)
    except ValueError as error:
        complaint = str(error)
        assert "scale" in complaint or "large" in complaint
    else:
        mean, std = model.predict(X, return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()


AROUND = {
    "default": lambda: AutoGaussianProcessRegressor(random_state=0),
    "other": lambda: ConstantVarianceRegressor(Ridge()),
    "stacked": lambda: StackedDensityRegressor(
        [(f"{a}", ConstantVarianceRegressor(Ridge(a))) for a in (1.0, 9.0)]
    ),
}
REGRESSORS = AROUND | {named(cls): constructor(cls) for cls in ESTIMATORS if is_regressor(cls())}


@few_iterations
@pytest.mark.filterwarnings("ignore:The noise variance, .*, is at its lower bound")  # so it is
@pytest.mark.parametrize(
    ("kind", "constant"),
    [*((kind, True) for kind in REGRESSORS if kind != "Gaussian"), *((k, False) for k in AROUND)],
)
@slow_cases("^default-False$", "^default-True$")
def test_huge_targets_are_predicted(kind, constant, one_kernel):
    X = np.random.default_rng(0).normal(size=(30, 16 if "Convolutional" in kind else 2))
    y = np.full(30, 1e300) if constant else 1e300 * np.sin(X[:, 0])
    model = REGRESSORS[kind]().fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite([mean, std, *model.predict_interval(X).T]).all()
    assert np.isfinite(model.predict_distribution(X).crps(y)).all()


@pytest.mark.slow
@few_iterations
@pytest.mark.parametrize("kind", [*AROUND, "Gaussian", "DLMRegressor", "NNGPRegressor"])
def test_targets_at_any_distance_have_probabilities_and_scores(kind, one_kernel):
    """In any units, R² is the same, and P(Y ≤ y) is 0 and 1 far away, without a warning."""
    X = np.random.default_rng(0).normal(size=(30, 16 if "Convolutional" in kind else 2))
    far, near = np.resize([-1.7e308, 1.7e308], 30), np.resize([-1e8, 1e8], 30)
    scores = []
    for unit in (1.0,) if kind == "Gaussian" else (1e-200, 1e200):
        model = REGRESSORS[kind]().fit(X, unit * np.sin(X[:, 0]))
        scores.append(model.score(X, unit * np.sin(X[:, 0])))
        law = model.predict_distribution(X)
        for y in (far, unit * near):
            assert_allclose(model.predictive_cdf(X, y), y > 0.0, atol=1e-3)
            assert_allclose(law.sf(y), y < 0.0, atol=1e-3)
            assert (model.log_predictive_density(X, y) < -10.0 - np.log(unit)).all()
    assert_allclose(scores, scores[0], atol=1e-4)


@pytest.mark.parametrize("normalize_y", [False, True])
def test_huge_targets_are_refused_by_the_drop_in(normalize_y):
    """Its moments are variances, as scikit-learn's are, and 1e300² is infinite."""
    X = np.random.default_rng(0).normal(size=(30, 2))
    model = GaussianProcessRegressor(normalize_y=normalize_y)
    with pytest.raises(ValueError, match=r"y is on an extreme scale, \de\+(300|299)"):
        model.fit(X, 1e300 * np.sin(X[:, 0]))
    if normalize_y:  # otherwise y is nearly 0 beside the prior
        with pytest.raises(ValueError, match=r"scale, \de-20\d, so that variances underflow"):
            model.fit(X, 1e-200 * np.sin(X[:, 0]))


@pytest.mark.slow
def test_new_rows_far_away(quick_finite, sine):
    far = np.array([[1e6, -1e6], [1e15, 0.0]])
    for params in ({}, FOURIER, {"activation": "tanh"}):
        mean, std = quick_finite(**params, max_iter=5).fit(*sine).predict(far, return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        assert (std > 0.01).all()


# ---------------------------------------------------------------------------------------- devices
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_a_gpu_that_is_not_there_is_named(quick, sine, device):
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=r"device=.*cuda.* is not available"):
            getattr(quick(device=device), method)(*sine)


@without_gpu
def test_auto_is_the_cpu_where_there_is_no_gpu(quick, sine, close_to):
    close_to(
        quick(device="auto", max_iter=3).fit(*sine), fitted_once(quick(max_iter=3), *sine), GRID
    )


@without_gpu
def test_what_a_gpu_fitted_predicts_on_the_cpu(quick, sine):
    X, y = sine
    model = fitted_once(quick(), X, y)
    there = pickle.loads(pickle.dumps(copy.deepcopy(model).set_params(device="cuda")))
    for name, args in {
        "predict": (X,),
        "predict_std": (X,),
        "predict_interval": (X,),
        "sample_y": (X,),
        "log_predictive_density": (X, y),
        "log_marginal_likelihood": (X, y),
        "score": (X, y),
    }.items():
        with pytest.warns(UserWarning, match="device='cuda' is not on this machine"):
            result = getattr(there, name)(*args)
        assert_array_equal(result, getattr(model, name)(*args))


def test_predictions_survive_a_gpu_without_memory(quick_finite, sine, monkeypatch):
    """Blocks of rows are made smaller until they fit."""
    marginals, sizes = ConjugatePosterior.marginals, []

    def scarce(self, X):
        sizes.append(len(X))
        if len(X) > 300:
            raise torch.OutOfMemoryError
        return marginals(self, X)

    model = quick_finite(max_iter=3).fit(*sine)
    X = np.random.default_rng(0).normal(size=(1000, 2))
    expected = everything_of(model, X[:300]), model.predict(X, return_std=True)
    monkeypatch.setattr(ConjugatePosterior, "marginals", scarce)
    assert_allclose(model.predict(X, return_std=True), expected[1], rtol=1e-10, atol=1e-10)
    assert max(sizes) > 300
    assert_allclose(everything_of(model, X[:300]), expected[0], rtol=1e-10, atol=1e-10)


# -------------------------------------------------------------------------------------------- GPU
@pytest.mark.gpu
def test_cuda_agrees_with_the_cpu(quick_kind, sine, close_to):
    """To rounding where nothing is trained; in quality, as other draws do, where draws differ."""
    X, y = sine
    cuda = quick_kind(device="cuda", dtype="float64").fit(X, y)
    others = [
        quick_kind(device="cpu", dtype="float64", random_state=seed).fit(X, y).score(X, y)
        for seed in range(5)
    ]
    assert min(others) - 0.05 < cuda.score(X, y) < max(others) + 0.05
    moved = copy.deepcopy(cuda).set_params(device="cpu")
    close_to(cuda, moved, GRID, rtol=1e-8, atol=1e-8)
    assert cuda.log_marginal_likelihood(X, y) == pytest.approx(
        moved.log_marginal_likelihood(X, y), rel=1e-8
    )
    again = clone(cuda).fit(X, y)
    assert_array_equal(everything_of(again, GRID), everything_of(cuda, GRID))


@pytest.mark.gpu
@every_regressor
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_what_cuda_fitted_loads_without_a_gpu(quick, sine, tmp_path, method):
    X, y = sine
    model = getattr(quick(device="cuda"), method)(X, y)
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(model))
    script = (
        "import pickle, sys, numpy as np\n"
        "model = pickle.load(open(sys.argv[1], 'rb')).set_params(device=None)\n"
        "np.save(sys.argv[2], model.predict(np.zeros((3, 2))))\n"
        "model.partial_fit(np.eye(2), np.zeros(2))\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, path, tmp_path / "mean.npy"],
        check=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert_allclose(np.load(tmp_path / "mean.npy"), model.predict(np.zeros((3, 2))), rtol=1e-8)


@pytest.mark.gpu
@every_regressor
def test_cuda_streams_resume_and_checkpoint(quick, sine, tmp_path, monkeypatch):
    X, y = sine
    stream = quick(device="cuda").partial_fit(X, y).partial_fit(X, y)
    assert np.isfinite(everything_of(stream, GRID)).all()
    params = {"device": "cuda", "max_iter": 12}
    model = quick(**params, checkpoint_dir=tmp_path)
    kill(model, sine, "after the second epoch", monkeypatch)
    assert_same_fit(model.fit(X, y), quick(**params).fit(X, y))


@pytest.mark.gpu
@every_regressor
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_generators_of_cuda_are_untouched(quick, sine, device):
    torch.cuda.manual_seed_all(3)
    before = torch.cuda.get_rng_state_all()
    model = quick(device=device)
    if "feature_map" in model.get_params():
        model.set_params(feature_map=nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2)))
    model.fit(*sine).sample_y(GRID, random_state=None)
    after = torch.cuda.get_rng_state_all()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

"""Checkpoints that are damaged, foreign, altered or forged; disks that fail; shared folders."""

from __future__ import annotations

import copy
import errno
import io
import logging
import math
import os
import pickle
import shutil
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import joblib
import numpy as np
import pytest
import torch
from families import slow_cases
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, DotProduct
from torch import nn

from skgpstoch import (
    ADMMGaussianProcessRegressor,
    BSGDGaussianProcessRegressor,
    ConvolutionalGPClassifier,
    ConvolutionalGPRegressor,
    DeepKernelEnsembleRegressor,
    DLMRegressor,
    FITCRegressor,
    NNGPClassifier,
    QSRVMRegressor,
    SCGDGaussianProcessRegressor,
    SVGPRegressor,
)
from skgpstoch.data.arrays import fingerprint
from skgpstoch.persistence.file import write_state
from skgpstoch.persistence.state import Names, Packer
from skgpstoch.persistence.tensor_file import header_of, read, write
from skgpstoch.training import checkpoint, observers
from skgpstoch.training.checkpoint import Checkpoint, has_moments_of
from skgpstoch.training.history import History
from skgpstoch.training.projected_lbfgs import ProjectedLBFGS

SMALL = {
    "hidden_layer_sizes": (4,),
    "n_estimators": 1,
    "max_iter": 3,
    "batch_size": 40,
    "random_state": 0,
}
WEIGHT = "features.network.0.weight"


@pytest.fixture(autouse=True)
def save_every_epoch(monkeypatch):
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)


@pytest.fixture
def few(sine):
    return sine[0][:40], sine[1][:40]


class Killed(BaseException):
    """Stands for the end of the process: nothing may catch it."""


def killed(model, data, n_saves=2):
    """The file that a fit leaves which dies after its second epoch."""
    save, count = Checkpoint.save, [0]

    def dying(self, state):
        save(self, state)
        count[0] += 1
        if count[0] == n_saves:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", dying)
        with pytest.raises(Killed):
            model.fit(*data)
    (path,) = model.checkpoint_dir.iterdir()
    return path


def assert_same(model, reference, X):
    assert_array_equal(model.predict(X, return_std=True), reference.predict(X, return_std=True))
    assert model.loss_curve_ == reference.loss_curve_


# -------------------------------------------------------------------------------- hostile files
def cut(share):
    return lambda content: content[: int(share * len(content))]


def flip(share):
    """A bit among the numbers."""

    def flipped(content):
        first = content.index(b"}}", 8)
        at = first + int(share * (len(content) - first))
        return content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]

    return flipped


def blank(share):
    """Zeros in the part that says what there is."""

    def blanked(content):
        at = 8 + int(share * int.from_bytes(content[:8], "little"))
        return content[:at] + bytes(20) + content[at + 20 :]

    return blanked


class Malicious:
    def __reduce__(self):
        return print, ("never",)


DAMAGED = {
    "empty": lambda content: b"",
    "a byte": lambda content: b"\x80",
    "text": lambda content: b"not a checkpoint",
    "zeros": lambda content: bytes(len(content)),
    "backwards": lambda content: content[::-1],
    "another archive": lambda content: _archive(),
    "pickle": lambda content: pickle.dumps({"state": {}}, protocol=2),
    "code": lambda content: pickle.dumps(Malicious(), protocol=2),
    **{f"cut at {share}": cut(share) for share in (0.1, 0.5, 0.99)},
    "the former format": lambda content: _of_torch(),
    **{f"flip at {share}": flip(share) for share in (0.1, 0.4, 0.7, 0.95)},
    **{f"blank at {share}": blank(share) for share in (0.02, 0.4, 0.95)},
}


def _archive():
    buffer = io.BytesIO()
    np.savez(buffer, state=np.zeros(3))
    return buffer.getvalue()


def _of_torch():
    buffer = io.BytesIO()
    torch.save({"digest": "0" * 24, "state": {}}, buffer)
    return buffer.getvalue()


FOREIGN = {
    "nothing": lambda state: None,
    "an empty dict": lambda state: {},
    "a list": lambda state: [state],
    "a tensor": lambda state: torch.zeros(3),
    "a state in another": lambda state: {"state": state},
}


def state_of(path):
    """What a checkpoint holds."""
    return Checkpoint(path.parent, path.stem).load(torch.device("cpu"))


def put(path, state, fit=None, **entries):
    """Write a checkpoint whose digest is right."""
    write_state(path, {"fit": fit or path.stem, **entries}, Packer(Names()).state(state))


def change(*path, to):
    """An entry of the state, replaced by another or by a function of it."""

    def changed(state):
        *parents, last = path
        for name in parents:
            state = state[name]
        state[last] = to(state[last]) if callable(to) else to

    return changed


def remove(*path):
    def removed(state):
        for name in path[:-1]:
            state = state[name]
        del state[path[-1]]

    return removed


def points_to(state, left, first):
    """A generator's state with other numbers left, from another one of its table."""
    state = state.clone()
    state[8:12].view(torch.int32)[0] = left
    state[16:24].view(torch.int64)[0] = first
    return state


ALTERED = {
    "a weight": change("objective", WEIGHT, to=lambda w: w + 1e-6),
    "a best weight": change("best_state", WEIGHT, to=lambda w: -w),
    "a moment": change("optimizer", "state", 0, "exp_avg", to=lambda m: 2.0 * m),
    "a rate": change("optimizer", "param_groups", 0, "initial_lr", to=0.02),
    "a loss": change("history", "loss_curve", 0, to=0.5),
    "the best score": change("history", "best_score", to=-1e3),
    "an average": change("objective", "running._extra_state", to=(7, 0.5)),
    "random numbers": change("generator", to=lambda state: state.roll(8)),
}
FORGED = {
    **{
        f"without {name}": remove(name)
        for name in ("objective", "optimizer", "history", "start_state", "best_state", "step")
    },
    "without a weight": remove("objective", WEIGHT),
    "a weight more": change("objective", "more", to=torch.zeros(2)),
    "a wide weight": change("objective", WEIGHT, to=torch.zeros(1, 2, 5)),
    "a weight of another type": change("objective", WEIGHT, to=lambda w: w.double()),
    "a weight of words": change("objective", WEIGHT, to="0.1"),
    "a weight that is NaN": change("objective", WEIGHT, to=lambda w: w * np.nan),
    "an infinite weight": change("objective", WEIGHT, to=lambda w: w / 0.0),
    "no objective": change("objective", to=None),
    "an objective of lists": change("objective", to=list),
    "an average of words": change("objective", "running._extra_state", to=("a", "b")),
    "a best state of another shape": change("best_state", WEIGHT, to=torch.zeros(3)),
    "a best state that is none": change("best_state", to=3),
    "negative rows": change("objective", "n_rows", to=lambda n: -n - 1e300),
    "rows of another share": change("objective", "share", to=lambda share: 2.0 * share),
    "a best state of other rows": change("best_state", "n_rows", to=lambda n: n + 1.0),
    "a best weight that is NaN": change("best_state", WEIGHT, to=lambda w: w * np.nan),
    "a start that is empty": change("start_state", to={}),
    "no optimizer": change("optimizer", to=None),
    "an optimizer without groups": change("optimizer", "param_groups", to=[]),
    "a moment of another shape": change("optimizer", "state", 0, "exp_avg", to=torch.zeros(77)),
    "a moment of one number": change("optimizer", "state", 0, "exp_avg", to=torch.zeros(1)),
    "a moment without another": remove("optimizer", "state", 0, "exp_avg_sq"),
    "moments of nothing": change("optimizer", "state", to={99: {"step": torch.zeros(77)}}),
    "a list of moments": change("optimizer", "state", to=[1, 2]),
    "another history": change("history", to={"loss": [1.0]}),
    "a history that is a list": change("history", to=[1.0]),
    "a history of words": change("history", "loss_curve", to=["a", "b"]),
    "a history without losses": remove("history", "loss_curve"),
    "a score too many": change("history", "scores", to=lambda scores: [*scores, 0.0]),
    "an epoch before the first": change("history", "scored_epochs", to=[-1, 2]),
    "a best epoch to come": change("history", "best_iter", to=77),
    "too many rollbacks": change("history", "n_rollbacks", to=99),
    "a fit before its start": change("elapsed", to=-1e300),
    "a fit for ever": change("elapsed", to=math.nan),
    "an end": change("history", "status", to="converged"),
    "a negative step": change("step", to=-4),
    "a step of words": change("step", to="4"),
    "a negative rate": change("rate", to=-1.0),
    "a short generator": change("generator", to=lambda state: state[:9]),
    **{
        f"a generator with {left} left from number {first}": change(
            "generator", to=lambda state, numbers=(left, first): points_to(state, *numbers)
        )
        for left, first in ((624, 624), (2, 624), (1, 5), (0, 625), (600, 25 + 2**32))
    },
    "a generator of zeros": change("generator", to=lambda s: torch.cat([s[:24], 0 * s[24:]])),
    "a generator of floats": change("generator", to=lambda state: state.float()),
}


def write_damaged(path, how, fit):
    path.write_bytes(DAMAGED[how](path.read_bytes()))


def write_foreign(path, how, fit):
    put(path, FOREIGN[how](state_of(path)))


def write_altered(path, how, fit):
    """With the digest of what it was before."""
    state = state_of(path)
    with open(path, "rb") as file:
        metadata, _ = read(file)
    ALTERED[how](state)
    packed = Packer(Names()).state(state)
    header = header_of({**metadata, "structure": packed.structure}, packed.arrays)
    write(path, header, packed.arrays)


def write_forged(path, how, fit):
    """With a digest that is right."""
    state = state_of(path)
    FORGED[how](state)
    put(path, state)


def write_renamed(path, how, fit):
    """What another fit says about itself."""
    put(path, state_of(path), **RENAMED[how])


RENAMED = {
    "another fit": {"fit": "SCGDGaussianProcessRegressor-0"},
    "an entry more": {"class": "SVGPRegressor"},
}


def write_other(path, how, fit):
    """That of another fit, by the name of this one."""
    cls, params = OTHERS[how]
    left = killed(cls(**{**SMALL, **params}, checkpoint_dir=path.parent / "other"), fit)
    shutil.move(left, path)
    (path.parent / "other").rmdir()


OTHERS = {
    "another seed": (SCGDGaussianProcessRegressor, {"random_state": 1}),
    "another method": (BSGDGaussianProcessRegressor, {}),
    "another width": (SCGDGaussianProcessRegressor, {"hidden_layer_sizes": (5,)}),
}
HOSTILE = [
    *((write_damaged, how) for how in DAMAGED),
    *((write_foreign, how) for how in FOREIGN),
    *((write_altered, how) for how in ALTERED),
    *((write_forged, how) for how in FORGED),
    *((write_renamed, how) for how in RENAMED),
    *((write_other, how) for how in OTHERS),
]


@pytest.fixture(scope="module")
def left_by_kill(sine, tmp_path_factory):
    """What a killed fit leaves, and what it would have come to."""
    few = sine[0][:40], sine[1][:40]
    folder = tmp_path_factory.mktemp("left")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
        path = killed(SCGDGaussianProcessRegressor(**SMALL, checkpoint_dir=folder), few)
    return path, SCGDGaussianProcessRegressor(**SMALL).fit(*few)


@pytest.mark.parametrize(("write", "how"), HOSTILE, ids=[f"{w.__name__}-{h}" for w, h in HOSTILE])
@slow_cases(
    "cut at 0.[19]",
    "flip at 0.[47]",
    "blank at 0.[49]",
    "an empty",
    "a list",
    "a tensor",
    "a best weight",
    "a moment",
    "a rate",
    "random numbers",
    "without [bsow]",
    "of words",
    "of another type",
)
def test_a_hostile_file_is_a_warning_and_a_fresh_start(
    few, tmp_path, left_by_kill, capsys, write, how
):
    left, reference = left_by_kill
    path = tmp_path / left.name
    shutil.copy(left, path)
    write(path, how, few)
    model = SCGDGaussianProcessRegressor(**SMALL, verbose=1, checkpoint_dir=tmp_path)
    capsys.readouterr()
    with pytest.warns(
        UserWarning, match=r"cannot be read \((.|\n)*\); the fit starts from the beginning"
    ):
        model.fit(*few)
    assert capsys.readouterr().out.startswith("Epoch 1:")
    assert_same(model, reference, few[0])
    assert not list(tmp_path.iterdir())


class Powers(nn.Module):
    """X to a power, which neither its repr nor a tensor shows."""

    def __init__(self, power):
        super().__init__()
        self.power = power

    def forward(self, X):
        return X**self.power


def test_modules_that_differ_in_a_number_have_checkpoints_of_their_own(few, tmp_path):
    params = {"n_inducing": 5, "solver": "adam", "max_iter": 4, "random_state": 0}
    model = SVGPRegressor(feature_map=Powers(1.0), checkpoint_dir=tmp_path, **params)
    killed(model, few)
    other = clone(model).set_params(feature_map=Powers(3.0)).fit(*few)
    assert_same(other, clone(other).set_params(checkpoint_dir=None).fit(*few), few[0])


class Setting:
    def __init__(self, value):
        self.value = value


def times(k):
    return lambda x: k * x


DIFFERENT_SETTINGS = {
    "lists": ([1.0, 2.0], [1.0, 3.0]),
    "tuples": ((1.0,), (2.0,)),
    "mappings": ({"a": [1]}, {"a": [2]}),
    "arrays": (np.arange(2_000), np.append(np.arange(1_999), 0)),
    "tensors": (torch.zeros(2), torch.ones(2)),
    "half-precision tensors": (torch.zeros(2).bfloat16(), torch.ones(2).bfloat16()),
    "sparse tensors": (torch.eye(2_000).to_sparse(), 2.0 * torch.eye(2_000).to_sparse()),
    "conjugates": (torch.ones(2, dtype=torch.cfloat).conj(), torch.zeros(2, dtype=torch.cfloat)),
    "tensors without numbers": (torch.ones(2, device="meta"), torch.ones(3, device="meta")),
    "dates": (np.array(["2020-01-01"], "M8[D]"), np.array(["2020-01-02"], "M8[D]")),
    "arrays of words": (np.array(["a"]), np.array(["b"])),
    "arrays of objects": (np.array({"a": 1}, object), np.array({"a": 2}, object)),
    "functions": (lambda x: x, lambda x: 2 * x),
    "functions of theirs": (torch.sin, torch.cos),
    "closures": (times(2), times(3)),
    "partial functions": (partial(max, 1), partial(max, 2)),
    "objects": (Setting([1]), Setting([2])),
    "sets": ({1, 2}, {1, 3}),
    "modules that are no layers": ([nn.PReLU(init=0.1)], [nn.PReLU(init=0.2)]),
    "types": (torch.float32, torch.float64),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT_SETTINGS.values(), ids=DIFFERENT_SETTINGS)
def test_settings_of_modules_tell_their_fits_apart(one, other):
    """A fit went on from the checkpoint of another one, in silence."""
    of_one, same, of_other = (
        fingerprint(*checkpoint.settings_of(nn.Sequential(Powers(each))))
        for each in (one, copy.deepcopy(one), other)
    )
    assert of_one == same
    assert of_one != of_other


class Unspeakable:
    def __repr__(self):
        raise RuntimeError

    __reduce_ex__ = __repr__


def looped():
    inside = [1.0]
    inside.append(inside)
    return inside


@pytest.mark.parametrize(
    "make",
    [threading.Lock, looped, lambda: logging.getLogger(__name__), lambda: np, object, Unspeakable],
)
def test_any_setting_of_a_module_is_described_alike(make):
    first, again = (fingerprint(*checkpoint.settings_of(Powers(make()))) for _ in range(2))
    logging.getLogger(f"{__name__}.{make.__name__}")  # loggers know of one another
    assert first == again == fingerprint(*checkpoint.settings_of(Powers(make())))


def test_other_buffers_of_modules_tell_their_fits_apart():
    found = set()
    for power in (1.0, 2.0, 2.0):
        module = nn.Identity()
        module.register_buffer("power", torch.tensor(power), persistent=False)
        found.add(fingerprint(*checkpoint.settings_of(module)))
    assert len(found) == 2


def test_steps_of_a_file_are_not_negative(few):
    """Their number divides, so a fit that went on from -1 steps failed."""
    model = SVGPRegressor(n_inducing=5, random_state=0).partial_fit(*few)
    objective = model._stream.objective
    with pytest.raises(ValueError, match="n_steps is -1"):
        objective.set_extra_state({**objective.get_extra_state(), "n_steps": -1})


@pytest.mark.parametrize("name", ["loss_curve", "scores", "scored_epochs"])
def test_histories_have_lists(name):
    """A tuple has no `append`."""
    assert History().is_sound()
    assert not replace(History(), **{name: ()}).is_sound()


def test_states_of_lbfgs_have_few_pairs():
    """Their products are a matrix."""
    w = nn.Parameter(torch.zeros(3))
    optimizer = ProjectedLBFGS([w], lambda: None)
    state = optimizer.state_dict()
    pair = (torch.zeros(3), torch.zeros(3))
    for n_pairs, is_sound in ((20, True), (21, False)):
        state["state"] = {0: {"pairs": [pair] * n_pairs}}
        assert has_moments_of(optimizer, state) == is_sound


def test_a_file_that_is_sound_is_resumed_from(few, tmp_path, left_by_kill, capsys):
    left, reference = left_by_kill
    shutil.copy(left, tmp_path)
    model = SCGDGaussianProcessRegressor(**SMALL, verbose=1, checkpoint_dir=tmp_path)
    assert_same(model.fit(*few), reference, few[0])
    assert capsys.readouterr().out.startswith("Epoch 3:")


@pytest.mark.slow
def test_a_fit_with_several_functions_resumes_to_the_same_bits(tmp_path):
    """Sums of a transposed matrix, which no checkpoint holds, are rounded otherwise."""
    rng = np.random.default_rng(7)
    X = rng.uniform(size=(40, 36))
    y = np.digitize(X[:, :18].mean(1) - X[:, 18:].mean(1), [-0.05, 0.05])
    params = {"image_shape": (6, 6), "patch_shape": 3, "n_inducing": 6, "max_iter": 6}
    model = ConvolutionalGPClassifier(**params, location_kernel=RBF(), random_state=0)
    reference = clone(model).fit(X, y)
    model.set_params(checkpoint_dir=tmp_path)
    killed(model, (X, y))
    assert_array_equal(model.fit(X, y).predict_proba(X), reference.predict_proba(X))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:No epoch of training improved")
def test_what_is_fixed_at_0_may_be_infinite(few, tmp_path):
    """As its logarithm is, also in the best state."""
    kernel = RBF() + DotProduct(0.0, sigma_0_bounds="fixed")
    params = {"early_stopping": True, "max_iter": 4, "n_inducing": 30, "random_state": 0}
    model = SVGPRegressor(kernel=kernel, **params)
    reference = clone(model).fit(*few)
    path = killed(model.set_params(checkpoint_dir=tmp_path), few)
    states = state_of(path)["objective"], state_of(path)["best_state"]
    assert all(s["model.features.covariances.kernel.k2.log_sigma_0"] == -np.inf for s in states)
    assert_same(model.fit(*few), reference, few[0])


EXTREME = {
    "noise": change("objective", "log_noise", to=lambda v: v * 0.0 + 1e300),
    "a matrix": change("objective", "running.gram", to=lambda v: v * 0.0 - 1e300),
}


@pytest.mark.parametrize("how", EXTREME)
def test_a_fit_that_fails_after_it_has_resumed_starts_again(few, tmp_path, left_by_kill, how):
    """Numbers may be finite, and yet such that no rate of learning leads back."""
    left, reference = left_by_kill
    state = state_of(left)
    EXTREME[how](state)
    put(tmp_path / left.name, state)
    model = SCGDGaussianProcessRegressor(**SMALL, checkpoint_dir=tmp_path)
    with pytest.warns(UserWarning, match="led to a failure .* starts from the beginning"):
        model.fit(*few)
    assert_same(model, reference, few[0])


INFINITE = {
    "deviations": (
        SVGPRegressor(likelihood="student_t", n_inducing=8, max_iter=4, random_state=0),
        "model.likelihood.log_df_minus_2",
    ),
    "a length-scale": (
        FITCRegressor(n_inducing=8, max_iter=4, random_state=0),
        "model.features.covariances.kernel.k2.log_length_scale",
    ),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("what", INFINITE)
def test_a_fit_that_resumes_to_what_is_not_finite_starts_again(few, tmp_path, what):
    model, name = INFINITE[what]
    reference = clone(model).fit(*few)
    path = killed(model.set_params(checkpoint_dir=tmp_path), few)
    state = state_of(path)
    for part in (state["objective"], state["best_state"]):
        if part is not None:
            part[name] = torch.full_like(part[name], -1e8 if what == "deviations" else 1e8)
    put(path, state)
    with pytest.warns(UserWarning, match="led to a failure .* starts from the beginning"):
        model.fit(*few)
    assert_same(model, reference, few[0])


@pytest.mark.slow
def test_neighbours_of_a_fit_that_failed_are_forgotten(tmp_path):
    """Another kernel found them, so the fit that started again ended elsewhere."""
    X = np.random.default_rng(0).uniform(-2.0, 2.0, (80, 3))
    codes = np.digitize(np.sin(X[:, 0]), [-0.5, 0.0, 0.5])
    params = {"early_stopping": True, "batch_size": 20, "max_iter": 12, "learning_rate_init": 0.3}
    model = NNGPClassifier(RBF(np.ones(3)), n_neighbors=6, random_state=0, **params)
    reference = clone(model).fit(X, codes)
    path = killed(model.set_params(checkpoint_dir=tmp_path), (X, codes), n_saves=8)
    state = state_of(path)
    state["objective"]["target_mean"][0] = 1e300
    put(path, state)
    with pytest.warns(UserWarning, match="led to a failure .* starts from the beginning"):
        model.fit(X, codes)
    assert_array_equal(model.predict_proba(X), reference.predict_proba(X))


IMAGES = {
    **{"image_shape": (1, 2), "patch_shape": 1, "n_inducing": 4},
    **{"max_iter": 4, "random_state": 0},
}
PATCHES = "model.features.parts.0.covariances.columns"
IMPOSSIBLE = {
    "points": (
        QSRVMRegressor(n_subset=30, max_iter=4, random_state=0),
        change("objective", "model.basis.points", to=torch.ones(40, 2).double()),
    ),
    "folds that all failed": (
        ADMMGaussianProcessRegressor(scheme="holdout", max_iter=4, tol=0.0, random_state=0),
        change("objective", "restarts.0.0.failed", to=torch.ones_like),
    ),
    "a best state without scores": (
        ADMMGaussianProcessRegressor(scheme="holdout", max_iter=4, tol=0.0, random_state=0),
        lambda state: state.update(best_state=dict(state["objective"])),
    ),
    "an infinite share of waves": (
        DeepKernelEnsembleRegressor(**SMALL, likelihood="gaussian"),
        change("objective", "model.features.network.1.share", to=lambda v: v / -0.0),
    ),
    "a moment that is no average": (
        DLMRegressor(n_inducing=10, max_iter=4, random_state=0),
        lambda state: state["optimizer"]["state"][0]["exp_avg"].fill_(1e30),
    ),
    "patches": (
        ConvolutionalGPRegressor(**IMAGES),
        change("objective", PATCHES, to=torch.tensor([[1], [0]])),
    ),
    "patches of a layer": (
        ConvolutionalGPRegressor(hidden_channels=1, **IMAGES),
        change("objective", "model.features.layers.0.columns", to=torch.tensor([[1, 0]])),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", IMPOSSIBLE)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_no_fit_comes_to_is_not_resumed_from(few, tmp_path, how):
    """The fit went on, and failed at its end, where nothing told of the checkpoint."""
    model, alter = IMPOSSIBLE[how]
    reference = clone(model).fit(*few)
    model = clone(model).set_params(checkpoint_dir=tmp_path)
    path = killed(model, few)
    state = state_of(path)
    alter(state)
    put(path, state)
    with pytest.warns(UserWarning, match="cannot be read .* starts from the beginning"):
        model.fit(*few)
    assert_same(model, reference, few[0])


@pytest.mark.parametrize("n_epochs", [2, 5])
def test_an_iterate_without_a_posterior_starts_the_fit_again(few, tmp_path, n_epochs):
    """Training went on to its end, after which the covariance of the points was infinite."""
    options = {"n_inducing": 8, "batch_size": 20, "solver": "adam", "early_stopping": True}
    model = SVGPRegressor(max_iter=5, random_state=0, **options)
    reference = clone(model).fit(*few)
    model.set_params(checkpoint_dir=tmp_path)
    path = killed(model, few, n_epochs)
    state = state_of(path)
    name = "model.features.covariances.kernel.k1.log_constant_value"
    for each in ("best_state", *["objective"] * (n_epochs == 5)):  # the last one is not trained
        state[each][name].fill_(1e19)
    state["history"]["best_score"] = -1e300
    put(path, state)
    with pytest.warns(UserWarning, match="led to a failure .* starts from the beginning"):
        model.fit(*few)
    assert_same(model, reference, few[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("n_members", [0, 1])
def test_a_file_of_another_number_of_networks_does_not_choose_it(few, tmp_path, n_members):
    model = DeepKernelEnsembleRegressor(**{**SMALL, "n_estimators": 3}, max_time=1e3)
    model.set_params(checkpoint_dir=tmp_path)
    path = killed(model, few)
    state = state_of(path)
    assert len(state["objective"]["folds"]) == 3
    state["objective"]["folds"] = state["objective"]["folds"][:n_members]
    put(path, state)
    with pytest.warns(UserWarning, match="cannot be read .* starts from the beginning"):
        model.fit(*few)
    assert model.budget_["n_estimators"] == 3
    path = killed(model, few)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.fit(*few).budget_["n_estimators"] == 3  # resumed


SETTINGS = {"amsgrad": True, "differentiable": True, "fused": 3, "weight_decay": 1e9, "lr": -1e308}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_of_an_optimizer_are_not_from_the_file(few, tmp_path, left_by_kill, name):
    """With another's, torch raises errors of its own, or weights shrink to nothing."""
    left, reference = left_by_kill
    state = state_of(left)
    change("optimizer", "param_groups", 0, name, to=SETTINGS[name])(state)
    put(tmp_path / left.name, state)
    model = SCGDGaussianProcessRegressor(**SMALL, checkpoint_dir=tmp_path)
    assert_same(model.fit(*few), reference, few[0])


LATE = {
    "optimizer": lambda state: state["optimizer"].update(state=[]),
    "history": lambda state: state["history"].update(more=1),
    "last key": lambda state: state.pop("generator"),
    "NaN": lambda state: state["objective"][WEIGHT].fill_(np.nan),
}


@pytest.mark.parametrize("how", LATE)
def test_a_failure_while_loading_leaves_all_as_it_was(
    few, tmp_path, left_by_kill, monkeypatch, how
):
    """Where the checks before it have seen nothing, and half of the state is loaded already."""
    left, reference = left_by_kill
    state = state_of(left)
    LATE[how](state)
    monkeypatch.setattr(Checkpoint, "load", lambda *_: copy.deepcopy(state))
    monkeypatch.setattr(observers, "can_be_in", lambda *_: True)
    model = SCGDGaussianProcessRegressor(**SMALL, checkpoint_dir=tmp_path)
    with pytest.warns(UserWarning, match="starts from the beginning"):
        model.fit(*few)
    assert_same(model, reference, few[0])


# --------------------------------------------------------------------------------- disks that fail
FAILURES = {
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "gone": OSError(errno.EIO, "Input/output error"),
}


def fit_warning_once(model, data):
    """Fitted, with a single warning, about the checkpoint."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*data)
    (only,) = caught
    assert "cannot be written" in str(only.message)
    return model


@pytest.mark.parametrize("error", FAILURES.values(), ids=FAILURES)
def test_a_disk_that_fills_up_is_no_end_of_a_fit(few, tmp_path, left_by_kill, monkeypatch, error):
    def fails(descriptor):
        raise error

    monkeypatch.setattr(os, "fsync", fails)
    model = SCGDGaussianProcessRegressor(**SMALL, checkpoint_dir=tmp_path)
    assert_same(fit_warning_once(model, few), left_by_kill[1], few[0])
    assert not list(tmp_path.iterdir())


def test_files_that_may_not_be_larger_are_no_end_of_a_fit(few, tmp_path, left_by_kill):
    """A failure of the system's own, in the middle of writing."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    model = SCGDGaussianProcessRegressor(**SMALL, checkpoint_dir=tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        fit_warning_once(model, few)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_same(model, left_by_kill[1], few[0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["folder", "Ordner für später"])
@pytest.mark.parametrize("becomes", ["nothing", "a file"])
def test_a_folder_that_vanishes_is_no_end_of_a_fit(
    few, tmp_path, left_by_kill, monkeypatch, name, becomes
):
    folder, save = tmp_path / name, Checkpoint.save

    def save_and_lose(self, state):
        save(self, state)
        if folder.is_dir():
            shutil.rmtree(folder)
            if becomes == "a file":
                folder.touch()

    monkeypatch.setattr(Checkpoint, "save", save_and_lose)
    model = SCGDGaussianProcessRegressor(**SMALL, checkpoint_dir=folder)
    assert_same(fit_warning_once(model, few), left_by_kill[1], few[0])


def test_a_folder_by_the_name_of_the_file(few, tmp_path, left_by_kill):
    left, reference = left_by_kill
    (tmp_path / left.name / "below").mkdir(parents=True)
    model = SCGDGaussianProcessRegressor(**SMALL, checkpoint_dir=tmp_path)
    with pytest.warns(UserWarning, match="The checkpoint") as caught:
        model.fit(*few)
    first, second = (str(w.message) for w in caught)
    assert "cannot be read" in first
    assert "cannot be written" in second
    assert_same(model, reference, few[0])
    assert [p.name for p in tmp_path.iterdir()] == [left.name]


def test_what_a_kill_while_writing_has_left_is_removed(few, tmp_path, left_by_kill):
    left, reference = left_by_kill
    (tmp_path / f".{left.name}.{'0' * 32}.tmp").write_bytes(b"half of it")
    (tmp_path / "notes.txt").touch()
    model = SCGDGaussianProcessRegressor(**SMALL, checkpoint_dir=tmp_path).fit(*few)
    assert_same(model, reference, few[0])
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


# --------------------------------------------------------------------------------- shared folders
def test_threads_may_share_a_file(tmp_path):
    """Writing, reading and removing it at any moment."""
    state = {"step": 3, "numbers": torch.arange(1000.0)}

    def use(i):
        file = Checkpoint(tmp_path, "fit")
        for _ in range(40):
            file.save(state)
            found = file.load(torch.device("cpu"))
            assert found is None or torch.equal(found["numbers"], state["numbers"])
            if i == 0:
                file.remove()
        return file.has_failed

    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(use, range(4)))
    Checkpoint(tmp_path, "fit").remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_same_fit_in_two_threads(few, tmp_path):
    """A value of beta that is named twice."""
    params = {
        "beta": [1.0, 1.0],
        "n_inducing": 4,
        "inducing_points": "random",
        "solver": "natural",
        "max_iter": 6,
        "random_state": 0,
    }
    reference = DLMRegressor(**params).fit(*few)
    with joblib.parallel_backend("threading"):
        model = DLMRegressor(**params, n_jobs=2, checkpoint_dir=tmp_path).fit(*few)
    assert_array_equal(model.predict(few[0]), reference.predict(few[0]))
    assert_array_equal(model.validation_scores_, reference.validation_scores_)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_full_batches_resume_from_sound_files_alone(few, tmp_path):
    """L-BFGS keeps other things than Adam does."""
    params = {"solver": "lbfgs", "max_iter": 3, "n_inducing": 4, "random_state": 0}
    reference = SVGPRegressor(**params).fit(*few)
    model = SVGPRegressor(**params, checkpoint_dir=tmp_path)
    path = killed(model, few, n_saves=1)
    state = state_of(path)
    assert_same(model.fit(*few), reference, few[0])
    kept = state["optimizer"]["state"][0]
    for other in ({"d": torch.zeros(3)}, {"pairs": [(torch.zeros(3), torch.zeros(3))]}):
        state["optimizer"]["state"][0] = {**kept, **other}
        Checkpoint(tmp_path, path.stem).save(state)
        with pytest.warns(UserWarning, match="belongs to another fit"):
            model.fit(*few)
        assert_same(model, reference, few[0])

"""What users must never meet, of estimators with very many basis functions."""

import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import BASIS, constructor, fitted_once, named
from families import slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpstoch import QSGPClassifier, QSGPRegressor, QSRVMRegressor
from skgpstoch.objectives.blockwise import BlockwiseObjective
from skgpstoch.training import checkpoint as checkpoint_module
from skgpstoch.training.exact_search import Evidence

every_basis = pytest.mark.parametrize("cls", BASIS, ids=named)
ROWS = 40


@pytest.fixture
def data(sine, three_classes):
    """data(cls): X and y of some rows."""
    return lambda cls: tuple(a[:ROWS] for a in (three_classes if is_classifier(cls()) else sine))


def answers(model, X):
    """What a model predicts."""
    if is_classifier(model):
        return [model.predict_proba(X), *model.latent_mean_and_variance(X)]
    return [*model.predict(X, return_std=True), model.sample_y(X, 2, random_state=1)]


def assert_same(a, b, X):
    for one, other in zip(answers(a, X), answers(b, X), strict=True):
        assert_array_equal(one, other)


@every_basis
@pytest.mark.parametrize("solver", ["newton", "adagrad"])
@slow_cases("newton-QSGPClassifier", "adagrad-QSRVM", "QSRVMClassifier")
def test_one_seed_gives_the_same_bits_and_touches_nothing(cls, solver, data):
    if solver == "adagrad" and "solver" not in cls().get_params():
        pytest.skip("has one solver")
    options = {"solver": solver} if "solver" in cls().get_params() else {}
    options["max_iter"] = 3
    X, y = data(cls)
    before = torch.get_rng_state()
    params = constructor(cls)(**options).get_params()
    first = constructor(cls)(**options).fit(X, y)
    second = constructor(cls)(**options).fit(X, y)
    assert_same(first, second, X)
    assert repr(first.get_params()) == repr(params)
    assert_array_equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32


@every_basis
@slow_cases("QSRVMClassifier")
def test_a_failed_fit_changes_nothing(cls, data):
    X, y = data(cls)
    model = fitted_once(constructor(cls)(), X, y)
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(X > 2.9, np.nan, X), y)
    with pytest.raises(ValueError, match=r"device='cuda.*not available|device"):
        model.set_params(device="cuda:99").fit(X, y)
    model.set_params(device=None)
    assert pickle.dumps(model) == before


@every_basis
@slow_cases("QSRVMClassifier")
def test_ctrl_c_leaves_a_usable_model(cls, data, monkeypatch):
    X, y = data(cls)
    inner, calls = BlockwiseObjective.step, []

    def step(self, *args):
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return inner(self, *args)

    monkeypatch.setattr(BlockwiseObjective, "step", step)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = constructor(cls)(basis_batch_size=30, n_iter_no_change=10).fit(X, y)
    assert np.isfinite(answers(model, X)[0]).all()


@pytest.mark.slow
@every_basis
@slow_cases("QSGPClassifier", "QSRVMClassifier")
def test_a_killed_fit_resumes_to_the_same_bits(cls, data, monkeypatch, tmp_path):
    X, y = data(cls)
    monkeypatch.setattr(checkpoint_module, "CHECKPOINT_SECONDS", 0.0)
    options = {"n_iter_no_change": 10, "max_iter": 4, "basis_batch_size": 30}
    whole = constructor(cls)(**options).fit(X, y)
    with monkeypatch.context() as patch:
        inner = BlockwiseObjective.begin

        def begin(self, generator):
            if self.n_sweeps == 2:
                raise MemoryError("killed")
            return inner(self, generator)

        patch.setattr(BlockwiseObjective, "begin", begin)
        with pytest.raises(MemoryError):
            constructor(cls)(**options, checkpoint_dir=tmp_path).fit(X, y)
    assert list(tmp_path.iterdir())
    done = []
    inner_end = BlockwiseObjective.epoch_end

    def epoch_end(self):
        done.append(self.n_sweeps)
        inner_end(self)

    monkeypatch.setattr(BlockwiseObjective, "epoch_end", epoch_end)
    resumed = constructor(cls)(**options, checkpoint_dir=tmp_path).fit(X, y)
    assert done[0] == 2
    assert_same(whole, resumed, X)
    assert not list(tmp_path.iterdir())


@every_basis
def test_queries_from_many_threads(cls, data):
    X, y = data(cls)
    model = fitted_once(constructor(cls)(), X, y)
    parts = [X[i : i + 10] for i in range(0, 25, 5)]
    alone = [answers(model, part) for part in parts]
    with ThreadPoolExecutor(8) as threads:
        for one, other in zip(threads.map(lambda p: answers(model, p), parts), alone, strict=True):
            for a, b in zip(one, other, strict=True):
                assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@every_basis
@slow_cases("QSGPClassifier", "QSRVMClassifier")
def test_weights_are_repetitions(cls, data):
    X, y = data(cls)
    weight = np.arange(ROWS) % 3
    weighted = constructor(cls)(dtype="float64", max_iter=4).fit(X, y, sample_weight=weight)
    repeated = constructor(cls)(dtype="float64", max_iter=4).fit(
        np.repeat(X, weight, 0), np.repeat(y, weight)
    )
    for a, b in zip(answers(weighted, X)[:2], answers(repeated, X)[:2], strict=True):
        assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@every_basis
def test_frames_and_held_out_rows(cls, data):
    X, y = data(cls)
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = constructor(cls)(early_stopping=True, max_iter=4, validation_fraction=0.2).fit(frame, y)
    assert len(model.validation_scores_) == model.n_iter_
    assert list(model.feature_names_in_) == ["a", "b"]
    assert np.isfinite(answers(model, frame)[0]).all()


def test_unfitted_and_out_of_range():
    with pytest.raises(NotFittedError):
        QSGPRegressor().predict([[0.0]])
    with pytest.raises(ValueError, match="learning_rate_init"):
        QSGPRegressor(learning_rate_init=2.0).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(ValueError, match=r"likelihood.*student_t"):
        QSGPRegressor(likelihood="student_t").fit([[0.0], [1.0]], [0.0, 1.0])


def test_noise_is_raised_to_the_residual_where_diagonal_columns_are_many():
    """Else functions that too few columns know stand beside a noise of nearly 0."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (120, 1))
    y = np.sin(5 * X[:, 0]) * X[:, 0]
    model = QSGPRegressor(n_components=60, n_dense=5, n_subset=100, random_state=0)
    with pytest.warns(UserWarning, match="Raise n_components, now 60"):
        model.fit(X, y)
    residual = np.mean((y - model.predict(X)) ** 2)
    assert model.noise_variance_ >= 0.9 * residual


@pytest.mark.slow
def test_relevance_vectors_of_a_collinear_dictionary():
    """A smooth function on many rows: large weights cancel, and pruning must not undo the fit."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (120, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(120)
    model = QSRVMRegressor(random_state=0).fit(X, y)
    assert len(model.relevance_) < 20
    assert np.sqrt(np.mean((model.predict(X) - np.sin(X[:, 0])) ** 2)) < 0.05


@pytest.mark.slow
def test_classes_of_all_kinds_have_probabilities(three_classes):
    X, y = three_classes
    model = QSGPClassifier(n_components=200, n_subset=100, max_iter=8, random_state=0).fit(X, y)
    probability = model.predict_proba(X)
    assert model.score(X, y) > 0.93
    assert_allclose(probability.sum(1), 1.0)
    expected = np.log(probability[np.arange(len(y)), np.searchsorted(model.classes_, y)])
    assert_allclose(model.log_predictive_density(X, y), expected, atol=1e-9)


@pytest.mark.parametrize("cls", [QSRVMRegressor])
def test_a_hyperparameter_at_its_bound_gets_a_warning(cls):
    X = np.linspace(-3, 3, 80)[:, None]
    y = np.sin(3.0 * X[:, 0]) + 0.1 * np.random.default_rng(0).standard_normal(80)
    kernel = ConstantKernel(1.0) * RBF(2.0, (1.0, 10.0))
    with pytest.warns(ConvergenceWarning, match="k2__length_scale is close to the specified lower"):
        cls(kernel, max_iter=2, random_state=0).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as it is what the user asked for
        cls(kernel, n_subset=0, max_iter=2, random_state=0).fit(X, y)


@pytest.mark.slow
def test_an_interrupted_search_says_so(monkeypatch):
    X, calls, evaluate = np.linspace(-3, 3, 80)[:, None], [], Evidence.__call__

    def third_is_interrupted(self, *args):
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return evaluate(self, *args)

    monkeypatch.setattr(Evidence, "__call__", third_is_interrupted)
    cut = pytest.warns(ConvergenceWarning, match="interrupted after 1 of 2 epochs")
    with cut, pytest.warns(ConvergenceWarning, match="Training on all rows is cut short"):
        model = QSGPRegressor(max_iter=2, random_state=0).fit(X, np.sin(X[:, 0]))
    assert model.n_iter_ == 1

"""A larger max_iter does no harm, and training that ends early keeps its best iterate."""

import functools

import numpy as np
import pytest
from conftest import BASIS, DEEP, DROP_IN, ESTIMATORS, IMAGES, TRAINED, constructor, has
from families import by_default, by_family, slow_cases
from shared import Calls, labelled, results
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import skgpstoch
from skgpstoch.training.loop import Trainer

FOURIER = {"kernel": RBF() + WhiteKernel(0.1), "hidden_layer_sizes": (), "n_components": 30}
STILL = [skgpstoch.SVGPRegressor, skgpstoch.SolveGPRegressor, skgpstoch.FITCRegressor]
OF_BASIS = {"n_subset": 30, "random_state": 0}
# Estimators whose solver finds an optimum, in fewer epochs than "auto" allows.
ENDING = {
    "classes": functools.partial(skgpstoch.SVGPClassifier, n_inducing=10),
    "orthogonal classes": functools.partial(skgpstoch.SolveGPClassifier, n_inducing=10),
    "all rows": skgpstoch.SVGPClassifier,
    "counts": functools.partial(skgpstoch.SVGPRegressor, n_inducing=10, likelihood="poisson"),
    "held out": functools.partial(skgpstoch.SVGPRegressor, n_inducing=10, early_stopping=True),
    "square loss": functools.partial(skgpstoch.DLMRegressor, n_inducing=10, loss="square"),
    "folds": skgpstoch.ADMMGaussianProcessRegressor,
    "basis": functools.partial(skgpstoch.QSGPRegressor, **OF_BASIS),
    "basis classes": functools.partial(skgpstoch.QSGPClassifier, **OF_BASIS),
    "relevance": functools.partial(skgpstoch.QSRVMRegressor, **OF_BASIS),
    "relevance classes": functools.partial(skgpstoch.QSRVMClassifier, **OF_BASIS),
}
SCHEDULED = [
    cls for cls in ESTIMATORS if cls not in DROP_IN + BASIS and "max_iter" in cls().get_params()
]
STOPPED = [cls for cls in ESTIMATORS if "early_stopping" in cls().get_params()]


class Stop(Calls):
    """A callback that ends training after an epoch."""

    def __init__(self, last):
        super().__init__()
        self.last = last

    def on_fit_task_end(self, estimator, context):
        super().on_fit_task_end(estimator, context)
        return context.task_name == "epoch" and context.task_id == self.last


def sine_in_noise(n):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (n, 1))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(n)


def quick(cls, **params):
    """A quick estimator for two inputs, trained by steps if it has a solver that makes them."""
    if cls in IMAGES:
        params |= {"image_shape": (1, 2), "patch_shape": (1, 1)}
    if cls in TRAINED + DEEP + IMAGES and has(cls, {"solver": "adam"}):
        params |= {"solver": "adam"}
    return constructor(cls)(**params)


@pytest.fixture
def scores_of_choice(monkeypatch):
    """Scores (last, chosen) of the iterates at the end of trainings and of what they choose."""
    choose, found = Trainer.choose, []

    def watched(self):
        self.objective.eval()
        last = self.evaluate()
        choose(self)
        found.append((last, self.evaluate()))

    monkeypatch.setattr(Trainer, "choose", watched)
    return found


@pytest.mark.parametrize("cls", STILL)
@pytest.mark.parametrize("n", [90, 200])
@by_default("90-SVGP", "200-FITC")
@slow_cases("^200-FITCRegressor$")
def test_more_epochs_than_are_needed_change_nothing(cls, n):
    X, y = sine_in_noise(n)
    values = [
        cls(1.0 * RBF(), n_inducing=20, random_state=0, max_iter=max_iter).fit(X, y)
        for max_iter in ("auto", 60, 1000)
    ]
    best, *others = (model.log_marginal_likelihood_value_ for model in values)
    np.testing.assert_allclose(others, best, atol=1e-6 * n)
    assert values[-1].n_iter_ < 60


@pytest.mark.slow
@pytest.mark.parametrize("make", ENDING.values(), ids=ENDING)
@slow_cases("^basis$", "all rows", "classes", "folds")
def test_a_solver_that_ends_does_not_depend_on_max_iter(make, sine):
    X, y = sine[0][:100], sine[1][:100]
    model = make(random_state=0)
    if getattr(model, "likelihood", None) == "poisson":
        y = np.floor(np.exp(1.0 + y))
    X, y = labelled(model, (X, y))
    n_iter, found = model.fit(X, y).n_iter_, results(model)
    assert model.set_params(max_iter=1000).fit(X, y).n_iter_ == n_iter
    np.testing.assert_allclose(results(model), found, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cls", STILL)
@pytest.mark.filterwarnings("ignore:Training ended after", "ignore:The optimal value found")
@by_default("SVGP")
@pytest.mark.slow
def test_every_epoch_of_a_deterministic_solver_is_a_candidate(cls, scores_of_choice):
    X, y = sine_in_noise(60)
    found = []
    for epoch in range(5):
        model = cls(1.0 * RBF(), n_inducing=10, random_state=0, max_iter=1000)
        model.set_callbacks(Stop(epoch)).fit(X, y)
        assert model.loss_curve_[model.best_iter_ - 1] == min(model.loss_curve_)
        found.append(scores_of_choice[-1])  # before it, the exact evidence was maximised
    last, chosen = np.transpose(found)
    np.testing.assert_allclose(chosen, np.minimum.accumulate(last), atol=1e-6)
    assert chosen[-1] < chosen[0]


@pytest.mark.parametrize("cls", by_family("the last iterate", STOPPED))
@pytest.mark.filterwarnings("ignore:Training ended after", "ignore:No epoch of training")
@slow_cases("ConvolutionalGPClassifier", "NNGP", "DeepKernel")
def test_training_that_a_callback_stops_keeps_the_best_of_all_epochs(cls, sine, scores_of_choice):
    for epoch in (0, 4):
        model = quick(cls, max_iter=400, early_stopping=True)
        model.set_callbacks(Stop(epoch)).fit(*labelled(model, sine))
        assert model.n_iter_ == epoch + 1
        last, chosen = scores_of_choice[-1]
        assert chosen <= last + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("cls", by_family("the last iterate", SCHEDULED))
@pytest.mark.filterwarnings("ignore:Training ended after")
@slow_cases("ConvolutionalGPClassifier", "Deep", "NNGP", "DLMRegressor")
def test_a_longer_schedule_is_not_worse_on_other_rows(cls, sine):
    scores = []
    for max_iter in (25, 100):
        model = quick(cls, max_iter=max_iter)
        X, y = labelled(model, sine)
        model.fit(X[::2], y[::2])
        scores.append(model.score(X[1::2], y[1::2]))
    assert scores[1] > scores[0] - 0.05


def test_a_start_that_is_kept_is_told_of(quick_finite, sine):
    model = quick_finite(**FOURIER, learning_rate_init=1e3, max_iter=5)
    with pytest.warns(UserWarning, match="No epoch of training improved .* Lower learning_rate"):
        model.fit(*sine)
    assert model.best_iter_ == 0

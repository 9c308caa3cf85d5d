"""A larger max_iter does no harm, and training that a callback stops keeps its best iterate."""

import numpy as np
import pytest
from conftest import TRAINED, constructor, has
from families import by_family
from shared import Calls, labelled
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import skgpstoch

FOURIER = {"kernel": RBF() + WhiteKernel(0.1), "hidden_layer_sizes": (), "n_components": 30}
STILL = [skgpstoch.SVGPRegressor, skgpstoch.SolveGPRegressor, skgpstoch.FITCRegressor]


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


@pytest.mark.parametrize("cls", STILL)
@pytest.mark.parametrize("n", [90, 200])
def test_more_epochs_than_are_needed_change_nothing(cls, n):
    X, y = sine_in_noise(n)
    values = [
        cls(1.0 * RBF(), n_inducing=20, random_state=0, max_iter=max_iter).fit(X, y)
        for max_iter in ("auto", 60, 1000)
    ]
    best, *others = (model.log_marginal_likelihood_value_ for model in values)
    np.testing.assert_allclose(others, best, atol=1e-6 * n)
    assert values[-1].n_iter_ < 60


@pytest.mark.parametrize("cls", STILL)
@pytest.mark.filterwarnings("ignore:Training ended after", "ignore:The optimal value found")
def test_every_epoch_of_a_deterministic_solver_is_a_candidate(cls):
    X, y = sine_in_noise(60)
    losses = []
    for epoch in range(10):
        model = cls(1.0 * RBF(), n_inducing=10, random_state=0, max_iter=1000)
        model.set_callbacks(Stop(epoch)).fit(X, y)
        losses.append(model.loss_curve_[model.best_iter_ - 1])
        assert losses[-1] == min(model.loss_curve_)  # of FITC, with the prior of its points
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("cls", by_family("the last iterate", TRAINED))
@pytest.mark.filterwarnings("ignore:Training ended after", "ignore:No epoch of training")
def test_training_that_a_callback_stops_keeps_the_best_of_all_epochs(cls, sine):
    solver = {"solver": "adam"} if has(cls, {"solver": "adam"}) else {}
    for epoch in range(10):
        model = constructor(cls)(**solver, max_iter=400, early_stopping=True)
        model.set_callbacks(Stop(epoch)).fit(*labelled(model, sine))
        scores = model.validation_scores_
        assert model.n_iter_ == epoch + 1
        assert (model.best_iter_ == epoch + 1) == (scores[-1] == min(scores))


@pytest.mark.parametrize("cls", by_family("the last iterate", TRAINED))
@pytest.mark.filterwarnings("ignore:Training ended after")
def test_a_longer_schedule_is_not_worse_on_other_rows(cls, sine):
    X, y = sine
    solver = {"solver": "adam"} if has(cls, {"solver": "adam"}) else {}
    scores = []
    for max_iter in (60, 240):
        model = constructor(cls)(**solver, max_iter=max_iter)
        X, y = labelled(model, sine)
        model.fit(X[::2], y[::2])
        scores.append(model.score(X[1::2], y[1::2]))
    assert scores[1] > scores[0] - 0.05


def test_a_start_that_is_kept_is_told_of(quick_finite, sine):
    model = quick_finite(**FOURIER, learning_rate_init=1e3, max_iter=5)
    with pytest.warns(UserWarning, match="No epoch of training improved .* Lower learning_rate"):
        model.fit(*sine)
    assert model.best_iter_ == 0

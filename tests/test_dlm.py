"""Direct loss minimisation: losses of every estimator, and the choice of beta."""

import copy
import itertools
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from conftest import DIRECT, constructor, fitted_once, named, on_each
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal, norm
from shared import GRID, Calls, constant_density, global_state, kill, labelled, results
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpstoch import (
    DLMClassifier,
    DLMRegressor,
    ExpectedLogLikelihood,
    FITCRegressor,
    LogLoss,
    SolveGPClassifier,
    SolveGPRegressor,
    SquareLoss,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.data.arrays import resolve_seed
from skgpstoch.data.equal_rows import observations
from skgpstoch.data.rows import Data
from skgpstoch.likelihoods import Bernoulli, Gaussian, Laplace, Likelihood, Poisson, StudentT
from skgpstoch.methods.dlm import fits
from skgpstoch.methods.dlm.fits import beta_grid, split_rows
from skgpstoch.metrics import neg_log_predictive_density_scorer

BETAS = [0.01, 1.0, 30.0]
LIKELIHOODS = {
    "gaussian": "gaussian",
    "student_t": "student_t",
    "laplace": Laplace(0.5),
    "poisson": "poisson",
    "softplus": Poisson("softplus"),
    "bernoulli": "bernoulli",
    "probit": Bernoulli("probit"),
    "softmax": "softmax",
    "robustmax": "robustmax",
}
CLASSES = ("bernoulli", "probit", "softmax", "robustmax")
LOSSES = {
    "elbo": ExpectedLogLikelihood(),
    "log": "log",
    "square": SquareLoss(),
    "biased": LogLoss("biased", n_samples=30),
    "smoothed": LogLoss("smoothed", n_samples=30),
    "product": LogLoss("product", n_samples=5),
}
SAMPLED = ("biased", "smoothed", "product")
POSTERIORS = {
    "solve": {"posterior": "solve", "n_orthogonal": 5},
    "odvgp": {"posterior": "odvgp", "n_orthogonal": 9},
    "decoupled": {"posterior": "odvgp", "n_orthogonal": 12, "whiten": False},
}


every_direct = on_each("direct", DIRECT)


@pytest.fixture(params=[DLMRegressor], ids=named)
def direct(request):
    """A class of the family, which have all but labels in common."""
    return request.param


@pytest.fixture
def quick_direct(direct):
    """Constructor of a quick estimator."""
    return constructor(direct)


def quick(**params):
    """A quick regressor."""
    return constructor(DLMRegressor)(**{"max_iter": 5, **params})


@pytest.fixture(scope="module")
def small():
    """60 rows; numbers, counts, two and three classes."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-3, 3, (60, 2))
    f = np.sin(X[:, 0])
    numbers = 5.0 + 2.0 * f + 0.2 * rng.standard_normal(len(X))
    counts = rng.poisson(np.exp(1.0 + f))
    two, three = np.where(f > 0.0, "up", "down"), np.digitize(f, [-0.5, 0.5])
    return X, {
        **dict.fromkeys(("gaussian", "student_t", "laplace"), numbers),
        **dict.fromkeys(("poisson", "softplus"), counts),
        **dict.fromkeys(("bernoulli", "probit"), two),
        **dict.fromkeys(("softmax", "robustmax"), three),
    }


def split(model, X, y):
    """Which rows the choice of beta trains on, and which it holds out; all of them differ."""
    codes = np.unique(y, return_inverse=True)[1] if is_classifier(model) else y
    data, seed = observations(Data(X, codes[:, None]))[0], resolve_seed(model.random_state)
    order = np.array([np.flatnonzero((x == X).all(1)).item() for x in data.X])
    parts = split_rows(data, model.validation_fraction, seed, is_classifier(model))
    return [order[part] for part in parts]


# ------------------------------------------------------------------------- losses and likelihoods
FAMILIES = {
    "regressor": itertools.cycle([DLMRegressor, SVGPRegressor, DLMRegressor, SolveGPRegressor]),
    "classifier": itertools.cycle(
        [DLMClassifier, SVGPClassifier, DLMClassifier, SolveGPClassifier]
    ),
}


def combinations():
    """Likelihoods and losses; classes, solvers, posteriors and networks take turns."""
    posteriors = itertools.cycle(POSTERIORS.items())
    solvers = itertools.cycle(["natural", "natural", "adam"])
    networks = itertools.cycle([("", {}), ("network", {"hidden_layer_sizes": (6,)})])
    plain = itertools.repeat(("", {}))
    own = {SVGPRegressor: networks, SVGPClassifier: networks}
    own |= {SolveGPRegressor: posteriors, SolveGPClassifier: posteriors}
    pairs = itertools.product(enumerate(LIKELIHOODS), enumerate(LOSSES))
    for (i, likelihood), (j, loss) in pairs:
        if likelihood == "robustmax" and loss in SAMPLED:
            continue  # it has no derivatives by f
        if (i + j) % 3:
            continue  # each with two of the losses; tests/test_losses.py has them all
        cls = next(FAMILIES["classifier" if likelihood in CLASSES else "regressor"])
        (name, params), solver = next(own.get(cls, plain)), next(solvers)
        marks = [named(cls), likelihood, loss, name, solver]
        values = (cls, likelihood, loss, {"solver": solver, **params})
        yield pytest.param(*values, id="-".join(filter(None, marks)))


@pytest.mark.parametrize(("cls", "likelihood", "loss", "params"), list(combinations()))
@slow_cases("square-adam$", "product", "smoothed", "biased", "robustmax", "gaussian", "bernoulli")
def test_every_loss_with_every_likelihood(cls, likelihood, loss, params, small):
    X, targets = small
    y = targets[likelihood]
    slow = params["solver"] == "adam"  # whose q(w) is as slow as its learning rate
    model = cls(
        n_inducing=6,
        batch_size=30,
        max_iter=15 if slow else 6,
        random_state=0,
        likelihood=LIKELIHOODS[likelihood],
        loss=LOSSES[loss],
        **params,
    ).fit(X, y)
    assert np.isfinite(results(model)).all()
    assert np.isfinite(model.loss_curve_).all()
    assert np.isfinite(model.log_marginal_likelihood_value_)
    density = model.log_predictive_density(X, y)
    if loss != "square" or likelihood not in ("poisson", "softplus"):
        assert density.mean() > constant_density(y)
    assert_array_equal(results(pickle.loads(pickle.dumps(model))), results(model))
    if is_classifier(model):
        assert model.score(X, y) > np.unique(y, return_counts=True)[1].max() / len(y)
        return
    assert model.score(X, y) > 0.1
    assert (model.predict_std(X) > 0.0).all()
    interval = model.predict_interval(X, 0.9)
    assert (interval[:, 0] <= interval[:, 1]).all()


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_posteriors(sine, posterior):
    params = {"loss": "log", "solver": "natural", "max_iter": 6, **POSTERIORS[posterior]}
    model = constructor(SolveGPRegressor)(**params).fit(*sine)
    assert model.orthogonal_points_.shape == (model.n_orthogonal, 2)
    assert model.score(*sine) > 0.6
    assert np.isfinite(results(model)).all()


@pytest.mark.slow
def test_names_and_instances_of_losses_agree(quick_direct, sine):
    for name, loss in {
        "elbo": ExpectedLogLikelihood(),
        "log": LogLoss(),
        "square": SquareLoss(),
    }.items():
        a, b = (quick_direct(loss=given, max_iter=3) for given in (name, loss))
        data = labelled(a, sine)
        assert_array_equal(results(a.fit(*data)), results(b.fit(*data)))


@pytest.mark.slow
@pytest.mark.parametrize("gradient", SAMPLED)
@slow_cases("biased", "smoothed")
def test_sampled_gradients_follow_the_seed(quick_direct, sine, gradient):
    def make(seed):
        loss = LogLoss(gradient, n_samples=2)
        return quick_direct(loss=loss, random_state=seed, max_iter=2, n_inducing=5)

    data = labelled(make(0), sine)
    state = torch.get_rng_state()
    models = [make(seed).fit(*data) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    assert_array_equal(results(models[0]), results(models[1]))
    assert not np.array_equal(results(models[0]), results(models[2]))


def test_the_elbo_is_the_familys(sine):
    """loss="elbo" and beta=1 is what SVGP is."""
    model = quick(loss="elbo").fit(*sine)
    other = constructor(SVGPRegressor)(max_iter=5, solver="natural").fit(*sine)
    assert_array_equal(results(model), results(other))
    assert model.kernel_ == other.kernel_


@pytest.mark.slow
# ------------------------------------------------------------------------------------ what it gains
@pytest.mark.filterwarnings("ignore:Errors have heavy tails")
def test_the_log_loss_is_lower_where_noise_varies():
    """Noise that depends on the input: a wide q(f) tells of it, and the ELBO's does not."""
    rng = np.random.default_rng(0)

    def draw(n):
        X = rng.uniform(-3, 3, (n, 1))
        return X, np.sin(X[:, 0]) + np.where(X[:, 0] > 0.0, 0.6, 0.05) * rng.standard_normal(n)

    (X, y), held_out = draw(400), draw(2000)
    params = {"n_inducing": 12, "max_iter": 30, "beta": 0.3, "batch_size": 200}
    losses = [
        -quick(loss=loss, **params).fit(X, y).log_predictive_density(*held_out).mean()
        for loss in ("elbo", "log")
    ]
    assert losses[1] < losses[0] - 0.15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "beta"),
    [("gaussian", 0.1), ("gaussian", 1.0), ("student_t", 0.1), ("laplace", 1.0)],
)
@by_default("gaussian-0.1")
def test_intervals_of_the_square_loss_cover(likelihood, beta):
    """Their scale is that of leave-one-out errors."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (2200, 2))
    y = 40.0 + 10.0 * (np.sin(X[:, 0]) + 0.2 * rng.standard_normal(len(X)))
    params = {"loss": "square", "beta": beta, "likelihood": likelihood, "n_inducing": 25}
    stds = []
    for seed in range(2):
        model = quick(**params, max_iter=15, random_state=seed).fit(X[:1200], y[:1200])
        error = np.abs(model.predict(X[1200:]) - 10.0 * np.sin(X[1200:, 0]) - 40.0)
        assert np.sqrt((error**2).mean()) < 1.0
        low, high = model.predict_interval(X[1200:], 0.95).T
        assert 0.91 < np.mean((low < y[1200:]) & (y[1200:] < high)) < 0.98
        stds.append(model.predict_std(X[1200:]).mean())
    if likelihood == "gaussian":
        assert np.mean(stds) == pytest.approx(2.0, rel=0.2)


@pytest.mark.slow
def test_units_of_y_are_those_of_predictions_for_every_loss(sine):
    X, y = sine
    Y = np.column_stack([y, 2.0 * X[:, 1] + y])
    c = np.array([8.0, 64.0])  # exact in floating point, so that nothing else changes
    for loss in ("log", "square"):
        model, other = (quick(loss=loss, max_iter=3).fit(X, scale * Y) for scale in (1.0, c))
        assert_allclose(other.predict(GRID), c * model.predict(GRID), rtol=1e-8, atol=1e-8)
        assert_allclose(other.predict_std(GRID), c * model.predict_std(GRID), rtol=1e-8)
        assert_allclose(other.noise_variance_, c**2 * model.noise_variance_, rtol=1e-8)


# ------------------------------------------------------------------------------- the choice of beta
def test_the_grid_is_the_papers():
    """From n/2 on by 4 while above 500, then by 2, down to 0.01."""
    expected = [1000.0, 250.0, 125.0, 62.5, 31.25, 15.625, 7.8125, 3.90625, 1.953125, 0.9765625]
    assert_array_equal(beta_grid(2000)[:10], expected)
    assert_array_equal(beta_grid(10_000)[:4], [5000.0, 1250.0, 312.5, 156.25])
    assert_array_equal(beta_grid(1000)[:2], [500.0, 250.0])
    for n_rows in (2, 3, 36, 501, 12_345, 10**6):
        grid = beta_grid(n_rows)
        assert grid[0] == n_rows / 2
        assert 0.01 <= grid[-1] < 0.02
        ratios = grid[:-1] / grid[1:]
        assert_array_equal(ratios, np.where(grid[:-1] > 500.0, 4.0, 2.0))


@pytest.mark.slow
def test_auto_is_the_grid_of_the_rows_to_train_on(quick_direct, sine):
    model = quick_direct(beta="auto", max_iter=1, validation_fraction=0.25, n_inducing=3)
    X, y = (a[:40] for a in labelled(model, sine))
    model.fit(X, y)
    assert_array_equal(model.beta_path_, beta_grid(30))
    assert model.validation_scores_.shape == model.beta_path_.shape
    assert model.beta == "auto"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("direct", "loss", "hyperparameters"),
    [
        (DLMRegressor, "log", "fixed"),
        (DLMRegressor, "square", "joint"),
        (DLMRegressor, "elbo", "joint"),
        (DLMClassifier, "log", "joint"),
        (DLMClassifier, "square", "fixed"),
    ],
    indirect=["direct"],
)
@by_default("log-fixed", "square-joint")
@slow_cases("square-joint")
def test_the_choice_is_that_of_held_out_rows(quick_direct, sine, loss, hyperparameters):
    """By the loss itself; the best is fitted again on all rows, or kept."""
    params = {"loss": loss, "hyperparameters": hyperparameters, "max_iter": 2, "calibrate": False}
    if not is_classifier(quick_direct()):
        params["normalize_y"] = False  # so that losses are in the units of y
    model = quick_direct(beta=BETAS, **params)
    X, y = (a[:100] for a in labelled(model, sine))
    model.fit(X, y)
    assert_array_equal(model.beta_path_, BETAS)
    assert model.beta_ == BETAS[int(np.argmin(model.validation_scores_))]
    assert model.posterior_.n_rows == 100
    train, held_out = split(model, X, y)
    X_out, y_out = X[held_out], y[held_out]
    assert len(y_out) == 10
    alone = [quick_direct(beta=beta, **params).fit(X[train], y[train]) for beta in BETAS]
    if loss != "square":
        expected = [-one.log_predictive_density(X_out, y_out).mean() for one in alone]
    elif is_classifier(model):
        hot = y_out == model.classes_[1]
        expected = [((hot - one.predict_proba(X_out)[:, 1]) ** 2).mean() for one in alone]
    else:
        expected = [((y_out - one.predict(X_out)) ** 2).mean() for one in alone]
    assert_allclose(model.validation_scores_, expected, rtol=1e-6)
    refitted = quick_direct(beta=model.beta_, **params).fit(X, y)
    assert_array_equal(results(model), results(refitted))
    assert not hasattr(refitted, "beta_path_")
    kept = quick_direct(beta=BETAS, refit=False, **params).fit(X, y)
    assert_array_equal(kept.validation_scores_, model.validation_scores_)
    assert kept.beta_ == model.beta_
    assert kept.posterior_.n_rows == 90
    assert_array_equal(results(kept), results(alone[int(np.argmin(kept.validation_scores_))]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "betas",
    [(0.1, 1), np.array([0.1, 1.0], np.float32), pd.Series([0.1, 1.0], index=[3, 7]), range(1, 3)],
    ids=["tuple", "float32", "series", "range"],
)
@slow_cases("range", "tuple", "float32")
def test_containers_of_beta(sine, betas):
    model = quick(beta=betas, max_iter=1).fit(*sine)
    assert_array_equal(model.beta_path_, np.asarray(betas, dtype=float))
    assert model.get_params()["beta"] is betas


def test_one_beta_is_a_choice_too(sine):
    model = quick(beta=[0.5], max_iter=1).fit(*sine)
    assert model.beta_ == 0.5
    assert model.validation_scores_.shape == (1,)


def test_a_number_is_no_choice(quick_direct, sine):
    model = quick_direct(beta=0.5, max_iter=2)
    model.fit(*labelled(model, sine))
    assert model.beta_ == 0.5
    assert model.validation_scores_ is None
    assert not hasattr(model, "beta_path_")


@pytest.mark.slow
def test_early_stopping_has_scores_of_its_own(quick_direct, sine):
    model = quick_direct(early_stopping=True, max_iter=4)
    data = labelled(model, sine)
    assert len(model.fit(*data).validation_scores_) == 4
    model.set_params(beta=BETAS).fit(*data)
    assert model.validation_scores_.shape == (3,)
    assert 0 <= model.best_iter_ <= model.n_iter_


@pytest.mark.slow
def test_smaller_weights_follow_the_data(sine):
    """β → 0 forgets the prior, β → ∞ the data."""
    X, y = sine
    tight, loose = (quick(loss="elbo", beta=beta, max_iter=20).fit(X, y) for beta in (1e4, 0.1))
    assert loose.score(X, y) > 0.9
    assert tight.score(X, y) < 0.1


@pytest.mark.slow
# ------------------------------------------------------------------- hyper-parameters of the ELBO's
@pytest.mark.parametrize("solver", ["natural", "adam"])
def test_fixed_hyper_parameters_are_those_of_the_elbo(quick_direct, sine, solver):
    params = {"solver": solver, "max_iter": 8}
    model = quick_direct(hyperparameters="fixed", beta=0.01, **params)
    X, y = labelled(model, sine)
    elbo = fitted_once(quick_direct(loss="elbo", **params), X, y)
    model.fit(X, y)
    assert_allclose(model.kernel_.theta, elbo.kernel_.theta, rtol=1e-6, atol=1e-6)
    assert_allclose(model.inducing_points_, elbo.inducing_points_, rtol=1e-6, atol=1e-6)
    if not is_classifier(model):
        assert model.noise_variance_ == pytest.approx(elbo.noise_variance_, rel=1e-6)
    assert not np.allclose(results(model), results(elbo), rtol=1e-3)
    assert set(vars(model)) == set(vars(elbo))  # which is not kept
    assert (
        model.log_predictive_density(X, y).mean() > elbo.log_predictive_density(X, y).mean() - 0.01
    )


@pytest.mark.slow
# ------------------------------------------------------------------------------- data of all kinds
def test_exposures_in_the_choice(counts):
    X, y, exposure = counts
    params = {"likelihood": "poisson", "max_iter": 1}
    model = quick(beta=BETAS, **params).fit(X, y, exposure=exposure)
    train, held_out = split(model, X, y)
    alone = [
        quick(beta=b, **params).fit(X[train], y[train], exposure=exposure[train]) for b in BETAS
    ]
    expected = [
        -one.log_predictive_density(X[held_out], y[held_out], exposure=exposure[held_out]).mean()
        for one in alone
    ]
    assert_allclose(model.validation_scores_, expected, rtol=1e-6)
    refitted = quick(beta=model.beta_, **params).fit(X, y, exposure=exposure)
    assert_array_equal(model.predict(X), refitted.predict(X))
    with pytest.raises(ValueError, match="exposure must be given"):
        model.score(X, y)
    for other in (exposure.tolist(), pd.Series(exposure, index=np.arange(200)[::-1])):
        again = quick(beta=BETAS, **params).fit(X, y, exposure=other)
        assert_array_equal(again.predict(X), model.predict(X))
    whole = quick(beta=BETAS, **params).fit(X, y, exposure=2.0)
    each = quick(beta=BETAS, **params).fit(X, y, exposure=np.full(200, 2.0))
    assert_array_equal(whole.predict(X), each.predict(X))
    with pytest.raises(ValueError, match=r"exposure must have shape \(200,\)"):
        model.fit(X, y, exposure=exposure[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@slow_cases("^[12]")
def test_rare_classes_are_trained_on(sine, seed):
    X, _ = sine
    y = np.where(X[:, 0] > 0.0, "up", "down").astype(object)
    y[17], y[[60, 140]] = "once", "twice"
    model = constructor(DLMClassifier)(beta=[0.1, 1.0], max_iter=2, random_state=seed).fit(X, y)
    assert_array_equal(model.classes_, ["down", "once", "twice", "up"])
    assert np.isfinite(model.validation_scores_).all()
    assert model.predict_proba(X).shape == (200, 4)
    assert_allclose(model.predict_proba(X).sum(1), 1.0)
    train, _ = split(model, X, y)
    assert set(y[train]) == set(y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "convert"),
    [
        ([3, -1], np.asarray),
        ([True, False], list),
        (["b", "a"], lambda y: pd.Series(y, index=np.arange(100)[::-1])),
    ],
    ids=["array", "list", "series"],
)
@slow_cases("list")
def test_labels_in_the_choice(sine, labels, convert):
    X, y = (a[:100] for a in sine)
    y = np.where(y > 0.0, *labels)
    model = constructor(DLMClassifier)(beta=[0.1, 1.0], max_iter=3).fit(X, convert(y))
    assert_array_equal(model.classes_, np.unique(y))
    assert model.score(X, y) > 0.8


@pytest.mark.slow
def test_containers_in_the_choice(sine):
    X, y = sine
    reference = fitted_once(quick(beta=[0.1, 1.0], max_iter=2), X, y)
    names = ["speed", "load"]
    frames = [pd.DataFrame(X, columns=names, index=np.arange(200)[::-1])]
    frames.append(pl.DataFrame(dict(zip(names, X.T, strict=True))))
    for data in (X.tolist(), *frames):
        model = quick(beta=[0.1, 1.0], max_iter=2).fit(data, y)
        assert_allclose(model.validation_scores_, reference.validation_scores_, rtol=1e-6)
        assert_allclose(results(model, data), results(reference, X), rtol=1e-6, atol=1e-8)
        assert hasattr(model, "feature_names_in_") == hasattr(data, "columns")


@pytest.mark.slow
def test_outputs_in_the_choice(sine):
    X, y = sine
    Y = np.column_stack([y, 100.0 - 30.0 * y**2, X[:, 1]])
    for likelihood in ("gaussian", "student_t"):
        model = quick(beta=BETAS, likelihood=likelihood, max_iter=2).fit(X, Y)
        mean, std = model.predict(X, return_std=True)
        assert mean.shape == std.shape == (200, 3)
        assert model.noise_variance_.shape == (3,)
        assert model.validation_scores_.shape == (3,)


@pytest.mark.slow
@every_direct
@slow_cases("Classifier")
def test_few_rows_in_the_choice(quick_direct):
    X = np.arange(12.0).reshape(6, 2)
    for n_rows in (3, 4, 6):
        model = quick_direct(beta=[0.1, 1.0], n_inducing="auto", max_iter=2)
        y = np.arange(n_rows) % 2 if is_classifier(model) else np.arange(n_rows) / 3
        with pytest.warns(UserWarning, match="rows are too few"):
            model.fit(X[:n_rows], y)
        assert np.isfinite(results(model, X)).all()
        assert np.isfinite(model.validation_scores_).all()


@pytest.mark.slow
# ------------------------------------------------------------------------------------- deep kernels
def test_networks_learn_features():
    """A function of a product, which a network finds in a few hundred rows."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (400, 2))
    params = {"loss": "log", "hidden_layer_sizes": (32, 16), "max_iter": 40, "batch_size": 100}
    model = constructor(SVGPRegressor)(**params, solver="natural")
    y = X[:, 0] * X[:, 1] + 0.01 * rng.standard_normal(400)
    assert model.fit(X[:300], y[:300]).score(X[300:], y[300:]) > 0.8
    assert model.validation_scores_ is not None


@pytest.mark.slow
# ---------------------------------------------------------------------------- streams, warm starts
def test_streams(quick_direct, sine):
    model = quick_direct(beta=0.5, batch_size=50)
    X, y = labelled(model, sine)
    densities = []
    for _ in range(8):
        assert model.partial_fit(X, y) is model
        densities.append(model.log_predictive_density(X, y).mean())
    assert densities[-1] > densities[0]
    assert model.beta_ == 0.5
    model.fit(X, y).partial_fit(X[:30], y[:30])
    assert model.score(X, y) > 0.7


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"beta": "auto"}, "partial_fit needs a number for beta.*'auto'"),
        ({"beta": [0.1, 1.0]}, "partial_fit needs a number for beta"),
        ({"hyperparameters": "fixed"}, "hyperparameters='joint'.*'fixed'"),
        ({"loss": "square"}, "partial_fit needs a loss.*SquareLoss"),
        ({"beta": -1.0}, "beta"),
        ({"loss": "foo"}, "loss"),
    ],
    ids=str,
)
def test_what_cannot_be_streamed(sine, params, match):
    model = quick(**params)
    with pytest.raises((ValueError, TypeError), match=match):
        model.partial_fit(*sine)
    assert set(vars(model)) == set(vars(clone(model)))
    fitted = quick(max_iter=1).fit(*sine).set_params(**params)
    before = dict(vars(fitted))
    with pytest.raises((ValueError, TypeError), match=match):
        fitted.partial_fit(*sine)
    assert vars(fitted) == before


@pytest.mark.slow
def test_square_losses_of_classes_can_be_streamed(two_classes):
    X, y = two_classes
    model = constructor(DLMClassifier)(loss="square", batch_size=50)
    for _ in range(10):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.7


@pytest.mark.slow
@every_direct
@slow_cases("DLMClassifier")
def test_warm_start(quick_direct, sine):
    model = quick_direct(warm_start=True, max_iter=10, learning_rate="constant")
    X, y = labelled(model, sine)
    points = model.fit(X, y).inducing_points_
    model.set_params(learning_rate_init=1e-12, max_iter=1, beta=[0.1, 1.0]).fit(X, y)
    assert_allclose(model.inducing_points_, points, rtol=1e-4, atol=1e-5)
    assert model.validation_scores_.shape == (2,)


@pytest.mark.slow
# --------------------------------------------------------------------------- forgotten attributes
def test_a_fit_forgets_the_last_one(sine):
    X, y = sine
    frame = pd.DataFrame(X, columns=["speed", "load"])
    model = quick(beta=[0.1, 1.0], max_iter=2).fit(frame, y)
    model.set_params(beta=1.0).fit(X, y)
    new = quick(max_iter=2).fit(X, y)
    assert set(vars(model)) == set(vars(new))
    assert_array_equal(results(model), results(new))


@pytest.mark.slow
@pytest.mark.parametrize("refit", [True, False])
@by_default("False")
def test_a_choice_forgets_a_stream(sine, refit):
    X, y = sine
    model = quick(max_iter=3).partial_fit(5.0 - X, 100.0 * y)
    model.set_params(beta=[0.1, 1.0], refit=refit).fit(X, y).set_params(beta=1.0).partial_fit(X, y)
    new = quick(max_iter=3, beta=[0.1, 1.0], refit=refit).fit(X, y)
    new.set_params(beta=1.0).partial_fit(X, y)
    assert_array_equal(results(model), results(new))


# ---------------------------------------------------------------------------------- no side effects
@every_direct
def test_a_choice_leaves_everything_as_it_was(quick_direct, sine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loss, betas = LogLoss("product", n_samples=3), [0.1, 1.0]
    model = quick_direct(beta=betas, loss=loss, kernel=2.0 * RBF([1.0, 1.0]), max_iter=2)
    data = labelled(model, sine)
    given, theta = model.get_params(deep=False), model.kernel.theta.copy()
    before = global_state()
    model.fit(*data)
    results(model)
    after = global_state()
    assert {name for name in before if before[name] != after[name]} == set()
    assert all(value is given[name] for name, value in model.get_params(deep=False).items())
    assert betas == [0.1, 1.0]
    assert_array_equal(model.kernel.theta, theta)
    assert vars(loss) == vars(LogLoss("product", n_samples=3))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_users_default_dtype_is_no_obstacle_to_a_choice(sine, dtype):
    reference = fitted_once(quick(beta=[0.1, 1.0], max_iter=2), *sine)
    torch.set_default_dtype(dtype)
    try:
        model = quick(beta=[0.1, 1.0], max_iter=2).fit(*sine)
        assert torch.get_default_dtype() == dtype
        assert_array_equal(results(model), results(reference))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("loss", ["product", "square"])
def test_predictions_do_not_depend_on_batches_or_order(quick_direct, sine, loss):
    model = quick_direct(loss=LOSSES[loss], max_iter=2)
    model.fit(*labelled(model, sine))
    rng = np.random.default_rng(1)
    rows = rng.uniform(-4, 4, (4200, 2))

    def predictions(X):
        if is_classifier(model):
            return model.predict_proba(X)
        return np.column_stack(model.predict(X, return_std=True))

    expected, order = predictions(rows), rng.permutation(len(rows))
    assert_allclose(predictions(rows[order]), expected[order], rtol=1e-10, atol=1e-12)
    for some in (slice(0, 1), slice(4090, 4100), slice(-6, None)):
        assert_allclose(predictions(rows[some]), expected[some], rtol=1e-10, atol=1e-12)


# ------------------------------------------------------------------------------ killed, interrupted
RESUMED = {
    "log": {},
    "product": {"loss": LogLoss("product", n_samples=2)},
    "square": {"loss": "square"},
    "adam": {"solver": "adam"},
    "fixed": {"hyperparameters": "fixed"},
    "choice": {"beta": BETAS},
    "choice of fixed": {"beta": BETAS, "hyperparameters": "fixed"},
    "choice with one fit": {"beta": BETAS, "refit": False},
}


@pytest.mark.parametrize(
    ("name", "epoch"),
    [(name, epoch) for name in RESUMED for epoch in ((7,) if name == "choice of fixed" else (2,))],
)
@by_default("log", "adam")
def test_a_killed_fit_resumes_to_the_same_bits(sine, tmp_path, monkeypatch, name, epoch):
    """Also where it died in a later fit than the first."""
    params = {"max_iter": 3, "batch_size": 25, "n_inducing": 5, **RESUMED[name]}
    model = quick(**params, checkpoint_dir=tmp_path / "new")
    X, y = (a[:60] for a in sine)
    reference = fitted_once(quick(**params), X, y)
    kill(model, (X, y), epoch, monkeypatch)
    model.fit(X, y)
    assert_array_equal(model.validation_scores_, reference.validation_scores_)
    assert_array_equal(results(model), results(reference))
    assert not list((tmp_path / "new").iterdir())


def faulty(base, error, call):
    """A likelihood like this one, whose gradients raise an error at one call, and the calls so far.

    All copies count together.
    """
    calls = []

    class Faulty(type(base)):
        def counted(self, found, y, q):
            calls.append(len(y))
            if len(calls) == call:
                raise error
            return found(y, q)

        def expected_gradients(self, y, q):
            return self.counted(super().expected_gradients, y, q)

        def predictive_gradients(self, y, q):
            return self.counted(super().predictive_gradients, y, q)

    return Faulty(), calls


@every_direct
def test_ctrl_c_in_a_fit_leaves_a_usable_model(quick_direct, sine):
    model = quick_direct(max_iter=30)
    base = Bernoulli() if is_classifier(model) else Gaussian()
    model.set_params(likelihood=faulty(base, KeyboardInterrupt(), 13)[0])
    X, y = labelled(model, sine)
    with pytest.warns(ConvergenceWarning, match=r"interrupted after \d+ of 30 epochs"):
        model.fit(X, y)
    assert model.n_iter_ < 30
    assert np.isfinite(results(model)).all()


@pytest.mark.slow
def test_where_q_starts(sine):
    """The first loss of the prior's q(f) = N(0, k(x, x)), and of the bound's with its divergence.

    That is the bound's data term at these predictions, less the bound.
    """
    X, y = sine
    params = {"solver": "adam", "max_iter": 1, "random_state": 0, "mean": "zero", "n_inducing": 8}
    params |= {"batch_size": len(X), "dtype": "float64", "normalize_y": False}
    elbo = SVGPRegressor(**params).fit(X, y)
    noise, beta = elbo.noise_variance_, 0.3
    prior_variance = elbo.kernel_.diag(X)
    mean, std = elbo.predict(X, return_std=True)
    data_term = norm.logpdf(y, mean, np.sqrt(noise)) - 0.5 * (std**2 - noise) / noise
    kl = data_term.sum() - elbo.log_marginal_likelihood_value_
    expected = {
        "prior": -norm.logpdf(y, 0.0, np.sqrt(prior_variance + noise)).mean(),
        "elbo": -norm.logpdf(y, mean, std).mean() + beta * kl / len(X),
    }
    ways = {"prior": "fixed-from-prior", "elbo": "fixed"}
    for start, loss in expected.items():
        model = DLMRegressor(**params, hyperparameters=ways[start], beta=beta).fit(X, y)
        assert_allclose(model.kernel_.theta, elbo.kernel_.theta, rtol=1e-12)
        assert_allclose(model.loss_curve_[0], loss, rtol=1e-6)


@pytest.mark.parametrize("batch", [4, 10, 15])
@pytest.mark.parametrize("hyperparameters", ["joint", "fixed"])
def test_ctrl_c_ends_a_choice(sine, batch, hyperparameters):
    """No fit begins after it; what there is by then is kept, if it is usable."""
    likelihood, calls = faulty(Gaussian(), KeyboardInterrupt(), batch)
    model = quick(likelihood=likelihood, beta=BETAS, hyperparameters=hyperparameters, max_iter=6)
    interrupted = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(*sine)
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        assert set(vars(model)) == set(vars(clone(model)))
    else:
        assert any("interrupted" in str(w.message) for w in caught)
        assert model.score(*sine) > -0.5
        if hasattr(model, "beta_path_"):  # there is none if the ELBO's fit was interrupted
            assert len(model.beta_path_) == len(model.validation_scores_)
            assert model.beta_ in model.beta_path_
    assert len(calls) >= batch


@pytest.mark.parametrize("batch", [2, 9, 21])
@pytest.mark.parametrize("before", [False, True])
def test_a_failed_choice_leaves_the_estimator_as_it_was(quick_direct, sine, batch, before):
    model = quick_direct(max_iter=6)
    X, y = labelled(model, sine)
    if before:
        model = fitted_once(model, X, y)
    base = Bernoulli() if is_classifier(model) else Gaussian()
    model.set_params(likelihood=faulty(base, ZeroDivisionError(), batch)[0], beta=BETAS)
    attributes = dict(vars(model))
    with pytest.raises(ZeroDivisionError):
        model.fit(X, y)
    assert vars(model).keys() == attributes.keys()
    assert all(vars(model)[k] is v for k, v in attributes.items())


@pytest.mark.slow
def test_a_beta_that_fails_is_left_out(sine, monkeypatch):
    from skgpstoch.maths.linalg import NotPositiveDefiniteError

    fit = fits.fit_given_beta

    def failing(model, beta, *args):
        if beta == 1.0:
            raise NotPositiveDefiniteError("diverged")
        return fit(model, beta, *args)

    monkeypatch.setattr(fits, "fit_given_beta", failing)
    model = quick(beta=BETAS, max_iter=2)
    with pytest.warns(ConvergenceWarning, match="beta=1 is skipped"):
        model.fit(*sine)
    assert_array_equal(np.isinf(model.validation_scores_), [False, True, False])
    assert model.beta_ != 1.0
    with (
        pytest.warns(ConvergenceWarning, match="is skipped, because training failed"),
        pytest.raises(ValueError, match=r"diverged|every beta"),
    ):
        quick(beta=[1.0], max_iter=2).fit(*sine)


# -------------------------------------------------------------------------------------- refusals
class Periodic(Likelihood):
    """Of one's own, and not log-concave."""

    log_concave = False

    def log_prob(self, y, f):
        return torch.cos(y - f) - 2.0


BAD = [
    ({"beta": 0.0}, r"'beta' parameter.*Got 0\.0"),
    ({"beta": -1}, "'beta' parameter.*Got -1"),
    ({"beta": np.nan}, "'beta' parameter.*Got nan"),
    ({"beta": np.inf}, "'beta' parameter.*Got inf"),
    ({"beta": None}, "'beta' parameter.*Got None"),
    ({"beta": "foo"}, "'beta' parameter.*auto.*Got 'foo'"),
    ({"beta": []}, r"beta must be .*got \[\]"),
    ({"beta": [1.0, 0.0]}, r"beta must be .*got \[1\.0, 0\.0\]"),
    ({"beta": [1.0, np.nan]}, r"beta must be .*got \[1\.0, nan\]"),
    ({"beta": [1.0, np.inf]}, r"beta must be .*got \[1\.0, inf\]"),
    ({"beta": [1, [2]]}, r"beta must be .*got \[1, \[2\]\]"),
    ({"beta": [[1.0]]}, r"beta must be .*got \[\[1\.0\]\]"),
    ({"beta": ["a"]}, r"beta must be .*got \['a'\]"),
    ({"loss": "foo"}, "loss must be .*'log'.*got 'foo'"),
    ({"loss": None}, "'loss' parameter.*Got None"),
    ({"loss": LogLoss}, "'loss' parameter.*Got <class"),
    ({"loss": LogLoss(gradient="exakt")}, "'gradient' parameter of LogLoss.*'exakt'"),
    ({"loss": LogLoss(n_samples=0)}, "'n_samples' parameter of LogLoss.*Got 0"),
    ({"loss": LogLoss(n_samples=2.5)}, r"'n_samples' parameter of LogLoss.*Got 2\.5"),
    ({"loss": LogLoss(jitter=0)}, "'jitter' parameter of LogLoss.*Got 0"),
    ({"loss": LogLoss(jitter=np.nan)}, "'jitter' parameter of LogLoss.*Got nan"),
    ({"hyperparameters": "elbo"}, "'hyperparameters' parameter.*Got 'elbo'"),
    ({"refit": "no"}, "'refit' parameter.*Got 'no'"),
    ({"n_jobs": "two"}, "'n_jobs' parameter.*Got 'two'"),
    ({"n_jobs": 1.5}, r"'n_jobs' parameter.*Got 1\.5"),
    ({"validation_fraction": 0.0}, r"'validation_fraction' parameter.*Got 0\.0"),
    ({"solver": "lbfgs"}, "solver='lbfgs'.*LogLoss"),
    ({"solver": "collapsed"}, "solver='collapsed'.*LogLoss"),
    ({"device": "cuda:99"}, "device='cuda:99' is not available"),
]


@pytest.mark.parametrize("choice", [False, True], ids=["fit", "choice"])
@pytest.mark.parametrize(("params", "match"), BAD, ids=str)
@pytest.mark.filterwarnings("ignore:beta=.* is skipped")
def test_bad_parameters_are_named(quick_direct, sine, params, match, choice):
    """With several beta, too, the reason itself is told."""
    if choice and "beta" in params:
        pytest.skip("is tested without")
    model = quick_direct(**{"max_iter": 1, **({"beta": [0.1, 1.0]} if choice else {}), **params})
    attributes = set(vars(model))
    with pytest.raises((ValueError, TypeError), match=match):
        model.fit(*labelled(model, sine))
    assert set(vars(model)) == attributes


BAD_FOR_REGRESSION = [
    (
        {"kernel": RBF() + WhiteKernel(0.1, "fixed"), "loss": "square"},
        "fixed WhiteKernel.*square loss",
    ),
    (
        {"kernel": RBF() + WhiteKernel(), "likelihood": "laplace"},
        "kernel must not contain a WhiteKernel",
    ),
    ({"likelihood": "bernoulli"}, "likelihood.*got 'bernoulli'"),
    ({"loss": "log", "likelihood": "laplace", "solver": "collapsed"}, "solver='collapsed'"),
    ({"loss": LogLoss("biased"), "solver": "lbfgs"}, "solver='lbfgs'"),
    ({"loss": LogLoss("product"), "likelihood": Periodic()}, "product.*Periodic|Periodic.*product"),
]


@pytest.mark.parametrize(("params", "match"), BAD_FOR_REGRESSION, ids=str)
@pytest.mark.parametrize("hyperparameters", ["joint", "fixed"])
def test_bad_parameters_of_regressors_are_named(sine, params, match, hyperparameters):
    model = quick(**params, hyperparameters=hyperparameters, max_iter=1)
    with pytest.raises(ValueError, match=match):
        model.fit(*sine)
    assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize("gradient", SAMPLED)
def test_robustmax_has_no_sampled_gradients(three_classes, gradient):
    model = constructor(DLMClassifier)(likelihood="robustmax", loss=LogLoss(gradient), max_iter=1)
    with pytest.raises(ValueError, match=f"gradient='{gradient}'.*gradient='exact'"):
        model.fit(*three_classes)
    assert np.isfinite(results(model.set_params(loss="log").fit(*three_classes))).all()


@every_direct
def test_a_choice_refuses_bad_data_as_a_fit_does(quick_direct, sine):
    model = quick_direct(beta=[0.1, 1.0], max_iter=1)
    X, y = labelled(model, sine)
    bad = X.copy()
    bad[3, 1] = np.nan
    for data, match in (
        ((bad, y), "Input X contains NaN"),
        ((X, y[1:]), "inconsistent numbers of samples"),
        ((X[:, 0], y), "Expected 2D array"),
        ((X[:0], y[:0]), r"0 sample\(s\)"),
        ((X, None), "requires y to be passed"),
    ):
        with pytest.raises(ValueError, match=match):
            model.fit(*data)
        assert set(vars(model)) == set(vars(clone(model)))


@pytest.mark.slow
# ------------------------------------------------------------------------- scikit-learn's machinery
def test_losses_can_be_searched(quick_direct, sine):
    model = quick_direct(loss=LogLoss(), max_iter=1, n_inducing=5)
    X, y = labelled(model, sine)
    grid = {"loss__gradient": ["exact", "product"], "beta": [0.1, [1.0]]}
    search = GridSearchCV(model, grid, cv=2, scoring=neg_log_predictive_density_scorer)
    search.fit(X[:100], y[:100])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.loss.gradient == search.best_params_["loss__gradient"]
    assert model.loss.gradient == "exact"  # clones have their own


@pytest.mark.slow
def test_clone_pickle_and_repr(quick_direct, sine):
    model = quick_direct(loss=LogLoss("biased", 3), beta=[0.1, 1.0], max_iter=2)
    assert "LogLoss(gradient='biased', n_samples=3)" in repr(model)
    assert "beta" in model._repr_html_()
    data = labelled(model, sine)
    model.fit(*data)
    copied = pickle.loads(pickle.dumps(model))
    assert_array_equal(results(copied), results(model))
    assert_array_equal(copied.validation_scores_, model.validation_scores_)
    fresh = clone(model)
    assert fresh.loss is not model.loss
    assert not hasattr(fresh, "beta_")
    assert_array_equal(results(fresh.fit(*data)), results(model))


@pytest.mark.slow
def test_random_state_objects(quick_direct, sine):
    models = [
        quick_direct(random_state=np.random.RandomState(7), beta=BETAS, max_iter=1)
        for _ in range(2)
    ]
    data = labelled(models[0], sine)
    assert_array_equal(*(results(model.fit(*data)) for model in models))
    other = quick_direct(random_state=None, beta=BETAS, max_iter=1).fit(*data)
    assert np.isfinite(other.validation_scores_).all()


@pytest.mark.slow
def test_pipelines(quick_direct, sine):
    pipeline = make_pipeline(StandardScaler(), quick_direct(beta=[0.1, 1.0], max_iter=15))
    X, y = labelled(pipeline[-1], sine)
    assert pipeline.fit(X, y).score(X, y) > 0.7


def test_callbacks_see_every_epoch_of_a_choice(sine):
    pytest.importorskip("sklearn.callback")

    calls = Calls()
    model = quick(beta=[0.1, 1.0], max_iter=2).set_callbacks(calls).fit(*sine)
    assert len([seen for seen in calls.seen if isinstance(seen, int)]) == 6
    plain = fitted_once(quick(beta=[0.1, 1.0], max_iter=2), *sine)
    assert_array_equal(results(model), results(plain))


@pytest.mark.slow
# ------------------------------------------------------------------------------------------- FITC
def test_fitc_learns_a_sine(sine):
    X, y = sine
    for solver, epochs in {"lbfgs": 10, "natural": 40}.items():
        model = constructor(FITCRegressor)(solver=solver, max_iter=epochs, n_inducing=20)
        mean, std = model.fit(X, y).predict(GRID, return_std=True)
        assert np.sqrt(np.mean((mean - np.sin(GRID[:, 0])) ** 2)) < 0.1
        assert (std < 0.25).all()
        assert model.log_marginal_likelihood(X, y) == pytest.approx(
            model.log_marginal_likelihood_value_, rel=1e-6
        )
    params = model.get_params()
    assert not {"likelihood", "loss", "beta"} & params.keys()


def test_fitc_has_a_fixed_noise(sine):
    kernel = RBF(2.0, "fixed") + WhiteKernel(0.1, "fixed")
    model = FITCRegressor(kernel, n_inducing=5, max_iter=2, random_state=0).fit(*sine)
    assert model.noise_variance_ == pytest.approx(0.1 * sine[1].var(), rel=1e-6)
    with pytest.raises(ValueError, match=r"'solver' parameter of FITCRegressor.*'collapsed'"):
        FITCRegressor(solver="collapsed").fit(*sine)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_fitc_has_no_weights_and_no_exposures(sine, method):
    X, y = sine
    model = constructor(FITCRegressor)(solver="natural", max_iter=2)
    for name in ("sample_weight", "exposure"):
        with pytest.raises(ValueError, match=f"{name} must be None with FITCRegressor"):
            getattr(model, method)(X, y, **{name: np.ones(200)})
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'weights'"):
        getattr(model, method)(X, y, weights=np.ones(200))
    assert set(vars(model)) == set(vars(clone(model)))
    nothing = dict.fromkeys(("sample_weight", "exposure", "y_std"))
    one, other = getattr(clone(model), method)(X, y), getattr(model, method)(X, y, **nothing)
    assert_array_equal(results(one), results(other))


def test_fitc_of_repeated_rows(sine):
    """log N(y | 0, Q + diag(K − Q) + σ²I) with each of them in it: none is a weight of another."""
    X, y = (np.concatenate([a[:30], a[:20]]) for a in sine)
    kernel, Z = 1.7 * RBF(0.7, "fixed"), sine[0][:5]
    kernel.set_params(k1__constant_value_bounds="fixed")
    model = FITCRegressor(
        kernel + WhiteKernel(0.04, "fixed"), inducing_points=Z, learn_inducing_points=False,
        mean="zero", normalize_y=False, solver="lbfgs",
    ).fit(X, y)  # fmt: skip
    Q = kernel(X, Z) @ np.linalg.solve(kernel(Z), kernel(Z, X))
    covariance = Q + np.diag(kernel.diag(X) - Q.diagonal() + 0.04)
    expected = multivariate_normal.logpdf(y, cov=covariance)
    assert model.log_marginal_likelihood_value_ == pytest.approx(expected, rel=1e-6)
    assert model.posterior_.n_rows == 50


@pytest.mark.gpu
@every_direct
@pytest.mark.parametrize("params", [*RESUMED.values(), {"likelihood": StudentT()}], ids=str)
def test_cuda(quick_direct, sine, params):
    model = quick_direct(device="cuda", max_iter=5)
    if is_classifier(model) and "likelihood" in params:
        pytest.skip("for numbers")
    X, y = labelled(model, sine)
    there = model.set_params(**params).fit(X, y).score(X, y)
    assert there > 0.5
    moved = copy.deepcopy(model).set_params(device="cpu")
    density = moved.log_predictive_density(X, y)  # draws are others on a GPU
    assert_allclose(model.log_predictive_density(X, y), density, rtol=1e-8, atol=1e-8)


def test_a_density_that_nothing_judges_is_noted():
    """95 % intervals of the default held .83 of 2,000 rows of a sine, in silence."""
    X = np.linspace(-2.0, 2.0, 40)[:, None]

    def noted(**params):
        model = DLMRegressor(n_inducing=5, max_iter=3, random_state=0, **params)
        return "calibration" in [f.name for f in model.fit(X, np.sin(X[:, 0])).diagnose()]

    assert noted()
    assert not any(
        noted(**p) for p in ({"calibrate": True}, {"loss": "elbo"}, {"beta": [0.5, 1.0]})
    )

"""Classes by nearest neighbours: expectation propagation, and what the estimator promises."""

import copy
import functools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import fitted_once
from dense_propagation import propagated
from families import by_default, slow_cases, some_of
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import kernels as sk
from test_nngp import ODD
from thread_group import on_ranks
from torch import nn

from skgpstoch import NNGPClassifier, load, on_interrupt
from skgpstoch.data import ChunkRows, ParquetRows
from skgpstoch.data.rows import Rows
from skgpstoch.kernels import from_sklearn
from skgpstoch.likelihoods import Bernoulli, Categorical
from skgpstoch.maths.gaussian import Marginals
from skgpstoch.methods.nngp import start
from skgpstoch.methods.nngp.climb import Climb
from skgpstoch.models.calibration.tails import best_scale
from skgpstoch.models.posteriors.neighbour_classes import NeighbourClassPosterior, mean_of_shares
from skgpstoch.models.posteriors.places import Observed, Places
from skgpstoch.objectives import pseudo_targets
from skgpstoch.objectives.neighbour_classes import NeighbourClassObjective

KERNEL = 2.0 * sk.Matern([0.7, 1.9], nu=1.5)
N = 24


def data(C=2, n=N, weights=False):
    """Rows of classes that a smooth function tells apart, but for some."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 2))
    f = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.normal(size=n)
    codes = np.searchsorted(np.quantile(f, np.arange(1, C) / C), f)
    weight = torch.tensor(rng.integers(1, 4, n).astype(float)) if weights else None
    return torch.tensor(X), Rows(torch.tensor(codes[:, None].astype(float)), weight)


def likelihood_of(C):
    return Bernoulli() if C == 2 else Categorical(C)


def objective(X, rows, C, m=None, is_ordered=True, kernel=KERNEL):
    """The objective of m neighbours, or of all."""
    m = len(X) - 1 if m is None else m
    likelihood = likelihood_of(C)
    level = likelihood.initial_mean(rows)
    made = NeighbourClassObjective(
        from_sklearn(kernel),
        nn.Sequential(),
        likelihood,
        level,
        X,
        rows,
        calibrates=False,
        n_neighbors=m,
        n_neighbors_predict=m + 1,
        is_ordered=is_ordered,
        n_epoch=10**6,
    )
    made.source = made.minibatch_source(X, rows)
    return made


def settled(X, rows, C, m=None, kernel=KERNEL, n_sweeps=40):
    """The posterior at the fixed point."""
    found = objective(X, rows, C, m, kernel=kernel).posterior(X, rows).requires_grad_(False)
    return found.settle_(n_sweeps=n_sweeps)


def by_hand(K, y, c):
    """Expectation propagation for two classes: pseudo-targets and evidence."""
    return propagated(K, lambda f: expit((2.0 * y - 1.0)[:, None] * f), c, 9.0)


# ---- expectation propagation ---------------------------------------------------------------------


def test_two_classes_with_all_neighbours_are_those_by_hand():
    X, rows = data()
    found = settled(X, rows, 2)
    K = KERNEL(X.numpy())
    t, D, evidence = by_hand(K, rows.y[:, 0].numpy(), float(found.constant))
    targets = found.targets_of(found.row_numbers)
    assert_allclose(targets.var[:, 0], D, rtol=1e-5)
    assert_allclose(targets.mean[:, 0], t, rtol=1e-5, atol=1e-6)
    assert_allclose(found.log_evidence(), [evidence], rtol=1e-6)
    some = torch.tensor([[0.1, -0.4], [1.3, 0.2], [9.0, 9.0]])
    k = KERNEL(some.numpy(), X.numpy())
    solve = np.linalg.solve(K + np.diag(D), np.column_stack([t - float(found.constant), k.T]))
    mean, var = (a[0, :, 0].detach() for a in found.marginals(some.double()))
    assert_allclose(mean, float(found.constant) + k @ solve[:, 0], rtol=1e-5)
    assert_allclose(var, KERNEL.diag(some) - (k * solve[:, 1:].T).sum(1), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("C", [2, 3])
@by_default("2")
def test_the_gradient_of_training_is_that_of_the_evidence(C):
    """At a fixed point, although the evidence has the pseudo-targets found anew."""
    X, rows = data(C)
    made = objective(X, rows, C)
    made.level.zero_()  # so that c does not depend on the kernel

    def evidence(theta):
        kernel = KERNEL.clone_with_theta(theta)
        found = objective(X, rows, C, kernel=kernel)
        found.level.zero_()
        return float(found.posterior(X, rows).settle_(n_sweeps=40).log_evidence())

    targets = made.posterior(X, rows).settle_(n_sweeps=40)
    targets = targets.targets_of(targets.row_numbers)
    made.target_mean.copy_(targets.mean)
    made.target_var.copy_(targets.var)
    made.mean.data.zero_()
    loss = made(torch.arange(N)[:, None], made.source[1], torch.Generator())
    learned = list(made.kernel.parameters())
    slopes = torch.autograd.grad(loss, learned)
    found = -N * np.concatenate([slope.reshape(-1) for slope in slopes])
    steps = 1e-4 * np.eye(3)
    expected = [(evidence(KERNEL.theta + s) - evidence(KERNEL.theta - s)) / 2e-4 for s in steps]
    # Points of a quadrature match the moments of three classes: to a few per cent.
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if C == 2 else {"rtol": 0.1, "atol": 0.05}
    assert_allclose(found, expected, **tolerance)


@pytest.mark.parametrize("C", [2, 4])
def test_left_out_losses_and_their_gradients(C):
    X, rows = data(C, weights=True)
    made = objective(X, rows, C, 5, is_ordered=False)
    i, N_i = made.find()
    posterior = made.posterior(X, rows)
    mean, var = posterior.given(posterior.features[i], N_i)[:2]
    q = Marginals(mean[None], var[None])
    value, *_ = made.likelihood.predictive_gradients(rows.y, q)
    loss = made.loss_at(i, N_i)
    w = rows.weight
    assert_allclose(loss.detach(), -(w * value).sum() / w.sum(), rtol=1e-10)
    (amplitude, *_), step = made.kernel.parameters(), 1e-5
    (found,) = torch.autograd.grad(loss, [amplitude])
    losses = []
    for h in (step, -step):
        amplitude.data += h
        losses.append(float(made.loss_at(i, N_i).detach()))
        amplitude.data -= h
    # With several classes, averages of slopes are nearer to the integrals than slopes of averages.
    rtol = 1e-5 if C == 2 else 0.05
    assert_allclose(found, (losses[0] - losses[1]) / (2 * step), rtol=rtol)


@pytest.mark.parametrize("C", [2, 3])
def test_kernels_are_compared_by_the_evidence(C):
    X, rows = data(C)
    made = objective(X, rows, C)
    evidence = made.present().log_evidence()
    reached = Climb(made, X, Observed(rows), N, None).run(0)
    assert_allclose(reached, evidence, rtol=1e-9)


def test_the_best_by_its_own_score_is_kept(monkeypatch):
    monkeypatch.setattr(start, "ROUNDS", ((8, 1, 9.0), (8, 1, 0.0)))
    monkeypatch.setattr(Climb, "run", lambda self, n_steps: self.objective.score)
    X, rows = data()
    both = [objective(X, rows, 2, 4) for _ in range(2)]
    both[0].score, both[1].score = -3.0, -2.0
    assert start.likeliest(both, X, Observed(rows)) is both[1]


def test_kernels_climb_again_while_they_gain_much(monkeypatch):
    monkeypatch.setattr(start, "ROUNDS", ((8, 1, 1.0),))
    monkeypatch.setattr(start, "FOR_ALL", 8)
    X, rows = data()
    early, late, low = (objective(X, rows, 2, 4) for _ in range(3))
    early.n_parts = late.n_parts = low.n_parts = 1  # each climbs once a round
    ends = {early: iter([20.0, 21.0]), late: iter([18.0, 40.0]), low: iter([5.0])}

    def run(climb, n_steps):
        climb.gained = 20.0
        return next(ends[climb.objective])

    monkeypatch.setattr(Climb, "run", run)
    assert start.likeliest([early, late, low], X, Observed(rows)) is late
    assert not [*ends[late], *ends[low]]  # which is dropped at once


@pytest.mark.parametrize("var", [0.0, 0.3, 5.0, 1e3])
@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.97, 0.03], [0.2, 0.5, 0.3], [0.9, 0.09, 0.01]])
def test_far_from_all_rows_classes_have_their_shares(shares, var):
    likelihood, shares = likelihood_of(len(shares)), torch.tensor(shares, dtype=torch.float64)
    level = shares[1:].logit() if len(shares) == 2 else shares.log() - shares.log().mean()
    c = mean_of_shares(likelihood, level, torch.tensor(var, dtype=torch.float64))
    q = Marginals(c[None, None], torch.full((1, 1, len(c)), var, dtype=torch.float64))
    assert_allclose(likelihood.moments(q).mean[0, 0], shares[-len(c) :], rtol=1e-6)


@pytest.mark.parametrize("C", [2, 3])
@by_default("2")
def test_a_row_of_weight_2_is_the_row_twice(C):
    X, rows = data(C)
    twice = settled(torch.cat([X[:1], X]), Rows(torch.cat([rows.y[:1], rows.y])), C)
    weight = torch.ones(N, dtype=torch.float64)
    weight[0] = 2.0
    once = settled(X, Rows(rows.y, weight), C)
    for a, b in zip(twice.marginals(X), once.marginals(X), strict=True):
        assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    assert_allclose(twice.log_evidence(), once.log_evidence(), rtol=1e-6)


@pytest.mark.parametrize("C", [2, 3])
def test_stretched(C):
    X, rows = data(C, weights=True)
    found = settled(X, rows, C, 6)
    far = torch.full((1, 2), 1e3, dtype=torch.float64)
    before, evidence, c = found.marginals(X), found.log_evidence(), found.constant
    shares = found.likelihood.moments(found.marginals(far)).mean
    targets = found.targets_of(found.row_numbers)
    found.stretch_(1.7).requires_grad_(False)
    assert found.stretch == 1.7
    assert_allclose(found.marginals(X).mean - found.constant, 1.7 * (before.mean - c), rtol=1e-9)
    assert_allclose(found.marginals(X).var, 1.7**2 * before.var, rtol=1e-9)
    assert_allclose(found.likelihood.moments(found.marginals(far)).mean, shares, rtol=1e-6)
    for a, b in zip(found.targets_of(found.row_numbers), targets, strict=True):
        assert_allclose(a, b, rtol=1e-9)
    assert_allclose(found.log_evidence(), evidence, rtol=1e-9)
    again = copy.deepcopy(found).settle_()  # what is settled stays
    assert_allclose(again.marginals(X).mean, found.marginals(X).mean, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("stretch", [1.0, 1.5])
@by_default("1.5")
def test_more_rows_are_rows_of_the_posterior(stretch):
    X, rows = data(3, 2 * N)
    n = 2 * N - 1
    whole = settled(X, rows, 3).stretch_(stretch).requires_grad_(False)
    first = objective(X, rows, 3)
    targets = first.first_targets(X[:N], rows[:N])
    parts = first.kernel, first.network, first.likelihood, first.level
    half = NeighbourClassPosterior(*parts, X[:N], rows[:N], targets, n + 1, n)
    half = half.settle_(n_sweeps=40).stretch_(stretch).requires_grad_(False)
    before = half.marginals(X)
    found = half.extended(X[N:], rows[N:])
    assert_array_equal(found.y, rows.y)
    assert found.n_rows == 2 * N
    assert_allclose(half.marginals(X).mean, before.mean, rtol=0)
    near, far = (abs(q.mean - whole.marginals(X).mean).max() for q in (found.marginals(X), before))
    assert near < 0.02 * far
    assert_allclose(found.log_evidence(), whole.log_evidence(), rtol=1e-2)


def test_a_scale_must_be_worth_it():
    assert best_scale(lambda c: -1000.0 * math.log(c / 1.3) ** 2) == pytest.approx(1.3, rel=0.01)
    assert best_scale(lambda c: -(math.log(c / 1.3) ** 2)) == 1.0


# ---- the estimator -------------------------------------------------------------------------------

QUICK = {
    "kernel": 1.0 * sk.Matern(nu=1.5),
    "n_neighbors": 8,
    "n_neighbors_predict": 12,
    "max_iter": 3,
    "random_state": 0,
}
GRID = np.column_stack([np.linspace(-3.5, 3.5, 20), np.linspace(2.0, -2.0, 20)])
small = functools.partial(NNGPClassifier, **QUICK)


@pytest.fixture(scope="module", params=some_of(["two", "three"], ["three"]))
def rows(request, two_classes, three_classes):
    return two_classes if request.param == "two" else three_classes


@pytest.mark.slow
def test_boards_are_learned():
    rng = np.random.default_rng(0)
    X, X_test = rng.uniform(0, 3, (2, 400, 2))
    y, y_test = ((a.astype(int).sum(1)) % 2 for a in (X, X_test))
    model = small(n_neighbors=16, max_iter=10).fit(X, y)
    p = model.predict_proba(X_test)[np.arange(len(y_test)), y_test]
    assert model.score(X_test, y_test) > 0.92
    assert -np.log(p).mean() < 0.2


@pytest.mark.slow
def test_far_rows_have_the_shares_of_classes(rows):
    X, y = rows
    model = fitted_once(small(), X, y)
    shares = np.unique(y, return_counts=True)[1] / len(y)
    far = model.predict_proba([[1e6, -1e6]])[0]
    assert_allclose(far, shares, atol=0.01)  # half a row is added to each
    assert_allclose(model.predict_log_proba([[1e6, -1e6]])[0], np.log(far), rtol=1e-9)
    latent = model.latent_mean_and_variance(X[:3])
    assert latent[0].shape == latent[1].shape == ((3,) if len(shares) == 2 else (3, 3))


@pytest.mark.slow
def test_classes_far_apart_are_not_quite_certain():
    X = np.concatenate([np.linspace(0, 1, 50), np.linspace(100, 101, 50)])[:, None]
    p = small(max_iter=60).fit(X, X[:, 0] > 50).predict_proba(X)
    assert (p.max(1) > 0.98).all()
    assert ((p > 0.0) & (p < 1.0)).all()


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["vecchia", "leave_one_out"])
@by_default("vecchia")
def test_early_stopping(rows, loss):
    X, y = rows
    model = small(max_iter=8, early_stopping=True, loss=loss).fit(X, y)
    assert len(model.validation_scores_) > 1
    assert np.isfinite(model.validation_scores_).all()
    assert len(model.X_train_) == len(X)
    assert model.score(X, y) > 0.8


@pytest.mark.slow
def test_training_rows(rows):
    X, y = rows
    model = fitted_once(small(), X, y)
    assert_array_equal(model.predict(model.X_train_), model.predict(X[order_of(model.X_train_, X)]))
    assert_array_equal(model.y_train_, y[order_of(model.X_train_, X)])


def order_of(found, X):
    """The numbers of these rows of X."""
    return np.abs(found[:, None] - X[None]).sum(2).argmin(1)


@pytest.mark.slow
def test_order_of_rows_does_not_matter(rows):
    X, y = (a[:100] for a in rows)
    order = np.random.default_rng(0).permutation(len(X))
    a, b = fitted_once(small(), X, y), small().fit(X[order], y[order])
    assert_array_equal(a.predict_proba(GRID), b.predict_proba(GRID))


@pytest.mark.slow
def test_weight_2_is_the_row_given_twice(rows):
    X, y = (a[:100] for a in rows)
    w = np.random.default_rng(0).integers(0, 4, len(X))
    a = small().fit(X, y, sample_weight=w)
    b = small().fit(np.repeat(X, w, 0), np.repeat(y, w))
    assert_array_equal(a.predict_proba(GRID), b.predict_proba(GRID))
    assert a.log_marginal_likelihood_value_ == b.log_marginal_likelihood_value_


@pytest.mark.slow
def test_predictions_do_not_depend_on_the_batch(rows):
    model = fitted_once(small(), *rows)
    together = model.predict_proba(GRID)
    apart = np.concatenate([model.predict_proba(x[None]) for x in GRID])
    assert_allclose(together, apart, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["condition_on", "partial_fit"])
@slow_cases("condition_on")
def test_appended_rows(rows, method):
    X, y = rows
    model = small().fit(X[:120], y[:120])
    kernel, before = model.kernel_, model.log_predictive_density(X[120:], y[120:])
    assert getattr(model, method)(X[120:], y[120:]) is model
    assert model.kernel_ == kernel
    assert_array_equal(model.y_train_[120:], y[120:])
    assert_allclose(model.X_train_[120:], X[120:])
    after = model.log_predictive_density(X[120:], y[120:])
    assert after.mean() > 0.75 * before.mean()  # both are negative


@pytest.mark.slow
def test_partial_fit_begins_with_a_fit(three_classes):
    X, y = three_classes
    fitted = small().fit(X[:90], y[:90]).predict_proba(GRID)
    model = small().partial_fit(X[:90], y[:90])
    assert_array_equal(model.predict_proba(GRID), fitted)
    for x, label in zip(X[90:93], y[90:93], strict=True):
        model.partial_fit(x[None], [label])
    assert len(model.y_train_) == 93
    with pytest.raises(ValueError, match="y has the class 77, which the model was not"):
        model.partial_fit(X[:2], [77, y[0]])
    assert len(model.y_train_) == 93
    with pytest.raises(ValueError, match="partial_fit continues the model"):
        model.set_params(kernel=sk.RBF()).partial_fit(X, y)


@pytest.mark.slow
def test_classes_that_have_no_row_yet(two_classes):
    X, y = two_classes
    model = small().partial_fit(X[:100], y[:100], classes=["down", "never", "up"])
    assert model.predict_proba(GRID).shape == (20, 3)
    never = model.predict_proba(X[100:104])[:, 1]
    model.partial_fit(X[100:104], ["never"] * 4)
    p = model.predict_proba(X[100:104])
    assert (p[:, 1] > 2.0 * never).all()
    with pytest.raises(ValueError, match="classes must be the same"):
        model.partial_fit(X, y, classes=["down", "up"])


@pytest.mark.slow
def test_a_warm_start_goes_on(rows):
    model = small(warm_start=True).fit(*rows)
    kernel = model.kernel_.theta - [2.0 * math.log(model.posterior_.stretch), 0.0]
    model.set_params(max_iter=1, learning_rate_init=1e-9, calibrate=False).fit(*rows)
    assert_allclose(model.kernel_.theta, kernel, atol=1e-6)


@pytest.mark.slow
def test_float32(three_classes):
    X, y = (a[:100] for a in three_classes)
    a, b = (small(dtype=dtype).fit(X + 1000.0, y) for dtype in ("float32", "float64"))
    assert_allclose(a.predict_proba(GRID + 1000.0), b.predict_proba(GRID + 1000.0), atol=1e-2)


@pytest.mark.parametrize("kernel", [sk.DotProduct(), sk.ConstantKernel()])
def test_kernels_without_near_rows_are_refused(two_classes, kernel):
    with pytest.raises(ValueError, match="under which no rows are neighbours"):
        NNGPClassifier(kernel).fit(*two_classes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ODD)
@by_default("copies", "one row", "columns")
def test_odd_tables(name):
    X = ODD[name][0][-400:]
    y = np.random.default_rng(0).integers(0, 3 if len(X) > 2 else 2, len(X))
    y[:2] = 0, 1
    model = small().fit(X, y)
    p = model.predict_proba(X[:: max(1, len(X) // 50)])
    assert ((p > 0.0) & (p < 1.0)).all()
    assert_allclose(p.sum(1), 1.0)
    assert np.isfinite(model.log_marginal_likelihood_value_)


@pytest.mark.slow
def test_files(rows, tmp_path):
    rows = [a[:100] for a in rows]
    model = small().fit(*rows)
    model.save(tmp_path / "model")
    other = load(tmp_path / "model")
    assert_array_equal(other.predict_proba(GRID), model.predict_proba(GRID))
    assert_array_equal(other.y_train_, model.y_train_)
    a, b = (each.condition_on(*rows).predict_proba(GRID) for each in (model, other))
    assert_array_equal(a, b)


@pytest.mark.slow
def test_chunks_and_parquet(three_classes, tmp_path):
    X, y = (a[:100] for a in three_classes)
    whole = fitted_once(small(), X, y).predict_proba(GRID)
    chunks = ChunkRows(lambda: ((X[i : i + 70], y[i : i + 70]) for i in range(0, len(X), 70)))
    assert_array_equal(small().fit(chunks).predict_proba(GRID), whole)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=y)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=60)
    model = small().fit(ParquetRows(tmp_path / "rows.parquet", target="y"))
    assert_array_equal(model.predict_proba(pd.DataFrame(GRID, columns=["a", "b"])), whole)


@pytest.mark.slow
def test_two_ranks(three_classes):
    X, y = (a[:100] for a in three_classes)
    whole, cut = fitted_once(small(), X, y).predict_proba(GRID), (0, 70, len(X))

    def fit(group):
        own = slice(cut[group.rank], cut[group.rank + 1])
        return small().fit(X[own], y[own]).predict_proba(GRID)

    for found in on_ranks(fit, 2):
        assert_array_equal(found, whole)


def test_an_interrupt_may_leave_kernels_untrained(monkeypatch):
    """A Ctrl-C while the first ones were tried ended a second fit with a TypeError."""
    climbed = []

    def interrupted(climb, theta, eval_gradient=True, call=Climb.__call__):
        climbed.append(climb)
        if len(climbed) == 3:
            raise KeyboardInterrupt
        return call(climb, theta, eval_gradient)

    monkeypatch.setattr(Climb, "__call__", interrupted)
    X, rows = data()
    model = NNGPClassifier(max_iter=1, random_state=0)
    with on_interrupt("keep"), pytest.warns(ConvergenceWarning, match="was interrupted"):
        model.fit(X.numpy(), rows.y[:, 0].numpy())
    assert len(climbed) == 3  # the others do not begin
    assert np.isfinite(model.predict_proba(X.numpy())).all()


@pytest.mark.parametrize("C", [2, 3])
def test_rows_at_one_place_are_one_neighbour(C):
    """Of many rows at one place, predictions took some, and graphs others."""
    X, rows = data(C)
    places, of_row = X[:5], torch.arange(N) % 5
    made = settled(places[of_row], rows, C)
    made.n_neighbors = 3
    G = X[5:9]
    mean, var = made.given_nearest(G)[:2]
    alone = Places.of_rows(made.features, made.noise, made.residual, made.weight)
    distances = torch.cdist(made.located(G), made.located(places))
    for j, near in enumerate(distances.topk(3, largest=False).indices):
        at = torch.isin(of_row, near).nonzero().mT
        expected = made.given(G[j : j + 1], at, places=alone)
        assert_allclose(mean[j], expected.mean[0], rtol=1e-8)
        assert_allclose(var[j], expected.var[0], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
def test_held_out_rows_are_predicted_by_models_without_them(n_classes, monkeypatch):
    """Wrong labels of rows that are held out together do not reach their predictions."""
    X = np.random.default_rng(0).uniform(0.0, 3.0, (90, 2))
    y = X[:, 0].astype(int) % n_classes
    monkeypatch.setattr(pseudo_targets, "JUDGED_FOLDS", 3)
    monkeypatch.setattr(pseudo_targets, "JUDGED_TARGETS", 30)
    kernel = sk.ConstantKernel(4.0, "fixed") * sk.RBF(0.5, "fixed")
    options = {"calibrate": False, "max_iter": 1, "n_neighbors_predict": 100, "random_state": 0}
    found = NNGPClassifier(kernel, **options).fit(X, y).held_out_
    assert len(found.rows) == 30
    codes = (found.mean + found.error).argmax(1)
    assert_array_equal(codes, y[found.rows])
    assert_allclose(found.mean.sum(1), 1.0)
    assert_allclose(found.log_density, np.log(found.mean[range(30), codes]), atol=1e-9)
    rest = np.delete(np.arange(90), found.rows)
    without = NNGPClassifier(kernel, **options).fit(X[rest], y[rest])
    assert_allclose(found.mean, without.predict_proba(X[found.rows]), atol=0.02)


def test_time_is_limited():
    X, y = np.random.default_rng(0).uniform(0.0, 3.0, (60, 2)), np.arange(60) % 2
    with pytest.warns(ConvergenceWarning, match="max_time was too short"):
        model = NNGPClassifier(KERNEL, max_time=0.01, random_state=0).fit(X, y)
    assert not model.budget_["is_enough"]
    assert np.isfinite(model.predict_proba(X)).all()

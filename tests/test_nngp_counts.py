"""Counts by nearest neighbours: expectation propagation, and what the estimator promises."""

import functools
import itertools
import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import fitted_once
from dense_propagation import propagated
from families import by_default
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special, stats
from sklearn.gaussian_process import kernels as sk
from thread_group import on_ranks
from torch import nn

from skgpstoch import NNGPRegressor, load
from skgpstoch.data import ChunkRows, ParquetRows
from skgpstoch.data.rows import Rows
from skgpstoch.kernels import from_sklearn
from skgpstoch.likelihoods import NegativeBinomial, Poisson
from skgpstoch.models.posteriors.places import Observed
from skgpstoch.objectives import pseudo_targets
from skgpstoch.objectives.neighbour_counts import NeighbourCountObjective, likelier

KERNEL = 0.8 * sk.Matern([0.7, 1.9], nu=1.5)
MEAN, ALPHA, N = 0.4, 0.3, 24
LIKELIHOODS = {"poisson": Poisson, "negative_binomial": functools.partial(NegativeBinomial, ALPHA)}
both = pytest.mark.parametrize("name", LIKELIHOODS)


def data(n=N, weights=False, n_outputs=1):
    """Counts of a smooth log-rate, seen for different times."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 2))
    f = np.sin(2.0 * X[:, :1]) + 0.5 * X[:, 1:] * np.linspace(1.0, -1.0, n_outputs)
    exposure = rng.uniform(0.5, 6.0, (n, 1))
    y = rng.poisson(exposure * np.exp(f + 0.3 * rng.normal(size=f.shape)))
    weight = torch.tensor(rng.integers(1, 4, n).astype(float)) if weights else None
    return torch.tensor(X), Rows(torch.tensor(y.astype(float)), weight, torch.tensor(exposure))


def objective(X, rows, name, m=None, is_ordered=True, kernel=KERNEL, mean=MEAN, alpha=ALPHA):
    """The objective of m neighbours, or of all."""
    m = len(X) - 1 if m is None else m
    likelihood = LIKELIHOODS[name]().for_outputs(rows.y.shape[1])
    if name == "negative_binomial":
        likelihood.log_dispersion.data.fill_(math.log(alpha))
    made = NeighbourCountObjective(
        from_sklearn(kernel),
        nn.Sequential(),
        likelihood,
        torch.full((rows.y.shape[1],), mean, dtype=torch.float64),
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


def settled(X, rows, name, m=None, n_sweeps=25, **options):
    """The posterior at the fixed point."""
    made = objective(X, rows, name, m, **options)
    return made.posterior(X, rows).requires_grad_(False).settle_(n_sweeps=n_sweeps)


def log_pmf(name, y, rate):
    if name == "poisson":
        return stats.poisson.logpmf(y, rate)
    k = 1.0 / ALPHA
    return stats.nbinom.logpmf(y, k, k / (k + rate))


def by_hand(K, name, y, exposure, c):
    """Expectation propagation for counts: pseudo-targets and evidence."""

    def p_of(f):
        return np.exp(log_pmf(name, y[:, None], exposure[:, None] * np.exp(f)))

    return propagated(K, p_of, c, 12.0, 1e-3)


# ---- expectation propagation ---------------------------------------------------------------------


@pytest.mark.slow
@both
def test_counts_with_all_neighbours_are_those_by_hand(name):
    X, rows = data()
    found = settled(X, rows, name)
    K, y, exposure = KERNEL(X.numpy()), rows.y[:, 0].numpy(), rows.exposure[:, 0].numpy()
    t, D, evidence = by_hand(K, name, y, exposure, MEAN)
    targets = found.targets_of(found.row_numbers)
    assert_allclose(targets.var[:, 0], D, rtol=1e-7)
    assert_allclose(targets.mean[:, 0], t, rtol=1e-8, atol=1e-8)
    assert_allclose(found.log_evidence(), [evidence], rtol=1e-9)
    some = torch.tensor([[0.1, -0.4], [1.3, 0.2], [9.0, 9.0]], dtype=torch.float64)
    k = KERNEL(some.numpy(), X.numpy())
    solve = np.linalg.solve(K + np.diag(D), np.column_stack([t - MEAN, k.T]))
    mean, var = (a[0, :, 0].detach() for a in found.marginals(some))
    assert_allclose(mean, MEAN + k @ solve[:, 0], rtol=1e-8)
    assert_allclose(var, KERNEL.diag(some) - (k * solve[:, 1:].T).sum(1), rtol=1e-8)


def test_outputs_are_learned_side_by_side():
    X, rows = data(n_outputs=2)
    together = settled(X, rows, "negative_binomial", 8)
    for p in range(2):
        alone = Rows(rows.y[:, [p]], None, rows.exposure)
        q = settled(X, alone, "negative_binomial", 8).marginals(X)
        for a, b in zip(together.marginals(X), q, strict=True):
            assert_allclose(a[..., p], b[..., 0], rtol=1e-10)


@pytest.mark.parametrize("y", [0.0, 1.0, 1e3, 1e7])
def test_extreme_counts_are_matched(y):
    """The posterior of one row is that by a fine grid, and stays at its fixed point."""
    rows = Rows(torch.tensor([[y]], dtype=torch.float64), exposure=torch.ones(1, 1).double())
    found = settled(torch.zeros(1, 2).double(), rows, "poisson", 1, mean=0.0)
    mean, var = (float(a[0]) for a in found.marginals(torch.zeros(1, 2).double()))
    peak = math.log(y) if y > 100.0 else 0.0
    f = peak + np.linspace(-12.0, 12.0, 400_001) * (1.0 if y < 100.0 else y**-0.5)
    log_p = stats.poisson.logpmf(y, np.exp(f)) - 0.5 * f**2 / 0.8
    p = np.exp(log_p - special.logsumexp(log_p))
    assert_allclose(mean, p @ f, rtol=1e-6, atol=1e-6)
    assert_allclose(var, p @ np.square(f - p @ f), rtol=1e-3)


@pytest.mark.slow
@both
def test_the_gradient_of_training_is_that_of_the_evidence(name):
    """At a fixed point, although the evidence has the pseudo-targets found anew."""
    X, rows = data()
    made = objective(X, rows, name)

    def evidence(theta):
        *of_kernel, mean, log_alpha = theta
        kernel, alpha = KERNEL.clone_with_theta(np.array(of_kernel)), math.exp(log_alpha)
        return float(settled(X, rows, name, kernel=kernel, mean=mean, alpha=alpha).log_evidence())

    posterior = made.posterior(X, rows).requires_grad_(False).settle_(n_sweeps=25)
    targets = posterior.targets_of(posterior.row_numbers)
    made.target_mean.copy_(targets.mean)
    made.target_var.copy_(targets.var)
    loss = made(torch.arange(N)[:, None], made.source[1], torch.Generator())
    slopes = torch.autograd.grad(loss, [*made.kernel.parameters(), made.mean])
    found = -N * np.concatenate([slope.reshape(-1) for slope in slopes])
    theta = np.array([*KERNEL.theta, MEAN, math.log(ALPHA)])
    steps = 1e-4 * np.eye(len(theta))
    expected = [(evidence(theta + s) - evidence(theta - s)) / 2e-4 for s in steps]
    assert_allclose(found, expected[:4], rtol=1e-5, atol=1e-5)
    if name == "negative_binomial":
        i = posterior.row_numbers
        q = posterior.cavities(i, posterior.rows_alone.others(i, N - 1))
        likelihood, of_rows = made.likelihood.requires_grad_(), posterior.rows_at(i)
        value, *_ = likelihood.of(of_rows).predictive_gradients(of_rows.y, q)
        (slope,) = torch.autograd.grad(value.sum(), [likelihood.log_dispersion])
        assert_allclose(slope, expected[4:], rtol=1e-5)
        best = likelier(likelihood, of_rows, q)
        assert abs(float(best - math.log(ALPHA))) <= 2.0
        assert math.copysign(1.0, float(best - math.log(ALPHA))) == math.copysign(1.0, float(slope))


@both
def test_left_out_losses_and_their_gradients(name):
    X, rows = data(weights=True)
    made = objective(X, rows, name, 5, is_ordered=False)
    i, N_i = made.find()
    posterior = made.posterior(X, rows)
    mean, var = posterior.given(posterior.features[i], N_i)[:2]
    with torch.no_grad():
        p = made.likelihood.of(rows).log_predictive(
            rows.y, type(posterior.marginals(X))(mean[None], var[None])
        )
    loss = made.loss_at(i, N_i)
    assert_allclose(loss.detach(), -(rows.weight * p).sum() / rows.weight.sum(), rtol=1e-7)
    (amplitude, *_), step = made.kernel.parameters(), 1e-5
    for learned in (amplitude, made.mean):
        (found,) = torch.autograd.grad(made.loss_at(i, N_i), [learned])
        losses = []
        for h in (step, -step):
            learned.data += h
            losses.append(float(made.loss_at(i, N_i).detach()))
            learned.data -= h
        assert_allclose(found, [(losses[0] - losses[1]) / (2 * step)], rtol=1e-5)


def test_a_row_of_weight_2_is_the_row_twice():
    X, rows = data()
    twice = settled(torch.cat([X[:1], X]), rows[torch.arange(-1, N).clamp_min(0)], "poisson")
    weight = torch.ones(N, dtype=torch.float64)
    weight[0] = 2.0
    once = settled(X, Rows(rows.y, weight, rows.exposure), "poisson")
    for a, b in zip(twice.marginals(X), once.marginals(X), strict=True):
        assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    assert_allclose(twice.log_evidence(), once.log_evidence(), rtol=1e-7)


def test_stretched():
    X, rows = data(weights=True)
    found = settled(X, rows, "poisson", 6)
    before, evidence, c = found.marginals(X), found.log_evidence(), found.constant
    found.stretch_(1.3).requires_grad_(False)
    assert_array_equal(found.constant, c)
    assert_allclose(found.marginals(X).mean - c, 1.3 * (before.mean - c), rtol=1e-9)
    assert_allclose(found.marginals(X).var, 1.3**2 * before.var, rtol=1e-9)
    assert_allclose(found.log_evidence(), evidence, rtol=1e-9)
    assert_allclose(found.refit(X, rows).settle_(n_sweeps=25).log_evidence(), evidence, rtol=1e-8)


@pytest.mark.parametrize("stretch", [1.0, 1.3])
@by_default("1.3")
def test_more_rows_are_rows_of_the_posterior(stretch):
    X, rows = data(2 * N)
    whole = settled(X, rows, "poisson").stretch_(stretch).requires_grad_(False)
    half = settled(X[:N], rows[:N], "poisson", 2 * N - 1).stretch_(stretch).requires_grad_(False)
    before = half.marginals(X)
    found = half.extended(X[N:], rows[N:])
    assert_array_equal(found.exposure, rows.exposure)
    assert_array_equal(half.marginals(X).mean, before.mean)
    assert_allclose(found.marginals(X).mean, whole.marginals(X).mean, atol=1e-3)
    assert_allclose(found.log_evidence(), whole.log_evidence(), rtol=1e-4)


@pytest.mark.slow
def test_the_dispersion_ends_where_the_evidence_is_largest():
    X, rows = data(40)
    made = objective(X, rows, "negative_binomial", kernel=KERNEL, alpha=3.0)
    made.use(X, Observed(rows))
    for _ in range(12):
        made.find()
        made.follow()
    alpha = float(made.likelihood.dispersion)
    best = [
        float(settled(X, rows, "negative_binomial", alpha=alpha * c).log_evidence())
        for c in (0.8, 1.0, 1.25)
    ]
    assert best[1] > max(best[0], best[2])


# ---- the estimator -------------------------------------------------------------------------------

QUICK = {
    "kernel": 1.0 * sk.Matern(nu=1.5),
    "likelihood": "poisson",
    "n_neighbors": 8,
    "n_neighbors_predict": 12,
    "max_iter": 3,
    "random_state": 0,
}
GRID = np.column_stack([np.linspace(-2.5, 2.5, 20), np.linspace(2.0, -2.0, 20)])
FAR = np.array([[1e3, -1e3]])
small = functools.partial(NNGPRegressor, **QUICK)


@pytest.fixture(scope="module")
def table():
    X, rows = data(120)
    return X.numpy(), rows.y[:, 0].numpy(), rows.exposure[:, 0].numpy()


@pytest.fixture(scope="module")
def model(table):
    X, y, exposure = table
    return small().fit(X, y, exposure=exposure)


def test_predictions_are_those_of_the_process(model, table):
    X, y, exposure = table
    mean, std = model.predict(X, return_std=True, exposure=exposure)
    f, s = model.predict(X, return_std=True, latent=True)
    rate = exposure * np.exp(f + 0.5 * s**2)
    assert_allclose(mean, rate, rtol=1e-10)
    assert_allclose(std**2, rate + rate**2 * np.expm1(s**2), rtol=1e-10)
    assert np.corrcoef(np.log(mean), np.log(y + 0.5))[0, 1] > 0.8
    law = model.predict_distribution(X, exposure=exposure)
    assert_allclose(model.log_predictive_density(X, y, exposure=exposure), law.logpmf(y))
    low, high = model.predict_interval(X, 0.9, exposure=exposure).T
    assert ((low <= y) & (y <= high)).mean() > 0.85
    draws = model.sample_y(X, 400, exposure=exposure)
    assert_allclose(draws.mean(1), mean, atol=6.0 * (std / 20.0).max())
    assert (draws == np.round(draws)).all()
    assert model.score(X, y, exposure=exposure) > 0.5


def test_far_from_all_rows_counts_are_those_of_the_prior_and_of_the_error_of_the_mean(model):
    f, s = model.predict(FAR, return_std=True, latent=True)
    of_mean = float(model.posterior_.mean_variance)
    assert_allclose(f, model.posterior_.constant - 0.5 * of_mean, rtol=1e-9)
    assert 0.0 < of_mean < 1.0
    assert_allclose(s**2, model.kernel_.diag(FAR) + of_mean, rtol=1e-9)
    assert_allclose(model.predict(FAR, exposure=3.0), 3.0 * np.exp(f + 0.5 * s**2), rtol=1e-9)


@pytest.mark.slow
def test_without_events_the_mean_is_known_as_by_one():
    """Its variance was that of pseudo-targets that tell nothing: means of 10³² where all are 0."""
    X = np.random.default_rng(0).uniform(-2, 2, (150, 2))
    with pytest.warns(UserWarning, match=r"No event was counted.* a rate of 0.02 \(3 events"):
        model = small().fit(X, np.zeros(150, int))
    std = float(model.posterior_.mean_variance) ** 0.5
    assert 0.5 < std <= math.sqrt(1.0 + float(model.kernel_.diag(X[:1])[0]))
    assert model.predict(X).max() < 0.01
    y = np.arange(150) % 50 == 0
    assert_allclose(small().fit(X, y.astype(int)).predict(X).sum(), 3.0, rtol=0.05)


@pytest.mark.slow
def test_exposures_multiply_the_rate(model, table):
    X, y, exposure = table
    assert_allclose(model.predict(X, exposure=7.0), 7.0 * model.predict(X), rtol=1e-12)
    other = small().fit(X, y, exposure=10.0 * exposure)
    assert_allclose(10.0 * other.predict(GRID), model.predict(GRID), rtol=1e-3)
    ones, none = small().fit(X, y, exposure=1.0), small().fit(X, y)
    assert_array_equal(ones.predict(GRID), none.predict(GRID))


@pytest.mark.slow
def test_held_out_rows_are_predicted_by_models_without_them(table, monkeypatch):
    X, y, exposure = table
    monkeypatch.setattr(pseudo_targets, "JUDGED_FOLDS", 3)
    monkeypatch.setattr(pseudo_targets, "JUDGED_TARGETS", 40)
    kernel = sk.ConstantKernel(0.8, "fixed") * sk.RBF(0.9, "fixed")
    options = {"calibrate": False, "max_iter": 1, "mean": "zero", "n_neighbors_predict": 200}
    made = functools.partial(small, **{"kernel": kernel, "n_neighbors": 200, **options})
    found = made().fit(X, y, exposure=exposure).held_out_
    rows = found.rows
    assert len(rows) == 40
    rest = np.delete(np.arange(len(X)), rows)
    without = made().fit(X[rest], y[rest], exposure=exposure[rest])
    log_p = without.log_predictive_density(X[rows], y[rows], exposure=exposure[rows])
    assert_allclose(found.log_density, log_p, atol=1e-3)
    assert_allclose(found.mean[:, 0], without.predict(X[rows], exposure=exposure[rows]), rtol=1e-2)
    assert_allclose(found.mean + found.error, y[rows, None])


@pytest.mark.slow
@both
def test_rows_are_scored_as_held_out_rows_were(name, table):
    """Densities of new rows are as good as those of rows left out."""
    X, rows = data(240)
    X, y, exposure = X.numpy(), rows.y[:, 0].numpy(), rows.exposure[:, 0].numpy()
    model = small(likelihood=name).fit(X[:160], y[:160], exposure=exposure[:160])
    of_new = model.log_predictive_density(X[160:], y[160:], exposure=exposure[160:])
    assert model.held_out_.log_density.mean() == pytest.approx(of_new.mean(), abs=0.3)
    if name == "negative_binomial":
        assert 0.0 < model.likelihood_.dispersion < 0.5  # .1 by the data
    usual = np.average(y[:160] / exposure[:160], weights=exposure[:160])
    assert of_new.mean() > stats.poisson.logpmf(y[160:], usual * exposure[160:]).mean() + 0.3


@pytest.mark.slow
def test_order_and_batch_do_not_matter(model, table):
    X, y, exposure = table
    order = np.random.default_rng(0).permutation(len(X))
    other = small().fit(X[order], y[order], exposure=exposure[order])
    assert_array_equal(model.predict(GRID), other.predict(GRID))
    apart = np.concatenate([model.predict(x[None]) for x in GRID])
    assert_allclose(model.predict(GRID), apart, rtol=1e-12)


@pytest.mark.slow
def test_weight_2_is_the_row_given_twice(table):
    X, y, exposure = table
    w = np.random.default_rng(0).integers(0, 4, len(X))
    a = small().fit(X, y, sample_weight=w, exposure=exposure)
    b = small().fit(*(np.repeat(each, w, 0) for each in (X, y)), exposure=np.repeat(exposure, w))
    assert_array_equal(a.predict(GRID), b.predict(GRID))
    assert a.log_marginal_likelihood_value_ == b.log_marginal_likelihood_value_


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["vecchia", "leave_one_out"])
@by_default("leave_one_out")
def test_losses_and_early_stopping(loss, table):
    X, y, exposure = table
    model = small(loss=loss, early_stopping=True, max_iter=6).fit(X, y, exposure=exposure)
    assert np.isfinite(model.validation_scores_).all()
    assert len(model.X_train_) == len(X)
    assert model.score(X, y, exposure=exposure) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["condition_on", "partial_fit"])
@by_default("condition_on")
def test_appended_rows_are_those_of_a_fit_that_learns_nothing(method, table):
    X, y, exposure = table
    kernel = sk.ConstantKernel(0.8, "fixed") * sk.RBF(0.9, "fixed")
    options = {"kernel": kernel, "calibrate": False, "max_iter": 1, "mean": "zero"}
    whole = small(**options).fit(X, y, exposure=exposure)
    model = small(**options).fit(X[:80], y[:80], exposure=exposure[:80])
    assert getattr(model, method)(X[80:], y[80:], exposure=exposure[80:]) is model
    assert_array_equal(model.y_train_[80:], y[80:])
    assert_allclose(model.predict(GRID), whole.predict(GRID), rtol=0.02)
    evidence = model.log_marginal_likelihood(X, y, exposure=exposure)
    assert evidence == pytest.approx(whole.log_marginal_likelihood_value_, rel=0.02)


@pytest.mark.slow
def test_partial_fit_begins_with_a_fit(model, table):
    X, y, exposure = table
    stream = small().partial_fit(X, y, exposure=exposure)
    assert_array_equal(stream.predict(GRID), model.predict(GRID))
    with pytest.raises(ValueError, match="exposure must be given for all chunks or for none"):
        stream.partial_fit(X, y)
    few = small()
    for k in range(3):
        few.partial_fit(X[k : k + 1], y[k : k + 1], exposure=exposure[k : k + 1])
    assert_array_equal(np.sort(few.y_train_), np.sort(y[:3]))


@pytest.mark.slow
def test_a_warm_start_goes_on(table):
    X, y, exposure = table
    model = small(warm_start=True, likelihood="negative_binomial").fit(X, y, exposure=exposure)
    kernel = model.kernel_.theta - [2.0 * math.log(model.posterior_.stretch), 0.0]
    mean, alpha = float(model.posterior_.level), float(model.likelihood_.dispersion)
    still = {"max_iter": 1, "learning_rate_init": 1e-9, "calibrate": False}
    model.set_params(**still).fit(X, y, exposure=exposure)
    assert_allclose(model.kernel_.theta, kernel, atol=1e-6)
    assert float(model.posterior_.level) == pytest.approx(mean, abs=1e-6)
    assert float(model.likelihood_.dispersion) == pytest.approx(alpha, rel=0.2)


@pytest.mark.slow
def test_several_outputs(table):
    X, rows = data(80, n_outputs=2)
    y = rows.y.numpy()
    model = small(likelihood="negative_binomial").fit(X.numpy(), y)
    assert model.predict(GRID).shape == (20, 2)
    assert model.likelihood_.dispersion.shape == (2,)
    assert_array_equal(np.sort(model.y_train_, 0), np.sort(y, 0))
    assert np.isfinite(model.log_predictive_density(X.numpy(), y)).all()


@pytest.mark.slow
def test_likelihoods_of_the_user(table):
    X, y, _ = table
    model = small(likelihood=Poisson("softplus")).fit(X, y)
    assert model.score(X, y) > 0.2
    assert repr(model.likelihood_) == "Poisson(link='softplus')"
    assert small(likelihood=NegativeBinomial(0.2)).fit(X, y).score(X, y) > 0.2
    own, given = small(likelihood=Poisson(exposure=2.0)), small()
    own, given = own.fit(X, y).predict(GRID), given.fit(X, y, exposure=2.0).predict(GRID)
    assert_allclose(own, 2.0 * given)


def test_files_and_pickles(model, table, tmp_path):
    X, y, exposure = table
    model.save(tmp_path / "model")
    for other in (load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert_array_equal(other.predict(GRID), model.predict(GRID))
        assert_array_equal(other.y_train_, model.y_train_)
        other.condition_on(X[:9] + 0.1, y[:9], exposure=exposure[:9])
        assert np.isfinite(other.log_marginal_likelihood_value_)


@pytest.mark.slow
def test_graphs(table):
    onnxruntime = pytest.importorskip("onnxruntime")
    from skgpstoch.onnx import to_onnx

    X, y, _ = table
    model = fitted_once(small(likelihood="negative_binomial"), X, y)
    session = onnxruntime.InferenceSession(to_onnx(model).SerializeToString())
    mean, std = session.run(["mean", "std"], {"X": GRID})[:2]
    expected = model.predict(GRID, return_std=True)
    assert_allclose(np.ravel(mean), expected[0], rtol=1e-5)
    assert_allclose(np.ravel(std), expected[1], rtol=1e-5)


@pytest.mark.slow
def test_chunks_parquet_and_ranks(model, table, tmp_path):
    X, y, exposure = table
    whole, cut = model.predict(GRID), (0, 70, len(X))
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=y, t=exposure)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=60)
    rows = ParquetRows(tmp_path / "rows.parquet", target="y", exposure="t")
    found = small().fit(rows)
    assert_array_equal(found.predict(pd.DataFrame(GRID, columns=["a", "b"])), whole)
    chunks = ChunkRows(lambda: ((X[a:b], y[a:b]) for a, b in itertools.pairwise(cut)))
    assert_array_equal(small().fit(chunks).predict(GRID), small().fit(X, y).predict(GRID))

    def fit(group):
        own = slice(cut[group.rank], cut[group.rank + 1])
        return small().fit(X[own], y[own], exposure=exposure[own]).predict(GRID)

    for found in on_ranks(fit, 2):
        assert_array_equal(found, whole)


@pytest.mark.slow
def test_functions_and_slopes(model):
    f, s = model.predict(GRID, return_std=True, latent=True)
    drawn = model.sample_functions(300)(GRID)
    assert_allclose(drawn.mean(1), f, atol=5.0 * (s / math.sqrt(300.0)).max())
    slope, _ = model.predict_gradient(GRID)
    up, down = (model.predict(GRID + h * np.array([[1.0, 0.0]])) for h in (1e-5, -1e-5))
    assert_allclose(slope[:, 0], (up - down) / 2e-5, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["all are 0", "huge", "copies", "two rows"])
def test_odd_tables(kind):
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(60, 2)), rng.poisson(3.0, 60).astype(float)
    if kind == "all are 0":
        y[:] = 0.0
    elif kind == "huge":
        y = np.round(np.exp(12.0 + np.sin(6.0 * X[:, 0])))
    elif kind == "copies":
        X = X[:5].repeat(12, 0)
    else:
        X, y = X[:2], y[:2]
    for name in LIKELIHOODS:
        model = small(likelihood=name).fit(X, y)
        assert np.isfinite(model.predict(X)).all()
        assert np.isfinite(model.log_predictive_density(X, y)).all()
        assert np.isfinite(model.log_marginal_likelihood_value_)
    if kind == "huge":
        assert model.score(X, y) > 0.99


def test_bad_input(table):
    X, y, exposure = table
    with pytest.raises(ValueError, match="the likelihood Poisson"):
        small().fit(X, y - 100.0)
    with pytest.raises(ValueError, match="the likelihood NegativeBinomial"):
        small(likelihood="negative_binomial").fit(X, y + 0.5)
    with pytest.raises(ValueError, match="y_std must be None with Poisson"):
        small().fit(X, y, y_std=0.1)
    with pytest.raises(ValueError, match="exposure must be positive and finite"):
        small().fit(X, y, exposure=exposure - 3.0)
    with pytest.raises(ValueError, match="exposure must be None with Gaussian"):
        small(likelihood="gaussian").fit(X, y, exposure=exposure)
    with pytest.raises(ValueError, match="target_transform must be None if y holds counts"):
        small(target_transform="log").fit(X, y)
    with pytest.raises(ValueError, match="kernel must not contain a White"):
        small(kernel=sk.RBF() + sk.WhiteKernel()).fit(X, y)
    with pytest.raises(ValueError, match="and feature_map None with"):
        small(hidden_layer_sizes=(8,)).fit(X, y)
    with pytest.raises(ValueError, match="under which no rows are neighbours"):
        small(kernel=sk.DotProduct()).fit(X, y)
    with pytest.raises(ValueError, match="'likelihood' parameter of NNGPRegressor must be"):
        small(likelihood="bernoulli").fit(X, y)


def test_what_counts_have_not(model, table):
    X, y, _ = table
    with pytest.raises(ValueError, match="exposure must be given with y"):
        model.log_predictive_density(X, y)
    with pytest.raises(ValueError, match="return_cov=True needs latent=True with Poisson"):
        model.predict(X, return_cov=True)
    assert model.predict(GRID, return_cov=True, latent=True)[1].shape == (20, 20)
    with pytest.raises(ValueError, match="y_std must be None with Poisson"):
        model.predict(X, y_std=1.0)
    assert not hasattr(model, "noise_variance_")


@pytest.mark.slow
def test_the_dispersion_does_not_take_the_function_for_scatter():
    """Kernels were chosen with a large dispersion, and stayed."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 5, (300, 1))
    y = rng.poisson(np.exp(5.7 + np.sin(25.0 * X[:, 0])))  # evidence −1,548; it was −1,726
    of_both = [
        NNGPRegressor(likelihood=name, max_iter=3, random_state=0)
        .fit(X, y)
        .log_marginal_likelihood_value_
        for name in ("poisson", "negative_binomial")
    ]
    assert of_both[1] > of_both[0] - 3.0


@pytest.mark.slow
def test_a_dispersion_is_learned_though_nothing_else_is():
    """It stayed 1 with a fixed kernel and mean="zero"."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (500, 2))
    f = np.sin(X[:, 0]) * np.cos(X[:, 1])
    y = rng.poisson(8 * np.exp(f) * rng.gamma(20, 1 / 20, 500))
    kernel = sk.ConstantKernel(0.5, "fixed") * sk.Matern(3.0, "fixed", nu=2.5)
    model = NNGPRegressor(kernel, likelihood="negative_binomial", mean="zero", random_state=0).fit(
        X, y, exposure=np.full(500, 8.0)
    )
    assert 0.02 < model.likelihood_.dispersion[0] < 0.15

"""Weights of the default's mixture that depend on the row, and the distribution of what agrees."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import trapezoid
from scipy.stats import kstest, norm, t
from sklearn.exceptions import ConvergenceWarning

import skgpstoch as gp
from skgpstoch import AutoGaussianProcessRegressor, on_interrupt
from skgpstoch.data.held_out import (
    HeldOutPredictions,
    joint,
    mixture_of,
    mixture_of_classes,
    of_classes,
)
from skgpstoch.estimators.distributions.mixed import MixedBlocks, MixedLaw
from skgpstoch.estimators.distributions.normal import NormalLaw
from skgpstoch.methods.automatic.mixture import MixedRows, NormalRows
from skgpstoch.methods.automatic.row_weights import RowPosterior, RowWeights, row_weights
from skgpstoch.training import exact_search
from skgpstoch.training.interrupts import one_fit

BY_ROW = RowWeights(np.array([0.5, 0.3, 0.2]), 1.5, 0.7, 5.0, 0.4)
V = np.array([0.8, 0.2])


def predicted(y, means, stds):
    """What normal distributions predict of the same rows, by model."""
    found = []
    for m, s in zip(means, stds, strict=True):
        z = (y - m) / s
        density = (norm.logpdf(z) - np.log(s)).sum(1)
        found.append(
            HeldOutPredictions(np.arange(len(y)), density, y - m, s, 0.5 * s, m, norm.cdf(z))
        )
    return found


def two_models(n=400, n_outputs=1, seed=0):
    """Errors of two models that are half their own, and deviations that are right."""
    rng = np.random.default_rng(seed)
    f, y = rng.standard_normal((2, n, n_outputs))
    stds = np.exp(0.5 * rng.standard_normal((2, n, n_outputs)))
    means = f + y + stds * rng.standard_normal((2, n, n_outputs))
    return f + y, means, stds


def test_weights_and_moments_are_those_of_the_formula():
    y, means, stds = two_models(5)
    law = BY_ROW.law([NormalLaw(m, s) for m, s in zip(means, stds, strict=True)], V)
    for i in range(5):
        mu, sigma = means[:, i, 0], stds[:, i, 0]
        m, w = V @ mu, BY_ROW.weight[:2] / 0.8
        s = 0.7 * np.sqrt(w @ (sigma**2 + 0.4 * (mu - m) ** 2))
        pi = BY_ROW.weight * np.append(sigma, s) ** -1.5
        pi /= pi.sum()
        parts = [
            *(norm(*pair) for pair in zip(mu, sigma, strict=True)),
            t(5.0, m, s * np.sqrt(0.6)),
        ]
        assert_allclose(law.weights[:, i], pi)
        for name, own in (("cdf", law.cdf(y)), ("sf", law.sf(y))):
            expected = pi @ [getattr(part, name)(y[i, 0]) for part in parts]
            assert_allclose(own[i, 0], expected, err_msg=name)
        density = np.log(pi @ [part.pdf(y[i, 0]) for part in parts])
        assert_allclose([law.log_density(y)[i, 0], law.joint_log_density(y)[i]], density)
        assert_allclose(law.mean()[i, 0], m)
        square = pi @ (np.append(sigma, s) ** 2 + (np.append(mu, m) - m) ** 2)
        assert_allclose(law.moments()[1][i, 0], np.sqrt(square))
        assert_allclose(law.cdf(law.quantile(0.1))[i, 0], 0.1, atol=1e-9)
    assert_array_equal(law.of([3, 1]).cdf(y[[3, 1]]), law.cdf(y)[[3, 1]])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("certainty", [0.0, 1.5])
def test_points_and_rows_far_from_all_others_have_weights(certainty):
    std = np.array([[[0.0], [1e305], [1.0]], [[0.0], [1.0], [np.inf]]])
    by_row = BY_ROW._replace(certainty=certainty)
    _, s = by_row.together(np.zeros((2, 3, 1)), std, V)
    assert np.isfinite(s).all()
    shares = by_row.at(np.concatenate([std, s[None]]))
    assert_allclose(shares.sum(0), 1.0)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_rows_left_out_are_predicted_as_new_ones(n_outputs):
    y, means, stds = two_models(7, n_outputs)
    found = BY_ROW.held_out(predicted(y, means, stds), V)
    law = BY_ROW.law([NormalLaw(m, s) for m, s in zip(means, stds, strict=True)], V)
    mean, std = law.moments()
    for own, expected in (
        (found.log_density, law.joint_log_density(y)),
        (found.mean, mean),
        (found.std, std),
        (found.error, y - mean),
        (found.cdf, law.cdf(y)),
    ):
        assert_allclose(own, expected, rtol=1e-12)


@pytest.mark.parametrize("before", [None, np.array([-1.0, 0.5, -2.0, 0.7, -0.3, 0.1, 0.5])])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_densities_and_gradients_of_the_search(n_outputs, before):
    y, means, stds = two_models(40, n_outputs)
    parts, w = predicted(y, means, stds), np.array([0.7, 0.3])
    posterior = RowPosterior(parts, w, V, np.ones(40), before)
    theta = posterior.start + 0.1 * np.arange(1, 8)
    theta[-2] = 0.2
    found = posterior.parameters(theta).held_out(parts, V)
    unit = np.log(stds.max(0)).sum(1)
    own = posterior.densities(torch.from_numpy(theta)).numpy()
    assert_allclose(own - unit, found.log_density, rtol=1e-12)
    value, gradient = posterior(theta)
    for j, step in enumerate(1e-5 * np.eye(len(theta))):
        slope = (posterior(theta + step)[0] - posterior(theta - step)[0]) / 2e-5
        assert_allclose(gradient[j], slope, rtol=1e-6, atol=1e-6)
    assert np.isfinite(value)


def test_models_that_agree_have_smaller_errors_together():
    """Two unbiased models with independent errors: their mean has half the variance."""
    rng = np.random.default_rng(1)
    y = rng.standard_normal((2000, 1))
    stds = np.ones((2, 2000, 1))
    means = y + rng.standard_normal((2, 2000, 1))
    both = np.array([0.5, 0.5])
    found = row_weights(predicted(y, means, stds), both, both, np.ones(2000))
    assert found.weight[2] > 0.8
    held_out = found.held_out(predicted(y, means, stds), both)
    assert_allclose(np.median(held_out.std), np.sqrt(0.5), rtol=0.05)
    assert kstest(held_out.cdf[:, 0], "uniform").pvalue > 0.01


@pytest.mark.slow
def test_rows_of_folds_are_a_prior_for_rows_that_whole_models_predict():
    """On the rows of folds the models have the same errors, so that their mean has them too."""
    rng = np.random.default_rng(1)
    y, both = rng.standard_normal((2000, 1)), np.array([0.5, 0.5])
    errors = rng.standard_normal((2, 2000, 1))
    errors[1, 300:] = errors[0, 300:]
    parts, is_whole = predicted(y, y + errors, np.ones((2, 2000, 1))), np.arange(2000) < 300
    some, others = ([part.of(part.rows[rows]) for part in parts] for rows in (is_whole, ~is_whole))

    def score(of):
        found = row_weights(of, both, both, np.ones(len(of[0].rows)))
        return found.held_out(some, both).log_density.mean()

    found = score([part._replace(is_whole=is_whole) for part in parts])
    assert found == pytest.approx(score(some), abs=0.02)
    assert found > score(parts) + 0.05  # where all rows count alike
    assert score(parts) > score(others) + 0.05


def test_rows_of_folds_choose_if_there_are_few_others():
    y, means, stds = two_models(200)
    parts, w, ones = predicted(y, means, stds), np.array([0.7, 0.3]), np.ones(200)
    expected = row_weights(parts, w, V, ones)
    few = [part._replace(is_whole=np.arange(200) < 20) for part in parts]
    assert_array_equal(row_weights(few, w, V, ones).weight, expected.weight)


def test_a_mixture_is_whole_where_all_its_parts_are():
    y, means, stds = two_models(4)
    a, b = predicted(y, means, stds)
    a = a._replace(is_whole=np.array([True, True, False, False]))
    b = b._replace(is_whole=np.array([True, False, True, False]))
    for found in (mixture_of([a, b], V), joint([a, b]), BY_ROW.held_out([a, b], V)):
        assert_array_equal(found.is_whole, [True, False, False, False])
    p = np.full((4, 2), 0.5)
    classes = [of_classes(a.rows, np.log(p[:, 0]), p, a.rows % 2, part.is_whole) for part in (a, b)]
    assert_array_equal(mixture_of_classes(classes, V).is_whole, [True, False, False, False])


@pytest.mark.parametrize("by_row", [BY_ROW, BY_ROW._replace(certainty=0.0)])
def test_blocks_are_mixtures_about_their_own_points(by_row):
    """Two stand-ins for the level of one row, where no point is the mean of its density."""
    _, means, stds = two_models(2)
    means[:, 0], stds[1] = [[5.0], [-4.0]], 3.0
    law = by_row.law([NormalLaw(m, s) for m, s in zip(means, stds, strict=True)], V)
    both = MixedBlocks(law, 2)
    one = MixedLaw(np.full(2, 0.5), [law.of([0]), law.of([1])])
    grid = np.sinh(np.linspace(-9.0, 9.0, 100_001))
    of_each = [law.of(np.full(len(grid), k)).log_density(grid[:, None])[:, 0] for k in (0, 1)]
    density = np.exp(of_each).mean(0)
    for found in (both, one):
        mean, std = found.moments()
        assert_allclose(mean, 0.5 * law.mean().sum(0, keepdims=True))
        assert_allclose(found.density_mean()[0, 0], trapezoid(density * grid, grid), rtol=1e-6)
        square = trapezoid(density * (grid - mean[0, 0]) ** 2, grid)
        assert_allclose(std[0, 0], np.sqrt(square), rtol=1e-6)
        assert_allclose(found.offset(), found.density_mean() - mean)
        for p in (0.02, 0.25, 0.7):
            assert_allclose(found.cdf(found.quantile(p)), p, atol=1e-9)


def test_bounds_of_quantiles_are_about_the_mean_of_the_density():
    """About another point they held only a part of the distribution: .31 for .25."""
    parts = [NormalLaw(np.full((2, 1), m), np.full((2, 1), 0.1)) for m in (0.0, -10.0)]
    by_row = RowWeights(np.array([0.65, 0.31, 0.04]), 0.0, 1.0, 8.0, 0.02)
    law = by_row.law(parts, np.array([1.0, 0.0]))
    assert_allclose(MixedBlocks(law, 2).quantile(0.25), law.quantile(0.25)[:1])


def test_sure_models_have_more_weight_if_they_are_right():
    """Each model knows its own half of the rows, and says so; elsewhere it is wrong."""
    rng = np.random.default_rng(2)
    y, first = rng.standard_normal((1000, 1)), np.arange(1000)[:, None] < 500
    stds = np.stack([np.where(first, 0.1, 0.5), np.where(first, 0.5, 0.1)])
    means = y + np.stack([np.where(first, 0.1, 2.0), np.where(first, 2.0, 0.1)]) * (
        rng.standard_normal((2, 1000, 1))
    )
    both, parts = np.array([0.5, 0.5]), predicted(y, means, stds)
    found = row_weights(parts, both, both, np.ones(1000))
    assert found.certainty > 1.0
    shares = found.at(np.concatenate([stds, stds[:1]]))
    assert shares[0, :500].min() > 5.0 * shares[1, :500].max()


def test_units_change_nothing():
    y, means, stds = two_models(100)
    w = np.array([0.4, 0.6])
    first, second = (
        row_weights(predicted(u * y, u * means, u * stds), w, V, np.ones(100)) for u in (1.0, 1e8)
    )
    assert_allclose(
        np.concatenate([first.weight, first[1:]]),
        np.concatenate([second.weight, second[1:]]),
        rtol=1e-6,
    )


def test_few_rows_or_one_model_have_no_weights_by_row():
    y, means, stds = two_models(29)
    parts, w = predicted(y, means, stds), np.array([0.4, 0.6])
    assert row_weights(parts, w, w, np.ones(29)) is None
    assert row_weights(parts, np.array([1.0, 0.0]), w, np.full(29, 2.0)) is None
    assert row_weights(parts, w, w, np.full(29, 2.0)).weight.min() > 0.0


def test_an_interrupt_of_the_search_is_told(monkeypatch):
    """It was swallowed: the weights were fixed, and nothing said so."""

    def interrupted(self, values, eval_gradient=True):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(RowPosterior, "__call__", interrupted)
    (y, means, stds), both = two_models(60), np.array([0.5, 0.5])
    told = pytest.warns(ConvergenceWarning, match="The fit was interrupted after a training had")
    with told, on_interrupt("keep"), one_fit():
        assert row_weights(predicted(y, means, stds), both, both, np.ones(60)) is None


def test_an_interrupted_fit_keeps_fixed_weights(monkeypatch):
    y, means, stds = two_models(60)
    both = np.array([0.5, 0.5])
    monkeypatch.setattr(exact_search, "was_interrupted", lambda: True)
    assert row_weights(predicted(y, means, stds), both, both, np.ones(60)) is None


def test_models_without_weight_stay_without():
    y, means, stds = two_models(60)
    means, stds = np.concatenate([means, means[:1]]), np.concatenate([stds, stds[:1]])
    w, v = np.array([0.4, 0.0, 0.6]), np.array([0.2, 0.5, 0.3])
    found = row_weights(predicted(y, means, stds), w, v, np.ones(60))
    assert found.weight[1] == 0.0
    assert_allclose(found.weight.sum(), 1.0)
    law = found.law([NormalLaw(m, s) for m, s in zip(means, stds, strict=True)], v)
    assert (law.weights[1] == 0.0).all()
    assert np.isfinite(law.log_density(y)).all()


def test_joint_draws_have_the_distributions_of_rows():
    _, means, stds = two_models(3)
    rows = [NormalRows(m[:, 0], 1.0) for m in means]
    for each, s in zip(rows, stds, strict=True):
        each.whole = NormalLaw(each.whole.mean(), s)
    mixed = MixedRows([0.5, 0.5], rows, V.tolist(), BY_ROW)
    draws, law = mixed.draws(4000, 0), mixed.law(slice(0, 3))
    assert_array_equal(draws, mixed.draws(4000, 0))
    for i in range(3):
        p = law.of(np.full(4000, i)).cdf(draws[i].T)[:, 0]
        assert kstest(p, "uniform").pvalue > 1e-3
    independent = law.sample(4000, np.random.RandomState(0))
    assert kstest(law.of(np.zeros(4000, int)).cdf(independent[:, 0])[:, 0], "uniform").pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The fit planned")  # for a slower machine than this one is
def test_the_default_uses_and_saves_them(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (60, 2))
    y = np.sin(3.0 * X[:, 0]) + 0.1 * rng.standard_normal(60)
    model = AutoGaussianProcessRegressor(max_time=2, random_state=0).fit(X, y)
    assert (model.row_weights_ is None) == (len(model.estimators_) == 1)
    model.estimators_ = {name: model.estimators_["process"] for name in ("one", "two")}
    model.weights_ = model.mean_weights_ = np.array([0.5, 0.5])
    alone, model.row_weights_ = model.predict_std(X), BY_ROW
    assert not np.array_equal(model.predict_std(X), alone)
    model.save(tmp_path / "model")
    assert_array_equal(gp.load(tmp_path / "model").predict_std(X), model.predict_std(X))
    counts = AutoGaussianProcessRegressor(target="count", max_time=2, random_state=0)
    assert counts.fit(X, rng.poisson(3.0, 60)).row_weights_ is None

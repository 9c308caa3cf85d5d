"""Weights of means: when they differ from those of densities, and what follows from them."""

import copy

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import skgpstoch
from skgpstoch import AutoGaussianProcessRegressor
from skgpstoch.data.held_out import HeldOutPredictions, mixture_of
from skgpstoch.methods.automatic import automatic_regressor
from skgpstoch.methods.automatic.point_weights import Errors, least_squares, point_weights
from skgpstoch.methods.automatic.race import Shares
from skgpstoch.objectives import ensemble

pytestmark = pytest.mark.usefixtures("one_kernel")

N = 400


def errors(scales, seed=0, n=N):
    """Independent errors of models whose deviations are these, (n, K, 1)."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, len(scales), 1)) * np.asarray(scales)[:, None]


def moments(E, weight=None):
    """Second moments of errors (n, K), NaN where a model has none."""
    return Errors.of(E, np.ones(len(E)) if weight is None else weight).moments()


def chosen(E, weights, unit=1.0, least=0.1):
    """Weights of the mean, for rows of weight 1."""
    return point_weights(E, np.array(weights), np.ones(len(E)), np.full(E.shape[2], unit), least)


def test_weights_are_those_of_least_squares():
    """Of two models, by the formula; the third is worse than any mixture of the others."""
    E = errors([1.0, 0.5])[..., 0]
    S = E.T @ E
    v = (S[1, 1] - S[0, 1]) / (S[0, 0] + S[1, 1] - 2.0 * S[0, 1])
    far = 3.0 * E[:, [0]] + 9.0
    found = least_squares(moments(np.hstack([E, far])), 0.0)
    assert_allclose(found, [v, 1.0 - v, 0.0], atol=1e-5)
    kept = least_squares(moments(np.hstack([E, far])), 0.3)
    assert_array_equal(kept, [0.0, 1.0, 0.0])


def test_a_weight_is_a_number_of_rows():
    E = errors([1.0, 0.7, 0.9])[..., 0]
    weight = np.arange(N) % 3 + 1.0
    E[::2, 1] = np.nan
    assert_allclose(moments(E, weight), moments(np.repeat(E, weight.astype(int), 0)), rtol=1e-8)


def test_moments_of_errors_that_are_missing_for_some_rows():
    """Those of all rows follow from the errors that vary with them."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal(3000)
    E = np.stack([common, common + 0.1 * rng.standard_normal(3000)], 1)
    whole, some = E.T @ E / len(E), E.copy()
    some[100:, 1] = np.nan
    alone = np.mean(E[:100, 1] ** 2)
    assert abs(alone - whole[1, 1]) > 0.05  # these rows are not like all
    assert_allclose(moments(some), whole, atol=0.02)  # as the rest varies by 0.01
    found = moments(np.where(np.arange(2) == np.arange(3000)[:, None] % 2, E, np.nan))
    assert_allclose(found.diagonal(), [np.mean(E[::2, 0] ** 2), np.mean(E[1::2, 1] ** 2)])
    assert np.linalg.eigvalsh(found).min() >= 0.0


@pytest.mark.parametrize("unit", [1.0, 1e-200, 1e150])
def test_a_sure_model_with_large_errors_has_no_say_in_the_mean(unit):
    assert_array_equal(chosen(unit * errors([1.0, 0.2]), [0.9, 0.1], unit), [0.0, 1.0])


def test_rows_that_only_one_model_has_left_out_count():
    """A tenth of the rows says that the second model is as good as the first; others deny it."""
    E = errors([1.0, 1.0], n=2000)
    E[200:, 0], E[200:, 1] = np.nan, 3.0 * E[200:, 1]
    assert_array_equal(chosen(E[:200], [0.5, 0.5]), [0.5, 0.5])
    assert chosen(E, [0.5, 0.5])[1] < 0.2


def test_a_model_of_few_rows_may_fail_elsewhere():
    """It has smaller errors at 100 rows, but at 900 others it may have large ones."""
    E = errors([0.01, 0.001], n=1000)
    E[100:, 1] = np.nan
    assert chosen(E, [0.0, 1.0])[1] < 0.2
    assert_array_equal(chosen(1e3 * E, [0.0, 1.0]), [0.0, 1.0])  # where y is mostly noise


def test_small_errors_of_about_as_many_rows_are_compared():
    """Errors that no model has shown had more to say, where y has no noise."""
    E = errors([3e-4, 7e-3], n=2000)
    E[:300, 0] = E[500:, 1] = np.nan
    E[::50, :] *= 17.0
    assert_array_equal(chosen(E, [1.0, 0.0]), [1.0, 0.0])


@pytest.mark.slow
def test_chance_changes_nothing():
    """Weights are the best ones up to chance, so that others are better in hardly any table."""
    tables = [errors([1.0, 1.0], seed, n=60) for seed in range(40)]
    changed = [(chosen(E, [0.5, 0.5]) != 0.5).any() for E in tables]
    assert sum(changed) <= 2


def test_few_rows_change_nothing():
    assert_array_equal(chosen(errors([1.0, 0.1], n=5), [0.9, 0.1]), [0.9, 0.1])
    E = errors([1.0, 0.1])
    E[5:, 1] = np.nan
    assert_array_equal(chosen(E, [0.9, 0.1]), [0.9, 0.1])
    assert_array_equal(chosen(np.full((9, 2, 1), np.nan), [0.9, 0.1]), [0.9, 0.1])


def test_several_outputs_have_common_weights():
    """In which no output counts for more because of its unit."""
    E = np.concatenate([errors([1.0, 0.2]), 1e6 * errors([1.0, 0.2], 1)], -1)
    found = point_weights(E, np.array([0.9, 0.1]), np.ones(N), np.array([1.0, 1e6]), 0.0)
    assert_allclose(found, chosen(E / [1.0, 1e6], [0.9, 0.1], least=0.0), atol=1e-9)


def test_columns_of_a_table():
    both = Shares(np.array([1.0, 0.0, 0.0]), np.array([0.5, 0.5, 0.0]))
    assert both.columns(1) == {"weight": [1, 0, 0, 0], "mean_weight": [0.5, 0.5, 0, 0]}
    assert_array_equal(both.are_used, [True, True, False])
    assert "mean_weight" not in Shares(both.density, both.density).columns(0)


@pytest.mark.slow
def test_errors_of_networks_are_as_small_as_those_of_their_mixture(monkeypatch):
    """One network predicts the rows of a fold, and the mixture those that none has seen."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (200, 1))
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(200)
    few = {"hidden_layer_sizes": (8,), "n_estimators": 3, "max_iter": 5, "random_state": 0}
    seen, original = [], ensemble.errors_left

    def fitted(share):
        def left(*given):
            seen.append(original(*given))
            return seen[-1] if share is None else share + 0.0 * seen[-1]

        monkeypatch.setattr(ensemble, "errors_left", left)
        return skgpstoch.DeepKernelEnsembleRegressor(**few).fit(X, y).held_out_

    one, half, own = (fitted(share) for share in (1.0, 0.5, None))
    of_fold = one.error[:, 0] != half.error[:, 0]
    assert of_fold.sum() == 3 * 20  # the others are 20 that no network has seen
    assert_allclose(half.error[of_fold], 0.5 * one.error[of_fold], atol=1e-6)
    assert 0.5 < float(seen[0]) <= 1.0
    assert_allclose(own.error[of_fold], float(seen[0]) * one.error[of_fold], atol=1e-6)
    assert_allclose(half.mean + half.error, y[half.rows, None])
    assert_array_equal(half.log_density, one.log_density)


# ---- what follows ------------------------------------------------------------------------------


def test_held_out_errors_are_those_of_the_point():
    rng = np.random.default_rng(0)
    y, both = rng.normal(size=(9, 1)), []
    for std in (0.1, 0.4):
        mean = rng.normal(size=(9, 1))
        columns = np.zeros(9), y - mean, std + 0 * y, 0 * y, mean, 0.5 + 0 * y
        both.append(HeldOutPredictions(np.arange(9), *columns))
    found = mixture_of(both, np.array([0.8, 0.2]), np.array([0.3, 0.7]))
    point = 0.3 * both[0].mean + 0.7 * both[1].mean
    assert_allclose(found.mean, point)
    assert_allclose(found.error, y - point)
    square = 0.8 * (0.1**2 + (both[0].mean - point) ** 2)
    square += 0.2 * (0.4**2 + (both[1].mean - point) ** 2)
    assert_allclose(found.std, np.sqrt(square))


@pytest.fixture(scope="module")
def fitted():
    """A fit of a process and networks whose weights are 0.8, 0.2 and 0.3, 0.7."""
    with pytest.MonkeyPatch.context() as patch:
        chosen = np.array([0.3, 0.7])
        patch.setattr(automatic_regressor, "point_weights", lambda *_: chosen)
        patch.setattr(automatic_regressor, "row_weights", lambda *_: None)
        weighed = lambda found, data: np.array([0.8, 0.2])  # noqa: E731
        patch.setattr("skgpstoch.methods.automatic.automatic.weights_of", weighed)
        patch.setattr("skgpstoch.methods.automatic.race.LEAST_GAIN", -np.inf)
        rng = np.random.default_rng(0)
        X = rng.uniform(-3, 3, (200, 1))
        y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(200)
        networks = {"hidden_layer_sizes": (8,), "n_estimators": 2, "max_iter": 3}

        def small(**params):
            return skgpstoch.DeepKernelEnsembleRegressor(**{**params, **networks})

        patch.setattr(automatic_regressor, "DeepKernelEnsembleRegressor", small)
        return AutoGaussianProcessRegressor(random_state=0).fit(X, y), X, y


@pytest.mark.slow
def test_deviations_are_those_from_the_prediction(fitted):
    model, X, _ = fitted
    mean, std = model.predict(X, return_std=True)
    parts = [each.predict(X, return_std=True) for each in model.estimators_.values()]
    point = 0.3 * parts[0][0] + 0.7 * parts[1][0]
    assert_allclose(mean, point)
    assert_allclose(model.predict(X), point)
    pairs = zip((0.8, 0.2), parts, strict=True)
    square = sum(w * (s**2 + (m - point) ** 2) for w, (m, s) in pairs)
    assert_allclose(std, np.sqrt(square))
    given = model.predict_distribution(X)
    assert_allclose(given.mean(), point)
    assert_allclose(given.std(), std)
    draws = model.sample_y(X[:5], 20_000)
    apart = np.sqrt(np.square(draws - point[:5, None]).mean(1))
    assert_allclose(apart, std[:5], rtol=0.05)


@pytest.mark.slow
def test_densities_and_intervals_are_those_of_the_mixture(fitted):
    model, X, y = fitted
    other = copy.copy(model)
    other.mean_weights_ = model.weights_
    assert_array_equal(model.predict_interval(X[:20]), other.predict_interval(X[:20]))
    assert_array_equal(model.log_predictive_density(X, y), other.log_predictive_density(X, y))
    assert np.abs(model.predict(X) - other.predict(X)).max() > 0.01
    crps = [each.predict_distribution(X[:20]).crps(y[:20]) for each in (model, other)]
    assert_allclose(*crps, rtol=1e-5)


def test_the_report_is_of_what_is_predicted(fitted):
    model, _, _ = fitted
    assert model.scores_["mean_weight"] == [0.3, 0.7, 0.0]
    assert model.scores_["weight"] == [0.8, 0.2, 0.0]
    held_out = [each.held_out_ for each in model.estimators_.values()]
    expected = mixture_of(held_out, model.weights_, model.mean_weights_)
    table = model.report().calibration
    table = table[table["by"] == "std"]
    mse = np.average(table["rmse"] ** 2, weights=table["n_rows"])
    assert_allclose(mse, np.square(expected.error).mean())


def test_weights_of_means_are_saved(fitted, tmp_path):
    model, X, _ = fitted
    loaded = skgpstoch.load(
        model.save(tmp_path / "model.safetensors") or tmp_path / "model.safetensors"
    )
    assert_array_equal(loaded.predict(X), model.predict(X))
    del loaded.mean_weights_  # files of earlier versions have none
    assert np.isfinite(loaded.predict(X)).all()


@pytest.mark.slow
def test_means_of_functions_of_y_have_the_weights_of_the_density(fitted, monkeypatch):
    _, X, y = fitted
    monkeypatch.setattr(automatic_regressor, "point_weights", None)  # is not called
    kind = {"target_transform": "yeo-johnson"}
    model = AutoGaussianProcessRegressor(**kind, max_time=0.5, random_state=0).fit(X, y)
    assert_array_equal(model.mean_weights_, model.weights_)

"""What a fit reports: predictions held out, calibration by group, limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm

from skgpstoch.data.held_out import (
    HeldOutPredictions,
    common_rows,
    mixture_of,
    mixture_of_classes,
    of_classes,
)
from skgpstoch.ensembles.report import (
    calibration_by_group,
    class_calibration,
    class_limits,
    limits,
    share_done,
)


def predicted(y, mean, std, latent=0.0, rows=None):
    y, mean, std = (np.broadcast_to(a, np.shape(y)).astype(float) for a in (y, mean, std))
    rows = np.arange(len(y)) if rows is None else rows
    columns = y - mean, std, np.full(y.shape, latent), mean, norm(mean, std).cdf(y)
    error, *others = (column.reshape(len(y), -1) for column in columns)
    density = norm(mean, std).logpdf(y).reshape(len(y), -1).sum(1)
    return HeldOutPredictions(rows, density, error, *others)


@pytest.fixture
def y():
    return np.random.default_rng(0).standard_normal(400)


def test_a_mixture_of_predictions_is_that_of_the_densities(y):
    a, b = predicted(y, 0.3, 1.0, 0.5), predicted(y, -0.5, 2.0, 1.0)
    weights = np.array([0.25, 0.75])
    mixed = mixture_of([a, b], weights)
    p = 0.25 * norm(0.3, 1).pdf(y) + 0.75 * norm(-0.5, 2).pdf(y)
    assert_allclose(mixed.log_density, np.log(p))
    assert_allclose(mixed.mean, 0.25 * 0.3 - 0.75 * 0.5)
    assert_allclose(mixed.error[:, 0], y - mixed.mean[0])
    apart = 0.25 * 0.75 * 0.8**2
    assert_allclose(mixed.std**2, 0.25 + 0.75 * 4 + apart)
    assert_allclose(mixed.latent_std**2, 0.25 * 0.25 + 0.75 + apart)
    assert_allclose(mixed.cdf[:, 0], 0.25 * norm(0.3, 1).cdf(y) + 0.75 * norm(-0.5, 2).cdf(y))


def test_mixtures_are_of_rows_that_all_have_predicted(y):
    a = predicted(y[:5], 0.0, 1.0, rows=np.array([0, 2, 3, 7, 9]))
    b = predicted(y[[2, 3, 4]], 0.5, 1.0, rows=np.array([2, 7, 8]))
    assert_allclose(common_rows([a, b]), [2, 7])
    mixed = mixture_of([a, b], np.array([1.0, 0.0]))
    assert_allclose(mixed.rows, [2, 7])
    assert_allclose(mixed.log_density, a.log_density[[1, 3]])


def test_groups_tell_where_intervals_are_too_narrow(y):
    std = np.where(np.arange(400) < 320, 1.0, 2.0)
    held_out = predicted(y * std**2, 0.0, std)  # the last fifth varies twice as much as predicted
    lines = [line for line in calibration_by_group(held_out, np.ones(400)) if line["by"] == "std"]
    assert [line["group"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["n_rows"] for line in lines] == [80.0] * 5
    coverage = [line["coverage_95"] for line in lines]
    assert min(coverage[:4]) > 0.88
    assert coverage[4] < 0.8
    assert_allclose([line["mean_std"] for line in lines], [1, 1, 1, 1, 2])
    assert lines[4]["rmse"] > 1.5 * lines[4]["mean_std"]


def test_a_row_of_weight_two_counts_as_two_in_groups(y):
    few = y[:40]
    twice = predicted(np.repeat(few, 2), np.repeat(few, 2) ** 2, 1.0)
    once = predicted(few, few**2, 1.0)
    by_mean = [
        [line for line in lines if line["by"] == "mean"]
        for lines in (
            calibration_by_group(once, np.full(40, 2.0)),
            calibration_by_group(twice, np.ones(80)),
        )
    ]
    for line, other in zip(*by_mean, strict=True):
        assert_allclose(list(line.values())[1:], list(other.values())[1:])


def test_few_rows_have_fewer_groups(y):
    lines = calibration_by_group(predicted(y[:9], 0.0, 1.0), np.ones(9))
    assert max(line["group"] for line in lines) == 2
    assert len(calibration_by_group(predicted(y[:2], y[:2], 1.0), np.ones(2))) == 2


def test_several_outputs_are_reported_apart(y):
    lines = calibration_by_group(predicted(y.reshape(-1, 2), 0.0, 1.0), np.ones(200))
    assert {line["output"] for line in lines} == {0, 1}
    assert len(lines) == 20


def test_limits_are_shares_of_the_variance(y):
    held_out = predicted(y, 0.0, 1.0, latent=0.6)
    shares = {line["limit"]: line["share"] for line in limits(held_out, np.ones(400), done=0.25)}
    assert_allclose([shares["noise"], shares["rows"], shares["budget"]], [0.64, 0.36, 0.75])


# ---- classes -----------------------------------------------------------------------------------


@pytest.fixture
def classes():
    """Probabilities of three classes, labels that have them, and their log probabilities."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet([2.0, 2.0, 1.0], 2000)
    codes = (rng.uniform(size=(2000, 1)) > p.cumsum(1)).sum(1)
    return of_classes(np.arange(2000), np.log(p[np.arange(2000), codes]), p, codes), codes


def test_calibrated_classes_are_within_chance(classes):
    held_out, codes = classes
    lines = class_calibration(held_out, np.ones(2000), np.array(["a", "b", "c"]))
    assert [line["group"] for line in lines] == [1, 2, 3, 4, 5, "a", "b", "c"]
    for line in lines:
        assert abs(line["share"] - line["mean_prediction"]) < 3.5 * line["chance"]
    assert_allclose([line["share"] for line in lines[5:]], np.bincount(codes) / 2000)
    assert_allclose(lines[0]["chance"], np.sqrt(0.24 / 400), rtol=0.05)


def test_classes_that_are_too_certain_are_seen(classes):
    held_out, codes = classes
    p = held_out.mean**3
    p /= p.sum(1, keepdims=True)
    sure = of_classes(held_out.rows, held_out.log_density, p, codes)
    lines = class_calibration(sure, np.ones(2000), np.arange(3))
    assert all(line["share"] < line["mean_prediction"] - 3.0 * line["chance"] for line in lines[:5])


def test_weights_of_classes_are_repetitions(classes):
    held_out, codes = classes
    few = held_out.of(np.arange(50))
    twice = of_classes(
        np.arange(100), few.log_density.repeat(2), few.mean.repeat(2, 0), codes[:50].repeat(2)
    )
    once = class_calibration(few, np.full(50, 2.0), np.arange(3))
    for line, other in zip(once, class_calibration(twice, np.ones(100), np.arange(3)), strict=True):
        assert_allclose(list(line.values())[1:], list(other.values())[1:])


def test_a_mixture_of_classes_is_that_of_probabilities(classes):
    held_out, codes = classes
    a = held_out.of(np.arange(5))
    even = of_classes(
        np.arange(2, 9), np.full(7, np.log(1 / 3)), np.full((7, 3), 1 / 3), codes[2:9]
    )
    mixed = mixture_of_classes([a, even], np.array([0.25, 0.75]))
    assert_array_equal(mixed.rows, [2, 3, 4])
    assert_allclose(mixed.mean, 0.25 * a.mean[2:] + 0.25)
    assert_allclose(mixed.log_density, np.log(mixed.mean[np.arange(3), codes[2:5]]))


def test_limits_of_classes(classes):
    held_out, _ = classes
    few = held_out.of(np.arange(12))
    shares = {line["limit"]: line["share"] for line in class_limits(few, np.ones(12), done=0.5)}
    assert_allclose(shares["doubt"], 1.0 - few.mean.max(1).mean())
    assert shares["rare classes"] == 1.0
    assert shares["budget"] == 0.5
    budget = {"n_steps": 50, "all_steps": 100, "n_estimators": 2, "all_estimators": 4}
    assert share_done(budget | {"is_enough": False}) == 0.25
    assert share_done(budget | {"is_enough": True}) == share_done(None) == 1.0

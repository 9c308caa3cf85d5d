"""What a fit reports: predictions held out, calibration by group, limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from skgpstoch.data.held_out import HeldOutPredictions, common_rows, mixture_of
from skgpstoch.ensembles.report import calibration_by_group, limits


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

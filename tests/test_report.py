"""What a fit reports: predictions held out, calibration by group, limits."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import binom, norm

from skgpstoch.data.held_out import (
    HeldOutPredictions,
    common_rows,
    mixture_of,
    mixture_of_classes,
    of_classes,
)
from skgpstoch.data.target_transforms import LogTarget
from skgpstoch.likelihoods import NegativeBinomial, Poisson
from skgpstoch.maths.gaussian import Marginals
from skgpstoch.methods.automatic.held_out_errors import of_held_out_errors
from skgpstoch.methods.automatic.report import (
    FEWEST_TESTED,
    MOST_REPORTED_LEVELS,
    binomial_z,
    calibration_by_group,
    class_calibration,
    class_limits,
    coverage_by_group,
    limits,
    of_coverage,
    share_done,
)
from skgpstoch.models.calibration.held_out import Predicted
from skgpstoch.training.recipes.mean_findings import clear_z


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


# ---- coverage of groups --------------------------------------------------------------------------


def coverage_lines(y, std=1.0, weight=None, by_level=()):
    weight = np.ones(len(y)) if weight is None else weight
    return coverage_by_group(predicted(y, 0.0, std), weight, by_level)


def test_a_group_with_narrow_intervals_is_found():
    y = np.random.default_rng(0).standard_normal(2000)
    is_van = np.arange(2000) < 100
    by_level = [("'courier'", "van", is_van), ("'courier'", None, ~is_van)]
    y[is_van] *= 3.0
    lines = coverage_lines(y, by_level=by_level)
    assert [line["by"] for line in lines] == ["all"] + ["std"] * 10 + ["column 'courier'"] * 2
    van, other = lines[-2:]
    assert (van["group"], other["group"]) == ("van", "missing")
    assert van["n_rows"] == 100.0
    assert_allclose(van["coverage_90"], np.mean(np.abs(y[is_van]) < norm.ppf(0.95)))
    assert_allclose(van["chance"], 0.03)
    assert van["verdict"] == "too narrow"
    assert other["verdict"] == ""
    finding = next(f for f in of_coverage(lines) if f.where == "column 'courier': van")
    assert finding.severity == "note"
    assert finding.value > finding.limit
    assert (
        "of the 100 held-out rows where column 'courier' is 'van' (chance: 90% ± 3.0%)"
        in finding.message
    )
    assert "too narrow there. Add inputs that tell" in finding.message


def test_findings_of_several_outputs_say_which():
    y = np.random.default_rng(0).standard_normal((300, 2)) * [1.0, 5.0]
    lines = coverage_lines(y)
    assert {line["output"] for line in lines} == {0, 1}
    assert {f.where[-12:] for f in of_coverage(lines)} == {" of output 1"}


def test_the_coverage_of_all_rows_comes_first(y):
    lines = coverage_lines(3.0 * y)
    assert (lines[0]["by"], lines[0]["group"], lines[0]["n_rows"]) == ("all", "rows", 400.0)
    assert_allclose(lines[0]["coverage_90"], np.mean(np.abs(3.0 * y) < norm.ppf(0.95)))
    (finding,) = of_coverage(lines)
    assert "of the 400 held-out rows (chance: 90% ± 1.5%), so they are too narrow. Check" in (
        finding.message
    )


def test_groups_are_compared_with_all_rows_if_these_are_off(y):
    is_van = np.arange(400) % 7 == 0
    scaled = np.where(is_van, 12.0, 2.0) * y
    by_level = [("column 'courier'", "van", is_van), ("column 'courier'", "bike", ~is_van)]
    lines = coverage_lines(scaled, by_level=by_level)
    off = {(line["by"], line["group"]): line["verdict"] for line in lines if line["verdict"]}
    share = lines[0]["coverage_90"]
    assert off["all", "rows"] == "too narrow"
    (van,) = [f for f in of_coverage(lines) if "van" in f.where]
    assert f"(chance: {share:.0%} ± " in van.message
    assert {group for _, group in off} == {"rows", "van"}


def test_calibrated_groups_are_fine(y):
    lines = coverage_lines(y)
    assert [line["group"] for line in lines] == ["rows", *range(1, 11)]
    (finding,) = of_coverage(lines)
    assert finding.severity == "fine"
    assert finding.value < finding.limit == clear_z(11)


def test_wide_intervals_are_found(y):
    lines = coverage_lines(y, std=10.0, by_level=[("0", 1.0, np.ones(400, dtype=bool))])
    assert lines[0]["coverage_90"] == 1.0
    assert [line["verdict"] for line in lines] == ["too wide"] + [""] * 11


def test_few_rows_are_not_tested(y):
    by_level = [("0", 0.0, np.arange(400) < FEWEST_TESTED - 1)]
    assert {line["by"] for line in coverage_lines(y, by_level=by_level)} == {"all", "std"}
    assert coverage_lines(y[: FEWEST_TESTED - 1]) == []
    assert list(of_coverage([])) == []


def test_of_many_groups_the_farthest_are_listed(y):
    by_level = [("0", j, np.arange(400) % 10 == j % 10) for j in range(50)]
    y = np.where(np.arange(400) % 10 == 7, 5.0, y)
    lines = coverage_lines(y, by_level=by_level)
    assert (
        [line["by"] for line in lines].count("column 0") == MOST_REPORTED_LEVELS == len(lines) - 11
    )
    assert sum(line["verdict"] == "too narrow" for line in lines) >= 5


def test_weights_are_repetitions_in_tests_of_coverage(y):
    once, twice = coverage_lines(y[:60], weight=np.full(60, 2.0)), coverage_lines(y[:60].repeat(2))
    assert [line["n_rows"] for line in once] == [line["n_rows"] for line in twice]
    assert_allclose([line["z"] for line in once], [line["z"] for line in twice])


def test_counts_have_no_coverage(y):
    unknown = predicted(y, 0.0, 1.0)._replace(cdf=np.full((400, 1), np.nan))
    assert coverage_by_group(unknown, np.ones(400)) == []
    assert "coverage_95" not in calibration_by_group(unknown, np.ones(400))[0]


def test_a_binomial_number_in_standard_units():
    for k in (0, 17, 26, 27, 29, 30):
        tails = binom.cdf(k, 30, 0.9), binom.sf(k - 1, 30, 0.9)
        assert_allclose(
            binomial_z(k, 30, 0.9), min(norm.ppf(tails[0]), 0) + max(norm.isf(tails[1]), 0)
        )
    assert binomial_z(300, 300, 0.9) > 4.0
    assert 30.0 < binomial_z(1e4, 1e4, 0.9) < 40.0  # where the tail vanishes, as files need numbers
    assert -40.0 < binomial_z(0.0, 1e4, 0.9) < -30.0
    assert_allclose(clear_z(1), 3.0)


def test_limits_are_shares_of_the_variance(y):
    held_out = predicted(y, 0.0, 1.0, latent=0.6)
    shares = {line["limit"]: line["share"] for line in limits(held_out, np.ones(400), done=0.25)}
    assert_allclose([shares["noise"], shares["rows"], shares["budget"]], [0.64, 0.36, 0.75])


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial()], ids=["poisson", "negative"])
def test_what_rows_would_tell_of_counts_is_in_their_units(likelihood):
    """It was the deviation of the logarithm of the rate, .01 of that of large counts."""
    mean, var = torch.rand(2, 2, 5, 1, generator=torch.manual_seed(0), dtype=torch.float64)
    q = Marginals(3.0 + mean, 0.3 * var)
    found = Predicted.of(torch.ones(5, 1), q, likelihood.given(torch.full((5, 1), 7.0), None))
    rate = 7.0 * (q.mean + 0.5 * q.var).exp()
    square = (rate.square() * q.var.exp()).mean(0)
    assert_allclose(found.latent_std.square(), square - rate.mean(0).square(), rtol=1e-6)


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


# ---- errors of means -----------------------------------------------------------------------------


def named(name, found, weight):
    return [each for each in of_held_out_errors(found, weight) if each.name == name]


def test_means_of_skewed_targets_that_are_too_low_are_found(y):
    (found,) = named("mean error", predicted(np.exp(y), 1.0, 1.0), np.ones(400))
    assert (found.severity, found.where) == ("problem", "y")
    assert_allclose(found.value, np.mean(np.exp(y) - 1.0) / np.exp(y).std())
    assert "too low on average: over 400 held-out rows y averages" in found.message
    assert "target_transform='log'" in found.message
    (high,) = named("mean error", predicted(-np.exp(y), -1.0, 1.0), np.ones(400))
    assert "too high on average" in high.message
    assert "target_transform" not in high.message  # logarithms need positive numbers
    assert "predict_distribution(X).median()" in high.message


def test_the_mean_error_that_is_told_is_that_of_the_whole_fit(y):
    """Held-out rows are those of single networks, which may be off where their mixture is not."""
    held_out, weight = predicted(np.exp(y), 1.0, 1.0, rows=np.arange(400) + 5), np.ones(400)

    def found(means):
        told = of_held_out_errors(held_out, weight, fitted=means)
        return next(each for each in told if each.name == "mean error")

    fine = found(lambda rows: np.exp(y)[rows - 5, None])
    assert (fine.severity, round(fine.value, 9)) == ("fine", 0.0)
    low = found(lambda rows: np.exp(y)[rows - 5, None] - 0.5)
    assert (low.severity, "400 training rows" in low.message) == ("problem", True)

    two = predicted(np.column_stack([y, np.exp(y)]), np.array([y.mean(), 1.0]), 1.0)
    of_two = of_held_out_errors(two, weight, fitted=lambda rows: np.column_stack([y, np.exp(y)]))
    assert {each.severity for each in of_two if each.name == "mean error"} == {"fine"}


def test_the_whole_fit_is_asked_for_the_rows_that_are_judged():
    """With a transformer, those are some of the held-out ones."""
    z, asked = np.random.default_rng(0).standard_normal((2000, 1)), []
    columns = z, np.full_like(z, 0.3), 0.0 * z, 0.0 * z, norm.cdf(z / 0.3)
    held_out = HeldOutPredictions(np.arange(2000) + 7, np.zeros(2000), *columns)

    def means(rows):
        asked.append(rows)
        return np.exp(z)[rows - 7]

    found = of_held_out_errors(held_out, np.ones(2000), LogTarget().fit(np.exp(z)), means)
    assert next(found).severity == "fine"
    assert (len(asked[0]), asked[0].min(), asked[0].max()) == (1000, 7, 2006)


def test_a_mean_error_must_be_sure_and_large(y):
    for mean in (y.mean(), y.mean() - 0.04, y.mean() + 2.0 * y.std() / 20.0):
        (found,) = named("mean error", predicted(y, mean, 1.0), np.ones(400))
        assert found.severity == "fine"
        assert found.value < found.limit


def test_mean_errors_are_those_of_targets_before_their_transformation():
    """Right for exp(z) if z is predicted as it is, too low if its deviation is."""
    rng = np.random.default_rng(0)
    z, n = rng.standard_normal((400, 1)), 400
    log, columns = LogTarget().fit(np.exp(z)), {}
    for std in (1.0, 0.3):
        cdf = norm.cdf(z / std)
        columns[std] = HeldOutPredictions(
            np.arange(n), np.zeros(n), z, np.full((n, 1), std), 0.0 * z, 0.0 * z, cdf
        )
    fine, low = (
        next(of_held_out_errors(columns[std], np.ones(n), transformer=log)) for std in (1.0, 0.3)
    )
    assert (fine.name, fine.severity, low.severity) == ("mean error", "fine", "problem")
    assert "too low on average" in low.message
    assert "Set target_transform=None" in low.message


def test_means_of_huge_targets_are_not_called_low():
    """Those of exp(z) with heavy tails do not fit float64 here; what stands for them is no mean."""
    z, place = np.random.default_rng(0).standard_normal((400, 1)), 460.0  # y of 1e200
    columns = z, np.ones_like(z), 0.0 * z, 0.0 * z + place, norm.cdf(z)
    held_out = HeldOutPredictions(np.arange(400), np.zeros(400), *columns)
    log = LogTarget().fit(np.exp(z + place))
    found = of_held_out_errors(held_out, np.ones(400), transformer=log)
    assert "problem" not in [each.severity for each in found]


def test_mean_errors_are_those_of_outputs_and_of_repeated_rows(y):
    two = np.column_stack([y - y.mean(), np.exp(y)])
    fine, found = named("mean error", predicted(two, np.array([0.0, 1.0]), 1.0), np.ones(400))
    assert (fine.severity, found.severity, found.where) == ("fine", "problem", "y[:, 1]")
    (once,) = named("mean error", predicted(np.exp(y), 1.0, 1.0), np.full(400, 2.0))
    (twice,) = named("mean error", predicted(np.exp(y).repeat(2), 1.0, 1.0), np.ones(800))
    assert_allclose([once.value, once.limit], [twice.value, twice.limit])
    assert once.text == twice.text


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_predictions_that_explain_nothing_are_noted(y, unit):
    y, weight = unit * (y + 7.0), np.ones(400)
    for mean, share in (
        (y.mean(), 0.0),
        (y - 0.5 * (y - y.mean()), 0.75),
        (2.0 * y.mean() - y, -3),
    ):
        (found,) = named("explained variance", predicted(y, mean, unit), weight)
        assert_allclose(found.value, share, atol=1e-9)
        assert found.severity == ("fine" if share > 0.0 else "note")
    assert "rows of X and y belong together" in found.message
    assert not list(of_held_out_errors(predicted(np.full(400, unit), unit, unit), weight))


@pytest.mark.slow
def test_mean_errors_of_few_rows_and_many_outputs_are_chance():
    """They are judged by Student's t, and by the number of outputs."""
    draws, alarms = np.random.default_rng(0).standard_normal((100, 5, 20)), 0
    for error in draws:
        two = np.column_stack([*error.T])
        alarms += any(
            found.severity == "problem"
            for found in named("mean error", predicted(two, np.zeros(20), 1.0), np.ones(5))
        )
    assert alarms <= 2

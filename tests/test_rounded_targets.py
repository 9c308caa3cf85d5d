"""Targets on a lattice: how it is found, and predictions on it."""

import pickle
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import trapezoid
from scipy.stats import norm
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import FunctionTransformer

from skgpstoch import AutoGaussianProcessRegressor, predict_distribution
from skgpstoch.estimators.distributions.mixed import MixedLaw
from skgpstoch.estimators.distributions.normal import NormalLaw
from skgpstoch.estimators.distributions.transformed import transformed
from skgpstoch.methods.automatic import rounded_targets as room
from skgpstoch.methods.automatic.mixture import MixedRows, MixtureRegressor, NormalRows, mixed_draws
from skgpstoch.methods.automatic.rounded_targets import (
    Lattice,
    LatticeLaw,
    RoundedRows,
    grid_of,
    lattice_of,
)

RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((1000, 2))
SMOOTH = RNG.standard_normal(1000)
GRADES = np.clip(np.round(1.2 * SMOOTH + 5.6), 3, 8)
LOG_COUNTS = np.log1p(np.floor(np.exp(2.0 + SMOOTH)))
GROUPS = RNG.standard_normal(300)[RNG.integers(300, size=1000)]

# ---- whether there is one ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "atoms"),
    [
        (GRADES, np.arange(3.0, 9.0)),
        (GRADES[:25], np.arange(GRADES[:25].min(), GRADES[:25].max() + 1.0)),
        (2.0 * GRADES, np.arange(6.0, 17.0, 2.0)),
        (np.where(GRADES == 5.0, 4.0, GRADES), np.arange(3.0, 9.0)),
        (LOG_COUNTS, np.unique(LOG_COUNTS)),
        ((GRADES > 5.0).astype(float), np.array([0.0, 1.0])),
        (np.round(SMOOTH, 1), np.arange(-35, 36) / 10.0),
        (GRADES.astype(int), np.arange(3.0, 9.0)),
    ],
    ids=["grades", "few", "even", "a gap", "counts", "binary", "readings", "integers"],
)
def test_lattices_are_found(y, atoms):
    found = lattice_of(INPUTS[: len(y)], y)
    assert 0.9 < found.weight < 1.0
    inside = (atoms >= y.min() - 1e-9) & (atoms <= y.max() + 1e-9)
    assert_allclose(found.atoms, atoms[inside])
    assert np.isin(y, found.atoms).all()


@pytest.mark.parametrize(
    "y",
    [
        SMOOTH,
        np.round(SMOOTH, 4),
        np.where(SMOOTH < 0.0, 0.0, SMOOTH),
        GROUPS,
        np.zeros(1000),
        np.stack([GRADES, GRADES], 1),
        np.where(SMOOTH > 0.9, SMOOTH, GRADES),
        5e-324 * GRADES,  # gaps of the smallest number that there is
    ],
    ids=["smooth", "fine", "zeros", "groups", "constant", "two outputs", "a fifth", "tiny"],
)
def test_other_targets_are_continuous(y):
    assert lattice_of(INPUTS, y) is None


def test_a_column_has_the_lattice_of_its_values():
    assert_array_equal(lattice_of(INPUTS, GRADES[:, None]).atoms, lattice_of(INPUTS, GRADES).atoms)


def test_rows_that_are_repeated_are_no_lattice():
    ten = np.tile(np.arange(1000), 12)
    assert lattice_of(INPUTS[ten], SMOOTH[ten]) is None
    assert lattice_of(INPUTS, SMOOTH, np.full(1000, 10.0)) is None


def test_weights_and_order_change_nothing():
    plain, order = lattice_of(INPUTS, GRADES), RNG.permutation(1000)
    twice = np.repeat(np.arange(1000), 2)
    weight = np.arange(1000.0) % 2
    found = [
        lattice_of(INPUTS[order], GRADES[order]),
        lattice_of(INPUTS[twice], GRADES[twice]),
        lattice_of(INPUTS, GRADES, np.full(1000, 2.0)),
    ]
    for other in found:
        assert_array_equal(other.atoms, plain.atoms)
        assert other.weight == plain.weight
    some = weight > 0.0
    of_zero = lattice_of(INPUTS, np.where(some, GRADES, SMOOTH), weight)
    without = lattice_of(INPUTS[some], GRADES[some])
    assert_array_equal(of_zero.atoms, without.atoms)
    assert of_zero.weight == without.weight


@pytest.mark.parametrize("y", [GRADES, LOG_COUNTS, np.round(SMOOTH, 1)], ids=["", "log", "grid"])
@pytest.mark.parametrize("unit", [1e-6, -3.7, 1e9])
def test_units_change_nothing(y, unit):
    plain, other = lattice_of(INPUTS, y), lattice_of(INPUTS, unit * y + 5.0 * unit)
    assert_allclose(np.sort(unit * plain.atoms + 5.0 * unit), other.atoms, rtol=1e-9, atol=1e-9)
    assert plain.weight == other.weight
    y = ((y - y.mean()) / y.std()).astype(np.float32)
    single = lattice_of(INPUTS, y)
    assert len(single.atoms) == len(plain.atoms)
    assert single.contains(y.astype(float)).all()


def test_values_that_one_row_has_are_new_ones():
    """Good and Turing: as many rows as have a value of their own will have a new one."""
    rng = np.random.default_rng(1)
    values = np.sort(rng.standard_normal(100))
    shares = 1.0 / np.arange(2.0, 102.0) ** 1.2
    train, test = (rng.choice(values, 2000, p=shares / shares.sum()) for _ in range(2))
    X = rng.standard_normal((2000, 1))
    found = lattice_of(X, train)
    assert_allclose(found.weight, found.contains(test).mean(), atol=0.01)
    assert_array_equal(found.contains(test), np.isin(test, train))


def test_units_of_gaps():
    assert_allclose(grid_of(np.array([0.0, 2.0, 5.0, 9.0]), 20), np.arange(10.0))
    assert grid_of(np.array([0.0, 2.0, 5.0, 9.0]), 9) is None
    assert grid_of(np.array([0.0, 1.0, 2.0, 1e6]), 1000) is None
    assert grid_of(np.array([0.0, 1.0, 2.3, 3.7]), 1000) is None


# ---- what is predicted ---------------------------------------------------------------------------

STD = 0.7
REGRESSION = LinearRegression().fit([[0.0], [1.0]], [5.0, 6.0])


class Line(MixtureRegressor):
    """Normal distributions about a line, of y on a lattice if one is given."""

    def __init__(self, lattice=None):
        self.lattice = lattice

    def _predicted(self, X):
        found = NormalRows(REGRESSION.predict(X), STD)
        return found if self.lattice is None else RoundedRows(found, self.lattice)

    def predict_atoms(self, X):
        return self._predicted(X).atom_probabilities()

    def log_predictive_probability(self, X, y):
        return self._predicted(X).log_probability(y)


LINE = Line()
QUERY = np.linspace(-3.0, 3.0, 13)[:, None]
UNEVEN = Lattice(np.array([3.0, 4.0, 4.2, 5.0, 6.0, 8.0]), 0.95)
MODEL = Line(UNEVEN)


def test_probabilities_are_masses_of_cells():
    P = MODEL.predict_atoms(QUERY)
    edges = np.array([-np.inf, 3.5, 4.1, 4.6, 5.5, 7.0, np.inf])
    mean = LINE.predict(QUERY)[:, None]
    assert_allclose(P, 0.95 * np.diff(norm.cdf(edges, mean, STD)), atol=1e-12)
    assert_allclose(P.sum(1), 0.95)


def test_all_probability_is_one():
    y = np.linspace(-10.0, 20.0, 3001)
    rows = np.zeros((len(y), 1))
    density = np.exp(MODEL.log_predictive_density(rows, y))
    total = MODEL.predict_atoms(rows[:1]).sum() + 0.05 * trapezoid(density, y)
    assert_allclose(total, 1.0, rtol=1e-9)


def test_log_probabilities_are_those_of_atoms():
    P = MODEL.predict_atoms(QUERY)
    for j, atom in enumerate(UNEVEN.atoms):
        found = MODEL.log_predictive_probability(QUERY, np.full(len(QUERY), atom + 1e-7))
        assert_allclose(found[P[:, j] > 1e-6], np.log(P[:, j][P[:, j] > 1e-6]), rtol=1e-6)
        assert np.isfinite(found).all()
    y = np.full(len(QUERY), 4.1)
    assert (MODEL.log_predictive_probability(QUERY, y) == -np.inf).all()
    of_column = MODEL.log_predictive_probability(QUERY, y[:, None])
    assert_array_equal(of_column, MODEL.log_predictive_probability(QUERY, y))
    with pytest.raises(ValueError, match=r"shape \(13,\) of predictions, got \(13, 2\)"):
        MODEL.log_predictive_probability(QUERY, np.stack([y, y], 1))


def test_densities_that_end_between_atoms_give_no_warning():
    """The density of exp(Z) is 0 below 0."""
    logarithm = FunctionTransformer(np.log, np.exp).fit(np.ones((1, 1)))
    law = transformed(NormalLaw(np.ones((1, 1)), np.ones((1, 1))), logarithm)
    rounded = LatticeLaw(law, Lattice(np.array([1.0, 2.0]), 0.95))
    (found,) = rounded.log_probability(np.array([[2.0]]))
    assert_allclose(found, np.log(0.95 * norm.sf(np.log(1.5) - 1.0)))


def test_probabilities_far_out_are_those_of_the_density():
    """A difference of distribution functions has none of their digits."""
    fine = Line(Lattice(np.arange(0.0, 40.0, 0.01), 0.999))
    for y in (11.0, 13.0, 30.0):
        found = fine.log_predictive_probability(np.zeros((1, 1)), np.array([y]))
        assert_allclose(found, norm.logpdf(y, 5.0, STD) + np.log(0.01 * 0.999), rtol=1e-3)


@pytest.mark.parametrize("std", [0.05, 0.01, 0.001])
def test_probabilities_that_underflow_are_of_the_nearer_end(std):
    narrow = NormalLaw(np.zeros((3, 1)), np.full((3, 1), std))
    law = LatticeLaw(narrow, Lattice(np.arange(-1.0, 3.0), 0.9))
    found = law.log_probability(np.array([[-1.0], [1.0], [2.0]]))[:, 0]
    assert_allclose(found, np.log(0.9) + norm.logsf([0.5, 0.5, 1.5], scale=std), rtol=1e-5)


def test_draws_and_moments_are_of_atoms():
    draws = MODEL.sample_y(QUERY, 40_000, random_state=0)
    assert_allclose(np.isin(draws, UNEVEN.atoms).mean(), 0.95, atol=0.002)
    P = MODEL.predict_atoms(QUERY)
    for j, atom in enumerate(UNEVEN.atoms):
        assert_allclose((draws == atom).mean(1), P[:, j], atol=0.012)
    mean, std = MODEL.predict(QUERY, return_std=True)
    assert_allclose(draws.mean(1), mean, atol=0.015)
    assert_allclose(draws.std(1), std, atol=0.015)
    assert_array_equal(MODEL.predict(QUERY), mean)
    assert_array_equal(MODEL.sample_y(QUERY, 7, random_state=0), MODEL.sample_y(QUERY, 7, 0))
    m, s = LINE.predict(QUERY, return_std=True)
    by_hand = P @ UNEVEN.atoms + 0.05 * m
    assert_allclose(mean, by_hand, atol=1e-8)
    square = P @ UNEVEN.atoms**2 + 0.05 * (m**2 + s**2)
    assert_allclose(std, np.sqrt(square - by_hand**2), atol=1e-6)


def test_draws_with_new_seeds_leave_the_global_generator_alone():
    state = np.random.get_state()[1:3]  # noqa: NPY002
    MODEL.sample_y(QUERY, 3, random_state=None)
    mixed_draws([0.5, 0.5], [lambda n, seed: np.zeros((1, 1, n))] * 2, 3, None)
    for a, b in zip(state, np.random.get_state()[1:3], strict=True):  # noqa: NPY002
        assert_array_equal(a, b)


def test_wrong_seeds_and_targets_are_named():
    for seed in ("a", -1, 1.5, RNG):
        with pytest.raises(ValueError, match="random_state must be None, an int"):
            MODEL.sample_y(QUERY, 3, random_state=seed)
    with pytest.raises(ValueError, match="y must be numeric, got strings"):
        LINE.log_predictive_density(QUERY, ["a"] * len(QUERY))


def test_moments_have_heavy_tails():
    """Nearly all of the variance comes from atoms that are tens of the usual errors away."""
    parts = [NormalLaw(np.full((1, 1), 20.0), np.full((1, 1), s)) for s in (0.2, 9.0)]
    law = LatticeLaw(MixedLaw(np.array([0.99, 0.01]), parts), Lattice(np.arange(41.0), 1.0))
    P, (mean, std) = law.atom_probabilities()[0], law.moments()
    assert_allclose(mean[0, 0], P @ np.arange(41.0))
    assert_allclose(std[0, 0], np.sqrt(P @ (np.arange(41.0) - mean[0, 0]) ** 2))


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_moments_have_the_unit_of_the_atoms(unit):
    """Their squares would underflow or overflow."""
    mean = np.linspace(2.0, 9.0, 8)[:, None]
    found, expected = (
        LatticeLaw(
            NormalLaw(u * mean, np.full(mean.shape, 0.7 * u)), Lattice(u * UNEVEN.atoms, 0.95)
        )
        for u in (unit, 1.0)
    )
    for moment, of_one in zip(found.moments(), expected.moments(), strict=True):
        assert_allclose(moment / unit, of_one, rtol=1e-9)


def test_what_is_predicted_is_shifted_as_the_mean_of_the_density_is():
    """If means have weights of their own; deviations are those of draws from what is predicted."""
    parts = [NormalLaw(np.full((1, 1), m), np.full((1, 1), s)) for m, s in ((2.2, 0.4), (3.1, 0.8))]
    weights = np.array([0.7, 0.3]), np.array([0.1, 0.9])
    mixed = [MixedLaw(weights[0], parts, v) for v in (None, weights[1])]
    rounded = [LatticeLaw(law, UNEVEN) for law in mixed]
    (mean, std), (point, apart) = ([float(a[0, 0]) for a in law.moments()] for law in rounded)
    assert point - mean == pytest.approx((0.1 * 2.2 + 0.9 * 3.1) - (0.7 * 2.2 + 0.3 * 3.1))
    assert apart == pytest.approx(np.hypot(std, point - mean), rel=1e-4)


@pytest.mark.slow
def test_a_common_value_of_a_continuous_target_is_told():
    """Half of the rainfall is 0: the density has no such peak, and half of its mass holds no 0."""
    rng = np.random.default_rng(0)
    X, is_dry = rng.uniform(-1.0, 1.0, (80, 1)), rng.uniform(size=80) < 0.5
    y = np.where(is_dry, 0.0, np.exp(0.2 * rng.standard_normal(80)))
    model = AutoGaussianProcessRegressor(random_state=0)
    with pytest.warns(UserWarning, match=r"y is 0 in \d\d% of the rows, and continuous otherwise"):
        model.fit(X, y)
    assert room.common_value(X, y) == (0.0, is_dry.mean())
    smooth, copied = y + rng.uniform(size=80), np.append(np.arange(80), np.zeros(40, int))
    for other in (smooth, np.zeros(80), np.column_stack([y, y])):
        assert room.common_value(X, other)[1] == 0.0
    assert room.common_value(X[copied], smooth[copied])[1] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(("n_ones", "is_told"), [(10, True), (40, False)])
def test_one_value_of_nearly_all_rows_is_told(n_ones, is_told):
    """The density is then that of this value, and others have no probability left."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1.0, 1.0, (80, 1)), (rng.permutation(80) < n_ones).astype(float)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    found = [str(w.message) for w in told if "of the rows. Models are compared" in str(w.message)]
    assert len(found) == is_told
    assert all(text.startswith("y is 0 in 88% of the rows.") for text in found)


@pytest.mark.parametrize("spread", [3.0, 30.0])
def test_ends_of_fine_lattices_limit_moments(spread):
    """Much of the density is below the first of a hundred atoms, which has all of this mass."""
    mean = np.array([[4.0], [97.0]])
    law = LatticeLaw(NormalLaw(mean, np.full((2, 1), spread)), Lattice(np.arange(101.0), 1.0))
    found, P = law.moments(), law.atom_probabilities()
    expected = P @ np.arange(101.0)
    assert_allclose(found[0][:, 0], expected, rtol=1e-9)
    deviation = np.sqrt((P * (np.arange(101.0) - expected[:, None]) ** 2).sum(1))
    assert_allclose(found[1][:, 0], deviation, rtol=1e-9)


def test_ends_of_very_fine_lattices_count_where_they_have_mass(monkeypatch):
    """Others would take thousands of probabilities a row for nothing."""
    mean = np.array([[0.0], [25.0], [50.0]])
    law = LatticeLaw(NormalLaw(mean, np.full((3, 1), 10.0)), Lattice(np.arange(101.0), 1.0))
    every = law.moments()
    monkeypatch.setattr(room, "FEW_ATOMS", 100)
    found = law.moments()
    for a, b, of_density in zip(every, found, law.law.moments(), strict=True):
        assert_array_equal(a[0], b[0])
        assert_array_equal(b[1:], of_density[1:])
        assert_allclose(a[1:], b[1:], rtol=0.01)


def test_fine_lattices_leave_moments_as_they_are():
    fine = Line(Lattice(np.arange(-20.0, 31.0, 0.01), 0.999))
    for a, b in zip(fine.predict(QUERY, True), LINE.predict(QUERY, True), strict=True):
        assert_array_equal(a, b)


def test_densities_and_intervals_stay_those_of_the_density():
    y = np.full(len(QUERY), 5.0)
    assert_array_equal(
        MODEL.log_predictive_density(QUERY, y), LINE.log_predictive_density(QUERY, y)
    )
    assert_array_equal(MODEL.predictive_cdf(QUERY, y), LINE.predictive_cdf(QUERY, y))
    assert_array_equal(MODEL.predict_interval(QUERY, 0.9), LINE.predict_interval(QUERY, 0.9))


def test_the_batch_changes_nothing(monkeypatch):
    whole = MODEL.predict_atoms(QUERY), *MODEL.predict(QUERY, True)
    alone = [(MODEL.predict_atoms(x[None]), *MODEL.predict(x[None], True)) for x in QUERY]
    for a, *parts in zip(whole, *alone, strict=True):
        assert_allclose(np.concatenate(parts), a, rtol=1e-12)
    again = pickle.loads(pickle.dumps(MODEL))
    monkeypatch.setattr(room, "PAIRS_AT_A_TIME", 64)
    for a, b in zip(whole, (again.predict_atoms(QUERY), *again.predict(QUERY, True)), strict=True):
        assert_allclose(a, b, rtol=1e-12)


class Mixture(MixtureRegressor):
    """Of several such models, in equal shares."""

    def __init__(self, models):
        self.models = models

    def _predicted(self, X):
        weights = [1.0 / len(self.models)] * len(self.models)
        return MixedRows(weights, [model._predicted(X) for model in self.models])


def test_models_on_a_lattice_are_parts_of_mixtures():
    alone, both = Mixture([MODEL]), Mixture([MODEL, Line(UNEVEN)])
    for a, b in zip(MODEL.predict(QUERY, True), alone.predict(QUERY, True), strict=True):
        assert_array_equal(a, b)
    assert_allclose(both.predict_std(QUERY), alone.predict_std(QUERY), rtol=1e-9)
    assert_allclose(both.predict_interval(QUERY), LINE.predict_interval(QUERY, 0.95), rtol=1e-6)
    draws = both.sample_y(QUERY, 2000, random_state=0)
    assert_allclose(np.isin(draws, UNEVEN.atoms).mean(), 0.95, atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_atoms_are_those_of_y_in_a_wrapper(sign):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 1))
    y = np.round(3.0 * X[:, 0] + rng.standard_normal(60))
    plain = AutoGaussianProcessRegressor(max_time=1, random_state=0)
    wrapped = TransformedTargetRegressor(
        plain, func=lambda v: sign * v / 4, inverse_func=lambda v: 4 * sign * v
    ).fit(X, y)
    found, inner = predict_distribution(wrapped, X), wrapped.regressor_.predict_distribution(X)
    assert_allclose(found.mean(), wrapped.predict(X))
    assert_allclose(found.pmf(2.0), inner.pmf(sign * 0.5))
    draws = found.sample(200, random_state=0)
    assert_allclose(np.mean(draws == np.round(draws)), found.law.lattice.weight, atol=0.02)

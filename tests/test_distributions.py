"""Predictive distributions: of every family, and under monotone maps of the target."""

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import kstest, lognorm, norm, t, truncnorm
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)

from skgpstoch import (
    ADMMGaussianProcessRegressor,
    AutoGaussianProcessRegressor,
    ConstantVarianceRegressor,
    DeepGPRegressor,
    DeepKernelEnsembleRegressor,
    GaussianProcessRegressor,
    QSGPRegressor,
    QSRVMRegressor,
    SCGDGaussianProcessRegressor,
    SVGPRegressor,
)
from skgpstoch.data.arrays import Scaling
from skgpstoch.data.target_transforms import YeoJohnsonTarget, fitted_transform, quietly
from skgpstoch.estimators.distributions import PredictiveDistribution
from skgpstoch.estimators.distributions.mixed import JoinedLaw, MixedBlocks, MixedLaw
from skgpstoch.estimators.distributions.normal import NormalLaw
from skgpstoch.estimators.distributions.transformed import TRIMMED, kinks_between, transformed
from skgpstoch.estimators.distributions.truncated import TruncatedLaw
from skgpstoch.estimators.posterior_law import PredictedLaw
from skgpstoch.likelihoods import (
    Gaussian,
    Laplace,
    NegativeBinomial,
    Poisson,
    SharedStudentT,
    StudentT,
)
from skgpstoch.likelihoods.real import Noiseless
from skgpstoch.likelihoods.skewed import Skewed
from skgpstoch.maths.gaussian import Marginals
from skgpstoch.maths.quadrature import integrate_between
from skgpstoch.methods.automatic.rounded_targets import Lattice, LatticeLaw
from skgpstoch.methods.automatic.student_mixture import StudentMixture

pytestmark = pytest.mark.usefixtures("one_kernel")

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)
N_LAWS = 50  # of each family, in the slow test: of four rows each, 200 distributions


def posterior(rng, S, n, P):
    mean, var = rng.standard_normal((S, n, P)), rng.uniform(0.02, 1.0, (S, n, P)) ** 2
    return Marginals(torch.from_numpy(mean), torch.from_numpy(var))


def predicted(likelihood, S, rng, n=4, P=1, scaling=None):
    scaling = scaling or Scaling(rng.normal(size=P), rng.uniform(0.1, 10.0, P))
    return PredictedLaw(posterior(rng, S, n, P), likelihood, scaling)


def student(rng, K=2, S=3, n=4, P=1):
    shape = (K, S, n, P)
    df = rng.uniform(3.0, 30.0, (K, 1, 1, P))
    weight = rng.dirichlet(np.ones(K))
    return StudentMixture(weight, rng.standard_normal(shape), rng.uniform(0.05, 2.0, shape), df)


def normal(rng, n=4, P=1):
    return NormalLaw(rng.standard_normal((n, P)), rng.uniform(0.01, 2.0, (n, P)))


def of_outliers(rng):
    likelihood = SharedStudentT(rng.uniform(0.1, 1.0), rng.uniform(2.5, 9.0))
    likelihood.outliers = (0.05, 6.0)
    return likelihood


def skewed(rng):
    symmetric = SharedStudentT(torch.full((1,), rng.uniform(0.1, 1.0)), torch.full((1,), 5.0))
    return Skewed(symmetric.double(), torch.from_numpy(rng.uniform(-0.5, 0.5, 1)))


def input_noise(rng):
    ratio = torch.from_numpy(rng.uniform(0.2, 3.0, (2, 4, 1)))
    return Gaussian(rng.uniform(0.01, 1.0)).scaled(ratio)


LAWS = {
    "normal": normal,
    "gaussian": lambda rng: predicted(Gaussian(rng.uniform(0.01, 1.0)), 1, rng),
    "deep": lambda rng: predicted(Gaussian(rng.uniform(0.01, 1.0)), 5, rng),
    "latent": lambda rng: predicted(Noiseless(), 3, rng),
    "noise by input": lambda rng: predicted(input_noise(rng), 2, rng),
    "laplace": lambda rng: predicted(Laplace(rng.uniform(0.1, 1.0)), 2, rng),
    "student": lambda rng: predicted(
        StudentT(rng.uniform(0.1, 1.0), rng.uniform(2.5, 9.0)), 2, rng
    ),
    "shared student": lambda rng: predicted(SharedStudentT(0.5, rng.uniform(2.5, 9.0)), 1, rng),
    "outliers": lambda rng: predicted(of_outliers(rng), 3, rng),
    "skewed": lambda rng: predicted(skewed(rng), 3, rng),
    "process": student,
    "one process": lambda rng: student(rng, 1, 1),
    "mixture": lambda rng: MixedLaw(np.array([0.3, 0.7]), [student(rng), normal(rng)]),
}
POSITIVE = np.random.default_rng(0).gamma(2.0, size=(300, 1)) + 0.05
MAPS = {
    "log": FunctionTransformer(np.log, np.exp),
    "decreasing": FunctionTransformer(lambda y: -np.log(y), lambda z: np.exp(-z)),
    "arcsinh": FunctionTransformer(np.arcsinh, np.sinh),
    "standard": StandardScaler().fit(5.0 * POSITIVE + 3.0),
    "range": MinMaxScaler().fit(POSITIVE),
    "yeo-johnson": PowerTransformer().fit(POSITIVE),
    "bounded": PowerTransformer().fit(1.0 / POSITIVE**2),
    "box-cox": PowerTransformer("box-cox").fit(POSITIVE),
}


def of_moderate_size(name, rng):
    """A law whose exponential is no astronomical number."""
    law = LAWS[name](rng)
    if isinstance(law, PredictedLaw):
        return replace(law, y_scaling=Scaling(np.zeros(1), np.full(1, 0.5)))
    return law


def by_tails(law):
    """Rows of a transformed law whose moments are of all of y, and rows that are limited."""
    is_light = np.broadcast_to(law.law.has_light_tails, law.shape)[:, 0] | law.map.is_affine
    for rows, least in ((is_light, 1e-12), (~is_light, TRIMMED)):
        if rows.any():
            yield law.of(np.flatnonzero(rows)), least


def pieces(distribution, y, least):
    """Ends of intervals, (n, K), that hold nearly all probability: quantiles, and y."""
    levels = np.concatenate([np.geomspace(least, 0.02, 60), np.linspace(0.02, 0.5, 40)[1:]])
    levels = np.concatenate([levels, 1.0 - levels[:-1][::-1]])
    ends = distribution.ppf(np.broadcast_to(levels, (len(distribution), len(levels))))
    return np.sort(np.column_stack([ends, y]), axis=1)


def integral(function, ends):
    """By Gauss and Legendre's rule on each interval, (n,)."""
    low, high = ends[:, :-1, None], ends[:, 1:, None]
    at = 0.5 * (low + high) + 0.5 * (high - low) * NODES
    values = function(at.reshape(len(ends), -1)).reshape(at.shape)
    return (0.5 * (high - low) * values * WEIGHTS).sum((1, 2))


def check_law(law, rng, least=1e-12, rtol=1e-6):
    """Density, distribution function, quantiles, moments and score agree."""
    distribution = PredictiveDistribution(law)
    q = rng.uniform(1e-4, 1.0 - 1e-4, (len(distribution), 5))
    y = distribution.ppf(q)
    assert_allclose(distribution.cdf(y), q, rtol=1e-8, atol=1e-10)
    assert_allclose(distribution.cdf(y) + distribution.sf(y), 1.0, rtol=1e-12)
    unit = distribution.ppf(0.84) - distribution.ppf(0.16)
    again = distribution.ppf(distribution.cdf(y))
    assert_allclose((again - y) / unit[:, None], 0.0, atol=1e-6)
    at = distribution.ppf(rng.uniform(0.002, 0.998, len(distribution)))
    ends = pieces(distribution, at, least)
    inside = distribution.cdf(ends[:, -1]) - distribution.cdf(ends[:, 0])
    assert_allclose(integral(distribution.pdf, ends), inside, atol=rtol)
    score = integral(lambda t: (distribution.cdf(t) - (t >= at[:, None])) ** 2, ends)
    assert_allclose((distribution.crps(at) - score) / unit, 0.0, atol=3.0 * rtol)
    return distribution, ends


@pytest.mark.parametrize("name", LAWS)
@slow_cases("^student", "skewed")
def test_density_quantiles_and_score_of_a_family_agree(name):
    rng = np.random.default_rng(0)
    distribution, _ = check_law(LAWS[name](rng), rng)
    draws = distribution.sample(20_000, random_state=0)
    mean, std = distribution.mean(), distribution.std()
    assert_allclose((draws.mean(-1) - mean) / std, 0.0, atol=6.0 / np.sqrt(20_000))
    below = (draws <= distribution.ppf(0.9)[:, None]).mean(-1)
    assert_allclose(below, 0.9, atol=0.015)


@pytest.mark.parametrize(
    ("name", "map_name"),
    [
        *((name, map_name) for name in ("normal", "deep") for map_name in MAPS),
        *(("skewed", "log"), ("process", "arcsinh"), ("process", "bounded")),
    ],
)
@slow_cases("deep-(log|dec)", "skewed", "process-bounded", "deep-(bounded|box|yeo|standard|range)")
def test_maps_of_targets_agree(name, map_name):
    rng = np.random.default_rng(1)
    law = transformed(of_moderate_size(name, rng), MAPS[map_name])
    for some, least in by_tails(law):
        distribution, ends = check_law(some, rng, least)
        if least < TRIMMED:
            mean = ends[:, 0] + integral(distribution.sf, ends)
            assert_allclose((distribution.mean() - mean) / distribution.std(), 0.0, atol=3e-6)
    if map_name == "decreasing":
        assert (law.map.sign < 0.0).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_two_hundred_distributions_of_a_family_agree(name):
    rng = np.random.default_rng(2)
    for _ in range(N_LAWS):
        check_law(LAWS[name](rng), rng)


@pytest.mark.slow
@pytest.mark.parametrize("map_name", MAPS)
def test_two_hundred_distributions_agree_under_a_map(map_name):
    rng = np.random.default_rng(3)
    for i in range(N_LAWS):
        law = transformed(of_moderate_size(list(LAWS)[i % len(LAWS)], rng), MAPS[map_name])
        for some, least in by_tails(law):
            check_law(some, rng, least)


# ---- counts and lattices -----------------------------------------------------------------------


def counts(rng, mean, std, S=1, n=3):
    q = Marginals(*(torch.full((S, n, 1), a, dtype=torch.float64) for a in (mean, std**2)))
    q = q._replace(mean=q.mean + 0.3 * torch.from_numpy(rng.standard_normal((S, n, 1))))
    exposure = torch.from_numpy(rng.uniform(0.5, 2.0, (n, 1)))
    return PredictedLaw(q, Poisson().given(exposure), Scaling.identity(1))


@pytest.mark.parametrize(
    ("mean", "std"), [(-3.0, 0.5), (0.0, 0.1), (2.0, 1.0), (5.0, 0.01), (6.5, 0.1), (7.4, 0.02)]
)
@pytest.mark.parametrize("S", [1, 2])
@slow_cases(r"1-2\.0", r"2-5\.0", "^2-(2|7)", "^1-6", "2-6.5")
def test_counts_agree(mean, std, S):
    rng = np.random.default_rng(0)
    distribution = PredictiveDistribution(counts(rng, mean, std, S))
    top = distribution.ppf(1.0 - 1e-12).max()
    every = np.arange(min(top, 5_000.0) + 1.0)[None]
    below = distribution.cdf(every)
    assert_allclose(np.diff(below, prepend=0.0), distribution.pmf(every), atol=1e-9)
    assert_allclose(below[:, -1], 1.0, atol=1e-8)
    y = distribution.ppf(rng.uniform(0.01, 0.99, 3))
    assert_array_equal(distribution.ppf(distribution.cdf(y) - 1e-9), y)
    score = ((below - (every >= y[:, None])) ** 2).sum(1)
    assert_allclose(distribution.crps(y), score, rtol=1e-6, atol=1e-8)
    assert_allclose((every * distribution.pmf(every)).sum(1), distribution.mean(), rtol=1e-5)
    draws = distribution.sample(4000, random_state=0)
    z = (draws.mean(1) - distribution.mean()) / distribution.std() * np.sqrt(4000)
    assert (np.abs(z) < 5.0).all()


@pytest.mark.slow
def test_scores_of_large_mixtures_compute_few_numbers_at_a_time(monkeypatch):
    """Of 240 rows of a deep process they took 2 GB."""
    sizes, sf = [], PredictedLaw.sf

    def counted(law, y):
        sizes.append(law.q.mean.numel())
        return sf(law, y)

    monkeypatch.setattr(PredictedLaw, "sf", counted)
    law = predicted(StudentT(1.0, 4.0), 100, np.random.default_rng(0))
    assert np.isfinite(law.crps(np.zeros((4, 1)))).all()
    assert max(sizes) <= 2**14


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(2.0)], ids=repr)
def test_the_crps_of_mixed_counts_is_a_sum(likelihood):
    """Where some components are narrower than the counts given f, and some are wider."""
    rng = np.random.default_rng(0)
    mean = torch.from_numpy(np.log(0.5) + 0.3 * rng.standard_normal((16, 3, 1)))
    law = PredictedLaw(Marginals(mean, torch.full_like(mean, 0.2)), likelihood, Scaling.identity(1))
    distribution = PredictiveDistribution(law)
    k = np.arange(300.0)
    F = distribution.cdf(np.broadcast_to(k, (3, 300)))
    y = np.array([0.0, 2.0, 9.0])
    assert F[:, -1].min() > 1.0 - 1e-9
    assert_allclose(distribution.crps(y), np.square(F - (k >= y[:, None])).sum(1), atol=1e-7)


def test_counts_have_probabilities_and_no_density():
    distribution = PredictiveDistribution(counts(np.random.default_rng(0), 1.0, 0.1))
    assert hasattr(distribution, "pmf")
    assert not hasattr(distribution, "pdf")
    assert_array_equal(distribution.logpmf([-1.0, 0.5, np.inf]), -np.inf)
    assert_array_equal(distribution.ppf(0.0), 0.0)
    assert_array_equal(distribution.ppf(1.0), np.inf)
    far = PredictiveDistribution(counts(np.random.default_rng(0), -3.0, 0.1))
    assert np.isfinite(far.logpmf(300.0)).all()
    assert (far.logpmf(300.0) < -700.0).all()  # of which the exponential is 0


def test_a_lattice_has_atoms_and_a_density():
    law, lattice = normal(np.random.default_rng(0)), Lattice(np.arange(-60.0, 61.0) / 10.0, 0.9)
    distribution = PredictiveDistribution(LatticeLaw(law, lattice))
    atoms = distribution.pmf(lattice.atoms[None])
    assert_allclose(atoms.sum(1), 0.9, atol=1e-6)
    assert_array_equal(distribution.logpmf(0.123), -np.inf)
    assert_allclose(distribution.pdf(0.1), norm.pdf(0.1, law.mean_[:, 0], law.std[:, 0]))
    draws = distribution.sample(20_000, random_state=0)
    assert_allclose(draws.mean(1), distribution.mean(), atol=0.06)
    assert_allclose(draws.std(1), distribution.std(), rtol=0.03)


def test_atoms_between_narrow_distributions_have_their_cells_mass():
    """Far out the density at an atom says nothing of its cell, whose mass is at its nearer end."""
    mean, lattice = np.linspace(-0.4, 1.4, 37)[:, None], Lattice(np.arange(-1.0, 3.0), 0.9)
    law = LatticeLaw(NormalLaw(mean, np.full(mean.shape, 0.05)), lattice)
    for atom in (0.0, 1.0):
        low, high = (atom - 0.5 - mean) / 0.05, (atom + 0.5 - mean) / 0.05
        far, near = np.where(low > 0.0, -high, low), np.where(low > 0.0, -low, high)
        expected = logsumexp([norm.logcdf(near), norm.logcdf(far)], axis=0, b=[[[0.9]], [[-0.9]]])
        assert_allclose(law.log_probability(np.full(mean.shape, atom)), expected, rtol=1e-9)


def test_densities_under_a_map_with_kinks():
    """Between two knots of a piecewise linear map the density is that of z times a constant."""
    y = np.random.default_rng(0).lognormal(size=(300, 1))
    knots = QuantileTransformer(n_quantiles=300, output_distribution="normal").fit(y)
    law = transformed(NormalLaw(np.array([[0.3]]), np.array([[0.6]])), knots)
    distribution, ends = PredictiveDistribution(law), knots.quantiles_[5:-5, 0]
    at = ends[:-1] + np.array([[0.1], [0.3], [0.5], [0.7], [0.9]]) * np.diff(ends)
    z = knots.transform(at.reshape(-1, 1))[:, 0]
    slope = norm.pdf(z) * np.tile(np.diff(ends), 5) * 299.0
    expected = norm.logpdf(z, 0.3, 0.6) - np.log(slope)
    assert_allclose(distribution.logpdf(at.reshape(1, -1))[0], expected, atol=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n_quantiles", [200, 1000])
@slow_cases("1000")
def test_moments_and_scores_under_a_map_with_many_kinks(n_quantiles):
    y = np.random.default_rng(0).lognormal(size=(1000, 1))
    knots = QuantileTransformer(n_quantiles=n_quantiles, output_distribution="normal").fit(y)
    mean, std = np.array([[-1.0], [0.0], [1.2]]), np.array([[0.3], [0.6], [0.4]])
    distribution = PredictiveDistribution(transformed(NormalLaw(mean, std), knots))
    for i, (m, s) in enumerate(zip(mean[:, 0], std[:, 0], strict=True)):
        z = np.linspace(m - 8.0 * s, m + 8.0 * s, 400_001)
        y, weight = knots.inverse_transform(z[:, None])[:, 0], norm.pdf(z, m, s) * (z[1] - z[0])
        unit, row = np.sqrt(weight @ (y - weight @ y) ** 2), distribution[i : i + 1]
        assert_allclose(row.mean(), weight @ y, atol=1e-6 * unit)
        assert_allclose(row.std(), unit, rtol=1e-6)
        between = weight @ ((2.0 * norm.cdf(z, m, s) - 1.0) * y)  # ½·E|Y − Y′|
        score = weight @ np.abs(y - y[180_000]) - between
        assert_allclose(row.crps(y[180_000]), score, atol=1e-6 * unit)


@pytest.mark.parametrize("unit", [1e-2, 1.0])
def test_kinks_are_found_where_they_are(unit):
    knots = np.sort(np.random.default_rng(0).uniform(-3.0, 3.0, 50))
    slopes = 1.0 + 0.02 * (np.arange(51) % 2)

    def g(z):
        jumps = np.maximum(z[..., None] - knots, 0.0) @ np.diff(slopes)
        return slopes[0] * z + jumps + np.exp(0.1 * z)

    assert_allclose(kinks_between(g, -5.0, 7.0, unit), knots, rtol=0.0, atol=2e-8 * unit)
    assert not len(kinks_between(np.exp, -30.0, 30.0, unit))
    assert_allclose(kinks_between(np.sinh, -5.0, 7.0, unit), [])


# ---- closed forms, shapes, and what is asked wrongly -------------------------------------------


def test_closed_forms_are_scipys():
    rng = np.random.default_rng(0)
    law = normal(rng)
    (mean, std), y = (a[:, 0] for a in law.moments()), rng.standard_normal(4)
    distribution, expected = PredictiveDistribution(law), norm(mean, std)
    assert_allclose(distribution.logpdf(y), expected.logpdf(y))
    assert_allclose(distribution.interval(0.8), expected.interval(0.8))
    logs = PredictiveDistribution(transformed(law, MAPS["log"]))
    expected = lognorm(std, scale=np.exp(mean))
    assert_allclose(logs.pdf(np.exp(y)), expected.pdf(np.exp(y)), rtol=1e-9)
    assert_allclose(logs.mean(), expected.mean(), rtol=1e-9)
    assert_allclose(logs.std(), expected.std(), rtol=1e-7)
    one = student(rng, 1, 1)
    expected = t(one.df[0, 0, 0, 0], one.centre[0, 0, :, 0], one.scale[0, 0, :, 0])
    assert_allclose(PredictiveDistribution(one).sf(50.0), expected.sf(50.0))


@pytest.mark.parametrize("name", LAWS)
def test_far_tails_are_finite(name):
    distribution = PredictiveDistribution(LAWS[name](np.random.default_rng(0)))
    far = np.array([[-1e6, -1e3, 1e3, 1e6]])
    assert np.isfinite(distribution.logpdf(far)).all()
    assert np.isfinite(distribution.crps(far)).all()
    assert_allclose(distribution.crps(1e6), 1e6, rtol=1e-3)
    assert ((distribution.cdf(far) >= 0.0) & (distribution.cdf(far) <= 1.0)).all()


@pytest.mark.parametrize("name", ["normal", "process", "mixture"])
def test_rows_grids_and_outputs(name):
    rng = np.random.default_rng(0)
    makers = {"normal": normal, "process": lambda rng, **k: student(rng, **k)}
    if name == "mixture":
        law = MixedLaw(np.array([0.5, 0.5]), [student(rng, n=7, P=2), normal(rng, n=7, P=2)])
    else:
        law = makers[name](rng, n=7, P=2)
    distribution = PredictiveDistribution(law, (2,))
    assert repr(distribution) == "PredictiveDistribution(n_samples=7, n_outputs=2)"
    assert distribution.shape == distribution.mean().shape == distribution.cdf(0.0).shape == (7, 2)
    grid = rng.standard_normal((7, 3, 2))
    same = {"rtol": 1e-14}  # some processors round blocks of another length otherwise
    assert_allclose(distribution.cdf(grid)[:, 1], distribution.cdf(grid[:, 1]), **same)
    assert distribution.pdf(grid[:1]).shape == (7, 3, 2)
    assert distribution.sample(5, 0).shape == (7, 2, 5)
    assert distribution.joint_logpdf(grid[:, 0]).shape == (7,)
    some = distribution[[5, 2, 2]]
    assert_allclose(some.cdf(grid[[5, 2, 2]]), distribution.cdf(grid)[[5, 2, 2]], **same)
    mask = np.arange(7) > 4
    assert len(distribution[mask]) == len(distribution[-2:]) == 2
    assert len(distribution[-1]) == 1
    again = pickle.loads(pickle.dumps(distribution))
    assert_array_equal(again.crps(grid[:, 0]), distribution.crps(grid[:, 0]))
    assert_allclose(some.crps(grid[[5, 2, 2], 0]), distribution.crps(grid[:, 0])[[5, 2, 2]])


def test_outputs_that_share_a_mixture_are_not_independent():
    law = student(np.random.default_rng(0), P=2)
    distribution = PredictiveDistribution(law, (2,))
    y = law.moments()[0]
    apart = distribution.joint_logpdf(y) - distribution.logpdf(y).sum(1)
    assert (np.abs(apart) > 1e-3).any()
    assert_allclose(distribution.joint_logpdf(y), law.joint_log_density(y))


@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_as_many_values_as_outputs_are_not_taken_for_one_each(shape):
    law = normal(np.random.default_rng(0), P=3)
    distribution = PredictiveDistribution(law, (3,))
    with pytest.raises(ValueError, match=r"q must have the shape .* \(1, m, 3\)"):
        distribution.ppf(np.full(shape, 0.5))
    for given in (0.5, [[0.5]], np.full((4, 3), 0.5), np.full((1, 1, 3), 0.5)):
        assert_array_equal(distribution.ppf(given).reshape(4, 3), distribution.ppf(0.5))


def test_wrong_numbers_are_named():
    distribution = PredictiveDistribution(normal(np.random.default_rng(0)))
    with pytest.raises(ValueError, match=r"y must have the shape \(4,\)"):
        distribution.cdf(np.zeros(3))
    with pytest.raises(ValueError, match="y must not contain NaN"):
        distribution.crps(np.full(4, np.nan))
    with pytest.raises(ValueError, match="q must be probabilities"):
        distribution.ppf(1.5)
    for coverage in (0.0, "0.9", [0.5, 0.9]):
        with pytest.raises(ValueError, match="coverage must be a number between 0 and 1, got"):
            distribution.interval(coverage)
    with pytest.raises(ValueError, match="coverage must be at most 1 - 1e-15, got"):
        distribution.interval(1.0 - 1e-16)
    for n_samples in ((6, 3), 1.5, -1):
        with pytest.raises(ValueError, match="n_samples must be an integer of at least 1, got"):
            distribution.rvs(n_samples)
    for y in ("a", 1j, object()):
        with pytest.raises(ValueError, match="y must be numbers, got"):
            distribution.cdf(y)
    days = np.datetime64("2020-01-01") + np.arange(4)
    for method in (distribution.cdf, distribution.logpdf, distribution.crps):
        for y in (days, days - days[0]):
            with pytest.raises(ValueError, match="y must be numbers, got"):
                method(y)
        with pytest.raises(ValueError, match="y has an integer beyond"):
            method([10**400] * 4)
    assert distribution.ppf([[]]).shape == distribution.crps(np.ones((4, 0))).shape == (4, 0)
    two = PredictiveDistribution(normal(np.random.default_rng(0), P=2), (2,))
    with pytest.raises(
        ValueError, match=r"\(4, m, 2\) \(m values for each row\) or \(1, m, 2\) \(the same"
    ):
        two.ppf([[0.1, 0.5, 0.9]])
    with pytest.raises(IndexError):
        distribution[4]
    assert not hasattr(distribution, "pmf")


def test_nothing_is_dense_at_infinity():
    """Student-t distributions said NaN."""
    X = np.linspace(-1.0, 1.0, 20)[:, None]
    model = SVGPRegressor(n_inducing=5, max_iter=2, likelihood="student_t", random_state=0)
    distribution = model.fit(X, X[:, 0] ** 2).predict_distribution(X[:2])
    assert_array_equal(distribution.pdf([[-np.inf, np.inf]]), np.zeros((2, 2)))
    assert (distribution.pdf(0.5) > 0.0).all()


@pytest.mark.parametrize("name", ["normal", "gaussian", "deep", "laplace", "student", "mixture"])
def test_scores_far_away_are_distances(name):
    distribution = PredictiveDistribution(LAWS[name](np.random.default_rng(0)))
    near, far = distribution.crps(1e10), distribution.crps(1e12)
    assert_allclose(far - near, 1e12 - 1e10, rtol=1e-12)
    for y in (1e30, -1e30, 1e308, -1e308):
        assert_allclose(distribution.crps(y), abs(y))
    assert_array_equal(distribution.crps([[-np.inf, np.inf]]), np.inf)


@pytest.mark.parametrize("name", ["log", "decreasing", "standard", "arcsinh"])
def test_ends_of_targets_are_those_of_their_map(name):
    law = normal(np.random.default_rng(0))
    ends = PredictiveDistribution(transformed(law, MAPS[name])).ppf([[0.0, 1.0]])
    least = 0.0 if name in ("log", "decreasing") else -np.inf
    assert_array_equal(ends, [[least, np.inf]] * 4)


@pytest.mark.parametrize("name", ["gaussian", "latent"])
def test_far_tails_are_those_of_a_normal(name):
    law = LAWS[name](np.random.default_rng(0))
    if len(law.q.mean) > 1:
        law = replace(law, q=Marginals(*(part[:1] for part in law.q)))
    distribution = PredictiveDistribution(law)
    mean, std = distribution.mean(), distribution.std()
    for z in (9.0, 20.0):
        assert_allclose(distribution.sf(mean + z * std), norm.sf(z), rtol=1e-6)
        assert_allclose(distribution.cdf(mean - z * std), norm.sf(z), rtol=1e-6)


def test_quantiles_of_probabilities_of_counts_are_these_counts():
    rng = np.random.default_rng(0)
    for mean in (0.3, 5.0):
        distribution = PredictiveDistribution(counts(rng, mean, 0.2))
        every = np.repeat(np.arange(30.0)[None], 3, 0)
        below = distribution.cdf(every)
        assert ((below >= 0.0) & (below <= 1.0)).all()
        found = distribution.ppf(below)
        is_resolved = (below > 1e-10) & (below < 1.0 - 1e-10)
        assert_array_equal(found[is_resolved], every[is_resolved])


def test_a_point_is_a_step():
    distribution = PredictiveDistribution(NormalLaw(np.zeros((2, 1)), np.zeros((2, 1))))
    assert_array_equal(distribution.cdf([[-1.0, 0.0, 1.0]]), [[0.0, 1.0, 1.0]] * 2)
    assert_array_equal(distribution.crps([2.0, -3.0]), [2.0, 3.0])
    assert_array_equal(distribution.joint_logpdf([1.0, 0.0]), [-np.inf, np.inf])


# ---- estimators --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (60, 2))
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(60)


QUICK = {"n_inducing": 10, "max_iter": 2, "random_state": 0}
MODELS = {
    "sparse": lambda: SVGPRegressor(**QUICK),
    "noise by input": lambda: SVGPRegressor(noise="input", **QUICK),
    "student": lambda: SVGPRegressor(likelihood="student_t", **QUICK),
    "deep": lambda: DeepGPRegressor(**QUICK),
    "networks": lambda: DeepKernelEnsembleRegressor(max_iter=2, n_estimators=2, random_state=0),
    "drop-in": lambda: GaussianProcessRegressor(alpha=0.01),
    "constant": lambda: ConstantVarianceRegressor(GaussianProcessRegressor(alpha=0.01), cv=2),
    "default": lambda: AutoGaussianProcessRegressor(random_state=0),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
@slow_cases("networks", "default", "noise by input")
def test_other_predictions_are_views(name, table):
    X, y = table
    model = MODELS[name]().fit(X, y)
    distribution = model.predict_distribution(X)
    assert_allclose(distribution.mean(), model.predict(X), rtol=1e-10, atol=1e-12)
    known = model._known_noise() if name == "drop-in" else 0.0  # which scikit-learn leaves out
    assert_allclose(distribution.std(), np.sqrt(model.predict_std(X) ** 2 + known), rtol=1e-10)
    interval = np.stack(distribution.interval(0.9), 1)
    assert_allclose(interval, model.predict_interval(X, 0.9), rtol=1e-10, atol=1e-12)
    assert_allclose(distribution.joint_logpdf(y), model.log_predictive_density(X, y), rtol=1e-10)
    assert_allclose(distribution.logpdf(y), model.log_predictive_density(X, y), rtol=1e-10)
    assert_allclose(distribution.cdf(y), model.predictive_cdf(X, y), rtol=1e-10)
    check_law(distribution[:3].law, np.random.default_rng(0))


@pytest.mark.slow
def test_blocks_of_rows_are_the_whole(table, monkeypatch):
    X, y = table
    model = SVGPRegressor(likelihood="laplace", noise="input", **QUICK).fit(X, y)
    whole = model.predict_distribution(X)
    monkeypatch.setattr(type(model.posterior_), "block_rows", 7)
    parts = model.predict_distribution(X)
    assert_allclose(parts.logpdf(y), whole.logpdf(y), rtol=1e-12)
    assert_allclose(parts[::-1].ppf(0.2), whole.ppf(0.2)[::-1], rtol=1e-9)


def test_latent_functions_and_known_errors(table):
    X, y = table
    model = SVGPRegressor(**QUICK).fit(X, y)
    latent = model.predict_distribution(X, latent=True)
    assert_allclose(latent.std(), model.predict_std(X, latent=True))
    known = model.predict_distribution(X, y_std=0.5)
    assert_allclose(known[5:9].std(), model.predict_std(X, y_std=0.5)[5:9])
    assert_allclose(known[5:9].crps(0.0), known.crps(0.0)[5:9])


# ---- target_transform --------------------------------------------------------------------------
def test_threads_leave_the_filters_of_warnings_as_they_were():
    """Those of the first thread stayed when the second one ended: all later warnings were lost."""
    before, threads = list(warnings.filters), [quietly(), quietly()]
    for thread in threads:
        thread.__enter__()
    for thread in threads:
        thread.__exit__(None, None, None)
    assert warnings.filters == before


TRANSFORMED = {
    "cross-validated": ADMMGaussianProcessRegressor(max_iter=2, random_state=0),
    "basis": QSGPRegressor(n_components=30, n_subset=30, max_iter=2, random_state=0),
    "relevant": QSRVMRegressor(n_subset=30, max_iter=5, random_state=0),
    "one variance": ConstantVarianceRegressor(Ridge(), cv=3),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("transform", ["log", "yeo-johnson", PowerTransformer()])
@pytest.mark.parametrize("name", TRANSFORMED)
@slow_cases("cross-validated-(log|trans)", "(basis|relevant)-(yeo|log)", "cross-validated")
def test_densities_of_transformed_targets(name, transform, table):
    X, y = table[0][:60], np.exp(table[1][:60])
    model = clone(TRANSFORMED[name]).set_params(target_transform=transform).fit(X, y)
    check_law(model.predict_distribution(X[:4]).law, np.random.default_rng(0))


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["log", "yeo-johnson"])
@pytest.mark.parametrize("unit", [1e-200, 1e160])
def test_moments_of_transformed_targets_in_any_unit(unit, transform, table):
    """Squares of y are no numbers: deviations were 0, or infinite."""
    X, y = table[0][:60], np.exp(0.3 * table[1][:60])
    model = SVGPRegressor(**QUICK, target_transform=transform)
    mean, std = clone(model).fit(X, y).predict(X[:4], return_std=True)
    found = clone(model).fit(X, unit * y).predict(X[:4], return_std=True)
    assert_allclose(np.divide(found, unit), [mean, std], rtol=1e-4)


def test_no_rows_of_transformed_targets(table):
    model = SVGPRegressor(**QUICK, target_transform="log").fit(table[0], np.exp(table[1]))
    none = model.predict_distribution(table[0])[5:2]
    assert none.mean().shape == none.std().shape == none.crps(np.empty(0)).shape == (0,)


def test_small_differences_of_large_targets_are_not_transformed(table):
    model = SVGPRegressor(**QUICK, target_transform="yeo-johnson")
    with pytest.raises(ValueError, match="y must have a spread of at least 1e-09 times its size"):
        model.fit(table[0], 1e12 + table[1])


# ---- target_transform of the default -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["log", "yeo-johnson"])
@by_default("yeo-johnson")
def test_the_default_predicts_what_it_was_given(transform, table):
    X, y = table
    X, y, rows = X[:40], np.exp(2.0 * y[:40]), slice(0, 3)
    model = AutoGaussianProcessRegressor(target_transform=transform, random_state=0).fit(X, y)
    distribution = model.predict_distribution(X[rows])
    check_law(distribution.law, np.random.default_rng(0), TRIMMED)
    assert_allclose(model.predict(X[rows]), distribution.mean())
    assert_allclose(model.predict_interval(X[rows]), np.stack(distribution.interval(), 1))
    density = model.log_predictive_density(X, y)
    assert_allclose(density[rows], distribution.logpdf(y[rows]))
    assert_allclose(model.predictive_cdf(X, y)[rows], distribution.cdf(y[rows]))
    assert model.sample_y(X[rows], 2).shape == (3, 2)
    assert model.score(X, y) > 0.9
    assert abs(model.scores_["score"][0] - density.mean()) < 1.5  # of rows left out, and of all
    transformer, encoded = model.target_transformer_, model._query(X)
    z = transformer.transform(y[:, None])[:, 0]
    h = 1e-5 * y
    slope = np.log((transformer.transform((y + h)[:, None])[:, 0] - z) / h)
    of_z = model._mixed(encoded).log_density(z)
    assert_allclose(density, of_z + slope, atol=1e-3)


def test_logarithms_of_what_has_none(table):
    X, y = table
    model = AutoGaussianProcessRegressor(target_transform="log")
    with pytest.raises(ValueError, match="y must be positive for target_transform='log', got"):
        model.fit(X, y)
    with pytest.raises(ValueError, match="target_transform must be None where target='count'"):
        model.set_params(target="count").fit(X, np.floor(np.abs(y)))
    with pytest.raises(ValueError, match="target_transform"):
        AutoGaussianProcessRegressor(target_transform="exp").fit(X, y)


@pytest.mark.parametrize("transform", ["yeo-johnson", PowerTransformer("box-cox")])
def test_neither_order_nor_copies_change_a_transformation(transform):
    rng = np.random.default_rng(0)
    y, weight = rng.gamma(2.0, size=(50, 1)), rng.integers(0, 3, 50)
    mixed = rng.permutation(np.repeat(y, weight, axis=0))
    one, other = fitted_transform(transform, y, weight), fitted_transform(transform, mixed, None)
    assert_array_equal(one.transform(y), other.transform(y))


def test_powers_do_not_see_units_or_how_rows_are_repeated():
    rng = np.random.default_rng(0)
    y, weight = rng.gamma(2.0, size=(50, 1)), rng.integers(0, 3, 50)
    one = YeoJohnsonTarget().fit(y, weight.astype(float))
    twice = YeoJohnsonTarget().fit(np.repeat(y, weight, axis=0))
    assert_allclose(one.powers_, twice.powers_, atol=1e-6)
    scaled = YeoJohnsonTarget().fit(1000.0 * y - 7.0, weight.astype(float))
    assert_allclose(scaled.transform(1000.0 * y - 7.0), one.transform(y), atol=1e-5)
    assert_allclose(one.inverse_transform(one.transform(y)), y)
    assert np.isfinite(one.inverse_transform(np.array([[-50.0], [50.0]]))).all()


@pytest.mark.filterwarnings("error")
def test_moments_of_wide_exponentials():
    """Squares of y come to e^100: what rounding makes of these is not to be integrated."""
    s = np.array([[3.0], [4.0], [5.0], [8.0]])
    law = transformed(NormalLaw(np.zeros((4, 1)), s), MAPS["log"])
    assert_allclose(law.mean(), np.exp(0.5 * s**2), rtol=1e-8)
    mean, std = law.moments()
    assert_allclose(mean, law.mean(), rtol=1e-9)
    assert_allclose(std, np.sqrt(np.expm1(s**2)) * np.exp(0.5 * s**2), rtol=1e-7)


@pytest.mark.filterwarnings("error")
def test_moments_beyond_the_largest_number_are_infinite():
    s = np.array([[15.0], [17.0], [20.0], [30.0], [60.0], [1000.0]])
    distribution = PredictiveDistribution(transformed(NormalLaw(0.0 * s, s), MAPS["log"]))
    mean, std = distribution.mean(), distribution.std()
    assert_allclose(mean, [*np.exp(0.5 * s[:3, 0] ** 2), *[np.inf] * 3], rtol=1e-4)
    assert_allclose(std, [*np.exp(s[:2, 0] ** 2), *[np.inf] * 4], rtol=1e-4)
    assert np.isfinite(distribution.crps(1.0)).all()
    assert_allclose(distribution.median()[:5], 1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("end", [8.0, 12.0, 30.0])
@pytest.mark.parametrize("width", [0.1, np.inf])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@slow_cases(r"-12\.0", "inf-8", "-1.0-inf", "0.1-30")
def test_truncated_tails_keep_their_digits(end, width, sign):
    low, high = np.sort([sign * end, sign * (end + width)])
    expected = truncnorm(low, high)
    normal = NormalLaw(np.zeros((1, 1)), np.ones((1, 1)))
    law = TruncatedLaw.between(normal, np.array([low]), np.array([high]))
    found, y = PredictiveDistribution(law), expected.ppf([[1e-3, 0.1, 0.5, 0.9, 0.999]])
    assert_allclose(found.cdf(y), expected.cdf(y), rtol=1e-10)
    assert_allclose(found.sf(y), expected.sf(y), rtol=1e-10)
    assert_allclose(found.logpdf(y), expected.logpdf(y), rtol=1e-12)
    assert_allclose(found.ppf(expected.cdf(y)), y, rtol=1e-13)
    assert_allclose(found.mean(), expected.mean(), rtol=1e-12)
    assert_allclose(found.std(), expected.std(), rtol=1e-6)
    at = expected.ppf(0.7)
    parts = [
        quad(lambda t: (expected.cdf(t) - (t >= at)) ** 2, *expected.ppf(ends))[0]
        for ends in ((1e-15, 0.7), (0.7, 1.0 - 1e-15))
    ]
    assert_allclose(found.crps(at), sum(parts), rtol=1e-6)


@pytest.mark.parametrize("ends", [(-0.5, 1.0), (3.0, 3.5)])
def test_draws_of_truncated_distributions(ends):
    """Few quantiles are searched for, so that these are quick."""
    normal = NormalLaw(np.zeros((2, 1)), np.ones((2, 1)))
    law = TruncatedLaw.between(normal, *np.array([[ends[0]], [ends[1]]]))
    draws, expected = PredictiveDistribution(law).sample(4000, random_state=0), truncnorm(*ends)
    assert kstest(draws[0], expected.cdf).pvalue > 0.01
    assert not np.array_equal(*draws)
    assert_array_equal(draws, PredictiveDistribution(law).sample(4000, random_state=0))


def test_draws_search_for_few_quantiles(monkeypatch):
    law = TruncatedLaw.between(normal(np.random.default_rng(0)), np.full(1, -3.0), np.full(1, 3.0))
    asked = []
    monkeypatch.setattr(TruncatedLaw, "quantiles", lambda self, q: asked.append(q.size) or q)
    PredictiveDistribution(law).sample(500, random_state=0)
    assert sum(asked) < 0.5 * law.shape[0] * 500


def test_a_truncated_distribution_beyond_all_numbers_is_a_point():
    normal = NormalLaw(np.zeros((1, 1)), np.ones((1, 1)))
    law = TruncatedLaw.between(normal, np.array([40.0]), np.array([50.0]))
    found = PredictiveDistribution(law)
    assert_array_equal(found.cdf([[39.0, 40.0, 45.0]]), [[0.0, 1.0, 1.0]])
    assert_array_equal(found.ppf([[0.0, 0.5, 1.0]]), [[40.0, 40.0, 50.0]])
    assert_array_equal([found.mean(), found.std()], [[40.0], [0.0]])


def test_moments_of_exponentials_that_there_are_not():
    """Laplace tails of z: exp(z) has a variance if they are narrow, and then it is exact."""
    q = Marginals(torch.zeros(1, 3, 1).double(), torch.full((1, 3, 1), 1e-12).double())
    ratio = torch.tensor([[1.0], [10.0], [3.5]]).double()
    law = PredictedLaw(q, Laplace(0.2).scaled(ratio), Scaling.identity(1))
    log = FunctionTransformer(np.log, np.exp)
    distribution = PredictiveDistribution(transformed(law, log))
    assert_array_equal(law.has_light_tails[:, 0], [True, False, False])
    with pytest.warns(UserWarning, match="The mean of y does not exist at some rows.*the median"):
        mean = distribution.mean()
    with pytest.warns(UserWarning, match="The standard deviation of y does not exist"):
        std = distribution.std()
    assert_array_equal(mean, distribution.mean())  # and is told once
    assert_allclose(mean[0], 1.0 / (1.0 - 0.2**2), rtol=1e-6)
    assert_allclose(mean[0] ** 2 + std[0] ** 2, 1.0 / (1.0 - 0.4**2), rtol=1e-5)
    assert_allclose(mean[1:], [distribution.median()[1], 1.0 / (1.0 - 0.7**2)], rtol=1e-4)
    ends = distribution.ppf([[TRIMMED, 1.0 - TRIMMED]])
    assert (std[1:] < (ends[1:, 1] - ends[1:, 0])).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("m", "s"), [(0.0, 1.0), (2.0, 0.3)])
def test_moments_of_powers_of_heavy_tails_are_whole(m, s):
    """E z³ and E z⁶ of a Student-t distributed z, of which none is cut off."""
    nu, shape = 14.0, (1, 1, 1, 1)
    law = StudentMixture(np.ones(1), np.full(shape, m), np.full(shape, s), np.full(shape, nu))
    cube = PredictiveDistribution(transformed(law, FunctionTransformer(np.cbrt, lambda z: z**3)))
    moment = [t(nu, m, s).moment(k) for k in (3, 6)]
    assert_allclose(cube.mean()[0], moment[0], rtol=1e-4, atol=1e-6)
    assert_allclose(cube.std()[0], np.sqrt(moment[1] - moment[0] ** 2), rtol=1e-3)


@pytest.mark.filterwarnings("error")
def test_moments_of_exponentials_of_nearly_normal_tails():
    """Far out the integrals diverge, but where the tails have a probability of 1e-30."""
    nu, s, shape = 40.0, 0.3, (1, 1, 1, 1)
    law = StudentMixture(np.ones(1), np.zeros(shape), np.full(shape, s), np.full(shape, nu))
    found = PredictiveDistribution(transformed(law, FunctionTransformer(np.log, np.exp)))
    z = np.linspace(-5.0, 8.0, 200_001)
    p = t(nu, 0.0, s).pdf(z) * (z[1] - z[0])
    mean, square = p @ np.exp(z), p @ np.exp(2.0 * z)
    assert_allclose(found.mean(), mean, rtol=1e-6)
    assert_allclose(found.std(), np.sqrt(square - mean**2), rtol=1e-5)


@pytest.mark.filterwarnings("error")
def test_moments_do_not_come_from_where_no_probability_is():
    """Tails by quadrature fall in the end, but exp(z) is the largest where they are 1e-60."""
    nu, s = 12.16, 0.5
    q = Marginals(*torch.tensor([[[[0.0]]], [[[1e-4]]]]).double())
    law = PredictedLaw(q, StudentT(s, nu), Scaling.identity(1))
    found = PredictiveDistribution(transformed(law, FunctionTransformer(np.log, np.exp)))
    z = np.linspace(-8.0, 8.0, 200_001)
    p = t(nu, 0.0, s).pdf(z) * (z[1] - z[0])
    mean, square = p @ np.exp(z), p @ np.exp(2.0 * z)
    assert_allclose(found.mean(), mean, rtol=1e-3)
    assert_allclose(found.std(), np.sqrt(square - mean**2), rtol=0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The (mean|standard deviation) of y does not exist")
@pytest.mark.parametrize("name", ["log", "decreasing", "arcsinh", "bounded", "box-cox"])
@slow_cases("decreasing", "arcsinh", "bounded", "box")
def test_a_row_does_not_depend_on_one_that_is_far_away(name):
    """Whose y may exceed float64; heavy tails reach the ends of maps."""
    centre, df = np.array([0.3, -0.5, 2.0, 400.0]), np.full((1, 1, 1, 1), 3.0)
    scale = np.array([0.1, 0.5, 0.2, 300.0])[None, None, :, None]
    law = StudentMixture(np.ones(1), centre[None, None, :, None], scale, df)
    near, both = (
        PredictiveDistribution(transformed(law.of(rows), MAPS[name]))
        for rows in (slice(0, 3), slice(0, 4))
    )
    for method in ("mean", "std", "median"):
        assert_allclose(getattr(near, method)(), getattr(both, method)()[:3], rtol=1e-6)
    assert_allclose(near.crps(0.5), both[:3].crps(0.5), rtol=1e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("n_near", [0, 1, 4])
def test_rows_where_a_map_leaves_the_numbers(n_near, sign):
    """Rows of a sensor's 1e9 among others, or alone."""
    z = np.append(np.linspace(-1.0, 1.0, n_near), sign * 1e9)[:, None]
    found = PredictiveDistribution(transformed(NormalLaw(z, 0.0 * z + 0.5), MAPS["log"]))
    assert_allclose(found.median()[:-1], np.exp(z[:-1, 0]))
    assert_allclose(found.mean()[:-1], np.exp(z[:-1, 0] + 0.125))
    end = np.inf if sign > 0.0 else 0.0
    assert_array_equal([found.median()[-1], found.mean()[-1], found.ppf(0.1)[-1]], end)


def test_means_beyond_the_largest_number_are_told():
    X = np.linspace(-1.0, 1.0, 30)[:, None]
    y = np.exp(X[:, 0])
    model = SCGDGaussianProcessRegressor(target_transform="log", hidden_layer_sizes=(), max_iter=5)
    model.fit(X, y)
    far = [[0.5], [1e5]]
    with pytest.warns(RuntimeWarning, match="mean of y overflows float64 at 1 rows"):
        mean = model.predict(far)
    assert mean[1] == np.finfo(np.float64).max
    assert_allclose(mean[0], model.predict(far[:1])[0])


def test_distributions_of_counts_joined_by_rows_are_of_counts():
    rng = np.random.default_rng(0)
    both = counts(rng, 1.0, 0.3, n=4), counts(rng, 2.0, 0.3, n=2)
    places = np.array([0, 2, 3, 5]), np.array([1, 4])
    law = JoinedLaw(both, places)
    assert law.is_discrete
    assert law.support() == (0.0, np.inf)
    found = PredictiveDistribution(law)
    for part, place in zip(both, places, strict=True):
        alone = PredictiveDistribution(part)
        for name in ("pmf", "logpmf", "cdf", "crps"):
            assert_allclose(getattr(found, name)(2.0)[place], getattr(alone, name)(2.0))
    assert not hasattr(found, "pdf")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The standard deviation of y does not exist")
def test_a_row_does_not_depend_on_others():
    """Not even where the map of some has an end, and that of others none within reach."""
    law = NormalLaw(np.array([[-0.5], [0.3], [2.0]]), np.array([[0.01], [0.1], [0.8]]))
    all_rows = PredictiveDistribution(transformed(law, MAPS["bounded"]))
    for i in range(3):
        alone = PredictiveDistribution(transformed(law.of([i]), MAPS["bounded"]))
        for name in ("mean", "std", "median"):
            both = getattr(alone, name)(), getattr(all_rows, name)()[[i]]
            assert_allclose(*both, rtol=1e-6)
        assert_allclose(alone.crps(0.5), all_rows[i].crps(0.5), rtol=1e-6)
        assert_allclose(alone.logpdf(0.5), all_rows[i].logpdf(0.5), rtol=1e-6)


def test_integrals_without_an_end_are_given_up():
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="did not converge"):
        integrate_between(
            lambda row, t: rng.standard_normal(t.shape), np.array([[0.0], [1.0]]), np.full(1, 1e-12)
        )


def test_integrals_of_steps_and_several_functions():
    def f(row, t):
        return np.stack([np.where(t > 0.3 + row[:, None], 1.0, 0.0), np.exp(t)])

    breaks = np.array([[0.0, 0.0], [2.0, 2.0]])
    found = integrate_between(f, breaks, np.full((2, 2), 1e-10))
    assert_allclose(found, [[1.7, 0.7], [np.expm1(2.0)] * 2], atol=1e-8)


@pytest.mark.parametrize("name", ["skewed", "process", "normal", "counts"])
@slow_cases("normal", "process")
def test_mixtures_of_blocks_are_mixtures_of_laws(name):
    rng = np.random.default_rng(0)
    law = counts(rng, 1.0, 0.3) if name == "counts" else LAWS[name](rng)
    n, K = law.shape[0] // 3, 3
    law = law.of(slice(0, K * n))
    blocks = MixedBlocks(law, K)
    parts = MixedLaw(np.full(K, 1.0 / K), [law.of(slice(k * n, (k + 1) * n)) for k in range(K)])
    y = np.abs(np.rint(rng.standard_normal(parts.shape)))
    for each, other in ((blocks, parts), (blocks.of([0]), parts.of([0]))):
        at = y[: each.shape[0]]
        assert each.shape == other.shape
        assert_allclose(each.moments(), other.moments())
        assert_allclose(each.mean(), other.mean())
        for method in ("cdf", "sf", "log_density", "joint_log_density"):
            assert_allclose(getattr(each, method)(at), getattr(other, method)(at))
        assert_allclose(each.quantile(0.3), other.quantile(0.3))
        p = rng.uniform(size=each.shape)
        assert_allclose(each.quantiles(p), other.quantiles(p))
        assert_array_equal(np.broadcast_to(each.has_light_tails, each.shape), other.has_light_tails)
        assert each.sample(4, np.random.RandomState(0)).shape == (4, *each.shape)
    draws = blocks.sample(20_000, np.random.RandomState(0))
    assert_allclose(draws.mean(0), parts.mean(), atol=0.06 * parts.moments()[1].max())


def test_mixtures_of_counts():
    rng = np.random.default_rng(0)
    parts = [counts(rng, 1.0, 0.3), counts(rng, 3.0, 0.1)]
    distribution = PredictiveDistribution(MixedLaw(np.array([0.4, 0.6]), parts))
    every = np.arange(200.0)[None]
    below = np.cumsum(distribution.pmf(every), 1)
    assert_allclose(distribution.cdf(every), below, atol=1e-8)
    levels = np.array([[0.05, 0.3, 0.5, 0.9]])
    expected = [[np.searchsorted(row, level) for level in levels[0]] for row in below]
    assert_array_equal(distribution.ppf(levels), expected)
    y = np.array([2.0, 15.0, 40.0])
    score = ((below - (every >= y[:, None])) ** 2).sum(1)
    assert_allclose(distribution.crps(y), score, rtol=1e-6)


def test_rows_of_different_laws_have_moments_of_their_own_under_a_map():
    few, other = np.array([[0.0], [1.0]]), np.full((2, 1), 0.2)
    of_two = MixedLaw(np.array([0.4, 0.6]), [NormalLaw(few, other), NormalLaw(few, 2.0 * other)])
    parts, places = [of_two, NormalLaw(few + 5.0, other)], [np.array([3, 0]), np.array([1, 2])]
    log = FunctionTransformer(np.log, np.exp)
    joined = PredictiveDistribution(transformed(JoinedLaw.of_parts(parts, places), log))
    for part, place in zip(parts, places, strict=True):
        alone = PredictiveDistribution(transformed(part, log))
        assert_allclose(joined.mean()[place], alone.mean())
        assert_allclose(joined.crps(np.ones(4))[place], alone.crps(np.ones(2)))


@pytest.mark.slow
def test_single_rows_are_transformed_by_maps_with_many_kinks():
    """Where probed numbers nearly agree, the map's rounding is no fall."""
    rng = np.random.default_rng(0)
    y = np.exp(rng.standard_normal((300, 1)))
    kinks = QuantileTransformer(n_quantiles=300, output_distribution="normal").fit(y)
    for mean in rng.normal(size=(20, 1, 1)):
        law = NormalLaw(mean, np.full((1, 1), 0.3))
        assert np.isfinite(PredictiveDistribution(transformed(law, kinks)).median()).all()

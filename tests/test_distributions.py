"""Predictive distributions: of every family, and under monotone maps of the target."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    PowerTransformer,
    StandardScaler,
)

from skgpstoch.data.arrays import Scaling
from skgpstoch.distributions import PredictiveDistribution
from skgpstoch.distributions.mixed import MixedLaw
from skgpstoch.distributions.normal import NormalLaw
from skgpstoch.distributions.transformed import TRIMMED, transformed
from skgpstoch.ensembles.student_mixture import StudentMixture
from skgpstoch.estimators.predicted import PredictedLaw
from skgpstoch.likelihoods import Gaussian, Laplace, SharedStudentT, StudentT
from skgpstoch.likelihoods.real import Noiseless
from skgpstoch.likelihoods.skewed import Skewed
from skgpstoch.maths.gaussian import Marginals

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)
N_MODELS = 200  # of each family, in the slow test; a few in the default one


def posterior(rng, S, n, P):
    mean, var = rng.standard_normal((S, n, P)), rng.uniform(1e-3, 1.0, (S, n, P)) ** 2
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
def test_density_quantiles_and_score_of_a_family_agree(name):
    rng = np.random.default_rng(0)
    distribution, _ = check_law(LAWS[name](rng), rng)
    draws = distribution.sample(20_000, random_state=0)
    mean, std = distribution.mean(), distribution.std()
    assert_allclose((draws.mean(-1) - mean) / std, 0.0, atol=6.0 / np.sqrt(20_000))
    below = (draws <= distribution.ppf(0.9)[:, None]).mean(-1)
    assert_allclose(below, 0.9, atol=0.015)


@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("name", ["normal", "deep", "skewed", "process"])
def test_maps_of_targets_agree(name, map_name):
    rng = np.random.default_rng(1)
    law = LAWS[name](rng)
    if isinstance(law, PredictedLaw):
        law = replace(law, y_scaling=Scaling(np.zeros(1), np.full(1, 0.5)))
    law = transformed(law, MAPS[map_name])
    is_whole = law.map.is_affine or law.law.has_light_tails
    distribution, ends = check_law(law, rng, 1e-12 if is_whole else TRIMMED)
    mean = ends[:, 0] + integral(distribution.sf, ends)
    assert_allclose((distribution.mean() - mean) / distribution.std(), 0.0, atol=3e-6)
    if map_name == "decreasing":
        assert (law.map.sign < 0.0).all()

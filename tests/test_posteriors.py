"""Posteriors against those that others found, and against the process that made the data.

Reference draws are posteriordb's (Magnusson et al., "posteriordb: testing, benchmarking and
developing Bayesian inference algorithms", AISTATS 2025), "gp_pois_regr-gp_regr" and
"gp_pois_regr-gp_pois_regr": 10,000 draws of Stan's, whose means and deviations are given here.

Simulation-based calibration: of functions that are drawn from the prior, the place that they have
in the posterior is uniform (Talts et al., "Validating Bayesian inference algorithms with
simulation-based calibration", 2018), and so is the rank of the likelihood of the data, which sees
what marginals do not (Modrák et al., Bayesian Analysis 2025).
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skgpstoch import FITCRegressor, GaussianProcessRegressor, SVGPRegressor

# ---- posteriordb -------------------------------------------------------------------------------

X = np.arange(-10.0, 11.0, 2.0)[:, None]
NUMBERS = [4.75906, 1.59423, 2.99548, 5.27501, 1.66472, 2.24347, 2.8914, 4.08681, 4.60588]
NUMBERS = np.array([*NUMBERS, 0.802364, 3.92136])
COUNTS = np.array([40, 37, 29, 12, 4, 3, 9, 19, 77, 82, 33])


def prior_of(rho, alpha):
    """Log density of the length-scale ρ and the deviation α, for volumes of their logarithms."""
    log_p = stats.gamma(25, scale=1 / 4).logpdf(rho) + stats.norm(0, 2).logpdf(alpha)
    return log_p + np.log(rho * alpha)


def weights_of(log_p):
    weight = np.exp(log_p - log_p.max())
    return weight / weight.sum()


def moments(weight, values):
    mean = weight @ values
    return mean, np.sqrt(weight @ (values - mean) ** 2)


def lattice(*ranges, n):
    """All combinations of n numbers of each range, whose logarithms are equally far apart."""
    axes = np.meshgrid(*(np.geomspace(*ends, n) for ends in ranges), indexing="ij")
    return [axis.ravel() for axis in axes]


@pytest.mark.slow
def test_the_posterior_of_hyper_parameters_is_that_of_stan():
    rho, alpha, noise = lattice((2.5, 18.0), (0.3, 9.0), (0.25, 6.0), n=12)
    kernel = ConstantKernel() * RBF() + WhiteKernel()
    model = GaussianProcessRegressor(kernel, optimizer=None).fit(X, NUMBERS)
    thetas = np.log([alpha**2, rho, noise]).T
    evidence = [model.log_marginal_likelihood(theta, clone_kernel=False) for theta in thetas]
    log_p = evidence + prior_of(rho, alpha) + stats.norm(0, 1).logpdf(noise) + np.log(noise)
    found = [moments(weights_of(log_p), values) for values in (rho, alpha, noise)]
    expected = np.array([(6.8743, 1.2657), (2.4424, 0.7818), (1.8287, 0.505)])
    error = (np.array(found) - expected) / expected[:, 1:]
    assert_allclose(error, 0.0, atol=0.04)  # of 10,000 draws, four standard errors


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Counts vary")  # of kernels far from likely, too
def test_the_posterior_of_rates_is_that_of_stan():
    """Although q is Gaussian, and the evidence bounded: within 4 % of a deviation."""
    rho, alpha = lattice((3.5, 8.5), (1.2, 7.0), n=7)
    evidence, means, stds = [], [], []
    for length_scale, deviation in zip(rho, alpha, strict=True):
        kernel = ConstantKernel(deviation**2, "fixed") * RBF(length_scale, "fixed")
        model = SVGPRegressor(
            kernel,
            likelihood="poisson",
            mean="zero",
            inducing_points=X,
            learn_inducing_points=False,
        ).fit(X, COUNTS)
        evidence.append(model.log_marginal_likelihood_value_)
        mean, std = model.predict(X, return_std=True, latent=True)
        means.append(mean)
        stds.append(std)
    weight = weights_of(np.array(evidence) + prior_of(rho, alpha))
    f, f_std = moments(weight, np.array(means))[0], np.array(stds)
    f_std = np.sqrt(weight @ (f_std**2 + (np.array(means) - f) ** 2))
    expected = np.array([3.6357, 3.6886, 3.2547, 2.4092, 1.5615, 1.2953, 1.9312, 3.1796])
    expected = np.array([*expected, 4.2529, 4.4151, 3.5068])
    expected_std = np.array([0.1521, 0.1263, 0.1432, 0.1969, 0.2469, 0.2662, 0.2246, 0.1439])
    expected_std = np.array([*expected_std, 0.0961, 0.0916, 0.1631])
    assert_allclose((f - expected) / expected_std, 0.0, atol=0.04)
    assert_allclose(f_std / expected_std, 1.0, atol=0.04)
    found = [moments(weight, values) for values in (rho, alpha)]
    expected = np.array([(5.6665, 0.679), (2.9213, 0.7928)])
    assert_allclose((np.array(found) - expected) / expected[:, 1:], 0.0, atol=0.04)


# ---- simulation-based calibration --------------------------------------------------------------

ROWS = np.linspace(-2.0, 2.0, 12)[:, None]
NEW = np.array([[-2.5], [0.1], [1.3]])
NOISE = 0.1
KERNEL = ConstantKernel(1.5, "fixed") * RBF(0.7, "fixed")
N_DRAWS = 300


def simulate(rng):
    """f at ROWS and NEW from the prior, and y at ROWS."""
    both = np.concatenate([ROWS, NEW])
    L = np.linalg.cholesky(KERNEL(both) + 1e-9 * np.eye(len(both)))
    f = L @ rng.standard_normal(len(both))
    return f, f[: len(ROWS)] + np.sqrt(NOISE) * rng.standard_normal(len(ROWS))


def sparse(cls, **params):
    kernel = KERNEL + WhiteKernel(NOISE, "fixed")
    fixed = {"mean": "zero", "normalize_y": False, "learn_inducing_points": False}
    return cls(kernel, inducing_points=ROWS, **fixed, **params)


EXACT = {
    "GaussianProcessRegressor": GaussianProcessRegressor(KERNEL, alpha=NOISE, optimizer=None),
    "SVGPRegressor": sparse(SVGPRegressor),
    "FITCRegressor": sparse(FITCRegressor),
}


def latent_moments(model, X):
    """Mean and joint covariance of f."""
    options = {} if isinstance(model, GaussianProcessRegressor) else {"latent": True}
    return model.predict(X, return_cov=True, **options)


def places(model, seed=0):
    """Where draws of the prior are in their posteriors: three values of f, and the likelihood.

    The latter's place is its rank among draws of the posterior, the others' is the posterior's
    distribution function; (n_draws, 4), uniform if posteriors are right. Draws are the outputs of
    one fit, which share the kernel and the noise, but no data.
    """
    rng, found = np.random.default_rng(seed), []
    both, n = np.concatenate([ROWS, NEW]), len(ROWS)
    simulated = [simulate(rng) for _ in range(N_DRAWS)]
    Y = np.stack([y for _, y in simulated], -1)  # (n, n_draws)
    means, covariances = latent_moments(model.fit(ROWS, Y), both)
    for (f, y), mean, cov in zip(simulated, means.T, np.moveaxis(covariances, -1, 0), strict=True):
        std = np.sqrt(cov.diagonal())
        L = np.linalg.cholesky(cov[:n, :n] + 1e-9 * np.eye(n))
        draws = mean[:n] + rng.standard_normal((200, n)) @ L.T
        fit, fits = (-np.sum((y - g) ** 2, -1) for g in (f[:n], draws))
        rank = (np.sum(fits < fit) + rng.uniform()) / 201
        found.append([*stats.norm.cdf((f - mean) / std)[n:], rank])
    return np.array(found)


@pytest.mark.parametrize("name", EXACT)
def test_functions_have_uniform_places_in_exact_posteriors(name):
    for place in places(EXACT[name]).T:
        assert stats.kstest(place, "uniform").pvalue > 1e-3


def test_places_tell_posteriors_that_are_wrong():
    """Of a noise variance that is a quarter or four times the data's."""
    for factor in (0.25, 4.0):
        wrong = GaussianProcessRegressor(KERNEL, alpha=factor * NOISE, optimizer=None)
        values = [stats.kstest(place, "uniform").pvalue for place in places(wrong).T]
        assert min(values) < 1e-6

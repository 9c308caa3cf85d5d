"""Relevance vector machines: few vectors, as good as all rows, and named so that they can be used.

Where the expectation is a stationary point it is written out: MacKay's s_i = γ_i/μ_i² and
σ² = ‖y − Φμ‖²/(n − Σγ) of Tipping (2001), and the exact posterior given these.
"""

import contextlib
import itertools
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import fitted_once
from families import slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special, stats
from sklearn.base import clone
from sklearn.datasets import make_hastie_10_2
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.metrics import log_loss

from skgpstoch import QSRVMClassifier, QSRVMRegressor
from skgpstoch.data.rows import Rows
from skgpstoch.kernels import from_sklearn
from skgpstoch.likelihoods import Bernoulli, Gaussian
from skgpstoch.methods.qsgp.stochastic_rvm import StochasticRelevance, relevant_part
from skgpstoch.models.features.basis_functions import KernelBasis
from skgpstoch.models.posteriors import chevron
from skgpstoch.models.posteriors.chevron import ChevronModel, ChevronPosterior
from skgpstoch.objectives import relevance
from skgpstoch.objectives.relevance import START_ROWS, RelevanceObjective, start_precision

KERNEL = sk.RBF(1.5, "fixed")
QUICK = {"kernel": KERNEL, "n_subset": 0, "random_state": 0}


@pytest.fixture(scope="module")
def sinc():
    rng = np.random.default_rng(0)
    X = rng.uniform(-10, 10, (100, 1))
    return X, np.sinc(X[:, 0] / np.pi) + 0.1 * rng.standard_normal(100)


@pytest.fixture(scope="module")
def halves():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 2))
    return X, np.digitize(X[:, 0], [-0.5, 0.5])


def latent(model, X):
    """What the attributes say that the mean is, without the noise of `kernel_`."""
    kernel = model.kernel_
    if isinstance(getattr(kernel, "k2", None), sk.WhiteKernel):
        kernel = kernel.k1
    return kernel(X, model.relevance_vectors_) @ model.dual_coef_ + model.intercept_


@pytest.mark.slow
# ---- far from all rows
@pytest.mark.parametrize("n_classes", [2, 3])
@slow_cases("^3")
def test_far_from_the_rows_there_is_a_probability(n_classes, halves):
    """Basis functions are 0 there, or subnormal, and so is the variance of the latent function."""
    X, y = halves
    model = fitted_once(QSRVMClassifier(**QUICK), X, y % n_classes)
    far = np.geomspace(5.0, 100.0, 200)[:, None] * np.ones(2)
    p, std = model.predict_proba(far), model.predict_std(far)
    assert np.isfinite(p).all()
    assert (std[-1] < 1e-10).all()
    assert_array_equal(model.predict(far), model.classes_[p.argmax(1)])
    assert_allclose(p[-1], model.predict_proba([[1e100, 1e100]])[0], rtol=1e-12)


@pytest.mark.slow
# ---- sparsity
def test_a_few_vectors_are_as_good_as_all_rows(sinc):
    X, y = sinc
    model = fitted_once(QSRVMRegressor(random_state=0), X, y)
    kernel = sk.ConstantKernel() * sk.RBF() + sk.WhiteKernel()
    exact = GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)
    points = np.linspace(-10, 10, 200)[:, None]
    truth = np.sinc(points[:, 0] / np.pi)
    own, other = (np.sqrt(np.mean((m.predict(points) - truth) ** 2)) for m in (model, exact))
    assert len(model.relevance_) < 20
    assert own < 1.05 * other
    assert model.noise_variance_ == pytest.approx(0.01, rel=0.4)


@pytest.mark.slow
def test_noise_leaves_few_vectors():
    rng = np.random.default_rng(2)
    X, y = rng.uniform(-10, 10, (100, 1)), rng.standard_normal(100)
    model = QSRVMRegressor(**QUICK).fit(X, y)
    assert 1 <= len(model.relevance_) < 20
    assert model.predict(X).std() < 0.6


@pytest.mark.filterwarnings("ignore:The noise variance, 1e-08, is at its lower bound")
def test_a_constant_target():
    X = np.linspace(0, 1, 20)[:, None]
    model = QSRVMRegressor(**QUICK).fit(X, np.full(20, 3.0))
    assert_allclose(model.predict(X), 3.0, atol=1e-3)
    assert len(model.relevance_) >= 1


@pytest.mark.slow
def test_precisions_noise_and_weights_are_stationary(sinc):
    """MacKay's equations, and the exact posterior of the vectors that are left."""
    X, y = sinc
    options = {**QUICK, "dtype": "float64", "tol": 0.0, "max_iter": 600}
    model = QSRVMRegressor(**options, normalize_y=False, n_iter_no_change=600).fit(X, y)
    inner = model.posterior_.model
    s, noise = inner.s.detach().numpy()[:, 0], model.noise_variance_
    phi = KERNEL(X, model.relevance_vectors_)
    covariance = np.linalg.inv(phi.T @ phi / noise + np.diag(s))
    mean = covariance @ phi.T @ (y - model.intercept_) / noise
    assert_allclose(model.dual_coef_, mean, rtol=1e-5, atol=1e-7)
    gamma = 1.0 - s * np.diag(covariance)
    settled = gamma > 0.5  # others may still be on their way to infinity
    assert settled.sum() >= 4
    assert_allclose(s[settled], (gamma / mean**2)[settled], rtol=0.02)
    residual = y - model.intercept_ - phi @ mean
    assert noise == pytest.approx((residual**2).sum() / (100 - gamma.sum()), rel=1e-3)
    std = np.sqrt((phi @ covariance * phi).sum(1))
    got = model.predict(X, return_std=True)[1]
    assert min(np.abs(got - std).max(), np.abs(got - np.sqrt(std**2 + noise)).max()) < 1e-5


@pytest.mark.slow
# ---- attributes
@pytest.mark.parametrize(("dtype", "own_kernel"), [("float32", True), ("float64", False)])
@slow_cases("float64")
def test_attributes_are_the_mean(dtype, own_kernel, sinc):
    X, y = sinc[0] + 3.0, 5.0 * sinc[1] - 7.0
    options = {**QUICK, "kernel": KERNEL if own_kernel else None}
    model = QSRVMRegressor(**options, dtype=dtype)
    too_smooth = pytest.warns(UserWarning, match="Give a kernel with smaller length-scales")
    with contextlib.nullcontext() if own_kernel else too_smooth:
        model.fit(X, y)
    assert model.dual_coef_.shape == (len(model.relevance_),)
    assert_allclose(latent(model, X), model.predict(X), rtol=0.0, atol=1e-4)
    assert_array_equal(model.relevance_vectors_, X[model.relevance_])
    assert len(set(model.relevance_.tolist())) == len(model.relevance_)


@pytest.mark.slow
def test_relevance_of_several_outputs(sinc):
    X, y = sinc
    Y = np.c_[y, 3.0 * np.cos(X[:, 0]) + 1.0]
    model = QSRVMRegressor(**QUICK).fit(X, Y)
    assert model.dual_coef_.shape == (len(model.relevance_), 2)
    assert_allclose(latent(model, X), model.predict(X), rtol=0.0, atol=1e-3)
    assert_array_equal(model.relevance_vectors_, X[model.relevance_])
    assert model.score(X, Y) > 0.8


@pytest.mark.slow
def test_relevance_is_of_the_rows_as_given_where_some_are_the_same(sinc):
    """Merging rows changes their numbers inside."""
    X, y = sinc
    order = np.random.default_rng(3).permutation(200) % 100
    X, y = X[order], y[order]
    model = QSRVMRegressor(**QUICK).fit(X, y)
    assert_array_equal(model.relevance_vectors_, X[model.relevance_])
    assert len(np.unique(model.relevance_vectors_)) == len(model.relevance_)
    assert_allclose(latent(model, X), model.predict(X), rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("cls", [QSRVMRegressor, QSRVMClassifier])
@slow_cases("^QSRVMRegressor$")
def test_rows_with_equal_inputs_have_one_function(cls):
    """Twelve doses, twenty rows each: copies of two doses were called too many vectors."""
    r = np.random.default_rng(0)
    dose = np.repeat(np.linspace(-2.0, 2.0, 12), 20)[r.permutation(240)][:, None]
    p = special.expit(2.0 * dose[:, 0])
    y = r.random(240) < p if cls is QSRVMClassifier else p + 0.1 * r.normal(size=240)
    model = cls(random_state=0).fit(dose, y)  # without a warning
    found = model.relevance_vectors_[:, 0]
    assert len(found) == len(np.unique(found)) <= 8
    if cls is QSRVMClassifier:
        assert_allclose(model.predict_proba(dose)[:, 1], p, atol=0.15)
    else:
        assert_allclose(model.predict(dose), p, atol=0.06)


@pytest.mark.slow
def test_relevance_with_weights_of_zero_and_frames(sinc):
    X, y = sinc
    weight = np.ones(100)
    weight[::3] = 0.0
    frame = pd.DataFrame(X, columns=["x"], index=np.arange(100) + 1000)
    model = QSRVMRegressor(**QUICK).fit(frame, pd.Series(y, index=frame.index), weight)
    assert (model.relevance_ % 3 != 0).all()
    assert_array_equal(frame.iloc[model.relevance_].to_numpy(), model.relevance_vectors_)
    fewer = QSRVMRegressor(**QUICK).fit(X[weight > 0], y[weight > 0])
    assert_allclose(model.predict(frame), fewer.predict(X), rtol=0.0, atol=1e-4)


def test_relevance_of_early_stopping_is_of_rows_as_given(sinc):
    X, y = sinc
    model = QSRVMRegressor(**QUICK, early_stopping=True).fit(X, y)
    assert_array_equal(model.relevance_vectors_, X[model.relevance_])
    assert_allclose(latent(model, X), model.predict(X), rtol=0.0, atol=1e-4)


def test_pickle_keeps_predictions_and_only_the_vectors(sinc):
    model = fitted_once(QSRVMRegressor(random_state=0), *sinc)
    again = pickle.loads(pickle.dumps(model))
    for a, b in zip(*(m.predict(sinc[0], return_std=True) for m in (model, again)), strict=True):
        assert_array_equal(a, b)
    assert model.posterior_.model.basis.n_components == len(model.relevance_)


@pytest.mark.slow
def test_small_blocks_find_about_the_same(sinc):
    X, y = sinc
    whole = QSRVMRegressor(**QUICK).fit(X, y)
    blocks = QSRVMRegressor(**QUICK, basis_batch_size=25, max_iter=60).fit(X, y)
    assert len(blocks.relevance_) < 30
    assert_allclose(blocks.predict(X), whole.predict(X), rtol=0.0, atol=0.1)


@pytest.mark.slow
def test_fewer_rows_in_a_sweep_than_there_are(sinc):
    X, y = sinc
    options = {**QUICK, "batch_size": 50}
    model = QSRVMRegressor(**options).fit(X, y)
    assert len(model.relevance_) < 20
    assert np.sqrt(np.mean((model.predict(X) - np.sinc(X[:, 0] / np.pi)) ** 2)) < 0.07


@pytest.mark.parametrize("cls", [QSRVMRegressor, QSRVMClassifier])
def test_steps_have_no_schedule(cls):
    assert "learning_rate" not in cls().get_params()
    with pytest.raises(TypeError, match="learning_rate"):
        cls(learning_rate="constant")


def test_linear_kernels_have_vectors_too():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = X @ [1.0, -2.0, 0.0] + 0.1 * rng.standard_normal(60)
    model = QSRVMRegressor(kernel=sk.DotProduct(1.0), n_subset=0, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.98
    assert len(model.relevance_) < 20
    assert_allclose(latent(model, X), model.predict(X), rtol=0.0, atol=1e-3)


# ---- refusals
@pytest.mark.parametrize("cls", [QSRVMRegressor, QSRVMClassifier])
def test_there_is_no_warm_start(cls):
    """What is pruned does not come back."""
    with pytest.raises(TypeError, match="warm_start"):
        cls(warm_start=True)


@pytest.mark.slow
# ---- classes
@pytest.mark.parametrize("labels", [["no", "yes", "yes"], ["a", "b", "c"]])
@slow_cases("labels0")
def test_classifier(labels, halves):
    X, code = halves
    y = np.array(labels)[code]
    model = QSRVMClassifier(kernel=sk.RBF(1.5), n_subset=0, max_iter=200, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.93
    p = model.predict_proba(X)
    assert p.shape == (60, len(set(labels)))
    assert_allclose(p.sum(1), 1.0, rtol=1e-6)
    assert len(model.relevance_) < 30
    assert_array_equal(model.relevance_vectors_, X[model.relevance_])
    f = latent(model, X)
    if f.ndim == 2:
        assert f.shape == (60, 3)
        assert np.mean(model.classes_[f.argmax(1)] == model.predict(X)) > 0.95
    else:
        assert_array_equal(f > 0.0, p[:, 1] > 0.5)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.* rows (are relevance vectors|is a vector) of a class that has 1"
)
def test_classes_of_very_different_shares():
    """One row of 60, anywhere: probabilities are about the share, as a constant's would be."""
    X = np.random.default_rng(0).uniform(-3, 3, (60, 1))
    y = np.r_[np.zeros(59), 1.0]
    kernel = sk.ConstantKernel(38.0) * sk.RBF(1.0)
    model = QSRVMClassifier(kernel=kernel, n_subset=0, random_state=0).fit(X, y)
    assert model.loss_curve_[-1] < 0.3  # a constant has 0.085 nats per row
    assert abs(model.predict_proba(X)[:, 1].mean() - 1 / 60) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("is_noise", [True, False])
def test_more_vectors_than_classes_of_so_few_rows_can_tell_are_told(is_noise):
    """The rows of a class, or of all others, are what its function is told by."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5))
    y = rng.integers(0, 3, 60) if is_noise else np.digitize(X[:, 0], [0.5])
    kernel = sk.RBF(0.5, "fixed") if is_noise else 3.0**2 * sk.RBF(2.0)
    told = pytest.warns(UserWarning, match="vectors of a class that has .* Do not trust the prob")
    weight = rng.uniform(0.8, 1.5, 60)
    for w in (None, weight):
        model = QSRVMClassifier(kernel, n_subset=0, random_state=0)
        with told if is_noise else contextlib.nullcontext():
            model.fit(X, y, sample_weight=w)
        (found,) = (finding for finding in model.diagnose() if finding.name == "relevant rows")
        count = np.bincount(y, w)
        R = (np.abs(model.dual_coef_) > 1e-9).sum(0)
        rest = count.sum() - count
        assert_allclose(found.value, (R / stats.hmean([count, rest])).max())
        assert (found.severity == "problem") == is_noise


@pytest.mark.parametrize("n", [100, 400])
@pytest.mark.slow
def test_probabilities_that_follow_single_labels_are_told(n):
    """Of 100 rows the log loss of new rows was 1.2, that of shares .69, in silence."""
    X, y = make_hastie_10_2(n, random_state=0)
    model = QSRVMClassifier(random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    is_told = any("Do not trust the probabilities" in str(each.message) for each in caught)
    assert is_told == (n == 100)
    X, y = make_hastie_10_2(1000, random_state=1)
    loss = log_loss(y, model.predict_proba(X))
    assert loss > 0.75 if is_told else loss < 0.65


def test_precisions_are_stationary_at_evidence_less_the_cost_of_degrees():
    """The gradient by log s_i is (γ_i − s_iμ_i²)/2 + c s_i[Σ(H − diag(s))Σ]_ii."""
    rng = np.random.default_rng(0)
    phi, y = torch.tensor(rng.normal(size=(20, 6))), torch.tensor(rng.normal(size=20))
    of_rows = torch.tensor(rng.uniform(0.5, 2.0, 20))
    log_s, cost = torch.tensor(rng.normal(size=6), requires_grad=True), 0.7
    s = log_s.exp()
    covariance = (phi / s) @ phi.mT + torch.diag(1.0 / of_rows)
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    H = phi.mT @ (of_rows[:, None] * phi) + torch.diag(s)
    gamma = 1.0 - s * torch.linalg.inv(H).diagonal()
    (expected,) = torch.autograd.grad(evidence - cost * gamma.sum(), log_s)
    s, mu = s.detach()[:, None], torch.linalg.solve(H, phi.mT @ (of_rows * y)).detach()
    var, shared = (
        a[:, 0] for a in relevance.determined_variance(relevance.covariance(H.detach()[None]), s)
    )
    s = s[:, 0]
    assert_allclose(1.0 - s * var, gamma.detach())
    got = 0.5 * (1.0 - s * var - s * mu.square()) + cost * s * shared
    assert_allclose(got, expected)


@pytest.mark.parametrize("cost", [0.0, 0.5])
def test_functions_that_are_best_at_an_infinite_precision_are_superfluous(cost):
    """Evidence − cΣγ of all functions is computed anew, at many s of each and without it."""
    rng = np.random.default_rng(1)
    X, s, n_worse = np.linspace(0, 8, 30)[:, None], rng.gamma(1.0, size=10), 0
    phi, grid = KERNEL(X, X[::3]), np.geomspace(1e-6, 1e8, 29)

    def value(s, y):
        covariance = (phi / s) @ phi.T + np.eye(30)
        gamma = 1.0 - s * np.linalg.inv(phi.T @ phi + np.diag(s)).diagonal()
        return stats.multivariate_normal(np.zeros(30), covariance).logpdf(y) - cost * gamma.sum()

    for y in rng.normal(scale=3.0, size=(6, 30)):
        others = [[np.where(np.arange(10) == i, each, s) for each in grid] for i in range(10)]
        values = np.array([[value(each, y) for each in of_one] for of_one in others])
        is_worse = values.argmax(1) == len(grid) - 1
        gain = np.where(is_worse, values[:, -1] - value(s, y), -np.inf)
        H = torch.tensor(phi.T @ phi + np.diag(s))
        mu = torch.linalg.solve(H, torch.tensor(phi.T @ y))[:, None]
        precision = torch.tensor(s)[:, None]
        var, shared = relevance.determined_variance(relevance.covariance(H[None]), precision)
        every = torch.ones_like(mu, dtype=torch.bool)
        got = relevance.superfluous(precision, mu, var, every, cost * shared)
        expected = [gain.argmax()] if gain.max() > 0.0 else []
        assert got[:, 0].nonzero()[:, 0].tolist() == expected
        n_worse += is_worse.sum()
    assert 6 < n_worse < 54


def test_means_without_some_weights_are_those_of_a_model_without():
    rng = np.random.default_rng(0)
    phi = torch.tensor(rng.normal(size=(2, 30, 8)))
    H, b = phi.mT @ phi + torch.eye(8), torch.tensor(rng.normal(size=(2, 8, 1)))
    mu = torch.linalg.solve(H, b)[..., 0].mT
    gone = torch.zeros(8, 2, dtype=torch.bool)
    gone[[2, 5], 0] = True
    got = relevance.means_without(mu, relevance.covariance(H), gone)
    rest = ~gone[:, 0]
    assert_allclose(got[rest, 0], torch.linalg.solve(H[0][rest][:, rest], b[0, rest, 0]))
    assert_allclose(got[gone], 0.0, atol=1e-12)
    assert_array_equal(got[:, 1], mu[:, 1])


def test_weights_that_leave_f_saturated_go():
    """No step gained then, and training went on for 500 sweeps: a log loss of 6 on its own rows."""
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(60, 1)))
    y = (X > 0.0).double()
    basis = KernelBasis(from_sklearn(KERNEL), X.clone(), is_diagonal=True)
    model = ChevronModel(
        basis, Bernoulli(), torch.zeros(1), 0, torch.float64, learns_precision=True
    )
    objective = RelevanceObjective(
        model, X, Rows(y), n_swept=60, rate=lambda sweep: 1.0, learns_noise=False
    )
    model.columns[:30], model.s[:30], model.std[:30] = 10.0, 0.01, 1.0
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        objective(torch.arange(60), Rows(torch.arange(60)[:, None]), generator)
        kept, anew = objective.sweep, objective.begin(generator)
        for name in ("h", "v", "kl"):
            assert_allclose(getattr(kept, name), getattr(anew, name), rtol=1e-6, atol=1e-6)
        objective.epoch_end()
    assert objective.last < 0.6  # a constant has 0.7


@pytest.mark.slow
def test_closing_starts_from_the_weights_of_training():
    """From the prior's variances, Newton's first step went to weights of 60: p was off by .38."""
    rng = np.random.default_rng(1)
    X, y = np.repeat(np.arange(16.0), 2)[:, None], np.tile([0, 1], 16)
    p = special.expit((X[:, 0] - 8.0) / 2.0)
    counts = np.round(1000.0 * np.where(y, p, 1.0 - p) * rng.uniform(0.9, 1.1, 32))
    model = QSRVMClassifier(random_state=1).fit(X, y, sample_weight=counts)
    assert_allclose(model.predict_proba(X)[:, 1], p, atol=0.02)


@pytest.mark.slow
def test_errors_of_rows_that_are_all_relevant_tell_nothing():
    """They are rounding, and were called heavy tails, and intervals too wide."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(150, 4)), rng.normal(size=150)
    with pytest.warns(UserWarning, match="150 of 150 rows are relevance vectors") as said:
        model = QSRVMRegressor(random_state=0).fit(X, y)
    assert len(said) == 1
    of_tails = [f.severity for f in model.diagnose() if f.name in ("tails of errors", "outliers")]
    assert of_tails
    assert "problem" not in of_tails


def test_a_third_of_the_rows_is_too_many_for_intervals():
    """90 % intervals held .66 to .82 of new rows, in silence."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-3, 3, (40, 1))
    y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=40)
    with pytest.warns(UserWarning, match="12 of 40 rows are relevance vectors"):
        QSRVMRegressor(sk.RBF(0.2, "fixed"), n_subset=0, random_state=0).fit(X, y)


def test_latent_functions_start_small_and_others_as_large_as_the_kernel_says(sinc):
    """A row that no other one sees says nothing of the size of its function."""
    X = torch.tensor(sinc[0])
    basis = KernelBasis(from_sklearn(100.0 * KERNEL), X.clone(), is_diagonal=True)
    model = ChevronModel(basis, Gaussian(), torch.zeros(1), 0, torch.float64)
    phi = basis.columns(X[:START_ROWS], torch.arange(100))
    for most, variance in ((np.inf, 100.0), (1.0, 1.0)):
        s = start_precision(model, X, most)
        assert_allclose((phi.square().sum(1) / s).mean().detach(), variance)


@pytest.mark.slow
def test_inputs_have_any_scale_that_can_be_computed_with(monkeypatch):
    rng = np.random.default_rng(12269)
    X = rng.standard_normal((30, 4))
    y = np.sin(X[:, 0])
    model = QSRVMRegressor(sk.RBF() + sk.DotProduct(), max_iter=3, random_state=0)
    scores = [clone(model).fit(scale * X, y).score(scale * X, y) for scale in (1e40, 1e60)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)
    assert scores[0] > 0.8
    with pytest.raises(ValueError, match="Training diverged"):
        clone(model).fit(1e100 * X, y)
    monkeypatch.setattr(relevance, "scales", lambda *of: torch.nan * chevron.scales(*of))
    with pytest.raises(ValueError, match=r"Scale X \(StandardScaler\)"):
        clone(model).fit(X, y)


# ---- as published
def published_model(m=4, n=3, c=2):
    """Any q(w) and s of a function for each of some points, and rows; float64."""
    X = torch.linspace(-1.0, 1.5, max(n, m), dtype=torch.float64)[:, None]
    basis = KernelBasis(from_sklearn(KERNEL).requires_grad_(False), X[:m].clone(), is_diagonal=True)
    noise = torch.tensor([0.3], dtype=torch.float64)
    model = ChevronModel(
        basis, Gaussian(noise), noise.new_zeros(1), c, torch.float64, learns_precision=True
    )
    rows = Rows(torch.sin(3.0 * X[:n]))
    options = {"start": 2.0, "limit": 50.0, "most_whole": 100, "batch_size": 2}
    draws = torch.Generator().manual_seed(5)
    objective = StochasticRelevance(
        model, X[:n], rows, n_control=2, generator=draws, learns_noise=False, **options
    )
    s = torch.rand(m, 1, generator=draws, dtype=torch.float64) + 0.5
    lower = torch.randn(m, c, generator=draws, dtype=torch.float64).tril(-1)
    own = torch.arange(m)[:, None] == torch.arange(c)
    with torch.no_grad():
        model.columns[:, 0, 0] = torch.randn(m, generator=draws, dtype=torch.float64)
        model.columns[:, 0, 1:] = lower + 0.7 * own
        model.std[c:] = 0.3 + torch.rand(m - c, 1, generator=draws, dtype=torch.float64)
        model.s.copy_(s)
        objective.log_s.copy_(s.log())
    objective.h.copy_(objective.project(objective.control_X)[0])
    objective.coefficient.products.fill_(1.0)
    return objective


def dense_parts(model):
    """μ, C and S in numpy."""
    W, c = model.columns[:, 0].detach().numpy(), model.n_dense
    C = np.diag(model.std[:, 0].detach().numpy())
    C[:, :c] += W[:, 1:]
    return W[:, 0], C, np.diag(model.s[:, 0].detach().numpy())


def dense_bound(objective):
    """−(2) of the paper, all of its terms by dense matrices."""
    model, n, m = objective.model, len(objective.X), len(objective.model.s)
    mu, C, S = dense_parts(model)
    phi, y = KERNEL(objective.X.numpy(), model.basis.points.numpy()), objective.rows.y.numpy()[:, 0]
    noise = model.likelihood.noise_variance.item()
    of_mu = ((phi @ mu) @ (phi @ mu) - 2.0 * y @ phi @ mu) / noise + mu @ S @ mu
    of_C = np.trace(C.T @ phi.T @ phi @ C) / noise + np.trace(C.T @ S @ C)
    of_C -= np.linalg.slogdet(C @ C.T)[1]
    twice = n * np.log(2.0 * np.pi * noise) + y @ y / noise - m
    return 0.5 * (twice + of_mu + of_C - np.linalg.slogdet(S)[1])


def test_chevron_with_precisions_is_as_dense_matrices():
    objective = published_model()
    model = objective.model
    mu, C, S = dense_parts(model)
    cov, m = C @ C.T, len(mu)
    log_dets = np.linalg.slogdet(cov)[1] + np.linalg.slogdet(S)[1]
    kl = 0.5 * (np.trace(S @ cov) + mu @ S @ mu - m - log_dets)
    assert_allclose(model.kl().item(), kl, rtol=1e-9)
    phi = KERNEL(objective.X.numpy(), model.basis.points.numpy())
    q = model.marginals(objective.X)
    assert_allclose(q.mean[0, :, 0], phi @ mu, rtol=1e-9)
    assert_allclose(q.var[0, :, 0], np.diag(phi @ cov @ phi.T), rtol=1e-9)
    bound = -ChevronPosterior(model, 3).bound_of(objective.X, objective.rows)
    assert_allclose(bound.item(), dense_bound(objective), rtol=1e-9)
    noise = model.likelihood.noise_variance.item()
    evidence = stats.multivariate_normal(cov=phi @ np.linalg.inv(S) @ phi.T + noise * np.eye(3))
    assert -dense_bound(objective) < evidence.logpdf(objective.rows.y.numpy()[:, 0])


def test_published_estimates_are_without_bias():
    """The bound, and its slopes by log s, over all index sets I, J and K."""
    objective, values = published_model(m=2, n=2, c=1), []
    model, std = objective.model, objective.model.std.clone()
    sets = [torch.tensor(s) for s in itertools.product(range(2), repeat=2)]
    for i, j, k in itertools.product(sets, sets, sets):
        X, rows = objective.X[k], objective.rows[k]
        values.append(objective.gaussian(i, j, X, rows))
        model.std.copy_(std)  # which a step replaces by Proposition 1
    mean = torch.stack(values).mean()
    assert_allclose(mean.item(), dense_bound(objective), rtol=1e-9)
    mean.backward()
    mu, C, S = dense_parts(model)
    slopes = 0.5 * (np.diag(S) * (mu**2 + np.diag(C @ C.T)) - 1.0)
    assert_allclose(objective.log_s.grad.to_dense()[:, 0], slopes, rtol=1e-9)


@pytest.mark.slow
def test_published_steps_draw_without_bias():
    """Estimates as a step draws them, by their z-score."""
    objective = published_model(m=12, n=12, c=3)
    model, std = objective.model, objective.model.std.clone()
    draws, values = torch.Generator().manual_seed(1), []
    for _ in range(400):
        groups = torch.randperm(12, generator=draws)[:4]
        values.append(float(objective.forward(groups, Rows(groups[:, None]), draws).detach()))
        model.std.copy_(std)
    error = np.mean(values) - dense_bound(objective) / 12
    assert abs(error) < 3.0 * np.std(values) / np.sqrt(len(values))


def test_relevant_part_is_q_of_the_functions_that_are_left():
    model = published_model(m=6, n=6, c=2).model
    with torch.no_grad():
        model.s[[1, 4]] = 100.0
    keep = np.array([0, 2, 3, 5])
    mu, C, _ = dense_parts(model)
    found = dense_parts(relevant_part(model, 50.0, most_whole=100))
    assert_allclose(found[0], mu[keep], rtol=1e-9)
    assert_allclose(found[1] @ found[1].T, (C @ C.T)[np.ix_(keep, keep)], rtol=1e-9)
    both = np.array([0, 1, 2, 3, 5])  # a chevron needs the functions of its dense columns
    found = dense_parts(relevant_part(model, 50.0, most_whole=2))
    assert_allclose(found[1] @ found[1].T, (C @ C.T)[np.ix_(both, both)], rtol=1e-9)

"""Sufficient statistics, noise and ridge, and held-out predictions against brute force."""

import math

import numpy as np
import pytest
import torch
from families import slow_cases
from numpy.testing import assert_allclose
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import norm
from torch.testing import assert_close

from skgpstoch.data.devices import BLOCK_ROWS
from skgpstoch.maths.averages import RunningStatistics
from skgpstoch.maths.linalg import NotPositiveDefiniteError
from skgpstoch.maths.linear_regression import (
    HeldOutErrors,
    batch_statistics,
    calibrate,
    exact_statistics,
    most_likely,
    negative_log_evidence,
    penalized_square,
    predict_held_out,
    ridge_grid,
    spectrum,
)

SEEDS = range(5)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def make_data(seed=0, n=40, K=2, D=5, P=3, noise=0.5):
    """Features Z (K, n, D), and y (n, P) that is linear in the first member's but for noise."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-1, 1, D, dtype=torch.float64)
    Z = torch.randn(K, n, D, generator=generator, dtype=torch.float64) * scales
    w = torch.randn(D, P, generator=generator, dtype=torch.float64)
    return Z, Z[0] @ w + noise * torch.randn(n, P, generator=generator, dtype=torch.float64)


def subsets(K, n, seed=0):
    return torch.rand(K, n, generator=torch.Generator().manual_seed(seed)) < 0.7


# ---- statistics and their spectrum
def test_statistics_of_the_rows_that_are_kept():
    Z, y = make_data()
    keep = subsets(2, 40)
    S = batch_statistics(Z.float(), y.float(), keep)
    assert {a.dtype for a in S} == {torch.float64}
    for k in range(2):
        Zk, yk = Z[k][keep[k]].float().double(), y[keep[k]].float().double()
        assert_close(S.gram[k], Zk.T @ Zk)
        assert_close(S.cross[k], Zk.T @ yk)
        assert_close(S.square[k], (yk**2).sum(0))
        assert float(S.n_rows[k]) == len(yk)


def test_statistics_scale_to_other_numbers_of_rows():
    Z, y = make_data()
    S = batch_statistics(Z, y, subsets(2, 40))
    scaled = S.scaled_to(tensor(100.0, 7.0))
    for k, n in enumerate((100.0, 7.0)):
        factor = n / float(S.n_rows[k])
        for name in ("gram", "cross", "square", "n_rows"):
            assert_close(getattr(scaled, name)[k], factor * getattr(S, name)[k])


def test_spectrum_is_of_the_statistics():
    Z, y = make_data()
    S = batch_statistics(Z, y)
    s = spectrum(S)
    for before, after in zip(S, s.statistics(), strict=True):
        assert_close(before, after, rtol=1e-12, atol=1e-10)
    assert (s.values[:, 1:] >= s.values[:, :-1]).all()
    assert_close(s.vectors.mT @ s.vectors, torch.eye(5).double().expand(2, 5, 5))


def test_spectrum_of_dependent_features_is_not_negative():
    Z, y = make_data(n=4, D=9)
    Z = torch.cat([Z, Z], 2)
    values = spectrum(batch_statistics(Z, y)).values
    assert (values >= 0).all()
    assert (values[:, :14] <= 1e-12 * values[:, -1:]).all()


def test_features_that_are_not_finite_are_named():
    Z, y = make_data()
    Z[1, 3, 2] = math.inf
    with pytest.raises(NotPositiveDefiniteError, match=r"features of the training rows.*NaN"):
        spectrum(batch_statistics(Z, y))


@pytest.mark.parametrize("seed", SEEDS)
def test_penalized_square_is_the_least_value_of_ridge_regression(seed):
    Z, y = make_data(seed)
    ridge = tensor([0.3, 1.0, 20.0], [5.0, 0.01, 1e-4])  # (C, P)
    q = penalized_square(spectrum(batch_statistics(Z, y)), ridge)
    assert q.shape == (2, 2, 3)
    for c, k, p in np.ndindex(2, 2, 3):
        eye = math.sqrt(ridge[c, p]) * torch.eye(5, dtype=torch.float64)
        stacked = torch.cat([Z[k], eye])
        target = torch.cat([y[:, p], torch.zeros(5, dtype=torch.float64)])
        w = torch.linalg.lstsq(stacked, target).solution
        assert_close(q[c, k, p], (stacked @ w - target).square().sum(), rtol=1e-9, atol=0)


def test_penalized_square_stays_positive_where_the_fit_is_perfect():
    Z, _ = make_data(K=1)
    y = Z[0] @ torch.ones(5, 1, dtype=torch.float64)
    q = penalized_square(spectrum(batch_statistics(Z, y)), tensor(1e-14))
    assert 0 < float(q) <= 1e-11 * float(y.square().sum())
    q = penalized_square(spectrum(batch_statistics(Z, 0 * y)), tensor(1.0))
    assert float(q) > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_evidence_of_candidates_is_that_of_each(seed):
    Z, y = make_data(seed)
    keep = subsets(2, 40)
    s = spectrum(batch_statistics(Z, y, keep))
    noise, ridge = tensor([0.3, 1.0, 2.0], [5.0, 0.1, 1.0]), tensor([0.3, 3.0, 9.0], [0.5, 0.1, 1])
    actual = negative_log_evidence(s, noise, ridge)  # (C, K, P)
    for c, k, p in np.ndindex(2, 2, 3):
        Zk, n = Z[k][keep[k]], int(keep[k].sum())
        C = noise[c, p] / ridge[c, p] * Zk @ Zk.T + noise[c, p] * torch.eye(n).double()
        density = torch.distributions.MultivariateNormal(torch.zeros(n).double(), C)
        assert_close(actual[c, k, p], -density.log_prob(y[keep[k], p]), rtol=1e-9, atol=0)
    assert_close(negative_log_evidence(s, noise[1], ridge[1]), actual[1], rtol=1e-12, atol=0)


# ---- the most likely noise and ridge
def test_grid_of_ridges():
    Z, y = make_data()
    s = spectrum(batch_statistics(Z, y))
    grid, top = ridge_grid(s), s.values[:, -1].mean()
    assert (grid.diff() > 0).all()
    assert_close(grid[-1], 10 * top)
    assert grid[0] <= 1e-7 * top


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[::2])
@slow_cases("^[24]")
def test_most_likely_against_brute_force(seed):
    Z, y = make_data(seed, K=1, noise=10 ** (seed / 2 - 1))
    s = spectrum(batch_statistics(Z, y))
    noise, ridge = most_likely(s)
    grid = ridge_grid(s)
    for p in range(3):

        def nlml(log_noise, ridge, p=p):
            candidates = torch.full((3,), math.exp(log_noise)).double(), ridge.expand(3)
            return float(negative_log_evidence(s, *candidates)[0, p])

        best = [minimize_scalar(nlml, (-5, 5), args=(r,), options={"xtol": 1e-10}) for r in grid]
        i = int(np.argmin([b.fun for b in best]))
        assert_close(ridge[p], grid[i])
        assert_allclose(float(noise[p]), math.exp(best[i].x), rtol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_most_likely_is_as_good_as_a_continuous_search(seed):
    """Half a step of the grid, ln(1.58)/2, costs at most D/4 times its square, of all rows."""
    Z, y = make_data(seed, K=1, P=1, n=200, D=20)
    s = spectrum(batch_statistics(Z, y))

    def nlml(logs):
        return float(negative_log_evidence(s, *torch.from_numpy(logs).exp()[:, None]))

    start = torch.cat(most_likely(s)).log().numpy()
    assert nlml(start) - minimize(nlml, start, method="Nelder-Mead").fun < 20 / 4 * 0.23**2


@pytest.mark.parametrize("offset", [0.0, 30.0, 100.0])
def test_most_likely_where_a_constant_dominates(offset):
    """A slope is found from inputs far from the origin, where it has a small eigenvalue."""
    generator = torch.Generator().manual_seed(0)
    x = 10 * torch.rand(300, 1, generator=generator, dtype=torch.float64)
    y = (x - x.mean()) / x.std() + 0.03 * torch.randn(300, 1, generator=generator).double()
    Z = torch.cat([x + offset, torch.ones_like(x)], 1)[None]
    noise, _ = most_likely(spectrum(batch_statistics(Z, y)))
    assert float(noise) == pytest.approx(0.03**2, rel=0.2)


def test_most_likely_finds_the_noise_and_the_signal():
    generator = torch.Generator().manual_seed(0)
    Z = torch.randn(1, 5000, 50, generator=generator, dtype=torch.float64)
    signal, sigma2 = tensor(0.01, 4.0, 1.0), tensor(1.0, 0.09, 25.0)
    w = signal.sqrt() * torch.randn(50, 3, generator=generator, dtype=torch.float64)
    y = Z[0] @ w + sigma2.sqrt() * torch.randn(5000, 3, generator=generator, dtype=torch.float64)
    noise, ridge = most_likely(spectrum(batch_statistics(Z, y)))
    assert_close(noise, sigma2, rtol=0.1, atol=0)
    assert ((noise / ridge / signal).log().abs() < 0.8).all()  # of 50 weights, on a grid


def test_most_likely_of_members_is_their_geometric_mean():
    Z, y = make_data(K=2)
    Z[1] *= Z[0].norm() / Z[1].norm()  # the grid is theirs together
    s = spectrum(batch_statistics(Z, y))
    grid = ridge_grid(s)
    noise, ridge = [], []
    for k in range(2):
        candidates = grid[:, None].expand(-1, 3)
        sigma2 = penalized_square(s, candidates)[:, k] / 40  # (C, P)
        nlml = torch.stack(
            [negative_log_evidence(s, sigma2[c], candidates[c])[k] for c in range(len(grid))]
        )
        best = nlml.argmin(0)
        noise.append(sigma2.gather(0, best[None])[0])
        ridge.append(grid[best])
    actual = most_likely(s)
    assert_close(actual[0], (noise[0] * noise[1]).sqrt(), rtol=1e-10, atol=0)
    assert_close(actual[1], (ridge[0] * ridge[1]).sqrt(), rtol=1e-10, atol=0)


# ---- rows that members have not seen
@pytest.mark.parametrize("n", [30, BLOCK_ROWS + 100])
def test_held_out_predictions_are_those_of_the_other_folds(n):
    K, D, P = 3, 4, 2
    Z, y = make_data(n=n, K=K, D=D, P=P)
    fold = torch.arange(n) % 5  # two folds are nobody's
    seen = fold != torch.arange(K)[:, None]
    ridges = tensor(0.01, 1.0, 30.0)
    s = spectrum(batch_statistics(Z, y, seen))
    rows = torch.arange(n, dtype=torch.float64)[:, None]
    held = predict_held_out(s, lambda X: Z[:, X[:, 0].long()], rows, y, ~seen, ridges)
    square, log_variance, count = torch.zeros(3, P), torch.zeros(3, 1), int((~seen).sum())
    for k, c in np.ndindex(K, 3):
        train, test = Z[k][seen[k]], Z[k][~seen[k]]
        F_inv = torch.linalg.inv(train.T @ train + ridges[c] * torch.eye(D, dtype=torch.float64))
        m = test @ F_inv @ train.T @ y[seen[k]]
        variance = 1 + (test @ F_inv * test).sum(1, keepdim=True)
        square[c] += ((y[~seen[k]] - m) ** 2 / variance).sum(0) / count
        log_variance[c] += variance.log().sum() / count
    assert_close(held.square, square.double(), rtol=1e-5, atol=0)
    assert_close(held.log_variance, log_variance.double(), rtol=1e-5, atol=1e-6)


def random_held_out(seed, C=12, P=3, n=50):
    """Per-row residuals and variances, and their means."""
    generator = torch.Generator().manual_seed(seed)
    residual = torch.randn(C, n, P, generator=generator, dtype=torch.float64)
    residual *= 0.5 + torch.rand(C, 1, P, generator=generator, dtype=torch.float64)
    variance = 1 + torch.rand(C, n, 1, generator=generator, dtype=torch.float64)
    means = (residual**2 / variance).mean(1), variance.log().mean(1)
    return residual, variance, HeldOutErrors(*means)


@pytest.mark.parametrize("seed", SEEDS)
def test_held_out_score_is_the_mean_negative_log_density(seed):
    residual, variance, held = random_held_out(seed)
    noise = 0.1 + torch.rand(12, 3, generator=torch.Generator().manual_seed(seed)).double()
    std = (noise[:, None] * variance).sqrt()
    assert_allclose(held.score(noise), -norm.logpdf(residual, 0, std).mean(1), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_calibration_against_brute_force(seed):
    residual, variance, held = random_held_out(seed)
    ridges = torch.logspace(-3, 2, 12, dtype=torch.float64)
    noise, ridge = calibrate(held, ridges)
    for p in range(3):

        def score(log_noise, c, p=p):
            std = (math.exp(log_noise) * variance[c, :, 0]).sqrt()
            return -norm.logpdf(residual[c, :, p], 0, std).mean()

        best = [minimize_scalar(score, (-3, 3), args=(c,), tol=1e-12) for c in range(12)]
        c = int(np.argmin([b.fun for b in best]))
        assert ridge[p] == ridges[c]
        assert_allclose(float(noise[p]), math.exp(best[c].x), rtol=1e-6)


@pytest.mark.parametrize("tolerance", [0.0, 0.05, 0.3, 1e9])
def test_calibration_takes_the_largest_ridge_within_the_tolerance(tolerance):
    _, _, held = random_held_out(1)
    ridges = torch.logspace(-3, 2, 12, dtype=torch.float64)
    noise, ridge = calibrate(held, ridges, tolerance)
    score = held.score(held.square)
    for p in range(3):
        near = score[:, p] <= score[:, p].min() + tolerance
        assert ridge[p] == ridges[near].max()
        assert noise[p] == held.square[ridges == ridge[p], p]


def test_calibration_of_a_perfect_prediction_is_finite():
    held = HeldOutErrors(torch.zeros(3, 1).double(), torch.zeros(3, 1).double())
    noise, _ = calibrate(held, tensor(0.1, 1.0, 10.0))
    assert 0 < float(noise) < 1e-9


@pytest.mark.slow
# ---- running statistics
def test_rates():
    def rates(averaging, window=100.0, b=10, n=2000):
        running = RunningStatistics(1, 1, 1, averaging, window)
        Z, found = torch.zeros(1, b, 1), []
        for _ in range(n):
            found.append(running.rate(b))
            running.update(Z, Z, tensor(float(b)), b)
        return np.array(found)

    t = np.arange(1, 2001)
    assert_allclose(rates("theory"), t**-0.5)
    assert_allclose(rates(0.9), np.maximum(0.9, 1 / t))
    assert_allclose(rates(0.01), np.maximum(0.01, 1 / t))
    auto = rates("auto")
    assert_allclose(10 * (2 - auto[-1]) / auto[-1], 100.0)  # b(2 − b_t)/b_t is the window
    assert_allclose(auto, np.maximum(auto[-1], 1 / t))
    assert_allclose(rates("auto", window=10.0, n=5), 1.0)
    assert_allclose(rates("auto", window=3.0, n=5), 1.0)


def test_first_steps_average_over_all_that_was_seen():
    Z, y = make_data(K=1, P=1)
    running, b = RunningStatistics(1, 5, 1, "auto", window=1e6), tensor(4.0)
    for t in range(10):
        rows = slice(4 * t, 4 * t + 4)
        running.update(Z[:, rows], y[None, rows], b, 4)
        expected = batch_statistics(Z[:, : rows.stop], y[: rows.stop])
        for actual, whole in zip(running.total(expected.n_rows), expected, strict=True):
            assert_close(actual, whole, rtol=1e-12, atol=1e-12)


def test_first_steps_average_rows_by_their_weights():
    """Weights of a minibatch are in Z, Y and n_seen; their mean is its share beside others."""
    Z, y = make_data(K=1, P=1)
    running = RunningStatistics(1, 5, 1, "auto", window=1e6)
    weight = tensor(*np.repeat([1.0, 0.03, 7.0, 0.5, 1.0], 8))[None]
    for t in range(5):
        rows = slice(8 * t, 8 * t + 8)
        w = weight[:, rows]
        root = w.sqrt()[..., None]
        running.update(Z[:, rows] * root, y[None, rows] * root, w.sum(1), 8, float(w.mean()))
        seen = slice(rows.stop)
        expected = batch_statistics(Z[:, seen], y[seen], weight[:, seen])
        for actual, whole in zip(running.total(expected.n_rows), expected, strict=True):
            assert_close(actual, whole, rtol=1e-12, atol=1e-12)
        assert 1.0 / running.inverse_rows == pytest.approx(float(weight[:, seen].sum()))


@pytest.mark.parametrize(("window", "b"), [(60.0, 3), (200.0, 20)])
def test_window_is_the_number_of_rows_that_the_variance_speaks_of(window, b):
    """Averages over a window vary as the mean of as many independent rows."""
    generator = torch.Generator().manual_seed(0)
    members, T = 400, 5 * int(window) // b
    running = RunningStatistics(members, 1, 1, "auto", window)
    for _ in range(T):
        y = torch.randn(members, b, 1, generator=generator, dtype=torch.float64) + 1.0
        running.update(torch.ones_like(y), y, torch.full((members,), float(b)).double(), b)
    assert float(running.cross.var()) == pytest.approx(1 / window, rel=4 * math.sqrt(2 / members))


def test_members_average_over_the_rows_they_see():
    """Z and Y are zero elsewhere; a minibatch without any row of a member tells it nothing."""
    Z, y = make_data(K=2, P=1)
    seen = torch.ones(2, 40)
    seen[1, ::2] = 0.0
    running = RunningStatistics(2, 5, 1, 0.5, 1.0)
    rows = slice(0, 7)
    keep = seen[:, rows, None]
    running.update(Z[:, rows] * keep, y[None, rows] * keep, seen[:, rows].sum(1).double(), 7)
    expected = batch_statistics(Z[:, rows], y[rows], seen[:, rows])
    for actual, part in zip(running.total(expected.n_rows), expected, strict=True):
        assert_close(actual, part, rtol=1e-12, atol=1e-12)


def test_statistics_go_on_where_exact_ones_left_off():
    Z, y = make_data()
    S = batch_statistics(Z, y)
    running = RunningStatistics(2, 5, 3, "auto", window=90.0)
    running.start_from(S)
    for actual, expected in zip(running.total(S.n_rows), S, strict=True):
        assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    assert running.rate(10) == pytest.approx(0.2)  # no longer 1/(t + 1)
    assert running.rate(10, 0.1) == pytest.approx(0.02 / 0.82)
    running.start_from(S, 0.1)
    assert running.rate(10, 0.1) == pytest.approx(0.2)


def test_statistics_resume_from_their_state_to_the_last_bit():
    Z, y = make_data()
    b = tensor(4.0, 4.0)

    def steps(running, start, stop):
        for t in range(start, stop):
            rows = slice(4 * t, 4 * t + 4)
            running.update(Z[:, rows], y[rows].expand(2, -1, -1), b, 4)
        return running

    whole = steps(RunningStatistics(2, 5, 3, "theory", 1.0), 0, 10)
    half = steps(RunningStatistics(2, 5, 3, "theory", 1.0), 0, 5)
    resumed = RunningStatistics(2, 5, 3, "theory", 1.0)
    resumed.load_state_dict(half.state_dict())
    steps(resumed, 5, 10)
    assert resumed.n_steps == whole.n_steps == 10
    for name in ("gram", "cross", "square"):
        assert torch.equal(getattr(resumed, name), getattr(whole, name))


def test_exact_statistics_track_no_gradient():
    Z, y = make_data(K=1)
    weight = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
    S = exact_statistics(lambda X: (X * weight)[None], Z[0], y)
    assert not any(a.requires_grad for a in S)

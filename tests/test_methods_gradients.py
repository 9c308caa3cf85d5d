"""Minibatch gradients against exact ones: unbiased where they should be, or of a visible bias."""

import math
from types import SimpleNamespace

import pytest
import torch
from families import by_default, slow_cases
from torch.testing import assert_close

from skgpstoch.data.rows import Rows
from skgpstoch.maths.linear_regression import exact_statistics
from skgpstoch.methods.bsgd import BSGDObjective
from skgpstoch.methods.minimax import MinimaxObjective
from skgpstoch.methods.scgd import SCGDObjective
from skgpstoch.models.features.network import NetworkFeatures, multilayer_perceptron
from skgpstoch.objectives.base import surrogate

SEEDS = range(3)
BATCH = 5


def make_problem(seed=0, n=40, n_members=1, fold=None, P=2):
    """Data, a network of 4 features on it, rows with their fold."""
    generator = torch.Generator().manual_seed(seed)
    network = multilayer_perceptron(2, (4,), "tanh", generator, n_members).double()
    X = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(n, P, generator=generator, dtype=torch.float64) + X[:, :1]
    return SimpleNamespace(
        X=X,
        y=y,
        rows=Rows(y, fold=fold),
        features=NetworkFeatures(network, 4, n_members),
        generator=generator,
    )


def make_objective(cls, problem, **options):
    options = {
        "noise": "learned",
        "noise_variance": 0.4,
        "noise_bounds": (1e-8, 1e2),
        "weight_decay": 0.0,
    } | options
    return cls(problem.features, problem.rows, **options).double()


def make_minimax(problem, **options):
    """At random A, B and w."""
    options = {"penalty": 30.0, "dual_step": 1e-3} | options
    objective = make_objective(MinimaxObjective, problem, X=problem.X, **options)
    with torch.no_grad():
        root = torch.randn(objective.A.shape, generator=problem.generator, dtype=torch.float64)
        objective.A += 0.1 * root @ root.mT
        objective.w.normal_(generator=problem.generator)
        objective.B.normal_(generator=problem.generator)
        objective.B /= 2 * objective.B.norm(dim=(-2, -1), keepdim=True)
    return objective


def flat_gradient(loss, objective):
    """By all free parameters, in one vector."""
    parameters = [p for p in objective.parameters() if p.requires_grad]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])


def batch_gradient(objective, problem, rows):
    """Of the loss of a minibatch, without the step of what runs beside it."""
    Z = objective.features.members(problem.X[rows])
    Y = problem.y[rows].expand(len(Z), -1, -1)
    b = torch.full((len(Z), 1), float(len(rows)), dtype=torch.float64)
    unseen = torch.zeros_like(b)
    return flat_gradient(objective.loss(Z, Y, b, Rows(Y).as_mean, unseen), objective)


def exact_gradient(objective, problem):
    """Of the NLML per row, by n×n matrices; zero for all but the network and the noise."""
    Z, noise = objective.features.members(problem.X)[0], objective.log_noise.exp()
    n, nlml = len(Z), 0.0
    for p in range(len(noise)):
        C = Z @ Z.T + noise[p] * torch.eye(n, dtype=torch.float64)
        y = problem.y[:, p]
        nlml = nlml + 0.5 * (y @ torch.linalg.inv(C) @ y + torch.linalg.slogdet(C)[1])
    others = sum(0.0 * p.sum() for p in objective.parameters())
    return flat_gradient(nlml / n + others, objective)


def random_rows(problem, b):
    return torch.randperm(len(problem.X), generator=problem.generator)[:b]


def z_scores(samples, expected):
    """Of the mean of samples (T, m) as an estimate of expected (m,)."""
    error = samples.std(0) / math.sqrt(len(samples))
    return (samples.mean(0) - expected) / error.clamp_min(1e-12)


# ---- SCGD
@pytest.mark.parametrize("weights", ["profiled", "learned"])
@pytest.mark.parametrize("seed", SEEDS)
def test_scgd_is_unbiased_given_the_statistics(seed, weights):
    """With F̃ = F the minibatches of a partition have the exact gradient as their mean."""
    p = make_problem(seed)
    objective = make_objective(SCGDObjective, p, averaging=0.1, weights=weights)
    statistics = exact_statistics(p.features.members, p.X, p.y)
    objective.running.start_from(statistics)
    if weights == "learned":
        F = statistics.gram + 0.4 * torch.eye(4, dtype=torch.float64)
        objective.w.data.copy_(torch.linalg.inv(F) @ statistics.cross)
    parts = random_rows(p, len(p.X)).split(BATCH)
    mean = torch.stack([batch_gradient(objective, p, rows) for rows in parts]).mean(0)
    assert_close(mean, exact_gradient(objective, p), rtol=1e-8, atol=1e-8)


def forward_gradients(objective, problem, b, T):
    """Of T minibatches, through the running statistics as in training but without steps."""
    samples = []
    for _ in range(T):
        rows = random_rows(problem, b)
        loss = objective(problem.X[rows], problem.rows[rows], problem.generator)
        samples.append(flat_gradient(loss, objective))
    return torch.stack(samples)


def relative_bias(objective, problem, b, T=400, burn_in=100):
    samples = forward_gradients(objective, problem, b, burn_in + T)[burn_in:]
    exact = exact_gradient(objective, problem)
    return float((samples.mean(0) - exact).norm() / exact.norm())


@pytest.mark.slow
def test_bias_of_scgd_vanishes_with_the_step_of_its_average():
    """The minibatch is part of its own F̃: b_t = 0.9 is biased, a long window is not."""
    p = make_problem()
    bias = {
        rate: relative_bias(
            make_objective(SCGDObjective, p, averaging=rate, weights="profiled"), p, BATCH
        )
        for rate in (0.9, 0.1, 0.01)
    }
    bsgd = relative_bias(make_objective(BSGDObjective, p), p, BATCH)
    assert bsgd > bias[0.9] > 3 * bias[0.1]
    assert bias[0.01] < 0.1 < 0.5 < bsgd


@pytest.mark.slow
# ---- BSGD
def test_bias_of_bsgd_shows_and_shrinks_with_the_minibatch():
    p = make_problem(n=120)
    objective = make_objective(BSGDObjective, p)
    exact, bias = exact_gradient(objective, p), []
    for b in (4, 12, 40, 120):
        draws = range(300 if b < 120 else 2)  # the last are all rows
        samples = torch.stack([batch_gradient(objective, p, random_rows(p, b)) for _ in draws])
        bias.append(float((samples.mean(0) - exact).norm()))
        if b < 120:
            assert z_scores(samples, exact).abs().max() > 10
    assert bias[0] > bias[1] > 1.2 * bias[2] > 1e6 * bias[3]


@pytest.mark.slow
# ---- MINIMAX
@pytest.mark.parametrize("noise", ["learned", "validation"])
@pytest.mark.parametrize("seed", SEEDS)
@slow_cases("^[12]-validation", "^0-learned")
@by_default("1-learned")
def test_minimax_descends_along_an_unbiased_gradient(seed, noise):
    p = make_problem(seed)
    objective = make_minimax(p, noise=noise)
    every = batch_gradient(objective, p, torch.arange(len(p.X)))
    # The mean over a partition is that of all rows to rounding, for a sum over rows.
    parts = random_rows(p, len(p.X)).split(BATCH)
    mean = torch.stack([batch_gradient(objective, p, rows) for rows in parts]).mean(0)
    assert_close(mean, every, rtol=1e-10, atol=1e-10)
    # And so are random minibatches in the mean.
    samples = torch.stack([batch_gradient(objective, p, random_rows(p, BATCH)) for _ in range(200)])
    assert z_scores(samples, every).abs().max() <= 4


@pytest.mark.parametrize("b", [1, BATCH])
@pytest.mark.parametrize("held_out", [0, 20])
@slow_cases("0-5", "20-1")
def test_minimax_ascends_along_an_unbiased_gradient(held_out, b):
    """μ(A − F)/‖A‖ with F of the rows that are trained on, whatever the minibatch."""
    fold = torch.full((40,), -1)
    fold[:held_out] = 0
    p = make_problem(fold=fold)
    objective = make_minimax(p)
    Z = p.features.members(p.X)[0, held_out:].detach()
    n = len(Z)
    F = (Z.T @ Z + 0.4 * torch.eye(4, dtype=torch.float64)) / n
    A = objective.A.detach()
    expected = 30.0 * (A - F) / A.norm(dim=(-2, -1), keepdim=True)
    before, samples = objective.B.clone(), []
    for _ in range(600):
        objective.B.copy_(before)
        objective.ascend(b, p.generator)
        samples.append(((objective.B - before) / 1e-3).flatten())
    assert z_scores(torch.stack(samples), expected.flatten()).abs().max() <= 4


def test_minimax_takes_independent_rows_for_its_two_steps():
    """The rows of the ascent are drawn anew, so the two gradients do not correlate."""
    p = make_problem()
    objective = make_minimax(p)
    before, ascents = objective.B.clone(), []
    rows = torch.arange(BATCH)
    for _ in range(5):
        objective.B.copy_(before)
        objective(p.X[rows], p.rows[rows], p.generator)
        ascents.append(objective.B.clone())
    assert len({float(B.sum()) for B in ascents}) == 5
    again = make_problem()
    other = make_minimax(again)
    other(again.X[rows + 9], again.rows[rows + 9], again.generator)
    assert torch.equal(other.B, ascents[0])


@pytest.mark.slow
# ---- folds
@pytest.mark.parametrize("b", [1, 2, BATCH])
@slow_cases("^[25]")
def test_running_statistics_of_members_are_unbiased_for_any_minibatch(b):
    """A member's average is over the rows that it sees, though some minibatches have none."""
    fold = torch.arange(40) % 2
    p = make_problem(n_members=2, fold=fold)
    objective = make_objective(SCGDObjective, p, averaging=0.01, weights="profiled")
    seen = fold != torch.arange(2)[:, None]
    exact = exact_statistics(p.features.members, p.X, p.y, seen)
    T, mean = 600, torch.zeros_like(exact.gram)
    with torch.no_grad():
        for _ in range(T):
            rows = random_rows(p, b)
            objective(p.X[rows], p.rows[rows], p.generator)
            mean += objective.running.total(objective.n_rows).gram / T
    Z = p.features.members(p.X).detach()
    for k in range(2):
        products = Z[k][seen[k]][:, :, None] * Z[k][seen[k]][:, None]
        error = 20 * products.std(0) / math.sqrt(0.4 * b * T)  # of the half that it sees
        assert ((mean[k] - exact.gram[k]).abs() <= 5 * error).all()


# ---- the surrogate
def test_surrogate_has_the_value_and_the_gradients_given():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, generator=generator, requires_grad=True)
    w = torch.randn(4, generator=generator, dtype=torch.float64, requires_grad=True)
    dx, dw = torch.randn(3, 2, generator=generator), torch.randn(4, generator=generator).double()
    value = torch.tensor(1.5, dtype=torch.float64)
    loss = surrogate(value, (x.tanh(), dx), (w, dw))
    assert float(loss.detach()) == 1.5
    gx, gw = torch.autograd.grad(2 * loss, [x, w])
    assert_close(gx, 2 * dx * (1 - x.detach().tanh() ** 2))
    assert_close(gw, 2 * dw)

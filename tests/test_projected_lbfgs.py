"""L-BFGS within bounds: optima inside and on the bounds, steps, walls, restarts from a state."""

import copy
import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from skgpstoch.training.optimizers import make_optimizer
from skgpstoch.training.projected_lbfgs import ProjectedLBFGS, quasi_newton

F64 = torch.float64


def rosenbrock(x):
    return (100.0 * (x[1:] - x[:-1].square()).square() + (1.0 - x[:-1]).square()).sum()


def problem(start, low, high, function=rosenbrock):
    """Two parameters, minimised together within bounds: with what an optimiser is given."""
    start = torch.tensor(start, dtype=F64)
    half = len(start) // 2
    params = [torch.nn.Parameter(part.clone()) for part in (start[:half], start[half:])]
    bounds = [torch.tensor(b, dtype=F64).expand(len(start)) for b in (low, high)]
    seen = []

    def project():
        for i, p in enumerate(params):
            part = slice(half) if i == 0 else slice(half, None)
            p.data.clamp_(bounds[0][part], bounds[1][part])

    def closure():
        for p in params:
            p.grad = None
        value = function(torch.cat(params))
        value.backward()
        seen.append(torch.cat(params).detach().clone())
        return value.detach()

    return params, project, closure, seen


@pytest.mark.parametrize(
    ("low", "high"), [(-5.0, 5.0), (-5.0, 0.5), ([0.2, -5.0, 0.3, -5.0], [0.7, 5.0, 5.0, 0.1])]
)
def test_minima_are_those_of_scipy(low, high):
    start = [-1.2, 1.0, -0.5, 0.8]
    params, project, closure, seen = problem(start, low, high)
    optimizer = ProjectedLBFGS(params, project, max_iter=200, tol=0.0)
    optimizer.step(closure)
    bounds = list(zip(np.broadcast_to(low, 4), np.broadcast_to(high, 4), strict=True))
    expected = min(
        (
            minimize(
                lambda x: rosenbrock(torch.tensor(x)).item(),
                np.clip(s, *np.transpose(bounds)),
                bounds=bounds,
                options={"ftol": 1e-15, "gtol": 1e-9},
            )
            for s in (start, [0.5] * 4)
        ),
        key=lambda r: r.fun,
    )
    x = torch.cat(params).detach().numpy()
    assert rosenbrock(torch.tensor(x)).item() <= expected.fun + 1e-7
    for point in seen:
        assert (point.numpy() >= np.broadcast_to(low, 4)).all()
        assert (point.numpy() <= np.broadcast_to(high, 4)).all()


@pytest.mark.parametrize("wall", [0.3, None])
def test_a_cliff_near_the_start_is_no_minimum(wall):
    """Beyond it, an objective refuses all points; a bound is a minimum."""

    def function(x):
        beyond = wall is not None and (x > wall).any()
        return 1.0 - 5.0 * x.sum() + (1e10 * x.sum().abs() if beyond else 0.0)

    for start, is_near in ((0.0, False), (0.2999, True)):
        params, project, closure, _ = problem([start, start], -1.0, 0.5, function)
        optimizer = ProjectedLBFGS(params, project, max_iter=200)
        for _ in range(2):
            optimizer.step(closure)
        assert optimizer.converged
        assert optimizer.is_stuck == (is_near and wall is not None)
        np.testing.assert_allclose(torch.cat(params).detach(), wall or 0.5, atol=0.01)


@pytest.mark.parametrize("unit", [2.0**-40, 2.0**40])
def test_points_do_not_depend_on_the_units_of_the_loss(unit):
    """A loss per row, and that of all rows: the first step knows no scale, later ones know it."""
    start, points = [-1.2, 1.0, -0.5, 0.8], []
    for scale in (1.0, unit):
        params, project, closure, seen = problem(
            start, -5.0, 5.0, lambda x, scale=scale: scale * (1e3 + rosenbrock(x))
        )
        ProjectedLBFGS(params, project, max_iter=8, tol=0.0).step(closure)
        points.append(torch.stack(seen[:20]))
    torch.testing.assert_close(points[1], points[0], rtol=1e-6, atol=1e-6)
    assert float((points[0][1] - points[0][0]).abs().sum()) == pytest.approx(0.25)


def test_values_never_grow_from_step_to_step():
    params, project, closure, _ = problem([-1.2, 1.0, -0.5, 0.8], -4.0, 4.0)
    optimizer = make_optimizer("lbfgs", [{"params": params}], 0.1, project)
    values = [float(optimizer.step(closure)) for _ in range(12)]
    assert all(b <= a for a, b in itertools.pairwise(values))
    assert values[-1] < 1e-8


def test_a_wall_of_rejected_points_is_stepped_back_from():
    def walled(x):
        value = rosenbrock(x)
        return value if float(x.detach().max()) < 0.6 else 1e10 + 0.0 * value

    params, project, closure, _ = problem([-0.5, 0.2, 0.1, 0.1], -5.0, 5.0, walled)
    optimizer = ProjectedLBFGS(params, project, max_iter=60)
    before = float(closure())
    optimizer.step(closure)
    assert float(torch.cat(params).detach().max()) < 0.6
    assert float(walled(torch.cat(params)).detach()) < 0.3 * before  # 5.1: it got to the wall


def test_nothing_happens_at_a_minimum_and_where_bounds_hold_all():
    for start, low, high in (([1.0] * 4, -5.0, 5.0), ([0.3] * 4, 0.3, 0.3)):
        params, project, closure, seen = problem(start, low, high)
        ProjectedLBFGS(params, project).step(closure)
        assert torch.equal(torch.cat(params).detach(), torch.tensor(start, dtype=F64))
        assert len(seen) <= 2


def test_a_saved_state_goes_on_to_the_same_bits():
    params, project, closure, _ = problem([-1.2, 1.0, 3.0, -2.0], -4.0, 4.0)
    optimizer = ProjectedLBFGS(params, project, max_iter=5)
    optimizer.step(closure)
    saved, at = copy.deepcopy(optimizer.state_dict()), torch.cat(params).detach().clone()
    optimizer.step(closure)
    others, project, closure, _ = problem(at.tolist(), -4.0, 4.0)
    again = ProjectedLBFGS(others, project, max_iter=5)
    again.load_state_dict(saved)
    again.step(closure)
    assert torch.equal(torch.cat(others), torch.cat(params))


def test_the_recursion_inverts_a_quadratic():
    """With as many conjugate pairs as dimensions it is Newton's direction."""
    rng = torch.Generator().manual_seed(0)
    A = torch.randn(4, 4, generator=rng, dtype=F64)
    A = A @ A.mT + torch.eye(4, dtype=F64)
    values, vectors = torch.linalg.eigh(A)
    pairs = [(v, value * v) for value, v in zip(values, vectors.mT, strict=True)]
    g = torch.randn(4, generator=rng, dtype=F64)
    torch.testing.assert_close(quasi_newton(g, pairs), torch.linalg.solve(A, g))
    assert torch.equal(quasi_newton(g, []), g)


def test_steps_grow_where_the_first_was_short():
    """Wolfe's second condition: a valley far away takes few evaluations, not one for each unit."""
    params, project, closure, seen = problem(
        [0.0] * 4, -1e9, 1e9, lambda x: 1e-3 * (x - 1e5).square().sum()
    )
    ProjectedLBFGS(params, project, max_iter=50, tol=1e-15).step(closure)
    torch.testing.assert_close(torch.cat(params).detach(), torch.full((4,), 1e5, dtype=F64))
    assert len(seen) < 20


@pytest.mark.parametrize("high", [0.8, 5.0])
def test_a_first_step_does_not_leap_over_the_nearest_minimum(high):
    """As of a period: minima 1 apart, of which farther ones are lower, and a bound among them."""

    def waves(x):
        ripple = 1.0 - torch.cos(2.0 * np.pi * x[0])
        return 300.0 * (ripple - 0.1 * x[0]) + (x[1:] - 1.0).square().sum()

    params, project, closure, seen = problem([-0.2, 0.0, 0.0, 0.0], -5.0, high, waves)
    optimizer = ProjectedLBFGS(params, project, max_iter=100, tol=1e-14)
    optimizer.step(closure)
    found = torch.cat(params).detach()
    assert float(found[0]) == pytest.approx(0.0, abs=0.01)
    nearest = torch.tensor([1.0] * 3, dtype=F64).clamp(max=high)
    torch.testing.assert_close(found[1:], nearest, atol=1e-4, rtol=0.0)
    leap = seen[0].clone()
    leap[0] += 1.0
    assert float(waves(leap)) < float(waves(seen[0]))  # a leap would have been a gain


def test_evaluations_are_as_few_as_those_of_scipy():
    start = [-1.2, 1.0, -0.5, 0.8]
    params, project, closure, seen = problem(start, -5.0, 5.0)
    optimizer = ProjectedLBFGS(params, project, max_iter=200, memory=10, tol=1e-12)
    optimizer.step(closure)

    def value_and_slope(x):
        x = torch.tensor(x, requires_grad=True)
        value = rosenbrock(x)
        value.backward()
        return value.item(), x.grad.numpy()

    theirs = minimize(value_and_slope, start, jac=True, method="L-BFGS-B", bounds=[(-5, 5)] * 4)
    assert optimizer.converged
    assert optimizer.loss == pytest.approx(theirs.fun, abs=1e-8)
    assert len(seen) <= 1.3 * theirs.nfev


def test_infinite_values_are_stepped_back_from():
    def walled(x):
        value = rosenbrock(x)
        return value if float(x.detach().max()) < 0.6 else np.inf + 0.0 * value

    params, project, closure, _ = problem([-0.5, 0.2, 0.1, 0.1], -5.0, 5.0, walled)
    optimizer = ProjectedLBFGS(params, project, max_iter=60)
    before = float(closure())
    optimizer.step(closure)
    assert optimizer.loss == float(walled(torch.cat(params)).detach()) < 0.3 * before


def test_a_search_tells_how_it_ended():
    for options, converged in (({"max_iter": 2}, False), ({"max_iter": 300}, True)):
        params, project, closure, _ = problem([-1.2, 1.0, 3.0, -2.0], -4.0, 4.0)
        optimizer = ProjectedLBFGS(params, project, **options)
        optimizer.step(closure)
        assert optimizer.converged is converged
    params, project, closure, seen = problem([1.0 + 1e-9] * 4, -4.0, 4.0)
    optimizer = ProjectedLBFGS(params, project, gtol=1e-5)
    optimizer.step(closure)
    assert optimizer.converged
    assert len(seen) == 1


def test_an_accelerator_says_once_which_pairs_are_of_use(pretend):
    """And what the recursion comes to are the CPU's bits, of float32 too."""
    for dtype in (torch.float64, torch.float32):
        generator = torch.Generator().manual_seed(0)
        draws = torch.randn(5, 2, 7, generator=generator, dtype=dtype)
        pairs = [(s, s + 0.3 * y) for s, y in draws]
        pairs[2] = (pairs[2][0], -pairs[2][1])  # of no use
        slope = torch.ones(7, dtype=dtype)
        there = [(s.to("pretend"), y.to("pretend")) for s, y in pairs]
        pretend.clear()
        found = quasi_newton(slope.to("pretend"), there)
        assert pretend.n_waits == 1
        assert torch.equal(found.cpu(), quasi_newton(slope, pairs))
        without = quasi_newton(slope, pairs[:2] + pairs[3:])
        torch.testing.assert_close(quasi_newton(slope, pairs), without)
    assert torch.equal(quasi_newton(slope, []), slope)

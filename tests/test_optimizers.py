"""Schedules of learning rates."""

import pytest

from skgpstoch.training.optimizers import constant, one_cycle, theory


def test_one_cycle_warms_up_and_anneals_to_nothing():
    assert one_cycle(0, 100) == pytest.approx(0.04)
    assert one_cycle(30, 100) == pytest.approx(1.0)
    assert one_cycle(65, 100) == pytest.approx(0.5)
    assert one_cycle(100, 100) < 1e-12


def test_others():
    assert constant(7, 10) == 1.0
    assert [theory(t, 10) for t in (0, 15)] == [1.0, pytest.approx(0.125)]

"""Optimisers, and schedules of learning rates."""

import pytest
import torch
from torch import nn

from skgpstoch.training.optimizers import constant, make_optimizer, one_cycle, theory


def test_one_cycle_warms_up_and_anneals_to_nothing():
    assert one_cycle(0, 100) == pytest.approx(0.04)
    assert one_cycle(30, 100) == pytest.approx(1.0)
    assert one_cycle(65, 100) == pytest.approx(0.5)
    assert one_cycle(100, 100) < 1e-12


def test_others():
    assert constant(7, 10) == 1.0
    assert [theory(t, 10) for t in (0, 15)] == [1.0, pytest.approx(0.125)]


def test_adadelta_is_torchs_and_its_decay_is_a_part_of_the_gradient():
    """No step multiplies weights by 1 - rate * decay, which Adam's may not reverse."""
    ours, theirs = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    group = {"params": [ours], "weight_decay": 1.0}
    optimizers = (
        make_optimizer("adadelta", [group], 1.0),
        torch.optim.Adadelta([theirs], lr=1.0, weight_decay=1.0),
    )
    for _ in range(3):
        for p, optimizer in zip((ours, theirs), optimizers, strict=True):
            p.grad = torch.tensor([0.5, 0.0])
            optimizer.step()
    assert torch.equal(ours, theirs)
    with pytest.raises(ValueError, match="weight_decay must be below"):
        make_optimizer("adam", [{"params": [ours], "weight_decay": 1.0}], 1.0)

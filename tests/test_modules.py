"""Copies of modules: as torch's own, and quicker."""

import copy

import pytest
import torch
from torch import nn

from skgpstoch.maths.modules import Module


class Pair(Module):
    """Two modules that share a parameter, a buffer, and one child under two names."""

    def __init__(self):
        super().__init__()
        self.child = nn.Linear(2, 1)
        self.same = self.child
        self.bias = self.child.bias
        self.register_buffer("steps", torch.zeros(2), persistent=False)
        self.found, self.alias = {"of": self.steps}, self.steps


def containers(module):
    return {name: value for name, value in vars(module).items() if isinstance(value, dict | set)}


def test_copies_are_those_of_torch():
    given, copied = Pair(), copy.deepcopy(pair := Pair())
    assert list(vars(copied)) == list(vars(given))
    assert [name for name, _ in copied.named_parameters()] == ["bias", "child.weight"]
    assert copied.same is copied.child
    assert copied.bias is copied.child.bias
    assert copied.alias is copied.steps is copied.found["of"]
    assert {name: type(value) for name, value in containers(copied).items()} == {
        name: type(value) for name, value in containers(pair).items()
    }
    shared = {id(value) for value in containers(pair).values()}
    assert not shared & {id(value) for value in containers(copied).values()}
    for one, other in zip(pair.parameters(), copied.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()


@pytest.mark.parametrize("is_first", [True, False])
def test_hooks_are_copied_and_those_of_a_copy_are_its_own(is_first):
    module, calls = Pair(), []
    copied = None if is_first else copy.deepcopy(module)
    module.register_forward_pre_hook(lambda *args: calls.append("hook"))
    copied = copied or copy.deepcopy(module)
    copied.forward = lambda: None
    copied()
    assert calls == ["hook"] * is_first

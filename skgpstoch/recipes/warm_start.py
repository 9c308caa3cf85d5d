"""Start a fit from a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..kernels import Kernel


class Start(NamedTuple):
    """A model from which a fit starts.

    Parameters
    ----------
    posterior : Posterior
        The fitted posterior, or another object with its `model`.
    changed : mapping of str to str, default={}
        Structural parameters that have changed since that fit, each with a description such as
        "n_inducing=20 (before: 10)".
    is_fixed : bool, default=False
        Whether kernel, likelihood and points stay as they were fitted.
    keeps_q : bool, default=True
        Whether q(w), if `is_fixed`, starts as it was fitted; otherwise it starts at the prior.
    is_new : bool, default=False
        Whether the model was made for this fit, which then trains it; otherwise it trains a copy.
    """

    posterior: Any
    changed: Mapping[str, str] = {}
    is_fixed: bool = False
    keeps_q: bool = True
    is_new: bool = False

    def describe_changes(self) -> str:
        """Return what has changed, for an error message."""
        return ", ".join(self.changed.values())

    def check_unchanged(self, names: tuple[str, ...] | None = None) -> None:
        """Raise a ValueError if any of these parameters, or any at all, has changed."""
        changed = [text for name, text in self.changed.items() if names is None or name in names]
        if changed:
            raise ValueError(
                "warm_start=True continues the model that was fitted before, but "
                f"{', '.join(changed)} needs a different one. Set these parameters "
                "back, or fit with warm_start=False."
            )

    def number(self, name: str, asked: int | str, n_fitted: int) -> int:
        """Return the number of fitted points; if the parameter has changed, they must agree."""
        # An unchanged parameter may exceed it, because there were too few rows to choose from.
        return given_number(asked, name, n_fitted) if name in self.changed else n_fitted


def given_number(asked: int | str, name: str, n_given: int) -> int:
    """Return the number of given points; raise a ValueError if the parameter differs from it."""
    if asked not in ("auto", n_given):
        raise ValueError(
            f"{name}={asked} must be 'auto' or {n_given}, the number of points that are "
            "given or, with warm_start, were fitted before."
        )
    return n_given


def load_fitted(module: nn.Module, fitted: nn.Module, start: Start) -> None:
    """Copy the parameters of a fitted module, and its buffers except those of kernels.

    Raises
    ------
    ValueError
        If the fitted module has other parameters.
    """
    given, wanted = dict(fitted.named_parameters()), dict(module.named_parameters())
    same = given.keys() == wanted.keys()
    if not same or any(given[name].shape != wanted[name].shape for name in wanted):
        raise ValueError(
            "warm_start=True needs a model of the same shape as before, but "
            f"{start.describe_changes() or 'the shape of y'} changes it. Set it back, or "
            "fit with warm_start=False."
        )
    buffers = dict(module.named_buffers())
    of_kernels = tuple(f"{name}." for name, m in module.named_modules() if isinstance(m, Kernel))
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(given[name])
        for name, buffer in fitted.named_buffers():
            fits = name in buffers and buffers[name].shape == buffer.shape
            if fits and not name.startswith(of_kernels):
                buffers[name].copy_(buffer)

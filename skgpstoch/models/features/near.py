"""Features in which rows are near that have similar targets, for nearest-neighbour processes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ...maths.modules import Module
from .network import FARTHEST_INPUT, InputLimits, MemberLinear, multilayer_perceptron

SKIP = -2.0  # log scale of the inputs beside the network's outputs, for one input


class NearFeatures(Module):
    """[s·x, h(x)]: inputs, each times a scale, and directions of a network's last layer.

    The network sees inputs times scales of their own, so that an irrelevant one can fade.

    Parameters
    ----------
    X : Tensor of shape (N, d)
        Training rows.
    layers : tuple of int
        Widths of the hidden layers.
    activation : str
        Activation after every layer.
    dropout : float
        Share of units that are dropped in training.
    n_directions : int
        Number of outputs h.
    generator : torch.Generator
        Draws the starting values.
    """

    def __init__(
        self,
        X: Tensor,
        layers: tuple[int, ...],
        activation: str,
        dropout: float,
        n_directions: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        d = X.shape[1]
        kind: dict[str, Any] = {"dtype": torch.float32, "device": X.device}
        self.limits = InputLimits(X.float())
        self.gate = nn.Parameter(torch.ones(d, **kind))
        self.network = multilayer_perceptron(d, layers, activation, generator)
        self.dropout = dropout
        self.network_head = MemberLinear(1, layers[-1], n_directions, generator)
        self.log_scale = nn.Parameter(torch.full((d,), SKIP - 0.5 * math.log(d), **kind))

    def hidden(self, X: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the last hidden layer, (N, D); drop units if there is a generator."""
        Z = self.limits(X.to(self.gate).clamp(-FARTHEST_INPUT, FARTHEST_INPUT)) * self.gate
        Z = Z[None]
        for layer in self.network:
            Z = layer(Z)
            is_linear = isinstance(layer, MemberLinear)
            if generator is not None and self.dropout and not is_linear:
                kept = torch.empty_like(Z).uniform_(generator=generator) >= self.dropout
                Z = Z * kept / (1.0 - self.dropout)
        return Z[0]

    def forward(self, X: Tensor, generator: torch.Generator | None = None) -> Tensor:
        h = self.network_head(self.hidden(X, generator)[None])[0]
        inputs = self.limits(X.to(self.gate).clamp(-FARTHEST_INPUT, FARTHEST_INPUT))
        return torch.cat([inputs * self.log_scale.exp(), h], -1)

    @torch.no_grad()
    def set_directions_(self, X: Tensor) -> None:
        """Set h to the principal directions of the hidden layer at the rows of X.

        Their variances fall half as fast, on a logarithmic scale, as those of the layer.
        """
        H = self.hidden(X)
        centre = H.mean(0)
        _, S, V = torch.linalg.svd((H - centre).double(), full_matrices=False)
        k = min(self.network_head.weight.shape[2], len(S))
        S = S[:k].clamp_min(1e-6 * float(S[0]) + 1e-12)
        W = V[:k] / (S / math.sqrt(len(X)))[:, None] * (S / S[0]).sqrt()[:, None]
        self.network_head.weight.zero_()
        self.network_head.bias.zero_()
        self.network_head.weight[0, :, :k] = W.mT.to(self.gate)
        self.network_head.bias[0, 0, :k] = -(W @ centre.double()).to(self.gate)

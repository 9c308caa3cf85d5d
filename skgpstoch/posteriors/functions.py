"""Draw functions from priors and posteriors; they can be evaluated at any rows.

Wilson, Borovitskiy, Terenin, Mostowsky & Deisenroth, "Efficiently sampling functions from Gaussian
process posteriors", ICML 2020. By Matheron's rule a draw from the prior becomes a draw from the
posterior by an update with the data,

    (f | y)(x) = f(x) + k(x, X) C⁻¹ (y − f(X) − ε),   ε ~ N(0, noise),                       (13)

where the prior draw is φ(x)ᵀw with random Fourier features φ and w ~ N(0, I). Every draw has its
own frequencies. Since E[φ(x)ᵀφ(x')] = k(x, x') and the update is linear in f, the means and
covariances of draws are exact for any number of features. (With common frequencies, the errors of
the covariances would be common to all draws.) More features make draws more nearly Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..features.fourier import KernelFeatures
from ..kernels import Kernel
from ..maths.gaussian import standard_normal

N_COMPONENTS = 1024
"""Number of random Fourier features of a draw."""

MOST_SEED = 2**31 - 1

Functions = Callable[[Tensor], Tensor]
"""Maps X (N, d) to the values of S functions with P outputs, (S, N, P), without randomness."""


def prior_functions(
    kernel: Kernel, n_inputs: int, n_samples: int, n_outputs: int, generator: torch.Generator
) -> Functions:
    """Draw functions f ~ GP(0, k), which are differentiable by the inputs.

    Parameters
    ----------
    kernel : Kernel
        Kernel k, a sum of products that have finite features, exact or random.
    n_inputs : int
        Columns of the inputs.
    n_samples, n_outputs : int
        Numbers S of functions and P of outputs.
    generator : torch.Generator
        Randomness.

    Raises
    ------
    TypeError
        If a term of the kernel has no features.
    """
    device = generator.device
    seeds = torch.randint(MOST_SEED, (n_samples,), generator=generator, device=device).tolist()
    maps = [
        KernelFeatures(kernel, nn.Identity(), n_inputs, N_COMPONENTS, seed).to(device)
        for seed in seeds
    ]
    n_features = maps[0].n_features if maps else 0
    like = torch.empty(0, dtype=torch.float64, device=device)
    W = standard_normal((n_samples, n_features, n_outputs), like, generator)

    def values(G: Tensor) -> Tensor:
        pairs = zip(maps, W, strict=True)
        return torch.stack([features(G) @ w for features, w in pairs])  # (S, N, P)

    return values


def updated_functions(
    prior: Functions, kernel: Kernel, G_train: Tensor, coefficients: Tensor
) -> Functions:
    """Return f + k(·, X)V, for V = C⁻¹(y − f(X) − ε) (S, N, P) (13)."""

    def values(G: Tensor) -> Tensor:
        return prior(G) + kernel(G, G_train) @ coefficients

    return values

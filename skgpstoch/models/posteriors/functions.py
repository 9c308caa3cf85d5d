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

from ...kernels import Kernel
from ...maths.gaussian import standard_normal
from ..features.fourier import KernelFeatures

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


def posterior_functions(
    kernel: Kernel,
    network: nn.Module,
    G: Tensor,
    y: Tensor,
    noise: Tensor,
    solve: Functions,
    n_samples: int,
    generator: torch.Generator,
) -> Functions:
    """Draw f(g(x)) given y, f + k(·, X)V for V = C⁻¹(y − f(X) − ε), (13).

    Parameters
    ----------
    kernel, network
        k and g.
    G, y, noise : Tensor of shape (N, D), (N, P) and (N, P) or (N, 1)
        g of the rows, their targets, and the variance of ε.
    solve : callable
        Maps (S, N, P) to the product with C⁻¹.
    n_samples, generator
        As for :func:`prior_functions`.
    """
    f = prior_functions(kernel, G.shape[1], n_samples, y.shape[1], generator)
    z = standard_normal((n_samples, *y.shape), y, generator)
    V = solve(y - f(G) - noise.sqrt() * z)  # (S, N, P)

    def values(X: Tensor) -> Tensor:
        at = network(X)
        return f(at) + kernel(at, G) @ V

    return values

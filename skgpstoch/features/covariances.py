"""Covariances of f at rows and of what inducing points stand for."""

from __future__ import annotations

import itertools

from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ..kernels import Kernel, from_sklearn, to_sklearn


class Covariances(nn.Module):
    """Of inducing points that are inputs, with the values of f there.

    Parameters
    ----------
    kernel : Kernel
        k.
    """

    has_inputs: bool = True
    """Whether points are inputs, to a network as well."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel
        self.trained_kernel: Kernel | None = None

    def cross(self, G: Tensor, Z: Tensor) -> Tensor:
        """Of f at rows with the values at points, (N, M)."""
        return self.kernel(G, Z)

    def among(self, Z: Tensor, Z2: Tensor | None = None) -> Tensor:
        """Of the values at points, (M, M₂)."""
        return self.kernel(Z, Z2)

    def prior(self, G: Tensor) -> Tensor:
        """Variances of f at rows, (N,)."""
        return self.kernel.diag(G)

    def gram(self, G: Tensor) -> Tensor:
        """Of f at rows, (N, N)."""
        return self.kernel(G)

    def clamp_(self) -> None:
        """Bring hyper-parameters back within their bounds."""
        self.kernel.clamp_()

    def scale_variance(self, factor: float) -> None:
        """All of them `factor` times as large, for predictions."""
        self.trained_kernel, self.kernel = self.kernel, scaled(self.kernel, factor)

    def unscale(self) -> None:
        """Undo that."""
        if self.trained_kernel is not None:
            self.kernel = self.trained_kernel
        self.trained_kernel = None


def scaled(module: Kernel, factor: float) -> Kernel:
    """A new kernel, `factor` times that of a module.

    Parameters
    ----------
    module : Kernel
        On any device.
    factor : float
        Greater than 0. A constant in front of the kernel takes it in; else there will be one.

    Returns
    -------
    Kernel
        On the same device.

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skgpstoch.features.covariances import scaled
    >>> from skgpstoch.kernels import from_sklearn, to_sklearn
    >>> to_sklearn(scaled(from_sklearn(2.0 * RBF(length_scale=1.0)), 8.0))
    4**2 * RBF(length_scale=1)
    """
    expression = to_sklearn(module)
    if isinstance(expression, sk.Product) and isinstance(expression.k1, sk.ConstantKernel):
        expression.k1.constant_value *= factor
    else:
        expression = sk.ConstantKernel(factor, "fixed") * expression
    where = next(itertools.chain(module.parameters(), module.buffers()), module.theta)
    return from_sklearn(expression).to(where.device)

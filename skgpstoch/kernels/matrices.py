"""Covariance matrices and their gradients for exact posteriors, in blocks of rows.

A kernel that :func:`~skgpstoch.kernels.from_sklearn` supports is computed in torch. Its gradient is
never stored as one matrix per hyper-parameter. A marginal likelihood needs only the traces
tr(G ∂K/∂θ_j) with one matrix G, so G is pulled back through the kernel. Any other kernel object is
evaluated by its own NumPy code.
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ..data.arrays import row_blocks
from ..data.devices import block_elements
from ..maths.pull_back import pulled_back
from .expressions import UnsupportedKernelError, from_sklearn
from .traces import Made, Points, SumOfProducts, sum_of_products

LEAST_ROWS = 64
"""Fewest rows of a block, however long the rows are."""

Pull = Callable[[Tensor], np.ndarray]
"""Maps the lower triangle of symmetric G (N, N), overwriting it, to Σᵢⱼ Gᵢⱼ ∂Kᵢⱼ/∂θ, (n_dims,)."""


class Covariance(ABC):
    """Covariances of N training rows, and of other rows with them, at hyper-parameters θ.

    Rows of X are whatever the kernel takes: vectors or other objects. Results are float64 tensors
    on the device.
    """

    n_rows: int
    device: torch.device

    @abstractmethod
    def set_theta(self, theta: np.ndarray) -> None:
        """Move to other log-hyper-parameters, (n_dims,)."""

    @abstractmethod
    def gram_(self, K: Tensor, pulls: bool = False) -> Pull | None:
        """Overwrite the lower triangle of K (N, N) with k(X, X); return its gradient if `pulls`."""

    @abstractmethod
    def cross(self, X: Any) -> Tensor:
        """Return k(X*, X), (N*, N)."""

    @abstractmethod
    def among(self, X: Any) -> Tensor:
        """Return k(X*, X*), (N*, N*), white noise included."""

    @abstractmethod
    def diag(self, X: Any) -> Tensor:
        """Return k(x, x), (N*,), white noise included."""

    @property
    def block_rows(self) -> int:
        """Number of rows whose covariances with all rows form a block."""
        return max(LEAST_ROWS, block_elements(self.device) // self.n_rows)

    def _tensor(self, values: Any) -> Tensor:
        if isinstance(values, Tensor):
            return values.to(self.device, torch.float64)
        return torch.tensor(np.asarray(values), dtype=torch.float64, device=self.device)

    def empty(self) -> Tensor:
        """Return an uninitialised matrix (N, N)."""
        n = self.n_rows
        try:
            return torch.empty(n, n, dtype=torch.float64, device=self.device)
        except RuntimeError as error:
            raise MemoryError(
                f"The covariance of {n} rows takes {8e-9 * n * n:.3g} GB. Use a method for "
                "many rows, or fit fewer rows."
            ) from error


class TermsCovariance(Covariance):
    """Covariances of a sum of products of kernels on vectors; the gradient needs no graph."""

    def __init__(self, terms: SumOfProducts, X: Any, device: torch.device) -> None:
        self.terms = terms
        self.device = device
        rows = self._tensor(X)
        self.centre = rows.mean(0)
        self.points = Points.about(rows, self.centre)
        self.n_rows = len(X)
        self.blocks = list(row_blocks(self.n_rows, self.block_rows))

    def set_theta(self, theta: np.ndarray) -> None:
        self.terms.set_theta(theta)

    @torch.no_grad()
    def gram_(self, K: Tensor, pulls: bool = False) -> Pull | None:
        for block in self.blocks:
            made = self._made(block)
            self.terms.fill_(K[block, : block.stop], made)
        K.diagonal().add_(self.terms.white_variance)
        kept = made if len(self.blocks) == 1 else None
        return functools.partial(self._pull, kept) if pulls else None

    def _made(self, block: slice) -> Made:
        """Return the factors between a block of rows and all rows up to the block's last."""
        if len(self.blocks) == 1:
            return self.terms.made(self.points, self.points)
        return self.terms.made(self.points.some(block), self.points.some(slice(block.stop)))

    @torch.no_grad()
    def _pull(self, kept: Made | None, G: Tensor) -> np.ndarray:
        """Return the traces block by block; recomputing factors saves the memory for them."""
        total = self.terms.white_traces(float(G.diagonal().sum()))
        for block in self.blocks:
            made = self._made(block) if kept is None else kept
            total += self.terms.traces(lower_weights_(G, block), made)
        return total[self.terms.is_free]

    def _points(self, X: Any) -> Points:
        """Return other rows, centred on the training rows' centre."""
        return Points.about(self._tensor(X), self.centre)

    def _between(self, a: Points, b: Points) -> Tensor:
        """Return k(a, b), (N, M), without white noise."""
        return self.terms.fill_(a.X.new_empty(len(a.X), len(b.X)), self.terms.made(a, b))

    @torch.no_grad()
    def cross(self, X: Any) -> Tensor:
        return self._between(self._points(X), self.points)

    @torch.no_grad()
    def among(self, X: Any) -> Tensor:
        points = self._points(X)
        K = self._between(points, points)
        K.diagonal().add_(self.terms.white_variance)
        return K

    @torch.no_grad()
    def diag(self, X: Any) -> Tensor:
        return self.terms.diagonal(self._points(X))


class GraphCovariance(Covariance):
    """Covariances of any other supported kernel on vectors; autograd computes the gradient."""

    def __init__(self, kernel: sk.Kernel, X: np.ndarray, device: torch.device) -> None:
        self.kernel = from_sklearn(kernel).to(device)
        self.parameters = list(self.kernel.parameters())  # in the order of θ
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.device = device
        self.X = self._tensor(X)
        self.n_rows = len(X)

    def set_theta(self, theta: np.ndarray) -> None:
        set_theta(self.parameters, theta)

    def gram_(self, K: Tensor, pulls: bool = False) -> Pull | None:
        rows = list(row_blocks(self.n_rows, self.block_rows))
        if len(rows) == 1:  # whose graph may stay
            with torch.set_grad_enabled(pulls):
                whole = self.kernel(self.X)
            K.copy_(whole.detach())
            return (lambda G: self._traces([(whole, weights(G, rows[0]))])) if pulls else None
        with torch.no_grad():
            for block in rows:
                K[block, block] = self.kernel(self.X[block])
                K[block, : block.start] = self._left_of(block)
        return self._pull if pulls else None

    def _left_of(self, block: slice) -> Tensor:
        """Return the covariances between a block of rows and all rows before it."""
        if block.start == 0:
            return self.X.new_empty(block.stop, 0)
        return self.kernel(self.X[block], self.X[: block.start])

    def _pull(self, G: Tensor) -> np.ndarray:
        """Return the traces block by block; recomputing covariances saves the memory for them."""
        total = np.zeros(sum(self.sizes))
        for block in row_blocks(self.n_rows, self.block_rows):
            with torch.enable_grad():
                pairs = [(self.kernel(self.X[block]), weights(G, block))]
                if block.start:
                    pairs.append((self._left_of(block), 2.0 * G[block, : block.start]))
            total += self._traces(pairs)
        return total

    def _traces(self, pairs: list[tuple[Tensor, Tensor]]) -> np.ndarray:
        """Return Σ Gᵢⱼ ∂Kᵢⱼ/∂θ over pairs of K and G."""
        pairs = [(K, G) for K, G in pairs if K.requires_grad]
        if not pairs:
            return np.zeros(sum(self.sizes))
        K, weights_of_K = zip(*pairs, strict=True)
        gradients = pulled_back(K, weights_of_K, self.parameters)
        return torch.cat([g.reshape(-1) for g in gradients]).cpu().numpy()

    @torch.no_grad()
    def cross(self, X: np.ndarray) -> Tensor:
        return self.kernel(self._tensor(X), self.X)

    @torch.no_grad()
    def among(self, X: np.ndarray) -> Tensor:
        return self.kernel(self._tensor(X)).clone()

    @torch.no_grad()
    def diag(self, X: np.ndarray) -> Tensor:
        return self.kernel.diag(self._tensor(X))


class ObjectCovariance(Covariance):
    """Covariances of any kernel object, computed by the object itself."""

    def __init__(self, kernel: sk.Kernel, X: Any, device: torch.device) -> None:
        self.kernel = clone(kernel)
        self.device = device
        self.X = X
        self.n_rows = len(X)

    def set_theta(self, theta: np.ndarray) -> None:
        self.kernel.theta = theta

    def gram_(self, K: Tensor, pulls: bool = False) -> Pull | None:
        if not pulls:
            K.copy_(self._tensor(self.kernel(self.X)))
            return None
        values, gradients = self.kernel(self.X, eval_gradient=True)
        K.copy_(self._tensor(values))

        def pull(G: Tensor) -> np.ndarray:
            whole = weights(G, slice(0, self.n_rows)).cpu().numpy()
            return np.einsum("ij,ijk->k", whole, gradients)

        return pull

    def cross(self, X: Any) -> Tensor:
        return self._tensor(self.kernel(X, self.X))

    def among(self, X: Any) -> Tensor:
        return self._tensor(self.kernel(X))

    def diag(self, X: Any) -> Tensor:
        return self._tensor(self.kernel.diag(X))


def covariance_of(kernel: sk.Kernel, X: Any, device: torch.device) -> Covariance:
    """Return the covariances of rows X: in torch if the kernel is supported, else by its object."""
    if kernel.requires_vector_input:
        if terms := sum_of_products(kernel):
            return TermsCovariance(terms, X, device)
        with contextlib.suppress(TypeError, UnsupportedKernelError):
            return GraphCovariance(kernel, X, device)
    return ObjectCovariance(kernel, X, device)


@torch.no_grad()
def set_theta(parameters: Iterable[nn.Parameter], theta: np.ndarray | Tensor) -> None:
    """Move the free log-hyper-parameters of a kernel in torch, in place."""
    parameters = list(parameters)
    sizes = [parameter.numel() for parameter in parameters]
    values = torch.as_tensor(theta, dtype=torch.float64, device="cpu").split(sizes)
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value.reshape(parameter.shape))


def why_object(kernel: sk.Kernel) -> str | None:
    """Return why a kernel is evaluated by its object; None if it runs in torch.

    Raises
    ------
    ValueError
        If a hyper-parameter has an invalid value.
    """
    if not kernel.requires_vector_input:
        return f"{kernel} does not take vectors as inputs"
    terms = sum_of_products(kernel)
    if terms is not None and (terms.values > 0.0).all():  # which takes less time to find out
        return None
    try:
        from_sklearn(kernel)
    except (TypeError, UnsupportedKernelError) as error:
        return str(error).rstrip(".")
    return None


def lower_weights_(G: Tensor, block: slice) -> Tensor:
    """Overwrite a block of rows of a symmetric G, up to its diagonal, with :func:`weights`."""
    W = G[block, : block.stop].mul_(2.0)
    on = W[:, block.start :].tril_()
    on.diagonal().mul_(0.5)
    return W


def weights(G: Tensor, block: slice) -> Tensor:
    """Return a diagonal block's weights: the diagonal of symmetric G, and twice what is below."""
    on = G[block, block].tril()
    return on.add_(on.tril(-1))

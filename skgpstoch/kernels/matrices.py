"""Covariance matrices and their gradients for exact posteriors, in blocks of rows.

A kernel that :func:`~skgpstoch.kernels.from_sklearn` knows is computed in torch, its gradient never
an array for each hyper-parameter: as all a marginal likelihood wants of ∂K/∂θ are the traces
tr(G ∂K/∂θ_j) against one matrix G, they are what is pulled back through the kernel. Any other runs
as the object that it is, in NumPy.
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
"""Rows of a block, however long they are."""

Pull = Callable[[Tensor], np.ndarray]
"""Lower triangle of a symmetric G (N, N), which it may overwrite → Σᵢⱼ Gᵢⱼ ∂Kᵢⱼ/∂θ, (n_dims,)."""


class Covariance(ABC):
    """k of N rows, and of others with them, at hyper-parameters θ.

    Rows of X are what the kernel takes, vectors or other objects. Results are float64, on the
    device.
    """

    n_rows: int
    device: torch.device

    @abstractmethod
    def set_theta(self, theta: np.ndarray) -> None:
        """Move to other log-hyper-parameters, (n_dims,)."""

    @abstractmethod
    def gram_(self, K: Tensor, pulls: bool = False) -> Pull | None:
        """Overwrite the lower triangle of K with k(X, X), (N, N); if asked, its gradient."""

    @abstractmethod
    def cross(self, X: Any) -> Tensor:
        """k(X*, X), (N*, N)."""

    @abstractmethod
    def among(self, X: Any) -> Tensor:
        """k(X*, X*), (N*, N*), white noise included."""

    @abstractmethod
    def diag(self, X: Any) -> Tensor:
        """k(x, x), (N*,), white noise included."""

    @property
    def block_rows(self) -> int:
        """Rows whose covariances with all are a block."""
        return max(LEAST_ROWS, block_elements(self.device) // self.n_rows)

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(np.asarray(values), dtype=torch.float64, device=self.device)

    def empty(self) -> Tensor:
        """Memory for a matrix (N, N)."""
        n = self.n_rows
        try:
            return torch.empty(n, n, dtype=torch.float64, device=self.device)
        except RuntimeError as error:
            raise MemoryError(
                f"The covariance of {n} rows takes {8e-9 * n * n:.3g} GB. Use a method for "
                "many rows, or fit fewer rows."
            ) from error


class TermsCovariance(Covariance):
    """Of a sum of products, on vectors: its gradient needs no graph."""

    def __init__(self, terms: SumOfProducts, X: np.ndarray, device: torch.device) -> None:
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
        """Return the factors of some rows with all up to the last of them."""
        if len(self.blocks) == 1:
            return self.terms.made(self.points, self.points)
        return self.terms.made(self.points.some(block), self.points.some(slice(block.stop)))

    @torch.no_grad()
    def _pull(self, kept: Made | None, G: Tensor) -> np.ndarray:
        """By blocks of rows, whose factors are made again: they cost less than their memory."""
        total = self.terms.white_traces(float(G.diagonal().sum()))
        for block in self.blocks:
            made = self._made(block) if kept is None else kept
            total += self.terms.traces(lower_weights_(G, block), made)
        return total[self.terms.is_free]

    def _points(self, X: np.ndarray) -> Points:
        """Return other rows, about the same centre."""
        return Points.about(self._tensor(X), self.centre)

    def _between(self, a: Points, b: Points) -> Tensor:
        """Return k(a, b), (N, M), but for white noise."""
        return self.terms.fill_(a.X.new_empty(len(a.X), len(b.X)), self.terms.made(a, b))

    @torch.no_grad()
    def cross(self, X: np.ndarray) -> Tensor:
        return self._between(self._points(X), self.points)

    @torch.no_grad()
    def among(self, X: np.ndarray) -> Tensor:
        points = self._points(X)
        K = self._between(points, points)
        K.diagonal().add_(self.terms.white_variance)
        return K

    @torch.no_grad()
    def diag(self, X: np.ndarray) -> Tensor:
        return self.terms.diagonal(self._points(X))


class GraphCovariance(Covariance):
    """Of any other kernel that is known, on vectors: autograd has its gradient."""

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
        """The covariance of some rows with all that come before them."""
        if block.start == 0:
            return self.X.new_empty(block.stop, 0)
        return self.kernel(self.X[block], self.X[: block.start])

    def _pull(self, G: Tensor) -> np.ndarray:
        """By blocks of rows, whose covariances are made again: they cost less than their memory."""
        total = np.zeros(sum(self.sizes))
        for block in row_blocks(self.n_rows, self.block_rows):
            with torch.enable_grad():
                pairs = [(self.kernel(self.X[block]), weights(G, block))]
                if block.start:
                    pairs.append((self._left_of(block), 2.0 * G[block, : block.start]))
            total += self._traces(pairs)
        return total

    def _traces(self, pairs: list[tuple[Tensor, Tensor]]) -> np.ndarray:
        """Σ Gᵢⱼ ∂Kᵢⱼ/∂θ of pairs of K and G."""
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
    """Of any kernel object: what it computes is computed by it."""

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
    """The kernel of rows X: in torch where it is known there, else by its object."""
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
    """Why a kernel runs as the object that it is; None where it runs in torch.

    Raises
    ------
    ValueError
        If a hyper-parameter has a value that no kernel can have.
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
    """Overwrite the left of a block of rows of a symmetric G by what counts of it, as `weights`."""
    W = G[block, : block.stop].mul_(2.0)
    on = W[:, block.start :].tril_()
    on.diagonal().mul_(0.5)
    return W


def weights(G: Tensor, block: slice) -> Tensor:
    """What counts of a diagonal block of a symmetric G: its diagonal, and twice what is below."""
    on = G[block, block].tril()
    return on.add_(on.tril(-1))

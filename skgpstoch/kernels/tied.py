"""Hyper-parameters that several parts of an expression share.

scikit-learn's expressions give every part a value of its own. :class:`TiedKernel` wraps one, some
of whose hyper-parameters are one and the same: it counts once in ``theta``, and its gradient is the
sum of theirs. In torch these are one :class:`torch.nn.Parameter` of several modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from .expressions import MODULES, Kernel, from_sklearn


class TiedKernel(sk.Kernel):
    """An expression of kernels, some of whose hyper-parameters are one and the same.

    Parameters
    ----------
    kernel : sklearn kernel
        The expression.
    ties : list of tuple of str
        Names of hyper-parameters of `kernel` that are one, as in its `get_params`. All have the
        value and the bounds of the one that comes first in `kernel.hyperparameters`.

    Examples
    --------
    A locally periodic kernel with one length-scale:

    >>> from sklearn.gaussian_process.kernels import RBF, ExpSineSquared
    >>> from skgpstoch.kernels import TiedKernel
    >>> kernel = TiedKernel(
    ...     ExpSineSquared(0.5, 1.0) * RBF(0.5), [("k1__length_scale", "k2__length_scale")]
    ... )
    >>> [hyperparameter.name for hyperparameter in kernel.hyperparameters]
    ['kernel__k1__length_scale', 'kernel__k1__periodicity']
    >>> kernel.clone_with_theta([0.0, 0.0]).kernel
    ExpSineSquared(length_scale=1, periodicity=1) * RBF(length_scale=1)
    """

    def __init__(self, kernel: sk.Kernel, ties: Sequence[Sequence[str]]) -> None:
        self.kernel = kernel
        self.ties = ties

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, and those of the expression as ``kernel__<name>``."""
        params = {"kernel": self.kernel, "ties": self.ties}
        if deep:
            params |= {f"kernel__{name}": value for name, value in self.kernel.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters, of tied ones the one that the others follow.

        Raises
        ------
        ValueError
            If a name is that of one that follows another, or is unknown.
        """
        leaders = self.leaders() if "kernel" not in params and "ties" not in params else {}
        for name, leader in leaders.items():
            for part in ("", "_bounds"):
                if f"kernel__{name}{part}" in params:
                    raise ValueError(
                        f"kernel__{name}{part} is tied to kernel__{leader}{part} and follows it; "
                        f"set kernel__{leader}{part} instead."
                    )
        return super().set_params(**params)

    def leaders(self) -> dict[str, str]:
        """Return the name that each tied one follows.

        Raises
        ------
        ValueError
            If a name in `ties` is no hyper-parameter, is there twice, or has another length.
        """
        sizes = {h.name: h.n_elements for h in self.kernel.hyperparameters}
        named = [name for tie in self.ties for name in tie]
        if unknown := sorted(set(named) - set(sizes)):
            raise ValueError(
                f"ties must name hyper-parameters of {self.kernel}, which are "
                f"{list(sizes)}; got {unknown}."
            )
        if len(named) > len(set(named)):
            raise ValueError(f"ties must use each name only once, got {self.ties}.")
        order, leaders = list(sizes), dict[str, str]()
        for tie in self.ties:
            first, *others = sorted(tie, key=order.index)
            if len({sizes[name] for name in tie}) > 1:
                raise ValueError(
                    f"ties must join hyper-parameters of one length, got {list(tie)} of "
                    f"the lengths {[sizes[name] for name in tie]}."
                )
            leaders |= dict.fromkeys(others, first)
        return leaders

    @property
    def whole(self) -> sk.Kernel:
        """A copy of the expression, each of whose tied ones has its leader's value and bounds."""
        kernel, params = clone(self.kernel), self.kernel.get_params()
        taken = {
            name + part: params[leader + part]
            for name, leader in self.leaders().items()
            for part in ("", "_bounds")
        }
        return kernel.set_params(**taken)

    @property
    def hyperparameters(self) -> list[sk.Hyperparameter]:
        """Hyper-parameters, a tied one once."""
        leaders = self.leaders()
        return [
            sk.Hyperparameter(f"kernel__{h.name}", h.value_type, h.bounds, h.n_elements)
            for h in self.kernel.hyperparameters
            if h.name not in leaders
        ]

    @property
    def theta(self) -> np.ndarray:
        """Logarithms of the free hyper-parameters, (n_dims,)."""
        return super().theta

    @theta.setter
    def theta(self, theta: np.ndarray) -> None:
        kernel = self.whole
        kernel.theta = np.asarray(theta)[self._columns(kernel)]
        self.kernel = kernel

    def _columns(self, whole: sk.Kernel) -> np.ndarray:
        """Return of each of the expression's θ which one of these it is."""
        leaders, first, n_dims = self.leaders(), dict[str, int](), 0
        columns: list[int] = []
        for h in whole.hyperparameters:
            if not h.fixed:
                if h.name not in leaders:
                    first[h.name], n_dims = n_dims, n_dims + h.n_elements
                start = first[leaders.get(h.name, h.name)]
                columns += range(start, start + h.n_elements)
        return np.array(columns, dtype=int)

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        """Return k(X, Y), and its gradient by θ if asked."""
        whole = self.whole
        if not eval_gradient:
            return whole(X, Y)
        K, gradient = whole(X, Y, eval_gradient=True)
        total = np.zeros((*gradient.shape[:2], self.n_dims))
        for j, column in enumerate(self._columns(whole)):
            total[..., column] += gradient[..., j]
        return K, total

    def diag(self, X: Any) -> np.ndarray:
        """Return k(x, x)."""
        return self.whole.diag(X)

    def is_stationary(self) -> bool:
        """Tell whether the expression is stationary."""
        return self.kernel.is_stationary()

    @property
    def requires_vector_input(self) -> bool:
        """Whether the expression asks for vectors."""
        return self.kernel.requires_vector_input

    def __repr__(self) -> str:
        return f"TiedKernel({self.whole}, {self.ties})"


class Tied(Kernel):
    """An expression, tied hyper-parameters of which are one parameter."""

    def __init__(self, kernel: TiedKernel, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(kernel, dtype)
        self.kernel = from_sklearn(kernel.whole, dtype)
        for name, leader in kernel.leaders().items():
            owner, attribute = self._place(name)
            setattr(owner, attribute, getattr(*self._place(leader)))

    def _place(self, name: str) -> tuple[nn.Module, str]:
        """Return the part of the expression, and the name there, of a hyper-parameter."""
        *path, last = name.split("__")
        return self.kernel.get_submodule(".".join(path)), f"log_{last}"

    def forward(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        return self.kernel(X, Y)  # (N, M)

    def diag(self, X: Tensor) -> Tensor:
        return self.kernel.diag(X)  # (N,)


MODULES[TiedKernel] = Tied

"""Let several parts of a kernel expression share a hyper-parameter.

In scikit-learn's expressions every part has its own hyper-parameters. :class:`TiedKernel` wraps an
expression and ties some of them together. A shared hyper-parameter counts once in ``theta``, and
its gradient is the sum of the parts' gradients. In torch it is one :class:`torch.nn.Parameter` that
belongs to several modules.
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
    """A kernel expression in which some parts share a hyper-parameter.

    Parameters
    ----------
    kernel : sklearn kernel
        The expression.
    ties : list of tuple of str
        Each tuple names hyper-parameters of `kernel`, as in `kernel.get_params`, that are tied
        together. They all take the value and the bounds of the leader, which is the one that comes
        first in `kernel.hyperparameters`.

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
        """Set parameters; of tied hyper-parameters, only the leader can be set.

        Raises
        ------
        ValueError
            If a name is unknown, or is a tied hyper-parameter that is not the leader.
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
        """Return the leader's name for each tied hyper-parameter that follows one.

        Raises
        ------
        ValueError
            If a name in `ties` is not a hyper-parameter or occurs twice, or if tied
            hyper-parameters differ in length.
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
        """Return a copy of the expression in which tied ones have the leader's value and bounds."""
        kernel, params = clone(self.kernel), self.kernel.get_params()
        taken = {
            name + part: params[leader + part]
            for name, leader in self.leaders().items()
            for part in ("", "_bounds")
        }
        return kernel.set_params(**taken)

    @property
    def hyperparameters(self) -> list[sk.Hyperparameter]:
        """The hyper-parameters; tied ones count once."""
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
        """Return, for each entry of the expression's θ, its position in this kernel's θ."""
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
        """Return k(X, Y), and, if `eval_gradient`, its gradient by θ."""
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
        """Whether the expression needs vectors as inputs."""
        return self.kernel.requires_vector_input

    def __repr__(self) -> str:
        return f"TiedKernel({self.whole}, {self.ties})"


class Tied(Kernel):
    """:class:`TiedKernel` in torch: tied hyper-parameters are one parameter."""

    def __init__(self, kernel: TiedKernel, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(kernel, dtype)
        self.kernel = from_sklearn(kernel.whole, dtype)
        for name, leader in kernel.leaders().items():
            owner, attribute = self._place(name)
            setattr(owner, attribute, getattr(*self._place(leader)))

    def _place(self, name: str) -> tuple[nn.Module, str]:
        """Return the part of the expression that has a hyper-parameter, and its name there."""
        *path, last = name.split("__")
        return self.kernel.get_submodule(".".join(path)), f"log_{last}"

    def forward(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        return self.kernel(X, Y)  # (N, M)

    def diag(self, X: Tensor) -> Tensor:
        return self.kernel.diag(X)  # (N,)


MODULES[TiedKernel] = Tied

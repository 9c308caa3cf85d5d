r"""Covariance functions in torch that mirror scikit-learn's kernel expressions.

Users write kernels as scikit-learn expressions. :func:`from_sklearn` turns an expression into a
tree of torch modules with the same values, ``theta`` and bounds, differentiable with respect to the
hyper-parameters and the inputs. :func:`to_sklearn` turns the fitted tree back into an expression.
A free hyper-parameter is the :class:`torch.nn.Parameter` ``log_<name>`` of its kernel, and a fixed
one is a buffer of that name. So ``module.parameters()`` lists exactly what may be optimised, in the
order of ``theta``.

Shapes: ``X`` is (N, D), ``Y`` is (M, D), covariances are (N, M). Results have the dtype of ``X``.

References
----------
C. E. Rasmussen, C. K. I. Williams, *Gaussian Processes for Machine Learning*, 2006, chapter 4.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ..maths.modules import Module
from .distances import MATERN, Profile, radial, safe_power, squared_distance, wrong_scales

_MAY_BE_ZERO = frozenset({"constant_value", "noise_level", "sigma_0"})


class UnsupportedKernelError(ValueError):
    """A scikit-learn kernel has a supported class but an unsupported value, such as ``nu=2``."""


def _positive(name: str, doc: str) -> property:
    """Property that reads the positive hyper-parameter ``exp(log_<name>)``."""
    return property(lambda self: getattr(self, f"log_{name}").exp(), doc=doc)


class Kernel(Module, ABC):
    """Covariance function built from a scikit-learn kernel.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        The expression to mirror, kept as ``sklearn_kernel``.
    dtype : torch.dtype, default=torch.float64
        Type of the log-hyper-parameters; it does not depend on the dtype of the data.

    Raises
    ------
    ValueError
        If a hyper-parameter is negative or NaN, is zero although it must be positive, or is an
        array although scikit-learn supports only a scalar.
    """

    def __init__(self, kernel: sk.Kernel, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.sklearn_kernel = kernel

    @abstractmethod
    def forward(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        """Return covariances k(X, Y), (N, M); ``Y=None`` means k(X, X), with white noise."""

    @abstractmethod
    def diag(self, X: Tensor) -> Tensor:
        """Return variances k(x, x), (N,), with white noise, without forming the matrix."""

    @property
    def theta(self) -> Tensor:
        """Free log-hyper-parameters in scikit-learn's order, (n_dims,); differentiable."""
        free = [parameter.reshape(-1) for parameter, _ in self._free()]
        return torch.cat(free) if free else torch.empty(0, dtype=torch.float64, device="cpu")

    @property
    def bounds(self) -> Tensor:
        """Log-bounds of ``theta``, (n_dims, 2)."""
        bounds = [bounds for _, bounds in self._free()]
        return torch.cat(bounds) if bounds else torch.empty(0, 2, dtype=torch.float64, device="cpu")

    @torch.no_grad()
    def clamp_(self) -> None:
        """Project the free log-hyper-parameters onto their bounds, in place."""
        for parameter, bounds in self._free():
            low, high = bounds.T.reshape(2, *parameter.shape)
            parameter.clamp_(low, high)

    def _free(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each free log-parameter and its log-bounds, in the order of ``theta``.

        A tied parameter belongs to several modules but is yielded once.
        """
        for name, parameter in self.named_parameters():
            path, _, last = name.rpartition(".")
            yield parameter, getattr(self.get_submodule(path), f"{last}_bounds")


class _Leaf(Kernel):
    """Kernel with hyper-parameters of its own, registered in scikit-learn's order."""

    def __init__(self, kernel: sk.Kernel, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(kernel, dtype)
        for hyperparameter in kernel.hyperparameters:
            name = f"log_{hyperparameter.name}"
            log_value = torch.tensor(_log_value(kernel, hyperparameter), dtype=dtype, device="cpu")
            if hyperparameter.fixed:
                self.register_buffer(name, log_value)
                continue
            with np.errstate(divide="ignore"):  # a lower bound of 0 is allowed: -inf
                log_bounds = np.log(np.asarray(hyperparameter.bounds, dtype=float))
            self.register_parameter(name, nn.Parameter(log_value))
            bounds = torch.tensor(log_bounds, dtype=dtype, device="cpu")
            self.register_buffer(f"{name}_bounds", bounds, persistent=False)


def _log_value(kernel: sk.Kernel, hyperparameter: sk.Hyperparameter) -> np.ndarray:
    """Return a scikit-learn hyper-parameter's logarithm, of shape () or (n_elements,)."""
    owner, name = type(kernel).__name__, hyperparameter.name
    value = np.asarray(getattr(kernel, name), dtype=float)
    if value.size != hyperparameter.n_elements:
        raise ValueError(f"{name} of {owner} must be a scalar, got {getattr(kernel, name)!r}.")
    if not np.all(value >= 0 if name in _MAY_BE_ZERO else value > 0):
        sign = "non-negative" if name in _MAY_BE_ZERO else "positive"
        raise ValueError(f"{name} of {owner} must be {sign}, got {getattr(kernel, name)!r}.")
    with np.errstate(divide="ignore"):  # log 0 = -inf, whose exponential is 0 again
        log_value = np.log(value)
    return log_value if hyperparameter.n_elements > 1 else log_value.reshape(())


class _Stationary(_Leaf):
    """Leaf with k(x, x) = 1."""

    def diag(self, X: Tensor) -> Tensor:
        return X.new_ones(len(X))  # (N,)


class Radial(_Stationary):
    r"""A function of :math:`r^2`, :math:`r = \|(x - y) / \ell\|`."""

    length_scale = _positive("length_scale", "ℓ, () or one per column (D,).")
    nu: float | None = None
    """Order ν of the spectral density: Student-t with 2ν degrees of freedom, or normal if inf.

    None if the spectral density is another one; the kernel then has no random Fourier features.
    """

    @property
    def profile(self) -> Profile:
        """Return the function r² ↦ (k, dk/dr²)."""
        if self.nu is None:
            raise NotImplementedError(f"{type(self).__name__} must define nu or profile.")
        return MATERN[self.nu]

    def forward(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        return radial(X, Y, self.length_scale, self.profile)  # (N, M)


class RBF(Radial):
    r"""Squared exponential, :math:`k(x, y) = \exp(-r^2 / 2)`, :math:`r = \|(x - y) / \ell\|`."""

    nu = math.inf


class Matern(Radial):
    r"""Matérn kernel of half-integer order.

    .. math:: k(x, y) = p_\nu(a)\, e^{-a}, \quad a = \sqrt{2 \nu}\, \|(x - y) / \ell\|

    with :math:`p_{1/2} = 1`, :math:`p_{3/2} = 1 + a` and :math:`p_{5/2} = 1 + a + a^2 / 3`;
    :math:`\nu = \infty` is the RBF kernel. Any other ``nu`` raises a ValueError.
    """

    def __init__(self, kernel: sk.Matern, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(kernel, dtype)
        self.nu = float(kernel.nu)
        if self.nu not in MATERN:
            raise UnsupportedKernelError(
                f"nu of Matern must be 0.5, 1.5, 2.5 or inf, got {self.nu}."
            )


class RationalQuadratic(_Stationary):
    r"""Scale mixture of RBF kernels.

    .. math:: k(x, y) = (1 + r^2 / (2 \alpha))^{-\alpha}, \quad r = \|x - y\| / \ell
    """

    alpha = _positive("alpha", "Shape α of the mixture, ().")
    length_scale = _positive("length_scale", "ℓ, ().")

    unit = length_scale

    def forward(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        return self.of_distances(squared_distance(X, Y, self.unit))  # (N, M)

    def of_distances(self, r2: Tensor) -> Tensor:
        """Return k of squared distances in length-scales."""
        return torch.exp(-self.alpha * torch.log1p(r2 / (2 * self.alpha)))


class ExpSineSquared(_Stationary):
    r"""Periodic kernel, :math:`k(x, y) = \exp(-2 \sin^2(\pi \|x - y\| / p) / \ell^2)`."""

    length_scale = _positive("length_scale", "ℓ, ().")
    periodicity = _positive("periodicity", "Period p in the unit of the inputs, ().")

    unit = periodicity

    def forward(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        # float64: rounding r in float32 would move the phase after some thousand periods
        r2 = squared_distance(X.double(), Y, self.unit)  # (‖x − y‖ / p)², (N, M)
        return self.of_distances(r2).to(X.dtype)

    def of_distances(self, r2: Tensor) -> Tensor:
        """Return k of squared distances in periods."""
        r = safe_power(r2, 0.5)
        return torch.exp(-2 * (torch.sin(math.pi * r) / self.length_scale).square())


class DotProduct(_Leaf):
    r"""Linear kernel, :math:`k(x, y) = \sigma_0^2 + x^\top y`."""

    sigma_0 = _positive("sigma_0", "Standard deviation σ₀ of the intercept, ().")

    def forward(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        return X @ (X if Y is None else Y).T + self.sigma_0.square()  # (N, M)

    def diag(self, X: Tensor) -> Tensor:
        return X.square().sum(1) + self.sigma_0.square()  # (N,)


class Constant(_Leaf):
    r"""Constant kernel, :math:`k(x, y) = c`; a variance when it multiplies another kernel."""

    constant_value = _positive("constant_value", "c, ().")

    def forward(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        return self.constant_value.to(X.dtype).expand(len(X), len(X if Y is None else Y))  # (N, M)

    def diag(self, X: Tensor) -> Tensor:
        return self.constant_value * X.new_ones(len(X))  # (N,)


class WhiteNoise(_Leaf):
    r"""White noise, :math:`k(X) = s I` and :math:`k(X, Y) = 0`: every row of Y is a new draw."""

    noise_level = _positive("noise_level", "Noise variance s, ().")

    def forward(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        if Y is not None:
            return X.new_zeros(()).expand(len(X), len(Y))  # (N, M)
        return self.noise_level * torch.eye(len(X), dtype=X.dtype, device=X.device)  # (N, N)

    def diag(self, X: Tensor) -> Tensor:
        return self.noise_level * X.new_ones(len(X))  # (N,)


class _Pair(Kernel):
    """Base class of sums and products of two kernels."""

    def __init__(self, kernel: sk.KernelOperator, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(kernel, dtype)
        self.k1 = _module(kernel.k1, dtype)
        self.k2 = _module(kernel.k2, dtype)


class Sum(_Pair):
    r"""Sum, :math:`k(x, y) = k_1(x, y) + k_2(x, y)`."""

    def forward(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        return self.k1(X, Y) + self.k2(X, Y)  # (N, M)

    def diag(self, X: Tensor) -> Tensor:
        return self.k1.diag(X) + self.k2.diag(X)  # (N,)


class Product(_Pair):
    r"""Product, :math:`k(x, y) = k_1(x, y) \, k_2(x, y)`."""

    def forward(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        return self.k1(X, Y) * self.k2(X, Y)  # (N, M)

    def diag(self, X: Tensor) -> Tensor:
        return self.k1.diag(X) * self.k2.diag(X)  # (N,)


class Exponentiation(Kernel):
    r"""Power, :math:`k(x, y) = k_1(x, y)^p`; the exponent p is not a hyper-parameter."""

    def __init__(self, kernel: sk.Exponentiation, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(kernel, dtype)
        self.kernel = _module(kernel.kernel, dtype)
        self.exponent = float(kernel.exponent)

    def forward(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        return safe_power(self.kernel(X, Y), self.exponent)  # (N, M)

    def diag(self, X: Tensor) -> Tensor:
        return self.kernel.diag(X) ** self.exponent  # (N,)


# Looked up by exact type: scikit-learn's Matern subclasses RBF, and a user's own kernel may, too.
MODULES: dict[type, type[Kernel]] = {
    sk.RBF: RBF,
    sk.Matern: Matern,
    sk.RationalQuadratic: RationalQuadratic,
    sk.ExpSineSquared: ExpSineSquared,
    sk.DotProduct: DotProduct,
    sk.ConstantKernel: Constant,
    sk.WhiteKernel: WhiteNoise,
    sk.Sum: Sum,
    sk.Product: Product,
    sk.Exponentiation: Exponentiation,
}


def from_sklearn(kernel: sk.Kernel, dtype: torch.dtype = torch.float64) -> Kernel:
    """Return a torch module with the values, ``theta`` and bounds of a scikit-learn kernel.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        An expression of RBF, Matern, RationalQuadratic, ExpSineSquared, DotProduct,
        ConstantKernel and WhiteKernel with ``+``, ``*`` and ``**``, and of :class:`TiedKernel`. It
        is not changed.
    dtype : torch.dtype, default=torch.float64
        Type of the log-hyper-parameters; covariances have the dtype of their inputs.

    Returns
    -------
    Kernel
        The root of the tree. Sub-kernels are ``k1`` and ``k2``, or for a power, ``kernel``.

    Raises
    ------
    TypeError
        If a term is none of these kernels (a subclass counts as another kernel), or is a class
        instead of an instance.
    ValueError
        If a value is not supported, such as ``nu=2`` or a negative length scale.

    Examples
    --------
    >>> import torch
    >>> from sklearn.gaussian_process.kernels import RBF, ConstantKernel
    >>> kernel = from_sklearn(ConstantKernel(4.0) * RBF([1.0, 2.0]))
    >>> kernel(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    tensor([[4.0000, 1.4715],
            [1.4715, 4.0000]], grad_fn=<MulBackward0>)
    >>> [name for name, _ in kernel.named_parameters()]
    ['k1.log_constant_value', 'k2.log_length_scale']
    """
    if isinstance(kernel, type):
        raise TypeError(f"kernel must be an instance, got the class {kernel.__name__}.")
    return _module(clone(kernel) if isinstance(kernel, sk.Kernel) else kernel, dtype)


def _module(kernel: sk.Kernel, dtype: torch.dtype) -> Kernel:
    if type(kernel) not in MODULES:
        supported = ", ".join(t.__name__ for t in MODULES)
        raise TypeError(
            f"kernel must be an expression of scikit-learn's {supported}; "
            f"got {type(kernel).__module__}.{type(kernel).__qualname__}."
        )
    return MODULES[type(kernel)](kernel, dtype)


def to_sklearn(module: Kernel) -> sk.Kernel:
    """Return a scikit-learn expression with the current hyper-parameters of a module.

    Parameters
    ----------
    module : Kernel
        What :func:`from_sklearn` returned, or a sub-kernel of it; on any device.

    Returns
    -------
    sklearn.gaussian_process.kernels.Kernel
        A new object with the structure, bounds and fixed values of the original expression.

    Examples
    --------
    >>> import torch
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> module = from_sklearn(2.0 * RBF(length_scale=1.0))
    >>> with torch.no_grad():
    ...     _ = module.k2.log_length_scale.add_(torch.tensor(3.0).log())
    >>> to_sklearn(module)
    1.41**2 * RBF(length_scale=3)
    """
    theta = module.theta.detach().to("cpu", torch.float64).numpy()
    with np.errstate(divide="ignore"):  # clone_with_theta takes the log of values that may be 0
        return module.sklearn_kernel.clone_with_theta(theta)


def scaled(module: Kernel, factor: float) -> Kernel:
    """Return a new kernel that is `factor` times the kernel of a module.

    Parameters
    ----------
    module : Kernel
        On any device.
    factor : float
        Greater than 0. It multiplies the constant in front of the kernel, or becomes a new one.

    Returns
    -------
    Kernel
        On the same device.

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import RBF
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


def check_length_scales(kernel: Kernel, n_inputs: int, network: nn.Module | None = None) -> None:
    """Raise a ValueError if an anisotropic kernel is not of the width of its inputs.

    Parameters
    ----------
    kernel : Kernel
        To check.
    n_inputs : int
        Columns of X, or outputs of the network.
    network : Module or None, default=None
        What the kernel acts on the outputs of; None, or an empty Sequential, if it acts on X.
    """
    inputs = f"X has {n_inputs} columns"
    if network is not None and not (type(network) is nn.Sequential and not len(network)):
        inputs = f"it acts on the {n_inputs} outputs of the network"
    for part in kernel.modules():
        length_scale = getattr(part, "length_scale", None)
        if length_scale is not None and length_scale.numel() not in (1, n_inputs):
            raise ValueError(wrong_scales(length_scale.numel(), inputs))

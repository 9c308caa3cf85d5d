"""The terms of scikit-learn's kernel expressions that are noise of y, and no part of f."""

from __future__ import annotations

from sklearn.gaussian_process import kernels as sk


def contains(kernel: sk.Kernel, kind: type[sk.Kernel]) -> bool:
    """Tell whether an expression has a term of this class.

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import RBF, DotProduct
    >>> contains(RBF() + 2.0 * DotProduct(), DotProduct)
    True
    """
    parts = [getattr(kernel, name, None) for name in ("k1", "k2", "kernel")]
    inner = any(contains(part, kind) for part in parts if isinstance(part, sk.Kernel))
    return inner or isinstance(kernel, kind)


def split_white_noise(kernel: sk.Kernel) -> tuple[sk.Kernel, sk.WhiteKernel | None]:
    """Split an expression into the kernel without noise and its top-level WhiteKernel.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        The expression. Only terms of its top-level sum are searched, however they are bracketed; a
        WhiteKernel inside a product or a power stays where it is.

    Returns
    -------
    kernel : sklearn.gaussian_process.kernels.Kernel
        The expression without that term; the same object if there is none.
    white : sklearn.gaussian_process.kernels.WhiteKernel or None
        The term, with its ``noise_level`` (a variance, in squared units of y) and bounds.

    Raises
    ------
    ValueError
        If there are several such terms, or the expression has no other term.

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import RBF, DotProduct, WhiteKernel
    >>> split_white_noise(RBF() + WhiteKernel(0.1) + DotProduct())
    (RBF(length_scale=1) + DotProduct(sigma_0=1), WhiteKernel(noise_level=0.1))
    """
    rest, whites = _strip_white(kernel)
    if len(whites) > 1:
        raise ValueError(
            f"kernel must have at most one additive WhiteKernel, got {len(whites)} in {kernel}."
        )
    return _of_function(rest, kernel), whites[0] if whites else None


def split_noise(kernel: sk.Kernel) -> tuple[sk.Kernel, float]:
    """Return a kernel without its top-level WhiteKernels, and the sum of their variances.

    Unlike :func:`split_white_noise` it allows several, but what to fit is lost.

    Raises
    ------
    ValueError
        If the expression has no other term.

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import RBF, WhiteKernel
    >>> split_noise(WhiteKernel(0.25) + RBF() + WhiteKernel(0.5))
    (RBF(length_scale=1), 0.75)
    """
    rest, whites = _strip_white(kernel)
    return _of_function(rest, kernel), float(sum(white.noise_level for white in whites))


def _of_function(rest: sk.Kernel | None, kernel: sk.Kernel) -> sk.Kernel:
    """Return what is left of a kernel without its WhiteKernels, or raise an error."""
    if rest is None:
        raise ValueError(
            f"kernel must have a term besides the WhiteKernel, which is the noise; got {kernel}."
        )
    return rest


def _strip_white(kernel: sk.Kernel) -> tuple[sk.Kernel | None, list[sk.WhiteKernel]]:
    """Return a sum without its WhiteKernels (None: nothing remains), and the WhiteKernels."""
    if type(kernel) is sk.WhiteKernel:
        return None, [kernel]
    if type(kernel) is not sk.Sum:
        return kernel, []
    (k1, whites1), (k2, whites2) = _strip_white(kernel.k1), _strip_white(kernel.k2)
    whites = whites1 + whites2
    if not whites:
        return kernel, []
    if k1 is None or k2 is None:
        return k2 if k1 is None else k1, whites
    return sk.Sum(k1, k2), whites


def join_white_noise(
    kernel: sk.Kernel, noise_level: float, white: sk.WhiteKernel | None
) -> sk.Kernel:
    """Append the fitted noise that :func:`split_white_noise` removed to an expression.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        The (fitted) expression without noise.
    noise_level : float
        Fitted noise variance, in squared units of y.
    white : sklearn.gaussian_process.kernels.WhiteKernel or None
        The original term, for its bounds. None: the expression had none and stays as it is.

    Returns
    -------
    sklearn.gaussian_process.kernels.Kernel

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import RBF, WhiteKernel
    >>> kernel, white = split_white_noise(WhiteKernel() + RBF())
    >>> join_white_noise(kernel, 0.5, white)
    RBF(length_scale=1) + WhiteKernel(noise_level=0.5)
    """
    if white is None:
        return kernel
    return kernel + sk.WhiteKernel(float(noise_level), white.noise_level_bounds)

"""Convolutional Gaussian processes: sums of responses to the patches of an image.

van der Wilk, Rasmussen & Hensman, "Convolutional Gaussian processes", NeurIPS 2017; Blomqvist,
Kaski & Heinonen, "Deep convolutional Gaussian processes", 2018; Dutordoir, van der Wilk, Artemev &
Hensman, "Bayesian image classification with deep convolutional Gaussian processes", AISTATS 2020;
Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", 2020, 6.2.

    f(x) = Σ_p w_p g(x^[p], t_p) + g₀(x),   g ~ GP(0, k_g · k_loc),   g₀ ~ GP(0, k₀)       (F9, F10)

with x^[p] the patches of an image, and t_p their places. Inducing variables are values of g at
inducing patches and places, and of g₀ at inducing images. Only covariances are new
(:mod:`skgpstoch.features.patches`, :mod:`skgpstoch.features.sums`): posteriors, losses and solvers
are those of :mod:`skgpstoch.methods.svgp` and :mod:`skgpstoch.methods.solvegp`. Hidden images are
made by the layers of :mod:`skgpstoch.models.patch_layers` (F11).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..estimators.convolutional import ConvolutionalGP
from ..estimators.docs import public_estimator
from ..estimators.sparse import LossChoice
from ..estimators.sparse_estimators import SparseGPClassifier, SparseGPRegressor


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class ConvolutionalGPClassifier(LossChoice, ConvolutionalGP, SparseGPClassifier):
    """Classification of images by the responses of a Gaussian process to their patches.

    Images are rows of X, flattened, as scikit-learn has them.

    See Also
    --------
    SVGPClassifier : Kernels on whole images, or anything else.

    References
    ----------
    .. [1] M. van der Wilk, C. E. Rasmussen, J. Hensman, "Convolutional Gaussian processes", NeurIPS
       2017.
    .. [2] V. Dutordoir, M. van der Wilk, A. Artemev, J. Hensman, "Bayesian image classification
       with deep convolutional Gaussian processes", AISTATS 2020.
    .. [3] J. Shi, M. Titsias, A. Mnih, "Sparse orthogonal variational inference for Gaussian
       processes", AISTATS 2020.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skgpstoch import ConvolutionalGPClassifier
    >>> X, y = load_digits(n_class=3, return_X_y=True)
    >>> model = ConvolutionalGPClassifier(n_inducing=20, max_iter=20, random_state=0)
    >>> bool(model.fit(X[:200], y[:200]).score(X[200:], y[200:]) > 0.95)
    True
    """


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class ConvolutionalGPRegressor(LossChoice, ConvolutionalGP, SparseGPRegressor):
    """Regression on images by the responses of a Gaussian process to their patches.

    Images are rows of X, flattened, as scikit-learn has them.

    See Also
    --------
    SVGPRegressor : Kernels on whole images, or anything else.

    References
    ----------
    .. [1] M. van der Wilk, C. E. Rasmussen, J. Hensman, "Convolutional Gaussian processes", NeurIPS
       2017.
    .. [2] J. Shi, M. Titsias, A. Mnih, "Sparse orthogonal variational inference for Gaussian
       processes", AISTATS 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import ConvolutionalGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = (rng.random((200, 64)) < 0.1).astype(float)  # 8 by 8, some pixels of which are on
    >>> y = X.sum(1) + 0.1 * rng.standard_normal(200)
    >>> model = ConvolutionalGPRegressor(
    ...     global_kernel=None, n_inducing=10, max_iter=5, random_state=0
    ... )
    >>> bool(model.fit(X[:100], y[:100]).score(X[100:], y[100:]) > 0.9)
    True
    """

"""Deep Gaussian processes: Gaussian processes of Gaussian processes.

Salimbeni & Deisenroth, "Doubly stochastic variational inference for deep Gaussian processes",
NeurIPS 2017; with orthogonal inducing points in every layer: Shi, Titsias & Mnih, "Sparse
orthogonal variational inference for Gaussian processes", AISTATS 2020, section 4;

    h⁰ = x,   h^ℓ = a^ℓ(h^{ℓ−1}) + g^ℓ(h^{ℓ−1}) + ε,   g^ℓ ~ GP(0, k_ℓ),   f = g^L(h^{L−1}).

Layers are :mod:`skgpstoch.models.layers` (F1, F2), the bound and its closed form for the last
layer :mod:`skgpstoch.models.deep` (F3, F6): given draws of h, the last layer is a sparse model
as any other, with its losses, solvers and likelihoods.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..estimators.deep import DeepGP
from ..estimators.docs import public_estimator
from ..estimators.sparse import LossChoice
from ..estimators.sparse_estimators import SparseGPClassifier, SparseGPRegressor


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class DeepGPRegressor(LossChoice, DeepGP, SparseGPRegressor):
    """Deep Gaussian-process regression by doubly stochastic variational inference.

    For functions whose scale changes with the input. On tables of many rows it is slower than
    shallow processes with a network, and seldom better.

    See Also
    --------
    SVGPRegressor : One layer.
    SCGDGaussianProcessRegressor : Networks with an exact marginal likelihood.

    References
    ----------
    .. [1] H. Salimbeni, M. Deisenroth, "Doubly stochastic variational inference for deep Gaussian
       processes", NeurIPS 2017.
    .. [2] J. Shi, M. Titsias, A. Mnih, "Sparse orthogonal variational inference for Gaussian
       processes", AISTATS 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import DeepGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (100, 1))
    >>> y = np.sign(X[:, 0]) + 0.05 * rng.standard_normal(100)
    >>> model = DeepGPRegressor(n_inducing=10, max_iter=100, random_state=0).fit(X, y)
    >>> np.round(model.predict([[-0.5], [0.5]]), 1)
    array([-1.,  1.])
    """


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class DeepGPClassifier(LossChoice, DeepGP, SparseGPClassifier):
    """Deep Gaussian-process classification by doubly stochastic variational inference.

    See Also
    --------
    SVGPClassifier : One layer.
    ConvolutionalGPClassifier : For images.

    References
    ----------
    .. [1] H. Salimbeni, M. Deisenroth, "Doubly stochastic variational inference for deep Gaussian
       processes", NeurIPS 2017.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skgpstoch import DeepGPClassifier
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = DeepGPClassifier(n_inducing=10, max_iter=30, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.98)
    True
    """

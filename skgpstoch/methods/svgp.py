"""SGPR and SVGP: sparse variational Gaussian processes on inducing points.

Titsias, "Variational learning of inducing variables in sparse Gaussian processes", AISTATS 2009;
Hensman, Matthews & Ghahramani, "Scalable variational Gaussian process classification", AISTATS
2015. With inducing points Z, K_uu = k(Z, Z) = LLᵀ and P = k(X, Z) L⁻ᵀ
(:class:`~skgpstoch.models.features.inducing.InducingFeatures`),

    f(x) = P(x)ᵀw + r(x),   w ~ N(0, I),   var r(x) = k(x, x) − ‖P(x)‖²,   q(w) = N(m, S),

where S is a full matrix. The objective is the bound (B2) of :mod:`skgpstoch.objectives.elbo`. For a
Gaussian likelihood, at the best q(w) (:mod:`skgpstoch.objectives.optimal_q`), it is Titsias' bound

    log N(y | 0, PPᵀ + σ²I) − tr(K − PPᵀ)/(2σ²)                                                 (B3)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..estimators import parameters as groups
from ..estimators import variational_parameters as variational
from ..estimators.docs import public_estimator
from ..estimators.streams import VariationalClassifier, VariationalRegressor


@dataclass(eq=False, repr=False, kw_only=True)
class SVGPParameters(
    variational.LossParameters,
    groups.NetworkParameters,
    groups.RestartParameters,
    variational.InducingParameters,
):
    """Parameters that regressor and classifier share.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, default=()
        Widths of the layers of a network below the kernel; () is no network. Its weights learn at a
        tenth of the rate.
    averaging : float or "auto", default="auto"
        Weight of a minibatch in the running averages. "auto" averages over the latest rows: 5 for
        each inducing point, and at least 2,500.
    """

    averaging: float | str = "auto"

    _parameter_constraints: ClassVar[dict[str, list]] = {"averaging": [groups.SHARE, groups.AUTO]}


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class SVGPRegressor(SVGPParameters, variational.InputNoiseParameters, VariationalRegressor):
    """Sparse variational Gaussian-process regression on inducing points (SGPR, SVGP).

    It takes scikit-learn's kernels, and Gaussian, heavy-tailed or Poisson likelihoods. An epoch
    takes O(M²) time for each row. With Gaussian noise, the hyper-parameters of the default kernel
    have a weak prior, so that the noise does not vanish if there are few rows
    (:mod:`skgpstoch.models.hyper_prior`). A kernel that you give has no such prior.

    See Also
    --------
    SolveGPRegressor : Twice the points, at less than the cost of a matrix of that size.
    SCGDGaussianProcessRegressor : Networks with an exact marginal likelihood.

    References
    ----------
    .. [1] M. Titsias, "Variational learning of inducing variables in sparse Gaussian processes",
       AISTATS 2009.
    .. [2] J. Hensman, A. Matthews, Z. Ghahramani, "Scalable variational Gaussian process
       classification", AISTATS 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import SVGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (300, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(300)
    >>> model = SVGPRegressor(n_inducing=10, random_state=0).fit(X, y)
    >>> mean, std = model.predict([[0.0], [1.5]], return_std=True)
    >>> np.round(mean, 1) + 0.0
    array([0., 1.])
    >>> bool((std < 0.15).all())
    True
    """


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class SVGPClassifier(SVGPParameters, variational.ClassificationParameters, VariationalClassifier):
    """Sparse variational Gaussian-process classification on inducing points (SVGP).

    It takes scikit-learn's kernels, and two or more classes. An epoch takes O(M²) time for each row
    and latent function.

    See Also
    --------
    SolveGPClassifier : Twice the points, at less than the cost of a matrix of that size.

    References
    ----------
    .. [1] J. Hensman, A. Matthews, Z. Ghahramani, "Scalable variational Gaussian process
       classification", AISTATS 2015.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skgpstoch import SVGPClassifier
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = SVGPClassifier(n_inducing=20, max_iter=10, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.98)
    True
    >>> bool(model.predict_proba([[0.0, 1.0]])[0, 0] > 0.9)
    True
    """

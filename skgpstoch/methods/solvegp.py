"""SOLVE-GP and ODVGP: orthogonal inducing points beside the ordinary ones.

Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", 2020. The
residual process f⊥ of SVGP has the covariance c(a, b) = k(a, b) − k(a, Z) K_uu⁻¹ k(Z, b). Here it
gets inducing points O of its own. With C_vv = c(O, O) = L_v L_vᵀ, their whitened features are those
of a block Cholesky decomposition for Z ∪ O,

    P = [P_u P_v],   P_v(X) = c(X, O) L_v⁻ᵀ,   c(X, O) = k(X, O) − P_u(X) P_u(O)ᵀ,

which takes two decompositions of M points instead of one of 2M
(:mod:`skgpstoch.models.features.orthogonal`). What is left after O may again have points of its
own, and so on, if ``n_orthogonal`` has several numbers. The model is that of
:mod:`skgpstoch.methods.svgp`, with S block-diagonal, q(w) = N(m_u, S_u) N(m_v, S_v); S_v = I makes
it ODVGP. The bound is in :mod:`skgpstoch.objectives.elbo`, the best q(w) in
:mod:`skgpstoch.objectives.optimal_q` and :mod:`skgpstoch.models.posteriors.sites`. The tighter
bound of the paper's appendix A is `dependent_bound`
(:func:`skgpstoch.objectives.optimal_q.dependent_bound`); ``loss="log1p"`` is another one
(:class:`skgpstoch.losses.Log1pBound`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from ..estimators import parameters as groups
from ..estimators import variational_parameters as variational
from ..estimators.docs import public_estimator
from ..estimators.streams import VariationalClassifier, VariationalRegressor


@dataclass(eq=False, repr=False, kw_only=True)
class SolveGPParameters(
    variational.LossParameters,
    variational.OrthogonalParameters,
    groups.RestartParameters,
    variational.InducingParameters,
):
    """Parameters that regressor and classifier share.

    Parameters
    ----------
    posterior : {"solve", "odvgp"}, default="solve"
        Whether q has a covariance of its own at the orthogonal points ("solve"), or keeps the
        prior's ("odvgp"). For "odvgp" with very many points see `whiten`.
    orthogonal_points : array-like of shape (n_orthogonal, n_features) or None, default=None
        Where the orthogonal points start, one set after another. None: chosen as `inducing_points`
        says.
    """

    posterior: str = "solve"
    orthogonal_points: Any = None

    _first_parameters: ClassVar[tuple[str, ...]] = ("n_orthogonal",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "posterior": [StrOptions({"solve", "odvgp"})],
        "orthogonal_points": ["array-like", None],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("orthogonal_points",)


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class SolveGPRegressor(SolveGPParameters, variational.InputNoiseParameters, VariationalRegressor):
    """Regression with orthogonal inducing points (SOLVE-GP, ODVGP).

    It has M + M₂ points, but factors one matrix of M and one of M₂ rows, not one of M + M₂.
    With Gaussian noise the default kernel has a weak prior, as in :class:`SVGPRegressor`.

    See Also
    --------
    SVGPRegressor : With inducing points of one kind.

    References
    ----------
    .. [1] J. Shi, M. Titsias, A. Mnih, "Sparse orthogonal variational inference for Gaussian
       processes", AISTATS 2020.
    .. [2] H. Salimbeni, C.-A. Cheng, B. Boots, M. Deisenroth, "Orthogonally decoupled variational
       Gaussian processes", NeurIPS 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import SolveGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (300, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(300)
    >>> model = SolveGPRegressor(n_inducing=5, n_orthogonal=5, random_state=0).fit(X, y)
    >>> np.round(model.predict([[0.0], [1.5]]), 1) + 0.0
    array([0., 1.])
    >>> model.orthogonal_points_.shape
    (5, 1)
    """


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class SolveGPClassifier(
    SolveGPParameters, variational.ClassificationParameters, VariationalClassifier
):
    """Classification with orthogonal inducing points (SOLVE-GP, ODVGP).

    It has M + M₂ points, but factors one matrix of M and one of M₂ rows, not one of M + M₂.

    See Also
    --------
    SVGPClassifier : With inducing points of one kind.

    References
    ----------
    .. [1] J. Shi, M. Titsias, A. Mnih, "Sparse orthogonal variational inference for Gaussian
       processes", AISTATS 2020.
    .. [2] H. Salimbeni, C.-A. Cheng, B. Boots, M. Deisenroth, "Orthogonally decoupled variational
       Gaussian processes", NeurIPS 2018.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skgpstoch import SolveGPClassifier
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = SolveGPClassifier(n_inducing=10, n_orthogonal=10, max_iter=10, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.98)
    True
    """

"""GPCV-ADMM: hyper-parameters by cross-validation, in O(n²), from products with covariances.

Xu, Yin, Zhang, Luo & Cui, "A general O(n²) hyper-parameter optimization for Gaussian process
regression with cross-validation and non-linearly constrained ADMM", 2019. For each fold the loss of
the held-out rows is minimised subject to Cz = y_T (:mod:`skgpstoch.methods.gpcv.fold_loss`), by the
alternating direction method of multipliers (11):

    θ ← argmin L_ρ(θ, z, λ)          solver="coordinate": one after another, by Armijo's rule (12)
    z ← argmin L_ρ(θ, z, λ)          conjugate gradients (13, 14)
    λ ← λ + ρ′(C(θ)z − y_T)

While z is fixed, θ can hardly move, because both the loss and the constraint hold it. With the
paper's own setting (ρ = 5, λ = 1 and z from a perturbed θ), a hundred iterations end at the θ that
z was made from. With z and λ that suit θ, they go from l = 0.25 to 0.31, whereas 0.51 is best; no
other ρ is enough. ``solver="coordinate"`` relaxes these steps by secants, with the λ for which z is
the best, and reaches the optimum in ten to thirty (:mod:`skgpstoch.methods.gpcv.coordinates`).

``solver="joint"`` treats the first two steps as one problem, θ ← argmin min_z L_ρ. Each evaluation
of its L-BFGS finds the best z anew, starting from the last one. As ∂L_ρ/∂z is 0 there, the gradient
with respect to θ is the one at fixed z. That is the method of multipliers, to which Theorem 1
applies; ρ grows tenfold where the gap does not shrink fourfold.

The K folds are either separate problems whose θ are averaged ("naive"), or share one θ that
minimises the sum of their losses ("consensus", eq. 15). The paper's local copies of θ (eq. 16) are
eliminated: the minimum is the same, and no copies have to be brought into agreement.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

from sklearn.utils._param_validation import Interval, StrOptions

from ...estimators.docs import public_estimator
from ...estimators.parameters import (
    AUTO,
    FRACTION,
    N_JOBS,
    POSITIVE,
    POSITIVE_INTEGER,
    RESTARTS,
    TargetParameters,
)
from ...estimators.regressor import Regressor
from ...likelihoods.real import Gaussian
from ...training.recipes.kernel_choice import KernelChoice
from .folds import numbers_rows
from .multipliers import STEP_OF_SOLVER
from .recipe import CrossValidationRecipe


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class ADMMGaussianProcessRegressor(TargetParameters, Regressor):
    """Gaussian-process regression with hyper-parameters chosen by cross-validation, in O(n²).

    The alternating direction method of multipliers (ADMM) minimises the squared error of held-out
    rows. Its iterations use only products with covariance matrices, and factorise no matrix of more
    than 500 rows. Cross-validation asks less of a model than the marginal likelihood does, so it
    suits a kernel that has structure and is not quite right.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        The kernel, whose hyper-parameters start the search: any of scikit-learn's that
        has a torch version here. A top-level WhiteKernel is the noise. None: a constant times an
        RBF kernel with a length-scale for each input (a single one for more than 64 inputs); the
        search starts from the optimum of the marginal likelihood of 500 rows. Hyper-parameters
        refer to the scaled y.
    cv : int, float, splitter or iterable, default=2
        The folds. An int: this number of folds of shuffled rows; None is 5. A float between 0 and
        1: one fold that holds out this fraction of the rows. Copies of a row stay together in
        these. A scikit-learn splitter, or an iterable of pairs of row numbers or masks, is used as
        it is. A fold whose covariance cannot be factorised is left out with a warning; if none is
        left, `fit` raises a ValueError.
    learn_noise : bool, default=True
        Whether to find the noise and the scale of all variances from the errors of held-out rows,
        within their bounds. With a fixed ConstantKernel both stay as they are, with a warning,
        because the error hardly depends on their ratio. All outputs have the same noise, relative
        to their variance. False: the noise is that of the WhiteKernel, or `noise_variance`.
    noise_variance : float, default=0.1
        Initial noise variance, relative to the scaled y, if `kernel` has no WhiteKernel.
    n_restarts : int, default=0
        Number of additional searches, at most 10,000, from random hyper-parameters that are
        log-uniform within their bounds; the search with the smallest error is kept.
    block_size : int, default=8192
        Largest number of rows whose covariance matrices are kept in memory, and whose final
        posterior has a Cholesky factor. For more rows, products with covariance matrices are
        computed by blocks, in memory of some hundred numbers a row, and conjugate gradients find
        the posterior.
    n_jobs : int or None, default=None
        Number of folds and restarts that joblib computes at a time; None is 1, unless in a
        :func:`joblib.parallel_config`.
    dtype : {"float32", "float64"}, default="float64"
        Precision of covariance matrices during training; everything else is in float64. With
        float32 the search may not converge, and take a hundred times as long (300 rows with little
        noise).
    scheme : {"consensus", "naive", "holdout"}, default="consensus"
        "consensus": all folds share their hyper-parameters. "naive": each fold has its own, and the
        mean of their logarithms is used. "holdout": only the first fold is used.
    solver : {"joint", "coordinate"}, default="joint"
        "joint": L-BFGS for all hyper-parameters at once; each of its evaluations finds the best
        weights anew. "coordinate": one hyper-parameter after another at fixed weights, as in [1]_,
        except that steps are relaxed by secants; it takes ten to thirty iterations where "joint"
        takes two or three. Without this relaxation hyper-parameters hardly move, and from the start
        of [1]_ (multipliers of 1, weights of another kernel) they end at the hyper-parameters that
        those weights were made from.
    max_iter : int or "auto", default="auto"
        Maximum number of ADMM iterations, at most a million; "auto" is 100.
    warm_start : bool, default=False
        Whether `fit` starts from the parameters of the previous fit, if that explains the rows.
    tol : float, default=0.01
        Iterations stop when hyper-parameters have settled and constraints are met. They have
        settled when no log-hyper-parameter moves by more than `tol` (and, with solver="coordinate",
        the loss has no slope), or when the loss is below 1e-6 of the mean square of y. Constraints
        are met when the augmented Lagrangian differs from the loss by at most this fraction of it,
        or the gap is at most 1e-5.

    Attributes
    ----------
    loss_curve_ : list of float
        Squared error of held-out rows at every iteration; of the scaled y if it is scaled.
    kernel_ : sklearn kernel
        The fitted kernel, plus the noise as a WhiteKernel if `kernel` has one; variances refer to
        the scaled y.
    likelihood_ : Likelihood
        The fitted noise, in the units of y.
    validation_scores_ : None
        Always None, because the loss itself is of held-out rows.
    history_ : dict of ndarray
        Arrays of shape (`n_iter_`, n_searches): values after every iteration, for every search of
        the restart that was kept. A search is a fold, or all folds together with
        scheme="consensus"; the values of one that has ended stay as they are. The keys are
        "objective", the augmented Lagrangian, and "loss", the squared error, both per held-out
        number; "gap", ‖Cz − y‖/‖y‖; "rho"; "z_norm"; and "theta", of shape (`n_iter_`, n_searches,
        n_dims), the logarithms of the kernel's hyper-parameters, and of the noise if it is learned.
    n_iter_ : int
        Number of iterations.
    best_iter_ : int
        The iteration whose hyper-parameters are kept, 0 for the start: the last one, unless it
        predicts held-out rows worse than one before. With scheme="naive", the latest of the folds'.

    See Also
    --------
    GaussianProcessRegressor : Hyper-parameters chosen by the marginal likelihood.

    References
    ----------
    .. [1] L. Xu, F. Yin, J. Zhang, Z.-Q. Luo, S. Cui, "A general O(n²) hyper-parameter optimization
       for Gaussian process regression with cross-validation and non-linearly constrained ADMM",
       2019.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF, ExpSineSquared
    >>> from skgpstoch import ADMMGaussianProcessRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (200, 1))
    >>> y = np.sin(2 * np.pi * X[:, 0]) + 0.1 * rng.standard_normal(200)
    >>> kernel = 1.0 * ExpSineSquared(1.0, 1.1) * RBF(5.0)
    >>> model = ADMMGaussianProcessRegressor(kernel, random_state=0).fit(X, y)
    >>> mean, std = model.predict([[5.25]], return_std=True)
    >>> bool(abs(mean[0] - 1.0) < 0.1 and std[0] < 0.2)
    True
    """

    cv: Any = 2
    learn_noise: bool = True
    noise_variance: float = 0.1
    n_restarts: int = 0
    block_size: int = 8192
    n_jobs: int | None = None
    dtype: str = "float64"
    scheme: str = "consensus"
    solver: str = "joint"
    warm_start: bool = False
    tol: float = 0.01

    _first_parameters: ClassVar[tuple[str, ...]] = ("cv",)
    _shape_parameters: ClassVar[tuple[str, ...]] = ("learn_noise",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "cv": ["cv_object", FRACTION],
        "learn_noise": ["boolean"],
        "noise_variance": [POSITIVE],
        "n_restarts": [RESTARTS],
        "block_size": [POSITIVE_INTEGER],
        "n_jobs": N_JOBS,
        "max_iter": [Interval(Integral, 1, 1_000_000, closed="both"), AUTO],  # records of all
        "scheme": [StrOptions({"consensus", "naive", "holdout"})],
        "solver": [StrOptions(set(STEP_OF_SOLVER))],
        "warm_start": ["boolean"],
    }

    def _recipe(self) -> CrossValidationRecipe:
        return CrossValidationRecipe.of(
            self,
            likelihood=Gaussian(),
            equal_rows="as given" if numbers_rows(self.cv) else "merge many",
            kernel=KernelChoice.of(self.kernel, self.noise_variance),
        )

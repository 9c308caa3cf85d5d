"""Groups of constructor parameters of variational posteriors.

They are data, like those of :mod:`skgpstoch.estimators.parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from ..likelihoods.base import Likelihood
from ..losses import Loss
from ..training.recipes.points import INITIALIZATIONS
from .parameters import (
    AUTO,
    POSITIVE,
    POSITIVE_INTEGER,
    TargetParameters,
    TrainingParameters,
)


@dataclass(eq=False, repr=False, kw_only=True)
class InducingParameters(TrainingParameters):
    """Inducing points, and how q is trained.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        RBF, Matern (nu = 0.5, 1.5, 2.5 or inf), RationalQuadratic, ExpSineSquared, DotProduct,
        ConstantKernel, and their sums, products and powers. None: a constant times a Matérn kernel
        (nu=1.5) with a length-scale for each input, whose hyper-parameters start from the data.
    n_inducing : int or "auto", default="auto"
        Number M of inducing points. If there are fewer distinct rows, M is reduced to their number,
        with a warning. "auto" is 512 for a Gaussian likelihood and 256 for others; up to 1,000 rows
        it is half of that, or all rows if there are at most 512 or 256. Where q's covariance has no
        closed form, as for the loss "log", "auto" is at most a quarter of the rows, or 20 if that
        is more.
    inducing_points : {"kmeans", "conditional_variance", "random"} or array-like, default="kmeans"
        Where the inducing points start: "kmeans", centres of clusters; "conditional_variance", rows
        of large conditional variance; "random", random rows; or an array of points, of shape
        (n_inducing, n_features).
    learn_inducing_points : bool, default=True
        Whether to train the inducing points.
    mean : {"constant", "zero"}, default="constant"
        Prior mean of f: a learned constant, or 0.
    whiten : bool, default=True
        Whether solvers that move q by gradients, such as "adam", use whitened coordinates.
    solver : {"auto", "collapsed", "lbfgs", "natural", "adam"}, default="auto"
        "collapsed": running averages of sufficient statistics, for a Gaussian likelihood without
        `y_std`, or for additive noise and the square loss. "natural": natural-gradient or Newton
        steps. "lbfgs": L-BFGS with all rows at each step. "adam": gradient steps for q as for
        everything else. "auto" is "lbfgs" for the loss "elbo", up to 1,000 rows with a log-concave
        likelihood and up to 2,000 with a Gaussian one without a network; it stops when the bound
        has converged. Otherwise "auto" is "collapsed" where that is possible, "adam" if gradients
        are sampled, else "natural"; `solver_` says which.
    batch_size : int or "auto", default="auto"
        Number of rows per minibatch; "auto" is 512. L-BFGS uses all rows.
    max_iter : int or "auto", default="auto"
        Number of epochs; "auto" makes 500 to 3,000 steps. An epoch of L-BFGS is ten iterations, and
        "auto" is then 20 epochs.
    learning_rate_init : float, default=0.1
        Learning rate of Adam, or its maximum with learning_rate="one-cycle". Where q's covariance
        has no closed form, three tenths of it are used.
    early_stopping : bool or "auto", default="auto"
        Whether to keep the iterate that predicts held-out rows best; the closing pass then uses
        these rows too. "auto": only with a network (SVGP). False: keep the last iterate.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`. None: train to the end; L-BFGS
        stops when ten iterations gain less than 1e-6 nats per row.
    dtype : {"float32", "float64"}, default="float32"
        Precision of the data during training; L-BFGS, factorisations and predictions are always in
        float64.

    Attributes
    ----------
    inducing_points_ : ndarray of shape (n_inducing, n_features)
        The fitted inducing points, in the units of X.
    solver_ : str
        The solver that was used.
    """

    n_inducing: int | str = "auto"
    inducing_points: Any = "kmeans"
    learn_inducing_points: bool = True
    mean: str = "constant"
    whiten: bool = True
    solver: str = "auto"
    early_stopping: bool | str = "auto"

    _first_parameters: ClassVar[tuple[str, ...]] = ("n_inducing",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_inducing": [POSITIVE_INTEGER, AUTO],
        "inducing_points": [StrOptions(set(INITIALIZATIONS)), "array-like"],
        "learn_inducing_points": ["boolean"],
        "mean": [StrOptions({"zero", "constant"})],
        "whiten": ["boolean"],
        "solver": [StrOptions({"auto", "collapsed", "lbfgs", "natural", "adam"})],
        "early_stopping": ["boolean", AUTO],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("n_inducing", "inducing_points", "mean")


@dataclass(eq=False, repr=False, kw_only=True)
class OrthogonalParameters:
    """Orthogonal inducing points.

    Parameters
    ----------
    posterior : {"svgp", "solve", "odvgp"}, default="svgp"
        The family of q. "svgp": inducing points alone. "solve": inducing points and orthogonal
        ones, with a covariance of q's own at both. "odvgp": the same points, but q keeps the
        prior's covariance at the orthogonal ones. `n_orthogonal` is for "solve" and "odvgp".
    whiten : bool, default=True
        Whether solvers that move q by gradients, such as "adam", use whitened coordinates.
        With posterior="odvgp", False learns the mean as a sum of kernel functions, and each step
        uses only some columns of the covariance matrix, so that M₂ may be much larger than M.
    n_orthogonal : int, sequence of int or "auto", default="auto"
        Number M₂ of orthogonal inducing points; "auto" is `n_inducing`, or fewer if rows are few. A
        sequence of numbers gives several sets of points, which are also orthogonal to one another,
        so each set needs only a decomposition of its own size.

    Attributes
    ----------
    orthogonal_points_ : ndarray of shape (n_orthogonal, n_features)
        The fitted orthogonal points, in the units of X; only with posterior="solve" or "odvgp".
    """

    posterior: str = "svgp"
    n_orthogonal: Any = "auto"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "posterior": [StrOptions({"svgp", "solve", "odvgp"})],
        "n_orthogonal": [POSITIVE_INTEGER, "array-like", AUTO],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("posterior", "n_orthogonal", "whiten")


@dataclass(eq=False, repr=False, kw_only=True)
class LossParameters:
    """A choice of likelihood and loss.

    Parameters
    ----------
    loss : {"elbo", "log1p", "log", "square"} or Loss, default="elbo"
        What to minimise: "elbo", the negative evidence lower bound; "log1p", a tighter bound for a
        Gaussian likelihood; "log", the negative log predictive density; "square", the square loss;
        or an instance of a class of :mod:`skgpstoch.losses`.
    beta : float, default=1.0
        Weight of the Kullback-Leibler divergence; a value below 1 trusts the data more.

    Attributes
    ----------
    loss_curve_ : list of float
        Training loss of each epoch, per row, as its minibatches saw it; in nats, or in squared
        units for the square loss. Of a stream: of the latest 100,000 calls of `partial_fit`.
    validation_scores_ : list of float or None
        Loss of held-out rows at each evaluation, per row: negative log predictive density in nats,
        or square loss; of the scaled y if it is scaled.
    """

    likelihood: str | Likelihood = "auto"
    loss: str | Loss = "elbo"
    beta: Any = 1.0

    _first_parameters: ClassVar[tuple[str, ...]] = ("likelihood",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "likelihood": [str, Likelihood],
        "loss": [str, Loss],
        "beta": [POSITIVE],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("likelihood",)


@dataclass(eq=False, repr=False, kw_only=True)
class RegressionParameters(TargetParameters):
    """Regression and counts with a variational posterior.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        RBF, Matern (nu = 0.5, 1.5, 2.5 or inf), RationalQuadratic, ExpSineSquared, DotProduct,
        ConstantKernel, and their sums, products and powers. None: a constant times a Matérn kernel
        (nu=1.5) with a length-scale for each input, whose hyper-parameters start from the data. A
        top-level WhiteKernel is the noise of the Gaussian likelihood. Variances refer to the scaled
        y.
    normalize_y : bool, default=True
        Whether to standardise the target internally, if the noise is additive; results are in the
        target's own units. If the noise has Student's t tails and a few outliers dominate the
        variance, the median and quantiles are used.
    likelihood : str or Likelihood, default="auto"
        "gaussian", "student_t", "shared_student_t", "laplace", or for counts "poisson" or
        "negative_binomial"; or an instance of a class of :mod:`skgpstoch.likelihoods`. "auto" is
        "gaussian"; "shared_student_t" needs loss="log".

    Attributes
    ----------
    kernel_ : sklearn kernel
        The fitted kernel, on X or on the network's outputs; variances refer to the scaled y.
    likelihood_ : Likelihood
        The fitted likelihood, in the units of y.
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Variance of Gaussian, Student-t or Laplace noise, in squared units of y, without the known
        errors `y_std`.
    log_marginal_likelihood_value_ : float
        The bound on log p(y | X), in nats, summed over all rows, for y in its own units. NaN after
        `partial_fit`, and if there is no bound (likelihood="shared_student_t").
    """


@dataclass(eq=False, repr=False, kw_only=True)
class InputNoiseParameters(RegressionParameters):
    """Regression whose noise may depend on the inputs.

    Parameters
    ----------
    noise : {"constant", "input"}, default="constant"
        Whether the scale of additive noise is the same everywhere ("constant") or a function of X
        ("input"): the softplus of a second function of the features, for which a point estimate is
        learned. With "input", `likelihood_` and `noise_variance_` refer to where that function is
        0.
    """

    noise: str = "constant"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "noise": [StrOptions({"constant", "input"})],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("noise",)


@dataclass(eq=False, repr=False, kw_only=True)
class ClassificationParameters:
    """Classification with a variational posterior.

    Parameters
    ----------
    likelihood : str or Likelihood, default="auto"
        "bernoulli" (logistic), "softmax" or "robustmax"; or an instance of a class of
        :mod:`skgpstoch.likelihoods`. "auto" is "bernoulli" for two classes, else "softmax".

    Attributes
    ----------
    kernel_ : sklearn kernel
        The fitted kernel, on X or on the network's outputs.
    likelihood_ : Likelihood
        The fitted likelihood.
    log_marginal_likelihood_value_ : float
        The bound on log p(y | X), in nats, summed over all rows; NaN after `partial_fit`.
    """

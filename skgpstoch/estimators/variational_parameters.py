"""Groups of constructor parameters of variational posteriors.

They are data, as those of :mod:`skgpstoch.estimators.parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

from sklearn.utils._param_validation import Interval, StrOptions

from ..likelihoods.base import Likelihood
from ..losses import Loss
from ..recipes.points import INITIALIZATIONS
from .parameters import (
    AUTO,
    POSITIVE,
    POSITIVE_INTEGER,
    SHARE,
    TrainingParameters,
    TransformedTargetParameters,
    WarmStartParameters,
)


@dataclass(eq=False, repr=False, kw_only=True)
class InducingParameters(TrainingParameters, WarmStartParameters):
    """Inducing points, and how q is trained.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        An expression of RBF, Matern (nu = 0.5, 1.5, 2.5 or inf), RationalQuadratic, ExpSineSquared,
        DotProduct and ConstantKernel by sums, products and powers. None: a constant times a Matérn
        kernel (nu=1.5) with a length-scale for each input, started from the data.
    n_inducing : int or "auto", default="auto"
        Number M of inducing points; if it is more than there are distinct rows, it is cut to those,
        with a warning. "auto" is 512 for a Gaussian likelihood and 256 for others, up to 1,000 rows
        half of that, but of as few rows all of them; and a quarter of the rows at most, or 20,
        where q's covariance has no closed form, as for the loss "log".
    inducing_points : {"kmeans", "conditional_variance", "random"} or array-like, default="kmeans"
        Where the points start: centres of clusters, rows of large conditional variance, random
        rows, or these rows, of shape (n_inducing, n_features).
    learn_inducing_points : bool, default=True
        Whether the points are trained.
    mean : {"constant", "zero"}, default="constant"
        Prior mean of f: a learned constant, or 0.
    whiten : bool, default=True
        Whether solver="adam" or "adadelta" learns q in whitened coordinates.
    hidden_layer_sizes : tuple of int, default=()
        Widths of the layers of a network below the kernel; none by default.
    solver : {"auto", "collapsed", "lbfgs", "natural", "adam", "adadelta"}, default="auto"
        "collapsed": running averages of sufficient statistics, for a Gaussian likelihood without
        `y_std`, or additive noise and the square loss; "natural": natural-gradient or Newton steps;
        "lbfgs": all rows at each step; "adam" and "adadelta", whose learning rate is about 1: q is
        learned like all else. "auto" is "lbfgs" up to 1,000 rows for the loss "elbo" of a
        log-concave likelihood, up to 2,000 of a Gaussian one without a network; it ends where the
        bound has converged. Otherwise it is "collapsed" where it can be, "adam" where gradients are
        sampled, else "natural"; `solver_` says which.
    averaging : float or "auto", default="auto"
        Weight of a minibatch in the running averages; "auto" looks back on 5 rows for
        each inducing point, 2,500 at least.
    batch_size : int or "auto", default="auto"
        Rows of a minibatch; "auto" is 512. L-BFGS has all rows.
    max_iter : int or "auto", default="auto"
        Epochs; "auto" makes 500 to 3,000 steps. Of L-BFGS, tens of iterations: 20 by default.
    learning_rate_init : float, default=0.1
        Learning rate of Adam, or its maximum with "one-cycle"; networks have a tenth of it, and all
        else three tenths where q's covariance has no closed form.
    early_stopping : bool or "auto", default="auto"
        Keep the iterate that predicts held-out rows best; they rejoin the closing pass. "auto":
        where there is a network. Otherwise the last iterate is kept.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`; None: train to the end (L-BFGS:
        until ten iterations gain less than 1e-6 nats per row).
    dtype : {"float32", "float64"}, default="float32"
        Of the data during training; L-BFGS, factorisations and predictions are always float64.

    Attributes
    ----------
    inducing_points_ : ndarray of shape (n_inducing, n_features)
        In the units of X.
    solver_ : str
        The solver that was used.
    """

    n_inducing: int | str = "auto"
    inducing_points: Any = "kmeans"
    learn_inducing_points: bool = True
    mean: str = "constant"
    whiten: bool = True
    solver: str = "auto"
    averaging: float | str = "auto"
    early_stopping: bool | str = "auto"

    _first_parameters: ClassVar[tuple[str, ...]] = ("n_inducing",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_inducing": [POSITIVE_INTEGER, AUTO],
        "inducing_points": [StrOptions(set(INITIALIZATIONS)), "array-like"],
        "learn_inducing_points": ["boolean"],
        "mean": [StrOptions({"zero", "constant"})],
        "whiten": ["boolean"],
        "solver": [StrOptions({"auto", "collapsed", "lbfgs", "natural", "adam", "adadelta"})],
        "averaging": [SHARE, AUTO],
        "early_stopping": ["boolean", AUTO],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("n_inducing", "inducing_points", "mean")


@dataclass(eq=False, repr=False, kw_only=True)
class OrthogonalParameters:
    """Orthogonal inducing points.

    Parameters
    ----------
    posterior : {"svgp", "solve", "odvgp"}, default="svgp"
        The family of q: with inducing points of one kind, or orthogonal ones beside them, with a
        covariance of q's own there or the prior's. `n_orthogonal` and `orthogonal_points` are for
        the latter two.
    whiten : bool, default=True
        Whether solver="adam" or "adadelta" learns q in whitened coordinates. Where the orthogonal
        points keep the prior's covariance, False has the mean learned by coefficients of kernel
        functions, from some columns of the covariance matrix at each step, so that M₂ may be much
        larger than M.
    n_orthogonal : int, sequence of int or "auto", default="auto"
        Number M₂ of orthogonal inducing points; "auto" is `n_inducing`, as far as there are rows.
        Several numbers are of sets that are orthogonal to one another as well, so that each needs
        a decomposition of its own size only.
    orthogonal_points : array-like of shape (n_orthogonal, n_features) or None, default=None
        Where they start, one set after another; None: as `inducing_points`.

    Attributes
    ----------
    orthogonal_points_ : ndarray of shape (n_orthogonal, n_features)
        In the units of X; with posterior="solve" or "odvgp".
    """

    posterior: str = "svgp"
    n_orthogonal: Any = "auto"
    orthogonal_points: Any = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "posterior": [StrOptions({"svgp", "solve", "odvgp"})],
        "n_orthogonal": [POSITIVE_INTEGER, "array-like", AUTO],
        "orthogonal_points": ["array-like", None],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = (
        "posterior",
        "n_orthogonal",
        "orthogonal_points",
        "whiten",
    )


@dataclass(eq=False, repr=False, kw_only=True)
class LossParameters:
    """A choice of likelihood and loss.

    Parameters
    ----------
    loss : {"elbo", "log", "square"} or Loss, default="elbo"
        What is minimised: the negative evidence lower bound, the negative log predictive density
        or the square loss; or an instance of a class of :mod:`skgpstoch.losses`.
    beta : float, default=1.0
        Weight of the Kullback-Leibler divergence; less than 1 trusts the data more.
    bound : {"titsias", "log1p"}, default="titsias"
        The bound; "log1p" is tighter, for a Gaussian likelihood and the loss "elbo" alone.

    Attributes
    ----------
    loss_curve_ : list of float
        What is minimised, per row, at each epoch, as minibatches saw it: nats, or squares.
    validation_scores_ : list of float or None
        Loss of held-out rows at each evaluation, per row: negative log predictive density in nats,
        or square loss; of the scaled y where it is scaled.
    """

    likelihood: str | Likelihood = "auto"
    loss: str | Loss = "elbo"
    beta: Any = 1.0
    bound: str = "titsias"

    _first_parameters: ClassVar[tuple[str, ...]] = ("likelihood",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "likelihood": [str, Likelihood],
        "loss": [str, Loss],
        "beta": [POSITIVE],
        "bound": [StrOptions({"titsias", "log1p"})],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("likelihood",)


@dataclass(eq=False, repr=False, kw_only=True)
class DrawParameters:
    """Draws of hidden layers.

    Parameters
    ----------
    n_samples : int or "auto", default="auto"
        Draws of hidden layers for each row and step, S. "auto" is 1, and more, up to 10, of fewer
        than 1,500 rows (of images patches), which draws stand in for. With loss="log" several are
        one mixture.
    n_predict_samples : int, default=64
        Draws of hidden layers in predictions, of a model fitted with it: points of a Sobol
        sequence, the same for all rows and calls; even.
    """

    n_samples: int | str = "auto"
    n_predict_samples: int = 64

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_samples": [POSITIVE_INTEGER, AUTO],
        "n_predict_samples": [Interval(Integral, 2, None, closed="left")],
    }


@dataclass(eq=False, repr=False, kw_only=True)
class TargetParameters(TransformedTargetParameters):
    """Regression and counts with a variational posterior, whose noise is the same everywhere.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        An expression of RBF, Matern (nu = 0.5, 1.5, 2.5 or inf), RationalQuadratic, ExpSineSquared,
        DotProduct and ConstantKernel by sums, products and powers. None: a constant times a Matérn
        kernel (nu=1.5) with a length-scale for each input, started from the data. A top-level
        WhiteKernel is the noise of the Gaussian likelihood. Variances refer to the scaled y.
    normalize_y : bool, default=True
        Whether the target is standardised inside, where noise is additive; by median and quantiles
        if the noise has the tails of Student's t and a few outliers rule the variance. Results are
        in its own units.
    likelihood : str or Likelihood, default="auto"
        "gaussian", "student_t", "shared_student_t", "laplace", or "poisson" for counts; or an
        instance of a class of :mod:`skgpstoch.likelihoods`. "auto" is "gaussian";
        "shared_student_t" needs loss="log".

    Attributes
    ----------
    kernel_ : sklearn kernel
        The fitted kernel, on X or on the network's outputs; variances refer to the scaled y.
    likelihood_ : Likelihood
        The fitted likelihood, in the units of y.
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Noise variance, in squared units of y, without known errors; of Gaussian, Student-t and
        Laplace noise.
    log_marginal_likelihood_value_ : float
        The bound on log p(y | X), in nats, summed over all rows, for y in its own units; NaN after
        `partial_fit`, and where there is none (likelihood="shared_student_t").
    """

    normalize_y: bool = True

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "normalize_y": ["boolean"],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("normalize_y",)


@dataclass(eq=False, repr=False, kw_only=True)
class RegressionParameters(TargetParameters):
    """Regression and counts with a variational posterior.

    Parameters
    ----------
    noise : {"constant", "input"}, default="constant"
        Whether the scale of additive noise is the same everywhere, or a function of X: softplus of
        a second function of the features, of which there is a point estimate. Of such noise,
        `likelihood_` and `noise_variance_` are those where that function is 0.
    """

    noise: str = "constant"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "noise": [StrOptions({"constant", "input"})],
    }


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

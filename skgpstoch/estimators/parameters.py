"""Groups of constructor parameters that estimators share, each written once.

Groups are data: fields, their constraints, which of them say what a model is made of, and their
part of the docstring. They have no methods. :func:`~skgpstoch.estimators.docs.public_estimator`
puts them together.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from torch import nn

from ..data.target_transforms import TRANSFORMS
from ..features.network import ACTIVATIONS
from ..likelihoods.base import Likelihood
from ..losses import Loss
from ..recipes.inducing import INITIALIZATIONS
from ..training.optimizers import SCHEDULES

POSITIVE_INTEGER = Interval(Integral, 1, None, closed="left")
NOT_NEGATIVE_INTEGER = Interval(Integral, 0, None, closed="left")
POSITIVE = Interval(Real, 0, None, closed="neither")
NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
FRACTION = Interval(Real, 0, 1, closed="neither")
SHARE = Interval(Real, 0, 1, closed="right")
AUTO = StrOptions({"auto"})
TRANSFORM: list[Any] = [
    StrOptions(set(TRANSFORMS)),
    HasMethods(["fit", "transform", "inverse_transform"]),
    None,
]
N_JOBS: list[Any] = [POSITIVE_INTEGER, Interval(Integral, None, -1, closed="right"), None]


@dataclass(eq=False, repr=False, kw_only=True)
class KernelParameters:
    """The kernel, the only positional parameter."""

    kernel: sk.Kernel | None = field(default=None, kw_only=False)

    _parameter_constraints: ClassVar[dict[str, list]] = {"kernel": [sk.Kernel, None]}
    _shape_parameters: ClassVar[tuple[str, ...]] = ("kernel",)


@dataclass(eq=False, repr=False, kw_only=True)
class RunParameters:
    """How long, and where.

    Parameters
    ----------
    tol : float, default=0.0
        Improvement that counts, in nats per row.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Where to compute; None is the CPU, "auto" a GPU where there is one.
    dtype : {"float32", "float64"}, default="float32"
        Of the data during training; predictions and factorisations are always float64.
    checkpoint_dir : path or None, default=None
        Folder to save the training in. The same `fit`, called again after it was killed, resumes
        from there to the same result.
    verbose : int or "auto", default=0
        Whether to print each epoch. "auto" shows progress on a line of its own, on a terminal or in
        a notebook, when the fit has taken ten seconds.
    random_state : int, RandomState instance or None, default=None
        Seed; an int makes fits reproducible to the last bit on the same device.

    Attributes
    ----------
    loss_curve_ : list of float
        Training loss of every epoch, nats per row, of the scaled y where it is scaled.
    validation_scores_ : list of float or None
        Negative log predictive density of held-out rows at each evaluation, in the same units.
    n_iter_, best_iter_ : int
        Epochs done, and the epoch whose iterate was kept; 0 is the start.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Their names, if X had any.
    """

    max_iter: int | str = "auto"
    tol: float = 0.0
    device: str | torch.device | None = None
    dtype: str = "float32"
    checkpoint_dir: Any = None
    verbose: int | str = 0
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "max_iter": [POSITIVE_INTEGER, AUTO],
        "tol": [NOT_NEGATIVE],
        "device": [str, torch.device, None],
        "dtype": [StrOptions({"float32", "float64"})],
        "checkpoint_dir": [str, os.PathLike, None],
        "verbose": ["verbose", AUTO],
        "random_state": ["random_state"],
    }


@dataclass(eq=False, repr=False, kw_only=True)
class WarmStartParameters:
    """What a fit begins from.

    Parameters
    ----------
    warm_start : bool, default=False
        Whether `fit` starts from the parameters of the last one.
    """

    warm_start: bool = False

    _parameter_constraints: ClassVar[dict[str, list]] = {"warm_start": ["boolean"]}


@dataclass(eq=False, repr=False, kw_only=True)
class RestartParameters:
    """How many times L-BFGS searches for hyper-parameters.

    Parameters
    ----------
    n_restarts : int, default=0
        Trainings by solver="lbfgs" from random hyper-parameters that suit the scale of the rows,
        besides the usual one; the one with the least loss is kept. They run at once in a
        :func:`joblib.parallel_config`. Other solvers have no optimum to choose from.
    """

    n_restarts: int = 0

    _parameter_constraints: ClassVar[dict[str, list]] = {"n_restarts": [NOT_NEGATIVE_INTEGER]}


@dataclass(eq=False, repr=False, kw_only=True)
class StepParameters:
    """How long a step is, and on which rows.

    Parameters
    ----------
    batch_size : int or "auto", default="auto"
        Rows of a step.
    learning_rate_init : float, default=0.1
        How long steps are.
    early_stopping : bool, default=False
        Keep the iterate that predicts held-out rows best.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`; None: train to the end.
    validation_fraction : float, default=0.1
        Fraction of the rows that is held out, where any are.
    """

    batch_size: int | str = "auto"
    learning_rate_init: float = 0.1
    early_stopping: bool | str = False
    validation_fraction: float = 0.1
    n_iter_no_change: int | None = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "batch_size": [POSITIVE_INTEGER, AUTO],
        "learning_rate_init": [POSITIVE],
        "early_stopping": ["boolean"],
        "validation_fraction": [FRACTION],
        "n_iter_no_change": [POSITIVE_INTEGER, None],
    }


@dataclass(eq=False, repr=False, kw_only=True)
class TrainingParameters(StepParameters):
    """How steps change from one to the next.

    Parameters
    ----------
    learning_rate : {"one-cycle", "constant", "theory"}, default="one-cycle"
        Schedule of the learning rate; "theory" is t^(−3/4).
    """

    learning_rate: str = "one-cycle"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "learning_rate": [StrOptions(set(SCHEDULES))],
    }


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkParameters:
    """A network below the kernel.

    Parameters
    ----------
    activation : {"identity", "relu", "tanh", "logistic", "silu", "gelu"}, default="relu"
        Activation after every layer, the last included.
    feature_map : torch.nn.Module or None, default=None
        Network of your own, (n, d) → (n, D), instead of `hidden_layer_sizes`. It is copied, and
        sees the inputs as they are.
    weight_decay : float or "auto", default="auto"
        Decoupled decay of the network's parameters (Adam); "auto" is 2000/n_samples, at most 0.3.
    """

    hidden_layer_sizes: Any = ()
    activation: str = "relu"
    feature_map: nn.Module | None = None
    weight_decay: float | str = "auto"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "hidden_layer_sizes": ["array-like", POSITIVE_INTEGER],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "feature_map": [nn.Module, None],
        "weight_decay": [NOT_NEGATIVE, AUTO],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = (
        "hidden_layer_sizes",
        "activation",
        "feature_map",
    )


@dataclass(eq=False, repr=False, kw_only=True)
class TransformedTargetParameters:
    """A monotone transformation of targets.

    Parameters
    ----------
    target_transform : {"log", "yeo-johnson"}, transformer or None, default=None
        What is modelled in the place of y, whose predictions are of y itself: its logarithm, a
        power that makes it normal, or what a monotone transformer of scikit-learn makes of it.
        Latent functions, noise, and the marginal likelihood are of the transformed target.

    Attributes
    ----------
    target_transformer_ : transformer or None
        What was fitted to y, with `transform` and `inverse_transform`.
    """

    target_transform: Any = None

    _parameter_constraints: ClassVar[dict[str, list]] = {"target_transform": TRANSFORM}
    _shape_parameters: ClassVar[tuple[str, ...]] = ("target_transform",)


@dataclass(eq=False, repr=False, kw_only=True)
class FiniteParameters(
    TransformedTargetParameters,
    NetworkParameters,
    KernelParameters,
    TrainingParameters,
    WarmStartParameters,
):
    """Finite features, and the noise.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Kernel on the features. None: their inner product, with the inputs and a constant among
        them. A DotProduct is linear on the features alone; RBF and Matern (nu = 0.5, 1.5, 2.5 or
        inf), their products with one another and with constants, and sums of all these use random
        Fourier features. A top-level WhiteKernel is the noise. Hyper-parameters refer to the
        scaled y.
    hidden_layer_sizes : tuple of int, default=(128, 128)
        Widths of the network's layers; () for the inputs themselves. Inputs to a network are
        standardised inside.
    n_components : int or "auto", default="auto"
        Number of random Fourier features; "auto" is 5 for each row, between 100 and 1,000.
    n_estimators : int or "auto", default="auto"
        Number of networks whose features are joined, each of which is validated on a fold of its
        own. "auto" is 10,000/n_samples, at least 1 and at most 5, where `kernel` and `feature_map`
        are None. With one network and few rows, the few that are held out choose the noise.
    batch_size : int or "auto", default="auto"
        Rows of a minibatch; "auto" is n_samples/64, between 128 and 512.
    max_iter : int or "auto", default="auto"
        Epochs; "auto" makes n_samples steps, between 1,000 (200 for very few rows) and 8,000.
    solver : {"adam", "adadelta"}, default="adam"
        Optimiser.
    learning_rate_init : float, default=0.01
        Learning rate, or its maximum with "one-cycle".
    early_stopping : bool, default=True
        Keep the iterate that predicts held-out rows best (their negative log predictive density);
        they rejoin the closing pass. Otherwise the iterate of the best exact marginal likelihood
        is kept, which overfits networks unless rows are very many: see the user guide.
    validation_fraction : float, default=0.1
        Fraction of the rows in a fold that is held out; with several networks, 50 rows in all are,
        or all that there are, if that is more.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`; None: train to the end, as
        the one-cycle schedule wants.
    normalize_y : bool, default=True
        Whether the target is standardised inside; results are in its own units.
    noise : {"auto", "validation", "profiled", "learned"}, default="auto"
        Where the noise variance comes from: rows held out, the running marginal likelihood, or
        gradient steps. "auto" is "validation" for networks with early stopping, and "profiled"
        otherwise; both choose the signal variance (the scale of the kernel) as well. The noise of a
        WhiteKernel that is fixed stays as it is.
    noise_variance : float, default=0.1
        Initial noise variance, relative to the scaled target.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        Features and weights' posterior, in float64 on the CPU.
    kernel_ : sklearn kernel
        The fitted kernel on the features, its scale included.
    log_marginal_likelihood_value_ : float
        Exact log p(y | X) of all rows, in nats, for y in its own units.
    """

    hidden_layer_sizes: Any = (128, 128)
    n_components: int | str = "auto"
    n_estimators: int | str = "auto"
    solver: str = "adam"
    learning_rate_init: float = 0.01
    early_stopping: bool | str = True
    normalize_y: bool = True
    noise: str = "auto"
    noise_variance: float = 0.1

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_components": [POSITIVE_INTEGER, AUTO],
        "n_estimators": [POSITIVE_INTEGER, AUTO],
        "solver": [StrOptions({"adam", "adadelta"})],
        "normalize_y": ["boolean"],
        "noise": [StrOptions({"auto", "validation", "profiled", "learned"})],
        "noise_variance": [POSITIVE],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = (
        "n_components",
        "n_estimators",
        "normalize_y",
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
        Whether solver="adam" learns q in whitened coordinates.
    hidden_layer_sizes : tuple of int, default=()
        Widths of the layers of a network below the kernel; none by default.
    solver : {"auto", "collapsed", "lbfgs", "natural", "adam"}, default="auto"
        "collapsed": running averages of sufficient statistics, for a Gaussian likelihood without
        `y_std`, or additive noise and the square loss; "natural": natural-gradient or Newton steps;
        "lbfgs": all rows at each step; "adam": q is learned like all else. "auto" is "lbfgs" up to
        1,000 rows for the loss "elbo" of a log-concave likelihood, up to 2,000 of a Gaussian one
        without a network; it ends where the bound has converged. Otherwise it is "collapsed" where
        it can be, "adam" where gradients are sampled, else "natural"; `solver_` says which.
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

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_inducing": [POSITIVE_INTEGER, AUTO],
        "inducing_points": [StrOptions(set(INITIALIZATIONS)), "array-like"],
        "learn_inducing_points": ["boolean"],
        "mean": [StrOptions({"zero", "constant"})],
        "whiten": ["boolean"],
        "solver": [StrOptions({"auto", "collapsed", "lbfgs", "natural", "adam"})],
        "averaging": [SHARE, AUTO],
        "early_stopping": ["boolean", AUTO],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("n_inducing", "inducing_points", "mean")


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
class OrthogonalParameters:
    """Orthogonal inducing points.

    Parameters
    ----------
    posterior : {"svgp", "solve", "odvgp"}, default="svgp"
        The family of q: with inducing points of one kind, or orthogonal ones beside them, with a
        covariance of q's own there or the prior's. `n_orthogonal` and `orthogonal_points` are for
        the latter two.
    whiten : bool, default=True
        Whether solver="adam" learns q in whitened coordinates. Where the orthogonal points keep the
        prior's covariance, False has the mean learned by coefficients of kernel functions, from
        some columns of the covariance matrix at each step, so that M₂ may be much larger than M.
    n_orthogonal : int or "auto", default="auto"
        Number M₂ of orthogonal inducing points; "auto" is `n_inducing`, as far as there are rows.
    orthogonal_points : array-like of shape (n_orthogonal, n_features) or None, default=None
        Where they start; None: as `inducing_points`.

    Attributes
    ----------
    orthogonal_points_ : ndarray of shape (n_orthogonal, n_features)
        In the units of X; with posterior="solve" or "odvgp".
    """

    posterior: str = "svgp"
    n_orthogonal: int | str = "auto"
    orthogonal_points: Any = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "posterior": [StrOptions({"svgp", "solve", "odvgp"})],
        "n_orthogonal": [POSITIVE_INTEGER, AUTO],
        "orthogonal_points": ["array-like", None],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = (
        "posterior",
        "n_orthogonal",
        "orthogonal_points",
        "whiten",
    )


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

"""Groups of constructor parameters that estimators share, each written once.

Groups are data: fields, their constraints, which of them define the model's shape, and their part
of the docstring. They have no methods. :func:`~skgpstoch.estimators.docs.public_estimator` puts
them together.
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

from ..data.devices import MOST_JOBS
from ..data.target_transforms import TRANSFORMS
from ..models.features.network import ACTIVATIONS
from ..training.optimizers import SCHEDULES

POSITIVE_INTEGER = Interval(Integral, 1, None, closed="left")
NOT_NEGATIVE_INTEGER = Interval(Integral, 0, None, closed="left")
RESTARTS = Interval(Integral, 0, 10_000, closed="both")  # starts are drawn before any is tried
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
ACTIVATION: list[Any] = [StrOptions(set(ACTIVATIONS))]
N_JOBS: list[Any] = [
    Interval(Integral, 1, MOST_JOBS, closed="both"),
    Interval(Integral, -MOST_JOBS, -1, closed="both"),
    None,
]


@dataclass(eq=False, repr=False, kw_only=True)
class RunParameters:
    """The kernel, the only positional parameter; stopping, device, output and seed of a fit.

    Parameters
    ----------
    tol : float, default=0.0
        Smallest improvement that counts, in nats per row.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Device to compute on. None is the CPU; "auto" is a GPU if there is one.
    dtype : {"float32", "float64"}, default="float32"
        Precision of the data during training; predictions and factorisations are always in float64.
    checkpoint_dir : path or None, default=None
        Folder for checkpoints of the training. If `fit` is killed, the same call resumes from there
        and gives the same result. :func:`skgpstoch.load` does not take it from files.
    verbose : int or "auto", default=0
        Whether to print each epoch. "auto" shows a progress line, on a terminal or in a notebook,
        once the fit has taken ten seconds.
    random_state : int, RandomState instance or None, default=None
        Seed. An int makes fits reproducible to the last bit on the same device.

    Attributes
    ----------
    loss_curve_ : list of float
        Training loss of every epoch, in nats per row; of the scaled y if it is scaled. Of a stream:
        of the latest 100,000 calls of `partial_fit`.
    validation_scores_ : list of float or None
        Negative log predictive density of held-out rows at each evaluation, in the same units.
    n_iter_, best_iter_ : int
        Number of epochs done, and the epoch whose iterate was kept; 0 is the start.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the inputs, if X had any.
    """

    kernel: sk.Kernel | None = field(default=None, kw_only=False)
    max_iter: int | str = "auto"
    tol: float = 0.0
    device: str | torch.device | None = None
    dtype: str = "float32"
    checkpoint_dir: Any = None
    verbose: int | str = 0
    random_state: Any = None

    _first_parameters: ClassVar[tuple[str, ...]] = ("kernel", "max_iter", "device", "random_state")
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "kernel": [sk.Kernel, None],
        "max_iter": [POSITIVE_INTEGER, AUTO],
        "tol": [NOT_NEGATIVE],
        "device": [str, torch.device, None],
        "dtype": [StrOptions({"float32", "float64"})],
        "checkpoint_dir": [str, os.PathLike, None],
        "verbose": ["verbose", AUTO],
        "random_state": ["random_state"],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("kernel",)


@dataclass(eq=False, repr=False, kw_only=True)
class RestartParameters:
    """How many times L-BFGS searches for hyper-parameters.

    Parameters
    ----------
    n_restarts : int, default=0
        Number of additional trainings by solver="lbfgs", at most 10,000, from random
        hyper-parameters that suit the scale of the rows; the training with the smallest loss is
        kept. They run in parallel inside a :func:`joblib.parallel_config`. Other solvers have no
        restarts, because they do not train to an optimum.
    """

    n_restarts: int = 0

    _parameter_constraints: ClassVar[dict[str, list]] = {"n_restarts": [RESTARTS]}


@dataclass(eq=False, repr=False, kw_only=True)
class StepParameters:
    """Length of a step, and its rows.

    Parameters
    ----------
    batch_size : int or "auto", default="auto"
        Number of rows per step.
    learning_rate_init : float, default=0.1
        Length of the steps.
    early_stopping : bool, default=False
        Whether to keep the iterate that predicts held-out rows best.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`. None: train to the end.
    validation_fraction : float, default=0.1
        Fraction of the rows to hold out, when rows are held out.
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
    """How the length of steps changes, and where training begins.

    Parameters
    ----------
    learning_rate : {"one-cycle", "constant", "theory"}, default="one-cycle"
        Schedule of the learning rate; "theory" decays as t^(−3/4).
    warm_start : bool, default=False
        Whether `fit` starts from the parameters of the previous fit, if that explains the rows.
    """

    learning_rate: str = "one-cycle"
    warm_start: bool = False

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "learning_rate": [StrOptions(set(SCHEDULES))],
        "warm_start": ["boolean"],
    }


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkParameters:
    """A network below the kernel.

    Parameters
    ----------
    feature_map : torch.nn.Module or None, default=None
        A network of your own, (n, d) → (n, D), to use instead of `hidden_layer_sizes`. It is
        copied, and receives the inputs unscaled.
    weight_decay : float or "auto", default="auto"
        Weight decay of the network's parameters. It is decoupled with Adam, and a part of the
        gradient with AdaDelta. "auto" is 2000/n_samples, at most 0.3.
    """

    hidden_layer_sizes: Any = ()
    feature_map: nn.Module | None = None
    weight_decay: float | str = "auto"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "hidden_layer_sizes": ["array-like", POSITIVE_INTEGER],
        "feature_map": [nn.Module, None],
        "weight_decay": [NOT_NEGATIVE, AUTO],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("hidden_layer_sizes", "feature_map")


@dataclass(eq=False, repr=False, kw_only=True)
class TargetParameters:
    """How targets are scaled and transformed.

    Parameters
    ----------
    normalize_y : bool, default=True
        Whether to standardise the target internally; results are in the target's own units.
        Otherwise y should have a variance of about 1, for which parameters start and are bounded.
    target_transform : {"log", "yeo-johnson"}, transformer or None, default=None
        Transformation of y that is modelled instead of y: "log", its logarithm; "yeo-johnson", a
        power that makes it normal; or a monotone transformer with scikit-learn's interface.
        Predictions are of y itself. Latent functions, noise and the marginal likelihood refer to
        the transformed target.

    Attributes
    ----------
    target_transformer_ : transformer or None
        The transformer that was fitted to y, with `transform` and `inverse_transform`.
    """

    normalize_y: bool = True
    target_transform: Any = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "normalize_y": ["boolean"],
        "target_transform": TRANSFORM,
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("normalize_y", "target_transform")


@dataclass(eq=False, repr=False, kw_only=True)
class FiniteParameters(TargetParameters, NetworkParameters, TrainingParameters):
    """Finite features, and the noise.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Kernel on the features. None: their inner product, with the inputs and a constant added to
        the features if there are at most 2,000 inputs. A DotProduct is linear in the features
        alone. RBF and Matern (nu = 0.5, 1.5, 2.5 or inf), their products with one another and with
        constants, and sums of all these use random Fourier features. A top-level WhiteKernel is the
        noise. Hyper-parameters refer to the scaled y.
    hidden_layer_sizes : tuple of int, default=(128, 128)
        Widths of the network's layers; () uses the inputs themselves. Inputs to a network are
        standardised internally.
    activation : {"identity", "relu", "tanh", "logistic", "silu", "gelu"}, default="relu"
        Activation after every layer, including the last.
    n_components : int or "auto", default="auto"
        Number of random Fourier features; "auto" is 5 for each row, between 100 and 1,000.
    n_estimators : int or "auto", default="auto"
        Number of networks whose features are joined. Each is validated on a fold of its own. "auto"
        is 10,000/n_samples, at least 1 and at most 5, if `kernel` and `feature_map` are None and
        `early_stopping` is True, else 1. With one network and few rows, only a few held-out rows
        determine the noise.
    batch_size : int or "auto", default="auto"
        Number of rows per minibatch; "auto" is n_samples/64, between 128 and 512.
    max_iter : int or "auto", default="auto"
        Number of epochs; "auto" makes n_samples steps, but at least 1,000 (200 for very few rows)
        and at most 8,000.
    solver : {"adam", "adadelta"}, default="adam"
        Optimiser.
    learning_rate_init : float, default=0.01
        Learning rate, or its maximum with learning_rate="one-cycle".
    early_stopping : bool, default=True
        Whether to keep the iterate that predicts held-out rows best, by their negative log
        predictive density; the closing pass then uses these rows too. False: keep the iterate with
        the best exact marginal likelihood, which overfits networks unless there are very many rows;
        see the user guide.
    validation_fraction : float, default=0.1
        Fraction of the rows that a fold holds out. With several networks, at least 50 rows are held
        out in all, or all rows if there are fewer.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`. None: train to the end, as the
        one-cycle schedule needs.
    noise : {"auto", "validation", "profiled", "learned"}, default="auto"
        How to find the noise variance: "validation", from held-out rows; "profiled", from the
        running marginal likelihood; "learned", by gradient steps. "auto" is "validation" for
        networks with early stopping, else "profiled"; both also choose the signal variance (the
        scale of the kernel). The noise of a fixed WhiteKernel stays as it is.
    noise_variance : float, default=0.1
        Initial noise variance, relative to the scaled target.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        The features and the posterior of their weights, in float64 on the CPU.
    kernel_ : sklearn kernel
        The fitted kernel on the features, including its scale.
    log_marginal_likelihood_value_ : float
        Exact log p(y | X) of all rows, in nats, for y in its own units.
    """

    hidden_layer_sizes: Any = (128, 128)
    activation: str = "relu"
    n_components: int | str = "auto"
    n_estimators: int | str = "auto"
    solver: str = "adam"
    learning_rate_init: float = 0.01
    early_stopping: bool | str = True
    noise: str = "auto"
    noise_variance: float = 0.1

    _first_parameters: ClassVar[tuple[str, ...]] = ("hidden_layer_sizes", "n_components")
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "activation": ACTIVATION,
        "n_components": [POSITIVE_INTEGER, AUTO],
        "n_estimators": [POSITIVE_INTEGER, AUTO],
        "solver": [StrOptions({"adam", "adadelta"})],
        "noise": [StrOptions({"auto", "validation", "profiled", "learned"})],
        "noise_variance": [POSITIVE],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("activation", "n_components", "n_estimators")

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

    _first_parameters: ClassVar[tuple[str, ...]] = ("kernel",)
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

    _first_parameters: ClassVar[tuple[str, ...]] = ("max_iter", "device", "random_state")
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
        Decay of the network's parameters, decoupled with Adam and a part of the gradient with
        AdaDelta; "auto" is 2000/n_samples, at most 0.3.
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

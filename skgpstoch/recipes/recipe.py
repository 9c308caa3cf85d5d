"""What a fit is made of: recipes of parts, and the plans that they come to for so many rows.

An estimator makes a :class:`Recipe` from its parameters, once per fit. A recipe knows nothing of
estimators. It decides what "auto" means with a pure function of sizes (:meth:`Recipe.plan`), makes
the objective that is trained (:meth:`Recipe.objective`), and afterwards says what the estimator's
fitted attributes are (:meth:`Recipe.attributes`).
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ..data.arrays import MOST_INTEGER, Scaling, plain
from ..data.deadline import Deadline
from ..data.devices import HOST
from ..data.findings import Finding
from ..data.rows import UNSEEN, Data, Rows
from ..kernels import Kernel, contains, split_white_noise
from ..likelihoods.base import Likelihood
from ..likelihoods.heavy_tailed import Laplace, StudentT
from ..likelihoods.real import AdditiveNoise, Gaussian
from ..objectives.base import Objective
from ..posteriors.base import Posterior
from ..training.loop import History
from ..training.optimizers import Schedule, constant
from .budget import Budget
from .findings import (
    nearest_rows,
    of_bounds,
    of_errors,
    of_features,
    of_inputs,
    of_noise,
    of_rows,
    of_sight,
    of_training,
)

NOISE_BOUNDS = (1e-8, 1e2)  # of σ², for a target of variance 1
DECAY_ROWS, MOST_DECAY = 2000, 0.3  # weight_decay="auto" is 2000/n, at most 0.3
MIN_NOISE = 1e-12  # stands for a WhiteKernel of 0, whose logarithm is infinite
MOST_RELEVANT_INPUTS = 64  # up to which each has a length-scale of its own, by default
START_NOISE = sk.WhiteKernel(0.1, NOISE_BOUNDS)


# ---- what is given -------------------------------------------------------------------------------


class OfParameters:
    """What is made from an estimator's parameters."""

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        """Take what is not decided here from parameters of the same names, as far as there are."""
        names = [name for name in inspect.signature(cls).parameters if name not in decided]
        has = [name for name in names if hasattr(parameters, name)]
        given = {name: plain(getattr(parameters, name)) for name in has}
        return cls(**given, **decided)


class Sizes(NamedTuple):
    """All that a plan may know of the data."""

    n_rows: int  # distinct rows
    n_given: int  # rows before equal ones were merged, or what they count for if that is more
    n_features: int = 1
    has_known_noise: bool = False  # y_std is given
    streams: bool = False  # the rows are a chunk of more


@dataclass(frozen=True)
class Training(OfParameters):
    """Parameters of training, as every estimator has them; "auto" is not decided yet."""

    max_iter: int | str = "auto"
    batch_size: int | str = "auto"
    learning_rate_init: float = 0.1
    learning_rate: str = "one-cycle"
    early_stopping: bool | str = "auto"
    validation_fraction: float = 0.1
    n_iter_no_change: int | None = None
    tol: float = 0.0
    dtype: str = "float32"

    def is_complete(self, status: str) -> bool:
        """Tell whether training that ended so went on for as long as it takes by itself."""
        ends = ("converged", "max_iter") if self.max_iter == "auto" else ("converged",)
        return self.n_iter_no_change is None and status in ends


class KernelChoice(NamedTuple):
    """A kernel expression, without the top-level WhiteKernel that stands for Gaussian noise."""

    expression: sk.Kernel | None  # None: the method's default
    white: sk.WhiteKernel | None
    start_noise: float  # σ² to start from
    noise_bounds: tuple[float, float]  # of σ²; equal ends if it is fixed
    learns_noise: bool  # whether there is no WhiteKernel with a fixed level

    @classmethod
    def of(cls, kernel: sk.Kernel | None, noise: float = 0.0, least: float = 0.0) -> KernelChoice:
        """Split a kernel parameter.

        Parameters
        ----------
        kernel : sklearn kernel or None
            The parameter.
        noise : float, default=0.0
            σ² to start from if there is no WhiteKernel; clipped to the bounds.
        least : float, default=0.0
            Lower bound of σ², unless it is fixed.
        """
        expression, white = (None, None) if kernel is None else split_white_noise(kernel)
        if white is None:
            low, high = NOISE_BOUNDS
        elif white.hyperparameter_noise_level.fixed:
            low = high = max(white.noise_level, MIN_NOISE)
        else:
            low, high = (max(bound, MIN_NOISE) for bound in white.noise_level_bounds)
        if low < high:
            low = max(low, least)
        level = noise if white is None else white.noise_level
        is_fixed = white is not None and white.hyperparameter_noise_level.fixed
        start = float(np.clip(level, low, high))
        return cls(expression, white, start, (low, high), not is_fixed)

    def input_scaling(
        self, X: np.ndarray, weight: np.ndarray | None, standardizes: bool
    ) -> Scaling:
        """Return how X is scaled below the kernel: a user's kernel sees the user's units."""
        if self.expression is None and standardizes:
            return Scaling.standard(X, weight)
        if self.expression is not None and contains(self.expression, sk.DotProduct):
            return Scaling.identity(X.shape[1])  # which is not invariant to shifts
        return Scaling.centered(X, weight)

    def in_units(self, fitted: Any, x_scaling: Scaling) -> sk.Kernel:
        """Return a fitted kernel for the user's X: :func:`default_kernel` has seen it scaled."""
        if self.expression is None:
            in_units(fitted.k2, x_scaling.scale)
        return fitted

    @property
    def is_fixed(self) -> bool:
        """Whether neither the kernel nor the noise has anything to learn."""
        given = self.expression is not None and self.expression.n_dims == 0
        return given and not self.learns_noise


def default_kernel(n_features: int) -> sk.Kernel:
    """Return a kernel for standardised inputs and targets."""
    n_scales = n_features if n_features <= MOST_RELEVANT_INPUTS else 1
    shape = sk.RBF(np.full(n_scales, math.sqrt(n_features)), (1e-3, 1e4))
    return sk.ConstantKernel(1.0, (1e-3, 1e3)) * shape


def in_units(kernel: Any, scale: np.ndarray | float) -> None:
    """Give length-scales, and their bounds, in other units: `scale` times as large."""
    kernel.length_scale = kernel.length_scale * scale
    if not isinstance(kernel.length_scale_bounds, str):
        bounds = np.multiply.outer(scale, np.ravel(kernel.length_scale_bounds))
        kernel.length_scale_bounds = bounds if np.ndim(scale) else tuple(bounds)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network of ours, or a copy of the user's module.

    Parameters
    ----------
    layers : tuple of int, default=()
        Widths.
    activation : str, default="relu"
        After every layer.
    module : nn.Module or None, default=None
        The user's, (n, d) → (n, D).
    weight_decay : float or "auto", default="auto"
        Decoupled decay of its parameters.
    """

    layers: tuple[int, ...] = ()
    activation: str = "relu"
    module: nn.Module | None = None
    weight_decay: float | str = "auto"

    @classmethod
    def of(
        cls,
        hidden_layer_sizes: Any,
        activation: str,
        feature_map: nn.Module | None,
        weight_decay: float | str,
        *,
        replaces: bool = False,
    ) -> Network | None:
        """Return the network that parameters ask for, or None.

        Parameters
        ----------
        hidden_layer_sizes, activation, feature_map, weight_decay
            The parameters.
        replaces : bool, default=False
            Whether `feature_map` replaces `hidden_layer_sizes`, which has layers by default.

        Raises
        ------
        ValueError
            If they ask for two.
        """
        layers = positive_integers("hidden_layer_sizes", hidden_layer_sizes)
        if feature_map is not None and replaces:
            layers = ()
        if feature_map is not None and layers:
            raise ValueError(
                f"hidden_layer_sizes={hidden_layer_sizes!r} and feature_map are two networks; "
                "give one of them."
            )
        if feature_map is None and not layers:
            return None
        return cls(
            layers=layers, activation=activation, module=feature_map, weight_decay=weight_decay
        )

    def freeze(self, network: nn.Module) -> None:
        """Train those parameters of a copy of the user's module that the user left free."""
        if self.module is not None:
            pairs = zip(self.module.parameters(), network.parameters(), strict=True)
            for user, ours in pairs:
                ours.requires_grad_(user.requires_grad)

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """Return how X is scaled: standard for networks of ours, as it is for the user's."""
        if self.module is not None:
            return Scaling.identity(X.shape[1])
        return Scaling.standard(X, weight)

    def decay(self, n_rows: float) -> float:
        """Return the weight decay for so many rows."""
        if self.weight_decay != "auto":
            return float(self.weight_decay)
        return min(MOST_DECAY, DECAY_ROWS / n_rows)


def positive_integers(name: str, given: Any) -> tuple[int, ...]:
    """Return a parameter that is one positive integer, several, or none.

    Raises
    ------
    ValueError
        If it is anything else, rows and columns included.
    """
    found: Sequence[Any] = np.atleast_1d(np.asarray(given, dtype=object)).tolist()
    if any(isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in found):
        raise ValueError(f"{name} must be positive integers, got {given!r}.")
    if any(n > MOST_INTEGER for n in found):
        raise ValueError(f"{name} must be at most {MOST_INTEGER}, got {given!r}.")
    return tuple(int(n) for n in found)


class Start(NamedTuple):
    """A fitted model that a fit begins from.

    Parameters
    ----------
    posterior : Posterior
        The fitted one.
    changed : mapping of str to str, default={}
        Parameters that say what the model is made of and have changed since, with a description
        such as "n_inducing=20 (before: 10)".
    is_fixed : bool, default=False
        Whether kernel, likelihood and points stay as they are there.
    """

    posterior: Any
    changed: Mapping[str, str] = {}
    is_fixed: bool = False

    def describe_changes(self) -> str:
        """Return what has changed, for an error message."""
        return ", ".join(self.changed.values())

    def check_unchanged(self, names: tuple[str, ...] | None = None) -> None:
        """Raise a ValueError if any of these parameters, or any at all, has changed."""
        changed = [text for name, text in self.changed.items() if names is None or name in names]
        if changed:
            raise ValueError(
                "warm_start=True goes on with the model that was fitted before, but "
                f"{', '.join(changed)} asks for another one. Set it back, or fit with "
                "warm_start=False."
            )

    def number(self, name: str, asked: int | str, n_fitted: int) -> int:
        """Return how many points there are, unless a parameter has since asked for others."""
        # There may have been fewer rows to choose from than the parameter says.
        return given_number(asked, name, n_fitted) if name in self.changed else n_fitted


class Problem(NamedTuple):
    """Scaled rows, and what has been decided for them."""

    X: Tensor  # (N, d)
    rows: Rows
    x_scaling: Scaling
    plan: Plan
    generator: torch.Generator
    start: Start | None = None

    def trained(self) -> Problem:
        """Return the problem without held-out rows, which come first."""
        if self.rows.fold is None:
            return self
        n = self.rows.n_held_out
        return self._replace(X=self.X[n:], rows=self.rows[n:])


class Fitted(NamedTuple):
    """A finished fit, for the attributes that it leaves on the estimator."""

    posterior: Any
    x_scaling: Scaling
    y_scaling: Scaling
    y_shape: tuple[int, ...]  # of a row of the user's y
    plan: Plan
    history: History
    objective: Objective | None = None
    data: Data | None = None  # as it was given, rows of weight 0 included
    places: np.ndarray | None = None  # which row of training each row of a weight became
    budget: Budget | None = None  # what there was time for, if that was limited

    @property
    def whole(self) -> Data | None:
        """The rows that count; None of a stream, of which only the last chunk is known."""
        if self.data is None or (self.objective is not None and self.objective.streams):
            return None
        return self.data.counted()

    def among_first(self, n_first: int) -> tuple[np.ndarray, np.ndarray]:
        """Return which given rows became one of the first rows of training, and which of these."""
        data, places = cast(Data, self.data), cast(np.ndarray, self.places)
        given = np.arange(len(data)) if data.weight is None else np.flatnonzero(data.weight)
        is_first = places < n_first
        return given[is_first], places[is_first]

    def in_units(self, log_density: Any, n_rows: float) -> Any:
        """Return the log density of n_rows rows of the scaled y for y in the user's units."""
        return log_density - n_rows * float(np.log(self.y_scaling.scale).sum())

    def per_output(self, values: Tensor) -> float | np.ndarray:
        """Return a number per output, (P,), as the user's y is shaped."""
        array = values.detach().numpy()
        return float(array[0]) if self.y_shape == () else array

    def of_noise(self, likelihood: AdditiveNoise) -> dict[str, Any]:
        """Return the attributes that describe additive noise."""
        likelihood = likelihood.in_units(torch.from_numpy(self.y_scaling.scale))
        variance = self.per_output(likelihood.noise_variance)
        return {"likelihood_": likelihood, "noise_variance_": variance}


# ---- what is decided -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Folds:
    """Rows that are held out: the first ones, in random order.

    Parameters
    ----------
    n_folds : int, default=1
        K disjoint sets, one for each member of an ensemble.
    size : int, default=0
        Rows in each.
    n_unseen : int, default=0
        Rows before them that are in none, and not trained on at all.
    """

    n_folds: int = 1
    size: int = 0
    n_unseen: int = 0

    @property
    def n_untrained(self) -> int:
        """Rows that are not trained on at all; of several folds, other members see each."""
        return self.n_unseen + (self.size if self.n_folds == 1 else 0)

    @classmethod
    def of(cls, n_rows: int, fraction: float, n_folds: int = 1) -> Folds:
        """Return folds of a fraction of the rows each."""
        most = n_rows // max(2, n_folds)
        return cls(n_folds, min(max(1, round(fraction * n_rows)), most))

    def numbers(self, n_rows: int, device: torch.device) -> Tensor | None:
        """Return the fold of each row, (N,): −2 for those unseen, then folds, then −1; or None."""
        if not self.size:
            return None
        fold = torch.full((n_rows,), -1, dtype=torch.int32, device=device)
        fold[: self.n_unseen] = UNSEEN
        for k in range(self.n_folds):
            start = self.n_unseen + k * self.size
            fold[start : start + self.size] = k
        return fold


@dataclass(frozen=True)
class Plan:
    """What a fit does: "auto" is decided, once."""

    solver: str
    dtype: str  # of the data
    max_iter: int  # epochs
    batch_size: int
    schedule: Schedule = constant
    patience: float = math.inf  # epochs without an improvement after which to stop
    tol: float = 0.0  # what counts as one, nats per row
    holds_out: bool = False
    evaluates: bool = False  # whether iterates are scored; without scores the last one is kept
    folds: Folds = field(default=Folds())
    n_inducing: int = 0  # M, or the number of basis functions
    n_orthogonal: int = 0  # M₂
    n_components: int = 0  # random Fourier features
    beta: float = 1.0
    rate: float = 1.0  # of learning
    shuffles: bool = True  # whether rows come in random order, or as they are
    n_restarts: int = 0  # trainings from other hyper-parameters, of which the best is kept
    window_rows: float = 0.0  # that running statistics look back on at least
    is_exact: bool = False  # whether the bound is the exact evidence: all rows are points
    has_all_rows: bool = False  # whether all rows are points, of another likelihood
    start_rows: int = 0  # training starts at the optimum of their exact evidence; 0: of none


def epochs(n_steps: int, n_rows: int, batch_size: int) -> int:
    """Return as many epochs as make this number of steps."""
    return math.ceil(n_steps / math.ceil(n_rows / batch_size))


def given_number(asked: int | str, name: str, n_given: int) -> int:
    """Return the number of points that there are, which a parameter must not contradict."""
    if asked not in ("auto", n_given):
        raise ValueError(
            f"{name}={asked} must be 'auto' or the number of the points that are "
            f"given or, with warm_start, were fitted before: {n_given}."
        )
    return n_given


def load_fitted(module: nn.Module, fitted: nn.Module, start: Start) -> None:
    """Copy the parameters of a fitted module, and its buffers except those of kernels.

    Raises
    ------
    ValueError
        If the fitted module has other parameters.
    """
    given, wanted = dict(fitted.named_parameters()), dict(module.named_parameters())
    same = given.keys() == wanted.keys()
    if not same or any(given[name].shape != wanted[name].shape for name in wanted):
        raise ValueError(
            "warm_start=True needs a model of the shape that was fitted before, but "
            f"{start.describe_changes() or 'the shape of y'} asks for another one. Set it back, or "
            "fit with warm_start=False."
        )
    buffers = dict(module.named_buffers())
    of_kernels = tuple(f"{name}." for name, m in module.named_modules() if isinstance(m, Kernel))
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(given[name])
        for name, buffer in fitted.named_buffers():
            fits = name in buffers and buffers[name].shape == buffer.shape
            if fits and not name.startswith(of_kernels):
                buffers[name].copy_(buffer)


def started(
    likelihood: Likelihood, rows: Rows, noise: float | None = None
) -> tuple[Likelihood, Tensor]:
    """Return a likelihood for the outputs of rows, and the constant means of f, (P,).

    Both start from the rows, or the likelihood with this noise variance.
    """
    likelihood, of_rows = likelihood.for_outputs(rows.y.shape[1]), rows.to(torch.float64)
    if isinstance(likelihood, Gaussian) and noise is not None:
        likelihood.log_noise.data.fill_(math.log(noise))
    likelihood = likelihood.to(rows.y.device)
    likelihood.initialise(of_rows)
    return likelihood, likelihood.initial_mean(of_rows).to(rows.y)


def check_shared_noise(posterior: Posterior, rows: Rows) -> None:
    """Raise a ValueError where the evidence would ignore what is known of rows."""
    posterior.likelihood.given(rows.exposure)  # raises if there is one
    if rows.noise is not None:
        raise ValueError(
            "y_std must be None for the marginal likelihood of this model, whose rows all have the "
            "same noise."
        )


# ---- recipes -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Recipe(OfParameters, ABC):
    """Parts that make a fit. One is made, and checked, per fit.

    Parameters
    ----------
    likelihood : Likelihood
        p(y | f) for one output, before it has seen data.
    normalize_y : bool, default=False
        Whether the target is standardised, where the noise is additive.
    merges_rows : bool, default=True
        Whether equal rows may be one row that counts for all of them.
    numbers_rows : bool, default=False
        Whether parameters have row numbers, so that no row may go before training.
    deadline : Deadline or None, default=None
        When the fit has to end, if it has to.
    """

    likelihood: Likelihood
    normalize_y: bool = False
    merges_rows: bool = True
    numbers_rows: bool = False
    deadline: Deadline | None = None

    @abstractmethod
    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        """Decide what "auto" means; a pure function."""

    def plan_of(self, sizes: Sizes, n_members: int) -> Plan:
        """Decide the same if there is time for so many members of an ensemble only."""
        return self.plan(sizes)

    @abstractmethod
    def objective(self, problem: Problem) -> Objective:
        """Make what training minimises; its parameters start from `problem.start`, if any."""

    @abstractmethod
    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        """Return the fitted attributes of the method's own, in the user's units."""

    @property
    def scales_target(self) -> bool:
        """Whether targets have variance 1."""
        return self.normalize_y

    def check(self, data: Data) -> None:
        """Raise a ValueError if parameters do not agree with each other, or with the data."""
        self.check_rows(data)

    def check_rows(self, data: Data) -> None:
        """Raise a ValueError if the likelihood has no use for what is known of rows."""
        self.likelihood.check_targets(data.y)
        if data.exposure is None and data.y_std is None:
            return
        one = torch.ones(1, 1, dtype=torch.float64, device="cpu")
        exposure, noise = (None if c is None else one for c in (data.exposure, data.y_std))
        self.likelihood.given(exposure, noise)

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """Return the scaling between the user's X and what the objective sees."""
        return Scaling.identity(X.shape[1])

    def target_scaling(self, y: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """Return the scaling of y (n, P): robust where the noise can have outliers."""
        if not self.scales_target:
            return Scaling.identity(y.shape[1])
        find = (
            Scaling.robust if isinstance(self.likelihood, StudentT | Laplace) else Scaling.standard
        )
        return find(y, weight)

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        """Return log p(y | X) of other rows, or the bound on it, for the scaled y."""
        raise NotImplementedError

    # ---- findings ----------------------------------------------------------------------------

    def findings(self, fitted: Fitted) -> Iterator[Finding]:
        """Yield what `diagnose` tabulates, and `fit` warns of where it is a problem."""
        if (data := fitted.whole) is not None:
            yield from of_rows(data.size, self.learns)
            if self.chooses_inputs:
                yield from of_features(data.size, data.X.shape[1])
            yield from self.training_findings(fitted)

    @property
    def learns(self) -> bool:
        """Whether there are hyper-parameters to learn."""
        return True

    @property
    def chooses_inputs(self) -> bool:
        """Whether it has to be learned which columns of X matter, as it has not of pixels."""
        return True

    def training_findings(self, fitted: Fitted) -> Iterator[Finding]:
        """Yield how training ended."""
        yield from of_training(fitted.history, fitted.plan.max_iter)

    def error_findings(self, fitted: Fitted, advice: str, is_trained: bool) -> Iterator[Finding]:
        """Yield whether errors at training rows are more than noise."""
        likelihood, data = fitted.posterior.likelihood, fitted.whole
        if data is None or not isinstance(likelihood, AdditiveNoise):
            return
        pairs = np.stack(nearest_rows(data.X))  # (2, m)
        X = fitted.x_scaling.tensor(data.X[pairs.ravel()], torch.float64, HOST)
        y = (data.y[pairs] - fitted.y_scaling.offset) / fitted.y_scaling.scale  # (2, m, P)
        with torch.no_grad():
            mean, _ = fitted.posterior.marginals(X).mixture_moments()
        at_rows, at_nearest = y - mean.numpy().reshape(y.shape)
        noise = likelihood.noise_variance.detach().numpy()
        yield from of_errors(at_rows, at_nearest, noise, advice, is_trained)

    def unit(self, data: Data) -> float:
        """Return the standard deviation of y as f sees it; 1 where f is no number like y."""
        if self.scales_target or not isinstance(self.likelihood, AdditiveNoise):
            return 1.0
        return float(Scaling.standard(data.y).scale.max())

    def kernel_findings(
        self, fitted: Fitted, kernel: sk.Kernel, given: KernelChoice, sees_inputs: bool
    ) -> Iterator[Finding]:
        """Yield what there is to say of a fitted kernel, for the user's X if it sees the inputs."""
        is_given = given.expression is not None
        yield from of_bounds(kernel, is_given)
        likelihood = fitted.posterior.likelihood
        if isinstance(likelihood, Gaussian) and given.white is None:
            yield from of_noise(likelihood.noise_variance.detach(), given.noise_bounds, is_given)
        data = fitted.whole
        if not (sees_inputs and data is not None):
            return
        yield from of_sight(kernel, given.expression, data.X, self.unit(data))
        if is_given:
            yield from of_inputs(kernel, data.X)

    # ---- streams -----------------------------------------------------------------------------

    def check_streams(self) -> None:
        """Raise a ValueError where `partial_fit` is impossible."""

    def stream(self, problem: Problem, posterior: Any) -> Objective:
        """Make the objective of a stream, from a fitted posterior or None."""
        raise NotImplementedError

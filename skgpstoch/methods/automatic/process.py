"""Exact processes for small tables: several kernels, averaged hyper-parameters, learned tails."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from ...data.arrays import Scaling, resolve_seed
from ...data.devices import block_elements, map_blocks, prediction_device, resolve_device
from ...data.docstrings import documented
from ...data.equal_rows import observations
from ...data.held_out import HeldOutPredictions, joint, mixture_of
from ...data.rows import Data
from ...estimators.context import fitting, predicting
from ...estimators.first_rank import fits_on_first
from ...estimators.importances import InputSpread, normalised, representative_rows
from ...estimators.parameters import POSITIVE
from ...estimators.predictions import PredictedRows, PredictiveRegressor
from ...estimators.regressor import Regressor
from ...estimators.validation import check_y_std, known_noise, validate_inputs, with_groups
from ...estimators.weights import check_weight
from ...maths.linalg import cholesky
from ...models.features.network import FARTHEST_INPUT
from ...training.interrupts import interruptible, keeps_best, tell, was_interrupted
from ...training.recipes.kernel_choice import MOST_RELEVANT_INPUTS
from .process_evidence import (
    BY_INPUT,
    BY_LEVEL,
    KERNEL_SHAPES,
    ONE_SCALE,
    Process,
    ProcessInputs,
    ProcessRows,
)
from .process_fit import (
    FittedKernel,
    antithetic,
    fit_kernel,
    relative_precisions,
    relative_weights,
    target_precisions,
)
from .stacking import prior_rows, stacking_weights
from .student_mixture import StudentMixture, Tails, averaged

SEARCH_ROWS = 400  # most rows from which hyper-parameters are learned
DRAWS_OF_ROWS = ((200, 16), (400, 8))  # up to so many rows, draws of hyper-parameters; then one
MOST_BY_LEVEL = 200  # rows, up to which levels of a category have length-scales of their own
SCALES_PER_KERNEL = 12.0  # length-scales for which a kernel takes as long as one with a single one
KERNEL_ROWS = 0.5  # rows in favour of each kernel, whatever the data
LEAST_BLOCK = 64  # rows that are predicted at a time


@dataclass(eq=False, repr=False, kw_only=True)
class ProcessParameters:
    """Parameters that exact processes of numbers and of classes share."""

    kernels: str | Sequence[str] = "auto"
    max_time: float | None = None
    device: Any = None
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "kernels": [StrOptions({"auto"}), list, tuple],
        "max_time": [POSITIVE, None],
        "device": [str, torch.device, None],
        "random_state": ["random_state"],
    }

    def _chosen(self, known: Iterable[str], usual: Iterable[str]) -> list[str]:
        """Return the names of kernels, some of those that are known."""
        if self.kernels == "auto":
            return list(usual)
        known = list(known)
        if not self.kernels or any(name not in known for name in self.kernels):
            raise ValueError(f"kernels must be 'auto' or some of {known}, got {self.kernels!r}.")
        return list(self.kernels)


@dataclass(eq=False, repr=False, kw_only=True)
class ExactProcessRegressor(
    ProcessParameters, MultiOutputMixin, RegressorMixin, PredictiveRegressor
):
    """A mixture of exact Gaussian processes, for up to a few thousand rows.

    It mixes processes of three degrees of smoothness, a linear model and a constant, each with a
    learned scale for every input; of more than 64 inputs, one process has a scale for each, and the
    others one for all; of 13 to 64 with fewer than five rows each, one more has one for all.
    Hyper-parameters have priors. Up to 400 rows, predictions are averaged over hyper-parameters;
    with more rows, 400 determine the hyper-parameters, and all determine the function. Tails and
    scale of the predictive distribution, and the weights of the kernels, come from leave-one-out
    densities, in closed form. Targets far from what other rows predict count for less.

    Parameters
    ----------
    kernels : "auto" or sequence, default="auto"
        The kernels to mix: "rbf", "matern" and "rough", RBF, Matérn-3/2 or Matérn-1/2 processes
        with a linear part; "linear", a line; "constant", a constant; "matern by level",
        Matérn-3/2 where each level of a category has a length-scale of its own, near that of the
        category, if there are eight rows for each level; "matern by input", Matérn-3/2 with a
        length-scale for each of up to 512 inputs, where others have a single one for more than 64;
        "matern of one scale", Matérn-3/2 with a single one. "auto" is all of them, but "matern by
        level" only up to 200 rows, "matern by input" only with more than 64 inputs, and "matern of
        one scale" only with 13 to 64 inputs that have fewer than five rows each.
    missing_columns : array-like of int or None, default=None
        Positions of columns of X that are 1 where a value of the row is missing, and 0 elsewhere.
        Each has a learned variance, which is added to the noise of y in such rows.
    groups : array-like of int of shape (n_features,) or None, default=None
        A number for each column of X; columns with the same number are the one-hot levels of one
        category, and share a length-scale. None: each column is an input of its own.
    max_time : float or None, default=None
        Time limit in seconds: another kernel is not tried if it would probably take longer. One
        kernel is always fitted.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Device to compute on. None is the CPU; "auto" is a GPU if there is one.
    random_state : int, RandomState instance or None, default=None
        Seed of the draws of hyper-parameters, and of the rows from which these are learned.

    Attributes
    ----------
    kernels_ : list of str
        The kernels that are mixed, including those of little weight, which rows far from all others
        need.
    weights_ : ndarray of shape (n_kernels,)
        Weights of the kernels in the mixture, which sum to 1.
    held_out_ : HeldOutPredictions
        Predictions for the training rows with a positive weight, each from the other rows: row
        numbers (`rows`), `log_density` in nats for y in its own units, `mean`, `error`, `std`,
        `latent_std` and `cdf`. A row is left out with its whole weight. The weights of the
        kernels, and the tails, are those of all rows.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the inputs, if X had any.

    See Also
    --------
    GaussianProcessRegressor : One kernel, any expression, with its best hyper-parameters.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press,
       2006, sections 3.4 and 5.4.2.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch.methods.automatic.process import ExactProcessRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (60, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(60)
    >>> model = ExactProcessRegressor(random_state=0).fit(X, y)
    >>> low, high = model.predict_interval([[0.0]], coverage=0.95)[0]
    >>> bool(low < 0.0 < high)
    True
    """

    missing_columns: Sequence[int] | None = None
    groups: Sequence[int] | None = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        **ProcessParameters._parameter_constraints,
        "missing_columns": ["array-like", None],
        "groups": ["array-like", None],
    }

    # ---- fit ---------------------------------------------------------------------------------

    @documented(Regressor.fit)
    @fitting
    @fits_on_first
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, y_std: Any = None, groups: Any = None
    ) -> ExactProcessRegressor:
        """Fit the processes.

        Parameters
        ----------
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each row counts for.
        y_std : float or array-like of the shape of y, default=None
            Known standard error of each target, in the units of y, besides the learned noise.
        groups : array-like of shape (n_samples,) or None, default=None
            Labels of groups, whose rows are left out together.
        """
        began = time.monotonic()
        self._validate_params()
        data = with_groups(self._validated(X, y, sample_weight, y_std), groups)
        rows, places = observations(data.counted())
        device = resolve_device(self.device)
        rng = np.random.default_rng(resolve_seed(self.random_state))
        outputs = self._scaled(rows, device)
        names = self._chosen(KERNEL_SHAPES, usual_kernels(outputs[0]))
        n_draws = n_draws_of(len(rows))
        n_most = max(len(shape.start(outputs[0])) for shape in KERNEL_SHAPES.values())
        normals = antithetic(n_draws, n_most, rng)
        searched = torch.from_numpy(rng.permutation(len(rows))[:SEARCH_ROWS]).to(device)

        def fit_one(name: str, before: list[list[FittedKernel]]) -> list[FittedKernel]:
            shape, last = KERNEL_SHAPES[name], before[-1] if before else [None] * len(outputs)
            return [
                fit_kernel(shape, output, searched, normals, of_output)
                for output, of_output in zip(outputs, last, strict=True)
            ]

        costs = {BY_INPUT: max(1.0, outputs[0].inputs.n_scales / SCALES_PER_KERNEL)}
        fitted = fit_in_turn(names, fit_one, began, self.max_time, costs)
        held_out = [joint([f.held_out for f in of_kernel]) for of_kernel in fitted]
        densities = np.stack([each.log_density for each in held_out], 1)
        weight = outputs[0].weight.cpu().numpy()
        prior = prior_rows(KERNEL_ROWS, squared_errors(held_out, outputs), weight.sum())
        self.weights_ = stacking_weights(densities, weight, prior)
        mixed = mixture_of(held_out, self.weights_).in_units(self._y_scaling)
        given = np.arange(len(data)) if data.weight is None else np.flatnonzero(data.weight)
        self.held_out_ = mixed.of(places)._replace(rows=given)
        self.kernels_ = names[: len(fitted)]
        self._processes = [[f.draws for f in of_kernel] for of_kernel in fitted]
        self._tails = [[f.tails for f in of_kernel] for of_kernel in fitted]
        return self

    def _validated(self, X: Any, y: Any, sample_weight: Any, y_std: Any) -> Data:
        """Return valid rows, and remember the shape of y."""
        options: dict[str, Any] = {"multi_output": True, "y_numeric": True, "reset": True}
        X, y = validate_inputs(self, X, y, ensure_min_samples=2, **options)
        self._y_shape = y.shape[1:]
        X, y = (np.asarray(a, dtype=np.float64) for a in (X, y))
        data = Data(X, y.reshape(len(y), -1))
        if y_std is not None:
            data = replace(data, y_std=check_y_std(y_std, data.y.shape))
        return check_weight(data, sample_weight, least=2, keeps=True)

    def _scaled(self, rows: Data, device: torch.device) -> list[ProcessRows]:
        """Scale rows, one set for each output."""
        weight = relative_weights(rows)
        precision, certain = target_precisions(rows), relative_precisions(rows)  # (n, P)
        of_outputs = [
            Scaling.standard(rows.y[:, [p]], weight * precision[:, p] * certain[:, p])
            for p in range(rows.y.shape[1])
        ]
        self._x_scaling = Scaling.standard(rows.X, rows.weight)
        self._y_scaling = Scaling(*(np.concatenate(part) for part in zip(*of_outputs, strict=True)))
        X, y = (
            scaling.tensor(column, torch.float64, device)
            for scaling, column in ((self._x_scaling, rows.X), (self._y_scaling, rows.y))
        )
        of_rows = (weight, precision, self._missing(rows.X))
        w, tau, missing = (torch.from_numpy(a).to(device) for a in of_rows)
        groups = checked_groups(self.groups, rows.X.shape[1])
        inputs = ProcessInputs.of(groups, self._x_scaling.scale, missing.shape[1], len(X))
        known: Sequence[torch.Tensor | None] = [None] * y.shape[1]
        if rows.y_std is not None:
            variances = known_noise(rows.y_std, self._y_scaling.scale)  # (n, P)
            known = torch.from_numpy(variances).to(device).unbind(1)
        cluster = None if rows.cluster is None else torch.from_numpy(rows.cluster).to(device)
        return [
            ProcessRows(X, y[:, p], w, tau[:, p], missing, inputs, known[p], cluster)
            for p in range(y.shape[1])
        ]

    def _missing(self, X: np.ndarray) -> np.ndarray:
        """Return where values are missing, (N, q); for very many columns, how many are, (N, 1)."""
        missing = X[:, checked_columns(self.missing_columns, X.shape[1])].astype(np.float64)
        if missing.size and (missing.min() < 0.0 or missing.max() > 1.0):
            raise ValueError(
                "X must hold numbers from 0 to 1 in missing_columns (1 where a value is "
                f"missing), got {missing.min():g} to {missing.max():g}."
            )
        is_summed = n_flags(missing.shape[1]) < missing.shape[1]
        return missing.sum(1, keepdims=True) if is_summed else missing

    # ---- predictions -------------------------------------------------------------------------

    def _predicted(self, X: Any) -> PredictedByProcesses:
        check_is_fitted(self)
        return PredictedByProcesses(self, validate_inputs(self, X, reset=False))

    @predicting()
    def _mean_at(self, X: torch.Tensor, processes: list[list[list[Process]]]) -> np.ndarray:
        """Return the mean of y at scaled rows, (N, P), which needs no linear systems."""

        def means(process: Process, rows: slice) -> tuple[torch.Tensor, ...]:
            return (process.mean(X[rows]),)

        (mean,) = of_processes(processes, means, np.empty((1, *shape_of(processes), len(X))))
        offset, unit = self._y_scaling
        return averaged(self.weights_, mean * unit + offset)

    def _check_parts(self) -> None:
        """Raise a ValueError if there are more processes or flags than a fit makes.

        As in edited files. Each process takes a matrix for its rows when it predicts.
        """
        of_kernels = getattr(self, "_processes", [])
        if not all(isinstance(each, list) for each in [of_kernels, *of_kernels]):
            raise ValueError("the processes must be lists, for each kernel and output")
        of_outputs = [draws for of_kernel in of_kernels for draws in of_kernel]
        if not of_outputs:
            return
        columns = checked_columns(self.missing_columns, self.n_features_in_)
        known = n_flags(len(columns))
        all_draws = (process for draws in of_outputs for process in draws)
        if {len(f.theta.missing) for f in all_draws if f.shape.is_linear} - {known}:
            raise ValueError(f"missing_columns={columns} are not those of the processes")
        most = len(KERNEL_SHAPES) * len(self._y_scaling.offset)
        n_rows = {len(process.alpha) for draws in of_outputs for process in draws}
        n_draws = max(map(len, of_outputs))
        if {*map(len, self._tails)} != {*map(len, self._processes)}:
            raise ValueError("processes of some outputs have no tails, or several")
        if len(of_outputs) > most or len(n_rows) > 1 or n_draws > n_draws_of(max(n_rows)):
            raise ValueError(
                f"{len(of_outputs)} processes with {n_draws} draws for {max(n_rows)} rows are more "
                "than a fit makes"
            )

    @property
    @predicting()
    def feature_importances_(self) -> np.ndarray:
        """How much f depends on each input, in units of its standard deviation."""
        check_is_fitted(self)
        X, processes = self._placed(representative_rows(InputSpread(*self._x_scaling)))
        total = torch.zeros_like(X)
        for of_kernels in zip(*processes, strict=True):  # of an output
            pairs = zip(self.weights_, of_kernels, strict=True)
            slopes = (w / len(draws) * f.slopes(X) for w, draws in pairs for f in draws)
            total += sum(slopes, torch.zeros_like(X)).square()
        return normalised(total.sum(0).sqrt().cpu().numpy())

    def _placed(self, X: np.ndarray) -> tuple[torch.Tensor, list[list[list[Process]]]]:
        """Return scaled rows, and the processes, on the device of predictions."""
        device = prediction_device(self.device)
        processes = [[[f.to(device) for f in fs] for fs in of_k] for of_k in self._processes]
        scaled = self._x_scaling.tensor(X, torch.float64, device)
        return scaled.clamp(-FARTHEST_INPUT, FARTHEST_INPUT), processes


class PredictedByProcesses(PredictedRows):
    """What a mixture of exact processes predicts of y, in the user's units."""

    def __init__(self, model: ExactProcessRegressor, X: np.ndarray) -> None:
        self.model, missing = model, model._missing(X)
        self.X, self.processes = model._placed(X)
        self.missing = torch.from_numpy(missing).to(self.X.device)
        self.n_rows, self.output_shape = len(X), model._y_shape

    def law(self, rows: slice) -> StudentMixture:
        X, missing, model = self.X[rows], self.missing[rows], self.model

        def moments(process: Process, block: slice) -> tuple[torch.Tensor, ...]:
            return process.moments(X[block], missing[block])

        found = np.empty((2, *shape_of(self.processes), len(X)))
        mean, var = of_processes(self.processes, moments, found)
        factor, df = np.moveaxis(np.array(model._tails), -1, 0)[:, :, None, None]  # (K, 1, 1, P)
        offset, unit = model._y_scaling
        scale = np.exp(factor) * np.sqrt(var) * unit
        return StudentMixture(model.weights_, mean * unit + offset, scale, df)

    def mean(self) -> np.ndarray:
        return self.by_blocks(lambda rows: (self.model._mean_at(self.X[rows], self.processes),))[0]

    @predicting()
    def draws(self, n_samples: int, random_state: Any) -> np.ndarray:
        """Draw y jointly at all rows, each time from a drawn kernel and hyper-parameters."""
        rng = np.random.default_rng(resolve_seed(random_state))
        K, P, S = shape_of(self.processes)
        kernels = rng.choice(K, n_samples, p=self.model.weights_)
        draws = np.empty((self.n_rows, P, n_samples))
        for p in range(P):
            of_output = np.stack([kernels, rng.integers(S, size=n_samples)])
            for k, s in np.unique(of_output, axis=1).T:
                asked = (of_output == [[k], [s]]).all(0)
                joint = self.processes[k][p][s].joint(self.X, self.missing)
                mean, cov = (a.cpu().numpy() for a in joint)
                tails = self.model._tails[k][p]
                draws[:, p, asked] = student_draws(mean, cov, tails, asked.sum(), rng)
        offset, unit = self.model._y_scaling
        return draws * unit[:, None] + offset[:, None]


def n_draws_of(n_rows: int) -> int:
    """Return how many draws of hyper-parameters so many rows need."""
    return next((S for most, S in DRAWS_OF_ROWS if n_rows <= most), 1)


# ---- parts ---------------------------------------------------------------------------------------


def usual_kernels(rows: ProcessRows) -> list[str]:
    """Return the names of kernels that are worth their time.

    *Measured* on 15 tables with categories: length-scales by level gain .06 nats on two of eight
    with fewer than 200 rows (mpg, barley) and cost .02 on one (msleep); of seven with more, where
    networks follow, none gained.
    """
    inputs, is_short = rows.inputs, len(rows.y) <= MOST_BY_LEVEL
    has_own = {
        BY_LEVEL: is_short and len(inputs.levels) and not inputs.are_wide,
        BY_INPUT: inputs.are_wide and inputs.n_scales > 1,
        ONE_SCALE: inputs.are_many and not inputs.are_wide,
    }
    return [name for name in KERNEL_SHAPES if has_own.get(name, True)]


def squared_errors(held_out: list[HeldOutPredictions], outputs: list[ProcessRows]) -> np.ndarray:
    """Return each kernel's mean squared error of rows left out, without known errors of y.

    Rows with large known errors say little of f: with errors of .001 to 10, kernels that are far
    off seemed as good as the best, and made `std` 7 to 13 times the error of f.
    """
    weight = outputs[0].weight.cpu().numpy()
    squares = np.array([np.square(each.error) for each in held_out])  # (K, N, P)
    known = [rows.known.cpu().numpy() for rows in outputs if rows.known is not None]
    if not np.any(known):
        return np.average(squares.mean(2), axis=1, weights=weight)
    best = np.argmax([(weight * each.log_density).sum() for each in held_out])
    w = weight[:, None] / held_out[best].std ** 4  # as squares vary
    found = [np.average(each, weights=w) for each in squares - np.stack(known, 1)]
    least = [np.average(np.square(each.latent_std), weights=w) for each in held_out]
    return np.maximum(found, least)


def n_flags(n_columns: int) -> int:
    """Return how many numbers of a row say what is missing in these columns: their sum, of many."""
    return 1 if n_columns > MOST_RELEVANT_INPUTS else n_columns


def checked_columns(given: Any, n_columns: int) -> np.ndarray:
    """Return the positions of columns.

    Raises
    ------
    ValueError
        If `given` is neither None nor positions of columns.
    """
    columns = np.asarray([] if given is None else given)
    if columns.size == 0:
        return np.empty(0, dtype=np.intp)
    if (
        columns.ndim != 1
        or len(columns) > n_columns
        or columns.dtype.kind not in "iu"
        or (columns.min() < 0 or columns.max() >= n_columns)
    ):
        raise ValueError(
            "missing_columns must be None or positions of columns of X, integers from 0 to "
            f"{n_columns - 1}, got {given!r}."
        )
    return columns


def checked_groups(given: Any, n_columns: int) -> np.ndarray:
    """Return the group of each column, (n_columns,).

    Raises
    ------
    ValueError
        If `given` is neither None nor an integer for each column.
    """
    groups = np.arange(n_columns) if given is None else np.asarray(given)
    if groups.shape != (n_columns,) or (n_columns and groups.dtype.kind not in "iu"):
        raise ValueError(
            f"groups must be None or {n_columns} integers, one for each column of X, got {given!r}."
        )
    return groups


def fit_in_turn(
    names: list[str],
    fit_one: Callable[[str, list], Any],
    began: float,
    max_time: float | None,
    costs: Mapping[str, float] | None = None,
) -> list[Any]:
    """Fit kernels in turn until time is over, or Ctrl-C comes; one is always fitted.

    `fit_one` takes a name, and what was fitted before; `costs` says how many times as long as
    those before a kernel takes, if not once.
    """
    fitted: list[Any] = []
    for name in names:
        cost = 1.0 if costs is None else costs.get(name, 1.0)
        if not is_time_for_more(began, len(fitted), max_time, cost):
            break
        try:
            with interruptible():
                fitted.append(fit_one(name, fitted))
        except KeyboardInterrupt:
            if not keeps_best():
                raise
            if not fitted:  # searches now stop at their start
                fitted.append(fit_one(name, fitted))
        if was_interrupted():
            tell("The fit was interrupted; the best model so far is kept.")
            break
    return fitted


def is_time_for_more(began: float, n_done: int, max_time: float | None, cost: float = 1.0) -> bool:
    """Tell whether another part would end in time, if it takes `cost` times those before."""
    if max_time is None or not n_done:
        return True
    used = time.monotonic() - began
    return used + cost * used / n_done <= max_time


def student_draws(
    mean: np.ndarray, cov: np.ndarray, tails: Tails, n_draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Return draws (N, n_draws) of rows, jointly Gaussian given a random precision of each."""
    L = cholesky(torch.from_numpy(cov), "covariance of the draws").numpy()
    error = L @ rng.standard_normal((len(mean), n_draws))
    tau = rng.gamma(0.5 * tails.df, 2.0 / tails.df, error.shape)
    return mean[:, None] + math.exp(tails.log_factor) * error / np.sqrt(tau)


def of_processes(
    processes: list[list[list[Process]]],
    compute: Callable[[Process, slice], tuple[torch.Tensor, ...]],
    found: np.ndarray,
) -> np.ndarray:
    """Fill A arrays (A, K, P, S, N) with results of each process and block of rows.

    Return them as (A, K, S, N, P).
    """
    device, n_rows = processes[0][0][0].X.device, len(processes[0][0][0].alpha)

    def fill(block: slice) -> None:
        for k, p, s in np.ndindex(found.shape[1:-1]):
            for a, values in enumerate(compute(processes[k][p][s], block)):
                found[a, k, p, s, block] = values.cpu().numpy()

    map_blocks(fill, found.shape[-1], max(LEAST_BLOCK, block_elements(device) // n_rows))
    return np.moveaxis(found, 2, -1)


def shape_of(processes: list[list[list[Process]]]) -> tuple[int, int, int]:
    """Return the numbers of kernels, outputs and draws."""
    return len(processes), len(processes[0]), len(processes[0][0])

"""Exact processes for small tables: several kernels, averaged hyper-parameters, learned tails."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_array, check_is_fitted

from ..data.arguments import check_coverage, check_n_samples
from ..data.array_inputs import one_output
from ..data.arrays import Scaling, readable, resolve_seed, row_blocks
from ..data.devices import BLOCK_ROWS, block_elements, map_blocks, prediction_device, resolve_device
from ..data.equal_rows import observations
from ..data.held_out import joint, mixture_of
from ..data.messages import warn
from ..data.rows import Data
from ..distributions.predictive import PredictiveDistribution
from ..docstrings import documented
from ..estimators.context import fitting, predicting
from ..estimators.first_rank import fits_on_first
from ..estimators.importances import difference_importances
from ..estimators.parameters import POSITIVE
from ..estimators.regressor import Regressor
from ..estimators.validation import check_weight, validate_inputs
from ..features.network import FARTHEST_INPUT
from ..maths.linalg import cholesky
from ..persistence.estimator import SavedEstimator
from ..recipes.kernel_choice import MOST_RELEVANT_INPUTS
from ..training.interrupts import AGAIN, keeps_best, was_interrupted
from .mixture import MixtureRegressor
from .process_evidence import KERNEL_SHAPES, Process, ProcessRows
from .process_fit import FittedKernel, antithetic, fit_kernel, relative_weights, target_precisions
from .stacking import stacking_weights
from .student_mixture import StudentMixture, Tails, averaged

SEARCH_ROWS = 400  # most rows from which hyper-parameters are learned
DRAWS_OF_ROWS = ((200, 16), (400, 8))  # up to so many rows, draws of hyper-parameters; then one
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
class ExactProcessRegressor(ProcessParameters, MultiOutputMixin, RegressorMixin, SavedEstimator):
    """A mixture of exact Gaussian processes, for up to a few thousand rows.

    It mixes a smooth process, a rougher one, a linear model and a constant, each with a learned
    scale for every input. Hyper-parameters have priors. Up to 400 rows, predictions are averaged
    over hyper-parameters; with more rows, 400 determine the hyper-parameters, and all determine the
    function. Tails and scale of the predictive distribution, and the weights of the kernels, come
    from leave-one-out densities, in closed form. Targets far from what other rows predict count for
    less.

    Parameters
    ----------
    kernels : "auto" or sequence of {"rbf", "matern", "linear", "constant"}, default="auto"
        The kernels to mix: "rbf" and "matern", RBF or Matérn-3/2 processes with a linear part;
        "linear", a line; "constant", a constant. "auto" is all of them.
    missing_columns : array-like of int or None, default=None
        Positions of columns of X that are 1 where a value of the row is missing, and 0 elsewhere.
        Each has a learned variance, which is added to the noise of y in such rows.
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
    >>> from skgpstoch.ensembles.process import ExactProcessRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (60, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(60)
    >>> model = ExactProcessRegressor(random_state=0).fit(X, y)
    >>> low, high = model.predict_interval([[0.0]], coverage=0.95)[0]
    >>> bool(low < 0.0 < high)
    True
    """

    missing_columns: Sequence[int] | None = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        **ProcessParameters._parameter_constraints,
        "missing_columns": ["array-like", None],
    }

    # ---- fit ---------------------------------------------------------------------------------

    @documented(Regressor.fit)
    @fitting
    @fits_on_first
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> ExactProcessRegressor:
        """Fit the processes.

        Parameters
        ----------
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each row counts for.
        """
        began = time.monotonic()
        self._validate_params()
        data = self._validated(X, y, sample_weight)
        rows, places = observations(data.counted())
        names = self._chosen(KERNEL_SHAPES, KERNEL_SHAPES)
        device = resolve_device(self.device)
        rng = np.random.default_rng(resolve_seed(self.random_state))
        outputs = self._scaled(rows, device)
        n_draws = next((S for most, S in DRAWS_OF_ROWS if len(rows) <= most), 1)
        n_most = 3 + data.X.shape[1] + outputs[0].missing.shape[1]
        normals = antithetic(n_draws, n_most, rng)
        searched = torch.from_numpy(rng.permutation(len(rows))[:SEARCH_ROWS]).to(device)

        def fit_one(name: str, before: list[list[FittedKernel]]) -> list[FittedKernel]:
            shape, last = KERNEL_SHAPES[name], before[-1] if before else [None] * len(outputs)
            return [
                fit_kernel(shape, output, searched, normals, of_output)
                for output, of_output in zip(outputs, last, strict=True)
            ]

        fitted = fit_in_turn(names, fit_one, began, self.max_time)
        held_out = [joint([f.held_out for f in of_kernel]) for of_kernel in fitted]
        densities = np.stack([each.log_density for each in held_out], 1)
        self.weights_ = stacking_weights(densities, outputs[0].weight.cpu().numpy(), KERNEL_ROWS)
        mixed = mixture_of(held_out, self.weights_).in_units(self._y_scaling)
        given = np.arange(len(data)) if data.weight is None else np.flatnonzero(data.weight)
        self.held_out_ = mixed.of(places)._replace(rows=given)
        self.kernels_ = names[: len(fitted)]
        self._processes = [[f.draws for f in of_kernel] for of_kernel in fitted]
        self._tails = [[f.tails for f in of_kernel] for of_kernel in fitted]
        return self

    def _validated(self, X: Any, y: Any, sample_weight: Any) -> Data:
        """Return valid rows, and remember the shape of y."""
        options: dict[str, Any] = {"multi_output": True, "y_numeric": True, "reset": True}
        X, y = validate_inputs(self, X, y, ensure_min_samples=2, **options)
        self._y_shape = y.shape[1:]
        X, y = (np.asarray(a, dtype=np.float64) for a in (X, y))
        return check_weight(Data(X, y.reshape(len(y), -1)), sample_weight, least=2, keeps=True)

    def _scaled(self, rows: Data, device: torch.device) -> list[ProcessRows]:
        """Scale rows, one set for each output."""
        weight = relative_weights(rows)
        precision = target_precisions(rows)  # (n, P)
        of_outputs = [
            Scaling.standard(rows.y[:, [p]], weight * precision[:, p])
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
        return [ProcessRows(X, y[:, p], w, tau[:, p], missing) for p in range(y.shape[1])]

    def _missing(self, X: np.ndarray) -> np.ndarray:
        """Return where values are missing, (N, q); for very many columns, how many are, (N, 1)."""
        missing = X[:, checked_columns(self.missing_columns, X.shape[1])].astype(np.float64)
        if missing.size and (missing.min() < 0.0 or missing.max() > 1.0):
            raise ValueError(
                "X must hold numbers from 0 to 1 in missing_columns (1 where a value is "
                f"missing), got {missing.min():g} to {missing.max():g}."
            )
        many = missing.shape[1] > MOST_RELEVANT_INPUTS
        return missing.sum(1, keepdims=True) if many else missing

    # ---- predictions -------------------------------------------------------------------------

    @predicting()
    def distribution(self, X: Any) -> StudentMixture:
        """Return the distributions of y at the rows of X, in the user's units."""
        X, missing, processes = self._query(X)

        def moments(process: Process, rows: slice) -> tuple[torch.Tensor, ...]:
            return process.moments(X[rows], missing[rows])

        mean, var = of_processes(processes, moments, np.empty((2, *shape_of(processes), len(X))))
        factor, df = np.moveaxis(np.array(self._tails), -1, 0)[:, :, None, None]  # (K, 1, 1, P)
        offset, unit = self._y_scaling
        scale = np.exp(factor) * np.sqrt(var) * unit
        return StudentMixture(self.weights_, mean * unit + offset, scale, df)

    def _mean(self, X: Any) -> np.ndarray:
        """Return only the mean of these, (N, P), which needs no linear systems."""
        return self._mean_at(*self._query(X)[::2])

    @predicting()
    def _mean_at(self, X: torch.Tensor, processes: list[list[list[Process]]]) -> np.ndarray:
        """Return the same of scaled rows."""

        def means(process: Process, rows: slice) -> tuple[torch.Tensor, ...]:
            return (process.mean(X[rows]),)

        (mean,) = of_processes(processes, means, np.empty((1, *shape_of(processes), len(X))))
        offset, unit = self._y_scaling
        return averaged(self.weights_, mean * unit + offset)

    @property
    def feature_importances_(self) -> np.ndarray:
        """How much f depends on each input, in units of its standard deviation."""
        check_is_fitted(self)
        unit = self._y_scaling.scale

        def mean(X: np.ndarray) -> np.ndarray:  # missing_columns may hold any numbers here
            return self._mean_at(*self._placed(X)) / unit

        return difference_importances(mean, self._x_scaling)

    def _query(self, X: Any) -> tuple[torch.Tensor, torch.Tensor, list[list[list[Process]]]]:
        """Return scaled rows, what they miss, and the processes, on the device of predictions."""
        check_is_fitted(self)
        X = validate_inputs(self, X, reset=False)
        missing = self._missing(X)
        X, processes = self._placed(X)
        return X, torch.from_numpy(missing).to(X.device), processes

    def _placed(self, X: np.ndarray) -> tuple[torch.Tensor, list[list[list[Process]]]]:
        """Return scaled rows, and the processes, on the device of predictions."""
        device = prediction_device(self.device)
        processes = [[[f.to(device) for f in fs] for fs in of_k] for of_k in self._processes]
        scaled = self._x_scaling.tensor(X, torch.float64, device)
        return scaled.clamp(-FARTHEST_INPUT, FARTHEST_INPUT), processes

    def _shaped(self, a: np.ndarray) -> np.ndarray:
        """(N, P, ...) → the shape of the user's y."""
        return a[:, 0] if self._y_shape == () else a

    def _targets(self, y: Any) -> np.ndarray:
        """Return valid y, (N, P)."""
        y = check_array(readable(y), dtype=np.float64, ensure_2d=False, input_name="y")
        if one_output(y).shape[1:] != self._y_shape:
            shape = ("n_samples", *self._y_shape)
            raise ValueError(f"y must have the shape {shape} of predictions, got {y.shape}.")
        return y.reshape(len(y), -1)

    @documented(MixtureRegressor.predict)
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the mean of y, and if asked its standard deviation."""
        if not return_std:
            return self._by_blocks(X, lambda X, rows: (self._mean(X),))[0]
        return tuple(self._by_blocks(X, lambda X, rows: self.distribution(X).moments()))

    @documented(Regressor.predict_std)
    def predict_std(self, X: Any) -> np.ndarray:
        """Predict the standard deviation of y at each row."""
        return np.asarray(self.predict(X, return_std=True)[1])

    @documented(Regressor.predict_interval)
    def predict_interval(self, X: Any, coverage: Any = 0.95) -> np.ndarray:
        """Predict the central interval that contains y with probability `coverage`."""
        tail = 0.5 - 0.5 * check_coverage(coverage)

        def ends(X: Any, rows: slice) -> tuple[np.ndarray, ...]:
            distribution = self.distribution(X)
            return distribution.quantile(tail), distribution.quantile(1.0 - tail)

        return np.stack(self._by_blocks(X, ends), 1)

    @documented(Regressor.predict_distribution)
    def predict_distribution(self, X: Any) -> PredictiveDistribution:
        """Predict the distribution of y at each row."""
        return PredictiveDistribution(self.distribution(X), self._y_shape)

    @documented(Regressor.predictive_cdf)
    def predictive_cdf(self, X: Any, y: Any) -> np.ndarray:
        """Return P(Y ≤ y | x, data) of each row."""
        y = self._targets(y)

        def cdf(X: Any, rows: slice) -> tuple[np.ndarray]:
            return (self.distribution(X).cdf(y[rows]),)

        return self._by_blocks(X, cdf, y)[0]

    @documented(Regressor.log_predictive_density)
    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Return the log density log p(y | x, data) of each row, summed over outputs."""
        y = self._targets(y)

        def density(X: Any, rows: slice) -> tuple[np.ndarray]:
            return (self.distribution(X).joint_log_density(y[rows])[:, None],)

        (log_density,) = self._by_blocks(X, density, y)
        return log_density.reshape(len(y))

    def _by_blocks(
        self,
        X: Any,
        compute: Callable[[Any, slice], tuple[np.ndarray, ...]],
        y: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """Compute arrays (N, P) from blocks of X and their places, and give them the shape of y."""
        check_is_fitted(self)
        X = validate_inputs(self, X, reset=False)
        if y is not None and len(y) != len(X):
            shape = (len(X), *self._y_shape)
            raise ValueError(f"y must have the shape {shape} of predictions, got {len(y)} rows.")
        blocks = [compute(X[rows], rows) for rows in row_blocks(len(X), BLOCK_ROWS)]
        return [self._shaped(np.concatenate(parts)) for parts in zip(*blocks, strict=True)]

    @documented(Regressor.sample_y)
    @predicting()
    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draw y jointly at the rows of X, each time from a drawn kernel and hyper-parameters.

        Returns
        -------
        y_samples : ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_outputs, n_samples)
            Draws, in the units of y.
        """
        X, missing, processes = self._query(X)
        rng = np.random.default_rng(resolve_seed(random_state))
        K, P, S = shape_of(processes)
        kernels = rng.choice(K, check_n_samples(n_samples), p=self.weights_)
        draws = np.empty((len(X), P, len(kernels)))
        for p in range(P):
            of_output = np.stack([kernels, rng.integers(S, size=len(kernels))])
            for k, s in np.unique(of_output, axis=1).T:
                asked = (of_output == [[k], [s]]).all(0)
                mean, cov = (a.cpu().numpy() for a in processes[k][p][s].joint(X, missing))
                draws[:, p, asked] = student_draws(mean, cov, self._tails[k][p], asked.sum(), rng)
        return self._shaped(
            draws * self._y_scaling.scale[:, None] + self._y_scaling.offset[:, None]
        )


# ---- parts ---------------------------------------------------------------------------------------


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
        or columns.dtype.kind not in "iu"
        or (columns.min() < 0 or columns.max() >= n_columns)
    ):
        raise ValueError(
            "missing_columns must be None or positions of columns of X, integers from 0 to "
            f"{n_columns - 1}, got {given!r}."
        )
    return columns


def fit_in_turn(
    names: list[str], fit_one: Callable[[str, list], Any], began: float, max_time: float | None
) -> list[Any]:
    """Fit kernels in turn until time is over, or Ctrl-C comes; one is always fitted.

    `fit_one` takes a name, and what was fitted before.
    """
    fitted: list[Any] = []
    for name in names:
        if not is_time_for_more(began, len(fitted), max_time):
            break
        try:
            fitted.append(fit_one(name, fitted))
        except KeyboardInterrupt:
            if not keeps_best():
                raise
            if not fitted:  # searches now stop at their start
                fitted.append(fit_one(name, fitted))
        if was_interrupted():
            warn(
                f"The fit was interrupted; the best model so far is kept. {AGAIN}",
                ConvergenceWarning,
            )
            break
    return fitted


def is_time_for_more(began: float, n_done: int, max_time: float | None) -> bool:
    """Tell whether another part would end in time, if it takes as long as those before."""
    if max_time is None or not n_done:
        return True
    used = time.monotonic() - began
    return used + used / n_done <= max_time


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

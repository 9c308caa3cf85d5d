"""NNGP: the exact process, conditioned on the nearest neighbours of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from ...data.docstrings import documented
from ...data.rows import BEGINNING, LONG_BEGINNING, Data
from ...estimators.conditioning import condition
from ...estimators.context import fitting
from ...estimators.docs import public_estimator
from ...estimators.first_rank import refuse_group
from ...estimators.parameters import (
    ACTIVATION,
    POSITIVE_INTEGER,
    NetworkParameters,
    TargetParameters,
    TrainingParameters,
)
from ...estimators.regressor import GeneralRegressor
from ...estimators.streams import (
    begins,
    check_same_exposure,
    check_unchanged,
    is_learned_again,
    keep_beginning,
    rows_so_far,
)
from ...estimators.validation import with_transformed_targets
from ...estimators.variational import VariationalRegressor
from ...likelihoods.base import regression_likelihood
from ...likelihoods.counts import Poisson
from ...models.calibration.tails import TailChoice
from .parameters import NeighbourParameters, asked, check_rows_kept, listed
from .pseudo_recipe import NeighbourCountRecipe
from .recipe import NeighbourRecipe


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class NNGPRegressor(
    NeighbourParameters, TargetParameters, NetworkParameters, TrainingParameters, GeneralRegressor
):
    """Nearest-neighbour Gaussian-process regression: exact where it matters, at any size.

    Each prediction is that of the exact process given the training rows nearest to it under the
    kernel [4]_, which takes one small Cholesky factor, whatever the number of training rows. It
    suits targets that vary faster over X than features or inducing points can follow: maps, and
    tables of many rows. With few rows, or much noise, other estimators predict as well or better.
    The rows are the model: a saved file contains them. Weights of rows count relative to their
    mean, unless a WhiteKernel fixes the noise or calibrate is False; a count of weight 2 is the row
    twice.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        The kernel, on X or on the network's outputs: any of scikit-learn's that has a torch version
        here, and that falls with distance. A top-level WhiteKernel is the noise. Hyper-parameters
        refer to the scaled y. None: a constant times a Matern kernel with a length-scale for each
        input, whose nu of 0.5, 1.5 or 2.5 fits the rows best. More than 64 inputs have a
        length-scale each only if they are at most 512, and rows ten times as many.
    n_neighbors : int, default=32
        Number of rows on which each row is conditioned in training; all if there are fewer.
    n_neighbors_predict : int, "auto" or None, default=None
        Number of rows on which predictions are conditioned; None is 128. All if there are fewer:
        predictions are then those of the exact process. Rows at one place count as one. It can be
        set on a fitted model. "auto": 32, 64 or 128, the fewest that predict rows left out as well
        as 128 do; 128 for counts, or if fewer than 300 are left out.
    search : {"exact", "approximate"}, default="exact"
        How neighbours are found: all of them, by a tree or by comparing all rows, or most of them,
        by an index of faiss (``pip install faiss-cpu``). The index is used from 100,000 rows on,
        in many dimensions and on the CPU (:ref:`million_rows`). It can be set on a fitted model.
    loss : {"auto", "vecchia", "leave_one_out"}, default="auto"
        "vecchia": the density of each row given neighbours among earlier rows, in random order [1]_
        [2]_. Its sum approximates the marginal likelihood, and learns long distances, too.
        "leave_one_out": the density of each row given neighbours among all other rows [3]_. "auto"
        is "leave_one_out" for networks, else "vecchia".
    likelihood : {"auto", "gaussian", "shared_student_t", "poisson", "negative_binomial"} or \
            likelihood of counts, default="auto"
        Distribution of y around f. "auto" lets training rows that are left out choose between
        Gaussian errors and those of a Student t; known errors `y_std` need "gaussian" or "auto".
        Counts have "poisson", or "negative_binomial" if they vary more, with the rate
        exposure·exp(f), or a :class:`~skgpstoch.likelihoods.Poisson` or
        :class:`~skgpstoch.likelihoods.NegativeBinomial` of your own. Expectation propagation then
        finds for each count a Gaussian observation that tells as much of f [5]_. There is no
        network for them.
    mean : {"constant", "zero"}, default="constant"
        Mean of f far from all rows: a learned constant, whose error predictions include, or 0,
        which is the average of y if `normalize_y` is True, the default. f of counts is the
        logarithm of their rate.
    calibrate : bool, default=True
        Whether training rows that are left out choose the scale of errors, their tails, and how
        much wider predictions are where neighbours are predicted badly. Far from all rows, f is
        that of the process, but heavy tails of y remain; with False, predictions are those of the
        process everywhere. The scale stays where the kernel fixes it. Of counts they choose the
        scale of f around its mean.
    hidden_layer_sizes : tuple of int, default=()
        Widths of the layers of a network that is learned together with the kernel: neighbours are
        then near in its outputs. (): neighbours are near in X.
    activation : {"identity", "relu", "tanh", "logistic", "silu", "gelu"}, default="gelu"
        Activation after every layer.
    batch_size : int or "auto", default="auto"
        Number of rows per step; "auto" is 256. Their neighbours come from all rows.
    max_iter : int or "auto", default="auto"
        Number of epochs, between which neighbours are searched anew. An epoch has 30 steps, or 50
        with a network, and takes rows that are spread over the whole table. "auto" makes 70 to 250
        steps after a search on fixed rows, or 600 steps with a network.
    learning_rate_init : float, default=0.1
        Learning rate of the kernel, or its maximum with learning_rate="one-cycle"; that of networks
        is a hundredth.
    early_stopping : bool, default=False
        Whether to keep the iterate that predicts held-out rows best; predictions then use these
        rows, too. Networks always do.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`. None: train to the end, or with
        a network until held-out scores have not improved for a quarter of `max_iter`, although the
        fit to the training rows has.
    validation_fraction : float, default=0.1
        Fraction of the rows to hold out, when rows are held out; at most 2,000 rows. With a
        network, at least 20 rows are held out, or a third of the rows if that is fewer.
    max_time : float or None, default=None
        Time limit of `fit` in seconds; None: no limit. If there is not enough time there are fewer
        steps, and a warning and `budget_` say so. At least 20 steps are made: on one core, some 100
        of 3,000 rows take a second or two.
    dtype : {"float32", "float64"}, default="float64"
        Precision of inputs and networks in training. Factors of covariances are always in float64.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        The training rows and the kernel, in float64 on the CPU.
    kernel_ : sklearn kernel
        The fitted kernel, on X or on the network's outputs; variances refer to the scaled y.
    likelihood_ : Likelihood
        The fitted likelihood, in the units of y. If its tails are heavy, its scale is the root of
        `noise_variance_`, and rows left out have chosen a factor for both.
    log_marginal_likelihood_value_ : float
        Σ log p(yᵢ | y of `n_neighbors` earlier rows), in nats, for y in its own units. Of counts,
        expectation propagation's log p(y | X), before `calibrate` changed the kernel. It is
        computed when it is first asked for.
    held_out_ : HeldOutPredictions
        Predictions for up to 2,000 training rows, each given neighbours among the other rows:
        their numbers in the X given to `fit`, not in `X_train_` (`rows`), `log_density` in nats for
        y in its own units, both of shape (m,), and `mean`, `error`, `std`, `latent_std` and `cdf`,
        of shape (m, n_outputs) also for one output. Kernel and tails are those of all rows. With a
        network: for the rows that it has not seen. With `target_transform`: of the transformed y.
        Counts: up to 1,000 rows, each by pseudo-targets that were found without it; `cdf` is NaN.
    budget_ : dict or None
        With `max_time`: "n_steps", what there was time for, "all_steps" without a limit,
        "start_is_cut", whether the choice of a kernel or the first training of a network was cut,
        and "is_enough", whether nothing was.
    X_train_ : ndarray of shape (n_samples, n_features)
        The training rows, in random order, without rows of weight 0. Copies are one row.
    y_train_ : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        Their targets, after any `target_transform`.

    See Also
    --------
    GaussianProcessRegressor : The exact process, for up to some thousand rows.
    SVGPRegressor : Inducing points, for any likelihood.

    References
    ----------
    .. [1] A. V. Vecchia, "Estimation and model identification for continuous spatial processes",
       JRSS B 50, 1988.
    .. [2] J. Guinness, "Permutation and grouping methods for sharpening Gaussian process
       approximations", Technometrics 60, 2018.
    .. [3] M. Jankowiak, G. Pleiss, "Scalable cross-validation losses for Gaussian process models",
       2021.
    .. [4] A. Datta, S. Banerjee, A. O. Finley, A. E. Gelfand, "Hierarchical nearest-neighbor
       Gaussian process models for large geostatistical datasets", JASA 111, 2016.
    .. [5] T. Minka, "Expectation propagation for approximate Bayesian inference", UAI 2001.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import Matern
    >>> from skgpstoch import NNGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (1000, 2))
    >>> y = np.sin(3 * X[:, 0]) * np.cos(3 * X[:, 1]) + 0.1 * rng.standard_normal(1000)
    >>> model = NNGPRegressor(1.0 * Matern(nu=2.5), random_state=0).fit(X, y)
    >>> mean, std = model.predict([[0.5, 2.0]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5) * np.cos(6.0)) < 0.2 and std[0] < 0.3)
    True
    """

    likelihood: Any = "auto"
    mean: str = "constant"
    calibrate: bool = True
    activation: str = "gelu"

    _first_parameters: ClassVar[tuple[str, ...]] = (
        "likelihood",
        "hidden_layer_sizes",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "activation": ACTIVATION,
        "mean": [StrOptions({"zero", "constant"})],
        "n_neighbors_predict": [POSITIVE_INTEGER, StrOptions({"auto"}), None],
        "calibrate": ["boolean"],
        "likelihood": [
            StrOptions({"auto", "gaussian", "shared_student_t", "poisson", "negative_binomial"}),
            Poisson,
        ],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("likelihood", "activation", "mean")

    def _recipe(self) -> NeighbourRecipe:
        likelihood = regression_likelihood(self.likelihood)
        if likelihood.is_discrete:
            return NeighbourCountRecipe.of(self, likelihood=likelihood)
        choice = TailChoice(
            True, self.likelihood != "shared_student_t", self.likelihood != "gaussian"
        )
        tails = choice if self.calibrate else None
        return NeighbourRecipe.of(self, likelihood=likelihood, tails=tails)

    def _asked(self, posterior: Any) -> Any:
        return asked(self, posterior)

    def _check_parts(self) -> None:
        check_rows_kept(self)

    def __dir__(self) -> list[str]:
        return listed(self)

    @documented(VariationalRegressor.partial_fit)
    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, exposure: Any = None, y_std: Any = None
    ) -> Any:
        """Fit the model at the first call, and append rows to it at later ones.

        Until 160 rows have come, the model is fitted again whenever rows have doubled; the first 20
        are learned without a network. Later calls do the same as
        :meth:`condition_on`: nothing is forgotten, and hyper-parameters stay.

        Raises
        ------
        ValueError
            If a parameter or an argument is invalid, or if parameters that define the model have
            changed since the first call.
        """
        refuse_group("partial_fit")
        self._validate_params()
        if begins(self):
            return begin(self, X, y, (sample_weight, exposure, y_std))
        check_unchanged(self)
        check_same_exposure(self, exposure)
        return self.condition_on(X, y, sample_weight, exposure=exposure, y_std=y_std)


@fitting
def begin(model: Any, X: Any, y: Any, of_rows: tuple, *classes: Any) -> Any:
    """Learn a stream's first rows, those of earlier calls and these; `classes` may occur.

    A fit takes up to a second, or ten with a network, so only when rows have doubled are they
    learned anew.
    """
    n_before = len(getattr(model, "_beginning", ()))
    given = rows_so_far(model, X, y, *of_rows, *classes)
    if is_learned_again(n_before, len(given)):
        fit_first(model, with_transformed_targets(model, given, reset=True))
    else:
        condition(model, X, y, *of_rows)
    keep_beginning(model, True, given, LONG_BEGINNING)
    return model


def fit_first(model: Any, data: Data) -> None:
    """Fit to the first rows of a stream."""
    recipe, are_few = model._recipe(), len(data) < BEGINNING
    recipe.check(data)
    model._fit(recipe.of_few_rows(data.X) if are_few else recipe, data)
    if not are_few:
        model._diagnosis.warn()

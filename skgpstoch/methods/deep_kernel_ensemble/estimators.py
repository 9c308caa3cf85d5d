"""Estimators of deep kernel ensembles: their parameters, and the recipe made from them.

The mathematics is in :mod:`skgpstoch.methods.deep_kernel_ensemble.recipe`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from ...data.docstrings import documented
from ...data.rows import Data
from ...estimators.classifier import Classifier
from ...estimators.docs import public_estimator
from ...estimators.parameters import (
    ACTIVATION,
    AUTO,
    NOT_NEGATIVE,
    NOT_NEGATIVE_INTEGER,
    POSITIVE,
    POSITIVE_INTEGER,
    NetworkParameters,
    StepParameters,
)
from ...estimators.regressor import GeneralRegressor, Regressor
from ...estimators.validation import refuse_groups_apart, with_groups
from ...estimators.variational_parameters import ClassificationParameters, RegressionParameters
from ...likelihoods.base import Likelihood, class_likelihood, regression_likelihood
from ...likelihoods.by_row import ScaledByRow
from ...losses import Loss, make_loss
from ...training.optimizers import SCHEDULES
from ...training.recipes.kernel_choice import KernelChoice
from ...training.recipes.networks import Network
from ...training.recipes.plan import Training
from .recipe import EnsembleRecipe

LAYERS = (128, 128)


def can_vary(likelihood: Likelihood, loss: Loss) -> bool:
    """Tell whether the noise has a scale on which the loss depends."""
    return isinstance(likelihood, ScaledByRow) and loss.covariance(likelihood) != "prior"


def chosen_loss(loss: str | Loss, likelihood: Likelihood) -> Loss:
    """Return the loss; "auto" is the bound for likelihoods that learn the dispersion of counts.

    The log loss lets the variance of the log-rate take a part of the dispersion, which increases
    the mean. *Measured* on counts whose rates a gamma variable of shape .7 or .3 multiplies: the
    means are 1.02 and 1.5 times as large as they should be, with the bound .97 and 1.02.
    """
    if loss == "auto":
        loss = "elbo" if likelihood.learns_dispersion else "log"
    return make_loss(loss)


@dataclass(eq=False, repr=False, kw_only=True)
class DeepKernelEnsembleParameters(NetworkParameters, StepParameters):
    """Parameters that regressor and classifier share.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Kernel on the networks' outputs. None: their inner product, with the inputs and a constant
        added to the outputs if there are at most 2,000 inputs. RBF and Matern (nu = 0.5, 1.5, 2.5
        or inf), their products with one another and with constants, and sums of all these use
        random Fourier features; a DotProduct is linear. A top-level WhiteKernel is the noise of the
        Gaussian likelihood.
    hidden_layer_sizes : tuple of int or "auto", default="auto"
        Widths of the networks' layers. "auto" is (128, 128), or () with a `kernel` or a
        `feature_map`. () is Bayesian linear regression on the inputs, or on the features of a
        `kernel`.
    activation : {"identity", "relu", "tanh", "logistic", "silu", "gelu"}, default="gelu"
        Activation after every layer, including the last.
    weight_decay : float, default=0.01
        Weight decay of the networks' parameters, decoupled (Adam).
    n_components : int, default=1000
        Number of random Fourier features of a `kernel`.
    n_estimators : int or "auto", default="auto"
        Number of networks. Each is trained without a fold of its own, and predictions are the
        mixture of all. "auto" is 8 up to 4,000 rows; then 6 for classes, and for real targets 3, or
        2 from 100,000 rows on. It is 1 below 50 rows, or if `hidden_layer_sizes` makes no network.
    n_waves : int or "auto", default="auto"
        Number of waves (cosines) of each input with more than eight distinct values, which the
        networks see beside the input; 0 is none. "auto" is 8, except that every other network has
        none if y holds classes and there are up to 4,000 rows, which need less detail.
    beta : float, default=1.0
        Weight of the Kullback-Leibler divergence; a value below 1 trusts the data more.
    mean : {"constant", "zero"}, default="constant"
        Prior mean of f: a learned constant, or 0.
    calibrate : bool, default=True
        Whether to recalibrate the predictive distribution on held-out rows after training.
    batch_size : int or "auto", default="auto"
        Number of rows per minibatch; "auto" is 64 up to 4,000 rows, 256 up to 100,000, then 1,024,
        or 512 for classes.
    max_iter : int or "auto", default="auto"
        Maximum number of epochs; "auto" makes 300 to 6,000 steps, 750 for 1,000 rows; at
        most 5,000 from 100,000 rows on, and for classes half as many.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without a better score of the folds. None is a quarter of
        `max_iter`, and only if the fit to the training rows has improved meanwhile.
    learning_rate_init : float, default=0.1
        Learning rate, or its maximum with learning_rate="one-cycle"; networks and last layers use a
        tenth of it. It is 1.4 times as much from 100,000 rows on if batch_size="auto", but not for
        classes.
    learning_rate : {"one-cycle", "constant", "theory"}, default="one-cycle"
        Schedule of the learning rate; "theory" decays as t^(−3/4).
    early_stopping : bool, default=True
        Whether to hold out a fold for each network and some rows for all, and to keep the iterate
        that predicts them best (as a recalibrated mixture, if there will be one); the closing pass
        then uses these rows too. False: keep the last iterate, and recalibrate nothing.
    max_time : float or None, default=None
        Seconds that `fit` may take, from its call to its return. Steps are timed, and the learning
        rate anneals towards the end of the time. If time is short there are fewer networks (if
        `n_estimators` is "auto"), fewer steps, at least twenty, and a shorter closing pass; a
        warning and `budget_` say what was cut. Results then depend on the speed of the machine.
        With ample time they are the same as without a limit.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        The mixture of the networks' posteriors, in float64 on the CPU.
    budget_ : dict or None
        With `max_time`: "n_steps" and "n_estimators", what there was time for; "all_steps" and
        "all_estimators", the same for a fit without a limit; "closing_pass" ("full", "short", or
        "none" if the last layers are as training left them); "is_enough", whether nothing was cut;
        "core_share", the share of its time that training had a CPU core for; "n_threads", the
        number of torch's threads; "unused", the share of the time that was left at the end; and
        "start_is_cut", which only nearest neighbours may be.
    kernel_ : sklearn kernel
        The fitted kernel on the networks' outputs.
    loss_curve_ : list of float
        Training loss of each epoch, per row, as its minibatches saw it.
    validation_scores_ : list of float or None
        Loss of held-out rows at each evaluation, per row; of the scaled y if it is scaled. It is
        the mean over networks or, for recalibrated densities, the loss expected of their mixture.
    held_out_ : HeldOutPredictions or None
        Predictions for held-out rows, by networks that have not seen them: row numbers (`rows`),
        `log_density` of y (in its own units) or of the row's class, `mean` and `error`. For classes
        `mean` has the probabilities, and `error` the indicator of the row's class minus them. For
        numbers there are also `std`, `latent_std` and `cdf`. Rows that no network was trained on
        (`is_whole`) are predicted by the calibrated mixture, before they are used too. Rows of a
        fold are predicted by the one calibrated network that was trained without it. The gain of
        the mixture over one network on the former rows is added to their log densities, and their
        errors are as much smaller as the mixture's are. If time is short, only some of the former
        rows have predictions. With `target_transform`, all are of the transformed y. None without
        early stopping.
    """

    hidden_layer_sizes: Any = "auto"
    activation: str = "gelu"
    weight_decay: float = 0.01
    n_components: int = 1000
    n_estimators: int | str = "auto"
    n_waves: int | str = "auto"
    likelihood: str | Likelihood = "auto"
    loss: str | Loss = "auto"
    beta: float = 1.0
    mean: str = "constant"
    calibrate: bool = True
    learning_rate: str = "one-cycle"
    early_stopping: bool = True
    max_time: float | None = None

    _first_parameters: ClassVar[tuple[str, ...]] = ("n_estimators", "likelihood", "max_time")
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "hidden_layer_sizes": ["array-like", POSITIVE_INTEGER, AUTO],
        "activation": ACTIVATION,
        "weight_decay": [NOT_NEGATIVE],
        "n_components": [POSITIVE_INTEGER],
        "n_estimators": [POSITIVE_INTEGER, AUTO],
        "n_waves": [NOT_NEGATIVE_INTEGER, AUTO],
        "likelihood": [str, Likelihood],
        "loss": [str, Loss],
        "beta": [POSITIVE],
        "mean": [StrOptions({"zero", "constant"})],
        "calibrate": ["boolean"],
        "learning_rate": [StrOptions(set(SCHEDULES))],
        "early_stopping": ["boolean"],
        "max_time": [POSITIVE, None],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("activation",)


def ensemble_recipe(
    p: DeepKernelEnsembleRegressor | DeepKernelEnsembleClassifier, likelihood: Likelihood
) -> EnsembleRecipe:
    """Return networks, last layers, and a likelihood."""
    layers = p.hidden_layer_sizes
    if isinstance(layers, str):
        layers = LAYERS if p.feature_map is None and p.kernel is None else ()
    return EnsembleRecipe.of(
        p,
        likelihood=likelihood,
        loss=chosen_loss(p.loss, likelihood),
        beta=float(p.beta),
        kernel=KernelChoice.of(p.kernel),
        network=Network.of(layers, p.feature_map, p.weight_decay, p.activation),
        calibrates=p.calibrate,
        training=Training.of(p),
    )


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class DeepKernelEnsembleRegressor(
    DeepKernelEnsembleParameters, RegressionParameters, GeneralRegressor
):
    """Regression by an ensemble of networks with Bayesian last layers: deep kernel learning.

    It gives calibrated predictive distributions on tables. The noise depends on the inputs and has
    the tails of the data. The networks are trained for the density of their predictions, and their
    mixture is recalibrated on held-out rows.
    :class:`AutoGaussianProcessRegressor` fits this ensemble.

    Parameters
    ----------
    likelihood : str or Likelihood, default="shared_student_t"
        "gaussian", "student_t", "shared_student_t", "laplace", or for counts "negative_binomial" or
        "poisson"; or an instance of a class of :mod:`skgpstoch.likelihoods`. "shared_student_t"
        allows for heavy tails and outliers, and needs loss="log"; its means follow the bulk of the
        rows, so they are off if y is skewed, of which `fit` warns unless there is a
        `target_transform`. "negative_binomial" learns how much more counts vary than Poisson
        counts. Networks follow a rate less closely than Poisson counts of 10⁹ tell it: deviations
        are then 4 to 10 times too large (use :class:`SVGPRegressor`). "auto" is "gaussian". With
        counts, an input beyond the interval of the training rows by more than half its length is
        taken as at that distance, because rates would grow without end.
    noise : {"auto", "constant", "input"}, default="auto"
        Whether the scale of additive noise, or the root of the dispersion of negative binomial
        counts, is the same everywhere ("constant") or a function of X ("input"): the softplus of a
        second function of the features, estimated as a point. "auto" is "input", except for Poisson
        counts and the square loss.
    loss : {"auto", "elbo", "log", "square"} or Loss, default="auto"
        What to minimise: "elbo", the negative evidence lower bound; "log", the negative log
        predictive density; "square", the square loss; or an instance of a class of
        :mod:`skgpstoch.losses`. "auto" is "log", but "elbo" for negative binomial counts, whose
        means it gets right. The square loss trains the mean alone: its intervals mean nothing.

    Attributes
    ----------
    likelihood_ : Likelihood
        The fitted likelihood, in the units of y. If the noise depends on the inputs, it refers to
        where the function of the noise is 0.
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Noise variance, in squared units of y. If the noise depends on the inputs, it refers to
        where the function of the noise is 0, and is not the mean over rows; `predict_std` returns
        that of each row.
    log_marginal_likelihood_value_ : float
        Mean of the networks' bounds on log p(y | X), in nats, summed over all rows, for y in its
        own units. NaN if there is no bound (likelihood="shared_student_t", or 100,000 rows).

    See Also
    --------
    AutoGaussianProcessRegressor : Stacks it with exact Gaussian processes if rows are few.
    DLMRegressor : The same losses on inducing points.

    References
    ----------
    .. [1] A. G. Wilson, Z. Hu, R. Salakhutdinov, E. P. Xing, "Deep kernel learning", AISTATS 2016.
    .. [2] Y. Wei, R. Sheth, R. Khardon, "Direct loss minimization for sparse Gaussian processes",
       AISTATS 2021.
    .. [3] B. Lakshminarayanan, A. Pritzel, C. Blundell, "Simple and scalable predictive uncertainty
       estimation using deep ensembles", NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import DeepKernelEnsembleRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (200, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(200)
    >>> model = DeepKernelEnsembleRegressor(n_estimators=2, max_iter=40, random_state=0)
    >>> low, high = model.fit(X, y).predict_interval([[0.0]], coverage=0.95)[0]
    >>> bool(low < 0.0 < high)
    True
    """

    likelihood: str | Likelihood = "shared_student_t"
    noise: str = "auto"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "noise": [StrOptions({"auto", "constant", "input"})],
    }

    @documented(GeneralRegressor.fit, Regressor.fit)
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        exposure: Any = None,
        y_std: Any = None,
        groups: Any = None,
    ) -> DeepKernelEnsembleRegressor:
        """Fit the model.

        Parameters
        ----------
        groups : array-like of shape (n_samples,) or None, default=None
            Labels of groups of rows, if new rows will be of new groups. Whole groups are then held
            out. Rows must be in memory, in one process.
        """
        refuse_groups_apart(X, groups)
        more = () if groups is None else (groups,)
        return self._fit_to(X, y, sample_weight, exposure, y_std, *more)

    def _given(self, X: Any, y: Any, reset: bool, *of_rows: Any, **options: Any) -> Data:
        *known, groups = of_rows if len(of_rows) > 3 else (*of_rows, None)
        return with_groups(super()._given(X, y, reset, *known, **options), groups)

    def _recipe(self) -> EnsembleRecipe:
        recipe = ensemble_recipe(self, regression_likelihood(self.likelihood))
        varies = self.noise == "input"
        if self.noise == "auto":
            varies = can_vary(recipe.likelihood, recipe.loss)
        return replace(recipe, scales_noise=varies)


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class DeepKernelEnsembleClassifier(
    DeepKernelEnsembleParameters, ClassificationParameters, Classifier
):
    """Classification by an ensemble of networks with Bayesian last layers: deep kernel learning.

    It gives calibrated probabilities on tables. The networks maximise the evidence lower bound, and
    their mixture is recalibrated on held-out rows.
    :class:`AutoGaussianProcessClassifier` fits this ensemble.

    Parameters
    ----------
    loss : {"elbo", "log", "square"} or Loss, default="elbo"
        What to minimise: "elbo", the negative evidence lower bound; "log", the negative log
        predictive probability; "square", Brier's score; or an instance of a class of
        :mod:`skgpstoch.losses`.

    Attributes
    ----------
    log_marginal_likelihood_value_ : float
        Mean of the networks' bounds on log p(y | X), in nats, summed over all rows.

    See Also
    --------
    AutoGaussianProcessClassifier : Stacks it with Gaussian processes if rows are few.
    DLMClassifier : The same losses on inducing points.

    References
    ----------
    .. [1] A. G. Wilson, Z. Hu, R. Salakhutdinov, E. P. Xing, "Deep kernel learning", AISTATS 2016.
    .. [2] B. Lakshminarayanan, A. Pritzel, C. Blundell, "Simple and scalable predictive uncertainty
       estimation using deep ensembles", NeurIPS 2017.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpstoch import DeepKernelEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = DeepKernelEnsembleClassifier(n_estimators=2, max_iter=40, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.9)
    True
    """

    loss: str | Loss = "elbo"

    @documented(Classifier.fit)
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None
    ) -> DeepKernelEnsembleClassifier:
        """Fit the model.

        Parameters
        ----------
        groups : array-like of shape (n_samples,) or None, default=None
            Labels of groups of rows, if new rows will be of new groups. Whole groups are then held
            out. Rows must be in memory, in one process.
        """
        refuse_groups_apart(X, groups)
        more = () if groups is None else (None, groups)
        return self._fit_to(X, y, sample_weight, *more)

    def _validate(self, X: Any, y: Any, reset: bool, *of_rows: Any, **options: Any) -> Data:
        known, groups = of_rows[:2], of_rows[2:]
        data = super()._validate(X, y, reset, *known, **options)
        return with_groups(data, *groups) if groups else data

    def _recipe(self) -> EnsembleRecipe:
        return ensemble_recipe(self, class_likelihood(self.likelihood, len(self.classes_)))

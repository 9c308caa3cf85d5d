"""Estimators of deep kernel ensembles: their parameters, and what recipe these make.

The mathematics is in :mod:`skgpstoch.methods.deep_kernel_ensemble.recipe`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from ...estimators.classifier import Classifier
from ...estimators.docs import public_estimator
from ...estimators.parameters import (
    AUTO,
    NOT_NEGATIVE,
    NOT_NEGATIVE_INTEGER,
    POSITIVE,
    POSITIVE_INTEGER,
    KernelParameters,
    NetworkParameters,
    TrainingParameters,
)
from ...estimators.regressor import GeneralRegressor
from ...estimators.variational_parameters import ClassificationParameters, TargetParameters
from ...likelihoods.base import Likelihood, class_likelihood, regression_likelihood
from ...likelihoods.real import AdditiveNoise
from ...losses import Loss, make_loss
from ...recipes.kernel_choice import KernelChoice
from ...recipes.networks import Network
from ...recipes.parameters import Training
from .recipe import EnsembleRecipe

LAYERS = (128, 128)


def can_vary(likelihood: Likelihood, loss: Loss) -> bool:
    """Tell whether there is a scale of the noise that the loss depends on."""
    return isinstance(likelihood, AdditiveNoise) and loss.covariance(likelihood) != "prior"


@dataclass(eq=False, repr=False, kw_only=True)
class DeepKernelEnsembleParameters(NetworkParameters, KernelParameters, TrainingParameters):
    """Parameters that regressor and classifier share.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Kernel on the networks' outputs. None: their inner product, with the inputs and a constant
        among them. RBF and Matern (nu = 0.5, 1.5, 2.5 or inf), their products with one another and
        with constants, and sums of all these use random Fourier features; a DotProduct is linear. A
        top-level WhiteKernel is the noise of the Gaussian likelihood.
    hidden_layer_sizes : tuple of int or "auto", default="auto"
        Widths of the networks' layers; "auto" is (128, 128), and none with a `kernel` or a
        `feature_map`. () has none: Bayesian linear regression on the inputs, or on the features of
        a `kernel`.
    activation : {"identity", "relu", "tanh", "logistic", "silu", "gelu"}, default="gelu"
        Activation after every layer, the last included.
    weight_decay : float, default=0.01
        Decoupled decay of the networks' parameters (Adam).
    n_components : int, default=1000
        Number of random Fourier features of a `kernel`.
    n_estimators : int or "auto", default="auto"
        Number of networks, each blind to a fold of its own; predictions are their mixture. "auto"
        is 8 up to 4,000 rows, then 3, or 6 for classes; 1 without a network of ours.
    n_waves : int or "auto", default="auto"
        Waves of each input that takes more than eight values, which the networks see beside it; of
        0 there are none. "auto" is 8; for up to 4,000 rows of classes, which need less detail,
        every other network has none.
    beta : float, default=1.0
        Weight of the Kullback-Leibler divergence; less than 1 trusts the data more.
    mean : {"constant", "zero"}, default="constant"
        Prior mean of f: a learned constant, or 0.
    calibrate : bool, default=True
        Whether to recalibrate the predictive distribution on held-out rows after training.
    batch_size : int or "auto", default="auto"
        Rows of a minibatch; "auto" is 64 up to 4,000 rows, 256 up to 100,000 and then 512.
    max_iter : int or "auto", default="auto"
        Epochs at most; "auto" makes 300 to 6,000 steps, 750 for 1,000 rows.
    n_iter_no_change : int or None, default=None
        Epochs without a better score of the folds after which training ends. None is a quarter of
        `max_iter`, if rows that are trained on have meanwhile been fitted better.
    learning_rate_init : float, default=0.1
        Learning rate, or its maximum with "one-cycle"; networks and last layers have a tenth of it.
    early_stopping : bool, default=True
        Hold out a fold of each network and rows of all, and keep the iterate that predicts them
        best, as a recalibrated mixture if there will be one; the rows rejoin the closing pass.
        False: the last iterate is kept, and nothing is recalibrated.
    max_time : float or None, default=None
        Seconds that `fit` may take, from its call to its return. Steps are measured, and the
        learning rate anneals towards the end of the time; where there is little there are fewer
        networks (if their number is "auto"), fewer steps, twenty at least, and a shorter closing
        pass. A warning and `budget_` say what was cut. Results then depend on the speed of the
        machine; with ample time they are those without a limit.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        The mixture of the members' posteriors, in float64 on the CPU.
    budget_ : dict or None
        With `max_time`: "n_steps" and "n_estimators" that there was time for, "all_steps" and
        "all_estimators" of a fit without it, "closing_pass" ("full", "short", or "none" if the last
        layers are as training left them), "is_enough", whether nothing was cut, "core_share", the
        share of its time that training had a core for, and "n_threads", how many torch had.
    kernel_ : sklearn kernel
        The fitted kernel on the networks' outputs.
    loss_curve_ : list of float
        What is minimised, per row, at each epoch, as minibatches saw it.
    validation_scores_ : list of float or None
        Loss of held-out rows at each evaluation, per row, of the scaled y where it is scaled: the
        mean over members or, of recalibrated densities, what is expected of their mixture.
    held_out_ : HeldOutPredictions or None
        Predictions for rows that were held out, by networks that have not seen them: numbers of the
        rows (`rows`), `log_density` in the units of y, or of its class, `mean` and `error`, of
        classes the probabilities and 1 at the right one less these, and of numbers `std`,
        `latent_std` and `cdf`. Rows that no network was trained on are predicted by
        the calibrated mixture, before they rejoin; rows of a fold by the one calibrated network
        that was blind to it, with the gain in log density that the mixture has over one network on
        the former. In little time, predictions are for some of the former alone. None without
        early stopping.
    """

    hidden_layer_sizes: Any = "auto"
    activation: str = "gelu"
    weight_decay: float = 0.01
    n_components: int = 1000
    n_estimators: int | str = "auto"
    n_waves: int | str = "auto"
    likelihood: str | Likelihood = "auto"
    loss: str | Loss = "log"
    beta: float = 1.0
    mean: str = "constant"
    calibrate: bool = True
    early_stopping: bool = True
    max_time: float | None = None

    _first_parameters: ClassVar[tuple[str, ...]] = ("n_estimators", "likelihood", "max_time")
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "hidden_layer_sizes": ["array-like", POSITIVE_INTEGER, AUTO],
        "weight_decay": [NOT_NEGATIVE],
        "n_components": [POSITIVE_INTEGER],
        "n_estimators": [POSITIVE_INTEGER, AUTO],
        "n_waves": [NOT_NEGATIVE_INTEGER, AUTO],
        "likelihood": [str, Likelihood],
        "loss": [str, Loss],
        "beta": [POSITIVE],
        "mean": [StrOptions({"zero", "constant"})],
        "calibrate": ["boolean"],
        "early_stopping": ["boolean"],
        "max_time": [POSITIVE, None],
    }


def ensemble_recipe(p: DeepKernelEnsembleParameters, likelihood: Likelihood) -> EnsembleRecipe:
    """Return networks, last layers, and a likelihood."""
    layers = p.hidden_layer_sizes
    if isinstance(layers, str):
        layers = LAYERS if p.feature_map is None and p.kernel is None else ()
    return EnsembleRecipe.of(
        p,
        likelihood=likelihood,
        loss=make_loss(p.loss),
        beta=float(p.beta),
        kernel=KernelChoice.of(p.kernel),
        network=Network.of(layers, p.activation, p.feature_map, p.weight_decay),
        calibrates=p.calibrate,
        training=Training.of(p),
    )


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class DeepKernelEnsembleRegressor(DeepKernelEnsembleParameters, TargetParameters, GeneralRegressor):
    """Regression by an ensemble of networks with Bayesian last layers: deep kernel learning.

    Calibrated predictive distributions on tables: the noise depends on the inputs and has the tails
    of the data, the networks are trained for the density of their predictions, and their mixture is
    recalibrated on rows that none of them has seen. This is what
    :class:`AutoGaussianProcessRegressor` fits.

    Parameters
    ----------
    likelihood : str or Likelihood, default="shared_student_t"
        "gaussian", "student_t", "shared_student_t", "laplace", or "poisson" for counts; or an
        instance of a class of :mod:`skgpstoch.likelihoods`. "shared_student_t" has heavy tails and
        outliers, and needs loss="log"; "auto" is "gaussian".
    noise : {"auto", "constant", "input"}, default="auto"
        Whether the scale of additive noise is the same everywhere, or a function of X: softplus of
        a second function of the features, of which there is a point estimate. "auto" is "input",
        except for counts and the square loss.
    loss : {"elbo", "log", "square"} or Loss, default="log"
        What is minimised: the negative evidence lower bound, the negative log predictive density or
        the square loss; or an instance of a class of :mod:`skgpstoch.losses`. The
        square loss trains the mean alone: its intervals mean nothing.

    Attributes
    ----------
    likelihood_ : Likelihood
        The fitted likelihood, in the units of y; of noise that depends on the inputs, where its
        function is 0.
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Noise variance, in squared units of y. Of noise that depends on the inputs it is that where
        its function is 0, not the mean over rows: `predict_std` tells that of a row.
    log_marginal_likelihood_value_ : float
        The mean of the members' bounds on log p(y | X), in nats, summed over all rows, for y in its
        own units; NaN where there is none (likelihood="shared_student_t", or 100,000 rows).

    See Also
    --------
    AutoGaussianProcessRegressor : Stacks it with a process where rows are few.
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

    Calibrated probabilities on tables: networks are trained for the bound on the evidence, and
    their mixture is recalibrated on rows that none of them has seen. This is what
    :class:`AutoGaussianProcessClassifier` fits.

    Parameters
    ----------
    loss : {"elbo", "log", "square"} or Loss, default="elbo"
        What is minimised: the negative evidence lower bound, the negative log predictive
        probability or Brier's score; or an instance of a class of :mod:`skgpstoch.losses`.

    Attributes
    ----------
    log_marginal_likelihood_value_ : float
        The mean of the members' bounds on log p(y | X), in nats, summed over all rows.

    See Also
    --------
    AutoGaussianProcessClassifier : Stacks it with processes where rows are few.
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

    def _recipe(self) -> EnsembleRecipe:
        return ensemble_recipe(self, class_likelihood(self.likelihood, len(self.classes_)))

"""Deep kernel ensembles: networks with Bayesian last layers, trained for their predictions.

K networks φ_k map inputs to features, and each has Bayesian linear regression as its last layer,

    f_k(x) = φ_k(x)ᵀw_k + mean,   w_k ~ N(0, I),   q_k(w) = N(m_k, S_k),

a Gaussian process whose kernel φ_k(x)ᵀφ_k(x') is learned. Each member is blind to a fold of the
rows, minimises the log-loss (C1) of :mod:`skgpstoch.methods.dlm`, or of classes the negative bound
(B2), by Adam, and gets at last, up to 100,000 rows, the m_k that is best for all rows
(:mod:`skgpstoch.objectives.ensemble`). The prediction is the mixture of the members,
recalibrated on rows that none of them has seen (:mod:`skgpstoch.calibration.held_out`). The scale
of the noise is a second function of the features; waves beside the inputs let a network bend
sharply along one of them (:class:`~skgpstoch.features.network.PeriodicInputs`), and scales of the
inputs let it forget others (:class:`~skgpstoch.features.network.InputScales`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions
from torch import Tensor, nn

from ..data.arrays import Scaling
from ..data.findings import Finding
from ..data.held_out import HeldOutPredictions, of_classes
from ..data.rows import Data, Rows
from ..estimators.classifier import Classifier
from ..estimators.docs import public_estimator
from ..estimators.parameters import (
    AUTO,
    NOT_NEGATIVE,
    NOT_NEGATIVE_INTEGER,
    POSITIVE,
    POSITIVE_INTEGER,
    KernelParameters,
    NetworkParameters,
    TrainingParameters,
)
from ..estimators.regressor import GeneralRegressor
from ..estimators.variational_parameters import ClassificationParameters, TargetParameters
from ..features.base import FeatureMap
from ..features.network import InputScales, multilayer_perceptron
from ..likelihoods.base import Likelihood, class_likelihood, regression_likelihood
from ..likelihoods.real import AdditiveNoise
from ..losses import Loss, make_loss
from ..models.sparse import ConstantMean, RowScale, SparseModel
from ..objectives.ensemble import MANY_ROWS, EnsembleObjective
from ..objectives.optimal_q import optimal_q
from ..recipes.evidence import feature_kernel
from ..recipes.feature_builder import USUAL_BATCH
from ..recipes.kernel_choice import KernelChoice
from ..recipes.networks import Network, build_network, finite_features
from ..recipes.parameters import Training
from ..recipes.plan import Folds, Plan, Sizes, epochs
from ..recipes.recipe import Fitted, Problem, Recipe, started
from ..recipes.solver_choice import check_choices, check_input_noise
from ..recipes.variational import bound_of
from ..recipes.warm_start import Start
from ..training.optimizers import SCHEDULES

LAYERS = (128, 128)
N_WAVES = 8
WAVE_ROWS = 1000  # that tell how many values an input takes
FEW_VALUES = 8  # of an input, with which it has no waves
SCALE_STEPS = 10_000  # of the networks' size, that scales of inputs could go in a fit
MOST_SCALE_RATE = 20.0
PATIENCE_SHARE = 0.25  # of the epochs: on none of 21 tables a better score came after so many
FEW_DIRECT = 4000  # rows up to which there are eight networks, not three
LEAST_OF_CLASSES = 2  # networks, for lack of time: the confidence of one is not calibrated
LEAST_OF_SEVERAL = 50  # rows for which there are several networks
MOST_JUDGES = 10_000  # rows in a fold, of the usual fraction, and rows that no member sees


# ---- the plan ------------------------------------------------------------------------------------


def ensemble_size(asked: int | str, n_rows: int, has_networks: bool, of_classes: bool) -> int:
    """Return K.

    Raises
    ------
    ValueError
        If several members are asked for without networks of ours, or with too few rows.
    """
    many = 6 if of_classes else 3
    auto = 8 if n_rows <= FEW_DIRECT else many
    auto = auto if has_networks and n_rows >= LEAST_OF_SEVERAL else 1
    K = auto if asked == "auto" else int(asked)
    if K > 1 and not has_networks:
        raise ValueError(
            f"n_estimators={K} needs networks to be joined: hidden_layer_sizes, and "
            "feature_map=None."
        )
    if K > 1 and n_rows < 2 * K:
        raise ValueError(f"n_estimators={K} needs {2 * K} rows at least, got {n_rows}.")
    return K


def ensemble_plan(
    training: Training,
    n_rows: int,
    n_estimators: int | str = "auto",
    has_networks: bool = True,
    of_classes: bool = False,
) -> Plan:
    """Return the plan for so many distinct rows; a pure function.

    Only networks of ours (`has_networks`) can be several; classes (`of_classes`) overfit sooner.
    """
    t, few = training, n_rows <= FEW_DIRECT
    K = ensemble_size(n_estimators, n_rows, has_networks, of_classes)
    folds = Folds(K)
    if t.early_stopping:
        folds = Folds.of(min(n_rows, MOST_JUDGES * 10), t.validation_fraction, K)
        if K > 1:  # by which the mixture is judged, as no member is blind to another's fold
            n_unseen = min(n_rows // (10 if few else 20), MOST_JUDGES)
            size = min(folds.size, (n_rows - n_unseen) // K)
            folds = replace(folds, size=size, n_unseen=n_unseen)
    n_trained = n_rows - folds.n_untrained
    usual = 64 if few else 256 if n_rows < MANY_ROWS else USUAL_BATCH
    b = min(usual if t.batch_size == "auto" else int(t.batch_size), n_trained)
    power = 0.4 if n_rows < 1000 else 0.6
    n_steps = int(np.clip(750 * (n_rows / 1000) ** power, 300, 6000))
    if of_classes:  # measured: twice as many gain on one of three tables
        n_steps = max(n_steps // 2, 300)
    max_iter = epochs(n_steps, n_trained, b) if t.max_iter == "auto" else int(t.max_iter)
    return Plan(
        solver="adam",
        dtype=t.dtype,
        max_iter=max_iter,
        batch_size=b,
        schedule=SCHEDULES[t.learning_rate],
        rate=t.learning_rate_init,
        patience=t.n_iter_no_change or math.inf,
        tol=t.tol,
        holds_out=bool(t.early_stopping),
        evaluates=bool(t.early_stopping),
        folds=folds,
    )


def scale_rate(plan: Plan, n_rows: int) -> float:
    """Return the rate of inputs' scales, in units of the networks': as large as steps are few.

    Scales have to get as far in few steps as in many. RealMLP's factor is 6.
    """
    n_steps = plan.max_iter * math.ceil((n_rows - plan.folds.n_untrained) / plan.batch_size)
    return min(SCALE_STEPS / n_steps, MOST_SCALE_RATE)


# ---- the recipe ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EnsembleRecipe(Recipe):
    """Networks with Bayesian last layers, each trained for a loss.

    Parameters
    ----------
    loss : Loss
        Of a row.
    kernel : KernelChoice
        Of the features, or on them, and the noise.
    network : Network or None
        Below it.
    training, n_components, n_estimators, n_waves, mean, beta, calibrates, scales_noise, max_time
        See :class:`DeepKernelEnsembleRegressor`.
    """

    loss: Loss
    kernel: KernelChoice
    network: Network | None
    training: Training
    n_components: int = 1000
    n_estimators: int | str = "auto"
    n_waves: int | str = "auto"
    mean: str = "constant"
    beta: float = 1.0
    calibrates: bool = True
    scales_noise: bool = False
    max_time: float = math.inf

    @property
    def scales_target(self) -> bool:
        return self.normalize_y and isinstance(self.likelihood, AdditiveNoise)

    @property
    def has_networks(self) -> bool:
        """Whether there are networks of ours."""
        return self.network is not None and self.network.module is None

    def check(self, data: Data) -> None:
        self.check_rows(data)
        check_choices(self.likelihood, self.loss, self.kernel.white)
        if data.y_std is not None and self.loss.covariance(self.likelihood) == "prior":
            raise ValueError(
                "y_std must be None with the square loss, which knows no noise variance."
            )
        if self.scales_noise:
            check_input_noise(self.likelihood, self.loss)

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        of_classes = self.likelihood.for_classes_only
        plan = ensemble_plan(
            self.training, sizes.n_rows, self.n_estimators, self.has_networks, of_classes
        )
        return replace(plan, beta=self.beta)

    def plan_of(self, sizes: Sizes, n_members: int) -> Plan:
        if self.n_estimators != "auto":
            return self.plan(sizes)
        least = LEAST_OF_CLASSES if self.likelihood.for_classes_only else 1
        return replace(self, n_estimators=max(n_members, least)).plan(sizes)

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        if self.network is not None:
            return self.network.input_scaling(X, weight)
        return self.kernel.input_scaling(X, weight, standardizes=True)

    def objective(self, problem: Problem) -> EnsembleObjective:
        plan, rows = problem.plan, problem.rows
        some = rows[plan.folds.n_untrained :]
        noise = None if self.kernel.white is None else self.kernel.start_noise
        likelihood, level = started(self.likelihood, some, noise)
        mean = ConstantMean(level if self.mean == "constant" else torch.zeros_like(level))
        features: Any = self.features(problem)
        scale = None
        if self.scales_noise:
            shape = features.n_members, features.n_features, rows.y.shape[1]
            scale = RowScale(rows.y.new_zeros(shape))
        model = SparseModel(features, likelihood, mean, None, self.loss, plan.beta, scale)
        if not self.kernel.learns_noise:
            likelihood.requires_grad_(False)
        mean.requires_grad_(self.mean == "constant")
        decay = 0.0
        if self.network is not None:
            self.network.freeze(features.network)
            decay = self.network.decay(rows.n_effective)
        objective = EnsembleObjective(
            model.to(problem.X.device),
            rows,
            weight_decay=decay,
            scale_rate=scale_rate(plan, len(rows)),
            noise_bounds=self.kernel.noise_bounds,
            calibrates=self.calibrates,
        )
        if self.training.n_iter_no_change is None:
            objective.overfit_patience = math.ceil(PATIENCE_SHARE * plan.max_iter)
        objective.has_user_module = self.network is not None and not self.has_networks
        return objective

    def features(self, problem: Problem) -> FeatureMap:
        """Make φ_k, before training."""
        X, K, generator = problem.X, problem.plan.folds.n_folds, problem.generator
        if self.network is not None and self.has_networks:
            network, width = self.waved(X, generator, K), self.network.layers[-1]
        else:
            network, width = build_network(self.network, X, generator)
        return finite_features(
            self.kernel, network, width, X.shape[1], self.n_components, K, generator
        )

    def waved(self, X: Tensor, generator: torch.Generator, n_members: int) -> nn.Module:
        """Make networks with waves of the inputs beside these."""
        network, columns = self.network, many_valued(X)
        assert network is not None
        n_waves = N_WAVES if self.n_waves == "auto" else int(self.n_waves)
        # Few rows of classes need less detail: every other network has no waves.
        some_plain = self.likelihood.for_classes_only and len(X) <= FEW_DIRECT
        every = 2 if self.n_waves == "auto" and some_plain else 1
        layers = multilayer_perceptron(
            X.shape[1],
            network.layers,
            network.activation,
            generator,
            n_members,
            n_waves=n_waves if len(columns) else 0,
            columns=columns,
            every=every,
        )
        return nn.Sequential(InputScales(n_members, X.shape[1], generator), *layers).to(X)

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        model = fitted.posterior.model
        found = {
            "likelihood_": model.likelihood,
            "kernel_": feature_kernel(model.features),
            "log_marginal_likelihood_value_": bound_of(fitted),
            "held_out_": held_out_predictions(fitted),
            "budget_": None if fitted.budget is None else fitted.budget._asdict(),
        }
        is_noise = isinstance(model.likelihood, AdditiveNoise)
        return found | (fitted.of_noise(model.likelihood) if is_noise else {})

    @property
    def learns(self) -> bool:
        return self.network is not None or not self.kernel.is_fixed

    def training_findings(self, fitted: Fitted) -> Iterator[Finding]:
        for finding in super().training_findings(
            fitted
        ):  # of the last layers before they are closed
            yield finding.noted()
        if (budget := fitted.budget) is None:
            return
        done = budget.n_steps * budget.n_estimators / (budget.all_steps * budget.all_estimators)
        found = Finding("budget", "max_time", done, 1.0, category=ConvergenceWarning)
        if not budget.is_enough:
            found = found._replace(severity="problem", text=budget.shortage)
        yield found

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        model = posterior.model.for_evidence()
        if not model.likelihood.has_bound:
            raise ValueError(f"The evidence has no bound with the likelihood {model.likelihood!r}.")
        return float(optimal_q(model, X, rows).value)


def held_out_predictions(fitted: Fitted) -> HeldOutPredictions | None:
    """Return what was predicted for rows of the user by what has not seen them, in their units."""
    found, data = cast(EnsembleObjective, fitted.objective).held_out, cast(Data, fitted.data)
    if found is None:
        return None
    rows, places = fitted.among_first(len(found.log_density))
    log_density, mean, std, latent_std, cdf = (column.numpy()[places] for column in found)
    if fitted.posterior.model.likelihood.for_classes_only:
        return of_classes(rows, log_density, mean, data.y[rows, 0].astype(np.int64))
    offset, scale = fitted.y_scaling
    error = (data.y[rows] - offset) / scale - mean
    scaled = HeldOutPredictions(rows, log_density, error, std, latent_std, mean, cdf)
    return scaled.in_units(fitted.y_scaling)


def can_vary(likelihood: Likelihood, loss: Loss) -> bool:
    """Tell whether there is a scale of the noise that the loss depends on."""
    return isinstance(likelihood, AdditiveNoise) and loss.covariance(likelihood) != "prior"


def many_valued(X: Tensor) -> Tensor:
    """Return the numbers of the columns that take more than a few values."""
    counts = [len(torch.unique(column)) for column in X[:WAVE_ROWS].mT]  # in random order
    columns = [j for j, count in enumerate(counts) if count > FEW_VALUES]
    return torch.tensor(columns, dtype=torch.long, device=X.device)


# ---- estimators ----------------------------------------------------------------------------------


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
        layers are as training left them), and "is_enough", whether nothing was cut.
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

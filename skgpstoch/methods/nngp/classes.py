"""NNGP for classes: regressions on pseudo-targets, whose α_ε rows left out choose."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

from torch import Tensor, nn

from ... import kernels
from ...calibration.tails import TailChoice
from ...estimators.classifier import Classifier
from ...estimators.docs import public_estimator
from ...estimators.parameters import AUTO, POSITIVE, TrainingParameters
from ...likelihoods.base import class_likelihood
from ...objectives.neighbour_classes import ClassNeighbourObjective, pseudo_targets
from ...objectives.neighbours import NeighbourObjective
from ...recipes.kernel_choice import KernelChoice
from ...recipes.plan import Training
from ...recipes.recipe import Fitted, Problem
from .parameters import NeighbourParameters
from .recipe import FEW, NOISE_AT_START, NeighbourRecipe
from .start import train_briefly

ALPHAS = (0.1, 0.01)
ALPHA_STEPS = 80


@dataclass(frozen=True, kw_only=True)
class NeighbourClassRecipe(NeighbourRecipe):
    """The same for pseudo-targets of classes.

    Parameters
    ----------
    alpha : float or "auto"
        α_ε.
    """

    alpha: float | str

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        return super(NeighbourRecipe, cls).of(
            parameters,
            kernel=KernelChoice.of(parameters.kernel, NOISE_AT_START),
            network=None,
            training=Training.of(parameters),
            tails=TailChoice(),
            **decided,
        )

    @property
    def alphas(self) -> tuple[float, ...]:
        """Candidates of α_ε."""
        return ALPHAS if self.alpha == "auto" else (float(self.alpha),)

    def objective(self, problem: Problem) -> NeighbourObjective:
        """Return the objective of the α_ε under which rows left out are likeliest."""
        first = super().objective(problem)
        if len(self.alphas) == 1:
            return first
        tried = [self.tried(first, problem, alpha) for alpha in self.alphas]
        best = min(tried, key=lambda o: o.calibrated(problem.X, problem.rows)[1])
        return self.continued(best, problem, best.alpha)

    def tried(self, first: NeighbourObjective, problem: Problem, alpha: float) -> Any:
        """Return an objective after a few steps with few neighbours."""
        objective = self.continued(first, problem, alpha, n_neighbors=FEW)
        X, rate = problem.X, self.training.learning_rate_init
        b = min(problem.plan.batch_size, len(X))
        train_briefly(objective, X, problem.rows, rate, b, problem.generator, ALPHA_STEPS)
        return objective

    def continued(
        self, earlier: NeighbourObjective, problem: Problem, alpha: float, **settings: Any
    ) -> NeighbourObjective:
        """Return an objective with the hyper-parameters of another, in units of its targets."""
        kernel, noise = earlier.kernel, earlier.likelihood.noise_variance.detach()
        choice, before_alpha = self.tail_choice, float(cast(Any, earlier).alpha)
        if choice is not None and choice.scales:
            of = [pseudo_targets(problem.rows, len(noise), a).y for a in (before_alpha, alpha)]
            before, after = (y.double().var(0).sum() for y in of)
            kernel = kernels.scaled(kernel, float(after / before))
            noise = noise * (after / before)
        return self.made(kernels.to_sklearn(kernel), problem, noise, alpha=alpha, **settings)

    def made(
        self,
        expression: Any,
        problem: Problem,
        noise: Tensor | None = None,
        mean: Tensor | None = None,
        n_neighbors: int | None = None,
        features: nn.Module | None = None,
        make: Any = None,
        alpha: float | None = None,
    ) -> NeighbourObjective:
        alpha = self.alphas[0] if alpha is None else alpha
        rows = pseudo_targets(problem.rows, self.likelihood.n_latents(1), alpha)
        classes: Any = self.likelihood
        make = functools.partial(ClassNeighbourObjective, classes=classes, alpha=alpha)
        problem = problem._replace(rows=rows)
        return super().made(expression, problem, noise, mean, n_neighbors, features, make)

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        posterior = fitted.posterior
        return {
            "kernel_": self.fitted_kernel(posterior, fitted.x_scaling),
            "likelihood_": posterior.likelihood,
        }


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class NNGPClassifier(NeighbourParameters, TrainingParameters, Classifier):
    """Nearest-neighbour Gaussian-process classification, at any size.

    Each class is a regression on pseudo-targets with known noise variances [1]_, and each
    prediction is that of the exact process of these given the rows nearest to it. Rows left out
    choose how confident the probabilities are. Far from all rows they return towards the shares of
    the classes.

    Parameters
    ----------
    alpha : float or "auto", default="auto"
        α_ε, the weight of the classes that a row does not have, beside 1 for its own. "auto": 0.1
        or 0.01, whichever gives rows left out the lower log loss. More suits classes that overlap.

    Attributes
    ----------
    kernel_ : sklearn kernel
        The fitted kernel of the latent functions.
    likelihood_ : Likelihood
        Logistic for two classes, softmax for more.

    See Also
    --------
    NNGPRegressor : The same for numbers.
    SVGPClassifier : Inducing points that summarise all rows.

    Notes
    -----
    The training rows are the model: it stores all of them, and so does a file of it.

    References
    ----------
    .. [1] D. Milios, R. Camoriano, P. Michiardi, L. Rosasco, M. Filippone, "Dirichlet-based
       Gaussian processes for large-scale calibrated classification", NeurIPS 2018.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skgpstoch import NNGPClassifier
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = NNGPClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.98)
    True
    >>> bool(model.predict_proba([[0.0, 1.0]])[0, 0] > 0.9)
    True
    """

    alpha: float | str = "auto"

    _parameter_constraints: ClassVar[dict[str, list]] = {"alpha": [POSITIVE, AUTO]}

    def _recipe(self) -> NeighbourClassRecipe:
        likelihood = class_likelihood("auto", len(self.classes_))
        return NeighbourClassRecipe.of(self, likelihood=likelihood)

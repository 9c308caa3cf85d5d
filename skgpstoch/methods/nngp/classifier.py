"""NNGP for classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ...data.docstrings import documented
from ...estimators.classifier import Classifier
from ...estimators.docs import public_estimator
from ...estimators.first_rank import refuse_group
from ...estimators.parameters import ACTIVATION, NetworkParameters, TrainingParameters
from ...estimators.stream_warnings import append
from ...estimators.streams import all_classes, begins, check_unchanged
from ...likelihoods.base import class_likelihood
from ...models.posteriors.neighbour_classes import NeighbourClassPosterior
from .estimators import begin
from .parameters import NeighbourParameters, asked, check_rows_kept, listed
from .pseudo_recipe import NeighbourClassRecipe


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class NNGPClassifier(NeighbourParameters, NetworkParameters, TrainingParameters, Classifier):
    """Nearest-neighbour Gaussian-process classification, at any size.

    Expectation propagation [1]_ finds for the class of each training row a Gaussian observation
    that tells as much of the latent functions. Each prediction is then that of a Gaussian process
    given the training rows nearest to it under the kernel, as in :class:`NNGPRegressor`: one small
    Cholesky factor a class, whatever the number of training rows. Far from all rows the
    probabilities are the classes' shares; not with a network, for which such a row is at the edge
    of the training rows. The rows are the model: a saved file contains them.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        The kernel of each latent function: any of scikit-learn's that has a torch version here, and
        that falls with distance. A top-level WhiteKernel has no effect. None: a constant times a
        Matern kernel with a length-scale for each input, whose nu of 0.5, 1.5 or 2.5 has the
        greatest evidence, or with loss="leave_one_out" predicts classes of rows left out best. More
        than 64 inputs have a length-scale each only if they are at most 512, and rows ten times as
        many.
    n_neighbors : int, default=32
        Number of rows on which each row is conditioned in training; all if there are fewer.
    n_neighbors_predict : int or None, default=None
        Number of rows on which predictions are conditioned; None is 128. All if there are fewer.
        Rows at one place count as one.
    search : {"exact", "approximate"}, default="exact"
        How neighbours are found: all of them, by a tree or by comparing all rows, or most of them,
        by an index of faiss (``pip install faiss-cpu``). The index is used from 100,000 rows on,
        in many dimensions and on the CPU (:ref:`million_rows`). It can be set on a fitted model.
    loss : {"auto", "vecchia", "leave_one_out"}, default="auto"
        "vecchia": the evidence, by neighbours among earlier rows in random order [2]_.
        "leave_one_out": the probability of the class of each row, given neighbours among all other
        rows [3]_. "auto" is "vecchia".
    calibrate : bool, default=True
        Whether training rows that are left out choose how certain the classes are: the scale of
        the latent functions around their mean.
    hidden_layer_sizes : tuple of int, default=()
        Widths of the layers of a network that first learns the classes, and then together with the
        kernel: neighbours are then near in its outputs. (): neighbours are near in X.
    activation : {"identity", "relu", "tanh", "logistic", "silu", "gelu"}, default="gelu"
        Activation after every layer.
    batch_size : int or "auto", default="auto"
        Number of rows per step; "auto" is 256. Their neighbours come from all rows.
    max_iter : int or "auto", default="auto"
        Number of epochs, between which neighbours are searched anew. An epoch has 30 steps, and
        takes rows that are spread over the whole table. "auto" makes 70 to 250 steps after a search
        on fixed rows.
    early_stopping : bool, default=False
        Whether to keep the iterate that predicts held-out rows best; predictions then use these
        rows, too.
    validation_fraction : float, default=0.1
        Fraction of the rows to hold out, when rows are held out; at most 2,000 rows. With a
        network, at least 20 rows are held out, or a third of the rows if that is fewer.
    max_time : float or None, default=None
        Time limit of `fit` in seconds; None: no limit. If there is not enough time there are fewer
        steps, at least 20, and a warning and `budget_` say so.
    dtype : {"float32", "float64"}, default="float64"
        Precision of inputs in training. Factors of covariances are always in float64.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        The training rows and the kernel, in float64 on the CPU.
    kernel_ : sklearn kernel
        The fitted kernel on X.
    likelihood_ : Likelihood
        The logistic likelihood of two classes, or softmax.
    log_marginal_likelihood_value_ : float
        Expectation propagation's log p(y | X), with `n_neighbors` neighbours, in nats. It is
        computed when it is first asked for. It is that of the kernel before `calibrate` changed its
        variance, a fixed one, too; with `calibrate=False`, that of `kernel_`.
    held_out_ : HeldOutPredictions
        Predictions for up to 1,000 training rows, each by pseudo-targets that were found without
        it: the rows' numbers in the X given to `fit`, not in `X_train_` (`rows`), `log_density` in
        nats, both of shape (m,), and the probabilities `mean` of shape (m, n_classes).
    budget_ : dict or None
        With `max_time`: "n_steps", what there was time for, "all_steps" without a limit,
        "start_is_cut", whether the choice of a kernel was cut, and "is_enough", whether nothing
        was.
    X_train_ : ndarray of shape (n_samples, n_features)
        The training rows, in random order, without rows of weight 0. Copies are one row.
    y_train_ : ndarray of shape (n_samples,)
        Their labels.

    See Also
    --------
    SVGPClassifier : Inducing points, for smooth boundaries and any likelihood of classes.
    GaussianProcessClassifier : All rows together, for up to some thousand rows.

    References
    ----------
    .. [1] T. Minka, "Expectation propagation for approximate Bayesian inference", UAI 2001.
    .. [2] A. V. Vecchia, "Estimation and model identification for continuous spatial processes",
       JRSS B 50, 1988.
    .. [3] M. Jankowiak, G. Pleiss, "Scalable cross-validation losses for Gaussian process models",
       2021.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import Matern
    >>> from skgpstoch import NNGPClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 4, (300, 2))
    >>> y = np.where((X.astype(int).sum(1)) % 2, "white", "black")  # a board of 16 fields
    >>> model = NNGPClassifier(1.0 * Matern(nu=0.5), max_iter=5, random_state=0).fit(X, y)
    >>> model.predict([[0.5, 0.5], [0.5, 1.5]])
    array(['black', 'white'], dtype='<U5')
    >>> model.predict_proba([[100.0, 100.0]]).round(1)  # far from all rows
    array([[0.5, 0.5]])
    """

    calibrate: bool = True
    activation: str = "gelu"

    _first_parameters: ClassVar[tuple[str, ...]] = ("hidden_layer_sizes",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "activation": ACTIVATION,
        "calibrate": ["boolean"],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("activation",)

    def _recipe(self) -> NeighbourClassRecipe:
        likelihood = class_likelihood("auto", len(self.classes_))
        return NeighbourClassRecipe.of(self, likelihood=likelihood)

    def _asked(self, posterior: Any) -> Any:
        return asked(self, posterior)

    def _check_parts(self) -> None:
        check_rows_kept(self)

    def __dir__(self) -> list[str]:
        return listed(self)

    @property
    def X_train_(self) -> np.ndarray:
        """Training rows, (n_samples, n_features)."""
        check_is_fitted(self)
        X = cast(NeighbourClassPosterior, self.posterior_).X.numpy()
        return X * self._x_scaling.scale + self._x_scaling.offset

    @property
    def y_train_(self) -> np.ndarray:
        """Their labels, (n_samples,)."""
        check_is_fitted(self)
        codes = cast(NeighbourClassPosterior, self.posterior_).y
        return self.classes_[codes[:, 0].long().numpy()]

    def condition_on(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Append rows to the model, and keep the hyper-parameters of the fit.

        Nothing is forgotten: predictions are those given the rows of the fit and the new ones.
        Pseudo-targets of the new rows and of their neighbours are found anew; those of other rows
        stay.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs of the new rows.
        y : array-like of shape (n_samples,)
            Their labels, of classes of the fit.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each row counts for.

        Returns
        -------
        self : object
            The updated estimator. Its `diagnose()` still describes the fit.

        Raises
        ------
        ValueError
            If an argument is invalid; the estimator is then as it was before.
        """
        return append(self, X, y, sample_weight)

    @documented(condition_on)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        """Fit the model at the first call, and append rows to it at later ones.

        Until 160 rows have come, the model is fitted again whenever rows have doubled. Later calls
        do the same as :meth:`condition_on`: nothing is forgotten, and hyper-parameters stay.

        Parameters
        ----------
        classes : array-like of shape (n_classes,) or None, default=None
            All labels that may occur, for the first call; None for those of `y`.

        Raises
        ------
        ValueError
            If a parameter or an argument is invalid, or if parameters that define the model have
            changed since the first call.
        """
        refuse_group("partial_fit")
        classes = all_classes(self, classes)
        self._validate_params()
        if begins(self):
            return begin(self, X, y, (sample_weight,), classes)
        check_unchanged(self)
        return self.condition_on(X, y, sample_weight)

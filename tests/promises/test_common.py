"""scikit-learn's own checks, on every public estimator.

As its constructor makes it by default, these are slow; in the default run it is made small.
"""

import warnings

import pytest
from conftest import (
    BASIS,
    DEEP,
    DIRECT,
    DROP_IN,
    ESTIMATORS,
    FINITE,
    HELD_OUT,
    NEIGHBOURS,
    NETWORKS,
    few_rows,
    harmful,
    sklearn_checks,
)
from families import slow_cases
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.utils.estimator_checks import parametrize_with_checks

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    DeepGPRegressor,
)
from skgpstoch.methods.automatic.class_process import ExactProcessClassifier
from skgpstoch.methods.automatic.process import ExactProcessRegressor
from skgpstoch.objectives import relevance

# Their default is as many steps as of the other estimators, and every check takes several fits.
FEWER_STEPS = {cls: {"max_iter": 50} for cls in DIRECT}


AUTOMATIC = [AutoGaussianProcessRegressor, AutoGaussianProcessClassifier]


def small(cls):
    """An estimator that passes all checks, with few parameters and steps."""
    if cls in FINITE:
        return cls(hidden_layer_sizes=(8,), n_estimators=1, max_iter=2)
    if cls in NETWORKS:
        return cls(hidden_layer_sizes=(8,), n_waves=4, n_estimators=1, max_iter=10)
    if cls in DROP_IN:
        return cls()
    if cls in HELD_OUT:  # whose own kernel starts from a marginal likelihood
        return cls(RBF() + WhiteKernel(0.1), scheme="holdout", tol=1.0)
    if cls in NEIGHBOURS:
        few = {"n_neighbors": 8, "n_neighbors_predict": 8}
        return cls(ConstantKernel() * Matern(nu=1.5), **few, max_iter=2)
    if cls in BASIS:
        few = {"n_components": 50, "n_subset": 50} if "n_components" in cls().get_params() else {}
        return cls(**{"n_subset": 0, **few}, max_iter=2)
    few = {"n_inducing": 5, "inducing_points": "kmeans", "solver": "natural"}
    if cls in DEEP:
        few |= {"n_samples": 1}
    if is_classifier(cls()):
        return cls(**few, max_iter=1)
    n_epochs = 10 if cls in DIRECT else 5  # the log-loss is slower to follow the data
    return cls(**few, batch_size=100, max_iter=n_epochs, learning_rate_init=0.3)


# The checks that ask for a score; for the others an epoch will do.
LEARN = ("check_classifiers_train", "check_regressors_train", "check_classifiers_classes")

# These take the labels of iris for targets, which have no noise: after its 2,000 epochs a deep
# process still learns so, by more than .1 nats per row in the last tenth, and tells of it.
WITHOUT_NOISE = ("check_positive_only_tag_during_fit", "check_non_transformer_estimators_n_iter")

# The drop-in says, as scikit-learn does, that a parameter is at its bound; and that y is noise.
# Nearest neighbours say that y has none.
at_bounds = pytest.mark.filterwarnings(
    "ignore:The optimal value found",
    "ignore:The noise variance, .*, is at its lower bound",
    "ignore:y looks noisy, but the kernel has no noise",
    "ignore:.* other rows explain only",
    "ignore:A distinct row counts 3 times on average",
    "ignore:Predictions are too (high|low) on average",
)

# Of a handful of rows, noise to some of these checks, relevance vector machines say that they have
# kept all or too many rows, or that the precisions still move; others say that targets have two
# values, or that four points are too few: that is so, and no check is about it.
too_few_rows = pytest.mark.filterwarnings(
    "ignore:Errors have heavy tails",  # of a stair, which is y of some checks
    "ignore:.* rows (are relevance vectors|is a vector)",
    "ignore:The set of relevance vectors did not converge",
    "ignore:y has two values, 1 and 2",
    "ignore:The points leave a variance",
)


@at_bounds
@few_rows
@harmful
@sklearn_checks([small(cls) for cls in ESTIMATORS])
def test_sklearn_check(estimator, check, monkeypatch, request):
    monkeypatch.setattr(
        relevance, "NEWTON_STEPS", 2
    )  # of functions that hardly any sweep has pruned
    if check.func.__name__ not in LEARN:
        request.getfixturevalue("few_newton_steps")
        less = {"max_iter": 1, "n_subset": 0, "calibrate": False}
        less = less if type(estimator) not in HELD_OUT + DROP_IN else {}
        params = estimator.get_params()
        estimator = clone(estimator).set_params(**{k: v for k, v in less.items() if k in params})
    check(estimator)


@sklearn_checks(
    [
        ExactProcessRegressor(kernels=["rbf", "constant"]),
        ExactProcessClassifier(kernels=["rbf"]),
    ]
)
@slow_cases(
    "check_(dtype|f_contig|dont|sample_weights|n_features|fit2d|pipeline|positive|readonly)",
    "check_(classifiers_classes|estimators_dtypes|regressor_multioutput|.*_train)",
)
def test_checks_of_processes(estimator, check):
    """The automatic estimators, which predict by them, have the others in the default run."""
    check(estimator)


@pytest.mark.slow
@at_bounds
@few_rows
@harmful
@too_few_rows
@parametrize_with_checks([cls(**FEWER_STEPS.get(cls, {})) for cls in [*ESTIMATORS, *AUTOMATIC]])
def test_sklearn_check_of_the_defaults(estimator, check):
    with warnings.catch_warnings():
        if isinstance(estimator, DeepGPRegressor) and check.func.__name__ in WITHOUT_NOISE:
            warnings.filterwarnings("ignore", "Training ended after max_iter", ConvergenceWarning)
        check(estimator)

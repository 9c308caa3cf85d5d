"""Constructor parameters that both drop-ins have, scikit-learn's and ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import StrOptions

from ..estimators.parameters import NOT_NEGATIVE_INTEGER, POSITIVE_INTEGER


@dataclass(eq=False, repr=False, kw_only=True)
class DropInParameters:
    """What scikit-learn's two classes share, and where and how to compute.

    Parameters
    ----------
    optimizer : "fmin_l_bfgs_b", callable or None, default="fmin_l_bfgs_b"
        How the kernel's hyper-parameters are found. "fmin_l_bfgs_b": L-BFGS within their bounds
        (ours: SciPy's stops where a covariance matrix has no factor). A callable is called as
        optimizer(obj_func, initial_theta, bounds=bounds), where obj_func(theta, eval_gradient=True)
        is minus the log marginal likelihood, with its gradient if that is asked for, and returns
        the best theta and its value. None keeps the kernel as it is.
    n_restarts_optimizer : int, default=0
        Number of searches besides the one from the kernel's own hyper-parameters, from random ones
        that suit the scale of X and y, log-uniform within their bounds; a callable's start anywhere
        between these. They run at once in a :func:`joblib.parallel_config`.
    copy_X_train : bool, default=True
        Whether `X_train_` and `y_train_` are copies.
    random_state : int, RandomState instance or None, default=None
        Seed; of the restarts, and of methods that draw minibatches.
    max_exact : int, default=5000
        Number of rows up to which method="auto" takes all of them into one matrix, O(n³) time and
        O(n²) memory.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Where to compute; None is the CPU, "auto" a GPU where there is one.
    dtype : {"float32", "float64"}, default="float32"
        Of the data in training, where `method_` is one for many rows. All else, and all of the
        others, is float64.

    Attributes
    ----------
    method_ : str
        The method that was used.
    method_reason_ : str
        Why, and what is to be known of it.
    X_train_ : array-like of shape (n_samples, n_features) or list of object
        The rows of the fit.
    log_marginal_likelihood_value_ : float
        Of `kernel_`, in nats: the log marginal likelihood, or the approximation or bound of it that
        `method_` has.
    feature_importances_ : ndarray of shape (`n_features_in_`,)
        How much f depends on each input, in units of its standard deviation, with the sum 1: the
        root mean square derivative of its mean. It is computed when it is asked for.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Their names, if X had any.
    """

    kernel: sk.Kernel | None = field(default=None, kw_only=False)
    optimizer: Any = "fmin_l_bfgs_b"
    n_restarts_optimizer: int = 0
    copy_X_train: bool = True
    random_state: Any = None
    max_exact: int = 5000
    device: str | torch.device | None = None
    dtype: str = "float32"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "kernel": [sk.Kernel, None],
        "optimizer": [StrOptions({"fmin_l_bfgs_b"}), callable, None],
        "n_restarts_optimizer": [NOT_NEGATIVE_INTEGER],
        "copy_X_train": ["boolean"],
        "random_state": ["random_state"],
        "max_exact": [POSITIVE_INTEGER],
        "device": [str, torch.device, None],
        "dtype": [StrOptions({"float32", "float64"})],
    }

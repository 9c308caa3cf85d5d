"""Fit scikit-learn's estimators inside our own fits, so that no tool takes them for the user's."""

from __future__ import annotations

import inspect
from typing import Any


def fitted_inside(estimator: Any, *args: Any, **options: Any) -> Any:
    """Fit an estimator of scikit-learn by its own method, and return it.

    Tools that watch fits, such as MLflow's autolog, wrap the methods `fit` of scikit-learn's
    classes; their wrappers are left out, as `functools.wraps` tells what they wrap.
    """
    fit = inspect.unwrap(type(estimator).fit, stop=is_of_sklearn)
    fit(estimator, *args, **options)
    return estimator


def is_of_sklearn(function: Any) -> bool:
    """Tell whether scikit-learn itself defines a function."""
    return str(getattr(function, "__globals__", {}).get("__name__")).startswith("sklearn.")

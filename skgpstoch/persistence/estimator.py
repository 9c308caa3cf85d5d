"""Base class of all estimators: pickle, copy, save, and the link to the documentation.

The documentation's root is the URL named Documentation in the package's metadata
(``[project.urls]`` in pyproject.toml, which installers store as ``Project-URL``). Without it there
are no links, because dead links would be worse.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any, Self

from sklearn.base import BaseEstimator

from ..data.arguments import check_names, with_names_checked, with_rows_checked
from .failures import LOADED, mark_loaded, shorten, tell_failures, with_failures_told
from .fields import refuse_names
from .file import save
from .state import Names, PackedState, Packer, Unpacker

DISTRIBUTION = "skgpstoch"
CALLED = """
    condition_on diagnose fit log_marginal_likelihood log_predictive_density partial_fit predict
    predict_distribution predict_gradient predict_interval predict_log_proba predict_proba
    predict_std predictive_cdf sample_functions sample_y score
"""
"""Public methods whose errors about arguments name the class of the estimator."""


def documentation_root() -> str | None:
    """Return the documentation URL of the installed package; None if it has none."""
    try:
        given = metadata(DISTRIBUTION).get_all("Project-URL") or []
    except PackageNotFoundError:  # the package runs from its sources
        return None
    urls = {
        label.strip().lower(): url.strip() for label, _, url in (u.partition(",") for u in given)
    }
    return urls.get("documentation")


def page_template(cls: type) -> str:
    """Return the address of a class's page, for scikit-learn to fill in; "" if there is none."""
    root = documentation_root()
    if root is None or cls.__module__ != DISTRIBUTION:  # only public classes have a page
        return ""
    return root.rstrip("/") + "/generated/{estimator_module}.{estimator_name}.html"


def told(method: Callable) -> Callable:
    """Let a method's errors name the class, its parameters, and the part that failed."""
    told = with_failures_told(method)
    return with_names_checked(told) if method.__name__ in CALLED.split() else told


class SavedEstimator(BaseEstimator):
    """An estimator whose pickled state consists of NumPy arrays and Python's own types.

    Objects of the user's classes are kept in the state as they are. The HTML representation links
    to the class's page if the package's metadata has the documentation's URL.
    """

    _doc_link_module = DISTRIBUTION
    __repr__ = with_failures_told(BaseEstimator.__repr__)
    _html_repr = with_failures_told(BaseEstimator._html_repr)
    get_params = with_failures_told(BaseEstimator.get_params)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        score: Any = getattr(cls, "score", None)
        if getattr(score, "__module__", "") == "sklearn.base" and not hasattr(score, "__wrapped__"):
            cls.score = with_rows_checked(score)
        tell_failures(cls, told)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make an estimator; name the parameter that a misspelt one may stand for."""
        made = super().__new__(cls)
        check_names(made, cls.__init__, kwargs)
        return made

    @property
    def _doc_link_template(self) -> str:
        return page_template(type(self))

    def onnx_parser(self) -> None:
        """Let skl2onnx, which calls this, go on if our converters are registered.

        Raises
        ------
        RuntimeError
            If they are not.
        """
        from skl2onnx._supported_operators import sklearn_operator_name_map

        if type(self) not in sklearn_operator_name_map:
            raise RuntimeError(
                f"skl2onnx has no converter for {type(self).__name__}. Call "
                "skgpstoch.onnx.register_converters() once, and convert again."
            )

    @with_failures_told
    def __getstate__(self) -> dict[str, Any]:
        state = Packer(Names()).state(vars(self).copy())  # which a fit in another thread changes
        return state._replace(file=LOADED.get(id(self), ""))._asdict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed, unpacker = PackedState(**state), Unpacker(Names())
        fields = unpacker.value(packed)
        refuse_names(type(self), fields)
        self.__dict__.update(fields)
        if packed.file:
            mark_loaded([self, *unpacker.made], packed.file)

    @with_failures_told
    def __copy__(self) -> Self:
        """Return a shallow copy, which shares its attributes with this estimator."""
        other = type(self).__new__(type(self))
        other.__dict__.update(vars(self))
        return other

    @with_failures_told
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a deep copy of the attributes, which is faster than copying the pickled state."""
        other = memo[id(self)] = type(self).__new__(type(self))
        other.__dict__.update(copy.deepcopy(vars(self).copy(), memo))
        return other

    @with_failures_told
    def __sklearn_clone__(self) -> Self:
        """Return an estimator with copies of the parameters, which are from the same file."""
        return super().__sklearn_clone__()

    @with_failures_told
    def set_params(self, **params: Any) -> Self:
        """Set parameters of this estimator, or of its parts, as kernel__length_scale.

        Parameters
        ----------
        **params : dict
            Parameters and their values.

        Returns
        -------
        self : estimator
            The estimator itself.

        Raises
        ------
        ValueError
            If a name is unknown, or a part has no parameters.
        """
        known = self.get_params(deep=False) | params
        for name in params:
            part, is_nested, _ = name.partition("__")
            if is_nested and part in known and not hasattr(known[part], "set_params"):
                value = " ".join(repr(known[part]).split())
                raise ValueError(
                    f"{name} cannot be set, because {part}={value:.80} has no parameters. Pass "
                    f"{part} itself, with the values that you want."
                )
        return super().set_params(**params)

    def _validate_params(self) -> None:
        """Check parameters, with messages that do not show all of a long one."""
        try:
            super()._validate_params()
        except ValueError as error:
            shorten(error)
            raise

    @with_failures_told
    def save(self, path: str | os.PathLike) -> None:
        """Write the estimator, fitted or not, to a file that `skgpstoch.load` reads.

        The format is safetensors, without pickle, so loading executes no code from the file. Your
        own classes (likelihoods, networks, estimators inside this one) are not in the file; pass
        them to `skgpstoch.load`.

        Parameters
        ----------
        path : str or os.PathLike
            The file to write, with any suffix. An existing file is replaced atomically.

        Raises
        ------
        ValueError
            If a parameter has a value that `fit` would refuse. Also if a part of the model is
            neither from skgpstoch nor an object that its attributes describe; use joblib then.
        """
        save(self, path)

"""Pickle, copy and save every estimator, and link to its page."""

from __future__ import annotations

import copy
import inspect
import os
from typing import Any, Self

from sklearn.base import BaseEstimator

from ..data.asked import with_names_checked
from ..documentation import DISTRIBUTION, page_template
from .file import save
from .state import Names, PackedState, Packer, Unpacker

CALLED = """
    condition_on fit log_predictive_density partial_fit predict predict_distribution
    predict_gradient predict_interval predict_log_proba predict_proba predict_std predictive_cdf
    sample_functions sample_y score
"""
"""Methods that users call, whose errors name the class of the estimator."""


class SavedEstimator(BaseEstimator):
    """An estimator whose state is NumPy's arrays and Python's own types.

    Objects of classes of the user's are in the state as they are. The HTML representation links to
    the class's page, if the package says where its documentation is.
    """

    _doc_link_module = DISTRIBUTION

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(cls).keys() & set(CALLED.split()):
            if inspect.isfunction(vars(cls)[name]):
                setattr(cls, name, with_names_checked(vars(cls)[name]))

    @property
    def _doc_link_template(self) -> str:
        return page_template(type(self))

    def __getstate__(self) -> dict[str, Any]:
        return Packer(Names()).state(vars(self))._asdict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(Unpacker(Names()).objects(PackedState(**state))[-1])

    def __copy__(self) -> Self:
        """Share what is copied, as copies of other objects do."""
        other = type(self).__new__(type(self))
        other.__dict__.update(vars(self))
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy what there is: quicker than by way of the state."""
        other = memo[id(self)] = type(self).__new__(type(self))
        other.__dict__.update(copy.deepcopy(vars(self), memo))
        return other

    def save(self, path: str | os.PathLike) -> None:
        """Write the estimator to a file, fitted or not, from which `skgpstoch.load` reads it.

        It is a safetensors file, without pickle: nothing is executed when it is read. Classes of
        your own (likelihoods, networks, estimators inside this one) are not in it, and are asked
        for by `skgpstoch.load`.

        Parameters
        ----------
        path : str or os.PathLike
            The file, which is replaced at once if it is there. Any suffix will do.

        Raises
        ------
        ValueError
            If a parameter has been set to what `fit` would refuse, or if a part of the model is
            neither our own nor of a class that attributes describe. Use joblib then.
        """
        save(self, path)

"""Refuse estimators by what is anywhere within them: in modules, records or lists of lists.

What a node has within it follows from what its parts have, so nothing is walked. Most of it is kept
only up to the estimator that has it, without parameters, which predict nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.pipeline import Pipeline
from torch import nn

from .fields import WITH_PREDICT, trains
from .networks import Networks, check_members
from .registry import PACKAGE, TRANSFORMERS, is_parameter, package_of

MOST_NESTED = 8  # estimators of other packages in one another; HTML takes twice as long for each
ONE_OF_OURS = 0.3  # that one of ours counts for; three hold as many others as one does
WITH_TRANSFORM = 2.5  # that one with target_transform counts for, which asks the next one thrice
HOLD_TRANSFORMS = "target_transform", "target_transformer_"
IN_A_PIPELINE = 2.0  # that a pipeline counts for
MOST_IN_A_PIPELINE = 16  # of pipelines; each quantile of y takes them all some hundred times
OUTPUTS = "p"  # their axis in `SHAPES`
HIDDEN = {"GPLayer", "PatchLayer"}  # whose outputs are inputs of another layer
FREE_OUTPUTS = 16  # that arrays of any model may have
FOR_EACH = 4  # latent functions for each output of y, with a likelihood of the user's, or class
OF_BINARY = OneVsOneClassifier, OneVsRestClassifier
HOLDERS = BaseEstimator, nn.Module
PREDICTORS = {*WITH_PREDICT, "posterior_"}


class Inside(NamedTuple):
    """What is within a node."""

    n_nested: float = 0.0  # estimators in one another
    n_steps: int = 0  # transformers of scikit-learn, one after the other
    training: str = ""  # a fitted layer that looks at other rows
    n_outputs: int = 0  # most of an array
    kinds: frozenset[str] = frozenset()  # what the estimators predict
    networks: tuple[nn.Module, ...] = ()


class Within:
    """What is within nodes, which come one after the other.

    Parameters
    ----------
    n_bytes : int
        Size of the file.
    """

    def __init__(self, n_bytes: int) -> None:
        self.networks = Networks(n_bytes)
        self.known: dict[int, Inside] = {}

    def check(self, node: int, value: Any, parts: list[Any], lengths: dict[str, int]) -> int:
        """Raise a ValueError if a node has parts that none of a model has.

        Parameters
        ----------
        node : int
            Its number.
        value : object
            What is made of it.
        parts : list
            Its parts.
        lengths : dict of str to int
            Lengths of the axes of its arrays.

        Returns
        -------
        n_kept : int
            How many parts are remembered.
        """
        places = [i for i, p in enumerate(parts) if type(p) is list and p[0] in self.known]
        if not (places or lengths or isinstance(value, HOLDERS)):
            return 0
        given = {i: self.known[parts[i][0]] for i in places}
        n_nested = max((inside.n_nested for inside in given.values()), default=0) + weight(value)
        if int(n_nested) > MOST_NESTED:
            raise ValueError(f"more than {MOST_NESTED} estimators are in one another")
        n_steps = sum(inside.n_steps for inside in given.values())
        if is_step := isinstance(value, TRANSFORMERS):
            n_steps += not isinstance(value, Pipeline)
            if n_steps > MOST_IN_A_PIPELINE:
                raise ValueError(
                    f"{type(value).__name__} has more than {MOST_IN_A_PIPELINE} transformers"
                )
        given = {i: each for i, each in given.items() if not is_parameter(value, parts[i - 1])}
        if isinstance(value, BaseEstimator):
            for i, inside in given.items():
                self.check_fitted(value, parts[i - 1], inside, lengths)
            found = Inside(n_nested, n_steps if is_step else 0, kinds=kinds_of(value))
        else:
            found = joined(Inside(n_nested, n_steps), value, list(given.values()), lengths)
        if found != Inside():
            self.known[node] = found
        return len(found.networks) + len(found.kinds)

    def check_fitted(
        self, value: BaseEstimator, name: str, inside: Inside, lengths: dict[str, int]
    ) -> None:
        """Raise a ValueError if a field of an estimator is that of no model."""
        kind, fields = type(value).__name__, vars(value)
        if inside.training:
            raise ValueError(
                f"{kind}.{name} has a {inside.training}, so predictions could be random or "
                "depend on other rows. Call its eval() before saving, let it track statistics, and "
                "count axes of layers from the first one, as in Softmax(dim=1)"
            )
        is_ours = package_of(type(value)) == PACKAGE
        is_derived = any(package_of(base) == PACKAGE for base in type(value).__mro__)
        known = fields.get("classes_") if is_derived and is_classifier(value) else None
        if is_ours and name in PREDICTORS:
            check_kinds(value, name, inside, kinds_of(value))
        of_y = size(getattr(fields.get("_y_scaling"), "offset", None))
        n_outputs = max(of_y, lengths.get(OUTPUTS, 0), size(known))
        least, most = 0.0, max(FREE_OUTPUTS, FOR_EACH * n_outputs)
        if name == "posterior_" and known is None:
            likelihood = getattr(fields[name], "likelihood", None)
            is_known = package_of(type(likelihood)) == PACKAGE
            least, most = (of_y, of_y) if is_known else (of_y / FOR_EACH, most)
        if not least <= inside.n_outputs <= most:
            raise ValueError(
                f"{kind}.{name} has {inside.n_outputs} outputs, but the model has {n_outputs}"
            )
        self.networks.check(inside.networks, fields.get("_x_scaling"))


def check_kinds(value: BaseEstimator, name: str, inside: Inside, own: frozenset[str]) -> None:
    """Raise a ValueError if what is in a field predicts something else than the estimator."""
    kinds = inside.kinds
    if name == "posterior_" and is_classifier(value):
        kinds |= {f"{max(2, inside.n_outputs)} classes"}
    is_other = own and kinds and kinds != own
    if is_other or len(kinds) > 1 or (kinds and "classes" in min(kinds) and not own):
        raise ValueError(
            f"{type(value).__name__} predicts {min(own, default='numbers')}, but its {name} "
            f"predicts {' and '.join(sorted(kinds))}"
        )


def kinds_of(estimator: BaseEstimator) -> frozenset[str]:
    """Return what a fitted estimator predicts, if it is ours and knows that.

    The only others known are scikit-learn's classifiers that consist of binary ones.
    """
    fields = vars(estimator)
    if isinstance(estimator, OF_BINARY):
        known = getattr(estimator, "classes_", None)
        return frozenset(["classes" if known is None else f"{size(known)} classes"])
    if package_of(type(estimator)) != PACKAGE:
        return frozenset()
    if fields.get("classes_") is not None:
        return frozenset([f"{size(fields['classes_'])} classes"])
    of_y = getattr(fields.get("_y_scaling"), "offset", fields.get("_y_train_mean"))
    return frozenset([] if of_y is None else [f"{size(of_y)} outputs"])


def size(value: Any) -> int:
    """Return the size of an array; 1 of the rest, which may be endless lists of lists."""
    return value.size if isinstance(value, np.ndarray) else 1


def weight(value: Any) -> float:
    """Return for how many estimators of other packages an object counts."""
    if not isinstance(value, BaseEstimator):
        return 0.0
    if package_of(type(value)) == PACKAGE:
        given = (getattr(value, name, None) for name in HOLD_TRANSFORMS)
        return WITH_TRANSFORM if any(each is not None for each in given) else ONE_OF_OURS
    return IN_A_PIPELINE if isinstance(value, Pipeline) else 1.0


def joined(counts: Inside, value: Any, given: list[Inside], lengths: dict[str, int]) -> Inside:
    """Return counts and what else is within an object that is no estimator, given its parts."""
    networks = {id(network): network for inside in given for network in inside.networks}
    is_ours = isinstance(value, nn.Module) and package_of(type(value)) == PACKAGE
    if is_ours and (own := value._modules.get("network")) is not None:
        check_members(value, own)
        networks[id(own)] = own
    n_classes = vars(value).get("n_classes") if is_ours else None  # of a likelihood
    own_kinds = [] if n_classes is None else [f"{n_classes} classes"]
    of_value = 0 if type(value).__name__ in HIDDEN else lengths.get(OUTPUTS, 0)
    return counts._replace(
        training=trains(value) or next((each.training for each in given if each.training), ""),
        n_outputs=max([of_value, *(inside.n_outputs for inside in given)]),
        kinds=frozenset(own_kinds).union(*(inside.kinds for inside in given)),
        networks=tuple(networks.values()),
    )

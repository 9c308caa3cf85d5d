"""The house: what a newcomer may rely on when guessing the right file."""

import inspect
import pickle

import numpy as np
import pytest
import torch
from conftest import ESTIMATORS, TRAINED, named
from sklearn.base import clone

import skgpstoch
from skgpstoch import likelihoods


@pytest.mark.parametrize("name", skgpstoch.__all__)
def test_public_classes_say_where_they_are_imported_from(name):
    cls = getattr(skgpstoch, name)
    assert cls.__module__ == "skgpstoch"
    assert pickle.loads(pickle.dumps(cls)) is cls


@pytest.mark.parametrize("name", likelihoods.__all__[:-1])
def test_likelihoods_say_where_they_are_imported_from(name):
    assert getattr(likelihoods, name).__module__ == "skgpstoch.likelihoods"


@pytest.mark.parametrize("cls", ESTIMATORS, ids=named)
def test_constructors_keep_what_they_are_given(cls):
    """The kernel is the only positional parameter; the others are stored as they are."""
    signature = inspect.signature(cls)
    positional = [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    assert positional == ["kernel"]
    sentinels = {name: object() for name in signature.parameters}
    model = cls(**sentinels)
    assert all(getattr(model, name) is value for name, value in sentinels.items())
    assert vars(cls()).keys() == sentinels.keys()
    assert set(cls._parameter_constraints) == set(sentinels)


@pytest.mark.parametrize("cls", TRAINED, ids=named)
def test_clones_share_nothing_mutable(cls):
    model = cls(hidden_layer_sizes=[4, 4])
    other = clone(model)
    assert other.hidden_layer_sizes == [4, 4]
    assert other.hidden_layer_sizes is not model.hidden_layer_sizes


def test_public_paths_stay():
    from skgpstoch import display, kernels, losses, metrics

    assert callable(metrics.negative_log_predictive_density)
    assert callable(display.PredictionIntervalDisplay)
    assert callable(kernels.from_sklearn)
    assert callable(losses.make_loss)
    assert isinstance(likelihoods.make_likelihood("poisson"), torch.nn.Module)
    assert np.array_equal(sorted(likelihoods.__all__), sorted(set(likelihoods.__all__)))

"""Every parameter of every estimator reaches its recipe, or is of those that it need not know."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from conftest import DROP_IN, ESTIMATORS, named
from sklearn.base import is_classifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.utils._param_validation import Interval, StrOptions

from skgpstoch.losses import Loss

NOT_OF_RECIPES = {
    "random_state": "seeds the fit",
    "verbose": "prints",
    "device": "where to compute",
    "checkpoint_dir": "where to save",
    "max_time": "when to end",
    "target_transform": "what targets are before a recipe sees them",
    "warm_start": "where a fit begins",
    "n_jobs": "processes that fit what recipes say",
    "refit": "whether a choice of beta is followed by another fit",
}
OTHERS = {  # values where the constraints do not say one
    "kernel": RBF(),
    "hidden_kernel": RBF(),
    "location_kernel": RBF(),
    "global_kernel": RBF(),
    "feature_map": torch.nn.Linear(2, 3),
    "hidden_layer_sizes": (3,),
    "hidden_channels": (2,),
    "hidden_dims": 3,
    "image_shape": (4, 4),
    "patch_shape": 2,
    "inducing_points": "random",
    "orthogonal_points": np.zeros((2, 1)),
    "loss": "square",
    "beta": 0.5,
    "early_stopping": False,
    "calibrate": True,
}
BESIDES = {  # parameters without which one plays no part
    "activation": {"hidden_layer_sizes": (3,)},
    "weight_decay": {"hidden_layer_sizes": (3,)},
    "patch_correlation": {"hidden_channels": (2,)},
    "n_control": {"solver": "adagrad"},
}


def another_value(model, name):
    """One that a parameter may have, and has not."""
    now = getattr(model, name)
    if name == "likelihood":
        return "robustmax" if is_classifier(model) else "laplace"
    if isinstance(now, bool):
        return not now
    if name in OTHERS:
        return OTHERS[name]
    for allowed in model._parameter_constraints[name]:
        if isinstance(allowed, Interval):
            return next(n for n in (3, 0.25) if n in allowed and n != now)
    for allowed in model._parameter_constraints[name]:
        if isinstance(allowed, StrOptions):
            return min(allowed.options - {now})
    raise LookupError(f"{name} of {type(model).__name__}: give a value in OTHERS.")


def content(part):
    """What a part of a recipe says, to be compared."""
    if dataclasses.is_dataclass(part):
        fields = dataclasses.fields(part)
        return type(part), {field.name: content(getattr(part, field.name)) for field in fields}
    if isinstance(part, functools.partial):
        return content([part.func, part.args, part.keywords])
    if isinstance(part, tuple | list):
        return [content(each) for each in part]
    if isinstance(part, dict):
        return {name: content(each) for name, each in part.items()}
    if isinstance(part, Loss):
        return type(part), content(vars(part))
    return repr(part)


def recipe(cls, **params):
    """What that of an estimator says; of a classifier, for three classes."""
    model = cls(**params)
    if is_classifier(model):
        model.classes_ = np.arange(3)
    return content(model._recipe())


@pytest.mark.parametrize("cls", [cls for cls in ESTIMATORS if cls not in DROP_IN], ids=named)
def test_every_parameter_is_of_the_recipe(cls):
    """So that none is lost whose name is not that of a field, say."""
    model, lost = cls(), []
    assert recipe(cls) == recipe(cls)
    for name in model.get_params().keys() - NOT_OF_RECIPES.keys():
        besides = {k: v for k, v in BESIDES.get(name, {}).items() if hasattr(model, k)}
        changed = {**besides, name: another_value(model, name)}
        if recipe(cls, **changed) == recipe(cls, **besides):
            lost.append(name)
    assert not lost

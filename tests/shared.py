"""What several test modules use besides fixtures: predictions of all kinds, deaths of fits."""

import os
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import norm, poisson
from sklearn.base import is_classifier

import skgpstoch.training.checkpoint
from skgpstoch import SCGDGaussianProcessRegressor

GRID = np.column_stack([np.linspace(-2.9, 2.9, 40), np.zeros(40)])


def labelled(model, sine):
    """Rows, and numbers or labels for the estimator."""
    X, y = sine
    return (X, np.where(y > 0.0, "up", "down")) if is_classifier(model) else (X, y)


def results(model, X=GRID):
    """All that a model predicts, as one array."""
    if is_classifier(model):
        parts = (model.predict_proba(X), *model.latent_mean_and_variance(X))
    else:
        std, draws = model.predict_std(X), model.sample_y(X, 2, random_state=3)
        parts = (model.predict(X), std, draws)
    return np.concatenate([part.reshape(len(X), -1) for part in parts], axis=1)


def fit_predict(model, X, y, grid):
    """What another process fits and predicts, which imports this module alone."""
    torch.set_num_threads(1)
    return results(model.fit(X, y), grid)


def constant_density(y):
    """Mean log density of the best constant prediction."""
    if y.dtype.kind in "Ui" and len(np.unique(y)) <= 3:
        share = np.unique(y, return_counts=True)[1] / len(y)
        return (share * np.log(share)).sum()
    if y.dtype.kind == "i":
        return poisson.logpmf(y, y.mean()).mean()
    return norm.logpdf(y, y.mean(), y.std()).mean()


def global_state():
    generator = np.random.mtrand._rand.get_state()
    return {
        "numpy": (generator[1].tolist(), *generator[2:]),
        "torch": torch.get_rng_state().tolist(),
        "dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": torch.is_grad_enabled(),
        "errors": np.geterr(),
        "filters": list(warnings.filters),
        "environment": dict(os.environ),
        "directory": sorted(os.listdir()),
    }


class Killed(BaseException):
    """Stands for the end of the process: nothing may catch it."""


def kill(model, data, epoch, monkeypatch, **known):
    """The process dies right after the checkpoint of an epoch was written."""
    save, count = skgpstoch.training.checkpoint.Checkpoint.save, [0]

    def dying(self, state):
        save(self, state)
        count[0] += 1
        if count[0] == epoch:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(skgpstoch.training.checkpoint, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(skgpstoch.training.checkpoint.Checkpoint, "save", dying)
        with pytest.raises(Killed):
            model.fit(*data, **known)
    assert not hasattr(model, "posterior_")


class Calls:
    """A callback of scikit-learn that acts at the end of an epoch."""

    max_propagation_depth = None

    def __init__(self, action=None, epoch=None):
        self.action, self.epoch, self.seen = action, epoch, []

    def setup(self, estimator, context):
        self.seen.append("setup")

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context):
        if context.task_name == "epoch":
            self.seen.append(context.task_id)
            assert np.isfinite(estimator.loss_curve_[-1])
        if context.task_name == "epoch" and context.task_id == self.epoch:
            raise self.action
        return False

    def teardown(self, estimator, context):
        self.seen.append("teardown")


def victim(folder):
    """A fit of some seconds."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (2000, 2))
    model = SCGDGaussianProcessRegressor(
        hidden_layer_sizes=(8,),
        n_estimators=1,
        max_iter=25,
        batch_size=64,
        random_state=0,
        checkpoint_dir=folder,
        verbose=1,
    )
    return model, X, np.sin(X[:, 0])


class Names:
    """A callback that keeps the names of what was begun and ended."""

    max_propagation_depth = None

    def __init__(self):
        self.begun, self.ended = [], []
        self.set_up = self.torn_down = 0

    def setup(self, estimator, context):
        self.set_up += 1

    def on_fit_task_begin(self, estimator, context, **kwargs):
        self.begun.append((context.estimator_name, context.task_name))

    def on_fit_task_end(self, estimator, context, **kwargs):
        self.ended.append((context.estimator_name, context.task_name))

    def teardown(self, estimator, context):
        self.torn_down += 1

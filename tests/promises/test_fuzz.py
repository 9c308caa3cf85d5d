"""Nothing silent, nothing bare: estimators and tables drawn at random, extreme ones among them.

A fit ends in a model whose predictions are sound, or in an error that says what is wrong. Sound is
finite, with standard deviations that are not negative, probabilities of sum 1, intervals in order,
and the same by rows as together (in extreme units, where covariances have fewer digits than kernels
take, to a part of the deviation); without a warning of NumPy's or torch's on the way.
"""

import warnings

import numpy as np
import pytest
from conftest import ESTIMATORS, IMAGES, constructor
from families import some_of
from sklearn.base import is_classifier
from sklearn.gaussian_process.kernels import RBF, DotProduct, Matern, RationalQuadratic, WhiteKernel
from sklearn.utils.validation import has_fit_parameter

from skgpstoch import AutoGaussianProcessClassifier, AutoGaussianProcessRegressor

AUTOMATIC = [AutoGaussianProcessRegressor, AutoGaussianProcessClassifier]
DRAWN = [cls for cls in [*ESTIMATORS, *AUTOMATIC] if cls not in IMAGES]
KERNELS = [None, RBF(), 2.0 * Matern(nu=1.5) + WhiteKernel(), RBF() + DotProduct()]
KERNELS += [RationalQuadratic(), RBF(1e-3), RBF(1e3), 1e6 * RBF()]
MODEST = 70  # percent of tables without anything extreme


def draw_inputs(rng, n):
    """X of n rows, mostly harmless."""
    d = rng.integers(1, 6)
    X = rng.standard_normal((n, d))
    if rng.integers(100) < MODEST:
        return X
    odd = rng.integers(9)
    j = rng.integers(d)
    if odd == 0:
        X[:, j] = 3.0
    elif odd == 1:
        X[:] = X[rng.integers(n, size=n)]
    elif odd == 2:
        X[rng.integers(n), j] = 1e6
    elif odd == 3:
        X *= 10.0 ** rng.integers(-12, 12)
    elif odd == 4:
        X *= 10.0 ** rng.integers(-8, 8, size=d)
    elif odd == 5:
        X = 1e8 + X
    elif odd == 6:
        X = np.round(X)
    elif odd == 7:
        X[:] = X[:1]
    else:
        X *= 10.0 ** float(rng.choice([-200.0, -40.0, 40.0, 200.0]))
    return X


def draw_targets(rng, X):
    """Numbers for the rows of X, mostly harmless."""
    largest = np.abs(X[:, 0]).max()
    y = np.sin(3.0 * X[:, 0] / (largest if largest > 0.0 else 1.0)) + 0.1 * rng.standard_normal(
        len(X)
    )
    if rng.integers(100) < MODEST:
        return y
    odd = rng.integers(6)
    if odd == 0:
        y[:] = 2.0
    elif odd == 1:
        y[rng.integers(len(y))] = 1e6
    elif odd == 2:
        y *= 10.0 ** rng.integers(-12, 12)
    elif odd == 3:
        y += 1e8
    elif odd == 4:
        y = (y > 0).astype(float)
    else:
        y *= 10.0 ** float(rng.choice([-200.0, -40.0, 40.0, 100.0]))
    return y


def draw_labels(rng, n):
    n_classes = rng.integers(2, 5)
    labels = rng.integers(n_classes, size=n)
    return np.array(["a", "b", "c", "d"])[labels] if rng.integers(2) else labels


def draw_weights(rng, n):
    """None, or weights of rows, mostly harmless."""
    kind = rng.integers(8)
    choices = [np.ones(n), rng.uniform(0.5, 2.0, n), rng.integers(3, size=n).astype(float)]
    return choices[kind] if kind < len(choices) else None


def draw(seed):
    """An estimator, what it is fitted to, and new rows."""
    rng = np.random.default_rng(seed)
    cls = DRAWN[rng.integers(len(DRAWN))]
    n = int(rng.choice([2, 5, 12, 30, 60]))
    X = draw_inputs(rng, n)
    y = draw_labels(rng, n) if is_classifier(cls()) else draw_targets(rng, X)
    weights = draw_weights(rng, n)
    names = cls().get_params()
    params = {"random_state": 0} if cls in AUTOMATIC else {}
    if "kernel" in names and rng.integers(3) == 0:
        params["kernel"] = KERNELS[rng.integers(len(KERNELS))]
    if "max_iter" in names:
        params["max_iter"] = int(rng.integers(1, 12))
    model = cls(**params) if cls in AUTOMATIC else constructor(cls)(**params)
    far = X[rng.integers(n, size=3)] * np.array([[1.0], [3.0], [1e3]])
    takes = weights is not None and has_fit_parameter(model, "sample_weight")
    return model, X, y, {"sample_weight": weights} if takes else {}, np.concatenate([X[:4], far])


def unsound(model, X):
    """What is wrong with predictions, or None."""
    if is_classifier(model):
        p = model.predict_proba(X)
        sound = np.isfinite(p).all() and (p >= 0).all() and np.allclose(p.sum(1), 1.0)
        alone = model.predict_proba(X[:1])
        same = np.allclose(alone, p[:1], rtol=1e-5, atol=1e-8)
        return None if sound and same else f"probabilities {p}, alone {alone}"
    mean, std = model.predict(X, return_std=True)
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0.0).all()):
        return f"mean {mean}, std {std}"
    low, high = model.predict_interval(X).T
    if not (np.isfinite([low, high]).all() and (low <= high).all()):
        return f"interval from {low} to {high}"
    alone, largest = model.predict(X[:1]), np.abs(X).max()
    share = 1e-5 if 0.1 < largest < 1e4 else 0.1
    scale = np.abs(mean).max() + std.max()
    if hasattr(model, "alpha_"):  # without noise its sums cancel
        scale += np.abs(model.alpha_).sum() * model.kernel_.diag(X).max() * 1e-9
    return None if np.abs(alone - mean[:1]) <= share * scale else f"alone {alone}, not {mean[:1]}"


def try_out(seed):
    """What is wrong with a fit, or None."""
    model, X, y, weights, new = draw(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(X, y, **weights)
        except (ValueError, TypeError) as error:
            refusal = str(error)
            short = len(refusal) < 30
            return f"{seed}: {model} refused by {error!r}" if short else None
        except Exception as error:
            return f"{seed}: {model} failed with {error!r}"
        try:
            problem = unsound(model, new)
        except Exception as error:
            problem = f"predictions failed with {error!r}"
    noise = [w for w in caught if issubclass(w.category, RuntimeWarning | DeprecationWarning)]
    if noise:
        problem = f"warning {noise[0].message} at {noise[0].filename}:{noise[0].lineno}"
    return None if problem is None else f"{seed}: {model}: {problem}"


@pytest.mark.parametrize("seeds", some_of([range(8), range(8, 34), range(34, 60)], [range(8)]))
def test_fits_drawn_at_random_are_sound_or_say_why_not(seeds):
    assert [found for seed in seeds if (found := try_out(seed))] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(100))
def test_many_fits_drawn_at_random_are_sound_or_say_why_not(part):
    seeds = range(1000 + 100 * part, 1100 + 100 * part)
    assert [found for seed in seeds if (found := try_out(seed))] == []

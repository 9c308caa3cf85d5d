"""Streams whose first call was of another kind than those that follow."""

import warnings

import numpy as np
import pytest

from skgpstoch import DLMRegressor, NNGPRegressor, SVGPRegressor


def rows(rng, width=2.0, n=100):
    X = width * rng.uniform(-1, 1, (n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(n)


def told(model, first, others):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.partial_fit(*first)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for each in others:
            model.partial_fit(*each)
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("is_constant", [False, True])
def test_deviations_that_a_constant_has_left_behind_are_told(is_constant):
    """They were 1e-8, for good, and no call said so."""
    rng = np.random.default_rng(1)
    X, y = rows(rng)
    first = X, np.ones(100) if is_constant else y
    said = told(NNGPRegressor(random_state=0), first, [rows(rng) for _ in range(2)])
    assert any("standard deviations away" in text for text in said) == is_constant


@pytest.mark.parametrize("Model", [SVGPRegressor, DLMRegressor])
@pytest.mark.parametrize("width", [0.2, 2.0])
def test_rows_beyond_all_inducing_points_are_told(Model, width):
    """2,000 rows taught nothing outside of the first hundred."""
    rng = np.random.default_rng(1)
    model = Model(n_inducing=20, random_state=0)
    said = told(model, rows(rng, width), [rows(rng) for _ in range(2)])
    assert any("are beyond all inducing points" in text for text in said) == (width < 1.0)

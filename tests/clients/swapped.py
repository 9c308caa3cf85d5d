"""A pytest plugin: where others import scikit-learn's Gaussian processes, they get ours.

``python -m pytest -p swapped SUITE`` with this folder on PYTHONPATH. It acts before the suite is
imported, so that no module has scikit-learn's classes from before; skl2onnx is told how ours are
converted.
"""

import importlib.util

import pytest
import sklearn.gaussian_process

import skgpstoch


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests():
    for name in ("GaussianProcessRegressor", "GaussianProcessClassifier"):
        setattr(sklearn.gaussian_process, name, getattr(skgpstoch, name))
    if importlib.util.find_spec("skl2onnx"):
        from skgpstoch.onnx import register_converters

        register_converters()

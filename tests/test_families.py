"""What a test of one class says of its family: the other classes run the same code.

Where they do not, the tests of what they do instead are named.
"""

from pathlib import Path
from types import FunctionType

import pytest
from conftest import COVERING, FINITE, FINITE_ONE, SPARSE, named

from skgpstoch import (
    BSGDGaussianProcessRegressor,
    FITCRegressor,
    MinimaxGaussianProcessRegressor,
    SolveGPClassifier,
    SVGPClassifier,
)

OWN = {
    BSGDGaussianProcessRegressor: {
        "_method": "test_linear_kernel_equals_sklearn",
        "_objective": "test_bsgd_with_a_kernel_as_it_is_is_the_exact_gp",
        "_is_general": "test_bsgd_with_a_general_kernel_on_a_network",
        "_fitted_kernel": "test_general_kernel_equals_sklearn",
        "_n_members": "test_bsgd_limits_what_a_general_kernel_is_for",
        "_check_streams": "test_bsgd_limits_what_a_general_kernel_is_for",
        "n_components": "test_bad_parameters_of_the_finite_family_are_named",
    },
    MinimaxGaussianProcessRegressor: {
        "_method": "test_linear_kernel_equals_sklearn",
        "_noise_bounds": "test_parameters_of_one_method",
        "penalty": "test_bad_parameters_of_one_method_are_named",
        "penalty_growth": "test_bad_parameters_of_one_method_are_named",
        "dual_step": "test_bad_parameters_of_one_method_are_named",
        "min_noise_variance": "test_bad_parameters_of_one_method_are_named",
    },
    FITCRegressor: {
        "fit": "test_fitc_has_no_weights_and_no_exposures",
        "partial_fit": "test_fitc_has_no_weights_and_no_exposures",
        "_distinct": "test_fitc_of_repeated_rows",
        "_evidence_of": "test_fitc_says_why_it_has_no_weights",
        "_make_likelihood": "test_fitc_learns_a_sine",
        "_make_loss": "test_fitc_with_points_at_the_rows_is_exact",
        "_kl_weight": "test_fitc_with_points_at_the_rows_is_exact",
        "solver": "test_fitc_has_a_fixed_noise",
    },
    SVGPClassifier: {"_set_fitted": "test_boundaries_are_learned"},
    SolveGPClassifier: {"_set_fitted": "test_boundaries_are_learned"},
}
"""Tests of code that the classes below that stand for their family do not run."""


def code(cls):
    """{name: function} of a class, as far as this package says it; and what parameters may be."""
    found = {}
    for base in cls.__mro__:
        for name, value in vars(base).items():
            found.setdefault(name, (base, value))
    kinds = (FunctionType, property, classmethod, staticmethod)
    return cls._parameter_constraints | {
        name: getattr(value, "__code__", value)  # methods are copied to be named by their class
        for name, (base, value) in found.items()
        if base.__module__.startswith("skgpstoch")
        and isinstance(value, kinds)
        and not name.startswith("__")
    }


def differences(cls, others):
    """Names of what no other class would run in the same case."""
    theirs = [code(other) for other in others]
    return {
        name for name, value in code(cls).items() if all(c.get(name) is not value for c in theirs)
    }


@pytest.mark.parametrize("cls", [c for c in FINITE if c is not FINITE_ONE], ids=named)
def test_the_finite_family_shares_its_code(cls):
    assert differences(cls, [FINITE_ONE]) == OWN.get(cls, {}).keys()


@pytest.mark.parametrize("cls", [c for c in SPARSE if c not in COVERING], ids=named)
def test_the_sparse_family_shares_its_code(cls):
    assert differences(cls, COVERING) == OWN.get(cls, {}).keys()


def test_the_tests_that_are_named_are_there():
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    named_tests = {test for own in OWN.values() for test in own.values()}
    assert {test for test in named_tests if f"def {test}(" not in tests} == set()


def test_differences_are_found():
    class Same(FINITE_ONE):
        pass

    class Another(FINITE_ONE):
        def predict(self, X):
            return super().predict(X)

        @property
        def kernel_(self):
            return None

    assert differences(Same, [FINITE_ONE]) == set()
    Another.__module__ = "skgpstoch.another"
    assert differences(Another, [FINITE_ONE]) == {"predict", "kernel_"}

"""Which promises each estimator keeps in the default run, and which one of its family keeps for it.

Classes that share their shell (parameters, checks of input, files, devices, streams), their recipe
and the form of their objective are a family. What the shared code promises breaks in all of them at
once, and to see it break in one is enough. So the default run tests such a promise with one class a
family, another one for each promise; `-m slow` has the rest of the product, and the two together
all. What a class alone can break (its mathematics, its parameters, its documentation), and what
takes less than 20 ms, stays in the default run for every class.

To add an estimator: name it in the family whose shell it shares, or in one of its own, which is
then tested with every promise. tests/test_families.py fails until it is in one.

To add a promise of all estimators: add its name to PROMISES and parametrize its test with
``by_family("the name")``.
"""

from __future__ import annotations

import re

import pytest

import skgpstoch as sg
from skgpstoch.methods.automatic.class_process import ExactProcessClassifier
from skgpstoch.methods.automatic.process import ExactProcessRegressor

FAMILIES = {
    "finite": (
        sg.SCGDGaussianProcessRegressor,
        sg.MinimaxGaussianProcessRegressor,
        sg.BSGDGaussianProcessRegressor,
    ),
    "sparse": (sg.SVGPRegressor, sg.SolveGPRegressor, sg.DLMRegressor, sg.FITCRegressor),
    "sparse classes": (sg.SVGPClassifier, sg.SolveGPClassifier, sg.DLMClassifier),
    "basis": (sg.QSGPRegressor, sg.QSRVMRegressor, sg.QSGPClassifier, sg.QSRVMClassifier),
    "deep": (sg.DeepGPRegressor, sg.DeepGPClassifier),
    "images": (sg.ConvolutionalGPClassifier, sg.ConvolutionalGPRegressor),
    "networks": (sg.DeepKernelEnsembleRegressor, sg.DeepKernelEnsembleClassifier),
    "drop-in": (sg.GaussianProcessClassifier, sg.GaussianProcessRegressor),
    "neighbours": (sg.NNGPRegressor, sg.NNGPClassifier),
    "held out": (sg.ADMMGaussianProcessRegressor,),
    "automatic": (sg.AutoGaussianProcessRegressor, sg.AutoGaussianProcessClassifier),
    "processes": (ExactProcessRegressor, ExactProcessClassifier),
    "stacks": (sg.ConstantVarianceRegressor, sg.StackedDensityRegressor),
}

# In this order, each promise has the next class of every family. A new one goes to the end, so that
# the others keep their classes.
PROMISES = (
    "same bits on an accelerator",
    "same bits in every file",
    "same bits whatever torch is set to",
    "a diagnosis",
    "importances",
    "documented attributes",
    "scalars of NumPy",
    "bounds are told of once",
    "gradients of predictions",
    "functions",
    "more rows without a fit",
    "few rows",
    "certainty of probabilities",
    "examples in docstrings",
    "the last iterate",
)

LEARNING = ("check_classifiers_train", "check_regressors_train")

# Of scikit-learn's checks, deep and convolutional models take turns: their shell is that of sparse
# models, and no check is about layers or patches.
CHECKED = {name: family for name, family in FAMILIES.items() if name not in ("deep", "images")}
CHECKED["layers"] = FAMILIES["deep"] + FAMILIES["images"]

# Checks of how inputs are read, in one place for all: one regressor and one classifier have them,
# and the recommended defaults, which read tables.
READERS = FAMILIES["finite"] + FAMILIES["sparse classes"] + FAMILIES["automatic"]
OF_INPUTS = (
    "check_classifier_data_not_an_array",
    "check_dtype_object",
    "check_f_contiguous_array_estimator",
    "check_readonly_memmap_input",
    "check_regressor_data_not_an_array",
    "check_sample_weights_list",
    "check_sample_weights_not_an_array",
    "check_sample_weights_pandas_series",
)

# scikit-learn's checks that fit nothing, or refuse it: of a few milliseconds, so of every class.
QUICK_CHECKS = {
    "check_all_zero_sample_weights_error",
    "check_array_api_input",
    "check_classifiers_one_label",
    "check_classifiers_one_label_sample_weights",
    "check_classifiers_regression_target",
    "check_complex_data",
    "check_decision_proba_consistency",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_sparse_array",
    "check_estimator_sparse_matrix",
    "check_estimator_sparse_tag",
    "check_estimator_tags_renamed",
    "check_estimators_empty_data_messages",
    "check_estimators_partial_fit_n_features",
    "check_estimators_unfitted",
    "check_fit1d",
    "check_fit2d_1sample",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_requires_y_none",
    "check_set_params",
    "check_supervised_y_no_nan",
    "check_valid_tag_types",
}


def named(cls):
    """The id of tests with this class."""
    return cls.__name__.replace("GaussianProcessRegressor", "Gaussian")


def representatives(turn, classes, families=FAMILIES):
    """The class of each family whose turn it is, of those given."""
    found = []
    for family in families.values():
        members = [cls for cls in family if cls in classes]
        found += [members[turn % len(members)]] if members else []
    return found


def unless(slow):
    """Marks of a case, which is slow or in the default run."""
    return pytest.mark.slow if slow else ()


def some_of(cases, covering):
    """Parameters of a test: cases, of which these are in the default run, and the others slow."""
    return [pytest.param(case, marks=unless(case not in covering)) for case in cases]


def by_family(promise, classes):
    """Parameters of a promise's test: classes, one a family in the default run, the others slow."""
    chosen = representatives(PROMISES.index(promise), classes)
    return [pytest.param(cls, marks=unless(cls not in chosen), id=named(cls)) for cls in classes]


def cases_by_family(promise, cases):
    """As `by_family`, of cases (cls, ...): the default run has those of the chosen classes."""
    chosen = representatives(PROMISES.index(promise), {case[0] for case in cases})
    return [pytest.param(*case, marks=unless(case[0] not in chosen)) for case in cases]


# Of a test's cases, those by default, or those that are slow: regular expressions of ids, as
# @by_default("svgp", "auto$"). For variants (solvers, likelihoods) that run much the same code.
by_default = pytest.mark.by_default
slow_cases = pytest.mark.slow_cases


def assert_all_match(items):
    """Assert that every pattern of these marks is found in some case of its test."""
    cases, patterns = {}, set()
    for item in items:
        test = item.nodeid.split("[")[0]
        cases.setdefault(test, []).append(getattr(item, "callspec", None))
        for name in ("by_default", "slow_cases"):
            patterns |= {(test, p) for mark in item.iter_markers(name) for p in mark.args}
    unknown = [
        (test, pattern)
        for test, pattern in sorted(patterns)
        if not any(re.search(pattern, case.id) for case in cases[test])
    ]
    assert not unknown, f"these tests have no such cases: {unknown}"


def is_slow_case(case, mark):
    """Whether one of these two marks has the case with this id slow."""
    found = any(re.search(pattern, case) for pattern in mark.args)
    return found == (mark.name == "slow_cases")


def is_left_to_another(promise, name):
    """Whether this is the name of a class for which another of its family keeps the promise."""
    names = {f"skgpstoch.{cls.__name__}": cls for family in FAMILIES.values() for cls in family}
    chosen = representatives(PROMISES.index(promise), names.values())
    return name in names and names[name] not in chosen


def checks_by_family(pairs):
    """Parameters (estimator, check): each check that fits with one class a family.

    Learning is checked with read-only arrays alone: with others, and of float32, it is slow.
    """
    names = sorted({check.func.__name__ for _, check in pairs})
    having = {
        name: {type(model) for model, check in pairs if check.func.__name__ == name}
        for name in names
    }
    for model, check in pairs:
        name = check.func.__name__
        chosen = representatives(names.index(name), having[name], CHECKED)
        if name in OF_INPUTS:
            chosen = [cls for cls in chosen if cls in READERS]
        others = type(model) not in chosen and name not in QUICK_CHECKS
        repeated = name in LEARNING and dict(check.keywords) != {"readonly_memmap": True}
        yield pytest.param(model, check, marks=unless(others or repeated))

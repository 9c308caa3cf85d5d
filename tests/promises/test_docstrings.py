"""Public docstrings: numpydoc's rules, and nothing said about parameters that is not so."""

import ast
import importlib
import inspect
import re

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import DEEP, DIRECT, DROP_IN, ESTIMATORS, HELD_OUT, IMAGES, named
from families import by_family, slow_cases
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import validate
from sklearn.base import is_classifier
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import skgpstoch
from skgpstoch.data.docstrings import documented
from skgpstoch.losses import Loss

MODULES = [
    "skgpstoch",
    *(f"skgpstoch.{m}" for m in ("likelihoods", "losses", "metrics", "display")),
    *(f"skgpstoch.{m}" for m in ("distributed", "dask")),
]
"""Those of the API reference."""

ERRORS = frozenset(
    # Docstring, and its sections known, in order and without stray blank lines or tabs.
    ["GL03", "GL05", "GL06", "GL07", "GL08"]
    # Summary: there is one, of one line, capitalised, that ends with a period.
    + ["SS01", "SS02", "SS03", "SS04", "SS06"]
    # Parameters: all there, no others, in order; with type and description.
    + [f"PR{i:02}" for i in range(1, 11)]
    # Returns and yields: described where something is returned (named too, as scikit-learn does).
    + ["RT01", "RT03", "RT04", "RT05", "YD01"]
    # See also: described.
    + ["SA02", "SA03", "SA04"]
)


def is_ours(obj):
    return (inspect.getmodule(obj) or skgpstoch).__name__.startswith("skgpstoch")


def public_objects():
    """Names of public classes and functions, and of their public methods that are our own."""
    for module in MODULES:
        namespace = importlib.import_module(module)
        for name in namespace.__all__:
            obj = getattr(namespace, name)
            if not (inspect.isclass(obj) or inspect.isfunction(obj)):
                continue  # a scorer is a sklearn object
            if getattr(obj, "__init__", None) is torch.nn.Module.__init__:
                continue  # a base class of likelihoods
            yield f"{module}.{name}"
            # What all likelihoods and losses can do is told by their base classes, for those who
            # write one.
            if inspect.isclass(obj) and not issubclass(obj, torch.nn.Module | Loss | Exception):
                for method, value in inspect.getmembers(obj, inspect.isroutine):
                    is_public = not method.startswith("_") and hasattr(obj, method)
                    if is_public and is_ours(inspect.unwrap(value)):
                        yield f"{module}.{name}.{method}"


NAMES = list(public_objects())


def resolve(name):
    obj, parts = skgpstoch, name.split(".")[1:]
    for i, part in enumerate(parts):
        if not hasattr(obj, part):
            importlib.import_module(".".join(["skgpstoch", *parts[: i + 1]]))
        obj = getattr(obj, part)
    return obj


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("GaussianProcessRegressor.log_marginal_likelihood", "Laplace|class"),
        ("GaussianProcessClassifier.log_marginal_likelihood", "normalised|target"),
        ("FITCRegressor.partial_fit", "loss|beta|solver"),
        ("GaussianProcessRegressor.predictive_cdf", "Targets"),
        ("metrics.interval_coverage", "How the scores"),
        ("SVGPRegressor.sample_y", "predict the latent"),
    ],
)
def test_docstrings_in_common_say_nothing_of_others(name, others):
    doc = inspect.getdoc(resolve(f"skgpstoch.{name}"))
    assert not re.search(others, doc)


def documented_parameters(obj, *names):
    """{name: type} of sections, those of parameters by default; a line may name several."""
    doc = NumpyDocString(inspect.getdoc(obj))
    found = [p for name in names or ("Parameters", "Other Parameters") for p in doc[name]]
    return {name.strip(): p.type for p in found for name in p.name.split(",")}


@pytest.fixture(scope="module", params=by_family("documented attributes", ESTIMATORS))
def fitted(request):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(40, 2)), columns=["a", "b"])
    # What is there only of a choice of beta, or of orthogonal points.
    choice = {"beta": [0.1, 1.0]} if request.param in DIRECT else {}
    if request.param in IMAGES + DEEP:
        choice = {"posterior": "solve"}
    if request.param in IMAGES:
        choice |= {"hidden_channels": (2,)}
    if request.param not in DROP_IN + HELD_OUT:
        choice |= {"max_iter": 2}
    if request.param in HELD_OUT:
        choice = {"kernel": RBF() + WhiteKernel(0.1), "tol": 1.0}
    if "n_control" in request.param().get_params():
        choice |= {"n_components": 50}
    if "hidden_layer_sizes" in request.param().get_params():
        choice |= {"hidden_layer_sizes": (4,)}
    model = request.param(random_state=0, **choice)
    y = np.sin(3.0 * X["a"])  # a line would take the scale of a kernel to its bound
    return model.fit(X, y > 0 if is_classifier(model) else y)


def test_the_expected_names_are_validated():
    ours = [name for name in NAMES if "SCGD" in name]
    methods = "fit partial_fit predict predict_std predict_interval sample_y "
    methods += "log_predictive_density log_marginal_likelihood"
    class_name = "skgpstoch.SCGDGaussianProcessRegressor"
    assert {class_name, *(f"{class_name}.{m}" for m in methods.split())} <= set(ours)
    ours = {name for name in NAMES if "SolveGPClassifier" in name}
    methods = "fit partial_fit predict predict_proba predict_log_proba latent_mean_and_variance "
    methods += "log_predictive_density"
    class_name = "skgpstoch.SolveGPClassifier"
    assert {class_name, *(f"{class_name}.{m}" for m in methods.split())} <= ours
    ours = {name for name in NAMES if "DLM" in name}
    methods = "fit partial_fit predict predict_interval score log_marginal_likelihood"
    class_name = "skgpstoch.DLMRegressor"
    assert {class_name, *(f"{class_name}.{m}" for m in methods.split())} <= ours
    assert {"skgpstoch.FITCRegressor.fit", "skgpstoch.DLMClassifier.predict_proba"} <= set(NAMES)
    assert {"skgpstoch.LogLoss", "skgpstoch.losses.make_loss"} <= set(NAMES)
    assert "skgpstoch.likelihoods.Poisson" in NAMES
    assert "skgpstoch.metrics.negative_log_predictive_density" in NAMES
    assert "skgpstoch.display.LearningCurveDisplay" in NAMES


# One name of each: what is inherited has the docstring of its base.
DISTINCT = list({resolve(name): name for name in reversed(NAMES)}.values())


@pytest.mark.parametrize("name", DISTINCT)
def test_numpydoc(name):
    """Its rules, and defaults that are the real ones."""
    errors = [f"{code}: {text}" for code, text in validate(name)["errors"] if code in ERRORS]
    assert not errors, "\n".join([name, *errors])
    obj = resolve(name)
    documented = documented_parameters(obj)
    for parameter in inspect.signature(obj).parameters.values():
        if parameter.name not in documented:
            continue
        kind, separator, text = documented[parameter.name].partition("default=")
        if parameter.default is parameter.empty:
            assert not separator, f"{parameter.name} of {name} has no default"
        else:
            assert separator, f"{parameter.name} of {name} has a default, not in {kind!r}"
            assert ast.literal_eval(text) == parameter.default, parameter.name


def test_methods_like_others_document_what_differs():
    """What they say wins; parameters that they do not have are left out."""

    def original(x, y, z):
        """Do.

        Parameters
        ----------
        x : int
            One.
        y : int
            Two.

        Returns
        -------
        x : int
            Three.
        """

    @documented(original)
    def method(w, x):
        """Do not.

        Parameters
        ----------
        w : int
            Four.

        Raises
        ------
        ValueError
            Always.
        """

    assert method.__doc__.split("\n\n") == [
        "Do not.",
        "Parameters\n----------\nw : int\n    Four.\nx : int\n    One.",
        "Returns\n-------\nx : int\n    Three.",
        "Raises\n------\nValueError\n    Always.\n",
    ]


@pytest.mark.parametrize("cls", ESTIMATORS, ids=named)
def test_classes_have_references_examples_and_no_placeholders(cls):
    doc = inspect.getdoc(cls)
    assert "{" + "parameters}" not in doc
    assert "{" + "attributes}" not in doc
    sections = NumpyDocString(doc)
    assert sections["References"]
    assert any(">>>" in line for line in sections["Examples"])


@pytest.mark.parametrize("name", skgpstoch.__all__)
def test_documented_parameters_are_those_of_the_constructor(name):
    cls = getattr(skgpstoch, name)
    named_there = [name.lstrip("*") for name in documented_parameters(cls)]
    assert named_there == list(inspect.signature(cls).parameters)


@pytest.mark.parametrize("cls", ESTIMATORS, ids=named)
def test_of_many_parameters_few_come_first(cls):
    names = list(inspect.signature(cls).parameters)
    first = list(documented_parameters(cls, "Parameters"))
    assert first == names[: len(first)]
    assert len(first) == len(names) if len(names) <= 13 else 4 <= len(first) <= 7


@slow_cases("NNGP")
def test_documented_attributes_are_the_fitted_ones(fitted):
    documented = set(documented_parameters(type(fitted), "Attributes"))
    present = {a for a in vars(fitted) if a.endswith("_") and not a.startswith("_")}
    properties = {a for a in documented if hasattr(fitted, a)}
    assert documented == present | properties
    assert all(a.endswith("_") for a in documented)


@pytest.mark.parametrize("cls", ESTIMATORS, ids=named)
def test_choices_are_documented(cls):
    """Every string that a parameter accepts is named in its documentation."""
    documented = documented_parameters(cls)
    for name, constraints in cls._parameter_constraints.items():
        if name not in cls().get_params(deep=False):
            continue
        for options in constraints:
            for option in getattr(options, "options", ()):
                shown = f'"{option}"' if isinstance(option, str) else str(option)
                assert shown in documented[name], (name, option)

"""The house: what a newcomer may rely on when guessing the right file, and how big things get."""

import ast
import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ESTIMATORS, TRAINED, named
from sklearn.base import clone

import skgpstoch
from skgpstoch import likelihoods

ROOT = Path(skgpstoch.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
MOST_LINES, MOST_METHODS, MOST_BODY, MOST_ANCESTORS = 450, 20, 40, 4


def documentation(tree):
    """Lines of docstrings."""
    nodes = (ast.FunctionDef, ast.ClassDef, ast.Module)
    docs = [n.body[0] for n in ast.walk(tree) if isinstance(n, nodes) and ast.get_docstring(n)]
    return sum(doc.end_lineno - doc.lineno + 1 for doc in docs)


def body_lines(function):
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def ancestors(cls):
    """The longest chain of classes of ours above this one."""
    own = [base for base in cls.__bases__ if base.__module__.startswith("skgpstoch")]
    return max((1 + ancestors(base) for base in own), default=0)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_classes_and_functions_stay_small(path):
    source = path.read_text()
    tree = ast.parse(source)
    n_lines = source.count("\n")
    assert n_lines <= MOST_LINES or 2 * documentation(tree) > n_lines
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [f for f in node.body if isinstance(f, ast.FunctionDef)]
            assert len(methods) <= MOST_METHODS, node.name
        elif isinstance(node, ast.FunctionDef):
            assert body_lines(node) <= MOST_BODY, node.name


@pytest.mark.parametrize("cls", ESTIMATORS, ids=named)
def test_estimators_have_few_ancestors(cls):
    assert ancestors(cls) <= MOST_ANCESTORS


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

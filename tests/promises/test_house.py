"""The house: what a newcomer may rely on when guessing the right file, and how parts compose."""

import ast
import graphlib
import importlib
import inspect
import itertools
import pickle
import pickletools
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ESTIMATORS, FINITE, IMAGES, NETWORKS, OF_OTHERS, PUBLIC, SPARSE_ONE, named
from sklearn.base import clone

import skgpstoch
from skgpstoch import likelihoods, losses
from skgpstoch.estimators import parameters, variational_parameters

ROOT = Path(skgpstoch.__file__).parent
SOURCES = {path: path.read_text() for path in sorted(ROOT.rglob("*.py"))}
TREES = {path: ast.parse(source) for path, source in SOURCES.items()}
CLASSES = [n for tree in TREES.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
MOST_INHERITED = 25
MOST_IGNORED = 5
# How large the house may become. Whoever raises a number says why in the commit.
MOST_ROOMS = 18
MOST_ARROWS = 79
MOST_METHODS = 30
LONGEST_MRO = 25
MOST_PARAMETERS = 32
MOST_PARAMETERS_OF_IMAGES = 36
DISTINCT_PARAMETERS = 91


# ---- composition -------------------------------------------------------------------------------


def ours(cls):
    return [base for base in cls.__mro__ if base.__module__.startswith("skgpstoch")]


def own_methods(cls):
    return {name for name, value in vars(cls).items() if callable(value) and name != "__init__"}


@pytest.mark.parametrize("cls", PUBLIC, ids=named)
def test_few_private_methods_are_inherited(cls):
    inherited = [vars(base).items() for base in ours(cls)[1:]]
    found = {k for items in inherited for k, v in items if callable(v) and re.match("_[a-z]", k)}
    assert len(found) <= MOST_INHERITED, sorted(found)


@pytest.mark.parametrize("cls", ESTIMATORS, ids=named)
def test_groups_of_parameters_have_no_methods_and_behaviour_has_one_line(cls):
    groups = [base for base in ours(cls)[1:] if base.__name__.endswith("Parameters")]
    dunder = {"__init__", "__class_getitem__", "__replace__"}
    assert all(own_methods(group) <= dunder for group in groups)
    behaviour = [base for base in ours(cls) if base not in groups]
    for below, above in itertools.pairwise(behaviour):
        assert above in below.__mro__, f"{below.__name__} is welded to {above.__name__}"


def test_groups_of_the_shell_are_data():
    files = (parameters, variational_parameters)
    classes = {c for file in files for c in vars(file).values() if inspect.isclass(c)}
    groups = [c for c in classes if c.__name__.endswith("Parameters")]
    assert len(groups) > 10
    assert all(own_methods(g) <= {"__init__", "__replace__"} for g in groups)


def room_of(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path):
    """Yield the rooms from which a file imports."""
    package = [ROOT.name, *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            yield from (above[1] or alias.name for alias in node.names)


@pytest.mark.slow
def test_rooms_stay_few_and_arrows_make_no_circles():
    """Rooms are the folders and files of the package; arrows are imports between them."""
    rooms = {room_of(path): set() for path in TREES}
    for path in TREES:
        rooms[room_of(path)] |= {room for room in imported(path) if room in rooms}
    below = {room: others - {room} for room, others in rooms.items()}
    assert len(below) <= MOST_ROOMS, sorted(below)
    assert sum(map(len, below.values())) <= MOST_ARROWS
    graphlib.TopologicalSorter(below).prepare()  # raises CycleError


def test_classes_and_sheets_stay_small():
    methods = {node.name: sum(map(is_function, node.body)) for node in CLASSES}
    assert max(methods.values()) <= MOST_METHODS, max(methods, key=methods.get)
    counts = {cls: len(cls().get_params(deep=False)) for cls in ESTIMATORS}
    assert max(n for cls, n in counts.items() if cls not in IMAGES) <= MOST_PARAMETERS
    assert max(counts.values()) <= MOST_PARAMETERS_OF_IMAGES
    made = [*ESTIMATORS, *OF_OTHERS, losses.LogLoss, losses.SquareLoss]
    distinct = {name for cls in made for name in inspect.signature(cls).parameters}
    assert len(distinct) <= DISTINCT_PARAMETERS
    assert max(len(cls.__mro__) for cls in ESTIMATORS) <= LONGEST_MRO


@pytest.mark.slow
def test_super_is_called_on_bases_that_have_the_method():
    for cls in CLASSES:
        known = {ast.unparse(base).split(".")[-1].split("[")[0] for base in cls.bases}
        calls = [n for n in ast.walk(cls) if isinstance(n, ast.Call) and is_super(n.func)]
        assert known or not calls, cls.name


def is_class(node):
    return isinstance(node, ast.ClassDef)


def is_function(node):
    return isinstance(node, ast.FunctionDef)


def is_super(node):
    return isinstance(node, ast.Name) and node.id == "super"


def test_types_are_said():
    text = "".join(SOURCES.values())
    assert "self: Any" not in text
    assert text.count("type: ignore") <= MOST_IGNORED
    assert " in repr(" not in text


def test_one_helper_finds_the_line_of_a_warning():
    counted = [path.name for path, source in SOURCES.items() if "stacklevel" in source]
    assert counted == ["messages.py"]


@pytest.mark.slow
def test_one_file_knows_kinds_of_devices():
    """Elsewhere nobody asks for CUDA; what is written for readers may name it."""
    found = {path.relative_to(ROOT).as_posix() for path in TREES if names_of_cuda(TREES[path])}
    assert found == {"data/devices.py"}


def names_of_cuda(tree):
    """Texts and attributes of code, but for docstrings, that have "cuda" in them."""
    nodes = list(ast.walk(tree))
    shown = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
    texts = [n for n in nodes if isinstance(n, ast.Constant) and id(n) not in shown]
    names = [n.value for n in texts if isinstance(n.value, str)]
    names += [n.attr for n in nodes if isinstance(n, ast.Attribute)]
    return [name for name in names if "cuda" in name.lower()]


def test_a_name_has_one_value():
    values, places = defaultdict(set), defaultdict(set)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (t.id for t in targets if isinstance(t, ast.Name) and t.id.isupper()):
                    values[name].add(ast.unparse(node.value))
            elif is_class(node):
                places[node.name].add(path)
    assert {name: found for name, found in values.items() if len(found) > 1} == {}
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


# ---- names and constructors --------------------------------------------------------------------


PUBLIC_MODULES = [
    "skgpstoch",
    "skgpstoch.dask",
    "skgpstoch.data",
    "skgpstoch.display",
    "skgpstoch.distributed",
    "skgpstoch.estimators.distributions",
    "skgpstoch.kernels",
    "skgpstoch.likelihoods",
    "skgpstoch.losses",
    "skgpstoch.metrics",
    "skgpstoch.onnx",
]


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_public_objects_say_where_they_are_imported_from(module):
    """Pickles name this path, so that files may be moved."""
    public = importlib.import_module(module)
    for name in public.__all__:
        value = getattr(public, name)
        named_by = value if hasattr(value, "__qualname__") else type(value)
        assert named_by.__module__ in PUBLIC_MODULES, name
        pickled = pickle.dumps(value)
        assert modules_of(pickled)
        assert modules_of(pickled) <= set(PUBLIC_MODULES), name
        assert type(pickle.loads(pickled)) is type(value)


def modules_of(pickled):
    """The modules of ours that a pickle names."""
    texts = [arg for _, arg, _ in pickletools.genops(pickled) if isinstance(arg, str)]
    return {text for text in texts if re.fullmatch(r"skgpstoch[\w.]*", text)}


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


@pytest.mark.parametrize("cls", [*FINITE, *NETWORKS, SPARSE_ONE], ids=named)
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

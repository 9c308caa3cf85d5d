"""Files that a stranger made by hand, with the right digest: refused, whatever they hold."""

import contextlib
import copy
import gc
import inspect
import json
import math
import pickle
import re
import sys
import time
import tracemalloc
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ESTIMATORS, constructor, fitted_once, named
from families import slow_cases
from made_by_hand import (
    Nodes,
    first,
    nodes_of,
    put_together,
    structure_of,
    taken_apart,
    with_attribute,
)
from sklearn.base import clone, is_classifier
from sklearn.gaussian_process import kernels as sk
from sklearn.linear_model import Ridge
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.utils._metadata_requests import MethodMetadataRequest
from torch import nn

import skgpstoch
from skgpstoch import (
    ADMMGaussianProcessRegressor,
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    ConstantVarianceRegressor,
    ConvolutionalGPRegressor,
    DeepGPRegressor,
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
    DLMRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    LogLoss,
    NNGPClassifier,
    NNGPRegressor,
    QSGPRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
    StackedDensityRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.data.arrays import Scaling
from skgpstoch.data.findings import Diagnosis, Finding
from skgpstoch.data.numeric import Dates, Numbers
from skgpstoch.data.tables import TableEncoder
from skgpstoch.data.target_means import TargetMeans
from skgpstoch.data.target_transforms import OnBranch
from skgpstoch.estimators.distributions.normal import NormalLaw
from skgpstoch.estimators.distributions.predictive import PredictiveDistribution
from skgpstoch.kernels import TiedKernel, from_sklearn
from skgpstoch.maths.nearest import Nearest
from skgpstoch.methods.automatic import rounded_targets
from skgpstoch.methods.automatic.class_process import ExactProcessClassifier
from skgpstoch.methods.automatic.process import ExactProcessRegressor
from skgpstoch.methods.automatic.report import Report
from skgpstoch.methods.automatic.rounded_targets import Lattice, LatticeLaw
from skgpstoch.methods.automatic.row_weights import RowWeights
from skgpstoch.methods.automatic.student_mixture import Tails
from skgpstoch.models.features.fourier import FourierTerm, base_frequencies
from skgpstoch.models.features.network import InputLimits, InputScales, PeriodicInputs
from skgpstoch.models.posteriors import base as posteriors
from skgpstoch.models.posteriors.nearby import ErrorScale, ErrorsNearby, Given
from skgpstoch.models.posteriors.neighbours import size_of_sets
from skgpstoch.persistence import failures, finite, limits, networks
from skgpstoch.persistence.fields import size_of
from skgpstoch.persistence.forms_of_values import timedelta_of, zone_of
from skgpstoch.persistence.layers import check_layer
from skgpstoch.persistence.registry import TORCH_LAYERS
from skgpstoch.persistence.state import Names, PackedState, Unpacker
from skgpstoch.persistence.tensor_file import table_of

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (30, 2))
Y = np.sin(X[:, 0])
SMALL = {"n_estimators": 2, "n_components": 20, "max_iter": 1, "random_state": 0}


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    kernel = 2.0 * sk.RBF([1.0, 2.0]) + sk.WhiteKernel(0.1)
    path = tmp_path_factory.mktemp("files") / "exact"
    state = np.random.RandomState(0)
    model = GaussianProcessRegressor(kernel, optimizer=None, random_state=state)
    model.fit(X, Y).save(path)
    skgpstoch.load(path)  # the first one imports much
    return path


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "sparse"
    transform = FunctionTransformer(np.log1p, np.expm1)
    model = SVGPRegressor(
        n_inducing=5, max_iter=2, random_state=0, target_transform=transform, early_stopping=False
    )
    model.fit(X, Y).save(path)
    return path


def refused(path, message):
    """Refused for this reason, in little time and memory."""
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(ValueError, match=message):
        skgpstoch.load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.perf_counter() - start < 20  # for ever, before
    assert peak < 4 * path.stat().st_size + 2**24


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Without a transform of the target, which has messages of its own."""
    path = tmp_path_factory.mktemp("files") / "plain"
    SVGPRegressor(n_inducing=5, max_iter=2, random_state=0).fit(X, Y).save(path)
    return path


def raised_by(function, *args):
    """What a function returns, or the ValueError that it raises."""
    try:
        return function(*args)
    except ValueError as error:
        return error


# ---- one row of the table of attacks after another -----------------------------------------------

STATE = {"key": 1, "pos": 2, "has_gauss": 3, "gauss": 4}
NO_STATES = {
    "position far away": ("pos", 10**8),
    "position behind": ("pos", 625),
    "position before": ("pos", -1),
    "position of no integer": ("pos", 3.0),
    "half a pair": ("has_gauss", 2),
    "text": ("gauss", "0.0"),
}


@pytest.mark.parametrize("how", NO_STATES)
def test_random_states_that_no_generator_has(how, exact, tmp_path):
    """NumPy reads wherever the position points to."""
    field, value = NO_STATES[how]
    metadata, tensors = taken_apart(exact)
    nodes = nodes_of(metadata)
    first(nodes, "random state")[STATE[field]] = value
    put_together(tmp_path / "model", {**metadata, "structure": structure_of(nodes)}, tensors)
    refused(tmp_path / "model", "random state has fields|not of the types")


def test_a_random_state_that_draws_zeros_for_ever(exact, tmp_path):
    """NumPy draws normal numbers until one is not at 0."""
    metadata, tensors = taken_apart(exact)
    key = next(a for a in tensors if a.shape == (624,))
    key[0], key[1:] = 5, 0
    put_together(tmp_path / "model", metadata, tensors)
    refused(tmp_path / "model", "random state has fields")


DEEP = {
    "a member of a set": lambda nodes: nodes.add("set", nodes.nested("tuple", 40_000)),
    "a list": lambda nodes: nodes.nested("list", 40_000),
    "a kernel": lambda nodes: nodes.nested("tuple", 300),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", DEEP)
@slow_cases("a list")
def test_nesting_has_an_end(how, exact, tmp_path):
    with_attribute(tmp_path / "model", exact, DEEP[how])
    refused(tmp_path / "model", "nested more than 200 deep|too many")


@pytest.mark.slow
def test_nesting_has_an_end_in_large_files(exact, tmp_path):
    """Which may have many values."""

    def make(nodes):
        nodes.tensors.append(np.zeros(4_000_000))
        return nodes.add("set", nodes.nested("tuple", 60_000))

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "nested more than 200 deep")


def in_form(form, *others, depth=45):
    return lambda nodes: nodes.add(form, nodes.doubled("tuple", depth), *others)


def as_class(form):
    return lambda nodes: nodes.add(form, nodes.doubled("tuple", 45), "a", 1)


DOUBLED = {
    "an attribute": lambda nodes: nodes.doubled("list", 45),
    "a member": in_form("set"),
    "a member of a frozen set": in_form("frozenset"),
    "a key": in_form("dict", 1),
    "an ordered key": in_form("ordered dict", 1),
    "a path": in_form("path"),
    "a word": in_form("float"),
    "a device": in_form("torch device"),
    "a type of tensors": in_form("torch type"),
    "a size": in_form("torch size"),
    "a ufunc": in_form("ufunc"),
    "a function": in_form("function"),
    "a type": in_form("type"),
    "a scalar": lambda nodes: nodes.add("scalar", "<f8", nodes.doubled("list", 24)),
    "a type of a scalar": in_form("scalar", 1.0, depth=24),
    "cells of a type": in_form("cells", 1, 1, 1, depth=24),
    "a shape of cells": lambda nodes: nodes.add("cells", "|O", nodes.doubled("tuple", 24), 1, 1),
    "an array": lambda nodes: nodes.add("array", nodes.doubled("tuple", 45), "<f8", "1", "0", ""),
    "a layout": lambda nodes: nodes.add("array", 0, nodes.doubled("tuple", 45), "1", "0", ""),
    "a tensor": in_form("tensor", None),
    "a parameter": in_form("parameter", True),
    "a time": in_form("timestamp", None),
    "a period": in_form("period", "M"),
    "an interval": lambda nodes: nodes.add("interval", *[nodes.doubled("tuple", 45)] * 2, "left"),
    **{f"a class of {form}": as_class(form) for form in ("object", "module", "record", "mapping")},
    "a class of a sequence": as_class("sequence"),
}


@pytest.mark.parametrize("how", DOUBLED)
def test_what_takes_ever_twice_as_long(how, exact, tmp_path):
    """To hash, to compare, to print or to copy: 2^45 steps, of a few kilobytes."""
    with_attribute(tmp_path / "model", exact, DOUBLED[how])
    refused(tmp_path / "model", "refer to each other too often|not of the types|is not a class|.")


@pytest.mark.parametrize("name", ["length_scale", "length_scale_bounds"])
def test_kernels_whose_attributes_take_for_ever_to_check(name, exact, tmp_path):
    metadata, tensors = taken_apart(exact)
    nodes = nodes_of(metadata)
    at = next(i for i, node in enumerate(nodes) if name in node)
    kernel, before, after = nodes[at], nodes[:at], nodes[at + 1 :]
    shift = 45

    def moved(part):
        return [part[0] + shift] if isinstance(part, list) and part[0] >= at else part

    chain = [["list", 0, 0], *(["list", *[[at + i]] * 2] for i in range(shift - 1))]
    kernel[kernel.index(name) + 1] = [at + shift - 1]
    nodes = [*before, *chain, kernel, *([n[0], *map(moved, n[1:])] for n in after)]
    put_together(tmp_path / "model", {**metadata, "structure": structure_of(nodes)}, tensors)
    refused(tmp_path / "model", "refer to each other too often")


ALIKE = {
    "integers": lambda i: i * (2**61 - 1) + 1,
    "negative": lambda i: -i * (2**61 - 1) - 3,
}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["set", "frozenset", "dict", "ordered dict"])
@pytest.mark.parametrize("kind", ALIKE)
@slow_cases("integers-(frozenset|ordered)", "negative")
def test_keys_of_equal_hashes(form, kind, exact, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MOST_SECONDS", 0.1)

    def make(nodes):
        nodes.tensors.append(np.zeros(600_000))  # there is room for them
        parts = [ALIKE[kind](i) for i in range(60_000)]
        return nodes.add(form, *([p for k in parts for p in (k, 0)] if "dict" in form else parts))

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "take very long to tell from each other")


def keys_in_each_others_places(n, size):
    """Return integers that a dict with so many places tries in turn before it finds a free one.

    Half of them fill the first places of the walk p → 5p + 1; the others step only on these.
    """
    at, walk, place = np.empty(size, np.int64), [], 0
    for k in range(size):
        at[place] = k
        walk.append(place)
        place = (5 * place + 1) % size
    found, rng = [], np.random.default_rng(0)
    while sum(map(len, found)) < n - n // 2:
        keys = rng.integers(size, 2**30, size=2**21)
        place, rest = keys % size, keys.copy()
        is_taken = at[place] < n // 2
        while rest.any():
            rest >>= 5
            place = (5 * place + rest + 1) % size
            is_taken &= at[place] < n // 2
        found.append(np.unique(keys[is_taken & (at[place] < n // 16)]))
    return [*walk[: n // 2], *np.unique(np.concatenate(found))[: n - n // 2].tolist()]


LETTERS = np.frombuffer("дом и сад".encode(), np.uint8)
TEXTS = np.full(16, 1, np.uint32)


@pytest.mark.parametrize(
    ("letters", "lengths", "message"),
    [
        (LETTERS[:9], TEXTS, "do not have as many letters"),
        (LETTERS, TEXTS, "is not valid"),  # which cuts letters in two
        (LETTERS, TEXTS.astype(np.uint64), "do not have as many letters"),
        (LETTERS.astype(np.int64), TEXTS, "is not a long tuple"),
        (np.ones((16, 1)), None, "is not a long tuple"),
        (np.ones(16, np.float32), None, "is not a long tuple"),
        (np.zeros(2**19 + 1, np.int64), None, "long tuples have more than"),
        (np.array([], np.uint8), np.zeros(2**19 + 1, np.uint32), "long tuples have more than"),
        (np.zeros(2**24 + 1, np.uint8), np.array([2**24 + 1], np.uint32), "a text of a long tuple"),
    ],
)
def test_long_tuples_that_are_none(letters, lengths, message, exact, tmp_path):
    def make(nodes):
        arrays = [None if a is None else nodes.add_array(a) for a in (letters, lengths)]
        return nodes.add("long tuple", *arrays)

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", message)


@pytest.mark.slow
def test_letters_that_take_more_than_the_file(exact, tmp_path):
    """One letter beyond U+FFFF makes all of a text take four bytes each."""
    text = np.frombuffer(("x" * 10**6 + "😀").encode(), np.uint8)

    def make(nodes):
        lengths = nodes.add_array(np.full(30, len(text), np.uint32))
        return nodes.add("long tuple", nodes.add_array(np.tile(text, 30)), lengths)

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "take far more memory than the file")


@pytest.mark.slow
def test_many_long_tuples(exact, tmp_path):
    def make(nodes):
        nodes.tensors.append(np.zeros(2**22))  # there is room for them
        arrays = [nodes.add_array(np.arange(2**18) + i) for i in range(3)]
        return nodes.add("list", *(nodes.add("long tuple", a, None) for a in arrays))

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "long tuples have more than")


@pytest.mark.parametrize("form", ["numbering", "level set", "frozen level set"])
def test_levels_that_are_none(form, exact, tmp_path):
    make = lambda nodes: nodes.add(form, nodes.add("tuple", *range(9)), False)  # noqa: E731
    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "must be a tuple of texts or numbers")


@pytest.mark.parametrize("form", ["numbering", "level set", "frozen level set"])
def test_levels_that_are_equal(form, exact, tmp_path):
    """Many small dicts of them would take long, but no memory."""

    def make(nodes):
        no_letters, lengths = np.array([], np.uint8), np.zeros(99, np.uint32)
        texts = nodes.add("long tuple", nodes.add_array(no_letters), nodes.add_array(lengths))
        return nodes.add(form, texts, False)

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "has the same key twice")


def shared_keys(nodes):
    levels = nodes.add("long tuple", nodes.add_array(np.arange(20_000)), None)
    return nodes.add("numbering", levels, False)


SHARED = {
    "an array with a range": (
        "StackedDensityRegressor",
        "weights_",
        lambda nodes: nodes.add_array(np.eye(1, 2**18)[0]),
    ),
    "a list of floats": (
        "SVGPRegressor",
        "estimators_",
        lambda nodes: nodes.add("floats", nodes.add_array(np.arange(20_000.0) + 0.1)),
    ),
    "keys": ("SVGPClassifier", "estimators_", shared_keys),
    "a text": (
        "SVGPClassifier",
        "feature_names_in_",
        lambda nodes: nodes.add("cells", "<U1000000", 1, 1, "a" * 10**6),
    ),
}


@pytest.mark.parametrize("what", SHARED)
def test_what_checks_of_many_objects_look_at(what, exact, tmp_path):
    cls, name, make = SHARED[what]

    def shared_by(n_objects):
        def objects(nodes):
            part, kind = make(nodes), nodes.add("type", cls)
            some = [nodes.add("object", kind, name, part) for _ in range(n_objects)]
            return nodes.add("list", *some)

        return objects

    with_attribute(tmp_path / "model", exact, shared_by(99))
    refused(tmp_path / "model", "share too much|refer to each other too often")
    with_attribute(tmp_path / "model", exact, shared_by(1))
    assert "share" not in str(raised_by(skgpstoch.load, tmp_path / "model"))


def test_long_texts_in_an_array_are_saved(exact, tmp_path):
    model = skgpstoch.load(exact)
    model.note_ = np.array([f"{i:0200d}" for i in range(5000)])
    model.save(tmp_path / "model")
    assert np.array_equal(skgpstoch.load(tmp_path / "model").note_, model.note_)


@pytest.mark.slow
def test_networks_that_many_modules_walk(exact, tmp_path):
    def make(nodes):
        nodes.tensors.append(np.zeros(2**21))  # there is room for them
        layers = [nodes.add("module", nodes.add("type", "nn.Identity")) for _ in range(1500)]
        pairs = [part for i, layer in enumerate(layers) for part in (str(i), layer)]
        inner = nodes.add("dict", *pairs)
        network = nodes.add("module", nodes.add("type", "nn.Sequential"), "_modules", inner)
        outer, cls = nodes.add("dict", "network", network), nodes.add("type", "NetworkFeatures")
        sizes = ("n_features", 2, "n_members", 1, "skip", 0)
        some = [nodes.add("module", cls, "_modules", outer, *sizes) for _ in range(99)]
        return nodes.add("list", *some)

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "share too much|refer to each other too often")


def test_sizes_whose_product_is_long(exact, tmp_path):
    def make(nodes):
        sizes = nodes.add("long tuple", nodes.add_array(np.full(200_000, 2**62)), None)
        return nodes.add("module", nodes.add("type", "ConstantMean"), "extra", sizes)

    with_attribute(tmp_path / "model", exact, make)
    begun = time.process_time()
    with contextlib.suppress(ValueError):
        skgpstoch.load(tmp_path / "model")
    assert time.process_time() - begun < 5.0  # exact, the product takes a minute


def test_nodes_that_are_no_parts(exact, tmp_path):
    metadata, tensors = taken_apart(exact)
    *nodes, whole = nodes_of(metadata)
    structure = json.dumps([*nodes, ["tuple", 1, 2], whole])
    put_together(tmp_path / "model", {**metadata, "structure": structure}, tensors)
    refused(tmp_path / "model", "is no part of another")


def long_tuple_of_letters(nodes):
    lengths = np.full(16, 2**16, np.uint32)
    lengths[0] += 1
    letters = nodes.add_array(np.full(2**20 + 1, 1, np.uint8))
    return nodes.add("long tuple", letters, nodes.add_array(lengths))


@pytest.mark.parametrize(
    "make",
    [
        long_tuple_of_letters,
        lambda nodes: "a" * (2**20 + 1),
        lambda nodes: nodes.nested("list", 100, nodes.add("list", "a" * (2**20 + 1))),
        lambda nodes: nodes.nested("list", 100, nodes.add("list", *[0.5] * (2**20 // 20 + 1))),
        lambda nodes: nodes.add("cells", "|O", 1, 2000, "a" * (2**20 + 1), *[""] * 1999),
    ],
)
def test_parameters_that_are_long_texts(make, exact, tmp_path):
    """`repr` and notebooks show them, with four letters for one that cannot be printed."""
    with_attribute(tmp_path / "model", exact, make, "random_state")
    refused(tmp_path / "model", "texts of its parameters have more than 1048576 letters")


def test_a_text_has_the_type_of_its_length(exact, tmp_path):
    """NumPy fills the rest with zeros, and looks for its end."""
    make = lambda nodes: nodes.add("scalar", "<U262000", "a")  # noqa: E731
    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "a scalar cannot have the type <U262000")
    with_attribute(tmp_path / "model", exact, lambda nodes: nodes.add("scalar", "<U2", "äb"))
    assert skgpstoch.load(tmp_path / "model").note_ == "äb"
    model = skgpstoch.load(tmp_path / "model")
    model.note_ = [np.str_(""), np.str_("a")]
    model.save(tmp_path / "again")
    assert skgpstoch.load(tmp_path / "again").note_ == model.note_


def test_lists_are_no_arrays(exact, tmp_path):
    """An array of texts takes as much for each as the longest does."""

    def make(nodes):
        texts = nodes.add("list", "a" * 10**5, *map(str, range(2000)))
        return nodes.add("object", nodes.add("type", "SVGPClassifier"), "classes_", texts)

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "SVGPClassifier.classes_ must be an array, or a number")


def test_parameters_that_have_learned_many_levels(exact, tmp_path):
    inner = skgpstoch.load(exact)
    inner.note_ = {f"a level of a category {i:07d}": i for i in range(40_000)}
    model = skgpstoch.ConstantVarianceRegressor(inner)
    model.save(tmp_path / "model")
    assert skgpstoch.load(tmp_path / "model").estimator.note_ == inner.note_


def test_numbers_of_levels_take_memory(exact, tmp_path, monkeypatch):
    """The integers of a dict that numbers its keys, which the file does not have."""
    monkeypatch.setattr(limits, "BYTES_OF_INTEGER", 10**7)

    def make(nodes):
        return nodes.add(
            "numbering", nodes.add("long tuple", nodes.add_array(np.arange(99)), None), False
        )

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "far more memory than the file")


def test_an_array_has_few_axes(exact, tmp_path):
    """The text of its shape was split into millions of numbers, 400 MB for a file of 14."""

    def make(nodes):
        nodes.tensors.append(np.zeros(1, "u1"))
        return nodes.add(
            "array", len(nodes.tensors) - 1, "|u1", ",".join(["10"] * 500_000), "0", ""
        )

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "an array has more than 6 axes")


def test_a_path_is_short(exact, tmp_path):
    """Pathlib keeps a text for each folder, of 14 MB of them 428 MB."""
    with_attribute(tmp_path / "model", exact, lambda nodes: nodes.add("path", "ab/" * 2000))
    refused(tmp_path / "model", "a path has more than 4096 letters")


def test_a_description_is_short(exact, tmp_path):
    """Most that takes long takes time or memory for each letter of it."""
    with_attribute(tmp_path / "model", exact, lambda nodes: nodes.add("list", "a" * 2**21))
    refused(tmp_path / "model", "does not start with the length of a header")
    model = skgpstoch.load(exact)
    model.note_ = "a" * 2**21
    with pytest.raises(ValueError, match="its description, with texts and lists that are no array"):
        model.save(tmp_path / "model")


def test_names_of_members_are_short(tmp_path):
    """They come before each parameter of all members within: 19 GB for a file of 1.5 MB."""
    inner = StackedDensityRegressor([("a", SVGPRegressor()), ("b", SVGPRegressor())])
    StackedDensityRegressor([("QQ", inner)]).save(tmp_path / "model")
    metadata, tensors = taken_apart(tmp_path / "model")
    metadata["structure"] = metadata["structure"].replace('"QQ"', f'"{"a" * 201}"')
    put_together(tmp_path / "model", metadata, tensors)
    refused(tmp_path / "model", "the name of an estimator has more than 200 letters")


def test_numbers_of_kernels_are_few(tmp_path):
    """Scikit-learn writes them out one by one: 10 s for a file of 14 MB."""
    GaussianProcessRegressor(sk.RBF(np.full(20, 1.5))).save(tmp_path / "model")
    metadata, tensors = taken_apart(tmp_path / "model")
    nodes = nodes_of(metadata)
    scales = next(n for n in nodes if n[0] == "array" and tensors[n[1]].shape == (20,))
    scales[3], tensors[scales[1]] = "60000", np.ones(60_000)
    put_together(tmp_path / "model", {**metadata, "structure": json.dumps(nodes)}, tensors)
    refused(tmp_path / "model", "the numbers of a kernel have more than 1048576 letters")


@pytest.mark.slow
def test_small_sets_that_take_long(exact, tmp_path, monkeypatch):
    """To compare two sets of equal hashes takes as long as to compare all their members."""
    monkeypatch.setattr(limits, "MOST_SECONDS", 0.1)

    def make(nodes):
        members = [ALIKE["integers"](i) for i in range(150)]
        keys = [nodes.add("frozenset", *members[:15], members[15 + i]) for i in range(120)]
        return nodes.add("list", *(nodes.add("set", *keys) for _ in range(60)))

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "take very long to tell from each other")


@pytest.mark.slow
def test_levels_that_take_long_to_tell_apart(exact, tmp_path):
    keys = np.array(keys_in_each_others_places(80_000, 2**17))

    def make(nodes):
        levels = nodes.add("long tuple", nodes.add_array(keys), None)
        return nodes.add("numbering", levels, False)

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "take very long to tell from each other")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [str, int, float])
@slow_cases("int", "float")
def test_many_levels_in_a_short_file(kind, exact, tmp_path):
    """As objects they take thirty times as much; a dict and a set of them are written once."""
    model = skgpstoch.load(exact)
    levels = [kind(10**9 + i) for i in range(270_000)]
    model.note_ = [{key: i for i, key in enumerate(levels)}, set(levels)]
    model.save(tmp_path / "model")
    assert skgpstoch.load(tmp_path / "model").note_ == model.note_


@pytest.mark.slow
def test_columns_of_the_same_levels(exact, tmp_path):
    """As the last items that customers bought: their texts are once in the file."""
    model = skgpstoch.load(exact)
    levels = [10**9 + 3 * i for i in range(22_000)]
    model.note_ = [[{key: i for i, key in enumerate(levels)}, set(levels)] for _ in range(12)]
    model.save(tmp_path / "model")
    assert skgpstoch.load(tmp_path / "model").note_ == model.note_


@pytest.mark.parametrize("keys", [range(9000), [float(2**70) * i for i in range(9000)]])
def test_keys_that_differ_are_quick(keys, exact, tmp_path):
    with_attribute(tmp_path / "model", exact, lambda nodes: nodes.add("set", *keys))
    assert skgpstoch.load(tmp_path / "model").note_ == set(keys)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<i8", "|u1"])
def test_floats_of_another_type(dtype, exact, tmp_path):
    """Each takes 32 bytes, instead of 2."""
    make = lambda nodes: nodes.add("floats", nodes.add_array(np.ones(3_000_000, dtype)))  # noqa: E731
    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "is not a list")


def test_too_many_floats(exact, tmp_path):
    make = lambda nodes: nodes.add("floats", nodes.add_array(np.ones(2**20 + 1)))  # noqa: E731
    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "is not a list")


def test_a_half_of_no_matrices(exact, tmp_path):
    """Which has no numbers, but very many rows."""

    def make(nodes):
        n = 10**8
        nodes.tensors.append(np.empty((0, n * (n + 1) // 2)))
        return nodes.add("array", len(nodes.tensors) - 1, "<f8", f"0,{n},{n}", "0,1,2", "lower")

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "which no saved estimator has")


TYPES = [
    "<U500000000",
    "<M8[0s]",
    "(9999,9999)<f8",
    "<f8,<f8",
    "V2000000000",
    "|O",
    "M8[",
    "<c16",
    "object",
]


@pytest.mark.parametrize("dtype", TYPES)
def test_types_of_scalars_that_are_none(dtype, exact, tmp_path):
    value = "a" if "U" in dtype else 1
    with_attribute(tmp_path / "model", exact, lambda nodes: nodes.add("scalar", dtype, value))
    refused(tmp_path / "model", "is not a type of these|cannot have the type")


def test_streams_begin_with_few_rows(tmp_path):
    """One more row began again with all of them: 20,000 took minutes."""
    model = SVGPRegressor(n_inducing=5, random_state=0).partial_fit(X[:10], Y[:10])
    model.save(tmp_path / "model")
    for _ in range(4):
        model._beginning = model._beginning.joined(model._beginning)
    with pytest.raises(ValueError, match="_beginning must be rows, and fewer than 160"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("edit", [{"weight": np.zeros(5)}, {"y_std": np.full((5, 1), -1.0)}])
def test_streams_begin_with_rows_that_count(edit, tmp_path):
    model = SVGPRegressor(n_inducing=5, random_state=0).partial_fit(X[:5], Y[:5])
    model.save(tmp_path / "model")
    model._beginning = replace(model._beginning, **edit)
    with pytest.raises(ValueError, match="_beginning has weights that are not positive, or neg"):
        model.save(tmp_path / "model")


def test_times_have_units(exact, tmp_path):
    """pandas raised a SystemError."""
    make = lambda nodes: nodes.add("timestamp", nodes.add("scalar", "<M8", 0), None)  # noqa: E731
    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "a time has no unit")


@pytest.mark.parametrize(
    "zone",
    ["dateutil//dev/stdin", "dateutil/A1", "../../etc/passwd", "/etc/passwd", "a/..", "America"],
)
def test_time_zones_are_no_paths(zone, exact, tmp_path):
    """Some would be opened."""
    make = lambda nodes: nodes.add("timestamp", nodes.add("scalar", "<M8[ns]", 0), zone)  # noqa: E731
    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "is not a time zone")


@pytest.mark.slow
def test_estimators_count_for_the_time_that_their_checks_take(exact, tmp_path):
    def make(nodes):
        kind = nodes.add("type", "sklearn.MinMaxScaler")
        return nodes.add("list", *(nodes.add("object", kind) for _ in range(20_000)))

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "far more memory than the file")


def test_networks_that_take_long_for_one_row(monkeypatch):
    """Torch takes 80 ms for each bicubic layer, on its device without numbers, too."""
    monkeypatch.setattr(networks, "SECONDS_OF_LAYER", -1.0)
    with pytest.raises(ValueError, match="or takes too long for a file of its size"):
        networks.Networks(1000).check_row(torch.nn.Sequential(torch.nn.Linear(2, 2)), 2)


def test_networks_of_a_file_share_the_time_for_a_row(monkeypatch):
    """Each had five seconds: a stack of six took 20 from a file of 180 kB."""
    clock = iter(range(1000))
    monkeypatch.setattr(networks.time, "thread_time", lambda: float(next(clock)))
    found, layers = networks.Networks(1000), torch.nn.Sequential(*[torch.nn.ReLU()] * 3)
    assert found.seconds_left == 5.0
    found.check_row(layers, 2)  # an operation of a second for each layer
    with pytest.raises(ValueError, match="or takes too long"):
        found.check_row(layers, 2)


def test_times_without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match="of pandas, which is not installed"):
        timedelta_of([np.timedelta64(1, "s")])


def test_estimators_of_ours_in_one_another(tmp_path):
    """Each names the part that failed, of all that it has."""
    model = SVGPRegressor()
    for _ in range(30):
        model = ConstantVarianceRegressor(model)
    with pytest.raises(ValueError, match="more than 8 estimators are in one another"):
        model.save(tmp_path / "model")


def test_each_time_zone_is_read_once(exact, tmp_path):
    """The system has some 600, which take milliseconds each."""
    zones = [f"UTC+00:{i:02}" for i in range(1, 40)]

    def make(nodes):
        when = nodes.add("scalar", "<M8[ns]", 0)
        return nodes.add("list", *(nodes.add("timestamp", when, zone) for zone in zones * 3))

    with_attribute(tmp_path / "model", exact, make)
    before = zone_of.cache_info().misses
    skgpstoch.load(tmp_path / "model")
    assert zone_of.cache_info().misses <= before + len(zones)


@pytest.mark.slow
def test_classes_are_no_functions(sparse, tmp_path):
    """A transformer would call them."""
    metadata, tensors = taken_apart(sparse)
    nodes = nodes_of(metadata)
    first(nodes, "ufunc")[:] = ["type", "nn.Linear"]
    put_together(tmp_path / "model", {**metadata, "structure": structure_of(nodes)}, tensors)
    refused(tmp_path / "model", "a class of objects cannot be a value")


@pytest.mark.slow
def test_small_objects_are_counted(exact, tmp_path):
    """A generator takes far more memory than its node."""

    def make(nodes):
        key = nodes.add_array(np.arange(624, dtype=np.uint32))
        states = [nodes.add("random state", key, 0, 0, 0.0) for _ in range(9000)]
        return nodes.add("list", *states)

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "far more memory|too many")


def test_letters_that_are_none(exact, tmp_path):
    """A letter from outside makes all others of a text take four bytes."""
    data = exact.read_bytes()
    (tmp_path / "model").write_bytes(data.replace(b'"GaussianProcess', '"Gaussian😀'.encode(), 1))
    refused(tmp_path / "model", "header is not printable ASCII")


# ---- numbers that are not finite -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["exact", "sparse"])
@slow_cases("sparse-.*inf")
def test_arrays_must_be_finite(name, value, request, tmp_path):
    """With the name of the attribute; what is not refused decides no prediction."""
    path, n_refused = request.getfixturevalue(name), 0
    metadata, tensors = taken_apart(path)
    model = skgpstoch.load(path)
    for i, a in enumerate(tensors):
        if a.dtype.kind != "f" or not a.size:
            continue
        edited = [b.copy() for b in tensors]
        edited[i].flat[-1] = value
        put_together(tmp_path / "model", dict(metadata), edited)
        found = raised_by(skgpstoch.load, tmp_path / "model")
        if isinstance(found, ValueError):
            n_refused += 1
            assert "is not finite: it is" in str(found)
            assert ("is NaN" in str(found)) == np.isnan(value)
        else:
            np.testing.assert_array_equal(
                found.predict(X, return_std=True), model.predict(X, return_std=True)
            )
    assert n_refused > 3


def test_an_attribute_that_is_not_finite_has_its_name(exact, tmp_path):
    metadata, tensors = taken_apart(exact)
    nodes = nodes_of(metadata)
    whole = nodes[-1]
    (number,) = whole[whole.index("alpha_") + 1]
    tensors[nodes[number][1]].flat[0] = np.nan
    put_together(tmp_path / "model", metadata, tensors)
    refused(tmp_path / "model", r"GaussianProcessRegressor\.alpha_ is not finite: it is NaN")


def test_a_weight_that_is_not_finite_has_its_name(sparse, tmp_path):
    model = skgpstoch.load(sparse)
    name, weight = next(iter(model.posterior_.named_parameters()))
    weight.data.fill_(np.inf)
    with pytest.raises(ValueError, match=rf"{name.rpartition('.')[2]} is not finite: it is inf"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("text", ["1e999", "-1e999"])
def test_numbers_that_python_takes_for_infinite(text, exact, tmp_path):
    metadata, tensors = taken_apart(exact)
    metadata["structure"] = metadata["structure"].replace('["list",1.0,', f'["list",{text},', 1)
    put_together(tmp_path / "model", metadata, tensors)
    refused(tmp_path / "model", "a part must be a finite number")


def test_what_people_read_need_not_be_finite(sparse, tmp_path):
    model = skgpstoch.load(sparse)
    model.loss_curve_ = [float("nan")] * 30
    model.scores_ = {"a": -np.inf}
    model.save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model")
    assert np.isnan(again.loss_curve_).all()
    assert again.scores_ == model.scores_


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_unbounded_may_be_infinite(value, tmp_path):
    kernel = sk.Matern(nu=value)
    model = GaussianProcessRegressor(kernel, optimizer=None)
    if np.isnan(value):
        with pytest.raises(ValueError, match=r"Matern\.nu is not finite: it is NaN"):
            model.save(tmp_path / "model")
    else:
        model.save(tmp_path / "model")
        assert skgpstoch.load(tmp_path / "model").kernel == kernel


def test_kernels_of_zero_are_saved(tmp_path):
    """Their logarithms are infinite."""
    kernel = sk.DotProduct(0.0, "fixed") + sk.ConstantKernel(0.0, "fixed") * sk.RBF()
    model = SVGPRegressor(kernel, n_inducing=3, max_iter=1, random_state=0).fit(X, Y)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(skgpstoch.load(tmp_path / "model").predict(X), model.predict(X))


def test_pickles_have_no_limits():
    """Only what a stranger may have written has them."""
    nodes = [["tuple", 0], *[["tuple", [i]] for i in range(400)]]
    value = Unpacker(Names()).value(PackedState(json.dumps(nodes), [], []))
    assert json.dumps(value).count("[") == 401
    with pytest.raises(ValueError, match="nested"):
        Unpacker(Names(), limits.FileLimits(10**6, 10**4)).value(
            PackedState(json.dumps(nodes), [], [])
        )


def test_pickles_hash_no_endless_keys():
    """skops restores a state as pickle does, and its files may be from a stranger."""
    deep = [["tuple", 0], *[["tuple", [i]] for i in range(1000)]]
    wide = [["tuple", 0], *[["tuple", [i], [i]] for i in range(60)]]
    for nodes in (deep, wide):
        for key in (["set", [len(nodes) - 1]], ["dict", [len(nodes) - 1], 0]):
            state = PackedState(json.dumps([*nodes, key]), [], [])._asdict()
            with pytest.raises(ValueError, match="a key of a set or dict has too many parts"):
                SVGPRegressor().__setstate__(state)


def test_pickles_name_no_module_to_import():
    state = SVGPRegressor().__getstate__()
    *nodes, root = json.loads(state["structure"])
    state["structure"] = json.dumps(
        [*nodes, ["type", "str"], [*root, "__reduce_ex__", [len(nodes)]]]
    )
    with pytest.raises(ValueError, match="cannot have an attribute '__reduce_ex__'"):
        SVGPRegressor().__setstate__(state)


# ---- what a later attack found -------------------------------------------------------------------


def with_nodes_first(path, to, nodes, arrays=()):
    """A file with further nodes before its own."""
    metadata, tensors = taken_apart(path)
    moved = [moved_by(node, len(nodes), len(arrays)) for node in nodes_of(metadata)]
    structure = structure_of([*nodes, *moved])
    put_together(to, {**metadata, "structure": structure}, [*arrays, *tensors])


def moved_by(node, n_nodes, n_arrays):
    form, *parts = node
    if form == "array":
        return [form, parts[0] + n_arrays, *parts[1:]]
    return [form, *([p[0] + n_nodes] if isinstance(p, list) else p for p in parts)]


def test_an_array_is_the_memory_of_one_tensor(exact, tmp_path):
    """Each of many tensors would be looked through."""
    half = [["array", 0, "<i2", "1000000", "0", ""]] + [["tensor", [0], "bfloat16"]] * 3000
    with_nodes_first(exact, tmp_path / "model", half, [np.ones(10**6, "<i2")])
    refused(tmp_path / "model", "two tensors have the memory of one array")


def test_a_tensor_of_many_parameters_is_looked_through_once(exact, tmp_path, monkeypatch):
    n = 10**3
    nodes = [["array", 0, "<i2", f"{n}", "0", ""], ["tensor", [0], "bfloat16"]]
    calls, of_bits = [], finite.unknown_halves
    monkeypatch.setattr(finite, "unknown_halves", lambda a: calls.append(1) or of_bits(a))
    nodes += [["parameter", [1], True]] * 200
    with_nodes_first(exact, tmp_path / "model", nodes, [np.ones(n, "<i2")])
    skgpstoch.load(tmp_path / "model")
    assert len(calls) == 1


def test_modules_of_one_dict_count_its_entries(exact, tmp_path):
    """Each module would go through all of them."""
    entries = [part for i in range(5000) for part in (f"a{i}", None)]
    nodes = [["type", "ConstantMean"], ["dict", *entries]]
    nodes += [["module", [0], "_buffers", [1]]] * 600
    with_nodes_first(exact, tmp_path / "model", nodes, [np.zeros(10**6)])
    refused(tmp_path / "model", "far more memory than the file")


LONG = "a" * 10**6
WORDY = [["type", LONG], ["function", LONG], ["torch device", LONG], ["float", LONG]]
WORDY += [["type", f"own.{LONG}"], ["array", 0, "<f8", "1," * 10**6 + "1", "0", ""]]


@pytest.mark.parametrize(
    "node", [*WORDY, ["ufunc", LONG], ["torch type", LONG]], ids=lambda n: n[0]
)
def test_messages_are_short(node, exact, tmp_path):
    with_nodes_first(exact, tmp_path / "model", [node])
    with pytest.raises(ValueError, match="cannot be loaded") as refusal:
        skgpstoch.load(tmp_path / "model")
    assert len(str(refusal.value)) < 6000


@pytest.mark.parametrize(
    "node", [["scalar", "<f16", 1.0], ["cells", "<U500000000", 1, 0]], ids=["long", "wide"]
)
def test_types_that_no_model_has(node, exact, tmp_path):
    with_nodes_first(exact, tmp_path / "model", [node])
    refused(tmp_path / "model", "cannot have the type")


def test_numbers_for_people_do_not_hide_others(sparse, tmp_path):
    """The mean becomes a buffer beside a loss, which may be NaN."""
    metadata, tensors = taken_apart(sparse)
    nodes = nodes_of(metadata)
    mean = next(n for n in nodes if n[0] == "module" and nodes[n[1][0]] == ["type", "ConstantMean"])
    of_parameters = nodes[mean[mean.index("_parameters") + 1][0]]
    tensor = nodes[of_parameters[2][0]][1]
    tensors[nodes[nodes[tensor[0]][1][0]][1]][...] = np.nan
    mean[mean.index("_parameters")] = "_buffers"
    of_parameters[1:] = ["loss", tensor, "value", tensor]
    put_together(tmp_path / "model", {**metadata, "structure": structure_of(nodes)}, tensors)
    refused(tmp_path / "model", "ConstantMean.(value is not finite|loss has arrays)")


def test_a_pipeline_has_no_folder_to_load_results_from(tmp_path):
    """From which `fit` would unpickle what anybody has put there."""
    steps = [("log", FunctionTransformer(np.log1p, np.expm1))]
    transform = Pipeline(steps, memory=str(tmp_path / "results"))
    model = SVGPRegressor(target_transform=transform)
    with pytest.raises(ValueError, match="Pipeline has memory"):
        model.save(tmp_path / "model")


def one_number(state):
    state["state"][0]["exp_avg"] = torch.zeros(1)


def of_another(state):
    numbers = state["param_groups"][-1]["params"]
    state["param_groups"][-1]["params"] = numbers[1:] + numbers[:1]


@pytest.mark.parametrize("change", [one_number, of_another])
def test_moments_of_streams_have_the_shapes_of_parameters(change):
    """Torch would write beyond them."""
    kernel = 2.0 * sk.RBF([1.0, 2.0])
    model = SVGPRegressor(kernel, n_inducing=5, random_state=0).partial_fit(X, Y)
    change(model._stream.optimizer)
    with pytest.raises(ValueError, match="optimiser's state does not belong to this model"):
        model.partial_fit(X, Y)


@pytest.mark.slow
def test_numbers_for_people_are_not_looked_at_for_ever(exact, tmp_path):
    """Each list would know of 200, at another place."""

    def make(nodes):
        nodes.tensors.append(np.zeros(600_000))  # there is room for them
        unknown = nodes.add("list", *[nodes.add("float", "nan")] * 200)
        return nodes.add("list", *(nodes.add("list", unknown) for _ in range(4000)))

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "far more memory than the file")


def test_labels_do_not_write_out_long_keys():
    """Each number that is not finite has one."""
    key = "\x7f" * 10**6
    tracemalloc.start()
    found = limits.label("dict", [key, [0]], 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.startswith("['\\x7f")
    assert peak < 10**4


def test_time_zones_are_short(exact, tmp_path):
    zone = "a" + "/a" * 10**6
    make = lambda nodes: nodes.add("timestamp", nodes.add("scalar", "<M8[ns]", 0), zone)  # noqa: E731
    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "is not a time zone")


def test_many_classes_of_ones_own_make_no_long_message(exact, tmp_path):
    metadata, tensors = taken_apart(exact)
    structure = json.dumps([f"own.a{i}" for i in range(30_000)])
    put_together(tmp_path / "model", {**metadata, "structure": structure}, tensors)
    with pytest.raises(ValueError, match="which a file cannot contain") as refusal:
        skgpstoch.load(tmp_path / "model")
    assert len(str(refusal.value)) < 2000


def test_parameters_repeat_no_array(exact, tmp_path):
    """`clone` copies it each time."""
    metadata, tensors = taken_apart(exact)
    *nodes, whole = nodes_of(metadata)
    nodes = Nodes(nodes, tensors)
    a = nodes.add_array(np.ones(10**4))
    scaling = nodes.add("record", nodes.add("type", "Scaling"), "offset", a, "scale", a)
    whole[whole.index("alpha") + 1] = nodes.add("list", *[scaling] * 4000)
    put_together(
        tmp_path / "model", {**metadata, "structure": structure_of([*nodes, whole])}, nodes.tensors
    )
    refused(tmp_path / "model", "the parts of 'alpha' repeat too often")


ATTRIBUTES = ["predict", "get_params", "__reduce_ex__", "__module__", "__class__", "_repr_html_"]
RULES = ["_parameter_constraints", "_shape_parameters"]  # without which any parameter goes


@pytest.mark.parametrize(
    "name", [*ATTRIBUTES, *RULES, "__doc_link_template", "__array_interface__"]
)
def test_attributes_do_not_hide_methods(name, exact, tmp_path):
    """Pickle would import a module of the file's choice; a notebook would show the file's HTML."""
    with_attribute(tmp_path / "model", exact, lambda nodes: nodes.add("type", "str"), name)
    refused(tmp_path / "model", f"GaussianProcessRegressor cannot have an attribute '{name}'")


@pytest.mark.parametrize("name", ["__array_interface__", "__reduce_ex__"])
def test_nor_do_keys_of_mappings(name, exact, tmp_path):
    make = lambda nodes: nodes.add("mapping", nodes.add("type", "sklearn.Bunch"), name, "text")  # noqa: E731
    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", f"Bunch cannot have an attribute '{name}'")


WRONG = {"limit": None, "name": 3, "severity": 0.5}


@pytest.mark.parametrize("name", WRONG)
def test_fields_have_the_types_that_their_class_declares(name, plain, tmp_path):
    """Else a table of findings cannot be shown."""

    def change(nodes, tensors):
        finding = next(n for n in nodes if n[0] == "record" and "severity" in n)
        finding[finding.index(name) + 1] = WRONG[name]

    with pytest.raises(ValueError, match=rf"Finding\.{name} is a \w+, which it cannot be"):
        edited(plain, tmp_path / "model", change)


@pytest.mark.parametrize(
    "names", [["cells", "|O", 0, "a"], ["cells", "|O", 1, 2, "a", 1.0]], ids=str
)
def test_names_of_columns_are_texts(names, exact, tmp_path):
    """Else scikit-learn says what NumPy does, when it sorts or counts them."""
    make = lambda nodes: nodes.add(*names)  # noqa: E731
    with_attribute(tmp_path / "model", exact, make, "feature_names_in_")
    refused(tmp_path / "model", r"feature_names_in_ must be an array of texts")


def test_the_number_of_columns_is_one(exact, tmp_path):
    model = skgpstoch.load(exact)
    model.n_features_in_ = np.arange(2)
    with pytest.raises(ValueError, match=r"n_features_in_ is an array of int64"):
        model.save(tmp_path / "model")
    model.n_features_in_ = 2**40
    with pytest.raises(
        ValueError, match=r"n_features_in_ is 1099511627776, but its X_train_ has 2"
    ):
        model.save(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_nor_are_there_others_in_a_table(tmp_path):
    """A graph would take rows of others."""
    model = AutoGaussianProcessClassifier(max_time=1, random_state=0).fit(X, Y > 0.0)
    model.n_features_in_ = 1
    with pytest.raises(ValueError, match=r"n_features_in_ is 1, but its _encoder has 2 columns"):
        model.save(tmp_path / "model")


def test_kernels_have_all_their_parameters(exact, tmp_path):
    """Without one, scikit-learn can neither clone nor show them."""

    def change(nodes, tensors):
        kernel = next(n for n in nodes if n[0] == "object" and "length_scale" in n)
        at = kernel.index("length_scale")
        del kernel[at : at + 2]

    with pytest.raises(ValueError, match="RBF lacks its parameter 'length_scale'"):
        edited(exact, tmp_path / "model", change)


@pytest.mark.parametrize("size", [2**40, 2**63, -(2**63)])
def test_layers_are_not_huge(size, exact, tmp_path):
    """MaxPool1d does not return, nor listen to Ctrl-C."""

    def make(nodes):
        fields = {"kernel_size": size, "stride": 1, "padding": 0, "dilation": 1}
        parts = (part for field in fields.items() for part in field)
        return nodes.add("module", nodes.add("type", "nn.MaxPool1d"), *parts)

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "MaxPool1d.kernel_size is larger than")


LARGE = {
    "pooling along two axes": [
        torch.nn.AdaptiveAvgPool1d(8192),
        torch.nn.Unflatten(1, (8192, 1)),
        torch.nn.AdaptiveAvgPool1d(8192),
        torch.nn.AdaptiveAvgPool1d(1),
        torch.nn.Flatten(1),
    ],
    "a factor": [torch.nn.Unflatten(1, (1, 2)), torch.nn.Upsample(scale_factor=3e7)],
    "many times": [torch.nn.AdaptiveAvgPool1d(8192), torch.nn.AdaptiveAvgPool1d(3)] * 200,
    "windows": [torch.nn.AdaptiveAvgPool1d(8192), torch.nn.AvgPool1d(4096, stride=1)],
    "copies": [
        torch.nn.Unflatten(1, (1, 2)),
        torch.nn.AdaptiveAvgPool1d(8192),
        torch.nn.Conv1d(1, 1, 4096),
        torch.nn.Flatten(1),
    ],
}


def with_inner(first=(), last=()):
    """A model whose network has further layers, which nobody checked when it was fitted."""
    network = torch.nn.Sequential(torch.nn.Unflatten(1, (2, 1)), torch.nn.Flatten(1))
    model = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0, feature_map=network).fit(X, Y)
    inner = next(
        p for p in model.posterior_.modules() if isinstance(p, torch.nn.Sequential) and len(p)
    )
    layers = [*first, *inner, *last]
    inner._modules.clear()
    inner.extend(layers)
    return model, inner


@pytest.mark.parametrize("layers", LARGE)
def test_networks_do_not_make_gigabytes_of_a_row(layers, tmp_path):
    """Each layer may be modest."""
    model, _ = with_inner(last=[*LARGE[layers], torch.nn.AdaptiveAvgPool1d(2)])
    with pytest.raises(ValueError, match="its network makes more than 131072 numbers of a row"):
        model.save(tmp_path / "model")


OF_OTHER_ROWS = {
    "BatchNorm1d without running": [nn.BatchNorm1d(2, affine=False, track_running_stats=False)],
    "Softmax along axis 0,": [nn.Softmax(0)],
    "Softmax along axis -2,": [nn.Softmax(-2)],
    "LogSoftmax along axis None": [nn.Unflatten(1, (2, 1)), nn.LogSoftmax(None), nn.Flatten()],
    "Unflatten along axis 0": [nn.Unflatten(0, (1, -1)), nn.AvgPool2d((3, 1), 1, (1, 0))],
    "Flatten along axis -3": [nn.Unflatten(1, (2, 1)), nn.Flatten(-3, -2)],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("said", OF_OTHER_ROWS)
def test_networks_look_at_no_other_rows(said, tmp_path):
    """Not even in few layers, through which no row has to go."""
    network = nn.Sequential(nn.Linear(2, 2))
    model = SVGPRegressor(feature_map=network, n_inducing=5, max_iter=1, random_state=0)
    model.fit(X, Y).save(tmp_path / "model")
    own = model.posterior_.model.features.network
    own.extend(OF_OTHER_ROWS[said]).eval()
    with pytest.raises(ValueError, match=f"has a {said}.* depend on other rows"):
        model.save(tmp_path / "model")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "layers", [[nn.Softmax(1), nn.GLU()], [nn.Unflatten(1, (1, 2)), nn.Flatten()]]
)
def test_networks_along_columns_are_saved(layers, tmp_path):
    network = nn.Sequential(nn.Linear(2, 2), *layers)
    model = SVGPRegressor(feature_map=network, n_inducing=5, max_iter=1, random_state=0).fit(X, Y)
    model.save(tmp_path / "model")
    assert np.array_equal(skgpstoch.load(tmp_path / "model").predict(X), model.predict(X))


@pytest.mark.parametrize("part", ["member", "model", "both"])
def test_members_have_the_likelihood_of_the_mixture(part, tmp_path):
    """Predictions and the graph differed, and counts were negative."""
    small = {"n_estimators": 2, "max_iter": 1, "hidden_layer_sizes": (4,), "random_state": 0}
    other = DeepKernelEnsembleRegressor(**small).fit(X, Y).posterior_.members[0].likelihood
    model = DeepKernelEnsembleRegressor(likelihood="poisson", **small).fit(X, np.arange(len(X)))
    posterior = model.posterior_.members[1]
    changed = {
        "member": [posterior],
        "model": [posterior.model],
        "both": [posterior, posterior.model],
    }
    for each in changed[part]:
        each.likelihood = other
    with pytest.raises(ValueError, match=r"has the likelihood .*, but a part of it"):
        model.save(tmp_path / "model")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layer", [nn.AvgPool2d((3, 1), 1, (1, 0)), nn.GLU(1), nn.LayerNorm(2)])
def test_networks_of_members_look_at_no_other_rows(layer, tmp_path):
    """Their first axis is that of members."""
    model = DeepKernelEnsembleRegressor(n_estimators=2, max_iter=1, random_state=0).fit(X, Y)
    model.posterior_.model.features.network.append(layer)
    name = type(layer).__name__
    with pytest.raises(ValueError, match=f"networks of several members cannot have a {name}"):
        model.save(tmp_path / "model")


FAILING = {
    "five rows": [nn.LayerNorm((5, 2), elementwise_affine=False), nn.AdaptiveAvgPool1d(2)],
}


@pytest.mark.parametrize("layers", FAILING)
def test_networks_take_a_single_row(layers, tmp_path):
    """Else nobody knows how much they make of five."""
    model, _ = with_inner(first=FAILING[layers])
    with pytest.raises(ValueError, match="its network cannot take one row: "):
        model.save(tmp_path / "model")


def test_networks_that_are_shared_take_one_row(tmp_path, monkeypatch):
    """Torch takes a millisecond for a layer, and a file may hold thousands of estimators."""
    model, _ = with_inner()
    rows, of_row = [], networks.Networks.check_row
    counted = lambda *args: rows.append(1) or of_row(*args)  # noqa: E731
    monkeypatch.setattr(networks.Networks, "check_row", counted)
    model.note_ = [copy.copy(model) for _ in range(20)]
    model.save(tmp_path / "model")
    assert len(rows) == 1
    model.note_[1]._x_scaling = Scaling(np.zeros(3), np.ones(3))
    model.note_[1].n_features_in_ = 3
    model.note_[1]._x_spread = None
    with pytest.raises(ValueError, match="a network has rows of 2 columns, and of 3"):
        model.save(tmp_path / "model")


def test_networks_have_few_layers(tmp_path):
    model, _ = with_inner(last=[torch.nn.Hardswish()] * 530)
    with pytest.raises(ValueError, match="its networks have too many layers for so small a file"):
        model.save(tmp_path / "model")


def test_networks_are_of_layers_for_networks(tmp_path):
    """A deep process in one would draw each row again and again."""
    model, inner = with_inner()
    inner.append(InputLimits(torch.ones(3, 2)))
    model.save(tmp_path / "model")
    inner.append(model.posterior_.model.features.covariances)
    with pytest.raises(ValueError, match="a network cannot have layers of the class Constant"):
        model.save(tmp_path / "model")


def test_networks_are_in_estimators_that_scale_columns(tmp_path):
    """Else nobody knows how many a row has."""
    model, _ = with_inner()
    del model._x_scaling
    model.inside_a_list_ = [(model.__dict__.pop("posterior_"),)]
    with pytest.raises(ValueError, match="an estimator has networks, but no scaling"):
        model.save(tmp_path / "model")


CHANGES = {
    "lacks an argument": lambda layer: delattr(layer, "kernel_size"),
    "another shape": lambda layer: setattr(layer, "weight", torch.nn.Parameter(torch.ones(2, 3))),
    "integers": lambda layer: layer._parameters.update(
        bias=torch.nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)
    ),
    "more parameters": lambda layer: layer._parameters.update({"a.b": layer.bias}),
    "more layers": lambda layer: layer.add_module("inner", torch.nn.ReLU()),
    "another attribute": lambda layer: setattr(layer, "tag", 3),
    "attributes that do not follow": lambda layer: setattr(layer, "transposed", True),
    "a list of lists": lambda layer: setattr(layer, "stride", [[1]]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_layers_of_torch_are_as_their_constructors_make_them(change, tmp_path):
    model = SVGPRegressor(feature_map=torch.nn.Sequential(torch.nn.Conv1d(2, 2, 1)))
    model.save(tmp_path / "model")
    CHANGES[change](model.feature_map[0])
    with pytest.raises(
        ValueError, match=r"Conv1d(\.\w+ is not as torch| has attr| cannot have an)"
    ):
        model.save(tmp_path / "model")


def test_names_of_parameters_have_no_dots(tmp_path):
    """Else the network's one row would fail before its first layer."""
    model, inner = with_inner()
    inner._parameters["a.b"] = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match=r"Sequential\._parameters is not as torch makes it"):
        model.save(tmp_path / "model")


HONEST = [
    *(torch.nn.Linear(3, 4), torch.nn.Linear(3, 4, bias=False).double().eval()),
    *(torch.nn.Bilinear(2, 3, 4), torch.nn.Embedding(4, 3, padding_idx=1, max_norm=1.0)),
    torch.nn.Conv1d(2, 3, 3, padding="same", padding_mode="circular"),
    torch.nn.Conv2d(2, 4, (3, 2), padding=1, groups=2, bias=False),
    *(torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3, affine=False, momentum=None)),
    *(torch.nn.BatchNorm2d(3), torch.nn.InstanceNorm1d(3, affine=True), torch.nn.InstanceNorm2d(3)),
    *(torch.nn.LayerNorm(3), torch.nn.LayerNorm((3, 2), bias=False), torch.nn.GroupNorm(2, 4)),
    *(torch.nn.RMSNorm(3), torch.nn.RMSNorm((3, 2), eps=1e-6, elementwise_affine=False)),
    *(torch.nn.LayerNorm(3, elementwise_affine=False), torch.nn.GroupNorm(2, 4, affine=False)),
    *(torch.nn.AdaptiveAvgPool1d(3), torch.nn.AdaptiveAvgPool2d((3, None))),
    *(torch.nn.AdaptiveMaxPool1d(3, True), torch.nn.AdaptiveMaxPool2d(2)),
    *(torch.nn.AvgPool1d(3), torch.nn.AvgPool2d(3, 2, 1, divisor_override=2)),
    *(torch.nn.MaxPool1d(3, 2), torch.nn.MaxPool2d((3, 2), ceil_mode=True)),
    *(torch.nn.Upsample(3), torch.nn.Upsample(scale_factor=(2, 3), mode="bilinear")),
    *(torch.nn.Unflatten(1, (2, -1)), torch.nn.Flatten(0, -2), torch.nn.Identity(3, a=4)),
    *(torch.nn.Hardtanh(-math.inf, 1), torch.nn.ReLU6(), torch.nn.Threshold(0.1, 20)),
    *(torch.nn.LeakyReLU(0.3, True), torch.nn.PReLU(3, 0.1), torch.nn.Softmax(1)),
    *(torch.nn.ModuleList([torch.nn.ReLU()]), torch.nn.ModuleDict({"a": torch.nn.ReLU()})),
    *(torch.nn.ParameterList([torch.ones(2)]), torch.nn.ParameterDict({"a": torch.ones(2)})),
    torch.nn.Sequential(OrderedDict(a=torch.nn.GELU("tanh"), b=torch.nn.Sequential())),
]


def test_layers_that_constructors_make_are_sound():
    plain = {cls() for cls in TORCH_LAYERS.difference(map(type, HONEST))}
    before = torch.random.get_rng_state()
    for layer in (*HONEST, *plain):
        check_layer(layer)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_fields_of_later_versions_of_torch_are_added():
    layer = torch.nn.PReLU()
    del layer.init
    check_layer(layer)
    assert layer.init == 0.25


def test_layers_of_members_do_not_repeat_inputs():
    """One factor of many inputs, for each of many members, makes members times inputs."""
    generator, X = torch.Generator().manual_seed(0), torch.ones(5, 3)
    columns = torch.arange(1)
    periodic = PeriodicInputs(2, 1, 4, columns, 1, generator)  # sees all inputs, which are one
    for layer in (InputScales(2, 1, generator), periodic):
        assert layer(X[:, :1]).shape[:2] == (2, 5)
        with pytest.raises(RuntimeError, match="expand"):
            layer(X)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kernel", "likelihood"])
def test_parts_of_models_are_what_their_names_say(name, tmp_path):
    model = NNGPRegressor(max_iter=1, random_state=0).fit(X, Y)
    other = model.posterior_.likelihood if name == "kernel" else model.posterior_.kernel
    setattr(model.posterior_, name, other)
    with pytest.raises(ValueError, match=rf"NeighbourPosterior\.{name} cannot be a \w+"):
        model.save(tmp_path / "model")


def test_so_are_those_of_records(tmp_path):
    model = ExactProcessClassifier(kernels=["rbf"], random_state=0).fit(X, Y > 0.0)
    model._processes = [model._processes[0]._replace(kernel=None)]
    with pytest.raises(ValueError, match=r"FittedProcess\.kernel is a NoneType, which it cannot"):
        model.save(tmp_path / "model")


# ---- deep processes, which repeat each row -------------------------------------------------------


@pytest.fixture
def deep():
    return DeepGPRegressor(n_inducing=4, max_iter=1, random_state=0).fit(X, Y)


def test_layers_of_deep_processes_have_no_networks(deep, tmp_path):
    """They would make much of each draw."""
    deep.posterior_.model.features.last.network = torch.nn.Sequential(torch.nn.Tanh())
    with pytest.raises(ValueError, match="a deep process has a InducingFeatures with layers"):
        deep.save(tmp_path / "model")


def test_nor_are_they_deep_themselves(deep, tmp_path):
    """The numbers of draws would multiply."""
    features = deep.posterior_.model.features
    features.last = copy.deepcopy(features)
    with pytest.raises(ValueError, match="a deep process has a DeepFeatures with layers"):
        deep.save(tmp_path / "model")


def test_layers_of_deep_processes_are_no_wider_than_a_draw(deep, tmp_path):
    (layer,) = deep.posterior_.model.features.inner
    layer.mean_map, layer.means = torch.zeros(2, 30_000), torch.nn.Parameter(torch.zeros(4, 30_000))
    with pytest.raises(ValueError, match="draws of 30000 numbers are more than 21201"):
        deep.save(tmp_path / "model")


def test_wide_layers_take_few_rows_at_a_time(deep):
    """Of each row there are 64 draws."""
    features = deep.posterior_.model.features
    assert features.block_rows(64) == features.block_rows(64, 16) == 64
    features.inner[0].mean_map = torch.zeros(2, 5000)
    assert features.block_rows(64) * 64 * 5000 <= 2**21
    features.inner[0].mean_map = torch.zeros(500, 2)
    n_nodes, kept = features.n_nodes, 16  # arrays, by gradients
    assert deep.posterior_.gradient_rows * n_nodes * 500 <= 2**21 / kept


SIZES = {
    "DeepFeatures.n_nodes": (DeepGPRegressor(n_inducing=4, max_iter=1, random_state=0), 64),
    "DeepFeatures.n_samples": (DeepGPRegressor(n_inducing=4, max_iter=1, random_state=0), 4096),
    "FourierBasis.n_groups": (QSGPRegressor(n_components=8, max_iter=1, random_state=0), 131072),
}


def test_long_streams_are_saved(tmp_path):
    """Steps are counted, and take no memory."""
    model = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0).partial_fit(X, Y)
    counting = [part for part in parts_of(model) if hasattr(part, "n_steps")]
    assert counting
    for part in counting:
        part.n_steps = 10**7
    model.save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model").partial_fit(X, Y)
    assert max(part.n_steps for part in parts_of(again) if hasattr(part, "n_steps")) > 10**7


@pytest.mark.slow
def test_more_neighbours_than_rows_are_saved(tmp_path):
    model = NNGPRegressor(n_neighbors=10**6, max_iter=1, random_state=0).fit(X, Y)
    model.set_params(n_neighbors_predict=10**7).save(tmp_path / "model")
    np.testing.assert_array_equal(skgpstoch.load(tmp_path / "model").predict(X), model.predict(X))


def parts_of(model):
    """The modules of a stream."""
    return list(model._stream.objective.modules())


def test_scalings_have_a_number_for_each_column(plain, tmp_path):
    """Importances would take the product of all sizes."""
    model = skgpstoch.load(plain)
    for name, scale in (("_x_scaling", np.ones((9, 1, 1))), ("_x_spread", np.ones(9))):
        model = skgpstoch.load(plain)
        setattr(model, name, Scaling(np.zeros(len(scale)), scale))
        with pytest.raises(ValueError, match=r"Scaling.scale has the shape|its _x_spread has 9"):
            model.save(tmp_path / "model")


@pytest.mark.parametrize(
    ("module", "entry"), [("InducingFeatures", "points"), ("Constant", "log_constant_value")]
)
def test_tensors_have_as_many_axes_as_in_any_model(module, entry, plain, tmp_path):
    """Draws of functions and importances would repeat others along them."""

    def change(nodes, tensors):
        part = tensor_in(nodes, module, entry)
        tensors[part[1]] = np.ones((3000, 1, 1), tensors[part[1]].dtype)
        part[3], part[4] = "3000,1,1", "0,1,2"

    with pytest.raises(ValueError, match=rf"{module}.{entry} has the shape \(3000, 1, 1\)"):
        edited(plain, tmp_path / "model", change)


def test_lengths_of_an_object_that_are_the_same_stay_the_same(plain, tmp_path):
    """Draws and importances would take the covariance of rows with all of these points."""

    def change(nodes, tensors):
        part = tensor_in(nodes, "InducingFeatures", "points")
        tensors[part[1]], part[3] = np.ones((3000, 2), tensors[part[1]].dtype), "3000,2"

    with pytest.raises(ValueError, match=r"InducingFeatures.frozen_0 .*\(m, e\), m=3000, d=2"):
        edited(plain, tmp_path / "model", change)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", ESTIMATORS, ids=named)
def test_all_arrays_of_fitted_models_are_known(cls, tmp_path):
    """Those of a new class are refused until the table of shapes has them."""
    y = (Y > 0.0) * 2 + (X[:, 1] > 0.0) if is_classifier(cls()) else Y
    model = constructor(cls)(**({"max_iter": 1} if "max_iter" in cls().get_params() else {}))
    fitted_once(model, np.concatenate([X, X], 1), y).save(tmp_path / "model")


@pytest.mark.filterwarnings("ignore")
def test_noise_of_rows_is_saved_beside_a_model_of_many(tmp_path):
    model = GaussianProcessRegressor(alpha=np.full(30, 0.1), max_exact=20, random_state=0)
    model.fit(X, Y).save(tmp_path / "model")
    np.testing.assert_array_equal(skgpstoch.load(tmp_path / "model").predict(X), model.predict(X))


@pytest.mark.parametrize("array", [np.ones(9), [[np.ones(9)]], {"a": (torch.ones(9),)}], ids=str)
def test_objects_of_ours_have_no_other_arrays(array, plain, tmp_path):
    """Whose shapes nobody looks at, not even in lists."""
    model = skgpstoch.load(plain)
    model.note_ = array  # of an estimator, which computes with what it knows
    model.save(tmp_path / "model")
    dates = Dates(Numbers("day", 0.0, True, False, None), array)
    for owner in (model.posterior_.model.mean, dates):
        vars(owner)["periods"], model.note_ = array, dates
        with pytest.raises(ValueError, match=r"(Dates|ConstantMean)\.periods has arrays, as in no"):
            model.save(tmp_path / "model")


@pytest.mark.parametrize("transform", ["yeo-johnson", FunctionTransformer(np.sqrt, np.square)])
def test_transformations_have_as_many_numbers_as_y(transform, tmp_path):
    """Predictions would be made of each."""
    options = {"target_transform": transform, "n_inducing": 5, "max_iter": 1}
    model = SVGPRegressor(**options).fit(X, 2.0 + Y)
    many, transformer = np.ones(200), model.target_transformer_
    model.save(tmp_path / "model")
    if transform == "yeo-johnson":
        transformer.scaling_ = Scaling(many, many)
        with pytest.raises(ValueError, match=r"scaling_\.offset has the shape \(200,\).*p=1"):
            model.save(tmp_path / "model")
        transformer.powers_ = many
    else:
        model.target_transformer_ = OnBranch(transformer.transformer, many, many)
    with pytest.raises(ValueError, match="target_transformer_ has 200 outputs, but the model has"):
        model.save(tmp_path / "model")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n_orthogonal", [3, (3, 4, 5)])
@pytest.mark.parametrize("decoupled", [False, True])
def test_points_of_any_sets_are_saved(decoupled, n_orthogonal, tmp_path):
    kind = {"posterior": "odvgp", "whiten": False} if decoupled else {}
    n_orthogonal = 9 if decoupled and n_orthogonal != 3 else n_orthogonal
    model = SolveGPRegressor(n_inducing=4, n_orthogonal=n_orthogonal, max_iter=1, **kind)
    model.fit(X, np.stack([Y, -Y], 1)).save(tmp_path / "model")
    np.testing.assert_array_equal(skgpstoch.load(tmp_path / "model").predict(X), model.predict(X))


@pytest.mark.parametrize("make", [make_pipeline, lambda inner: StandardScaler(copy=inner)])
def test_estimators_are_in_one_another_only_a_few_times(make, tmp_path):
    """Their HTML takes twice as long for each."""
    model = GaussianProcessRegressor(optimizer=None).fit(X, Y)
    model.tag = make_pipeline(make_pipeline(make_pipeline(PowerTransformer().fit(X))))
    model.save(tmp_path / "model")
    for _ in range(8):
        model.tag = make(model.tag)
    with pytest.raises(ValueError, match="more than 8 estimators are in one another"):
        model.save(tmp_path / "model")


STEPS = {
    "one after the other": lambda t: make_pipeline(*[t] * 16),
    "in one another": lambda t: make_pipeline(make_pipeline(*[t] * 8), make_pipeline(*[t] * 8)),
}


@pytest.mark.parametrize("how", STEPS)
def test_pipelines_have_few_steps(how, tmp_path):
    """Each quantile of y takes all of them, some hundred times."""
    model = GaussianProcessRegressor(optimizer=None).fit(X, Y)
    model.tag = STEPS[how](MaxAbsScaler().fit(X))
    model.save(tmp_path / "model")
    model.tag = make_pipeline(model.tag, MaxAbsScaler())
    with pytest.raises(ValueError, match="Pipeline has more than 16 transformers"):
        model.save(tmp_path / "model")


def test_transformers_are_shared_a_few_times(exact, tmp_path):
    """By members of a stack, whose quantiles would take hours."""
    model = skgpstoch.load(exact)
    model.note_ = [MaxAbsScaler().fit(X)] * 10
    model.save(tmp_path / "model")
    model.note_ *= 5
    with pytest.raises(ValueError, match="kernels, networks or estimators repeat too often"):
        model.save(tmp_path / "model")


def test_large_layers_are_shared_a_few_times(tmp_path):
    """Weights so small that they have few digits take a processor eighty times as long."""
    layer = torch.nn.Linear(400, 400, dtype=torch.float64)
    torch.nn.init.constant_(layer.weight, 1e-310)
    SVGPRegressor(feature_map=torch.nn.Sequential(*[layer] * 4)).save(tmp_path / "model")
    model = SVGPRegressor(feature_map=torch.nn.Sequential(*[layer] * 16))
    with pytest.raises(ValueError, match="kernels, networks or estimators repeat too often"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("name", ["sets.nearness", "expressions._of_function", "traces.one"])
def test_files_name_no_functions_but_profiles(name, exact, tmp_path):
    """A transformer would call them, with arguments of the file's choice."""
    with_attribute(tmp_path / "model", exact, lambda nodes: nodes.add("function", name))
    refused(tmp_path / "model", f"'{name}' is not a class or function that is allowed")


def test_kernels_of_scikit_learn_repeat_no_matrices(exact, tmp_path):
    model = skgpstoch.load(exact)
    model.kernel_.k2.noise_level = np.ones((300, 1, 1))
    with pytest.raises(
        ValueError, match=r"WhiteKernel\.noise_level must be a number, .* got an array"
    ):
        model.save(tmp_path / "model")


def power(value, exponent):
    """A kernel whose power scikit-learn itself computes, in NumPy."""
    constant = sk.Exponentiation(sk.ConstantKernel(value), exponent)
    return constant * sk.PairwiseKernel() + sk.WhiteKernel()


NO_KERNELS = {
    "ConstantKernel.constant_value": sk.ConstantKernel("1." + "0" * 10**4),
    "WhiteKernel.noise_level": sk.WhiteKernel(sk.RBF()),
    "RBF.length_scale": sk.RBF([1.0, "1." + "0" * 10**5] + [1.0] * 1000),
    "Matern.nu": sk.Matern(nu=None),
    "DotProduct.sigma_0_bounds": sk.DotProduct(1.0, "a" * 10**4),
    "RationalQuadratic.alpha_bounds": sk.RationalQuadratic(alpha_bounds=[["1"], [2.0]]),
    "Sum.k2": sk.Sum(sk.RBF(), np.ones(3)),
    "Exponentiation.exponent": sk.Exponentiation(sk.RBF(), np.array([2, "a"], object)),
    "PairwiseKernel.metric": sk.PairwiseKernel(metric=3),
    "PairwiseKernel.pairwise_kernels_kwargs": sk.PairwiseKernel(
        metric="poly", pairwise_kernels_kwargs={"degree": "1" * 10**4}
    ),
    "TiedKernel.ties": TiedKernel(sk.RBF(), "length_scale"),
}


@pytest.mark.parametrize("where", NO_KERNELS)
def test_kernels_compute_with_numbers(where, exact, tmp_path):
    """NumPy would make a text of each pair of rows, as long as the longest."""
    model = skgpstoch.load(exact)
    model.kernel_ = NO_KERNELS[where]
    with pytest.raises(ValueError, match=rf"{re.escape(where)} (must be|has 'degree', a str)"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize(
    "kernel",
    [sk.ConstantKernel(-1.0), sk.RBF([1.0, -1.0]), sk.WhiteKernel(-1e300)],
    ids=lambda k: type(k).__name__,
)
def test_variances_and_lengths_are_not_negative(kernel, tmp_path):
    """Variances of predictions would be."""
    with pytest.raises(ValueError, match=r"(Kernel|RBF)\.\w+ must be at least 0"):
        GaussianProcessRegressor(sk.RBF() + kernel).save(tmp_path / "model")


@pytest.mark.parametrize("repeats", [True, False])
def test_kernels_have_few_parts(repeats, plain, exact, tmp_path):
    """Each has covariances of its own, which gradients keep."""
    path = tmp_path / "model"
    kernels = [sk.Matern(length_scale=1.0 + 0.1 * (not repeats) * i) for i in range(64)]
    model, exact = skgpstoch.load(plain), skgpstoch.load(exact)
    for n in (32, 64):
        parts = kernels[:n] if not repeats else [kernels[0]] * n
        while len(parts) > 1:
            parts = [sk.Sum(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
        exact.kernel_, model.note_ = parts[0], from_sklearn(parts[0])
        if n == 32:
            exact.save(path)
            model.save(path)
    for each in (exact, model):
        with pytest.raises(ValueError, match="a kernel has more than 64 parts"):
            each.save(path)


@pytest.mark.slow
def test_means_of_levels_have_few_columns(plain, tmp_path):
    """Rows with new levels are encoded two dozen times."""
    levels = [f"level {i % 40}" for i in range(120)]
    frame = pd.DataFrame({"level": levels, "size": RNG.normal(size=120)})
    encoder, model = TableEncoder(), skgpstoch.load(plain)
    encoder.fit_transform(frame, RNG.normal(size=(120, 20)))
    model.note_ = encoder
    model.save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model").note_
    np.testing.assert_array_equal(again.encoders[0].means, encoder.encoders[0].means)
    encoder.encoders[0] = TargetMeans(encoder.encoders[0].levels, np.zeros((40, 5000)))
    with pytest.raises(ValueError, match="TargetMeans has at most 4096 rows or columns, got 5000"):
        model.save(tmp_path / "model")


def test_a_loss_curve_is_a_list(plain, tmp_path):
    """A stream makes an object of each of its numbers: 590 MB for an array in 14."""
    model = skgpstoch.load(plain)
    model.loss_curve_ = np.zeros(9, np.uint8)
    with pytest.raises(ValueError, match="loss_curve_ is an array of uint8"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("name", ["best_iter_", "n_iter_", "log_marginal_likelihood_value_"])
def test_attributes_are_of_the_documented_types(name, plain, tmp_path):
    """A picture of the training drew a line for each number of an array: 110 s for 2 MB."""
    model = skgpstoch.load(plain)
    setattr(model, name, np.zeros(9))
    with pytest.raises(ValueError, match=f"{name} is an array of float64"):
        model.save(tmp_path / "model")


def test_pairs_of_classes_have_no_indices(tmp_path):
    """Of which each takes columns of X: 1.8 GB for a file of 14 MB."""
    model = GaussianProcessClassifier(optimizer=None, multi_class="one_vs_one")
    model.fit(X, np.arange(len(X)) % 3)
    inner = next(each for each in vars(model).values() if isinstance(each, OneVsOneClassifier))
    inner.pairwise_indices_ = np.zeros(9, np.uint8)
    with pytest.raises(ValueError, match="has indices of pairs of rows"):
        model.save(tmp_path / "model")


def test_tables_of_reports_have_few_columns(tmp_path):
    """A frame of N rows that each have a column of their own has N² cells."""
    model = AutoGaussianProcessRegressor()
    many = [{f"column {i}": 1.0 for i in range(40)}, *[{}] * 30_000]  # 1.2 million cells
    for table in ([{f"column {i}": 1.0} for i in range(65)], [{"column": [1.0]}], many):
        model._tables = (table,)
        with pytest.raises(ValueError, match="tables of a report have other columns, or cells"):
            model.save(tmp_path / "model")


@pytest.mark.parametrize("scores", [{"model": [1.0] * 65}, {"model": 1.0}, [1.0]])
def test_leaderboards_have_few_models(scores, tmp_path):
    """A picture has a bar for each: 80 s for a file of .8 MB."""
    model = AutoGaussianProcessRegressor()
    model.scores_ = scores
    with pytest.raises(ValueError, match="scores_ are not those of a few models"):
        model.save(tmp_path / "model")


def test_tables_of_reports_have_levels_of_any_kind(tmp_path):
    """Groups of held-out rows are named by their level: one of pd.cut was refused."""
    pd = pytest.importorskip("pandas")
    intervals = pd.Interval(0, 1), pd.Interval(1, np.inf), pd.Interval(-np.inf, 0)
    levels = (*intervals, pd.Period("2020-01"), pd.Timestamp("2020"), ("a", 1), None, "a")
    model = AutoGaussianProcessRegressor()
    model._tables = ([{"group": level, "rows": 30} for level in levels],)
    model.save(tmp_path / "model")
    assert skgpstoch.load(tmp_path / "model")._tables == model._tables


def test_codes_of_levels_are_integers(plain, tmp_path):
    """An array in place of one took 4.6 GB for 300 rows of that level."""
    frame = pd.DataFrame({"level": [f"level {i % 4}" for i in range(120)]})
    encoder, model = TableEncoder(), skgpstoch.load(plain)
    encoder.fit_transform(frame, RNG.normal(size=(120, 1)))
    model.note_, levels = encoder, encoder.encoders[0].levels
    model.save(tmp_path / "model")
    for code, kind in ((np.zeros(9), "ndarray"), ([0] * 9, "list")):
        levels["level 0"] = code
        with pytest.raises(ValueError, match=f"levels has a {kind}, which it cannot"):
            model.save(tmp_path / "model")


def test_trees_of_neighbours_are_not_deep():
    """Of rows ever closer, whose tree was as deep as they are many, SciPy crashes."""
    rows = torch.zeros(3000, 2, dtype=torch.float64)
    rows[:1500, 0] = rows[1500:, 1] = 2.0 ** -torch.arange(400.0, 1900.0).double().fmod(1000.0)
    nearest = Nearest(rows)
    nearest.of(rows[:1], 3)
    (tree,) = nearest.trees.values()
    nodes, depth = [tree.tree], 0
    while nodes := [n for node in nodes for n in (node.lesser, node.greater) if n is not None]:
        depth += 1
    assert depth < 30


def test_flags_of_missing_values_are_no_more_than_columns(processes):
    model = copy.copy(processes)
    model.missing_columns = np.zeros(500, int)
    with pytest.raises(ValueError, match="missing_columns must be None or positions of columns"):
        model.predict(X)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_gradients_keep_few_columns_of_neighbours():
    model = NNGPRegressor(max_iter=1, random_state=0).fit(RNG.normal(size=(30, 200)), Y)
    posterior = model.posterior_
    assert posterior.gradient_rows * 200 <= posterior.block_rows * size_of_sets(posterior)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_gradients_keep_few_covariances(monkeypatch):
    """Each part of a kernel has some for each row."""
    model = ADMMGaussianProcessRegressor(max_iter=1, random_state=0).fit(X, Y)
    posterior = model.posterior_
    posterior.kernel = from_sklearn(sum([sk.Matern()] * 15, sk.Matern()))
    whole = model.predict_gradient(X)
    assert posterior.gradient_rows * 31 <= posterior.block_rows / 2
    sizes, of_mean = [], type(posterior).mean
    monkeypatch.setattr(type(posterior), "mean", lambda q, X: sizes.append(len(X)) or of_mean(q, X))
    monkeypatch.setattr(posteriors, "BLOCK_ROWS", 31 * 2 * 10)
    assert np.isfinite(model.feature_importances_).all()
    assert max(sizes) == 10
    np.testing.assert_allclose(model.predict_gradient(X)[0], whole[0])


def test_kernels_of_several_processes_are_none_that_predicts(exact, tmp_path):
    """They make a matrix for each."""
    with_attribute(
        tmp_path / "model", exact, lambda nodes: nodes.add("type", "sklearn.CompoundKernel")
    )
    refused(tmp_path / "model", "'sklearn.CompoundKernel' is not a class or function that is")


@pytest.mark.parametrize(
    ("value", "exponent"), [(10**100, 10**5), (3, 10**30)], ids=["base", "exponent"]
)
def test_powers_of_kernels_have_an_end(value, exponent, exact, tmp_path):
    """Python's, of NumPy's objects, take for ever."""
    model = skgpstoch.load(exact)
    model.kernel_ = power(value, exponent)
    with pytest.raises(ValueError, match="an integer is more than 64 bits hold"):
        model.save(tmp_path / "model")


class Lengths(sk.RBF):
    """A kernel of texts."""

    requires_vector_input = False

    def __call__(self, X, Y=None, eval_gradient=False):
        return super().__call__(
            *(np.array([[len(x)] for x in A]) for A in (X, X if Y is None else Y))
        )


def test_kernels_of_ones_own_may_have_rows_of_texts(tmp_path):
    X = np.array(["a", "bb", "ccc"])
    model = GaussianProcessRegressor(Lengths(), optimizer=None).fit(X, np.ones(3))
    model.save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model", objects={"Lengths": Lengths})
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    model.kernel_ = sk.RBF()
    model.kernel = sk.RBF()
    with pytest.raises(ValueError, match=r"X_train_ must be floats, got an array of <U3"):
        model.save(tmp_path / "model")


def of_objects(shape, value):
    a = np.empty(shape, object)
    a[...] = value
    return a


NO_NUMBERS = {
    "GaussianProcessRegressor._y_train_mean": of_objects(1, pd.Interval(0.0, 1.0)),
    "GaussianProcessRegressor._y_train_std": "1." + "0" * 10**4,
    "GaussianProcessRegressor.L_": np.full((30, 30), "1.0"),
    "GaussianProcessRegressor._alpha_train": np.ones(30, np.int8),
    "GaussianProcessRegressor.X_train_": of_objects((30, 2), 1.0),
    "GaussianProcessRegressor.alpha_": [1.0] * 30,
}


@pytest.mark.parametrize("where", NO_NUMBERS)
def test_arrays_are_of_numbers(where, exact, tmp_path):
    """Predictions would be intervals, or take what each cell takes."""
    model = skgpstoch.load(exact)
    setattr(model, where.split(".")[1], NO_NUMBERS[where])
    with pytest.raises(ValueError, match=rf"{re.escape(where)} must be (numbers|floats), got an? "):
        model.save(tmp_path / "model")


@pytest.mark.parametrize(
    "cell", [np.ones(9), sk.RBF(), [1.0], {"a": 1}], ids=lambda c: type(c).__name__
)
def test_cells_of_arrays_are_labels(cell, exact, tmp_path):
    """Each row asked would take a sum with a whole array for each of them."""
    model = skgpstoch.load(exact)
    model.note_ = np.empty(2, object)
    model.note_[0] = cell
    with pytest.raises(ValueError, match="an array of objects must hold numbers, texts, times"):
        model.save(tmp_path / "model")


def test_records_and_transformers_hold_numbers(plain, tmp_path):
    model = skgpstoch.load(plain)
    scaling, transformer = model._x_scaling, StandardScaler().fit(X)
    for wrong in (of_objects(2, 1.0), np.array(["1.0", "2.0"])):
        model._x_scaling = scaling._replace(offset=wrong)
        with pytest.raises(ValueError, match=r"Scaling\.offset must be floats, got an array"):
            model.save(tmp_path / "model")
        model._x_scaling, model.note_, transformer.mean_ = scaling, transformer, wrong
        with pytest.raises(ValueError, match=r"StandardScaler\.mean_ must be floats, got an"):
            model.save(tmp_path / "model")
        del model.note_


def test_odds_are_those_of_outputs():
    scale = ErrorScale(torch.ones(1), 1.0, torch.ones(4000), None, 1.0)
    with pytest.raises(ValueError, match="1 outputs have odds of 4000"):
        scale(Given(*(torch.ones(2, 1),) * 6), torch.ones(1))


@pytest.mark.parametrize("part", ["likelihood", "model.mean"])
def test_parts_have_as_many_outputs_as_y(part, tmp_path):
    """Gradients would be taken of each output."""
    model = SVGPRegressor(likelihood="student_t", n_inducing=5, max_iter=1, random_state=0)
    model.fit(X, Y)
    for parameter in model.posterior_.get_submodule(part).parameters():
        parameter.data = torch.zeros(17)
    with pytest.raises(ValueError, match="posterior_ has 17 outputs, but the model has 1"):
        model.save(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes_are_as_many_as_probabilities(n_classes, tmp_path):
    """The labels of columns would be those of others, or none."""
    model = SVGPClassifier(n_inducing=5, max_iter=1, random_state=0)
    model.fit(X, np.arange(len(X)) % n_classes)
    model.save(tmp_path / "model")
    model.classes_ = np.arange(4)
    message = f"SVGPClassifier predicts 4 classes, but its posterior_ predicts {n_classes} classes"
    with pytest.raises(ValueError, match=message):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes_of_an_inner_classifier_are_those_of_the_model(n_classes, tmp_path):
    """Labels would be those of another model."""
    one = GaussianProcessClassifier(optimizer=None).fit(X, np.arange(30) % 2)
    many = GaussianProcessClassifier(optimizer=None, multi_class="one_vs_one")
    many.fit(X, np.arange(30) % 3)
    model, other = (one, many) if n_classes == 2 else (many, one)
    model.base_estimator_ = other.base_estimator_
    with pytest.raises(ValueError, match=f"for other classes than its {n_classes}"):
        model.save(tmp_path / "model")


def test_parts_of_an_inner_classifier_are_binary_ones(tmp_path):
    """There would be four columns for three classes."""
    model = GaussianProcessClassifier(optimizer=None).fit(X, np.arange(30) % 3)
    parts = model.base_estimator_.estimators_
    for others in ([*parts, parts[0]], [model, *parts[1:]]):
        model.base_estimator_.estimators_ = others
        with pytest.raises(ValueError, match=r"than its 3, or has other parts|refers to itself"):
            model.save(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "inner", "lacking"),
    [
        ("base_estimator_", LogLoss(), "predict_proba"),
        ("base_estimator_", SVGPRegressor(), "predict_proba"),
        ("estimator_", StandardScaler(), "predict"),
    ],
)
def test_estimators_within_predict_what_the_model_does(name, inner, lacking, tmp_path):
    """An error of predictions would name neither the part nor the file."""
    cls = GaussianProcessRegressor if name == "estimator_" else GaussianProcessClassifier
    model = cls(optimizer=None).fit(X, Y > 0.0)
    inner.classes_ = getattr(model, "classes_", None)
    setattr(model, name, inner)
    message = f"{name} has a {type(inner).__name__}, without {lacking}"
    with pytest.raises(ValueError, match=message):
        model.save(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_estimators_are_those_of_what_a_model_predicts(tmp_path):
    options = {"n_inducing": 5, "max_iter": 1, "random_state": 0}
    one, two = (SVGPRegressor(**options).fit(X, y) for y in (Y, np.stack([Y, -Y], 1)))
    of_classes = SVGPClassifier(**options).fit(X, Y > 0.0)
    stack = skgpstoch.StackedDensityRegressor([("a", one), ("b", clone(one))], cv=2)
    exact = GaussianProcessRegressor(method="svgp", max_exact=1, random_state=0)
    for model, name in ((stack, "estimators_"), (exact, "estimator_")):
        model.fit(X, Y).save(tmp_path / "model")
        for other, of_other in ((two, "2 outputs"), (of_classes, "2 classes")):
            setattr(model, name, [one, other] if name == "estimators_" else other)
            with pytest.raises(ValueError, match=rf"but its {name} predicts .*{of_other}"):
                model.save(tmp_path / "model")


@pytest.mark.parametrize("kind", [OneVsOneClassifier, OneVsRestClassifier])
def test_classifiers_of_scikit_learn_are_not_in_regressors(kind, tmp_path):
    model = skgpstoch.ConstantVarianceRegressor(GaussianProcessRegressor(optimizer=None)).fit(X, Y)
    inner = model.estimator_
    model.estimator_ = kind(inner)
    with pytest.raises(ValueError, match="but its estimator_ predicts classes"):
        model.save(tmp_path / "model")
    vars(model.estimator_).update(vars(inner))
    with pytest.raises(ValueError, match="but its estimator_ predicts classes"):
        model.save(tmp_path / "model")


def test_a_fit_keeps_its_rows(exact, tmp_path):
    """Without them it would be taken for one that is not fitted, and predict its prior."""
    model = skgpstoch.load(exact)
    del model.X_train_
    with pytest.raises(ValueError, match="GaussianProcessRegressor has a kernel_, but no X_train_"):
        model.save(tmp_path / "model")


def test_labels_of_an_inner_classifier_are_those_of_the_model(tmp_path):
    model = GaussianProcessClassifier(optimizer=None).fit(X, np.arange(30) % 2)
    model.base_estimator_.classes_ = np.arange(5, 7)
    with pytest.raises(ValueError, match="BinaryLaplaceClassifier for other classes than its 2"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("classes", [["b", "a"], ["a", "a"]])
def test_classes_are_sorted(classes, tmp_path):
    """Messages, and what looks up y, would contradict themselves."""
    model = SVGPClassifier(n_inducing=5, max_iter=1, random_state=0)
    model.fit(X, np.where(Y > 0.0, "a", "b")).save(tmp_path / "model")
    model.classes_ = np.array(classes)
    with pytest.raises(ValueError, match=r"SVGPClassifier\.classes_ must be different, and in asc"):
        model.save(tmp_path / "model")


@pytest.mark.slow
def test_classes_of_a_mixture_are_those_of_its_models(tmp_path):
    model = AutoGaussianProcessClassifier(max_time=1, random_state=0).fit(X, Y > 0.0)
    model.save(tmp_path / "model")
    model.classes_ = np.arange(3)
    message = "AutoGaussianProcessClassifier predicts 3 classes, but its estimators_ predicts 2 cl"
    with pytest.raises(ValueError, match=message):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("scale", [-1.0, 0.0])
def test_scales_are_positive(scale, plain, tmp_path):
    model = skgpstoch.load(plain)
    model._y_scaling = model._y_scaling._replace(scale=np.array([scale]))
    with pytest.raises(ValueError, match=r"Scaling\.scale must be positive"):
        model.save(tmp_path / "model")


def test_nor_are_those_of_normalized_targets_negative(tmp_path):
    model = GaussianProcessRegressor(sk.RBF(), normalize_y=True, optimizer=None).fit(X, Y)
    model._y_train_std = -model._y_train_std
    with pytest.raises(ValueError, match="_y_train_std must be positive"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("scales", [np.zeros(0), np.ones((2, 1))])
def test_length_scales_are_numbers_along_one_axis(scales, tmp_path):
    """The repr of a kernel with none raised an IndexError."""
    model = SVGPRegressor(sk.RBF([1.0, 1.0]))
    model.kernel.length_scale = scales
    with pytest.raises(
        ValueError, match="length_scale must be a number, or numbers along one axis"
    ):
        model.save(tmp_path / "model")


OUT_OF_RANGE = {
    "a share of atoms": (Lattice(np.arange(3.0), -5.0), r"Lattice\.weight must be from 0 to 1"),
    "atoms": (Lattice(np.ones(2), 0.5), r"Lattice\.atoms must be different, and in asc"),
    "errors nearby": (
        ErrorsNearby(torch.zeros(1), 64, 1.0),
        r"ErrorsNearby\.usual must be positive",
    ),
    "tails": (Tails(0.0, 1e-8), r"Tails\.df must be more than 2"),
    "weights of rows": (
        RowWeights(np.array([0.7, 0.7]), 1.0, 1.0, 3.0, 0.0),
        r"RowWeights\.weight must be at least 0, and sum to 1",
    ),
}


@pytest.mark.parametrize("what", OUT_OF_RANGE)
def test_shares_are_probabilities(what, plain, tmp_path):
    """As atoms are told with those of their rows."""
    model = skgpstoch.load(plain)
    model.note_, message = OUT_OF_RANGE[what]
    with pytest.raises(ValueError, match=message):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("field", ["signal", "slope", "noise", "length_scale"])
def test_hyper_parameters_of_processes_are_not_negative(field, processes, tmp_path):
    """Predictions were NaN."""
    model = copy.deepcopy(processes)
    process = model._processes[0][0][0]
    theta = process.theta._replace(**{field: -torch.ones_like(getattr(process.theta, field))})
    model._processes[0][0][0] = process._replace(theta=theta)
    with pytest.raises(ValueError, match=rf"Theta\.{field} must be at least 0"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("weights", [[2.0, -1.0], [0.9, 0.9]])
def test_so_are_weights_of_mixtures(weights, processes, tmp_path):
    model = copy.copy(processes)
    model.weights_ = np.array(weights)
    with pytest.raises(ValueError, match=r"ProcessRegressor.weights_ must be at least 0, and sum"):
        model.save(tmp_path / "model")


@pytest.mark.slow
def test_so_is_a_constant_deviation(tmp_path):
    inner = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0)
    model = ConstantVarianceRegressor(inner).fit(X, Y)
    model.std_ = -1.0
    with pytest.raises(ValueError, match=r"ConstantVarianceRegressor\.std_ must be positive"):
        model.save(tmp_path / "model")


@pytest.mark.slow
def test_skewness_is_what_fits_find(tmp_path):
    """Densities would be infinite."""
    model = DeepKernelEnsembleRegressor(**SMALL).fit(X, Y)
    model.posterior_.skew = torch.tensor([1.0]).double()
    model.save(tmp_path / "model")
    model.posterior_.skew = torch.tensor([-30.0]).double()
    with pytest.raises(ValueError, match=r"MixturePosterior\.skew must be from -1 to 1"):
        model.save(tmp_path / "model")


def test_targets_before_a_fit_are_few(tmp_path):
    """Predictions of the prior would be made of each."""
    GaussianProcessRegressor(n_targets=64).save(tmp_path / "model")
    for many in (10**7, np.int64(10**7), np.array(10**7)):
        with pytest.raises(ValueError, match=r"GaussianProcessRegressor\.n_targets is larger than"):
            GaussianProcessRegressor(n_targets=many).save(tmp_path / "model")
    model = GaussianProcessRegressor(n_targets=100, optimizer=None)
    model.fit(X, np.tile(Y[:, None], 100)).save(tmp_path / "model")


def test_posteriors_have_the_outputs_of_y(plain, tmp_path):
    """Predictions would be those of the first one."""
    model, options = skgpstoch.load(plain), {"n_inducing": 5, "max_iter": 1, "random_state": 0}
    model.posterior_ = SVGPRegressor(**options).fit(X, np.stack([Y, -Y], 1)).posterior_
    with pytest.raises(ValueError, match="posterior_ has 2 outputs, but the model has 1"):
        model.save(tmp_path / "model")


def test_y_has_as_many_scales_as_outputs(plain, tmp_path):
    """Predictions would be made of each."""
    model = skgpstoch.load(plain)
    model._y_scaling = Scaling(np.zeros(200), np.ones(200))
    with pytest.raises(ValueError, match="_y_scaling has 200 columns, but not y"):
        model.save(tmp_path / "model")
    model._y_shape = (200,)
    with pytest.raises(ValueError, match="posterior_ has 1 outputs, but the model has 200"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("n", [0, 3])
def test_so_has_normalized_y(n, exact, tmp_path):
    model = skgpstoch.load(exact)
    model._y_train_mean, model._y_train_std = np.zeros(n), np.ones(n)
    with pytest.raises(ValueError, match=f"_y_train_mean has {n} columns, but not y"):
        model.save(tmp_path / "model")


def test_members_are_as_many_in_all_layers(tmp_path):
    model = SVGPRegressor(hidden_layer_sizes=(4,), n_inducing=5, max_iter=1, random_state=0)
    model.fit(X, Y).save(tmp_path / "model")
    scales = InputScales(1000, 4, torch.Generator())
    model.posterior_.model.features.network.append(scales)
    with pytest.raises(ValueError, match="layers of a network of 1 members have 1, 1000"):
        model.save(tmp_path / "model")


def more_members(features):
    for layer in features.network.modules():
        for name, p in layer.named_parameters(recurse=False):
            setattr(layer, name, torch.nn.Parameter(p.detach()[:1].repeat(1500, 1, 1)))
    features.n_members = 1500


def more_features(features):
    features.n_features = 20_000


@pytest.mark.parametrize("change", [more_members, more_features])
@pytest.mark.parametrize("is_stream", [False, True])
def test_weights_are_those_of_all_networks(is_stream, change, tmp_path):
    """Products of features with themselves would be far larger than the file."""
    options = {"hidden_layer_sizes": (4,), "max_iter": 1, "random_state": 0}
    model = SCGDGaussianProcessRegressor(**options)
    model = model.partial_fit(X, Y) if is_stream else model.fit(X, Y)
    model.save(tmp_path / "model")
    change(model._stream.objective.features if is_stream else model.posterior_.features)
    with pytest.raises(ValueError, match=r"features.(width|n_members|n_features) has the shape"):
        model.save(tmp_path / "model")


def test_networks_make_as_many_features_as_there_are_weights(tmp_path):
    model = SCGDGaussianProcessRegressor(hidden_layer_sizes=(4,), max_iter=1).fit(X, Y)
    *_, last = (m for m in model.posterior_.modules() if type(m).__name__ == "MemberLinear")
    last.weight.data, last.bias.data = (p.data.repeat(1, 1, 9) for p in (last.weight, last.bias))
    model.save(tmp_path / "model")
    model = skgpstoch.load(tmp_path / "model")
    with pytest.raises(ValueError, match=r"condition_on failed in .*loaded from"):
        model.condition_on(X, Y)


def test_streams_have_as_many_points_as_weights(tmp_path):
    """Their covariance takes gigabytes."""
    for solver in ("natural", "adam"):
        model = SVGPRegressor(n_inducing=5, solver=solver, random_state=0).partial_fit(X, Y)
        model.save(tmp_path / "model")
        features = model._stream.objective.model.features
        features.points = torch.nn.Parameter(torch.zeros(3000, 2))
        with pytest.raises(ValueError, match=r"n_features has the shape \(5,\).*m=3000"):
            model.save(tmp_path / "model")
        features.n_features = 3000
        with pytest.raises(ValueError, match=r"3000 features have 5 w|\(3000,\), not \(m\)"):
            model.save(tmp_path / "model")


@pytest.mark.parametrize("n_groups", [0, -1, 2])
@pytest.mark.parametrize("basis", ["fourier", "inducing"])
def test_groups_make_up_a_basis(basis, n_groups, tmp_path):
    """Predictions would leave functions out."""
    options = {"basis": basis, "n_components": 20, "n_subset": 10, "max_iter": 1}
    model = QSGPRegressor(**options, random_state=0).fit(X, Y)
    model.save(tmp_path / "model")
    functions = model.posterior_.model.basis
    functions.n_groups = n_groups
    with pytest.raises(ValueError, match=f"20 functions are not in {n_groups} groups"):
        model.save(tmp_path / "model")
    functions.n_groups, functions.n_components = 2, 2 * functions.group_size
    with pytest.raises(ValueError, match=r"n_components has the shape \(\d,\), not \(m\), m=20"):
        model.save(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 8, 1), (4, 4.0, 1), (-4, -4, 1)])
def test_patches_are_those_of_images(shape, tmp_path):
    """The same patch could be in a file again and again."""
    images = RNG.normal(size=(30, 16))
    model = ConvolutionalGPRegressor(n_inducing=4, max_iter=1, random_state=0)
    model.fit(images, images[:, 0]).save(tmp_path / "model")
    covariances = model.posterior_.model.features.parts[0].covariances
    covariances.geometry = covariances.geometry._replace(image_shape=shape)
    with pytest.raises(ValueError, match=r"are not those of images|image_shape has a float"):
        model.save(tmp_path / "model")


def test_images_have_no_more_patches_than_a_fit_allows(tmp_path, monkeypatch):
    """A file of 1.7 MB asked for 15 GB to predict one row."""
    images = RNG.normal(size=(30, 16))
    options = {"stride": 2, "patch_shape": (2, 2), "global_kernel": None, "random_state": 0}
    model = ConvolutionalGPRegressor(n_inducing=4, max_iter=1, **options)
    model.fit(images, images[:, 0]).save(tmp_path / "model")
    assert (
        skgpstoch.load(tmp_path / "model").posterior_.model.features.covariances.geometry.n_patches
        == 4
    )
    monkeypatch.setattr("skgpstoch.models.features.patches.MOST_PATCHES", 3)
    with pytest.raises(ValueError, match="images have 4 patches, more than 3"):
        skgpstoch.load(tmp_path / "model")


@pytest.fixture(scope="module")
def processes():
    names = ["rbf", "linear"]
    return ExactProcessRegressor(kernels=names, random_state=0).fit(X[:9], Y[:9])


@pytest.fixture(scope="module")
def flagged():
    """A process with a column that says what is missing."""
    rows = np.column_stack([X[:9, 0], X[:9, 1] > 0.0])
    return ExactProcessRegressor(kernels=["linear"], missing_columns=[1]).fit(rows, Y[:9])


@pytest.mark.parametrize("columns", [None, [1, 1], [0, 1]])
def test_flags_of_missing_values_are_those_of_the_fit(columns, flagged, tmp_path):
    """A graph predicted something else, and an error blamed the rows."""
    flagged.save(tmp_path / "model")
    model = copy.copy(flagged).set_params(missing_columns=columns)
    with pytest.raises(ValueError, match=r"missing_columns=.* are not those of the processes"):
        model.save(tmp_path / "model")


def test_processes_are_few(processes, tmp_path):
    """Each makes a matrix of its rows again, which a small file could ask much memory for."""
    processes.save(tmp_path / "model")
    for change, message in {
        lambda draws: draws * 2: "two objects have the same part",
        lambda draws: [draws[0], copy.copy(draws[0])]: "two objects have the same part",
        lambda draws: [*draws, with_rows(draws[0], 9)]: "with 17 draws",
        lambda draws: [with_rows(draws[0], 401), *draws[1:]]: "processes with 16 draws for ",
        lambda draws: [
            with_rows(draws[0], 20_001)
        ]: "Process has at most 20000 rows or columns, got 20001",
    }.items():
        model = copy.copy(processes)
        (draws,), *others = processes._processes
        model._processes = [[change(draws)], *others]
        with pytest.raises(ValueError, match=message):
            model.save(tmp_path / "model")


def test_mixtures_have_as_many_parts_as_weights(processes, tmp_path):
    """A single part would be repeated for each weight."""
    for name, value, message in (
        ("weights_", np.ones(9), r"_processes has the shape \(2,\), not \(k\), k=9"),
        ("_tails", processes._tails * 9, r"_tails has the shape \(18,\), not \(k\), k=2"),
        ("_tails", [processes._tails[0] * 9] * 2, "some outputs have no tails, or several"),
    ):
        model = copy.copy(processes)
        setattr(model, name, value)
        with pytest.raises(ValueError, match=message):
            model.save(tmp_path / "model")


def with_rows(process, n):
    """The same with other rows, and numbers of its own."""
    rows = torch.zeros(n, 2, dtype=torch.float64)
    theta = process.theta._replace(length_scale=process.theta.length_scale.clone())
    return process._replace(theta=theta, X=rows, noise=rows[:, 0].clone(), alpha=rows[:, 1].clone())


@pytest.mark.slow
def test_processes_share_wide_rows(tmp_path):
    """They counted again for each process, so a frame of 300 columns made a model without files."""
    rows = np.random.default_rng(9).standard_normal((60, 500))
    model = ExactProcessRegressor(random_state=0).fit(rows, rows[:, 0])
    model.save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(rows), model.predict(rows))
    copied = [draw for (draws,) in model._processes for draw in draws]  # each by itself, by `clone`
    with pytest.raises(ValueError, match="the parts of 'kernels' repeat too often"):
        ExactProcessRegressor(kernels=copied).save(tmp_path / "model")


def test_processes_that_share_rows_have_numbers_of_their_own(processes, tmp_path):
    """Many processes of few bytes would read wide rows again and again."""
    (draws,), *others = processes._processes
    theta, model = draws[0].theta, copy.copy(processes)
    scale = theta.length_scale
    for changed, message in (
        (theta, "two objects have the same part"),
        (theta._replace(slope=theta.slope.clone()), "two objects have the same part"),
        (theta._replace(length_scale=scale[:1].clone()), r"the shape \(1,\), not \(d\) or \(0\)"),
        (Scaling(scale.numpy(), scale.numpy()), r"Process.theta is a Scaling"),
    ):
        model._processes = [[[draws[0], draws[1]._replace(theta=changed), *draws[2:]]], *others]
        with pytest.raises(ValueError, match=message):
            model.save(tmp_path / "model")


def test_processes_of_classes_are_small(tmp_path):
    """Deviations take matrices of all points."""
    model = ExactProcessClassifier(kernels=["rbf"], random_state=0).fit(X, Y > 0.0)
    model.save(tmp_path / "model")
    (process,), rows = model._processes, model._rows
    many = torch.zeros(2501, 2, dtype=torch.float64)
    small = process._replace(points=many[:, 0].long(), coefficients=many)
    for processes in ([process] * 2, [small]):
        model._processes = processes
        with pytest.raises(
            ValueError, match=r"two objects have the|has at most 2500 rows or columns, got 2501"
        ):
            model.save(tmp_path / "model")
    model._processes, model.classes_ = [process], np.arange(3)
    with pytest.raises(ValueError, match=r"classes_ has the shape \(3,\), not \(p\)"):
        model.save(tmp_path / "model")
    model.classes_, many = np.arange(2), torch.zeros(20_001, 2, dtype=torch.float64)
    same = dict.fromkeys(("codes", "fold"), many[:, 0].long())
    model._rows = rows._replace(X=many, weight=many[:, 0].clone(), **same)
    with pytest.raises(ValueError, match="ClassRows has at most 20000 rows or columns, got 20001"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_not_huge(name, tmp_path):
    """Predictions and graphs would take gigabytes; but seeds may be large."""
    (cls, field), (model, limit) = name.split("."), SIZES[name]
    clone(model).fit(X, Y).save(tmp_path / "model")

    def change(nodes, tensors):
        module = next(n for n in nodes if n[0] == "module" and nodes[n[1][0]] == ["type", cls])
        module[module.index(field) + 1] = limit + 1

    with pytest.raises(ValueError, match=rf"{name} is larger than {limit}"):
        edited(tmp_path / "model", tmp_path / "edited", change)


@pytest.mark.parametrize("number", [np.int64(10**7), np.array(10**7), torch.tensor(10**7)])
def test_sizes_of_any_type_are_not_huge(number):
    """Those of NumPy were no integers, and predictions took gigabytes."""
    assert size_of((2, number)) == 2e7


# ---- what shows when a model is used -------------------------------------------------------------


def edited(source, to, change):
    """Load a file after a change of its arrays."""
    metadata, tensors = taken_apart(source)
    nodes = nodes_of(metadata)
    change(nodes, tensors)
    put_together(to, {**metadata, "structure": structure_of(nodes)}, tensors)
    return skgpstoch.load(to)


def tensor_in(nodes, module, entry):
    """The array node of a module's parameter or buffer."""
    at = next(n for n in nodes if n[0] == "module" and nodes[n[1][0]] == ["type", module])
    entries = [nodes[p[0]] for p in at if isinstance(p, list) and nodes[p[0]][0] == "dict"]
    part = next(n[n.index(entry) + 1] for n in entries if entry in n)
    while nodes[part[0]][0] != "array":
        part = nodes[part[0]][1]
    return nodes[part[0]]


CALLS = {
    "mean": lambda m: m.predict(X),
    "std": lambda m: m.predict_std(X),
    "interval": lambda m: m.predict_interval(X),
    "density": lambda m: m.log_predictive_density(X, Y),
    "cdf": lambda m: m.predictive_cdf(X, Y),
    "distribution": lambda m: m.predict_distribution(X).mean(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", CALLS)
def test_predictions_are_not_silently_nan(call, plain, tmp_path):
    def change(nodes, tensors):
        tensors[tensor_in(nodes, "Constant", "log_constant_value")[1]][...] = 1e160

    model = edited(plain, tmp_path / "model", change)
    with pytest.raises(ValueError, match="predicts nan for") as failure:
        CALLS[call](model)
    if call != "distribution":
        assert "1e+160, in SVGPRegressor.posterior_.model" in str(failure.value)
        assert str(tmp_path / "model") in str(failure.value)


def no_constant(nodes, tensors):
    """A kernel that lacks its parameter."""
    entries = next(n for n in nodes if n[0] == "dict" and "log_constant_value" in n)
    at = entries.index("log_constant_value")
    del entries[at : at + 2]


USES = {
    "predict": lambda m: m.predict(X),
    "sample_functions": lambda m: m.sample_functions(1),
    "a distribution": lambda m: m.predict_distribution(X),
    "feature_importances_": lambda m: m.feature_importances_,
    "a notebook": lambda m: m._repr_html_(),
    "a copy": lambda m: copy.deepcopy(m).predict(X),
    "a shallow copy": lambda m: copy.copy(m).predict(X),
    "a stream": lambda m: m.partial_fit(X, Y),
    "a pickle": lambda m: pickle.loads(pickle.dumps(m)).predict(X),
    "an ONNX graph": lambda m: pytest.importorskip("skgpstoch.onnx").to_onnx(m),
}


@pytest.mark.parametrize("use", USES)
def test_what_does_not_fit_together_has_its_name(use, plain, tmp_path):
    """In our words, not in torch's."""
    model = edited(plain, tmp_path / "model", no_constant)
    with pytest.raises(ValueError, match=r"failed in .*the parts of the file do not") as failure:
        USES[use](model)
    assert str(tmp_path / "model") in str(failure.value)
    of_library = failure.value.__cause__  # for who mends the file
    assert isinstance(of_library, AttributeError)


def test_our_own_words_on_a_part_name_the_file(tmp_path):
    """They seemed to be on what the user gave."""
    transformer = QuantileTransformer(n_quantiles=10, random_state=0)
    model = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0, target_transform=transformer)
    model.fit(X, Y).save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model")
    again.target_transformer_.quantiles_[:] = 1.0
    with pytest.raises(ValueError, match="transformer must be monotone") as failure:
        again.predict(X)
    assert str(tmp_path / "model") in failure.value.__notes__[0]
    again = skgpstoch.load(tmp_path / "model")
    with pytest.raises(ValueError, match="X has 1 features") as failure:
        again.predict(X[:, :1])
    assert not hasattr(failure.value, "__notes__")


@pytest.mark.parametrize("shape", [(100_000, 1), (3,)])
def test_regressors_of_others_predict_a_number_for_each_row(shape, tmp_path):
    """An intercept of 100,000 rows made gigabytes of 2,000, and nothing said so."""
    model = ConstantVarianceRegressor(Ridge()).fit(X, Y)
    model.estimator_.intercept_ = np.zeros(shape)
    model.save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model", objects={"Ridge": Ridge})
    with pytest.raises(ValueError, match="Ridge must predict one number for each row") as failure:
        again.predict(np.zeros((10**7, 2)))
    assert str(tmp_path / "model") in str(failure.value)


def test_regressors_of_others_in_one_another_predict_in_linear_time(tmp_path, monkeypatch):
    """Each asked the next one twice: 24 of them, 17 kB, took hours for a row."""
    outer = model = ConstantVarianceRegressor(Ridge()).fit(X, Y)
    for _ in range(7):
        inner, model = model, copy.copy(outer)
        model.estimator_ = inner
    model.save(tmp_path / "model")
    again, rows = skgpstoch.load(tmp_path / "model", objects={"Ridge": Ridge}), []
    predict = Ridge.predict
    monkeypatch.setattr(Ridge, "predict", lambda self, X: rows.append(len(X)) or predict(self, X))
    again.predict(X)
    assert rows == [1] * 8 + [len(X)]


def test_models_with_transforms_are_not_deep_in_one_another(tmp_path):
    """Each level asked the next one for quantiles, mean and density: seven took minutes a row."""
    outer = model = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0).fit(X, Y)
    outer = ConstantVarianceRegressor(Ridge(), target_transform="yeo-johnson").fit(X, Y)
    for _ in range(3):
        inner, model = model, copy.copy(outer)
        model.estimator_ = inner
    model.save(tmp_path / "model")
    last = copy.copy(outer)
    last.estimator_, last.target_transform = model, None  # what was fitted counts
    with pytest.raises(ValueError, match="more than 8 estimators are in one another"):
        last.save(tmp_path / "model")


def test_models_of_a_default_are_no_defaults(tmp_path):
    """Each puts known levels in place of new ones: of seven a row took gigabytes."""
    outer = AutoGaussianProcessRegressor(max_time=1, random_state=0).fit(X, Y)
    model = copy.copy(outer)
    model.estimators_ = {"process": outer}
    model.weights_ = model.mean_weights_ = np.ones(1)
    with pytest.raises(ValueError, match=r"'process'\], a Auto.*, holds others"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("gap", [[5.0, 5.0, 1.0], [9.0, 5.0, 1.0], [1.0, 5.0, 9.0], None])
def test_gaps_are_those_of_a_fit(gap, tmp_path):
    """A million of them would take a pass over the rows each."""
    model = AutoGaussianProcessRegressor(max_time=1, random_state=0)
    model.fit(X + 1e3 * (np.arange(len(X)) % 2)[:, None], Y).save(tmp_path / "model")
    encoder = model._encoder.encoders[0]
    wrong = np.tile(encoder.gaps, (20, 1)) if gap is None else np.array([gap])
    model._encoder.encoders[0] = replace(encoder, gaps=wrong)
    with pytest.raises(ValueError, match="Numbers have gaps"):
        model.save(tmp_path / "model")


def test_members_of_a_mixture_are_no_mixtures(tmp_path):
    """Deviations were those of the first row, and as many as pairs of rows."""
    model = DeepKernelEnsembleRegressor(n_estimators=2, max_iter=1, random_state=0).fit(X, Y)
    posterior = model.posterior_
    model.posterior_ = copy.deepcopy(posterior)
    model.posterior_.members[0] = posterior
    with pytest.raises(ValueError, match="a MixturePosterior has a MixturePosterior as a member"):
        model.save(tmp_path / "model")


def test_a_file_that_does_not_fit_into_memory_is_named(tmp_path, monkeypatch):
    """As one of 20 GB, most of which no disk holds, on a machine with less."""
    path = tmp_path / "model"
    SVGPRegressor(n_inducing=5, max_iter=1, random_state=0).fit(X, Y).save(path)

    def has_none(*_):
        raise MemoryError

    monkeypatch.setattr(skgpstoch.persistence.file, "read_state", has_none)
    with pytest.raises(MemoryError, match=f"model' cannot be loaded: its {path.stat().st_size:,}"):
        skgpstoch.load(path)


@pytest.mark.slow
def test_models_within_others_say_so_too(tmp_path):
    inner = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0)
    model = ConstantVarianceRegressor(inner).fit(X, Y)
    model.estimator_.posterior_.model.features.frozen_0 = torch.zeros(5, 3)
    model.save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model")
    for each in (again, pickle.loads(pickle.dumps(again))):
        with pytest.raises(ValueError, match=r"predict failed in SVGPRegressor.*the parts of the"):
            each.estimator_.predict(X)


@pytest.mark.slow
def test_failures_are_searched_for_once_and_among_few_parts(tmp_path, monkeypatch):
    """Each level took all parts apart again, and each number of a list, 19 us: 160 s for 13 MB."""
    model = inner = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0).fit(X, Y)
    outer = ConstantVarianceRegressor(clone(inner)).fit(X, Y)
    for _ in range(3):
        outer.estimator_ = model
        model = copy.copy(outer)
    inner.posterior_.model.features.frozen_0 = torch.zeros(5, 3)
    inner.note_ = [None, *np.random.default_rng(0).normal(size=30_000).tolist()]
    model.save(tmp_path / "model")
    seen, part = [], failures.Parts.part
    monkeypatch.setattr(failures.Parts, "part", lambda self, *a: seen.append(1) or part(self, *a))
    with pytest.raises(ValueError, match=r"predict failed in SVGPRegressor.*the parts of the"):
        skgpstoch.load(tmp_path / "model").predict(X)
    assert 0 < len(seen) < 1.1 * failures.MOST_LOOKED_AT


def test_models_lack_what_those_within_lack(tmp_path):
    ConstantVarianceRegressor(Ridge()).fit(X, Y).save(tmp_path / "model")
    model = skgpstoch.load(tmp_path / "model", objects={"Ridge": Ridge})
    assert not hasattr(model, "feature_importances_")
    assert "Ridge" in model._repr_html_()
    model.estimator_ = FunctionTransformer()
    with pytest.raises(ValueError, match=r"predict failed in ConstantVarianceRegressor, loaded fr"):
        model.predict(X)


@pytest.mark.slow
def test_errors_of_models_within_others_name_the_file(tmp_path):
    inner = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0)
    model = ConstantVarianceRegressor(inner).fit(X, Y)
    model.estimator_.device = "x"  # which is right for the user's own
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="device must be") as failure:
        skgpstoch.load(tmp_path / "model").predict(X)
    (note,) = failure.value.__notes__
    assert f"predict failed in SVGPRegressor, loaded from '{tmp_path / 'model'}'" in note


def test_more_rows_of_a_scale_of_zero_leave_the_model_as_it_is(exact):
    model = skgpstoch.load(exact)
    before, model._y_train_std = model.predict(X), np.zeros(1)
    with pytest.raises(ValueError, match="y is too far from the targets of fit"):
        model.condition_on(X, Y)
    model._y_train_std = np.ones(1)
    assert np.array_equal(model.predict(X), before)


def test_copies_that_fail_say_so(plain):
    model = skgpstoch.load(plain)
    model.note_ = (each for each in ())  # which cannot be copied, as parts of a wrong class
    with pytest.raises(ValueError, match=r"__deepcopy__ failed in SVGPRegressor, loaded from"):
        copy.deepcopy(model)


def test_pickles_that_fail_say_so(exact, tmp_path):
    request = MethodMetadataRequest("GaussianProcessRegressor", "fit")
    del request.owner
    model = skgpstoch.load(exact)
    model.note_ = request
    for way in (pickle.dumps, lambda model: model.save(tmp_path / "model")):
        with pytest.raises(ValueError, match=r"failed in GaussianProcessRegressor, loaded from"):
            way(model)


def test_clones_that_fail_say_so(tmp_path):
    network = torch.nn.Sequential(torch.nn.Linear(2, 2))
    SVGPRegressor(n_inducing=5, feature_map=network).save(tmp_path / "model")
    model = skgpstoch.load(tmp_path / "model")
    del model.feature_map[0].in_features
    with pytest.raises(ValueError, match=r"__repr__ failed in .*, loaded from"):
        repr(clone(model))


def test_files_hold_what_has_a_method_to_save(exact, tmp_path):
    metadata, tensors = taken_apart(exact)
    structure = json.dumps([["type", "sklearn.LabelEncoder"], ["object", [0]]])
    put_together(
        tmp_path / "model", {**metadata, "structure": structure, "class": "LabelEncoder"}, tensors
    )
    refused(tmp_path / "model", "it does not hold a 'LabelEncoder'")


@pytest.mark.slow
def test_no_error_of_a_library_is_bare(tmp_path):
    """scikit-learn has a variable that is bound only for the words that it knows."""
    transform = QuantileTransformer(n_quantiles=5)
    model = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0, target_transform=transform)
    model.fit(X, Y)
    model.target_transformer_.output_distribution = "a\0b"
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"failed in .*the parts of the file do not"):
        skgpstoch.load(tmp_path / "model").predict(X)


@pytest.mark.parametrize("cls", ESTIMATORS, ids=named)
def test_all_that_is_public_says_what_failed(cls):
    """Also what estimators have from classes of ours that are no estimators."""
    bare = []
    for base in (base for base in cls.__mro__ if base.__module__.startswith("skgpstoch.")):
        for name, value in vars(base).items():
            method = getattr(value, "fget", getattr(value, "fn", value))
            if name[0] != "_" and (inspect.isfunction(method) or isinstance(value, property)):
                bare += [name] if not hasattr(method, "__wrapped__") else []
    assert set(bare) <= {"onnx_parser"}  # which says what to do


def test_what_a_loaded_model_returns_speaks_in_our_words(plain):
    model = skgpstoch.load(plain)
    drawn, predicted = model.sample_functions(1), model.predict_distribution(X)[:3]
    drawn._functions = torch.ones(1, 3, 9).matmul
    predicted.law = None
    for fails in (lambda: drawn(X), lambda: drawn.torch(torch.ones(1, 2)), predicted.mean):
        with pytest.raises(ValueError, match=r"failed in .*the parts of the file do not"):
            fails()


def test_the_part_that_fails_has_its_name(sparse, tmp_path):
    model = edited(sparse, tmp_path / "model", no_constant)
    with pytest.raises(ValueError, match=r"predict failed in SVGPRegressor\.posterior_\.model\."):
        model.predict(X)


def test_blocks_of_no_features_take_no_memory(plain, tmp_path):
    """Of terabytes, or of so many gigabytes that the system ends the process."""

    def change(nodes, tensors):
        for node in nodes:
            if node[0] == "tuple" and node[1:] == [5]:
                node[1] = 10**5

    with pytest.raises(ValueError, match=r"blocks of \(5, 100000, 100000\) features have 5 w"):
        edited(plain, tmp_path / "model", change)


def test_points_of_no_features_take_no_memory(plain, tmp_path):
    """Their covariance takes gigabytes, unless the file has it."""

    def change(nodes, tensors):
        module = next(n for n in nodes if n[0] == "module" and "n_frozen" in n)
        module[module.index("n_frozen") + 1] = 0

    with pytest.raises(ValueError, match="the InducingFeatures of a fitted model are not frozen"):
        edited(plain, tmp_path / "model", change)


@pytest.mark.slow
def test_there_are_as_many_networks_as_parameters(tmp_path):
    """Graphs of many took minutes and gigabytes."""
    networks = {"hidden_layer_sizes": (4,), "n_estimators": 2, "max_iter": 2, "random_state": 0}
    model = skgpstoch.DeepKernelEnsembleRegressor(**networks).fit(X, Y)
    for part in model.posterior_.modules():
        if hasattr(part, "n_members"):
            part.n_members = 10**5
    with pytest.raises(ValueError, match="layers of a network of 100000 members have 1"):
        model.save(tmp_path / "model")


class Failing(torch.nn.Module):
    """A network of the user's."""

    fails = False

    def forward(self, rows):
        if self.fails:
            raise KeyError("no such key")
        return rows


def test_errors_of_the_users_code_stay_their_own(tmp_path, monkeypatch):
    model = SVGPRegressor(feature_map=Failing(), n_inducing=5, max_iter=1, random_state=0)
    model.fit(X, Y).save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model", objects={"Failing": Failing})
    monkeypatch.setattr(Failing, "fails", True)
    with pytest.raises(KeyError, match="no such key") as failure:
        again.predict(X)
    assert "predict failed in" in failure.value.__notes__[0]


@pytest.mark.slow
def test_what_is_saved_is_read(exact, tmp_path):
    """A header describes the values of the structure, and those of the tensors beside them."""
    model = skgpstoch.load(exact)
    model.note_ = [list(range(20_000)), *(np.full(2, i) for i in range(900))]
    model.save(tmp_path / "model")
    assert skgpstoch.load(tmp_path / "model").note_[0] == model.note_[0]


def test_letters_that_might_be_quotes_are_read_once(tmp_path):
    header = b'["' + b'\\"' * 10**6
    (tmp_path / "model").write_bytes(len(header).to_bytes(8, "little") + header)
    refused(tmp_path / "model", "no JSON")


VOID = {
    "an array": lambda nodes: nodes.add_array(np.zeros((10**6, 0))),
    "an array of no rows": lambda nodes: nodes.add_array(np.zeros((0, 2**40))),
    "cells": lambda nodes: nodes.add("cells", "|O", 2, 2**40, 0),
}


@pytest.mark.parametrize("what", VOID)
def test_what_has_no_numbers_has_few_rows(what, exact, tmp_path):
    """From which predictions would make matrices of terabytes."""
    with_attribute(tmp_path / "model", exact, VOID[what])
    refused(tmp_path / "model", "which no saved estimator has|a shape that is none")


@pytest.mark.parametrize(
    "predict", [lambda m: m.predict(X, return_std=True), lambda m: m.predict_std(X)]
)
def test_standard_deviations_are_not_silently_infinite(predict, plain, tmp_path):
    """As those of a model whose noise an editor has made infinite."""

    def change(nodes, tensors):
        tensors[tensor_in(nodes, "Gaussian", "log_noise")[1]][...] = 1e154

    model = edited(plain, tmp_path / "model", change)
    with pytest.raises(ValueError, match=r"predicts inf for .* 1e\+154, in .*log_noise"):
        predict(model)


@pytest.mark.parametrize("of", [SVGPRegressor, skgpstoch], ids=["method", "function"])
@pytest.mark.parametrize("name", ["predict_interval", "predict_std", "sample_y"])
def test_nor_are_intervals_and_draws(name, of, plain):
    model = skgpstoch.load(plain)
    model.posterior_.likelihood.log_noise.data.fill_(1e8)
    with pytest.raises(ValueError, match=r"predicts -?inf for"):
        getattr(of, name)(model, X)


@pytest.mark.parametrize("name", ["interval", "sample", "std"])
def test_nor_are_those_of_distributions(name, plain):
    model = skgpstoch.load(plain)
    model.posterior_.likelihood.log_noise.data.fill_(1e8)
    with pytest.raises(ValueError, match=r"PredictiveDistribution, loaded from .* predicts -?inf"):
        getattr(model.predict_distribution(X), name)()


@pytest.mark.filterwarnings("ignore:overflow")
def test_nor_are_functions_and_gradients(plain):
    model = skgpstoch.load(plain)
    model._y_scaling = model._y_scaling._replace(scale=np.array([1e308]))
    with pytest.raises(ValueError, match=r"SVGPRegressor, loaded from .* predicts -?inf"):
        model.predict_gradient(X)
    with pytest.raises(ValueError, match=r"SampledFunctions, loaded from .* predicts -?inf"):
        model.sample_functions(20)(X)


@pytest.mark.slow
def test_nor_are_latent_variances():
    """Of which the probabilities are NaN."""
    model = SVGPClassifier(n_inducing=5, max_iter=1, random_state=0).fit(X, Y > 0.0)
    model.posterior_.weights.root_0.data.fill_(1e160)
    with pytest.raises(ValueError, match=r"predicts inf for .* 1e\+160, in .*root_0"):
        model.latent_mean_and_variance(X)


def test_likelihoods_are_not_silently_nan(plain):
    model = skgpstoch.load(plain)
    model._y_scaling = model._y_scaling._replace(scale=np.array([1e-300]))
    with pytest.raises(ValueError, match="predicts nan for 1 of 1 values"):
        model.log_marginal_likelihood(X, Y)


def test_draws_are_not_silently_nan():
    """As those of a model whose factors have become integers."""
    predicted = PredictiveDistribution(NormalLaw(np.zeros((3, 1)), np.full((3, 1), np.nan)))
    with pytest.raises(ValueError, match="predicts nan"):
        predicted.sample(2, random_state=0)


def test_probabilities_are_those_of_classes(tmp_path):
    """Or sums would be other than 1."""
    model = GaussianProcessClassifier(optimizer=None).fit(X, np.arange(30) % 3)
    model.base_estimator_.label_binarizer_.y_type_ = "multilabel-indicator"
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="predicts numbers that are no probabilities of its 3 cl"):
        skgpstoch.load(tmp_path / "model").predict_proba(X)


def test_classes_that_all_classifiers_refuse_are_even():
    model = GaussianProcessClassifier(optimizer=None).fit(X, np.arange(30) % 3)
    for each in model.base_estimator_.estimators_:
        each.y_train_ = each.y_train_ - 1e9
    np.testing.assert_array_equal(model.predict_proba(X[:2]), np.full((2, 3), 1.0 / 3.0))


def test_variances_are_not_silently_negative(plain, tmp_path):
    """With the factor of another matrix."""
    model = skgpstoch.load(plain)
    model.posterior_.model.features.frozen_2 *= 3.0
    model.save(tmp_path / "model")
    message = rf"SVGPRegressor, loaded from '{tmp_path}.*predicts a variance of -"
    with pytest.raises(ValueError, match=message):
        skgpstoch.load(tmp_path / "model").predict(X, return_cov=True)


def test_nor_are_those_of_exact_models(exact, tmp_path):
    model = skgpstoch.load(exact)
    model.L_ = 0.1 * model.L_
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="The covariance has a variance of -") as failure:
        skgpstoch.load(tmp_path / "model").predict(X, return_cov=True)
    (note,) = failure.value.__notes__
    assert str(tmp_path / "model") in note


def test_many_atoms_are_computed_in_blocks(monkeypatch):
    """Each takes a number of all parts of a mixture."""
    monkeypatch.setattr(rounded_targets, "PAIRS_AT_A_TIME", 10)
    sizes, cdf = [], NormalLaw.cdf
    monkeypatch.setattr(NormalLaw, "cdf", lambda law, y: sizes.append(y.size) or cdf(law, y))
    law = NormalLaw(np.zeros((2, 1)), np.ones((2, 1)))
    found = LatticeLaw(law, Lattice(np.linspace(-9, 9, 25), 1.0)).atom_probabilities()
    np.testing.assert_allclose(found.sum(1), 1.0)
    assert max(sizes) <= 10


def test_calls_with_too_many_arguments_are_not_the_files_fault(plain):
    with pytest.raises(TypeError, match="positional argument") as failure:
        skgpstoch.load(plain).get_params(True, X)
    assert not hasattr(failure.value, "__notes__")


def test_libraries_do_not_speak_at_load(exact, tmp_path):
    make = lambda nodes: nodes.add("torch device", "nonsense")  # noqa: E731
    with_attribute(tmp_path / "model", exact, make)
    with pytest.raises(ValueError, match="no such object has parts like its own") as refusal:
        skgpstoch.load(tmp_path / "model")
    assert "PrivateUse" not in str(refusal.value)


@pytest.mark.slow
def test_errors_of_the_user_have_no_notes(sparse):
    model = skgpstoch.load(sparse)
    for rows in (X[:, :1], "rows", np.full((2, 2), np.nan)):
        with pytest.raises(ValueError, match=r"X|array") as failure:
            model.predict(rows)
        assert not hasattr(failure.value, "__notes__")
    model.fit(X, Y)
    model.posterior_ = None
    with pytest.raises(AttributeError) as failure:
        model.predict(X)
    assert not hasattr(failure.value, "__notes__")


PARAMETERS = {
    "tol": (-1.0, lambda m: m.partial_fit(X, Y), "The 'tol' parameter of SVGPRegressor must"),
    "device": ("x", lambda m: m.predict(X), "device must be None"),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_errors_of_parameters_name_the_file(name, plain, tmp_path):
    value, use, message = PARAMETERS[name]

    def change(nodes, tensors):
        nodes[-1][nodes[-1].index(name) + 1] = value

    model = edited(plain, tmp_path / "model", change)
    with pytest.raises(ValueError, match=message) as failure:
        use(model)
    (note,) = failure.value.__notes__
    assert f"loaded from '{tmp_path / 'model'}'" in note


@pytest.mark.filterwarnings("ignore")
def test_matrices_without_factors_name_the_file(plain):
    model = skgpstoch.load(plain)
    model.learning_rate_init = 1e200
    with pytest.raises(np.linalg.LinAlgError, match="Training diverged") as failure:
        model.partial_fit(X, Y)
    assert str(plain) in failure.value.__notes__[0]


def test_what_a_module_of_a_file_lacks_is_an_error_of_value(plain, tmp_path):
    def change(nodes, tensors):
        kernel = next(n for n in nodes if n[0] == "module" and "nu" in n)
        at = kernel.index("nu")
        del kernel[at : at + 2]

    model = edited(plain, tmp_path / "model", change)
    with pytest.raises(ValueError, match=r"Matern must define nu or profile\. .*loaded from"):
        model.predict(X)


def test_parameters_that_have_none_say_which(exact):
    model = skgpstoch.load(exact)
    model.kernel.k1 = np.zeros(3)
    with pytest.raises(ValueError, match=r"get_params failed in .*\.kernel, loaded from"):
        model.get_params()


def test_graphs_are_not_silently_nan():
    onnx = pytest.importorskip("skgpstoch.onnx")
    model = GaussianProcessRegressor(sk.DotProduct(1e-3) ** 2, alpha=0.1, optimizer=None)
    model.fit(X, Y).kernel_.exponent = 0.5
    with pytest.raises(ValueError, match="GaussianProcessRegressor predicts nan for"):
        onnx.to_onnx(model)


def waves_of(model):
    return next(m for m in model.posterior_.modules() if isinstance(m, PeriodicInputs))


@pytest.mark.slow
def test_graphs_have_the_waves_of_predictions():
    """Of all members and columns in their order, whatever their numbers in a file are."""
    onnx = pytest.importorskip("skgpstoch.onnx")
    model = DeepKernelEnsembleRegressor(**SMALL).fit(X, Y)
    expected = onnx.to_onnx(model).SerializeToString()
    waves_of(model).columns.fill_(10**6)
    waves_of(model).share.fill_(9.0)
    assert onnx.to_onnx(model).SerializeToString() == expected


@pytest.mark.slow
def test_graphs_have_the_errors_of_neighbours():
    onnx = pytest.importorskip("skgpstoch.onnx")
    model = NNGPRegressor(max_iter=1, random_state=0, n_neighbors_predict=8).fit(X, Y)
    one = torch.ones(1).double()
    nearby = ErrorsNearby(one, 8, 1.0)
    model.posterior_.spread = ErrorScale(one, 1.0, one, nearby, 1.0)
    expected = onnx.to_onnx(model).SerializeToString()
    nearby.k = 10**6
    assert onnx.to_onnx(model).SerializeToString() == expected


@pytest.mark.slow
def test_errors_of_graphs_name_the_file(tmp_path):
    onnx = pytest.importorskip("skgpstoch.onnx")
    model = DeepKernelEnsembleRegressor(**SMALL).fit(np.c_[X, Y > 0.0], Y)
    waves_of(model).columns.fill_(10**6)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"to_onnx failed in .*loaded from"):
        onnx.to_onnx(skgpstoch.load(tmp_path / "model"))


@pytest.mark.slow
def test_graphs_have_the_neighbours_of_predictions():
    onnx = pytest.importorskip("skgpstoch.onnx")
    model = GaussianProcessRegressor(method="nngp", random_state=0).fit(X, Y)
    expected = onnx.to_onnx(model).SerializeToString()
    model.estimator_.posterior_.n_neighbors = 2
    assert onnx.to_onnx(model).SerializeToString() == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_nor_are_those_of_stacks():
    onnx = pytest.importorskip("skgpstoch.onnx")
    inner = [(name, SVGPRegressor(n_inducing=5, max_iter=1, random_state=0)) for name in "ab"]
    model = skgpstoch.StackedDensityRegressor(inner, cv=2).fit(X, Y)
    model.estimators_[1].posterior_.model.mean.value.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="StackedDensityRegressor predicts nan for"):
        onnx.to_onnx(model)


@pytest.mark.slow
def test_estimators_without_a_hash_work_as_well(tmp_path):
    class Unhashable(SVGPRegressor):
        __hash__ = None

    Unhashable(n_inducing=3, max_iter=1).fit(X, Y).save(tmp_path / "model")
    gc.collect()  # models of other tests
    n_loaded = len(failures.LOADED)
    model = skgpstoch.load(tmp_path / "model", objects={"Unhashable": Unhashable})
    assert str(tmp_path / "model") in failures.file_of(model)
    model.predict(X)
    del model
    gc.collect()
    assert len(failures.LOADED) == n_loaded


@pytest.mark.parametrize("cls", [SCGDGaussianProcessRegressor, DeepGPRegressor])
def test_streams_are_saved_with_what_is_not_finite(cls, tmp_path):
    """A bound's error that nobody knows, and a time that has no end yet."""
    model = cls(random_state=0).partial_fit(X, Y)
    model.save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model").partial_fit(X, Y)
    np.testing.assert_array_equal(again.predict(X), model.partial_fit(X, Y).predict(X))


def test_flags_of_columns_are_no_numbers_of_columns():
    """10^8 columns, which one row would fill."""
    encoder = Numbers("a", 0.0, 10**8, 10**8, None)
    assert encoder.filled(np.zeros(3)).shape == (3, encoder.width) == (3, 2)


# ---- layers that compute differently while they train --------------------------------------------


def with_network(cls, path):
    """Save a model whose network has a layer that drops or scales by the rows of a batch."""
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), cls)
    model = SVGPRegressor(feature_map=network, n_inducing=5, max_iter=1, random_state=0)
    model.fit(X, Y).save(path)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("layer", [torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(2)], ids=repr)
@pytest.mark.parametrize("how", ["left out", "true"])
def test_fitted_layers_do_not_train(layer, how, tmp_path):
    """Predictions would be random, or depend on the other rows."""
    model = with_network(layer, tmp_path / "model")
    assert np.array_equal(skgpstoch.load(tmp_path / "model").predict(X), model.predict(X))
    metadata, tensors = taken_apart(tmp_path / "model")
    nodes = nodes_of(metadata)
    kind = ["type", f"nn.{type(layer).__name__}"]
    for node in nodes:
        if node[0] == "module" and nodes[node[1][0]] == kind and "training" in node:
            at = node.index("training")
            node[at : at + 2] = [] if how == "left out" else ["training", True]
    put_together(tmp_path / "model", {**metadata, "structure": structure_of(nodes)}, tensors)
    refused(tmp_path / "model", rf"SVGPRegressor.posterior_ has a {kind[1][3:]} in training mode")


@pytest.mark.slow
@pytest.mark.parametrize("value", [1, None, "tensor"])
def test_a_layer_trains_or_does_not(value, tmp_path):
    """A tensor of several numbers has no truth."""
    with_network(torch.nn.Dropout(0.5), tmp_path / "model")

    def change(nodes, tensors):
        at = next(i for i, n in enumerate(nodes) if n[0] == "module" and "training" in n)
        spot = next(i for i, n in enumerate(nodes) if n[0] == "tensor")
        assert spot < at
        node = nodes[at]
        node[node.index("training") + 1] = [spot] if value == "tensor" else value

    with pytest.raises(ValueError, match=r"training (must be true or false|has arrays)"):
        edited(tmp_path / "model", tmp_path / "model", change)


# ---- what a third attack found -------------------------------------------------------------------

MANY_DIGITS = "9" * 5000
DIGITS = {
    "in the structure": lambda s: s.replace('["list",1.0,', f'["list",{MANY_DIGITS},', 1),
    "of an array": lambda s: re.sub(r'("<f8",)"\d+"', rf'\1"{MANY_DIGITS}"', s, count=1),
}


@pytest.mark.parametrize("where", DIGITS)
def test_integers_have_few_digits(where, exact, tmp_path):
    """Python's own message would tell of its limit of 4,300."""
    metadata, tensors = taken_apart(exact)
    changed = DIGITS[where](metadata["structure"])
    assert MANY_DIGITS in changed
    put_together(tmp_path / "model", {**metadata, "structure": changed}, tensors)
    refused(tmp_path / "model", "an integer of 5000 digits|a size that no memory can have")


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**307], ids=["64", "63", "1000"])
def test_integers_are_those_of_arrays_or_keys(number, exact, tmp_path):
    """Of larger ones NumPy makes objects, and a power of them takes for ever."""
    for make in (lambda _: number, lambda nodes: nodes.add("dict", "a", number)):
        with_attribute(tmp_path / "model", exact, make)
        refused(tmp_path / "model", "an integer is more than 64 bits hold")
    with_attribute(tmp_path / "model", exact, lambda nodes: nodes.add("set", number))
    assert skgpstoch.load(tmp_path / "model").note_ == {number}


def test_products_of_sizes_have_few_digits(exact, tmp_path):
    metadata, tensors = taken_apart(exact)
    table = table_of(tensors)
    table["0"]["shape"] = [10**307] * 32
    put_together(tmp_path / "model", metadata, tensors, table)
    refused(tmp_path / "model", "its tensor 0 has the shape")


def doubled_objects(nodes, form, name, inner, fields, depth=10):
    """An object that holds another one twice, and so on."""
    of_class = nodes.add("type", name)
    for _ in range(depth):
        inner = nodes.add(form, of_class, *fields(nodes, inner))
    return inner


def doubled_sums(nodes):
    bounds = ("constant_value", 1.0, "constant_value_bounds", "fixed")
    constant = nodes.add("object", nodes.add("type", "sklearn.ConstantKernel"), *bounds)
    fields = lambda _, inner: ("k1", inner, "k2", inner)  # noqa: E731
    return doubled_objects(nodes, "object", "sklearn.Sum", constant, fields)


def doubled_networks(nodes):
    identity = nodes.add("module", nodes.add("type", "nn.Identity"))
    fields = lambda nodes, inner: ("_modules", nodes.add("dict", "0", inner, "1", inner))  # noqa: E731
    return doubled_objects(nodes, "module", "nn.Sequential", identity, fields)


@pytest.mark.parametrize("make", [doubled_sums, doubled_networks])
def test_what_computes_does_not_repeat(make, exact, tmp_path):
    """To fit and to predict with 2^10 kernels takes far longer than the file tells."""
    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "estimators repeat too often|a kernel has more than 64 parts")


def with_many(nodes, name, *fields):
    """A thousand estimators that share their fields."""
    of_class = nodes.add("type", name)
    return nodes.add("list", *(nodes.add("object", of_class, *fields) for _ in range(1000)))


def sharing_names(nodes):
    names = nodes.add("cells", "|O", 1, 1000, *[""] * 1000)
    return with_many(nodes, "SVGPRegressor", "feature_names_in_", names)


def sharing_steps(nodes):
    steps = nodes.add("list", *[nodes.add("tuple", "a", "b")] * 1000)
    return with_many(nodes, "sklearn.Pipeline", "steps", steps)


def sharing_weights(nodes):
    names = nodes.add("list", *[1] * 1000)
    return with_many(nodes, "SVGPRegressor", "posterior_", names)


@pytest.mark.parametrize("make", [sharing_names, sharing_steps, sharing_weights])
def test_estimators_do_not_share_what_each_looks_at(make, exact, tmp_path):
    """Checks that are quick for each took as long as the number of pairs."""
    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "its estimators and kernels share too much")


def test_kernels_do_not_share_lists_that_each_looks_at(exact, tmp_path):
    def kernels(nodes):
        of_class = nodes.add("type", "sklearn.RBF")
        lists = nodes.add("list", *[nodes.add_array(np.ones(1000))] * 1000)
        fields = ("length_scale", lists, "length_scale_bounds", "fixed")
        return nodes.add("list", *(nodes.add("object", of_class, *fields) for _ in range(100)))

    with_attribute(tmp_path / "model", exact, kernels)
    refused(tmp_path / "model", "its estimators and kernels share too much")


@pytest.mark.parametrize("kind", ["array", "text"])
def test_lists_do_not_repeat_what_is_written_out(kind, exact, tmp_path):
    """Whoever makes an array or a message of such a list needs gigabytes."""

    def repeated(nodes):
        shared = nodes.add("list", "x" * 9999)
        if kind == "array":
            shared = nodes.add_array(np.ones(5000))
        return nodes.add("list", *[nodes.add("list", *[shared] * 100)] * 100)

    with_attribute(tmp_path / "model", exact, repeated)
    refused(tmp_path / "model", "its lists repeat arrays or texts too often")


def test_objects_do_not_repeat_texts(exact, tmp_path):
    """Which their own text has, however many there are."""

    def make(nodes):
        of_class = nodes.add("type", "SVGPRegressor")
        inner = nodes.add("object", of_class, "solver", "x" * 200_000)
        return nodes.add("object", of_class, "steps", nodes.add("list", *[inner] * 100))

    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", "its kernels, networks or estimators repeat too often")


LONG_FINDING = Finding("x" * 200_000, "y", 1.0, 2.0)


def test_lines_of_tables_are_as_long_as_cells_for_people(plain, tmp_path):
    """All lines are as long as the longest, which took gigabytes."""
    model = skgpstoch.load(plain)
    model._diagnosis = Diagnosis([LONG_FINDING, *[Finding("a", "b", 1.0, 2.0)] * 3000])
    model.save(tmp_path / "model")
    assert len(str(skgpstoch.load(tmp_path / "model").diagnose())) < 10**6
    frame = pd.DataFrame({"model": ["x" * 10_000, "y"], "score": 1.0})
    assert len(str(Report(frame, frame, frame))) < 10_000
    model._diagnosis = Diagnosis([LONG_FINDING] * 1000)
    with pytest.raises(ValueError, match="its lists repeat arrays or texts too often"):
        model.save(tmp_path / "model")


def test_a_diagnosis_consists_of_findings(plain, tmp_path):
    """Another object among them was a bare AttributeError when the diagnosis was printed."""

    def make(nodes):
        scaler = nodes.add(
            "object", nodes.add("type", "sklearn.StandardScaler"), "severity", "fine"
        )
        return nodes.add("sequence", nodes.add("type", "Diagnosis"), scaler)

    with_attribute(tmp_path / "model", plain, make, "_diagnosis")
    refused(tmp_path / "model", "a diagnosis must consist of findings")


def test_an_array_is_looked_at_once_wherever_it_is_shared(exact, monkeypatch):
    """To name the most extreme number took as long as all references to an array together."""
    model = skgpstoch.load(exact)
    model.note_ = [np.full(1000, 1e12)] * 100
    sizes, log10 = [], np.log10

    def counted(a):
        sizes.append(np.size(a))
        return log10(a)

    monkeypatch.setattr(np, "log10", counted)
    assert "1e+12, in GaussianProcessRegressor.note_" in failures.Parts(model).most_extreme()
    assert sum(size >= 1000 for size in sizes) == 1


@pytest.mark.slow
def test_to_name_the_most_extreme_number_copies_no_array(exact):
    """It made five copies of each."""
    model = skgpstoch.load(exact)
    model.note_ = np.full(64 * failures.AT_ONCE, 1e12)
    tracemalloc.start()
    assert "1e+12, in GaussianProcessRegressor.note_" in failures.Parts(model).most_extreme()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < model.note_.nbytes


def test_places_are_of_what_has_methods(exact):
    """Those of all values, each within 180 dicts, took a gigabyte."""
    model = skgpstoch.load(exact)
    model.note_ = [0.5] * 1000
    for _ in range(180):
        model.note_ = {"a" * 40: model.note_}
    places = failures.Parts(model).places
    assert places[id(model.kernel_)] == "GaussianProcessRegressor.kernel_"
    assert max(map(len, places.values())) <= 200
    assert len(places) < 100


def test_labels_are_as_wide_as_their_texts(exact, tmp_path):
    """Predictions repeat them: some rows took gigabytes."""

    def labels(nodes):
        return nodes.add("cells", "<U1000000", 1, 2, "x" * 30_000, "y")

    with_attribute(tmp_path / "model", exact, labels)
    refused(tmp_path / "model", "an array of strings cannot have the type <U1000000")


@pytest.mark.slow
def test_wide_arrays_of_short_labels_are_kept(tmp_path):
    """As databases return them."""
    model = SVGPClassifier(n_inducing=3, max_iter=1, random_state=0)
    model.fit(X, np.where(Y > 0, "yes", "no").astype("<U500")).save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_numbers_that_no_file_has_are_named(tmp_path):
    model = GaussianProcessRegressor(alpha=np.longdouble(0.1)).fit(X, Y)
    with pytest.raises(ValueError, match=r"alpha is np\.longdouble"):
        model.save(tmp_path / "model")


def test_models_of_huge_targets_are_kept(tmp_path):
    """Their noise variance overflows, which no prediction needs."""
    model = SVGPRegressor(n_inducing=3, max_iter=1, random_state=0).fit(X, 1e200 * Y)
    model.save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_paths_that_are_none_are_named(exact, tmp_path):
    model = skgpstoch.load(exact)
    with pytest.raises(ValueError, match="path must not contain null characters"):
        model.save(str(tmp_path / "a\0b"))
    with pytest.raises(ValueError, match="path must be text that names can have"):
        model.save(str(tmp_path / "a\ud800b"))
    for name in ("a\0b", "a\ud800b"):
        with pytest.raises(ValueError, match="checkpoint_dir must be a folder"):
            SVGPRegressor(checkpoint_dir=name).fit(X, Y)


def test_only_our_own_leftovers_are_removed(exact, tmp_path):
    other, own = (tmp_path / f".model.{letter * 32}.tmp" for letter in "z0")
    other.write_text("mine")
    own.write_text("left over")
    skgpstoch.load(exact).save(tmp_path / "model")
    assert other.exists()
    assert not own.exists()


def hidden_network(nodes):
    """A network that the module itself would find, but not what looks through its modules."""
    network = nodes.add("module", nodes.add("type", "nn.Identity"))
    return nodes.add("module", nodes.add("type", "InducingFeatures"), "network", network)


def hidden_weight(nodes):
    a = nodes.add_array(np.ones((2, 2), np.float32))
    weight = nodes.add("tensor", a, None)
    return nodes.add("module", nodes.add("type", "nn.Linear"), "weight", weight)


def network_as_limits(nodes):
    network = nodes.add("module", nodes.add("type", "nn.Flatten"))
    modules = nodes.add("dict", "limits", network)
    return nodes.add("module", nodes.add("type", "NetworkFeatures"), "_modules", modules)


def network_in_a_list(nodes):
    network = nodes.add("module", nodes.add("type", "nn.Flatten"))
    layers = nodes.add("dict", "0", network)
    layers = nodes.add("module", nodes.add("type", "nn.ModuleList"), "_modules", layers)
    modules = nodes.add("dict", "layers", layers)
    return nodes.add("module", nodes.add("type", "DeepFeatures"), "_modules", modules)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (hidden_network, "InducingFeatures.network is not one of its modules or parameters"),
        (hidden_weight, "Linear.weight is not one of its modules or parameters"),
        (network_as_limits, "NetworkFeatures.limits cannot be a Flatten"),
        (network_in_a_list, "DeepFeatures.layers cannot be a ModuleList"),
    ],
)
def test_networks_are_where_they_are_looked_at(make, message, exact, tmp_path):
    """Elsewhere no check saw how much they make of a row."""
    with_attribute(tmp_path / "model", exact, make)
    refused(tmp_path / "model", re.escape(message))


def test_numbers_of_jobs_are_not_written_out(exact, tmp_path):
    """The text of a list that repeats a long text takes gigabytes."""

    def lists(nodes):
        jobs = nodes.doubled("list", 11, nodes.add("list", "x" * 10_000))
        return nodes.add("object", nodes.add("type", "DLMRegressor"), "n_jobs", jobs)

    with_attribute(tmp_path / "model", exact, lists)
    refused(tmp_path / "model", "n_jobs is a list, not an integer")


def test_few_folders_are_warned_of(exact, tmp_path):
    """Each warning wrote out a long path."""

    def folders(nodes):
        of_class = nodes.add("type", "SVGPRegressor")
        paths = [nodes.add("path", str(i) + "x" * 1000) for i in range(100)]
        fields = (("checkpoint_dir", path) for path in paths)
        return nodes.add("list", *(nodes.add("object", of_class, *each) for each in fields))

    with_attribute(tmp_path / "model", exact, folders)
    with pytest.warns(UserWarning, match="is not used") as told:
        again = skgpstoch.load(tmp_path / "model")
    assert len(told) <= 10
    assert not any(each.checkpoint_dir for each in again.note_)


def test_a_few_equal_kernels_are_one_object(tmp_path):
    kernel = sk.RBF()
    for _ in range(5):
        kernel = kernel + kernel
    model = GaussianProcessRegressor(kernel, optimizer=None)
    model.save(tmp_path / "model")
    assert skgpstoch.load(tmp_path / "model").kernel == kernel


@pytest.mark.parametrize(
    "model",
    [
        GaussianProcessRegressor(
            sk.PairwiseKernel(metric="rbf", pairwise_kernels_kwargs={"n_jobs": 1024})
        ),
        DLMRegressor(n_jobs=20_000),
    ],
    ids=["threads that predict", "processes that fit"],
)
def test_joblib_starts_no_thousands(model, tmp_path):
    with pytest.raises(ValueError, match=r"has n_jobs=(1024, more than 16|20000, more than 1024)"):
        model.save(tmp_path / "model")


def test_functions_of_numpy_take_no_arguments_from_files(tmp_path):
    """`where` leaves out numbers, whose memory then shows; `out` writes into the model."""
    transform = FunctionTransformer(np.log1p, np.expm1, inv_kw_args={"where": False})
    with pytest.raises(ValueError, match="has inv_kw_args of a NumPy function"):
        SVGPRegressor(target_transform=transform).save(tmp_path / "model")


@pytest.mark.slow
def test_a_file_chooses_no_folder(tmp_path):
    """Where `fit` would read and write."""
    model = SVGPRegressor(n_inducing=3, max_iter=1, checkpoint_dir=str(tmp_path / "chosen"))
    inner = SVGPRegressor(checkpoint_dir=tmp_path / "chosen")
    model.note_ = [inner]
    model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match="chose") as told:
        again = skgpstoch.load(tmp_path / "model")
    expected = f"The file's checkpoint_dir={str(tmp_path / 'chosen')[:60]!r} is not used"
    assert [str(each.message).split(",")[0] for each in told] == [expected] * 2
    assert again.checkpoint_dir is None
    assert again.note_[0].checkpoint_dir is None
    again.fit(X, Y)
    assert not (tmp_path / "chosen").exists()
    model.fit(X, Y)
    assert (tmp_path / "chosen").exists()


@pytest.mark.parametrize("n_inputs", [1, 10**5])
def test_frequencies_are_as_many_as_the_columns_of_rows(n_inputs, tmp_path):
    """A file of a few kilobytes could ask for a much larger matrix; a graph would have others."""
    model = QSGPRegressor(n_subset=10, n_components=20, max_iter=1, random_state=0).fit(X, Y)
    model.save(tmp_path / "model")
    model.posterior_.model.basis.n_inputs = n_inputs
    message = rf"basis\.n_inputs has the shape \({n_inputs},\), not \(d\), d=2"
    with pytest.raises(ValueError, match=message):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("kernel", ["a large order", "no order", sk.RationalQuadratic()])
def test_kernels_of_frequencies_have_some(kernel, tmp_path):
    """Predictions would say that the user's kernel has none, and no file."""
    model = QSGPRegressor(sk.Matern(), n_subset=10, n_components=20, max_iter=1, random_state=0)
    basis = model.fit(X, Y).posterior_.model.basis
    if isinstance(kernel, str):
        basis.kernel.nu = 1e30 if kernel == "a large order" else None
    else:
        basis.kernel = from_sklearn(kernel)
    with pytest.raises(ValueError, match="kernel must have random Fourier features"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("name", ["n_groups", "n_inputs"])
def test_graphs_have_no_gigabytes_of_frequencies(name):
    onnx = pytest.importorskip("skgpstoch.onnx")
    model = QSGPRegressor(n_subset=10, n_components=20, max_iter=1, random_state=0).fit(X, Y)
    vars(model.posterior_.model.basis)[name] = 10**9
    with pytest.raises(onnx.CannotExport, match="so many Fourier features"):
        onnx.to_onnx(model)


def test_frequencies_of_a_huge_order_are_refused():
    """Each would take 2·10^12 numbers."""
    kernel = from_sklearn(sk.Matern(nu=1.5))
    kernel.nu = 1e12
    with pytest.raises(TypeError, match="has no finite features"):
        base_frequencies(kernel, torch.arange(2), 1, 0)


@pytest.mark.parametrize("name", ["amsgrad", "differentiable", "lr"])
def test_streams_take_no_settings_from_files(name, tmp_path):
    """With another's, torch raises errors of its own."""
    model = SVGPRegressor(n_inducing=5, random_state=0).partial_fit(X, Y)
    model._stream.optimizer["param_groups"][0][name] = 1e308
    model.save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model").partial_fit(X, Y)
    same = SVGPRegressor(n_inducing=5, random_state=0).partial_fit(X, Y).partial_fit(X, Y)
    np.testing.assert_array_equal(again.predict(X), same.predict(X))


def test_messages_do_not_show_all_of_a_parameter():
    """Which scikit-learn writes out in full."""
    model = SVGPRegressor(solver="a" * 10**6)
    with pytest.raises(ValueError, match="The 'solver' parameter of SVGPRegressor") as refusal:
        model.fit(X, Y)
    assert len(str(refusal.value)) < 6000


def test_nor_of_a_part_of_a_file(exact, tmp_path):
    model = skgpstoch.load(exact)
    names = [["k1__k2__length_scale", *["k1__k1__constant_value"] * 1000]]
    model.kernel_ = TiedKernel(model.kernel_, names)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="ties must use each name only once, got") as refusal:
        skgpstoch.load(tmp_path / "model").predict(X)
    assert len(str(refusal.value)) < 6000


def test_nor_of_what_a_parameter_was(plain):
    model = skgpstoch.load(plain)
    name = next(iter(model._fitted_parameters))
    model._fitted_parameters = {**model._fitted_parameters, name: "a" * 10**6}
    with pytest.raises(ValueError, match=rf"{name}=.* \(before: a+\) needs") as refusal:
        model.partial_fit(X, Y)
    assert len(str(refusal.value)) < 1000


def test_names_of_attributes_that_messages_would_not_show(exact, tmp_path):
    name = "note\x1b[2J\nINFO admin logged in"
    with_attribute(tmp_path / "model", exact, lambda nodes: nodes.add("float", "nan"), name)
    refused(tmp_path / "model", "names of attributes must be such as Python's")


def test_kernels_are_kernels(exact, tmp_path):
    """Any part of ours was one, until the first look at its parameters."""
    model = skgpstoch.load(exact)
    model.kernel_ = model.diagnose()
    with pytest.raises(ValueError, match=r"\.kernel_ is a Diagnosis, which it cannot be"):
        model.save(tmp_path / "model")


def test_factors_of_neighbours_are_as_many_as_the_parameters_say(tmp_path):
    """A file of 2,000 rows had a factor of all rows for each of them."""
    model = NNGPRegressor(max_iter=1, random_state=0).fit(X, Y)
    model.posterior_.n_joint = 257
    with pytest.raises(ValueError, match="n_joint is 257, but n_neighbors is 32"):
        model.save(tmp_path / "model")
    model.set_params(n_neighbors=257).save(tmp_path / "model")
    model.posterior_.n_joint = 140
    model.set_params(n_neighbors=10).save(tmp_path / "model")  # for the next fit
    model.posterior_.n_joint = 1e18
    with pytest.raises(ValueError, match="n_joint must be integers"):
        model.save(tmp_path / "model")


@pytest.mark.filterwarnings("ignore:.*rows are too few")
def test_parameters_that_do_not_exist_are_no_fault_of_the_file(tmp_path):
    models = [SVGPRegressor(n_inducing=3, max_iter=1), GaussianProcessRegressor(optimizer=None)]
    stack = skgpstoch.StackedDensityRegressor([*zip("ab", models, strict=True)], cv=2).fit(X, Y)
    stack.save(tmp_path / "model")
    with pytest.raises(ValueError, match="Invalid parameter 'device' for") as failure:
        skgpstoch.load(tmp_path / "model").set_params(device="cpu")
    assert not hasattr(failure.value, "__notes__")


@pytest.fixture(scope="module")
def of_levels():
    rng = np.random.default_rng(0)
    kinds = pd.CategoricalDtype(["low", "middle", "high"], ordered=True)
    levels, size = (rng.integers(0, 3, 60) for _ in range(2))
    frame = pd.DataFrame(
        {"level": np.array(list("xyz"))[levels], "size": np.array(kinds.categories)[size]}
    )
    frame = frame.astype({"size": kinds})
    return AutoGaussianProcessRegressor(random_state=0, max_time=1).fit(
        frame, levels + size + 0.1 * rng.normal(size=60)
    )


def one_hot(encoder):
    return next(each for each in encoder.encoders if type(each).__name__ == "OneHot")


CONTRADICTING = {
    "one number for two levels": lambda e: one_hot(e).levels.update(y=0),
    "a number too large": lambda e: one_hot(e).levels.update(y=7),
    "a level that is not there": lambda e: one_hot(e).levels.update(w=one_hot(e).levels.pop("y")),
    "places that are equal": lambda e: e.encoders[1].places.update(high=1),
    "a kind": lambda e: e.kinds.__setitem__(0, "UTC+05:30"),
    "a time zone": lambda e: e.time_zones.__setitem__(0, 7),
}


@pytest.mark.parametrize("edit", CONTRADICTING.values(), ids=CONTRADICTING)
def test_levels_that_contradict_one_another_are_refused(of_levels, edit, tmp_path):
    """They predicted something else in silence. What cannot be loaded is not saved either."""
    model = copy.deepcopy(of_levels)
    model.save(tmp_path / "model")
    edit(model._encoder)
    with pytest.raises(ValueError, match=r"cannot be saved: .*(levels|places|kind|time zone)"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize(
    ("likelihood", "name", "value"),
    [
        ("gaussian", "known", 0.5),
        ("gaussian", "ratio", 2.0),
        ("poisson", "exposure", -1.0),
    ],
)
def test_likelihoods_of_files_know_no_rows(likelihood, name, value, tmp_path):
    """Predictions used them, and graphs did not."""
    model = SVGPRegressor(likelihood=likelihood, n_inducing=5, max_iter=4, random_state=0)
    model.fit(X, np.arange(len(X)) % 3).save(tmp_path / "model")
    setattr(model.posterior_.model.likelihood, name, value)
    with pytest.raises(ValueError, match=rf"\.{name} is set, as in no model"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("cls", [SVGPClassifier, NNGPClassifier])
def test_likelihoods_have_as_many_classes_as_the_model(cls, tmp_path):
    """Probabilities of predictions and of graphs differed."""
    model = cls(max_iter=4, random_state=0).fit(X, np.arange(len(X)) % 3)
    model.save(tmp_path / "model")
    model.posterior_.likelihood.n_classes = 1
    with pytest.raises(ValueError, match="predicts 3 classes, but its posterior_ predicts 1 class"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("n_features", [18, 40, 131_072])
def test_frequencies_make_as_many_features_as_a_file_says(n_features, tmp_path):
    """Predictions were divided by the root of the number that the file said."""
    model = SCGDGaussianProcessRegressor(sk.RBF(), n_components=20, max_iter=2, random_state=0)
    model.fit(X, Y)
    term = next(p for p in model.posterior_.features.modules() if isinstance(p, FourierTerm))
    term.n_features = n_features
    with pytest.raises(ValueError, match=f"10 frequencies do not make {n_features} features"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("skip", [1, 131_072])
def test_inputs_are_divided_by_the_root_of_their_number(skip, tmp_path):
    """Whatever a file says; predictions were others."""
    model = DeepKernelEnsembleRegressor(hidden_layer_sizes=(6,), n_estimators=2, max_iter=3)
    model.set_params(random_state=0).fit(X, Y).save(tmp_path / "model")
    assert model.posterior_.model.features.skip == X.shape[1]
    model.posterior_.model.features.skip = skip
    model.save(tmp_path / "edited")
    expected = skgpstoch.load(tmp_path / "model").predict(X)
    np.testing.assert_array_equal(skgpstoch.load(tmp_path / "edited").predict(X), expected)


POINTS = {
    "turned round": lambda a: a.flip(0),
    "from the end": lambda a: a - len(a),
    "twice": lambda a: torch.where(a == 1, 0, a),
    "one too many": lambda a: a + 1,
}


@pytest.mark.parametrize("edit", POINTS.values(), ids=POINTS)
def test_points_of_classes_are_rows_in_order(edit, tmp_path):
    """Rows that are counted from the end, twice or in another order predict in silence."""
    model = ExactProcessClassifier(random_state=0).fit(X, Y > 0.0)
    model.save(tmp_path / "model")
    points = model._processes[0].points
    model._processes[0] = model._processes[0]._replace(points=edit(points))
    with pytest.raises(ValueError, match="the points of a process are not numbers of rows"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("classes", [[-1, 1], [0, 2], ["a", "b"]], ids=str)
@pytest.mark.parametrize("kind", ["one_vs_one", "one_vs_rest"])
def test_parts_of_many_classes_are_for_0_and_1(kind, classes, tmp_path):
    """scikit-learn counts votes for 0 and 1: with others labels were wrong, in silence."""
    model = GaussianProcessClassifier(multi_class=kind, optimizer=None)
    model.fit(X, np.arange(len(X)) % 3).save(tmp_path / "model")
    model.base_estimator_.estimators_[0].classes_ = np.array(classes)
    with pytest.raises(ValueError, match="or has other parts"):
        model.save(tmp_path / "model")


@pytest.fixture(scope="module")
def with_factors():
    """Models that have factors within, by the class that has them."""
    few = {"hidden_layer_sizes": (6,), "n_estimators": 2, "max_iter": 3, "random_state": 0}
    to_normal = QuantileTransformer(n_quantiles=20)
    return {
        "ExactProcessClassifier": ExactProcessClassifier(random_state=0).fit(X, Y > 0.0),
        "MixturePosterior": DeepKernelEnsembleRegressor(**few).fit(X, Y),
        "InputLimits": DeepKernelEnsembleClassifier(**few).fit(X, Y > 0.0),
        "ErrorScale": NNGPRegressor(random_state=0).fit(X, Y),
        "Categorical": SVGPClassifier(likelihood="robustmax", n_inducing=5, max_iter=2).fit(
            X, np.arange(len(X)) % 3
        ),
        "QuantileTransformer": SVGPRegressor(
            target_transform=to_normal, n_inducing=5, max_iter=2, random_state=0
        ).fit(X, Y),
    }


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("ExactProcessClassifier", "_confidence", -1.0),
        ("ExactProcessClassifier", "_processes.0.confidence", 0.0),
        ("MixturePosterior", "posterior_.mean_shrinkage", 1e6),
        ("MixturePosterior", "posterior_.disagreement_scale", -5.0),
        ("MixturePosterior", "posterior_.exponent", -1.0),
        ("MixturePosterior", "posterior_.members.0.model.features.scale", torch.tensor(-1.0)),
        ("InputLimits", "posterior_.members.0.model.features.limits.low", torch.ones(2) * 9.0),
        ("Categorical", "posterior_.likelihood.epsilon", -1.0),
        ("Categorical", "posterior_.model.likelihood.epsilon", 1.0),
        ("Categorical", "posterior_.model.features.amplitude", -1.0),
        ("ErrorScale", "posterior_.spread.exponent", 0.0),
        ("ErrorScale", "posterior_.spread.most_odds", torch.tensor([-1.0]).double()),
        ("QuantileTransformer", "target_transformer_.references_", np.linspace(1.0, 0.0, 20)),
    ],
)
def test_factors_are_as_in_fits(with_factors, kind, path, value, tmp_path):
    """Labels and deviations were others in silence, or all labels were turned."""
    model, (*path, name) = copy.deepcopy(with_factors[kind]), path.split(".")
    model.save(tmp_path / "model")
    part, whole = model, None
    for each in path:
        whole, part = part, part[int(each)] if each.isdigit() else getattr(part, each)
    if isinstance(part, tuple):
        whole[0] = part._replace(**{name: value})
    else:
        setattr(part, name, value)
    with pytest.raises(ValueError, match=rf"{name} must be (positive|from 0|at|different|inside)"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("link", ["zzz", None, 7], ids=str)
@pytest.mark.parametrize("likelihood", ["poisson", "bernoulli", "softmax"])
def test_links_are_those_that_there_are(likelihood, link, tmp_path):
    """Any other was taken for one of them, not by all methods for the same one."""
    cls = SVGPRegressor if likelihood == "poisson" else SVGPClassifier
    n_classes = 3 if likelihood == "softmax" else 2
    model = cls(likelihood=likelihood, n_inducing=5, max_iter=2, random_state=0)
    model.fit(X, np.arange(len(X)) % n_classes).save(tmp_path / "model")
    model.posterior_.model.likelihood.link = link
    with pytest.raises(ValueError, match="link must be one of"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("width", [1, 2, 50])
@pytest.mark.parametrize("cls", [NNGPRegressor, NNGPClassifier])
def test_rows_of_neighbours_are_there_once(cls, width, tmp_path):
    """Where no network maps rows; predictions took the others."""
    model = cls(max_iter=2, random_state=0).fit(X, Y if cls is NNGPRegressor else Y > 0.0)
    model.save(tmp_path / "model")
    model.posterior_.inputs = torch.ones(len(X), width, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"posterior_.inputs has the shape|no network that maps"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("called", [np.negative, float])
def test_modules_do_not_call_what_a_file_names(called, tmp_path):
    """torch calls it in place of `forward`."""
    model = SVGPRegressor(n_inducing=5, max_iter=2, random_state=0).fit(X, Y)
    model.save(tmp_path / "model")
    model.posterior_.model.features.kernel._compiled_call_impl = called
    with pytest.raises(ValueError, match="attribute '_compiled_call_impl'"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("edit", ["no levels", "other levels", "no names"])
def test_columns_have_levels_where_encoders_do(of_levels, edit, tmp_path):
    """New levels were not told, and predictions at them were too certain."""
    model = copy.deepcopy(of_levels)
    model.save(tmp_path / "model")
    if edit == "no names":
        model._encoder.names = []
    else:
        model._encoder.levels = [None] * 2 if edit == "no levels" else model._encoder.levels[::-1]
    with pytest.raises(ValueError, match=r"cannot be saved: .*(levels|names)"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("kind", ["a list", "a function"])
def test_hooks_are_hooks(kind, tmp_path):
    model = SVGPRegressor(n_inducing=5, max_iter=2, random_state=0).fit(X, Y)
    model.save(tmp_path / "model")
    model.posterior_.model.__dict__["_backward_hooks"] = [1] if kind == "a list" else np.exp
    with pytest.raises(ValueError, match="has _backward_hooks, which a file cannot contain"):
        model.save(tmp_path / "model")


def test_likelihoods_do_not_hide_constants(tmp_path):
    model = SVGPRegressor(likelihood="poisson", n_inducing=5, max_iter=2, random_state=0)
    model.fit(X, np.arange(len(X)) % 3).save(tmp_path / "model")
    model.posterior_.likelihood.is_discrete = False
    with pytest.raises(ValueError, match="Poisson cannot have an attribute 'is_discrete'"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("name", ["has_cheap_mean", "share_of_variance", "noise_counts"])
def test_fields_do_not_hide_constants(name, tmp_path):
    """Counts of −.5 were predicted, in silence."""
    model = NNGPRegressor(likelihood="poisson", max_iter=2, random_state=0)
    model.fit(X, np.arange(len(X)) % 3).save(tmp_path / "model")
    model.posterior_.__dict__[name] = True
    with pytest.raises(ValueError, match=f"cannot have an attribute '{name}'"):
        model.save(tmp_path / "model")


def test_parts_of_modules_have_names_of_their_own(tmp_path):
    """Predictions used the field, and all checks of shapes; copies to a device the parameter."""
    model = SVGPRegressor(n_inducing=5, max_iter=2, random_state=0).fit(X, Y)
    model.save(tmp_path / "model")
    model.posterior_.likelihood.__dict__["log_noise"] = torch.tensor([3.0], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"Gaussian has two parts, or a part and a field, of one"):
        model.save(tmp_path / "model")


def test_odd_numbers_of_features_and_constant_inputs_are_kept(tmp_path):
    rows = np.column_stack([X, np.ones(len(X))])
    model = SCGDGaussianProcessRegressor(sk.RBF(), n_components=21, max_iter=2, random_state=0)
    model.fit(rows, Y).save(tmp_path / "model")
    assert np.isfinite(skgpstoch.load(tmp_path / "model").predict(rows)).all()
    InputLimits(torch.ones(3, 2)).check_parts()


@pytest.mark.parametrize(
    "appended",
    [3, (3,), (3, 0.0), (-1, (0.0,)), (10**9, (0.0,)), (3, ("x",)), (3.0, (0.0,)), (3, (0.0, 0.0))],
)
def test_rows_that_wait_to_be_judged_are_few(appended, tmp_path):
    model = SVGPRegressor(n_inducing=3, max_iter=1, random_state=0).fit(X, Y)
    model.condition_on(X[:3], Y[:3]).save(tmp_path / "model")
    model._appended = appended
    with pytest.raises(ValueError, match="_appended must be"):
        model.save(tmp_path / "model")

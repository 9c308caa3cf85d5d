"""Edit saved files at random, where it may hurt, and read them in a process that is measured."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
from made_by_hand import Nodes, nodes_of, put_together, structure_of, taken_apart

from skgpstoch.persistence.forms import FORMS
from skgpstoch.persistence.registry import known_functions, known_types
from skgpstoch.persistence.tensor_file import TYPES, table_of

FORMS_OF_ALL = [*FORMS, "array", "type", "function", "object as it is", "reduce"]
ATOMS = [
    *(0, 1, -1, 2, 9, 2**31, 2**63, -(2**63), 10**9, 10**300, 0.0, -0.5, 1e-300, 1e308, 3.0),
    *("", "a", "nan", "inf", "-inf", "cpu", "cuda:0", "meta", "float32", "bfloat16", "quint8"),
    *("<f8", "<f4", "<f2", "|O", "<U9", "<U99999999", "<M8[ns]", "<i8", "(9,9)<f8", "V9", "|b1"),
    *("1", "0,1", "1,0", "0,99999999,99999999", "99999999", "lower", "upper", "symmetric", "-3"),
    *(
        "dateutil//dev/stdin",
        "UTC",
        "M",
        "left",
        "exp",
        "_forward_hooks",
        "_parameters",
        "__class__",
    ),
    *("x" * 99, "\U0001f600", "\ud800", None, True, False),
]
HUGE = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e300, -1e300, 5e-324, 1e-30, 1e18]


class Fuzzer:
    """Make files out of saved ones.

    Parameters
    ----------
    seeds : list of Path
        Saved files.
    rng : Generator
        Source of random numbers.
    """

    def __init__(self, seeds, rng):
        self.seeds = [taken_apart(path) for path in seeds]
        self.rng = rng
        self.names = [*known_types(), *known_functions(), "own.Thing", "os.system", "Popen"]

    def one(self, among):
        return among[int(self.rng.integers(len(among)))]

    def write(self, path):
        """Write a file with one to four edits, and the right digest."""
        metadata, tensors = self.one(self.seeds)
        nodes = Nodes(nodes_of(metadata), [a.copy() for a in tensors])
        for _ in range(self.rng.integers(1, 5)):
            with contextlib.suppress(IndexError, ValueError, TypeError):  # others left nothing
                self.one(EDITS)(self, nodes)
        metadata = {**metadata, "structure": structure_of(nodes)}
        if "fit" in metadata:
            metadata["fit"] = path.stem
        table = table_of(nodes.tensors)
        if self.rng.random() < 0.05:
            self.edit_table(table)
        if self.rng.random() < 0.02:
            metadata[self.one(list(metadata))] = str(self.one(ATOMS))
        put_together(path, metadata, nodes.tensors, table)

    def part(self, nodes):
        """Anything that a node may hold."""
        if self.rng.random() < 0.5:
            return [int(self.rng.integers(len(nodes) + 1))]
        return self.one([*ATOMS, self.one(self.names)])

    def edit_table(self, table):
        entry = table[self.one(list(table))]
        entry[self.one(list(entry))] = self.one(
            [[2**62], [0, 2**62], [1] * 40, [-1], [0, 0], [True], "F16", "F64", "BOOL", "F128", 3]
        )


# ---- edits of nodes ------------------------------------------------------------------------------


def replace_part(fuzzer, nodes):
    node = fuzzer.one(nodes)
    node[fuzzer.rng.integers(len(node))] = fuzzer.part(nodes)


def replace_word(fuzzer, nodes):
    """By another one that some node has, which fits more often."""
    node, other = fuzzer.one(nodes), fuzzer.one(nodes)
    node[fuzzer.rng.integers(len(node))] = fuzzer.one(other)


def change_form(fuzzer, nodes):
    fuzzer.one(nodes)[0] = fuzzer.one(FORMS_OF_ALL)


def rename(fuzzer, nodes):
    named = [node for node in nodes if node[0] in ("type", "function", "ufunc")]
    if named:
        fuzzer.one(named)[1] = fuzzer.one(fuzzer.names)


def repeat(fuzzer, nodes):
    """A part many times."""
    node = fuzzer.one(nodes)
    parts = node[1 + int(fuzzer.rng.integers(2)) :]
    node += parts * int(2 ** fuzzer.rng.integers(1, 12) // max(len(parts), 1))


def drop(fuzzer, nodes):
    node = fuzzer.one(nodes)
    del node[fuzzer.rng.integers(len(node)) :]


def swap(fuzzer, nodes):
    i, j = fuzzer.rng.integers(len(nodes), size=2)
    nodes[i], nodes[j] = nodes[j], nodes[i]


def remove(fuzzer, nodes):
    if len(nodes) > 2:
        del nodes[int(fuzzer.rng.integers(len(nodes)))]


def insert(fuzzer, nodes):
    """Something that grows, before the last node, which has it as an attribute or part."""
    whole = nodes.pop()
    at = fuzzer.one(GROWING)(fuzzer, nodes)
    where = fuzzer.one([*nodes[-30:], whole])
    if fuzzer.rng.random() < 0.5 and len(where) > 1:
        where[1 + int(fuzzer.rng.integers(len(where) - 1))] = at
    else:
        where += ["note_", at]
    nodes.append(whole)


def deep(fuzzer, nodes):
    form = fuzzer.one(["list", "tuple", "set", "frozenset", "torch size", "parameter"])
    return nodes.nested(form, int(fuzzer.rng.integers(1, 3000)), fuzzer.part(nodes))


def doubled(fuzzer, nodes):
    form = fuzzer.one(["list", "tuple", "frozenset", "cells", "torch size"])
    inner = nodes.doubled(form, int(fuzzer.rng.integers(1, 60)), fuzzer.part(nodes))
    return nodes.add(
        fuzzer.one(FORMS_OF_ALL), inner, *[fuzzer.part(nodes)] * fuzzer.rng.integers(4)
    )


def alike(fuzzer, nodes):
    n, by = int(fuzzer.rng.integers(1, 6000)), fuzzer.one([2**61 - 1, 2**40, 1, 0.1, 2.0**70])
    form = fuzzer.one(["set", "frozenset", "dict", "ordered dict", "list"])
    return nodes.add(
        form, *(p for i in range(n) for p in ([i * by, 0] if "dict" in form else [i * by]))
    )


def many(fuzzer, nodes):
    """Many nodes of a kind."""
    node = fuzzer.one(nodes)
    return nodes.add("list", *(nodes.add(*node) for _ in range(fuzzer.rng.integers(1, 4000))))


def scalar(fuzzer, nodes):
    return nodes.add(fuzzer.one(["scalar", "times", "cells"]), *(fuzzer.part(nodes) for _ in "ab"))


def tensor_of_numbers(fuzzer, nodes):
    """An array in another form."""
    dtype = fuzzer.one(list(TYPES.values()))
    a = np.zeros(int(10 ** fuzzer.rng.uniform(0, 5.5)), dtype)
    return nodes.add(fuzzer.one(["floats", "tensor", "times"]), nodes.add_array(a), None)


# ---- edits of arrays -----------------------------------------------------------------------------


def some_array(fuzzer, nodes):
    filled = [i for i, a in enumerate(nodes.tensors) if a.size]
    return fuzzer.one(filled) if filled else None


def edit_number(fuzzer, nodes):
    i = some_array(fuzzer, nodes)
    if i is not None:
        a = nodes.tensors[i]
        value = np.float64(fuzzer.one(HUGE))
        with np.errstate(all="ignore"):
            value = value if a.dtype.kind == "f" else np.nan_to_num(value)
            a.flat[int(fuzzer.rng.integers(a.size))] = np.array(value).astype(a.dtype)


def edit_numbers(fuzzer, nodes):
    i = some_array(fuzzer, nodes)
    if i is not None:
        a = nodes.tensors[i]
        data = np.frombuffer(a.tobytes(), np.uint8).copy()
        where = fuzzer.rng.integers(data.size, size=1 + data.size // 9)
        data[where] ^= np.uint8(1 << fuzzer.rng.integers(8))
        nodes.tensors[i] = data.view(a.dtype).reshape(a.shape)


def edit_shape(fuzzer, nodes):
    i = some_array(fuzzer, nodes)
    if i is not None:
        a = nodes.tensors[i].reshape(-1)
        nodes.tensors[i] = fuzzer.one(
            [a, a[:0], a[:-1], a[None], np.tile(a, 9), a.reshape(1, -1, 1)]
        )


def edit_layout(fuzzer, nodes):
    """Of an array and its numbers, which then agree."""
    arrays = [node for node in nodes if node[0] == "array" and len(node) == 6]
    if arrays:
        n = int(10 ** fuzzer.rng.uniform(0, 3))
        shape, half, stored = fuzzer.one(
            [
                ((n, n), "lower", (n * (n + 1) // 2,)),
                ((0, 10**8, 10**8), "upper", (0, 10**8 * (10**8 + 1) // 2)),
                ((n, 0), "", (n, 0)),
                ((10**6, 0), "", (10**6, 0)),
                ((0, 2**40), "", (0, 2**40)),
                ((n,), "", (n,)),
                ((1,) * 30, "", (1,) * 30),
            ]
        )
        node = fuzzer.one(arrays)
        nodes.tensors.append(np.empty(stored, fuzzer.one(["<f4", "<f8"])))
        nodes.tensors[-1][...] = 0
        words = (",".join(map(str, s)) for s in (shape, range(len(shape))))
        node[1:] = [len(nodes.tensors) - 1, "<f8", *words, half]


def edit_mode(fuzzer, nodes):
    """Of a layer, which then would train."""
    modes = [node for node in nodes if node[0] == "module" and "training" in node]
    if modes:
        node = fuzzer.one(modes)
        node[node.index("training") + 1] = fuzzer.one([True, None, 1, fuzzer.part(nodes)])


def edit_type(fuzzer, nodes):
    i = some_array(fuzzer, nodes)
    if i is not None:
        with np.errstate(all="ignore"):
            nodes.tensors[i] = nodes.tensors[i].astype(fuzzer.one(list(TYPES.values())))


GROWING = [deep, doubled, alike, many, scalar, tensor_of_numbers]
OF_NODES = [
    replace_part,
    replace_word,
    change_form,
    rename,
    repeat,
    drop,
    swap,
    remove,
    insert,
    insert,
]
OF_ARRAYS = [edit_number, edit_number, edit_numbers, edit_shape, edit_layout, edit_type, edit_mode]
EDITS = [*OF_NODES, *OF_ARRAYS]


# ---- reading -------------------------------------------------------------------------------------


class Reader:
    """A child process that reads files and tells what it took; another one after a crash."""

    PATIENCE = 60.0  # s, until it counts as hanging, on a machine that is busy

    def __init__(self):
        self.child = None

    def read(self, kind, path):
        """What became of a file: the outcome, seconds of a core, and bytes."""
        if self.child is None:
            self.start()
        self.child.stdin.write(f"{kind} {path}\n")
        self.child.stdin.flush()
        ready, _, _ = select.select([self.child.stdout], [], [], self.PATIENCE)
        answer = self.child.stdout.readline() if ready else ""
        if not answer:
            self.child.kill()
            self.child.stdin.close()
            self.child.stdout.close()
            code, self.child = self.child.wait(), None
            return {"outcome": f"crashed: {code}" if ready else "hung", "seconds": 0.0, "bytes": 0}
        return json.loads(answer)

    def start(self):
        child = str(Path(__file__).with_name("reading_child.py"))
        self.child = subprocess.Popen(
            [sys.executable, "-W", "ignore", child],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.child.stdout.readline()  # it has imported what it needs

    def close(self):
        if self.child is not None:
            self.child.stdin.close()
            self.child.wait()
            self.child.stdout.close()

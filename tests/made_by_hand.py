"""Take saved files apart, and write files that no `save` wrote, whose digests are right."""

from __future__ import annotations

import json

import numpy as np

from skgpstoch.persistence.file import digest
from skgpstoch.persistence.tensor_file import METADATA, TYPES, check_table, table_of


def taken_apart(path):
    """The metadata of a file, and copies of its arrays."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    metadata = header.pop(METADATA)
    check_table(header, len(data) - end)
    found = []
    for entry in (header[str(i)] for i in range(len(header))):
        first, last = (end + k for k in entry["data_offsets"])
        found.append(np.frombuffer(data[first:last], TYPES[entry["dtype"]]).reshape(entry["shape"]))
    return metadata, [a.copy() for a in found]


def put_together(path, metadata, found, table=None, sign=True):
    """Write a file whose digest is right, whatever else is not."""
    table = table_of(found) if table is None else table
    if sign:
        metadata["sha256"] = digest(metadata, found)
    header = json.dumps({METADATA: metadata, **table}).encode()
    numbers = b"".join(a.tobytes() for a in found)
    path.write_bytes(len(header).to_bytes(8, "little") + header + numbers)


def structure_of(nodes):
    """The text of nodes; those that are no longer a part of another are an attribute more."""
    parts = [part for node in nodes if isinstance(node, list) for part in node]
    used = {part[0] for part in parts if isinstance(part, list) and part and type(part[0]) is int}
    *others, whole = nodes
    unused = [[i] for i in range(len(others)) if i not in used]
    if unused and isinstance(whole, list):
        nodes = [*others, ["tuple", *unused], [*whole, "unused_", [len(others)]]]
    return json.dumps(nodes)


def nodes_of(metadata):
    return json.loads(metadata["structure"])


def first(nodes, form):
    return next(node for node in nodes if node[0] == form)


class Nodes(list):
    """The nodes of a file, with tensors beside them."""

    def __init__(self, nodes=(), tensors=()):
        super().__init__(nodes)
        self.tensors = list(tensors)

    def add(self, *node):
        """A node more, and how others refer to it."""
        self.append(list(node))
        return [len(self) - 1]

    def add_array(self, a):
        self.tensors.append(a)
        shape, axes = (",".join(map(str, n)) for n in (a.shape, range(a.ndim)))
        return self.add("array", len(self.tensors) - 1, a.dtype.str, shape, axes, "")

    def doubled(self, form, depth, inner=0):
        """A node that holds another one twice, which holds another one twice, and so on."""
        for _ in range(depth):
            inner = self.add(form, inner, inner)
        return inner

    def nested(self, form, depth, inner=0):
        for _ in range(depth):
            inner = self.add(form, inner)
        return inner


def with_attribute(path, source, make, name="note_"):
    """A saved estimator with an attribute more, as `make` adds it to the nodes."""
    metadata, tensors = taken_apart(source)
    *nodes, whole = nodes_of(metadata)
    nodes = Nodes(nodes, tensors)
    part = make(nodes)
    nodes.append([*whole, name, part])
    put_together(path, {**metadata, "structure": structure_of(nodes)}, nodes.tensors)

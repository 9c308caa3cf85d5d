"""Build a graph of ONNX operators in float64 with NumPy-like expressions.

ONNX Runtime's CPU provider has neither Erf for doubles nor distribution functions, so they are
computed as series (:mod:`skgpstoch.onnx.series`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

USUAL_CURE = (
    "Save the model with its method save or with joblib.dump, or fit one of the models "
    "that skgpstoch.onnx.export supports (see its documentation)."
)


class CannotExport(NotImplementedError):  # noqa: N818
    """Raised if a part of a model has no ONNX graph; a NotImplementedError that names the part."""

    def __init__(self, part: Any, cure: str = USUAL_CURE) -> None:
        name = part if isinstance(part, str) else type(part).__name__
        super().__init__(f"ONNX export does not support {name}. {cure}")


OPSET = 18
ML, ML_OPSET = "ai.onnx.ml", 2  # ONNX's own operators for categories
MOST_IN_GRAPH = 50_000_000  # numbers of training rows, or of frequencies: 400 MB
IR_VERSION = 9  # IR version of the first ONNX Runtime that has this opset


class Value:
    """A tensor of a graph, float64 unless stated otherwise, with NumPy's operations."""

    __array_priority__ = 1000  # array * value is ours

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.name = name

    def __add__(self, other: Any) -> Value:
        return self.graph.call("Add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.graph.call("Add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.graph.call("Sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.graph.call("Sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.graph.call("Mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.graph.call("Mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.graph.call("Div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.graph.call("Div", other, self)

    def __matmul__(self, other: Any) -> Value:
        return self.graph.call("MatMul", self, other)

    def __pow__(self, exponent: float) -> Value:
        return self.square() if exponent == 2 else self.graph.call("Pow", self, exponent)

    def __neg__(self) -> Value:
        return self.graph.call("Neg", self)

    def __lt__(self, other: Any) -> Value:
        return self.graph.call("Less", self, other)

    def __gt__(self, other: Any) -> Value:
        return self.graph.call("Greater", self, other)

    def square(self) -> Value:
        """Return self², elementwise."""
        return self * self

    def map(self, operator: str, **attributes: Any) -> Value:
        """Apply another ONNX operator with one input."""
        return self.graph.call(operator, self, **attributes)

    def exp(self) -> Value:
        """Return eˣ."""
        return self.map("Exp")

    def log(self) -> Value:
        """Return the natural logarithm."""
        return self.map("Log")

    def sqrt(self) -> Value:
        """Return √x."""
        return self.map("Sqrt")

    def abs(self) -> Value:
        """Return |x|."""
        return self.map("Abs")

    def at_least(self, other: Any) -> Value:
        """Return max(x, other)."""
        return self.graph.call("Max", self, other)

    def at_most(self, other: Any) -> Value:
        """Return min(x, other)."""
        return self.graph.call("Min", self, other)

    def sum(self, axis: int) -> Value:
        """Sum over an axis; the axis stays, with length 1."""
        return self.graph.call("ReduceSum", self, np.array([axis]), keepdims=1)

    def min(self, axis: int) -> Value:
        """Return the minimum over an axis; the axis stays, with length 1."""
        return self.graph.call("ReduceMin", self, np.array([axis]), keepdims=1)

    def max(self, axis: int) -> Value:
        """Return the maximum over an axis; the axis stays, with length 1."""
        return self.graph.call("ReduceMax", self, np.array([axis]), keepdims=1)

    def columns(self, index: Sequence[int] | np.ndarray | Value, axis: int = 1) -> Value:
        """Select these positions along an axis."""
        if not isinstance(index, Value):
            index = self.graph.constant(np.asarray(index, dtype=np.int64))
        return self.graph.call("Gather", self, index, axis=axis)

    def after(self, start: int, axis: int) -> Value:
        """Select the positions from this one on along an axis."""
        ends = np.array([start]), np.array([np.iinfo(np.int64).max]), np.array([axis])
        return self.graph.call("Slice", self, *ends)

    def shape(self, axis: int) -> Value:
        """Return the length of an axis, (1,)."""
        return self.map("Shape", start=axis, end=axis + 1)

    def unsqueeze(self, axis: int) -> Value:
        """Insert an axis of length 1."""
        return self.graph.call("Unsqueeze", self, np.array([axis]))

    def squeeze(self, axis: int) -> Value:
        """Remove an axis of length 1."""
        return self.graph.call("Squeeze", self, np.array([axis]))


class Graph:
    """Nodes and constants; `call` adds a node to the block that is being written."""

    def __init__(self) -> None:
        self.blocks: list[list[onnx.NodeProto]] = [[]]
        self.constants: dict[tuple, onnx.TensorProto] = {}
        self.n_names = 0
        self.taken: set[str] = set()  # names of inputs

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """Nodes of the block that is being written: of the graph, or of a loop's body."""
        return self.blocks[-1]

    def new_name(self, stem: str) -> str:
        """Return an unused name."""
        self.n_names += 1
        name = f"{stem.lower()}_{self.n_names}"
        return self.new_name(stem) if name in self.taken else name

    def constant(self, array: Any) -> Value:
        """Return an array or a number as a value; equal contents are stored once."""
        a = np.asarray(array)
        is_number = a.ndim == 0 and a.dtype.kind in "iu"
        if is_number or a.dtype.kind == "f":
            a = a.astype(np.float64)
        return self._exact(a)

    def call(self, operator: str, *inputs: Any, **attributes: Any) -> Value:
        """Add a node with one output, and return it; inputs may be arrays or numbers."""
        values = [x if isinstance(x, Value) else self.constant(x) for x in inputs]
        output = Value(self, self.new_name(operator))
        names = [value.name for value in values]
        self.nodes.append(helper.make_node(operator, names, [output.name], **attributes))
        return output

    def concat(self, parts: Sequence[Any], axis: int) -> Value:
        """Put values one after another along an axis."""
        return parts[0] if len(parts) == 1 else self.call("Concat", *parts, axis=axis)

    def smallest(self, values: Value, k: int) -> Value:
        """Return the positions of the k smallest values of each row, smallest first."""
        return self._ascending(values, k, -1)[1]

    def ascending(self, values: Value, k: int) -> Value:
        """Return the k smallest values along the second axis, smallest first."""
        return self._ascending(values, k, 1)[0]

    def _ascending(self, values: Value, k: int, axis: int) -> tuple[Value, Value]:
        """Return the k smallest values along an axis, and their positions."""
        names = [self.new_name("smallest"), self.new_name("places")]
        given = [values.name, self.constant(np.array([k])).name]
        self.nodes.append(helper.make_node("TopK", given, names, axis=axis, largest=0))
        return Value(self, names[0]), Value(self, names[1])

    def where(self, condition: Value, this: Any, other: Any) -> Value:
        """Return `this` where the condition holds and `other` elsewhere."""
        return self.call("Where", condition, this, other)

    def repeat(
        self,
        most: int,
        start: Sequence[Value],
        body: Callable[..., tuple[Value, Sequence[Value]]],
    ) -> list[Value]:
        """Repeat a step on values, as a loop in the graph.

        Parameters
        ----------
        most : int
            Largest number of steps.
        start : sequence of Value
            Inputs of the first step.
        body : callable
            Maps values to a condition of one element, whether another step follows, and to the next
            values.
        """
        carried = [Value(self, self.new_name("state")) for _ in start]
        step, goes_on = self.new_name("step"), self.new_name("goes_on")
        self.blocks.append([])
        condition, found = body(*carried)
        outputs = [self.call("Reshape", condition, np.empty(0, np.int64)), *found]
        outputs = [self.call("Identity", value) for value in outputs]  # outputs need own names
        nodes = self.blocks.pop()

        def info(name: str, kind: int = TensorProto.DOUBLE, shape: Any = None) -> Any:
            return helper.make_tensor_value_info(name, kind, shape)

        results = [self.new_name("loop") for _ in start]
        body_graph = helper.make_graph(
            nodes,
            self.new_name("body"),
            [info(step, TensorProto.INT64, []), info(goes_on, TensorProto.BOOL, [])]
            + [info(value.name) for value in carried],
            [info(outputs[0].name, TensorProto.BOOL, [])]
            + [info(value.name) for value in outputs[1:]],
        )
        given = [self._exact(np.array(most, np.int64)), self._exact(np.array(True)), *start]
        names = [value.name for value in given]
        self.nodes.append(helper.make_node("Loop", names, results, body=body_graph))
        return [Value(self, name) for name in results]

    def _exact(self, a: np.ndarray) -> Value:
        """Return an array as a value of the array's own type."""
        a = np.ascontiguousarray(a).reshape(a.shape)
        key = (a.dtype.str, a.shape, a.tobytes())
        kept = self.constants
        if key not in kept:
            kept[key] = numpy_helper.from_array(a, self.new_name("constant"))
        return Value(self, kept[key].name)


# ---- models --------------------------------------------------------------------------------------


def model_of(
    graph: Graph,
    inputs: Mapping[str, tuple[int, int]],
    outputs: dict[str, tuple[Value, int, Sequence[Any]]],
    about: str,
) -> onnx.ModelProto:
    """Return a checked model.

    Parameters
    ----------
    graph : Graph
        The graph.
    inputs : mapping of str to (int, int)
        Inputs: names and (element type, number of columns).
    outputs : dict of str to (Value, int, sequence)
        Outputs: names and (value, element type, shape).
    about : str
        Text for the model's documentation.
    """
    given = [
        helper.make_tensor_value_info(name, kind, ["n_samples", width])
        for name, (kind, width) in inputs.items()
    ]
    named, nodes = [], list(graph.nodes)
    for name, (value, kind, shape) in outputs.items():
        nodes.append(helper.make_node("Identity", [value.name], [name]))
        named.append(helper.make_tensor_value_info(name, kind, list(shape)))
    made = helper.make_graph(
        nodes, "skgpstoch", given, named, initializer=list(graph.constants.values())
    )
    domains = {"": OPSET} | {node.domain: ML_OPSET for node in nodes if node.domain}
    versions = [helper.make_opsetid(*each) for each in domains.items()]
    model = helper.make_model(made, opset_imports=versions, producer_name="skgpstoch")
    model.ir_version = IR_VERSION
    model.doc_string = about
    onnx.checker.check_model(model, full_check=True)  # shapes, too
    return model

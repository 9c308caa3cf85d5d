"""Converters for skl2onnx, so that it can export pipelines with our estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, compose
from sklearn.base import is_classifier

import skgpstoch

from ..methods.drop_in.base import DropIn
from .export import to_onnx
from .graph import ML, ML_OPSET, OPSET, CannotExport

OF_TYPES = {
    "DoubleTensorType": TensorProto.DOUBLE,
    "FloatTensorType": TensorProto.FLOAT,
    "Int64TensorType": TensorProto.INT64,
    "StringTensorType": TensorProto.STRING,
}


def register_converters() -> None:
    """Register converters for the estimators of this package with skl2onnx; this needs skl2onnx.

    Regressors then have the outputs "variable" (the mean) and "std". The drop-in
    GaussianProcessRegressor has the same outputs as scikit-learn's: the mean and, with the option
    `return_std`, the standard deviation; its option `optim` is ignored. Classifiers have the same
    outputs as scikit-learn's, with probabilities in float64 if the inputs are and no ZipMap, which
    takes float32, follows. `target_opset` must be at least 18. Inputs may be float32 or float64;
    graphs compute in float64.

    Examples
    --------
    >>> import skgpstoch.onnx  # doctest: +SKIP
    >>> skgpstoch.onnx.register_converters()  # doctest: +SKIP
    >>> onnx_model = skl2onnx.to_onnx(pipeline, X[:1], target_opset=18)  # doctest: +SKIP
    """
    from skl2onnx import update_registered_converter
    from skl2onnx._parse import _parse_sklearn_classifier

    for name in skgpstoch.__all__:
        estimator = getattr(skgpstoch, name)
        if not (isinstance(estimator, type) and hasattr(estimator, "predict")):
            continue
        given: dict[str, Any] = {"parser": parse_regressor}
        options: dict[str, Any] = {}
        if hasattr(estimator, "predict_proba"):
            options = {"zipmap": [True, False, "columns"], "nocl": [True, False]}
            given["parser"] = _parse_sklearn_classifier
        elif estimator is skgpstoch.GaussianProcessRegressor:
            options = {"return_std": [True, False]}
        if issubclass(estimator, DropIn):
            options["optim"] = [None, "cdist"]
        given["options"] = options or None
        update_registered_converter(estimator, f"Skgpstoch{name}", shapes, convert, **given)


def parse_regressor(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """Declare the outputs of a regressor."""
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from skl2onnx.common.data_types import DoubleTensorType

    operator = scope.declare_local_operator(sklearn_operator_name_map[type(model)], model)
    operator.inputs = inputs
    names: tuple[str, ...] = ("variable", "std")
    if isinstance(model, skgpstoch.GaussianProcessRegressor):
        asked = scope.get_options(model, {"return_std": False})
        names = ("GPmean", "GPcovstd") if asked["return_std"] else ("GPmean",)
    for name in names:
        operator.outputs.append(scope.declare_local_variable(name, DoubleTensorType()))
    return operator.outputs


def shapes(operator: Any) -> None:
    """Set the types of the outputs."""
    from skl2onnx.common.data_types import (
        DoubleTensorType,
        FloatTensorType,
        Int64TensorType,
        StringTensorType,
    )

    model = operator.raw_operator
    if not is_classifier(model):
        for output in operator.outputs:
            output.type = DoubleTensorType([None, None])
        return
    is_number = np.asarray(model.classes_).dtype.kind in "iub"
    operator.outputs[0].type = (Int64TensorType if is_number else StringTensorType)([None])
    probabilities = operator.outputs[1]
    is_mapped = any(used.type == "SklearnZipMap" for used in probabilities.operators_inputs_)
    is_double = isinstance(operator.inputs[0].type, DoubleTensorType) and not is_mapped
    kind = DoubleTensorType if is_double else FloatTensorType
    probabilities.type = kind([None, len(model.classes_)])


def convert(scope: Any, operator: Any, container: Any) -> None:
    """Add the nodes of a model's graph."""
    if container.target_opset < OPSET:
        raise CannotExport(
            f"target_opset={container.target_opset}", f"Set target_opset={OPSET} or more."
        )
    model = operator.raw_operator
    outputs = ("mean",) if len(operator.outputs) == 1 else None  # else the default outputs
    graph = to_onnx(model, outputs).graph
    prefix = scope.get_unique_operator_name("skgpstoch") + "_"
    constants = {each.name: prefix + each.name for each in graph.initializer}
    graph = compose.add_prefix_graph(graph, prefix, name_map=constants)  # in bodies of loops, too
    add_inputs(operator, container, graph, prefix)
    container.initializers.extend(graph.initializer)
    container.nodes.extend(graph.node)
    for used in ("", *({ML} & {node.domain for node in graph.node})):
        container.node_domain_version_pair_sets.add((used, ML_OPSET if used else OPSET))
    for output, found in zip(operator.outputs, graph.output, strict=True):
        kind = OF_TYPES[type(output.type).__name__]
        container.add_node("Cast", found.name, output.full_name, to=kind, op_version=13)


def add_inputs(operator: Any, container: Any, graph: Any, prefix: str) -> None:
    """Add nodes that make a graph's inputs, X or one for each column, of the operator's."""
    given = [variable.full_name for variable in operator.inputs]
    if len(graph.input) == 1 and len(given) > 1:
        joined = prefix + "joined"
        container.add_node("Concat", given, joined, axis=1, op_version=13)
        given = [joined]
    if len(given) != len(graph.input):
        names = [variable.name.removeprefix(prefix) for variable in graph.input]
        raise CannotExport(
            f"{len(given)} inputs for the columns {names}", "Give each column an input of its own."
        )
    for name, variable in zip(given, graph.input, strict=True):
        kind = variable.type.tensor_type.elem_type
        container.add_node("Cast", name, variable.name, to=kind, op_version=13)

"""Encode tables of numbers, categories and dates in an ONNX graph, as TableEncoder does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from ..data.categories import STAND_INS, UNSEEN_LEVEL, levels_of
from ..data.columns import DAY, EPOCH, LEVEL
from ..data.numeric import Dates, Numbers
from .distributions import Copies
from .graph import ML, CannotExport, Graph, Value
from .series import FARTHEST_DEVIATE

MISSING_TEXT = ""


class Columns(NamedTuple):
    """The columns of a table, each (N, 1) and an input of its own, in place of an X (N, d)."""

    graph: Graph
    values: list[Value]


def table_inputs(
    model: Any, graph: Graph, width: int
) -> tuple[Value | Columns, dict[str, tuple[int, int]]]:
    """Return the input X, and names, element types and widths of the graph's inputs.

    A model of tables with categories or dates has one input for each column, with its name.
    """
    if takes_numbers(model):
        return Value(graph, "X"), {"X": (TensorProto.DOUBLE, width)}
    encoder = model._encoder
    places = range(len(encoder.kinds))  # not `width`, which a stranger's file may say is huge
    names = getattr(model, "feature_names_in_", [f"x{j}" for j in places])
    if "" in list(names):
        raise CannotExport("a column without a name", "Name the column, and fit again.")
    graph.taken = set(map(str, names))
    kinds = [kind_of(encoder, j) for j in places]
    given = {str(name): (kind, 1) for name, kind in zip(names, kinds, strict=True)}
    return Columns(graph, [Value(graph, name) for name in given]), given


def takes_numbers(model: Any) -> bool:
    """Tell whether all columns of a model are numbers, which its parts take as they are."""
    encoder = getattr(model, "_encoder", None)
    return encoder is None or all(type(each) is Numbers for each in encoder.encoders)


def kind_of(encoder: Any, j: int) -> int:
    """Return the element type of a column: strings, or numbers in float64."""
    if encoder.kinds[j] != LEVEL:
        return int(TensorProto.DOUBLE)
    found = words(encoder, j)
    if all(isinstance(word, str) for word in found if word is not None):
        if {None, MISSING_TEXT} <= found.keys():
            raise CannotExport(
                f"column {encoder.names[j]}, which has missing values and empty strings",
                "Replace one by the other, and fit again.",
            )
        return int(TensorProto.STRING)
    if all(isinstance(w, Real) and float(w) == w for w in found if w is not None):
        return int(TensorProto.DOUBLE)
    kind = type(next(word for word in found if word is not None)).__name__
    raise CannotExport(
        f"column {encoder.names[j]}, whose categories are of type {kind}",
        "Convert them to strings, for example with astype(str), and fit again.",
    )


def words(encoder: Any, j: int) -> dict[Any, int]:
    """Return codes of a column's levels, those that training rows had and those of an order."""
    each = encoder.encoders[j]
    known = getattr(each, "places", None) or each.levels
    return levels_of({*known, *encoder.levels[j]})


def numbered(days: Mapping[Any, int]) -> dict[Any, int]:
    """Return the codes of days by their numbers since 1970, as columns of dates have them."""
    numbers = (day if day is None else (np.datetime64(day) - EPOCH) / DAY for day in days)
    return dict(zip(numbers, days.values(), strict=True))


def codes(column: Value, found: Mapping[Any, int]) -> Value:
    """Return the codes of the levels of a column (N, 1), −1 for one that is not there."""
    levels = [level for level in found if level is not None]
    graph, missing = column.graph, found.get(None, UNSEEN_LEVEL)
    if all(isinstance(level, str) for level in levels):
        pairs = {MISSING_TEXT: missing} | {level: found[level] for level in levels}
        return graph.call(
            "LabelEncoder",
            column,
            domain=ML,
            keys_strings=list(pairs),
            values_int64s=list(pairs.values()),
            default_int64=UNSEEN_LEVEL,
        )
    is_level = graph.call("Equal", column, np.array([levels], dtype=np.float64))  # (N, L)
    places = np.array([[found[level] - UNSEEN_LEVEL] for level in levels], dtype=np.float64)
    code = is_level.map("Cast", to=TensorProto.DOUBLE) @ places + UNSEEN_LEVEL
    code = graph.where(is_there(column), code, missing)
    return code.map("Cast", to=TensorProto.INT64)


def encoded(encoder: Any, X: Value | Columns) -> Value:
    """Encode a table as the models see it; a level that training rows did not have is unseen."""
    return encoded_columns(encoder, X.graph, read(encoder, X))


def encoded_with_new(encoder: Any, X: Value | Columns) -> tuple[Value, Copies | None]:
    """Encode a table; encode each row with a new level once for each known level in its place.

    So for numbers that few training rows lacked. The second value tells which row each encoded one
    is a copy of; None without categories and such numbers.
    """
    graph, columns, is_new = X.graph, read(encoder, X), {}
    for j, (known, each) in enumerate(zip(encoder.levels, encoder.encoders, strict=True)):
        if known is not None and known - {None}:
            flags = [word not in known for word in words(encoder, j)] + [True]
            is_new[j] = graph.constant(np.array(flags)).columns(columns[j], axis=0)
        elif type(each) is Numbers and each.stand_ins is not None:
            is_new[j] = graph.call("Not", is_there(columns[j]))
    if not is_new:
        return encoded_columns(encoder, graph, columns), None
    wanted = graph.constant(np.arange(STAND_INS)[None] == 0)  # then (N, STAND_INS)
    n_new = sum(flags.map("Cast", to=TensorProto.DOUBLE) for flags in is_new.values())
    wanted = graph.call("Or", wanted, graph.call("Greater", n_new, np.array([[1.0]])))
    for j, own in enumerate(encoder.n_stand_ins):
        if j in is_new:
            among = graph.constant(np.arange(STAND_INS)[None] < own)
            wanted = graph.call("Or", wanted, graph.call("And", is_new[j], among))
    copies = graph.call("NonZero", wanted)  # (2, M)
    row, place = (copies.columns([i], axis=0).squeeze(0) for i in range(2))
    columns = [column.columns(row, axis=0) for column in columns]
    share = (1.0 / wanted.map("Cast", to=TensorProto.DOUBLE).sum(1)).columns(row, axis=0)
    for j, levels in enumerate(encoder.stand_ins()):
        if j in is_new:
            is_level = encoder.levels[j] is not None
            found = [words(encoder, j)[level] for level in levels] if is_level else levels
            instead = graph.constant(np.array(found)[:, None])
            at = is_new[j].columns(row, axis=0)
            columns[j] = graph.where(at, instead.columns(place, axis=0), columns[j])
    copied = Copies(row, place, share, wanted.shape(0), STAND_INS)
    return encoded_columns(encoder, graph, columns), copied


def read(encoder: Any, X: Value | Columns) -> list[Value]:
    """Return the columns of a table, each (N, 1); levels are codes."""
    if isinstance(X, Columns):
        n = len(X.values)
        pairs = zip(X.values, encoder.levels[:n], strict=True)
        given = [c if k is None else codes(c, words(encoder, j)) for j, (c, k) in enumerate(pairs)]
        dates = [c for c, has_days in zip(X.values, encoder.has_days, strict=True) if has_days]
        return given + [
            codes(date.map("Floor"), numbered(words(encoder, n + i)))
            for i, date in enumerate(dates)
        ]
    for kind, each in zip(encoder.kinds, encoder.encoders, strict=True):
        if type(each) is not Numbers:
            raise CannotExport(f"a column of X that holds {kind}")
    return [X.columns([j]) for j in range(len(encoder.encoders))]


def encoded_columns(encoder: Any, graph: Graph, columns: Sequence[Value]) -> Value:
    """Encode columns, and put them side by side."""
    parts = []
    for j, (each, column) in enumerate(zip(encoder.encoders, columns, strict=True)):
        if encoder.levels[j] is not None:
            if each.width:
                labels = np.array([*words(encoder, j), object()])  # the last one is unseen
                parts.append(graph.constant(each(labels)).columns(column.squeeze(1), axis=0))
        elif type(each) is Dates:
            parts += numbers(each.days, column)
            for period in each.periods:
                angle = (column / period) * (2.0 * math.pi)
                parts += [filled(angle.map(wave), 0.0) for wave in ("Sin", "Cos")]
        else:
            parts += numbers(each, column)
    none = graph.where(is_there(columns[0]), 0.0, 0.0)
    return graph.concat(parts, 1) if parts else none


def numbers(encoder: Numbers, column: Value) -> list[Value]:
    """Encode a column of numbers (N, 1)."""
    x, parts = filled(column, encoder.fill), []
    if encoder.varies:
        scaling = encoder.scaling
        parts.append(x if scaling is None else arcsinh((x - scaling.offset) / scaling.scale))
    if encoder.gaps is not None:
        near = x
        for start, end, kept in encoder.gaps.tolist():
            within = x.at_least(start).at_most(end)
            near = near - (within - start) * (1.0 - kept / (end - start))
        parts.append(near)
    if encoder.flags:
        parts.append(column.graph.where(is_there(column), 0.0, 1.0))
    return parts


def is_there(column: Value) -> Value:
    """Tell which values are not missing."""
    return column.graph.call("Equal", column, column)


def filled(column: Value, fill: float) -> Value:
    """Return a column with a number in place of missing values."""
    return column.graph.where(is_there(column), column, fill)


def arcsinh(x: Value) -> Value:
    """Return asinh(x), for either sign; it is accurate to the last digits except near 0."""
    size = x.abs()
    found = (size + (size.square() + 1.0).sqrt()).log()
    found = x.graph.where(size > FARTHEST_DEVIATE, size.log() + math.log(2.0), found)  # no overflow
    return x.map("Sign") * found

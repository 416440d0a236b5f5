"""The version history of the nine operators, as one table, and the gate that reads it.

An entry says what an opset brought; everything before it stays. The numbers that an operator
computes are the same in every version, except RoiAlign's coordinate mode: a version gates
attributes, dtypes, outputs and the type of ``p``. The table equals ``onnx.defs`` (tested).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpupool.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8, UINT8, DType, listed
from gpupool.errors import GpupoolTypeError, GpupoolValueError
from gpupool.validate import integer

NEWEST = 28
"""The newest ONNX opset whose nine operators this table was compared with."""


@dataclass(frozen=True)
class Attribute:
    """One ONNX attribute: its type, its default (None: absent) and whether it must be given."""

    type: str
    default: Any = None
    required: bool = False


@dataclass(frozen=True)
class Version:
    """One version of an operator: the opset that brought it and all that is legal since."""

    since: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    dtypes: frozenset[DType] = frozenset()
    outputs: int = 1

    def plus(
        self, since: int, *dtypes: DType, outputs: int = 1, **attributes: Attribute
    ) -> Version:
        """Return the next version: this one with attributes, dtypes or an output more."""
        return replace(
            self,
            since=since,
            attributes={**self.attributes, **attributes},
            dtypes=self.dtypes | frozenset(dtypes),
            outputs=max(self.outputs, outputs),
        )


@dataclass(frozen=True)
class Operator:
    """One operator: its versions, and what gpupool adds when no opset is asked for."""

    name: str
    short: str
    versions: tuple[Version, ...]
    beyond: frozenset[DType] = frozenset()

    @property
    def newest(self) -> Version:
        """The last version: everything that ONNX allows."""
        return self.versions[-1]

    @property
    def dtypes(self) -> frozenset[DType]:
        """Every dtype that gpupool computes, ONNX's and its own."""
        return self.newest.dtypes | self.beyond

    def at(self, opset: int) -> Version:
        """Return the version that a model of ``opset`` means."""
        opset = integer("opset", opset, 1, NEWEST)
        legal = [version for version in self.versions if version.since <= opset]
        if not legal:
            raise GpupoolValueError(
                f"opset = {opset} has no {self.name}: it came with opset {self.versions[0].since}"
            )
        return legal[-1]

    def brought(self, test: Any) -> int:
        """Return the opset of the first version for which ``test(version)`` holds."""
        return next(version.since for version in self.versions if test(version))


_INT0, _INT1 = Attribute("INT", 0), Attribute("INT", 1)
_INTS = Attribute("INTS")
_FLOAT1 = Attribute("FLOAT", 1.0)
_KERNEL = Attribute("INTS", required=True)
_AUTO_PAD = Attribute("STRING", "NOTSET")
_P_FLOAT, _P_INT = Attribute("FLOAT", 2.0), Attribute("INT", 2)


def _first(since: int, **attributes: Attribute) -> Version:
    return Version(since, attributes, frozenset((FLOAT16, FLOAT32, FLOAT64)))


def _history(
    first: Version, *changes: tuple[int, dict[str, Any], tuple[DType, ...]]
) -> Iterator[Version]:
    version = first
    yield version
    for since, brings, dtypes in changes:
        version = version.plus(since, *dtypes, **brings)
        yield version


def _operator(
    name: str,
    short: str,
    first: Version,
    *changes: tuple[int, dict[str, Any], tuple[DType, ...]],
    beyond: tuple[DType, ...] = (),
) -> Operator:
    return Operator(name, short, tuple(_history(first, *changes)), frozenset(beyond))


_BF16: tuple[int, dict[str, Any], tuple[DType, ...]] = (22, {}, (BFLOAT16,))
_WINDOW = {"kernel_shape": _KERNEL, "strides": _INTS, "pads": _INTS, "auto_pad": _AUTO_PAD}
_UNPOOL = {"kernel_shape": _KERNEL, "strides": _INTS, "pads": _INTS}
_ROI_ALIGN = {
    "mode": Attribute("STRING", "avg"),
    "output_height": _INT1,
    "output_width": _INT1,
    "sampling_ratio": _INT0,
    "spatial_scale": _FLOAT1,
}

_TABLE = (
    _operator(
        "MaxPool",
        "max",
        _first(1, **_WINDOW),
        (8, {"storage_order": _INT0, "outputs": 2}, ()),
        (10, {"ceil_mode": _INT0, "dilations": _INTS}, ()),
        (11, {}, ()),
        (12, {}, (INT8, UINT8)),
        _BF16,
    ),
    _operator(
        "AveragePool",
        "average",
        _first(1, **_WINDOW),
        (7, {"count_include_pad": _INT0}, ()),
        (10, {"ceil_mode": _INT0}, ()),
        (11, {}, ()),
        (19, {"dilations": _INTS}, ()),
        _BF16,
        beyond=(INT8, UINT8),
    ),
    _operator(
        "LpPool",
        "lp",
        _first(1, **_WINDOW | {"kernel_shape": _INTS, "p": _P_FLOAT}),
        (2, {"kernel_shape": _KERNEL, "p": _P_INT}, ()),
        (11, {}, ()),
        (18, {"ceil_mode": _INT0, "dilations": _INTS}, ()),
        _BF16,
    ),
    _operator("GlobalMaxPool", "global-max", _first(1), _BF16, beyond=(INT8, UINT8)),
    _operator("GlobalAveragePool", "global-average", _first(1), _BF16, beyond=(INT8, UINT8)),
    _operator("GlobalLpPool", "global-lp", _first(1, p=_P_FLOAT), (2, {"p": _P_INT}, ()), _BF16),
    _operator("MaxUnpool", "max-unpool", _first(9, **_UNPOOL), (11, {}, ()), _BF16),
    _operator(
        "MaxRoiPool",
        "max-roi",
        _first(1, pooled_shape=_KERNEL, spatial_scale=_FLOAT1),
        _BF16,
    ),
    _operator(
        "RoiAlign",
        "roi-align",
        _first(10, **_ROI_ALIGN),
        (16, {"coordinate_transformation_mode": Attribute("STRING", "half_pixel")}, ()),
        _BF16,
    ),
)

OPERATORS = {operator.name: operator for operator in _TABLE}
_BY_ANY_NAME = OPERATORS | {operator.short: operator for operator in _TABLE}


def find(op: str) -> Operator:
    """Return the operator of an ONNX name or its short form.

    >>> find("max").name, find("GlobalLpPool").short
    ('MaxPool', 'global-lp')
    """
    if not isinstance(op, str):
        raise GpupoolTypeError(f"op must be the name of an operator, not {op!r}")
    operator = _BY_ANY_NAME.get(op)
    if operator is None:
        raise GpupoolValueError(f"op = {op!r} must be one of {', '.join(_BY_ANY_NAME)}")
    return operator


def check(
    op: str,
    opset: int | None,
    dtype: DType,
    attributes: tuple[str, ...] = (),
    outputs: int = 1,
    extensions: tuple[str, ...] = (),
) -> None:
    """Refuse what the asked opset does not allow; ``opset=None`` allows all that gpupool can do.

    ``attributes`` are those that differ from their default, ``extensions`` the arguments that
    ONNX does not know.

    >>> check("MaxPool", 10, FLOAT32, ("dilations",))
    >>> check("MaxPool", 8, FLOAT32, ("dilations",))
    Traceback (most recent call last):
    ...
    gpupool.errors.GpupoolValueError: dilations: MaxPool has it since opset 10, not at opset = 8
    """
    operator = OPERATORS[op]
    if opset is None:
        if dtype not in operator.dtypes:
            raise GpupoolTypeError(
                f"x has dtype {dtype}, which {op} does not take; allowed: {listed(operator.dtypes)}"
            )
        return
    version = operator.at(opset)
    if dtype not in version.dtypes:
        raise GpupoolTypeError(
            f"x has dtype {dtype}: {op} {_since(operator, dtype)}, not at opset = {opset}; "
            f"allowed: {listed(version.dtypes)}"
        )
    for name in attributes:
        _require_attribute(operator, opset, name)
    if outputs > version.outputs:
        since = operator.brought(lambda v: v.outputs >= outputs)
        raise GpupoolValueError(
            f"return_indices: {op} has Indices since opset {since}, not at opset = {opset}"
        )
    for name in extensions:
        raise GpupoolValueError(
            f"{name} is gpupool's own and not part of ONNX: leave opset at None to use it"
        )


def check_node(op: str, opset: int, attributes: Mapping[str, str], outputs: int = 1) -> None:
    """Refuse what a node of a model names and its version lacks, or lacks and its version requires.

    In a model presence decides: ``attributes`` are all that the node has, each with its ONNX type.

    >>> check_node("LpPool", 1, {"kernel_shape": "INTS", "p": "FLOAT"})
    >>> check_node("LpPool", 2, {"kernel_shape": "INTS", "p": "FLOAT"})
    Traceback (most recent call last):
    ...
    gpupool.errors.GpupoolTypeError: p is of type FLOAT: LpPool has it as INT at opset = 2
    """
    operator = OPERATORS[op]
    version = operator.at(opset)
    for name, kind in attributes.items():
        right = _require_attribute(operator, opset, name).type
        if kind != right:
            raise GpupoolTypeError(
                f"{name} is of type {kind}: {op} has it as {right} at opset = {opset}"
            )
    for name, attribute in version.attributes.items():
        # LpPool-1 does not require kernel_shape in its schema, and has no default for it either.
        if (attribute.required or name == "kernel_shape") and name not in attributes:
            raise GpupoolTypeError(f"{name}: {op} needs it at opset = {opset}")
    if not 1 <= outputs <= version.outputs:
        raise GpupoolValueError(
            f"{outputs} outputs are asked for: {op} gives 1 .. {version.outputs} at opset = {opset}"
        )


def _require_attribute(operator: Operator, opset: int, name: str) -> Attribute:
    version = operator.at(opset)
    if name in version.attributes:
        return version.attributes[name]
    if name not in operator.newest.attributes:
        allowed = ", ".join(version.attributes) or "none"
        raise GpupoolValueError(
            f"{name}: {operator.name} has no such attribute; allowed at opset = {opset}: {allowed}"
        )
    since = operator.brought(lambda v: name in v.attributes)
    raise GpupoolValueError(
        f"{name}: {operator.name} has it since opset {since}, not at opset = {opset}"
    )


def _since(operator: Operator, dtype: DType) -> str:
    if dtype not in operator.newest.dtypes:
        return "takes it in no opset"
    return f"takes it since opset {operator.brought(lambda v: dtype in v.dtypes)}"

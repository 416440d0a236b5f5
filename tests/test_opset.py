"""The version table against ``onnx.defs``, and the gate that reads it."""

from __future__ import annotations

import onnx
import onnx.defs
import pytest

from gpupool import opset as opsets
from gpupool.dtypes import DTYPES, FLOAT32
from gpupool.errors import GpupoolTypeError, GpupoolValueError
from gpupool.opset import NEWEST, OPERATORS

TENSOR = {
    "float64": "tensor(double)",
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    "bfloat16": "tensor(bfloat16)",
    "int8": "tensor(int8)",
    "uint8": "tensor(uint8)",
}


@pytest.fixture(scope="module")
def schemas():
    """The schemas of the nine operators by name, oldest first."""
    found = {name: [] for name in OPERATORS}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.name in found:
            found[schema.name].append(schema)
    return {name: sorted(found[name], key=lambda s: s.since_version) for name in found}


def attributes_of(schema):
    described = {}
    for name, attribute in schema.attributes.items():
        default = None
        if attribute.default_value.type:
            default = onnx.helper.get_attribute_value(attribute.default_value)
            default = default.decode() if isinstance(default, bytes) else default
        described[name] = (attribute.type.name, default, attribute.required)
    return described


def types_of(schema, parameter):
    for constraint in schema.type_constraints:
        if constraint.type_param_str == parameter:
            return set(constraint.allowed_type_strs)
    return {parameter}


def test_the_nine_operators():
    assert len(OPERATORS) == 9
    assert len({operator.short for operator in OPERATORS.values()}) == 9


def test_the_newest_opset_is_known_to_this_onnx():
    assert onnx.defs.onnx_opset_version() >= NEWEST


@pytest.mark.parametrize("op", OPERATORS)
def test_versions_equal_onnx(schemas, op):
    assert [v.since for v in OPERATORS[op].versions] == [
        schema.since_version for schema in schemas[op] if schema.since_version <= NEWEST
    ]


@pytest.mark.parametrize("op", OPERATORS)
def test_attributes_types_defaults_and_required_equal_onnx(schemas, op):
    for version, schema in zip(OPERATORS[op].versions, schemas[op], strict=True):
        own = {name: (a.type, a.default, a.required) for name, a in version.attributes.items()}
        assert own == attributes_of(schema)


@pytest.mark.parametrize("op", OPERATORS)
def test_dtypes_equal_onnx(schemas, op):
    for version, schema in zip(OPERATORS[op].versions, schemas[op], strict=True):
        names = {TENSOR[dtype.name] for dtype in version.dtypes}
        assert names == types_of(schema, schema.inputs[0].type_str)
        assert schema.outputs[0].type_str == schema.inputs[0].type_str


@pytest.mark.parametrize("op", OPERATORS)
def test_outputs_equal_onnx(schemas, op):
    for version, schema in zip(OPERATORS[op].versions, schemas[op], strict=True):
        assert (schema.min_output, schema.max_output) == (1, version.outputs)


@pytest.mark.parametrize("op", OPERATORS)
def test_every_opset_means_the_version_that_onnx_means(op):
    operator = OPERATORS[op]
    for opset in range(operator.versions[0].since, NEWEST + 1):
        assert operator.at(opset).since == onnx.defs.get_schema(op, opset).since_version


@pytest.mark.parametrize(
    "op", [name for name, operator in OPERATORS.items() if operator.versions[0].since > 1]
)
def test_an_operator_is_absent_before_its_first_version(op):
    since = OPERATORS[op].versions[0].since
    with pytest.raises(GpupoolValueError, match=f"opset = {since - 1} has no {op}.*opset {since}"):
        OPERATORS[op].at(since - 1)


def test_an_opset_is_what_operator_index_takes():
    class Opset:
        def __index__(self) -> int:
            return 12

    assert OPERATORS["MaxPool"].at(Opset()) is OPERATORS["MaxPool"].at(12)


@pytest.mark.parametrize("opset", [0, -1, NEWEST + 1])
def test_an_unknown_opset_is_refused(opset):
    with pytest.raises(GpupoolValueError, match=rf"opset = {opset} .*1 \.\. {NEWEST}"):
        opsets.check("MaxPool", opset, FLOAT32)


def attribute_gates():
    for op, operator in OPERATORS.items():
        first = operator.versions[0]
        for name in operator.newest.attributes:
            if name not in first.attributes:
                since = operator.brought(lambda v, name=name: name in v.attributes)
                yield pytest.param(op, name, since, id=f"{op}-{name}-{since}")


@pytest.mark.parametrize(("op", "name", "since"), list(attribute_gates()))
def test_an_attribute_is_gated_by_the_version_that_brought_it(op, name, since):
    opsets.check(op, since, FLOAT32, (name,))
    opsets.check(op, None, FLOAT32, (name,))
    with pytest.raises(GpupoolValueError, match=f"{name}: {op} .*opset {since}.*= {since - 1}"):
        opsets.check(op, since - 1, FLOAT32, (name,))


def dtype_gates():
    for op, operator in OPERATORS.items():
        for dtype in operator.newest.dtypes - operator.versions[0].dtypes:
            since = operator.brought(lambda v, dtype=dtype: dtype in v.dtypes)
            yield pytest.param(op, dtype, since, id=f"{op}-{dtype.name}-{since}")


@pytest.mark.parametrize(
    ("op", "dtype", "since"), sorted(dtype_gates(), key=lambda param: param.id)
)
def test_a_dtype_is_gated_by_the_version_that_brought_it(op, dtype, since):
    opsets.check(op, since, dtype)
    opsets.check(op, None, dtype)
    with pytest.raises(GpupoolTypeError, match=f"{dtype}: {op} .*opset {since}.*= {since - 1}"):
        opsets.check(op, since - 1, dtype)


def test_indices_are_gated_by_the_version_that_brought_them():
    opsets.check("MaxPool", 8, FLOAT32, outputs=2)
    with pytest.raises(GpupoolValueError, match=r"return_indices: MaxPool .*opset 8.*= 7"):
        opsets.check("MaxPool", 7, FLOAT32, outputs=2)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
def test_what_goes_beyond_onnx_needs_no_opset(op, dtype):
    operator = OPERATORS[op]
    if dtype in operator.beyond:
        opsets.check(op, None, dtype)
        with pytest.raises(GpupoolTypeError, match=f"{dtype}: {op} takes it in no opset"):
            opsets.check(op, NEWEST, dtype)
    elif dtype in operator.newest.dtypes:
        opsets.check(op, None, dtype)
        opsets.check(op, NEWEST, dtype)
    else:
        for opset in (None, NEWEST):
            with pytest.raises(GpupoolTypeError, match=f"{dtype}.*allowed: float64, float32"):
                opsets.check(op, opset, dtype)


def test_an_extension_is_refused_with_an_opset():
    with pytest.raises(GpupoolValueError, match=r"channels_last is gpupool's own.*opset"):
        opsets.check("MaxPool", 12, FLOAT32, extensions=("channels_last",))
    opsets.check("MaxPool", None, FLOAT32, extensions=("channels_last",))


@pytest.mark.parametrize("op", OPERATORS)
def test_find_takes_the_onnx_name_and_the_short_form(op):
    assert opsets.find(op) is OPERATORS[op]
    assert opsets.find(OPERATORS[op].short) is OPERATORS[op]


def test_find_refuses_anything_else():
    with pytest.raises(GpupoolValueError, match=r"op = 'median' must be one of .*MaxPool.*max"):
        opsets.find("median")
    with pytest.raises(GpupoolTypeError, match="op must be the name of an operator, not 3"):
        opsets.find(3)

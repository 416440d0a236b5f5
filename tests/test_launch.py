"""Launching as CuPy would see it: a stand-in for CuPy on NumPy memory whose kernels are emulated.

It holds to CuPy's own rules: an array is touched on its own device only, ``bool`` waits for the
device, a RawModule compiles text, options and name expressions.
"""

from __future__ import annotations

import copy
import operator
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpupool
from gpupool import jit, launch, planned
from gpupool.dtypes import BFLOAT16
from gpupool.errors import GpupoolError, GpupoolTypeError, GpupoolValueError
from gpupool.planned import PlannedCall
from gpupool.problem import resolve
from tests.conftest import Backend, emulator_backend, numpy_backend
from tests.cuda_on_cpu import EmulatedModule
from tests.strategies import MEMORY, Case
from tests.tolerance import assert_bitwise

current: list[int] = [0]
waits: list[str] = []
modules: list[dict[str, Any]] = []


class Device:
    """The one that ``with`` makes current."""

    def __init__(self, id: int | None = None) -> None:  # noqa: A002 - CuPy's name
        self.id = current[-1] if id is None else id

    def __enter__(self) -> Device:
        current.append(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        current.pop()


class Array:
    """What gpupool uses of cupy.ndarray."""

    __module__ = "cupy"

    def __init__(self, memory: np.ndarray[Any, Any], device: int) -> None:
        self.memory, self.device = memory, Device(device)
        self.data = SimpleNamespace(ptr=memory.ctypes.data, device_id=device)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.memory, name)
        return self._method(found) if callable(found) and name != "dtype" else found

    def _method(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._touch()
            return self._like(method(*map(plain, args), **kwargs))

        return call

    @property
    def _c_contiguous(self) -> bool:
        return self.memory.flags.c_contiguous

    def _touch(self) -> None:
        assert self.device.id == current[-1], "an array of another than the current device"

    def _like(self, value: Any) -> Any:
        return Array(np.asarray(value), self.device.id)

    def __bool__(self) -> bool:
        waits.append("bool")
        return bool(self.memory)

    def __int__(self) -> int:
        return int(self.memory)

    def __float__(self) -> float:
        return float(self.memory)

    def __setitem__(self, place: Any, value: Any) -> None:
        self._touch()
        self.memory[place] = plain(value)

    def tolist(self) -> Any:
        return self.memory.tolist()


def _operator(name: str) -> Any:
    def apply(self: Array, *others: Any) -> Array:
        self._touch()
        return self._like(getattr(operator, name)(self.memory, *map(plain, others)))

    return apply


for _name in (
    *("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "invert", "getitem"),
    *("add", "sub", "mul", "floordiv", "neg", "abs"),
):
    setattr(Array, f"__{_name}__", _operator(f"__{_name}__"))
Array.__iand__ = Array.__and__  # type: ignore[attr-defined]


def plain(value: Any) -> Any:
    return value.memory if isinstance(value, Array) else value


class RawModule:
    """Compiles the very text that CuPy would get."""

    def __init__(self, **given: Any) -> None:
        modules.append(given)
        (self.expression,) = given["name_expressions"]
        folder = jit.kernel_folder()
        self.module = EmulatedModule(given["code"], include_dir=folder, expression=self.expression)

    def get_function(self, expression: str) -> Any:
        function = self.module.get_function(expression)

        def call(grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
            for array in args:
                if isinstance(array, Array):
                    array._touch()
            function(grid, block, tuple(map(plain, args)), shared_mem=shared_mem)

        return call


def array(memory: np.ndarray[Any, Any], device: int = 0) -> Array:
    return Array(memory, device)


def empty(shape: Any, dtype: Any) -> Array:
    return Array(np.empty(shape, dtype), current[-1])


def ascontiguousarray(of: Array) -> Array:
    of._touch()
    if of.flags.c_contiguous:
        return of
    return Array(np.ascontiguousarray(of.memory), of.device.id)


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    emulator_backend()
    cuda = SimpleNamespace(
        Device=Device,
        function=SimpleNamespace(CNumpyArray=lambda value: value[()]),
        runtime=SimpleNamespace(getDevice=lambda: current[-1]),
        nvrtc=SimpleNamespace(getVersion=lambda: (12, 9)),
    )
    made = SimpleNamespace(
        cuda=cuda, empty=empty, ascontiguousarray=ascontiguousarray, RawModule=RawModule
    )
    monkeypatch.setitem(sys.modules, "cupy", made)
    jit.function.cache_clear()
    planned._plans.clear()
    waits.clear()
    modules.clear()
    yield made
    jit.function.cache_clear()
    planned._plans.clear()
    assert current == [0]


CUPY = Backend("cupy", gpupool, array, lambda result: result.memory)
ON_DEVICE_1 = Backend(
    "cupy", gpupool, lambda memory: Array(memory, 1), lambda result: result.memory
)


def x(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 9, shape).astype(dtype)


ROI = np.array([[0, 1, 1, 4, 5]], np.float32)
CASES = {
    "max": Case("max_pool", (x(1, 2, 9, 9),), {"kernel_shape": 3, "strides": 2, "pads": 1}),
    "Indices": Case("max_pool", (x(1, 2, 9),), {"kernel_shape": 3, "return_indices": True}),
    "average": Case("average_pool", (x(1, 9, 2),), {"kernel_shape": 4, "channels_last": True}),
    "norm": Case("lp_pool", (x(1, 2, 9, dtype=np.float64),), {"kernel_shape": 2, "p": 1}),
    "global": Case("global_max_pool", (x(1, 2, 120, 100),), {}),
    "unpool": Case("max_unpool", (x(1, 1, 4), np.array([[[0, 9, 3, 9]]])), {"kernel_shape": 10}),
    "regions": Case("max_roi_pool", (x(1, 2, 6, 6), ROI), {"pooled_shape": 2}),
    "align": Case("roi_align", (x(1, 2, 6, 6), ROI[:, 1:].copy(), np.array([0])), {}),
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_case
@pytest.mark.parametrize("backend", [CUPY, ON_DEVICE_1], ids=["device 0", "device 1"])
def test_the_functions_run_on_the_device_of_x(backend, case):
    results = case.call(backend)
    for result, right in zip(results, case.run(numpy_backend()), strict=True):
        assert isinstance(result, Array)
        assert result.device.id == backend.array(np.zeros(1)).device.id
        np.testing.assert_array_equal(result.memory, right)


@every_case
@pytest.mark.parametrize("memory", ["strided", "unaligned", "negative strides"])
def test_any_memory_for_inputs_and_out(case, memory):
    right = case.run(numpy_backend())
    out = tuple(array(MEMORY[memory](np.zeros_like(one))) for one in right)
    moved = case.on(*map(MEMORY[memory], case.arrays))
    results = moved.call(CUPY, out=out if len(out) > 1 else out[0])
    for result, given, one in zip(results, out, right, strict=True):
        assert result is given
        assert_bitwise(np.array(result.memory), one)


@every_case
def test_only_checks_of_values_wait_for_the_device(case):
    case.call(CUPY)
    checks_values = case.function in ("max_unpool", "max_roi_pool", "roi_align")
    assert len(waits) == checks_values


def test_a_plan_never_waits_and_skips_bad_entries():
    plan = gpupool.plan("MaxUnpool", (1, 1, 3), "float32", kernel_shape=2, strides=2)
    y = plan(array(x(1, 1, 3) + 1), array(np.array([[[-1, 2, 99]]])))
    assert not waits
    assert np.count_nonzero(y.memory) == 1
    plan = gpupool.plan("MaxRoiPool", (1, 1, 4, 4), "float32", pooled_shape=1, num_rois=1)
    y = plan(array(x(1, 1, 4, 4) + 1), array(np.array([[7, 0, 0, 3, 3]], np.float32)))
    assert not waits
    assert y.memory.tolist() == [[[[0]]]]


def test_one_module_for_each_instantiation_compiled_once():
    for _ in range(3):
        CASES["max"].call(CUPY)
    (module,) = modules
    plan = gpupool.plan("max", (1, 2, 9, 9), "float32", **CASES["max"].arguments).plan
    (launched,) = plan.launches
    assert module["name_expressions"] == (launched.expression,)
    assert jit.digest(jit.kernel_folder()) in module["code"]
    assert f'#include "{launched.source}"' in module["code"]
    assert module["options"] == jit.options()
    CASES["max"].call(ON_DEVICE_1)
    assert len(modules) == 2, "modules belong to a device"


# Calls that repeat earlier ones


@pytest.fixture
def planned_once(monkeypatch):
    """Refuse to plan again once the test says so."""

    def no_more():
        monkeypatch.setattr(launch, "plan", None)

    return no_more


@every_case
def test_a_second_call_of_a_plan_plans_nothing_and_computes_anew(planned_once, case):
    problem = problem_of(case)
    call, right = PlannedCall(problem), case.run(numpy_backend())
    first = tuple(array(np.zeros_like(one)) for one in right)
    inputs = [array(one) for one in case.arrays]
    call(*inputs, out=first if len(first) > 1 else first[0])
    planned_once()
    again = call(*[array(one.copy()) for one in case.arrays])
    for one, given, expected in zip(
        again if len(first) > 1 else (again,), first, right, strict=True
    ):
        assert one is not given
        assert_bitwise(one.memory, given.memory)
        np.testing.assert_array_equal(one.memory, expected)


def test_a_loop_over_the_same_arrays_examines_nothing_but_their_shapes(monkeypatch):
    plan = gpupool.plan("max", (1, 1, 4, 6), "float32", kernel_shape=2)
    values, y = array(x(1, 1, 4, 6)), array(np.zeros((1, 1, 3, 5), np.float32))
    for _ in range(2):  # checked, then remembered
        plan(values, out=y)
    monkeypatch.setattr(planned.arrays, "layouts", None)
    for seed in range(3):
        values.memory[...] = x(1, 1, 4, 6) + seed
        assert plan(values, out=y) is y
        np.testing.assert_array_equal(y.memory, gpupool.max_pool(values.memory, 2))


@pytest.mark.parametrize("name", ["x", "out"])
def test_an_array_of_a_loop_that_gets_another_shape_is_refused(name):
    plan = gpupool.plan("max", (1, 1, 4, 6), "float32", kernel_shape=2)
    given = {"x": array(x(1, 1, 4, 6)), "out": array(np.zeros((1, 1, 3, 5), np.float32))}
    for _ in range(3):
        plan(given["x"], out=given["out"])
    given[name].memory = given[name].memory.swapaxes(2, 3)
    with pytest.raises(GpupoolValueError, match=rf"{name} .*(the plan is for|expected)"):
        plan(given["x"], out=given["out"])


def test_a_loop_keeps_no_array_alive_and_goes_on_with_others():
    plan = gpupool.plan("max", (1, 1, 4, 6), "float32", kernel_shape=2)
    for _ in range(2):
        values, y = array(x(1, 1, 4, 6)), array(np.zeros((1, 1, 3, 5), np.float32))
        for _ in range(2):
            plan(values, out=y)
        seen = plan._repeats.pair
        assert (seen.x(), seen.y()) == (values, y)
        del values, y
        assert (seen.x(), seen.y()) == (None, None)
        for nothing in (None, ()):
            with pytest.raises(GpupoolTypeError):
                plan(nothing, out=None)


def test_the_arrays_of_a_loop_are_computed_on_their_own_device(cupy):
    plan = gpupool.plan("max", (1, 1, 4, 6), "float32", kernel_shape=2)
    values, y = array(x(1, 1, 4, 6)), array(np.zeros((1, 1, 3, 5), np.float32))
    for device in (0, 0, 1, 1, 0):
        y.memory[...] = 0
        with cupy.cuda.Device(device):
            plan(values, out=y)
        np.testing.assert_array_equal(y.memory, gpupool.max_pool(values.memory, 2))


def problem_of(case):
    """Return the problem of a case."""
    rois = {"num_rois": len(case.arrays[1])} if "roi" in case.function else {}
    names = {"max_roi_pool": "MaxRoiPool", "roi_align": "RoiAlign", "max_unpool": "MaxUnpool"}
    op = names.get(case.function) or case.function.replace("_pool", "").replace("_", "-")
    return resolve(op, case.arrays[0].shape, case.arrays[0].dtype, **case.arguments, **rois)


def test_a_second_call_of_a_function_plans_nothing(planned_once):
    memory = x(1, 2, 9, 9)
    y = gpupool.max_pool(array(memory), (3, 3), strides=[2, 2], pads=1)
    planned_once()
    again = gpupool.max_pool(array(memory + 1), (3, 3), strides=[2, 2], pads=1, out=y)
    assert again is y
    np.testing.assert_array_equal(y.memory, gpupool.max_pool(memory + 1, 3, strides=2, pads=1))


def test_equal_numbers_of_other_types_are_other_calls():
    memory = array(x(1, 2, 9, 9))
    gpupool.max_pool(memory, 1, pads=(0, 0, 0, 0))
    for kernel_shape, pads in ((True, 0), (1.0, 0), (1, (False, 0, 0, 0)), (1, [0.0, 0, 0, 0])):
        with pytest.raises(GpupoolTypeError):
            gpupool.max_pool(memory, kernel_shape, pads=pads)


@pytest.mark.parametrize("documented", [False, True])
def test_other_layouts_of_known_shapes_are_planned_anew(documented, monkeypatch):
    if documented:  # a CuPy that says only by its strides whether an array is contiguous
        monkeypatch.delattr(Array, "_c_contiguous")
    plan = gpupool.plan("max", (1, 1, 4, 8), "float32", kernel_shape=2)
    values = x(1, 1, 4, 8)
    right = gpupool.max_pool(values, 2)
    for name in ("contiguous", "strided", "negative strides", "unaligned", "Fortran-ordered"):
        for _ in range(2):
            y = plan(array(MEMORY[name](values)))
            np.testing.assert_array_equal(y.memory, right)


def test_strides_of_axes_of_one_element_choose_no_other_kernel():
    plan = gpupool.plan("max", (1, 8, 64, 64), "float32", kernel_shape=3, pads=1)
    values, y = x(1, 8, 64, 64), array(np.zeros((1, 8, 64, 64), np.float32))
    odd = np.lib.stride_tricks.as_strided(values, values.shape, (4, *values.strides[1:]))
    for memory in (odd, values):
        plan(array(memory), out=y)
        np.testing.assert_array_equal(y.memory, gpupool.max_pool(values, 3, pads=1))
    (compiled,) = (given["name_expressions"] for given in modules)
    (launch,) = plan.plan.launches
    assert compiled == (launch.expression,)


def test_a_plan_takes_its_inputs_and_no_output_among_them():
    plan = gpupool.plan("max", (1, 1, 4), "float32", kernel_shape=2, return_indices=True)
    values, y = array(x(1, 1, 4)), array(np.zeros((1, 1, 3), np.float32))
    indices = array(np.zeros((1, 1, 3), np.int64))
    for _ in range(2):
        plan(values, out=(y, indices))
        for inputs, out in (((values, y), None), ((values, y), indices), ((), None)):
            with pytest.raises(
                GpupoolTypeError, match=r"MaxPool takes x, not \d arrays; outputs go"
            ):
                plan(*inputs, out=out)
    single = gpupool.plan("max", (1, 1, 4), "float32", kernel_shape=2)
    for _ in range(2):
        assert single(values, out=y) is y
        with pytest.raises(GpupoolTypeError):
            single(values, out=(y,))


def test_a_plan_checks_shape_and_dtype_of_every_input():
    values = array(x(1, 1, 4))
    unpool = gpupool.plan("MaxUnpool", (1, 1, 4), "float32", kernel_shape=2, strides=2)
    with pytest.raises(GpupoolValueError, match=r"indices has shape \(1,\), expected \(1, 1, 4\)"):
        unpool(values, array(np.zeros(1, np.int64)))
    with pytest.raises(GpupoolTypeError, match="indices has dtype int32, expected int64"):
        unpool(values, array(np.zeros((1, 1, 4), np.int32)))
    pool = gpupool.plan("MaxRoiPool", (1, 1, 4, 4), "float32", pooled_shape=1, num_rois=2)
    with pytest.raises(GpupoolValueError, match=r"rois has shape \(1, 5\), expected \(2, 5\)"):
        pool(array(x(1, 1, 4, 4)), array(np.zeros((1, 5), np.float32)))


def test_a_dtype_is_as_good_a_key_as_its_name(planned_once):
    values = array(x(1, 2, 9))
    kinds = {"return_indices": True, "index_dtype": np.dtype(np.int32)}
    _, indices = gpupool.max_pool(values, 3, **kinds)
    planned_once()
    assert gpupool.max_pool(values, 3, **kinds)[1].dtype == indices.dtype == np.int32


def test_a_plan_remembers_few_layouts_and_forgets_what_was_not_asked_for(monkeypatch, planned_once):
    monkeypatch.setattr(planned, "LAYOUTS", 2)
    call = PlannedCall(problem_of(CASES["max"]))
    values = CASES["max"].arrays[0]
    for name in ("contiguous", "Fortran-ordered", "contiguous", "strided", "contiguous"):
        call(array(MEMORY[name](values)))
        assert len(call._repeats.known) <= 2
    planned_once()
    for name in ("strided", "contiguous"):
        call(array(MEMORY[name](values)))
    with pytest.raises(TypeError):  # planning, which is no more
        call(array(MEMORY["Fortran-ordered"](values)))


def test_a_class_derived_from_cupys_is_refused_before_and_after_a_call():
    class Derived(Array):
        pass

    plan = gpupool.plan("max", (1, 1, 4), "float32", kernel_shape=2)
    values, y = x(1, 1, 4), np.zeros((1, 1, 3), np.float32)
    for _ in range(2):
        for given, out in ((Derived(values, 0), array(y)), (array(values), Derived(y, 0))):
            with pytest.raises(GpupoolTypeError, match="must be a NumPy, CuPy, torch or JAX array"):
                plan(given, out=out)
        plan(array(values), out=array(y))


def test_nothing_is_allocated_for_an_input_that_does_not_fit(cupy):
    plan = gpupool.plan("max", (1, 1, 4), "float32", kernel_shape=2)
    allocated = []
    cupy.empty = lambda *given: allocated.append(given) or empty(*given)
    for own in (0, 1, 1):  # the device that is not the current one, too
        plan(array(x(1, 1, 4), own))
    assert len(allocated) == 3
    with pytest.raises(GpupoolValueError, match="the plan is for"):
        plan(array(x(1, 1, 5)))
    assert len(allocated) == 3


def test_a_plan_is_pickled_and_copied_without_its_launches():
    plan = gpupool.plan("max", (1, 1, 4), "float32", kernel_shape=2)
    y = plan(array(x(1, 1, 4)))
    for other in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert other == plan
        assert other._repeats.latest is None
        np.testing.assert_array_equal(other(array(x(1, 1, 4))).memory, y.memory)


def test_the_current_device_may_change_between_calls(cupy):
    plan = gpupool.plan("max", (1, 1, 4, 8), "float32", kernel_shape=2)
    values = x(1, 1, 4, 8)
    for current_device, own in ((0, 0), (0, 1), (1, 1), (1, 0), (0, 0)):
        with cupy.cuda.Device(current_device):
            y = plan(array(values, own))
        assert y.device.id == own
        np.testing.assert_array_equal(y.memory, gpupool.max_pool(values, 2))
    assert len(plan._repeats.known) == 2  # one for the arrays of each device


def test_a_repeated_call_refuses_what_the_first_would_have_refused():
    plan = gpupool.plan("max", (1, 1, 4), "bfloat16", kernel_shape=2)
    values = x(1, 1, 4, dtype=BFLOAT16.numpy)
    y = plan(array(values))
    with pytest.raises(GpupoolTypeError, match="out a numpy array"):
        plan(array(values), out=y.memory)
    with pytest.raises(GpupoolTypeError, match="out for Y has dtype float32"):
        plan(array(values), out=array(np.zeros((1, 1, 3), np.float32)))
    with pytest.raises(GpupoolValueError, match="out for Y has shape"):
        plan(array(values), out=array(np.zeros((1, 1, 4), values.dtype)))
    with pytest.raises(GpupoolValueError, match="the plan is for bfloat16"):
        plan(array(values[..., :3]))
    memory = np.zeros(64, values.dtype)
    x_of_it, apart, within = (
        memory[i : i + n].reshape(1, 1, n) for i, n in ((0, 4), (32, 3), (0, 3))
    )
    plan(array(x_of_it), out=array(apart))
    with pytest.raises(GpupoolValueError, match="shares memory"):
        plan(array(x_of_it), out=array(within))
    np.testing.assert_array_equal(plan(values), y.memory)


def test_arrays_of_two_devices_are_refused():
    values, indices = x(1, 1, 4), np.arange(4).reshape(1, 1, 4)
    with pytest.raises(GpupoolTypeError, match="x is on device 0 and indices on device 1"):
        gpupool.max_unpool(array(values), array(indices, 1), 1)
    with pytest.raises(GpupoolTypeError, match="x is on device 1 and out on device 0"):
        gpupool.global_max_pool(array(values, 1), out=array(np.zeros((1, 1, 1), np.float32)))
    with pytest.raises(GpupoolTypeError, match="cupy array and out a numpy array"):
        gpupool.global_max_pool(array(values), out=np.zeros((1, 1, 1), np.float32))


def test_bad_entries_are_refused_on_the_device():
    with pytest.raises(GpupoolValueError, match="indices holds 4"):
        gpupool.max_unpool(array(x(1, 1, 4), 1), array(np.full((1, 1, 4), 4), 1), 1)
    with pytest.raises(GpupoolValueError, match="RoI 0 is not usable"):
        gpupool.max_roi_pool(array(x(1, 1, 4, 4)), array(ROI + 1), 2)


def test_running_out_of_memory_names_the_output(cupy):
    def full(*_: Any) -> Any:
        raise MemoryError("out of memory allocating 1 bytes")

    cupy.empty = full
    with pytest.raises(MemoryError, match="out of memory") as raised:
        CASES["max"].call(CUPY)
    assert "Y (1, 2, 5, 5) float32, 200 bytes" in raised.value.__notes__[0]
    cupy.empty = empty
    CASES["max"].call(CUPY)


@pytest.mark.parametrize(
    ("size", "out", "named"),
    [
        ((1200, 1000), (1, 1), "a workspace of 2336 bytes"),
        (
            (9, 9),
            (9, 18),
            "contiguous memory for what goes to out, (1, 2, 9, 9) float32, 648 bytes",
        ),
    ],
)
def test_running_out_of_memory_names_what_a_call_takes_beside_its_output(cupy, size, out, named):
    def full(*_: Any) -> Any:
        raise MemoryError("out of memory")

    y = np.zeros((1, 2, *out), np.float32)[..., :: max(1, out[1] // size[1])]
    kernel = size if out == (1, 1) else 1
    cupy.empty = full
    with pytest.raises(MemoryError, match="out of memory") as raised:
        gpupool.max_pool(array(np.zeros((1, 2, *size), np.float32)), kernel, out=array(y))
    assert raised.value.__notes__ == [f"gpupool was allocating {named}"]
    cupy.empty = empty


def test_running_out_of_memory_names_the_copies_of_inputs(cupy):
    def full(_: Any) -> Any:
        raise MemoryError("out of memory")

    cupy.ascontiguousarray = full
    with pytest.raises(MemoryError, match="out of memory") as raised:
        CASES["regions"].call(CUPY)
    assert raised.value.__notes__ == [
        "gpupool was allocating contiguous copies of the inputs, "
        "(1, 2, 6, 6) float32, 288 bytes, (1, 5) float32, 20 bytes"
    ]
    cupy.ascontiguousarray = ascontiguousarray


def test_an_empty_result_launches_nothing():
    y = gpupool.max_pool(array(x(0, 2, 4)), 2)
    assert y.shape == (0, 2, 3)
    assert not modules


def test_warmup_compiles_what_the_plan_launches(monkeypatch):
    monkeypatch.setattr(launch, "gpu_reason", lambda: "there is none")
    with pytest.raises(GpupoolError, match="no GPU to compile for: there is none"):
        gpupool.warmup("GlobalMaxPool", (1, 2, 120, 100), "float32")
    monkeypatch.setattr(launch, "gpu_reason", lambda: None)
    made = gpupool.warmup("GlobalMaxPool", (1, 2, 120, 100), "float32")
    assert [m["name_expressions"][0] for m in modules] == [
        one.expression for one in made.plan.launches
    ]
    count = len(modules)
    assert_bitwise(
        made(array(CASES["global"].arrays[0])).memory, CASES["global"].run(numpy_backend())[0]
    )
    assert len(modules) == count

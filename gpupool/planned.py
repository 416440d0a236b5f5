"""Calls: a problem planned once and computed on arrays, by the back end of their kind.

A function's call is a plan that is looked up and called. What a call has found out stays with its
plan: on the GPU, a second call on arrays laid out like those of an earlier one adds addresses to
prepared launches and repeats no check, some microseconds less for the host; a loop that fills one
output from one input examines neither.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, Protocol
from weakref import ref

import numpy as np

from gpupool import arrays, interchange, launch, oracle, planner, values
from gpupool.errors import GpupoolTypeError, GpupoolValueError
from gpupool.problem import Input, Output, PoolProblem, Problem, check_bytes, resolve

REMEMBERED = 4096
"""Calls of different shapes and attributes that a process keeps plans for."""

LAYOUTS = 256
"""Memory layouts of its arrays that a plan keeps launches for: two arrays of bytes have as many
alignments."""


class Backend(Protocol):
    """Where a problem is computed: memory for its outputs and its arithmetic."""

    def empty(self, output: Output, like: Any) -> Any:
        """Return uninitialised memory for ``output`` beside the array ``like``."""

    def run(
        self,
        problem: Problem,
        inputs: tuple[Any, ...],
        outputs: tuple[Any, ...],
        kernel: str = "auto",
    ) -> Callable[..., None] | None:
        """Compute ``problem``; every argument is checked and nothing is empty.

        Returns what computes it for other arrays of the same layout, or None.
        """


BACKENDS: dict[str, Backend] = {"numpy": oracle, "cupy": launch}


@dataclass(frozen=True, slots=True)
class _Repeat:
    """How to compute for arrays laid out like earlier ones, wherever they begin.

    ``key`` says how they are laid out, and which of them are inputs. Arrays ``i`` and ``j`` of
    ``meetings`` overlap where one begins between so many bytes before and after the other.
    """

    key: list[Any]
    compute: Callable[..., None]
    device: int | None
    current_device: Callable[[], int]
    meetings: tuple[tuple[int, int, int, int], ...]

    @classmethod
    def of(
        cls, key: list[Any], compute: Callable[..., None], everything: Sequence[Any]
    ) -> _Repeat:  # fmt: skip
        reaches = list(enumerate(map(arrays.reach, everything)))
        meetings = tuple(
            (i, j, first[0] - second[1], first[1] - second[0])
            for (i, first), (j, second) in combinations(reaches, 2)
        )
        device = arrays.device(everything[0])
        return cls(key, compute, device, launch.current_device(), meetings)

    def fits(self, starts: Sequence[int]) -> bool:
        """Whether the device is the current one and no two arrays meet that begin here."""
        for i, j, before, after in self.meetings:
            if before < starts[j] - starts[i] < after:
                return False
        return self.current_device() == self.device


class _Pair:
    """An input and an output that have been computed: a loop over them need not examine them again.

    CuPy never lets the dtype or the memory of an array change while it lives, only its shape.
    """

    __slots__ = ("repeat", "shape", "x", "y", "y_shape")

    def __init__(self, repeat: _Repeat, x: Any, y: Any) -> None:
        self.repeat = repeat
        self.x, self.shape = ref(x), x.shape
        self.y, self.y_shape = ref(y), y.shape

    def is_given(self, inputs: tuple[Any, ...], out: Any) -> bool:
        """Whether these are the arrays of a call, on the current device."""
        x = self.x()
        if x is None or out is None or len(inputs) != 1 or inputs[0] is not x:
            return False
        same_shapes = x.shape == self.shape and out.shape == self.y_shape
        return bool(same_shapes and self.repeat.current_device() == self.repeat.device)


class _Repeats:
    """The layouts that a plan has computed for, no more than LAYOUTS.

    The latest is compared with a call's before any is looked up, which takes twice as long.
    """

    def __init__(self) -> None:
        self.pair: _Pair | None = None
        self.latest: _Repeat | None = None
        self.known: dict[tuple[Any, ...], _Repeat] = {}

    def find(self, key: list[Any]) -> _Repeat | None:
        """Return how to compute for a layout, which is then the latest."""
        found = self.known.pop(tuple(key), None)
        if found is not None:
            self.add(found)
        return found

    def add(self, repeat: _Repeat) -> None:
        """Keep one more, in place of the one that was not asked for the longest."""
        self.latest = self.known[tuple(repeat.key)] = repeat
        if len(self.known) > LAYOUTS:
            for oldest in list(self.known)[:-LAYOUTS]:  # none, if another thread was first
                self.known.pop(oldest, None)


@dataclass(frozen=True, repr=False)
class PlannedCall:
    """A problem planned once, to be called on arrays of its shape and dtype.

    Calling it skips every check that planning has done, and on the GPU those on values too: a plan
    never synchronises, and max_unpool and the RoI operators skip bad entries instead of refusing
    them. ``repr`` shows the kernels. Captured in a CUDA graph, a plan with a workspace (max_unpool,
    few outputs with huge windows) uses that memory again at every replay: give the capture a
    memory pool of its own, ``cupy.cuda.using_allocator``, and keep it as long as the graph.
    """

    problem: Problem
    kernel: str = "auto"
    _repeats: _Repeats = field(default_factory=_Repeats, init=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the plan alone: launches are this process's."""
        return type(self), (self.problem, self.kernel)

    @property
    def plan(self) -> planner.Plan:
        """The launches for a C-contiguous x."""
        return planner.plan(self.problem, kernel=self.kernel)

    def __repr__(self) -> str:
        return repr(self.plan)

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """Compute the planned problem on C-contiguous arrays; ``out`` is filled and returned."""
        repeated = self._repeated(inputs, out) if self._repeats.latest else None
        return self._checked(inputs, out, planned=True) if repeated is None else repeated

    def compute(self, inputs: tuple[Any, ...], out: Any) -> Any:
        """Compute as a function's call does, which checks positions and regions every time."""
        if self._repeats.latest and isinstance(self.problem, PoolProblem):
            repeated = self._repeated(inputs, out)
            if repeated is not None:
                return repeated
        return self._checked(inputs, out, planned=False)

    def _checked(self, inputs: tuple[Any, ...], out: Any, planned: bool) -> Any:
        """Check that the arrays are what was planned for, and compute by their kind."""
        problem = self.problem
        if len(inputs) != len(problem.inputs):
            names = " and ".join(wanted.name for wanted in problem.inputs)
            raise GpupoolTypeError(
                f"{problem.op} takes {names}, not {len(inputs)} arrays; outputs go to out="
            )
        x, first = inputs[0], problem.inputs[0].name
        kind = arrays.kind(first, x)
        if x.shape != problem.shape or arrays.dtype(x) != problem.dtype.numpy:
            raise GpupoolValueError(
                f"{first} is {arrays.dtype(x)} {tuple(x.shape)}, "
                f"the plan is for {problem.dtype} {problem.shape}"
            )
        for wanted, array in zip(problem.inputs[1:], inputs[1:], strict=True):
            _same_kind(first, kind, wanted.name, array)
            _require(wanted, array)
        if kind not in BACKENDS:
            # Dynamo, which traces what torch compiles, would go through the oracle.
            compute = self._computed_viewed
            return interchange.untraced(kind, compute, kind, inputs, out, planned)
        return _as_result(self._computed(kind, inputs, _as_tuple(problem, out), planned))

    def _repeated(self, inputs: tuple[Any, ...], out: Any) -> Any:
        """Compute if nothing but addresses is new since an earlier call; None if more is."""
        pair = self._repeats.pair
        if pair is not None and pair.y() is out and pair.is_given(inputs, out):
            pair.repeat.compute(inputs[0], out)
            return out
        allocates = out is None
        if allocates:
            if not self._expects(inputs):
                return None
            out = _as_result(_allocate(launch, self.problem, inputs[0]))
        several = type(out) is tuple
        everything = inputs + (out if several else (out,))
        try:
            key, starts = arrays.layouts(everything)
        except (AttributeError, ValueError):  # not all are CuPy's, which the checks will say
            return None
        key += len(inputs), several
        repeat = self._repeats.latest
        if repeat is None or repeat.key != key:
            repeat = self._repeats.find(key)
        if repeat is None or not repeat.fits(starts):
            return None
        repeat.compute(*everything)
        if (pair is None or pair.y() is None) and not allocates and len(everything) == 2:
            self._repeats.pair = _Pair(repeat, *everything)
        return out

    def _expects(self, inputs: tuple[Any, ...]) -> bool:
        """Whether x may be like an earlier call's, so that an output is worth allocating."""
        latest = self._repeats.latest
        if not latest or not inputs or arrays.kind("x", inputs[0]) != "cupy":
            return False
        x = inputs[0]
        return bool(x.shape == self.problem.shape) and arrays.device(x) == latest.current_device()

    def _computed(
        self, kind: str, inputs: tuple[Any, ...], given: tuple[Any, ...], planned: bool
    ) -> tuple[Any, ...]:
        """Check everything, compute, and keep what the next call need not do again."""
        backend, problem, x = BACKENDS[kind], self.problem, inputs[0]
        _check_given(problem, inputs, given, kind)
        first, *others = [*(wanted.name for wanted in problem.inputs), *["out"] * len(given)]
        for name, array in zip(others, (*inputs[1:], *given), strict=True):
            _same_device(first, x, name, array)
        with arrays.on_device(x):
            read = tuple(map(arrays.aligned, inputs))
            if not (planned and kind == "cupy"):
                values.check(problem, read)
            outputs = given or _allocate(backend, problem, x)
            if outputs[0].size:
                compute = backend.run(problem, read, outputs, self.kernel)
                if compute is not None and all(map(operator.is_, read, inputs)):
                    self._remember(compute, inputs, outputs)
        return outputs

    def _remember(
        self, compute: Callable[..., None], inputs: tuple[Any, ...], outputs: tuple[Any, ...]
    ) -> None:
        everything = (*inputs, *outputs)
        key, _ = arrays.layouts(everything)
        key += len(inputs), len(outputs) > 1
        self._repeats.add(_Repeat.of(key, compute, everything))

    def _computed_viewed(self, kind: str, inputs: tuple[Any, ...], out: Any, planned: bool) -> Any:
        """Compute on the NumPy or CuPy views of another library's arrays."""
        library, problem, x = interchange.LIBRARIES[kind], self.problem, inputs[0]
        given, call, first = _as_tuple(problem, out), self, problem.inputs[0].name
        for wanted, array in zip(problem.inputs, inputs, strict=True):
            library.check(wanted.name, array, first, x)
        for array in given:
            _same_kind(first, kind, "out", array)
            library.check("out", array, first, x)
        library.check_outputs(problem.outputs, given)
        with library.current(x):
            results = given or _allocate(library, problem, x)
            views = tuple(library.native(array) for array in inputs)
            filled = tuple(library.native(array) for array in results)
            if not given and library.channels_last(problem, x):
                call = self._channels_last
                views, filled = (interchange.moved(group, x.ndim) for group in (views, filled))
            into = _as_result(filled)
            _ = call(*views, out=into) if planned else call.compute(views, into)
            return _as_result(tuple(library.finished(result, x) for result in results))

    @cached_property
    def _channels_last(self) -> PlannedCall:
        return PlannedCall(interchange.channels_last(self.problem), self.kernel)


# Plans by call


_SCALARS = {int, float, bool, str, type(None), type}
_SEQUENCES = {tuple, list}
_plans: dict[Any, PlannedCall] = {}


def planned(op: str, x: Any, **attributes: Any) -> PlannedCall:
    """Return the plan for a call on x: the same one for the same shape, dtype and attributes."""
    kind, call = arrays.kind("x", x), (op, x.shape, arrays.dtype(x), attributes)
    if kind in BACKENDS:
        return _planned(*call)
    # Dynamo would guard everything that is remembered.
    found: PlannedCall = interchange.untraced(kind, _planned, *call)
    return found


def _planned(
    op: str, shape: tuple[int, ...], dtype: Any, attributes: dict[str, Any]
) -> PlannedCall:  # fmt: skip
    key = _key(attributes.values())
    if key is None:
        return PlannedCall(resolve(op, shape, dtype, **attributes))
    found = _plans.get((op, shape, dtype, key))
    if found is None:
        found = PlannedCall(resolve(op, shape, dtype, **attributes))
        if len(_plans) >= REMEMBERED:
            _plans.clear()
        _plans[op, shape, dtype, key] = found
    return found


def _key(given: Collection[Any]) -> tuple[Any, ...] | None:
    """Return what tells attributes apart, also 1, 1.0 and True; None where they are no plain ones.

    >>> _key([3, (1, 2)]) == _key([3, (1, 2)]), _key([1]) == _key([True]), _key([b"1"])
    (True, False, None)
    """
    types = tuple(map(type, given))
    others = {kind for kind in {*types} - _SCALARS if not issubclass(kind, np.dtype)}
    if not others:
        return types, *given
    if others <= _SEQUENCES and all(
        {*map(type, value)} <= {int} for value in given if type(value) in _SEQUENCES
    ):
        return types, *(tuple(value) if type(value) is list else value for value in given)
    return None


# Checks of arrays


def _same_kind(first: str, kind: str, name: str, array: Any) -> None:
    other = arrays.kind(name, array)
    if other != kind:
        raise GpupoolTypeError(
            f"{first} is a {kind} array and {name} a {other} array: use one kind"
        )


def _require(wanted: Input, array: Any) -> None:
    """Refuse a second input whose shape or dtype does not follow from x."""
    if arrays.dtype(array) != wanted.dtype:
        raise GpupoolTypeError(
            f"{wanted.name} has dtype {arrays.dtype(array)}, expected {wanted.dtype}"
        )
    if tuple(array.shape) != wanted.shape:
        raise GpupoolValueError(
            f"{wanted.name} has shape {tuple(array.shape)}, expected {wanted.shape}"
        )


def _same_device(first: str, x: Any, name: str, array: Any) -> None:
    own, other = arrays.device(x), arrays.device(array)
    if other != own:
        raise GpupoolTypeError(
            f"{first} is on device {own} and {name} on device {other}: copy it to one device"
        )


def _allocate(backend: Backend | interchange.Library, problem: Problem, x: Any) -> tuple[Any, ...]:
    outputs = problem.outputs
    check_bytes(outputs)
    try:
        return tuple(backend.empty(output, x) for output in outputs)
    except MemoryError as error:
        sizes = ", ".join(f"{o.name} {o.shape} {o.dtype}, {o.nbytes} bytes" for o in outputs)
        error.add_note(f"gpupool was allocating the output: {sizes}")
        raise


def _as_result(outputs: tuple[Any, ...]) -> Any:
    return outputs if len(outputs) > 1 else outputs[0]


def _as_tuple(problem: Problem, out: Any) -> tuple[Any, ...]:
    if out is None:
        return ()
    outputs = problem.outputs
    given = tuple(out) if len(outputs) > 1 and isinstance(out, (tuple, list)) else (out,)
    if len(given) != len(outputs):
        raise GpupoolValueError(
            f"out must be a pair of arrays, {' and '.join(o.name for o in outputs)}"
        )
    return given


def _check_given(
    problem: Problem, inputs: tuple[Any, ...], given: tuple[Any, ...], kind: str
) -> None:
    """Check the arrays passed as ``out``; none is an empty tuple."""
    for array in given:
        _same_kind(problem.inputs[0].name, kind, "out", array)
    for array, output in zip(given, problem.outputs, strict=bool(given)):
        if array.dtype != output.dtype:
            raise GpupoolTypeError(
                f"out for {output.name} has dtype {array.dtype}, expected {output.dtype}"
            )
        if tuple(array.shape) != output.shape:
            raise GpupoolValueError(
                f"out for {output.name} has shape {tuple(array.shape)}, expected {output.shape}"
            )
        if arrays.read_only(array):
            raise GpupoolValueError(f"out for {output.name} is read-only")
        if arrays.repeats(array):
            raise GpupoolValueError(
                f"out for {output.name} has strides {tuple(array.strides)}, by which elements may "
                f"lie in one place: pass an array of its own"
            )
        others = (*inputs, *(other for other in given if other is not array))
        if any(arrays.overlap(array, other) for other in others):
            raise GpupoolValueError(
                f"out for {output.name} shares memory with an input or the other output: "
                f"pass an array of its own"
            )

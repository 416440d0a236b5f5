"""The geometry of one axis against a brute force over positions, and its own invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.errors import GpupoolValueError
from gpupool.window import AUTO_PADS, Axis, covering, out_shape, taps_of, window
from tests import reference, strategies


@st.composite
def resolved(draw):
    """Draw an axis as gpupool resolves it, with the same axis evaluated tap by tap."""
    auto_pad, ceil = draw(st.sampled_from(AUTO_PADS)), draw(st.booleans())
    a = draw(strategies.axes(30, auto_pad, ceil))
    arguments = (a.size, a.kernel, a.stride, a.dilation, (a.begin, a.end), auto_pad, ceil)
    return Axis.resolve(*arguments), reference.line(*arguments), arguments


@given(resolved())
def test_outputs_and_pads_follow_the_rule(drawn):
    axis, _, arguments = drawn
    assert (axis.out, axis.pad_begin, axis.pad_end) == reference.outputs(*arguments)
    assert axis.out >= 1


@given(resolved())
def test_valid_positions_and_counted_taps_equal_the_brute_force(drawn):
    axis, line, _ = drawn
    assert len(line.valid) == axis.out
    for o in range(axis.out):
        assert tuple(axis.valid(o)) == line.valid[o]
        assert len(axis.taps(o)) == len(axis.valid(o))
        assert axis.counted(o) == line.counted[o]
        read = tuple(axis.start(o) + j * axis.dilation for j in axis.taps(o))
        assert read == line.valid[o]


@given(resolved(), st.data())
def test_the_parts_of_an_axis_give_the_whole(drawn, data):
    axis, _, _ = drawn
    first = data.draw(st.integers(0, axis.out - 1))
    last = data.draw(st.integers(first + 1, axis.out))
    places, part = axis.part(first, last)
    assert part.out == last - first
    assert part.size == len(places)
    assert set(places) <= set(range(axis.size))
    for o in range(part.out):
        assert [places[q] for q in part.valid(o)] == list(axis.valid(first + o))
        assert part.counted(o) == axis.counted(first + o)


@given(resolved())
def test_an_axis_that_touches_leaves_no_window_without_a_tap(drawn):
    axis, line, _ = drawn
    if axis.touches:
        assert all(line.valid)
    elif axis.dilation <= axis.size:
        assert not all(line.valid)


@given(resolved())
def test_mean_taps_are_those_of_all_windows_where_none_lies_in_the_padding_alone(drawn):
    """Dilated, the last tap in the padding counts for as much as lies between two, or less."""
    axis, line, _ = drawn
    starts = [axis.start(o) for o in range(axis.out)]
    behind = sum(start + axis.extent > axis.size for start in starts)
    assert axis.over_edges == (sum(start < 0 for start in starts), behind)
    assert 0 <= axis.mean_taps <= axis.kernel
    if axis.touches:
        lost = axis.mean_taps * axis.out - sum(map(len, line.valid))
        most = sum(axis.over_edges) * (1 - 1 / axis.dilation)
        assert -1e-9 <= lost <= most + 1e-9


@given(resolved())
def test_a_trimmed_axis_reads_the_same_positions(drawn):
    axis, line, _ = drawn
    trimmed = axis.trimmed()
    assert (trimmed.size, trimmed.stride, trimmed.out) == (axis.size, axis.stride, axis.out)
    assert [tuple(trimmed.valid(o)) for o in range(axis.out)] == list(line.valid)
    assert trimmed.kernel <= axis.kernel
    if axis.stride == 1 and any(line.valid):
        assert trimmed.extent <= axis.size + axis.out - 1


@given(resolved())
def test_taps_of_bounds_the_valid_taps(drawn):
    axis, line, _ = drawn
    assert max(map(len, line.valid)) <= taps_of((axis,)) <= axis.kernel


@given(
    *(st.integers(1, 2**31 - 1) for _ in range(4)),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.booleans(),
)
def test_huge_numbers_are_exact(size, kernel, stride, dilation, begin, end, ceil):
    arguments = (size, kernel, stride, dilation, (begin, end), "NOTSET", ceil)
    axis = Axis.resolve(*arguments)
    assert axis.out == reference.outputs(*arguments)[0]
    for o in {0, axis.out // 2, axis.out - 1} if axis.out >= 1 else ():
        taps = axis.taps(o)
        for j in {0, taps.start - 1, taps.start, taps.stop - 1, taps.stop, kernel - 1}:
            if 0 <= j < kernel:
                assert (0 <= axis.start(o) + j * dilation < size) == (j in taps)


def test_the_extent_is_from_the_first_tap_to_the_last():
    assert Axis.resolve(9, 3, dilation=2).extent == 5


def test_a_window_larger_than_the_padded_input_is_refused_with_the_numbers():
    message = r"spatial axis 1: extent 5 \(kernel_shape 3, dilation 2\) against 4 = 1 \+ 3 \+ 0"
    with pytest.raises(GpupoolValueError, match=message):
        window((9, 3), (3, 3), (1, 1), (1, 2), ((0, 0), (1, 0)))


def test_the_covering_window_reads_every_position_once():
    axes = covering((4, 6))
    assert out_shape(axes) == (1, 1)
    assert [axis.valid(0) for axis in axes] == [range(4), range(6)]
    assert taps_of(axes) == 24

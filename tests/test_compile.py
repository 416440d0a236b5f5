"""Every kernel compiles for every architecture, and costs no more than the committed baseline."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, product
from typing import Any

import numpy as np
import pytest

from gpupool import planner, verify
from gpupool.errors import GpupoolError
from gpupool.planner import plan, specialised
from gpupool.problem import resolve
from tests import compile_kernels
from tests.compile_kernels import (
    ARCHITECTURES,
    GENERIC_ARCHITECTURE,
    MOST_AXES,
    Cost,
    Kernel,
    compile_all,
    complaints,
    entries,
    every_architecture,
    generic_kernels,
    jobs,
    network_kernels,
    representatives,
)
from tests.covering import covered

pytestmark = [pytest.mark.usefixtures("nvrtc"), pytest.mark.no_cover]


def but_for_its_operator(kernel: Kernel) -> str:
    """Return what of an expression tells no operator and no dtype."""
    name, _, arguments = kernel.expression.partition("<")
    operator = kernel.row.partition("<")[2].removesuffix(" 64-bit").removesuffix(">")
    return f"{name}<{arguments.removeprefix(operator)}"


def quarter(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Return a quarter of each row of the table, not the same one of neighbouring rows."""
    rows: defaultdict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        rows[compile_kernels.tier(kernel)].append(kernel)
    alike: Counter[str] = Counter()
    chosen = []
    for row in rows.values():
        alike[of := but_for_its_operator(row[0])] += 1
        chosen += [
            kernel
            for place, kernel in enumerate(row)
            if covered(alike[of], place, of=min(4, len(row)))
        ]
    return chosen


def test_the_generic_tier_compiles_within_the_baseline() -> None:
    """All operators and all else that is compiled in, though not of each operator."""
    assert len(generic_kernels()) > 1000
    chosen = quarter(generic_kernels())
    for of in (compile_kernels.tier, but_for_its_operator):
        assert set(map(of, chosen)) == set(map(of, generic_kernels())), of
    table = compile_all(list(jobs(chosen, GENERIC_ARCHITECTURE)))
    assert {tuple(columns) for columns in table.values()} == {(str(GENERIC_ARCHITECTURE),)}
    assert not complaints(table)


def test_one_of_each_kernel_and_dtype_compiles_for_every_architecture() -> None:
    chosen = representatives()
    names = set(chain.from_iterable(entries().values()))
    assert {kernel.expression.partition("<")[0] for kernel in chosen} == names
    table = compile_all(every_architecture(chosen))
    assert all(list(columns) == [str(a) for a in ARCHITECTURES] for columns in table.values())
    assert not complaints(table)


# The set


def beyond(launch: planner.Launch) -> bool:
    """Whether a launch has more axes than the set."""
    return launch.kernel == "window" and int(launch.template[1]) > MOST_AXES


def test_no_generic_plan_of_window_unpool_and_roi_is_outside_the_set() -> None:
    generic = {kernel.expression for kernel in generic_kernels()}
    reached = set()
    for i in range(2000):
        problem = verify.draw_call(np.random.default_rng((5, i))).problem
        launches = plan(problem, kernel="window").launches
        reached |= {launch.expression for launch in launches if not beyond(launch)}
    assert not reached - generic
    assert len(reached) > 150


def test_every_arithmetic_of_a_plane_is_in_the_set() -> None:
    rows = {kernel.row for kernel in generic_kernels()}
    for i in range(2000):
        problem = verify.draw_call(np.random.default_rng((6, i))).problem
        asked = (plan(problem, kernel=kernel) for kernel in ("auto", *planner.SHARING))
        for launch in chain.from_iterable(one.launches for one in asked):
            if launch.source in ("plane.cu", "plane_staged.cu", "channels.cu"):
                assert compile_kernels.row_of(launch) in rows


def test_every_specialised_arithmetic_of_networks_is_in_the_set() -> None:
    rows = {compile_kernels.tier(kernel) for kernel in network_kernels()}
    for op, dtype, size in product(("max", "average"), ("float16", "uint8"), (56, 112, 224)):
        problem = resolve(op, (8, 64, size, size), dtype, kernel_shape=3, strides=2, pads=1)
        (launch,) = plan(problem).launches
        assert f"specialised {compile_kernels.row_of(launch)}" in rows


def test_planning_the_set_uses_up_no_specialisation() -> None:
    before = specialised.admitted.copy(), specialised.SPECIALISATIONS
    network_kernels.__wrapped__()
    assert (specialised.admitted, specialised.SPECIALISATIONS) == before


# The baseline and its judgement


def test_the_baseline_covers_the_set_and_has_no_spilling_specialisation() -> None:
    _, baseline = compile_kernels.read_baseline()
    rows = {compile_kernels.tier(kernel) for kernel in (*generic_kernels(), *network_kernels())}
    assert set(baseline) == rows
    for row, columns in baseline.items():
        if row.startswith("specialised"):
            assert list(columns) == [str(a) for a in ARCHITECTURES], row
            assert not any(cost.spilled or cost.local for cost in columns.values()), row


@pytest.fixture
def baseline(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Write another baseline, optionally of another compiler; return what it then says."""

    def judge(allowed: Cost, found: Cost, tier: str = "generic", compiler: str = "this") -> Any:
        monkeypatch.setattr(compile_kernels, "BASELINE", tmp_path / "registers.json")
        monkeypatch.setattr(compile_kernels, "compiler_version", lambda: compiler)
        compile_kernels.write_baseline({f"{tier} f<int>": {"90": allowed}})
        monkeypatch.setattr(compile_kernels, "compiler_version", lambda: "this")
        return complaints({f"{tier} f<int>": {"90": found}})

    return judge


def test_more_registers_spills_or_local_memory_are_complaints(baseline: Any) -> None:
    allowed = Cost(40, 8, 8)
    assert not baseline(allowed, allowed)
    assert not baseline(allowed, Cost(38, 0, 0))
    assert baseline(allowed, Cost(41, 8, 8)) == [
        "generic f<int> for sm_90 was 40 +8 /8 and is 41 +8 /8"
    ]
    assert baseline(allowed, Cost(40, 9, 8))
    assert baseline(allowed, Cost(40, 8, 9))


def test_a_specialised_kernel_may_never_spill(baseline: Any) -> None:
    spilling = Cost(40, 4, 0)
    assert baseline(spilling, spilling, "specialised") == [
        "specialised f<int> for sm_90 spills: 40 +4"
    ]


def test_another_compiler_gets_some_slack(baseline: Any) -> None:
    allowed = Cost(40, 0, 0)
    assert not baseline(allowed, Cost(48, 8, 8), compiler="older")
    assert baseline(allowed, Cost(49, 0, 0), compiler="older")


def test_a_row_without_a_baseline_is_a_complaint(baseline: Any) -> None:
    baseline(Cost(1, 0, 0), Cost(1, 0, 0))
    assert complaints({"generic g<int>": {"90": Cost(1, 0, 0)}}) == [
        "generic g<int> for sm_90 is not in the baseline: run with --update"
    ]


# The command


def test_the_command_prints_the_table_and_writes_the_baseline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = Kernel("unpool.cu", "unpool_claim<int>", "unpool_claim<int>")
    monkeypatch.setattr(compile_kernels, "bounded_set", lambda: every_architecture([kernel]))
    monkeypatch.setattr(compile_kernels, "BASELINE", tmp_path / "registers.json")
    assert compile_kernels.main(["--update"]) == 0
    printed = capsys.readouterr().out
    assert "sm_120" in printed
    assert "7 kernels in 1 rows compiled by NVRTC" in printed
    written = json.loads((tmp_path / "registers.json").read_text())
    assert list(written["table"]) == ["generic unpool_claim<int>"]
    table = compile_kernels.read_baseline()[1]
    worse = {
        row: {c: replace(cost, registers=0) for c, cost in columns.items()}
        for row, columns in table.items()
    }
    compile_kernels.write_baseline(worse)
    assert compile_kernels.main([]) == 1
    assert "generic unpool_claim<int> for sm_75 was 0 and is" in capsys.readouterr().out


def test_batches_hold_one_source_file_each() -> None:
    every = [*generic_kernels(), *network_kernels()]
    random.Random(0).shuffle(every)
    cut = list(compile_kernels.jobs(every, 90))
    assert sorted(k.expression for *_, batch in cut for k in batch) == sorted(
        k.expression for k in every
    )
    assert all({kernel.source for kernel in batch} == {source} for source, _, batch in cut)
    assert max(len(batch) for *_, batch in cut) == compile_kernels.BATCH


def test_a_kernel_that_does_not_compile_is_named() -> None:
    broken = Kernel("window.cu", "row", "window<Nonsense>")
    with pytest.raises(GpupoolError, match="window<Nonsense> for sm_90"):
        compile_kernels.compile_batch(("window.cu", 90, (broken,)))

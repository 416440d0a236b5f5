from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import gpupool
from bench import __main__ as command
from bench import (
    cold,
    compare,
    cpu,
    gpu,
    gpu_report,
    host,
    issue,
    liveness,
    peers,
    plot,
    readme,
    record,
    sass,
    static,
)
from bench.cases import CASES, Case, load, select
from bench.lanes import Value
from bench.sass import Instruction
from gpupool import cli, planner
from gpupool import device as device_module
from gpupool.errors import GpupoolError, GpupoolValueError
from gpupool.planner import Plan, rows, rows_staged, separable, separable_planes, tile_cost
from gpupool.planner.geometry import Geometry
from gpupool.planner.launches import AHEAD
from gpupool.planner.tile_cost import Estimate
from gpupool.problem import contiguous, resolve
from tests import emulator
from tests.compile_kernels import entries
from tests.covering import covering

pytestmark = pytest.mark.no_cover

DATA = Path(__file__).parent / "data" / "bench"

FIVE: list[dict[str, Any]] = [
    {"id": "A1", "op": "max", "dtype": "float32", "shape": [2, 4, 24, 24], "kernel": 3,
     "strides": 2, "pads": 1},
    {"id": "A2", "op": "average", "dtype": "uint8", "layout": "NHWC", "shape": [1, 16, 16, 3],
     "kernel": 2, "strides": 2},
    {"id": "A3", "op": "max", "dtype": "float16", "layout": "NCL", "shape": [2, 4, 60],
     "kernel": [3], "dilations": [2], "flags": ["indices"]},
    {"id": "A4", "op": "global-average", "dtype": "float32", "shape": [4, 8, 7, 7]},
    {"id": "A5", "op": "lp", "dtype": "float32", "shape": [1, 4, 20, 20], "kernel": [4, 3],
     "strides": [3, 2], "p": 2, "flags": ["ceil_mode"]},
]  # fmt: skip
"""Cases that are not in the list."""


@pytest.fixture
def five(tmp_path: Path) -> Path:
    path = tmp_path / "five.json"
    path.write_text(json.dumps(FIVE))
    return path


def run(*options: object, device: Any = None) -> int:
    parser = argparse.ArgumentParser()
    command.arguments(parser)
    return command.run(parser.parse_args([str(option) for option in options]), lambda: device)


# The cases


def test_the_cases_are_those_of_the_plan() -> None:
    ids = [case.id for case in CASES]
    assert len(set(ids)) == len(ids) == 30
    megabytes = {case.id: case.least_bytes / 1e6 for case in CASES}
    planned = {
        "W01": 257, "W04": 360, "W06": 257, "W07": 206, "W10": 52, "W12": 103, "W14": 105,
        "W17": 308, "W18": 537, "W21": 218, "W24": 257, "W25": 54, "W27": 604, "W28": 236,
        "W30": 498, "W32": 404, "W34": 537, "W35": 336,
    }  # fmt: skip
    for name, expected in planned.items():
        assert megabytes[name] == pytest.approx(expected, abs=0.7), name


def test_positions_that_no_window_reads_cost_no_bytes() -> None:
    case = Case.from_json(
        {
            "id": "A",
            "op": "max",
            "dtype": "uint8",
            "shape": [1, 1, 9, 10],
            "kernel": 1,
            "strides": 3,
        }
    )
    assert case.least_bytes == 3 * 4 + 3 * 4
    dilated = Case.from_json(
        {"id": "B", "op": "max", "dtype": "float32", "shape": [1, 1, 9], "layout": "NCL",
         "kernel": 2, "strides": 9, "dilations": 5}
    )  # fmt: skip
    assert dilated.least_bytes == 4 * 2 + 4


def test_cases_of_a_file_are_read_and_refused_by_name(tmp_path: Path, five: Path) -> None:
    cases = load(five)
    assert [case.id for case in cases] == ["A1", "A2", "A3", "A4", "A5"]
    assert cases[1].channels_last
    assert len(cases[2].problem.outputs) == 2
    assert cases[2].window_text == "k3 d2"
    path = tmp_path / "bad.json"
    for bad, message in (
        ([FIVE[0], FIVE[0]], "twice"),
        ([{**FIVE[0], "stride": 2}], "stride"),
        ([{**FIVE[0], "flags": ["fast"]}], "fast"),
        ([{"id": "X"}], "lacks"),
        ({"id": "X"}, "list"),
        ([], "list"),
        ([{"id": "X", "op": "max-unpool", "dtype": "float32", "shape": [1, 1, 4, 4], "kernel": 2}],
         "no window"),
    ):  # fmt: skip
        path.write_text(json.dumps(bad))
        with pytest.raises(GpupoolValueError, match=message):
            load(path)
    path.write_text("{")
    with pytest.raises(GpupoolValueError, match="not JSON"):
        load(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layout": "channels_last"}, "layout = 'channels_last' must be one of NCL, NCHW, NCDHW, "),
        ({"layout": "NC"}, "layout = 'NC' must be one of .*NLC, NHWC, NDHWC"),
        ({"kernel": 99}, "kernel"),
        ({"shape": 4}, "shape must be a sequence of integers"),
        ({"op": "median"}, "median"),
        ({"flags": ["fast"]}, "flag 'fast'"),
    ],
)
def test_an_error_of_a_case_names_it(fields: dict[str, Any], message: str) -> None:
    case = {"id": "Q7", "op": "max", "dtype": "float32", "shape": [1, 2, 8, 8], "kernel": 2}
    with pytest.raises(GpupoolValueError, match=rf"^case 'Q7': .*{message}"):
        Case.from_json(case | fields)


def test_cases_are_chosen_by_name_operator_and_dtype() -> None:
    assert [case.id for case in select(CASES, ["W02", "W01"])] == ["W01", "W02"]
    assert {case.dtype for case in select(CASES, op="average", dtype="uint8")} == {"uint8"}
    with pytest.raises(GpupoolValueError, match="there are W01, W02, "):
        select(CASES, ["W99"])
    left = "no case is left by --op lp and --dtype uint8; their dtypes are float16, float32, "
    with pytest.raises(GpupoolValueError, match=left):
        select(CASES, op="lp", dtype="uint8")


# The counting rule, by hand
#
# Three kernels as they once were, in sm_90 machine code: tests/data/bench. Addresses are hex; an
# instruction takes 0x10.

WARP_0 = (np.arange(32), np.zeros(32, int), np.zeros(32, int))
BANK_0 = issue.constant_bank((1, 1), 32, 0x210, b"")


def counted(name: str, lanes: Any = None, threads: int = 256) -> issue.Counts:
    launch = json.loads((DATA / "launches.json").read_text())[name]
    grid = tuple(launch["grid"])
    bank = issue.constant_bank(grid, threads, 0x210, bytes.fromhex(launch["parameters"]))
    code = sass.parse((DATA / f"{name}.sass").read_text())
    return issue.count(code, bank, issue.sample(grid, threads, 16) if lanes is None else lanes)


def test_a_window_of_3x3_counts_as_by_hand() -> None:
    # MaxPool float32 3x3 s2 p1 to 56x56. Inside: decode and clip 000 .. 420, the unrolled taps
    # 430 .. 850 up to the branch over the border's loop, and BSYNC a30, a40 .. a70.
    inside = 67 + 67 + 5
    counts = counted("window")
    assert (counts.path, counts.assumed) == (inside, 0)
    assert counts.accesses["STG", 4] == 1
    # Border lanes diverge from their warp, which then issues both ways.
    assert counts.issued > counts.path
    # Warp 0 is the left half of the top row: all of it runs the loop 860 .. a20, lane 0 with two
    # columns, the others with three; a row is 8b0 .. 940, the taps of 10 each, 9f0 .. a20.
    row = 10 + 3 * 10 + 4
    top = 67 + 5 + 2 * row + 5
    counts = counted("window", WARP_0)
    assert (counts.path, counts.issued) == (top, top)


def test_the_last_warp_of_a_block_may_lack_threads() -> None:
    """It issues as a whole one does; what is no thread moves nothing."""
    whole, lacking = counted("window", threads=64), counted("window", threads=33)
    assert whole.path == lacking.path
    assert whole.accesses["STG", 4] == 1
    assert lacking.accesses["STG", 4] == 33 / 64
    first = (np.arange(64), np.zeros(64, int), np.zeros(64, int))
    alone = counted("window", tuple(values[:32] for values in first), threads=33)
    both = counted("window", first, threads=33)
    assert both.issued == alone.issued


def test_a_window_with_run_time_sizes_counts_as_by_hand() -> None:
    # MaxPool uint8 13x13 s1 p6 on 64x64. Inside, without dilation: 000 .. 1c0, 3b0 .. 410,
    # 5b0 .. 6d0, 8c0 .. 920, ac0 .. b70, b80 .. d10; a row is d20 .. db0, thirteen taps of
    # dc0 .. e40 and e50 .. e80; then e90 .. ee0.
    row = 10 + 13 * 9 + 4
    inside = 29 + 7 + 19 + 7 + 12 + 26 + 13 * row + 6
    counts = counted("generic")
    assert (counts.path, counts.assumed) == (inside, 0)
    taps = sum(64 - abs(d) for d in range(-6, 7)) ** 2 / 64**2
    assert counts.accesses["LDG", 1] == pytest.approx(taps)  # all 16 blocks are in the sample


def test_a_block_that_shares_a_window_counts_as_by_hand() -> None:
    # GlobalMaxPool uint8 of 50x50 by 256 threads: nine taps each, ten for the first 196.
    # 000 .. 1a0, 390 .. 410, 5c0 .. 8d0 up to the branch over the merging of parts,
    # 1310 .. 13c0, 13d0 .. 1430, 1440 .. 1470, 1be0 .. 1c10, eight taps at once 1c20 .. 1fd0,
    # 1fe0 .. 2010, 2220 .. 2240, 2250 .. 22a0, the taps that remain of nine instructions each,
    # the tree 2340 .. 26a0, 26b0 and 26c0.
    before = 27 + 9 + 50 + 12 + 7 + 4 + 4 + 60 + 4 + 3 + 6
    ten, nine = (before + taps * 9 + 55 + 2 for taps in (2, 1))
    stores = 7  # 26d0 .. 2730, by thread 0
    counts = counted("plane")
    assert (counts.path, counts.assumed) == (ten, 0)
    # Warps 0 .. 5 take ten taps, warp 6 too for its first four lanes, warp 7 nine; warp 0 stores.
    assert counts.issued == (7 * ten + stores + nine) / 8
    assert counted("plane", WARP_0).issued == ten + stores


def listing(text: str) -> Sequence[Instruction]:
    """Straight-line code, its instructions apart by semicolons."""
    return sass.parse(
        "\n".join(f"/*{16 * i:04x}*/ {row} ;" for i, row in enumerate(text.split(";")))
    )


@pytest.mark.parametrize(
    ("access", "lines", "sectors", "turns"),
    [
        ("LDG.E R6, desc[UR4][R4.64]", 2, 0, 0),  # a word of each 8 bytes
        ("LDG.E.64 R6, desc[UR4][R4.64+0x40]", 3, 0, 0),
        ("@P0 LDG.E R6, desc[UR4][R4.64]", 1, 0, 0),  # of four lanes
        ("STG.E.U16 desc[UR4][R4.64], R6", 2, 8, 0),
        ("@P0 STG.E.U16 desc[UR4][R4.64], R6", 1, 1, 0),
        ("LDS R6, [R4]", 0, 0, 2),
        ("STS.64 [R4+0x8], R6", 0, 0, 2),
        ("STS.U16 [R2.X4], R6", 0, 0, 1),
        ("LDS.128 R8, [R2.X16]", 0, 0, 4),
        ("@P0 LDS.128 R8, [R2.X16]", 0, 0, 1),
        ("LDS R6, [RZ]", 0, 0, 1),  # all the same word
        ("LDG.E R6, desc[UR4][R8.64]", 0, 0, 0),  # an address that nobody knows
    ],
)
def test_what_a_warp_touches_counts_as_by_hand(
    access: str, lines: int, sectors: int, turns: int
) -> None:
    begin = "S2R R2, SR_TID.X; IMAD R4, R2, 0x8, RZ; MOV R5, RZ; ISETP.GE.AND P0, PT, R2, 0x1c, PT"
    counts = issue.count(listing(f"{begin}; {access}; EXIT"), BANK_0, WARP_0)
    assert (counts.lines, counts.sectors, counts.turns) == (lines, sectors, turns)
    assert not counts.assumed


def execute(text: str, **registers: int) -> dict[str, int]:
    """Run straight-line code on one warp and return the registers of lane 0."""
    from bench.lanes import TRUE, Lanes, integer

    lanes = Lanes(np.arange(32), (np.zeros(32, int), np.zeros(32, int)), bytes(0x300))
    active = np.ones(32, bool)
    for name, value in registers.items():
        lanes.write(name, integer(value), active, TRUE)
    with np.errstate(all="ignore"):
        for instruction in listing(text):
            lanes.execute(instruction, active, TRUE)
    found = {}
    for name in ("R0", "R1", "P0", "P1"):
        value = lanes.predicate(name) if name.startswith("P") else lanes.read(name)
        if value.known.all():
            found[name] = int(np.broadcast_to(value.bits, 32)[0])
    return found


ALL = 2**32 - 1


@pytest.mark.parametrize(
    ("text", "registers", "expected"),
    [
        ("IADD3 R0, P0, R2, R3, RZ", {"R2": ALL, "R3": 2}, {"R0": 1, "P0": 1}),
        ("IADD3 R0, P0, R2, -R3, RZ", {"R2": 5, "R3": 0}, {"R0": 5, "P0": 1}),
        ("IADD3 R0, P0, R2, R3, RZ; IADD3.X R1, R4, ~R5, RZ, P0, !PT",
         {"R2": ALL, "R3": 1, "R4": 7, "R5": 3}, {"R0": 0, "P0": 1, "R1": 4}),
        ("IMAD R0, R2, -0x3, R3", {"R2": 5, "R3": 1}, {"R0": 2**32 - 14}),
        ("IMAD.WIDE R0, R2, 0x4, R4", {"R2": ALL, "R4": 0, "R5": 1}, {"R0": 2**32 - 4, "R1": 0}),
        ("IMAD.WIDE.U32 R0, R2, R2, RZ", {"R2": ALL}, {"R0": 1, "R1": ALL - 1}),
        ("IMAD.HI.U32 R0, R3, R5, R2", {"R2": 0, "R3": 700, "R5": 613566757}, {"R0": 800}),
        ("LEA R0, P0, R2, R3, 0x2", {"R2": 2**31, "R3": 9}, {"R0": 9, "P0": 0}),
        ("LEA.HI R0, R2, 0x1, RZ, 0x18", {"R2": 0xAB00}, {"R0": 0xAC}),
        ("LEA.HI.X.SX32 R0, R2, R3, 0x1, !PT", {"R2": ALL, "R3": 5}, {"R0": 4}),
        ("SHF.R.S32.HI R0, RZ, 0x1f, R2", {"R2": ALL}, {"R0": ALL}),
        ("SHF.R.U32.HI R0, RZ, 0x4, R2", {"R2": 0xF0}, {"R0": 0xF}),
        ("SHF.L.U64.HI R0, R2, 0x4, R3", {"R2": 2**31, "R3": 1}, {"R0": 24}),
        ("LOP3.LUT P0, R0, R2, 0x3, RZ, 0xc0, !PT", {"R2": 6}, {"R0": 2, "P0": 1}),
        ("ISETP.LT.AND P0, P1, R2, RZ, PT", {"R2": ALL}, {"P0": 1, "P1": 0}),
        ("ISETP.GE.U32.AND P1, PT, R2, 0x5, PT; ISETP.GE.AND.EX P0, PT, R3, RZ, PT, P1",
         {"R2": 4, "R3": 0}, {"P0": 0, "P1": 0}),
        ("ISETP.GT.AND P0, PT, R9, RZ, PT", {}, {}),  # R9 is unknown
        ("ISETP.GT.AND P0, PT, R9, RZ, !PT", {}, {"P0": 0}),  # but false AND anything is false
        ("PLOP3.LUT P0, PT, PT, PT, PT, 0x8, 0x0", {}, {"P0": 0}),
        # A predicate may wait among bits that are unknown.
        ("LOP3.LUT R9, R9, 0xdf, RZ, 0xc0, !PT; LOP3.LUT P0, RZ, R9, 0x20, RZ, 0xc0, !PT; "
         "LOP3.LUT R9, R9, 0x20, RZ, 0xfc, !PT; LOP3.LUT P1, RZ, R9, 0x20, RZ, 0xc0, !PT",
         {}, {"P0": 0, "P1": 1}),
        ("LOP3.LUT R9, R9, 0x20, RZ, 0xfc, !PT; LOP3.LUT P0, RZ, R9, 0x60, RZ, 0xc0, !PT; "
         "LOP3.LUT P1, RZ, R9, 0x40, RZ, 0xc0, !PT", {}, {"P0": 1, "P1": None}),
        ("LOP3.LUT R9, R9, 0x20, RZ, 0xfc, !PT; LDG.E R9, desc[UR4][R4.64]; "
         "LOP3.LUT P0, RZ, R9, 0x20, RZ, 0xc0, !PT", {}, {"P0": None}),
        ("VIADDMNMX R0, R2, -0x9, RZ, !PT", {"R2": 4}, {"R0": 0}),
        ("VIMNMX R0, R2, 0x3, PT", {"R2": ALL}, {"R0": ALL}),
        ("VIMNMX.RELU R0, R2, 0x3, PT", {"R2": ALL}, {"R0": 0}),
        ("VIADDMNMX.RELU R0, R2, -0x4, R3, PT; VIADDMNMX.RELU R1, R2, 0x4, R3, PT",
         {"R2": 3, "R3": 6}, {"R0": 0, "R1": 6}),
        ("FLO.U32 R0, R2; FLO.U32.SH R1, R2; POPC R2, R2", {"R2": 0x50}, {"R0": 6, "R1": 25}),
        ("FLO.U32 R0, RZ", {}, {"R0": ALL}),
        ("SEL R0, R2, 0x7, !PT", {"R2": 1}, {"R0": 7}),
        ("PRMT R0, R2, 0x8880, RZ", {"R2": 0x80}, {"R0": 0xFFFFFF80}),
        ("HFMA2.MMA R0, -RZ, RZ, 0, 1.78813934326171875e-07", {}, {"R0": 3}),
        ("I2F.U32.RP R0, R2; MUFU.RCP R0, R0; VIADD R0, R0, 0xffffffe; F2I.U32.TRUNC R0, R0",
         {"R2": 10}, {"R0": 429496672}),
        ("P2R R0, PR, RZ, 0x7f; LDG.E.128 R0, desc[UR4][R4.64]", {}, {}),
    ],
)  # fmt: skip
def test_integers_are_computed_as_the_hardware_does(
    text: str, registers: dict[str, int], expected: dict[str, int | None]
) -> None:
    """Expected of what is named: a number, or None where it is unknown."""
    found = execute(text, **registers)
    written = {name: value for name, value in found.items() if name not in registers}
    assert {name: written.get(name) for name in expected} == expected
    if not expected:
        assert "P0" not in found


def test_a_branch_on_data_takes_the_shorter_way_and_is_reported() -> None:
    code = sass.parse(
        "/*0000*/ LDG.E R0, desc[UR4][R2.64] ;\n"
        "/*0010*/ FSETP.GT.AND P0, PT, R0, RZ, PT ;\n"
        "/*0020*/ @P0 BRA `(.L_1) ;\n"
        "/*0030*/ FADD R0, R0, R0 ;\n"
        "/*0040*/ FADD R0, R0, R0 ;\n"
        ".L_1:\n"
        "/*0050*/ EXIT ;\n"
    )
    counts = issue.count(code, BANK_0, WARP_0)
    assert (counts.path, counts.assumed) == (4, 1)


PLAIN = "FADD R0, R0, R0"


def numbered(*lines: str) -> tuple[Instruction, ...]:
    """Read instructions, and labels that end in a colon, without their addresses."""
    address = iter(range(0, 0x10 * len(lines), 0x10))
    texts = (line if line.endswith(":") else f"/*{next(address):04x}*/ {line} ;" for line in lines)
    return sass.parse("\n".join(texts))


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        (["@P0 BRA `(.L_1)", *[PLAIN] * 4, "EXIT", ".L_1:", "@P1 BRA `(.L_2)", *[PLAIN] * 9,
          ".L_2:", "EXIT"], 6),
        ([".L_1:", "@P0 BRA `(.L_2)", PLAIN, "BRA `(.L_1)", ".L_2:", *[PLAIN] * 8, "EXIT"], 10),
        ([".L_1:", PLAIN, "@P0 BRA `(.L_1)", *[PLAIN] * 8, "EXIT"], 11),
        ([".L_1:", "@P0 BRA `(.L_2)", "@P1 BRA `(.L_1)", PLAIN, "BRA `(.L_1)", ".L_2:", "EXIT"], 2),
        (["@P0 BRA `(.L_1)", *[PLAIN] * 8, "EXIT", ".L_1:", "BRA `(.L_1)"], 10),
        (["@P0 BRA.DIV `(.L_1)", "@P1 BRA `(.L_2)", "EXIT", ".L_2:", PLAIN, "EXIT",
          ".L_1:", *[PLAIN] * 8, "EXIT"], 3),
        (["@P0 BRA `(.L_1)", "CALL.REL.NOINC `(.F)", "EXIT", ".L_1:", *[PLAIN] * 20, "EXIT",
          ".F:", PLAIN, "EXIT"], 22),
        ([".text.f:", "MOV R20, 0x20", "CALL.REL.NOINC `(.F)", "EXIT", ".F:", "@P0 BRA `(.L_1)",
          *[PLAIN] * 3, ".L_1:", "RET.REL.NODEC R20 `(.text.f)"], 5),
        ([".text.f:", "MOV R20, 0x20", "CALL.REL.NOINC `(.F)", "EXIT", ".F:", "@P0 BRA `(.L_2)",
          PLAIN, "BRA `(.F)", ".L_2:", *[PLAIN] * 8, "RET.REL.NODEC R20 `(.text.f)"], 13),
    ],
    ids=["not one with a shortcut", "out of a loop", "past a loop's end",
         "out of a loop with a shortcut", "not into a trap", "not where no warp strays",
         "not into a call", "inside a function", "out of a loop inside a function"],
)  # fmt: skip
def test_the_way_of_a_branch_on_data_is_the_one_that_may_be_shorter(
    lines: list[str], path: int
) -> None:
    counts = issue.count(numbered(*lines), BANK_0, WARP_0)
    assert counts.path == path
    assert counts.assumed > 0


def test_a_kernel_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issue, "LIMIT", 1000)
    code = sass.parse(
        "/*0000*/ S2R R0, SR_TID.X ;\n/*0010*/ BSSY B0, `(.L_1) ;\n"
        "/*0020*/ ISETP.EQ.AND P0, PT, R0, RZ, PT ;\n.L_2:\n/*0030*/ @P0 BRA `(.L_2) ;\n"
        "/*0040*/ BSYNC B0 ;\n.L_1:\n/*0050*/ EXIT ;\n"
    )
    with pytest.raises(GpupoolError, match="simulated steps"):
        issue.count(code, BANK_0, WARP_0)


def test_control_flow_that_is_not_followed_is_an_error() -> None:
    code = sass.parse("/*0000*/ S2R R0, SR_TID.X ;\n/*0010*/ BRX R0 -0x20 ;\n/*0020*/ EXIT ;\n")
    with pytest.raises(GpupoolError, match="does not follow 0010: BRX"):
        issue.count(code, BANK_0, WARP_0)


def test_an_error_names_its_case() -> None:
    fail = Mock(side_effect=GpupoolError("too long"))
    mode = replace(command.STATIC, measure=fail)
    with pytest.raises(GpupoolError, match=r"^W02: too long$"):
        command.measured(mode, select(CASES, ["W02"]), None)


# Static, where the tools are installed


@pytest.fixture(scope="module")
def tools() -> None:
    pytest.importorskip("cupy")
    try:
        sass.disassembler()
        static.facts()
    except Exception as error:
        pytest.skip(f"nothing to compile or disassemble with: {error}")


def planned(
    cases: Iterable[Case], kernel: str = "auto", **constants: Any
) -> list[tuple[Case, Plan]]:
    """Plan for a kernel, with other constants of the planner."""
    with emulator.constants(**constants):
        return [(case, planner.plan(case.problem, kernel=kernel)) for case in cases]


def bounded(cases: Iterable[Case]) -> list[tuple[Case, Plan]]:
    """Plan as users do but for SHORTER."""

    def constants(case: Case) -> dict[str, Any]:
        kernel = case.arguments["kernel_shape"]
        name = case.op.removesuffix("Pool").lower(), case.dtype, case.layout, kernel
        return FEWEST if name in SHORTER else {}

    return [one for case in cases for one in planned([case], **constants(case))]


_analysed: dict[Any, dict[str, Any]] = {}


def analysed(plans: Sequence[tuple[Case, Plan]]) -> list[dict[str, Any]]:
    """Compile all plans together; count each once: other kernels often give the same one."""
    static.compile_ahead(launch for _, plan in plans for launch in plan.launches)
    keys = [(case.problem, emulator.identity(plan.launches)) for case, plan in plans]
    for key, (case, plan) in zip(keys, plans, strict=True):
        if key not in _analysed:
            _analysed[key] = row = static.analyse(case, plan)
            assert not row["doubt"], (case, plan)
    return [_analysed[key] for key in keys]


def issued(*plans: Sequence[tuple[Case, Plan]]) -> list[list[float]]:
    """Instructions for each output, of several lists of plans, which are compiled together."""
    rows = iter(analysed(list(chain.from_iterable(plans))))
    return [[next(rows)["issued"] for _ in some] for some in plans]


@pytest.mark.usefixtures("tools")
def test_the_sample_stores_every_output_and_reads_every_input(five: Path) -> None:
    for case in (*load(five), *select(CASES, ["W18", "L05"])):
        assert not static.analyse(case)["doubt"], case.id


def test_a_doubted_sample_is_drawn_larger_until_it_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[int] = []

    def sampled(_case: Case, _plan: Plan, blocks: int) -> dict[str, Any]:
        drawn.append(blocks)
        return {"doubt": "" if blocks >= enough else "it loads 0.00 of the input"}

    monkeypatch.setattr(static, "_analyse", sampled)
    for enough, believed in ((16, True), (64, True), (256, True), (257, False)):
        drawn.clear()
        row = static.analyse(sliding("max", "float32", "NCHW", 3))
        assert (row["doubt"] == "") is believed
        assert drawn == [blocks for blocks in static.SAMPLES if blocks < 4 * enough]


def test_a_count_that_is_not_to_be_believed_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "doubt": "it loads 0.10 of the input"} for row in static_result()["rows"][:1]]
    monkeypatch.setattr(command, "measured", lambda *_: {**static_result(), "rows": rows})
    assert run("--static", "--only", rows[0]["id"]) == command.EXIT_WRONG
    assert "not to be believed" in capsys.readouterr().err


def test_a_sample_that_misses_loads_or_stores_is_doubted() -> None:
    assert static.doubt(1.3, 1.0) == ""
    assert "loads 0.10" in static.doubt(0.1, 1.0)
    assert "stores 0.50" in static.doubt(1.0, 0.5)
    row = {**static_result()["rows"][0], "doubt": "it loads 0.10 of the input"}
    assert static.cells(row)[static.HEAD.index("of copy")].endswith("?")
    assert "W01: it loads 0.10" in static.summary([row])


@pytest.mark.usefixtures("tools")
def test_static_runs_on_a_file_of_cases_and_compares(
    five: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "static.json"
    markdown, table = tmp_path / "static.md", tmp_path / "static.csv"
    assert (
        run("--static", "--cases", five, "--json", out, "--markdown", markdown, "--csv", table) == 0
    )
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "A1", "A2", "A3", "A4", "A5",
    ]  # fmt: skip
    assert len(markdown.read_text().splitlines()) == len(table.read_text().splitlines()) + 1 == 7
    result = record.read(out)
    assert result["nvrtc"]
    result["rows"][2]["issued"] /= 1.1
    record.write(result, out)
    assert run("--static", "--cases", five, "--compare", out) == 3
    assert "A3" in capsys.readouterr().err


@pytest.mark.usefixtures("tools")
def test_the_compiler_is_timed_for_every_kernel_of_a_case(
    five: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "cold.json"
    for more in ("PROCESSES", "TIMES"):  # which make it steady, as nothing here asks
        monkeypatch.setattr(cold, more, 1)
    assert run("--cold", "--cases", five, "--json", out) == 0
    rows = record.read(out)["rows"]
    assert [len(row["launches"]) for row in rows] == [1] * 5
    launches = [launch for row in rows for launch in row["launches"]]
    assert all(5 < launch["smallest_ms"] < launch["ms"] < 5000 for launch in launches)
    assert all(len(cold.cells(row)) == len(cold.HEAD) for row in rows)
    monkeypatch.setattr(cold, "GOAL", 1)
    assert "all but A1, A2, A3, A4, A5" in cold.summary(rows)


class Watched(issue.Lanes):
    """Lanes whose instructions read and write no more registers than the liveness knows of."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reads: set[str] = set()
        self.writes: set[str] = set()

    def predicate(self, text: str) -> Value:
        self.reads.add(text.removeprefix("!"))
        return super().predicate(text)

    def read(self, text: str, *, carries: bool = False) -> Value:
        self.reads.add(text.strip("-~|"))
        return super().read(text, carries=carries)

    def write(self, name: str, *arguments: Any) -> None:
        self.writes.add(name)
        super().write(name, *arguments)

    def execute(self, instruction: Instruction, *arguments: Any) -> None:
        self.reads.clear()
        self.writes.clear()
        super().execute(instruction, *arguments)
        register = re.compile(r"U?[RP]\d+").fullmatch
        assert set(filter(register, self.reads)) <= liveness.reads(instruction), instruction
        assert set(filter(register, self.writes)) <= liveness.writes(instruction), instruction


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    "fields",
    [
        {"op": "max", "dtype": "float32", "kernel": 3, "strides": 2, "pads": 1},
        {"op": "max", "dtype": "float16", "kernel": 9, "pads": 4, "flags": ["indices"]},
        {"op": "max", "dtype": "int8", "layout": "NHWC", "kernel": 5, "pads": 2},
        {"op": "average", "dtype": "uint8", "kernel": 13, "pads": 6},
        {"op": "average", "dtype": "float64", "kernel": 20, "strides": 20},
        {"op": "lp", "dtype": "float32", "kernel": 3, "strides": 2, "p": 2.5},
        {"op": "global-lp", "dtype": "bfloat16", "p": 3},
    ],
    ids=lambda fields: f"{fields['op']}-{fields['dtype']}",
)
def test_what_is_passed_over_changes_no_count(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case.from_json({"id": "live", "shape": (4, 32, 100, 96)} | fields)
    quick = static.analyse(case)
    monkeypatch.setattr(issue, "passed_over", lambda code: [0] * len(code))
    monkeypatch.setattr(issue, "Lanes", Watched)
    assert static.analyse(case) == quick


@pytest.mark.usefixtures("tools")
def test_functions_that_a_kernel_calls_are_counted() -> None:
    shape = (8, 32, 56, 56)
    fields = {"id": "p", "op": "lp", "dtype": "float32", "shape": shape, "kernel": 3, "strides": 2}
    known, called = (static.analyse(Case.from_json(fields | {"p": p}))["path"] for p in (1, 2.5))
    assert called > known + 9 * 20  # no power takes fewer


@pytest.mark.usefixtures("tools")
def test_second_looks_of_norms_are_not_counted_though_they_may_be_cut_short() -> None:
    """A root of 0 or infinity leaves before the third one, and windows of no taps before that."""
    fields = {"id": "p", "op": "lp", "dtype": "float32", "kernel": 7, "strides": 7}
    cases = [Case.from_json(fields | {"shape": (8, 256, 56, 56), "p": p}) for p in (1, 2, 3)]
    ((first, second, third),) = issued(planned(cases, "specialised"))
    assert abs(second - first) < 49
    assert second < third < second + 3 * 49  # a magnitude and a product for each tap, and a root


FEWEST = {"ENOUGH": 0, "APART": 0, "HELD": 0, "REREAD": 0}
"""Constants of rows.py by which tiles are of the fewest instructions, not of the shortest time."""

SHORTER = {("max", "int8", "NCHW", 3), ("max", "float64", "NCHW", 5)}
"""Windows whose tiles issue more than a bound below, since on an H200 such tiles took less time:
those of the fewest instructions are held to it."""


def sliding(
    op: str, dtype: str, layout: str, kernel: int, stride: int = 1, flags: Sequence[str] = (),
    dilation: int = 1,
) -> Case:  # fmt: skip
    """A square window on images of 512 x 512 with 64 channels."""
    shape = (4, 64, 512, 512) if layout == "NCHW" else (4, 512, 512, 64)
    fields = {"id": f"k{kernel}", "op": op, "dtype": dtype, "layout": layout, "shape": shape}
    fields |= {"kernel": kernel, "strides": stride, "dilations": dilation, "flags": flags}
    return Case.from_json(fields | {"pads": kernel // 2 * dilation})


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "uint8"])
def test_no_size_costs_much_more_than_its_logarithm_times_that_of_3_x_3(
    dtype: str, layout: str
) -> None:
    """Maxima at stride 1: of tiles of rows.cu and, from about 7 x 7 on, of strips.cu."""
    windows = (3, 5, 7, 13, 31, 63)
    rows = analysed(planned(sliding("max", dtype, layout, k) for k in windows))
    for count in ("path", "issued"):
        cost = {k: row[count] / math.log2(k) for k, row in zip(windows, rows, strict=True)}
        assert max(cost.values()) <= 1.2 * cost[3], (count, cost)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(("op", "dtype"), [("average", "float16"), ("lp", "bfloat16")])
def test_no_size_of_sums_costs_more_than_its_logarithm_times_that_of_3_x_3(
    op: str, dtype: str
) -> None:
    """At stride 1 in either layout: of tiles of rows.cu and then strips.cu."""
    windows = (3, 5, 7, 13, 31, 63)
    cases = [[sliding(op, dtype, layout, k) for k in windows] for layout in ("NCHW", "NHWC")]
    for costs in issued(*map(planned, cases)):
        of_size = [cost / math.log2(k) for k, cost in zip(windows, costs, strict=True)]
        assert max(of_size) == of_size[0], costs


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("dtype", "layout", "tiles", "doubled", "most"),
    [
        ("float64", "NCHW", 2, 45.0, 1.16),
        ("float64", "NHWC", 2, 48.8, 1.26),
        ("float32", "NCHW", 2, 35.1, 1.0),
        ("float32", "NHWC", 2, 36.9, 1.21),
        ("float16", "NCHW", 1, 31.9, 1.0),
        ("float16", "NHWC", 1, 32.4, 1.0),
        ("uint8", "NCHW", 2, 27.6, 1.0),
        ("uint8", "NHWC", 1, 29.1, 1.0),
    ],
)
def test_no_size_with_indices_costs_more_than_so_much_for_each_doubling_of_its_side(
    dtype: str, layout: str, tiles: int, doubled: float, most: float
) -> None:
    """Nor more than ``most`` times the logarithm times what 3 x 3 costs.

    Of so many sizes by tiles of rows.cu, of the others by separable.cu, an access of which stores a
    maximum and its place.
    """
    windows = (3, 5, 7, 13, 31, 63)
    plans = planned(sliding("max", dtype, layout, k, flags=["indices"]) for k in windows)
    assert [plan.kernel for _, plan in plans] == ["rows"] * tiles + ["separable"] * (6 - tiles)
    found = analysed(plans)
    of_size = [row["issued"] / math.log2(k) for k, row in zip(windows, found, strict=True)]
    assert max(of_size) <= min(doubled, most * of_size[0]), of_size
    word = max(4, 2 * plans[0][0].problem.dtype.itemsize)
    for row in found[tiles:]:
        (launch,) = row["launches"]
        assert {one["bytes"] for one in launch["accesses"] if one["name"] == "STS"} == {word}


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(("dtype", "kernel"), [("float64", 31), ("float32", 9), ("int8", 13)])
def test_tiles_of_fewer_channels_issue_less_where_they_take_nearly_as_little(
    dtype: str, kernel: int
) -> None:
    """Than of as many as fit, with Indices: the columns of these are halo for the most part."""

    def counted() -> dict[str, Any]:
        case = sliding("max", dtype, "NHWC", kernel, flags=["indices"])
        (row,) = analysed([(case, planner.plan(case.problem, kernel="separable"))])
        return row

    chosen = counted()
    many = separable._neighbours
    with emulator.constants(_neighbours=lambda *of: [max(many(*of))]):
        most = counted()
    assert 1.1 * chosen["issued"] < most["issued"]
    assert served(chosen) < 1.15 * served(most)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_tiles_with_indices_share_what_neighbouring_windows_have(layout: str) -> None:
    """Tap by tap 5 x 5 would cost two to three times as much as 3 x 3."""
    plans = planned(
        (sliding("max", "float32", layout, k, flags=["indices"]) for k in (3, 5)), "rows"
    )
    assert {plan.kernel for _, plan in plans} == {"rows"}
    ((small, large),) = issued(plans)
    assert large <= 1.7 * small


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_no_other_kernel_with_indices_is_clearly_sooner() -> None:
    """Beside rows in many lines, and beside tiles of large windows that are mostly halo."""
    first = ("int8", "NCHW", (1, 3000, 65, 30), 9), ("float32", "NCHW", (1, 4096, 56, 66), (4, 17))
    last = ("float16", "NHWC", (8, 107, 107, 96), 4), ("uint8", "NHWC", (8, 101, 175, 128), (3, 9))
    names = "dtype", "layout", "shape", "kernel"
    fields = [dict(zip(names, way, strict=True)) for way in first + last]
    cases = [Case.from_json({"id": "", "op": "max", "flags": ["indices"], **of}) for of in fields]
    kernels = ("auto", "rows", "separable")
    chosen, *others = ([r["predicted"] for r in analysed(planned(cases, k))] for k in kernels)
    assert [plan.kernel for _, plan in planned(cases)] == ["separable"] * 2 + ["rows"] * 2
    for case, share, *rest in zip(cases, chosen, *others, strict=True):
        assert AHEAD * share >= max(rest), (case, share, rest)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_indices_come_from_the_kernel_that_issues_least() -> None:
    ways = [*product(("NCHW", "NHWC"), (3, 5), (1, 2)), *product(("NCHW", "NHWC"), (7,), (1, 3))]
    cases = [sliding("max", "float32", *way, flags=["indices"]) for way in ways]
    kernels = ("auto", "rows", "separable")
    chosen, *others = issued(*(planned(cases, kernel) for kernel in kernels))
    for way, cost, *rest in zip(ways, chosen, *others, strict=True):
        assert cost <= 1.2 * min(rest), (way, cost, rest)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("dtype", "layout", "shape", "kernel", "stride"),
    [
        ("int8", "NHWC", (1328, 56, 56, 24), 8, 3),
        ("float16", "NHWC", (1992, 28, 28, 64), 8, 3),
        ("int8", "NHWC", (3906, 200, 128), 25, 1),
        ("float64", "NHWC", (6250, 1000, 16), 25, 1),
        ("int8", "NCHW", (9110, 32, 14, 14, 14), 7, 2),
    ],
)
def test_indices_of_all_shapes_come_from_a_kernel_that_issues_hardly_more_than_the_least(
    dtype: str, layout: str, shape: tuple[int, ...], kernel: int, stride: int
) -> None:
    """Of small padded planes, of rows and of volumes, which cost other parts than large planes."""
    fields = {"id": "shape", "op": "max", "dtype": dtype, "layout": layout, "shape": shape}
    fields |= {"kernel": kernel, "strides": stride, "pads": kernel // 2, "flags": ["indices"]}
    case = Case.from_json(fields)
    names = ("auto", "rows", "specialised", "separable")
    (auto,), *others = issued(*(planned([case], name) for name in names))
    assert auto <= 1.2 * min(cost for (cost,) in others), (auto, others)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(("op", "dtype"), [("max", "float16"), ("average", "float32")])
def test_large_windows_take_the_cheapest_kernel(op: str, dtype: str) -> None:
    """In either layout strips.cu."""
    layouts = ("NCHW", "NHWC")
    cases = [sliding(op, dtype, layout, k) for layout, k in product(layouts, (13, 63))]
    auto, *others = (planned(cases, name) for name in ("auto", *planner.FUSED))
    of_auto, *of_others = issued(auto, *others)
    for (case, _), cost, *rest in zip(auto, of_auto, *of_others, strict=True):
        assert cost <= 1.05 * min(rest), (case, cost, rest)
    assert [plan.kernel for _, plan in auto] == ["strips"] * 4


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_lanes_abreast_share_lines_and_sectors() -> None:
    """A launch takes less time by the sum of all that is served, though more is issued."""
    ways = [("max", "float32", 7), ("max", "float64", 5), ("average", "float32", 5)]
    cases = [sliding(op, dtype, "NHWC", k) for op, dtype, k in ways]
    abreast, apart = planned(cases), planned(cases, "strips", ABREAST=(1,))
    assert {plan.kernel for _, plan in abreast} == {"strips"}
    for one, other in zip(analysed(abreast), analysed(apart), strict=True):
        assert one["lines"] < 0.6 * other["lines"]
        assert one["rewritten"] < 0.6 * other["rewritten"]
        assert one["issued"] < 1.2 * other["issued"]
        assert one["predicted"] > 1.1 * other["predicted"]


def padded(
    op: str, dtype: str, layout: str, shape: tuple[int, ...], kernel: Sequence[int],
    stride: int = 1, flags: Sequence[str] = (),
) -> Case:  # fmt: skip
    """Windows that begin half of one before the input."""
    fields = {"id": "padded", "op": op, "dtype": dtype, "layout": layout, "shape": shape}
    fields |= {"p": 2} if op == "lp" else {}
    fields |= {"kernel": kernel, "strides": stride, "flags": flags}
    return Case.from_json(fields | {"pads": 2 * [k // 2 for k in kernel]})


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_slices_in_the_padding_cost_a_volume_nothing() -> None:
    """Of 13 slices under a window half are there: less than rows one by one would cost."""
    case = padded("average", "float32", "NCDHW", (256, 32, 8, 8, 8), (13, 5, 13), 3)
    (auto,), *others = issued(*(planned([case], name) for name in ("auto", *planner.FUSED)))
    assert auto <= 1.05 * min(cost for (cost,) in others), (auto, others)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_padded_volumes_take_a_kernel_that_issues_hardly_more_than_any_other() -> None:
    """Of padding, single columns pass over rows and columns, and every kernel over slices."""
    cases = [
        padded("max", "float64", "NCDHW", (364, 32, 7, 7, 7), (13, 13, 13)),
        padded("average", "float64", "NCDHW", (323, 21, 12, 7, 7), (13, 13, 13)),
        padded("max", "float16", "NDHWC", (30, 16, 16, 16, 32), (21, 21, 21)),
        padded("lp", "float64", "NCDHW", (46, 21, 16, 16, 16), (5, 5, 5), 2),
        padded("max", "float16", "NCDHW", (46, 32, 8, 12, 28), (13, 4, 4)),
    ]
    kernels = ("auto", "rows", "separable_vectors", "separable", "specialised")
    chosen, *others = issued(*(planned(cases, kernel) for kernel in kernels))
    for case, cost, *rest in zip(cases, chosen, *others, strict=True):
        assert cost <= 1.2 * min(rest), (case, cost, dict(zip(kernels[1:], rest, strict=True)))


def image(op: str, dtype: str, shape: tuple[int, ...], kernel: tuple[int, ...]) -> Case:
    layout = "NHWC" if shape[-1] == 3 else "NCHW"
    fields = {"id": "image", "op": op, "dtype": dtype, "layout": layout, "shape": shape}
    return Case.from_json(fields | {"kernel": kernel})


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("op", "dtype"), [("max", "float16"), ("max", "uint8"), ("average", "int8")]
)
def test_a_large_single_image_issues_hardly_more_than_one_of_a_batch(op: str, dtype: str) -> None:
    shapes = product(((1, 4096, 4096), (2160, 3840, 3)), (13, 15))
    sizes = [(shape, (k, k)) for shape, k in shapes]
    cases = ([image(op, dtype, (n, *shape), kernel) for shape, kernel in sizes] for n in (1, 2))
    for size, one, of_two in zip(sizes, *issued(*map(planned, cases)), strict=True):
        assert one <= 1.2 * of_two, size


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(("op", "dtype"), [("max", "float16"), ("average", "uint8")])
def test_small_windows_of_odd_rows_take_the_cheaper_of_two_kernels(op: str, dtype: str) -> None:
    """Where rows.cu reads elements one by one, and words of a single image hold both halves."""
    windows = [(3, 3), (4, 4), (6, 4), (12, 1)]
    cases = [image(op, dtype, (1, 1, 4095, 4095), window) for window in windows]
    cost = issued(*(planned(cases, name) for name in ("auto", "rows", "separable_vectors")))
    for window, auto, *others in zip(windows, *cost, strict=True):
        assert auto <= 1.2 * min(others), (window, auto, others)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(("op", "dtype"), [("max", "float16"), ("average", "float32")])
def test_overlapping_windows_cost_no_more_at_stride_2_than_at_1(op: str, dtype: str) -> None:
    """Of all threads together, which store a quarter of the outputs."""
    ways = list(product((9, 15, 31), (1, 2)))
    cases = [sliding(op, dtype, "NCHW", *way) for way in ways]
    (each,) = issued(planned(cases))
    costs = {w: one * case.outputs for w, one, case in zip(ways, each, cases, strict=True)}
    assert all(costs[k, 2] < costs[k, 1] for k, _ in ways), costs


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("op", "dtype"), [("max", "float32"), ("max", "uint8"), ("average", "float32")]
)
def test_vectors_cost_little_more_in_rows_that_none_divides(op: str, dtype: str) -> None:
    fields = {"id": "rows", "op": op, "dtype": dtype, "kernel": 13, "pads": 6}
    cases = [Case.from_json(fields | {"shape": (4, 32, 512, size)}) for size in (512, 511)]
    plans = planned(cases, "separable_vectors")
    assert {plan.kernel for _, plan in plans} == {"separable_vectors"}
    ((whole, odd),) = issued(plans)
    assert odd <= 1.4 * whole


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("kernel", ["rows", *planner.FUSED])
def test_pairs_merge_in_one_instruction_that_flushes_nothing(kernel: str) -> None:
    """Elements of 8 bits are subnormal numbers in the halves of a word."""
    launches = []
    for dtype in ("uint8", "int8", "float16"):
        problem = resolve("max", (8, 64, 64, 64), dtype, kernel_shape=9, pads=4)
        launches += planner.plan(problem, kernel=kernel).launches
    assert [launch.kernel for launch in launches] == [kernel] * 3
    static.compile_ahead(launches)
    for launch in launches:
        opcodes = {instruction.opcode for instruction in static.kernel(launch).code}
        maxima = {opcode for opcode in opcodes if "HMNMX" in opcode}
        assert maxima, launch
        assert not any("FTZ" in opcode for opcode in maxima), launch


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_maxima_of_8_bits_merge_in_pairs_as_those_of_16_do(dtype: str) -> None:
    """To take a word's elements apart and store them costs some more, signed ones most.

    Of 16 bits it was so much where those read padding, too, and shared two by two.
    """
    narrow = {3: 5.83, 7: 13.86, 31: 18.2}
    cases = [sliding("max", dtype, "NCHW", k) for k in narrow]
    (cost,) = issued(bounded(cases))
    assert all(c < 1.25 * n for c, n in zip(cost, narrow.values(), strict=True)), cost


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_large_windows_of_sums_cost_less_than_the_logarithm_times_a_small_one() -> None:
    ways = [
        ("average", "float32"),
        ("average", "bfloat16"),
        ("average", "uint8"),
        ("lp", "float32"),
        ("lp", "float16"),
        ("lp", "float64"),
    ]
    plans = (planned(sliding(*way, "NCHW", k) for k in (3, 31, 63)) for way in ways)
    for way, (small, *large) in zip(ways, issued(*plans), strict=True):
        for k, cost in zip((31, 63), large, strict=True):
            assert cost / small < math.log(k) / math.log(3), (way, k)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("max", "float16"),
        ("max", "float64"),
        ("lp", "float32"),
        ("average", "float32"),
        ("average", "uint8"),
    ],
)
def test_no_window_costs_more_than_a_kernel_that_grows_no_faster_than_its_logarithm(
    op: str, dtype: str
) -> None:
    """The fused kernels alone, strictly, from 3 x 3 on; another is taken where it is better."""
    windows = (3, 5, 7, 13, 31, 63)
    cases = [[sliding(op, dtype, way, k) for k in windows] for way in ("NCHW", "NHWC")]
    chosen = [bounded(some) for some in cases]
    fused = [planned(some, "separable_vectors", SEPARABLE_TAPS=1) for some in cases]
    cost = issued(*chosen, *fused)
    for of_chosen, alone in zip(cost[:2], cost[2:], strict=True):
        growth = [c / math.log2(k) for c, k in zip(alone, windows, strict=True)]
        assert max(growth) == growth[0], alone
        assert all(a <= 1.2 * b for a, b in zip(of_chosen, alone, strict=True)), (of_chosen, alone)


CHOSEN = list(
    covering(("float16", "float32", "int8"), ("max", "average"), ("NCHW", "NHWC"), (3, 5, 7, 9, 13))
)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("dtype", dict.fromkeys(way[0] for way in CHOSEN))
def test_the_chosen_kernel_issues_hardly_more_than_any_other(dtype: str) -> None:
    """The planner compares estimates; these are the counts of what it takes and leaves.

    It leaves a tile of rows for no fused kernel where that issues well within memory's time.
    """
    cases = [sliding(op, of, layout, k) for of, op, layout, k in CHOSEN if of == dtype]
    kernels = ("auto", "rows", "separable_vectors", "separable", "specialised")
    plans = [planned(cases, kernel) for kernel in kernels]
    chosen, *others = issued(*plans)
    for (case, one), cost, *rest in zip(plans[0], chosen, *others, strict=True):
        geometry = Geometry.of(case.problem, contiguous(case.problem.shape))
        limit = rows.limit(case.problem, geometry) / case.outputs
        left = dict(zip(kernels[1:], rest, strict=True))
        if one.kernel == "rows" and cost <= limit:
            left = {kernel: left[kernel] for kernel in ("rows", "specialised")}
        assert cost <= 1.2 * min(left.values()), (case, cost, left)


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_dilated_windows_of_3_x_3_leave_memory_the_limit(layout: str) -> None:
    """At stride 1, by tiles: one output for each thread took three to ten times the budget."""
    ways: list[tuple[str, str, Sequence[str]]] = [
        *product(("max", "average", "lp"), ("float64", "float32"), ((),)),
        *product(("max",), ("float16", "bfloat16"), ((),)),
        *product(("max",), ("float64", "float32"), (("indices",),)),
    ]
    cases = [sliding(op, dtype, layout, 3, 1, flags, 2) for op, dtype, flags in ways]
    plans = planned(cases)
    assert {plan.kernel for _, plan in plans} == {"rows"}
    for way, row in zip(ways, analysed(plans), strict=True):
        assert max(row["issued"], row["path"]) < row["budget"], way


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_dilated_windows_take_the_cheaper_of_two_kernels() -> None:
    """Loads between their taps take the compiler time, and no instruction."""
    ways: list[tuple[str, str, str, int, int, int, Sequence[str]]] = [
        ("average", "bfloat16", "NCHW", 6, 1, 4, ()),
        ("lp", "bfloat16", "NCHW", 7, 1, 3, ()),
        ("lp", "float64", "NCHW", 3, 3, 5, ()),
        ("max", "float64", "NCHW", 7, 1, 4, ["indices"]),
        ("max", "float32", "NHWC", 3, 1, 5, ()),
    ]
    cases = [sliding(*way[:5], flags=way[6], dilation=way[5]) for way in ways]
    cost = issued(*(planned(cases, name) for name in ("auto", "rows", "specialised")))
    for way, auto, *others in zip(ways, *cost, strict=True):
        assert auto <= 1.1 * min(others), (way, auto, others)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_large_windows_apart_take_the_cheaper_kernel_channels_last() -> None:
    """A few workers share a window of one channel each, which pays from about a thousand taps."""
    cases = [
        Case.from_json(
            {
                "id": f"{op} {k}",
                "op": op,
                "dtype": dtype,
                "layout": "NHWC",
                "kernel": k,
                "strides": k,
                "shape": (8, 2048, 2048, channels),
            }
        )
        for op, dtype, channels in (("average", "uint8", 3), ("max", "float16", 64))
        for k in (12, 32, 64)
    ]
    kernels = ("auto", "plane", "window")
    chosen, *others = issued(*(planned(cases, kernel) for kernel in kernels))
    for case, cost, *rest in zip(cases, chosen, *others, strict=True):
        assert cost <= 1.25 * min(rest), (case, cost, rest)


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("op", "dtype", "kernel"),
    [
        ("max", "float16", 16),
        ("average", "float16", 12),
        ("average", "uint8", 14),
        ("lp", "float32", 12),
    ],
)
def test_windows_apart_that_a_tile_takes_are_not_shared(op: str, dtype: str, kernel: int) -> None:
    fields = {"id": "apart", "op": op, "dtype": dtype, "kernel": kernel, "strides": kernel}
    cases = [Case.from_json(fields | {"shape": (16, 256, 4 * kernel, 4 * kernel)})]
    names = ("auto", "rows", "plane", "window")
    ((auto,), (tiled,), *others) = issued(*(planned(cases, name) for name in names))
    assert auto == tiled < min(others)[0]


@pytest.mark.usefixtures("tools")
def test_rows_of_small_planes_come_by_whole_vectors() -> None:
    """From memory, once, as columns do; thread by thread so many lines of rows took the time."""
    cases = [case for case in CASES if case.id in ("W10", "W25")]
    rows_alone = planned(cases, **emulator.ROWS_ALONE)
    chosen = [*planned(cases), *rows_alone]
    for (case, plan), row in zip(chosen, analysed(chosen), strict=True):
        (launch,), (step,) = row["launches"], plan.launches
        if (case, plan) in rows_alone:
            assert {one["bytes"] for one in launch["accesses"] if one["name"] == "LDG"} == {16}
        threads = step.block * prod(step.grid)
        assert launch["loaded"] * threads == prod(case.shape) * case.problem.dtype.itemsize


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("op", ["global-average", "global-max"])
def test_planes_of_odd_sizes_are_read_at_the_speed_of_memory(op: str) -> None:
    """Those of 16 bits took 2 at a time, and more than half of their budget."""
    fields = {"id": "odd", "op": op, "shape": (128, 96, 111, 111)}
    cases = [Case.from_json(fields | {"dtype": dtype}) for dtype in ("float16", "float32")]
    for row in analysed(planned(cases)):
        assert 2 * row["issued"] < row["budget"]
        (launch,) = row["launches"]
        (most,) = (one for one in launch["accesses"] if (one["name"], one["bytes"]) == ("LDG", 16))
        assert 16 * most["times"] > 0.98 * launch["loaded"]


@pytest.mark.usefixtures("tools")
def test_windows_wider_than_the_workers_are_shared_evenly() -> None:
    """Rows of one tap more than workers: each took as many turns as one of all their taps."""
    fields = {"id": "wide", "op": "max", "dtype": "float32", "shape": (8, 64, 514, 514)}
    cases = [Case.from_json(fields | {"kernel": k, "strides": k}) for k in (255, 257)]
    narrower, wider = (row["issued"] for row in analysed(planned(cases, "plane")))
    assert wider < 1.5 * narrower


def loads_on_the_way(code: Sequence[Instruction]) -> int:
    """Return the most loads from memory before the first of which is used, as the text has them."""
    waited_for: list[set[str]] = []
    most = 0
    for one in code:
        target, *sources = one.operands or ("",)
        read = set(
            re.findall(r"\bR\d+", " ".join((target, *sources) if one.name[:2] == "ST" else sources))
        )
        waited_for = [registers for registers in waited_for if not registers & read]
        if one.name == "LDG":
            number = int(target[1:])
            waited_for.append({f"R{number + i}" for i in range(max(1, one.width // 4))})
        most = max(most, len(waited_for))
    return most


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(("name", "loads"), [("W14", 3), ("W15", 3), ("L03", 3), ("W28", 8)])
def test_loads_of_a_shared_window_are_on_their_way_together(name: str, loads: int) -> None:
    """One at a time, as planes were staged, an H200 waited for each."""
    ((_, plan),) = planned(select(CASES, [name]))
    assert loads_on_the_way(static.kernel(plan.launches[0]).code) >= loads


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("size", [4, 7, 8, 14, 16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_planes_in_shared_memory_seldom_meet_in_a_bank(dtype: str, size: int) -> None:
    """All of eight lanes would read the same four where planes lay right behind each other."""
    fields = {"id": "banks", "op": "global-max", "dtype": dtype, "shape": (256, 2048, size, size)}
    (launch,) = static.analyse(Case.from_json(fields))["launches"]
    assert "plane_staged" in launch["kernel"]
    # An instruction issues for each byte of a thread while banks give four to each of 32.
    words = (a["times"] * max(4, a["bytes"]) for a in launch["accesses"] if a["name"][2:] == "S")
    fewest = sum(words)
    assert 0 < fewest <= launch["turns"] < 3 * fewest


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_images_channels_last_take_the_cheaper_kernel() -> None:
    """Where outputs fill the card: elsewhere the longest way counts, not the sum of all."""
    operators: list[dict[str, Any]] = [
        {"op": "global-average", "dtype": "float16"},
        {"op": "global-max", "dtype": "uint8"},
        {"op": "global-lp", "dtype": "float32", "p": 3},
    ]
    shapes = [(512, 4, 4, 96), (512, 7, 7, 1280), (256, 14, 14, 320), (256, 56, 56, 64)]
    cases = [
        Case.from_json({"id": f"{shape}", "layout": "NHWC", "shape": shape, **operator})
        for operator, shape in product(operators, shapes)
    ]
    kernels = ("auto", "channels", "plane", "window", "specialised")
    chosen, *others = issued(*(planned(cases, kernel) for kernel in kernels))
    for case, cost, *rest in zip(cases, chosen, *others, strict=True):
        assert cost <= 1.25 * min(rest), (case, cost, dict(zip(kernels[1:], rest, strict=True)))


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_few_images_channels_last_are_read_at_the_speed_of_memory(dtype: str) -> None:
    fields = {"id": "photographs", "op": "global-average", "dtype": dtype, "layout": "NHWC"}
    case = Case.from_json({**fields, "shape": (4, 2160, 3840, 3)})
    row = static.analyse(case)
    assert not row["doubt"]
    assert 2 * row["issued"] < row["budget"]
    assert {access["bytes"] for access in row["launches"][0]["accesses"]} >= {16}


IN_SHARED_MEMORY = [
    Case.from_json({"id": "odd", "op": op, "dtype": dtype, "shape": (64, 512, *spatial)} | window)
    for op, dtype, spatial, window in (
        ("max", "float16", (13, 13), {"kernel": 5, "pads": 2}),
        ("max", "bfloat16", (13, 13), {"kernel": 5, "pads": 2}),
        ("max", "int8", (13, 13), {"kernel": 5, "pads": 2}),
        ("max", "uint8", (19, 19), {"kernel": 3, "pads": 1}),
        ("average", "int8", (7, 7), {"kernel": 5, "pads": 2}),
        ("average", "uint8", (13, 13), {"kernel": 3, "pads": 1}),
    )
]
"""Small planes whose rows begin anywhere."""


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_odd_rows_in_shared_memory_issue_clearly_less_and_move_whole_vectors() -> None:
    """Read from memory they are single elements, and so are their results."""
    chosen = planned(IN_SHARED_MEMORY, **emulator.ROWS_ALONE)
    with emulator.constants(AHEAD=10**9):  # no planes are staged, no tile is another than usual
        others = planned(IN_SHARED_MEMORY)
    for one, other in zip(analysed(chosen), analysed(others), strict=True):
        (launch,) = one["launches"]
        assert "rows_staged" in launch["kernel"]
        *_, back, slices_first, _ = launch["kernel"].rstrip(">").split(", ")
        assert int(back) >= 0, "the results too"
        assert slices_first == "false"
        assert one["issued"] < 0.75 * other["issued"], (one["window"], other["launches"])
        wide = {a["bytes"] for a in launch["accesses"] if a["name"] in ("LDG", "STG")}
        assert wide == {16}, launch["accesses"]


def served(row: dict[str, Any]) -> float:
    """What the only launch of a case issues or would, for each output, while all else is served."""
    (launch,) = row["launches"]
    threads = prod(launch["grid"]) * launch["served"]
    return float(threads * issue.whole_warps(launch["block"]) / row["outputs"])


STAGED_CASES = [
    *select(CASES, ["W07", "W09", "W10", "W25"]),
    Case.from_json(
        {"id": "straight", "op": "max", "dtype": "float16", "shape": (64, 512, 64, 6)}
        | {"kernel": 3}
    ),
    *IN_SHARED_MEMORY,
]
"""Even rows, rows of volumes by slices, results straight to memory, and odd rows."""

STAGED_PARTS = [
    Case.from_json(
        {"id": "parts", "op": "average", "dtype": dtype, "shape": (64, 256, 35, 35)}
        | {"kernel": 3, "pads": 1}
    )
    for dtype in ("float16", "int8")
]
"""Of blocks that begin anywhere in a vector."""

SEPARATED = [
    *select(CASES, ["W10"]),
    *(
        Case.from_json({"id": "columns", "op": "max", "dtype": dtype, "shape": shape} | window)
        for dtype, shape, window in (
            ("float32", (64, 512, 13, 13), {"kernel": 5, "pads": 2}),
            ("float64", (64, 512, 13, 13), {"kernel": 7}),
            ("int8", (64, 512, 14, 10), {"kernel": 7, "pads": 3}),
            ("float16", (64, 512, 26, 17), {"kernel": 2, "strides": 3}),  # lines that no window has
            ("bfloat16", (64, 512, 9, 10), {"kernel": 7, "pads": 3}),
            ("float32", (64, 512, 20, 20), {"kernel": 4, "strides": 2, "pads": 2}),
            ("float16", (61, 257, 18, 18), {"kernel": 9, "pads": 4}),  # blocks of unlike numbers
            ("float16", (64, 512, 13, 13), {"kernel": 13, "pads": 6}),  # words of two planes
            ("uint8", (64, 512, 13, 13), {"kernel": 13, "pads": 6}),
            ("float16", (64, 512, 16, 16), {"kernel": 5, "pads": 2}),  # results that are spread
            ("float16", (64, 256, 55, 55), {"kernel": 3, "strides": 2}),
            ("float16", (64, 256, 63, 63), {"kernel": 3, "pads": 1}),  # anywhere in vectors
            ("uint8", (64, 512, 31, 31), {"kernel": 7, "pads": 3}),
        )
    ),
    *(
        Case.from_json({"id": "sums", "op": "average", "dtype": dtype, "shape": shape} | window)
        for dtype, shape, window in (
            ("float64", (64, 512, 17, 17), {"kernel": 3, "pads": 1}),
            ("float32", (64, 256, 35, 35), {"kernel": 3, "pads": 1}),
            ("float16", (64, 256, 35, 35), {"kernel": 3, "pads": 1}),
            (
                "bfloat16",
                (64, 512, 14, 14),
                {"kernel": 5, "pads": 2, "flags": ["count_include_pad"]},
            ),
            ("float32", (64, 256, 55, 55), {"kernel": 3, "strides": 2}),
            ("float16", (16, 256, 56, 56), {"kernel": 14, "strides": 14}),  # windows apart
        )
    ),
]
"""Small planes of which a thread takes columns, then rows."""


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_columns_then_rows_are_taken_where_all_that_is_served_is_less_by_the_counts() -> None:
    """Of 190 drawn cases all issued and cost what was estimated within 15 and 8 %."""
    others = analysed(planned(SEPARATED, **emulator.ROWS_ALONE))
    for case, row, other in zip(SEPARATED, analysed(planned(SEPARATED)), others, strict=True):
        geometry = Geometry.of(case.problem, contiguous(case.problem.shape))
        way = separable_planes.cheapest(case.problem, geometry, 16)
        assert way is not None
        assert "separable_planes<" in row["launches"][0]["kernel"]
        assert 5 / 6 < way.instructions / case.outputs / row["issued"] < 6 / 5, (case, way)
        assert 9 / 10 < way.cost / case.outputs / served(row) < 10 / 9, (case, way)
        assert served(row) < served(other), (case, other["launches"])
        (launch,) = row["launches"]
        assert 16 in {a["bytes"] for a in launch["accesses"] if a["name"] == "STG"}
        assert launch["spills"] == 0
        blocks = launch["occupancy"] * static.WARPS / (issue.whole_warps(launch["block"]) / 32)
        assert blocks >= separable_planes.AT_ONCE, case


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_estimates_of_rows_in_shared_memory_meet_the_counts() -> None:
    cases = [*STAGED_CASES, *STAGED_PARTS, NARROW]
    for case, row in zip(cases, analysed(planned(cases, "rows_staged")), strict=True):
        geometry = Geometry.of(case.problem, contiguous(case.problem.shape))
        way = rows_staged.cheapest(case.problem, geometry, 16)
        assert way is not None
        assert 2 / 3 < way.instructions / case.outputs / row["issued"] < 4 / 3, (case, way)
        assert 3 / 4 < way.cost / case.outputs / served(row) < 4 / 3, (case, way)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_planes_are_staged_where_all_that_is_served_is_clearly_less() -> None:
    """Than of the tile that takes them from memory, by the counts."""
    cases = STAGED_CASES[: -len(IN_SHARED_MEMORY)]
    chosen = analysed(planned(cases, **emulator.ROWS_ALONE))
    with emulator.constants(AHEAD=10**9):
        others = analysed(planned(cases))
    for case, one, other in zip(cases, chosen, others, strict=True):
        assert "rows_staged" in one["launches"][0]["kernel"]
        assert "rows<" in other["launches"][0]["kernel"]
        assert 1.1 * served(one) < served(other), case
        geometry = Geometry.of(case.problem, contiguous(case.problem.shape))
        tile = rows.cheapest(case.problem, geometry, 16)
        assert tile is not None
        estimate = rows.total_cost(case.problem, geometry, tile.usual) / case.outputs
        assert 3 / 4 < estimate / served(other) < 4 / 3, (case, tile)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("flags", [(), ("indices",)])
def test_what_is_served_is_as_estimated(flags: Sequence[str]) -> None:
    """Of threads beside each other with channels of one pixel or with pixels, and of Indices."""
    kinds = product(("float64", "float32", "float16", "int8"), ((3, 1), (3, 2), (5, 1)))
    last = [sliding("max", dtype, "NHWC", k, stride, flags) for dtype, (k, stride) in kinds]
    first = [sliding("max", dtype, "NCHW", 3, 1, flags) for dtype in ("float64", "float16")]
    images = [sliding("max", dtype, "NHWC", 3, 1, flags) for dtype in ("float16", "int8")]
    colours = [replace(case, shape=(16, 512, 512, 3)) for case in images]
    plans = planned((*last, *first, *colours), "rows")
    for (case, _), row in zip(plans, analysed(plans), strict=True):
        geometry = Geometry.of(case.problem, contiguous(case.problem.shape))
        tile = rows.cheapest(case.problem, geometry, 16)
        assert tile is not None
        estimate = rows.total_cost(case.problem, geometry, tile.launched) / case.outputs
        assert 4 / 5 < estimate / served(row) < 5 / 4, (case, tile)
        waits = estimate - rows.instructions(case.problem, geometry, tile.launched) / case.outputs
        assert 9 / 10 < waits / (served(row) - row["issued"]) < 10 / 9, (case, tile)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("op", "dilation", "flags", "clamped"),
    [
        ("max", 1, (), True),
        ("max", 1, ("indices",), True),
        ("max", 2, (), False),
        ("average", 1, (), False),
    ],
)
def test_loads_of_clamped_pixels_are_of_no_condition(
    op: str, dilation: int, flags: Sequence[str], clamped: bool
) -> None:
    """The planner's estimate and rows.cuh agree on which those are."""
    case = sliding(op, "float32", "NHWC", 3, 1, flags, dilation)
    ((_, chosen),) = planned([case], "rows")
    (launch,) = chosen.launches
    geometry = Geometry.of(case.problem, contiguous(case.problem.shape))
    tile = rows.cheapest(case.problem, geometry, 16)
    assert tile is not None
    assert tile_cost._clamps_pixels(case.problem, geometry.axes, tile.launched) == clamped
    loads = [one for one in static.kernel(launch).code if one.name == "LDG"]
    assert loads
    assert all(not one.guard for one in loads) == clamped


NARROW = Case.from_json(
    {"id": "narrow", "op": "max", "dtype": "float16", "shape": (64, 512, 64, 8)}
    | {"kernel": 3, "strides": 2, "pads": 1}
)
"""Planes that a tile from memory serves better than a block that copies them."""

SOONER = [
    NARROW,
    *(
        Case.from_json({"id": "sooner", "op": op, "dtype": dtype, "shape": shape} | window)
        for op, dtype, shape, window in (
            ("max", "float16", (64, 64, 147, 147), {"kernel": 3, "strides": 2}),
            ("average", "bfloat16", (64, 64, 27, 27), {"kernel": 2, "strides": 2}),
            ("max", "int8", (64, 3, 14, 32, 33), {"kernel": 2, "strides": 2}),
            ("max", "float16", (64, 512, 26, 9), {"kernel": 2, "strides": 3}),
        )
    ),
]
"""Where the tile that issues little is served late: rows that no vector divides, or taken whole."""


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_the_tile_of_which_clearly_less_is_served_is_sooner_by_the_counts() -> None:
    """By more than NEARLY of the forecast; two of them also than from planes in shared memory."""
    with emulator.constants(AHEAD=10**9):
        usual = planned(SOONER)
    for case, one, other in zip(SOONER, analysed(planned(SOONER)), analysed(usual), strict=True):
        assert all("rows<" in row["launches"][0]["kernel"] for row in (one, other))
        assert one["predicted"] > 1.1 * other["predicted"], case
        assert one["launches"][0]["code"] <= max(other["launches"][0]["code"], rows.SHORT_CODE)
    small = [SOONER[0], SOONER[-1]]
    for name in planner.STAGED:
        for one, other in zip(
            analysed(planned(small)), analysed(planned(small, name)), strict=True
        ):
            assert f"{name}<" in other["launches"][0]["kernel"]
            assert one["predicted"] > other["predicted"]


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_rows_that_would_meet_in_banks_take_no_more_turns_than_others() -> None:
    """Where they lie as in memory strips, which have no such rows, took less time."""
    fields = {"op": "max", "shape": (64, 512, 32, 32), "kernel": 13, "pads": 6}
    dtypes = ("float16", "float32")
    cases = [Case.from_json({"id": dtype, "dtype": dtype} | fields) for dtype in dtypes]
    others = analysed(planned(cases, "strips"))
    for case, row, other in zip(cases, analysed(planned(cases)), others, strict=True):
        assert "separable_planes<" in row["launches"][0]["kernel"]
        # Of each output four times a word, or half a one: to and from shared memory.
        words = case.problem.dtype.itemsize / 4
        assert row["turns"] == pytest.approx(4 * words * 128 / 32)
        assert row["predicted"] > 1.05 * other["predicted"]


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_estimates_of_rows_meet_the_counts(dtype: str) -> None:
    """Within a third, where their spread over random tiles is a tenth."""
    kernels = (2, 3) if dtype == "float64" else (3, 5)  # of larger ones no tile is short enough
    ways = [*product(kernels, (1,)), *product((2, 3), (2, 5))]
    results = [("max", []), ("max", ["indices"]), ("average", []), ("lp", [])]
    cases = [
        sliding(op, dtype, layout, k, flags=flags, dilation=d)
        for (op, flags), layout, (k, d) in product(results, ("NCHW", "NHWC"), ways)
    ]
    for case, row in zip(cases, analysed(planned(cases, "rows")), strict=True):
        geometry = Geometry.of(case.problem, contiguous(case.problem.shape))
        found = rows.cheapest(case.problem, geometry, 16)
        assert found is not None
        tile = found.launched
        estimate = Estimate.of(case.problem, geometry, tile).total / tile.threads(geometry)
        (launch,) = row["launches"]
        assert 3 / 4 < estimate / launch["path"] < 4 / 3, (case, tile)


@pytest.mark.usefixtures("tools")
def test_estimates_of_single_outputs_meet_the_counts() -> None:
    """Within a third: of small and large planes, of loops that are unrolled and of others."""
    ways: list[tuple[str, str, tuple[int, ...], int, int, int, list[str]]] = [
        ("max", "float16", (40, 32, 12, 12, 12), 5, 1, 1, []),
        ("average", "float32", (244, 32, 8, 8, 8), 21, 1, 1, []),
        ("max", "float32", (4096, 64, 7, 7), 7, 1, 1, []),
        ("max", "int8", (1024, 64, 14, 14), 5, 1, 1, ["indices"]),
        ("average", "float64", (64, 64, 56, 56), 3, 2, 1, []),
        ("average", "float16", (64, 64, 112, 112), 13, 2, 1, []),
        ("lp", "float32", (64, 64, 56, 56), 5, 1, 2, []),
        ("max", "float16", (64, 64, 56, 56), 9, 9, 1, ["indices"]),
        ("max", "float32", (512, 32, 8, 8, 8), 3, 1, 1, ["indices"]),
    ]
    cases = [
        Case.from_json(
            {
                "id": "one",
                "op": op,
                "dtype": dtype,
                "shape": shape,
                "kernel": kernel,
                "flags": flags,
            }
            | {"strides": stride, "dilations": dilation, "pads": kernel // 2 * dilation}
        )
        for op, dtype, shape, kernel, stride, dilation, flags in ways
    ]
    cases += [padded("max", "float32", "NHWC", (2000, 7, 7, 64), (5, 5))]
    for case, row in zip(cases, analysed(planned(cases, "specialised")), strict=True):
        geometry = Geometry.of(case.problem, contiguous(case.problem.shape))
        estimate = planner.window.cost(case.problem, geometry) / geometry.outputs
        assert 3 / 4 < estimate / row["issued"] < 4 / 3, (case, estimate, row["issued"])


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_estimates_of_single_columns_meet_the_counts(dtype: str) -> None:
    """Within a half, where their spread over random tiles is a seventh."""
    ways: list[tuple[str, Sequence[str]]] = [("max", ()), ("max", ["indices"]), ("average", ())]
    sizes: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = [
        ("NCHW", (2000, 64, 7, 7), (13, 13), 1),
        ("NHWC", (64, 56, 56, 64), (9, 9), 2),
        ("NCDHW", (40, 32, 12, 12, 12), (5, 5, 5), 1),
        ("NDHWC", (16, 16, 16, 16, 64), (7, 7, 7), 1),
    ]
    cases = [
        padded(op, dtype, *size[:3], stride=size[3], flags=flags)
        for (op, flags), size in product(ways, sizes)
    ]
    for case, row in zip(cases, analysed(planned(cases, "separable")), strict=True):
        geometry = Geometry.of(case.problem, contiguous(case.problem.shape))
        estimate = planner.separable.cost(case.problem, geometry) / case.outputs
        assert 2 / 3 < estimate / row["issued"] < 3 / 2, (case, estimate, row["issued"])


HALVES = -(10**6)
"""A price of runs by which strips take runs of half a window."""


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_estimates_of_strips_meet_the_counts() -> None:
    """Within a quarter: of norms the roots are what differs."""
    fields = {"id": "strips", "op": "lp", "shape": (16, 64, 112, 112), "kernel": 13, "pads": 6}
    ways = product(("float64", "float32"), (1, 2, 3))
    cases = [Case.from_json(fields | {"dtype": dtype, "p": p}) for dtype, p in ways]
    for case, row in zip(cases, analysed(planned(cases, "strips")), strict=True):
        geometry = Geometry.of(case.problem, contiguous(case.problem.shape))
        found = planner.strips.cheapest(case.problem, geometry, 16)
        assert found is not None
        estimate = found.issued / case.outputs
        assert 4 / 5 < estimate / row["issued"] < 5 / 4, (case, estimate, row["issued"])


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_what_strips_wait_for_is_estimated_as_counted() -> None:
    """Lines, turns and sectors of several layouts channels last, within a tenth.

    Of whole runs and of halves, of strips over each other, at strides.
    """
    ways = (
        ("max", "float32", 13, 1, (2, 2), 0),
        ("max", "float16", 5, 1, (2, 8), 0),
        ("average", "float64", 13, 1, (1, 2), HALVES),
        ("max", "uint8", 7, 2, (2, 1), 0),
        ("average", "float32", 13, 2, (2, 2), HALVES),
        ("average", "float32", 5, 2, (4, 4), 0),
    )
    chosen, estimates, down = list[tuple[Case, Plan]](), list[float](), list[int]()
    for op, dtype, kernel, stride, (pixels, abreast), run in ways:
        case = sliding(op, dtype, "NHWC", kernel, stride)
        geometry = Geometry.of(case.problem, contiguous(case.problem.shape))
        constants = {"PIXELS": (pixels,), "ABREAST": (abreast,), "RUN": run}
        chosen += planned([case], "strips", **constants)
        with emulator.constants(**constants):
            found = planner.strips.cheapest(case.problem, geometry, 16)
        assert found is not None
        assert (found.run < kernel) == (run == HALVES)
        down.append(found.down)
        estimates.append(found.served)
    assert max(down) > 1, "strips lie over each other"
    for (case, plan), row, estimate in zip(chosen, analysed(chosen), estimates, strict=True):
        (launch,) = row["launches"]
        threads = prod(launch["grid"]) * launch["block"]
        counted = (launch["served"] - launch["issued"]) * threads
        assert estimate == pytest.approx(counted, rel=0.1), (case, plan)


def test_no_case_takes_more_than_half_of_its_budget() -> None:
    rows = record.read(readme.RESULTS / "static.json")["rows"]
    assert static.above_half(rows) == []
    assert static.above_half([*rows[1:], rows[0] | {"budget": rows[0]["path"]}]) == [rows[0]["id"]]


def test_no_kernel_is_longer_than_compiles_within_100_ms() -> None:
    """Time grows with length, least with stores; a time itself would depend on the machine."""
    rows = record.read(readme.RESULTS / "static.json")["rows"]
    codes = {row["id"]: sum(launch["code"] for launch in row["launches"]) for row in rows}
    assert len(codes) == len(CASES)
    assert not {name: code for name, code in codes.items() if code > 400}


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
def test_no_kernel_issues_more_than_the_committed_baseline() -> None:
    baseline = record.read(readme.RESULTS / "static.json")
    if baseline["nvrtc"] != static.facts()["nvrtc"]:
        pytest.skip(f"the baseline is of NVRTC {baseline['nvrtc']}")
    static.compile_ahead(launch for _, plan in planned(CASES) for launch in plan.launches)
    rows = [static.analyse(case) for case in CASES]
    assert [row["id"] for row in rows] == [row["id"] for row in baseline["rows"]]
    assert not [f"{row['id']}: {row['doubt']}" for row in rows if row["doubt"]]
    changes = compare.compare(baseline, record.record("static", rows))
    worse = {change.id: change.ratio for change in changes if change.verdict == "worse"}
    assert not worse, "regenerate: python -m bench --static --json bench/results/static.json"


# The CPU


def test_cases_shrink_to_fit_memory_and_keep_their_character() -> None:
    for case in CASES:
        small = cpu.scaled(case, 8 * 2**20)
        assert small.window_text == case.window_text
        assert len(small.shape) == len(case.shape)
        assert prod(small.shape) <= prod(case.shape)
        assert small.problem.channels >= min(case.problem.channels, 8)


def test_libraries_take_turns_until_the_time_is_spent() -> None:
    now = 0.0
    order = []

    def call(name: str, seconds: float) -> Any:
        def work() -> None:
            nonlocal now
            now += seconds
            order.append(name)

        return work

    times = cpu.take_turns({"gpupool": call("a", 0.4), "torch": call("b", 0.2)}, lambda: now)
    assert times == {
        "gpupool": pytest.approx([0.4] * len(times["gpupool"])),
        "torch": pytest.approx([0.2] * len(times["torch"])),
    }
    assert order[:4] == ["a", "b", "a", "b"]
    assert 3 <= len(times["gpupool"]) < 15


@pytest.mark.skipif(sys.platform != "linux", reason="the process is pinned to one core")
def test_cpu_runs_on_a_file_of_cases(
    five: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("torch")
    monkeypatch.setattr(cpu, "pin", lambda: None)
    monkeypatch.setattr(cpu, "SECONDS", 0.01)
    out = tmp_path / "cpu.json"
    assert run("--cpu", "--cases", five, "--json", out, "--plot", tmp_path / "cpu.png") == 0
    rows = {row["id"]: row for row in record.read(out)["rows"]}
    assert set(rows) >= {"A1", "A2", "A2/f32", "A3", "A4", "A5"}
    assert rows["A1"]["onnxruntime_ratio"] > 0
    assert rows["A1"]["torch_ratio"] > 0
    assert rows["A2"]["onnxruntime_ratio"] is None
    assert "no kernel" in rows["A2"]["notes"]["onnxruntime"]
    assert (tmp_path / "cpu.png").stat().st_size > 10000
    assert "float32 maxima and averages" in capsys.readouterr().err


def test_torch_computes_the_same_work() -> None:
    torch = pytest.importorskip("torch")
    window = {"kernel": 3, "strides": 2, "pads": 1}
    for op in ("max", "average", "lp", "global-max", "global-average", "global-lp"):
        fields = {"id": op, "op": op, "dtype": "float32", "shape": [2, 3, 9, 8], "p": 2}
        if "lp" not in op:
            del fields["p"]
        case = Case.from_json(fields if "global" in op else fields | window)
        x = case.input(3)
        result = peers.torch_pool(case, torch, torch.float32)(torch.from_numpy(x))
        assert not gpu.wrong(case, x, [result.numpy()]), op


def test_what_a_library_cannot_do_is_a_reason() -> None:
    torch = pytest.importorskip("torch")
    dilated = Case.from_json({**FIVE[0], "op": "average", "dilations": 2})
    uneven = Case.from_json({**FIVE[0], "pads": [0, 0, 1, 1]})
    with pytest.raises(peers.UnavailableError, match="both ends"):
        peers.torch_pool(uneven, torch, torch.float32)
    with pytest.raises(peers.UnavailableError, match="dilation"):
        peers.torch_pool(dilated, torch, torch.float32)
    with pytest.raises(peers.UnavailableError, match="not installed"):
        peers.module("a_library_that_nobody_has")
    filters = argparse.Namespace(maximum_filter=lambda x, **given: (x, given))
    centred = Case.from_json({**FIVE[0], "strides": 1})
    assert peers.cupyx_filter(centred, filters)("x") == (
        "x",
        {"size": (1, 1, 3, 3), "mode": "constant", "cval": -np.inf},
    )
    with pytest.raises(peers.UnavailableError, match="stride 1"):
        peers.cupyx_filter(Case.from_json(FIVE[0]), filters)


# The GPU, on a device that is none


class Fake:
    """A device of NumPy arrays whose clock advances by the bytes that calls are said to move."""

    l2_bytes = 2**16

    def __init__(self, bytes_a_second: float = 4e12, noise: float = 0.01, off_by: int = 0) -> None:
        self.rate, self.noise, self.off_by = bytes_a_second, noise, off_by
        self.random = np.random.default_rng(7)
        self.copies = 0
        self.copy_rates: dict[int, float] = {}
        self.cost: dict[int, float] = {}

    def facts(self) -> dict[str, Any]:
        return {"name": "fake", "l2_bytes": self.l2_bytes}

    def put(self, array: Any) -> Any:
        return array.copy()

    def get(self, array: Any) -> Any:
        result = np.array(array)
        if self.off_by:
            result.reshape(-1)[-1] += self.off_by
        return result

    def empty(self, shape: Any, dtype: Any) -> Any:
        return np.zeros(min(shape[0], 1024) if len(shape) == 1 else shape, dtype)

    def rolled(self, array: Any, by: int) -> Any:
        return np.roll(array.reshape(-1), by).reshape(array.shape)

    def copy(self, *_: Any) -> None:
        self.copies += 1

    def stream(self) -> Any:
        return nullcontext()

    def record(self, calls: Any) -> Any:
        before = self.copies
        for call in calls:
            call()
        copying = self.copies > before

        def replay() -> None:
            return None

        self.cost[id(replay)] = (2 * gpu.LARGE_COPY / self.rate if copying else 1e-6) * len(calls)
        self.kept = (*getattr(self, "kept", ()), replay)
        return replay

    def queued(self, calls: Any) -> Any:
        return self.record(calls)

    def seconds(self, replay: Any, repeats: int) -> list[float]:
        noise = 1 + self.noise * self.random.standard_normal(repeats)
        return list(self.cost[id(replay)] * noise)

    def host_seconds(self, call: Any) -> list[float]:
        call()
        return [3e-6, 4e-6, 5e-6]

    def release(self) -> None:
        return None


def test_the_gpu_mode_checks_times_and_writes_everything(
    five: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for library in ("torch", "onnxruntime"):  # the same on machines that have them
        monkeypatch.setitem(sys.modules, library, None)
    files = {name: tmp_path / f"gpu.{name}" for name in ("json", "csv", "markdown")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    picture = tmp_path / "gpu.png"
    device = Fake()
    assert run("--cases", five, *options, "--plot", picture, device=device) == 0
    result = record.read(files["json"])
    assert result["device"]["name"] == "fake"
    assert result["versions"]["gpupool"]
    for row in result["rows"]:
        assert row["us"] == pytest.approx(1, rel=0.02)
        assert 0.005 < row["spread"] < 0.02
        assert row["repeats"] >= 50
        assert row["copy_gb_s"] == pytest.approx(4000, rel=0.02)
        assert row["copy_share"] == pytest.approx(row["least_bytes"] / 4e6, rel=0.03)
        assert set(row["peers"]) == {"torch", "torch.compile", "cuDNN", "cupyx"}
        assert all(found.get("reason") or found["times"] > 0 for found in row["peers"].values())
    assert "torch is not installed" in result["rows"][0]["peers"]["torch"]["reason"]
    assert picture.stat().st_size > 10000
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert len({line.index("float32") for line in lines if "float32" in line}) == 1


def test_a_wrong_result_is_never_timed(five: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = Fake(off_by=1)
    assert run("--cases", five, "--only", "A1,A3", "--peers", "", device=device) == 1
    assert capsys.readouterr().out.count("WRONG: 1 of") == 2
    assert not device.cost
    assert run("--check", "--cases", five, device=Fake()) == 0
    assert run("--check", "--cases", five, device=Fake(off_by=1)) == 1


def test_peers_are_timed_on_the_same_buffers(five: Path) -> None:
    device = Fake()
    seen: list[int] = []

    def prepare(case: Case, device: Any, buffers: gpu.Buffers) -> Any:
        seen.append(len(buffers.inputs))
        assert sum(x.nbytes for x in buffers.inputs) + sum(
            y.nbytes for ys in buffers.outputs for y in ys
        ) >= min(gpu.COLD * device.l2_bytes, 2 * case.least_bytes)
        assert len({x.tobytes() for x in buffers.inputs}) == len(buffers.inputs)
        return device.record([lambda: None] * (2 * len(buffers.inputs))), nullcontext()

    def broken(*_: Any) -> Any:
        raise RuntimeError("no kernel image\nsecond line")

    chosen = [gpu.Peer("twice", prepare), gpu.Peer("broken", broken)]
    row = gpu.measure(load(five)[0], device, chosen)
    assert seen[0] > 2
    assert row["peers"]["twice"]["times"] == pytest.approx(2, rel=0.02)
    assert row["peers"]["broken"] == {"reason": "RuntimeError: no kernel image"}


def test_kernels_that_the_plan_did_not_choose_are_peers(five: Path, tmp_path: Path) -> None:
    out, names = tmp_path / "kernels.json", [peer.name for peer in gpu.WAYS]
    options = ("--peers", ",".join(names), "--json", out)
    assert run("--cases", five, *options, device=Fake()) == 0
    assert set(names) == set(planner.KERNELS) - {"auto"}
    timed = 0
    for row, case in zip(record.read(out)["rows"], load(five), strict=True):
        found, chosen = row["peers"], planner.plan(case.problem).kernel
        serving = {name for name in names if planner.plan(case.problem, kernel=name).kernel == name}
        assert found[chosen] == {"reason": "it is the one that is chosen"}
        for name in serving - {chosen}:
            assert found[name]["times"] == pytest.approx(1, rel=0.02), (row["id"], name)
        for name in set(names) - serving:
            assert f"kernel = {name!r} does not serve" in found[name]["reason"], row["id"]
        timed += len(serving - {chosen})
    assert timed > 5


@pytest.mark.parametrize(("dtype", "off_by", "wrong"), [
    ("float32", 0.1, True), ("float32", 0.001, False), ("int8", 1, False), ("int8", 2, True),
])  # fmt: skip
def test_no_peer_is_timed_whose_results_differ(dtype: str, off_by: float, wrong: bool) -> None:
    case = Case.from_json(FIVE[0] | {"dtype": dtype})
    device = Fake()
    buffers = gpu.Buffers.of(case, device, case.input(seed=0))

    def prepared(_: Any, into: Any) -> Any:
        return lambda: into[0].fill(off_by)

    if wrong:
        with pytest.raises(peers.UnavailableError, match=f"^its results differ by {off_by}$"):
            gpu._replayed(device, buffers, prepared)
    else:
        replay, results = gpu._replayed(device, buffers, prepared)
        with results as kept:
            assert replay in device.kept
            assert (kept[-1][0] == np.array(off_by, dtype)).all()


def test_slow_peers_get_fewer_replays_and_ours_never() -> None:
    device = Fake()
    replay = device.record([lambda: None])
    device.cost[id(replay)] = 0.1
    assert gpu.timing(device, replay, 1).repeats == gpu.REPEATS >= 50
    assert gpu.timing(device, replay, 1, gpu.PEER_SECONDS).repeats == 5
    assert gpu.timing(device, replay, 1, gpu.PEER_SECONDS / 10).repeats == 1


def test_the_latency_set_is_compared_with_a_copy_of_its_own_size() -> None:
    case = next(case for case in CASES if case.id == "L03")
    device = Fake()
    row = gpu.measure(case, device, ())
    assert row["copy_gb_s"] < 1e9
    assert list(device.copy_rates) == [case.least_bytes // 2]


def test_a_device_is_not_taken_for_an_earlier_one_that_is_gone() -> None:
    """Another may lie where it lay."""
    slow, fast = (gpu.copied(Fake(rate), 2**20) for rate in (1e12, 2e12))
    assert fast > 1.5 * slow


def test_host_overhead_has_a_row_for_every_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "host.json"
    assert run("--host", "--json", out, device=Fake()) == 0
    rows = {row["id"]: row["us"] for row in record.read(out)["rows"]}
    for way in ("function", "function, out=", "plan object, out=", "graph replay"):
        assert rows[way] == pytest.approx(4)
    assert "torch" in rows
    assert "plan object" in capsys.readouterr().out


def test_a_known_call_takes_the_host_less_than_75_calls_that_do_nothing(tmp_path: Path) -> None:
    """It takes some 50 of them however busy the machine is, which are 1.6 us where it is not."""
    pytest.importorskip("cupy", reason="the arrays are CuPy's")
    from gpupool import gpu_available

    if gpu_available():
        pytest.skip("there is a GPU: its launches are timed too")
    out = tmp_path / "host.json"
    # A process of its own: a tracer of coverage would be timed too.
    command = [sys.executable, "-m", "bench", "--host", "--json", str(out)]
    subprocess.run(command, cwd=gpu_report.ROOT, capture_output=True, check=True)
    times = {row["id"]: row["us"] for row in record.read(out)["rows"]}
    nothing = times.pop(host.NOTHING)
    assert len(times) == 4
    assert times["plan object, out="] < 75 * nothing
    assert times["plan object, other arrays"] < 150 * nothing
    assert times["function, out="] < 350 * nothing
    assert max(times.values()) < 500 * nothing


def test_unknown_peers_and_a_missing_gpu_are_errors(five: Path) -> None:
    with pytest.raises(GpupoolError, match="tensorflow"):
        run("--cases", five, "--peers", "tensorflow", device=Fake())
    from gpupool import gpu_available

    if not gpu_available():
        assert command.main(["--cases", str(five)]) == 2


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "gpupool: interrupted"),
        (BrokenPipeError(), 141, ""),
        (ZeroDivisionError("1 / 0"), 2, "ZeroDivisionError: 1 / 0 (unexpected: --debug shows"),
    ],
)
def test_what_ends_a_run_is_said_in_one_line(
    error: BaseException, status: int, said: str, monkeypatch: Any, capsys: Any
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(command, "chosen", fail)
    assert command.main(["--static"]) == status
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) <= 1


@pytest.mark.parametrize("option", ["--json", "--csv", "--markdown"])
def test_a_file_that_cannot_be_written_is_named(
    option: str, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    rows = stored("static")["rows"]
    mode = replace(
        command.STATIC,
        head=["a"],
        cells=lambda _: ["b"],
        summary=lambda _: "",
        measure=lambda _: rows[0],
    )
    monkeypatch.setattr(command, "STATIC", mode)
    assert command.main(["--static", "--only", "W01", option, "/dev/full"]) == command.EXIT_ERROR
    assert "error: /dev/full: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--static", "--cold", "--host"])
def test_what_needs_no_gpu_says_that_it_needs_cupy(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    found = ModuleNotFoundError("No module named 'cupy'", name="cupy")
    monkeypatch.setattr(device_module, "_import_cupy", lambda: found)
    monkeypatch.setattr(command, "gpu_available", lambda: False)
    assert command.main([option]) == command.EXIT_ERROR
    assert re.search("(?i)cupy is not installed", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--only", "L05"), ("--peers", "torch"), ("--csv", "a.csv"), ("--plot", "a.png")],
)
def test_what_the_time_of_the_host_has_no_use_for_is_refused(option: str, value: str) -> None:
    with pytest.raises(GpupoolError, match=f"{option} is not for --host"):
        run("--host", option, value)


@pytest.mark.parametrize(("option", "value"), [("--only", "L05"), ("--json", "a.json")])
def test_what_writing_the_readme_has_no_use_for_is_refused(
    option: str, value: str, tmp_path: Path
) -> None:
    with pytest.raises(GpupoolError, match=f"{option} is not for --readme"):
        run("--readme", tmp_path / "README.md", option, value)


@pytest.mark.parametrize(
    ("mode", "option", "value", "message"),
    [
        ("--cold", "--plot", "a.png", "a cold result has no picture"),
        ("--static", "--plot", "a.text", r"a\.text: a picture ends in one of .*\.png"),
        ("--static", "--plot", "png", "png: a picture ends in one of"),
        ("--static", "--csv", "nowhere/a.csv", r"nowhere/a\.csv: there is no folder .*nowhere$"),
        ("--static", "--json", "nowhere/a.json", "there is no folder"),
        ("--static", "--compare", "cpu.json", "a cpu result cannot be compared with a static"),
        ("--cold", "--compare", "cold.json", "a cold result has no cost to compare: static, gpu, "),
        ("--cold", "--compare", "cpu.json", "a cold result has no cost to compare"),
        ("--static", "--only", ",", "--only ',' names no case"),
        ("--cold", "--peers", "torch", "--peers is not for a cold run"),
    ],
)
def test_what_the_result_cannot_become_is_refused_before_anything_is_measured(
    mode: str, option: str, value: str, message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for earlier in ("cpu", "cold"):
        record.write(record.record(earlier, ()), tmp_path / f"{earlier}.json")
    monkeypatch.setattr(command, "measured", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(GpupoolError, match=message):
        run(mode, option, value)


@pytest.mark.parametrize("option", ["--cases", "--compare"])
def test_a_file_of_another_encoding_is_refused(option: str, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_bytes('["Größe"]'.encode("latin-1"))
    with pytest.raises(GpupoolError, match=r"old\.json is not JSON"):
        run("--static", option, tmp_path / "old.json")


def test_the_commit_is_that_of_gpupool_or_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed within another project's checkout, gpupool's files are not that project's."""
    identity = ("-c", "user.name=n", "-c", "user.email=e")
    for words in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "theirs")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    installed = tmp_path / "gpupool" / "__init__.py"
    installed.parent.mkdir()
    installed.touch()
    monkeypatch.setattr(gpupool, "__file__", str(installed))
    assert record.commit() is None
    (tmp_path / "kernels").mkdir()
    for words in (("add", "gpupool"), (*identity, "commit", "-q", "-m", "ours")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert re.fullmatch("[0-9a-f]{12}", record.commit() or "")


# Comparing results


def stored(mode: str, factor: float = 1.0, noise: float = 0.0) -> dict[str, Any]:
    """A result as it is stored, with one case made worse and noise on all."""
    random = np.random.default_rng(int(1e6 * noise) + 1)
    rows = []
    for i in range(20):
        cost = (1 + i) * (1 + noise * float(random.standard_normal())) * (factor if i == 5 else 1)
        rows.append(
            {"id": f"C{i}", "op": "MaxPool", "dtype": "float32", "window": "k3", "shape": [i],
             "spread": noise, "issued": cost, "copy_share": 1 / cost, "onnxruntime_ratio": cost}
        )  # fmt: skip
    return json.loads(json.dumps({"mode": mode, "date": "d", "commit": "c", "rows": rows}))


@pytest.mark.parametrize(("mode", "noise"), [("static", 0.0), ("gpu", 0.01), ("cpu", 0.01)])
def test_a_planted_regression_is_caught_and_noise_passes(mode: str, noise: float) -> None:
    planted = 1.1 if mode != "cpu" else 1.35
    old = stored(mode, 1, 0)
    assert not [c.id for c in compare.compare(old, stored(mode, 1, noise)) if c.verdict == "worse"]
    worse = [
        c.id for c in compare.compare(old, stored(mode, planted, noise)) if c.verdict == "worse"
    ]
    assert worse == ["C5"]
    better = [c.id for c in compare.compare(stored(mode, planted), old) if c.verdict == "better"]
    assert better == ["C5"]


def test_a_planted_regression_of_ten_percent_is_the_exit_status(
    five: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "old.json"
    assert run("--cases", five, "--peers", "", "--json", out, device=Fake(noise=0.002)) == 0
    assert run("--cases", five, "--peers", "", "--compare", out, device=Fake(noise=0.002)) == 0
    result = record.read(out)
    result["rows"][3]["copy_share"] *= 1.1
    record.write(result, out)
    assert run("--cases", five, "--peers", "", "--compare", out, device=Fake(noise=0.002)) == 3
    assert "A4" in capsys.readouterr().err


@pytest.mark.parametrize("main", [command.main, lambda argv: cli.main(["bench", *argv])])
def test_a_regression_and_an_error_exit_with_different_statuses(
    main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "measured", lambda *_: stored("static", 1.5))
    monkeypatch.setattr(command, "show", lambda *_: None)
    out = tmp_path / "old.json"
    assert main(["--static", "--compare", str(out)]) == 2
    for factor, status in ((1.0, 3), (1.5, 0)):
        record.write(stored("static", factor), out)
        assert main(["--static", "--compare", str(out)]) == status


def test_results_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GpupoolValueError, match="cannot be compared"):
        compare.compare(stored("cpu"), stored("gpu"))
    other = stored("gpu")
    for row in other["rows"]:
        row["shape"] = [99]
    with pytest.raises(GpupoolValueError, match="share no case"):
        compare.compare(other, stored("gpu"))
    path = tmp_path / "other.json"
    for text, message in (("[]", "no result"), ("nonsense", "not JSON")):
        path.write_text(text)
        with pytest.raises(GpupoolValueError, match=message):
            record.read(path)


# The report and the README


def test_a_sanitizer_sees_every_kernel_that_pools_by_windows() -> None:
    cases = [Case.from_json(fields) for fields in gpu_report.SMALL]
    launches = [launch for case in cases for launch in planner.plan(case.problem).launches]
    others = {"preprocess.cu", "roi.cu", "unpool.cu"}
    names = chain.from_iterable(of for file, of in entries().items() if file not in others)
    assert {launch.kernel for launch in launches} == set(names)
    rows_of_staged = {launch.template[4] for launch in launches if launch.kernel == "rows_staged"}
    assert {"0"} < rows_of_staged, "parts of rows"


def test_a_part_that_fails_or_hangs_loses_nothing() -> None:
    python = sys.executable
    good = gpu_report.Part("good", [python, "-c", "print('{\"first\": 1.5}')"], 20,
                           gpu_report._last_line)  # fmt: skip
    sleeping = "import time; print('begun', flush=True); time.sleep(60)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeping!r}])"
    hanging = gpu_report.Part("hanging", [python, "-c", child], 1.5)
    failing = gpu_report.Part("failing", [python, "-c", "raise SystemExit(3)"], 20, json.loads)
    missing = gpu_report.Part("missing", ["a-tool-that-nobody-has"], 20)
    outcomes = [gpu_report.perform(part, 60) for part in (good, hanging, failing, missing)]
    outcomes.append(gpu_report.perform(good, 0))
    assert [outcome.status for outcome in outcomes] == [
        "passed",
        "stopped at its limit of 2 s",
        "failed with exit status 3",
        "left out: a-tool-that-nobody-has is not installed",
        "left out: no time remained",
    ]
    assert outcomes[0].result == {"first": 1.5}
    assert "begun" in outcomes[1].output
    assert outcomes[1].last_line == "begun"
    assert outcomes[1].seconds < 15


def test_the_report_holds_what_was_measured(five: Path, tmp_path: Path) -> None:
    timed = tmp_path / "timed.json"
    others = tmp_path / "others.json"
    assert run("--cases", five, "--json", timed, device=Fake()) == 0
    assert run("--cases", five, "--peers", "rows,window", "--json", others, device=Fake()) == 0
    host = [{"id": "function", "us": 4.5}, {"id": "torch", "us": "not installed"}]
    outcomes = [
        gpu_report.Outcome("tests", "failed with exit status 1", 3.0, "1 failed\n"),
        gpu_report.Outcome("host overhead", "passed", 3.0, "", host),
        gpu_report.Outcome(
            "first calls, cold cache", "passed", 3.0, "", {"first": 9.0, "next": 5.0}
        ),
        gpu_report.Outcome("cases", "stopped at its limit", 9.0, "", record.read(timed)),
        gpu_report.Outcome("kernels", "passed", 9.0, "", record.read(others)),
    ]
    gpu_report.report(outcomes, tmp_path)
    text = (tmp_path / "report.md").read_text()
    for expected in (
        "| A3 |",
        "| function | 4.50 |",
        "1 failed",
        "stopped at its limit",
        "9.00",
        "## Kernels on fake",
        "| x window |",
    ):
        assert expected in text
    assert (tmp_path / "report.png").stat().st_size > 10000
    assert json.loads((tmp_path / "report.json").read_text())["cases"]["result"]["rows"]


def test_the_parts_of_the_report_are_commands_of_this_checkout(tmp_path: Path) -> None:
    parts = gpu_report.parts(tmp_path, tmp_path)
    assert [part.name for part in parts][-2:] == ["cases", "kernels"]
    tests = next(part for part in parts if part.name == "tests")
    assert (tests.environment or {}).get(
        "GPUPOOL_REQUIRE_GPU"
    ) == "1"  # none is skipped for lack of it
    assert gpu_report.SECONDS < 600
    assert sum(part.limit for part in parts[:-2]) < gpu_report.SECONDS - 120
    assert {case.id for case in load(tmp_path / "small.json")} == {f"S{i}" for i in range(1, 16)}
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu_report", "--help"],
        cwd=gpu_report.ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "--out DIR" in done.stdout


@pytest.mark.parametrize("spec", [None, "found"])
def test_the_tests_of_the_report_run_in_processes_where_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str | None
) -> None:
    monkeypatch.setattr(gpu_report, "find_spec", lambda name: spec if name == "xdist" else None)
    assert ("-n" in gpu_report.parts(tmp_path, tmp_path)[0].command) == (spec is not None)


def test_small_cases_agree_with_the_oracle_through_the_command(tmp_path: Path) -> None:
    gpu_report.parts(tmp_path, tmp_path)
    assert run("--check", "--cases", tmp_path / "small.json", device=Fake()) == 0


def test_the_readme_shows_the_newest_result(five: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    page = tmp_path / "README.md"
    page.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    record.write(static_result(), results / "static.json")
    readme.update(page, results)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{readme.END}\nafter\n")
    assert "Nothing here was measured on a GPU yet" in text
    assert "| W01 |" in text
    assert run("--cases", five, "--json", results / "fake.json", device=Fake()) == 0
    readme.update(page, results)
    assert "Measured on fake" in page.read_text()
    assert "old" not in page.read_text()
    (tmp_path / "empty").mkdir()
    with pytest.raises(GpupoolValueError, match="no result"):
        readme.newest(tmp_path / "empty")
    page.write_text("no marks")
    with pytest.raises(GpupoolValueError, match="no section"):
        readme.update(page, results)


def test_the_readme_of_this_checkout_is_up_to_date() -> None:
    text = (readme.RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
    assert readme.section(readme.newest()) in text, "python -m bench --readme README.md"


def static_result() -> dict[str, Any]:
    return record.read(readme.RESULTS / "static.json")


def test_every_kind_of_result_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.save(static_result(), tmp_path / "static.png")
    assert (tmp_path / "static.png").stat().st_size > 10000
    with pytest.raises(GpupoolError, match="no correct case"):
        plot.save({**static_result(), "rows": []}, tmp_path / "none.png")

"""gpupool verify: what it draws, what it compares, and that it finds what is wrong."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpupool import bounds, cli, device, peers, planner, tolerance, verify
from gpupool.dtypes import DTYPES
from gpupool.errors import GpupoolError
from gpupool.jit import kernel_folder
from gpupool.ops import FUNCTIONS
from gpupool.opset import OPERATORS
from gpupool.peers import PEERS, RefusedError
from gpupool.problem import resolve
from gpupool.verify import MEMORY, VALUES, Call, draw_call
from tests import emulator

EMULATED = {op: getattr(emulator, f.__name__) for op, f in FUNCTIONS.items()}


def drawn(n: int, seed: int = 0, **options: Any) -> list[Call]:
    return [draw_call(np.random.default_rng((seed, i)), **options) for i in range(n)]


# What is drawn


@pytest.mark.parametrize("plain", [False, True])
def test_every_call_is_legal_and_every_kind_of_call_is_drawn(plain: bool) -> None:
    calls = drawn(1500, plain=plain)
    assert all(call.problem.op == call.op for call in calls)
    assert {call.op for call in calls} == set(OPERATORS)
    assert {call.memory for call in calls} == set(MEMORY)
    if plain:
        assert {call.values for call in calls} == {"ties", "normal"}
        assert not any(call.problem.channels_last for call in calls)
        return
    assert {(call.op, call.dtype) for call in calls} == {
        (op, row.name) for op, operator in OPERATORS.items() for row in operator.dtypes
    }
    assert {call.values for call in calls} == set(VALUES)
    assert {len(call.shape) for call in calls} == {3, 4, 5, 6}
    for name in ("auto_pad", "ceil_mode", "storage_order", "return_indices", "channels_last", "p"):
        assert len({call.attributes[name] for call in calls if name in call.attributes}) > 1


def test_the_calls_reach_every_kernel_file() -> None:
    plans = [planner.plan(call.problem) for call in drawn(500)]
    launches = [launch for plan in plans for launch in plan.launches]
    files = {path.name for path in kernel_folder().glob("*.cu")}
    # Planes, or more of them, than these calls have.
    larger = {"strips.cu", "rows_staged.cu", "separable_planes.cu"}
    assert {launch.source for launch in launches} == files - larger - {"preprocess.cu"}
    reached = {launch.kernel for launch in launches}
    assert {
        "window",
        "plane",
        "plane_parts",
        "unpool_place",
        "max_roi_pool",
        "roi_align",
    } <= reached


def test_a_call_is_the_same_whatever_their_number() -> None:
    assert drawn(5) == drawn(50)[:5]
    assert drawn(5) != drawn(5, seed=1)


def test_the_operator_and_the_dtype_can_be_chosen() -> None:
    assert {(c.op, c.dtype) for c in drawn(9, op="LpPool", dtype="bfloat16")} == {
        ("LpPool", "bfloat16")
    }
    with pytest.raises(GpupoolError, match="RoiAlign does not take int8"):
        drawn(1, op="RoiAlign", dtype="int8")


def test_a_call_is_what_its_repr_says() -> None:
    for call in drawn(200):
        again = eval(repr(call), {"Call": Call})
        assert again == call
        for a, b in zip(again.arrays(), call.arrays(), strict=True):
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("memory", MEMORY)
def test_memory_changes_strides_and_no_values(memory: str) -> None:
    x = np.arange(24).reshape(2, 3, 4)
    prepare, view = MEMORY[memory]
    base = prepare(x)
    assert base.flags.c_contiguous
    np.testing.assert_array_equal(view(base), x)
    assert view(base).flags.c_contiguous == (memory == "contiguous")


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_values_are_what_they_are_called(values: str, dtype: str) -> None:
    (x,) = Call("MaxPool", (1, 2, 500), dtype, {"kernel_shape": [2]}, values).arrays()
    wide, info = np.abs(x.astype(np.float64)), ml_dtypes.finfo(x.dtype)
    if values == "NaN and infinities":
        assert np.isnan(wide).any()
        assert np.isinf(wide).any()
        return
    assert np.isfinite(wide).all()
    if values == "ties":
        assert len(np.unique(wide)) == 4
    if values == "subnormal":
        assert 0 < wide.max() < float(info.tiny)
    if values == "full range":
        assert wide.max() > float(info.max) / 2


# What is compared


POOL = Call("AveragePool", (1, 2, 9), "float32", {"kernel_shape": [3]}, values="normal", seed=5)


def tampered(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let the GPU give the oracle's outputs with a change."""

    def run(call: Call) -> tuple[Any, ...]:
        return tuple(change(*(output.copy() for output in call.run("cpu"))))

    monkeypatch.setitem(verify.RUNNERS, "gpu", run)
    monkeypatch.setattr(device, "gpu_reason", lambda: None)


def test_the_largest_difference_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(y: Any) -> Any:
        y[0, 0, 1] += 1
        y[0, 1, 4] -= 3
        return (y,)

    tampered(monkeypatch, change)
    found = POOL.against("gpu")
    assert found
    assert (found.output, found.index, found.count, found.size) == ("Y", (0, 1, 4), 2, 14)
    assert found.difference == pytest.approx(3, abs=1e-5)
    assert "Y differs in 2 of 14, most at [0, 1, 4]" in str(found)


def test_nan_shape_dtype_and_indices_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def nan_at_first(y: Any) -> Any:
        y[0, 0, 0] = np.nan
        return (y,)

    tampered(monkeypatch, nan_at_first)
    found = POOL.against("gpu")
    assert found
    assert (found.found, found.difference, found.index) == ("nan", np.inf, (0, 0, 0))
    tampered(monkeypatch, lambda y: (y[:, :1],))
    assert "float32[1, 1, 7] instead of float32[1, 2, 7]" in str(POOL.against("gpu"))
    tampered(monkeypatch, lambda y: (y.astype(np.float64),))
    assert "float64[1, 2, 7] instead of float32[1, 2, 7]" in str(POOL.against("gpu"))
    tampered(monkeypatch, lambda y, indices: (y, indices + (indices == indices.max())))
    attributes = {"kernel_shape": [3], "return_indices": True}
    found = replace(POOL, op="MaxPool", attributes=attributes).against("gpu")
    assert found
    assert (found.output, found.difference) == ("Indices", 1)


def test_an_unchanged_result_is_no_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    tampered(monkeypatch, lambda *outputs: outputs)
    assert not [call for call in drawn(200) if call.against("gpu")]


def test_the_line_shows_the_mismatch_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tampered(monkeypatch, lambda *outputs: (np.full_like(outputs[0], 77), *outputs[1:]))
    report = verify.run(5, 11, "gpu")
    assert report.mismatch
    exec(report.mismatch.line, {})
    assert capsys.readouterr().out == f"{report.mismatch}\n"


# How far sums may be apart


def agree(op: str, dtype: str, x: Any, a: Any, b: Any, **attributes: Any) -> bool:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.asarray(x).astype(kind).reshape(1, 1, -1)
    problem = resolve(op, x.shape, x.dtype, **attributes)
    kinds = (np.asarray([[[y]]]).astype(problem.outputs[0].dtype) for y in (a, b))
    return bool(tolerance.agree(problem, (x,), *kinds).all())


def test_maxima_and_averages_of_integers_agree_exactly() -> None:
    one = np.float32(1)
    assert agree("GlobalMaxPool", "float32", [1], one, one)
    assert agree("GlobalMaxPool", "float32", [0], 0.0, -0.0)
    assert agree("GlobalMaxPool", "float32", [np.nan], np.nan, -np.nan)
    assert not agree("GlobalMaxPool", "float32", [1], one, np.nextafter(one, one + one))
    assert not agree("GlobalMaxPool", "float32", [np.nan], np.nan, 1)
    assert not agree("GlobalAveragePool", "uint8", [1, 2], 1, 2)


def test_sums_agree_within_rounding() -> None:
    x = [3.0] * 4
    bound = 2 * bounds.of_mean(4, 2.0**-24) * 3
    assert agree("GlobalAveragePool", "float32", x, 3, 3 + bound)
    assert not agree("GlobalAveragePool", "float32", x, 3, 3 + 2 * bound)
    assert agree("GlobalAveragePool", "bfloat16", x, 3, 3 + 2**-6)  # the next one
    assert not agree("GlobalAveragePool", "bfloat16", x, 3, 3 + 2**-5)
    assert agree("GlobalLpPool", "float16", x, 6, 6 + 2**-8)
    assert not agree("GlobalLpPool", "float16", x, 6, 6 + 2**-7)


def test_cancelled_sums_agree_relative_to_their_magnitudes() -> None:
    x = [1e6, -1e6, 1.0]
    assert agree("GlobalAveragePool", "float32", x, 1 / 3, 0.3)
    assert not agree("GlobalAveragePool", "float32", [1.0, 0, 0], 1 / 3, 0.3)


def test_infinity_agrees_with_the_greatest_number_only_at_the_edge_of_the_range() -> None:
    greatest = float(np.finfo(np.float32).max)
    assert agree("GlobalLpPool", "float32", [greatest, 1], greatest, np.inf)
    assert not agree("GlobalLpPool", "float32", [1e38, 1], 1e38, np.inf)
    assert not agree("GlobalLpPool", "float32", [np.inf, 1], greatest, np.inf)


def test_an_exponent_that_float32_rounds_has_no_wider_bound() -> None:
    x = [1e30, 1e30]
    for p in (2.0, 2.1):
        assert agree("GlobalLpPool", "float32", x, 1e30, 1e30 * (1 + 5e-7), p=p)
        assert not agree("GlobalLpPool", "float32", x, 1e30, 1e30 * (1 + 5e-6), p=p)


# Other libraries


def case(op: str = "MaxPool", x: Any = (1, 2, 3, 4), **attributes: Any) -> peers.Case:
    array = np.asarray(x, np.float32)
    lists = {"kernel_shape", "strides", "dilations"} & attributes.keys()
    attributes |= {name: [attributes[name]] for name in lists}
    return peers.Case(op, (array if array.ndim > 1 else array.reshape(1, 1, -1),), attributes)


LIMITS = [
    ("onnxruntime", case(kernel_shape=2, auto_pad="SAME_UPPER", dilations=2), "SAME with dilation"),
    ("onnxruntime", case(kernel_shape=2, auto_pad="SAME_LOWER", strides=3), "SAME with a stride"),
    ("onnxruntime", case(kernel_shape=2, auto_pad="VALID", ceil_mode=1), "VALID with ceil_mode"),
    ("onnxruntime", case(kernel_shape=1, pads=[1, 0]), "pad of the kernel's size"),
    ("onnxruntime", case(kernel_shape=2, dilations=5, pads=[1, 1]), "without a valid tap"),
    ("onnxruntime", case(x=[1, np.nan], kernel_shape=2), "NaN or infinity"),
    ("onnxruntime", case("AveragePool", [3e38, 3e38], kernel_shape=2), "overflow"),
    ("onnxruntime", case("LpPool", kernel_shape=2, p=9), "overflow"),
    ("onnxruntime", case("NoPool"), "operator or dtype"),
    ("torch", case("LpPool", [-1, 2], kernel_shape=2, p=3), "absolute values"),
    ("torch", case("LpPool", kernel_shape=2, p=2, ceil_mode=1), "ceil_mode"),
    ("torch", case(kernel_shape=2, auto_pad="VALID"), "auto_pad"),
    ("torch", case(kernel_shape=3, pads=[1, 0]), "both ends"),
    ("torch", case(kernel_shape=1, pads=[1, 1]), "half the kernel"),
    ("torch", case(x=np.ones((1, 1, 2, 2, 2, 2)), kernel_shape=2), "three spatial axes"),
    ("torch", case("AveragePool", [1], kernel_shape=2, pads=[1, 1]), "larger than the input"),
]


@pytest.mark.parametrize(("peer", "asked", "reason"), LIMITS)
def test_a_peer_is_not_asked_where_it_is_no_judge(
    peer: str, asked: peers.Case, reason: str
) -> None:
    assert reason in str(peers.unreliable(PEERS[peer], asked))


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_is_asked_for_an_ordinary_case(peer: str) -> None:
    assert peers.unreliable(PEERS[peer], case(kernel_shape=3, strides=2, pads=[1, 1])) is None


@pytest.mark.parametrize(
    "attributes", [{"channels_last": True}, {"dtype": "float32"}, {"p": 1.5}], ids=str
)
def test_what_onnx_lacks_is_no_question_for_a_peer(attributes: dict[str, Any]) -> None:
    op, dtype = ("LpPool", "float32") if "p" in attributes else ("AveragePool", "uint8")
    with pytest.raises(RefusedError, match="not ONNX"):
        Call(op, (1, 4, 4), dtype, {"kernel_shape": [2], **attributes}).against("onnxruntime")


@pytest.mark.parametrize("peer", PEERS)
def test_the_oracle_agrees_with_a_peer(peer: str) -> None:
    if reason := peers.missing(PEERS[peer]):
        pytest.skip(f"{peer} is an optional peer: {reason}")
    report = verify.Report(0)
    for call in drawn(600, seed=2, plain=True):
        assert verify.compare(call, [peer], report), "\n".join(report.lines())
    assert report.agreed[peer] > (300 if peer == "onnxruntime" else 40)


def test_a_wrong_answer_of_a_peer_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    right = (np.array([[[3, 2, 3]]], np.float32),)
    call = Call("MaxPool", (1, 1, 4), "float32", {"kernel_shape": [2]}, seed=7)
    monkeypatch.setattr(peers.OnnxRuntime, "run", lambda *_: right)
    assert call.against("onnxruntime") is None
    monkeypatch.setattr(peers.OnnxRuntime, "run", lambda *_: (right[0] + 1,))
    found = call.against("onnxruntime")
    assert found
    assert "on onnxruntime: Y differs in 3 of 3" in str(found)


# The command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(["verify", *arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_agreement_is_one_line(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tampered(monkeypatch, lambda *outputs: outputs)
    monkeypatch.setattr(verify, "installed", list)
    assert command("--n", "30", "--seed", "4") == (
        0,
        "30 random calls, seed 4: gpu agreed on 30; no mismatch\n",
        "",
    )


def test_a_mismatch_is_told_with_its_line_and_status_1(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tampered(monkeypatch, lambda *outputs: (np.full_like(outputs[0], -1), *outputs[1:]))
    status, out, err = command("--op", "lp", "--dtype", "float32", "--n", "9", "--device", "gpu")
    assert (status, err) == (1, "")
    mismatch, line, summary = out.splitlines()
    assert mismatch.startswith("LpPool float32 (")
    assert line.startswith("from gpupool.verify import Call; print(Call('LpPool', (")
    assert summary == "1 random calls, seed 0: gpu agreed on 0; a mismatch"


def test_every_round_shows_its_progress(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []

    def progress(numbers: Any, verb: str) -> Any:
        shown.append((verb, len(numbers)))
        return numbers

    tampered(monkeypatch, lambda *outputs: outputs)
    monkeypatch.setattr(cli, "progress", progress)
    monkeypatch.setattr(verify, "installed", lambda: ["onnxruntime", "torch"])
    monkeypatch.setattr(verify, "unreliable", lambda *_: "not now")
    assert command("--n", "4")[0] == 0
    assert shown == [("oracle against gpu", 4), ("oracle against onnxruntime and torch", 4)]


def test_json_is_one_object(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tampered(monkeypatch, lambda *outputs: (np.full_like(outputs[0], -1), *outputs[1:]))
    status, out, _ = command("--op", "lp", "--json", "--device", "gpu")
    found = json.loads(out)
    assert status == 1
    assert found["mismatch"]["place"] == "gpu"
    assert found["mismatch"]["line"].startswith("from gpupool.verify import Call; ")
    assert (found["calls"], found["agreed"]) == (1, {"gpu": 0})


@pytest.mark.parametrize(
    ("where", "reason"), [("auto", "there is no driver"), ("cpu", "not asked for")]
)
def test_a_report_says_where_no_gpu_was_checked(
    command: Any, monkeypatch: pytest.MonkeyPatch, where: str, reason: str
) -> None:
    monkeypatch.setattr(device, "gpu_reason", lambda: "there is no driver")
    monkeypatch.setattr(verify, "installed", lambda: ["onnxruntime"])
    monkeypatch.setattr(verify, "unreliable", lambda *_: "not now")
    _, text, _ = command("--n", "1", "--device", where)
    assert f"seed 0: no GPU was checked ({reason}); onnxruntime agreed on 0" in text
    _, out, _ = command("--n", "1", "--device", where, "--json")
    assert json.loads(out)["no_gpu"] == reason


def test_cpu_leaves_the_gpu_out(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "gpu_reason", lambda: None)
    monkeypatch.setattr(verify, "installed", lambda: ["onnxruntime"])
    monkeypatch.setattr(peers.OnnxRuntime, "run", lambda *_: pytest.fail("no judge of bfloat16"))
    status, out, _ = command("--device", "cpu", "--n", "3", "--dtype", "bfloat16")
    assert status == 0
    assert out.endswith("onnxruntime agreed on 0 (no judge of 3); no mismatch\n")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--device", "gpu"), 1, "device = 'gpu': no card here"),
        (("--device", "auto"), 1, "nothing to compare the CPU oracle with: no GPU (no card here)"),
        (("--device", "cpu"), 1, "no GPU (not asked for), no onnxruntime and no torch"),
        (("--n", "0"), 2, "--n 0 must be at least 1"),
        (("--seed", "-1"), 2, "--seed -1 must be at least 0"),
        (("--op", "sum"), 2, "op = 'sum' must be one of"),
    ],
)
def test_what_cannot_be_compared_is_said(
    command: Any,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    status: int,
    message: str,
) -> None:
    monkeypatch.setattr(device, "gpu_reason", lambda: "no card here")
    monkeypatch.setattr(verify, "installed", list)
    result = command(*arguments)
    assert result[:2] == (status, "")
    assert message in result[2]


# The kernels, on the emulator


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let "gpu" mean the kernels on the CPU."""

    def run(call: Call) -> tuple[Any, ...]:
        with monkeypatch.context() as patched:
            patched.setattr(verify, "FUNCTIONS", EMULATED)
            return verify._outputs(call, lambda array: array)

    monkeypatch.setitem(verify.RUNNERS, "gpu", run)
    monkeypatch.setattr(device, "gpu_reason", lambda: None)
    monkeypatch.setattr(verify, "installed", list)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("op", OPERATORS)
def test_the_kernels_agree(op: str) -> None:
    with emulator.settings(kernel="window"):
        report = verify.run(15, 3, "gpu", op, "float32")
    assert report.mismatch is None, "\n".join(report.lines())
    assert report.agreed == Counter(gpu=15)


@pytest.mark.usefixtures("emulated")
def test_a_wrong_kernel_is_found(
    command: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(kernel_folder(), tmp_path / "kernels")
    header = folder / "window.cuh"
    right = "start < high ? divide_up(high - start, dilation) : 0"
    assert right in header.read_text()
    header.write_text(
        header.read_text().replace(right, right.replace("high - start", "high - 1 - start"))
    )
    with emulator.settings(kernel="window", folder=folder):
        status, out, _ = command("--op", "max", "--dtype", "int8")
        mismatch, line, summary = out.splitlines()
        exec(line, {})
    assert status == 1
    assert mismatch.startswith("MaxPool int8 (")
    assert summary.endswith("; a mismatch")
    assert capsys.readouterr().out == f"{mismatch}\n"


def test_every_dtype_has_a_name_that_the_command_takes() -> None:
    assert {row.name for row in DTYPES} == {call.dtype for call in drawn(300, op="MaxPool")}

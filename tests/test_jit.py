"""From kernels/ to compiled code: where the text is found, what its key is, what an error says."""

from __future__ import annotations

import re
import shutil
import sys
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpupool import device, jit, launch, planner, verify
from gpupool.dtypes import DTYPES
from gpupool.errors import GpupoolError
from gpupool.planner import THREADS, Launch, plan
from gpupool.planner.parameters import window_dtype
from gpupool.planner.preprocess import PREPROCESS_DTYPE
from gpupool.planner.roi import ROI_DTYPE
from gpupool.planner.rows import rows_dtype
from gpupool.planner.separable import TILES_DTYPE
from gpupool.planner.specialised import SPECIALISED_TAPS
from gpupool.problem import resolve

KERNELS = jit.kernel_folder()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Let the kernels be a copy that a test may edit."""
    folder = shutil.copytree(jit.kernel_folder(), tmp_path / "kernels")
    monkeypatch.setattr(jit, "kernel_folder", lambda: folder)
    return folder


# Where the text is


def test_a_checkout_has_the_kernels_beside_the_package() -> None:
    folder = jit.kernel_folder()
    assert folder.name == "kernels"
    assert {path.name for path in folder.glob("*.cu")} >= {"window.cu", "plane.cu", "roi.cu"}


def test_an_installed_package_has_the_kernels_inside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    inside, beside = tmp_path / "gpupool" / "kernels", tmp_path / "kernels"
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "gpupool" / "jit.py"))
    shutil.copytree(KERNELS, beside)
    assert jit.kernel_folder.__wrapped__() == beside
    shutil.copytree(beside, inside)
    assert jit.kernel_folder.__wrapped__() == inside


def test_missing_kernels_are_an_error_that_names_both_places(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "gpupool" / "jit.py"))
    with pytest.raises(GpupoolError, match="reinstall gpupool") as caught:
        jit.kernel_folder.__wrapped__()
    assert str(tmp_path / "gpupool" / "kernels") in str(caught.value)
    assert str(tmp_path / "kernels") in str(caught.value)


# The key


@pytest.mark.parametrize("name", sorted(path.name for path in KERNELS.iterdir()))
def test_an_edit_of_any_file_gives_a_new_key(copied: Any, name: str) -> None:
    before = jit.source("window.cu")
    file = copied / name
    file.write_text(file.read_text() + "\n// edited\n")
    jit.digest.cache_clear()
    assert jit.source("window.cu") != before


def test_a_renamed_file_gives_a_new_key(copied: Any) -> None:
    before = jit.digest(copied)
    (copied / "roi.cu").rename(copied / "regions.cu")
    jit.digest.cache_clear()
    assert jit.digest(copied) != before


def test_an_edited_header_gives_new_code(copied: Any, nvrtc: Any) -> None:
    assert nvrtc
    expression = "unpool_clear<double, int>"
    before, *_ = jit.cubin(["unpool.cu"], [expression], 90)
    header = copied / "unpool.cu"
    header.write_text(header.read_text().replace("claims[i] = -1;", "claims[i] = -2;"))
    jit.digest.cache_clear()
    after, *_ = jit.cubin(["unpool.cu"], [expression], 90)
    assert after != before


def test_the_source_is_an_include_and_a_digest() -> None:
    assert re.fullmatch(r'// [0-9a-f]{32}\n#include "window\.cu"\n', jit.source("window.cu"))


@pytest.mark.parametrize(
    ("version", "more"), [((12, 3), ()), ((12, 4), ("-minimal",)), ((13, 0), ("-minimal",))]
)
def test_the_options_are_the_same_for_every_kernel(
    cupy: Any, version: tuple[int, int], more: tuple[str, ...]
) -> None:
    cupy.cuda.nvrtc = SimpleNamespace(getVersion=lambda: version)
    unused = ("-builtin-initializer-list=false", "-builtin-move-forward=false")
    assert jit.options() == ("-std=c++17", f"-I{KERNELS}", *unused, *more)


# Nothing that a user supplies is compiled

NAME = "|".join(re.escape(row.cuda) for row in DTYPES)
NUMBER = r"(0|-?[1-9]\d{0,9})"
WORD = "int|long long|Placed|true|false|nowhere|at_ends|anywhere|one_row|one_pixel|some_pixels"
WORD += "|scattered|aligned|ragged"
SIZES = rf"Sizes<{NUMBER}(, {NUMBER})*>"
ARGUMENT = rf"({NAME}|{NUMBER}|{WORD}|{SIZES}|Dilated<{SIZES}, {SIZES}>)"
OPERATOR = rf"(Max|ArgMax|PlacedMax|Average|IntegerAverage|Lp)<{ARGUMENT}(, {ARGUMENT})*>"
FIRST = rf"{ARGUMENT}|{OPERATOR}|Paired<{OPERATOR}>"
EXPRESSION = re.compile(rf"[a-z_]+<({FIRST})(, ({ARGUMENT}|{OPERATOR}))*>")


def test_operands_of_ptx_have_constraints_of_one_letter() -> None:
    """NVRTC 12.0 takes no early clobber, so that statements write what they return at their end."""
    text = "".join(file.read_text() for file in KERNELS.glob("*.cu*"))
    constraints = set(re.findall(r'"([=+]?[^"\s;]{1,2})"\(', text))
    assert constraints == {"=r", "=f", "=h", "=d", "+r", "+f", "+l", "r", "f", "h", "d", "l"}


@pytest.mark.no_cover
def test_every_expression_is_of_names_from_tables_and_bounded_integers() -> None:
    expressions = set()
    for i in range(2000):
        problem = verify.draw_call(np.random.default_rng((9, i))).problem
        for kernel in planner.KERNELS:
            for chosen in plan(problem, kernel=kernel).launches:
                assert (KERNELS / chosen.source).exists()
                expressions.add(chosen.expression)
    assert len(expressions) > 500
    assert not [text for text in expressions if not EXPRESSION.fullmatch(text)]
    numbers = {int(n) for text in expressions for n in re.findall(r"\b\d+\b", text)}
    assert max(numbers) <= max(THREADS, SPECIALISED_TAPS)


@pytest.mark.parametrize(
    "text",
    ["window<Max<float>; int, 1>", "x<float>\n#include <f>", "window<-1e9>", "f()"],
)
def test_the_grammar_refuses_anything_else(text: str) -> None:
    assert not EXPRESSION.fullmatch(text)


# Compiling without a driver


def test_the_code_is_an_elf_file_with_the_symbol_of_each_expression(nvrtc: Any) -> None:
    assert nvrtc
    expressions = ["unpool_claim<int>", "unpool_claim<long long>"]
    code, log, symbols = jit.cubin(["unpool.cu"], expressions, 80, "--ptxas-options=-v")
    assert code.startswith(b"\x7fELF")
    assert code.endswith(b"\0")
    assert list(symbols) == expressions
    for symbol in symbols.values():
        assert symbol.encode() in code
        assert f"'{symbol}' for 'sm_80'" in log


def test_the_log_of_ptxas_is_read() -> None:
    log = """
ptxas info    : 17 bytes gmem
ptxas info    : Compiling entry function '_Z1f' for 'sm_90'
ptxas info    : Function properties for _Z1f
ptxas         .     24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 48 registers, used 1 barriers, 24 bytes cumulative stack size
ptxas info    : Function properties for __internal_accurate_pow
ptxas         .     8 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function '_Z1g' for 'sm_90'
ptxas info    : Function properties for _Z1g
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 4096 bytes smem, 400 bytes cmem[0]
"""
    expected = {"_Z1f": (48, 24, 24, 0), "_Z1g": (10, 0, 0, 4096)}
    assert jit.resources(log) == expected


def assembly(nvrtc: Any, file: str, expression: str) -> str:
    """Return the PTX of a kernel."""
    program = nvrtc.createProgram(jit.source(file), "gpupool.cu", (), ())
    nvrtc.addNameExpression(program, expression)
    nvrtc.compileProgram(program, (*jit.options(), "-arch=compute_90", "-ftz=true"))
    return bytes(nvrtc.getPTX(program)).decode()


@pytest.mark.parametrize("element", ["float", "BFloat16"])
def test_taps_are_widened_without_flushing_subnormals(nvrtc: Any, element: str) -> None:
    expression = f"window<Lp<{element}, 0, double>, 1, int, Sizes<0>, Sizes<0>, false>"
    text = assembly(nvrtc, "window.cu", expression)
    assert "cvt.f64.f32" in text
    assert "cvt.ftz.f64.f32" not in text


def test_means_are_subtracted_without_flushing_subnormals(nvrtc: Any) -> None:
    text = assembly(nvrtc, "preprocess.cu", "preprocess<float, int, int, false>")
    assert "neg.f32" in text
    assert ".ftz" not in text


def test_an_error_names_the_file_the_expression_the_architecture_and_the_log(nvrtc: Any) -> None:
    assert nvrtc
    with pytest.raises(GpupoolError) as caught:
        jit.cubin(["unpool.cu"], ["unpool_claim<Nonsense>"], 90)
    first, *log = str(caught.value).splitlines()
    assert first == "unpool.cu: unpool_claim<Nonsense> for sm_90:"
    assert any("Nonsense" in line and "error" in line for line in log)


STRUCTS = {
    **{
        f"Window<{axes}, {index}>": ("window.cuh", window_dtype(axes, index))
        for axes, index in product((1, 2, 3, 4), ("int", "long long"))
    },
    "Rows": ("rows.cuh", rows_dtype()),
    "Tiles": ("separable.cuh", TILES_DTYPE),
    "Roi": ("roi.cu", ROI_DTYPE),
    "Preprocess": ("preprocess.cu", PREPROCESS_DTYPE),
}


@pytest.mark.parametrize("struct", STRUCTS)
def test_the_compiler_of_the_device_lays_structs_out_as_numpy_does(
    monkeypatch: pytest.MonkeyPatch, nvrtc: Any, struct: str
) -> None:
    """NVRTC has no offsetof, which g++ is asked for: here are the sizes of all members."""
    assert nvrtc
    header, dtype = STRUCTS[struct]
    fields: Any = dtype.fields
    members = {"S": dtype, **{f"S::{name}": fields[name][0] for name in fields}}
    text = f'#include "{header}"\nusing S = {struct};\n' + "".join(
        f"static_assert(sizeof({member}) == {kind.itemsize});\n" for member, kind in members.items()
    )
    text += "template <int> __global__ void probe() {}\n"
    monkeypatch.setattr(jit, "source", lambda _: text)
    code, *_ = jit.cubin(["probe"], ["probe<0>"], 90)
    assert code.startswith(b"\x7fELF")


# Through CuPy, with a fake one


class FakeCupy(ModuleType):
    """Records what gpupool asks of CuPy."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.modules: list[dict[str, Any]] = []
        self.launched: list[tuple[Any, ...]] = []
        self.device = 0
        by_value = SimpleNamespace(CNumpyArray=lambda value: value[()])
        nvrtc = SimpleNamespace(getVersion=lambda: (12, 9))
        self.cuda = SimpleNamespace(Device=self._device, function=by_value, nvrtc=nvrtc)

    def _device(self, number: int | None = None) -> Any:
        cupy = self

        class Device:
            id = cupy.device if number is None else number

            def __enter__(self) -> Any:
                self.before, cupy.device = cupy.device, self.id
                return self

            def __exit__(self, *_: object) -> None:
                cupy.device = self.before

        return Device()

    def RawModule(self, **options: Any) -> Any:  # noqa: N802
        self.modules.append({**options, "device": self.device})

        def get_function(expression: str) -> Any:
            def function(*call: Any, **more: Any) -> None:
                self.launched.append((expression, self.device, *call, more))

            return function

        return SimpleNamespace(get_function=get_function)

    def empty(self, shape: Any, dtype: Any) -> Any:
        return self.array(np.empty(shape, dtype))

    def array(self, array: Any) -> Any:
        made = array.view(FakeArray)
        made.device = self._device(1)
        return made

    def ascontiguousarray(self, array: Any) -> Any:
        return self.array(np.ascontiguousarray(array))


class FakeArray(np.ndarray[Any, Any]):
    """A NumPy array that says it is on device 1."""

    device: Any = None


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(device, "gpu_reason", lambda: None)
    monkeypatch.setattr(launch, "gpu_reason", lambda: None)
    jit.function.cache_clear()
    yield fake
    jit.function.cache_clear()


def test_a_function_is_compiled_once_for_each_device(cupy: Any) -> None:
    first = jit.function("unpool.cu", "unpool_claim<int>", 0)
    assert jit.function("unpool.cu", "unpool_claim<int>", 0) is first
    assert jit.function("unpool.cu", "unpool_claim<int>", 1) is not first
    assert cupy.modules == [
        {
            "code": jit.source("unpool.cu"),
            "options": jit.options(),
            "name_expressions": ("unpool_claim<int>",),
            "device": number,
        }
        for number in (0, 1)
    ]
    assert cupy.device == 0


def test_running_launches_the_plan_on_the_device_of_x(cupy: Any) -> None:
    problem = resolve("max", (1, 2, 9), "float32", kernel_shape=3, strides=2)
    x = cupy.array(np.zeros((1, 2, 9), np.float32))
    with x.device:
        y = cupy.empty((1, 2, 4), np.float32)
    launch.run(problem, (x,), (y,))
    (chosen,) = plan(problem, None, 16).launches
    (run,) = cupy.launched
    expression, number, grid, block, arguments, more = run
    assert number == 1
    assert expression == chosen.expression
    assert (grid, block, more) == (chosen.grid, (chosen.block,), {"shared_mem": chosen.shared})
    operands = dict(zip(chosen.operands, arguments, strict=False))
    assert operands["x"] is x
    assert operands["y"] is y
    scalars = arguments[len(chosen.operands) :]
    assert [s.tobytes() for s in scalars] == [s.tobytes() for s in chosen.scalars]
    assert cupy.device == 0


def test_absent_operands_are_null_pointers(cupy: Any) -> None:
    problem = resolve("max", (1, 1, 9), "float64", kernel_shape=3, dilations=2)
    x, y = (cupy.array(np.zeros((1, 1, n))) for n in (9, 5))
    launch.run(problem, (x,), (y,))
    _, _, _, _, (_, _, indices, *_), _ = cupy.launched[0]
    assert (indices.dtype.itemsize, int(indices)) == (8, 0)


def test_a_workspace_is_allocated_where_the_plan_wants_one(cupy: Any) -> None:
    problem = resolve("GlobalAveragePool", (1, 1, 300, 300), "float32")
    chosen = plan(problem)
    assert chosen.workspace
    x, y = (cupy.array(np.zeros(shape, np.float32)) for shape in (problem.shape, (1, 1, 1, 1)))
    launch.run(problem, (x,), (y,))
    (_, _, _, _, cut, _), (_, _, _, _, whole, _) = cupy.launched
    names = [step.operands for step in chosen.launches]
    first, second = cut[names[0].index("workspace")], whole[names[1].index("workspace")]
    assert first is second
    assert first.nbytes >= chosen.workspace


def test_an_output_that_a_kernel_cannot_write_is_filled_from_one_that_it_can(cupy: Any) -> None:
    x, y = cupy.array(np.zeros((1, 1, 9))), cupy.array(np.zeros((1, 1, 16))[..., ::2])
    launch.run(resolve("max", (1, 1, 9), "float64", kernel_shape=2), (x,), (y,))
    _, written = cupy.launched[0][4][:2]
    assert written.flags.c_contiguous
    np.testing.assert_array_equal(y, written)


def test_warmup_compiles_every_kernel_and_launches_none(cupy: Any) -> None:
    chosen = plan(resolve("max-unpool", (1, 1, 4), "float32", kernel_shape=2))
    launch.warmup(chosen)
    assert [module["name_expressions"] for module in cupy.modules] == [
        (step.expression,) for step in chosen.launches
    ]
    assert not cupy.launched


def test_warmup_without_a_gpu_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "gpu_reason", lambda: "no card here")
    with pytest.raises(GpupoolError, match="no GPU to compile for: no card here"):
        launch.warmup(plan(resolve("max", (1, 1, 4), "float32", kernel_shape=2)))


def test_an_expression_is_the_kernel_and_its_template() -> None:
    step = Launch("f.cu", "f", ("A<int>", "2"), (), (), (1, 1))
    assert step.expression == "f<A<int>, 2>"

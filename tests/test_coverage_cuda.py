"""Every line of CUDA runs in a test: on the CPU as gcov counts it, or on a GPU by a named test.

    python -m tests.test_coverage_cuda

prints the lines that only a device compiles, and the tests of `pytest -m gpu` that reach them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path

import numpy as np
import pytest

from gpupool.jit import kernel_folder
from gpupool.opset import OPERATORS
from tests import emulator, test_gpu
from tests.combinations import combinations
from tests.conftest import emulator_backend
from tests.cuda_on_cpu import line_coverage, write_coverage
from tests.strategies import Case
from tests.test_kernels import (
    KERNELS,
    Configuration,
    by_blocks,
    compile_ahead,
    distinct,
    far_apart,
    indices_of,
    large,
    narrowly_aligned_indices,
    norms_of_nothing_and_of_too_much,
    sums_of_every_magnitude,
)
from tests.test_sanitizers import (
    align_bad_regions,
    maxima_of_both_halves,
    pool_bad_regions,
    settled,
    subset,
    sums_in_words,
    unpool_bad_positions,
)

pytestmark = pytest.mark.no_cover

REACHED_BY = {
    "widen": test_gpu.test_no_spurious_overflow,
    "narrow": test_gpu.test_no_spurious_overflow,
    "add": test_gpu.test_means_and_norms_of_subnormals,
    "multiply": test_gpu.test_means_and_norms_of_subnormals,
    "multiply_add": test_gpu.test_means_and_norms_of_subnormals,
    "multiply_to_zero": test_gpu.test_sums_of_every_magnitude_are_right_beside_each_other,
    "divide": test_gpu.test_means_and_norms_of_subnormals,
    "prefetch": test_gpu.test_large_windows,
    "reciprocal": test_gpu.test_means_and_norms_of_subnormals,
    "square_root": test_gpu.test_every_combination_equals_the_oracle,
    "rough_square_root": test_gpu.test_every_combination_equals_the_oracle,
    "load_words_or": test_gpu.test_every_combination_equals_the_oracle,
    "load_shared": test_gpu.test_rows_of_staged_planes,
    "store_shared": test_gpu.test_large_windows,
    "pointer": test_gpu.test_rows_of_staged_planes,
    "less": test_gpu.test_the_first_of_equal_maxima_of_large_windows,
    "displaces": test_gpu.test_maxima_of_subnormals_are_bit_exact,
    "maximum_of_pairs": test_gpu.test_maxima_of_subnormals_are_bit_exact,
    "negative": test_gpu.test_means_and_norms_of_subnormals,
    "value": test_gpu.test_every_combination_equals_the_oracle,
    "from": test_gpu.test_every_combination_equals_the_oracle,
    "load": test_gpu.test_large_windows,
    "byte": test_gpu.test_every_combination_equals_the_oracle,
    "add_byte": test_gpu.test_large_windows,
    "pinned": test_gpu.test_every_combination_equals_the_oracle,
    "maximum": test_gpu.test_maxima_of_subnormals_are_bit_exact,
    "least_blocks": test_gpu.test_every_combination_equals_the_oracle,
}
"""For each function with lines that only a device compiles, a test that runs it there."""


@dataclass(frozen=True)
class Line:
    """A line that only a device compiles."""

    file: str
    number: int
    function: str
    text: str


def device_only(folder: Path) -> list[Line]:
    """Return the lines behind ``__CUDA_ARCH__`` of every kernel file."""
    return [line for file in sorted(folder.glob("*.cu*")) for line in _device_only(file)]


def _device_only(file: Path) -> Iterator[Line]:
    inside, function = False, ""
    for number, text in enumerate(file.read_text().splitlines(), 1):
        if found := re.search(r"__device__ .*?(\w+)\(.*\{$", text):
            function = found[1]
        if re.match(r"#if.*__CUDA_ARCH__", text):
            inside = True
        elif re.match(r"#(else|endif)", text):
            inside = False
        elif inside and text.strip():
            yield Line(file.name, number, function, text.strip())


def calls() -> list[Configuration]:
    chosen = [made for op in OPERATORS for made in subset(op, ("float32",), (2,))]
    for op, dtypes, axes in (
        ("AveragePool", ("float32",), 3),
        ("MaxPool", ("float16", "bfloat16", "uint8"), 2),
        ("AveragePool", ("float16", "int8"), 2),
        ("LpPool", ("float64", "bfloat16"), 2),
        ("GlobalMaxPool", ("bfloat16",), 2),
        ("RoiAlign", ("float64",), 2),
    ):
        chosen += subset(op, dtypes, (axes,))
    for made in combinations():
        if (made.op, made.axes) == ("MaxPool", 2) and made.dtype in ("int8", "float16"):
            chosen.append(Configuration(next(made.calls()), "rows"))  # rows of an odd length
    for name in ("overlapping", "long row", "parts, strided", "strips, strided", "volumes"):
        *_, indexed = indices_of(name)
        chosen += [
            Configuration(large(name, "float32", False, indexed, by_blocks(kernel)), kernel)
            for kernel in KERNELS
        ]
    for name, last in (("strips beside each other", False), ("strips of pixels", True)):
        chosen.append(Configuration(large(name, "float16", last, False), "strips"))
    doubles = large("more columns than a tile", "float64", False, True)
    chosen.append(Configuration(doubles, "separable"))
    chosen += [
        Configuration(Case("global_max_pool", (np.ones(shape),), {"channels_last": True}), kernel)
        for shape in ((1, 43, 43, 3), (1, 2, 2, 4))
        for kernel in ("channels", "channels, few workers")
    ]
    long = Case("global_average_pool", (np.ones((1, 1, 40000), np.int8),), {})
    whole_block = Case("global_max_pool", (np.ones((1, 32, 7, 7), np.float16),), {})
    chosen += [Configuration(long), Configuration(whole_block)]
    chosen += [Configuration(far_apart(1e200, 1e-120, 1, p)) for p in (0.005, 2, 2.5)]
    chosen += [
        one for one in sums_of_every_magnitude()
        if one.kernel == "vectors" and one.case.arrays[0].dtype == np.float32
    ]  # fmt: skip
    chosen += [
        one for one in norms_of_nothing_and_of_too_much()
        if one.kernel == "strips" and one.case.arrays[0].dtype == np.float32
    ]  # fmt: skip
    return distinct(chosen)


def test_every_line_that_the_host_compiles_runs(tmp_path, capsys):
    backend = emulator_backend()
    chosen = calls()
    compile_ahead(chosen, build="coverage")
    for configuration in chosen:
        configuration.run(build="coverage")
    narrowly_aligned_indices(build="coverage")
    for in_words in (sums_in_words, maxima_of_both_halves):
        settled(in_words, kernel="vectors", build="coverage")
    with emulator.settings(build="coverage"):
        unpool_bad_positions()
        pool_bad_regions("float32")
        align_bad_regions("float32", "avg")
        for layout, pool in product(("NCHW", "NHWC"), (2, 300)):
            images = np.ones((1, 2 * pool, 2 * pool, 3), np.uint8)
            backend.preprocess(images, pool=pool, mean=0, std=1, layout=layout)
    write_coverage(tmp_path)
    found = line_coverage(tmp_path, kernel_folder())
    with capsys.disabled():
        count = sum(len(file.executed) for file in found.values())
        print(f"\n{count} lines of CUDA run on the host in {len(chosen)} calls")
    assert found.keys() == {file.name for file in kernel_folder().glob("*.cu*")}
    assert {name: sorted(file.missed) for name, file in found.items() if file.missed} == {}


def test_what_covers_no_line_that_others_do_not_is_not_traced(pytestconfig):
    assert sys.gettrace() is None or not pytestconfig.pluginmanager.hasplugin("_cov")


def test_every_line_that_only_a_device_compiles_has_its_gpu_test():
    functions = {line.function for line in device_only(kernel_folder())}
    assert functions == REACHED_BY.keys()
    for test in REACHED_BY.values():
        marks = [mark.name for mark in (test_gpu.pytestmark, *getattr(test, "pytestmark", []))]
        assert "gpu" in marks


def main() -> None:
    lines = device_only(kernel_folder())
    for (file, function), group in groupby(lines, key=lambda line: (line.file, line.function)):
        print(f"{file}: {function}, reached by {REACHED_BY[function].__name__}")
        for line in group:
            print(f"  {line.number:4} {line.text}")
    print(f"{len(lines)} lines only a device compiles, in {len(REACHED_BY)} functions")


if __name__ == "__main__":
    sys.exit(main())

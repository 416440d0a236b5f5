"""The README says what is so: its table, its picture, its commands; its examples are doctests.

``python -m tests.test_readme`` prints the table and writes the picture.
"""

from __future__ import annotations

import re
import shlex
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import gpupool
from gpupool.cli import main
from gpupool.dtypes import DTYPES
from gpupool.onnx import supported

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PICTURE = ROOT / "tests" / "data" / "before-after.png"


def table() -> str:
    """Return the README's table of operators, opsets and dtypes, from gpupool.onnx.supported()."""
    lines = ["| operator | opsets | dtypes by opset | only without `opset` |", "|---|---|---|---|"]
    for operator, group in groupby(supported(), lambda row: row.operator):
        versions = list(group)
        gained, before = [], set[str]()
        for version in versions:
            new = [name for name in version.dtypes if name not in before]
            if new:
                gained.append(f"{version.first_opset}: {', '.join(new)}")
            before |= {*new}
        opsets = ", ".join(str(version.first_opset) for version in versions)
        beyond = ", ".join(versions[-1].beyond) or "-"
        lines.append(f"| {operator} | {opsets} | {'; '.join(gained)} | {beyond} |")
    return "\n".join(lines)


def picture() -> np.ndarray:
    """Return the photograph at half its size beside its maxima over 8 x 8 pixels."""
    image = pytest.importorskip("PIL.Image")
    photograph = np.asarray(image.open(ROOT / "tests" / "data" / "astronaut.png"))[None]
    half = gpupool.average_pool(photograph, 2, strides=2, channels_last=True)[0]
    maxima = gpupool.max_pool(photograph, 8, strides=8, channels_last=True)[0]
    gap = np.full((256, 16, 3), 255, np.uint8)
    return np.concatenate([half, gap, maxima.repeat(4, axis=0).repeat(4, axis=1)], axis=1)


def commands() -> list[str]:
    """Return the shell commands of the first section that has any."""
    return re.findall(r"^```sh\n(.*?)\n```$", README, re.M | re.S)


def test_table_is_that_of_the_code() -> None:
    assert table() in README, f"the table of README.md should be\n{table()}"


def test_table_names_every_dtype() -> None:
    assert all(row.name in table() for row in DTYPES)


def test_picture_is_what_gpupool_computes() -> None:
    image = pytest.importorskip("PIL.Image")
    np.testing.assert_array_equal(np.asarray(image.open(PICTURE)), picture())
    assert PICTURE.relative_to(ROOT).as_posix() in README


def test_first_command_pools_the_photograph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    first = " ".join(commands()[0].replace("\\\n", " ").split())
    program, _, arguments = first.rpartition("&& ")[2].partition(" ")
    assert program == ".venv/bin/gpupool"
    source = tmp_path / "tests" / "data" / "astronaut.png"
    source.parent.mkdir(parents=True)
    source.write_bytes((ROOT / "tests" / "data" / "astronaut.png").read_bytes())
    monkeypatch.chdir(tmp_path)
    words = shlex.split(arguments)
    assert main(words) == 0
    pooled = np.asarray(image.open(words[2]))
    photograph = np.asarray(image.open(source))[None]
    right = gpupool.average_pool(photograph, 8, strides=8, channels_last=True)[0]
    np.testing.assert_array_equal(pooled, right)
    assert Path(words[2]).parent == Path("tests/data")
    assert words[2] in (ROOT / ".gitignore").read_text().splitlines()


def test_second_command_is_the_one_that_ci_runs() -> None:
    install, _, run = commands()[1].partition(" && ")
    assert install == ".venv/bin/pip install -q '.[test]'"
    assert run.startswith(".venv/bin/pytest")
    assert run.removeprefix(".venv/bin/") in (ROOT / ".ci" / "run").read_text()


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)|src=\"([^\":]+)\"", README)
    assert links
    for link in filter(None, (name for pair in links for name in pair)):
        assert (ROOT / link).exists(), link


if __name__ == "__main__":
    from PIL import Image

    Image.fromarray(picture()).save(PICTURE, optimize=True)
    print(table())

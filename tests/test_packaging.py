"""What is built: the wheel and the sdist are whole, and every way to install finds the kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KERNELS = sorted(path.name for path in (ROOT / "kernels").glob("*.cu*"))
MODULES = sorted(path.name for path in (ROOT / "gpupool").glob("*.py"))


def python(*arguments: str, interpreter: str = sys.executable, cwd: Path, path: str = "") -> str:
    """Run an interpreter and return what it prints."""
    done = subprocess.run(
        [interpreter, "-W", "error", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def build(kind: str, source: Path, to: Path) -> Path:
    """Build "wheel", "editable" or "sdist" by the backend that pyproject.toml names."""
    call = f"import hatchling.build as b; print(b.build_{kind}({str(to)!r}))"
    return to / python("-c", call, cwd=source).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def extract(sdist: Path, to: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(to, filter="data")
    (folder,) = to.iterdir()
    return folder


def fresh_environment(wheel: Path, to: Path) -> str:
    """Install a wheel into a new virtual environment that borrows this one's dependencies."""
    python("-m", "venv", "--without-pip", str(to), cwd=to.parent)
    interpreter = str(to / ("Scripts" if os.name == "nt" else "bin") / "python")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(python("-c", ask, interpreter=interpreter, cwd=to))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "zz-dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return interpreter


FIND_KERNELS = """
import gpupool, gpupool.jit
folder = gpupool.jit.kernel_folder()
print(gpupool.__file__, folder, *sorted(p.name for p in folder.glob("*.cu*")), sep="\\n")
"""


def found(output: str) -> tuple[Path, Path, list[str]]:
    module, folder, *kernels = output.splitlines()
    return Path(module).parent, Path(folder), kernels


def test_wheel_carries_package_kernels_and_licence(wheel: Path) -> None:
    files = contents(wheel)
    for name in (*MODULES, "py.typed"):
        assert files[f"gpupool/{name}"] == (ROOT / "gpupool" / name).read_bytes()
    assert KERNELS
    for name in KERNELS:
        assert files[f"gpupool/kernels/{name}"] == (ROOT / "kernels" / name).read_bytes()
    (licence,) = (text for name, text in files.items() if name.endswith("licenses/LICENSE"))
    assert licence == (ROOT / "LICENSE").read_bytes()


def test_wheel_carries_nothing_else(wheel: Path) -> None:
    beside = {name.split("/")[0] for name in contents(wheel)} - {"gpupool"}
    assert [name.endswith(".dist-info") for name in beside] == [True]
    assert not [name for name in contents(wheel) if "__pycache__" in name]


def test_sdist_carries_the_sources(sdist: Path, tmp_path: Path) -> None:
    folder = extract(sdist, tmp_path)
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "gpupool/py.typed"):
        assert (folder / name).read_bytes() == (ROOT / name).read_bytes()
    assert sorted(path.name for path in (folder / "kernels").glob("*.cu*")) == KERNELS
    assert sorted(path.name for path in (folder / "gpupool").glob("*.py")) == MODULES
    assert (folder / "tests" / "conftest.py").exists()


def test_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    folder = extract(sdist, tmp_path / "source")
    assert contents(build("wheel", folder, tmp_path)) == contents(wheel)


def test_source_checkout_finds_the_kernels(tmp_path: Path) -> None:
    output = python("-c", FIND_KERNELS, cwd=tmp_path, path=str(ROOT))
    assert found(output) == (ROOT / "gpupool", ROOT / "kernels", KERNELS)


def test_editable_install_finds_the_kernels_of_the_checkout(tmp_path: Path) -> None:
    wheel = build("editable", ROOT, tmp_path)
    interpreter = fresh_environment(wheel, tmp_path / "environment")
    output = python("-c", FIND_KERNELS, interpreter=interpreter, cwd=tmp_path)
    assert found(output) == (ROOT / "gpupool", ROOT / "kernels", KERNELS)


def test_wheel_in_a_fresh_environment_finds_its_kernels(wheel: Path, tmp_path: Path) -> None:
    interpreter = fresh_environment(wheel, tmp_path / "environment")
    package, folder, kernels = found(
        python("-c", FIND_KERNELS, interpreter=interpreter, cwd=tmp_path)
    )
    assert package.is_relative_to(tmp_path)
    assert (folder, kernels) == (package / "kernels", KERNELS)


def test_wheel_in_a_fresh_environment_pools(wheel: Path, tmp_path: Path) -> None:
    interpreter = fresh_environment(wheel, tmp_path / "environment")
    call = "import numpy as np, gpupool; print(gpupool.max_pool(np.eye(4)[None, None], 4))"
    assert python("-c", call, interpreter=interpreter, cwd=tmp_path) == "[[[[1.]]]]"
    command = ("-m", "gpupool", "shape", "max", "1x1x4x4", "--kernel", "2")
    assert python(*command, interpreter=interpreter, cwd=tmp_path).startswith("1x1x3x3")


def test_the_top_level_holds_nothing_else() -> None:
    """What an experiment leaves behind would be committed with the rest, and its paths with it."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout: what is committed is not known")
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    top = {line.split("/")[0] for line in listed.splitlines()}
    folders = {"gpupool", "kernels", "tests", "bench"}
    files = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
    assert {name for name in top if not name.startswith(".")} == folders | files


def test_without_hypothesis_the_tests_say_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "hypothesis.py").write_text("raise ImportError('not installed')")
    options = ("-q", "-p", "no:hypothesispytest", "tests/test_window.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "the tests need hypothesis: pip install" in done.stderr

"""Why the GPU is off: told for every way in which a part of the platform can be missing."""

import ctypes
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpupool import device

ROOT = Path(__file__).parent.parent
PIP12 = 'pip install "cupy-cuda12x>=14.2" "cuda-toolkit[nvrtc,cudart]==12.*"'


@pytest.fixture(autouse=True)
def asked_anew():
    """Answers are cached for the life of a process; every test is a process of its own."""
    device.fault.cache_clear()
    device._import_cupy.cache_clear()
    yield
    device.fault.cache_clear()
    device._import_cupy.cache_clear()


@pytest.fixture
def machine(monkeypatch):
    """A machine where everything is in place; the tests take pieces away."""

    def use(name, value):
        monkeypatch.setattr(device, name, value)

    properties = {
        "name": b"NVIDIA H200", "major": 9, "minor": 0, "multiProcessorCount": 132,
        "totalGlobalMem": 150_000_000_000,
    }  # fmt: skip
    runtime = SimpleNamespace(getDeviceCount=lambda: 1, getDeviceProperties=lambda _: properties)
    nvrtc = SimpleNamespace(getVersion=lambda: (12, 9))
    stream = SimpleNamespace(synchronize=lambda: None)
    cuda = SimpleNamespace(
        runtime=runtime,
        nvrtc=nvrtc,
        Device=lambda: SimpleNamespace(id=0),
        get_current_stream=lambda: stream,
    )
    fake = SimpleNamespace(
        __version__="14.2.0", cuda=cuda, asarray=lambda x: ("on the GPU", x), asnumpy=lambda x: x[1]
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    use("driver_version", lambda: (12, 9))
    use("header_folder", lambda: "/cuda/include")
    use("cupy_distributions", lambda: {"cupy-cuda12x": "14.2.0"})
    return SimpleNamespace(cupy=fake, runtime=runtime, nvrtc=nvrtc, use=use)


def raising(error):
    def call(*_):
        raise error

    return call


@pytest.mark.usefixtures("machine")
def test_everything_in_place():
    assert device.gpu_available()
    assert device.gpu_reason() is None
    assert device.fault() is None
    assert device.current_name() == "NVIDIA H200"
    assert device.to_host(device.to_device("x")) == "x"
    device.synchronize()
    facts = device.facts()
    assert facts["gpu"] == {"available": True, "reason": None, "remedy": None}
    assert facts["driver"] == facts["nvrtc"] == "12.9"
    assert facts["devices"] == [
        {"index": 0, "name": "NVIDIA H200", "compute_capability": "9.0", "multiprocessors": 132,
         "memory_bytes": 150_000_000_000}
    ]  # fmt: skip


def test_without_cupy(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    machine.use("cupy_distributions", dict)
    assert device.fault() == device.Fault("CuPy is not installed", PIP12)
    assert not device.gpu_available()
    assert device.gpu_reason() == f"CuPy is not installed; {PIP12}"
    facts = device.facts()
    assert facts["cupy"]["distributions"] == {}
    assert facts["cupy"]["version"] is None
    assert facts["cupy"]["error"].startswith("ModuleNotFoundError: ")
    assert facts["devices"] == []
    assert facts["nvrtc"] is None


def test_without_cupy_the_driver_decides_the_cuda_version(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    machine.use("cupy_distributions", dict)
    machine.use("driver_version", lambda: (13, 0))
    assert device.fault().remedy == PIP12.replace("12", "13")


def test_without_cupy_and_driver(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    machine.use("cupy_distributions", lambda: {"cupy": "a source build"})
    machine.use("driver_version", lambda: None)
    assert "and there is no NVIDIA driver" in device.fault().reason
    assert device.fault().remedy == PIP12


BROKEN = [
    ImportError("libcublas.so.12: cannot open"),
    ValueError("x"),
    SystemError("y"),
    AttributeError(),
]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("error", BROKEN, ids=lambda error: type(error).__name__)
def test_a_broken_cupy_is_reinstalled(monkeypatch, error):
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.setattr(device.importlib, "import_module", raising(error))
    found = device.fault()
    assert found.reason == f"CuPy cannot be imported ({type(error).__name__}: {error})"
    assert found.remedy == f"pip uninstall -y cupy-cuda12x && {PIP12}"
    assert not device.gpu_available()


@pytest.mark.usefixtures("machine")
def test_a_missing_dependency_of_cupy_is_not_a_missing_cupy(monkeypatch):
    error = ModuleNotFoundError("No module named 'fastrlock'", name="fastrlock")
    monkeypatch.setattr(device.importlib, "import_module", raising(error))
    assert "cannot be imported" in device.fault().reason


@pytest.mark.usefixtures("machine")
def test_an_unwritable_cache_folder_is_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    error = PermissionError(13, "Permission denied", str(tmp_path / "cache"))
    monkeypatch.setattr(device.importlib, "import_module", raising(error))
    assert device.fault().remedy.startswith("set CUPY_CACHE_DIR to a folder that you can write")


def test_a_real_cupy_with_an_unwritable_home():
    """design.md, facts about the platform, 1: an OSError, not an ImportError."""
    pytest.importorskip("cupy")
    code = "import gpupool; print(gpupool.gpu_available(), gpupool.gpu_reason(), sep='|')"
    kept = {k: v for k, v in os.environ.items() if k != "CUPY_CACHE_DIR"}
    where = {"HOME": "/proc/none", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=kept | where, capture_output=True, text=True, check=True
    )
    available, reason = run.stdout.strip().split("|")
    assert available == "False"
    assert "CuPy cannot be imported (FileNotFoundError" in reason
    assert "set CUPY_CACHE_DIR" in reason
    assert run.stderr == ""


def test_an_old_cupy_is_upgraded(machine):
    machine.cupy.__version__ = "13.6.0"
    assert device.fault() == device.Fault("CuPy 13.6.0 is too old, 14.2 is needed", PIP12)


def test_without_a_driver(machine):
    machine.use("driver_version", lambda: None)
    assert "no NVIDIA driver" in device.fault().reason


def test_a_driver_older_than_this_cupy(machine):
    machine.use("cupy_distributions", lambda: {"cupy-cuda13x": "14.2.0"})
    found = device.fault()
    assert found.reason == "the NVIDIA driver supports CUDA 12.9 and this CuPy needs 13.0"
    assert found.remedy == f"pip uninstall -y cupy-cuda13x && {PIP12}"
    machine.use("driver_version", lambda: (11, 4))
    device.fault.cache_clear()
    assert device.fault().remedy == "install a newer NVIDIA driver"


def test_a_runtime_that_does_not_start(machine):
    machine.runtime.getDeviceCount = raising(RuntimeError("cudaErrorUnknown"))
    assert device.fault().reason == "CUDA does not start (cudaErrorUnknown)"
    assert device.devices() == []


def test_without_a_device(machine):
    machine.runtime.getDeviceCount = lambda: 0
    assert device.fault() == device.Fault("CUDA sees no device", "look at CUDA_VISIBLE_DEVICES")


def test_without_the_compiler(machine):
    """design.md, facts about the platform, 2: the wheels bring no NVRTC and no cuda_fp16.h."""
    machine.nvrtc.getVersion = raising(RuntimeError("libnvrtc.so.12"))
    found = device.fault()
    assert found.reason == "CUDA's run-time compiler NVRTC is not installed"
    assert found.remedy == 'pip install "cuda-toolkit[nvrtc,cudart]==12.*"'


def test_without_the_headers(machine):
    machine.use("header_folder", lambda: None)
    assert "cuda_fp16.h" in device.fault().reason


def test_headers_are_found_by_the_file(monkeypatch, tmp_path):
    finder = SimpleNamespace(find_nvidia_header_directory=lambda _: str(tmp_path))
    monkeypatch.setattr(device.importlib, "import_module", lambda _: finder)
    assert device.header_folder() is None
    (tmp_path / "cuda_fp16.h").write_text("")
    assert device.header_folder() == str(tmp_path)
    monkeypatch.setattr(device.importlib, "import_module", raising(ImportError()))
    assert device.header_folder() is None


def test_a_real_cupy_reports_its_compiler():
    """design.md, facts about the platform, 3: NVRTC needs no driver."""
    cupy = pytest.importorskip("cupy")
    found = device.nvrtc_version(cupy)
    if found is None:
        pytest.skip("this CuPy has no NVRTC")
    assert found >= (12, 0)


def test_two_cupy_distributions_are_a_warning(monkeypatch):
    def distribution(name):
        return SimpleNamespace(metadata={"Name": name}, version="14.2.0")

    names = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda12x", "cupyx-tools", "numpy", None)
    found = [distribution(name) for name in names]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
    assert device.cupy_distributions() == {"cupy-cuda12x": "14.2.0", "cupy-cuda13x": "14.2.0"}
    (warning,) = [w for w in device.facts()["warnings"] if "distributions" in w]
    assert warning.startswith("2 CuPy distributions share one package folder")
    assert f"pip uninstall -y cupy-cuda12x cupy-cuda13x && {PIP12}" in warning


@pytest.mark.parametrize(
    ("number", "failed", "version"),
    [(12090, 0, (12, 9)), (13000, 0, (13, 0)), (0, 0, None), (12090, 35, None)],
)
def test_the_driver_is_asked_without_cupy(monkeypatch, number, failed, version):
    def get_version(pointer):
        pointer._obj.value = number
        return failed

    library = SimpleNamespace(cuDriverGetVersion=get_version)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    assert device.driver_version() == version


def test_no_driver_library_is_no_driver(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", raising(OSError("libcuda.so.1: cannot open")))
    assert device.driver_version() is None


def test_the_cache_folder_is_cupys(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    assert device.cache_folder() == tmp_path / ".cupy" / "kernel_cache"
    monkeypatch.setenv("CUPY_CACHE_DIR", "/elsewhere")
    assert device.cache_folder() == Path("/elsewhere")


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="POSIX permissions")
def test_a_cache_that_others_can_write_to_is_a_warning(monkeypatch, tmp_path):
    folder = tmp_path / "parent" / "cache"
    assert device.is_private(folder)  # not there yet, and nobody else can make it
    folder.mkdir(parents=True, mode=0o700)
    assert device.is_private(folder)
    folder.parent.chmod(0o777)
    assert not device.is_private(folder)  # others could rename it and put their own in its place
    folder.parent.chmod(0o1777)
    assert device.is_private(folder)
    folder.chmod(0o1770)
    assert not device.is_private(folder)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(folder))
    facts = device.facts()
    assert facts["cache"] == {"path": str(folder), "exists": True, "private": False}
    assert [w for w in facts["warnings"] if "other users can write to the kernel cache" in w]


def test_a_cache_of_another_user_is_not_private(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    if tmp_path.stat().st_uid:
        assert not device.is_private(tmp_path)
    else:
        assert device.is_private(tmp_path)  # root may write everywhere anyway


def test_privacy_is_unknown_without_posix(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "getuid")
    assert device.is_private(tmp_path) is None


def test_the_facts_of_this_machine_are_json():
    facts = device.facts()
    assert json.loads(json.dumps(facts)) == facts
    assert re.fullmatch(r"2\.\d+\.\d+.*", facts["packages"]["numpy"])
    assert facts["gpu"]["available"] == device.gpu_available()
    assert facts["gpu"]["available"] or facts["gpu"]["remedy"]


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(device, "_COMPANIONS", ("numpy", "gpupool-has-no-such-companion"))
    assert device.facts()["packages"]["gpupool-has-no-such-companion"] is None


def test_the_pip_lines_are_the_extras_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for major in (12, 13):
        wanted = " ".join(f'"{requirement}"' for requirement in extras[f"cuda{major}"])
        assert device._pip_line(major) == f"pip install {wanted}"


def test_importing_gpupool_imports_nothing_heavy():
    code = (
        "import sys, gpupool, gpupool.cli; "
        "print([m for m in ('cupy', 'PIL', 'rich', 'onnx', 'torch') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.gpu
def test_a_real_gpu():
    reason = device.gpu_reason()
    if reason is not None:
        pytest.skip(reason)
    assert device.devices()
    assert device.current_name()

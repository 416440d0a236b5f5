"""The architecture as tests: imports point down, three modules reach CuPy, import is fast."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import gpupool

PACKAGE = Path(gpupool.__file__).parent
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
MODULES = sorted(FILES)

ORDER = (
    "errors",
    "bounds",
    "validate",
    "dtypes",
    "window",
    "opset",
    "problem",
    "arrays",
    "values",
    "oracle",
    "planner.launches",
    "planner.banks",
    "planner.geometry",
    "planner.parameters",
    "planner.specialised",
    "planner.window",
    "planner.tile",
    "planner.tile_cost",
    "planner.rows",
    "planner.staged",
    "planner.rows_staged",
    "planner.separable_planes",
    "planner.separable",
    "planner.separable_vectors",
    "planner.strips",
    "planner.plane",
    "planner.plane_staged",
    "planner.channels",
    "planner.unpool",
    "planner.roi",
    "planner.preprocess",
    "planner",
    "device",
    "jit",
    "launch",
    "interchange",
    "planned",
    "ops",
    "placement",
    "preprocessing",
    "tolerance",
    "peers",
    "verify",
    "files",
    "images",
    "terminal",
    "quantised",
    "nodes",
    "model",
    "session",
    "onnx",
    "onnx_backend",
    "run",
    "__init__",
    "torch",
    "dask",
    "stores",
    "folder",
    "cli",
    "__main__",
)
"""Every module; each imports only from those above it."""

MAY_IMPORT_CUPY = {"jit", "launch", "device"}
HEAVY = "cupy", "PIL", "rich", "onnx", "onnxruntime", "torch", "jax", "dask", "zarr", "ml_dtypes"


def imports(module: str) -> set[str]:
    """Return the dotted names that a module imports, anywhere in its text."""
    found = set()
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return found


def own(module: str) -> set[str]:
    """Return the modules of gpupool that a module imports; the package itself is ``__init__``."""
    paths = [name.split(".") for name in imports(module)]
    inner = [path[1:] for path in paths if path[0] == "gpupool"]
    nested = [(".".join(path[:2]), *path[:1]) for path in inner]
    return {next((name for name in names if name in MODULES), "__init__") for names in nested}


def test_every_module_has_its_place():
    assert sorted(ORDER) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    above = set(ORDER[: ORDER.index(module)])
    assert own(module) <= above


@pytest.mark.parametrize("module", sorted(set(MODULES) - MAY_IMPORT_CUPY))
def test_only_jit_launch_and_device_import_cupy(module):
    assert not [name for name in imports(module) if name.partition(".")[0] == "cupy"]


def test_all_is_complete_and_sorted():
    public = {name for name in vars(gpupool) if not name.startswith("_") and name not in MODULES}
    assert set(gpupool.__all__) == public | {"__version__"}
    assert gpupool.__all__ == sorted(gpupool.__all__)
    assert all(hasattr(gpupool, name) for name in gpupool.__all__)


def test_every_public_function_has_a_docstring_with_an_example():
    functions = [getattr(gpupool, name) for name in gpupool.__all__ if name[0].islower()]
    assert functions
    for function in functions:
        assert ">>>" in function.__doc__, function.__name__


PROBE = """
import json, sys, time
import numpy
start = time.process_time()  # of this process alone: other tests keep the machine busy
import gpupool
print(json.dumps([time.process_time() - start, sorted(sys.modules)]))
"""


@pytest.fixture(scope="module")
def fresh_imports():
    def once() -> tuple[float, list[str]]:
        command = [sys.executable, "-c", PROBE]
        done = subprocess.run(
            command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True
        )
        seconds, modules = json.loads(done.stdout)
        return seconds, modules

    return [once() for _ in range(3)]


def test_import_takes_at_most_300_ms_beyond_numpy(fresh_imports):
    assert min(seconds for seconds, _ in fresh_imports) < 0.3


def test_bfloat16_needs_no_other_import():
    call = "gpupool.plan('MaxPool', (1, 1, 4, 4), 'bfloat16', kernel_shape=2)"
    command = [sys.executable, "-c", f"import gpupool; print({call}.problem.dtype.numpy)"]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "bfloat16\n"


@pytest.mark.parametrize("heavy", HEAVY)
def test_import_loads_nothing_heavy(fresh_imports, heavy):
    _, modules = fresh_imports[0]
    assert "gpupool.ops" in modules
    assert heavy not in modules

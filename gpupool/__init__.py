"""gpupool: the ONNX pooling operators on NVIDIA GPUs, with a NumPy oracle that decides.

Imported by name, for what they need: ``gpupool.torch``, ``gpupool.dask``, ``gpupool.onnx``,
``gpupool.onnx_backend`` and ``gpupool.quantised``.
"""

from gpupool.device import gpu_available, gpu_reason
from gpupool.errors import GpupoolError, GpupoolMemoryError, GpupoolTypeError, GpupoolValueError
from gpupool.ops import (
    average_pool,
    global_average_pool,
    global_lp_pool,
    global_max_pool,
    lp_pool,
    max_pool,
    max_roi_pool,
    max_unpool,
    plan,
    roi_align,
    warmup,
)
from gpupool.preprocessing import preprocess
from gpupool.problem import output_shape

__version__ = "0.1.0"

__all__ = [
    "GpupoolError",
    "GpupoolMemoryError",
    "GpupoolTypeError",
    "GpupoolValueError",
    "__version__",
    "average_pool",
    "global_average_pool",
    "global_lp_pool",
    "global_max_pool",
    "gpu_available",
    "gpu_reason",
    "lp_pool",
    "max_pool",
    "max_roi_pool",
    "max_unpool",
    "output_shape",
    "plan",
    "preprocess",
    "roi_align",
    "warmup",
]

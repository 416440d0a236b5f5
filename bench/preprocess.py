"""gpupool.preprocess beside the composed torch steps: ``python -m bench.preprocess``.

On a CUDA device where torch and gpupool have one, timed by events; on the CPU otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

import gpupool

from .cpu import take_turns
from .peers import module

CASES = (((8, 2160, 3840, 3), 4), ((8, 1080, 1920, 3), 2), ((64, 256, 256, 3), 1))
"""Images and pool: 4K and HD frames shrunk, and a batch of thumbnails as it is."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
REPEATS = 50


def composed(torch: Any, images: Any, pool: int) -> Any:
    """Compute what gpupool.preprocess does by torch's functions, one after the other."""
    mean, std = (torch.tensor(n, device=images.device).reshape(1, 3, 1, 1) for n in (MEAN, STD))
    pooled = torch.nn.functional.avg_pool2d(images.permute(0, 3, 1, 2).float(), pool)
    return pooled.mul(1 / 255).sub(mean).div(std).half().contiguous()


def measure(torch: Any, shape: tuple[int, ...], pool: int, device: str) -> dict[str, Any]:
    """Return the median seconds of both, after comparing what they compute."""
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    images = torch.from_numpy(pixels).to(device)

    def ours() -> Any:
        return gpupool.preprocess(images, pool=pool, mean=MEAN, std=STD)

    def theirs() -> Any:
        return composed(torch, images, pool)

    result = ours()
    # torch adds pixels in float32 and multiplies by the reciprocal of the count: two steps of it
    # away, where the scaled mean is up to 2.7, may round to the next float16.
    torch.testing.assert_close(result, theirs(), rtol=2**-10, atol=2**-10)
    calls = {"gpupool": ours, "torch": theirs}
    times = _by_events(torch, calls) if device == "cuda" else take_turns(calls)
    median = {name: float(np.median(seconds)) for name, seconds in times.items()}
    moved = prod(shape) + result.numel() * 2
    return {"shape": shape, "pool": pool, "gb_s": moved / median["gpupool"] / 1e9, **median}


def _by_events(torch: Any, calls: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) / 1e3)
    return {name: seconds[REPEATS // 5 :] for name, seconds in times.items()}


def main() -> None:
    """Print one line for each case."""
    torch = module("torch")
    device = "cuda" if torch.cuda.is_available() and gpupool.gpu_available() else "cpu"
    for shape, pool in CASES:
        row = measure(torch, shape, pool, device)
        print(
            f"{device} {'x'.join(map(str, shape))} / {pool}: gpupool {row['gpupool'] * 1e3:.3f} ms "
            f"({row['gb_s']:.1f} GB/s), torch {row['torch'] * 1e3:.3f} ms, "
            f"{row['torch'] / row['gpupool']:.2f} times as long"
        )


if __name__ == "__main__":
    main()

"""Where work is done: what device "auto", "cpu" and "gpu" mean, for functions and commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpupool import device, validate
from gpupool.errors import GpupoolError

if TYPE_CHECKING:
    from argparse import ArgumentParser

DEVICES = ("auto", "cpu", "gpu")
"""What may be asked for: auto takes the GPU where there is one."""


def add_option(parser: ArgumentParser, of: str = "") -> None:
    """Add ``--device`` to a command; ``of`` says whose device it is."""
    rule = "auto, the default, takes the GPU where there is one"
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help=f"of {of}; {rule}" if of else rule
    )


def on_gpu(name: str) -> bool:
    """Return whether ``device=name`` means the GPU; "gpu" is an error where there is none.

    >>> on_gpu("cpu")
    False
    """
    if validate.choice("device", name, DEVICES) == "cpu":
        return False
    reason = device.gpu_reason()
    if reason is not None and name == "gpu":
        raise GpupoolError(f"device = 'gpu': {reason}")
    return reason is None

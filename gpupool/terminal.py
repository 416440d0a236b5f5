"""What the user writes and sees: values as text, escaped lines in colour, exit statuses."""

from __future__ import annotations

import functools
import importlib
import os
import re
import signal
import sys
import threading
import traceback
from argparse import ArgumentTypeError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

from gpupool.errors import GpupoolError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

EXIT_FAILED, EXIT_USAGE = 1, 2
EXIT_SIGNAL = 128  # and the signal's number, as shells have it
EXIT_UNREAD = EXIT_SIGNAL + 13  # of SIGPIPE, which ends other commands there

INTERRUPTS = {
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
}
"""What ^C, ``timeout``, ``docker stop`` and a terminal that closes send; not each is everywhere."""


class UsageError(GpupoolError):
    """The command line contradicts itself, whatever the files hold."""


def printable(text: str) -> str:
    r"""Return text with every control character escaped, so that a name cannot steer a terminal.

    >>> print(printable("a\x1b[31m\nb"))
    a\x1b[31m\nb
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def by_x(sizes: Sequence[int]) -> str:
    """Write a shape as the command line has it.

    >>> by_x((1, 64, 56, 56))
    '1x64x56x56'
    """
    return "x".join(map(str, sizes))


def integers(text: str) -> int | list[int]:
    """Return one integer, or a list of them from text with commas.

    >>> integers("3"), integers("3,5")
    (3, [3, 5])
    """
    return _one_or_more(text, int, "an integer", "integers")


def numbers(text: str) -> float | list[float]:
    """Return one number, or a list of them from text with commas.

    >>> numbers("0.5"), numbers("0.5,0.25")
    (0.5, [0.5, 0.25])
    """
    return _one_or_more(text, float, "a number", "numbers")


def _one_or_more(text: str, read: Callable[[str], T], one: str, more: str) -> T | list[T]:
    try:
        found = [read(part) for part in text.split(",")]
    except ValueError:
        message = f"{text!r} is not {one} or a comma-separated list of {more}"
        raise ArgumentTypeError(message) from None
    return found if "," in text else found[0]


_NEGATIVE = re.compile(r"-([0-9.][0-9.e+-]*|inf|nan)(,[^,]+)*", re.IGNORECASE)


def joined(words: Sequence[str]) -> list[str]:
    """Return a command line with numbers that begin with a minus as part of their option.

    argparse takes lists of them, and any with an exponent, for options of their own.

    >>> joined(["--mean", "-1,0.5,-1e-3", "--std", "1", "--scale", "-1E-3"])
    ['--mean=-1,0.5,-1e-3', '--std', '1', '--scale=-1E-3']
    """
    found: list[str] = []
    for word in words:
        if _NEGATIVE.fullmatch(word) and found and re.fullmatch("--[a-z-]+", found[-1]):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def say(text: str, style: str = "none") -> None:
    """Print one escaped line on stderr, in colour where that is a terminal and rich is there.

    It is a courtesy: where stderr is closed or takes no more, the work goes on.
    """
    line = printable(text)
    try:
        if console := _console():
            text = importlib.import_module("rich.text").Text(line, style)
            console.print(text, soft_wrap=True)
        elif sys.stderr:
            print(line, file=sys.stderr)
    except OSError:
        _abandon(sys.stderr)


def flush() -> None:
    """Write out what stdout holds back; end where that fails, quietly if nobody reads any more."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError as error:
        _abandon(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(EXIT_UNREAD) from None
        error.filename = "stdout"
        complain(error, debug=False)
        raise SystemExit(EXIT_FAILED) from None


def _abandon(stream: TextIO) -> None:
    """Lead a stream nowhere: Python would try once more to write what it holds, and complain."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def progress(items: Sequence[T], verb: str) -> Iterator[T]:
    """Yield the items, under a progress bar where stderr is a terminal and rich is there."""
    left = iter(items)
    if console := _console():
        rich = importlib.import_module("rich.progress")
        with suppress(OSError):  # of a terminal that has gone
            yield from rich.track(left, verb, len(items), console=console, transient=True)
    yield from left


def _console() -> Any:
    """Return rich's console on stderr, or None where nobody watches or rich is not installed."""
    return _rich_console() if sys.stderr and sys.stderr.isatty() else None


@functools.cache
def _rich_console() -> Any:
    """Return the one console: only it can print a line above the progress bar that it shows."""
    try:
        return importlib.import_module("rich.console").Console(stderr=True)
    except ImportError:
        return None


def complain(error: BaseException, *, debug: bool, about: str = "") -> None:
    """Say in one line what went wrong, after the traceback where that is asked for."""
    if debug:
        for line in "".join(traceback.format_exception(error)).splitlines():
            say(line)
    reason = _reason(error)
    if about not in reason:
        reason = f"{about}: {reason}"
    say(f"gpupool: error: {reason}", "red")


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return "; ".join([str(error) or "out of memory", *getattr(error, "__notes__", ())])
    if isinstance(error, GpupoolError | OSError):
        return str(error)
    return f"{type(error).__name__}: {error} (unexpected: --debug shows where)"


# Running a command


def add_debug(parser: ArgumentParser) -> None:
    """Add the option that ``guarded`` reads."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


@contextmanager
def usage() -> Iterator[None]:
    """Make what is refused of an option's own value bad usage.

    >>> with usage():
    ...     raise GpupoolError("threads = 0")
    Traceback (most recent call last):
    gpupool.terminal.UsageError: threads = 0
    """
    try:
        yield
    except GpupoolError as error:
        raise UsageError(str(error)) from error


def guarded(run: Callable[[Namespace], int], args: Namespace) -> int:
    """Run a command and return its exit status; whatever ends it is said in one line.

    An error's status is ``args.failed`` where the command's arguments set that.
    """
    try:
        with _signals_interrupt():
            return int(run(args))
    except KeyboardInterrupt as interrupt:
        say("gpupool: interrupted")
        number: int = interrupt.args[0] if interrupt.args else signal.SIGINT
        return EXIT_SIGNAL + number
    except BrokenPipeError:  # what read stdout has gone, as `head` does
        return EXIT_UNREAD
    except Exception as error:
        complain(error, debug=args.debug)
        usual: int = getattr(args, "failed", EXIT_FAILED)
        return EXIT_USAGE if isinstance(error, UsageError) else usual


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let the signals that would end the process at once interrupt it as ^C does: it clears up.

    Who ignores one, as nohup does, or handles it, keeps that; only the main thread may set any.
    """
    main = threading.current_thread() is threading.main_thread()
    ours = [one for one in INTERRUPTS if main and signal.getsignal(one) == signal.SIG_DFL]

    def interrupt(number: int, _: object) -> NoReturn:
        for one in ours:
            signal.signal(one, signal.SIG_IGN)  # the same may come twice, as from timeout
        raise KeyboardInterrupt(number)

    try:
        for one in ours:
            signal.signal(one, interrupt)
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)

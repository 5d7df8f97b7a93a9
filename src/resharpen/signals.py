"""Signal handling: Ctrl-C ends with exit code 130, TERM with 143, without a traceback and without loss of work.

Outside training the process ends immediately, because an exception raised during an import could be swallowed or shown
as a traceback. During training a first signal requests an orderly stop, and USR1 requests saving all states now.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

end_process = os._exit
"""Ends this process immediately, also while `os._exit` is replaced for user code (`guard.py`)."""
STOPPING = (signal.SIGINT, signal.SIGTERM)
SAVING = [signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []  # not on Windows


@contextlib.contextmanager
def end_at_once() -> Iterator[None]:
    """Outside training: a signal ends the process. There is nothing to save, so USR1 is ignored until it has ended."""
    for number in SAVING:
        signal.signal(number, signal.SIG_IGN)
    with _handling(dict.fromkeys(STOPPING, _end)):
        yield


class Orderly:
    """Requests made by signals."""

    number = 0
    """The signal that requested a stop, or 0."""
    saves = 0
    """Number of requests to save."""

    def is_stopping(self) -> bool:
        return self.number != 0

    def stop(self, number: int, _frame: object) -> None:
        if self.number:
            _end(number)
        self.number = number
        say("stopping after the current chunk; press Ctrl-C again to end immediately\n")

    def save(self, _number: int, _frame: object) -> None:
        self.saves += 1


@contextlib.contextmanager
def orderly(asked: Orderly | None = None) -> Iterator[Orderly]:
    """During training: a first signal requests a stop. A second one ends the process, losing seconds of work."""
    asked = asked or Orderly()
    with _handling(dict.fromkeys(STOPPING, asked.stop) | dict.fromkeys(SAVING, asked.save)):
        yield asked


def say(text: str) -> None:
    """Write to standard error from a signal handler, which may have interrupted a print."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


def _end(number: int, _frame: object = None) -> NoReturn:
    with contextlib.suppress(OSError):
        if os.isatty(1):
            os.write(1, b"\x1b[?25h")  # a live view hides the cursor
    end_process(128 + number)


@contextlib.contextmanager
def _handling(handlers: Mapping[Any, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # others cannot set handlers
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Signals mean the same at every moment: Ctrl-C ends with 130, TERM with 143, without a traceback and without loss.

Where nothing would be lost the process ends at once, in the middle of an import, too: an exception that is thrown there
would be swallowed or shown by whoever is importing. While models are trained a first signal asks for an orderly stop,
and USR1 for saving every state now.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

end_process = os._exit
"""Ends this process at once, also while user code runs, which has no `os._exit` of its own: see `guard.py`."""
STOPPING = (signal.SIGINT, signal.SIGTERM)
SAVING = getattr(signal, "SIGUSR1", None)  # not on Windows


@contextlib.contextmanager
def end_at_once() -> Iterator[None]:
    """Outside training."""
    with _handling(dict.fromkeys(STOPPING, _end)):
        yield


class Orderly:
    """What was asked for by signals."""

    number = 0
    """The signal that asks to stop, or 0."""
    saves = 0
    """How many times saving was asked for."""

    def is_stopping(self) -> bool:
        return self.number != 0

    def stop(self, number: int, _frame: object) -> None:
        if self.number:
            _end(number)
        self.number = number
        say("stopping after the current chunk; press Ctrl-C again to end at once\n")

    def save(self, _number: int, _frame: object) -> None:
        self.saves += 1


@contextlib.contextmanager
def orderly(asked: Orderly | None = None) -> Iterator[Orderly]:
    """While models are trained. A second signal ends at once, which loses a few seconds of work."""
    asked = asked or Orderly()
    handlers: dict[int, Any] = dict.fromkeys(STOPPING, asked.stop)
    with _handling(handlers | ({SAVING: asked.save} if SAVING else {})):
        yield asked


def say(text: str) -> None:
    """To standard error from within a handler, where printing might have been interrupted half way."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


def _end(number: int, _frame: object = None) -> NoReturn:
    with contextlib.suppress(OSError):
        if os.isatty(1):
            os.write(1, b"\x1b[?25h")  # a live view hides the cursor
    end_process(128 + number)


@contextlib.contextmanager
def _handling(handlers: dict[int, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

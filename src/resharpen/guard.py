"""Protection of this process from user code: global state is restored, and the process cannot be ended silently."""

from __future__ import annotations

import contextlib
import dis
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from resharpen.signals import end_process

State = dict[str, Any]


def _torch(get: str, put: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    import torch

    return getattr(torch, get), getattr(torch, put)


def _arithmetic() -> dict[str, tuple[Callable[[], Any], Callable[[Any], None]]]:
    """Global state that affects the results of other code: name -> (getter, setter)."""
    import torch

    def put_device(device: Any) -> None:
        torch.set_default_device(None if device.type == "cpu" else device)

    return {
        "torch.set_grad_enabled": _torch("is_grad_enabled", "set_grad_enabled"),
        "torch.set_default_dtype": _torch("get_default_dtype", "set_default_dtype"),
        "torch.set_default_device": (torch.get_default_device, put_device),
        "torch.use_deterministic_algorithms": _torch(
            "are_deterministic_algorithms_enabled", "use_deterministic_algorithms"
        ),
        "torch.set_num_threads": _torch("get_num_threads", "set_num_threads"),
    }


def _surroundings() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Global state that does not affect results, but the rest of a command or notebook may depend on it."""
    return {
        "random": (random.getstate, random.setstate),
        "numpy.random": (np.random.get_state, np.random.set_state),
        "torch.random": _torch("get_rng_state", "set_rng_state"),
        "numpy.seterr": (np.geterr, lambda settings: np.seterr(**settings)),
        "sys.path": (lambda: list(sys.path), lambda path: sys.path.__setitem__(slice(None), path)),
        "sys.stdout": (lambda: sys.stdout, lambda stream: setattr(sys, "stdout", stream)),
        "sys.stderr": (lambda: sys.stderr, lambda stream: setattr(sys, "stderr", stream)),
    }


def arithmetic() -> State:
    """The current state that affects arithmetic; sets torch to one thread, as engines do."""
    import torch

    torch.set_num_threads(1)
    return _settings()


def _settings() -> State:
    return {name: get() for name, (get, _) in _arithmetic().items()}


def changed(before: State) -> str:
    """The first setting of `arithmetic` that has changed; empty if there is none."""
    return next((name for name, value in _settings().items() if value != before[name]), "")


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Run user code and restore global state afterwards. `os._exit` raises SystemExit, so that it is reported like any
    other way to end the process."""
    arithmetic, surroundings = _arithmetic(), _surroundings()
    before = {name: get() for name, (get, _) in {**arithmetic, **surroundings}.items()}
    directory = _working_directory()
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    exit_before, os._exit = os._exit, _raising_exit(os.getpid())
    try:
        with warnings.catch_warnings():
            yield
    finally:
        os._exit = exit_before
        for name, (get, put) in arithmetic.items():
            if get() != before[name]:  # some take seconds to restore
                put(before[name])
        for name, (_, put) in surroundings.items():
            put(before[name])
        if directory is not None and directory != _working_directory():
            with contextlib.suppress(OSError):  # the directory may have been removed
                os.chdir(directory)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _raising_exit(process: int) -> Callable[[int], NoReturn]:
    def _exit(status: int) -> NoReturn:
        if os.getpid() != process:  # a forked child may exit
            end_process(status)
        raise SystemExit(status)

    return _exit


def is_interrupt(error: BaseException) -> bool:
    """Whether this is a Ctrl-C by the user, not a KeyboardInterrupt raised by user code."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if not isinstance(error, KeyboardInterrupt) or last is None:
        return False
    return dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] != "RAISE_VARARGS"

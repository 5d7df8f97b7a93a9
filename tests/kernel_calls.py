"""Calls into a native kernel taken apart: every pointer with what lies behind it, as far as the kernel may go.

So a call can be made on other memory (`Moved`), or in another program (`Driver`, see `kernel_driver.cpp`).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from ctypes import Structure, c_void_p
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from resharpen.engines.native.base import NativeEngine
from resharpen.engines.native.build import SOURCES
from resharpen.engines.native.compiler import FLAGS
from resharpen.engines.native.contract import HYPERPARAMETERS
from resharpen.engines.native.transformer import NativeTransformer, Sampler

BYTE, FLOAT, ITEM, VECTOR = 1, 4, 8, 64
"""Sizes, in bytes, of what arrays are made of; what is aligned to more than its size is so by luck."""


@dataclass(frozen=True)
class Memory:
    """Behind a pointer: so many elements of so many bytes. The first bytes of a structure may be pointers again."""

    address: int
    n: int
    element: int
    inside: tuple[Memory, ...] = ()

    @property
    def size(self) -> int:
        return self.n * self.element


Extents = Sequence[tuple[int, int]]
"""Of each pointer of a call or a structure, in their order: elements, and bytes of one."""


def ints(address: int, n: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_int32 * n).from_address(address))


def of_training(engine: NativeEngine, t: Any) -> Extents:
    """The pointers in the structure of that name."""
    n, hyper, vectors = t.n_models, len(HYPERPARAMETERS), engine._n_floats // 16
    if engine.problem.model.kind == "minimal":
        lanes = (16, ITEM)
        return (4 * engine._n_floats, VECTOR), lanes, lanes, (hyper, VECTOR), (4 * t.n_steps, VECTOR)
    return (4 * n * vectors, VECTOR), (n, ITEM), (n, ITEM), (hyper * n, FLOAT), (4 * n * t.n_steps, FLOAT)


def minimal_train(engine: NativeEngine, t, inputs, targets, n, length, *_) -> Extents:
    return (n * length, FLOAT), (n * length, FLOAT), (2, FLOAT)


def minimal_evaluate(engine: NativeEngine, theta, hyper, variant, n, *_) -> Extents:
    return (engine._n_floats, VECTOR), (len(HYPERPARAMETERS), VECTOR), *[(n, FLOAT)] * 3, (n, VECTOR)


def retriever_train(engine: NativeEngine, t, priority, kind, lengths, labels, n, length, *_) -> Extents:
    return *[(n * length, FLOAT)] * 2, *[(n, FLOAT)] * 2, (2, FLOAT)


def retriever_evaluate(engine: NativeEngine, theta, models, hyper, variant, n, begin, items, labels, stride, *_):
    tables = (models * engine._n_floats, FLOAT), (len(HYPERPARAMETERS) * models, FLOAT)
    given = (n + 1, FLOAT), (2 * int(ints(begin, n + 1)[-1]), FLOAT), (n, FLOAT)
    return *tables, *given, *[((models - 1) * stride + n, FLOAT)] * 3


def _rotation(engine: NativeEngine, longest: int) -> Extents:
    return [(engine._angles(longest).size, FLOAT)] * 2


def transformer_train(
    engine: NativeEngine, t, cosine, sine, inputs, targets, lengths, first, rate, keys, n, longest
) -> Extents:
    sequences = t.n_steps * n
    tokens = int(ints(lengths, sequences).sum())
    read = *[(tokens, FLOAT)] * 2, (sequences, FLOAT), (t.n_models * sequences, FLOAT)
    dropout_keys = t.n_models * t.n_steps * 3 * engine.problem.model.layers * 2
    return *_rotation(engine, longest), *read, (t.n_models, FLOAT), (dropout_keys, FLOAT)


def transformer_evaluate(
    engine: NativeEngine, theta, epsilon, variant, cosine, sine, inputs, lengths, scored, n, longest, *_
) -> Extents:
    tokens = int(ints(lengths, n).sum())
    places = ctypes.string_at(scored, tokens).count(1)
    read = (tokens, FLOAT), (n, FLOAT), (tokens, BYTE)
    p_star = places * engine.problem.model.vocabulary
    out = *[(places, FLOAT)] * 2, (p_star, FLOAT)
    return (engine._n_floats, FLOAT), *_rotation(engine, longest), *read, (p_star, FLOAT), *out


def transformer_sample(engine: NativeEngine, tables, key, group, first, steps, batch, cap, *_) -> Extents:
    return (2, FLOAT), *[(steps * batch * cap, FLOAT)] * 2, (steps * batch, FLOAT)


EXTENTS: dict[str, Callable[..., Extents]] = {
    function.__name__: function
    for function in (
        *(minimal_train, minimal_evaluate, retriever_train, retriever_evaluate),
        *(transformer_train, transformer_evaluate, transformer_sample),
    )
}


def of_structure(engine: NativeEngine, it: Structure) -> Memory:
    pointers = [getattr(it, name) for name, kind in it._fields_ if kind is c_void_p]
    found: Extents = ()
    if type(it).__name__ == "TrainingStruct":
        found = of_training(engine, it)
    elif type(it).__name__ == "Tables":
        found = [(engine.problem.task.automaton.p_SxE.size, FLOAT)] * 4
    inside = tuple(Memory(address, *extent) for address, extent in zip(pointers, found, strict=True))
    alignment = ctypes.alignment(type(it))
    return Memory(ctypes.addressof(it), ctypes.sizeof(it) // alignment, alignment, inside)


def taken_apart(engine: NativeEngine, function: str, kinds: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Pointers with their memory, numbers as they are; `kinds` are the C types."""
    given = [getattr(argument, "_obj", argument) for argument in arguments]  # what ctypes.byref is of
    extents, apart = iter(EXTENTS[f"{engine.problem.model.kind}_{function}"](engine, *given)), []
    for value, kind in zip(given, kinds, strict=True):
        if isinstance(value, Structure):
            apart.append(of_structure(engine, value))
        elif kind is c_void_p:
            extent = next(extents)
            apart.append(None if value is None else Memory(value, *extent))
        else:
            apart.append(value)
    assert next(extents, None) is None
    return apart


class Elsewhere:
    """What an engine takes for its kernel: calls are made by `run(its function in the library, arguments)`."""

    def __init__(self, engine: NativeEngine, run: Callable[..., Any]):
        self._engine, self._run, self._library = engine, run, engine._kernel

    def __getattr__(self, function: str) -> Callable[..., Any]:
        return partial(self._call, getattr(self._library, function))

    def _call(self, function: Any, *arguments: Any) -> Any:
        return self._run(function, taken_apart(self._engine, function.__name__, function.argtypes, arguments))


def through(engine: Any, run: Callable[..., Any]) -> Any:
    """The same native engine, its calls made elsewhere."""
    engine._kernel = Elsewhere(engine, run)
    if isinstance(engine, NativeTransformer) and engine._sampler is not None:
        engine._sampler = Sampler(engine._kernel, engine.problem.task.automaton)
    return engine


# ---- on other memory -------------------------------------------------------------------------------------------------


class Moved:
    """Calls a kernel on copies: each begins one element behind the beginning of a page, or ends where a page begins
    that nobody may read."""

    def __init__(self, guarded: bool):
        self._guarded, self._protect = guarded, ctypes.CDLL(None).mprotect
        self._protect.argtypes = [c_void_p, ctypes.c_size_t, ctypes.c_int]

    def __call__(self, function: Any, arguments: Sequence[Any]) -> Any:
        self._copies: list[tuple[Memory, int, mmap.mmap]] = []
        given = [
            ctypes.cast(self._copied(x), kind) if isinstance(x, Memory) else x
            for x, kind in zip(arguments, function.argtypes, strict=True)
        ]
        result = function(*given)
        for memory, address, _ in self._copies:
            if not memory.inside:
                ctypes.memmove(memory.address, address, memory.size)
        return result

    def _copied(self, memory: Memory) -> int:
        page = mmap.PAGESIZE
        pages = -(-(memory.size + memory.element) // page) * page
        room = mmap.mmap(-1, pages + page)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(room))
        address = begin + memory.element
        if self._guarded:
            address = begin + pages - memory.size
            assert self._protect(begin + pages, page, 0) == 0
        ctypes.memmove(address, memory.address, memory.size)
        for i, inner in enumerate(memory.inside):
            c_void_p.from_address(address + 8 * i).value = self._copied(inner)
        self._copies.append((memory, address, room))
        return address


# ---- in another program ----------------------------------------------------------------------------------------------


class Driver:
    """A kernel as a program of its own, which makes the calls that it reads."""

    def __init__(self, command: Sequence[str]):
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)

    def __call__(self, function: Any, arguments: Sequence[Any]) -> Any:
        sent, copies = [function.__name__[:1].encode()], []
        for x in arguments:
            if isinstance(x, float):
                sent.append(struct.pack("<d", x))
            elif isinstance(x, Memory) or x is None:
                self._pack(x, sent, copies)
            else:
                sent.append(struct.pack("<q", x))
        with contextlib.suppress(BrokenPipeError):  # it has ended, and `_read` says why
            self._process.stdin.write(b"".join(sent))
            self._process.stdin.flush()
        for memory in copies:
            data = self._read(memory.size)
            if not memory.inside:
                ctypes.memmove(memory.address, data, memory.size)
        return struct.unpack("<q", self._read(8))[0]

    def close(self) -> None:
        """It ends where there is nothing more to read."""
        self._process.stdin.close()
        assert self._process.wait(60) == 0, self._said()
        self._process.stdout.close()
        self._errors.close()

    def _pack(self, memory: Memory | None, sent: list[bytes], copies: list[Memory]) -> None:
        if memory is None:
            sent.append(struct.pack("<q", -1))
            return
        sent.append(struct.pack("<qqq", memory.size, memory.element, len(memory.inside)))
        sent.append(ctypes.string_at(memory.address, memory.size))
        copies.append(memory)
        for inner in memory.inside:
            self._pack(inner, sent, copies)

    def _read(self, n: int) -> bytes:
        data = self._process.stdout.read(n)
        assert len(data) == n, self._said()
        return data

    def _said(self) -> str:
        self._process.wait(60)
        self._errors.seek(0)
        return f"exit code {self._process.returncode}: {self._errors.read().decode(errors='replace')}"


def build_driver(engine: NativeEngine, compiler: Sequence[str], directory: Path) -> Path:
    """The program of an engine's kernel, for the sizes that its file is named by."""
    name, *sizes = engine.built.partition("-native-")[0].split("-")
    name = name.partition(".")[0]  # without its version
    program = directory / name
    named = (re.fullmatch("([a-z]+)([0-9]+)", size) for size in sizes)
    defines = [f"-DRESHARPEN_{size[1].upper()}={size[2]}" for size in named]
    source = [f'-DRESHARPEN_KERNEL="{SOURCES / name}.cpp"', str(Path(__file__).with_name("kernel_driver.cpp"))]
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    subprocess.run([compiler[0], *flags, *compiler[1:], *defines, *source, "-o", str(program)], check=True)
    return program

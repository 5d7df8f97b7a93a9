"""Every kernel as other compilers build it, for other processors, and with sanitizers that watch it.

Parity is that of all native engines, so what is tested here is the build and not the formula: a few problems each.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import replace

import pytest
from helpers import BENIGN, branching, make_ensemble, minimal_problem, retriever_problem, steep, transformer_problem
from kernel_calls import Driver, build_driver, through
from parity import assert_parity

from resharpen.engines.native import compiler, minimal, retriever, transformer
from resharpen.engines.native.minimal import NativeMinimal
from resharpen.engines.native.retriever import NativeRetriever
from resharpen.engines.native.transformer import NativeTransformer
from resharpen.models import Minimal, Transformer
from resharpen.state import arrays_of

pytestmark = pytest.mark.slow

NINE = [minimal_problem(placement) for placement in ("none", "peri")]
TWELVE = [minimal_problem("peri", 12, 4, model=Minimal(12, 5, 3, 4))]
RETRIEVERS = [retriever_problem(placement, hidden=16) for placement in ("none", "peri")]
TRANSFORMERS = [
    transformer_problem("all", cap=24, batch=4),
    transformer_problem("seven", cap=24, batch=4, attention="ssmax", positions="alibi"),
    transformer_problem("peri", cap=24, batch=4, attention="asentmax", positions="nape"),
]
PAPER, ODD = Transformer(6), Transformer(6, layers=1, d=36, heads=1, d_mlp=50)
KERNELS = {
    "minimal": (NativeMinimal, NINE),
    "minimal-listed": (NativeMinimal, TWELVE),
    "retriever": (NativeRetriever, RETRIEVERS),
    "transformer": (NativeTransformer, TRANSFORMERS),
    "transformer-paper": (NativeTransformer, [transformer_problem("peri", PAPER, batch=16)]),
    "transformer-odd": (NativeTransformer, [transformer_problem("none", ODD, cap=24, batch=4)]),
}
"""What has one name is one build."""
every_kernel = pytest.mark.parametrize("name", KERNELS)


def ensemble_and_validation(problem):
    if problem.model.kind == "retriever":
        return make_ensemble(problem), None
    if problem.model.kind == "minimal":
        return make_ensemble(problem, 16, **BENIGN), problem.task.validation(0, "selection")
    return make_ensemble(problem, 4, **BENIGN), problem.task.validation(0, "report", 2)


def check_parity(make, problems):
    for problem in problems:
        ensemble, validation = ensemble_and_validation(problem)
        assert_parity(make, problem, ensemble, steps=(1, 10), validation=validation)
        if problem.model.kind == "retriever":  # which computes in another way where weights are large
            ensemble = make_ensemble(problem, 8, **BENIGN | {"peak_learning_rate": 1e-4})
            assert_parity(make, problem, ensemble, steps=(1, 3), start=steep(problem, ensemble, 500, 500))


# ---- compilers -------------------------------------------------------------------------------------------------------

ZIG = f"{sys.executable} -m ziglang c++" if importlib.util.find_spec("ziglang") else None


@pytest.fixture
def forget_kernels():
    """Those in memory, before and after."""
    modules = minimal, retriever, transformer
    for module in modules:
        module.kernel.cache_clear()
    yield
    for module in modules:
        module.kernel.cache_clear()


@pytest.mark.usefixtures("forget_kernels")
@pytest.mark.parametrize(
    ("cxx", "march"), [("g++", "native"), ("clang++", "native"), ("clang++", "x86-64-v3"), ("zig", "native")]
)
@every_kernel
def test_parity_whatever_compiles(name, cxx, march, monkeypatch):
    """Ten seconds each with a kernel to build; the first that zig ever builds takes a minute more."""
    command = ZIG if cxx == "zig" else shutil.which(cxx)
    if command is None:
        pytest.skip(f"no {cxx} here")
    monkeypatch.setenv("CXX", command)
    assert ("clang" in compiler.find_compiler().version) == (cxx != "g++")
    kind, problems = KERNELS[name]
    check_parity(lambda problem, ensemble: kind(replace(problem, march=march), ensemble), problems)


# ---- in a program of its own -----------------------------------------------------------------------------------------


@pytest.fixture
def driver(tmp_path):
    """Builds the driver of an engine, once, and brings the engine's calls to it."""
    started = []

    def of(engine, command, *runner):
        if not started:
            started.append(Driver([*runner, str(build_driver(engine, command, tmp_path))]))
        return through(engine, started[0])

    yield of
    for each in started:
        each.close()


WATCHED = {
    "retriever": (NativeRetriever, [retriever_problem(placement, hidden=32) for placement in ("none", "peri")]),
    "minimal": (NativeMinimal, [minimal_problem(placement, 4, 3) for placement in ("none", "peri")]),
    "minimal-listed": (NativeMinimal, [minimal_problem("peri", 12, 4, model=Minimal(12, 2, 1, 2))]),
    **{name: KERNELS[name] for name in ("transformer", "transformer-odd")},
}
"""Small sizes, which are compiled sooner."""


@pytest.mark.parametrize("name", WATCHED)
def test_sanitizers_find_nothing(name, driver):
    """Address and undefined behavior, which includes alignment. About 20 seconds each, most of it to compile."""
    kind, problems = WATCHED[name]
    command = ["clang++" if shutil.which("clang++") else "g++", "-O1", "-g1", "-march=native"]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    for problem in problems:
        ensemble, validation = ensemble_and_validation(problem)
        engine = driver(kind(problem, ensemble), command)
        starts = [engine.dump()]
        if kind is NativeRetriever:  # which computes in another way where weights are large
            starts += [
                steep(problem, ensemble, *weights) for weights in ((3, 3), (12, 12), (500, 500), (500, 1), (500, 6))
            ]
        for start in starts:
            engine.load(start)
            engine.advance(3)
            engine.advance(2, [problem.minibatch(0, step) for step in range(2)])
            if kind is NativeTransformer:  # which computes equal prefixes once
                engine.advance(1, [branching((20, 0), (20, 20), (24, 17), (9, 9), (40, 7), *[(60, 40)] * 24)])
            theta = arrays_of(engine.dump(), "theta")
            measured = engine.measure(theta, validation or problem.task.validation(0, "selection"))
            assert (engine.diverged_at == -1).all()
            assert all((values == values).all() for values in measured.values())


ARM = {
    "g++": ["aarch64-linux-gnu-g++"],
    "clang++": ["clang++", "--target=aarch64-linux-gnu"],
}


@pytest.mark.parametrize("cxx", ARM)
@pytest.mark.parametrize("name", [name for name in KERNELS if name != "transformer-paper"])
def test_parity_on_arm(name, cxx, driver):
    """NEON, under emulation. About half a minute each, most of it to compile."""
    for program in (ARM[cxx][0], ARM["g++"][0], "qemu-aarch64"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here")
    kind, problems = KERNELS[name]
    command = [*ARM[cxx], "-march=armv8-a", "-static"]
    check_parity(lambda *given: driver(kind(*given), command, "qemu-aarch64"), problems)

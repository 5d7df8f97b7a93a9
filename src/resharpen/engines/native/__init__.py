"""The fast engine on CPU: a C++ core compiled on first use, sixteen models to a vector."""

from resharpen.engines.native.build import BuildError, NoCompiler
from resharpen.engines.native.engine import NativeEngine, supports

__all__ = ["BuildError", "NativeEngine", "NoCompiler", "supports"]

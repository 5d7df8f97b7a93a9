"""The fast engine on CPU: a C++ core compiled on first use, one kernel per model family."""

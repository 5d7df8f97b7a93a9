"""The fast engine on CPU: a C++ core compiled on first use, a kernel for each model family."""

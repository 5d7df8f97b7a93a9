"""Print the lowest versions of dependencies that are allowed, as pip constraints: python tools/lowest.py [TORCH]

They are read from pyproject.toml. With an argument torch has that version.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def lowest(torch: str = "") -> list[str]:
    """`NAME==VERSION` of every dependency to run with; those for development are not constrained."""
    found = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    pairs = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", dependency).groups() for dependency in found)
    return [f"{name}=={version}" for name, version in (pairs | ({"torch": torch} if torch else {})).items()]


if __name__ == "__main__":
    print("\n".join(lowest(*sys.argv[1:])))

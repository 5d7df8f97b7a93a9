"""Types of arguments that several commands share, with their help where it is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

# Without these the help would show "{None}|INT" and "(default: None)".
Number = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
Text = Annotated[str | None, arg(metavar="A,B,...", help_behavior_hint="")]
Directory = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]
File = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
RunDirectory = Annotated[Positional[Path], arg(metavar="RUN", help="The run directory.", help_behavior_hint="")]
RunOrReference = Annotated[
    Positional[Path],
    arg(metavar="RUN", help="A run directory, a reference directory or its name.", help_behavior_hint=""),
]
TrustCode = Annotated[
    bool,
    arg(help="Execute user code of a run from someone else, or its stored copy if the original is missing or changed."),
]
Weights = Annotated[Literal["train", "bema"], arg(help="Training weights or BEMA.")]
Scale = Annotated[
    Literal["smoke", "laptop", "overnight", "paper"] | None,
    arg(metavar="{smoke,laptop,overnight,paper}", help_behavior_hint=""),
]
Name = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
LauncherName = Annotated[Literal["local", "ray"], arg(metavar="{local,ray}")]
Address = Annotated[str | None, arg(metavar="HOST:PORT", help_behavior_hint="")]
Job = Annotated[str | None, arg(metavar="I/N", help_behavior_hint="")]
EngineName = Annotated[
    Literal["auto", "torch", "native"] | None, arg(metavar="{auto,torch,native}", help_behavior_hint="")
]
DeviceName = Annotated[Literal["cpu", "cuda", "mps"] | None, arg(metavar="{cpu,cuda,mps}", help_behavior_hint="")]

"""Identity hash of a shard: everything that can change its results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from resharpen.experiments.specs.spec import Experiment, Shard, roles
from resharpen.experiments.specs.toml import tasks_data


def identities(experiment: Experiment, drawn: Mapping[str, Any]) -> Callable[[Shard], str]:
    """The identity of each shard: its name and what of the spec goes into its models, `drawn` being the search of each
    variant as the run recorded it. Neither the experiment's name nor the number of models does, so a run may grow."""
    shared = {name: getattr(experiment, name) for name, of_field in roles(experiment).items() if of_field.trains}
    digests = {}
    for setting in experiment.settings:
        for name, variant in experiment.variants.items():
            engine = variant.engine or experiment.engine
            own = {
                "task": tasks_data([setting]),
                "variant": variant.as_data(),
                "engine": engine,
                "drawn": drawn.get(name),
            }
            digests[setting.name, name] = hashlib.sha256(json.dumps({**shared, **own}, sort_keys=True).encode())

    def identity(shard: Shard) -> str:
        digest = digests[shard.setting.name, shard.variant].copy()
        digest.update(shard.name.encode())
        return digest.hexdigest()[:32]

    return identity

"""What it costs to train a torch module of the user's own here, against a plain training loop for the same work.

    python benchmarks/modules.py --quick --json rows.json

Both train the same modules on the same minibatches, one model after another, on one core: forward, backward, clipping,
AdamW with its schedule, moving average. The plain loop is what one would write, with torch.optim.AdamW, clip_grad_norm_
and LambdaLR. Before anything is timed, both have to have the same losses. Time is that of the process, which others on
the machine disturb little; calls alternate, and the best of each counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainers import ADAM_EPSILON, BETAS, CLIP, DECAY, EMA, RATE, schedule

from resharpen.engines.base import Ensemble, Problem
from resharpen.engines.torch.fast import TorchEngine
from resharpen.models.adapter import init_key, module_model
from resharpen.optim.hyperparameters import TABLE, draw
from resharpen.parts import Parts, Placement
from resharpen.tasks import Dyck, SetComplement, Task

OURS, LOOP, MOST = "resharpen-torch", "torch-loop", 1.3
STEPS, TOLERANCE = 4, 1e-4


class LSTM(nn.Module):
    def __init__(self, vocabulary: int, d: int = 32):
        super().__init__()
        self.embedding, self.out = nn.Embedding(vocabulary, d), nn.Linear(d, vocabulary)
        self.lstm = nn.LSTM(d, d, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.embedding(tokens))[0])


class Encoder(nn.Module):
    """Without dropout, so that both compute the same."""

    def __init__(self, vocabulary: int, d: int = 32, heads: int = 4, layers: int = 2):
        super().__init__()
        self.embedding, self.out = nn.Embedding(vocabulary, d), nn.Linear(d, vocabulary)
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.out(self.encoder(self.embedding(tokens), mask, is_causal=True))


TASKS: dict[str, tuple[Task, int, int]] = {"dyck": (Dyck(2, 3), 84, 64), "sct": (SetComplement(9), 8, 64)}
"""Name -> task, training length, sequences in a minibatch."""
CASES = {f"{name}-{module.__name__.lower()}": (name, module) for name in TASKS for module in (LSTM, Encoder)}


def make_problem(case: str) -> Problem:
    name, module = CASES[case]
    task, length, batch = TASKS[name]
    kind = f"modules.py:{module.__name__}@000000000000"
    model = module_model(kind, module).usual(task.vocabulary)
    return Problem(task, model, Parts(Placement()), length, batch, 100_000, seed=0)


def ours(problem: Problem, models: int, batches: list[Any]) -> Callable[[], float]:
    """A call trains all models for some steps and returns the sum of their losses in the first of them."""
    same = {"peak_learning_rate": RATE, "one_minus_beta1": 1 - BETAS[0], "one_minus_beta2": 1 - BETAS[1]}
    same |= {"adam_epsilon": ADAM_EPSILON, "weight_decay": DECAY, "max_gradient_norm": CLIP}
    draws = draw(TABLE, 0, problem.setting, np.arange(models))
    engine = TorchEngine(
        problem, Ensemble(np.arange(models), {**draws, **{k: 0 * draws[k] + x for k, x in same.items()}})
    )
    begin = engine.dump()

    def call() -> float:
        engine.load(begin)
        engine.advance(1, batches[:1])
        first = float(engine.dump()["loss"].sum())
        engine.advance(STEPS - 1, batches[1:])
        return first

    return call


def plain_loop(problem: Problem, models: int, batches: list[Any]) -> Callable[[], float]:
    made = [problem.model.make(init_key(problem.seed, problem.setting), i) for i in range(models)]  # pyright: ignore[reportAttributeAccessIssue]
    begin = [{name: x.clone() for name, x in module.state_dict().items()} for module in made]
    data = [(torch.tensor(x), torch.tensor(y), torch.tensor(mask)) for x, y, mask in batches]

    def train(module: nn.Module) -> float:
        parameters, losses = list(module.parameters()), []
        matrices = [x for x in parameters if x.ndim > 1]
        groups = [{"params": matrices}, {"params": [x for x in parameters if x.ndim < 2], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=ADAM_EPSILON, weight_decay=DECAY, foreach=True)
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: schedule(t, lambda c, a, b: a if c else b))
        average = [x.detach().clone() for x in parameters]
        for inputs, targets, mask in data:
            optimizer.zero_grad()
            nll = cross_entropy(module(inputs).flatten(0, 1), targets.flatten(), reduction="none")
            loss = nll.where(mask.flatten(), 0.0).sum() / mask.sum()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            rate.step()
            with torch.no_grad():
                torch._foreach_lerp_(average, parameters, EMA)  # pyright: ignore
            losses.append(loss.detach())
        return float(losses[0])

    def call() -> float:
        for module, state in zip(made, begin, strict=True):
            module.load_state_dict(state)
        return sum(map(train, made))

    return call


def measure(case: str, models: int, rounds: int) -> list[dict[str, Any]]:
    problem = make_problem(case)
    batches = [problem.minibatch(0, step) for step in range(STEPS)]
    calls = {OURS: ours(problem, models, batches), LOOP: plain_loop(problem, models, batches)}
    losses = {name: call() for name, call in calls.items()}
    if abs(losses[OURS] - losses[LOOP]) > TOLERANCE * losses[LOOP]:
        raise SystemExit(f"{case}: not timed, the losses differ: {losses}")
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.process_time()
            call()
            seconds[name].append(time.process_time() - began)
    speed = {name: models * STEPS / min(found) for name, found in seconds.items()}
    ratio = speed[LOOP] / speed[OURS]
    print(f"{case:15} {speed[OURS]:10,.1f} {speed[LOOP]:10,.1f} {ratio:8.2f}x{'' if ratio <= MOST else '  too much'}")
    return [{"case": case, "system": name, "unit": "model-steps/s", "value": x} for name, x in speed.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four models and few rounds; half a minute")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'model-steps/s':15} {OURS:>10} {LOOP:>10} {'costs':>9}")
    rows = [row for case in asked.cases for row in measure(case, *((4, 5) if asked.quick else (16, 6)))]
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

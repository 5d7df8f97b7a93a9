"""A task of your own as a small class: Polya's urn. Trains on sequences of 16 tokens, scores up to 64, draws a figure.

python examples/my_task.py

An urn holds one ball of each colour. A drawn ball goes back with another of its colour, so after n draws colour t comes
next with probability (1 + how often it came) / (v + n): exact at every length, and no finite automaton.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from resharpen import streams
from resharpen.engines.base import Ensemble, Problem, weights_of
from resharpen.engines.choose import make_engine
from resharpen.metrics import mean_by_length
from resharpen.models import PLACEMENTS
from resharpen.models.transformer import Transformer
from resharpen.optim.hyperparameters import TABLE, draw
from resharpen.tasks.validation import ValidationSet

TRAINED, LONGEST = 16, 64


@dataclass(frozen=True)
class Urn:
    v: int

    kind: ClassVar[str] = "urn"
    metric: ClassVar[str] = "tvd"
    lower_is_better: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"urn-v{self.v}"

    @property
    def vocabulary(self) -> int:
        return self.v + 1  # the last token opens a sequence

    def check_train_length(self, train_length: int) -> None:
        if train_length < 1:
            raise ValueError("training sequences have at least one token")

    def sample(self, words_NxT):
        """Ball number below(word, v + n) of the urn, where colour t has 1 + count_t balls."""
        rows = np.arange(len(words_NxT))
        balls_NxV, tokens_NxT = np.ones((len(words_NxT), self.v), np.int64), np.empty(words_NxT.shape, np.int64)
        for n in range(words_NxT.shape[1]):
            ball_N = streams.below(words_NxT[:, n], self.v + n)
            tokens_NxT[:, n] = (ball_N[:, None] >= balls_NxV.cumsum(1)).sum(1)
            balls_NxV[rows, tokens_NxT[:, n]] += 1
        return tokens_NxT

    def opened(self, tokens_NxT):
        return np.concatenate([np.full((len(tokens_NxT), 1), self.v), tokens_NxT], axis=1)

    def batch(self, key, group, step, n, train_length):
        """Inputs, targets, and which of them are real."""
        words = streams.words(key, n * train_length, group, step).reshape(n, train_length)
        targets = self.sample(words)
        return self.opened(targets)[:, :-1], targets, np.ones(targets.shape, bool)

    def p_star(self, inputs_NxL):
        seen_NxLxV = np.eye(self.vocabulary)[inputs_NxL][..., : self.v].cumsum(axis=1)
        p = (1 + seen_NxLxV) / (self.v + np.arange(inputs_NxL.shape[1]))[:, None]
        return np.concatenate([p, np.zeros_like(p[..., :1])], axis=-1)

    def validation(self, seed, use):
        words = streams.words(streams.key(seed, self.name, "validation", use), 64 * LONGEST).reshape(64, LONGEST)
        inputs = self.opened(self.sample(words))[:, :-1]
        return ValidationSet(inputs, np.ones(inputs.shape, bool))

    def examples(self, validation):
        return validation.inputs_NxL, validation.scored_NxL, self.p_star(validation.inputs_NxL)[validation.scored_NxL]

    def by_length(self, values_MxP, validation):
        return {"tvd": mean_by_length(values_MxP, validation.length_P)}


def train(placement: str, engine: str = "native", models: int = 8, steps: int = 300):
    """Lengths, and the mean TVD of each model's BEMA weights at them, [M, lengths]."""
    task, draws = Urn(4), np.arange(models)
    model = Transformer(task.vocabulary, layers=2, d=32, heads=2, d_mlp=64)
    problem = Problem(task, model, PLACEMENTS[placement], TRAINED, 32, steps, seed=0, setting="urn")
    trainer = make_engine(engine, problem, Ensemble(draws, draw(TABLE, 0, "urn", draws)))
    trainer.advance(steps)
    validation = task.validation(0, "report")
    values = trainer.evaluate(weights_of(trainer.dump(), trainer.ensemble, "bema"), validation)
    lengths, tvd, _ = task.by_length(values, validation)["tvd"]
    return lengths, tvd


if __name__ == "__main__":
    import matplotlib.pyplot as plt

    for placement in ("pre", "peri"):
        lengths, tvd = train(placement)
        plt.plot(lengths, np.nanquantile(tvd, 0.1, axis=0), label=placement)
    plt.axvline(TRAINED, color="grey", linestyle=":")
    plt.xlabel("length")
    plt.ylabel("TVD, best tenth of the models")
    plt.legend()
    plt.savefig("urn.png")
    print("urn.png")

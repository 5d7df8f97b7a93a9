"""Maximum Retrieval as Velickovic et al. (2025) train it: the query is an MLP of a random number, and all sets of a
minibatch have one length. See docs/anchors.md."""

from dataclasses import dataclass

import numpy as np

from resharpen import streams
from resharpen.models.retriever import Retriever, mlp, padded
from resharpen.parts import parameter
from resharpen.tasks import Batch, Items, MaxRetrieval
from resharpen.tasks.max_retrieval import SHORTEST


@dataclass(frozen=True)
class OneLength(MaxRetrieval):
    @property
    def name(self):
        return "max-one-length"

    def batch(self, key, group, step, n, train_length):
        """As in MaxRetrieval, with the length of the first set for all."""
        words = streams.words(key, n * (1 + 2 * train_length), group, step).reshape(n, 1 + 2 * train_length)
        length_N = np.full(n, SHORTEST + streams.below(words[0, 0], train_length - SHORTEST + 1))
        priority_NxL, class_NxL = self.sample(words[:, 1:].reshape(n, train_length, 2))
        padding_NxL = np.arange(train_length) >= length_N[:, None]
        priority_NxL[padding_NxL], class_NxL[padding_NxL] = 0, 0
        label_N = self.labels(priority_NxL, class_NxL, length_N)
        return Batch(Items(priority_NxL, class_NxL, length_N), label_N, np.ones(n, bool))


@dataclass(frozen=True)
class RandomQuery(Retriever):
    def parameters(self, parts):
        d, found = self.hidden, super().parameters(parts)
        del found["q"]
        query = {"W_5": parameter.matrix(1, d), "W_6": parameter.matrix(d, d)}
        return found | query | {"b_5": parameter.bias(d), "b_6": parameter.bias(d)}

    def _weights(self, bound, theta, items, real_NxL, h_MxIxD):
        u_Nx1 = (items.priority[:, :1] * 2**12) % 1  # the last bits of the first priority: random, and of no use
        q_MxNxD = mlp(u_Nx1.expand(len(h_MxIxD), *u_Nx1.shape), theta, "5", "6")
        e_MxNxL = (padded(h_MxIxD @ theta["K"], real_NxL) @ q_MxNxD[..., None])[..., 0]
        of_set = (real_NxL[:, None, None], items.length[:, None, None, None], q_MxNxD[:, :, None])
        return bound.weights(e_MxNxL[:, :, None, None], *of_set)[:, :, 0, 0]

"""Polya's urn: after each draw the ball is put back together with another one of the same color."""

from dataclasses import dataclass

import numpy as np

import resharpen as rs


@dataclass(frozen=True)
class Urn(rs.TokenTask):
    v: int
    longest = 64
    vocabulary = property(lambda self: self.v)

    def sample(self, words_NxT):
        ball_NxT = rs.below(words_NxT, self.v + np.arange(words_NxT.shape[1]))  # ball v + i was added at draw i
        for ball_N in ball_NxT.T:
            earlier_N = ball_NxT[np.arange(len(ball_N)), np.maximum(ball_N - self.v, 0)]
            ball_N[:] = np.where(ball_N < self.v, ball_N, earlier_N)
        return ball_NxT

    def p_star(self, inputs_NxL):
        balls_NxLxV = 1 + np.eye(self.v)[inputs_NxL].cumsum(1)
        return balls_NxLxV / balls_NxLxV.sum(-1, keepdims=True)

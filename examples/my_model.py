"""A gated recurrent unit (Cho et al., 2014): h <- (1 - z) h + z tanh(x W + (r h) U), gates z and r of x and h."""

# It has no use for norms, attention and positions: variants that name some with it are refused. A model that is built
# with the `parts` it is given says which it takes, such as takes = ("norm", "attention").

from dataclasses import dataclass

import torch

import resharpen as rs


@dataclass(frozen=True)
class GRU(rs.Model):
    vocabulary: int
    d: int = 32

    def parameters(self, parts):
        shapes = {"E": (self.vocabulary, 3 * self.d), "U_gates": (self.d, 2 * self.d), "U_h": (self.d, self.d)}
        return {name: rs.learned(*shape) for name, shape in (shapes | {"out": (self.d, self.vocabulary)}).items()}

    def logits(self, theta, tokens_NxL, parts, hyper, record=None):
        x_MxNxLx3D = rs.embedding(theta["E"], tokens_NxL)
        h, states = torch.zeros_like(x_MxNxLx3D[:, :, 0, : self.d]), []
        for x in x_MxNxLx3D.unbind(2):
            z, r = (x[..., : 2 * self.d] + h @ theta["U_gates"]).sigmoid().chunk(2, -1)
            h = h + z * ((x[..., 2 * self.d :] + (r * h) @ theta["U_h"]).tanh() - h)
            states.append(h)
        return rs.linear(torch.stack(states, 2), theta["out"])

"""A gated recurrent unit (Cho et al., 2014): h <- (1 - z) h + z tanh(x W + (r h) U), gates z and r of x and h."""

# This model uses no norms, attention or positions, so variants that combine it with such parts are refused. A model
# that uses the `parts` it gets declares their kinds, for example takes = ("norm", "attention").

from dataclasses import dataclass

import torch

import resharpen as rs


@dataclass(frozen=True)
class GRU(rs.Model):
    vocabulary: int
    d: int = 32

    def parameters(self, parts):
        v, d, most = self.vocabulary, self.d, self.d**-0.5
        inner = {"U_gates": rs.learned(d, 2 * d, uniform=most), "U_h": rs.learned(d, d, uniform=most)}
        return {"E": rs.learned(v, 3 * d, role="embedding"), **inner, "out": rs.learned(d, v, role="output")}

    def logits(self, theta, tokens_NxL, parts, hyper, record=None):
        x_MxNxLx3D = rs.embedding(theta["E"], tokens_NxL)
        h, states = torch.zeros_like(x_MxNxLx3D[:, :, 0, : self.d]), []
        for x in x_MxNxLx3D.unbind(2):
            z, r = (x[..., : 2 * self.d] + h @ theta["U_gates"]).sigmoid().chunk(2, -1)
            h = h + z * ((x[..., 2 * self.d :] + (r * h) @ theta["U_h"]).tanh() - h)
            states.append(h)
        return rs.linear(torch.stack(states, 2), theta["out"])

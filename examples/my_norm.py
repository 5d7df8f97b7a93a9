"""Dynamic tanh instead of a norm: g tanh(a x) + b (Zhu et al., 2025)."""

import resharpen as rs


@rs.norm(a=rs.learned(start=0.5), g=rs.learned("d", start=1.0), b=rs.learned("d", start=0.0))
def my_dyt(x, p):
    return p.g * (p.a * x).tanh() + p.b

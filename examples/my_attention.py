"""Scalable softmax: softmax(s log(n) e) over n keys, one learned s per head (Nakanishi, 2025)."""

import resharpen as rs


@rs.attention(s=rs.learned("heads", start=1.0))
def my_ssmax(e, mask, p):
    return rs.masked_softmax(p.s * p.n.log() * e, mask)

// The exact (erf) GELU with its derivative.
#pragma once

#include "vector.h"

namespace resharpen {

// gelu(x) = x Phi(x), and its slope Phi(x) + x phi(x), with Phi and phi the normal distribution and density.
//
// For t = |x| the tail Phi(-t) is exp(-t^2/2) E(t), with E a polynomial in u = (t - 3) / (t + 3): the minimax of
// erfcx(t / sqrt 2) / 2 in relative error, 8e-9 for t <= 14; from t = 13.2 on the tail is below the smallest float.
// The exponential is as exact as its rounded argument, so for negative x gelu is good to 4 + x^2 units in the last
// place, for positive x to 4.
RESHARPEN_INLINE f16 gelu(f16 x, f16& slope) {
    const f16 t = min(broadcast(13.2f), abs(x));  // a NaN stays
    const f16 gauss = exp2_nonpositive((-0.5f * kLog2E) * (t * t));
    const f16 u = (t - broadcast(3.0f)) * reciprocal(t + broadcast(3.0f));
    f16 p = 5.36718664e-05f * u + broadcast(0.000115543764f);
    p = p * u + broadcast(-0.000339484892f);
    p = p * u + broadcast(-0.000983758446f);
    p = p * u + broadcast(0.00290455617f);
    p = p * u + broadcast(0.00613207066f);
    p = p * u + broadcast(-0.046213291f);
    p = p * u + broadcast(0.123225031f);
    p = p * u + broadcast(-0.206402619f);
    p = p * u + broadcast(0.121513948f);
    const f16 tail = gauss * p;
    const f16 phi = select(x > broadcast(0), broadcast(1) - tail, tail);
    slope = phi + (0.398942280f * x) * gauss;
    return x * phi;
}

}  // namespace resharpen

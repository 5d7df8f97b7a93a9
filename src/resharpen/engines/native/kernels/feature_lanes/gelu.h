// The exact (erf) GELU with its derivative.
#pragma once

#include "rows.h"

namespace resharpen {

// gelu(x) = x Phi(x), and its slope Phi(x) + x phi(x), with Phi and phi the normal distribution and density.
//
// For t = |x| the tail Phi(-t) is exp(-t^2/2) E(t), with E a polynomial in u = (t - 3) / (t + 3): the minimax of
// erfcx(t / sqrt 2) / 2 in relative error, 8e-9 for t <= 14; from t = 13.2 on the tail is below the smallest float.
// The exponential is as exact as its rounded argument, so for negative x gelu is good to 4 + x^2 units in the last
// place, for positive x to 4.
RESHARPEN_INLINE f32x16 gelu(f32x16 x, f32x16& slope) {
    const f32x16 t = min(broadcast(13.2f), abs(x));  // a NaN stays
    const f32x16 gauss = exp2_nonpositive((-0.5f * kLog2E) * (t * t));
    const f32x16 u = (t - broadcast(3.0f)) * reciprocal(t + broadcast(3.0f));
    f32x16 p = 5.36718664e-05f * u + broadcast(0.000115543764f);
    p = p * u + broadcast(-0.000339484892f);
    p = p * u + broadcast(-0.000983758446f);
    p = p * u + broadcast(0.00290455617f);
    p = p * u + broadcast(0.00613207066f);
    p = p * u + broadcast(-0.046213291f);
    p = p * u + broadcast(0.123225031f);
    p = p * u + broadcast(-0.206402619f);
    p = p * u + broadcast(0.121513948f);
    const f32x16 tail = gauss * p;
    const f32x16 phi = select(x > broadcast(0), broadcast(1) - tail, tail);
    slope = phi + (0.398942280f * x) * gauss;
    return x * phi;
}

// gelu = x Phi(x) and its slope Phi(x) + x phi(x), Phi and phi those of the normal distribution.
//
// Phi(-|x|) = exp(-x^2/2) Q with Q = erfcx(|x| / sqrt 2) / 2, a polynomial in w = c |x| / (1 + c |x|) that is 1/2 at 0
// to the last bit: near 0, where most of a young model's numbers are, a common error of the slopes would add up. It was
// fitted to 3e-10 in Phi. The exponential is shared with phi.
RESHARPEN_INLINE void gelu_and_slope(f32x16 x, f32x16& gelu, f32x16& slope) {
    const f32x16 cx = 0.31f * abs(x), w = cx * reciprocal(broadcast(1) + cx);
    const f32x16 e = exp2_below((-0.5f * kLog2E) * x * x);
    f32x16 q = broadcast(-0.05036279186606407f);
    constexpr float c[] = {0.06403146684169769f,
                           0.1109963059425354f,
                           -0.10537160187959671f,
                           -0.5478748679161072f,
                           1.3145500421524048f,
                           -1.2869106531143188f,
                           0.5f};
    RESHARPEN_UNROLL
    for (float c_i : c) q = q * w + broadcast(c_i);
    const f32x16 tail = q * e;
    const f32x16 phi = select(x > broadcast(0), broadcast(1) - tail, tail);
    gelu = x * phi;
    slope = phi + 0.3989422804f * x * e;
}

}  // namespace resharpen

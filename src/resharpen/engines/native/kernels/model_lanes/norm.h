// RMSNorm with one epsilon and one gain vector per model, and its backward.
#pragma once

#include "../vector.h"

namespace {

// r = (mean(x^2) + epsilon)^(-1/2), from the sum of squares.
template <int D>
RESHARPEN_INLINE f32x16 inverse_rms(f32x16 sum_of_squares, f32x16 epsilon) {
    return rsqrt((1.0f / D) * sum_of_squares + epsilon);
}

// From r dr, the derivative by each x_i is this times x_i: dr / dx_i = -r^3 x_i / D.
template <int D>
RESHARPEN_INLINE f32x16 d_inverse_rms(f32x16 r, f32x16 r_dr) {
    return (-1.0f / D) * (r * r * r_dr);
}

// y = x r gain; returns r, which the backward needs.
template <int D>
inline f32x16 rms_norm(const f32x16* x, const f32x16* gain, f32x16 epsilon, f32x16* y) {
    const f32x16 r = inverse_rms<D>(dot<D>(x, x), epsilon);
    for (int i = 0; i < D; i++) y[i] = x[i] * r * gain[i];
    return r;
}

// Adds to dgain; dx may be dy, or is added to.
//     dgain_i += x_i r dy_i          dx_i (+)= r gain_i dy_i - r^3 x_i / D * sum_k x_k gain_k dy_k
template <int D, bool kAdd>
inline void rms_norm_backward(const f32x16* x, const f32x16* gain, f32x16 r, const f32x16* dy, f32x16* dx,
                              f32x16* dgain) {
    f32x16 dr = broadcast(0);
    for (int i = 0; i < D; i++) dr += x[i] * gain[i] * dy[i];
    const f32x16 along_x = d_inverse_rms<D>(r, r * dr);
    for (int i = 0; i < D; i++) {
        const f32x16 d = dy[i];
        dgain[i] += x[i] * r * d;
        const f32x16 value = r * gain[i] * d + along_x * x[i];
        dx[i] = kAdd ? dx[i] + value : value;
    }
}

}  // namespace

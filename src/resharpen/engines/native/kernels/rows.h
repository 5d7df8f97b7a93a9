// What is done to one row of activations: a vector is sixteen neighbouring features of one position of one model.
#pragma once

#include "vector.h"

namespace resharpen {

RESHARPEN_INLINE float horizontal_sum(f16 x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x.part[0]);
#else
    float lanes[kLanes];
    store(lanes, x);
    for (int n = kLanes / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) lanes[i] += lanes[i + n];
    return lanes[0];
#endif
}

RESHARPEN_INLINE float horizontal_max(f16 x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x.part[0]);
#else
    float lanes[kLanes];
    store(lanes, x);
    for (int n = kLanes / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) lanes[i] = lanes[i] > lanes[i + n] ? lanes[i] : lanes[i + n];
    return lanes[0];
#endif
}

// The first n lanes of x, and `other` in the rest.
RESHARPEN_INLINE f16 first_lanes(int n, f16 x, float other) {
#if defined(__AVX512F__)
    f16 y;
    const __mmask16 mask = __mmask16((1u << n) - 1);
    y.part[0] = (FloatPart)_mm512_mask_mov_ps(_mm512_set1_ps(other), mask, (__m512)x.part[0]);
    return y;
#else
    return select(mask_of((1u << n) - 1), x, broadcast(other));
#endif
}

// The lanes of x from n on, and `other` in those before.
RESHARPEN_INLINE f16 lanes_from(int n, f16 x, float other) {
#if defined(__AVX512F__)
    f16 y;
    y.part[0] = (FloatPart)_mm512_mask_mov_ps((__m512)x.part[0], __mmask16((1u << n) - 1), _mm512_set1_ps(other));
    return y;
#else
    return select(mask_of((1u << n) - 1), broadcast(other), x);
#endif
}

// exp2 of what should be at most 0; an infinity below becomes 2^-126 and not NaN.
RESHARPEN_INLINE f16 exp2_below(f16 x) { return exp2_nonpositive(max(broadcast(-126), x)); }

// ---- RMSNorm of a row of D features in N vectors --------------------------------------------------------------------

template <int D, int N>
RESHARPEN_INLINE float inverse_rms_of(const f16* x, float epsilon) {
    return 1.0f / std::sqrt(horizontal_sum(dot<N>(x, x)) * (1.0f / D) + epsilon);
}

// x <- x r gain; returns r.
template <int D, int N>
RESHARPEN_INLINE float norm_row(f16* x, const float* gain, float epsilon) {
    const float r = inverse_rms_of<D, N>(x, epsilon);
    RESHARPEN_UNROLL
    for (int i = 0; i < N; i++) x[i] = r * x[i] * load(gain + i * kLanes);
    return r;
}

// A sum over many rows, taken of sums over a few: its rounding error grows with the root of their number otherwise.
template <int N>
class RowSum {
    static constexpr int kFew = 16;
    f16 few[N], all[N];
    int n = 0;

  public:
    RowSum() {
        for (int i = 0; i < N; i++) few[i] = all[i] = broadcast(0);
    }
    // Where to add a row.
    RESHARPEN_INLINE f16* next() {
        if (n++ % kFew == 0) flush();
        return few;
    }
    void flush() {
        for (int i = 0; i < N; i++) all[i] += few[i], few[i] = broadcast(0);
    }
    void add_to(float* y) {
        flush();
        for (int i = 0; i < N; i++) store(y + i * kLanes, load(y + i * kLanes) + all[i]);
    }
};

// d, the derivative by the row's normalised value, becomes the derivative by x; dgain is added to.
//     dgain_i += x_i r d_i          d_i <- r gain_i d_i - r^3 x_i / D * sum_k x_k gain_k d_k
template <int D, int N>
RESHARPEN_INLINE void norm_row_backward(const float* x, const float* gain, float r, f16* d, f16* dgain) {
    f16 along = broadcast(0);
    RESHARPEN_UNROLL
    for (int i = 0; i < N; i++) {
        const f16 x_i = load(x + i * kLanes);
        dgain[i] += r * x_i * d[i];
        d[i] = d[i] * load(gain + i * kLanes);
        along += x_i * d[i];
    }
    const float scale = -r * r * (r * horizontal_sum(along)) * (1.0f / D);
    RESHARPEN_UNROLL
    for (int i = 0; i < N; i++) d[i] = r * d[i] + scale * load(x + i * kLanes);
}

// ---- GELU -----------------------------------------------------------------------------------------------------------

// gelu = x Phi(x) and its slope Phi(x) + x phi(x), Phi and phi those of the normal distribution.
//
// Phi(-|x|) = exp(-x^2/2) Q with Q = erfcx(|x| / sqrt 2) / 2, a polynomial in w = c |x| / (1 + c |x|) that is 1/2 at 0 to
// the last bit: near 0, where most of a young model's numbers are, a common error of the slopes would add up. It was
// fitted to 3e-10 in Phi. The exponential is shared with phi.
RESHARPEN_INLINE void gelu_and_slope(f16 x, f16& gelu, f16& slope) {
    const f16 cx = 0.31f * abs(x), w = cx * reciprocal(broadcast(1) + cx);
    const f16 e = exp2_below((-0.5f * kLog2E) * x * x);
    f16 q = broadcast(-0.05036279186606407f);
    constexpr float c[] = {0.06403146684169769f, 0.1109963059425354f, -0.10537160187959671f, -0.5478748679161072f,
                           1.3145500421524048f,  -1.2869106531143188f, 0.5f};
    RESHARPEN_UNROLL
    for (float c_i : c) q = q * w + broadcast(c_i);
    const f16 tail = q * e;
    const f16 phi = select(x > broadcast(0), broadcast(1) - tail, tail);
    gelu = x * phi;
    slope = phi + 0.3989422804f * x * e;
}

}  // namespace resharpen

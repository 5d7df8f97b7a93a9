// Rows of one model's features, where a vector is sixteen neighbouring ones.
#pragma once

#include "rows.h"

namespace resharpen {

constexpr float kLog2ERest = 1.92596299e-8f;  // log2(e) minus its float

// exp(x) for x <= 0: the product x log2(e) is rounded, so what that and the float log2(e) miss comes as a factor.
RESHARPEN_INLINE f16 exp_nonpositive(f16 a) {
    const f16 x = max(broadcast(-87.0f), a);
    const f16 product = kLog2E * x;
    const f16 high = map([](FloatPart y) { return (FloatPart)((IntPart)y & ~0xfff); }, x);
    // Exact products of short parts: high has 12 bits, and so have the two halves of log2(e).
    const f16 rest = ((1.44238281f * high - product) + 0.000312209129f * high) + kLog2E * (x - high) + kLog2ERest * x;
    const f16 y = exp2_nonpositive(product);
    return y + (0.693147181f * rest) * y;
}

// The first n elements of a vector.
RESHARPEN_INLINE void store_first(float* to, int n, f16 x) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, __mmask16((1u << n) - 1), (__m512)x.part[0]);
#else
    float lanes[kLanes];
    store(lanes, x);
    for (int i = 0; i < n; i++) to[i] = lanes[i];
#endif
}

template <int VECTORS>
RESHARPEN_INLINE float dot_row(const float* a, const float* b) {
    f16 even = load(a) * load(b), odd = broadcast(0);
    RESHARPEN_UNROLL
    for (int v = 1; v < VECTORS; v++) (v % 2 ? odd : even) += load(a + 16 * v) * load(b + 16 * v);
    return horizontal_sum(even + odd);
}

// y += a x
template <int VECTORS>
RESHARPEN_INLINE void add_row(float* y, float a, const float* x) {
    const f16 factor = broadcast(a);
    RESHARPEN_UNROLL
    for (int v = 0; v < VECTORS; v++) store(y + 16 * v, load(y + 16 * v) + factor * load(x + 16 * v));
}

// y += the sum of n rows that lie `stride` apart; a few at a time first, so that rounding errors do not pile up.
template <int VECTORS>
inline void add_rows(float* y, int n, const float* rows, int stride) {
    for (int v = 0; v < VECTORS; v++) {
        f16 all = broadcast(0);
        for (int from = 0; from < n; from += 16) {
            f16 some = broadcast(0);
            for (int i = from; i < (from + 16 < n ? from + 16 : n); i++) some += load(rows + i * stride + 16 * v);
            all += some;
        }
        store(y + 16 * v, load(y + 16 * v) + all);
    }
}

}  // namespace resharpen

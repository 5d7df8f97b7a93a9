// Operations on rows of activations: a vector is sixteen neighboring features.
#pragma once

#include "../vector.h"

namespace {

#if defined(__AVX__) && !defined(__AVX512F__)
// Reduction of sixteen lanes: first lanes i and i + 8, then i and i + 4, and so on.
template <class F>
RESHARPEN_INLINE float halved(f32x16 x, F f) {
    const __m256 a = (__m256)x.reg[0], b = (__m256)x.reg[1];
    const __m128 low = f(_mm256_castps256_ps128(a), _mm256_castps256_ps128(b));
    const __m128 four = f(low, f(_mm256_extractf128_ps(a, 1), _mm256_extractf128_ps(b, 1)));
    const __m128 two = f(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(f(two, _mm_movehdup_ps(two)));
}
#endif

RESHARPEN_INLINE float horizontal_sum(f32x16 x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x.reg[0]);
#elif defined(__AVX__)
    return halved(x, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
#else
    float lanes[kLanes];
    store(lanes, x);
    for (int n = kLanes / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) lanes[i] += lanes[i + n];
    return lanes[0];
#endif
}

RESHARPEN_INLINE float horizontal_max(f32x16 x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x.reg[0]);
#elif defined(__AVX__)
    return halved(x, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
#else
    float lanes[kLanes];
    store(lanes, x);
    for (int n = kLanes / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) lanes[i] = lanes[i] > lanes[i + n] ? lanes[i] : lanes[i + n];
    return lanes[0];
#endif
}

// True in the first n lanes.
RESHARPEN_INLINE Mask first_lanes(int n) {
    alignas(64) static constexpr int32_t kLane[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    Mask y;
    RESHARPEN_UNROLL
    for (int i = 0; i < kPerVector; i++) {
        IntRegister lane;
        std::memcpy(&lane, kLane + i * kLanes / kPerVector, kRegisterBytes);
        y.reg[i] = lane < n;
    }
    return y;
}

// The first n lanes of x, and `other` in the rest.
RESHARPEN_INLINE f32x16 first_lanes(int n, f32x16 x, float other) {
#if defined(__AVX512F__)
    f32x16 y;
    const __mmask16 mask = __mmask16((1u << n) - 1);
    y.reg[0] = (FloatRegister)_mm512_mask_mov_ps(_mm512_set1_ps(other), mask, (__m512)x.reg[0]);
    return y;
#else
    return select(first_lanes(n), x, broadcast(other));
#endif
}

// The lanes of x from n on, and `other` in those before.
RESHARPEN_INLINE f32x16 lanes_from(int n, f32x16 x, float other) {
#if defined(__AVX512F__)
    f32x16 y;
    y.reg[0] = (FloatRegister)_mm512_mask_mov_ps((__m512)x.reg[0], __mmask16((1u << n) - 1), _mm512_set1_ps(other));
    return y;
#else
    return select(first_lanes(n), broadcast(other), x);
#endif
}

// The first n elements of a vector.
RESHARPEN_INLINE void store_first(float* to, int n, f32x16 x) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, __mmask16((1u << n) - 1), (__m512)x.reg[0]);
#else
    float lanes[kLanes];
    store(lanes, x);
    for (int i = 0; i < n; i++) to[i] = lanes[i];
#endif
}

// exp2 for x <= 0, where -infinity gives 2^-126 and not NaN.
RESHARPEN_INLINE f32x16 exp2_below(f32x16 x) { return exp2_nonpositive(max(broadcast(-126), x)); }

constexpr float kLog2ERest = 1.92596299e-8f;  // log2(e) minus its float

// exp(x) for x <= 0. The rounding errors of x log2(e) and of the float log2(e) are corrected by a factor.
RESHARPEN_INLINE f32x16 exp_nonpositive(f32x16 a) {
    const f32x16 x = max(broadcast(-87.0f), a);
    const f32x16 product = kLog2E * x;
    const f32x16 high = map([](FloatRegister y) { return (FloatRegister)((IntRegister)y & ~0xfff); }, x);
    // Exact products: high and both halves of log2(e) have 12 bits.
    const f32x16 rest =
        ((1.44238281f * high - product) + 0.000312209129f * high) + kLog2E * (x - high) + kLog2ERest * x;
    const f32x16 y = exp2_nonpositive(product);
    return y + (0.693147181f * rest) * y;
}

// The largest of some logits, and the sum of exp(logit - largest).
struct Normalizer {
    float highest, sum;
    double negative_log_likelihood(float logit) const { return std::log(double(sum)) + (double(highest) - logit); }
};

// ---- rows in memory ----------------------------------------------------------------------------------------------

template <int VECTORS>
RESHARPEN_INLINE float dot_row(const float* a, const float* b) {
    f32x16 even = load(a) * load(b), odd = broadcast(0);
    RESHARPEN_UNROLL
    for (int v = 1; v < VECTORS; v++) (v % 2 ? odd : even) += load(a + 16 * v) * load(b + 16 * v);
    return horizontal_sum(even + odd);
}

// y += a x
template <int VECTORS>
RESHARPEN_INLINE void add_row(float* y, float a, const float* x) {
    const f32x16 factor = broadcast(a);
    RESHARPEN_UNROLL
    for (int v = 0; v < VECTORS; v++) store(y + 16 * v, load(y + 16 * v) + factor * load(x + 16 * v));
}

// y += the sum of n rows that are `stride` apart, each times its weight if given; in partial sums, to reduce the
// rounding error.
template <int VECTORS>
inline void add_rows(float* y, int n, const float* rows, int stride, const float* weight = nullptr) {
    for (int v = 0; v < VECTORS; v++) {
        f32x16 all = broadcast(0);
        for (int from = 0; from < n; from += 16) {
            f32x16 some = broadcast(0);
            for (int i = from; i < (from + 16 < n ? from + 16 : n); i++) {
                const f32x16 x = load(rows + i * stride + 16 * v);
                some += weight ? weight[i] * x : x;
            }
            all += some;
        }
        store(y + 16 * v, load(y + 16 * v) + all);
    }
}

// A sum over many rows, from partial sums, to reduce the rounding error.
template <int N>
class RowSum {
    static constexpr int kFew = 16;
    f32x16 few[N], all[N];
    int n = 0;

  public:
    RowSum() {
        for (int i = 0; i < N; i++) few[i] = all[i] = broadcast(0);
    }
    // Where to add a row.
    RESHARPEN_INLINE f32x16* next() {
        if (n++ % kFew == 0) flush();
        return few;
    }
    void flush() {
        for (int i = 0; i < N; i++) all[i] += few[i], few[i] = broadcast(0);
    }
    void add_to(float* y, int floats) {
        flush();
        for (int i = 0; i < floats / kLanes; i++) store(y + i * kLanes, load(y + i * kLanes) + all[i]);
    }
};

// ---- the norm of a row ---------------------------------------------------------------------------------------------

// RMSNorm or LayerNorm of N vectors: groups of WIDTH floats, of which the first REAL are features and the others
// padding, which stays zero. LayerNorm is RMSNorm of the centered row plus a bias, which follows the gain in memory.
template <int N, int WIDTH, int REAL>
struct RowNorm {
    static constexpr int kRow = N * kLanes, kFeatures = kRow / WIDTH * REAL;
    bool layer;
    float epsilon;

    int parameters() const { return layer ? 2 * kRow : kRow; }

    // x <- x r gain + bias; returns r.
    RESHARPEN_INLINE float forward(f32x16* x, const float* gain) const {
        if (layer) center(x);
        const float r = 1.0f / std::sqrt(horizontal_sum(dot<N>(x, x)) * (1.0f / kFeatures) + epsilon);
        RESHARPEN_UNROLL
        for (int i = 0; i < N; i++) x[i] = r * x[i] * load(gain + i * kLanes);
        if (layer)
            for (int i = 0; i < N; i++) x[i] += load(gain + kRow + i * kLanes);
        return r;
    }

    // y = norm(x) of n rows that are `stride` apart, and r of each.
    void forward_rows(int n, const float* x, int stride, const float* gain, float* y, float* r) const {
        for (int i = 0; i < n; i++, x += stride, y += stride) {
            f32x16 row[N];
            RESHARPEN_UNROLL
            for (int j = 0; j < N; j++) row[j] = load(x + j * kLanes);
            r[i] = forward(row, gain);
            RESHARPEN_UNROLL
            for (int j = 0; j < N; j++) store(y + j * kLanes, row[j]);
        }
    }

    // d, the derivative by the normalized row, becomes the derivative by the row; d_gain is added to.
    //     dgain_i += x_i r d_i          d_i <- r gain_i d_i - r^3 x_i / D * sum_k x_k gain_k d_k
    // and for LayerNorm, with centered x, dbias_i += d_i, and finally d is centered.
    RESHARPEN_INLINE void backward(const float* row, const float* gain, float r, f32x16* d, f32x16* d_gain) const {
        f32x16 x[N], along = broadcast(0);
        RESHARPEN_UNROLL
        for (int i = 0; i < N; i++) x[i] = load(row + i * kLanes);
        if (layer) {
            center(x);
            for (int i = 0; i < N; i++) d_gain[N + i] += d[i];
        }
        RESHARPEN_UNROLL
        for (int i = 0; i < N; i++) {
            d_gain[i] += r * x[i] * d[i];
            d[i] = d[i] * load(gain + i * kLanes);
            along += x[i] * d[i];
        }
        const float scale = -r * r * (r * horizontal_sum(along)) * (1.0f / kFeatures);
        RESHARPEN_UNROLL
        for (int i = 0; i < N; i++) d[i] = r * d[i] + scale * x[i];
        if (layer) center(d);
    }

    static void center(f32x16* x) {
        f32x16 sum = x[0];
        for (int i = 1; i < N; i++) sum += x[i];
        const f32x16 mean = broadcast(horizontal_sum(sum) * (1.0f / kFeatures));
        for (int i = 0; i < N; i++) {
            const int left = REAL - i * kLanes % WIDTH, real = left < 0 ? 0 : left > kLanes ? kLanes : left;
            x[i] = first_lanes(real, x[i] - mean, 0);
        }
    }

    // The gradient by gain and bias, summed over rows.
    using Sum = RowSum<2 * N>;
};

}  // namespace

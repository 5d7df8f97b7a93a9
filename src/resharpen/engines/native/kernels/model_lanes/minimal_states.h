// The minimal transformer: a state from its sum of rows to the loss, and backward; minimal.h has the formulas.
#pragma once

#include "minimal_attention.h"

namespace {

// With several registers per vector a state does not fit into registers, and one copy of `forward` for training and
// scores halves the compile time.
#if defined(__AVX512F__)
#define RESHARPEN_IN_REGISTERS RESHARPEN_INLINE
#else
#define RESHARPEN_IN_REGISTERS __attribute__((noinline))
#endif

// Intermediate values of one state, as far as possible in registers. The backward replaces `sum` by its gradient.
struct State {
    f32x16* sum;  // [ T | Z | o ], the sum of weighted rows, not yet divided by Z
    f32x16 y[V];  // logits in base 2, relative to the largest
    f32x16 p[V];  // 2^y, then the gradient of the logits
    f32x16 z[D];  // the residual stream, x_t + o_scale g_out o
    f32x16 inverse_z, r_o, o_scale, r_1, r_2, mean_o, z_squared, z_along_o, gained_squared, gained_along_o;
    f32x16 sum_p, bits, along_logits, along_T, d_z_1, d_z_2, d_o;
};

// ---- forward -------------------------------------------------------------------------------------------------------

// z^2 and z . g_out o from the forms. A negative square is a rounding error.
RESHARPEN_INLINE void squares_by_forms(f32x16 x_squared, State& s) {
    const f32x16 o_squared = max(broadcast(0), s.sum[kForm + 1]);
    s.z_along_o = s.sum[kC] + s.o_scale * o_squared;
    s.z_squared = max(broadcast(0), x_squared + s.o_scale * (s.sum[kC] + s.z_along_o));
}

// z = x_t + o_scale g_out o, its square, and the derivative of that by o_scale.
template <bool kOut>
RESHARPEN_INLINE void squares_of_z(const Setup& setup, int t, const Tokens& at, State& s) {
    f32x16 squares[2] = {broadcast(0), broadcast(0)}, along_o[2] = {broadcast(0), broadcast(0)};
    RESHARPEN_UNROLL
    for (int i = 0; i < D; i++) {
        const f32x16 o = kOut ? at.gain_out[i] * s.sum[kO + i] : s.sum[kO + i];
        s.z[i] = at.x[t][i] + s.o_scale * o;
        squares[i % 2] += s.z[i] * s.z[i];
        along_o[i % 2] += s.z[i] * o;
    }
    s.z_squared = squares[0] + squares[1];
    s.z_along_o = along_o[0] + along_o[1];
    if (!setup.double_norm()) return;
    s.gained_squared = s.gained_along_o = broadcast(0);
    for (int i = 0; i < D; i++) {
        const f32x16 gained = at.gain_1[i] * s.z[i];
        s.gained_squared += gained * gained;
        s.gained_along_o += gained * at.gain_1[i] * (at.gain_out[i] * s.sum[kO + i]);
    }
}

// logits = r_1 r_2 (B_t + o_scale T)
RESHARPEN_INLINE void softmax(const f32x16* base, State& s) {
    f32x16 highest[2] = {broadcast(-INFINITY), broadcast(-INFINITY)}, sum[2] = {broadcast(0), broadcast(0)};
    RESHARPEN_UNROLL
    for (int w = 0; w < V; w++) {
        s.y[w] = base[w] + s.o_scale * s.sum[w];
        highest[w % 2] = max(highest[w % 2], s.y[w]);
    }
    const f32x16 scale = kLog2E * (s.r_1 * s.r_2), shift = scale * max(highest[0], highest[1]);
    RESHARPEN_UNROLL
    for (int w = 0; w < V; w++) {
        s.y[w] = scale * s.y[w] - shift;
        s.p[w] = exp2_nonpositive(s.y[w]);
        sum[w % 2] += s.p[w];
    }
    s.sum_p = sum[0] + sum[1];
}

template <class N>
RESHARPEN_IN_REGISTERS void forward(const Setup& setup, int t, const Tokens& at, const Forms& forms, f32x16* sum,
                                    State& s) {
    s.sum = sum;
    s.o_scale = s.inverse_z = reciprocal(sum[kZ]);
    s.r_1 = s.r_2 = broadcast(1);
    if constexpr (N::kOut) {
        const f32x16 squared = N::kForms ? max(broadcast(0), sum[kForm]) : dot<D>(sum + kO, sum + kO);
        s.mean_o = s.inverse_z * s.inverse_z * squared;
        s.r_o = inverse_rms<D>(s.mean_o, setup.epsilon);
        s.o_scale = s.r_o * s.inverse_z;
    }
    if constexpr (N::kNorm) {
        if constexpr (N::kForms)
            squares_by_forms(forms.x_squared[t], s);
        else
            squares_of_z<N::kOut>(setup, t, at, s);
        (setup.placement.residual ? s.r_1 : s.r_2) = inverse_rms<D>(s.z_squared, setup.epsilon);
        if (setup.double_norm()) s.r_2 = inverse_rms<D>(s.r_1 * s.r_1 * s.gained_squared, setup.epsilon);
    }
    softmax(at.base[t], s);
}

// 1/2 sum_w |p_w - p*_w|, p* uniform on the absent tokens
inline f32x16 total_variation(const State& s, uint32_t set) {
    const f32x16 uniform = broadcast(1.0f / float(V - __builtin_popcount(set)));
    const f32x16 inverse_sum = reciprocal(s.sum_p);
    f32x16 sum = broadcast(0);
    for (int w = 0; w < V; w++) {
        const f32x16 p = s.p[w] * inverse_sum;
        sum += abs(set >> w & 1 ? p : p - uniform);
    }
    return 0.5f * sum;
}

// ---- backward ------------------------------------------------------------------------------------------------------

// d logits = weight p - counts. These sum to zero, so their product with the logits can use relative logits. The loss
// in bits is sum_w counts_w (log2 sum p - y_w).
RESHARPEN_INLINE void logits_backward(State& s, const Minibatch<V>::State& counted) {
    const f32x16 weight = counted.weight * reciprocal(s.sum_p), d_T = s.r_1 * s.r_2 * s.o_scale;
    f32x16 chosen = broadcast(0);
    f32x16 along_logits[2] = {broadcast(0), broadcast(0)}, along_T[2] = {broadcast(0), broadcast(0)};
    RESHARPEN_UNROLL
    for (int w = 0; w < V; w++) {
        const f32x16 d = weight * s.p[w] - broadcast(counted.counts[w]);
        chosen += counted.counts[w] * s.y[w];
        along_logits[w % 2] += d * s.y[w];
        along_T[w % 2] += d * s.sum[w];
        s.p[w] = d;
        s.sum[w] = d_T * d;
    }
    s.bits = counted.weight * log2(s.sum_p) - chosen;
    s.along_logits = kLn2 * (along_logits[0] + along_logits[1]);
    s.along_T = along_T[0] + along_T[1];
}

template <int COUNT>
RESHARPEN_INLINE void base_backward(const State* s, f32x16* d_base) {
    RESHARPEN_UNROLL
    for (int w = 0; w < V; w++) {
        f32x16 d = broadcast(0);
        RESHARPEN_UNROLL
        for (int b = 0; b < COUNT; b++) d += s[b].r_1 * s[b].r_2 * s[b].p[w];
        d_base[w] += d;
    }
}

// Backward of the scalars: d z = (d_z_1 + d_z_2 g_1^2) z, d o = d_o o + .., and Z. The derivative by a scalar times the
// scalar is the product of what it scales with its gradient.
template <class N>
RESHARPEN_INLINE void scalars_backward(const Setup& setup, State& s) {
    f32x16 along_o = s.r_1 * s.r_2 * s.along_T;
    if constexpr (N::kNorm) {
        s.d_z_1 = d_inverse_rms<D>(s.r_1 * s.r_2, s.along_logits);
        if (setup.double_norm()) {
            s.d_z_2 = s.r_1 * s.r_1 * d_inverse_rms<D>(s.r_2, s.along_logits);
            s.d_z_1 = d_inverse_rms<D>(s.r_1, s.along_logits + s.d_z_2 * s.gained_squared);
            along_o += s.d_z_2 * s.gained_along_o;
        }
        along_o += s.d_z_1 * s.z_along_o;
    }
    along_o *= s.o_scale;
    if constexpr (N::kOut) {
        const f32x16 d = d_inverse_rms<D>(s.r_o, along_o);  // d (o / Z) = d o / Z
        along_o += d * s.mean_o;
        s.d_o = d * s.inverse_z * s.inverse_z;
    }
    s.sum[kZ] = -s.inverse_z * along_o;
}

template <class N>
RESHARPEN_INLINE void squares_by_forms_backward(State& s, f32x16& d_x_squared) {
    if constexpr (N::kOut) s.sum[kForm] = 0.5f * s.d_o;
    if constexpr (N::kNorm) {
        s.sum[kC] = s.o_scale * s.d_z_1;
        s.sum[kForm + 1] = 0.5f * s.o_scale * s.sum[kC];
        d_x_squared += 0.5f * s.d_z_1;
    }
}

// From the scalars to the gradients by o, x_t and the gains.
template <bool kOut, int COUNT, bool kDouble>
RESHARPEN_INLINE void norms_backward(int t, const Tokens& at, State* s, TokenGradients& d) {
    RESHARPEN_UNROLL
    for (int i = 0; i < D; i++) {
        f32x16 d_x_sum = broadcast(0), d_out_sum = broadcast(0), d_1_sum = broadcast(0);
        RESHARPEN_UNROLL
        for (int b = 0; b < COUNT; b++) {
            f32x16 d_z = s[b].d_z_1 * s[b].z[i];
            if constexpr (kDouble) {
                const f32x16 d_gained = s[b].d_z_2 * at.gain_1[i] * s[b].z[i];
                d_z += d_gained * at.gain_1[i];
                d_1_sum += d_gained * s[b].z[i];
            }
            d_x_sum += d_z;
            f32x16& o = s[b].sum[kO + i];
            f32x16 d_o = s[b].o_scale * d_z;
            if constexpr (kOut) {
                d_out_sum += d_o * o;
                d_o = s[b].d_o * o + d_o * at.gain_out[i];
            }
            o = d_o;
        }
        d.x[t][i] += d_x_sum;
        if constexpr (kOut) d.gain_out[t][i] += d_out_sum;
        if constexpr (kDouble) d.gain_1[t][i] += d_1_sum;
    }
}

// Compensated summation.
template <int COUNT>
RESHARPEN_INLINE void add_loss(const State* s, f32x16& bits, f32x16& rounded_off) {
    f32x16 sum = s[0].bits;
    for (int b = 1; b < COUNT; b++) sum += s[b].bits;
    const f32x16 corrected = sum - rounded_off, longer = bits + corrected;
    rounded_off = (longer - bits) - corrected;
    bits = longer;
}

// Forward and backward of COUNT states: replaces their sums by the gradients. Not inlined: contraction of products and
// sums, and so the rounding, would depend on the caller.
template <class N, int COUNT>
__attribute__((noinline)) void train_block(Minimal& m, int t, f32x16 (*sums)[kStride],
                                           const Minibatch<V>::State* counted) {
    State s[COUNT];
    for (int b = 0; b < COUNT; b++) forward<N>(m.setup, t, m.at, m.forms, sums[b], s[b]);
    for (int b = 0; b < COUNT; b++) logits_backward(s[b], counted[b]);
    base_backward<COUNT>(s, m.d.base[t]);
    for (int b = 0; b < COUNT; b++) scalars_backward<N>(m.setup, s[b]);
    if constexpr (N::kForms)
        for (int b = 0; b < COUNT; b++) squares_by_forms_backward<N>(s[b], m.forms.d_x_squared[t]);
    else if constexpr (N::kNorm)
        m.setup.double_norm() ? norms_backward<N::kOut, COUNT, true>(t, m.at, s, m.d)
                              : norms_backward<N::kOut, COUNT, false>(t, m.at, s, m.d);
    else if constexpr (N::kOut)
        for (int b = 0; b < COUNT; b++)
            for (int i = 0; i < D; i++) s[b].sum[kO + i] *= s[b].d_o;
    add_loss<COUNT>(s, m.bits, m.rounded_off);
}

}  // namespace

// The minimal transformer: the attention weights of one last token, and their gradient; minimal.h has the formulas.
#pragma once

#include "../batches/set_complement.h"
#include "minimal_forms.h"

namespace {

constexpr float kFar = 40;

// Among large sets there are always some of even attention, whose gradient is not small beside what others round off.
inline float wide_span(const Setup& setup) { return setup.subsets ? 24 : 8; }

// e_tj = 2^(attention - max)
inline void weigh_tokens(const Setup& setup, int t, const Tokens& at, Weights& w) {
    for (int j = 0; j < V; j++) w.logits[j] = setup.by_size() ? w.factor * at.attention[t][j] : at.attention[t][j];
    f32x16 highest = w.logits[0], lowest = w.logits[0];
    for (int j = 1; j < V; j++) highest = max(w.logits[j], highest), lowest = min(w.logits[j], lowest);
    w.wide = highest - lowest > broadcast(wide_span(setup));
    w.far = highest - w.logits[t] > broadcast(kFar);
    w.any_wide = bits(w.wide) != 0;
    w.any_far = bits(w.far) != 0;
    for (int j = 0; j < V; j++) {
        w.e[j] = exp2_nonpositive(w.logits[j] - highest);
        w.d_e[j] = broadcast(0);
    }
    w.seen = 0;
}

// From d e_j to the logits of some lanes: e_j (d e_j - mean of d e by e), and from powers of two and after the
// division by sqrt(d_k) to q . k. First that of the token with the largest weight is subtracted from all: where it
// has nearly all the attention its d e is nearly the mean, and the mean of what is left is small and exact.
inline void add_attention_gradient(const Setup& setup, int t, const Tokens& at, const Weights& w, uint32_t set,
                                   const f32x16* e, f32x16* d_e, Mask lanes, TokenGradients& d) {
    f32x16 largest = broadcast(-1), its_d_e = broadcast(0), its_logit = broadcast(0);
    for (uint32_t left = set; left; left &= left - 1) {
        const int j = __builtin_ctz(left);
        const Mask larger = e[j] > largest;
        its_d_e = select(larger, d_e[j], its_d_e);
        its_logit = select(larger, at.attention[t][j], its_logit);
        largest = max(largest, e[j]);
    }
    f32x16 z = broadcast(0), sum = broadcast(0), along = broadcast(0);
    for (uint32_t left = set; left; left &= left - 1) {
        const int j = __builtin_ctz(left);
        d_e[j] -= its_d_e;
        z += e[j];
        sum += e[j] * d_e[j];
    }
    const f32x16 mean = sum * reciprocal(z);
    for (uint32_t left = set; left; left &= left - 1) d_e[__builtin_ctz(left)] -= mean;
    const float scale = 1 / std::sqrt(float(K));
    for (uint32_t left = set; left; left &= left - 1) {
        const int j = __builtin_ctz(left);
        const f32x16 by_logit = select(lanes, scale * e[j] * d_e[j], broadcast(0));
        d.attention[t][j] += setup.by_size() ? w.factor * by_logit : by_logit;
        // these sum to zero: without the largest, least is rounded off
        along += by_logit * (at.attention[t][j] - its_logit);
    }
    if (setup.attention == AttentionKind::ssmax) d.ssmax += w.log_n * (kLn2 / scale) * along;
}

// With d = R_j, of columns FIRST .. : d value_j += e_tj R_j; returns d e_tj = R_j . value_j.
template <int FIRST, int COLUMNS>
RESHARPEN_INLINE f32x16 row_backward(f32x16 e_j, const f32x16* value_j, const f32x16* d, f32x16* d_value_j) {
    f32x16 sum[2] = {broadcast(0), broadcast(0)};
    RESHARPEN_UNROLL
    for (int c = FIRST; c < COLUMNS; c++) {
        sum[c % 2] += d[c - FIRST] * value_j[c];
        d_value_j[c] += e_j * d[c - FIRST];
    }
    return sum[0] + sum[1];
}

// e_j of a set, in far lanes relative to its own maximum.
inline void weights_in(const Weights& w, int t, uint32_t set, f32x16* e) {
    f32x16 highest = w.logits[t];
    for (uint32_t left = set; left; left &= left - 1) highest = max(highest, w.logits[__builtin_ctz(left)]);
    for (uint32_t left = set; left; left &= left - 1) {
        const int j = __builtin_ctz(left);
        e[j] = select(w.far, exp2_nonpositive(w.logits[j] - highest), w.e[j]);
    }
}

}  // namespace

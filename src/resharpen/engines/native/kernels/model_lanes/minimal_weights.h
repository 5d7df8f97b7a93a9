// The minimal transformer: the attention weights of one last token, sums of rows by subsets, and their gradients;
// minimal.h has the formulas.
#pragma once

#include "../batches/set_complement.h"
#include "minimal_forms.h"

namespace {

constexpr float kFar = 40;

// With large sets some states have even attention, whose gradient dominates the rounding errors of others.
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

// From d e_j to d (q . k) in the given lanes: e_j (d e_j - mean of d e weighted by e) / sqrt(d_k). First d e of the
// token with the largest weight is subtracted from all: if it has nearly all the attention, its d e is nearly the mean,
// and the mean of the differences is small and exact.
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
        // by_logit sums to zero, so its_logit changes nothing but the rounding error
        along += by_logit * (at.attention[t][j] - its_logit);
    }
    if (setup.attention == AttentionKind::ssmax) d.ssmax += w.log_n * (kLn2 / scale) * along;
}

// With d = R_j, from column FIRST on: d value_j += e_tj R_j; returns d e_tj = R_j . value_j.
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

// e_j of a set, in far lanes relative to the maximum of the set.
inline void weights_in(const Weights& w, int t, uint32_t set, f32x16* e) {
    f32x16 highest = w.logits[t];
    for (uint32_t left = set; left; left &= left - 1) highest = max(highest, w.logits[__builtin_ctz(left)]);
    for (uint32_t left = set; left; left &= left - 1) {
        const int j = __builtin_ctz(left);
        e[j] = select(w.far, exp2_nonpositive(w.logits[j] - highest), w.e[j]);
    }
}

// ---- sums of rows over sets that are split in two; minimal.h says why ----------------------------------------------

constexpr int kLow = V - 1 < 4 ? V - 1 : 4, kSubsets = 1 << kLow;  // the low group of tokens

struct Prefix {
    uint32_t set, others;  // all tokens; those other than the last, in V - 1 bits
    uint32_t low() const { return others & (kSubsets - 1); }
    uint32_t rest() const { return others >> kLow; }
};

// Of one last token: e_tj value_j, their sums over subsets of the low group and over the current rest, and the
// gradients by these, which are zero between last tokens.
struct Subsets {
    f32x16 row[V][kStride], low_row[kSubsets][kStride], rest_row[kStride];
    f32x16 d_row[V][kStride], d_low_row[kSubsets][kStride], d_rest_row[kStride];
    uint32_t rest, d_rest;  // the sets that rest_row and d_rest_row belong to

    Subsets() { clear(d_row), clear(d_low_row), clear(d_rest_row); }
};

template <int COLUMNS>
RESHARPEN_INLINE void add_to(f32x16* sum, const f32x16* row) {
    RESHARPEN_UNROLL
    for (int c = 0; c < COLUMNS; c++) sum[c] += row[c];
}

template <int COLUMNS>
RESHARPEN_INLINE void clear_row(f32x16* row) {
    RESHARPEN_UNROLL
    for (int c = 0; c < COLUMNS; c++) row[c] = broadcast(0);
}

// The token at a position among those other than t.
inline int other(int t, int position) { return position + (position >= t); }

// Sums over every subset of the low group, including the row of the last token, which is in every state.
template <int COLUMNS>
void sum_subsets(int t, const Weights& w, const Tokens& at, Subsets& s) {
    s.rest = s.d_rest = 0;
    for (int j = 0; j < V; j++) {
        RESHARPEN_UNROLL
        for (int c = 0; c < COLUMNS; c++) s.row[j][c] = w.e[j] * at.value[j][c];
    }
    clear_row<COLUMNS>(s.rest_row);
    RESHARPEN_UNROLL
    for (int c = 0; c < COLUMNS; c++) s.low_row[0][c] = s.row[t][c];
    for (int i = 1; i < kSubsets; i++) {
        const f32x16 *without = s.low_row[i & (i - 1)], *added = s.row[other(t, __builtin_ctz(i))];
        RESHARPEN_UNROLL
        for (int c = 0; c < COLUMNS; c++) s.low_row[i][c] = without[c] + added[c];
    }
}

template <int COLUMNS>
void sum_rest(int t, Subsets& s) {
    clear_row<COLUMNS>(s.rest_row);
    for (uint32_t left = s.rest; left; left &= left - 1)
        add_to<COLUMNS>(s.rest_row, s.row[other(t, kLow + __builtin_ctz(left))]);
}

template <int COLUMNS>
void sum_rest_backward(int t, Subsets& s) {
    for (uint32_t left = s.d_rest; left; left &= left - 1)
        add_to<COLUMNS>(s.d_row[other(t, kLow + __builtin_ctz(left))], s.d_rest_row);
    clear_row<COLUMNS>(s.d_rest_row);
}

// To d e_tj and d value_j. Resets all gradients to zero for the next token.
template <int COLUMNS>
void sum_subsets_backward(int t, Weights& w, const Tokens& at, Subsets& s, TokenGradients& d) {
    sum_rest_backward<COLUMNS>(t, s);
    for (int i = kSubsets - 1; i > 0; i--) {
        add_to<COLUMNS>(s.d_low_row[i & (i - 1)], s.d_low_row[i]);
        add_to<COLUMNS>(s.d_row[other(t, __builtin_ctz(i))], s.d_low_row[i]);
        clear_row<COLUMNS>(s.d_low_row[i]);
    }
    add_to<COLUMNS>(s.d_row[t], s.d_low_row[0]);
    clear_row<COLUMNS>(s.d_low_row[0]);
    for (int j = 0; j < V; j++) {
        w.d_e[j] = row_backward<0, COLUMNS>(w.e[j], at.value[j], s.d_row[j], d.value[j]);
        clear_row<COLUMNS>(s.d_row[j]);
    }
}

// sum_{j in S} of the rows for n states
template <int COLUMNS>
void attend_by_subsets(int t, int n, const Prefix* prefix, Subsets& s, f32x16 (*sums)[kStride]) {
    for (int i = 0; i < n; i++) {
        if (prefix[i].rest() != s.rest) s.rest = prefix[i].rest(), sum_rest<COLUMNS>(t, s);
        const f32x16* low = s.low_row[prefix[i].low()];
        RESHARPEN_UNROLL
        for (int c = 0; c < COLUMNS; c++) sums[i][c] = low[c] + s.rest_row[c];
    }
}

// States processed together, so that their dependency chains overlap; those of several registers per vector do anyway.
constexpr int kBlock = kPerVector == 1 ? 4 : 1;

// A block of states with the same rest is summed in registers first.
template <int COLUMNS>
void attend_by_subsets_backward(int t, int n, const Prefix* prefix, const f32x16 (*sums)[kStride], Subsets& s) {
    auto same_rest = [&](int i) {
        bool same = i + kBlock <= n;
        for (int b = 1; b < kBlock && same; b++) same = prefix[i + b].rest() == prefix[i].rest();
        return same;
    };
    for (int i = 0; i < n; i++) add_to<COLUMNS>(s.d_low_row[prefix[i].low()], sums[i]);
    for (int i = 0; i < n; i++) {
        if (prefix[i].rest() != s.d_rest) sum_rest_backward<COLUMNS>(t, s);
        s.d_rest = prefix[i].rest();
        if (same_rest(i)) {
            RESHARPEN_UNROLL
            for (int c = 0; c < COLUMNS; c++) {
                f32x16 sum = sums[i][c];
                RESHARPEN_UNROLL
                for (int b = 1; b < kBlock; b++) sum += sums[i + b][c];
                s.d_rest_row[c] += sum;
            }
            i += kBlock - 1;
        } else {
            add_to<COLUMNS>(s.d_rest_row, sums[i]);
        }
    }
}

}  // namespace

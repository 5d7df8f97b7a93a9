// The minimal transformer: sums of rows over sets that are split in two; minimal.h says why.
#pragma once

#include "minimal_weights.h"

namespace {

constexpr int kLow = V - 1 < 4 ? V - 1 : 4, kSubsets = 1 << kLow;  // the low group of tokens

struct Prefix {
    uint32_t set, others;  // all tokens, and those other than the last, closed up
    uint32_t low() const { return others & (kSubsets - 1); }
    uint32_t rest() const { return others >> kLow; }
};

// Of one last token e_tj value_j, its sums over subsets of the low group and over the rest that was last asked for, and
// their gradients, which are zero but while its states are worked on.
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

// The rows of every subset of the low group; the token itself, which every state has, is in all of them.
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

// To d e_tj and d value_j. Leaves all gradients at zero for the next token.
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

// BLOCK states that share their rest are added up in registers first.
template <int COLUMNS, int BLOCK>
void attend_by_subsets_backward(int t, int n, const Prefix* prefix, const f32x16 (*sums)[kStride], Subsets& s) {
    auto same_rest = [&](int i) {
        bool same = i + BLOCK <= n;
        for (int b = 1; b < BLOCK && same; b++) same = prefix[i + b].rest() == prefix[i].rest();
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
                for (int b = 1; b < BLOCK; b++) sum += sums[i + b][c];
                s.d_rest_row[c] += sum;
            }
            i += BLOCK - 1;
        } else {
            add_to<COLUMNS>(s.d_rest_row, sums[i]);
        }
    }
}

}  // namespace

// The minimal transformer: attention of the states of one last token, as sums of rows; minimal.h has the formulas.
#pragma once

#include "../batches/set_complement.h"
#include "minimal_tokens.h"

namespace resharpen {

constexpr float kWide = 24;

class MinimalAttention : public MinimalTokens {
  protected:
    static constexpr int kLow = V - 1 < 4 ? V - 1 : 4, kSubsets = 1 << kLow;  // the low group of tokens, see above
    static constexpr int kChunk = 10;  // columns of a sum in registers
    static constexpr int kAtOnce = V <= 10 ? 4 : 64;  // states attended to together
    static constexpr int kBlock = 4;  // states worked on together, so that their chains of dependent operations overlap

    MinimalAttention(Placement placement, bool subsets, const Hyperparameters<f32x16>& h)
        : MinimalTokens(placement, h), subsets(subsets) {
        clear(d_row), clear(d_low_row), clear(d_rest_row);
    }

    struct Prefix {
        uint32_t set, others;  // all tokens, and those other than the last, closed up
        uint32_t low() const { return others & (kSubsets - 1); }
        uint32_t rest() const { return others >> kLow; }
    };

    bool subsets;
    f32x16 weight[V], d_weight[V], row[V][kStride], low_row[kSubsets][kStride], rest_row[kStride];
    uint32_t rest, d_rest;  // the sets that rest_row and d_rest_row belong to
    Mask wide;
    bool any_wide;
    Prefix prefix[kAtOnce];
    f32x16 sums[kAtOnce][kStride], d_weights[kAtOnce][V];
    f32x16 d_row[V][kStride], d_low_row[kSubsets][kStride], d_rest_row[kStride];

    // ---- the weighted rows of one last token -----------------------------------------------------------------------

    // e_tj = 2^(attention - max), and where asked for the rows e_tj value_j and their sums.
    template <int COLUMNS>
    void weigh_tokens(int t) {
        f32x16 highest = attention[t][0], lowest = attention[t][0];
        for (int j = 1; j < V; j++) highest = max(attention[t][j], highest), lowest = min(attention[t][j], lowest);
        wide = highest - lowest > broadcast(kWide);
        any_wide = bits(wide) != 0;
        for (int j = 0; j < V; j++) {
            weight[j] = exp2_nonpositive(attention[t][j] - highest);
            d_weight[j] = broadcast(0);
        }
        if (!subsets) return;
        for (int j = 0; j < V; j++) {
            RESHARPEN_UNROLL
            for (int c = 0; c < COLUMNS; c++) row[j][c] = weight[j] * value[j][c];
        }
        sum_subsets<COLUMNS>(t);
    }

    // d e_tj = d(row) . value_j, d value_j += e_tj d(row). Leaves the rows' gradients at zero for the next token.
    template <int COLUMNS>
    void weigh_tokens_backward(int t) {
        if (subsets) {
            sum_subsets_backward<COLUMNS>(t);
            for (int j = 0; j < V; j++) {
                d_weight[j] = token_backward<0, COLUMNS>(j, weight[j], d_row[j]);
                for (f32x16& d : d_row[j]) d = broadcast(0);
            }
        }
        for (int j = 0; j < V; j++) d_attention[t][j] += attention_scale() * weight[j] * d_weight[j];
    }

    // Columns FIRST .. of y = e value_j: d value_j += e dy; returns dy . value_j.
    template <int FIRST, int COLUMNS>
    RESHARPEN_INLINE f32x16 token_backward(int j, f32x16 e, const f32x16* dy) {
        f32x16 even = broadcast(0), odd = broadcast(0);
        RESHARPEN_UNROLL
        for (int c = FIRST; c < COLUMNS; c++) {
            (c % 2 ? odd : even) += dy[c - FIRST] * value[j][c];
            d_value[j][c] += e * dy[c - FIRST];
        }
        return even + odd;
    }

    // The rows of every subset of the low group; the token itself, which every state has, is in all of them.
    template <int COLUMNS>
    void sum_subsets(int t) {
        rest = d_rest = 0;
        for (int c = 0; c < COLUMNS; c++) low_row[0][c] = row[t][c], rest_row[c] = broadcast(0);
        for (int s = 1; s < kSubsets; s++) {
            const f32x16 *without = low_row[s & (s - 1)], *added = row[other(t, __builtin_ctz(s))];
            for (int c = 0; c < COLUMNS; c++) low_row[s][c] = without[c] + added[c];
        }
    }

    template <int COLUMNS>
    void sum_subsets_backward(int t) {
        sum_rest_backward<COLUMNS>(t);
        for (int s = kSubsets - 1; s > 0; s--) {
            f32x16 *without = d_low_row[s & (s - 1)], *added = d_row[other(t, __builtin_ctz(s))];
            for (int c = 0; c < COLUMNS; c++) {
                without[c] += d_low_row[s][c], added[c] += d_low_row[s][c];
                d_low_row[s][c] = broadcast(0);
            }
        }
        for (int c = 0; c < COLUMNS; c++) d_row[t][c] += d_low_row[0][c], d_low_row[0][c] = broadcast(0);
    }

    template <int COLUMNS>
    void sum_rest(int t) {
        for (int c = 0; c < COLUMNS; c++) rest_row[c] = broadcast(0);
        for (uint32_t left = rest; left; left &= left - 1) {
            const f32x16* added = row[other(t, kLow + __builtin_ctz(left))];
            RESHARPEN_UNROLL
            for (int c = 0; c < COLUMNS; c++) rest_row[c] += added[c];
        }
    }

    template <int COLUMNS>
    void sum_rest_backward(int t) {
        for (uint32_t left = d_rest; left; left &= left - 1) {
            f32x16* added = d_row[other(t, kLow + __builtin_ctz(left))];
            RESHARPEN_UNROLL
            for (int c = 0; c < COLUMNS; c++) added[c] += d_rest_row[c];
        }
        for (int c = 0; c < COLUMNS; c++) d_rest_row[c] = broadcast(0);
    }

    // The token at a position among those other than t.
    static int other(int t, int position) { return position + (position >= t); }
    // d_attention is kept by q . k, before the division by sqrt(d_k).
    static float attention_scale() { return 1 / std::sqrt(float(K)); }

    // ---- sums of rows ----------------------------------------------------------------------------------------------

    // sum_{j in S} e_tj value_j for n states
    template <int COLUMNS>
    void attend(int t, int n) {
        if (subsets) {
            for (int i = 0; i < n; i++) {
                if (prefix[i].rest() != rest) rest = prefix[i].rest(), sum_rest<COLUMNS>(t);
                const f32x16* low = low_row[prefix[i].low()];
                RESHARPEN_UNROLL
                for (int c = 0; c < COLUMNS; c++) sums[i][c] = low[c] + rest_row[c];
            }
        } else {
            sum_values<0, COLUMNS>(n);
        }
        if (any_wide)
            for (int i = 0; i < n; i++) attend_in_wide_lanes<COLUMNS>(t, prefix[i].set, sums[i]);
    }

    // A few columns at a time for all states: the sum is in registers, and these columns of `value` in the first-level
    // cache, where for large V all of them would not fit.
    template <int FIRST, int COLUMNS>
    void sum_values(int n) {
        constexpr int N = COLUMNS - FIRST < kChunk ? COLUMNS - FIRST : kChunk;
        for (int i = 0; i < n; i++) {
            f32x16 sum[N];
            RESHARPEN_UNROLL
            for (int c = 0; c < N; c++) sum[c] = broadcast(0);
            for (uint32_t left = prefix[i].set; left; left &= left - 1) {
                const int j = __builtin_ctz(left);
                RESHARPEN_UNROLL
                for (int c = 0; c < N; c++) sum[c] += weight[j] * value[j][FIRST + c];
            }
            RESHARPEN_UNROLL
            for (int c = 0; c < N; c++) sums[i][FIRST + c] = sum[c];
        }
        if constexpr (FIRST + N < COLUMNS) sum_values<FIRST + N, COLUMNS>(n);
    }

    template <int FIRST, int COLUMNS>
    void sum_values_backward(int n) {
        constexpr int N = COLUMNS - FIRST < kChunk ? COLUMNS - FIRST : kChunk;
        for (int i = 0; i < n; i++) {
            f32x16 d[N];
            RESHARPEN_UNROLL
            for (int c = 0; c < N; c++) d[c] = sums[i][FIRST + c];
            for (uint32_t left = prefix[i].set; left; left &= left - 1) {
                const int j = __builtin_ctz(left);
                const f32x16 d_e = token_backward<FIRST, FIRST + N>(j, weight[j], d);
                d_weights[i][j] = FIRST ? d_weights[i][j] + d_e : d_e;
            }
        }
        if constexpr (FIRST + N < COLUMNS) sum_values_backward<FIRST + N, COLUMNS>(n);
    }

    // By Euler's theorem d Z is minus the mean of d e_j. Taken from the same d e_j, and not from the state's scalars,
    // it cancels that of a token with all the attention, as it should.
    f32x16 mean_weight_gradient(uint32_t set, const f32x16* e, const f32x16* d_e) const {
        f32x16 z = broadcast(0), sum = broadcast(0);
        for (; set; set &= set - 1) {
            const int j = __builtin_ctz(set);
            z += e[j];
            sum += e[j] * d_e[j];
        }
        return sum * reciprocal(z);
    }

    template <int COLUMNS>
    void attend_backward(int t, int n) {
        if (any_wide)
            for (int i = 0; i < n; i++) attend_in_wide_lanes_backward<COLUMNS>(t, prefix[i].set, sums[i]);
        if (!subsets) {
            for (int i = 0; i < n; i++) sums[i][kZ] = broadcast(0);
            sum_values_backward<0, COLUMNS>(n);
            for (int i = 0; i < n; i++) {
                f32x16 mean = mean_weight_gradient(prefix[i].set, weight, d_weights[i]);
                if (any_wide) mean = select(wide, broadcast(0), mean);  // there Z may be zero, and no gradient is left
                for (uint32_t left = prefix[i].set; left; left &= left - 1) {
                    const int j = __builtin_ctz(left);
                    d_weight[j] += d_weights[i][j] - mean;
                }
            }
            return;
        }
        for (int i = 0; i < n; i++) add_to<COLUMNS>(d_low_row[prefix[i].low()], sums[i]);
        for (int i = 0; i < n; i++) {
            if (prefix[i].rest() != d_rest) sum_rest_backward<COLUMNS>(t);
            d_rest = prefix[i].rest();
            if (same_rest(i, n)) {
                RESHARPEN_UNROLL
                for (int c = 0; c < COLUMNS; c++) {
                    f32x16 sum = sums[i][c];
                    RESHARPEN_UNROLL
                    for (int b = 1; b < kBlock; b++) sum += sums[i + b][c];
                    d_rest_row[c] += sum;
                }
                i += kBlock - 1;
            } else {
                add_to<COLUMNS>(d_rest_row, sums[i]);
            }
        }
    }

    // Whether the next kBlock states share their rest: then they are added up in registers first.
    bool same_rest(int i, int n) const {
        bool same = i + kBlock <= n;
        for (int b = 1; b < kBlock && same; b++) same = prefix[i + b].rest() == prefix[i].rest();
        return same;
    }

    template <int COLUMNS>
    static void add_to(f32x16* d, const f32x16* sum) {
        RESHARPEN_UNROLL
        for (int c = 0; c < COLUMNS; c++) d[c] += sum[c];
    }

    // ---- lanes whose attention logits span more than kWide: relative to the maximum over the set --------------------

    f32x16 highest_in(int t, uint32_t set) const {
        f32x16 highest = attention[t][t];
        for (; set; set &= set - 1) highest = max(highest, attention[t][__builtin_ctz(set)]);
        return highest;
    }

    template <int COLUMNS>
    void attend_in_wide_lanes(int t, uint32_t set, f32x16* sum) {
        const f32x16 highest = highest_in(t, set);
        f32x16 careful[COLUMNS];
        for (f32x16& x : careful) x = broadcast(0);
        for (uint32_t left = set; left; left &= left - 1) {
            const int j = __builtin_ctz(left);
            const f32x16 e = exp2_nonpositive(attention[t][j] - highest);
            for (int c = 0; c < COLUMNS; c++) careful[c] += e * value[j][c];
        }
        for (int c = 0; c < COLUMNS; c++) sum[c] = select(wide, careful[c], sum[c]);
    }

    // Goes straight to value and attention, and leaves nothing for the rows to carry.
    template <int COLUMNS>
    void attend_in_wide_lanes_backward(int t, uint32_t set, f32x16* sum) {
        const f32x16 highest = highest_in(t, set), zero = broadcast(0);
        f32x16 d_careful[COLUMNS], e[V], d_e[V];
        for (int c = 0; c < COLUMNS; c++) {
            d_careful[c] = c == kZ ? zero : select(wide, sum[c], zero);
            sum[c] = select(wide, zero, sum[c]);
        }
        for (uint32_t left = set; left; left &= left - 1) {
            const int j = __builtin_ctz(left);
            e[j] = exp2_nonpositive(attention[t][j] - highest);
            d_e[j] = token_backward<0, COLUMNS>(j, e[j], d_careful);
        }
        const f32x16 mean = mean_weight_gradient(set, e, d_e);
        for (uint32_t left = set; left; left &= left - 1) {
            const int j = __builtin_ctz(left);
            d_attention[t][j] += select(wide, attention_scale() * e[j] * (d_e[j] - mean), zero);
        }
    }
};

}  // namespace resharpen

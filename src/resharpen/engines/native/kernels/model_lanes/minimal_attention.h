// The minimal transformer: attention of the states of one last token, as sums of rows; minimal.h has the formulas.
#pragma once

#include "../batches/set_complement.h"
#include "minimal_forms.h"

namespace resharpen {

constexpr float kFar = 40;

class MinimalAttention : public MinimalForms {
  protected:
    static constexpr int kLow = V - 1 < 4 ? V - 1 : 4, kSubsets = 1 << kLow;  // the low group of tokens, see above
    static constexpr int kChunk = 10;                                         // columns of a sum in registers
    static constexpr int kAtOnce = 64;  // states attended to together, one bit of a word each
    // States worked on together, so that their chains of dependent operations overlap; where a vector is several
    // registers they do that.
    static constexpr int kBlock = kPerVector == 1 ? 4 : 1;

    MinimalAttention(Variant variant, bool subsets, bool forms, const Hyperparameters<f32x16>& h)
        : MinimalForms(variant, forms, h), subsets(subsets) {
        clear(d_row), clear(d_low_row), clear(d_rest_row);
    }

    struct Prefix {
        uint32_t set, others;  // all tokens, and those other than the last, closed up
        uint32_t low() const { return others & (kSubsets - 1); }
        uint32_t rest() const { return others >> kLow; }
    };

    bool subsets;
    // Of the states that are worked on: log of their size, s log n, and the logits of their last token times that.
    float log_n;
    f32x16 factor, logits[V];
    f32x16 row[V][kStride], low_row[kSubsets][kStride], rest_row[kStride];
    uint32_t rest, d_rest;  // the sets that rest_row and d_rest_row belong to
    Mask wide, far;
    bool any_wide, any_far;
    uint32_t seen;  // tokens of those states that hold more than one: only their attention logits have a gradient
    Prefix prefix[kAtOnce];
    f32x16 sums[kAtOnce][kStride];
    f32x16 d_row[V][kStride], d_low_row[kSubsets][kStride], d_rest_row[kStride];

    // Whether weights depend on the size of a set.
    bool by_size() const { return attention_kind != AttentionKind::softmax; }

    // With subsets the sums of a few states stay in the first-level cache; without, the more states the fewer rows.
    int at_once() const { return subsets ? kBlock : kAtOnce; }

    // Among large sets there are always some of even attention, whose gradient is not small beside what others round
    // off.
    float wide_span() const { return subsets ? 24 : 8; }

    // ---- the weights of one last token -----------------------------------------------------------------------------

    // e_tj = 2^(attention - max), and what is made of it for all states at once.
    template <class N>
    void weigh_tokens(int t) {
        for (int j = 0; j < V; j++) logits[j] = by_size() ? factor * attention[t][j] : attention[t][j];
        f32x16 highest = logits[0], lowest = logits[0];
        for (int j = 1; j < V; j++) highest = max(logits[j], highest), lowest = min(logits[j], lowest);
        wide = highest - lowest > broadcast(wide_span());
        far = highest - logits[t] > broadcast(kFar);
        any_wide = bits(wide) != 0;
        any_far = bits(far) != 0;
        for (int j = 0; j < V; j++) {
            weight[j] = exp2_nonpositive(logits[j] - highest);
            d_weight[j] = broadcast(0);
        }
        seen = 0;
        if (subsets) sum_subsets<N::kColumns>(t);
        weigh_pairs<N>(t);
    }

    // From d e_tj to the attention logits. Scaling all e_tj changes nothing, so d e_t is orthogonal to e_t; what
    // rounding has left along it is taken out, lest it stand for the gradient of a token with all the attention. Tokens
    // that no state holds keep a gradient of exactly zero: AdamW would make whole steps of a rounding error.
    template <class N>
    void weigh_tokens_backward(int t) {
        if (subsets) sum_subsets_backward<N::kColumns>(t);
        weigh_pairs_backward<N>(t);
        if (seen) add_attention_gradient(t, seen, weight, d_weight, mask_of(~bits(wide)));
    }

    // With d = R_j, of columns FIRST .. : d value_j += e_tj R_j; returns d e_tj = R_j . value_j.
    template <int FIRST, int COLUMNS>
    RESHARPEN_INLINE f32x16 row_backward(int j, const f32x16* d) {
        f32x16 sum[2] = {broadcast(0), broadcast(0)};
        RESHARPEN_UNROLL
        for (int c = FIRST; c < COLUMNS; c++) {
            sum[c % 2] += d[c - FIRST] * value[j][c];
            d_value[j][c] += weight[j] * d[c - FIRST];
        }
        return sum[0] + sum[1];
    }

    // From d e_j to the logits of some lanes: e_j (d e_j - mean of d e by e), and from powers of two and after the
    // division by sqrt(d_k) to q . k. First that of the token with the largest weight is subtracted from all: where it
    // has nearly all the attention its d e is nearly the mean, and the mean of what is left is small and exact.
    void add_attention_gradient(int t, uint32_t set, const f32x16* e, f32x16* d_e, Mask lanes) {
        f32x16 largest = broadcast(-1), its_d_e = broadcast(0), its_logit = broadcast(0);
        for (uint32_t left = set; left; left &= left - 1) {
            const int j = __builtin_ctz(left);
            const Mask larger = e[j] > largest;
            its_d_e = select(larger, d_e[j], its_d_e);
            its_logit = select(larger, attention[t][j], its_logit);
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
            const f32x16 d = select(lanes, scale * e[j] * d_e[j], broadcast(0));
            d_attention[t][j] += by_size() ? factor * d : d;
            along += d * (attention[t][j] - its_logit);  // the d sum to zero: without the largest, least is rounded off
        }
        if (attention_kind == AttentionKind::ssmax) d_ssmax += log_n * (kLn2 / scale) * along;
    }

    // The rows of every subset of the low group; the token itself, which every state has, is in all of them.
    template <int COLUMNS>
    void sum_subsets(int t) {
        rest = d_rest = 0;
        for (int j = 0; j < V; j++) {
            RESHARPEN_UNROLL
            for (int c = 0; c < COLUMNS; c++) row[j][c] = weight[j] * value[j][c];
        }
        for (int c = 0; c < COLUMNS; c++) low_row[0][c] = row[t][c], rest_row[c] = broadcast(0);
        for (int s = 1; s < kSubsets; s++) {
            const f32x16 *without = low_row[s & (s - 1)], *added = row[other(t, __builtin_ctz(s))];
            for (int c = 0; c < COLUMNS; c++) low_row[s][c] = without[c] + added[c];
        }
    }

    // Leaves all d_row at zero for the next token.
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
        for (int j = 0; j < V; j++) {
            d_weight[j] = row_backward<0, COLUMNS>(j, d_row[j]);
            for (f32x16& d : d_row[j]) d = broadcast(0);
        }
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

    // ---- sums of rows ----------------------------------------------------------------------------------------------

    // sum_{j in S} of the rows for n states
    template <class N>
    void attend(int t, int n) {
        constexpr int COLUMNS = N::kColumns;
        if (subsets) {
            for (int i = 0; i < n; i++) {
                if (prefix[i].rest() != rest) rest = prefix[i].rest(), sum_rest<COLUMNS>(t);
                const f32x16* low = low_row[prefix[i].low()];
                RESHARPEN_UNROLL
                for (int c = 0; c < COLUMNS; c++) sums[i][c] = low[c] + rest_row[c];
            }
        } else {
            sum_rows<0, COLUMNS>(n);
        }
        if constexpr (N::kForms)
            for (int i = 0; i < n; i++) sum_pairs<N>(prefix[i].set, sums[i]);
        if (any_far)
            for (int i = 0; i < n; i++) attend_in_far_lanes<N>(t, prefix[i].set, sums[i]);
    }

    // A few columns at a time for all states: the sum is in registers, and these columns of the rows in the first-level
    // cache, where for large V all of them would not fit.
    template <int FIRST, int COLUMNS>
    void sum_rows(int n) {
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
        if constexpr (FIRST + N < COLUMNS) sum_rows<FIRST + N, COLUMNS>(n);
    }

    // R_j of a few columns, from the states that hold j.
    template <int FIRST, int COLUMNS>
    void sum_rows_backward(const uint64_t* holders) {
        constexpr int N = COLUMNS - FIRST < kChunk ? COLUMNS - FIRST : kChunk;
        for (int j = 0; j < V; j++) {
            f32x16 sum[N];
            RESHARPEN_UNROLL
            for (int c = 0; c < N; c++) sum[c] = broadcast(0);
            for (uint64_t left = holders[j]; left; left &= left - 1)
                add_to<N>(sum, sums[__builtin_ctzll(left)] + FIRST);
            if (holders[j]) d_weight[j] += row_backward<FIRST, FIRST + N>(j, sum);
        }
        if constexpr (FIRST + N < COLUMNS) sum_rows_backward<FIRST + N, COLUMNS>(holders);
    }

    template <class N>
    void attend_backward(int t, int n) {
        constexpr int COLUMNS = N::kColumns;
        for (int i = 0; i < n; i++)
            if (prefix[i].others)
                seen |= prefix[i].set;
            else
                attend_to_one_backward<N>(t, sums[i]);
        if (any_wide)
            for (int i = 0; i < n; i++)
                if (prefix[i].others) attend_in_wide_lanes_backward<N>(t, prefix[i].set, sums[i]);
        if constexpr (N::kForms)
            for (int i = 0; i < n; i++) sum_pairs_backward<N>(prefix[i].set, sums[i]);
        if (!subsets) {
            uint64_t holders[V] = {};
            for (int i = 0; i < n; i++)
                for (uint32_t left = prefix[i].set; left; left &= left - 1)
                    holders[__builtin_ctz(left)] |= uint64_t(1) << i;
            sum_rows_backward<0, COLUMNS>(holders);
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

    // The state of one token. Its weight is one whatever the logit is, so the gradient is that of its value alone, and
    // nothing is left for the rows to carry.
    template <class N>
    void attend_to_one_backward(int t, f32x16* sum) {
        f32x16 e[V];
        weights_in(t, 1u << t, e);
        values_backward<N>(1u << t, e, sum, mask_of(~0u));
    }

    // Whether the next kBlock states share their rest: then they are added up in registers first.
    bool same_rest(int i, int n) const {
        bool same = i + kBlock <= n;
        for (int b = 1; b < kBlock && same; b++) same = prefix[i + b].rest() == prefix[i].rest();
        return same;
    }

    template <int COLUMNS>
    RESHARPEN_INLINE static void add_to(f32x16* sum, const f32x16* row) {
        RESHARPEN_UNROLL
        for (int c = 0; c < COLUMNS; c++) sum[c] += row[c];
    }

    // ---- lanes whose attention logits lie far apart ----------------------------------------------------------------

    // e_j of a set, in far lanes relative to its own maximum.
    void weights_in(int t, uint32_t set, f32x16* e) const {
        f32x16 highest = logits[t];
        for (uint32_t left = set; left; left &= left - 1) highest = max(highest, logits[__builtin_ctz(left)]);
        for (uint32_t left = set; left; left &= left - 1) {
            const int j = __builtin_ctz(left);
            e[j] = select(far, exp2_nonpositive(logits[j] - highest), weight[j]);
        }
    }

    template <class N>
    void attend_in_far_lanes(int t, uint32_t set, f32x16* sum) const {
        constexpr int COLUMNS = N::kColumns;
        f32x16 careful[COLUMNS], e[V];
        weights_in(t, set, e);
        for (f32x16& x : careful) x = broadcast(0);
        for (uint32_t left = set; left; left &= left - 1) {
            const int j = __builtin_ctz(left);
            for (int c = 0; c < COLUMNS; c++) careful[c] += e[j] * value[j][c];
        }
        for (int c = 0; c < COLUMNS; c++) sum[c] = select(far, careful[c], sum[c]);
        for (int f = N::kFirst; f < N::kEnd; f++) sum[kForm + f] = select(far, form_of(f, set, e), sum[kForm + f]);
    }

    // In wide lanes the gradient of the logits, state by state; in far lanes that of the values too, which leaves
    // nothing for the rows to carry.
    template <class N>
    void attend_in_wide_lanes_backward(int t, uint32_t set, f32x16* sum) {
        f32x16 local[V], d_e[V];
        if (any_far) weights_in(t, set, local);
        const f32x16* e = any_far ? local : weight;
        for (uint32_t left = set; left; left &= left - 1) {
            const int j = __builtin_ctz(left);
            d_e[j] = dot<V>(sum, value[j]);
            if constexpr (N::kVectors) d_e[j] += dot<D>(sum + kO, value[j] + kO);
            if constexpr (N::kForms && N::kNorm) d_e[j] += sum[kC] * value[j][kC];
        }
        for (int f = N::kFirst; f < N::kEnd; f++) weights_of_form_backward(f, set, e, sum[kForm + f], d_e);
        add_attention_gradient(t, set, e, d_e, wide);
        if (any_far) values_backward<N>(set, e, sum, far);
    }

    // In some lanes the gradient of a state's sum goes to its values here, and none of it to the rows.
    template <class N>
    void values_backward(uint32_t set, const f32x16* e, f32x16* sum, Mask lanes) {
        for (int c = 0; c < N::kColumns; c++) {
            const f32x16 d = select(lanes, sum[c], broadcast(0));
            sum[c] = select(lanes, broadcast(0), sum[c]);
            for (uint32_t left = set; left; left &= left - 1) {
                const int j = __builtin_ctz(left);
                d_value[j][c] += e[j] * d;
            }
        }
        for (int f = N::kFirst; f < N::kEnd; f++) {
            gram_of_form_backward(f, set, e, select(lanes, sum[kForm + f], broadcast(0)));
            sum[kForm + f] = select(lanes, broadcast(0), sum[kForm + f]);
        }
    }
};

}  // namespace resharpen

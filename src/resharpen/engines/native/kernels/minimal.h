// The minimal transformer on Set Complement: a SIMD lane is a model.
//
// Layout. Every number of the model is a vector f16 of sixteen lanes, one model each; a weight matrix [I, O] of an
// ensemble is I * O vectors, row after row. All lanes read the same minibatch, so tokens, sets and counts are plain
// integers, the same for all lanes, and nothing is gathered, scattered or summed across lanes.
//
// What is computed. With x the embedding after its norm, h = x after the block's norm, VO = h W_V W_O:
//
//     e_tj = exp(q_t . k_j / sqrt(d_k) - max_j)                        for every pair of tokens
//     state (last token t, set S):   Z = sum_{j in S} e_tj,   o = sum_{j in S} e_tj VO_j / Z
//     z = x_t + g_out o r_o                                            r_o = 1 / rms(o)
//     logits = r_f (z g_f) U                                           r_f = 1 / rms(z)
//
// with a norm that the placement lacks left out (g = r = 1), r_f = r_1 r_2 and g_f = g_1 g_2 where both the residual
// and the unembedding have one. Norms are a scalar times a fixed gain, and the rest is linear, so with
//
//     B_t = x_t diag(g_f) U          D_j = VO_j diag(g_out) diag(g_f) U
//
// computed once a step, the logits are r_f (B_t + r_o / Z sum_{j in S} e_tj D_j): sums of table rows. A token's row is
//
//     value_j = [ D_j | 1 | VO_j ]                                     V + 1 + D columns
//
// and attention of a state is sum_{j in S} e_tj value_j: logits before the scale, Z, and (where a norm needs it) o.
//
// Rows and subsets. For one last token t the weighted rows e_tj value_j are fixed; a state adds up a few of them, and
// its gradient is added to the same few. Where there are many large sets ("subsets"), the other tokens are split in a
// low group, whose rows are summed beforehand for each of its 16 subsets, and the rest, which changes slowly over the
// sorted states and whose sum is kept: then a state is two rows. All of it stays in the first-level cache. The gradient
// goes back the same way, and everything that is per pair (t, j) rather than per state, such as the gradient of
// attention weights, is done once a step. What is left a state: V + 1 + D sums, the norms' scalars, a softmax over V.
//
// Softmax with a fixed maximum. e_tj is relative to the largest over all j, not over S: exact, unless all of S is far
// below it. In lanes where a row of attention logits spans more than kWide (in powers of two: where a weight can round
// to one), the state's own maximum is used, by a slower path; lanes are blended, so a model never depends on its
// neighbours.
//
// Gradients are sums over the minibatch, scaled to its mean only when they are applied.
#pragma once

#include "adamw.h"
#include "matrix.h"
#include "minibatch.h"
#include "norm.h"

namespace resharpen {

struct Placement {
    bool embedding_out, block_in, block_out, residual, unembedding_in;
};

constexpr float kWide = 24;

template <int V, int D, int K, int DV>
class Minimal {
  public:
    // Parameters in memory: the matrices, then the gains that the placement has. Decay is on W_Q .. U.
    static constexpr int kWQ = V * D, kWK = kWQ + D * K, kWV = kWK + D * K, kWO = kWV + D * DV, kU = kWO + DV * D;
    static constexpr int kGains = kU + D * V, kMostParameters = kGains + 5 * D;

    Minimal(Placement placement, bool subsets, const Hyperparameters& h)
        : placement(placement), subsets(subsets), epsilon(h.rms_epsilon) {
        int next = kGains;
        auto place = [&](bool present, int& where) { where = present ? next : -1, next += present ? D : 0; };
        place(placement.embedding_out, gain_at.embedding_out);
        place(placement.block_in, gain_at.block_in);
        place(placement.block_out, gain_at.block_out);
        place(placement.residual, gain_at.residual);
        place(placement.unembedding_in, gain_at.unembedding_in);
        size = next;
        for (f16& x : ones) x = broadcast(1);
        std::memset(block, 0, sizeof block);  // a z that no norm asks for stays zero
        std::memset(d_row, 0, sizeof d_row);
        std::memset(d_low_row, 0, sizeof d_low_row);
        std::memset(d_rest_row, 0, sizeof d_rest_row);
    }

    int size;  // number of parameters

    // Whether minibatches of this length hold enough large sets for `subsets` to pay; measured.
    static constexpr bool subsets_pay(int length) { return V <= 9 && length >= 5; }

    // The gradient of the summed negative log likelihood of a minibatch; adds to nothing, overwrites `gradient`.
    void gradient_of(const Minibatch<V>& batch, const f16* theta, f16* gradient) {
        tokens_forward(theta);
        clear_gradients(gradient);
        for (int t = 0; t < V; t++) {
            if (batch.begin[t] == batch.begin[t + 1]) continue;
            norm_after() ? train_states<kColumns>(t, batch) : train_states<V + 1>(t, batch);
        }
        tokens_backward(theta, gradient);
    }

    // TVD of the states, [n, 16]; sorted by last token, each written to the place in `where`.
    void evaluate(const f16* theta, int n, const int32_t* last, const uint32_t* set, const int32_t* where, f16* tvd) {
        tokens_forward(theta);
        for (int i = 0; i < n;) {
            int end = i;
            while (end < n && last[end] == last[i]) end++;
            norm_after() ? evaluate_states<kColumns>(last[i], i, end, set, where, tvd)
                         : evaluate_states<V + 1>(last[i], i, end, set, where, tvd);
            i = end;
        }
    }

  private:
    static constexpr int kZ = V, kO = V + 1, kColumns = V + 1 + D;
    static constexpr int kStride = kColumns | 1;  // odd, so that rows do not compete for the same lines of the cache
    static constexpr int kLow = V - 1 < 4 ? V - 1 : 4, kSubsets = 1 << kLow;  // the low group of tokens, see above
    static constexpr int kChunk = 10;  // columns of a sum in registers
    static constexpr int kAtOnce = V <= 10 ? 4 : 64;  // states attended to together
    static constexpr int kBlock = 4;  // states worked on together, so that their chains of dependent operations overlap

    // One state on its way through the network. After `forward` sum, z, scaled hold activations; `backward` turns
    // sum into its gradient.
    struct State {
        f16* sum;            // [ T | Z | o ] = sum of weighted rows; o is not yet divided by Z
        f16 z[D];            // x_t + o_scale g_out o
        f16 scaled[V];       // B_t + o_scale T, the logits before r_1 r_2
        f16 d_logits[V];     // first the exponentials
        f16 inverse_z, r_o, o_scale, r_1, r_2, mean_o, z_squared, z_along_o, gained_squared, gained_along_o;
        f16 log2_scale, log2_shift, inverse_sum, d_r, d_o_scale, d_z_1, d_z_2, d_o;
    };

    struct Prefix {
        uint32_t set, others;  // all tokens, and those other than the last, closed up
        uint32_t low() const { return others & (kSubsets - 1); }
        uint32_t rest() const { return others >> kLow; }
    };

    Placement placement;
    bool subsets;
    f16 epsilon;
    struct {
        int embedding_out, block_in, block_out, residual, unembedding_in;
    } gain_at;

    f16 ones[D];
    f16 x[V][D], r_embedding[V], h[V][D], r_in[V], q[V][K], k[V][K], v[V][DV], vo_gained[V][D];
    f16 gain_final[D], u_gained[D][V], base[V][V], attention[V][V], value[V][kStride];
    f16 weight[V], d_weight[V], row[V][kStride], low_row[kSubsets][kStride], rest_row[kStride];
    uint32_t rest, d_rest;  // the sets that rest_row and d_rest_row belong to
    Mask wide;
    bool any_wide;
    Prefix prefix[kAtOnce];
    f16 sums[kAtOnce][kStride], d_weights[kAtOnce][V];
    State block[kBlock];

    f16 d_x[V][D], d_h[V][D], d_q[V][K], d_k[V][K], d_v[V][DV], d_vo_gained[V][D];
    f16 d_u_gained[D][V], d_base[V][V], d_attention[V][V], d_value[V][kStride], d_row[V][kStride];
    f16 d_low_row[kSubsets][kStride], d_rest_row[kStride];
    f16 d_gain_out[V][D], d_gain_1[V][D];  // a partial sum for each last token

    bool norm_after() const { return placement.block_out || placement.residual || placement.unembedding_in; }
    bool double_norm() const { return placement.residual && placement.unembedding_in; }
    const f16* gain(const f16* theta, int where) const { return where < 0 ? ones : theta + where; }
    const f16 *gain_out, *gain_1;  // of block_out and residual; ones where absent

    // ---- what depends on one token alone ---------------------------------------------------------------------------

    void tokens_forward(const f16* theta) {
        gain_out = gain(theta, gain_at.block_out);
        gain_1 = gain(theta, gain_at.residual);
        const f16* gain_2 = gain(theta, gain_at.unembedding_in);
        for (int t = 0; t < V; t++) {
            std::memcpy(x[t], theta + t * D, sizeof x[t]);
            if (placement.embedding_out)
                r_embedding[t] = rms_norm<D>(theta + t * D, theta + gain_at.embedding_out, epsilon, x[t]);
            std::memcpy(h[t], x[t], sizeof h[t]);
            if (placement.block_in) r_in[t] = rms_norm<D>(x[t], theta + gain_at.block_in, epsilon, h[t]);
        }
        multiply(V, D, K, rows<D>(h[0]), rows<K>(theta + kWQ), {q[0], K, 1});
        multiply(V, D, K, rows<D>(h[0]), rows<K>(theta + kWK), {k[0], K, 1});
        multiply(V, D, DV, rows<D>(h[0]), rows<DV>(theta + kWV), {v[0], DV, 1});
        multiply(V, DV, D, rows<DV>(v[0]), rows<D>(theta + kWO), {&value[0][kO], kStride, 1});
        for (int i = 0; i < D; i++) {
            gain_final[i] = gain_1[i] * gain_2[i];
            for (int w = 0; w < V; w++) u_gained[i][w] = gain_final[i] * theta[kU + i * V + w];
        }
        for (int j = 0; j < V; j++) {
            value[j][kZ] = broadcast(1);
            for (int i = 0; i < D; i++) vo_gained[j][i] = gain_out[i] * value[j][kO + i];
        }
        multiply(V, D, V, rows<D>(x[0]), rows<V>(u_gained[0]), {base[0], V, 1});
        multiply(V, D, V, rows<D>(vo_gained[0]), rows<V>(u_gained[0]), {value[0], kStride, 1});
        // In powers of two, so that the exponential is one of base two.
        multiply(V, K, V, rows<K>(q[0]), rows<K>(k[0]).transposed(), {attention[0], V, 1});
        const float scale = kLog2E / std::sqrt(float(K));
        for (int t = 0; t < V; t++)
            for (int j = 0; j < V; j++) attention[t][j] = scale * attention[t][j];
    }

    void clear_gradients(f16* gradient) {
        for (int i = 0; i < size; i++) gradient[i] = broadcast(0);
        std::memset(d_x, 0, sizeof d_x);
        std::memset(d_base, 0, sizeof d_base);
        std::memset(d_attention, 0, sizeof d_attention);
        std::memset(d_value, 0, sizeof d_value);
        std::memset(d_gain_out, 0, sizeof d_gain_out);
        std::memset(d_gain_1, 0, sizeof d_gain_1);
    }

    // From the gradients of base, value, attention and x to those of the weights.
    void tokens_backward(const f16* theta, f16* gradient) {
        // base = x u_gained; D = vo_gained u_gained
        multiply(V, V, D, rows<V>(d_base[0]), rows<V>(u_gained[0]).transposed(), {d_x[0], D, 1}, true);
        multiply(V, V, D, rows<kStride>(d_value[0]), rows<V>(u_gained[0]).transposed(), {d_vo_gained[0], D, 1});
        multiply(D, V, V, rows<D>(x[0]).transposed(), rows<V>(d_base[0]), {d_u_gained[0], V, 1});
        multiply(D, V, V, rows<D>(vo_gained[0]).transposed(), rows<kStride>(d_value[0]), {d_u_gained[0], V, 1}, true);
        unembedding_backward(theta, gradient);
        for (int j = 0; j < V; j++)
            for (int i = 0; i < D; i++) {
                d_gain_out[j][i] += value[j][kO + i] * d_vo_gained[j][i];
                d_value[j][kO + i] += gain_out[i] * d_vo_gained[j][i];
            }
        // VO = v W_O; q, k, v = h W
        const ConstMatrix d_vo = rows<kStride>(&d_value[0][kO]);
        multiply(V, D, DV, d_vo, rows<D>(theta + kWO).transposed(), {d_v[0], DV, 1});
        multiply(DV, V, D, rows<DV>(v[0]).transposed(), d_vo, {gradient + kWO, D, 1});
        multiply(V, V, K, rows<V>(d_attention[0]), rows<K>(k[0]), {d_q[0], K, 1});
        multiply(V, V, K, rows<V>(d_attention[0]).transposed(), rows<K>(q[0]), {d_k[0], K, 1});
        std::memset(d_h, 0, sizeof d_h);
        linear_backward<K>(theta, gradient, kWQ, d_q[0]);
        linear_backward<K>(theta, gradient, kWK, d_k[0]);
        linear_backward<DV>(theta, gradient, kWV, d_v[0]);
        for (int t = 0; t < V; t++) embedding_backward(t, theta, gradient);
        if (placement.block_out) add_rows(d_gain_out, gradient + gain_at.block_out);
    }

    // u_gained = diag(g_1 g_2) U
    void unembedding_backward(const f16* theta, f16* gradient) {
        const f16* gain_2 = gain(theta, gain_at.unembedding_in);
        for (int i = 0; i < D; i++) {
            f16 d_gain = broadcast(0);
            for (int w = 0; w < V; w++) {
                d_gain += d_u_gained[i][w] * theta[kU + i * V + w];
                gradient[kU + i * V + w] = gain_final[i] * d_u_gained[i][w];
            }
            if (placement.residual) gradient[gain_at.residual + i] = d_gain * gain_2[i];
            if (placement.unembedding_in) gradient[gain_at.unembedding_in + i] = d_gain * gain_1[i];
        }
        if (placement.residual) add_rows(d_gain_1, gradient + gain_at.residual);
    }

    static void add_rows(const f16 (*rows)[D], f16* sum) {
        for (int t = 0; t < V; t++)
            for (int i = 0; i < D; i++) sum[i] += rows[t][i];
    }

    // y = h W: dW = h^T dy, dh += dy W^T
    template <int N>
    void linear_backward(const f16* theta, f16* gradient, int where, const f16* dy) {
        multiply(D, V, N, rows<D>(h[0]).transposed(), rows<N>(dy), {gradient + where, N, 1});
        multiply(V, N, D, rows<N>(dy), rows<N>(theta + where).transposed(), {d_h[0], D, 1}, true);
    }

    void embedding_backward(int t, const f16* theta, f16* gradient) {
        if (placement.block_in)
            rms_norm_backward<D, true>(x[t], theta + gain_at.block_in, r_in[t], d_h[t], d_x[t], gradient + gain_at.block_in);
        else
            for (int i = 0; i < D; i++) d_x[t][i] += d_h[t][i];
        f16* d_e = gradient + t * D;
        if (placement.embedding_out)
            rms_norm_backward<D, false>(theta + t * D, theta + gain_at.embedding_out, r_embedding[t], d_x[t], d_e,
                                        gradient + gain_at.embedding_out);
        else
            std::memcpy(d_e, d_x[t], sizeof d_x[t]);
    }

    // ---- the weighted rows of one last token -----------------------------------------------------------------------

    // e_tj = 2^(attention - max), and where asked for the rows e_tj value_j and their sums.
    template <int COLUMNS>
    void weigh_tokens(int t) {
        f16 highest = attention[t][0], lowest = attention[t][0];
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
                for (f16& d : d_row[j]) d = broadcast(0);
            }
        }
        for (int j = 0; j < V; j++) d_attention[t][j] += attention_scale() * weight[j] * d_weight[j];
    }

    // Columns FIRST .. of y = e value_j: d value_j += e dy; returns dy . value_j.
    template <int FIRST, int COLUMNS>
    RESHARPEN_INLINE f16 token_backward(int j, f16 e, const f16* dy) {
        f16 even = broadcast(0), odd = broadcast(0);
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
            const f16 *without = low_row[s & (s - 1)], *added = row[other(t, __builtin_ctz(s))];
            for (int c = 0; c < COLUMNS; c++) low_row[s][c] = without[c] + added[c];
        }
    }

    template <int COLUMNS>
    void sum_subsets_backward(int t) {
        sum_rest_backward<COLUMNS>(t);
        for (int s = kSubsets - 1; s > 0; s--) {
            f16 *without = d_low_row[s & (s - 1)], *added = d_row[other(t, __builtin_ctz(s))];
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
            const f16* added = row[other(t, kLow + __builtin_ctz(left))];
            RESHARPEN_UNROLL
            for (int c = 0; c < COLUMNS; c++) rest_row[c] += added[c];
        }
    }

    template <int COLUMNS>
    void sum_rest_backward(int t) {
        for (uint32_t left = d_rest; left; left &= left - 1) {
            f16* added = d_row[other(t, kLow + __builtin_ctz(left))];
            RESHARPEN_UNROLL
            for (int c = 0; c < COLUMNS; c++) added[c] += d_rest_row[c];
        }
        for (int c = 0; c < COLUMNS; c++) d_rest_row[c] = broadcast(0);
    }

    // The token at a position among those other than t.
    static int other(int t, int position) { return position + (position >= t); }
    // d_attention is kept by q . k, before the division by sqrt(d_k).
    static float attention_scale() { return 1 / std::sqrt(float(K)); }

    // ---- states ----------------------------------------------------------------------------------------------------

    template <int COLUMNS>
    void train_states(int t, const Minibatch<V>& batch) {
        weigh_tokens<COLUMNS>(t);
        const int end = batch.begin[t + 1];
        for (int first = batch.begin[t], n; first < end; first += n) {
            n = end - first < kAtOnce ? end - first : kAtOnce;
            for (int i = 0; i < n; i++) prefix[i] = {batch.sorted(first + i).set, batch.sorted(first + i).others};
            attend<COLUMNS>(t, n);
            int i = 0;
            for (; i + kBlock <= n; i += kBlock) train_block<kBlock>(t, i, batch, first + i);
            for (; i < n; i++) train_block<1>(t, i, batch, first + i);
            attend_backward<COLUMNS>(t, n);
        }
        weigh_tokens_backward<COLUMNS>(t);
    }

    template <int COLUMNS>
    void evaluate_states(int t, int first, int end, const uint32_t* set, const int32_t* where, f16* tvd) {
        weigh_tokens<COLUMNS>(t);
        for (int n; first < end; first += n) {
            n = end - first < kAtOnce ? end - first : kAtOnce;
            for (int i = 0; i < n; i++) prefix[i] = {set[first + i], others(set[first + i], t)};
            attend<COLUMNS>(t, n);
            for (int i = 0; i < n; i++) {
                forward_block<1>(t, i);
                tvd[where[first + i]] = total_variation(block[0], prefix[i].set);
            }
        }
    }

    // Forward and backward of COUNT states, from sums to their gradients.
    template <int COUNT>
    void train_block(int t, int i, const Minibatch<V>& batch, int first) {
        forward_block<COUNT>(t, i);
        logits_backward<COUNT>(t, batch, first);
        for (int b = 0; b < COUNT; b++) scalars_backward(block[b]);
        if (norm_after()) double_norm() ? norms_backward<COUNT, true>(t) : norms_backward<COUNT, false>(t);
    }

    template <int COUNT>
    void forward_block(int t, int i) {
        for (int b = 0; b < COUNT; b++) block[b].sum = sums[i + b];
        normalise<COUNT>(t);
        softmax<COUNT>(t);
    }

    // sum_{j in S} e_tj value_j for n states
    template <int COLUMNS>
    void attend(int t, int n) {
        if (subsets) {
            for (int i = 0; i < n; i++) {
                if (prefix[i].rest() != rest) rest = prefix[i].rest(), sum_rest<COLUMNS>(t);
                const f16* low = low_row[prefix[i].low()];
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
            f16 sum[N];
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
            f16 d[N];
            RESHARPEN_UNROLL
            for (int c = 0; c < N; c++) d[c] = sums[i][FIRST + c];
            for (uint32_t left = prefix[i].set; left; left &= left - 1) {
                const int j = __builtin_ctz(left);
                const f16 d_e = token_backward<FIRST, FIRST + N>(j, weight[j], d);
                d_weights[i][j] = FIRST ? d_weights[i][j] + d_e : d_e;
            }
        }
        if constexpr (FIRST + N < COLUMNS) sum_values_backward<FIRST + N, COLUMNS>(n);
    }

    // By Euler's theorem d Z is minus the mean of d e_j. Taken from the same d e_j, and not from the state's scalars, it
    // cancels that of a token with all the attention, as it should.
    f16 mean_weight_gradient(uint32_t set, const f16* e, const f16* d_e) const {
        f16 z = broadcast(0), sum = broadcast(0);
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
                f16 mean = mean_weight_gradient(prefix[i].set, weight, d_weights[i]);
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
                    f16 sum = sums[i][c];
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
    static void add_to(f16* d, const f16* sum) {
        RESHARPEN_UNROLL
        for (int c = 0; c < COLUMNS; c++) d[c] += sum[c];
    }

    // The two scalars 1/rms, on the attention's output and on the residual stream.
    template <int COUNT>
    void normalise(int t) {
        for (int b = 0; b < COUNT; b++) {
            State& s = block[b];
            s.o_scale = s.inverse_z = reciprocal(s.sum[kZ]);
            s.r_1 = s.r_2 = broadcast(1);
            if (placement.block_out) {
                s.mean_o = s.inverse_z * s.inverse_z * dot<D>(s.sum + kO, s.sum + kO);
                s.r_o = inverse_rms<D>(s.mean_o, epsilon);
                s.o_scale = s.r_o * s.inverse_z;
            }
        }
        if (!placement.residual && !placement.unembedding_in) return;
        for (int b = 0; b < COUNT; b++) {
            State& s = block[b];
            f16 squares[2] = {broadcast(0), broadcast(0)}, along_o[2] = {broadcast(0), broadcast(0)};
            RESHARPEN_UNROLL
            for (int i = 0; i < D; i++) {
                const f16 o = gain_out[i] * s.sum[kO + i];
                s.z[i] = x[t][i] + s.o_scale * o;
                squares[i % 2] += s.z[i] * s.z[i];
                along_o[i % 2] += s.z[i] * o;
            }
            s.z_squared = squares[0] + squares[1];
            s.z_along_o = along_o[0] + along_o[1];
            (placement.residual ? s.r_1 : s.r_2) = inverse_rms<D>(s.z_squared, epsilon);
            if (double_norm()) normalise_again(s);
        }
    }

    // The unembedding's norm after the residual's: 1 / rms(r_1 g_1 z).
    void normalise_again(State& s) {
        s.gained_squared = s.gained_along_o = broadcast(0);
        for (int i = 0; i < D; i++) {
            const f16 gained = gain_1[i] * s.z[i];
            s.gained_squared += gained * gained;
            s.gained_along_o += gained * gain_1[i] * (gain_out[i] * s.sum[kO + i]);
        }
        s.r_2 = inverse_rms<D>(s.r_1 * s.r_1 * s.gained_squared, epsilon);
    }

    // Exponentials of r_1 r_2 (B_t + o_scale T) less their maximum, and the inverse of their sum.
    template <int COUNT>
    void softmax(int t) {
        for (int b = 0; b < COUNT; b++) {
            State& s = block[b];
            f16 highest[2] = {broadcast(-INFINITY), broadcast(-INFINITY)};
            RESHARPEN_UNROLL
            for (int w = 0; w < V; w++) {
                s.scaled[w] = base[t][w] + s.o_scale * s.sum[w];
                highest[w % 2] = max(highest[w % 2], s.scaled[w]);
            }
            s.log2_scale = kLog2E * (s.r_1 * s.r_2);
            s.log2_shift = s.log2_scale * max(highest[0], highest[1]);
        }
        for (int b = 0; b < COUNT; b++) {
            State& s = block[b];
            f16 sum[2] = {broadcast(0), broadcast(0)};
            RESHARPEN_UNROLL
            for (int w = 0; w < V; w++) {
                s.d_logits[w] = exp2_nonpositive(s.log2_scale * s.scaled[w] - s.log2_shift);
                sum[w % 2] += s.d_logits[w];
            }
            s.inverse_sum = reciprocal(sum[0] + sum[1]);
        }
    }

    // 1/2 sum_w |p_w - p*_w|, p* uniform on the absent tokens
    f16 total_variation(const State& s, uint32_t set) const {
        const f16 uniform = broadcast(1.0f / float(V - __builtin_popcount(set)));
        f16 sum = broadcast(0);
        for (int w = 0; w < V; w++) {
            const f16 p = s.d_logits[w] * s.inverse_sum;
            sum += abs(set >> w & 1 ? p : p - uniform);
        }
        return 0.5f * sum;
    }

    // d logits = weight p - counts, with logits = r_1 r_2 (B_t + o_scale T) on to B_t, T and the scalars.
    template <int COUNT>
    void logits_backward(int t, const Minibatch<V>& batch, int first) {
        for (int b = 0; b < COUNT; b++) {
            State& s = block[b];
            const auto& counted = batch.sorted(first + b);
            const f16 weight = counted.weight * s.inverse_sum, r = s.r_1 * s.r_2, d_T = r * s.o_scale;
            f16 along_logits[2] = {broadcast(0), broadcast(0)}, along_T[2] = {broadcast(0), broadcast(0)};
            RESHARPEN_UNROLL
            for (int w = 0; w < V; w++) {
                const f16 d = weight * s.d_logits[w] - broadcast(counted.counts[w]);
                along_logits[w % 2] += d * s.scaled[w];
                along_T[w % 2] += d * s.sum[w];
                s.d_logits[w] = d;
                s.sum[w] = d_T * d;
            }
            s.d_r = along_logits[0] + along_logits[1];
            s.d_o_scale = r * (along_T[0] + along_T[1]);
        }
        RESHARPEN_UNROLL
        for (int w = 0; w < V; w++) {
            f16 d = broadcast(0);
            RESHARPEN_UNROLL
            for (int b = 0; b < COUNT; b++) d += block[b].r_1 * block[b].r_2 * block[b].d_logits[w];
            d_base[t][w] += d;
        }
    }

    // Through the scalars: d z = (d_z_1 + d_z_2 g_1^2) z, d o = d_o o + .., and Z; o_scale = r_o / Z.
    void scalars_backward(State& s) {
        s.d_z_1 = s.d_z_2 = s.d_o = broadcast(0);
        if (double_norm()) {
            const f16 along = d_inverse_rms<D>(s.r_2, s.r_1 * s.d_r);
            s.d_z_2 = along * (s.r_1 * s.r_1);
            s.d_z_1 = d_inverse_rms<D>(s.r_1, s.r_2 * s.d_r + along * s.r_1 * s.gained_squared);
            s.d_o_scale += s.d_z_1 * s.z_along_o + s.d_z_2 * s.gained_along_o;
        } else if (placement.residual || placement.unembedding_in) {
            s.d_z_1 = d_inverse_rms<D>(s.r_1 * s.r_2, s.d_r);
            s.d_o_scale += s.d_z_1 * s.z_along_o;
        }
        f16 d_inverse_z = s.d_o_scale;
        if (placement.block_out) {
            const f16 along = d_inverse_rms<D>(s.r_o, s.inverse_z * s.d_o_scale);  // d (o / Z) = along o / Z
            d_inverse_z = s.r_o * s.d_o_scale + along * s.mean_o * s.sum[kZ];
            s.d_o = along * s.inverse_z * s.inverse_z;
        }
        s.sum[kZ] = -(s.inverse_z * s.inverse_z) * d_inverse_z;
    }

    // From the scalars to o, x_t and the gains: z = x_t + o_scale g_out o. Without a norm of z its gradient is zero.
    template <int COUNT, bool kDouble>
    void norms_backward(int t) {
        RESHARPEN_UNROLL
        for (int i = 0; i < D; i++) {
            f16 d_x_sum = broadcast(0), d_out_sum = broadcast(0), d_1_sum = broadcast(0);
            RESHARPEN_UNROLL
            for (int b = 0; b < COUNT; b++) {
                State& s = block[b];
                const f16 o = s.sum[kO + i];
                f16 d_z = s.d_z_1 * s.z[i];
                if constexpr (kDouble) {
                    const f16 d_gained = s.d_z_2 * gain_1[i] * s.z[i];
                    d_z += d_gained * gain_1[i];
                    d_1_sum += d_gained * s.z[i];
                }
                const f16 d_scaled = s.o_scale * d_z;
                d_x_sum += d_z;
                d_out_sum += d_scaled * o;
                s.sum[kO + i] = s.d_o * o + d_scaled * gain_out[i];
            }
            d_x[t][i] += d_x_sum;
            d_gain_out[t][i] += d_out_sum;
            if constexpr (kDouble) d_gain_1[t][i] += d_1_sum;
        }
    }

    // ---- lanes whose attention logits span more than kWide: relative to the maximum over the set ---------------------

    f16 highest_in(int t, uint32_t set) const {
        f16 highest = attention[t][t];
        for (; set; set &= set - 1) highest = max(highest, attention[t][__builtin_ctz(set)]);
        return highest;
    }

    template <int COLUMNS>
    void attend_in_wide_lanes(int t, uint32_t set, f16* sum) {
        const f16 highest = highest_in(t, set);
        f16 careful[COLUMNS];
        for (f16& x : careful) x = broadcast(0);
        for (uint32_t left = set; left; left &= left - 1) {
            const int j = __builtin_ctz(left);
            const f16 e = exp2_nonpositive(attention[t][j] - highest);
            for (int c = 0; c < COLUMNS; c++) careful[c] += e * value[j][c];
        }
        for (int c = 0; c < COLUMNS; c++) sum[c] = select(wide, careful[c], sum[c]);
    }

    // Goes straight to value and attention, and leaves nothing for the rows to carry.
    template <int COLUMNS>
    void attend_in_wide_lanes_backward(int t, uint32_t set, f16* sum) {
        const f16 highest = highest_in(t, set), zero = broadcast(0);
        f16 d_careful[COLUMNS], e[V], d_e[V];
        for (int c = 0; c < COLUMNS; c++) {
            d_careful[c] = c == kZ ? zero : select(wide, sum[c], zero);
            sum[c] = select(wide, zero, sum[c]);
        }
        for (uint32_t left = set; left; left &= left - 1) {
            const int j = __builtin_ctz(left);
            e[j] = exp2_nonpositive(attention[t][j] - highest);
            d_e[j] = token_backward<0, COLUMNS>(j, e[j], d_careful);
        }
        const f16 mean = mean_weight_gradient(set, e, d_e);
        for (uint32_t left = set; left; left &= left - 1) {
            const int j = __builtin_ctz(left);
            d_attention[t][j] += select(wide, attention_scale() * e[j] * (d_e[j] - mean), zero);
        }
    }
};

}  // namespace resharpen

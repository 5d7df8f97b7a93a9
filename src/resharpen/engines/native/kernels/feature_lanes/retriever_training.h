// The retriever in training: attention over the items of a block of sequences, and back; retriever.h has the formulas.
#pragma once

#include "retriever_head.h"

namespace resharpen {

class RetrieverTraining : public RetrieverHead {
  protected:
    using RetrieverHead::RetrieverHead;

    void attend_block(const RetrievalBatch& batch, int first, int end) {
        const int from = batch.begin[first], n = batch.begin[end] - from;
        reserve_items(n);
        features<true>(&batch.items[from], n);
        if (norm_in) scales_of_items(n);
        scores(n, e.data());
        for (int s = first; s < end; s++) {
            const int begin = batch.begin[s] - from, length = batch.begin[s + 1] - batch.begin[s];
            softmax(&e[begin], length, training_factor(length), &weight[begin]);
            f32x16 sum[kV];
            for (f32x16& x : sum) x = broadcast(0);
            float one = 0;
            for (int i = begin; i < begin + length; i++) {
                const float w = norm_in ? weight[i] * r[i] : weight[i];
                one += w;
                RESHARPEN_UNROLL
                for (int v = 0; v < kV; v++) sum[v] += w * load(a[i] + 16 * v);
            }
            for (int v = 0; v < kV; v++) store(pooled[s - first] + 16 * v, sum[v]);
            pooled_one[s - first] = norm_in ? one : 1;
        }
        second_layer(end - first);
    }

    // d_other holds the gradient by `mixed`.
    void attend_block_backward(const RetrievalBatch& batch, int first, int end) {
        const int from = batch.begin[first], n = batch.begin[end] - from, n_sequences = end - first;
        if (norm_in) gain_backward(n_sequences);
        weight_gradient(n_sequences, pooled, d_other, d + kW2, d + kB2, norm_in ? pooled_one : nullptr);
        gemm(n_sequences, H, kV, {d_other.data(), kRow, 1}, row_major(W2T.data(), kRow), d_row.data(), kRow);
        for (int s = first; s < end; s++) {
            const int begin = batch.begin[s] - from, length = batch.begin[s + 1] - batch.begin[s];
            const float* d_pooled = d_row[s - first];
            const float d_one = norm_in ? dot_row<kV>(d_other[s - first], theta + kB2) : 0;
            logits_backward(begin, length, d_pooled, d_one);
            norm_in ? items_backward<true>(&batch.items[from], begin, length, d_pooled)
                    : items_backward<false>(&batch.items[from], begin, length, d_pooled);
        }
        if (norm_in) {
            symmetric_product(n, {a.data(), 1, kRow}, h_back, d_gram, !first_block);
            add_rows<kV>(d_gram_bias, n, h_back.data(), kRow);
        }
        for (int c = 0; c <= C; c++) move_row(d_table[c], d + kW1 + c * H);
        move_row(d_block_score, d_score);
    }

    // From `mixed` to `hidden` and the gain.
    void gain_backward(int n_sequences) {
        for (int s = 0; s < n_sequences; s++)
            for (int v = 0; v < kV; v++) {
                const f32x16 dy = load(d_other[s] + 16 * v);
                float* d_gain = d + gain_in + 16 * v;
                store(d_gain, load(d_gain) + dy * load(hidden[s] + 16 * v));
                store(d_other[s] + 16 * v, dy * load(theta + gain_in + 16 * v));
            }
    }

    // e becomes its own gradient, d_weight the gradient by the weights: de_i = factor w_i (dw_i - sum_j w_j dw_j).
    // Where the norm is, d_weight keeps w_i dw_i + de_i e_i, which the norm's backward needs.
    void logits_backward(int begin, int length, const float* d_pooled, float d_one) {
        float mean = 0;
        for (int i = begin; i < begin + length; i++) {
            const float along = dot_row<kV>(a[i], d_pooled);
            d_weight[i] = norm_in ? r[i] * (along + d_one) : along;
            mean += weight[i] * d_weight[i];
        }
        const float factor = training_factor(length);
        if (remedy == Remedy::ssmax) d_ssmax += by_ssmax(length) * along_logits(begin, length, mean);
        for (int i = begin; i < begin + length; i++) {
            const float d_e = factor * weight[i] * (d_weight[i] - mean);
            if (norm_in) d_weight[i] = weight[i] * d_weight[i] + d_e * e[i];
            e[i] = d_e;
        }
    }

    // The derivative by the factor, sum_i w_i (dw_i - mean) e_i. The logits less their own mean give the same, and what
    // is rounded off in `mean` does not count.
    float along_logits(int begin, int length, float mean) const {
        float mean_e = 0, sum = 0;
        for (int i = begin; i < begin + length; i++) mean_e += weight[i] * e[i];
        for (int i = begin; i < begin + length; i++) sum += weight[i] * (d_weight[i] - mean) * (e[i] - mean_e);
        return sum;
    }

    // da_i = r_i (w_i d_pooled + de_i score) + c_i W_2 h_i, times the slope, to the table; d_score collects
    // sum de_i r_i a_i. Without the norm r_i = 1 and c_i = 0. With it c_i = -r_i^2 / H (w_i dw_i + de_i e_i) is twice
    // the derivative by |h_i|^2, and c_i a_i is left for the gradient of the Gram matrix in the place of W_2 h_i; then
    // weight, e and d_weight are left as r_i w_i, r_i de_i and c_i. A few features at a time of all items, so that what
    // is summed stays in registers.
    template <bool kNorm>
    void items_backward(const Item* items, int begin, int length, const float* d_pooled) {
        const int end = begin + length;
        for (int i = begin; kNorm && i < end; i++) {
            weight[i] *= r[i], e[i] *= r[i], d_weight[i] *= -(1.0f / H) * r[i] * r[i];
            d_score_bias += e[i], d_b2_squared += d_weight[i];
        }
        for (int v = 0; v < H; v += 16) {
            const f32x16 by_weight = load(d_pooled + v), by_logit = load(score + v);
            f32x16 of_priority = load(d_table[0] + v), of_score = load(d_block_score + v);
            for (int i = begin; i < end; i++) {
                const f32x16 d_e = broadcast(e[i]), c = broadcast(kNorm ? d_weight[i] : 0), a_i = load(a[i] + v);
                f32x16 d_a = broadcast(weight[i]) * by_weight + d_e * by_logit;
                if (kNorm) d_a += c * load(h_back[i] + v);
                const f32x16 d_u = d_a * load(slope[i] + v);
                float* of_class = d_table[1 + items[i].kind] + v;
                store(of_class, load(of_class) + d_u);
                of_priority += broadcast(items[i].priority) * d_u;
                of_score += d_e * a_i;
                if (kNorm) store(h_back[i] + v, c * a_i);
            }
            store(d_table[0] + v, of_priority);
            store(d_block_score + v, of_score);
        }
    }

    // What one block added up joins the sum over blocks: short sums round less.
    static void move_row(float* from, float* to) {
        add_row<kV>(to, 1, from);
        std::memset(from, 0, sizeof(float) * H);
    }

    // |h|^2 = a . W_2 W_2^T a + 2 a . W_2 b_2 + |b_2|^2, to W_2 and b_2.
    void squares_backward() {
        mirror(d_gram);
        gemm(H, H, kV, {d_gram.data(), kRow, 1}, row_major(W2.data(), kRow), d + kW2, H, true);
        for (int i = 0; i < H; i++) add_row<kV>(d + kW2 + i * H, d_gram_bias[i], theta + kB2);
        add_rows<kV>(d + kB2, H, W2.data(), kRow, d_gram_bias);
        add_row<kV>(d + kB2, d_b2_squared, theta + kB2);
    }

    // From score = W_2 k and score_bias = b_2 . k, k with its gain, to W_2, b_2, the gain, K and q.
    void score_backward() {
        alignas(64) float d_k[H] = {};
        add_rows<kV>(d_k, H, W2.data(), kRow, d_score);
        for (int i = 0; i < H; i++) add_row<kV>(d + kW2 + i * H, d_score[i], gained_key);
        if (norm_in) {
            add_row<kV>(d_k, d_score_bias, theta + kB2);
            add_row<kV>(d + kB2, d_score_bias, gained_key);
            for (int i = 0; i < H; i++) d[gain_in + i] += key[i] * d_k[i], d_k[i] *= theta[gain_in + i];
        }
        for (int i = 0; i < H; i++) {
            const f32x16 by_row = broadcast(d_k[i]);
            for (int v = 0; v < H; v += 16) store(d + kK + i * H + v, by_row * load(theta + kQ + v));
            add_row<kV>(d + kQ, d_k[i], theta + kK + i * H);
        }
    }
};

}  // namespace resharpen

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
        if (norm_in) second_layer_of_items(n);
        scores(n, e.data());
        for (int s = first; s < end; s++) {
            const int begin = batch.begin[s] - from, length = batch.begin[s + 1] - batch.begin[s];
            softmax(&e[begin], length, training_factor(length), &weight[begin]);
            f32x16 sum[kV];
            for (f32x16& x : sum) x = broadcast(0);
            for (int i = begin; i < begin + length; i++) {
                const f32x16 w = broadcast(norm_in ? weight[i] * r[i] : weight[i]);
                const float* row = norm_in ? h[i] : a[i];
                RESHARPEN_UNROLL
                for (int v = 0; v < kV; v++) sum[v] += w * load(row + 16 * v);
            }
            for (int v = 0; v < kV; v++) store(pooled[s - first] + 16 * v, sum[v]);
        }
        norm_in ? gain_after_pooling(end - first) : second_layer(end - first);
    }

    // d_other holds the gradient by `mixed`.
    void attend_block_backward(const RetrievalBatch& batch, int first, int end) {
        const int from = batch.begin[first], n = batch.begin[end] - from, n_sequences = end - first;
        if (norm_in) {
            for (int s = 0; s < n_sequences; s++)
                for (int v = 0; v < kV; v++) {
                    const f32x16 dy = load(d_other[s] + 16 * v);
                    float* d_gain = d + gain_in + 16 * v;
                    store(d_gain, load(d_gain) + dy * load(pooled[s] + 16 * v));
                    store(d_row[s] + 16 * v, dy * load(theta + gain_in + 16 * v));
                }
        } else {
            weight_gradient(n_sequences, pooled, d_other, d + kW2, d + kB2);
            gemm(n_sequences, H, kV, {d_other.data(), kRow, 1}, row_major(W2T.data(), kRow), d_row.data(), kRow);
        }
        for (int s = first; s < end; s++) {
            const int begin = batch.begin[s] - from, length = batch.begin[s + 1] - batch.begin[s];
            logits_backward(begin, length, d_row[s - first]);
            norm_in ? items_backward_to_h(begin, length, d_row[s - first])
                    : items_backward_to_table(&batch.items[from], begin, length, d_row[s - first]);
        }
        if (norm_in) {
            weight_gradient(n, a, h, d + kW2, d + kB2);
            gemm(n, H, kV, {h.data(), kRow, 1}, row_major(W2T.data(), kRow), d_a.data(), kRow);
            for (int i = 0; i < n; i++)
                add_to_table(batch.items[from + i], i, [&](int v) { return load(d_a[i] + 16 * v); });
        }
        for (int c = 0; c <= C; c++) move_row(d_table[c], d + kW1 + c * H);
        move_row(d_block_key, d_key);
    }

    // e becomes its own gradient, d_weight the gradient by the weights: de_i = factor w_i (dw_i - sum_j w_j dw_j).
    // Where the norm is, d_weight keeps w_i dw_i + de_i e_i, which the norm's backward needs.
    void logits_backward(int begin, int length, const float* d_pooled) {
        float mean = 0;
        for (int i = begin; i < begin + length; i++) {
            d_weight[i] = norm_in ? r[i] * dot_row<kV>(h[i], d_pooled) : dot_row<kV>(a[i], d_pooled);
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

    // da_i = w_i d_pooled + de_i score, times the slope, to the table; d_key collects sum de_i a_i.
    void items_backward_to_table(const Item* items, int begin, int length, const float* d_pooled) {
        for (int i = begin; i < begin + length; i++) {
            const f32x16 w = broadcast(weight[i]), d_e = broadcast(e[i]);
            add_to_table(items[i], i, [&](int v) { return w * load(d_pooled + 16 * v) + d_e * load(score + 16 * v); });
            add_row<kV>(d_block_key, e[i], a[i]);
        }
    }

    // h_i becomes its own gradient: r_i (w_i d_pooled + de_i score) - r_i^2 / H (w_i dw_i + de_i e_i) h_i; d_key
    // collects sum de_i r_i h_i.
    void items_backward_to_h(int begin, int length, const float* d_pooled) {
        for (int i = begin; i < begin + length; i++) {
            const f32x16 w = broadcast(r[i] * weight[i]), d_e = broadcast(r[i] * e[i]);
            const f32x16 along = broadcast(-(1.0f / H) * r[i] * r[i] * d_weight[i]);
            float* row = h[i];
            RESHARPEN_UNROLL
            for (int v = 0; v < kV; v++) {
                const f32x16 x = load(row + 16 * v);
                store(d_block_key + 16 * v, load(d_block_key + 16 * v) + d_e * x);
                store(row + 16 * v, w * load(d_pooled + 16 * v) + d_e * load(score + 16 * v) + along * x);
            }
        }
    }

    // What one block added up joins the sum over blocks: short sums round less.
    static void move_row(float* from, float* to) {
        add_row<kV>(to, 1, from);
        std::memset(from, 0, sizeof(float) * H);
    }

    template <class Gradient>
    RESHARPEN_INLINE void add_to_table(Item item, int i, Gradient d_a) {
        float *of_class = d_table[1 + item.kind], *of_priority = d_table[0];
        const f32x16 priority = broadcast(item.priority);
        const float* derivative = slope[i];
        RESHARPEN_UNROLL
        for (int v = 0; v < kV; v++) {
            const f32x16 d_u = d_a(v) * load(derivative + 16 * v);
            store(of_class + 16 * v, load(of_class + 16 * v) + d_u);
            store(of_priority + 16 * v, load(of_priority + 16 * v) + priority * d_u);
        }
    }

    // From d_key, the gradient by W_2 k (or by r_i-weighted h_i), to K, q, and W_2 or the gain.
    void key_backward() {
        alignas(64) float d_k[H];
        if (norm_in) {
            for (int i = 0; i < H; i++) {
                d_k[i] = theta[gain_in + i] * d_key[i];
                d[gain_in + i] += key[i] * d_key[i];
            }
        } else {
            std::fill(d_k, d_k + H, 0.0f);
            for (int i = 0; i < H; i++) {
                add_row<kV>(d_k, d_key[i], W2[i]);
                add_row<kV>(d + kW2 + i * H, d_key[i], key);
            }
        }
        for (int i = 0; i < H; i++) {
            const f32x16 by_row = broadcast(d_k[i]);
            for (int v = 0; v < H; v += 16) store(d + kK + i * H + v, by_row * load(theta + kQ + v));
            add_row<kV>(d + kQ, d_k[i], theta + kK + i * H);
        }
    }
};

}  // namespace resharpen

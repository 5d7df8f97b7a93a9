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
        mass.shape(kBlock, room());
        place(&batch.items[from], n);
        scores(n, e.data());
        for (int s = first; s < end; s++) {
            const int begin = batch.begin[s] - from, length = batch.begin[s + 1] - batch.begin[s];
            softmax(&e[begin], length, training_factor(length), &weight[begin]);
            float* of_sequence = mass[s - first];
            std::memset(of_sequence, 0, sizeof(float) * room());
            for (int i = begin; i < begin + length; i++) add_mass(of_sequence, i, weight[i]);
        }
        sum_nodes(end - first);
    }

    void attend_block_backward(const RetrievalBatch& batch, int first, int end) {
        const int from = batch.begin[first], n = end - first;
        gemm(n_nodes, n, kV, {mass[0], 1, mass.row}, row_major(d_z.data(), kRow), d_value.data(), kRow, true);
        d_mass.shape(kBlock, room());
        const int all = (n_nodes + 15) / 16;
        gemm(n, H, all, {d_z.data(), kRow, 1}, row_major(value_across[0], value_across.row), d_mass[0], d_mass.row);
        for (int s = 0; s < n; s++) std::fill(d_mass[s] + 16 * all, d_mass[s] + room(), 0.0f);
        for (int s = first; s < end; s++) {
            const int begin = batch.begin[s] - from, length = batch.begin[s + 1] - batch.begin[s];
            logits_backward(begin, length, d_mass[s - first]);
            items_backward(&batch.items[from], begin, begin + length, d_mass[s - first]);
        }
        if (steep) steep_backward();
    }

    // e becomes its own gradient, d_weight the gradient by the weights: de_i = factor w_i (dw_i - sum_j w_j dw_j).
    // All dw are taken relative to that of the heaviest item: where it has nearly all the weight, its own is nearly the
    // mean, and the mean of what is left is small and exact. Where the norm is, d_weight keeps w_i dw_i + de_i e_i,
    // which the norm's backward needs.
    void logits_backward(int begin, int length, const float* d_sequence) {
        for (int i = begin; i < begin + length; i++) {
            const float along = along_nodes(i, d_sequence);
            d_weight[i] = norm_in ? r[i] * along : along;
        }
        const int heaviest = int(std::max_element(&weight[begin], &weight[begin] + length) - &weight[0]);
        const float its_d_weight = d_weight[heaviest], its_e = e[heaviest], factor = training_factor(length);
        float mean = 0, along_logits = 0;
        for (int i = begin; i < begin + length; i++) mean += weight[i] * (d_weight[i] - its_d_weight);
        for (int i = begin; i < begin + length; i++) {
            const float d = weight[i] * ((d_weight[i] - its_d_weight) - mean), d_e = factor * d;
            along_logits += d * (e[i] - its_e);  // the d sum to zero: without the largest, least is rounded off
            if (norm_in) d_weight[i] = weight[i] * d_weight[i] + d_e * e[i];
            e[i] = d_e;
        }
        if (attention_kind == AttentionKind::ssmax) d_ssmax += by_ssmax(length) * along_logits;
    }

    // To h . k of the nodes and, c_i / 2 being the derivative by |h_i|^2, c_i = -r_i^2 / H (w_i dw_i + de_i e_i), to
    // their products; and by the item's shares of steep nodes to their weights.
    void items_backward(const Item* items, int begin, int end, const float* d_sequence) {
        for (int i = begin; i < end; i++) {
            const float d_along = norm_in ? e[i] * r[i] : e[i], c = -(1.0f / H) * r[i] * r[i] * d_weight[i];
            add_shares(i, d_along, d_along_key[0]);
            if (norm_in) add_products(i, c);
            if (!steep) continue;
            f32x16 d_share = broadcast(norm_in ? weight[i] * r[i] : weight[i]) * load(d_sequence + n_curves) +
                             broadcast(d_along) * load(along_key[0] + n_curves);
            if (norm_in) d_share += broadcast(c) * load(by_steep[i]);
            const f32x16 d_u = d_share * load(steep_slope[i]);
            float *of_class = d_steep_table[1 + items[i].kind], *of_priority = d_steep_table[0];
            store(of_class, load(of_class) + d_u);
            store(of_priority, load(of_priority) + items[i].priority * d_u);
        }
    }

    void add_products(int i, float c) {
        const f32x16 of_window = c * load(share[i]), of_steep = c * load(share[i] + 16);
        float *by = share[i], *products = d_gram[32 * window[i]];
        for (int k = 0; k < stride; k++)
            store(products + 32 * k, load(products + 32 * k) + broadcast(by[k]) * of_window);
        if (!steep) return;
        for (int k = 0; k < 32; k = k + 1 == stride ? 16 : k + 1) {
            float* to = products + 32 * k + 16;
            store(to, load(to) + broadcast(by[k]) * of_steep);
        }
    }

    // What one block added up joins the sum over blocks: short sums round less.
    void steep_backward() {
        for (int c = 0; c <= C; c++)
            for (int k = 0; k < kLanes; k++) d[kW1 + c * H + steepest[k]] += d_steep_table[c][k];
        std::memset(d_steep_table.data(), 0, sizeof(float) * (C + 1) * kLanes);
    }

    // From the values of the nodes to V, the gain and h.
    void values_backward() {
        weight_gradient(n_nodes, after_gain(), d_value, d + kValue, nullptr, true);
        gemm(n_nodes, H, kV, {d_value.data(), kRow, 1}, row_major(ValueT.data(), kRow), d_h.data(), kRow);
        if (!norm_in) return;
        RowSum<kV> d_gain;
        for (int i = 0; i < n_nodes; i++) {
            f32x16* sum = d_gain.next();
            for (int v = 0; v < kV; v++) {
                const f32x16 dy = load(d_h[i] + 16 * v);
                sum[v] += dy * load(h[i] + 16 * v);
                store(d_h[i] + 16 * v, dy * load(theta + gain_in + 16 * v));
            }
        }
        d_gain.add_to(d + gain_in, H);
        std::memset(d_h[n_nodes], 0, sizeof(float) * (room() - n_nodes) * kRow);
        for (int w = 0; w < n_windows(); w++) {
            const float *window_h = h[first_node(w, 0)], *products = d_gram[32 * w];
            float* d_window = d_h[first_node(w, 0)];
            gemm(stride, stride, kV, {products, 32, 1}, row_major(window_h, kRow), d_window, kRow, true);
            if (!steep) continue;
            float *steep_h = h[n_curves], *d_steep = d_h[n_curves];
            const Left cross{products + 16, 32, 1};
            gemm(stride, 16, kV, cross, row_major(steep_h, kRow), d_window, kRow, true);
            gemm(16, stride, kV, cross.transposed(), row_major(window_h, kRow), d_steep, kRow, true);
            gemm(16, 16, kV, {products + 16 * 32 + 16, 32, 1}, row_major(steep_h, kRow), d_steep, kRow, true);
        }
    }

    // From the values of the nodes to V, W_2, b_2 and W_1, and to k with its gain.
    void nodes_backward() {
        const int n = n_nodes;
        values_backward();
        add_rows<kV>(d_key, n, h.data(), kRow, d_along_key[0]);
        for (int i = 0; i < n; i++) add_row<kV>(d_h[i], d_along_key[0][i], gained_key);
        weight_gradient(n, a, d_h, d + kW2, nullptr, true);
        add_rows<kV>(d + kB2, n_curves, d_h.data(), kRow);
        Rows<kRow>& d_a = h;  // which nobody needs any more
        gemm(n_curves, H, kV, {d_h.data(), kRow, 1}, row_major(W2T.data(), kRow), d_a.data(), kRow);
        for (int v = 0; v < H; v += 16) {
            f32x16 of_priority = broadcast(0);
            for (int i = 0; i < n_curves; i++) {
                const f32x16 d_u = load(d_a[i] + v) * load(slope[i] + v);
                float* of_class = d + kW1 + (1 + nodes[i].kind) * H + v;
                store(of_class, load(of_class) + d_u);
                of_priority += broadcast(nodes[i].priority) * d_u;
            }
            store(d + kW1 + v, load(d + kW1 + v) + of_priority);
        }
    }

    // From k with its gain to the gain, K and q.
    void key_backward() {
        if (norm_in)
            for (int i = 0; i < H; i++) d[gain_in + i] += key[i] * d_key[i], d_key[i] *= theta[gain_in + i];
        for (int i = 0; i < H; i++) {
            const f32x16 by_row = broadcast(d_key[i]);
            for (int v = 0; v < H; v += 16) store(d + kK + i * H + v, by_row * load(theta + kQ + v));
            add_row<kV>(d + kQ, d_key[i], theta + kK + i * H);
        }
    }
};

}  // namespace resharpen

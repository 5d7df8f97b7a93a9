// The retriever, per sequence: from the pooled items to the logits, and backward; retriever.h has the formulas.
#pragma once

#include "retriever_items.h"

namespace {

constexpr int kBlock = 48;  // sequences at a time

// Activations and gradients of a block of sequences.
struct Head {
    Rows<kRow> z{kBlock}, normed{kBlock}, f{kBlock}, f_slope{kBlock}, d_row{kBlock}, d_z{kBlock};
    Rows<16> logits{kBlock};
    float z_scale[kBlock];
};

inline RowNorm<kV, H, H> norm(const Weights& weights) { return {false, weights.epsilon}; }

inline Rows<kRow>& after_norm(const Setup& setup, Head& head) { return setup.norm_out ? head.normed : head.z; }

// z from the shares of nodes in each sequence.
inline void sum_nodes(int n, const Nodes& nodes, const ItemBlock& block, Head& head) {
    gemm(n, nodes.n, kV, {block.mass[0], block.mass.row, 1}, row_major(nodes.value.data(), kRow), head.z.data(), kRow);
}

inline void head_forward(const Setup& setup, const Weights& weights, int n, Head& head) {
    if (setup.norm_out)
        norm(weights).forward_rows(n, head.z.data(), kRow, weights.theta + setup.layout.gain_out, head.normed.data(),
                                   head.z_scale);
    fill_rows(head.f, n, weights.theta + kB3);
    gemm(n, H, kV, {after_norm(setup, head).data(), kRow, 1}, row_major(weights.W3.data(), kRow), head.f.data(), kRow,
         true);
    for (int s = 0; s < n; s++)
        for (int v = 0; v < kV; v++) {
            f32x16 derivative;
            store(head.f[s] + 16 * v, gelu(load(head.f[s] + 16 * v), derivative));
            store(head.f_slope[s] + 16 * v, derivative);
        }
    for (int s = 0; s < n; s++) store(head.logits[s], load(weights.theta + kB4));
    gemm(n, H, 1, {head.f.data(), kRow, 1}, row_major(weights.W4.data(), 16), head.logits.data(), 16, true);
}

inline float is_right(const float* row, int label) {
    const bool finite = std::all_of(row, row + C, [](float x) { return std::isfinite(x); });
    return finite ? float(std::max_element(row, row + C) - row == label) : std::numeric_limits<float>::quiet_NaN();
}

inline void norm_backward(const Setup& setup, const Weights& weights, int n, Head& head, Gradient& d) {
    f32x16 row[kV], d_gain[kV] = {};
    for (int s = 0; s < n; s++) {
        for (int v = 0; v < kV; v++) row[v] = load(head.d_z[s] + 16 * v);
        norm(weights).backward(head.z[s], weights.theta + setup.layout.gain_out, head.z_scale[s], row, d_gain);
        for (int v = 0; v < kV; v++) store(head.d_z[s] + 16 * v, row[v]);
    }
    float* to = d.theta + setup.layout.gain_out;
    for (int v = 0; v < kV; v++) store(to + 16 * v, load(to + 16 * v) + d_gain[v]);
}

// Leaves the gradient by z in d_z; returns the summed negative log likelihood.
inline double head_backward(const Setup& setup, const Weights& weights, int n, const int* label, float scale,
                            Head& head, Gradient& d) {
    double loss = 0;
    for (int s = 0; s < n; s++) {
        float *row = head.logits[s], logit = row[label[s]];
        loss += softmax(row, C, 1, row).negative_log_likelihood(logit);
        row[label[s]] -= 1;
        for (int c = 0; c < 16; c++) row[c] = c < C ? scale * row[c] : 0;
    }
    add_rows<1>(d.theta + kB4, n, head.logits.data(), 16);
    alignas(64) float d_W4[H * 16];
    gemm(H, n, 1, {head.f.data(), 1, kRow}, row_major(head.logits.data(), 16), d_W4, 16);
    for (int i = 0; i < H; i++)
        for (int c = 0; c < C; c++) d.theta[kW4 + i * C + c] += d_W4[i * 16 + c];
    gemm(n, C, kV, {head.logits.data(), 16, 1}, row_major(weights.W4T.data(), kRow), head.d_row.data(), kRow);
    for (int s = 0; s < n; s++)
        for (int v = 0; v < kV; v++)
            store(head.d_row[s] + 16 * v, load(head.d_row[s] + 16 * v) * load(head.f_slope[s] + 16 * v));
    weight_gradient(n, after_norm(setup, head), head.d_row, d.theta + kW3, d.theta + kB3, !d.first_block);
    gemm(n, H, kV, {head.d_row.data(), kRow, 1}, row_major(weights.W3T.data(), kRow), head.d_z.data(), kRow);
    if (setup.norm_out) norm_backward(setup, weights, n, head, d);
    return loss;
}

}  // namespace

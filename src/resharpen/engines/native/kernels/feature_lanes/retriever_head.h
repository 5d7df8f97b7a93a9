// The retriever, once a sequence: from the pooled items to the logits, and back; retriever.h has the formulas.
#pragma once

#include "retriever_items.h"

namespace resharpen {

class RetrieverHead : public RetrieverItems {
  protected:
    using RetrieverItems::RetrieverItems;

    static constexpr int kBlock = 48;  // sequences at a time

    // Sequences of a block.
    Rows<kRow> z{kBlock}, normed{kBlock}, f{kBlock}, f_slope{kBlock}, d_row{kBlock}, d_z{kBlock};
    Rows<16> logits{kBlock};
    float z_scale[kBlock];

    // z from how much of every node is in a sequence.
    void sum_nodes(int n) {
        gemm(n, n_nodes, kV, {mass[0], mass.row, 1}, row_major(value.data(), kRow), z.data(), kRow);
    }

    void head_forward(int n) {
        if (norm_out)
            for (int s = 0; s < n; s++) {
                f32x16 row[kV];
                for (int v = 0; v < kV; v++) row[v] = load(z[s] + 16 * v);
                z_scale[s] = norm().forward(row, theta + gain_out);
                for (int v = 0; v < kV; v++) store(normed[s] + 16 * v, row[v]);
            }
        fill_rows(f, n, theta + kB3);
        gemm(n, H, kV, {after_norm().data(), kRow, 1}, row_major(W3.data(), kRow), f.data(), kRow, true);
        for (int s = 0; s < n; s++)
            for (int v = 0; v < kV; v++) {
                f32x16 derivative;
                store(f[s] + 16 * v, gelu(load(f[s] + 16 * v), derivative));
                store(f_slope[s] + 16 * v, derivative);
            }
        for (int s = 0; s < n; s++) store(logits[s], load(theta + kB4));
        gemm(n, H, 1, {f.data(), kRow, 1}, row_major(W4.data(), 16), logits.data(), 16, true);
    }

    static float is_right(const float* row, int label) {
        const bool finite = std::all_of(row, row + C, [](float x) { return std::isfinite(x); });
        return finite ? float(std::max_element(row, row + C) - row == label) : std::numeric_limits<float>::quiet_NaN();
    }

    Rows<kRow>& after_norm() { return norm_out ? normed : z; }

    // Leaves the gradient by z in d_z; returns the summed negative log likelihood.
    double head_backward(int n, const int* label, float scale) {
        double loss = 0;
        for (int s = 0; s < n; s++) {
            float *row = logits[s], logit = row[label[s]];
            loss += softmax(row, C, 1, row).negative_log_likelihood(logit);
            row[label[s]] -= 1;
            for (int c = 0; c < 16; c++) row[c] = c < C ? scale * row[c] : 0;
        }
        add_rows<1>(d + kB4, n, logits.data(), 16);
        alignas(64) float d_W4[H * 16];
        gemm(H, n, 1, {f.data(), 1, kRow}, row_major(logits.data(), 16), d_W4, 16);
        for (int i = 0; i < H; i++)
            for (int c = 0; c < C; c++) d[kW4 + i * C + c] += d_W4[i * 16 + c];
        gemm(n, C, kV, {logits.data(), 16, 1}, row_major(W4T.data(), kRow), d_row.data(), kRow);
        for (int s = 0; s < n; s++)
            for (int v = 0; v < kV; v++) store(d_row[s] + 16 * v, load(d_row[s] + 16 * v) * load(f_slope[s] + 16 * v));
        weight_gradient(n, after_norm(), d_row, d + kW3, d + kB3, !first_block);
        gemm(n, H, kV, {d_row.data(), kRow, 1}, row_major(W3T.data(), kRow), d_z.data(), kRow);
        if (norm_out) norm_backward(n);
        return loss;
    }

    RowNorm<kV, H, H> norm() const { return {false, epsilon}; }

    void norm_backward(int n) {
        f32x16 row[kV], d_gain[kV] = {};
        for (int s = 0; s < n; s++) {
            for (int v = 0; v < kV; v++) row[v] = load(d_z[s] + 16 * v);
            norm().backward(z[s], theta + gain_out, z_scale[s], row, d_gain);
            for (int v = 0; v < kV; v++) store(d_z[s] + 16 * v, row[v]);
        }
        float* to = d + gain_out;
        for (int v = 0; v < kV; v++) store(to + 16 * v, load(to + 16 * v) + d_gain[v]);
    }
};

}  // namespace resharpen

// The retriever: its sizes and its weights as the products want them; retriever.h has the formulas.
#pragma once

#include <algorithm>
#include <vector>

#include "../batches/max_retrieval.h"
#include "gelu.h"
#include "gemm.h"
#include "retriever_layout.h"

namespace resharpen {

// Rows of `ROW` floats, aligned.
template <int ROW>
class Rows {
  public:
    explicit Rows(int n = 0) { reserve(n); }
    void reserve(int n) {
        if (std::size_t(n) * (ROW / 16) > memory.size()) memory.resize(std::size_t(n) * (ROW / 16));
    }
    float* operator[](int i) { return reinterpret_cast<float*>(memory.data()) + std::size_t(i) * ROW; }
    float* data() { return (*this)[0]; }

  private:
    std::vector<f32x16> memory;
};

class RetrieverWeights {
  public:
    static constexpr int kV = H / 16, kRow = H + 16;

    explicit RetrieverWeights(Variant variant)
        : layout(variant), norm_in(variant.placement.block_in), norm_out(variant.placement.block_out),
          attention_kind(variant.attention), gain_in(layout.gain_in), gain_out(layout.gain_out),
          ssmax_at(layout.ssmax) {}

    RetrieverLayout layout;

  protected:
    bool norm_in, norm_out;
    AttentionKind attention_kind;
    int gain_in, gain_out, ssmax_at;
    const float* theta;
    float epsilon;
    float* d;          // the gradient
    double d_ssmax;    // the gradient by its s, summed
    bool first_block;  // W_3 of d holds nothing yet

    // Weights as the products want them: matrices and their transposes, the table of W_1 and b_1.
    Rows<kRow> W2{H}, W2T{H}, Value{H}, ValueT{H}, W3{H}, W3T{H}, W4T{C}, table{C};
    Rows<16> W4{H};
    // k = K q, and with the gain of the norm on h_i; the gradient by the latter.
    alignas(64) float key[H], gained_key[H], d_key[H];

    void clear(int begin, int end) { std::memset(d + begin, 0, sizeof(float) * (end - begin)); }

    static void copy_matrix(const float* from, Rows<kRow>& to) {
        for (int i = 0; i < H; i++)
            for (int v = 0; v < kV; v++) store(to[i] + 16 * v, load(from + i * H + 16 * v));
    }

    static void copy_transposed(const float* from, Rows<kRow>& to) {
        for (int i = 0; i < H; i += 16)
            for (int j = 0; j < H; j += 16) transpose_block(from + i * H + j, H, to[j] + i, kRow);
    }

    void prepare(const float* parameters, float rms_epsilon, bool backward) {
        theta = parameters, epsilon = rms_epsilon;
        copy_matrix(theta + kW2, W2), copy_matrix(theta + kValue, Value), copy_matrix(theta + kW3, W3);
        for (int c = 0; c < C; c++)
            for (int i = 0; i < H; i++) table[c][i] = theta[kW1 + (1 + c) * H + i] + theta[kB1 + i];
        for (int i = 0; i < H; i++) {
            std::fill(W4[i], W4[i] + 16, 0.0f);
            std::copy(theta + kW4 + i * C, theta + kW4 + (i + 1) * C, W4[i]);
        }
        if (backward) {
            copy_transposed(theta + kW2, W2T);
            copy_transposed(theta + kValue, ValueT);
            copy_transposed(theta + kW3, W3T);
            for (int i = 0; i < H; i++)
                for (int c = 0; c < C; c++) W4T[c][i] = W4[i][c];
        }
        for (int i = 0; i < H; i++) key[i] = dot_row<kV>(theta + kK + i * H, theta + kQ);
        for (int i = 0; i < H; i++) gained_key[i] = norm_in ? key[i] * theta[gain_in + i] : key[i];
    }

    // dW += X^T dY, or =, and, unless null, db += the sum of the rows of dY.
    void weight_gradient(int n, Rows<kRow>& X, Rows<kRow>& dY, float* d_W, float* d_b, bool add) {
        gemm(H, n, kV, {X.data(), 1, kRow}, row_major(dY.data(), kRow), d_W, H, add);
        if (d_b) add_rows<kV>(d_b, n, dY.data(), kRow);
    }
};

}  // namespace resharpen

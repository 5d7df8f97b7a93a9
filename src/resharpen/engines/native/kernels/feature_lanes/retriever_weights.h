// The retriever: a variant, its weights in the layout of the products, and their gradient; retriever.h has the
// formulas.
#pragma once

#include <algorithm>
#include <vector>

#include "../batches/max_retrieval.h"
#include "gelu.h"
#include "gemm.h"
#include "retriever_layout.h"

namespace {

constexpr int kV = H / 16, kRow = H + 16;  // vectors in a row of features, and the stride of rows

// Rows of `ROW` floats, aligned.
template <int ROW>
class Rows {
  public:
    explicit Rows(int n = 0) { reserve(n); }
    void reserve(int n) {
        if (std::size_t(n) * (ROW / 16) > memory.size()) memory.resize(std::size_t(n) * (ROW / 16));
    }
    float* operator[](int i) { return reinterpret_cast<float*>(memory.data()) + std::size_t(i) * ROW; }
    const float* operator[](int i) const {
        return reinterpret_cast<const float*>(memory.data()) + std::size_t(i) * ROW;
    }
    float* data() { return (*this)[0]; }
    const float* data() const { return (*this)[0]; }

  private:
    std::vector<f32x16> memory;
};

// Rows whose width is known only at run time.
class Sheet {
  public:
    int row = 0;
    void shape(int n, int floats) {
        row = floats + 16;  // avoids cache conflicts of rows a power of two apart
        if (memory.size() < std::size_t(n) * (row / 16)) memory.resize(std::size_t(n) * (row / 16));
    }
    float* operator[](int i) { return reinterpret_cast<float*>(memory.data()) + std::size_t(i) * row; }
    const float* operator[](int i) const {
        return reinterpret_cast<const float*>(memory.data()) + std::size_t(i) * row;
    }

  private:
    std::vector<f32x16> memory;
};

struct Setup {
    RetrieverLayout layout;
    bool norm_in, norm_out;
    AttentionKind attention_kind;

    explicit Setup(Variant variant)
        : layout(variant), norm_in(variant.placement.block_in), norm_out(variant.placement.block_out),
          attention_kind(variant.attention) {}
};

// The weights of a model, copied for products: matrices and their transposes, the table of W_1 plus b_1 per class.
struct Weights {
    const float* theta;
    float epsilon;
    Rows<kRow> W2{H}, W2T{H}, Value{H}, ValueT{H}, W3{H}, W3T{H}, W4T{C}, table{C};
    Rows<16> W4{H};
    alignas(64) float key[H], gained_key[H];  // k = K q, and with the gain of the norm on h_i
};

struct Gradient {
    float* theta;              // by all weights
    alignas(64) float key[H];  // by the gained key
    double ssmax;              // by its s, summed
    bool first_block;          // the gradient of W_3 is written and not added to
};

inline void clear(Gradient& d, int begin, int end) { std::memset(d.theta + begin, 0, sizeof(float) * (end - begin)); }

inline void copy_matrix(const float* from, Rows<kRow>& to) {
    for (int i = 0; i < H; i++)
        for (int v = 0; v < kV; v++) store(to[i] + 16 * v, load(from + i * H + 16 * v));
}

inline void copy_transposed(const float* from, Rows<kRow>& to) {
    for (int i = 0; i < H; i += 16)
        for (int j = 0; j < H; j += 16) transpose_block(from + i * H + j, H, to[j] + i, kRow);
}

inline void prepare(const Setup& setup, const float* theta, float epsilon, bool backward, Weights& weights) {
    weights.theta = theta, weights.epsilon = epsilon;
    copy_matrix(theta + kW2, weights.W2), copy_matrix(theta + kValue, weights.Value),
        copy_matrix(theta + kW3, weights.W3);
    for (int c = 0; c < C; c++)
        for (int i = 0; i < H; i++) weights.table[c][i] = theta[kW1 + (1 + c) * H + i] + theta[kB1 + i];
    for (int i = 0; i < H; i++) {
        std::fill(weights.W4[i], weights.W4[i] + 16, 0.0f);
        std::copy(theta + kW4 + i * C, theta + kW4 + (i + 1) * C, weights.W4[i]);
    }
    if (backward) {
        copy_transposed(theta + kW2, weights.W2T);
        copy_transposed(theta + kValue, weights.ValueT);
        copy_transposed(theta + kW3, weights.W3T);
        for (int i = 0; i < H; i++)
            for (int c = 0; c < C; c++) weights.W4T[c][i] = weights.W4[i][c];
    }
    for (int i = 0; i < H; i++) weights.key[i] = dot_row<kV>(theta + kK + i * H, theta + kQ);
    for (int i = 0; i < H; i++)
        weights.gained_key[i] = setup.norm_in ? weights.key[i] * theta[setup.layout.gain_in + i] : weights.key[i];
}

// dW += X^T dY, or =, and, unless null, db += the sum of the rows of dY.
inline void weight_gradient(int n, const Rows<kRow>& X, const Rows<kRow>& dY, float* d_W, float* d_b, bool add) {
    gemm(H, n, kV, {X.data(), 1, kRow}, row_major(dY.data(), kRow), d_W, H, add);
    if (d_b) add_rows<kV>(d_b, n, dY.data(), kRow);
}

inline void fill_rows(Rows<kRow>& rows, int n, const float* with) {
    for (int i = 0; i < n; i++)
        for (int v = 0; v < kV; v++) store(rows[i] + 16 * v, load(with + 16 * v));
}

}  // namespace

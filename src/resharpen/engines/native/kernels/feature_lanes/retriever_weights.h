// The retriever: its sizes and its weights as the products want them; retriever.h has the formulas.
#pragma once

#include <algorithm>
#include <vector>

#include "../batches/max_retrieval.h"
#include "../training.h"
#include "gelu.h"
#include "gemm.h"

namespace resharpen {

// The sizes that the kernel is compiled for: width, classes.
constexpr int H = RESHARPEN_H, C = RESHARPEN_C;

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
    static_assert(H % 16 == 0 && C <= 16, "a row of features is whole vectors, the logits are one");
    static constexpr int kV = H / 16, kRow = H + 16;
    // Parameters in memory, in floats: first those with weight decay, then biases and gains.
    static constexpr int kW1 = 0, kW2 = kW1 + (1 + C) * H, kK = kW2 + H * H, kValue = kK + H * H, kQ = kValue + H * H;
    static constexpr int kW3 = kQ + H, kW4 = kW3 + H * H, kDecayEnd = kW4 + H * C;
    static constexpr int kB1 = kDecayEnd, kB2 = kB1 + H, kB3 = kB2 + H, kB4 = kB3 + H, kGains = kB4 + 16;

    // Of a placement it has the norms of its one block.
    explicit RetrieverWeights(Variant variant)
        : norm_in(variant.placement.block_in), norm_out(variant.placement.block_out), remedy(variant.attention),
          gain_in(kGains), gain_out(gain_in + (norm_in ? H : 0)), ssmax_at(gain_out + (norm_out ? H : 0)) {
        size = ssmax_at + (remedy == Remedy::ssmax ? 16 : 0);
        if (norm_in) gram.reserve(H), d_gram.reserve(H);
    }

    int size;  // number of parameters, the padding of b_4 and s included

  protected:
    bool norm_in, norm_out;
    Remedy remedy;
    int gain_in, gain_out, ssmax_at;
    const float* theta;
    float epsilon;
    float* d;          // the gradient
    double d_ssmax;    // the gradient by its s, summed
    bool first_block;  // the large matrices of d hold nothing yet

    // Weights as the products want them: matrices and their transposes, the table of W_1 and b_1.
    Rows<kRow> W2{H}, W2T{H}, Value{H}, ValueT{H}, W3{H}, W3T{H}, W4T{C}, table{C};
    Rows<kRow> d_table{C + 1};  // the gradient of W_1 from one block, zero in between
    Rows<16> W4{H};
    // k = K q, and with the gain of the norm on h_i; score = W_2 k and score_bias = b_2 . k, what a_i meets in e_i; the
    // gradient by that, in all and of one block.
    alignas(64) float key[H], gained_key[H], score[H], d_score[H], d_block_score[H] = {};
    float score_bias, d_score_bias;
    // For the norm on h_i: W_2 W_2^T, W_2 b_2 and |b_2|^2; the gradient of W_2 W_2^T, W_2 b_2 and |b_2|^2 / 2.
    Rows<kRow> gram, d_gram;
    alignas(64) float gram_bias[H], d_gram_bias[H];
    float b2_squared, d_b2_squared;

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
        if (backward || norm_in) copy_transposed(theta + kW2, W2T);
        if (backward) {
            copy_transposed(theta + kValue, ValueT);
            copy_transposed(theta + kW3, W3T);
            for (int i = 0; i < H; i++)
                for (int c = 0; c < C; c++) W4T[c][i] = W4[i][c];
        }
        for (int i = 0; i < H; i++) key[i] = dot_row<kV>(theta + kK + i * H, theta + kQ);
        for (int i = 0; i < H; i++) gained_key[i] = norm_in ? key[i] * theta[gain_in + i] : key[i];
        for (int i = 0; i < H; i++) score[i] = dot_row<kV>(W2[i], gained_key);
        if (!norm_in) return;
        symmetric_product(H, {W2.data(), kRow, 1}, W2T, gram, false);
        mirror(gram);
        for (int i = 0; i < H; i++) gram_bias[i] = dot_row<kV>(W2[i], theta + kB2);
        b2_squared = dot_row<kV>(theta + kB2, theta + kB2);
        score_bias = dot_row<kV>(theta + kB2, gained_key);
    }

    static constexpr int kBand = H % 32 ? 16 : 32;  // rows of a symmetric matrix that begin in the same column

    // C = A B, or C += A B, of which it is known that it is symmetric: from each row's band on.
    static void symmetric_product(int inner, Left a, Rows<kRow>& B, Rows<kRow>& C, bool add) {
        for (int i = 0; i < H; i += kBand)
            gemm(kBand, inner, kV - i / 16, {a.data + i * a.row, a.row, a.column}, row_major(B.data() + i, kRow),
                 C[i] + i, kRow, add);
    }

    // What is below the bands, from above.
    static void mirror(Rows<kRow>& C) {
        for (int i = 0; i < H; i += 16)
            for (int j = i / kBand * kBand + kBand; j < H; j += 16) transpose_block(C[i] + j, kRow, C[j] + i, kRow);
    }

    // dW += X^T dY (or = from the first block) and, unless null, db += the sum of the rows of dY, by their weight.
    void weight_gradient(int n, Rows<kRow>& X, Rows<kRow>& dY, float* d_W, float* d_b, const float* weight = nullptr) {
        gemm(H, n, kV, {X.data(), 1, kRow}, row_major(dY.data(), kRow), d_W, H, !first_block);
        if (d_b) add_rows<kV>(d_b, n, dY.data(), kRow, weight);
    }
};

}  // namespace resharpen

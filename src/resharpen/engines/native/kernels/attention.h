// Causal attention of one head of one sequence, and its backward, a block of queries at a time.
//
// Rows of q, k, v lie `stride` apart, a head's features padded to K columns. Attention weights are never kept: backward
// computes them again from the largest logit and the inverse sum of each row.
#pragma once

#include <vector>

#include "gemm.h"
#include "rows.h"

namespace resharpen {

constexpr int kQueries = 24;  // a block: two tiles of twelve rows, four of six

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

template <int K>
class Attention {
  public:
    // `scale` multiplies the logits q . k.
    Attention(int longest, float scale)
        : scale(scale), padded(round_up(longest + kQueries, kLanes) + kLanes), k_t(vectors(K)), v_t(vectors(K)),
          weights(vectors(kQueries)), d_weights(vectors(kQueries)) {}

    // Outputs of the queries from .. length-1; `row` keeps (largest logit, inverse sum) of each, at row[2 * i].
    void forward(int length, int from, const float* q, const float* k, const float* v, std::ptrdiff_t stride, float* out,
                 std::ptrdiff_t out_stride, float* row) {
        transpose(length, k, stride, data(k_t));
        for (int begin = from; begin < length; begin += kQueries) {
            const int n = length - begin < kQueries ? length - begin : kQueries, keys = begin + n;
            logits(begin, n, q + begin * stride, stride);
            for (int i = 0; i < n; i++) softmax_row(data(weights) + i * padded, begin + i + 1, keys, row + 2 * (begin + i));
            gemm(n, keys, K / kLanes, {data(weights), padded, 1}, row_major(v, stride), out + begin * out_stride, out_stride);
            for (int i = 0; i < n; i++) {
                float* o = out + (begin + i) * out_stride;
                const float inverse = row[2 * (begin + i) + 1];
                for (int j = 0; j < K; j += kLanes) store(o + j, inverse * load(o + j));
            }
        }
    }

    // dq is written, dk and dv are added to; they have the same stride as q, k, v.
    //     dA = dO V^T     dS = scale A (dA - sum_j A dA)     dQ = dS K     dK = dS^T Q     dV = A^T dO
    void backward(int length, const float* q, const float* k, const float* v, std::ptrdiff_t stride, const float* d_out,
                  std::ptrdiff_t out_stride, const float* row, float* dq, float* dk, float* dv) {
        transpose(length, k, stride, data(k_t));
        transpose(length, v, stride, data(v_t));
        for (int begin = 0; begin < length; begin += kQueries) {
            const int n = length - begin < kQueries ? length - begin : kQueries, keys = begin + n;
            const float *d_o = d_out + begin * out_stride, *q_block = q + begin * stride;
            logits(begin, n, q_block, stride);
            gemm(n, K, round_up(keys, kLanes) / kLanes, {d_o, out_stride, 1}, row_major(data(v_t), padded),
                 data(d_weights), padded);
            for (int i = 0; i < n; i++) softmax_row_backward(i, begin + i + 1, keys, row + 2 * (begin + i));
            const Left a{data(weights), padded, 1}, d_s{data(d_weights), padded, 1};
            gemm(n, keys, K / kLanes, d_s, row_major(k, stride), dq + begin * stride, stride);
            gemm(keys, n, K / kLanes, d_s.transposed(), row_major(q_block, stride), dk, stride, true);
            gemm(keys, n, K / kLanes, a.transposed(), row_major(d_o, out_stride), dv, stride, true);
        }
    }

  private:
    float scale;
    int padded;  // columns of a row of weights: the longest sequence and what a block of vectors may touch beyond
    std::vector<f16> k_t, v_t, weights, d_weights;

    std::vector<f16> vectors(int rows) const { return std::vector<f16>(std::size_t(rows) * padded / kLanes); }
    static float* data(std::vector<f16>& x) { return reinterpret_cast<float*>(x.data()); }

    // Rows beyond the sequence belong to others, or to nobody: what they give is masked. There are always fifteen.
    void transpose(int length, const float* x, std::ptrdiff_t stride, float* y) {
        for (int i = 0; i < length; i += kLanes)
            for (int j = 0; j < K; j += kLanes) transpose_block(x + i * stride + j, stride, y + j * padded + i, padded);
    }

    void logits(int begin, int n, const float* q, std::ptrdiff_t stride) {
        gemm(n, K, round_up(begin + n, kLanes) / kLanes, {q, stride, 1}, row_major(data(k_t), padded), data(weights),
             padded);
    }

    // exp(scale (s - max)) of the first `seen` logits, and zeros up to the end of the block's keys.
    void softmax_row(float* s, int seen, int keys, float* row) {
        const int whole = seen / kLanes * kLanes, end = round_up(keys, kLanes);
        f16 highest = broadcast(-INFINITY);
        for (int j = 0; j < whole; j += kLanes) highest = max(highest, load(s + j));
        if (whole < seen) highest = max(highest, first_lanes(seen - whole, load(s + whole), -INFINITY));
        const float top = horizontal_max(highest);
        f16 sum = broadcast(0);
        exponentials(s, top, seen, whole, end, [&](int j, f16 e) { sum += e, store(s + j, e); });
        row[0] = top, row[1] = 1.0f / horizontal_sum(sum);
    }

    // The mean of dA under A is taken of these very numbers, and not as dO . O: what is left sums to zero, and is zero
    // where there is one key.
    void softmax_row_backward(int i, int seen, int keys, const float* row) {
        float *s = data(weights) + i * padded, *d = data(d_weights) + i * padded;
        const int whole = seen / kLanes * kLanes, end = round_up(keys, kLanes);
        if (whole < seen) store(d + whole, first_lanes(seen - whole, load(d + whole), 0));
        f16 mean = broadcast(0);
        exponentials(s, row[0], seen, whole, end, [&](int j, f16 e) {
            const f16 a = row[1] * e;
            store(s + j, a);
            if (j < seen) mean += a * load(d + j);
        });
        const f16 along = broadcast(horizontal_sum(mean));
        for (int j = 0; j < end; j += kLanes) store(d + j, scale * load(s + j) * (load(d + j) - along));
    }

    template <class Visit>
    RESHARPEN_INLINE void exponentials(const float* s, float top, int seen, int whole, int end, Visit visit) {
        const float log2_scale = scale * kLog2E;
        auto e = [&](int j) { return exp2_below(log2_scale * (load(s + j) - broadcast(top))); };
        for (int j = 0; j < whole; j += kLanes) visit(j, e(j));
        if (whole < seen) visit(whole, first_lanes(seen - whole, e(whole), 0)), whole += kLanes;
        for (int j = whole; j < end; j += kLanes) visit(j, broadcast(0));
    }
};

}  // namespace resharpen

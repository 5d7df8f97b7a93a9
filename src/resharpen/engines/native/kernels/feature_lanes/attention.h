// Causal attention of one head of one sequence, and its backward, a block of sixteen queries at a time.
//
// A vector of logits or weights belongs to one key and the queries of a block, so that the softmax over keys needs no
// operation across lanes. Blocks are counted from the end of the sequence, so the incomplete one is the first, which
// has the fewest keys; its unused lanes are computed and ignored.
#pragma once

#include <algorithm>
#include <vector>

#include "gemm.h"
#include "rows.h"

namespace {

// Modification of the logits e_ij = q_i . k_j / sqrt(d_head) of a head: s log(n) e_ij + slope (j - i), with n = i + 1
// the number of keys.
struct HeadLogits {
    float slope = 0;
    const float* log_n = nullptr;  // of every query and a block more; null for no factor
    float s = 1;
};

// A head's features are padded to K columns; rows of q, k, v are STRIDE apart, rows of outputs OUT.
template <int K, int STRIDE, int OUT>
class Attention {
  public:
    // `scale` multiplies the logits q . k.
    Attention(int longest, float scale) : scale(scale), scratch(longest + 1) {}

    // Number of vectors that `forward` keeps for `backward`: per block a weight per key, and the inverse sums.
    static std::size_t kept(int length, int from) {
        std::size_t n = 0;
        for (; length > from; length -= kLanes) n += length + 1;
        return n;
    }

    // Outputs of the queries from .. length-1. Keeps weights in `keep` unless null; returns its end.
    f32x16* forward(int length, int from, const float* q, const float* k, const float* v, float* out, f32x16* keep,
                    HeadLogits head = {}) {
        for (int end = length; end > from; end -= kLanes) {
            const int begin = std::max(from, end - kLanes), n = end - begin;
            f32x16* e = keep ? keep : scratch.data();
            times_transposed(end, k, q + begin * STRIDE, STRIDE, e, head.log_n ? head.log_n + begin : nullptr, head.s);
            for (int key = 0; head.slope != 0 && key < end; key++) e[key] += broadcast(slope_at(key, end, head));
            e[end] = softmax(e, begin, end);
            float *o = out + begin * OUT, *inverse = floats(e + end);
            gemm(n, end, K / kLanes, weights(e).transposed(), row_major(v, STRIDE), o, OUT);
            for (int i = 0; i < n; i++, o += OUT) multiply(inverse[i], o, o);
            if (keep) keep += end + 1;
        }
        return keep;
    }

    // Writes dq of these queries, and dk, dv of all keys, in rows like those of q, k, v; returns the end of what was
    // kept. With unnormalized weights e, and dO divided by their sum instead:
    //     dE = dO V^T     dS = scale e (dE - inverse sum_j e dE)     dQ = dS K     dK = dS^T Q     dV = e^T dO
    // A factor of the logits is applied to dQ, and to Q for dK, instead of to every dS; d_s is added to.
    const f32x16* backward(int length, int from, const float* q, const float* k, const float* v, const float* d_out,
                           const f32x16* e, float* dq, float* dk, float* dv, HeadLogits head = {},
                           double* d_s = nullptr) {
        f32x16* d = scratch.data();
        for (int end = length; end > from; e += end + 1, end -= kLanes) {
            const int begin = std::max(from, end - kLanes), n = end - begin;
            const float *q_block = q + begin * STRIDE, *inverse = floats(e + end);
            for (int i = 0; i < n; i++) multiply(inverse[i], d_out + (begin + i) * OUT, d_o + i * K);
            times_transposed(end, v, d_o, K, d, nullptr, 1);
            softmax_backward(e, d, end);
            gemm(n, end, K / kLanes, weights(d).transposed(), row_major(k, STRIDE), dq + begin * STRIDE, STRIDE);
            if (head.log_n) multiply_backward(n, begin, q_block, dq + begin * STRIDE, head, *d_s);
            const bool add = end < length;
            if (n < kLanes) {
                const Right q_right = head.log_n ? row_major(multiplied, K) : row_major(q_block, STRIDE);
                gemm(end, n, K / kLanes, weights(d), q_right, dk, STRIDE, add);
                gemm(end, n, K / kLanes, weights(e), row_major(d_o, K), dv, STRIDE, add);
                continue;
            }
            for (int j = 0; j < K; j += kLanes) {
                if (head.log_n)
                    thin_gemm<kLanes, K, STRIDE>(end, floats(d), multiplied + j, dk + j, add);
                else
                    thin_gemm<kLanes, STRIDE, STRIDE>(end, floats(d), q_block + j, dk + j, add);
                thin_gemm<kLanes, K, STRIDE>(end, floats(e), d_o + j, dv + j, add);
            }
        }
        return e;
    }

  private:
    float scale;
    std::vector<f32x16> scratch;
    alignas(64) float block_t[K * kLanes], d_o[kLanes * K], multiplied[kLanes * K];

    static float* floats(f32x16* x) { return reinterpret_cast<float*>(x); }
    static const float* floats(const f32x16* x) { return reinterpret_cast<const float*>(x); }
    static Left weights(const f32x16* e) { return {floats(e), kLanes, 1}; }

    // y = x block^T for `keys` rows x and a block of queries, each times s log(n) if log_n is not null. Behind an
    // incomplete block there are always fifteen readable rows.
    void times_transposed(int keys, const float* x, const float* block, std::ptrdiff_t stride, f32x16* y,
                          const float* log_n, float s) {
        for (int j = 0; j < K; j += kLanes) {
            transpose_block(block + j, stride, block_t, kLanes);
            if (log_n)
                for (int i = 0; i < kLanes; i++)
                    store(block_t + i * kLanes, load(block_t + i * kLanes) * (s * load(log_n)));
            thin_gemm<STRIDE, kLanes, kLanes>(keys, x + j, block_t, floats(y), j > 0);
        }
    }

    // slope (j - end) for the key j, which differs from slope (j - i) by the same amount for all keys of a query.
    // Divided by the scale, which is applied later.
    float slope_at(int key, int end, HeadLogits head) const { return head.slope / scale * float(key - end); }

    // Applies the factor to dq, and writes q times the factor to `multiplied`. The derivative by the factor is sum_j
    // dS_ij q_i . k_j = q_i . dq_i.
    void multiply_backward(int n, int begin, const float* q, float* dq, HeadLogits head, double& d_s) {
        for (int i = 0; i < n; i++, q += STRIDE, dq += STRIDE) {
            const float log_n = head.log_n[begin + i];
            d_s += double(log_n) * dot_row<K / kLanes>(q, dq);
            multiply(head.s * log_n, dq, dq);
            multiply(head.s * log_n, q, multiplied + i * K);
        }
    }

    static RESHARPEN_INLINE void multiply(float a, const float* x, float* y) {
        for (int j = 0; j < K; j += kLanes) store(y + j, a * load(x + j));
    }

    // Replaces logits s by exp(scale (s - max)), 0 for keys after the query; returns the inverse sums.
    f32x16 softmax(f32x16* s, int begin, int end) {
        f32x16 top = fold(begin + 1, broadcast(-INFINITY), max, [&](int key) { return s[key]; });
        for (int key = begin + 1; key < end; key++) top = max(top, lanes_from(key - begin, s[key], -INFINITY));
        auto e = [&](int key) { return exp2_below((scale * kLog2E) * (s[key] - top)); };
        f32x16 sum = fold(begin + 1, broadcast(0), plus, [&](int key) { return s[key] = e(key); });
        for (int key = begin + 1; key < end; key++) sum += s[key] = lanes_from(key - begin, e(key), 0);
        return broadcast(1) / sum;
    }

    // The mean of dE is computed from these numbers and not as dO . O, so that the differences sum to zero, and are
    // zero for a single key.
    void softmax_backward(const f32x16* e, f32x16* d, int end) {
        const f32x16 mean = e[end] * fold(end, broadcast(0), plus, [&](int key) { return e[key] * d[key]; });
        for (int key = 0; key < end; key++) d[key] = scale * e[key] * (d[key] - mean);
    }

    static RESHARPEN_INLINE f32x16 plus(f32x16 a, f32x16 b) { return a + b; }

    // Reduces f(0), .., f(n-1) in four independent chains.
    template <class Op, class F>
    static RESHARPEN_INLINE f32x16 fold(int n, f32x16 start, Op op, F f) {
        f32x16 x[4] = {start, start, start, start};
        int i = 0;
        for (; i + 4 <= n; i += 4) {
            RESHARPEN_UNROLL
            for (int j = 0; j < 4; j++) x[j] = op(x[j], f(i + j));
        }
        for (; i < n; i++) x[0] = op(x[0], f(i));
        return op(op(x[0], x[1]), op(x[2], x[3]));
    }
};

}  // namespace

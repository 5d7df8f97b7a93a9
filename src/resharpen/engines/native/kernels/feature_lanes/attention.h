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

// Modification of the logits e_ij = q_i . k_j / sqrt(d_head) of a head: s factor_i e_ij + bias[i - j]; and a sink, a
// logit of every query that has no value.
struct HeadLogits {
    const float* bias = nullptr;  // times sqrt(d_head); distances from -15 to a block beyond the last; null for none
    const float* factor = nullptr;  // of every query and a block more: log(n), say; null for none
    float s = 1;  // also the sink's logit
};

// Derivatives by the parameters of a head, which are added to.
struct HeadGradient {
    double* s;
    float* factor;  // of every query; written; null if the factors are not learned
    // By q_i . k_j, summed over the blocks of queries b .. b+15 and keys j by b - j, from -15 on; lane l has the
    // distance b - j + l. Null if the bias is not learned.
    f32x16* bias;
};

// A head's features are padded to K columns; rows of q, k, v are STRIDE apart, rows of outputs OUT.
template <int K, int STRIDE, int OUT>
class Attention {
  public:
    // `scale` multiplies the logits q . k. A query sees `window` keys, its own the last; INT_MAX for all. `sparse`:
    // entmax in place of softmax. `drops`: there is dropout of the weights.
    Attention(int longest, float scale, int window, bool sink, bool sparse, bool drops)
        : scale(scale), window(window), sink(sink), sparse(sparse), drops(drops),
          scratch((sparse ? 2 : 1) * longest + 2) {}

    // Number of vectors that `forward` keeps for `backward`.
    std::size_t kept(int length, int from) const {
        std::size_t n = 0;
        for (int end = length; end > from; end -= kLanes) n += kept_of(end - first_key(std::max(from, end - kLanes)));
        return n;
    }

    // Outputs of the queries from .. length-1. Keeps weights in `keep` unless null; returns its end.
    // drop(begin, first, keys, e, a) writes weights after dropout, of the queries from `begin` and the keys from
    // `first`.
    template <class Drop>
    f32x16* forward(int length, int from, const float* q, const float* k, const float* v, float* out, f32x16* keep,
                    HeadLogits head, Drop drop) {
        for (int end = length; end > from; end -= kLanes) {
            const int begin = std::max(from, end - kLanes), n = end - begin, first = first_key(begin),
                      keys = end - first;
            f32x16* e = keep ? keep : scratch.data();
            times_transposed(keys, k + first * STRIDE, q + begin * STRIDE, STRIDE, e,
                             head.factor ? head.factor + begin : nullptr, head.s);
            if (head.bias)
                for (int key = 0; key < keys; key++) e[key] += load(head.bias + begin - first - key);
            hide(e, begin - first, keys, -INFINITY);
            f32x16* a = e + weights_from(keys);
            if (sparse) {
                entmax(e, begin - first, keys);
                for (int key = 0; key < keys; key++) a[key] = e[key] * e[key];
                if (drops) drop(begin, first, keys, a, a);
            } else {
                softmax(e, begin - first, keys, head.s);
                hide(e, begin - first, keys, 0);
                if (drops) drop(begin, first, keys, e, a);
            }
            float *o = out + begin * OUT, *inverse = floats(e + keys);
            gemm(n, keys, K / kLanes, weights(a).transposed(), row_major(v + first * STRIDE, STRIDE), o, OUT);
            for (int i = 0; !sparse && i < n; i++, o += OUT) multiply(inverse[i], o, o);
            if (keep) keep += kept_of(keys);
        }
        return keep;
    }

    // Writes dq of these queries, and dk, dv of all keys, in rows like those of q, k, v; returns the end of what was
    // kept. With unnormalized weights e, and dO divided by their sum instead:
    //     dE = dO V^T     dS = scale e (dE - inverse sum_j e dE)     dQ = dS K     dK = dS^T Q     dV = e^T dO
    // With weights a after dropout, dV = a^T dO and dS = scale (a dE - e inverse sum_j a dE). Of entmax, whose weights
    // are squares of e and sum to one, dS = scale e (dE - sum_j e dE / sum_j e). A factor of the logits is applied to
    // dQ, and to Q for dK, instead of to every dS.
    const f32x16* backward(int length, int from, const float* q, const float* k, const float* v, const float* d_out,
                           const f32x16* e, float* dq, float* dk, float* dv, HeadLogits head, HeadGradient gradient) {
        f32x16* d = scratch.data();
        int written = length;  // keys from here on have derivatives of a later block
        for (int end = length; end > from; end -= kLanes) {
            const int begin = std::max(from, end - kLanes), n = end - begin, first = first_key(begin),
                      keys = end - first;
            const float *q_block = q + begin * STRIDE, *inverse = floats(e + keys);
            for (int i = 0; i < n; i++) multiply(sparse ? 1 : inverse[i], d_out + (begin + i) * OUT, d_o + i * K);
            times_transposed(keys, v + first * STRIDE, d_o, K, d, nullptr, 1);
            const f32x16* a = e + weights_from(keys);
            if (sparse && drops) before_dropout(e, a, d, keys);
            const f32x16 mean = drops && !sparse ? dropped_backward(e, a, d, keys) : weights_backward(e, d, keys);
            if (sink) *gradient.s -= horizontal_sum(first_lanes(n, e[keys + 1] * mean, 0));
            if (gradient.bias) add_by_distance(d, begin - first, n, keys, gradient.bias);
            gemm(n, keys, K / kLanes, weights(d).transposed(), row_major(k + first * STRIDE, STRIDE),
                 dq + begin * STRIDE, STRIDE);
            if (head.factor) multiply_backward(n, begin, q_block, dq + begin * STRIDE, head, gradient);
            const int fresh = std::min(written, end) - first;
            keys_backward(0, fresh, n, q_block, a, dk + first * STRIDE, dv + first * STRIDE, head, false);
            keys_backward(fresh, keys, n, q_block, a, dk + first * STRIDE, dv + first * STRIDE, head, true);
            written = first, e += kept_of(keys);
        }
        for (int key = 0; key < written; key++)  // out of all windows
            for (int j = 0; j < K; j += kLanes)
                store(dk + key * STRIDE + j, broadcast(0)), store(dv + key * STRIDE + j, broadcast(0));
        return e;
    }

  private:
    float scale;
    int window;
    bool sink, sparse, drops;
    std::vector<f32x16> scratch;
    alignas(64) float block_t[K * kLanes], d_o[kLanes * K], multiplied[kLanes * K];

    static float* floats(f32x16* x) { return reinterpret_cast<float*>(x); }
    static const float* floats(const f32x16* x) { return reinterpret_cast<const float*>(x); }
    static Left weights(const f32x16* e) { return {floats(e), kLanes, 1}; }

    // Per block: a weight per key, or its root of entmax; the inverse sums; the weights of the sink; and if they are
    // others, the weights that multiply values.
    int kept_of(int keys) const { return keys + 1 + sink + (sparse || drops ? keys : 0); }
    int weights_from(int keys) const { return sparse || drops ? keys + 1 + sink : 0; }

    // The first key that a query from `begin` on sees.
    int first_key(int begin) const { return std::max(0, begin - (window - 1)); }

    // Replaces x of the keys that are out of the window of a query; `begin` is relative to the first key.
    void hide(f32x16* x, int begin, int keys, float other) const {
        for (int key = 0; key < std::min(keys, begin - window + kLanes); key++)
            x[key] = first_lanes(key + window - begin, x[key], other);
    }

    // Derivatives by some keys and values of a block: written, or added.
    void keys_backward(int from, int to, int n, const float* q_block, const f32x16* a, float* dk, float* dv,
                       HeadLogits head, bool add) {
        if (from == to) return;
        const f32x16* d = scratch.data() + from;
        a += from, dk += from * STRIDE, dv += from * STRIDE;
        if (n < kLanes) {
            const Right q_right = head.factor ? row_major(multiplied, K) : row_major(q_block, STRIDE);
            gemm(to - from, n, K / kLanes, weights(d), q_right, dk, STRIDE, add);
            gemm(to - from, n, K / kLanes, weights(a), row_major(d_o, K), dv, STRIDE, add);
            return;
        }
        for (int j = 0; j < K; j += kLanes) {
            if (head.factor)
                thin_gemm<kLanes, K, STRIDE>(to - from, floats(d), multiplied + j, dk + j, add);
            else
                thin_gemm<kLanes, STRIDE, STRIDE>(to - from, floats(d), q_block + j, dk + j, add);
            thin_gemm<kLanes, K, STRIDE>(to - from, floats(a), d_o + j, dv + j, add);
        }
    }

    // y = x block^T for `keys` rows x and a block of queries, each times s and its factor if there is one. Behind an
    // incomplete block there are always fifteen readable rows.
    void times_transposed(int keys, const float* x, const float* block, std::ptrdiff_t stride, f32x16* y,
                          const float* factor, float s) {
        for (int j = 0; j < K; j += kLanes) {
            transpose_block(block + j, stride, block_t, kLanes);
            if (factor)
                for (int i = 0; i < kLanes; i++)
                    store(block_t + i * kLanes, load(block_t + i * kLanes) * (s * load(factor)));
            thin_gemm<STRIDE, kLanes, kLanes>(keys, x + j, block_t, floats(y), j > 0);
        }
    }

    // The lanes behind an incomplete block may be anything, even NaN.
    static void add_by_distance(const f32x16* d, int begin, int n, int keys, f32x16* sums) {
        f32x16* sum = sums + begin + kLanes - 1;
        if (n < kLanes)
            for (int key = 0; key < keys; key++) sum[-key] += first_lanes(n, d[key], 0);
        else
            for (int key = 0; key < keys; key++) sum[-key] += d[key];
    }

    // Applies the factor to dq, and writes q times the factor to `multiplied`. The derivative by the factor is sum_j
    // dS_ij q_i . k_j = q_i . dq_i.
    void multiply_backward(int n, int begin, const float* q, float* dq, HeadLogits head, HeadGradient gradient) {
        for (int i = 0; i < n; i++, q += STRIDE, dq += STRIDE) {
            const float factor = head.factor[begin + i], along = dot_row<K / kLanes>(q, dq);
            if (gradient.factor) gradient.factor[begin + i] = along;
            *gradient.s += double(factor) * along;
            multiply(head.s * factor, dq, dq);
            multiply(head.s * factor, q, multiplied + i * K);
        }
    }

    static RESHARPEN_INLINE void multiply(float a, const float* x, float* y) {
        for (int j = 0; j < K; j += kLanes) store(y + j, a * load(x + j));
    }

    // Replaces logits x by exp(scale (x - max)), 0 for keys after the query, and appends the inverse sums; and with a
    // sink of the logit s, which counts in both, its weights.
    void softmax(f32x16* x, int begin, int end, float s) {
        f32x16 top = fold(begin + 1, broadcast(-INFINITY), max, [&](int key) { return x[key]; });
        for (int key = begin + 1; key < end; key++) top = max(top, lanes_from(key - begin, x[key], -INFINITY));
        if (sink) top = max(top, broadcast(s / scale));
        auto e = [&](f32x16 logit) { return exp2_below((scale * kLog2E) * (logit - top)); };
        f32x16 sum = fold(begin + 1, broadcast(0), plus, [&](int key) { return x[key] = e(x[key]); });
        for (int key = begin + 1; key < end; key++) sum += x[key] = lanes_from(key - begin, e(x[key]), 0);
        if (sink) sum += x[end + 1] = e(broadcast(s / scale));
        x[end] = broadcast(1) / sum;
    }

    // Replaces logits x by e = [z - tau]_+, z = scale x / 2 minus its maximum, and tau such that the squares of e sum
    // to 1; and appends 1 / sum e. The norm of e is convex in tau, and a line where all keys that count are equal, so
    // that Newton's method on norm = 1 from tau = -1 rises to the solution in a few steps. A lane that does not rise
    // any more stays as it is, whatever the others do. A NaN is kept, as the second argument of max.
    void entmax(f32x16* x, int begin, int end) {
        f32x16 top = fold(begin + 1, broadcast(-INFINITY), max, [&](int key) { return x[key]; });
        for (int key = begin + 1; key < end; key++) top = max(top, lanes_from(key - begin, x[key], -INFINITY));
        auto z = [&](int key) { return max(broadcast(-1), (0.5f * scale) * (x[key] - top)); };
        for (int key = 0; key < end; key++) x[key] = key <= begin ? z(key) : lanes_from(key - begin, z(key), -1);
        f32x16 tau = broadcast(-1), sum;
        for (int step = 0; step < 64; step++) {
            auto e = [&](int key) { return max(broadcast(0), x[key] - tau); };
            sum = fold(end, broadcast(0), plus, e);
            const f32x16 squares = fold(end, broadcast(0), plus, [&](int key) { return e(key) * e(key); });
            const f32x16 next = tau + (squares - sqrt(squares)) / sum;
            const Mask rises = next > tau;
            if (!bits(rises)) break;
            tau = select(rises, next, tau);
        }
        for (int key = 0; key < end; key++) x[key] = max(broadcast(0), x[key] - tau);
        x[end] = broadcast(1) / sum;
    }

    // The mean of dE is computed from these numbers and not as dO . O, so that the differences sum to zero, and are
    // zero for a single key. Returns it.
    f32x16 weights_backward(const f32x16* e, f32x16* d, int end) {
        const f32x16 mean = e[end] * fold(end, broadcast(0), plus, [&](int key) { return e[key] * d[key]; });
        for (int key = 0; key < end; key++) d[key] = scale * e[key] * (d[key] - mean);
        return mean;
    }

    // Of entmax: replaces d, the derivative by the weights a after dropout, by that before it; a is e^2 times a factor.
    void before_dropout(const f32x16* e, const f32x16* a, f32x16* d, int end) {
        for (int key = 0; key < end; key++) {
            const f32x16 before = e[key] * e[key];
            d[key] = select(before > broadcast(0), d[key] * (a[key] / before), broadcast(0));
        }
    }

    f32x16 dropped_backward(const f32x16* e, const f32x16* a, f32x16* d, int end) {
        const f32x16 mean = e[end] * fold(end, broadcast(0), plus, [&](int key) { return d[key] *= a[key]; });
        for (int key = 0; key < end; key++) d[key] = scale * (d[key] - e[key] * mean);
        return mean;
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

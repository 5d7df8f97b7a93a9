// The transformer, backward: from the logits to the gradient; transformer.h says how it works.
#pragma once

#include "transformer_forward.h"

namespace resharpen {

class TransformerBackward : public TransformerForward {
  protected:
    using TransformerForward::TransformerForward;

    // d logits = (softmax - target) * scale, summed over the targets of a row, then U and the last norm: leaves the
    // derivative by `last` in d_x. Returns the summed negative log likelihood.
    double loss_backward(float scale) {
        constexpr int N = VP / kLanes;
        f32x16 row[DN];
        decltype(norm)::Sum d_gain;
        double loss = 0;
        chunks(0, branches.rows(), [&](int begin, int n) {
            for (int i = begin; i < begin + n; i++) {
                float* z = at(logits, i, VP);
                f32x16 e[N];
                const Normalizer by = softmax(z, e);
                const float inverse = 1.0f / by.sum;
                const int targets =
                    branches.each_target(i, [&](int token) { loss += by.negative_log_likelihood(z[token]); });
                for (int j = 0; j < N; j++) store(z + j * kLanes, (float(targets) * scale * inverse) * e[j]);
                branches.each_target(i, [&](int token) { z[token] -= scale; });
            }
            const Left x{at(unembedded(), begin, DP), DP, 1};
            const float* d = at(logits, begin, VP);
            gemm(DP, n, N, x.transposed(), row_major(d, VP), gradient + kU, VP, true);
            gemm(n, VP, DN, {d, VP, 1}, u.transposed(), at(d_x, begin, DP), DP);
            if (placement.unembedding_in)
                for (int i = begin; i < begin + n; i++) {
                    load_row(at(d_x, i, DP), row);
                    norm.backward(at(last, i, DP), theta + layout.unembedding_in, r_final[i], row, d_gain.next());
                    store_row(at(d_x, i, DP), row);
                }
        });
        if (placement.unembedding_in) d_gain.add_to(gradient + layout.unembedding_in, norm.parameters());
        return loss;
    }

    static void add_row(float* to, const f32x16* d) {
        for (int i = 0; i < DN; i++) store(to + i * kLanes, load(to + i * kLanes) + d[i]);
    }

    void backward() {
        for (int l = LAYERS - 1; l >= 0; l--) {
            Block &a = blocks[2 * l], &m = blocks[2 * l + 1];
            float* w = gradient + l * kLayer;
            chunks(0, branches.rows(), [&](int i, int n) {
                mlp_backward(m, l, w, i, n);
                const float* dy = block_output_backward(a, i, n);
                gemm(AP, n, DN, Left{at(placement.heads_out ? a.normed : a.o, i, AP), AP, 1}.transposed(),
                     row_major(dy, DP), w + kWO, DP, true);
                gemm(n, DP, AP / kLanes, {dy, DP, 1}, w_o[l].transposed(), at(d_o, i, AP), AP);
                if (placement.heads_out) heads_output_backward(a, i, n);
            });
            attend_backward(a);
            chunks(0, branches.rows(), [&](int i, int n) {
                rotate(d_wide, i, n, -1);
                if (l == 0) return sum_by_token(i, n);
                if (placement.queries_keys)
                    queries_keys_backward(a, n, at(d_wide, i, QS), QS, at(a.before_norm, i, 2 * AP),
                                          &a.r_head[i * 2 * HEADS]);
                const float *h = at(placement.block_in ? a.h : a.x, i, DP), *d = at(d_wide, i, QS);
                gemm(DP, n, QP / kLanes, Left{h, DP, 1}.transposed(), row_major(d, QS), w + kQKV, QP, true);
                gemm(n, QP, DN, {d, QS, 1}, qkv[l].transposed(), at(d_h, i, DP), DP);
                block_input_backward(a, i, n);
            });
        }
    }

    void mlp_backward(Block& b, int l, float* w, int i, int n) {
        const float* dy = block_output_backward(b, i, n);
        gemm(FP, n, DN, Left{at(b.wide, i, FS), FS, 1}.transposed(), row_major(dy, DP), w + kW2, DP, true);
        gemm(n, DP, FP / kLanes, {dy, DP, 1}, w_2[l].transposed(), at(d_wide, i, FS), FS);
        for (int row = i; row < i + n; row++) {
            float *d = at(d_wide, row, FS), *slope = at(b.slope, row, FS);
            for (int j = 0; j < FP; j += kLanes) store(d + j, load(d + j) * load(slope + j));
        }
        const float *h = at(placement.block_in ? b.h : b.x, i, DP), *d = at(d_wide, i, FS);
        gemm(DP, n, FP / kLanes, Left{h, DP, 1}.transposed(), row_major(d, FS), w + kW1, FP, true);
        gemm(n, FP, DN, {d, FS, 1}, w_1[l].transposed(), at(d_h, i, DP), DP);
        block_input_backward(b, i, n);
    }

    // d_x, the derivative by the block's result, becomes that by s; returns the derivative by y.
    const float* block_output_backward(Block& b, int begin, int n) {
        f32x16 d[DN];
        decltype(norm)::Sum d_residual, d_out;
        if (placement.residual || placement.block_out)
            for (int i = begin; i < begin + n; i++) {
                load_row(at(d_x, i, DP), d);
                if (placement.residual) {
                    norm.backward(at(b.s, i, DP), theta + b.at.residual, b.r_residual[i], d, d_residual.next());
                    store_row(at(d_x, i, DP), d);
                }
                if (placement.block_out) {
                    norm.backward(at(b.y, i, DP), theta + b.at.block_out, b.r_out[i], d, d_out.next());
                    store_row(at(d_y, i, DP), d);
                }
            }
        if (placement.residual) d_residual.add_to(gradient + b.at.residual, norm.parameters());
        if (placement.block_out) d_out.add_to(gradient + b.at.block_out, norm.parameters());
        return at(placement.block_out ? d_y : d_x, begin, DP);
    }

    // Adds what comes through the block, d_h, to d_x.
    void block_input_backward(Block& b, int begin, int n) {
        f32x16 d[DN];
        decltype(norm)::Sum d_in;
        for (int i = begin; i < begin + n; i++) {
            load_row(at(d_h, i, DP), d);
            if (placement.block_in) norm.backward(at(b.x, i, DP), theta + b.at.block_in, b.r_in[i], d, d_in.next());
            add_row(at(d_x, i, DP), d);
        }
        if (placement.block_in) d_in.add_to(gradient + b.at.block_in, norm.parameters());
    }

    // d_o, the derivative by the norm of the heads' output, becomes that by the output.
    void heads_output_backward(Block& b, int begin, int n) {
        constexpr int N = AP / kLanes;
        decltype(heads_norm)::Sum d_gain;
        for (int i = begin; i < begin + n; i++) {
            f32x16 d[N];
            load_row<N>(at(d_o, i, AP), d);
            heads_norm.backward(at(b.o, i, AP), theta + b.at.heads_out, b.r_heads[i], d, d_gain.next());
            store_row<N>(at(d_o, i, AP), d);
        }
        d_gain.add_to(gradient + b.at.heads_out, heads_norm.parameters());
    }

    // The same for q and k of n rows that are `stride` apart, from what they were before their norm.
    void queries_keys_backward(const Block& b, int n, float* d_qkv, int stride, const float* before, const float* r) {
        constexpr int N = HP / kLanes;
        for (int gain : {b.at.queries, b.at.keys}) {
            const int first = gain == b.at.queries ? 0 : HEADS;
            decltype(head_norm)::Sum d_gain;
            for (int i = 0; i < n; i++)
                for (int head = first; head < first + HEADS; head++) {
                    f32x16 d[N];
                    float* at = d_qkv + i * stride + head * HP;
                    load_row<N>(at, d);
                    head_norm.backward(before + (i * 2 * HEADS + head) * HP, theta + gain, r[i * 2 * HEADS + head], d,
                                       d_gain.next());
                    store_row<N>(at, d);
                }
            d_gain.add_to(gradient + gain, head_norm.parameters());
        }
    }

    void attend_backward(Block& b) {
        const f32x16* kept = b.kept.get();
        branches.each([&](const Branch& s, const std::vector<int>& path) {
            const float *q = rows_of(b.wide, s, path), *d_out = at(d_o, s.row - s.shared, AP);
            float* dq = s.shared == 0 ? at(d_wide, s.row, QS) : at(d_gathered, 0, QS);
            for (int head = 0; head < HEADS; head++, q += HP, d_out += HP, dq += HP)
                kept = attention.backward(s.length, s.shared, q, q + AP, q + 2 * AP, d_out, kept, dq, dq + AP,
                                          dq + 2 * AP, logits_of(b, head), &b.d_ssmax[head]);
            if (s.shared > 0) scatter(s, path);
        });
    }

    // The rows of a prefix have their derivatives from the sequence that had them first; others add to those of k and
    // v.
    void scatter(const Branch& s, const std::vector<int>& path) {
        for (int p = 0; p < s.shared; p++) add<2 * AP>(at(d_wide, path[p], QS) + AP, at(d_gathered, p, QS) + AP);
        for (int p = s.shared; p < s.length; p++)
            std::memcpy(at(d_wide, path[p], QS), at(d_gathered, p, QS), sizeof(float) * QP);
    }

    void sum_by_token(int begin, int n) {
        for (int i = begin; i < begin + n; i++) {
            const float *from_x = at(d_x, i, DP), *from_qkv = at(d_wide, i, QS);
            add<DP>(by_token.few_x + branches.tokens[i] * DP, from_x);
            add<QP>(by_token.few_qkv + branches.tokens[i] * QP, from_qkv);
        }
        if ((by_token.n_few += n) >= kFewTokens) add_few();
    }

    template <int N>
    static RESHARPEN_INLINE void add(float* y, const float* x) {
        for (int j = 0; j < N; j += kLanes) store(y + j, load(y + j) + load(x + j));
    }

    void add_few() {
        add<V * DP>(by_token.d_x, by_token.few_x), add<V * QP>(by_token.d_qkv, by_token.few_qkv);
        clear(by_token.few_x), clear(by_token.few_qkv);
        by_token.n_few = 0;
    }

    // From the sums over the whole minibatch: q, k, v of the first layer, its norm, the embedding's norm, the
    // embedding.
    void tokens_backward() {
        add_few();
        if (placement.queries_keys)
            queries_keys_backward(blocks[0], V, by_token.d_qkv, QP, by_token.before_norm, by_token.r_head);
        gemm(DP, V, QP / kLanes, Left{by_token.h, DP, 1}.transposed(), row_major(by_token.d_qkv, QP), gradient + kQKV,
             QP, true);
        gemm(V, QP, DN, {by_token.d_qkv, QP, 1}, qkv[0].transposed(), by_token.d_h, DP);
        f32x16 d[DN];
        decltype(norm)::Sum d_in, d_embedding;
        for (int t = 0; t < V; t++) {
            load_row(by_token.d_h + t * DP, d);
            if (placement.block_in)
                norm.backward(by_token.x + t * DP, theta + blocks[0].at.block_in, by_token.r_h[t], d, d_in.next());
            add_row(by_token.d_x + t * DP, d);
            load_row(by_token.d_x + t * DP, d);
            if (placement.embedding_out)
                norm.backward(theta + t * DP, theta + layout.embedding_out, by_token.r_x[t], d, d_embedding.next());
            store_row(gradient + t * DP, d);
        }
        if (placement.block_in) d_in.add_to(gradient + blocks[0].at.block_in, norm.parameters());
        if (placement.embedding_out) d_embedding.add_to(gradient + layout.embedding_out, norm.parameters());
    }
};

}  // namespace resharpen

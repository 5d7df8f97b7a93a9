// The transformer, backward: from the logits to the gradient; transformer.h says how it works.
#pragma once

#include "transformer_forward.h"

namespace {

inline void add_row(float* to, const f32x16* d) {
    for (int i = 0; i < DN; i++) store(to + i * kLanes, load(to + i * kLanes) + d[i]);
}

template <int N>
RESHARPEN_INLINE void add(float* y, const float* x) {
    for (int j = 0; j < N; j += kLanes) store(y + j, load(y + j) + load(x + j));
}

// d logits = (softmax - target) * scale, summed over the targets of a row, then U and the last norm. Writes the
// derivative by `last` to grads.x; returns the summed negative log likelihood.
inline double loss_backward(Transformer& m, float scale) {
    const Setup& setup = m.setup;
    const Weights& weights = m.weights;
    const Branches& branches = m.branches;
    Activations& acts = m.acts;
    Gradients& grads = m.grads;
    constexpr int N = VP / kLanes;
    f32x16 row[DN];
    StreamNorm::Sum d_gain;
    double loss = 0;
    chunks(0, branches.rows(), [&](int begin, int n) {
        for (int i = begin; i < begin + n; i++) {
            float* z = at(acts.logits, i, VP);
            f32x16 e[N];
            const Normalizer by = softmax(z, e);
            const float inverse = 1.0f / by.sum;
            const int targets =
                branches.each_target(i, [&](int token) { loss += by.negative_log_likelihood(z[token]); });
            for (int j = 0; j < N; j++) store(z + j * kLanes, (float(targets) * scale * inverse) * e[j]);
            branches.each_target(i, [&](int token) { z[token] -= scale; });
        }
        const Left x{at(unembedded(setup, acts), begin, DP), DP, 1};
        const float* d = at(acts.logits, begin, VP);
        gemm(DP, n, N, x.transposed(), row_major(d, VP), grads.theta + kU, VP, true);
        gemm(n, VP, DN, {d, VP, 1}, weights.u.transposed(), at(grads.x, begin, DP), DP);
        if (setup.placement.unembedding_in)
            for (int i = begin; i < begin + n; i++) {
                load_row(at(grads.x, i, DP), row);
                weights.norm.backward(at(acts.last, i, DP), weights.theta + setup.layout.unembedding_in,
                                      acts.r_final[i], row, d_gain.next());
                store_row(at(grads.x, i, DP), row);
            }
    });
    if (setup.placement.unembedding_in)
        d_gain.add_to(grads.theta + setup.layout.unembedding_in, weights.norm.parameters());
    return loss;
}

// ---- a block, for a chunk of rows ----------------------------------------------------------------------------------

// Replaces grads.x, the derivative by the block's result, by that by s; returns the derivative by y.
inline const float* block_output_backward(const Setup& setup, const Weights& weights, const Branches& branches,
                                          const Dropout& dropout, Block& b, int begin, int n, Gradients& grads) {
    f32x16 d[DN];
    StreamNorm::Sum d_residual, d_out;
    const bool changes = setup.placement.block_out || dropout;
    if (setup.placement.residual || changes)
        for (int i = begin; i < begin + n; i++) {
            load_row(at(grads.x, i, DP), d);
            if (setup.placement.residual) {
                weights.norm.backward(at(b.s, i, DP), weights.theta + b.at.residual, b.r_residual[i], d,
                                      d_residual.next());
                store_row(at(grads.x, i, DP), d);
            }
            if (dropout) dropout.output(b.index, branches.number[i], branches.place[i], d);
            if (setup.placement.block_out)
                weights.norm.backward(at(b.y, i, DP), weights.theta + b.at.block_out, b.r_out[i], d, d_out.next());
            if (changes) store_row(at(grads.y, i, DP), d);
        }
    if (setup.placement.residual) d_residual.add_to(grads.theta + b.at.residual, weights.norm.parameters());
    if (setup.placement.block_out) d_out.add_to(grads.theta + b.at.block_out, weights.norm.parameters());
    return at(changes ? grads.y : grads.x, begin, DP);
}

// Adds the derivative through the block, from grads.h, to grads.x.
inline void block_input_backward(const Setup& setup, const Weights& weights, Block& b, int begin, int n,
                                 Gradients& grads) {
    f32x16 d[DN];
    StreamNorm::Sum d_in;
    for (int i = begin; i < begin + n; i++) {
        load_row(at(grads.h, i, DP), d);
        if (setup.placement.block_in)
            weights.norm.backward(at(b.x, i, DP), weights.theta + b.at.block_in, b.r_in[i], d, d_in.next());
        add_row(at(grads.x, i, DP), d);
    }
    if (setup.placement.block_in) d_in.add_to(grads.theta + b.at.block_in, weights.norm.parameters());
}

inline void mlp_backward(const Setup& setup, const Weights& weights, const Branches& branches, const Dropout& dropout,
                         Block& b, int l, float* w, int i, int n, Gradients& grads) {
    const float* dy = block_output_backward(setup, weights, branches, dropout, b, i, n, grads);
    gemm(FP, n, DN, Left{at(b.wide, i, FS), FS, 1}.transposed(), row_major(dy, DP), w + kW2, DP, true);
    gemm(n, DP, FP / kLanes, {dy, DP, 1}, weights.w_2[l].transposed(), at(grads.wide, i, FS), FS);
    for (int row = i; row < i + n; row++) {
        float *d = at(grads.wide, row, FS), *slope = at(b.slope, row, FS);
        for (int j = 0; j < FP; j += kLanes) store(d + j, load(d + j) * load(slope + j));
    }
    const float *h = at(setup.placement.block_in ? b.h : b.x, i, DP), *d = at(grads.wide, i, FS);
    gemm(DP, n, FP / kLanes, Left{h, DP, 1}.transposed(), row_major(d, FS), w + kW1, FP, true);
    gemm(n, FP, DN, {d, FS, 1}, weights.w_1[l].transposed(), at(grads.h, i, DP), DP);
    block_input_backward(setup, weights, b, i, n, grads);
}

// Replaces grads.o, the derivative by the norm of the heads' output, by that by the output.
inline void heads_output_backward(const Weights& weights, Block& b, int begin, int n, Gradients& grads) {
    constexpr int N = AP / kLanes;
    HeadsNorm::Sum d_gain;
    for (int i = begin; i < begin + n; i++) {
        f32x16 d[N];
        load_row<N>(at(grads.o, i, AP), d);
        weights.heads_norm.backward(at(b.o, i, AP), weights.theta + b.at.heads_out, b.r_heads[i], d, d_gain.next());
        store_row<N>(at(grads.o, i, AP), d);
    }
    d_gain.add_to(grads.theta + b.at.heads_out, weights.heads_norm.parameters());
}

// The same for q and k of n rows that are `stride` apart, given their values before the norm.
inline void queries_keys_backward(const Weights& weights, const TransformerLayout::Block& at, int n,
                                  const float* before, const float* r, float* d_qkv, int stride, float* gradient) {
    constexpr int N = HP / kLanes;
    for (int gain : {at.queries, at.keys}) {
        const int first = gain == at.queries ? 0 : HEADS;
        HeadNorm::Sum d_gain;
        for (int i = 0; i < n; i++)
            for (int head = first; head < first + HEADS; head++) {
                f32x16 d[N];
                float* d_head = d_qkv + i * stride + head * HP;
                load_row<N>(d_head, d);
                weights.head_norm.backward(before + (i * 2 * HEADS + head) * HP, weights.theta + gain,
                                           r[i * 2 * HEADS + head], d, d_gain.next());
                store_row<N>(d_head, d);
            }
        d_gain.add_to(gradient + gain, weights.head_norm.parameters());
    }
}

// ---- attention -----------------------------------------------------------------------------------------------------

// Derivatives of a shared prefix were written by its first sequence; other sequences add those of k and v.
inline void scatter(const Branch& s, const std::vector<int>& path, Gradients& grads) {
    for (int p = 0; p < s.shared; p++) add<2 * AP>(at(grads.wide, path[p], QS) + AP, at(grads.gathered, p, QS) + AP);
    for (int p = s.shared; p < s.length; p++)
        std::memcpy(at(grads.wide, path[p], QS), at(grads.gathered, p, QS), sizeof(float) * QP);
}

inline void attend_backward(const Setup& setup, const Weights& weights, Branches& branches, Block& b, Activations& acts,
                            Gradients& grads) {
    const f32x16* kept = b.kept.get();
    branches.each([&](const Branch& s, const std::vector<int>& path) {
        const float *q = rows_of(b.wide, s, path, acts.gathered), *d_out = at(grads.o, s.row - s.shared, AP);
        float* dq = s.shared == 0 ? at(grads.wide, s.row, QS) : at(grads.gathered, 0, QS);
        for (int head = 0; head < HEADS; head++, q += HP, d_out += HP, dq += HP)
            kept = acts.attention.backward(
                s.length, s.shared, q, q + AP, q + 2 * AP, d_out, kept, dq, dq + AP, dq + 2 * AP,
                logits_of(setup, weights, b, head, s.row - s.shared),
                {&b.d_s[head], b.scales.gradient_of(head, s.row - s.shared), b.bias.sums(head)});
        if (s.shared > 0) scatter(s, path, grads);
    });
}

// Of the factors that asentmax learns: adds the derivatives by w, by c and, to grads.h, by the rows h.
inline void scales_backward(const Weights& weights, const Branches& branches, Block& b, int l, const float* h,
                            int begin, int n, Gradients& grads) {
    float *d_w = grads.theta + b.at.scales, *d = b.scales.row(begin);
    for (int i = begin; i < begin + n; i++) b.scales.backward(i, branches.place[i]);
    gemm(DP, n, SP / kLanes, Left{h, DP, 1}.transposed(), row_major(d, SP), d_w, SP, true);
    gemm(n, SP, DN, {d, SP, 1}, weights.scales[l].transposed(), at(grads.h, begin, DP), DP, true);
}

// ---- tokens --------------------------------------------------------------------------------------------------------

inline void add_few(ByToken& by_token) {
    add<V * DP>(by_token.d_x, by_token.few_x), add<V * QP>(by_token.d_qkv, by_token.few_qkv);
    clear(by_token.few_x), clear(by_token.few_qkv);
    by_token.n_few = 0;
}

inline void sum_by_token(const Branches& branches, Gradients& grads, int begin, int n, ByToken& by_token) {
    for (int i = begin; i < begin + n; i++) {
        const float *from_x = at(grads.x, i, DP), *from_qkv = at(grads.wide, i, QS);
        add<DP>(by_token.few_x + branches.tokens[i] * DP, from_x);
        add<QP>(by_token.few_qkv + branches.tokens[i] * QP, from_qkv);
    }
    if ((by_token.n_few += n) >= kFewTokens) add_few(by_token);
}

// From the derivative by the stream: the embedding's norm, positions, and sums by token.
inline void embed_backward(const Setup& setup, const Weights& weights, const Branches& branches, Activations& acts,
                           int begin, int n, Gradients& grads, ByToken& by_token) {
    f32x16 d[DN];
    StreamNorm::Sum d_gain;
    for (int i = begin; i < begin + n; i++) {
        load_row(at(grads.x, i, DP), d);
        if (setup.placement.embedding_out)
            weights.norm.backward(at(acts.embedded, i, DP), weights.theta + setup.layout.embedding_out,
                                  acts.r_embedded[i], d, d_gain.next());
        const int p = branches.position[i];
        add_row(by_token.few_x + branches.tokens[i] * DP, d);
        if (setup.layout.learned >= 0) add_row(grads.theta + setup.layout.learned + p * DP, d);
        if (setup.layout.waves >= 0) {
            f32x16 along = broadcast(0);
            for (int j = 0; j < DN; j++) along += d[j] * load(&setup.waves[p * DP + j * kLanes]);
            by_token.d_waves += horizontal_sum(along);
        }
    }
    if (setup.placement.embedding_out)
        d_gain.add_to(grads.theta + setup.layout.embedding_out, weights.norm.parameters());
    if ((by_token.n_few += n) >= kFewTokens) add_few(by_token);
}

// From sums over the minibatch: backward of q, k, v of the first layer, its norm, the embedding's norm, the embedding.
inline void tokens_backward(const Setup& setup, const Weights& weights, ByToken& by_token, float* gradient) {
    add_few(by_token);
    if (setup.by_row()) {
        std::memcpy(gradient, by_token.d_x, sizeof by_token.d_x);
        if (setup.layout.waves >= 0) gradient[setup.layout.waves] = float(by_token.d_waves);
        return;
    }
    if (setup.placement.queries_keys)
        queries_keys_backward(weights, setup.layout.blocks[0], V, by_token.before_norm, by_token.r_head, by_token.d_qkv,
                              QP, gradient);
    gemm(DP, V, QP / kLanes, Left{by_token.h, DP, 1}.transposed(), row_major(by_token.d_qkv, QP), gradient + kQKV, QP,
         true);
    gemm(V, QP, DN, {by_token.d_qkv, QP, 1}, weights.qkv[0].transposed(), by_token.d_h, DP);
    f32x16 d[DN];
    StreamNorm::Sum d_in, d_embedding;
    for (int t = 0; t < V; t++) {
        load_row(by_token.d_h + t * DP, d);
        if (setup.placement.block_in)
            weights.norm.backward(by_token.x + t * DP, weights.theta + setup.layout.blocks[0].block_in, by_token.r_h[t],
                                  d, d_in.next());
        add_row(by_token.d_x + t * DP, d);
        load_row(by_token.d_x + t * DP, d);
        if (setup.placement.embedding_out)
            weights.norm.backward(weights.theta + t * DP, weights.theta + setup.layout.embedding_out, by_token.r_x[t],
                                  d, d_embedding.next());
        store_row(gradient + t * DP, d);
    }
    if (setup.placement.block_in) d_in.add_to(gradient + setup.layout.blocks[0].block_in, weights.norm.parameters());
    if (setup.placement.embedding_out)
        d_embedding.add_to(gradient + setup.layout.embedding_out, weights.norm.parameters());
}

// From the derivative by `last` to sums by token.
inline void backward(Transformer& m) {
    const Setup& setup = m.setup;
    const Weights& weights = m.weights;
    Activations& acts = m.acts;
    Gradients& grads = m.grads;
    ByToken& by_token = m.by_token;
    Branches& branches = m.branches;
    for (int l = LAYERS - 1; l >= 0; l--) {
        Block &a = acts.blocks[2 * l], &mlp = acts.blocks[2 * l + 1];
        float* w = grads.theta + l * kLayer;
        chunks(0, branches.rows(), [&](int i, int n) {
            mlp_backward(setup, weights, branches, m.dropout, mlp, l, w, i, n, grads);
            const float* dy = block_output_backward(setup, weights, branches, m.dropout, a, i, n, grads);
            gemm(AP, n, DN, Left{at(setup.placement.heads_out ? a.normed : a.o, i, AP), AP, 1}.transposed(),
                 row_major(dy, DP), w + kWO, DP, true);
            gemm(n, DP, AP / kLanes, {dy, DP, 1}, weights.w_o[l].transposed(), at(grads.o, i, AP), AP);
            if (setup.placement.heads_out) heads_output_backward(weights, a, i, n, grads);
        });
        attend_backward(setup, weights, branches, a, acts, grads);
        chunks(0, branches.rows(), [&](int i, int n) {
            rotate(setup, branches, grads.wide, i, n, -1);
            if (l == 0 && !setup.by_row()) return sum_by_token(branches, grads, i, n, by_token);
            if (setup.placement.queries_keys)
                queries_keys_backward(weights, a.at, n, at(a.before_norm, i, 2 * AP), &a.r_head[i * 2 * HEADS],
                                      at(grads.wide, i, QS), QS, grads.theta);
            const float *h = at(setup.placement.block_in ? a.h : a.x, i, DP), *d = at(grads.wide, i, QS);
            gemm(DP, n, QP / kLanes, Left{h, DP, 1}.transposed(), row_major(d, QS), w + kQKV, QP, true);
            gemm(n, QP, DN, {d, QS, 1}, weights.qkv[l].transposed(), at(grads.h, i, DP), DP);
            if (setup.adapts()) scales_backward(weights, branches, a, l, h, i, n, grads);
            block_input_backward(setup, weights, a, i, n, grads);
            if (l == 0) embed_backward(setup, weights, branches, acts, i, n, grads, by_token);
        });
    }
}

}  // namespace

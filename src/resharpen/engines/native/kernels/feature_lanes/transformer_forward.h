// The transformer, forward: up to the logits; transformer.h says how it works.
#pragma once

#include "transformer_buffers.h"

namespace {

// Normalize q and k of every head of one row in place; keeps the inputs, and r of each.
inline void norm_queries_keys(const Weights& weights, const TransformerLayout::Block& at, float* qkv, float* before,
                              float* r) {
    constexpr int N = HP / kLanes;
    std::memcpy(before, qkv, sizeof(float) * 2 * AP);
    for (int head = 0; head < 2 * HEADS; head++) {
        f32x16 row[N];
        load_row<N>(qkv + head * HP, row);
        r[head] = weights.head_norm.forward(row, weights.theta + (head < HEADS ? at.queries : at.keys));
        store_row<N>(qkv + head * HP, row);
    }
}

// Quantities that depend on the token alone.
inline void tokens_forward(const Setup& setup, const Weights& weights, ByToken& by_token) {
    for (int t = 0; t < V; t++) {
        f32x16 row[DN];
        load_row(weights.theta + t * DP, row);
        if (setup.placement.embedding_out)
            by_token.r_x[t] = weights.norm.forward(row, weights.theta + setup.layout.embedding_out);
        store_row(by_token.x + t * DP, row);
        if (setup.placement.block_in)
            by_token.r_h[t] = weights.norm.forward(row, weights.theta + setup.layout.blocks[0].block_in);
        store_row(by_token.h + t * DP, row);
    }
    gemm(V, DP, QP / kLanes, {by_token.h, DP, 1}, weights.qkv[0].weights(), by_token.qkv, QP);
    if (setup.placement.queries_keys)
        for (int t = 0; t < V; t++)
            norm_queries_keys(weights, setup.layout.blocks[0], by_token.qkv + t * QP, by_token.before_norm + t * 2 * AP,
                              by_token.r_head + t * 2 * HEADS);
    by_token.n_few = 0, by_token.d_waves = 0;
    clear(by_token.d_x), clear(by_token.few_x), clear(by_token.d_qkv), clear(by_token.few_qkv);
}

// The stream of every row, with positions added to the embedding if there are any.
inline void embed(const Setup& setup, const Weights& weights, const Branches& branches, Activations& acts) {
    for (int i = 0; i < branches.rows(); i++) {
        f32x16 row[DN];
        load_row(weights.theta + branches.tokens[i] * DP, row);
        const int p = branches.position[i];
        if (setup.layout.learned >= 0)
            for (int j = 0; j < DN; j++) row[j] += load(weights.theta + setup.layout.learned + p * DP + j * kLanes);
        if (setup.layout.waves >= 0)
            for (int j = 0; j < DN; j++)
                row[j] += weights.theta[setup.layout.waves] * load(&setup.waves[p * DP + j * kLanes]);
        store_row(at(acts.embedded, i, DP), row);
        if (setup.placement.embedding_out)
            acts.r_embedded[i] = weights.norm.forward(row, weights.theta + setup.layout.embedding_out);
        store_row(at(acts.blocks[0].x, i, DP), row);
    }
}

inline void prepare(Transformer& m, const float* theta, float epsilon, bool for_training) {
    Weights& weights = m.weights;
    weights.theta = theta;
    weights.norm.epsilon = weights.heads_norm.epsilon = weights.head_norm.epsilon = epsilon;
    for (int l = 0; l < LAYERS; l++) {
        const float* w = theta + l * kLayer;
        weights.qkv[l].pack(w + kQKV, for_training), weights.w_o[l].pack(w + kWO, for_training);
        weights.w_1[l].pack(w + kW1, for_training), weights.w_2[l].pack(w + kW2, for_training);
        if (m.setup.adapts()) weights.scales[l].pack(theta + m.setup.layout.blocks[2 * l].scales, for_training);
    }
    weights.u.pack(theta + kU, for_training);
    for (int l = 0; l < LAYERS; l++) m.acts.blocks[2 * l].bias.fill(m.setup.layout.blocks[2 * l], theta);
    tokens_forward(m.setup, weights, m.by_token);
}

// ---- a block, for a chunk of rows ----------------------------------------------------------------------------------

// h of a chunk of rows: x or its norm.
inline const float* block_input(const Setup& setup, const Weights& weights, Block& b, int begin, int n) {
    if (!setup.placement.block_in) return at(b.x, begin, DP);
    float* h = at(b.h, begin, DP);
    weights.norm.forward_rows(n, at(b.x, begin, DP), DP, weights.theta + b.at.block_in, h, &b.r_in[begin]);
    return h;
}

inline void queries_keys_values(const Setup& setup, const Weights& weights, const Branches& branches, Block& b, int l,
                                int begin, int n) {
    const Left h{block_input(setup, weights, b, begin, n), DP, 1};
    gemm(n, DP, QP / kLanes, h, weights.qkv[l].weights(), at(b.wide, begin, QS), QS);
    if (setup.adapts()) {
        gemm(n, DP, SP / kLanes, h, weights.scales[l].weights(), b.scales.row(begin), SP);
        for (int i = begin; i < begin + n; i++)
            b.scales.forward(i, branches.place[i], weights.theta + b.at.scales + DP * SP);
    }
    if (setup.placement.queries_keys)
        for (int i = begin; i < begin + n; i++)
            norm_queries_keys(weights, b.at, at(b.wide, i, QS), at(b.before_norm, i, 2 * AP), &b.r_head[i * 2 * HEADS]);
}

// Output of the heads of a chunk of rows, or its norm.
inline const float* heads_output(const Setup& setup, const Weights& weights, Block& b, int begin, int n) {
    if (!setup.placement.heads_out) return at(b.o, begin, AP);
    float* o = at(b.normed, begin, AP);
    weights.heads_norm.forward_rows(n, at(b.o, begin, AP), AP, weights.theta + b.at.heads_out, o, &b.r_heads[begin]);
    return o;
}

inline void block_output(const Setup& setup, const Weights& weights, const Branches& branches, const Dropout& dropout,
                         Block& b, int begin, int n, std::vector<f32x16>& next) {
    for (int i = begin; i < begin + n; i++) {
        f32x16 row[DN];
        load_row(at(b.y, i, DP), row);
        if (setup.placement.block_out) b.r_out[i] = weights.norm.forward(row, weights.theta + b.at.block_out);
        if (dropout) dropout.output(b.index, branches.number[i], branches.place[i], row);
        const float* x = at(b.x, i, DP);
        RESHARPEN_UNROLL
        for (int j = 0; j < DN; j++) row[j] += load(x + j * kLanes);
        if (setup.placement.residual) {
            store_row(at(b.s, i, DP), row);
            b.r_residual[i] = weights.norm.forward(row, weights.theta + b.at.residual);
        }
        store_row(at(next, i, DP), row);
    }
}

// Rotate the pairs (x_i, x_{i + PAIRS}), i < PAIRS, of every head of q and k by their position.
template <int PAIRS>
void rotate_pairs(const Rotation& rotation, const Branches& branches, std::vector<f32x16>& wide, int begin, int n,
                  float sign) {
    constexpr int kSome = std::max(1, std::min(PAIRS & -PAIRS, kLanes));  // a divisor of the pairs
    typedef float Some __attribute__((vector_size(4 * kSome)));
    auto some = [](const float* x) {
        Some y;
        std::memcpy(&y, x, sizeof y);
        return y;
    };
    auto put = [](float* x, Some y) { std::memcpy(x, &y, sizeof y); };
    for (int i = begin; i < begin + n; i++) {
        const float *cosine = rotation.cosine + branches.position[i] * PAIRS,
                    *sine = rotation.sine + branches.position[i] * PAIRS;
        for (int j = 0; j < PAIRS; j += kSome) {
            const Some c = some(cosine + j), s = sign * some(sine + j);
            float* x = at(wide, i, QS) + j;
            for (int head = 0; head < 2 * HEADS; head++, x += HP) {
                const Some a = some(x), b = some(x + PAIRS);
                put(x, a * c - b * s);
                put(x + PAIRS, b * c + a * s);
            }
        }
    }
}

// Rotate all features of every head, or the first half; backward with sign = -1.
inline void rotate(const Setup& setup, const Branches& branches, std::vector<f32x16>& wide, int begin, int n,
                   float sign) {
    if (setup.position_kind == PositionKind::rope || setup.position_kind == PositionKind::rope_500k)
        rotate_pairs<kHead / 2>(setup.rotation, branches, wide, begin, n, sign);
    if (setup.position_kind == PositionKind::rope_half)
        rotate_pairs<kHead / 4>(setup.rotation, branches, wide, begin, n, sign);
}

// GELU of an MLP and its derivative.
inline void hidden_layer(Block& b, int begin, int n) {
    for (int i = begin; i < begin + n; i++) {
        float *x = at(b.wide, i, FS), *slope = at(b.slope, i, FS);
        for (int j = 0; j < FP; j += kLanes) {
            f32x16 derivative;
            store(x + j, gelu(load(x + j), derivative));
            store(slope + j, derivative);
        }
    }
}

// ---- attention -----------------------------------------------------------------------------------------------------

// Of a sequence whose first token would have the row `origin`.
inline HeadLogits logits_of(const Setup& setup, const Weights& weights, const Block& b, int head, int origin) {
    HeadLogits found;
    found.bias = b.bias.of(head);
    if (!setup.log_n.empty()) found.factor = setup.log_n.data();
    if (setup.adapts()) found.factor = b.scales.of(head, origin);
    if (b.at.s >= 0) found.s = weights.theta[b.at.s + head];
    return found;
}

// q, k, v of a sequence in consecutive rows: in place, or copied if it shares a prefix.
inline const float* rows_of(std::vector<f32x16>& wide, const Branch& s, const std::vector<int>& path,
                            std::vector<f32x16>& gathered) {
    if (s.shared == 0) return at(wide, s.row, QS);
    for (int p = 0; p < s.length; p++) std::memcpy(at(gathered, p, QS), at(wide, path[p], QS), sizeof(float) * QP);
    return at(gathered, 0, QS);
}

inline void attend(const Setup& setup, const Weights& weights, Branches& branches, const Dropout& dropout, int from,
                   Block& b, Activations& acts) {
    f32x16* keep = b.kept.get();
    branches.each([&](const Branch& s, const std::vector<int>& path) {
        const float* q = rows_of(b.wide, s, path, acts.gathered);
        float* out = at(b.o, s.row - s.shared, AP);
        for (int head = 0; head < HEADS; head++, q += HP, out += HP)
            keep = acts.attention.forward(s.length, std::max(from, s.shared), q, q + AP, q + 2 * AP, out, keep,
                                          logits_of(setup, weights, b, head, s.row - s.shared), [&](auto... of_block) {
                                              dropout.weights(b.index / 2, s.number, head, of_block...);
                                          });
    });
}

// ---- logits --------------------------------------------------------------------------------------------------------

inline std::vector<f32x16>& unembedded(const Setup& setup, Activations& acts) {
    return setup.placement.unembedding_in ? acts.final : acts.last;
}

// Logits of the rows from `from` on; only these pass through the last layer.
inline void forward(Transformer& m, int from) {
    const Setup& setup = m.setup;
    const Weights& weights = m.weights;
    const ByToken& by_token = m.by_token;
    Activations& acts = m.acts;
    Branches& branches = m.branches;
    if (setup.by_row()) embed(setup, weights, branches, acts);
    for (int i = 0; !setup.by_row() && i < branches.rows(); i++) {
        std::memcpy(at(acts.blocks[0].x, i, DP), by_token.x + branches.tokens[i] * DP, sizeof(float) * DP);
        std::memcpy(at(acts.blocks[0].wide, i, QS), by_token.qkv + branches.tokens[i] * QP, sizeof(float) * QP);
    }
    for (int l = 0; l < LAYERS; l++) {
        const int first = l == LAYERS - 1 ? from : 0;
        Block &a = acts.blocks[2 * l], &b = acts.blocks[2 * l + 1];
        chunks(0, branches.rows(), [&](int i, int n) {
            if (l > 0 || setup.by_row()) queries_keys_values(setup, weights, branches, a, l, i, n);
            rotate(setup, branches, a.wide, i, n, 1);
        });
        attend(setup, weights, branches, m.dropout, first, a, acts);
        chunks(first, branches.rows(), [&](int i, int n) {
            gemm(n, AP, DN, {heads_output(setup, weights, a, i, n), AP, 1}, weights.w_o[l].weights(), at(a.y, i, DP),
                 DP);
            block_output(setup, weights, branches, m.dropout, a, i, n, b.x);
            gemm(n, DP, FP / kLanes, {block_input(setup, weights, b, i, n), DP, 1}, weights.w_1[l].weights(),
                 at(b.wide, i, FS), FS);
            hidden_layer(b, i, n);
            gemm(n, FP, DN, {at(b.wide, i, FS), FS, 1}, weights.w_2[l].weights(), at(b.y, i, DP), DP);
            block_output(setup, weights, branches, m.dropout, b, i, n,
                         l == LAYERS - 1 ? acts.last : acts.blocks[2 * l + 2].x);
        });
    }
    chunks(from, branches.rows(), [&](int i, int n) {
        if (setup.placement.unembedding_in)
            weights.norm.forward_rows(n, at(acts.last, i, DP), DP, weights.theta + setup.layout.unembedding_in,
                                      at(acts.final, i, DP), &acts.r_final[i]);
        gemm(n, DP, VP / kLanes, {at(unembedded(setup, acts), i, DP), DP, 1}, weights.u.weights(),
             at(acts.logits, i, VP), VP);
    });
}

// exp(z - max) of a row, 0 in the padding; returns the maximum and the sum.
RESHARPEN_INLINE Normalizer softmax(const float* z, f32x16* e) {
    constexpr int N = VP / kLanes, kRest = V - (N - 1) * kLanes;
    f32x16 highest = broadcast(-INFINITY), sum = broadcast(0);
    for (int j = 0; j < N; j++) {
        e[j] = load(z + j * kLanes);
        highest = max(highest, j == N - 1 ? first_lanes(kRest, e[j], -INFINITY) : e[j]);
    }
    const float max_z = horizontal_max(highest);
    const f32x16 top = broadcast(max_z);
    for (int j = 0; j < N; j++) {
        e[j] = exp2_below(kLog2E * (e[j] - top));
        if (j == N - 1) e[j] = first_lanes(kRest, e[j], 0);
        sum += e[j];
    }
    return {max_z, horizontal_sum(sum)};
}

inline float total_variation(const float* z, const float* p_star) {
    f32x16 e[VP / kLanes];
    const float inverse = 1.0f / softmax(z, e).sum, *p = reinterpret_cast<const float*>(e);
    float sum = 0;
    for (int t = 0; t < V; t++) sum += std::fabs(p[t] * inverse - p_star[t]);
    return 0.5f * sum;
}

}  // namespace

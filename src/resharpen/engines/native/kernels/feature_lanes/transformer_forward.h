// The transformer, forward: up to the logits; transformer.h says how it works.
#pragma once

#include "transformer_buffers.h"

namespace resharpen {

class TransformerForward : public TransformerBuffers {
  public:
    using TransformerBuffers::TransformerBuffers;

    void prepare(const float* theta, float epsilon, bool for_training) {
        this->theta = theta, norm.epsilon = heads_norm.epsilon = head_norm.epsilon = epsilon;
        for (int l = 0; l < LAYERS; l++) {
            const float* w = theta + l * kLayer;
            qkv[l].pack(w + kQKV, for_training), w_o[l].pack(w + kWO, for_training);
            w_1[l].pack(w + kW1, for_training), w_2[l].pack(w + kW2, for_training);
        }
        u.pack(theta + kU, for_training);
        tokens_forward();
    }

  protected:
    void tokens_forward() {
        for (int t = 0; t < V; t++) {
            f32x16 row[DN];
            load_row(theta + t * DP, row);
            if (placement.embedding_out) by_token.r_x[t] = norm.forward(row, theta + layout.embedding_out);
            store_row(by_token.x + t * DP, row);
            if (placement.block_in) by_token.r_h[t] = norm.forward(row, theta + blocks[0].at.block_in);
            store_row(by_token.h + t * DP, row);
        }
        gemm(V, DP, QP / kLanes, {by_token.h, DP, 1}, qkv[0].weights(), by_token.qkv, QP);
        if (placement.queries_keys)
            for (int t = 0; t < V; t++)
                norm_queries_keys(blocks[0], by_token.qkv + t * QP, by_token.before_norm + t * 2 * AP,
                                  by_token.r_head + t * 2 * HEADS);
        by_token.n_few = 0;
        clear(by_token.d_x), clear(by_token.few_x), clear(by_token.d_qkv), clear(by_token.few_qkv);
    }

    // Everything up to the logits of the rows from `from` on; only these pass through the last layer.
    void forward(int from) {
        for (int i = 0; i < branches.rows(); i++) {
            std::memcpy(at(blocks[0].x, i, DP), by_token.x + branches.tokens[i] * DP, sizeof(float) * DP);
            std::memcpy(at(blocks[0].wide, i, QS), by_token.qkv + branches.tokens[i] * QP, sizeof(float) * QP);
        }
        for (int l = 0; l < LAYERS; l++) {
            const int first = l == LAYERS - 1 ? from : 0;
            Block &a = blocks[2 * l], &m = blocks[2 * l + 1];
            chunks(0, branches.rows(), [&](int i, int n) {
                if (l > 0) queries_keys_values(a, l, i, n);
                rotate(a.wide, i, n, 1);
            });
            attend(a, first);
            chunks(first, branches.rows(), [&](int i, int n) {
                gemm(n, AP, DN, {heads_output(a, i, n), AP, 1}, w_o[l].weights(), at(a.y, i, DP), DP);
                block_output(a, i, n, m.x);
                gemm(n, DP, FP / kLanes, {block_input(m, i, n), DP, 1}, w_1[l].weights(), at(m.wide, i, FS), FS);
                gelu(m, i, n);
                gemm(n, FP, DN, {at(m.wide, i, FS), FS, 1}, w_2[l].weights(), at(m.y, i, DP), DP);
                block_output(m, i, n, l == LAYERS - 1 ? last : blocks[2 * l + 2].x);
            });
        }
        chunks(from, branches.rows(), [&](int i, int n) {
            f32x16 row[DN];
            if (placement.unembedding_in)
                for (int j = i; j < i + n; j++) {
                    load_row(at(last, j, DP), row);
                    r_final[j] = norm.forward(row, theta + layout.unembedding_in);
                    store_row(at(final, j, DP), row);
                }
            gemm(n, DP, VP / kLanes, {at(unembedded(), i, DP), DP, 1}, u.weights(), at(logits, i, VP), VP);
        });
    }

    std::vector<f32x16>& unembedded() { return placement.unembedding_in ? final : last; }

    // h of a chunk of rows: x, or its norm.
    const float* block_input(Block& b, int begin, int n) {
        if (!placement.block_in) return at(b.x, begin, DP);
        for (int i = begin; i < begin + n; i++) {
            f32x16 row[DN];
            load_row(at(b.x, i, DP), row);
            b.r_in[i] = norm.forward(row, theta + b.at.block_in);
            store_row(at(b.h, i, DP), row);
        }
        return at(b.h, begin, DP);
    }

    void queries_keys_values(Block& b, int l, int begin, int n) {
        gemm(n, DP, QP / kLanes, {block_input(b, begin, n), DP, 1}, qkv[l].weights(), at(b.wide, begin, QS), QS);
        if (placement.queries_keys)
            for (int i = begin; i < begin + n; i++)
                norm_queries_keys(b, at(b.wide, i, QS), at(b.before_norm, i, 2 * AP), &b.r_head[i * 2 * HEADS]);
    }

    // Of every head of one row; what it was before is kept, and r of each.
    void norm_queries_keys(const Block& b, float* qkv, float* before, float* r) {
        constexpr int N = HP / kLanes;
        std::memcpy(before, qkv, sizeof(float) * 2 * AP);
        for (int head = 0; head < 2 * HEADS; head++) {
            f32x16 row[N];
            load_row<N>(qkv + head * HP, row);
            r[head] = head_norm.forward(row, theta + (head < HEADS ? b.at.queries : b.at.keys));
            store_row<N>(qkv + head * HP, row);
        }
    }

    // What the heads gathered in a chunk of rows, or its norm.
    const float* heads_output(Block& b, int begin, int n) {
        constexpr int N = AP / kLanes;
        if (!placement.heads_out) return at(b.o, begin, AP);
        for (int i = begin; i < begin + n; i++) {
            f32x16 row[N];
            load_row<N>(at(b.o, i, AP), row);
            b.r_heads[i] = heads_norm.forward(row, theta + b.at.heads_out);
            store_row<N>(at(b.normed, i, AP), row);
        }
        return at(b.normed, begin, AP);
    }

    void block_output(Block& b, int begin, int n, std::vector<f32x16>& next) {
        for (int i = begin; i < begin + n; i++) {
            f32x16 row[DN];
            load_row(at(b.y, i, DP), row);
            if (placement.block_out) b.r_out[i] = norm.forward(row, theta + b.at.block_out);
            const float* x = at(b.x, i, DP);
            RESHARPEN_UNROLL
            for (int j = 0; j < DN; j++) row[j] += load(x + j * kLanes);
            if (placement.residual) {
                store_row(at(b.s, i, DP), row);
                b.r_residual[i] = norm.forward(row, theta + b.at.residual);
            }
            store_row(at(next, i, DP), row);
        }
    }

    // The pair (x_i, x_{i + half}) of every head of q and k turned by its position, forwards or (sign = -1) back.
    void rotate(std::vector<f32x16>& wide, int begin, int n, float sign) {
        if (position_kind != PositionKind::rope) return;
        constexpr int kSome = std::max(1, std::min(kHalf & -kHalf, kLanes));  // half a head is some of these vectors
        typedef float Some __attribute__((vector_size(4 * kSome)));
        auto some = [](const float* x) {
            Some y;
            std::memcpy(&y, x, sizeof y);
            return y;
        };
        auto put = [](float* x, Some y) { std::memcpy(x, &y, sizeof y); };
        for (int i = begin; i < begin + n; i++) {
            const float *cosine = rotation.cosine + branches.position[i] * kHalf,
                        *sine = rotation.sine + branches.position[i] * kHalf;
            for (int j = 0; j < kHalf; j += kSome) {
                const Some c = some(cosine + j), s = sign * some(sine + j);
                float* x = at(wide, i, QS) + j;
                for (int head = 0; head < 2 * HEADS; head++, x += HP) {
                    const Some a = some(x), b = some(x + kHalf);
                    put(x, a * c - b * s);
                    put(x + kHalf, b * c + a * s);
                }
            }
        }
    }

    HeadLogits logits_of(const Block& b, int head) const {
        HeadLogits found;
        if (position_kind == PositionKind::alibi) found.slope = float(std::exp2(-8.0 * (head + 1) / HEADS));
        if (attention_kind != AttentionKind::softmax) found.log_n = log_n.data();
        if (attention_kind == AttentionKind::ssmax) found.s = theta[b.at.ssmax + head];
        return found;
    }

    void attend(Block& b, int from) {
        f32x16* keep = b.kept.get();
        branches.each([&](const Branch& s, const std::vector<int>& path) {
            const float* q = rows_of(b.wide, s, path);
            float* out = at(b.o, s.row - s.shared, AP);
            for (int head = 0; head < HEADS; head++, q += HP, out += HP)
                keep = attention.forward(s.length, std::max(from, s.shared), q, q + AP, q + 2 * AP, out, keep,
                                         logits_of(b, head));
        });
    }

    // q, k, v of a sequence, row after row: where they are, or copied together.
    const float* rows_of(std::vector<f32x16>& wide, const Branch& s, const std::vector<int>& path) {
        if (s.shared == 0) return at(wide, s.row, QS);
        for (int p = 0; p < s.length; p++) std::memcpy(at(gathered, p, QS), at(wide, path[p], QS), sizeof(float) * QP);
        return at(gathered, 0, QS);
    }

    void gelu(Block& b, int begin, int n) {
        for (int i = begin; i < begin + n; i++) {
            float *x = at(b.wide, i, FS), *slope = at(b.slope, i, FS);
            for (int j = 0; j < FP; j += kLanes) {
                f32x16 derivative;
                store(x + j, resharpen::gelu(load(x + j), derivative));
                store(slope + j, derivative);
            }
        }
    }

    // exp(z - max) of the row in VP / 16 vectors, 0 in the padding; returns the maximum and the sum.
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

    float total_variation(const float* z, const float* p_star) {
        f32x16 e[VP / kLanes];
        const float inverse = 1.0f / softmax(z, e).sum, *p = reinterpret_cast<const float*>(e);
        float sum = 0;
        for (int t = 0; t < V; t++) sum += std::fabs(p[t] * inverse - p_star[t]);
        return 0.5f * sum;
    }
};

}  // namespace resharpen

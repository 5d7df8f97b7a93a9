// The transformer: its sizes and the memory layout of its parameters.
#pragma once

#include "../contract.h"

namespace {

// The sizes that the kernel is compiled for: layers, width, heads, width of an MLP, tokens; and padded to whole
// vectors: the stream, a head, all heads, q, k and v of all heads, an MLP, tokens.
constexpr int LAYERS = RESHARPEN_LAYERS, D = RESHARPEN_D, HEADS = RESHARPEN_HEADS, MLP = RESHARPEN_MLP, V = RESHARPEN_V;
constexpr int padded(int n) { return (n + kLanes - 1) / kLanes * kLanes; }
constexpr int kHead = D / HEADS, BLOCKS = 2 * LAYERS;
constexpr int DP = padded(D), HP = padded(kHead), AP = HEADS * HP, QP = 3 * AP, FP = padded(MLP), VP = padded(V);

constexpr int kBuckets = 32;  // of the distances of T5
constexpr int SP = padded(2 * HEADS);  // two factors of asentmax per head

// Embedding; per layer QKV [DP, 3 AP], W_O [AP, DP], W_1 [DP, FP], W_2 [FP, DP]; U [DP, VP]; then, without weight decay
// like the embedding, norms of embedding, unembedding and each block; and parameters of attention and positions of each
// layer, and of positions on the embedding.
constexpr int kQKV = V * DP, kWO = kQKV + DP * QP, kW1 = kWO + AP * DP, kW2 = kW1 + DP * FP;
constexpr int kLayer = kW2 + FP * DP - kQKV, kU = kQKV + LAYERS * kLayer, kGains = kU + DP * VP;

// Offsets that depend on the variant; -1 if it lacks the parameter. A bias follows its gain.
struct TransformerLayout {
    static constexpr int kDecayBegin = kQKV, kDecayEnd = kGains;

    struct Block {
        int block_in, block_out, residual, heads_out, queries, keys, s, scales, t5, log_r1, log_r2;
    };
    bool bias, sink, offset;  // of LayerNorm; whether s is a sink's logit, or a factor of ssmax; of learned positions
    int embedding_out, unembedding_in, waves, learned, n_learned;
    Block blocks[BLOCKS];  // attention and MLP of each layer in turn
    int size;

    explicit TransformerLayout(Variant variant)
        : bias(variant.norm == NormFunction::layer), sink(variant.attention == AttentionKind::sink),
          offset(variant.positions == PositionKind::learned_offset) {
        const Placement& p = variant.placement;
        int next = kGains;
        auto place = [&](bool present, int floats) { return present ? (next += floats) - floats : -1; };
        auto norm = [&](bool present, int width) { return place(present, bias ? 2 * width : width); };
        embedding_out = norm(p.embedding_out, DP), unembedding_in = norm(p.unembedding_in, DP);
        for (int i = 0; i < BLOCKS; i++) {
            const bool attends = i % 2 == 0;
            Block& b = blocks[i];
            b.block_in = norm(p.block_in, DP), b.block_out = norm(p.block_out, DP), b.residual = norm(p.residual, DP);
            b.heads_out = norm(attends && p.heads_out, AP);
            b.queries = norm(attends && p.queries_keys, HP), b.keys = norm(attends && p.queries_keys, HP);
        }
        for (int i = 0; i < BLOCKS; i++) {
            auto of_heads = [&](bool present, int each = 1) {
                return place(i % 2 == 0 && present, padded(HEADS * each));
            };
            Block& b = blocks[i];
            b.s = of_heads(variant.attention == AttentionKind::ssmax || variant.attention == AttentionKind::sink);
            b.scales = place(i % 2 == 0 && variant.attention == AttentionKind::asentmax, (DP + 1) * SP);
            b.t5 = of_heads(variant.positions == PositionKind::t5, kBuckets);
            b.log_r1 = of_heads(variant.positions == PositionKind::kerple);
            b.log_r2 = of_heads(variant.positions == PositionKind::kerple);
        }
        waves = place(variant.positions == PositionKind::sinusoidal, kLanes);
        n_learned = variant.learned;
        learned = place(offset || variant.positions == PositionKind::learned, n_learned * DP);
        size = next;
    }

    std::string parameters() const {
        std::string text = parameters_begin(size, kDecayBegin, kDecayEnd);
        auto add_norm = [&](const std::string& block, const char* site, int at, std::initializer_list<Axis> axes,
                            int width) {
            if (at >= 0) add_parameter(text, block + "g_" + site, at, axes);
            if (at >= 0 && bias) add_parameter(text, block + "b_" + site, at + width, axes);
        };
        const Axis width{D, 1}, head{kHead, 1};
        add_parameter(text, "E", 0, {{V, DP}, width});
        add_norm("", "embedding_out", embedding_out, {width}, DP);
        for (int i = 0; i < BLOCKS; i++) {
            const Block& b = blocks[i];
            const int at = i / 2 * kLayer;
            const std::string block = std::to_string(i / 2) + (i % 2 == 0 ? ".attention." : ".mlp.");
            add_norm(block, "block_in", b.block_in, {width}, DP);
            add_norm(block, "block_out", b.block_out, {width}, DP);
            add_norm(block, "residual", b.residual, {width}, DP);
            if (i % 2 == 0) {
                add_parameter(text, block + "W_Q", at + kQKV, {{D, QP}, {HEADS, HP}, head});
                add_parameter(text, block + "W_K", at + kQKV + AP, {{D, QP}, {HEADS, HP}, head});
                add_parameter(text, block + "W_V", at + kQKV + 2 * AP, {{D, QP}, {HEADS, HP}, head});
                add_parameter(text, block + "W_O", at + kWO, {{HEADS, HP * DP}, {kHead, DP}, width});
                add_norm(block, "heads_out", b.heads_out, {{HEADS, HP}, head}, AP);
                add_norm(block, "queries", b.queries, {head}, HP);
                add_norm(block, "keys", b.keys, {head}, HP);
                if (b.s >= 0) add_parameter(text, block + (sink ? "s_sink" : "s_ssmax"), b.s, {{HEADS, 1}});
                for (const char* which : {"b", "g"}) {  // w [DP, SP], then c
                    if (b.scales < 0) break;
                    const int from = b.scales + (*which == 'b' ? 0 : HEADS);
                    add_parameter(text, block + "w_" + which + "_asentmax", from, {{HEADS, 1}, {D, SP}});
                    add_parameter(text, block + "c_" + which + "_asentmax", from + DP * SP, {{HEADS, 1}});
                }
                if (b.t5 >= 0) add_parameter(text, block + "b_t5", b.t5, {{HEADS, kBuckets}, {kBuckets, 1}});
                if (b.log_r1 >= 0) add_parameter(text, block + "log_r1_kerple", b.log_r1, {{HEADS, 1}});
                if (b.log_r2 >= 0) add_parameter(text, block + "log_r2_kerple", b.log_r2, {{HEADS, 1}});
            } else {
                add_parameter(text, block + "W_1", at + kW1, {{D, FP}, {MLP, 1}});
                add_parameter(text, block + "W_2", at + kW2, {{MLP, DP}, width});
            }
        }
        if (waves >= 0) add_parameter(text, "s_sinusoidal", waves, {});
        if (learned >= 0)
            add_parameter(text, offset ? "P_learned-offset" : "P_learned", learned, {{n_learned, DP}, width});
        add_norm("", "unembedding_in", unembedding_in, {width}, DP);
        add_parameter(text, "U", kU, {{D, VP}, {V, 1}});
        return text;
    }
};

}  // namespace

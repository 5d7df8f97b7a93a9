// The transformer: its weights in panels, its activations and their gradients; transformer.h says how it works.
#pragma once

#include <climits>
#include <memory>
#include <vector>

#include "attention.h"
#include "biases.h"
#include "dropout.h"
#include "gelu.h"
#include "logit_scales.h"
#include "prefixes.h"

namespace {

// Of the angles of RoPE [positions, pairs of features of a head], or of sinusoidal positions [positions, half of D].
struct Rotation {
    const float *cosine, *sine;
};

constexpr int kChunk = 128;     // rows at a time
constexpr int kFewTokens = 256;  // rows in a partial sum by token

// Sequences are processed together up to kTogether rows, or kFamily if they share a prefix of at least 1 / kWorth of
// their tokens (shared rows are copied for the attention of every sequence).
constexpr int kTogether = 64, kFamily = 512, kWorth = 4;

constexpr int DN = DP / kLanes;
// Activations are one vector wider than necessary, to avoid cache conflicts of rows a power of two apart.
constexpr int QS = QP + kLanes, FS = FP + kLanes;

using StreamNorm = RowNorm<DN, DP, D>;
using HeadsNorm = RowNorm<AP / kLanes, HP, kHead>;  // of all heads side by side
using HeadNorm = RowNorm<HP / kLanes, HP, kHead>;   // of q or k of one

// A variant, and the number of rows: those processed together, and a block that attention reads behind them.
struct Setup {
    TransformerLayout layout;
    Placement placement;
    AttentionKind attention_kind;
    PositionKind position_kind;
    Rotation rotation;
    std::vector<float> log_n;  // of 1, 2, ..; empty for no factor
    std::vector<float> waves;  // sinusoidal positions [positions, DP]
    int window, longest;
    bool drops;
    std::size_t rows;

    Setup(Variant variant, Rotation rotation, int longest, bool for_training, bool drops)
        : layout(variant), placement(variant.placement), attention_kind(variant.attention),
          position_kind(variant.positions), rotation(rotation), window(variant.window > 0 ? variant.window : INT_MAX),
          longest(longest), drops(drops), rows(std::max(longest, for_training ? kFamily : 0) + kLanes) {
        if (variant.attention == AttentionKind::log_n || variant.attention == AttentionKind::ssmax)
            for (int n = 1; n <= longest + kLanes; n++) log_n.push_back(float(std::log(double(n))));
        if (position_kind != PositionKind::sinusoidal) return;
        waves.resize(longest * DP);
        for (int p = 0; p < longest; p++)
            for (int i = 0; i < D; i++)
                waves[p * DP + i] = (i % 2 ? rotation.cosine : rotation.sine)[p * ((D + 1) / 2) + i / 2];
    }

    bool adapts() const { return attention_kind == AttentionKind::asentmax; }
    bool sparse() const { return attention_kind == AttentionKind::entmax || adapts(); }

    // Whether the first layer is computed by row, not by token: positions are added to the embedding, or its attention
    // reads more of a row than q, k and v.
    bool by_row() const { return position_kind == PositionKind::sinusoidal || layout.learned >= 0 || adapts(); }
};

// A matrix [I, O], and its transpose, in panels of kPanelColumns columns.
struct Packed {
    int in, out;
    std::vector<f32x16> forward, backward;

    static int panels(int n) { return (n + kPanelColumns - 1) / kPanelColumns; }
    void allocate(int i, int o) {
        in = i, out = o;
        forward.resize(std::size_t(in) * panels(out) * kPanel);
        backward.resize(std::size_t(out) * panels(in) * kPanel);
    }
    void pack(const float* w, bool transposed) {
        for (int i = 0; i < in; i += kLanes)
            for (int j = 0; j < out; j += kLanes) {
                f32x16* to = &forward[std::size_t(j / kPanelColumns) * in * kPanel + j % kPanelColumns / kLanes];
                for (int k = i; k < i + kLanes; k++) to[k * kPanel] = load(w + k * out + j);
                float* back =
                    reinterpret_cast<float*>(backward.data()) + std::size_t(i / kPanelColumns) * out * kPanelColumns;
                if (transposed)
                    transpose_block(w + i * out + j, out, back + j * kPanelColumns + i % kPanelColumns, kPanelColumns);
            }
    }
    Right weights() const {
        return {reinterpret_cast<const float*>(forward.data()), kPanelColumns, in * kPanelColumns};
    }
    Right transposed() const {
        return {reinterpret_cast<const float*>(backward.data()), kPanelColumns, out * kPanelColumns};
    }
};

struct Weights {
    const float* theta;
    StreamNorm norm;
    HeadsNorm heads_norm;
    HeadNorm head_norm;
    Packed qkv[LAYERS], w_o[LAYERS], w_1[LAYERS], w_2[LAYERS], u;
    Packed scales[LAYERS];  // of asentmax

    explicit Weights(Variant variant) {
        norm.layer = heads_norm.layer = head_norm.layer = variant.norm == NormFunction::layer;
        for (int l = 0; l < LAYERS; l++) {
            qkv[l].allocate(DP, QP), w_o[l].allocate(AP, DP);
            w_1[l].allocate(DP, FP), w_2[l].allocate(FP, DP);
            if (variant.attention == AttentionKind::asentmax) scales[l].allocate(DP, SP);
        }
        u.allocate(DP, VP);
    }
};

// An attention or MLP block: x -> h = N_in(x) -> y = f(h) -> s = x + N_out(y) -> N_residual(s), the next block's x.
struct Block {
    std::vector<f32x16> x, h, y, s, wide, slope, o;  // wide: q, k, v of attention, the hidden layer of an MLP
    std::vector<f32x16> before_norm, normed;  // q and k before the norm, the heads' output after it
    std::vector<float> r_in, r_out, r_residual, r_heads, r_head;
    // Of attention, for training. Not zeroed, because few sequences have the maximum length.
    std::unique_ptr<f32x16[]> kept;
    TransformerLayout::Block at;  // its parameters
    int index;
    double d_s[HEADS];
    DistanceBias bias;
    LogitScales scales;

    void allocate(const Setup& setup, int i) {
        const std::size_t rows = setup.rows;
        const bool is_mlp = i % 2 == 1;
        at = setup.layout.blocks[i], index = i;
        if (!is_mlp) bias.allocate(setup.position_kind, setup.longest);
        if (!is_mlp && setup.adapts()) scales.allocate(rows, setup.longest);
        for (auto* each : {&x, &h, &y, &s}) each->resize(rows * DN);
        wide.resize(rows * (is_mlp ? FS : QS) / kLanes);
        if (is_mlp)
            slope.resize(rows * FS / kLanes);
        else
            o.resize(rows * AP / kLanes);
        if (!is_mlp && setup.placement.heads_out) normed.resize(rows * AP / kLanes), r_heads.resize(rows);
        if (!is_mlp && setup.placement.queries_keys)
            before_norm.resize(rows * 2 * AP / kLanes), r_head.resize(rows * 2 * HEADS);
        for (auto* r : {&r_in, &r_out, &r_residual}) r->resize(rows);
    }
};

struct Activations {
    Block blocks[BLOCKS];
    std::vector<f32x16> embedded, last, final, logits;  // embedded: with positions, before its norm
    std::vector<float> r_embedded, r_final;
    Attention<HP, QS, AP> attention;
    std::vector<f32x16> gathered;  // q, k, v of a sequence with a shared prefix
    std::size_t n_kept = 0;

    Activations(const Setup& setup, int longest, bool for_training)
        : attention(longest, 1.0f / std::sqrt(float(kHead)), setup.window, setup.layout.sink, setup.sparse(),
                    setup.drops) {
        for (int i = 0; i < BLOCKS; i++) blocks[i].allocate(setup, i);
        for (auto* x : {&last, &final}) x->resize(setup.rows * DN);
        logits.resize(setup.rows * VP / kLanes), r_final.resize(setup.rows);
        if (setup.by_row()) embedded.resize(setup.rows * DN), r_embedded.resize(setup.rows);
        if (for_training) gathered.resize((longest + kLanes) * QS / kLanes);
    }
};

// Gradients by all weights and by activations.
struct Gradients {
    float* theta;
    std::vector<f32x16> x, y, h, o, wide, gathered;

    Gradients(const Setup& setup, int longest, bool for_training) {
        for (auto* each : {&x, &y, &h}) each->resize(setup.rows * DN);
        o.resize(setup.rows * AP / kLanes), wide.resize(setup.rows * (QS > FS ? QS : FS) / kLanes);
        if (for_training) gathered.resize((longest + kLanes) * QS / kLanes);
    }
};

// Per token, [V, ..]: the embedding after its norm, h and q, k, v of the first block; and their derivatives.
struct ByToken {
    alignas(64) float x[V * DP], h[V * DP], qkv[V * QP], d_x[V * DP], d_h[V * DP], d_qkv[V * QP];
    alignas(64) float before_norm[V * 2 * AP], r_head[V * 2 * HEADS];  // of q and k
    alignas(64) float few_x[V * DP], few_qkv[V * QP];  // partial sums, to be added to d_x and d_qkv
    float r_x[V], r_h[V];
    int n_few;
    double d_waves;  // by the factor of sinusoidal positions
};

// The working memory of the kernel.
struct Transformer {
    const Setup setup;
    Weights weights;
    Activations acts;
    Gradients grads;
    ByToken by_token;
    Branches branches;
    Dropout dropout;  // of the current model and step

    Transformer(Variant variant, Rotation rotation, int longest, bool for_training, bool drops = false)
        : setup(variant, rotation, longest, for_training, drops), weights(variant), acts(setup, longest, for_training),
          grads(setup, longest, for_training) {}
};

inline float* at(std::vector<f32x16>& x, std::size_t row, int width) {
    return reinterpret_cast<float*>(x.data()) + row * width;
}

// Allocates what attention keeps for the backward.
inline void make_room(const Branches& branches, Activations& acts) {
    std::size_t n = 0;
    for (const Branch& s : branches.all) n += HEADS * acts.attention.kept(s.length, s.shared);
    if (n <= acts.n_kept) return;
    acts.n_kept = n;
    for (int l = 0; l < LAYERS; l++) acts.blocks[2 * l].kept.reset(new f32x16[n]);
}

template <class F>
void chunks(int begin, int end, F f) {
    for (; begin < end; begin += kChunk) f(begin, end - begin < kChunk ? end - begin : kChunk);
}

template <int N = DN>
RESHARPEN_INLINE void load_row(const float* from, f32x16* to) {
    RESHARPEN_UNROLL
    for (int i = 0; i < N; i++) to[i] = load(from + i * kLanes);
}

template <int N = DN>
RESHARPEN_INLINE void store_row(float* to, const f32x16* from) {
    RESHARPEN_UNROLL
    for (int i = 0; i < N; i++) store(to + i * kLanes, from[i]);
}

}  // namespace

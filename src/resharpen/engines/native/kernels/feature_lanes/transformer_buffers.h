// The transformer: its sizes, its weights in panels and its activations; transformer.h says how it works.
#pragma once

#include <memory>
#include <vector>

#include "attention.h"
#include "gelu.h"
#include "prefixes.h"
#include "transformer_layout.h"

namespace resharpen {

struct Rotation {
    const float *cosine, *sine;  // [positions, half a head]
};

constexpr int kChunk = 128;     // rows at a time
constexpr int kFewTokens = 256;  // rows in a partial sum by token

// Sequences are put together up to so many rows; or to so many if they share a prefix, of one token in so many at
// least: its rows are copied for the attention of every one of them.
constexpr int kTogether = 64, kFamily = 512, kWorth = 4;

constexpr int DN = DP / kLanes;
// Activations are a vector wider than they need be: rows whose distance is a power of two collide in the cache.
constexpr int QS = QP + kLanes, FS = FP + kLanes;

class TransformerBuffers {
  public:
    TransformerBuffers(Variant variant, Rotation rotation, int longest, bool for_training)
        : layout(variant), placement(variant.placement), attention_kind(variant.attention),
          position_kind(variant.positions), rotation(rotation),
          rows(std::max(longest, for_training ? kFamily : 0) + kLanes),
          attention(longest, 1.0f / std::sqrt(float(kHead))) {
        norm.layer = heads_norm.layer = head_norm.layer = variant.norm == NormFunction::layer;
        for (Block& b : blocks) b.at = layout.blocks[&b - blocks], allocate(b);
        if (for_training)
            for (auto* x : {&gathered, &d_gathered}) x->resize((longest + kLanes) * QS / kLanes);
        if (attention_kind != AttentionKind::softmax)
            for (int n = 1; n <= longest + kLanes; n++) log_n.push_back(float(std::log(double(n))));
        for (auto* x : {&last, &final, &d_x, &d_y, &d_h, &d_o}) x->resize(rows * (DP > AP ? DP : AP) / kLanes);
        logits.resize(rows * VP / kLanes), d_wide.resize(rows * (QS > FS ? QS : FS) / kLanes);
        r_final.resize(rows);
        for (int l = 0; l < LAYERS; l++) {
            qkv[l].allocate(DP, QP), w_o[l].allocate(AP, DP);
            w_1[l].allocate(DP, FP), w_2[l].allocate(FP, DP);
        }
        u.allocate(DP, VP);
    }

    TransformerLayout layout;

  protected:
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
                    float* back = reinterpret_cast<float*>(backward.data()) +
                                  std::size_t(i / kPanelColumns) * out * kPanelColumns;
                    if (transposed)
                        transpose_block(w + i * out + j, out, back + j * kPanelColumns + i % kPanelColumns,
                                        kPanelColumns);
                }
        }
        Right weights() const {
            return {reinterpret_cast<const float*>(forward.data()), kPanelColumns, in * kPanelColumns};
        }
        Right transposed() const {
            return {reinterpret_cast<const float*>(backward.data()), kPanelColumns, out * kPanelColumns};
        }
    };

    // An attention or MLP block: x -> h = N_in(x) -> y = f(h) -> s = x + N_out(y) -> N_residual(s), the next block's x.
    struct Block {
        std::vector<f32x16> x, h, y, s, wide, slope, o;  // wide: q, k, v of attention, the hidden layer of an MLP
        std::vector<f32x16> before_norm, normed;  // q and k before their norm, the heads' output after its own
        std::vector<float> r_in, r_out, r_residual, r_heads, r_head;
        // Of attention, for training: not zeroed, few sequences are of the greatest length.
        std::unique_ptr<f32x16[]> kept;
        TransformerLayout::Block at;
        double d_ssmax[HEADS];
    };

    Placement placement;
    AttentionKind attention_kind;
    PositionKind position_kind;
    Rotation rotation;
    std::vector<float> log_n;  // of 1, 2, ..
    RowNorm<DN, DP, D> norm;
    RowNorm<AP / kLanes, HP, kHead> heads_norm;  // of all heads side by side
    RowNorm<HP / kLanes, HP, kHead> head_norm;  // of q or k of one
    std::size_t rows;
    Attention<HP, QS, AP> attention;
    Block blocks[BLOCKS];
    Packed qkv[LAYERS], w_o[LAYERS], w_1[LAYERS], w_2[LAYERS], u;
    std::vector<f32x16> last, final, logits, d_x, d_y, d_h, d_o, d_wide;
    std::vector<float> r_final;
    // By token, [V, ..]: the embedding after its norm, h and q, k, v of the first block; and their derivatives.
    struct {
        alignas(64) float x[V * DP], h[V * DP], qkv[V * QP], d_x[V * DP], d_h[V * DP], d_qkv[V * QP];
        alignas(64) float before_norm[V * 2 * AP], r_head[V * 2 * HEADS];  // of q and k
        alignas(64) float few_x[V * DP], few_qkv[V * QP];  // sums over a few rows, still to be added to d_x and d_qkv
        float r_x[V], r_h[V];
        int n_few;
    } by_token;
    Branches branches;
    std::vector<f32x16> gathered, d_gathered;  // q, k, v of a sequence that has not all of its rows to itself
    std::size_t n_kept = 0;
    const float* theta;
    float* gradient;

    bool is_mlp(const Block& b) const { return (&b - blocks) % 2; }

    static float* at(std::vector<f32x16>& x, std::size_t row, int width) {
        return reinterpret_cast<float*>(x.data()) + row * width;
    }

    void allocate(Block& b) {
        for (auto* x : {&b.x, &b.h, &b.y, &b.s}) x->resize(rows * DN);
        b.wide.resize(rows * (is_mlp(b) ? FS : QS) / kLanes);
        if (is_mlp(b))
            b.slope.resize(rows * FS / kLanes);
        else
            b.o.resize(rows * AP / kLanes);
        if (!is_mlp(b) && placement.heads_out) b.normed.resize(rows * AP / kLanes), b.r_heads.resize(rows);
        if (!is_mlp(b) && placement.queries_keys)
            b.before_norm.resize(rows * 2 * AP / kLanes), b.r_head.resize(rows * 2 * HEADS);
        for (auto* r : {&b.r_in, &b.r_out, &b.r_residual}) r->resize(rows);
    }

    // What the attention of the branches keeps for the backward.
    void make_room() {
        std::size_t n = 0;
        for (const Branch& s : branches.all) n += HEADS * attention.kept(s.length, s.shared);
        if (n <= n_kept) return;
        n_kept = n;
        for (int l = 0; l < LAYERS; l++) blocks[2 * l].kept.reset(new f32x16[n]);
    }

    template <class F>
    static void chunks(int begin, int end, F f) {
        for (; begin < end; begin += kChunk) f(begin, end - begin < kChunk ? end - begin : kChunk);
    }

    template <int N = DN>
    static RESHARPEN_INLINE void load_row(const float* from, f32x16* to) {
        RESHARPEN_UNROLL
        for (int i = 0; i < N; i++) to[i] = load(from + i * kLanes);
    }
    template <int N = DN>
    static RESHARPEN_INLINE void store_row(float* to, const f32x16* from) {
        RESHARPEN_UNROLL
        for (int i = 0; i < N; i++) store(to + i * kLanes, from[i]);
    }
};

}  // namespace resharpen

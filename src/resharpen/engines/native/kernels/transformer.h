// The transformer: one model at a time, sequences at their true lengths.
//
// A vector is sixteen neighbouring features; widths are padded to whole vectors with zeros, which stay zero through
// forward, backward and AdamW. Sequences are worked on a few at a time, forward and backward, so that what lies between
// stays in the second-level cache; within that, rows in chunks. All products are `gemm`, with weights (and transposed
// weights, for the backward) packed into panels once a step. Up to the first layer's q, k, v, before positions turn them,
// a row depends on its token alone: that is computed once a token, and so is its backward, on sums by token.
#pragma once

#include <memory>
#include <vector>

#include "adamw.h"
#include "attention.h"

namespace resharpen {

struct Placement {
    bool embedding_out, block_in, block_out, residual, unembedding_in;
};

// Sequences one after another, position 0 of each at BOS.
struct Ragged {
    const int32_t *inputs, *targets, *lengths;
    int n;
};

struct Rotation {
    const float *cosine, *sine;  // [positions, half a head]
};

constexpr int kChunk = 128;     // rows at a time
constexpr int kTogether = 64;   // sequences are put together up to so many tokens
constexpr int kFewTokens = 256;  // rows in a partial sum by token

template <int LAYERS, int D, int HEADS, int F, int V>
class Transformer {
    static constexpr int padded(int n) { return (n + kLanes - 1) / kLanes * kLanes; }
    static constexpr int kHead = D / HEADS, kHalf = kHead / 2;
    static constexpr int DP = padded(D), HP = padded(kHead), AP = HEADS * HP, QP = 3 * AP, FP = padded(F), VP = padded(V);
    static constexpr int DN = DP / kLanes, BLOCKS = 2 * LAYERS;
    // Activations are a vector wider than they need be: rows whose distance is a power of two collide in the cache.
    static constexpr int QS = QP + kLanes, FS = FP + kLanes;

  public:
    // Parameters in memory: embedding; for each layer QKV [DP, 3 AP], W_O [AP, DP], W_1 [DP, FP], W_2 [FP, DP]; U [DP, VP];
    // gains: embedding, unembedding, then those of each block. Decay is on all but embedding and gains.
    static constexpr int kQKV = V * DP, kWO = kQKV + DP * QP, kW1 = kWO + AP * DP, kW2 = kW1 + DP * FP;
    static constexpr int kLayer = kW2 + FP * DP - kQKV, kU = kQKV + LAYERS * kLayer, kGains = kU + DP * VP;

    Transformer(Placement placement, Rotation rotation, int longest, bool for_training)
        : placement(placement), rotation(rotation), rows(longest + kTogether + kLanes),
          attention(longest, 1.0f / std::sqrt(float(kHead))) {
        int next = kGains;
        auto place = [&](bool present) { return present ? (next += DP) - DP : -1; };
        gain_embedding = place(placement.embedding_out), gain_unembedding = place(placement.unembedding_in);
        for (Block& b : blocks) {
            b.g_in = place(placement.block_in), b.g_out = place(placement.block_out), b.g_residual = place(placement.residual);
            allocate(b, for_training ? HEADS * attention.kept(std::max(longest, kTogether)) : 0);
        }
        size = next;
        for (auto* x : {&last, &final, &d_x, &d_y, &d_h, &d_o}) x->resize(rows * (DP > AP ? DP : AP) / kLanes);
        logits.resize(rows * VP / kLanes), d_wide.resize(rows * (QS > FS ? QS : FS) / kLanes);
        r_final.resize(rows), position.resize(rows);
        for (int l = 0; l < LAYERS; l++)
            for (Packed* p : {&qkv[l], &w_o[l], &w_1[l], &w_2[l]}) p->allocate(p == &w_1[l] || p == &qkv[l] ? DP : p == &w_2[l] ? FP : AP,
                                                                               p == &qkv[l] ? QP : p == &w_1[l] ? FP : DP);
        u.allocate(DP, VP);
    }

    int size;  // number of parameters

    // The gradient of the mean negative log likelihood; overwrites `gradient`.
    void gradient_of(const Ragged& batch, const float* theta, float epsilon, float* gradient) {
        prepare(theta, epsilon, true);
        this->gradient = gradient;
        std::memset(gradient, 0, sizeof(float) * size);
        int tokens = 0;
        for (int i = 0; i < batch.n; i++) tokens += batch.lengths[i];
        const int32_t *inputs = batch.inputs, *targets = batch.targets;
        for (int i = 0; i < batch.n;) {
            const int begin = i;
            int total = 0;
            do total += batch.lengths[i++];
            while (i < batch.n && total + batch.lengths[i] <= kTogether);
            open(inputs, batch.lengths + begin, i - begin, total);
            forward(0);
            loss_backward(targets, 1.0f / float(tokens));
            backward();
            inputs += total, targets += total;
        }
        tokens_backward();
    }

    void prepare(const float* theta, float epsilon, bool for_training) {
        this->theta = theta, this->epsilon = epsilon;
        for (int l = 0; l < LAYERS; l++) {
            const float* w = theta + l * kLayer;
            qkv[l].pack(w + kQKV, for_training), w_o[l].pack(w + kWO, for_training);
            w_1[l].pack(w + kW1, for_training), w_2[l].pack(w + kW2, for_training);
        }
        u.pack(theta + kU, for_training);
        tokens_forward();
    }

    // TVD against p_star [scored, V], or the logit of a marked token, at the scored positions of a sequence.
    float* evaluate(const int32_t* inputs, int length, const uint8_t* scored, const float*& p_star, int marked, float* out) {
        int from = 0;
        while (from < length && !scored[from]) from++;
        if (from == length) return out;
        open(inputs, &length, 1, length);
        forward(from);
        for (int i = from; i < length; i++) {
            if (!scored[i]) continue;
            const float* z = at(logits, i, VP);
            if (marked >= 0) {
                *out++ = z[marked];
            } else {
                *out++ = total_variation(z, p_star);
                p_star += V;
            }
        }
        return out;
    }

  private:
    // A matrix [I, O], and its transpose, in panels of kPanelColumns columns.
    struct Packed {
        int in, out;
        std::vector<f16> forward, backward;

        static int panels(int n) { return (n + kPanelColumns - 1) / kPanelColumns; }
        void allocate(int i, int o) {
            in = i, out = o;
            forward.resize(std::size_t(in) * panels(out) * kPanel), backward.resize(std::size_t(out) * panels(in) * kPanel);
        }
        void pack(const float* w, bool transposed) {
            for (int i = 0; i < in; i += kLanes)
                for (int j = 0; j < out; j += kLanes) {
                    f16* to = &forward[std::size_t(j / kPanelColumns) * in * kPanel + j % kPanelColumns / kLanes];
                    for (int k = i; k < i + kLanes; k++) to[k * kPanel] = load(w + k * out + j);
                    float* back = reinterpret_cast<float*>(backward.data()) + std::size_t(i / kPanelColumns) * out * kPanelColumns;
                    if (transposed)
                        transpose_block(w + i * out + j, out, back + j * kPanelColumns + i % kPanelColumns, kPanelColumns);
                }
        }
        Right weights() const { return {reinterpret_cast<const float*>(forward.data()), kPanelColumns, in * kPanelColumns}; }
        Right transposed() const { return {reinterpret_cast<const float*>(backward.data()), kPanelColumns, out * kPanelColumns}; }
    };

    // An attention or MLP block: x -> h = N_in(x) -> y = f(h) -> s = x + N_out(y) -> N_residual(s), the next block's x.
    struct Block {
        std::vector<f16> x, h, y, s, wide, slope, o;  // wide: q, k, v of attention, the hidden layer of an MLP
        std::vector<float> r_in, r_out, r_residual;
        std::unique_ptr<f16[]> kept;  // of attention, for training: not zeroed, few sequences are of the greatest length
        int g_in, g_out, g_residual;
    };

    Placement placement;
    Rotation rotation;
    std::size_t rows;
    Attention<HP, QS, AP> attention;
    Block blocks[BLOCKS];
    Packed qkv[LAYERS], w_o[LAYERS], w_1[LAYERS], w_2[LAYERS], u;
    int gain_embedding, gain_unembedding;
    std::vector<f16> last, final, logits, d_x, d_y, d_h, d_o, d_wide;
    std::vector<float> r_final;
    // By token, [V, ..]: the embedding after its norm, h and q, k, v of the first block; and their derivatives.
    struct {
        alignas(64) float x[V * DP], h[V * DP], qkv[V * QP], d_x[V * DP], d_h[V * DP], d_qkv[V * QP];
        alignas(64) float few_x[V * DP], few_qkv[V * QP];  // sums over a few rows, still to be added to d_x and d_qkv
        float r_x[V], r_h[V];
        int n_few;
    } by_token;
    std::vector<int> position;
    const float* theta;
    float* gradient;
    float epsilon;
    const int32_t *tokens, *lengths;
    int n_sequences, n_tokens;

    static float* at(std::vector<f16>& x, std::size_t row, int width) { return reinterpret_cast<float*>(x.data()) + row * width; }

    void allocate(Block& b, std::size_t kept) {
        const bool is_mlp = (&b - blocks) % 2;
        for (auto* x : {&b.x, &b.h, &b.y, &b.s}) x->resize(rows * DN);
        b.wide.resize(rows * (is_mlp ? FS : QS) / kLanes);
        if (is_mlp)
            b.slope.resize(rows * FS / kLanes);
        else
            b.o.resize(rows * AP / kLanes), b.kept.reset(kept ? new f16[kept] : nullptr);
        for (auto* r : {&b.r_in, &b.r_out, &b.r_residual}) r->resize(rows);
    }

    void open(const int32_t* inputs, const int32_t* lengths, int n, int total) {
        tokens = inputs, this->lengths = lengths, n_sequences = n, n_tokens = total;
        for (int i = 0, row = 0; i < n; i++)
            for (int p = 0; p < lengths[i]; p++) position[row++] = p;
    }

    template <class F_>
    static void chunks(int begin, int end, F_ f) {
        for (; begin < end; begin += kChunk) f(begin, end - begin < kChunk ? end - begin : kChunk);
    }

    static RESHARPEN_INLINE void load_row(const float* from, f16* to) {
        RESHARPEN_UNROLL
        for (int i = 0; i < DN; i++) to[i] = load(from + i * kLanes);
    }
    static RESHARPEN_INLINE void store_row(float* to, const f16* from) {
        RESHARPEN_UNROLL
        for (int i = 0; i < DN; i++) store(to + i * kLanes, from[i]);
    }

    // ---- forward --------------------------------------------------------------------------------------------------

    void tokens_forward() {
        for (int t = 0; t < V; t++) {
            f16 row[DN];
            load_row(theta + t * DP, row);
            if (placement.embedding_out) by_token.r_x[t] = norm_row<D, DN>(row, theta + gain_embedding, epsilon);
            store_row(by_token.x + t * DP, row);
            if (placement.block_in) by_token.r_h[t] = norm_row<D, DN>(row, theta + blocks[0].g_in, epsilon);
            store_row(by_token.h + t * DP, row);
        }
        gemm(V, DP, QP / kLanes, {by_token.h, DP, 1}, qkv[0].weights(), by_token.qkv, QP);
        by_token.n_few = 0;
        for (float* d : {by_token.d_x, by_token.few_x}) std::memset(d, 0, sizeof by_token.d_x);
        for (float* d : {by_token.d_qkv, by_token.few_qkv}) std::memset(d, 0, sizeof by_token.d_qkv);
    }

    // Everything up to the logits of the rows from `from` on; only these pass through the last layer.
    void forward(int from) {
        for (int i = 0; i < n_tokens; i++) {
            std::memcpy(at(blocks[0].x, i, DP), by_token.x + tokens[i] * DP, sizeof(float) * DP);
            std::memcpy(at(blocks[0].wide, i, QS), by_token.qkv + tokens[i] * QP, sizeof(float) * QP);
        }
        for (int l = 0; l < LAYERS; l++) {
            const int first = l == LAYERS - 1 ? from : 0;
            Block &a = blocks[2 * l], &m = blocks[2 * l + 1];
            chunks(0, n_tokens, [&](int i, int n) {
                if (l > 0) gemm(n, DP, QP / kLanes, {block_input(a, i, n), DP, 1}, qkv[l].weights(), at(a.wide, i, QS), QS);
                rotate(a.wide, i, n, 1);
            });
            attend(a, first);
            chunks(first, n_tokens, [&](int i, int n) {
                gemm(n, AP, DN, {at(a.o, i, AP), AP, 1}, w_o[l].weights(), at(a.y, i, DP), DP);
                block_output(a, i, n, m.x);
                gemm(n, DP, FP / kLanes, {block_input(m, i, n), DP, 1}, w_1[l].weights(), at(m.wide, i, FS), FS);
                gelu(m, i, n);
                gemm(n, FP, DN, {at(m.wide, i, FS), FS, 1}, w_2[l].weights(), at(m.y, i, DP), DP);
                block_output(m, i, n, l == LAYERS - 1 ? last : blocks[2 * l + 2].x);
            });
        }
        chunks(from, n_tokens, [&](int i, int n) {
            f16 row[DN];
            if (placement.unembedding_in)
                for (int j = i; j < i + n; j++) {
                    load_row(at(last, j, DP), row);
                    r_final[j] = norm_row<D, DN>(row, theta + gain_unembedding, epsilon);
                    store_row(at(final, j, DP), row);
                }
            gemm(n, DP, VP / kLanes, {at(unembedded(), i, DP), DP, 1}, u.weights(), at(logits, i, VP), VP);
        });
    }

    std::vector<f16>& unembedded() { return placement.unembedding_in ? final : last; }

    // h of a chunk of rows: x, or its norm.
    const float* block_input(Block& b, int begin, int n) {
        if (!placement.block_in) return at(b.x, begin, DP);
        for (int i = begin; i < begin + n; i++) {
            f16 row[DN];
            load_row(at(b.x, i, DP), row);
            b.r_in[i] = norm_row<D, DN>(row, theta + b.g_in, epsilon);
            store_row(at(b.h, i, DP), row);
        }
        return at(b.h, begin, DP);
    }

    void block_output(Block& b, int begin, int n, std::vector<f16>& next) {
        for (int i = begin; i < begin + n; i++) {
            f16 row[DN];
            load_row(at(b.y, i, DP), row);
            if (placement.block_out) b.r_out[i] = norm_row<D, DN>(row, theta + b.g_out, epsilon);
            const float* x = at(b.x, i, DP);
            RESHARPEN_UNROLL
            for (int j = 0; j < DN; j++) row[j] += load(x + j * kLanes);
            if (placement.residual) {
                store_row(at(b.s, i, DP), row);
                b.r_residual[i] = norm_row<D, DN>(row, theta + b.g_residual, epsilon);
            }
            store_row(at(next, i, DP), row);
        }
    }

    // The pair (x_i, x_{i + half}) of every head of q and k turned by its position, forwards or (sign = -1) back.
    void rotate(std::vector<f16>& wide, int begin, int n, float sign) {
        constexpr int kSome = std::min(kHalf & -kHalf, kLanes);  // half a head is a whole number of these vectors
        typedef float Some __attribute__((vector_size(4 * kSome), aligned(4), may_alias));
        auto some = [](const float* x) -> Some& { return *reinterpret_cast<Some*>(const_cast<float*>(x)); };
        for (int i = begin; i < begin + n; i++) {
            const float *cosine = rotation.cosine + position[i] * kHalf, *sine = rotation.sine + position[i] * kHalf;
            for (int j = 0; j < kHalf; j += kSome) {
                const Some c = some(cosine + j), s = sign * some(sine + j);
                float* x = at(wide, i, QS) + j;
                for (int head = 0; head < 2 * HEADS; head++, x += HP) {
                    const Some a = some(x), b = some(x + kHalf);
                    some(x) = a * c - b * s;
                    some(x + kHalf) = b * c + a * s;
                }
            }
        }
    }

    // f(head, first row, length, q, k, v) of every head of every sequence, as offsets into a row.
    template <class F_>
    void each_head(F_ f) {
        for (int i = 0, row = 0; i < n_sequences; row += lengths[i++])
            for (int head = 0; head < HEADS; head++) f(head, row, lengths[i]);
    }

    void attend(Block& b, int from) {
        f16* keep = b.kept.get();
        each_head([&](int head, int row, int length) {
            const float* q = at(b.wide, row, QS) + head * HP;
            keep = attention.forward(length, from, q, q + AP, q + 2 * AP, at(b.o, row, AP) + head * HP, keep);
        });
    }

    void gelu(Block& b, int begin, int n) {
        for (int i = begin; i < begin + n; i++) {
            float *x = at(b.wide, i, FS), *slope = at(b.slope, i, FS);
            for (int j = 0; j < FP; j += kLanes) {
                f16 y, d;
                gelu_and_slope(load(x + j), y, d);
                store(x + j, y), store(slope + j, d);
            }
        }
    }

    // exp(z - max) of the row in VP / 16 vectors, 0 in the padding; returns the inverse of the sum.
    RESHARPEN_INLINE float softmax(const float* z, f16* e) {
        constexpr int N = VP / kLanes, kRest = V - (N - 1) * kLanes;
        f16 highest = broadcast(-INFINITY), sum = broadcast(0);
        for (int j = 0; j < N; j++) {
            e[j] = load(z + j * kLanes);
            highest = max(highest, j == N - 1 ? first_lanes(kRest, e[j], -INFINITY) : e[j]);
        }
        const f16 top = broadcast(horizontal_max(highest));
        for (int j = 0; j < N; j++) {
            e[j] = exp2_below(kLog2E * (e[j] - top));
            if (j == N - 1) e[j] = first_lanes(kRest, e[j], 0);
            sum += e[j];
        }
        return 1.0f / horizontal_sum(sum);
    }

    float total_variation(const float* z, const float* p_star) {
        f16 e[VP / kLanes];
        const float inverse = softmax(z, e), *p = reinterpret_cast<const float*>(e);
        float sum = 0;
        for (int t = 0; t < V; t++) sum += std::fabs(p[t] * inverse - p_star[t]);
        return 0.5f * sum;
    }

    // ---- backward -------------------------------------------------------------------------------------------------

    // d logits = (softmax - target) * scale, then U and the last norm: leaves the derivative by `last` in d_x.
    void loss_backward(const int32_t* targets, float scale) {
        constexpr int N = VP / kLanes;
        f16 row[DN];
        RowSum<DN> d_gain;
        chunks(0, n_tokens, [&](int begin, int n) {
            for (int i = begin; i < begin + n; i++) {
                float* z = at(logits, i, VP);
                f16 e[N];
                const float inverse = softmax(z, e);
                for (int j = 0; j < N; j++) store(z + j * kLanes, (scale * inverse) * e[j]);
                z[targets[i]] -= scale;
            }
            const Left x{at(unembedded(), begin, DP), DP, 1};
            const float* d = at(logits, begin, VP);
            gemm(DP, n, N, x.transposed(), row_major(d, VP), gradient + kU, VP, true);
            gemm(n, VP, DN, {d, VP, 1}, u.transposed(), at(d_x, begin, DP), DP);
            if (placement.unembedding_in)
                for (int i = begin; i < begin + n; i++) {
                    load_row(at(d_x, i, DP), row);
                    norm_row_backward<D, DN>(at(last, i, DP), theta + gain_unembedding, r_final[i], row, d_gain.next());
                    store_row(at(d_x, i, DP), row);
                }
        });
        if (placement.unembedding_in) d_gain.add_to(gradient + gain_unembedding);
    }

    static void add_row(float* to, const f16* d) {
        for (int i = 0; i < DN; i++) store(to + i * kLanes, load(to + i * kLanes) + d[i]);
    }

    void backward() {
        for (int l = LAYERS - 1; l >= 0; l--) {
            Block &a = blocks[2 * l], &m = blocks[2 * l + 1];
            float* w = gradient + l * kLayer;
            chunks(0, n_tokens, [&](int i, int n) {
                mlp_backward(m, l, w, i, n);
                const float* dy = block_output_backward(a, i, n);
                gemm(AP, n, DN, Left{at(a.o, i, AP), AP, 1}.transposed(), row_major(dy, DP), w + kWO, DP, true);
                gemm(n, DP, AP / kLanes, {dy, DP, 1}, w_o[l].transposed(), at(d_o, i, AP), AP);
            });
            attend_backward(a);
            chunks(0, n_tokens, [&](int i, int n) {
                rotate(d_wide, i, n, -1);
                if (l == 0) return sum_by_token(i, n);
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
        f16 d[DN];
        RowSum<DN> d_residual, d_out;
        if (placement.residual || placement.block_out)
            for (int i = begin; i < begin + n; i++) {
                load_row(at(d_x, i, DP), d);
                if (placement.residual) {
                    norm_row_backward<D, DN>(at(b.s, i, DP), theta + b.g_residual, b.r_residual[i], d, d_residual.next());
                    store_row(at(d_x, i, DP), d);
                }
                if (placement.block_out) {
                    norm_row_backward<D, DN>(at(b.y, i, DP), theta + b.g_out, b.r_out[i], d, d_out.next());
                    store_row(at(d_y, i, DP), d);
                }
            }
        if (placement.residual) d_residual.add_to(gradient + b.g_residual);
        if (placement.block_out) d_out.add_to(gradient + b.g_out);
        return at(placement.block_out ? d_y : d_x, begin, DP);
    }

    // Adds what comes through the block, d_h, to d_x.
    void block_input_backward(Block& b, int begin, int n) {
        f16 d[DN];
        RowSum<DN> d_in;
        for (int i = begin; i < begin + n; i++) {
            load_row(at(d_h, i, DP), d);
            if (placement.block_in) norm_row_backward<D, DN>(at(b.x, i, DP), theta + b.g_in, b.r_in[i], d, d_in.next());
            add_row(at(d_x, i, DP), d);
        }
        if (placement.block_in) d_in.add_to(gradient + b.g_in);
    }

    void attend_backward(Block& b) {
        const f16* kept = b.kept.get();
        each_head([&](int head, int row, int length) {
            const float* q = at(b.wide, row, QS) + head * HP;
            float* dq = at(d_wide, row, QS) + head * HP;
            kept = attention.backward(length, q, q + AP, q + 2 * AP, at(d_o, row, AP) + head * HP, kept, dq, dq + AP,
                                      dq + 2 * AP);
        });
    }

    void sum_by_token(int begin, int n) {
        for (int i = begin; i < begin + n; i++) {
            const float *from_x = at(d_x, i, DP), *from_qkv = at(d_wide, i, QS);
            add<DP>(by_token.few_x + tokens[i] * DP, from_x);
            add<QP>(by_token.few_qkv + tokens[i] * QP, from_qkv);
        }
        if ((by_token.n_few += n) >= kFewTokens) add_few();
    }

    template <int N>
    static RESHARPEN_INLINE void add(float* y, const float* x) {
        for (int j = 0; j < N; j += kLanes) store(y + j, load(y + j) + load(x + j));
    }

    void add_few() {
        add<V * DP>(by_token.d_x, by_token.few_x), add<V * QP>(by_token.d_qkv, by_token.few_qkv);
        std::memset(by_token.few_x, 0, sizeof by_token.few_x), std::memset(by_token.few_qkv, 0, sizeof by_token.few_qkv);
        by_token.n_few = 0;
    }

    // From the sums over the whole minibatch: q, k, v of the first layer, its norm, the embedding's norm, the embedding.
    void tokens_backward() {
        add_few();
        gemm(DP, V, QP / kLanes, Left{by_token.h, DP, 1}.transposed(), row_major(by_token.d_qkv, QP), gradient + kQKV, QP, true);
        gemm(V, QP, DN, {by_token.d_qkv, QP, 1}, qkv[0].transposed(), by_token.d_h, DP);
        f16 d[DN];
        RowSum<DN> d_in, d_embedding;
        for (int t = 0; t < V; t++) {
            load_row(by_token.d_h + t * DP, d);
            if (placement.block_in)
                norm_row_backward<D, DN>(by_token.x + t * DP, theta + blocks[0].g_in, by_token.r_h[t], d, d_in.next());
            add_row(by_token.d_x + t * DP, d);
            load_row(by_token.d_x + t * DP, d);
            if (placement.embedding_out)
                norm_row_backward<D, DN>(theta + t * DP, theta + gain_embedding, by_token.r_x[t], d, d_embedding.next());
            store_row(gradient + t * DP, d);
        }
        if (placement.block_in) d_in.add_to(gradient + blocks[0].g_in);
        if (placement.embedding_out) d_embedding.add_to(gradient + gain_embedding);
    }
};

}  // namespace resharpen

// The model of Maximum Retrieval, fast by algebra: one model at a time, a vector runs along its features.
//
// As printed (rows times matrices; [.] a norm that the placement may lack):
//
//     a_i = gelu(x_i W_1 + b_1)      h_i = [a_i W_2 + b_2]      e_i = h_i K . q      z = [sum_i w_i h_i V]
//     f = gelu(z W_3 + b_3)          logits = f W_4 + b_4       w = softmax(e)
//
// What is computed, exactly the same but for rounding:
//   - x_i is a priority and a one-hot class: x_i W_1 + b_1 is a row of a table plus the priority times a row.
//   - The query is one vector for all items, so K enters only as k = K q, and e_i = h_i . k.
//   - Attention is linear in the values: z = (sum_i w_i h_i) V, one product a sequence and not one an item.
//   - Without a norm on h_i also W_2 is applied once a sequence, sum_i w_i h_i = (sum_i w_i a_i) W_2 + b_2, and
//     e_i = a_i . (W_2 k); the part b_2 . k is the same for all items and falls out of the softmax.
//   - With it, h_i = r_i g * (a_i W_2 + b_2) and r_i is a number an item, so g waits for the sum as well.
//   - Only real items are computed.
//
// Sequences are taken a block at a time, forward and backward, so that a block's items stay in the cache.
#pragma once

#include <algorithm>

#include "adamw.h"
#include "gelu.h"
#include "gemm.h"
#include "lines.h"
#include "retrieval_batch.h"

namespace resharpen {

// How attention logits become weights; `models/remedies.py` has the formulas.
enum class Remedy : int32_t { softmax, adaptive_temperature, log_n };

inline float inverse_temperature(float entropy) {
    const float h = entropy, beta = (((-0.037f * h + 0.481f) * h - 2.3f) * h + 4.917f) * h - 1.791f;
    return h > 0.5f ? std::max(beta, 1.0f) : 1.0f;
}

// Rows of `ROW` floats, aligned.
template <int ROW>
class Rows {
  public:
    explicit Rows(int n = 0) { reserve(n); }
    void reserve(int n) {
        if (std::size_t(n) * (ROW / 16) > memory.size()) memory.resize(std::size_t(n) * (ROW / 16));
    }
    float* operator[](int i) { return reinterpret_cast<float*>(memory.data()) + std::size_t(i) * ROW; }
    float* data() { return (*this)[0]; }

  private:
    std::vector<f16> memory;
};

template <int H, int C>
class Retriever {
  public:
    static_assert(H % 16 == 0 && C <= 16, "a row of features is whole vectors, the logits are one");
    static constexpr int kV = H / 16, kRow = H + 16;
    // Parameters in memory, in floats: first those with weight decay, then biases and gains.
    static constexpr int kW1 = 0, kW2 = kW1 + (1 + C) * H, kK = kW2 + H * H, kValue = kK + H * H, kQ = kValue + H * H;
    static constexpr int kW3 = kQ + H, kW4 = kW3 + H * H, kDecayEnd = kW4 + H * C;
    static constexpr int kB1 = kDecayEnd, kB2 = kB1 + H, kB3 = kB2 + H, kB4 = kB3 + H, kGains = kB4 + 16;

    Retriever(bool norm_in, bool norm_out, Remedy remedy)
        : norm_in(norm_in), norm_out(norm_out), remedy(remedy), gain_in(kGains), gain_out(kGains + (norm_in ? H : 0)) {
        size = kGains + H * (int(norm_in) + int(norm_out));
    }

    int size;  // number of parameters, the padding of b_4 included

    // The gradient of the mean negative log likelihood of a minibatch.
    void gradient_of(const RetrievalBatch& batch, const float* theta, float epsilon, float* gradient) {
        prepare(theta, epsilon, true);
        d = gradient;
        first_block = true;
        clear(kW1, kW2), clear(kQ, kW3), clear(kW4, size);
        std::fill(d_key, d_key + H, 0.0f);
        for (int first = 0; first < batch.n(); first += kBlock) {
            const int end = std::min(first + kBlock, batch.n());
            attend_block(batch, first, end);
            head_forward(end - first);
            head_backward(end - first, &batch.label[first], 1.0f / float(batch.n()));
            attend_block_backward(batch, first, end);
            first_block = false;
        }
        key_backward();
        for (int c = 0; c < C; c++) add_row<kV>(d + kB1, 1, d + kW1 + (1 + c) * H);
    }

    // For n sequences: 1 or 0 for a right or wrong answer (NaN without finite logits), the entropy of attention and its
    // largest weight; each may be null.
    void evaluate(const float* theta, float epsilon, int n, const int* begin, const Item* items, const int* label,
                  float* correct, float* entropy, float* largest) {
        prepare(theta, epsilon, false);
        for (int first = 0; first < n; first += kBlock) {
            const int count = std::min(kBlock, n - first);
            for (int i = 0; i < count; i++) {
                const int length = begin[first + i + 1] - begin[first + i];
                const Attention seen = attend(items + begin[first + i], length, i);
                if (entropy) entropy[first + i] = seen.entropy;
                if (largest) largest[first + i] = seen.largest;
            }
            if (!correct) continue;
            if (!norm_in) second_layer(count);
            head_forward(count);
            for (int i = 0; i < count; i++) correct[first + i] = is_right(logits[i], label[first + i]);
        }
    }

  private:
    static constexpr int kBlock = 24;      // sequences at a time
    static constexpr int kItemBlock = 96;  // items at a time in evaluation

    bool norm_in, norm_out;
    Remedy remedy;
    int gain_in, gain_out;
    const float* theta;
    float epsilon;
    float* d;          // the gradient
    bool first_block;  // the large matrices of d hold nothing yet

    // Weights as the products want them: matrices and their transposes, the table of W_1 and b_1.
    Rows<kRow> W2{H}, W2T{H}, Value{H}, ValueT{H}, W3{H}, W3T{H}, W4T{C}, table{C};
    Rows<kRow> d_table{C + 1};  // the gradient of W_1 from one block, zero in between
    Rows<16> W4{H};
    // k = K q; what a_i (or h_i before its norm) meets in e_i; the gradient by that, in all and of one block.
    alignas(64) float key[H], score[H], d_key[H], d_block_key[H] = {};

    // Items of a block: a_i, the slope of its gelu, h_i before its norm, 1 / rms, softmax weights, logits, gradients.
    Rows<kRow> a, slope, h, d_a;
    std::vector<float> r, weight, e, d_weight;
    // Sequences of a block. pooled is sum w_i a_i, or sum w_i r_i (a_i W_2 + b_2) with a norm on h.
    Rows<kRow> pooled{kBlock}, mixed{kBlock}, z{kBlock}, normed{kBlock}, f{kBlock}, f_slope{kBlock}, d_row{kBlock},
        d_other{kBlock};
    Rows<16> logits{kBlock};
    float z_scale[kBlock];

    void clear(int begin, int end) { std::memset(d + begin, 0, sizeof(float) * (end - begin)); }

    // ---- weights --------------------------------------------------------------------------------------------------

    static void copy_matrix(const float* from, Rows<kRow>& to) {
        for (int i = 0; i < H; i++)
            for (int v = 0; v < kV; v++) store(to[i] + 16 * v, load(from + i * H + 16 * v));
    }

    static void copy_transposed(const float* from, Rows<kRow>& to) {
        for (int i = 0; i < H; i += 16)
            for (int j = 0; j < H; j += 16) transpose_block(from + i * H + j, H, to[j] + i, kRow);
    }

    void prepare(const float* parameters, float rms_epsilon, bool backward) {
        theta = parameters, epsilon = rms_epsilon;
        copy_matrix(theta + kW2, W2), copy_matrix(theta + kValue, Value), copy_matrix(theta + kW3, W3);
        for (int c = 0; c < C; c++)
            for (int i = 0; i < H; i++) table[c][i] = theta[kW1 + (1 + c) * H + i] + theta[kB1 + i];
        for (int i = 0; i < H; i++) {
            std::fill(W4[i], W4[i] + 16, 0.0f);
            std::copy(theta + kW4 + i * C, theta + kW4 + (i + 1) * C, W4[i]);
        }
        if (backward) {
            copy_transposed(theta + kW2, W2T);
            copy_transposed(theta + kValue, ValueT);
            copy_transposed(theta + kW3, W3T);
            for (int i = 0; i < H; i++)
                for (int c = 0; c < C; c++) W4T[c][i] = W4[i][c];
        }
        for (int i = 0; i < H; i++) key[i] = dot_row<kV>(theta + kK + i * H, theta + kQ);
        for (int i = 0; i < H; i++) score[i] = norm_in ? key[i] * theta[gain_in + i] : dot_row<kV>(W2[i], key);
    }

    // ---- items ----------------------------------------------------------------------------------------------------

    template <bool kSlope>
    void features(const Item* items, int n) {
        for (int i = 0; i < n; i++) {
            const f16 priority = broadcast(items[i].priority);
            const float *row = table[items[i].kind], *by_priority = theta + kW1;
            float *to = a[i], *to_slope = slope[kSlope ? i : 0];
            for (int v = 0; v < kV; v++) {
                f16 derivative;
                const f16 x = load(row + 16 * v) + priority * load(by_priority + 16 * v);
                store(to + 16 * v, gelu(x, derivative));
                if (kSlope) store(to_slope + 16 * v, derivative);
            }
        }
    }

    // h_i without its norm, and 1 / rms.
    void second_layer_of_items(int n) {
        fill_rows(h, n, theta + kB2);
        gemm(n, H, kV, {a.data(), kRow, 1}, row_major(W2.data(), kRow), h.data(), kRow, true);
        for (int i = 0; i < n; i++) r[i] = inverse_rms(h[i]);
    }

    float inverse_rms(const float* x) const {
        return 1.0f / std::sqrt(dot_row<kV>(x, x) * (1.0f / H) + epsilon);
    }

    static void fill_rows(Rows<kRow>& rows, int n, const float* with) {
        for (int i = 0; i < n; i++)
            for (int v = 0; v < kV; v++) store(rows[i] + 16 * v, load(with + 16 * v));
    }

    // e_i relative to nothing, before the remedy's factor.
    void scores(int n, float* out) {
        for (int i = 0; i < n; i++) out[i] = norm_in ? r[i] * dot_row<kV>(h[i], score) : dot_row<kV>(a[i], score);
    }

    float training_factor(int length) const { return remedy == Remedy::log_n ? std::log(float(length)) : 1.0f; }

    void reserve_items(int n) {
        a.reserve(n), slope.reserve(n);
        if (norm_in) h.reserve(n), d_a.reserve(n);
        if (n > int(r.size())) r.resize(n), weight.resize(n + 16), e.resize(n + 16), d_weight.resize(n);
    }

    // ---- attention in training --------------------------------------------------------------------------------------

    void attend_block(const RetrievalBatch& batch, int first, int end) {
        const int from = batch.begin[first], n = batch.begin[end] - from;
        reserve_items(n);
        features<true>(&batch.items[from], n);
        if (norm_in) second_layer_of_items(n);
        scores(n, e.data());
        for (int s = first; s < end; s++) {
            const int begin = batch.begin[s] - from, length = batch.begin[s + 1] - batch.begin[s];
            softmax(&e[begin], length, training_factor(length), &weight[begin]);
            f16 sum[kV];
            for (f16& x : sum) x = broadcast(0);
            for (int i = begin; i < begin + length; i++) {
                const f16 w = broadcast(norm_in ? weight[i] * r[i] : weight[i]);
                const float* row = norm_in ? h[i] : a[i];
                RESHARPEN_UNROLL
                for (int v = 0; v < kV; v++) sum[v] += w * load(row + 16 * v);
            }
            for (int v = 0; v < kV; v++) store(pooled[s - first] + 16 * v, sum[v]);
        }
        norm_in ? gain_after_pooling(end - first) : second_layer(end - first);
    }

    // weight = softmax(factor e); both have room for whole vectors, and what is beyond n is not changed.
    static void softmax(const float* e, int n, float factor, float* weight) {
        constexpr float kLowest = -std::numeric_limits<float>::infinity();
        f16 highest = broadcast(kLowest), sum = broadcast(0);
        for (int i = 0; i < n; i += 16)
            highest = max(highest, first_lanes(std::min(16, n - i), factor * load(e + i), kLowest));
        highest = broadcast(horizontal_max(highest));
        auto u = [&](int i) {
            const f16 x = exp_nonpositive(factor * load(e + i) - highest);
            return first_lanes(std::min(16, n - i), x, 0);
        };
        for (int i = 0; i < n; i += 16) sum += u(i);
        const f16 scale = broadcast(1.0f / horizontal_sum(sum));
        for (int i = 0; i < n; i += 16) store_first(weight + i, std::min(16, n - i), u(i) * scale);
    }

    // mixed = sum w_i h_i, from the pooled a_i or from the pooled h_i without their gain.
    void second_layer(int n) {
        fill_rows(mixed, n, theta + kB2);
        gemm(n, H, kV, {pooled.data(), kRow, 1}, row_major(W2.data(), kRow), mixed.data(), kRow, true);
    }
    void gain_after_pooling(int n) {
        for (int s = 0; s < n; s++)
            for (int v = 0; v < kV; v++)
                store(mixed[s] + 16 * v, load(pooled[s] + 16 * v) * load(theta + gain_in + 16 * v));
    }

    // d_other holds the gradient by `mixed`.
    void attend_block_backward(const RetrievalBatch& batch, int first, int end) {
        const int from = batch.begin[first], n = batch.begin[end] - from, n_sequences = end - first;
        if (norm_in) {
            for (int s = 0; s < n_sequences; s++)
                for (int v = 0; v < kV; v++) {
                    const f16 dy = load(d_other[s] + 16 * v);
                    float* d_gain = d + gain_in + 16 * v;
                    store(d_gain, load(d_gain) + dy * load(pooled[s] + 16 * v));
                    store(d_row[s] + 16 * v, dy * load(theta + gain_in + 16 * v));
                }
        } else {
            weight_gradient(n_sequences, pooled, d_other, d + kW2, d + kB2);
            gemm(n_sequences, H, kV, {d_other.data(), kRow, 1}, row_major(W2T.data(), kRow), d_row.data(), kRow);
        }
        for (int s = first; s < end; s++) {
            const int begin = batch.begin[s] - from, length = batch.begin[s + 1] - batch.begin[s];
            logits_backward(begin, length, d_row[s - first]);
            norm_in ? items_backward_to_h(begin, length, d_row[s - first])
                    : items_backward_to_table(&batch.items[from], begin, length, d_row[s - first]);
        }
        if (norm_in) {
            weight_gradient(n, a, h, d + kW2, d + kB2);
            gemm(n, H, kV, {h.data(), kRow, 1}, row_major(W2T.data(), kRow), d_a.data(), kRow);
            for (int i = 0; i < n; i++)
                add_to_table(batch.items[from + i], i, [&](int v) { return load(d_a[i] + 16 * v); });
        }
        for (int c = 0; c <= C; c++) move_row(d_table[c], d + kW1 + c * H);
        move_row(d_block_key, d_key);
    }

    // e becomes its own gradient, d_weight the gradient by the weights: de_i = factor w_i (dw_i - sum_j w_j dw_j).
    // Where the norm is, d_weight keeps w_i dw_i + de_i e_i, which the norm's backward needs.
    void logits_backward(int begin, int length, const float* d_pooled) {
        float mean = 0;
        for (int i = begin; i < begin + length; i++) {
            d_weight[i] = norm_in ? r[i] * dot_row<kV>(h[i], d_pooled) : dot_row<kV>(a[i], d_pooled);
            mean += weight[i] * d_weight[i];
        }
        const float factor = training_factor(length);
        for (int i = begin; i < begin + length; i++) {
            const float d_e = factor * weight[i] * (d_weight[i] - mean);
            if (norm_in) d_weight[i] = weight[i] * d_weight[i] + d_e * e[i];
            e[i] = d_e;
        }
    }

    // da_i = w_i d_pooled + de_i score, times the slope, to the table; d_key collects sum de_i a_i.
    void items_backward_to_table(const Item* items, int begin, int length, const float* d_pooled) {
        for (int i = begin; i < begin + length; i++) {
            const f16 w = broadcast(weight[i]), d_e = broadcast(e[i]);
            add_to_table(items[i], i,
                         [&](int v) { return w * load(d_pooled + 16 * v) + d_e * load(score + 16 * v); });
            add_row<kV>(d_block_key, e[i], a[i]);
        }
    }

    // h_i becomes its own gradient: r_i (w_i d_pooled + de_i score) - r_i^2 / H (w_i dw_i + de_i e_i) h_i; d_key
    // collects sum de_i r_i h_i.
    void items_backward_to_h(int begin, int length, const float* d_pooled) {
        for (int i = begin; i < begin + length; i++) {
            const f16 w = broadcast(r[i] * weight[i]), d_e = broadcast(r[i] * e[i]);
            const f16 along = broadcast(-(1.0f / H) * r[i] * r[i] * d_weight[i]);
            float* row = h[i];
            RESHARPEN_UNROLL
            for (int v = 0; v < kV; v++) {
                const f16 x = load(row + 16 * v);
                store(d_block_key + 16 * v, load(d_block_key + 16 * v) + d_e * x);
                store(row + 16 * v, w * load(d_pooled + 16 * v) + d_e * load(score + 16 * v) + along * x);
            }
        }
    }

    // What one block added up joins the sum over blocks: short sums round less.
    static void move_row(float* from, float* to) {
        add_row<kV>(to, 1, from);
        std::memset(from, 0, sizeof(float) * H);
    }

    template <class Gradient>
    RESHARPEN_INLINE void add_to_table(Item item, int i, Gradient d_a) {
        float *of_class = d_table[1 + item.kind], *of_priority = d_table[0];
        const f16 priority = broadcast(item.priority);
        const float* derivative = slope[i];
        RESHARPEN_UNROLL
        for (int v = 0; v < kV; v++) {
            const f16 d_u = d_a(v) * load(derivative + 16 * v);
            store(of_class + 16 * v, load(of_class + 16 * v) + d_u);
            store(of_priority + 16 * v, load(of_priority + 16 * v) + priority * d_u);
        }
    }

    // From d_key, the gradient by W_2 k (or by r_i-weighted h_i), to K, q, and W_2 or the gain.
    void key_backward() {
        alignas(64) float d_k[H];
        if (norm_in) {
            for (int i = 0; i < H; i++) {
                d_k[i] = theta[gain_in + i] * d_key[i];
                d[gain_in + i] += key[i] * d_key[i];
            }
        } else {
            std::fill(d_k, d_k + H, 0.0f);
            for (int i = 0; i < H; i++) {
                add_row<kV>(d_k, d_key[i], W2[i]);
                add_row<kV>(d + kW2 + i * H, d_key[i], key);
            }
        }
        for (int i = 0; i < H; i++) {
            const f16 by_row = broadcast(d_k[i]);
            for (int v = 0; v < H; v += 16) store(d + kK + i * H + v, by_row * load(theta + kQ + v));
            add_row<kV>(d + kQ, d_k[i], theta + kK + i * H);
        }
    }

    // ---- from the pooled items to the logits -----------------------------------------------------------------------

    void head_forward(int n) {
        gemm(n, H, kV, {mixed.data(), kRow, 1}, row_major(Value.data(), kRow), z.data(), kRow);
        if (norm_out)
            for (int s = 0; s < n; s++) {
                z_scale[s] = inverse_rms(z[s]);
                const f16 scale = broadcast(z_scale[s]);
                for (int v = 0; v < kV; v++)
                    store(normed[s] + 16 * v, load(z[s] + 16 * v) * scale * load(theta + gain_out + 16 * v));
            }
        fill_rows(f, n, theta + kB3);
        gemm(n, H, kV, {after_norm().data(), kRow, 1}, row_major(W3.data(), kRow), f.data(), kRow, true);
        for (int s = 0; s < n; s++)
            for (int v = 0; v < kV; v++) {
                f16 derivative;
                store(f[s] + 16 * v, gelu(load(f[s] + 16 * v), derivative));
                store(f_slope[s] + 16 * v, derivative);
            }
        for (int s = 0; s < n; s++) store(logits[s], load(theta + kB4));
        gemm(n, H, 1, {f.data(), kRow, 1}, row_major(W4.data(), 16), logits.data(), 16, true);
    }

    static float is_right(const float* row, int label) {
        const bool finite = std::all_of(row, row + C, [](float x) { return std::isfinite(x); });
        return finite ? float(std::max_element(row, row + C) - row == label) : std::numeric_limits<float>::quiet_NaN();
    }

    Rows<kRow>& after_norm() { return norm_out ? normed : z; }

    // Leaves the gradient by `mixed` in d_other.
    void head_backward(int n, const int* label, float scale) {
        for (int s = 0; s < n; s++) {
            float* row = logits[s];
            softmax(row, C, 1, row);
            row[label[s]] -= 1;
            for (int c = 0; c < 16; c++) row[c] = c < C ? scale * row[c] : 0;
        }
        add_rows<1>(d + kB4, n, logits.data(), 16);
        alignas(64) float d_W4[H * 16];
        gemm(H, n, 1, {f.data(), 1, kRow}, row_major(logits.data(), 16), d_W4, 16);
        for (int i = 0; i < H; i++)
            for (int c = 0; c < C; c++) d[kW4 + i * C + c] += d_W4[i * 16 + c];
        gemm(n, C, kV, {logits.data(), 16, 1}, row_major(W4T.data(), kRow), d_row.data(), kRow);
        for (int s = 0; s < n; s++)
            for (int v = 0; v < kV; v++)
                store(d_row[s] + 16 * v, load(d_row[s] + 16 * v) * load(f_slope[s] + 16 * v));
        weight_gradient(n, after_norm(), d_row, d + kW3, d + kB3);
        gemm(n, H, kV, {d_row.data(), kRow, 1}, row_major(W3T.data(), kRow), d_other.data(), kRow);
        if (norm_out)
            for (int s = 0; s < n; s++) norm_backward(s);
        weight_gradient(n, mixed, d_other, d + kValue, nullptr);
        std::swap(d_row, d_other);
        gemm(n, H, kV, {d_row.data(), kRow, 1}, row_major(ValueT.data(), kRow), d_other.data(), kRow);
    }

    //     dgain_i += x_i r dy_i          dx_i = r gain_i dy_i - r^3 x_i / H * sum_k x_k gain_k dy_k
    void norm_backward(int s) {
        const float *x = z[s], *gain = theta + gain_out, r = z_scale[s];
        float *dy = d_other[s], *d_gain = d + gain_out;
        f16 sum = broadcast(0);
        for (int v = 0; v < H; v += 16) sum += load(x + v) * load(gain + v) * load(dy + v);
        const f16 along = broadcast(-(1.0f / H) * r * r * r * horizontal_sum(sum)), scale = broadcast(r);
        for (int v = 0; v < H; v += 16) {
            const f16 xv = load(x + v), d_v = load(dy + v);
            store(d_gain + v, load(d_gain + v) + xv * scale * d_v);
            store(dy + v, scale * load(gain + v) * d_v + along * xv);
        }
    }

    // dW += X^T dY (or = from the first block) and, unless null, db += the sum of the rows of dY.
    void weight_gradient(int n, Rows<kRow>& X, Rows<kRow>& dY, float* d_W, float* d_b) {
        gemm(H, n, kV, {X.data(), 1, kRow}, row_major(dY.data(), kRow), d_W, H, !first_block);
        if (d_b) add_rows<kV>(d_b, n, dY.data(), kRow);
    }

    // ---- attention in evaluation -----------------------------------------------------------------------------------

    struct Attention {
        float entropy, largest;
    };

    // Leaves sum w_i h_i (or what second_layer makes it from) in row s.
    Attention attend(const Item* items, int n, int s) {
        Attention seen = attend_with(items, n, s, training_factor(n));
        if (remedy == Remedy::adaptive_temperature)
            if (const float beta = inverse_temperature(seen.entropy); beta != 1) seen = attend_with(items, n, s, beta);
        return seen;
    }

    // A block of items after the other, in bounded memory: sums relative to the highest logit so far are scaled down
    // when a higher one comes. Over the weights u_i = exp(e_i - highest), Z = sum u_i and E = sum u_i (e_i - highest)
    // give the entropy log Z - E / Z.
    Attention attend_with(const Item* items, int n, int s, float factor) {
        reserve_items(kItemBlock);
        alignas(64) float u[kItemBlock + 16];
        f16 sum[kV];
        for (f16& x : sum) x = broadcast(0);
        float highest = -std::numeric_limits<float>::infinity();
        double Z = 0, E = 0;
        for (int from = 0; from < n; from += kItemBlock) {
            const int count = std::min(kItemBlock, n - from);
            features<false>(items + from, count);
            if (norm_in) second_layer_of_items(count);
            scores(count, u);
            float now = highest;
            for (int i = 0; i < count; i++) u[i] *= factor, now = std::max(now, u[i]);
            if (from > 0 && now > highest) {
                const double shift = double(highest) - now, shrink = std::exp(shift);
                E = shrink * (E + Z * shift), Z *= shrink;
                for (f16& x : sum) x = float(shrink) * x;
            }
            highest = now;
            for (int i = 0; i < count; i += 16) {
                const f16 below = load(u + i) - broadcast(highest), x = exp_nonpositive(below);
                store(u + i, x);
                alignas(64) float by[16];
                store(by, below);
                for (int j = 0; j < std::min(16, count - i); j++) Z += u[i + j], E += u[i + j] * by[j];
            }
            for (int i = 0; i < count; i++) {
                const f16 w = broadcast(norm_in ? u[i] * r[i] : u[i]);
                const float* row = norm_in ? h[i] : a[i];
                for (int v = 0; v < kV; v++) sum[v] += w * load(row + 16 * v);
            }
        }
        const f16 scale = broadcast(float(1 / Z));
        for (int v = 0; v < kV; v++) {
            const f16 mean = sum[v] * scale;
            store((norm_in ? mixed[s] : pooled[s]) + 16 * v, norm_in ? mean * load(theta + gain_in + 16 * v) : mean);
        }
        return {float(std::log(Z) - E / Z), float(1 / Z)};
    }
};

}  // namespace resharpen

// The retriever: what is done to items, and attention over them; retriever.h has the formulas.
#pragma once

#include "retriever_weights.h"

namespace resharpen {

class RetrieverItems : public RetrieverWeights {
  protected:
    using RetrieverWeights::RetrieverWeights;

    // Items of a block: a_i, the slope of its gelu, W_2 h_i, 1 / rms of h_i, softmax weights, logits, gradients.
    Rows<kRow> a, slope, h_back;
    std::vector<float> r, weight, e, d_weight;

    template <bool kSlope>
    void features(const Item* items, int n) {
        for (int i = 0; i < n; i++) {
            const f32x16 priority = broadcast(items[i].priority);
            const float *row = table[items[i].kind], *by_priority = theta + kW1;
            float *to = a[i], *to_slope = slope[kSlope ? i : 0];
            for (int v = 0; v < kV; v++) {
                f32x16 derivative;
                const f32x16 x = load(row + 16 * v) + priority * load(by_priority + 16 * v);
                store(to + 16 * v, gelu(x, derivative));
                if (kSlope) store(to_slope + 16 * v, derivative);
            }
        }
    }

    // W_2 h_i = W_2 W_2^T a_i + W_2 b_2, where h_i is what the norm is of, and 1 / rms from
    // |h_i|^2 = a_i . W_2 h_i + a_i . W_2 b_2 + |b_2|^2; below zero is rounding error.
    void scales_of_items(int n) {
        fill_rows(h_back, n, gram_bias);
        gemm(n, H, kV, {a.data(), kRow, 1}, row_major(gram.data(), kRow), h_back.data(), kRow, true);
        for (int i = 0; i < n; i++) {
            const float squared = dot_row<kV>(a[i], h_back[i]) + dot_row<kV>(a[i], gram_bias) + b2_squared;
            r[i] = 1.0f / std::sqrt((squared < 0 ? 0 : squared) * (1.0f / H) + epsilon);
        }
    }

    static void fill_rows(Rows<kRow>& rows, int n, const float* with) {
        for (int i = 0; i < n; i++)
            for (int v = 0; v < kV; v++) store(rows[i] + 16 * v, load(with + 16 * v));
    }

    // e_i relative to nothing, before the remedy's factor.
    void scores(int n, float* out) {
        for (int i = 0; i < n; i++) {
            const float along = dot_row<kV>(a[i], score);
            out[i] = norm_in ? r[i] * (along + score_bias) : along;
        }
    }

    // What multiplies the logits of so many items, and its derivative by s.
    float training_factor(int length) const {
        return remedy == Remedy::ssmax   ? theta[ssmax_at] * by_ssmax(length)
               : remedy == Remedy::log_n ? by_ssmax(length)
                                         : 1.0f;
    }
    static float by_ssmax(int length) { return std::log(float(length)); }

    void reserve_items(int n) {
        a.reserve(n), slope.reserve(n);
        if (norm_in) h_back.reserve(n);
        if (n > int(r.size())) r.resize(n), weight.resize(n + 16), e.resize(n + 16), d_weight.resize(n);
    }

    // weight = softmax(factor e); both have room for whole vectors, and what is beyond n is not changed.
    static Normalizer softmax(const float* e, int n, float factor, float* weight) {
        constexpr float kLowest = -std::numeric_limits<float>::infinity();
        f32x16 highest = broadcast(kLowest), sum = broadcast(0);
        for (int i = 0; i < n; i += 16)
            highest = max(highest, first_lanes(std::min(16, n - i), factor * load(e + i), kLowest));
        const float max_e = horizontal_max(highest);
        highest = broadcast(max_e);
        auto u = [&](int i) {
            const f32x16 x = exp_nonpositive(factor * load(e + i) - highest);
            return first_lanes(std::min(16, n - i), x, 0);
        };
        for (int i = 0; i < n; i += 16) sum += u(i);
        const Normalizer by{max_e, horizontal_sum(sum)};
        const f32x16 scale = broadcast(1.0f / by.sum);
        for (int i = 0; i < n; i += 16) store_first(weight + i, std::min(16, n - i), u(i) * scale);
        return by;
    }
};

}  // namespace resharpen

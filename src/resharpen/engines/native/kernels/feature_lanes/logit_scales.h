// The factors of attention logits that asentmax learns: 1 + b (log n)^g of every query and head, over n keys. From x,
// the row that the query is made from, b = softplus(x . w_b + c_b) and g = 2 tanh(x . w_g + c_g).
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "transformer_layout.h"

namespace {

// Of one layer. A row of `inputs` has x . w_b + c_b of every head, then x . w_g + c_g, and padding; the backward
// replaces it by the derivative. Factors are [heads, rows], so that those of neighboring queries are side by side.
struct LogitScales {
    std::vector<f32x16> inputs;
    std::vector<float> factor, d_factor, log_n;
    double d_c[2 * HEADS];
    std::size_t rows = 0;

    void allocate(std::size_t n_rows, int longest) {
        rows = n_rows;
        inputs.resize(rows * SP / kLanes), factor.resize(HEADS * rows), d_factor.resize(HEADS * rows);
        // a single key has weight 1 at any scale: n = 1 counts as 2
        for (int n = 1; n <= longest; n++) log_n.push_back(float(std::log(double(std::max(n, 2)))));
    }

    float* row(std::size_t i) { return reinterpret_cast<float*>(inputs.data()) + i * SP; }
    const float* of(int head, std::size_t from) const { return &factor[head * rows + from]; }
    float* gradient_of(int head, std::size_t from) { return rows == 0 ? nullptr : &d_factor[head * rows + from]; }

    // Of a row with the products with w; adds c. Its token has so many others before it.
    void forward(std::size_t i, int place, const float* c) {
        float* x = row(i);
        for (int j = 0; j < 2 * HEADS; j++) x[j] += c[j];
        for (int head = 0; head < HEADS; head++)
            factor[head * rows + i] = 1 + softplus(x[head]) * power(x[HEADS + head], place);
    }

    // Replaces the row by the derivatives, and adds them to d_c.
    void backward(std::size_t i, int place) {
        float* x = row(i);
        for (int head = 0; head < HEADS; head++) {
            const float d = d_factor[head * rows + i], b = x[head], t = std::tanh(x[HEADS + head]);
            const float d_b = d * power(x[HEADS + head], place);
            x[head] = d_b / (1 + std::exp(-b));
            x[HEADS + head] = d_b * softplus(b) * std::log(log_n[place]) * 2 * (1 - t * t);
        }
        for (int j = 0; j < 2 * HEADS; j++) d_c[j] += x[j];
    }

  private:
    static float softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))); }
    float power(float x, int place) const { return std::pow(log_n[place], 2 * std::tanh(x)); }
};

}  // namespace

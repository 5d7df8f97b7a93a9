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
//   - With it, h_i = r_i g * (a_i W_2 + b_2), and r_i is a number an item: W_2, b_2 and g wait for the sums as well.
//     Of an item only |a_i W_2 + b_2|^2 is needed, a quadratic form in a_i. Its matrix W_2 W_2^T is made once a step,
//     a_i times it serves the form and its derivative, and the gradient of the matrix is symmetric: in all half of what
//     forward and backward through W_2 would take.
//   - Only real items are computed.
//
// Sequences are taken a block at a time, forward and backward, so that a block's items stay in the cache.
#pragma once

#include "retriever_training.h"

namespace resharpen {

inline float inverse_temperature(float entropy) {
    const float h = entropy, beta = (((-0.037f * h + 0.481f) * h - 2.3f) * h + 4.917f) * h - 1.791f;
    return h > 0.5f ? std::max(beta, 1.0f) : 1.0f;
}

class Retriever : public RetrieverTraining {
  public:
    using RetrieverTraining::RetrieverTraining;

    // The gradient of the mean negative log likelihood of a minibatch, which it returns.
    double gradient_of(const RetrievalBatch& batch, const float* theta, float epsilon, float* gradient) {
        prepare(theta, epsilon, true);
        d = gradient;
        first_block = true;
        double loss = 0;
        clear(kW1, kW2), clear(kQ, kW3), clear(kW4, size);
        std::fill(d_score, d_score + H, 0.0f);
        std::fill(d_gram_bias, d_gram_bias + H, 0.0f);
        d_score_bias = d_b2_squared = 0, d_ssmax = 0;
        for (int first = 0; first < batch.n(); first += kBlock) {
            const int end = std::min(first + kBlock, batch.n());
            attend_block(batch, first, end);
            head_forward(end - first);
            loss += head_backward(end - first, &batch.label[first], 1.0f / float(batch.n()));
            attend_block_backward(batch, first, end);
            first_block = false;
        }
        if (norm_in) squares_backward();
        score_backward();
        if (remedy == Remedy::ssmax) d[ssmax_at] = float(d_ssmax);
        for (int c = 0; c < C; c++) add_row<kV>(d + kB1, 1, d + kW1 + (1 + c) * H);
        return loss / batch.n();
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
            second_layer(count);
            head_forward(count);
            for (int i = 0; i < count; i++) correct[first + i] = is_right(logits[i], label[first + i]);
        }
    }

  private:
    static constexpr int kItemBlock = 96;  // items at a time in evaluation

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
        f32x16 sum[kV];
        for (f32x16& x : sum) x = broadcast(0);
        float highest = -std::numeric_limits<float>::infinity();
        double Z = 0, E = 0, one = 0;
        for (int from = 0; from < n; from += kItemBlock) {
            const int count = std::min(kItemBlock, n - from);
            features<false>(items + from, count);
            if (norm_in) scales_of_items(count);
            scores(count, u);
            float now = highest;
            for (int i = 0; i < count; i++) u[i] *= factor, now = std::max(now, u[i]);
            if (from > 0 && now > highest) {
                const double shift = double(highest) - now, shrink = std::exp(shift);
                E = shrink * (E + Z * shift), Z *= shrink, one *= shrink;
                for (f32x16& x : sum) x = float(shrink) * x;
            }
            highest = now;
            for (int i = 0; i < count; i += 16) {
                const f32x16 below = load(u + i) - broadcast(highest), x = exp_nonpositive(below);
                store(u + i, x);
                alignas(64) float by[16];
                store(by, below);
                for (int j = 0; j < std::min(16, count - i); j++) Z += u[i + j], E += u[i + j] * by[j];
            }
            for (int i = 0; i < count; i++) {
                const float w = norm_in ? u[i] * r[i] : u[i];
                one += w;
                for (int v = 0; v < kV; v++) sum[v] += w * load(a[i] + 16 * v);
            }
        }
        for (int v = 0; v < kV; v++) store(pooled[s] + 16 * v, float(1 / Z) * sum[v]);
        pooled_one[s] = norm_in ? float(one / Z) : 1;
        return {float(std::log(Z) - E / Z), float(1 / Z)};
    }
};

}  // namespace resharpen

// The model of Maximum Retrieval, fast by algebra: one model at a time, a vector runs along its features.
//
// As printed (rows times matrices; [.] a norm that the placement may lack):
//
//     a_i = gelu(x_i W_1 + b_1)      h_i = [a_i W_2 + b_2]      e_i = h_i K . q      z = [sum_i w_i h_i V]
//     f = gelu(z W_3 + b_3)          logits = f W_4 + b_4       w = softmax(e)
//
// What is computed, the same but for rounding:
//   - x_i is a priority and a one-hot class, so a_i and h_i before its norm lie on C curves, one a class, with the
//     priority along them. A curve is known from a few of its points, the nodes, to less than a rounding error
//     (retriever_items.h): item i is sum_k l_ik node_k, its shares l_i of a window of neighboring nodes. Both layers
//     and V are computed at 50 to 130 nodes mostly, where a minibatch has 1,300 items and validation a million.
//   - The query is one vector for all items, so K enters only as k = K q, and e_i = h_i . k = sum_k l_ik (h_k . k).
//   - |h_i|^2 for the norm is a quadratic form in the shares, of the products of nodes.
//   - Attention is linear in the values: z is a sum over nodes, by how much of each is in a sequence.
//   - Features whose weight of the priority is much larger than that of the others are nodes of their own. Where there
//     are too many of them, items are nodes.
//   - Only real items are computed.
//
// Sequences are taken a block at a time, forward and backward, so that what is computed of them stays in the cache.
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
        choose_nodes(kMostPieces);
        d = gradient;
        first_block = true;
        double loss = 0;
        clear(kW1, kK), clear(kValue, kW3), clear(kW4, layout.size);
        std::fill(d_key, d_key + H, 0.0f);
        d_ssmax = 0;
        if (curved()) nodes_on_curves(), nodes_forward<true>();
        for (int first = 0; first < batch.n(); first += kBlock) {
            const int end = std::min(first + kBlock, batch.n());
            if (!curved()) {
                nodes.assign(&batch.items[batch.begin[first]], batch.items.data() + batch.begin[end]);
                nodes_forward<true>();
            }
            attend_block(batch, first, end);
            head_forward(end - first);
            loss += head_backward(end - first, &batch.label[first], 1.0f / float(batch.n()));
            attend_block_backward(batch, first, end);
            if (!curved()) nodes_backward();
            first_block = false;
        }
        if (curved()) nodes_backward();
        key_backward();
        if (attention_kind == AttentionKind::ssmax) d[ssmax_at] = float(d_ssmax);
        for (int c = 0; c < C; c++) add_row<kV>(d + kB1, 1, d + kW1 + (1 + c) * H);
        return loss / batch.n();
    }

    // For n sequences: 1 or 0 for a right or wrong answer (NaN without finite logits), the entropy of attention and its
    // largest weight; each may be null.
    void evaluate(const float* theta, float epsilon, int n, const int* begin, const Item* items, const int* label,
                  float* correct, float* entropy, float* largest) {
        prepare(theta, epsilon, false);
        choose_nodes(kMostPiecesRead);
        if (curved()) nodes_on_curves(), nodes_forward<false>();
        for (int first = 0; first < n; first += kBlock) {
            const int count = std::min(kBlock, n - first);
            for (int i = 0; i < count; i++) {
                const int length = begin[first + i + 1] - begin[first + i];
                const Attention seen = attend(items + begin[first + i], length, i);
                if (entropy) entropy[first + i] = seen.entropy;
                if (largest) largest[first + i] = seen.largest;
            }
            if (!correct) continue;
            if (curved()) sum_nodes(count);
            head_forward(count);
            for (int i = 0; i < count; i++) correct[first + i] = is_right(logits[i], label[first + i]);
        }
    }

  private:
    static constexpr int kItemBlock = 96;  // items at a time in evaluation
    // With more pieces the curves have about as many nodes as a minibatch has items, or more than pay for themselves.
    static constexpr int kMostPieces = 4, kMostPiecesRead = 32;

    struct Attention {
        float entropy, largest;
    };

    // Leaves row s of z, or what sum_nodes makes it from.
    Attention attend(const Item* items, int n, int s) {
        Attention seen = attend_with(items, n, s, training_factor(n));
        if (attention_kind == AttentionKind::adaptive_temperature)
            if (const float beta = inverse_temperature(seen.entropy); beta != 1) seen = attend_with(items, n, s, beta);
        return seen;
    }

    // A block of items after the other, in bounded memory: sums relative to the highest logit so far are scaled down
    // when a higher one comes. Over the weights u_i = exp(e_i - highest), Z = sum u_i and E = sum u_i (e_i - highest)
    // give the entropy log Z - E / Z.
    Attention attend_with(const Item* items, int n, int s, float factor) {
        reserve_items(kItemBlock);
        mass.shape(kBlock, curved() ? room() : kItemBlock + 16);
        alignas(64) float u[kItemBlock + 16];
        float* of_sequence = mass[s];
        if (curved())
            std::memset(of_sequence, 0, sizeof(float) * room());
        else
            std::memset(z[s], 0, sizeof(float) * H);
        float highest = -std::numeric_limits<float>::infinity();
        double Z = 0, E = 0;
        for (int from = 0; from < n; from += kItemBlock) {
            const int count = std::min(kItemBlock, n - from);
            if (!curved()) nodes.assign(items + from, items + from + count), nodes_forward<false>();
            place(items + from, count);
            scores(count, u);
            float now = highest;
            for (int i = 0; i < count; i++) u[i] *= factor, now = std::max(now, u[i]);
            if (from > 0 && now > highest) {
                const double shift = double(highest) - now, shrink = std::exp(shift);
                E = shrink * (E + Z * shift), Z *= shrink;
                scale_sum(s, float(shrink));
            }
            highest = now;
            for (int i = 0; i < count; i += 16) {
                const f32x16 below = load(u + i) - broadcast(highest), x = exp_nonpositive(below);
                store(u + i, x);
                alignas(64) float by[16];
                store(by, below);
                for (int j = 0; j < std::min(16, count - i); j++) Z += u[i + j], E += u[i + j] * by[j];
            }
            if (!curved()) std::memset(of_sequence, 0, sizeof(float) * room());
            for (int i = 0; i < count; i++) add_mass(of_sequence, i, u[i]);
            if (!curved()) gemm(1, n_nodes, kV, {of_sequence, 0, 1}, row_major(value.data(), kRow), z[s], kRow, true);
        }
        scale_sum(s, float(1 / Z));
        return {float(std::log(Z) - E / Z), float(1 / Z)};
    }

    void scale_sum(int s, float by) {
        float* sum = curved() ? mass[s] : z[s];
        for (int i = 0; i < (curved() ? room() : H); i += 16) store(sum + i, by * load(sum + i));
    }
};

}  // namespace resharpen

// The retriever on Maximum Retrieval: one model at a time, a vector is sixteen neighboring features.
//
// The model (rows times matrices; [.] is a norm if the placement has it):
//
//     a_i = gelu(x_i W_1 + b_1)      h_i = [a_i W_2 + b_2]      e_i = h_i K . q      z = [sum_i w_i h_i V]
//     f = gelu(z W_3 + b_3)          logits = f W_4 + b_4       w = softmax(e)
//
// The computation, which is the same up to rounding:
//   - x_i is a priority and a one-hot class, so a_i and h_i before its norm lie on C curves, one per class,
//   parametrized
//     by the priority. A curve is interpolated from a few of its points, the nodes, with less than a rounding error
//     (retriever_nodes.h): item i is sum_k l_ik node_k, with its shares l_i of a window of neighboring nodes. Both
//     layers and V are computed at 50 to 130 nodes in most cases; a minibatch has 1,300 items and validation a million.
//   - The query is one vector for all items, so K enters only as k = K q, and e_i = h_i . k = sum_k l_ik (h_k . k).
//   - |h_i|^2 for the norm is a quadratic form in the shares, of the products of nodes.
//   - Attention is linear in the values: z is a sum over nodes, weighted by their shares in a sequence.
//   - Features with a much larger weight of the priority than the others are nodes of their own. If there are too many
//     of them, the items are the nodes.
//   - Padding is not computed.
//
// Blocks of sequences are processed forward and backward, so that their activations stay in the cache.
#pragma once

#include "retriever_head.h"

namespace {

// The working memory of the kernel.
struct Retriever {
    const Setup setup;
    Weights weights;
    Gradient d;
    Nodes nodes;
    ItemBlock block;
    Head head;

    explicit Retriever(Variant variant) : setup(variant) {}
};

// ---- training ------------------------------------------------------------------------------------------------------

inline void attend_block(Retriever& m, const RetrievalBatch& batch, int first, int end) {
    const int from = batch.begin[first], n = batch.begin[end] - from;
    m.block.reserve(n);
    m.block.mass.shape(kBlock, m.nodes.room());
    place(&batch.items[from], n, m.nodes, m.block);
    scores(m.setup, m.weights, m.nodes, n, m.block, m.block.e.data());
    for (int s = first; s < end; s++) {
        const int begin = batch.begin[s] - from, length = batch.begin[s + 1] - batch.begin[s];
        softmax(&m.block.e[begin], length, training_factor(m.setup, m.weights, length), &m.block.weight[begin]);
        float* of_sequence = m.block.mass[s - first];
        std::memset(of_sequence, 0, sizeof(float) * m.nodes.room());
        for (int i = begin; i < begin + length; i++)
            add_mass(m.setup, m.nodes, m.block, i, m.block.weight[i], of_sequence);
    }
    sum_nodes(end - first, m.nodes, m.block, m.head);
}

inline void attend_block_backward(Retriever& m, const RetrievalBatch& batch, int first, int end) {
    const int from = batch.begin[first], n = end - first;
    gemm(m.nodes.n, n, kV, {m.block.mass[0], 1, m.block.mass.row}, row_major(m.head.d_z.data(), kRow),
         m.nodes.d_value.data(), kRow, true);
    m.block.d_mass.shape(kBlock, m.nodes.room());
    const int all = (m.nodes.n + 15) / 16;
    gemm(n, H, all, {m.head.d_z.data(), kRow, 1}, row_major(m.nodes.value_across[0], m.nodes.value_across.row),
         m.block.d_mass[0], m.block.d_mass.row);
    for (int s = 0; s < n; s++) std::fill(m.block.d_mass[s] + 16 * all, m.block.d_mass[s] + m.nodes.room(), 0.0f);
    for (int s = first; s < end; s++) {
        const int begin = batch.begin[s] - from, length = batch.begin[s + 1] - batch.begin[s];
        logits_backward(m.setup, m.weights, m.nodes, begin, length, m.block.d_mass[s - first], m.block, m.d);
        items_backward(m.setup, &batch.items[from], begin, begin + length, m.block.d_mass[s - first], m.nodes, m.block);
    }
    if (m.nodes.steep) steep_backward(m.nodes, m.d);
}

// With more pieces the curves have about as many nodes as there are items.
constexpr int kMostPieces = 4, kMostPiecesRead = 32;

// Writes the gradient of the mean negative log likelihood of a minibatch, and returns the latter.
inline double gradient_of(Retriever& m, const RetrievalBatch& batch, const float* theta, float epsilon,
                          float* gradient) {
    prepare(m.setup, theta, epsilon, true, m.weights);
    choose_nodes(m.weights, kMostPieces, m.nodes);
    m.d.theta = gradient;
    m.d.first_block = true;
    double loss = 0;
    clear(m.d, kW1, kK), clear(m.d, kValue, kW3), clear(m.d, kW4, m.setup.layout.size);
    std::fill(m.d.key, m.d.key + H, 0.0f);
    m.d.ssmax = 0;
    if (m.nodes.curved()) nodes_on_curves(m.nodes), nodes_forward<true>(m.setup, m.weights, m.nodes);
    for (int first = 0; first < batch.n(); first += kBlock) {
        const int end = std::min(first + kBlock, batch.n());
        if (!m.nodes.curved()) {
            m.nodes.at.assign(&batch.items[batch.begin[first]], batch.items.data() + batch.begin[end]);
            nodes_forward<true>(m.setup, m.weights, m.nodes);
        }
        attend_block(m, batch, first, end);
        head_forward(m.setup, m.weights, end - first, m.head);
        loss +=
            head_backward(m.setup, m.weights, end - first, &batch.label[first], 1.0f / float(batch.n()), m.head, m.d);
        attend_block_backward(m, batch, first, end);
        if (!m.nodes.curved()) nodes_backward(m.setup, m.weights, m.nodes, m.d);
        m.d.first_block = false;
    }
    if (m.nodes.curved()) nodes_backward(m.setup, m.weights, m.nodes, m.d);
    key_backward(m.setup, m.weights, m.d);
    if (m.setup.attention_kind == AttentionKind::ssmax) m.d.theta[m.setup.layout.ssmax] = float(m.d.ssmax);
    for (int c = 0; c < C; c++) add_row<kV>(m.d.theta + kB1, 1, m.d.theta + kW1 + (1 + c) * H);
    return loss / batch.n();
}

// ---- evaluation ----------------------------------------------------------------------------------------------------

constexpr int kItemBlock = 96;  // items at a time in evaluation

struct Attention {
    float entropy, largest;
};

inline float inverse_temperature(float entropy) {
    const float h = entropy, beta = (((-0.037f * h + 0.481f) * h - 2.3f) * h + 4.917f) * h - 1.791f;
    return h > 0.5f ? std::max(beta, 1.0f) : 1.0f;
}

inline void scale_sum(Retriever& m, int s, float by) {
    float* sum = m.nodes.curved() ? m.block.mass[s] : m.head.z[s];
    for (int i = 0; i < (m.nodes.curved() ? m.nodes.room() : H); i += 16) store(sum + i, by * load(sum + i));
}

// Processes blocks of items in bounded memory: sums relative to the highest logit so far are rescaled when a higher one
// follows. With u_i = exp(e_i - highest), Z = sum u_i and E = sum u_i (e_i - highest), the entropy is log Z - E / Z.
inline Attention attend_with(Retriever& m, const Item* items, int n, int s, float factor) {
    m.block.reserve(kItemBlock);
    m.block.mass.shape(kBlock, m.nodes.curved() ? m.nodes.room() : kItemBlock + 16);
    alignas(64) float u[kItemBlock + 16];
    float* of_sequence = m.block.mass[s];
    if (m.nodes.curved())
        std::memset(of_sequence, 0, sizeof(float) * m.nodes.room());
    else
        std::memset(m.head.z[s], 0, sizeof(float) * H);
    float highest = -std::numeric_limits<float>::infinity();
    double Z = 0, E = 0;
    for (int from = 0; from < n; from += kItemBlock) {
        const int count = std::min(kItemBlock, n - from);
        if (!m.nodes.curved())
            m.nodes.at.assign(items + from, items + from + count), nodes_forward<false>(m.setup, m.weights, m.nodes);
        place(items + from, count, m.nodes, m.block);
        scores(m.setup, m.weights, m.nodes, count, m.block, u);
        float now = highest;
        for (int i = 0; i < count; i++) u[i] *= factor, now = std::max(now, u[i]);
        if (from > 0 && now > highest) {
            const double shift = double(highest) - now, shrink = std::exp(shift);
            E = shrink * (E + Z * shift), Z *= shrink;
            scale_sum(m, s, float(shrink));
        }
        highest = now;
        for (int i = 0; i < count; i += 16) {
            const f32x16 below = load(u + i) - broadcast(highest), x = exp_nonpositive(below);
            store(u + i, x);
            alignas(64) float by[16];
            store(by, below);
            for (int j = 0; j < std::min(16, count - i); j++) Z += u[i + j], E += u[i + j] * by[j];
        }
        if (!m.nodes.curved()) std::memset(of_sequence, 0, sizeof(float) * m.nodes.room());
        for (int i = 0; i < count; i++) add_mass(m.setup, m.nodes, m.block, i, u[i], of_sequence);
        if (!m.nodes.curved())
            gemm(1, m.nodes.n, kV, {of_sequence, 0, 1}, row_major(m.nodes.value.data(), kRow), m.head.z[s], kRow, true);
    }
    scale_sum(m, s, float(1 / Z));
    return {float(std::log(Z) - E / Z), float(1 / Z)};
}

// Writes row s of z, or of the shares that sum_nodes computes it from.
inline Attention attend(Retriever& m, const Item* items, int n, int s) {
    Attention seen = attend_with(m, items, n, s, training_factor(m.setup, m.weights, n));
    if (m.setup.attention_kind == AttentionKind::adaptive_temperature)
        if (const float beta = inverse_temperature(seen.entropy); beta != 1) seen = attend_with(m, items, n, s, beta);
    return seen;
}

// For n sequences: 1 or 0 for a right or wrong answer (NaN without finite logits), entropy and largest weight of the
// attention; each may be null.
inline void score(Retriever& m, const float* theta, float epsilon, int n, const int* begin, const Item* items,
                  const int* label, float* correct, float* entropy, float* largest) {
    prepare(m.setup, theta, epsilon, false, m.weights);
    choose_nodes(m.weights, kMostPiecesRead, m.nodes);
    if (m.nodes.curved()) nodes_on_curves(m.nodes), nodes_forward<false>(m.setup, m.weights, m.nodes);
    for (int first = 0; first < n; first += kBlock) {
        const int count = std::min(kBlock, n - first);
        for (int i = 0; i < count; i++) {
            const int length = begin[first + i + 1] - begin[first + i];
            const Attention seen = attend(m, items + begin[first + i], length, i);
            if (entropy) entropy[first + i] = seen.entropy;
            if (largest) largest[first + i] = seen.largest;
        }
        if (!correct) continue;
        if (m.nodes.curved()) sum_nodes(count, m.nodes, m.block, m.head);
        head_forward(m.setup, m.weights, count, m.head);
        for (int i = 0; i < count; i++) correct[first + i] = is_right(m.head.logits[i], label[first + i]);
    }
}

}  // namespace

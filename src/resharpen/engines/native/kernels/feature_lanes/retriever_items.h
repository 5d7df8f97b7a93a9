// The retriever: the items of a block of sequences, and attention over them; retriever.h has the formulas.
#pragma once

#include "retriever_nodes.h"

namespace {

struct ItemBlock {
    // Per item: its window, its shares of the window's and of the steep nodes, with the slope and half the derivative
    // of |h_i|^2 by the latter; 1 / rms of h_i, softmax weights, logits, gradients. Per sequence: its shares of every
    // node, and the gradient by these.
    std::vector<int> window;
    Rows<32> share;
    Rows<16> steep_slope, by_steep;
    std::vector<float> r, weight, e, d_weight;
    Sheet mass, d_mass;

    void reserve(int n) {
        share.reserve(n), steep_slope.reserve(n), by_steep.reserve(n);
        if (n > int(r.size()))
            window.resize(n), r.resize(n), weight.resize(n + 16), e.resize(n + 16), d_weight.resize(n);
    }
};

// ---- items by themselves -------------------------------------------------------------------------------------------

// Window and shares of items.
inline void place(const Item* items, int n, const Nodes& nodes, ItemBlock& block) {
    for (int i = 0; i < n; i++) {
        if (!nodes.curved()) {
            block.window[i] = i / 16;
            store(block.share[i], Interpolation::one(i % 16));
            continue;
        }
        const float x = items[i].priority * float(nodes.pieces);
        const int piece = std::min(int(x), nodes.pieces - 1);
        block.window[i] = items[i].kind * nodes.pieces + piece;
        store(block.share[i], nodes.through->shares(x - float(piece)));
        if (!nodes.steep) continue;
        f32x16 derivative;
        const f32x16 u = load(nodes.steep_table[1 + items[i].kind]) + items[i].priority * load(nodes.steep_table[0]);
        store(block.share[i] + 16, gelu(u, derivative));
        store(block.steep_slope[i], derivative);
    }
}

// The sum of an item's shares times values given per node.
RESHARPEN_INLINE float along_nodes(const Nodes& nodes, const ItemBlock& block, int i, const float* given) {
    f32x16 sum = load(block.share[i]) * load(given + nodes.first_node(block.window[i], 0));
    if (nodes.steep) sum += load(block.share[i] + 16) * load(given + nodes.first_node(block.window[i], 1));
    return horizontal_sum(sum);
}

// given += factor * shares
RESHARPEN_INLINE void add_shares(const Nodes& nodes, const ItemBlock& block, int i, float factor, float* given) {
    for (int v = 0; v < nodes.vectors(); v++) {
        float* to = given + nodes.first_node(block.window[i], v);
        store(to, load(to) + broadcast(factor) * load(block.share[i] + 16 * v));
    }
}

// e_i before the factor of the attention, and 1 / rms of h_i, from |h_i|^2 = share . gram share, of which a negative
// value is a rounding error.
inline void scores(const Setup& setup, const Weights& weights, const Nodes& nodes, int n, ItemBlock& block,
                   float* out) {
    for (int i = 0; i < n; i++) {
        const float along = along_nodes(nodes, block, i, nodes.along_key[0]);
        if (setup.norm_in) {
            const float *by = block.share[i], *products = nodes.gram[32 * block.window[i]];
            f32x16 sum = broadcast(0), by_steep_node = broadcast(0);
            for (int k = 0; k < nodes.stride; k++) {
                sum += broadcast(by[k]) * load(products + 32 * k);
                if (nodes.steep) by_steep_node += broadcast(by[k]) * load(products + 32 * k + 16);
            }
            float squared = horizontal_sum(load(by) * sum);
            if (nodes.steep) {
                const f32x16 of_curve = by_steep_node;  // twice in the form: once per side
                for (int k = 16; k < 32; k++) by_steep_node += broadcast(by[k]) * load(products + 32 * k + 16);
                squared += horizontal_sum(load(by + 16) * (by_steep_node + of_curve));
                store(block.by_steep[i], by_steep_node);
            }
            block.r[i] = 1.0f / std::sqrt((squared < 0 ? 0 : squared) * (1.0f / H) + weights.epsilon);
        }
        out[i] = setup.norm_in ? block.r[i] * along : along;
    }
}

// Add the shares of an item with this weight to those of its sequence.
RESHARPEN_INLINE void add_mass(const Setup& setup, const Nodes& nodes, const ItemBlock& block, int i, float w,
                               float* of_sequence) {
    add_shares(nodes, block, i, setup.norm_in ? w * block.r[i] : w, of_sequence);
}

// ---- sequences -----------------------------------------------------------------------------------------------------

inline float by_ssmax(int length) { return std::log(float(length)); }

// The factor of the logits in a sequence of this length.
inline float training_factor(const Setup& setup, const Weights& weights, int length) {
    return setup.attention_kind == AttentionKind::ssmax   ? weights.theta[setup.layout.ssmax] * by_ssmax(length)
           : setup.attention_kind == AttentionKind::log_n ? by_ssmax(length)
                                                          : 1.0f;
}

// weight = softmax(factor e). Both have room for whole vectors; elements beyond n do not change. Products are stored
// before the maximum is subtracted: with one fused operation the maximum itself would not become zero, and a weight of
// one would not be exact.
inline Normalizer softmax(const float* e, int n, float factor, float* weight) {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    f32x16 highest = broadcast(kLowest), sum = broadcast(0);
    for (int i = 0; i < n; i += 16) {
        const f32x16 x = first_lanes(std::min(16, n - i), factor * load(e + i), kLowest);
        store_first(weight + i, std::min(16, n - i), x);
        highest = max(highest, x);
    }
    const float max_e = horizontal_max(highest);
    highest = broadcast(max_e);
    for (int i = 0; i < n; i += 16) {
        const int lanes = std::min(16, n - i);
        const f32x16 u = first_lanes(lanes, exp_nonpositive(load(weight + i) - highest), 0);
        store_first(weight + i, lanes, u);
        sum += u;
    }
    const Normalizer by{max_e, horizontal_sum(sum)};
    const f32x16 scale = broadcast(1.0f / by.sum);
    for (int i = 0; i < n; i += 16) store_first(weight + i, std::min(16, n - i), load(weight + i) * scale);
    return by;
}

// Replaces e by its gradient de_i = factor w_i (dw_i - sum_j w_j dw_j), and writes d_weight, the gradient by the
// weights. All dw are relative to that of the largest weight: if that is nearly one, its dw is nearly the mean, and the
// mean of the differences is small and exact. With a norm d_weight is w_i dw_i + de_i e_i, which the norm's backward
// needs.
inline void logits_backward(const Setup& setup, const Weights& weights, const Nodes& nodes, int begin, int length,
                            const float* d_sequence, ItemBlock& block, Gradient& d) {
    for (int i = begin; i < begin + length; i++) {
        const float along = along_nodes(nodes, block, i, d_sequence);
        block.d_weight[i] = setup.norm_in ? block.r[i] * along : along;
    }
    const int heaviest = int(std::max_element(&block.weight[begin], &block.weight[begin] + length) - &block.weight[0]);
    const float its_d_weight = block.d_weight[heaviest], its_e = block.e[heaviest],
                factor = training_factor(setup, weights, length);
    float mean = 0, along_logits = 0;
    for (int i = begin; i < begin + length; i++) mean += block.weight[i] * (block.d_weight[i] - its_d_weight);
    for (int i = begin; i < begin + length; i++) {
        const float by_logit = block.weight[i] * ((block.d_weight[i] - its_d_weight) - mean), d_e = factor * by_logit;
        // by_logit sums to zero, so its_e changes nothing but the rounding error
        along_logits += by_logit * (block.e[i] - its_e);
        if (setup.norm_in) block.d_weight[i] = block.weight[i] * block.d_weight[i] + d_e * block.e[i];
        block.e[i] = d_e;
    }
    if (setup.attention_kind == AttentionKind::ssmax) d.ssmax += by_ssmax(length) * along_logits;
}

inline void add_products(const ItemBlock& block, int i, float c, Nodes& nodes) {
    const f32x16 of_window = c * load(block.share[i]), of_steep = c * load(block.share[i] + 16);
    const float* by = block.share[i];
    float* products = nodes.d_gram[32 * block.window[i]];
    for (int k = 0; k < nodes.stride; k++)
        store(products + 32 * k, load(products + 32 * k) + broadcast(by[k]) * of_window);
    if (!nodes.steep) return;
    for (int k = 0; k < 32; k = k + 1 == nodes.stride ? 16 : k + 1) {
        float* to = products + 32 * k + 16;
        store(to, load(to) + broadcast(by[k]) * of_steep);
    }
}

// Gradients by h . k of the nodes; by their products, where c_i / 2 is the derivative by |h_i|^2, with c_i = -r_i^2 / H
// (w_i dw_i + de_i e_i); and, by the shares of steep nodes, those of their weights.
inline void items_backward(const Setup& setup, const Item* items, int begin, int end, const float* d_sequence,
                           Nodes& nodes, ItemBlock& block) {
    for (int i = begin; i < end; i++) {
        const float d_along = setup.norm_in ? block.e[i] * block.r[i] : block.e[i],
                    c = -(1.0f / H) * block.r[i] * block.r[i] * block.d_weight[i];
        add_shares(nodes, block, i, d_along, nodes.d_along_key[0]);
        if (setup.norm_in) add_products(block, i, c, nodes);
        if (!nodes.steep) continue;
        f32x16 d_share = broadcast(setup.norm_in ? block.weight[i] * block.r[i] : block.weight[i]) *
                             load(d_sequence + nodes.n_curves) +
                         broadcast(d_along) * load(nodes.along_key[0] + nodes.n_curves);
        if (setup.norm_in) d_share += broadcast(c) * load(block.by_steep[i]);
        const f32x16 d_u = d_share * load(block.steep_slope[i]);
        float *of_class = nodes.d_steep_table[1 + items[i].kind], *of_priority = nodes.d_steep_table[0];
        store(of_class, load(of_class) + d_u);
        store(of_priority, load(of_priority) + items[i].priority * d_u);
    }
}

}  // namespace

// The retriever: forward and backward of the nodes that items are interpolated from; retriever.h has the formulas.
#pragma once

#include "interpolation.h"
#include "retriever_weights.h"

namespace {

// The number of points of a curve, by the largest weight w of the priority: kFewest plus the index of the first bound
// that w does not exceed. An item is a class and a number p, so a_i is on one of C curves, gelu(p w + t) with t the row
// of the class. With n points in each of J pieces the error of an entry of a_i is at most
//
//     (|w| / J)^n max|gelu^(n)| / n! 2 / 4^n
//
// which is below 2e-9, and that of its derivative by w about n / |w| times as much, 1e-8: both below rounding errors. A
// NaN uses five points and stays NaN.
constexpr int kFewest = 5;
constexpr float kSteepest[] = {0.081f, 0.203f, 0.391f, 0.618f, 0.894f, 1.183f,
                               1.505f, 1.823f, 2.164f, 2.493f, 2.839f, 3.168f};

struct Nodes {
    // Curves are cut into `pieces` with the same points each; zero pieces if the items themselves are the nodes. If a
    // few steep features alone would require many points, sixteen of them are left out of the curves: each is a node of
    // its own, with its row of W_2 as h, and an item's share of it is its gelu. (Cancellation in |h_i|^2 would cost
    // digits, but in trained models the lengths of the terms of h_i add up to only 1.1 to 3.4 times its own.)
    const Interpolation* through;
    int pieces;
    bool steep;
    int steepest[kLanes];  // the features

    // Nodes of curves come first, then the steep ones. A window of sixteen nodes begins with the nodes of each piece,
    // or each sixteen items: the first `stride` are its own, and items have no share of the others. Per node: a, the
    // slope of its gelu, h, h with the norm's gain, its value, gradients; h . k. Per window: the products h . h of its
    // nodes and the steep ones, for the norm. Gradients by the last two.
    int n_curves, n, stride;
    std::vector<Item> at;
    Rows<kRow> a, slope, h, gained, value, d_h, d_value;
    Sheet along_key, d_along_key, value_across;  // one row each; the transposed values
    Rows<32> gram, d_gram;
    Rows<16> steep_table{C + 1}, d_steep_table{C + 1};  // rows of W_1: the priority's, and those of classes plus b_1

    bool curved() const { return pieces > 0; }
    int n_windows() const { return (n_curves + stride - 1) / stride; }
    int room() const { return (n + 31) / 16 * 16; }  // nodes, so that the last window fits
    // Vectors of shares of an item: its window and, if there are any, the steep nodes.
    int vectors() const { return steep ? 2 : 1; }
    int first_node(int of_window, int vector) const { return vector ? n_curves : of_window * stride; }
};

// ---- choice of nodes -----------------------------------------------------------------------------------------------

struct Curves {
    int pieces;
    const Interpolation* through;
    int nodes() const { return pieces ? C * pieces * through->points : std::numeric_limits<int>::max(); }
};

inline Curves curves_for(float w, int most_pieces) {
    static const std::vector<Interpolation> all = [] {
        std::vector<Interpolation> made;
        for (int n = kFewest; n <= kLanes; n++) made.emplace_back(n);
        return made;
    }();
    const float* last = std::end(kSteepest) - 1;
    int pieces = 1;
    while (pieces <= most_pieces && w > *last * float(pieces)) pieces *= 2;
    if (pieces > most_pieces) return {0, &all.back()};
    return {pieces, &all[std::lower_bound(kSteepest, last, w / float(pieces)) - kSteepest]};
}

// A steep node takes about as much time as three others.
inline void choose_nodes(const Weights& weights, int most_pieces, Nodes& nodes) {
    uint32_t size[H];  // of weights, as integers, which are ordered also for NaN
    for (int i = 0; i < H; i++) {
        const float w = std::abs(weights.theta[kW1 + i]);
        std::memcpy(&size[i], &w, sizeof w);
    }
    int order[H];
    for (int i = 0; i < H; i++) order[i] = i;
    const int first = std::min(kLanes + 1, H);
    std::partial_sort(order, order + first, order + H,
                      [&](int i, int j) { return size[i] != size[j] ? size[i] > size[j] : i < j; });
    auto weight_of = [&](int i) { return i < H ? std::abs(weights.theta[kW1 + order[i]]) : 0.0f; };
    const Curves whole = curves_for(weight_of(0), most_pieces), rest = curves_for(weight_of(kLanes), most_pieces);
    nodes.steep = rest.pieces && rest.nodes() + 3 * kLanes < whole.nodes();
    nodes.pieces = (nodes.steep ? rest : whole).pieces, nodes.through = (nodes.steep ? rest : whole).through;
    nodes.stride = nodes.curved() ? nodes.through->points : kLanes;
    for (int i = 0; nodes.steep && i < kLanes; i++) {
        nodes.steepest[i] = order[i];
        nodes.steep_table[0][i] = weights.theta[kW1 + order[i]];
        for (int c = 0; c < C; c++) nodes.steep_table[1 + c][i] = weights.table[c][order[i]];
    }
}

inline void nodes_on_curves(Nodes& nodes) {
    nodes.at.clear();
    for (int c = 0; c < C; c++)
        for (int j = 0; j < nodes.pieces; j++)
            for (int k = 0; k < nodes.stride; k++)
                nodes.at.push_back({(float(j) + (*nodes.through)[k]) / float(nodes.pieces), c});
}

// ---- forward -------------------------------------------------------------------------------------------------------

template <bool kSlope>
void features(const Weights& weights, Nodes& nodes) {
    for (int i = 0; i < nodes.n_curves; i++) {
        const f32x16 priority = broadcast(nodes.at[i].priority);
        const float *row = weights.table[nodes.at[i].kind], *by_priority = weights.theta + kW1;
        for (int v = 0; v < kV; v++) {
            f32x16 derivative;
            const f32x16 x = load(row + 16 * v) + priority * load(by_priority + 16 * v);
            store(nodes.a[i] + 16 * v, gelu(x, derivative));
            if (kSlope) store(nodes.slope[i] + 16 * v, derivative);
        }
        for (int k = 0; nodes.steep && k < kLanes; k++)
            nodes.a[i][nodes.steepest[k]] = nodes.slope[i][nodes.steepest[k]] = 0;
    }
    for (int k = 0; nodes.steep && k < kLanes; k++) {
        std::memset(nodes.a[nodes.n_curves + k], 0, sizeof(float) * H);
        nodes.a[nodes.n_curves + k][nodes.steepest[k]] = 1;
    }
}

// h with the gain, and the products of the nodes of a window and the steep ones, [16 + 16, 16 + 16].
inline void norms_forward(const Setup& setup, const Weights& weights, Nodes& nodes) {
    for (int i = 0; i < nodes.n; i++)
        for (int v = 0; v < H; v += 16)
            store(nodes.gained[i] + v, load(nodes.h[i] + v) * load(weights.theta + setup.layout.gain_in + v));
    nodes.gram.reserve(32 * nodes.n_windows()), nodes.d_gram.reserve(32 * nodes.n_windows());
    alignas(64) float across[H * 32];
    for (int w = 0; w < nodes.n_windows(); w++) {
        for (int v = 0; v < nodes.vectors(); v++)
            for (int j = 0; j < H; j += 16)
                transpose_block(nodes.h[nodes.first_node(w, v)] + j, kRow, across + 32 * j + 16 * v, 32);
        for (int v = 0; v < nodes.vectors(); v++)
            gemm(v ? 16 : nodes.stride, H, nodes.vectors(), {nodes.h[nodes.first_node(w, v)], kRow, 1},
                 row_major(across, 32), nodes.gram[32 * w + 16 * v], 32);
    }
}

inline Rows<kRow>& after_gain(const Setup& setup, Nodes& nodes) { return setup.norm_in ? nodes.gained : nodes.h; }

template <bool kTraining>
void nodes_forward(const Setup& setup, const Weights& weights, Nodes& nodes) {
    nodes.n_curves = int(nodes.at.size());
    const int n = nodes.n = nodes.n_curves + (nodes.steep ? kLanes : 0);
    for (Rows<kRow>* rows : {&nodes.a, &nodes.slope, &nodes.h, &nodes.gained, &nodes.value, &nodes.d_h, &nodes.d_value})
        rows->reserve(nodes.room());
    features<kTraining>(weights, nodes);
    fill_rows(nodes.h, nodes.n_curves, weights.theta + kB2);
    std::memset(nodes.h[nodes.n_curves], 0, sizeof(float) * (nodes.room() - nodes.n_curves) * kRow);
    gemm(n, H, kV, {nodes.a.data(), kRow, 1}, row_major(weights.W2.data(), kRow), nodes.h.data(), kRow, true);
    nodes.along_key.shape(1, nodes.room());
    for (int i = 0; i < n; i++) nodes.along_key[0][i] = dot_row<kV>(nodes.h[i], weights.gained_key);
    std::fill(nodes.along_key[0] + n, nodes.along_key[0] + nodes.room(), 0.0f);
    if (setup.norm_in) norms_forward(setup, weights, nodes);
    gemm(n, H, kV, {after_gain(setup, nodes).data(), kRow, 1}, row_major(weights.Value.data(), kRow),
         nodes.value.data(), kRow);
    if (!kTraining) return;
    std::memset(nodes.value[n], 0, sizeof(float) * (nodes.room() - n) * kRow);
    nodes.value_across.shape(H, nodes.room());
    for (int i = 0; i < n; i += 16)
        for (int j = 0; j < H; j += 16)
            transpose_block(nodes.value[i] + j, kRow, nodes.value_across[j] + i, nodes.value_across.row);
    nodes.d_along_key.shape(1, nodes.room());
    std::memset(nodes.d_along_key[0], 0, sizeof(float) * nodes.room());
    std::memset(nodes.d_value.data(), 0, sizeof(float) * n * kRow);
    if (setup.norm_in) std::memset(nodes.d_gram.data(), 0, sizeof(float) * nodes.n_windows() * 32 * 32);
}

// ---- backward ------------------------------------------------------------------------------------------------------

// Adds the sum over a block to the sum over blocks: partial sums reduce the rounding error.
inline void steep_backward(Nodes& nodes, Gradient& d) {
    for (int c = 0; c <= C; c++)
        for (int k = 0; k < kLanes; k++) d.theta[kW1 + c * H + nodes.steepest[k]] += nodes.d_steep_table[c][k];
    std::memset(nodes.d_steep_table.data(), 0, sizeof(float) * (C + 1) * kLanes);
}

// From values of the nodes to the gradients by V, the gain and h.
inline void values_backward(const Setup& setup, const Weights& weights, Nodes& nodes, Gradient& d) {
    weight_gradient(nodes.n, after_gain(setup, nodes), nodes.d_value, d.theta + kValue, nullptr, true);
    gemm(nodes.n, H, kV, {nodes.d_value.data(), kRow, 1}, row_major(weights.ValueT.data(), kRow), nodes.d_h.data(),
         kRow);
    if (!setup.norm_in) return;
    RowSum<kV> d_gain;
    for (int i = 0; i < nodes.n; i++) {
        f32x16* sum = d_gain.next();
        for (int v = 0; v < kV; v++) {
            const f32x16 dy = load(nodes.d_h[i] + 16 * v);
            sum[v] += dy * load(nodes.h[i] + 16 * v);
            store(nodes.d_h[i] + 16 * v, dy * load(weights.theta + setup.layout.gain_in + 16 * v));
        }
    }
    d_gain.add_to(d.theta + setup.layout.gain_in, H);
    std::memset(nodes.d_h[nodes.n], 0, sizeof(float) * (nodes.room() - nodes.n) * kRow);
    for (int w = 0; w < nodes.n_windows(); w++) {
        const float *window_h = nodes.h[nodes.first_node(w, 0)], *products = nodes.d_gram[32 * w];
        float* d_window = nodes.d_h[nodes.first_node(w, 0)];
        gemm(nodes.stride, nodes.stride, kV, {products, 32, 1}, row_major(window_h, kRow), d_window, kRow, true);
        if (!nodes.steep) continue;
        float *steep_h = nodes.h[nodes.n_curves], *d_steep = nodes.d_h[nodes.n_curves];
        const Left cross{products + 16, 32, 1};
        gemm(nodes.stride, 16, kV, cross, row_major(steep_h, kRow), d_window, kRow, true);
        gemm(16, nodes.stride, kV, cross.transposed(), row_major(window_h, kRow), d_steep, kRow, true);
        gemm(16, 16, kV, {products + 16 * 32 + 16, 32, 1}, row_major(steep_h, kRow), d_steep, kRow, true);
    }
}

// From values of the nodes to the gradients by V, W_2, b_2 and W_1, and by k with its gain.
inline void nodes_backward(const Setup& setup, const Weights& weights, Nodes& nodes, Gradient& d) {
    const int n = nodes.n;
    values_backward(setup, weights, nodes, d);
    add_rows<kV>(d.key, n, nodes.h.data(), kRow, nodes.d_along_key[0]);
    for (int i = 0; i < n; i++) add_row<kV>(nodes.d_h[i], nodes.d_along_key[0][i], weights.gained_key);
    weight_gradient(n, nodes.a, nodes.d_h, d.theta + kW2, nullptr, true);
    add_rows<kV>(d.theta + kB2, nodes.n_curves, nodes.d_h.data(), kRow);
    Rows<kRow>& d_a = nodes.h;  // no longer needed
    gemm(nodes.n_curves, H, kV, {nodes.d_h.data(), kRow, 1}, row_major(weights.W2T.data(), kRow), d_a.data(), kRow);
    for (int v = 0; v < H; v += 16) {
        f32x16 of_priority = broadcast(0);
        for (int i = 0; i < nodes.n_curves; i++) {
            const f32x16 d_u = load(d_a[i] + v) * load(nodes.slope[i] + v);
            float* of_class = d.theta + kW1 + (1 + nodes.at[i].kind) * H + v;
            store(of_class, load(of_class) + d_u);
            of_priority += broadcast(nodes.at[i].priority) * d_u;
        }
        store(d.theta + kW1 + v, load(d.theta + kW1 + v) + of_priority);
    }
}

// From k with its gain to the gradients by the gain, K and q.
inline void key_backward(const Setup& setup, const Weights& weights, Gradient& d) {
    if (setup.norm_in)
        for (int i = 0; i < H; i++)
            d.theta[setup.layout.gain_in + i] += weights.key[i] * d.key[i],
                d.key[i] *= weights.theta[setup.layout.gain_in + i];
    for (int i = 0; i < H; i++) {
        const f32x16 by_row = broadcast(d.key[i]);
        for (int v = 0; v < H; v += 16) store(d.theta + kK + i * H + v, by_row * load(weights.theta + kQ + v));
        add_row<kV>(d.theta + kQ, d.key[i], weights.theta + kK + i * H);
    }
}

}  // namespace

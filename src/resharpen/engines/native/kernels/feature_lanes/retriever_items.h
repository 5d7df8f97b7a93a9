// The retriever: its items, the nodes that they are made of, and attention over them; retriever.h has the formulas.
#pragma once

#include "interpolation.h"
#include "retriever_weights.h"

namespace resharpen {

// Rows of vectors, of which the number is known at run time only.
class Sheet {
  public:
    int row = 0;
    void shape(int n, int floats) {
        row = floats + 16;  // rows that are a power of two apart would meet in the cache
        if (memory.size() < std::size_t(n) * (row / 16)) memory.resize(std::size_t(n) * (row / 16));
    }
    float* operator[](int i) { return reinterpret_cast<float*>(memory.data()) + std::size_t(i) * row; }

  private:
    std::vector<f32x16> memory;
};

class RetrieverItems : public RetrieverWeights {
  protected:
    using RetrieverWeights::RetrieverWeights;

    // Through how many points a curve is known, by the largest weight of the priority: the first of them that is not
    // exceeded. An item is a class and a number p, so a_i is on one of C curves, gelu(p w + t) with t the class's row.
    // With n points in every piece of a length 1 / J an entry of a_i is wrong by at most
    //
    //     (|w| / J)^n max|gelu^(n)| / n! 2 / 4^n
    //
    // which is below 2e-9, and its derivative by w by about n / |w| times that, 1e-8: both are less than what rounding
    // does. A NaN takes five points and stays one.
  public:
    static constexpr int kFewest = 5;
    static constexpr float kSteepest[] = {0.081f, 0.203f, 0.391f, 0.618f, 0.894f, 1.183f,
                                          1.505f, 1.823f, 2.164f, 2.493f, 2.839f, 3.168f};

  protected:
    // Curves are cut in `pieces`, each with the same points; no pieces where the items themselves are the nodes. Where
    // a few features bend more than the others, so that these alone would ask for many points, sixteen of them are left
    // out of the curves: a steep feature is a node of its own, with its row of W_2 for h, and an item's share of that
    // is its gelu. (In |h_i|^2 terms that cancel would cost digits. In trained models the lengths of the terms of h_i
    // add up to 1.1 to 3.4 times its own, so that they hardly do.)
    const Interpolation* through;
    int pieces;
    bool steep;
    int steepest[kLanes];  // the features

    // Nodes: those of curves, then the steep ones. Those of a piece, or sixteen items, are neighbors, and a window of
    // sixteen begins with them: `stride` of its nodes are its own, and of what follows an item has no share. Of a node
    // a, the slope of its gelu, h, h with the norm's gain and its value, gradients; h . k; of a window and the steep
    // nodes the products h . h, for the norm; gradients by the last two.
    int n_curves, n_nodes, stride;
    std::vector<Item> nodes;
    Rows<kRow> a, slope, h, gained, value, d_h, d_value;
    Sheet along_key, d_along_key, value_across;  // one row each, and the values transposed
    Rows<32> gram, d_gram;
    Rows<16> steep_table{C + 1}, d_steep_table{C + 1};  // of W_1: the priority's row, with b_1 those of classes

    // Items of a block: the window that each is made of, its share of that and of the steep nodes, with the slope and
    // half the derivative of |h_i|^2 by the latter; 1 / rms of h_i, softmax weights, logits, gradients. And how much of
    // every node is in a sequence, with the gradient by that.
    std::vector<int> window;
    Rows<32> share;
    Rows<16> steep_slope, by_steep;
    std::vector<float> r, weight, e, d_weight;
    Sheet mass, d_mass;

    struct Curves {
        int pieces;
        const Interpolation* through;
        int nodes() const { return pieces ? C * pieces * through->points : std::numeric_limits<int>::max(); }
    };
    static Curves curves_for(float w, int most_pieces) {
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

    // A steep node costs about as much as three others.
    void choose_nodes(int most_pieces) {
        uint32_t size[H];  // of weights, as integers: these are ordered whatever they are
        for (int i = 0; i < H; i++) {
            const float w = std::abs(theta[kW1 + i]);
            std::memcpy(&size[i], &w, sizeof w);
        }
        int order[H];
        for (int i = 0; i < H; i++) order[i] = i;
        const int first = std::min(kLanes + 1, H);
        std::partial_sort(order, order + first, order + H,
                          [&](int i, int j) { return size[i] != size[j] ? size[i] > size[j] : i < j; });
        auto weight_of = [&](int i) { return i < H ? std::abs(theta[kW1 + order[i]]) : 0.0f; };
        const Curves whole = curves_for(weight_of(0), most_pieces), rest = curves_for(weight_of(kLanes), most_pieces);
        steep = rest.pieces && rest.nodes() + 3 * kLanes < whole.nodes();
        pieces = (steep ? rest : whole).pieces, through = (steep ? rest : whole).through;
        stride = curved() ? through->points : kLanes;
        for (int i = 0; steep && i < kLanes; i++) {
            steepest[i] = order[i];
            steep_table[0][i] = theta[kW1 + order[i]];
            for (int c = 0; c < C; c++) steep_table[1 + c][i] = table[c][order[i]];
        }
    }
    bool curved() const { return pieces > 0; }

    void nodes_on_curves() {
        nodes.clear();
        for (int c = 0; c < C; c++)
            for (int j = 0; j < pieces; j++)
                for (int k = 0; k < stride; k++) nodes.push_back({(float(j) + (*through)[k]) / float(pieces), c});
    }

    int n_windows() const { return (n_curves + stride - 1) / stride; }
    int room() const { return (n_nodes + 31) / 16 * 16; }  // of nodes, so that the last window fits

    template <bool kTraining>
    void nodes_forward() {
        n_curves = int(nodes.size());
        const int n = n_nodes = n_curves + (steep ? kLanes : 0);
        for (Rows<kRow>* rows : {&a, &slope, &h, &gained, &value, &d_h, &d_value}) rows->reserve(room());
        features<kTraining>();
        fill_rows(h, n_curves, theta + kB2);
        std::memset(h[n_curves], 0, sizeof(float) * (room() - n_curves) * kRow);
        gemm(n, H, kV, {a.data(), kRow, 1}, row_major(W2.data(), kRow), h.data(), kRow, true);
        along_key.shape(1, room());
        for (int i = 0; i < n; i++) along_key[0][i] = dot_row<kV>(h[i], gained_key);
        std::fill(along_key[0] + n, along_key[0] + room(), 0.0f);
        if (norm_in) norms_forward();
        gemm(n, H, kV, {after_gain().data(), kRow, 1}, row_major(Value.data(), kRow), value.data(), kRow);
        if (!kTraining) return;
        std::memset(value[n], 0, sizeof(float) * (room() - n) * kRow);
        value_across.shape(H, room());
        for (int i = 0; i < n; i += 16)
            for (int j = 0; j < H; j += 16) transpose_block(value[i] + j, kRow, value_across[j] + i, value_across.row);
        d_along_key.shape(1, room());
        std::memset(d_along_key[0], 0, sizeof(float) * room());
        std::memset(d_value.data(), 0, sizeof(float) * n * kRow);
        if (norm_in) std::memset(d_gram.data(), 0, sizeof(float) * n_windows() * 32 * 32);
    }

    // h with the gain, and the products of the nodes of a window and the steep ones, [16 + 16, 16 + 16].
    void norms_forward() {
        for (int i = 0; i < n_nodes; i++)
            for (int v = 0; v < H; v += 16) store(gained[i] + v, load(h[i] + v) * load(theta + gain_in + v));
        gram.reserve(32 * n_windows()), d_gram.reserve(32 * n_windows());
        alignas(64) float across[H * 32];
        for (int w = 0; w < n_windows(); w++) {
            for (int v = 0; v < vectors(); v++)
                for (int j = 0; j < H; j += 16)
                    transpose_block(h[first_node(w, v)] + j, kRow, across + 32 * j + 16 * v, 32);
            for (int v = 0; v < vectors(); v++)
                gemm(v ? 16 : stride, H, vectors(), {h[first_node(w, v)], kRow, 1}, row_major(across, 32),
                     gram[32 * w + 16 * v], 32);
        }
    }

    // What an item is made of, in vectors: a window and, if there are any, the steep nodes.
    int vectors() const { return steep ? 2 : 1; }
    int first_node(int of_window, int vector) const { return vector ? n_curves : of_window * stride; }

    Rows<kRow>& after_gain() { return norm_in ? gained : h; }

    template <bool kSlope>
    void features() {
        for (int i = 0; i < n_curves; i++) {
            const f32x16 priority = broadcast(nodes[i].priority);
            const float *row = table[nodes[i].kind], *by_priority = theta + kW1;
            for (int v = 0; v < kV; v++) {
                f32x16 derivative;
                const f32x16 x = load(row + 16 * v) + priority * load(by_priority + 16 * v);
                store(a[i] + 16 * v, gelu(x, derivative));
                if (kSlope) store(slope[i] + 16 * v, derivative);
            }
            for (int k = 0; steep && k < kLanes; k++) a[i][steepest[k]] = slope[i][steepest[k]] = 0;
        }
        for (int k = 0; steep && k < kLanes; k++) {
            std::memset(a[n_curves + k], 0, sizeof(float) * H);
            a[n_curves + k][steepest[k]] = 1;
        }
    }

    static void fill_rows(Rows<kRow>& rows, int n, const float* with) {
        for (int i = 0; i < n; i++)
            for (int v = 0; v < kV; v++) store(rows[i] + 16 * v, load(with + 16 * v));
    }

    // What items are made of.
    void place(const Item* items, int n) {
        for (int i = 0; i < n; i++) {
            if (!curved()) {
                window[i] = i / 16;
                store(share[i], Interpolation::one(i % 16));
                continue;
            }
            const float x = items[i].priority * float(pieces);
            const int piece = std::min(int(x), pieces - 1);
            window[i] = items[i].kind * pieces + piece;
            store(share[i], through->shares(x - float(piece)));
            if (!steep) continue;
            f32x16 derivative;
            const f32x16 u = load(steep_table[1 + items[i].kind]) + items[i].priority * load(steep_table[0]);
            store(share[i] + 16, gelu(u, derivative));
            store(steep_slope[i], derivative);
        }
    }

    // Over the nodes that an item is made of, the sum of its shares times what is given.
    RESHARPEN_INLINE float along_nodes(int i, const float* given) {
        f32x16 sum = load(share[i]) * load(given + first_node(window[i], 0));
        if (steep) sum += load(share[i] + 16) * load(given + first_node(window[i], 1));
        return horizontal_sum(sum);
    }

    // given += factor * shares
    RESHARPEN_INLINE void add_shares(int i, float factor, float* given) {
        for (int v = 0; v < vectors(); v++) {
            float* to = given + first_node(window[i], v);
            store(to, load(to) + broadcast(factor) * load(share[i] + 16 * v));
        }
    }

    // e_i before the attention_kind's factor, and 1 / rms of h_i, from |h_i|^2 = share . gram share; below zero is
    // rounding error.
    void scores(int n, float* out) {
        for (int i = 0; i < n; i++) {
            const float along = along_nodes(i, along_key[0]);
            if (norm_in) {
                const float *by = share[i], *products = gram[32 * window[i]];
                f32x16 sum = broadcast(0), by_steep_node = broadcast(0);
                for (int k = 0; k < stride; k++) {
                    sum += broadcast(by[k]) * load(products + 32 * k);
                    if (steep) by_steep_node += broadcast(by[k]) * load(products + 32 * k + 16);
                }
                float squared = horizontal_sum(load(by) * sum);
                if (steep) {
                    const f32x16 of_curve = by_steep_node;  // twice in the form, once for each side
                    for (int k = 16; k < 32; k++) by_steep_node += broadcast(by[k]) * load(products + 32 * k + 16);
                    squared += horizontal_sum(load(by + 16) * (by_steep_node + of_curve));
                    store(by_steep[i], by_steep_node);
                }
                r[i] = 1.0f / std::sqrt((squared < 0 ? 0 : squared) * (1.0f / H) + epsilon);
            }
            out[i] = norm_in ? r[i] * along : along;
        }
    }

    // How much of every node an item with this weight brings to a sequence.
    RESHARPEN_INLINE void add_mass(float* of_sequence, int i, float w) {
        add_shares(i, norm_in ? w * r[i] : w, of_sequence);
    }

    // What multiplies the logits of so many items, and its derivative by s.
    float training_factor(int length) const {
        return attention_kind == AttentionKind::ssmax   ? theta[ssmax_at] * by_ssmax(length)
               : attention_kind == AttentionKind::log_n ? by_ssmax(length)
                                                        : 1.0f;
    }
    static float by_ssmax(int length) { return std::log(float(length)); }

    void reserve_items(int n) {
        share.reserve(n), steep_slope.reserve(n), by_steep.reserve(n);
        if (n > int(r.size()))
            window.resize(n), r.resize(n), weight.resize(n + 16), e.resize(n + 16), d_weight.resize(n);
    }

    // weight = softmax(factor e); both have room for whole vectors, and what is beyond n is not changed. The products
    // are stored before the largest is subtracted: in one fused operation the largest itself would not become zero, and
    // where it has all the weight that weight would not be one.
    static Normalizer softmax(const float* e, int n, float factor, float* weight) {
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
};

}  // namespace resharpen

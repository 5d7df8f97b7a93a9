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
    // which is below 2e-9, and its derivative by w by at most n / |w| times that, which is 1e-8: both are less than
    // what rounding does.
  public:
    static constexpr int kFewest = 5;
    static constexpr float kSteepest[] = {0.081f, 0.203f, 0.391f, 0.618f, 0.894f, 1.183f,
                                          1.505f, 1.823f, 2.164f, 2.493f, 2.839f, 3.168f};

  protected:
    // Curves are cut in `pieces`, each with the same points; no pieces where the items themselves are the nodes.
    const Interpolation* through;
    int pieces;

    // Nodes. Those of a piece, or sixteen items, are neighbours, and a window of sixteen begins with them: `stride` of
    // its nodes are its own, what follows is nobody's share. Of a node a, the slope of its gelu, h, h with the norm's
    // gain and its value, gradients; h . k; of a window the products h . h, for the norm; gradients by the last two.
    int n_nodes, stride;
    std::vector<Item> nodes;
    Rows<kRow> a, slope, h, gained, value, d_h, d_value;
    Sheet along_key, d_along_key, value_across;  // one row each, and the values transposed
    Rows<16> gram, d_gram;

    // Items of a block: the window that each is made of and its share of it; 1 / rms of h_i, softmax weights, logits,
    // gradients. And how much of every node is in a sequence, with the gradient by that.
    std::vector<int> window;
    Rows<16> share;
    std::vector<float> r, weight, e, d_weight;
    Sheet mass, d_mass;

    void choose_nodes(int most_pieces) {
        static const std::vector<Interpolation> curves = [] {
            std::vector<Interpolation> all;
            for (int n = kFewest; n <= kLanes; n++) all.emplace_back(n);
            return all;
        }();
        f32x16 steepest = broadcast(0);
        for (int v = 0; v < H; v += 16) steepest = max(steepest, abs(load(theta + kW1 + v)));
        const float w = horizontal_max(steepest), *last = std::end(kSteepest) - 1;
        for (pieces = 1; pieces <= most_pieces && w > *last * float(pieces);) pieces *= 2;
        if (pieces > most_pieces) pieces = 0;
        through = &curves[curved() ? std::lower_bound(kSteepest, last, w / float(pieces)) - kSteepest : 0];
        stride = curved() ? through->points : kLanes;
    }
    bool curved() const { return pieces > 0; }

    void nodes_on_curves() {
        nodes.clear();
        for (int c = 0; c < C; c++)
            for (int j = 0; j < pieces; j++)
                for (int k = 0; k < stride; k++) nodes.push_back({(float(j) + (*through)[k]) / float(pieces), c});
    }

    int n_windows() const { return (n_nodes + stride - 1) / stride; }
    int room() const { return (n_nodes + 31) / 16 * 16; }  // of nodes, so that the last window fits

    template <bool kTraining>
    void nodes_forward() {
        const int n = n_nodes = int(nodes.size());
        for (Rows<kRow>* rows : {&a, &slope, &h, &gained, &value, &d_h, &d_value}) rows->reserve(room());
        features<kTraining>();
        fill_rows(h, n, theta + kB2);
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
        if (norm_in) std::memset(d_gram.data(), 0, sizeof(float) * n_windows() * 256);
    }

    // h with the gain, and the products of the nodes of a window.
    void norms_forward() {
        for (int i = 0; i < n_nodes; i++)
            for (int v = 0; v < H; v += 16) store(gained[i] + v, load(h[i] + v) * load(theta + gain_in + v));
        std::memset(h[n_nodes], 0, sizeof(float) * (room() - n_nodes) * kRow);
        gram.reserve(16 * n_windows()), d_gram.reserve(16 * n_windows());
        alignas(64) float across[H * 16];
        for (int w = 0; w < n_windows(); w++) {
            for (int j = 0; j < H; j += 16) transpose_block(h[w * stride] + j, kRow, across + 16 * j, 16);
            gemm(stride, H, 1, {h[w * stride], kRow, 1}, row_major(across, 16), gram[16 * w], 16);
        }
    }

    Rows<kRow>& after_gain() { return norm_in ? gained : h; }

    template <bool kSlope>
    void features() {
        for (int i = 0; i < n_nodes; i++) {
            const f32x16 priority = broadcast(nodes[i].priority);
            const float *row = table[nodes[i].kind], *by_priority = theta + kW1;
            for (int v = 0; v < kV; v++) {
                f32x16 derivative;
                const f32x16 x = load(row + 16 * v) + priority * load(by_priority + 16 * v);
                store(a[i] + 16 * v, gelu(x, derivative));
                if (kSlope) store(slope[i] + 16 * v, derivative);
            }
        }
    }

    static void fill_rows(Rows<kRow>& rows, int n, const float* with) {
        for (int i = 0; i < n; i++)
            for (int v = 0; v < kV; v++) store(rows[i] + 16 * v, load(with + 16 * v));
    }

    // What items are made of.
    void place(const Item* items, int n) {
        for (int i = 0; i < n; i++) {
            if (curved()) {
                const float x = items[i].priority * float(pieces);
                const int piece = std::min(int(x), pieces - 1);
                window[i] = items[i].kind * pieces + piece;
                store(share[i], through->shares(x - float(piece)));
            } else {
                window[i] = i / 16;
                store(share[i], Interpolation::one(i % 16));
            }
        }
    }

    // e_i before the remedy's factor, and 1 / rms of h_i, from |h_i|^2 = share . gram share; below zero is rounding
    // error.
    void scores(int n, float* out) {
        for (int i = 0; i < n; i++) {
            const f32x16 of_node = load(share[i]);
            const float along = horizontal_sum(of_node * load(along_key[0] + window[i] * stride));
            if (norm_in) {
                const float *by = share[i], *products = gram[16 * window[i]];
                f32x16 sum = broadcast(0);
                for (int k = 0; k < stride; k++) sum += broadcast(by[k]) * load(products + 16 * k);
                const float squared = horizontal_sum(of_node * sum);
                r[i] = 1.0f / std::sqrt((squared < 0 ? 0 : squared) * (1.0f / H) + epsilon);
            }
            out[i] = norm_in ? r[i] * along : along;
        }
    }

    // How much of every node an item with this weight brings to a sequence.
    RESHARPEN_INLINE void add_mass(float* of_sequence, int i, float w) {
        float* to = of_sequence + window[i] * stride;
        store(to, load(to) + broadcast(norm_in ? w * r[i] : w) * load(share[i]));
    }

    // What multiplies the logits of so many items, and its derivative by s.
    float training_factor(int length) const {
        return remedy == Remedy::ssmax   ? theta[ssmax_at] * by_ssmax(length)
               : remedy == Remedy::log_n ? by_ssmax(length)
                                         : 1.0f;
    }
    static float by_ssmax(int length) { return std::log(float(length)); }

    void reserve_items(int n) {
        share.reserve(n);
        if (n > int(r.size()))
            window.resize(n), r.resize(n), weight.resize(n + 16), e.resize(n + 16), d_weight.resize(n);
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

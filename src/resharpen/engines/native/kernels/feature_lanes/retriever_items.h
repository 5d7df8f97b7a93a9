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

    // Curves are cut in `pieces`, each with so many points; none where the items themselves are the nodes.
    const Interpolation eight{8}, sixteen{16};
    const Interpolation* through;
    int pieces;

    // Nodes, in whole vectors: a, the slope of its gelu, h and its gradient; h . k; of the sixteen of a vector
    // the products h . h, for the norm; gradients by the last two.
    int n_nodes;
    std::vector<Item> nodes;
    Rows<kRow> a, slope, h, d_h;
    Rows<16> along_key, gram, d_along_key, d_gram;
    Sheet h_across;  // h transposed

    // Items of a block: the vector of nodes that each is made of and its share of them; 1 / rms of h_i, softmax
    // weights, logits, gradients. And how much of every node is in a sequence, with the gradient by that.
    std::vector<int> vector_of;
    Rows<16> share;
    std::vector<float> r, weight, e, d_weight;
    Sheet mass, d_mass;

    // An item is a class and a number p, so a_i is on one of C curves, gelu(p w + t) with t the class's row. With n
    // points in every piece of a length 1 / J an entry of a_i is wrong by at most
    //
    //     (|w| / J)^n max|gelu^(n)| / n! 2 / 4^n = 3.6e-8 (|w| / J)^8 or 2.1e-17 (|w| / J)^16
    //
    // that is by 1e-9 with the bounds below, a hundredth of a rounding error. A NaN takes the first way and stays one.
    void choose_nodes(int most_pieces) {
        f32x16 steepest = broadcast(0);
        for (int v = 0; v < H; v += 16) steepest = max(steepest, abs(load(theta + kW1 + v)));
        const float w = horizontal_max(steepest);
        through = w > 0.6f ? &sixteen : &eight;
        for (pieces = 1; pieces <= most_pieces && w > 3.0f * float(pieces);) pieces *= 2;
        if (pieces > most_pieces) pieces = 0;
    }
    bool curved() const { return pieces > 0; }

    void nodes_on_curves() {
        nodes.clear();
        for (int c = 0; c < C; c++)
            for (int j = 0; j < pieces; j++)
                for (int k = 0; k < through->points; k++)
                    nodes.push_back({(float(j) + (*through)[k]) / float(pieces), c});
    }

    // Nodes to whole vectors, with what is computed of them.
    template <bool kTraining>
    void nodes_forward() {
        while (nodes.size() % 16) nodes.push_back(nodes.back());  // nobody's share
        const int n = n_nodes = int(nodes.size());
        a.reserve(n), h.reserve(n), slope.reserve(kTraining ? n : 1), along_key.reserve(n / 16);
        features<kTraining>();
        fill_rows(h, n, theta + kB2);
        gemm(n, H, kV, {a.data(), kRow, 1}, row_major(W2.data(), kRow), h.data(), kRow, true);
        for (int i = 0; i < n; i++) along_key.data()[i] = dot_row<kV>(h[i], gained_key);
        if (!kTraining && !norm_in) return;
        h_across.shape(H, n);
        for (int i = 0; i < n; i += 16)
            for (int j = 0; j < H; j += 16) transpose_block(h[i] + j, kRow, h_across[j] + i, h_across.row);
        if (norm_in) {
            gram.reserve(n);
            for (int i = 0; i < n; i += 16)
                gemm(16, H, 1, {h[i], kRow, 1}, row_major(h_across[0] + i, h_across.row), gram[i], 16);
        }
        if (!kTraining) return;
        d_h.reserve(n), d_along_key.reserve(n / 16), d_gram.reserve(n);
        std::memset(d_h.data(), 0, sizeof(float) * n * kRow);
        std::memset(d_along_key.data(), 0, sizeof(float) * n);
        std::memset(d_gram.data(), 0, sizeof(float) * n * 16);
    }

    template <bool kSlope>
    void features() {
        for (int i = 0; i < n_nodes; i++) {
            const f32x16 priority = broadcast(nodes[i].priority);
            const float *row = table[nodes[i].kind], *by_priority = theta + kW1;
            float *to = a[i], *to_slope = slope[kSlope ? i : 0];
            for (int v = 0; v < kV; v++) {
                f32x16 derivative;
                const f32x16 x = load(row + 16 * v) + priority * load(by_priority + 16 * v);
                store(to + 16 * v, gelu(x, derivative));
                if (kSlope) store(to_slope + 16 * v, derivative);
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
            if (!curved()) {
                vector_of[i] = i / 16;
                store(share[i], Interpolation::one(i % 16));
                continue;
            }
            const float x = items[i].priority * float(pieces);
            const int piece = std::min(int(x), pieces - 1);
            const int first = (items[i].kind * pieces + piece) * through->points;
            vector_of[i] = first / 16;
            store(share[i], through->shares(x - float(piece), first % 16));
        }
    }

    // e_i relative to nothing, before the remedy's factor, and 1 / rms of h_i, from |h_i|^2 = share . gram share; below
    // zero is rounding error.
    void scores(int n, float* out) {
        for (int i = 0; i < n; i++) {
            const f32x16 of_node = load(share[i]);
            const float along = horizontal_sum(of_node * load(along_key[vector_of[i]]));
            if (norm_in) {
                const float *by = share[i], *products = gram[16 * vector_of[i]];
                f32x16 even = broadcast(0), odd = broadcast(0);
                RESHARPEN_UNROLL
                for (int k = 0; k < 16; k += 2) {
                    even += broadcast(by[k]) * load(products + 16 * k);
                    odd += broadcast(by[k + 1]) * load(products + 16 * k + 16);
                }
                const float squared = horizontal_sum(of_node * (even + odd));
                r[i] = 1.0f / std::sqrt((squared < 0 ? 0 : squared) * (1.0f / H) + epsilon);
            }
            out[i] = norm_in ? r[i] * along : along;
        }
    }

    // How much of every node an item with this weight brings to a sequence.
    RESHARPEN_INLINE void add_mass(float* of_sequence, int i, float w) {
        float* to = of_sequence + 16 * vector_of[i];
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
            vector_of.resize(n), r.resize(n), weight.resize(n + 16), e.resize(n + 16), d_weight.resize(n);
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

// A minibatch of Set Complement as a list of states.
//
// Without positions the model sees of a prefix only its last token and its set of tokens. Prefixes that agree in both
// are merged into one state with a weight (their number) and the counts of their targets. Sets are bit masks. States
// are sorted by last token, so that a kernel can process one token's tables at a time.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "philox.h"

namespace {

// Position of the r-th set bit, counted from zero upwards.
inline int nth_set_bit(uint32_t set, int r) {
#if defined(__BMI2__)
    return __builtin_ctz(_pdep_u32(1u << r, set));
#else
    for (; r > 0; r--) set &= set - 1;
    return __builtin_ctz(set);
#endif
}

// The set without the bit of `token`, in V - 1 bits: bit j is token j, or j + 1 from `token` on.
RESHARPEN_INLINE uint32_t others(uint32_t set, int token) {
    const uint32_t below = (1u << token) - 1;
    return (set & below) | (set >> 1 & ~below);
}

// s + 1 distinct tokens per sequence: word i picks one of the V - i absent tokens. The same bits as
// `SetComplement.sample`.
template <int V, class Visit>
inline void sample_tokens(const uint32_t* words, int n_sequences, int length, Visit visit) {
    const uint32_t all = V == 32 ? ~0u : (1u << V % 32) - 1;
    for (int n = 0; n < n_sequences; n++) {
        uint32_t absent = all;
        for (int i = 0; i < length; i++) {
            const int token = nth_set_bit(absent, int(uint64_t(*words++) * uint64_t(V - i) >> 32));
            visit(i, token, all & ~absent);
            absent &= ~(1u << token);
        }
    }
}

template <int V>
class Minibatch {
  public:
    // Counts and weights are small integers, exact in float.
    struct State {
        uint32_t set;
        uint32_t others;
        float weight;
        float counts[(V + 15) / 16 * 16];
    };

    // States with last token t are states[begin[t]] .. states[begin[t + 1]]; with `by_size` sorted by size.
    std::vector<State> states;
    int begin[V + 1];

    explicit Minibatch(bool by_size) : by_size(by_size) {
        if (kDense) dense.assign(std::size_t(V) << (V - 1), {}), occupied.assign((V << (V - 1)) / 64 + 1, 0);
    }

    // n sequences of s inputs and one more token, from the stream (group, step).
    void draw(const uint32_t key[2], uint32_t group, uint32_t step, int n, int s) {
        words.resize(std::size_t(n) * (s + 1) + 4 * kBlocksAtOnce);
        philox_words(key, group, step, n * (s + 1), words.data());
        make_room(std::size_t(n) * s);
        int last = 0;
        sample_tokens<V>(words.data(), n, s + 1, [&](int i, int token, uint32_t set) {
            if (i > 0) add(last, set, token);
            last = token;
        });
        finish();
    }

    // Given inputs and targets, [n, s] each; the tokens of a sequence are distinct.
    void take(const int32_t* inputs, const int32_t* targets, int n, int s) {
        make_room(std::size_t(n) * s);
        for (int row = 0; row < n; row++) {
            uint32_t set = 0;
            for (int i = 0; i < s; i++, inputs++, targets++) {
                set |= 1u << *inputs;
                add(*inputs, set, *targets);
            }
        }
        finish();
    }

  private:
    // For small V every possible state (t, others) has a cell with the counts of its targets and, last, its weight; a
    // bit map marks the cells in use. For larger V prefixes are sorted by last token, then by size, so that loops over
    // the tokens of a set rarely change their length (branch prediction); sets of two, which still repeat, by the other
    // token.
    static constexpr bool kDense = V <= 10;
    static constexpr int kSizes = V + 1, kKeys = 2 * V;
    struct alignas(32) Cell {
        uint16_t counts[16];
    };
    struct Prefix {
        uint32_t set;
        uint16_t key;
        uint8_t last, target;
    };

    bool by_size;
    std::vector<uint32_t> words;
    std::vector<Prefix> drawn, sorted;
    std::size_t n_drawn;
    std::vector<Cell> dense;
    std::vector<uint64_t> occupied;

    void make_room(std::size_t most) {
        states.resize(most), drawn.resize(most), sorted.resize(most);
        n_drawn = 0;
    }

    RESHARPEN_INLINE void add(int last, uint32_t set, int target) {
        kDense ? add_dense(last, set, target) : add_prefix(last, set, target);
    }

    RESHARPEN_INLINE void add_dense(int last, uint32_t set, int target) {
        const uint32_t cell = uint32_t(last) << (V - 1) | others(set, last);
        dense[cell].counts[target]++;
        dense[cell].counts[15]++;
        occupied[cell / 64] |= uint64_t(1) << cell % 64;
    }

    RESHARPEN_INLINE void add_prefix(int last, uint32_t set, int target) {
        const int size = __builtin_popcount(set);
        const int key = size == 2 ? 1 + __builtin_ctz(others(set, last)) : size == 1 ? 0 : V + size - 3;
        drawn[n_drawn++] = {set, uint16_t(last * kKeys + key), uint8_t(last), uint8_t(target)};
    }

    void finish() { kDense ? collect_dense() : sort_prefixes(); }

    void collect_dense() {
        int next[V * kSizes + 1] = {};
        auto key = [&](uint32_t cell) {
            const int size = __builtin_popcount(cell & ((1u << (V - 1)) - 1));
            return int(cell >> (V - 1)) * kSizes + (by_size ? size : 0);
        };
        each_cell([&](uint32_t cell) { next[key(cell) + 1]++; });
        add_up(next);
        each_cell([&](uint32_t cell) {
            const int token = int(cell >> (V - 1));
            const uint32_t rest = cell & ((1u << (V - 1)) - 1), below = (1u << token) - 1;
            State& state = states[next[key(cell)]++];
            state.set = (rest & below) | 1u << token | (rest & ~below) << 1;
            state.others = rest;
            for (int i = 0; i < 16; i++) state.counts[i] = float(int(dense[cell].counts[i]));
            state.weight = state.counts[15];
            dense[cell] = {};
        });
        std::fill(occupied.begin(), occupied.end(), 0);
    }

    template <class F>
    void each_cell(F f) const {
        for (std::size_t word = 0; word < occupied.size(); word++)
            for (uint64_t left = occupied[word]; left; left &= left - 1) f(uint32_t(word * 64 + __builtin_ctzll(left)));
    }

    // Cumulative sums: from the number of states per key to the first state of each.
    void add_up(int* next) {
        for (int k = 0; k < V * kSizes; k++) next[k + 1] += next[k];
        for (int t = 0; t <= V; t++) begin[t] = next[t * kSizes];
    }

    void sort_prefixes() {
        int next[V * kKeys + 1] = {};
        for (std::size_t i = 0; i < n_drawn; i++) next[drawn[i].key + 1]++;
        for (int key = 0; key < V * kKeys; key++) next[key + 1] += next[key];
        for (std::size_t i = 0; i < n_drawn; i++) sorted[next[drawn[i].key]++] = drawn[i];
        Prefix before = {0, 0, 0, 0};
        int n = 0, token = 0;
        begin[0] = 0;
        for (std::size_t i = 0; i < n_drawn; i++) {
            const Prefix prefix = sorted[i];
            for (; token < prefix.last; token++) begin[token + 1] = n;
            if (prefix.key != before.key || prefix.set != before.set)
                states[n++] = {prefix.set, others(prefix.set, prefix.last), 0, {}};
            states[n - 1].weight++;
            states[n - 1].counts[prefix.target]++;
            before = prefix;
        }
        for (; token < V; token++) begin[token + 1] = n;
    }
};

}  // namespace

// Minibatches of Maximum Retrieval without padding.
#pragma once

#include <vector>

#include "philox.h"

namespace {

constexpr int kShortest = 5;

struct Item {
    float priority;
    int32_t kind;  // its class
};

// Sequence n has the items begin[n] .. begin[n + 1].
struct RetrievalBatch {
    std::vector<int> begin{0};
    std::vector<Item> items;
    std::vector<int> label;

    int n() const { return int(label.size()); }

    void clear() { begin.assign(1, 0), items.clear(), label.clear(); }

    void close(int wanted) { begin.push_back(int(items.size())), label.push_back(wanted); }
};

// The same bits as `MaxRetrieval.batch`: of the 1 + 2 s words per sequence one gives the length, two each an item.
inline void draw_retrieval(RetrievalBatch& batch, std::vector<uint32_t>& words, const uint32_t key[2], uint32_t group,
                           uint32_t step, int n, int s, int classes) {
    const int each = 1 + 2 * s;
    words.resize(std::size_t(n) * each + 4 * kBlocksAtOnce);
    philox_words(key, group, step, n * each, words.data());
    batch.clear();
    auto below = [](uint32_t word, int bound) { return int(uint64_t(word) * uint64_t(bound) >> 32); };
    for (int i = 0; i < n; i++) {
        const uint32_t* word = &words[std::size_t(i) * each];
        const int length = kShortest + below(*word++, s - kShortest + 1);
        float highest = -1;
        int label = 0;
        for (int j = 0; j < length; j++, word += 2) {
            const Item item{float(word[0] >> 8) * 0x1p-24f, below(word[1], classes)};
            if (item.priority > highest) highest = item.priority, label = item.kind;
            batch.items.push_back(item);
        }
        batch.close(label);
    }
}

}  // namespace

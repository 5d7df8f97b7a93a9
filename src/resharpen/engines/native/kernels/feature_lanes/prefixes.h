// Sequences that are worked on together, equal prefixes once: a causal model computes the same on them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

// Sequences one after another, position 0 of each at BOS.
struct Ragged {
    const int32_t *inputs, *targets, *lengths;
    int n;
};

// A sequence whose first `shared` tokens are those of the one before it, on the same rows; the others have rows of
// their own, from `row` on.
struct Branch {
    int length, shared, row;
};

// Rows are tokens: of one sequence, or of several, neighbors in alphabetical order. The path of a sequence is the row
// of each of its positions.
class Branches {
  public:
    std::vector<Branch> all;
    std::vector<int32_t> tokens;  // of every row
    std::vector<int> position;

    int rows() const { return int(tokens.size()); }

    void clear() { all.clear(), tokens.clear(), position.clear(), path.clear(), first.clear(), wanted.clear(); }

    void add(const int32_t* inputs, int length, int shared) {
        const Branch branch{length, shared, rows()};
        follow(branch);
        if (shared < length) all.push_back(branch);  // else it is the one before it once more
        for (int p = shared; p < length; p++) tokens.push_back(inputs[p]), position.push_back(p), first.push_back(-1);
    }

    // Targets of the sequence that was added last.
    void want(const int32_t* targets) {
        for (int row : path) wanted.push_back({*targets++, first[row]}), first[row] = int(wanted.size()) - 1;
    }

    // f(target) of all targets of a row; returns how many there are.
    template <class F>
    int each_target(int row, F f) const {
        int n = 0;
        for (int i = first[row]; i >= 0; i = wanted[i].next, n++) f(wanted[i].token);
        return n;
    }

    // f(branch, path) of all, in order.
    template <class F>
    void each(F f) {
        path.clear();
        for (const Branch& branch : all) f(branch, follow(branch));
    }

  private:
    struct Target {
        int32_t token, next;  // another one of the same row, or -1
    };
    std::vector<int> path, first;  // first: of every row's targets
    std::vector<Target> wanted;

    // The path of a branch, from that of the one before it.
    const std::vector<int>& follow(const Branch& branch) {
        path.resize(branch.shared);
        for (int p = branch.shared; p < branch.length; p++) path.push_back(branch.row + p - branch.shared);
        return path;
    }
};

// A minibatch in alphabetical order, where a sequence has its longest common prefix with the one before it.
class Alphabetical {
  public:
    struct Sequence {
        const int32_t *inputs, *targets;
        int length, shared;
    };
    std::vector<Sequence> all;
    int tokens = 0;

    explicit Alphabetical(const Ragged& batch) {
        for (int i = 0; i < batch.n; tokens += batch.lengths[i++])
            all.push_back({batch.inputs + tokens, batch.targets + tokens, batch.lengths[i], 0});
        std::stable_sort(all.begin(), all.end(), [](const Sequence& a, const Sequence& b) {
            return std::lexicographical_compare(a.inputs, a.inputs + a.length, b.inputs, b.inputs + b.length);
        });
        for (int i = 1; i < batch.n; i++) {
            const Sequence &a = all[i - 1], &b = all[i];
            all[i].shared =
                int(std::mismatch(b.inputs, b.inputs + std::min(a.length, b.length), a.inputs).first - b.inputs);
        }
    }
};

}  // namespace

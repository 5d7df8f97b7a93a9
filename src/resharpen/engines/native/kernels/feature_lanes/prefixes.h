// Sequences that are processed together; prefixes that they share are computed once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

// Concatenated sequences. A negative target is none: its place has no loss, but is read by those that follow. `first`
// has the position of each sequence's first token; if it is null, all are 0.
struct Ragged {
    const int32_t *inputs, *targets, *lengths, *first;
    int n;
};

// A sequence whose first `shared` tokens are those of the previous one and use the same rows; the others use new rows,
// from `row` on. `number` is its index in the minibatch.
struct Branch {
    int length, shared, row, number;
};

// One row per token, of one or several sequences that are neighbors in alphabetical order. The path of a sequence is
// the row of each of its positions.
class Branches {
  public:
    std::vector<Branch> all;
    std::vector<int32_t> tokens;  // of every row
    std::vector<int> position;
    std::vector<int> number, place;  // of the row's sequence in the minibatch, and of its token in the sequence

    int rows() const { return int(tokens.size()); }

    void clear() {
        all.clear(), tokens.clear(), position.clear(), number.clear(), place.clear();
        path.clear(), first.clear(), wanted.clear();
    }

    // A sequence whose first token has the position `start`.
    void add(const int32_t* inputs, int length, int shared, int start = 0, int of_batch = 0) {
        const Branch branch{length, shared, rows(), of_batch};
        follow(branch);
        if (shared < length) all.push_back(branch);  // else it repeats the previous one
        for (int p = shared; p < length; p++) {
            tokens.push_back(inputs[p]), position.push_back(start + p);
            number.push_back(of_batch), place.push_back(p), first.push_back(-1);
        }
    }

    // Add the targets of the last sequence.
    void want(const int32_t* targets) {
        for (int row : path) {
            const int32_t target = *targets++;
            if (target < 0) continue;
            wanted.push_back({target, first[row]});
            first[row] = int(wanted.size()) - 1;
        }
    }

    // Calls f(target) for all targets of a row; returns their number.
    template <class F>
    int each_target(int row, F f) const {
        int n = 0;
        for (int i = first[row]; i >= 0; i = wanted[i].next, n++) f(wanted[i].token);
        return n;
    }

    // Calls f(branch, path) for all branches in order.
    template <class F>
    void each(F f) {
        path.clear();
        for (const Branch& branch : all) f(branch, follow(branch));
    }

  private:
    struct Target {
        int32_t token, next;  // next: index of another target of the row, or -1
    };
    std::vector<int> path, first;  // first: index of the first target of each row
    std::vector<Target> wanted;

    // The path of a branch, from that of the previous one.
    const std::vector<int>& follow(const Branch& branch) {
        path.resize(branch.shared);
        for (int p = branch.shared; p < branch.length; p++) path.push_back(branch.row + p - branch.shared);
        return path;
    }
};

// A minibatch in alphabetical order, where neighbors have the longest common prefixes.
class Alphabetical {
  public:
    struct Sequence {
        const int32_t *inputs, *targets;
        int length, shared, start, number;
    };
    std::vector<Sequence> all;
    int targets = 0;  // of all sequences

    // `share`: whether equal prefixes are computed once; otherwise they count as different.
    Alphabetical(const Ragged& batch, bool share) {
        int tokens = 0;
        for (int i = 0; i < batch.n; tokens += batch.lengths[i++])
            if (batch.lengths[i] > 0)  // else none of its places is trained
                all.push_back({batch.inputs + tokens, batch.targets + tokens, batch.lengths[i], 0,
                               batch.first ? batch.first[i] : 0, i});
        targets = int(std::count_if(batch.targets, batch.targets + tokens, [](int32_t target) { return target >= 0; }));
        std::stable_sort(all.begin(), all.end(), [](const Sequence& a, const Sequence& b) {
            return std::lexicographical_compare(a.inputs, a.inputs + a.length, b.inputs, b.inputs + b.length);
        });
        for (std::size_t i = 1; share && i < all.size(); i++) {
            const Sequence &a = all[i - 1], &b = all[i];
            if (a.start != b.start) continue;
            all[i].shared =
                int(std::mismatch(b.inputs, b.inputs + std::min(a.length, b.length), a.inputs).first - b.inputs);
        }
    }
};

}  // namespace

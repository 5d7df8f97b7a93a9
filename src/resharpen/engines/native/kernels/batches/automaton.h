// Sequences of a probabilistic automaton, the same bits as `Automaton.draw` in Python.
#pragma once

#include <vector>

#include "philox.h"

namespace {

// Run-time tables [states, edges]. A word takes the first edge whose `last` it does not exceed. A token of -2 is the
// one on top of the stack, which is popped; a push of -1 is none; a next state of -1 is the end.
struct Automaton {
    const uint32_t* last;
    const int32_t *token, *to, *push;
    int32_t n_edges, bos;
};

// One sequence from the given blocks of the stream (group, step), cut at `cap` inputs; returns its number of inputs.
inline int sample_sequence(const Automaton& a, const uint32_t key[2], uint32_t group, uint32_t step, uint32_t block,
                           int cap, std::vector<int32_t>& stack, int32_t* inputs, int32_t* targets) {
    constexpr int kWords = 4 * kBlocksAtOnce;
    uint32_t words[kWords];
    int state = 0, input = a.bos, n = 0;
    stack.clear();
    while (n < cap && state >= 0) {
        if (n % kWords == 0) philox_blocks(key, block + n / 4, group, step, words);
        int edge = state * a.n_edges;
        while (words[n % kWords] > a.last[edge]) edge++;
        int token = a.token[edge];
        if (token == -2) token = stack.back(), stack.pop_back();
        if (a.push[edge] >= 0) stack.push_back(a.push[edge]);
        state = a.to[edge];
        inputs[n] = input, targets[n] = input = token;
        n++;
    }
    return n;
}

}  // namespace

// Sequences of a probabilistic automaton, the same bits as `Automaton.draw` in Python.
#pragma once

#include <vector>

#include "philox.h"

namespace {

// Tables [states, edges]. A random word selects the first edge whose `last` is not below it. Token -2 pops the stack
// and is the token popped; push -1 pushes nothing; next state -1 ends the sequence.
struct Automaton {
    const uint32_t* last;
    const int32_t *token, *to, *push;
    int32_t n_edges, bos;
};

// Draw a sequence of at most `cap` inputs from blocks of the stream (group, step); returns its length.
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

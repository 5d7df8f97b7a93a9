// The transformer: one model at a time, sequences at their true lengths.
//
// A vector is sixteen neighboring features. Widths are padded with zeros, which stay zero in forward, backward and
// AdamW. A few sequences at a time are processed forward and backward, so that activations stay in the second-level
// cache, and within these rows in chunks. Forward and backward of a shared prefix are computed once. All products are
// `gemm`, with weights (and transposed weights for the backward) packed into panels once per step. Up to q, k, v of the
// first layer before the rotation, a row depends on its token alone and is computed once per token; so is its backward,
// on sums by token; unless positions are added to the embedding.
#pragma once

#include <algorithm>

#include "transformer_backward.h"

namespace {

// Adds a sequence to those that are processed together; false if there is no room.
inline bool take(const Alphabetical::Sequence& s, Branches& branches) {
    const bool alone = branches.rows() == 0;
    const int shared = !alone && kWorth * s.shared >= s.length ? s.shared : 0;
    if (!alone && branches.rows() + s.length - shared > (shared > 0 ? kFamily : kTogether)) return false;
    branches.add(s.inputs, s.length, shared, s.start, s.number);
    branches.want(s.targets);
    return true;
}

// Writes the gradient of the mean negative log likelihood over all targets of a minibatch, and returns the latter.
inline double gradient_of(Transformer& m, const Ragged& batch, const float* theta, float epsilon, float* gradient) {
    prepare(m, theta, epsilon, true);
    m.grads.theta = gradient;
    std::memset(gradient, 0, sizeof(float) * m.setup.layout.size);
    for (Block& b : m.acts.blocks) clear(b.d_s), clear(b.scales.d_c), b.bias.clear_sums();
    const Alphabetical sorted(batch, !m.setup.drops);  // dropout differs between equal sequences
    double loss = 0;
    for (auto s = sorted.all.begin(); s != sorted.all.end();) {
        m.branches.clear();
        while (s != sorted.all.end() && take(*s, m.branches)) s++;
        make_room(m.branches, m.acts);
        forward(m, 0);
        loss += loss_backward(m, 1.0f / float(sorted.targets));
        backward(m);
    }
    tokens_backward(m.setup, m.weights, m.by_token, gradient);
    for (int l = 0; l < LAYERS; l++) {
        Block& b = m.acts.blocks[2 * l];
        for (int head = 0; b.at.s >= 0 && head < HEADS; head++) gradient[b.at.s + head] = float(b.d_s[head]);
        for (int j = 0; b.at.scales >= 0 && j < 2 * HEADS; j++)
            gradient[b.at.scales + DP * SP + j] = float(b.scales.d_c[j]);
        b.bias.backward(b.at, theta, gradient);
    }
    return loss / sorted.targets;
}

// At the scored positions of a sequence: TVD against p_star [scored, V], the logit of the marked token, if any, and all
// logits [scored, V] if there is room for them.
inline void score(Transformer& m, const int32_t* inputs, int length, const uint8_t* scored, const float*& p_star,
                  int marked, float*& tvd, float*& logit, float*& logits) {
    int from = 0;
    while (from < length && !scored[from]) from++;
    if (from == length) return;
    m.branches.clear();
    m.branches.add(inputs, length, 0);
    forward(m, from);
    for (int i = from; i < length; i++) {
        if (!scored[i]) continue;
        const float* z = at(m.acts.logits, i, VP);
        if (marked >= 0) *logit++ = z[marked];
        *tvd++ = total_variation(z, p_star);
        if (logits) logits = std::copy(z, z + V, logits);
        p_star += V;
    }
}

}  // namespace

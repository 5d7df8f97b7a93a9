// The transformer: one model at a time, sequences at their true lengths.
//
// A vector is sixteen neighbouring features; widths are padded to whole vectors with zeros, which stay zero through
// forward, backward and AdamW. Sequences are worked on a few at a time, forward and backward, so that what lies between
// stays in the second-level cache; within that, rows in chunks. All products are `gemm`, with weights (and transposed
// weights, for the backward) packed into panels once a step. Up to the first layer's q, k, v, before positions turn
// them, a row depends on its token alone: that is computed once a token, and so is its backward, on sums by token.
#pragma once

#include "transformer_backward.h"

namespace resharpen {

class Transformer : public TransformerBackward {
  public:
    using TransformerBackward::TransformerBackward;

    // The gradient of the mean negative log likelihood, which it returns; overwrites `gradient`.
    double gradient_of(const Ragged& batch, const float* theta, float epsilon, float* gradient) {
        prepare(theta, epsilon, true);
        this->gradient = gradient;
        std::memset(gradient, 0, sizeof(float) * size);
        for (Block& b : blocks) clear(b.d_ssmax);
        int tokens = 0;
        double loss = 0;
        for (int i = 0; i < batch.n; i++) tokens += batch.lengths[i];
        const int32_t *inputs = batch.inputs, *targets = batch.targets;
        for (int i = 0; i < batch.n;) {
            const int begin = i;
            int total = 0;
            do total += batch.lengths[i++];
            while (i < batch.n && total + batch.lengths[i] <= kTogether);
            open(inputs, batch.lengths + begin, i - begin, total);
            forward(0);
            loss += loss_backward(targets, 1.0f / float(tokens));
            backward();
            inputs += total, targets += total;
        }
        tokens_backward();
        if (remedy == Remedy::ssmax)
            for (int l = 0; l < LAYERS; l++)
                for (int head = 0; head < HEADS; head++)
                    gradient[blocks[2 * l].ssmax_at + head] = float(blocks[2 * l].d_ssmax[head]);
        return loss / tokens;
    }

    // At the scored positions of a sequence: TVD against p_star [scored, V], and the logit of a marked token if there
    // is.
    void evaluate(const int32_t* inputs, int length, const uint8_t* scored, const float*& p_star, int marked,
                  float*& tvd, float*& logit) {
        int from = 0;
        while (from < length && !scored[from]) from++;
        if (from == length) return;
        open(inputs, &length, 1, length);
        forward(from);
        for (int i = from; i < length; i++) {
            if (!scored[i]) continue;
            const float* z = at(logits, i, VP);
            if (marked >= 0) *logit++ = z[marked];
            *tvd++ = total_variation(z, p_star);
            p_star += V;
        }
    }
};

}  // namespace resharpen

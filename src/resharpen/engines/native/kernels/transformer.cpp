// The C interface of the transformer kernel: only sizes are compile-time constants.
#include "feature_lanes/transformer.h"

#include <numeric>

#include "batches/automaton.h"
#include "feature_lanes/train.h"

constexpr int kVersion = 2;  // raised when results change by more than rounding

namespace {
// Partial sums added in double: one sum of a hundred thousand floats would be too inexact.
float norm_of(const f32x16* x, int n) {
    double total = 0;
    for (int begin = 0; begin < n; begin += 64) {
        f32x16 piece = broadcast(0);
        const int end = std::min(begin + 64, n);
        for (int i = begin; i < end; i++) piece += x[i] * x[i];
        total += horizontal_sum(piece);
    }
    return std::sqrt(float(total));
}
}  // namespace

extern "C" {

const char* describe() {
    static const std::string text = [] {
        std::string all = contract<float>(kVersion, "tvd, marked");
        using A = Automaton;
        add_struct(all, "Automaton", sizeof(A),
                   {RESHARPEN_FIELD(A, last), RESHARPEN_FIELD(A, token), RESHARPEN_FIELD(A, to),
                    RESHARPEN_FIELD(A, push), RESHARPEN_FIELD(A, n_edges), RESHARPEN_FIELD(A, bos)});
        return all;
    }();
    return text.c_str();
}

const char* parameters(const Variant* variant) {
    thread_local std::string text;
    return (text = TransformerLayout(*variant).parameters()).c_str();
}

// Advance an ensemble by n_steps on the given minibatches, which are concatenated; lengths [steps, n]. A negative
// target is none: its place has no loss. `first` has the position of the first token of each sequence, [models, steps,
// n]; if it is null, all are 0. `dropout_rate` [models] is null without dropout, `dropout_keys` are [models, steps,
// kDropoutKeys, 2].
void train(const Training<float>* a, const float* cosine, const float* sine, const int32_t* inputs,
           const int32_t* targets, const int32_t* lengths, const int32_t* first, const float* dropout_rate,
           const uint32_t* dropout_keys, int32_t n, int32_t longest) {
    const FlushSubnormals flush;
    const auto model = std::make_unique<Transformer>(a->variant, Rotation{cosine, sine}, longest, true, dropout_rate);
    std::vector<Ragged> batches;
    for (int i = 0; i < a->n_steps; i++) {
        batches.push_back({inputs, targets, lengths, nullptr, n});
        const int tokens = std::accumulate(lengths, lengths + n, 0);
        inputs += tokens, targets += tokens, lengths += n;
    }
    auto gradient = [&](int m, int i, const float* theta, float epsilon, float* to) {
        Ragged batch = batches[i];
        const std::size_t of_step = std::size_t(m) * a->n_steps + i;
        if (first) batch.first = first + of_step * n;
        if (dropout_rate) model->dropout = Dropout(dropout_rate[m], dropout_keys + of_step * kDropoutKeys * 2);
        return gradient_of(*model, batch, theta, epsilon, to);
    };
    train_models(*a, model->setup.layout, gradient, norm_of);
}

// Scores of one model at the scored positions of n sequences, concatenated; `logits` may be null.
void evaluate(const float* theta, float epsilon, const Variant* variant, const float* cosine, const float* sine,
              const int32_t* inputs, const int32_t* lengths, const uint8_t* scored, int32_t n, int32_t longest,
              const float* p_star, int32_t marked, float* tvd, float* logit, float* logits) {
    const FlushSubnormals flush;
    const auto model = std::make_unique<Transformer>(*variant, Rotation{cosine, sine}, longest, false);
    prepare(*model, theta, epsilon, false);
    for (int i = 0; i < n; i++) {
        score(*model, inputs, lengths[i], scored, p_star, marked, tvd, logit, logits);
        inputs += lengths[i], scored += lengths[i];
    }
}

// Draw the minibatches of n_steps in the layout of `train`; returns the number of tokens.
int64_t sample(const Automaton* automaton, const uint32_t* key, uint32_t group, uint32_t first_step, int32_t n_steps,
               int32_t batch, int32_t cap, int32_t* inputs, int32_t* targets, int32_t* lengths) {
    std::vector<int32_t> stack;
    int64_t total = 0;
    for (int i = 0; i < n_steps; i++)
        for (int j = 0; j < batch; j++) {
            const int n = sample_sequence(*automaton, key, group, first_step + i, j * uint32_t((cap + 3) / 4), cap,
                                          stack, inputs + total, targets + total);
            *lengths++ = n;
            total += n;
        }
    return total;
}
}

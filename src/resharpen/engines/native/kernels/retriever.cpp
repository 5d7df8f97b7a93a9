// The C interface of the retriever kernel: sizes are compile-time constants, everything else comes at run time.
#include <memory>

#include "retriever.h"

using namespace resharpen;

namespace {
using Model = Retriever<RESHARPEN_H, RESHARPEN_C>;

// The numbers of one model, as `optim/adamw.py` names them.
struct ModelHyperparameters {
    float rms_epsilon, one_minus_beta1, one_minus_beta2, weight_decay, adam_epsilon, max_gradient_norm;
};

struct ModelStep {
    float learning_rate, correction1, correction2, ema_weight;
};

// Clip, AdamW and moving average of one model. As for an ensemble: a gradient norm that is not finite marks the model
// and leaves it as it is; new weights that are not finite mark it and stay.
void update(TrainingState s, f16* gradient, int vectors, const ModelHyperparameters& h, const ModelStep& row,
            int64_t step) {
    f16 squares[4] = {broadcast(0), broadcast(0), broadcast(0), broadcast(0)};
    for (int i = 0; i < vectors; i++) squares[i % 4] += gradient[i] * gradient[i];
    const float norm = std::sqrt(horizontal_sum((squares[0] + squares[1]) + (squares[2] + squares[3])));
    if (!std::isfinite(norm)) {
        *s.diverged_at = step;
        return;
    }
    const f16 clip = broadcast(norm > h.max_gradient_norm ? h.max_gradient_norm / norm : 1.0f);
    const Hyperparameters all{broadcast(h.rms_epsilon),  broadcast(h.one_minus_beta1), broadcast(h.one_minus_beta2),
                              broadcast(h.weight_decay), broadcast(h.adam_epsilon),    broadcast(h.max_gradient_norm)};
    const StepRow now{broadcast(row.learning_rate), broadcast(row.correction1), broadcast(row.correction2),
                      broadcast(row.ema_weight)};
    constexpr int kDecayEnd = Model::kDecayEnd / 16;
    const Mask everyone = mask_of((1u << kLanes) - 1);
    f16 canary = adamw_range<true>(s, gradient, 0, kDecayEnd, clip, all.weight_decay, all, now, everyone);
    canary += adamw_range<true>(s, gradient, kDecayEnd, vectors, clip, broadcast(0), all, now, everyone);
    if (!std::isfinite(horizontal_sum(canary))) *s.diverged_at = step;
}
}  // namespace

extern "C" {

// Mirrored by `engines/native/retriever.py`. The state is [models, 4 parts, size], the table [steps, models].
struct RetrieverTraining {
    f16* state;
    int64_t* diverged_at;
    const ModelHyperparameters* hyperparameters;
    const ModelStep* table;
    const float* priority;  // a given minibatch for a single step, [batch, length] padded, or null
    const int32_t *kind, *lengths, *labels;
    int64_t first_step;
    int32_t n_models, n_steps, batch, length;
    uint32_t key[2], group;
    int32_t norm_in, norm_out, remedy;
};

// Advance an ensemble by n_steps, a model after the other: its weights and moments stay in the cache meanwhile.
void train(const RetrieverTraining* a) {
    const FlushSubnormals flush;
    std::vector<RetrievalBatch> batches(a->n_steps);
    std::vector<uint32_t> words;
    for (int i = 0; i < a->n_steps; i++) {
        if (!a->priority) {
            draw_retrieval(batches[i], words, a->key, a->group, uint32_t(a->first_step + i), a->batch, a->length,
                           RESHARPEN_C);
            continue;
        }
        for (int n = 0; n < a->batch; n++) {
            for (int j = n * a->length; j < n * a->length + a->lengths[n]; j++)
                batches[i].items.push_back({a->priority[j], a->kind[j]});
            batches[i].close(a->labels[n]);
        }
    }
    const auto model = std::make_unique<Model>(a->norm_in != 0, a->norm_out != 0, Remedy(a->remedy));
    const int vectors = model->size / 16;
    std::vector<f16> gradient(vectors);
    for (int m = 0; m < a->n_models; m++) {
        f16* theta = a->state + std::size_t(m) * 4 * vectors;
        const TrainingState state{theta, theta + vectors, theta + 2 * vectors, theta + 3 * vectors, a->diverged_at + m};
        for (int i = 0; i < a->n_steps && a->diverged_at[m] < 0; i++) {
            model->gradient_of(batches[i], reinterpret_cast<const float*>(theta), a->hyperparameters[m].rms_epsilon,
                               reinterpret_cast<float*>(gradient.data()));
            update(state, gradient.data(), vectors, a->hyperparameters[m], a->table[i * a->n_models + m],
                   a->first_step + i);
        }
    }
}

// Scores of n sequences for every model, [models, stride] each or null; `begin` has n + 1 entries.
void evaluate(const float* theta, int32_t n_models, const ModelHyperparameters* hyperparameters, int32_t norm_in,
              int32_t norm_out, int32_t remedy, int32_t n, const int32_t* begin, const Item* items,
              const int32_t* labels, int64_t stride, float* correct, float* entropy, float* largest) {
    const FlushSubnormals flush;
    const auto model = std::make_unique<Model>(norm_in != 0, norm_out != 0, Remedy(remedy));
    for (int m = 0; m < n_models; m++) {
        auto of = [&](float* all) { return all ? all + m * stride : nullptr; };
        model->evaluate(theta + std::size_t(m) * model->size, hyperparameters[m].rms_epsilon, n, begin, items, labels,
                        of(correct), of(entropy), of(largest));
    }
}

// A minibatch as the kernel draws it, [batch, length] padded with zeros.
void sample(const uint32_t* key, uint32_t group, uint32_t step, int32_t n, int32_t length, float* priority,
            int32_t* kind, int32_t* lengths, int32_t* labels) {
    RetrievalBatch batch;
    std::vector<uint32_t> words;
    draw_retrieval(batch, words, key, group, step, n, length, RESHARPEN_C);
    for (int i = 0; i < n; i++) {
        lengths[i] = batch.begin[i + 1] - batch.begin[i], labels[i] = batch.label[i];
        for (int j = 0; j < lengths[i]; j++) {
            const Item item = batch.items[batch.begin[i] + j];
            priority[i * length + j] = item.priority, kind[i * length + j] = item.kind;
        }
    }
}

// gelu and its slope, for tests; n is a multiple of 16.
void gelu_of(int32_t n, const float* x, float* y, float* slope) {
    const FlushSubnormals flush;
    for (int i = 0; i < n; i += 16) {
        f16 derivative;
        store(y + i, gelu(load(x + i), derivative));
        store(slope + i, derivative);
    }
}
}

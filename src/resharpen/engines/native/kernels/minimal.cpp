// The C interface of the minimal kernel: sizes are compile-time constants, everything else comes at run time.
#include <memory>
#include <new>

#include "minimal.h"

using namespace resharpen;

namespace {
using Model = Minimal<RESHARPEN_V, RESHARPEN_D, RESHARPEN_K, RESHARPEN_DV>;
using Batch = Minibatch<RESHARPEN_V>;
}  // namespace

extern "C" {

// Mirrored by `engines/native/library.py`. Float arrays are [..., 16] and aligned to 64 bytes.
struct Training {
    f16 *theta, *m, *v, *ema;
    int64_t* diverged_at;
    const Hyperparameters* hyperparameters;
    const StepRow* table;  // one row a step
    const int32_t *inputs, *targets;  // a given minibatch for a single step, or null
    int64_t first_step;
    int32_t n_steps, batch, length;
    uint32_t key[2], group;
    uint8_t placement[5], merge;
};

// Advance an ensemble by n_steps.
void train(const Training* a) {
    const FlushSubnormals flush;
    const uint8_t* p = a->placement;
    const Placement placement{p[0] != 0, p[1] != 0, p[2] != 0, p[3] != 0, p[4] != 0};
    const auto model = std::make_unique<Model>(placement, Model::subsets_pay(a->length), *a->hyperparameters);
    const auto gradient = std::make_unique<f16[]>(Model::kMostParameters);
    Batch batch(a->merge != 0);
    const TrainingState state{a->theta, a->m, a->v, a->ema, a->diverged_at};
    for (int i = 0; i < a->n_steps; i++) {
        if (a->inputs)
            batch.take(a->inputs, a->targets, a->batch, a->length);
        else
            batch.draw(a->key, a->group, uint32_t(a->first_step + i), a->batch, a->length);
        model->gradient_of(batch, a->theta, gradient.get());
        clip_adamw_ema(state, gradient.get(), 1.0f / (float(a->batch) * float(a->length)), model->size, Model::kWQ,
                       Model::kGains, *a->hyperparameters, a->table[i], a->first_step + i);
    }
}

// TVD [n, 16] of n states, given sorted by last token and set; state i is written to tvd[where[i]].
void evaluate(const f16* theta, const Hyperparameters* hyperparameters, const uint8_t* p, int32_t n,
              const int32_t* last, const uint32_t* set, const int32_t* where, f16* tvd) {
    const FlushSubnormals flush;
    const Placement placement{p[0] != 0, p[1] != 0, p[2] != 0, p[3] != 0, p[4] != 0};
    const auto model = std::make_unique<Model>(placement, Model::subsets_pay(RESHARPEN_V), *hyperparameters);
    model->evaluate(theta, n, last, set, where, tvd);
}

// The tokens of a minibatch, [batch, length + 1].
void sample(const uint32_t* key, uint32_t group, uint32_t step, int32_t batch, int32_t length, int32_t* tokens) {
    std::vector<uint32_t> words(std::size_t(batch) * (length + 1) + 4 * kBlocksAtOnce);
    philox_words(key, group, step, batch * (length + 1), words.data());
    sample_tokens<RESHARPEN_V>(words.data(), batch, length + 1, [&](int n, int i, int token, uint32_t) {
        tokens[n * (length + 1) + i] = token;
    });
}
}

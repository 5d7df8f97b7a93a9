// The C interface of the transformer kernel: sizes are compile-time constants, everything else comes at run time.
#include <memory>

#include "automaton.h"
#include "transformer.h"

using namespace resharpen;

namespace {

using Model = Transformer<RESHARPEN_LAYERS, RESHARPEN_D, RESHARPEN_HEADS, RESHARPEN_MLP, RESHARPEN_V>;

Placement placement_of(const uint8_t* p) { return {p[0] != 0, p[1] != 0, p[2] != 0, p[3] != 0, p[4] != 0}; }

// In pieces, added up in double: a hundred thousand positive numbers in a row would come out too small.
float sum_of_squares(const f16* x, int n) {
    double total = 0;
    for (int begin = 0; begin < n; begin += 64) {
        f16 piece = broadcast(0);
        for (int i = begin; i < begin + 64 && i < n; i++) piece += x[i] * x[i];
        total += horizontal_sum(piece);
    }
    return float(total);
}

// Clip, AdamW and EMA of one model, the lanes being its weights; as `clip_adamw_ema` of adamw.h for a lane.
void update(float* state, int size, f16* gradient, const float* h, const float* row, int64_t step, int64_t& diverged_at) {
    const int n = size / kLanes;
    const float norm = std::sqrt(sum_of_squares(gradient, n));
    if (!std::isfinite(norm)) {
        diverged_at = step;
        return;
    }
    const Hyperparameters hyper{broadcast(h[0]), broadcast(h[1]), broadcast(h[2]),
                                broadcast(h[3]), broadcast(h[4]), broadcast(h[5])};
    const StepRow now{broadcast(row[0]), broadcast(row[1]), broadcast(row[2]), broadcast(row[3])};
    const f16 clip = broadcast(norm > h[5] ? h[5] / norm : 1.0f);
    f16* v = reinterpret_cast<f16*>(state);
    const TrainingState s{v, v + n, v + 2 * n, v + 3 * n, nullptr};
    f16 canary = broadcast(0);
    auto advance = [&](int begin, int end, f16 decay) {
        canary += adamw_range<true>(s, gradient, begin / kLanes, end / kLanes, clip, decay, hyper, now, Mask{});
    };
    advance(0, Model::kQKV, broadcast(0));
    advance(Model::kQKV, Model::kGains, hyper.weight_decay);
    advance(Model::kGains, size, broadcast(0));
    if (!std::isfinite(horizontal_sum(canary))) diverged_at = step;
}

}  // namespace

extern "C" {

// Mirrored by `engines/native/transformer.py`.
struct Training {
    float* state;  // [models, 4 (theta, m, v, ema), weights], aligned to 64 bytes
    int64_t* diverged_at;
    const float *hyperparameters, *table;  // [models, 6], [steps, models, 4]
    const float *cosine, *sine;
    const int32_t *inputs, *targets, *lengths;  // minibatches one after another; lengths [steps, batch]
    int64_t first_step;
    int32_t n_steps, n_models, batch, longest;
    uint8_t placement[5];
};

// Advance an ensemble by n_steps, model after model: a model's weights and moments stay in the cache over the steps.
void train(const Training* a) {
    const FlushSubnormals flush;
    const auto model = std::make_unique<Model>(placement_of(a->placement), Rotation{a->cosine, a->sine}, a->longest, true);
    std::vector<f16> gradient(model->size / kLanes);
    for (int m = 0; m < a->n_models; m++) {
        float* state = a->state + std::size_t(m) * 4 * model->size;
        Ragged batch{a->inputs, a->targets, a->lengths, a->batch};
        for (int i = 0; i < a->n_steps && a->diverged_at[m] < 0; i++) {
            model->gradient_of(batch, state, a->hyperparameters[6 * m], reinterpret_cast<float*>(gradient.data()));
            update(state, model->size, gradient.data(), a->hyperparameters + 6 * m, a->table + 4 * (i * a->n_models + m),
                   a->first_step + i, a->diverged_at[m]);
            int tokens = 0;
            for (int j = 0; j < a->batch; j++) tokens += batch.lengths[j];
            batch.inputs += tokens, batch.targets += tokens, batch.lengths += a->batch;
        }
    }
}

// One model's scores of n sequences at their scored positions, one after another.
void evaluate(const float* theta, float epsilon, const uint8_t* placement, const float* cosine, const float* sine,
              const int32_t* inputs, const int32_t* lengths, const uint8_t* scored, int32_t n, int32_t longest,
              const float* p_star, int32_t marked, float* out) {
    const FlushSubnormals flush;
    const auto model = std::make_unique<Model>(placement_of(placement), Rotation{cosine, sine}, longest, false);
    model->prepare(theta, epsilon, false);
    for (int i = 0; i < n; i++) {
        out = model->evaluate(inputs, lengths[i], scored, p_star, marked, out);
        inputs += lengths[i], scored += lengths[i];
    }
}

// The minibatches of n_steps, as `train` takes them; returns the number of tokens.
int64_t sample(const Automaton* automaton, const uint32_t* key, uint32_t group, uint32_t first_step, int32_t n_steps,
               int32_t batch, int32_t cap, int32_t* inputs, int32_t* targets, int32_t* lengths) {
    std::vector<int32_t> stack;
    int64_t total = 0;
    for (int i = 0; i < n_steps; i++)
        for (int j = 0; j < batch; j++) {
            const int n = sample_sequence(*automaton, key, group, first_step + i, j * uint32_t((cap + 3) / 4), cap, stack,
                                          inputs + total, targets + total);
            *lengths++ = n;
            total += n;
        }
    return total;
}

// The number of weights of a model, padding included.
int32_t weights(const uint8_t* placement) {
    static_assert(Model::kQKV % kLanes == 0);
    return Model(placement_of(placement), Rotation{}, 1, false).size;
}
}

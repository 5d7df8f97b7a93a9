// The C interface of the minimal kernel: only sizes are compile-time constants.
#include "model_lanes/minimal.h"

#include <memory>

constexpr int kVersion = 2;  // raised when results change by more than rounding

namespace {
// Scale the gradient of the summed loss to that of the mean; returns its norm in each lane.
f32x16 scale_gradient(float scale, int size, f32x16* gradient) {
    f32x16 squares = broadcast(0);
    for (int begin = 0; begin < size; begin += 32) {  // partial sums reduce the rounding error
        f32x16 few = broadcast(0);
        for (int i = begin; i < size && i < begin + 32; i++) {
            gradient[i] = scale * gradient[i];
            few += gradient[i] * gradient[i];
        }
        squares += few;
    }
    return sqrt(squares);
}
}  // namespace

extern "C" {

const char* describe() {
    static const std::string text = contract<f32x16>(kVersion, "tvd");
    return text.c_str();
}

const char* parameters(const Variant* variant) {
    thread_local std::string text;
    return (text = MinimalLayout(*variant).parameters()).c_str();
}

// Advance an ensemble by n_steps on minibatches drawn here or, for a single step, on the given one.
void train(const Training<f32x16>* a, const int32_t* inputs, const int32_t* targets, int32_t n, int32_t length,
           const uint32_t* key, uint32_t group) {
    const FlushSubnormals flush;
    const auto model = std::make_unique<Minimal>(a->variant, subsets_pay(length, a->variant),
                                                 forms_pay(length, a->variant.placement), *a->hyperparameters);
    const auto gradient = std::make_unique<f32x16[]>(kMostParameters);
    Minibatch<V> batch(a->variant.attention != AttentionKind::softmax);
    const int size = model->setup.layout.size;
    const StateArrays arrays(a->state, size);
    double loss[kLanes];
    const double nats = 0.6931471805599453 / (double(n) * length);  // from summed bits to mean nats
    for (int i = 0; i < a->n_steps; i++) {
        if (inputs)
            batch.take(inputs, targets, n, length);
        else
            batch.draw(key, group, uint32_t(a->first_step + i), n, length);
        gradient_of(*model, batch, arrays.theta, gradient.get(), loss);
        const f32x16 norm = scale_gradient(1.0f / (float(n) * float(length)), size, gradient.get());
        uint32_t frozen = 0;
        for (int lane = 0; lane < kLanes; lane++) frozen |= uint32_t(a->diverged_at[lane] >= 0) << lane;
        const uint32_t diverged =
            update(arrays, gradient.get(), norm, size, kWQ, kGains, *a->hyperparameters, a->table[i], frozen);
        for (int lane = 0; lane < kLanes; lane++) {
            if (diverged >> lane & 1) a->diverged_at[lane] = a->first_step + i;
            a->add_loss(lane, loss[lane] * nats);
        }
    }
}

// TVD [n, 16] of n states, which are sorted by last token and set; that of state i is written to tvd[where[i]].
void evaluate(const f32x16* theta, const Hyperparameters<f32x16>* hyperparameters, const Variant* variant, int32_t n,
              const int32_t* last, const uint32_t* set, const int32_t* where, f32x16* tvd) {
    const FlushSubnormals flush;
    const auto model = std::make_unique<Minimal>(*variant, subsets_pay(V, *variant), false, *hyperparameters);
    total_variations(*model, theta, n, last, set, where, tvd);
}
}

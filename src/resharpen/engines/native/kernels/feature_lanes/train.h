// Training of one model at a time: a vector is sixteen weights.
#pragma once

#include <vector>

#include "../training.h"

namespace {

inline Hyperparameters<f32x16> in_all_lanes(const Hyperparameters<float>& h) {
    return {broadcast(h.rms_epsilon),  broadcast(h.one_minus_beta1), broadcast(h.one_minus_beta2),
            broadcast(h.weight_decay), broadcast(h.adam_epsilon),    broadcast(h.max_gradient_norm)};
}

inline StepRow<f32x16> in_all_lanes(const StepRow<float>& row) {
    return {broadcast(row.lr), broadcast(row.correction1), broadcast(row.correction2), broadcast(row.ema_weight)};
}

// Advance an ensemble by n_steps, one model after another, so that its weights and moments stay in the cache.
// gradient_of(model, step, theta, epsilon, gradient) returns the loss, norm_of(gradient, vectors) the gradient's norm.
template <class Layout, class GradientOf, class NormOf>
void train_models(const Training<float>& a, const Layout& layout, GradientOf gradient_of, NormOf norm_of) {
    const int vectors = layout.size / kLanes;
    std::vector<f32x16> gradient(vectors);
    for (int m = 0; m < a.n_models; m++) {
        float* theta = a.state + std::size_t(m) * 4 * layout.size;
        const StateArrays arrays(reinterpret_cast<f32x16*>(theta), vectors);
        const Hyperparameters<f32x16> hyper = in_all_lanes(a.hyperparameters[m]);
        for (int i = 0; i < a.n_steps && a.diverged_at[m] < 0; i++) {
            const double loss =
                gradient_of(m, i, theta, a.hyperparameters[m].rms_epsilon, reinterpret_cast<float*>(gradient.data()));
            const f32x16 norm = broadcast(norm_of(gradient.data(), vectors));
            if (update(arrays, gradient.data(), norm, vectors, Layout::kDecayBegin / kLanes, Layout::kDecayEnd / kLanes,
                       hyper, in_all_lanes(a.table[m * a.n_steps + i])))
                a.diverged_at[m] = a.first_step + i;
            a.add_loss(m, loss);
        }
    }
}

}  // namespace

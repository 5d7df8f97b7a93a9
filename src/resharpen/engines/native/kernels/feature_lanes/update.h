// One step of the optimizer for one model, a vector being sixteen of its weights.
#pragma once

#include "../adamw.h"
#include "rows.h"

namespace resharpen {

// Clip a gradient of the given norm and advance `size` vectors; those from `decay_begin` to `decay_end` have weight
// decay. As for sixteen models: a norm that is not finite marks the model and leaves it as it is; new weights that are
// not finite mark it and stay.
inline void update(StateArrays s, const f32x16* gradient, float norm, int size, int decay_begin, int decay_end,
                   const Hyperparameters<float>& h, const StepRow<float>& row, int64_t step, int64_t& diverged_at) {
    if (!std::isfinite(norm)) {
        diverged_at = step;
        return;
    }
    const Hyperparameters<f32x16> all{broadcast(h.rms_epsilon),     broadcast(h.one_minus_beta1),
                                      broadcast(h.one_minus_beta2), broadcast(h.weight_decay),
                                      broadcast(h.adam_epsilon),    broadcast(h.max_gradient_norm)};
    const StepRow<f32x16> now{broadcast(row.lr), broadcast(row.correction1), broadcast(row.correction2),
                              broadcast(row.ema_weight)};
    const f32x16 clip = broadcast(norm > h.max_gradient_norm ? h.max_gradient_norm / norm : 1.0f);
    f32x16 canary = broadcast(0);
    auto advance = [&](int begin, int end, f32x16 decay) {
        canary += adamw_range<true>(s, gradient, begin, end, clip, decay, all, now, Mask{});
    };
    advance(0, decay_begin, broadcast(0));
    advance(decay_begin, decay_end, all.weight_decay);
    advance(decay_end, size, broadcast(0));
    if (!std::isfinite(horizontal_sum(canary))) diverged_at = step;
}

}  // namespace resharpen

// One step of the optimizer, whatever a lane is.
#pragma once

#include "adamw.h"

namespace {

// Clip a gradient of the given norm and advance `size` vectors; those from `decay_begin` to `decay_end` have weight
// decay, those before (embeddings) and after (gains) have none. Frozen lanes, and those whose norm is not finite, are
// left as they are. Returns the lanes that diverge: these, unless frozen, and those whose new weights are not finite,
// which stay so.
inline uint32_t update(StateArrays s, const f32x16* gradient, f32x16 norm, int size, int decay_begin, int decay_end,
                       const Hyperparameters<f32x16>& h, const StepRow<f32x16>& row, uint32_t frozen = 0) {
    constexpr uint32_t kAll = (1u << kLanes) - 1;
    const uint32_t finite_norm = finite(norm), alive = finite_norm & ~frozen;
    const f32x16 clip = select(norm > h.max_gradient_norm, h.max_gradient_norm / norm, broadcast(1));
    const Mask mask = mask_of(alive);
    f32x16 canary = broadcast(0);
    auto advance = [&](int begin, int end, f32x16 decay) {
        auto range = alive == kAll ? adamw_range<true> : adamw_range<false>;
        canary += range(s, gradient, begin, end, clip, decay, h, row, mask);
    };
    advance(0, decay_begin, broadcast(0));
    advance(decay_begin, decay_end, h.weight_decay);
    advance(decay_end, size, broadcast(0));
    return kAll & ~frozen & (~finite_norm | (alive & ~finite(canary)));
}

}  // namespace

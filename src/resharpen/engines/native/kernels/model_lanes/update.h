// One step of the optimizer for sixteen models at once, each lane with its own hyperparameters.
#pragma once

#include "../adamw.h"

namespace resharpen {

// Scale the gradient to the mean loss, clip it by the norm of each lane, and advance. Parameters from `decay_begin` to
// `decay_end` have weight decay, those before (embeddings) and after (gains) have none. A lane whose gradient norm is
// not finite is marked and left as it is; one whose new weights are not finite is marked and stays so.
inline void update(StateArrays s, f32x16* gradient, float scale, int size, int decay_begin, int decay_end,
                   const Hyperparameters<f32x16>& h, const StepRow<f32x16>& row, int64_t step, int64_t* diverged_at) {
    f32x16 squares = broadcast(0);
    for (int begin = 0; begin < size; begin += 32) {  // a sum of sums rounds less than one long sum
        f32x16 few = broadcast(0);
        for (int i = begin; i < size && i < begin + 32; i++) {
            gradient[i] = scale * gradient[i];
            few += gradient[i] * gradient[i];
        }
        squares += few;
    }
    const f32x16 norm = sqrt(squares);
    const f32x16 clip = select(norm > h.max_gradient_norm, h.max_gradient_norm / norm, broadcast(1));

    uint32_t frozen = 0;
    for (int lane = 0; lane < kLanes; lane++) frozen |= uint32_t(diverged_at[lane] >= 0) << lane;
    const uint32_t finite_norm = finite(norm), alive = finite_norm & ~frozen;
    const Mask mask = mask_of(alive);
    const bool all_alive = alive == (1u << kLanes) - 1;
    f32x16 canary = broadcast(0);
    auto advance = [&](int begin, int end, f32x16 decay) {
        auto range = all_alive ? adamw_range<true> : adamw_range<false>;
        canary += range(s, gradient, begin, end, clip, decay, h, row, mask);
    };
    advance(0, decay_begin, broadcast(0));
    advance(decay_begin, decay_end, h.weight_decay);
    advance(decay_end, size, broadcast(0));

    const uint32_t diverged = ~frozen & (~finite_norm | (alive & ~finite(canary)));
    for (int lane = 0; lane < kLanes; lane++)
        if (diverged >> lane & 1) diverged_at[lane] = step;
}

}  // namespace resharpen

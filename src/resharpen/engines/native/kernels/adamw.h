// Clipping, AdamW and the moving average, each lane with its own hyperparameters; `optim/adamw.py` has the formulas.
#pragma once

#include "vector.h"

namespace resharpen {

// What stays the same over training; 1 - beta and not beta, which float32 would round too coarsely near one.
struct Hyperparameters {
    f16 rms_epsilon, one_minus_beta1, one_minus_beta2, weight_decay, adam_epsilon, max_gradient_norm;
};

// What changes from step to step, a row of the table that `optim/schedule.py` computes in double.
struct StepRow {
    f16 learning_rate, correction1, correction2, ema_weight;
};

// The arrays of an ensemble, `size` vectors each, and the step at which each lane diverged, or -1.
struct TrainingState {
    f16 *theta, *m, *v, *ema;
    int64_t* diverged_at;
};

// c1 m / (sqrt(c2 v) + epsilon)
RESHARPEN_INLINE f16 adam_direction(f16 m, f16 v, f16 correction1, f16 correction2, f16 epsilon) {
    const f16 x = v * correction2;
#if defined(__AVX512F__)
    // sqrt(x) = x rsqrt(x); below the smallest normal number both it and its root are nothing beside epsilon, and at
    // infinity the root of the largest number is far enough.
    const f16 largest = broadcast(std::numeric_limits<float>::max());
    const f16 clamped = min(largest, max(broadcast(std::numeric_limits<float>::min()), x));
    return m * correction1 * reciprocal(clamped * rsqrt(clamped) + epsilon);
#else
    return m * correction1 / (sqrt(x) + epsilon);
#endif
}

// One range of parameters: m, v, theta and ema advance where `alive`. Returns a vector that is finite in the lanes
// where every new theta is.
//
//     m <- m + (1-b1) (g - m)          v <- v + (1-b2) (g^2 - v)          ema <- ema + b (theta - ema)
//     theta <- theta - lr lambda theta - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon)
template <bool kAllAlive>
inline f16 adamw_range(TrainingState s, const f16* gradient, int begin, int end, f16 clip, f16 decay,
                       const Hyperparameters& h, const StepRow& row, Mask alive) {
    const f16 shrink = row.learning_rate * decay;
    f16 canary = broadcast(0);
    for (int i = begin; i < end; i++) {
        const f16 g = gradient[i] * clip;
        const f16 m = s.m[i] + h.one_minus_beta1 * (g - s.m[i]);
        const f16 v = s.v[i] + h.one_minus_beta2 * (g * g - s.v[i]);
        const f16 direction = adam_direction(m, v, row.correction1, row.correction2, h.adam_epsilon);
        const f16 theta = s.theta[i] - shrink * s.theta[i] - row.learning_rate * direction;
        const f16 ema = s.ema[i] + row.ema_weight * (theta - s.ema[i]);
        canary += theta * broadcast(0);
        s.m[i] = kAllAlive ? m : select(alive, m, s.m[i]);
        s.v[i] = kAllAlive ? v : select(alive, v, s.v[i]);
        s.theta[i] = kAllAlive ? theta : select(alive, theta, s.theta[i]);
        s.ema[i] = kAllAlive ? ema : select(alive, ema, s.ema[i]);
    }
    return canary;
}

// Scale the gradient to the mean loss, clip it by the norm of each lane, and advance. Parameters from `decay_begin` to
// `decay_end` have weight decay, those before (embeddings) and after (gains) have none. A lane whose gradient norm is
// not finite is marked and left as it is; one whose new weights are not finite is marked and stays so.
inline void clip_adamw_ema(TrainingState s, f16* gradient, float scale, int size, int decay_begin, int decay_end,
                           const Hyperparameters& h, const StepRow& row, int64_t step) {
    f16 squares = broadcast(0);
    for (int begin = 0; begin < size; begin += 32) {  // a sum of sums rounds less than one long sum
        f16 few = broadcast(0);
        for (int i = begin; i < size && i < begin + 32; i++) {
            gradient[i] = scale * gradient[i];
            few += gradient[i] * gradient[i];
        }
        squares += few;
    }
    const f16 norm = sqrt(squares);
    const f16 clip = select(norm > h.max_gradient_norm, h.max_gradient_norm / norm, broadcast(1));

    uint32_t frozen = 0;
    for (int lane = 0; lane < kLanes; lane++) frozen |= uint32_t(s.diverged_at[lane] >= 0) << lane;
    const uint32_t finite_norm = finite(norm), alive = finite_norm & ~frozen;
    const Mask mask = mask_of(alive);
    const bool all_alive = alive == (1u << kLanes) - 1;
    f16 canary = broadcast(0);
    auto advance = [&](int begin, int end, f16 decay) {
        auto range = all_alive ? adamw_range<true> : adamw_range<false>;
        canary += range(s, gradient, begin, end, clip, decay, h, row, mask);
    };
    advance(0, decay_begin, broadcast(0));
    advance(decay_begin, decay_end, h.weight_decay);
    advance(decay_end, size, broadcast(0));

    const uint32_t diverged = ~frozen & (~finite_norm | (alive & ~finite(canary)));
    for (int lane = 0; lane < kLanes; lane++)
        if (diverged >> lane & 1) s.diverged_at[lane] = step;
}

}  // namespace resharpen

// AdamW with gradient clipping, and the moving average of the weights; a lane is a model or a weight.
// `optim/adamw.py` has the formulas.
#pragma once

#include "vector.h"

namespace {

// Constant during training. 1 - beta instead of beta, because float32 is too coarse near one.
template <class T>
struct Hyperparameters {
    T rms_epsilon, one_minus_beta1, one_minus_beta2, weight_decay, adam_epsilon, max_gradient_norm;
};

// One step of the schedule: a row of the table that `optim/schedule.py` computes in double.
template <class T>
struct StepRow {
    T lr, correction1, correction2, ema_weight;
};

// Weights, both moments and the moving average: contiguous arrays of `size` vectors each.
struct StateArrays {
    f32x16 *theta, *m, *v, *ema;
    StateArrays(f32x16* state, int size) : theta(state), m(state + size), v(state + 2 * size), ema(state + 3 * size) {}
};

// c1 m / (sqrt(c2 v) + epsilon)
RESHARPEN_INLINE f32x16 adam_direction(f32x16 m, f32x16 v, f32x16 correction1, f32x16 correction2, f32x16 epsilon) {
    const f32x16 x = v * correction2;
#if defined(__AVX512F__)
    // sqrt(x) = x rsqrt(x) for normal x. Below the smallest normal number the root is negligible compared to epsilon;
    // at infinity the root of the largest number is used.
    const f32x16 largest = broadcast(std::numeric_limits<float>::max());
    const f32x16 clamped = min(largest, max(broadcast(std::numeric_limits<float>::min()), x));
    return m * correction1 * reciprocal(clamped * rsqrt(clamped) + epsilon);
#else
    return m * correction1 / (sqrt(x) + epsilon);
#endif
}

// Update one range of parameters in the lanes that are `alive`. Returns the lanes where every new theta is finite.
// Stores to the state could alias the constants, which would be loaded again for every parameter: hence the copies.
//
//     m <- m + (1-b1) (g - m)          v <- v + (1-b2) (g^2 - v)          ema <- ema + b (theta - ema)
//     theta <- theta - lr lambda theta - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon)
template <bool kAllAlive>
inline uint32_t adamw_range(StateArrays s, const f32x16* gradient, int begin, int end, f32x16 clip, f32x16 decay,
                            const Hyperparameters<f32x16>& hyperparameters, const StepRow<f32x16>& step, Mask alive) {
    const Hyperparameters<f32x16> h = hyperparameters;
    const StepRow<f32x16> row = step;
    const f32x16 factor = clip;
    const f32x16 shrink = row.lr * decay;
    f32x16 canary = broadcast(0);
    for (int i = begin; i < end; i++) {
        const f32x16 g = gradient[i] * factor;
        const f32x16 m = s.m[i] + h.one_minus_beta1 * (g - s.m[i]);
        const f32x16 v = s.v[i] + h.one_minus_beta2 * (g * g - s.v[i]);
        const f32x16 direction = adam_direction(m, v, row.correction1, row.correction2, h.adam_epsilon);
        const f32x16 theta = s.theta[i] - shrink * s.theta[i] - row.lr * direction;
        const f32x16 ema = s.ema[i] + row.ema_weight * (theta - s.ema[i]);
        canary += theta * broadcast(0);
        s.m[i] = kAllAlive ? m : select(alive, m, s.m[i]);
        s.v[i] = kAllAlive ? v : select(alive, v, s.v[i]);
        s.theta[i] = kAllAlive ? theta : select(alive, theta, s.theta[i]);
        s.ema[i] = kAllAlive ? ema : select(alive, ema, s.ema[i]);
    }
    return finite(canary);
}

// Clip a gradient of the given norm and update `size` vectors. Weight decay applies from `decay_begin` to `decay_end`,
// not to embeddings (before) and gains (after). Frozen lanes and lanes whose norm is not finite do not change. Returns
// the lanes that diverged in this step: not frozen, and the norm or a new weight is not finite.
inline uint32_t update(StateArrays s, const f32x16* gradient, f32x16 norm, int size, int decay_begin, int decay_end,
                       const Hyperparameters<f32x16>& h, const StepRow<f32x16>& row, uint32_t frozen = 0) {
    constexpr uint32_t kAll = (1u << kLanes) - 1;
    const uint32_t finite_norm = finite(norm), alive = finite_norm & ~frozen;
    const f32x16 clip = select(norm > h.max_gradient_norm, h.max_gradient_norm / norm, broadcast(1));
    const Mask mask = mask_of(alive);
    uint32_t finite_theta = kAll;
    auto advance = [&](int begin, int end, f32x16 decay) {
        auto range = alive == kAll ? adamw_range<true> : adamw_range<false>;
        finite_theta &= range(s, gradient, begin, end, clip, decay, h, row, mask);
    };
    advance(0, decay_begin, broadcast(0));
    advance(decay_begin, decay_end, h.weight_decay);
    advance(decay_end, size, broadcast(0));
    return kAll & ~frozen & (~finite_norm | (alive & ~finite_theta));
}

}  // namespace

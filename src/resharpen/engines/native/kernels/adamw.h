// AdamW and the moving average, whatever a lane is; `optim/adamw.py` has the formulas.
#pragma once

#include "vector.h"

namespace {

// What stays the same over training; 1 - beta and not beta, which float32 would round too coarsely near one.
template <class T>
struct Hyperparameters {
    T rms_epsilon, one_minus_beta1, one_minus_beta2, weight_decay, adam_epsilon, max_gradient_norm;
};

// What changes from step to step, a row of the table that `optim/schedule.py` computes in double.
template <class T>
struct StepRow {
    T lr, correction1, correction2, ema_weight;
};

// The arrays that training changes, `size` vectors each, one after another in memory.
struct StateArrays {
    f32x16 *theta, *m, *v, *ema;
    StateArrays(f32x16* state, int size) : theta(state), m(state + size), v(state + 2 * size), ema(state + 3 * size) {}
};

// c1 m / (sqrt(c2 v) + epsilon)
RESHARPEN_INLINE f32x16 adam_direction(f32x16 m, f32x16 v, f32x16 correction1, f32x16 correction2, f32x16 epsilon) {
    const f32x16 x = v * correction2;
#if defined(__AVX512F__)
    // sqrt(x) = x rsqrt(x); below the smallest normal number both it and its root are nothing beside epsilon, and at
    // infinity the root of the largest number is far enough.
    const f32x16 largest = broadcast(std::numeric_limits<float>::max());
    const f32x16 clamped = min(largest, max(broadcast(std::numeric_limits<float>::min()), x));
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
inline f32x16 adamw_range(StateArrays s, const f32x16* gradient, int begin, int end, f32x16 clip, f32x16 decay,
                          const Hyperparameters<f32x16> h, const StepRow<f32x16> row, Mask alive) {
    const f32x16 shrink = row.lr * decay;
    f32x16 canary = broadcast(0);
    for (int i = begin; i < end; i++) {
        const f32x16 g = gradient[i] * clip;
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
    return canary;
}

}  // namespace

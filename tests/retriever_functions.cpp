// Functions of the retriever kernel by themselves, for tests.
#include "feature_lanes/retriever_nodes.h"

extern "C" {

// gelu and its slope; n is a multiple of 16.
void gelu_of(int32_t n, const float* x, float* y, float* slope) {
    const FlushSubnormals flush;
    for (int i = 0; i < n; i += 16) {
        f32x16 derivative;
        store(y + i, gelu(load(x + i), derivative));
        store(slope + i, derivative);
    }
}

// The shares of so many points in the value at each of n places, [n, 16].
void shares_of(int32_t points, int32_t n, const float* x, float* shares) {
    const Interpolation through(points);
    for (int i = 0; i < n; i++) store(shares + 16 * i, through.shares(x[i]));
}

// Up to which weight of the priority a curve is known through 5, 6, ... 16 points.
void steepest_of(float* weights) { std::copy(std::begin(kSteepest), std::end(kSteepest), weights); }
}

// Interpolation of smooth curves: the value between points is their sum weighted by a vector of shares.
#pragma once

#include <algorithm>
#include <cmath>

#include "rows.h"

namespace {

// Lagrange's interpolation on [0, 1] through up to sixteen points of Chebyshev,
//
//     f(x) = sum_k share_k f(x_k) + f^(n)(y) / n! prod_k (x - x_k),      |prod_k (x - x_k)| <= 2 / 4^n
//
// Points are multiples of 2^-19, so that they are exact in float, also when added to an integer below 32. The factors
// are computed for the rounded points, so the only errors are the remainder and the rounding of shares.
class Interpolation {
  public:
    explicit Interpolation(int n) : points(n) {
        for (int k = 0; k < n; k++)
            point[k] = float(std::round(0x1p19 * (0.5 - 0.5 * std::cos((k + 0.5) * M_PI / n))) * 0x1p-19);
        std::fill(point + n, point + kLanes, 2.0f);  // outside of [0, 1]; its factor is zero
        double factor[kLanes], largest = 0;
        for (int k = 0; k < n; k++) {
            factor[k] = 1;
            for (int j = 0; j < n; j++)
                if (j != k) factor[k] /= double(point[k]) - double(point[j]);
            largest = std::max(largest, std::abs(factor[k]));
        }
        for (int k = 0; k < n; k++) factors[k] = float(factor[k] / largest);
    }

    int points;

    float operator[](int k) const { return point[k]; }

    // The shares of the points in f(x), padded with zeros, in barycentric form: factor_k / (x - x_k) divided by their
    // sum. Differences of nearby floats are exact.
    RESHARPEN_INLINE f32x16 shares(float x) const {
        const f32x16 share = load(factors) / (broadcast(x) - load(point));
        const float sum = horizontal_sum(share);
        return std::isfinite(sum) ? (1.0f / sum) * share : one(int(std::find(point, point + points, x) - point));
    }

    // A share of one for a single point.
    static f32x16 one(int lane) {
        alignas(64) float lanes[kLanes] = {};
        if (lane < kLanes) lanes[lane] = 1;
        return load(lanes);
    }

  private:
    alignas(64) float point[kLanes], factors[kLanes] = {};
};

}  // namespace

// Smooth curves from a few of their points: a vector of shares says how much of each point is in a value between.
#pragma once

#include <algorithm>
#include <cmath>

#include "rows.h"

namespace resharpen {

// Lagrange's interpolation on [0, 1] through 8 or 16 points of Chebyshev. The points are floats and the factors are
// made for these very floats, so that all there is to an error is the remainder of the polynomial,
//
//     f(x) = sum_k share_k f(x_k) + f^(n)(y) / n! prod_k (x - x_k),      |prod_k (x - x_k)| <= 2 / 4^n
//
class Interpolation {
  public:
    explicit Interpolation(int n) : points(n) {
        for (int k = 0; k < kLanes; k++) point[k] = float(0.5 - 0.5 * std::cos((k % n + 0.5) * M_PI / n));
        double factor[kLanes], largest = 0;
        for (int k = 0; k < n; k++) {
            factor[k] = 1;
            for (int j = 0; j < n; j++)
                if (j != k) factor[k] /= double(point[k]) - double(point[j]);
            largest = std::max(largest, std::abs(factor[k]));
        }
        for (int from = 0; from < kLanes; from += n)
            for (int k = 0; k < n; k++) factors[from / 8][from + k] = float(factor[k] / largest);
    }

    const int points;

    float operator[](int k) const { return point[k]; }

    // The shares of the points in f(x), in the lanes from `first` on, and zeros in the others, in the barycentric form:
    // factor_k / (x - x_k), divided by their sum. The difference of floats that are near each other is exact.
    RESHARPEN_INLINE f32x16 shares(float x, int first) const {
        const f32x16 share = load(factors[first / 8]) / (broadcast(x) - load(point));
        const float sum = horizontal_sum(share);
        return std::isfinite(sum) ? (1.0f / sum) * share : at_point(x, first);
    }

    // All of it in one point.
    static f32x16 one(int lane) {
        alignas(64) float lanes[kLanes] = {};
        lanes[lane] = 1;
        return load(lanes);
    }

  private:
    alignas(64) float point[kLanes], factors[2][kLanes] = {};

    f32x16 at_point(float x, int first) const {
        const float* found = std::find(point, point + points, x);
        return found < point + points ? one(first + int(found - point)) : broadcast(x - x + NAN);
    }
};

}  // namespace resharpen

// Biases of attention logits that depend on the head and on the distance of query and key: ALiBi, NAPE, T5, KERPLE.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "transformer_layout.h"

namespace {

// The bucket of a distance: one each up to half of them, the others equally wide in the logarithm up to 128.
inline int bucket_of(int distance) {
    constexpr int kExact = kBuckets / 2, kFarthest = 128;
    if (distance < kExact) return distance;
    const double octaves = std::log(double(distance) / kExact) / std::log(double(kFarthest) / kExact);
    return std::min(kBuckets - 1, kExact + int(octaves * (kBuckets - kExact)));
}

// The biases of one layer, times sqrt(d_head) as attention adds them before its scale, and sums of the derivatives by
// q . k (HeadGradient).
struct DistanceBias {
    PositionKind kind;
    int longest;  // number of distances
    std::vector<float> table;
    std::vector<f32x16> by_distance;
    std::vector<int> bucket;

    void allocate(PositionKind positions, int length) {
        kind = positions, longest = length;
        const bool learned = kind == PositionKind::t5 || kind == PositionKind::kerple;
        if (learned || has_slopes()) table.resize(HEADS * (longest + 2 * kLanes));
        if (learned) by_distance.resize(HEADS * (longest + kLanes));
        if (kind == PositionKind::t5)
            for (int distance = 0; distance < longest; distance++) bucket.push_back(bucket_of(distance));
    }

    // Of the distance 0, or null if there is none; as far as HeadLogits says around it.
    const float* of(int head) const {
        return table.empty() ? nullptr : table.data() + head * (longest + 2 * kLanes) + kLanes;
    }
    f32x16* sums(int head) { return by_distance.empty() ? nullptr : &by_distance[head * (longest + kLanes)]; }
    void clear_sums() { std::fill(by_distance.begin(), by_distance.end(), broadcast(0)); }

    bool has_slopes() const { return kind == PositionKind::alibi || kind == PositionKind::nape; }
    double slope(int head) const {
        if (kind == PositionKind::alibi) return std::exp2(-8.0 * (head + 1) / HEADS);
        return head < HEADS / 2 ? 1.0 / (head + 1) : 0;
    }

    void fill(const TransformerLayout::Block& at, const float* theta) {
        if (table.empty()) return;
        const double size = std::sqrt(double(kHead));
        for (int head = 0; head < HEADS; head++) {
            float* to = table.data() + head * (longest + 2 * kLanes) + kLanes;
            if (has_slopes()) {
                for (int distance = 0; distance < longest; distance++)
                    to[distance] = float(-size * slope(head) * distance);
            } else if (kind == PositionKind::t5) {
                const float* b = theta + at.t5 + head * kBuckets;
                for (int distance = 0; distance < longest; distance++) to[distance] = float(size * b[bucket[distance]]);
            } else {
                const double r1 = std::exp(double(theta[at.log_r1 + head])),
                             r2 = std::exp(double(theta[at.log_r2 + head]));
                for (int distance = 0; distance < longest; distance++)
                    to[distance] = float(-size * r1 * std::log1p(r2 * distance));
            }
        }
    }

    // Writes the gradient by what is learned.
    void backward(const TransformerLayout::Block& at, const float* theta, float* gradient) {
        const double size = std::sqrt(double(kHead));
        for (int head = 0; !by_distance.empty() && head < HEADS; head++) {
            const float *sum = reinterpret_cast<const float*>(sums(head)), *biases = of(head);
            double d_bucket[kBuckets] = {}, d_log_r1 = 0, d_log_r2 = 0, r1 = 0, r2 = 0;
            if (kind == PositionKind::kerple)
                r1 = std::exp(double(theta[at.log_r1 + head])), r2 = std::exp(double(theta[at.log_r2 + head]));
            for (int distance = 0; distance < longest; distance++) {
                double d = 0;
                for (int lane = 0; lane < kLanes; lane++) d += sum[(distance + kLanes - 1 - lane) * kLanes + lane];
                if (kind == PositionKind::t5) {
                    d_bucket[bucket[distance]] += size * d;
                } else {
                    d_log_r1 += d * biases[distance];
                    d_log_r2 -= size * d * r1 * r2 * distance / (1 + r2 * distance);
                }
            }
            if (kind == PositionKind::t5)
                for (int i = 0; i < kBuckets; i++) gradient[at.t5 + head * kBuckets + i] = float(d_bucket[i]);
            else
                gradient[at.log_r1 + head] = float(d_log_r1), gradient[at.log_r2 + head] = float(d_log_r2);
        }
    }
};

}  // namespace

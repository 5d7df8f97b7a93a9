// Dropout of attention weights and of block outputs in training: `parts/dropout/dropout.py`, with the random numbers of
// `parts/moment.py`.
#pragma once

#include "../batches/philox.h"
#include "transformer_layout.h"

namespace {

// A key for the weights of a layer's attention, the output of that block, and the output of the MLP.
constexpr int kDropoutKeys = 3 * LAYERS;

class Dropout {
    int32_t threshold = 0;  // random numbers below it, of 2^24, are dropped
    float factor = 1;  // of the others
    const uint32_t* keys = nullptr;

  public:
    Dropout() = default;  // nothing is dropped
    Dropout(float rate, const uint32_t* keys)
        : threshold(int32_t(std::ceil(double(rate) * (1 << 24)))), factor(1.0f / (1.0f - rate)), keys(keys) {}

    explicit operator bool() const { return keys; }

    // Weights of sixteen queries from `begin` on for the keys from `first` on: a vector has one key.
    void weights(int layer, int sequence, int head, int begin, int first, int n_keys, const f32x16* from,
                 f32x16* to) const {
        const uint32_t* key = keys + 2 * (3 * layer);
        for (int group = first / 4; 4 * group < first + n_keys; group++) {
            alignas(64) uint32_t words[4][kLanes];
            for (int lane = 0; lane < kLanes; lane += kBlocksAtOnce) {
                WideRegister c[4] = {group - WideRegister{}, sequence - WideRegister{}, head - WideRegister{}, {}};
                for (int i = 0; i < kBlocksAtOnce; i++) c[3][i] = begin + lane + i;
                philox_rounds(key, c);
                for (int j = 0; j < 4; j++) store_low_halves(words[j] + lane, c[j]);
            }
            for (int j = 0; j < 4; j++)
                if (const int i = 4 * group + j - first; 0 <= i && i < n_keys) to[i] = factors(words[j]) * from[i];
        }
    }

    // The output of a block at one position.
    RESHARPEN_INLINE void output(int block, int sequence, int position, f32x16* row) const {
        uint32_t words[DP + 4 * kBlocksAtOnce];
        philox_words(keys + 2 * (block / 2 * 3 + 1 + block % 2), sequence, 0, DP, words, position);
        for (int j = 0; j < DP / kLanes; j++) row[j] *= factors(words + j * kLanes);
    }

  private:
    RESHARPEN_INLINE f32x16 factors(const uint32_t* words) const {
        Mask kept;
        RESHARPEN_UNROLL
        for (int i = 0; i < kPerVector; i++) {
            UnsignedRegister word;
            std::memcpy(&word, words + i * kLanes / kPerVector, kRegisterBytes);
            kept.reg[i] = (IntRegister)(word >> 8) >= threshold;
        }
        return select(kept, broadcast(factor), broadcast(0));
    }
};

}  // namespace

// The retriever: its sizes and the memory layout of its parameters.
#pragma once

#include "../contract.h"

namespace {

// The sizes that the kernel is compiled for: width, classes.
constexpr int H = RESHARPEN_H, C = RESHARPEN_C;
static_assert(H % kLanes == 0 && C <= kLanes, "a row of features is whole vectors, the logits are one");

// Offsets in floats: weights with decay, biases, then the gains of the placement and the s of ssmax.
constexpr int kW1 = 0, kW2 = kW1 + (1 + C) * H, kK = kW2 + H * H, kValue = kK + H * H, kQ = kValue + H * H;
constexpr int kW3 = kQ + H, kW4 = kW3 + H * H, kB1 = kW4 + H * C, kB2 = kB1 + H, kB3 = kB2 + H, kB4 = kB3 + H;
constexpr int kGains = kB4 + kLanes;

// Offsets that depend on the variant; -1 if it lacks the parameter.
struct RetrieverLayout {
    static constexpr int kDecayBegin = 0, kDecayEnd = kB1;
    int gain_in, gain_out, ssmax;
    int size;  // with the padding of b_4 and s

    explicit RetrieverLayout(Variant variant) {
        int next = kGains;
        auto place = [&](bool present, int n) { return present ? (next += n) - n : -1; };
        gain_in = place(variant.placement.block_in, H), gain_out = place(variant.placement.block_out, H);
        ssmax = place(variant.attention == AttentionKind::ssmax, kLanes);
        size = next;
    }

    std::string parameters() const {
        std::string text = parameters_begin(size, kDecayBegin, kDecayEnd);
        auto add = [&](const char* name, int at, int rows, int columns) {
            if (at >= 0) add_parameter(text, name, at, {{rows, columns}, {columns, 1}});
        };
        add("W_1", kW1, 1 + C, H), add("W_2", kW2, H, H), add("K", kK, H, H), add("V", kValue, H, H);
        add("q", kQ, 1, H), add("W_3", kW3, H, H), add("W_4", kW4, H, C);
        add("b_1", kB1, 1, H), add("b_2", kB2, 1, H), add("b_3", kB3, 1, H), add("b_4", kB4, 1, C);
        add("g_block_in", gain_in, 1, H), add("g_block_out", gain_out, 1, H), add("s_ssmax", ssmax, 1, 1);
        return text;
    }
};

}  // namespace

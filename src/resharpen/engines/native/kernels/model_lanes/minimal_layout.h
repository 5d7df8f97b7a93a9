// The minimal transformer: its sizes and the memory layout of its parameters.
#pragma once

#include "../contract.h"

namespace {

// The sizes that the kernel is compiled for: tokens, width, a key, a value.
constexpr int V = RESHARPEN_V, D = RESHARPEN_D, K = RESHARPEN_K, DV = RESHARPEN_DV;

// The matrices, E first, then the gains of the placement and the s of ssmax. Weight decay applies to W_Q .. U.
constexpr int kWQ = V * D, kWK = kWQ + D * K, kWV = kWK + D * K, kWO = kWV + D * DV, kU = kWO + DV * D;
constexpr int kGains = kU + D * V, kMostParameters = kGains + 5 * D + 1;

// Offsets that depend on the variant; -1 if it lacks the parameter.
struct MinimalLayout {
    int embedding_out, block_in, block_out, residual, unembedding_in, ssmax;
    int size;  // number of parameters

    explicit MinimalLayout(Variant variant) {
        const Placement& p = variant.placement;
        int next = kGains;
        auto place = [&](bool present, int n) { return present ? (next += n) - n : -1; };
        embedding_out = place(p.embedding_out, D), block_in = place(p.block_in, D);
        block_out = place(p.block_out, D), residual = place(p.residual, D);
        unembedding_in = place(p.unembedding_in, D);
        ssmax = place(variant.attention == AttentionKind::ssmax, 1);
        size = next;
    }

    std::string parameters() const {
        std::string text = parameters_begin(size, kWQ, kGains);
        auto add = [&](const char* name, int at, int rows, int columns) {
            if (at >= 0) add_parameter(text, name, at, {{rows, columns}, {columns, 1}});
        };
        add("E", 0, V, D), add("W_Q", kWQ, D, K), add("W_K", kWK, D, K), add("W_V", kWV, D, DV);
        add("W_O", kWO, DV, D), add("U", kU, D, V);
        add("g_embedding_out", embedding_out, 1, D), add("g_block_in", block_in, 1, D);
        add("g_block_out", block_out, 1, D), add("g_residual", residual, 1, D);
        add("g_unembedding_in", unembedding_in, 1, D), add("s_ssmax", ssmax, 1, 1);
        return text;
    }
};

}  // namespace

// Arguments of `train` common to all kernels. T is float, or a vector if a lane is a model.
#pragma once

#include "adamw.h"

namespace {

// An enumeration with the names of its enumerators: those of parts in Python, with underscores for dashes.
#define RESHARPEN_ENUM(Name, ...)              \
    enum class Name : uint8_t { __VA_ARGS__ }; \
    constexpr const char* names_of(Name) { return #__VA_ARGS__; }

// The parts of a variant; `parts/` has the formulas. contract.h describes every type of this file to Python.
struct Placement {
    bool embedding_out, block_in, block_out, residual, unembedding_in, heads_out, queries_keys;
};
RESHARPEN_ENUM(AttentionKind, softmax, log_n, ssmax, adaptive_temperature, window, sink, entmax, asentmax)
RESHARPEN_ENUM(NormFunction, rms, layer)
RESHARPEN_ENUM(PositionKind, rope, nope, alibi, nape, t5, kerple, rope_half, rope_500k, sinusoidal, learned,
               learned_offset)

struct Variant {
    Placement placement;
    AttentionKind attention;
    NormFunction norm;
    PositionKind positions;
    int32_t window;   // number of keys that a query sees, its own included; 0 for all
    int32_t learned;  // number of learned positions
};

// Arrays of floats are aligned to 64 bytes.
template <class T>
struct Training {
    T* state;              // theta, m, v, ema of each model
    int64_t* diverged_at;  // the step at which each model diverged, or -1
    double* loss;          // of each model, summed over all steps so far
    const Hyperparameters<T>* hyperparameters;
    const StepRow<T>* table;  // [models, steps], or [steps] of vectors
    int64_t first_step;
    int32_t n_steps, n_models;
    Variant variant;

    // Called after the update of a step; the loss of a diverged model is not added.
    void add_loss(int model, double of_step) const {
        if (diverged_at[model] < 0 && std::isfinite(of_step)) loss[model] += of_step;
    }
};

}  // namespace

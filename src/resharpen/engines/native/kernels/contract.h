// A description of the kernel's own types, as lines of a name and its value; `engines/native/contract.py` compares it
// with the Python side when a kernel is loaded.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>

#include "training.h"

namespace {

template <class... N>
void add_line(std::string& text, const std::string& name, N... numbers) {
    text += name;
    ((text += ' ' + std::to_string(numbers)), ...);
    text += '\n';
}

// One axis of a parameter: its size, and its stride in floats.
struct Axis {
    int size, stride;
};

// A parameter: its offset among the floats of a model, and its axes.
inline void add_parameter(std::string& text, const std::string& name, int offset, std::initializer_list<Axis> axes) {
    text += name + ' ' + std::to_string(offset);
    for (const Axis& axis : axes) text += ' ' + std::to_string(axis.size) + ' ' + std::to_string(axis.stride);
    text += '\n';
}

// Head of a list of parameters: the number of floats of a model with padding, and the range with weight decay.
inline std::string parameters_begin(int floats, int decay_begin, int decay_end) {
    std::string text;
    add_line(text, "floats", floats);
    add_line(text, "decay", decay_begin, decay_end);
    return text;
}

struct Field {
    const char* name;
    std::size_t offset, size;
};
#define RESHARPEN_FIELD(S, field) {#field, offsetof(S, field), sizeof(S::field)}

inline void add_struct(std::string& text, const std::string& name, std::size_t size,
                       std::initializer_list<Field> fields) {
    add_line(text, name, size);
    for (const Field& field : fields) add_line(text, name + '.' + field.name, field.offset, field.size);
}

// The part common to all kernels. `measures` are the outputs of `evaluate`, in the order of its arguments.
template <class T>
std::string contract(int version, const char* measures) {
    std::string text;
    add_line(text, "version", version);
    text += std::string("measures ") + measures + '\n';
    text += std::string("attention ") + names_of(AttentionKind()) + '\n';
    text += std::string("norm ") + names_of(NormFunction()) + '\n';
    text += std::string("positions ") + names_of(PositionKind()) + '\n';
    using P = Placement;
    add_struct(text, "Placement", sizeof(P),
               {RESHARPEN_FIELD(P, embedding_out), RESHARPEN_FIELD(P, block_in), RESHARPEN_FIELD(P, block_out),
                RESHARPEN_FIELD(P, residual), RESHARPEN_FIELD(P, unembedding_in), RESHARPEN_FIELD(P, heads_out),
                RESHARPEN_FIELD(P, queries_keys)});
    add_struct(
        text, "Variant", sizeof(Variant),
        {RESHARPEN_FIELD(Variant, placement), RESHARPEN_FIELD(Variant, attention), RESHARPEN_FIELD(Variant, norm),
         RESHARPEN_FIELD(Variant, positions), RESHARPEN_FIELD(Variant, window), RESHARPEN_FIELD(Variant, learned)});
    using A = Training<T>;
    add_struct(text, "Training", sizeof(A),
               {RESHARPEN_FIELD(A, state), RESHARPEN_FIELD(A, diverged_at), RESHARPEN_FIELD(A, loss),
                RESHARPEN_FIELD(A, hyperparameters), RESHARPEN_FIELD(A, table), RESHARPEN_FIELD(A, first_step),
                RESHARPEN_FIELD(A, n_steps), RESHARPEN_FIELD(A, n_models), RESHARPEN_FIELD(A, variant)});
    using H = Hyperparameters<T>;
    add_struct(
        text, "Hyperparameters", sizeof(H),
        {RESHARPEN_FIELD(H, rms_epsilon), RESHARPEN_FIELD(H, one_minus_beta1), RESHARPEN_FIELD(H, one_minus_beta2),
         RESHARPEN_FIELD(H, weight_decay), RESHARPEN_FIELD(H, adam_epsilon), RESHARPEN_FIELD(H, max_gradient_norm)});
    using R = StepRow<T>;
    add_struct(text, "StepRow", sizeof(R),
               {RESHARPEN_FIELD(R, lr), RESHARPEN_FIELD(R, correction1), RESHARPEN_FIELD(R, correction2),
                RESHARPEN_FIELD(R, ema_weight)});
    return text;
}

}  // namespace

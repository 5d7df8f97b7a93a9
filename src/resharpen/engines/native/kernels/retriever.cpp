// The C interface of the retriever kernel: only sizes are compile-time constants.
#include "feature_lanes/retriever.h"

#include <memory>

#include "feature_lanes/train.h"

constexpr int kVersion = 2;  // raised when results change by more than rounding

namespace {
float norm_of(const f32x16* x, int n) {
    f32x16 squares[4] = {broadcast(0), broadcast(0), broadcast(0), broadcast(0)};
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        RESHARPEN_UNROLL
        for (int k = 0; k < 4; k++) squares[k] += x[i + k] * x[i + k];
    }
    for (int k = 0; i < n; i++, k++) squares[k] += x[i] * x[i];
    return std::sqrt(horizontal_sum((squares[0] + squares[1]) + (squares[2] + squares[3])));
}
}  // namespace

extern "C" {

const char* describe() {
    static const std::string text = [] {
        std::string all = contract<float>(kVersion, "accuracy, entropy, largest_weight");
        add_struct(all, "Item", sizeof(Item), {RESHARPEN_FIELD(Item, priority), RESHARPEN_FIELD(Item, kind)});
        return all;
    }();
    return text.c_str();
}

const char* parameters(const Variant* variant) {
    thread_local std::string text;
    return (text = RetrieverLayout(*variant).parameters()).c_str();
}

// Advance an ensemble by n_steps on minibatches drawn here or, for a single step, on the given one, [n, length] padded.
void train(const Training<float>* a, const float* priority, const int32_t* kind, const int32_t* lengths,
           const int32_t* labels, int32_t n, int32_t length, const uint32_t* key, uint32_t group) {
    const FlushSubnormals flush;
    std::vector<RetrievalBatch> batches(a->n_steps);
    std::vector<uint32_t> words;
    for (int i = 0; i < a->n_steps; i++) {
        if (!priority) {
            draw_retrieval(batches[i], words, key, group, uint32_t(a->first_step + i), n, length, C);
            continue;
        }
        for (int s = 0; s < n; s++) {
            for (int j = s * length; j < s * length + lengths[s]; j++)
                batches[i].items.push_back({priority[j], kind[j]});
            batches[i].close(labels[s]);
        }
    }
    const auto model = std::make_unique<Retriever>(a->variant);
    auto gradient = [&](int, int i, const float* theta, float epsilon, float* to) {
        return gradient_of(*model, batches[i], theta, epsilon, to);
    };
    train_models(*a, model->setup.layout, gradient, norm_of);
}

// Scores of n sequences for every model, [models, stride] each or null; `begin` has n + 1 entries.
void evaluate(const float* theta, int32_t n_models, const Hyperparameters<float>* hyperparameters,
              const Variant* variant, int32_t n, const int32_t* begin, const Item* items, const int32_t* labels,
              int64_t stride, float* correct, float* entropy, float* largest) {
    const FlushSubnormals flush;
    const auto model = std::make_unique<Retriever>(*variant);
    for (int m = 0; m < n_models; m++) {
        auto of = [&](float* all) { return all ? all + m * stride : nullptr; };
        score(*model, theta + std::size_t(m) * model->setup.layout.size, hyperparameters[m].rms_epsilon, n, begin,
              items, labels, of(correct), of(entropy), of(largest));
    }
}
}

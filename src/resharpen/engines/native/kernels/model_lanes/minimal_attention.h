// The minimal transformer: attention of the states of one last token, as sums of rows; minimal.h has the formulas.
#pragma once

#include "minimal_weights.h"

namespace {

constexpr int kChunk = 10;   // columns of a sum in registers
constexpr int kAtOnce = 64;  // states attended to together: one bit of a word each

// The working memory of the kernel: tokens, the weights of one last token, and some of its states. `sums` are sums of
// rows, then their gradients.
struct Minimal {
    const Setup setup;
    Tokens at;
    TokenGradients d;
    Forms forms;
    Weights w;
    Subsets subsets;
    Prefix prefix[kAtOnce];
    f32x16 sums[kAtOnce][kStride];
    f32x16 bits, rounded_off;  // the loss, as a compensated sum

    Minimal(Variant variant, bool subsets, bool forms, const Hyperparameters<f32x16>& h)
        : setup(variant, h, subsets, forms) {}

    // With subsets few, to stay in the first-level cache; without, many, because rows are read once for all states.
    int at_once() const { return setup.subsets ? kBlock : kAtOnce; }
};

// ---- lanes whose attention logits lie far apart --------------------------------------------------------------------

template <class N>
void attend_in_far_lanes(int t, uint32_t set, const Weights& w, const Tokens& at, const Forms& forms, f32x16* sum) {
    constexpr int COLUMNS = N::kColumns;
    f32x16 careful[COLUMNS], e[V];
    weights_in(w, t, set, e);
    for (f32x16& x : careful) x = broadcast(0);
    for (uint32_t left = set; left; left &= left - 1) {
        const int j = __builtin_ctz(left);
        for (int c = 0; c < COLUMNS; c++) careful[c] += e[j] * at.value[j][c];
    }
    for (int c = 0; c < COLUMNS; c++) sum[c] = select(w.far, careful[c], sum[c]);
    for (int f = N::kFirst; f < N::kEnd; f++)
        sum[kForm + f] = select(w.far, form_of(forms.gram[f], set, e), sum[kForm + f]);
}

// In the given lanes, pass the gradient of a state's sum to its values directly and set it to zero.
template <class N>
void values_backward(uint32_t set, const f32x16* e, Mask lanes, f32x16* sum, Forms& forms, TokenGradients& d) {
    for (int c = 0; c < N::kColumns; c++) {
        const f32x16 d_sum = select(lanes, sum[c], broadcast(0));
        sum[c] = select(lanes, broadcast(0), sum[c]);
        for (uint32_t left = set; left; left &= left - 1) {
            const int j = __builtin_ctz(left);
            d.value[j][c] += e[j] * d_sum;
        }
    }
    for (int f = N::kFirst; f < N::kEnd; f++) {
        gram_of_form_backward(set, e, select(lanes, sum[kForm + f], broadcast(0)), forms.d_gram[f]);
        sum[kForm + f] = select(lanes, broadcast(0), sum[kForm + f]);
    }
}

// In wide lanes the gradient of the logits is computed per state, in far lanes that of the values, too.
template <class N>
void attend_in_wide_lanes_backward(Minimal& m, int t, uint32_t set, f32x16* sum) {
    f32x16 local[V], d_e[V];
    if (m.w.any_far) weights_in(m.w, t, set, local);
    const f32x16* e = m.w.any_far ? local : m.w.e;
    for (uint32_t left = set; left; left &= left - 1) {
        const int j = __builtin_ctz(left);
        const f32x16* value = m.at.value[j];
        d_e[j] = dot<V>(sum, value);
        if constexpr (N::kVectors) d_e[j] += dot<D>(sum + kO, value + kO);
        if constexpr (N::kForms && N::kNorm) d_e[j] += sum[kC] * value[kC];
    }
    for (int f = N::kFirst; f < N::kEnd; f++) weights_of_form_backward(m.forms.gram[f], set, e, sum[kForm + f], d_e);
    add_attention_gradient(m.setup, t, m.at, m.w, set, e, d_e, m.w.wide, m.d);
    if (m.w.any_far) values_backward<N>(set, e, m.w.far, sum, m.forms, m.d);
}

// The state of one token. Its weight is one for any logit, so only its value has a gradient. Sets that of the sum to
// zero.
template <class N>
void attend_to_one_backward(int t, const Weights& w, f32x16* sum, Forms& forms, TokenGradients& d) {
    f32x16 e[V];
    weights_in(w, t, 1u << t, e);
    RESHARPEN_UNROLL
    for (int c = 0; c < N::kColumns; c++) d.value[t][c] += e[t] * sum[c];
    for (int f = N::kFirst; f < N::kEnd; f++) gram_of_form_backward(1u << t, e, sum[kForm + f], forms.d_gram[f]);
    clear_row<N::kEnd == N::kFirst ? N::kColumns : kForm + N::kEnd>(sum);
}

// ---- sums of rows --------------------------------------------------------------------------------------------------

// A few columns at a time for all states: sums stay in registers, and for large V only these columns of the rows fit
// into the first-level cache.
template <int FIRST, int COLUMNS>
void sum_rows(int n, const Prefix* prefix, const Weights& w, const Tokens& at, f32x16 (*sums)[kStride]) {
    constexpr int N = COLUMNS - FIRST < kChunk ? COLUMNS - FIRST : kChunk;
    for (int i = 0; i < n; i++) {
        f32x16 sum[N];
        RESHARPEN_UNROLL
        for (int c = 0; c < N; c++) sum[c] = broadcast(0);
        for (uint32_t left = prefix[i].set; left; left &= left - 1) {
            const int j = __builtin_ctz(left);
            RESHARPEN_UNROLL
            for (int c = 0; c < N; c++) sum[c] += w.e[j] * at.value[j][FIRST + c];
        }
        RESHARPEN_UNROLL
        for (int c = 0; c < N; c++) sums[i][FIRST + c] = sum[c];
    }
    if constexpr (FIRST + N < COLUMNS) sum_rows<FIRST + N, COLUMNS>(n, prefix, w, at, sums);
}

// R_j of a few columns, from the states that contain j.
template <int FIRST, int COLUMNS>
void sum_rows_backward(const uint64_t* holders, const f32x16 (*sums)[kStride], const Tokens& at, Weights& w,
                       TokenGradients& d) {
    constexpr int N = COLUMNS - FIRST < kChunk ? COLUMNS - FIRST : kChunk;
    for (int j = 0; j < V; j++) {
        f32x16 sum[N];
        RESHARPEN_UNROLL
        for (int c = 0; c < N; c++) sum[c] = broadcast(0);
        for (uint64_t left = holders[j]; left; left &= left - 1) add_to<N>(sum, sums[__builtin_ctzll(left)] + FIRST);
        if (holders[j]) w.d_e[j] += row_backward<FIRST, FIRST + N>(w.e[j], at.value[j], sum, d.value[j]);
    }
    if constexpr (FIRST + N < COLUMNS) sum_rows_backward<FIRST + N, COLUMNS>(holders, sums, at, w, d);
}

// ---- all of it -----------------------------------------------------------------------------------------------------

// The weights of one last token, and the tables shared by all of its states.
template <class N>
void last_token_forward(Minimal& m, int t) {
    weigh_tokens(m.setup, t, m.at, m.w);
    if (m.setup.subsets) sum_subsets<N::kColumns>(t, m.w, m.at, m.subsets);
    weigh_pairs<N>(t, m.w, m.forms, m.at);
}

// From d e_tj to the attention logits. Scaling all e_tj changes nothing, so d e_t is orthogonal to e_t; the component
// along e_t is a rounding error and is removed. Tokens that are in no state keep a gradient of exactly zero: AdamW
// would turn a rounding error into a full step.
template <class N>
void last_token_backward(Minimal& m, int t) {
    if (m.setup.subsets) sum_subsets_backward<N::kColumns>(t, m.w, m.at, m.subsets, m.d);
    weigh_pairs_backward<N>(t, m.w, m.forms, m.d);
    if (m.w.seen)
        add_attention_gradient(m.setup, t, m.at, m.w, m.w.seen, m.w.e, m.w.d_e, mask_of(~bits(m.w.wide)), m.d);
}

// sum_{j in S} of the rows for n states
template <class N>
void attend(Minimal& m, int t, int n) {
    if (m.setup.subsets)
        attend_by_subsets<N::kColumns>(t, n, m.prefix, m.subsets, m.sums);
    else
        sum_rows<0, N::kColumns>(n, m.prefix, m.w, m.at, m.sums);
    if constexpr (N::kForms)
        for (int i = 0; i < n; i++) sum_pairs<N>(m.prefix[i].set, m.forms, m.sums[i]);
    if (m.w.any_far)
        for (int i = 0; i < n; i++) attend_in_far_lanes<N>(t, m.prefix[i].set, m.w, m.at, m.forms, m.sums[i]);
}

template <class N>
void attend_backward(Minimal& m, int t, int n) {
    uint32_t seen = m.w.seen;
    for (int i = 0; i < n; i++)
        if (m.prefix[i].others)
            seen |= m.prefix[i].set;
        else
            attend_to_one_backward<N>(t, m.w, m.sums[i], m.forms, m.d);
    m.w.seen = seen;
    if (m.w.any_wide)
        for (int i = 0; i < n; i++)
            if (m.prefix[i].others) attend_in_wide_lanes_backward<N>(m, t, m.prefix[i].set, m.sums[i]);
    if constexpr (N::kForms)
        for (int i = 0; i < n; i++) sum_pairs_backward<N>(m.prefix[i].set, m.sums[i], m.forms);
    if (m.setup.subsets) return attend_by_subsets_backward<N::kColumns>(t, n, m.prefix, m.sums, m.subsets);
    uint64_t holders[V] = {};
    for (int i = 0; i < n; i++)
        for (uint32_t left = m.prefix[i].set; left; left &= left - 1) holders[__builtin_ctz(left)] |= uint64_t(1) << i;
    sum_rows_backward<0, N::kColumns>(holders, m.sums, m.at, m.w, m.d);
}

}  // namespace

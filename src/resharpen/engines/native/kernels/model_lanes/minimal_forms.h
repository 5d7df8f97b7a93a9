// The minimal transformer: |o|^2 from products of the tokens' vectors, without o; minimal.h has the formulas.
#pragma once

#include "minimal_tokens.h"

namespace {

// The norms after attention of a placement, computed from the vector o or from forms: form 0 is |o|^2, form 1 |g o|^2.
template <bool kOutNorm, bool kResidualNorm, bool kByForms>
struct Norms {
    static constexpr bool kOut = kOutNorm, kNorm = kResidualNorm;
    static constexpr bool kVectors = (kOut || kNorm) && !kByForms, kForms = (kOut || kNorm) && kByForms;
    static constexpr int kFirst = kOut ? 0 : 1, kEnd = !kForms ? kFirst : kNorm ? 2 : 1;  // the forms
    static constexpr int kColumns = V + 1 + (kVectors ? D : kForms && kNorm);             // of a row
};

// Whether forms are faster (measured): with enough states for tables that are computed once per step, and where squares
// are large compared to the rounding errors of their terms.
constexpr bool kFormsPay = V >= 10 && D >= 8;
inline bool forms_pay(int length, Placement placement) {
    return kFormsPay && length >= 3 && !(placement.residual && placement.unembedding_in);
}

constexpr int kC = V + 1, kForm = V + 2;  // columns of a sum, instead of o: x_t . g o, and the forms

// The weights e_tj of one last token t and their gradients; for one set size, if they depend on it.
struct Weights {
    float log_n;              // of that size
    f32x16 factor;            // s log n
    f32x16 logits[V];         // of the last token, times the factor
    f32x16 e[V], d_e[V];
    Mask wide, far;           // see minimal.h
    bool any_wide, any_far;
    uint32_t seen;  // tokens of states with more than one token: only their attention logits have a gradient
};

// Per step: x_t . x_t, x_t . g VO_j, VO_j . VO_k and g VO_j . g VO_k, with their gradients. Per last token: the tokens
// k >= j that are in a set together with j, and for these pairs e_tj e_tk VO_j . VO_k.
struct Forms {
    f32x16 x_squared[V], cross[V][V], gram[2][V][V];
    f32x16 d_x_squared[V], d_cross[V][V], d_gram[2][V][V];
    uint32_t together[V];
    f32x16 pair[2][V][V], d_pair[2][V][V];

    Forms() { clear(d_pair); }
};

// ---- once per step
// ---------------------------------------------------------------------------------------------------

// row_j . row_k, times two for j != k, which a square contains twice.
inline void gram_forward(ConstMatrix from, f32x16 (&gram)[V][V]) {
    multiply(V, D, V, from, from.transposed(), {gram[0], V, 1});
    for (int j = 0; j < V; j++)
        for (int k = 0; k < V; k++) gram[j][k] = (j == k ? 1.0f : 2.0f) * gram[j][k];
}

// From the gradient of the pairs j <= k to that of the rows.
inline void gram_backward(f32x16 (&d)[V][V], const f32x16* from, f32x16* to) {
    for (int j = 0; j < V; j++)
        for (int k = j; k < V; k++) d[j][k] = d[k][j] = 2.0f * d[j][k];
    multiply(V, V, D, rows<V>(d[0]), rows<D>(from), {to, D, 1}, true);
}

inline void forms_forward(const Setup& setup, const Tokens& at, Forms& forms) {
    clear(forms.d_x_squared), clear(forms.d_cross), clear(forms.d_gram);
    const ConstMatrix o = rows<D>(at.vo[0]), gained = rows<D>(at.vo_gained[0]);
    if (setup.placement.block_out) gram_forward(o, forms.gram[0]);
    if (!setup.norm_after_residual()) return;
    gram_forward(gained, forms.gram[1]);
    multiply(V, D, V, rows<D>(at.x[0]), gained.transposed(), {forms.cross[0], V, 1});
    for (int t = 0; t < V; t++) forms.x_squared[t] = dot<D>(at.x[t], at.x[t]);
}

inline void forms_backward(const Setup& setup, const Tokens& at, Forms& forms, TokenGradients& d) {
    if (setup.placement.block_out) gram_backward(forms.d_gram[0], at.vo[0], d.vo[0]);
    if (!setup.norm_after_residual()) return;
    gram_backward(forms.d_gram[1], at.vo_gained[0], d.vo_gained[0]);
    multiply(V, V, D, rows<V>(forms.d_cross[0]), rows<D>(at.vo_gained[0]), {d.x[0], D, 1}, true);
    multiply(V, V, D, rows<V>(forms.d_cross[0]).transposed(), rows<D>(at.x[0]), {d.vo_gained[0], D, 1}, true);
    for (int t = 0; t < V; t++)
        for (int i = 0; i < D; i++) d.x[t][i] += 2.0f * forms.d_x_squared[t] * at.x[t][i];
}

// ---- once per last token -------------------------------------------------------------------------------------------

template <class Set>
void find_pairs(int first, int end, Set set, Forms& forms) {
    for (uint32_t& with : forms.together) with = 0;
    for (int i = first; i < end; i++)
        for (uint32_t left = set(i); left; left &= left - 1) forms.together[__builtin_ctz(left)] |= left;
}

// Also writes x_t . g VO_j into the rows of the values.
template <class N>
void weigh_pairs(int t, const Weights& w, Forms& forms, Tokens& at) {
    if constexpr (N::kForms && N::kNorm)
        for (int j = 0; j < V; j++) at.value[j][kC] = forms.cross[t][j];
    for (int f = N::kFirst; f < N::kEnd; f++)
        for (int j = 0; j < V; j++)
            for (uint32_t left = forms.together[j]; left; left &= left - 1) {
                const int k = __builtin_ctz(left);
                forms.pair[f][j][k] = w.e[j] * w.e[k] * forms.gram[f][j][k];
            }
}

// For pairs of token j with those in `together`. Resets d_pair to zero for the next last token.
inline void pairs_backward(int j, uint32_t together, const f32x16* gram, f32x16* d_pair, f32x16* d_gram, Weights& w) {
    const f32x16 e_j = w.e[j];
    f32x16 d_e_j = broadcast(0);
    for (uint32_t left = together; left; left &= left - 1) {
        const int k = __builtin_ctz(left);
        const f32x16 along = d_pair[k] * gram[k];
        d_gram[k] += d_pair[k] * (e_j * w.e[k]);
        d_e_j += along * w.e[k];
        w.d_e[k] += along * e_j;
        d_pair[k] = broadcast(0);
    }
    w.d_e[j] += d_e_j;
}

template <class N>
void weigh_pairs_backward(int t, Weights& w, Forms& forms, TokenGradients& d) {
    if constexpr (N::kForms && N::kNorm)
        for (int j = 0; j < V; j++) forms.d_cross[t][j] += d.value[j][kC], d.value[j][kC] = broadcast(0);
    for (int f = N::kFirst; f < N::kEnd; f++)
        for (int j = 0; j < V; j++)
            pairs_backward(j, forms.together[j], forms.gram[f][j], forms.d_pair[f][j], forms.d_gram[f][j], w);
}

// ---- once per state ------------------------------------------------------------------------------------------------

// The forms of a set: sums over its pairs.
template <class N>
void sum_pairs(uint32_t set, const Forms& forms, f32x16* sum) {
    f32x16 form[2] = {broadcast(0), broadcast(0)};
    for (uint32_t left = set; left; left &= left - 1)
        for (uint32_t from = left; from; from &= from - 1) {
            RESHARPEN_UNROLL
            for (int f = N::kFirst; f < N::kEnd; f++)
                form[f] += forms.pair[f][__builtin_ctz(left)][__builtin_ctz(from)];
        }
    for (int f = N::kFirst; f < N::kEnd; f++) sum[kForm + f] = form[f];
}

template <class N>
void sum_pairs_backward(uint32_t set, const f32x16* sum, Forms& forms) {
    for (uint32_t left = set; left; left &= left - 1)
        for (uint32_t from = left; from; from &= from - 1) {
            RESHARPEN_UNROLL
            for (int f = N::kFirst; f < N::kEnd; f++)
                forms.d_pair[f][__builtin_ctz(left)][__builtin_ctz(from)] += sum[kForm + f];
        }
}

// The same with the weights of one state.
inline f32x16 form_of(const f32x16 (&gram)[V][V], uint32_t set, const f32x16* e) {
    f32x16 form = broadcast(0);
    for (uint32_t left = set; left; left &= left - 1)
        for (uint32_t from = left; from; from &= from - 1) {
            const int j = __builtin_ctz(left), k = __builtin_ctz(from);
            form += e[j] * e[k] * gram[j][k];
        }
    return form;
}

inline void gram_of_form_backward(uint32_t set, const f32x16* e, f32x16 d, f32x16 (&d_gram)[V][V]) {
    for (uint32_t left = set; left; left &= left - 1)
        for (uint32_t from = left; from; from &= from - 1) {
            const int j = __builtin_ctz(left), k = __builtin_ctz(from);
            d_gram[j][k] += d * e[j] * e[k];
        }
}

inline void weights_of_form_backward(const f32x16 (&gram)[V][V], uint32_t set, const f32x16* e, f32x16 d, f32x16* d_e) {
    for (uint32_t left = set; left; left &= left - 1)
        for (uint32_t from = left; from; from &= from - 1) {
            const int j = __builtin_ctz(left), k = __builtin_ctz(from);
            const f32x16 along = d * gram[j][k];
            d_e[j] += along * e[k];
            d_e[k] += along * e[j];
        }
}

}  // namespace

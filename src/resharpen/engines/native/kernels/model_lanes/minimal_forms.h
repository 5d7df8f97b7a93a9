// The minimal transformer: squares of o without o, from products of its tokens' vectors; minimal.h has the formulas.
#pragma once

#include "minimal_tokens.h"

namespace resharpen {

// The norms after attention that a placement has, and what of a state they are computed from: the vector o, or forms,
// of which form 0 is |o|^2 and form 1 is |g o|^2.
template <bool kOutNorm, bool kResidualNorm, bool kByForms>
struct Norms {
    static constexpr bool kOut = kOutNorm, kNorm = kResidualNorm;
    static constexpr bool kVectors = (kOut || kNorm) && !kByForms, kForms = (kOut || kNorm) && kByForms;
    static constexpr int kFirst = kOut ? 0 : 1, kEnd = !kForms ? kFirst : kNorm ? 2 : 1;  // the forms
    static constexpr int kColumns = V + 1 + (kVectors ? D : kForms && kNorm);             // of a row
};

class MinimalForms : public MinimalTokens {
  public:
    // Whether forms pay, which they do only if there are states enough for the tables that are made once a step, and
    // squares are large beside what rounds off of their terms; measured.
    static constexpr bool kFormsPay = V >= 10 && D >= 8;
    static bool forms_pay(int length, Placement placement) {
        return kFormsPay && length >= 3 && !(placement.residual && placement.unembedding_in);
    }

  protected:
    static constexpr int kC = V + 1, kForm = V + 2;  // columns of a sum, instead of o: x_t . g o, and the forms

    MinimalForms(Variant variant, bool forms, const Hyperparameters<f32x16>& h)
        : MinimalTokens(variant, h), forms(forms) {
        clear(d_pair);
    }

    bool forms;
    f32x16 x_squared[V], cross[V][V], gram[2][V][V];  // x_t . x_t, x_t . g VO_j; VO_j . VO_k, g VO_j . g VO_k
    f32x16 d_x_squared[V], d_cross[V][V], d_gram[2][V][V];

    // Of the states that are worked on: e_tj, with which others from itself on a token is in one set, and of these
    // pairs e_tj e_tk VO_j . VO_k.
    f32x16 weight[V], d_weight[V];
    uint32_t together[V];
    f32x16 pair[2][V][V], d_pair[2][V][V];

    // ---- once a step -----------------------------------------------------------------------------------------------

    void forms_forward() {
        clear(d_x_squared), clear(d_cross), clear(d_gram);
        const ConstMatrix o = rows<D>(vo[0]), gained = rows<D>(vo_gained[0]);
        if (placement.block_out) gram_forward(o, gram[0]);
        if (!norm_after_residual()) return;
        gram_forward(gained, gram[1]);
        multiply(V, D, V, rows<D>(x[0]), gained.transposed(), {cross[0], V, 1});
        for (int t = 0; t < V; t++) x_squared[t] = dot<D>(x[t], x[t]);
    }

    void forms_backward() {
        if (placement.block_out) gram_backward(d_gram[0], vo[0], d_vo[0]);
        if (!norm_after_residual()) return;
        gram_backward(d_gram[1], vo_gained[0], d_vo_gained[0]);
        multiply(V, V, D, rows<V>(d_cross[0]), rows<D>(vo_gained[0]), {d_x[0], D, 1}, true);
        multiply(V, V, D, rows<V>(d_cross[0]).transposed(), rows<D>(x[0]), {d_vo_gained[0], D, 1}, true);
        for (int t = 0; t < V; t++)
            for (int i = 0; i < D; i++) d_x[t][i] += 2.0f * d_x_squared[t] * x[t][i];
    }

    // row_j . row_k, as often as it is in a square: twice for two tokens, once for one.
    static void gram_forward(ConstMatrix from, f32x16 (&gram)[V][V]) {
        multiply(V, D, V, from, from.transposed(), {gram[0], V, 1});
        for (int j = 0; j < V; j++)
            for (int k = 0; k < V; k++) gram[j][k] = (j == k ? 1.0f : 2.0f) * gram[j][k];
    }

    // From the gradient of the pairs j <= k to that of the rows.
    static void gram_backward(f32x16 (&d)[V][V], const f32x16* from, f32x16* to) {
        for (int j = 0; j < V; j++)
            for (int k = j; k < V; k++) d[j][k] = d[k][j] = 2.0f * d[j][k];
        multiply(V, V, D, rows<V>(d[0]), rows<D>(from), {to, D, 1}, true);
    }

    // ---- once a last token -----------------------------------------------------------------------------------------

    template <class Set>
    void find_pairs(int first, int end, Set set) {
        for (uint32_t& with : together) with = 0;
        for (int i = first; i < end; i++)
            for (uint32_t left = set(i); left; left &= left - 1) together[__builtin_ctz(left)] |= left;
    }

    template <class N>
    void weigh_pairs(int t) {
        if constexpr (N::kForms && N::kNorm)
            for (int j = 0; j < V; j++) value[j][kC] = cross[t][j];
        for (int f = N::kFirst; f < N::kEnd; f++)
            for (int j = 0; j < V; j++)
                for (uint32_t left = together[j]; left; left &= left - 1) {
                    const int k = __builtin_ctz(left);
                    pair[f][j][k] = weight[j] * weight[k] * gram[f][j][k];
                }
    }

    template <class N>
    void weigh_pairs_backward(int t) {
        if constexpr (N::kForms && N::kNorm)
            for (int j = 0; j < V; j++) d_cross[t][j] += d_value[j][kC], d_value[j][kC] = broadcast(0);
        for (int f = N::kFirst; f < N::kEnd; f++)
            for (int j = 0; j < V; j++) pairs_backward(j, weight[j], d_pair[f][j], gram[f][j], d_gram[f][j]);
    }

    // Of those of token j, whose e is e_j. Leaves d_pair at zero for the next last token.
    void pairs_backward(int j, f32x16 e_j, f32x16* d_pair, const f32x16* gram, f32x16* d_gram) {
        f32x16 d_e_j = broadcast(0);
        for (uint32_t left = together[j]; left; left &= left - 1) {
            const int k = __builtin_ctz(left);
            const f32x16 along = d_pair[k] * gram[k];
            d_gram[k] += d_pair[k] * (e_j * weight[k]);
            d_e_j += along * weight[k];
            d_weight[k] += along * e_j;
            d_pair[k] = broadcast(0);
        }
        d_weight[j] += d_e_j;
    }

    // ---- once a state ----------------------------------------------------------------------------------------------

    // The forms of a set: sums over its pairs.
    template <class N>
    void sum_pairs(uint32_t set, f32x16* sum) const {
        f32x16 form[2] = {broadcast(0), broadcast(0)};
        for (uint32_t left = set; left; left &= left - 1)
            for (uint32_t from = left; from; from &= from - 1) {
                RESHARPEN_UNROLL
                for (int f = N::kFirst; f < N::kEnd; f++) form[f] += pair[f][__builtin_ctz(left)][__builtin_ctz(from)];
            }
        for (int f = N::kFirst; f < N::kEnd; f++) sum[kForm + f] = form[f];
    }

    template <class N>
    void sum_pairs_backward(uint32_t set, const f32x16* sum) {
        for (uint32_t left = set; left; left &= left - 1)
            for (uint32_t from = left; from; from &= from - 1) {
                RESHARPEN_UNROLL
                for (int f = N::kFirst; f < N::kEnd; f++)
                    d_pair[f][__builtin_ctz(left)][__builtin_ctz(from)] += sum[kForm + f];
            }
    }

    // The same for weights of its own.
    f32x16 form_of(int f, uint32_t set, const f32x16* e) const {
        f32x16 form = broadcast(0);
        for (uint32_t left = set; left; left &= left - 1)
            for (uint32_t from = left; from; from &= from - 1) {
                const int j = __builtin_ctz(left), k = __builtin_ctz(from);
                form += e[j] * e[k] * gram[f][j][k];
            }
        return form;
    }

    void gram_of_form_backward(int f, uint32_t set, const f32x16* e, f32x16 d) {
        for (uint32_t left = set; left; left &= left - 1)
            for (uint32_t from = left; from; from &= from - 1) {
                const int j = __builtin_ctz(left), k = __builtin_ctz(from);
                d_gram[f][j][k] += d * e[j] * e[k];
            }
    }

    void weights_of_form_backward(int f, uint32_t set, const f32x16* e, f32x16 d, f32x16* d_e) const {
        for (uint32_t left = set; left; left &= left - 1)
            for (uint32_t from = left; from; from &= from - 1) {
                const int j = __builtin_ctz(left), k = __builtin_ctz(from);
                const f32x16 along = d * gram[f][j][k];
                d_e[j] += along * e[k];
                d_e[k] += along * e[j];
            }
    }
};

}  // namespace resharpen

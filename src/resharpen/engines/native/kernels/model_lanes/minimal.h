// The minimal transformer on Set Complement: a SIMD lane is a model.
//
// Layout. Every number of the model is a vector f32x16 of sixteen lanes, one model each; a weight matrix [I, O] of an
// ensemble is I * O vectors, row after row. All lanes read the same minibatch, so tokens, sets and counts are plain
// integers, the same for all lanes, and nothing is gathered, scattered or summed across lanes.
//
// What is computed. With x the embedding after its norm, h = x after the block's norm, VO = h W_V W_O:
//
//     e_tj = exp(q_t . k_j / sqrt(d_k) - max_j)                        for every pair of tokens
//     state (last token t, set S):   Z = sum_{j in S} e_tj,   o = sum_{j in S} e_tj VO_j / Z
//     z = x_t + g_out o r_o                                            r_o = 1 / rms(o)
//     logits = r_f (z g_f) U                                           r_f = 1 / rms(z)
//
// with a norm that the placement lacks left out (g = r = 1), r_f = r_1 r_2 and g_f = g_1 g_2 where both the residual
// and the unembedding have one. Norms are a scalar times a fixed gain, and the rest is linear, so with
//
//     B_t = x_t diag(g_f) U          D_j = VO_j diag(g_out) diag(g_f) U
//
// computed once per step, the logits are r_f (B_t + r_o / Z sum_{j in S} e_tj D_j): sums of table rows. A token's row
// is
//
//     value_j = [ D_j | 1 | VO_j ]                                     V + 1 + D columns
//
// and attention of a state is sum_{j in S} e_tj value_j: logits before the scale, Z, and (where a norm needs it) o.
//
// Sum first, multiply once. All states of one last token t share the weights e_tj. So the gradient of a state need only
// be added to the tokens that it holds: with R_j the sum over the states that hold j, d value_j is e_tj R_j and d e_tj
// is R_j . value_j, once for a pair (t, j). What is left a state: the sums, the norms' scalars, a softmax over V.
//
// Subsets. Where there are many large sets, the tokens other than t are split in a low group, whose rows e_tj value_j
// are summed beforehand for each of its 16 subsets, and the rest, which changes slowly over the sorted states and whose
// sum is kept: then a state is two rows. All of it stays in the first-level cache. The gradient goes back the same way.
//
// Forms. Norms need no vectors, only squares, and for larger V it is less work to add up those of the pairs in a set:
//
//     |o|^2 = sum_{j, k in S} e_tj e_tk VO_j . VO_k / Z^2              |g_out o|^2 likewise
//     |z|^2 = |x_t|^2 + 2 r_o x_t . g_out o + r_o^2 |g_out o|^2        x_t . g_out o = sum_{j in S} e_tj x_t . g_out
//     VO_j / Z
//
// with the products of vectors computed once per step, those times e_tj e_tk once per token t, and so their gradients.
// Where |o| is far below |VO_j| the sum over pairs is a difference of near equals. So small D keep the vectors, where
// that is frequent, and so do scores, where it would show in large sets; and placements with two norms after the
// residual.
//
// Logits far apart. e_tj is relative to the largest over all j, not over S. Z is at least e_tt, so this is exact unless
// that is too small; in lanes where it is below 2^-kFar the set's own maximum is taken. And where a row of attention
// logits is wide, a weight can come close to one, and then the gradient of the logits is a difference of near equals,
// which only d e_tj of each state apart can tell: there the sum first is for the values alone.
// Lanes are blended, so a model never depends on its neighbors.
//
// Log n. With log-n or ssmax attention logits are multiplied by s log n, n the size of the set, so weights are those of
// a token and a size: states come sorted by both. Few share a table of weights then, so subsets do not pay.
//
// Gradients are sums over the minibatch, scaled to its mean only when they are applied.
#pragma once

#include "minimal_states.h"

namespace {

// Whether minibatches of this length hold enough large sets for `subsets` to pay, which they do only if all share one
// table of weights; measured.
inline bool subsets_pay(int length, Variant variant) {
    return V <= 9 && length >= 5 && variant.attention == AttentionKind::softmax;
}

// f(Norms) of the placement
template <bool kByForms, class F>
void with_norms(const Setup& setup, F f) {
    if (setup.placement.block_out)
        setup.norm_after_residual() ? f(Norms<true, true, kByForms>()) : f(Norms<true, false, kByForms>());
    else
        setup.norm_after_residual() ? f(Norms<false, true, kByForms>()) : f(Norms<false, false, kByForms>());
}
template <class F>
void with_norms(const Setup& setup, F f) {
    if constexpr (kFormsPay)
        if (setup.forms) return with_norms<true>(setup, f);
    with_norms<false>(setup, f);
}

// f(first, end) for the states of one last token: where weights depend on the size of a set, size by size, of which
// `w` holds the factor. One token has all the weight whatever the factor, so the smallest sets go with those of two.
template <class Set, class F>
void each_size(const Setup& setup, f32x16 ssmax, int first, int end, Set set, Weights& w, F f) {
    auto size = [&](int i) { return std::max(2, __builtin_popcount(set(i))); };
    for (int next = end; first < end; first = next) {
        if (setup.by_size()) {
            for (next = first + 1; next < end && size(next) == size(first);) next++;
            w.log_n = float(std::log(double(size(first))));
            w.factor = w.log_n * ssmax;
        }
        f(first, next);
    }
}

template <class N>
void train_states(Minimal& m, int t, const Minibatch<V>& batch, int first, int end) {
    if constexpr (N::kForms) find_pairs(first, end, [&](int i) { return batch.states[i].set; }, m.forms);
    last_token_forward<N>(m, t);
    for (int n; first < end; first += n) {
        n = end - first < m.at_once() ? end - first : m.at_once();
        const Minibatch<V>::State* counted = &batch.states[first];
        for (int i = 0; i < n; i++) m.prefix[i] = {counted[i].set, counted[i].others};
        attend<N>(m, t, n);
        int i = 0;
        for (; i + kBlock <= n; i += kBlock) train_block<N, kBlock>(m, t, m.sums + i, counted + i);
        for (; i < n; i++) train_block<N, 1>(m, t, m.sums + i, counted + i);
        attend_backward<N>(m, t, n);
    }
    last_token_backward<N>(m, t);
}

template <class N>
__attribute__((noinline)) void evaluate_states(Minimal& m, int t, int first, int end, const uint32_t* set, const int32_t* where, f32x16* tvd) {
    last_token_forward<N>(m, t);
    for (int n; first < end; first += n) {
        n = end - first < m.at_once() ? end - first : m.at_once();
        for (int i = 0; i < n; i++) m.prefix[i] = {set[first + i], others(set[first + i], t)};
        attend<N>(m, t, n);
        for (int i = 0; i < n; i++) {
            State s;
            forward<N>(m.setup, t, m.at, m.forms, m.sums[i], s);
            tvd[where[first + i]] = total_variation(s, m.prefix[i].set);
        }
    }
}

// The gradient of the summed negative log likelihood of a minibatch, and that sum itself, over log 2; adds to nothing,
// overwrites `gradient` and `loss`.
inline void gradient_of(Minimal& m, const Minibatch<V>& batch, const f32x16* theta, f32x16* gradient,
                        double loss[kLanes]) {
    tokens_forward(m.setup, theta, m.at);
    clear_gradients(m.setup.layout.size, m.d, gradient);
    if (m.setup.forms) forms_forward(m.setup, m.at, m.forms);
    m.bits = m.rounded_off = broadcast(0);
    for (int t = 0; t < V; t++)
        each_size(
            m.setup, m.at.ssmax, batch.begin[t], batch.begin[t + 1], [&](int i) { return batch.states[i].set; }, m.w,
            [&](int first, int end) {
                with_norms(m.setup, [&](auto norms) { train_states<decltype(norms)>(m, t, batch, first, end); });
            });
    if (m.setup.forms) forms_backward(m.setup, m.at, m.forms, m.d);
    tokens_backward(m.setup, theta, m.at, m.d, gradient);
    float sum[kLanes], rest[kLanes];
    store(sum, m.bits), store(rest, m.rounded_off);
    for (int lane = 0; lane < kLanes; lane++) loss[lane] = double(sum[lane]) - rest[lane];
}

// TVD of the states, [n, 16]; sorted by last token, each written to the place in `where`.
inline void total_variations(Minimal& m, const f32x16* theta, int n, const int32_t* last, const uint32_t* set,
                             const int32_t* where, f32x16* tvd) {
    tokens_forward(m.setup, theta, m.at);
    for (int i = 0; i < n;) {
        int end = i;
        while (end < n && last[end] == last[i]) end++;
        const int t = last[i];
        each_size(
            m.setup, m.at.ssmax, i, end, [&](int i) { return set[i]; }, m.w,
            [&](int first, int end) {
                with_norms(m.setup,
                           [&](auto norms) { evaluate_states<decltype(norms)>(m, t, first, end, set, where, tvd); });
            });
        i = end;
    }
}

}  // namespace

// The minimal transformer on Set Complement: a SIMD lane is a model.
//
// Layout. Every number of the model is a vector f32x16 with one model per lane; a weight matrix [I, O] is I * O vectors
// in row-major order. All lanes read the same minibatch, so tokens, sets and counts are plain integers, and nothing is
// gathered, scattered or summed across lanes.
//
// What is computed. With x the embedding after its norm, h = x after the block's norm, VO = h W_V W_O:
//
//     e_tj = exp(q_t . k_j / sqrt(d_k) - max_j)                        for every pair of tokens
//     state (last token t, set S):   Z = sum_{j in S} e_tj,   o = sum_{j in S} e_tj VO_j / Z
//     z = x_t + g_out o r_o                                            r_o = 1 / rms(o)
//     logits = r_f (z g_f) U                                           r_f = 1 / rms(z)
//
// where g = r = 1 for a norm that the placement lacks; r_f = r_1 r_2 and g_f = g_1 g_2 if both the residual and the
// unembedding have a norm. A norm is a scalar times a fixed gain, and the rest is linear, so with
//
//     B_t = x_t diag(g_f) U          D_j = VO_j diag(g_out) diag(g_f) U
//
// computed once per step, the logits are r_f (B_t + r_o / Z sum_{j in S} e_tj D_j): sums of table rows. The row of a
// token is
//
//     value_j = [ D_j | 1 | VO_j ]                                     V + 1 + D columns
//
// and the attention of a state is sum_{j in S} e_tj value_j: unscaled logits, Z, and (if a norm needs it) o.
//
// Sum first, multiply once. All states with last token t share the weights e_tj. With R_j the sum of the gradients of
// the states that contain j, d value_j = e_tj R_j and d e_tj = R_j . value_j, once per pair (t, j). Per state there
// remain the sums, the scalars of the norms and a softmax over V.
//
// Subsets. With many large sets, the tokens other than t are split into a low group, whose rows e_tj value_j are summed
// in advance for each of its 16 subsets, and the rest, which changes slowly over the sorted states and whose sum is
// kept. A state then is the sum of two rows, and everything stays in the first-level cache. So does the backward.
//
// Forms. Norms need only squares, and for larger V it is less work to sum over pairs of tokens in the set:
//
//     |o|^2 = sum_{j, k in S} e_tj e_tk VO_j . VO_k / Z^2              |g_out o|^2 likewise
//     |z|^2 = |x_t|^2 + 2 r_o x_t . g_out o + r_o^2 |g_out o|^2        x_t . g_out o = sum_{j in S} e_tj x_t . g_out
//     VO_j / Z
//
// Products of vectors are computed once per step, times e_tj e_tk once per token t; their gradients likewise. If |o| is
// much smaller than |VO_j|, the sum over pairs cancels. So the vectors are used for small D, where this is frequent,
// for scores, where it would matter in large sets, and for placements with two norms after the residual.
//
// Logits far apart. e_tj is relative to the maximum over all j, not over S. This is exact unless e_tt is tiny; in lanes
// where it is below 2^-kFar the maximum of the set is used. If a row of attention logits is wide, a weight can be close
// to one, and the gradient of the logits is a difference of nearly equal numbers, which needs d e_tj of each state:
// then only values are summed first. Lanes are blended, so a model does not depend on the others.
//
// Log n. With log-n or ssmax attention logits are multiplied by s log n, n the size of the set. Weights then belong to
// a token and a size, and states are sorted by both. Few states share weights, so subsets do not pay.
//
// Gradients are sums over the minibatch and are scaled to its mean when they are applied.
#pragma once

#include "minimal_states.h"

namespace {

// Whether `subsets` are faster for minibatches of this length (measured); they require shared weights.
inline bool subsets_pay(int length, Variant variant) {
    return V <= 9 && length >= 5 && variant.attention == AttentionKind::softmax;
}

// Calls f with the Norms of the placement.
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

// Calls f(first, end) for the states of one last token; if weights depend on the size of a set, once per size, with its
// factor in `w`. Sets of one token, whose weight is one for any factor, are joined with those of two.
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
__attribute__((noinline)) void evaluate_states(Minimal& m, int t, int first, int end, const uint32_t* set,
                                               const int32_t* where, f32x16* tvd) {
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

// Writes the gradient of the summed negative log likelihood of a minibatch, and that sum, divided by log 2.
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

// TVD of the states, [n, 16], which are sorted by last token; that of state i is written to tvd[where[i]].
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

"""Native engine of the transformer: one model at a time, sequences at their true lengths.

The kernel pads every width to a multiple of sixteen and stores q, k, v in one matrix.

Shapes: M models, X floats per model with padding, N sequences, L positions, P scored prefixes, S steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_uint32, c_void_p
from functools import cache
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from resharpen.engines.base import Ensemble, Measures, Problem, lengths
from resharpen.engines.native.base import Floats, NativeEngine, load_kernel, pointer, unknown_part
from resharpen.engines.native.contract import KERNEL_SITES, KNOWN
from resharpen.errors import UserError
from resharpen.models import Model, Transformer
from resharpen.parts.dropout import dropout
from resharpen.parts.moment import named_keys, step_keys, words_per_sequence
from resharpen.parts.positions.learned_offset import first_positions, learned_offset
from resharpen.parts.positions.rope import angles
from resharpen.parts.positions.rope_500k import LARGE_BASE
from resharpen.state import Arrays
from resharpen.tasks import Batch, Examples, Language, Task
from resharpen.tasks.automaton import Automaton

SCORED_AT_ONCE = 2**21
"""Maximum of positions times vocabulary in one evaluation call."""
NO_TARGET = -1
"""Target of a place without loss."""
TRAINED_WITH = ("softmax", "log-n", "ssmax", "window", "sink", "entmax", "asentmax")
POSITIONS = KNOWN["positions"]
MEASURES = ("tvd", "marked")


class Tables(Structure):
    """An automaton (kernels/batches/automaton.h)."""

    _fields_ = (
        ("last", c_void_p),
        ("token", c_void_p),
        ("to", c_void_p),
        ("push", c_void_p),
        ("n_edges", c_int32),
        ("bos", c_int32),
    )


@cache
def kernel(model: Model, march: str = "native") -> ctypes.CDLL:
    assert isinstance(model, Transformer)
    library = load_kernel(
        "transformer",
        {"LAYERS": model.layers, "D": model.d, "HEADS": model.heads, "MLP": model.d_mlp, "V": model.vocabulary},
        march,
        MEASURES,
        {"Automaton": Tables},
        train=[*[c_void_p] * 8, c_int32, c_int32],
        evaluate=[c_void_p, c_float, *[c_void_p] * 6, c_int32, c_int32, c_void_p, c_int32, *[c_void_p] * 3],
        sample=[POINTER(Tables), c_void_p, *[c_uint32] * 2, *[c_int32] * 3, *[c_void_p] * 3],
    )
    library.sample.restype = c_int64
    return library


class NativeTransformer(NativeEngine):
    kernel = staticmethod(kernel)
    MEASURES, SCORES = MEASURES, (Task.score, Language.score)
    READS = tuple(dropout.hyperparameters)
    STEPS_AT_ONCE = 16  # minibatches of all steps are drawn first; then each model trains on all of them

    def __init__(self, problem: Problem, ensemble: Ensemble):
        super().__init__(problem, ensemble)
        self._sampler = Sampler(self._kernel, problem.task.automaton) if has_own_sampler(problem.task) else None

    @staticmethod
    def why_not(problem: Problem, training: bool) -> str:
        return unknown_part(
            problem, TRAINED_WITH, POSITIONS, ("rms", "layer"), KERNEL_SITES, dropouts=("no-dropout", dropout.name)
        )

    def _measure(self, weights: Arrays, validation: Any, report: bool) -> Measures:
        """TVD, and the logit of the marked token if there is one; nan for nan weights, without computing."""
        theta_MxX = self._packed(weights)
        pieces = [
            self._scores(theta_MxX, self.problem.task.examples(piece), report)
            for piece in validation.pieces(SCORED_AT_ONCE // self._model.vocabulary)
        ]
        return {name: np.concatenate([piece[name] for piece in pieces], axis=1) for name in pieces[0]}

    @property
    def _model(self) -> Transformer:
        assert isinstance(self.problem.model, Transformer)
        return self.problem.model

    def _train_own(self, n: int) -> None:
        if self._sampler is not None:
            return self._train_ragged(*self._sampler(self.problem, self.ensemble.group, self.step, n))
        self._train_batches(self.problem.minibatches(self.ensemble.group, self.step, n))

    def _train_given(self, batch: Batch) -> None:
        self._train_batches([batch])

    def _train_batches(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._check_tokens(batch.targets[batch.mask])
        inputs, targets, lengths_SxN = zip(*map(ragged, batches), strict=True)
        self._train_ragged(np.concatenate(inputs), np.concatenate(targets), np.stack(lengths_SxN))

    def _train_ragged(
        self, inputs: NDArray[np.int32], targets: NDArray[np.int32], lengths_SxN: NDArray[np.int32]
    ) -> None:
        n, batch = lengths_SxN.shape
        longest = int(lengths_SxN.max())
        self._check_tokens(inputs)
        arrays = (*self._rotation(longest), inputs, targets, lengths_SxN)
        further = (self._first_positions(lengths_SxN), *self._dropout(n))
        self._train(n, *map(pointer, arrays), *(x if x is None else pointer(x) for x in further), batch, longest)

    def _dropout(self, n: int) -> tuple[Floats, NDArray[np.uint32]] | tuple[None, None]:
        """The rate of every model, and the keys of its random numbers by step and use; None without dropout."""
        if self.problem.parts.dropout is not dropout:
            return None, None
        uses = [
            f"{block}{dropout.name} {on} 1"
            for block in self._model.blocks
            for on in (("weights",) if block.endswith("attention.") else ()) + ("block_out",)
        ]
        keys = [named_keys(self._step_keys(n), use) for use in uses]
        rate_M = self.ensemble.hyperparameters["dropout_rate"].astype(np.float32)
        return rate_M, np.ascontiguousarray(np.stack(keys, axis=2).swapaxes(0, 1))

    def _step_keys(self, n: int) -> NDArray[np.uint32]:
        problem, steps = self.problem, range(self.step, self.step + n)
        return step_keys(problem.seed, problem.setting, self.ensemble.draw_M, steps)

    def _first_positions(self, lengths_SxN: NDArray[np.int32]) -> NDArray[np.int32] | None:
        """The position of the first token of every sequence, by model and step; None if all are 0."""
        n, batch = lengths_SxN.shape
        if self.problem.parts.positions is not learned_offset:
            return None
        words_SxMxN = words_per_sequence(self._step_keys(n), f"{learned_offset.name} 1", batch).astype(np.int64)
        first_SxMxN = first_positions(words_SxMxN, lengths_SxN[:, None], self._variant.learned)
        return np.ascontiguousarray(first_SxMxN.swapaxes(0, 1), np.int32)

    def _scores(self, theta_MxX: Floats, examples: Examples, report: bool) -> Measures:
        inputs_NxL, scored_NxL, truth = examples
        length_N = lengths(scored_NxL)
        read_NxL = np.arange(inputs_NxL.shape[1]) < length_N[:, None]
        tokens, scored = inputs_NxL[read_NxL].astype(np.int32), scored_NxL[read_NxL].astype(np.uint8)
        longest = int(length_N.max(initial=1))
        self._check_tokens(tokens)
        p_star = np.ascontiguousarray(truth["p_star"], np.float32)
        if p_star.shape != (expected := (int(scored.sum()), self._model.vocabulary)):  # read without a bound
            raise UserError(f"p_star of the scored places has the shape {list(p_star.shape)}, not {list(expected)}")
        marked = int(truth["marked"][0]) if len(truth.get("marked", ())) else -1  # the same for all examples
        shape = (len(theta_MxX), len(p_star))
        out = {name: np.full(shape, np.nan, np.float32) for name in MEASURES[: 1 + (marked >= 0)]}
        arrays = (*self._rotation(longest), tokens, length_N.astype(np.int32), scored)
        further = np.empty(p_star.shape, np.float32) if report and self.problem.task.further else None
        if further is not None:
            out |= {name: np.full(shape, np.nan, np.float32) for name in self.problem.task.further}
        for i, (theta_X, epsilon) in enumerate(zip(theta_MxX, self._hyper_RxH[:, 0], strict=True)):
            if np.isnan(theta_X[0]):
                continue
            self._kernel.evaluate(
                pointer(theta_X),
                float(epsilon),
                ctypes.byref(self._variant),
                *map(pointer, arrays),
                len(length_N),
                longest,
                pointer(p_star),
                marked,
                *(pointer(out[name][i]) if name in out else None for name in MEASURES),
                None if further is None else pointer(further),
            )
            if further is not None:
                for name, values in self._further(further, p_star).items():
                    out[name][i] = values
        return out

    def _further(self, logits_PxV: Floats, p_star_PxV: Floats) -> Measures:
        """The task's further metrics of one model, in torch, from the kernel's logits: another pass through the model
        would cost many times as much."""
        import torch

        truth = {"p_star": torch.from_numpy(p_star_PxV)}
        found = self.problem.task.further_scores(torch.from_numpy(logits_PxV)[None], truth)
        return {name: x_MxP[0].numpy() for name, x_MxP in found.items()}

    def _rotation(self, longest: int) -> tuple[Floats, Floats]:
        """Cosine and sine of the angles that the position encoding has, if any, computed in double."""
        if 0 < self._variant.learned < longest:
            raise UserError(f"an input of {longest} tokens: there are only {self._variant.learned} learned positions")
        angle = self._angles(longest)
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def _angles(self, longest: int) -> NDArray[np.float64]:
        model, positions = self._model, self.problem.parts.positions.name
        if positions == "rope-500k":
            return angles(longest, model.d_head, LARGE_BASE)
        width = {"rope": model.d_head, "rope-half": model.d_head // 2, "sinusoidal": model.d + model.d % 2}
        return angles(longest if positions in width else 0, width.get(positions, 0))

    def _check_tokens(self, tokens: NDArray[np.integer]) -> None:
        if len(tokens) and not (tokens.min() >= 0 and tokens.max() < self._model.vocabulary):
            raise ValueError(f"a token is outside the model's vocabulary of {self._model.vocabulary}")


def has_own_sampler(task: Task) -> TypeGuard[Language]:
    """Whether the kernel draws the same minibatches as the task: one derived from a language may draw others."""
    return isinstance(task, Language) and type(task).batch is Language.batch


class Sampler:
    """Draws minibatches of an automaton in the kernel: the same bits as `Language.batch`."""

    def __init__(self, library: ctypes.CDLL, automaton: Automaton):
        self._sample = library.sample
        self._arrays = [
            (automaton.thresholds_SxE - np.uint64(1)).astype(np.uint32),
            *(x.astype(np.int32) for x in (automaton.token_SxE, automaton.to_SxE, automaton.push_SxE)),
        ]
        self._tables = Tables(*map(pointer, self._arrays), n_edges=automaton.p_SxE.shape[1], bos=automaton.bos)

    def __call__(
        self, problem: Problem, group: int, first: int, n: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Concatenated inputs and targets of the steps first .. first+n-1, and the lengths [S, N]."""
        room = n * problem.batch * problem.train_length
        inputs, targets = np.empty(room, np.int32), np.empty(room, np.int32)
        lengths_SxN = np.empty((n, problem.batch), np.int32)
        key = np.array(problem.batch_key, np.uint32)
        total = self._sample(
            ctypes.byref(self._tables),
            pointer(key),
            *(group, first, n, problem.batch, problem.train_length),
            *map(pointer, (inputs, targets, lengths_SxN)),
        )
        return inputs[:total], targets[:total], lengths_SxN


def ragged(batch: Batch) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """A padded minibatch as the kernel takes it: every sequence up to its last trained place, one after another; the
    places before it that are not trained have no target."""
    inputs_NxL, targets_NxL, trained_NxL = batch
    length_N = lengths(trained_NxL)
    read_NxL = np.arange(trained_NxL.shape[1]) < length_N[:, None]
    inputs, targets = (np.ascontiguousarray(x[read_NxL], np.int32) for x in (inputs_NxL, targets_NxL))
    targets[~trained_NxL[read_NxL]] = NO_TARGET
    return inputs, targets, length_N.astype(np.int32)

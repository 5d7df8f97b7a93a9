"""Competitors: our engines, and the usual ways to train many small models, given one model's loss.

A step is everywhere the same work: a minibatch, forward, backward, clip each model's gradient, AdamW with its schedule
and hyperparameters of each model, moving average. Weights go by the names of our state, with the model axis first where
there is an ensemble. torch and jax are imported where they are used, so that one may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
RATE, BETAS, ADAM_EPSILON, DECAY, CLIP, EMA, NORM_EPSILON = 1e-3, (0.9, 0.99), 1e-9, 1e-2, 1.0, 0.01, 1e-6
WARMUP, END, STEPS = 100, 0.1, 100_000


@dataclass(frozen=True)
class Trainer:
    advance: Callable[[int], Any]
    """Trains all models for a number of steps; this call is timed."""
    loss: Callable[[Arrays], float] | None = None
    """Sum over models of this system's loss on the first minibatch, with the given weights."""
    reset: Callable[[], Any] = lambda: None
    """Called before every timed call; not timed itself."""


# ---- the same minibatches, weights and loss ------------------------------------------------------------------------

BATCHES = 4
"""Number of minibatches that a peer without a sampler cycles through."""


def with_attention(case: str) -> tuple[str, Any]:
    """Split the attention, if any, off the end of a case's name."""
    from resharpen.parts import ATTENTIONS

    name = next((name for name in ("log-n", "ssmax", "window", "sink") if case.endswith(f"-{name}")), "softmax")
    return case.removesuffix(f"-{name}"), ATTENTIONS[name]


def minibatches(problem: Any) -> list[Any]:
    return [problem.minibatch(0, step) for step in range(BATCHES)]


def initial(problem: Any, n_models: int) -> Arrays:
    from resharpen.engines.base import Ensemble, arrays_of, initial_state
    from resharpen.streams import GROUP

    groups = np.split(np.arange(n_models), range(GROUP, n_models, GROUP))
    states = [arrays_of(initial_state(problem, Ensemble(group, {})), "theta") for group in groups]
    return {name: np.concatenate([state[name] for state in states]) for name in states[0]}


def probe(problem: Any, n_models: int) -> Arrays:
    """Large random weights: close to initialization all formulas give nearly the same loss."""
    random = np.random.default_rng(0)
    weights = initial(problem, n_models)
    return {name: x + random.normal(0, 2 * x.shape[1] ** -0.5, x.shape).astype(x.dtype) for name, x in weights.items()}


def reference_loss(problem: Any, batch: Any, n_models: int) -> float:
    """Loss of the torch engine at the probe, which every trainer's `loss` must match."""
    import torch

    from resharpen.models.loss import total_nll

    def tensors(x: Any) -> Any:
        return type(x)(*map(tensors, x)) if isinstance(x, tuple) else torch.tensor(x)

    theta = {name: torch.tensor(x) for name, x in probe(problem, n_models).items()}
    inputs, targets, mask = tensors(batch)
    with torch.no_grad():
        hyper = {"rms_epsilon": torch.full((n_models,), NORM_EPSILON)}
        logits = problem.model.logits(theta, inputs, problem.parts, hyper)
        return float((total_nll(logits, targets, mask) / mask.sum()).sum())


# ---- ours -----------------------------------------------------------------------------------------------------------


def ours(name: str, problem: Any, n_models: int, restart: bool = False, given: Any = None, after: int = 0) -> Trainer:
    """One of our engines, on its own minibatches or on given ones. With `restart` every call starts from the state
    after `after` steps; otherwise training continues."""
    from resharpen.engines.base import Ensemble
    from resharpen.engines.choose import make_engine
    from resharpen.optim.hyperparameters import TABLE, draw

    draws, rows = np.arange(n_models), {**TABLE, **problem.parts.hyperparameters}
    engine = make_engine(name, problem, Ensemble(draws, draw(rows, 0, problem.setting, draws)))
    engine.advance(after)
    begin = engine.dump()
    return Trainer(lambda steps: engine.advance(steps, given), reset=lambda: restart and engine.load(begin))


# ---- the update -----------------------------------------------------------------------------------------------------


def hyperparameters(n_models: int) -> list[np.ndarray]:
    """Hyperparameters as arrays with one value per model, as in a search."""
    values = (RATE, 1 - BETAS[0], 1 - BETAS[1], ADAM_EPSILON, DECAY, CLIP, EMA)
    return [np.full(n_models, x, np.float32) for x in values]


def spared(name: str) -> bool:
    """Whether a tensor has no weight decay: embeddings, gains and biases."""
    leaf = name.rsplit(".", 1)[-1]
    return leaf == "E" or leaf.startswith(("g_", "b_"))


def schedule(t: Any, where: Callable[..., Any]) -> Any:
    """The factor of the peak learning rate at step t = 0, 1, ..."""
    return where(t < WARMUP, (t + 1) / WARMUP, 1 - (1 - END) * (t - WARMUP) / (STEPS - 1 - WARMUP))


def start(weights: Arrays, array: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    """Initial state: weights, both moments and the average of each tensor."""
    return {name: tuple(map(array, (x, 0 * x, 0 * x, x))) for name, x in weights.items()}


def advanced(xp: Any, state: Any, gradients: Any, norm: Any, t: Any, hyper: Any, each: Callable[..., Any]) -> Any:
    """The state after one step. `norm` has one value per model; `each(x, like)` reshapes it for a tensor."""
    rate, c1, c2, epsilon, decay, clip, ema = hyper
    factor, rate = xp.where(norm > clip, clip / norm, 1.0), rate * schedule(t, xp.where)
    correction1, correction2 = 1 - (1 - c1) ** (t + 1), 1 - (1 - c2) ** (t + 1)
    new = {}
    for name, (theta, m, v, average) in state.items():
        g = gradients[name] * each(factor, theta)
        m, v = m + each(c1, theta) * (g - m), v + each(c2, theta) * (g * g - v)
        direction = m / each(correction1, theta)
        direction = direction / (xp.sqrt(v / each(correction2, theta)) + each(epsilon, theta))
        decayed = 0.0 if spared(name) else each(decay, theta) * theta
        theta = theta - each(rate, theta) * (direction + decayed)
        new[name] = theta, m, v, average + each(ema, theta) * (theta - average)
    return new


def torch_advanced(state: Any, gradients: Any, t: Any, hyper: Any) -> Any:
    """`advanced` for an ensemble of torch tensors."""
    import torch

    norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
    return advanced(torch, state, gradients, norm, t, hyper, lambda x, like: x.view(-1, *(1,) * (like.ndim - 1)))


# ---- peers ----------------------------------------------------------------------------------------------------------

# Every call starts from the initial weights: gradients of a model that has memorized its few minibatches underflow,
# which makes torch on a CPU several times slower.


def torch_loop(
    model: Any,
    names: Mapping[str, Sequence[str]],
    problem: Any,
    draw: Callable[[int], Sequence[Sequence[Any]]],
    batch: Sequence[Sequence[Any]],
    compile: Callable[[Any], Any] = lambda model: model,
) -> Trainer:
    """One nn.Module whose forward is the loss of a minibatch, one optimizer, one model at a time.

    `names` are those of our tensors that a parameter of the module holds, side by side; `draw(i)` gives minibatch i,
    whole or in pieces whose losses add up.
    """
    import torch

    named = dict(model.named_parameters())
    parameters, weights = list(named.values()), initial(problem, 1)
    assert {ours for name in named for ours in names[name]} == set(weights), "a tensor has no parameter"

    @torch.no_grad()
    def load(weights: Arrays) -> None:
        for name, parameter in named.items():
            x = np.concatenate([weights[ours][0] for ours in names[name]], -1)
            parameter.copy_(torch.tensor(x if names[name] == ("E",) else x.T))

    load(weights)
    forward = compile(model)
    rest = [parameter for name, parameter in named.items() if spared(names[name][0])]
    decayed = [parameter for name, parameter in named.items() if not spared(names[name][0])]
    groups = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=ADAM_EPSILON, weight_decay=DECAY, foreach=True)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: schedule(t, lambda c, a, b: a if c else b))
    average = [parameter.detach().clone() for parameter in parameters]

    def advance(steps: int) -> None:
        for i in range(steps):
            optimizer.zero_grad()
            for piece in draw(i):
                forward(*piece).backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            rate.step()
            with torch.no_grad():
                torch._foreach_lerp_(average, parameters, EMA)

    def loss(probed: Arrays) -> float:
        load(probed)
        value = sum(float(forward(*piece).detach()) for piece in batch)
        load(weights)
        return value

    return Trainer(advance, loss, reset=lambda: load(weights))


def torch_vmap(
    loss: Callable[..., Any], problem: Any, n_models: int, draw: Callable[[], Any], batch: Any, compiled: bool = False
) -> Trainer:
    """torch.func: vmap of grad of a single model's loss, and an update on stacked tensors; compiled as a whole."""
    import torch
    from torch.func import grad, vmap

    state = begin = start(initial(problem, n_models), torch.tensor)
    hyper = list(map(torch.tensor, hyperparameters(n_models)))

    def step(state, t):
        theta = {name: tensors[0] for name, tensors in state.items()}
        return torch_advanced(state, vmap(grad(loss), in_dims=(0, None))(theta, draw()), t, hyper)

    step = torch.compile(step) if compiled else step
    done = 0

    @torch.no_grad()
    def advance(steps: int) -> None:
        nonlocal state, done
        for _ in range(steps):
            state = step(state, torch.tensor(float(done)))
            done += 1

    def reset() -> None:
        nonlocal state
        state = begin

    def total(weights: Arrays) -> float:
        theta = {name: torch.tensor(x) for name, x in weights.items()}
        return float(vmap(loss, in_dims=(0, None))(theta, batch).sum())

    return Trainer(advance, total, reset)


def torch_ensemble(
    loss: Callable[..., Any], problem: Any, n_models: int, draw: Callable[[int], Sequence[Any]], batch: Sequence[Any]
) -> Trainer:
    """The sum of an ensemble's losses, by broadcasting, and the update in place, each compiled."""
    import torch

    weights = initial(problem, n_models)
    state = start(weights, torch.tensor)
    theta = {name: tensors[0].requires_grad_() for name, tensors in state.items()}
    hyper = list(map(torch.tensor, hyperparameters(n_models)))
    forward, done = torch.compile(loss), 0

    @torch.compile
    def update(state, gradients, t):
        for name, new in torch_advanced(state, gradients, t, hyper).items():
            for into, x in zip(state[name], new, strict=True):
                into.copy_(x)

    def advance(steps: int) -> None:
        nonlocal done
        for i in range(steps):
            gradients = torch.autograd.grad(forward(theta, *draw(i)), list(theta.values()))
            with torch.no_grad():
                update(state, dict(zip(theta, gradients, strict=True)), torch.tensor(float(done)))
            done += 1

    @torch.no_grad()
    def reset() -> None:
        for name, x in weights.items():
            theta[name].copy_(torch.tensor(x))

    def total(weights: Arrays) -> float:
        probed = {name: torch.tensor(x).requires_grad_() for name, x in weights.items()}
        return float(forward(probed, *batch).detach())

    return Trainer(advance, total, reset)


def jax_vmap(
    loss: Callable[..., Any], problem: Any, n_models: int, draw: Callable[..., Any], batch: Any, sharing: int = 1
) -> Trainer:
    """jit(vmap(scan of steps)) of a single model's training; so many models have the same key.

    `draw(key, t)` gives minibatch t, whose loss is `loss(theta, minibatch)`.
    """
    import jax
    import jax.numpy as jnp

    def train(state, hyper, key, first, order):
        def step(state, i):
            theta = {name: tensors[0] for name, tensors in state.items()}
            gradients = jax.grad(loss)(theta, draw(key, first + i))
            norm = jnp.sqrt(sum((g * g).sum() for g in gradients.values()))
            return advanced(jnp, state, gradients, norm, first + i, hyper, lambda x, _: x), None

        return jax.lax.scan(step, state, order)[0]

    def grouped(x):
        return jnp.asarray(x if sharing == 1 else x.reshape(-1, sharing, *x.shape[1:]))

    if sharing == 1:
        run = jax.jit(jax.vmap(train, in_axes=(0, 0, 0, None, None)))
    else:
        run = jax.jit(jax.vmap(jax.vmap(train, in_axes=(0, 0, None, None, None)), in_axes=(0, 0, 0, None, None)))
    state = begin = start(initial(problem, n_models), grouped)
    hyper = list(map(grouped, hyperparameters(n_models)))
    keys, done = jax.random.split(jax.random.key(0), n_models // sharing), 0

    def advance(steps: int) -> None:
        nonlocal state, done
        state = jax.block_until_ready(run(state, hyper, keys, done, jnp.arange(steps)))
        done += steps

    def reset() -> None:
        nonlocal state
        state = begin

    def total(weights: Arrays) -> float:
        return float(jax.jit(jax.vmap(loss, in_axes=(0, None)))(weights, batch).sum())

    return Trainer(advance, total, reset)

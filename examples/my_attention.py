"""An attention remedy of your own: train small retrievers with it and look at lengths they never saw.

python examples/my_attention.py
"""

import numpy as np
import torch

from resharpen.models.remedies import REMEDIES
from resharpen.models.retriever import RETRIEVER_PLACEMENTS, Retriever
from resharpen.tasks.max_retrieval import MaxRetrieval


def top_four(logits, n_items):
    """Softmax over the four highest logits only: whatever the length, no more than four items share the weight."""
    fourth = logits.topk(min(4, logits.shape[-1])).values[..., -1:]
    return logits.masked_fill(logits < fourth, -torch.inf).softmax(-1)


def train(attend, models=4, steps=400, placement=RETRIEVER_PLACEMENTS["none"]):
    """Plain Adam on all models at once; the experiments of the package do the same with drawn hyperparameters."""
    task, model, generator = MaxRetrieval(), Retriever(hidden=32), torch.Generator().manual_seed(0)
    theta = {
        name: (shape[0] ** -0.5 * torch.randn(models, *shape, generator=generator)).requires_grad_()
        for name, shape in model.matrices().items()
    }
    theta |= {name: torch.zeros(models, *shape, requires_grad=True) for name, shape in model.biases().items()}
    optimizer, epsilon = torch.optim.Adam(theta.values(), lr=3e-3), torch.full((models,), 1e-6)
    for step in range(steps):
        batch = [torch.tensor(x) for x in task.batch((1, 2), group=0, step=step, n=64, s=16)]
        optimizer.zero_grad()
        model.loss(theta, batch, placement, epsilon, attend).sum().backward()
        optimizer.step()
    return lambda examples, attend: model.scores(theta, examples, placement, epsilon, attend)


@torch.no_grad()
def accuracy(scores, attend, longest=1024):
    """Mean accuracy at each length, over models and sequences."""
    task = MaxRetrieval()
    validation = task.validation(0, "report", longest=longest, sequences=32)
    lengths = validation.length_P
    pieces = [[torch.tensor(x) for x in task.examples(piece)] for piece in validation.pieces(2**15)]
    found = torch.cat([scores(piece, attend) for piece in pieces], dim=1)
    return {int(n): float(found[:, torch.tensor(lengths == n)].mean()) for n in np.unique(lengths)}


if __name__ == "__main__":
    softmax, temperature, log_n = (REMEDIES[name] for name in ("softmax", "adaptive-temperature", "log-n"))
    rows = {
        "softmax": (softmax, softmax),
        "  read with temperature": (softmax, temperature),  # a remedy for models that are trained already
        "log n": (log_n, log_n),
        "top four": (top_four, top_four),
    }
    for name, (in_training, afterwards) in rows.items():
        by_length = accuracy(train(in_training), afterwards)
        print(f"{name:<24}" + "  ".join(f"{length}: {value:.2f}" for length, value in by_length.items()))

"""Modules as anybody would write them, and some that cannot be trained as a model of an ensemble."""

import random

import torch
from torch import nn
from torch.nn.functional import pad


class LSTM(nn.Module):
    def __init__(self, vocabulary, d=12, layers=1):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d)
        self.lstm = nn.LSTM(d, d, layers, batch_first=True)
        self.out = nn.Linear(d, vocabulary)

    def forward(self, tokens):
        return self.out(self.lstm(self.embedding(tokens))[0])


class GRU(nn.Module):
    """Embedding and output share one matrix."""

    def __init__(self, vocab, d):
        super().__init__()
        self.out = nn.Linear(d, vocab)
        self.embedding = nn.Embedding(vocab, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.embedding.weight = self.out.weight

    def forward(self, tokens):
        return self.out(self.gru(self.embedding(tokens))[0])


class Encoder(nn.Module):
    def __init__(self, vocab_size, d=8, heads=2, layers=2, dropout=0.1, longest=200):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d)
        angle = torch.arange(longest)[:, None] / 100 ** (torch.arange(0, d, 2) / d)
        self.register_buffer("table", torch.cat([angle.sin(), angle.cos()], -1))
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(d, vocab_size)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.out(self.encoder(self.embedding(tokens) + self.table[:length], mask, is_causal=True))


class Convolution(nn.Module):
    """Causal: padded on the left. Its features are random numbers, of each draw its own, and are not trained."""

    def __init__(self, vocabulary, d=8, width=3):
        super().__init__()
        self.register_buffer("features", torch.randn(vocabulary, d))
        self.conv = nn.Conv1d(d, d, width)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, vocabulary)
        self.left = width - 1

    def forward(self, tokens):
        x = pad(self.features[tokens].mT, (self.left, 0))
        return self.out(self.norm(self.conv(x).relu().mT))


class Sets(nn.Module):
    """Reads items: the mean of what each says, padding left out."""

    def __init__(self, classes, hidden=8):
        super().__init__()
        self.kind, self.inner = nn.Embedding(classes, hidden), nn.Linear(hidden, hidden)
        self.priority, self.out = nn.Linear(1, hidden), nn.Linear(hidden, classes)

    def forward(self, items):
        real = torch.arange(items.kind.shape[1]) < items.length[:, None]
        h = self.inner((self.kind(items.kind) + self.priority(items.priority[..., None])).relu())
        return self.out((h * real[..., None]).sum(1) / items.length[:, None])


def small_lstm(vocabulary):
    return LSTM(vocabulary, d=4)


class Plain(nn.Module):
    """What the others below change one thing of."""

    def __init__(self, vocabulary, d=8):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d)
        self.more(d)
        self.out = nn.Linear(d, vocabulary)

    def more(self, d):
        pass

    def body(self, x):
        return x

    def forward(self, tokens):
        return self.out(self.body(self.embedding(tokens)))


class BatchNorm(Plain):
    def more(self, d):
        self.bn = nn.BatchNorm1d(d)

    def body(self, x):
        return self.bn(x.mT).mT


class Lazy(Plain):
    def more(self, d):
        self.lazy = nn.LazyLinear(d)

    def body(self, x):
        return self.lazy(x)


class Complex(Plain):
    def more(self, d):
        self.phase = nn.Parameter(torch.zeros(d, dtype=torch.complex64))


class Counts(Plain):
    def more(self, d):
        self.register_buffer("calls", torch.zeros(()))

    def body(self, x):
        self.calls += 1
        return x


class Remembers(Plain):
    last = 0.0

    def body(self, x):
        x, self.last = x + self.last, x.mean().item()
        return x


class Clamps(Plain):
    def body(self, x):
        with torch.no_grad():
            self.embedding.weight.clamp_(-0.1, 0.1)
        return x


class Random(Plain):
    def body(self, x):
        return x + torch.rand(())


class Mixes(Plain):
    def body(self, x):
        return x - x.mean(0)


class Pair(Plain):
    def forward(self, tokens):
        return super().forward(tokens), tokens


class Turned(Plain):
    def forward(self, tokens):
        return super().forward(tokens).transpose(0, 1)


class Infinite(Plain):
    def body(self, x):
        return x / 0


class Detached(Plain):
    def forward(self, tokens):
        return super().forward(tokens).detach()


class Constant(Plain):
    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.requires_grad_(False)


class Elsewhere(Plain):
    def more(self, d):
        self.gain = nn.Parameter(torch.full((d,), random.random()))


class Short(Plain):
    def more(self, d):
        self.positions = nn.Embedding(3, d)

    def body(self, x):
        return x + self.positions(torch.arange(x.shape[1]))


class Deaf(nn.Module):
    def __init__(self, d=4):
        super().__init__()


class Kinds(Plain):
    def __init__(self, vocabulary, kind=1):
        super().__init__(vocabulary)


def number(vocabulary):
    return vocabulary

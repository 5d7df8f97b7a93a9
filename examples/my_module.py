"""An LSTM as a plain torch module, with torch's initialization. It imports nothing from this package."""

from torch import nn


class LSTM(nn.Module):
    def __init__(self, vocabulary, d=32, layers=1):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d)
        self.lstm = nn.LSTM(d, d, layers, batch_first=True)
        self.out = nn.Linear(d, vocabulary)

    def forward(self, tokens):
        return self.out(self.lstm(self.embedding(tokens))[0])

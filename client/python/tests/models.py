# SPDX-License-Identifier: Apache-2.0
"""Small models and their data, which are a function of seed, step and rank."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    """A GPT with tied embeddings."""

    def __init__(self, vocabulary=256, d=64, layers=2, context=32, heads=4):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, d)
        self.place = nn.Parameter(torch.zeros(context, d))
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, x, y):
        z = self.embed(x) + self.place[:x.shape[1]].to(self.embed.weight.dtype)
        for block in self.blocks:
            z = block(z)
        z = self.head(self.norm(z))
        return F.cross_entropy(z.flatten(0, 1).float(), y.flatten())


class Net(nn.Module):
    """Convolutions in channels_last, batch norm, a scalar, parameters that are not contiguous."""

    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.scale = nn.Parameter(torch.ones(()))
        self.skewed = nn.Parameter(torch.randn(8, 16).t())
        self.last = nn.Linear(8, 10)
        self.to(memory_format=torch.channels_last)

    def forward(self, x, y):
        z = F.relu(self.bn(self.c1(x)))
        z = (z + self.c2(z)).mean((2, 3)) * self.scale
        return F.cross_entropy(self.last(z + (z @ self.skewed.t()) @ self.skewed), y)


class Experts(nn.Module):
    """Two experts of which one is used in each step, so that the other has no gradient."""

    def __init__(self, d=16):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 4)

    def forward(self, x, y, which):
        return F.cross_entropy(self.out(F.relu((self.b if which else self.a)(x))), y)


def tokens(step, rank, batch=2, length=32, vocabulary=256):
    g = torch.Generator().manual_seed(1000 * step + rank)
    d = torch.randint(0, vocabulary // 8, (batch, length + 1), generator=g).cumsum(1) % vocabulary
    return d[:, :-1].contiguous(), d[:, 1:].contiguous()


def images(step, rank, batch=4):
    g = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(batch, 3, 8, 8, generator=g), torch.randint(0, 10, (batch,), generator=g)


def vectors(step, rank, batch=4, d=16):
    g = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(batch, d, generator=g)
    return x, torch.randint(0, 4, (batch,), generator=g), step % 2

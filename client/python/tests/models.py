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
        return F.cross_entropy(self.last(z + (z @ self.skewed.t()) @ self.skewed).float(), y)


class Turned(nn.Module):
    """Attention as in Llama: positions by rotation, and half as many heads for keys and values."""

    def __init__(self, d, heads, context):
        super().__init__()
        self.heads, self.wide = heads, d // heads
        self.q, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.k, self.v = (nn.Linear(d, d // 2, bias=False) for _ in range(2))
        turns = 10000.0 ** (-torch.arange(0, self.wide, 2) / self.wide)
        self.angles = torch.arange(context)[:, None] * turns  # Neither parameter nor buffer.

    def turn(self, x):
        a, b = x.chunk(2, -1)
        angles = self.angles[:x.shape[2]]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, self.wide).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = (z.repeat_interleave(2, 1) for z in (self.turn(k), v))
        a = F.scaled_dot_product_attention(self.turn(q), k, v, is_causal=True)
        return self.o(a.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, d, heads, context):
        super().__init__()
        self.attention = Turned(d, heads, context)
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.gate, self.up = (nn.Linear(d, 3 * d, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * d, d, bias=False)

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        z = self.n2(x)
        return x + self.down(F.silu(self.gate(z)) * self.up(z))


class Llama(nn.Module):
    """No bias anywhere, and a head of its own."""

    def __init__(self, vocabulary=256, d=48, layers=2, context=32, heads=4):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, d)
        self.layers = nn.ModuleList(Layer(d, heads, context) for _ in range(layers))
        self.norm = nn.RMSNorm(d)
        self.head = nn.Linear(d, vocabulary, bias=False)

    def forward(self, x, y):
        z = self.embed(x)
        for layer in self.layers:
            z = layer(z)
        return F.cross_entropy(self.head(self.norm(z)).flatten(0, 1).float(), y.flatten())


class Shortcut(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.c1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.c2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.b1, self.b2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.over = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False),
                                  nn.BatchNorm2d(after)) if stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.over(x) + self.b2(self.c2(F.relu(self.b1(self.c1(x))))))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.parts = nn.Sequential(Shortcut(8, 8, 1), Shortcut(8, 16, 2), Shortcut(16, 32, 2))
        self.last = nn.Linear(32, 10)

    def forward(self, x, y):
        z = self.parts(F.relu(self.norm(self.stem(x)))).mean((2, 3))
        return F.cross_entropy(self.last(z).float(), y)


class Tied(nn.Module):
    """One weight used three times: twice as it is, and transposed. One bias under two names."""

    def __init__(self, d=16):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 4)
        self.two.weight, self.two.bias = self.one.weight, self.one.bias

    def forward(self, x, y, which):
        z = self.two(torch.tanh(self.one(x)))
        return F.cross_entropy(self.out(torch.tanh(z) @ self.one.weight).float(), y)


class Experts(nn.Module):
    """Two experts of which one is used in each step, so that the other has no gradient."""

    def __init__(self, d=16):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 4)

    def forward(self, x, y, which):
        return F.cross_entropy(self.out(F.relu((self.b if which else self.a)(x))).float(), y)


class MoE(Experts):
    """With an expert that is never used."""

    def __init__(self, d=16):
        super().__init__(d)
        self.never = nn.Linear(d, d)


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
    return x, torch.randint(0, 4, (batch,), generator=g), (step + rank) % 2

# SPDX-License-Identifier: Apache-2.0
"""The reference of elastic runs: one process and plain torch, which replays recorded worlds.

It follows proto/wire/ARITHMETIC.md for fp32, one node and no clip, so its weights equal those of
the daemons bit by bit. It knows nothing of shardd but which rank has which samples.
"""

import numpy
import torch
from torch import nn


class Dropped(nn.Module):
    """A small classifier whose gradient depends on random numbers."""

    def __init__(self, dropout=0.2):
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b = nn.Linear(12, 24), nn.Linear(24, 4)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.b(self.dropout(torch.tanh(self.a(x)))), y)


class Points(torch.utils.data.Dataset):
    """Sample i is a function of i."""

    def __init__(self, length=50):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(12, generator=g), torch.randint(0, 4, (), generator=g)


def fma(a, b, c):
    """a * b + c of float32 tensors, rounded once."""
    a, b, c = (torch.as_tensor(x, dtype=torch.float32).double() for x in (a, b, c))
    p = a * b                        # Exact: 48 bits.
    s = p + c
    t = s - p                        # The error of the sum, by two-sum.
    error = (p - (s - t)) + (c - t)
    bits = s.view(torch.int64) if s.dim() else s.reshape(1).view(torch.int64)
    # Rounding to odd: then the second rounding, to float32, is that of the exact value.
    inexact, even = (error != 0).reshape(bits.shape), (bits & 1) == 0
    up = ((error > 0) == (s > 0)).reshape(bits.shape)
    bits = torch.where(inexact & even, torch.where(up, bits + 1, bits - 1), bits)
    return bits.view(torch.float64).reshape(s.shape).float()


class AdamW:
    """Section 6 of ARITHMETIC.md."""

    def __init__(self, module, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.params = dict(module.named_parameters())
        self.m = {k: torch.zeros_like(p) for k, p in self.params.items()}
        self.v = {k: torch.zeros_like(p) for k, p in self.params.items()}
        self.t = 0

    @torch.no_grad()
    def step(self, grads, world_size, lr=None):
        lr = self.lr if lr is None else lr
        self.t += 1
        f = lambda x: torch.tensor(x, dtype=torch.float32)  # noqa: E731
        b1, b2 = self.betas
        mult = f(1.0 / world_size)
        step_size, bc2 = f(lr / (1 - b1 ** self.t)), f((1 - b2 ** self.t) ** 0.5)
        decay = f(1 - lr * self.weight_decay)
        for k, p in self.params.items():
            w = grads[k] if grads[k] is not None else torch.zeros_like(p)
            g, m, v = w * mult, self.m[k], self.v[k]
            m.copy_(fma(f(1 - b1), g - m, m))
            v.copy_(fma(f(1 - b2) * g, g, f(b2) * v))
            # torch.sqrt() of float32 is not always the nearest number.
            d = torch.from_numpy(numpy.sqrt(v.numpy())) / bc2 + f(self.eps)
            p.copy_(fma(-step_size, m / d, p * decay))


def shares(batch, world_size):
    """shard_samples(), as shard.h says it."""
    q, r = divmod(batch, world_size)
    return [range(k * q + min(k, r), (k + 1) * q + min(k + 1, r)) for k in range(world_size)]


class Replay:
    """Makes the steps again that a run recorded.

    order(step) says the samples of a global batch. seed_of(step, rank) is the seed of a rank that
    was not in the step before. micro: samples of a backward pass at most.
    """

    def __init__(self, dataset, order, seed_of, lr=1e-2, micro=None, dropout=0.2, lr_of=None):
        self.module = Dropped(dropout)
        self.optimizer = AdamW(self.module, lr)
        self.dataset, self.order, self.seed_of = dataset, order, seed_of
        self.micro, self.lr_of = micro, lr_of
        self.randoms = {}  # By rank: the step and the state after it.

    def step(self, step, world_size):
        samples = self.order(step)
        sums = dict.fromkeys(self.optimizer.params)
        randoms = {}
        for rank, part in enumerate(shares(len(samples), world_size)):
            at, state = self.randoms.get(rank, (None, None))
            if at == step - 1:
                torch.set_rng_state(state)
            else:
                torch.manual_seed(self.seed_of(step, rank))
            mine = self._gradients([samples[i] for i in part], world_size, len(samples))
            randoms[rank] = (step, torch.get_rng_state())
            for k, g in mine.items():
                if g is not None:
                    sums[k] = g if sums[k] is None else sums[k] + g
        self.randoms = randoms
        self.optimizer.step(sums, world_size, self.lr_of(step) if self.lr_of else None)

    def _gradients(self, samples, world_size, total):
        most = self.micro or max(1, len(samples))
        summed = dict.fromkeys(self.optimizer.params)
        for at in range(0, len(samples), most):
            part = samples[at:at + most]
            gain = len(part) * world_size / total
            xs, ys = zip(*(self.dataset[i] for i in part))
            self.module.zero_grad()
            self.module(torch.stack(xs), torch.stack(ys)).backward()
            for k, p in self.optimizer.params.items():
                g = p.grad if gain == 1.0 else p.grad * gain
                summed[k] = g.clone() if summed[k] is None else summed[k] + g
        return summed

    def weights(self):
        return {k: p.detach().numpy().tobytes() for k, p in self.optimizer.params.items()}

# SPDX-License-Identifier: Apache-2.0
"""A small GPT that learns to write licence texts, byte by byte. One file, and nothing to download.

    $ python nanogpt.py --steps 200
    $ torchrun --nproc-per-node 2 nanogpt.py --steps 200
    $ python nanogpt.py --steps 200 --plain        # the same in torch alone: the same losses

It is a loop as you know it. What shardd changes in it are two lines, marked 1 and 2. With
--checkpoint DIR the daemons write one every --every steps, and the same command again goes on with
the newest one, with as many ranks as you like.
"""

import argparse
import math
import os
import pathlib
import time

import torch
from torch import nn
from torch.nn import functional as F

import shardd


class Block(nn.Module):
    """Attention, then two layers, each added to what came in."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(
            batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """Bytes in, the loss of the next byte out. Input and output share their embedding."""

    def __init__(self, width, layers, heads, context):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for e in (self.embedding, self.position):
            nn.init.normal_(e.weight, std=0.02)

    def forward(self, x, y):
        z = self.embedding(x) + self.position.weight[:x.shape[1]]
        z = F.linear(self.norm(self.blocks(z)), self.embedding.weight)
        return F.cross_entropy(z.flatten(0, 1).float(), y.flatten())


def text_of(path):
    """The bytes to train on, as (n,) int64: a file, or the licences that Debian installs."""
    if path is not None:
        data = pathlib.Path(path).read_bytes()
    else:
        files = sorted(pathlib.Path("/usr/share/common-licenses").glob("*"))
        data = b"".join(f.read_bytes() for f in files if f.is_file() and not f.is_symlink())
    if len(data) < 1000:
        raise SystemExit("nanogpt: there is too little text here: name a larger file by --data")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def batch_of(text, step, rank, o):
    """What a rank sees in a step: a function of both, so that a resumed run sees the same."""
    g = torch.Generator().manual_seed(1000 * step + rank)
    at = torch.randint(0, len(text) - o.context - 1, (o.batch, 1), generator=g)
    window = text[at + torch.arange(o.context + 1)]
    return window[:, :-1], window[:, 1:]


def lr_of(step, o):
    """Warm-up, then half a cosine."""
    warm = max(1, min(20, o.steps // 5))
    return o.lr * min(step / warm, 0.5 * (1.1 + 0.9 * math.cos(math.pi * step / o.steps)))


def options():
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--data", help="a file to train on; default: the licence texts of this machine")
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--stop", type=int, help="end after this step, as if it were interrupted")
    p.add_argument("--batch", type=int, default=8, help="sequences of a step, per rank")
    p.add_argument("--context", type=int, default=64, help="bytes of a sequence")
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--show", type=int, default=20, help="print every so many steps")
    p.add_argument("--bf16", action="store_true", help="parameters and gradients are bf16; the "
                   "weights that learn are fp32 in the daemons, and with --plain nowhere")
    p.add_argument("--checkpoint", help="a folder: save there, and go on from there")
    p.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
    p.add_argument("--plain", action="store_true", help="without shardd: DDP and torch.optim.AdamW")
    return p.parse_args()


def main():
    """Trains. Rank 0 prints its loss."""
    o = options()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.manual_seed(0)
    text = text_of(o.data)
    model = GPT(o.width, o.layers, o.heads, o.context)
    if o.bf16:
        model = model.bfloat16()

    if o.plain:
        if world > 1:
            torch.distributed.init_process_group("gloo")
            model = nn.parallel.DistributedDataParallel(model)
        opt = torch.optim.AdamW(model.parameters(), lr=o.lr, weight_decay=0.1)
        first = 1
    else:
        # 1. In place of the lines above. No DDP and no process group: shardd averages gradients.
        opt = shardd.AdamW(model, lr=o.lr, weight_decay=0.1, clip=1.0, name="nanogpt",
                           checkpoint_dir=o.checkpoint, checkpoint_every=o.every)
        first = opt.global_step + 1  # More than 1 where there is something to go on with.

    if rank == 0:
        print(f"{len(text)} bytes of text, {sum(p.numel() for p in model.parameters())} "
              f"parameters, {world} ranks, steps {first} to {o.steps}", flush=True)
    began, done = time.monotonic(), 0
    last = min(o.steps, o.stop or o.steps)
    for step in range(first, last + 1):
        for g in opt.param_groups:
            g["lr"] = lr_of(step, o)
        loss = model(*batch_of(text, step, rank, o))
        loss.backward()
        if o.plain:  # 2. With shardd this line goes: step() clips.
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        done += 1
        if rank == 0 and (step % o.show == 0 or step in (1, last)):
            ms = 1000 * (time.monotonic() - began) / done
            print(f"step {step}  loss {loss.item():.4f}  {ms:.1f} ms/step", flush=True)
            began, done = time.monotonic(), 0

    if o.plain:
        if world > 1:
            torch.distributed.destroy_process_group()
        return
    if o.checkpoint and rank == 0 and opt.global_step >= first and opt.global_step % o.every:
        opt.save()  # The daemons have saved at each multiple of --every.
    # Where there was nothing to do, other ranks may not have come yet: they need the model.
    opt.close(drop=False if first > last else None)


if __name__ == "__main__":
    main()

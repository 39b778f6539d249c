# SPDX-License-Identifier: Apache-2.0
"""Training that survives kill -9: start as many of these as you like, kill any, start others.

    $ export SHARD_ADDRESS=spawn:demo       # or leave it out where shardd runs as a service
    $ for i in 1 2 3; do python elastic.py --last 700 & done
    [19567] step 1: rank 0 of 1
    [19568] step 3: rank 2 of 3
    [19569] step 3: rank 1 of 3
    [19567] step 3: rank 0 of 3
    $ kill -9 19568
    [19567] step 63: rank 0 of 2
    [19569] step 63: rank 1 of 2
    [19567] step 100: loss 0.0955, gradient norm 0.265
    [19567] step 200: loss 0.0063, gradient norm 0.151
    $ python elastic.py --last 700 &
    [21834] step 271: rank 2 of 3
    [19569] step 271: rank 1 of 3
    [19567] step 271: rank 0 of 3
    [19567] step 300: loss 0.0019, gradient norm 0.037
    [19567] step 400: loss 0.0043, gradient norm 0.051
    [19567] step 500: loss 0.0124, gradient norm 0.157
    [19567] step 600: loss 0.0018, gradient norm 0.083
    [19567] step 700: loss 0.0004, gradient norm 0.352
    [19569] ends after step 700: all weights sum to -12.490128048
    [21834] ends after step 700: all weights sum to -12.490128048
    [19567] ends after step 700: all weights sum to -12.490128048

Under torchrun a kill ends all trainers of the node, and torchrun starts them again. They go on
where the daemon is, and no checkpoint is read:

    $ torchrun --nproc-per-node 2 --max-restarts 3 elastic.py --last 1500
    [14279] step 7: rank 0 of 2
    [14282] step 7: rank 1 of 2
    $ kill -9 14282
    [14279] step 66: rank 0 of 1
    Sending process 14279 closing signal SIGTERM
    [18747] step 67: rank 0 of 1
    [18753] step 75: rank 1 of 2
    [18747] step 75: rank 0 of 2
    [18747] step 100: loss 0.0955, gradient norm 0.265
    ...
    [18747] ends after step 1500: all weights sum to -14.305557364
    [18753] ends after step 1500: all weights sum to -14.305557364
"""

import argparse
import logging
import os
import time

import torch
from torch import nn

import shardd


class Numbers(torch.utils.data.Dataset):
    """The classes of points on two spirals. Sample i is a function of i."""

    def __len__(self):
        return 20000

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        kind, r = i % 2, 0.2 + 3 * torch.rand((), generator=g)
        at = 2 * r + torch.pi * kind
        return torch.stack([r * at.cos(), r * at.sin()]) + 0.05 * torch.randn(2, generator=g), kind


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--last", type=int, default=600, help="the last step")
    parser.add_argument("--batch", type=int, default=96, help="samples of a step, of all trainers")
    parser.add_argument("--pace", type=float, default=0.03, help="seconds that a step takes longer")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
                          nn.Linear(64, 2))
    opt = shardd.AdamW(model, lr=3e-3, clip=1.0, name="elastic", world=(1, 8))
    me, world = os.getpid(), None
    for step, batches in shardd.steps(opt, Numbers(), options.batch, options.last, shuffle=True,
                                      micro_batch=32):
        if opt.world_size != world:
            print(f"[{me}] step {step}: rank {opt.rank} of {opt.world_size}", flush=True)
            world = opt.world_size
        for x, y in batches:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
        opt.step()
        time.sleep(options.pace)
        if opt.rank == 0 and opt.result and step % 100 == 0:
            print(f"[{me}] step {step}: loss {loss.item():.4f}, gradient norm "
                  f"{opt.result.grad_norm:.3f}", flush=True)
    total = sum(opt.read(k).double().sum() for k, _ in model.named_parameters())
    print(f"[{me}] ends after step {opt.global_step}: all weights sum to {total:.9f}", flush=True)
    opt.close(drop=False)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Two ranks of torchrun train with what a wheel has brought, and nothing of this repository.

`make check-wheel` runs it. It fails unless library and daemon are those of the installed package.
"""

import os
import pathlib

import torch

import shardd
from shardd import lib

assert not {"SHARDD_LIB", "SHARD_DAEMON", "SHARD_ADDRESS", "PYTHONPATH"} & set(os.environ)
here = pathlib.Path(shardd.__file__).parent
assert "site-packages" in str(here), here
assert lib.libshard()._name == str(here / "_native" / "lib" / "libshard.so.0")
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
opt = shardd.AdamW(model, lr=1e-3, clip=1.0, name="wheel")
for step in range(5):
    model(torch.randn(8, 64)).square().mean().backward()
    opt.step()
    opt.zero_grad()
assert opt.result.applied and opt.result.step == 5 and opt.world_size == 2
print(f"wheel: rank {opt.rank} of {opt.world_size} trained {opt.result.step} steps", flush=True)

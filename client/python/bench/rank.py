# SPDX-License-Identifier: Apache-2.0
"""One rank of one system, for bench.py: trains a GPT and prints what a step costs, as JSON.

RANK and WORLD_SIZE are in the environment. Every system trains the same model on the same batches
with AdamW and a clip of 1.0, so the losses tell whether they do the same. Arguments: system, hidden
size, layers, steps.
"""

import json
import os
import sys
import time
import warnings

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
import models  # noqa: E402

warnings.filterwarnings("ignore")
LR, DECAY, CLIP = 1e-3, 0.01, 1.0


def bare_system(model):
    """Forward and backward alone: nothing is exchanged, and nothing is updated."""
    return model, (lambda loss: loss.backward()), model.zero_grad, lambda: None


def shardd_system(model, bf16):
    import shardd
    if bf16:
        model.to(torch.bfloat16)
    opt = shardd.AdamW(model, lr=LR, weight_decay=DECAY, clip=CLIP, name="bench")
    return model, (lambda loss: loss.backward()), opt.step, opt.close


def ddp_system(model, kind):
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    params = list(model.parameters())
    if kind == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        opt = ZeroRedundancyOptimizer(params, torch.optim.AdamW, lr=LR, weight_decay=DECAY,
                                      fused=True)
    else:
        opt = torch.optim.AdamW(params, lr=LR, weight_decay=DECAY, fused=True)
    return ddp, (lambda loss: loss.backward()), _clipped(params, opt), lambda: None


def fsdp_system(model, reshard, bf16):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    how = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),)),
           "reshard_after_forward": reshard}
    if bf16:
        how["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, **how)
    fully_shard(model, **how)
    params = list(model.parameters())
    opt = torch.optim.AdamW(params, lr=LR, weight_decay=DECAY)
    return model, (lambda loss: loss.backward()), _clipped(params, opt), lambda: None


def _clipped(params, opt):
    def step():
        torch.nn.utils.clip_grad_norm_(params, CLIP)
        opt.step()
        opt.zero_grad()
    return step


def deepspeed_system(model, stage, bf16, batch):
    import deepspeed
    engine, *_ = deepspeed.initialize(model=model, config={
        "train_micro_batch_size_per_gpu": batch, "gradient_clipping": CLIP,
        "optimizer": {"type": "AdamW",
                      "params": {"lr": LR, "weight_decay": DECAY, "torch_adam": True}},
        "zero_optimization": {"stage": stage}, "bf16": {"enabled": bf16}, "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True})
    return engine, engine.backward, engine.step, lambda: None


def memory():
    """PSS of this process in MiB: what is shared counts for each who shares it, in parts."""
    with open("/proc/self/smaps_rollup") as f:
        return int(next(line for line in f if line.startswith("Pss:")).split()[1]) / 1024


def main():
    system, d, layers, steps = sys.argv[1], *map(int, sys.argv[2:5])
    rank, batch, length, vocabulary = int(os.environ["RANK"]), 2, 128, 4096
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = models.GPT(vocabulary, d, layers, length, heads=8)
    params = sum(p.numel() for p in model.parameters())
    if not system.startswith(("shardd", "bare")):
        dist.init_process_group("gloo")
    name, _, how = system.partition("-")
    how, bf16 = how.removesuffix("-bf16"), how.endswith("bf16")
    if name == "shardd":
        forward, backward, step, close = shardd_system(model, bf16)
    elif name == "bare":
        forward, backward, step, close = bare_system(model)
    elif name == "ddp":
        forward, backward, step, close = ddp_system(model, how)
    elif name == "fsdp2":
        forward, backward, step, close = fsdp_system(model, how == "z3", bf16)
    else:
        forward, backward, step, close = deepspeed_system(model, int(how), bf16, batch)
    took, tail, losses = [], [], []
    for s in range(steps):
        x, y = models.tokens(s, rank, batch, length, vocabulary)
        began = time.perf_counter()
        loss = forward(x, y)
        backward(loss)
        after = time.perf_counter()
        step()
        end = time.perf_counter()
        took.append(1000 * (end - began))
        tail.append(1000 * (end - after))
        losses.append(loss.item())
    print("RANK " + json.dumps({
        "params": params, "steps": took[2:] or took, "tail": tail[2:] or tail, "memory": memory(),
        "losses": [losses[0], losses[steps // 2], losses[-1]]}), flush=True)
    sys.stdin.readline()  # Until all have measured their memory.
    close()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A script with Ray Train, as its guide to DeepSpeed has it. It prints the mean loss of each step.

ray_train.py WORDS: JSON with workers, stage (of ZeRO; null: plain DDP), out (a folder).
"""

import json
import sys


def trains(o):
    import torch
    import ray.train

    import models
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, n = models.GPT(), ray.train.get_context().get_world_size()
    rank = ray.train.get_context().get_world_rank()
    if o["stage"] is None:
        model = ray.train.torch.prepare_model(model)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    else:
        import shardd.deepspeed as deepspeed
        model, opt, _, _ = deepspeed.initialize(model=model, config={
            "train_micro_batch_size_per_gpu": 4 // n, "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01}},
            "zero_optimization": {"stage": o["stage"]}})
    for step in range(o["steps"]):
        x, y = models.tokens(step, 0, batch=4)
        x, y = x[rank::n], y[rank::n]
        loss = model(x, y)
        if o["stage"] is None:
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        else:
            model.backward(loss)
            model.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        ray.train.report({"step": step, "loss": mean.item() / n})
        if rank == 0:
            with open(o["out"] + "/log", "a", encoding="utf-8") as f:
                f.write(json.dumps([step, mean.item() / n]) + "\n")


if __name__ == "__main__":
    import os

    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    o = {"workers": 1, "stage": None, "out": "out", "steps": 6, **json.loads(sys.argv[1])}
    names = ("PYTHONPATH", "SHARDD_LIB", "SHARD_DAEMON", "SHARD_LINGER", "SHARD_ADDRESS",
             "OMP_NUM_THREADS", "DS_ACCELERATOR")
    ray.init(num_cpus=max(2, o["workers"]), include_dashboard=False, log_to_driver=True,
             runtime_env={"env_vars": {k: os.environ[k] for k in names if k in os.environ}})
    try:
        TorchTrainer(trains, train_loop_config=o,
                     scaling_config=ScalingConfig(num_workers=o["workers"], use_gpu=False),
                     run_config=RunConfig(storage_path=o["out"], name="run")).fit()
    finally:
        ray.shutdown()
    with open(o["out"] + "/log", encoding="utf-8") as f:
        print("LOG " + json.dumps([json.loads(line) for line in f]), flush=True)

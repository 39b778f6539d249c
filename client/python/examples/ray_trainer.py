# SPDX-License-Identifier: Apache-2.0
"""Ray Train with a loop that was written for DeepSpeed. Nothing is downloaded.

    $ python -m shardd.deepspeed ray_trainer.py --kill 6

Ray's workers are new processes, and have shardd as deepspeed because this one was started so. The
workers of a cluster that runs already are not: say `import shardd.deepspeed as deepspeed` in the
loop there.

With --kill a worker ends by SIGKILL in that step. Ray starts all workers again, and they go on with
the step that the daemon is at. If the daemon has ended too, they go on with the last checkpoint.
"""

import argparse
import os
import signal

import ray
import ray.train
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--every", type=int, default=4, help="steps between checkpoints")
parser.add_argument("--kill", type=int, default=0, help="the step in which a worker dies")
parser.add_argument("--out", default="/tmp/ray_trainer", help="a folder that all nodes see")
parser.add_argument("--name", default="ray-example", help="of the run, and of the model in shardd")
o = parser.parse_args()

DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}, "gradient_clipping": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
}


def train(o):
    """What each worker does."""
    import deepspeed  # This is shardd.
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = ray.train.get_context().get_world_rank()
    net = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64))
    engine, _, _, _ = deepspeed.initialize(model=net, config=DS_CONFIG)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint and not engine.global_steps:
        with checkpoint.as_directory() as folder:
            engine.load_checkpoint(folder)
    first = engine.global_steps + 1
    for step in range(first, o["steps"] + 1):
        g = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randint(0, 64, (8, 16), generator=g)
        loss = torch.nn.functional.cross_entropy(engine(x).flatten(0, 1), ((x + 1) % 64).flatten())
        engine.backward(loss)
        if step == o["kill"] and rank == 1 and first == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        engine.step()
        if rank == 0:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)
        saved = None
        if step % o["every"] == 0 or step == o["steps"]:
            folder = os.path.join(o["out"], o["name"] + "-saved", str(step))
            engine.save_checkpoint(folder)  # All ranks call it, and the daemons write.
            saved = Checkpoint.from_directory(folder) if rank == 0 else None
        ray.train.report({"step": step, "loss": loss.item(), "first": first,
                          "deepspeed": deepspeed.__version__}, checkpoint=saved)


def main():
    """Trains, and prints what rank 0 reported last."""
    ray.init(include_dashboard=False)
    result = TorchTrainer(
        train, train_loop_config=vars(o),
        scaling_config=ScalingConfig(num_workers=o.workers, use_gpu=False),
        run_config=RunConfig(name=o.name, storage_path=o.out,
                             failure_config=FailureConfig(max_failures=2),
                             checkpoint_config=CheckpointConfig(num_to_keep=1))).fit()
    print("last: step {step}, loss {loss:.6f}, deepspeed {deepspeed}; the last workers began with "
          "step {first}".format(**result.metrics))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A loop of DeepSpeed with the model and the text of nanogpt.py. One line of it changes.

    $ torchrun --nproc-per-node 2 deepspeed_loop.py
    $ torchrun --nproc-per-node 2 deepspeed_loop.py --real      # DeepSpeed itself: the same losses
"""

import argparse
import os

import torch

from nanogpt import GPT, batch_of, text_of

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--real", action="store_true", help="DeepSpeed itself, if it is installed")
o = parser.parse_args()
o.batch, o.context = 4, 64

if o.real:
    import deepspeed
    for op in deepspeed.ops.__compatible_ops__:
        deepspeed.ops.__compatible_ops__[op] = False  # It would compile some of them first.
else:
    import shardd.deepspeed as deepspeed  # The line that changes.

DS_CONFIG = {
    "train_micro_batch_size_per_gpu": o.batch,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "zero_force_ds_cpu_optimizer": False,
    # torch_adam: DeepSpeed would else compile an Adam of its own. shardd has the daemons do it.
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1, "torch_adam": True}},
}


def main():
    """Trains. Rank 0 prints its loss."""
    torch.manual_seed(0)
    text, rank = text_of(None), int(os.environ.get("RANK", 0))
    model = GPT(width=64, layers=2, heads=4, context=o.context)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                           config=DS_CONFIG)
    for step in range(1, o.steps + 1):
        loss = engine(*batch_of(text, step, rank, o))
        engine.backward(loss)
        engine.step()
        if rank == 0 and (step == 1 or step % 5 == 0):
            print(f"step {step}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

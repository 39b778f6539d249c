# SPDX-License-Identifier: Apache-2.0
"""A script with Lightning's Trainer as users write it.

lightning_train.py '{"mode": "deepspeed", "stage": 2, ...}' trains a small model on numbers. Rank 0
prints its losses, and writes the weights to `out`. mode: "deepspeed", "ddp", "shardd" for its
optimizer without a strategy or with "ddp", or "loop" for a plain loop of torch, in one process,
over the samples of all ranks. But for "shardd" it knows nothing of shardd.
"""

import json
import os
import sys
import warnings

import torch

warnings.filterwarnings("ignore")
torch.set_num_threads(1)

o = {"mode": "deepspeed", "stage": 2, "ranks": 1, "accumulation": 1, "steps": 6, "clip": 0.0,
     "precision": "32-true", "save": None, "resume": None, "skip": 0, "on_cpu": True,
     "out": "out.pt", **json.loads(sys.argv[1])}
BATCH, V, LENGTH = 4, 64, 16


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = torch.nn.Embedding(V, 32), torch.nn.LayerNorm(32)
        self.up, self.down = torch.nn.Linear(32, 128), torch.nn.Linear(128, 32)
        self.head = torch.nn.Linear(32, V)

    def forward(self, x, y):
        h = self.embed(x)
        h = h + self.down(torch.nn.functional.gelu(self.up(h)))
        return torch.nn.functional.cross_entropy(
            self.head(self.norm(h)).float().flatten(0, 1), y.flatten())


def samples(rank):
    """Every ranks-th sample, in order, because Lightning would shuffle them."""
    g = torch.Generator().manual_seed(1)
    x = (torch.randint(0, V, (256, 1), generator=g) + torch.arange(LENGTH + 1) *
         torch.randint(1, 4, (256, 1), generator=g)) % V
    x = x[rank::o["ranks"]][o["skip"] * BATCH:]
    return torch.utils.data.DataLoader([(r[:-1], r[1:]) for r in x], batch_size=BATCH)


def tools(net, wrapped=None):
    """A rate that falls with each step. wrapped: the same in Lightning's DDP, if it has one."""
    if o["mode"] == "shardd":
        import shardd
        opt = shardd.AdamW(wrapped, lr=1e-2, clip=o["clip"], accumulate=o["accumulation"])
    else:
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    return opt, torch.optim.lr_scheduler.LambdaLR(opt, lambda i: 1 / (1 + i))


def tell(net, **words):
    torch.save({k: v.detach().clone() for k, v in net.state_dict().items()}, o["out"])
    print("LOG " + json.dumps(words), flush=True)


def loop():
    net, losses = Net(), []
    opt, schedule = tools(net)
    of_ranks = list(zip(*(samples(r) for r in range(o["ranks"]))))
    for step in range(o["steps"]):
        for k in range(o["accumulation"]):
            each = [net(*b) for b in of_ranks[step * o["accumulation"] + k]]
            losses.append(each[0].item())
            (sum(each) / len(each) / o["accumulation"]).backward()
        if o["clip"]:
            torch.nn.utils.clip_grad_norm_(net.parameters(), o["clip"])
        opt.step()
        opt.zero_grad()
        schedule.step()
    tell(net, losses=losses)


def trainer():
    import lightning
    from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy

    class OnCPU(DeepSpeedStrategy):
        """Lightning refuses DeepSpeed without a GPU in two places: these."""

        def setup_environment(self):
            DDPStrategy.setup_environment(self)

        def setup_distributed(self):
            self.set_world_ranks()
            self._init_deepspeed_distributed()

        @property
        def root_device(self):
            return torch.device("cpu", 0)  # DeepSpeed itself wants a number.

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.losses = Net(), []

        def training_step(self, batch, i):
            loss = self.net(*batch)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            opt, schedule = tools(self.net, self.trainer.model)
            return {"optimizer": opt, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def train_dataloader(self):
            return samples(self.global_rank)

    strategy, version = "auto" if o["ranks"] == 1 else "ddp", None
    if o["mode"] == "deepspeed":
        import deepspeed
        version, config = deepspeed.__version__, None
        if "shardd" not in version:  # The real one, as a peer. Nothing is to be compiled for it.
            for op in deepspeed.ops.__compatible_ops__:
                deepspeed.ops.__compatible_ops__[op] = False
            config = {"zero_optimization": {"stage": o["stage"]}, "zero_allow_untested_optimizer":
                      True, "zero_force_ds_cpu_optimizer": False}
        strategy = OnCPU(stage=o["stage"], config=config, process_group_backend="gloo") \
            if o["on_cpu"] else f"deepspeed_stage_{o['stage']}"
    module = Module()
    made = lightning.Trainer(
        strategy=strategy, accelerator="cpu", devices=o["ranks"], max_steps=o["steps"],
        accumulate_grad_batches=o["accumulation"], gradient_clip_val=None if o["mode"] == "shardd" else o["clip"] or None,
        precision=o["precision"], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False)
    made.fit(module, ckpt_path=o["resume"])
    if o["save"]:
        made.save_checkpoint(o["save"])
    if made.global_rank == 0:
        tell(module.net, losses=module.losses, version=version, step=made.global_step)


if __name__ == "__main__":
    loop() if o["mode"] == "loop" else trainer()

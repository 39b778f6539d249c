# SPDX-License-Identifier: Apache-2.0
"""A script with Lightning, as users write it. It prints the loss of each step.

lightning_train.py WORDS: JSON with stage (of ZeRO; null: Lightning alone), out (a folder),
accumulation, resume (a checkpoint). DeepSpeedStrategy is only for GPUs, and its two checks of that
are taken out for this machine; all else of it runs as it is.
"""

import json
import sys

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import models

o = {"stage": None, "out": "out", "accumulation": 1, "resume": None, "batch": 2, "steps": 8,
     **json.loads(sys.argv[1])}
torch.set_num_threads(1)
log = []


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.gpt = models.GPT()

    def training_step(self, batch, i):
        loss = self.gpt(*batch)
        log.append([self.global_step, loss.item(), self.optimizers().param_groups[0]["lr"]])
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-2)
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: 1 / (1 + 0.1 * i))
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def strategy():
    if o["stage"] is None:
        return "auto"
    from lightning.pytorch.strategies import DeepSpeedStrategy

    class OnTheCPU(DeepSpeedStrategy):
        def setup_environment(self):
            super(DeepSpeedStrategy, self).setup_environment()

        def setup_distributed(self):
            self.set_world_ranks()
            self._init_deepspeed_distributed()

    return OnTheCPU(stage=o["stage"], offload_optimizer=False)


data = [(x[0], y[0]) for x, y in (models.tokens(i, 0, batch=1) for i in range(8))]
keep = ModelCheckpoint(dirpath=o["out"], every_n_train_steps=4, save_top_k=-1, filename="{step}")
trainer = L.Trainer(
    accelerator="cpu", devices=o.get("devices", 1), strategy=strategy(), max_steps=o["steps"],
    accumulate_grad_batches=o["accumulation"], gradient_clip_val=1.0, logger=False,
    callbacks=[keep], enable_progress_bar=False,
    enable_model_summary=False, use_distributed_sampler=False,
    default_root_dir=o["out"])
torch.manual_seed(0)
module = Module()
trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=o["batch"]),
            ckpt_path=o["resume"])
if trainer.global_rank == 0:
    print("LOG " + json.dumps(log), flush=True)

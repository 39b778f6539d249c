# SPDX-License-Identifier: Apache-2.0
"""The real DeepSpeed as a peer: trains, saves, converts and goes on, in trainers of crew.py."""

import contextlib
import os
import sys

import models


def config(stage, **more):
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0, "zero_force_ds_cpu_optimizer": False,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01,
                                                      "torch_adam": True}},
            "zero_optimization": {"stage": stage}, **more}


class Peer:
    """One rank of it. Its modules are imported here, so that only a child has them."""

    def __init__(self):
        os.environ["DS_ACCELERATOR"] = "cpu"
        with open(os.devnull, "w", encoding="utf-8") as nothing, \
                contextlib.redirect_stdout(nothing):
            import deepspeed
        import torch
        for op in deepspeed.ops.__compatible_ops__:  # Nothing is to be compiled here.
            deepspeed.ops.__compatible_ops__[op] = False
        self.deepspeed, self.torch = deepspeed, torch

    def engine(self, stage, seed=0, **more):
        self.torch.manual_seed(seed)
        model = models.GPT()
        return self.deepspeed.initialize(model=model, config=config(stage, **more),
                                         model_parameters=list(model.parameters()))[0]

    def go(self, engine, first, last):
        losses = []
        for s in range(first, last):
            loss = engine(*models.tokens(s, engine.global_rank))
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        return losses

    def universal(self, source, to):
        """What `ds_to_universal` makes of a checkpoint. One rank calls it."""
        from argparse import Namespace

        from deepspeed.checkpoint.ds_to_universal import main
        with open(os.devnull, "w", encoding="utf-8") as nothing, \
                contextlib.redirect_stdout(nothing):
            main(Namespace(input_folder=source, output_folder=to, num_extract_workers=1,
                           num_merge_workers=1, keep_temp_folder=False, strict=True,
                           inject_missing_state=True))

    def fp32(self, folder):
        """What `zero_to_fp32` makes of a checkpoint."""
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        with open(os.devnull, "w", encoding="utf-8") as nothing, \
                contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            return get_fp32_state_dict_from_zero_checkpoint(folder)


def both_ways(line, dir, theirs, cases):
    """Saves in each of `cases` and goes on; then goes on with what shardd wrote, in each stage.

    dir: theirs go to dir/CASE. theirs: what shardd wrote: folders "universal" and "zero"."""
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # Its log.
    peer = Peer()
    dist = peer.torch.distributed
    for name, (stage, more) in cases.items():
        engine = peer.engine(stage, **more)
        before = peer.go(engine, 0, 3)
        where = os.path.join(dir, name)
        engine.save_checkpoint(where, client_state={"epoch": 7})
        line.say("went", case=name, losses=before + peer.go(engine, 3, 6))
        if engine.global_rank == 0:
            peer.universal(os.path.join(where, "global_step3"),
                           os.path.join(dir, name + "-u", "global_step3_universal"))
            if not more:
                peer.torch.save(peer.fp32(where), os.path.join(dir, name + ".fp32"))
        dist.barrier()
    for name, (stage, more) in cases.items():
        engine = peer.engine(stage, seed=1, checkpoint={"load_universal": True}, **more)
        path, _ = engine.load_checkpoint(theirs["universal"])
        line.say("came", case=name + "-universal", steps=engine.global_steps, path=path,
                 losses=peer.go(engine, 3, 6))
    engine = peer.engine(2, seed=1)
    _, client = engine.load_checkpoint(theirs["zero"])
    line.say("came", case="zero", steps=engine.global_steps, client=client["who"],
             losses=peer.go(engine, 3, 6))
    if engine.global_rank == 0:
        peer.torch.save(peer.fp32(theirs["zero"]), os.path.join(dir, "zero.fp32"))
    dist.barrier()
    dist.destroy_process_group()

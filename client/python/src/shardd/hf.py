# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with a shardd.Optimizer, and no DeepSpeed in between.

    opt = shardd.AdamW(model, lr=1e-4, accumulate=4)
    trainer = Trainer(model, args, train_dataset=data, optimizers=(opt, None))
    trainer.add_callback(shardd.hf.TrainerCallback(trainer))
    trainer.train()

The Trainer clips with torch, whose gradients are in the daemon by then, and puts DDP around the
model. Both go through its Accelerator, where the callback answers instead.
"""

from __future__ import annotations

import functools
import math

import torch
import transformers

from . import params as _p
from .optimizer import Optimizer

CLASH = "shardd.hf.TrainerCallback: "


class TrainerCallback(transformers.TrainerCallback):
    """Has a Trainer train with the shardd.Optimizer that it has, and save through the daemon.

    max_grad_norm    is the clip of each step, on the norm over all ranks. 0: that of the Optimizer
    grad_norm        in the Trainer's log is the norm of that step, as the daemons computed it
    loss_scale, world_size, applied    are in the log beside it
    save             has the daemons write checkpoint-N/global_stepN, where the Trainer saves. To go
                     on, make the Optimizer with init=shardd.Initial.from_shardd("checkpoint-N") and
                     call trainer.train(resume_from_checkpoint="checkpoint-N")
    A step that shardd skipped is one for the Trainer, too: its scheduler stays where it is.

    Raises ValueError where the Trainer would do what this Optimizer cannot.
    """

    def __init__(self, trainer: transformers.Trainer):
        opt, args = trainer.optimizer, trainer.args
        if not isinstance(opt, Optimizer):
            raise ValueError(f"{CLASH}the Trainer's optimizer is {type(opt).__name__}: give it "
                             "optimizers=(shardd.AdamW(model, ...), None)")
        if opt.accumulate != args.gradient_accumulation_steps:
            raise ValueError(f"{CLASH}gradient_accumulation_steps is "
                             f"{args.gradient_accumulation_steps}, and the Optimizer has accumulate"
                             f"={opt.accumulate}: give both the same number")
        if args.load_best_model_at_end:
            raise ValueError(f"{CLASH}load_best_model_at_end would write parameters that are the "
                             "daemon's. Leave it out, and load what state.best_model_checkpoint "
                             "names after opt.close()")
        ranks = _p.hint("WORLD_SIZE", 1)
        if args.world_size != ranks:
            raise ValueError(f"{CLASH}WORLD_SIZE is {ranks}, and the Trainer counts "
                             f"{args.world_size}, so that all ranks train on the same batches. On "
                             "a machine without a GPU say TrainingArguments(use_cpu=True)")
        self._opt, self._handler = opt, trainer.callback_handler
        self._norm = torch.zeros(())  # The Trainer reads it after the step, and asks before it.
        a = trainer.accelerator
        a.clip_grad_norm_ = self._clip
        a.prepare_model = functools.partial(a.prepare_model, evaluation_mode=True)  # Without DDP.

    def _clip(self, parameters, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        if math.isfinite(max_norm):
            self._opt.clip_grad_norm_(max_norm)
        return self._norm

    def on_train_begin(self, args, state, control, **kwargs):
        """Programs that the Trainer reports to are callbacks as well, and read what comes first."""
        self._handler.callbacks = [self, *(c for c in self._handler.callbacks if c is not self)]
        _note_loaded(self._opt)

    def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        """What the step came to."""
        self._norm.fill_(self._opt.result.grad_norm)
        optimizer._is_overflow = self._opt.step_was_skipped

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Adds what the Trainer does not know."""
        r = self._opt.result
        if r is not None and logs is not None and "loss" in logs:
            more = {"loss_scale": r.loss_scale, "world_size": r.world_size,
                    "applied": self._opt.applied}
            logs.update(more)
            state.log_history[-1].update(more)

    def on_save(self, args, state, control, **kwargs):
        """The daemons write what the Trainer's own files refer to."""
        if state.is_world_process_zero:
            self._opt.save(f"{args.output_dir}/checkpoint-{state.global_step}")


def _note_loaded(opt: Optimizer) -> None:
    """The Trainer writes its file's weights into the parameters to go on. Where they are what the
    daemons have, nobody has changed the model behind the Optimizer's back."""
    for r in opt._rows:
        if r.param._version != r.version and torch.equal(
                r.param.cpu(), opt.read(r.param, "image", r.dtype)):
            _p.note_written([r])

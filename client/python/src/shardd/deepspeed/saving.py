# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a DeepSpeedEngine: the model, and beside it what only trainers know.

save() has the daemons write dir/tag. Counters, schedule, buffers and the user's own state are a
file of rank 0's, which the daemons copy into dir/tag/client before the checkpoint gets its name.
load() drops the model and makes it anew from there, for whatever number of trainers there is now.
The file of trainers is read as data only: it holds tensors, plain values and the classes in SAFE,
and what else a user wants in it is refused when it is written.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import shutil

import torch

from .. import params as _p
from ..checkpoints import Checkpoint, Initial, latest
from ..older import safe_globals
from . import comm
from .monitor import log

CLIENT = os.path.join("client", "deepspeed.pt")  # Inside the folder of a checkpoint.
# What may be in a file of client state beside tensors and plain values.
SAFE = [argparse.Namespace]


def save(engine, save_dir: str, tag: str, client_state: dict, save_latest: bool,
         exclude_frozen: bool) -> None:
    """DeepSpeedEngine.save_checkpoint()."""
    _same_tag(engine, tag)
    if not save_dir:
        raise ValueError(f"shardd: save_checkpoint(): save_dir is {save_dir!r}, and should be "
                         "a folder")
    save_dir = os.path.abspath(save_dir)
    failed: Exception | None = None
    if engine.global_rank == 0:
        try:
            state = _client_bytes(engine, client_state, exclude_frozen)
            _write(engine, save_dir, tag, state, save_latest)
        except Exception as e:
            failed = e
    _all_know(failed)
    comm.barrier_if_any()


def _all_know(failed: Exception | None) -> None:
    """Raises what failed on rank 0 there, and its text on all others, which wait for that."""
    if comm.is_initialized() and torch.distributed.get_world_size() > 1:
        said: list = [None if failed is None else str(failed)]
        torch.distributed.broadcast_object_list(said, src=0)
        if failed is None and said[0] is not None:
            raise RuntimeError(f"shardd: rank 0 did not save: {said[0]}")
    if failed is not None:
        raise failed


def _same_tag(engine, tag: str) -> None:
    mode = str(engine._config.get("checkpoint.tag_validation", "Warn")).lower()
    if mode == "ignore" or not comm.is_initialized() or engine.world_size < 2:
        return
    tags: list = [None] * engine.world_size
    torch.distributed.all_gather_object(tags, tag)
    if len(set(tags)) > 1:
        text = f"[rank={engine.global_rank}] The checkpoint tag name '{tag}' is not consistent " \
            f"across all ranks: {sorted(set(tags))}. Including rank unique information in " \
            "the tag could cause issues when restoring"
        assert mode != "fail", text
        log.warning("%s", text)


def _write(engine, save_dir: str, tag: str, state: bytes, save_latest: bool) -> None:
    """The daemons write the model and take the file of trainers along: both are there, or none is,
    and an older checkpoint of that tag is there until then."""
    os.makedirs(save_dir, exist_ok=True)
    opt, newest, before = engine.optimizer, os.path.join(save_dir, "latest"), None
    if not save_latest and os.path.isfile(newest):
        with open(newest, encoding="utf-8") as f:
            before = f.read()
    late = opt is None or opt._session.address.startswith("tcp:")
    draft = os.path.join(save_dir, f".{tag}.client.{os.getpid()}")
    try:
        if not late:
            _write_file(os.path.join(draft, os.path.basename(CLIENT)), state)
        if opt is not None:
            opt._save(save_dir, tag, None if late else draft, True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if late:  # Over TCP nobody knows whose files they are, so that they come afterwards.
        _write_file(os.path.join(save_dir, tag, CLIENT), state)
    if before is not None:
        _write_file(newest, before.encode())
    elif save_latest:
        _write_file(newest, tag.encode())
    elif os.path.isfile(newest):
        os.unlink(newest)


def _client_bytes(engine, client_state: dict, exclude_frozen: bool) -> bytes:
    opt, sched = engine.optimizer, engine.lr_scheduler
    known = {r.name for r in opt._rows} if opt is not None else set()
    state = {
        "client_state": client_state, "global_steps": engine.global_steps,
        "global_samples": engine.global_samples, "skipped_steps": engine.skipped_steps,
        "micro_steps": engine.micro_steps, "world_size": engine.world_size,
        "lr_scheduler": sched.state_dict() if hasattr(sched, "state_dict") else None,
        "param_groups": [{k: v for k, v in g.items() if k != "params"}
                         for g in opt.param_groups] if opt is not None else [],
        "loss_scale": opt.cur_scale if opt is not None else 1.0,
        "buffers": {n: b.detach().clone() for n, b in engine.module.named_buffers()},
        "frozen": {} if exclude_frozen else {
            n: p.detach().clone() for n, p in engine.module.named_parameters()
            if not p.requires_grad and n not in known},
        "tied": _p.ties(engine.module),
    }
    out = io.BytesIO()
    torch.save(state, out)
    try:
        with safe_globals(SAFE):
            torch.load(io.BytesIO(out.getvalue()), weights_only=True)
    except Exception as e:
        raise TypeError("shardd: save_checkpoint(): client_state or the scheduler's state has "
                        "an object that could not be read again safely: give tensors, numbers, "
                        "text, lists and dicts, or name its class to "
                        f"torch.serialization.add_safe_globals(): {str(e)[:300]}") from None
    return out.getvalue()


def load(engine, load_dir: str, tag: str | None, strict: bool, optimizer_states: bool,
         scheduler_states: bool, module_only: bool) -> tuple[str | None, dict]:
    """DeepSpeedEngine.load_checkpoint()."""
    load_dir = os.path.abspath(load_dir)
    if tag is None:
        try:
            tag = latest(load_dir)
        except FileNotFoundError:
            log.warning("there is no checkpoint in %s, so that nothing is loaded", load_dir)
            return None, {}
    tag = str(tag)
    path = os.path.join(load_dir, tag)
    if not os.path.isdir(path):
        log.warning("there is no checkpoint %s, so that nothing is loaded", path)
        return None, {}
    if engine.world_size > 1 and not comm.is_initialized():
        raise RuntimeError("shardd: load_checkpoint() with several ranks needs a process "
                           "group, so that all let go of the model at once: call "
                           "deepspeed.init_distributed()")
    state = _client_state(path)
    only = module_only or not optimizer_states
    if engine.optimizer is not None:
        _load_model(engine, load_dir, tag, state, only)
    _load_rest(engine, state, strict)
    if module_only:
        return path, state["client_state"]
    for word in ("global_steps", "global_samples", "skipped_steps", "micro_steps"):
        setattr(engine, word, state[word])
    engine.micro_steps -= engine.micro_steps % engine.gradient_accumulation_steps()
    engine._first_micro = engine.micro_steps
    if optimizer_states and engine.optimizer is not None:
        for g, saved in zip(engine.optimizer.param_groups, state["param_groups"]):
            g.update({k: v for k, v in saved.items() if k in g and
                      (k == "lr" or k == "initial_lr")})
    if scheduler_states and engine.lr_scheduler is not None and state["lr_scheduler"]:
        engine.lr_scheduler.load_state_dict(state["lr_scheduler"])
    return path, state["client_state"]


def _client_state(path: str) -> dict:
    file = os.path.join(path, CLIENT)
    if not os.path.isfile(file):
        raise FileNotFoundError(
            f"shardd: {file} is not there: this is no checkpoint of save_checkpoint(). Those that "
            "the daemons saved are in CHECKPOINT_DIR/NAME: say checkpoint_dir and name in the "
            "block shardd of the ds_config, and a new model begins with the newest one. One of "
            "DeepSpeed itself is converted by `python -m shardd.convert FROM TO`")
    with safe_globals(SAFE):
        return torch.load(file, map_location="cpu", weights_only=True)


def _load_model(engine, load_dir: str, tag: str, state: dict, only: bool) -> None:
    opt, saved = engine.optimizer, Checkpoint(load_dir, tag)
    if only:
        opt.again(Initial(0, saved))
        return
    # A converted checkpoint has the loss scale in the file of trainers alone.
    if opt._model.fits(saved.manifest) and \
            saved.manifest["scaler"]["scale"] == state["loss_scale"]:
        opt.again((load_dir, tag))
        return
    settings = {}
    if opt._more.get("initial_scale_power") is not None and state["loss_scale"] >= 1:
        settings["initial_scale_power"] = int(math.log2(state["loss_scale"]))
    opt.again(Initial.from_shardd(load_dir, tag), **settings)


def _load_rest(engine, state: dict, strict: bool) -> None:
    buffers = dict(engine.module.named_buffers())
    frozen = {n: p for n, p in engine.module.named_parameters() if not p.requires_grad}
    with torch.no_grad():
        for have, saved in ((buffers, state["buffers"]), (frozen, state["frozen"])):
            for name, x in saved.items():
                if name in have and have[name].shape == x.shape:
                    have[name].copy_(x)
                elif strict:
                    raise RuntimeError(f"shardd: load_checkpoint(): the checkpoint has "
                                       f"{name!r} of shape {tuple(x.shape)}, and the model has "
                                       "not")


def _write_file(path: str, data: bytes) -> None:
    """The whole of a file at once, on the disk when this returns."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".part", path)


def clone_tensors(x, device="cpu"):
    """A copy of a state dict whose tensors have memory of their own.

    Tensors that are one, as those of tied parameters, are one in the copy, too. DeepSpeed makes two
    of them, and then Hugging Face's libraries save both.
    """
    return _clone(x, torch.device(device), {})


def _clone(x, device: torch.device, made: dict):
    if isinstance(x, torch.Tensor):
        if x.numel() == 0:
            return x.detach().to(device, copy=True)
        key = x.data_ptr(), x.device, x.dtype, x.shape, x.stride()
        if key not in made:
            # The original is kept until all are copied, so that no other one gets its address.
            made[key] = x.detach().to(device, copy=True), x
        return made[key][0]
    if isinstance(x, dict):
        return type(x)((k, _clone(v, device, made)) for k, v in x.items())
    if isinstance(x, (list, tuple)):
        return type(x)(_clone(v, device, made) for v in x)
    return x

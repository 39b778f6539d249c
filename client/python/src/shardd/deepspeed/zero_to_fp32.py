# SPDX-License-Identifier: Apache-2.0
"""deepspeed.utils.zero_to_fp32: the weights of a checkpoint, for use without an engine.

The names are those of DeepSpeed's script, which others import: Lightning's for one. They read what
save_checkpoint() of shardd.deepspeed wrote, and what DeepSpeed's own wrote as well. No daemon runs
for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re

import torch

from ..convert import kind_of, read
from .optimizer import optimizer_of


def get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag: str | None = None,
                                             exclude_frozen_parameters: bool = False,
                                             lazy_mode: bool = False) -> dict[str, torch.Tensor]:
    """The fp32 masters under the names of the model's state_dict(), with buffers and tied names.

    checkpoint_dir: the folder that was given to save_checkpoint(). tag: default: the newest.
    lazy_mode: accepted, and tensors are in memory. Raises FileNotFoundError, and
    shardd.checkpoints.Damaged where a file is not what was written.
    """
    folder = os.path.abspath(os.fspath(checkpoint_dir))
    init = read(folder, kind_of(os.path.join(folder, tag) if tag else folder), tag)
    state = dict(init.buffers)
    state.update((n, init.masters[n]) for n in init.masters)
    if not exclude_frozen_parameters:
        state.update((n, init.frozen[n]) for n in init.frozen)
    state.update((second, state[first]) for second, first in init.tied.items() if first in state)
    return state


def load_state_dict_from_zero_checkpoint(model: torch.nn.Module, checkpoint_dir,
                                         tag: str | None = None) -> torch.nn.Module:
    """Moves a model to the CPU and loads the weights of a checkpoint. Its engine is of no use
    afterwards."""
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    # Where an engine trains it, the parameters are an image that nobody may write.
    for p in model.parameters():
        with contextlib.suppress(KeyError):
            optimizer_of(p).close()
    model = model.cpu()
    model.load_state_dict(state, strict=False)
    return model


def convert_zero_checkpoint_to_state_dict(checkpoint_dir, output_dir, dtype=torch.float32,
                                          max_shard_size: str | int | None = "5GB",
                                          safe_serialization: bool = False, tag: str | None = None,
                                          exclude_frozen_parameters: bool = False) -> None:
    """Writes the weights of a checkpoint into a folder, as Hugging Face's libraries load them.

    max_shard_size: bytes, or text as "5GB": more is cut into files with an index. None: one file.
    safe_serialization: safetensors files, in which a tied parameter is there under its first name.
    """
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag,
                                                     exclude_frozen_parameters)
    once: dict[int, str] = {}
    state = {n: x.to(dtype).contiguous() if x.is_floating_point() else x for n, x in state.items()
             if not safe_serialization or once.setdefault(id(x), n) == n}
    ending = "model.safetensors" if safe_serialization else "pytorch_model.bin"
    parts = _cut(state, _bytes(max_shard_size))
    os.makedirs(output_dir, exist_ok=True)
    where = {}
    for i, part in enumerate(parts):
        name = ending if len(parts) == 1 else "{}-{:05d}-of-{:05d}.{}".format(
            ending.partition(".")[0], i + 1, len(parts), ending.partition(".")[2])
        where.update({n: name for n in part})
        if safe_serialization:
            from safetensors.torch import save_file
            save_file(part, os.path.join(output_dir, name), metadata={"format": "pt"})
        else:
            torch.save(part, os.path.join(output_dir, name))
    if len(parts) > 1:
        total = sum(x.numel() * x.element_size() for x in state.values())
        with open(os.path.join(output_dir, ending + ".index.json"), "w", encoding="utf-8") as f:
            json.dump({"metadata": {"total_size": total}, "weight_map": where}, f, indent=2)


def convert_zero_checkpoint_to_fp32_state_dict(checkpoint_dir, output_dir,
                                               max_shard_size: str | int | None = "5GB",
                                               safe_serialization: bool = False,
                                               tag: str | None = None,
                                               exclude_frozen_parameters: bool = False) -> None:
    """convert_zero_checkpoint_to_state_dict() in fp32."""
    convert_zero_checkpoint_to_state_dict(checkpoint_dir, output_dir, torch.float32,
                                          max_shard_size, safe_serialization, tag,
                                          exclude_frozen_parameters)


def _bytes(size: str | int | None) -> float:
    if size is None:
        return float("inf")
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", str(size), re.IGNORECASE)
    if found is None:
        raise ValueError(f"shardd: max_shard_size is {size!r}, and is a number of bytes, or as "
                         "\"5GB\"")
    power = "_KMGT".index(found[2].upper() or "_")
    return float(found[1]) * (1024 if found[3] else 1000) ** power


def _cut(state: dict[str, torch.Tensor], most: float) -> list[dict[str, torch.Tensor]]:
    """Tensors in their order, in parts of at most so many bytes, or of one tensor."""
    parts: list[dict[str, torch.Tensor]] = [{}]
    held = 0
    for n, x in state.items():
        size = x.numel() * x.element_size()
        if parts[-1] and held + size > most:
            parts.append({})
            held = 0
        parts[-1][n] = x
        held += size
    return parts

# SPDX-License-Identifier: Apache-2.0
"""python -m shardd.convert FROM TO: checkpoints of shardd, DeepSpeed and torch into each other.

What FROM is, is seen from its files. read() makes an Initial of it, whose tensors are read when
they are asked for, and write() puts it into another format under a name that is not there yet: TO
is whole when it has its name. The exit status is 0, 1 where FROM is damaged or cannot be converted,
2 for arguments that say nothing, and 5 where TO is there already.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Callable

import torch

from . import folder as _folder
from . import zero_files as _zero
from .checkpoints import Checkpoint, Initial, latest
from .params import images
from .torch_state import initial, state_dict

READS = ("shardd", "zero", "universal", "torch", "dcp", "safetensors")
WRITES = ("shardd", "zero", "universal", "torch", "dcp", "safetensors")
CLIENT = os.path.join("client", "deepspeed.pt")
Progress = Callable[[int, int], None]


def kind_of(path: str) -> str:
    """Which format lies at a path. ValueError if it is none of READS."""
    if os.path.isfile(path):
        return "safetensors" if path.endswith(".safetensors") else "torch"
    if not os.path.isdir(path):
        raise FileNotFoundError(f"shardd: {path} is not there")
    for folder in (path, *_tagged(path)):
        names = os.listdir(folder)
        if "manifest.json" in names:
            return "shardd"
        if os.path.isdir(os.path.join(folder, "zero")):
            return "universal"
        if any(n.endswith("_optim_states.pt") for n in names):
            return "zero"
        if ".metadata" in names:
            return "dcp"
        if any(n.endswith(".safetensors") for n in names):
            return "safetensors"
    raise ValueError(f"shardd: {path} is no checkpoint of shardd, of DeepSpeed's ZeRO 1 to 3, "
                     "universal, of torch.distributed.checkpoint or of safetensors")


def _tagged(path: str) -> list[str]:
    out = []
    for name in ("latest", "latest_universal"):
        try:
            out.append(_zero.find(path, None, name))
        except (OSError, ValueError):
            pass
    return [p for p in out if p != path]


def read(path: str, kind: str, tag: str | None = None) -> Initial:
    """What a checkpoint holds."""
    if kind == "shardd":
        if tag is None and not os.path.isfile(os.path.join(path, "manifest.json")):
            tag = latest(path)
        init = Initial.from_shardd(path, tag)
        more = os.path.join(Checkpoint(path, tag).folder, CLIENT)
        if os.path.isfile(more):
            _zero.take_client_file(init, more)
        return init
    if kind == "zero":
        return _zero.from_zero(path, tag)
    if kind == "universal":
        return _zero.from_universal(path, tag)
    if kind == "dcp":
        from .dcp import from_dcp
        return from_dcp(path)
    return _from_safetensors(path) if kind == "safetensors" else _from_torch(path)


def _from_safetensors(path: str) -> Initial:
    """Weights alone, as Hugging Face saves them."""
    from safetensors import SafetensorError, safe_open
    files = [path] if os.path.isfile(path) else sorted(
        os.path.join(path, n) for n in os.listdir(path) if n.endswith(".safetensors"))
    masters: dict[str, torch.Tensor] = {}
    buffers: dict[str, torch.Tensor] = {}
    of: dict[str, tuple[torch.dtype, int]] = {}
    for file in files:
        try:
            with safe_open(file, "pt") as f:
                for name in f.keys():
                    x = f.get_tensor(name)
                    if name in masters or name in buffers:
                        raise ValueError(f"shardd: {file} has {name!r}, as another file has")
                    if x.is_floating_point():
                        of[name] = x.dtype, x.numel()
                        masters[name] = x.float()
                    else:
                        buffers[name] = x
        except SafetensorError as e:
            raise ValueError(f"shardd: {file} is no safetensors file: {e}") from None
    image, own = images(of)
    return Initial(0, masters, image=image, own_image=own, buffers=buffers)


def _from_torch(path: str) -> Initial:
    """A file of torch.save(): a model's state dict, or a dict of it and of the optimizer's."""
    root = _zero.load(path)
    if not isinstance(root, dict):
        raise ValueError(f"shardd: {path} holds a {type(root).__name__}, and not a dict")
    model = next((root[k] for k in ("model", "state_dict", "model_state_dict", "module")
                  if isinstance(root.get(k), dict)), root)
    state = next((root[k] for k in ("optimizer", "optim", "optimizer_state_dict")
                  if isinstance(root.get(k), dict)), None)
    weights, tied, seen = {}, {}, {}
    for n, x in model.items():
        if isinstance(n, str) and isinstance(x, torch.Tensor) and x.is_floating_point():
            where = (x.untyped_storage().data_ptr(), x.storage_offset(), tuple(x.shape))
            if x.numel() and seen.setdefault(where, n) != n:
                tied[n] = seen[where]
            else:
                weights[n] = x
    if not weights:
        raise ValueError(f"shardd: {path} has no tensors by names of parameters: expected a state "
                         "dict, or a dict with model and optimizer")
    init = Initial(0)
    if state is not None:
        init = initial(state, groups=_one_group(state, weights, path),
                       shapes={n: x.shape for n, x in weights.items()})
    trained = [n for g in init.groups for n in g.names] or list(weights)
    init.masters = {n: weights[n].float() for n in weights if n in set(trained)}
    init.buffers = {n: x for n, x in model.items() if isinstance(x, torch.Tensor) and
                    n not in init.masters and n not in tied}
    init.tied = tied
    init.image, init.own_image = images({n: (weights[n].dtype, weights[n].numel())
                                         for n in init.masters})
    init.step = max(init.step, root["step"] if isinstance(root.get("step"), int) else 0)
    return init


def _one_group(state: dict, weights: dict, path: str) -> list[list[str]] | None:
    """The names of the parameters of a state that has numbers alone, if nobody can be mistaken."""
    groups = state.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(g, dict) for g in groups) or \
            all(g.get("param_names") for g in groups):
        return None
    packed = [i for g in groups for i in g.get("params", [])]
    if all(isinstance(i, str) for i in packed):
        return None
    if len(groups) != 1 or len(packed) != len(weights):
        raise ValueError(f"shardd: {path}: the optimizer has numbers in place of names, in "
                         f"{len(groups)} groups of {len(packed)} parameters, and the model has "
                         f"{len(weights)} tensors: save it from an optimizer that was made from "
                         "named_parameters()")
    return [list(weights)]


# --- and writing ---


def write(init: Initial, to: str, kind: str, args: argparse.Namespace, progress: Progress) -> str:
    """Writes what a checkpoint holds. Returns the path of what was written."""
    tag = args.tag or f"global_step{init.step}" + ("_universal" if kind == "universal" else "")
    if kind in ("torch", "safetensors"):
        if os.path.lexists(to):
            raise FileExistsError(f"shardd: {to} is there: choose another name, or remove it")
        _to_file(init, to, kind, getattr(torch, args.dtype) if args.dtype else None)
        return to
    if kind == "dcp":
        return _to_dcp(init, to)
    path = os.path.join(to, tag)
    if kind == "shardd":
        client = {"deepspeed.pt": _zero.client_file(init)} if init.extra or init.buffers else {}
        _folder.write(init, path, args.name, settings=args.settings, client=client,
                      image=getattr(torch, args.dtype) if args.dtype else None, progress=progress)
    elif kind == "zero":
        _zero.to_zero(init, path, args.ranks, args.stage, progress)
    else:
        _zero.to_universal(init, path, progress)
    return path


def _weights(init: Initial) -> dict[str, torch.Tensor]:
    out = {n: init.masters[n] for n in init.masters}
    out.update(init.frozen)
    return out


def _to_file(init: Initial, to: str, kind: str, dtype: torch.dtype | None) -> None:
    os.makedirs(os.path.dirname(os.path.abspath(to)), exist_ok=True)
    part = f"{to}.part"
    if kind == "safetensors":
        from safetensors.torch import save_file
        own, to_dtype = {} if dtype else init.own_image, dtype or init.image or torch.float32
        save_file({n: x.to(own.get(n, to_dtype)).contiguous() for n, x in _weights(init).items()},
                  part, metadata={"format": "pt"})
    else:
        model = {n: x.to(dtype) if dtype else x for n, x in _weights(init).items()}
        model.update({a: model[b] for a, b in init.tied.items() if b in model})
        model.update(init.buffers)
        torch.save({"model": model, "optimizer": state_dict(init), "step": init.step}, part)
    os.replace(part, to)


def _to_dcp(init: Initial, to: str) -> str:
    import warnings

    import torch.distributed.checkpoint as dcp
    if os.path.lexists(to):
        raise FileExistsError(f"shardd: {to} is there: choose another name, or remove it")
    draft = f"{os.path.abspath(to)}.part"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That this is one process.
        model = {**_weights(init), **{n: init.buffers[n] for n in init.buffers}}
        dcp.save({"model": model, "optim": state_dict(init, "name")},
                 storage_writer=dcp.FileSystemWriter(draft), no_dist=True)
    os.rename(draft, to)
    return to


# --- the command ---


class _Bar:
    """Progress on stderr, at most ten times a second."""

    def __init__(self, shown: bool):
        self._shown, self._last = shown, 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._shown and (now - self._last > 0.1 or done == total):
            self._last = now
            print(f"\r{done / 2**20:9.1f} of {total / 2**20:.1f} MiB "
                  f"({100 * done // max(1, total)} %)", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown and self._last:
            print(file=sys.stderr)


def _arguments(words: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="python -m shardd.convert", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Converts a checkpoint. FROM and TO are, by format:\n\n"
        "  shardd       a folder of checkpoints, DIR; or DIR/TAG as FROM\n"
        "  zero         DeepSpeed's ZeRO 1, 2 or 3 (TO: 1 or 2), as zero_to_fp32 reads it; same\n"
        "  universal    DeepSpeed's universal checkpoint; the same\n"
        "  dcp          the folder of torch.distributed.checkpoint\n"
        "  torch        a file of torch.save(): {\"model\", \"optimizer\"}\n"
        "  safetensors  a file of weights alone (FROM: or a folder of them)",
        epilog="exit status: 0 done, 1 FROM is damaged or cannot be converted, 2 wrong arguments, "
        "5 TO is there already")
    p.add_argument("source", metavar="FROM")
    p.add_argument("to", metavar="TO")
    p.add_argument("--format", choices=WRITES, default="shardd", help="of TO (default: shardd)")
    p.add_argument("--from", dest="kind", choices=READS, help="format of FROM (default: by its "
                   "files)")
    p.add_argument("--from-tag", help="which checkpoint in FROM (default: the newest)")
    p.add_argument("--tag", help="of the checkpoint in TO (default: global_step and the step)")
    p.add_argument("--name", default="model", help="shardd: of the model (default: model)")
    p.add_argument("--settings", default="", help='shardd: keys of [model], as "clip=1 '
                   'max_world=8"')
    p.add_argument("--dtype", choices=("float32", "bfloat16", "float16"),
                   help="shardd: what parameters are trained in; torch, safetensors: of weights "
                   "(default: as they were)")
    p.add_argument("--ranks", type=int, default=1, help="zero: how many it is cut for (default: 1)")
    p.add_argument("--stage", type=int, default=2, choices=(1, 2), help="zero: (default: 2)")
    p.add_argument("--json", action="store_true", help="say in JSON what was done, or what is "
                   "wrong")
    p.add_argument("--quiet", action="store_true", help="no progress")
    return p.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Converts what the arguments say. Returns the exit status."""
    args = _arguments(words)
    bar = _Bar(sys.stderr.isatty() and not args.quiet)
    try:
        kind = args.kind or kind_of(args.source)
        init = read(args.source, kind, args.from_tag)
        path = write(init, args.to, args.format, args, bar)
    except FileExistsError as e:
        return _fail(args, 5, e)
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as e:
        return _fail(args, 1, e)
    finally:
        bar.end()
    _tell(args, {"from": args.source, "from_format": kind, "to": path, "format": args.format,
                 "step": init.step, "tensors": len(init.masters),
                 "parameters": sum(_numel(init, n) for n in init.masters),
                 "optimizer": init.kind, "moments": sorted(init.moments),
                 "groups": len(init.groups)})
    return 0


def _numel(init: Initial, name: str) -> int:
    return int(torch.Size(init.shape(name)).numel())


def _fail(args: argparse.Namespace, status: int, e: BaseException) -> int:
    text = str(e).removeprefix("shardd: ") or type(e).__name__
    if args.json:
        print(json.dumps({"error": text, "status": status}))
    else:
        print(f"shardd.convert: {text}", file=sys.stderr)
    return status


def _tell(args: argparse.Namespace, what: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(what))
        return
    moments = f"{what['optimizer']} with {', '.join(what['moments'])}" if what["moments"] else \
        "weights alone"
    print(f"{what['from_format']} -> {what['format']}: {what['tensors']} tensors, "
          f"{what['parameters']} parameters, step {what['step']}, {moments}: {what['to']}")


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""State dicts of torch.optim: what a model in shardd begins with, and what it gives back.

initial() reads one: of AdamW, Adam, SGD, Adagrad or Lion, with parameters by number as
optimizer.state_dict() has them, or by name as torch.distributed.checkpoint has them. state_dict()
makes one of an Initial, and of_optimizer() of a shardd.Optimizer, into which load_into() loads one.
What does not fit, another kind of optimizer or another shape, is a ValueError that names the
parameter.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Mapping, Sequence

import torch

from .checkpoints import Group, Initial
from .params import hint
from .settings import KINDS, MOMENTS, ZERO_ONLY


class State(Mapping):
    """opt.state: a parameter's moments, read from the daemons when somebody looks.

    It is never empty: torch.distributed.checkpoint would otherwise make a step of its own.
    """

    def __init__(self, owner):
        self._owner = weakref.ref(owner)

    def __getitem__(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        opt = self._owner()
        row = opt._row_of.get(id(p))
        if row is None:
            raise KeyError(p)
        moments = {k: opt.read(p, k) for k in opt._moments()}
        return {"step": torch.tensor(float(opt.applied)), **moments}

    def __iter__(self):
        return iter([r.param for r in self._owner()._rows])

    def __len__(self):
        return len(self._owner()._rows)


# What torch writes beside what shardd keeps, where a group of a state dict is made.
_TORCH = {"foreach": None, "maximize": False, "differentiable": False}
TORCH_DEFAULTS: dict[str, dict[str, Any]] = {
    "adamw": {"amsgrad": False, **_TORCH, "capturable": False, "fused": None,
              "decoupled_weight_decay": True},
    "adam": {"amsgrad": False, **_TORCH, "capturable": False, "fused": None,
             "decoupled_weight_decay": False},
    "sgd": {"dampening": 0, **_TORCH, "fused": None},
    "adagrad": {"lr_decay": 0, "initial_accumulator_value": 0, **_TORCH, "fused": None},
    "lion": {}}


def kind_of(groups: Sequence[Mapping], moments: Mapping | set, otherwise: str = "adamw") -> str:
    """The optimizer that a state dict is of, by the keys of its groups and of its state.

    otherwise: for a state of an old torch, which does not tell Adam from AdamW.
    """
    g = groups[0] if groups else {}
    known = {k for kinds in MOMENTS.values() for k in kinds}
    radam = "decoupled_weight_decay" in g and "amsgrad" not in g
    if set(moments) <= known and not radam and "momentum_decay" not in g:
        if "exp_avg_sq" in moments or "betas" in g and "eps" in g:
            decoupled = g.get("decoupled_weight_decay")
            return otherwise if decoupled is None else "adamw" if decoupled else "adam"
        if "exp_avg" in moments or "betas" in g:
            return "lion"
        if "momentum_buffer" in moments or "nesterov" in g:
            return "sgd"
        if "sum" in moments or "lr_decay" in g:
            return "adagrad"
    raise ValueError("shardd: this is the state of no AdamW, Adam, SGD, Adagrad or Lion: its "
                     f"groups have {', '.join(sorted(g))}, its state has "
                     f"{', '.join(sorted(moments)) or 'nothing'}")


def initial(state: Mapping, model: torch.nn.Module | None = None, *,
            groups: Sequence[Sequence[str]] | None = None,
            shapes: Mapping[str, Sequence[int]] | None = None, kind: str | None = None) -> Initial:
    """What a state dict of torch.optim says, by names of parameters.

    Names come from the state itself, else from `groups`, which lists them as the optimizer had
    them, else from the order of `model`. shapes: of the parameters; default: those of `model`.
    kind: of the optimizer that is to go on with it; another one in the state is an error.
    """
    try:
        saved, rows = list(state["param_groups"]), state["state"]
        packed = [list(g["params"]) for g in saved]
        rows.items()
    except (KeyError, TypeError, AttributeError):
        raise ValueError("shardd: this is no state_dict() of torch.optim: it needs param_groups, "
                         "each with params, and state") from None
    if model is not None and shapes is None:
        shapes = {n: p.shape for n, p in model.named_parameters()}
    names = _names(saved, packed, model, groups)
    moments: dict[str, dict[str, torch.Tensor]] = {}
    steps: dict[int, str] = {}
    for name, i in zip((n for g in names for n in g), (i for g in packed for i in g)):
        for key, x in rows.get(i, {}).items():
            if key == "step":
                steps.setdefault(_whole(x, name), name)
            elif key == "max_exp_avg_sq":
                raise ValueError(f"shardd: the state of {name!r} is of amsgrad, which shardd is "
                                 "without")
            elif isinstance(x, torch.Tensor):
                _fits(name, key, x, shapes)
                moments.setdefault(key, {})[name] = x
            elif x is not None:
                raise ValueError(f"shardd: {key} of {name!r} is {x!r}, and not a tensor")
    steps.pop(0, None)
    if len(steps) > 1:
        raise ValueError("shardd: parameters of this state have made different numbers of steps "
                         f"({', '.join(f'{n!r}: {k}' for k, n in sorted(steps.items())[:3])}), and "
                         "a model in shardd has one")
    found = kind_of(saved, moments, kind if kind in ("adam", "adamw") else "adamw")
    _same_kind(found, kind, moments)
    for i, g in enumerate(saved):
        for k, v in ZERO_ONLY.items():
            if g.get(k) not in (v, None):
                raise ValueError(f"shardd: group {i} of the state has {k}={g[k]!r}, which {found} "
                                 "in shardd is without")
    return Initial(max(steps, default=0), {}, moments, kind=found, groups=[
        Group(n, {k: v for k, v in g.items() if k in KINDS[found]}) for n, g in zip(names, saved)])


def _names(saved: list[Mapping], packed: list[list], model, groups) -> list[list[str]]:
    """The names of the parameters of each group."""
    if all(isinstance(i, str) for g in packed for i in g):
        return packed
    if all(len(g.get("param_names", ())) == len(p) for g, p in zip(saved, packed)):
        return [list(g["param_names"]) for g in saved]
    if groups is not None:
        if [len(g) for g in groups] != [len(p) for p in packed]:
            raise ValueError(f"shardd: the state has groups of {[len(p) for p in packed]} "
                             f"parameters, and the optimizer has {[len(g) for g in groups]}")
        return [list(g) for g in groups]
    if model is None:
        raise ValueError("shardd: the state has numbers in place of names: give the model that it "
                         "is of, or make the optimizer of torch from named_parameters()")
    if len(packed) > 1:
        raise ValueError(f"shardd: the state has {len(packed)} groups and numbers in place of "
                         "names, so nobody knows which parameter is which: make the optimizer of "
                         "torch from named_parameters(), or give the state to load_state_dict() of "
                         "a shardd.Optimizer that has the same groups")
    params = list(model.named_parameters())
    trained = [n for n, p in params]
    if len(trained) != len(packed[0]):
        trained = [n for n, p in params if p.requires_grad]
    if len(trained) != len(packed[0]):
        raise ValueError(f"shardd: the state has {len(packed[0])} parameters, and the model has "
                         f"{len(params)}")
    return [trained]


def _fits(name: str, key: str, x: torch.Tensor, shapes) -> None:
    if shapes is None:
        return
    if name not in shapes:
        raise ValueError(f"shardd: the state is of a parameter {name!r}, and the model has none of "
                         "that name")
    if tuple(x.shape) != tuple(shapes[name]):
        raise ValueError(f"shardd: {key} of {name!r} has shape {tuple(x.shape)}, and the parameter "
                         f"{tuple(shapes[name])}")


def _whole(step: Any, name: str) -> int:
    n = float(step)
    if not (0 <= n < 2**53 and n == int(n)):
        raise ValueError(f"shardd: step of {name!r} is {n}, and should be a whole number")
    return int(n)


def _same_kind(found: str, kind: str | None, moments: Mapping) -> None:
    if kind is not None and found != kind:
        raise ValueError(f"shardd: the state is of {found}, and this optimizer is {kind}: their "
                         "moments do not mean the same. Make it with kind="
                         f"{found!r}, or begin with new moments")
    wrong = sorted(set(moments) - set(MOMENTS[found]))
    if wrong:
        raise ValueError(f"shardd: the state has {', '.join(wrong)}, which {found} in shardd is "
                         "without")


def state_dict(init: Initial, by: str = "index") -> dict:
    """An Initial as state_dict() of the same optimizer of torch.

    by: "index": parameters are numbers, in the order of the groups, and their names are
    param_names. "name": they are names, as in torch.distributed.checkpoint.
    """
    if by not in ("index", "name"):
        raise ValueError(f"shardd: by is {by!r}, and can be 'index' or 'name'")
    kind = init.kind or "adamw"
    names = [n for n in init.masters if n not in init.frozen] or \
        list(dict.fromkeys(n for m in init.moments.values() for n in m))
    groups = init.groups or [Group(names, {})]
    number = {n: i for i, n in enumerate(n for g in groups for n in g.names)}
    step = init.step if init.applied is None else init.applied
    state: dict = {}
    for name, i in number.items():
        row = {k: m[name] for k, m in init.moments.items() if name in m}
        if kind != "sgd" and row:
            row = {"step": torch.tensor(float(step)), **row}
        if row:
            state[i if by == "index" else name] = row
    return {"state": state, "param_groups": [_group(kind, g, number, by) for g in groups]}


def _group(kind: str, g: Group, number: Mapping[str, int], by: str) -> dict:
    words = {**KINDS[kind], **TORCH_DEFAULTS[kind], **g.settings}
    if by == "name":
        return {**words, "params": list(g.names)}
    return {**words, "params": [number[n] for n in g.names], "param_names": list(g.names)}


def of_optimizer(opt, by: str = "index") -> dict:
    """The state of a shardd.Optimizer as torch's own: copies of all moments, in this process."""
    if by not in ("index", "name"):
        raise ValueError(f"shardd: by is {by!r}, and can be 'index' or 'name'")
    name_of = {id(r.param): r.name for r in opt._rows}
    ids: dict[int, Any] = {}
    groups = []
    for g in opt.param_groups:
        for p in g["params"]:
            ids.setdefault(id(p), len(ids))
        kept = {k: v for k, v in g.items() if k not in ("params", "param_names")}
        groups.append({**TORCH_DEFAULTS[opt.kind], **kept, "params": [
            ids[id(p)] if by == "index" else name_of.get(id(p), f"t{ids[id(p)]}")
            for p in g["params"]]})
    state = {}
    for row in opt._rows:
        moments = {k: opt.read(row.param, k) for k in opt._moments()}
        if opt.kind != "sgd":
            moments = {"step": torch.tensor(float(opt.applied)), **moments}
        if moments:
            state[ids[id(row.param)] if by == "index" else row.name] = moments
    return {"state": state, "param_groups": groups}


def load_into(opt, state: Mapping) -> None:
    """A state dict into a shardd.Optimizer, whose model is made anew with it. All ranks call it."""
    name_of = {id(r.param): r.name for r in opt._rows}
    names = [[name_of.get(id(p)) or opt._names.get(id(p), f"t{i}")
              for i, p in enumerate(g["params"])] for g in opt.param_groups]
    init = initial(state, groups=names, kind=opt.kind,
                   shapes={r.name: r.param.shape for r in opt._rows})
    if [sorted(g.names) for g in init.groups] != [sorted(g) for g in names]:
        raise ValueError("shardd: the groups of this state have other parameters than those of "
                         "this optimizer: make it with the same groups")
    opt._model.may_drop(opt.world_size)
    written = any(r.param._version != r.version for r in opt._rows)
    defines = opt._definer is None or hint("RANK", opt._definer) == opt._definer
    if defines and (opt._image.followed or not written):
        # What the daemons have is more than a 16-bit parameter shows.
        init.masters = {r.name: opt.read(r.param) for r in opt._rows}
    for g, saved in zip(opt.param_groups, init.groups):
        g.update(saved.settings)
    opt._again(init)


def load_reference(opt, state: Mapping) -> None:
    """A state_dict() of a shardd.Optimizer into one that has that model at that step."""
    ref = state["shardd"]
    if (ref["name"], ref["step"]) != (opt.name, opt.global_step):
        raise RuntimeError(f"shardd: this state is a reference to step {ref['step']} of model "
                           f"{ref['name']!r}, and model {opt.name!r} is at step "
                           f"{opt.global_step}: restore the checkpoint of that step under that "
                           "name, or give full_state_dict() of that Optimizer, which has all "
                           "moments")
    left_out = ("params", "lr") if opt._scheduled else ("params",)  # The daemons give that lr.
    for g, saved in zip(opt.param_groups, state["param_groups"]):
        g.update({k: v for k, v in saved.items() if k not in left_out})


def asked_by_dcp() -> bool:
    """Whether get_state_dict() of torch.distributed.checkpoint calls state_dict(). It takes apart
    what it is given, and of a reference nothing would be left."""
    frame = sys._getframe(2)
    for _ in range(4):  # Decorators of torch may stand between.
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == "torch.distributed.checkpoint.state_dict":
            return True
        frame = frame.f_back
    return False


def add_param_group(opt: torch.optim.Optimizer, group: dict) -> None:
    """What torch.optim.Optimizer does with a group of parameters.

    torch has its compiler leave that method alone, and imports the compiler for it: 1 to 2 s and 70
    MiB in each rank. Where nobody has imported it nobody is compiling.
    """
    add: Any = torch.optim.Optimizer.add_param_group
    if "torch._dynamo" not in sys.modules:
        add = getattr(add, "__wrapped__", add)
    add(opt, group)

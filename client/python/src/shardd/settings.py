# SPDX-License-Identifier: Apache-2.0
"""Hyper-parameters: what torch calls them, and the words that shardd.conf has for them.

Pure functions on parameter groups and numbers. optimizer.py asks which kinds of optimizer there
are, what of a group is kept, and how the definition of a model says it. A key that shardd would
not follow is refused here, with its name.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Iterable, Mapping, Sequence

import torch

from . import lib as _c

log = logging.getLogger("shardd")

# What torch calls a hyper-parameter, and its default where torch has one.
KINDS: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2},
    "adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "sgd": {"lr": 1e-3, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
    "adagrad": {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0},
    "lion": {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0},
}
MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "adam": ("exp_avg", "exp_avg_sq"),
           "sgd": ("momentum_buffer",), "adagrad": ("sum",), "lion": ("exp_avg",)}
KIND_NUMBERS = {"master": _c.MASTER, "image": _c.IMAGE, "exp_avg": _c.EXP_AVG,
                "exp_avg_sq": _c.EXP_AVG_SQ, "sum": _c.EXP_AVG_SQ, "momentum": _c.MOMENTUM,
                "momentum_buffer": _c.MOMENTUM, "fp32": _c.MASTER}
# Settings of torch's optimizers that change nothing here, or only with this value.
HARMLESS = {"foreach", "fused", "capturable", "differentiable", "initial_lr", "maximize", "amsgrad",
            "lr_decay", "initial_accumulator_value", "dampening", "decoupled_weight_decay"}
ZERO_ONLY = {"maximize": False, "amsgrad": False, "lr_decay": 0, "initial_accumulator_value": 0,
             "dampening": 0, "differentiable": False}


def word(value) -> str:
    """A value as shardd.conf writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return ",".join(word(v) for v in value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return str(value)


def words(settings: Mapping[str, Any]) -> str:
    """Settings as the definition of a model has them: key=value, with a space between."""
    return " ".join(f"{k}={word(v)}" for k, v in settings.items())


def world_of(settings: str) -> tuple[int, int] | None:
    """(min_world, max_world) in the settings of a model; None if they do not say it."""
    found = dict(w.partition("=")[::2] for w in settings.split())
    if not found.get("min_world", "").isdecimal() or not found.get("max_world", "").isdecimal():
        return None
    return int(found["min_world"]), int(found["max_world"])


def own_settings(g: dict, kind: str) -> dict:
    """The hyper-parameters of a group that shardd keeps, but for the learning rate."""
    own = {k: g[k] if k == "betas" else float(g[k]) for k in KINDS[kind] if k != "lr"}
    if "nesterov" in own:
        own["nesterov"] = int(bool(own["nesterov"]))
    if "betas" in own:
        own["betas"] = tuple(float(b) for b in own["betas"])
    return own


def of_torch(kind: str, words: dict) -> tuple[str, dict[str, Any]]:
    """The kind of optimizer and its defaults, of keywords as torch takes them. They are taken out
    of `words`; what is left are settings of shardd."""
    given = {k: words.pop(k) for k in list(words) if k in {*KINDS[kind], *HARMLESS}}
    defaults = {**KINDS[kind], **{k: v for k, v in given.items() if k in KINDS[kind]}}
    if kind == "adam" and given.get("decoupled_weight_decay"):
        kind = "adamw"
    check_group(given, kind)
    return kind, defaults


class Rates:
    """Learning rates where a schedule of the daemons gives them, and param_groups only show them.

    one: all groups have the one of the schedule. Otherwise it is that of the first group, and those
    of the others are to it as they were when the Optimizer was made.
    """

    def __init__(self, groups: Sequence[Mapping], one: bool):
        self.one = one
        first, *_ = self._shown = [float(g["lr"]) for g in groups]
        self.factors = [1.0 if one or x == first else x / first if first else math.inf
                        for x in self._shown]
        if math.inf in self.factors:
            raise ValueError("shardd.Optimizer: schedule= is about the lr of the first group, and "
                             "that of another is a part of it: the first one is 0")

    def check(self, groups: Sequence[Mapping]) -> None:
        """RuntimeError: somebody wrote an lr into param_groups, where it would not count."""
        for i, (g, shown) in enumerate(zip(groups, self._shown)):
            if float(g["lr"]) != shown and not self.one:
                raise RuntimeError(f"shardd: lr of group {i} was changed from {shown} to "
                                   f"{float(g['lr'])}, and schedule= gives it: make the Optimizer "
                                   "without schedule= to give it by param_groups or a scheduler")

    def show(self, groups: Sequence[dict], lr: float) -> None:
        """lr: of the first group, in the step that was decided."""
        self._shown = [lr * f for f in self.factors]
        for g, x in zip(groups, self._shown):
            g["lr"] = x


def group_words(groups: Sequence[dict], kind: str, rates: Rates | None) -> list[tuple[str, str]]:
    """Name and settings of each group, as the definition of a model has them."""
    found = [own_settings(g, kind) for g in groups]
    if rates is not None:
        for own, f in zip(found, rates.factors):
            own.update({"lr_factor": f} if f != 1 else {})
    return [(f"g{i}", words(own)) for i, own in enumerate(found)]


def moments_of(kind: str, groups: Iterable[dict]) -> tuple[str, ...]:
    """The names of the moments that an optimizer keeps of each parameter."""
    if kind == "sgd" and not any(g["momentum"] for g in groups):
        return ()
    return MOMENTS[kind]


def check_group(g: dict, kind: str) -> None:
    """Raises TypeError for a key of a parameter group that shardd would not follow."""
    for k, v in ZERO_ONLY.items():
        if k in g and g[k] not in (v, None):
            raise TypeError(f"shardd.Optimizer: {k}={g[k]!r} is not kept by shardd: {kind} here is "
                            "without it")
    decoupled = g.get("decoupled_weight_decay")
    if decoupled is not None and kind in ("adam", "adamw") and decoupled != (kind == "adamw"):
        raise TypeError(f"shardd.Optimizer: decoupled_weight_decay={decoupled!r} of {kind}: all "
                        "groups have it, which is kind=\"adamw\", or none, which is \"adam\"")
    for k in g:
        if k not in {*KINDS[kind], *HARMLESS, "params", "param_names", "name"}:
            log.debug("shardd: key %r of a parameter group is not looked at", k)


def taken_over(optimizer: torch.optim.Optimizer) -> tuple[str, list[dict]]:
    """Kind and groups of an optimizer of torch that has made no step."""
    kind = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd", "Adagrad": "adagrad", "Lion": "lion",
            "DeepSpeedCPUAdam": "adamw", "FusedAdam": "adamw", "DeepSpeedCPUAdagrad": "adagrad",
            "DeepSpeedCPULion": "lion", "FusedLion": "lion"}.get(type(optimizer).__name__)
    if kind == "adam" and all(g.get("decoupled_weight_decay") for g in optimizer.param_groups):
        kind = "adamw"
    if kind is None:
        raise TypeError(f"shardd.Optimizer: {type(optimizer).__name__} is none of AdamW, Adam, "
                        "SGD, Adagrad and Lion")
    if optimizer.state:
        raise RuntimeError(f"shardd.Optimizer: this {type(optimizer).__name__} has made steps "
                           "already: import its state, or begin with a new one")
    return kind, [dict(g) for g in optimizer.param_groups]


def shared_groups(optimizer: torch.optim.Optimizer, groups: Sequence[dict]) -> list[dict]:
    """The groups of an optimizer that was taken over, with what shardd's `groups` have more. A
    scheduler that was made for it writes into them."""
    for theirs, g in zip(optimizer.param_groups, groups):
        theirs.update({k: v for k, v in g.items() if k not in ("params", "param_names")})
    # Otherwise the scheduler warns that no step was made before its own.
    optimizer._opt_called = True  # type: ignore[attr-defined]
    return optimizer.param_groups

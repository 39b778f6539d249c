# SPDX-License-Identifier: Apache-2.0
"""What a user asks of an optimizer, and what the daemons go on with: told before a step, compared.

A model in shardd keeps its settings. differences() says what of them is another one than is asked.
What may change while a model exists, the clip and the hyper-parameters of a group, is told by
Session.set() when an Optimizer attaches, and by Tune when somebody changed param_groups between two
steps. The daemons take a change at a boundary between two attempts, and the next attempt begins as
soon as a step is decided. So rank 0 tells it and gives up the attempt in hand, of which nobody has
pushed anything yet, and the other ranks wait until it is in force.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Mapping, Sequence

from . import lib as _c
from .session import Session
from .settings import own_settings

log = logging.getLogger("shardd")

LOOK_S = 0.002  # So often it is asked whether a change is in force.
SETTABLE = ("beta1", "beta2", "eps", "weight_decay", "momentum")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_WORDS = {"yes": 1.0, "no": 0.0, "none": "none", "dynamic": 0.0}


def _value(text: str) -> float | str:
    """A setting as a number, durations in seconds, if it is one."""
    if text in _WORDS:
        return _WORDS[text]
    digits = text.rstrip("nsumh")
    try:
        return float(digits) * _SECONDS.get(text[len(digits):], 1.0)
    except ValueError:
        return text


def parsed(words: str) -> dict[str, str]:
    """key=value words, with betas as beta1 and beta2."""
    found = dict(w.partition("=")[::2] for w in words.split())
    if "betas" in found:
        found["beta1"], found["beta2"] = found.pop("betas").split(",")
    return found


def numbers(g: Mapping, kind: str) -> dict[str, float]:
    """The hyper-parameters of a parameter group, as shardd.conf calls them, but for lr."""
    own = own_settings(g, kind)
    betas = own.pop("betas", None)
    return {k: float(v) for k, v in (*zip(("beta1", "beta2"), betas or ()), *own.items())}


def in_use(there: Mapping) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What a model goes on with, by its status: settings, and those of each group."""
    found = parsed(there["settings"])
    tuned = there["tuned"]
    found.update({k: repr(x) for k, x in tuned["hyper"].items()})
    if tuned["clip"] is not None:
        found["clip"] = repr(tuned["clip"])
    groups = [{k[len(n) + 1:]: v for k, v in found.items() if k.startswith(n + "/")}
              for n in there["groups"]]
    return found, groups


class Difference:
    """A setting that a model has otherwise than it is asked here."""

    def __init__(self, key: str, here: str, there: str, group: str | None = None):
        self.key, self.here, self.there, self.group = key, here, there, group

    @property
    def path(self) -> str:
        """As Session.set() takes it."""
        return self.key if self.group is None else f"{self.group}/{self.key}"

    @property
    def settable(self) -> bool:
        """Whether the model can have the one that is asked."""
        if self.group is None:
            return self.key == "clip"
        return self.key in SETTABLE and not (self.key == "momentum" and _value(self.there) == 0)

    def __str__(self) -> str:
        of = "" if self.group is None else f" of group {self.group}"
        return f"{self.key}{of}: {self.here} here, {self.there} there"


def differences(settings: str, groups: Sequence[tuple[str, str]],
                there: Mapping) -> list[Difference]:
    """What is asked here, and is another one in the model whose status is `there`."""
    model, his = in_use(there)
    asked = {"schedule": "none", **parsed(settings)}
    own_lr = asked["schedule"] == "none"  # Then each commit gives it.
    found = [Difference(k, v, model[k]) for k, v in asked.items()
             if k in model and _value(v) != _value(model[k]) and not (own_lr and k == "lr")]
    for (_, words), name, h in zip(groups, there["groups"], his):
        asked = {**({} if own_lr else {"lr_factor": "1.0"}), **parsed(words)}
        found += [Difference(k, v, h[k], name) for k, v in asked.items()
                  if k in h and _value(v) != _value(h[k])]
    return found


def take(his: Sequence[Mapping[str, str]], groups: Sequence[dict]) -> None:
    """Has param_groups show what the groups of a model go on with, as in_use() has it."""
    for g, h in zip(groups, his):
        if "betas" in g and "beta1" in h:
            g["betas"] = (float(h["beta1"]), float(h["beta2"]))
        g.update({k: float(h[k]) for k in SETTABLE if k in g and k in h})


class Tune:
    """The hyper-parameters of an Optimizer's groups, as the daemons last heard of them."""

    def __init__(self, kind: str, groups: Sequence[Mapping]):
        self._kind = kind
        self._known = [numbers(g, kind) for g in groups]
        self._told = self._stale = False
        self.agreed = False  # Whether the last commit was decided: all ranks gave the same.

    def look_again(self) -> None:
        """A rollback brings the settings of its time, so what was told may be so no more."""
        self._stale = self._told

    def tell(self, s: Session, name: str, groups: Sequence[Mapping]) -> None:
        """Before a step begins. Afterwards it counts what the groups have. All ranks call it, with
        equal groups."""
        now = [numbers(g, self._kind) for g in groups]
        if now == self._known and not self._stale:
            return
        for i, (a, b) in enumerate(zip(self._known, now)):
            for key, x in b.items():
                # Without momentum the daemons keep no buffer that it could begin with.
                if x != a[key] and (key not in SETTABLE or key == "momentum" and a[key] == 0):
                    raise RuntimeError(f"shardd: {key} of group {i} changed from {a[key]} to {x} "
                                       "in mid-run, which a model in shardd cannot follow: begin "
                                       "with it, in a new Optimizer under another name=")
        self._put(s, name, now)
        self._known, self._told, self._stale = now, True, False

    def check(self, groups: Sequence[Mapping]) -> None:
        """When a step is committed: what changed since it began would count one step later."""
        for i, (g, known) in enumerate(zip(groups, self._known)):
            now = numbers(g, self._kind)
            key = next((k for k in now if now[k] != known[k]), None)
            if key is not None:
                raise RuntimeError(
                    f"shardd: {key} of group {i} changed from {known[key]} to {now[key]} after the "
                    "gradients of this step began to leave, so that this step cannot have it: "
                    'change it after step() and before backward(), or give grads="keep"')

    def unlike(self, e: _c.Mismatch, committing: int, at: int) -> _c.WorldChanged:
        """A commit to which ranks gave different learning rates or clips. Where they had agreed
        before, a newcomer does not: it gets the error, and the others go on without it.

        committing: the step; 0: the error came before. at: the last step."""
        if not committing:
            raise e
        if not self.agreed:
            raise _c.Mismatch(
                e.number, f"{e.sentence}. This trainer came to a model that is at step {at}, and "
                "no step was made with what it gave. A scheduler that is new begins at 0: say "
                "`while sched.last_epoch < opt.applied: sched.step()` before the loop and after "
                "opt.step(), or have lr be a function of opt.global_step", "SHARD_MISMATCH") from e
        self.agreed = False
        log.warning("shardd: step %d is made again: %s", at + 1, e.sentence)
        return _c.WorldChanged(_c.WORLD_CHANGED, e.sentence, "SHARD_WORLD_CHANGED")

    def _put(self, s: Session, name: str, now: list[dict[str, float]]) -> None:
        end, calls, failed = time.monotonic() + s.timeout, [], []
        while True:
            there = s.status(name)
            if there is None:
                raise _c.Error(_c.NOT_FOUND, f"model {name!r} is gone", "SHARD_NOT_FOUND")
            _, his = in_use(there)
            left = [Difference(k, repr(x), h[k], g) for mine, g, h in zip(now, there["groups"], his)
                    for k, x in mine.items() if k in h and _value(h[k]) != x]
            if not left:
                return
            if failed:
                raise failed[0]
            if s.world.rank == 0 and not calls:
                calls = [threading.Thread(target=_call, args=(s, d, failed), daemon=True)
                         for d in left]
                for c in calls:
                    c.start()
            elif s.world.rank == 0 and there["phase"] == "staging":
                self._give_up(s, left)
            if time.monotonic() > end:
                who = "" if s.world.rank == 0 else ", which rank 0 has to ask for as well: all " \
                    "ranks change param_groups alike"
                raise _c.Mismatch(_c.MISMATCH, f"in {s.timeout:g} s rank {s.world.rank} of model "
                                  f"{name!r} did not get {'; '.join(map(str, left))}{who}",
                                  "SHARD_MISMATCH")
            time.sleep(LOOK_S)
            s.acknowledge()

    def _give_up(self, s: Session, left: list[Difference]) -> None:
        """Ends the attempt in hand, so that the next one at this step has what was told."""
        try:
            s.begin(1.0)
            s.abandon(f"rank 0 sets {', '.join(d.path for d in left)}")
        except (_c.WorldChanged, _c.RolledBack):
            s.acknowledge()


def _call(s: Session, d: Difference, failed: list) -> None:
    try:
        s.set(d.path, d.here)
    except _c.Error as e:
        failed.append(e)

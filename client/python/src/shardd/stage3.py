# SPDX-License-Identifier: Apache-2.0
"""Parameters that are in memory only while they are needed: stage 3, with DeepSpeed's settings.

Scheduler decides. It sees the units of a model begin and end, in one pass after another, and says
which parameters to fetch, which to fetch ahead and which to free. It knows sizes and no tensors.
The first pass is recorded, and those after it are expected to be like it. Where one is not, as with
a branch that is taken for the first time, what is missing is fetched late, and the rest of the pass
is recorded anew. Ranks need not agree, because nobody waits for another one.

Fetcher acts. Its hooks tell a Scheduler of each module that has parameters of its own, and its
caller's fetch() fills memory that it allocated. A parameter that is freed keeps its tensor: only
its storage becomes empty, so that what autograd saved is right again once it is fetched.

An Optimizer does not use this yet: its parameters are all in memory.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from typing import Callable, Hashable, Mapping, NamedTuple, Sequence

import torch


class Todo(NamedTuple):
    """What to do before a unit begins, in this order.

    free    parameters that make room
    fetch   parameters of the unit: it cannot begin before they are there
    ahead   parameters of units that come next: nobody waits for them yet
    """

    free: list[int]
    fetch: list[int]
    ahead: list[int]


class Scheduler:
    """Which parameters are in memory when.

    units     the parameters of each unit, as numbers; a parameter may be in several
    numel     the elements of each parameter
    prefetch  elements to fetch ahead at most (stage3_prefetch_bucket_size)
    live      elements in memory at most, but for those in use (stage3_max_live_parameters)
    reuse     what is used again within so many elements stays (stage3_max_reuse_distance)
    keep      smaller parameters stay (stage3_param_persistence_threshold)
    Not thread-safe.
    """

    def __init__(self, units: Mapping[Hashable, Sequence[int]], numel: Sequence[int], *,
                 prefetch: float = 5e7, live: float = 1e9, reuse: float = 1e9,
                 keep: float = 1e5):
        self._units = {u: list(dict.fromkeys(ps)) for u, ps in units.items()}
        self._numel = list(numel)
        self._prefetch, self._live_max, self._reuse = prefetch, live, reuse
        self._stays = [n < keep for n in self._numel]
        self._trace: list[Hashable] = []
        self._known = False  # The trace is that of a whole pass.
        self._at = 0         # Units of this pass that have begun.
        self._using: Counter = Counter()  # Units in progress that use a parameter.
        self.there: set[int] = set()
        self.live = 0        # Elements in memory, without those that stay.

    def before(self, unit: Hashable) -> Todo:
        """The unit begins."""
        if self._known and self._trace[self._at:self._at + 1] != [unit]:
            self._known = False
            del self._trace[self._at:]
        if not self._known:
            self._trace.append(unit)
        self._at += 1
        mine = self._units[unit]
        self._using.update(mine)
        fetch = [p for p in mine if p not in self.there]
        free = self._room(sum(self._numel[p] for p in fetch if not self._stays[p]))
        self._add(fetch)
        ahead = self._ahead() if self._known else []
        self._add(ahead)
        return Todo(free, fetch, ahead)

    def after(self, unit: Hashable) -> list[int]:
        """The unit has ended. Returns the parameters to free."""
        mine = self._units[unit]
        self._using.subtract(mine)
        idle = [p for p in mine if self._using[p] == 0 and p in self.there and not self._stays[p]]
        soon = self._soon() if self._known and self.live <= self._live_max else set()
        return self._remove([p for p in idle if p not in soon])

    def end(self) -> list[int]:
        """The pass is over, and all parameters are about to change. Returns those to free; what
        stays is there, and has to be fetched again all the same."""
        self._known = self._at == len(self._trace) > 0
        self._at = 0
        self._using.clear()
        free = self._remove([p for p in self.there if not self._stays[p]])
        self.there.clear()
        return free

    def _ahead(self) -> list[int]:
        room, ahead = min(self._prefetch, self._live_max - self.live), []
        for unit in self._trace[self._at:]:
            for p in self._units[unit]:
                if p in self.there or p in ahead:
                    continue
                if not self._stays[p]:
                    room -= self._numel[p]
                if room < 0:
                    return ahead
                ahead.append(p)
        return ahead

    def _soon(self) -> set[int]:
        """What the next units use, as far as `reuse` elements go."""
        soon, far = set(), 0
        for unit in self._trace[self._at:]:
            if far >= self._reuse:
                break
            soon.update(self._units[unit])
            far += sum(self._numel[p] for p in self._units[unit])
        return soon

    def _room(self, need: int) -> list[int]:
        """Makes room for elements: what is used last, or not any more, goes first."""
        if self.live + need <= self._live_max:
            return []
        next_use = {}
        for i, unit in enumerate(self._trace[self._at:] if self._known else []):
            for p in self._units[unit]:
                next_use.setdefault(p, i)
        idle = [p for p in self.there if not self._stays[p] and self._using[p] == 0]
        idle.sort(key=lambda p: (-next_use.get(p, len(self._trace)), p))
        free, gone = [], 0
        for p in idle:
            if self.live - gone + need <= self._live_max:
                break
            free.append(p)
            gone += self._numel[p]
        return self._remove(free)

    def _add(self, params: Sequence[int]) -> None:
        self.there.update(params)
        self.live += sum(self._numel[p] for p in params if not self._stays[p])

    def _remove(self, params: list[int]) -> list[int]:
        self.there.difference_update(params)
        self.live -= sum(self._numel[p] for p in params if not self._stays[p])
        return params


class Fetcher:
    """Has the parameters of a module in memory while they are needed.

    module   whose parameters they are. Each part that has parameters of its own is a unit
    fetch    fetch(parameters, wait): fills their memory, which is there. wait: before it returns.
             Otherwise it may go on, and arrived(parameters) is called before they are used
    arrived  arrived(parameters): waits for what was fetched ahead
    settings those of Scheduler

    From here on the storages of parameters are empty outside of their use. step() ends a pass: call
    it after the weights have changed. close() fetches everything, and takes the hooks out.
    """

    def __init__(self, module: torch.nn.Module,
                 fetch: Callable[[list[torch.nn.Parameter], bool], None],
                 arrived: Callable[[list[torch.nn.Parameter]], None] = lambda params: None,
                 **settings):
        self._fetch, self._arrived = fetch, arrived
        self._params = list(dict.fromkeys(module.parameters()))
        number = {p: i for i, p in enumerate(self._params)}
        parts = {name: m for name, m in module.named_modules()
                 if next(m.parameters(False), None) is not None}
        self._units = {name: [number[p] for p in m.parameters(False)]
                       for name, m in parts.items()}
        self.scheduler = Scheduler(self._units, [p.numel() for p in self._params], **settings)
        self._ahead: set[int] = set()  # Fetched, and nobody has waited for it.
        self._due: dict[str, set[int]] = {}  # Units in backward, and the gradients they wait for.
        self._hooks = []
        me = weakref.ref(self)
        for name, m in parts.items():
            self._hooks.append(m.register_forward_pre_hook(functools.partial(_forward, me, name)))
            # always_call: checkpoint() ends a forward that it repeats by an exception.
            self._hooks.append(m.register_forward_hook(
                functools.partial(_forwarded, me, name), always_call=True))
        for i, p in enumerate(self._params):
            if p.requires_grad:
                self._hooks.append(p.register_post_accumulate_grad_hook(
                    functools.partial(_gradient, me, i)))
        self._free(range(len(self._params)))

    def _free(self, numbers) -> None:
        for i in numbers:
            self._ahead.discard(i)
            self._params[i].untyped_storage().resize_(0)

    def _get(self, numbers: list[int], wait: bool) -> None:
        params = [self._params[i] for i in numbers]
        for p in params:
            p.untyped_storage().resize_(p.numel() * p.element_size())
        if params:
            with torch.no_grad():
                self._fetch(params, wait)

    def _begin(self, name: str) -> None:
        todo = self.scheduler.before(name)
        self._free(todo.free)
        self._get(todo.fetch, True)
        late = [i for i in self._units[name] if i in self._ahead]
        if late:
            self._ahead.difference_update(late)
            self._arrived([self._params[i] for i in late])
        self._get(todo.ahead, False)
        self._ahead.update(todo.ahead)

    def _end(self, name: str) -> None:
        self._free(self.scheduler.after(name))

    def _backward(self, name: str) -> None:
        """The gradient of an output of the unit is there: its backward begins."""
        if name not in self._due:
            self._due[name] = {i for i in self._units[name] if self._params[i].requires_grad}
            self._begin(name)

    def _accumulated(self, i: int) -> None:
        for name in [n for n, due in self._due.items() if i in due]:
            self._due[name].discard(i)
            if not self._due[name]:
                del self._due[name]
                self._end(name)

    def step(self) -> None:
        """The pass is over, and the weights have changed. Everything is freed."""
        self._due.clear()
        self.scheduler.end()
        self._free(range(len(self._params)))

    def close(self) -> None:
        """All parameters are in memory from now on."""
        for h in self._hooks:
            h.remove()
        self.step()
        self._get(list(range(len(self._params))), True)


def _forward(owner, name: str, module, inputs) -> None:
    owner()._begin(name)


def _forwarded(owner, name: str, module, inputs, output) -> None:
    for x in _tensors(output):
        # Not at x itself, which an operation in place may change afterwards. Where x is a view, as
        # the output of Linear is, that would take its node out of the graph, but not the base's.
        for node in {x.grad_fn, x._base.grad_fn if x._is_view() else None} - {None}:
            node.register_prehook(lambda grads: owner()._backward(name))
    owner()._end(name)


def _gradient(owner, i: int, p: torch.Tensor) -> None:
    owner()._accumulated(i)


def _tensors(x):
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, Mapping):
        for v in x.values():
            yield from _tensors(v)
    elif isinstance(x, (tuple, list)):
        for v in x:
            yield from _tensors(v)

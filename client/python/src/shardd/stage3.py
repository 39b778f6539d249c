# SPDX-License-Identifier: Apache-2.0
"""Parameters that are in memory only while they are needed: stage 3, with DeepSpeed's settings.

Scheduler decides. It sees the units of a model begin and end, in one pass after another, and says
which parameters to fetch, which to fetch ahead and which to free. It knows sizes and no tensors.
The first pass is recorded, and those after it are expected to be like it. Where one is not, as with
a branch that is taken for the first time, what is missing is fetched late, and the rest of the pass
is recorded anew. Ranks need not agree, because nobody waits for another one.

Fetcher acts. Its hooks tell a Scheduler of each module, and a Source has the memory and fills it. A
parameter that is freed keeps its tensor: only its storage becomes empty, so that what autograd
saved is right again once it is fetched, and until then absent.py refuses to read it. A parameter
that a module uses and another one has, as tied weights, is fetched when it is looked up, and
belongs to both units from then on.

FetchedImage is what an Optimizer has for an Image then: its source is the node's shared image.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import Counter
from typing import Any, Hashable, Iterable, Mapping, NamedTuple, Sequence

import torch

from . import absent
from . import params as _p
from .image import Image, comes_and_goes, refuse_ddp
from .session import Session


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
    kept      elements of those that stay at most (stage3_model_persistence_threshold)
    Not thread-safe.
    """

    def __init__(self, units: Mapping[Hashable, Sequence[int]], numel: Sequence[int], *,
                 prefetch: float = 5e7, live: float = 1e9, reuse: float = 1e9,
                 keep: float = 1e5, kept: float = float("inf")):
        self._units = {u: list(dict.fromkeys(ps)) for u, ps in units.items()}
        self._numel = list(numel)
        self._prefetch, self._live_max, self._reuse = prefetch, live, reuse
        self._stays = []
        for n in self._numel:
            self._stays.append(n < keep and n <= kept)
            kept -= n if self._stays[-1] else 0
        self._trace: list[Hashable] = []
        self._known = False  # The trace is that of a whole pass.
        self._at = 0         # Units of this pass that have begun.
        self._using: Counter = Counter()  # Units in progress that use a parameter.
        self._open: Counter = Counter()   # How often a unit is in progress.
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
        self._open[unit] += 1
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
        self._open[unit] -= 1
        self._using.subtract(mine)
        idle = [p for p in mine if self._using[p] == 0 and p in self.there and not self._stays[p]]
        soon = self._soon() if self._known and self.live <= self._live_max else set()
        return self._remove([p for p in idle if p not in soon])

    def also(self, unit: Hashable, p: int) -> Todo:
        """A unit that is in progress uses one parameter more, now and from now on."""
        self._units[unit].append(p)
        self._using[p] += self._open[unit]
        fetch = [] if p in self.there else [p]
        free = self._room(sum(self._numel[p] for p in fetch if not self._stays[p]))
        self._add(fetch)
        return Todo(free, fetch, [])

    def hold(self, params: Sequence[int]) -> Todo:
        """Parameters are used by somebody who is no unit, until drop()."""
        self._using.update(params)
        fetch = [p for p in params if p not in self.there]
        free = self._room(sum(self._numel[p] for p in fetch if not self._stays[p]))
        self._add(fetch)
        return Todo(free, fetch, [])

    def drop(self, params: Sequence[int]) -> list[int]:
        """Ends hold(). Returns the parameters to free."""
        self._using.subtract(params)
        return self._remove([p for p in params if self._using[p] == 0 and p in self.there
                             and not self._stays[p]])

    def end(self) -> list[int]:
        """The pass is over, and all parameters are about to change. Returns those to free; what
        stays is there, and has to be fetched again all the same."""
        if self._at > 0:  # Else nothing has begun since the last end.
            self._known = self._at == len(self._trace)
        self._at = 0
        self._using.clear()
        self._open.clear()
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


class Source:
    """Where parameters come from, and the memory that they have while they are in use."""

    def allocate(self, p: torch.nn.Parameter) -> None:
        """Gives the storage of a parameter its memory."""
        p.untyped_storage().resize_(p.numel() * p.element_size())

    def free(self, p: torch.nn.Parameter) -> None:
        """Takes it away. What was fetched into it has arrived."""
        p.untyped_storage().resize_(0)

    def fetch(self, params: list[torch.nn.Parameter], wait: bool) -> None:
        """Fills the memory of parameters. wait: before it returns. Otherwise it may go on, and
        arrived() is called before they are used."""
        raise NotImplementedError

    def arrived(self, params: list[torch.nn.Parameter]) -> None:
        """Waits for what was fetched ahead."""


class Fetcher:
    """Has parameters of a module in memory while they are needed.

    module   whose parameters they are. Each part of it is a unit; one that is marked as a leaf
             (_z3_leaf) is a unit with all that is below it
    params   those that come and go; the others are not touched
    source   fills their memory
    settings those of Scheduler

    From here on the storages of parameters are empty outside of their use. step() ends a pass: call
    it after the weights have changed. close() takes the hooks out, and leaves them empty.
    """

    def __init__(self, module: torch.nn.Module, params: Iterable[torch.nn.Parameter],
                 source: Source, **settings):
        self._source, self._params = source, list(params)
        self._number = {id(p): i for i, p in enumerate(self._params)}
        names = {id(p): n for n, p in module.named_parameters()}
        self._names = [names.get(id(p), "") for p in self._params]
        parts = _units(module)
        self._units = {name: self._numbers(m.parameters(getattr(m, "_z3_leaf", False)))
                       for name, m in parts.items()}
        self.scheduler = Scheduler(self._units, [p.numel() for p in self._params], **settings)
        self._ahead: set[int] = set()  # Fetched, and nobody has waited for it.
        self._due: dict[str, set[int]] = {}  # Units in backward, and the gradients they wait for.
        self._running: list[str] = []  # Units in forward, the innermost one last.
        self._watched = [m for part in parts.values() for m in (
            part.modules() if getattr(part, "_z3_leaf", False) else [part]) if m._parameters]
        self._holding = 0     # Uses of hold() that have not ended.
        self._passes = 0      # Passes that have ended.
        self._hooks: list[Any] = []
        me = weakref.ref(self)
        for name, m in parts.items():
            self._hooks.append(m.register_forward_pre_hook(functools.partial(_forward, me, name)))
            # always_call: checkpoint() ends a forward that it repeats by an exception.
            self._hooks.append(m.register_forward_hook(
                functools.partial(_forwarded, me, name), always_call=True))
        for m in self._watched:
            m.__dict__["_parameters"] = _Watched(me, m._parameters)
        for i, p in enumerate(self._params):
            if p.requires_grad:
                self._hooks.append(p.register_post_accumulate_grad_hook(
                    functools.partial(_gradient, me, i)))
        self._free(range(len(self._params)))

    def _numbers(self, params: Iterable[torch.Tensor]) -> list[int]:
        return list(dict.fromkeys(self._number[id(p)] for p in params if id(p) in self._number))

    def _free(self, numbers: Iterable[int]) -> None:
        late = [i for i in numbers if i in self._ahead]
        self._arrive(late)  # Nothing may write into memory that somebody else gets.
        for i in numbers:
            if not absent.is_absent(self._params[i]):
                self._source.free(self._params[i])
                absent.leave(self._params[i], self._names[i])

    def _arrive(self, numbers: list[int]) -> None:
        if numbers:
            self._ahead.difference_update(numbers)
            with torch.no_grad():
                self._source.arrived([self._params[i] for i in numbers])

    def _get(self, numbers: list[int], wait: bool) -> None:
        params = [self._params[i] for i in numbers]
        for p in params:
            absent.come(p)
            self._source.allocate(p)
        if params:
            with torch.no_grad():
                self._source.fetch(params, wait)

    def _begin(self, name: str) -> None:
        todo = self.scheduler.before(name)
        self._fetched(self._units[name], todo)
        self._get(todo.ahead, False)
        self._ahead.update(todo.ahead)

    def _end(self, name: str) -> None:
        self._free(self.scheduler.after(name))

    def _leave(self, name: str) -> None:
        """The forward of a unit has ended, and that of units in it by an exception."""
        while name in self._running:
            self._end(self._running.pop())
        if not (self._running or self._due or self._holding or torch.is_grad_enabled()):
            self._over()  # There is no backward: the next pass is another one.

    def _backward(self, name: str) -> None:
        """The gradient of an output of the unit is there: its backward begins."""
        due = {i for i in self._units[name] if self._params[i].requires_grad}
        if name not in self._due and due:
            self._due[name] = due
            self._begin(name)

    def _accumulated(self, i: int) -> None:
        for name in [n for n, due in self._due.items() if i in due]:
            self._due[name].discard(i)
            if not self._due[name]:
                del self._due[name]
                self._end(name)

    def _looked_up(self, p: torch.Tensor) -> None:
        """Somebody takes a parameter of a module: its own forward, that of another one, or code
        that is in no forward, for which it stays until the pass ends."""
        i = self._number.get(id(p))
        if i is None or self._running and i in self._units[self._running[-1]]:
            return
        if self._running:
            name = self._running[-1]
            self._units[name].append(i)
            todo = self.scheduler.also(name, i)
        else:
            todo = self.scheduler.hold([i])
        self._fetched([i], todo)

    @contextlib.contextmanager
    def hold(self, params: Iterable[torch.Tensor]):
        """In here parameters are in memory."""
        held, passes = self._numbers(params), self._passes
        self._fetched(held, self.scheduler.hold(held))
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
            if passes == self._passes:
                self._free(self.scheduler.drop(held))

    def _fetched(self, numbers: list[int], todo: Todo) -> None:
        self._free(todo.free)
        self._get(todo.fetch, True)
        self._arrive([i for i in numbers if i in self._ahead])

    def _over(self) -> None:
        self._passes += 1
        self._due.clear()
        self._running.clear()
        self.scheduler.end()
        self._free(range(len(self._params)))

    def step(self) -> None:
        """The pass is over, and the weights have changed. Everything is freed."""
        self._over()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return not self._hooks

    def unhook(self) -> None:
        """Nothing comes or goes any more. What is not in memory stays so, and is a plain tensor
        whose storage is empty: it is the caller's to fill."""
        for h in self._hooks:
            h.remove()
        self._hooks.clear()
        for p in self._params:
            absent.come(p)
        for m in self._watched:
            m.__dict__["_parameters"] = dict(m._parameters)

    def close(self) -> None:
        """As unhook(). What is in memory now is freed before."""
        self._over()
        self.unhook()


class _Watched(dict):
    """The parameters of a module. It tells of each that somebody takes to compute with."""

    def __init__(self, owner, params):
        super().__init__(params)
        self._owner = owner

    def __getitem__(self, name):
        p = super().__getitem__(name)
        owner = self._owner()
        if p is not None and owner is not None:
            owner._looked_up(p)
        return p

    def __reduce__(self):
        return dict, (dict(self.items()),)


def _units(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The parts of a module by name, without those below a leaf."""
    found: dict[str, torch.nn.Module] = {}
    inside: set[int] = set()
    for name, m in module.named_modules():
        if id(m) not in inside:
            found[name] = m
            if getattr(m, "_z3_leaf", False):
                inside.update(id(x) for x in m.modules())
    return found


def _forward(owner, name: str, module, inputs) -> None:
    me = owner()
    if me is not None:
        me._running.append(name)
        me._begin(name)


def _forwarded(owner, name: str, module, inputs, output) -> None:
    me = owner()
    if me is None:
        return
    for x in _tensors(output) if me._units[name] else ():
        # Not at x itself, which an operation in place may change afterwards. Where x is a view, as
        # the output of Linear is, that would take its node out of the graph, but not the base's.
        for node in {x.grad_fn, x._base.grad_fn if x._is_view() else None} - {None}:
            node.register_prehook(functools.partial(_gradient_of_output, owner, name))
    me._leave(name)


def _gradient_of_output(owner, name: str, grads) -> None:
    me = owner()
    if me is not None and not me.closed:
        me._backward(name)


def _gradient(owner, i: int, p: torch.Tensor) -> None:
    me = owner()
    if me is not None:
        me._accumulated(i)


def _tensors(x):
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, Mapping):
        for v in x.values():
            yield from _tensors(v)
    elif isinstance(x, (tuple, list)):
        for v in x:
            yield from _tensors(v)


class FetchedImage(Image, Source):
    """Parameters that have memory of their own while they are used, filled from the image.

    settings  those of Scheduler
    where     the device that they are used on; None: where they are
    """

    def __init__(self, rows: Sequence[_p.Row], copy: bool,
                 module: torch.nn.Module, settings: Mapping, where: torch.device | None = None):
        super().__init__(rows, copy, module)
        self._settings, self._where = settings, where
        self.fetcher: Fetcher | None = None
        self._row = {id(r.param): i for i, r in enumerate(rows)}
        self._there: list[torch.Tensor] = []  # The parameters in the image.
        self._names: list[Any] = []           # Hooks of state_dict().

    @property
    def views(self) -> bool:
        """Whether parameters are not to be written: there is nothing that keeps it."""
        return self.followed

    def is_view(self, r: _p.Row) -> bool:
        """False: what is held may be written."""
        return False

    def follow(self, s: Session, step: int) -> None:
        """Waits until the image has the weights of `step`. All parameters are freed."""
        if self.fetcher is not None:
            self.fetcher.step()
        self._look(s, step)
        if s.image(0) != self._base:
            self._base = s.image(0)
            self._there = [_p.view(s.image(i), r.param, r.dtype)
                           for i, r in enumerate(self._rows)]
        if self.fetcher is None:
            self._begin()
        self.followed = True

    def _look(self, s: Session, step: int) -> None:
        """Waits until the image has a step, or sees to it that fetch() does."""
        s.wait(s.pull_all(step))

    def _begin(self) -> None:
        assert self._module is not None
        for r in self._rows:
            # Memory of its own, of which it is the whole.
            r.param.data = torch.empty_like(r.param, device=self._where, requires_grad=False)
            self.free(r.param)
            r.address = r.param.untyped_storage()._cdata
        tied = {m: pairs for m in self._module.modules() if (pairs := _p.ties(m))}
        self.fetcher = Fetcher(self._module, [r.param for r in self._rows], self, **self._settings)
        # What a module looks up at once is its own, so that the hook of each part is for these.
        refuse_ddp(self._module, True)
        comes_and_goes(self, True)
        for m in self._module.modules():
            self._names.append(m._register_state_dict_hook(
                functools.partial(_state, weakref.ref(self))))
            if m in tied:
                self._names.append(m._register_state_dict_hook(functools.partial(_tie, tied[m])))

    def fetch(self, params: list[torch.nn.Parameter], wait: bool) -> None:
        """Copies from the image, at once."""
        for p in params:
            p.data.copy_(self._there[self._row[id(p)]])

    def pass_over(self) -> None:
        """What was computed since the last step is dropped."""
        if self.fetcher is not None:
            self.fetcher.step()

    def hold(self, params):
        """Context: parameters are in memory, and may be written until it ends."""
        return self.fetcher.hold(params) if self.fetcher is not None else contextlib.nullcontext()

    def value(self, p: torch.Tensor) -> torch.Tensor | None:
        """A copy of a parameter in host memory, or None if it is none that is fetched."""
        i = self._row.get(id(p))
        return None if i is None or not self.followed else self._there[i].clone()

    def check(self) -> None:
        """Raises RuntimeError for a parameter that was replaced."""
        for r in self._rows if self.followed else ():
            if r.param.untyped_storage()._cdata != r.address:
                raise RuntimeError(
                    f"shardd: parameter {r.name!r} is not the memory that shardd fetches into any "
                    "more. Something replaced it, as model.to(), .half() or "
                    "load_state_dict(assign=True) do: do that before the Optimizer is made")

    def _stop(self) -> None:
        if self.fetcher is not None:
            self.fetcher.close()
            refuse_ddp(self._module, False)
            comes_and_goes(self, False)
        for h in self._names:
            h.remove()
        self.fetcher = None
        self._names.clear()

    def release(self) -> None:
        """Parameters become ordinary memory of the host with the values that they have."""
        if self.followed:
            self._stop()
            for r, x in zip(self._rows, self._there):
                mine = torch.empty_like(r.param, device="cpu", requires_grad=False)
                r.param.data = mine.copy_(x)
        self._there, self._base, self.followed = [], 0, False

    def lose(self) -> None:
        """In a forked child: parameters become empty."""
        if self.followed:
            self.fetcher.unhook()
            for r in self._rows:
                r.param.data = torch.empty(0, dtype=r.dtype)


def _state(owner, module, state: dict, prefix: str, metadata) -> None:
    """state_dict() has copies in host memory."""
    image = owner()
    for name, p in dict.items(module._parameters) if image is not None else ():
        if p is not None and prefix + name in state:
            x = image.value(p)
            if x is not None:
                state[prefix + name] = x


def _tie(pairs: Mapping[str, str], module, state: dict, prefix: str, metadata) -> None:
    """Tied parameters are one tensor in state_dict(), as they are in the model."""
    for second, first in pairs.items():
        if prefix + first in state and prefix + second in state:
            state[prefix + second] = state[prefix + first]

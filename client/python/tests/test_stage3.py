# SPDX-License-Identifier: Apache-2.0
"""Stage 3: what is fetched and freed when, and a training whose parameters come and go."""

import copy
import pathlib
import random

import pytest
import torch
import torch.utils.checkpoint

import models
import shardd
from shardd import lib
from shardd.stage3 import Fetcher, Scheduler, Source, Todo

FAKE = pathlib.Path(lib._candidates()[0]).parent / "tests" / "cuda"
UNITS = {"a": [0, 1], "b": [2, 3], "c": [4, 5], "d": [6]}
NUMEL = [100, 1, 100, 1, 100, 1, 100]  # The small ones stay.
PASS = ["a", "b", "c", "d", "c", "b", "a"]


def run(s, units):
    said = []
    for u in units:
        todo = s.before(u)
        said.append((todo, s.after(u)))
    return said


def test_first_pass_fetches_late_and_frees_at_once():
    s = Scheduler(UNITS, NUMEL, keep=50)
    assert run(s, PASS[:5]) == [
        (Todo([], [0, 1], []), [0]), (Todo([], [2, 3], []), [2]), (Todo([], [4, 5], []), [4]),
        (Todo([], [6], []), [6]), (Todo([], [4], []), [4])]
    assert s.there == {1, 3, 5} and s.live == 0


def test_second_pass_fetches_ahead():
    s = Scheduler(UNITS, NUMEL, keep=50, prefetch=100, reuse=0)
    run(s, PASS)
    s.end()
    said = run(s, PASS)
    assert [t.fetch for t, _ in said] == [[0, 1], [], [], [], [], [], []]
    assert [t.ahead for t, _ in said] == [[2, 3], [4, 5], [6], [4], [2], [0], []]
    assert [f for _, f in said] == [[0], [2], [4], [6], [4], [2], [0]]


def test_what_is_used_again_soon_stays():
    s = Scheduler(UNITS, NUMEL, keep=50, prefetch=0, reuse=201)
    run(s, PASS)
    s.end()
    said = run(s, PASS)
    assert [f for _, f in said] == [[0], [2], [], [6], [4], [2], [0]]
    assert [t.fetch for t, _ in said] == [[0, 1], [2, 3], [4, 5], [6], [], [2], [0]]


def test_the_limit_of_what_lives():
    s = Scheduler(UNITS, NUMEL, keep=50, prefetch=1000, live=200)
    run(s, PASS)
    s.end()
    for u in PASS:
        s.before(u)
        assert s.live <= 200
        s.after(u)


def test_a_surprise_is_recorded():
    s = Scheduler(UNITS, NUMEL, keep=50, prefetch=1000, reuse=0)
    run(s, PASS)
    s.end()
    said = run(s, ["a", "d", "d", "a"])
    assert said[1][0].ahead == said[2][0].ahead == []  # Nothing is known any more.
    s.end()
    assert run(s, ["a", "d", "d", "a"])[0][0].ahead == [6]


def test_a_shorter_pass_is_not_the_one_that_is_known():
    s = Scheduler(UNITS, NUMEL, keep=50)
    run(s, PASS)
    s.end()
    run(s, PASS[:3])
    s.end()
    assert s.before("a").ahead == []


@pytest.mark.parametrize("seed", range(200))
def test_random_passes(seed):
    """Nested units, shared parameters and surprises: what is in use is always there, and no more
    lives than may, or than is in use."""
    r = random.Random(seed)
    numel = [r.choice([1, 7, 50, 300]) for _ in range(12)]
    units = {u: r.sample(range(12), r.randint(1, 3)) for u in range(8)}
    live = r.choice([100, 600, 10000])
    keep = r.choice([0, 5, 60])
    s = Scheduler(units, numel, prefetch=r.choice([0, 300, 10000]), live=live, keep=keep,
                  reuse=r.choice([0, 400, 10000]))
    order = [r.randrange(8) for _ in range(15)]
    there = set()
    for _ in range(5):
        todays = order if r.random() < 0.7 else [r.randrange(8) for _ in range(r.randint(1, 20))]
        stack = []
        for u in todays:
            todo = s.before(u)
            stack.append(u)
            using = {p for v in stack for p in units[v]}
            assert not using & set(todo.free) - set(todo.fetch)
            there -= set(todo.free)
            assert not there & set(todo.fetch) and not there & set(todo.ahead)
            there |= {*todo.fetch, *todo.ahead}
            assert set(units[u]) <= there == s.there
            big = {p for p in there if numel[p] >= keep}
            assert s.live == sum(numel[p] for p in big)
            assert s.live <= max(live, sum(numel[p] for p in big & using))
            while stack and r.random() < 0.7:
                v = stack.pop()
                gone = s.after(v)
                assert not {p for w in stack for p in units[w]} & set(gone)
                there -= set(gone)
        for v in reversed(stack):
            there -= set(s.after(v))
        s.end()
        there.clear()


class Model(torch.nn.Module):
    """Tied weights, a part that is not always used, and one that is used twice."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(30, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(inplace=True),
                                torch.nn.Linear(64, 16)) for _ in range(3))
        self.extra = torch.nn.Linear(16, 16)
        self.head = torch.nn.Linear(16, 30, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x, extra):
        h = self.norm(self.embed(x))
        for b in self.blocks:
            h = h + torch.utils.checkpoint.checkpoint(b, h, use_reentrant=False)
        h = self.blocks[0](h) + (self.extra(h) if extra else 0)
        return self.head(self.norm(h))


@pytest.mark.parametrize("settings", [
    {"prefetch": 0, "keep": 0, "reuse": 0}, {"prefetch": 3000, "keep": 100, "reuse": 0},
    {"prefetch": 1e6, "keep": 100, "live": 3000}, {}], ids=str)
def test_training_as_with_all_in_memory(settings):
    """Losses and weights are equal bit by bit, and what is not in use is not in memory."""
    torch.manual_seed(1)
    plain = Model()
    model = copy.deepcopy(plain)
    weights = {p: q.detach().clone() for p, q in zip(model.parameters(), plain.parameters())}
    late, peak = set(), 0

    class Late(Source):
        def fetch(self, params, wait):
            nonlocal peak
            for p in params:
                if wait:
                    p.data.copy_(weights[p])
                else:
                    late.add(p)
            peak = max(peak, sum(p.untyped_storage().nbytes() // 4 for p in weights))

        def arrived(self, params):
            for p in params:
                late.remove(p)
                p.data.copy_(weights[p])

        def free(self, p):
            assert p not in late
            super().free(p)

    fetcher = Fetcher(model, model.parameters(), Late(), **settings)
    assert all(p.untyped_storage().nbytes() == 0 for p in model.parameters())
    for step in range(6):
        x = torch.randint(0, 30, (4, 9), generator=torch.Generator().manual_seed(step))
        losses = [torch.nn.functional.cross_entropy(
            m(x, step == 3).flatten(0, 1), x.flatten()) for m in (plain, model)]
        assert losses[0].item() == losses[1].item()
        for loss in losses:
            loss.backward()
        with torch.no_grad():
            for p, q in zip(plain.parameters(), model.parameters()):
                assert (p.grad is None) == (q.grad is None)
                if p.grad is not None:
                    assert torch.equal(p.grad, q.grad)
                    p -= 0.1 * p.grad
                    weights[q] -= 0.1 * q.grad
                p.grad = q.grad = None
        fetcher.step()
        assert not late
        assert all(p.untyped_storage().nbytes() == 0 for p in model.parameters())
    total = sum(p.numel() for p in weights)
    assert peak < 0.7 * total or settings.get("prefetch") != 0, (peak, total)
    assert peak <= total
    with fetcher.hold(model.parameters()):
        assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), model.parameters()))
    fetcher.close()


# --- in an Optimizer ---

TRAIN = """
    import torch, shardd, sys, hashlib, models, test_stage3
    rank, n = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.manual_seed(7)
    make, data, steps, accumulate = {model}, {data}, {steps}, {accumulate}
    device, said = None, []
    def train(**words):
        torch.manual_seed(7)
        model = make().to({dtype})
        words = {{**dict(clip=0.5, accumulate=accumulate), **words, **{more}}}
        if words.pop("fake", False):
            import fakegpu
            global device
            device = fakegpu.Device()
            fakegpu.install(device)
        opt = shardd.AdamW(model, lr=0.02, name="m" + str(len(said)), **words)
        losses, peak = [], 0
        held = lambda: sum(p.untyped_storage().nbytes() for p in model.parameters())
        def watch(*_):
            nonlocal peak
            peak = max(peak, held())
        hooks = [m.register_forward_pre_hook(watch) for m in model.modules()] + \\
            [p.register_hook(watch) for p in model.parameters()]
        for step in range(steps):
            for k in range(accumulate):
                x = data(step * accumulate + k, rank)
                loss = model(*x) / accumulate
                opt.zero_grad() if k == 0 else None  # Between forward and backward, as many do.
                loss.backward()
                losses.append(loss.item())
            opt.step()
            assert not opt.step_was_skipped
            with torch.no_grad():
                losses.append(model(*x).item())
            watch()
        for h in hooks:
            h.remove()
        left = held()
        masters = hashlib.sha256(b"".join(opt.read(r.param).numpy().tobytes()
                                          for r in opt._rows)).hexdigest()
        state = {{k: v.clone() for k, v in model.state_dict().items()}}
        about = opt._session.copies.about().pulled_bytes if device else 0
        opt.close(drop=n == 1)
        after = model.state_dict()
        said.append(dict(losses=losses, about=about, masters=masters, state=state, peak=peak,
                         left=left,
                         same=all(torch.equal(v, after[k]) for k, v in state.items())))
        return said[-1]
    a, b = train(params="{like}"), train(params="copy", stage3={settings}, fake={fake})
    size = sum(x.numel() * x.element_size() for x in make().to({dtype}).parameters())
    say(same=[a["losses"] == b["losses"], a["masters"] == b["masters"], a["same"], b["same"],
              all(torch.equal(x, y) for x, y in zip(a["state"].values(), b["state"].values()))],
        about=b["about"], peak=b["peak"], left=b["left"], size=size)
"""
GPT = {"model": "lambda: models.GPT(layers=4)", "data": "models.tokens"}
NET = {"model": "models.Net", "data": "models.images", "like": "copy"}  # The image has no strides.
EXPERTS = {"model": "models.Experts", "data": "models.vectors"}
NOTHING = {"prefetch": 0, "keep": 0, "reuse": 0}


def trains(ranks, n=1, env=None, **words):
    words = {"steps": 5, "accumulate": 1, "dtype": "torch.float32", "more": {}, "settings": NOTHING,
             "like": "image", "fake": False, **words}
    return [one for (one,) in ranks(TRAIN.format(**words), n, **(env or {}))]


CASES = [
    (1, {**GPT}), (1, {**GPT, "settings": {"prefetch": 30000, "keep": 100, "reuse": 20000}}),
    (2, {**GPT, "accumulate": 2, "dtype": "torch.bfloat16"}), (1, {**NET}),
    (1, {**GPT, "more": {"grads": "keep"}, "settings": {"live": 30000}}),
    (2, {**EXPERTS, "settings": True})]


def right(one, words):
    assert one["same"] == [True] * 5
    assert one["left"] == 0
    assert 0 < one["peak"] <= one["size"]
    if words.get("settings", NOTHING) == NOTHING and words["model"] == GPT["model"]:
        assert one["peak"] < 0.6 * one["size"]


class Borrows(torch.nn.Module):
    """Uses parameters of its parts itself, and has a method beside forward."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(64, 32), torch.nn.Linear(32, 32)
        self.mid = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))

    def mixed(self, h):
        return torch.nn.functional.linear(h, self.out.weight * 0.5, self.mid[0].bias)

    def forward(self, x, y):
        h = self.mid(torch.nn.functional.embedding(x % 64, self.embed.weight))
        h = torch.utils.checkpoint.checkpoint(self.mixed, h, use_reentrant=False)
        h = self.mid[1](self.out(self.mixed(h).relu_())) @ self.embed.weight.t()
        return torch.nn.functional.cross_entropy(h.flatten(0, 1), y.flatten() % 64)


CASES += [(1, {**GPT, "model": "test_stage3.Borrows", "settings": s}) for s in (
    NOTHING, {"prefetch": 2000, "reuse": 0, "keep": 0})]


@pytest.mark.parametrize("n, words", CASES, ids=str)
def test_as_with_the_image(ranks, n, words):
    """A training whose parameters are fetched and freed is that on the image, bit by bit."""
    for one in trains(ranks, n, **words):
        right(one, words)


def test_outside_of_forward(address):
    """What is looked up in no forward is there until the step ends, and gather() has it, too."""
    torch.manual_seed(0)
    model = Borrows()
    want = {k: v.clone() for k, v in model.state_dict().items()}
    with shardd.SGD(model, lr=0.1, name="o", address=address, params="copy",
                    stage3=NOTHING) as opt:
        params = dict(model.named_parameters())
        assert not any(p.untyped_storage().nbytes() for p in params.values())
        assert torch.equal(model.out.weight, want["out.weight"])
        with opt.gather(params["embed.weight"]):
            assert torch.equal(params["embed.weight"], want["embed.weight"])
            with torch.no_grad():
                model(*models.tokens(0, 0))  # Which ends a pass of its own otherwise.
            assert torch.equal(params["embed.weight"], want["embed.weight"])
        assert params["embed.weight"].untyped_storage().nbytes() == 0
        assert all(torch.equal(v, want[k]) for k, v in model.state_dict().items())
        with pytest.raises(RuntimeError, match="load_state_dict"):
            model.load_state_dict(want)
        model(*models.tokens(0, 0)).backward()
        opt.step()
        assert not any(p.untyped_storage().nbytes() for p in params.values())
        after = {k: v.clone() for k, v in model.state_dict().items()}
        assert not any(torch.equal(v, want[k]) for k, v in after.items())
    assert all(torch.equal(p, after[k]) for k, p in params.items())


def test_the_whole_model_is_needed(address):
    with pytest.raises(TypeError, match="give the Module as model"):
        shardd.SGD(Borrows().parameters(), lr=0.1, address=address, params="copy", stage3=True)


@pytest.mark.skipif(not (FAKE / "libcuda.so.1").exists(), reason="`make tests` was not run")
@pytest.mark.parametrize("n, words", CASES, ids=str)
def test_on_a_device(ranks, n, words):
    """As above, with the driver library of tests/cuda. Its copies are late, memory that is not
    filled yet has other numbers, and memory that is freed while it is copied ends the process."""
    env = {"LD_LIBRARY_PATH": str(FAKE), "FAKE_CUDA_SEED": "5", "FAKE_CUDA_DELAY_US": 2000}
    for one in trains(ranks, n, env, **{**words, "fake": True}):
        right(one, words)
        assert one["about"] > one["size"]

# SPDX-License-Identifier: Apache-2.0
"""shardd.Init: weights are those that a plain constructor makes, and the model is never in memory
of a process as a whole."""

import pytest
import torch

import shardd
from shardd.init import in_file

MIB = 1 << 20

RUN = """
    import torch, shardd, hashlib, gc
    import shardd.deepspeed as ds
    rank, n = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    peak = 0
    def anon():
        global peak
        with open("/proc/self/status") as f:
            now = next(int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon"))
        peak = max(peak, now)
        return now

    class Part(torch.nn.Linear):
        def __init__(self, *a):
            super().__init__(*a)
            anon()
        def forward(self, x):
            anon()
            return super().forward(x)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList(Part(1024, 1024) for _ in range({parts}))
            self.last = torch.nn.Linear(1024, 2)
            # The outer constructor writes what an inner one has made.
            torch.nn.init.normal_(self.parts[0].weight, std=0.02)
        def forward(self, x):
            for p in self.parts:
                x = torch.tanh(p(x))
            return self.last(x)

    def digest(xs):
        return hashlib.sha256(b"".join(x.detach().numpy().tobytes() for x in xs)).hexdigest()

    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # Has torch import what takes memory, too.
    torch.manual_seed(5)
    before = anon()
    with {init}:
        model = Model()
    after = torch.rand(1).item()  # Random numbers go on as without.
    opt = shardd.SGD(model, lr=0.1, {words})
    first = digest(opt.read(r.param) for r in opt._rows)
    anon()
    made = peak - before
    for step in range({steps}):
        x = torch.randn(4, 1024, generator=torch.Generator().manual_seed(step))
        model(x).square().sum().backward()
        opt.step()
    say(made=made, peak=peak - before, first=first, last=digest(opt.read(r.param) for r in opt._rows),
        random=after, size=sum(r.numel * 4 for r in opt._rows))
"""


def run(ranks, n=1, init="shardd.Init()", words="", parts=6, steps=2):
    return [one for (one,) in ranks(RUN.format(init=init, words=words, parts=parts, steps=steps),
                                    n)]


def test_equal_weights_and_no_memory(ranks):
    (plain,) = run(ranks, init="shardd.Init(enabled=False)", parts=30, steps=1)
    (built,) = run(ranks, parts=30, steps=1)
    for word in ("first", "last", "random"):
        assert plain[word] == built[word]
    assert plain["made"] > plain["size"] > 120 * MIB
    # One parameter on its way to a file, and what malloc keeps of those before it. Gradients come
    # to that, and all of them may where pushing is slow.
    assert built["made"] < built["size"] * 0.75, built


@pytest.mark.parametrize("words", ["", "params='copy', stage3=dict(prefetch=0, reuse=0, keep=0)"])
def test_ranks(ranks, words):
    plain = run(ranks, 2, init="shardd.Init(enabled=False)")
    built = run(ranks, 2, init="ds.zero.Init()", words=words + (", " if words else "") + "name='b'")
    for one in built:
        assert {one["first"]} == {p["first"] for p in plain}
        assert {one["last"]} == {p["last"] for p in plain}


def test_ordinary_use(tmp_path):
    """Without an Optimizer it is a model as any other one."""
    torch.manual_seed(1)
    plain = torch.nn.Linear(300, 300)
    torch.manual_seed(1)
    with shardd.Init(min_bytes=1000, folder=tmp_path):
        model = torch.nn.Linear(300, 300)
        tied = torch.nn.Linear(300, 300)
        tied.weight = model.weight
    assert in_file(model.weight) and in_file(model.bias) and tied.weight is model.weight
    assert not list(tmp_path.iterdir())
    x = torch.randn(2, 300)
    assert torch.equal(plain(x), model(x))
    model(x).sum().backward()
    assert model.weight.grad is not None and not in_file(torch.nn.Linear(300, 300).weight)


def test_no_room(tmp_path, monkeypatch):
    def full(fd, at, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="Init needs 360000 bytes for a parameter in .*: No space"):
        with shardd.Init(min_bytes=1000, folder=tmp_path):
            torch.nn.Linear(300, 300)
    assert not list(tmp_path.iterdir())

# SPDX-License-Identifier: Apache-2.0
"""shardd.Optimizer against torch.optim, in one process and with several ranks.

The reference is plain torch: the same model in one process, with the mean of what the ranks' losses
give, clipped by clip_grad_norm_ and stepped by torch's optimizer with foreach=False. After one step
nearly all weights have equal bits. After many the losses are equal. A tensor whose true gradient is
zero, as the bias of keys in attention, has only rounding for a gradient, and Adam makes steps of
lr out of that: such tensors may differ by lr times the steps.
"""

import pytest
import torch

import models
import shardd

SETTINGS = {
    "adamw": (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.01}),
    "sgd": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True,
                              "weight_decay": 1e-4}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2, "weight_decay": 0.0}),
}
CASES = {"gpt": (models.GPT, models.tokens), "net": (models.Net, models.images),
         "experts": (models.Experts, models.vectors)}


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2, for torch has none."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                grad = torch.zeros_like(p) if p.grad is None else p.grad
                p.mul_(1 - g["lr"] * g["weight_decay"])
                p.sub_(torch.sign(m.lerp(grad, 1 - g["betas"][0])), alpha=g["lr"])
                m.lerp_(grad, 1 - g["betas"][1])


SETTINGS["lion"] = (Lion, {"lr": 1e-4, "weight_decay": 0.01})


def reference(case, kind, steps, world, accumulate, clip):
    torch.manual_seed(0)
    make, data = CASES[case]
    model = make()
    cls, settings = SETTINGS[kind]
    extra = {} if kind == "lion" else {"foreach": False}
    opt = cls(model.parameters(), **settings, **extra)
    losses, first = [], None
    for s in range(steps):
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for r in range(world):  # In the order in which the daemons sum: a rank, then the next.
            opt.zero_grad()
            for a in range(accumulate):
                loss = model(*data(s * accumulate + a, r))
                (loss / accumulate).backward()
            if r == 0:
                losses.append(loss.item())
            for p, total in zip(model.parameters(), sums):
                if p.grad is not None:
                    total.add_(p.grad)
        # shardd updates a parameter without a gradient as one whose gradient is zero.
        for p, total in zip(model.parameters(), sums):
            p.grad = total.div_(world)
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        opt.zero_grad()
        if s == 0:
            first = [p.detach().clone() for p in model.parameters()]
    return losses, first, [p.detach().clone() for p in model.parameters()]


CODE = """
import torch, shardd, models, test_parity as t
case, kinds, steps, accumulate, clip, out = {args!r}
make, data = t.CASES[case]
rank = int(os.environ["RANK"])
for kind in kinds:
    torch.manual_seed(0)
    model = make()
    opt = shardd.Optimizer(model, kind, clip=clip, accumulate=accumulate, name=kind,
                           timeout=60, **t.SETTINGS[kind][1])
    losses, first = [], None
    for s in range(steps):
        for a in range(accumulate):
            loss = model(*data(s * accumulate + a, rank))
            (loss / accumulate).backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
        if s == 0:
            first = [p.detach().clone() for p in model.parameters()]
    torch.save((first, [p.detach().clone() for p in model.parameters()]), out + kind + str(rank))
    say(losses=losses, norm=opt.result.grad_norm)
    opt.close()
"""


def train(ranks, tmp_path, case, kinds, steps, world, accumulate, clip, **env):
    """For each kind: the losses of each rank, the weights after one step and at the end."""
    args = (case, kinds, steps, accumulate, clip, str(tmp_path / "w"))
    said = ranks(CODE.format(args=args), world, **env)
    done = []
    for k, kind in enumerate(kinds):
        weights = [torch.load(tmp_path / f"w{kind}{r}") for r in range(world)]
        for other in weights[1:]:  # All ranks of a node read one image.
            assert all(torch.equal(a, b) for a, b in zip(weights[0][1], other[1]))
        done.append(([s[k]["losses"] for s in said], *weights[0]))
    return done


def compare(first, last, there, steps, lr, share=0.9):
    losses, ref_first, ref_last = there
    equal = total = far = 0
    for a, b in zip(first, ref_first):
        off = (a - b).abs()
        far += (off > max(1e-8, 2e-7 * b.abs().max())).sum().item()
        assert off.max() <= max(1e-8, 2e-7 * b.abs().max(), 0.01 * lr), "after one step"
        equal += (a == b).sum().item()
        total += a.numel()
    # Where weight decay and gradient of Adam cancel each other, what is left is rounding, and Adam
    # divides it by itself.
    assert far <= 1e-4 * total, f"{far} of {total} elements are far off after one step"
    assert equal / total > share, f"{equal} of {total} elements are equal after one step"
    for a, b in zip(last, ref_last):
        assert (a - b).abs().max() <= 2 * lr * steps


@pytest.mark.parametrize("case", sorted(CASES))
def test_one_rank(ranks, tmp_path, case):
    """Every optimizer on every model, clipped. Adagrad rounds in another order than torch's."""
    kinds = sorted(SETTINGS)
    trained = train(ranks, tmp_path, case, kinds, 10, 1, 1, 1.0)
    for kind, (losses, first, last) in zip(kinds, trained):
        there = reference(case, kind, 10, 1, 1, 1.0)
        compare(first, last, there, 10, SETTINGS[kind][1]["lr"], 0.6 if kind == "adagrad" else 0.9)
        assert losses[0] == pytest.approx(there[0], rel=3e-5 if kind == "lion" else 3e-6)


@pytest.mark.parametrize("world,accumulate,clip", [(2, 1, 1.0), (4, 1, 0.0), (1, 4, 1.0),
                                                   (2, 4, 0.0)])
def test_ranks_and_accumulation(ranks, tmp_path, world, accumulate, clip):
    """The mean over ranks and the sum over backward passes are those of DDP and torch."""
    there = reference("gpt", "adamw", 10, world, accumulate, clip)
    done = train(ranks, tmp_path, "gpt", ["adamw"], 10, world, accumulate, clip)
    losses, first, last = done[0]
    compare(first, last, there, 10, 1e-3)
    assert losses[0] == pytest.approx(there[0], rel=3e-6)


def test_equal_bits(ranks, tmp_path):
    """The same run twice, and with another number of workers, ends with the same bits."""
    a = train(ranks, tmp_path, "gpt", ["adamw"], 10, 2, 1, 1.0)[0]
    (tmp_path / "again").mkdir()
    b = train(ranks, tmp_path / "again", "gpt", ["adamw"], 10, 2, 1, 1.0, SHARD_WORKERS=1)[0]
    assert a[0] == b[0]
    assert all(torch.equal(x, y) for x, y in zip(a[2], b[2]))


def test_a_wrong_gradient_is_found():
    """The comparison can fail: a learning rate that differs by a hundredth."""
    there = reference("experts", "adamw", 2, 1, 1, 1.0)
    saved = SETTINGS["adamw"]
    SETTINGS["adamw"] = (saved[0], {**saved[1], "lr": 1.01e-3})
    try:
        _, first, last = reference("experts", "adamw", 2, 1, 1, 1.0)
    finally:
        SETTINGS["adamw"] = saved
    with pytest.raises(AssertionError):
        compare(first, last, there, 2, 1e-3)


BF16 = """
import torch, shardd, models
torch.manual_seed(0)
model = models.GPT().to(torch.{dtype})
opt = shardd.AdamW(model, lr=1e-3, clip=1.0, name="b", accumulate={accumulate}{more})
for s in range(5):
    for a in range({accumulate}):
        loss = opt.scale(model(*models.tokens(s, a)))
        loss.backward()
    opt.step(); opt.zero_grad()
say(loss=loss.item() / opt.result.loss_scale, norm=opt.result.grad_norm, applied=opt.result.applied,
    scale=opt.result.loss_scale, dtype=str(model.norm.weight.dtype),
    master=opt.read("norm.weight").tolist()[:4])
"""


@pytest.mark.parametrize("dtype,accumulate,more", [
    ("bfloat16", 1, ""), ("bfloat16", 3, ""), ("float16", 1, ", loss_scale='dynamic'"),
    ("float16", 2, ", loss_scale=1024")])
def test_sixteen_bits(ranks, dtype, accumulate, more):
    """Masters are fp32, the model computes in 16 bits, and the loss falls as in fp32."""
    said = ranks(BF16.format(dtype=dtype, accumulate=accumulate, more=more))[0][0]
    assert said["dtype"] == f"torch.{dtype}"
    assert said["applied"] or dtype == "float16"
    assert 5.0 < said["loss"] < 5.7
    assert any(float(torch.tensor(m).to(getattr(torch, dtype))) != m for m in said["master"])


def test_groups_and_schedulers(ranks):
    """Groups with a learning rate and a weight decay of their own, under a scheduler of torch."""
    torch.manual_seed(0)
    code = """
import torch, shardd, models
def train(make):
    torch.manual_seed(0)
    m = models.GPT()
    flat = [p for p in m.parameters() if p.dim() < 2]
    rest = [p for p in m.parameters() if p.dim() >= 2]
    groups = [{"params": rest, "lr": 1e-3, "weight_decay": 0.1},
              {"params": flat, "lr": 3e-3, "weight_decay": 0.0}]
    opt = make(m, groups)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, [1e-3, 3e-3], total_steps=10,
                                                cycle_momentum=False)
    out = []
    for s in range(10):
        loss = m(*models.tokens(s, 0)); loss.backward(); opt.step(); opt.zero_grad(); sched.step()
        out.append(loss.item())
    return out, m
a, ma = train(lambda m, g: shardd.Optimizer(g, "adamw", name="g"))
b, mb = train(lambda m, g: torch.optim.AdamW(g, foreach=False))
both = zip(ma.parameters(), mb.parameters())
say(a=a, b=b, worst=max((x - y).abs().max().item() for x, y in both))
"""
    said = ranks(code)[0][0]
    assert said["a"] == pytest.approx(said["b"], rel=3e-6)
    assert said["worst"] < 1e-2


@pytest.mark.parametrize("more", ["", "accumulate=2", "grads='keep'"])
def test_closure(ranks, more):
    """step(closure), as Lightning calls it: the bits of a loop that calls backward itself."""
    code = f"""
import torch, shardd, models
def train(name, closed):
    torch.manual_seed(0)
    m = models.GPT()
    opt = shardd.AdamW(m, lr=1e-3, name=name, {more})
    losses = []
    for s in range(4):
        def compute():
            opt.zero_grad()
            for a in range(opt.accumulate):
                loss = m(*models.tokens(s * opt.accumulate + a, 0))
                (loss / opt.accumulate).backward()
            return loss
        if closed:
            with torch.no_grad():  # The closure computes gradients nevertheless.
                loss = opt.step(compute)
        else:
            loss = compute()
            assert opt.step() is None
        losses.append(loss.item())
    return losses, m
a, ma = train("closed", True)
b, mb = train("open", False)
say(a=a, b=b, same=all(torch.equal(x, y) for x, y in zip(ma.parameters(), mb.parameters())))
"""
    said = ranks(code)[0][0]
    assert said["a"] == said["b"] and said["a"][0] != said["a"][3] and said["same"]


def test_tied_frozen_and_read(ranks):
    """A tied weight is one tensor; a frozen one is not defined; moments can be read."""
    code = """
import torch, shardd, models
torch.manual_seed(0)
m = models.GPT()
m.place.requires_grad_(False)
before = m.place.clone()
opt = shardd.AdamW(m, lr=1e-3, name="tied")
m(*models.tokens(0, 0)).backward(); opt.step()
assert m.head.weight is m.embed.weight and torch.equal(m.place, before)
assert not any(r.name == "place" for r in opt._rows)
assert sum(r.name in ("embed.weight", "head.weight") for r in opt._rows) == 1
state = opt.state[m.embed.weight]
assert set(state) == {"step", "exp_avg", "exp_avg_sq"} and state["step"] == 1
assert state["exp_avg"].shape == m.embed.weight.shape and state["exp_avg"].abs().sum() > 0
assert torch.equal(opt.read(m.embed.weight), m.embed.weight)
opt.close()
assert torch.equal(m.embed.weight, m.head.weight)
m.embed.weight.data.add_(1)     # It is ordinary memory again.
say(ok=True)
"""
    assert ranks(code)[0][0]["ok"]


def test_ranks_with_other_seeds_begin_equal(ranks):
    """As with DDP, rank 0's initial weights count, whatever the others had."""
    code = """
import torch, shardd, models
torch.manual_seed(int(os.environ["RANK"]))
m = models.GPT()
opt = shardd.AdamW(m, lr=1e-3, name="seeds")
say(sum=sum(p.double().sum().item() for p in m.parameters()))
for s in range(3):
    m(*models.tokens(s, int(os.environ["RANK"]))).backward(); opt.step(); opt.zero_grad()
    assert not opt.step_was_skipped
say(step=opt.result.step, sum=sum(p.double().sum().item() for p in m.parameters()))
"""
    torch.manual_seed(0)
    want = sum(p.double().sum().item() for p in models.GPT().parameters())
    said = ranks(code, 2)
    assert said[0][0]["sum"] == said[1][0]["sum"] == pytest.approx(want)
    assert said[0][1] == said[1][1] and said[0][1]["step"] == 3

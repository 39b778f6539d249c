# SPDX-License-Identifier: Apache-2.0
"""State dicts of torch.optim into a shardd.Optimizer and out, compared with torch going on."""

import socket

import pytest
import torch

import crew
import models
import shardd
from shardd import torch_state

KINDS = {"adamw": (torch.optim.AdamW, {"lr": 1e-2, "betas": (0.8, 0.95)}),
         "adam": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1}),
         "sgd": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True}),
         "adagrad": (torch.optim.Adagrad, {"lr": 1e-2})}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def groups(m, named=False):
    """Two groups, whose order is another one than the model's."""
    tall = [(n, p) for n, p in m.named_parameters() if p.dim() > 1]
    flat = [(n, p) for n, p in m.named_parameters() if p.dim() <= 1]
    one = (lambda rows: rows) if named else (lambda rows: [p for n, p in rows])
    return [{"params": one(flat), "weight_decay": 0.0}, {"params": one(tall)}]


def go(m, opt, first, last):
    losses = []
    for s in range(first, last):
        opt.zero_grad()
        loss = m(*models.tokens(s, 0))
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def by_name(opt, state, m):
    """A state as torch.distributed.checkpoint has it."""
    name = {id(p): n for n, p in m.named_parameters()}
    order = [name[id(p)] for g in opt.param_groups for p in g["params"]]
    return {"state": {order[i]: row for i, row in state["state"].items()},
            "param_groups": [{**g, "params": [order[i] for i in g["params"]]}
                             for g in state["param_groups"]]}


@pytest.mark.parametrize("kind", list(KINDS))
def test_both_ways(address, kind):
    """Torch, then shardd by load_state_dict(), then torch again: as torch alone."""
    cls, words = KINDS[kind]
    torch.manual_seed(0)
    m = models.GPT()
    opt = cls(groups(m), **words)
    go(m, opt, 0, 3)
    torch.manual_seed(1)
    k = models.GPT()
    k.load_state_dict(m.state_dict())
    mine = shardd.Optimizer(groups(k, named=True), kind, lr=0.5, name="t", address=address)
    state = opt.state_dict()
    mine.load_state_dict(by_name(opt, state, m) if kind == "adam" else state)
    assert mine.param_groups[0]["lr"] == 1e-2
    assert mine.global_step == (0 if kind == "sgd" else 3)
    want, got = go(m, opt, 3, 6), go(k, mine, 3, 6)
    assert got == pytest.approx(want, abs=2e-5)
    back = mine.full_state_dict("name" if kind == "adam" else "index")
    mine.close()
    last = models.GPT()
    last.load_state_dict(k.state_dict())
    again = cls(groups(last), **{**words, "lr": 0.7})
    if kind == "adam":
        number = {n: i for i, n in enumerate(
            n for g in groups(last, named=True) for n, _ in g["params"])}
        back = {"state": {number[n]: row for n, row in back["state"].items()},
                "param_groups": [{**g, "params": [number[n] for n in g["params"]]}
                                 for g in back["param_groups"]]}
    again.load_state_dict(back)
    assert go(last, again, 6, 9) == pytest.approx(go(m, opt, 6, 9), abs=4e-5)


def test_in_mid_run(address):
    """A state that is loaded after some steps counts from the next one on; weights stay."""
    torch.manual_seed(0)
    m = models.GPT()
    ref = torch.optim.AdamW(m.parameters(), lr=1e-2)
    mine = shardd.AdamW(m, lr=1e-2, name="mid", address=address)
    go(m, mine, 0, 2)
    saved = mine.full_state_dict()
    go(m, mine, 2, 4)
    before = {n: p.clone() for n, p in m.named_parameters()}
    masters = {n: mine.read(n) for n in before}
    mine.load_state_dict(saved)
    assert mine.global_step == 2 and all(torch.equal(p, before[n])
                                         for n, p in m.named_parameters())
    assert all(torch.equal(mine.read(n), masters[n]) for n in before)
    k = models.GPT()
    k.load_state_dict(before, strict=False)
    ref = torch.optim.AdamW(k.parameters(), lr=1e-2)
    ref.load_state_dict(saved)
    assert go(m, mine, 4, 7) == pytest.approx(go(k, ref, 4, 7), abs=2e-5)
    mine.close()


def two(line, dir):
    """A rank of two. It loads a state in mid-run and goes on."""
    torch.manual_seed(3)
    m = models.GPT()
    opt = shardd.AdamW(m, lr=1e-2, name="two")
    state = torch.load(f"{dir}/state")

    def steps(first, last):
        for s in range(first, last):
            m(*models.tokens(s, opt.rank)).backward()
            opt.step()

    steps(0, 2)
    try:
        opt.load_state_dict(state)
    except RuntimeError as e:
        line.say("said", alone=str(e))
    torch.distributed.init_process_group("gloo")
    opt.load_state_dict(state)
    steps(3, 5)
    line.say("said", step=opt.global_step, rate=opt.param_groups[0]["lr"],
             sum=sum(p.double().sum().item() for p in m.parameters()))
    torch.distributed.barrier()
    opt.close()
    torch.distributed.destroy_process_group()


def test_all_ranks_load_together(address, tmp_path):
    """Two ranks go on from one state, as torch with both batches; alone a rank is refused."""
    torch.manual_seed(0)
    m = models.GPT()
    opt = torch.optim.AdamW(m.parameters(), lr=3e-3)
    go(m, opt, 0, 3)
    torch.save(opt.state_dict(), tmp_path / "state")
    crew.preload()
    ranks = crew.Crew(SHARD_ADDRESS=address, MASTER_ADDR="127.0.0.1", WORLD_SIZE="2",
                      MASTER_PORT=free_port())
    said = []
    try:
        for r in range(2):
            ranks.start(two, {"RANK": str(r)}, dir=str(tmp_path))
        ranks.run(lambda m, message: said.append(message))
    finally:
        ranks.close()
    assert all("needs a process group" in m["alone"] for m in said if "alone" in m)
    ends = [m for m in said if "step" in m]
    assert [(m["step"], m["rate"]) for m in ends] == [(5, 3e-3)] * 2
    torch.manual_seed(3)
    k = models.GPT()
    ref = torch.optim.AdamW(k.parameters(), lr=1e-2)

    def both(first, last):
        for s in range(first, last):
            ref.zero_grad()
            ((k(*models.tokens(s, 0)) + k(*models.tokens(s, 1))) / 2).backward()
            ref.step()

    both(0, 2)
    ref.load_state_dict(torch.load(tmp_path / "state"))
    both(3, 5)
    want = sum(p.double().sum().item() for p in k.parameters())
    assert ends[0]["sum"] == ends[1]["sum"] == pytest.approx(want, abs=2e-2)


def test_what_does_not_fit_is_named(address):
    """Refused before anything changes, and the optimizer goes on."""
    m = models.Experts()
    mine = shardd.AdamW(m, name="fit", address=address)
    named = list(m.named_parameters())

    def state(opt_cls=torch.optim.AdamW, model=None, steps=True, **words):
        model = model or models.Experts()
        opt = opt_cls(model.parameters(), **words)
        if steps:
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            opt.step()
        return opt.state_dict()

    wrong = state()
    wrong["state"][2]["exp_avg"] = torch.ones(3)
    several = state()
    several["state"][1]["step"] = torch.tensor(7.0)
    text = state()
    text["state"][0]["exp_avg"] = "x"
    for bad, sentence in (
            ({"model": 1}, "no state_dict"), (wrong, f"exp_avg of {named[2][0]!r} has shape"),
            (several, "different numbers of steps"), (text, "and not a tensor"),
            (state(torch.optim.SGD, momentum=0.9), "the state is of sgd"),
            (state(torch.optim.Adam), "the state is of adam, and this optimizer is adamw"),
            (state(torch.optim.Adagrad), "the state is of adagrad"),
            (state(amsgrad=True), "amsgrad"), (state(maximize=True), "maximize=True"),
            (state(torch.optim.RMSprop), "no AdamW, Adam, SGD"),
            (state(torch.optim.RAdam), "no AdamW, Adam, SGD"),
            (state(torch.optim.NAdam, steps=False), "no AdamW, Adam, SGD"),
            (state(torch.optim.Adamax), "exp_inf"),
            (state(model=models.Net()), "parameters, and the optimizer has")):
        with pytest.raises(ValueError, match=sentence):
            mine.load_state_dict(bad)
    assert mine.global_step == 0
    go_on = m(*models.vectors(0, 0))
    go_on.backward()
    mine.step()
    assert mine.result.applied
    mine.close()
    with pytest.raises(ValueError, match="2 groups and numbers in place of names"):
        torch_state.initial(torch.optim.AdamW(groups(m)).state_dict(), m)

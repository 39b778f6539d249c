# SPDX-License-Identifier: Apache-2.0
"""Hyper-parameters that are asked, changed and shown: what param_groups say is what counts.

The reference is torch.optim, or a loop of torch over all samples of a step."""

import logging

import pytest
import torch
from torch import nn

import shardd

pytestmark = pytest.mark.filterwarnings("ignore")


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


_g = torch.Generator().manual_seed(1)
X, Y = torch.randn(64, 8, generator=_g), torch.randn(64, 4, generator=_g)


def loss(m, k=0):
    at = slice(k % 4 * 16, k % 4 * 16 + 16)
    return ((m(X[at]) - Y[at]) ** 2).mean()


def train(m, opt, steps, first=0, before=lambda opt, k: None, after=lambda: None):
    for k in range(first, first + steps):
        before(opt, k)
        loss(m, k).backward()
        opt.step()
        after()
        opt.zero_grad()


def differ(a, b):
    return max((p - q).abs().max().item() for p, q in zip(a.parameters(), b.parameters()))


def make(m, address, kind="adamw", **more):
    return shardd.Optimizer(m, kind, **{"lr": 1e-2, "name": "m", "address": address, "timeout": 20,
                                        **more})


def tuned(opt):
    return opt._session.status(opt.name)["tuned"]


# --- a model that exists with other settings ---


def test_another_kind_is_refused(address):
    train(a := net(), first := make(a, address), 1)
    with pytest.raises(shardd.Mismatch, match="optimizer: lion here, adamw there") as e:
        make(net(), address, "lion", lr=1e-3)
    assert "weight_decay of group g0: 0.0 here, 0.01 there" in str(e.value)  # Every difference.
    assert "name=" in str(e.value)
    first.close()


@pytest.mark.parametrize("more", [{}, {"world": (1, 3)}])
@pytest.mark.parametrize("what,here,text", [
    ("dtype", lambda: net().bfloat16(), "is torch.float32 and here torch.bfloat16"),
    ("gradients", net, "gradients in torch.float32 and here torch.bfloat16")])
def test_another_dtype_is_refused(address, more, what, here, text):
    """Also where the first difference that is told is another one."""
    train(a := net(), first := make(a, address), 1)
    words = {"grad_dtype": torch.bfloat16} if what == "gradients" else {}
    with pytest.raises(shardd.Mismatch):
        make(here(), address, **words, **more)
    with pytest.raises(shardd.Mismatch, match=text):
        make(here(), address, resume="must", **words)
    first.close()


def test_another_schedule_is_refused(address):
    words = {"schedule": "WarmupLR", "warmup_num_steps": 5, "warmup_max_lr": 1e-2}
    train(a := net(), first := make(a, address, **words), 1)
    with pytest.raises(shardd.Mismatch, match="schedule: none here, WarmupLR there"):
        make(net(), address)
    with pytest.raises(shardd.Mismatch, match="warmup_num_steps: 7 here, 5 there"):
        make(net(), address, **{**words, "warmup_num_steps": 7})
    first.close()


def test_what_is_asked_counts(address, caplog):
    """Resume with another weight decay, betas, eps and clip: as torch, with its state kept."""
    a, b = net(), net()
    first = make(a, address, weight_decay=0.1, clip=1.0)
    theirs = torch.optim.AdamW(b.parameters(), lr=1e-2, weight_decay=0.1)
    for k in range(5):
        train(a, first, 1, k)
        loss(b, k).backward()
        nn.utils.clip_grad_norm_(b.parameters(), 1.0)
        theirs.step()
        theirs.zero_grad()
    first.close(drop=False)
    theirs.param_groups[0].update(weight_decay=0.5, betas=(0.8, 0.95), eps=1e-4)
    with caplog.at_level(logging.WARNING, "shardd"):
        opt = make(c := net(), address, weight_decay=0.5, betas=(0.8, 0.95), eps=1e-4, clip=0.01)
    for said in ("weight_decay of group g0: 0.5 here, 0.1 there", "clip: 0.01 here, 1 there",
                 "beta1 of", "beta2 of", "eps of"):
        assert said in caplog.text
    for k in range(5, 10):
        train(c, opt, 1, k)
        loss(b, k).backward()
        nn.utils.clip_grad_norm_(b.parameters(), 0.01)
        theirs.step()
        theirs.zero_grad()
    assert differ(b, c) < 1e-6
    opt.close(drop=False)
    # Once more with the same: there is nothing to tell.
    caplog.clear()
    again = make(net(), address, weight_decay=0.5, betas=(0.8, 0.95), eps=1e-4, clip=0.01)
    assert "weight_decay" not in caplog.text
    again.close(drop=False)
    # And with what the model was defined with.
    back = make(net(), address, weight_decay=0.1, clip=1.0)
    assert tuned(back)["hyper"]["g0/weight_decay"] == 0.1 and tuned(back)["clip"] == 1.0
    back.close()


def test_several_ranks_ask_at_once(ranks, address):
    opt = make(net(), address, world=2)  # It never joins.
    said = ranks("""
        import shardd
        from test_settings import net, train, tuned
        opt = shardd.AdamW(m := net(), lr=1e-2, name="m", world=2, weight_decay=0.5, clip=0.25)
        train(m, opt, 3)
        say(group=opt.param_groups[0]["weight_decay"], clip=opt.clip,
            there=tuned(opt)["hyper"]["g0/weight_decay"], clips=opt.result.clip_factor < 1)
        opt.close(drop=False)
    """, 2)
    assert [s[0] for s in said] == [{"group": 0.5, "clip": 0.25, "there": 0.5, "clips": True}] * 2
    opt.close()


def test_a_newcomer_has_what_the_others_have(start, caplog, address):
    """Where a model is trained it keeps its settings, and the newcomer shows them."""
    one = start("""
        import shardd
        from test_settings import net, train
        opt = shardd.AdamW(m := net(), lr=1e-2, name="m", world=(1, 2), weight_decay=0.1, clip=1.0)
        train(m, opt, 3)
        say(at=3)
        sys.stdin.readline()
        opt.close(drop=False)
    """, None)
    assert one.hear() == {"at": 3}
    two = make(net(), address, world=(1, 2), weight_decay=0.5, betas=(0.5, 0.9), clip=0.25)
    assert two.param_groups[0]["weight_decay"] == 0.1 and two.clip == 1.0
    assert two.param_groups[0]["betas"] == (0.9, 0.999)
    assert "goes on with the settings that it has" in caplog.text
    assert tuned(two)["hyper"] == {}
    one.go()
    one.wait()
    two.close()


# --- what changes in mid-run ---


KINDS = {"adamw": (torch.optim.AdamW, {}), "adam": (torch.optim.Adam, {"weight_decay": 0.1}),
         "sgd": (torch.optim.SGD, {"momentum": 0.9}), "plain": (torch.optim.SGD, {}),
         "adagrad": (torch.optim.Adagrad, {})}


@pytest.mark.parametrize("grads", ["push", "keep"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_weight_decay_of_each_step(address, kind, grads):
    """A schedule of the weight decay of one group counts in the very step that is made."""
    cls, words = KINDS[kind]

    def groups(m):
        return [{"params": list(m[0].parameters())}, {"params": list(m[2].parameters())}]

    def change(opt, k):
        opt.param_groups[1]["weight_decay"] = 0.1 * (k + 1)

    a, b = net(), net()
    opt = make(groups(a), address, {"plain": "sgd"}.get(kind, kind), grads=grads, **words)
    theirs = cls(groups(b), lr=1e-2, **words)
    train(a, opt, 6, before=change)
    train(b, theirs, 6, before=change)
    assert opt.global_step == opt.applied == 6
    assert differ(a, b) < 1e-6
    # One step later would be seen.
    train(c := net(), late := cls(groups(c), lr=1e-2, **words), 6,
          before=lambda opt, k: change(opt, k - 1) if k else None)
    assert differ(a, c) > 1e-5
    opt.close()


@pytest.mark.parametrize("kind, words", [("adamw", {}), ("sgd", {"momentum": 0.9})])
def test_one_cycle_moves_the_momentum(address, kind, words):
    a, b = net(), net()
    opt = make(a, address, kind, **words)
    theirs = KINDS[kind][0](b.parameters(), lr=1e-2, **words)
    for m, o in ((a, opt), (b, theirs)):
        s = torch.optim.lr_scheduler.OneCycleLR(o, 1e-2, total_steps=12)
        train(m, o, 10, after=s.step)
    assert differ(a, b) < 1e-6
    opt.close()


@pytest.mark.parametrize("change", [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_momentum_cannot_begin_later(address, change):
    """There is no buffer for it, in mid-run and in a model that exists."""
    opt = make(a := net(), address, "sgd")
    train(a, opt, 2)
    opt.param_groups[0].update(change)
    with pytest.raises(RuntimeError, match="group 0 changed from 0.* cannot follow"):
        loss(a).backward()
    opt.close(drop=False)
    with pytest.raises(shardd.Mismatch, match="momentum of group g0: 0.9 here, 0 there"):
        make(net(), address, "sgd", **change)


def test_a_change_after_the_push_is_refused(address):
    opt = make(a := net(), address)
    loss(a).backward()
    opt.param_groups[0]["weight_decay"] = 0.3
    with pytest.raises(RuntimeError, match=r"weight_decay of group 0 changed from 0\.01 to 0\.3"):
        opt.step()
    opt.param_groups[0]["weight_decay"] = 0.01
    opt.step()
    assert opt.global_step == 1
    opt.param_groups[0]["eps"] = -1.0
    with pytest.raises(shardd.Error, match="eps"):
        loss(a).backward()
    opt.param_groups[0]["eps"] = 1e-8
    opt.zero_grad()
    train(a, opt, 1)
    assert opt.global_step == 2
    opt.close()


def test_ranks_change_it_alike(ranks, tmp_path):
    """Two ranks, of which one is late at each step, with a weight decay that moves: as torch on
    the samples of both, and no step is skipped."""
    said = ranks("""
        import os, time, torch, shardd
        from test_settings import net, loss
        rank = int(os.environ["RANK"])
        opt = shardd.AdamW(m := net(), lr=1e-2, name="m")
        skipped = 0
        for k in range(12):
            opt.param_groups[0]["weight_decay"] = 0.1 * (1 + k // 2)
            opt.param_groups[0]["betas"] = (0.9 - 0.01 * k, 0.999)
            time.sleep(0.03 * (k % 2 == rank))
            loss(m, 2 * k + rank).backward()
            opt.step()
            skipped += opt.step_was_skipped
            opt.zero_grad()
        say(skipped=skipped, at=opt.global_step, w=[p.tolist() for p in m.parameters()])
        opt.close()
    """, 2)
    opt = torch.optim.AdamW((m := net()).parameters(), lr=1e-2)
    for k in range(12):
        opt.param_groups[0].update(weight_decay=0.1 * (1 + k // 2), betas=(0.9 - 0.01 * k, 0.999))
        ((loss(m, 2 * k) + loss(m, 2 * k + 1)) / 2).backward()
        opt.step()
        opt.zero_grad()
    for (one,) in said:
        assert (one["skipped"], one["at"]) == (0, 12)
        assert all((torch.tensor(w) - p).abs().max() < 1e-6
                   for w, p in zip(one["w"], m.parameters()))


def test_one_rank_alone_cannot_change_it(start):
    code = """
        import os, shardd
        from test_settings import net, loss, tuned
        opt = shardd.AdamW(m := net(), lr=1e-2, name="m", timeout=3)
        if os.environ["RANK"] == "1":
            opt.param_groups[0]["weight_decay"] = 0.5
        try:
            loss(m).backward()
            opt.step()
        except shardd.Error as e:
            say(error=str(e), there=tuned(opt)["hyper"])
    """
    two = [start(code, r, 2) for r in range(2)]
    error = two[1].wait()[1][0]
    assert "weight_decay of group g0: 0.5 here, 0.01 there" in error["error"]
    assert "all ranks change param_groups alike" in error["error"] and error["there"] == {}
    two[0].wait()


# --- schedulers ---


def test_a_scheduler_of_the_one_that_is_taken_over(address):
    a, b = net(), net()
    before = torch.optim.AdamW(a.parameters(), lr=1e-2)
    s = torch.optim.lr_scheduler.StepLR(before, 1, 0.1)
    opt = make(a, address, before, lr=None)
    assert opt.param_groups is before.param_groups
    theirs = torch.optim.AdamW(b.parameters(), lr=1e-2)
    train(a, opt, 3, after=s.step)
    train(b, theirs, 3, after=torch.optim.lr_scheduler.StepLR(theirs, 1, 0.1).step)
    assert opt.result.lr == pytest.approx(1e-4) and differ(a, b) < 1e-6
    opt.close()


def test_groups_with_a_schedule_of_the_daemons(address):
    a, b = net(), net()

    def groups(m):
        return [{"params": list(m[0].parameters()), "lr": 1e-2},
                {"params": list(m[2].parameters()), "lr": 1e-4}]

    opt = make(groups(a), address, schedule="WarmupLR", warmup_num_steps=4, warmup_max_lr=1e-2,
               warmup_type="linear")
    theirs, rates = torch.optim.AdamW(groups(b)), []
    for k in range(6):
        train(a, opt, 1, k)
        rates.append(opt.result.lr)
        theirs.param_groups[0]["lr"], theirs.param_groups[1]["lr"] = rates[-1], rates[-1] / 100
        train(b, theirs, 1, k)
    assert rates[0] < rates[-1] == 1e-2
    assert [g["lr"] for g in opt.param_groups] == pytest.approx([1e-2, 1e-4])
    assert differ(a, b) < 1e-6
    state = opt.state_dict()
    state["param_groups"][0]["lr"] = 0.7
    opt.load_state_dict(state)
    train(a, opt, 1)
    opt.param_groups[1]["lr"] = 0.5
    loss(a).backward()
    with pytest.raises(RuntimeError, match="lr of group 1 was changed .* schedule= gives it"):
        opt.step()
    opt.close()


ELASTIC = """
    import time, shardd, torch
    from test_settings import net, loss
    opt = shardd.AdamW(m := net(), lr=1e-2, name="m", world=(1, 2), timeout=60,
                       on_change={change!r})
    at = opt.global_step
    say(at=at)
    s = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
    def scheduled():
        while {catches_up} and s.last_epoch < opt.applied:
            s.step()
        if not {catches_up} and opt.result is not None and not opt.step_was_skipped:
            s.step()
    scheduled()
    k = skipped = size = 0
    while opt.global_step < {end}:
        loss(m, k).backward()
        k += 1
        try:
            opt.step()
        except shardd.WorldChanged:
            skipped += 1
            continue
        skipped += opt.step_was_skipped
        size = max(size, opt.world_size)
        scheduled()
        opt.zero_grad()
        if opt.global_step == 5:
            say(at=5)
            sys.stdin.readline()
        time.sleep(0.02)
    say(at=opt.global_step, began=at, skipped=skipped, size=size)
    opt.close(drop=False)
"""


def elastic(start, change, catches_up):
    """One trains, and a second one comes at step 5. Status, what it said and stderr of each."""
    old = start(ELASTIC.format(change=change, catches_up=catches_up, end=40), None)
    while old.hear()["at"] != 5:
        pass
    new = start(ELASTIC.format(change="skip", catches_up=catches_up, end=40), None)
    assert new.hear() == {"at": 5}
    old.go()
    return old.wait(), new.wait()


@pytest.mark.parametrize("change", ["skip", "raise"])
def test_a_newcomer_with_a_scheduler_that_is_behind(start, change):
    """It ends in a sentence that says what to do, and the others go on."""
    (status, said, told), (other, _, err) = elastic(start, change, False)
    assert status == 0, told
    assert said[-1]["at"] == 40 and said[-1]["skipped"] >= 1
    assert "lr of group 0: rank" in told and "is made again" in told
    assert other == 1 and "while sched.last_epoch < opt.applied" in err and "gave 0.01" in err


def test_a_newcomer_whose_scheduler_goes_on(start):
    """It has made the steps that counted, and has the learning rate of the others."""
    for status, said, err in elastic(start, "skip", True):
        assert status == 0, err
        assert said[-1]["at"] == 40 and said[-1]["size"] == 2
        assert "UserWarning" not in err


# --- state ---


def test_state_of_distributed_checkpoint(address, tmp_path):
    """get_state_dict() of a shardd optimizer has the moments, and another goes on with them."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (get_optimizer_state_dict, get_state_dict,
                                                         set_optimizer_state_dict)
    a, c = net(), net()
    opt, theirs = make(a, address, name="x"), torch.optim.AdamW(c.parameters(), lr=1e-2)
    train(a, opt, 5)
    train(c, theirs, 5)
    assert "shardd" in opt.state_dict() and not opt.state_dict()["state"]
    weights, moments = get_state_dict(a, opt)
    dcp.save({"m": weights, "o": moments}, checkpoint_id=tmp_path, no_dist=True)
    opt.close()
    b = net()
    state = {"m": b.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    b.load_state_dict(state["m"])
    opt = make(b, address, name="y")
    state = {"o": get_optimizer_state_dict(b, opt)}
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    set_optimizer_state_dict(b, opt, optim_state_dict=state["o"])
    assert opt.applied == 5
    train(b, opt, 5, 5)
    train(c, theirs, 5, 5)
    assert differ(b, c) < 1e-6
    opt.close()


def test_a_reference_is_of_its_model(address):
    a, b = make(net(), address, name="x"), make(net(), address, name="y", weight_decay=0.5)
    with pytest.raises(RuntimeError, match="step 0 of model 'x', and model 'y'"):
        b.load_state_dict(a.state_dict())
    assert b.param_groups[0]["weight_decay"] == 0.5
    a.load_state_dict(a.state_dict())
    a.close()
    b.close()


# --- words of torch ---


def test_words_that_change_nothing(address):
    opt = shardd.AdamW(m := net(), lr=1e-2, address=address, name="m", fused=True, foreach=False,
                       amsgrad=False, maximize=False, capturable=False, differentiable=False)
    train(m, opt, 1)
    opt.close()


@pytest.mark.parametrize("word", ["amsgrad", "maximize", "differentiable"])
def test_words_that_would_change_something(address, word):
    with pytest.raises(TypeError, match=f"{word}=True is not kept by shardd"):
        shardd.AdamW(net(), address=address, **{word: True})


def test_adam_with_decoupled_weight_decay(address):
    words = {"lr": 1e-2, "weight_decay": 0.5, "decoupled_weight_decay": True}
    opt = shardd.Adam(a := net(), address=address, name="m", **words)
    train(a, opt, 3)
    train(b := net(), torch.optim.Adam(b.parameters(), **words), 3)
    assert opt.kind == "adamw" and differ(a, b) < 1e-6
    opt.close()
    with pytest.raises(TypeError, match="decoupled_weight_decay=False of adamw"):
        shardd.AdamW(net(), address=address, decoupled_weight_decay=False)


def test_lr_that_is_a_tensor(address):
    a, b = net(), net()
    for opt in (make([{"params": list(a.parameters()), "lr": torch.tensor(1e-2)}], address),
                make(b, address, torch.optim.AdamW(b.parameters(), lr=torch.tensor(1e-2)),
                     lr=None, name="taken")):
        train({"m": a, "taken": b}[opt.name], opt, 2)
        assert opt.result.lr == pytest.approx(1e-2)
        opt.close()
    assert differ(a, b) == 0


def test_state_of_a_scaler(address, caplog):
    m = net().half()
    opt = make(m, address, loss_scale="dynamic")
    s = shardd.GradScaler(opt)
    s.scale(((m(X.half()) - Y.half()) ** 2).mean()).backward()
    s.step(opt)
    s.update()
    state = s.state_dict()
    assert state == {"scale": s.get_scale(), "shardd": "m"}
    s.load_state_dict(state)
    assert not caplog.text
    s.load_state_dict(torch.amp.GradScaler("cpu", init_scale=2.0).state_dict())
    assert "has scale 2" in caplog.text
    opt.close()


def test_tls_is_that_of_the_connection(tmp_path):
    """It reaches the library, which looks at the certificates before it connects."""
    with pytest.raises(shardd.Error, match=f"tls_cert {tmp_path}/tls.crt"):
        shardd.Optimizer(net(), name="tls", address="tcp://127.0.0.1:1", tls=str(tmp_path))

# SPDX-License-Identifier: Apache-2.0
"""DeepSpeedEngine against plain torch and against the real DeepSpeed, and what it refuses."""

import contextlib
import dataclasses
import json
import logging
import os
import socket

import pytest
import torch

import models
import shardd
import shardd.deepspeed as deepspeed

HEAD = """
import torch, models, os
torch.set_num_threads(1)
"""

# One script, for shardd and for the real one: it only imports another module.
EITHER = HEAD + """
import json
o = json.loads(os.environ["OPTIONS"])
if o["real"]:
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    for op in deepspeed.ops.__compatible_ops__:  # Nothing is to be compiled here.
        deepspeed.ops.__compatible_ops__[op] = False
else:
    import shardd.deepspeed as deepspeed
"""

SCRIPT = EITHER + """
torch.manual_seed(0)
model = models.GPT()
engine, opt, _, sched = deepspeed.initialize(model=model, config=o["config"],
                                             model_parameters=list(model.parameters()))
gas = engine.gradient_accumulation_steps()
losses, norms, rates = [], [], []
for step in range(o["steps"]):
    total = 0.0
    for micro in range(gas):
        if o["boundary"]:
            engine.set_gradient_accumulation_boundary(micro == gas - 1)
        x, y = models.tokens(step * gas + micro, engine.global_rank)
        loss = engine(x, y)
        total += loss.item() / gas
        if o["plain"]:
            loss.backward()
        else:
            engine.backward(loss)
        if not o["boundary"] or micro == gas - 1:
            engine.step()
    losses.append(total)
    norms.append(float(engine.get_global_grad_norm() or 0))
    rates.append(engine.get_lr())
say(losses=losses, norms=norms, rates=rates, steps=engine.global_steps,
    samples=engine.global_samples, micro=engine.micro_steps)
if not o["real"]:
    engine.destroy()
"""


def config(stage=2, gas=1, **more):
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": gas,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01,
                                                      "torch_adam": True}},
            "zero_optimization": {"stage": stage}, "zero_force_ds_cpu_optimizer": False, **more}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


@pytest.fixture
def train(ranks):
    def run(n=1, real=False, steps=5, boundary=False, plain=False, **words):
        options = {"real": real, "config": config(**words), "steps": steps, "boundary": boundary,
                   "plain": plain}
        return [r[0] for r in ranks(SCRIPT, n, OPTIONS=json.dumps(options),
                                    MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(),
                                    LOCAL_SIZE=n)]
    return run


def reference(n=1, gas=1, steps=5, clip=1.0):
    """The same training by torch alone, in one process."""
    torch.manual_seed(0)
    model = models.GPT()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    losses, norms = [[] for _ in range(n)], []
    for step in range(steps):
        opt.zero_grad()
        for r in range(n):
            total = 0.0
            for micro in range(gas):
                loss = model(*models.tokens(step * gas + micro, r))
                total += loss.item() / gas
                (loss / gas / n).backward()
            losses[r].append(total)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip)))
        opt.step()
    return losses, norms


@pytest.mark.parametrize("n, words", [
    (1, dict(stage=0)), (1, dict(stage=2, gas=3)), (1, dict(stage=3, gas=2, boundary=True)),
    (2, dict(stage=2, gas=2, boundary=True)), (1, dict(stage=1, gas=2, plain=True)),
    (1, dict(stage=2, shardd={"overlap": True}, gas=2))], ids=str)
def test_equals_torch(train, n, words):
    got = train(n, **words)
    losses, norms = reference(n, words.get("gas", 1))
    for r in range(n):
        assert got[r]["losses"] == pytest.approx(losses[r], abs=2e-4)
        assert got[r]["norms"] == pytest.approx(norms, rel=2e-3)
    assert got[0]["steps"] == 5
    assert got[0]["samples"] == 5 * 2 * n * words.get("gas", 1)


@pytest.mark.slow
@pytest.mark.parametrize("n, words", [
    (1, dict(stage=1, gas=2)), (2, dict(stage=2, scheduler={
        "type": "WarmupDecayLR", "params": {"total_num_steps": 6, "warmup_num_steps": 3,
                                            "warmup_max_lr": 1e-2}})),
    (1, dict(stage=2, gradient_clipping=0.1)), (2, dict(stage=0, gas=2)),
    (1, dict(stage=3, gas=2, boundary=True))], ids=str)
def test_equals_the_real_one(train, n, words):
    got, want = train(n, **words), train(n, real=True, **words)
    for a, b in zip(got, want):
        assert a["losses"] == pytest.approx(b["losses"], abs=2e-4)
        if any(b["norms"]):  # Without ZeRO it tells none.
            assert a["norms"] == pytest.approx(b["norms"], rel=2e-3)
        assert a["rates"] == b["rates"]
        assert (a["steps"], a["samples"]) == (b["steps"], b["samples"])


DTYPES = EITHER + """
class Turning(torch.nn.Module):
    _keep_in_fp32_modules_strict = ["turn_*bias"]
    def __init__(self):
        super().__init__()
        self.line, self.batch = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
        self.register_buffer("inv_freq", 1 / 10000 ** (torch.arange(0, 8, 2) / 8), persistent=False)
        self.register_buffer("turn_no_bias", torch.tensor([1 / 3]).half())
    def forward(self, x):
        return self.batch(self.line(x)) * self.inv_freq.repeat(2)

out = []
for words in o["words"]:
    torch.manual_seed(0)
    model = Turning()
    outer = torch.nn.Sequential(model)
    engine = deepspeed.initialize(model=outer, model_parameters=list(outer.parameters()),
                                  config={**o["config"], **words})[0]
    out.append({k: [str(v.dtype), v.double().tolist()]
                for k, v in (*outer.named_buffers(), *outer.named_parameters())
                if "line" not in k or k.endswith("bias")})
    if not o["real"]:
        engine.destroy()
say(out=out)
"""
BF16, FP16 = {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}
CASTS = [FP16, BF16, {}, {"data_types": {"buffer_dtype": "bf16"}},
         *({**BF16, "data_types": d} for d in (
             {"buffer_dtype": "fp32"}, {"buffer_dtype": "bf16"},
             {"buffer_dtype": "bf16", "keep_in_fp32_modules": ["running_*", "batch"]},
             {"buffer_dtype": "bf16", "keep_in_fp32_modules": []},
             {"buffer_dtype": "fp16", "keep_in_fp32_modules": "auto"}))]


def casts(ranks, real):
    options = {"real": real, "words": CASTS[1:], "config": config(stage=1)}
    if not real:  # The real one has no fp16 on a CPU.
        options["words"] = CASTS
    return ranks(DTYPES, OPTIONS=json.dumps(options), MASTER_ADDR="127.0.0.1",
                 MASTER_PORT=free_port(), LOCAL_SIZE=1)[0][0]["out"]


def test_buffers_keep_their_dtype(ranks):
    """inv_freq of rotary embeddings and statistics stay fp32 while parameters are bf16."""
    fp16, bf16, fp32, _, same, cast, kept, none, auto = casts(ranks, False)
    for got, dtype in ((bf16, "bfloat16"), (fp16, "float16"), (fp32, "float32")):
        assert got["0.batch.weight"][0] == f"torch.{dtype}"
        assert got["0.inv_freq"] == ["torch.float32", (1 / 10000 ** (
            torch.arange(0, 8, 2) / 8)).double().tolist()]
        assert got["0.batch.running_var"][0] == "torch.float32"
        assert got["0.batch.num_batches_tracked"][0] == "torch.int64"
    assert same == bf16
    assert cast["0.inv_freq"][0] == cast["0.batch.running_mean"][0] == "torch.bfloat16"
    assert cast["0.inv_freq"][1][1] == torch.tensor(0.1).bfloat16().item()
    assert [kept[f"0.{k}"][0] for k in ("inv_freq", "batch.running_mean", "turn_no_bias",
                                        "batch.weight")] == [
        "torch.bfloat16", "torch.float32", "torch.bfloat16", "torch.bfloat16"]
    assert none["0.turn_no_bias"][0] == "torch.bfloat16"
    assert bf16["0.turn_no_bias"][0] == auto["0.turn_no_bias"][0] == "torch.float32"


@pytest.mark.slow
def test_buffers_have_the_dtypes_of_the_real_one(ranks):
    assert casts(ranks, False)[1:] == casts(ranks, True)


ADAMS = EITHER + """
out = []
for name, params in o["adams"]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    words = {**o["config"], "optimizer": {"type": name, "params": {
        "lr": 1e-2, "torch_adam": True, **params}}}
    engine = deepspeed.initialize(model=model, model_parameters=list(model.parameters()),
                                  config=words)[0]
    for i in range(4):
        engine.backward(engine(torch.ones(2, 4) * i).sum())
        engine.step()
    out.append(model.weight.detach().flatten().tolist())
    if not o["real"]:
        engine.destroy()
say(out=out)
"""


@pytest.mark.slow
def test_weight_decay_of_adam_is_that_of_the_real_one(ranks):
    much = {"weight_decay": 0.5}
    adams = [("Adam", much), ("Adam", {**much, "adam_w_mode": True}),
             ("Adam", {**much, "adam_w_mode": False}), ("AdamW", much),
             ("AdamW", {**much, "adam_w_mode": False}), ("AdamW", {}), ("Adam", {}),
             ("Adam", {"adam_w_mode": False})]
    got, want = (ranks(ADAMS, OPTIONS=json.dumps({"real": real, "adams": adams,
                                                  "config": config(stage=1)}),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), LOCAL_SIZE=1)[0][0]["out"]
                 for real in (False, True))
    for (name, words), a, b in zip(adams, got, want):
        assert a == pytest.approx(b, abs=1e-6), (name, words)
    assert got[0] == got[1] == got[3] == got[4] != got[2]
    assert got[5] == got[6] != got[7]


MOMENTA = EITHER + """
out = []
for kind, params in (("AdamW", {"betas": [0.8, 0.95]}), ("SGD", {"momentum": 0.7})):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    words = {**o["config"], "optimizer": {"type": kind, "params": {
        "lr": 1e-2, **params, **({"torch_adam": True} if kind == "AdamW" else {})}},
        "scheduler": {"type": "OneCycle", "params": {
            "cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 3}}}
    engine = deepspeed.initialize(model=model, model_parameters=list(model.parameters()),
                                  config=words)[0]
    for i in range(7):
        out.append([engine.get_lr(), [list(m) if isinstance(m, (list, tuple)) else m
                                      for m in engine.get_mom()]])
        engine.backward(engine(torch.ones(2, 4)).sum())
        engine.step()
    out.append(model.weight.detach().flatten().tolist())
    if not o["real"]:
        engine.destroy()
say(out=out)
"""


def momenta(ranks, real):
    options = {"real": real, "config": {**config(stage=1), "zero_allow_untested_optimizer": True}}
    return ranks(MOMENTA, OPTIONS=json.dumps(options), MASTER_ADDR="127.0.0.1",
                 MASTER_PORT=free_port(), LOCAL_SIZE=1)[0][0]["out"]


def test_get_mom_moves_with_one_cycle(ranks):
    got = momenta(ranks, False)
    assert [m[1][0][0] for m in got[:7]] == pytest.approx(
        [0.8, 0.9 - 0.1 / 3, 0.9 - 0.2 / 3, 0.8, 0.9 - 0.2 / 3, 0.9 - 0.1 / 3, 0.9])
    assert {m[1][0] for m in got[8:15]} == {0.7}


@pytest.mark.slow
def test_get_mom_is_that_of_the_real_one(ranks):
    for a, b in zip(momenta(ranks, False), momenta(ranks, True)):
        if len(a) == 2:
            assert a[0] == pytest.approx(b[0]) and torch.tensor(a[1]).allclose(torch.tensor(b[1]))
        else:
            assert a == pytest.approx(b, abs=1e-6)


def make(address, model=None, **words):
    torch.manual_seed(0)
    model = model or models.GPT()
    words.setdefault("shardd", {}).setdefault("address", address)
    return deepspeed.initialize(model=model, config=config(**words))[0]


def test_bf16_trains_in_bf16(address):
    with_bf16 = make(address, bf16={"enabled": True}, gas=2)
    assert {p.dtype for p in with_bf16.module.parameters()} == {torch.bfloat16}
    first = last = None
    for i in range(12):
        loss = with_bf16(*models.tokens(0, 0))
        with_bf16.backward(loss)
        with_bf16.step()
        first, last = first if first is not None else loss.item(), loss.item()
    assert last < first - 0.5
    assert with_bf16.global_steps == 6
    p = next(with_bf16.module.parameters())
    master = deepspeed.utils.safe_get_full_fp32_param(p)
    assert torch.equal(master.bfloat16(), p.detach())
    with_bf16.destroy()


OVERFLOWS = [0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("words", [
    {"initial_scale_power": 8, "loss_scale_window": 3},
    {"initial_scale_power": 6, "loss_scale_window": 2, "hysteresis": 1},
    {"initial_scale_power": 6, "loss_scale_window": 4, "hysteresis": 3,
     "consecutive_hysteresis": True}], ids=str)
def test_loss_scale_is_that_of_deepspeed(address, words, monkeypatch):
    """The same list of scales, and the same steps skipped, for the same overflows."""
    theirs = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler")
    monkeypatch.setattr(theirs.dist, "get_rank", lambda *a: 1)  # It asks before it logs.
    scaler = theirs.DynamicLossScaler(
        init_scale=2 ** words["initial_scale_power"], scale_window=words["loss_scale_window"],
        min_scale=1, delayed_shift=words.get("hysteresis", 2),
        consecutive_hysteresis=words.get("consecutive_hysteresis", False),
        raise_error_at_min_scale=False, dtype=torch.float16)
    model = torch.nn.Linear(4, 4)
    engine = make(address, model, stage=2, fp16={"enabled": True, **words})
    want, got = [], []
    for bad in OVERFLOWS:
        want.append(float(scaler.cur_scale))
        got.append(engine.optimizer.cur_scale)
        x = torch.ones(2, 4).half()
        loss = engine(x).float().sum() * (float("inf") if bad else 1e-3)
        engine.backward(loss)
        engine.step()
        assert engine.was_step_applied() == (not bad)
        assert engine.optimizer.overflow == bool(bad)
        scaler.update_scale(bool(bad))
    assert got == want and len(set(got)) > 1
    assert engine.skipped_steps == sum(OVERFLOWS)
    engine.destroy()


def test_a_gradient_of_the_script_is_scaled_already(address):
    """As in stage 0 of DeepSpeed, in fp16: what the script writes into .grad. And whoever holds the
    loss scaler sees the loss scale as it is now."""
    engine = make(address, torch.nn.Linear(1, 1), fp16={"enabled": True, "initial_scale_power": 8,
                                                        "loss_scale_window": 2, "hysteresis": 1},
                  optimizer={"type": "SGD", "params": {"lr": 1.0}}, stage=0, gradient_clipping=0.0)
    scaler, before = engine.optimizer.loss_scaler, engine.module.weight.item()
    assert engine.optimizer.dynamic_loss_scale and scaler.scale_window == 2
    for n, (value, scale) in enumerate([(64, 256), (64, 256), (64, 512), (float("inf"), 256)]):
        for p in engine.parameters():
            p.grad = torch.full_like(p, value)
        engine.step()
        assert (scaler.cur_scale, scaler.cur_iter) == (scale, n + 1)
    master = deepspeed.utils.safe_get_full_fp32_param(engine.module.weight).item()
    assert master == pytest.approx(before - 3 * 64 / 256)
    engine.destroy()


def test_scheduler_waits_for_an_applied_step(address):
    engine = make(address, torch.nn.Linear(4, 4), fp16={"enabled": True, "initial_scale_power": 4},
                  scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 5,
                                                            "warmup_max_lr": 1e-2}})
    for bad, at in ((0, 0), (1, 0), (0, 1), (1, 1)):
        engine.backward(engine(torch.ones(2, 4).half()).sum() * (float("inf") if bad else 1e-2))
        engine.step()
        assert engine.lr_scheduler.last_batch_iteration == at
    engine.destroy()


def test_one_cycle_moves_momentum_in_the_daemons(address):
    words = {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 3}
    engine = make(address, scheduler={"type": "OneCycle", "params": words})
    for i in range(4):
        rate = engine.lr_scheduler.get_last_lr()[0]
        engine.backward(engine(*models.tokens(i, 0)))
        engine.step()
        assert engine.optimizer.result.lr == pytest.approx(rate, rel=1e-12)
    engine.destroy()


def test_schedulers_of_torch_write_param_groups(address):
    engine = make(address, scheduler={"type": "StepLR", "params": {"step_size": 1, "gamma": 0.5}})
    for i in range(3):
        engine.backward(engine(*models.tokens(i, 0)))
        engine.step()
        assert engine.optimizer.result.lr == pytest.approx(1e-2 * 0.5 ** i)
    engine.destroy()


def test_optimizer_of_the_user_is_taken_over(address):
    """Groups, and a scheduler that was made for it beforehand."""
    torch.manual_seed(0)
    model = models.GPT()
    theirs = torch.optim.AdamW([{"params": [model.place], "lr": 1e-3, "weight_decay": 0.0},
                                {"params": [p for n, p in model.named_parameters()
                                            if n != "place"]}], lr=1e-2)
    sched = torch.optim.lr_scheduler.LambdaLR(theirs, lambda i: 1 / (1 + i))
    words = config(shardd={"address": address})
    del words["optimizer"]
    engine, opt, _, _ = deepspeed.initialize(model=model, optimizer=theirs, config=words)
    for i in range(3):
        engine.backward(engine(*models.tokens(i, 0)))
        engine.step()
        assert opt.result.lr == pytest.approx(1e-3 / (1 + i))
        sched.step()
    assert {r.name for r in opt._rows} == {n for n, p in model.named_parameters()}
    engine.destroy()


def test_unmanaged_accumulation_and_many_backward_passes(address):
    engine = make(address, managed_gradient_accumulation=False, gas=1)
    for n in (1, 3, 2):
        for i in range(n):
            engine.backward(engine(*models.tokens(i, 0)))
            assert not engine.is_gradient_accumulation_boundary()
        engine.step()
        assert engine.was_step_applied()
    assert (engine.global_steps, engine.global_samples) == (3, 12)
    with pytest.raises(AssertionError, match="caller owns"):
        engine.set_gradient_accumulation_boundary(True)
    engine.destroy()


@pytest.mark.parametrize("words", [
    *({"stage": stage} for stage in range(4)), {"plain": True}, {"gas": 2},
    {"managed_gradient_accumulation": False}], ids=str)
def test_a_clip_by_hand_says_what_to_do(address, words):
    """torch's clip_grad_norm_() would return 0.0, and not clip."""
    plain, gas = words.pop("plain", False), words.get("gas", 1)
    engine, norms = make(address, gradient_clipping=0.0, **words), []
    ours = list(engine.parameters())
    for step in range(2):
        for micro in range(gas):
            for half in range(2):  # Two losses of one forward pass.
                loss = engine(*models.tokens(step * gas + micro, 0)) / 2
                if plain:
                    loss.backward()
                else:
                    engine.backward(loss)
            if micro < gas - 1:
                assert all(p.grad is None for p in ours)
                engine.step()
        for call in (lambda: torch.nn.utils.clip_grad_norm_(ours, 1.0),
                     lambda: ours[0].grad.mul_(0), lambda: ours[0].grad.norm()):
            with pytest.raises(RuntimeError, match="say gradient_clipping in the ds_config"):
                call()
        assert deepspeed.utils.safe_get_full_grad(ours[0]).any()
        engine.step()
        norms.append(engine.get_global_grad_norm())
        assert all(p.grad is None for p in ours)
    assert norms == pytest.approx(reference(gas=gas, steps=2, clip=1e9)[1], rel=1e-4)
    engine.destroy()


def test_a_gradient_after_the_last_one_says_what_to_do(address):
    engine = make(address)
    engine.backward(engine(*models.tokens(0, 0)))
    with pytest.raises(RuntimeError, match="not by engine.backward"):
        engine.module(*models.tokens(0, 0)).backward()
    engine.zero_grad()
    assert all(p.grad is None for p in engine.parameters())
    for i in range(2):  # Without the engine they are summed, too.
        engine.module(*models.tokens(i, 0)).backward()
    engine.step()
    assert engine.was_step_applied()
    engine.destroy()


class Several(torch.nn.Module):
    """What it returns: a tensor, or one in an object."""

    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 8)

    def forward(self, x, wrapped=False):
        x = self.line(x).tanh()
        return Wrapped(x) if wrapped else x


@dataclasses.dataclass
class Wrapped:
    x: torch.Tensor


LOSSES = {
    "once": lambda m, x: m(x).square().mean(),
    "twice": lambda m, x: m(m(x)).square().mean(),
    "three times": lambda m, x: m(m(m(x).relu() + x) * 2).square().mean(),
    "both": lambda m, x: sum(y.square().mean() for y in (m(x), m(m(x)))),
    "mixed": lambda m, x: (lambda y: (m(x=y * y) + y).square().mean())(m(x)),
    "object": lambda m, x: m(m(x, True).x, wrapped=True).x.square().mean()}


@pytest.mark.parametrize("plain", (True, False))
@pytest.mark.parametrize("name", LOSSES)
def test_a_model_that_is_used_more_than_once(address, name, plain):
    """The loss is divided by the accumulation steps once, however often it went through."""
    torch.manual_seed(0)
    model, other = Several(), Several()
    other.load_state_dict(model.state_dict())
    engine = make(address, model, gas=3, gradient_clipping=0.0)
    for i in range(3):
        x = torch.randn(2, 8)
        loss = LOSSES[name](engine, x)
        if plain:
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()
        (LOSSES[name](other, x) / 3).backward()
    want = torch.stack([p.grad.norm() for p in other.parameters()]).norm()
    assert engine.get_global_grad_norm() == pytest.approx(float(want), rel=1e-5)
    engine.destroy()


def test_fp16_twice_through_is_for_backward_of_the_engine(address):
    engine = make(address, Several(), fp16={"enabled": True, "initial_scale_power": 4})
    x = torch.randn(2, 8).half()
    with pytest.raises(RuntimeError, match=r"call engine.backward\(loss\)"):
        engine(engine(x)).float().square().mean().backward()
    engine.zero_grad()
    engine.backward(engine(engine(x)).float().square().mean())
    engine.step()
    assert engine.was_step_applied()
    engine.destroy()


@pytest.mark.parametrize("words", [{}, {"fp16": {"enabled": True, "initial_scale_power": 8}}],
                         ids=["fp32", "fp16"])
def test_scale_is_for_a_backward_of_the_script(address, words):
    """engine.scale(loss).backward() does what engine.backward(loss) does, in each pass."""
    norms = []
    for by_hand in (False, True):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        engine = make(address, model, gas=2, shardd={"name": f"scale{int(by_hand)}"}, **words)
        dtype = model[0].weight.dtype
        for k in range(6):
            loss = engine(torch.full((3, 4), 0.25 * (k + 1), dtype=dtype)).sum()
            if by_hand:
                engine.scale(loss).backward()
            else:
                engine.backward(loss)
            engine.step()
            if k % 2:
                norms.append(float(engine.get_global_grad_norm()))
        with pytest.raises(AssertionError, match="scalar tensor with grad_fn"):
            engine.scale(torch.ones(2))
        engine.destroy()
    assert norms[:3] == pytest.approx(norms[3:], rel=1e-3) and min(norms) > 1


def test_log_level(address, monkeypatch):
    monkeypatch.delattr(logging, "getLevelNamesMapping", raising=False)  # Python 3.10 has none.
    level = logging.getLogger("shardd").level
    try:
        make(address, torch.nn.Linear(2, 2), log_level="error").destroy()
        assert logging.getLogger("shardd").level == logging.ERROR
        with pytest.raises(deepspeed.ConfigError, match="log_level is 'loud'"):
            make(address, torch.nn.Linear(2, 2), log_level="loud")
    finally:
        logging.getLogger("shardd").setLevel(level)


def test_no_sync(address):
    engine = make(address, stage=1)
    with engine.no_sync():
        engine.backward(engine(*models.tokens(0, 0)))
        with pytest.raises(AssertionError, match="illegal"):
            engine.step()
        with pytest.raises(AssertionError, match="reentry"), engine.no_sync():
            pass
    engine.backward(engine(*models.tokens(1, 0)))
    engine.step()
    assert engine.was_step_applied()
    engine.destroy()
    other = make(address, stage=2)
    with pytest.raises(AssertionError, match="incompatible"), other.no_sync():
        pass
    other.destroy()


def test_coalesce_grad_reduction(address):
    """The norm of a step is that of a loop without it. The boundary has one owner."""
    norms = []
    for coalesced in (False, True):
        engine = make(address, stage=1, gas=2)
        with engine.coalesce_grad_reduction() if coalesced else contextlib.nullcontext():
            for k in range(2):
                engine.backward(engine(*models.tokens(k, 0)))
        engine.allreduce_gradients()
        engine.set_gradient_accumulation_boundary(True)
        engine.step()
        assert engine.was_step_applied()
        norms.append(engine.get_global_grad_norm())
        engine.destroy()
    assert norms[0] == norms[1] > 0
    engine = make(address, managed_gradient_accumulation=False)
    with pytest.raises(AssertionError, match="managed_gradient_accumulation"), \
            engine.coalesce_grad_reduction():
        pass
    engine.destroy()


def test_checkpoint_again_and_again(address, tmp_path):
    """What was saved comes back exactly, also into an engine that has gone on since."""
    engine = make(address, gas=2, scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 4}})

    def go(first, last):
        out = []
        for i in range(2 * first, 2 * last):
            loss = engine(*models.tokens(i, 0))
            engine.backward(loss)
            engine.step()
            out.append(loss.item())
        return out

    go(0, 3)
    engine.save_checkpoint(tmp_path, client_state={"epoch": 7, "x": torch.ones(2)})
    assert sorted(os.listdir(tmp_path)) == ["global_step3", "latest"]
    want, masters = go(3, 6), [deepspeed.utils.safe_get_full_fp32_param(p)
                               for p in engine.module.parameters()]
    path, client = engine.load_checkpoint(tmp_path)
    assert (path, client["epoch"], engine.global_steps) == (str(tmp_path / "global_step3"), 7, 3)
    assert go(3, 6) == want
    for p, m in zip(engine.module.parameters(), masters):
        assert torch.equal(deepspeed.utils.safe_get_full_fp32_param(p), m)
    engine.save_checkpoint(tmp_path, "mine")
    engine.save_checkpoint(tmp_path, "mine", save_latest=False)
    engine.destroy()
    # The file of trainers is part of the checkpoint: its sums are in the manifest.
    assert [f["name"] for f in shardd.Checkpoint(tmp_path, "mine").manifest["client"]] == [
        "deepspeed.pt"]

    fresh = make(address, gas=2, scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 4}})
    assert fresh.load_checkpoint(tmp_path, "mine")[0] and fresh.global_steps == 6
    for p, m in zip(fresh.module.parameters(), masters):
        assert torch.equal(deepspeed.utils.safe_get_full_fp32_param(p), m)
    path, _ = fresh.load_checkpoint(tmp_path, "global_step3", load_optimizer_states=False)
    assert fresh.optimizer.global_step == 0
    assert not fresh.optimizer.state[next(fresh.module.parameters())]["exp_avg"].any()
    assert fresh.load_checkpoint(tmp_path / "nowhere") == (None, {})
    with pytest.raises(TypeError, match="read again safely"):
        fresh.save_checkpoint(tmp_path, "bad", client_state={"f": make})
    fresh.destroy()


def test_a_save_that_fails_takes_nothing(address, tmp_path):
    """Weights and client_state are replaced together, or both stay."""
    engine = make(address)
    engine(*models.tokens(0, 0)).backward()
    engine.step()
    engine.save_checkpoint(tmp_path, "t", client_state={"n": 1})
    (tmp_path / "t" / "notes.txt").write_text("no checkpoint has such a file")
    engine(*models.tokens(1, 0)).backward()
    engine.step()
    with pytest.raises(shardd.Error, match="holds notes.txt"):
        engine.save_checkpoint(tmp_path, "t", client_state={"n": 2})
    assert shardd.Checkpoint(tmp_path, "t").step == 1
    assert sorted(os.listdir(tmp_path)) == ["latest", "t"]
    assert engine.load_checkpoint(tmp_path, "t")[1] == {"n": 1} and engine.global_steps == 1
    engine.destroy()


def test_weights_of_a_checkpoint_without_an_engine(address, tmp_path):
    """deepspeed.utils.zero_to_fp32, as Lightning and scripts import it."""
    from shardd.deepspeed.utils import zero_to_fp32
    engine = make(address)
    engine.module.register_buffer("seen", torch.ones(3))
    engine.backward(engine(*models.tokens(0, 0)))
    engine.step()
    engine.save_checkpoint(tmp_path, "t")
    masters = {n: deepspeed.utils.safe_get_full_fp32_param(p)
               for n, p in engine.module.named_parameters()}
    # An engine that is still there is of no use afterwards, as DeepSpeed says.
    trained = zero_to_fp32.load_state_dict_from_zero_checkpoint(engine.module, tmp_path)
    assert trained is engine.module
    assert all(torch.equal(p, masters[n]) for n, p in trained.named_parameters())
    with torch.no_grad():
        trained.norm.weight.fill_(0)
    with pytest.raises(RuntimeError, match="clos"):
        engine.step()
    engine.destroy()
    got = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert got["head.weight"] is got["embed.weight"] and got["seen"].sum() == 3
    assert all(torch.equal(got[n], m) for n, m in masters.items())
    fresh = models.GPT()
    fresh.register_buffer("seen", torch.zeros(3))
    assert set(got) == set(fresh.state_dict())
    zero_to_fp32.load_state_dict_from_zero_checkpoint(fresh, tmp_path, "t")
    assert all(torch.equal(x, got[n]) for n, x in fresh.state_dict().items())
    for safe, most in ((True, "100KB"), (False, None)):
        out = tmp_path / str(safe)
        zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(tmp_path, out, most, safe, "t")
        if safe:
            from safetensors.torch import load_file
            index = json.loads((out / "model.safetensors.index.json").read_text())
            files = set(index["weight_map"].values())
            assert len(files) > 1 and "head.weight" not in index["weight_map"]
            there = {n: x for f in files for n, x in load_file(out / f).items()}
        else:
            there = torch.load(out / "pytorch_model.bin", weights_only=True)
            assert set(there) == set(got)
        assert all(torch.equal(x, got[n]) for n, x in there.items())
    with pytest.raises(ValueError, match="max_shard_size is 'much'"):
        zero_to_fp32.convert_zero_checkpoint_to_state_dict(tmp_path, out, max_shard_size="much")
    with pytest.raises(FileNotFoundError):
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path, "none")


def test_leaf_modules_of_a_ds_config(address, caplog):
    """zero_optimization.leaf_module marks what set_z3_leaf_modules() would."""
    which = {"classes": "Block", "names": ["norm", "nothing"], "name_suffixes": ["1.n1"]}
    engine = make(address, zero_optimization={"stage": 3, "leaf_module": which})
    model = engine.module
    marked = deepspeed.utils.get_z3_leaf_modules(model)
    assert {id(m) for m in marked} == {id(m) for m in (*model.blocks, model.norm,
                                                      model.blocks[1].n1)}
    assert "leaf_module.names: no module is 'nothing'" in caplog.text
    assert deepspeed.utils.unset_z3_leaf_modules(model, [models.Block]) == list(model.blocks)
    assert deepspeed.utils.set_z3_leaf_modules_by_suffix(model, ["n1", "n9"], True, False) == (
        [b.n1 for b in model.blocks], ["n9"])
    with pytest.raises(ValueError, match="No modules named"):
        deepspeed.utils.set_z3_leaf_modules_by_name(model, ["n9"])
    engine.destroy()


def test_numbers_from_outside(address):
    """safe_get and safe_set, GatheredParameters with a modifier."""
    engine = make(address, stage=3)
    p = engine.module.place
    engine.backward(engine(*models.tokens(0, 0)))
    grad = deepspeed.utils.safe_get_full_grad(p)
    assert grad.shape == p.shape and grad.any()
    # One parameter at a time, as DeepSpeed calls it.
    deepspeed.utils.safe_update_full_grad_vectorized(
        [p], lambda g, of: torch.zeros_like(g) if of is p and torch.equal(g, grad) else g)
    engine.step()
    assert deepspeed.utils.safe_get_full_grad(p) is None
    assert not deepspeed.utils.safe_get_full_optimizer_state(p, "exp_avg").any()
    assert deepspeed.utils.safe_get_full_optimizer_state(p, "nothing") is None
    other = engine.module.norm.weight
    moment = deepspeed.utils.safe_get_full_optimizer_state(other, "exp_avg")
    deepspeed.utils.safe_set_full_fp32_param(p, torch.full_like(p, 3.0))
    assert (p == 3).all()
    assert torch.equal(deepspeed.utils.safe_get_full_optimizer_state(other, "exp_avg"), moment)
    deepspeed.utils.safe_set_full_optimizer_state(p, torch.full_like(p, 0.5), "exp_avg")
    assert (deepspeed.utils.safe_get_full_optimizer_state(p, "exp_avg") == 0.5).all()
    with deepspeed.zero.GatheredParameters([p], modifier_rank=0), torch.no_grad():
        p.fill_(2.0)
    assert (deepspeed.utils.safe_get_full_fp32_param(p) == 2).all()
    assert engine.optimizer.global_step == 1
    engine.backward(engine(*models.tokens(1, 0)))
    # The gradients that wait would go with the old model.
    grad = deepspeed.utils.safe_get_full_grad(other)
    with pytest.raises(RuntimeError, match="call engine.step"):
        deepspeed.utils.safe_set_full_fp32_param(p, torch.full_like(p, 3.0))
    with pytest.raises(RuntimeError, match="call engine.step"):
        with deepspeed.zero.GatheredParameters([p], modifier_rank=0), torch.no_grad():
            pass
    assert torch.equal(deepspeed.utils.safe_get_full_grad(other), grad)
    engine.step()
    engine.destroy()


def test_monitors_and_profiler(address, tmp_path):
    engine = make(address, csv_monitor={"enabled": True, "output_path": str(tmp_path),
                                        "job_name": "j"}, wall_clock_breakdown=True,
                  steps_per_print=1, flops_profiler={"enabled": True, "profile_step": 1,
                                                     "output_file": str(tmp_path / "flops")})
    for i in range(2):
        engine.backward(engine(*models.tokens(i, 0)))
        engine.step()
    lines = (tmp_path / "j" / "Train_Samples_lr.csv").read_text().split()
    assert lines == ["step,Train/Samples/lr", "2,0.01", "4,0.01"]
    assert "flops of a forward pass: " in (tmp_path / "flops").read_text()
    assert (tmp_path / "j" / "Train_Samples_train_loss.csv").exists()
    engine.destroy()


def test_a_model_that_has_made_steps_is_no_fresh_start(address):
    """initialize() of DeepSpeed begins anew, so that a model that lives on is an error."""
    torch.manual_seed(0)
    first = shardd.AdamW(models.GPT(), name="lives", address=address, clip=1.0)
    first._module(*models.tokens(0, 0)).backward()
    first.step()
    with pytest.raises(shardd.Error, match="lives"):
        make(address, shardd={"address": address, "name": "lives"})
    first.close(drop=True)


def test_what_initialize_refuses(address):
    with pytest.raises(AssertionError, match="requires a model"):
        deepspeed.initialize(config=config())
    with pytest.raises(AssertionError, match="deepspeed_config"):
        deepspeed.initialize(model=torch.nn.Linear(2, 2))
    engine = deepspeed.initialize(model=torch.nn.Linear(2, 2),
                                  config={"train_micro_batch_size_per_gpu": 1})[0]
    with pytest.raises(AssertionError, match="optimizer"):
        engine.backward(engine(torch.ones(1, 2)).sum())
    with pytest.raises(NotImplementedError, match="stage"):
        deepspeed.PipelineModule(layers=[])

# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: read as files, damaged, restored in other worlds, and exchanged with torch."""

import json
import os
import pathlib

import pytest
import torch

import models
import shardd

SAVE = """
import torch, shardd, models
torch.manual_seed(0)
m = models.GPT()
opt = shardd.AdamW(m, lr=1e-3, name="ck")
for s in range(4):
    m(*models.tokens(s, 0)).backward(); opt.step(); opt.zero_grad()
    if s == 2:
        opt.save({dir!r})
        torch.save({{k: [opt.read(p, k).clone() for p in m.parameters()]
                    for k in ("master", "exp_avg", "exp_avg_sq")}}, {dir!r} + "/want")
torch.save([p.detach().clone() for p in m.parameters()], {dir!r} + "/after")
say(loss=m(*models.tokens(9, 0)).item())
"""


@pytest.fixture
def saved(ranks, tmp_path):
    folder = str(tmp_path / "ck")
    os.makedirs(folder)
    said = ranks(SAVE.format(dir=folder))
    return folder, said[0][0]["loss"]


def test_read_without_a_daemon(saved):
    """Masters and moments are those that the daemon gave at that step, bit for bit."""
    folder, _ = saved
    c = shardd.Checkpoint(folder)
    want = torch.load(folder + "/want")
    names = [n for n, _ in models.GPT().named_parameters()]
    assert c.step == 3 and list(c) == names and c.moments() == ["exp_avg", "exp_avg_sq"]
    for kind in ("master", "exp_avg", "exp_avg_sq"):
        for name, x in zip(names, want[kind]):
            assert torch.equal(c.read(name, kind), x), (kind, name)


def test_every_damage_is_found(saved):
    """One flipped byte anywhere in the files is an error, never a number."""
    folder, _ = saved
    for path in pathlib.Path(folder, "global_step3").iterdir():
        raw = path.read_bytes()
        for at in range(0, len(raw), max(1, len(raw) // 23)):
            broken = bytearray(raw)
            broken[at] ^= 0x40
            path.write_bytes(bytes(broken))
            with pytest.raises((shardd.Damaged, json.JSONDecodeError, UnicodeDecodeError)):
                c = shardd.Checkpoint(folder)
                for name in c:
                    for kind in c.kinds:
                        c.read(name, kind)
        path.write_bytes(raw)
        path.write_bytes(raw[:-1])
        with pytest.raises((shardd.Damaged, json.JSONDecodeError)):
            shardd.Checkpoint(folder)
        path.write_bytes(raw)
    shardd.Checkpoint(folder)


def test_a_new_model_goes_on_from_it(saved, ranks):
    """A model of another name begins with it, and ends as the one that went on."""
    folder, loss = saved
    code = """
import torch, shardd, models
m = models.GPT()
opt = shardd.AdamW(m, lr=1e-3, name="other", init=shardd.Initial.from_shardd({dir!r}))
assert opt.global_step == 3
m(*models.tokens(3, 0)).backward(); opt.step()
want = torch.load({dir!r} + "/after")
say(step=opt.result.step, equal=all(torch.equal(a, b) for a, b in zip(m.parameters(), want)))
"""
    said = ranks(code.format(dir=folder))[0][0]
    assert said == {"step": 4, "equal": True}


def test_torch_and_back(ranks, tmp_path):
    """State of torch.optim begins a model here, and the state of the model goes on in torch."""
    code = """
import torch, shardd, models
def go(m, opt, first, last):
    for s in range(first, last):
        loss = m(*models.tokens(s, 0)); loss.backward(); opt.step(); opt.zero_grad()
    return loss.item()
torch.manual_seed(0)
m = models.GPT(); ref = torch.optim.AdamW(m.parameters(), lr=1e-3, foreach=False)
go(m, ref, 0, 3)
torch.manual_seed(1)
n = models.GPT(); n.load_state_dict(m.state_dict())
opt = shardd.AdamW(n, lr=1e-3, name="t", init=shardd.Initial.from_torch(n, ref.state_dict()))
assert opt.global_step == 3
a, b = go(m, ref, 3, 6), go(n, opt, 3, 6)
back = shardd.export_torch(opt)
opt.close()
k = models.GPT(); k.load_state_dict(n.state_dict())
again = torch.optim.AdamW(k.parameters(), lr=1e-3, foreach=False)
again.load_state_dict(back)
say(a=[a, go(m, ref, 6, 9)], b=[b, go(k, again, 6, 9)])
"""
    said = ranks(code)[0][0]
    assert said["a"] == pytest.approx(said["b"], rel=2e-6)


def test_universal_and_back(saved, tmp_path):
    """DeepSpeed's universal layout holds the same numbers, and comes back."""
    folder, _ = saved
    shardd.export_universal(folder, str(tmp_path / "u"))
    c, i = shardd.Checkpoint(folder), shardd.Initial.from_universal(str(tmp_path / "u"))
    assert i.step == 3 and set(i.masters) == set(c)
    for name in c:
        assert torch.equal(i.masters[name], c[name])
        assert torch.equal(i.moments["exp_avg_sq"][name], c.read(name, "exp_avg_sq"))


def test_what_does_not_fit_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        shardd.Checkpoint(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="universal"):
        shardd.Initial.from_universal(str(tmp_path))
    net = models.Net()
    other = torch.optim.AdamW(models.GPT().parameters()).state_dict()
    with pytest.raises(ValueError, match="parameters"):
        shardd.Initial.from_torch(net, other)

# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: read as files, damaged, restored in other worlds, and exchanged with torch."""

import dataclasses
import json
import os
import pathlib
import subprocess

import pytest
import torch

import conftest
import models
import shardd
from shardd.folder import Folder, write
from shardd.session import Session

@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Three steps, a checkpoint, and a fourth step. Returns the folder and a later loss."""
    folder = str(tmp_path_factory.mktemp("saved") / "ck")
    os.makedirs(folder)
    torch.manual_seed(0)
    m = models.GPT()
    opt = shardd.AdamW(m, lr=1e-3, name="ck", address=f"spawn:ck{os.getpid()}")
    for s in range(4):
        m(*models.tokens(s, 0)).backward()
        opt.step()
        opt.zero_grad()
        if s == 2:
            opt.save(folder)
            torch.save({k: [opt.read(p, k).clone() for p in m.parameters()]
                        for k in ("master", "exp_avg", "exp_avg_sq")}, folder + "/want")
    torch.save([p.detach().clone() for p in m.parameters()], folder + "/after")
    loss = m(*models.tokens(9, 0)).item()
    opt.close()
    return folder, loss


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


def test_a_new_model_goes_on_from_it(saved, address):
    """A model of another name begins with it, and ends as the one that went on."""
    folder, _ = saved
    m = models.GPT()
    opt = shardd.AdamW(m, lr=1e-3, name="other", init=shardd.Initial.from_shardd(folder),
                       address=address)
    assert opt.global_step == 3
    m(*models.tokens(3, 0)).backward()
    opt.step()
    want = torch.load(folder + "/after")
    assert opt.result.step == 4 and all(torch.equal(a, b) for a, b in zip(m.parameters(), want))
    opt.close()


def test_skipped_steps_are_no_steps_of_adam(address, tmp_path):
    """Where steps were skipped, the one that goes on has the t of the one that was saved."""
    def step(m, opt, bad=False):
        (m(torch.ones(2, 4)).square().sum() * (float("inf") if bad else 1.0)).backward()
        opt.step()
        assert opt.step_was_skipped == bad

    torch.manual_seed(0)
    m = torch.nn.Linear(4, 4)
    opt = shardd.AdamW(m, lr=1e-2, name="skips", address=address)
    for bad in (True, False, True, True, False):
        step(m, opt, bad)
    opt.save(str(tmp_path))
    step(m, opt)
    init = shardd.Initial.from_shardd(str(tmp_path))
    assert (init.step, init.applied) == (5, 2)
    n = torch.nn.Linear(4, 4)
    other = shardd.AdamW(n, lr=1e-2, name="other", address=address, init=init)
    assert other.global_step == other.applied == 2
    step(n, other)
    assert torch.equal(m.weight, n.weight) and torch.equal(m.bias, n.bias)
    assert other.applied == opt.applied == 3
    for one in (other, opt):
        one.close()


def test_a_daemon_restores_what_was_written_here(saved, address, tmp_path):
    """A folder that no daemon wrote, in parts of odd sizes: the next step has the same bits."""
    folder, _ = saved
    path = str(tmp_path / "w" / "mine")
    write(shardd.Initial.from_shardd(folder), path, "w", part_bytes=100_001 * 4,
          settings="min_world=1 max_world=1", client={"a.txt": b"x" * 9_000_000})
    assert len([n for n in os.listdir(path) if n.endswith(".safetensors")]) == 4
    done = subprocess.run([str(conftest.ROOT / "build" / "shardctl"), "checkpoints", "--verify",
                           str(tmp_path / "w")], capture_output=True, text=True)
    assert done.returncode == 0 and "complete, verified, with 1 files" in done.stdout, done
    session = Session(address)
    session.restore(str(tmp_path / "w"), None, "w")
    m = models.GPT()
    opt = shardd.AdamW(m, lr=1e-3, name="w", resume="must", address=address)
    assert opt.global_step == 3
    m(*models.tokens(3, 0)).backward()
    opt.step()
    want = torch.load(folder + "/after")
    assert all(torch.equal(a, b) for a, b in zip(m.parameters(), want))
    opt.close()
    session.disconnect()


def test_a_folder_is_whole_or_not_there(tmp_path):
    """What a killed writer left is removed by the next one, and what one writes now is not."""
    path = str(tmp_path / "d" / "t")
    child = os.fork()
    if child == 0:
        Folder(path, "m").begin()
        os._exit(0)  # As if it was killed.
    os.waitpid(child, 0)
    assert os.listdir(tmp_path / "d") == [".t.tmp"]
    other = Folder(path, "other")
    with pytest.raises(FileExistsError, match="another save writes t"):
        other.begin()
    first = Folder(path, "m")
    first.begin()
    with pytest.raises(FileExistsError, match="another save writes t"):
        Folder(path, "m").begin()
    first.abandon()
    init = shardd.Initial(1, {"w": torch.ones(4)}, {"exp_avg": {"w": torch.ones(4)},
                                                    "exp_avg_sq": {"w": torch.ones(5)}})
    with pytest.raises(ValueError, match="exp_avg_sq of 'w' has shape"):
        write(init, path, "m")
    assert os.listdir(tmp_path / "d") == []
    init.moments["exp_avg_sq"] = {"w": torch.ones(4)}
    for bad, sentence in ((dict(masters={}), "no master weights"), (dict(kind="lamb"), "lamb"),
                          (dict(masters={"a\n": torch.ones(1)}, moments={}), "no name of a"),
                          (dict(step=1, applied=2), "has made 2 steps"),
                          (dict(moments={"exp_avg": {"w": torch.ones(4)},
                                         "exp_avg_sq": {}}), "has exp_avg and no exp_avg_sq")):
        with pytest.raises((ValueError, KeyError), match=sentence):
            write(dataclasses.replace(init, **bad), path, "m")
    assert os.listdir(tmp_path / "d") == []


def test_universal_and_back(saved, tmp_path):
    """DeepSpeed's universal layout holds the same numbers, and comes back."""
    folder, _ = saved
    shardd.export_universal(folder, str(tmp_path / "u"))
    c, i = shardd.Checkpoint(folder), shardd.Initial.from_universal(str(tmp_path / "u"))
    assert i.step == 3 and set(i.masters) == set(c)
    for name in c:
        assert torch.equal(i.masters[name], c[name])
        assert torch.equal(i.moments["exp_avg_sq"][name], c.read(name, "exp_avg_sq"))


class Hollow(torch.nn.Module):
    """Its first two parameters have no elements."""

    def __init__(self):
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.empty(0, 3))
        self.up = torch.nn.Linear(4, 5)
        self.none = torch.nn.Parameter(torch.empty(2, 0))
        self.down = torch.nn.Linear(5, 2)

    def forward(self, x):
        return self.down(self.up(x)).sum() + self.nothing.sum()


@pytest.mark.parametrize("params", ["image", "copy"])
def test_parameters_without_elements(address, tmp_path, params):
    """They are part of the model and of its checkpoints, and of no step."""
    torch.manual_seed(0)
    m, x = Hollow(), torch.ones(2, 4)
    words = dict(lr=1e-2, address=address, params=params)
    opt = shardd.AdamW(m, name="hollow", **words)
    for _ in range(3):
        m(x).backward()
        opt.step()
    opt.save(str(tmp_path))
    state = opt.full_state_dict()["state"]
    assert state[0]["exp_avg"].shape == (0, 3) and state[1]["exp_avg"].shape == (2, 0)
    opt.close(drop=False)
    torch.manual_seed(1)
    again = Hollow()
    opt = shardd.AdamW(again, name="hollow", **words)  # It attaches, and knows the step.
    assert opt.global_step == 3
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), m.parameters()))
    again(x).backward()
    opt.step()
    want = [p.detach().clone() for p in again.parameters()]
    opt.close(drop=True)

    c = shardd.Checkpoint(str(tmp_path))
    assert list(c) == [n for n, _ in m.named_parameters()]
    assert c["nothing"].shape == (0, 3) and c.read("none", "exp_avg").shape == (2, 0)
    init = shardd.Initial.from_shardd(str(tmp_path))
    write(init, str(tmp_path / "w" / "mine"), "w", settings="min_world=1 max_world=1")
    session = Session(address)
    session.restore(str(tmp_path / "w"), None, "w")
    for name, begin in (("w", dict(resume="must")), ("other", dict(init=init))):
        n = Hollow()
        opt = shardd.AdamW(n, name=name, **words, **begin)
        assert opt.global_step == 3
        n(x).backward()
        opt.step()
        assert all(torch.equal(a, b) for a, b in zip(n.parameters(), want)), name
        opt.close(drop=True)
    session.disconnect()


def test_what_does_not_fit_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        shardd.Checkpoint(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="universal"):
        shardd.Initial.from_universal(str(tmp_path))
    net = models.Net()
    other = torch.optim.AdamW(models.GPT().parameters()).state_dict()
    with pytest.raises(ValueError, match="parameters"):
        shardd.Initial.from_torch(net, other)

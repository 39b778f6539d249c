# SPDX-License-Identifier: Apache-2.0
"""What is not with every torch or Python: names that came after 2.4, numpy, threads at exit."""

import argparse
import subprocess
import sys
import threading

import pytest
import torch

import shardd
from shardd import lib
from shardd.older import safe_globals


@pytest.fixture
def torch_2_4(monkeypatch):
    """torch without what came with 2.5 and shardd uses."""
    monkeypatch.delattr(torch.nn.Module, "register_load_state_dict_pre_hook", raising=False)
    monkeypatch.delattr(torch.serialization, "safe_globals", raising=False)


def test_a_load_after_the_first_step_is_refused_with_torch_2_4(torch_2_4, address):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    opt = shardd.AdamW(model, lr=1e-2, name="old", address=address)
    model(torch.ones(2, 4)).square().mean().backward()
    opt.step()
    with pytest.raises(RuntimeError, match="Load before the Optimizer is made"):
        model.load_state_dict(state)
    opt.close()
    model.load_state_dict(state)


def test_classes_are_safe_for_one_load_with_torch_2_4(torch_2_4, tmp_path):
    path = str(tmp_path / "x.pt")
    torch.save(argparse.Namespace(n=3), path)
    before = set(torch.serialization.get_safe_globals())
    with safe_globals([argparse.Namespace]):
        assert torch.load(path, weights_only=True).n == 3
    assert set(torch.serialization.get_safe_globals()) == before
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(path, weights_only=True)


def test_a_checkpoint_is_written_without_numpy(tmp_path):
    path = str(tmp_path / "gpt" / "global_step0")
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", "-c",
         "import sys; sys.modules['numpy'] = None\n"
         "import torch, torch.distributed.checkpoint as dcp, shardd\n"
         "from shardd.dcp import Writer\n"
         f"dcp.save({{'w': torch.arange(6.)}}, storage_writer=Writer({path!r}))"],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert torch.equal(shardd.Checkpoint(path)["w"], torch.arange(6.0))


def test_a_call_is_made_where_no_thread_starts(monkeypatch):
    """Python 3.12.1 starts none at exit, and a model has to be dropped all the same."""
    def start(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert lib.interruptibly(None, lambda: 5) == 5

# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/, run as a reader runs them."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def run(name, *words, address, ranks=1, module=()):
    """What an example prints, by torchrun if there is more than one rank."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port",
                free_port()] if ranks > 1 else []
    done = subprocess.run(
        [sys.executable, *torchrun, *module, str(EXAMPLES / name), *map(str, words)], text=True,
        capture_output=True, timeout=600,
        env={**os.environ, "SHARD_ADDRESS": address, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(text):
    """{step: loss} of what was printed."""
    return {int(s): float(x) for s, x in re.findall(r"step (\d+)  loss ([\d.]+)", text)}


def same(got, want, digits=4):
    """Equal steps and losses. What is printed has 4 digits, so the last one may be rounded."""
    assert got.keys() == want.keys() and got
    assert all(abs(got[k] - want[k]) < 1.5 * 10**-digits for k in got), (got, want)


# --- nanogpt.py ---

SMALL = ("--batch", 2, "--context", 32, "--width", 32, "--show", 1)


def test_nanogpt_equals_plain(address):
    words = ("nanogpt.py", *SMALL, "--steps", 8)
    got, want = losses(run(*words, address=address)), losses(run(*words, "--plain", address="-"))
    same(got, want)
    assert got[8] < got[1] - 0.3
    with pytest.raises(AssertionError):
        same({**got, 8: got[8] + 0.001}, want)


@pytest.mark.slow
def test_nanogpt_under_torchrun(address):
    words = ("nanogpt.py", *SMALL, "--steps", 20)
    got = losses(run(*words, address=address, ranks=2))
    same(got, losses(run(*words, "--plain", address="-", ranks=2)))
    assert got[20] < got[1] - 1


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--bf16",)], ids=["fp32", "bf16"])
def test_nanogpt_resumes(more, address, tmp_path):
    """Stopped after step 6, gone on with in another daemon: every loss equals the whole run's."""
    words = ("nanogpt.py", *SMALL, *more, "--every", 4)
    folder = ("--checkpoint", tmp_path / "saved")
    whole = losses(run(*words, "--steps", 12, address=address))
    first = losses(run(*words, "--steps", 12, "--stop", 6, *folder, address=address + "b"))
    rest = losses(run(*words, "--steps", 12, *folder, address=address + "c"))
    assert min(rest) == 7 and max(first) == 6
    assert {**first, **rest} == whole
    two = run(*words, "--steps", 14, *folder, address=address + "d", ranks=2)
    assert "2 ranks, steps 13 to 14" in two and losses(two).keys() == {13, 14}


@pytest.mark.slow
def test_nanogpt_in_bf16_learns(address):
    got = losses(run("nanogpt.py", *SMALL, "--steps", 20, "--bf16", address=address))
    assert got[20] < got[1] - 1


# --- hf_trainer.py ---


@pytest.mark.slow
@pytest.mark.parametrize("ranks, unchanged", [(1, False), (2, False), (1, True)])
def test_hf_trainer_equals_plain(ranks, unchanged, address, tmp_path):
    """unchanged: a script that is started by `python -m shardd.deepspeed`, and has no install()."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    words = ("hf_trainer.py", "--steps", 6, "--batch", 4, "--out", tmp_path)
    got = losses(run(*words, "--shardd", address=address, ranks=ranks,
                     module=("-m", "shardd.deepspeed") if unchanged else ()))
    same(got, losses(run(*words, address="-", ranks=ranks)))
    assert got.keys() == set(range(1, 7)) and got[6] < got[1]


# --- tutorial.py ---


@pytest.mark.slow
def test_the_tutorial():
    """It runs whole, and each section shows what its title says."""
    text = run("tutorial.py", address="-")
    parts = re.split(r"^\d\. ", text, flags=re.M)[1:]
    assert len(parts) == 6
    assert "a world of 3" in parts[1] and "a world of 2" in parts[2]
    assert "tutorial" in parts[3] and "$ shardctl" in parts[3] and "SHARD_" not in parts[3]
    assert "checkpoints" in parts[4] and "a world of 4" in parts[5]
    assert parts[5].count(": yes") == 2 and ": NO" not in text
    seen = [float(x) for x in re.findall(r"last loss was ([\d.]+)", text)]
    assert seen[-1] < 0.5 * seen[0]


# --- deepspeed_loop.py ---


@pytest.mark.slow
def test_deepspeed_loop_equals_deepspeed(address, monkeypatch):
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    got = losses(run("deepspeed_loop.py", address=address, ranks=2))
    same(got, losses(run("deepspeed_loop.py", "--real", address="-", ranks=2)))
    assert got[20] < got[1] - 1

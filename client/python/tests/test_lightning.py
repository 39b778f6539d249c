# SPDX-License-Identifier: Apache-2.0
"""Lightning's DeepSpeedStrategy under `python -m shardd.deepspeed`, and its Trainer with
shardd.AdamW, on the CPU.

Lightning refuses that strategy without a GPU, so that the script has a subclass without the two
checks. Losses and weights equal a plain loop's, where Lightning does what that does, and those of
the same script with DeepSpeed itself. `make check-python-frameworks` runs this.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from frameworks import framework

framework("lightning")
import torch  # noqa: E402

pytestmark = pytest.mark.slow
SCRIPT = pathlib.Path(__file__).with_name("lightning_train.py")


def run(tmp_path, *start, address="-", fails=False, **words):
    """What lightning_train.py prints, and the weights at the end. It starts its ranks itself."""
    out = tmp_path / f"{len(list(tmp_path.iterdir()))}.pt"
    done = subprocess.run(
        [sys.executable, *start, str(SCRIPT), json.dumps({**words, "out": str(out)})], text=True,
        timeout=400, capture_output=True,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "SHARD_ADDRESS": address})
    if fails:
        assert done.returncode != 0
        return done.stderr
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    log = next(x for x in done.stdout.splitlines() if x.startswith("LOG "))
    return json.loads(log[4:]), torch.load(out)


OURS = ("-m", "shardd.deepspeed")


def same(got, want, loss=1e-5, weight=1e-6):
    """Losses of rank 0 in each micro-batch, and weights. What is left is rounding."""
    assert got[0]["losses"] == pytest.approx(want[0]["losses"], rel=loss, abs=0)
    assert got[1].keys() == want[1].keys()
    for k, v in want[1].items():
        torch.testing.assert_close(got[1][k], v, rtol=0, atol=weight, msg=lambda m: f"{k}: {m}")


@pytest.mark.parametrize("ranks, stage", [(1, 1), (1, 2), (2, 2), (2, 3)])
def test_equals_a_plain_loop(ranks, stage, address, tmp_path):
    got = run(tmp_path, *OURS, address=address, ranks=ranks, stage=stage)
    assert got[0]["version"] == "0.19.8+shardd" and got[0]["step"] == 6
    want = run(tmp_path, mode="loop", ranks=ranks)
    same(got, want)
    with pytest.raises(AssertionError):
        same(got, run(tmp_path, mode="loop", ranks=ranks, clip=0.5))


@pytest.mark.parametrize("words", [
    {"stage": 1}, {"stage": 2, "ranks": 2}, {"stage": 2, "precision": "bf16-true"},
    {"stage": 3, "ranks": 2, "accumulation": 2, "clip": 0.5}],
    ids=lambda w: "-".join(f"{k}{v}" for k, v in w.items()))
def test_equals_deepspeed(words, address, tmp_path):
    """With accumulation and a clip that is not a plain loop's result: Lightning divides the loss by
    accumulate_grad_batches, and then DeepSpeed does. What shardd does is the same."""
    got = run(tmp_path, *OURS, address=address, **words)
    want = run(tmp_path, **words)
    assert want[0]["version"] == "0.19.8"
    same(got, want, weight=1e-2 if "precision" in words else 1e-6)


@pytest.mark.parametrize("words", [{}, {"ranks": 2}, {"accumulation": 2, "clip": 0.5}],
                         ids=lambda w: "-".join(f"{k}{v}" for k, v in w.items()) or "plain")
def test_the_optimizer_alone(words, address, tmp_path):
    """configure_optimizers() returns shardd.AdamW. Lightning calls step(closure)."""
    got = run(tmp_path, mode="shardd", address=address, **words)
    assert got[0]["step"] == 6
    same(got, run(tmp_path, mode="loop", **words))


def test_goes_on_with_a_checkpoint(address, tmp_path):
    """Saved after step 3, and gone on with in another daemon. Lightning begins anew with a loader
    that has no state_dict(), so that the script leaves out what was trained on."""
    whole = run(tmp_path, *OURS, address=address)
    first = run(tmp_path, *OURS, address=address + "b", steps=3, save=str(tmp_path / "saved"))
    rest = run(tmp_path, *OURS, address=address + "c", skip=3, resume=str(tmp_path / "saved"))
    assert first[0]["losses"] + rest[0]["losses"] == whole[0]["losses"] and rest[0]["step"] == 6
    for k, v in whole[1].items():
        assert torch.equal(rest[1][k], v), k


def test_lightning_refuses_deepspeed_on_the_cpu(address, tmp_path):
    """If it no longer does, the subclass in the script and in the README can go."""
    said = run(tmp_path, *OURS, address=address, on_cpu=False, fails=True)
    assert "DeepSpeed strategy is only supported on CUDA GPUs" in said

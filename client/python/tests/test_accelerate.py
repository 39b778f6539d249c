# SPDX-License-Identifier: Apache-2.0
"""A loop with Accelerate under `python -m shardd.deepspeed`, with one and two ranks on the CPU.

Losses and what the model then tells apart equal a plain loop's, and a run that goes on with
save_state()'s folder in another daemon equals one that was never interrupted.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from test_deepspeed_hf import env_of, free_port, log_of  # noqa: E402

pytestmark = pytest.mark.slow
SCRIPT = pathlib.Path(__file__).with_name("accelerate_train.py")


def run(address=None, ranks=1, **words):
    """What rank 0 prints. Without an address it is the plain loop, in one process."""
    mode, port = "accelerate" if address else "loop", free_port()
    started = [subprocess.Popen(
        [sys.executable, *(("-m", "shardd.deepspeed") if address else ()), str(SCRIPT),
         json.dumps({"mode": mode, "ranks": ranks, **words})], text=True,
        env={**os.environ, **env_of(r, ranks, port, address)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE) for r in range(ranks if address else 1)]
    try:
        outs = [p.communicate(timeout=300) for p in started]
    finally:
        for p in started:
            p.kill()
    assert not any(p.returncode for p in started), "".join(e for _, e in outs)[-6000:]
    return log_of(outs[0][0])


@pytest.mark.parametrize("ranks, stage", [(1, 1), (1, 3), (2, 2), (2, 3)])
def test_equals_a_plain_loop(ranks, stage, address):
    got, want = run(address, ranks, stage=stage), run(ranks=ranks)
    assert got[0] == pytest.approx(want[0], rel=1e-4) and got[1] == want[1]
    assert len(got[0]) == 12 and got[0][-1] < got[0][0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_goes_on_with_a_saved_state(ranks, address, tmp_path):
    whole = run(address, ranks, save=str(tmp_path / "saved"))
    rest = run(address + "b", ranks, resume=str(tmp_path / "saved"))
    assert rest[0] == whole[0][6:] and rest[1] == whole[1]

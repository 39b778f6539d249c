# SPDX-License-Identifier: Apache-2.0
"""The dynamic loss scale beside the real DeepSpeed's: scales and skipped steps, step by step."""

import json

import pytest

from test_deepspeed_engine import EITHER, config, free_port

pytestmark = pytest.mark.slow  # Half of it is the start of the real one.

# For shardd and for the real one. In a step that is to overflow only one rank's gradient is Inf.
SCRIPT = EITHER + """
if o["real"]:  # It trains in fp16 on any CPU, and refuses those where that is slow.
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
for case in o["cases"]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    engine = deepspeed.initialize(model=model, config={**o["config"], "fp16": case["fp16"]},
                                  model_parameters=list(model.parameters()))[0]
    scales, skips, error = [], [], ""
    for step, bad in enumerate(case["overflows"]):
        scales.append(float(engine.optimizer.loss_scale))
        factor = float("inf") if bad and step % engine.world_size == engine.global_rank else 1e-4
        loss = engine(torch.ones(2, 4).half()).float().sum() * case.get("factor", factor)
        engine.backward(loss)
        try:
            engine.step()
        except Exception as e:
            error = f"{type(e).__name__}: {e}"
            break
        skips.append(engine.skipped_steps)
        assert bool(engine.optimizer.overflow) == (not engine.was_step_applied())
    say(scales=scales, skips=skips, error=error, at=step,
        weights=[p.detach().float().flatten().tolist() for p in engine.module.parameters()])
    engine.destroy()
"""

LONG = [0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0]
FALL = [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]


def case(overflows, **fp16):
    return {"overflows": overflows, "fp16": {"enabled": True, **fp16}}


CASES = {
    "defaults": case([1, 0, 1, 1, 0]),
    "power": case(LONG, initial_scale_power=11, loss_scale_window=3),
    "window": case(LONG, initial_scale_power=8, loss_scale_window=5),
    "at once": case(LONG, initial_scale_power=6, loss_scale_window=2, hysteresis=1),
    "patient": case(LONG, initial_scale_power=6, loss_scale_window=4, hysteresis=4),
    "refilled": case(LONG, initial_scale_power=6, loss_scale_window=4, hysteresis=3,
                     consecutive_hysteresis=True),
    "refilled at once": case(LONG, initial_scale_power=6, loss_scale_window=1, hysteresis=2,
                             consecutive_hysteresis=True),
    "to the floor": case(FALL, initial_scale_power=5, loss_scale_window=2, hysteresis=2,
                         min_loss_scale=4),
    "to an odd floor": case(FALL, initial_scale_power=5, loss_scale_window=9, hysteresis=1,
                            min_loss_scale=3),
    "to the usual floor": case(FALL, initial_scale_power=3, loss_scale_window=9, hysteresis=3),
    # Nothing is put in: gradients are 2, and fp16 ends at 65504.
    "of itself": {**case([0] * 14, initial_scale_power=19, loss_scale_window=3, hysteresis=2),
                  "factor": 1.0},
    "static": case([0, 1, 0], loss_scale=128),
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """What each rank of both systems said, by case."""
    from conftest import Rank
    said = {}
    for real in (False, True):
        options = {"real": real, "cases": list(CASES.values()), "config": config(stage=2)}
        port = free_port()
        ranks = [Rank(SCRIPT, {"OPTIONS": json.dumps(options), "MASTER_ADDR": "127.0.0.1",
                               "MASTER_PORT": port, "LOCAL_SIZE": "2", "RANK": str(r),
                               "LOCAL_RANK": str(r), "WORLD_SIZE": "2"},
                      f"spawn:scaler{port}") for r in range(2)]
        try:
            ends = [r.wait() for r in ranks]
        finally:
            for r in ranks:
                r.kill()
        for status, _, err in ends:
            assert status == 0, err
        said[real] = [dict(zip(CASES, words)) for _, words, _ in ends]
    return said


@pytest.mark.parametrize("name", CASES)
def test_the_trace_is_that_of_deepspeed(traces, name):
    for ours, theirs in zip(traces[False], traces[True]):
        got, want = ours[name], theirs[name]
        assert got["scales"] == want["scales"]
        assert got["skips"] == want["skips"]
        assert got["at"] == want["at"]
        assert bool(got["error"]) == bool(want["error"]), (got["error"], want["error"])
        if all(a >= b for a, b in zip(got["scales"], got["scales"][1:])):
            # A step after which the scale rises is another one there: DeepSpeed divides its
            # gradient by the next scale.
            for a, b in zip(got["weights"], want["weights"]):
                assert a == pytest.approx(b, abs=1e-3)


def test_the_traces_say_something(traces):
    """Scales rise and fall, steps are skipped, and a fall ends at the floor with an error."""
    for name, got in traces[False][0].items():
        assert (len(set(got["scales"])) > 1) == (name not in ("static",)), name
        assert got["skips"][-1] > 0
        floor = CASES[name]["fp16"].get("min_loss_scale", 1)
        assert min(got["scales"]) >= floor
        if "floor" in name:
            assert got["scales"][-1] == floor and "Diverged" in got["error"], got["error"]

# SPDX-License-Identifier: Apache-2.0
"""A DeepSpeedEngine in a world of which trainers come and go."""

import pytest

ELASTIC = """
import torch, os
torch.set_num_threads(1)
import signal, logging, shardd.deepspeed as deepspeed
told = []
class Told(logging.Handler):
    def emit(self, record):
        told.append((record.levelname, record.getMessage()))
logging.getLogger("shardd.deepspeed").addHandler(Told())
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
engine, _, loader, _ = deepspeed.initialize(model=model, training_data=torch.ones(48, 8), config={
    "train_batch_size": 16, "gradient_clipping": 0.0,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {"stage": 2},
    "elasticity": {"enabled": True, "max_train_batch_size": 16, "micro_batch_sizes": [4],
                   "min_gpus": 1, "max_gpus": 3},
    "shardd": {"timeout": 60, "resume": "auto"}})
most, batches, seen, before = 0, [], [], 0
def mean_norm(weights):
    w, b = (x.clone().requires_grad_() for x in weights)
    sum(torch.nn.functional.linear(x, w, b).square().mean() / len(batches)
        for x in batches).backward()
    return float(torch.stack([w.grad.norm(), b.grad.norm()]).norm())
for _ in range(100000):
    if not batches:
        weights = [p.detach().clone() for p in (model.weight, model.bias)]
    batches.append(torch.randn(4, 8))
    engine.backward(engine(batches[-1]).square().mean())
    boundary = engine.is_gradient_accumulation_boundary()
    gas, n, batch = engine.gradient_accumulation_steps(), engine.world_size, \
        engine.train_batch_size()
    if not boundary:
        engine.step()
        continue
    engine.step()
    if engine.was_step_applied():
        r = engine.optimizer.result
        seen.append([r.world_size, n, gas, batch, len(batches), r.grad_norm, mean_norm(weights),
                     len(loader)])
        most = max(most, r.world_size)
        if most == int(os.environ["MOST"]):  # All of them know it.
            if r.world_size == most - 1:
                break
            if int(os.environ["RANK"]) == most - 1:
                os.kill(os.getpid(), signal.SIGKILL)
    batches = []
say(seen=seen, told=told, rank=engine.global_rank, batch=engine.train_batch_size(),
    gas=engine.gradient_accumulation_steps(), samples=engine.global_samples)
if int(os.environ["RANK"]) == 0:
    input()
engine.destroy()
"""


@pytest.mark.parametrize("most", (2, 3))
def test_an_elastic_world_keeps_the_global_batch(start, most):
    """Trainers come one by one, and the last one dies: accumulation changes with each."""
    started = [start(ELASTIC, r, 1, MOST=most) for r in range(most)]
    first = started[0].hear(60)
    for n, known, gas, batch, micros, norm, mean, passes in first["seen"]:
        assert passes == 48 // 4 // n
        assert (known, gas, batch, micros) == {
            1: (1, 4, 16, 4), 2: (2, 2, 16, 2), 3: (3, 1, 12, 1)}[n]
        if n == 1:
            assert norm == pytest.approx(mean, rel=1e-4)
    left = most - 1
    assert first["seen"][-1][0] == left
    assert (first["batch"], first["gas"]) == (16, 4 // left)
    assert ["INFO", f"{left} trainers now: gradient_accumulation_steps is {4 // left}, and "
            f"train_batch_size is 16 (it was {16 if most == 2 else 12}, and 16 in the ds_config)"] \
        in first["told"]
    if most == 3:
        assert ["WARNING", "3 trainers now: gradient_accumulation_steps is 1, and train_batch_size "
                "is 12 (it was 16, and 16 in the ds_config)"] in first["told"]
    started[0].go()
    for p in started[:-1]:
        assert p.wait(60)[0] == 0

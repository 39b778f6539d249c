# SPDX-License-Identifier: Apache-2.0
"""Stage 3 of a ds_config, with parameters that have memory of their own while they are used: what
the engine does with them is what it does on the image."""

import pytest

from cluster import free_ports

RUN = """
    import torch, shardd.deepspeed as ds, models
    rank, n = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    def train(name, **own):
        torch.manual_seed(7)
        model = models.GPT(layers=3)
        model.norm.weight.requires_grad_(False)
        engine, opt, _, _ = ds.initialize(model=model, config={
            "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {
                "lr": 0.01}}, "zero_optimization": {
                "stage": 3, "stage3_prefetch_bucket_size": 20000,
                "stage3_param_persistence_threshold": 100, "stage3_max_reuse_distance": 0},
            "shardd": {"name": name, **own}})
        losses = []
        def steps(first, last):
            for step in range(first, last):
                loss = engine(*models.tokens(step, rank))
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
        held = lambda: sum(p.untyped_storage().nbytes() for p in opt._row_of and
                           [r.param for r in opt._rows])
        steps(0, 3)
        left = [held()]
        folder = os.path.join(os.environ["DIR"], name)
        engine.save_checkpoint(folder)
        state = engine._zero3_consolidated_16bit_state_dict()
        steps(3, 5)
        w = dict(model.named_parameters())["blocks.0.up.weight"]
        with ds.zero.GatheredParameters(w):
            norm = w.detach().norm().item()
        left.append(held())
        with ds.zero.GatheredParameters([w], modifier_rank=0):
            if rank == 0:
                w.data.mul_(0.5)
        left.append(held())
        steps(5, 7)
        engine.load_checkpoint(folder)
        left.append(held())
        steps(3, 5)
        with torch.no_grad():
            losses.append(engine(*models.tokens(9, rank)).item())
        masters = [opt.read(r.param).double().sum().item() for r in opt._rows]
        fetched = engine.zero_optimization_partition_weights()
        engine.destroy()
        tied = state is None or state["head.weight"] is state["embed.weight"]
        return dict(losses=losses, norm=norm, masters=masters, tied=tied,
                    state=None if state is None else {k: v.double().sum().item()
                                                      for k, v in state.items()}), left, fetched
    a, _, image = train("a")
    b, left, fetched = train("b", params="copy")
    assert a["losses"][3:5] == a["losses"][7:9]
    say(same=a == b and a["tied"], left=left, fetched=[image, fetched], last=a["losses"][-1])
"""


@pytest.mark.parametrize("n", [1, 2])
def test_as_on_the_image(ranks, tmp_path, n):
    for (one,) in ranks(RUN, n, DIR=tmp_path, MASTER_PORT=free_ports(1)[0]):
        assert one["same"] and one["left"] == [0] * 4 and one["fetched"] == [False, True]

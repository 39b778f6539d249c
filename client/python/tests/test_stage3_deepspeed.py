# SPDX-License-Identifier: Apache-2.0
"""Stage 3 of a ds_config, with parameters that have memory of their own while they are used: what
the engine does with them is what it does on the image."""

import logging

import pytest
import torch

import models
from cluster import free_ports
from shardd.deepspeed import zero
from shardd.deepspeed.config import Config, ConfigError
from shardd.stage3 import Fetcher, Source

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


# --- modules that are fetched as a whole ---


def leaves(model, **of_zero):
    zero.mark_leaves(model, Config({"train_batch_size": 1, "zero_optimization": {
        "stage": 3, **of_zero}}))
    return [n for n, m in model.named_modules() if zero.z3_leaf_module(m)]


@pytest.mark.parametrize("said, found", [
    ({"classes": ["Block"]}, ["blocks.0", "blocks.1"]),
    ({"classes": "models.Block"}, ["blocks.0", "blocks.1"]),
    ({"names": ["blocks.1", "norm"]}, ["blocks.1", "norm"]),
    ({"name_suffixes": ["qkv"]}, ["blocks.0.qkv", "blocks.1.qkv"]),
    ({"classes": ["Nothing"], "names": ["blocks.7"], "name_suffixes": ["-"]}, [])], ids=str)
def test_leaf_module(caplog, said, found):
    with caplog.at_level(logging.WARNING, "shardd"):
        assert leaves(models.GPT(), leaf_module=said) == found
    assert len(caplog.messages) == (3 if not found else 0), caplog.messages


def test_leaf_module_is_read():
    with pytest.raises(ConfigError, match="leaf_module.names is 5, and should be a list of names"):
        leaves(models.GPT(), leaf_module={"names": 5})
    with pytest.raises(ConfigError, match="no key .klasses. in zero_optimization.leaf_module"):
        leaves(models.GPT(), leaf_module={"klasses": []})


class Nested(torch.nn.Module):
    """Fine and coarse parts, and containers."""

    def __init__(self):
        super().__init__()
        self.coarse = torch.nn.Linear(300, 300)
        self.fine = models.Experts(d=8)
        self.list = torch.nn.ModuleList([models.Experts(d=24), torch.nn.GELU(), models.Net()])
        self.inner = models.GPT(layers=2)


FINE = """
    import sys, torch, models, test_stage3_deepspeed as t
    import deepspeed.runtime.zero.parameter_offload as real
    from shardd.deepspeed import zero
    real.print_rank_0 = lambda *a, **k: None
    def theirs(model, fine):
        for p in model.parameters():
            p.ds_numel = p.numel()
        o = object.__new__(real.DeepSpeedZeRoOffload)
        o.min_granularity_value, o.min_granularity_layer = sys.maxsize, None
        o.granularity_info, o.z3_leaf_layers = set(), []
        o._set_z3_leaf_modules_by_threshold(model, fine)
        return [n for n, m in model.named_modules() if zero.z3_leaf_module(m)]
    for make in (t.Nested, models.GPT, models.Experts):
        for fine in (1, 40, 100, 200, 500, 7139, 7140, 7141, 8000, 20000, 10**6):
            say(ours=t.leaves(make(), stage3_module_granularity_threshold=fine),
                theirs=theirs(make(), fine))
"""


def test_fine_modules(ranks):
    """module_granularity_threshold has the leaves that DeepSpeed has."""
    (said,) = ranks(FINE)
    assert all(one["ours"] == one["theirs"] for one in said), said
    assert len({tuple(one["ours"]) for one in said}) == 5


@pytest.mark.parametrize("said", [
    {"leaf_module": {"classes": ["Block"]}}, {"module_granularity_threshold": 7140}], ids=str)
def test_a_leaf_is_fetched_as_a_whole(said):
    """Each block is fetched and freed at once, and gradients are those without."""
    torch.manual_seed(2)
    plain, model = models.GPT(), models.GPT()
    model.load_state_dict(plain.state_dict())
    weights = {p: q.detach().clone() for p, q in zip(model.parameters(), plain.parameters())}
    names = {p: n for n, p in model.named_parameters()}
    fetched = []

    class Copied(Source):
        def fetch(self, params, wait):
            fetched.append({names[p].rsplit(".", 2)[0] for p in params})
            for p in params:
                p.data.copy_(weights[p])

    assert leaves(model.blocks, **said) == ["0", "1"]
    fetcher = Fetcher(model, model.parameters(), Copied(), prefetch=0, keep=0, reuse=0)
    for m in (plain, model):
        m(*models.tokens(0, 0)).backward()
    assert fetched.count({"blocks.0"}) == fetched.count({"blocks.1"}) == 2  # Forward and backward.
    assert sum("blocks.0" in f for f in fetched) == 2
    assert all(torch.equal(p.grad, q.grad)
               for p, q in zip(plain.parameters(), model.parameters()))
    fetcher.close()

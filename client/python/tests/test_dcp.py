# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint reads and writes checkpoints of shardd; the peer is torch itself."""

import io
import os
import pathlib
import pickle
import socket
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import _create_read_items as create_read_items
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

import crew
import models
import shardd
from crew import Crew
from shardd import params as _p
from shardd.dcp import Reader, Writer
from shardd.session import Session

PLAIN = {"AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
         "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
         "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True)}
MORE = {"AdamW": {}, "Adagrad": {}, "SGD": {"momentum": 0.9, "nesterov": True}}


def go(m, opt, first, last):
    losses = []
    for s in range(first, last):
        opt.zero_grad()
        loss = m(*models.tokens(s, 0))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    return losses


def train(address, folder, kind="AdamW"):
    """Three steps in shardd, a checkpoint, and three more. Returns the losses."""
    torch.manual_seed(0)
    m = models.GPT()
    opt = getattr(shardd, kind)(m, lr=1e-2, name="gpt", clip=1.0, address=address, **MORE[kind])
    losses = []
    for s in range(6):
        loss = m(*models.tokens(s, 0))
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
        if s == 2:
            opt.save(folder)
    opt.close()
    return losses


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("dcp") / "ck")
    return folder, train(f"spawn:dcp{os.getpid()}", folder)


def into(m, opt, folder, **words):
    """What a user of torch.distributed.checkpoint writes."""
    model_state, optim_state = get_state_dict(m, opt)
    state = {"app": {"model": model_state, "optim": optim_state}}
    dcp.load(state, storage_reader=Reader(folder, model=m, **words))
    set_state_dict(m, opt, model_state_dict=state["app"]["model"],
                   optim_state_dict=state["app"]["optim"])


@pytest.mark.parametrize("kind", [
    "AdamW", *[pytest.param(k, marks=pytest.mark.slow) for k in ("Adagrad", "SGD")]])
def test_torch_goes_on_with_a_checkpoint_of_shardd(trained, address, tmp_path, kind):
    folder, losses = trained
    if kind != "AdamW":
        folder = str(tmp_path / "ck")
        losses = train(address, folder, kind)
    torch.manual_seed(1)
    m = models.GPT()
    opt = PLAIN[kind](m.parameters())
    into(m, opt, folder)
    c = shardd.Checkpoint(folder)
    assert all(torch.equal(p, c[n]) for n, p in m.named_parameters())
    if kind == "AdamW":
        assert {float(s["step"]) for s in opt.state.values()} == {3.0}
    # As two runs of torch whose sums are rounded in another order.
    assert go(m, opt, 3, 6) == pytest.approx(losses[3:], abs=2e-5)


def test_a_part_and_other_names(trained):
    """Weights alone, some of them, as bf16, without a prefix; and what is not there."""
    folder, _ = trained
    c = shardd.Checkpoint(folder)
    m = models.GPT().bfloat16()
    state = {"blocks.0.up.weight": m.state_dict()["blocks.0.up.weight"]}
    dcp.load(state, storage_reader=Reader(folder))
    assert torch.equal(m.blocks[0].up.weight, c["blocks.0.up.weight"].bfloat16())
    whole = {"model": models.GPT().state_dict()}
    with pytest.raises(CheckpointException,
                       match="Missing key in checkpoint state_dict: model.head.weight"):
        dcp.load(whole, storage_reader=Reader(folder))  # Nobody said that it is tied.
    dcp.load(whole, storage_reader=Reader(folder),
             planner=DefaultLoadPlanner(allow_partial_load=True))
    assert torch.equal(whole["model"]["norm.bias"], c["norm.bias"])
    opt = torch.optim.AdamW(m.parameters())
    m(*models.tokens(0, 0)).backward()
    opt.step()
    by_number = {"optim": opt.state_dict()}
    dcp.load(by_number, storage_reader=Reader(folder))
    names = [n for n, _ in m.named_parameters()]
    for i, name in enumerate(names):
        got = by_number["optim"]["state"][i]["exp_avg_sq"]
        assert torch.equal(got, c.read(name, "exp_avg_sq").to(got.dtype)), name
    wrong = {"model": {"place": torch.zeros(31, 64)}}
    with pytest.raises(CheckpointException, match="Size mismatch|has shape"):
        dcp.load(wrong, storage_reader=Reader(folder))


class Careless(DefaultLoadPlanner):
    """As that of torch 2.4, which compares no shapes."""

    def create_local_plan(self):
        return LoadPlan([i for key, x in self.state_dict.items()
                         for i in create_read_items(key, self.metadata.state_dict_metadata[key],
                                                    x)])


@pytest.mark.parametrize("shape", [(31, 64), (33, 64), (64, 32)])
def test_another_shape_is_refused_whoever_plans(trained, shape):
    with pytest.raises(CheckpointException, match="place.* has shape .*, and in .* it is"):
        dcp.load({"place": torch.zeros(shape)}, storage_reader=Reader(trained[0]),
                 planner=Careless())


def test_shardd_goes_on_with_what_torch_saved(address, tmp_path):
    """Two groups, a buffer and a learning rate come back, too, and a daemon restores the folder."""
    torch.manual_seed(0)
    m = models.GPT()
    m.register_buffer("seen", torch.arange(5))
    m.register_buffer("scale", torch.full((3,), 2.5))
    decay = [p for p in m.parameters() if p.dim() > 1]
    rest = [p for p in m.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}], lr=1e-2)
    go(m, opt, 0, 3)
    model_state, optim_state = get_state_dict(m, opt)
    path = str(tmp_path / "gpt" / "global_step3")
    dcp.save({"model": model_state, "optim": optim_state},
             storage_writer=Writer(path, name="gpt", settings="min_world=1 max_world=1 clip=1"))
    c = shardd.Checkpoint(path)
    assert c.step == c.applied == 3 and set(c) == {n for n, _ in m.named_parameters()}
    assert all(torch.equal(c[n], p) for n, p in m.named_parameters())
    assert [g.settings["weight_decay"] for g in c.groups()] == [0.01, 0.0]
    assert c.groups()[0].settings["lr"] == pytest.approx(1e-2)
    with pytest.raises(CheckpointException, match="is there: choose another name"):
        dcp.save({"model": model_state}, storage_writer=Writer(path))
    again = {"model": {k: torch.zeros_like(v) for k, v in model_state.items()}}
    dcp.load(again, storage_reader=Reader(path, model=m))
    assert torch.equal(again["model"]["seen"], m.seen)
    assert torch.equal(again["model"]["scale"], m.scale)
    want = go(m, opt, 3, 6)
    session = Session(address)
    session.restore(str(tmp_path / "gpt"), "global_step3", "gpt")
    k = models.GPT()
    named = list(k.named_parameters())
    mine = shardd.AdamW([{"params": [(n, p) for n, p in named if p.dim() > 1]},
                         {"params": [(n, p) for n, p in named if p.dim() <= 1],
                          "weight_decay": 0.0}], lr=1e-2, name="gpt", resume="must",
                        address=address)
    assert mine.global_step == 3
    losses = []
    for s in range(3, 6):
        loss = k(*models.tokens(s, 0))
        loss.backward()
        mine.step()
        mine.zero_grad()
        losses.append(loss.item())
    mine.close()
    session.disconnect()
    assert losses == pytest.approx(want, abs=2e-5)


def sharded(line, folder, out):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(7)
    m = models.GPT()
    # FSDP2 shards no tied weight.
    m.head.weight = torch.nn.Parameter(m.head.weight.detach().clone())
    for b in m.blocks:
        fully_shard(b, mesh=mesh)
    fully_shard(m, mesh=mesh)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-2)
    model_state, optim_state = get_state_dict(m, opt)
    state = {"model": model_state, "optim": optim_state}
    dcp.load(state, storage_reader=Reader(folder, tied={"head.weight": "embed.weight"}))
    set_state_dict(m, opt, model_state_dict=state["model"], optim_state_dict=state["optim"])
    c = shardd.Checkpoint(folder)
    for n, p in m.named_parameters():
        src = "embed.weight" if n == "head.weight" else n
        assert isinstance(p, DTensor) and torch.equal(p.full_tensor(), c[src]), n
        for k in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(opt.state[p][k].full_tensor(), c.read(src, k)), (n, k)
        assert float(opt.state[p]["step"]) == 3
    # Columns of a matrix, of which each rank has some.
    cols = distribute_tensor(torch.zeros(192, 64), mesh, [Shard(1)])
    part = {"blocks.1.qkv.weight": cols}
    dcp.load(part, storage_reader=Reader(folder))
    assert torch.equal(cols.full_tensor(), c["blocks.1.qkv.weight"])
    for s in range(3, 5):
        opt.zero_grad()
        m(*models.tokens(s, 0)).backward()
        opt.step()
    model_state, optim_state = get_state_dict(m, opt)
    state = {"model": model_state, "optim": optim_state}
    dcp.save(state, storage_writer=Writer(out, name="gpt"))
    d = shardd.Checkpoint(out)
    full = {n: (p.full_tensor(), {k: v.full_tensor() for k, v in opt.state[p].items()
                                  if k != "step"}) for n, p in m.named_parameters()}
    assert d.step == 5 and set(d) == set(full)
    for n, (p, moments) in full.items():
        assert torch.equal(d[n], p), n
        for k, x in moments.items():
            assert torch.equal(d.read(n, k), x), (n, k)
    dcp.save({"w": cols}, storage_writer=Writer(out + "c", name="cols"))
    assert torch.equal(shardd.Checkpoint(out + "c")["w"], cols.full_tensor())
    try:
        dcp.save(state, storage_writer=Writer(out, name="gpt"))
        line.say("said", refused="")
    except BaseException as e:  # CheckpointException is no Exception.
        line.say("said", refused=str(e))
    line.say("said", files=len(d.manifest["files"]))
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def test_sharded_targets_and_sources(trained, tmp_path):
    """FSDP2 with two ranks: each reads what it needs of it, and writes a file of its own."""
    folder, _ = trained
    out = str(tmp_path / "out" / "global_step5")
    crew.preload()
    ranks = Crew(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), WORLD_SIZE="2")
    said = []
    try:
        for r in range(2):
            ranks.start(sharded, {"RANK": str(r)}, folder=folder, out=out)
        ranks.run(lambda member, message: said.append(message))
    finally:
        ranks.close()
    refused = [m["refused"] for m in said if "refused" in m]
    assert len(refused) == 2 and all("is there: choose another name" in r for r in refused)
    assert {m["files"] for m in said if "files" in m} == {2}
    assert sorted(os.listdir(out)) == ["manifest.json", "rank-00000.safetensors",
                                       "rank-00001.safetensors"]
    assert (tmp_path / "out" / "latest").read_text() == "global_step5c\n"
    assert not [f for f in os.listdir(tmp_path / "out") if f.startswith(".")]


def test_what_cannot_be_saved_is_named(tmp_path):
    for path, text in ((tmp_path / ".x", "does not begin with a dot"),
                       (tmp_path / "latest", "is not latest")):
        with pytest.raises(ValueError, match=text):
            Writer(path)
    with pytest.raises(ValueError, match="name of a model"):
        Writer(tmp_path / "x", name="No Way")
    path = str(tmp_path / "a")
    state = {"model": {"w": torch.ones(3)}, "optim": {"state": {
        "w": {"exp_avg": torch.ones(3), "step": torch.tensor(1.0)}, "v": {
            "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}}}}
    with pytest.raises(CheckpointException, match="has state of 'v'"):
        dcp.save(state, storage_writer=Writer(path))
    del state["optim"]["state"]["v"]
    writer = Writer(path, kind="adamw")
    state["optim"]["state"]["w"]["exp_avg_sq"] = torch.ones(4)
    with pytest.raises(CheckpointException, match="exp_avg_sq of 'w' has shape"):
        dcp.save(state, storage_writer=writer)
    state["optim"]["state"]["w"]["exp_avg_sq"] = torch.ones(3)
    dcp.save(state, storage_writer=writer)  # What the failed ones left is not in the way.
    assert shardd.Checkpoint(path).kinds == ["master", "exp_avg", "exp_avg_sq"]
    assert set(os.listdir(tmp_path)) == {"a", "latest"}


def test_a_file_that_would_run_code_is_refused(tmp_path):
    """client/dcp.pt is read as data."""
    path = tmp_path / "a"
    dcp.save({"w": torch.ones(3), "n": torch.arange(3)}, storage_writer=Writer(path))
    torch.save({"n": pathlib.Path("x")}, path / "client" / "dcp.pt")
    with pytest.raises(CheckpointException, match="Path, and only data are read"):
        dcp.load({"w": torch.ones(3)}, storage_reader=Reader(path))


def test_metadata_by_every_release_of_python(tmp_path):
    """Python 3.11.2 (Debian 12) writes a member of an Enum as getattr(class, name)."""
    from torch.distributed.checkpoint import metadata

    from shardd.dcp import _Unpickler

    class ByGetattr(pickle.Pickler):
        def reducer_override(self, what):
            if isinstance(what, metadata._MEM_FORMAT_ENCODING):
                return getattr, (type(what), what.name)
            return NotImplemented

    for what, is_read in ((metadata.TensorProperties(dtype=torch.float32), True),
                          (Evil(), False)):
        to = io.BytesIO()
        ByGetattr(to).dump(what)
        to.seek(0)
        if is_read:
            assert _Unpickler(to).load() == what and b"getattr" in to.getvalue()
            continue
        with pytest.raises(pickle.UnpicklingError, match="only data are read"):
            _Unpickler(to).load()


class Evil:
    """Asks for what a class has beside its members."""

    def __reduce__(self):
        return getattr, (torch.Size, "__init__")


def test_dtypes_that_differ_are_kept(address, tmp_path):
    """A bf16 model with an fp32 norm, through files of everybody and back, is the same model."""
    from safetensors.torch import load_file

    def model():
        torch.manual_seed(0)
        m = models.GPT().bfloat16()
        m.norm.float()
        return m

    def step(m, opt):
        m(*models.tokens(0, 0)).backward()
        opt.step()

    def same(m, other):
        return all(torch.equal(x, y) and x.dtype == y.dtype
                   for x, y in zip(m.state_dict().values(), other.state_dict().values()))

    m = model()
    opt = shardd.AdamW(m, lr=1e-2, name="gpt", address=address)
    step(m, opt)
    opt.save(str(tmp_path / "a"))
    opt.close()
    there = model()
    there.load_state_dict(shardd.from_checkpoint(str(tmp_path / "a")), strict=False)
    assert same(m, there)
    convert = [sys.executable, "-m", "shardd.convert"]
    for of, to, form in (("a", "b.safetensors", "safetensors"), ("b.safetensors", "c", "shardd")):
        subprocess.run([*convert, str(tmp_path / of), str(tmp_path / to), "--name", "gpt",
                        "--format", form],
                       check=True)
    weights = load_file(str(tmp_path / "b.safetensors"))
    assert {n: x.dtype for n, x in weights.items()} == {
        n: p.dtype for n, p in m.named_parameters()}
    model_state, optim_state = get_state_dict(there, torch.optim.AdamW(there.parameters()))
    dcp.save({"model": model_state},
             storage_writer=Writer(str(tmp_path / "d" / "global_step1"), name="gpt"))
    for folder in ("c", "d"):  # A daemon restores it as a model whose image has both dtypes.
        saved = shardd.Checkpoint(str(tmp_path / folder))
        assert saved.own_dtypes == shardd.Checkpoint(str(tmp_path / "a")).own_dtypes != {}
        s = Session(f"{address}-{folder}")
        s.restore(str(tmp_path / folder), None, "gpt")
        found = {t.name: _p.dtype_of(t.image) for t in s.layout()}
        assert {n: found[n] for n in weights} == {n: x.dtype for n, x in weights.items()}
        s.disconnect()

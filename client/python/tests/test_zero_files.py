# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of DeepSpeed, both ways. The real DeepSpeed trains with two ranks and saves, shardd
goes on and is compared with DeepSpeed going on; and the other way round."""

import json
import os
import pathlib
import pickle
import shutil
import socket

import pytest
import torch

import crew
import ds_peer
import models
import shardd
import shardd.deepspeed as deepspeed
from crew import Crew
from shardd import convert, zero_files
from shardd.checkpoints import Initial

CASES = {"stage2": (2, {})}
SLOW = {"stage1": (1, {}), "stage3": (3, {}),
        "bf16": (2, {"bf16": {"enabled": True}})}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def train(engine, first, last):
    """The batches of two ranks as two micro-batches. Returns the losses by rank."""
    losses = [[], []]
    for s in range(first, last):
        for r in range(2):
            loss = engine(*models.tokens(s, r))
            engine.backward(loss)
            engine.step()
            losses[r].append(loss.item())
    return losses


_engines = iter(range(1000))


def engine_of_shardd(address, seed, **more):
    torch.manual_seed(seed)
    model = models.GPT()
    words = {**ds_peer.config(2, **more), "gradient_accumulation_steps": 2,
             "shardd": {"address": address, "name": f"zero{next(_engines)}"}}
    return deepspeed.initialize(model=model, config=words,
                                model_parameters=list(model.parameters()))[0]


class Runs:
    """What DeepSpeed and shardd did, and where their files are."""

    def __init__(self, dir, cases):
        self.dir, self.address = str(dir), f"spawn:zero{os.getpid()}{len(cases)}"
        engine = engine_of_shardd(self.address, 0)
        train(engine, 0, 3)
        engine.save_checkpoint(f"{dir}/shardd", client_state={"who": "shardd"})
        self.ours = train(engine, 3, 6)
        engine.destroy()
        for kind, words in (("universal", []), ("zero", ["--ranks", "2"])):
            assert convert.main([f"{dir}/shardd", f"{dir}/{kind}", "--format", kind, "--quiet",
                                 *words]) == 0
        crew.preload()
        ranks = Crew(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), WORLD_SIZE="2",
                     LOCAL_SIZE="2")
        self.said = {}
        try:
            for r in range(2):
                ranks.start(ds_peer.both_ways, {"RANK": str(r), "LOCAL_RANK": str(r)},
                            dir=self.dir, cases=cases,
                            theirs={k: f"{dir}/{k}" for k in ("universal", "zero")})
            ranks.run(lambda m, said: self.said.setdefault(
                (said["what"], said.get("case")), {}).setdefault(m.number, said))
        finally:
            ranks.close()

    def losses(self, what, case):
        return [self.said[what, case][r]["losses"] for r in range(2)]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("zero"), CASES)


@pytest.fixture(scope="module")
def thorough(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("zero"), SLOW)


@pytest.fixture(params=[*CASES, *[pytest.param(c, marks=pytest.mark.slow) for c in SLOW]])
def case(request):
    return request.param


@pytest.fixture
def runs(request, case):
    return request.getfixturevalue("quick" if case in CASES else "thorough")


def near(case):
    # fp32: as two runs of torch, rounded in another order. bf16: one bit of a loss is 2^-6.
    return dict(abs=2e-5) if case != "bf16" else dict(abs=3e-2)


def test_shardd_goes_on_with_deepspeeds(runs, case):
    """By the command, then load_checkpoint() in another world than the one that saved."""
    out = f"{runs.dir}/{case}-shardd"
    assert convert.main([f"{runs.dir}/{case}", out, "--quiet"]) == 0
    engine = engine_of_shardd(runs.address, 1, **(SLOW.get(case) or CASES[case])[1])
    path, client = engine.load_checkpoint(out)
    assert path == f"{out}/global_step3" and client == {"epoch": 7}
    assert engine.global_steps == engine.optimizer.global_step == 3
    got = train(engine, 3, 6)
    engine.destroy()
    want = runs.losses("went", case)
    for r in range(2):
        assert got[r] == pytest.approx(want[r][3:], **near(case))


def test_partitions_and_universal_hold_the_same(runs, case):
    """Bit by bit, and as zero_to_fp32 of DeepSpeed puts them together."""
    a = Initial.from_zero(f"{runs.dir}/{case}")
    b = Initial.from_universal(f"{runs.dir}/{case}-u")
    assert (a.step, a.applied, a.kind) == (b.step, b.applied, b.kind) == (3, 3, "adamw")
    assert a.image == b.image == (torch.bfloat16 if case == "bf16" else torch.float32)
    assert list(a.masters) == list(b.masters) == [n for n, _ in models.GPT().named_parameters()]
    assert [(g.names, g.settings) for g in a.groups] == [(g.names, g.settings) for g in b.groups]
    assert a.groups[0].settings == {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8,
                                    "weight_decay": 0.01}
    assert a.tied == {"head.weight": "embed.weight"}
    for name in a.masters:
        assert torch.equal(a.masters[name], b.masters[name]), name
        for kind in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(a.moments[kind][name], b.moments[kind][name]), (kind, name)
    if case != "bf16":
        for name, x in torch.load(f"{runs.dir}/{case}.fp32").items():
            assert torch.equal(a.masters[a.tied.get(name, name)], x), name


def test_deepspeed_goes_on_with_shardds(runs, case):
    """load_universal in each stage, from one rank of shardd to two of DeepSpeed."""
    said = runs.said["came", f"{case}-universal"]
    assert {said[r]["steps"] for r in said} == {3} and said[0]["path"]
    got = runs.losses("came", f"{case}-universal")
    for r in range(2):
        assert got[r] == pytest.approx(runs.ours[r], **near(case))


def test_deepspeed_reads_partitions_of_shardd(quick):
    """zero_to_fp32, and load_checkpoint() of stage 2 with as many ranks as it is cut for."""
    c = shardd.Checkpoint(f"{quick.dir}/shardd")
    fp32 = torch.load(f"{quick.dir}/zero.fp32")
    assert set(fp32) == {*c, "head.weight"} and all(torch.equal(fp32[n], c[n]) for n in c)
    said = quick.said["came", "zero"]
    assert said[0]["steps"] == 3 and said[0]["client"] == "shardd"
    for r in range(2):
        assert said[r]["losses"] == pytest.approx(quick.ours[r], abs=2e-5)


# --- files that are wrong ---


class Evil:
    def __reduce__(self):
        return os.mkdir, (self.path,)


def changed(path, change):
    """The same file with other contents."""
    x = torch.load(path, weights_only=False) if not isinstance(change, bytes) else None
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        change(x)
        torch.save(x, path)


@pytest.fixture
def wrong(tmp_path):
    """Folders of one step of a small model, written by us, to be spoilt."""
    torch.manual_seed(0)
    masters = {"a.weight": torch.randn(3, 4), "a.bias": torch.randn(5)}
    init = Initial(2, masters, {k: {n: torch.rand_like(x) for n, x in masters.items()}
                                for k in ("exp_avg", "exp_avg_sq")}, kind="adamw")
    zero_files.to_zero(init, str(tmp_path / "z" / "global_step2"), ranks=3)
    zero_files.to_universal(init, str(tmp_path / "u" / "global_step2_universal"))
    return tmp_path, init


def test_ranks_and_paddings(wrong, tmp_path):
    """Any number of ranks, also more than there are numbers, holds the same."""
    _, init = wrong
    for ranks in (1, 2, 7, 40):
        zero_files.to_zero(init, str(tmp_path / f"r{ranks}" / "t"), ranks=ranks, stage=1)
        got = Initial.from_zero(str(tmp_path / f"r{ranks}"))
        for name, x in init.masters.items():
            assert torch.equal(got.masters[name], x)
            assert torch.equal(got.moments["exp_avg_sq"][name], init.moments["exp_avg_sq"][name])


def test_partitions_that_are_wrong(wrong):
    """Each is refused with what is wrong in which file, and nothing in it runs."""
    base, _ = wrong
    evil = Evil()
    evil.path = str(base / "ran")
    state = "optimizer_state_dict"
    optim, model = "zero_pp_rank_{}_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"
    rows = [
        (optim.format(1), None, "files of ranks .0, 2., and 3 ranks saved it"),
        (model, None, f"{model} is not there"),
        (optim.format(0), b"PK garbage", f"{optim.format(0)} is "),
        (optim.format(0), pickle.dumps(evil, 2), "posix.mkdir, and only data"),
        (model, lambda x: x.update(extra=evil), "posix.mkdir, and only data are read"),
        (model, lambda x: x.update(param_shapes=[{"a.weight": (3, 400), "a.bias": (5,)}]),
         "'a.weight' ends at 1200"),
        (model, lambda x: x.update(param_shapes=[{"a.weight": (3, -4)}]), "with shape"),
        (model, lambda x: x.pop("param_shapes"), "there is no param_shapes"),
        (model, lambda x: x.update(param_shapes=3), "param_shapes is a int"),
        (optim.format(2), lambda x: x[state].update(single_partition_of_fp32_groups=[
            torch.zeros(1).expand(2**40)]), "is no vector of numbers"),
        (optim.format(0), lambda x: x[state].update(zero_stage=9), "zero_stage is 9"),
        (optim.format(0), lambda x: x[state].update(partition_count=[4]), "and 4 ranks saved it"),
        (optim.format(1), lambda x: x[state]["base_optimizer_state"]["state"][0].pop("exp_avg"),
         "there is no optimizer_state_dict.base_optimizer_state.state.0.exp_avg"),
        (optim.format(0), lambda x: x[state]["base_optimizer_state"]["state"][0].update(
            step=torch.zeros(2)), "step is"),
        (model, lambda x: x.update(ds_autoep_layers=[1]), "mixture of experts"),
    ]
    for n, (file, change, sentence) in enumerate(rows):
        folder = base / f"w{n}"
        shutil.copytree(base / "z" / "global_step2", folder)
        if change is None:
            (folder / file).unlink()
        else:
            changed(folder / file, change)
        with pytest.raises((ValueError, FileNotFoundError), match=sentence) as e:
            init = Initial.from_zero(str(folder))
            for name in init.masters:
                init.masters[name], init.moments["exp_avg"][name]
        assert str(folder) in str(e.value)
        assert convert.main([str(folder), str(base / "out"), "--quiet"]) in (1,)
    assert not (base / "ran").exists() and not (base / "out").exists()


def test_universal_that_is_wrong(wrong):
    base, _ = wrong
    for file, change, sentence in (
            ("zero/a.bias/fp32.pt", None, "a.bias/fp32.pt is not there"),
            ("zero/a.bias/fp32.pt", {"param": torch.zeros(6)}, "the tensor has shape"),
            ("zero/a.bias/exp_avg.pt", {"param": "x"}, "there is no tensor"),
            ("zero/a.bias/step.pt", torch.tensor(9.0), "different numbers of steps"),
            ("zero/a.bias/step.pt", "x", "there is no step")):
        folder = base / "w"
        shutil.copytree(base / "u" / "global_step2_universal", folder)
        (folder / file).unlink()
        if change is not None:
            torch.save(change, folder / file)
        with pytest.raises((ValueError, FileNotFoundError), match=sentence):
            init = Initial.from_universal(str(folder))
            for name in init.masters:
                init.masters[name], init.moments["exp_avg"][name]
        shutil.rmtree(folder)


# --- the command ---


def test_the_command(wrong, capsys):
    """Through every format and back: the numbers are those of the beginning. And its status."""
    base, init = wrong
    at = str(base / "z")
    for n, kind in enumerate(("shardd", "universal", "zero", "torch", "shardd", "dcp", "shardd")):
        to = str(base / f"c{n}") + (".pt" if kind == "torch" else "")
        assert convert.main([at, to, "--format", kind, "--json"]) == 0, capsys.readouterr().out
        said = json.loads(capsys.readouterr().out)
        assert (said["step"], said["parameters"], said["optimizer"]) == (2, 17, "adamw")
        if n == 4:
            assert convert.main([at, to, "--format", kind, "--json"]) == 5
            assert "choose another name" in json.loads(capsys.readouterr().out)["error"]
        at = to
    c = shardd.Checkpoint(at)
    assert c.step == c.applied == 2
    for name, x in init.masters.items():
        assert torch.equal(c[name], x)
        assert torch.equal(c.read(name, "exp_avg"), init.moments["exp_avg"][name])
    assert convert.main([at, str(base / "w.safetensors"), "--format", "safetensors"]) == 0
    assert convert.main([str(base / "w.safetensors"), str(base / "v"), "--dtype", "bfloat16"]) == 0
    assert shardd.Checkpoint(str(base / "v")).dtype is torch.bfloat16
    capsys.readouterr()
    assert convert.main([str(base / "nowhere"), str(base / "x")]) == 1
    assert "nowhere is not there" in capsys.readouterr().err
    (base / "empty").mkdir()
    assert convert.main([str(base / "empty"), str(base / "x")]) == 1
    assert "is no checkpoint of shardd" in capsys.readouterr().err
    with pytest.raises(SystemExit) as e:
        convert.main([at])
    assert e.value.code == 2
    assert not pathlib.Path(base / "x").exists()

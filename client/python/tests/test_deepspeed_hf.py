# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer, unchanged, under `python -m shardd.deepspeed`.

Its log equals that of the Trainer alone, and in bf16 and fp16 that of DeepSpeed itself, because the
Trainer alone keeps fp32 weights there and casts per operator. Processes are forked from two servers
that have imported everything: one was started by `python -m shardd.deepspeed`, the other was not.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.slow

SCRIPT = pathlib.Path(__file__).with_name("hf_train.py")
ENV = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cpu"}


def ds(stage, offload="optimizer", **more):
    """A ds_config as Transformers' guides show it. offload: "", "optimizer", or "both"."""
    zero = {"stage": stage}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload == "both":
        zero["offload_param"] = {"device": "cpu"}
    if stage == 3:
        zero.update(stage3_prefetch_bucket_size="auto", stage3_param_persistence_threshold="auto",
                    stage3_gather_16bit_weights_on_model_save=True)
    return {"zero_optimization": zero,
            "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
            "optimizer": {"type": "AdamW", "params": {k: "auto" for k in
                                                      ("lr", "weight_decay", "betas", "eps")}},
            **more}


def of_deepspeed(config):
    """The same for DeepSpeed itself, where it compiles no optimizer of its own."""
    config = json.loads(json.dumps(config))
    config.pop("shardd", None)
    for k in ("offload_optimizer", "offload_param"):
        config["zero_optimization"].pop(k, None)
    if "optimizer" in config:
        config["optimizer"]["params"]["torch_adam"] = True
    return {**config, "zero_force_ds_cpu_optimizer": False}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def env_of(rank, ranks, port, address):
    env = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks),
           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank),
           "LOCAL_RANK": str(rank), **ENV}
    return {**env, "SHARD_ADDRESS": address} if address else env


def log_of(out):
    return json.loads(next(x for x in out.splitlines() if x.startswith("LOG "))[4:])


class Server:
    """hf_train.py --serve. Started when somebody asks it first."""

    def __init__(self, start, folder):
        self.start, self.folder, self.n, self.process = start, folder, 0, None

    def train(self, words, ranks, address=None):
        """What rank 0 logged, and what all wrote to stderr."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, *self.start, str(SCRIPT), "--serve"], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **ENV})
        self.n += 1
        port = free_port()
        outs = [str(self.folder / f"{self.n}-{r}") for r in range(ranks)]
        self.process.stdin.write(json.dumps([
            [words, env_of(r, ranks, port, address), outs[r]] for r in range(ranks)]) + "\n")
        self.process.stdin.flush()
        status = json.loads(next(x for x in self.process.stdout if x.startswith("DONE "))[5:])
        err = "".join(pathlib.Path(f"{o}.err").read_text() for o in outs)
        assert status == [0] * ranks, err[-6000:]
        return log_of(pathlib.Path(f"{outs[0]}.out").read_text()), err

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(60)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """(ours, plain). plain(words, ranks): a log of the Trainer alone, or of DeepSpeed."""
    made = [Server(["-m", "shardd.deepspeed"], tmp_path_factory.mktemp("ours")),
            Server([], tmp_path_factory.mktemp("plain"))]
    logs = {}

    def plain(words, ranks):
        key = json.dumps([words, ranks], sort_keys=True)
        if key not in logs:
            out = str(tmp_path_factory.mktemp("out"))
            logs[key] = made[1].train({**words, "out": out}, ranks)[0]
        return logs[key]

    yield made[0].train, plain
    for s in made:
        s.close()


def close(a, b, digits):
    return a == b or abs(a - b) < 10 ** -digits * max(1, abs(b))


def same(got, want, digits=4, later=0):
    """The same steps, losses, gradient norms, learning rates, evaluations and saved tensors.

    later: 1 where the other is the Trainer alone, which logs the rate that a step had. With an
    engine, DeepSpeed's as well, the schedule has moved on by then."""
    assert [x[0] for x in got["log"]] == [x[0] for x in want["log"]]
    for a, b in zip(got["log"], want["log"]):
        assert close(a[1], b[1], digits) and close(a[2], b[2], digits - 1), (got, want)
    for a, b in zip(got["log"], want["log"][later:]):
        assert close(a[3], b[3], 9), (got, want)
    assert [x[0] for x in got["eval"]] == [x[0] for x in want["eval"]]
    for a, b in zip(got["eval"], want["eval"]):
        assert close(a[1], b[1], digits), (got, want)
    assert got.get("best") == want.get("best")
    if "after" in got:  # What the best one was, is there again.
        assert close(got["after"], dict(got["eval"])[got["best"]], 6), got
    assert got.get("saved", {}).keys() == want.get("saved", {}).keys()
    for k, v in want.get("saved", {}).items():
        assert close(got["saved"][k] / max(1, v), v / max(1, v), digits - 1), (k, got, want)


# With 2^20 the first steps overflow. In stage 0 nothing overflows, and the Trainer alone, in fp32,
# is what it is compared with: DeepSpeed has another optimizer there, whose steps are not these.
BF16, FP16 = ({"bf16": {"enabled": "auto"}},
              {"fp16": {"enabled": "auto", "initial_scale_power": 20}})
FP16_STAGE_0 = {"fp16": {"enabled": "auto", "initial_scale_power": 16}}
COPY = {"shardd": {"params": "copy"}}  # Stage 3 fetches parameters, as on a GPU.
R = "resume"

# A row: the model, stage, offload, ranks, accumulation, dtype, and what else is on. "resume" trains
# the first half with the number of ranks behind it.
MATRIX = [
    ("llama", 0, "", 1, 1, None, {}),
    ("llama", 1, "optimizer", 2, 2, None, {"save": 2}),
    ("llama", 2, "optimizer", 2, 1, None, {"save": 2, "best": True}),
    ("llama", 2, "", 1, 2, None, {"fits": 2}),
    ("llama", 3, "both", 2, 2, None, {"gc": "plain", "save": 2, R: 1}),
    ("llama", 3, "copy", 1, 1, None, {"peft": True, "save": 2, "best": True}),
    ("llama", 2, "optimizer", 2, 1, "bf16", {}),
    ("llama", 1, "", 2, 2, "fp16", {}),
    ("llama", 3, "both", 2, 2, "bf16", {"gc": "reentrant"}),
    ("llama", 0, "", 1, 1, "fp16", {"gc": "reentrant"}),
    ("llama", 2, "optimizer", 1, 1, "bf16", {"peft": True, "gc": "plain"}),
    ("gpt2", 0, "", 2, 2, None, {"save": 2, R: 2}),
    ("gpt2", 1, "", 1, 1, None, {"gc": "reentrant", "peft": True}),
    ("gpt2", 2, "optimizer", 1, 2, None, {"save": 2, "best": True, R: 2}),
    ("gpt2", 3, "copy", 2, 1, None, {"save": 2, "best": True}),
    ("gpt2", 2, "optimizer", 2, 1, None, {"fits": 3, "save": 2}),
    ("gpt2", 3, "copy", 1, 1, "fp16", {}),
    ("t5", 0, "", 1, 2, None, {"gc": "plain"}),
    ("t5", 1, "optimizer", 2, 1, None, {"peft": True, "save": 2, R: 2}),
    ("t5", 2, "optimizer", 1, 1, None, {"save": 2, "best": True}),
    ("t5", 3, "copy", 2, 2, None, {"save": 2}),
    ("t5", 2, "", 1, 1, "bf16", {}),
    ("mixtral", 0, "", 1, 1, None, {"save": 2, "best": True}),
    ("mixtral", 1, "optimizer", 2, 2, None, {"gc": "plain"}),
    ("mixtral", 2, "", 2, 1, None, {"save": 2, R: 1}),
    ("mixtral", 3, "copy", 1, 2, None, {"gc": "reentrant", "save": 2}),
    ("mixtral", 1, "optimizer", 1, 2, None, {"fits": 2, "peft": True}),
    ("mixtral", 2, "optimizer", 2, 1, "bf16", {}),
]


@pytest.mark.parametrize("row", MATRIX, ids=lambda r: "-".join(
    [r[0], f"z{r[1]}", r[2] or "no", f"{r[3]}ranks", f"acc{r[4]}", r[5] or "fp32",
     *(f"{k}{v}" for k, v in r[6].items() if k != "save")]))
def test_log_equals_plain(row, servers, address, tmp_path):
    """The first rows of a model without other things run first, and their logs are kept."""
    ours, plain = servers
    arch, stage, offload, ranks, accumulation, dtype, more = row
    more = dict(more)
    first = more.pop(R, None)
    words = {"arch": arch, "accumulation": accumulation, "dtype": dtype, "batch": 4, **more}
    config = {**ds(stage, "both" if offload == "copy" else offload),
              **{None: {}, "bf16": BF16, "fp16": FP16 if stage else FP16_STAGE_0}[dtype],
              **(COPY if offload == "copy" else {})}
    peer = dtype and stage > 0
    if peer:
        want = plain({**words, "ds": of_deepspeed(config)}, ranks)
    else:
        want = plain({**words, "gc": None, "dtype": None}, ranks)
    words["ds"] = config
    if first is not None:
        out = str(tmp_path / "first")
        ours({**words, "out": out, "batch": 4 * ranks // first}, first, address + "a")
        words["resume"] = f"{out}/checkpoint-2"
    got, _ = ours({**words, "out": str(tmp_path / "out")}, ranks, address)
    assert got["engine"] == "shardd" and (want["engine"] == "deepspeed") == bool(peer)
    same(got, want, digits=3 if dtype else 4, later=0 if peer else 1)


def test_every_rank_on_the_same_batch_is_said(servers, address, tmp_path):
    """use_cpu=False on a machine without a GPU: Accelerate counts one process on each rank."""
    with pytest.raises(AssertionError, match=r"Accelerate counts one process(.|\n)*use_cpu=True"
                       r"(.|\n)*PartialState\(cpu=True\)"):
        servers[0]({"out": str(tmp_path), "ds": ds(2), "use_cpu": False, "steps": 2}, 2, address)


def test_the_matrix_has_each_pair():
    """Each value of each axis, and each two that touch each other in the code, are in a row."""
    def facts(row):
        arch, stage, offload, ranks, accumulation, dtype, more = row
        return {("arch", arch), ("stage", stage), ("offload", offload), ("ranks", ranks),
                ("accumulation", accumulation), ("dtype", dtype or "fp32"), ("gc", more.get("gc")),
                *((k, True) for k in more if k in ("peft", "best", "resume", "fits"))}

    rows = [facts(r) for r in MATRIX]
    axes = {"arch": ["llama", "gpt2", "t5", "mixtral"], "stage": [0, 1, 2, 3], "ranks": [1, 2],
            "accumulation": [1, 2], "offload": ["", "optimizer", "both", "copy"],
            "dtype": ["fp32", "bf16", "fp16"], "gc": ["plain", "reentrant"],
            "peft": [True], "best": [True], "resume": [True], "fits": [True]}
    touching = [("arch", "stage"), ("arch", "ranks"), ("arch", "accumulation"),
                ("stage", "ranks"), ("stage", "accumulation"), ("ranks", "resume"),
                ("ranks", "best"), ("ranks", "dtype"), ("ranks", "fits"), ("ranks", "gc"),
                ("accumulation", "dtype"), ("accumulation", "gc"), ("accumulation", "fits"),
                ("arch", "resume"), ("arch", "best"), ("peft", "gc"), ("peft", "best"),
                ("peft", "resume"), ("peft", "fits"), ("best", "resume")]
    missing = [(a, x, b, y) for a, b in touching for x in axes[a] for y in axes[b]
               if not any((a, x) in r and (b, y) in r for r in rows)]
    missing += [(a, x) for a in axes for x in axes[a] if not any((a, x) in r for r in rows)]
    # bf16 and fp16 in each stage that treats them otherwise; Transformers refuses to look for the
    # batch size in stage 3.
    pairs = {(r[1], r[5]) for r in MATRIX}
    assert {(2, "bf16"), (3, "bf16"), (0, "fp16"), (1, "fp16"), (3, "fp16")} <= pairs
    assert not missing, missing


ACCELERATE = """
import json, sys, torch
torch.set_num_threads(1)
from accelerate import Accelerator, DeepSpeedPlugin
import models
o = json.loads(sys.argv[1])
plugin = DeepSpeedPlugin(hf_ds_config=o["ds"]) if o["ds"] else None
acc = Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=2)
assert not o["ds"] or acc.distributed_type == "DEEPSPEED"
torch.manual_seed(0)
model = models.GPT()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = [models.tokens(i, 0, batch=1) for i in range(64)]
loader = torch.utils.data.DataLoader([(x[0], y[0]) for x, y in data], batch_size=2)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: 1 / (1 + i))
model, opt, loader, sched = acc.prepare(model, opt, loader, sched)
log = []
for i, (x, y) in enumerate(loader):
    with acc.accumulate(model):
        loss = model(x, y)
        acc.backward(loss)
        norm = acc.clip_grad_norm_(model.parameters(), 1.0) if acc.sync_gradients else 0.0
        opt.step()
        sched.step()
        opt.zero_grad()
    log.append(loss.item())
    if i == 7 and o["ds"]:
        acc.save_state(o["out"])
        state = acc.get_state_dict(model)
        acc.load_state(o["out"])
        assert len(state) == len(acc.unwrap_model(model).state_dict())
        assert state["head.weight"] is state["embed.weight"]  # Tied, and written once.
if acc.process_index == 0:
    print("LOG " + json.dumps(log), flush=True)
"""


def test_a_loop_of_accelerate(address, tmp_path):
    """One rank, and an Optimizer's state saved and loaded in one run. This is a script of its own,
    started as users start it. Two ranks are in test_accelerate.py."""
    script = tmp_path / "loop.py"
    script.write_text(ACCELERATE)
    config = {"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 2,
              "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0}

    def run(*start, **words):
        done = subprocess.run(
            [sys.executable, *start, str(script),
             json.dumps({"out": str(tmp_path / "s"), **words})], text=True, timeout=400,
            env={**os.environ, **env_of(0, 1, free_port(), address)}, capture_output=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return log_of(done.stdout)

    assert run("-m", "shardd.deepspeed", ds=config) == pytest.approx(run(ds=None), rel=1e-3)


def test_optimizer_and_scheduler_of_the_script(servers, address, tmp_path):
    """Without optimizer and scheduler in the file, the Trainer's own are taken over."""
    ours, plain = servers
    config = ds(2)
    del config["optimizer"]
    words = {"arch": "llama", "accumulation": 1, "dtype": None, "batch": 4}
    same(ours({**words, "out": str(tmp_path), "ds": config}, 1, address)[0], plain(words, 1))

# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with shardd.AdamW and shardd.hf.TrainerCallback, without DeepSpeed.

Its log and what it saves equal those of the Trainer alone, with one and two ranks. What it refuses
ends in a sentence. Under `python -m shardd.deepspeed` see test_deepspeed_hf.py.
"""

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from test_deepspeed_hf import ENV, Server, free_port, same  # noqa: E402


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """train(words, ranks, address): what the Trainer of hf_train.py logged."""
    server = Server([], tmp_path_factory.mktemp("served"))
    yield lambda words, ranks, address=None: server.train(words, ranks, address)[0]
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("ranks, words", [
    (1, {}), (2, {"accumulation": 2}), (2, {"arch": "gpt2", "peft": True}),
    (1, {"dtype": "bf16", "gc": "plain"})],
    ids=lambda w: "-".join(f"{k}{v}" for k, v in w.items()) if isinstance(w, dict) else str(w))
def test_log_equals_plain(ranks, words, train, address, tmp_path):
    """bf16 is autocast here, and the parameters are fp32: what the Trainer alone does as well."""
    words = {**words, "save": 2}
    want = train({**words, "out": str(tmp_path / "plain")}, ranks)
    got = train({**words, "alone": True, "out": str(tmp_path / "out")}, ranks, address)
    same(got, want, digits=3 if "dtype" in words else 5)
    assert [x[3] for x in got["log"]] == [x[3] for x in want["log"]]
    assert got["more"] == [[1.0, ranks, step] for step in (1, 2, 3, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("first, then", [(1, 1), (2, 1), (1, 2)])
def test_goes_on(first, then, train, address, tmp_path):
    """With the checkpoint that the daemon wrote in the folder of the Trainer's, in another daemon
    and another world. The log is then that of a run that was never interrupted, bit by bit where
    the world is the same."""
    words = {"alone": True, "save": 2}
    whole = train({**words, "batch": 8 // first, "out": str(tmp_path / "a")}, first, address)
    saved = tmp_path / "a" / "checkpoint-2"
    assert (saved / "global_step2").is_dir() and (saved / "optimizer.pt").stat().st_size < 8192
    got = train({**words, "batch": 8 // then, "out": str(tmp_path / "b"), "resume": str(saved)},
                then, address + "b")
    if first == then:
        assert got["log"] == whole["log"] and got["saved"] == whole["saved"]
    else:
        same(got, whole, digits=5)


REFUSED = """
    import torch
    from transformers import Trainer, TrainingArguments
    import shardd

    model = torch.nn.Linear(2, 2)

    def refused(opt, ranks=1, **more):
        trainer = Trainer(model, TrainingArguments("out", use_cpu=True, report_to=[], **more),
                          eval_dataset=[{}], optimizers=(opt, None))
        os.environ["WORLD_SIZE"] = str(ranks)
        try:
            shardd.hf.TrainerCallback(trainer)
        except ValueError as e:
            say(text=str(e))

    ours = shardd.AdamW(model, lr=0.1)
    refused(torch.optim.AdamW(model.parameters()))
    refused(ours, gradient_accumulation_steps=4)
    refused(ours, load_best_model_at_end=True, save_strategy="steps", eval_strategy="steps")
    refused(ours, ranks=2)
"""
SENTENCES = ["the Trainer's optimizer is AdamW: give it optimizers=(shardd.AdamW(model, ",
             "gradient_accumulation_steps is 4, and the Optimizer has accumulate=1",
             "load_best_model_at_end would write parameters",
             "WORLD_SIZE is 2, and the Trainer counts 1"]


def test_refusals(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said, err = start(REFUSED, None, **ENV).wait()
    assert status == 0, err
    assert len(said) == len(SENTENCES)
    for got, sentence in zip(said, SENTENCES):
        assert sentence in got["text"]


WITHOUT = """
    import torch
    from transformers import Trainer, TrainingArguments
    import shardd

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(2, 1)

        def forward(self, x):
            return {"loss": self.a(x).mean()}

    torch.manual_seed(0)
    model = Net()
    opt = shardd.AdamW(model, lr=0.1)
    args = TrainingArguments("out", use_cpu=True, report_to=[], max_steps=2, save_strategy="no")
    try:
        Trainer(model, args, train_dataset=[{"x": torch.ones(2)}] * 64,
                optimizers=(opt, None)).train()
    except RuntimeError as e:
        say(text=str(e))
    opt.close(drop=False)
    os._exit(0)  # The other rank may wait in a collective.
"""


@pytest.mark.slow
@pytest.mark.parametrize("n", [0, 2])
def test_the_callback_is_missed(n, start, tmp_path, monkeypatch):
    """Where the Trainer clips, and with two ranks where it has made DDP of the model."""
    monkeypatch.chdir(tmp_path)
    port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    made = [start(WITHOUT, r, n, **ENV, **port) for r in range(n)] or [start(WITHOUT, None, **ENV)]
    for status, said, err in [r.wait() for r in made]:
        assert "shardd.hf.TrainerCallback(trainer)" in said[0]["text"], err

# SPDX-License-Identifier: Apache-2.0
"""A script with Accelerate as its users write it: a random BERT tells kinds of sequences apart.

accelerate_train.py '{"mode": "accelerate", "stage": 2, ...}' trains, evaluates, and prints the mean
loss over ranks of each micro-batch and what was right. mode "loop": a plain loop of torch, in one
process, over the batches of all ranks. It knows nothing of shardd.
"""

import json
import sys
import warnings

import torch

warnings.filterwarnings("ignore")
torch.set_num_threads(1)

from transformers import BertConfig, BertForSequenceClassification  # noqa: E402

o = {"mode": "accelerate", "stage": 2, "ranks": 1, "accumulation": 2, "steps": 6, "save": None,
     "resume": None, **json.loads(sys.argv[1])}
BATCH, V, LENGTH, CLIP, SAVED_AT = 4, 64, 16, 0.5, 3


def data(count, seed):
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 3, (count,), generator=g)
    start = torch.randint(0, V, (count, 1), generator=g)
    x = (start + torch.arange(LENGTH) * (1 + kind[:, None])) % V
    return torch.utils.data.DataLoader([dict(input_ids=a, labels=b) for a, b in zip(x, kind)],
                                       batch_size=BATCH)


def tools():
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=LENGTH, num_labels=3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return model, opt, torch.optim.lr_scheduler.LambdaLR(opt, lambda i: 1 / (1 + 0.1 * i))


def loop():
    """Accelerate's scheduler makes a step for each rank."""
    (model, opt, sched), losses = tools(), []
    batches = iter(data(256, 1))
    for _ in range(o["steps"]):
        for _ in range(o["accumulation"]):
            loss = sum(model(**next(batches)).loss for _ in range(o["ranks"])) / o["ranks"]
            losses.append(loss.item())
            (loss / o["accumulation"]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        opt.step()
        opt.zero_grad()
        for _ in range(o["ranks"]):
            sched.step()
    return losses, sum((model(**b).logits.argmax(-1) == b["labels"]).sum().item()
                       for b in data(30, 2))


def accelerate():
    from accelerate import Accelerator, DeepSpeedPlugin, PartialState
    PartialState(cpu=True)  # Accelerator(cpu=True) would leave DeepSpeed out, in silence.
    plugin = DeepSpeedPlugin(hf_ds_config={
        "zero_optimization": {"stage": o["stage"]}, "gradient_clipping": CLIP,
        "gradient_accumulation_steps": o["accumulation"],
        "train_micro_batch_size_per_gpu": "auto"})
    acc = Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=o["accumulation"])
    assert acc.distributed_type == "DEEPSPEED" and acc.num_processes == o["ranks"]
    model, opt, sched = tools()
    model, opt, train, test, sched = acc.prepare(model, opt, data(256, 1), data(30, 2), sched)
    losses, step = [], 0
    if o["resume"]:
        acc.load_state(o["resume"])
        step = SAVED_AT
        train = acc.skip_first_batches(train, step * o["accumulation"])
    for batch in train:
        with acc.accumulate(model):
            loss = model(**batch).loss
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(model.parameters(), CLIP)
            opt.step()
            sched.step()
            opt.zero_grad()
        losses.append(acc.gather(loss.detach().reshape(1)).mean().item())
        step += acc.sync_gradients
        if o["save"] and step == SAVED_AT and acc.sync_gradients:
            acc.save_state(o["save"])
        if step == o["steps"]:
            break
    model.eval()
    right = 0
    for batch in test:
        with torch.no_grad():
            said = model(**batch).logits.argmax(-1)
        said, wanted = acc.gather_for_metrics((said, batch["labels"]))
        right += (said == wanted).sum().item()
    return losses, right, acc.is_main_process


losses, right, *main = loop() if o["mode"] == "loop" else accelerate()
if main != [False]:
    print("LOG " + json.dumps([losses, right]), flush=True)

# SPDX-License-Identifier: Apache-2.0
"""A script with Hugging Face's Trainer as users write it. It knows nothing of shardd, unless it is
told to give the Trainer a shardd.Optimizer ("alone").

hf_train.py '{"arch": "llama", "ds": null or a ds_config, "steps": 4, ...}' trains a random model
from a config on numbers, and prints one line with what it logged. The tests start it by
`python -m shardd.deepspeed`. Importing takes longer than training, so that with --serve it is a
server: each line names processes, which are forked and train.
"""

import json
import math
import os
import signal
import sys
import time
import warnings

import torch

warnings.filterwarnings("ignore")
torch.set_num_threads(1)

import peft  # noqa
import safetensors  # noqa
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,  # noqa
                          MixtralConfig, MixtralForCausalLM, T5Config, T5ForConditionalGeneration,
                          Trainer, TrainingArguments, set_seed)

WORDS = {"arch": "llama", "ds": None, "steps": 4, "accumulation": 1, "out": "out", "save": 0,
         "resume": None, "peft": False, "gc": None, "use_cpu": True, "batch": 4, "dtype": None,
         "best": False, "fits": None, "alone": False}
PATIENCE_S = 240
V, D, LENGTH = 64, 32, 16


def llama():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=V, hidden_size=D, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        pad_token_id=0))


def gpt2():
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=V, n_positions=LENGTH, n_embd=D, n_layer=2, n_head=4, resid_pdrop=0,
        embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0))


def t5():
    return T5ForConditionalGeneration(T5Config(
        vocab_size=V, d_model=D, d_kv=8, d_ff=48, num_layers=1, num_decoder_layers=1, num_heads=4,
        dropout_rate=0, decoder_start_token_id=0))


def mixtral():
    return MixtralForCausalLM(MixtralConfig(
        vocab_size=V, hidden_size=D, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        num_local_experts=4, num_experts_per_tok=1, pad_token_id=0))


MODELS = {"llama": (llama, ["q_proj", "v_proj"]), "gpt2": (gpt2, ["c_attn"]),
          "t5": (t5, ["q", "v"]), "mixtral": (mixtral, ["q_proj", "v_proj"])}


def refuses(model, fits):
    """A batch of more than `fits` rows is what torch says when memory is out."""
    def before(module, args, kwargs):
        if len(kwargs["input_ids"]) > fits:
            raise RuntimeError("CUDA out of memory. Tried to allocate more than there is")
    model.register_forward_pre_hook(before, with_kwargs=True)


def saved(folder):
    """The sum of each tensor's magnitudes in what the Trainer saved of the model."""
    with safetensors.safe_open(folder, "pt") as f:
        return {k: f.get_tensor(k).double().abs().sum().item() for k in f.keys()}


def alone(model, o, init):
    """What the Trainer would make itself, as an Optimizer of shardd."""
    import shardd
    decayed = Trainer.get_decay_parameter_names(None, model)
    groups = [{"params": [(n, p) for n, p in model.named_parameters()
                          if p.requires_grad and (n in decayed) == yes],
               "weight_decay": 0.01 * yes} for yes in (True, False)]
    return shardd.AdamW(groups, lr=1e-2, accumulate=o["accumulation"], name="alone",
                        init=init and shardd.Initial.from_shardd(init))


def main(given):
    """Trains. Returns its log, what it evaluated, and what its last checkpoint has."""
    o = {**WORDS, **given}
    set_seed(0)
    make, layers = MODELS[o["arch"]]
    model = make()
    if o["peft"]:
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=4, lora_dropout=0.0, target_modules=layers,
            task_type="SEQ_2_SEQ_LM" if o["arch"] == "t5" else "CAUSAL_LM"))
    if o["fits"]:
        refuses(model, o["fits"])
    g = torch.Generator().manual_seed(1)
    data = [dict(input_ids=(x := (torch.randint(0, V, (1,), generator=g) + torch.arange(LENGTH) *
                                  int(torch.randint(1, 4, (1,), generator=g))) % V), labels=x)
            for _ in range(256)]
    more = {}
    if o["best"]:  # The best is the first one, so that it has to be loaded again.
        more = dict(eval_strategy="steps", eval_steps=o["save"], load_best_model_at_end=True,
                    metric_for_best_model="eval_loss", greater_is_better=True)
    if o["gc"]:
        more["gradient_checkpointing"] = True
        more["gradient_checkpointing_kwargs"] = {"use_reentrant": o["gc"] == "reentrant"}
    if o["dtype"]:
        more[o["dtype"]] = True
    args = TrainingArguments(
        output_dir=o["out"], max_steps=o["steps"], per_device_train_batch_size=o["batch"],
        gradient_accumulation_steps=o["accumulation"], learning_rate=1e-2, weight_decay=0.01,
        lr_scheduler_type="cosine", warmup_steps=2, logging_steps=1, report_to=[],
        save_strategy="steps" if o["save"] else "no", save_steps=o["save"] or 500,
        disable_tqdm=True, seed=0, deepspeed=o["ds"], use_cpu=o["use_cpu"],
        logging_nan_inf_filter=False, auto_find_batch_size=o["fits"] is not None, **more)
    opt = alone(model, o, o["resume"]) if o["alone"] else None
    trainer = Trainer(model=model, args=args, train_dataset=data[:-16], eval_dataset=data[-16:],
                      optimizers=(opt, None))
    if opt is not None:
        import shardd
        trainer.add_callback(shardd.hf.TrainerCallback(trainer))
    trainer.train(resume_from_checkpoint=o["resume"])
    history = trainer.state.log_history
    got = {"engine": type(trainer.model_wrapped).__module__.partition(".")[0],
           "log": [[h["step"], h["loss"], float(h["grad_norm"]), h["learning_rate"]]
                   for h in history if "loss" in h],
           "eval": [[h["step"], h["eval_loss"]] for h in history if "eval_loss" in h]}
    if o["alone"]:
        got["more"] = [[h[k] for k in ("loss_scale", "world_size", "applied")]
                       for h in history if "loss" in h]
    if o["best"]:
        got["best"] = trainer.state.best_global_step
        got["after"] = trainer.evaluate()["eval_loss"]
    if o["save"]:
        got["saved"] = saved(os.path.join(
            o["out"], f"checkpoint-{o['steps']}",
            "adapter_model.safetensors" if o["peft"] else "model.safetensors"))
    if o["save"] or o["best"]:
        trainer.save_model(os.path.join(o["out"], "last"))
    assert all(math.isfinite(x[1]) for x in got["log"]), got
    if args.process_index == 0:
        print("LOG " + json.dumps(got), flush=True)


def child(words, env, out):
    """One process of a line, in this process, which was forked for it and ends as any other."""
    os.environ.update(env)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{out}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    main(words)
    sys.exit(0)


def serve():
    """Each line of stdin: a list of [words, env, out]. One line of statuses is the answer."""
    for line in sys.stdin:
        pids = []
        for one in json.loads(line):
            pid = os.fork()
            if pid == 0:
                child(*one)
            pids.append(pid)
        end, status = time.monotonic() + PATIENCE_S, {}
        while len(status) < len(pids):
            failed = any(status.values())
            for pid in [p for p in pids if p not in status]:
                if failed or time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
                got, code = os.waitpid(pid, 0 if failed else os.WNOHANG)
                if got:
                    status[pid] = code
            time.sleep(0.02)
        print("DONE " + json.dumps([status[p] for p in pids]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        if "shardd" not in sys.modules:
            import deepspeed  # The real one, as a peer. Nothing is to be compiled for it.
            for op in deepspeed.ops.__compatible_ops__:
                deepspeed.ops.__compatible_ops__[op] = False
            # It computes in fp16 on each CPU, and refuses most for being slow.
            type(deepspeed.accelerator.get_accelerator()).is_fp16_supported = lambda self: True
        import torch._dynamo  # noqa: every optimizer imports it
        serve()
    else:
        main(json.loads(sys.argv[1]))

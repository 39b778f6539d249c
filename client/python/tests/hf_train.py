# SPDX-License-Identifier: Apache-2.0
"""A script with Hugging Face's Trainer as users write it. It knows nothing of shardd.

hf_train.py '{"arch": "llama", "ds": null or a ds_config, "steps": 6, ...}' trains a random model
from a config on numbers, and prints one line with the log. The tests run it by
`python -m shardd.deepspeed`.
"""

import json
import sys
import warnings

import torch

warnings.filterwarnings("ignore")
o = {"arch": "llama", "ds": None, "steps": 6, "accumulation": 1, "out": "out", "save": 0,
     "resume": None, "peft": False, "gc": False, "use_cpu": True, "batch": 4,
     **json.loads(sys.argv[1])}
torch.set_num_threads(1)

from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,  # noqa
                          Trainer, TrainingArguments, set_seed)

set_seed(0)
if o["arch"] == "llama":
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64))
else:
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0))
if o["peft"]:
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.0,
                                             target_modules=["q_proj", "v_proj"]))
g = torch.Generator().manual_seed(1)
data = [dict(input_ids=(x := (torch.randint(0, 128, (1,), generator=g) + torch.arange(32) *
                              int(torch.randint(1, 4, (1,), generator=g))) % 128), labels=x)
        for _ in range(512)]
args = TrainingArguments(
    output_dir=o["out"], max_steps=o["steps"], per_device_train_batch_size=o["batch"],
    gradient_accumulation_steps=o["accumulation"], learning_rate=1e-2, weight_decay=0.01,
    lr_scheduler_type="cosine", warmup_steps=2, logging_steps=1, report_to=[],
    save_strategy="steps" if o["save"] else "no", save_steps=o["save"] or 500, disable_tqdm=True,
    seed=0, deepspeed=o["ds"], use_cpu=o["use_cpu"], gradient_checkpointing=o["gc"],
    logging_nan_inf_filter=False)
trainer = Trainer(model=model, args=args, train_dataset=data)
trainer.train(resume_from_checkpoint=o["resume"])
if args.process_index == 0:
    print("LOG " + json.dumps([[h["step"], h["loss"], float(h["grad_norm"]), h["learning_rate"]]
                               for h in trainer.state.log_history if "loss" in h]), flush=True)

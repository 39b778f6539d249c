# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer on a random Llama from a config: nothing is downloaded.

    $ python hf_trainer.py                                  # the Trainer alone
    $ python hf_trainer.py --shardd                         # the same with shardd
    $ torchrun --nproc-per-node 2 hf_trainer.py --shardd

The Trainer knows DeepSpeed, and shardd answers under DeepSpeed's name. So what changes are the
lines marked 1 and 2. A script that has a ds_config already needs no change at all when it is
started by `python -m shardd.deepspeed SCRIPT`.
"""

import argparse
import sys

import torch

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--shardd", action="store_true", help="keep the optimizer's state in shardd")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--batch", type=int, default=8, help="samples of a step, per rank")
parser.add_argument("--out", default="/tmp/hf_trainer", help="the Trainer's folder")
o = parser.parse_args()

if o.shardd:
    import shardd.deepspeed
    shardd.deepspeed.install()  # 1. Before transformers is imported.

from transformers import (LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments,  # noqa: E402
                          set_seed)

# What "auto" means is taken from TrainingArguments.
DS_CONFIG = {
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                              "weight_decay": "auto"}},
}


def samples(n, vocabulary=128, length=32):
    """Sequences that count on in steps of 1 to 3, modulo the vocabulary."""
    g = torch.Generator().manual_seed(1)
    start = torch.randint(0, vocabulary, (n, 1), generator=g)
    stride = torch.randint(1, 4, (n, 1), generator=g)
    return [{"input_ids": x, "labels": x}
            for x in (start + stride * torch.arange(length)) % vocabulary]


def main():
    """Trains. Rank 0 prints what the Trainer logged."""
    set_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64))
    args = TrainingArguments(
        output_dir=o.out, max_steps=o.steps, per_device_train_batch_size=o.batch,
        learning_rate=1e-2, weight_decay=0.01, lr_scheduler_type="cosine", warmup_steps=2,
        logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, seed=0, use_cpu=True,
        deepspeed=DS_CONFIG if o.shardd else None)  # 2.
    trainer = Trainer(model=model, args=args, train_dataset=samples(1024))
    sys.stdout.flush()
    trainer.train()
    if args.process_index == 0:
        for row in trainer.state.log_history:
            if "loss" in row:
                print(f"step {row['step']}  loss {float(row['loss']):.4f}  gradient norm "
                      f"{float(row['grad_norm']):.3f}", flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Runs an example of Accelerate, unchanged, with local data instead of what it downloads.

accelerate_example.py FILE ARGUMENT...: FILE is one of the examples of a checkout of Accelerate,
which is not part of this project. The datasets, tokenizers, models and metrics that it asks for by
name are small ones made here, of which the data can be learnt. What was given to
Accelerator.backward() is printed at the end.
"""

import json
import os
import random
import runpy
import sys

import torch

torch.set_num_threads(1)
WORDS = [f"w{i}" for i in range(60)]


def sentence(rng, low, high):
    return " ".join(rng.choice(WORDS[low:high]) for _ in range(rng.randint(4, 10)))


def pairs(number, seed):
    """Two sentences. Which half of all words they are of is the label."""
    rng, rows = random.Random(seed), []
    for i in range(number):
        label = rng.randint(0, 1)
        first, second = (sentence(rng, 30 * label, 30 * label + 30) for _ in range(2))
        rows.append({"sentence1": first, "sentence2": second, "label": label, "idx": i})
    return rows


def local_dataset(real):
    import datasets

    def load(name, *more, **words):
        if name != "nyu-mll/glue":
            return real(name, *more, **words)
        return datasets.DatasetDict({
            split: datasets.Dataset.from_list(pairs(n, seed))
            for split, n, seed in (("train", 96, 1), ("validation", 32, 2))})

    return load


class Metric:
    """Accuracy, as the examples call it."""

    def __init__(self):
        self.right = self.all = 0

    def add_batch(self, predictions, references):
        self.right += int((predictions == references).sum())
        self.all += len(references)

    def compute(self):
        right, n, self.right, self.all = self.right, self.all, 0, 0
        return {"accuracy": right / n, "f1": right / n}


def tokenizer(*names, **words):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast
    all_words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *WORDS]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(all_words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        unk_token="[UNK]", model_max_length=32,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def classifier(*names, **words):
    from transformers import BertConfig, BertForSequenceClassification
    return BertForSequenceClassification(BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, initializer_range=0.2))


def main():
    import accelerate
    import datasets
    import evaluate
    import transformers
    losses = []
    backward = accelerate.Accelerator.backward

    def counted(self, loss, **words):
        losses.append(self.reduce(loss.detach().clone(), "mean").item())
        return backward(self, loss, **words)

    accelerate.Accelerator.backward = counted
    datasets.load_dataset = local_dataset(datasets.load_dataset)
    evaluate.load = lambda *names: Metric()
    transformers.AutoTokenizer.from_pretrained = tokenizer
    transformers.AutoModelForSequenceClassification.from_pretrained = classifier
    # The learning rate of the examples is for a trained model, and their warm-up for more steps.
    lr = float(os.environ.get("EXAMPLE_LR", 2e-3))
    adamw = torch.optim.AdamW
    if os.environ.get("EXAMPLE_LR"):
        torch.optim.AdamW = lambda params, **words: adamw(params, **{**words, "lr": lr})
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        print("LOG " + json.dumps([[i, x] for i, x in enumerate(losses)]), flush=True)


if __name__ == "__main__":
    main()

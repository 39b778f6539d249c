# SPDX-License-Identifier: Apache-2.0
"""The models of `make chaos`: what their trainers are started with, and what the replay computes.
Those of the static cluster are small, of every size relative to the number of nodes (many chunks,
one chunk), with different optimizers and types, and some of them mostly rest. Elastic clusters have
two: one with the tensors of the demonstration, and one whose steps overflow."""

from dataclasses import dataclass, field


@dataclass
class Model:
    name: str
    optimizer: str
    image: str
    grad: str
    tensors: dict  # Name: elements. Trainers add the frozen tensor "id".
    # One address each: "a" is the unix socket of node a, "tcp:b" is node b over TCP.
    trainers: list
    hyper: dict  # All settings of the optimizer, because no default is used.
    extra: str = ""  # Further settings.
    chunk_elems: int = 1024
    clip: float = 0.0
    predivide: float = 1.0
    staleness: int = 0
    staleness_after: int = 0
    pause_ms: int = 15  # How long a step waits on average.
    save_every: int = 0  # Steps between saves that a trainer requests.
    does: str = ""
    last: int = (
        0  # After this step its trainers leave, and come again at the end. 0: never.
    )
    checkpointed: bool = False
    replicas: int = 1
    image_codec: str = ""  # Empty: none. Its blocks are those of codec_block's default.
    layout: list = field(default_factory=list)  # (name, first element, elements, frozen).

    def __post_init__(self):
        at = 0
        for name, numel in {**self.tensors, "id": 8}.items():
            self.layout.append((name, at, numel, name == "id"))
            at += (numel + 63) // 64 * 64
        self.elems = at

    def settings(self):
        words = [
            f"optimizer={self.optimizer}",
            f"chunk_elems={self.chunk_elems}",
            f"max_world={len(self.trainers)}",
            f"replicas={self.replicas}",
            "timeout=20s",
            "max_skips=0",
        ]
        words += [
            f"{k}={v!r}" if not isinstance(v, bool) else f"{k}={'yes' if v else 'no'}"
            for k, v in self.hyper.items()
        ]
        words += [f"clip={self.clip}"] if self.clip else []
        words += [f"predivide={self.predivide}"] if self.predivide != 1 else []
        if self.staleness:
            words += ["max_staleness=1", f"staleness_after={self.staleness_after}"]
        words += [f"image_codec={self.image_codec}"] if self.image_codec else []
        return " ".join(words + [self.extra])


STATIC = [
    # It has chunks on every node. Its learning rate comes from the trainers, and its saves, too.
    Model(
        "wide",
        "sgd",
        "f32",
        "f32",
        {"wte": 9000, "bias": 70, "proj": 5000, "scale": 1},
        ["a", "b", "c", "tcp:b"],
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": False},
        pause_ms=25,
        save_every=10,
        does="own_lr",
        checkpointed=True,
    ),
    # It has one chunk, so two of three nodes hold nothing of it.
    Model(
        "beside",
        "adamw",
        "bf16",
        "bf16",
        {"w": 600, "b": 40},
        ["a", "b"],
        {"lr": 0.01, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6},
        clip=0.25,
        pause_ms=10,
    ),
    # Its steps overflow, its loss scale changes, and daemons save its checkpoints by themselves.
    Model(
        "half",
        "adam",
        "f16",
        "f16",
        {"w": 5000, "b": 50},
        ["b", "c", "c"],
        {"lr": 0.02, "weight_decay": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-8},
        "initial_scale_power=10 loss_scale_window=10 checkpoint_every=7 keep_latest=3",
        predivide=4.0,
        does="overflow",
        pause_ms=20,
        checkpointed=True,
    ),
    # Its trainers go a step ahead.
    Model(
        "stale",
        "lion",
        "bf16",
        "f32",
        {"w": 3000, "b": 30},
        ["a", "c"],
        {"lr": 0.001, "weight_decay": 0.05, "beta1": 0.9, "beta2": 0.99},
        "checkpoint_every=15 keep_latest=2",
        staleness=1,
        staleness_after=25,
        does="ahead",
        checkpointed=True,
    ),
    # It mostly rests.
    Model(
        "rest",
        "sgd",
        "f32",
        "bf16",
        {"w": 2500},
        ["tcp:c"],
        {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.0, "nesterov": True},
        pause_ms=500,
    ),
    # It is trained a little, and then rests until the end.
    Model(
        "asleep",
        "adagrad",
        "f32",
        "f32",
        {"w": 3000, "b": 5},
        ["b"],
        {"lr": 0.01, "weight_decay": 0.0, "eps": 1e-10},
        last=5,
    ),
]


def _demo():
    """The tensors of the model that `make demo` trains (client/examples)."""
    dim, rows = 64, {"wte.weight": 256, "wpe.weight": 64}
    for layer in range(2):
        block = {"ln_1.weight": 1, "ln_1.bias": 1, "attn.qkv.weight": 3 * dim, "attn.qkv.bias": 3}
        block |= {"attn.out.weight": dim, "attn.out.bias": 1, "ln_2.weight": 1, "ln_2.bias": 1}
        block |= {"mlp.up.weight": 4 * dim, "mlp.up.bias": 4, "mlp.down.weight": 4 * dim}
        block |= {"mlp.down.bias": 1}
        rows |= {f"h.{layer}.{name}": nr for name, nr in block.items()}
    rows |= {"ln_f.weight": 1, "ln_f.bias": 1}
    return {name: nr * dim for name, nr in rows.items()}


ELASTIC = [
    # The demonstration's model. Trainers ask for its saves.
    Model(
        "demo",
        "adamw",
        "bf16",
        "bf16",
        _demo(),
        ["a", "b", "d", "tcp:e"],
        {"lr": 0.01, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6},
        chunk_elems=4096,
        clip=0.25,
        pause_ms=40,
        save_every=20,
        checkpointed=True,
        replicas=2,
        image_codec="int8",
    ),
    # Its steps overflow, its loss scale changes, and daemons save its checkpoints by themselves.
    Model(
        "half",
        "adam",
        "f16",
        "f16",
        {"w": 9000, "b": 50},
        ["b", "c", "c"],
        {"lr": 0.02, "weight_decay": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-8},
        "initial_scale_power=10 loss_scale_window=10 checkpoint_every=15 keep_latest=3",
        predivide=4.0,
        does="overflow",
        pause_ms=30,
        checkpointed=True,
        replicas=2,
    ),
]

MODELS = {"static": STATIC, "quorum": ELASTIC, "etcd": ELASTIC}

# The states that each optimizer keeps (ARITHMETIC.md, section 6).
STATES = {
    "sgd": ["momentum"],
    "adamw": ["exp_avg", "exp_avg_sq"],
    "adam": ["exp_avg", "exp_avg_sq"],
    "lion": ["exp_avg"],
    "adagrad": ["exp_avg_sq"],
}

# SPDX-License-Identifier: Apache-2.0
"""exchange.py SHARDCTL FOLDER: files of the `safetensors` package and of shardctl, both ways, compared byte by byte.

Writes a model as fp32, bf16 and fp16 with the package (one file, and two with an index), imports it, looks at the parts with the package,
exports it in each dtype, and compares with numpy's own rounding. Ends with "exchange: N compared"; status 1 if anything differs.
"""
import json, os, struct, subprocess, sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from safetensors import serialize_file

shardctl, folder = sys.argv[1], sys.argv[2]
compared = 0


def run(want, *words):
    p = subprocess.run([shardctl, *words], capture_output=True, text=True)
    if p.returncode != want:
        sys.exit(f"exchange: shardctl {' '.join(words)}: exit {p.returncode}, expected {want}: {p.stdout}{p.stderr}")
    return p.stdout + p.stderr


def same(what, a, b):
    global compared
    compared += 1
    if a.tobytes() != b.tobytes():
        sys.exit(f"exchange: {what} differs: {np.asarray(a).ravel()[:4]} {np.asarray(b).ravel()[:4]}")


def to_bf16(x):  # to nearest, ties to even; as bits
    u = x.view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def raw(path):  # name -> (dtype, shape, bytes), by the format's own words: numpy has no bf16
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
        data = f.read()
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in head.items() if k != "__metadata__"}


rng = np.random.default_rng(1)
model = {"wte.weight": (257, 64), "h.0.ln.bias": (64,), "h.0.attn.weight": (3, 64, 64), "scalar": (), "größe": (7, 1), "none": (0, 3)}
model = {k: np.asarray(rng.standard_normal(s) * 3, dtype=np.float32) for k, s in model.items()}
model["h.0.ln.bias"][:8] = [0.0, -0.0, 1e-40, 65504, 1 + 2**-8, 1 + 3 * 2**-8, 2**-24, 1 + 2**-11]
parts = folder + "/ckpt"
as16 = {
    "BF16": {k: to_bf16(v) for k, v in model.items()},
    "F16": {k: v.astype(np.float16) for k, v in model.items()},
    "F32": model,
}
back = {  # the fp32 values of each
    "BF16": {k: (v.astype(np.uint32) << 16).view(np.float32) for k, v in as16["BF16"].items()},
    "F16": {k: v.astype(np.float32) for k, v in as16["F16"].items()},
    "F32": model,
}

step = 0
for dtype, flag in (("F32", "fp32"), ("BF16", "bf16"), ("F16", "fp16")):
    source = f"{folder}/{flag}.safetensors"
    if dtype == "BF16":
        serialize_file({k: {"dtype": "bfloat16", "shape": v.shape, "data": v.tobytes()} for k, v in as16[dtype].items()}, source, None)
    else:
        save_file(as16[dtype], source)
    step += 1
    run(0, "import", source, parts, "--name", "gpt", "--step", str(step), "--settings", "optimizer=adamw lr=0.5", "--image", flag)
    run(0, "checkpoints", parts, "--verify")
    seen = {}
    for name in sorted(os.listdir(f"{parts}/global_step{step}")):
        if name.endswith(".safetensors"):
            for k, v in load_file(f"{parts}/global_step{step}/{name}").items():
                tensor, span = k[len("master/"):].rsplit("[", 1)
                first, end = map(int, span[:-1].split(":"))
                assert k.startswith("master/") and end - first == v.size and v.dtype == np.float32
                seen.setdefault(tensor, np.full(model[tensor].size, np.nan, np.float32))[first:end] = v
    for k, v in back[dtype].items():
        if v.size:
            same(f"part {k} from {dtype}", seen[k], v.ravel())
    out = f"{folder}/out-{flag}"
    run(0, "export", parts, out, "--tag", f"global_step{step}")  # the dtype of the image
    got = raw(f"{out}/model.safetensors")
    assert set(got) == set(model)
    for k, (d, shape, data) in got.items():
        assert d == dtype and tuple(shape) == model[k].shape, (k, d, shape)
        same(f"{k} as {dtype}", np.frombuffer(data, np.uint8), np.frombuffer(as16[dtype][k].tobytes(), np.uint8))
    with safe_open(f"{out}/model.safetensors", framework="np") as f:
        assert f.metadata() == {"format": "pt"}

# fp32 weights rounded on the way out, and shards with an index
for flag, dtype in (("bf16", "BF16"), ("fp16", "F16"), ("fp32", "F32")):
    out = f"{folder}/shards-{flag}"
    run(0, "export", parts, out, "--tag", "global_step1", "--dtype", flag, "--max-shard-size", "20KB")
    index = json.load(open(f"{out}/model.safetensors.index.json"))
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 1 and files[0] == f"model-00001-of-{len(files):05d}.safetensors", files
    assert index["metadata"]["total_size"] == sum(v.nbytes for v in as16[dtype].values())
    for name in files:
        if dtype != "BF16":
            load_file(f"{out}/{name}")
        for k, (d, shape, data) in raw(f"{out}/{name}").items():
            assert index["weight_map"][k] == name and d == dtype and tuple(shape) == model[k].shape
            same(f"{k} rounded to {dtype}", np.frombuffer(data, np.uint8), np.frombuffer(as16[dtype][k].tobytes(), np.uint8))
    run(5, "export", parts, out, "--tag", "global_step1", "--dtype", flag, "--max-shard-size", "20KB")
    run(0, "export", parts, out, "--tag", "global_step1", "--dtype", flag, "--force")
    assert not os.path.exists(f"{out}/model.safetensors.index.json")
    run(0, "export", parts, out, "--tag", "global_step1", "--dtype", flag, "--max-shard-size", "20KB", "--force")
    assert not os.path.exists(f"{out}/model.safetensors")
    run(0, "import", out, f"{folder}/again", "--name", "gpt", "--step", "9", "--tag", f"from-{flag}")
    run(0, "export", f"{folder}/again", f"{folder}/twice-{flag}", "--tag", f"from-{flag}", "--dtype", flag)
    for k, (d, shape, data) in raw(f"{folder}/twice-{flag}/model.safetensors").items():
        same(f"{k} there and back", np.frombuffer(data, np.uint8), np.frombuffer(as16[dtype][k].tobytes(), np.uint8))


# what import refuses, by name
def refuses(text, source, **tensors):
    if tensors:
        save_file(tensors, source)
    said = run(1, "import", source, f"{folder}/none", "--name", "gpt")
    if text not in said:
        sys.exit(f"exchange: import {source}: expected {text!r}: {said}")
    assert not os.path.exists(f"{folder}/none") or os.listdir(f"{folder}/none") == [], "import left something behind"


refuses("tensor ids is I64", f"{folder}/bad.safetensors", ids=np.arange(3))
refuses("none of its tensors has an element", f"{folder}/bad.safetensors", empty=np.zeros((0, 3), np.float32))
refuses("No such file", f"{folder}/nothing.safetensors")
shards = f"{folder}/shards-fp32"
index = json.load(open(f"{shards}/model.safetensors.index.json"))


def broken(text, change):
    copy = json.loads(json.dumps(index))
    change(copy["weight_map"], copy)
    json.dump(copy, open(f"{shards}/broken.json", "w"))
    refuses(text, f"{shards}/broken.json")


broken("no weight_map", lambda m, c: c.pop("weight_map"))
broken("the index says nothing", lambda m, c: m.pop("scalar"))
broken("more is not in", lambda m, c: m.update(more=m["scalar"]))
broken("no name of a file", lambda m, c: m.update(more="../x"))
broken("cannot be opened", lambda m, c: m.update(more="gone.safetensors"))
save_file({"scalar": np.zeros(1, np.float32)}, f"{shards}/model-9.safetensors")
broken("is in more than one file", lambda m, c: m.update(more="model-9.safetensors"))
with open(f"{shards}/cut.safetensors", "wb") as f:
    f.write(open(f"{shards}/{files[0]}", "rb").read()[:-1])
refuses("data_offsets", f"{shards}/cut.safetensors")
run(2, "import", f"{folder}/fp32.safetensors", parts, "--name", "Not a name")
run(5, "import", f"{folder}/fp32.safetensors", parts, "--name", "other", "--step", "1")

# damage is found and named, and export refuses it
with open(f"{parts}/global_step2/import-00001.safetensors", "r+b") as f:
    f.seek(5000)
    byte = f.read(1)
    f.seek(5000)
    f.write(bytes([byte[0] ^ 4]))
said = run(1, "checkpoints", parts, "--verify")
assert "import-00001.safetensors: damaged" in said, said
listed = json.loads(run(0, "checkpoints", parts, "--json"))["checkpoints"]
assert [c["step"] for c in listed] == [3, 2, 1] and listed[0]["latest"] and all(c["complete"] for c in listed), listed
assert "damaged" in run(1, "export", parts, f"{folder}/never", "--tag", "global_step2")
assert not os.path.exists(f"{folder}/never") or os.listdir(f"{folder}/never") == []
run(1, "checkpoints", f"{folder}/nothing")
print(f"exchange: {compared} compared")

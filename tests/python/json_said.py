# SPDX-License-Identifier: Apache-2.0
"""json_said.py SHARDCTL DIR PORT: runs each command of shardctl with --json, once where it succeeds and
once where it fails, and compares what it prints with client/ctl/shardctl.schema.json. DIR has two
daemons a and b with the model gpt in training (tests/proc/json.sh), PORT is the HTTP port of a.
With --print FILE the outputs are written there, one line each, for whoever changes the schema."""
import json
import os
import pathlib
import subprocess
import sys
import urllib.request

import fastjsonschema

SCHEMA = json.loads(pathlib.Path("client/ctl/shardctl.schema.json").read_text(encoding="utf-8"))
CTL, DIR, PORT = sys.argv[1:4]
KEPT = open(sys.argv[5], "w", encoding="utf-8") if "--print" in sys.argv else None
AT = ["--address", f"unix:{DIR}/a.sock", "--timeout", "60"]
NOBODY = ["--address", f"unix:{DIR}/nobody"]
pace = float(os.environ.get("SLOW", "1"))
checks = wrong = 0
seen = set()
readers = {}


def against(kind, line, what):
    """Whether the line is an object that the schema allows for this command."""
    global checks, wrong
    checks += 1
    seen.add(kind)
    if KEPT:
        KEPT.write(f"{kind}\t{line}\n")
    if kind not in readers and kind in SCHEMA["definitions"]:
        one = {"$ref": f"#/definitions/{kind}", "definitions": SCHEMA["definitions"]}
        readers[kind] = fastjsonschema.compile(one)
    try:
        if kind not in readers:
            raise ValueError(f"the schema has no definition {kind}")
        readers[kind](json.loads(line))
    except ValueError as e:  # of JSON and of the schema
        wrong += 1
        print(f"not ok json: {what}: {e}: {line[:2000]}")


def run(kind, rc, words, lines=1, more=()):
    """Runs a command that ends with rc and prints so many objects. 0: any number."""
    global checks, wrong
    done = subprocess.run([CTL, "--json", *more, *words], text=True, stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=120 * pace, check=False)
    out = done.stdout.splitlines()
    what = "shardctl --json " + " ".join(words)
    checks += 1
    if done.returncode != rc or (lines and len(out) != lines) or not out:
        wrong += 1
        print(f"not ok json: {what}: {done.returncode}, {len(out)} lines, not {rc}, {lines}: "
              f"{done.stdout[:1000]}{done.stderr[:1000]}")
    for line in out:
        against(kind, line, what)
    text = json.loads(out[-1]).get("error", "?") if out else "?"
    if kind == "error" and text.split(": ")[-1] not in done.stderr:
        wrong += 1
        print(f"not ok json: {what}: stderr says something else: {out[-1]} {done.stderr}")
    return json.loads(out[-1]) if out else {}


def good():
    """Each command where it succeeds."""
    ckpt, conf = f"{DIR}/ckpt", f"{DIR}/a.conf"
    for words in ("status", "members", "events", "model list", "model show gpt"):
        run(words.removesuffix(" gpt"), 0, words.split(), more=AT)
    run("status", 0, ["status", "--all"], more=AT)
    run("model show", 0, ["model", "show", "gpt", "--tensors"], more=AT)
    for words in (["top", "--once"], ["top", "--once", "--all"]):
        run("top", 0, words + ["--interval", "0.2"], more=AT)
    run("plan", 0, ["plan", "--params", "1M"])
    run("bench", 0, ["bench", "--params", "10K", "--steps", "2"], more=AT)
    run("config check", 0, ["config", "check", conf])
    run("config explain", 0, ["config", "explain", conf])
    run("secret new", 0, ["secret", "new"])
    run("secret new", 0, ["secret", "new", f"{DIR}/key"])
    run("secret rotate", 0, ["secret", "rotate", f"{DIR}/key"])
    run("doctor", 0, ["doctor", "--config", conf], more=AT)
    run("save", 0, ["save", "gpt", "--dir", ckpt], more=AT)
    run("checkpoints", 0, ["checkpoints", ckpt, "--verify"])
    run("export", 0, ["export", ckpt, f"{DIR}/hf"])
    run("import", 0, ["import", f"{DIR}/hf", f"{DIR}/imported", "--name", "other",
                      "--settings", "optimizer=adamw lr=1e-3"])
    run("restore", 0, ["restore", f"{DIR}/imported"], more=AT)
    run("verify", 0, ["verify", "gpt", "other"], more=AT)
    run("history", 0, ["history", "gpt", "--node", "all"], lines=0, more=AT)
    run("rebalance", 0, ["rebalance", "--dry-run"], more=AT)
    run("rebalance", 0, ["rebalance", "--no-wait"], more=AT)
    run("drain", 0, ["drain", "b", "--no-wait"], more=AT)
    run("drain", 0, ["drain", "b", "--undo"], more=AT)
    run("model set", 0, ["model", "set", "gpt", "lr", "1e-3"], more=AT)
    run("model pause", 0, ["model", "pause", "gpt"], more=AT)
    run("status", 0, ["status"], more=AT)
    run("model resume", 0, ["model", "resume", "gpt"], more=AT)
    run("model drop", 0, ["model", "drop", "other"], more=AT)
    run("model kick", 0, ["model", "kick", "gpt", "1"], more=AT)
    run("model drop", 0, ["model", "drop", "gpt", "--force"], more=AT)
    for path in ("status", "cluster", "events", "samples"):
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/{path}", timeout=60 * pace) as r:
            against("status" if path == "cluster" else path, r.read().decode(), "/" + path)


def bad():
    """Each command where it fails, with the words of its usage, of its daemon and of its files."""
    none = f"{DIR}/none"
    pathlib.Path(f"{DIR}/bad").write_text("nonsense\n", encoding="utf-8")
    for words in ("status", "members", "events", "top --once", "bench", "model list",
                  "model show m", "model drop m", "model set m lr 1", "model pause m",
                  "model resume m", "model kick m 1", "kick m 1", "save m", "restore /x",
                  "verify m", "history m", "rebalance", "drain b"):
        said = run("error", 3, words.split(), more=NOBODY)
        assert said["status"] == "SHARD_UNREACHABLE", said
    for words in ("model show m", "model drop m", "model set m lr 1", "model pause m",
                  "model resume m", "kick m 1", "save m --dir /x", "history m", "rebalance m"):
        run("error", 5, words.split(), more=AT)
    run("verify", 5, ["verify", "m"], more=AT)
    for words in ("status x", "stats", "model", "model frob", "plan", "plan --params x",
                  "bench --ranks x", "top --interval x", "model kick m x", "history m --from x",
                  "import a b", "export a b --dtype x", "secret rotate a --swap --drop",
                  "replay a", "checkpoints", "--nothing", "--timeout x status", ""):
        said = run("error", 2, words.split(), more=AT)
        assert said.get("status") == "USAGE", (words, said)
    for words in (f"config check {DIR}/bad", f"config explain {DIR}/bad"):
        said = run("error", 4, words.split())
        assert said["status"] == "CONFIG" and "bad:1: not understood" in said["error"], said
    run("doctor", 4, ["doctor", "--config", f"{DIR}/bad"], more=NOBODY)
    for words in (f"checkpoints {none}", f"export {none} {DIR}/out", f"secret new {DIR}",
                  f"import {none} {DIR}/out --name x", f"secret rotate {none}",
                  f"replay --history {none} --from {none} --gradients {none} {none}"):
        run("error", 1, words.split())


def complete():
    """No command is without a definition, and no definition without an output."""
    global wrong
    said = subprocess.run([CTL, "--help"], text=True, capture_output=True, check=True).stdout
    listed = {"error", "samples"}
    for line in said[said.index("Commands"):].splitlines()[1:]:
        if not line.startswith("  "):
            break
        words = line.split()
        group = words[0] in ("model", "secret", "config")
        listed.add(" ".join(words[:2]) if group else words[0])
    listed -= {"help", "kick"}  # text; the same as model kick
    for name in sorted(listed - set(SCHEMA["definitions"])):
        wrong += 1
        print(f"not ok json: {name}: the schema has no definition")
    for name in sorted(listed - seen - {"replay"}):  # tests/proc/test_replay.c has one
        wrong += 1
        print(f"not ok json: {name}: not run")


good()
bad()
complete()
print(f"{'not ok' if wrong else 'ok'} json: {checks} checks, {wrong} wrong")
sys.exit(1 if wrong else 0)

# SPDX-License-Identifier: Apache-2.0
"""python -m shardd.doctor: every line that a machine can provoke is provoked."""

import json
import os
import resource
import subprocess
import sys
import time

import pytest

from cluster import Cluster

from shardd import doctor


def examine(*words, files=None, file_bytes=None, **env):
    """Runs the program: exit status, findings by name, stderr. A variable that is None is unset."""
    def small():
        if files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        if file_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    both = {**os.environ, **env}
    done = subprocess.run([sys.executable, "-m", "shardd.doctor", "--json", *words], text=True,
                          capture_output=True, timeout=300, preexec_fn=small,
                          env={k: v for k, v in both.items() if v is not None})
    said = json.loads(done.stdout)
    found = {f["check"]: f for f in said["findings"]}
    assert said["ok"] == (done.returncode == 0) == \
        all(f["level"] != "fail" for f in said["findings"]), done.stderr
    assert all(f["remedy"] for f in said["findings"]
               if f["level"] == "fail" or f["level"] == "warn" and "not tried" not in f["text"] and
               "no step" not in f["text"])
    return done.returncode, found


def findings(check, machine=None):
    return list(check(machine or doctor.Machine(None, None)))


def test_a_machine_that_can_train():
    """The whole program, once: it trains, nothing fails, and --address is told about."""
    c = Cluster()
    try:
        status, found = examine("--address", c.address("a"))
    finally:
        c.close()
    assert status == 0, found
    assert {"python", "torch", "libshard", "daemon", "step", "nofile"} <= found.keys()
    assert "abi 0 at " + os.environ["SHARDD_LIB"] in found["libshard"]["text"]
    assert os.path.realpath(os.environ["SHARD_DAEMON"]) in found["daemon"]["text"]
    assert "trained on the CPU" in found["step"]["text"] and found["step"]["level"] == "ok"
    assert "node a of 1 in cluster py" in found["address"]["text"]
    assert found["address"]["level"] == "ok"


def test_no_library(tmp_path):
    status, found = examine(SHARDD_LIB=str(tmp_path / "libshard.so.0"))
    assert status == 1 and found["libshard"]["level"] == "fail"
    assert str(tmp_path) in found["libshard"]["text"] and "daemon" not in found
    assert found["step"]["level"] == "warn" and "no step" in found["step"]["text"]


def test_a_library_that_is_none():
    """It can be loaded, and has no function of shard.h."""
    status, found = examine(SHARDD_LIB="libm.so.6")
    assert status == 1 and "lacks shard_version" in found["libshard"]["text"]


def test_no_daemon_and_small_limits(tmp_path):
    status, found = examine(SHARD_DAEMON=str(tmp_path / "shardd"), files=50, file_bytes=1 << 20)
    assert status == 1
    assert found["daemon"]["level"] == "fail" and str(tmp_path) in found["daemon"]["text"]
    assert found["nofile"]["level"] == "fail" and found["nofile"]["text"].startswith("50 files")
    assert found["memfd"]["level"] == "fail" and "File too large" in found["memfd"]["text"]


def test_a_daemon_that_does_not_answer(tmp_path):
    """SHARD_DAEMON is a program that ends at once."""
    program = tmp_path / "shardd"
    program.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 3\n")
    program.chmod(0o755)
    status, found = examine(SHARD_DAEMON=str(program))
    assert status == 1 and found["daemon"]["level"] == "fail", found


@pytest.mark.parametrize("where", ["unix:{}/none.sock", "tcp://127.0.0.1:1", "ftp://x"])
def test_a_wrong_address(where, tmp_path):
    m = doctor.Machine(where.format(tmp_path), None)
    m.library = True
    began = time.monotonic()
    [f] = findings(doctor.address, m)
    assert f.level == "fail" and f.remedy and m.address in f.text
    assert time.monotonic() - began < 60


def test_a_cluster_that_lacks_a_node():
    c = Cluster(2)
    try:
        c.kill("b")
        m = doctor.Machine(c.address("a"), None)
        m.library, end = True, time.monotonic() + 60
        while (f := findings(doctor.address, m)[0]).level == "ok" and time.monotonic() < end:
            pass
        assert f.level == "warn" and f.text.endswith("not connected: b")
    finally:
        c.close()


@pytest.mark.parametrize("env, level, words", [
    ({}, "ok", "world of one"),
    ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "ok", "waits for 2 ranks"),
    ({"WORLD_SIZE": "2"}, "warn", "waits for 2 ranks"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, "fail", "no such rank"),
    ({"RANK": "one", "WORLD_SIZE": "2"}, "fail", "RANK is no number")])
def test_ranks(env, level, words, monkeypatch):
    for k, v in env.items():
        monkeypatch.setenv(k, v)
    [f] = findings(doctor.ranks)
    assert f.level == level and words in f.text and bool(f.remedy) == (level != "ok")


@pytest.mark.parametrize("threads, local, level", [
    ("1", "1", "ok"), ("4000", "2", "warn"), ("many", "1", "warn"), (None, "2", "warn"),
    (None, "1", "ok")])
def test_threads(threads, local, level, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    if threads is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    [f] = findings(doctor.threads)
    assert f.level == level and bool(f.remedy) == (level == "warn")


@pytest.mark.parametrize("installed, level", [
    ("2.3.1", "fail"), ("2.4.0+cpu", "ok"), (None, "fail")])
def test_versions_of_torch(installed, level, monkeypatch, tmp_path):
    """Distributions as pip leaves them, in a folder that is looked at first."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    if installed:
        info = tmp_path / f"torch-{installed}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: torch\nVersion: {installed}\n")
    [f] = findings(doctor.torch)
    assert f.level == level


def test_a_folder_called_deepspeed(monkeypatch, tmp_path):
    """What is no DeepSpeed, and in the way of it."""
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)  # Another test may have it.
    [f] = findings(doctor.deepspeed)
    assert f.level == "warn" and str(tmp_path) in f.text
    monkeypatch.setattr(sys, "path", [])
    [f] = findings(doctor.deepspeed)
    assert f.level == "ok" and "not installed" in f.text


def test_a_torch_that_cannot_be_imported(address, tmp_path):
    """The process that trains says why, and the program goes on."""
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: wrong ELF class')\n")
    m = doctor.Machine(None, None)
    m.library, m.private = True, address
    assert findings(doctor.daemon, m)[0].level == "ok"
    before, os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"], str(tmp_path)
    try:
        [f] = findings(doctor.step, m)
    finally:
        os.environ["PYTHONPATH"] = before
        m.session.disconnect()
    assert f.level == "fail" and "wrong ELF class" in f.text

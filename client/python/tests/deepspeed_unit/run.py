# SPDX-License-Identifier: Apache-2.0
"""Runs unit tests of DeepSpeed itself against the stand-in.

run.py TESTS [--write] [FILE...]: TESTS is the folder tests of a checkout of DeepSpeed, which is not
part of this project. FILES names what is run, by path below tests/unit. Each file runs in a process
of its own. passing.txt is the list of ids that pass; without --write one that is in the list and
does not pass is an error. With --write new ones are added, and the list never gets shorter. A test
that looks at the inside of DeepSpeed's own optimizers or partitions fails, and is not in the list.
"""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PASSING = HERE / "passing.txt"
FILES = """
runtime/test_lr_schedulers.py
runtime/test_ds_config_dict.py
runtime/test_ds_config_model.py
runtime/test_ds_initialize.py
runtime/test_no_sync_ctxt.py
runtime/test_multi_output_model.py
runtime/test_multiple_models.py
runtime/test_data.py
runtime/half_precision/test_dynamic_loss_scale.py
runtime/half_precision/test_zero_optim_overflow.py
runtime/zero/test_zero_grad_clip.py
runtime/zero/test_ignore_unused_parameters.py
runtime/zero/test_zero_context.py
runtime/zero/test_zero_context_ancestry.py
runtime/zero/test_zero_context_return.py
runtime/zero/test_zero_leaf_module.py
runtime/zero/test_zero_tensor_fragment.py
runtime/zero/test_unwrap_model.py
v1/zero/test_zero.py
v1/zero/test_zero_user_backward.py
v1/zero/test_zero2_offload_multi_backward.py
v1/zero/test_zero_cpu_offload_grad_accum.py
checkpoint/test_zero_optimizer.py
checkpoint/test_lr_scheduler.py
checkpoint/test_tag_validation.py
checkpoint/test_shared_weights.py
checkpoint/test_latest_checkpoint.py
""".split()
SECONDS = int(os.environ.get("SECONDS_PER_FILE", 1800))


class Plugin:
    """Each test gets a daemon and a model of its own, and ranks are forked from this process."""

    def __init__(self):
        self.n, self.passed = 0, []

    def pytest_runtest_setup(self, item):
        self.n += 1
        os.environ["SHARD_ADDRESS"] = f"spawn:dsunit-{os.getpid()}-{self.n}"
        os.environ["SHARDD_MODEL"] = f"unit-{self.n}"

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            print(f"\nPASSED-ID {report.nodeid}", flush=True)


def look_inside(deepspeed):
    """What DeepSpeed's tests of checkpoints compare beside parameters: masters, read here from the
    daemons, under the names that DeepSpeed's own optimizers have inside."""
    import torch

    def masters(opt):
        return [torch.cat([opt.read(p).flatten() for p in g["params"] if id(p) in opt._row_of])
                for g in opt.param_groups]

    for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups"):
        setattr(deepspeed.DeepSpeedOptimizer, name, property(masters))
    deepspeed.DeepSpeedEngine.sparse_tensor_module_names = frozenset()
    # Never called: a test sees to it that it is not.
    deepspeed.DeepSpeedEngine._get_optimizer_ckpt_name = None


def one(tests: str, file: str) -> int:
    """Runs one file in this process."""
    import multiprocessing

    import pytest
    import torch.multiprocessing

    import shardd.deepspeed
    shardd.deepspeed.install()
    look_inside(shardd.deepspeed)
    before = multiprocessing.set_start_method

    def always_fork(method, force=False):
        before("fork", force=True)

    torch.multiprocessing.set_start_method = always_fork
    os.chdir(tests)
    return pytest.main(["-q", "-p", "no:cacheprovider", "--tb=line", f"unit/{file}",
                        *os.environ.get("PYTEST_MORE", "").split()], plugins=[Plugin()])


def ids(tests: str, file: str) -> set[str]:
    """The ids of a file that pass. What hangs is ended after SECONDS_PER_FILE."""
    log = subprocess.Popen([sys.executable, str(pathlib.Path(__file__)), "--one", tests, file],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           start_new_session=True)
    try:
        out, _ = log.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(log.pid, 9)
        out, _ = log.communicate()
    if os.environ.get("VERBOSE"):
        print(out)
    return {line.split(" ", 1)[1].strip() for line in out.splitlines()
            if line.startswith("PASSED-ID ")}


def main() -> int:
    """Runs the files, and compares or writes the list."""
    words = sys.argv[1:]
    if words[:1] == ["--one"]:
        return one(words[1], words[2])
    write = "--write" in words
    words = [w for w in words if w != "--write"]
    if not words:
        print(__doc__)
        return 2
    tests, files = os.path.abspath(words[0]), words[1:] or FILES
    os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", DS_DISABLE_REUSE_DIST_ENV="1",
                      LOCAL_SIZE="8")
    os.environ.setdefault("SHARD_LINGER", "1s")
    os.environ.setdefault("DS_UNITTEST_TIMEOUT", "120")
    known = set(PASSING.read_text().split("\n")) - {""} if PASSING.exists() else set()
    lost: set[str] = set()
    for file in files:
        got = ids(tests, file)
        want = {i for i in known if i.split("::")[0] == f"unit/{file}"}
        print(f"{file}: {len(got)} pass, {len(want - got)} of the list do not", flush=True)
        lost |= want - got
        known |= got
        if write:
            PASSING.write_text("".join(i + "\n" for i in sorted(known)))
    for i in sorted(lost):
        print("does not pass any more:", i)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())

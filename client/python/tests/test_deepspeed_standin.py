# SPDX-License-Identifier: Apache-2.0
"""`import deepspeed` gives shardd: install(), python -m shardd.deepspeed, and refusals."""

import os
import subprocess
import sys
import textwrap

import pytest

import shardd.deepspeed as deepspeed
from shardd.deepspeed.standin import MODULES


def run(code, *words, **env):
    """Runs a piece of Python in a process of its own. Returns status, output, errors."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *words], text=True,
                          capture_output=True, env={**os.environ, "DS_ACCELERATOR": "cpu", **env},
                          timeout=300)
    return done.returncode, done.stdout, done.stderr


def test_every_module_is_the_same_object():
    status, out, err = run("""
        import importlib, importlib.metadata, importlib.util
        import shardd.deepspeed as ours
        from shardd.deepspeed.standin import MODULES
        assert ours.install() and ours.install()
        assert importlib.util.find_spec("deepspeed") is not None
        assert importlib.metadata.version("deepspeed") == ours.__version__ == "0.19.8+shardd"
        assert importlib.metadata.metadata("deepspeed")["Name"] == "deepspeed"
        import deepspeed, deepspeed.ops.adam
        from deepspeed.runtime.lr_schedules import WarmupLR
        from deepspeed.accelerator import get_accelerator
        assert deepspeed is ours and get_accelerator().device_name() == "cpu"
        for path in MODULES:
            a, b = (importlib.import_module(f"{x}.{path}")
                    for x in ("deepspeed", "shardd.deepspeed"))
            assert a is b, path
        assert ours.ops.adam.DeepSpeedCPUAdam is deepspeed.ops.adam.DeepSpeedCPUAdam
        try:
            import deepspeed.inference.v2
        except ModuleNotFoundError as e:
            print(e)
    """)
    assert status == 0, err
    assert "shardd stands in for deepspeed, and has no module 'deepspeed.inference'" in out


def test_a_function_that_has_the_name_of_its_module():
    """utils.z3_leaf_module is both, and importing the module takes nothing from the function."""
    for name, first in (("deepspeed", "import shardd.deepspeed; shardd.deepspeed.install()"),
                        ("shardd.deepspeed", "")):
        status, _, errors = run(f"""
        {first}
        from {name}.utils import z3_leaf_module
        import {name}.utils.z3_leaf_module
        import {name}.utils
        from {name}.utils.z3_leaf_module import set_z3_leaf_module, z3_leaf_module as same
        import torch
        model = torch.nn.Linear(1, 1)
        set_z3_leaf_module(model, True)
        assert same is z3_leaf_module is {name}.utils.z3_leaf_module and same(model)
        """)
        assert status == 0, errors


def test_names_that_others_call():
    """Those that Accelerate, Transformers and Lightning use, by section 1 of the facts."""
    for name in """initialize init_distributed add_config_arguments DeepSpeedEngine zero.Init
            zero.GatheredParameters zero.register_external_parameter comm.is_initialized
            comm.init_distributed comm.get_rank runtime.lr_schedules.VALID_LR_SCHEDULES
            ops.adam.DeepSpeedCPUAdam ops.adam.FusedAdam ops.adagrad.DeepSpeedCPUAdagrad
            ops.lion.DeepSpeedCPULion checkpoint.utils.clone_tensors_for_torch_save
            utils.set_z3_leaf_modules utils.groups utils.logger utils.safe_get_full_fp32_param
            utils.safe_get_full_grad utils.safe_get_full_optimizer_state checkpointing.configure
            checkpointing.checkpoint pipe.PipelineModule
            runtime.pipe.module.PipelineModule""".split():
        at = deepspeed
        for word in name.split("."):
            at = getattr(at, word)
    assert len(MODULES) > 30
    name = deepspeed.checkpoint.utils.get_model_ckpt_name_for_rank
    assert name("runs/global_step3", "00") == "runs/global_step3/mp_rank_00_model_states.pt"


def test_refuses_where_the_real_one_is_imported():
    pytest.importorskip("deepspeed")
    code = """
        import deepspeed
        import shardd.deepspeed
        try:
            print(shardd.deepspeed.install())
        except RuntimeError as e:
            print(e)
    """
    assert "deepspeed is imported already" in run(code)[1]
    assert "False" in run(code, SHARDD_AS_DEEPSPEED="0")[1]


def test_uninstall_takes_it_away():
    status, out, err = run("""
        import sys, shardd.deepspeed
        before = list(sys.meta_path)
        shardd.deepspeed.install()
        import deepspeed.comm
        shardd.deepspeed.uninstall()
        assert sys.meta_path == before and "deepspeed" not in sys.modules
    """)
    assert status == 0, err


def test_runs_a_script_or_a_module(tmp_path):
    (tmp_path / "train.py").write_text(
        "import sys, deepspeed, beside\nprint(__name__, sys.argv[1:], deepspeed.__version__)\n")
    (tmp_path / "beside.py").write_text("")
    for words in ([str(tmp_path / "train.py"), "--x", "1"], ["-m", "train", "--x", "1"]):
        done = subprocess.run([sys.executable, "-m", "shardd.deepspeed", *words], text=True,
                              capture_output=True, timeout=300, cwd=tmp_path)
        assert done.stdout.split("\n")[-2] == "__main__ ['--x', '1'] 0.19.8+shardd", done.stderr
    done = subprocess.run([sys.executable, "-m", "shardd.deepspeed"], text=True, timeout=300,
                          capture_output=True)
    assert done.returncode != 0 and done.stderr.startswith("usage: ")


def test_options_of_scripts():
    import argparse
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    args = parser.parse_args(["--deepspeed", "--deepspeed_config", "ds.json"])
    assert args.deepspeed and args.deepspeed_config == "ds.json"


def test_only_words_come_out_of_refused_classes():
    with pytest.raises(NotImplementedError, match="gpt.pp0"):
        deepspeed.pipe.PipelineModule()
    with pytest.raises(AttributeError, match="no 'nothing'"):
        deepspeed.comm.nothing


CHILDREN = """
import subprocess, sys
code = sys.argv[1]
if __name__ == "__main__":
    import multiprocessing
    print(subprocess.run([sys.executable, "-c", code], check=True, text=True,
                         capture_output=True).stdout)
    multiprocessing.set_start_method("spawn")
    p = multiprocessing.Process(target=exec, args=(code,))
    p.start()
    p.join()
    sys.exit(p.exitcode)
"""


def children(tmp_path, code, **env):
    """What the new processes of a script say that `python -m shardd.deepspeed` runs."""
    script = tmp_path / "launcher.py"
    script.write_text(CHILDREN)
    done = subprocess.run([sys.executable, "-m", "shardd.deepspeed", str(script), code], text=True,
                          capture_output=True, timeout=300, cwd=tmp_path,
                          env={**os.environ, "DS_ACCELERATOR": "cpu", **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_new_processes_of_a_script_have_it_too(tmp_path):
    """Launchers start ranks as new processes, and would train with the real one there."""
    said = children(tmp_path, "import importlib.metadata, importlib.util as u;"
                    "print(importlib.metadata.version('deepspeed'));"
                    "print(u.find_spec('deepspeed.ops') is not None);"
                    "import deepspeed; print(deepspeed.__version__)")
    assert said == ["0.19.8+shardd", "True", "0.19.8+shardd"] * 2


def test_new_processes_import_nothing_else(tmp_path):
    """And another sitecustomize has its turn."""
    (tmp_path / "sitecustomize.py").write_text("here = True")
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)])
    said = children(tmp_path, "import sys, sitecustomize, importlib.metadata as m; list("
                    "m.distributions()); print(sitecustomize.here, 'torch' in sys.modules, 'shardd'"
                    " in sys.modules)", PYTHONPATH=path)
    assert said[:3] == ["True", "False", "False"]
    said = children(tmp_path, "import sys; print(any('shardd' in str(type(f)).lower() or "
                    "'_First' in str(type(f)) for f in sys.meta_path))", SHARDD_AS_DEEPSPEED="0")
    assert said[0] == "False"

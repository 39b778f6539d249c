# SPDX-License-Identifier: Apache-2.0
"""python -m shardd.deepspeed SCRIPT ..., or -m MODULE ...: runs it with shardd as deepspeed.

So do the Python processes that it starts, because PYTHONPATH has children/sitecustomize.py first.
"""

import os
import runpy
import sys

from .standin import install

USAGE = "usage: python -m shardd.deepspeed SCRIPT [ARGUMENT...]\n" \
        "       python -m shardd.deepspeed -m MODULE [ARGUMENT...]\n"


def main() -> None:
    """Installs the stand-in, and runs what the arguments name as the main program."""
    words = sys.argv[1:]
    as_module = words[:1] == ["-m"]
    words = words[1:] if as_module else words
    if not words or words[0].startswith("-"):
        sys.exit(USAGE)
    install()
    children = os.path.join(os.path.dirname(os.path.abspath(__file__)), "children")
    path = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p not in ("", children)]
    os.environ["PYTHONPATH"] = os.pathsep.join([children, *path])
    sys.argv = words
    if as_module:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()

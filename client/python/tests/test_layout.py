# SPDX-License-Identifier: Apache-2.0
"""The structs, constants and functions of lib.py against shard.h, as a C compiler reads it.

It needs no torch and no daemon. A C program is written from what lib.py says and compiled against
the header: it prints size and offsets of each struct, and the compiler compares each function.
"""

import ctypes as C
import pathlib
import re
import subprocess

import pytest

from shardd import lib

HEADER = pathlib.Path(__file__).resolve().parents[3] / "include" / "shard.h"
TEXT = HEADER.read_text()
CODE = re.sub(r"/\*.*?\*/", "", TEXT, flags=re.S)


def compile_c(tmp_path, body: str, run: bool = True) -> str:
    source = tmp_path / "t.c"
    source.write_text(f'#include <shard.h>\n#include <stdio.h>\n{body}\n')
    flags = ["-Werror", "-Wall", "-Wno-unused", "-std=c11", f"-I{HEADER.parent}"]
    if not run:
        done = subprocess.run(["cc", *flags, "-fsyntax-only", str(source)], capture_output=True,
                              text=True)
        assert done.returncode == 0, done.stderr
        return ""
    subprocess.run(["cc", *flags, str(source), "-o", str(tmp_path / "t")], check=True)
    return subprocess.run([str(tmp_path / "t")], check=True, capture_output=True, text=True).stdout


def test_structs(tmp_path):
    """Every struct has the fields of shard.h, at the same places, and no more."""
    lines = []
    for name, cls in lib.STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field, *_ in cls._fields_:
            lines.append(f'printf("{name}.{field} %zu %zu\\n", '
                         f'offsetof(struct {name}, {field}), '
                         f'sizeof(((struct {name} *)0)->{field}));')
    out = compile_c(tmp_path, "int main(void) {" + "\n".join(lines) + "}")
    there = [line.split() for line in out.splitlines()]
    here = []
    for name, cls in lib.STRUCTS.items():
        here.append([name, str(C.sizeof(cls))])
        for field, kind, *_ in cls._fields_:
            here.append([f"{name}.{field}", str(getattr(cls, field).offset), str(C.sizeof(kind))])
    assert here == there


def test_every_struct_is_known():
    in_header = set(re.findall(r"^struct (shard_\w+) \{", CODE, flags=re.M))
    assert in_header == set(lib.STRUCTS)


def test_every_function_is_known():
    in_header = set(re.findall(r"\b(shard_\w+)\(", CODE)) - {"shard_name_"}
    assert in_header == set(lib.FUNCTIONS)


@pytest.mark.parametrize("name", sorted(lib.FUNCTIONS))
def test_function(tmp_path, name):
    """The declaration that lib.py says is one that the compiler takes for the header's."""
    result, arguments = lib.FUNCTIONS[name]
    declared = re.search(rf"[^;}}]*\b{name}\(([^;]*)\);", CODE).group(1)
    in_header = [] if declared.strip() == "void" else split(declared)
    assert len(in_header) == len(arguments)
    for text, kind in zip(in_header, arguments):
        assert matches(text, kind), f"{text!r} is {kind}"
    head = re.search(rf"SHARD_(?:API|CALL)\s+([^;(]*?)\b{name}\(", CODE).group(1).strip()
    if head == "void":
        assert result is None
    elif "*" in head:
        assert result in (C.c_char_p, C.c_void_p)
    else:
        assert C.sizeof(result) == {"enum shard_status": 4, "int": 4, "uint32_t": 4}[head]


def split(arguments: str) -> list[str]:
    return [" ".join(a.split()) for a in arguments.split(",")]


def matches(text: str, kind) -> bool:
    """Whether an argument of shard.h can be passed as a ctypes type."""
    if "*" in text:
        if "char *" in text and "json" not in text:
            return kind is C.c_char_p
        if "shard_client *client" in text or "shard_model *model" in text and "**" not in text:
            return kind is C.c_void_p
        return kind is C.c_void_p or hasattr(kind, "_type_")
    sizes = {"uint32_t": 4, "uint64_t": 8, "int64_t": 8, "size_t": 8, "int": 4, "shard_ticket": 8}
    base = text.rsplit(" ", 1)[0]
    return C.sizeof(kind) == sizes.get(base, 4 if base.startswith("enum") else -1)


def test_constants(tmp_path):
    """Every enumerator of shard.h that lib.py has is the same number, and none is missing."""
    names = re.findall(r"^\tSHARD_(\w+)(?: = \d+)?,?$", CODE, flags=re.M)
    assert len(names) > 40
    out = compile_c(tmp_path, "int main(void) {" + "".join(
        f'printf("{n} %d\\n", SHARD_{n});' for n in names) + "}")
    for line in out.splitlines():
        name, number = line.split()
        assert getattr(lib, name) == int(number), name


def test_a_wrong_struct_is_found(tmp_path):
    """The checker can fail: a field of another type, and one that is left out."""
    class Wrong(lib.Sized):
        _fields_ = [("size", C.c_size_t), ("step", C.c_uint32), ("attempt", C.c_uint64)]

    saved = lib.STRUCTS["shard_step"]
    lib.STRUCTS["shard_step"] = Wrong
    try:
        with pytest.raises(AssertionError):
            test_structs(tmp_path)
    finally:
        lib.STRUCTS["shard_step"] = saved


def test_import_needs_no_torch():
    """import shardd does not import torch: a tool that only saves does not wait for it."""
    import sys
    code = "import sys, shardd; assert 'torch' not in sys.modules; print(shardd.__version__)"
    subprocess.run([sys.executable, "-c", code], check=True)

# SPDX-License-Identifier: Apache-2.0
"""Which tests run in `make check-python-frameworks` only."""

import importlib
import os

import pytest


def framework(name):
    """Imports it. Where it is missing the tests of a module are skipped, and in the target, which
    sets SHARDD_FRAMEWORKS, they fail."""
    if os.environ.get("SHARDD_FRAMEWORKS") == "1":
        return importlib.import_module(name)
    return pytest.importorskip(name)

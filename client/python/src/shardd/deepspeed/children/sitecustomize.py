# SPDX-License-Identifier: Apache-2.0
"""Python imports this at the start of each process below `python -m shardd.deepspeed`.

That puts this folder first into PYTHONPATH. Launchers start ranks as new processes, as Lightning,
Ray, torchrun and accelerate do, and `import deepspeed` gives shardd's there as well. Until somebody
asks for deepspeed nothing else is imported, because most such processes never do. Afterwards the
sitecustomize that Python would have found without this one has its turn.
"""

import importlib.abc
import importlib.metadata
import itertools
import os
import sys


class _First(importlib.abc.MetaPathFinder):
    """Installs the stand-in when somebody asks for deepspeed, and gives place to it."""

    def _stand_in(self):
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        from shardd.deepspeed import install
        install()
        return sys.meta_path[0]

    def find_spec(self, fullname, path=None, target=None):
        return self._stand_in().find_spec(fullname, path, target) if fullname == "deepspeed" \
            else None

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):
        return self._stand_in().find_distributions(context) \
            if (context.name or "").lower() == "deepspeed" else itertools.chain()


def _next_one():
    """Imports the other sitecustomize, if there is one."""
    here, own = os.path.dirname(os.path.abspath(__file__)), sys.modules.pop(__name__)
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as e:
        if e.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, own)


if os.environ.get("SHARDD_AS_DEEPSPEED") != "0":
    sys.meta_path.insert(0, _First())
_next_one()

# SPDX-License-Identifier: Apache-2.0
"""The parts of the wheel that pyproject.toml cannot say: it has programs of one platform in it, and
runs with every Python 3. make wheel gives the release in SHARD_RELEASE."""
import os

from setuptools import setup
from setuptools.dist import Distribution
from wheel.bdist_wheel import bdist_wheel


class Native(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    version=os.environ.get("SHARD_RELEASE", "0"),
    distclass=Native,
    cmdclass={"bdist_wheel": Wheel},
)

# SPDX-License-Identifier: Apache-2.0
# `make wheel` builds the Python package's wheel in build/dist, with libshard and shardd inside. PYTHON
# is one that has setuptools, wheel and auditwheel.
.PHONY: wheel
wheel:
	@MAKE='$(MAKE)' client/python/wheel.sh $(VERSION) $(B)/dist

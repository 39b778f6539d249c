# SPDX-License-Identifier: Apache-2.0
# The manifests against the JSON schemas of one release of Kubernetes, which are not in this tree:
# SCHEMAS=folder. It needs PyYAML and jsonschema.
SCHEMAS ?=
PYTHON  ?= python3
check-kubernetes:
	@$(PYTHON) deploy/kubernetes/check.py '$(SCHEMAS)'
.PHONY: check-kubernetes

# SPDX-License-Identifier: Apache-2.0
# `make promtool`: fetches promtool into build/promtool. `make check` does that before its tests,
# and skips those of the alert rules where it cannot be had; in CI that is a failure.
.PHONY: promtool
promtool:
	@tests/lib/promtool.sh build/promtool

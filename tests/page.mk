# SPDX-License-Identifier: Apache-2.0
# `make page` tests the daemon's page in a headless browser, and `make page-shots` makes pictures of
# it in every state, in build/page-shots, while axe-core looks for barriers. Neither is part of
# `make check`. chromium is not a dependency, and without it both are skipped. axe-core needs the
# network once.
AXE := build/axe/axe_playwright_python/axe.min.js
.PHONY: page page-shots
page: all
	@tests/page/page.sh $(B)
page-shots: all $(AXE)
	@tests/page/shots.sh $(B) $(AXE) $(B)/page-shots
$(AXE): tests/page/requirements.txt
	@rm -rf build/axe; python3 -m pip install $(PIP_PINNED) --target build/axe -r $< || \
	  { rm -rf build/axe; $(PIP_FAILED); }
	@touch $@

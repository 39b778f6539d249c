# SPDX-License-Identifier: Apache-2.0
# The documents for people who run shardd or train with it. They are a part of `make install` and
# `make uninstall`, and keep the folders that they have here, so that their links to each other
# hold. Beside them lies a trainer in one file that needs nothing but shard.h and the library.
DOC_FILES := README.md deploy/README.md deploy/ZERO.md client/README.md client/ctl/README.md client/ctl/shardctl.schema.json daemon/config/README.md daemon/obs/README.md \
             proto/ckpt/README.md proto/wire/ARITHMETIC.md
EXAMPLES  := train.c copy-checkpoint.sh
DOC_DIR    = $(DESTDIR)$(PREFIX)/share/doc/shardd
install: install-doc
install-doc:
	@for f in $(DOC_FILES); do install -D -m 644 $$f $(DOC_DIR)/$$f || exit 1; done
	@for f in $(EXAMPLES); do install -D -m 644 deploy/examples/$$f $(DOC_DIR)/examples/$$f || exit 1; done
uninstall: uninstall-doc
uninstall-doc:
	rm -f $(addprefix $(DOC_DIR)/,$(DOC_FILES)) $(addprefix $(DOC_DIR)/examples/,$(EXAMPLES))
	-rmdir $(DOC_DIR)/examples 2>/dev/null
	-cd $(DOC_DIR) 2>/dev/null && rmdir -p $(sort $(dir $(filter-out README.md,$(DOC_FILES)))) 2>/dev/null; rmdir $(DOC_DIR) 2>/dev/null
.PHONY: install-doc uninstall-doc

# SPDX-License-Identifier: Apache-2.0
# Completion for bash, zsh and fish. It is a part of `make install` and `make uninstall`.
COMPLETIONS = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSH_COMPLETIONS = $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions
FISH_COMPLETIONS = $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
install: install-completion
install-completion:
	install -d $(COMPLETIONS) $(ZSH_COMPLETIONS) $(FISH_COMPLETIONS)
	install -m 644 deploy/shardctl.bash $(COMPLETIONS)/shardctl
	install -m 644 deploy/shardctl.zsh $(ZSH_COMPLETIONS)/_shardctl
	install -m 644 deploy/shardctl.fish $(FISH_COMPLETIONS)/shardctl.fish
uninstall: uninstall-completion
uninstall-completion:
	rm -f $(COMPLETIONS)/shardctl $(ZSH_COMPLETIONS)/_shardctl $(FISH_COMPLETIONS)/shardctl.fish
.PHONY: install-completion uninstall-completion

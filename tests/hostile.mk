# SPDX-License-Identifier: Apache-2.0
# `make hostile SECONDS=n SEED=k`: runs hostile peers against daemons of a sanitizer build. First
# comes each named attack of tests/hostile/attacks.py, and then n seconds (60) of lying peers in
# every role. Without a SEED one is drawn. ONLY=a,b runs only these attacks or roles.
HOSTILE_SECONDS := $(if $(filter command environment,$(firstword $(origin SECONDS))),$(SECONDS),60)
HOSTILE_SEED    := $(if $(filter command environment,$(firstword $(origin SEED))),$(SEED))
.PHONY: hostile
hostile: all
	@$(MAKE) --no-print-directory SAN=address,undefined WERROR= all
	@python3 -B tests/hostile/hostile.py --san build/san-address-undefined --plain $(B) \
	  --seconds $(HOSTILE_SECONDS) $(addprefix --seed ,$(HOSTILE_SEED)) $(addprefix --only ,$(ONLY))

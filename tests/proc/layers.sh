#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# layers.sh [BUILD]: checks tests/lib/layers.py on a copy of the sources. It must find a call and an
# include of a higher layer, a circle, and a file in a folder that has no layer. The copy without
# them passes.
set -eu
cd "$(dirname "$0")/../.."
copy=$(mktemp -d "${TMPDIR:-/tmp}/shardd-layers.XXXXXX")
trap 'rm -rf "$copy"' EXIT
passed=0

# finds NAME TEXT: the check must fail on the copy as it is now, and say TEXT.
finds()
{
	local said
	if said=$(python3 tests/lib/layers.py "$copy" 2>&1) || [[ $said != *"$2"* ]]; then
		echo "layers: $1 is not found: ${said:-it says nothing}" >&2
		exit 1
	fi
	passed=$((passed + 1))
}
fresh() { rm -rf "$copy/daemon" "$copy/proto"; cp -r daemon proto "$copy/"; }

fresh
python3 tests/lib/layers.py "$copy"
passed=$((passed + 1))

printf 'void planted(void);\nvoid planted(void)\n{\n\tckpt_stop(0);\n}\n' >>"$copy/daemon/data/apply.c"
finds "a call that runs up" "daemon/data/apply.c: calls ckpt_stop() of daemon/ckpt/ckpt.c, which is above it"

fresh
sed -i '0,/^#include/s//#include "obs\/http.h"\n#include/' "$copy/daemon/link/peer.c"
finds "an include that runs up" "daemon/link/peer.c: includes daemon/obs/http.h, which is above it"

fresh
for i in 1 2 3 4 5; do
	printf '/* planted */\nvoid ring_%d(void)\n{\n\tring_%d();\n}\n' "$i" $((i % 5 + 1)) >"$copy/daemon/data/ring$i.c"
done
finds "a circle of five" "a circle of 5 files: daemon/data/ring1.c"

fresh
mkdir "$copy/daemon/attic"
printf '/* planted */\nvoid lost(void)\n{\n\tckpt_stop(0);\n}\n' >"$copy/daemon/attic/lost.c"
finds "a room without a place" "daemon/attic/ has no place among the rooms"

echo "ok layers: $passed checks"

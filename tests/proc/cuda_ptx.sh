#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cuda_ptx.sh BUILD: reads what nvcc makes of the kernels for GPUs. In the PTX each operation of
# fp32 and of double rounds to nearest by itself, so that no later compiler may join two of them,
# and flushes; nothing is approximate. For one element each rule has exactly the operations of
# wire/ARITHMETIC.md. A kernel spills no register and uses at most 64. The fatbin has each chip of
# the Makefile, and PTX. What is wrong with a kernel is planted in copies of the PTX, and found.
# SASS is not read: there a quotient is many operations. The kernels of the example model join and
# approximate nothing either: their sums have the order of a processor. Skipped where there is no
# nvcc.
set -eu
build=${1:?usage: cuda_ptx.sh BUILD}
cd "$(dirname "$0")/../.."
export LC_ALL=C
nvcc=$(cat "$build/with-nvcc" 2>/dev/null || echo no)
[ "$nvcc" != no ] || { echo "ok cuda_ptx: skipped, nvcc is not here (make nvcc)"; exit 0; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/shardd-ptx.XXXXXX")
trap 'rm -rf "$dir"' EXIT
fail()
{
	echo "not ok cuda_ptx: $*"
	exit 1
}
ptx=$build/daemon/gpu/kernels.ptx probe=$build/tests/cuda/probe.ptx fatbin=$build/daemon/gpu/kernels.fatbin
example=$build/client/examples/gpt_kernels.ptx
"${MAKE:-make}" --no-print-directory B="$build" "$ptx" "$probe" "$fatbin" "$example" >"$dir/make" 2>&1 || fail "$(tail -5 "$dir/make")"

# joinable FILE: operations that a later compiler may join, approximate ones, and those of fp32 that
# do not flush. Conversions and comparisons only flush.
joinable()
{
	grep -E '^[[:space:]]+(@%p[0-9]+ )?(mul|add|sub|fma|mad|div|sqrt|rcp|rsqrt|ex2|lg2)\.[a-z0-9.]*f(32|64)[[:space:]]' "$1" |
		grep -vE '(mul|add|sub|fma|div|sqrt)\.rn\.(ftz\.f32|f64)[[:space:]]' || true
	grep -E '\.approx|\.full' "$1" || true
	grep -E '^[[:space:]]+(@%p[0-9]+ )?(cvt|setp|neg|abs)\.[a-z0-9.]*f32' "$1" | grep -v 'ftz' || true
}
for f in "$ptx" "$probe"; do
	said=$(joinable "$f" | head -3)
	[ -z "$said" ] || fail "$f: $said"
done
# A reciprocal that is rounded is a quotient. Whole numbers become fp32 where a mean is taken.
said=$({ joinable "$example" | grep -vE 'rcp\.rn\.ftz\.f32|cvt\.rn\.f32\.u64'; grep -E '\bfma\.' "$example"; } | head -3 || true)
[ -z "$said" ] || fail "$example: $said"
kernels=$(grep -c '\.entry' "$ptx")
[ "$kernels" = 48 ] || fail "$kernels kernels instead of 48"
rounded=$(grep -cE '\.rn\.(ftz\.f32|f64)' "$ptx")
[ "$rounded" -gt 1000 ] || fail "only $rounded operations were found in the PTX"

# Per element: fma mul add sub div sqrt, with w * mult.
while read -r rule want; do
	found=$(awk -v rule="probe_$rule" '
		/\.entry/ { on = $0 ~ (rule "\\(") }
		on && match($0, /(fma|mul|add|sub|div|sqrt)\.rn\.ftz\.f32/) { split(substr($0, RSTART), op, "."); n[op[1]]++ }
		END { printf "%d %d %d %d %d %d", n["fma"], n["mul"], n["add"], n["sub"], n["div"], n["sqrt"] }' "$probe")
	[ "$found" = "$want" ] || fail "$rule has $found of fma mul add sub div sqrt, instead of $want"
done <<'RULES'
adamw 3 4 1 1 2 1
adam 4 3 1 1 2 1
sgd 4 1 0 0 0 0
adagrad 3 1 1 0 1 1
lion 2 4 0 1 0 0
RULES

archs=$(sed -n 's/^GPU_ARCHS *:= *//p' Makefile)
for a in $archs; do
	"$(dirname "$nvcc")/ptxas" -v -arch="sm_$a" -o "$dir/cubin" "$ptx" 2>"$dir/ptxas" || fail "$(tail -3 "$dir/ptxas")"
	said=$(grep -E 'spill' "$dir/ptxas" | grep -v ' 0 bytes spill stores, 0 bytes spill loads' | head -1 || true)
	[ -z "$said" ] || fail "sm_$a: $said"
	said=$(sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' "$dir/ptxas" | sort -n | tail -1)
	[ "${said:-99}" -le 64 ] || fail "sm_$a: a kernel uses $said registers"
done

# A fatbin has a header of 16 bytes, and then entries: kind (1 PTX, 2 a chip), the length of their
# own header and of what follows, and the chip.
have=$(python3 - "$fatbin" <<'PY'
import struct, sys
data = open(sys.argv[1], "rb").read()
magic, _, at, size = struct.unpack_from("<IHHQ", data)
assert magic == 0xBA55ED50
end = at + size
while at < end:
    kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
    print("ptx" if kind == 1 else "sm", struct.unpack_from("<I", data, at + 28)[0], sep="_")
    at += header + size
PY
)
want=$(printf 'sm_%s\n' $archs; echo ptx_80)
[ "$(sort <<<"$have")" = "$(sort <<<"$want")" ] || fail "the fatbin has $(xargs <<<"$have"), instead of $(xargs <<<"$want")"

# finds WHAT SED: the check of the PTX says something about a copy that was changed so.
finds()
{
	sed -E "$2" "$probe" >"$dir/planted"
	! cmp -s "$probe" "$dir/planted" || fail "$1 could not be planted"
	[ -n "$(joinable "$dir/planted")" ] || fail "$1 is not found"
}
finds "a product that may be joined" 's/mul\.rn\.ftz\.f32/mul.ftz.f32/'
finds "a product that is not flushed" 's/mul\.rn\.ftz\.f32/mul.rn.f32/'
finds "an approximate quotient" 's/div\.rn\.ftz\.f32/div.approx.ftz.f32/'
finds "an approximate root" 's/sqrt\.rn\.ftz\.f32/sqrt.approx.ftz.f32/'
echo "ok cuda_ptx: $kernels kernels, $rounded operations that round alone; $(xargs <<<"$have"), $(stat -c %s "$fatbin") bytes"

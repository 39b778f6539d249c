#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# hardened.sh BUILD: checks that the programs and the library of a plain `make` are hardened:
# position independent, read-only relocations bound at the start, no executable stack, stack
# protector, checked copies, marks for control-flow enforcement, and no search path of their own.
# Prints one line for each thing that is missing.
set -eu
build=${1:?usage: hardened.sh BUILD}
export LC_ALL=C
wrong=0

lacks() { echo "not ok hardened: $1 lacks $2"; wrong=1; }

case $build in */san-*) echo "ok hardened: not of a sanitizer build # skip"; exit 0 ;; esac
cuda=libshard-cuda.so.0
[ "$(cat "$build/with-cuda" 2>/dev/null)" != no ] || cuda=
for f in shardd shardctl gpt libshard.so.0 libshard-tls.so.0 $cuda; do
	file=$build/$f
	symbols=$(nm -D --undefined-only "$file" | awk '{ print $2 }')
	dynamic=$(readelf -dW "$file")
	segments=$(readelf -lW "$file")
	grep -q 'Type: *DYN' <<<"$(readelf -hW "$file")" || lacks $f "position independence"
	grep -q GNU_RELRO <<<"$segments" || lacks $f "relro"
	grep -Eq 'BIND_NOW|Flags:.*NOW' <<<"$dynamic" || lacks $f "binding at the start (-z now)"
	grep -E 'GNU_STACK' <<<"$segments" | grep -q 'RW ' || lacks $f "a stack that is not executable"
	grep -q '^__stack_chk_fail' <<<"$symbols" || lacks $f "the stack protector"
	grep -Eq '^__(memcpy|snprintf|vsnprintf|read|printf|fprintf|memset|strcpy)_chk' <<<"$symbols" || lacks $f "checked copies (FORTIFY)"
	# The C library's own start files may lack this mark, and then the whole program lacks it.
	# So the instructions are counted.
	[ "$(objdump -d --no-show-raw-insn "$file" | grep -c endbr64)" -gt $([ $f = libshard-cuda.so.0 -o $f = libshard-tls.so.0 ] && echo 20 || echo 40) ] || lacks $f "the marks of -fcf-protection"
	! grep -Eq 'RPATH|RUNPATH' <<<"$dynamic" || lacks $f "nothing: it has a search path for libraries"
done
[ $wrong = 0 ] || exit 1
echo "ok hardened: shardd, shardctl, gpt, libshard.so.0 and libshard-tls.so.0${cuda:+, $cuda}"

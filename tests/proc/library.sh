#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# library.sh BUILD: checks libshard.so.0. It exports exactly the functions that shard.h declares,
# all of version SHARD_0, and the same as deploy/libshard0.symbols. Structs and numbers are as in
# tests/proc/library_abi.c. Stripped it has at most 236 KiB. It needs only libc, protobuf-c and
# xxhash. libshard.a adds no other global name. libshard-cuda, likewise, exports what shard_cuda.h
# declares. Prints one line for each thing that is wrong.
set -eu
build=$(cd "${1:?usage: library.sh BUILD}" && pwd)
cd "$(dirname "$0")/../.."
dir=$(mktemp -d "${TMPDIR:-/tmp}/shardd-library.XXXXXX")
trap 'rm -rf "$dir"' EXIT
export LC_ALL=C
so=$build/libshard.so.0 a=$build/libshard-whole.a wrong=0 kib_max=236

bad()
{
	echo "not ok library: $*"
	wrong=1
}
# differ WHAT A B: reports names that only one of two sorted lists has.
differ()
{
	local only_a only_b

	only_a=$(comm -23 "$dir/$2" "$dir/$3" | xargs) only_b=$(comm -13 "$dir/$2" "$dir/$3" | xargs)
	[ -z "$only_a" ] || bad "$1: $2 has, and $3 lacks: $only_a"
	[ -z "$only_b" ] || bad "$1: $3 has, and $2 lacks: $only_b"
}

# The preprocessor leaves only declarations. Each of them is put on a line of its own, with its name
# before the first "(".
cc -E -P -Iinclude include/shard.h | tr '\n' ' ' | tr ';' '\n' | grep visibility |
	sed -E 's/__attribute__\(\([^;]*\)\) *([a-z])/\1/; s/^[^(]*[ *](shard_[a-z0-9_]+)\(.*/\1/; s/ //g' | sort >"$dir/shard.h"
objdump -T "$so" | awk '$2 == "g" && $4 == ".text" { sub(/[()]/, "", $(NF - 1)); print $NF, $(NF - 1) }' >"$dir/dynamic"
cut -d' ' -f1 "$dir/dynamic" | sort >"$dir/libshard.so.0"
nm -g --defined-only "$a" | awk 'NF == 3 { print $3 }' | sort >"$dir/libshard.a"
sed -n 's/^ \(shard_[a-z0-9_]*\)@SHARD_0 0\.1\.0$/\1/p' deploy/libshard0.symbols | sort >"$dir/libshard0.symbols"
[ -s "$dir/shard.h" ] || bad "no function found in shard.h"
"${CC:-cc}" -std=c11 -Iinclude -fsyntax-only tests/proc/library_abi.c 2>"$dir/abi" || bad "$(sed -n 's/.*static assertion failed: \(.*\)/the ABI changed: \1/p; s/.*error: \(.*has no member.*\)/\1/p' "$dir/abi" | head -3)"
differ exports shard.h libshard.so.0
differ exports shard.h libshard.a
differ symbols shard.h libshard0.symbols
grep -v 'SHARD_0)\?$' "$dir/dynamic" >"$dir/versions" && bad "not of version SHARD_0: $(xargs <"$dir/versions")"
others=$(objdump -T "$so" | awk '$2 == "g" && $NF != "SHARD_0" && $NF !~ /^shard_/ { print $NF }' | xargs)
[ -z "$others" ] || bad "exports more than functions of shard.h: $others"
grep -q '^libshard\.so\.0 libshard0 ' deploy/libshard0.symbols || bad "deploy/libshard0.symbols is not of libshard.so.0"
readelf -d "$so" | grep -q 'SONAME.*\[libshard\.so\.0\]' || bad "its soname is not libshard.so.0"
needed=$(readelf -d "$so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vxE 'libc\.so\.6|libprotobuf-c\.so\.1|libxxhash\.so\.0|ld-linux-x86-64\.so\.2' | xargs) || true
[ -z "$needed" ] || bad "it needs more than libc, protobuf-c and xxhash: $needed"
strip -o "$dir/stripped" "$so"
bytes=$(stat -c %s "$dir/stripped")
[ "$bytes" -le $((kib_max * 1024)) ] || bad "stripped it has $bytes bytes, at most $((kib_max * 1024)) are allowed"
# libshard-tls exports one table, for libshard alone. It loads OpenSSL, and needs nothing.
tls=$build/libshard-tls.so.0
others=$(objdump -T "$tls" | awk '$2 == "g" && $NF != "SHARD_TLS_0" && $NF != "shard_tls_0" { print $NF }' | xargs)
[ -z "$others" ] || bad "libshard-tls exports more than shard_tls_0: $others"
needed=$(readelf -d "$tls" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vxE 'libc\.so\.6|ld-linux-x86-64\.so\.2' | xargs) || true
[ -z "$needed" ] || bad "libshard-tls needs more than libc: $needed"
grep -qx 'usr/lib/\*/libshard-tls.so.0' deploy/debian/libshard0.install || bad "deploy/debian/libshard0.install lacks libshard-tls.so.0"
# libshard-cuda, unless it was left out. It is checked in the same way, and has no size to keep to.
cuda="without libshard-cuda"
if [ "$(cat "$build/with-cuda")" != no ]; then
	so=$build/libshard-cuda.so.0
	cc -E -P -Iinclude include/shard_cuda.h | tr '\n' ' ' | tr ';' '\n' | grep 'visibility.*shard_cuda_[a-z]*(' |
		sed -E 's/.*[ *](shard_cuda_[a-z]+)\(.*/\1/' | sort >"$dir/shard_cuda.h"
	objdump -T "$so" | awk '$2 == "g" && $4 == ".text" { sub(/[()]/, "", $(NF - 1)); print $NF, $(NF - 1) }' >"$dir/cuda"
	cut -d' ' -f1 "$dir/cuda" | sort >"$dir/libshard-cuda.so.0"
	nm -g --defined-only "$build/libshard-cuda-whole.a" | awk 'NF == 3 { print $3 }' | sort >"$dir/libshard-cuda.a"
	sed -n 's/^ \(shard_cuda_[a-z]*\)@SHARD_CUDA_0 0\.1\.0$/\1/p' deploy/libshard-cuda0.symbols | sort >"$dir/libshard-cuda0.symbols"
	[ -s "$dir/shard_cuda.h" ] || bad "no function found in shard_cuda.h"
	differ exports shard_cuda.h libshard-cuda.so.0
	differ exports shard_cuda.h libshard-cuda.a
	differ symbols shard_cuda.h libshard-cuda0.symbols
	grep -v 'SHARD_CUDA_0)\?$' "$dir/cuda" >"$dir/versions" && bad "not of version SHARD_CUDA_0: $(xargs <"$dir/versions")"
	readelf -d "$so" | grep -q 'SONAME.*\[libshard-cuda\.so\.0\]' || bad "its soname is not libshard-cuda.so.0"
	needed=$(readelf -d "$so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vxE 'libc\.so\.6|libshard\.so\.0|ld-linux-x86-64\.so\.2' | xargs) || true
	[ -z "$needed" ] || bad "libshard-cuda needs more than libc and libshard: $needed"
	if [ -f /usr/local/cuda/include/cuda.h ]; then # Our declarations of the driver beside its own.
		"${CC:-cc}" -std=c11 -Iinclude -Iproto -Iclient -I/usr/local/cuda/include -fsyntax-only tests/cuda/driver_abi.c 2>"$dir/driver" ||
			bad "driver.h is not as cuda.h is: $(grep -m3 error "$dir/driver")"
	fi
	cuda="$(wc -l <"$dir/shard_cuda.h") functions of libshard-cuda"
fi
[ $wrong = 0 ] || exit 1
echo "ok library: $(wc -l <"$dir/shard.h") functions, $((bytes / 1024)) of $kib_max KiB; $cuda"

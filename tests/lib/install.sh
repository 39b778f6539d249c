#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install.sh BUILD: what `make install` leaves: the header alone is C11 and C++17, a program links with the shared and with the static library
# by pkg-config, the library exports shard_* and nothing else, and `make uninstall` takes all of it away.
set -eu
cd "$(dirname "$0")/../.."
B=$1
dir=$(mktemp -d /tmp/shard-install-XXXXXX)
trap 'rm -rf "$dir"' EXIT
root=$dir/root
args=(--no-print-directory "DESTDIR=$root" PREFIX=/usr LIBDIR=/usr/lib/shard-test)
fail() { echo "install: $*"; exit 1; }

"${MAKE:-make}" "${args[@]}" install >"$dir/log" 2>&1 || { cat "$dir/log"; fail "make install failed"; }
cat >"$dir/t.c" <<'C'
#include <shard.h>
#include <stdio.h>
int main(void)
{
	puts(shard_version());
	return shard_name(SHARD_OK)[0] != 'S';
}
C
cp "$dir/t.c" "$dir/t.cc"
export PKG_CONFIG_PATH=$root/usr/lib/shard-test/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
read -ra flags < <(pkg-config --cflags libshard)
read -ra libs < <(pkg-config --libs libshard)
read -ra private < <(pkg-config --libs --static libshard)
warn=(-Wall -Wextra -Wpedantic -Werror)
gcc -std=c11 "${warn[@]}" "${flags[@]}" "$dir/t.c" "${libs[@]}" -o "$dir/t" || fail "a C program does not link with libshard.so"
[ "$(LD_LIBRARY_PATH=$root/usr/lib/shard-test "$dir/t")" ] || fail "the program does not run with libshard.so"
g++ -std=c++17 "${warn[@]}" "${flags[@]}" -fsyntax-only "$dir/t.cc" || fail "shard.h is not C++17"
for f in "${!private[@]}"; do [ "${private[f]}" != -lshard ] || private[f]=$root/usr/lib/shard-test/libshard.a; done
gcc -std=c11 "${warn[@]}" "${flags[@]}" "$dir/t.c" "${private[@]}" -o "$dir/t" || fail "a C program does not link with libshard.a"
"$dir/t" >/dev/null || fail "the program does not run with libshard.a"
others=$(nm -D --defined-only "$root/usr/lib/shard-test/libshard.so.0" | awk '$3 !~ /^shard_/ { print $3 }')
[ -z "$others" ] || fail "libshard.so exports more than shard_*:" $others
for f in shardd shardctl; do "$root/usr/bin/$f" --version >/dev/null || fail "$f --version"; done
"$root/usr/bin/shardctl" config check "$root/usr/share/shardd/shardd.conf" >/dev/null || fail "the installed shardd.conf is refused"
"${MAKE:-make}" "${args[@]}" uninstall >"$dir/log" 2>&1 || fail "make uninstall failed"
left=$(find "$root" -type f -o -type l)
[ -z "$left" ] || fail "make uninstall leaves" $left
echo "install: header, libraries, programs: fine; exports $(nm -D --defined-only "$B/libshard.so.0" | wc -l) names, all shard_*"

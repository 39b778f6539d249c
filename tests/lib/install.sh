#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install.sh BUILD: checks `make install`. The trainer of README.md and client/README.md compiles
# with -Werror as C11 and as C++17, links by pkg-config with libshard.so and with --static with
# libshard.a, and trains with the installed daemon each time. The installed configuration is
# accepted, man finds the pages, and the documents are there. `make uninstall` leaves the tree as it
# was before.
set -eu
cd "$(dirname "$0")/../.."
. tests/lib/pace.sh
B=$1
dir=$(mktemp -d "${TMPDIR:-/tmp}/shardd-install.XXXXXX")
daemon=
trap '[ -z "$daemon" ] || kill -9 $daemon 2>/dev/null; rm -rf "$dir"' EXIT
unset "${!SHARD_@}"
root=$dir/root lib=$dir/root/usr/lib/shard-test
args=(--no-print-directory "B=$B" "DESTDIR=$root" PREFIX=/usr LIBDIR=/usr/lib/shard-test)
fail() { echo "install: $*"; exit 1; }

# Other files in the same folders must stay.
install -d "$root/usr/share/man/man3" "$root/usr/bin" "$root/usr/share/shardd"
touch "$root/usr/share/man/man3/shard_other.3" "$root/usr/bin/shardx" "$root/usr/share/shardd/mine"
find "$root" ! -type d | sort >"$dir/before"
"${MAKE:-make}" "${args[@]}" install >"$dir/log" 2>&1 || { cat "$dir/log"; fail "make install failed"; }
installed=$(find "$root" ! -type d | wc -l)

for f in shardd shardctl; do "$root/usr/bin/$f" --version >/dev/null || fail "$f --version"; done
"$root/usr/bin/shardctl" config check "$root/usr/share/shardd/shardd.conf" >/dev/null || fail "the installed shardd.conf is refused"
[ "$(readlink "$lib/libshard.so")" = libshard.so.0 ] || fail "libshard.so is no link to libshard.so.0"
if command -v python3 >/dev/null; then
	for page in man1/shardctl.1 man3/shard_push.3 man5/shardd.conf.5 man8/shardd.8; do
		[ -s "$root/usr/share/man/$page" ] || fail "no $page"
	done
	page=$root/usr/share/man/man3/shard_cuda_push.3
	case $(cat "$B/with-cuda") in
	yes) [ -s "$page" ] || fail "no shard_cuda_push.3" ;;
	no) [ ! -e "$page" ] || fail "CUDA=0, and shard_cuda_push.3 is installed" ;;
	esac
fi

for f in README.md deploy/README.md client/ctl/README.md proto/ckpt/README.md; do
	cmp -s "$f" "$root/usr/share/doc/shardd/$f" || fail "$f is not among the documents"
done

# Builds the trainers.
awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on' README.md client/README.md >"$dir/loop.c"
[ -s "$dir/loop.c" ] || fail "README.md has no C block"
export PKG_CONFIG_PATH=$lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
read -ra flags < <(pkg-config --cflags libshard)
read -ra shared < <(pkg-config --libs libshard)
read -ra static < <(pkg-config --libs --static libshard)
sources=("$dir/loop.c" tests/proc/readme_main.c)
# trainer NAME COMPILER... -- LIBRARIES...: builds a trainer.
trainer()
{
	local name=$1 compiler=()

	shift
	while [ "$1" != -- ]; do compiler+=("$1"); shift; done
	shift
	"${compiler[@]}" -Wall -Wextra -Werror "${flags[@]}" "${sources[@]}" -x none "$@" -o "$dir/$name" >"$dir/cc.log" 2>&1 ||
		{ cat "$dir/cc.log"; fail "the trainer of README.md does not become $name"; }
}
trainer c-shared gcc -std=c11 -- "${shared[@]}"
trainer c++-shared g++ -std=c++17 -x c++ -- "${shared[@]}"
# This links libshard and protobuf-c statically, in a program that uses libc.so.
trainer c-static gcc -std=c11 -- -Wl,-Bstatic "${static[@]}" -Wl,-Bdynamic
trainer c++-static g++ -std=c++17 -x c++ -- -Wl,-Bstatic "${static[@]}" -Wl,-Bdynamic
trainer c-all-static gcc -std=c11 -- -static "${static[@]}"
printf '#include <shard.h>\n' | gcc -std=c11 -Wpedantic -Wall -Wextra -Werror "${flags[@]}" -fsyntax-only -xc - || fail "shard.h is not C11"
printf '#include <shard.h>\n' | g++ -std=c++17 -Wpedantic -Wall -Wextra -Werror "${flags[@]}" -fsyntax-only -xc++ - || fail "shard.h is not C++17"
for t in c-static c++-static c-all-static; do
	! readelf -d "$dir/$t" | grep -q 'libshard\|libprotobuf-c' || fail "$t still needs a shared library of ours"
done

"$root/usr/bin/shardd" --socket "$dir/sock" --state "$dir/state" --set daemon.http=off --set daemon.memory=64MiB --set daemon.warm_restart=off >"$dir/daemon.log" 2>&1 &
daemon=$!
tail -n +1 -F "$dir/daemon.log" --pid=$daemon 2>/dev/null | grep -q -m1 event=start || { cat "$dir/daemon.log"; fail "shardd did not start"; }
last=0
# The model outlives each trainer, and the next one trains 30 steps more.
for t in c-shared c++-shared c-static c++-static c-all-static; do
	last=$((last + 30))
	SHARD_ADDRESS="unix:$dir/sock" LD_LIBRARY_PATH=$lib paced 60 "$dir/$t" $last >"$dir/$t.out" 2>&1 || { cat "$dir/$t.out" "$dir/daemon.log"; fail "$t failed"; }
	[ "$(tail -n 1 "$dir/$t.out" | cut -d' ' -f1,2)" = "step $last" ] || { cat "$dir/$t.out"; fail "$t did not train to step $last"; }
done
# The installed example is one file, and needs the installed header and library alone. It starts its
# own daemon. A second run finds the model trained.
example=$root/usr/share/doc/shardd/examples/train.c
grep -v '<shard.h>\|<std\(io\|lib\).h>\|<unistd.h>' "$example" >"$dir/other" || fail "no $example"
! grep '^#include' "$dir/other" || fail "the example includes more than shard.h"
gcc -std=c11 -Wall -Wextra -Werror "${flags[@]}" "$example" "${shared[@]}" -o "$dir/example" >"$dir/cc.log" 2>&1 || { cat "$dir/cc.log"; fail "the example does not compile"; }
mkdir -m 700 "$dir/spawned"
example() { # LAST: trains to that step.
	paced 60 env SHARD_ADDRESS=spawn:example SHARD_LINGER=20s SHARD_MEMORY=64MiB XDG_RUNTIME_DIR="$dir/spawned" PATH="$root/usr/bin:$PATH" \
		SHARD_DAEMON="$root/usr/bin/shardd" LD_LIBRARY_PATH="$lib" "$dir/example" spawn:example "$1" >"$dir/example.out" 2>&1 || { cat "$dir/example.out"; fail "the example failed"; }
}
example 120
awk '/^step/ { n++; if (n == 1) first = $4; last = $4 } END { exit !(n == 120 && last < first / 20) }' "$dir/example.out" || { cat "$dir/example.out"; fail "the example's loss did not fall"; }
example 120
spawned=$(XDG_RUNTIME_DIR="$dir/spawned" "$root/usr/bin/shardctl" -a spawn:example status --json | grep -o '"pid":[0-9]*' | head -1 | cut -d: -f2)
[ -z "$spawned" ] || kill -TERM "$spawned"
grep -qx 'the model is at step 120 already' "$dir/example.out" || { cat "$dir/example.out"; fail "a second run of the example begins anew"; }
# A tree was built for one PREFIX, installed below another one and then moved. The library must find
# the daemon beside it.
mkdir -m 700 "$dir/run"
cp -a "$root/usr" "$dir/moved"
paced 60 env SHARD_ADDRESS=spawn:moved SHARD_LINGER=100ms SHARD_MEMORY=64MiB XDG_RUNTIME_DIR="$dir/run" PATH=/nonexistent \
	LD_LIBRARY_PATH="$dir/moved/lib/shard-test" "$dir/c-shared" 30 >"$dir/moved.out" 2>&1 ||
	{ cat "$dir/moved.out"; fail "a trainer of a moved installation does not start its shardd"; }
kill -TERM $daemon
wait $daemon || fail "shardd ended with status $?"
daemon=

"${MAKE:-make}" "${args[@]}" uninstall >"$dir/log" 2>&1 || { cat "$dir/log"; fail "make uninstall failed"; }
find "$root" ! -type d | sort >"$dir/after"
diff "$dir/before" "$dir/after" >"$dir/diff" || { cat "$dir/diff"; fail "make uninstall leaves, or takes, files"; }
echo "install: $((installed - $(wc -l <"$dir/before"))) files; trainers in C and C++, shared and static, train; all are gone again"

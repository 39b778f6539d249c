#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh BUILD [all]: runs the checks of `make check`, or with `all` those of `make check-all`,
# after `make deps`. The last lines are what failed (again), the slowest and the dearest tests and
# "N passed, N failed, N skipped". A step is one test unless its programs count their own
# (run.sh). A step that fails prints the end of its log, and the others still run. STEPS="a b"
# runs only these. A person waits for `make check`, so it takes a quarter of an hour on two cores.
# A test program can have a comment line that puts it elsewhere: "// check: all" (it takes long,
# so only make check-all runs it) or "// check: alone" (it measures time, so nothing else runs
# beside it). A program may have longer tests that it runs only if CHECK_ALL is set.
set -u
cd "$(dirname "$0")/../.." || exit 1
B=$1
everything=${2:-}
[ -z "$everything" ] || export CHECK_ALL=1
make=${MAKE:-make}
work=$B/check
rm -rf "$work"
mkdir -p "$work"
results=$work/results
: >"$results"
jobs=$(nproc)
began=$SECONDS
export WERROR=1 MAKE="$make"

wanted() { [ -z "${STEPS:-}" ] || [[ " $STEPS " = *" $1 "* ]]; }

# step NAME WHAT COMMAND...: runs one test. Its output goes to a log, and its last line is shown.
step()
{
	local name=$1 what=$2 log start=$SECONDS
	shift 2
	wanted "${name%%-*}" || return 0
	log=$work/$name.log
	if tests/lib/guard.sh "$log" "${STEP_TIMEOUT:-300}" "$@"; then
		echo "1 0 0 $(((SECONDS - start) * 1000)) $(cat "$log.cpu") $what" >>"$results"
		printf 'ok   %-34s %s  %d s\n' "$what" "$(tail -1 "$log" | cut -c1-90)" \
			$((SECONDS - start))
	else
		echo "0 1 0 $(((SECONDS - start) * 1000)) $(cat "$log.cpu") $what" >>"$results"
		{
			printf 'FAIL %-34s %d s\n' "$what" $((SECONDS - start))
			tail -${TAIL:-40} "$log" | sed 's/^/     | /'
		}
		{ grep -iE 'wrong|fail|error' "$log" | grep -v '^ts=' | head -12; tail -4 "$log"; } |
			cut -c1-300 | sed 's/^/     > /' >"$work/$name.found"
		return 1
	fi
}

# programs NAME PROGRAM...: runs cmocka programs, which are counted one by one.
programs()
{
	local name=$1
	shift
	wanted "${name%%-*}" || return 0
	"tests/lib/run.sh" "$work/$name" "$@"
	cat "$work/$name" >>"$results" 2>/dev/null
}

# test_rdma* programs run only where there is libibverbs, and not with RDMA=0. The same is true of
# the tests of the source etcd, libcurl and ETCD=0, and of test_cuda*, test_gpu* and CUDA=0.
here()
{
	case ${1##*/} in
	test_rdma*) [ "$(cat "$B/with-rdma" 2>/dev/null)" != no ] ;;
	test_cuda* | test_gpu*) [ "$(cat "$B/with-cuda" 2>/dev/null)" != no ] ;;
	test_etcd* | test_source_etcd* | test_elected_etcd*)
		[ "$(cat "$B/with-etcd" 2>/dev/null)" != no ] ;;
	esac
}
# marked MARK SOURCE: whether its line "// check: ..." has the word.
marked() { grep -qE "^// check:.*\\b$1\\b" "$2"; }
# built WHERE SOURCE...: prints the programs of these sources that belong to this run. WHERE is
# beside (others run beside it) or alone.
built()
{
	local c where
	for c in "${@:2}"; do
		here "$c" && [ -x "$B/${c%.c}" ] || continue
		[ -n "$everything" ] || ! marked all "$c" || continue
		where=beside
		marked alone "$c" && where=alone
		[ "$where" = "$1" ] && echo "$B/${c%.c}"
	done
}

# chaos CLUSTER: faults of an elastic cluster, which takes namespaces, and with CLUSTER=etcd a
# program.
chaos()
{
	local what="chaos: 35 s of faults, $1" user=
	wanted chaos || return 0

	[ "$(id -u)" = 0 ] || user=--map-root-user
	if ! unshare --net --mount $user true 2>/dev/null; then
		echo "0 0 1 0 0 $what" >>"$results"
		echo "SKIP $what: this user cannot make namespaces"
	elif [ "$1" = etcd ] &&
		! { command -v etcd && [ "$(cat "$B/with-etcd")" != no ]; } >/dev/null 2>&1; then
		echo "0 0 1 0 0 $what" >>"$results"
		echo "SKIP $what: etcd is not installed, or not built in (make deps)"
	else
		step "chaos-$1" "$what" "$make" --no-print-directory chaos CLUSTER="$1" SECONDS=35 \
			SEED="${CHAOS_SEED:-1}" FLIP=1
	fi
}

# background: what needs no other step, with what others leave of the processors.
background()
{
	step fuzz-coverage "fuzz: corpora, and what they reach" \
		nice -n 19 "$make" --no-print-directory fuzz-coverage
	step fuzz-run "fuzz: 4 s each" nice -n 19 "$make" --no-print-directory fuzz SECONDS=4
	STEP_TIMEOUT=900 step arm "aarch64, under qemu-user" \
		nice -n 19 "$make" --no-print-directory -j"$jobs" check-arm
}

# python_install: fetches and unpacks what the Python tests need, which is waiting for the most part.
python_install()
{
	STEP_TIMEOUT=1500 step python-install "Python packages" \
		nice -n 19 "$make" --no-print-directory torch && touch "$work/python.installed"
}

# What has one thread. The thread sanitizer finds nothing there, and takes long to say so. A program
# that is not named here is run with it.
one_thread='access|auth|ckpt_beside|ckpt_client|client_adds|client_cover|cluster|config|config_manual'
one_thread+='|conn_flow|control|core_*|corewire|cuda*|etcd_msg|figures|frame|gpt_*|history_*|holder'
one_thread+='|hook|image_dtypes|inbox|journal|lane|layout|log|metrics|network|nvme_power*|ops|parts'
one_thread+='|place|placing|plan|ports|quorum*|rdma|rdma_fail|rdma_hostile|rdma_open|record|room'
one_thread+='|schedule|screen|settings|source_wire|spawn|static|store|stream*|superblock|tables|term'
one_thread+='|tier*|verdict|voters'
# san_programs KIND: the programs that are run with that sanitizer.
san_programs()
{
	local c
	for c in tests/unit/test_*.c tests/proc/test_smoke*.c; do
		[[ $1,$c != thread,tests/unit/test_@($one_thread).c ]] || continue
		here "$c" && [ -f "$c" ] && echo "build/san-${1//,/-}/${c%.c}"
	done
}

# san_build KIND: builds them, with what others leave of the processors.
san_build()
{
	# In instrumented code gcc warns of things that cannot happen. Warnings are errors in the
	# plain build only.
	# shellcheck disable=SC2046
	step "san-build-$1" "build with $1" nice -n 19 "$make" --no-print-directory -j"$jobs" \
		SAN="$1" WERROR= all $([ "$1" = thread ] || echo "build/san-${1//,/-}/sim") \
		$(san_programs "$1") && touch "$work/san-$1.built"
}

sanitized() # KIND
{
	[ -f "$work/san-$1.built" ] || return 0
	# shellcheck disable=SC2046
	CHECK_ALL='' JOBS=$((2 * jobs)) programs "san-$1" $(san_programs "$1")
	[ "$1" = thread ] || # It has one.
		step "san-sim-$1" "simulator with $1" "build/san-${1//,/-}/sim" --seed 0 \
			--seeds "${SAN_SEEDS:-100}"
}

export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0
export TSAN_OPTIONS=halt_on_error=1:suppressions=$PWD/tests/lib/tsan.supp
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

# promtool: has it for the tests that use it, and says loudly that they are skipped where it cannot
# be had. In CI that is a failure, because nobody reads there what was skipped.
promtool()
{
	local what="promtool, for the alert rules" said
	export PATH="$PWD/build/promtool:$PATH"

	said=$("$make" --no-print-directory promtool 2>&1) && return 0
	said=${said%%$'\n'*}
	if [ -n "${CI:-}" ]; then
		echo "0 1 0 0 0 $what" >>"$results"
		echo "FAIL $what: $said"
		echo "     > $said" >"$work/promtool.found"
	else
		echo "0 0 1 0 0 $what" >>"$results"
		echo "SKIP $what: THE ALERT RULES ARE NOT TESTED: $said"
	fi
}

promtool
step build "build" "$make" --no-print-directory -j"$jobs" tests
# The longest first, so that no core is idle at the end.
sources=(tests/unit/test_verdict.c tests/proc/test_*.c
	$(ls tests/unit/test_*.c tests/kernel/test_*.c | grep -v test_verdict))
mapfile -t beside < <(built beside "${sources[@]}")
mapfile -t alone < <(built alone "${sources[@]}")
[ -z "$everything" ] || background &
[ -z "$everything" ] || python_install &
# Most of a test's time is waiting for a disk, a restart, or a limit that must pass. Two tests for
# each core took 111 s, and one for each took 213 s.
JOBS=$((2 * jobs)) programs programs "${beside[@]}"
wait
JOBS=1 programs alone "${alone[@]}"
step tidy "tidy" tests/lib/tidy.sh &
for script in tests/proc/*.sh; do
	[ -n "$everything" ] || ! grep -q '^# check: all' "$script" || continue
	[ -x "$script" ] && step "proc-$(basename "$script" .sh)" "${script#tests/}" "$script" "$B"
done
step tools-install "installation" tests/lib/install.sh "$B"
step tools-globals "no mutable globals" tests/lib/globals.sh "$B"
wait
step sim "simulator" "$make" --no-print-directory sim SEEDS="${SEEDS:-2000}"

# pytests NAME WHAT COMMAND...: as step, but the tests that pytest counts are counted one by one,
# and the names of those that fail are printed.
pytests()
{
	local name=$1 what=$2 start=$SECONDS log rc p f s sum
	shift 2
	wanted "${name%%-*}" || return 0
	log=$work/$name.log
	tests/lib/guard.sh "$log" "${STEP_TIMEOUT:-1500}" "$@"
	rc=$?
	sum=$(grep -E '^[0-9]+ (passed|failed|skipped|error).* in [0-9.]+s' "$log" | tail -1)
	count() {
		grep -oE "[0-9]+ $1" <<<"$sum" | grep -oE '[0-9]+' |
			awk '{ n += $1 } END { print n + 0 }'
	}
	p=$(count passed) f=$(count '(failed|error)') s=$(count skipped)
	[ "$rc" = 0 ] || [ "$f" != 0 ] || f=1
	echo "$p $f $s $(((SECONDS - start) * 1000)) $(cat "$log.cpu") $what" >>"$results"
	printf '%-4s %-34s %s  %d s\n' "$([ "$f" = 0 ] && echo ok || echo FAIL)" "$what" \
		"${sum:-$(tail -1 "$log" | cut -c1-90)}" $((SECONDS - start))
	[ "$f" = 0 ] && return
	tail -${TAIL:-60} "$log" | sed 's/^/     | /'
	{ grep -E '^(FAILED|ERROR|E  ) ' "$log" | head -30; tail -4 "$log"; } | cut -c1-300 |
		sed 's/^/     > /' | tee "$work/$name.found"
}

# mutants_part: all of them take four minutes of a processor, so CI runs a third, which the commit
# chooses. FULL=1 (make nightly) runs all.
mutants_part()
{
	local commit
	if [ -n "${CI:-}" ] && [ -z "${FULL:-}" ] &&
		commit=$(git rev-parse --short=7 HEAD 2>/dev/null); then
		echo $((16#${commit:0:7} % 3 + 1))/3
	else
		echo 1/1
	fi
}

if [ -n "$everything" ]; then
	step bench "benchmarks with small sizes" "$make" --no-print-directory bench QUICK=1
	step sim-mutants "simulator: mutants" "$make" --no-print-directory sim-mutants \
		PART="$(mutants_part)"
	# Chaos, Python and peers that lie mostly wait, so compilers and sanitizers run beside them.
	[ -f "$work/python.installed" ] &&
		pytests python "Python, with torch" "$make" --no-print-directory check-python \
			PYTEST="-m 'not slow'" &
	{
		step chaos "chaos: 70 s of faults" "$make" --no-print-directory chaos CLUSTER=static \
			SECONDS=70 SEED="${CHAOS_SEED:-1}" FLIP=1
		chaos quorum
		chaos etcd
	} &
	chaos=$!
	san_build address,undefined
	step hostile "peers that lie: 15 s" "$make" --no-print-directory hostile SECONDS=15 &
	san_build thread
	wait $chaos
	sanitized address,undefined
	sanitized thread
	wait
fi

awk '$2 > 0 { n = $2; $1 = $2 = $3 = $4 = $5 = ""; printf "failed:%s (%d)\n", $0, n }' "$results"
cat "$work"/*.found "$work"/*.logs/*.found 2>/dev/null
# most FIELD WHAT: the ten rows of the results that have most of it.
most()
{
	echo "the ten $2, in seconds:"
	sort -k"$1,$1nr" "$results" | head -10 | awk -v f="$1" '{
		ms = $f
		$1 = $2 = $3 = $4 = $5 = ""
		printf "  %7.1f %s\n", ms / 1000, $0
	}'
}
most 4 slowest
[ -z "$everything" ] || most 5 "that take most of a processor"
awk -v t=$((SECONDS - began)) -v what="check${everything:+-all}" '
	{ p += $1; f += $2; s += $3; cpu += $5 }
	END {
		printf "%s: %d s%s\n", what, t, what == "check" ? "" : ", " int(cpu / 1000) " s of processors"
		printf "%d passed, %d failed, %d skipped\n", p, f, s
		exit f > 0 || p == 0
	}' "$results"

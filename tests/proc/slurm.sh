#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# slurm.sh BUILD: runs prolog and epilog of deploy/slurm as root, with a scontrol of its own. The
# prolog starts a daemon that answers, with a key that is not that of the site, and the epilog ends
# it and leaves nothing. A prolog without the site's secret fails and says so.
set -eu
cd "$(dirname "$0")/../.."
B=$(cd "${1:?usage: slurm.sh BUILD}" && pwd)
for f in deploy/slurm/*; do bash -n "$f"; done
if [ "$(id -u)" != 0 ]; then
	echo "ok slurm: syntax only: root alone may start a daemon as another user"
	exit 0
fi
dir=$(mktemp -d "${TMPDIR:-/tmp}/shardd-slurm.XXXXXX")
export SHARDD_SLURM_ENV=$dir/none SHARDD_RUN=$dir/run SHARDD_BIN=$dir/bin SHARDD_MEMORY=64MiB SHARDD_SITE_SECRET=$dir/site
export SLURM_JOB_ID=4711 SLURM_JOB_UID=65534 SLURMD_NODENAME=localhost SLURM_JOB_NODELIST=localhost SHARDD_TRIES=6000
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; rm -rf "$dir"' EXIT
bad() { echo "slurm: $*" >&2; exit 1; }
chmod 755 "$dir"
mkdir "$dir/bin"
cp "$B/shardd" "$B/shardctl" "$dir/bin/"
printf '#!/bin/sh\nshift 2\necho "$@" | tr , "\\n"\n' >"$dir/bin/scontrol"
chmod 755 "$dir/bin/scontrol"
PATH=$dir/bin:$PATH

! said=$(deploy/slurm/prolog.sh 2>&1) && [[ $said == *"$dir/site is missing"* ]] || bad "without the site's secret: $said"
"$B/shardctl" secret new "$dir/site" >/dev/null
deploy/slurm/prolog.sh || bad "the prolog fails"
pid=$(cat "$SHARDD_RUN/4711.pid")
[ "$(stat -c %u "/proc/$pid")" = 65534 ] || bad "the daemon is not of the job's user"
! cmp -s "$dir/site" "$SHARDD_RUN/4711/node_secret" || bad "the job has the key of the site"
grep -qx 'localhost = localhost:24711' "$SHARDD_RUN/4711/shardd.conf" || bad "the list of nodes is wrong"
deploy/slurm/epilog.sh || bad "the epilog fails"
[ ! -e "/proc/$pid/exe" ] || bad "the daemon still runs"
pid=
[ -z "$(ls "$SHARDD_RUN")" ] || bad "the epilog leaves $(ls "$SHARDD_RUN")"
deploy/slurm/epilog.sh || bad "an epilog without a daemon fails"
echo "ok slurm: a daemon started and ended with its job"

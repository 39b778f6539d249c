#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Prolog= of slurm.conf (PrologFlags=Alloc): starts a shardd for the job on each of its nodes, as
# the user of the job, and waits until it answers. It fails with a sentence, and then Slurm drains
# the node. epilog.sh stops the daemon. /etc/shardd/slurm.env may set what is set below.
set -eu
env=${SHARDD_SLURM_ENV:-/etc/shardd/slurm.env}
# shellcheck source=/dev/null
[ ! -r "$env" ] || . "$env"
run=${SHARDD_RUN:-/run/shardd-slurm}          # a folder for each job
bin=${SHARDD_BIN:-/usr/bin}
memory=${SHARDD_MEMORY:-16GiB}                # the budget of each node for a job
site=${SHARDD_SITE_SECRET:-/etc/shardd/slurm_secret} # the same on all nodes, for root alone
job=${SLURM_JOB_ID:?shardd: SLURM_JOB_ID is not set: this is a Prolog of Slurm}
uid=${SLURM_JOB_UID:?shardd: SLURM_JOB_UID is not set: this is a Prolog of Slurm}
node=${SLURMD_NODENAME:-$(hostname -s)}
dir=$run/$job
[[ $job =~ ^[0-9]+$ && $uid =~ ^[0-9]+$ ]] || { echo "shardd: job \"$job\" or uid \"$uid\" is no number" >&2; exit 1; }
[ -s "$site" ] || { echo "shardd: $site is missing or empty: shardctl secret new $site, the same on all nodes" >&2; exit 1; }
gid=$(id -g "$uid")
port=$((20000 + job % 10000))

install -d -m 0755 "$run"
install -d -m 0700 -o "$uid" -g "$gid" "$dir" "$dir/state"
# Each job has a key of its own, which does not tell that of the site.
(umask 077 && { cat "$site"; echo "$job"; } | sha256sum | cut -c1-64 >"$dir/node_secret")
{
	printf '%s\n' '[daemon]' "node = $node" "socket = $dir/shardd.sock" "state = $dir/state" \
		"memory = $memory" 'http = off' 'warm_restart = off' '[cluster]' "run_id = slurm-$job" \
		"node_secret = $dir/node_secret" '[nodes]'
	scontrol show hostnames "${SLURM_JOB_NODELIST:-$node}" | while read -r n; do
		echo "$n = $n:$port"
	done
} >"$dir/shardd.conf"
chown "$uid:$gid" "$dir/node_secret" "$dir/shardd.conf"

as=(setpriv "--reuid=$uid" "--regid=$gid" --init-groups)
# A session of its own, so that it outlives this script.
setsid "${as[@]}" "$bin/shardd" --config "$dir/shardd.conf" </dev/null >/dev/null 2>"$dir/log" &
pid=$!
echo "$pid" >"$run/$job.pid"
for ((left = ${SHARDD_TRIES:-600}; left > 0; left--)); do
	"${as[@]}" "$bin/shardctl" --timeout 5 -a "unix:$dir/shardd.sock" status >/dev/null 2>&1 && exit 0
	kill -0 "$pid" 2>/dev/null || break
	sleep 0.1
done
echo "shardd: the daemon of job $job does not answer: $(tail -1 "$dir/log")" >&2
exit 1

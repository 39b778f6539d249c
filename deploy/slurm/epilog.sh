#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Epilog= of slurm.conf: stops the shardd that prolog.sh started for the job, and removes its
# folder. The memory goes with the process: a job that wants its weights has saved them.
set -eu
env=${SHARDD_SLURM_ENV:-/etc/shardd/slurm.env}
# shellcheck source=/dev/null
[ ! -r "$env" ] || . "$env"
run=${SHARDD_RUN:-/run/shardd-slurm}
job=${SLURM_JOB_ID:?shardd: SLURM_JOB_ID is not set: this is an Epilog of Slurm}
[[ $job =~ ^[0-9]+$ ]] || { echo "shardd: job \"$job\" is no number" >&2; exit 1; }
# ours PID: is it still the daemon of this job, and not another process with that number?
ours() { tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -qF -- "--config $run/$job/shardd.conf"; }

if pid=$(cat "$run/$job.pid" 2>/dev/null) && ours "$pid"; then
	kill -TERM "$pid"
	# stop_timeout is 60 s. What is left then has nothing to lose any more.
	for ((left = ${SHARDD_STOP_TRIES:-700}; left > 0; left--)); do
		ours "$pid" || break
		sleep 0.1
	done
	! ours "$pid" || kill -KILL "$pid"
fi
rm -rf "${run:?}/$job" "$run/$job.pid"

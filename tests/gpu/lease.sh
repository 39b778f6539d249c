#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lease.sh [BUILD]: what a machine with an NVIDIA GPU is asked, in a few minutes: see lease.c and
# lease_gpt.c. It builds what is missing, which needs nvcc (make nvcc), and prints a table last. What
# was built on another machine is taken as it is. It fails, and says so, without a GPU, and if any
# bit differs. LEASE_SMALL=1 is for a try without one (tests/proc/cuda_lease.sh).
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build}
kernels=$build/daemon/gpu/kernels.fatbin border=$build/tests/cuda/border.fatbin lease=$build/tests/gpu/lease
gpt=$build/client/examples/gpt_kernels.fatbin lease_gpt=$build/tests/gpu/lease_gpt
# 2^24 cases of each operation, 2^26 elements for each of nine pairs of types, and 64 chunks of 2^20.
sizes=(16777216 67108864 1048576 64)
if [ -n "${LEASE_SMALL:-}" ]; then
	sizes=(5000 9000 4096 2)
	kernels=Makefile border=Makefile gpt=Makefile # The driver library for tests loads anything.
elif [ ! -e "$kernels" ] || [ ! -e "$border" ] || [ ! -e "$lease" ] || [ ! -e "$gpt" ] || [ ! -e "$lease_gpt" ]; then
	"${MAKE:-make}" --no-print-directory B="$build" "$kernels" "$border" "$lease" "$gpt" "$lease_gpt" >&2
fi
status=0
"$lease_gpt" "$gpt" || status=1 # The example model, in one line.
"$lease" "$kernels" "$border" "${sizes[@]}" || status=1
exit $status

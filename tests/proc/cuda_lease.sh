#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cuda_lease.sh BUILD: tests/gpu/lease.sh, which asks a real GPU, on the driver library of
# tests/cuda, whose kernels run on the processor. So what it does and prints is tried where there is
# no GPU. Without any driver it fails, and says why.
set -eu
build=$(cd "${1:?usage: cuda_lease.sh BUILD}" && pwd)
cd "$(dirname "$0")/../.."
[ "$(cat "$build/with-cuda")" != no ] || { echo "ok cuda_lease: skipped, CUDA=0"; exit 0; }
fail()
{
	echo "not ok cuda_lease: $*"
	exit 1
}
said=$(LEASE_SMALL=1 LD_LIBRARY_PATH="$build/tests/cuda" FAKE_CUDA_DELAY_US=1 tests/gpu/lease.sh "$build" 2>/dev/null) || fail "$(tail -3 <<<"$said")"
[ "$(tail -1 <<<"$said")" = "lease: all bits are equal" ] || fail "$(tail -1 <<<"$said")"
grep -q 'GPUDirect RDMA .*dma-buf of 32 MiB: error 0; flush: error 0,' <<<"$said" || fail "no dma-buf: $said"
for line in 'OPS_REPAIR can be 0' '^adamw .* 0 differ$' '^sum of two bf16 .* GB/s' 'not measured$' '^gpt .* gradients: 0 have other bits'; do
	grep -q "$line" <<<"$said" || fail "the table lacks $line"
done
# Devices that flush otherwise are found, and have the same bits.
for ftz in 1 2; do
	said=$(LEASE_SMALL=1 LD_LIBRARY_PATH="$build/tests/cuda" FAKE_CUDA_DELAY_US=1 FAKE_CUDA_FTZ=$ftz tests/gpu/lease.sh "$build" 2>/dev/null) || fail "flushing $ftz: $(tail -3 <<<"$said")"
	grep -q "OPS_REPAIR can be $ftz" <<<"$said" || fail "flushing $ftz is not found"
done
if said=$(LEASE_SMALL=1 LD_LIBRARY_PATH="$build/tests/cuda" FAKE_CUDA_DEVICES=0 tests/gpu/lease.sh "$build" 2>&1); then
	fail "it says nothing of a machine without a GPU"
fi
grep -q 'lease: .*GPU' <<<"$said" || fail "without a GPU it says: $said"
if said=$(LEASE_SMALL=1 LD_LIBRARY_PATH="$build/tests/cuda" FAKE_CUDA_DELAY_US=1 FAKE_CUDA_FAIL="cuStreamSynchronize 9 700" tests/gpu/lease.sh "$build" 2>&1); then
	fail "an error of the device is not told"
fi
grep -q 'lease: cuStreamSynchronize: .*CUDA_ERROR_ILLEGAL_ADDRESS' <<<"$said" || fail "an error of the device is told as: $(tail -1 <<<"$said")"
echo "ok cuda_lease: the table of lease.sh, on a driver without a GPU"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# import.sh BUILD: exports what a training run saved as Hugging Face's files, and imports it as a
# model again. After export, import, restore, save and another export the files are the same byte by
# byte, and the model trains. Changed weights are found. Exits with 0 if nothing is wrong.
name=import
build=$(cd "${1:?usage: import.sh BUILD}" && pwd)
model=(--layers 1 --dim 32 --heads 4 --seq 32 --batch 8 --seed 1 --dtype bf16 --world 1,1
	--settings "optimizer=adamw lr=1e-3 chunk_elems=16384")
cd "$(dirname "$0")/../.." || exit 1
. tests/demo/cluster.sh

ctl() { "$build/shardctl" --address "unix:$dir/a.sock" "$@" >"$dir/ctl.out" 2>&1 || fail "shardctl $*: $(cat "$dir/ctl.out")"; }
trains() # TO
{
	start "trainer-$1" "$build/gpt" --data "$dir/text" "${model[@]}" --address "unix:$dir/a.sock" --steps "$1"
	finish "trainer-$1"
}

text
start_daemons
trains 12
trains 12 # Another time: there is nothing to do, and it says so.
grep -q "the model is at step 12 already, so nothing is left of 12 steps" "$dir/trainer-12.out" || fail "no word of a finished run: $(cat "$dir/trainer-12.out")"
ctl save gpt --dir "$dir/run"
ctl export "$dir/run" "$dir/hf" --dtype fp32
ctl import "$dir/hf" "$dir/imported" --name gpt --settings "optimizer=adamw lr=1e-3 chunk_elems=16384 max_world=1" --image bf16 --grad bf16
ctl model drop gpt
ctl restore "$dir/imported"
ctl save gpt --dir "$dir/again"
ctl export "$dir/again" "$dir/hf2" --dtype fp32
cmp "$dir/hf/model.safetensors" "$dir/hf2/model.safetensors" || fail "the weights changed on their way"
# Layout and settings come from the definition, and the moments begin at zero.
trains 3
ctl save gpt --dir "$dir/again"
ctl export "$dir/again" "$dir/hf3" --dtype fp32
cmp -s "$dir/hf2/model.safetensors" "$dir/hf3/model.safetensors" && fail "three steps changed nothing"
stop_daemons
echo "import: exported, imported, restored and trained: the same weights"

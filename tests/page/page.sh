#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# page.sh BUILD: the page at / in a real browser, headless, while two daemons and their trainers
# work: what it must show is looked for in the document after its scripts ran. Skipped without
# chromium. Pictures are made by shots.sh.
name=page
build=$(cd "${1:?usage: page.sh BUILD}" && pwd)
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || { echo "page: skipped: no chromium here"; exit 0; }
. "${BASH_SOURCE%/*}/../demo/cluster.sh"

export SHARD_HTTP=127.0.0.1:0 # beats the file
start_daemons
unset SHARD_HTTP
text
for rank in 0 1 2; do
	node=a
	[ $rank = 0 ] || node=b
	start trainer-$rank "$build/gpt" --address "unix:$dir/$node.sock" --data "$dir/text" --steps 1000000 --world 3 --rank-hint $rank \
		--settings "optimizer=adamw lr=6e-3 clip=1.0 chunk_elems=16384" --log "$dir/trainer-$rank.log"
done
port=$(sed -n 's/.*event=http port=\([0-9]*\).*/\1/p' "$dir/daemon-a.out")
steps() { [ -s "$dir/trainer-0.log" ] && [ "$(wc -l <"$dir/trainer-0.log")" -ge 5 ]; }
wait_until 20 steps || fail "no five steps within 20 s of a quiet machine"

# the page polls for ever: time is virtual, and stands still while an answer is on its way
look=("$browser" --headless=new --no-sandbox --disable-gpu --user-data-dir="$dir/browser" --virtual-time-budget=${BUDGET:-1000000})
"${look[@]}" --dump-dom "http://127.0.0.1:$port/" >"$dir/dom" 2>"$dir/browser.out" || fail "the browser fails"
wrong=0
has() # WHAT REGEX
{
	grep -qE "$2" "$dir/dom" || { echo "page: not there: $1: $2"; wrong=$((wrong + 1)); }
}
has "the node's name in the title" '<title>shardd a</title>'
has "health" '<span id="health" class="state good"[^>]*>ok<'
has "nothing wrong" 'id="health-box"[^>]* hidden'
has "an icon for it" 'id="icon" href="data:image/svg'
has "an event" '<td[^>]*>link_up</td>'
has "the newest checkpoint" '<th scope="row">Checkpoint</th><td[^>]*>none<'
has "this node" '<tr data-node="a"><td[^>]*>a<span class="soft"> coordinator</span>'
has "the other one's link" '<tr data-node="b">.*>up<'
has "the model" '<section class="card" data-model="gpt">.*<span class="state good">training</span>'
has "a step" '<b>[1-9][0-9]*</b><span>step</span>'
has "the gradient's norm" '<b>[0-9.]+</b><span>gradient norm</span>'
has "copies" '<b>2 of 2</b><span>copies, at least</span>'
has "chunks of a" 'data-owner="a">a</span><i style="--w:[0-9.]+%"></i><span class="soft">[1-9][0-9]* of '
has "chunks of b" 'data-owner="b">b<'
has "rank 2 on node b" '<tr data-rank="2"><td[^>]*>2</td><td[^>]*>b</td>'
has "a link to the other one's page" '<tr data-node="b"><td[^>]*><a href="http://127.0.0.1:[0-9]+/">b<'
has "what rank 2 does, which b knows" '<tr data-rank="2">.*>[0-9]+ of 8<'
has "bytes from b to a" '<tr data-flow="b&gt;a"><td[^>]*>b</td><td[^>]*>a</td>'
has "whom it waits for" 'class="waits">[^<]+<'
has "the chart of step times" '<svg data-chart="step".*<path d="M[0-9]'
has "the chart of throughput" '<svg data-chart="rate".*<path d="M[0-9]'
# but for the links to the pages of other nodes, which are followed by hand
! grep -q 'https\{0,1\}://[^"]*' <(sed 's/<a href="[^"]*"//g' "$dir/dom" | grep -oE '(src|href)="[^"]*"') || { echo "page: something from elsewhere"; wrong=$((wrong + 1)); }
[ $wrong = 0 ] || { cp "$dir/dom" "$build/page.dom"; fail "$wrong of 22 wrong; the document is $build/page.dom"; }
echo "page: 22 checks, 0 wrong"

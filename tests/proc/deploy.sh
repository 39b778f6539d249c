#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy.sh BUILD: alert rules, dashboard and README speak of metrics that the daemon has, and of each of its own at least once in README;
# promtool reads the rules where it is installed.
set -u
cd "$(dirname "$0")/../.." || exit 1
wrong=0
bad() { echo "deploy: $*"; wrong=$((wrong + 1)); }

mapfile -t has < <(grep -ohE '"shardd_[a-z_]+"' daemon/obs/scrape.c | tr -d '"' | sort -u)
[ ${#has[@]} -ge 20 ] || bad "only ${#has[@]} metrics found in daemon/obs/scrape.c"
for f in deploy/alerts.yml deploy/grafana.json README.md; do
	while read -r name; do
		base=$(sed -E 's/_(bucket|sum|count)$//' <<<"$name")
		printf '%s\n' "${has[@]}" | grep -qxE "$name|$base" || bad "$f: $name: no such metric"
	done < <(grep -ohE '\bshardd_[a-z_]+' "$f" | sort -u)
done
for name in "${has[@]}"; do
	grep -q "\`$name[\`{]" README.md || bad "README.md: $name is not explained"
done
grep -q '"title": "shardd"' deploy/grafana.json || bad "deploy/grafana.json: no dashboard"
if command -v python3 >/dev/null; then
	python3 -c 'import json; json.load(open("deploy/grafana.json"))' || bad "deploy/grafana.json is no JSON"
fi
note="; promtool is not here"
if command -v promtool >/dev/null; then
	promtool check rules deploy/alerts.yml >/dev/null || bad "promtool refuses deploy/alerts.yml"
	promtool test rules tests/proc/alerts.test.yml || bad "alerts fire where they must not, or do not where they must"
	note=
fi
[ $wrong = 0 ] && echo "deploy: ${#has[@]} metrics, each explained, none made up$note"
[ $wrong = 0 ]

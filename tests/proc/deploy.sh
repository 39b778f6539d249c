#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy.sh BUILD: checks the files in deploy/. Alert rules, dashboard and deploy/README.md use
# only metrics that the daemon has (readme.sh has the complete list). Each alert has a heading in
# deploy/README.md and a fault in alerts.py, and promtool tries the rules where it is there (`make
# promtool`), and reads the dashboard's expressions. systemd accepts the unit and rates its
# exposure low. shardd.conf names exactly the options that there are, and is accepted. Users,
# sysctls and limits have the form that their readers expect.
set -u
cd "$(dirname "$0")/../.." || exit 1
B=$1
dir=$(mktemp -d "${TMPDIR:-/tmp}/shardd-deploy.XXXXXX")
trap 'rm -rf "$dir"' EXIT
wrong=0
bad() { echo "deploy: $*"; wrong=$((wrong + 1)); }

mapfile -t has < <(grep -ohE '"shardd_[a-z_]+"' daemon/obs/scrape*.c | tr -d '"' | sort -u)
[ ${#has[@]} -ge 60 ] || bad "only ${#has[@]} metrics found in daemon/obs/scrape*.c"
for f in deploy/alerts.yml deploy/grafana.json deploy/README.md; do
	while read -r name; do
		base=$(sed -E 's/_(bucket|sum|count)$//' <<<"$name")
		printf '%s\n' "${has[@]}" | grep -qxE "$name|$base" || bad "$f: $name: no such metric"
	done < <(grep -ohE '\bshardd_[a-z_]+' "$f" | sort -u)
done
grep -q '"title": "shardd"' deploy/grafana.json || bad "deploy/grafana.json: no dashboard"
PATH=$PWD/build/promtool:$PATH
note="; promtool is not here: make promtool"
rules=$(tests/proc/alerts.py "$dir/alerts.json") || bad "tests/proc/alerts.py: each alert needs a fault there, and a heading in deploy/README.md"
shown=$(tests/proc/dashboard.py "$dir/dashboard.json") || bad "tests/proc/dashboard.py: the dashboard is not whole"
if command -v promtool >/dev/null; then
	read=$(promtool check rules "$dir/dashboard.json" 2>&1) || bad "promtool cannot read the dashboard: $read"
	promtool check rules deploy/alerts.yml >/dev/null || bad "promtool refuses deploy/alerts.yml"
	promtool test rules "$dir/alerts.json" || bad "alerts fire where they must not, or do not where they must"
	note=
fi

# The service.
# Documentation= is removed because verify asks man for pages.
sed "s,@BINDIR@,$(cd "$B" && pwd)," deploy/shardd.service | grep -v ^Documentation= >"$dir/shardd.service"
if command -v systemd-analyze >/dev/null; then
	exposure=$(systemd-analyze security --offline=true "$dir/shardd.service" 2>/dev/null | sed -n 's/.*Overall exposure level for .*: \([0-9.]*\) .*/\1/p')
	awk -v e="${exposure:-10}" 'BEGIN { exit !(e <= 1.6) }' || bad "deploy/shardd.service: exposure ${exposure:-not said}, at most 1.6"
	said=$(SYSTEMD_LOG_TARGET=console systemd-analyze verify --man=no "$dir/shardd.service" 2>&1 | grep -F shardd) && bad "systemd-analyze verify: $said"
	note="$note; exposure $exposure"
else
	bad "systemd-analyze is not here: make deps"
fi
# The drop-in for GPUs is one that systemd reads.
for line in 'DeviceAllow=char-nvidia rw' 'DeviceAllow=char-nvidia-uvm rw' 'After=nvidia-persistenced.service'; do
	grep -qxE "$line" deploy/shardd.gpu.conf || bad "deploy/shardd.gpu.conf: no $line"
done
if command -v systemd-analyze >/dev/null; then
	mkdir -p "$dir/gpu"
	cat "$dir/shardd.service" deploy/shardd.gpu.conf >"$dir/gpu/shardd.service"
	said=$(SYSTEMD_LOG_TARGET=console systemd-analyze verify --man=no "$dir/gpu/shardd.service" 2>&1 | grep -F gpu/shardd) && bad "systemd-analyze verify with deploy/shardd.gpu.conf: $said"
fi
for line in Type=notify 'WatchdogSec=.' Restart=on-failure 'StartLimitBurst=.' User=shardd Group=shardd StateDirectory=shardd RuntimeDirectory=shardd \
	RuntimeDirectoryMode=0750 LimitMEMLOCK=infinity 'LimitNOFILE=.' 'OOMPolicy=.' 'OOMScoreAdjust=-.' 'ExecReload=.*-HUP' 'TimeoutStopSec=.' \
	'FileDescriptorStoreMax=[1-9][0-9]{3}' 'LoadCredential=shardd.secret:/etc/shardd/secret' 'SetCredential=shardd.secret:none' \
	'LoadCredential=shardd.node_secret:/etc/shardd/node_secret' 'SetCredential=shardd.node_secret:none' 'PrivateDevices=no' \
	'DeviceAllow=char-infiniband_verbs rw' 'DeviceAllow=/dev/infiniband/rdma_cm rw' 'RestrictAddressFamilies=.*AF_NETLINK'; do
	grep -qE "^$line" deploy/shardd.service || bad "deploy/shardd.service: no $line"
done
if command -v systemd-sysusers >/dev/null; then
	mkdir -p "$dir/root/etc"
	: >"$dir/root/etc/passwd"
	systemd-sysusers --root="$dir/root" "$PWD/deploy/shardd.sysusers" >"$dir/said" 2>&1 || bad "systemd-sysusers: $(cat "$dir/said")"
	grep -q '^shardd:.*:/var/lib/shardd:/usr/sbin/nologin$' "$dir/root/etc/passwd" && grep -q '^shardd:' "$dir/root/etc/group" ||
		bad "deploy/shardd.sysusers makes no user and group shardd"
fi
while read -r key _; do
	[ ! -e /proc/sys ] || [ -e "/proc/sys/${key//./\/}" ] || bad "deploy/90-shardd.sysctl.conf: $key: no such sysctl"
done < <(grep -E '^[a-z]' deploy/90-shardd.sysctl.conf)

# shardd.conf has each option in its section, and every line is accepted when it is no comment.
options() { awk '/^\[(daemon|net|cluster)\]/ { s = $1; next } /^\[/ { s = "" } s && /^  [a-z_]+( |$)/ { print s, $1 }' <("$B/shardd" --help) | sort; }
named() { awk '/^\[/ { s = $1 ~ /^\[(daemon|net|cluster)\]$/ ? $1 : "" } s && match($0, /^;[a-z_]+ = /) { print s, substr($0, 2, RLENGTH - 4) }' deploy/shardd.conf | sort; }
[ "$(options | wc -l)" -ge 20 ] || bad "only $(options | wc -l) options found in shardd --help"
diff <(options) <(named) >"$dir/diff" || bad "shardd --help (<) and deploy/shardd.conf (>): $(grep '^[<>]' "$dir/diff" | tr '\n' ' ')"
"$B/shardd" --config deploy/shardd.conf --check >/dev/null || bad "deploy/shardd.conf is refused"
long=$(awk 'length($0) > 76 { print FNR }' deploy/shardd.conf | xargs)
[ -z "$long" ] || bad "deploy/shardd.conf: longer than 76 columns: lines $long"
# Above each option there is a paragraph, but for the second one of a pair.
bare=$(awk '/^\[daemon\]/ { on = 1 } on && /^;[a-z_]+ = / && before !~ /^;/ { print $1 } { before = $0 }' deploy/shardd.conf | xargs)
[ -z "$bare" ] || bad "deploy/shardd.conf: no word about $bare"
for key in checkpoint_dir checkpoint_every keep_latest restore_at_start; do
	grep -q "^;$key = " <(sed -n '/^\[model\]/,$p' deploy/shardd.conf) || bad "deploy/shardd.conf: no $key in [model]"
done
# The block for two nodes is taken as it is, with all options at their defaults behind it.
sed '/^; >>>$/,/^; <<<$/s/^;\([[a-z]\)/\1/' deploy/shardd.conf >"$dir/two.conf"
for node in a b; do
	"$B/shardd" --config "$dir/two.conf" --node $node --check >"$dir/two.said" 2>&1 || bad "the block of two nodes is refused: $(cat "$dir/two.said")"
	grep -q '^b = 10.0.0.2:29700$' "$dir/two.said" && grep -q '^checkpoint_every = 1000$' "$dir/two.said" || bad "the block of two nodes says something else: $(cat "$dir/two.said")"
done
# The default that stands there is the one of the table, where the value of an option is one of all nodes.
sed '1,/^; <<<$/d; /^\[nodes\]/,$d; s/^;\([a-z_]* = \)/\1/; /^\(node\|secret\|node_secret\|etcd_[a-z]*\|tls_cert\|tls_key\|tls_ca\|memory\|http_allow\|workers\|checkpoint_roots\|checkpoint_hook\|nvme_dir\|membership\) = /d' deploy/shardd.conf >"$dir/all.conf"
for f in /dev/null "$dir/all.conf"; do
	env -i "$B/shardd" --config "$f" --node a --check >"$dir/said" 2>&1 || bad "deploy/shardd.conf with its defaults set: $(cat "$dir/said")"
	mv "$dir/said" "$dir/$(basename "$f").said"
done
diff "$dir/null.said" "$dir/all.conf.said" >"$dir/diff" || bad "deploy/shardd.conf has another default than the daemon: $(grep '^[<>]' "$dir/diff" | tr '\n' ' ')"

# Each package in control has a list of files, and the version is that of the Makefile.
for p in $(sed -n 's/^Package: //p' deploy/debian/control); do
	[ -s "deploy/debian/$p.install" ] || bad "deploy/debian: $p has no list of files"
done
version=$(sed -n 's/^VERSION *:= *//p' Makefile)
head -1 deploy/debian/changelog | grep -qF "shardd ($version" || bad "deploy/debian/changelog is not of version $version"
for f in deploy/debian/shardd.{config,postinst,postrm} deploy/debian/tests/train; do sh -n "$f" || bad "$f: wrong"; done

[ $wrong = 0 ] && echo "deploy: ${#has[@]} metrics, none made up; $rules; $shown$note"
[ $wrong = 0 ]

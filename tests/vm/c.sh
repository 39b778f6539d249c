# SPDX-License-Identifier: Apache-2.0
# Sourced by run.sh; vm.sh says what the words mean. What happens inside the guest is in service.sh.
# c.sh: the packages as a service on a Debian root with systemd as PID 1
. tests/vm/root.sh
built=$here/packages

# This version's packages, and those of a next one whose only news is its number
packages()
{
	local version tree="$built/2/tree"

	version=$(sed -n 's/^VERSION *:= *//p' Makefile)
	env -u MAKEFLAGS -u MFLAGS "${MAKE:-make}" --no-print-directory deb DEB_DIR="$built/1"
	mkdir "$built/2"
	mv "$built/1/shardd-$version" "$tree"
	(
		cd "$tree" || exit
		sed -i "s/^VERSION *:= .*/&.1/" Makefile
		grep -rlw SHARD_RELEASE --include='*.c' daemon client proto | xargs touch
		sed "1,/^ -- /{s/(\(.*\))/(\1.1)/;s/^  \* .*/  * The next one./}" debian/changelog | sed '/^ -- /q' | cat - debian/changelog >debian/changelog.new
		mv debian/changelog.new debian/changelog
		DEB_BUILD_OPTIONS="nocheck noddebs parallel=$(nproc)" dpkg-buildpackage -us -uc -b -nc
	)
	rm -f "$built"/*/*dbgsym*
	ls "$built"/1/*.deb "$built"/2/*.deb
}

# What every trainer has to end with, computed here
references()
{
	local steps one=("$VM_HERE/reference" --data "$here/text" --layers 1 --dim 32 --heads 2 --seq 32 --batch 4 --seed 1)

	for steps in 12 60 200; do
		"${one[@]}" --steps $steps --nodes 1 --dump "$here/reference-$steps"
	done
	"${one[@]}" --steps 12 --nodes 1,1 --dump "$here/reference-12-on-2"
}
exact() # NAME STEPS
{
	"$VM_HERE/dumpcmp" "$(job c)/$1" "$here/reference-$2"
}

prepared()
{
	local f

	for f in 1 2; do
		mkdir -p "$(job c)/$f"
		cp "$built/$f"/*.deb "$(job c)/$f/"
	done
	cp "$here/text" "$(job c)/text"
}

inside() # FUNCTION of service.sh, in the guest
{
	on c "build=$VM_SEES job=/vm/job; . tests/vm/service.sh; $*"
}

exactly() # FUNCTION of service.sh, and each NAME STEPS of a trainer that must have ended with exact weights
{
	local said rc=0

	said=$(inside "$1") || rc=$?
	echo "$said"
	[ $rc = 0 ]
	shift
	while [ $# -gt 0 ]; do
		exact "$1" "$2"
		shift 2
	done
	echo "$(tail -n 1 <<<"$said"); exact"
}

mkdir "$built"
cp README.md "$here/text"
packages >"$here/log/packages" 2>&1 &
building=$!
must "a Debian root" root_image "$here/root.ext4"
must "a guest that boots it" guest_boot c "$here/root.ext4"
must "what trainers must end with" references
TAIL=60 must "the packages (log/packages)" wait $building
must "what the guest needs" prepared

t install "the packages install, and open no port to others" inside install_packages
t ready "enabled and READY; users, folders, limits" inside ready
t service_start "from the start of the process to READY" inside service_start
t trains "a user of the group trains, exactly; systemctl status tells of it" exactly trains trains 12
t refused "a user outside of the group is refused" inside refused
t journal "fields of the journal" inside journal_fields
t reload "a reload with a bad file: it goes on and says why" inside reload_bad
t stop_staging "a stop in STAGING aborts the step and says so" inside staging
t stop_applying "a stop in APPLYING finishes the step" inside applying
t kill9 "kill -9 of the daemon: a warm restart, training goes on, exactly" exactly killed killed 60
t watchdog "SIGSTOP: the watchdog restarts it" exactly watchdog watched 60
t held "a restart with a bad file: the models wait for a good one" exactly held held 60
t full_state "a full state folder" exactly full_state full 12 late 12
t secret "the cluster's secret by credential: wrong, missing, rotated" exactly secret secret 12
t rdma "RDMA under the unit's confinement" exactly rdma rdma 12-on-2
reboot() { inside saves && guest_reboot c && exactly restored saved 12; }
t reboot "a reboot of the guest: the checkpoint is restored" reboot
t upgrade "an upgrade of the packages keeps the model; training goes on, exactly" exactly upgraded upgraded 200
t spawn "what autopkgtest runs: spawn:, ten steps" inside spawns
t remove "apt remove" inside removed
t purge "apt purge keeps checkpoints" inside purged
t purge_all "apt purge removes checkpoints when answered so" inside purged_all

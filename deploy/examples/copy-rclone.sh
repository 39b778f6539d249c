#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A program for [daemon] checkpoint_hook: copies a checkpoint to an object store by rclone. Change
# the first two lines, put it to /etc/shardd/copy-rclone, and make it executable.
#
#   copy-rclone copy /srv/checkpoints/gpt/global_step812     what the daemon calls
#   copy-rclone fetch /srv/checkpoints/gpt global_step812    brings one back, before a restore
#
# The daemon's user has no home directory: what rclone has to know lies in a file of its own, which
# that user can read. Uploads of large files are in parts, and a copy that was cut short goes on
# where it ended. manifest.json goes last, so what has one in the store is whole.
set -eu
to=${SHARDD_COPY_TO:-store:bucket/shardd}
export RCLONE_CONFIG="${RCLONE_CONFIG:-/etc/shardd/rclone.conf}"
echo 0 >/proc/self/oom_score_adj 2>/dev/null || : # the daemon's is not for this
rclone="rclone --retries 5 --log-level ERROR --checksum"

case $1 in
copy)
	model=$(basename "$(dirname "$2")") tag=$(basename "$2")
	$rclone copy --exclude /manifest.json --exclude '/.copied*' "$2" "$to/$model/$tag"
	$rclone copyto "$2/manifest.json" "$to/$model/$tag/manifest.json"
	;;
fetch)
	model=$(basename "$2")
	# It has its name when it is whole, as what the daemon writes.
	$rclone copy "$to/$model/$3" "$2/.fetch-$3"
	mv -T "$2/.fetch-$3" "$2/$3"
	echo "$3" >"$2/.fetch-latest"
	mv -T "$2/.fetch-latest" "$2/latest"
	;;
*)
	echo "usage: $0 copy FOLDER/TAG | fetch FOLDER TAG" >&2
	exit 2
	;;
esac

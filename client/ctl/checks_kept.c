/* SPDX-License-Identifier: Apache-2.0 */
/* What `shardctl doctor` looks at of memory that outlives a process: folders in warm_dir which no
 * node will ask for again, because it was given up or its state folder is gone. doctor.c has asked
 * shardd for the list, and calls doctor_kept() through its row in checks.c. Such memory is a
 * warning with the command that gives it back. What this user may not read is counted, and no
 * fault. */
#include "ctl/doctor.h"
#include "ctl/json.h"

#include <string.h>

void doctor_kept(const struct doctor *d, struct finding *f)
{
	const char *dir = doctor_value(d, "daemon", "warm_dir");
	size_t i, orphans = 0, unknown = 0;
	const json_t *most = NULL;
	char bytes[CTL_NUMBER_BYTES], more[80] = "";
	double sum = 0;
	json_t *k;

	if (!d->kept)
		return;
	json_array_foreach(d->kept, i, k) {
		unknown += strcmp(ctl_text(k, "verdict"), "unknown") == 0;
		if (strcmp(ctl_text(k, "verdict"), "orphan") != 0)
			continue;
		orphans++;
		sum += (double)ctl_whole(k, "bytes");
		if (!most || ctl_whole(k, "bytes") > ctl_whole(most, "bytes"))
			most = k;
	}
	if (unknown > 0)
		snprintf(more, sizeof(more), "; of %zu other folders nobody knows whose they are",
			 unknown);
	if (!most) {
		doctor_found(f, DOCTOR_OK, "no memory of former nodes is in %.100s%s", dir, more);
		return;
	}
	doctor_found(f, DOCTOR_WARN,
		     "%s of %zu former nodes, most of it %.1f h old, of %.60s: %.150s%s",
		     ctl_bytes(bytes, sum), orphans, (double)ctl_whole(most, "age_s") / 3600,
		     ctl_text(most, "whose"), ctl_text(most, "why"), more);
	doctor_remedy(f,
		      "`shardd --forget-memory --list` lists them, and `shardd "
		      "--forget-memory=%s` gives this one back",
		      ctl_text(most, "path"));
}

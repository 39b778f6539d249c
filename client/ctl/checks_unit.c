/* SPDX-License-Identifier: Apache-2.0 */
/* What `shardctl doctor` looks at of the service: whether systemd runs it, whether it starts at
 * boot and whether it has failed. It also looks at the watchdog, at the descriptors that a warm
 * restart stores with systemd, and at the limits for locked memory and open descriptors, which
 * differ from those of a shell. doctor.c calls these functions through the rows in checks.c. One
 * `systemctl show`, which doctor.c has run, answers most of it, and /proc has the limits of a
 * process. Without systemd or without the unit there is no fault, because a daemon may be run in
 * other ways. */
#include "ctl/doctor.h"

#include "base/check.h"
#include "base/descriptors.h"

#include <stdlib.h>
#include <string.h>

#define UNIT       "shardd.service"
#define UNIT_FILES 65536 /* LimitNOFILE= of deploy/shardd.service. */

/* A property of the unit, or "" if systemd did not say it. */
static const char *unit(const struct doctor *d, const char *key, char out[64])
{
	size_t n = strlen(key);

	out[0] = 0;
	for (const char *at = d->unit; at && *at; at = strchr(at, '\n'), at += at != NULL) {
		if (strncmp(at, key, n) == 0 && at[n] == '=') {
			snprintf(out, 64, "%.*s", (int)strcspn(at + n + 1, "\n"), at + n + 1);
			return out;
		}
	}
	return out;
}

static bool is(const struct doctor *d, const char *key, const char *value)
{
	char text[64];

	return strcmp(unit(d, key, text), value) == 0;
}

static bool loaded(const struct doctor *d)
{
	return is(d, "LoadState", "loaded");
}

static void remedy_of_exit(struct finding *f, const char *status)
{
	if (strcmp(status, "4") == 0)
		doctor_remedy(f, "the configuration is refused: `shardctl config check`, then "
				 "systemctl reset-failed shardd; "
				 "systemctl start shardd");
	else
		doctor_remedy(f, "journalctl -u shardd -n 50 says why; then systemctl reset-failed "
				 "shardd; systemctl start shardd");
}

void doctor_unit(const struct doctor *d, struct finding *f)
{
	char active[64], sub[64], result[64], status[64], restarts[64], pid[64], file[64];

	if (!d->unit[0]) {
		doctor_found(f, DOCTOR_OK, "systemd does not run here");
		return;
	}
	unit(d, "ActiveState", active);
	unit(d, "SubState", sub);
	unit(d, "Result", result);
	unit(d, "ExecMainStatus", status);
	unit(d, "NRestarts", restarts);
	unit(d, "MainPID", pid);
	unit(d, "UnitFileState", file);
	if (!loaded(d)) {
		doctor_found(f, DOCTOR_OK, "systemd has no " UNIT ": shardd is run otherwise");
	} else if (strcmp(active, "failed") == 0) {
		doctor_found(f, DOCTOR_FAIL, "failed: %s, exit status %s, after %s restarts",
			     result, status, restarts);
		remedy_of_exit(f, status);
	} else if (strcmp(sub, "auto-restart") == 0) {
		doctor_found(f, DOCTOR_FAIL,
			     "falls again and again: %s, exit status %s, %s restarts", result,
			     status, restarts);
		remedy_of_exit(f, status);
	} else if (strcmp(active, "active") != 0) {
		doctor_found(f, DOCTOR_WARN, "%s (%s), %s", active, sub, file);
		doctor_remedy(f, "systemctl enable --now shardd");
	} else if (strcmp(file, "enabled") != 0 && strcmp(file, "enabled-runtime") != 0 &&
		   strcmp(file, "static") != 0) {
		doctor_found(f, DOCTOR_WARN, "active, pid %s, but %s: it does not start at boot",
			     pid, file);
		doctor_remedy(f, "systemctl enable shardd");
	} else if (strtoul(restarts, NULL, 10) > 0) {
		doctor_found(f, DOCTOR_WARN,
			     "active, pid %s; it fell %s times since it was started", pid,
			     restarts);
		doctor_remedy(f, "journalctl -u shardd -p warning says why; systemctl reset-failed "
				 "shardd counts anew");
	} else {
		doctor_found(f, DOCTOR_OK, "active, pid %s, %s, no restarts", pid, file);
	}
}

void doctor_watchdog(const struct doctor *d, struct finding *f)
{
	char every[64];

	if (!loaded(d))
		return;
	unit(d, "WatchdogUSec", every);
	if (every[0] == 0 || strcmp(every, "0") == 0 || strcmp(every, "infinity") == 0) {
		doctor_found(f, DOCTOR_WARN, "off: a daemon that hangs is not ended");
		doctor_remedy(f, "WatchdogSec=30s by `systemctl edit shardd`");
	} else {
		doctor_found(f, DOCTOR_OK, "%s without a word end it", every);
	}
}

void doctor_fd_store(const struct doctor *d, struct finding *f)
{
	const char *warm = doctor_value(d, "daemon", "warm_restart");
	char max[64], nr[64];
	unsigned long room;

	if (!loaded(d))
		return;
	room = strtoul(unit(d, "FileDescriptorStoreMax", max), NULL, 10);
	unit(d, "NFileDescriptorStore", nr);
	if (strcmp(warm, "off") == 0 || strcmp(warm, "tmpfs") == 0) {
		doctor_found(f, DOCTOR_OK, "warm_restart = %s: nothing is parked with systemd",
			     warm);
	} else if (room == 0) {
		doctor_found(f, strcmp(warm, "systemd") == 0 ? DOCTOR_FAIL : DOCTOR_WARN,
			     "warm_restart = %s, but FileDescriptorStoreMax=0: a restart loses "
			     "what memory holds",
			     warm);
		doctor_remedy(f, "FileDescriptorStoreMax=16385 by `systemctl edit shardd`, or "
				 "warm_restart = tmpfs");
	} else if (strtoul(nr, NULL, 10) >= room) {
		doctor_found(f, DOCTOR_WARN,
			     "%s of %s descriptors are parked: no model more survives a restart",
			     nr, max);
		doctor_remedy(f, "a larger FileDescriptorStoreMax by `systemctl edit shardd`");
	} else {
		doctor_found(f, DOCTOR_OK, "%s of %s descriptors are parked", nr[0] ? nr : "0",
			     max);
	}
}

/* --- limits of the daemon's process --- */

struct limit {
	char shell[64], service[64];
	/* `counts` is one of the two, or "" where the daemon's is not known. `whose` says which one
	 * in a text ("" for the shell's). */
	const char *counts, *whose;
	bool unit; /* The unit gives it, or would. */
};

/* Reads the soft or the hard limit of a process from the row of that name. */
static bool limit_of(const struct doctor *d, const char *pid, const char *row, bool hard,
		     char out[64])
{
	char path[80], line[200], soft[64];
	size_t n = strlen(row);
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%s/limits", pid);
	f = doctor_open(d, path);
	out[0] = 0;
	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, row, n) == 0 && sscanf(line + n, "%63s %63s", soft, out) == 2 &&
		    !hard)
			memcpy(out, soft, sizeof(soft));
	if (f)
		fclose(f);
	return out[0] != 0;
}

/* The process of the daemon that answers on this machine's socket, as it says itself. False: none
 * does, or it is on another machine. */
static bool daemon_pid(const struct doctor *d, char pid[64])
{
	const char *at = d->options->address;

	if (!d->status || (strncmp(at, "unix:", 5) != 0 && at[0] != '/'))
		return false;
	snprintf(pid, 64, "%lld", (long long)json_integer_value(json_object_get(d->status, "pid")));
	return true;
}

/* Finds the limit that counts for the daemon. It is the limit of the process that answers,
 * otherwise that of the service, otherwise what the unit would give it, and otherwise this shell's.
 * False: none of them is known. */
static bool limit_find(const struct doctor *d, const char *row, const char *property, bool hard,
		       struct limit *l)
{
	char pid[64] = "", main_pid[64] = "";
	bool answers = daemon_pid(d, pid), runs = false;

	*l = (struct limit){.counts = l->shell, .whose = ""};
	(void)limit_of(d, "self", row, hard, l->shell);
	if (loaded(d))
		unit(d, "MainPID", main_pid);
	l->unit = loaded(d) && (!answers || strcmp(pid, main_pid) == 0);
	if (!answers)
		memcpy(pid, main_pid, sizeof(pid));
	runs = pid[0] && strcmp(pid, "0") != 0 && limit_of(d, pid, row, hard, l->service);
	if (runs || answers || (l->unit && unit(d, property, l->service)[0])) {
		l->counts = l->service;
		l->whose = !runs && !answers ? " under the unit"
			   : l->unit         ? " for the service that runs"
					     : " for the daemon that runs";
	}
	return l->counts[0] != 0 || answers;
}

/* The daemon is there, and this user or this machine does not see its limits. */
static bool limit_hidden(const struct limit *l, struct finding *f)
{
	if (l->counts[0])
		return false;
	doctor_found(f, DOCTOR_OK,
		     "not known%s: its /proc/PID/limits cannot be read here; %s in "
		     "this shell",
		     l->whose, l->shell[0] ? l->shell : "not known");
	return true;
}

static bool at_least(const char *limit, uint64_t wanted)
{
	return strcmp(limit, "unlimited") == 0 || strcmp(limit, "infinity") == 0 ||
	       strtoull(limit, NULL, 10) >= wanted;
}

static const char *bytes_text(const char *limit, char out[CTL_NUMBER_BYTES])
{
	if (at_least(limit, UINT64_MAX))
		snprintf(out, CTL_NUMBER_BYTES, "unlimited");
	else
		ctl_bytes(out, (double)strtoull(limit, NULL, 10));
	return out;
}

void doctor_memlock(const struct doctor *d, struct finding *f)
{
	char have[CTL_NUMBER_BYTES], here[CTL_NUMBER_BYTES], beside[80] = "";
	struct limit l;

	if (!limit_find(d, "Max locked memory", "LimitMEMLOCK", false, &l) || limit_hidden(&l, f))
		return;
	bytes_text(l.counts, have);
	if (l.whose[0] && l.shell[0])
		snprintf(beside, sizeof(beside), "; %s in this shell", bytes_text(l.shell, here));
	if (at_least(l.counts, doctor_memory(d))) {
		doctor_found(f, DOCTOR_OK, "%s%s%s", have, l.whose, beside);
		return;
	}
	doctor_found(
		f, DOCTOR_WARN,
		"%s may be locked%s, less than the budget: arenas for a GPU or RDMA will not fit%s",
		have, l.whose, beside);
	doctor_remedy(f, "%s; TCP and CPU trainers do without",
		      l.unit ? "LimitMEMLOCK=infinity by `systemctl edit shardd`, then restart it"
		      : l.whose[0]
			      ? "`ulimit -l unlimited` in the shell that starts it, then restart it"
			      : "LimitMEMLOCK=infinity in the unit, `ulimit -l unlimited` for a "
				"shell");
}

static uint64_t links(const struct doctor *d)
{
	uint64_t nodes = 0;
	size_t i;
	json_t *o;

	json_array_foreach(json_object_get(d->config, "options"), i, o)
		nodes += strcmp(json_string_value(json_object_get(o, "section")), "nodes") == 0;
	return (nodes > 0 ? nodes - 1 : 0) *
	       strtoull(doctor_value(d, "net", "connections"), NULL, 10);
}

/* The hard limit counts, because the daemon raises its own soft limit up to it. */
void doctor_descriptors(const struct doctor *d, struct finding *f)
{
	uint64_t max = strtoull(doctor_value(d, "daemon", "connections_max"), NULL, 10);
	uint64_t least = descriptors_least(links(d)), all = descriptors_all(links(d), max);
	unsigned long long wanted = all > UNIT_FILES ? all : UNIT_FILES;
	char beside[100] = "";
	struct limit l;

	if (!limit_find(d, "Max open files", "LimitNOFILE", true, &l) || limit_hidden(&l, f))
		return;
	if (l.whose[0] && l.shell[0])
		snprintf(beside, sizeof(beside), "; %s in this shell", l.shell);
	if (at_least(l.counts, all))
		doctor_found(f, DOCTOR_OK, "%s may be open%s, and %llu are needed%s", l.counts,
			     l.whose, (unsigned long long)all, beside);
	else if (at_least(l.counts, least))
		doctor_found(f, DOCTOR_WARN,
			     "%s may be open%s, and %llu are needed for connections_max = %llu%s",
			     l.counts, l.whose, (unsigned long long)all, (unsigned long long)max,
			     beside);
	else
		doctor_found(f, DOCTOR_FAIL,
			     "%s may be open%s, and at least %llu are needed: shardd does not "
			     "start%s",
			     l.counts, l.whose, (unsigned long long)least, beside);
	if (l.unit)
		doctor_remedy(f, "LimitNOFILE=%llu by `systemctl edit shardd`, then restart it",
			      wanted);
	else
		doctor_remedy(f, "LimitNOFILE=%llu in the unit, `ulimit -n %llu` for a shell",
			      wanted, wanted);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What `shardctl doctor` looks at on this machine: versions, memory, limits, pages, the clock and
 * folders. doctor.c calls each row of doctor_checks once. Most checks that cannot learn what they
 * need, for example because a file of /proc is missing, leave their finding empty, and doctor.c
 * prints nothing for them. Ports and links are in checks_net.c, RDMA in checks_rdma.c, the service
 * in checks_unit.c, and what several nodes must agree on in checks_nodes.c. */
#include "ctl/doctor.h"

#include "base/check.h"

#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define THP "/sys/kernel/mm/transparent_hugepage/"

#define AS_DAEMON "run it as root or as the daemon's user: `sudo shardctl doctor`"

/* Does --address name the socket of a daemon that is not the one of the default configuration? */
static bool other_daemon(const struct doctor *d)
{
	const char *at = d->options->address, *own = doctor_value(d, "daemon", "socket");

	if (!d->default_config || strcmp(at, CTL_ADDRESS) == 0)
		return false;
	at += strncmp(at, "unix:", 5) == 0 ? 5 : 0;
	return at[0] == '/' && strcmp(at, own) != 0;
}

static void look_config(const struct doctor *d, struct finding *f)
{
	if (d->config && other_daemon(d)) {
		doctor_found(f, DOCTOR_WARN,
			     "this is the default one, and not that of the daemon at %s",
			     d->options->address);
		doctor_remedy(f, "--config FILE with the file that this daemon was started with");
		return;
	}
	if (d->config) {
		doctor_found(f, DOCTOR_OK,
			     "accepted; `shardctl config explain` shows each value's origin");
		return;
	}
	doctor_found(f, DOCTOR_FAIL, "%s", d->config_text);
	doctor_remedy(f, "correct the line that is named; `shardd --help` lists all options");
}

static void look_versions(const struct doctor *d, struct finding *f)
{
	const char *running = json_string_value(json_object_get(d->status, "release"));

	if (!d->shardd_version[0]) {
		doctor_found(f, DOCTOR_FAIL, "shardctl %s, but shardd does not run", SHARD_RELEASE);
		doctor_remedy(f, "install shardd beside shardctl, or put it in PATH");
	} else if (strcmp(d->shardd_version, "shardd " SHARD_RELEASE) != 0) {
		doctor_found(f, DOCTOR_WARN, "shardctl %s, %s", SHARD_RELEASE, d->shardd_version);
		doctor_remedy(f, "install both from one release");
	} else if (running && strcmp(running, SHARD_RELEASE) != 0) {
		doctor_found(f, DOCTOR_WARN, "installed %s, but the daemon that runs is %s",
			     SHARD_RELEASE, running);
		doctor_remedy(f, "restart the daemon when no model is in use");
	} else if (running) {
		doctor_found(f, DOCTOR_OK, "%s, running with pid %lld", SHARD_RELEASE,
			     (long long)json_integer_value(json_object_get(d->status, "pid")));
	} else if (d->silent) {
		doctor_found(f, DOCTOR_FAIL, "%s; the daemon at %s is there, but does not answer",
			     SHARD_RELEASE, d->options->address);
		doctor_remedy(f, "was it stopped (SIGSTOP)? see its log (`journalctl -u shardd`), "
				 "or wait longer (--timeout)");
	} else {
		doctor_found(f, DOCTOR_OK, "%s; no daemon answers at %s", SHARD_RELEASE,
			     d->options->address);
	}
}

/* --- memory --- */

static uint64_t meminfo(const struct doctor *d, const char *key)
{
	FILE *f = doctor_open(d, "/proc/meminfo");
	unsigned long long n = 0;
	char line[128];

	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ':')
			(void)sscanf(line + strlen(key) + 1, "%llu", &n);
	if (f)
		fclose(f);
	return n;
}

static void compare_memory(const struct doctor *d, struct finding *f, uint64_t limit,
			   const char *what)
{
	char have[CTL_NUMBER_BYTES], want[CTL_NUMBER_BYTES];
	uint64_t memory = doctor_memory(d);

	ctl_bytes(have, (double)limit);
	ctl_bytes(want, (double)memory);
	if (memory > limit) {
		doctor_found(f, DOCTOR_FAIL, "memory = %s, but %s %s", want, what, have);
		doctor_remedy(f, "lower [daemon] memory below %s, or raise the limit", have);
	} else if ((double)memory > 0.9 * (double)limit) {
		doctor_found(f, DOCTOR_WARN,
			     "memory = %s, and %s %s: little is left for anything else", want, what,
			     have);
		doctor_remedy(f, "lower [daemon] memory to 80 %% of it");
	} else {
		doctor_found(f, DOCTOR_OK, "memory = %s; %s %s", want, what, have);
	}
}

static void look_memory(const struct doctor *d, struct finding *f)
{
	uint64_t total = meminfo(d, "MemTotal") * 1024;

	if (total > 0)
		compare_memory(d, f, total, "the machine has");
}

/* The smallest limit between this process's cgroup and the root, or 0 if there is none. The
 * daemon's own cgroup may have another one. */
static uint64_t cgroup_limit(const struct doctor *d)
{
	FILE *f = doctor_open(d, "/proc/self/cgroup");
	char line[600] = "", path[700], text[64];
	uint64_t least = 0;

	while (f && fgets(line, sizeof(line), f) && strncmp(line, "0::/", 4) != 0)
		line[0] = 0;
	if (f)
		fclose(f);
	line[strcspn(line, "\n")] = 0;
	while (line[0]) {
		char *slash = strrchr(line + 3, '/');
		uint64_t n;

		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", line + 3);
		/* strtoull() makes "max" 0, which is no limit. */
		n = doctor_line(d, path, text, sizeof(text)) ? strtoull(text, NULL, 10) : 0;
		if (n > 0 && (least == 0 || n < least))
			least = n;
		if (!slash || slash[1] == 0)
			break;
		*(slash == line + 3 ? slash + 1 : slash) = 0;
	}
	return least;
}

static void look_cgroup(const struct doctor *d, struct finding *f)
{
	uint64_t limit = cgroup_limit(d);

	if (limit > 0)
		compare_memory(d, f, limit, "this cgroup's limit is");
	else
		doctor_found(f, DOCTOR_OK, "no memory limit");
}

/* --- huge pages --- */

/* The word in brackets in a line like "always [madvise] never". */
static const char *chosen(char *line)
{
	char *at = strchr(line, '['), *end = at ? strchr(at, ']') : NULL;

	if (!end)
		return "";
	*end = 0;
	return at + 1;
}

/* If the whole budget fits into reserved huge pages, the other settings do not matter. */
static bool reserved(const struct doctor *d, uint64_t *bytes)
{
	*bytes = meminfo(d, "HugePages_Free") * meminfo(d, "Hugepagesize") * 1024;
	return *bytes >= doctor_memory(d);
}

/* pool says that reserved huge pages serve as well. They do not serve memory that trainers
 * write. */
static void look_transparent(const struct doctor *d, struct finding *f, const char *file,
			     const char *write, bool pool)
{
	const char *policy = doctor_value(d, "daemon", "huge_pages"), *word;
	char line[200], path[100], have[CTL_NUMBER_BYTES];
	uint64_t bytes;

	snprintf(path, sizeof(path), THP "%s", file);
	word = doctor_line(d, path, line, sizeof(line)) ? chosen(line) : "not there";
	if (strcmp(policy, "no") == 0) {
		doctor_found(f, DOCTOR_OK, "huge_pages = no");
	} else if (pool && reserved(d, &bytes)) {
		doctor_found(f, DOCTOR_OK, "%s of huge pages are reserved and free",
			     ctl_bytes(have, (double)bytes));
	} else if (pool && strcmp(policy, "require") == 0) {
		doctor_found(f, DOCTOR_FAIL, "huge_pages = require, but only %s of them are free",
			     ctl_bytes(have, (double)bytes));
		doctor_remedy(f, "sysctl vm.nr_hugepages=%llu",
			      (unsigned long long)((doctor_memory(d) >> 21) + 1));
	} else if (strcmp(word, "never") == 0 || strcmp(word, "deny") == 0 ||
		   strcmp(word, "not there") == 0) {
		doctor_found(f, DOCTOR_WARN, "%s: small pages cost bandwidth", word);
		doctor_remedy(f, "echo %s > %s", write, path);
	} else {
		doctor_found(f, DOCTOR_OK, "%s", word);
	}
}

static void look_huge(const struct doctor *d, struct finding *f)
{
	look_transparent(d, f, "enabled", "madvise", true);
}

static void look_shmem(const struct doctor *d, struct finding *f)
{
	look_transparent(d, f, "shmem_enabled", "advise", false);
}

/* --- clock --- */

static void look_clock(const struct doctor *d, struct finding *f)
{
	char line[64];

	if (!doctor_line(d, "/sys/devices/system/clocksource/clocksource0/current_clocksource",
			 line, sizeof(line)))
		return;
	if (strcmp(line, "hpet") == 0 || strcmp(line, "acpi_pm") == 0 ||
	    strcmp(line, "jiffies") == 0 || strcmp(line, "refined-jiffies") == 0) {
		doctor_found(f, DOCTOR_WARN, "%s: reading the time is a slow call", line);
		doctor_remedy(f, "see `dmesg | grep -i tsc` for why the kernel gave up tsc; boot "
				 "with tsc=reliable if the machine's is");
	} else {
		doctor_found(f, DOCTOR_OK, "%s", line);
	}
}

/* --- folders --- */

/* Cuts path to the nearest part of it that exists. */
static void existing(char *path)
{
	while (access(path, F_OK) != 0 && errno == ENOENT) {
		char *slash = strrchr(path, '/');

		if (!slash) {
			strcpy(path, ".");
			return;
		}
		slash[slash == path] = 0; /* "/" is not cut. */
	}
}

/* The path of --address if the user chose a unix socket, otherwise the configured path. */
static const char *socket_path(const struct doctor *d)
{
	const char *address = d->options->address;

	if (strcmp(address, CTL_ADDRESS) == 0)
		return doctor_value(d, "daemon", "socket");
	if (strncmp(address, "unix:", 5) == 0)
		return address + 5;
	return address[0] == '/' ? address : doctor_value(d, "daemon", "socket");
}

static void look_socket(const struct doctor *d, struct finding *f)
{
	const char *socket = socket_path(d), *mode = doctor_value(d, "daemon", "socket_mode");
	char copy[600], now[16], *dir;
	struct stat info;

	snprintf(copy, sizeof(copy), "%s", socket);
	dir = dirname(copy);
	/* The socket may belong to a daemon with another configuration: its own mode counts. */
	if (stat(socket, &info) == 0 && S_ISSOCK(info.st_mode)) {
		snprintf(now, sizeof(now), "%04o", (unsigned)info.st_mode & 07777);
		mode = now;
	}
	if (stat(dir, &info) != 0 || !S_ISDIR(info.st_mode)) {
		doctor_found(f, DOCTOR_FAIL, "%s: %s is no folder", socket, dir);
		doctor_remedy(f, "mkdir -p %s, or RuntimeDirectory=shardd in the unit", dir);
	} else if (access(dir, W_OK | X_OK) != 0 && d->denied) {
		doctor_found(f, DOCTOR_WARN, "%s: this user may not connect", socket);
		doctor_remedy(f, AS_DAEMON ", or take this user into the socket's group");
	} else if (access(dir, W_OK | X_OK) != 0 && !d->status) {
		doctor_found(f, DOCTOR_FAIL, "%s: this user may not write to %s", socket, dir);
		doctor_remedy(f, "run as the daemon's user, or chown %s", dir);
	} else if (strtoul(mode, NULL, 8) & 2) {
		doctor_found(f, DOCTOR_WARN, "%s: mode %s lets every user of this machine train",
			     socket, mode);
		doctor_remedy(f,
			      "socket_mode = 0660, and the trainers' users in the socket's group");
	} else {
		doctor_found(f, DOCTOR_OK, "%s, mode %s", socket, mode);
	}
}

static void look_state(const struct doctor *d, struct finding *f)
{
	const char *state = doctor_value(d, "daemon", "state");
	char dir[600];
	struct stat info;

	snprintf(dir, sizeof(dir), "%s", state);
	existing(dir);
	if (stat(dir, &info) != 0 || !S_ISDIR(info.st_mode)) {
		doctor_found(f, DOCTOR_FAIL, "%s: %s is no folder", state, dir);
		doctor_remedy(f, "choose another [daemon] state, or move the file away");
	} else if (access(dir, W_OK | X_OK) != 0 && (d->status || d->silent)) {
		doctor_found(f, DOCTOR_OK, "%s, of the daemon that runs; this user may not look",
			     state);
	} else if (access(dir, W_OK | X_OK) != 0 && d->denied) {
		doctor_found(f, DOCTOR_WARN,
			     "%s: this user may neither look, nor ask the daemon at %s", state,
			     d->options->address);
		doctor_remedy(f, AS_DAEMON);
	} else if (access(dir, W_OK | X_OK) != 0) {
		doctor_found(f, DOCTOR_FAIL, "%s: this user may not write to %s", state, dir);
		doctor_remedy(f,
			      "run as the daemon's user, or chown %s; StateDirectory=shardd in the "
			      "unit does it",
			      dir);
	} else if (strcmp(dir, state) == 0 && (info.st_mode & 022) != 0) {
		doctor_found(
			f, DOCTOR_WARN,
			"%s: mode %04o: others may change what the daemon knows of the cluster",
			state, (unsigned)info.st_mode & 07777);
		doctor_remedy(f, "chmod 0700 %s", state);
	} else {
		doctor_found(f, DOCTOR_OK, "%s%s", state,
			     strcmp(dir, state) == 0 ? "" : ", will be made");
	}
}

const struct doctor_check doctor_checks[] = {
	{"config", look_config, false},      {"versions", look_versions, false},
	{"memory", look_memory, true},       {"cgroup", look_cgroup, true},
	{"memlock", doctor_memlock, true},   {"descriptors", doctor_descriptors, true},
	{"huge_pages", look_huge, true},     {"shmem", look_shmem, true},
	{"clock", look_clock, false},        {"mtu", doctor_mtu, false},
	{"tls", doctor_tls, true},           {"tcp_buffers", doctor_tcp, true},
	{"socket", look_socket, true},       {"state", look_state, true},
	{"port", doctor_port, true},         {"http", doctor_http, true},
	{"nodes", doctor_nodes, true},       {"cluster", doctor_cluster, false},
	{"ntp", doctor_ntp, false},          {"environment", doctor_environment, true},
	{"rdma", doctor_rdma, true},         {"verbs", doctor_verbs, true},
	{"unit", doctor_unit, false},        {"watchdog", doctor_watchdog, false},
	{"fd_store", doctor_fd_store, true}, {"kept", doctor_kept, true},
	{"nvme", doctor_nvme, true},         {"gpu", doctor_gpu, true},
};

const size_t doctor_checks_nr = NR(doctor_checks);

// SPDX-License-Identifier: Apache-2.0
/* Daemons that a connect to spawn:NAME starts. tests/proc calls it. SHARD_DAEMON is a script that
 * notes its pid in the file "starts" and becomes the shardd of this build. The ends of the daemons
 * are awaited through pidfds. Failures end the test. */
#include "lib/spawned.h"

#include "base/check.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/rmtree.h"
#include "lib/trainer.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

void spawned_path(char path[SPAWNED_PATH], const char *name)
{
	snprintf(path, SPAWNED_PATH, "%s/%s", getenv("XDG_RUNTIME_DIR"), name);
}

void spawned_put(const char *name, const char *text, mode_t mode)
{
	char path[SPAWNED_PATH];
	FILE *f;

	spawned_path(path, name);
	f = fopen(path, "we");
	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0 && chmod(path, mode) == 0);
}

/* Makes a clean folder, a script that notes who was started, and the environment of a user. */
int spawned_begin(void **state)
{
	char dir[] = "/tmp/shard-spawn-XXXXXX", script[1000], shardd[600], path[SPAWNED_PATH];

	(void)state;
	CHECK(mkdtemp(dir) != NULL && setenv("XDG_RUNTIME_DIR", dir, 1) == 0);
	proc_beside(shardd, sizeof(shardd), "shardd");
	snprintf(script, sizeof(script), "#!/bin/sh\necho $$ >> %s/starts\nexec %s \"$@\"\n", dir,
		 shardd);
	spawned_put("starter", script, 0755);
	spawned_path(path, "starter");
	CHECK(setenv("SHARD_DAEMON", path, 1) == 0);
	CHECK(setenv("SHARD_LINGER", "100ms", 1) == 0 && setenv("SHARD_MEMORY", "64MiB", 1) == 0);
	return 0;
}

int spawned_started(pid_t pids[SPAWNED_MAX])
{
	char path[SPAWNED_PATH];
	FILE *f;
	int n = 0;

	spawned_path(path, "starts");
	f = fopen(path, "re");
	while (f && n < SPAWNED_MAX && fscanf(f, "%d", &pids[n]) == 1)
		n++;
	if (f)
		fclose(f);
	return n;
}

void spawned_must_end(pid_t pid)
{
	struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};

	if (p.fd < 0 && errno == ESRCH)
		return;
	CHECK(p.fd >= 0);
	if (poll(&p, 1, pace_ms(SPAWNED_ENDS_MS)) != 1)
		fail_msg("shardd (pid %d) did not end", (int)pid);
	close(p.fd);
}

int spawned_end(void **state)
{
	pid_t pids[SPAWNED_MAX];
	int n = spawned_started(pids);

	(void)state;
	for (int i = 0; i < n; i++)
		spawned_must_end(pids[i]);
	rmtree(getenv("XDG_RUNTIME_DIR"));
	return 0;
}

shard_client *spawned_connect(const char *address)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *c;

	o.address = address;
	EXPECT(SHARD_OK, shard_connect(&c, &o));
	return c;
}

enum shard_status spawned_try(const char *address, int ms)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	enum shard_status rc;
	shard_client *c;

	o.address = address;
	o.timeout_ms = ms;
	rc = shard_connect(&c, &o);
	shard_disconnect(&c);
	return rc;
}

// SPDX-License-Identifier: Apache-2.0
/* Threads of another process, stopped one by one. Tests call. A signal that is sent to the process meanwhile goes to a thread that runs. */
#include "lib/hold.h"

#include "base/check.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static bool named(pid_t pid, pid_t tid, const char *name)
{
	char path[64], comm[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/comm", (int)pid, (int)tid);
	f = fopen(path, "re");
	if (f == NULL)
		return false;
	if (fgets(comm, sizeof(comm), f) == NULL)
		comm[0] = 0;
	fclose(f);
	return strncmp(comm, name, strlen(name)) == 0;
}

static void hold_one(struct hold *h, pid_t tid)
{
	int status;

	CHECK(h->nr < HOLD_MAX);
	if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0 || ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0)
		fail_msg("thread %d cannot be traced: this test needs ptrace() of its own children", (int)tid);
	CHECK(waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status));
	h->tid[h->nr++] = tid;
}

void hold_threads(struct hold *h, pid_t pid, const char *name)
{
	struct dirent *d;
	char path[64];
	DIR *dir;

	h->nr = 0;
	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	CHECK(dir != NULL);
	while ((d = readdir(dir)) != NULL) {
		pid_t tid = (pid_t)atoi(d->d_name);

		if (tid > 0 && named(pid, tid, name))
			hold_one(h, tid);
	}
	closedir(dir);
	if (h->nr == 0)
		fail_msg("process %d has no thread \"%s...\"", (int)pid, name);
}

void hold_release(struct hold *h)
{
	while (h->nr > 0)
		CHECK(ptrace(PTRACE_DETACH, h->tid[--h->nr], NULL, NULL) == 0);
}

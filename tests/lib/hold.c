// SPDX-License-Identifier: Apache-2.0
/* Stops threads of another process one by one, with ptrace(). Tests call it. A signal that is sent
 * to the process meanwhile goes to a thread that runs. A thread that cannot be traced, or does not
 * appear in time, fails the test. */
#include "lib/hold.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { COMM_BYTES = 32 };

/* False: the thread has ended. */
static bool name_of(pid_t pid, pid_t tid, char comm[COMM_BYTES])
{
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/comm", (int)pid, (int)tid);
	f = fopen(path, "re");
	if (f == NULL)
		return false;
	if (fgets(comm, COMM_BYTES, f) == NULL)
		comm[0] = 0;
	fclose(f);
	return true;
}

static bool named(pid_t pid, pid_t tid, const char *name)
{
	char comm[COMM_BYTES];

	return name_of(pid, tid, comm) && strncmp(comm, name, strlen(name)) == 0;
}

/* libuv gives its threads no name, so they have the name of the first thread or "libuv-worker". */
static bool of_pool(pid_t pid, pid_t tid)
{
	char first[COMM_BYTES], comm[COMM_BYTES];

	return tid != pid && name_of(pid, pid, first) && name_of(pid, tid, comm) &&
	       (strcmp(comm, first) == 0 || strncmp(comm, "libuv", 5) == 0);
}

static void hold_one(struct hold *h, pid_t tid)
{
	int status;

	CHECK(h->nr < HOLD_MAX);
	if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0 ||
	    ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0)
		fail_msg("thread %d cannot be traced: this test needs ptrace() of its own children",
			 (int)tid);
	CHECK(waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status));
	h->tid[h->nr++] = tid;
}

/* name NULL: the threads of libuv's pool. */
static void hold_those(struct hold *h, pid_t pid, const char *name)
{
	struct dirent *d;
	char path[64];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	CHECK(dir != NULL);
	while ((d = readdir(dir)) != NULL) {
		pid_t tid = (pid_t)atoi(d->d_name);

		if (tid > 0 && (name != NULL ? named(pid, tid, name) : of_pool(pid, tid)))
			hold_one(h, tid);
	}
	closedir(dir);
}

void hold_disk(struct hold *h, pid_t pid)
{
	h->nr = 0;
	hold_those(h, pid, NULL);
	if (h->nr == 0)
		fail_msg("process %d has written nothing yet", (int)pid);
}

void hold_threads(struct hold *h, pid_t pid, const char *name)
{
	uint64_t by = pace_by(5);

	h->nr = 0;
	do { /* A thread sets its name itself, once it runs. */
		hold_those(h, pid, name);
		if (h->nr == 0 && clock_ns() > by)
			fail_msg("process %d has no thread \"%s...\"", (int)pid, name);
		if (h->nr == 0)
			sched_yield();
	} while (h->nr == 0);
}

bool hold_asleep(pid_t pid, const char *name)
{
	char path[300], line[256];
	bool all = true;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	CHECK(dir != NULL);
	for (struct dirent *d; (d = readdir(dir)) != NULL;) {
		const char *state;
		FILE *f;

		if (atoi(d->d_name) <= 0 || !named(pid, (pid_t)atoi(d->d_name), name))
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", (int)pid, d->d_name);
		f = fopen(path, "re");
		if (f == NULL || fgets(line, sizeof(line), f) == NULL) { /* The thread has ended. */
			if (f != NULL)
				fclose(f);
			continue;
		}
		fclose(f);
		state = strrchr(line, ')'); /* "tid (name) S ..." */
		all &= state != NULL && (state[2] == 'S' || state[2] == 't');
	}
	closedir(dir);
	return all;
}

void hold_quiet(pid_t pid, const char *name)
{
	const uint64_t by = pace_by(60);

	for (uint32_t asleep = 0; asleep < 20; sched_yield()) {
		asleep = hold_asleep(pid, name) ? asleep + 1 : 0;
		if (clock_ns() > by)
			fail_msg("process %d always has something to do", (int)pid);
	}
}

void hold_main(struct hold *h, pid_t pid)
{
	h->nr = 0;
	hold_one(h, pid);
}

/* --- one stop after the other --- */

#define TICK_NS 20000000
#ifndef sigev_notify_thread_id /* glibc before 2.39 has no name for it. */
#define sigev_notify_thread_id _sigev_un._tid
#endif

static void on_tick(int signal)
{
	(void)signal;
}

/* Interrupts waitpid() of this thread again and again, so that it looks at the clock. To poll takes
 * a processor from the thread that is waited for, for each of 100,000 instructions. */
static timer_t tick_start(struct sigaction *before)
{
	struct sigaction now = {.sa_handler = on_tick};
	struct sigevent to = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM};
	struct itimerspec each = {{0, TICK_NS}, {0, TICK_NS}};
	timer_t timer;

	to.sigev_notify_thread_id = gettid();
	CHECK(sigaction(SIGALRM, &now, before) == 0);
	CHECK(timer_create(CLOCK_MONOTONIC, &to, &timer) == 0);
	CHECK(timer_settime(timer, 0, &each, NULL) == 0);
	return timer;
}

/* True: the thread has stopped again. False: it has not stopped within idle_ms. */
static bool stood(pid_t tid, int idle_ms)
{
	uint64_t until = clock_ns() + pace_ns((uint64_t)idle_ms * NS_PER_MS);
	int status;
	pid_t got;

	while ((got = waitpid(tid, &status, __WALL)) < 0 && errno == EINTR && clock_ns() < until)
		;
	CHECK((got < 0 && errno == EINTR) || (got == tid && WIFSTOPPED(status)));
	return got == tid;
}

static uint64_t go_on(struct hold *h, long request, uint64_t nr, int idle_ms)
{
	struct sigaction before;
	timer_t timer = tick_start(&before);
	uint64_t i = 0;

	CHECK(h->nr > 0);
	for (; i < nr; i++) {
		CHECK(ptrace((enum __ptrace_request)request, h->tid[0], NULL, NULL) == 0);
		if (!stood(h->tid[0], idle_ms))
			break;
	}
	CHECK(timer_delete(timer) == 0);
	CHECK(sigaction(SIGALRM, &before, NULL) == 0);
	return i;
}

uint64_t hold_steps(struct hold *h, uint64_t instructions, int idle_ms)
{
	return go_on(h, PTRACE_SINGLESTEP, instructions, idle_ms);
}

uint64_t hold_calls(struct hold *h, uint64_t stops, int idle_ms)
{
	return go_on(h, PTRACE_SYSCALL, stops, idle_ms);
}

void hold_kill(struct hold *h, pid_t pid)
{
	CHECK(kill(pid, SIGKILL) == 0);
	/* A dead traced thread is reported to this thread. The death of the first thread is
	 * reported to its parent. */
	for (; h->nr > 0; h->nr--) {
		pid_t tid = h->tid[h->nr - 1];
		int status = 0;

		while (tid != pid && !WIFSIGNALED(status)) {
			CHECK(waitpid(tid, &status, __WALL) == tid);
			if (WIFEXITED(status))
				break;
		}
	}
}

static uint32_t threads(pid_t pid, const char *name)
{
	uint32_t nr = 0;
	char path[64];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	CHECK(dir != NULL);
	for (struct dirent *d; (d = readdir(dir)) != NULL;)
		nr += atoi(d->d_name) > 0 && named(pid, (pid_t)atoi(d->d_name), name);
	closedir(dir);
	return nr;
}

/* A new thread runs until it sleeps before the first thread goes on, so that none is missed. */
void hold_start(struct hold *h, pid_t pid, const char *name, uint32_t nr)
{
	uint64_t by = pace_by(20);
	struct hold first;

	hold_main(&first, pid);
	do {
		if (hold_calls(&first, 1, 5000) != 1 || clock_ns() > by)
			fail_msg("process %d has not begun %u threads \"%s...\"", (int)pid, nr,
				 name);
		while (!hold_asleep(pid, "") && clock_ns() < by)
			sched_yield();
	} while (threads(pid, name) < nr);
	hold_threads(h, pid, name);
	hold_release(&first);
}

void hold_release(struct hold *h)
{
	while (h->nr > 0)
		CHECK(ptrace(PTRACE_DETACH, h->tid[--h->nr], NULL, NULL) == 0);
}

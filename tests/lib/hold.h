/* SPDX-License-Identifier: Apache-2.0 */
/* hold.h: some threads of a child stand still while its others go on, so that a test finds a daemon
 * in the middle of what its workers do. As a debugger does it: the program under test has nothing
 * for this. Held and released by one and the same thread. */
#ifndef SHARD_TESTS_HOLD_H
#define SHARD_TESTS_HOLD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { HOLD_MAX = 64 };

struct hold {
	pid_t tid[HOLD_MAX];
	uint32_t nr;
};

/* All whose name begins with it ("shardd-w"), and at least one, else the test fails; none of them
 * runs when this returns. */
void hold_threads(struct hold *h, pid_t pid, const char *name);
/* Of a child that was spawned just now: its threads of that name are held as soon as there are nr
 * of them. Until then the first thread goes on by one system call at a time, so that the others
 * have had no work yet. */
void hold_start(struct hold *h, pid_t pid, const char *name, uint32_t nr);
bool hold_asleep(pid_t pid,
		 const char *name); /* do all of them wait for something, or stand still? */
/* The threads of libuv's pool: nothing is written to the disk or synced any more, as if the disk
 * stood still, and the loop goes on. The pool is there once something has been written. */
void hold_disk(struct hold *h, pid_t pid);
void hold_main(struct hold *h, pid_t pid); /* the first thread alone: a daemon's loop */
void hold_release(struct hold *h);
/* The first of those held goes on by so many instructions, or to the entry or return of so many
 * system calls, and stands still again. Fewer when it sleeps for idle_ms: how many it made; then it
 * stands nowhere, and only hold_kill() may follow. */
uint64_t hold_steps(struct hold *h, uint64_t instructions, int idle_ms);
uint64_t hold_calls(struct hold *h, uint64_t stops, int idle_ms);
void hold_kill(struct hold *h,
	       pid_t pid); /* -9 for the whole process; its end is still to be waited for */

#endif

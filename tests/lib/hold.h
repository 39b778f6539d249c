/* SPDX-License-Identifier: Apache-2.0 */
/* hold.h: makes some threads of a child stand still while its other threads go on, so that a test
 * finds a daemon in the middle of what its workers do. It works like a debugger, and the program
 * under test has nothing for it. The same thread must hold and release. */
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

/* Holds all threads whose name begins with `name` ("shardd-w"). None of them runs when this
 * returns. The test fails if there is no such thread. */
void hold_threads(struct hold *h, pid_t pid, const char *name);
/* For a child that was spawned just now: holds its threads of that name as soon as there are nr of
 * them. Until then the first thread goes on by one system call at a time, so that the other threads
 * have had no work yet. */
void hold_start(struct hold *h, pid_t pid, const char *name, uint32_t nr);
/* True: all threads of that name wait for something or stand still. */
bool hold_asleep(pid_t pid, const char *name);
/* Waits until they have nothing to do: until they are asleep each of 20 times that one looks. More
 * looks would take longer than a daemon sleeps, on a machine that is busy. */
void hold_quiet(pid_t pid, const char *name);
/* Holds the threads of libuv's pool. Nothing is then written to the disk or synced, as if the disk
 * stood still, and the loop goes on. The pool exists once something has been written. */
void hold_disk(struct hold *h, pid_t pid);
/* Holds the first thread alone, which runs a daemon's loop. */
void hold_main(struct hold *h, pid_t pid);
void hold_release(struct hold *h);
/* The first held thread goes on by so many instructions, or to the entry or return of so many
 * system calls, and stands still again. Returns how many it made. If it sleeps for idle_ms these
 * are fewer, and it does not stand still then, so that only hold_kill() may follow. */
uint64_t hold_steps(struct hold *h, uint64_t instructions, int idle_ms);
uint64_t hold_calls(struct hold *h, uint64_t stops, int idle_ms);
/* Sends SIGKILL to the process. The caller still has to wait for its end. */
void hold_kill(struct hold *h, pid_t pid);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h: the names of the models that `shardctl bench` defines. The client makes such a name, and
 * a daemon knows by it that nobody wants to see metrics of that model. */
#ifndef SHARD_WIRE_BENCH_H
#define SHARD_WIRE_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define BENCH_PREFIX "bench-"

/* "bench-PID-TIME", the time in hexadecimal digits, so that no two models share a name. */
static inline void bench_name(char *out, size_t bytes, uint32_t pid, uint64_t time_ns)
{
	snprintf(out, bytes, BENCH_PREFIX "%u-%llx", pid, (unsigned long long)time_ns);
}

/* The whole form is compared, so that a user's "bench-large" is a model like any other. */
static inline bool bench_is(const char *name)
{
	size_t pid, time;

	if (strncmp(name, BENCH_PREFIX, strlen(BENCH_PREFIX)) != 0)
		return false;
	name += strlen(BENCH_PREFIX);
	pid = strspn(name, "0123456789");
	if (pid == 0 || name[pid] != '-')
		return false;
	time = strspn(name + pid + 1, "0123456789abcdef");
	return time >= 8 && name[pid + 1 + time] == 0;
}

#endif

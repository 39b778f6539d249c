// SPDX-License-Identifier: Apache-2.0
/* There is one gate for the process, as there is one madvise() and one munmap(). A thread of a
 * daemon that makes or gives back a large buffer is counted, and it stands still while the gate
 * says so. The test sets the gate and waits until so many threads stand there. After a limit it
 * fails and prints the logs of the daemons. Definers are threads of the test, which the gate lets
 * through. */
#include "lib/gate.h"

#include "base/clock.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define LARGE (1u << 20) /* Buffers from this many bytes on stop at the gate. */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

_Thread_local bool gate_mine;

static void stand(const bool *still, uint32_t *nr)
{
	pthread_mutex_lock(&gate.lock);
	(*nr)++;
	pthread_cond_broadcast(&gate.changed);
	while (*still)
		pthread_cond_wait(&gate.changed, &gate.lock);
	(*nr)--;
	pthread_mutex_unlock(&gate.lock);
}

int gate_madvise(void *at, size_t bytes, int how)
{
	bool refused = false;

	if (!gate_mine && bytes >= LARGE && how == MADV_POPULATE_WRITE) {
		bool passes;

		pthread_mutex_lock(&gate.lock);
		passes = gate.passes > 0;
		gate.passes -= passes;
		pthread_mutex_unlock(&gate.lock);
		if (!passes)
			stand(&gate.makes, &gate.making);
		pthread_mutex_lock(&gate.lock);
		refused = gate.refuses;
		pthread_mutex_unlock(&gate.lock);
	}
	if (refused) {
		errno = ENOMEM;
		return -1;
	}
	return (int)syscall(SYS_madvise, at, bytes, how);
}

int gate_munmap(void *at, size_t bytes)
{
	if (!gate_mine && bytes >= LARGE)
		stand(&gate.gives, &gate.giving);
	return (int)syscall(SYS_munmap, at, bytes);
}

void gate_set(bool *what, bool on)
{
	pthread_mutex_lock(&gate.lock);
	*what = on;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
}

void gate_wait(struct inproc *c, const uint32_t *what, uint32_t nr)
{
	struct timespec until;
	uint32_t is;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += (time_t)(pace_ns(20 * NS_PER_SEC) / NS_PER_SEC);
	pthread_mutex_lock(&gate.lock);
	while ((is = *what) < nr && rc == 0)
		rc = pthread_cond_timedwait(&gate.changed, &gate.lock, &until);
	pthread_mutex_unlock(&gate.lock);
	if (is >= nr)
		return;
	for (uint32_t i = 0; i < c->nodes; i++)
		if (c->node[i].lines != NULL)
			fprintf(stderr, "node %s:\n%s", c->node[i].name, c->node[i].lines);
	fail_msg("%u threads stand still, not %u", is, nr);
}

/* --- what a tool sees --- */

static void state_of(struct inproc_node *n, const char *name, char word[static 32])
{
	json_t *all = inproc_status(n), *m;
	size_t i;

	word[0] = 0;
	json_array_foreach(json_object_get(all, "models"), i, m)
		if (strcmp(json_string_value(json_object_get(m, "name")), name) == 0)
			snprintf(word, 32, "%s", json_string_value(json_object_get(m, "state")));
	json_decref(all);
}

void gate_expect_state(struct inproc_node *n, const char *name, const char *state)
{
	char is[32];

	state_of(n, name, is);
	assert_string_equal(is, state);
}

void gate_wait_state(struct inproc_node *n, const char *name, const char *state)
{
	uint64_t by = pace_by(20);
	char is[32];

	for (state_of(n, name, is); strcmp(is, state) != 0; state_of(n, name, is)) {
		if (clock_ns() > by)
			fail_msg("\"%s\" on node %s is %s, not %s", name, n->name, is, state);
		usleep(1000);
	}
}

json_int_t gate_used(struct inproc_node *n)
{
	json_t *all = inproc_status(n), *budget = json_object_get(all, "budget");
	json_int_t bytes = json_integer_value(json_object_get(budget, "used")) -
			   json_integer_value(json_object_get(budget, "queues"));

	json_decref(all);
	return bytes;
}

void gate_wait_used(struct inproc_node *n, json_int_t bytes)
{
	uint64_t by = pace_by(20);

	while (gate_used(n) != bytes) {
		if (clock_ns() > by)
			fail_msg("node %s has promised %lld bytes, not %lld", n->name,
				 (long long)gate_used(n), (long long)bytes);
		usleep(1000);
	}
}

/* --- who defines --- */

static enum shard_status write_all(shard_model *m)
{
	static const float zeros[GATE_ELEMS];
	enum shard_status st = shard_write(m, SHARD_MASTER, 0, 0, GATE_ELEMS, SHARD_F32, zeros);

	return st == SHARD_OK ? shard_seal(m, 0) : st;
}

static enum shard_status define(struct definer *d)
{
	struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {GATE_ELEMS}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	enum shard_status st;
	int created = 0;

	s.name = d->name;
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	st = shard_define(d->client, &s, &d->model, &created);
	return st == SHARD_OK && created ? write_all(d->model) : st;
}

static void *defines(void *arg)
{
	struct definer *d = arg;
	struct trainer t;

	gate_mine = true;
	trainer_connect(&t, d->address);
	d->client = t.client;
	d->st = d->drops ? shard_drop(d->client, d->name, 0) : define(d);
	snprintf(d->text, sizeof(d->text), "%s", shard_error());
	return NULL;
}

void definer_begin(struct definer *d, const char *address, const char *name)
{
	*d = (struct definer){.address = address, .name = name};
	assert_int_equal(pthread_create(&d->thread, NULL, defines, d), 0);
}

void definer_drop(struct definer *d, const char *address, const char *name)
{
	*d = (struct definer){.address = address, .name = name, .drops = true};
	assert_int_equal(pthread_create(&d->thread, NULL, defines, d), 0);
}

void definer_end(struct definer *d, enum shard_status st, const char *part)
{
	pthread_join(d->thread, NULL);
	if (d->st != st || (part != NULL && strstr(d->text, part) == NULL))
		fail_msg("%s: %s, not %s with \"%s\"", shard_name(d->st), d->text, shard_name(st),
			 part != NULL ? part : "");
}

void definer_over(struct definer *d)
{
	shard_disconnect(&d->client);
}

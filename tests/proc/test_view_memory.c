/* SPDX-License-Identifier: Apache-2.0 */
/* Tests a coordinator without memory for the file of a view. It says so, and makes the view durable
 * as soon as there is memory. The allocator here refuses one large piece to the daemon's threads.
 * Nothing else of a seal is as large as the file of this model. */
#include "lib/inproc.h"
#include "lib/crew.h"
#include "shard.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { TENSORS = 1500, NAME = 60, LARGE = 64 << 10, REFUSALS = 3 };

static _Atomic int refusals; /* So many allocations are still to be refused. */
static _Thread_local bool mine;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static const bool can_refuse = true;

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t nr, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);

__attribute__((visibility("default"))) void *malloc(size_t bytes)
{
	if (bytes >= LARGE && !mine && atomic_load(&refusals) > 0) {
		atomic_fetch_sub(&refusals, 1);
		errno = ENOMEM;
		return NULL;
	}
	return __libc_malloc(bytes);
}

__attribute__((visibility("default"))) void *calloc(size_t nr, size_t bytes)
{
	return __libc_calloc(nr, bytes);
}

__attribute__((visibility("default"))) void *realloc(void *p, size_t bytes)
{
	return __libc_realloc(p, bytes);
}
#else
static const bool can_refuse = false;
#endif

static void define(shard_client *c, shard_model **m)
{
	static struct shard_tensor tensors[TENSORS];
	static char names[TENSORS][NAME + 1];
	struct shard_spec spec = {
		.size = sizeof(spec),
		.name = "wordy",
		.tensors = tensors,
		.tensors_nr = TENSORS,
		.image = SHARD_BF16,
		.grad = SHARD_BF16,
		.settings = "optimizer=sgd lr=1 local_world=1 max_world=1 timeout=20s"};
	int created = 0;

	for (int i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "%0*d", (int)NAME, i);
		tensors[i] = (struct shard_tensor){.name = names[i], .ndim = 1, .shape = {1}};
	}
	MUST(shard_define(c, &spec, m, &created));
	assert_int_equal(created, 1);
}

static void a_view_is_made_durable_later(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .cluster = "heartbeat_timeout = 1s"};
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *client = NULL;
	shard_model *m = NULL;
	const float value = 3;
	struct inproc c;

	(void)state;
	if (!can_refuse)
		skip(); /* A sanitizer has replaced the allocator. */
	mine = true;
	inproc_start(&c, &conf);
	o.address = c.node[0].unix_address;
	MUST(shard_connect(&client, &o));
	define(client, &m);
	inproc_wait_log(&c.node[0], "event=view model=wordy", 1);
	for (uint32_t i = 0; i < TENSORS; i++)
		MUST(shard_write(m, SHARD_MASTER, i, 0, 1, SHARD_F32, &value));
	atomic_store(&refusals, REFUSALS);
	MUST(shard_seal(m, 5));
	assert_int_equal(atomic_load(&refusals), 0);
	assert_int_equal(
		inproc_logged(&c.node[0], "event=view_not_durable model=wordy why=\"no memory\""),
		REFUSALS);
	shard_disconnect(&client);
	inproc_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(a_view_is_made_durable_later)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
/* Runs a whole session in which the N-th allocation of the calling thread fails, for every N until
 * none is left. Each call succeeds or says for what it had no memory. Nothing is used after it was
 * freed, and nothing is left after the connection. */
#include "base/check.h"
#include "lib/fakeserver.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void) /* The sanitizers have allocators of their own. */
{
	return 0;
}
#else

/* n > 0: the n-th allocation from now fails. 0: nothing is counted. Negative: it has failed. */
static _Thread_local long fail_in;
static _Thread_local long live; /* Allocations that were not freed. */

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *p, size_t bytes);
extern void *__libc_memalign(size_t align, size_t bytes);
extern void __libc_free(void *p);

static bool fails(void)
{
	if (fail_in <= 0 || --fail_in > 0)
		return false;
	fail_in = -1;
	errno = ENOMEM;
	return true;
}

static void *counted(void *p)
{
	live += p != NULL;
	return p;
}

void *malloc(size_t bytes)
{
	return fails() ? NULL : counted(__libc_malloc(bytes));
}

void *calloc(size_t n, size_t bytes)
{
	return fails() ? NULL : counted(__libc_calloc(n, bytes));
}

void *realloc(void *p, size_t bytes)
{
	if (fails())
		return NULL;
	return p == NULL ? counted(__libc_realloc(p, bytes)) : __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
	return fails() ? NULL : counted(__libc_memalign(align, bytes));
}

void free(void *p)
{
	live -= p != NULL;
	__libc_free(p);
}

#define STEP(call)                                                                                 \
	do {                                                                                       \
		if ((rc = (call)) != SHARD_OK)                                                     \
			return rc;                                                                 \
	} while (0)

static enum shard_status session(struct trainer *t, const char *address)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_result r = SHARD_INIT(struct shard_result);
	static const float zeros[3000];
	enum shard_status rc;
	struct shard_spec s;
	float back[8];
	char blob[8], json[64];
	size_t blob_bytes = sizeof(blob), json_bytes = sizeof(json);
	uint64_t step = 0;
	shard_ticket ticket;

	o.address = address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	STEP(shard_connect(&t->client, &o));
	STEP(shard_define(t->client, &s, &t->model, &t->created));
	for (uint32_t i = 0; i < TRAINER_TENSORS && t->created; i++)
		STEP(shard_write(t->model, SHARD_MASTER, i, 0, trainer_numel[i], SHARD_F32, zeros));
	if (t->created)
		STEP(shard_seal(t->model, 0));
	STEP(shard_read(t->model, SHARD_MASTER, 0, 2000, 8, SHARD_F32, back, &step));
	STEP(shard_join(t->model, -1, pace_ms(5000), &t->world));
	STEP(shard_begin(t->model, NULL, &t->step));
	/* Pushes with gaps make the list of spans grow. */
	for (uint64_t k = 0; k < 20; k++)
		STEP(shard_push(t->model, 0, k * 150, 75, zeros, SHARD_F32, SHARD_CAST, &ticket));
	for (uint64_t k = 0; k < 20; k++)
		STEP(shard_push(t->model, 0, k * 150 + 75, 75, zeros, SHARD_F32, SHARD_CAST,
				&ticket));
	for (uint32_t i = 1; i < TRAINER_TENSORS; i++)
		STEP(shard_push_none(t->model, i));
	STEP(shard_pull(t->model, 0, 0, 1, 0, back, SHARD_F32, &ticket));
	STEP(shard_set_blob(t->model, "cursor", 6));
	STEP(shard_commit(t->model, &ticket));
	STEP(shard_result(t->model, ticket, pace_ms(5000), &r));
	STEP(shard_blob(t->model, 0, blob, &blob_bytes, &step));
	STEP(shard_save(t->model, "/ckpt", NULL, &ticket));
	STEP(shard_wait(t->model, ticket, pace_ms(5000)));
	STEP(shard_leave(t->model, pace_ms(5000)));
	shard_detach(&t->model);
	STEP(shard_restore(t->client, "/ckpt", NULL, NULL, &t->model));
	shard_detach(&t->model);
	STEP(shard_attach(t->client, "m", &t->model));
	STEP(shard_set(t->model, "lr", "0.5"));
	STEP(shard_stats(t->client, json, &json_bytes));
	STEP(shard_drop(t->client, "other", 0));
	return SHARD_OK;
}

/* After each failed allocation as many allocations are left as before the session. */
static void test_every_allocation(void **state)
{
	struct fake_conf conf = {.timeout_ms = 5000};
	long n = 1, refused = 0;

	(void)state;
	for (;; n++) {
		struct fake *f = fake_start(&conf);
		struct trainer t = {.world = SHARD_INIT(struct shard_world),
				    .step = SHARD_INIT(struct shard_step)};
		enum shard_status rc;
		long before = live, after;
		bool failed;

		fail_in = n;
		rc = session(&t, f->address);
		shard_disconnect(&t.client);
		failed = fail_in < 0;
		fail_in = 0;
		after = live;
		fake_stop(f);
		if (after != before)
			fail_msg("allocation %ld: %ld allocations are left (%s: %s)", n,
				 after - before, shard_name(rc), shard_error());
		if (rc != SHARD_OK) {
			refused++;
			assert_true(failed && shard_error()[0] != 0);
			if (rc != SHARD_SYSTEM && rc != SHARD_PROTOCOL && rc != SHARD_CLOSED)
				fail_msg("allocation %ld: %s: %s", n, shard_name(rc),
					 shard_error());
		}
		if (!failed)
			break;
	}
	assert_true(refused > 20);
	print_message("%ld allocations, %ld refusals\n", n - 1, refused);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif

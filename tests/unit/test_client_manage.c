// SPDX-License-Identifier: Apache-2.0
/* Tests shard_attach(), shard_drop(), shard_set(), shard_stats() and shard_region() against a
 * scripted daemon: what is sent, what comes back, what a caller can get wrong, and how a handle
 * ends whose model was dropped. */
#include "base/check.h"
#include "client.h"
#include "lib/fakeserver.h"
#include "lib/trainer.h"
#include "control/manage.h"
#include "lib/pace.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct fake *start(bool tcp)
{
	struct fake_conf conf = {.tcp = tcp, .rank = 0, .world_size = 1, .timeout_ms = 800};

	return fake_start(&conf);
}

static void refuse(struct fake *f, uint16_t op, enum shard_status st, const char *text)
{
	fake_lock(f);
	f->knobs.refuse[op] = st;
	f->knobs.refuse_text = text;
	fake_unlock(f);
}

/* An attached handle has the tensors of the definition, and can join and make steps. */
static void test_attach(void **state)
{
	struct shard_info mine = SHARD_INIT(struct shard_info),
			  theirs = SHARD_INIT(struct shard_info);
	struct fake *f = start(*state != NULL);
	shard_model *m = NULL;
	struct trainer t;
	uint32_t index;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	/* The scripted daemon answers with the model that this connection has defined. */
	EXPECT(SHARD_EXISTS, shard_attach(t.client, "anything", &m));
	assert_null(m);
	assert_int_equal(shard_tensor_info(t.model, 2, &mine), SHARD_OK);
	mine.name = strdup(mine.name);
	shard_detach(&t.model);
	EXPECT(SHARD_PROTOCOL, shard_attach(t.client, "nameless", &m));
	EXPECT_TEXT("answered attach with what cannot be read");
	EXPECT(SHARD_OK, shard_attach(t.client, "tiny", &t.model));
	assert_int_equal(shard_tensors(t.model), TRAINER_TENSORS);
	assert_int_equal(shard_tensor_info(t.model, 2, &theirs), SHARD_OK);
	assert_string_equal(mine.name, theirs.name);
	free((char *)(uintptr_t)mine.name);
	assert_memory_equal(mine.shape, theirs.shape, sizeof(mine.shape));
	assert_int_equal(mine.offset, theirs.offset);
	EXPECT(SHARD_OK, shard_find(t.model, "ln_f.weight", &index));
	assert_int_equal(index, 3);
	t.world = SHARD_INIT(struct shard_world);
	t.step = SHARD_INIT(struct shard_step);
	/* Everything else is as after a definition. */
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(5000), &t.world));
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	trainer_begin(&t);
	trainer_check_image(&t, SHARD_BF16, 1);
	trainer_end(&t);
	fake_stop(f);
}

/* Bad arguments are refused at once. A refusal of the daemon comes with its text, and silence ends
 * in a timeout. */
static void test_refused(void **state)
{
	struct fake *f = start(*state != NULL);
	shard_model *m = NULL;
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_BAD_ARG, shard_attach(NULL, "m", &m));
	EXPECT(SHARD_BAD_ARG, shard_attach(t.client, "m", NULL));
	EXPECT(SHARD_BAD_ARG, shard_attach(t.client, NULL, &m));
	EXPECT(SHARD_BAD_ARG, shard_attach(t.client, "Big", &m));
	EXPECT_TEXT("shard_attach: model name \"Big\"");
	EXPECT(SHARD_BAD_ARG, shard_drop(t.client, "", 0));
	EXPECT(SHARD_BAD_ARG, shard_drop(NULL, "m", 0));
	EXPECT(SHARD_BAD_ARG, shard_set(t.model, NULL, "1"));
	EXPECT(SHARD_BAD_ARG, shard_set(NULL, "lr", "1"));
	refuse(f, OP_ATTACH, SHARD_NOT_FOUND, "no model \"m\": there is \"n\"");
	EXPECT(SHARD_NOT_FOUND, shard_attach(t.client, "m", &m));
	EXPECT_TEXT("there is \"n\"");
	refuse(f, OP_MANAGE, SHARD_DENIED, "not yours");
	EXPECT(SHARD_DENIED, shard_drop(t.client, "m", 1));
	EXPECT(SHARD_DENIED, shard_set(t.model, "lr", "0.5"));
	EXPECT_TEXT("not yours");
	refuse(f, OP_MANAGE, SHARD_OK, NULL);
	fake_lock(f);
	f->knobs.mute[OP_MANAGE] = true;
	fake_unlock(f);
	EXPECT(SHARD_TIMEOUT, shard_set(t.model, "lr", "0.5"));
	EXPECT_TEXT("is not set yet after 0.");
	assert_null(m);
	trainer_end(&t);
	fake_stop(f);
}

/* shard_set() and shard_drop() send the action, the model, the key and the value. */
static void test_manage(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_OK, shard_set(t.model, "clip", "default"));
	fake_lock(f);
	assert_int_equal(f->manage.action, MANAGE_SET);
	assert_string_equal(f->manage.key, "clip");
	assert_string_equal(f->manage.value, "default");
	assert_true(strlen(f->manage.name) > 0 && !f->manage.force);
	fake_unlock(f);
	EXPECT(SHARD_OK, shard_drop(t.client, "other", 1));
	fake_lock(f);
	assert_int_equal(f->manage.action, MANAGE_DROP);
	assert_string_equal(f->manage.name, "other");
	assert_true(f->manage.force);
	fake_unlock(f);
	trainer_end(&t);
	fake_stop(f);
}

/* shard_stats() says how much memory it needs. */
static void test_stats(void **state)
{
	static const char text[] = "{\"models\":[]}";
	struct fake *f = start(*state != NULL);
	char json[sizeof(text)];
	size_t bytes = 0;
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_BAD_ARG, shard_stats(t.client, json, NULL));
	EXPECT(SHARD_RANGE, shard_stats(t.client, NULL, &bytes));
	assert_int_equal(bytes, sizeof(text));
	bytes--;
	EXPECT(SHARD_RANGE, shard_stats(t.client, json, &bytes));
	assert_int_equal(bytes, sizeof(text));
	EXPECT(SHARD_OK, shard_stats(t.client, json, &bytes));
	assert_string_equal(json, text);
	trainer_end(&t);
	fake_stop(f);
}

/* A region is there only after a join, and holds the tensors of its kind. */
static void test_region(void **state)
{
	struct fake *f = start(*state != NULL);
	size_t bytes;
	char *base;
	void *p;
	int fd;
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_F32);
	EXPECT(SHARD_BAD_STATE, shard_region(t.model, SHARD_GRAD, &p, &bytes));
	t.world = SHARD_INIT(struct shard_world);
	t.step = SHARD_INIT(struct shard_step);
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(5000), &t.world));
	EXPECT(SHARD_BAD_ARG, shard_region(t.model, SHARD_MASTER, &p, &bytes));
	EXPECT(SHARD_BAD_ARG, shard_region(t.model, SHARD_GRAD, NULL, &bytes));
	EXPECT(SHARD_UNSUPPORTED,
	       shard_device_region(t.model, SHARD_IMAGE, (const uint8_t[16]){1}, &fd, &bytes));
	EXPECT_TEXT(*state != NULL ? "over TCP" : "upgrade it"); /* It is an older release. */
	trainer_begin(&t);
	EXPECT(SHARD_OK, shard_region(t.model, SHARD_GRAD, &p, &bytes));
	base = p;
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		char *g = shard_grad(t.model, i);

		assert_true(g >= base && g + trainer_numel[i] * 4 <= base + bytes);
	}
	EXPECT(SHARD_OK, shard_region(t.model, SHARD_IMAGE, &p, &bytes));
	base = p;
	assert_ptr_equal(shard_image(t.model, 0), p);
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		const char *w = shard_image(t.model, i);

		assert_true(w >= base && w + trainer_numel[i] * 2 <= base + bytes);
	}
	trainer_end(&t);
	fake_stop(f);
}

/* After the model was dropped, each call on its handle says who dropped it. */
static void test_dropped(void **state)
{
	struct fake *f = start(*state != NULL);
	Shard__Why why = SHARD__WHY__INIT;
	struct wire_head h;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	fake_lock(f);
	f->knobs.mute[OP_READY] = true;
	fake_unlock(f);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	h = fake_head(f, OP_LOST);
	h.generation++;
	why.why = (char *)(uintptr_t) "\"m\" was dropped by uid 7 (gid 8)";
	why.status = SHARD_NOT_FOUND;
	fake_send(f, &h, &why.base);
	EXPECT(SHARD_NOT_FOUND,
	       shard_result(t.model, 0, pace_ms(5000),
			    &(struct shard_result){.size = sizeof(struct shard_result)}));
	EXPECT_TEXT("\"m\" was dropped by uid 7 (gid 8) (shard_detach() it");
	EXPECT(SHARD_NOT_FOUND, shard_world_get(t.model, &t.world));
	shard_detach(&t.model);
	trainer_end(&t);
	fake_stop(f);
}

/* A call waits for a slow answer as long as the daemon answers PINGs, up to its timeout. If a PING
 * stays without an answer, it fails much earlier. */
static void test_silent(void **state)
{
	struct fake *f = start(*state != NULL);
	shard_model *m = NULL;
	size_t bytes = 0;
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	t.client->silent_ms = (uint32_t)pace_ms(300); /* For the answer to a PING. */
	t.client->timeout_ms = pace_ms(2000);
	fake_lock(f);
	f->knobs.mute[OP_ATTACH] = f->knobs.mute[OP_MANAGE] = f->knobs.mute[OP_STATUS] = true;
	f->knobs.mute[OP_RESTORE] = true;
	fake_unlock(f);
	EXPECT(SHARD_TIMEOUT, shard_attach(t.client, "m", &m));
	EXPECT_TEXT_AROUND("attach m waited ", ": disconnect before you try again");
	assert_null(strstr(shard_error(), "PING"));
	fake_await(f, OP_PING, 2);
	t.client->silent_ms = 20;
	t.client->timeout_ms = 300000;
	fake_lock(f);
	f->knobs.mute[OP_PING] = true;
	fake_unlock(f);
	EXPECT(SHARD_TIMEOUT, shard_attach(t.client, "m", &m));
	EXPECT_TEXT("does not answer a PING either");
	EXPECT(SHARD_TIMEOUT, shard_drop(t.client, "m", 1));
	EXPECT_TEXT("does not answer a PING either");
	EXPECT(SHARD_TIMEOUT, shard_stats(t.client, NULL, &bytes));
	EXPECT_TEXT("does not answer a PING either");
	EXPECT(SHARD_TIMEOUT, shard_restore(t.client, "/x", NULL, "m", &m));
	EXPECT_TEXT_AROUND("restore of \"m\" waited ", ": 0 of 0 bytes");
	trainer_end(&t);
	fake_stop(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER_BOTH(test_attach), OVER_BOTH(test_refused), OVER_BOTH(test_manage),
		OVER_BOTH(test_stats),  OVER_BOTH(test_region),  OVER_BOTH(test_dropped),
		OVER_BOTH(test_silent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

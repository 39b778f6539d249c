// SPDX-License-Identifier: Apache-2.0
/* Tests the client library against a scripted daemon: connecting, defining, writing and reading. It
 * also tests what a caller or a daemon can do wrong, and the sentence that follows. Steps are in
 * test_client_step.c. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/fakeserver.h"
#include "lib/trainer.h"
#include "wire/dtype.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct fake *start(bool tcp)
{
	struct fake_conf conf = {.tcp = tcp};

	return fake_start(&conf);
}

static void test_texts(void **state)
{
	(void)state;
	assert_string_equal(shard_version(), SHARD_RELEASE " wire 1-1 abi 0");
	assert_string_equal(shard_name(SHARD_WORLD_CHANGED), "SHARD_WORLD_CHANGED");
	assert_string_equal(shard_name((enum shard_status)4711), "SHARD_?");
}

static enum shard_status try_connect(const char *address)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *c = (void *)1;
	enum shard_status rc;

	o.address = address;
	o.timeout_ms = 1000;
	rc = shard_connect(&c, &o);
	assert_null(c);
	return rc;
}

/* Who has the path of a private daemon's socket is told its address. */
static void test_private_socket(void)
{
	char dir[] = "/tmp/shard-client.XXXXXX", address[100];

	assert_non_null(mkdtemp(dir));
	setenv("XDG_RUNTIME_DIR", dir, 1);
	snprintf(address, sizeof(address), "unix:%s/shardd/demo/shardd.sock", dir);
	EXPECT(SHARD_UNREACHABLE, try_connect(address));
	EXPECT_TEXT("which has ended: the address spawn:demo starts another one");
	snprintf(address, sizeof(address), "unix:%s/other/demo/shardd.sock", dir);
	EXPECT(SHARD_UNREACHABLE, try_connect(address));
	EXPECT_TEXT("there is no such socket");
	unsetenv("XDG_RUNTIME_DIR");
	rmdir(dir);
}

/* A malformed address is refused before anything is tried. Where no daemon answers, the text names
 * the address and the reason. */
static void test_addresses(void **state)
{
	char big[400];

	(void)state;
	EXPECT(SHARD_BAD_ARG, try_connect("shardd.sock"));
	EXPECT(SHARD_BAD_ARG, try_connect("unix:"));
	EXPECT(SHARD_BAD_ARG, try_connect("tcp://host"));
	EXPECT(SHARD_BAD_ARG, try_connect("tcp://host:port"));
	EXPECT(SHARD_BAD_ARG, try_connect("tcp://host:99999"));
	memset(big, 'x', sizeof(big) - 1);
	memcpy(big, "unix:/", 6);
	big[sizeof(big) - 1] = 0;
	EXPECT(SHARD_BAD_ARG, try_connect(big));
	EXPECT(SHARD_BAD_ARG, try_connect("spawn:Test"));
	EXPECT(SHARD_UNREACHABLE, try_connect("unix:/nonexistent/s"));
	assert_string_equal(shard_error(),
			    "no shardd at unix:/nonexistent/s (ENOENT): there is no such socket: "
			    "start the daemon whose [daemon] socket this is, or correct the "
			    "address");
	assert_int_equal(errno, ENOENT);
	EXPECT(SHARD_UNREACHABLE, try_connect("tcp://127.0.0.1:1"));
	EXPECT_TEXT("ECONNREFUSED");
	setenv("SHARD_ADDRESS", "unix:/nonexistent/env", 1);
	EXPECT(SHARD_UNREACHABLE, try_connect(NULL));
	EXPECT_TEXT("unix:/nonexistent/env");
	unsetenv("SHARD_ADDRESS");
	EXPECT(SHARD_UNREACHABLE, try_connect(NULL));
	EXPECT_TEXT("unix:/run/shardd/shardd.sock");
	EXPECT_TEXT("systemctl status shardd");
	test_private_socket();
}

/* A connect succeeds, or returns what HELLO was answered with, or times out. */
static void test_connect(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_connect_opts o = {.address = f->address};
	shard_client *c;
	struct trainer t;

	EXPECT(SHARD_BAD_ARG, shard_connect(&c, &o)); /* o.size is 0. */
	EXPECT_TEXT("SHARD_INIT(struct shard_connect_opts)");
	trainer_connect(&t, f->address);
	assert_true(shard_fd(t.client) >= 0);
	EXPECT(SHARD_OK, shard_progress(t.client));
	trainer_end(&t);
	assert_null(t.client);
	shard_disconnect(&t.client); /* A second disconnect does no harm. */

	fake_lock(f);
	f->knobs.refuse[OP_HELLO] = SHARD_DENIED;
	f->knobs.refuse_text = "not you";
	fake_unlock(f);
	EXPECT(SHARD_DENIED, try_connect(f->address));
	assert_string_equal(shard_error(), "not you");
	fake_lock(f);
	f->knobs.refuse[OP_HELLO] = SHARD_OK;
	f->knobs.mute[OP_HELLO] = true;
	fake_unlock(f);
	EXPECT(SHARD_TIMEOUT, try_connect(f->address));
	EXPECT_TEXT_AROUND("shardd at ", "see its log");
	EXPECT_TEXT("did not answer HELLO in ");
	fake_stop(f);
}

static void bad_spec(struct trainer *t, const struct shard_spec *s, const char *text)
{
	shard_model *m = (void *)1;
	int created = 7;

	EXPECT(SHARD_BAD_ARG, shard_define(t->client, s, &m, &created));
	EXPECT_TEXT(text);
	assert_null(m);
	assert_int_equal(created, 0);
}

/* The library refuses each malformed definition itself and names the tensor. */
static void test_bad_specs(void **state)
{
	struct fake *f = start(false);
	struct shard_tensor tensor[2] = {{.name = "a", .ndim = 1, .shape = {4}},
					 {.name = "b", .ndim = 1, .shape = {4}}};
	struct shard_spec good = {.size = sizeof(good),
				  .name = "m",
				  .tensors = tensor,
				  .tensors_nr = 2,
				  .image = SHARD_BF16,
				  .grad = SHARD_BF16},
			  s = good;
	struct trainer t;

	(void)state;
	trainer_connect(&t, f->address);
	s.name = "Big";
	bad_spec(&t, &s, "a-z");
	s = good;
	s.tensors_nr = 0;
	bad_spec(&t, &s, "0 tensors: a model has 1 to 1048576");
	s = good;
	s.grad = 0;
	bad_spec(&t, &s, "grad dtype 0");
	tensor[1].name = "a";
	bad_spec(&t, &good, "tensor \"a\" is there twice, as 0 and as 1");
	tensor[1].name = "b";
	tensor[1].shape[0] = 0;
	tensor[0].shape[0] = 0;
	bad_spec(&t, &good, "2 tensors, and each has a dimension of 0");
	tensor[0].shape[0] = 4;
	tensor[1].ndim = 2;
	tensor[1].shape[0] = tensor[1].shape[1] = 1ull << 40;
	bad_spec(&t, &good, "more than 17592186044416 elements");
	tensor[1].ndim = 9;
	bad_spec(&t, &good, "9 dimensions");
	tensor[1].ndim = 0;
	tensor[1].group = 1;
	bad_spec(&t, &good, "group 1 of 1");
	tensor[1].group = 0;
	tensor[1].flags = 8;
	bad_spec(&t, &good, "flags 0x8");
	tensor[1].flags = 0;
	tensor[1].flags = SHARD_BF16 << 8; /* As messages have the image dtype. */
	bad_spec(&t, &good, "flags 0x200");
	tensor[1].flags = 0;
	tensor[1].image = 4;
	bad_spec(&t, &good, "tensor \"b\": image dtype 4");
	tensor[1].image = 0;
	tensor[1].reserved_32 = 1;
	bad_spec(&t, &good, "reserved_32");
	tensor[1].reserved_32 = 0;
	tensor[1].reserved[2] = 1;
	bad_spec(&t, &good, "reserved[2]");
	fake_lock(f);
	assert_int_equal(f->frames[OP_DEFINE], 0); /* Nothing was sent. */
	fake_unlock(f);
	trainer_end(&t);
	fake_stop(f);
}

/* The library refuses a chunk size in the answer that no daemon can have. */
static void test_bad_chunks(void **state)
{
	static const uint32_t elems[] = {512, 1000, 1u << 27};

	(void)state;
	for (size_t i = 0; i < NR(elems); i++) {
		struct fake_conf conf = {.chunk_elems = elems[i], .world_size = 1};
		struct shard_tensor tensor = {.name = "a", .ndim = 1, .shape = {4}};
		struct shard_spec s = {.size = sizeof(s),
				       .name = "m",
				       .tensors = &tensor,
				       .tensors_nr = 1,
				       .image = SHARD_BF16,
				       .grad = SHARD_BF16};
		struct fake *f = fake_start(&conf);
		struct trainer t;
		int created;

		trainer_connect(&t, f->address);
		EXPECT(SHARD_PROTOCOL, shard_define(t.client, &s, &t.model, &created));
		EXPECT_TEXT("shardd says that chunks of \"m\" have ");
		trainer_end(&t);
		fake_stop(f);
	}
}

/* A definition gives the layout of the tensors. A second handle on one connection is refused, and a
 * refusal of the daemon comes with its text. */
/* One that waits for the definer never becomes it, also with a daemon that does not know of that.
 */
static void test_waits_for_definer(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_spec s;
	struct trainer t;

	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	s.wait_ms = 500; /* Long enough for one answer on a slow machine. */
	fake_lock(f);
	f->knobs.refuse[OP_DEFINE] = SHARD_NOT_FOUND;
	f->knobs.refuse_text = "nobody has defined it yet";
	fake_unlock(f);
	trainer_connect(&t, f->address);
	EXPECT(SHARD_TIMEOUT, shard_define(t.client, &s, &t.model, &t.created));
	EXPECT_TEXT("for the caller that holds its weights: nobody has defined it at ");
	fake_lock(f);
	f->knobs.refuse[OP_DEFINE] = SHARD_OK;
	fake_unlock(f);
	s.wait_ms = SHARD_DEFAULT;
	EXPECT(SHARD_UNSUPPORTED, shard_define(t.client, &s, &t.model, &t.created));
	EXPECT_TEXT("a daemon is too old for wait_ms");
	assert_int_equal(t.created, 0);
	assert_null(t.model);
	trainer_end(&t);
	fake_stop(f);
}

/* Whoever logs the sentence after each call sees that it is not about the last one. */
static void said_before(const char *text)
{
	char want[600];

	snprintf(want, sizeof(want), "the last call did not fail; an earlier one did: %s", text);
	assert_string_equal(shard_error(), want);
	assert_string_equal(shard_error(), want);
}

static void test_define(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_info info = SHARD_INIT(struct shard_info);
	struct shard_spec s;
	struct trainer t;
	shard_model *second;
	uint32_t index;
	int created;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	t.world = SHARD_INIT(struct shard_world);
	assert_int_equal(t.created, 1);
	assert_int_equal(shard_tensors(t.model), TRAINER_TENSORS);
	EXPECT(SHARD_OK, shard_tensor_info(t.model, 2, &info));
	assert_string_equal(info.name, "h.0.attn.weight");
	assert_int_equal(info.offset, 3008 + 64);
	assert_int_equal(info.numel, 2500);
	assert_int_equal(info.shape[1], 50);
	info.size = 8; /* A caller of an older version, whose struct has only the size. */
	info.name = NULL;
	EXPECT(SHARD_OK, shard_tensor_info(t.model, 2, &info));
	assert_null(info.name);
	EXPECT(SHARD_RANGE, shard_tensor_info(t.model, 4, &info));
	EXPECT(SHARD_OK, shard_find(t.model, "ln_f.weight", &index));
	assert_int_equal(index, 3);
	EXPECT(SHARD_NOT_FOUND, shard_find(t.model, "nope", &index));
	assert_string_equal(shard_error(), "\"gpt\" has no tensor \"nope\"");
	EXPECT(SHARD_OK, shard_find(t.model, "wte", &index));
	said_before("\"gpt\" has no tensor \"nope\"");
	EXPECT(SHARD_BAD_STATE, shard_world_get(t.model, &t.world));
	assert_non_null(strstr(shard_error(), "shard_world_get() of \"gpt\", which is not joined"));
	EXPECT(SHARD_OK, shard_progress(t.client));
	said_before("shard_world_get() of \"gpt\", which is not joined: shard_join() first");
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_EXISTS, shard_define(t.client, &s, &second, &created));
	shard_detach(&t.model);
	assert_null(t.model);
	/* After a detach the same connection may define it again. */
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &created));
	assert_int_equal(created, 0);
	trainer_end(&t);

	fake_lock(f);
	f->knobs.refuse[OP_DEFINE] = SHARD_MISMATCH;
	f->knobs.refuse_text = "tensor \"wte\": shape [30, 100] here, [30, 101] there";
	fake_unlock(f);
	trainer_connect(&t, f->address);
	EXPECT(SHARD_MISMATCH, shard_define(t.client, &s, &t.model, &created));
	assert_string_equal(shard_error(), "tensor \"wte\": shape [30, 100] here, [30, 101] there");
	trainer_end(&t);
	fake_stop(f);
}

/* What was written is read back, in any range and type. Ranges, steps and arguments that cannot be
 * are refused. */
static void test_write_read(void **state)
{
	struct fake *f = start(*state != NULL);
	uint16_t h[2500];
	float back[3000];
	uint64_t step = 0;
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_F32);
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		EXPECT(SHARD_OK, shard_read(t.model, SHARD_MASTER, i, 0, trainer_numel[i],
					    SHARD_F32, back, &step));
		for (uint64_t k = 0; k < trainer_numel[i]; k++)
			assert_true(back[k] == trainer_weight(i, k));
	}
	/* This read crosses the border of a chunk and converts. */
	EXPECT(SHARD_OK, shard_read(t.model, SHARD_MASTER, 2, 1000, 1500, SHARD_BF16, h, &step));
	for (int k = 0; k < 1500; k++)
		assert_true(dtype_from_bf16(h[k]) == trainer_weight(2, 1000 + (uint64_t)k));
	EXPECT(SHARD_RANGE,
	       shard_read(t.model, SHARD_MASTER, 2, 1000, 1501, SHARD_F32, back, &step));
	EXPECT_TEXT("first 1000, count 1501, but it has 2500 elements");
	EXPECT(SHARD_RANGE, shard_read(t.model, SHARD_MASTER, 9, 0, 1, SHARD_F32, back, &step));
	step = 5;
	EXPECT(SHARD_STALE, shard_read(t.model, SHARD_MASTER, 0, 0, 1, SHARD_F32, back, &step));
	EXPECT(SHARD_BAD_STATE, shard_write(t.model, SHARD_MASTER, 0, 0, 1, SHARD_F32, back));
	EXPECT_TEXT("sealed");
	EXPECT(SHARD_BAD_ARG, shard_write(t.model, SHARD_GRAD, 0, 0, 1, SHARD_F32, back));
	EXPECT(SHARD_BAD_ARG,
	       shard_read(t.model, SHARD_MASTER, 0, 0, 1, (enum shard_dtype)9, back, &step));
	fake_lock(f);
	f->knobs.refuse[OP_READ] = SHARD_NOT_FOUND;
	f->knobs.refuse_text = "sgd keeps no exp_avg";
	fake_unlock(f);
	step = 0;
	EXPECT(SHARD_NOT_FOUND,
	       shard_read(t.model, SHARD_EXP_AVG, 0, 0, 3000, SHARD_F32, back, &step));
	assert_string_equal(shard_error(), "sgd keeps no exp_avg");
	trainer_end(&t);
	fake_stop(f);
}

/* A read that the daemon refuses as busy is sent again after growing pauses, until the timeout. */
static void test_read_busy(void **state)
{
	struct fake_conf conf = {
		.tcp = *state != NULL, .rank = 0, .world_size = 1, .timeout_ms = 600};
	struct fake *f = fake_start(&conf);
	uint64_t step = 0, began;
	struct trainer t;
	uint32_t asked;
	float back[16];

	trainer_define(&t, f->address, SHARD_F32, SHARD_F32);
	fake_lock(f);
	f->knobs.refuse[OP_READ] = SHARD_BUSY;
	f->knobs.refuse_text = "64 reads wait already";
	fake_unlock(f);
	began = clock_ns();
	EXPECT(SHARD_TIMEOUT, shard_read(t.model, SHARD_MASTER, 0, 0, 16, SHARD_F32, back, &step));
	EXPECT_TEXT("shardd was busy: 64 reads wait already");
	assert_true(clock_ns() - began >= 599 * NS_PER_MS);
	fake_lock(f);
	asked = f->frames[OP_READ];
	/* The pauses are 1, 2, 4 and so on to 64 ms, and then 64 ms. */
	assert_true(asked >= 2 && asked <= 16);
	f->knobs.refuse[OP_READ] = SHARD_OK;
	fake_unlock(f);
	EXPECT(SHARD_OK, shard_read(t.model, SHARD_MASTER, 0, 0, 16, SHARD_F32, back, &step));
	assert_int_equal(f->frames[OP_READ], asked + 1);
	trainer_end(&t);
	fake_stop(f);
}

/* Parts of a write that did not fit into a queue of the daemon are sent again, each to its place.
 * It is an error if the daemon is busy for another reason or for too long. */
static void test_write_busy(void **state)
{
	struct fake_conf conf = {
		.tcp = *state != NULL, .rank = 0, .world_size = 1, .timeout_ms = 600};
	struct fake *f = fake_start(&conf);
	struct shard_spec s;
	struct trainer t;
	uint32_t asked;
	float w[3000];

	trainer_connect(&t, f->address);
	trainer_spec(&s, SHARD_F32, SHARD_F32);
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	for (int i = 0; i < 3000; i++)
		w[i] = (float)i;
	fake_lock(f);
	f->knobs.refuse[OP_WRITE] = SHARD_BUSY;
	f->knobs.refuse_text = "pid 7 on node b writes the weights";
	fake_unlock(f);
	EXPECT(SHARD_BUSY, shard_write(t.model, SHARD_EXP_AVG, 0, 0, 16, SHARD_F32, w));
	EXPECT_TEXT("pid 7 on node b writes the weights");
	fake_lock(f);
	asked = f->frames[OP_WRITE];
	assert_int_equal(asked, 1);
	f->sys = EAGAIN; /* This reason passes with time. */
	f->knobs.refuse_text = "4000 frames wait for node b";
	f->knobs.refuse_nr = 2;
	fake_unlock(f);
	EXPECT(SHARD_OK, shard_write(t.model, SHARD_EXP_AVG, 0, 0, 3000, SHARD_F32, w));
	fake_lock(f);
	/* The write has a part in each of three chunks. */
	assert_int_equal(f->frames[OP_WRITE], asked + 3 + 2);
	for (int i = 0; i < 3000; i++)
		assert_true(f->moment[i] == (float)i);
	f->knobs.refuse[OP_WRITE] = SHARD_BUSY;
	fake_unlock(f);
	EXPECT(SHARD_TIMEOUT, shard_write(t.model, SHARD_EXP_AVG, 0, 0, 16, SHARD_F32, w));
	EXPECT_TEXT("shardd was busy: 4000 frames wait for node b");
	trainer_end(&t);
	fake_stop(f);
}

/* A write converts bf16 and lands at its offset. */
static void test_write_bf16(void **state)
{
	struct fake *f = start(*state != NULL);
	uint16_t h[3000];
	struct shard_spec s;
	struct trainer t;

	trainer_connect(&t, f->address);
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	for (int i = 0; i < 3000; i++)
		h[i] = dtype_to_bf16((float)(i % 128));
	EXPECT(SHARD_OK, shard_write(t.model, SHARD_EXP_AVG, 0, 17, 2983, SHARD_BF16, h));
	fake_lock(f);
	for (int i = 0; i < 2983; i++)
		assert_true(f->moment[17 + i] == (float)(i % 128));
	fake_unlock(f);
	trainer_end(&t);
	fake_stop(f);
}

/* A read that times out does not spoil the connection. */
static void test_give_up(void **state)
{
	struct fake_conf conf = {.tcp = *state != NULL, .timeout_ms = 800};
	struct fake *f = fake_start(&conf);
	float back[3000] = {0};
	uint64_t step = 0;
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	fake_lock(f);
	f->knobs.mute[OP_READ] = true;
	fake_unlock(f);
	EXPECT(SHARD_TIMEOUT,
	       shard_read(t.model, SHARD_MASTER, 0, 0, 3000, SHARD_F32, back, &step));
	EXPECT_TEXT("read of master of \"wte\" waited ");
	fake_lock(f);
	f->knobs.mute[OP_READ] = false;
	fake_unlock(f);
	/* The connection works as before. */
	EXPECT(SHARD_OK, shard_read(t.model, SHARD_MASTER, 0, 0, 3000, SHARD_F32, back, &step));
	assert_true(back[2999] == trainer_weight(0, 2999));
	trainer_end(&t);
	fake_stop(f);
}

/* When the daemon closes a connection with a reason, every call on it returns that reason. */
static void test_closed(void **state)
{
	struct fake *f = start(*state != NULL);
	float back[8];
	uint64_t step = 0;
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	fake_error(f, SHARD_DENIED, "node b is draining");
	EXPECT(SHARD_CLOSED, shard_read(t.model, SHARD_MASTER, 0, 0, 8, SHARD_F32, back, &step));
	EXPECT_TEXT("node b is draining");
	/* Every later call says the same. */
	EXPECT(SHARD_CLOSED, shard_read(t.model, SHARD_MASTER, 0, 0, 8, SHARD_F32, back, &step));
	EXPECT_TEXT("node b is draining");
	EXPECT(SHARD_CLOSED, shard_progress(t.client));
	EXPECT(SHARD_CLOSED, shard_seal(t.model, 0));
	shard_detach(&t.model);
	trainer_end(&t);
	trainer_connect(&t, f->address); /* A new connection works. */
	trainer_end(&t);
	fake_stop(f);
}

/* Bytes that are no frame end the connection with a protocol error that names the daemon. */
static void test_garbage(void **state)
{
	struct fake *f = start(*state != NULL);
	unsigned char noise[256];
	float back[8];
	uint64_t step = 0;
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	memset(noise, 0x5a, sizeof(noise));
	fake_lock(f);
	f->knobs.mute[OP_READ] = true;
	fake_unlock(f);
	fake_raw(f, noise, sizeof(noise));
	EXPECT(SHARD_PROTOCOL, shard_read(t.model, SHARD_MASTER, 0, 0, 8, SHARD_F32, back, &step));
	EXPECT_TEXT(f->address);
	trainer_end(&t);
	fake_stop(f);
}

/* A frame that the daemon may not send to this trainer is a protocol error. */
static void test_unasked(void **state)
{
	struct wire_head reply = {.op = OP_READ, .flags = WIRE_REPLY, .attempt = 9999},
			 op = {.op = OP_WRITTEN};
	struct fake *f = start(false);
	struct trainer t;

	(void)state;
	/* First a reply to no request, and then a frame that is not for trainers. */
	for (int i = 0; i < 2; i++) {
		float back[8];
		uint64_t step = 0;

		trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
		fake_lock(f);
		f->knobs.mute[OP_READ] = true;
		fake_unlock(f);
		fake_send(f, i == 0 ? &reply : &op, NULL);
		EXPECT(SHARD_PROTOCOL,
		       shard_read(t.model, SHARD_MASTER, 0, 0, 8, SHARD_F32, back, &step));
		EXPECT_TEXT(i == 0 ? "nobody asked" : "no trainer is sent");
		trainer_end(&t);
		fake_lock(f);
		f->knobs.mute[OP_READ] = false;
		fake_unlock(f);
	}
	fake_stop(f);
}

/* Over tcp the library answers a PING between two calls. */
static void test_ping(void **state)
{
	struct fake *f = start(true);
	struct wire_head ping = {.op = OP_PING};
	struct trainer t;

	(void)state;
	trainer_connect(&t, f->address);
	fake_send(f, &ping, NULL);
	fake_await(f, OP_PONG, 1);
	trainer_end(&t);
	fake_stop(f);
}

/* A machine that vanished sends no end of its connections, and a trainer that waits sends nothing
 * that would go unanswered. */
static void test_keep_alive(void **state)
{
	struct fake *f = start(true);
	int port = atoi(strrchr(f->address, ':') + 1), found = 0, on;
	struct sockaddr_in to;
	socklen_t bytes;
	struct trainer t;

	(void)state;
	trainer_connect(&t, f->address);
	for (int fd = 3; fd < 1024; fd++) {
		bytes = sizeof(to);
		if (getpeername(fd, (struct sockaddr *)&to, &bytes) != 0 ||
		    to.sin_family != AF_INET || ntohs(to.sin_port) != port)
			continue;
		bytes = sizeof(on);
		assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &bytes), 0);
		assert_int_equal(on, 1);
		found++;
	}
	assert_int_equal(found, 1);
	trainer_end(&t);
	fake_stop(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_texts),
		cmocka_unit_test(test_addresses),
		OVER_BOTH(test_connect),
		cmocka_unit_test(test_bad_specs),
		cmocka_unit_test(test_bad_chunks),
		OVER_BOTH(test_define),
		OVER_BOTH(test_waits_for_definer),
		OVER_BOTH(test_write_read),
		OVER_BOTH(test_read_busy),
		OVER_BOTH(test_write_busy),
		OVER_BOTH(test_write_bf16),
		OVER_BOTH(test_give_up),
		OVER_BOTH(test_closed),
		OVER_BOTH(test_garbage),
		cmocka_unit_test(test_unasked),
		cmocka_unit_test(test_ping),
		cmocka_unit_test(test_keep_alive),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
/* Trainer processes that do what a test tells them. Tests of tests/proc call it. The child sits in
 * recv() on a socket pair, makes the call that a command names, and sends back the result. A test
 * therefore knows in which phase every trainer is, without waiting for time to pass. A child ends
 * with its test. */
#include "lib/drill.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "wire/dtype.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define QUIET_MS 40000 /* Longer than the timeout of the models here, which is 20 s. */
#define LIMIT_MS pace_ms(QUIET_MS)

static const uint32_t numel[DRILL_TENSORS] = {2368, 50, 3200, 1};
static const struct shard_tensor tensors[DRILL_TENSORS] = {
	{.name = "wte", .ndim = 2, .shape = {37, 64}},
	{.name = "bias", .ndim = 1, .shape = {50}},
	{.name = "proj", .ndim = 2, .shape = {64, 50}},
	{.name = "scale", .ndim = 0},
};
static const struct shard_tensor huge[1] = {{.name = "wte", .ndim = 1, .shape = {1ull << 28}}};

struct trainee { /* The state of a trainer, in the child. */
	struct drill_shared *shared;
	shard_client *client;
	shard_model *model;
	enum drill_layout layout;
	enum shard_dtype image;
	shard_ticket ticket;
	struct drill_reply reply; /* World and step stay from call to call. */
	int fd;
	const char *address;
};

/* --- numbers --- */

static uint32_t first_of(uint32_t tensor)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < tensor; i++)
		at += numel[i];
	return at;
}

float drill_gradient(uint32_t rank, uint64_t step, uint32_t i)
{
	return 4.0f * (float)((int)((i * 5 + i / 64 + step * 7 + rank * 3) % 11) - 5);
}

static float start_weight(uint32_t i)
{
	return (float)(i % 61) - 30.0f;
}

void drill_truth_init(struct drill_truth *r)
{
	for (uint32_t i = 0; i < DRILL_NUMEL; i++)
		r->w[i] = start_weight(i);
}

void drill_truth_step(struct drill_truth *r, uint64_t step, uint32_t world)
{
	for (uint32_t i = 0; i < DRILL_NUMEL; i++)
		for (uint32_t rank = 0; rank < world; rank++)
			r->w[i] -= drill_gradient(rank, step, i) / 4;
}

/* --- the child --- */

static uint32_t from(const struct trainee *t)
{
	return t->layout == DRILL_ONE_CHUNK ? 1 : 0;
}

static uint32_t tensors_nr(const struct trainee *t)
{
	return t->layout == DRILL_SIX_CHUNKS ? DRILL_TENSORS : 1;
}

static enum shard_status do_define(struct trainee *t, const struct drill_cmd *c)
{
	struct shard_spec s = SHARD_INIT(struct shard_spec);

	t->layout = c->layout;
	t->image = c->image ? c->image : SHARD_F32;
	s.name = c->layout == DRILL_HUGE ? "huge" : "m";
	s.tensors = c->layout == DRILL_HUGE ? huge : &tensors[from(t)];
	s.tensors_nr = tensors_nr(t);
	s.image = t->image;
	s.grad = c->grad ? c->grad : SHARD_F32;
	s.settings = c->text;
	return shard_define(t->client, &s, &t->model, &t->reply.created);
}

static enum shard_status do_write(struct trainee *t)
{
	for (uint32_t k = 0; k < tensors_nr(t); k++) {
		uint32_t tensor = from(t) + k;
		enum shard_status rc;
		float w[3200];

		for (uint32_t i = 0; i < numel[tensor]; i++)
			w[i] = start_weight(first_of(tensor) + i);
		if ((rc = shard_write(t->model, SHARD_MASTER, k, 0, numel[tensor], SHARD_F32, w)) !=
		    SHARD_OK)
			return rc;
	}
	return SHARD_OK;
}

static enum shard_status do_begin(struct trainee *t, int64_t timeout_ms)
{
	struct shard_begin_opts o = SHARD_INIT(struct shard_begin_opts);

	(void)timeout_ms;
	o.weight = t->reply.world.rank == 0 ? 5.0 - t->reply.world.world_size : 1.0;
	return shard_begin(t->model, &o, &t->reply.step);
}

static enum shard_status push_one(struct trainee *t, const struct drill_cmd *c, uint32_t k)
{
	uint32_t tensor = from(t) + k;
	enum shard_status rc;
	shard_ticket ticket;
	float g[3200], *arena;

	if (c->none >> k & 1)
		return shard_push_none(t->model, k);
	for (uint32_t i = 0; i < numel[tensor]; i++)
		g[i] = drill_gradient(t->reply.step.rank, t->reply.step.step,
				      first_of(tensor) + i) *
		       (float)t->reply.step.loss_scale;
	if (c->spoil && k == c->first)
		g[0] = c->bad;
	if ((t->reply.step.rank & 1) && c->grad == 0 &&
	    /* The gradient is written in place and pushed in two pieces. */
	    (arena = shard_grad(t->model, k)) != NULL) {
		uint32_t half = numel[tensor] / 2;

		memcpy(arena, g, numel[tensor] * sizeof(*g));
		if (half > 0 &&
		    (rc = shard_push(t->model, k, 0, half, NULL, SHARD_F32, 0, NULL)) != SHARD_OK)
			return rc;
		return shard_push(t->model, k, half, numel[tensor] - half, NULL, SHARD_F32, 0,
				  NULL);
	}
	rc = shard_push(t->model, k, 0, numel[tensor], g, SHARD_F32, c->grad ? SHARD_CAST : 0,
			&ticket);
	return rc == SHARD_OK ? shard_wait(t->model, ticket, LIMIT_MS) : rc;
}

static enum shard_status do_push(struct trainee *t, const struct drill_cmd *c)
{
	uint32_t count = c->count ? c->count : tensors_nr(t);
	enum shard_status rc = SHARD_OK;

	for (uint32_t k = c->first; k < c->first + count && k < tensors_nr(t) && rc == SHARD_OK;
	     k++)
		rc = push_one(t, c, k);
	return rc;
}

static enum shard_status do_result(struct trainee *t, int64_t timeout_ms)
{
	struct shard_result *r = &t->reply.result;
	enum shard_status rc;

	*r = SHARD_INIT(struct shard_result);
	rc = shard_result(t->model, t->ticket, timeout_ms, r);
	if ((rc == SHARD_OK || rc == SHARD_DIVERGED) && r->step < DRILL_STEPS) {
		t->shared->world_of[r->step] = r->world_size;
		t->shared->skipped[r->step] = r->outcome != SHARD_APPLIED;
	}
	return rc;
}

static enum shard_status do_read(struct trainee *t, const struct drill_cmd *c)
{
	uint64_t step = c->step;
	enum shard_status rc = SHARD_OK;

	for (uint32_t k = 0; k < tensors_nr(t) && rc == SHARD_OK; k++) {
		uint32_t tensor = from(t) + k;

		rc = shard_read(t->model, c->kind, k, 0, numel[tensor], SHARD_F32,
				t->shared->w + first_of(tensor), &step);
	}
	t->reply.value = step;
	return rc;
}

static void answer(struct trainee *t, enum shard_status rc);

static enum shard_status do_train(struct trainee *t, const struct drill_cmd *c)
{
	struct drill_cmd push = {.op = DRILL_PUSH, .grad = c->grad};
	bool told = c->notify == 0;

	t->ticket = 0;
	while (t->reply.world.step <= c->step &&
	       (c->count == 0 || t->reply.world.world_size != c->count)) {
		enum shard_status rc = do_begin(t, LIMIT_MS);

		if (rc == SHARD_OK)
			rc = do_push(t, &push);
		if (rc == SHARD_OK)
			rc = shard_commit(t->model, NULL);
		if (rc == SHARD_OK)
			rc = do_result(t, LIMIT_MS);
		if (rc != SHARD_OK && rc != SHARD_WORLD_CHANGED)
			return rc;
		if ((rc = shard_world_get(t->model, &t->reply.world)) != SHARD_OK)
			return rc;
		if (!told && t->reply.world.step > c->notify) {
			told = true;
			answer(t, SHARD_OK);
		}
	}
	return SHARD_OK;
}

static enum shard_status do_connect(struct trainee *t)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);

	o.address = t->address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	o.timeout_ms = pace_ms(10000);
	return shard_connect(&t->client, &o);
}

static enum shard_status do_cmd(struct trainee *t, const struct drill_cmd *c)
{
	int64_t ms = c->timeout_ms == 0 ? LIMIT_MS : c->timeout_ms < 0 ? 0 : c->timeout_ms;
	enum shard_status rc;

	switch (c->op) {
	case DRILL_CONNECT:
		return do_connect(t);
	case DRILL_DEFINE:
		return do_define(t, c);
	case DRILL_WRITE:
		return do_write(t);
	case DRILL_SEAL:
		return shard_seal(t->model, c->step);
	case DRILL_ATTACH:
		return shard_attach(t->client, c->text, &t->model);
	case DRILL_DETACH:
		shard_detach(&t->model);
		return SHARD_OK;
	case DRILL_JOIN:
		return shard_join(t->model, c->hint, ms, &t->reply.world);
	case DRILL_WORLD:
		return shard_world_get(t->model, &t->reply.world);
	case DRILL_LEAVE:
		return shard_leave(t->model, ms);
	case DRILL_BEGIN:
		return do_begin(t, ms);
	case DRILL_PUSH:
		return do_push(t, c);
	case DRILL_COMMIT:
		return shard_commit(t->model, &t->ticket);
	case DRILL_COMMIT_AND_DIE:
		rc = shard_commit(t->model, &t->ticket);
		kill(getpid(), rc == SHARD_OK ? SIGKILL : SIGABRT);
		return rc;
	case DRILL_SKIP:
		t->ticket = 0;
		return shard_vote_skip(t->model, c->text);
	case DRILL_ABANDON:
		t->ticket = 0;
		return shard_abandon(t->model, c->text);
	case DRILL_RESULT:
		return do_result(t, ms);
	case DRILL_READ:
		return do_read(t, c);
	case DRILL_TRAIN:
		return do_train(t, c);
	}
	return SHARD_BAD_ARG;
}

static void answer(struct trainee *t, enum shard_status rc)
{
	const char *why = t->reply.world.why;

	t->reply.ended_ns = clock_ns();
	t->reply.rc = rc;
	snprintf(t->reply.error, sizeof(t->reply.error), "%s", rc != SHARD_OK ? shard_error() : "");
	snprintf(t->reply.why, sizeof(t->reply.why), "%s", why ? why : "");
	t->reply.value = t->reply.value ? t->reply.value : t->ticket;
	t->reply.world.why = NULL; /* It belongs to the last call only. */
	if (send(t->fd, &t->reply, sizeof(t->reply), MSG_NOSIGNAL) != (ssize_t)sizeof(t->reply))
		_exit(3);
	t->reply.value = 0;
}

static int child(void *arg)
{
	struct trainee *t = arg;
	struct drill_cmd c;

	t->reply.world = SHARD_INIT(struct shard_world);
	t->reply.step = SHARD_INIT(struct shard_step);
	while (recv(t->fd, &c, sizeof(c), 0) == (ssize_t)sizeof(c)) {
		t->reply.began_ns = clock_ns();
		answer(t, do_cmd(t, &c));
	}
	shard_disconnect(&t->client);
	return 0;
}

/* --- the test's side --- */

struct drill *drill_new(struct drill_yard *y, const char *address)
{
	struct trainee t = {.address = address};
	struct drill *d = NULL;
	int fd[2];

	for (int i = 0; i < DRILL_MAX && d == NULL; i++)
		d = y->t[i].pid == 0 ? &y->t[i] : NULL;
	CHECK(d != NULL);
	if (d->shared == NULL)
		d->shared = mmap(NULL, sizeof(*d->shared), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(d->shared != MAP_FAILED &&
	      socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd) == 0);
	memset(d->shared, 0, sizeof(*d->shared));
	t.shared = d->shared;
	t.fd = fd[1];
	d->out = false;
	d->fd = fd[0];
	d->pid = proc_fork(child, &t);
	close(fd[1]);
	DRILL(d, SHARD_OK, .op = DRILL_CONNECT);
	return d;
}

void drill_send(struct drill *t, struct drill_cmd cmd)
{
	CHECK(t->pid > 0 && !t->out);
	if (cmd.op == DRILL_DEFINE)
		t->layout = cmd.layout;
	CHECK(send(t->fd, &cmd, sizeof(cmd), MSG_NOSIGNAL) == (ssize_t)sizeof(cmd));
	t->out = true;
}

struct drill_reply *drill_recv(struct drill *t, int ms)
{
	struct pollfd p = {.fd = t->fd, .events = POLLIN};

	CHECK(t->out);
	if (poll(&p, 1, pace_ms(ms)) != 1)
		fail_msg("trainer %d did not return within %d ms", (int)t->pid, ms);
	if (recv(t->fd, &t->last, sizeof(t->last), 0) != (ssize_t)sizeof(t->last))
		fail_msg("trainer %d has ended", (int)t->pid);
	t->out = false;
	return &t->last;
}

static void check_status(const struct drill *t, enum shard_status want)
{
	if (t->last.rc != want)
		fail_msg("trainer %d: %s: %s, expected %s", (int)t->pid, shard_name(t->last.rc),
			 t->last.error, shard_name(want));
}

struct drill_reply *drill_get(struct drill *t, enum shard_status want)
{
	drill_recv(t, QUIET_MS);
	check_status(t, want);
	return &t->last;
}

struct drill_reply *drill_do(struct drill *t, struct drill_cmd cmd)
{
	drill_send(t, cmd);
	return drill_recv(t, QUIET_MS);
}

struct drill_reply *drill_expect(struct drill *t, enum shard_status want, struct drill_cmd cmd)
{
	drill_do(t, cmd);
	check_status(t, want);
	return &t->last;
}

void drill_define(struct drill *t, const char *settings)
{
	struct drill_cmd c = {.op = DRILL_DEFINE};

	snprintf(c.text, sizeof(c.text), "%s", settings);
	drill_expect(t, SHARD_OK, c);
	if (!t->last.created)
		return;
	DRILL(t, SHARD_OK, .op = DRILL_WRITE);
	DRILL(t, SHARD_OK, .op = DRILL_SEAL);
}

struct drill *drill_joining(struct drill_yard *y, const char *address, int hint,
			    const char *settings)
{
	struct drill *t = drill_new(y, address);

	drill_define(t, settings);
	DRILL_SEND(t, .op = DRILL_JOIN, .hint = hint);
	return t;
}

void drill_asked(struct drill_yard *y, const struct drill *t)
{
	uint64_t by = pace_by(QUIET_MS / 1000);
	uint32_t seen = 0;
	char part[64];

	snprintf(part, sizeof(part), "pid=%d hint=", (int)t->pid);
	while (seen == 0) {
		for (int i = 0; i < y->cluster->nodes_nr; i++)
			seen += cluster_logged(y->cluster, i, part);
		if (seen == 0 && clock_ns() > by)
			fail_msg("no node has the join of trainer %d", (int)t->pid);
		(void)poll(NULL, 0, 2);
	}
}

static void gone(struct drill *t)
{
	close(t->fd);
	t->pid = 0;
	t->out = false;
}

uint64_t drill_kill(struct drill *t)
{
	uint64_t at = clock_ns();

	CHECK(t->pid > 0 && kill(t->pid, SIGKILL) == 0 && waitpid(t->pid, NULL, 0) == t->pid);
	gone(t);
	return at;
}

void drill_end(struct drill *t)
{
	CHECK(!t->out && shutdown(t->fd, SHUT_RDWR) == 0);
	proc_expect_exit(t->pid, 0, QUIET_MS);
	gone(t);
}

int drill_setup(void **state)
{
	*state = calloc(1, sizeof(struct drill_yard));
	return *state == NULL;
}

int drill_teardown(void **state)
{
	struct drill_yard *y = *state;

	for (int i = 0; i < DRILL_MAX; i++) {
		if (y->t[i].pid > 0)
			drill_kill(&y->t[i]);
		if (y->t[i].shared != NULL)
			munmap(y->t[i].shared, sizeof(*y->t[i].shared));
	}
	cluster_put_away(&y->cluster);
	free(y);
	return 0;
}

void drill_text(const char *text, const char *part)
{
	if (strstr(text, part) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", part, text);
}

static void check_kind(struct drill *t, const struct drill_truth *r, uint64_t step,
		       enum shard_kind kind)
{
	bool one = t->layout == DRILL_ONE_CHUNK;

	DRILL(t, SHARD_OK, .op = DRILL_READ, .kind = kind);
	assert_int_equal(t->last.value, step);
	for (uint32_t i = one ? first_of(1) : 0; i < (one ? first_of(2) : DRILL_NUMEL); i++)
		if (memcmp(&t->shared->w[i], &r->w[i], sizeof(float)) != 0)
			fail_msg("%s of step %lu, element %u: %a, expected %a",
				 kind == SHARD_IMAGE ? "image" : "master", (unsigned long)step, i,
				 (double)t->shared->w[i], (double)r->w[i]);
}

void drill_check(struct drill *t, const struct drill_truth *r, uint64_t step)
{
	check_kind(t, r, step, SHARD_MASTER);
	check_kind(t, r, step, SHARD_IMAGE);
}

void drill_replay(struct drill *t, uint64_t step, uint32_t otherwise)
{
	struct drill_truth r;

	drill_truth_init(&r);
	for (uint64_t s = 1; s <= step; s++)
		if (!t->shared->skipped[s])
			drill_truth_step(
				&r, s, t->shared->world_of[s] ? t->shared->world_of[s] : otherwise);
	drill_check(t, &r, step);
}

void drill_conf(struct cluster *c, int node, const char *lines)
{
	FILE *f = fopen(c->node[node].conf, "ae");

	CHECK(f != NULL && fputs(lines, f) >= 0 && fclose(f) == 0);
}

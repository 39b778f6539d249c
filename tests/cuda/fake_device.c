// SPDX-License-Identifier: Apache-2.0
/* The device of the driver library for tests: streams, events and memory. fake_cuda.c calls it with
 * the lock held. Each stream has a thread that does its operations in their order: it sleeps for a
 * while first. An event counts how often it was recorded, and which of these records were reached.
 */
#include "tests/cuda/fake_impl.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct fake fake = {.lock = PTHREAD_MUTEX_INITIALIZER,
		    .changed = PTHREAD_COND_INITIALIZER,
		    .devices = 1,
		    .read_only = true,
		    .memory_bytes = 1 << 30,
		    .delay_us = 300,
		    .seed = 1};

void fake_undefined(const char *what)
{
	fprintf(stderr, "fake_cuda: undefined in CUDA: %s\n", what);
	abort();
}

/* --- fake.streams --- */

static uint64_t rng(void)
{
	fake.seed = fake.seed * 6364136223846793005ull + 1442695040888963407ull;
	return fake.seed >> 33;
}

static void sleep_us(uint64_t us)
{
	struct timespec t = {.tv_sec = (time_t)(us / 1000000),
			     .tv_nsec = (long)(us % 1000000 * 1000)};

	if (us > 0)
		(void)nanosleep(&t, NULL);
}

/* Does an operation. Called with the lock, which it gives up to sleep. */
static void do_op(stream_t s, const struct op *o)
{
	uint64_t us = fake.delay_us ? rng() % fake.delay_us : 0;

	if (o->kind == OP_RECORD) {
		if (o->event->reached < o->count)
			o->event->reached = o->count;
		return;
	}
	if (o->kind == OP_WAIT)
		return;
	if (o->kind == OP_LAUNCH) {
		pthread_mutex_unlock(&fake.lock);
		sleep_us(us);
		pthread_mutex_lock(&fake.lock);
		if (s->ctx->error == 0 && !s->dropped)
			fake_run(s->ctx, o);
		return;
	}
	/* One half, and later the other. When a call has said that the context ended, nothing more
	 * is written: the driver stops the channels of a context before it tells of the error. */
	for (int half = 0; half < 2; half++) {
		size_t from = half ? o->bytes / 2 : 0, to = half ? o->bytes : o->bytes / 2;

		pthread_mutex_unlock(&fake.lock);
		sleep_us(half ? us / 2 : us);
		pthread_mutex_lock(&fake.lock);
		if (s->ctx->error != 0 || s->dropped)
			continue;
		if (o->kind == OP_SET)
			memset(o->to + from, o->byte, to - from);
		else
			memcpy(o->to + from, o->from + from, to - from);
	}
}

static bool can_do(stream_t s, const struct op *o)
{
	return !s->held && !s->ctx->held &&
	       (o->kind != OP_WAIT || o->event->reached >= o->count || s->ctx->error);
}

static void *stream_main(void *arg)
{
	stream_t s = arg;
	sigset_t faults; /* Those of kernels, which fake_launch.c explains. */

	sigemptyset(&faults);
	sigaddset(&faults, SIGSEGV);
	sigaddset(&faults, SIGBUS);
	pthread_sigmask(SIG_UNBLOCK, &faults, NULL);
	pthread_mutex_lock(&fake.lock);
	for (;;) {
		while (s->first == NULL || !can_do(s, s->first)) {
			if (s->first == NULL && !s->live) {
				pthread_mutex_unlock(&fake.lock);
				return NULL;
			}
			if (s->first == NULL)
				pthread_cond_wait(&s->wake, &fake.lock);
			else
				fake_wait();
		}
		struct op *o = s->first;

		if (s->ctx->error == 0 || o->kind == OP_RECORD) /* One that ended copies no more. */
			do_op(s, o);
		s->first = o->next;
		if (s->first == NULL)
			s->end = &s->first;
		free(o->args);
		free(o);
		if (fake.waiting > 0)
			pthread_cond_broadcast(&fake.changed);
	}
}

void fake_wait(void)
{
	fake.waiting++;
	pthread_cond_wait(&fake.changed, &fake.lock);
	fake.waiting--;
}

void fake_end_stream(stream_t s)
{
	s->live = false;
	pthread_cond_signal(&s->wake);
}

void fake_push(stream_t s, struct op op)
{
	struct op *o = malloc(sizeof(*o));

	if (o == NULL)
		abort();
	*o = op;
	o->next = NULL;
	*s->end = o;
	s->end = &o->next;
	pthread_cond_signal(&s->wake);
}

stream_t fake_stream_new(ctx_t ctx)
{
	stream_t s = calloc(1, sizeof(*s));

	if (s == NULL)
		abort();
	if (pthread_cond_init(&s->wake, NULL) != 0)
		abort();
	s->live = true;
	s->ctx = ctx;
	s->end = &s->first;
	s->all = fake.streams;
	fake.streams = s;
	if (pthread_create(&s->thread, NULL, stream_main, s) != 0)
		abort();
	pthread_detach(s->thread);
	return s;
}

/* The stream behind a handle, or NULL. */
stream_t fake_stream(stream_t handle, ctx_t ctx)
{
	if (handle == NULL) {
		if (ctx->legacy == NULL) {
			ctx->legacy = fake_stream_new(ctx);
			ctx->legacy->legacy = true;
		}
		return ctx->legacy;
	}
	for (stream_t s = fake.streams; s != NULL; s = s->all)
		if (s == handle && s->live && !s->legacy)
			return s->ctx == ctx ? s : NULL;
	return NULL;
}

event_t fake_event(event_t handle)
{
	for (event_t e = fake.events; e != NULL; e = e->all)
		if (e == handle && e->live)
			return e;
	return NULL;
}

/* --- memory --- */

struct memory *fake_memory(const void *at)
{
	for (struct memory *m = fake.memories; m != NULL; m = m->next)
		if ((const char *)at >= m->base && (const char *)at < m->base + m->bytes)
			return m;
	return NULL;
}

bool fake_overlaps(const char *base, size_t bytes)
{
	for (struct memory *m = fake.memories; m != NULL; m = m->next)
		if (base < m->base + m->bytes && m->base < base + bytes)
			return true;
	return false;
}

struct memory *fake_add(int kind, char *base, char *inside, size_t bytes)
{
	struct memory *m = calloc(1, sizeof(*m));

	if (m == NULL)
		abort();
	m->kind = kind;
	m->base = base;
	m->inside = inside;
	m->bytes = bytes;
	m->next = fake.memories;
	fake.memories = m;
	return m;
}

char *fake_inside(ctx_t ctx, ptr_t at, size_t bytes, int what)
{
	struct memory *m = fake_memory((void *)(uintptr_t)at);

	if (m == NULL || m->kind != DEVICE || bytes == 0 ||
	    bytes > m->bytes - (size_t)(at - (ptr_t)(uintptr_t)m->base))
		return NULL;
	if ((m->access[ctx->device] & what) != what)
		fake_undefined("a copy uses device memory without access to it");
	return m->inside + (at - (ptr_t)(uintptr_t)m->base);
}

static bool within(const struct memory *m, const char *at)
{
	return m->kind == DEVICE && at >= m->inside && at < m->inside + m->bytes;
}

/* True if an operation that is not done uses it. What a kernel uses is found when it runs. */
bool fake_in_use(const struct memory *m)
{
	for (stream_t s = fake.streams; s != NULL; s = s->all)
		for (struct op *o = s->first; o != NULL && s->ctx->error == 0 && !s->dropped;
		     o = o->next)
			if (o->kind <= OP_SET && (within(m, o->from) || within(m, o->to) ||
						  (o->host != NULL && fake_memory(o->host) == m)))
				return true;
	return false;
}

void fake_remove(struct memory *m)
{
	struct memory **at = &fake.memories;

	while (*at != m)
		at = &(*at)->next;
	*at = m->next;
	free(m);
}

/* How a range of this process is mapped: 0 not at all, 1 somewhere read-only, 2 writable. */
int fake_mapped(const char *base, size_t bytes)
{
	FILE *f = fopen("/proc/self/maps", "re");
	const char *at = base;
	unsigned long from, to;
	char mode[8], line[512];
	int least = 2;

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) != 3 || (unsigned long)at >= to)
			continue;
		if ((unsigned long)at < from || mode[0] != 'r')
			break;
		least = mode[1] == 'w' ? least : 1;
		at = (const char *)to;
		if (at >= base + bytes)
			break;
	}
	if (f)
		fclose(f);
	return at >= base + bytes ? least : 0;
}

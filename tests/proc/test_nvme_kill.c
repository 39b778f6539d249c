// SPDX-License-Identifier: Apache-2.0
/* Kills a process with SIGKILL while it applies one record after the other to chunks whose state is
 * in a file, with reads, writes and updates under way. The memory of the store and of the tiles
 * outlives it, as with warm restart. The next process takes both up, finishes the record that was
 * being applied, and goes on. Every chunk has the bits of the same records applied in main memory,
 * by io_uring and by threads. NVME_KILLS says how often (make nvme-kill: 1000 times). */
#include "base/check.h"
#include "base/clock.h"
#include "node/worker.h"
#include "store/away.h"
#include "store/store_missing.h"
#include "store/tier_nvme.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
	CE = 32768,
	CHUNKS = 12,
	AWAY = 9, /* 75 %. */
	CACHE = 4,
	UNDOS = 4,
	IN_HAND = 6,
	REGION_BYTES = 16 << 20,
};

static const struct shard_tensor tensors[] = {
	{.name = "a", .ndim = 1, .shape = {CHUNKS * CE - 1000}}};

/* What outlives the processes. */
struct shared {
	_Atomic uint64_t stamp; /* Of the record that is being applied, or was. */
	_Atomic uint64_t whole; /* It is applied to all chunks. */
	_Atomic uint64_t starts, reads, writes, finished;
	_Atomic uint64_t version[CHUNKS * CE / TILE_ELEMS];
	struct tile_undo undo[UNDOS];
	float seen[CHUNKS][3][CE]; /* By the process that looks. */
	_Alignas(4096) uint8_t region[REGION_BYTES];
};

struct life {
	struct shared *s;
	char dir[64];
	bool threads, there;
	struct layout *layout;
	uint16_t owner[CHUNKS];
	struct store *store;
	struct tiles tiles;
	_Atomic uint8_t used[UNDOS];
	uint32_t first[CHUNKS];
	uv_loop_t loop;
	struct worker_pool *pool;
	struct ring *ring;
	struct tier *tier;
	uint16_t *grad; /* [CHUNKS * CE] Of the record in hand. */
	struct optim_args args;
	uint8_t zero[CHUNKS * 2];
	uint32_t next, done, failed;
};

static enum shard_status map(void *arg, enum store_region what, uint64_t bytes, uint64_t room,
			     struct shm *m, struct err *e)
{
	struct life *l = arg;

	(void)room;
	if (bytes == 0)
		return SHARD_OK;
	if (what != STORE_STATE)
		return shm_private(m, bytes, SHM_HUGE_NO, e);
	CHECK(bytes <= REGION_BYTES);
	*m = (struct shm){.fd = -1, .base = l->s->region, .bytes = bytes};
	return SHARD_OK;
}

static void grads(struct life *l, uint64_t stamp)
{
	const struct optim_row *row = optim_find("adamw");
	double h[HYPER_NR];

	for (uint32_t i = 0; i < CHUNKS * CE; i++) {
		uint32_t x = (uint32_t)(i * 2654435761u + stamp * 104729u);

		l->grad[i] = (uint16_t)(0x3a00 | (x >> 25) | (x >> 8 & 0x8000));
	}
	optim_defaults(row, h);
	optim_args_set(&l->args, row, h, stamp > 0 ? stamp : 1, 1);
}

static void of(void *arg, uint32_t chunk, struct tier_apply *a)
{
	struct life *l = arg;

	*a = (struct tier_apply){.chunk = chunk,
				 .stamp = l->s->stamp,
				 .args = &l->args,
				 .zero = l->zero,
				 .grad = (const uint8_t *)(l->grad + (size_t)chunk * CE)};
}

static void make_store(struct life *l, const struct store_park *park)
{
	struct store_conf conf = {.name = "m",
				  .optim = optim_find("adamw"),
				  .grad = SHARD_BF16,
				  .nodes_nr = 1,
				  .local_world = 1,
				  .away_share = park != NULL ? 75 : 0,
				  .away_cache = CACHE,
				  .warm = park,
				  .huge = SHM_HUGE_NO};
	struct err e;

	CHECK(layout_init(&l->layout, tensors, 1, 1, SHARD_BF16, CE, &e) == SHARD_OK);
	CHECK(l->layout->chunks_nr == CHUNKS && l->layout->segments_nr <= sizeof(l->zero));
	conf.layout = l->layout;
	conf.place = place_of(l->owner, NULL, CHUNKS);
	CHECK(store_init(&l->store, &conf, &e) == SHARD_OK);
	l->grad = calloc(CHUNKS * CE, sizeof(*l->grad));
	CHECK(l->grad != NULL);
}

static void nothing(void *arg)
{
	(void)arg;
}

static void lost(void *arg, const char *why)
{
	(void)arg;
	fprintf(stderr, "lost: %s\n", why);
	_exit(10);
}

static void make_tier(struct life *l)
{
	struct ring_file f = {.dir = l->dir,
			      .name = "f",
			      .bytes = tier_nvme_bytes(l->store),
			      .there = l->there,
			      .fence_ns = 60ull * 1000 * 1000 * 1000};
	uint32_t nr = store_away_buffers(l->store);
	struct iovec iov[CACHE];
	struct ring_conf ring = {
		.buffer = iov, .buffers_nr = nr, .entries = nr, .threads = l->threads};
	struct worker_conf pool = {.threads = 2, .jobs_max = 64};
	struct tier_conf conf = {.store = l->store, .isa = isa_best(), .tiles = &l->tiles};
	struct tier_nvme_conf nvme = {
		.id = 77, .there = l->there, .hold = nothing, .release = nothing, .lost = lost};
	struct err e = {.text = ""};

	CHECK(store_away_nr(l->store) == AWAY && nr == CACHE);
	for (uint32_t i = 0; i < nr; i++)
		iov[i] = (struct iovec){store_away_buffer(l->store, i), store_away_slot(l->store)};
	if (ring_file_open(&ring.fd, &f, &e) != SHARD_OK)
		fprintf(stderr, "%s\n", e.text);
	CHECK(e.text[0] == 0);
	CHECK(ring_open(&l->ring, &ring, &e) == SHARD_OK);
	CHECK(uv_loop_init(&l->loop) == 0 && ring_start(l->ring, &l->loop, &e) == SHARD_OK);
	CHECK(worker_init(&l->pool, &pool, &l->loop, &e) == SHARD_OK);
	conf.exec = worker_exec(l->pool);
	nvme.ring = l->ring;
	for (uint32_t c = 0, at = 0; c < CHUNKS; at += tile_count(l->layout, c++))
		l->first[c] = at;
	l->tiles = (struct tiles){.version = l->s->version,
				  .first = l->first,
				  .undo = l->s->undo,
				  .used = l->used,
				  .undo_nr = UNDOS};
	if (tier_nvme_open(&l->tier, &conf, &nvme, &e) != SHARD_OK)
		fprintf(stderr, "%s\n", e.text);
	CHECK(l->tier != NULL);
}

/* --- the process that is killed --- */

static void fill(struct life *l);

static void applied(void *owner, uint64_t tag, const struct tier_result *r)
{
	struct life *l = owner;

	(void)tag;
	(void)r;
	l->done++;
	fill(l);
}

static void fill(struct life *l)
{
	while (l->next < CHUNKS && l->next - l->done < IN_HAND) {
		struct tier_call call = {.done = applied, .owner = l};
		struct tier_apply a;

		of(l, l->next, &a);
		if (l->tier->row->apply(l->tier, &a, &call) != SHARD_OK)
			return;
		l->next++;
	}
}

static void record(struct life *l)
{
	struct tier_nvme_count before = tier_nvme_count(l->tier), after;

	l->next = l->done = 0;
	tier_ahead(l->tier);
	fill(l);
	while (l->done < CHUNKS)
		uv_run(&l->loop, UV_RUN_ONCE);
	after = tier_nvme_count(l->tier);
	l->s->reads += after.read_bytes - before.read_bytes;
	l->s->writes += after.written_bytes - before.written_bytes;
}

static void live(struct life *l, int told)
{
	struct store_park park = {.map = map, .arg = l, .there = l->there};
	struct shared *s = l->s;
	uint64_t kept = 0;
	bool said = false;
	struct err e;

	make_store(l, &park);
	make_tier(l);
	s->starts++;
	grads(l, s->stamp);
	if (s->stamp > 0 && s->whole < s->stamp) {
		if (l->tier->row->repair(l->tier, s->stamp, true, of, l, &kept, &e) != SHARD_OK)
			lost(NULL, e.text);
		record(l); /* The chunks that have it are left alone. */
		s->finished++;
		s->whole = s->stamp;
	} else if (s->stamp > 0 &&
		   l->tier->row->repair(l->tier, s->stamp, false, of, l, &kept, &e) != SHARD_OK) {
		lost(NULL, e.text);
	}
	for (;;) {
		grads(l, s->stamp + 1);
		s->stamp++;
		/* However slow the machine is, each one that is waited for begins a record. */
		if (!said && write(told, "x", 1) != 1)
			_exit(1);
		said = true;
		record(l);
		s->whole = s->stamp;
	}
}

/* --- who looks --- */

struct pinned {
	struct tier_pin pin;
	bool there;
};

static void pinned(struct tier_pin *p)
{
	((struct pinned *)p->owner)->there = true;
}

/* In a process of its own: takes up what is there and copies it. */
static void look(struct life *l)
{
	struct store_park park = {.map = map, .arg = l, .there = true};
	struct shared *s = l->s;
	uint64_t kept = 0;
	struct err e;

	l->there = true;
	make_store(l, &park);
	make_tier(l);
	grads(l, s->stamp);
	if (l->tier->row->repair(l->tier, s->stamp, s->whole < s->stamp, of, l, &kept, &e) !=
	    SHARD_OK)
		lost(NULL, e.text);
	if (s->whole < s->stamp) {
		record(l);
		s->finished++;
	}
	s->whole = s->stamp;
	for (uint32_t c = 0; c < CHUNKS; c++) {
		struct pinned p = {.pin = {.chunk = c, .done = pinned}};
		size_t bytes = layout_chunk_elems(l->layout, c) * sizeof(float);

		p.pin.owner = &p;
		p.there = tier_pin(l->tier, &p.pin);
		while (!p.there)
			uv_run(&l->loop, UV_RUN_ONCE);
		memcpy(s->seen[c][0], store_master(l->store, c), bytes);
		for (uint32_t i = 0; i < 2; i++)
			memcpy(s->seen[c][i + 1], store_state(l->store, c, i), bytes);
		tier_unpin(l->tier, &p.pin);
	}
	_exit(0);
}

static void ended_well(pid_t child)
{
	int status;

	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* Weights, before any record. */
static float weight(uint32_t i)
{
	return (float)(i % 101) * 0.01f - 0.5f;
}

static void write_weights(struct store *st, const struct layout *l, uint32_t c)
{
	store_clear_chunk(st, c);
	for (uint32_t i = 0; i < layout_chunk_elems(l, c); i++)
		store_master(st, c)[i] = weight(c * CE + i);
}

static void begin(struct life *l)
{
	struct store_park park = {.map = map, .arg = l};

	make_store(l, &park);
	make_tier(l);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		struct pinned p = {.pin = {.chunk = c, .writes = true, .done = pinned}};

		p.pin.owner = &p;
		p.there = tier_pin(l->tier, &p.pin);
		while (!p.there)
			uv_run(&l->loop, UV_RUN_ONCE);
		write_weights(l->store, l->layout, c);
		tier_unpin(l->tier, &p.pin);
	}
	_exit(0); /* What is dirty is in memory that stays. */
}

/* The same records in main memory. */
struct reference {
	struct life l;
	uint64_t stamp;
};

static void catch_up(struct reference *r, uint64_t to)
{
	struct life *l = &r->l;

	for (; r->stamp < to; r->stamp++) {
		grads(l, r->stamp + 1);
		for (uint32_t c = 0; c < CHUNKS; c++) {
			struct tier_call call = {.done = applied, .owner = l, .here = true};
			struct tier_apply a = {.chunk = c,
					       .args = &l->args,
					       .zero = l->zero,
					       .grad = (const uint8_t *)(l->grad + (size_t)c * CE)};

			l->next = CHUNKS; /* applied() begins nothing. */
			assert_int_equal(l->tier->row->apply(l->tier, &a, &call), SHARD_OK);
		}
	}
}

static void make_reference(struct reference *r)
{
	struct worker_conf pool = {.threads = 1, .jobs_max = 4};
	struct tier_conf conf = {.isa = isa_best()};
	struct err e;

	make_store(&r->l, NULL);
	CHECK(uv_loop_init(&r->l.loop) == 0);
	CHECK(worker_init(&r->l.pool, &pool, &r->l.loop, &e) == SHARD_OK);
	conf.store = r->l.store;
	conf.exec = worker_exec(r->l.pool);
	CHECK(tier_ram_open(&r->l.tier, &conf, &e) == SHARD_OK);
	for (uint32_t c = 0; c < CHUNKS; c++)
		write_weights(r->l.store, r->l.layout, c);
}

static void closed(void *arg)
{
	(void)arg;
}

static void free_reference(struct reference *r)
{
	tier_close(&r->l.tier);
	worker_close(&r->l.pool, closed, NULL);
	uv_run(&r->l.loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&r->l.loop), 0);
	store_free(&r->l.store);
	layout_free(&r->l.layout);
	free(r->l.grad);
}

static uint32_t wrong(const struct shared *s, const struct life *ref)
{
	uint32_t nr = 0;

	for (uint32_t c = 0; c < CHUNKS; c++) {
		size_t bytes = layout_chunk_elems(ref->layout, c) * sizeof(float);

		nr += memcmp(s->seen[c][0], store_master(ref->store, c), bytes) != 0 ||
		      memcmp(s->seen[c][1], store_state(ref->store, c, 0), bytes) != 0 ||
		      memcmp(s->seen[c][2], store_state(ref->store, c, 1), bytes) != 0;
	}
	return nr;
}

static void kill_one(struct life *l, uint32_t *seed)
{
	int told[2], status;
	uint64_t until;
	pid_t child;
	char x;

	assert_int_equal(pipe(told), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		live(l, told[1]);
	(void)close(told[1]);
	*seed = *seed * 1664525 + 1013904223;
	/* Some die before they have finished what the one before was doing. */
	if ((*seed >> 28) != 0)
		assert_int_equal(read(told[0], &x, 1), 1);
	/* A random moment. Nothing depends on how long it is. */
	for (until = clock_ns() + (*seed >> 8) % 40000000; clock_ns() < until;)
		;
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	(void)close(told[0]);
}

static void kills(bool threads, uint32_t rounds)
{
	struct life l = {.dir = "build/nvme-kill-XXXXXX", .threads = threads};
	struct reference ref = {.stamp = 0};
	uint32_t seed = threads ? 3 : 1;
	char path[80];
	pid_t child;

	assert_non_null(mkdtemp(l.dir));
	l.s = mmap(NULL, sizeof(*l.s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(l.s != MAP_FAILED);
	if ((child = fork()) == 0)
		begin(&l);
	ended_well(child);
	l.there = true;
	make_reference(&ref);
	for (uint32_t i = 0; i < rounds; i++) {
		kill_one(&l, &seed);
		catch_up(&ref, l.s->stamp);
		if ((child = fork()) == 0)
			look(&l);
		ended_well(child);
		assert_int_equal(wrong(l.s, &ref.l), 0);
	}
	print_message("%u kills by %s, %lu records, %lu finished after a kill, %.1f MiB read, %.1f "
		      "MiB written, 0 wrong chunks\n",
		      rounds, threads ? "threads" : "io_uring", (unsigned long)l.s->stamp,
		      (unsigned long)l.s->finished, (double)l.s->reads / (1 << 20),
		      (double)l.s->writes / (1 << 20));
	assert_true(l.s->reads > 0 && l.s->writes > 0 && l.s->stamp > rounds / 2);
	free_reference(&ref);
	assert_int_equal(munmap(l.s, sizeof(*l.s)), 0);
	snprintf(path, sizeof(path), "%s/f", l.dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(l.dir), 0);
}

static uint32_t rounds(uint32_t otherwise)
{
	const char *nr = getenv("NVME_KILLS");

	return nr != NULL ? (uint32_t)atoi(nr) : otherwise;
}

static void by_io_uring(void **state)
{
	(void)state;
	kills(false, rounds(24));
}

static void by_threads(void **state)
{
	(void)state;
	kills(true, rounds(12));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_io_uring),
		cmocka_unit_test(by_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests memory that comes and goes with chunks. Random chunks are taken and given on private
 * memory, memfds and a tmpfs. No other chunk changes a bit, the pages that exist are those that are
 * counted, a full tmpfs is an error that leaves nothing, and the next start finds everything. */
#include "base/check.h"
#include "lib/sanitized.h"
#include "store/budget.h"
#include "store/room.h"
#include "store/store_missing.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum kind { PRIVATE, MEMFD, TMPFS };
enum { CHUNKS = 13, NODES = 4, MORE_NODES = 8, SELF = 1, ROUNDS = SANITIZED ? 40 : 400 };

static const char *const names[STORE_REGIONS] = {"state", "sums", "slots", "images"};

struct bench {
	enum kind kind;
	struct layout *layout;
	uint16_t primary[CHUNKS];
	uint64_t holders[CHUNKS];
	uint8_t first[CHUNKS / 8 + 1];
	bool held[CHUNKS];
	uint32_t mark[CHUNKS]; /* What each of its words holds. */
	struct store_conf conf;
	struct store_park park;
	struct store *store;
	int dir, fd[STORE_REGIONS];
	char path[64];
	uint64_t random, bytes;
	uint64_t of[STORE_REGIONS]; /* Of .bytes. */
};

static uint32_t draw(struct bench *b, uint32_t below)
{
	b->random = b->random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(b->random >> 33) % below;
}

static enum shard_status map(void *arg, enum store_region what, uint64_t bytes, uint64_t room,
			     struct shm *m, struct err *e)
{
	struct bench *b = arg;
	enum shard_status st;

	if (b->kind == MEMFD && b->park.there)
		return shm_again(m, fcntl(b->fd[what], F_DUPFD_CLOEXEC, 3), 1, bytes, room,
				 b->conf.huge, e);
	if (b->kind == MEMFD) {
		st = shm_keep(m, names[what], bytes, room, b->conf.huge, e);
		b->fd[what] = st == SHARD_OK ? fcntl(m->fd, F_DUPFD_CLOEXEC, 3) : -1;
		return st;
	}
	if (b->park.there)
		return shm_again(m, openat(b->dir, names[what], O_RDWR | O_CLOEXEC), 0, bytes, room,
				 b->conf.huge, e);
	return shm_file(m, b->dir, names[what], bytes, room, b->conf.huge, e);
}

static struct bench *bench(enum kind kind, uint32_t ce, uint32_t local, uint32_t staleness,
			   uint32_t seed)
{
	struct shard_tensor t[3] = {
		{.name = "a", .ndim = 1, .shape = {4ull * ce}},
		{.name = "f", .flags = SHARD_FROZEN, .ndim = 1, .shape = {3ull * ce}},
		{.name = "b",
		 .ndim = 1,
		 .shape = {5ull * ce + 448}}}; /* Its last chunk is short. */
	struct bench *b = calloc(1, sizeof(*b));
	struct err e;

	CHECK(b);
	/* Then it lies behind the short chunk. */
	t[1].image = seed % 2 == 0 ? SHARD_F32 : 0;
	*b = (struct bench){.kind = kind, .random = seed, .dir = -1};
	assert_int_equal(layout_init(&b->layout, t, 3, 1, SHARD_BF16, ce, &e), SHARD_OK);
	assert_int_equal(b->layout->chunks_nr, CHUNKS);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		b->held[c] = draw(b, 3) > 0;
		b->primary[c] = 0;
		b->holders[c] = 1u | (unsigned)b->held[c] << SELF;
		b->first[c / 8] |= (uint8_t)((unsigned)b->held[c] << c % 8);
	}
	b->park = (struct store_park){.map = map, .arg = b};
	b->conf = (struct store_conf){.name = "gpt",
				      .layout = b->layout,
				      .optim = optim_find("adamw"),
				      .grad = SHARD_BF16,
				      .place = place_of(b->primary, b->holders, CHUNKS),
				      .self = SELF,
				      .nodes_nr = NODES,
				      .local_world = local,
				      .staleness = staleness,
				      .huge = SHM_HUGE_NO,
				      .warm = kind == PRIVATE ? NULL : &b->park};
	return b;
}

static void on_tmpfs(struct bench *b, const char *size)
{
	snprintf(b->path, sizeof(b->path), "/tmp/test_room.XXXXXX");
	CHECK(mkdtemp(b->path));
	if (size && mount("tmpfs", b->path, "tmpfs", 0, size) != 0) {
		rmdir(b->path);
		skip(); /* Only root may mount. */
	}
	b->dir = open(b->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(b->dir >= 0);
}

static void open_store(struct bench *b)
{
	struct err e = {.text = ""};

	b->conf.place = place_of(b->primary, b->holders, CHUNKS);
	if (store_init(&b->store, &b->conf, &e) != SHARD_OK)
		fail_msg("%s", e.text);
}

static uint64_t pages_of(struct bench *b, enum store_region what)
{
	const struct shm *m = store_region(b->store, what);
	uint64_t bytes = 0;
	struct stat st;

	if (m->fd >= 0) {
		assert_int_equal(fstat(m->fd, &st), 0);
		return (uint64_t)st.st_blocks * 512;
	}
	for (int room = 0; room < 2; room++) {
		size_t nr = (room ? m->room_bytes : m->bytes) / 4096;
		unsigned char *in = malloc(nr + 1);

		CHECK(in);
		if (nr > 0)
			assert_int_equal(mincore(room ? m->room : m->base, nr * 4096, in), 0);
		for (size_t i = 0; i < nr; i++)
			bytes += in[i] & 1 ? 4096 : 0;
		free(in);
	}
	return bytes;
}

/* The pages that all regions have. */
static uint64_t pages(struct bench *b)
{
	uint64_t bytes = 0;

	for (int w = 0; w < STORE_REGIONS; w++)
		bytes += pages_of(b, (enum store_region)w);
	return bytes;
}

static void add(struct bench *b, const struct store_bytes *more)
{
	b->bytes += more->all;
	for (int w = 0; w < STORE_REGIONS; w++)
		b->of[w] += more->of[w];
}

/* Writes or looks at each byte that belongs to a chunk. */
static void all_of(struct bench *b, uint32_t c, bool write)
{
	size_t n = layout_chunk_elems(b->layout, c), image = layout_image_bytes(b->layout, c, 1);
	struct {
		void *at;
		size_t bytes;
	} part[4 + MORE_NODES + 2] = {{store_master(b->store, c), 4 * n},
				      {store_state(b->store, c, 0), 4 * n},
				      {store_state(b->store, c, 1), 4 * n},
				      {store_sum(b->store, c), 2 * n}};
	uint32_t k = 4;

	for (uint16_t node = 0; node < b->conf.nodes_nr; node++)
		if (node != SELF)
			part[k++].at = store_slot(b->store, c, node);
	for (uint32_t i = 4; i < k; i++)
		part[i].bytes = 2 * n;
	for (uint32_t i = 0; i < k; i++) {
		uint32_t *at = part[i].at, want = b->mark[c] * 64 + i;
		enum store_region region;
		uint64_t offset;

		for (size_t w = 0; at && w < part[i].bytes / 4; w++)
			if (write)
				at[w] = want;
			else if (at[w] != want)
				fail_msg("chunk %u, array %u, word %zu", c, i, w);
		if (i < 3)
			continue;
		assert_true(store_where(b->store, at, &region, &offset));
		assert_ptr_equal(store_at(b->store, region, offset, part[i].bytes), at);
	}
	for (uint32_t s = 0; s <= b->conf.staleness; s++) {
		if (write) {
			memset(store_image(b->store, s, c), (int)(b->mark[c] + s), image);
			store_image_keep(b->store, s, s, c);
		} else if (b->kind != PRIVATE && b->conf.staleness > 0) {
			memset(store_image(b->store, s, c), 0, image);
			store_image_again(b->store, s, s, c);
			for (size_t i = 0; i < image; i++)
				assert_int_equal(((uint8_t *)store_image(b->store, s, c))[i],
						 (uint8_t)(b->mark[c] + s));
		}
	}
}

static void look(struct bench *b)
{
	uint32_t owned = 0;

	for (uint32_t c = 0; c < CHUNKS; c++) {
		assert_int_equal(store_holds(b->store, c), b->held[c]);
		owned += b->held[c];
		if (b->held[c])
			all_of(b, c, false);
	}
	assert_int_equal(store_owned(b->store), owned);
	assert_int_equal(pages(b), b->bytes);
}

static void fill(struct bench *b, uint32_t c)
{
	b->mark[c] = 1 + draw(b, 1u << 20);
	all_of(b, c, true);
}

static void hold(struct bench *b, uint32_t c, bool on)
{
	b->held[c] = on;
	b->holders[c] = 1u | (unsigned)on << SELF;
}

/* Takes or gives a few chunks. */
static void move(struct bench *b)
{
	uint32_t chunk[CHUNKS], nr = 0;
	struct store_room r;

	for (uint32_t i = 1 + draw(b, 3); i > 0; i--) {
		uint32_t c = draw(b, CHUNKS);

		if (b->held[c]) {
			struct store_bytes back = {.all = 0};

			store_room_give(b->store, c, &back);
			b->bytes -= back.all;
			for (int w = 0; w < STORE_REGIONS; w++)
				b->of[w] -= back.of[w];
			hold(b, c, false);
			nr = 0;
			break;
		}
		for (uint32_t k = 0; k < nr; k++)
			c = chunk[k] == c ? CHUNKS : c;
		if (c < CHUNKS)
			chunk[nr++] = c;
	}
	if (nr == 0)
		return;
	store_room_plan(&r, b->store, chunk, nr);
	assert_int_equal(r.need.parked, b->kind == PRIVATE ? 0 : r.need.all);
	store_room_make(&r);
	assert_int_equal(r.e.status, SHARD_OK);
	if (draw(b, 4) == 0) {
		store_room_drop(&r);
		return;
	}
	store_room_take(b->store, &r);
	add(b, &r.need);
	for (uint32_t i = 0; i < nr; i++) {
		assert_true(store_void(b->store, chunk[i]));
		hold(b, chunk[i], true);
		fill(b, chunk[i]);
	}
}

/* More nodes get slots in each chunk that is held. */
static void grow(struct bench *b)
{
	struct store_nodes r;
	uint16_t nodes = (uint16_t)(b->conf.nodes_nr + 1 + draw(b, 2));

	if (nodes > MORE_NODES)
		return;
	store_nodes_plan(&r, b->store, nodes);
	assert_int_equal(r.need.parked, b->kind == PRIVATE ? 0 : r.need.all);
	store_nodes_make(&r);
	assert_int_equal(r.e.status, SHARD_OK);
	if (draw(b, 4) == 0) {
		store_nodes_drop(&r);
		return;
	}
	store_nodes_take(b->store, &r);
	assert_int_equal(store_nodes(b->store), nodes);
	b->conf.nodes_nr = nodes;
	b->bytes += r.need.all;
	for (int w = 0; w < STORE_REGIONS; w++)
		b->of[w] += r.need.of[w];
	for (uint32_t c = 0; c < CHUNKS; c++)
		if (b->held[c])
			fill(b, c);
}

static void end(struct bench *b)
{
	store_free(&b->store);
	for (int w = 0; w < STORE_REGIONS; w++) {
		if (b->fd[w] > 0)
			close(b->fd[w]);
		if (b->dir >= 0)
			(void)unlinkat(b->dir, names[w], 0);
	}
	if (b->dir >= 0)
		close(b->dir);
	if (b->path[0]) {
		(void)umount(b->path);
		(void)rmdir(b->path);
	}
	layout_free(&b->layout);
	free(b);
}

/* The next start: the tables have changed, and the first chunks are those of the memory. */
static void again(struct bench *b)
{
	struct budget_need need;
	struct store_room r;
	uint32_t c = draw(b, CHUNKS);

	if (!b->held[c]) { /* Memory that was made, and that no view gave a use before the kill. */
		store_room_plan(&r, b->store, &c, 1);
		store_room_make(&r);
		assert_int_equal(r.e.status, SHARD_OK);
	}
	store_free(&b->store);
	b->park.there = true;
	b->conf.first = b->first;
	b->conf.first_nodes = NODES;
	open_store(b);
	budget_need(&need, &b->conf);
	assert_true(need.parked >= b->bytes);
	look(b);
}

static void run(enum kind kind, uint32_t ce, uint32_t local, uint32_t staleness, uint32_t seed)
{
	struct bench *b = bench(kind, ce, local, staleness, seed);

	if (kind == TMPFS)
		on_tmpfs(b, "size=1g");
	open_store(b);
	for (int w = 0; w < STORE_REGIONS; w++) /* At first it is what it always was. */
		b->bytes += b->of[w] = store_region(b->store, (enum store_region)w)->bytes;
	for (uint32_t c = 0; c < CHUNKS; c++)
		if (b->held[c])
			fill(b, c);
	look(b);
	for (uint32_t i = 0; i < (ce > 4096 ? ROUNDS / 20 : ROUNDS); i++) {
		move(b);
		if (draw(b, 16) == 0)
			grow(b);
		look(b);
		for (int w = 0; w < STORE_REGIONS; w++)
			assert_int_equal(pages_of(b, (enum store_region)w), b->of[w]);
		if (kind != PRIVATE && i % 16 == 0)
			again(b);
	}
	end(b);
}

static void all_kinds(uint32_t ce)
{
	uint32_t seed = 0;

	for (int kind = PRIVATE; kind <= TMPFS; kind++)
		for (uint32_t local = 1; local <= 2; local++)
			for (uint32_t staleness = 0; staleness <= 1; staleness++)
				run((enum kind)kind, ce, local, staleness, ++seed);
}

static void small_chunks(void **state)
{
	(void)state;
	all_kinds(1024);
}

static void large_chunks(void **state)
{
	(void)state;
	all_kinds(1u << 17);
}

/* Chunks are taken until the tmpfs is full. */
static void full(void **state)
{
	struct bench *b = bench(TMPFS, 1u << 16, 1, 0, 3);
	uint32_t c, failed = 0;
	struct store_room r;

	(void)state;
	for (c = 0; c < CHUNKS; c++)
		hold(b, c, c == 0);
	on_tmpfs(b, "size=9m");
	open_store(b);
	b->bytes = pages(b);
	fill(b, 0);
	for (c = 1; c < CHUNKS; c++) {
		store_room_plan(&r, b->store, &c, 1);
		store_room_make(&r);
		if (r.e.status == SHARD_OK) {
			store_room_take(b->store, &r);
			b->bytes += r.need.all;
			hold(b, c, true);
			fill(b, c);
		} else {
			assert_int_equal(r.e.status, SHARD_BUDGET);
			failed++;
		}
		look(b);
	}
	assert_in_range(failed, 1, CHUNKS - 2);
	end(b);
}

/* Nodes come until the tmpfs is full. */
static void full_of_nodes(void **state)
{
	struct bench *b = bench(TMPFS, 1u << 16, 1, 0, 3);
	struct store_nodes r;
	uint32_t failed = 0;

	(void)state;
	for (uint32_t c = 0; c < CHUNKS; c++)
		hold(b, c, c < 2);
	on_tmpfs(b, "size=9m");
	open_store(b);
	b->bytes = pages(b);
	fill(b, 0);
	for (uint16_t nodes = NODES + 1; nodes <= CORE_NODES_MAX; nodes++) {
		store_nodes_plan(&r, b->store, nodes);
		store_nodes_make(&r);
		if (r.e.status == SHARD_OK && nodes <= MORE_NODES) {
			store_nodes_take(b->store, &r);
			b->conf.nodes_nr = nodes;
			b->bytes += r.need.all;
			for (uint32_t c = 0; c < CHUNKS; c++)
				if (b->held[c])
					fill(b, c);
		} else if (r.e.status == SHARD_OK) {
			store_nodes_drop(&r);
		} else {
			assert_int_equal(r.e.status, SHARD_BUDGET);
			failed++;
		}
		look(b);
	}
	assert_in_range(failed, 1, CORE_NODES_MAX - NODES - 2);
	end(b);
}

/* What a device has registered keeps its pages, and comes back without any. */
static void pinned(void **state)
{
	struct bench *b = bench(PRIVATE, 4096, 1, 0, 9);
	struct store_bytes back = {.all = 0};
	struct store_room r;
	uint32_t c = 0;

	(void)state;
	hold(b, 0, true);
	b->first[0] |= 1;
	open_store(b);
	b->bytes = pages(b);
	store_room_pin(b->store);
	assert_true(store_room_first(b->store, 0));
	store_room_give(b->store, 0, &back);
	assert_int_equal(back.all, 0);
	assert_int_equal(pages(b), b->bytes);
	store_room_plan(&r, b->store, &c, 1);
	assert_int_equal(r.need.all, 0);
	store_room_make(&r);
	store_room_take(b->store, &r);
	assert_true(store_void(b->store, 0));
	assert_int_equal(pages(b), b->bytes);
	end(b);
}

static void account(void **state)
{
	struct budget b = {.total = 10 << 20, .used = 8 << 20};
	struct budget_need need = {.bytes = {[BUDGET_STATE] = 5 << 20, [BUDGET_SLOTS] = 3 << 20},
				   .total = 8 << 20,
				   .parked = 1 << 20};
	const struct store_bytes more = {.of = {[STORE_STATE] = 1 << 20, [STORE_SUMS] = 1 << 20},
					 .all = 2 << 20,
					 .parked = 1 << 20},
				 less = {.of = {[STORE_SLOTS] = 1 << 20}, .all = 1 << 20};
	uint64_t sum = 0;
	struct err e;

	(void)state;
	assert_int_equal(budget_room(&b, 2 << 20, "gpt", "a", &e), SHARD_OK);
	assert_int_equal(budget_room(&b, (2 << 20) + 1, "gpt", "a", &e), SHARD_BUDGET);
	assert_string_equal(e.text, "chunks that come to \"gpt\" need 2.0 MiB on node a, 2.0 of "
				    "10.0 MiB are free: raise [daemon] memory there");
	budget_more(&b, &need, &more);
	assert_int_equal(b.used, 10 << 20);
	budget_leave(&b, &need);
	budget_less(&b, &need, &less);
	/* Whoever looks at the items sees where the memory of chunks that have moved is. */
	assert_int_equal(need.bytes[BUDGET_STATE], 6 << 20);
	assert_int_equal(need.bytes[BUDGET_SUMS], 1 << 20);
	assert_int_equal(need.bytes[BUDGET_SLOTS], 2 << 20);
	for (int i = 0; i < BUDGET_ITEMS; i++)
		sum += need.bytes[i];
	assert_int_equal(sum, need.total);
	assert_int_equal(b.leaving, 9 << 20);
	assert_int_equal(b.leaving_parked, 2 << 20);
	budget_release(&b, &need);
	assert_true(b.used == 0 && b.leaving == 0 && b.leaving_parked == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_chunks), cmocka_unit_test(large_chunks),
		cmocka_unit_test(full),         cmocka_unit_test(full_of_nodes),
		cmocka_unit_test(pinned),       cmocka_unit_test(account),
	};

	return cmocka_run_group_tests_name("room", tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
/* The test plays node a, the coordinator, and asks a daemon for all chunks of its image at once, as
 * a release before the limit did. Then it begins a step. The daemon has few of the chunks on their
 * way, and no vote may leave while it has any. So the step waits for these, and not for the image
 * of a node. When the attempt is over, the rest comes. */
#include "base/clock.h"
#include "data/model.h"
#include "lib/pace.h"
#include "lib/rawnode.h"
#include "lib/rawpeer.h"
#include "shard.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* The second half of the chunks is the daemon's: 32 MiB, and the buffers of a link take less. */
enum { CHUNKS = 16384, THEIRS = CHUNKS / 2, SESSION = 7, LATER = 5 };

static const struct inproc_conf quiet = {.daemon = "memory = 1GiB",
					 .cluster = "heartbeat_timeout = 20s\nstep_timeout = 60s"};

static struct rawnode x;
static struct core_id id;
static uint8_t came[CHUNKS];
static uint32_t images;

/* Reads until op comes, and counts the chunks of the image before it. */
static void until(uint16_t op)
{
	do {
		if (!raw_recv(&x.r[0]))
			fail_msg("the link ended where %s was due", wire_op(op)->name);
		if (x.r[0].head.op == OP_IMAGE_DATA) {
			images++;
			came[x.r[0].head.chunk] = 1;
		}
	} while (x.r[0].head.op != op);
}

/* An attempt of one rank, on node a, with no gradient of any tensor, until the daemon has voted. */
static void votes(void)
{
	static const double weights[] = {1};
	struct core_world w = {.size = 1, .rank[0] = {.session = SESSION, .pid = 1, .node = 0}};
	struct wire_head h;
	uint32_t absent[] = {0};
	Shard__Push none = SHARD__PUSH__INIT;
	struct core_msg ranks = {
		.op = CORE_RANKS,
		.vote = {.weights = weights, .ranks_nr = 1, .bad_tensor = -1, .bad_rank = -1}};

	rawnode_begin(&x, &w, &id);
	until(OP_CORE + CORE_GRANT);
	none.absent = absent;
	none.n_absent = 1;
	for (uint32_t c = THEIRS; c < CHUNKS; c++) {
		h = (struct wire_head){.op = OP_CONTRIB,
				       .model = x.model,
				       .generation = id.generation,
				       .term = id.term,
				       .seq = id.seq,
				       .step = id.step,
				       .attempt = id.attempt,
				       .chunk = c};
		raw_send(&x.r[0], &h, &none.base);
	}
	ranks.id = id;
	rawnode_say(&x, &ranks);
	until(OP_CORE + CORE_VOTE);
}

static void aborts(void)
{
	rawnode_say(&x, &(struct core_msg){.op = CORE_ABORT, .id = id, .why = "over"});
	rawnode_say(&x, &(struct core_msg){.op = CORE_DRAINED, .id = id});
	until(OP_CORE + CORE_DRAINED);
}

static void start(const char *settings)
{
	int one = 1;

	rawnode_start(&x, true, &quiet, 1);
	assert_int_equal(setsockopt(x.r[0].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), 0);
	rawnode_define(&x, CHUNKS, settings);
	rawnode_seal(&x, 0);
}

/* Asks for all chunks of the second half. From now on little is read ahead of the test. */
static void ask_all(void)
{
	struct wire_head ask = {.op = OP_IMAGE_ASK, .generation = 1, .model = x.model};
	uint32_t runs[] = {THEIRS, THEIRS};
	Shard__Chunks all = SHARD__CHUNKS__INIT;
	int little = 64 << 10;

	assert_int_equal(setsockopt(x.r[0].fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof(little)), 0);
	images = 0;
	memset(came, 0, sizeof(came));
	all.runs = runs;
	all.n_runs = 2;
	raw_send(&x.r[0], &ask, &all.base);
}

static void test_step_goes_first(void **state)
{
	(void)state;
	start("optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=1 replicas=1");
	/* What the seal published has left when the first vote comes. */
	votes();
	aborts();
	ask_all();
	votes();
	if (images == 0 || images > THEIRS / 2)
		fail_msg("the vote came behind %u of %u chunks of the image", images, THEIRS);
	aborts();
	while (images < THEIRS)
		until(OP_IMAGE_DATA);
	for (uint32_t c = THEIRS; c < CHUNKS; c++)
		assert_int_equal(came[c], 1);
	rawnode_stop(&x);
}

/* Sends a view in which the daemon catches up with a later record, and reads until it has adopted
 * it. Whatever is in the queue of the connection by then comes before the answer. */
static void learns(void)
{
	struct core_msg m = {.op = CORE_VIEW, .view = &x.view};
	struct record *r = &x.view.record;

	x.view.seq++;
	x.view.place.learns = 2;
	m.id = (struct core_id){.term = x.view.term, .seq = x.view.seq, .generation = 1};
	if (r->id.step != LATER)
		r->id.seq = x.view.seq;
	r->id.step = r->content = r->content_old = r->applied = LATER;
	rawnode_say(&x, &m);
	do {
		if (!raw_recv(&x.r[0]))
			fail_msg("the link ended before node b adopted the view");
		if (x.r[0].head.op == OP_IMAGE_DATA && x.r[0].head.step == LATER)
			fail_msg("chunk %u comes as one of an image that node b does not have",
				 x.r[0].head.chunk);
		images += x.r[0].head.op == OP_IMAGE_DATA;
	} while (x.r[0].head.op != OP_CORE + CORE_VIEW_OK);
}

/* Waits until the daemon has made its chunks of the image. */
static void sealed(void)
{
	const struct list *models = &x.daemon->server->models;
	const struct model *m = list_of(models->next, struct model, link);
	uint64_t by = pace_by(20);

	while (!m->sealed || m->img.apply_left > 0) {
		assert_true(clock_ns() < by);
		usleep(1000);
	}
}

/* Both nodes hold all chunks. The daemon is to learn them as of a later record, while chunks of its
 * old image wait to leave. */
static void test_learns_meanwhile(void **state)
{
	(void)state;
	start("optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=1 replicas=2");
	sealed();
	ask_all();
	for (int i = 0; i < 4; i++) /* Each brings what had no room in that queue before. */
		learns();
	assert_in_range(images, 1, THEIRS - 1);
	rawnode_stop(&x);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_step_goes_first),
						  cmocka_unit_test(test_learns_meanwhile)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

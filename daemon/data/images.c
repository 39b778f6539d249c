/* SPDX-License-Identifier: Apache-2.0 */
/* Image chunks that do not come unasked. apply.c says when chunks lack, and dispatch.c brings the
 * questions of other nodes. Happy path: the node that lacks chunks goes round the primaries, and
 * takes the next chunk of each into a list of IMAGES_ASKED_MAX. Each primary gets one frame with
 * its chunks (IMAGE_ASK). When half of the list has come, it is filled up again. A primary notes
 * who wants which chunk, and gives them to the queues of apply.c in turn, one chunk for each node,
 * as long as fewer than IMAGES_SENT_MAX image chunks and frames are on their way. No vote leaves
 * while one is, so it gives out none while a chunk waits to be staged. A primary that does not
 * answer is asked again after a second, and so is all that lacks when nothing comes for a second. A
 * new record ends all of it, because its image comes to every node unasked. */
#include "data/images.h"

#include "base/check.h"
#include "base/clock.h"
#include "data/catchup.h"
#include "data/data.h"
#include "data/deltas.h"
#include "data/events.h"
#include "data/model.h"
#include "link/peer.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

#define ASK_NS    NS_PER_SEC
#define ASKS_LATE 2          /* From then on the coordinator and the trainers hear of it. */
#define ASKS_LOG  5          /* At this count it is logged, and again after every 60. */
#define YIELD_NS  NS_PER_SEC /* A step that cannot end without these chunks is not waited for. */

struct images {
	/* Chunks of the newest image, and of the one before it, do not come unasked. */
	bool ask, ask_old;
	uint32_t asked_nr;
	struct {
		uint32_t chunk;
		uint16_t node;
	} asked[IMAGES_ASKED_MAX];
	uint16_t turn;                     /* Whose chunk is asked for next. */
	uint32_t next[CORE_NODES_MAX];     /* From here on no chunk of it was asked for. */
	uint64_t heard_ns[CORE_NODES_MAX]; /* When it was asked, or a part came from it. */
	uint32_t asks;                     /* How often all was asked for since a chunk came. */
	uint64_t idle_ns;                  /* Since then no part came, and nothing was asked for. */

	uint64_t *want; /* [chunks_nr] A bit for each node that wants the chunk. */
	uint32_t want_all, want_nr[CORE_NODES_MAX]; /* How many bits are set, of each node. */
	uint32_t first[CORE_NODES_MAX];             /* It wants no chunk before this one. */
	uint16_t given;                             /* The node that got the last chunk. */
	bool giving;
	uint64_t early; /* Nodes that ask this one as the primary that it becomes. */
	uint32_t staged_epoch;
	uint64_t staged_ns; /* When the first chunk of that attempt was reduced. */
};

enum shard_status images_init(struct model *m, struct err *e)
{
	static_assert(CORE_NODES_MAX <= 64, "a word has a bit for each node");
	if ((m->images = calloc(1, sizeof(*m->images))) != NULL &&
	    (m->images->want = calloc(m->layout->chunks_nr, sizeof(uint64_t))) != NULL)
		return deltas_init(m, e);
	images_free(m);
	return err_set(e, SHARD_SYSTEM, "no memory to keep track of the images of \"%s\"", m->name);
}

void images_free(struct model *m)
{
	if (m->images != NULL)
		free(m->images->want);
	free(m->images);
	m->images = NULL;
	deltas_free(m);
}

/* --- which chunks are here --- */

static bool stale(const struct model *m, uint32_t chunk)
{
	return store_image_chunk(m->store, m->img.slot, chunk) != data_version(m);
}

bool images_here(const struct model *m, uint32_t chunk)
{
	return !stale(m, chunk);
}

bool images_lacks(const struct model *m, uint32_t chunk)
{
	return !catchup_has(m, chunk) && stale(m, chunk);
}

bool images_lacks_old(const struct model *m, uint32_t chunk)
{
	return m->img.old_lacking > 0 && !catchup_has(m, chunk) &&
	       store_image_chunk(m->store, m->img.slot ^ 1, chunk) != m->content_old;
}

bool images_has_old(const struct model *m, uint32_t chunk)
{
	return m->set.max_staleness > 0 && m->img.slot_content[m->img.slot ^ 1] == m->content_old &&
	       store_image_chunk(m->store, m->img.slot ^ 1, chunk) == m->content_old;
}

/* After a warm start this is a chunk that is held here, otherwise one of another node. With two
 * images trainers compute on the older one, if there is one. */
bool images_awaited(const struct model *m, uint32_t *chunk, uint64_t *step)
{
	bool old = m->set.max_staleness > 0 && m->content_old != m->content_step;

	*step = old ? m->content_old : m->content_step;
	for (*chunk = 0; m->memory.settle.on && *chunk < m->layout->chunks_nr; ++*chunk)
		if (place_holds(&m->place, *chunk, m->server->self) && stale(m, *chunk))
			return true;
	if (!m->sealed || (old ? m->img.old_lacking : m->img.lacking) == 0)
		return false;
	for (*chunk = 0; *chunk < m->layout->chunks_nr; ++*chunk)
		if (old ? images_lacks_old(m, *chunk) : images_lacks(m, *chunk))
			return true;
	return false;
}

void images_late(struct model *m, bool late, uint32_t chunk, uint64_t step)
{
	if (!late && !m->img.late)
		return;
	m->img.late = late;
	m->server->data->late(m, late, chunk, step);
}

/* --- the node that lacks chunks --- */

static uint32_t lack(const struct model *m)
{
	return m->sealed ? m->img.lacking + m->img.old_lacking : 0;
}

static bool is_asked(const struct images *i, uint32_t chunk)
{
	for (uint32_t k = 0; k < i->asked_nr; k++)
		if (i->asked[k].chunk == chunk)
			return true;
	return false;
}

/* Takes the next chunk of that primary into the list. False: there is none. */
static bool take_next(struct model *m, uint16_t n)
{
	struct images *i = m->images;

	while (i->next[n] < m->layout->chunks_nr) {
		uint32_t c = i->next[n]++;

		if (place_primary(&m->place, c) != n || is_asked(i, c) ||
		    !((i->ask && images_lacks(m, c)) || (i->ask_old && images_lacks_old(m, c))))
			continue;
		CHECK(i->asked_nr < IMAGES_ASKED_MAX);
		i->asked[i->asked_nr].chunk = c;
		i->asked[i->asked_nr++].node = n;
		return true;
	}
	return false;
}

/* Asks node n for what stands in the list from `from` on. */
static void send_ask(struct model *m, uint16_t n, uint32_t from)
{
	const struct images *i = m->images;
	uint32_t runs[2 * IMAGES_ASKED_MAX];
	Shard__Chunks want = SHARD__CHUNKS__INIT;
	struct wire_head h;

	want.runs = runs;
	for (uint32_t k = from; k < i->asked_nr; k++) {
		uint32_t c = i->asked[k].chunk, *last = &runs[want.n_runs];

		if (i->asked[k].node != n)
			continue;
		if (want.n_runs > 0 && last[-2] + last[-1] == c)
			last[-1]++;
		else
			runs[want.n_runs++] = c, runs[want.n_runs++] = 1;
	}
	if (want.n_runs == 0)
		return;
	m->images->heard_ns[n] = m->images->idle_ns = clock_ns();
	data_head(m, &h, OP_IMAGE_ASK, &m->record.id);
	/* If the link breaks, it is asked again when it is there again. */
	(void)peer_send(m->server, n, &h, &want.base, NULL);
}

/* Fills the list up, with one chunk of each primary in turn. */
static void ask_more(struct model *m)
{
	struct images *i = m->images;
	uint32_t from = i->asked_nr, none = 0, nodes = m->server->nodes_nr;

	if (lack(m) == 0 || (!i->ask && !i->ask_old))
		return;
	while (i->asked_nr < IMAGES_ASKED_MAX && none < nodes) {
		uint16_t n = i->turn = (uint16_t)((i->turn + 1) % nodes);
		const struct peer *p = m->server->peer[n];

		none = p != NULL && p->up && take_next(m, n) ? 0 : none + 1;
	}
	for (uint16_t n = 0; i->asked_nr > from && n < nodes; n++)
		send_ask(m, n, from);
}

/* Node n owes nothing any more, and is asked anew for all that it has. */
static void forget(struct images *i, uint16_t n)
{
	uint32_t nr = 0;

	for (uint32_t k = 0; k < i->asked_nr; k++)
		if (i->asked[k].node != n)
			i->asked[nr++] = i->asked[k];
	i->asked_nr = nr;
	i->next[n] = 0;
}

static void forget_all(struct images *i)
{
	i->asked_nr = 0;
	memset(i->next, 0, sizeof(i->next));
}

void images_ask(struct model *m)
{
	forget_all(m->images);
	m->images->ask = m->images->ask_old = true;
	m->images->idle_ns = clock_ns();
	ask_more(m);
}

void images_node_back(struct model *m, uint16_t node)
{
	if (lack(m) == 0)
		return;
	forget(m->images, node);
	m->images->ask = m->images->ask_old = true;
	ask_more(m);
}

void images_placed(struct model *m)
{
	if (lack(m) > 0)
		images_ask(m);
}

void images_moved(struct model *m)
{
	m->images->asks = 0;
}

void images_heard(struct model *m, uint32_t chunk)
{
	uint16_t n = place_primary(&m->place, chunk);

	m->images->idle_ns = clock_ns();
	if (n < CORE_NODES_MAX) /* Otherwise its last copy is gone by now. */
		m->images->heard_ns[n] = m->images->idle_ns;
}

void images_came(struct model *m, uint32_t chunk)
{
	struct images *i = m->images;
	uint32_t k = 0;

	while (k < i->asked_nr && i->asked[k].chunk != chunk)
		k++;
	if (k == i->asked_nr)
		return;
	i->asked[k] = i->asked[--i->asked_nr];
	if (i->asked_nr <= IMAGES_ASKED_MAX / 2)
		ask_more(m);
}

void images_missed(struct model *m, uint16_t node, uint32_t chunk)
{
	uint32_t runs[2] = {chunk, 1};
	Shard__Chunks want = SHARD__CHUNKS__INIT;
	struct wire_head h;

	want.runs = runs;
	want.n_runs = NR(runs);
	data_head(m, &h, OP_IMAGE_ASK, &m->record.id);
	/* If it is lost, the chunk is asked for like others that lack. */
	(void)peer_send(m->server, node, &h, &want.base, NULL);
}

/* Asks those again that have answered nothing for a second, while others may have. */
static void ask_silent(struct model *m, uint64_t now_ns)
{
	struct images *i = m->images;
	uint64_t silent = 0;

	for (uint32_t k = 0; k < i->asked_nr; k++)
		if (now_ns > i->heard_ns[i->asked[k].node] + ASK_NS)
			silent |= 1ull << i->asked[k].node;
	for (uint64_t left = silent; left != 0; left &= left - 1)
		forget(i, (uint16_t)__builtin_ctzll(left));
	if (silent != 0)
		ask_more(m);
}

void images_beat(struct model *m, uint64_t now_ns)
{
	struct images *i = m->images;
	uint32_t chunk, first = 0;
	uint64_t step;

	if (i == NULL)
		return;
	images_serve(m);
	if (m->memory.settle.on && images_awaited(m, &chunk, &step))
		images_late(m, true, chunk, step);
	if (lack(m) == 0)
		return;
	if (now_ns <= i->idle_ns + ASK_NS) {
		ask_silent(m, now_ns);
		return;
	}
	i->asks++;
	while (first + 1 < m->layout->chunks_nr && !images_lacks(m, first) &&
	       !images_lacks_old(m, first))
		first++;
	if (i->asks % 60 == ASKS_LOG)
		log_line(m->server->log, LOG_LEVEL_WARN,
			 "event=image_late model=%s step=%lu chunk=%u node=%s lack=%u asks=%u",
			 m->name, (unsigned long)m->content_step, first,
			 members_name(m->server, place_primary(&m->place, first)), lack(m),
			 i->asks);
	if (i->asks >= ASKS_LATE && images_awaited(m, &chunk, &step))
		images_late(m, true, chunk, step);
	images_ask(m);
}

/* --- the node that has them --- */

static void want(struct model *m, uint16_t node, uint32_t chunk)
{
	struct images *i = m->images;

	if (i->want[chunk] >> node & 1)
		return;
	i->want[chunk] |= 1ull << node;
	if (i->want_nr[node]++ == 0 || chunk < i->first[node])
		i->first[node] = chunk;
	i->want_all++;
}

static void want_no_more(struct model *m, uint16_t node, uint32_t chunk)
{
	struct images *i = m->images;

	if (!(i->want[chunk] >> node & 1))
		return;
	i->want[chunk] &= ~(1ull << node);
	CHECK(i->want_nr[node] > 0 && i->want_all > 0);
	i->want_nr[node]--;
	i->want_all--;
}

static void want_nothing(struct model *m)
{
	struct images *i = m->images;

	if (i->want_all > 0)
		memset(i->want, 0, m->layout->chunks_nr * sizeof(*i->want));
	memset(i->want_nr, 0, sizeof(i->want_nr));
	memset(i->first, 0, sizeof(i->first));
	i->want_all = 0;
}

static void send_both(struct model *m, uint16_t node, uint32_t chunk)
{
	uint32_t connections = m->server->conf->connections;
	struct send_queue *o = &m->img.out[node * connections + chunk % connections];

	if (m->content_old != m->content_step && !m->attempt.voted && images_has_old(m, chunk))
		send_queue_add(o, SEND_ENTRY(m->img.slot ^ 1, chunk));
	if (images_here(m, chunk) && o->lane != NULL)
		send_queue_add(o, SEND_ENTRY(deltas_give(m, node, chunk, true), chunk));
}

/* Sends what there is of the chunk. If there is nothing, the node asks again. */
static void give(struct model *m, uint16_t node, uint32_t chunk)
{
	want_no_more(m, node, chunk);
	send_both(m, node, chunk);
}

/* With one image, a vote allows it to be overwritten while it is sent. */
static bool closed(const struct model *m)
{
	return !m->sealed || m->dropping ||
	       (m->set.max_staleness == 0 && (m->attempt.voted || m->img.applying));
}

static bool may_give(const struct model *m)
{
	const struct images *i = m->images;

	return !closed(m) && !m->img.applying && !m->memory.settle.on &&
	       m->img.staged_later_nr == 0 &&
	       !(m->attempt.on && i->staged_epoch == m->attempt.epoch &&
		 clock_ns() - i->staged_ns < YIELD_NS);
}

void images_serve(struct model *m)
{
	struct images *i = m->images;

	if (i->want_all == 0 || i->giving || m->img.sends >= IMAGES_SENT_MAX || !may_give(m))
		return;
	i->giving = true; /* A frame that leaves at once calls this again. */
	while (i->want_all > 0 && m->img.sends < IMAGES_SENT_MAX) {
		uint16_t n = i->given = (uint16_t)((i->given + 1) % CORE_NODES_MAX);
		uint32_t *c = &i->first[n];

		if (i->want_nr[n] == 0)
			continue;
		while (!(i->want[*c] >> n & 1))
			CHECK(++*c < m->layout->chunks_nr);
		give(m, n, *c);
	}
	i->giving = false;
}

void images_made(struct model *m, uint32_t chunk)
{
	CHECK(m->memory.settle.on);
	for (uint64_t left = m->images->want[chunk]; left != 0; left &= left - 1)
		if (m->img.sends < IMAGES_SENT_MAX)
			give(m, (uint16_t)__builtin_ctzll(left), chunk);
}

/* Does it ask for a chunk of which this node is not the primary, as far as it knows yet? */
static bool asks_follower(const struct model *m, const Shard__Chunks *runs)
{
	uint32_t chunks = m->layout->chunks_nr, looked = 0;

	for (size_t i = 0; i + 1 < runs->n_runs; i += 2)
		for (uint64_t c = runs->runs[i], end = c + runs->runs[i + 1];
		     c < end && c < chunks && looked < chunks; c++, looked++)
			if (place_primary(&m->place, (uint32_t)c) != m->server->self)
				return true;
	return false;
}

void images_asked(struct model *m, uint16_t node, const Shard__Chunks *runs)
{
	uint64_t asked = 0;    /* Limits the work, whatever the runs say. */
	bool now = !closed(m); /* Otherwise it asks again in a second. */

	CHECK(node < m->server->nodes_nr);
	if (m->img.applying && !m->memory.settle.on && asks_follower(m, runs))
		m->images->early |= 1ull << node;
	for (size_t i = 0; i + 1 < runs->n_runs; i += 2)
		for (uint32_t k = 0; k < runs->runs[i + 1] && asked < 2ull * m->layout->chunks_nr;
		     k++, asked++) {
			uint64_t c = (uint64_t)runs->runs[i] + k;

			if (c >= m->layout->chunks_nr ||
			    !place_holds(&m->place, c, m->server->self))
				continue;
			deltas_lost(m, node, (uint32_t)c);
			if (!now)
				continue;
			want(m, node, (uint32_t)c);
			if (m->memory.settle.on && images_here(m, (uint32_t)c))
				images_made(m, (uint32_t)c);
		}
	images_serve(m);
}

/* Whoever adopts a view before this node does may ask it as the primary that it becomes. */
void images_applied(struct model *m)
{
	for (uint64_t left = m->images->early; left != 0; left &= left - 1) {
		uint16_t n = (uint16_t)__builtin_ctzll(left);

		for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
			if (place_holds(&m->place, c, m->server->self) &&
			    place_primary(&m->place, c) != m->server->self &&
			    !place_holds(&m->place, c, n) && images_here(m, c))
				want(m, n, c);
	}
	m->images->early = 0;
	images_serve(m);
}

void images_yield(struct model *m)
{
	struct images *i = m->images;

	if (i->staged_epoch == m->attempt.epoch)
		return;
	i->staged_epoch = m->attempt.epoch;
	i->staged_ns = clock_ns();
}

void images_node_gone(struct model *m, uint16_t node)
{
	struct images *i = m->images;

	if (i == NULL)
		return;
	for (uint32_t c = 0; i->want_nr[node] > 0 && c < m->layout->chunks_nr; c++)
		want_no_more(m, node, c);
	i->first[node] = 0;
	i->early &= ~(1ull << node);
	forget(i, node);
}

uint32_t images_waiting(const struct model *m)
{
	return m->images != NULL ? m->images->want_all : 0;
}

/* --- both --- */

void images_begin(struct model *m)
{
	struct images *i = m->images;

	want_nothing(m);
	forget_all(i);
	i->ask_old = i->ask && m->set.max_staleness > 0;
	i->ask = false;
	i->idle_ns = clock_ns();
	ask_more(m);
}

void images_reset(struct model *m)
{
	if (m->images == NULL)
		return;
	want_nothing(m);
	forget_all(m->images);
	m->images->early = 0;
	m->images->ask = m->images->ask_old = false;
}

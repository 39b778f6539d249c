/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's state as Prometheus metrics and its health as text; status.c has the JSON. http.c
 * asks for a snapshot on the loop, at most once a second, and models tell it of decided and applied
 * steps. Each node tells only of itself: its links, its models and its local ranks. The sum over
 * all nodes shows the cluster. Names end in their unit, and those of counters in _total. If there
 * is no memory, the text is NULL and that request fails. */
#include "obs/scrape.h"

#include "data/catchup.h"
#include "data/images.h"
#include "base/check.h"
#include "ckpt/ckpt.h"
#include "control/access.h"
#include "control/moving.h"

#include "base/clock.h"
#include "model/lost.h"
#include "model/model.h"
#include "model/watch.h"
#include "warm/warm.h"
#include "obs/events.h"
#include "obs/health.h"
#include "obs/history.h"
#include "obs/metrics.h"
#include "obs/progress.h"
#include "obs/status.h"
#include "link/nodes.h"
#include "link/peer.h"
#include "link/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LABELS(...) ((const struct metrics_label[]){__VA_ARGS__, {NULL, NULL}})

static double seconds(uint64_t ns)
{
	return (double)ns / NS_PER_SEC;
}

/* --- counting --- */

static void scrape_decided(struct model *m, const struct record *r)
{
	struct metrics_model *x = m->metrics;
	const struct contrib *g = &m->contrib;
	uint64_t now = clock_ns(), first = UINT64_MAX;

	CHECK(m->metrics != NULL);
	if (r->outcome == RECORD_APPLIED)
		x->applied++;
	else if (r->outcome == RECORD_NONFINITE || r->outcome == RECORD_SKIP)
		x->skipped[r->outcome == RECORD_SKIP ? METRICS_SKIP_VOTE
						     : METRICS_SKIP_NONFINITE]++;
	x->contrib_in_bytes += m->contrib_in.bytes;
	x->grad_in_bytes += m->reduced.in.bytes;
	x->ranks_nr = 0;
	if (core_id_cmp(&r->id, &m->attempt.id) != 0 || m->attempt.began_ns == 0)
		/* The step was decided in another view, so this attempt's times are not its own. */
		return;
	histogram_add(&x->step, x->step_ns = now - m->attempt.began_ns);
	histogram_add(&x->reduce, g->reduce_ns);
	for (uint32_t i = 0; i < g->local_nr; i++)
		if (g->local[i].pushed_ns != 0 && g->local[i].pushed_ns < first)
			first = g->local[i].pushed_ns;
	if (first == UINT64_MAX)
		return; /* This node has no ranks. */
	histogram_add(&x->wait, x->wait_ns = now - first);
	for (uint32_t i = 0; i < g->local_nr && i < METRICS_RANKS; i++)
		if (g->local[i].pushed_ns != 0)
			x->rank[x->ranks_nr++] = (struct metrics_rank){
				g->local[i].rank, g->local[i].pushed_ns - first};
}

static void scrape_applied(struct model *m)
{
	if (m->record.outcome == RECORD_APPLIED)
		histogram_add(&m->metrics->apply, m->img.apply_ns);
}

static enum shard_status scrape_made(struct model *m, struct err *e)
{
	CHECK(m->metrics == NULL);
	m->metrics = calloc(1, sizeof(*m->metrics));
	return m->metrics != NULL
		       ? SHARD_OK
		       : err_set(e, SHARD_SYSTEM, "no memory for the figures of a model");
}

static void scrape_going(struct model *m)
{
	free(m->metrics);
	m->metrics = NULL;
}

const struct model_watch scrape_watch = {
	.made = scrape_made,
	.decided = scrape_decided,
	.applied = scrape_applied,
	.going = scrape_going,
};

/* --- the server --- */

static uint64_t resident_bytes(void)
{
	unsigned long all, resident = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (f == NULL)
		return 0;
	if (fscanf(f, "%lu %lu", &all, &resident) != 2)
		resident = 0;
	fclose(f);
	return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void process_metrics(FILE *f)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	metrics_family(f, "process_cpu_seconds_total", METRICS_COUNTER,
		       "User and system time of the daemon, all threads.");
	metrics_sample(f, "process_cpu_seconds_total", NULL,
		       (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
			       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
	metrics_family(f, "process_resident_memory_bytes", METRICS_GAUGE,
		       "Resident memory of the daemon.");
	metrics_count(f, "process_resident_memory_bytes", NULL, resident_bytes());
}

void scrape_peer_bytes(const struct peer *p, uint64_t *in, uint64_t *out)
{
	rdma_link_bytes(p, in, out);
	*in += p->past_in_bytes;
	*out += p->past_out_bytes;
	for (uint32_t i = 0; i < p->conns_nr; i++) {
		if (p->conns[i].conn == NULL)
			continue;
		*in += conn_stats(p->conns[i].conn)->bytes_in;
		*out += conn_stats(p->conns[i].conn)->bytes_out;
	}
}

static void each_peer(FILE *f, const struct server *s, const char *name,
		      void (*sample)(FILE *, const char *, const struct server *, uint16_t))
{
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL)
			sample(f, name, s, n);
}

static void sample_link(FILE *f, const char *name, const struct server *s, uint16_t n)
{
	if (!s->peer[n]->up && server_gone(s, n))
		return; /* Nothing is wrong with it. */
	metrics_count(f, name, LABELS({"peer", members_name(s, n)}), s->peer[n]->up);
}

static void sample_downs(FILE *f, const char *name, const struct server *s, uint16_t n)
{
	metrics_count(f, name, LABELS({"peer", members_name(s, n)}), s->peer[n]->downs);
}

static void sample_bytes(FILE *f, const char *name, const struct server *s, uint16_t n)
{
	uint64_t in, out;

	CHECK(n < s->nodes_nr && n != s->self);
	scrape_peer_bytes(s->peer[n], &in, &out);
	metrics_count(f, name, LABELS({"peer", members_name(s, n)}, {"direction", "in"}), in);
	metrics_count(f, name, LABELS({"peer", members_name(s, n)}, {"direction", "out"}), out);
}

static void sample_transport(FILE *f, const char *name, const struct server *s, uint16_t n)
{
	const char *why;
	bool rdma = s->peer[n]->up && rdma_link_carries(s->peer[n], &why);

	CHECK(n < s->nodes_nr && n != s->self);
	metrics_count(f, name, LABELS({"peer", members_name(s, n)}, {"transport", "rdma"}), rdma);
	metrics_count(f, name, LABELS({"peer", members_name(s, n)}, {"transport", "tcp"}),
		      s->peer[n]->up && !rdma);
}

static void sample_tensor_bytes(FILE *f, const char *name, const struct server *s, uint16_t n)
{
	static const char *const transports[] = {"rdma", "tcp"};
	uint64_t in[2], out[2];

	rdma_link_bytes(s->peer[n], &in[0], &out[0]);
	peer_tensor_bytes(s->peer[n], &in[1], &out[1]);
	for (int i = 0; i < 2; i++) {
		metrics_count(f, name,
			      LABELS({"peer", members_name(s, n)}, {"transport", transports[i]},
				     {"direction", "in"}),
			      in[i]);
		metrics_count(f, name,
			      LABELS({"peer", members_name(s, n)}, {"transport", transports[i]},
				     {"direction", "out"}),
			      out[i]);
	}
}

static void sample_rdma_failures(FILE *f, const char *name, const struct server *s, uint16_t n)
{
	metrics_count(f, name, LABELS({"peer", members_name(s, n)}), s->peer[n]->rdma.failures);
}

/* Bytes of all connections that were no links, that is, of trainers and tools. */
static void session_bytes(const struct server *s, uint64_t *in, uint64_t *out)
{
	*in = s->past.in_bytes;
	*out = s->past.out_bytes;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		*in -= s->peer[n] != NULL ? s->peer[n]->past_in_bytes : 0;
		*out -= s->peer[n] != NULL ? s->peer[n]->past_out_bytes : 0;
	}
	list_each(it, (struct list *)(uintptr_t)&s->conns.sessions) {
		const struct stream_stats *st = conn_stats(list_of(it, struct session, link)->conn);

		*in += st->bytes_in;
		*out += st->bytes_out;
	}
}

static void gauge(FILE *f, const char *name, const char *help, uint64_t value)
{
	metrics_family(f, name, METRICS_GAUGE, help);
	metrics_count(f, name, NULL, value);
}

static void server_metrics(FILE *f, const struct server *s)
{
	uint64_t refused, copied, in, out;

	metrics_family(f, "shardd_build_info", METRICS_GAUGE, "Always 1; labels say what runs.");
	metrics_count(f, "shardd_build_info",
		      LABELS({"release", SHARD_RELEASE}, {"isa", isa_name(s->isa)},
			     {"node", members_name(s, s->self)}),
		      1);
	metrics_family(f, "shardd_uptime_seconds", METRICS_GAUGE, "Time since the daemon started.");
	metrics_sample(f, "shardd_uptime_seconds", NULL, seconds(clock_ns() - s->started_ns));
	gauge(f, "shardd_incarnation", "Number of the start that began without memory.",
	      s->incarnation);
	gauge(f, "shardd_starts", "Starts of this node, ever.", s->start);
	gauge(f, "shardd_warm_starts",
	      "Starts since shardd_incarnation that took up the models of the one before.",
	      s->warm != NULL ? warm_counted(s->warm) : 0);
	gauge(f, "shardd_parked_bytes", "Memory that outlives this process.",
	      s->warm != NULL ? warm_bytes(s->warm) : 0);
	gauge(f, "shardd_coordinator", "1 on the node that coordinates.", server_leads(s));
	gauge(f, "shardd_budget_bytes", "Memory that models may take on this node.",
	      s->budget.total);
	gauge(f, "shardd_budget_used_bytes",
	      "Memory that models and queues have reserved on this node.", s->budget.used);
	metrics_family(f, "shardd_connections", METRICS_GAUGE,
		       "Accepted connections of trainers, tools and who has not said HELLO yet.");
	metrics_count(f, "shardd_connections", LABELS({"state", "greeted"}), s->conns.sessions_nr);
	metrics_count(f, "shardd_connections", LABELS({"state", "greeting"}), s->conns.openings_nr);
	status_counts(s, &refused, &copied);
	metrics_family(f, "shardd_refused_frames_total", METRICS_COUNTER,
		       "Frames refused: header, sum or legality.");
	metrics_count(f, "shardd_refused_frames_total", NULL, refused);
	metrics_family(f, "shardd_queued_bytes", METRICS_GAUGE,
		       "Bytes in memory that wait to be taken by trainers, "
		       "tools and nodes.");
	metrics_count(f, "shardd_queued_bytes", NULL, s->conns.queued.bytes);
	metrics_family(
		f, "shardd_auth_refused_total", METRICS_COUNTER,
		"Connections whose other end did not prove that it knows the cluster's secret.");
	metrics_count(f, "shardd_auth_refused_total", NULL, s->secret.refused);
	metrics_family(f, "shardd_copied_bytes_total", METRICS_COUNTER,
		       "Tensor bytes copied once more on the way: of weights written or read, "
		       "never of a step.");
	metrics_count(f, "shardd_copied_bytes_total", NULL, copied);
	session_bytes(s, &in, &out);
	metrics_family(f, "shardd_trainer_bytes_total", METRICS_COUNTER,
		       "Bytes from and to trainers and tools over sockets, not shared memory.");
	metrics_count(f, "shardd_trainer_bytes_total", LABELS({"direction", "in"}), in);
	metrics_count(f, "shardd_trainer_bytes_total", LABELS({"direction", "out"}), out);
	metrics_family(f, "shardd_peer_bytes_total", METRICS_COUNTER,
		       "Bytes from and to each other node, by any transport.");
	each_peer(f, s, "shardd_peer_bytes_total", sample_bytes);
	metrics_family(f, "shardd_link_up", METRICS_GAUGE, "1: the link to that node is up.");
	each_peer(f, s, "shardd_link_up", sample_link);
	metrics_family(f, "shardd_link_downs_total", METRICS_COUNTER,
		       "Times that the link to that node was lost.");
	each_peer(f, s, "shardd_link_downs_total", sample_downs);
	metrics_family(f, "shardd_transport", METRICS_GAUGE,
		       "1 for what carries tensors from and to that node.");
	each_peer(f, s, "shardd_transport", sample_transport);
	metrics_family(f, "shardd_tensor_bytes_total", METRICS_COUNTER,
		       "Tensor bytes from and to each other node, by what carried them.");
	each_peer(f, s, "shardd_tensor_bytes_total", sample_tensor_bytes);
	metrics_family(f, "shardd_rdma_failures_total", METRICS_COUNTER,
		       "Times that RDMA with that node failed, or was not to be had.");
	each_peer(f, s, "shardd_rdma_failures_total", sample_rdma_failures);
}

/* --- models: one row per family --- */

struct family {
	const char *name;
	enum metrics_type type;
	const char *help;
	void (*sample)(FILE *f, const char *name, const struct model *m);
};

#define MODEL(m) LABELS({"model", (m)->name})
#define COUNT(fn, value)                                                                           \
	static void fn(FILE *f, const char *name, const struct model *m)                           \
	{                                                                                          \
		metrics_count(f, name, MODEL(m), (value));                                         \
	}
#define NUMBER(fn, value)                                                                          \
	static void fn(FILE *f, const char *name, const struct model *m)                           \
	{                                                                                          \
		metrics_sample(f, name, MODEL(m), (value));                                        \
	}
#define TIMES(fn, field)                                                                           \
	static void fn(FILE *f, const char *name, const struct model *m)                           \
	{                                                                                          \
		metrics_histogram(f, name, MODEL(m), &m->metrics->field);                          \
	}

TIMES(step_times, step)
TIMES(wait_times, wait)
TIMES(reduce_times, reduce)
TIMES(apply_times, apply)
COUNT(step_number, m->step)
COUNT(generation, m->generation)
COUNT(applied, m->metrics->applied)
COUNT(attempts_ended, m->attempts_ended)
COUNT(grads_differ, m->reduced.differed)
COUNT(kept, m->img.kept)
COUNT(contrib_in, m->metrics->contrib_in_bytes)
COUNT(grad_in, m->metrics->grad_in_bytes)
COUNT(image_in, m->image_in.total)
COUNT(image_lacking, m->img.lacking + m->img.old_lacking)
COUNT(image_asked, images_waiting(m))
COUNT(diverged, m->record.diverged)
NUMBER(loss_scale, m->record.scaler.scale)
NUMBER(grad_norm, m->record.grad_norm)
NUMBER(clip_factor, m->record.clip_factor)
NUMBER(learning_rate, m->record.lr)
NUMBER(attempt_age, m->attempt.on ? seconds(clock_ns() - m->attempt.began_ns) : 0)

static void votes_differ(FILE *f, const char *name, const struct model *m)
{
	struct core_state c;

	core_state(m->core, &c);
	metrics_count(f, name, MODEL(m), c.differed);
}

static void cut_off(FILE *f, const char *name, const struct model *m)
{
	struct core_state c;

	core_state(m->core, &c);
	metrics_count(f, name, MODEL(m), c.cut);
}

static void stragglers(FILE *f, const char *name, const struct model *m)
{
	struct core_state c;

	core_state(m->core, &c);
	metrics_count(f, name, MODEL(m), c.stragglers);
}

static void skipped(FILE *f, const char *name, const struct model *m)
{
	for (enum metrics_skip i = 0; i < METRICS_SKIPS; i++)
		metrics_count(f, name, LABELS({"model", m->name}, {"reason", metrics_skip_name(i)}),
			      m->metrics->skipped[i]);
}

static void state(FILE *f, const char *name, const struct model *m)
{
	const char *now = progress_state(m);

	for (const char *const *word = progress_states; *word != NULL; word++)
		metrics_count(f, name, LABELS({"model", m->name}, {"state", *word}),
			      strcmp(*word, now) == 0);
}

static void memory(FILE *f, const char *name, const struct model *m)
{
	for (enum budget_item i = 0; i < BUDGET_ITEMS; i++)
		metrics_count(f, name, LABELS({"model", m->name}, {"item", budget_item_name(i)}),
			      m->need.bytes[i]);
}

static void chunks(FILE *f, const char *name, const struct model *m)
{
	/* One pass, because there may be many chunks and many nodes. */
	uint64_t nr[CONFIG_NODES_MAX] = {0};

	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		for (uint64_t n = place_copies(&m->place, c); n != 0; n &= n - 1)
			nr[__builtin_ctzll(n)]++;
	for (uint16_t n = 0; n < m->server->nodes_nr; n++)
		metrics_count(f, name,
			      LABELS({"model", m->name}, {"owner", members_name(m->server, n)}),
			      nr[n]);
}

static void copies_least(FILE *f, const char *name, const struct model *m)
{
	if (m->sealed)
		metrics_count(f, name, MODEL(m), place_least(&m->place));
}

static void copies_wanted(FILE *f, const char *name, const struct model *m)
{
	metrics_count(f, name, MODEL(m), m->set.replicas);
}

static void copies_min(FILE *f, const char *name, const struct model *m)
{
	metrics_count(f, name, MODEL(m), m->set.min_copies);
}

static void fetched(FILE *f, const char *name, const struct model *m)
{
	uint32_t here, all;

	catchup_progress(m, &here, &all);
	if (all > 0)
		metrics_count(f, name, MODEL(m), here);
}

/* Each node shows its own part, so that the sum is what the cluster has yet to copy. */
static void moving_copies(FILE *f, const char *name, const struct model *m)
{
	metrics_count(f, name, MODEL(m), moving_left(m, true).copies);
}

static void moving_bytes(FILE *f, const char *name, const struct model *m)
{
	metrics_count(f, name, MODEL(m), moving_left(m, true).bytes);
}

/* Only the coordinator knows of moves that no view has begun. */
static void move_state(FILE *f, const char *name, const struct model *m)
{
	static const char *const states[] = {"planning", "room", "moving", "refused"};
	const char *now = moving_state(m);

	for (size_t i = 0; server_leads(m->server) && i < NR(states); i++)
		metrics_count(f, name, LABELS({"model", m->name}, {"state", states[i]}),
			      strcmp(states[i], now) == 0);
}

static void move_age(FILE *f, const char *name, const struct model *m)
{
	uint64_t since = moving_since(m);

	if (server_leads(m->server))
		metrics_sample(f, name, MODEL(m), since != 0 ? seconds(clock_ns() - since) : 0);
}
#define HISTORY(fn, value)                                                                         \
	static void fn(FILE *f, const char *name, const struct model *m)                           \
	{                                                                                          \
		struct history_state h;                                                            \
                                                                                                   \
		history_state(m, &h);                                                              \
		if (h.on)                                                                          \
			metrics_count(f, name, MODEL(m), (value));                                 \
	}

HISTORY(history_bytes, h.bytes)
HISTORY(history_entries, h.entries)
HISTORY(history_dropped, h.dropped)
HISTORY(history_late, h.trouble[0] != 0)

static void ranks(FILE *f, const char *name, const struct model *m,
		  uint64_t (*value)(const struct model *m, const struct contrib_rank *g))
{
	for (uint32_t i = 0; m->attempt.on && i < m->contrib.local_nr; i++) {
		const struct contrib_rank *g = &m->contrib.local[i];
		char rank[16], pid[16];

		snprintf(rank, sizeof(rank), "%u", g->rank);
		snprintf(pid, sizeof(pid), "%u", m->attempt.world.rank[g->rank].pid);
		metrics_count(f, name, LABELS({"model", m->name}, {"rank", rank}, {"pid", pid}),
			      value(m, g));
	}
}

static uint64_t not_ready(const struct model *m, const struct contrib_rank *g)
{
	(void)m;
	return !g->ready;
}

static uint64_t chunks_missing(const struct model *m, const struct contrib_rank *g)
{
	return m->layout->chunks_nr - g->chunks_pushed;
}

static void waiting_for(FILE *f, const char *name, const struct model *m)
{
	ranks(f, name, m, not_ready);
}

static void missing(FILE *f, const char *name, const struct model *m)
{
	ranks(f, name, m, chunks_missing);
}

static void lag(FILE *f, const char *name, const struct model *m)
{
	for (uint32_t i = 0; i < m->metrics->ranks_nr; i++) {
		char rank[16];

		snprintf(rank, sizeof(rank), "%u", m->metrics->rank[i].rank);
		metrics_sample(f, name, LABELS({"model", m->name}, {"rank", rank}),
			       seconds(m->metrics->rank[i].lag_ns));
	}
}

/* Only the coordinator shows these. For a model without a known checkpoint only its step (0), the
 * failures and checkpoint_every are shown. */
#define CHECKPOINT(fn, when, value)                                                                \
	static void fn(FILE *f, const char *name, const struct model *m)                           \
	{                                                                                          \
		if (server_leads(m->server) && (when))                                             \
			metrics_sample(f, name, MODEL(m), (value));                                \
	}

CHECKPOINT(checkpoint_age, m->ckpt->last.path[0] != 0, ckpt_age(m))
CHECKPOINT(checkpoint_step, true, (double)m->ckpt->last.step)
CHECKPOINT(checkpoint_bytes, m->ckpt->last.path[0] != 0, (double)m->ckpt->last.bytes)
CHECKPOINT(checkpoint_write, m->ckpt->last.path[0] != 0, seconds(m->ckpt->last.write_ns))
CHECKPOINT(checkpoint_hold, m->ckpt->last.path[0] != 0, seconds(m->ckpt->last.hold_ns))
CHECKPOINT(checkpoint_failures, true, (double)m->ckpt->failures)
CHECKPOINT(checkpoint_every, true, (double)m->set.checkpoint_every)

static const struct family families[] = {
	{"shardd_model_state", METRICS_GAUGE, "1 for the state that the model is in.", state},
	{"shardd_model_memory_bytes", METRICS_GAUGE, "Memory reserved for the model on this node.",
	 memory},
	{"shardd_model_chunks", METRICS_GAUGE, "Chunks of the model by the node that holds a copy.",
	 chunks},
	{"shardd_model_copies_least", METRICS_GAUGE,
	 "Copies that count of the chunk that has fewest, by the view of this node.", copies_least},
	{"shardd_model_copies_wanted", METRICS_GAUGE, "replicas of the model.", copies_wanted},
	{"shardd_model_copies_min", METRICS_GAUGE,
	 "min_copies of the model: with fewer no step begins.", copies_min},
	{"shardd_model_fetched_chunks", METRICS_GAUGE,
	 "While this node catches up: chunks that it has a copy of again.", fetched},
	{"shardd_moving_copies", METRICS_GAUGE,
	 "Copies of chunks that a move has yet to bring to this node.", moving_copies},
	{"shardd_moving_bytes", METRICS_GAUGE,
	 "Masters and moments of the copies that a move has yet to bring to this node.",
	 moving_bytes},
	{"shardd_move_state", METRICS_GAUGE,
	 "On the coordinator: 1 for what a move of chunks is at; all 0: chunks lie as they should.",
	 move_state},
	{"shardd_move_age_seconds", METRICS_GAUGE,
	 "On the coordinator: how long chunks have not been where they should lie; 0: they are.",
	 move_age},
	{"shardd_history_bytes", METRICS_GAUGE, "Of the model's history on this node's disk.",
	 history_bytes},
	{"shardd_history_entries_total", METRICS_COUNTER, "Entries written to it since the start.",
	 history_entries},
	{"shardd_history_dropped_total", METRICS_COUNTER,
	 "Entries that are missing in it, because they could not be written.", history_dropped},
	{"shardd_history_late", METRICS_GAUGE, "1: the disk takes no entries now.", history_late},
	{"shardd_model_generation", METRICS_GAUGE, "Grows when the model is lost and set back.",
	 generation},
	{"shardd_step", METRICS_GAUGE, "Last step that was decided.", step_number},
	{"shardd_steps_applied_total", METRICS_COUNTER, "Steps that changed weights.", applied},
	{"shardd_steps_skipped_total", METRICS_COUNTER, "Steps that changed nothing, by reason.",
	 skipped},
	{"shardd_attempts_ended_total", METRICS_COUNTER, "Attempts that ended without a decision.",
	 attempts_ended},
	{"shardd_votes_differ_total", METRICS_COUNTER,
	 "On the coordinator: attempts in which the copies of a chunk did not agree.",
	 votes_differ},
	{"shardd_members_cut_off_total", METRICS_COUNTER,
	 "On the coordinator: members that had to leave because links between members were lost.",
	 cut_off},
	{"shardd_gradients_differ_total", METRICS_COUNTER,
	 "Gradients with another norm here than the node said that reduced them.", grads_differ},
	{"shardd_stragglers_dropped_total", METRICS_COUNTER,
	 "On the coordinator: trainers that were put out because others waited for them.",
	 stragglers},
	{"shardd_step_seconds", METRICS_HISTOGRAM,
	 "From the begin of a step's attempt to its decision.", step_times},
	{"shardd_wait_seconds", METRICS_HISTOGRAM,
	 "From the first local rank that had pushed everything to the decision.", wait_times},
	{"shardd_reduce_seconds", METRICS_HISTOGRAM,
	 "From the first sum of gradients on this node to the last.", reduce_times},
	{"shardd_apply_seconds", METRICS_HISTOGRAM,
	 "From the decision until every chunk here is updated and sent.", apply_times},
	{"shardd_attempt_age_seconds", METRICS_GAUGE, "Age of the attempt in hand.", attempt_age},
	{"shardd_waiting_for", METRICS_GAUGE, "1: the attempt in hand waits for this local rank.",
	 waiting_for},
	{"shardd_waiting_chunks", METRICS_GAUGE, "Chunks that this local rank has not pushed yet.",
	 missing},
	{"shardd_rank_lag_seconds", METRICS_GAUGE,
	 "In the last step: last chunk of this rank after that of the first local rank.", lag},
	{"shardd_contribution_received_bytes_total", METRICS_COUNTER,
	 "Gradient bytes that came from other nodes.", contrib_in},
	{"shardd_reduced_received_bytes_total", METRICS_COUNTER,
	 "Bytes of reduced gradients that came from the nodes that reduced them.", grad_in},
	{"shardd_image_received_bytes_total", METRICS_COUNTER,
	 "Parameter bytes that came from other nodes.", image_in},
	{"shardd_image_lacking_chunks", METRICS_GAUGE,
	 "Chunks of the image that have yet to come from other nodes.", image_lacking},
	{"shardd_image_asked_chunks", METRICS_GAUGE,
	 "Chunks of the image that other nodes asked for and that wait for their turn here.",
	 image_asked},
	{"shardd_grad_norm", METRICS_GAUGE, "Norm of the last gradient, unscaled, before the clip.",
	 grad_norm},
	{"shardd_clip_factor", METRICS_GAUGE,
	 "What the last gradient was multiplied with by the clip; 1: not clipped.", clip_factor},
	{"shardd_learning_rate", METRICS_GAUGE, "Learning rate of the last step.", learning_rate},
	{"shardd_loss_scale", METRICS_GAUGE, "Loss scale of the next step.", loss_scale},
	{"shardd_diverged", METRICS_GAUGE,
	 "1: too many skipped steps or a scale at its floor; the model is paused.", diverged},
	{"shardd_kept_elements_total", METRICS_COUNTER,
	 "Elements kept because their new value was not finite.", kept},
	{"shardd_checkpoint_age_seconds", METRICS_GAUGE, "Since the newest checkpoint was written.",
	 checkpoint_age},
	{"shardd_checkpoint_last_step", METRICS_GAUGE, "Step of the newest checkpoint; 0: none.",
	 checkpoint_step},
	{"shardd_checkpoint_bytes", METRICS_GAUGE, "Size of the newest checkpoint.",
	 checkpoint_bytes},
	{"shardd_checkpoint_write_seconds", METRICS_GAUGE,
	 "What writing the newest checkpoint took, from hold to rename.", checkpoint_write},
	{"shardd_checkpoint_hold_seconds", METRICS_GAUGE,
	 "How long no step was decided for the newest checkpoint.", checkpoint_hold},
	{"shardd_checkpoint_failures_total", METRICS_COUNTER, "Saves and restores that failed.",
	 checkpoint_failures},
	{"shardd_checkpoint_every_steps", METRICS_GAUGE, "checkpoint_every; 0: only when asked.",
	 checkpoint_every},
};

/* HTTP does not say who asks. So it shows what anybody may read, and the rest only if the operator
 * wants that. */
static bool shown(const struct model *m)
{
	return m->server->conf->http_private_models ||
	       access_allowed(m->set.mode, m->spec->owner, NULL, false);
}

static void model_metrics(FILE *f, const struct server *s)
{
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		metrics_family(f, families[i].name, families[i].type, families[i].help);
		list_each(it, (struct list *)(uintptr_t)&s->models) {
			const struct model *m = list_of(it, struct model, link);

			if (!m->defining && shown(m))
				families[i].sample(f, families[i].name, m);
		}
	}
}

/* --- the snapshot --- */

/* What a requester over HTTP is: nobody that is known, or everybody (http_private_models). */
static const Shard__Cred *reader(const struct server *s, Shard__Cred *all)
{
	shard__cred__init(all);
	all->known = all->root = true;
	return s->conf->http_private_models ? all : NULL;
}

static void health(FILE *f, const struct server *s)
{
	Shard__Cred all;

	(void)health_lines(f, s, reader(s, &all));
}

static char *written(void (*write)(FILE *f, const struct server *s), const struct server *s)
{
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);
	bool ok;

	if (f == NULL)
		return NULL;
	write(f, s);
	ok = !ferror(f);
	if (fclose(f) == 0 && ok)
		return text;
	free(text);
	return NULL;
}

static void all_metrics(FILE *f, const struct server *s)
{
	server_metrics(f, s);
	model_metrics(f, s);
	process_metrics(f);
}

/* What the charts of the page begin with. */
static json_t *all_samples(const struct server *s)
{
	json_t *models = json_object();

	list_each(it, (struct list *)(uintptr_t)&s->models) {
		const struct model *m = list_of(it, struct model, link);

		if (!m->defining && shown(m))
			json_object_set_new(models, m->name, progress_samples_json(m));
	}
	return json_pack("{s:f, s:o}", "every_s", (double)PROGRESS_SAMPLE_NS / NS_PER_SEC, "models",
			 models);
}

void scrape_render(void *server, struct http_snapshot *out)
{
	const struct server *s = server;
	Shard__Cred all;
	json_t *events = events_json(s, reader(s, &all)),
	       *samples = out->due ? all_samples(s) : NULL;

	out->metrics = written(all_metrics, server);
	out->status = status_json(s, reader(s, &all));
	out->events = json_dumps(events, JSON_COMPACT | JSON_PRESERVE_ORDER);
	json_decref(events);
	if (out->due)
		out->samples = json_dumps(samples, JSON_COMPACT | JSON_PRESERVE_ORDER);
	json_decref(samples);
	out->health = written(health, server);
	out->ill = health_lines(NULL, s, reader(s, &all)) == HEALTH_ILL;
	health_ready(s, out->unready, sizeof(out->unready));
}

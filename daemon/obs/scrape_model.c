/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics of models: one row per family, whose function writes the samples of one model.
 * scrape.c calls on the loop, for each snapshot. A node tells of itself, and what only the
 * coordinator knows it alone shows. Of a model that others may not read nothing is shown, unless
 * the operator wants it. Models of `shardctl bench` are left out: each has a name of its own, and
 * would leave series behind that nobody looks at. Nothing here can fail. */
#include "obs/scrape_model.h"

#include "base/check.h"
#include "base/clock.h"
#include "ckpt/ckpt.h"
#include "ckpt/copying.h"
#include "control/access.h"
#include "control/moving.h"
#include "data/catchup.h"
#include "data/images.h"
#include "link/nodes.h"
#include "model/lead.h"
#include "model/model.h"
#include "obs/history.h"
#include "obs/metrics.h"
#include "obs/progress.h"
#include "store/tier_gpu.h"
#include "store/tier_nvme.h"
#include "wire/bench.h"

#include <stdlib.h>
#include <string.h>

static double seconds(uint64_t ns)
{
	return (double)ns / NS_PER_SEC;
}

struct family {
	const char *name;
	enum metrics_type type;
	const char *help;
	void (*sample)(FILE *f, const char *name, const struct model *m);
};

#define MODEL(m) METRICS_LABELS({"model", (m)->name})
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
#define ON_DISK(fn, field)                                                                         \
	static void fn(FILE *f, const char *name, const struct model *m)                           \
	{                                                                                          \
		if (m->set.tier == TIER_NVME)                                                      \
			metrics_count(f, name, MODEL(m), tier_nvme_count(m->tier).field);          \
	}
ON_DISK(nvme_written, written_bytes)
ON_DISK(nvme_read, read_bytes)
ON_DISK(nvme_dirty, dirty)
static void direct_short(FILE *f, const char *name, const struct model *m)
{
	if (m->set.tier == TIER_GPU)
		metrics_count(f, name, MODEL(m),
			      tier_gpu_direct_short(m->tier, m->memory.nodes_nr));
}
static void nvme_durable(FILE *f, const char *name, const struct model *m)
{
	if (m->set.nvme_durable)
		metrics_count(f, name, MODEL(m), m->memory.durable.has.step);
}
NUMBER(loss_scale, m->record.scaler.scale)
NUMBER(grad_norm, m->record.grad_norm)
NUMBER(clip_factor, m->record.clip_factor)
NUMBER(learning_rate, m->record.lr)
COUNT(world_size, m->attempt.world.size)
COUNT(min_world, m->set.min_world)
COUNT(max_world, m->set.max_world)
COUNT(losses, m->metrics->progress.losses)
COUNT(rollbacks, m->metrics->progress.setbacks)
COUNT(steps_lost, m->metrics->progress.steps_lost)
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

/* Only the coordinator knows those on all nodes. */
static void joined(FILE *f, const char *name, const struct model *m)
{
	struct core_state c;

	core_state(m->core, &c);
	if (c.coordinator)
		metrics_count(f, name, MODEL(m), c.joined);
}

static void last_step_at(FILE *f, const char *name, const struct model *m)
{
	if (m->metrics->progress.decided_at != 0)
		metrics_count(f, name, MODEL(m), (uint64_t)m->metrics->progress.decided_at);
}

static void last_rollback_at(FILE *f, const char *name, const struct model *m)
{
	if (m->metrics->progress.back.at != 0)
		metrics_count(f, name, MODEL(m), (uint64_t)m->metrics->progress.back.at);
}

static void step_median(FILE *f, const char *name, const struct model *m)
{
	uint64_t median = progress_median_ns(m);

	if (median > 0)
		metrics_sample(f, name, MODEL(m), seconds(median));
}

static void skipped(FILE *f, const char *name, const struct model *m)
{
	for (enum metrics_skip i = 0; i < METRICS_SKIPS; i++)
		metrics_count(f, name,
			      METRICS_LABELS({"model", m->name}, {"reason", metrics_skip_name(i)}),
			      m->metrics->skipped[i]);
}

static void state(FILE *f, const char *name, const struct model *m)
{
	const char *now = progress_state(m);

	for (const char *const *word = progress_states; *word != NULL; word++)
		metrics_count(f, name, METRICS_LABELS({"model", m->name}, {"state", *word}),
			      strcmp(*word, now) == 0);
}

/* Some of their names are two words, which a query would have to quote. */
static void memory(FILE *f, const char *name, const struct model *m)
{
	for (enum budget_item i = 0; i < BUDGET_ITEMS; i++) {
		char item[32], *space;

		snprintf(item, sizeof(item), "%s", budget_item_name(i));
		while ((space = strchr(item, ' ')) != NULL)
			*space = '_';
		metrics_count(f, name, METRICS_LABELS({"model", m->name}, {"item", item}),
			      m->need.bytes[i]);
	}
}

static void chunks(FILE *f, const char *name, const struct model *m)
{
	/* One pass, because there may be many chunks and many nodes. */
	uint64_t nr[CONFIG_NODES_MAX] = {0};

	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		for (uint64_t n = place_copies(&m->place, c); n != 0; n &= n - 1)
			nr[__builtin_ctzll(n)]++;
	for (uint16_t n = 0; n < m->server->nodes_nr; n++)
		metrics_count(
			f, name,
			METRICS_LABELS({"model", m->name}, {"owner", members_name(m->server, n)}),
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
		metrics_count(f, name, METRICS_LABELS({"model", m->name}, {"state", states[i]}),
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
		char rank[16];

		snprintf(rank, sizeof(rank), "%u", g->rank);
		metrics_count(f, name, METRICS_LABELS({"model", m->name}, {"rank", rank}),
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

/* The other families of ranks have no pid, so that a trainer that starts again goes on with its
 * series. */
static void rank_info(FILE *f, const char *name, const struct model *m)
{
	for (uint32_t i = 0; m->attempt.on && i < m->contrib.local_nr; i++) {
		uint32_t r = m->contrib.local[i].rank;
		char rank[16], pid[16];

		snprintf(rank, sizeof(rank), "%u", r);
		snprintf(pid, sizeof(pid), "%u", m->attempt.world.rank[r].pid);
		metrics_count(f, name,
			      METRICS_LABELS({"model", m->name}, {"rank", rank},
					     {"node", members_name(m->server, m->server->self)},
					     {"pid", pid}),
			      1);
	}
}

static void lag(FILE *f, const char *name, const struct model *m)
{
	for (uint32_t i = 0; i < m->metrics->ranks_nr; i++) {
		char rank[16];

		snprintf(rank, sizeof(rank), "%u", m->metrics->rank[i].rank);
		metrics_sample(f, name, METRICS_LABELS({"model", m->name}, {"rank", rank}),
			       seconds(m->metrics->rank[i].lag_ns));
	}
}

static struct ckpt_status checkpoint_now(const struct model *m)
{
	struct ckpt_status st;

	ckpt_status(m, &st);
	return st;
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
CHECKPOINT(checkpoint_shared, m->ckpt->last.path[0] != 0, (double)m->ckpt->last.shared_bytes)
CHECKPOINT(checkpoint_write, m->ckpt->last.path[0] != 0, seconds(m->ckpt->last.write_ns))
CHECKPOINT(checkpoint_hold, m->ckpt->last.path[0] != 0, seconds(m->ckpt->last.hold_ns))
CHECKPOINT(checkpoint_failures, true, (double)m->ckpt->failures)
CHECKPOINT(checkpoint_every, true, (double)m->set.checkpoint_every)
CHECKPOINT(checkpoint_done, true, (double)checkpoint_now(m).done_bytes)
CHECKPOINT(checkpoint_total, true, (double)checkpoint_now(m).total_bytes)

#define COPYING(fn, value)                                                                         \
	static void fn(FILE *f, const char *name, const struct model *m)                           \
	{                                                                                          \
		const struct copying_state *c = copying_state(m);                                  \
                                                                                                   \
		if (c != NULL)                                                                     \
			metrics_sample(f, name, MODEL(m), (double)(value));                        \
	}

COPYING(copied_step, c->step)
COPYING(copies_left, c->left)
COPYING(copy_failures, c->failures)

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
	{"shardd_last_step_timestamp_seconds", METRICS_GAUGE,
	 "When the last step was decided; missing: none was since the start.", last_step_at},
	{"shardd_step_median_seconds", METRICS_GAUGE,
	 "Median time from one decided step to the next, of the newest ones.", step_median},
	{"shardd_world_size", METRICS_GAUGE,
	 "Trainers in the world of the attempt in hand, or of the last one.", world_size},
	{"shardd_joined", METRICS_GAUGE,
	 "On the coordinator: trainers that have joined, on all nodes.", joined},
	{"shardd_min_world", METRICS_GAUGE, "min_world: with fewer trainers no step begins.",
	 min_world},
	{"shardd_max_world", METRICS_GAUGE, "max_world: the most trainers in a step.", max_world},
	{"shardd_model_losses_total", METRICS_COUNTER,
	 "Times that weights of the model were lost or given up for a restore.", losses},
	{"shardd_rollbacks_total", METRICS_COUNTER,
	 "Times that the model went on from an older step than it had reached.", rollbacks},
	{"shardd_last_rollback_timestamp_seconds", METRICS_GAUGE,
	 "When the last one was; missing: none was since the start.", last_rollback_at},
	{"shardd_steps_lost_total", METRICS_COUNTER,
	 "Steps that these rollbacks have to be trained again.", steps_lost},
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
	{"shardd_rank_info", METRICS_GAUGE,
	 "Always 1; labels say where a local rank of the attempt in hand runs.", rank_info},
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
	{"shardd_gpu_direct_short_chunks", METRICS_GAUGE,
	 "Chunks on GPUs whose gradients are added in main memory if a node that has joined "
	 "contributes (tier = gpu); a restart of shardd here ends it.",
	 direct_short},
	{"shardd_nvme_written_bytes_total", METRICS_COUNTER,
	 "Bytes of masters and moments that were written to the disk (tier = nvme): its wear.",
	 nvme_written},
	{"shardd_nvme_read_bytes_total", METRICS_COUNTER, "The same, read.", nvme_read},
	{"shardd_nvme_dirty_chunks", METRICS_GAUGE,
	 "Chunks whose newest state is in memory, and not on the disk.", nvme_dirty},
	{"shardd_nvme_durable_step", METRICS_GAUGE,
	 "With nvme_durable = step: the last step that a loss of power does not cost.",
	 nvme_durable},
	{"shardd_checkpoint_age_seconds", METRICS_GAUGE, "Since the newest checkpoint was written.",
	 checkpoint_age},
	{"shardd_checkpoint_last_step", METRICS_GAUGE, "Step of the newest checkpoint; 0: none.",
	 checkpoint_step},
	{"shardd_checkpoint_bytes", METRICS_GAUGE, "Size of the newest checkpoint.",
	 checkpoint_bytes},
	{"shardd_checkpoint_shared_bytes", METRICS_GAUGE,
	 "Of these, what it shares with the checkpoint before it, and was not written again.",
	 checkpoint_shared},
	{"shardd_checkpoint_write_seconds", METRICS_GAUGE,
	 "What writing the newest checkpoint took, from hold to rename.", checkpoint_write},
	{"shardd_checkpoint_hold_seconds", METRICS_GAUGE,
	 "How long no step was decided for the newest checkpoint.", checkpoint_hold},
	{"shardd_checkpoint_failures_total", METRICS_COUNTER, "Saves and restores that failed.",
	 checkpoint_failures},
	{"shardd_checkpoint_every_steps", METRICS_GAUGE, "checkpoint_every; 0: only when asked.",
	 checkpoint_every},
	{"shardd_checkpoint_in_progress_bytes", METRICS_GAUGE,
	 "Bytes that the save or restore in hand has written or read; 0: there is none.",
	 checkpoint_done},
	{"shardd_checkpoint_in_progress_total_bytes", METRICS_GAUGE,
	 "Bytes that it has to write or read.", checkpoint_total},
	{"shardd_checkpoint_copied_step", METRICS_GAUGE,
	 "Step of the checkpoint that checkpoint_hook copied last; 0: none since the start.",
	 copied_step},
	{"shardd_checkpoint_copies_left", METRICS_GAUGE,
	 "Checkpoints that checkpoint_hook has not copied yet.", copies_left},
	{"shardd_checkpoint_copy_failures_total", METRICS_COUNTER,
	 "Runs of checkpoint_hook that failed.", copy_failures},
};

/* HTTP does not say who asks. So it shows what anybody may read, and the rest only if the operator
 * wants that. */
bool scrape_shown(const struct model *m)
{
	return m->server->conf->http_private_models ||
	       access_allowed(m->set.mode, m->spec->owner, NULL, false);
}

void scrape_models(FILE *f, const struct server *s)
{
	for (size_t i = 0; i < NR(families); i++) {
		metrics_family(f, families[i].name, families[i].type, families[i].help);
		list_each(it, (struct list *)(uintptr_t)&s->models) {
			const struct model *m = list_of(it, struct model, link);

			if (!m->defining && !bench_is(m->name) && scrape_shown(m))
				families[i].sample(f, families[i].name, m);
		}
	}
}

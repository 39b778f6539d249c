/* SPDX-License-Identifier: Apache-2.0 */
/* A model's settings, as rows of the table engine. settings.c merges layers of them, and sections.c
 * checks each line of a file through settings_check(). Most rows name their field of struct
 * model_settings, and the engine does the rest. The exceptions are here: betas, pinned and nesterov
 * have a syntax of their own, and the range of a hyper-parameter stands in its optimizer's row.
 * Whatever is wrong with a value is SHARD_BAD_ARG with what may be chosen. */
#include "config/keys.h"

#include "base/check.h"
#include "config/foreign.h"
#include "config/settings.h"
#include "config/value.h"

#include <assert.h>
#include <string.h>

#define FIELD(f)                                                                                   \
	.offset = offsetof(struct model_settings, f),                                              \
	.bytes = sizeof(((struct model_settings *)NULL)->f)
#define PARAM(p) FIELD(schedule.param[p]), .as_double = true, .role = SETTINGS_PARAM, .index = p
#define HYPER(h) .role = SETTINGS_HYPER, .index = h

static const char *optimizer_name(uint32_t i)
{
	return i < OPTIM_NR ? optim_row((enum optim_id)i)->name : NULL;
}

static const char *schedule_name(uint32_t i)
{
	return i < SCHEDULE_NR ? schedule_row((enum schedule_id)i)->name : NULL;
}

static const char *const nonfinite_words[] = {[false] = "skip", [true] = "pause", NULL};
static const char *const lost_words[] = {[false] = "fail", [true] = "reinitialize", NULL};
static const char *const codec_words[] = {
	[QUANT_NONE] = "none", [QUANT_INT8] = "int8", [QUANT_INT4] = "int4", NULL};
static const char *const tier_words[] = {
	[TIER_RAM] = "ram", [TIER_NVME] = "nvme", [TIER_GPU] = "gpu", NULL};
static const char *const durable_words[] = {[false] = "off", [true] = "step", NULL};
static const char *const stragglers_words[] = {[false] = "wait", [true] = "drop", NULL};
static const char *const warmup_words[] = {
	[SCHEDULE_LOG] = "log", [SCHEDULE_LINEAR] = "linear", NULL};

/* clang-format off */
static const struct table_row rows[] = {
	{.name = "optimizer", .role = SETTINGS_OPTIMIZER, .type = TABLE_CHOICE,
		.choice = optimizer_name, .fallback = "adamw",
		.help = "The optimizer of all tensors."},
	{.name = "beta1", .type = TABLE_NUMBER, HYPER(HYPER_BETA1), .scope = TABLE_BOTH,
		.otherwise = "the optimizer's",
		.help = "The decay of the first moment."},
	{.name = "beta2", .type = TABLE_NUMBER, HYPER(HYPER_BETA2), .scope = TABLE_BOTH,
		.otherwise = "the optimizer's",
		.help = "The decay of the second moment."},
	{.name = "checkpoint_dir", .type = TABLE_FOLDER, FIELD(checkpoint_dir), .max = 255,
		.word = "none", .saving = true, .fallback = "none",
		.help = "A folder that all nodes share. Each model has a folder of its own in it."},
	{.name = "checkpoint_every", .type = TABLE_COUNT, FIELD(checkpoint_every), .max = 1e12,
		.saving = true, .fallback = "0",
		.help = "The number of steps between checkpoints in checkpoint_dir. With 0 the "
			"model is saved only when somebody asks."},
	{.name = "chunk_elems", .type = TABLE_COUNT, FIELD(chunk_elems),
		.min = SETTINGS_CHUNK_ELEMS_MIN, .max = SETTINGS_CHUNK_ELEMS_MAX,
		.power_of_two = true, .fallback = "1Mi",
		.help = "The number of elements in a chunk."},
	{.name = "clip", .type = TABLE_NUMBER, FIELD(clip), .max = TABLE_BIG, .fallback = "0",
		.help = "The largest global norm of a gradient. With 0 nothing is clipped."},
	{.name = "codec_block", .role = SETTINGS_CODEC, .type = TABLE_COUNT, FIELD(grad_codec.block),
		.min = QUANT_BLOCK_MIN, .max = QUANT_BLOCK_MAX, .power_of_two = true,
		.fallback = "256",
		.help = "The number of elements in a block of a codec."},
	{.name = "consecutive_hysteresis", .type = TABLE_BOOL, FIELD(consecutive_hysteresis),
		.fallback = "no",
		.help = "Whether each good step refills the hysteresis."},
	{.name = "cos_min_ratio", .type = TABLE_NUMBER, PARAM(SCHEDULE_COS_MIN_RATIO), .max = 1,
		.fallback = "0.0001",
		.help = "WarmupCosineLR: the learning rate at the end, as a part of lr."},
	{.name = "cycle_first_stair_count", .type = TABLE_COUNT,
		PARAM(SCHEDULE_CYCLE_FIRST_STAIR_COUNT), .max = 1e9, .fallback = "0",
		.help = "OneCycle: the number of stairs in the first half. 0 is a slope."},
	{.name = "cycle_first_step_size", .type = TABLE_COUNT,
		PARAM(SCHEDULE_CYCLE_FIRST_STEP_SIZE), .min = 1, .max = 1e12, .fallback = "2000",
		.help = "OneCycle: the number of steps in the first half."},
	{.name = "cycle_max_lr", .type = TABLE_NUMBER, PARAM(SCHEDULE_CYCLE_MAX_LR),
		.max = TABLE_BIG, .otherwise = "none, for OneCycle needs it",
		.help = "OneCycle: the learning rate in the middle."},
	{.name = "cycle_max_mom", .type = TABLE_NUMBER, PARAM(SCHEDULE_CYCLE_MAX_MOM),
		.max = 0.999999, .fallback = "0.9",
		.help = "OneCycle: the momentum at both ends."},
	{.name = "cycle_min_lr", .type = TABLE_NUMBER, PARAM(SCHEDULE_CYCLE_MIN_LR),
		.max = TABLE_BIG, .otherwise = "none, for OneCycle needs it",
		.help = "OneCycle: the learning rate at both ends."},
	{.name = "cycle_min_mom", .type = TABLE_NUMBER, PARAM(SCHEDULE_CYCLE_MIN_MOM),
		.max = 0.999999, .fallback = "0.8",
		.help = "OneCycle: the momentum in the middle, and of the first step."},
	{.name = "cycle_momentum", .type = TABLE_BOOL, PARAM(SCHEDULE_CYCLE_MOMENTUM),
		.fallback = "yes",
		.help = "OneCycle: whether beta1 of all groups (momentum for sgd) moves against "
			"the learning rate."},
	{.name = "cycle_second_stair_count", .type = TABLE_COUNT,
		PARAM(SCHEDULE_CYCLE_SECOND_STAIR_COUNT), .max = 1e9,
		.otherwise = "cycle_first_stair_count",
		.help = "OneCycle: the number of stairs in the second half."},
	{.name = "cycle_second_step_size", .type = TABLE_COUNT,
		PARAM(SCHEDULE_CYCLE_SECOND_STEP_SIZE), .max = 1e12,
		.otherwise = "cycle_first_step_size",
		.help = "OneCycle: the number of steps in the second half."},
	{.name = "decay_lr_rate", .type = TABLE_NUMBER, PARAM(SCHEDULE_DECAY_LR_RATE),
		.max = TABLE_BIG, .fallback = "0",
		.help = "OneCycle: after the cycle the learning rate falls by 1 / (1 + this) in "
			"each interval."},
	{.name = "decay_mom_rate", .type = TABLE_NUMBER, PARAM(SCHEDULE_DECAY_MOM_RATE),
		.max = TABLE_BIG, .fallback = "0",
		.help = "OneCycle: after the cycle the momentum grows by 1 + this in each "
			"interval."},
	{.name = "decay_step_size", .type = TABLE_COUNT, PARAM(SCHEDULE_DECAY_STEP_SIZE),
		.max = 1e12, .fallback = "0",
		.help = "OneCycle: the number of steps in an interval after the cycle. With 0 "
			"nothing decays."},
	{.name = "eps", .type = TABLE_NUMBER, HYPER(HYPER_EPS), .scope = TABLE_BOTH,
		.otherwise = "the optimizer's",
		.help = "What is added to the denominator."},
	{.name = "error_feedback", .role = SETTINGS_CODEC, .type = TABLE_BOOL, FIELD(error_feedback), .fallback = "yes",
		.help = "Whether what a codec loses of a gradient is added to the next one. Each "
			"node keeps that for all parameters, in four bytes each."},
	{.name = "gpu_share", .role = SETTINGS_GPU, .type = TABLE_COUNT, FIELD(gpu_share), .min = 1,
		.max = 100, .fallback = "100",
		.help = "tier = gpu: how many percent of its chunks a node keeps in the memory of "
			"its GPUs, which update them. They are the last ones; the others are in "
			"memory."},
	{.name = "grad_codec", .role = SETTINGS_CODEC, .type = TABLE_CHOICE, FIELD(grad_codec.kind), .words = codec_words,
		.fallback = "none",
		.help = "What gradients travel as from node to node: as they are, or as integers "
			"of 8 or 4 bits with a scale for each block."},
	{.name = "hysteresis", .type = TABLE_COUNT, FIELD(hysteresis), .min = 1, .max = 1e6,
		.fallback = "2",
		.help = "The number of overflows before a dynamic loss scale falls."},
	{.name = "image_codec", .role = SETTINGS_CODEC, .type = TABLE_CHOICE, FIELD(image_codec), .words = codec_words,
		.fallback = "none",
		.help = "What images travel as from node to node: as they are, or as their "
			"difference from the image before, in integers of 8 or 4 bits with a "
			"scale for each block."},
	{.name = "initial_scale_power", .role = SETTINGS_SCALE_POWER, .type = TABLE_COUNT,
		.max = 100, .fallback = "16",
		.help = "A dynamic loss scale starts at 2 to the power of this."},
	{.name = "join_timeout", .type = TABLE_DURATION, FIELD(join_timeout_ns),
		.max = 24 * 3600e9, .fallback = "0s",
		.help = "When min_world trainers have joined, the first step waits so long for "
			"more of them, up to max_world. Later ones join between two steps."},
	{.name = "keep_latest", .type = TABLE_COUNT, FIELD(keep_latest), .max = 1e6, .saving = true,
		.fallback = "0",
		.help = "How many checkpoints checkpoint_every keeps. The oldest ones are deleted. "
			"With 0 all of them stay."},
	{.name = "local_world", .type = TABLE_COUNT, FIELD(local_world), .min = 1, .max = 256,
		.otherwise = "max_world where that is set, else min_world",
		.help = "The most trainers on one node. Each has memory for its gradients reserved "
			"there."},
	{.name = "loss_scale", .role = SETTINGS_SCALE, .type = TABLE_NUMBER, .max = TABLE_BIG,
		.word = "dynamic", .otherwise = "dynamic for fp16 gradients, else 1",
		.help = "The loss scale. dynamic, or 0, is one that follows overflows."},
	{.name = "loss_scale_window", .type = TABLE_COUNT, FIELD(scale_window), .min = 1,
		.max = 1e9, .fallback = "1000",
		.help = "The number of good steps before a dynamic loss scale doubles."},
	{.name = "lr", .type = TABLE_NUMBER, HYPER(HYPER_LR), .otherwise = "the optimizer's",
		.help = "The learning rate."},
	{.name = "lr_factor", .role = SETTINGS_LR_FACTOR, .type = TABLE_NUMBER, .max = TABLE_BIG,
		.scope = TABLE_GROUP, .fallback = "1",
		.help = "The learning rate of a group, as a part of lr."},
	{.name = "lr_range_test_min_lr", .type = TABLE_NUMBER, PARAM(SCHEDULE_LR_RANGE_TEST_MIN_LR),
		.max = TABLE_BIG, .fallback = "0.001",
		.help = "LRRangeTest: the learning rate at the start."},
	{.name = "lr_range_test_staircase", .type = TABLE_BOOL,
		PARAM(SCHEDULE_LR_RANGE_TEST_STAIRCASE), .fallback = "no",
		.help = "LRRangeTest: whether the learning rate moves in stairs, one in each "
			"interval."},
	{.name = "lr_range_test_step_rate", .type = TABLE_NUMBER,
		PARAM(SCHEDULE_LR_RANGE_TEST_STEP_RATE), .max = TABLE_BIG, .fallback = "1",
		.help = "LRRangeTest: the growth in each interval."},
	{.name = "lr_range_test_step_size", .type = TABLE_COUNT,
		PARAM(SCHEDULE_LR_RANGE_TEST_STEP_SIZE), .min = 1, .max = 1e12, .fallback = "2000",
		.help = "LRRangeTest: the number of steps in an interval."},
	{.name = "max_skips", .type = TABLE_COUNT, FIELD(max_skips), .max = 1e9, .fallback = "20",
		.help = "The number of skipped steps in a row after which the model is paused. "
			"With 0 there is no limit."},
	{.name = "max_staleness", .type = TABLE_COUNT, FIELD(max_staleness), .max = 1,
		.fallback = "0",
		.help = "With 1 a step is computed on the weights of two steps before it, while "
			"the step between is still being decided."},
	{.name = "max_world", .type = TABLE_COUNT, FIELD(max_world), .min = 1, .max = 256,
		.otherwise = "256, so that any number may train",
		.help = "The most trainers. A model that is defined already keeps its number where "
			"nobody sets it, and its local_world, too."},
	{.name = "min_copies", .type = TABLE_COUNT, FIELD(min_copies), .min = 1, .max = 64,
		.fallback = "1",
		.help = "A step waits until so many nodes have a copy of each chunk, at most "
			"replicas."},
	{.name = "min_loss_scale", .type = TABLE_NUMBER, FIELD(min_scale), .max = TABLE_BIG,
		.above = true, .fallback = "1",
		.help = "The smallest dynamic loss scale."},
	{.name = "min_world", .type = TABLE_COUNT, FIELD(min_world), .min = 1, .max = 256,
		.fallback = "1",
		.help = "A step waits for this number of trainers."},
	{.name = "mode", .type = TABLE_OCTAL, FIELD(mode), .max = 0777, .fallback = "0666",
		.help = "The permissions of the model for its owner, its group and others: 4 to "
			"read it, 2 to train or change it."},
	{.name = "momentum", .type = TABLE_NUMBER, HYPER(HYPER_MOMENTUM), .scope = TABLE_BOTH,
		.otherwise = "the optimizer's",
		.help = "The momentum of sgd."},
	{.name = "nesterov", .type = TABLE_NUMBER, HYPER(HYPER_NESTEROV), .scope = TABLE_BOTH,
		.otherwise = "0",
		.help = "Whether sgd uses Nesterov momentum: 1 or 0, or yes or no."},
	{.name = "nonfinite", .type = TABLE_CHOICE, FIELD(pause_on_nonfinite),
		.words = nonfinite_words, .fallback = "skip",
		.help = "What a gradient with Inf or NaN does: its step is skipped, or the model "
			"is paused."},
	{.name = "nvme_cache", .role = SETTINGS_NVME, .type = TABLE_COUNT, FIELD(nvme_cache), .min = 4,
		.max = SETTINGS_CACHE_MAX, .fallback = "64",
		.help = "tier = nvme: how many of the chunks on its disk a node has in memory at a "
			"time, all but a few of which a step neither reads nor writes. Each takes "
			"the memory of its master and moments."},
	{.name = "nvme_durable", .role = SETTINGS_DURABLE, .type = TABLE_CHOICE,
		.words = durable_words, FIELD(nvme_durable), .fallback = "off",
		.help = "tier = nvme: with step, the disks of all nodes have every step before the "
			"next one is decided, so that a loss of power costs one step at most. Then "
			"each step writes all chunks, to twice the room. It takes warm_restart, "
			"membership = static, nvme_share = 100, max_staleness = 0 and, on several "
			"nodes, replicas = 1."},
	{.name = "nvme_share", .role = SETTINGS_NVME, .type = TABLE_COUNT, FIELD(nvme_share), .min = 1,
		.max = 100, .fallback = "100",
		.help = "tier = nvme: how many percent of its chunks a node keeps on its disk. The "
			"first ones stay in memory, because their image is wanted first."},
	{.name = "pinned", .role = SETTINGS_PINNED, .type = TABLE_OWN,
		.choose = "names of keys, separated by commas",
		.otherwise = "none",
		.help = "Keys that a trainer may not set."},
	{.name = "predivide", .type = TABLE_NUMBER, FIELD(predivide), .min = 1e-6, .max = 1e6,
		.above = true, .fallback = "1",
		.help = "Gradients are divided by this before they are summed, and the sum is "
			"multiplied again."},
	{.name = "quorum_timeout", .type = TABLE_DURATION, FIELD(quorum_timeout_ns),
		.max = 365 * 24 * 3600e9, .fallback = "0s",
		.help = "How long a trainer waits for a world of min_world trainers before its "
			"call fails and says who is missing. With 0s it waits for timeout."},
	{.name = "replicas", .type = TABLE_COUNT, FIELD(replicas), .min = 1, .max = 64,
		.hosting = true, .otherwise = "2 where two nodes or more have capacity, else 1",
		.help = "The number of nodes that hold each chunk, at most as many as there are. "
			"With 2 any one node may be lost, and each needs the memory for twice as "
			"many chunks. A model that is defined already, or comes from a checkpoint, "
			"keeps its number where nobody sets it."},
	{.name = "restore_at_start", .type = TABLE_BOOL, FIELD(restore_at_start), .saving = true,
		.fallback = "no",
		.help = "Whether a newly defined model comes from its newest checkpoint in "
			"checkpoint_dir, if there is one."},
	{.name = "schedule", .type = TABLE_CHOICE, FIELD(schedule.id), .choice = schedule_name,
		.fallback = "none",
		.help = "The schedule of the learning rate, with the names and meanings of "
			"DeepSpeed."},
	{.name = "staleness_after", .role = SETTINGS_STALENESS, .type = TABLE_COUNT,
		FIELD(staleness_after), .max = 1e12, .fallback = "0",
		.help = "max_staleness = 1: steps up to this number are computed on the weights of "
			"the step before, until the first, large changes are over."},
	{.name = "straggler_timeout", .type = TABLE_DURATION, FIELD(straggler_timeout_ns),
		.min = 1e6, .max = 24 * 3600e9, .fallback = "30s",
		.help = "With stragglers = drop, the time for which no further trainer has become "
			"ready after which the others are put out."},
	{.name = "stragglers", .type = TABLE_CHOICE, FIELD(drop_stragglers),
		.words = stragglers_words, .fallback = "wait",
		.help = "What happens to trainers that others have waited for during "
			"straggler_timeout: they are waited for until step_timeout, or put out of "
			"the world, if min_world are left. They may join again."},
	{.name = "tier", .role = SETTINGS_TIER, .type = TABLE_CHOICE, FIELD(tier), .words = tier_words,
		.fallback = "ram",
		.help = "Where masters and moments are: in memory, in files in [daemon] nvme_dir of "
			"each node, or in the memory of its [daemon] gpu. Bits do not depend on it."},
	{.name = "timeout", .type = TABLE_DURATION, FIELD(timeout_ns), .min = 1e6,
		.max = 365 * 24 * 3600e9, .fallback = "300s",
		.help = "How long a trainer's waiting calls wait."},
	{.name = "total_num_steps", .type = TABLE_COUNT, PARAM(SCHEDULE_TOTAL_NUM_STEPS), .min = 1,
		.max = 1e12, .otherwise = "none, for these schedules need it",
		.help = "WarmupDecayLR and WarmupCosineLR: the number of steps until the end."},
	{.name = "warmup_max_lr", .type = TABLE_NUMBER, PARAM(SCHEDULE_WARMUP_MAX_LR),
		.max = TABLE_BIG, .otherwise = "lr for WarmupLR, 0.001 for WarmupDecayLR",
		.help = "WarmupLR and WarmupDecayLR: the learning rate after the warm-up."},
	{.name = "warmup_min_lr", .type = TABLE_NUMBER, PARAM(SCHEDULE_WARMUP_MIN_LR),
		.max = TABLE_BIG, .fallback = "0",
		.help = "WarmupLR and WarmupDecayLR: the learning rate at the start."},
	{.name = "warmup_min_ratio", .type = TABLE_NUMBER, PARAM(SCHEDULE_WARMUP_MIN_RATIO),
		.max = 1, .fallback = "0",
		.help = "WarmupCosineLR: the learning rate at the start, as a part of lr."},
	{.name = "warmup_num_steps", .type = TABLE_COUNT, PARAM(SCHEDULE_WARMUP_NUM_STEPS),
		.min = 1, .max = 1e12, .fallback = "1000",
		.help = "All Warmup schedules: the number of steps of the warm-up, which is at "
			"least 2."},
	{.name = "warmup_type", .type = TABLE_CHOICE, PARAM(SCHEDULE_WARMUP_TYPE),
		.words = warmup_words, .fallback = "log",
		.help = "All Warmup schedules: the shape of the warm-up."},
	{.name = "weight_decay", .type = TABLE_NUMBER, HYPER(HYPER_WEIGHT_DECAY),
		.scope = TABLE_BOTH, .otherwise = "the optimizer's",
		.help = "The weight decay in each step."},
	{.name = "when_lost", .type = TABLE_CHOICE, FIELD(reinitialize), .words = lost_words,
		.fallback = "fail",
		.help = "What defining a LOST model without a checkpoint does: it fails, or the "
			"model begins anew."},
	{.name = "betas", .role = SETTINGS_BETAS, .type = TABLE_OWN,
		.choose = "two numbers of at least 0 and below 1, as in 0.9,0.95",
		.scope = TABLE_BOTH,
		.help = "beta1 and beta2 in one."},
};
/* clang-format on */

static const struct table table = {rows, NR(rows)};

const struct table *settings_table(void)
{
	static_assert(NR(rows) <= SETTINGS_KEYS_MAX, "a merge has room for each key");
	return &table;
}

const struct table_row *settings_row(const char *name)
{
	uint32_t i = table_find(&table, NULL, name);

	CHECK(i < table.nr);
	return &rows[i];
}

const struct table_row *settings_param(enum schedule_param param)
{
	uint32_t i = 0;

	while (i < table.nr && !(rows[i].role == SETTINGS_PARAM && rows[i].index == (int)param))
		i++;
	CHECK(i < table.nr);
	return &rows[i];
}

const struct table_row *settings_find(const char *name, bool group, struct err *e)
{
	uint32_t i = table_find(&table, NULL, name);
	const char *near = i < table.nr ? NULL : table_nearest(&table, NULL, name);
	const char *known = i < table.nr ? NULL : foreign_key(name);

	if (i < table.nr && rows[i].scope != (group ? TABLE_MODEL : TABLE_GROUP))
		return &rows[i];
	if (i < table.nr)
		err_set(e, SHARD_BAD_ARG,
			group ? "%s: only for a whole model: a group has lr_factor, betas, eps, "
				"weight_decay, momentum"
			      : "%s: only for a group of a model",
			name);
	else if (known)
		err_set(e, SHARD_BAD_ARG, "%.64s: unknown key: %s", name, known);
	else if (near)
		err_set(e, SHARD_BAD_ARG, "%.64s: unknown key: did you mean %s?", name, near);
	else
		err_set(e, SHARD_BAD_ARG, "%.64s: unknown key: `shardd --help` lists them", name);
	return NULL;
}

/* Two numbers with a comma between them. */
static bool parse_betas(const char *text, struct table_value *v)
{
	const char *comma = strchr(text, ',');
	char first[SETTINGS_VALUE_BYTES];

	CHECK(strlen(text) < sizeof(first));
	if (!comma)
		return false;
	memcpy(first, text, (size_t)(comma - text));
	first[comma - text] = 0;
	return value_double(first, &v->number) && value_double(comma + 1, &v->second) &&
	       v->number >= 0 && v->number < 1 && v->second >= 0 && v->second < 1;
}

static enum shard_status check_names(const char *text, struct err *e)
{
	CHECK(strlen(text) < SETTINGS_VALUE_BYTES);
	while (*text) {
		size_t n = strcspn(text, ",");
		char name[SETTINGS_VALUE_BYTES];
		struct err why;

		memcpy(name, text, n);
		name[n] = 0;
		if (!settings_find(name, false, &why) && !settings_find(name, true, NULL))
			return err_set(e, SHARD_BAD_ARG, "pinned = %.64s: %.400s", name, why.text);
		text += n + (text[n] == ',');
	}
	return SHARD_OK;
}

enum shard_status settings_value(const struct table_row *row, const char *text,
				 struct table_value *v, struct err *e)
{
	struct err why;
	bool yes;

	CHECK(text && v);
	*v = (struct table_value){.whole = 0};
	if (strlen(text) >= SETTINGS_VALUE_BYTES)
		return err_set(e, SHARD_BAD_ARG, "%s = %.64s: too long", row->name, text);
	if (row->role == SETTINGS_PINNED)
		return check_names(text, e);
	if (row->role == SETTINGS_BETAS && parse_betas(text, v))
		return SHARD_OK;
	if (row->role == SETTINGS_BETAS)
		return err_set(e, SHARD_BAD_ARG, "betas = %.64s: choose %s", text, row->choose);
	if (row->role == SETTINGS_HYPER && row->index == HYPER_NESTEROV && value_bool(text, &yes)) {
		v->number = yes;
		return SHARD_OK;
	}
	if (table_parse(row, text, v, &why) != SHARD_OK)
		return err_set(e, SHARD_BAD_ARG, "%s = %.64s: %.400s", row->name, text, why.text);
	return SHARD_OK;
}

static enum shard_status wrong_optimizer(const struct optim_row *optim, const char *name,
					 const char *text, struct err *e)
{
	char has[128] = "";
	size_t used = 0;

	for (int i = 0; i < HYPER_NR; i++)
		if (optim->hyper[i].name)
			used += (size_t)snprintf(has + used, sizeof(has) - used, "%s%s",
						 used ? ", " : "", optim->hyper[i].name);
	CHECK(used < sizeof(has));
	return err_set(e, SHARD_BAD_ARG, "%s = %.64s: optimizer %s has no such key: it has %s",
		       name, text, optim->name, has);
}

enum shard_status settings_hyper(const struct optim_row *optim, const struct table_row *row,
				 const char *text, double x, struct err *e)
{
	const struct optim_range *r = &optim->hyper[row->index];

	CHECK(row->role == SETTINGS_HYPER);
	if (!r->name)
		return wrong_optimizer(optim, row->name, text, e);
	if (x >= r->min && (r->below_max ? x < r->max : x <= r->max) &&
	    (!r->whole || x == (double)(long)x))
		return SHARD_OK;
	if (r->max > TABLE_BIG)
		return err_set(e, SHARD_BAD_ARG, "%s = %.64s: choose a number of at least %g",
			       row->name, text, r->min);
	return err_set(e, SHARD_BAD_ARG, "%s = %.64s: choose a number of at least %g and %s %g",
		       row->name, text, r->min, r->below_max ? "below" : "at most", r->max);
}

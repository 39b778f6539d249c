/* SPDX-License-Identifier: Apache-2.0 */
/* What people bring along from DeepSpeed, torch, Hugging Face and Megatron. A typing error is near
 * the key that was meant, so table_nearest() finds that; these words are near nothing, or near
 * something else. settings_find() and config.c ask here when a key is unknown, before they guess.
 * A row says which key it is here, or why there is no key for it. Words that mean the same here are
 * no rows, because they are keys. */
#include "config/foreign.h"

#include "base/check.h"
#include "config/keys.h"

#include <string.h>
#include <strings.h>

/* What several rows say. */
#define SAMPLES                                                                                    \
	"the trainer shares out the samples: give the batch to shard_samples() and the weight to " \
	"shard_begin()"
#define DTYPES   "the definition says what gradients and parameters are in (grad and image)"
#define DIVIDED  "state is always divided among the nodes, and gradients as well: leave it out"
#define IN_RAM   "state is always in main memory, and the daemons compute there: leave it out"
#define IN_CHUNK "gradients travel in chunks of chunk_elems as they are pushed: leave it out"
#define NODES    "[nodes] lists the daemons, and a trainer gets its rank when it joins"

static const struct row {
	const char *word;
	const char *says;
} rows[] = {
	/* Clipping. */
	{"gradient_clipping", "here it is clip"},
	{"gradient_clip_val", "here it is clip"},
	{"grad_clip", "here it is clip"},
	{"grad_clip_norm", "here it is clip"},
	{"clip_grad", "here it is clip"},
	{"clip_grad_norm", "here it is clip"},
	{"clip_norm", "here it is clip"},
	{"max_norm", "here it is clip"},
	{"max_grad_norm", "here it is clip"},
	{"norm_type", "there is no key for it, because the norm for clip is always the 2-norm"},
	/* Optimizers. */
	{"optim", "here it is optimizer"},
	{"optimizer_type", "here it is optimizer"},
	{"type", "here it is optimizer or schedule"},
	{"learning_rate", "here it is lr"},
	{"base_lr", "here it is lr"},
	{"initial_lr", "here it is lr"},
	{"beta_1", "here it is beta1"},
	{"beta_2", "here it is beta2"},
	{"adam_beta1", "here it is beta1"},
	{"adam_beta2", "here it is beta2"},
	{"adam_betas", "here it is betas"},
	{"epsilon", "here it is eps"},
	{"adam_eps", "here it is eps"},
	{"adam_epsilon", "here it is eps"},
	{"wd", "here it is weight_decay"},
	{"decay", "here it is weight_decay"},
	{"l2", "here it is weight_decay"},
	{"adam_w_mode", "there is no key for it: choose optimizer = adamw or adam"},
	{"amsgrad",
	 "there is no key for it, because no optimizer here keeps the largest second moment"},
	{"maximize", "there is no key for it: push the negative gradient"},
	{"dampening", "there is no key for it, because sgd has no dampening"},
	{"lr_decay", "there is no key for it: choose a schedule"},
	{"initial_accumulator_value", "there is no key for it, because adagrad's sums begin at 0"},
	{"fused", "there is no key for it, because each update is one pass: leave it out"},
	{"foreach", "there is no key for it, because each update is one pass: leave it out"},
	{"torch_adam", "there is no key for it, because the daemons update: leave it out"},
	{"param_groups",
	 "there is no key for it: the definition has groups, each with settings of its own"},
	{"params",
	 "there is no key for it: write each key by itself, as in lr=1e-3 betas=0.9,0.95"},
	/* Schedules. */
	{"lr_scheduler", "here it is schedule"},
	{"lr_scheduler_type", "here it is schedule"},
	{"lr_decay_style", "here it is schedule"},
	{"scheduler", "here it is schedule"},
	{"scheduler_type", "here it is schedule"},
	{"warmup_steps", "here it is warmup_num_steps"},
	{"num_warmup_steps", "here it is warmup_num_steps"},
	{"warmup_iters", "here it is warmup_num_steps"},
	{"lr_warmup_iters", "here it is warmup_num_steps"},
	{"warmup_ratio", "there is no key for it, because steps are counted: set warmup_num_steps"},
	{"total_steps", "here it is total_num_steps"},
	{"num_training_steps", "here it is total_num_steps"},
	{"lr_decay_iters", "here it is total_num_steps"},
	{"t_max", "here it is total_num_steps"},
	{"eta_min", "here it is cos_min_ratio, which is a part of lr"},
	{"min_lr", "here it is cos_min_ratio, which is a part of lr, or warmup_min_lr"},
	{"max_lr", "here it is warmup_max_lr, or cycle_max_lr"},
	{"max_steps", "there is no key for it, because trainers count: end the loop at that step"},
	{"max_iters", "there is no key for it, because trainers count: end the loop at that step"},
	{"train_iters",
	 "there is no key for it, because trainers count: end the loop at that step"},
	{"num_train_epochs",
	 "there is no key for it, because trainers count: end the loop at that step"},
	/* Batches. */
	{"train_batch_size", "there is no key for it, because " SAMPLES},
	{"train_micro_batch_size_per_gpu", "there is no key for it, because " SAMPLES},
	{"micro_batch_size", "there is no key for it, because " SAMPLES},
	{"global_batch_size", "there is no key for it, because " SAMPLES},
	{"per_device_train_batch_size", "there is no key for it, because " SAMPLES},
	{"batch_size", "there is no key for it, because " SAMPLES},
	{"gradient_accumulation_steps",
	 "there is no key for it: give micro_steps to shard_begin(), and push with SHARD_ADD"},
	/* Types and loss scales. */
	{"fp16", "there is no key for it, because " DTYPES},
	{"bf16", "there is no key for it, because " DTYPES},
	{"dtype", "there is no key for it, because " DTYPES},
	{"precision", "there is no key for it, because " DTYPES},
	{"torch_dtype", "there is no key for it, because " DTYPES},
	{"communication_data_type", "there is no key for it, because " DTYPES},
	{"static_loss_scale", "here it is loss_scale"},
	{"dynamic_loss_scale", "here it is loss_scale = dynamic"},
	{"init_scale", "here it is initial_scale_power, of which 2 to the power is taken"},
	{"scale_window", "here it is loss_scale_window"},
	{"growth_interval", "here it is loss_scale_window"},
	{"min_scale", "here it is min_loss_scale"},
	{"growth_factor", "there is no key for it, because a dynamic loss scale doubles"},
	{"backoff_factor", "there is no key for it, because a dynamic loss scale halves"},
	{"prescale_gradients", "here it is predivide"},
	{"gradient_predivide_factor", "here it is predivide"},
	/* What ZeRO and FSDP ask. */
	{"zero_stage", "there is no key for it, because " DIVIDED},
	{"stage", "there is no key for it, because " DIVIDED},
	{"zero_optimization", "there is no key for it, because " DIVIDED},
	{"zero", "there is no key for it, because " DIVIDED},
	{"fsdp", "there is no key for it, because " DIVIDED},
	{"sharding_strategy", "there is no key for it, because " DIVIDED},
	{"offload", "there is no key for it, because " IN_RAM},
	{"cpu_offload", "there is no key for it, because " IN_RAM},
	{"offload_optimizer", "there is no key for it, because " IN_RAM},
	{"offload_param", "there is no key for it, because " IN_RAM},
	{"overlap_comm", "there is no key for it, because " IN_CHUNK},
	{"reduce_scatter", "there is no key for it, because " IN_CHUNK},
	{"reduce_bucket_size", "there is no key for it, because " IN_CHUNK},
	{"allgather_bucket_size", "there is no key for it, because " IN_CHUNK},
	{"bucket_cap_mb", "there is no key for it, because " IN_CHUNK},
	{"contiguous_gradients", "there is no key for it, because " IN_CHUNK},
	{"zero_quantized_gradients", "here it is grad_codec"},
	{"zero_quantized_weights",
	 "there is no key for it, because the image is sent in the type that trainers read: "
	 "grad_codec is for gradients"},
	{"zero_hpz_partition_size",
	 "there is no key for it, because each node has a whole image: leave it out"},
	/* Who trains. */
	{"world_size", "here it is min_world and max_world"},
	{"num_processes", "here it is min_world and max_world"},
	{"nproc", "here it is min_world and max_world"},
	{"min_nodes", "here it is min_world, which counts trainers"},
	{"max_nodes", "here it is max_world, which counts trainers"},
	{"min_gpus", "here it is min_world"},
	{"max_gpus", "here it is max_world"},
	{"nproc_per_node", "here it is local_world"},
	{"local_world_size", "here it is local_world"},
	{"num_gpus", "here it is local_world"},
	{"master_addr", "there is no key for it, because " NODES},
	{"master_port", "there is no key for it, because " NODES},
	{"rank", "there is no key for it, because " NODES},
	{"local_rank", "there is no key for it, because " NODES},
	{"num_nodes", "there is no key for it, because " NODES},
	{"nnodes", "there is no key for it, because " NODES},
	{"nvme_path", "here it is tier, which is nvme then, and [daemon] nvme_dir"},
	{"rdzv_endpoint", "there is no key for it, because " NODES},
	{"rdzv_backend", "there is no key for it, because " NODES},
	{"rdzv_id", "there is no key for it: [cluster] run_id tells two runs apart"},
	{"backend", "there is no key for it: [net] transport says what carries tensors"},
	{"max_restarts",
	 "there is no key for it, because a trainer may die and join again as often as it likes: "
	 "min_world says with how many the others go on"},
	{"steps_per_print",
	 "there is no key for it: `shardctl top` prints, and shard_result() tells of each step"},
	/* Checkpoints. */
	{"save_interval", "here it is checkpoint_every"},
	{"save_steps", "here it is checkpoint_every"},
	{"checkpoint_interval", "here it is checkpoint_every"},
	{"save_dir", "here it is checkpoint_dir"},
	{"ckpt_dir", "here it is checkpoint_dir"},
	{"output_dir", "here it is checkpoint_dir"},
	{"checkpoint_path", "here it is checkpoint_dir"},
	{"save_total_limit", "here it is keep_latest"},
	{"keep_last", "here it is keep_latest"},
	{"resume", "here it is restore_at_start"},
	{"auto_resume", "here it is restore_at_start"},
	{"resume_from_checkpoint", "here it is restore_at_start"},
};

const char *foreign_key(const char *key)
{
	CHECK(key);
	for (size_t i = 0; i < NR(rows); i++)
		if (strcasecmp(rows[i].word, key) == 0)
			return rows[i].says;
	return NULL;
}

void foreign_check(void)
{
	static const char is[] = "here it is ", none[] = "there is no key for it";
	const struct table *t = settings_table();

	for (size_t i = 0; i < NR(rows); i++) {
		const char *says = rows[i].says;
		char key[TABLE_TEXT_BYTES] = "";

		CHECK(foreign_key(rows[i].word) == says); /* No word is there twice. */
		CHECK(table_find(t, NULL, rows[i].word) == t->nr);
		if (strncmp(says, none, strlen(none)) == 0)
			continue;
		CHECK(strncmp(says, is, strlen(is)) == 0);
		snprintf(key, sizeof(key), "%.*s", (int)strcspn(says + strlen(is), " ,"),
			 says + strlen(is));
		CHECK(table_find(t, NULL, key) < t->nr); /* What it names is a key. */
	}
}

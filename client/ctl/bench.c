/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl bench` measures how fast steps are with the daemon at --address, and how near that
 * comes to what this machine's memory could do. Happy path: it trains a tiny model to find the
 * latency, measures the memory bandwidth (bench_memory.c), trains a model of --params parameters
 * (bench_train.c), and prints the figures. The update of one parameter has to move a fixed number
 * of bytes (28 for AdamW with 16-bit gradients and parameters), so the time of a step says how much
 * of the bandwidth it used. The exit code is 0 when everything was measured and 1 after an
 * interruption. Otherwise it stands for the daemon's status (ctl_exit_of). */
#include "ctl/bench.h"

#include "base/check.h"
#include "base/clock.h"
#include "ctl/ctl.h"
#include "ctl/json.h"
#include "ctl/memory.h"
#include "wire/dtype.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PARAMS, RANKS, STEPS, OPTIMIZER, IMAGE, GRAD };

#define PARAMS_MAX  (1ull << 40)
#define TINY_PARAMS 1024
#define TINY_STEPS  200

const struct argp_option ctl_bench_options[] = {
	{"params", CTL_KEY + PARAMS, "N", 0, "parameters of the model: 64Mi, 1.3B (default: 64Mi)",
	 0},
	{"ranks", CTL_KEY + RANKS, "N", 0, "trainers, as threads of this process (default: 1)", 0},
	{"steps", CTL_KEY + STEPS, "N", 0, "steps that count (default: 20)", 0},
	{"optimizer", CTL_KEY + OPTIMIZER, "NAME", 0,
	 "adamw, adam, sgd, adagrad or lion (default: adamw)", 0},
	{"image", CTL_KEY + IMAGE, "DTYPE", 0,
	 "parameters as trainers read them: fp32, bf16 or fp16 (default: bf16)", 0},
	{"grad", CTL_KEY + GRAD, "DTYPE", 0, "gradients (default: as --image)", 0},
	{0},
};

/* --- options --- */

static bool take_count(const struct ctl_options *o, int option, const char *name, uint64_t max,
		       uint64_t *to)
{
	if (!o->value[option] || ctl_count(o->value[option], max, to))
		return true;
	ctl_fail(o, CTL_USAGE, "bench: --%s %s: choose a number from 1 to %llu", name,
		 o->value[option], (unsigned long long)max);
	return false;
}

static bool take_dtype(const struct ctl_options *o, int option, const char *name,
		       enum shard_dtype *to)
{
	if (!o->value[option] || dtype_parse(o->value[option], to))
		return true;
	ctl_fail(o, CTL_USAGE, "bench: --%s %s: choose fp32, bf16 or fp16", name, o->value[option]);
	return false;
}

static bool take_optimizer(const struct ctl_options *o, struct bench_conf *b, uint32_t *states,
			   const char *name)
{
	static const struct {
		const char *name;
		uint32_t states;
	} rows[] = {{"adamw", 2}, {"adam", 2}, {"sgd", 1}, {"adagrad", 1}, {"lion", 1}};

	for (size_t i = 0; i < NR(rows); i++) {
		if (strcmp(rows[i].name, name) == 0) {
			b->optimizer = name;
			*states = rows[i].states;
			return true;
		}
	}
	ctl_fail(o, CTL_USAGE, "bench: --optimizer %s: choose adamw, adam, sgd, adagrad or lion",
		 name);
	return false;
}

static bool take_options(const struct ctl_options *o, struct bench_conf *b, uint32_t *states)
{
	uint64_t ranks = 1, steps = 20;

	*b = (struct bench_conf){.address = o->address,
				 .secret = o->secret,
				 .tls = o->tls,
				 .what = "bench",
				 .timeout_ms = (int64_t)(o->timeout_ns / NS_PER_MS) + 1};
	b->params = 64u << 20;
	b->image = SHARD_BF16;
	b->progress = !o->json && isatty(STDERR_FILENO);
	if (!take_count(o, PARAMS, "params", PARAMS_MAX, &b->params) ||
	    !take_count(o, RANKS, "ranks", BENCH_RANKS_MAX, &ranks) ||
	    !take_count(o, STEPS, "steps", BENCH_STEPS_MAX, &steps) ||
	    !take_dtype(o, IMAGE, "image", &b->image))
		return false;
	b->grad = b->image;
	b->ranks = (uint32_t)ranks;
	b->steps = (uint32_t)steps;
	return take_dtype(o, GRAD, "grad", &b->grad) &&
	       take_optimizer(o, b, states, o->value[OPTIMIZER] ? o->value[OPTIMIZER] : "adamw");
}

/* --- figures --- */

struct figures {
	struct bench_conf conf;
	struct bench_result step, tiny;
	/* All three in bytes/s: the limit of this machine's memory, the gradients and parameters
	 * that all ranks moved, and what updates read and wrote. */
	double memory, moved, used;
	uint32_t update_bytes; /* Per parameter. */
};

static void print_json(const struct figures *f)
{
	const struct bench_conf *b = &f->conf;
	json_t *o = json_pack(
		"{s:s, s:I, s:i, s:i, s:s, s:s, s:s, s:{s:f, s:f, s:f}, s:{s:I, s:I, s:f}, s:{s:i, "
		"s:f, s:f, s:f}, s:{s:f, s:f}}",
		"address", b->address, "params", (json_int_t)b->params, "ranks", (int)b->ranks,
		"steps", (int)b->steps, "optimizer", b->optimizer, "image", dtype_name(b->image),
		"grad", dtype_name(b->grad), "step_ms", "median", f->step.median_s * 1e3, "min",
		f->step.min_s * 1e3, "max", f->step.max_s * 1e3, "transfer", "pushed_bytes",
		(json_int_t)f->step.pushed, "pulled_bytes", (json_int_t)f->step.pulled, "gb_per_s",
		f->moved / 1e9, "update", "bytes_per_param", (int)f->update_bytes, "gb_per_s",
		f->used / 1e9, "limit_gb_per_s", f->memory / 1e9, "ratio",
		f->memory > 0 ? f->used / f->memory : 0.0, "latency_us", "median",
		f->tiny.median_s * 1e6, "min", f->tiny.min_s * 1e6);

	CHECK(o);
	ctl_print(o);
}

static void print_text(const struct figures *f)
{
	char pushed[CTL_NUMBER_BYTES], pulled[CTL_NUMBER_BYTES];
	const struct bench_conf *b = &f->conf;

	printf("%.4g Mi parameters, %s, parameters in %s, gradients in %s, %u rank%s, %u steps, "
	       "%s\n",
	       (double)b->params / (1 << 20), b->optimizer, dtype_name(b->image),
	       dtype_name(b->grad), b->ranks, b->ranks == 1 ? "" : "s", b->steps, b->address);
	printf("step      %10.3f ms    median; least %.3f, most %.3f\n", f->step.median_s * 1e3,
	       f->step.min_s * 1e3, f->step.max_s * 1e3);
	printf("transfer  %10.2f GB/s  %s of gradients and %s of parameters per rank and step\n",
	       f->moved / 1e9, ctl_bytes(pushed, (double)f->step.pushed),
	       ctl_bytes(pulled, (double)f->step.pulled));
	printf("update    %10.2f GB/s  %u bytes per parameter and step; memory of this machine "
	       "%.2f, ratio %.3f\n",
	       f->used / 1e9, f->update_bytes, f->memory / 1e9,
	       f->memory > 0 ? f->used / f->memory : 0.0);
	printf("latency   %10.1f us    median step of %d parameters; least %.1f\n",
	       f->tiny.median_s * 1e6, TINY_PARAMS, f->tiny.min_s * 1e6);
}

enum ctl_exit ctl_bench(const struct ctl_options *o)
{
	struct figures f = {.memory = 0};
	struct bench_conf tiny;
	struct memory_spec m = {0};
	enum shard_status st;
	double after;
	struct err e;

	if (!take_options(o, &f.conf, &m.states))
		return CTL_USAGE;
	m.image_bytes = (uint32_t)dtype_bytes(f.conf.image);
	m.grad_bytes = (uint32_t)dtype_bytes(f.conf.grad);
	tiny = f.conf;
	tiny.what = "latency";
	tiny.params = TINY_PARAMS;
	tiny.ranks = 1;
	tiny.steps = TINY_STEPS;
	/* The tiny model comes first, because it also shows early whether a daemon answers. */
	if ((st = bench_train(&tiny, &f.tiny, &e)) == SHARD_OK)
		st = bench_memory(f.conf.params * memory_update_bytes(&m), &f.memory, &e);
	if (st == SHARD_OK)
		st = bench_train(&f.conf, &f.step, &e);
	/* Other processes use this memory, too. The better of two measurements is the limit. */
	if (st == SHARD_OK)
		st = bench_memory(f.conf.params * memory_update_bytes(&m), &after, &e);
	if (st == SHARD_OK)
		f.memory = after > f.memory ? after : f.memory;
	if (st != SHARD_OK)
		return ctl_fail_as(o, st, "", e.text);
	f.update_bytes = memory_update_bytes(&m);
	f.moved = (double)(f.step.pushed + f.step.pulled) * f.conf.ranks / f.step.median_s;
	f.used = (double)f.update_bytes * (double)f.conf.params / f.step.median_s;
	if (o->json)
		print_json(&f);
	else
		print_text(&f);
	return CTL_OK;
}

// SPDX-License-Identifier: Apache-2.0
/* Tests the in-process reference. Its arithmetic gives the product's bits on random input, and its
 * symbols show that it shares only scalar kernels and conversions with the product. Its sources are
 * included here, because they belong to no library. */
#include "ref/refmath.c"
#include "ref/refschedule.c"
#include "ref/refsettings.c"

#include "base/rng.h"
#include "core/scaler.h"
#include "lib/compare.h"
#include "optim/ftz.h"
#include "optim/reduce.h"
#include "config/settings.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 9000, OPERANDS = 5, TYPES = 3 };

static const enum shard_dtype types[TYPES] = {SHARD_F32, SHARD_BF16, SHARD_F16};

static float any_value(
	/* Numbers of many sizes, now and then a denormal, and seldom one that is not finite. */
	struct rng *r)
{
	uint64_t kind = rng_below(r, 2000);
	float x = (float)((rng_unit(r) - 0.5) * exp2((double)rng_below(r, 24) - 12));

	return kind == 0   ? INFINITY
	       : kind == 1 ? NAN
	       : kind < 20 ? x * 0x1p-120f * 0x1p-12f
	       : kind < 30 ? 0 * x
			   : x;
}

static void sums_equal_the_products(void **state)
{
	static float values[N];
	static uint32_t grads[OPERANDS][N], mine[N], theirs[N];
	struct rng r = {11};
	unsigned before = ftz_on();

	(void)state;
	for (int trial = 0; trial < 120; trial++) {
		enum shard_dtype dt = types[trial % TYPES];
		reduce_fn *product = reduce_kernel(ISA_SCALAR, dt);
		uint32_t k = 1 + (uint32_t)rng_below(&r, OPERANDS);
		uint64_t n = trial < 100 ? 1 + rng_below(&r, 700) : N - rng_below(&r, 100);
		const float factor = trial % 3 ? 1 : trial % 2 ? 0.125f : 0.3f;
		const void *src[OPERANDS];
		struct reduce_sum want;
		double square;

		for (uint32_t i = 0; i < k; i++) {
			for (uint64_t j = 0; j < n; j++)
				values[j] = any_value(&r);
			dtype_convert(grads[i], dt, values, SHARD_F32, n);
			src[i] = grads[i];
		}
		memset(mine, 0, sizeof(mine));
		memset(theirs, 0, sizeof(theirs));
		want = product(n, k, src, theirs, factor, true);
		refmath_sum(mine, src, k, dt, factor, n);
		square = refmath_square(mine, dt, 0, n);
		assert_int_equal(refmath_finite(mine, dt, n), want.finite);
		/* Which NaN a sum gives does not matter, because the step is skipped. */
		if (want.finite) {
			assert_memory_equal(mine, theirs, sizeof(mine));
			assert_memory_equal(&square, &want.sq, sizeof(square));
		}
	}
	ftz_restore(before);
}

static void words_equal_the_products(void **state)
{
	struct rng r = {12};

	(void)state;
	for (int trial = 0; trial < 2000; trial++) {
		struct refsettings c = {.optimizer = (enum optim_id)rng_below(&r, OPTIM_NR)};
		const struct optim_row *row = optim_row(c.optimizer);
		uint64_t t = 1 + rng_below(&r, 3000);
		double mult = rng_unit(&r) / 65536;
		struct optim_args mine, theirs;

		for (int i = 0; i < HYPER_NR; i++) {
			if (row->hyper[i].name)
				c.hyper[i] =
					i == HYPER_NESTEROV ? (double)(trial & 1) : rng_unit(&r);
		}
		mine = refmath_words(&c, t, mult);
		optim_args_set(&theirs, row, c.hyper, t, (float)mult);
		assert_memory_equal(&mine, &theirs, sizeof(mine));
	}
}

static void schedules_equal_the_products(void **state)
{
	static const char *const texts[] = {
		"schedule=none lr=0.5",
		"schedule=LRRangeTest lr_range_test_step_size=7 lr_range_test_step_rate=0.3",
		"schedule=LRRangeTest lr_range_test_step_size=7 lr_range_test_staircase=yes",
		"schedule=OneCycle cycle_min_lr=1e-4 cycle_max_lr=3e-3 cycle_first_step_size=20 "
		"cycle_second_step_size=31",
		"schedule=OneCycle cycle_min_lr=1e-4 cycle_max_lr=3e-3 cycle_first_step_size=30 "
		"cycle_first_stair_count=7 "
		"decay_step_size=5 decay_lr_rate=0.25 decay_mom_rate=0.01 "
		"cycle_second_stair_count=3",
		"schedule=WarmupLR lr=0.25 warmup_num_steps=30",
		"schedule=WarmupLR lr=0.25 warmup_num_steps=30 warmup_type=linear "
		"warmup_min_lr=0.1 warmup_max_lr=0.7",
		"schedule=WarmupDecayLR total_num_steps=150 warmup_num_steps=30",
		"schedule=WarmupDecayLR total_num_steps=150 warmup_num_steps=30 warmup_type=linear "
		"warmup_max_lr=0.3",
		"schedule=WarmupCosineLR total_num_steps=150 warmup_num_steps=30 lr=0.1",
		"schedule=WarmupCosineLR total_num_steps=150 warmup_num_steps=1 cos_min_ratio=0.2 "
		"warmup_min_ratio=0.1",
	};

	(void)state;
	for (size_t i = 0; i < NR(texts); i++) {
		struct settings_layer layer = {.text = texts[i], .origin = "test"};
		struct model_settings product;
		struct refsettings c;
		double momentum;
		struct err e;

		assert_int_equal(settings_make(&product, &layer, 1, NULL, 0, SHARD_F32, &e),
				 SHARD_OK);
		assert_int_equal(refsettings_parse(&c, texts[i], SHARD_F32, &e), SHARD_OK);
		for (uint64_t t = 1; t < 300; t++) {
			double lr = i ? schedule_lr(&product.schedule, t) : product.lr;
			double mine = refschedule_momentum(&c.schedule, t);

			assert_true(refschedule_lr(&c.schedule, c.hyper[HYPER_LR], t) == lr);
			assert_int_equal(mine >= 0,
					 schedule_momentum(&product.schedule, t, &momentum));
			assert_true(mine < 0 || mine == momentum);
		}
	}
}

static void loss_scale_equals_the_products(void **state)
{
	struct rng r = {13};

	(void)state;
	for (int trial = 0; trial < 300; trial++) {
		struct refsettings c = {.initial_scale_power = (double)rng_below(&r, 20),
					.loss_scale_window = (double)(1 + rng_below(&r, 6)),
					.hysteresis = (double)(1 + rng_below(&r, 4)),
					.min_loss_scale = exp2((double)rng_below(&r, 3)),
					.consecutive_hysteresis = trial & 1};
		struct record_conf conf = {.dynamic_scale = true,
					   .consecutive_hysteresis = c.consecutive_hysteresis,
					   .initial_scale = exp2(c.initial_scale_power),
					   .min_scale = c.min_loss_scale,
					   .scale_window = (int32_t)c.loss_scale_window,
					   .hysteresis = (int32_t)c.hysteresis};
		struct refscale mine;
		struct scaler theirs;

		refscale_start(&mine, &c);
		scaler_start(&theirs, &conf);
		for (int step = 0; step < 200; step++) {
			bool overflow = rng_below(&r, 5) == 0,
			     more = refscale_next(&mine, &c, overflow);

			assert_int_equal(more, scaler_update(&theirs, &conf, overflow));
			assert_true(mine.scale == theirs.scale);
			if (!more)
				break;
		}
	}
}

static void norm_and_clip_equal_the_products(void **state)
{
	static struct record prev, next;
	struct rng r = {14};

	(void)state;
	for (int trial = 0; trial < 300; trial++) {
		struct refsettings c = {.optimizer = OPTIM_ADAMW,
					.clip = trial % 3 ? rng_unit(&r) * 4 : 0,
					.loss_scale = 256};
		struct record_conf conf = {.optim = optim_row(OPTIM_ADAMW),
					   .groups_nr = 1,
					   .clip = c.clip,
					   .initial_scale = 256};
		double square = rng_unit(&r) * 1e6, weight = 4 + (double)rng_below(&r, 60), norm,
		       clip;
		uint8_t finite = 1;
		struct record_votes votes = {.sumsq = &square,
					     .finite = &finite,
					     .chunks_nr = 1,
					     .bad_tensor = -1,
					     .bad_rank = -1};
		struct core_world world = {.size = 1, .rank = {{.weight = weight}}};
		struct core_id id = {.step = 1, .attempt = 1};
		struct optim_args words;

		optim_defaults(conf.optim, conf.hyper[0]);
		memcpy(c.hyper, conf.hyper[0], sizeof(c.hyper));
		record_seal(&prev, &conf, &(struct core_id){0});
		record_decide(&next, &prev, &conf, &id, &world, &votes);
		norm = sqrt(square) / (c.loss_scale * weight);
		clip = refmath_clip(&c, norm);
		assert_true(next.grad_norm == norm);
		assert_true(next.clip_factor == clip);
		words = refmath_words(&c, 1, clip / (c.loss_scale * weight));
		assert_memory_equal(&words, &next.args[0], sizeof(words));
	}
}

static void settings_are_read(void **state)
{
	struct refsettings s;
	struct err e;

	(void)state;
	assert_int_equal(refsettings_parse(&s, "", SHARD_BF16, &e), SHARD_OK);
	assert_int_equal(s.optimizer, OPTIM_ADAMW);
	assert_true(s.hyper[HYPER_BETA2] == 0.999 && s.loss_scale == 1);
	assert_int_equal(refsettings_parse(&s, " lr=0.5  optimizer=sgd momentum=.9 nesterov=yes ",
					   SHARD_F16, &e),
			 SHARD_OK);
	assert_int_equal(s.optimizer, OPTIM_SGD);
	assert_true(s.hyper[HYPER_LR] == 0.5 && s.hyper[HYPER_MOMENTUM] == 0.9 &&
		    s.hyper[HYPER_NESTEROV] == 1 && s.loss_scale == 0);
	assert_int_equal(refsettings_parse(&s, "optimizer=muon", SHARD_F16, &e), SHARD_BAD_ARG);
	assert_non_null(strstr(e.text, "muon"));
	assert_int_equal(refsettings_parse(&s, "lr=0.1 warmth=3", SHARD_F16, &e), SHARD_BAD_ARG);
	assert_non_null(strstr(e.text, "warmth=3"));
	assert_int_equal(refsettings_parse(&s, "lr=fast", SHARD_F16, &e), SHARD_BAD_ARG);
	assert_int_equal(refsettings_parse(&s, "lr", SHARD_F16, &e), SHARD_BAD_ARG);
}

static void settings_equal_the_products(void **state)
{
	static const char *const texts[] = {
		"",
		"optimizer=adam clip=0.5 weight_decay=0.1 betas=0.8,0.95 eps=1e-6",
		"optimizer=sgd momentum=0.9 nesterov=yes lr=0.25 chunk_elems=4096 max_skips=3",
		"optimizer=adagrad loss_scale=128 nonfinite=pause",
		("optimizer=lion beta2=0.9 loss_scale=dynamic initial_scale_power=8 "
		 "loss_scale_window=7 hysteresis=3 min_loss_scale=4"),
		("min_world=2 max_world=4 local_world=2 replicas=1 timeout=20s "
		 "consecutive_hysteresis=yes lr=1e-3"),
	};
	struct err e;

	(void)state;
	for (size_t i = 0; i < TYPES * NR(texts); i++) {
		const char *text = texts[i / TYPES];
		struct settings_layer layer = {.text = text, .origin = "test"};
		struct refsettings mine;
		struct model_settings theirs;
		struct refscale scale;

		assert_int_equal(settings_make(&theirs, &layer, 1, NULL, 0, types[i % TYPES], &e),
				 SHARD_OK);
		assert_int_equal(refsettings_parse(&mine, text, types[i % TYPES], &e), SHARD_OK);
		refscale_start(&scale, &mine);
		assert_int_equal(mine.optimizer, theirs.optim->id);
		assert_int_equal(mine.states_nr, theirs.optim->states_nr);
		assert_memory_equal(mine.states, theirs.optim->states, sizeof(mine.states));
		assert_memory_equal(mine.hyper, theirs.hyper[0], sizeof(mine.hyper));
		assert_true(mine.clip == theirs.clip && scale.scale == theirs.initial_scale);
		assert_true(mine.min_loss_scale == theirs.min_scale &&
			    mine.loss_scale_window == theirs.scale_window);
		assert_true(mine.hysteresis == theirs.hysteresis &&
			    mine.max_skips == theirs.max_skips);
		assert_int_equal(mine.loss_scale == 0, theirs.dynamic_scale);
		assert_int_equal(mine.consecutive_hysteresis, theirs.consecutive_hysteresis);
		assert_int_equal(mine.pause, theirs.pause_on_nonfinite);
		assert_true(mine.chunk_elems == theirs.chunk_elems);
	}
}

/* --- what the program is linked from --- */

enum { NAMES_MAX = 8192 };

static char *beside(const char *file) /* The build folder is two levels above this program. */
{
	char self[4096], *path = malloc(4200);
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	assert_non_null(path);
	assert_true(n > 0);
	self[n] = 0;
	for (int up = 0; up < 3; up++)
		*strrchr(self, '/') = 0;
	snprintf(path, 4200, "%s/%s", self, file);
	return path;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* `how` is "-g" for the names that an archive offers. In a linked program hidden names are local,
 * so there all names count. */
static size_t defined_in(const char *file, const char *how, char **names)
{
	char command[4400], line[512], name[256], type;
	char *path = beside(file);
	size_t nr = 0;
	FILE *f;

	assert_int_equal(access(path, R_OK), 0);
	snprintf(command, sizeof(command), "nm %s --defined-only '%s'", how, path);
	assert_non_null(f = popen(command, "r"));
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%*x %c %255s", &type, name) == 2 && nr < NAMES_MAX)
			assert_non_null(names[nr++] = strdup(name));
	}
	assert_int_equal(pclose(f), 0);
	free(path);
	qsort(names, nr, sizeof(*names), by_name);
	return nr;
}

static bool starts_with_one_of(const char *name, const char *const *starts)
{
	while (*starts && strncmp(name, *starts, strlen(*starts)) != 0)
		starts++;
	return *starts != NULL;
}

/* Every name that the program has in common with the archive must be allowed, and the first of the
 * allowed must be among them. */
static void shares_only(const char *archive, const char *const *allowed)
{
	static char *names[NAMES_MAX], *program[NAMES_MAX];
	size_t nr = defined_in(archive, "-g", names),
	       program_nr = defined_in("reference", "", program);
	bool found = false;

	assert_true(nr > 0 && program_nr > 0);
	for (size_t i = 0; i < program_nr; i++) {
		if (!bsearch(&program[i], names, nr, sizeof(*names), by_name) ||
		    strncmp(program[i], "__odr_asan.", 11) == 0)
			/* They do not have it in common, or it is the sanitizer's shadow of a
			 * name. */
			continue;
		found = found || strcmp(program[i], allowed[0]) == 0;
		if (!starts_with_one_of(program[i], allowed))
			fail_msg("reference shares %s with %s", program[i], archive);
	}
	assert_true(found);
	for (size_t i = 0; i < nr; i++)
		free(names[i]);
	for (size_t i = 0; i < program_nr; i++)
		free(program[i]);
}

static void program_shares_only_kernels_and_conversions(void **state)
{
	static const char *const daemon[] = {"optim_scalar", NULL};
	static const char *const proto[] = {"dtype_convert", "dtype_",       "isa_", "err_",
					    "status_name",   "check_failed", NULL};

	(void)state;
	shares_only("libshardd.a", daemon);
	shares_only("libshardproto.a", proto);
}

/* --- the program --- */

/* Returns the exit status. `said` gets what was printed to both outputs. */
static int run(const char *options, char said[4096])
{
	char command[6000], *program = beside("reference");
	FILE *f;
	size_t n;

	snprintf(command, sizeof(command), "'%s' %s 2>&1", program, options);
	free(program);
	assert_non_null(f = popen(command, "r"));
	n = fread(said, 1, 4095, f);
	said[n] = 0;
	while (fgetc(f) != EOF)
		;
	return WEXITSTATUS(pclose(f));
}

static void wrong_options_are_named(void **state)
{
	static const struct {
		const char *options, *says;
	} wrong[] = {
		{"", "--data is missing"},
		{"--data x --heads 3", "--heads 3 does not divide --dim 64"},
		{"--data x --layers 0", "--layers 0: choose a whole number from 1 to 256"},
		{"--data x --dim 64x", "--dim 64x: choose"},
		{"--data x --steps -1", "--steps -1: choose"},
		{"--data x --dtype fp8", "--dtype fp8: choose fp32, bf16 or fp16"},
		{"--data x --world 4,2", "--world 2: choose a whole number from 4 to 256"},
		{"--data x --world 4 --batch 3", "--batch 3 is smaller than a world of 4 trainers"},
		{"--data x --steps 5 --break 6", "--break 6 is behind the last step, 5"},
		{"--data x --nodes 2,0", "--nodes 0: choose"},
		{"--data x --chunk-elems 3000", "choose a power of two"},
		{"--data x --warmth 3", "unrecognized option '--warmth"},
		{"--data x text", "\"text\": every value needs its option"},
		{"--data=", "--data: the value is empty"},
	};
	char said[4096];

	(void)state;
	for (size_t i = 0; i < NR(wrong); i++) {
		assert_int_equal(run(wrong[i].options, said), 2);
		if (!strstr(said, wrong[i].says))
			fail_msg("%s: said %s", wrong[i].options, said);
	}
	assert_int_equal(run("--data /nonexistent/text", said), 1);
	assert_string_equal(said,
			    "reference: data file /nonexistent/text: No such file or directory\n");
	assert_int_equal(run("--data /proc/self/exe --settings warmth=3", said), 1);
	assert_non_null(strstr(said, "warmth=3"));
	assert_int_equal(run("--data /proc/self/exe --break 3", said), 1);
	assert_int_equal(run("--help", said), 0);
	assert_non_null(strstr(said, "--grad-dtype"));
}

static void program_repeats_itself_and_sees_the_nodes(void **state)
{
#define SMALL                                                                                      \
	"--data /proc/self/exe --layers 1 --dim 16 --seq 16 --batch 5 --steps 4 --settings "       \
	"'chunk_elems=1024 clip=0.1' "
	char dir[] = "/tmp/test_gpt_reference.XXXXXX", a[64], b[64], options[512], said[4096],
	     command[64];
	static const char *const same[] = {"--nodes 2,3", "--nodes 2,3 --chunk-elems 1024"},
				 *const other[] = {"--nodes 5", "--nodes 3,2"};
	struct compare c;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(a, sizeof(a), "%s/a", dir);
	snprintf(b, sizeof(b), "%s/b", dir);
	snprintf(options, sizeof(options), SMALL "--nodes 2,3 --dump %s", a);
	assert_int_equal(run(options, said), 0);
	assert_non_null(strstr(said, "step=1 rank=0 world=5 samples=5 loss="));
	assert_non_null(strstr(said, "\nstep=4 "));
	for (size_t i = 0; i < NR(same) + NR(other); i++) {
		bool equal = i < NR(same);

		snprintf(options, sizeof(options), SMALL "%s --dump %s",
			 equal ? same[i] : other[i - NR(same)], b);
		assert_int_equal(run(options, said), 0);
		assert_int_equal(compare_folders(a, b, &c, stderr), equal);
	}
	snprintf(command, sizeof(command), "rm -r '%s'", dir);
	assert_int_equal(system(command), 0);
}

static void overflow_lowers_the_scale_to_its_floor(void **state)
{
	char said[4096];

	(void)state;
	/* 2^60 overflows fp16 in every step, which is skipped. The scale falls until the floor
	 * ends the run. */
	assert_int_equal(
		run("--data /proc/self/exe --layers 1 --dim 16 --seq 16 --batch 2 --dtype fp16 "
		    "--steps 9 --settings "
		    "'initial_scale_power=60 hysteresis=1 min_loss_scale=288230376151711744'",
		    said),
		1);
	assert_non_null(strstr(said, "step=1 rank=0 world=1 samples=2"));
	assert_non_null(strstr(said, "outcome=skipped_nonfinite applied=0"));
	assert_non_null(
		strstr(said, "step 3: overflow with the loss scale at its floor, 2.8823e+17"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sums_equal_the_products),
		cmocka_unit_test(words_equal_the_products),
		cmocka_unit_test(schedules_equal_the_products),
		cmocka_unit_test(loss_scale_equals_the_products),
		cmocka_unit_test(norm_and_clip_equal_the_products),
		cmocka_unit_test(settings_are_read),
		cmocka_unit_test(settings_equal_the_products),
		cmocka_unit_test(program_shares_only_kernels_and_conversions),
		cmocka_unit_test(wrong_options_are_named),
		cmocka_unit_test(program_repeats_itself_and_sees_the_nodes),
		cmocka_unit_test(overflow_lowers_the_scale_to_its_floor),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

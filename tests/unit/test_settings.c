/* SPDX-License-Identifier: Apache-2.0 */
/* Tests settings: merging, pinned keys, the canonical form and back, comparison, and every refusal
 * with its text. */
#include "base/check.h"
#include "config/settings.h"
#include "config/value.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYER(t, o) ((struct settings_layer){.text = t, .origin = o})
#define TRAINER(t)  ((struct settings_layer){.text = t, .origin = "shard_define", .trainer = true})

static struct model_settings made(const char *text, enum shard_dtype grad)
{
	struct settings_layer l = LAYER(text, "test");
	struct model_settings s;
	struct err e = {.text = ""};

	if (settings_make(&s, &l, 1, NULL, 0, grad, &e) != SHARD_OK)
		fail_msg("%s: %s", text, e.text);
	return s;
}

static void refused(const char *text, const char *want)
{
	struct settings_layer l = LAYER(text, "f:3");
	struct model_settings s;
	struct err e = {.text = ""};

	if (settings_make(&s, &l, 1, NULL, 0, SHARD_BF16, &e) == SHARD_OK)
		fail_msg("%s: was taken", text);
	if (strcmp(e.text, want) != 0)
		fail_msg("%s: \"%s\", expected \"%s\"", text, e.text, want);
}

/* Words that launchers and DeepSpeed's files bring along. */
static void foreign_words(void **state)
{
	static const char *const words[][2] = {
		{"backend=nccl", "[net] transport says what carries tensors"},
		{"rdzv_endpoint=a:29500", "[nodes] lists the daemons"},
		{"nnodes=2", "[nodes] lists the daemons"},
		{"nproc_per_node=8", "here it is local_world"},
		{"max_restarts=3", "min_world says with how many the others go on"},
		{"ckpt_dir=/x", "here it is checkpoint_dir"},
		{"steps_per_print=10", "`shardctl top` prints"},
		{"offload_optimizer=cpu", "state is always in main memory"},
		{"offload_param=cpu", "state is always in main memory"},
		{"overlap_comm=true", "gradients travel in chunks"},
		{"contiguous_gradients=true", "gradients travel in chunks"},
		{"reduce_bucket_size=5e8", "gradients travel in chunks"},
		{"allgather_bucket_size=5e8", "gradients travel in chunks"},
		{"zero_quantized_gradients=true", "here it is grad_codec"},
		{"zero_quantized_weights=true", "grad_codec is for gradients"},
		{"zero_hpz_partition_size=8", "each node has a whole image"},
	};
	struct model_settings s;

	(void)state;
	for (size_t i = 0; i < NR(words); i++) {
		struct settings_layer l = LAYER(words[i][0], "f:3");
		struct err e = {.text = ""};

		if (settings_make(&s, &l, 1, NULL, 0, SHARD_BF16, &e) == SHARD_OK ||
		    strstr(e.text, ": unknown key: ") == NULL || !strstr(e.text, words[i][1]))
			fail_msg("%s: \"%s\" does not say \"%s\"", words[i][0], e.text,
				 words[i][1]);
	}
}

static void defaults(void **state)
{
	struct model_settings s = made("", SHARD_BF16);

	(void)state;
	assert_string_equal(s.optim->name, "adamw");
	assert_int_equal(s.groups_nr, 1);
	assert_true(s.hyper[0][HYPER_LR] == 1e-3 && s.hyper[0][HYPER_BETA2] == 0.999);
	assert_true(s.clip == 0 && !s.dynamic_scale && s.initial_scale == 1);
	assert_int_equal(s.max_skips, 20);
	assert_int_equal(s.min_world, 1);
	assert_int_equal(s.max_world, 256);
	assert_int_equal(s.local_world, 1);
	assert_true(!s.max_world_set && !s.local_world_set);
	assert_int_equal(s.chunk_elems, 1 << 20);
	assert_true(s.timeout_ns == 300000000000ull);
	s = made("", SHARD_F16);
	assert_true(s.dynamic_scale && s.initial_scale == 65536);
	s = made("loss_scale=128", SHARD_F16);
	assert_true(!s.dynamic_scale && s.initial_scale == 128);
	s = made("loss_scale=0 initial_scale_power=4", SHARD_BF16);
	assert_true(s.dynamic_scale && s.initial_scale == 16);
	s = made("min_world=4", SHARD_BF16);
	assert_int_equal(s.max_world, 256);
	assert_int_equal(s.local_world, 4);
	s = made("max_world=8", SHARD_BF16);
	assert_int_equal(s.local_world, 8);
	s = made("local_world=4", SHARD_BF16); /* It is enough to raise that. */
	assert_int_equal(s.max_world, 256);
	assert_true(!s.max_world_set && s.local_world_set);
	s = made("  chunk_elems=4Ki\tbetas=0.5,0.75\n", SHARD_BF16);
	assert_int_equal(s.chunk_elems, 4096);
	assert_true(s.hyper[0][HYPER_BETA1] == 0.5 && s.hyper[0][HYPER_BETA2] == 0.75);
}

static void layers(void **state)
{
	struct settings_layer l[] = {LAYER("clip=1 lr=0.5 betas=0.1,0.2", "f:1"),
				     LAYER("clip=2 optimizer=sgd", "f:9"), TRAINER("momentum=0.5")};
	struct model_settings s;
	struct err e;

	(void)state;
	assert_int_equal(settings_make(&s, l, 3, NULL, 0, SHARD_BF16, &e), SHARD_OK);
	assert_true(s.clip == 2 && s.hyper[0][HYPER_LR] == 0.5 &&
		    s.hyper[0][HYPER_MOMENTUM] == 0.5);
	assert_string_equal(s.optim->name, "sgd"); /* The betas of adamw are forgotten. */
	l[2] = TRAINER("betas=0.5,0.5");
	assert_int_equal(settings_make(&s, l, 3, NULL, 0, SHARD_BF16, &e), SHARD_BAD_ARG);
	assert_string_equal(e.text, "shard_define: beta1 = 0.5: optimizer sgd has no such key: it "
				    "has lr, weight_decay, momentum, nesterov");
}

static void pinned(void **state)
{
	struct settings_layer l[] = {LAYER("clip=1 pinned=clip,replicas", "shardd.conf:14"),
				     TRAINER("clip=2")};
	struct model_settings s;
	struct err e;

	(void)state;
	assert_int_equal(settings_make(&s, l, 2, NULL, 0, SHARD_BF16, &e), SHARD_DENIED);
	assert_string_equal(e.text, "shard_define: clip = 2: shardd.conf:14 pins this key to 1");
	l[1] = TRAINER("lr=2");
	assert_int_equal(settings_make(&s, l, 2, NULL, 0, SHARD_BF16, &e), SHARD_OK);
	l[1] = TRAINER("pinned=lr");
	assert_int_equal(settings_make(&s, l, 2, NULL, 0, SHARD_BF16, &e), SHARD_DENIED);
	l[0] = LAYER("pinned=betas", "f:2");
	l[1] = TRAINER("beta2=0.5");
	assert_int_equal(settings_make(&s, l, 2, NULL, 0, SHARD_BF16, &e), SHARD_DENIED);
	assert_string_equal(e.text, "shard_define: beta2 = 0.5: f:2 pins this key");
	refused("pinned=clip,lrr", "f:3: pinned = lrr: lrr: unknown key: did you mean lr?");
}

static void groups(void **state)
{
	static const char *const names[] = {"decay", "norm"};
	struct settings_layer l[] = {LAYER("lr=0.5 weight_decay=0.25", "f:1"),
				     TRAINER("weight_decay=0 lr_factor=0.5"),
				     TRAINER("norm/eps=1")};
	struct settings_layer again = {.origin = "node"};
	char *one, *two;
	struct model_settings s, t;
	struct err e;

	(void)state;
	l[1].group = "norm";
	assert_int_equal(settings_make(&s, l, 3, names, 2, SHARD_BF16, &e), SHARD_OK);
	assert_int_equal(s.groups_nr, 2);
	assert_true(s.hyper[0][HYPER_LR] == 0.5 && s.hyper[0][HYPER_WEIGHT_DECAY] == 0.25 &&
		    s.hyper[0][HYPER_EPS] == 1e-8);
	assert_true(s.hyper[1][HYPER_LR] == 0.25 && s.hyper[1][HYPER_WEIGHT_DECAY] == 0 &&
		    s.hyper[1][HYPER_EPS] == 1);
	one = settings_text(&s, names);
	again.text = one;
	assert_int_equal(settings_make(&t, &again, 1, names, 2, SHARD_BF16, &e), SHARD_OK);
	two = settings_text(&t, names);
	assert_string_equal(one, two);
	free(one);
	free(two);
	assert_memory_equal(s.hyper, t.hyper, sizeof(s.hyper));
	l[1].group = "nrm";
	assert_int_equal(settings_make(&s, l, 3, names, 2, SHARD_BF16, &e), SHARD_BAD_ARG);
	assert_string_equal(e.text, "shard_define: group \"nrm\": the model has no such group");
	l[1].group = "norm";
	l[1].text = "clip=1";
	assert_int_equal(settings_make(&s, l, 3, names, 2, SHARD_BF16, &e), SHARD_BAD_ARG);
	assert_non_null(strstr(e.text, "clip: only for a whole model"));
	assert_int_equal(
		settings_make(&s, l, 1, (const char *const[]){"a", "a"}, 2, SHARD_BF16, &e),
		SHARD_BAD_ARG);
	assert_int_equal(settings_make(&s, l, 1, (const char *const[]){"A b"}, 1, SHARD_BF16, &e),
			 SHARD_BAD_ARG);
	assert_int_equal(settings_make(&s, l, 1, names, 257, SHARD_BF16, &e), SHARD_BAD_ARG);
}

static void largest_text(void **state)
{
	char names[SETTINGS_GROUPS_MAX][65], *text, *again;
	const char *list[SETTINGS_GROUPS_MAX];
	struct settings_layer l =
		LAYER("lr=1.2345678901234567e-100 betas=0.12345678901234567,0.12345678901234567 "
		      "eps=1.2345678901234567e-10 weight_decay=1.2345678901234567e-10",
		      "f");
	struct model_settings s;
	struct err e;

	(void)state;
	for (int i = 0; i < SETTINGS_GROUPS_MAX; i++) {
		snprintf(names[i], sizeof(names[i]), "%064d", i);
		list[i] = names[i];
	}
	assert_int_equal(settings_make(&s, &l, 1, list, SETTINGS_GROUPS_MAX, SHARD_BF16, &e),
			 SHARD_OK);
	text = settings_text(&s, list);
	assert_in_range(strlen(text), SETTINGS_TEXT_BYTES * 2 / 5, SETTINGS_TEXT_BYTES - 1);
	l.text = text;
	assert_int_equal(settings_make(&s, &l, 1, list, SETTINGS_GROUPS_MAX, SHARD_BF16, &e),
			 SHARD_OK);
	again = settings_text(&s, list);
	assert_string_equal(text, again);
	free(text);
	free(again);
}

static void canonical(void **state)
{
	static const char *const texts[] = {
		"",
		"optimizer=sgd momentum=0.9 nesterov=yes",
		"optimizer=lion lr=3e-4 loss_scale=dynamic hysteresis=3",
		"optimizer=adagrad",
		"optimizer=adagrad schedule=OneCycle cycle_min_lr=1e-4 cycle_max_lr=0.1 "
		"cycle_first_step_size=3Ki "
		"decay_step_size=7 "
		"decay_lr_rate=0.5",
		"schedule=LRRangeTest lr_range_test_staircase=yes lr_range_test_min_lr=0.1",
		"schedule=WarmupLR warmup_type=linear lr=7e-4",
		"schedule=WarmupDecayLR total_num_steps=2000",
		"schedule=WarmupCosineLR total_num_steps=2000 warmup_min_ratio=0.3",
		"optimizer=adam eps=1e-7 clip=0.1 timeout=1500ms nonfinite=pause min_world=2 "
		"max_world=5 local_world=3 "
		"chunk_elems=2048",
	};
	char *one, *two;

	(void)state;
	for (size_t i = 0; i < NR(texts); i++) {
		struct model_settings s = made(texts[i], SHARD_F16), t;

		one = settings_text(&s, NULL);
		t = made(one, SHARD_BF16); /* What depended on the dtype is explicit now. */
		two = settings_text(&t, NULL);
		assert_string_equal(one, two);
		free(one);
		free(two);
		assert_memory_equal(s.hyper[0], t.hyper[0], sizeof(s.hyper[0]));
		assert_memory_equal(&s.schedule, &t.schedule, sizeof(s.schedule));
		assert_true(s.initial_scale == t.initial_scale &&
			    s.dynamic_scale == t.dynamic_scale && s.timeout_ns == t.timeout_ns);
	}
	struct model_settings s = made("optimizer=sgd lr=0.1", SHARD_BF16);
	one = settings_text(&s, NULL);
	assert_string_equal(
		one,
		"optimizer=sgd checkpoint_dir=none checkpoint_every=0 chunk_elems=1048576 clip=0 "
		"consecutive_hysteresis=no hysteresis=2 join_timeout=0s keep_latest=0 "
		"local_world=1 loss_scale=1 "
		"loss_scale_window=1000 lr=0.1 max_skips=20 max_staleness=0 max_world=256 "
		"min_copies=1 min_loss_scale=1 min_world=1 mode=0666 "
		"momentum=0 nesterov=0 nonfinite=skip predivide=1 quorum_timeout=0s replicas=1 "
		"restore_at_start=no "
		"schedule=none straggler_timeout=30s stragglers=wait timeout=300s weight_decay=0 "
		"when_lost=fail");
	free(one);
}

static void compared(void **state)
{
	char key[SETTINGS_KEY_BYTES];
	struct err e;

	(void)state;
	assert_int_equal(settings_compare("a=1 b=2", "here", "a=1 b=2", "there", "", NULL, &e),
			 SHARD_OK);
	assert_int_equal(settings_compare("a=1 b=2", "here", "a=1 b=3", "in the model of rank 0",
					  "", key, &e),
			 SHARD_MISMATCH);
	assert_string_equal(e.text, "setting b: 2 here, 3 in the model of rank 0");
	assert_string_equal(key, "b");
	assert_int_equal(settings_compare("a=1 b=2", "here", "a=1", "there", "", NULL, &e),
			 SHARD_MISMATCH);
	assert_string_equal(e.text, "settings: b=2 here,  there");
	assert_int_equal(settings_compare("a=1", "here", "b=1", "there", "", key, &e),
			 SHARD_MISMATCH);
	assert_string_equal(e.text, "settings: a=1 here, b=1 there");
	assert_string_equal(key, "");
	assert_int_equal(settings_compare("", "here", "", "there", "", NULL, &e), SHARD_OK);
	/* What somebody wrote comes before what follows from it. */
	assert_int_equal(settings_compare("a=1 b=2 c=3", "here", "a=2 b=2 c=4", "there",
					  " c=3\tb=2 ", key, &e),
			 SHARD_MISMATCH);
	assert_string_equal(e.text, "setting c: 3 here, 4 there");
	assert_string_equal(key, "c");
	assert_int_equal(settings_compare("a=1 beta1=0 beta2=0.5", "here", "a=2 beta1=0 beta2=1",
					  "there", "betas=0,0.5", key, &e),
			 SHARD_MISMATCH);
	assert_string_equal(e.text, "setting beta2: 0.5 here, 1 there");
	/* A key that only one of them has is as before. */
	assert_int_equal(settings_compare("a=1 b=2", "here", "c=1 b=2", "there", "a=1", NULL, &e),
			 SHARD_MISMATCH);
	assert_string_equal(e.text, "settings: a=1 here, c=1 there");
}

static void refusals(void **state)
{
	(void)state;
	refused("clip=-1", "f:3: clip = -1: choose a number of at least 0");
	refused("clip=inf", "f:3: clip = inf: choose a number of at least 0");
	refused("clip=0x1p3", "f:3: clip = 0x1p3: choose a number of at least 0");
	refused("clip=1 clip=1", "f:3: clip = 1: clip is there twice");
	refused("clp=1", "f:3: clp: unknown key: did you mean clip?");
	refused("gradient_clipping=1", "f:3: gradient_clipping: unknown key: here it is clip");
	refused("max_norm=1", "f:3: max_norm: unknown key: here it is clip");
	refused("learning_rate=1", "f:3: learning_rate: unknown key: here it is lr");
	refused("T_max=1", "f:3: T_max: unknown key: here it is total_num_steps");
	refused("zero_stage=3",
		"f:3: zero_stage: unknown key: there is no key for it, because state is always "
		"divided among the nodes, and gradients as well: leave it out");
	refused("train_batch_size=8",
		"f:3: train_batch_size: unknown key: there is no key for it, because the trainer "
		"shares out the samples: give the batch to shard_samples() and the weight to "
		"shard_begin()");
	refused("zzzzzz=1", "f:3: zzzzzz: unknown key: `shardd --help` lists them");
	refused("clip", "f:3: clip: write key=value, separated by blanks");
	refused("=1", "f:3: =1: write key=value, separated by blanks");
	refused("optimizer=adamx",
		"f:3: optimizer = adamx: choose adamw, adam, sgd, adagrad or lion");
	refused("beta1=1", "f:3: beta1 = 1: choose a number of at least 0 and below 1");
	refused("betas=0.9",
		"f:3: betas = 0.9: choose two numbers of at least 0 and below 1, as in 0.9,0.95");
	refused("lr=-1", "f:3: lr = -1: choose a number of at least 0");
	refused("momentum=1", "f:3: momentum = 1: optimizer adamw has no such key: it has lr, "
			      "beta1, beta2, eps, weight_decay");
	refused("chunk_elems=1000",
		"f:3: chunk_elems = 1000: choose a power of two from 1024 to 16777216");
	refused("chunk_elems=32Mi",
		"f:3: chunk_elems = 32Mi: choose a power of two from 1024 to 16777216");
	refused("min_world=1.5", "f:3: min_world = 1.5: choose a whole number from 1 to 256");
	refused("min_world=0", "f:3: min_world = 0: choose a whole number from 1 to 256");
	refused("min_world=3 max_world=2",
		"min_world = 3 (f:3) is above max_world = 2 (f:3): raise max_world");
	refused("local_world=3 max_world=2",
		"local_world = 3 (f:3) is above max_world = 2 (f:3): lower it");
	refused("replicas=65", "f:3: replicas = 65: choose a whole number from 1 to 64");
	refused("min_copies=0", "f:3: min_copies = 0: choose a whole number from 1 to 64");
	refused("min_copies=2 replicas=1",
		"min_copies = 2 (f:3) is above replicas = 1 (f:3): no step "
		"would ever begin");
	refused("replicas=2 min_copies=3",
		"min_copies = 3 (f:3) is above replicas = 2 (f:3): no step would ever begin");
	refused("timeout=300", "f:3: timeout = 300: choose a time from 1ms to 31536000s with its "
			       "unit (us, ms, s, min, h), as in 5s");
	refused("when_lost=maybe", "f:3: when_lost = maybe: choose fail or reinitialize");
	refused("nonfinite=maybe", "f:3: nonfinite = maybe: choose skip or pause");
	refused("consecutive_hysteresis=2", "f:3: consecutive_hysteresis = 2: choose yes or no");
	refused("loss_scale=-1", "f:3: loss_scale = -1: choose dynamic or a number of at least 0");
	refused("loss_scale=dynamic min_loss_scale=4 initial_scale_power=1",
		"f:3: min_loss_scale = 4 is above 2^initial_scale_power = 2: lower it");
	refused("optimizer=sgd nesterov=1", "settings: nesterov = 1 with momentum = 0: choose a "
					    "momentum above 0, or nesterov = 0");
	refused("lr_factor=2", "f:3: lr_factor: only for a group of a model");
	refused("g/eps=1", "f:3: group \"g\": the model has no such group");
}

static void too_long(void **state)
{
	char text[1000] = "clip=", want[100];
	struct settings_layer l = LAYER(text, "f:3");
	struct model_settings s;
	struct err e;

	(void)state;
	memset(text + 5, '1', sizeof(text) - 6);
	assert_int_equal(settings_make(&s, &l, 1, NULL, 0, SHARD_BF16, &e), SHARD_BAD_ARG);
	snprintf(want, sizeof(want), "f:3: %.32s...: too long", text);
	assert_string_equal(e.text, want);
	text[300] = 0;
	assert_int_equal(settings_make(&s, &l, 1, NULL, 0, SHARD_BF16, &e), SHARD_BAD_ARG);
	assert_non_null(strstr(e.text, ": too long"));
}

static void values(void **state)
{
	char text[VALUE_TEXT_BYTES];
	uint64_t n;
	double x;

	(void)state;
	assert_true(value_bytes("1.5GiB", &n) && n == 3ull << 29);
	assert_true(value_bytes("64GiB", &n) && n == 64ull << 30);
	assert_false(value_bytes("64", &n) || value_bytes("64GB", &n) || value_bytes("", &n) ||
		     value_bytes("-1KiB", &n));
	assert_false(value_bytes("99999999999TiB", &n) || value_bytes("1.2.3KiB", &n) ||
		     value_bytes("1e3KiB", &n));
	assert_true(value_count("4Ki", &n) && n == 4096);
	assert_true(value_count("1.5Ki", &n) && n == 1536);
	assert_false(value_count("1.5", &n) || value_count("0.3Ki", &n) || value_count("-1", &n));
	assert_true(value_duration("300us", &n) && n == 300000);
	assert_true(value_duration("0.5s", &n) && n == 500000000);
	assert_true(value_duration("2min", &n) && n == 120000000000ull);
	assert_false(value_duration("5", &n) || value_duration("5 s", &n) ||
		     value_duration("s", &n));
	assert_false(value_u64("18446744073709551616", &n));
	assert_true(value_u64("18446744073709551615", &n) && n == UINT64_MAX);
	assert_false(value_double("nan", &x) || value_double("1e999", &x) ||
		     value_double("1.2.3", &x) || value_double(" 1", &x));
	value_double_text(text, 0.1);
	assert_string_equal(text, "0.1");
	value_double_text(text, 1.0 / 3);
	assert_true(value_double(text, &x) && x == 1.0 / 3);
	value_bytes_text(text, 0);
	assert_string_equal(text, "0B");
	value_bytes_text(text, 3ull << 29);
	assert_string_equal(text, "1536MiB");
	value_duration_text(text, 1500000);
	assert_string_equal(text, "1500us");
	assert_true(value_name("a-b.c_0") && !value_name("") && !value_name("A") &&
		    !value_name("a b"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults),     cmocka_unit_test(layers),
		cmocka_unit_test(pinned),       cmocka_unit_test(groups),
		cmocka_unit_test(canonical),    cmocka_unit_test(compared),
		cmocka_unit_test(refusals),     cmocka_unit_test(foreign_words),
		cmocka_unit_test(largest_text), cmocka_unit_test(too_long),
		cmocka_unit_test(values),
	};

	return cmocka_run_group_tests_name("settings", tests, NULL, NULL);
}

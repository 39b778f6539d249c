/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: configuration files and settings strings. Most inputs are a file. After "="
 * come the settings of a model, with one layer per line: the first is the file's, and the others
 * are a trainer's ("!": of a group). After "@" comes a variable of the environment, which is also
 * tried as --set. After "&" come keys and values that another node says of the cluster. A file is
 * loaded from memory, where its first error ends it, and from a folder, where all are heard. */
// clang-format off
// covers: daemon/config/config.c daemon/config/cluster.c daemon/config/file.c
// covers: daemon/config/finish.c daemon/config/keys.c
// covers: daemon/config/options.c daemon/config/sections.c daemon/config/settings.c
// covers: daemon/config/show.c daemon/config/table.c daemon/config/value.c
// needs: daemon/config/foreign.c daemon/optim/optim.c daemon/optim/args.c daemon/core/schedule.c
// needs: daemon/optim/optim_scalar.c daemon/optim/optim_avx2.c daemon/optim/optim_avx512.c
// needs: daemon/gpu/uuid.c
// clang-format on
#include "base/check.h"
#include "config/cluster.h"
#include "config/settings.h"
#include "config/value.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static FILE *nowhere;
static char folder[] = "/tmp/fuzz-config-XXXXXX", in_folder[64];

static void remove_folder(void)
{
	unlink(in_folder);
	rmdir(folder);
}

static void fuzz_settings(char *text)
{
	static const char *const groups[] = {"g", "norm"};
	struct settings_layer layers[4];
	char *one, *two;
	uint32_t nr = 0, groups_nr = 2;
	struct model_settings s, t;
	struct err e;

	for (char *at = text; at && nr < NR(layers); nr++) {
		layers[nr] = (struct settings_layer){.text = at,
						     .origin = "fuzz",
						     .trainer = nr > 0,
						     .group = *at == '!' ? "norm" : NULL};
		layers[nr].text += *at == '!';
		at = strchr(at, '\n');
		if (at)
			*at++ = 0;
	}
	if (settings_make(&s, layers, nr, groups, groups_nr, SHARD_F16, &e) != SHARD_OK)
		return;
	if (s.replicas_by == SETTINGS_BY_NOBODY && s.replicas < s.min_copies)
		s.replicas = s.min_copies; /* As who chooses it by the number of nodes. */
	one = settings_text(&s, groups);
	layers[0] = (struct settings_layer){.text = one, .origin = "again"};
	CHECK(settings_make(&t, layers, 1, groups, groups_nr, SHARD_BF16, &e) == SHARD_OK);
	two = settings_text(&t, groups);
	CHECK(settings_compare(one, "one", two, "two", "", NULL, &e) == SHARD_OK);
	layers[0].text = "lr=2 optimizer=sgd";
	CHECK(settings_make(&t, layers, 1, NULL, 0, SHARD_BF16, &e) == SHARD_OK);
	free(two);
	two = settings_text(&t, NULL);
	settings_compare(one, "one", two, "two", one, NULL, &e);
	free(one);
	free(two);
}

static void hear(void *arg, const char *text)
{
	uint32_t *heard = arg;

	CHECK(strlen(text) > 0);
	++*heard;
}

/* A folder with this file alone is good if and only if its text is. */
static void fuzz_folder(const char *text, size_t bytes, bool good)
{
	uint32_t heard = 0;
	struct config_args args = {
		.file = "/dev/null", .folder = folder, .wrong = hear, .wrong_arg = &heard};
	struct config_changes changes;
	struct config c;
	struct err e;
	FILE *f = fopen(in_folder, "we");

	CHECK(f);
	CHECK(fwrite(text, 1, bytes, f) == bytes);
	CHECK(fclose(f) == 0);
	CHECK((config_load(&c, &args, &e) == SHARD_OK) == good);
	CHECK(heard == 0 || !good);
	if (!good)
		return;
	CHECK(config_reload(&c, &args, &changes, &e) == SHARD_OK);
	CHECK(changes.taken[0] == 0 && changes.left[0] == 0);
	config_free(&c);
}

static void fuzz_file(const char *text, size_t bytes)
{
	struct config c, again;
	char *printed = NULL;
	size_t printed_bytes;
	struct err e;
	FILE *f;

	bool good = config_load_text(&c, "fuzz", text, bytes, &e) == SHARD_OK;

	fuzz_folder(text, bytes, good);
	if (!good) {
		CHECK(strlen(e.text) > 0 && strlen(e.text) < sizeof(e.text));
		return;
	}
	f = open_memstream(&printed, &printed_bytes);
	CHECK(f);
	config_print(&c, f);
	fclose(f);
	if (config_load_text(&again, "printed", printed, printed_bytes, &e) ==
	    SHARD_OK) { /* Long names may make lines too long. */
		CHECK(config_hash(&c) == config_hash(&again));
		CHECK(c.models_nr == again.models_nr && config_model(&c, "", "x") == NULL);
		config_free(&again);
	}
	free(printed);
	config_free(&c);
}

/* What this node says of itself is taken by another one. */
static void put_again(void *arg, const char *key, const char *value)
{
	struct config_cluster to = {.used = 0};

	(void)arg;
	CHECK(config_cluster_put(&to, key, value, NULL) == SHARD_OK);
}

/* What another node says of the cluster: lines of key and value, with a tab between them. Whatever
 * is taken can be loaded, unless the addresses contradict each other. */
static void fuzz_cluster(char *text)
{
	struct config_cluster to = {.used = 0};
	char node[CONFIG_NAME_BYTES + 16];
	const char *const set[] = {node, "daemon.allow_unauthenticated=yes"};
	struct config_args args = {
		.file = "/dev/null", .set = set, .set_nr = 2, .cluster = to.text};
	struct config c;
	struct err e = {.text = ""};
	const char *first;
	char *next;

	for (char *line = text; line && *line; line = next) {
		char *tab = strchr(line, '\t');

		if ((next = strchr(line, '\n')) != NULL)
			*next++ = 0;
		if (tab == NULL || (next != NULL && tab > next))
			continue;
		*tab = 0;
		if (config_cluster_put(&to, line, tab + 1, &e) != SHARD_OK)
			CHECK(strlen(e.text) > 0);
	}
	if ((first = strstr(to.text, "[nodes]\n")) == NULL)
		return;
	first += 8;
	snprintf(node, sizeof(node), "daemon.node=%.*s", (int)strcspn(first, " "), first);
	if (config_load(&c, &args, &e) == SHARD_OK) {
		CHECK(c.nodes_nr == to.nodes_nr && c.self == 0 && c.kept_nr == c.nodes_nr);
		config_shared_set(&c, put_again, NULL);
		config_offered(&c, put_again, NULL);
		config_free(&c);
	} else {
		CHECK(strstr(e.text, "has this address already") != NULL ||
		      strstr(e.text, "is shorter than heartbeat_timeout") != NULL ||
		      strstr(e.text, "etcd_endpoints") != NULL);
	}
}

/* Loads it, explains it, and loads it again in place of the previous configuration. */
static void fuzz_variables(const char *text)
{
	const char *const env[] = {"HOME=/", text, NULL}, *const plain[] = {"HOME=/", NULL};
	const char *set = text;
	struct config_args args = {.file = "/dev/null", .environ_ = env, .set = &set, .set_nr = 1};
	struct config_changes changes;
	struct config c;
	struct err e;

	if (config_load(&c, &args, &e) == SHARD_OK)
		config_free(&c);
	args.set_nr = 0;
	if (config_explain(&args, true, nowhere, &e) != SHARD_OK)
		return;
	args.environ_ = plain;
	if (config_load(&c, &args, &e) != SHARD_OK)
		return;
	args.environ_ = env;
	CHECK(config_reload(&c, &args, &changes, &e) == SHARD_OK);
	config_free(&c);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	nowhere = fopen("/dev/null", "we");
	CHECK(nowhere);
	CHECK(mkdtemp(folder) != NULL);
	snprintf(in_folder, sizeof(in_folder), "%s/fuzz.conf", folder);
	atexit(remove_folder);
	config_help(nowhere);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char *text = malloc(bytes + 1);

	if (!text)
		return 0;
	if (bytes > 0)
		memcpy(text, data, bytes);
	text[bytes] = 0;
	if (text[0] == '=')
		fuzz_settings(text + 1);
	else if (text[0] == '@')
		fuzz_variables(text + 1);
	else if (text[0] == '&')
		fuzz_cluster(text + 1);
	else
		fuzz_file(text, bytes);
	free(text);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
/* Tests memory that must not be used again. A region of a model that is missing, of another size,
 * cut off or empty costs this model and no other. All memory is refused that is of another format
 * or boot, of a node with another state folder, older than a start without it, or newer than the
 * state folder. The daemon says why, and the model is lost or comes from its checkpoint, as without
 * warm restarts. A folder that does not belong to the daemon alone is refused. */
#include "base/check.h"
#include "cluster/static.h"
#include "lib/fdstore.h"
#include "lib/keep.h"
#include "lib/parked.h"
#include "lib/tool.h"
#include "lib/trainer.h"
#include "wire/xxh.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define TMPFS_TYPE 0x01021994

static const char *address(struct warm *w)
{
	return w->cluster->node[0].unix_address;
}

static void begin(struct warm *w)
{
	warm_start(w, 1, (int[]){1}, NULL);
	w->numel = 3000;
	w->settings = "optimizer=adagrad eps=1 chunk_elems=1024";
}

/* Trains a model and then kills its daemon. */
static void trained(struct warm *w)
{
	warm_all(w);
	assert_int_equal(w->r[0].created, 1);
	warm_train(w, 2);
	warm_kill(w, 1);
	warm_end(w, 0);
}

static bool is_page(const char *name)
{
	return strstr(name, "node") != NULL;
}

/* The daemon starts, and says why it has no memory. */
static void says(struct warm *w, const char *why)
{
	uint32_t before = warm_logged(w, 0, "event=cold_start"),
		 warm = warm_logged(w, 0, "event=warm_start");

	warm_spawn(w, 1);
	assert_int_equal(warm_logged(w, 0, "event=cold_start"), before + 1);
	assert_int_equal(warm_logged(w, 0, "event=warm_start"), warm);
	if (warm_logged(w, 0, why) == 0) {
		char *text = cluster_log(w->cluster, 0);

		fail_msg("\"%s\" was not said:\n%s", why, text);
	}
}

/* It starts warm but without this model, and says why. */
static void says_void(struct warm *w, const char *why)
{
	uint32_t before = warm_logged(w, 0, "event=model_void model=m "),
		 warm = warm_logged(w, 0, "event=warm_start");

	warm_spawn(w, 1);
	assert_int_equal(warm_logged(w, 0, "event=model_void model=m "), before + 1);
	assert_int_equal(warm_logged(w, 0, "event=warm_start"), warm + 1);
	if (warm_logged(w, 0, why) == 0)
		fail_msg("\"%s\" was not said", why);
}

/* The model is lost, too. Drops it, so that trained() makes another one. */
static void lost(struct warm *w, void (*says_so)(struct warm *, const char *), const char *why)
{
	uint32_t before = warm_logged(w, 0, "event=lost");
	char words[256];

	says_so(w, why);
	warm_wait_log(w, 0, "event=lost", before + 1);
	snprintf(words, sizeof(words), "--address %s model drop m --force", address(w));
	tool_expect(0, "", "shardctl", words);
}

static void cold(struct warm *w, const char *why)
{
	lost(w, says, why);
}

/* A damaged region costs its model. A damaged page costs all models. */
static void without(struct warm *w, const char *name, const char *why)
{
	lost(w, is_page(name) ? says : says_void, why);
}

/* Trains a model and finds region i of what it left. False: it has no more regions. Names are
 * looked up each time, because models get new numbers. */
static bool piece(struct warm *w, uint32_t i, parked_name name)
{
	parked_name names[PARKED_MAX];
	uint32_t nr;

	trained(w);
	nr = parked_list(w, names);
	assert_in_range(nr, 3, PARKED_MAX - 1);
	if (i < nr)
		memcpy(name, names[i], sizeof(parked_name));
	return i < nr;
}

/* Starts the daemon, which is warm, and trains a step. */
static void end(struct warm *w)
{
	warm_spawn(w, 1);
	assert_int_equal(warm_back(w, 1), 3);
	warm_train(w, 3);
	warm_finish(w);
}

static void test_missing(void **state)
{
	struct warm *w = *state;
	parked_name name;

	begin(w);
	for (uint32_t i = 0; piece(w, i, name); i++) {
		parked_remove(w, name);
		without(w, name, is_page(name) ? "left no memory" : "it is not there");
	}
	end(w);
}

/* A region is larger, smaller or of size 0. A file that is cut off must not cause a signal. */
static void test_size(void **state)
{
	struct warm *w = *state;
	parked_name name;

	begin(w);
	for (uint32_t i = 0; piece(w, i / 3, name); i++) {
		size_t bytes = parked_bytes(w, name);

		parked_replace(w, name,
			       i % 3 == 0   ? bytes + 4096
			       : i % 3 == 1 ? bytes / 2 / 4096 * 4096
					    : 0);
		without(w, name, "why=");
	}
	end(w);
}

/* The size is right, but the contents are all zero. */
static void test_empty(void **state)
{
	struct warm *w = *state;
	uint32_t tried = 0;
	parked_name name;

	begin(w);
	for (uint32_t i = 0; piece(w, i, name); i++) {
		bool page = is_page(name), meta = strstr(name, "meta") != NULL;

		if (page || meta)
			parked_replace(w, name, parked_bytes(w, name));
		else
			parked_remove(w, name);
		tried += page || meta;
		without(w, name, page ? "is not shardd's" : "why=");
	}
	assert_int_equal(tried, 2);
	end(w);
}

static void page_name(struct warm *w, parked_name name)
{
	parked_name names[PARKED_MAX];
	uint32_t nr = parked_list(w, names);

	for (uint32_t i = 0; i < nr; i++)
		if (is_page(names[i])) {
			memcpy(name, names[i], sizeof(parked_name));
			return;
		}
	fail_msg("there is no page");
}

static void test_other_boot(void **state)
{
	struct warm *w = *state;
	parked_name page;
	char boot[37] = "";
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	CHECK(f != NULL && fgets(boot, sizeof(boot), f) != NULL);
	fclose(f);
	begin(w);
	trained(w);
	page_name(w, page);
	assert_int_equal(parked_flip(w, page, boot, 36), 1);
	cold(w, "it is of another boot");
	warm_finish(w);
}

/* --- memory of another node or start --- */

/* Replaces a text in the configuration of a node by one of the same length. */
static void edit(struct warm *w, int node, const char *from, const char *to)
{
	FILE *f = fopen(w->cluster->node[node].conf, "r+e");
	char text[4096], *at;
	size_t n;

	CHECK(f != NULL && strlen(from) == strlen(to));
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	at = strstr(text, from);
	CHECK(at != NULL && fseek(f, at - text, SEEK_SET) == 0 && fputs(to, f) >= 0 &&
	      fclose(f) == 0);
}

static void shell(const char *command, const char *a, const char *b)
{
	char all[600];

	snprintf(all, sizeof(all), "%s '%s' '%s'", command, a, b);
	assert_int_equal(system(all), 0);
}

static void stopped(struct warm *w)
{
	cluster_signal(w->cluster, 0, SIGTERM);
	assert_int_equal(cluster_wait(w->cluster, 0, 10000), 0);
}

/* Somebody started the daemon by hand without its kept memory. Then the service starts again with
 * the memory that it had before. */
static void test_start_in_between(void **state)
{
	struct warm *w = *state;
	struct cluster_node *n;
	struct fdstore *store;
	char other[80];

	begin(w);
	n = &w->cluster->node[0];
	trained(w);
	store = n->store;
	n->store = NULL;
	snprintf(other, sizeof(other), "%s-other", w->cluster->warm_dir);
	if (w->how == CLUSTER_SYSTEMD)
		edit(w, 0, "warm_restart = systemd", "warm_restart = off    ");
	else
		shell("mv", w->cluster->warm_dir, other);
	if (w->how == CLUSTER_TMPFS)
		CHECK(mkdir(w->cluster->warm_dir, 0700) == 0);
	warm_spawn(w, 1);
	stopped(w);
	n->store = store;
	if (w->how == CLUSTER_SYSTEMD) {
		edit(w, 0, "warm_restart = off    ", "warm_restart = systemd");
	} else {
		shell("rm -rf", w->cluster->warm_dir, w->cluster->warm_dir);
		shell("mv", other, w->cluster->warm_dir);
	}
	cold(w, "a start without it has been 2 since");
	warm_finish(w);
}

/* The daemon does not start and says why, and its memory stays. */
static void refuses(struct warm *w, int node, const char *why)
{
	uint32_t before = warm_logged(w, node, "event=start_failed "),
		 said = warm_logged(w, node, why), cold = warm_logged(w, node, "event=cold_start");

	cluster_spawn(w->cluster, node);
	warm_wait_log(w, node, "event=start_failed ", before + 1);
	if (w->how == CLUSTER_SYSTEMD) /* Under a service manager it ends late. */
		cluster_kill(w->cluster, node);
	else
		assert_int_not_equal(cluster_wait(w->cluster, node, 10000), 0);
	if (warm_logged(w, node, why) != said + 1)
		fail_msg("\"%s\" was not said", why);
	assert_int_equal(warm_logged(w, node, "event=cold_start"), cold);
}

/* Memory that another release wrote is not thrown away. */
static void test_other_format(void **state)
{
	struct warm *w = *state;
	uint32_t format;
	parked_name page;
	int fd;

	begin(w);
	w->settings = "optimizer=sgd chunk_elems=1024";
	trained(w);
	page_name(w, page);
	fd = parked_open(w, page);
	CHECK(pread(fd, &format, sizeof(format), 8) == (ssize_t)sizeof(format));
	format++;
	CHECK(pwrite(fd, &format, sizeof(format), 8) == (ssize_t)sizeof(format));
	close(fd);
	refuses(w, 0, "are of another release: their format is ");
	fd = parked_open(w, page);
	format--;
	CHECK(pwrite(fd, &format, sizeof(format), 8) == (ssize_t)sizeof(format));
	close(fd);
	warm_spawn(w, 1); /* The release that wrote it starts again. */
	assert_int_equal(warm_back(w, 1), 3);
	warm_check(w, 2);
	warm_finish(w);
}

enum { COPY, NEWEST };
static const char *const beside[] = {"copy", "newest"};

/* Keeps a copy of the state folder beside it. */
static void keep_state(struct warm *w, int as)
{
	char path[160];

	snprintf(path, sizeof(path), "%s.%s", w->cluster->node[0].state, beside[as]);
	shell("rm -rf", path, path);
	shell("cp -a", w->cluster->node[0].state, path);
}

static void put_back(struct warm *w, int which)
{
	char path[160];

	snprintf(path, sizeof(path), "%s.%s", w->cluster->node[0].state, beside[which]);
	shell("rm -rf", w->cluster->node[0].state, w->cluster->node[0].state);
	shell("cp -a", path, w->cluster->node[0].state);
}

/* Forgets the kept memory, as --forget-memory or a stop of the service does. */
static void give_up(struct warm *w)
{
	char words[200];

	snprintf(words, sizeof(words), "--config %s --forget-memory", w->cluster->node[0].conf);
	if (w->how == CLUSTER_SYSTEMD)
		(void)fdstore_forget(w->cluster->node[0].store, NULL);
	else
		tool_expect(0, "", "shardd", words);
}

/* The state folder is put back from an old copy, so the memory is of a start that the folder does
 * not know. The memory stays, however often the daemon is started, until the right folder is
 * back. */
static void test_older_start(void **state)
{
	struct warm *w = *state;

	begin(w);
	w->settings = "optimizer=sgd chunk_elems=1024";
	stopped(w);
	keep_state(w, COPY);
	for (int i = 0; i < 3; i++) {
		warm_spawn(w, 1);
		stopped(w);
	}
	warm_spawn(w, 1);
	trained(w);
	keep_state(w, NEWEST);
	put_back(w, COPY);
	for (int i = 0; i < 6; i++)
		refuses(w, 0, "are of start 5 of this node, which began without memory at start 5");
	put_back(w, NEWEST);
	warm_spawn(w, 1);
	assert_int_equal(warm_back(w, 1), 3);
	warm_check(w, 2);
	warm_kill(w, 1);
	put_back(w, COPY); /* This time the operator wants the old folder. */
	refuses(w, 0, "is an older copy of its state folder: there this is start 2, after 1");
	give_up(w);
	says(w, "left no memory"); /* The folder does not know the model either. */
	warm_end(w, 0);
	trained(w);
	end(w);
}

/* The copy is of this very start, but from before the model, which can be given up alone. */
static void test_before_the_model(void **state)
{
	struct warm *w = *state;
	char path[200];
	FILE *f;

	begin(w);
	w->settings = "optimizer=sgd chunk_elems=1024";
	keep_state(w, COPY);
	trained(w);
	keep_state(w, NEWEST);
	put_back(w, COPY);
	for (int i = 0; i < 2; i++)
		refuses(w, 0, " has no file of it: it is an older copy of the state folder");
	put_back(w, NEWEST);
	warm_spawn(w, 1);
	assert_int_equal(warm_back(w, 1), 3);
	warm_check(w, 2);
	warm_kill(w, 1);
	snprintf(path, sizeof(path), "%s/model-00000001", w->cluster->node[0].state);
	CHECK(unlink(path) == 0);
	refuses(w, 0, " has no file of it: it is an older copy of the state folder");
	snprintf(path, sizeof(path), "%s/left-model-00000001", w->cluster->node[0].state);
	f = fopen(path, "we");
	CHECK(f != NULL && fclose(f) == 0);
	warm_spawn(w, 1);
	assert_int_equal(warm_logged(w, 0, "event=lost"), 0);
	warm_end(w, 0);
	trained(w);
	end(w);
}

/* A drop was killed between removing the model's file and its memory, as its row says. */
static void test_killed_drop(void **state)
{
	static const uint32_t row[] = {1, 1, 0, 0}; /* Counts, model 1, no tries, not dropped. */
	const uint32_t dropped = 1;
	struct warm *w = *state;
	uint32_t text[4096];
	parked_name page;
	char path[200];
	off_t at = 0;
	int fd;

	begin(w);
	trained(w);
	page_name(w, page);
	fd = parked_open(w, page);
	CHECK(pread(fd, text, sizeof(text), 0) == (ssize_t)sizeof(text));
	while (memcmp(&text[at], row, sizeof(row)) != 0)
		assert_in_range(++at, 1, 4096 - 4);
	CHECK(pwrite(fd, &dropped, sizeof(dropped), (at + 3) * 4) == 4);
	close(fd);
	snprintf(path, sizeof(path), "%s/model-00000001", w->cluster->node[0].state);
	CHECK(unlink(path) == 0);
	warm_spawn(w, 1);
	assert_int_equal(warm_logged(w, 0, "event=warm_start models=0"), 1);
	trained(w);
	end(w);
}

/* The copy is of this very start, and the model has had another view since. */
static void test_older_view(void **state)
{
	struct warm *w = *state;
	char words[200];

	begin(w);
	w->settings = "optimizer=sgd chunk_elems=1024";
	warm_all(w);
	warm_train(w, 2);
	warm_end(w, 0);
	keep_state(w, COPY);
	snprintf(words, sizeof(words), "--address %s model set m clip 1e9", address(w));
	tool_expect(0, "", "shardctl", words);
	warm_kill(w, 1);
	keep_state(w, NEWEST);
	put_back(w, COPY);
	for (int i = 0; i < 2; i++)
		refuses(w, 0, ": it is an older copy of the state folder");
	put_back(w, NEWEST);
	warm_spawn(w, 1);
	assert_int_equal(warm_back(w, 1), 3);
	warm_check(w, 2);
	warm_finish(w);
}

/* The name of the folder on the tmpfs was in the state folder and is lost with it. In systemd's
 * store the daemon sees that the models there are not its own. */
static void test_other_state_folder(void **state)
{
	struct warm *w = *state;

	begin(w);
	trained(w);
	keep_state(w, NEWEST);
	shell("rm -rf", w->cluster->node[0].state, w->cluster->node[0].state);
	if (w->how == CLUSTER_SYSTEMD) {
		refuses(w, 0, "1 models in memory (systemd) are of another state folder than ");
		put_back(w, NEWEST);
		end(w);
		return;
	}
	warm_spawn(w, 1); /* The daemon does not know the model either. */
	assert_int_equal(warm_logged(w, 0, "event=warm_start"), 0);
	trained(w);
	end(w);
}

/* --- what happens to the model --- */

static void test_checkpoint(void **state)
{
	struct warm *w = *state;
	parked_name names[PARKED_MAX];
	char settings[200];
	struct keep keep;
	uint32_t nr;

	keep_init(&keep);
	begin(w);
	w->numel = 3000;
	snprintf(settings, sizeof(settings), "optimizer=sgd chunk_elems=1024 checkpoint_dir=%s",
		 keep.dir);
	w->settings = settings;
	warm_all(w);
	warm_train(w, 2);
	keep_must_save(address(w), "m", NULL, NULL);
	warm_train(w, 5);
	warm_kill(w, 1);
	nr = parked_list(w, names);
	parked_remove(w, names[nr - 1]);
	warm_spawn(w, 1);
	assert_int_equal(warm_logged(w, 0, "event=warm_start"), 0);
	assert_int_equal(warm_back(w, 1), 3);
	warm_check(w, 2);
	warm_train(w, 4);
	warm_check(w, 4);
	warm_finish(w);
	keep_free(&keep);
}

/* --- a wrong list of nodes --- */

static void test_other_nodes(void **state)
{
	struct warm *w = *state;
	char words[200];

	begin(w);
	w->settings = "optimizer=sgd chunk_elems=1024";
	trained(w);
	edit(w, 0, "node = a", "node = z");
	edit(w, 0, "\na = 127", "\nz = 127");
	refuses(w, 0, "of node a of a, and the configuration says node z of z: put `node` and");
	edit(w, 0, "\nz = 127", "\na = 127");
	edit(w, 0, "node = z", "node = a");
	/* One node too many, which listens nowhere. */
	edit(w, 0, "[cluster]\nrun_id = test", "[nodes]\nb = 127.0.0.1:9");
	refuses(w, 0, "says node a of ");
	edit(w, 0, "[nodes]\nb = 127.0.0.1:9", "[cluster]\nrun_id = test");
	warm_spawn(w, 1);
	assert_int_equal(warm_back(w, 1), 3);
	warm_train(w, 3);
	warm_check(w, 3);
	warm_kill(w, 1);
	if (w->how == CLUSTER_TMPFS) { /* Only this forgets the memory. */
		snprintf(words, sizeof(words), "--config %s --forget-memory",
			 w->cluster->node[0].conf);
		tool_expect(0, "", "shardd", words);
		warm_spawn(w, 1);
		assert_int_equal(warm_logged(w, 0, "event=warm_start"), 1);
	}
	warm_finish(w);
}

/* One of three nodes gets a line too many and is started again. Its memory is kept, so the model
 * goes on when the line is gone. */
static void test_a_line_too_many(void **state)
{
	static const char right[] = "[cluster]\nlost_timeout = 120s",
			  odd[] = "[nodes]\nd = 127.0.0.1:9 ; too";
	enum { B = 1 };
	struct warm *w = *state;

	warm_start(w, 3, (int[]){1, 1, 1}, right);
	warm_all(w);
	warm_train(w, 2);
	warm_kill(w, 1u << B);
	edit(w, B, right, odd);
	refuses(w, B, "says node b of ");
	edit(w, B, odd, right);
	warm_spawn(w, 1u << B);
	assert_int_equal(warm_back(w, 1u << B), 3);
	warm_train(w, 4);
	warm_check(w, 4);
	warm_finish(w);
}

/* Makes the state folder look like one of a release that did not keep warm_dir there. */
static void make_older(struct warm *w)
{
	struct {
		uint64_t head[3]; /* Magic, length and checksum. */
		struct static_warm note;
	} file;
	const size_t bytes = offsetof(struct static_warm, root);
	char path[300];
	FILE *f;

	snprintf(path, sizeof(path), "%s/warm", w->cluster->node[0].state);
	f = fopen(path, "r+e");
	CHECK(f != NULL && fread(&file, sizeof(file), 1, f) == 1);
	rewind(f);
	file.head[1] = bytes;
	file.head[2] = xxh_sum(&file.note, bytes, file.head[0]);
	CHECK(fwrite(&file, sizeof(file.head) + bytes, 1, f) == 1);
	CHECK(fflush(f) == 0 && ftruncate(fileno(f), ftell(f)) == 0 && fclose(f) == 0);
}

/* warm_dir is another folder, which is on a tmpfs, too. */
static void test_other_folder(void **state)
{
	char was[200], now[200], aside[100], words[300];
	struct warm *w = *state;
	struct stat s;

	begin(w);
	if (w->how == CLUSTER_SYSTEMD) {
		warm_finish(w);
		return;
	}
	w->settings = "optimizer=sgd chunk_elems=1024";
	trained(w);
	snprintf(aside, sizeof(aside), "%s", w->cluster->warm_dir);
	aside[strlen(aside) - 1] ^= 1; /* The same length, as the file is edited in place. */
	CHECK(mkdir(aside, 0700) == 0);
	snprintf(was, sizeof(was), "warm_dir = %s", w->cluster->warm_dir);
	snprintf(now, sizeof(now), "warm_dir = %s", aside);
	edit(w, 0, was, now);
	snprintf(words, sizeof(words),
		 "are where warm_dir was %s, and the configuration says warm_dir = "
		 "%s: put it back",
		 w->cluster->warm_dir, aside);
	refuses(w, 0, words);
	edit(w, 0, now, was);
	warm_spawn(w, 1);
	assert_int_equal(warm_back(w, 1), 3);
	warm_check(w, 2);
	warm_kill(w, 1);
	make_older(w);
	warm_spawn(w, 1);
	assert_int_equal(warm_back(w, 1), 3);
	warm_kill(w, 1);
	edit(w, 0, was, now);
	refuses(w, 0, "are where warm_dir was "); /* The previous start wrote it. */
	snprintf(words, sizeof(words), "--config %s --forget-memory", w->cluster->node[0].conf);
	tool_expect(0, "", "shardd", words);
	CHECK(stat(w->cluster->warm_dir, &s) == 0 && s.st_nlink == 2); /* Nothing stays behind. */
	warm_spawn(w, 1);
	assert_int_equal(warm_logged(w, 0, "event=warm_start"), 2);
	warm_finish(w);
	shell("rm -rf", aside, aside);
}

/* warm_restart says that no memory is used again, and there is some. */
static void test_switched_off(void **state)
{
	struct warm *w = *state;
	bool systemd = w->how == CLUSTER_SYSTEMD;
	const char *was = systemd ? "warm_restart = systemd" : "warm_restart = tmpfs",
		   *off = systemd ? "warm_restart = off    " : "warm_restart = off  ";

	begin(w);
	w->settings = "optimizer=sgd chunk_elems=1024";
	trained(w);
	edit(w, 0, was, off);
	refuses(w, 0, "with this warm_restart nothing there is taken up");
	edit(w, 0, off, was);
	warm_spawn(w, 1);
	assert_int_equal(warm_back(w, 1), 3);
	warm_check(w, 2);
	warm_finish(w);
}

/* --- a folder that another user could have filled --- */

static void refused(struct warm *w, const char *why)
{
	int status;

	cluster_spawn(w->cluster, 0);
	status = cluster_wait(w->cluster, 0, 10000);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
	if (warm_logged(w, 0, why) == 0)
		fail_msg("\"%s\" was not said", why);
}

static void folder(struct warm *w, char path[256])
{
	parked_name names[PARKED_MAX];

	assert_true(parked_list(w, names) > 0);
	names[0][strcspn(names[0], "/")] = 0;
	snprintf(path, 256, "%s/%.180s", w->cluster->warm_dir, names[0]);
}

static void test_folder(void **state)
{
	struct warm *w = *state;
	char path[256], aside[300];
	struct statfs fs;

	begin(w);
	if (w->how == CLUSTER_SYSTEMD) {
		warm_finish(w);
		return;
	}
	trained(w);
	folder(w, path);
	CHECK(chmod(path, 0770) == 0);
	refused(w, "must be this daemon's alone");
	CHECK(chmod(path, 0700) == 0);
	if (geteuid() == 0) {
		CHECK(chown(path, 1, (gid_t)-1) == 0);
		refused(w, "belongs to uid 1");
		CHECK(chown(path, 0, (gid_t)-1) == 0);
	}
	snprintf(aside, sizeof(aside), "%s-aside", path);
	shell("mv", path, aside);
	CHECK(symlink(aside, path) == 0);
	refused(w, "cannot be opened");
	CHECK(unlink(path) == 0);
	shell("mv", aside, path);
	warm_spawn(w, 1); /* All of this has not harmed it. */
	assert_int_equal(warm_back(w, 1), 3);
	warm_kill(w, 1);
	snprintf(path, sizeof(path), "warm_dir = %s", w->cluster->warm_dir);
	snprintf(aside, sizeof(aside), "warm_dir = %-*s", (int)strlen(w->cluster->warm_dir),
		 w->cluster->dir);
	edit(w, 0, path, aside);
	if (statfs(w->cluster->dir, &fs) == 0 && fs.f_type != TMPFS_TYPE)
		refused(w, "are where warm_dir was "); /* That is checked first. */
	warm_finish(w);
}

/* Another user who saw the folder's name cannot take it while no daemon has the folder. */
static void test_name_taken(void **state)
{
	struct warm *w = *state;
	char seen[256], now[256];
	struct stat st;

	if (geteuid() != 0)
		skip(); /* Only root can become another user. */
	begin(w);
	if (w->how == CLUSTER_SYSTEMD) {
		warm_finish(w);
		return;
	}
	folder(w, seen);
	CHECK(kill(w->cluster->node[0].pid, SIGTERM) == 0);
	assert_int_equal(cluster_wait(w->cluster, 0, 20000), 0);
	assert_int_equal(stat(seen, &st), -1); /* There was no model. */
	CHECK(mkdir(seen, 0777) == 0 && chmod(seen, 0777) == 0 && chown(seen, 12345, 12345) == 0);
	warm_spawn(w, 1);
	CHECK(rmdir(seen) == 0);
	folder(w, now);
	assert_string_not_equal(now, seen);
	trained(w);
	warm_spawn(w, 1);
	assert_int_equal(warm_back(w, 1), 3);
	folder(w, seen);
	assert_string_equal(now, seen); /* It is kept while something is in the folder. */
	warm_finish(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		WARM_BOTH(test_missing),
		WARM_BOTH(test_size),
		WARM_BOTH(test_empty),
		WARM_BOTH(test_other_nodes),
		WARM_BOTH(test_a_line_too_many),
		WARM_BOTH(test_other_boot),
		WARM_BOTH(test_other_format),
		WARM_BOTH(test_start_in_between),
		WARM_BOTH(test_older_start),
		WARM_BOTH(test_before_the_model),
		WARM_BOTH(test_older_view),
		WARM_BOTH(test_killed_drop),
		WARM_BOTH(test_other_state_folder),
		WARM_BOTH(test_checkpoint),
		WARM_BOTH(test_folder),
		WARM_BOTH(test_name_taken),
		WARM_BOTH(test_switched_off),
		WARM_BOTH(test_other_folder),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
/* Memory that must not be taken up again: a piece is missing, of another size, cut off, empty, of another format or boot, of a node of another
 * state folder, older than a start that was without it, or newer than the state folder. The daemon starts all the same, cold, and says
 * why; the model is lost, or comes from its checkpoint, as without warm restarts. A folder that is not the daemon's alone is refused. */
#include "base/check.h"
#include "lib/keep.h"
#include "lib/parked.h"
#include "lib/tool.h"
#include "lib/trainer.h"

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

/* A model that trains, and its daemon is gone. */
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

/* It starts, and says why it has nothing. */
static void says(struct warm *w, const char *why)
{
	uint32_t before = warm_logged(w, 0, "event=cold_start"), warm = warm_logged(w, 0, "event=warm_start");

	warm_spawn(w, 1);
	assert_int_equal(warm_logged(w, 0, "event=cold_start"), before + 1);
	assert_int_equal(warm_logged(w, 0, "event=warm_start"), warm);
	if (warm_logged(w, 0, why) == 0) {
		char *text = cluster_log(w->cluster, 0);

		fail_msg("\"%s\" was not said:\n%s", why, text);
	}
}

/* The model is lost too; it is dropped, so that trained() makes another one. */
static void cold(struct warm *w, const char *why)
{
	uint32_t lost = warm_logged(w, 0, "event=lost");
	char words[256];

	says(w, why);
	warm_wait_log(w, 0, "event=lost", lost + 1);
	snprintf(words, sizeof(words), "--address %s model drop m --force", address(w));
	tool_expect(0, "", "shardctl", words);
}

/* Piece i of what a model that has trained left; false: there are no more. Models have other numbers each time. */
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

/* And is warm from then on. */
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
		cold(w, is_page(name) ? "left no memory" : "it is not there");
	}
	end(w);
}

/* Larger, smaller, nothing at all. A file that is cut off must not be found out by a signal. */
static void test_size(void **state)
{
	struct warm *w = *state;
	parked_name name;

	begin(w);
	for (uint32_t i = 0; piece(w, i / 3, name); i++) {
		size_t bytes = parked_bytes(w, name);

		parked_replace(w, name, i % 3 == 0 ? bytes + 4096 : i % 3 == 1 ? bytes / 2 / 4096 * 4096 : 0);
		cold(w, "event=cold_start");
	}
	end(w);
}

/* The size is right, and nothing else. */
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
		cold(w, page ? "is not shardd's" : "event=cold_start");
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

static void test_other_format(void **state)
{
	struct warm *w = *state;
	uint32_t format;
	parked_name page;
	int fd;

	begin(w);
	trained(w);
	page_name(w, page);
	fd = parked_open(w, page);
	CHECK(pread(fd, &format, sizeof(format), 8) == (ssize_t)sizeof(format));
	format++;
	CHECK(pwrite(fd, &format, sizeof(format), 8) == (ssize_t)sizeof(format));
	close(fd);
	cold(w, "it is of format ");
	warm_finish(w);
}

/* --- whose it is --- */

static void edit(struct warm *w, const char *from, const char *to) /* in the configuration; as long as each other */
{
	FILE *f = fopen(w->cluster->node[0].conf, "r+e");
	char text[4096], *at;
	size_t n;

	CHECK(f != NULL && strlen(from) == strlen(to));
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	at = strstr(text, from);
	CHECK(at != NULL && fseek(f, at - text, SEEK_SET) == 0 && fputs(to, f) >= 0 && fclose(f) == 0);
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

/* Somebody started it by hand, with nothing kept; then the service comes back to what it had before. */
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
		edit(w, "warm_restart = systemd", "warm_restart = off    ");
	else
		shell("mv", w->cluster->warm_dir, other);
	if (w->how == CLUSTER_TMPFS)
		CHECK(mkdir(w->cluster->warm_dir, 0700) == 0);
	warm_spawn(w, 1);
	stopped(w);
	n->store = store;
	if (w->how == CLUSTER_SYSTEMD) {
		edit(w, "warm_restart = off    ", "warm_restart = systemd");
	} else {
		shell("rm -rf", w->cluster->warm_dir, w->cluster->warm_dir);
		shell("mv", other, w->cluster->warm_dir);
	}
	cold(w, "a start without it has been 2 since");
	warm_finish(w);
}

/* The state folder is put back from a copy of yesterday: what is in memory is of a start that it knows nothing of. */
static void test_stale_counter(void **state)
{
	struct warm *w = *state;
	char copy[160];

	begin(w);
	snprintf(copy, sizeof(copy), "%s.copy", w->cluster->node[0].state);
	stopped(w);
	shell("cp -a", w->cluster->node[0].state, copy);
	for (int i = 0; i < 3; i++) {
		warm_spawn(w, 1);
		stopped(w);
	}
	warm_spawn(w, 1);
	trained(w);
	shell("rm -rf", w->cluster->node[0].state, w->cluster->node[0].state);
	shell("cp -a", copy, w->cluster->node[0].state);
	says(w, "and this is start 2"); /* nor of the model */
	trained(w);
	end(w);
}

static void test_other_state_folder(void **state)
{
	struct warm *w = *state;

	begin(w);
	trained(w);
	shell("rm -rf", w->cluster->node[0].state, w->cluster->node[0].state);
	warm_spawn(w, 1); /* which knows no model either */
	assert_int_equal(warm_logged(w, 0, "event=warm_start"), 0);
	if (w->how == CLUSTER_SYSTEMD)
		assert_int_equal(warm_logged(w, 0, "it is of another node, or of another state directory"), 1);
	trained(w);
	end(w);
}

/* --- what becomes of the model --- */

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
	snprintf(settings, sizeof(settings), "optimizer=sgd chunk_elems=1024 checkpoint_dir=%s", keep.dir);
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

/* --- a folder that anybody could have filled --- */

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
	warm_spawn(w, 1); /* and all this has not harmed it */
	assert_int_equal(warm_back(w, 1), 3);
	warm_kill(w, 1);
	snprintf(path, sizeof(path), "warm_dir = %s", w->cluster->warm_dir);
	snprintf(aside, sizeof(aside), "warm_dir = %-*s", (int)strlen(w->cluster->warm_dir), w->cluster->dir);
	edit(w, path, aside);
	if (statfs(w->cluster->dir, &fs) == 0 && fs.f_type != TMPFS_TYPE)
		refused(w, "is not on a tmpfs");
	warm_finish(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		WARM_BOTH(test_missing),       WARM_BOTH(test_size),
		WARM_BOTH(test_empty),         WARM_BOTH(test_other_boot),
		WARM_BOTH(test_other_format),  WARM_BOTH(test_start_in_between),
		WARM_BOTH(test_stale_counter), WARM_BOTH(test_other_state_folder),
		WARM_BOTH(test_checkpoint),    WARM_BOTH(test_folder),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

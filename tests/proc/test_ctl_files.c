/* SPDX-License-Identifier: Apache-2.0 */
/* Tests `shardctl import` and `export` on files that other tools never write: weights that are not
 * numbers, the rest of an older export, and tensors of several types. exchange.sh reads what they
 * write with the package of Hugging Face. */
#include "base/check.h"
#include "ckpt/safetensors.h"
#include "lib/ckpts.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "wire/dtype.h"

#include <dirent.h>
#include <math.h>
#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Writes one file with two tensors. Element 5 of "b" is x. */
static void write_source(const char *path, float x)
{
	static const char header[] =
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
		"\"b\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[16,48]}}";
	uint64_t bytes = sizeof(header) - 1;
	float w[12];
	FILE *f = fopen(path, "we");

	for (int i = 0; i < 12; i++)
		w[i] = (float)i;
	w[4 + 5] = x;
	CHECK(f && fwrite(&bytes, 8, 1, f) == 1 && fwrite(header, bytes, 1, f) == 1 &&
	      fwrite(w, sizeof(w), 1, f) == 1);
	CHECK(fclose(f) == 0);
}

static void test_nonfinite(void **state)
{
	static const struct {
		float x;
		const char *text;
	} rows[] = {
		{NAN, "tensor b: element 5 is nan"},
		{INFINITY, "tensor b: element 5 is inf"},
		{-INFINITY, "tensor b: element 5 is -inf"},
	};
	char dir[64], source[100], words[300];

	(void)state;
	ckpts_folder(dir);
	snprintf(source, sizeof(source), "%s/x.safetensors", dir);
	for (size_t i = 0; i < NR(rows); i++) {
		write_source(source, rows[i].x);
		snprintf(words, sizeof(words), "import %s %s/none --name gpt", source, dir);
		tool_expect(1, rows[i].text, "shardctl", words);
		tool_expect(1, "--allow-nonfinite", "shardctl", words);
		snprintf(words, sizeof(words),
			 "import %s %s/some --name gpt --step %zu --allow-nonfinite --json", source,
			 dir, i);
		tool_expect(0, "\"nonfinite\":1", "shardctl", words);
	}
	write_source(source, 0);
	snprintf(words, sizeof(words), "import %s %s/all --name gpt --json", source, dir);
	tool_expect(0, "\"nonfinite\":0", "shardctl", words);
	ckpts_remove(dir);
}

/* What somebody at a terminal answers. Returns the exit code. */
static int asked(const char *source, const char *dir, const char *answer)
{
	char path[600], into[100], said[512] = "";
	int master, status;
	pid_t pid;

	proc_beside(path, sizeof(path), "shardctl");
	snprintf(into, sizeof(into), "%s/asked", dir);
	fflush(NULL);
	pid = forkpty(&master, NULL, NULL, NULL);
	CHECK(pid >= 0);
	if (pid == 0) {
		execl(path, "shardctl", "import", source, into, "--name", "gpt", (char *)NULL);
		_exit(97);
	}
	while (!strstr(said, "replace it? [y/N]")) {
		size_t n = strlen(said);
		ssize_t got = read(master, said + n, sizeof(said) - 1 - n);

		if (got <= 0)
			fail_msg("no question: %s", said);
		said[n + (size_t)got] = 0;
	}
	CHECK(write(master, answer, strlen(answer)) == (ssize_t)strlen(answer));
	while (read(master, said, sizeof(said)) > 0)
		;
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	close(master);
	return WEXITSTATUS(status);
}

static ino_t made(const char *dir)
{
	char path[140];
	struct stat info;

	snprintf(path, sizeof(path), "%s/asked/global_step0", dir);
	CHECK(stat(path, &info) == 0);
	return info.st_ino;
}

/* A checkpoint is not replaced without a word. */
static void test_import_again(void **state)
{
	char dir[64], source[100], words[300];
	ino_t first;

	(void)state;
	ckpts_folder(dir);
	snprintf(source, sizeof(source), "%s/x.safetensors", dir);
	write_source(source, 1);
	snprintf(words, sizeof(words), "import %s %s/asked --name gpt", source, dir);
	tool_expect(0, "", "shardctl", words);
	first = made(dir);
	tool_expect(5, "is there already: choose another --tag or folder, or --force", "shardctl",
		    words);
	assert_int_equal(asked(source, dir, "n\n"), 5);
	assert_int_equal(asked(source, dir, "\n"), 5);
	assert_true(made(dir) == first);
	assert_int_equal(asked(source, dir, "y\n"), 0);
	assert_true(made(dir) != first);
	first = made(dir);
	tool_expect(0, "", "shardctl", strcat(words, " --force"));
	assert_true(made(dir) != first);
	ckpts_remove(dir);
}

/* Settings that nothing can restore are refused by the daemon's own parser. */
static void test_import_settings(void **state)
{
	static const struct {
		const char *settings, *text;
		int rc;
	} rows[] = {
		{"foo=1", "import: --settings: [model] foo: unknown key", 4},
		{"lr=abc", "import: --settings: [model] lr = abc: choose a number", 4},
		{"optimizer=sgd,beta1=0.5", "optimizer", 4},
		{"lr", "write key=value", 2},
		{"lr=1e-3", "2 tensors", 0},
		{"keep_latest=7", "keep_latest=7 holds only where shardd.conf", 0},
	};
	char dir[64], source[100], words[300];

	(void)state;
	ckpts_folder(dir);
	snprintf(source, sizeof(source), "%s/x.safetensors", dir);
	write_source(source, 1);
	for (size_t i = 0; i < NR(rows); i++) {
		snprintf(words, sizeof(words), "import %s %s/%zu --name gpt --settings %s", source,
			 dir, i, rows[i].settings);
		tool_expect(rows[i].rc, rows[i].text, "shardctl", words);
		snprintf(words, sizeof(words), "%s/%zu", dir, i);
		assert_int_equal(access(words, F_OK) == 0, rows[i].rc == 0);
	}
	ckpts_remove(dir);
}

/* Checks that the folder has the files of an export with so many shards. */
static void has(const char *dir, int shards)
{
	struct dirent *d;
	int nr = 0, of;
	DIR *o = opendir(dir);

	CHECK(o);
	while ((d = readdir(o)) != NULL) {
		if (strstr(d->d_name, ".keep") ||
		    sscanf(d->d_name, "model-%*5d-of-%5d.safetensors", &of) != 1)
			continue;
		assert_int_equal(of, shards);
		nr++;
	}
	closedir(o);
	assert_int_equal(nr, shards == 1 ? 0 : shards);
}

static void test_export_again(void **state)
{
	static const struct {
		const char *size;
		int shards;
	} rows[] = {{"2KB", 4}, {"9KB", 2}, {"1GB", 1}, {"9KB", 2}};
	char dir[64], out[100], words[300], other[140];
	struct err e;
	FILE *f;

	(void)state;
	ckpts_folder(dir);
	CHECK(ckpts_save(dir, "gpt", 1, 2, 100, &e) == SHARD_OK);
	snprintf(out, sizeof(out), "%s/out", dir);
	for (size_t i = 0; i < NR(rows); i++) {
		snprintf(words, sizeof(words), "export %s %s --dtype bf16 --max-shard-size %s", dir,
			 out, rows[i].size);
		if (i > 0)
			tool_expect(5, "or --force", "shardctl", words);
		strcat(words, " --force --json");
		snprintf(other, sizeof(other), "\"files\":%d", rows[i].shards);
		tool_expect(0, other, "shardctl", words);
		has(out, rows[i].shards);
		snprintf(other, sizeof(other), "%s/model-00001-of-00009.safetensors.keep", out);
		f = fopen(other, i == 0 ? "we" : "re"); /* This file is not part of an export. */
		CHECK(f && fclose(f) == 0);
	}
	ckpts_remove(dir);
}

/* Checks one file of an export, whose tensors have the types of the image. Readers map it, so each
 * element lies at a multiple of its size. Returns how many tensors it has. */
static uint32_t own_types(const char *path)
{
	static uint8_t file[1 << 17], want[1 << 15];
	static float w[8192];
	struct safetensors *s;
	FILE *f = fopen(path, "re");
	uint64_t bytes, head;
	uint32_t nr;
	struct err e;

	CHECK(f != NULL);
	bytes = fread(file, 1, sizeof(file), f);
	fclose(f);
	assert_in_range(bytes, 8, sizeof(file) - 1);
	assert_int_equal(safetensors_header_bytes(file, bytes, path, &head, &e), SHARD_OK);
	assert_int_equal(safetensors_parse(&s, (char *)file + 8, head, bytes, path, &e), SHARD_OK);
	for (uint32_t i = 0; i < s->entries_nr; i++) {
		const struct safetensors_entry *x = &s->entry[i];
		int t = 0;

		while (strcmp(ckpts_names[t], x->name) != 0)
			assert_true(++t < CKPTS_TENSORS);
		assert_int_equal(x->dtype, ckpts_images[t]);
		assert_int_equal(x->offset % dtype_bytes(x->dtype), 0);
		for (uint64_t k = 0; k < ckpts_elems[t]; k++)
			w[k] = ckpts_value(1, 0, t, k);
		dtype_convert(want, x->dtype, w, SHARD_F32, ckpts_elems[t]);
		assert_int_equal(x->bytes, ckpts_elems[t] * dtype_bytes(x->dtype));
		assert_memory_equal(file + x->offset, want, x->bytes);
	}
	nr = s->entries_nr;
	safetensors_free(&s);
	return nr;
}

static void test_export_own_types(void **state)
{
	char dir[64], out[100], words[300], path[200];
	uint32_t nr = 0;
	struct err e;

	(void)state;
	ckpts_folder(dir);
	CHECK(ckpts_save(dir, "gpt", 1, 2, 100, &e) == SHARD_OK);
	snprintf(out, sizeof(out), "%s/out", dir);
	snprintf(words, sizeof(words), "export %s %s --json", dir, out);
	tool_expect(0, "\"dtype\":\"mixed\"", "shardctl", words);
	snprintf(path, sizeof(path), "%s/model.safetensors", out);
	assert_int_equal(own_types(path), CKPTS_TENSORS);
	snprintf(words, sizeof(words), "export %s %s --max-shard-size 3KB --force", dir, out);
	tool_expect(0, "7 tensors as mixed in 3 files", "shardctl", words);
	for (int i = 1; i <= 3; i++) {
		snprintf(path, sizeof(path), "%s/model-%05d-of-00003.safetensors", out, i);
		nr += own_types(path);
	}
	assert_int_equal(nr, CKPTS_TENSORS);
	snprintf(words, sizeof(words), "export %s %s --dtype fp32 --force", dir, out);
	tool_expect(0, "7 tensors as fp32 in 1 file", "shardctl", words);
	ckpts_remove(dir);
}

/* An export with --force that cannot rename one of its shards leaves no index, because that of the
 * older export would name new shards beside old ones. */
static void test_export_stopped(void **state)
{
	static const char command[] = "export %s %s --dtype bf16 --max-shard-size 2KB%s";
	char dir[64], out[100], words[300], index[140], blocked[140];
	struct err e;

	(void)state;
	ckpts_folder(dir);
	CHECK(ckpts_save(dir, "gpt", 1, 2, 100, &e) == SHARD_OK);
	snprintf(out, sizeof(out), "%s/out", dir);
	snprintf(index, sizeof(index), "%s/model.safetensors.index.json", out);
	snprintf(blocked, sizeof(blocked), "%s/model-00003-of-00004.safetensors", out);
	snprintf(words, sizeof(words), command, dir, out, "");
	tool_expect(0, "in 4 files", "shardctl", words);
	assert_int_equal(access(index, F_OK), 0);
	CHECK(unlink(blocked) == 0 && mkdir(blocked, 0700) == 0);
	strcat(words, " --force");
	tool_expect(1, "model-00003-of-00004.safetensors: cannot be renamed to", "shardctl", words);
	assert_int_equal(access(index, F_OK), -1);
	CHECK(rmdir(blocked) == 0);
	tool_expect(0, "in 4 files", "shardctl", words);
	has(out, 4);
	assert_int_equal(access(index, F_OK), 0);
	ckpts_remove(dir);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nonfinite),        cmocka_unit_test(test_import_again),
		cmocka_unit_test(test_import_settings),  cmocka_unit_test(test_export_again),
		cmocka_unit_test(test_export_own_types), cmocka_unit_test(test_export_stopped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

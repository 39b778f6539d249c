// SPDX-License-Identifier: Apache-2.0
/* save, restore, save_pause: one daemon, one trainer, and 64 Mi parameters with AdamW, which are
 * 768 MiB of master weights and moments. save is their bytes over the time from shard_save() until
 * its ticket is done. Everything is then on the disk, also the manifest and `latest`. restore is
 * their bytes over the time of shard_restore() into a daemon that does not know the model. The
 * daemon makes its memory, reads, compares, checks and seals the model, and its image is whole. The
 * limit of each is fio's sequential write or read of as many bytes on the same file system with
 * O_DIRECT, 8 MiB at a time and four in flight as in a save. Like a save it writes a new file and
 * syncs at the end. A round does both, and rounds take turns in which one is first. Before either
 * of them the file system is at rest: what was removed is gone, nothing is dirty, and nothing of a
 * file is in the page cache. The figures are medians. save_pause is the longest step that was in
 * hand during a save over the median of all other steps. This trainer computes nothing, so the step
 * after that of the save changes each chunk before the save has read it, and has to copy it first.
 * The first save of a model also has to make the memory for that, which the next one finds there,
 * so it is the second one that counts. The checkpoints lie in the build folder, because
 * /tmp may be memory. Without fio or without O_DIRECT there is no limit and no figure. --quick: one
 * round of 4 Mi parameters. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 9, TENSORS = 16, STATE_BYTES = 12, STEPS_MAX = 100000 };

#define TRY(call)                                                                                  \
	do {                                                                                       \
		enum shard_status try_ = (call);                                                   \
		if (try_ != SHARD_OK)                                                              \
			bench_fail("%s: %s: %s", #call, shard_name(try_), shard_error());          \
	} while (0)

struct saver {
	struct daemons d;
	char dir[600];
	uint64_t numel; /* Of each tensor. */
	shard_client *c;
	shard_model *m;
	double during[STEPS_MAX], quiet[STEPS_MAX]; /* The times of steps in ms. */
	int during_nr, quiet_nr;
};

static void shell(const char *command)
{
	if (system(command) != 0)
		bench_fail("%s", command);
}

static void define(struct saver *s)
{
	struct shard_tensor tensor[TENSORS];
	char names[TENSORS][8], settings[800];
	struct shard_spec spec = {.size = sizeof(spec),
				  .name = "bench",
				  .tensors = tensor,
				  .tensors_nr = TENSORS,
				  .image = SHARD_BF16,
				  .grad = SHARD_BF16,
				  .settings = settings};
	float *w = malloc(s->numel * sizeof(*w));
	int created;

	CHECK(w != NULL);
	/* A model that saves by itself keeps the memory of its saves. */
	snprintf(settings, sizeof(settings),
		 "optimizer=adamw lr=1e-3 clip=1.0 min_world=1 checkpoint_every=1000000000 "
		 "checkpoint_dir=%s/own",
		 s->dir);
	for (uint64_t i = 0; i < s->numel; i++)
		w[i] = (float)(i % 997) * 1e-3f;
	for (uint32_t t = 0; t < TENSORS; t++) {
		snprintf(names[t], sizeof(names[t]), "t.%u", t);
		tensor[t] = (struct shard_tensor){.name = names[t], .ndim = 1, .shape = {s->numel}};
	}
	TRY(shard_define(s->c, &spec, &s->m, &created));
	for (uint32_t t = 0; t < TENSORS; t++)
		TRY(shard_write(s->m, SHARD_MASTER, t, 0, s->numel, SHARD_F32, w));
	TRY(shard_seal(s->m, 0));
	free(w);
}

static void join(struct saver *s)
{
	struct shard_world w = SHARD_INIT(struct shard_world);

	TRY(shard_join(s->m, 0, 60000, &w));
	/* Small values that are not zero. */
	for (uint32_t t = 0; t < TENSORS; t++)
		memset(shard_grad(s->m, t), 0x11, s->numel * 2);
}

/* Returns the time of a step in milliseconds. */
static double step(struct saver *s)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_step st = SHARD_INIT(struct shard_step);
	uint64_t start = clock_ns();
	shard_ticket commit;

	TRY(shard_begin(s->m, NULL, &st));
	for (uint32_t t = 0; t < TENSORS; t++)
		TRY(shard_push(s->m, t, 0, s->numel, NULL, SHARD_BF16, 0, NULL));
	TRY(shard_commit(s->m, &commit));
	TRY(shard_result(s->m, commit, 60000, &r));
	return (double)(clock_ns() - start) * 1e-6;
}

/* Removes the files of a folder from the page cache. */
static void forget(const char *folder)
{
	DIR *d = opendir(folder);
	struct dirent *e;
	int fd;

	if (d == NULL)
		return;
	while ((e = readdir(d)) != NULL) {
		char path[1200];

		snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
		if (e->d_name[0] == '.' || (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
			continue;
		(void)fdatasync(fd);
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
		if (e->d_type == DT_DIR)
			forget(path);
	}
	closedir(d);
}

/* Syncs the file system and empties the page cache. Otherwise blocks of removed files may be
 * discarded in a later fsync. */
static void rest(const struct saver *s)
{
	int fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || syncfs(fd) != 0)
		bench_fail("%s: %s", s->dir, strerror(errno));
	close(fd);
	forget(s->dir);
}

/* Returns GB/s of fio. 0: it is not installed, or the file system has no O_DIRECT. */
static double fio(const struct saver *s, const char *way)
{
	char command[2000];
	json_error_t je;
	json_t *all;
	double rate = 0;
	FILE *f;

	rest(s);
	snprintf(command, sizeof(command),
		 "fio --name=limit --filename=%s/fio --rw=%s --bs=8M --size=%llu --direct=1 "
		 "--ioengine=libaio --iodepth=4 "
		 "--end_fsync=1 "
		 "--output-format=json 2>%s/fio.log",
		 s->dir, way, (unsigned long long)(s->numel * TENSORS * STATE_BYTES), s->dir);
	f = popen(command, "r");
	all = f != NULL ? json_loadf(f, JSON_DISABLE_EOF_CHECK, &je) : NULL;
	if (f != NULL && pclose(f) == 0 && all != NULL)
		rate = json_number_value(json_object_get(
			json_object_get(json_array_get(json_object_get(all, "jobs"), 0), way),
			"bw_bytes"));
	json_decref(all);
	return rate * 1e-9;
}

static double save_rate(struct saver *s, const char *tag)
{
	shard_ticket t;
	uint64_t start;

	rest(s);
	start = clock_ns();
	TRY(shard_save(s->m, s->dir, tag, &t));
	TRY(shard_wait(s->m, t, 300000));
	return (double)(s->numel * TENSORS * STATE_BYTES) / (double)(clock_ns() - start);
}

static void save_while_training(struct saver *s, const char *tag, bool counts)
{
	shard_ticket t;

	for (int i = 0; i < 20 && s->quiet_nr < STEPS_MAX; i++)
		s->quiet[s->quiet_nr++] = step(s);
	TRY(shard_save(s->m, s->dir, tag, &t));
	while (shard_test(s->m, t) == SHARD_AGAIN && s->during_nr < STEPS_MAX) {
		double ms = step(s);

		if (counts)
			s->during[s->during_nr++] = ms;
	}
	TRY(shard_wait(s->m, t, 300000));
}

static double restore_rate(struct saver *s, const char *tag)
{
	uint64_t start;
	double rate;

	TRY(shard_leave(s->m, 60000));
	shard_detach(&s->m);
	TRY(shard_drop(s->c, "bench", 0));
	rest(s);
	start = clock_ns();
	TRY(shard_restore(s->c, s->dir, tag, NULL, &s->m));
	rate = (double)(s->numel * TENSORS * STATE_BYTES) / (double)(clock_ns() - start);
	join(s);
	return rate;
}

static void print(const char *name, double *ours, double *limit, int nr)
{
	double o = bench_median(ours, nr), l = bench_median(limit, nr);

	if (l > 0)
		printf("bench: %s %.2f GB/s limit %.2f ratio %.3f\n", name, o, l, o / l);
	fprintf(stderr, "%s: from %.2f to %.2f GB/s; fio %.2f to %.2f\n", name, ours[0],
		ours[nr - 1], limit[0], limit[nr - 1]);
}

int main(int argc, char **argv)
{
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
	int rounds = quick ? 1 : ROUNDS;
	double save[ROUNDS], restore[ROUNDS], write_limit[ROUNDS], read_limit[ROUNDS], median;
	struct saver *s = calloc(1, sizeof(*s));
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	char command[800];

	CHECK(s != NULL);
	s->numel = quick ? 1 << 18 : 1 << 22;
	daemons_start(&s->d, argv[0], 1, 0);
	snprintf(s->dir, sizeof(s->dir), "%s/bench-save.XXXXXX", s->d.build);
	if (mkdtemp(s->dir) == NULL)
		bench_fail("%s: %s", s->dir, strerror(errno));
	o.address = s->d.address[0];
	TRY(shard_connect(&s->c, &o));
	define(s);
	join(s);
	for (int i = 0; i < 3; i++)
		(void)step(s);
	for (int i = 0; i < rounds; i++) {
		for (int k = 0; k < 2; k++)
			if (k == i % 2)
				write_limit[i] = fio(s, "write");
			else
				save[i] = save_rate(s, "quiet");
		for (int k = 0; k < 2; k++)
			if (k == i % 2)
				read_limit[i] = fio(s, "read");
			else
				restore[i] = restore_rate(s, "quiet");
		save_while_training(s, "busy", false);
		save_while_training(s, "again", true);
		snprintf(command, sizeof(command), "rm -rf %s/*", s->dir);
		shell(command);
	}
	TRY(shard_leave(s->m, 60000));
	shard_disconnect(&s->c);
	daemons_stop(&s->d);
	snprintf(command, sizeof(command), "rm -rf %s", s->dir);
	shell(command);
	print("save", save, write_limit, rounds);
	print("restore", restore, read_limit, rounds);
	CHECK(s->quiet_nr > 0);
	median = bench_median(s->quiet, s->quiet_nr);
	if (s->during_nr > 0)
		(void)bench_median(s->during, s->during_nr); /* Sorts it. */
	if (s->during_nr > 0)
		printf("bench: save_pause %.2f ms limit %.2f ratio %.3f\n",
		       s->during[s->during_nr - 1], median, s->during[s->during_nr - 1] / median);
	fprintf(stderr,
		"save_pause: %d steps during saves, median %.2f ms; quiet ones up to %.2f ms\n",
		s->during_nr, s->during_nr > 0 ? s->during[s->during_nr / 2] : 0,
		s->quiet[s->quiet_nr - 1]);
	free(s);
	return 0;
}

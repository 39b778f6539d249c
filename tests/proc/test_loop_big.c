// SPDX-License-Identifier: Apache-2.0
// check: all alone
/* A model of many gigabytes (16 GiB on both nodes together, or a third of the available memory) is
 * defined, written, saved, given up and restored, lost with a node and restored in new memory, and
 * dropped. Meanwhile both daemons answer STATUS within 100 ms. A busy machine must not fail the
 * test. So the time in which the daemon's loop or the asking process was ready to run and had no
 * processor is subtracted. A third, idle daemon is asked at the same time, and its worst time in
 * the same phase is added to the 100 ms. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/keep.h"
#include "lib/proc.h"
#include "lib/rawpeer.h"
#include "lib/sanitized.h"
#include "lib/tool.h"
#include "shard.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum {
	PER_ELEM = 28, /* Bytes of both nodes per element, for sgd, fp32 and one trainer. */
	WRITE_ELEMS = 16 << 20,
	WITHIN_MS = 100,
	PACE_US = 5000,
};
#define WAIT_NS (600 * NS_PER_SEC)

enum phase { DEFINE, WRITE, SAVE, RESTORE, LOST, DROP, PHASES };
static const char *const phase_names[PHASES] = {"define",  "write and seal",        "save",
						"restore", "a node without memory", "drop"};
enum { IDLE, A, B, ASKED };

/* Shared with the processes that ask for STATUS. */
static struct asked {
	_Atomic int phase;
	struct {
		_Atomic uint64_t times, worst_ns;
	} of[ASKED][PHASES];
} * asked;

struct asker {
	const char *address;
	int who;
	pid_t daemon, pid;
};

/* Returns how long the first thread of a process has waited for a processor so far. */
static uint64_t queued_ns(pid_t pid)
{
	unsigned long long ran, queued = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", (int)pid, (int)pid);
	f = fopen(path, "re");
	if (f == NULL)
		return 0;
	if (fscanf(f, "%llu %llu", &ran, &queued) != 2)
		queued = 0;
	fclose(f);
	return queued;
}

static int ask(void *arg)
{
	const struct wire_head h = {.op = OP_STATUS, .attempt = 7};
	const struct asker *me = arg;
	struct raw r;

	raw_connect(&r, me->address);
	raw_hello(&r, ROLE_CTL);
	for (;;) {
		int phase = atomic_load(&asked->phase);
		uint64_t queued = queued_ns(me->daemon) + queued_ns(getpid()), from = clock_ns(),
			 ns;

		raw_send(&r, &h, NULL);
		if (!raw_expect(&r, OP_STATUS))
			return 1;
		ns = clock_ns() - from;
		queued = queued_ns(me->daemon) + queued_ns(getpid()) - queued;
		ns = ns > queued ? ns - queued : 0;
		if (ns > atomic_load(&asked->of[me->who][phase].worst_ns))
			atomic_store(&asked->of[me->who][phase].worst_ns, ns);
		atomic_fetch_add(&asked->of[me->who][phase].times, 1);
		usleep(PACE_US);
	}
}

static void ask_begin(struct asker *k, int who, const struct cluster_node *n)
{
	*k = (struct asker){.address = n->unix_address, .who = who, .daemon = n->pid};
	k->pid = proc_fork(ask, k);
}

static void ask_end(struct asker *k)
{
	CHECK(kill(k->pid, SIGKILL) == 0 && waitpid(k->pid, NULL, 0) == k->pid);
}

static void enter(enum phase p)
{
	atomic_store(&asked->phase, p);
}

static void judge(void)
{
	bool late = false;

	for (int p = 0; p < PHASES; p++)
		for (int who = A; who <= B; who++) {
			double idle = (double)asked->of[IDLE][p].worst_ns / NS_PER_MS,
			       worst = (double)asked->of[who][p].worst_ns / NS_PER_MS;

			print_message(
				"%s: node %c answered %lu times within %.1f ms; an idle daemon "
				"within %.1f ms\n",
				phase_names[p], who == A ? 'a' : 'b',
				(unsigned long)asked->of[who][p].times, worst, idle);
			late = late || worst > WITHIN_MS + idle;
			assert_true(asked->of[who][p].times > 0);
		}
	assert_false(late);
}

static uint64_t available(void)
{
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128];

	CHECK(f != NULL);
	while (kib == 0 && fgets(line, sizeof(line), f) != NULL)
		if (sscanf(line, "MemAvailable: %llu", &kib) != 1)
			kib = 0;
	fclose(f);
	return (uint64_t)kib << 10;
}

static uint64_t elems(void)
{
	uint64_t bytes = available() / 3, most = SANITIZED ? 1ull << 30 : 16ull << 30;

	return (bytes < most ? bytes : most) / PER_ELEM / WRITE_ELEMS * WRITE_ELEMS;
}

static struct cluster *start(int nodes)
{
	struct cluster *c = cluster_make(nodes, NULL, "[cluster]\nheartbeat_timeout = 5s\n");

	for (int i = 0; i < nodes; i++) {
		char text[4096], *at;
		FILE *f = fopen(c->node[i].conf, "r+e");
		size_t n;

		CHECK(f != NULL);
		n = fread(text, 1, sizeof(text) - 1, f);
		text[n] = 0;
		at = strstr(text, "memory = 256MiB");
		CHECK(at != NULL);
		memcpy(at, "memory = 020GiB", 15);
		rewind(f);
		CHECK(fwrite(text, 1, n, f) == n && fclose(f) == 0);
		cluster_spawn(c, i);
	}
	for (int i = 0; i < nodes; i++)
		cluster_ready(c, i);
	return c;
}

static void must(enum shard_status st, const char *what)
{
	if (st != SHARD_OK)
		fail_msg("%s: %s: %s", what, shard_name(st), shard_error());
}

static void define(const char *address, uint64_t nr)
{
	struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {nr}};
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	float *ones = malloc(WRITE_ELEMS * sizeof(*ones));
	shard_client *c;
	shard_model *m;
	int created;

	CHECK(ones != NULL);
	for (uint32_t i = 0; i < WRITE_ELEMS; i++)
		ones[i] = 1;
	o.address = address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	must(shard_connect(&c, &o), "connect");
	s.name = "big";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd lr=1 local_world=1 max_world=2 timeout=600s";
	must(shard_define(c, &s, &m, &created), "define");
	assert_int_equal(created, 1);
	enter(WRITE);
	for (uint64_t at = 0; at < nr; at += WRITE_ELEMS)
		must(shard_write(m, SHARD_MASTER, 0, at, WRITE_ELEMS, SHARD_F32, ones), "write");
	must(shard_seal(m, 0), "seal");
	shard_disconnect(&c);
	free(ones);
}

static void save(const char *address, const char *dir)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_ticket ticket;
	shard_client *c;
	shard_model *m;

	o.address = address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	must(shard_connect(&c, &o), "connect");
	must(shard_attach(c, "big", &m), "attach");
	must(shard_save(m, dir, NULL, &ticket), "save");
	must(shard_wait(m, ticket, WAIT_NS / NS_PER_MS), "save");
	shard_disconnect(&c);
}

static void wait_log(struct cluster *c, const char *part, uint32_t times)
{
	uint64_t by = clock_ns() + WAIT_NS;

	while (cluster_logged(c, 0, part) < times) {
		if (clock_ns() > by)
			fail_msg("node a has not logged \"%s\" %u times", part, times);
		usleep(20000);
	}
}

/* Like tool_expect() without its time limit. */
static int shardctl(void *arg)
{
	char **words = arg, path[512];

	proc_beside(path, sizeof(path), "shardctl");
	words[0] = path;
	execv(path, words);
	return 127;
}

static void restore(const char *address, char *dir)
{
	char *words[] = {NULL,
			 (char[]){"restore"},
			 dir,
			 (char[]){"--force"},
			 (char[]){"--address"},
			 (char *)(uintptr_t)address,
			 NULL};

	proc_expect_exit(proc_fork(shardctl, words), 0, WAIT_NS / NS_PER_MS);
}

static void test_big(void **state)
{
	struct cluster *idle = start(1), *c = start(2);
	const char *a = c->node[0].unix_address;
	struct asker asker[ASKED];
	uint64_t nr = elems();
	struct keep keep;
	char words[300];

	(void)state;
	keep_init(&keep);
	asked = mmap(NULL, sizeof(*asked), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	CHECK(asked != MAP_FAILED);
	print_message("%.1f GiB\n", (double)nr * PER_ELEM / (1 << 30));
	ask_begin(&asker[IDLE], IDLE, &idle->node[0]);
	ask_begin(&asker[A], A, &c->node[0]);
	ask_begin(&asker[B], B, &c->node[1]);
	define(a, nr);
	enter(SAVE);
	save(a, keep.dir);
	enter(RESTORE);
	restore(a, keep.dir);
	assert_int_equal(cluster_logged(c, 0, "event=lost model=big"), 1);
	enter(LOST);
	ask_end(&asker[B]);
	cluster_kill(c, 1);
	cluster_spawn(c, 1);
	cluster_ready(c, 1);
	ask_begin(&asker[B], B, &c->node[1]);
	wait_log(c, "event=restored model=big", 2);
	assert_int_equal(cluster_logged(c, 0, "event=lost model=big"), 2);
	enter(DROP);
	snprintf(words, sizeof(words), "model drop big --timeout 120 --address %s", a);
	tool_expect(0, "", "shardctl", words);
	for (int i = 0; i < ASKED; i++)
		ask_end(&asker[i]);
	judge();
	cluster_stop(c);
	cluster_stop(idle);
	keep_free(&keep);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_big)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
/* `systemctl stop shardd` in the middle of a step, in part c's guest, as root: phases staging,
 * where one of two trainers has pushed nothing, and phases applying, where the workers stand still
 * when the last commit decides the step (tests/proc/test_stop_phases.c does it without systemd).
 * service.sh calls and looks at the journal. Fails: the daemon does not do what a stop says, and
 * the sentence tells how. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/hold.h"
#include "lib/rawpeer.h"
#include "lib/trainer.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SOCKET "unix:/run/shardd/shardd.sock"

enum { CHUNK = 32768, TRIES = 10 };

struct pair {
	struct trainer t[2];
	struct raw eye;
	float w[CHUNK];
};

static void define(struct pair *p, struct trainer *t)
{
	static const struct shard_tensor tensor[] = {{.name = "w", .ndim = 1, .shape = {CHUNK}}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);

	s.name = "phases";
	s.tensors = tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd lr=1 chunk_elems=32768 timeout=60s min_world=2 max_world=2";
	trainer_connect(t, SOCKET);
	EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
	if (t->created) {
		EXPECT(SHARD_OK, shard_write(t->model, SHARD_MASTER, 0, 0, CHUNK, SHARD_F32, p->w));
		EXPECT(SHARD_OK, shard_seal(t->model, 0));
	}
}

static void push(struct pair *p, int i)
{
	shard_ticket ticket;

	EXPECT(SHARD_OK, shard_push(p->t[i].model, 0, 0, CHUNK, p->w, SHARD_F32, 0, &ticket));
	EXPECT(SHARD_OK, shard_wait(p->t[i].model, ticket, 30000));
}

static struct pair *begun(void)
{
	struct pair *p = calloc(1, sizeof(*p));

	CHECK(p != NULL);
	define(p, &p->t[0]);
	define(p, &p->t[1]);
	EXPECT(SHARD_TIMEOUT, shard_join(p->t[0].model, 0, 0, &p->t[0].world));
	EXPECT(SHARD_OK, shard_join(p->t[1].model, 1, 30000, &p->t[1].world));
	EXPECT(SHARD_OK, shard_join(p->t[0].model, 0, 30000, &p->t[0].world));
	raw_connect(&p->eye, SOCKET);
	raw_hello(&p->eye, ROLE_CTL);
	for (int i = 0; i < 2; i++)
		trainer_begin(&p->t[i]);
	push(p, 0);
	return p;
}

static bool in_phase(struct pair *p, const char *phase, int seconds)
{
	uint64_t by = clock_ns() + (uint64_t)seconds * NS_PER_SEC;
	char want[40];
	bool there;

	snprintf(want, sizeof(want), "\"phase\":\"%s\"", phase);
	do {
		char *text = raw_status(&p->eye);

		there = strstr(text, want) != NULL;
		free(text);
		if (!there)
			(void)poll(NULL, 0, 20);
	} while (!there && clock_ns() < by);
	return there;
}

static pid_t daemon_pid(void)
{
	FILE *f = popen("systemctl show -P MainPID shardd", "re");
	int pid = 0;

	CHECK(f != NULL);
	if (fscanf(f, "%d", &pid) != 1 || pid <= 0)
		fail_msg("shardd does not run");
	pclose(f);
	return pid;
}

static void run(const char *command)
{
	int rc = system(command);

	if (rc != 0)
		fail_msg("%s: status %d", command, rc);
}

static void staging(void **state)
{
	struct pair *p = begun();
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;

	(void)state;
	if (!in_phase(p, "staging", 30))
		fail_msg("the step is not in STAGING");
	EXPECT(SHARD_OK, shard_commit(p->t[0].model, &ticket));
	run("systemctl stop shardd");
	EXPECT(SHARD_CLOSED, shard_result(p->t[0].model, ticket, 30000, &r));
	EXPECT_TEXT("stops: SIGTERM");
	printf("trainer: %s\n", shard_error());
}

/* Workers may be at the sums of the last push when they are held: then the step is not decided, and
 * another one is tried. */
static shard_ticket decide(struct pair *p, struct hold *h)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;

	for (int i = 0; i < TRIES; i++) {
		push(p, 1);
		EXPECT(SHARD_OK, shard_commit(p->t[0].model, &ticket));
		hold_threads(h, daemon_pid(), "shardd-w");
		EXPECT(SHARD_OK, shard_commit(p->t[1].model, &ticket));
		if (in_phase(p, "applying", 5))
			return ticket;
		hold_release(h);
		for (int k = 0; k < 2; k++) {
			EXPECT(SHARD_OK, shard_result(p->t[k].model, 0, 30000, &r));
			EXPECT(SHARD_OK, shard_world_get(p->t[k].model, &p->t[k].world));
			trainer_begin(&p->t[k]);
		}
		push(p, 0);
	}
	fail_msg("in %d steps none was held in APPLYING", TRIES);
	return 0;
}

static void applying(void **state)
{
	struct pair *p = begun();
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct hold h;

	(void)state;
	decide(p, &h);
	run("systemctl stop --no-block shardd");
	/* it says so and waits: STOPPING is what systemd calls deactivating */
	run("for i in $(seq 100); do [ \"$(systemctl show -P ActiveState shardd)\" != deactivating "
	    "] || "
	    "! systemctl show -P StatusText shardd | grep -q applying || exit 0; sleep 0.1; done; "
	    "systemctl status --no-pager "
	    "shardd; exit 1");
	run("sleep 1; [ \"$(systemctl show -P ActiveState shardd)\" = deactivating ]");
	hold_release(&h);
	for (int k = 0; k < 2; k++) {
		EXPECT(SHARD_OK, shard_result(p->t[k].model, 0, 30000, &r));
		assert_int_equal(r.outcome, SHARD_APPLIED);
	}
	printf("trainer: step %llu is applied\n", (unsigned long long)r.step);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest in_staging[] = {cmocka_unit_test(staging)},
				in_applying[] = {cmocka_unit_test(applying)};

	if (argc == 2 && strcmp(argv[1], "staging") == 0)
		return cmocka_run_group_tests_name("phases", in_staging, NULL, NULL);
	if (argc == 2 && strcmp(argv[1], "applying") == 0)
		return cmocka_run_group_tests_name("phases", in_applying, NULL, NULL);
	fprintf(stderr, "usage: phases staging|applying\n");
	return 2;
}

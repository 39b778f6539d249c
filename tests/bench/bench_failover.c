// SPDX-License-Identifier: Apache-2.0
/* recovery_kill_*: what the loss of a node costs. There are three daemons on this machine with one
 * trainer each, and a model of 64 Mi parameters (bf16, AdamW, clipping) with two copies of each
 * chunk. A daemon is killed with SIGKILL in the middle of a step and stays away. The time runs from
 * the kill until a trainer hears that a step is committed which was begun after it, less the time
 * of a step in the world that is left. In turn it is the daemon that coordinates (_coordinator) and
 * another one (_node), and the coordinator is elected by the nodes (quorum) or known to a real etcd
 * (etcd). The figure is the median over rounds, and the limit is 1 s. recovery_kill_lost counts the
 * steps that a trainer was told are committed and that were then begun again. catch_up_step_*: the
 * killed daemon is started again without its memory. This is the median of the steps that commit
 * while it fetches its copies. The limit is 1.3 times the median of those before the kill.
 * join_pause_*: a node that is in no list joins while the trainers go on. This is the longest step
 * from its start until its copies count and the others have given theirs back, over the median of
 * the 20 steps before. There is one more node in each round. The figure is the median over rounds,
 * and the limit is 2.
 * --quick: 1 Mi parameters. --rounds N: so many rounds, with 4 N kills in all. Without it there are
 * 5, or with --quick one, without etcd. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"
#include "lib/etcds.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	NODES = 3,
	ROUNDS = 5, /* Of each kind of victim. */
	ROUNDS_MAX = 100,
	TENSORS = 64,
	STEPS_MAX = 1 << 16,
	BEFORE = 9, /* So many steps are timed before a kill, */
	OWN = 5,    /* and so many after it. */
	JOIN = 20,  /* So many are timed before a node gets chunks. */
	LIMIT_MS = 1000,
	PATIENCE_MS = 120000
};

#define SETTINGS "optimizer=adamw lr=1e-3 clip=1.0 min_world=1 max_world=3 local_world=1 replicas=2"

struct bench;

struct trainer {
	struct bench *bench;
	pthread_t thread;
	int node;
};

struct bench {
	struct daemons daemons;
	struct trainer trainer[NODES];
	uint64_t numel; /* Of each tensor. */
	int rounds;
	bool quick;
	_Atomic bool over;
	pthread_mutex_t lock;
	/* Of each committed step, when it was first begun and when a trainer first heard of it. */
	uint64_t begun_ns[STEPS_MAX], told_ns[STEPS_MAX];
	uint64_t last; /* The last step that a trainer was told is committed. */
	uint32_t lost;
	double kill[2][ROUNDS_MAX], join[ROUNDS], before[2 * ROUNDS_MAX * BEFORE], *catching;
	int catching_nr;
};

/* --- trainers --- */

/* False: the connection is over, or it is too early for this call. Then the trainer connects
 * again. */
static bool went(enum shard_status st, const char *what)
{
	bool early = st == SHARD_BUSY || st == SHARD_BAD_STATE || st == SHARD_EXISTS ||
		     st == SHARD_MISSING || st == SHARD_TIMEOUT || st == SHARD_NOT_FOUND;

	if (st == SHARD_OK)
		return true;
	if ((st < SHARD_UNREACHABLE && !early) || st == SHARD_LOST)
		bench_fail("%s: %s: %s", what, shard_name(st), shard_error());
	return false;
}

#define GO(call)                                                                                   \
	do {                                                                                       \
		if (!went((call), #call))                                                          \
			return false;                                                              \
	} while (0)

static bool write_weights(const struct bench *b, shard_model *m)
{
	float *w = calloc(b->numel, sizeof(*w));

	CHECK(w != NULL);
	for (uint32_t i = 0; i < TENSORS; i++)
		GO(shard_write(m, SHARD_MASTER, i, 0, b->numel, SHARD_F32, w));
	free(w);
	GO(shard_seal(m, 0));
	return true;
}

static enum shard_status push(const struct bench *b, shard_model *m, shard_ticket *commit)
{
	enum shard_status st = SHARD_OK;

	for (uint32_t i = TENSORS; i-- > 0 && st == SHARD_OK;) {
		void *g = shard_grad(m, i);

		if (g == NULL)
			return SHARD_CLOSED;
		memset(g, 0, b->numel * 2);
		st = shard_push(m, i, 0, b->numel, NULL, SHARD_BF16, 0, NULL);
	}
	return st == SHARD_OK ? shard_commit(m, commit) : st;
}

static void note(struct bench *b, const struct shard_step *s, uint64_t begun_ns)
{
	uint64_t now = clock_ns();

	CHECK(s->step < STEPS_MAX);
	pthread_mutex_lock(&b->lock);
	if (b->told_ns[s->step] == 0) {
		b->begun_ns[s->step] = begun_ns;
		b->told_ns[s->step] = now;
	}
	if (b->last < s->step)
		b->last = s->step;
	pthread_mutex_unlock(&b->lock);
}

static enum shard_status one_step(struct bench *b, shard_model *m)
{
	struct shard_step s = SHARD_INIT(struct shard_step);
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket commit;
	uint64_t begun_ns, known;
	enum shard_status st;

	pthread_mutex_lock(&b->lock);
	known = b->last;
	pthread_mutex_unlock(&b->lock);
	if ((st = shard_begin(m, NULL, &s)) != SHARD_OK)
		return st;
	begun_ns = clock_ns();
	if (s.step <= known) { /* It was told so before this begin was called. */
		pthread_mutex_lock(&b->lock);
		b->lost++;
		pthread_mutex_unlock(&b->lock);
	}
	if ((st = push(b, m, &commit)) == SHARD_OK &&
	    (st = shard_result(m, commit, PATIENCE_MS, &r)) == SHARD_OK)
		note(b, &s, begun_ns);
	return st;
}

static bool session(struct trainer *t, shard_client **c)
{
	struct bench *b = t->bench;
	struct shard_tensor tensor[TENSORS];
	struct shard_spec spec = {.size = sizeof(spec),
				  .name = "bench",
				  .tensors = tensor,
				  .tensors_nr = TENSORS,
				  .image = SHARD_BF16,
				  .grad = SHARD_BF16,
				  .settings = b->quick ? SETTINGS " chunk_elems=65536" : SETTINGS};
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_world w = SHARD_INIT(struct shard_world);
	char names[TENSORS][8];
	shard_model *m;
	int created;

	for (uint32_t i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "t.%u", i);
		tensor[i] = (struct shard_tensor){.name = names[i], .ndim = 1, .shape = {b->numel}};
	}
	o.address = b->daemons.address[t->node];
	o.look_ms = -1; /* What broke is told, and not made again. */
	GO(shard_connect(c, &o));
	GO(shard_define(*c, &spec, &m, &created));
	if (created && !write_weights(b, m))
		return false;
	GO(shard_join(m, t->node, PATIENCE_MS, &w));
	while (!b->over) {
		enum shard_status st = one_step(b, m);

		if (st == SHARD_WORLD_CHANGED)
			st = shard_world_get(m, &w);
		GO(st);
	}
	return true;
}

static void *train(void *arg)
{
	struct trainer *t = arg;

	while (!t->bench->over) {
		shard_client *c = NULL;

		(void)session(t, &c);
		shard_disconnect(&c);
		usleep(1000);
	}
	return NULL;
}

/* --- the daemons --- */

static void patience(uint64_t since, const char *what)
{
	if (clock_ns() - since > PATIENCE_MS * NS_PER_MS)
		bench_fail("%s", what);
	usleep(200);
}

/* Every node says that each chunk has two copies, and that nobody catches up. */
static bool is_whole(const struct daemons *d)
{
	for (int i = 0; i < NODES; i++)
		if (daemons_figure(d, i, "/models") < 1 ||
		    daemons_figure(d, i, "members") < NODES ||
		    daemons_figure(d, i, "catching_up") > 0 ||
		    daemons_figure(d, i, "chunks.least") < 2 ||
		    daemons_figure(d, i, "world") < NODES)
			return false;
	return true;
}

static int coordinator(const struct daemons *d)
{
	char path[64];

	for (int tries = 0; tries < 1000; tries++) { /* On a busy machine one may be elected now. */
		for (int n = 0; n < d->nr; n++) {
			snprintf(path, sizeof(path), "/nodes.%d.coordinator", n);
			if (daemons_figure(d, 0, path) > 0)
				return n;
		}
		usleep(20000);
	}
	bench_fail("nobody coordinates");
}

static uint64_t last_step(struct bench *b)
{
	uint64_t last;

	pthread_mutex_lock(&b->lock);
	last = b->last;
	pthread_mutex_unlock(&b->lock);
	return last;
}

static uint64_t wait_steps(struct bench *b, uint64_t nr)
{
	uint64_t until = last_step(b) + nr, since = clock_ns();

	while (last_step(b) < until)
		patience(since, "no step was committed");
	return last_step(b);
}

/* How long a step took, from the one before it. 0: nobody was told of one of the two. */
static double step_ms(struct bench *b, uint64_t step)
{
	uint64_t from, to;

	pthread_mutex_lock(&b->lock);
	from = b->told_ns[step - 1];
	to = b->told_ns[step];
	pthread_mutex_unlock(&b->lock);
	return from != 0 && to > from ? (double)(to - from) * 1e-6 : 0;
}

/* --- the benchmark --- */

/* Milliseconds from the kill to the first step that was begun after it, less a step. */
static double recovery_ms(struct bench *b, uint64_t killed_ns, uint64_t known)
{
	uint64_t since = clock_ns(), step = known + 1, told = 0;
	double own[OWN];

	for (; told == 0; patience(since, "no step is committed after a kill")) {
		pthread_mutex_lock(&b->lock);
		for (step = known + 1; step <= b->last && told == 0; step++)
			if (b->begun_ns[step] > killed_ns)
				told = b->told_ns[step];
		pthread_mutex_unlock(&b->lock);
	}
	step--;
	wait_steps(b, OWN + 1);
	for (int i = 0; i < OWN; i++)
		own[i] = step_ms(b, step + 1 + (uint64_t)i);
	return (double)(told - killed_ns) * 1e-6 - bench_median(own, OWN);
}

static void round_of(struct bench *b, int i, bool leader)
{
	struct daemons *d = &b->daemons;
	int coordinates = coordinator(d), victim = leader ? coordinates : (coordinates + 1) % NODES;
	uint64_t known, killed_ns, ended_ns, back;

	known = wait_steps(b, BEFORE + 1);
	for (int k = 0; k < BEFORE; k++)
		b->before[(2 * i + leader) * BEFORE + k] = step_ms(b, known - (uint64_t)k);
	usleep((useconds_t)(i * 7919)); /* This ends anywhere in a step. */
	known = last_step(b);
	killed_ns = clock_ns();
	daemons_kill(d, victim);
	ended_ns = clock_ns();
	b->kill[leader][i] = recovery_ms(b, killed_ns, known);
	fprintf(stderr, "round %d: without %s%c: %.0f ms; the process ended after %.0f ms\n", i,
		leader ? "the coordinator " : "", 'a' + victim, b->kill[leader][i],
		(double)(ended_ns - killed_ns) * 1e-6);
	daemons_forget(d, victim);
	daemons_launch(d, victim);
	back = wait_steps(b, 1);
	daemons_wait(d, victim);
	while (!is_whole(d))
		usleep(50000);
	known = last_step(b);
	for (uint64_t s = back + 1; s <= known; s++) {
		double ms = step_ms(b, s);

		if (ms > 0 && b->catching_nr < STEPS_MAX)
			b->catching[b->catching_nr++] = ms;
	}
}

/* Has the node chunks whose copies count, and does nothing move any more? */
static bool has_share(const struct daemons *d, int node)
{
	int other = coordinator(d);
	char path[64];

	snprintf(path, sizeof(path), "chunks.per_node.%c", 'a' + node);
	return daemons_has(d, other, path) && daemons_figure(d, other, path) > 0 &&
	       !daemons_has(d, other, "moving") && is_whole(d);
}

static void join_of(struct bench *b, int i)
{
	struct daemons *d = &b->daemons;
	int node = daemons_joiner(d);
	double before[JOIN], longest = 0;
	uint64_t from, to, since;

	from = wait_steps(b, JOIN + 1);
	for (int k = 0; k < JOIN; k++)
		before[k] = step_ms(b, from - (uint64_t)k);
	since = clock_ns();
	daemons_launch(d, node);
	daemons_wait(d, node);
	while (!has_share(d, node)) {
		patience(since, "a node that joins gets no chunks");
		usleep(50000);
	}
	to = wait_steps(b, 2);
	for (uint64_t s = from + 1; s <= to; s++)
		longest = step_ms(b, s) > longest ? step_ms(b, s) : longest;
	b->join[i] = longest / bench_median(before, JOIN);
	fprintf(stderr,
		"round %d: node %c joins: %.2f ms before, the longest of %lu steps %.2f ms: %.2f "
		"times\n",
		i, 'a' + node, bench_median(before, JOIN), (unsigned long)(to - from), longest,
		b->join[i]);
}

static int joins(const struct bench *b)
{
	return b->rounds < ROUNDS ? b->rounds : ROUNDS;
}

static void say(struct bench *b, const char *source)
{
	static const char *const whom[] = {"node", "coordinator"};
	double before = bench_median(b->before, 2 * b->rounds * BEFORE), median;

	for (int k = 0; k < 2; k++) {
		median = bench_median(b->kill[k], b->rounds);
		printf("bench: recovery_kill_%s_%s %.0f ms limit %d ratio %.3f\n", source, whom[k],
		       median, LIMIT_MS, median / LIMIT_MS);
		fprintf(stderr, "recovery_kill_%s_%s: from %.0f to %.0f ms\n", source, whom[k],
			b->kill[k][0], b->kill[k][b->rounds - 1]);
	}
	printf("bench: recovery_kill_%s_lost %u steps limit 0 ratio %.3f\n", source, b->lost,
	       (double)b->lost);
	median = bench_median(b->join, joins(b));
	printf("bench: join_pause_%s %.2f x limit 2 ratio %.3f\n", source, median, median / 2);
	median = bench_median(b->catching, b->catching_nr);
	printf("bench: catch_up_step_%s %.2f ms limit %.2f ratio %.3f\n", source, median,
	       1.3 * before, median / (1.3 * before));
	fprintf(stderr,
		"catch_up_step_%s: %.2f ms before, %.2f in %d steps meanwhile: %.2f times\n",
		source, before, median, b->catching_nr, median / before);
}

static void measure(const char *argv0, const char *source, const char *endpoints, int rounds,
		    bool quick)
{
	struct bench *b = calloc(1, sizeof(*b));
	char lines[600];

	CHECK(b != NULL);
	snprintf(lines, sizeof(lines), "[cluster]\nmembership = %s\n%s", source, endpoints);
	b->catching = calloc(STEPS_MAX, sizeof(*b->catching));
	CHECK(b->catching != NULL && pthread_mutex_init(&b->lock, NULL) == 0);
	b->numel = (quick ? 1 << 20 : 64 << 20) / TENSORS;
	b->rounds = rounds;
	b->quick = quick;
	daemons_make(&b->daemons, argv0, NODES, 1, "tmpfs");
	daemons_configure(&b->daemons, lines);
	for (int i = 0; i < NODES; i++)
		daemons_launch(&b->daemons, i);
	for (int i = 0; i < NODES; i++)
		daemons_wait(&b->daemons, i);
	for (int i = 0; i < NODES; i++) {
		b->trainer[i] = (struct trainer){.bench = b, .node = i};
		CHECK(pthread_create(&b->trainer[i].thread, NULL, train, &b->trainer[i]) == 0);
	}
	wait_steps(b, 1);
	while (!is_whole(&b->daemons))
		usleep(50000);
	for (int i = 0; i < b->rounds; i++)
		for (int leader = 0; leader < 2; leader++)
			round_of(b, i, leader);
	for (int i = 0; i < joins(b); i++)
		join_of(b, i);
	b->over = true;
	for (int i = 0; i < NODES; i++)
		pthread_join(b->trainer[i].thread, NULL);
	daemons_stop(&b->daemons);
	say(b, source);
	free(b->catching);
	free(b);
}

int main(int argc, char **argv)
{
	bool quick = false;
	char line[512];
	struct etcds e;
	int rounds = 0;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--quick") == 0)
			quick = true;
		else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
			rounds = atoi(argv[++i]);
	}
	if (rounds == 0)
		rounds = quick ? 1 : ROUNDS;
	CHECK(rounds >= 1 && rounds <= ROUNDS_MAX);
	measure(argv[0], "quorum", "", rounds, quick);
	if ((quick && rounds == 1) || !etcds_here())
		return 0;
	etcds_make(&e, 1, 0);
	snprintf(line, sizeof(line), "etcd_endpoints = %s\n", e.endpoints);
	measure(argv[0], "etcd", line, rounds, quick);
	etcds_end(&e);
	return 0;
}

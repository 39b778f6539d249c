/* SPDX-License-Identifier: Apache-2.0 */
/* What the control messages of a step cost the node that coordinates, in processor time of its
 * loop. cores.c has the messages with the real core, frames.c what is below them, and crowd.c whole
 * daemons as threads. control_step_N is that time of a step with N nodes, of which each has a rank
 * and 64 chunks, and its limit is a tenth of a core at steps of 0.2 s. control_pack is what packing
 * BEGIN and COMMIT costs with 64 nodes and 256 ranks, and its limit is the same when they are
 * packed for each node. Both ways run in turn. control_send and control_receive are a frame of 256
 * bytes over loopback, beside a bare send() and recv(). control_loop_N is what the loop of a real
 * coordinator took in a step beyond those of the other nodes, and its limit is what the parts
 * above say. With --costs FILE all of it is written down for tests/growth, beside what real daemons
 * sent. --quick: few sizes. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/cores.h"
#include "bench/crowd.h"
#include "bench/frames.h"
#include "bench/limit_tcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	BATCHES = 7, /* Of a point. */
	STEPS = 3,   /* Of a batch. */
	WARM = 2,
	CONNS = 31,
	ROUNDS = 100,
	REAL_STEPS = 40,
	PAIRS = 3,
	REAL_CHUNK = 4096,
	QUIET_US = 50000, /* Nothing is on its way then, and no timer has come yet. */
	SHORT_MS = 190,   /* All ranks are ready before the first timer. */
	LONG_MS = 950
};

static const uint32_t frame_bytes[] = {0, 64, 256, 1024, 4096, 16384, 65536};

struct frame_line {
	double send, second, receive;
};

struct parts { /* All sizes of frame_bytes. */
	struct frame_line at[NR(frame_bytes)];
};

/* --- frames --- */

static void frames_all(struct parts *p, bool quick)
{
	struct frames *f = frames_begin(CONNS);

	for (size_t i = 0; i < NR(frame_bytes); i++) {
		struct frames_cost c;

		frames_measure(f, frame_bytes[i], quick ? 5 : ROUNDS, &c);
		p->at[i] = (struct frame_line){c.send, c.second > 0 ? c.second : 0, c.receive};
	}
	frames_end(&f);
}

/* Between two sizes the cost is on the line between them. */
static struct frame_line frame_at(const struct parts *p, double bytes)
{
	size_t i = 1;
	double t;

	while (i + 1 < NR(frame_bytes) && bytes > frame_bytes[i])
		i++;
	t = (bytes - frame_bytes[i - 1]) / (frame_bytes[i] - frame_bytes[i - 1]);
	return (struct frame_line){
		p->at[i - 1].send + t * (p->at[i].send - p->at[i - 1].send),
		p->at[i - 1].second + t * (p->at[i].second - p->at[i - 1].second),
		p->at[i - 1].receive + t * (p->at[i].receive - p->at[i - 1].receive)};
}

/* Processor time of a bare send() and a bare recv() of so many bytes. */
static void bare_frame(size_t bytes, bool quick, double *send_ns, double *receive_ns)
{
	double out[ROUNDS], in[ROUNDS];
	char *body = calloc(1, bytes);
	int fds[2], rounds = quick ? 5 : ROUNDS;

	if (body == NULL || limit_tcp_pair(fds) != 0)
		bench_fail("no loopback: %s", strerror(errno));
	for (int i = 0; i < rounds; i++) {
		uint64_t start = clock_thread_ns(), sent;

		CHECK(send(fds[0], body, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
		sent = clock_thread_ns();
		CHECK(recv(fds[1], body, bytes, MSG_WAITALL) == (ssize_t)bytes);
		out[i] = (double)(sent - start);
		in[i] = (double)(clock_thread_ns() - sent);
	}
	close(fds[0]);
	close(fds[1]);
	free(body);
	*send_ns = bench_median(out, rounds);
	*receive_ns = bench_median(in, rounds);
}

/* --- cores --- */

/* Each figure of the result is the least of all batches, because other work on the machine only
 * adds. */
static void cores_point(const struct cores_spec *spec, struct cores_cost *out, bool quick)
{
	struct cores *c = cores_begin(spec);
	struct cores_cost batch;

	cores_steps(c, WARM, NULL);
	for (int i = 0; i < (quick ? 1 : BATCHES); i++) {
		memset(&batch, 0, sizeof(batch));
		cores_steps(c, STEPS, &batch);
		if (i == 0)
			*out = batch;
		_Static_assert(sizeof(batch) % sizeof(uint64_t) == 0, "it has only such figures");
		for (size_t k = 0; k < sizeof(batch) / sizeof(uint64_t); k++) {
			uint64_t *least = (uint64_t *)(void *)out + k,
				 *is = (uint64_t *)(void *)&batch + k;

			*least = *is < *least ? *is : *least;
		}
	}
	cores_end(&c);
}

/* Microseconds of a step. */
static double step_us(const struct cores_cost *c, const struct parts *p, int role)
{
	double ns = (double)c->own_ns[role], out = 0, in = 0;
	const struct frame_line none = p->at[0];

	for (int op = 1; op < CORE_MSG_NR; op++) {
		const struct cores_op *o = &c->op[role][op];
		struct frame_line of;

		ns += (double)(o->pack_ns + o->unpack_ns + o->handle_ns);
		out += (double)o->out_nr;
		in += (double)o->in_nr;
		if (o->out_nr > 0) {
			of = frame_at(p, (double)o->out_bytes / (double)o->out_nr);
			ns += (double)o->out_nr * (of.send - none.send);
		}
		if (o->in_nr > 0) {
			of = frame_at(p, (double)o->in_bytes / (double)o->in_nr);
			ns += (double)o->in_nr * (of.receive - none.receive);
		}
	}
	ns += (double)c->writes[role] * none.send + (double)c->reads[role] * none.receive +
	      (out - (double)c->writes[role] + in - (double)c->reads[role]) * none.second;
	return ns * 1e-3 / (double)c->steps;
}

static void write_point(FILE *f, const struct cores_spec *s, const struct cores_cost *c)
{
	double n = (double)c->steps;

	for (int r = 0; r < CORES_ROLES; r++) {
		char at[64];

		snprintf(at, sizeof(at), "%u %u %u %u %u %s %s", s->nodes, s->chunks, s->ranks,
			 s->copies, (unsigned)(s->step_ns / NS_PER_MS), s->each ? "each" : "once",
			 r == CORES_COORDINATOR ? "coordinator" : "other");
		fprintf(f, "own %s %.2f %.0f %.2f %.2f\n", at, (double)c->own_nr[r] / n,
			(double)c->own_ns[r] / n, (double)c->writes[r] / n,
			(double)c->reads[r] / n);
		for (int op = 1; op < CORE_MSG_NR; op++) {
			const struct cores_op *o = &c->op[r][op];

			if (o->out_nr + o->in_nr > 0)
				fprintf(f, "core %s %s %.2f %.1f %.0f %.2f %.1f %.0f %.0f\n", at,
					cores_op_name((enum core_op)op), (double)o->out_nr / n,
					(double)o->out_bytes / n, (double)o->pack_ns / n,
					(double)o->in_nr / n, (double)o->in_bytes / n,
					(double)o->unpack_ns / n, (double)o->handle_ns / n);
		}
	}
}

static void grid(FILE *f, bool quick)
{
	static const uint16_t nodes[] = {3, 5, 8, 16, 32, 64};
	static const uint32_t chunks[] = {1, 16, 64, 256}, ranks[] = {1, 4};

	for (size_t n = 0; n < NR(nodes); n++)
		for (size_t k = 0; k < NR(chunks); k++)
			for (size_t r = 0; r < NR(ranks); r++)
				for (int v = 0; v < 8; v++) {
					struct cores_spec s = {
						.nodes = nodes[n],
						.chunks = chunks[k],
						.ranks = ranks[r],
						.copies = v & 1 ? 2 : 1,
						.step_ns = (v & 2 ? LONG_MS : SHORT_MS) * NS_PER_MS,
						.each = v & 4};
					struct cores_cost c;

					/* The other way of packing is compared at one corner. */
					if ((quick && (n > 2 || k > 1)) ||
					    (s.each && chunks[k] != 64))
						continue;
					cores_point(&s, &c, quick);
					write_point(f, &s, &c);
				}
}

static double pack_us(const struct cores_cost *c)
{
	return (double)(c->op[0][CORE_BEGIN].pack_ns + c->op[0][CORE_COMMIT].pack_ns) * 1e-3 /
	       (double)c->steps;
}

/* Both ways of packing take turns. */
static void pack(bool quick)
{
	struct cores_spec s = {
		.nodes = 64, .chunks = 1, .ranks = 4, .copies = 1, .step_ns = SHORT_MS * NS_PER_MS};
	double once[BATCHES], each[BATCHES], a, b;
	int nr = quick ? 1 : BATCHES;
	struct cores_cost c;

	for (int i = 0; i < nr; i++) {
		s.each = false;
		cores_point(&s, &c, true);
		once[i] = pack_us(&c);
		s.each = true;
		cores_point(&s, &c, true);
		each[i] = pack_us(&c);
	}
	a = bench_median(once, nr);
	b = bench_median(each, nr);
	printf("bench: control_pack %.0f us limit %.0f ratio %.3f\n", a, b, a / b);
}

/* --- daemons --- */

struct real {
	struct crowd_count of[CORES_ROLES]; /* Of all steps. */
	double step_ms;
};

static void count_less(struct crowd_count *a, const struct crowd_count *b)
{
	for (int op = 0; op < OP_NR; op++) {
		a->out_nr[op] -= b->out_nr[op];
		a->out_bytes[op] -= b->out_bytes[op];
		a->in_nr[op] -= b->in_nr[op];
		a->in_bytes[op] -= b->in_bytes[op];
	}
	a->loop_ns -= b->loop_ns;
}

/* So many daemons with one trainer and one chunk each. The node of this role is alone. */
static void real_run(int nodes, int role, uint32_t steps, struct real *r)
{
	struct fleet_spec spec = {.name = "bench",
				  .tensors_nr = 1,
				  .numel = (uint64_t)nodes * REAL_CHUNK,
				  .dtype = SHARD_BF16,
				  .trainers = nodes};
	struct crowd_count before;
	double ms[REAL_STEPS];
	char settings[160];
	struct fleet_times t;
	struct daemons d;
	struct crowd *c = crowd_begin(&d, nodes, role);
	struct fleet *f;

	snprintf(settings, sizeof(settings),
		 "optimizer=adamw lr=1e-3 clip=1.0 min_world=%d max_world=%d local_world=1 "
		 "chunk_elems=%d replicas=1",
		 nodes, nodes, REAL_CHUNK);
	spec.settings = settings;
	for (int i = 0; i < nodes; i++)
		spec.node[i] = i;
	f = fleet_begin(&d, &spec);
	for (int i = 0; i < WARM; i++)
		fleet_step(f, &t);
	usleep(QUIET_US);
	crowd_count(c, role, &before);
	for (uint32_t i = 0; i < steps; i++) {
		fleet_step(f, &t);
		ms[i] = (double)t.step * 1e-6;
	}
	usleep(QUIET_US);
	crowd_count(c, role, &r->of[role]);
	count_less(&r->of[role], &before);
	r->step_ms = bench_median(ms, (int)steps);
	fleet_end(&f);
	crowd_end(&c);
}

static void write_real(FILE *f, int nodes, uint32_t steps, const struct real *r)
{
	for (int role = 0; role < CORES_ROLES; role++) {
		const struct crowd_count *k = &r->of[role];
		const char *who = role == CORES_COORDINATOR ? "coordinator" : "other";

		fprintf(f, "real_loop %d %s %.0f %.3f\n", nodes, who, (double)k->loop_ns / steps,
			r->step_ms);
		for (int op = 1; op < CORE_MSG_NR; op++)
			if (k->out_nr[OP_CORE + op] + k->in_nr[OP_CORE + op] > 0)
				fprintf(f, "real %d %s %s %.2f %.1f %.2f %.1f\n", nodes, who,
					cores_op_name((enum core_op)op),
					(double)k->out_nr[OP_CORE + op] / steps,
					(double)k->out_bytes[OP_CORE + op] / steps,
					(double)k->in_nr[OP_CORE + op] / steps,
					(double)k->in_bytes[OP_CORE + op] / steps);
	}
}

/* Each role in turn, and of each the median. */
static void real_pairs(int nodes, uint32_t steps, int pairs, struct real *r)
{
	double loop[CORES_ROLES][PAIRS];

	for (int i = 0; i < pairs; i++)
		for (int role = 0; role < CORES_ROLES; role++) {
			real_run(nodes, role, steps, r);
			loop[role][i] = (double)r->of[role].loop_ns;
		}
	for (int role = 0; role < CORES_ROLES; role++)
		r->of[role].loop_ns = (uint64_t)bench_median(loop[role], pairs);
}

static void real_all(FILE *f, const struct parts *p, bool quick)
{
	static const int nodes[] = {3, 5, 8, 16, 32, 64};

	for (size_t i = 0; i < (quick ? 1 : NR(nodes)); i++) {
		uint32_t steps = quick ? 5 : nodes[i] > 16 ? REAL_STEPS / 2 : REAL_STEPS;
		struct cores_spec s = {
			.nodes = (uint16_t)nodes[i], .chunks = 1, .ranks = 1, .copies = 1};
		struct cores_cost c;
		double value, limit;
		struct real r;

		real_pairs(nodes[i], steps, quick || nodes[i] > 32 ? 1 : PAIRS, &r);
		s.step_ns = (uint64_t)(r.step_ms * 1e6);
		cores_point(&s, &c, quick);
		value = ((double)r.of[0].loop_ns - (double)r.of[1].loop_ns) * 1e-3 / steps;
		limit = step_us(&c, p, 0) - step_us(&c, p, 1);
		printf("bench: control_loop_%d %.0f us limit %.0f ratio %.3f\n", nodes[i], value,
		       limit, value / limit);
		fflush(stdout);
		if (f != NULL)
			write_real(f, nodes[i], steps, &r);
	}
}

static void print_parts(const struct parts *p, bool quick)
{
	struct frame_line of = frame_at(p, 256);
	double send_ns, receive_ns;

	bare_frame(64 + 256, quick, &send_ns, &receive_ns);
	printf("bench: control_send %.2f us limit %.2f ratio %.3f\n", of.send * 1e-3,
	       send_ns * 1e-3, of.send / send_ns);
	printf("bench: control_receive %.2f us limit %.2f ratio %.3f\n", of.receive * 1e-3,
	       receive_ns * 1e-3, of.receive / receive_ns);
	for (uint16_t nodes = 8; nodes <= 64; nodes = (uint16_t)(nodes * 2)) {
		struct cores_spec s = {.nodes = nodes,
				       .chunks = 64,
				       .ranks = 1,
				       .copies = 1,
				       .step_ns = SHORT_MS * NS_PER_MS};
		struct cores_cost c;
		double us;

		cores_point(&s, &c, quick);
		us = step_us(&c, p, CORES_COORDINATOR);
		printf("bench: control_step_%u %.0f us limit 20000 ratio %.3f\n", nodes, us,
		       us / 20000);
	}
}

static FILE *costs_open(const char *path, const struct parts *p)
{
	FILE *f = fopen(path, "w");

	if (f == NULL)
		bench_fail("%s: %s", path, strerror(errno));
	fprintf(f,
		"# Written by `make growth`: what tests/bench/bench_control.c measured, per step.\n"
		"# frame BYTES: ns of a write, of a further frame in it, of a read\n"
		"# own NODES CHUNKS RANKS COPIES STEP_MS PACKED ROLE: events, ns, writes, reads\n"
		"# core NODES CHUNKS RANKS COPIES STEP_MS PACKED ROLE OP: out, bytes, ns of "
		"packing, in, bytes, ns of unpacking, ns in the core\n"
		"# real NODES ROLE OP: out, bytes, in, bytes\n"
		"# real_loop NODES ROLE: ns of the loop's thread, ms of a step\n");
	for (size_t i = 0; i < NR(frame_bytes); i++)
		fprintf(f, "frame %u %.0f %.0f %.0f\n", frame_bytes[i], p->at[i].send,
			p->at[i].second, p->at[i].receive);
	return f;
}

int main(int argc, char **argv)
{
	bool quick = argc > 1 && strcmp(argv[argc - 1], "--quick") == 0;
	const char *path = argc > 2 && strcmp(argv[1], "--costs") == 0 ? argv[2] : NULL;
	struct parts p;
	FILE *f;

	frames_all(&p, quick);
	print_parts(&p, quick);
	pack(quick);
	f = path != NULL ? costs_open(path, &p) : NULL;
	real_all(f, &p, quick || path == NULL);
	if (f == NULL)
		return 0;
	grid(f, quick);
	if (fclose(f) != 0)
		bench_fail("%s: %s", path, strerror(errno));
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
/* Starts nodes of membership sources as processes, passes their messages on, and notes what they
 * say. Tests call it. The happy path: members_start() forks, members_wait() turns, and each turn
 * polls the sockets of all nodes, notes events, passes messages on that are not cut, and lets the
 * clients begin new operations. A node that ends is noticed by the end of its control socket. What
 * breaks the contract at once ends the test here. */
#include "lib/members.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/members_impl.h"
#include "lib/pace.h"
#include "lib/rmtree.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* --- processes --- */

static void new_name(struct members *m, int n)
{
	struct member_node *node = &m->node[n];
	static const uint8_t zeros[MEMBER_UUID_BYTES];
	bool again = memcmp(node->uuid, zeros, sizeof(zeros)) != 0;

	memset(node->uuid, 0, sizeof(node->uuid));
	node->ordinal = (uint16_t)(again ? node->ordinal + MEMBERS_MAX : n + 1);
	node->uuid[0] = 0xee;
	node->uuid[1] = (uint8_t)node->ordinal;
}

/* Tests wait for these times to pass, so a moment in which the machine does nothing for them must
 * not make them minutes. */
static uint32_t time_ms(int quiet_ms)
{
	int ms = pace_ms(quiet_ms);

	return (uint32_t)(ms < 4 * quiet_ms ? ms : 4 * quiet_ms);
}

void members_make(struct members *m, const char *source, int nodes_nr, bool quick)
{
	memset(m, 0, sizeof(*m));
	m->source = source;
	m->nodes_nr = nodes_nr;
	m->beat_ms = time_ms(40);
	m->election_ms = time_ms(quick ? 250 : 1500);
	m->deadline_ms = time_ms(1000);
	m->ops = calloc(MEMBERS_OPS_MAX, sizeof(*m->ops));
	CHECK(m->ops != NULL && nodes_nr <= MEMBERS_MAX);
	snprintf(m->dir, sizeof(m->dir), "/tmp/shard-members-XXXXXX");
	CHECK(mkdtemp(m->dir) != NULL);
	for (int n = 0; n < nodes_nr; n++) {
		struct member_node *node = &m->node[n];

		node->control = node->wire = -1;
		node->leader = -1;
		snprintf(node->dir, sizeof(node->dir), "%s/%d", m->dir, n);
		CHECK(mkdir(node->dir, 0700) == 0);
		new_name(m, n);
	}
}

static bool runs(const struct member_node *node)
{
	return node->pid != 0;
}

/* The child's end of both sockets gets the numbers that members_node.c knows. */
static void become_node(const struct members *m, int n, bool first, int control, int wire)
{
	const struct member_node *node = &m->node[n];
	char uuid[2 * MEMBER_UUID_BYTES + 1], times[128];
	char program[] = "members", mark[] = "--member", source[32], dir[96];
	char *argv[] = {program, mark, source, dir, uuid, times, NULL};

	snprintf(source, sizeof(source), "%s", m->source);
	snprintf(dir, sizeof(dir), "%s", node->dir);
	for (int i = 0; i < MEMBER_UUID_BYTES; i++)
		snprintf(uuid + 2 * i, 3, "%02x", node->uuid[i]);
	snprintf(times, sizeof(times), "%u,%u,%u,%u,%u,%u,%u", node->ordinal, first,
		 first || m->alone, m->lies, m->beat_ms, m->election_ms, m->deadline_ms);
	control = fcntl(control, F_DUPFD, 10);
	wire = fcntl(wire, F_DUPFD, 10);
	dup2(control, MEMBERS_CONTROL_FD);
	dup2(wire, MEMBERS_WIRE_FD);
	close(control);
	close(wire);
	execv("/proc/self/exe", argv);
	_exit(127);
}

void members_start(struct members *m, int n, bool first)
{
	struct member_node *node = &m->node[n];
	int control[2], wire[2];

	CHECK(!runs(node));
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, wire) == 0);
	node->stopped = node->ready = node->gone = false;
	node->failed[0] = node->refused[0] = node->order[0] = 0;
	node->refused_status = 0;
	node->leads = node->seq = node->term = 0;
	node->leader = -1;
	fflush(NULL);
	node->pid = fork();
	CHECK(node->pid >= 0);
	if (node->pid == 0)
		become_node(m, n, first, control[1], wire[1]);
	close(control[1]);
	close(wire[1]);
	node->control = control[0];
	node->wire = wire[0];
}

static void command(struct members *m, int n, const struct members_frame *f)
{
	/* The end of a process is noticed by who reads. */
	(void)send(m->node[n].control, f, sizeof(*f), MSG_NOSIGNAL);
}

static void tell_link(struct members *m, int n, int other, bool up)
{
	struct members_frame f = {.type = MEMBERS_LINK, .status = up};

	memcpy(f.uuid, m->node[other].uuid, sizeof(f.uuid));
	if (runs(&m->node[n]) && m->node[n].ready)
		command(m, n, &f);
}

static void link_all(struct members *m, int n, bool up)
{
	for (int i = 0; i < m->nodes_nr; i++) {
		if (i == n || !m->node[i].ready || !runs(&m->node[i]))
			continue;
		tell_link(m, i, n, up);
		tell_link(m, n, i, up);
	}
}

/* The process has ended. Whatever it has not answered stays open for ever. */
static void ended(struct members *m, int n)
{
	struct member_node *node = &m->node[n];

	close(node->control);
	close(node->wire);
	node->control = node->wire = -1;
	node->pid = 0;
	node->ready = false;
	node->leads = 0;
	node->write.open = node->read.open = false;
	link_all(m, n, false);
}

static void reap(struct members *m, int n)
{
	int status;

	CHECK(waitpid(m->node[n].pid, &status, 0) == m->node[n].pid);
	m->node[n].exit_status = status;
	ended(m, n);
}

void members_kill(struct members *m, int n)
{
	CHECK(kill(m->node[n].pid, SIGKILL) == 0);
	reap(m, n);
}

void members_go_on(struct members *m, int n)
{
	m->node[n].stopped = false;
	CHECK(kill(m->node[n].pid, SIGCONT) == 0);
}

static bool has_ended(struct members *m, int n)
{
	return !runs(&m->node[n]);
}

void members_stop(struct members *m, int n)
{
	m->node[n].stopped = true; /* Clients leave it alone. */
	command(m, n, &(struct members_frame){.type = MEMBERS_STOP});
	members_wait(m, has_ended, n, 10, "a source that stops");
	if (!WIFEXITED(m->node[n].exit_status) || WEXITSTATUS(m->node[n].exit_status) != 0)
		fail_msg("node %d ended with %x", n, m->node[n].exit_status);
}

static void copy(const char *dir, const char *from, const char *to)
{
	char text[512];

	snprintf(text, sizeof(text), "cp '%s/%s' '%s/%s'", dir, from, dir, to);
	CHECK(system(text) == 0);
}

void members_fresh(struct members *m, int n)
{
	CHECK(!runs(&m->node[n]));
	rmtree(m->node[n].dir);
	CHECK(mkdir(m->node[n].dir, 0700) == 0);
	new_name(m, n);
}

void members_keep(struct members *m, int n)
{
	copy(m->node[n].dir, "source", "kept");
}

void members_put_back(struct members *m, int n)
{
	copy(m->node[n].dir, "kept", "source");
}

void members_damage(struct members *m, int n, long at)
{
	char path[128];
	FILE *f;
	int c;

	snprintf(path, sizeof(path), "%s/source", m->node[n].dir);
	f = fopen(path, "r+");
	CHECK(f != NULL && fseek(f, at, at < 0 ? SEEK_END : SEEK_SET) == 0);
	c = fgetc(f);
	CHECK(fseek(f, -1, SEEK_CUR) == 0 && fputc(c ^ 1, f) != EOF && fclose(f) == 0);
}

void members_isolate(struct members *m, int n, bool off)
{
	for (int i = 0; i < m->nodes_nr; i++)
		if (i != n)
			m->cut[n][i] = m->cut[i][n] = off;
	if (!off)
		link_all(m, n, true);
}

void members_room(struct members *m, int n, bool room)
{
	struct rlimit now, limit;

	CHECK(prlimit(m->node[n].pid, RLIMIT_FSIZE, NULL, &now) == 0);
	limit = (struct rlimit){.rlim_cur = room ? now.rlim_max : 16, .rlim_max = now.rlim_max};
	CHECK(prlimit(m->node[n].pid, RLIMIT_FSIZE, &limit, NULL) == 0);
}

/* --- operations of clients --- */

static bool note(struct members *m, struct member_call *c, struct register_op op)
{
	if (m->ops_nr == MEMBERS_OPS_MAX)
		return false;
	CHECK(!c->open);
	op.called = clock_ns();
	op.returned = UINT64_MAX;
	c->open = true;
	c->op = m->ops_nr;
	m->ops[m->ops_nr++] = op;
	return true;
}

static void write_one(struct members *m, int n, struct members_frame *f)
{
	struct register_op op = {.kind = REGISTER_WRITE, .expect = f->seq, .writer = ++m->writers};

	f->writer = m->writers;
	m->node[n].write.voter = f->type != MEMBERS_PROPOSE;
	if (note(m, &m->node[n].write, op))
		command(m, n, f);
}

void members_propose(struct members *m, int n, uint64_t term, uint64_t expect, uint32_t bytes_nr)
{
	write_one(m, n,
		  &(struct members_frame){.type = MEMBERS_PROPOSE,
					  .term = term,
					  .seq = expect,
					  .bytes_nr = bytes_nr});
}

void members_voter(struct members *m, int n, const uint8_t *uuid, bool joins)
{
	struct members_frame f = {.type = joins ? MEMBERS_JOIN : MEMBERS_LEAVE,
				  .term = m->node[n].leads,
				  .seq = m->node[n].seq};

	memcpy(f.uuid, uuid, sizeof(f.uuid));
	write_one(m, n, &f);
}

void members_read(struct members *m, int n)
{
	if (note(m, &m->node[n].read, (struct register_op){.kind = REGISTER_READ}))
		command(m, n, &(struct members_frame){.type = MEMBERS_READ});
}

void members_resign(struct members *m, int n)
{
	command(m, n, &(struct members_frame){.type = MEMBERS_RESIGN, .term = m->node[n].leads});
}

void members_note(struct members *m, int n)
{
	m->node[n].order[0] = 0;
}

static void load(struct members *m)
{
	if (clock_ns() < m->load_ns)
		return;
	m->load_ns = clock_ns() + 4 * NS_PER_MS; /* So that the history stays short. */
	for (int n = 0; n < m->nodes_nr; n++) {
		struct member_node *node = &m->node[n];

		if (!node->ready || node->stopped)
			continue;
		if (!node->write.open && (node->leads != 0 || m->writers % 16 == 0))
			members_propose(m, n, node->leads != 0 ? node->leads : node->last_led + 1,
					node->seq - (node->seq > 0 && m->writers % 13 == 5),
					(uint32_t)(m->writers % 31 == 7 ? 60000 : 100));
		if (!node->read.open)
			members_read(m, n);
	}
}

/* --- events of nodes --- */

static void in_order(struct member_node *node, char letter)
{
	size_t nr = strlen(node->order);

	if (nr + 1 < sizeof(node->order))
		node->order[nr] = letter, node->order[nr + 1] = 0;
}

/* What a node tells without being asked counts as seen. */
static void told(struct members *m, const struct members_frame *f)
{
	uint64_t now = clock_ns();

	if (f->seq > 0 && m->ops_nr < MEMBERS_OPS_MAX)
		m->ops[m->ops_nr++] = (struct register_op){.kind = REGISTER_TOLD,
							   .how = REGISTER_DONE,
							   .called = now,
							   .returned = now,
							   .seq = f->seq,
							   .writer = f->writer};
}

static void on_leading(struct members *m, int n, const struct members_frame *f)
{
	struct member_node *node = &m->node[n];

	if (node->leads != 0)
		fail_msg("node %d leads twice without `lost`", n);
	if (f->term == 0 || f->term > 1ull << 62)
		fail_msg("node %d leads term %llu", n, (unsigned long long)f->term);
	if (f->seq < node->seq)
		fail_msg("node %d leads with an older value than it has told", n);
	for (uint32_t i = 0; i < m->terms_nr; i++)
		if (m->term_of[i] == f->term && strcmp(m->source, "static") != 0)
			fail_msg("term %llu is led for the second time",
				 (unsigned long long)f->term);
	CHECK(m->terms_nr < MEMBERS_TERMS_MAX);
	memcpy(m->led_by[m->terms_nr], node->uuid, MEMBER_UUID_BYTES);
	m->term_of[m->terms_nr++] = f->term;
	node->leads = node->last_led = f->term;
	node->led_nr++;
	node->seq = f->seq;
	node->voters_nr = f->voters_nr;
	in_order(node, 'L');
	told(m, f);
}

static void on_view(struct members *m, int n, const struct members_frame *f)
{
	struct member_node *node = &m->node[n];

	if (f->seq <= node->seq)
		fail_msg("node %d told seq %llu after %llu", n, (unsigned long long)f->seq,
			 (unsigned long long)node->seq);
	node->seq = f->seq;
	node->term = f->term;
	node->voters_nr = f->voters_nr;
	in_order(node, 'V');
	told(m, f);
}

static void on_lost(struct members *m, int n, const struct members_frame *f)
{
	struct member_node *node = &m->node[n];

	if (node->leads != f->term)
		fail_msg("node %d lost term %llu, but led %llu", n, (unsigned long long)f->term,
			 (unsigned long long)node->leads);
	node->leads = 0;
	node->lost_nr++;
	in_order(node, 'l');
}

static void answered(struct members *m, int n, struct member_call *c, const struct members_frame *f)
{
	static const enum register_how rows[] = {[MEMBER_OK] = REGISTER_DONE,
						 [MEMBER_CONFLICT] = REGISTER_CONFLICT,
						 [MEMBER_FENCED] = REGISTER_REFUSED,
						 [MEMBER_UNKNOWN] = REGISTER_OPEN,
						 [MEMBER_NOSPACE] = REGISTER_REFUSED};
	struct register_op *op = &m->ops[c->op];

	if (!c->open)
		fail_msg("node %d answered twice", n);
	c->open = false;
	c->how = f->status;
	c->nr++;
	op->how = f->status < 0 ? REGISTER_REFUSED : rows[f->status];
	if (c->voter && f->status == MEMBER_CONFLICT)
		op->how = REGISTER_REFUSED; /* It may be about the voters. */
	op->returned = clock_ns();
	in_order(&m->node[n], f->status < 0 ? '-' : "okfun"[f->status]);
	if (f->status != MEMBER_OK)
		return;
	if (op->kind == REGISTER_READ) {
		op->seq = f->seq;
		op->writer = f->writer;
	} else if (f->seq != op->expect + 1 || f->writer != op->writer) {
		fail_msg("node %d answered with another value than was proposed", n);
	}
}

static void on_leader(struct members *m, int n, const struct members_frame *f)
{
	m->node[n].leader = -1;
	for (int i = 0; i < m->nodes_nr; i++)
		if (f->status != 0 && memcmp(f->uuid, m->node[i].uuid, sizeof(f->uuid)) == 0)
			m->node[n].leader = i;
}

static void on_frame(struct members *m, int n, const struct members_frame *f)
{
	struct member_node *node = &m->node[n];

	switch (f->type) {
	case MEMBERS_STARTED:
		node->refused_status = f->status;
		snprintf(node->refused, sizeof(node->refused), "%s", f->text);
		node->ready = f->status == SHARD_OK;
		link_all(m, n, true);
		break;
	case MEMBERS_VIEW:
		on_view(m, n, f);
		break;
	case MEMBERS_LEADING:
		on_leading(m, n, f);
		break;
	case MEMBERS_LOST:
		on_lost(m, n, f);
		break;
	case MEMBERS_LEADER:
		on_leader(m, n, f);
		break;
	case MEMBERS_FAILED:
		snprintf(node->failed, sizeof(node->failed), "%s", f->text);
		in_order(node, 'F');
		break;
	case MEMBERS_WROTE:
		answered(m, n, &node->write, f);
		break;
	case MEMBERS_DID_READ:
		answered(m, n, &node->read, f);
		break;
	case MEMBERS_STOPPED:
		if (node->write.open || node->read.open || node->leads != 0)
			fail_msg("node %d stopped with something open", n);
		break;
	default:
		fail_msg("node %d said %d", n, f->type);
	}
}

static void pass_on(struct members *m, int n, union members_packet *p, size_t nr)
{
	for (int to = 0; to < m->nodes_nr; to++) {
		if (memcmp(p->msg.peer, m->node[to].uuid, sizeof(p->msg.peer)) != 0 ||
		    !m->node[to].ready || m->cut[n][to])
			continue;
		memcpy(p->msg.peer, m->node[n].uuid, sizeof(p->msg.peer));
		(void)send(m->node[to].wire, p, nr, MSG_NOSIGNAL | MSG_DONTWAIT);
		return;
	}
}

/* Takes what the node has said. False: it has ended. */
static bool listen_to(struct members *m, int n)
{
	static const struct members_frame nothing;
	struct member_node *node = &m->node[n];
	union members_packet *p = malloc(sizeof(*p));
	struct members_frame f = nothing;
	ssize_t nr;

	CHECK(p != NULL);
	while ((nr = recv(node->control, &f, sizeof(f), MSG_DONTWAIT)) == sizeof(f))
		on_frame(m, n, &f);
	for (int i = 0; i < 64; i++) {
		ssize_t got = recv(node->wire, p, sizeof(*p), MSG_DONTWAIT);

		if (got <= 0)
			break;
		pass_on(m, n, p, (size_t)got);
	}
	free(p);
	return nr != 0 && !(nr < 0 && errno == ECONNRESET);
}

/* What it said before it stopped is heard now. */
void members_pause(struct members *m, int n)
{
	int status;

	CHECK(kill(m->node[n].pid, SIGSTOP) == 0);
	CHECK(waitpid(m->node[n].pid, &status, WUNTRACED) == m->node[n].pid && WIFSTOPPED(status));
	m->node[n].stopped = true;
	m->node[n].stopped_ns = clock_ns();
	CHECK(listen_to(m, n));
}

void members_turn(struct members *m)
{
	struct pollfd fds[2 * MEMBERS_MAX];

	for (int n = 0; n < m->nodes_nr; n++) {
		fds[2 * n] = (struct pollfd){.fd = m->node[n].control, .events = POLLIN};
		fds[2 * n + 1] = (struct pollfd){.fd = m->node[n].wire, .events = POLLIN};
	}
	(void)poll(fds, 2 * (nfds_t)m->nodes_nr, 5);
	for (int n = 0; n < m->nodes_nr; n++)
		if (runs(&m->node[n]) && !listen_to(m, n)) {
			m->node[n].gone = true;
			reap(m, n);
		}
	if (m->load)
		load(m);
}

/* --- waiting --- */

void members_wait(struct members *m, members_is *is, int n, int seconds, const char *what)
{
	uint64_t by = pace_by((uint64_t)seconds);

	while (!is(m, n)) {
		if (clock_ns() < by) {
			members_turn(m);
			continue;
		}
		for (int i = 0; i < m->nodes_nr; i++)
			print_message("node %d: pid %d leads %llx seq %llu leader %d write %d "
				      "read %d %s %s\n",
				      i, (int)m->node[i].pid, (unsigned long long)m->node[i].leads,
				      (unsigned long long)m->node[i].seq, m->node[i].leader,
				      m->node[i].write.open, m->node[i].read.open, m->node[i].order,
				      m->node[i].failed);
		fail_msg("waited %d s for %s (node %d)", seconds, what, n);
	}
}

int members_leader(const struct members *m)
{
	int leader = -1;

	for (int n = 0; n < m->nodes_nr; n++) {
		if (m->node[n].leads != 0 && leader != -1)
			return -1;
		if (m->node[n].leads != 0)
			leader = n;
	}
	return leader;
}

bool members_has_leader(struct members *m, int n)
{
	(void)n;
	return members_leader(m) != -1;
}

bool members_write_ended(struct members *m, int n)
{
	return !m->node[n].write.open;
}

bool members_read_ended(struct members *m, int n)
{
	return !m->node[n].read.open;
}

bool members_went_wrong(struct members *m, int n)
{
	return m->node[n].failed[0] != 0;
}

bool members_refused(struct members *m, int n)
{
	return m->node[n].refused_status != 0 && !runs(&m->node[n]);
}

static bool all_equal(struct members *m, int n)
{
	int leader = members_leader(m);

	(void)n;
	for (int i = 0; i < m->nodes_nr && leader != -1; i++)
		if (m->node[i].ready && m->node[i].failed[0] == 0 &&
		    (m->node[i].write.open || m->node[i].read.open ||
		     m->node[i].seq != m->node[leader].seq || m->node[i].leader != leader))
			return false;
	return leader != -1;
}

void members_settle(struct members *m)
{
	m->load = false;
	members_wait(m, all_equal, -1, 20, "all nodes to tell the newest value");
}

const char *members_judge(const struct members *m)
{
	static char text[256];

	return register_check(m->ops, m->ops_nr, text);
}

void members_end(struct members *m)
{
	const char *wrong;

	m->load = false;
	for (int n = 0; n < m->nodes_nr; n++)
		if (runs(&m->node[n]))
			members_stop(m, n);
	wrong = members_judge(m);
	if (wrong != NULL)
		fail_msg("%s: the history is not linearizable: %s", m->source, wrong);
	rmtree(m->dir);
	free(m->ops);
}

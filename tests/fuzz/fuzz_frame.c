/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what a peer can do to a stream. The input is a recipe for valid frames, because no other
 * input would get past the checksums. They are then damaged, torn or sent with descriptors beside
 * them, or are no frames at all. What is delivered must be what was sent, in order. Nothing may be
 * delivered after a refusal, and no descriptor may leak. */
// covers: proto/wire/frame.c proto/net/stream_in.c
#include "base/check.h"
#include "net/stream.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	FRAMES_MAX = 16,
	BODY_MAX = 70000,
	HOW_PIPE = 1,
	HOW_RAW = 2,
	HOW_NO_SUM = 4,
	HOW_CLOSE = 8
};
enum {
	SPOIL_HEAD = 1,
	SPOIL_BODY = 2,
	WITH_FDS = 4,
	TORN = 8,
	DISCARD = 16,
	REFUSE = 32,
	TAKE_FDS = 64,
	HOLD = 128
};
/* Bits of a recipe's `reply`. With LAND the body goes to memory of the owner as a landing, which
 * with END ends in mid-body and with JUDGE is judged there. With BEAR damage does not end the
 * stream. */
enum { LAND = 2, END = 4, JUDGE = 8, BEAR = 16 };

/* The recipe of one frame, as bytes of the input. */
struct recipe {
	uint8_t how, op, reply, part, at, mask;
	uint16_t body_bytes;
};

struct seen {
	uint64_t sums[FRAMES_MAX];
	uint8_t how[FRAMES_MAX], reply[FRAMES_MAX];
	bool ended[FRAMES_MAX]; /* The landing of its body ended before the body did. */
	struct landing landing;
	uint32_t frames, delivered, heads;
	/* `full`: the socket did not take everything, so nothing may follow. */
	bool over, raw, full;
	unsigned char *memory;
};

static enum shard_status on_head(void *owner, struct stream *s, const struct wire_head *h,
				 void **to, struct err *e)
{
	struct seen *k = owner;
	uint8_t how = k->raw || k->heads >= FRAMES_MAX ? 0 : k->how[k->heads];

	CHECK(!k->over && wire_op(h->op) && h->body_bytes <= wire_op(h->op)->body_max);
	k->heads++;
	if (how & REFUSE)
		return err_set(e, SHARD_BAD_STATE, "refused by the test");
	if (how & DISCARD)
		*to = STREAM_DISCARD;
	else if (wire_bulk(h) && h->chunk % 2 == 0)
		*to = k->memory;
	if (*to == k->memory && h->body_bytes > 0 && !k->raw && k->reply[k->heads - 1] & LAND)
		stream_land(s, &k->landing);
	return SHARD_OK;
}

static bool stays(const void *arg, const struct wire_head *h)
{
	return *(const uint32_t *)arg == h->body_bytes;
}

/* In mid-body the memory is wanted for something else. */
static void end_landing(struct seen *k, const struct recipe *r)
{
	uint32_t bytes = r->body_bytes, at = k->frames - 1;

	if (list_empty(&k->landing.streams) || !(r->reply & (END | JUDGE)))
		return;
	if (r->reply & END)
		landing_end(&k->landing);
	else
		landing_judge(&k->landing, stays, &bytes);
	k->ended[at] = list_empty(&k->landing.streams);
	if (k->ended[at])
		memset(k->memory, 0xee, WIRE_PART_BYTES);
}

static bool on_damage(void *owner, struct stream *s, const struct wire_head *h)
{
	struct seen *k = owner;
	uint32_t at = k->heads - 1;

	(void)s, (void)h;
	CHECK(!k->over && k->heads > 0);
	return !k->raw && at < k->frames && k->reply[at] & BEAR;
}

static enum shard_status on_frame(void *owner, struct stream *s, const struct wire_head *h,
				  const void *body, struct err *e)
{
	struct seen *k = owner;
	uint32_t at = k->heads - 1;
	int fds[4];

	CHECK(!k->over);
	k->delivered++;
	if (k->raw)
		return SHARD_OK;
	CHECK(at < k->frames && !(k->how[at] & (DISCARD | SPOIL_HEAD)) && !k->ended[at]);
	CHECK(k->how[at] & SPOIL_BODY || xxh_sum(body, h->body_bytes, 0) == k->sums[at]);
	for (int n = k->how[at] & TAKE_FDS ? stream_take_fds(s, fds, 1 + at % 4) : 0; n > 0; n--)
		close(fds[n - 1]);
	if (k->how[at] & HOLD)
		stream_hold(s, true);
	return at % 16 == 15 ? err_set(e, SHARD_BAD_ARG, "the test has enough") : SHARD_OK;
}

static const struct stream_handler handler = {
	.on_head = on_head, .on_frame = on_frame, .on_damage = on_damage};

static void read_all(struct stream *s, struct seen *k)
{
	for (int i = 0; i < 4; i++) {
		struct err e;

		k->over |= stream_read(s, 1 << 18, &e) != SHARD_OK;
		(void)stream_mid_frame(s);
		CHECK(stream_heard_ns(s) > 0);
		if (!k->over)
			stream_hold(s, false);
	}
}

static bool send_bytes(int fd, const unsigned char *p, size_t bytes, int fds_nr)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(8 * sizeof(int))];
	} control = {0};
	struct iovec iov = {(void *)(uintptr_t)p, bytes};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	int fds[8] = {0};

	if (fds_nr > 0) {
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)fds_nr);
		CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)fds_nr);
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), fds, sizeof(int) * (size_t)fds_nr);
	}
	if (fcntl(fd, F_GETPIPE_SZ) > 0) /* A pipe takes no descriptors. */
		return write(fd, p, bytes) == (ssize_t)bytes;
	return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

/* Makes the frame of a recipe, sends it in one piece or torn, and lets the stream read. */
static void cook(struct stream *s, struct seen *k, int fd, const struct recipe *r, bool sums)
{
	static const unsigned char zero[BODY_MAX];
	struct wire_head h = {
		.op = r->op, .flags = (r->reply & 1) | WIRE_PART_FLAG(r->part), .chunk = r->reply};
	unsigned char *bytes = malloc(sizeof(h) + BODY_MAX);
	size_t n, cut;

	h.body_bytes = r->body_bytes + (r->mask == 0xff ? BODY_MAX - 65536u - 1 : 0);
	h.magic = WIRE_MAGIC;
	h.version = WIRE_VERSION;
	h.body_sum = sums && h.body_bytes ? xxh_sum(zero, h.body_bytes, 0) : 0;
	n = sizeof(h) + h.body_bytes;
	if (wire_op(h.op) && sums) { /* Compares with the product's own wire_seal(). */
		struct wire_head sealed = h;

		wire_seal(&sealed, zero, k->frames, true);
		CHECK(sealed.body_sum == h.body_sum &&
		      sealed.head_sum == (uint32_t)xxh_sum(&h, 60, k->frames));
	}
	/* Any damaged field, even the length, has a right checksum. */
	if (r->how & SPOIL_HEAD && r->at >= 60) {
		((unsigned char *)&h)[r->at % 60] ^= r->mask;
		k->raw = true;
	}
	h.head_sum = (uint32_t)xxh_sum(&h, 60, k->frames);
	if (r->how & SPOIL_HEAD && r->at < 60)
		((unsigned char *)&h)[r->at] ^= r->mask ? r->mask : 1;
	memcpy(bytes, &h, sizeof(h));
	memset(bytes + sizeof(h), 0, n - sizeof(h));
	if (r->how & SPOIL_BODY && n > sizeof(h))
		bytes[sizeof(h) + r->at % (n - sizeof(h))] ^= r->mask;
	k->how[k->frames] = r->how;
	k->reply[k->frames] = r->reply;
	k->sums[k->frames++] = xxh_sum(bytes + sizeof(h), n - sizeof(h), 0);
	cut = r->how & TORN ? (size_t)r->at * 3 % n : n;
	if (cut > 0)
		k->full |= !send_bytes(fd, bytes, cut, r->how & WITH_FDS ? 1 + r->at % 8 : 0);
	if (r->how & TORN) {
		read_all(s, k);
		end_landing(k, r);
	}
	if (cut < n && !k->full)
		k->full |= !send_bytes(fd, bytes + cut, n - cut,
				       r->how & WITH_FDS && r->at % 2 ? 2 : 0);
	if (r->at % 4)
		read_all(s, k);
	/* Nothing is written there after the landing has ended. */
	for (uint32_t i = 0; k->ended[k->frames - 1] && i < WIRE_PART_BYTES; i++)
		CHECK(k->memory[i] == 0xee);
	free(bytes);
}

static void feed(struct stream *s, struct seen *k, int fd, uint8_t how, const uint8_t *data,
		 size_t size)
{
	if (how & HOW_RAW) {
		k->raw = true;
		(void)send_bytes(fd, data, size, 0);
		return;
	}
	while (size >= sizeof(struct recipe) && k->frames < FRAMES_MAX && !k->over && !k->full) {
		struct recipe r;

		memcpy(&r, data, sizeof(r));
		data += sizeof(r);
		size -= sizeof(r);
		cook(s, k, fd, &r, !(how & HOW_NO_SUM));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct seen k = {.memory = malloc(WIRE_PART_BYTES)};
	struct stream_conf conf = {
		.queue_max = 4, .body_max = 68000, .handler = &handler, .owner = &k};
	uint8_t how = size > 0 ? data[0] : 0;
	struct stream *s;
	int fds[2];

	CHECK((how & HOW_PIPE ? pipe(fds) : socketpair(AF_UNIX, SOCK_STREAM, 0, fds)) == 0);
	CHECK(fcntl(fds[1], F_SETFL, O_NONBLOCK) == 0);
	landing_init(&k.landing);
	conf.fd = fds[0];
	CHECK(stream_open(&s, &conf, NULL) == SHARD_OK);
	if (how & HOW_NO_SUM)
		stream_features(s, 0);
	stream_set_body_max(s, 69000);
	if (size > 1)
		feed(s, &k, fds[1], how, data + 1, size - 1);
	read_all(s, &k);
	if (how & HOW_CLOSE) {
		close(fds[1]);
		read_all(s, &k);
	}
	CHECK(stream_stats(s)->refused <= FRAMES_MAX + 1);
	(void)stream_frame_ns(s, 65536);
	(void)stream_told(s);
	stream_free(&s);
	if (!(how & HOW_CLOSE))
		close(fds[1]);
	free(k.memory);
	/* This is the lowest free number, which grows for ever if something leaks. */
	fds[0] = open("/dev/null", O_RDONLY);
	CHECK(fds[0] < 64);
	close(fds[0]);
	return 0;
}

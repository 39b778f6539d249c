/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of the proof. First comes a brief HELLO, then an AUTH with the whole Hello and the
 * keyed hash over all of it. The listener calls prove_heard(), prove_brief(), prove_theirs() and
 * prove_own() in this order. The dialler calls prove_brief(), prove_heard(), prove_own() and
 * prove_theirs(). So a listener proves nothing to a dialler that has not proved first. It fails
 * where there is no memory, where there are no random numbers, and where libcrypto refuses. */
#include "net/prove.h"

#include "base/check.h"
#include "net/tls.h"
#include "wire/frame.h"

#include <stdlib.h>
#include <string.h>

void prove_begin(struct prove *p, enum auth_side side, enum auth_for what)
{
	*p = (struct prove){.side = side, .talk.what = what};
}

enum shard_status prove_bind(struct prove *p, const struct stream *s, struct err *e)
{
	p->talk.bound = tls_is(stream_io(s));
	if (!p->talk.bound || tls_channel(stream_io(s), p->talk.channel))
		return SHARD_OK;
	return err_set(e, SHARD_SYSTEM, "TLS does not export what a proof needs");
}

enum shard_status prove_brief(struct prove *p, const struct auth *a, const Shard__Hello *whole,
			      Shard__Hello *brief, struct err *e)
{
	unsigned char *packed;
	enum shard_status st;
	size_t bytes;
	bool good;

	if ((st = auth_random(p->talk.nonce[p->side], e)) != SHARD_OK)
		return st;
	shard__hello__init(brief);
	brief->wire_min = whole->wire_min;
	brief->wire_max = whole->wire_max;
	brief->features = whole->features | FEATURE_AUTH;
	brief->role = whole->role;
	brief->node = whole->node;
	brief->connection = whole->connection;
	brief->release = whole->release;
	brief->nonce = (ProtobufCBinaryData){AUTH_BYTES, p->talk.nonce[p->side]};
	bytes = shard__hello__get_packed_size(brief);
	packed = malloc(bytes);
	if (packed == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a hello of %zu bytes", bytes);
	shard__hello__pack(brief, packed); /* As the stream will pack it. */
	good = auth_said(a, &p->talk, p->side, packed, bytes);
	free(packed);
	return good ? SHARD_OK : err_set(e, SHARD_SYSTEM, "libcrypto does not hash");
}

enum shard_status prove_heard(struct prove *p, const struct auth *a, const Shard__Hello *theirs,
			      const void *body, uint32_t bytes, struct err *e)
{
	enum auth_side other = p->side == AUTH_DIALLER ? AUTH_LISTENER : AUTH_DIALLER;

	if (!(theirs->features & FEATURE_AUTH))
		return err_set(e, SHARD_DENIED, "it has no secret");
	if (theirs->nonce.len != AUTH_BYTES)
		return err_set(e, SHARD_PROTOCOL, "a hello with a nonce of %zu bytes, not %d",
			       theirs->nonce.len, AUTH_BYTES);
	memcpy(p->talk.nonce[other], theirs->nonce.data, AUTH_BYTES);
	if (!auth_said(a, &p->talk, other, body, bytes))
		return err_set(e, SHARD_SYSTEM, "libcrypto does not hash");
	p->asked = true;
	p->role = theirs->role;
	return SHARD_OK;
}

enum shard_status prove_own(struct prove *p, const struct auth *a, const Shard__Hello *whole,
			    Shard__Auth *out, struct err *e)
{
	size_t bytes = shard__hello__get_packed_size(whole);

	CHECK(p->asked && p->hello == NULL);
	p->hello = malloc(bytes);
	if (p->hello == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a hello of %zu bytes", bytes);
	shard__hello__pack(whole, p->hello);
	if (!auth_prove(a, &p->talk, p->side, p->hello, bytes, p->proof))
		return err_set(e, SHARD_SYSTEM, "libcrypto does not hash");
	shard__auth__init(out);
	out->proof = (ProtobufCBinaryData){AUTH_BYTES, p->proof};
	out->hello = (ProtobufCBinaryData){bytes, p->hello};
	return SHARD_OK;
}

bool prove_theirs(struct prove *p, const struct auth *a, const Shard__Auth *theirs)
{
	CHECK(p->asked);
	return auth_right(a, &p->talk, p->side == AUTH_DIALLER ? AUTH_LISTENER : AUTH_DIALLER,
			  theirs->hello.data, theirs->hello.len, theirs->proof.data,
			  theirs->proof.len);
}

void prove_end(struct prove *p)
{
	free(p->hello);
	*p = (struct prove){.asked = false};
}

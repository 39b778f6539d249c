/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA device of this node. server.c opens it at the start and stop.c closes it, and rdma.c
 * calls rdma_local_beat() at every beat. Happy path: the device opens at the start, and links make
 * and free queue pairs on it. If there is no device, or memlock forbids it, a start with transport
 * = rdma fails. With transport = auto, HELLO and the log say why, and this module looks for a
 * device again with back-off. If the device goes away while it is used, every link with queue pairs
 * is closed. When no memory region is left the device is closed too, and this module looks for one
 * again.
 */
#include "link/rdma.h"

#include "base/check.h"
#include "link/peer.h"
#include "link/events.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BACKOFF_MIN_NS NS_PER_SEC

uint64_t rdma_local_longer(uint64_t backoff_ns)
{
	if (backoff_ns == 0)
		return BACKOFF_MIN_NS;
	return backoff_ns * 2 > RDMA_LOCAL_BACKOFF_MAX_NS ? RDMA_LOCAL_BACKOFF_MAX_NS
							  : backoff_ns * 2;
}

static void on_gone(void *owner, const struct err *why)
{
	struct server *s = owner;
	struct rdma_local *a = s->rdma;

	CHECK(s->rdma != NULL && s->rdma->device != NULL);
	a->gone = true;
	snprintf(a->why, sizeof(a->why), "%s", why->text);
	log_line(s->log, LOG_LEVEL_ERROR, "event=rdma_gone device=%s why=%s", rdma_name(a->device),
		 why->text);
	server_wake(s, 1); /* rdma_link_beat() closes the links that have queue pairs. */
}

static const char *numeric(const char *host)
{
	unsigned char any[sizeof(struct in6_addr)];

	return inet_pton(AF_INET, host, any) == 1 || inet_pton(AF_INET6, host, any) == 1 ? host
											 : NULL;
}

static enum shard_status open_device(struct server *s, struct err *e)
{
	const struct config *c = s->conf;
	struct rdma_local *a = s->rdma;
	struct rdma_conf conf = {.device = strcmp(c->rdma_device, "auto") != 0 ? c->rdma_device
									       : NULL,
				 .gid_index = c->rdma_gid_index,
				 .address = numeric(c->listen.host),
				 .busy_poll_us = c->rdma_busy_poll_us,
				 .gone = on_gone,
				 .owner = s};
	enum shard_status st = rdma_open(&a->device, s->loop, &conf, e);

	if (st == SHARD_OK) {
		a->why[0] = 0;
		log_line(s->log, LOG_LEVEL_INFO, "event=rdma device=%s", rdma_name(a->device));
		return SHARD_OK;
	}
	a->device = NULL;
	if (strcmp(a->why, e->text) != 0)
		log_line(s->log, LOG_LEVEL_INFO, "event=rdma_off why=%s", e->text);
	snprintf(a->why, sizeof(a->why), "%s", e->text);
	a->backoff_ns = rdma_local_longer(a->backoff_ns);
	a->again_ns = clock_ns() + a->backoff_ns;
	return st;
}

enum shard_status rdma_local_open(struct server *s, struct err *e)
{
	struct rdma_local *a = calloc(1, sizeof(*a));
	struct err why;

	CHECK(s->rdma == NULL);
	if (a == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a server");
	s->rdma = a;
	a->again_ns = UINT64_MAX;
	if (s->conf->transport == CONFIG_TRANSPORT_TCP)
		snprintf(a->why, sizeof(a->why), "[net] transport = tcp on node %s",
			 members_name(s, s->self));
	else if (s->conf->tls != TLS_OFF && !s->conf->rdma_with_tls)
		snprintf(
			a->why, sizeof(a->why),
			"[net] tls = %s on node %s, and RDMA is not encrypted: rdma_with_tls = yes "
			"would say that its fabric is trusted",
			s->conf->tls == TLS_PSK ? "psk" : "mtls", members_name(s, s->self));
	else if (s->nodes_nr == 1 && s->conf->transport == CONFIG_TRANSPORT_AUTO)
		snprintf(a->why, sizeof(a->why), "there is no other node");
	else if (open_device(s, &why) != SHARD_OK && s->conf->transport == CONFIG_TRANSPORT_RDMA)
		return err_set(e, SHARD_BAD_ARG,
			       "[net] transport = rdma: %.400s; or choose auto or tcp", why.text);
	return SHARD_OK;
}

/* Closes the device if nothing uses it any more. False: something still does. */
static bool close_device(struct server *s)
{
	struct rdma_local *a = s->rdma;

	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL && s->peer[n]->rdma.queues != NULL)
			return false;
	s->events->rdma_forget(s);
	if (a->jobs > 0)
		return false;
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL && s->peer[n]->rdma.domain != NULL)
			rdma_domain_free(&s->peer[n]->rdma.domain);
	if (a->device != NULL)
		rdma_close(&a->device);
	return true;
}

void rdma_local_beat(struct server *s, uint64_t now_ns)
{
	struct rdma_local *a = s->rdma;
	struct err e;

	if (a->gone && close_device(s)) {
		a->gone = false;
		a->backoff_ns = rdma_local_longer(0);
		a->again_ns = now_ns + a->backoff_ns;
	}
	if (a->device == NULL && now_ns >= a->again_ns && !s->stop.on)
		(void)open_device(s, &e);
	if (a->device == NULL && a->again_ns != UINT64_MAX)
		server_wake(s, a->again_ns);
}

bool rdma_local_closed(struct server *s)
{
	return close_device(s);
}

void rdma_local_free(struct server *s)
{
	if (s->rdma != NULL && s->rdma->device != NULL)
		rdma_close(&s->rdma->device);
	free(s->rdma);
	s->rdma = NULL;
}

bool rdma_local_here(const struct server *s)
{
	return s->rdma->device != NULL && !s->rdma->gone;
}

/* --- HELLO --- */

void rdma_local_hello(const struct server *s, Shard__Hello *mine)
{
	if (s->conf->transport == CONFIG_TRANSPORT_TCP)
		return;
	mine->features |= FEATURE_RDMA | FEATURE_RDMA_DIRECT |
			  (s->conf->rdma_checksum ? FEATURE_RDMA_SUM : 0);
	mine->rdma_queue_pairs = s->conf->rdma_queue_pairs;
	if (!rdma_local_here(s))
		mine->no_rdma = s->rdma->why;
}

enum shard_status rdma_local_check(const struct server *s, const Shard__Hello *theirs,
				   struct err *e)
{
	const char *self = members_name(s, s->self);

	if (s->conf->transport != CONFIG_TRANSPORT_RDMA)
		return SHARD_OK;
	if (!(theirs->features & FEATURE_RDMA))
		return err_set(e, SHARD_MISMATCH,
			       "[net] transport is rdma on node %s, and node %.64s wants no RDMA: "
			       "set it to auto on "
			       "one of them",
			       self, theirs->node);
	if (theirs->no_rdma[0] != 0)
		return err_set(
			e, SHARD_MISMATCH,
			"[net] transport is rdma on node %s, and node %.64s has none: %.300s", self,
			theirs->node, theirs->no_rdma);
	if (!rdma_local_here(s))
		return err_set(e, SHARD_MISMATCH,
			       "[net] transport is rdma on node %s, which has lost it: %.300s",
			       self, s->rdma->why);
	return SHARD_OK;
}

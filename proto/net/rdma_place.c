/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses device, port and GID. rdma_open() calls it once. Happy path: the devices that qualify are
 * opened one after the other, and each is asked for its first active port and that port's GIDs. The
 * first that fits is kept, or a later one whose GID is the listener's address. It fails if there is
 * no device, none of that name, no active port, no GID, or no right to open the device. */
#include "net/rdma_place.h"

#include "base/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How well a GID fits. More is better, and 0 means not at all. */
enum { FIT_NONE, FIT_ANY, FIT_IPV4, FIT_ADDRESS };

static const uint8_t ipv4_mapped[12] = {[10] = 0xff, [11] = 0xff};

/* False: any address will do. */
static bool wanted_gid(const char *address, uint8_t gid[16])
{
	static const uint8_t any[16] = {0};

	memset(gid, 0, 16);
	if (!address)
		return false;
	if (inet_pton(AF_INET, address, gid + 12) == 1) {
		memcpy(gid, ipv4_mapped, sizeof(ipv4_mapped));
		return memcmp(gid + 12, any, 4) != 0;
	}
	return inet_pton(AF_INET6, address, gid) == 1 && memcmp(gid, any, 16) != 0;
}

void rdma_gid_text(const uint8_t gid[16], char *text, size_t bytes)
{
	bool v4 = memcmp(gid, ipv4_mapped, sizeof(ipv4_mapped)) == 0;

	if (!inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? gid + 12 : gid, text, (socklen_t)bytes))
		snprintf(text, bytes, "?");
}

static int fit(const struct ibv_gid_entry *g, const struct rdma_conf *conf, const uint8_t *address)
{
	static const uint8_t zero[16] = {0};

	if (memcmp(g->gid.raw, zero, 16) == 0)
		return FIT_NONE;
	if (conf->gid_index >= 0)
		return g->gid_index == (uint32_t)conf->gid_index ? FIT_ADDRESS : FIT_NONE;
	if (g->gid_type == IBV_GID_TYPE_ROCE_V2 && address && memcmp(g->gid.raw, address, 16) == 0)
		return FIT_ADDRESS;
	if (g->gid_type == IBV_GID_TYPE_ROCE_V2 &&
	    memcmp(g->gid.raw, ipv4_mapped, sizeof(ipv4_mapped)) == 0)
		return FIT_IPV4;
	return FIT_ANY;
}

static int best_gid(struct rdma_place *p, int gids_nr, const struct rdma_conf *conf,
		    const uint8_t *address)
{
	struct ibv_gid_entry *g = calloc((size_t)gids_nr + 1, sizeof(*g));
	ssize_t nr = g ? ibv_query_gid_table(p->verbs, g, (size_t)gids_nr + 1, 0) : 0;
	int best = FIT_NONE;

	for (ssize_t i = 0; i < nr; i++) {
		int f = g[i].port_num == p->port ? fit(&g[i], conf, address) : FIT_NONE;

		if (f <= best)
			continue;
		best = f;
		p->gid = g[i].gid;
		p->gid_index = g[i].gid_index;
	}
	free(g);
	return best;
}

/* p->verbs is open. Takes its first active port. If it does not fit, why says what is missing. */
static int look(struct rdma_place *p, const struct rdma_conf *conf, const uint8_t *address,
		struct err *why)
{
	const char *name = ibv_get_device_name(p->verbs->device);
	struct ibv_device_attr dev;
	struct ibv_port_attr port = {0};
	int f, gids_nr = 0, rc = ibv_query_device(p->verbs, &dev);
	char text[INET6_ADDRSTRLEN];

	if (rc != 0) {
		err_set(why, SHARD_SYSTEM, "RDMA device %s does not answer: %s", name,
			strerror(rc));
		return FIT_NONE;
	}
	p->port = 0;
	for (int i = 1; i <= dev.phys_port_cnt; i++) {
		struct ibv_port_attr a;

		if (ibv_query_port(p->verbs, (uint8_t)i, &a) != 0)
			continue;
		gids_nr += a.gid_tbl_len > 0 ? a.gid_tbl_len : 0;
		if (p->port == 0 && a.state == IBV_PORT_ACTIVE) {
			p->port = (uint8_t)i;
			port = a;
		}
	}
	if (p->port == 0) {
		err_set(why, SHARD_NOT_FOUND, "RDMA device %s has no active port: is its link up?",
			name);
		return FIT_NONE;
	}
	p->ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
	p->lid = port.lid;
	p->mtu = 128u << (port.active_mtu >= IBV_MTU_256 && port.active_mtu <= IBV_MTU_4096
				  ? port.active_mtu
				  : IBV_MTU_1024);
	p->max_qp_wr = dev.max_qp_wr > 0 ? (uint32_t)dev.max_qp_wr : 0;
	p->max_cqe = dev.max_cqe > 0 ? (uint32_t)dev.max_cqe : 0;
	f = best_gid(p, gids_nr, conf, address);
	if (f == FIT_NONE && conf->gid_index >= 0)
		err_set(why, SHARD_NOT_FOUND,
			"RDMA device %s port %u has no GID %d: see ibv_devinfo -v", name, p->port,
			conf->gid_index);
	else if (f == FIT_NONE)
		err_set(why, SHARD_NOT_FOUND,
			"RDMA device %s port %u has no GID: give its interface an address", name,
			p->port);
	rdma_gid_text(p->gid.raw, text, sizeof(text));
	snprintf(p->name, sizeof(p->name), "%s port %u gid %u (%s)", name, p->port, p->gid_index,
		 text);
	return f;
}

static struct ibv_context *open_one(struct ibv_device *d, struct err *why)
{
	struct ibv_context *c;

	errno = 0;
	c = ibv_open_device(d);
	if (!c && (errno == EACCES || errno == EPERM))
		err_set(why, SHARD_DENIED,
			"may not open RDMA device %s: %s; the user needs /dev/infiniband/uverbs* "
			"(DeviceAllow=char-infiniband_verbs)",
			ibv_get_device_name(d), strerror(errno));
	else if (!c)
		err_set(why, SHARD_SYSTEM, "cannot open RDMA device %s: %s", ibv_get_device_name(d),
			strerror(errno));
	return c;
}

static enum shard_status none(struct err *e, const struct rdma_conf *conf, const struct err *why)
{
	if (why->status != SHARD_OK)
		return err_set(e, why->status, "%s", why->text);
	if (conf->device)
		return err_set(e, SHARD_NOT_FOUND, "no RDMA device named \"%s\": see ibv_devices",
			       conf->device);
	return err_set(e, SHARD_NOT_FOUND, "no RDMA device here: see ibv_devices");
}

enum shard_status rdma_place_find(struct rdma_place *out, const struct rdma_conf *conf,
				  struct err *e)
{
	struct err why = {0}; /* Of the first device that was tried and does not fit. */
	uint8_t address[16];
	bool wanted = wanted_gid(conf->address, address);
	struct ibv_device **all;
	int nr = 0, best = FIT_NONE;

	memset(out, 0, sizeof(*out));
	all = ibv_get_device_list(&nr);
	if (!all && errno == EPERM)
		return err_set(e, SHARD_DENIED, "RDMA devices may not be listed: %s",
			       strerror(errno));
	if (!all)
		return none(e, conf, &why);
	for (int i = 0; i < nr && best < FIT_ADDRESS; i++) {
		struct rdma_place p = {0};
		struct err no = {0};
		int f = FIT_NONE;

		if (conf->device && strcmp(conf->device, ibv_get_device_name(all[i])) != 0)
			continue;
		p.verbs = open_one(all[i], &no);
		if (p.verbs)
			f = look(&p, conf, wanted ? address : NULL, &no);
		if (why.status == SHARD_OK)
			why = no;
		if (f > FIT_NONE && (!out->verbs || f == FIT_ADDRESS)) {
			struct ibv_context *before = out->verbs;

			*out = p;
			p.verbs = before;
			best = f;
		}
		if (p.verbs)
			(void)ibv_close_device(p.verbs);
	}
	ibv_free_device_list(all);
	return out->verbs ? SHARD_OK : none(e, conf, &why);
}

bool rdma_place_holds(const struct rdma_place *p)
{
	union ibv_gid now;

	return ibv_query_gid(p->verbs, p->port, (int)p->gid_index, &now) == 0 &&
	       memcmp(&now, &p->gid, sizeof(now)) == 0;
}

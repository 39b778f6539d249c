/* SPDX-License-Identifier: Apache-2.0 */
/* What `shardctl doctor` looks at of RDMA: which device, port and GID shardd would take and why,
 * and whether shardd may open them. doctor.c calls doctor_rdma() and doctor_verbs() through the
 * rows in checks.c. Everything is read from sysfs, so that shardctl needs no verbs library. The
 * choice follows the daemon's (proto/net/rdma_place.c). It takes the first device with an active
 * port, or a later device that has the address of [daemon] listen as a GID, and it prefers RoCE v2.
 * Without a device the nodes use TCP, which is fine unless transport = rdma. */
#include "ctl/doctor.h"

#include "base/check.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IB          "/sys/class/infiniband"
#define VERBS       "/sys/class/infiniband_verbs"
#define DEVICES_MAX 32

enum fit { FIT_NONE, FIT_ANY, FIT_IPV4, FIT_ADDRESS };

struct gid {
	enum fit fit;
	unsigned index;
	char address[INET6_ADDRSTRLEN], type[32], interface[32];
};

struct port {
	char device[64], link[32], rate[32];
	unsigned number, gids;
	struct gid gid;
};

static const uint8_t ipv4_mapped[12] = {[10] = 0xff, [11] = 0xff};

/* Fills names with the sorted names of a folder and returns how many there are. The caller frees
 * each name. */
static int list(const struct doctor *d, const char *path, char *names[], int max)
{
	char whole[1300];
	struct dirent *entry;
	int nr = 0;
	DIR *dir;

	snprintf(whole, sizeof(whole), "%s%s", d->root, path);
	dir = opendir(whole);
	while (dir && nr < max && (entry = readdir(dir))) {
		int at = nr;

		if (entry->d_name[0] == '.')
			continue;
		for (; at > 0 && strcmp(names[at - 1], entry->d_name) > 0; at--)
			names[at] = names[at - 1];
		names[at] = strdup(entry->d_name);
		CHECK(names[at]);
		nr++;
	}
	if (dir)
		closedir(dir);
	return nr;
}

/* Writes the address of [daemon] listen as a GID. False: it is not the address of one interface. */
static bool listens(const struct doctor *d, uint8_t gid[16])
{
	const char *listen = doctor_value(d, "daemon", "listen"), *colon = strrchr(listen, ':');
	static const uint8_t any[16] = {0};
	char host[128];

	snprintf(host, sizeof(host), "%.*s", colon ? (int)(colon - listen) : 0, listen);
	memset(gid, 0, 16);
	if (inet_pton(AF_INET, host, gid + 12) == 1) {
		memcpy(gid, ipv4_mapped, sizeof(ipv4_mapped));
		return memcmp(gid + 12, any, 4) != 0 && gid[12] != 127;
	}
	if (host[0] == '[' && host[strlen(host) - 1] == ']')
		memmove(host, host + 1, strlen(host)), host[strlen(host) - 1] = 0;
	return inet_pton(AF_INET6, host, gid) == 1 && memcmp(gid, any, 16) != 0;
}

static enum fit fits(const uint8_t raw[16], bool v2, unsigned index, long wanted_index,
		     const uint8_t *address)
{
	static const uint8_t zero[16] = {0};

	if (memcmp(raw, zero, 16) == 0)
		return FIT_NONE;
	if (wanted_index >= 0)
		return index == (unsigned long)wanted_index ? FIT_ADDRESS : FIT_NONE;
	if (v2 && address && memcmp(raw, address, 16) == 0)
		return FIT_ADDRESS;
	return v2 && memcmp(raw, ipv4_mapped, sizeof(ipv4_mapped)) == 0 ? FIT_IPV4 : FIT_ANY;
}

static void best_gid(const struct doctor *d, struct port *p, const uint8_t *address)
{
	const char *index = doctor_value(d, "net", "rdma_gid_index");
	long wanted = index[0] && strcmp(index, "auto") != 0 ? strtol(index, NULL, 10) : -1;
	char path[200], line[64];

	for (unsigned i = 0;; i++) {
		struct gid g = {.index = i};
		uint8_t raw[16];

		snprintf(path, sizeof(path), IB "/%s/ports/%u/gids/%u", p->device, p->number, i);
		if (!doctor_line(d, path, line, sizeof(line)))
			return;
		if (inet_pton(AF_INET6, line, raw) != 1)
			continue;
		snprintf(path, sizeof(path), IB "/%s/ports/%u/gid_attrs/types/%u", p->device,
			 p->number, i);
		(void)doctor_line(d, path, g.type, sizeof(g.type));
		snprintf(path, sizeof(path), IB "/%s/ports/%u/gid_attrs/ndevs/%u", p->device,
			 p->number, i);
		(void)doctor_line(d, path, g.interface, sizeof(g.interface));
		g.fit = fits(raw, strcmp(g.type, "RoCE v2") == 0, i, wanted, address);
		p->gids += g.fit != FIT_NONE;
		if (g.fit <= p->gid.fit)
			continue;
		if (memcmp(raw, ipv4_mapped, sizeof(ipv4_mapped)) == 0)
			(void)inet_ntop(AF_INET, raw + 12, g.address, sizeof(g.address));
		else
			(void)inet_ntop(AF_INET6, raw, g.address, sizeof(g.address));
		p->gid = g;
	}
}

/* Finds the first active port of a device. False: there is none. */
static bool active_port(const struct doctor *d, struct port *p)
{
	char path[200], line[64];

	for (p->number = 1;; p->number++) {
		snprintf(path, sizeof(path), IB "/%s/ports/%u/state", p->device, p->number);
		if (!doctor_line(d, path, line, sizeof(line)))
			return false;
		if (!strstr(line, "ACTIVE"))
			continue;
		snprintf(path, sizeof(path), IB "/%s/ports/%u/link_layer", p->device, p->number);
		(void)doctor_line(d, path, p->link, sizeof(p->link));
		snprintf(path, sizeof(path), IB "/%s/ports/%u/rate", p->device, p->number);
		(void)doctor_line(d, path, p->rate, sizeof(p->rate));
		return true;
	}
}

struct choice {
	int devices, named; /* All devices, and those that rdma_device allows. */
	char down[64];      /* The first allowed device without an active port. */
	struct port port;   /* The port that is taken. Its device is empty if there is none. */
	struct port bare;   /* The first active port without a GID that fits. */
};

static void choose(const struct doctor *d, struct choice *c, const uint8_t *address)
{
	const char *device = doctor_value(d, "net", "rdma_device");
	char *names[DEVICES_MAX];

	*c = (struct choice){.devices = list(d, IB, names, DEVICES_MAX)};
	for (int i = 0; i < c->devices; i++) {
		struct port p = {.number = 0};

		snprintf(p.device, sizeof(p.device), "%.63s", names[i]);
		free(names[i]);
		if (device[0] && strcmp(device, "auto") != 0 && strcmp(device, p.device) != 0)
			continue;
		c->named++;
		if (!active_port(d, &p)) {
			if (!c->down[0])
				memcpy(c->down, p.device, sizeof(c->down));
			continue;
		}
		best_gid(d, &p, address);
		if (p.gid.fit == FIT_NONE) {
			if (!c->bare.device[0])
				c->bare = p;
		} else if (!c->port.device[0] ||
			   (p.gid.fit == FIT_ADDRESS && c->port.gid.fit != FIT_ADDRESS)) {
			c->port = p;
		}
	}
}

static void found_none(const struct doctor *d, struct finding *f, const struct choice *c)
{
	const char *device = doctor_value(d, "net", "rdma_device");
	bool must = strcmp(doctor_value(d, "net", "transport"), "rdma") == 0;
	enum doctor_result bad = must ? DOCTOR_FAIL : DOCTOR_WARN;

	if (c->devices == 0 && !must) {
		doctor_found(f, DOCTOR_OK, "no RDMA device: nodes use TCP");
	} else if (c->devices == 0) {
		doctor_found(f, bad, "transport = rdma, but there is no RDMA device");
		doctor_remedy(f, "load its driver; without hardware `rdma link add rxe0 type rxe "
				 "netdev eth0`; or transport = auto");
	} else if (c->named == 0) {
		doctor_found(f, bad, "rdma_device = %s is none of the %d here", device, c->devices);
		doctor_remedy(f, "`ls " IB
				 "` lists them; correct [net] rdma_device, or let it be auto");
	} else if (c->bare.device[0] &&
		   strcmp(doctor_value(d, "net", "rdma_gid_index"), "auto") != 0) {
		doctor_found(f, bad, "%s port %u has no GID %s", c->bare.device, c->bare.number,
			     doctor_value(d, "net", "rdma_gid_index"));
		doctor_remedy(f, "`rdma link` and `ibv_devinfo -v` list them; correct [net] "
				 "rdma_gid_index, or let it be auto");
	} else if (c->bare.device[0]) {
		doctor_found(f, bad, "%s port %u has no GID", c->bare.device, c->bare.number);
		doctor_remedy(f, "give its interface an address: ip addr add");
	} else {
		doctor_found(f, bad, "%s has no active port%s", c->down,
			     must ? "" : ": nodes use TCP");
		doctor_remedy(f, "is its cable in, is its interface up (ip link set up), does a "
				 "subnet manager run (InfiniBand)?");
	}
}

void doctor_rdma(const struct doctor *d, struct finding *f)
{
	uint8_t address[16];
	bool wanted = listens(d, address);
	const struct port *p;
	struct choice c;
	char what[200];

	if (strcmp(doctor_value(d, "net", "transport"), "tcp") == 0) {
		doctor_found(f, DOCTOR_OK, "transport = tcp");
		return;
	}
	choose(d, &c, wanted ? address : NULL);
	p = &c.port;
	if (!p->device[0]) {
		found_none(d, f, &c);
		return;
	}
	snprintf(what, sizeof(what), "%.30s port %u gid %u of %u (%s%s%s%s%s), %s", p->device,
		 p->number, p->gid.index, p->gids, p->gid.address, p->gid.type[0] ? ", " : "",
		 p->gid.type, p->gid.interface[0] ? ", " : "", p->gid.interface, p->rate);
	if (strcmp(doctor_value(d, "net", "rdma_gid_index"), "auto") != 0 &&
	    doctor_value(d, "net", "rdma_gid_index")[0]) {
		doctor_found(f, DOCTOR_OK, "%s: rdma_gid_index chooses it", what);
	} else if (p->gid.fit == FIT_ADDRESS) {
		doctor_found(f, DOCTOR_OK, "%s: it has the address of `listen`", what);
	} else if (p->gid.fit == FIT_ANY && strcmp(p->link, "InfiniBand") != 0) {
		doctor_found(
			f, DOCTOR_WARN,
			"%s: no GID of RoCE v2 with an IPv4 address: routers do not pass this one",
			what);
		doctor_remedy(f, "give its interface an IPv4 address");
	} else if (wanted) {
		doctor_found(
			f, DOCTOR_WARN,
			"%s: none has the address of `listen`, so RDMA takes another way than TCP",
			what);
		doctor_remedy(f, "listen on the address of the interface of that device, or set "
				 "[net] rdma_device");
	} else {
		doctor_found(f, DOCTOR_OK, "%s: the first that fits", what);
	}
}

/* Looks whether shardd may open /dev/infiniband/uverbsN of the device that it would take. */
void doctor_verbs(const struct doctor *d, struct finding *f)
{
	char path[200], whole[1400], line[64] = "", *names[DEVICES_MAX];
	uint8_t address[16];
	bool wanted = listens(d, address);
	struct choice c;
	struct stat info;
	int nr;

	choose(d, &c, wanted ? address : NULL);
	if (!c.port.device[0] || strcmp(doctor_value(d, "net", "transport"), "tcp") == 0)
		return;
	path[0] = 0;
	nr = list(d, VERBS, names, DEVICES_MAX);
	for (int i = 0; i < nr; i++) {
		snprintf(whole, sizeof(whole), VERBS "/%s/ibdev", names[i]);
		if (doctor_line(d, whole, line, sizeof(line)) && strcmp(line, c.port.device) == 0)
			snprintf(path, sizeof(path), "/dev/infiniband/%.100s", names[i]);
		free(names[i]);
	}
	snprintf(whole, sizeof(whole), "%s%s", d->root, path);
	if (!path[0] || stat(whole, &info) != 0) {
		doctor_found(f, DOCTOR_WARN, "%s: %s", c.port.device,
			     path[0] ? path : "no device of verbs is made for it");
		doctor_remedy(f, "modprobe ib_uverbs, and udev makes /dev/infiniband/uverbs*");
	} else if ((info.st_mode & 0006) != 0006) {
		doctor_found(f, DOCTOR_WARN,
			     "%s: mode %04o, so that the user shardd may not open it", path,
			     (unsigned)info.st_mode & 07777);
		doctor_remedy(f, "install rdma-core, whose udev rules give it mode 0666, or put "
				 "shardd into its group");
	} else {
		doctor_found(f, DOCTOR_OK, "%s", path);
	}
}

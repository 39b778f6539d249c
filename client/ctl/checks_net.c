/* SPDX-License-Identifier: Apache-2.0 */
/* What `shardctl doctor` looks at on the network: whether the daemon may have its ports, and how
 * large the frames of the links are. doctor.c calls these functions through the rows in checks.c. A
 * port is tried by binding it, and it is given back at once. A port in use is fine where a daemon
 * answers at --address. What is wrong becomes a finding with a remedy. */
#include "ctl/doctor.h"
#include "ctl/json.h"

#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NET        "/sys/class/net"
#define TCP_WINDOW (64ul << 20)
#define MTU_SMALL  1400 /* The tunnels of clouds have 1450 or 1460, which is no fault. */

/* Returns 0 or an errno. EINVAL: address is not host:port. */
static int try_bind(const char *address)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
	char host[300];
	const char *colon = strrchr(address, ':');
	size_t n = colon ? (size_t)(colon - address) : 0;
	int fd, one = 1, rc = 0;

	if (!colon || n >= sizeof(host) || n == 0)
		return EINVAL;
	if (address[0] == '[' && address[n - 1] == ']')
		snprintf(host, sizeof(host), "%.*s", (int)n - 2, address + 1);
	else
		snprintf(host, sizeof(host), "%.*s", (int)n, address);
	if (getaddrinfo(host, colon + 1, &hints, &list) != 0)
		return EADDRNOTAVAIL;
	fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
	    bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, 1) != 0)
		rc = errno;
	if (fd >= 0)
		close(fd);
	freeaddrinfo(list);
	return rc;
}

static void look_port(const struct doctor *d, struct finding *f, const char *option)
{
	const char *address = doctor_value(d, "daemon", option);
	int rc;

	if (strcmp(address, "off") == 0) {
		doctor_found(f, DOCTOR_OK, "off");
		return;
	}
	rc = try_bind(address);
	if (rc == 0) {
		doctor_found(f, DOCTOR_OK, "%s is free", address);
	} else if (rc == EADDRINUSE && d->status) {
		doctor_found(f, DOCTOR_OK, "%s is in use, and a daemon runs (pid %lld)", address,
			     (long long)json_integer_value(json_object_get(d->status, "pid")));
	} else if (rc == EADDRINUSE && d->silent) {
		doctor_found(f, DOCTOR_OK,
			     "%s is in use, and a daemon is there that does not answer", address);
	} else if (rc == EADDRINUSE && d->denied) {
		doctor_found(f, DOCTOR_WARN,
			     "%s is in use, and this user may not ask the daemon at %s", address,
			     d->options->address);
		doctor_remedy(f, "run it as root or as the daemon's user: `sudo shardctl doctor`");
	} else if (rc == EADDRINUSE) {
		doctor_found(f, DOCTOR_FAIL, "%s is in use, and no daemon answers at %s", address,
			     d->options->address);
		doctor_remedy(f, "`ss -ltnp` says by whom; choose another [daemon] %s", option);
	} else if (rc == EADDRNOTAVAIL) {
		doctor_found(f, DOCTOR_FAIL, "%s is no address of this machine", address);
		doctor_remedy(f, "`ip addr` lists them; correct [daemon] %s or [nodes]", option);
	} else {
		doctor_found(f, DOCTOR_FAIL, "%s cannot be had: %s", address, strerror(rc));
		doctor_remedy(f, "choose a port from 1024 on in [daemon] %s", option);
	}
}

void doctor_port(const struct doctor *d, struct finding *f)
{
	look_port(d, f, "listen");
}

void doctor_http(const struct doctor *d, struct finding *f)
{
	look_port(d, f, "http");
}

/* Looks for the smallest MTU of the links that are up, without loopback. */
void doctor_mtu(const struct doctor *d, struct finding *f)
{
	char path[1300], text[32], least_name[64] = "";
	unsigned long least = 0, mtu;
	struct dirent *entry;
	DIR *dir;

	snprintf(path, sizeof(path), "%s" NET, d->root);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		if (entry->d_name[0] == '.' || strcmp(entry->d_name, "lo") == 0)
			continue;
		snprintf(path, sizeof(path), NET "/%s/operstate", entry->d_name);
		if (!doctor_line(d, path, text, sizeof(text)) || strcmp(text, "up") != 0)
			continue;
		snprintf(path, sizeof(path), NET "/%s/mtu", entry->d_name);
		mtu = doctor_line(d, path, text, sizeof(text)) ? strtoul(text, NULL, 10) : 0;
		if (mtu > 0 && (least == 0 || mtu < least)) {
			least = mtu;
			snprintf(least_name, sizeof(least_name), "%.63s", entry->d_name);
		}
	}
	if (dir)
		closedir(dir);
	if (least == 0) {
		doctor_found(f, DOCTOR_OK, "no link but loopback is up");
	} else if (least < MTU_SMALL) {
		doctor_found(f, DOCTOR_WARN, "%lu on %s: each frame carries little", least,
			     least_name);
		doctor_remedy(
			f,
			"ip link set %s mtu 1500, or 9000 where every switch on the way takes it",
			least_name);
	} else {
		doctor_found(f, DOCTOR_OK, "%lu on %s%s", least, least_name,
			     least < 9000 ? "; 9000 is faster where all links take it" : "");
	}
}

/* The third of three numbers in a file of /proc/sys, or 0. */
static unsigned long most(const struct doctor *d, const char *path)
{
	unsigned long x = 0;
	char line[128];

	if (!doctor_line(d, path, line, sizeof(line)) || sscanf(line, "%*u %*u %lu", &x) != 1)
		return 0;
	return x;
}

/* How large a window TCP may have. The file that is installed raises it from the next boot on. */
void doctor_tcp(const struct doctor *d, struct finding *f)
{
	unsigned long in = most(d, "/proc/sys/net/ipv4/tcp_rmem"),
		      out = most(d, "/proc/sys/net/ipv4/tcp_wmem");
	char in_text[CTL_NUMBER_BYTES], out_text[CTL_NUMBER_BYTES];
	size_t nodes = 0, i;
	json_t *option;

	json_array_foreach(json_object_get(d->config, "options"), i, option)
		nodes += strcmp(ctl_text(option, "section"), "nodes") == 0;
	if (in == 0 || out == 0) {
		doctor_found(f, DOCTOR_OK, "not known here");
		return;
	}
	ctl_bytes(in_text, (double)in);
	ctl_bytes(out_text, (double)out);
	if (nodes > 1 && (in < TCP_WINDOW || out < TCP_WINDOW)) {
		doctor_found(f, DOCTOR_WARN,
			     "at most %s to receive and %s to send: too little for 100 Gbit/s "
			     "between nodes",
			     in_text, out_text);
		doctor_remedy(f, "sysctl -p /usr/lib/sysctl.d/90-shardd.conf, which holds for all "
				 "programs; the next boot does it, too");
	} else {
		doctor_found(f, DOCTOR_OK, "at most %s to receive and %s to send%s", in_text,
			     out_text, nodes > 1 ? "" : "; no other node needs them");
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out who has a TCP address. tcp.c and daemon/obs/http.c ask when an address is in use, and
 * `shardctl doctor` does. Happy path: /proc/net/tcp and tcp6 have the socket's inode and the uid of
 * its owner, and a link in /proc/PID/fd leads to that inode. Another user's links cannot be read
 * without rights, and a process of another container has none here. Then the text says the uid, if
 * that is known, and a command for root. Nothing here fails. */
#include "net/holder.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STATE_LISTEN = 0x0a }; /* TCP_LISTEN of the kernel, which include/net/tcp_states.h has. */

struct wanted {
	struct in6_addr host; /* An IPv4 address is mapped. */
	uint16_t port;
};

struct held {
	uint64_t inode; /* 0: not found. */
	unsigned uid;
	bool listens;
};

static bool any_host(const struct in6_addr *a)
{
	static const struct in6_addr v4 = {.s6_addr = {[10] = 0xff, [11] = 0xff}};

	return IN6_IS_ADDR_UNSPECIFIED(a) || memcmp(a, &v4, sizeof(v4)) == 0;
}

static void map_v4(struct in6_addr *out, const void *v4)
{
	*out = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
	memcpy(out->s6_addr + 12, v4, 4);
}

static bool wanted_of(struct wanted *w, const struct sockaddr *at)
{
	const struct sockaddr_in *v4 = (const void *)at;
	const struct sockaddr_in6 *v6 = (const void *)at;

	if (at->sa_family == AF_INET)
		map_v4(&w->host, &v4->sin_addr);
	else if (at->sa_family == AF_INET6)
		w->host = v6->sin6_addr;
	else
		return false;
	w->port = ntohs(at->sa_family == AF_INET ? v4->sin_port : v6->sin6_port);
	return true;
}

/* An address as the kernel prints it: 32 bit words of this machine. */
static bool host_of_hex(struct in6_addr *out, const char *hex)
{
	uint32_t word[4] = {0};
	size_t words = strlen(hex) / 8;

	if (words != 1 && words != 4)
		return false;
	for (size_t i = 0; i < words; i++)
		if (sscanf(hex + 8 * i, "%8" SCNx32, &word[i]) != 1)
			return false;
	if (words == 1)
		map_v4(out, word);
	else
		memcpy(out, word, sizeof(*out));
	return true;
}

/* One that listens comes before a connection, which has the port of its listener. */
static void look_in(const char *table, const struct wanted *w, struct held *held)
{
	FILE *f = fopen(table, "re");
	char line[512], hex[33];
	unsigned port, state, uid;
	struct in6_addr host;
	uint64_t inode;

	while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
		if (sscanf(line,
			   " %*d: %32[0-9A-F]:%4x %*[0-9A-F]:%*x %2x %*x:%*x %*x:%*x %*x %u %*d "
			   "%" SCNu64,
			   hex, &port, &state, &uid, &inode) != 5 ||
		    port != w->port || inode == 0 || held->listens || !host_of_hex(&host, hex))
			continue;
		if (any_host(&host) || any_host(&w->host) ||
		    memcmp(&host, &w->host, sizeof(host)) == 0)
			*held = (struct held){inode, uid, state == STATE_LISTEN};
	}
	if (f != NULL)
		fclose(f);
}

static bool has_socket(const char *pid, const char *link)
{
	char path[300], to[64];
	bool found = false;
	struct dirent *d;
	ssize_t n;
	DIR *fds;

	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	fds = opendir(path);
	while (fds != NULL && !found && (d = readdir(fds)) != NULL) {
		n = readlinkat(dirfd(fds), d->d_name, to, sizeof(to) - 1);
		found = n > 0 && (size_t)n == strlen(link) && memcmp(to, link, (size_t)n) == 0;
	}
	if (fds != NULL)
		closedir(fds);
	return found;
}

/* The name that a process has is its own choice, so it may be anything. */
static void name_of(const char *pid, char out[32])
{
	char path[300];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%s/comm", pid);
	f = fopen(path, "re");
	if (f == NULL || fgets(out, 32, f) == NULL)
		strcpy(out, "?");
	if (f != NULL)
		fclose(f);
	out[strcspn(out, "\n")] = 0;
	for (char *c = out; *c != 0; c++)
		if (!isprint((unsigned char)*c))
			*c = '?';
}

/* The process that has the socket, if this one may look. */
static bool find_process(uint64_t inode, char *out, size_t bytes)
{
	char link[64], name[32];
	DIR *proc = opendir("/proc");
	bool found = false;
	struct dirent *d;

	snprintf(link, sizeof(link), "socket:[%" PRIu64 "]", inode);
	while (proc != NULL && !found && (d = readdir(proc)) != NULL) {
		if (!isdigit((unsigned char)d->d_name[0]) || !has_socket(d->d_name, link))
			continue;
		name_of(d->d_name, name);
		snprintf(out, bytes, " by pid %.10s (%s)", d->d_name, name);
		found = true;
	}
	if (proc != NULL)
		closedir(proc);
	return found;
}

const char *holder_of(const struct sockaddr *at, char out[HOLDER_BYTES])
{
	struct held held = {0};
	struct wanted w;

	out[0] = 0;
	if (!wanted_of(&w, at))
		return out;
	look_in("/proc/net/tcp", &w, &held);
	look_in("/proc/net/tcp6", &w, &held);
	if (held.inode != 0 && find_process(held.inode, out, HOLDER_BYTES))
		return out;
	if (held.inode != 0)
		snprintf(out, HOLDER_BYTES,
			 " by a process of uid %u, which root sees in `ss -tanp sport = :%u`",
			 held.uid, w.port);
	else
		snprintf(out, HOLDER_BYTES, ", and root sees by whom in `ss -tanp sport = :%u`",
			 w.port);
	return out;
}

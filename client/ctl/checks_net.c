/* SPDX-License-Identifier: Apache-2.0 */
/* What `shardctl doctor` looks at on the network: whether the daemon may have its ports, how large
 * the frames of the links are, and whether TLS can be spoken. doctor.c calls these functions
 * through the rows in checks.c. A port is tried by binding it, and it is given back at once. A port
 * in use is fine where a daemon answers at --address. What is wrong becomes a finding with a
 * remedy. */
#include "ctl/doctor.h"
#include "ctl/json.h"

#include "net/holder.h"
#include "secure.h"

#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NET        "/sys/class/net"
#define ULPS       "/proc/sys/net/ipv4/tcp_available_ulp"
#define CERT_DAYS  14 /* A certificate is renewed before so many are left. */
#define TCP_WINDOW (64ul << 20)
#define MTU_SMALL  1400 /* The tunnels of clouds have 1450 or 1460, which is no fault. */

/* Returns 0 or an errno. EINVAL: address is not host:port. EADDRINUSE: who says by whom. */
static int try_bind(const char *address, char who[HOLDER_BYTES])
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
	if (rc == EADDRINUSE)
		holder_of(list->ai_addr, who);
	freeaddrinfo(list);
	return rc;
}

static void look_port(const struct doctor *d, struct finding *f, const char *option)
{
	const char *address = doctor_value(d, "daemon", option);
	char who[HOLDER_BYTES];
	int rc;

	if (strcmp(address, "off") == 0) {
		doctor_found(f, DOCTOR_OK, "off");
		return;
	}
	rc = try_bind(address, who);
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
		doctor_found(f, DOCTOR_FAIL, "%s is in use%s, and no daemon answers at %s", address,
			     who, d->options->address);
		doctor_remedy(f, "stop what has it, or choose another [daemon] %s", option);
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

const char *doctor_tls_how(const struct doctor *d, char *out, size_t bytes)
{
	const char *how = doctor_value(d, "net", "tls");

	if (strcmp(how, "mtls") != 0)
		return how;
	snprintf(out, bytes, "%s,%s,%s", doctor_value(d, "net", "tls_cert"),
		 doctor_value(d, "net", "tls_key"), doctor_value(d, "net", "tls_ca"));
	return out;
}

/* Can the kernel encrypt what is sent? */
static const char *kernel_tls(const struct doctor *d)
{
	char line[200] = "";

	if (strcmp(doctor_value(d, "net", "tls_kernel"), "off") == 0)
		return "tls_kernel = off";
	return doctor_line(d, ULPS, line, sizeof(line)) && strstr(line, "tls")
		       ? "the kernel encrypts what is sent"
		       : "the kernel has no TLS, and the daemon encrypts (`modprobe tls`)";
}

static void look_certificate(const struct doctor *d, struct finding *f)
{
	struct tls_conf conf = {.mode = TLS_MTLS,
				.cert = doctor_value(d, "net", "tls_cert"),
				.key = doctor_value(d, "net", "tls_key"),
				.ca = doctor_value(d, "net", "tls_ca"),
				.name = doctor_value(d, "daemon", "node")};
	char date[32] = "?";
	struct tls *t;
	time_t expires;
	struct tm tm;
	struct err e;

	if (tls_open(&t, &conf, &e) != SHARD_OK) {
		doctor_found(f, e.status == SHARD_SYSTEM ? DOCTOR_WARN : DOCTOR_FAIL, "mtls: %s",
			     e.text);
		doctor_remedy(f,
			      e.status == SHARD_SYSTEM
				      ? "run doctor as who may read the key"
				      : "correct the files of [net] tls_cert, tls_key and tls_ca");
		return;
	}
	expires = (time_t)tls_expires(t);
	tls_close(&t);
	if (gmtime_r(&expires, &tm))
		(void)strftime(date, sizeof(date), "%Y-%m-%d", &tm);
	if (expires - time(NULL) < CERT_DAYS * 86400) {
		doctor_found(f, DOCTOR_WARN, "mtls: the certificate expires on %s", date);
		doctor_remedy(f, "put a new one into %s, and `systemctl reload shardd`", conf.cert);
		return;
	}
	doctor_found(f, DOCTOR_OK, "mtls: the certificate is valid until %s; %s", date,
		     kernel_tls(d));
}

void doctor_tls(const struct doctor *d, struct finding *f)
{
	const char *how = doctor_value(d, "net", "tls");

	if (strcmp(how, "mtls") == 0)
		look_certificate(d, f);
	else if (strcmp(how, "psk") == 0)
		doctor_found(f, DOCTOR_OK, "psk: TLS 1.3 with keys of the secrets; %s",
			     kernel_tls(d));
	else
		doctor_found(f, DOCTOR_OK, "off: connections over TCP are not encrypted");
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

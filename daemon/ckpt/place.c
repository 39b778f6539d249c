/* SPDX-License-Identifier: Apache-2.0 */
/* Opens folders of checkpoints for others. On the loop ckpt_place_set() decides by the path alone
 * whether a folder is allowed. In a job ckpt_place_open() opens the root as the operator named it,
 * and then each component below it without following a link. So nobody who may write below a root
 * can lead the daemon out of it. From there on everything goes by the descriptor, so that a rename
 * meanwhile does not matter. A failure names the folder and says what to do. */
#include "ckpt/place.h"

#include "base/check.h"
#include "config/config.h"
#include "node/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC)

bool ckpt_anywhere(const struct server *s, const Shard__Cred *who)
{
	if (who == NULL || !who->known)
		return false;
	if (who->uid == 0)
		return s->conf->trust_remote_root ||
		       strcmp(who->node, members_name(s, s->self)) == 0;
	return who->uid == geteuid();
}

/* --- by the path alone --- */

/* Copies dir with one slash between components and none at the end. */
static enum shard_status normal(char out[CHECKPOINT_PATH_MAX], const char *dir, struct err *e)
{
	size_t n = 0;

	if (dir[0] != '/' || strlen(dir) >= CHECKPOINT_PATH_MAX)
		return err_set(e, SHARD_BAD_ARG,
			       "folder %.200s: choose an absolute path of at most %d bytes", dir,
			       CHECKPOINT_PATH_MAX - 1);
	for (const char *p = dir; *p; p++)
		if (*p != '/' || (p[1] != '/' && p[1] != 0))
			out[n++] = *p;
	out[n] = 0;
	if (n == 0)
		return err_set(e, SHARD_BAD_ARG, "folder /: choose one below it");
	return SHARD_OK;
}

static bool has_dots(const char *dir)
{
	for (const char *p = dir; (p = strstr(p, "/.")) != NULL; p++)
		if (p[2] == '/' || p[2] == 0 || (p[2] == '.' && (p[3] == '/' || p[3] == 0)))
			return true;
	return false;
}

/* Length of root within dir if dir is root or lies below it, else 0. */
static size_t inside(const char *dir, const char *root, size_t bytes)
{
	while (bytes > 1 && root[bytes - 1] == '/')
		bytes--;
	if (strncmp(dir, root, bytes) != 0 || (dir[bytes] != '/' && dir[bytes] != 0))
		return 0;
	return bytes;
}

/* The checkpoint_dir in the settings of a section; NULL: none. */
static const char *configured(const struct config_model *m, size_t *bytes)
{
	static const char key[] = "checkpoint_dir=";
	const char *at = m->settings;

	while (at != NULL && (at = strstr(at, key)) != NULL && at != m->settings && at[-1] != ' ')
		at++;
	if (at == NULL)
		return NULL;
	at += strlen(key);
	*bytes = strcspn(at, " ");
	return at;
}

/* Length of the longest root that dir lies below; 0: none. */
static size_t root_of(const struct config *c, const char *dir)
{
	size_t longest = 0;

	for (const char *p = c->checkpoint_roots; *p;) {
		size_t bytes = strcspn(p, ":"), n = inside(dir, p, bytes);

		longest = n > longest ? n : longest;
		p += bytes + (p[bytes] == ':');
	}
	for (uint32_t i = 0; i < c->models_nr; i++) {
		size_t bytes = 0, n;
		const char *p = configured(&c->model[i], &bytes);

		n = p != NULL && p[0] == '/' ? inside(dir, p, bytes) : 0;
		longest = n > longest ? n : longest;
	}
	return longest;
}

enum shard_status ckpt_place_set(struct ckpt_place *p, const struct server *s, const char *dir,
				 bool anywhere, uint32_t ends, struct err *e)
{
	enum shard_status st = normal(p->dir, dir, e);

	CHECK(ends < 8);
	if (st != SHARD_OK)
		return st;
	p->fd = -1;
	p->at[0] = 0;
	p->anywhere = anywhere;
	snprintf(p->state, sizeof(p->state), "%s", s->conf->state);
	snprintf(p->node, sizeof(p->node), "%s", members_name(s, s->self));
	p->root_bytes = has_dots(p->dir) ? 0 : root_of(s->conf, p->dir);
	if (p->root_bytes > 0)
		return SHARD_OK;
	if (!anywhere)
		return err_set(
			e, SHARD_DENIED,
			"folder %.150s: checkpoints go below %.150s, or a checkpoint_dir of "
			"the configuration; elsewhere only for root of node %s, which "
			"coordinates, and for uid %u, which its daemon runs as: choose one of "
			"them, ask there by sudo, or set [daemon] checkpoint_roots on all nodes",
			p->dir, s->conf->checkpoint_roots, p->node, (unsigned)geteuid());
	p->root_bytes = strlen(p->dir);
	for (; ends > 0 && p->root_bytes > 1; ends--)
		while (p->root_bytes > 1 && p->dir[p->root_bytes] != '/')
			p->root_bytes--;
	return SHARD_OK;
}

/* --- in a job --- */

/* What makes the folder one that this daemon can write to. */
static enum shard_status unwritable(const struct ckpt_place *p, const char *what, bool make,
				    struct err *e)
{
	if (!make)
		return err_set(e, e->status,
			       "%.300s: %s: on node %s uid %u, which the daemon runs as, has to "
			       "be able to read it",
			       p->dir, what, p->node, (unsigned)geteuid());
	return err_set(
		e, e->status,
		"%.300s: %s: on node %s, as on every other one, the folder has to be there, "
		"shared, and writable for uid %u, which the daemon runs as: `sudo install -d "
		"-o %u %.300s`, and ReadWritePaths= in its unit for a folder outside of "
		"/var/lib/shardd",
		p->dir, what, p->node, (unsigned)geteuid(), (unsigned)geteuid(), p->dir);
}

static enum shard_status failed(const struct ckpt_place *p, bool make, struct err *e)
{
	int error = errno;

	if (error == ELOOP || error == ENOTDIR)
		return err_set(e, SHARD_DENIED,
			       "%s: leads through a link, or through what is no folder, below "
			       "%.*s: name the folder that it leads "
			       "to, and have it in [daemon] checkpoint_roots",
			       p->dir, (int)p->root_bytes, p->dir);
	if (error == EEXIST)
		return err_set(e, SHARD_EXISTS,
			       "%s: is a checkpoint, or lies in one: name the folder above it",
			       p->dir);
	if (error == ENOENT)
		return err_set(e, SHARD_NOT_FOUND,
			       "%s: there is no such folder: is the folder of checkpoints shared "
			       "by all nodes?",
			       p->dir);
	errno = error;
	err_sys(e, error, "%s: cannot be opened: %s", p->dir, strerror(error));
	return error == EACCES || error == EPERM || error == EROFS
		       ? unwritable(p, strerror(error), make, e)
		       : e->status;
}

/* Opens the folder `name` in the one at fd, and closes fd. */
static int step(int fd, const char *name, bool make)
{
	int next = openat(fd, name, DIR_FLAGS | O_NOFOLLOW), error;

	CHECK(fd >= 0 && name[0] != 0);
	if (next < 0 && errno == ENOENT && make &&
	    (mkdirat(fd, name, 0755) == 0 || errno == EEXIST)) {
		(void)fsync(fd); /* So that the new name survives a crash. */
		next = openat(fd, name, DIR_FLAGS | O_NOFOLLOW);
	}
	error = errno;
	close(fd);
	errno = error;
	return next;
}

/* Returns fd, or closes it and returns -1 if it is a checkpoint, because nothing else is written
 * into one. */
static int not_inside(int fd)
{
	struct stat s;

	if (fd < 0 || fstatat(fd, MANIFEST_NAME, &s, AT_SYMLINK_NOFOLLOW) != 0 ||
	    !S_ISREG(s.st_mode))
		return fd;
	close(fd);
	errno = EEXIST;
	return -1;
}

/* fd: the root, or -1 if it could not be opened. */
static int walk(int fd, const char *rest, bool make)
{
	char part[CHECKPOINT_PATH_MAX];

	while (fd >= 0 && *rest != 0) {
		if (make && (fd = not_inside(fd)) < 0)
			break;
		size_t n;

		rest += *rest == '/';
		n = strcspn(rest, "/");
		memcpy(part, rest, n);
		part[n] = 0;
		fd = step(fd, part, make);
		rest += n;
	}
	return make ? not_inside(fd) : fd;
}

static bool same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Refuses a folder that is the daemon's state or lies in it, unless it lies in the state's folder
 * for checkpoints. Compares inodes, because names can mislead. */
static enum shard_status outside_state(const struct ckpt_place *p, struct err *e)
{
	char path[CHECKPOINT_PATH_MAX + 16];
	struct stat state, ours, here, above;
	bool has_ours;
	int fd = dup(p->fd), next;

	snprintf(path, sizeof(path), "%s/" CONFIG_CHECKPOINTS, p->state);
	has_ours = lstat(path, &ours) == 0 && S_ISDIR(ours.st_mode);
	if (fd < 0 || stat(p->state, &state) != 0 || fstat(fd, &here) != 0)
		goto failed;
	while (!(has_ours && same(&here, &ours))) {
		if (same(&here, &state)) {
			close(fd);
			return err_set(e, SHARD_DENIED,
				       "%s: is among this daemon's own state: choose another "
				       "folder, as %s",
				       p->dir, path);
		}
		if ((next = openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0 ||
		    fstat(next, &above) != 0)
			goto failed;
		close(fd);
		fd = next;
		if (same(&here, &above))
			break;
		here = above;
	}
	close(fd);
	return SHARD_OK;
failed:
	next = errno;
	if (fd >= 0)
		close(fd);
	return err_sys(e, next, "%s: cannot be looked at: %s", p->dir, strerror(next));
}

enum shard_status ckpt_place_open(struct ckpt_place *p, bool make, struct err *e)
{
	char root[CHECKPOINT_PATH_MAX];
	enum shard_status st = SHARD_OK;

	CHECK(p->fd < 0 && p->root_bytes > 0);
	memcpy(root, p->dir, p->root_bytes);
	root[p->root_bytes] = 0;
	if (make && access(root, F_OK) != 0)
		st = checkpoint_make_dir(root, e);
	if (st != SHARD_OK && (errno == EACCES || errno == EPERM || errno == EROFS))
		return unwritable(p, strerror(errno), make, e);
	if (st != SHARD_OK)
		return st;
	p->fd = walk(open(root, DIR_FLAGS), p->dir + p->root_bytes, make);
	if (p->fd < 0)
		return failed(p, make, e);
	snprintf(p->at, sizeof(p->at), "/proc/self/fd/%d", p->fd);
	if ((st = outside_state(p, e)) != SHARD_OK)
		ckpt_place_close(p, NULL);
	return st;
}

void ckpt_place_name(const struct ckpt_place *p, struct err *e)
{
	size_t n = strlen(p->at);
	char *at;

	while (n > 0 && (at = strstr(e->text, p->at)) != NULL) {
		char rest[ERR_TEXT_BYTES];

		snprintf(rest, sizeof(rest), "%s", at + n);
		snprintf(at, sizeof(e->text) - (size_t)(at - e->text), "%s%s", p->dir, rest);
		if (strstr(p->dir, p->at) != NULL)
			break;
	}
}

void ckpt_place_close(struct ckpt_place *p, struct err *e)
{
	int error = errno;

	if (p->fd >= 0)
		close(p->fd);
	p->fd = -1;
	if (e != NULL)
		ckpt_place_name(p, e);
	errno = error;
}

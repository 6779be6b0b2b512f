/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated node's folder for C programs, like package node in Go. README.md describes the folder. Everything is
 * static inline, so that a library that includes this file exports none of it. Functions return 0 (or a count) after
 * success and -errno otherwise.
 */
#ifndef SIMULATED_NODE_H
#define SIMULATED_NODE_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first include: dladdr and flock need it"
#endif

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#ifdef NODE_KEEPS_DEVICES
#include <pthread.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { NODE_DEFAULT, NODE_EXCLUSIVE_THREAD, NODE_PROHIBITED, NODE_EXCLUSIVE_PROCESS };
enum { NODE_WHOLE = -1 }; /* the instance of a context on a GPU that is not in MIG mode */

struct node_context {
	int pid;
	unsigned long long start; /* field 22 of /proc/PID/stat */
	char type[8];             /* "C", "M+C" or "S" */
	long memory_mib;
	int instance; /* K of mig/K, or NODE_WHOLE */
};

/* node_join writes dir/name. It returns -ENAMETOOLONG if the path does not fit. */
static inline int node_join(char path[PATH_MAX], const char *dir, const char *name)
{
	int length = snprintf(path, PATH_MAX, "%s/%s", dir, name);
	return length < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* node_here finds the node of the object that this code is linked into: ../node from the object's own real path.
 * Call it from a constructor, because the loader's path may be relative and the program may change its directory
 * later. */
static inline int node_here(char dir[PATH_MAX])
{
	Dl_info info;
	char self[PATH_MAX], beside[PATH_MAX];
	if (!dladdr((void *)node_here, &info) || !realpath(info.dli_fname, self))
		return -ENOENT;
	*strrchr(self, '/') = '\0';
	int err = node_join(beside, self, "../node");
	if (err)
		return err;
	return realpath(beside, dir) ? 0 : -errno;
}

/* node_gpu writes the folder of GPU i. It returns -ENOENT if there is no such GPU. */
static inline int node_gpu(char gpu[PATH_MAX], const char *node, unsigned i)
{
	char name[24];
	snprintf(name, sizeof name, "gpu%u", i);
	int err = node_join(gpu, node, name);
	if (err)
		return err;
	return access(gpu, F_OK) ? -errno : 0;
}

/* node_read reads the attribute dir/name without its newline. */
static inline int node_read(const char *dir, const char *name, char *text, size_t size)
{
	char path[PATH_MAX];
	int err = node_join(path, dir, name);
	if (err)
		return err;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t length = read(fd, text, size - 1);
	err = length < 0 ? -errno : 0;
	close(fd);
	if (err)
		return err;
	while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' '))
		length--;
	text[length] = '\0';
	return 0;
}

/* node_number reads an attribute that is a whole number. */
static inline int node_number(const char *dir, const char *name, long *number)
{
	char text[64], *end;
	int err = node_read(dir, name, text, sizeof text);
	if (err)
		return err;
	*number = strtol(text, &end, 10);
	return end == text || *end ? -EINVAL : 0;
}

/* node_write replaces the attribute dir/name completely, so that no reader finds it empty. README.md lists the
 * changes that need the lock. */
static inline int node_write(const char *dir, const char *name, const char *text)
{
	char path[PATH_MAX], draft[PATH_MAX];
	int err = node_join(path, dir, name);
	if (err)
		return err;
	/* A draft is in the folder of its target, and its name begins with a dot. */
	const char *base = strrchr(path, '/') + 1;
	if (snprintf(draft, sizeof draft, "%.*s.draft-%s-%d", (int)(base - path), path, base, (int)getpid()) >= PATH_MAX)
		return -ENAMETOOLONG;
	FILE *file = fopen(draft, "we");
	if (!file)
		return -errno;
	int bad = fprintf(file, "%s\n", text) < 0;
	bad |= fchmod(fileno(file), 0644) != 0;
	bad |= fclose(file) != 0;
	if (!bad && rename(draft, path) == 0)
		return 0;
	err = errno ? -errno : -EIO;
	unlink(draft);
	return err;
}

/* node_lock takes the flock of a GPU's folder or of the node's folder. Close the descriptor to release it. */
static inline int node_lock(const char *dir)
{
	char path[PATH_MAX];
	int err = node_join(path, dir, "lock");
	if (err)
		return err;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (flock(fd, LOCK_EX)) {
		if (errno == EINTR)
			continue;
		err = -errno;
		close(fd);
		return err;
	}
	return fd;
}

/* node_start reads a living process's start time. It returns -ESRCH for a zombie and if there is no process. A process
 * whose first thread has ended lives while it has other threads. */
static inline int node_start(int pid, unsigned long long *start)
{
	char dir[32], stat[1024], state;
	int threads;
	snprintf(dir, sizeof dir, "/proc/%d", pid);
	if (node_read(dir, "stat", stat, sizeof stat))
		return -ESRCH;
	/* Field 2 is the program's name in parentheses. The name may hold any character, so the fields are counted
	 * from its end. */
	char *rest = strrchr(stat, ')');
	if (!rest || sscanf(rest, ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d %*s %llu", &state, &threads, start) != 3)
		return -ESRCH;
	return (state == 'Z' || state == 'X') && threads <= 1 ? -ESRCH : 0;
}

/* node_locks locks a byte of a driver's file while any process has this open file. node_locked reports whether any
 * process has an open file with such a lock. */
static inline int node_locks(int file, long byte)
{
	struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
	return fcntl(file, F_OFD_SETLK, &lock);
}

#ifdef NODE_KEEPS_DEVICES
/* A process that uses NVML opens a driver's file once and keeps it (seen on an H200). */
static inline int node_device(const char *path)
{
	static struct { dev_t device; ino_t inode; int file; } kept[NODE_KEEPS_DEVICES];
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	struct stat now;
	int i = 0;
	if (stat(path, &now))
		return -1;
	pthread_mutex_lock(&mutex);
	while (i < NODE_KEEPS_DEVICES - 1 && kept[i].inode && (kept[i].inode != now.st_ino || kept[i].device != now.st_dev))
		i++;
	if (!kept[i].inode) {
		kept[i].file = open(path, O_RDONLY | O_CLOEXEC);
		kept[i].device = now.st_dev;
		kept[i].inode = now.st_ino;
	}
	pthread_mutex_unlock(&mutex);
	return kept[i].file;
}

static inline void node_done(int file) { (void)file; }
#elif defined NODE_OWN_DEVICE
/* A process that uses CUDA opens its driver's files when it starts, and none later. NODE_OWN_DEVICE finds its own. */
static inline int node_device(const char *path) { return NODE_OWN_DEVICE(path); }

static inline void node_done(int file) { (void)file; }
#else
static inline int node_device(const char *path) { return open(path, O_RDONLY | O_CLOEXEC); }

static inline void node_done(int file) { close(file); }
#endif

static inline int node_locked(const char *gpu, const char *name, long byte)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
	char path[PATH_MAX];
	int length = snprintf(path, sizeof path, "%s/../dev/%s", gpu, name);
	int file = length < PATH_MAX ? node_device(path) : -1;
	if (file < 0)
		return 0;
	int held = fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
	node_done(file);
	return held;
}

/* node_files_held reports whether any process has a driver file open that process pid had for this GPU. */
static inline int node_files_held(const char *gpu, int pid)
{
	char name[24];
	long minor = -1;
	node_number(gpu, "minor", &minor);
	snprintf(name, sizeof name, "nvidia%ld", minor);
	return node_locked(gpu, "nvidia-uvm", 2L * pid) || node_locked(gpu, "nvidia-uvm", 2L * pid + 1) ||
	       node_locked(gpu, "nvidiactl", pid) || node_locked(gpu, name, pid);
}

/* node_context_of reads gpu/contexts/name. It returns -ESRCH if the entry does not count: its pid belongs to
 * another process now, or its process is dead and no process holds its files. */
static inline int node_context_of(const char *gpu, const char *name, struct node_context *found)
{
	char attribute[40], text[128], *end;
	unsigned long long start;
	long pid = strtol(name, &end, 10);
	if (*end || pid <= 0)
		return -ENOENT; /* a draft, or the folder itself */
	snprintf(attribute, sizeof attribute, "contexts/%ld", pid);
	int err = node_read(gpu, attribute, text, sizeof text);
	if (err)
		return err;
	found->pid = (int)pid;
	found->instance = NODE_WHOLE;
	if (sscanf(text, "%llu %7s %ld %d", &found->start, found->type, &found->memory_mib, &found->instance) < 3)
		return -EINVAL;
	if (node_start(found->pid, &start))
		return node_files_held(gpu, found->pid) ? 0 : -ESRCH;
	return start == found->start ? 0 : -ESRCH;
}

/* node_contexts lists the processes that hold a context on a GPU. The count may be larger than the list; then the
 * list holds the first of them. With sweep, the entries that do not count are removed, and the caller must hold
 * the lock. */
static inline int node_contexts(const char *gpu, struct node_context *list, int size, int sweep)
{
	char contexts[PATH_MAX];
	struct dirent *entry;
	int count = 0, err = node_join(contexts, gpu, "contexts");
	if (err)
		return err;
	DIR *folder = opendir(contexts);
	if (!folder)
		return -errno;
	while ((entry = readdir(folder))) {
		struct node_context found;
		err = node_context_of(gpu, entry->d_name, &found);
		if (err == -ESRCH && sweep)
			unlinkat(dirfd(folder), entry->d_name, 0);
		if (err)
			continue;
		if (count < size)
			list[count] = found;
		count++;
	}
	closedir(folder);
	return count;
}

/* node_admits is the driver's rule for a compute mode: it reports whether a further context is allowed. */
static inline int node_admits(long mode, const struct node_context *held, int count, const struct node_context *added)
{
	if (!strcmp(added->type, "M+C") || mode == NODE_DEFAULT)
		return 1;
	if (mode == NODE_PROHIBITED)
		return 0;
	for (int i = 0; i < count; i++)
		if (held[i].pid != added->pid && strcmp(held[i].type, "M+C"))
			return 0;
	return 1;
}

enum { NODE_CONTEXTS_MAX = 512 }; /* far more than a GPU allows */

/* node_add_locked does the work of node_add_context under the lock. */
static inline int node_add_locked(const char *gpu, const struct node_context *added)
{
	static __thread struct node_context held[NODE_CONTEXTS_MAX];
	char name[40], text[128];
	long mode;
	int err = node_number(gpu, "compute_mode", &mode);
	if (err)
		return err;
	int count = node_contexts(gpu, held, NODE_CONTEXTS_MAX, 1);
	if (count < 0)
		return count;
	if (!node_admits(mode, held, count < NODE_CONTEXTS_MAX ? count : NODE_CONTEXTS_MAX, added))
		return -EBUSY;
	snprintf(name, sizeof name, "contexts/%d", added->pid);
	int length = snprintf(text, sizeof text, "%llu %s %ld", added->start, added->type, added->memory_mib);
	if (added->instance != NODE_WHOLE)
		snprintf(text + length, sizeof text - (size_t)length, " %d", added->instance);
	return node_write(gpu, name, text);
}

/* node_add_context notes that a process holds a context. It returns -EBUSY if the compute mode forbids it. A
 * process has one entry on a GPU, and a second call replaces the first. */
static inline int node_add_context(const char *gpu, const struct node_context *added)
{
	int lock = node_lock(gpu);
	if (lock < 0)
		return lock;
	int err = node_add_locked(gpu, added);
	close(lock);
	return err;
}

/* node_drop_context notes that a process no longer holds a context. It is no error if the process held none. */
static inline int node_drop_context(const char *gpu, int pid)
{
	char name[40], path[PATH_MAX];
	snprintf(name, sizeof name, "contexts/%d", pid);
	int err = node_join(path, gpu, name);
	if (err)
		return err;
	int lock = node_lock(gpu);
	if (lock < 0)
		return lock;
	err = unlink(path) && errno != ENOENT ? -errno : 0;
	close(lock);
	return err;
}

/* node_failure uses one of the failures that errors/FUNCTION in dir still has, and returns its code. It returns 0
 * if there is none. */
static inline int node_failure(const char *dir, const char *function)
{
	char name[128], path[PATH_MAX], text[64];
	int code = 0, times = 0;
	snprintf(name, sizeof name, "errors/%s", function);
	if (node_join(path, dir, name) || access(path, F_OK))
		return 0; /* the usual case needs no lock */
	int lock = node_lock(dir);
	if (lock < 0)
		return 0;
	int words = node_read(dir, name, text, sizeof text) ? 0 : sscanf(text, "%d %d", &code, &times);
	if (words == 2 && times <= 1)
		unlink(path);
	if (words == 2 && times > 1) {
		snprintf(text, sizeof text, "%d %d", code, times - 1);
		node_write(dir, name, text);
	}
	close(lock);
	return words >= 1 ? code : 0;
}

/* node_delay sleeps for the milliseconds in delay_ms/FUNCTION. If there is no such file, it sleeps for usual_ms. */
static inline void node_delay(const char *node, const char *function, long usual_ms)
{
	char name[128];
	long ms;
	snprintf(name, sizeof name, "delay_ms/%s", function);
	if (node_number(node, name, &ms))
		ms = usual_ms;
	struct timespec rest = { ms / 1000, ms % 1000 * 1000000 };
	while (ms > 0 && nanosleep(&rest, &rest) && errno == EINTR)
		;
}

#endif

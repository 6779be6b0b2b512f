// SPDX-License-Identifier: Apache-2.0
/*
 * Starts ../real/guard below a seccomp filter that asks for each close: the process that listens at ../closing gets the
 * filter's notifications, and lets the close go on after the time that a driver takes. Both paths are beside this
 * program's own. README.md is in the folder of the simulated node; package closing is the listener.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static void fail(const char *what)
{
	printf("cannot %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Writes a path beside the folder of this program. */
static void beside(char *path, size_t size, const char *name)
{
	char self[4096];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	if (length < 0)
		fail("find own path");
	self[length] = '\0';
	*strrchr(self, '/') = '\0';
	if (snprintf(path, size, "%s/../%s", self, name) >= (int)size) {
		errno = ENAMETOOLONG;
		fail("find the listener");
	}
}

static int connect_listener(void)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	beside(to.sun_path, sizeof to.sun_path, "closing");
	if (sock < 0 || connect(sock, (struct sockaddr *)&to, sizeof to))
		fail("connect to the listener");
	return sock;
}

/* Returns the descriptor of the notifications. A signal must not end the wait for an answer, because the close would
 * begin again and take its time twice; kernels before 5.19 lack that. */
static int install(void)
{
	struct sock_filter lines[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof lines / sizeof *lines, lines };
	const unsigned wait_killable = 1u << 5;
	long fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER | wait_killable, &filter);
	if (fd < 0 && errno == EINVAL)
		fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
	if (fd < 0)
		fail("install the filter");
	return (int)fd;
}

static void hand_over(int sock, int fd)
{
	char byte = 0;
	struct iovec data = { &byte, 1 };
	union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof fd)]; } control = { 0 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	if (sendmsg(sock, &message, 0) != 1)
		fail("hand over the notifications");
}

/* The exec closes both descriptors. A close of this program would wait for the listener. */
int main(int argc, char **argv)
{
	char guard[4096];
	(void)argc;
	beside(guard, sizeof guard, "real/guard");
	int sock = connect_listener();
	hand_over(sock, install());
	execv(guard, argv);
	fail("start guard");
}

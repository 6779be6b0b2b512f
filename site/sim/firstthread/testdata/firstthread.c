// SPDX-License-Identifier: Apache-2.0
/*
 * Loaded into a program by LD_PRELOAD, runs main in a second thread, after the first thread has ended. /proc/PID shows
 * a zombie then, without files and memory.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int program(int, char **, char **);

static program *begin;
static int count;
static char **words, **variables;

/* Reports whether the first thread has ended. */
static int ended(void)
{
	char stat[512];
	int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t length = read(file, stat, sizeof stat - 1);
	close(file);
	stat[length > 0 ? length : 0] = '\0';
	char *state = strrchr(stat, ')');
	return state && state[1] == ' ' && state[2] == 'Z';
}

static void *second(void *unused)
{
	for (int i = 0; !ended(); i++) {
		if (i == 10000) {
			fputs("the first thread does not end\n", stderr);
			_exit(99);
		}
		usleep(1000);
	}
	exit(begin(count, words, variables));
	return unused;
}

static int first(int argc, char **argv, char **envp)
{
	pthread_t thread;
	count = argc;
	words = argv;
	variables = envp;
	if (pthread_create(&thread, NULL, second, NULL))
		return 99;
	syscall(SYS_exit, 0); /* of this thread alone */
	return 99;
}

int __libc_start_main(program *main, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*last)(void), void *stack)
{
	int (*real)(program *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
	*(void **)&real = dlsym(RTLD_NEXT, "__libc_start_main");
	begin = main;
	return real(first, argc, argv, init, fini, last, stack);
}

// SPDX-License-Identifier: Apache-2.0
/*
 * After a line on stdin, starts threads, one after the other, that end with a status, and ends with status 0:
 *
 *	threads COUNT STATUS
 *
 * With the status "exec" its first other thread executes a shell, which waits for a line and ends with status 0.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *thread(void *status)
{
	if (strcmp(status, "exec") == 0)
		execl("/bin/sh", "sh", "-c", "echo again; read x; exit 0", (char *)NULL);
	syscall(SYS_exit, atoi(status)); /* of this thread alone */
	return NULL;
}

int main(int argc, char **argv)
{
	char line[8];
	if (argc != 3 || puts("ready") < 0 || fflush(stdout) || !fgets(line, sizeof line, stdin))
		return 99;
	for (int i = 0; i < atoi(argv[1]); i++) {
		pthread_t started;
		if (pthread_create(&started, NULL, thread, argv[2]) || pthread_join(started, NULL))
			return 98;
	}
	return 0;
}

/* Adds a context as a C program of the simulation does: add GPU-FOLDER PID TYPE MIB. Prints "ok", "busy" or fails. */
#define _GNU_SOURCE
#include "node.h"

int main(int argc, char **argv)
{
	struct node_context added = { .instance = NODE_WHOLE };
	if (argc != 5)
		return 2;
	added.pid = atoi(argv[2]);
	added.memory_mib = atol(argv[4]);
	snprintf(added.type, sizeof added.type, "%s", argv[3]);
	if (node_start(added.pid, &added.start))
		return 3;
	int err = node_add_context(argv[1], &added);
	if (err && err != -EBUSY)
		return 1;
	puts(err ? "busy" : "ok");
	return 0;
}

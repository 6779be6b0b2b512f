/* rank LAUNCH: an MPI rank that says who it is by MPI's own word, not by variables, and what placement it was given. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *variable(const char *name)
{
	const char *value = getenv(name);
	return value && *value ? value : "-";
}

int main(int argc, char **argv)
{
	int world, local, size;
	char host[256] = "?";
	MPI_Comm node;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &world);
	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
	MPI_Comm_rank(node, &local);
	MPI_Comm_size(node, &size);
	gethostname(host, sizeof host - 1);
	printf("rank launch=%s world=%d local=%d/%d node=%s gpu=%s percent=%s pipe=%s\n", argc > 1 ? argv[1] : "?",
	       world, local, size, host, variable("CUDA_VISIBLE_DEVICES"),
	       variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), variable("CUDA_MPS_PIPE_DIRECTORY"));
	fflush(stdout);
	MPI_Finalize();
	return 0;
}

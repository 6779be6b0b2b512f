// SPDX-License-Identifier: Apache-2.0
/*
 * mpi-ranks: an MPI program whose ranks compute with CUDA, each on the first device that it sees. Every rank runs
 * kernels that store a number in device memory; the number differs from rank to rank. The rank reads it back, and
 * MPI_Allreduce adds the numbers of all ranks. The checksum is correct only if the kernels of every rank ran. Rank 0
 * prints one line for each rank, in the order of the ranks:
 *
 *   rank=3 size=8 host=n1 pid=4711 uuid=GPU-… sms=33 ndev=1 free=142901 kernels=100 seconds=0.412 err=0 checksum=36000000
 *
 *   mpirun -n 8 mpi-ranks [MILLISECONDS [KERNELS]]     (1 ms, 100 kernels)
 *
 * Exit code 0 if every rank succeeded. A rank cannot know if it runs under MPS.
 */
#define _GNU_SOURCE
#include "driver.h"
#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>

enum { line_max = 512 };

struct result {
	int err, sms, devices, kernels;
	char uuid[48];
	size_t free_mib;
	double seconds;
	uint64_t read_back; /* the number that the last kernel stored */
};

static CUresult open_device(struct result *r, CUfunction *spin)
{
	CUcontext context;
	CUdevice device;
	CUfunction fault;
	size_t available = 0, total;
	CUresult e = driver.init(0);
	if (!e)
		e = driver.device_count(&r->devices);
	if (!e)
		e = driver_open(0, &context, spin, &fault);
	if (!e)
		e = driver.device(&device, 0);
	if (!e)
		e = driver_uuid(r->uuid, device);
	if (!e)
		e = driver.device_attribute(&r->sms, ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
	if (!e)
		e = driver.mem_info(&available, &total);
	r->free_mib = available >> 20;
	return e;
}

static CUresult compute(struct result *r, CUfunction spin, uint64_t ns, int kernels)
{
	CUdeviceptr memory;
	uint64_t zero = 0;
	CUresult e = driver.alloc(&memory, sizeof zero);
	if (!e)
		e = driver.to_device(memory, &zero, sizeof zero);
	double begin = driver_now();
	for (; r->kernels < kernels && !e; r->kernels++) {
		e = driver_spin(spin, 1, ns, memory);
		if (!e)
			e = driver.synchronize();
	}
	r->seconds = driver_now() - begin;
	if (!e)
		e = driver.to_host(&r->read_back, memory, sizeof r->read_back);
	return e;
}

/* Does everything that a rank does on its device. err holds the first error. */
static struct result run(uint64_t ns, int kernels)
{
	struct result r = { .uuid = "none" };
	CUfunction spin;
	const char *missing = driver_load();
	if (missing) {
		fprintf(stderr, "mpi-ranks: cannot load the CUDA driver: %s\n", missing);
		r.err = -1;
		return r;
	}
	r.err = open_device(&r, &spin);
	if (!r.err)
		r.err = compute(&r, spin, ns, kernels);
	return r;
}

static void print_in_order(const char *line, int rank, int size)
{
	char *all = rank ? NULL : malloc((size_t)size * line_max);
	MPI_Gather(line, line_max, MPI_CHAR, all, line_max, MPI_CHAR, 0, MPI_COMM_WORLD);
	for (int i = 0; all && i < size; i++)
		puts(all + (size_t)i * line_max);
	free(all);
}

int main(int argc, char **argv)
{
	int rank, size, worst;
	char line[line_max] = "", host[256] = "?";
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	gethostname(host, sizeof host - 1);
	double ms = argc > 1 ? atof(argv[1]) : 1;
	int kernels = argc > 2 ? atoi(argv[2]) : 100;
	/* A rank's number is the time of its kernels in ns plus its rank, so two ranks never store the same number. */
	struct result r = run((uint64_t)(ms * 1e6) + (uint64_t)rank, kernels);
	unsigned long long own = r.read_back, sum = 0;
	MPI_Allreduce(&own, &sum, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
	int bad = r.err != 0;
	MPI_Allreduce(&bad, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	snprintf(line, sizeof line,
		 "rank=%d size=%d host=%s pid=%d uuid=%s sms=%d ndev=%d free=%zu kernels=%d seconds=%.3f err=%d checksum=%llu",
		 rank, size, host, (int)getpid(), r.uuid, r.sms, r.devices, r.free_mib, r.kernels, r.seconds, r.err, sum);
	print_in_order(line, rank, size);
	MPI_Finalize();
	return worst;
}

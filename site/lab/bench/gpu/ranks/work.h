/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between ranks.c and a library of GPU work. kernels.cu is the real library, for a machine with a GPU and
 * nvcc. spin.c has the same names and runs on the simulated driver, so that tests need no GPU.
 */
#ifndef SLURM_MPS_BENCH_WORK_H
#define SLURM_MPS_BENCH_WORK_H

#ifdef __cplusplus
extern "C" {
#endif

/* One program. A call returns 0 or a CUDA error. */
struct work {
	const char *name;
	double units; /* the kernels, steps or passes in a batch; ranks.c counts these units */
	int depth;    /* batches in flight at once, 1 or 2: with 2 the GPU never waits for the host */
	int halo;     /* floats that each neighbour gets between two batches; 0 for none */
	int (*open)(int rank, int size);
	int (*batch)(int slot); /* enqueues a batch */
	int (*wait)(int slot);  /* waits until the batch is done, and does the CPU work between two batches */
	void (*close)(void);
	float *border[4]; /* the halo after wait: two borders to send up and down, two received from up and down */
};

/* Takes the first device. Writes the number of SMs that CUDA reports to sms. */
int work_device(int *sms);

/* Returns the program with that name, or NULL. */
struct work *work_find(const char *name);

#ifdef __cplusplus
}
#endif
#endif

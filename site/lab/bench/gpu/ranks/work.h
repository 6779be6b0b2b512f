/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks.c asks of a library of GPU work. kernels.cu is the real one, compiled where a GPU and nvcc are; spin.c has
 * the same names and runs on the simulated driver, so that everything around the kernels is tested without a GPU.
 */
#ifndef SLURM_MPS_BENCH_WORK_H
#define SLURM_MPS_BENCH_WORK_H

#ifdef __cplusplus
extern "C" {
#endif

/* One program. A call returns 0 or a CUDA error. */
struct work {
	const char *name;
	double units; /* kernels, steps or passes in a batch: what is counted */
	int depth;    /* batches in flight at once, 1 or 2: with 2 the GPU never waits for the host */
	int halo;     /* floats that go to each neighbour between two batches; 0 for none */
	int (*open)(int rank, int size);
	int (*batch)(int slot); /* enqueue one */
	int (*wait)(int slot);  /* until it is done, and what the CPU does between two */
	void (*close)(void);
	float *border[4]; /* of a halo, after wait: to send up and down, received from up and down */
};

/* Takes the first device; says how many SMs CUDA reports there. */
int work_device(int *sms);

/* The program of that name, or NULL. */
struct work *work_find(const char *name);

#ifdef __cplusplus
}
#endif
#endif

// SPDX-License-Identifier: Apache-2.0
/*
 * ranks: MPI ranks that share a GPU. Each rank measures its throughput.
 *
 *   mpirun -n N ranks LIBRARY PROGRAM[,PROGRAM…] WARM WINDOWS SECONDS
 *
 * For each program, all ranks set up, wait at a barrier, and run for WINDOWS windows of SECONDS each. The first window
 * begins at the same moment for all ranks, WARM seconds after the barrier. A rank runs until its first batch after the
 * last window is done. So all ranks compute during every window, and the total and the slowest rank are exact.
 *
 * Rank 0 prints one line of JSON for each program: each rank's units per second in each window. A rank computes them
 * from the times at which its batches were done. If a batch spans two windows, each window counts a part of the batch.
 * total is the mean of the windows' sums.
 */
#define _GNU_SOURCE
#include "work.h"
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { max_windows = 16 };

static int rank, size;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what, const char *program, int code)
{
	fprintf(stderr, "ranks: rank %d cannot %s %s: %d\n", rank, what, program, code);
	fflush(stderr);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

/* The times at which batches were done. */
struct done {
	double *at;
	size_t n, capacity;
};

static void note(struct done *d, double t)
{
	if (d->n == d->capacity) {
		d->capacity = d->capacity ? 2 * d->capacity : 4096;
		d->at = realloc(d->at, d->capacity * sizeof *d->at);
		if (!d->at)
			die("note the batches of", "a program", 0);
	}
	d->at[d->n++] = t;
}

/* Returns how many batches were done at a time. A batch that runs at that time counts in part. */
static double done_by(const struct done *d, double t)
{
	size_t low = 0, high = d->n;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (d->at[middle] <= t)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0 || low == d->n)
		return (double)low;
	return (double)low + (t - d->at[low - 1]) / (d->at[low] - d->at[low - 1]);
}

/*
 * Sends the borders to both neighbours on a ring. Every eighth step asks all ranks whether they are over. Returns true if
 * all ranks are.
 */
static int exchange(struct work *w, long step, int over)
{
	int up = (rank + 1) % size, down = (rank + size - 1) % size, all = 0;
	MPI_Sendrecv(w->border[0], w->halo, MPI_FLOAT, up, 0, w->border[3], w->halo, MPI_FLOAT, down, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Sendrecv(w->border[1], w->halo, MPI_FLOAT, down, 1, w->border[2], w->halo, MPI_FLOAT, up, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (step % 8)
		return 0;
	MPI_Allreduce(&over, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
	return all;
}

static void measure(struct work *w, double end, struct done *d)
{
	int e = 0;
	for (int slot = 0; slot < w->depth && !e; slot++)
		e = w->batch(slot);
	if (e)
		die("start", w->name, e);
	for (long step = 0;; step++) {
		int slot = (int)(step % w->depth);
		e = w->wait(slot);
		if (e)
			die("run", w->name, e);
		double t = now();
		note(d, t);
		int over = t > end;
		if (w->halo ? exchange(w, step, over) : over)
			break;
		e = w->batch(slot);
		if (e)
			die("continue", w->name, e);
	}
	for (int slot = 0; slot < w->depth; slot++)
		w->wait(slot);
}

static void print_rates(const struct work *w, const double *rates, int windows, double seconds, const double *first, const int *sms)
{
	double total = 0;
	for (int i = 0; i < size * windows; i++)
		total += rates[i] / windows;
	printf("{\"program\":\"%s\",\"window_s\":%g,\"total\":%.6g,\"rates\":[", w->name, seconds, total);
	for (int r = 0; r < size; r++) {
		printf("%s[", r ? "," : "");
		for (int i = 0; i < windows; i++)
			printf("%s%.6g", i ? "," : "", rates[r * windows + i]);
		printf("]");
	}
	printf("],\"sms\":[");
	for (int r = 0; r < size; r++)
		printf("%s%d", r ? "," : "", sms[r]);
	printf("],\"first_call_s\":[");
	for (int r = 0; r < size; r++)
		printf("%s%.4f", r ? "," : "", first[r]);
	printf("]}\n");
	fflush(stdout);
}

/* Sets up the program on all ranks. If a rank cannot, rank 0 prints an error and all ranks skip the program. */
static int ready(struct work *w)
{
	int e = w->open(rank, size), worst = 0;
	MPI_Allreduce(&e, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	if (worst && rank == 0)
		fprintf(stderr, "ranks: cannot set up %s: error %d\n", w->name, worst);
	if (worst)
		w->close();
	return !worst;
}

static void run(struct work *w, double warm, int windows, double seconds, const double *first, const int *sms)
{
	struct done d = { 0 };
	double own[max_windows], *all = calloc((size_t)size * (size_t)windows, sizeof *all);
	if (!ready(w)) {
		free(all);
		return;
	}
	double begin = now() + warm;
	MPI_Bcast(&begin, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
	measure(w, begin + windows * seconds, &d);
	for (int i = 0; i < windows; i++)
		own[i] = (done_by(&d, begin + (i + 1) * seconds) - done_by(&d, begin + i * seconds)) * w->units / seconds;
	MPI_Gather(own, windows, MPI_DOUBLE, all, windows, MPI_DOUBLE, 0, MPI_COMM_WORLD);
	if (rank == 0)
		print_rates(w, all, windows, seconds, first, sms);
	w->close();
	free(all);
	free(d.at);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	int windows = argc == 6 ? atoi(argv[4]) : 0;
	if (windows < 1 || windows > max_windows) {
		fprintf(stderr, "usage: ranks LIBRARY PROGRAM[,PROGRAM…] WARM WINDOWS SECONDS\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	void *library = dlopen(argv[1], RTLD_NOW);
	if (!library) {
		fprintf(stderr, "ranks: cannot load %s\n", dlerror());
		MPI_Abort(MPI_COMM_WORLD, 2);
		return 2;
	}
	int (*device)(int *) = (int (*)(int *))dlsym(library, "work_device");
	struct work *(*find)(const char *) = (struct work *(*)(const char *))dlsym(library, "work_find");
	int sms = 0, *all_sms = calloc((size_t)size, sizeof sms);
	double *firsts = calloc((size_t)size, sizeof *firsts), began = now();
	int e = device(&sms);
	double first = now() - began;
	if (e)
		die("take", "its GPU", e);
	MPI_Gather(&sms, 1, MPI_INT, all_sms, 1, MPI_INT, 0, MPI_COMM_WORLD);
	MPI_Gather(&first, 1, MPI_DOUBLE, firsts, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
	for (char *name = strtok(argv[2], ","); name; name = strtok(NULL, ",")) {
		struct work *w = find(name);
		if (!w)
			die("find", name, 0);
		run(w, atof(argv[3]), windows, atof(argv[5]), firsts, all_sms);
	}
	MPI_Finalize();
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the parts of the simulated libcuda share: devices.c, mps.c and cuda.c. */
#ifndef SIMULATED_CUDA_INSIDE_H
#define SIMULATED_CUDA_INSIDE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

/* cuda.c: the descriptor of a driver's file that cuInit has opened, or -1. */
int own_device(const char *path);
#define NODE_OWN_DEVICE own_device

#include "../node/node.h"
#include "work.h"
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum {
	success = 0,
	invalid_value = 1,
	out_of_memory = 2,
	not_initialized = 3,
	unavailable = 46,
	no_device = 100,
	invalid_device = 101,
	invalid_context = 201,
	invalid_ptx = 218,
	not_found = 500,
	illegal_address = 700,
	mps_connection_failed = 805,
	mps_rpc_failure = 806,
	mps_terminated = 810,
};

struct device {
	int gpu;      /* N of SIM/node/gpuN */
	int instance; /* K of mig/K, or NODE_WHOLE */
	int sms;      /* SMs that the process may use */
	int mib;      /* total, as NVML counts it */
	int limit;    /* MiB that the process may have, 0 for no limit */
	char uuid[64], name[96];
};

enum { devices_max = 64, files_max = 3 + devices_max };

struct devices {
	int count;
	struct device list[devices_max];
};

enum { pipes_count = 4 };

/* A connection to the server. It has a socket, which is -1 without a connection, and pipes. The server has the
 * other ends of the pipes. */
struct connection {
	int socket;
	int pipes[pipes_count];
};

struct CUctx_st {
	struct device *device;
	struct connection server;
	int ended;        /* the program wants it to end, so losing the server is no error */
	int faulting;     /* a kernel has failed and the server will report the fault */
	int references;   /* of a primary context */
	size_t allocated; /* bytes */
	struct work *work;
	struct CUctx_st *next;
};

/* The process. The mutex protects all fields except those that cuInit sets once. changed signals every change that
 * a function waits for. */
struct process {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	char node[PATH_MAX];
	int initialized;
	int pid;     /* as the server sees it */
	int mps;     /* there is a server */
	int sticky;  /* the error that all calls give from now on */
	int stalled; /* the server no longer does the process's work */
	int contexts_made;
	struct connection server; /* the process's own */
	double percentage;
	struct devices devices;
	int files[files_max]; /* the driver's files that are open */
	int files_open;
	struct CUctx_st *contexts;
};

extern struct process process;

/* devices.c: the devices of the node, and the devices that the process sees through CUDA_VISIBLE_DEVICES. */
int devices_of_node(const char *node, struct devices *all);
int devices_visible(const struct devices *all, const char *list, struct devices *seen);
void devices_limit(struct devices *seen, const char *limits);
int devices_memory(const char *text, long *mib);

/* mps.c: the server. mps_connect returns 1 with a server, 0 without, or -error. */
int mps_connect(struct devices *all);
void mps_leave(const struct connection *server);
void mps_drop(const struct connection *server);
int mps_host(int file);
void mps_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
int mps_open(struct CUctx_st *context, int memory);
int mps_listen(int socket, struct CUctx_st *context);
void mps_fail(int error);

#endif

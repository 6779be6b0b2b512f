// SPDX-License-Identifier: Apache-2.0
/*
 * Programs with the names of those in kernels.cu, as kernels of 1 ms on the simulated driver. The tests of ranks.c use
 * them.
 */
#include "../../../../sim/cuda/driver.h"
#include "work.h"

static CUfunction kernel;
static float rows[4][8];

static int start(int rank, int size)
{
	(void)rank, (void)size;
	return 0;
}

static int batch(int slot)
{
	(void)slot;
	return driver_spin(kernel, 1, 1000000, 0);
}

static int await(int slot)
{
	(void)slot;
	return driver.synchronize();
}

static void stop(void) {}

static struct work programs[] = {
	{ "fma", 1, 2, 0, start, batch, await, stop, { 0 } },   { "small", 1, 1, 0, start, batch, await, stop, { 0 } },
	{ "nbody", 1, 2, 0, start, batch, await, stop, { 0 } }, { "triad", 1, 2, 0, start, batch, await, stop, { 0 } },
	{ "fft", 1, 2, 0, start, batch, await, stop, { 0 } },   { "halo", 1, 1, 8, start, batch, await, stop, { rows[0], rows[1], rows[2], rows[3] } },
};

struct work *work_find(const char *name)
{
	for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
		if (!strcmp(programs[i].name, name))
			return &programs[i];
	return NULL;
}

int work_device(int *sms)
{
	CUcontext context;
	CUdevice device;
	CUfunction fault;
	if (driver_load())
		return 999;
	CUresult e = driver.init(0);
	if (!e)
		e = driver_open(0, &context, &kernel, &fault);
	if (!e)
		e = driver.device(&device, 0);
	return e ? e : driver.device_attribute(sms, ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver API that the programs in this folder use. It is loaded with dlopen. So one binary runs on a real
 * GPU and on a simulated node, and its build needs no CUDA toolkit and no libcuda.so.1.
 *
 * The kernels are hand-written PTX. `spin` runs for a given time by the GPU's own clock and then stores that time at
 * a given address. So a reader of the memory knows that the kernel ran. `fault` writes to an address that does not
 * belong to the process.
 */
#ifndef SLURM_MPS_SIM_CUDA_DRIVER_H
#define SLURM_MPS_SIM_CUDA_DRIVER_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef unsigned long long CUdeviceptr;
typedef struct { unsigned char bytes[16]; } CUuuid;

enum { ATTRIBUTE_MULTIPROCESSOR_COUNT = 16, ATTRIBUTE_PCI_BUS_ID = 33 };

static const char driver_kernels[] =
	".version 6.4\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry spin(.param .u64 ns, .param .u64 out)\n"
	"{\n"
	"	.reg .pred %p<3>;\n"
	"	.reg .b64 %rd<6>;\n"
	"	ld.param.u64 %rd0, [ns];\n"
	"	ld.param.u64 %rd1, [out];\n"
	"	mov.u64 %rd2, %globaltimer;\n"
	"AGAIN:\n"
	"	mov.u64 %rd3, %globaltimer;\n"
	"	sub.u64 %rd4, %rd3, %rd2;\n"
	"	setp.lt.u64 %p1, %rd4, %rd0;\n"
	"	@%p1 bra AGAIN;\n"
	"	setp.eq.u64 %p2, %rd1, 0;\n"
	"	@%p2 bra DONE;\n"
	"	st.global.u64 [%rd1], %rd0;\n"
	"DONE:\n"
	"	ret;\n"
	"}\n"
	".visible .entry fault(.param .u64 where)\n"
	"{\n"
	"	.reg .b32 %r<2>;\n"
	"	.reg .b64 %rd<2>;\n"
	"	ld.param.u64 %rd1, [where];\n"
	"	mov.u32 %r1, 1;\n"
	"	st.global.u32 [%rd1], %r1;\n"
	"	ret;\n"
	"}\n";

/* The driver's entry points. driver_load fills them in. */
static struct {
	CUresult (*init)(unsigned);
	CUresult (*device_count)(int *);
	CUresult (*device)(CUdevice *, int);
	CUresult (*device_name)(char *, int, CUdevice);
	CUresult (*device_uuid)(CUuuid *, CUdevice);
	CUresult (*device_attribute)(int *, int, CUdevice);
	CUresult (*retain)(CUcontext *, CUdevice);
	CUresult (*set_current)(CUcontext);
	CUresult (*synchronize)(void);
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUresult (*release)(CUdeviceptr);
	CUresult (*host_alloc)(void **, size_t, unsigned);
	CUresult (*mem_info)(size_t *, size_t *);
	CUresult (*to_device)(CUdeviceptr, const void *, size_t);
	CUresult (*to_host)(void *, CUdeviceptr, size_t);
	CUresult (*load)(CUmodule *, const void *);
	CUresult (*function)(CUfunction *, CUmodule, const char *);
	CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
			   void **, void **);
	CUresult (*event_create)(CUevent *, unsigned);
	CUresult (*event_record)(CUevent, CUstream);
	CUresult (*event_synchronize)(CUevent);
	CUresult (*error_name)(CUresult, const char **);
} driver;

/* Loads libcuda.so.1 from the loader's search path. Returns NULL, or a message that names what could not be
 * loaded. */
static inline const char *driver_load(void)
{
	static const struct { const char *name; void *into; } wanted[] = {
		{ "cuInit", &driver.init },
		{ "cuDeviceGetCount", &driver.device_count },
		{ "cuDeviceGet", &driver.device },
		{ "cuDeviceGetName", &driver.device_name },
		/* MIG instances have their own UUIDs only in _v2. Without MIG the two functions return the same. */
		{ "cuDeviceGetUuid_v2", &driver.device_uuid },
		{ "cuDeviceGetAttribute", &driver.device_attribute },
		{ "cuDevicePrimaryCtxRetain", &driver.retain },
		{ "cuCtxSetCurrent", &driver.set_current },
		{ "cuCtxSynchronize", &driver.synchronize },
		{ "cuMemAlloc_v2", &driver.alloc },
		{ "cuMemFree_v2", &driver.release },
		{ "cuMemHostAlloc", &driver.host_alloc },
		{ "cuMemGetInfo_v2", &driver.mem_info },
		{ "cuMemcpyHtoD_v2", &driver.to_device },
		{ "cuMemcpyDtoH_v2", &driver.to_host },
		{ "cuModuleLoadData", &driver.load },
		{ "cuModuleGetFunction", &driver.function },
		{ "cuLaunchKernel", &driver.launch },
		{ "cuEventCreate", &driver.event_create },
		{ "cuEventRecord", &driver.event_record },
		{ "cuEventSynchronize", &driver.event_synchronize },
		{ "cuGetErrorName", &driver.error_name },
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		return dlerror();
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		void *symbol = dlsym(library, wanted[i].name);
		if (!symbol)
			return dlerror();
		memcpy(wanted[i].into, &symbol, sizeof symbol);
	}
	return NULL;
}

/* Returns the runtime's name of an error, as most CUDA programs print it. If the runtime's list lacks the error,
 * returns the driver's name. */
static inline const char *driver_error(CUresult e)
{
	static const struct { CUresult number; const char *name; } names[] = {
		{ 0, "cudaSuccess" },
		{ 1, "cudaErrorInvalidValue" },
		{ 2, "cudaErrorMemoryAllocation" },
		{ 3, "cudaErrorInitializationError" },
		{ 46, "cudaErrorDevicesUnavailable" },
		{ 100, "cudaErrorNoDevice" },
		{ 101, "cudaErrorInvalidDevice" },
		{ 218, "cudaErrorInvalidPtx" },
		{ 401, "cudaErrorIllegalState" },
		{ 700, "cudaErrorIllegalAddress" },
		{ 719, "cudaErrorLaunchFailure" },
		{ 805, "cudaErrorMpsConnectionFailed" },
		{ 806, "cudaErrorMpsRpcFailure" },
		{ 807, "cudaErrorMpsServerNotReady" },
		{ 808, "cudaErrorMpsMaxClientsReached" },
		{ 809, "cudaErrorMpsMaxConnectionsReached" },
		{ 810, "cudaErrorMpsClientTerminated" },
	};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].number == e)
			return names[i].name;
	const char *name = NULL;
	if (driver.error_name && driver.error_name(e, &name) == 0 && name)
		return name;
	return "unknown";
}

/* Returns the seconds of a clock that never goes back. */
static inline double driver_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Writes a device's UUID, "GPU-…", into text, which must have space for at least 41 characters. */
static inline CUresult driver_uuid(char *text, CUdevice device)
{
	CUuuid u;
	CUresult e = driver.device_uuid(&u, device);
	if (e)
		return e;
	text += sprintf(text, "GPU-");
	for (int i = 0; i < 16; i++)
		text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", u.bytes[i]);
	return 0;
}

/* Makes device `ordinal` current for the calling thread and loads the kernels there. */
static inline CUresult driver_open(int ordinal, CUcontext *context, CUfunction *spin, CUfunction *fault)
{
	CUdevice device;
	CUmodule module;
	CUresult e = driver.device(&device, ordinal);
	if (!e)
		e = driver.retain(context, device);
	if (!e)
		e = driver.set_current(*context);
	if (!e)
		e = driver.load(&module, driver_kernels);
	if (!e)
		e = driver.function(spin, module, "spin");
	if (!e)
		e = driver.function(fault, module, "fault");
	return e;
}

/* Starts `spin` on the current context: `blocks` blocks of one thread, ns nanoseconds, the result at address out
 * (0: no result). */
static inline CUresult driver_spin(CUfunction spin, unsigned blocks, uint64_t ns, CUdeviceptr out)
{
	void *arguments[] = { &ns, &out };
	return driver.launch(spin, blocks, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
}

#endif

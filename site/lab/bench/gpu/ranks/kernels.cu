// SPDX-License-Identifier: Apache-2.0
/*
 * The programs for the measurement of throughput. Their data is not all zero. Build them on the machine with the GPU:
 *
 *   nvcc -O3 -arch=native -shared -Xcompiler -fPIC -o kernels.so kernels.cu -lcufft      (-DNO_FFT without cuFFT)
 *
 *   fma    a kernel that saturates the GPU: 8448 blocks of 256 threads, 64 for each SM of an H200, only FMA in registers
 *   small  16 blocks of 64 threads for about 0.15 ms; the host waits, then works 0.2 ms on the CPU before the next kernel
 *   nbody  all pairs of 8192 bodies: 64 blocks of 128 threads, through shared memory
 *   triad  a = b + s c on arrays of 64 MiB
 *   fft    cuFFT, complex to complex, 128 x 128 x 128
 *   halo   Jacobi on 2048 x 2048 floats for each rank; MPI sends a row to each neighbour between two steps
 */
#include "work.h"
#include <cuda_runtime.h>
#ifndef NO_FFT
#include <cufft.h>
#endif
#include <cstdio>
#include <cstring>
#include <ctime>

static cudaStream_t stream;
static cudaEvent_t event[2];

static int last(void) { return (int)cudaGetLastError(); }

static int mark(int slot)
{
	int e = last();
	return e ? e : (int)cudaEventRecord(event[slot], stream);
}

static int wait_event(int slot) { return (int)cudaEventSynchronize(event[slot]); }

__device__ static float noise(size_t i)
{
	unsigned x = (unsigned)i * 2654435761u;
	x ^= x >> 15;
	x *= 2246822519u;
	x ^= x >> 13;
	return (float)(x & 0xffffff) / 16777216.0f + 0.001f;
}

__global__ static void fill(float *a, size_t n)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x)
		a[i] = noise(i);
}

static float *arrays[3];

static int take(int which, size_t floats)
{
	int e = (int)cudaMalloc(&arrays[which], floats * sizeof(float));
	if (e)
		return e;
	fill<<<256, 256, 0, stream>>>(arrays[which], floats);
	e = last();
	return e ? e : (int)cudaStreamSynchronize(stream);
}

static void give_back(void)
{
	cudaStreamSynchronize(stream);
	for (float *&a : arrays) {
		cudaFree(a);
		a = nullptr;
	}
	last(); /* clears the error of a failed set-up, so that it is reported only once */
}

/*
 * Each thread has four chains of FMA, which hide the latency. The kernel stores the result under a condition that is
 * never true. So the compiler cannot remove the computation.
 */
__global__ static void fma_kernel(float *out, int steps)
{
	float a = threadIdx.x * 1e-3f, b = a + 1, c = a + 2, d = a + 3;
	for (int i = 0; i < steps; i++) {
		a = a * 0.999f + 0.1f;
		b = b * 0.999f + 0.1f;
		c = c * 0.999f + 0.1f;
		d = d * 0.999f + 0.1f;
	}
	if (a + b + c + d < 0)
		*out = a;
}

static int open_one(int, int) { return take(0, 1024); }

static int fma_batch(int slot)
{
	fma_kernel<<<8448, 256, 0, stream>>>(arrays[0], 2048);
	return mark(slot);
}

static int small_batch(int slot)
{
	fma_kernel<<<16, 64, 0, stream>>>(arrays[0], 60000);
	return mark(slot);
}

static double cpu_now(void)
{
	timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int small_wait(int slot)
{
	int e = wait_event(slot);
	for (double begin = cpu_now(); cpu_now() < begin + 200e-6;)
		;
	return e;
}

enum { bodies = 8192, tile = 128 };

__global__ static void forces(const float4 *position, float4 *velocity)
{
	__shared__ float4 near[tile];
	int i = blockIdx.x * tile + threadIdx.x;
	float4 own = position[i];
	float x = 0, y = 0, z = 0;
	for (int first = 0; first < bodies; first += tile) {
		near[threadIdx.x] = position[first + threadIdx.x];
		__syncthreads();
#pragma unroll 8
		for (int j = 0; j < tile; j++) {
			float dx = near[j].x - own.x, dy = near[j].y - own.y, dz = near[j].z - own.z;
			float r = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-4f), f = near[j].w * r * r * r;
			x += f * dx;
			y += f * dy;
			z += f * dz;
		}
		__syncthreads();
	}
	velocity[i].x += x * 1e-6f;
	velocity[i].y += y * 1e-6f;
	velocity[i].z += z * 1e-6f;
}

__global__ static void move(float4 *position, const float4 *velocity)
{
	int i = blockIdx.x * tile + threadIdx.x;
	position[i].x += velocity[i].x * 1e-6f;
	position[i].y += velocity[i].y * 1e-6f;
	position[i].z += velocity[i].z * 1e-6f;
}

static int nbody_open(int, int)
{
	int e = take(0, bodies * 4);
	return e ? e : take(1, bodies * 4);
}

static int nbody_batch(int slot)
{
	for (int i = 0; i < 2; i++) {
		forces<<<bodies / tile, tile, 0, stream>>>((float4 *)arrays[0], (float4 *)arrays[1]);
		move<<<bodies / tile, tile, 0, stream>>>((float4 *)arrays[0], (float4 *)arrays[1]);
	}
	return mark(slot);
}

enum { triad_floats = 16 << 20 };

__global__ static void triad_kernel(float4 *a, const float4 *b, const float4 *c, int n)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
		float4 x = b[i], y = c[i];
		a[i] = make_float4(x.x + 3 * y.x, x.y + 3 * y.y, x.z + 3 * y.z, x.w + 3 * y.w);
	}
}

static int triad_open(int, int)
{
	int e = 0;
	for (int i = 0; i < 3 && !e; i++)
		e = take(i, triad_floats);
	return e;
}

static int triad_batch(int slot)
{
	for (int i = 0; i < 2; i++)
		triad_kernel<<<132 * 8, 256, 0, stream>>>((float4 *)arrays[0], (float4 *)arrays[1], (float4 *)arrays[2], triad_floats / 4);
	return mark(slot);
}

#ifndef NO_FFT
enum { edge = 128 };
static cufftHandle plan;

static int fft_open(int, int)
{
	int e = take(0, 2 * edge * edge * edge);
	if (!e)
		e = take(1, 2 * edge * edge * edge);
	if (!e)
		e = 10000 * (int)cufftPlan3d(&plan, edge, edge, edge, CUFFT_C2C);
	return e ? e : 10000 * (int)cufftSetStream(plan, stream);
}

static int fft_batch(int slot)
{
	for (int i = 0; i < 2; i++) {
		cufftResult r = cufftExecC2C(plan, (cufftComplex *)arrays[0], (cufftComplex *)arrays[1], CUFFT_FORWARD);
		if (r)
			return 10000 * (int)r;
	}
	return mark(slot);
}

static void fft_close(void)
{
	cudaStreamSynchronize(stream);
	cufftDestroy(plan);
	give_back();
}
#endif

/* Rows 0 and side+1 hold the neighbours' values. */
enum { side = 2048 };
static float *pinned;
static int current; /* the array with the newest values: 0 or 1 */
extern struct work programs[];
enum { halo_place = 4 };

__global__ static void jacobi(const float *from, float *to)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y + 1;
	int left = x ? x - 1 : side - 1, right = x < side - 1 ? x + 1 : 0;
	size_t row = (size_t)y * side;
	to[row + x] = 0.25f * (from[row + left] + from[row + right] + from[row - side + x] + from[row + side + x]);
}

static int halo_open(int, int)
{
	int e = take(0, (size_t)side * (side + 2));
	if (!e)
		e = take(1, (size_t)side * (side + 2));
	if (!e)
		e = (int)cudaMallocHost(&pinned, 4 * side * sizeof(float));
	if (e)
		return e;
	memset(pinned, 0, 4 * side * sizeof(float));
	current = 0;
	for (int i = 0; i < 4; i++)
		programs[halo_place].border[i] = pinned + i * side;
	return 0;
}

static int halo_batch(int slot)
{
	float *from = arrays[current], *to = arrays[1 - current];
	size_t row = side * sizeof(float);
	cudaMemcpyAsync(from + (size_t)(side + 1) * side, pinned + 2 * side, row, cudaMemcpyHostToDevice, stream);
	cudaMemcpyAsync(from, pinned + 3 * side, row, cudaMemcpyHostToDevice, stream);
	jacobi<<<dim3(side / 256, side), 256, 0, stream>>>(from, to);
	cudaMemcpyAsync(pinned, to + (size_t)side * side, row, cudaMemcpyDeviceToHost, stream);
	cudaMemcpyAsync(pinned + side, to + side, row, cudaMemcpyDeviceToHost, stream);
	current = 1 - current;
	return mark(slot);
}

static void halo_close(void)
{
	give_back();
	cudaFreeHost(pinned);
}

struct work programs[] = {
	{ "fma", 1, 2, 0, open_one, fma_batch, wait_event, give_back, {} },
	{ "small", 1, 1, 0, open_one, small_batch, small_wait, give_back, {} },
	{ "nbody", 2, 2, 0, nbody_open, nbody_batch, wait_event, give_back, {} },
	{ "triad", 2, 2, 0, triad_open, triad_batch, wait_event, give_back, {} },
	{ "halo", 1, 1, side, halo_open, halo_batch, wait_event, halo_close, {} },
#ifndef NO_FFT
	{ "fft", 2, 2, 0, fft_open, fft_batch, wait_event, fft_close, {} },
#endif
};

extern "C" struct work *work_find(const char *name)
{
	for (struct work &w : programs)
		if (!strcmp(w.name, name))
			return &w;
	return nullptr;
}

/* A rank that waits yields its core, because there may be more ranks than cores. */
extern "C" int work_device(int *sms)
{
	int e = (int)cudaSetDeviceFlags(cudaDeviceScheduleYield);
	if (!e)
		e = (int)cudaFree(nullptr);
	if (!e)
		e = (int)cudaDeviceGetAttribute(sms, cudaDevAttrMultiProcessorCount, 0);
	if (!e)
		e = (int)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
	for (int i = 0; i < 2 && !e; i++)
		e = (int)cudaEventCreateWithFlags(&event[i], cudaEventDisableTiming);
	return e;
}

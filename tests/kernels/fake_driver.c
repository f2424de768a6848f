/* A driver that copies in host memory, for tests of the calls made through ctypes.
 *
 * Compiled against the vendors' own headers: a definition whose signature is not theirs does not compile. What the caller must
 * say is checked as the real driver does it. The null stream is refused, and copy 2 blamed where a call can name one.
 */
#include <stdint.h>
#include <string.h>

#ifdef CUDA
#define __CUDA_API_VERSION_INTERNAL /* declares every version of a function under its own name */
#include <cuda.h>

int calls, largest;

static CUresult batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
                      size_t *first, size_t attributes, CUstream stream)
{
    calls++;
    largest = (int)count > largest ? (int)count : largest;
    if (!stream || !count || attributes != 1 || first[0] != 0) return CUDA_ERROR_INVALID_VALUE;
    if (attrs[0].srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || attrs[0].flags) return CUDA_ERROR_INVALID_VALUE;
    if (attrs[0].srcLocHint.type || attrs[0].dstLocHint.type) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) memcpy((void *)dsts[i], (void *)srcs[i], sizes[i]);
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = CUDA;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "another";
    return CUDA_SUCCESS;
}

#if CUDA >= 12080
CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
                            size_t *first, size_t attributes, size_t *failed, CUstream stream)
{
    CUresult code = batch(dsts, srcs, sizes, count, attrs, first, attributes, stream);
    if (code) *failed = 2;
    return code;
}
#endif
#if CUDA >= 13000
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
                               size_t *first, size_t attributes, CUstream stream)
{
    return batch(dsts, srcs, sizes, count, attrs, first, attributes, stream);
}
#endif
#endif

#ifdef CUDART
#include <cuda_runtime_api.h>

int calls, forgotten;

cudaError_t cudaGetLastError(void)
{
    forgotten++;
    return cudaErrorInvalidValue;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART;
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorInvalidValue ? "cudaErrorInvalidValue" : "another";
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    if (kind != cudaMemcpyDefault || (!stream && ++calls > 2)) return cudaErrorInvalidValue;
    memcpy(dst, src, size);
    return cudaSuccess;
}
#endif

#ifdef HIP
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>

int calls, largest, forgotten;

hipError_t hipGetLastError(void)
{
    forgotten++;
    return hipErrorInvalidValue;
}

hipError_t hipRuntimeGetVersion(int *version)
{
    *version = HIP;
    return hipSuccess;
}

const char *hipGetErrorName(hipError_t error)
{
    return error == hipErrorInvalidValue ? "hipErrorInvalidValue" : "another";
}

hipError_t hipMemcpyAsync(void *dst, const void *src, size_t size, hipMemcpyKind kind, hipStream_t stream)
{
    if (kind != hipMemcpyDefault || (!stream && ++calls > 2)) return hipErrorInvalidValue;
    memcpy(dst, src, size);
    return hipSuccess;
}

#if HIP >= 70100000
hipError_t hipMemcpyBatchAsync(void **dsts, void **srcs, size_t *sizes, size_t count, hipMemcpyAttributes *attrs,
                               size_t *first, size_t attributes, size_t *failed, hipStream_t stream)
{
    calls++;
    largest = (int)count > largest ? (int)count : largest;
    if (!stream || !count || attrs || first || attributes) {
        *failed = 2;
        return hipErrorInvalidValue;
    }
    for (size_t i = 0; i < count; i++) memcpy(dsts[i], srcs[i], sizes[i]);
    return hipSuccess;
}
#endif
#endif

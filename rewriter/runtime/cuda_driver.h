/* Of superopt_runtime.c: the CUDA driver, reached by dlopen. */
#pragma once
#include "onnxruntime_slots.h"

typedef int CUresult;
typedef struct { int id, padding; union { char space[64]; int flag; } value; } LaunchAttribute;
typedef struct { unsigned grid[3], block[3], shared; void *stream; LaunchAttribute *attributes; unsigned count; } LaunchConfig;
static struct {
    void *library;
    int overlaps; /* whether launches may begin before the one before them has ended, within captured graphs, too */
    CUresult (*init)(unsigned);
    CUresult (*get_context)(void **);
    CUresult (*get_device)(int *);
    CUresult (*get_attribute)(int *, int, int);
    CUresult (*load)(void **, const void *);
    CUresult (*get_function)(void **, void *, const char *);
    CUresult (*set_attribute)(void *, int, int);
    CUresult (*launch)(const LaunchConfig *, void *, void **, void **);
    CUresult (*get_version)(int *);
    CUresult (*error_name)(CUresult, const char **);
    CUresult (*retain_primary)(void **, int);
    CUresult (*set_context)(void *);
} cuda;

enum { COMPUTE_MAJOR = 75, COMPUTE_MINOR = 76, MAX_DYNAMIC_SHARED = 8 };
enum { PROGRAMMATIC_STREAM_SERIALIZATION = 6, FIRST_OVERLAPPING_DRIVER = 12030, NO_DEVICE = 100 };

typedef enum { GPU_UNKNOWN, GPU_BROKEN, NO_GPU, GPU_READY } GpuState;

static GpuState open_driver(char *message, size_t size) {
    const char *name = getenv("ONNX_SUPEROPT_DRIVER");
    if (name == NULL || *name == 0) name = "libcuda.so.1";
    cuda.library = dlopen(name, RTLD_NOW);
    if (cuda.library == NULL) {
        snprintf(message, size, "onnx.superopt: no CUDA driver (%s)", dlerror());
        return NO_GPU;
    }
    struct { const char *name; void **into; } wanted[] = {
        {"cuInit", (void **)&cuda.init},
        {"cuCtxGetCurrent", (void **)&cuda.get_context},
        {"cuCtxGetDevice", (void **)&cuda.get_device},
        {"cuDeviceGetAttribute", (void **)&cuda.get_attribute},
        {"cuModuleLoadData", (void **)&cuda.load},
        {"cuModuleGetFunction", (void **)&cuda.get_function},
        {"cuFuncSetAttribute", (void **)&cuda.set_attribute},
        {"cuLaunchKernelEx", (void **)&cuda.launch},
        {"cuDriverGetVersion", (void **)&cuda.get_version},
        {"cuGetErrorName", (void **)&cuda.error_name},
        {"cuDevicePrimaryCtxRetain", (void **)&cuda.retain_primary},
        {"cuCtxSetCurrent", (void **)&cuda.set_context},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if ((*wanted[i].into = dlsym(cuda.library, wanted[i].name)) == NULL) {
            snprintf(message, size, "onnx.superopt: %s has no %s; update the driver", name, wanted[i].name);
            return GPU_BROKEN;
        }
    int version = 0;
    CUresult result = cuda.init(0);
    if (result == 0) result = cuda.get_version(&version);
    if (result != 0) {
        snprintf(message, size, "onnx.superopt: the CUDA driver does not start (error %d)", result);
        return result == NO_DEVICE ? NO_GPU : GPU_BROKEN;
    }
    cuda.overlaps = version >= FIRST_OVERLAPPING_DRIVER;
    return GPU_READY;
}

static const char *provider(const void *op) {
    const char *own = getenv("ONNX_SUPEROPT_PROVIDER"); /* tests run with a driver that only records */
    (void)op;
    return own != NULL && *own != 0 ? own : "CUDAExecutionProvider";
}

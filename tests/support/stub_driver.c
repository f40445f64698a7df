/* A CUDA driver for tests: it records calls in the file $STUB_LOG, computes two simple kernels on the CPU, and fails on demand:
 * STUB_FAIL names the function that returns an error, STUB_ARCH is the device's architecture, STUB_VERSION the driver's. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char context[1], functions[8][64];
static int known;

static int record(const char *function, const char *format, ...) {
    const char *path = getenv("STUB_LOG"), *failing = getenv("STUB_FAIL");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        va_list arguments;
        fprintf(file, "%s ", function);
        va_start(arguments, format);
        vfprintf(file, format, arguments);
        va_end(arguments);
        fputc('\n', file);
        fclose(file);
    }
    return failing && strcmp(failing, function) == 0 ? 700 : 0;
}

static int architecture(void) { const char *own = getenv("STUB_ARCH"); return own ? atoi(own) : 90; }

int cuDriverGetVersion(int *version) {
    const char *own = getenv("STUB_VERSION");
    *version = own ? atoi(own) : 13000;
    return record("cuDriverGetVersion", "");
}
int cuInit(unsigned flags) { return record("cuInit", "%u", flags); }
int cuCtxGetCurrent(void **result) { *result = context; return record("cuCtxGetCurrent", ""); }
int cuCtxGetDevice(int *device) { *device = 0; return record("cuCtxGetDevice", ""); }
int cuDevicePrimaryCtxRetain(void **result, int device) { *result = context; return record("cuDevicePrimaryCtxRetain", "%d", device); }
int cuCtxSetCurrent(void *own) { (void)own; return record("cuCtxSetCurrent", ""); }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? architecture() / 10 : architecture() % 10;
    return record("cuDeviceGetAttribute", "%d %d", attribute, device);
}
int cuModuleLoadData(void **module, const void *image) { *module = context; return record("cuModuleLoadData", "%s", (const char *)image); }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module;
    strncpy(functions[known % 8], name, 63);
    *function = functions[known++ % 8];
    return record("cuModuleGetFunction", "%s", name);
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    return record("cuFuncSetAttribute", "%s %d %d", (char *)function, attribute, value);
}
int cuGetErrorName(int error, const char **name) { *name = error == 700 ? "CUDA_ERROR_STUB" : "?"; return 0; }

/* add: out, a, b, count, null, null; scale: out, a, factor, count, null, null. */
int cuLaunchKernelEx(const struct { unsigned grid[3], block[3], shared; void *stream; int *attributes; unsigned count; } *launch,
                     void *function, void **params, void **extra) {
    (void)extra;
    const char *name = function;
    const unsigned *grid = launch->grid, *block = launch->block;
    const int *attribute = launch->attributes; /* a number, padding and a value */
    int overlapped = launch->count == 1 && attribute[0] == 6 && attribute[2] == 1;
    int result = record("cuLaunchKernelEx", "%s %ux%ux%u %ux%ux%u %u%s", name, grid[0], grid[1], grid[2], block[0], block[1],
                        block[2], launch->shared, overlapped ? " overlapped" : "");
    if (result == 0 && (strcmp(name, "add") == 0 || strcmp(name, "scale") == 0)) {
        float *out = *(float **)params[0], *a = *(float **)params[1];
        int count = *(int *)params[3];
        for (int i = 0; i < count; i++) out[i] = name[0] == 'a' ? a[i] + (*(float **)params[2])[i] : a[i] * *(float *)params[2];
        if (*(void **)params[4] || *(void **)params[5]) return 1;
    }
    return result;
}

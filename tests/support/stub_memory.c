/* The CUDA driver's virtual memory for tests, on the host: what is not mapped cannot be read, and who tries ends. */
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

enum { GRANULARITY = 1 << 16 };
typedef struct { int type, id; } Location;
typedef struct { int type, handles; Location location; void *windows; unsigned char flags[8]; } Properties;
typedef struct { Location location; int flags; } Access;

int cuInit(unsigned flags) { return (int)flags; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = context; return device; }
int cuCtxSetCurrent(void *context) { return context == NULL; }
int cuCtxSynchronize(void) { return 0; }
static int is_pinned(const Properties *p) { return p->type == 1 && p->location.type == 1 && p->location.id == 0 && p->flags[0] == 0; }
int cuMemGetAllocationGranularity(size_t *size, const Properties *p, int option) {
    *size = GRANULARITY;
    return option != 0 || !is_pinned(p);
}
int cuMemCreate(unsigned long long *handle, size_t size, const Properties *p, unsigned long long flags) {
    *handle = size;
    return size % GRANULARITY != 0 || flags != 0 || !is_pinned(p);
}
int cuMemAddressReserve(unsigned long long *address, size_t size, size_t alignment, unsigned long long at, unsigned long long flags) {
    void *there = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *address = (unsigned long long)there;
    return there == MAP_FAILED || alignment != 0 || at != 0 || flags != 0;
}
int cuMemMap(unsigned long long address, size_t size, size_t offset, unsigned long long handle, unsigned long long flags) {
    return address == 0 || handle != size || offset != 0 || flags != 0;
}
int cuMemSetAccess(unsigned long long address, size_t size, const Access *access, size_t count) {
    if (count != 1 || access->flags != 3 || access->location.type != 1) return 1;
    return mprotect((void *)address, size, PROT_READ | PROT_WRITE);
}
int cuMemUnmap(unsigned long long address, size_t size) { return mprotect((void *)address, size, PROT_NONE); }
int cuMemAddressFree(unsigned long long address, size_t size) { return munmap((void *)address, size); }
int cuMemRelease(unsigned long long handle) { return handle % GRANULARITY != 0; }
int cuMemsetD8_v2(unsigned long long address, unsigned char byte, size_t size) { memset((void *)address, byte, size); return 0; }
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size) { memcpy(to, (void *)from, size); return 0; }
int cuModuleLoadData(void **module, const char *text) { *module = module; return strstr(text, ".entry peek") == NULL; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = module; return strcmp(name, "peek"); }
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **arguments, void **extra) {
    if (function == NULL || x * y * z * bx * by * bz != 1 || shared != 0 || stream != NULL || extra != NULL) return 1;
    **(volatile int **)arguments[1] = **(volatile int **)arguments[0];
    return 0;
}

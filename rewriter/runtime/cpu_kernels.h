/* Of superopt_runtime.c: operator CpuKernel: shared objects for processors, opened once a process and run on onnxruntime's threads. */
#pragma once
#include "nodes.h"

/* What an object may ask of a processor, each with those before it; an object that asks for more goes before others. */
enum {
    FEATURE_V3 = 1,   /* x86-64-v3: AVX2, FMA, F16C, BMI, LZCNT, MOVBE */
    FEATURE_V4 = 2,   /* x86-64-v4: AVX-512 F, BW, CD, DQ, VL */
    FEATURE_VNNI = 4, /* AVX512_VNNI */
    FEATURE_BF16 = 8, /* AVX512_BF16 */
    FEATURE_AMX = 16, /* AMX-TILE, AMX-BF16, AMX-INT8 */
};

#if defined __x86_64__
static int has(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

/* The kernel lets this process use tiles; without that the first tile instruction ends it. */
static int may_use_tiles(void) {
#if defined __linux__
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}

static int features_here(void) {
    unsigned a, b, c, d, ext, sub, low, high, found = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C)) return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (!__get_cpuid(0x80000001, &a, &b, &ext, &d) || !has(ext, bit_LZCNT)) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, bit_AVX2 | bit_BMI | bit_BMI2) || !has(low, 0x6)) return 0;
    found = FEATURE_V3;
    if (!has(b, bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL) || !has(low, 0xe6)) return (int)found;
    found |= FEATURE_V4;
    if (!has(c, 1u << 11)) return (int)found;
    found |= FEATURE_VNNI;
    if (a < 1 || !__get_cpuid_count(7, 1, &sub, &b, &c, &ext) || !has(sub, 1u << 5)) return (int)found;
    found |= FEATURE_BF16;
    if (has(d, 1u << 22 | 1u << 24 | 1u << 25) && has(low, 1u << 17 | 1u << 18) && may_use_tiles()) found |= FEATURE_AMX;
    return (int)found;
}
#else
static int features_here(void) { return 0; }
#endif

static struct { int features; int64_t count; } processor;

static void ask_processor(void) {
    const char *allowed = getenv("ONNX_SUPEROPT_FEATURES"); /* tests run the objects for lesser processors, too */
    processor.features = features_here();
    if (allowed != NULL && *allowed != 0) processor.features &= atoi(allowed);
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    processor.count = count > 0 ? count : 1;
}

/* A shared object that nodes of this process use; each is opened once, however many nodes hold it. */
typedef struct Object {
    struct Object *next;
    unsigned char *content;
    size_t length;
    int file, users;
    void *handle;
} Object;

static Object *objects;
static pthread_mutex_t objects_lock = PTHREAD_MUTEX_INITIALIZER;

static int write_all(int file, const unsigned char *content, size_t length) {
    while (length > 0) {
        ssize_t written = write(file, content, length);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return 0;
        content += written;
        length -= (size_t)written;
    }
    return 1;
}

/* Opens an object from a file without a name. It stays open as long as the object: the loader knows objects by their paths. */
static int open_unnamed(Object *object) {
#if defined __linux__ && defined SYS_memfd_create
    char path[64];
    object->file = (int)syscall(SYS_memfd_create, "onnx.superopt", 1u /* close on exec */);
    if (object->file < 0) return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", object->file);
    if (write_all(object->file, object->content, object->length)) object->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (object->handle != NULL) return 1;
    close(object->file);
#endif
    object->file = -1;
    return 0;
}

/* Opens an object from a temporary file that nobody else may read, and removes the file. */
static int open_named(Object *object) {
    const char *folder = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/onnx-superopt-XXXXXX", folder != NULL && *folder != 0 ? folder : "/tmp");
    int file = mkstemp(path);
    if (file < 0) return 0;
    if (write_all(file, object->content, object->length)) object->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    close(file);
    unlink(path);
    return object->handle != NULL;
}

static void free_object(Object *object) {
    if (object->handle != NULL) dlclose(object->handle);
    if (object->file >= 0) close(object->file);
    free(object->content);
    free(object);
}

static OrtStatus *open_object(const char *title, const unsigned char *content, size_t length, Object **opened) {
    OrtStatus *status = NULL;
    pthread_mutex_lock(&objects_lock);
    Object *object = objects;
    while (object != NULL && (object->length != length || memcmp(object->content, content, length) != 0)) object = object->next;
    if (object == NULL) {
        object = calloc(1, sizeof(Object));
        if (object != NULL) object->file = -1;
        if (object != NULL && (object->content = malloc(length + 1)) != NULL) {
            memcpy(object->content, content, length);
            object->length = length;
            if (!open_unnamed(object) && !open_named(object)) {
                const char *why = dlerror();
                char message[400];
                snprintf(message, sizeof message, "%s cannot be opened: %s", title, why != NULL ? why : strerror(errno));
                status = fail("onnx.superopt: the object of kernel %s; run the model without the library%.0ld", message, 0);
            }
        } else status = no_memory();
        if (status == NULL) {
            object->next = objects;
            objects = object;
        } else if (object != NULL) free_object(object);
    }
    if (status == NULL) {
        object->users++;
        *opened = object;
    }
    pthread_mutex_unlock(&objects_lock);
    return status;
}

static void leave_object(Object *object) {
    pthread_mutex_lock(&objects_lock);
    if (--object->users == 0) {
        Object **place = &objects;
        while (*place != object) place = &(*place)->next;
        *place = object->next;
        free_object(object);
    }
    pthread_mutex_unlock(&objects_lock);
}

/* Runs the blocks of a launch from one up to another, numbered with the first extent of the grid running fastest. */
typedef void (*Function)(void *const *arguments, const int64_t *grid, int64_t first, int64_t last);
typedef void (*PackFunction)(const void *weights, void *packed, const int64_t *sizes);
typedef struct { Object *object; Function *function; } OpenedVariant;

typedef struct {
    Node node;
    Handle *memory;
    OpenedVariant opened[MAX_VARIANTS];
    void **packed;
} CpuKernel;

/* CRC-32 (ISO 3309, the one of zip files), of several pieces one after the other, beginning with 0. */
static uint32_t checksum(uint32_t before, const unsigned char *bytes, size_t length) {
    uint32_t crc = ~before;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0xEDB88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

static int is_intact(const Node *node) {
    const Plan *plan = &node->plan;
    uint32_t crc = checksum(0, (const unsigned char *)(plan->code + 1), (plan->length - 1) * sizeof(int64_t));
    crc = checksum(crc, (const unsigned char *)node->names, strlen(node->names));
    return plan->code[0] == (int64_t)checksum(crc, node->images, node->images_length);
}

enum { OBJECT_HEAD = 16 };
typedef struct { int features, variant, length; const unsigned char *content; } ObjectImage;

/* The image at a place, and the place of the next; 0 where there is none. */
static size_t read_object(const Node *node, size_t at, ObjectImage *image) {
    const unsigned char *entry = node->images + at;
    if (at + OBJECT_HEAD > node->images_length) return 0;
    *image = (ObjectImage){read_int32(entry), read_int32(entry + 4), read_int32(entry + 8), entry + OBJECT_HEAD};
    if (image->length < 0 || (size_t)image->length > node->images_length - at - OBJECT_HEAD) return 0;
    return (at + OBJECT_HEAD + (size_t)image->length + 7) / 8 * 8;
}

static OrtStatus *open_variant(const Node *node, int number, OpenedVariant *opened) {
    const Variant *variant = &node->plan.variant[number];
    ObjectImage image, best = {0};
    for (size_t at = 0; (at = read_object(node, at, &image)) > 0;)
        if (image.variant == number && image.features > best.features && (image.features & ~processor.features) == 0) best = image;
    if (best.features == 0)
        return fail("onnx.superopt: the model holds no object of kernel %s for this processor; run it without the library%.0ld",
                    node->title, 0);
    OrtStatus *status = open_object(node->title, best.content, (size_t)best.length, &opened->object);
    if (status != NULL) return status;
    opened->function = calloc((size_t)variant->launches, sizeof(Function));
    if (opened->function == NULL) return no_memory();
    for (int i = 0; i < variant->launches; i++) {
        char name[256];
        if (kernel_name(node, variant->launch[i].kernel, name, sizeof name) == NULL)
            return fail("onnx.superopt: launch %s%ld names a kernel that the node does not list", "", i);
        *(void **)&opened->function[i] = dlsym(opened->object->handle, name);
        if (opened->function[i] == NULL) return fail("onnx.superopt: the object has no function %s%.0ld", name, 0);
    }
    return NULL;
}

enum { HUGE_PAGE = 2 << 20 };

/* Memory that begins at a multiple of 64, as much of it on huge pages as Linux gives: a product of few rows otherwise waits for the
 * place of every 4 KiB of its weights. */
static void *room_for_weights(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, bytes >= HUGE_PAGE ? HUGE_PAGE : 64, bytes + 64) != 0) return NULL;
#ifdef MADV_HUGEPAGE
    if (bytes >= HUGE_PAGE) madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* where it refuses, pages are small */
#endif
    return memory;
}

/* Brings a constant into the order in which the functions read it. */
static OrtStatus *pack(const CpuKernel *kernel, const Handle *info, const Packing *packing, void **packed) {
    const Plan *plan = &kernel->node.plan;
    const Handle *value = NULL;
    int is_constant = 0, bad = 0;
    char name[256];
    void *weights = NULL;
    int64_t sizes[MAX_PACKED_SIZES];
    PackFunction function = NULL;
    if (kernel_name(&kernel->node, packing->kernel, name, sizeof name) == NULL) return malformed();
    OrtStatus *status = NULL;
    Shape *shapes = calloc((size_t)plan->inputs + 1, sizeof(Shape)); /* of rank 0, where a run may bring another shape */
    if (shapes == NULL) return no_memory();
    TRY(KernelInfoGetConstantInput_tensor(info, (size_t)packing->input, &is_constant, &value));
    if (!is_constant) { status = fail("onnx.superopt: input %s%ld of a kernel is packed once, but it is no constant", "", packing->input); goto done; }
    TRY(shape_of_value(value, &shapes[packing->input]));
    TRY(GetTensorMutableData((Handle *)value, &weights));
    int64_t bytes = evaluate(plan, packing->bytes, shapes, NULL, &bad);
    for (int i = 0; i < packing->sizes; i++) sizes[i] = evaluate(plan, packing->size[i], shapes, NULL, &bad);
    if (bad || bytes < 0) { status = fail("onnx.superopt: what %s packs has no size%.0ld", name, 0); goto done; }
    for (int v = 0; v < plan->variants && function == NULL; v++)
        *(void **)&function = dlsym(kernel->opened[v].object->handle, name);
    if (function == NULL) { status = fail("onnx.superopt: the object has no function %s%.0ld", name, 0); goto done; }
    *packed = room_for_weights((size_t)bytes);
    if (*packed == NULL) { status = no_memory(); goto done; }
    function(weights, *packed, sizes);
done:
    free(shapes);
    return status;
}

static void destroy_on_cpu(void *opaque) {
    CpuKernel *kernel = opaque;
    if (kernel == NULL) return;
    for (int v = 0; v < MAX_VARIANTS; v++) {
        free(kernel->opened[v].function);
        if (kernel->opened[v].object != NULL) leave_object(kernel->opened[v].object);
    }
    for (int i = 0; kernel->packed != NULL && i < kernel->node.plan.packings; i++) free(kernel->packed[i]);
    free(kernel->packed);
    if (kernel->memory != NULL) ReleaseMemoryInfo(kernel->memory);
    free_node(&kernel->node);
    free(kernel);
}

static OrtStatus *create_on_cpu(const void *op, const OrtApi *api, const Handle *info, void **result) {
    (void)op, (void)api;
    CpuKernel *kernel = calloc(1, sizeof(CpuKernel));
    if (kernel == NULL) return no_memory();
    const Plan *plan = &kernel->node.plan;
    OrtStatus *status = NULL;
    TRY(read_node(&kernel->node, info, 1));
    if (!is_intact(&kernel->node)) {
        status = fail("onnx.superopt: the node of kernel %s is damaged; write the model again%.0ld", kernel->node.title, 0);
        goto done;
    }
    TRY(CreateMemoryInfo("Cpu", 1 /* arena allocator */, 0, 0 /* default */, &kernel->memory));
    for (int v = 0; v < plan->variants; v++) TRY(open_variant(&kernel->node, v, &kernel->opened[v]));
    kernel->packed = calloc((size_t)plan->packings + 1, sizeof(void *));
    if (kernel->packed == NULL) { status = no_memory(); goto done; }
    for (int i = 0; i < plan->packings; i++) TRY(pack(kernel, info, &plan->packing[i], &kernel->packed[i]));
    free(kernel->node.images); /* the objects are open */
    kernel->node.images = NULL;
    *result = kernel;
done:
    if (status != NULL) destroy_on_cpu(kernel);
    return status;
}

/* Several ranges for each thread, of blocks that follow one another, so that none waits long for another. */
enum { RANGES_A_THREAD = 4 };
typedef struct { Function function; void *const *arguments; const int64_t *grid; int64_t blocks, ranges; } Work;

static void run_range(void *opaque, size_t number) {
    const Work *work = opaque;
    int64_t each = work->blocks / work->ranges, more = work->blocks % work->ranges, at = (int64_t)number;
    int64_t first = at * each + (at < more ? at : more);
    work->function(work->arguments, work->grid, first, first + each + (at < more));
}

static OrtStatus *compute_on_cpu(void *opaque, Handle *context) {
    CpuKernel *kernel = opaque;
    OrtStatus *status = NULL;
    Run run = {0};
    TRY(begin_run(&kernel->node, context, &run));
    if (run.variant == NULL) goto done;
    TRY(take_scratch(&kernel->node, context, kernel->memory, &run));
    for (int i = 0; i < run.variant->launches; i++) {
        const Launch *launch = &run.variant->launch[i];
        int64_t grid[3], blocks = 0;
        if (!fill_launch(&kernel->node, launch, kernel->packed, &run, grid) || __builtin_mul_overflow(grid[0], grid[1], &blocks) ||
            __builtin_mul_overflow(blocks, grid[2], &blocks)) {
            char where[400];
            const char *name = describe(&kernel->node, launch, grid, where, sizeof where);
            status = fail("onnx.superopt: the launch of kernel %s is impossible%.0ld", name, 0);
            goto done;
        }
        int64_t ranges = blocks / launch->threads, most = RANGES_A_THREAD * processor.count;
        Work work = {kernel->opened[run.number].function[i], run.arguments, grid, blocks, ranges < most ? ranges : most};
        if (work.ranges > 1 && processor.count > 1)
            TRY(KernelContext_ParallelFor(context, run_range, (size_t)work.ranges, 0 /* as it sees fit */, &work));
        else if (blocks > 0)
            work.function(run.arguments, grid, 0, blocks);
    }
done:
    end_run(&run);
    return status;
}

/* Of superopt_runtime.c: operator Kernel: images for GPUs, loaded once a context and launched on onnxruntime's stream. */
#pragma once
#include "cuda_driver.h"
#include "nodes.h"

typedef struct { void *function; int shared; } LoadedLaunch;
typedef struct { int overlaps; LoadedLaunch *launch; } LoadedVariant;
typedef struct { void *context; LoadedVariant *variant; } Loaded;

typedef struct {
    Node node;
    pthread_mutex_t lock;
    int loaded_count;
    Loaded loaded[MAX_DEVICES];
} Kernel;

static OrtStatus *cuda_fail(const char *what, const char *kernel, CUresult result) {
    const char *name = NULL;
    char message[512];
    cuda.error_name(result, &name);
    snprintf(message, sizeof message, "onnx.superopt: %s of kernel %s failed: %s (%d)", what, kernel, name ? name : "?", result);
    return CreateStatus(ORT_FAIL, message);
}

enum { PTX = 1, WAITING = 2, FIRST_VARIANT_BIT = 2, IMAGE_HEAD = 16 };
typedef struct { int architecture, kind, kernels, length; const unsigned char *shared, *content; } Image;

/* The image at a place; 0 where there is none. */
static size_t read_image(const Node *node, size_t at, Image *image) {
    const unsigned char *entry = node->images + at;
    if (at + IMAGE_HEAD > node->images_length) return 0;
    *image = (Image){read_int32(entry), read_int32(entry + 4), read_int32(entry + 8), read_int32(entry + 12), entry + IMAGE_HEAD, NULL};
    if (image->kernels < 0 || (size_t)image->kernels > node->images_length / 4 || image->length < 0) return 0;
    image->content = image->shared + 4 * image->kernels;
    size_t end = at + IMAGE_HEAD + 4 * (size_t)image->kernels + (size_t)image->length;
    return end > node->images_length ? 0 : (end + 7) / 8 * 8;
}

/* The image of a variant for a device: the newest cubin of its generation that is not newer than itself, else the newest PTX it
 * can compile. A cubin runs on later devices of the same major architecture only. */
static int choose_image(const Node *node, int variant, int architecture, Image *best) {
    int best_score = -1;
    Image image;
    for (size_t at = 0; (at = read_image(node, at, &image)) > 0;) {
        int own = image.architecture, is_ptx = image.kind & PTX;
        int fits = is_ptx ? own <= architecture : own / 10 == architecture / 10 && own <= architecture;
        int score = is_ptx ? own : 10000 + own;
        if (image.kind >> FIRST_VARIANT_BIT == variant && fits && score > best_score) {
            *best = image;
            best_score = score;
        }
    }
    return best_score >= 0;
}

/* Loads the kernels of a variant into the current context. */
static OrtStatus *load_variant(const Kernel *kernel, int number, int architecture, LoadedVariant *loaded) {
    const Variant *variant = &kernel->node.plan.variant[number];
    Image image;
    if (!choose_image(&kernel->node, number, architecture, &image))
        return fail("onnx.superopt: the model holds no kernel for this GPU (sm_%s%ld); "
                    "write it again with onnx-superopt --arch", "", architecture);
    void *module = NULL;
    CUresult result = cuda.load(&module, image.content);
    if (result != 0) return cuda_fail("loading the image", kernel->node.title, result);
    loaded->launch = calloc((size_t)variant->launches, sizeof(LoadedLaunch));
    if (loaded->launch == NULL) return no_memory();
    for (int i = 0; i < variant->launches; i++) {
        char name[256];
        const Launch *launch = &variant->launch[i];
        if (kernel_name(&kernel->node, launch->kernel, name, sizeof name) == NULL)
            return fail("onnx.superopt: launch %s%ld names a kernel that the node does not list", "", i);
        if (launch->kernel >= image.kernels)
            return fail("onnx.superopt: the image does not say how much shared memory kernel %s wants%.0ld", name, 0);
        int shared = read_int32(image.shared + 4 * launch->kernel);
        void *function = NULL;
        result = cuda.get_function(&function, module, name);
        if (result != 0) return cuda_fail("looking up", name, result);
        if (shared > 48 * 1024) {
            result = cuda.set_attribute(function, MAX_DYNAMIC_SHARED, shared);
            if (result != 0) return cuda_fail("reserving shared memory", name, result);
        }
        loaded->launch[i].function = function;
        loaded->launch[i].shared = shared;
    }
    loaded->overlaps = cuda.overlaps && (image.kind & WAITING);
    return NULL;
}

static void free_loaded(const Kernel *kernel, Loaded *loaded) {
    for (int i = 0; loaded->variant != NULL && i < kernel->node.plan.variants; i++) free(loaded->variant[i].launch);
    free(loaded->variant);
    loaded->variant = NULL;
}

/* Loads all variants into the current context, so that none is loaded while a graph is captured; called with the lock held. */
static OrtStatus *load(const Kernel *kernel, Loaded *loaded) {
    int device = 0, major = 0, minor = 0;
    CUresult result = cuda.get_device(&device);
    if (result == 0) result = cuda.get_attribute(&major, COMPUTE_MAJOR, device);
    if (result == 0) result = cuda.get_attribute(&minor, COMPUTE_MINOR, device);
    if (result != 0) return cuda_fail("asking the device", kernel->node.title, result);
    loaded->variant = calloc((size_t)kernel->node.plan.variants, sizeof(LoadedVariant));
    if (loaded->variant == NULL) return no_memory();
    OrtStatus *status = NULL;
    for (int i = 0; i < kernel->node.plan.variants && status == NULL; i++)
        status = load_variant(kernel, i, major * 10 + minor, &loaded->variant[i]);
    if (status != NULL) free_loaded(kernel, loaded);
    return status;
}

static OrtStatus *loaded_here(Kernel *kernel, const Loaded **loaded) {
    void *context = NULL;
    CUresult result = cuda.get_context(&context);
    if (result == 0 && context == NULL) { /* the runtime API has not bound its primary context to this thread yet */
        result = cuda.retain_primary(&context, 0);
        if (result == 0) result = cuda.set_context(context);
    }
    if (result != 0) return cuda_fail("asking for the context", kernel->node.title, result);
    OrtStatus *status = NULL;
    pthread_mutex_lock(&kernel->lock);
    Loaded *found = NULL;
    for (int i = 0; i < kernel->loaded_count; i++)
        if (kernel->loaded[i].context == context) found = &kernel->loaded[i];
    if (found == NULL) {
        if (kernel->loaded_count == MAX_DEVICES) status = fail("onnx.superopt: more than %s%ld devices", "", MAX_DEVICES);
        else {
            found = &kernel->loaded[kernel->loaded_count];
            found->context = context;
            status = load(kernel, found);
            if (status == NULL) kernel->loaded_count++;
        }
    }
    pthread_mutex_unlock(&kernel->lock);
    if (status == NULL) *loaded = found;
    return status;
}

static void destroy(void *opaque) {
    Kernel *kernel = opaque;
    if (kernel == NULL) return;
    for (int i = 0; i < kernel->loaded_count; i++) free_loaded(kernel, &kernel->loaded[i]);
    free_node(&kernel->node);
    pthread_mutex_destroy(&kernel->lock);
    free(kernel); /* modules stay loaded: a captured graph may still refer to them */
}

static OrtStatus *create(const void *op, const OrtApi *api, const Handle *info, void **result) {
    (void)op, (void)api;
    Kernel *kernel = calloc(1, sizeof(Kernel));
    if (kernel == NULL) return no_memory();
    pthread_mutex_init(&kernel->lock, NULL);
    OrtStatus *status = read_node(&kernel->node, info, 0);
    if (status != NULL) destroy(kernel);
    else *result = kernel;
    return status;
}

static OrtStatus *compute(void *opaque, Handle *context) {
    Kernel *kernel = opaque;
    OrtStatus *status = NULL;
    Handle *memory = NULL;
    Run run = {0};
    void *stream = NULL;
    const Loaded *here = NULL;
    char where[400];
    TRY(begin_run(&kernel->node, context, &run));
    if (run.variant == NULL) goto done;
    TRY(loaded_here(kernel, &here));
    const LoadedVariant *loaded = &here->variant[run.number];
    TRY(KernelContext_GetGPUComputeStream(context, &stream));
    if (run.variant->scratches > 0) {
        int device = 0;
        cuda.get_device(&device);
        const char *place = strcmp(provider(NULL), "CPUExecutionProvider") == 0 ? "Cpu" : "Cuda";
        TRY(CreateMemoryInfo(place, 0 /* device allocator */, device, 0 /* default */, &memory));
    }
    TRY(take_scratch(&kernel->node, context, memory, &run));
    for (int i = 0; i < run.variant->launches; i++) {
        const Launch *launch = &run.variant->launch[i];
        int64_t grid[3];
        if (!fill_launch(&kernel->node, launch, NULL, &run, grid) || grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535) {
            const char *name = describe(&kernel->node, launch, grid, where, sizeof where);
            status = fail("onnx.superopt: the launch of kernel %s is impossible%.0ld", name, 0);
            goto done;
        }
        if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) continue;
        LaunchAttribute overlapped = {.id = PROGRAMMATIC_STREAM_SERIALIZATION, .value.flag = 1};
        LaunchConfig config = {{(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]}, {(unsigned)launch->threads, 1, 1},
                               (unsigned)loaded->launch[i].shared, stream, &overlapped, loaded->overlaps ? 1 : 0};
        CUresult result = cuda.launch(&config, loaded->launch[i].function, run.arguments, NULL);
        if (result != 0) {
            status = cuda_fail("the launch", describe(&kernel->node, launch, grid, where, sizeof where), result);
            goto done;
        }
    }
done:
    end_run(&run);
    if (memory) ReleaseMemoryInfo(memory);
    return status;
}

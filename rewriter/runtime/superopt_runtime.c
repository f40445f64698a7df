/* The run-time library of custom kernels: operator Kernel of domain onnx.superopt for stock onnxruntime.
 *
 * A node carries compiled kernels (cubins and PTX), and a plan: what its outputs look like and which kernels to launch with
 * which arguments. The library loads the kernels through the CUDA driver, once per context, and launches them on
 * onnxruntime's stream. It needs neither CUDA's nor onnxruntime's headers: both are reached through stable binary
 * interfaces, the driver's by dlopen and onnxruntime's through its table of functions, whose slots never move.
 *
 * Attributes of a node:
 *   version   int     2, or 3 where the sizes of the inputs choose among variants; the library refuses others by name
 *   images    uint8   tensor of entries: architecture, kind (bit 0: PTX, no cubin; bit 1: the kernels wait for the launch before
 *                     them; from bit 2: the variant), number of kernels, length and each kernel's dynamic shared memory as
 *                     little-endian int32, then the bytes, up to a multiple of 8
 *   kernels   string  names of the kernels, one a line
 *   plan      ints    outputs, the choice, scratch buffers and launches, see read_plan
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT_VERSION 2
#define CHOICE_FORMAT_VERSION 3
#define EXPORT __attribute__((visibility("default")))
#define MAX_RANK 16
#define MAX_VARIANTS 8
#define MAX_DEVICES 64
#define MAX_INPUTS (1 << 20) /* onnxruntime says how many there are; more are malformed */

/* ---- onnxruntime: API version 17, reached by slot --------------------------------------------------------------- */

typedef struct OrtStatus OrtStatus;
typedef struct OrtApi OrtApi; /* a table of function pointers */
typedef struct { const OrtApi *(*get_api)(uint32_t version); const char *(*version)(void); } OrtApiBase;
typedef void Handle; /* whatever onnxruntime gives us to pass on */

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_API_VERSION = 18, CUSTOM_OP_VERSION = 17 };
enum { TYPE_UINT8 = 2, CHARACTERISTIC_VARIADIC = 2, ATTRIBUTE_INT = 1, ATTRIBUTE_INTS = 2 };

static const OrtApi *ort;
#define SLOT(index, result, ...) ((result(*)(__VA_ARGS__))((void *const *)ort)[index])
#define CreateStatus SLOT(0, OrtStatus *, int, const char *)
#define CreateCustomOpDomain SLOT(26, OrtStatus *, const char *, Handle **)
#define CustomOpDomain_Add SLOT(27, OrtStatus *, Handle *, const void *)
#define AddCustomOpDomain SLOT(28, OrtStatus *, Handle *, Handle *)
#define GetTensorMutableData SLOT(51, OrtStatus *, Handle *, void **)
#define CreateTensorTypeAndShapeInfo SLOT(57, OrtStatus *, Handle **)
#define SetTensorElementType SLOT(58, OrtStatus *, Handle *, int)
#define SetDimensions SLOT(59, OrtStatus *, Handle *, const int64_t *, size_t)
#define GetDimensionsCount SLOT(61, OrtStatus *, const Handle *, size_t *)
#define GetDimensions SLOT(62, OrtStatus *, const Handle *, int64_t *, size_t)
#define GetTensorShapeElementCount SLOT(64, OrtStatus *, const Handle *, size_t *)
#define GetTensorTypeAndShape SLOT(65, OrtStatus *, const Handle *, Handle **)
#define AllocatorFree SLOT(76, OrtStatus *, Handle *, void *)
#define KernelInfoGetAttribute_int64 SLOT(86, OrtStatus *, const Handle *, const char *, int64_t *)
#define KernelInfoGetAttribute_string SLOT(87, OrtStatus *, const Handle *, const char *, char *, size_t *)
#define KernelContext_GetInputCount SLOT(88, OrtStatus *, const Handle *, size_t *)
#define KernelContext_GetInput SLOT(90, OrtStatus *, const Handle *, size_t, const Handle **)
#define KernelContext_GetOutput SLOT(91, OrtStatus *, Handle *, size_t, const int64_t *, size_t, Handle **)
#define ReleaseStatus SLOT(93, void, OrtStatus *)
#define ReleaseMemoryInfo SLOT(94, void, Handle *)
#define ReleaseValue SLOT(96, void, Handle *)
#define ReleaseTensorTypeAndShapeInfo SLOT(99, void, Handle *)
#define KernelInfoGetAttributeArray_int64 SLOT(163, OrtStatus *, const Handle *, const char *, int64_t *, size_t *)
#define KernelContext_GetGPUComputeStream SLOT(193, OrtStatus *, const Handle *, void **)
#define KernelInfoGetAttribute_tensor SLOT(236, OrtStatus *, const Handle *, const char *, Handle *, Handle **)
#define GetAllocatorWithDefaultOptions SLOT(78, OrtStatus *, Handle **)
#define ShapeInferContext_GetInputCount SLOT(267, OrtStatus *, const Handle *, size_t *)
#define ShapeInferContext_GetInputTypeShape SLOT(268, OrtStatus *, const Handle *, size_t, Handle **)
#define ShapeInferContext_GetAttribute SLOT(269, OrtStatus *, const Handle *, const char *, const Handle **)
#define ShapeInferContext_SetOutputTypeShape SLOT(270, OrtStatus *, const Handle *, size_t, const Handle *)
#define ReadOpAttr SLOT(272, OrtStatus *, const Handle *, int, void *, size_t, size_t *)
#define KernelContext_GetAllocator SLOT(253, OrtStatus *, const Handle *, const Handle *, Handle **)
#define ReleaseAllocator SLOT(132, void, Handle *)
#define KernelContext_GetScratchBuffer SLOT(277, OrtStatus *, const Handle *, const Handle *, size_t, void **)
#define CreateMemoryInfo SLOT(68, OrtStatus *, const char *, int, int, int, Handle **)

typedef struct {
    uint32_t version;
    OrtStatus *(*create_kernel_v1)(void);
    const char *(*get_name)(const void *);
    const char *(*get_provider)(const void *);
    int (*get_input_type)(const void *, size_t);
    size_t (*get_input_type_count)(const void *);
    int (*get_output_type)(const void *, size_t);
    size_t (*get_output_type_count)(const void *);
    void (*compute_v1)(void *, Handle *);
    void (*destroy)(void *);
    int (*get_input_characteristic)(const void *, size_t);
    int (*get_output_characteristic)(const void *, size_t);
    int (*get_input_memory_type)(const void *, size_t);
    int (*get_variadic_input_min)(const void *);
    int (*get_variadic_input_homogeneity)(const void *);
    int (*get_variadic_output_min)(const void *);
    int (*get_variadic_output_homogeneity)(const void *);
    OrtStatus *(*create)(const void *, const OrtApi *, const Handle *, void **);
    OrtStatus *(*compute)(void *, Handle *);
    OrtStatus *(*infer)(const void *, Handle *);
    int (*get_start_version)(const void *);
    int (*get_end_version)(const void *);
    void *aliases[4];
} CustomOp;

/* ---- the CUDA driver, reached by dlopen -------------------------------------------------------------------------- */

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
enum { PROGRAMMATIC_STREAM_SERIALIZATION = 6, FIRST_OVERLAPPING_DRIVER = 12030 };

static int open_driver(char *message, size_t size) {
    const char *name = getenv("ONNX_SUPEROPT_DRIVER");
    if (name == NULL || *name == 0) name = "libcuda.so.1";
    cuda.library = dlopen(name, RTLD_NOW);
    if (cuda.library == NULL) {
        snprintf(message, size, "onnx.superopt: no CUDA driver (%s); run the model without the library", dlerror());
        return 0;
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
            return 0;
        }
    int version = 0;
    CUresult result = cuda.init(0);
    if (result == 0) result = cuda.get_version(&version);
    if (result != 0) {
        snprintf(message, size, "onnx.superopt: the CUDA driver does not start (error %d)", result);
        return 0;
    }
    cuda.overlaps = version >= FIRST_OVERLAPPING_DRIVER;
    return 1;
}

static const char *provider(const void *op) {
    const char *own = getenv("ONNX_SUPEROPT_PROVIDER"); /* tests run with a driver that only records */
    (void)op;
    return own != NULL && *own != 0 ? own : "CUDAExecutionProvider";
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

enum { CONSTANT, DIMENSION, ADD, SUBTRACT, MULTIPLY, CEIL_DIVIDE, FLOOR_DIVIDE, MINIMUM, MAXIMUM };
enum { INPUT, OUTPUT, SCRATCH, INT32, INT64, FLOAT32, NOTHING };

typedef struct { int start, length; } Expression; /* within the plan: a postfix program over the inputs' dimensions */
typedef struct { int kind; int64_t value; Expression expression; } Param;
typedef struct { int kernel, threads; Expression grid[3]; int params; Param *param; } Launch;
typedef struct { int type, rank; Expression dims[MAX_RANK]; } Output;

typedef struct { int scratches, launches; Expression *scratch; Launch *launch; } Variant;

typedef struct {
    int64_t *code;
    size_t length;
    int inputs, outputs, variants;
    Output *output;
    Expression measure; /* where there are several variants */
    int64_t limit[MAX_VARIANTS];
    Variant *variant;
} Plan;

typedef struct { const int64_t *code; size_t length, at; int bad; } Reader;

static int64_t next(Reader *reader) {
    if (reader->at >= reader->length) { reader->bad = 1; return 0; }
    return reader->code[reader->at++];
}

static int64_t within(Reader *reader, int64_t least, int64_t most) {
    int64_t value = next(reader);
    if (value < least || value > most) { reader->bad = 1; return least; }
    return value;
}

/* How many items follow, each of which takes a number or more. */
static int count_of(Reader *reader, int64_t least) {
    size_t left = reader->length - reader->at;
    return (int)within(reader, least, left < INT32_MAX ? (int64_t)left : INT32_MAX);
}

static void *array_of(Reader *reader, int count, size_t size) {
    void *array = calloc(count > 0 ? (size_t)count : 1, size);
    if (array == NULL) reader->bad = 1;
    return array;
}

static Expression read_expression(Reader *reader) {
    int64_t length = within(reader, 1, 256);
    Expression expression = {(int)reader->at, (int)length};
    if (reader->at + (size_t)length > reader->length) reader->bad = 1;
    else reader->at += (size_t)length;
    return expression;
}

/* scratch buffers, each: bytes; launches, each: kernel, threads, grid x y z, parameters, each: kind, then an index, an expression
 * or the bits of a float. */
static void read_variant(Reader *reader, const Plan *plan, Variant *variant) {
    int scratches = count_of(reader, 0);
    variant->scratch = array_of(reader, scratches, sizeof(Expression));
    for (int i = 0; i < scratches && !reader->bad; i++) variant->scratch[i] = read_expression(reader);
    variant->scratches = scratches;
    int launches = count_of(reader, 1);
    variant->launch = array_of(reader, launches, sizeof(Launch));
    for (int i = 0; i < launches && !reader->bad; i++) {
        Launch *launch = &variant->launch[i];
        variant->launches = i + 1; /* what there is to free */
        launch->kernel = (int)within(reader, 0, INT32_MAX);
        launch->threads = (int)within(reader, 1, 1024);
        for (int axis = 0; axis < 3; axis++) launch->grid[axis] = read_expression(reader);
        launch->params = count_of(reader, 0);
        launch->param = array_of(reader, launch->params, sizeof(Param));
        for (int p = 0; p < launch->params && !reader->bad; p++) {
            Param *param = &launch->param[p];
            param->kind = (int)within(reader, INPUT, NOTHING);
            switch (param->kind) {
            case INPUT: param->value = within(reader, 0, plan->inputs - 1); break;
            case OUTPUT: param->value = within(reader, 0, plan->outputs - 1); break;
            case SCRATCH: param->value = within(reader, 0, variant->scratches - 1); break;
            case FLOAT32: param->value = next(reader); break;
            case INT32: case INT64: param->expression = read_expression(reader); break;
            }
        }
    }
}

/* inputs; outputs, each: element type, rank, dimensions; in format 3 the number of variants, the measure that chooses among them
 * and the limits between them, ascending: the first variant runs up to the first limit, the last one beyond the last; then each
 * variant. */
static int read_plan(Plan *plan, int64_t version) {
    Reader reader = {plan->code, plan->length, 0, 0};
    plan->inputs = (int)within(&reader, 0, MAX_INPUTS);
    plan->outputs = count_of(&reader, 1);
    plan->output = array_of(&reader, plan->outputs, sizeof(Output));
    for (int i = 0; i < plan->outputs && !reader.bad; i++) {
        plan->output[i].type = (int)within(&reader, 1, 32);
        plan->output[i].rank = (int)within(&reader, 0, MAX_RANK);
        for (int d = 0; d < plan->output[i].rank; d++) plan->output[i].dims[d] = read_expression(&reader);
    }
    plan->variants = 1;
    if (version == CHOICE_FORMAT_VERSION) {
        plan->variants = (int)within(&reader, 2, MAX_VARIANTS);
        plan->measure = read_expression(&reader);
        for (int i = 0; i < plan->variants - 1; i++)
            plan->limit[i] = within(&reader, i == 0 ? 0 : plan->limit[i - 1] + 1, INT64_MAX - 1);
    }
    if (reader.bad) return 0;
    plan->variant = calloc((size_t)plan->variants, sizeof(Variant));
    if (plan->variant == NULL) return 0;
    for (int i = 0; i < plan->variants && !reader.bad; i++) read_variant(&reader, plan, &plan->variant[i]);
    return !reader.bad && reader.at == reader.length;
}

static void free_plan(Plan *plan) {
    for (int v = 0; plan->variant != NULL && v < plan->variants; v++) {
        Variant *variant = &plan->variant[v];
        for (int i = 0; variant->launch != NULL && i < variant->launches; i++) free(variant->launch[i].param);
        free(variant->launch);
        free(variant->scratch);
    }
    free(plan->variant);
    free(plan->output);
    free(plan->code);
}

typedef struct { int rank; int64_t dims[MAX_RANK]; } Shape;

/* The value of an expression; -1 where it depends on a dimension that is not known yet, and *bad where it has no value. */
static int64_t evaluate(const Plan *plan, Expression expression, const Shape *shapes, int *bad) {
    int64_t stack[64];
    int top = 0, unknown = 0;
    const int64_t *code = plan->code + expression.start;
    for (int i = 0; i < expression.length; i++) {
        int64_t a, b, operation = code[i];
        if (operation == CONSTANT || operation == DIMENSION) {
            int wide = operation == CONSTANT ? 1 : 2;
            if (i + wide >= expression.length || top == 64) { *bad = 1; return -1; }
            if (operation == CONSTANT) stack[top++] = code[i + 1];
            else {
                int64_t input = code[i + 1], axis = code[i + 2];
                if (input < 0 || input >= plan->inputs || axis < 0 || axis >= shapes[input].rank) { *bad = 1; return -1; }
                if (shapes[input].dims[axis] < 0) unknown = 1;
                stack[top++] = shapes[input].dims[axis];
            }
            i += wide;
            continue;
        }
        if (top < 2) { *bad = 1; return -1; }
        b = stack[--top];
        a = stack[--top];
        switch (operation) {
        case ADD: a += b; break;
        case SUBTRACT: a -= b; break;
        case MULTIPLY: a *= b; break;
        case CEIL_DIVIDE: case FLOOR_DIVIDE:
            if (b <= 0 && !unknown) { *bad = 1; return -1; }
            if (!unknown) a = operation == CEIL_DIVIDE ? (a + b - 1) / b : a / b;
            break;
        case MINIMUM: a = a < b ? a : b; break;
        case MAXIMUM: a = a > b ? a : b; break;
        default: *bad = 1; return -1;
        }
        stack[top++] = a;
    }
    if (top != 1) { *bad = 1; return -1; }
    return unknown ? -1 : stack[0];
}

/* The variant for inputs of these shapes; *bad where there is none. */
static int choose_variant(const Plan *plan, const Shape *shapes, int *bad) {
    int chosen = 0;
    if (plan->variants == 1) return 0;
    int64_t measure = evaluate(plan, plan->measure, shapes, bad);
    while (chosen < plan->variants - 1 && measure > plan->limit[chosen]) chosen++;
    return chosen;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef struct { void *function; int shared; } LoadedLaunch;
typedef struct { int overlaps; LoadedLaunch *launch; } LoadedVariant;
typedef struct { void *context; LoadedVariant *variant; } Loaded;

typedef struct {
    Plan plan;
    unsigned char *images;
    size_t images_length;
    char *names; /* one a line */
    pthread_mutex_t lock;
    int loaded_count;
    Loaded loaded[MAX_DEVICES];
} Kernel;

static OrtStatus *fail(const char *format, const char *detail, long number) {
    char message[512];
    snprintf(message, sizeof message, format, detail, number);
    return CreateStatus(ORT_FAIL, message);
}

static OrtStatus *cuda_fail(const char *what, const char *kernel, CUresult result) {
    const char *name = NULL;
    char message[512];
    cuda.error_name(result, &name);
    snprintf(message, sizeof message, "onnx.superopt: %s of kernel %s failed: %s (%d)", what, kernel, name ? name : "?", result);
    return CreateStatus(ORT_FAIL, message);
}

static int32_t read_int32(const unsigned char *bytes) {
    return (int32_t)((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24);
}

enum { PTX = 1, WAITING = 2, FIRST_VARIANT_BIT = 2, IMAGE_HEAD = 16 };
typedef struct { int architecture, kind, kernels, length; const unsigned char *shared, *content; } Image;

/* The image at a place; 0 where there is none. */
static size_t read_image(const Kernel *kernel, size_t at, Image *image) {
    const unsigned char *entry = kernel->images + at;
    if (at + IMAGE_HEAD > kernel->images_length) return 0;
    *image = (Image){read_int32(entry), read_int32(entry + 4), read_int32(entry + 8), read_int32(entry + 12), entry + IMAGE_HEAD, NULL};
    if (image->kernels < 0 || (size_t)image->kernels > kernel->images_length / 4 || image->length < 0) return 0;
    image->content = image->shared + 4 * image->kernels;
    size_t end = at + IMAGE_HEAD + 4 * (size_t)image->kernels + (size_t)image->length;
    return end > kernel->images_length ? 0 : (end + 7) / 8 * 8;
}

/* The image of a variant for a device: the newest cubin of its generation that is not newer than itself, else the newest PTX it
 * can compile. A cubin runs on later devices of the same major architecture only. */
static int choose_image(const Kernel *kernel, int variant, int architecture, Image *best) {
    int best_score = -1;
    Image image;
    for (size_t at = 0; (at = read_image(kernel, at, &image)) > 0;) {
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

static const char *kernel_name(const Kernel *kernel, int index, char *into, size_t size) {
    const char *line = kernel->names;
    while (index-- > 0 && line != NULL) line = (line = strchr(line, '\n')) ? line + 1 : NULL;
    if (line == NULL || *line == 0) return NULL;
    size_t length = strcspn(line, "\n");
    if (length >= size) return NULL;
    memcpy(into, line, length);
    into[length] = 0;
    return into;
}

/* Loads the kernels of a variant into the current context. */
static OrtStatus *load_variant(const Kernel *kernel, int number, int architecture, LoadedVariant *loaded) {
    const Variant *variant = &kernel->plan.variant[number];
    Image image;
    if (!choose_image(kernel, number, architecture, &image))
        return fail("onnx.superopt: the model holds no kernel for this GPU (sm_%s%ld); "
                    "write it again with onnx-superopt --arch", "", architecture);
    void *module = NULL;
    CUresult result = cuda.load(&module, image.content);
    if (result != 0) return cuda_fail("loading the image", kernel->names, result);
    loaded->launch = calloc((size_t)variant->launches, sizeof(LoadedLaunch));
    if (loaded->launch == NULL) return fail("onnx.superopt: out of memory%s%.0ld", "", 0);
    for (int i = 0; i < variant->launches; i++) {
        char name[256];
        const Launch *launch = &variant->launch[i];
        if (kernel_name(kernel, launch->kernel, name, sizeof name) == NULL)
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
    for (int i = 0; loaded->variant != NULL && i < kernel->plan.variants; i++) free(loaded->variant[i].launch);
    free(loaded->variant);
    loaded->variant = NULL;
}

/* Loads all variants into the current context, so that none is loaded while a graph is captured; called with the lock held. */
static OrtStatus *load(const Kernel *kernel, Loaded *loaded) {
    int device = 0, major = 0, minor = 0;
    CUresult result = cuda.get_device(&device);
    if (result == 0) result = cuda.get_attribute(&major, COMPUTE_MAJOR, device);
    if (result == 0) result = cuda.get_attribute(&minor, COMPUTE_MINOR, device);
    if (result != 0) return cuda_fail("asking the device", kernel->names, result);
    loaded->variant = calloc((size_t)kernel->plan.variants, sizeof(LoadedVariant));
    if (loaded->variant == NULL) return fail("onnx.superopt: out of memory%s%.0ld", "", 0);
    OrtStatus *status = NULL;
    for (int i = 0; i < kernel->plan.variants && status == NULL; i++)
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
    if (result != 0) return cuda_fail("asking for the context", kernel->names, result);
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

/* ---- the operator ------------------------------------------------------------------------------------------------ */

static void destroy(void *opaque) {
    Kernel *kernel = opaque;
    if (kernel == NULL) return;
    for (int i = 0; i < kernel->loaded_count; i++) free_loaded(kernel, &kernel->loaded[i]);
    free_plan(&kernel->plan);
    free(kernel->images);
    free(kernel->names);
    pthread_mutex_destroy(&kernel->lock);
    free(kernel); /* modules stay loaded: a captured graph may still refer to them */
}

#define TRY(call) do { if ((status = (call)) != NULL) goto done; } while (0)

static OrtStatus *check_version(int64_t version) {
    char message[200];
    if (version == FORMAT_VERSION || version == CHOICE_FORMAT_VERSION) return NULL;
    snprintf(message, sizeof message, "onnx.superopt: the model is of format %ld, the library reads %d and %d; %s", (long)version,
             FORMAT_VERSION, CHOICE_FORMAT_VERSION,
             version > CHOICE_FORMAT_VERSION ? "install a newer onnx-superopt" : "optimise the model again");
    return CreateStatus(ORT_FAIL, message);
}

static OrtStatus *read_attributes(Kernel *kernel, const Handle *info) {
    OrtStatus *status = NULL;
    Handle *allocator = NULL, *tensor = NULL, *shape = NULL;
    int64_t version = 0;
    size_t size = 0;
    void *data = NULL;
    TRY(KernelInfoGetAttribute_int64(info, "version", &version));
    TRY(check_version(version));
    TRY(KernelInfoGetAttributeArray_int64(info, "plan", NULL, &kernel->plan.length));
    kernel->plan.code = calloc(kernel->plan.length + 1, sizeof(int64_t));
    if (kernel->plan.code == NULL) { status = fail("onnx.superopt: out of memory%s%.0ld", "", 0); goto done; }
    TRY(KernelInfoGetAttributeArray_int64(info, "plan", kernel->plan.code, &kernel->plan.length));
    if (!read_plan(&kernel->plan, version)) { status = fail("onnx.superopt: the node's plan is malformed%s%.0ld", "", 0); goto done; }
    TRY(KernelInfoGetAttribute_string(info, "kernels", NULL, &size));
    kernel->names = calloc(size + 1, 1);
    if (kernel->names == NULL) { status = fail("onnx.superopt: out of memory%s%.0ld", "", 0); goto done; }
    TRY(KernelInfoGetAttribute_string(info, "kernels", kernel->names, &size));
    TRY(GetAllocatorWithDefaultOptions(&allocator));
    TRY(KernelInfoGetAttribute_tensor(info, "images", allocator, &tensor));
    TRY(GetTensorTypeAndShape(tensor, &shape));
    TRY(GetTensorShapeElementCount(shape, &kernel->images_length));
    TRY(GetTensorMutableData(tensor, &data));
    kernel->images = malloc(kernel->images_length + 1); /* PTX is text: it ends with a null */
    if (kernel->images == NULL) { status = fail("onnx.superopt: out of memory%s%.0ld", "", 0); goto done; }
    memcpy(kernel->images, data, kernel->images_length);
    kernel->images[kernel->images_length] = 0;
done:
    if (shape) ReleaseTensorTypeAndShapeInfo(shape);
    if (tensor) ReleaseValue(tensor);
    return status;
}

static OrtStatus *create(const void *op, const OrtApi *api, const Handle *info, void **result) {
    (void)op, (void)api;
    Kernel *kernel = calloc(1, sizeof(Kernel));
    if (kernel == NULL) return fail("onnx.superopt: out of memory%s%.0ld", "", 0);
    pthread_mutex_init(&kernel->lock, NULL);
    OrtStatus *status = read_attributes(kernel, info);
    if (status != NULL) destroy(kernel);
    else *result = kernel;
    return status;
}

static OrtStatus *shape_of(const Handle *info, Shape *shape) {
    size_t rank = 0;
    OrtStatus *status = GetDimensionsCount(info, &rank);
    if (status != NULL) return status;
    if (rank > MAX_RANK) return fail("onnx.superopt: an input of more than %s%ld dimensions", "", MAX_RANK);
    shape->rank = (int)rank;
    return GetDimensions(info, shape->dims, rank);
}

/* What a run needs memory for, in one piece: shapes of inputs, pointers to all tensors, and the values of a launch's parameters. */
typedef struct { void *whole; Shape *shapes; int64_t *values; void **pointers, **arguments; } Room;

static int make_room(const Plan *plan, Room *room) {
    size_t scratches = 0, params = 0;
    for (int v = 0; v < plan->variants; v++) {
        const Variant *variant = &plan->variant[v];
        if ((size_t)variant->scratches > scratches) scratches = (size_t)variant->scratches;
        for (int i = 0; i < variant->launches; i++)
            if ((size_t)variant->launch[i].params > params) params = (size_t)variant->launch[i].params;
    }
    size_t pointers = (size_t)plan->inputs + (size_t)plan->outputs + scratches;
    size_t bytes = (size_t)(plan->inputs + 1) * sizeof(Shape) + (params + 1) * sizeof(int64_t);
    room->whole = calloc(1, bytes + (pointers + params + 1) * sizeof(void *));
    if (room->whole == NULL) return 0;
    room->shapes = room->whole;
    room->values = (int64_t *)(room->shapes + plan->inputs + 1);
    room->pointers = (void **)(room->values + params + 1);
    room->arguments = room->pointers + pointers;
    return 1;
}

static OrtStatus *compute(void *opaque, Handle *context) {
    Kernel *kernel = opaque;
    const Plan *plan = &kernel->plan;
    const Variant *variant = NULL;
    OrtStatus *status = NULL;
    Handle *memory = NULL, *allocator = NULL;
    Room room = {0};
    Shape *shapes = NULL;
    void **inputs = NULL, **outputs = NULL, **scratches = NULL, *stream = NULL;
    const Loaded *here = NULL;
    size_t count = 0;
    int bad = 0, empty = 0, number = 0;
    TRY(KernelContext_GetInputCount(context, &count));
    if (count != (size_t)plan->inputs) { status = fail("onnx.superopt: %s%ld inputs, not what the plan says", "", (long)count); goto done; }
    if (!make_room(plan, &room)) { status = fail("onnx.superopt: out of memory%s%.0ld", "", 0); goto done; }
    shapes = room.shapes;
    inputs = room.pointers;
    outputs = inputs + plan->inputs;
    scratches = outputs + plan->outputs;
    for (int i = 0; i < plan->inputs; i++) {
        const Handle *value = NULL;
        Handle *info = NULL;
        TRY(KernelContext_GetInput(context, (size_t)i, &value));
        TRY(GetTensorTypeAndShape(value, &info));
        status = shape_of(info, &shapes[i]);
        ReleaseTensorTypeAndShapeInfo(info);
        if (status != NULL) goto done;
        TRY(GetTensorMutableData((Handle *)value, &inputs[i]));
    }
    for (int i = 0; i < plan->outputs; i++) {
        int64_t dims[MAX_RANK];
        Handle *value = NULL;
        for (int d = 0; d < plan->output[i].rank; d++) {
            dims[d] = evaluate(plan, plan->output[i].dims[d], shapes, &bad);
            empty |= dims[d] == 0;
            bad |= dims[d] < 0;
        }
        if (bad) break;
        TRY(KernelContext_GetOutput(context, (size_t)i, dims, (size_t)plan->output[i].rank, &value));
        TRY(GetTensorMutableData(value, &outputs[i]));
    }
    if (!bad) number = choose_variant(plan, shapes, &bad);
    if (bad) { status = fail("onnx.superopt: the inputs of kernel %s do not fit its plan%.0ld", kernel->names, 0); goto done; }
    if (empty) goto done;
    variant = &plan->variant[number];
    TRY(loaded_here(kernel, &here));
    const LoadedVariant *loaded = &here->variant[number];
    TRY(KernelContext_GetGPUComputeStream(context, &stream));
    if (variant->scratches > 0) {
        int device = 0;
        cuda.get_device(&device);
        const char *where = strcmp(provider(NULL), "CPUExecutionProvider") == 0 ? "Cpu" : "Cuda";
        TRY(CreateMemoryInfo(where, 0 /* device allocator */, device, 0 /* default */, &memory));
        TRY(KernelContext_GetAllocator(context, memory, &allocator));
    }
    for (int i = 0; i < variant->scratches; i++) {
        int64_t bytes = evaluate(plan, variant->scratch[i], shapes, &bad);
        if (bad || bytes < 0) { status = fail("onnx.superopt: scratch memory of kernel %s has no size%.0ld", kernel->names, 0); goto done; }
        TRY(KernelContext_GetScratchBuffer(context, memory, (size_t)bytes, &scratches[i]));
    }
    for (int i = 0; i < variant->launches; i++) {
        const Launch *launch = &variant->launch[i];
        int64_t *values = room.values, grid[3];
        void **arguments = room.arguments;
        for (int axis = 0; axis < 3; axis++) grid[axis] = evaluate(plan, launch->grid[axis], shapes, &bad);
        for (int p = 0; p < launch->params; p++) {
            const Param *param = &launch->param[p];
            arguments[p] = &values[p];
            switch (param->kind) {
            case INPUT: arguments[p] = &inputs[param->value]; break;
            case OUTPUT: arguments[p] = &outputs[param->value]; break;
            case SCRATCH: arguments[p] = &scratches[param->value]; break;
            case INT32: case INT64: values[p] = evaluate(plan, param->expression, shapes, &bad); break;
            default: values[p] = param->kind == NOTHING ? 0 : param->value;
            }
        }
        char name[256] = "?", where[400];
        kernel_name(kernel, launch->kernel, name, sizeof name);
        snprintf(where, sizeof where, "%s with grid %ld x %ld x %ld and %d threads", name, (long)grid[0], (long)grid[1],
                 (long)grid[2], launch->threads);
        if (bad || grid[0] < 0 || grid[1] < 0 || grid[2] < 0 || grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535) {
            status = fail("onnx.superopt: the launch of kernel %s is impossible%.0ld", where, 0);
            goto done;
        }
        if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) continue;
        LaunchAttribute overlapped = {.id = PROGRAMMATIC_STREAM_SERIALIZATION, .value.flag = 1};
        LaunchConfig config = {{(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]}, {(unsigned)launch->threads, 1, 1},
                               (unsigned)loaded->launch[i].shared, stream, &overlapped, loaded->overlaps ? 1 : 0};
        CUresult result = cuda.launch(&config, loaded->launch[i].function, arguments, NULL);
        if (result != 0) { status = cuda_fail("the launch", where, result); goto done; }
    }
done:
    for (int i = 0; allocator && i < variant->scratches; i++) /* back to the arena, which gives it to later work of the stream only */
        if (scratches[i]) AllocatorFree(allocator, scratches[i]);
    if (allocator) ReleaseAllocator(allocator);
    if (memory) ReleaseMemoryInfo(memory);
    free(room.whole);
    return status;
}

static OrtStatus *infer(const void *op, Handle *context) {
    (void)op;
    OrtStatus *status = NULL;
    const Handle *attribute = NULL;
    Plan *plan = calloc(1, sizeof(Plan));
    Shape *shapes = NULL;
    size_t bytes = 0, count = 0;
    int64_t version = 0;
    int bad = 0;
    if (plan == NULL) return fail("onnx.superopt: out of memory%s%.0ld", "", 0);
    TRY(ShapeInferContext_GetAttribute(context, "version", &attribute));
    TRY(ReadOpAttr(attribute, ATTRIBUTE_INT, &version, sizeof version, &bytes));
    TRY(check_version(version));
    TRY(ShapeInferContext_GetAttribute(context, "plan", &attribute));
    status = ReadOpAttr(attribute, ATTRIBUTE_INTS, NULL, 0, &bytes); /* says how much there is by failing */
    if (status != NULL) { ReleaseStatus(status); status = NULL; }
    plan->code = calloc(bytes / sizeof(int64_t) + 1, sizeof(int64_t));
    if (plan->code == NULL) { status = fail("onnx.superopt: out of memory%s%.0ld", "", 0); goto done; }
    TRY(ReadOpAttr(attribute, ATTRIBUTE_INTS, plan->code, bytes, &bytes));
    plan->length = bytes / sizeof(int64_t);
    if (!read_plan(plan, version)) { status = fail("onnx.superopt: the node's plan is malformed%s%.0ld", "", 0); goto done; }
    TRY(ShapeInferContext_GetInputCount(context, &count));
    if (count != (size_t)plan->inputs) { status = fail("onnx.superopt: %s%ld inputs, not what the plan says", "", (long)count); goto done; }
    shapes = calloc(count + 1, sizeof(Shape));
    if (shapes == NULL) { status = fail("onnx.superopt: out of memory%s%.0ld", "", 0); goto done; }
    for (int i = 0; i < plan->inputs; i++) {
        Handle *info = NULL;
        TRY(ShapeInferContext_GetInputTypeShape(context, (size_t)i, &info));
        TRY(shape_of(info, &shapes[i]));
    }
    for (int i = 0; i < plan->outputs; i++) {
        int64_t dims[MAX_RANK];
        Handle *info = NULL;
        for (int d = 0; d < plan->output[i].rank; d++) dims[d] = evaluate(plan, plan->output[i].dims[d], shapes, &bad);
        if (bad) { status = fail("onnx.superopt: the inputs do not fit the plan%s%.0ld", "", 0); goto done; }
        TRY(CreateTensorTypeAndShapeInfo(&info));
        status = SetTensorElementType(info, plan->output[i].type);
        if (status == NULL) status = SetDimensions(info, dims, (size_t)plan->output[i].rank);
        if (status == NULL) status = ShapeInferContext_SetOutputTypeShape(context, (size_t)i, info);
        ReleaseTensorTypeAndShapeInfo(info);
        if (status != NULL) goto done;
    }
done:
    free(shapes);
    free_plan(plan);
    free(plan);
    return status;
}

static const char *name(const void *op) { (void)op; return "Kernel"; }

static int any_type(const void *op, size_t index) { (void)op, (void)index; return 0; }
static size_t one(const void *op) { (void)op; return 1; }
static int variadic(const void *op, size_t index) { (void)op, (void)index; return CHARACTERISTIC_VARIADIC; }
static int default_memory(const void *op, size_t index) { (void)op, (void)index; return 0; }
static int at_least_one(const void *op) { (void)op; return 1; }
static int mixed(const void *op) { (void)op; return 0; }
static int first_version(const void *op) { (void)op; return 1; }
static int last_version(const void *op) { (void)op; return INT32_MAX; }

static const CustomOp kernel_op = {
    .version = CUSTOM_OP_VERSION,
    .get_name = name,
    .get_provider = provider,
    .get_input_type = any_type,
    .get_input_type_count = one,
    .get_output_type = any_type,
    .get_output_type_count = one,
    .destroy = destroy,
    .get_input_characteristic = variadic,
    .get_output_characteristic = variadic,
    .get_input_memory_type = default_memory,
    .get_variadic_input_min = at_least_one,
    .get_variadic_input_homogeneity = mixed,
    .get_variadic_output_min = at_least_one,
    .get_variadic_output_homogeneity = mixed,
    .create = create,
    .compute = compute,
    .infer = infer,
    .get_start_version = first_version,
    .get_end_version = last_version,
};

EXPORT OrtStatus *RegisterCustomOps(Handle *options, const OrtApiBase *base) {
    static Handle *domain;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    OrtStatus *status = NULL;
    char message[512];
    const OrtApi *api = base->get_api(ORT_API_VERSION);
    if (api == NULL) return NULL; /* older than the interface: its own loader says so */
    pthread_mutex_lock(&lock);
    ort = api;
    if (domain == NULL) {
        if (cuda.library == NULL && !open_driver(message, sizeof message)) status = CreateStatus(ORT_FAIL, message);
        if (status == NULL) status = CreateCustomOpDomain("onnx.superopt", &domain);
        if (status == NULL) status = CustomOpDomain_Add(domain, &kernel_op);
    }
    if (status == NULL) status = AddCustomOpDomain(options, domain);
    pthread_mutex_unlock(&lock);
    return status;
}

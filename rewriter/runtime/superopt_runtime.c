/* The run-time library of custom kernels: operators of domain onnx.superopt for stock onnxruntime.
 *
 * A node carries compiled kernels and a plan: what its outputs look like and which kernels to launch with which arguments.
 * Those of operator Kernel are cubins and PTX, which the library loads through the CUDA driver, once per context, and launches
 * on onnxruntime's stream. Those of operator CpuKernel are shared objects, which it opens when the session is created, once a
 * process, and runs on onnxruntime's threads. It needs neither CUDA's nor onnxruntime's headers: both are reached through stable
 * binary interfaces, the driver's by dlopen and onnxruntime's through its table of functions, whose slots never move.
 *
 * An operator is registered only where it can run: without a CUDA driver there is no Kernel, on a processor older than x86-64-v3
 * there is no CpuKernel, and onnxruntime runs the plain body that the model has for each node.
 *
 * Attributes of a node Kernel:
 *   version   int     2, or 3 where the sizes of the inputs choose among variants; the library refuses others by name
 *   images    uint8   tensor of entries: architecture, kind (bit 0: PTX, no cubin; bit 1: the kernels wait for the launch before
 *                     them; from bit 2: the variant), number of kernels, length and each kernel's dynamic shared memory as
 *                     little-endian int32, then the bytes, up to a multiple of 8
 *   kernels   string  names of the kernels, one a line
 *   plan      ints    outputs, the choice, scratch buffers and launches, see read_plan
 * Attributes of a node CpuKernel:
 *   version   int     1
 *   images    uint8   tensor of entries: the features that a processor must have (see FEATURE), the variant, length, and zero
 *                     as little-endian int32, then the bytes of a shared object, up to a multiple of 8
 *   kernels   string  names of the functions, one a line
 *   plan      ints    CRC-32 of what follows and of the other attributes, then as above with what is packed once, see read_plan
 */
#define _GNU_SOURCE /* memfd_create */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined __x86_64__
#include <cpuid.h>
#endif
#if defined __linux__
#include <sys/syscall.h>
#endif

#define FORMAT_VERSION 2
#define CHOICE_FORMAT_VERSION 3
#define CPU_FORMAT_VERSION 1
#define EXPORT __attribute__((visibility("default")))
#define MAX_RANK 16
#define MAX_VARIANTS 8
#define MAX_PACKED_SIZES 16
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
#define HasSessionConfigEntry SLOT(237, OrtStatus *, const Handle *, const char *, int *)
#define GetSessionConfigEntry SLOT(238, OrtStatus *, const Handle *, const char *, char *, size_t *)
#define KernelInfoGetConstantInput_tensor SLOT(249, OrtStatus *, const Handle *, size_t, int *, const Handle **)
#define KernelContext_ParallelFor SLOT(274, OrtStatus *, const Handle *, void (*)(void *, size_t), size_t, size_t, void *)
#define GetAllocatorWithDefaultOptions SLOT(78, OrtStatus *, Handle **)
#define ShapeInferContext_GetInputCount SLOT(267, OrtStatus *, const Handle *, size_t *)
#define ShapeInferContext_GetInputTypeShape SLOT(268, OrtStatus *, const Handle *, size_t, Handle **)
#define ShapeInferContext_GetAttribute SLOT(269, OrtStatus *, const Handle *, const char *, const Handle **)
#define ShapeInferContext_SetOutputTypeShape SLOT(270, OrtStatus *, const Handle *, size_t, const Handle *)
#define SetSymbolicDimensions SLOT(271, OrtStatus *, const Handle *, const char *const *, size_t)
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

/* ---- plans ------------------------------------------------------------------------------------------------------- */

enum { CONSTANT, DIMENSION, ADD, SUBTRACT, MULTIPLY, CEIL_DIVIDE, FLOOR_DIVIDE, MINIMUM, MAXIMUM };
enum { INPUT, OUTPUT, SCRATCH, INT32, INT64, FLOAT32, NOTHING, PACKED };

typedef struct { int start, length; } Expression; /* within the plan: a postfix program over the inputs' dimensions */
typedef struct { int kind; int64_t value; Expression expression; } Param;
typedef struct { int kernel, threads; Expression grid[3]; int params; Param *param; } Launch;
typedef struct { int type, rank; Expression dims[MAX_RANK]; } Output;

typedef struct { int scratches, launches; Expression *scratch; Launch *launch; } Variant;
typedef struct { int input, kernel, sizes; Expression bytes, size[MAX_PACKED_SIZES]; } Packing;

typedef struct {
    int64_t *code;
    size_t length;
    int inputs, outputs, variants, packings;
    Output *output;
    Packing *packing; /* of a CpuKernel: weights in the order in which its functions read them */
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
            param->kind = (int)within(reader, INPUT, PACKED);
            switch (param->kind) {
            case INPUT: param->value = within(reader, 0, plan->inputs - 1); break;
            case OUTPUT: param->value = within(reader, 0, plan->outputs - 1); break;
            case SCRATCH: param->value = within(reader, 0, variant->scratches - 1); break;
            case PACKED: param->value = within(reader, 0, plan->packings - 1); break;
            case FLOAT32: param->value = next(reader); break;
            case INT32: case INT64: param->expression = read_expression(reader); break;
            }
        }
    }
}

typedef enum { ONE_VARIANT, SEVERAL_VARIANTS, CPU_PLAN } PlanForm;

/* inputs; outputs, each: element type, rank, dimensions; in format 3 the number of variants, the measure that chooses among them
 * and the limits between them, ascending: the first variant runs up to the first limit, the last one beyond the last; then each
 * variant. Of a CpuKernel a checksum stands before all that, and before the variants, whose number is always told, what is packed
 * once, each: input, function, bytes, then the sizes that the function is told. */
static int read_plan(Plan *plan, PlanForm form) {
    Reader reader = {plan->code, plan->length, 0, 0};
    if (form == CPU_PLAN) next(&reader);
    plan->inputs = (int)within(&reader, 0, MAX_INPUTS);
    plan->outputs = count_of(&reader, 1);
    plan->output = array_of(&reader, plan->outputs, sizeof(Output));
    for (int i = 0; i < plan->outputs && !reader.bad; i++) {
        plan->output[i].type = (int)within(&reader, 1, 32);
        plan->output[i].rank = (int)within(&reader, 0, MAX_RANK);
        for (int d = 0; d < plan->output[i].rank; d++) plan->output[i].dims[d] = read_expression(&reader);
    }
    plan->variants = form == ONE_VARIANT ? 1 : (int)within(&reader, form == CPU_PLAN ? 1 : 2, MAX_VARIANTS);
    if (plan->variants > 1) {
        plan->measure = read_expression(&reader);
        for (int i = 0; i < plan->variants - 1; i++)
            plan->limit[i] = within(&reader, i == 0 ? 0 : plan->limit[i - 1] + 1, INT64_MAX - 1);
    }
    plan->packings = form == CPU_PLAN ? count_of(&reader, 0) : 0;
    plan->packing = array_of(&reader, plan->packings, sizeof(Packing));
    for (int i = 0; i < plan->packings && !reader.bad; i++) {
        Packing *packing = &plan->packing[i];
        packing->input = (int)within(&reader, 0, plan->inputs - 1);
        packing->kernel = (int)within(&reader, 0, INT32_MAX);
        packing->bytes = read_expression(&reader);
        packing->sizes = (int)within(&reader, 0, MAX_PACKED_SIZES);
        for (int d = 0; d < packing->sizes; d++) packing->size[d] = read_expression(&reader);
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
    free(plan->packing);
    free(plan->output);
    free(plan->code);
}

typedef struct { int rank; int64_t dims[MAX_RANK]; } Shape;

/* The value of an expression; -1 where it depends on a dimension that is not known yet, and *bad where it has no value. */
static int64_t evaluate(const Plan *plan, Expression expression, const Shape *shapes, int *bad) {
    int64_t stack[64];
    int top = 0, unknown = 0, overflows = 0;
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
        case ADD: overflows = __builtin_add_overflow(a, b, &a); break;
        case SUBTRACT: overflows = __builtin_sub_overflow(a, b, &a); break;
        case MULTIPLY: overflows = __builtin_mul_overflow(a, b, &a); break;
        case CEIL_DIVIDE: case FLOOR_DIVIDE:
            if (b <= 0 && !unknown) { *bad = 1; return -1; }
            if (!unknown) a = operation == CEIL_DIVIDE && a > 0 ? (a - 1) / b + 1 : a / b;
            break;
        case MINIMUM: a = a < b ? a : b; break;
        case MAXIMUM: a = a > b ? a : b; break;
        default: *bad = 1; return -1;
        }
        if (overflows && !unknown) { *bad = 1; return -1; }
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

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

typedef struct {
    Plan plan;
    unsigned char *images;
    size_t images_length;
    char *names; /* one a line */
    char title[128]; /* the first of them, which messages call the node's kernel */
} Node;

static OrtStatus *fail(const char *format, const char *detail, long number) {
    char message[512];
    snprintf(message, sizeof message, format, detail, number);
    return CreateStatus(ORT_FAIL, message);
}

static int32_t read_int32(const unsigned char *bytes) {
    return (int32_t)((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24);
}

static const char *kernel_name(const Node *node, int index, char *into, size_t size) {
    const char *line = node->names;
    while (index-- > 0 && line != NULL) line = (line = strchr(line, '\n')) ? line + 1 : NULL;
    if (line == NULL || *line == 0) return NULL;
    size_t length = strcspn(line, "\n");
    if (length >= size) return NULL;
    memcpy(into, line, length);
    into[length] = 0;
    return into;
}

#define TRY(call) do { if ((status = (call)) != NULL) goto done; } while (0)

static OrtStatus *no_memory(void) { return CreateStatus(ORT_FAIL, "onnx.superopt: out of memory"); }

static OrtStatus *malformed(void) { return CreateStatus(ORT_FAIL, "onnx.superopt: the node's plan is malformed"); }

/* The form of the plan of a version of Kernel or CpuKernel. */
static OrtStatus *form_of(int64_t version, int on_cpu, PlanForm *form) {
    char message[200];
    *form = on_cpu ? CPU_PLAN : version == FORMAT_VERSION ? ONE_VARIANT : SEVERAL_VARIANTS;
    int64_t newest = on_cpu ? CPU_FORMAT_VERSION : CHOICE_FORMAT_VERSION;
    if (version == newest || (!on_cpu && version == FORMAT_VERSION)) return NULL;
    snprintf(message, sizeof message, "onnx.superopt: the model is of format %ld, the library reads %s; %s", (long)version,
             on_cpu ? "1 of kernels for processors" : "2 and 3",
             version > newest ? "install a newer onnx-superopt" : "optimise the model again");
    return CreateStatus(ORT_FAIL, message);
}

static void free_node(Node *node) {
    free_plan(&node->plan);
    free(node->images);
    free(node->names);
}

static OrtStatus *read_node(Node *node, const Handle *info, int on_cpu) {
    OrtStatus *status = NULL;
    Handle *allocator = NULL, *tensor = NULL, *shape = NULL;
    int64_t version = 0;
    size_t size = 0;
    void *data = NULL;
    PlanForm form;
    TRY(KernelInfoGetAttribute_int64(info, "version", &version));
    TRY(form_of(version, on_cpu, &form));
    TRY(KernelInfoGetAttributeArray_int64(info, "plan", NULL, &node->plan.length));
    node->plan.code = calloc(node->plan.length + 1, sizeof(int64_t));
    if (node->plan.code == NULL) { status = no_memory(); goto done; }
    TRY(KernelInfoGetAttributeArray_int64(info, "plan", node->plan.code, &node->plan.length));
    if (!read_plan(&node->plan, form)) { status = malformed(); goto done; }
    TRY(KernelInfoGetAttribute_string(info, "kernels", NULL, &size));
    node->names = calloc(size + 1, 1);
    if (node->names == NULL) { status = no_memory(); goto done; }
    TRY(KernelInfoGetAttribute_string(info, "kernels", node->names, &size));
    snprintf(node->title, sizeof node->title, "%.*s", (int)strcspn(node->names, "\n"), node->names);
    TRY(GetAllocatorWithDefaultOptions(&allocator));
    TRY(KernelInfoGetAttribute_tensor(info, "images", allocator, &tensor));
    TRY(GetTensorTypeAndShape(tensor, &shape));
    TRY(GetTensorShapeElementCount(shape, &node->images_length));
    TRY(GetTensorMutableData(tensor, &data));
    node->images = malloc(node->images_length + 1); /* PTX is text: it ends with a null */
    if (node->images == NULL) { status = no_memory(); goto done; }
    memcpy(node->images, data, node->images_length);
    node->images[node->images_length] = 0;
done:
    if (shape) ReleaseTensorTypeAndShapeInfo(shape);
    if (tensor) ReleaseValue(tensor);
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

static OrtStatus *shape_of_value(const Handle *value, Shape *shape) {
    Handle *info = NULL;
    OrtStatus *status = GetTensorTypeAndShape(value, &info);
    if (status != NULL) return status;
    status = shape_of(info, shape);
    ReleaseTensorTypeAndShapeInfo(info);
    return status;
}

/* A run of a node: the shapes of its inputs, pointers to all tensors, and the values of a launch's parameters, in one piece of
 * memory; the variant for these sizes, which is null where there is nothing to do. */
typedef struct {
    void *whole;
    Shape *shapes;
    int64_t *values;
    void **inputs, **outputs, **scratches, **arguments;
    const Variant *variant;
    int number;
    Handle *allocator; /* of the scratch buffers */
} Run;

static int make_room(const Plan *plan, Run *run) {
    size_t scratches = 0, params = 0;
    for (int v = 0; v < plan->variants; v++) {
        const Variant *variant = &plan->variant[v];
        if ((size_t)variant->scratches > scratches) scratches = (size_t)variant->scratches;
        for (int i = 0; i < variant->launches; i++)
            if ((size_t)variant->launch[i].params > params) params = (size_t)variant->launch[i].params;
    }
    size_t pointers = (size_t)plan->inputs + (size_t)plan->outputs + scratches;
    size_t bytes = (size_t)(plan->inputs + 1) * sizeof(Shape) + (params + 1) * sizeof(int64_t);
    run->whole = calloc(1, bytes + (pointers + params + 1) * sizeof(void *));
    if (run->whole == NULL) return 0;
    run->shapes = run->whole;
    run->values = (int64_t *)(run->shapes + plan->inputs + 1);
    run->inputs = (void **)(run->values + params + 1);
    run->outputs = run->inputs + plan->inputs;
    run->scratches = run->outputs + plan->outputs;
    run->arguments = run->inputs + pointers;
    return 1;
}

/* Reads the inputs, makes the outputs and chooses the variant. */
static OrtStatus *begin_run(const Node *node, Handle *context, Run *run) {
    const Plan *plan = &node->plan;
    OrtStatus *status = NULL;
    size_t count = 0;
    int bad = 0, empty = 0;
    TRY(KernelContext_GetInputCount(context, &count));
    if (count != (size_t)plan->inputs) { status = fail("onnx.superopt: %s%ld inputs, not what the plan says", "", (long)count); goto done; }
    if (!make_room(plan, run)) { status = no_memory(); goto done; }
    for (int i = 0; i < plan->inputs; i++) {
        const Handle *value = NULL;
        TRY(KernelContext_GetInput(context, (size_t)i, &value));
        TRY(shape_of_value(value, &run->shapes[i]));
        TRY(GetTensorMutableData((Handle *)value, &run->inputs[i]));
    }
    for (int i = 0; i < plan->outputs && !bad; i++) {
        int64_t dims[MAX_RANK];
        Handle *value = NULL;
        for (int d = 0; d < plan->output[i].rank; d++) {
            dims[d] = evaluate(plan, plan->output[i].dims[d], run->shapes, &bad);
            empty |= dims[d] == 0;
            bad |= dims[d] < 0;
        }
        if (bad) break;
        TRY(KernelContext_GetOutput(context, (size_t)i, dims, (size_t)plan->output[i].rank, &value));
        TRY(GetTensorMutableData(value, &run->outputs[i]));
    }
    if (!bad) run->number = choose_variant(plan, run->shapes, &bad);
    if (bad) { status = fail("onnx.superopt: the inputs of kernel %s do not fit its plan%.0ld", node->title, 0); goto done; }
    if (!empty) run->variant = &plan->variant[run->number];
done:
    return status;
}

static OrtStatus *take_scratch(const Node *node, Handle *context, const Handle *memory, Run *run) {
    OrtStatus *status = NULL;
    int bad = 0;
    if (run->variant->scratches > 0) TRY(KernelContext_GetAllocator(context, memory, &run->allocator));
    for (int i = 0; i < run->variant->scratches; i++) {
        int64_t bytes = evaluate(&node->plan, run->variant->scratch[i], run->shapes, &bad);
        if (bad || bytes < 0) { status = fail("onnx.superopt: scratch memory of kernel %s has no size%.0ld", node->title, 0); goto done; }
        TRY(KernelContext_GetScratchBuffer(context, memory, (size_t)bytes, &run->scratches[i]));
    }
done:
    return status;
}

/* The grid and the parameters of a launch; 0 where they have no value. */
static int fill_launch(const Node *node, const Launch *launch, void **packed, Run *run, int64_t grid[3]) {
    int bad = 0;
    for (int axis = 0; axis < 3; axis++) grid[axis] = evaluate(&node->plan, launch->grid[axis], run->shapes, &bad);
    for (int p = 0; p < launch->params; p++) {
        const Param *param = &launch->param[p];
        run->arguments[p] = &run->values[p];
        switch (param->kind) {
        case INPUT: run->arguments[p] = &run->inputs[param->value]; break;
        case OUTPUT: run->arguments[p] = &run->outputs[param->value]; break;
        case SCRATCH: run->arguments[p] = &run->scratches[param->value]; break;
        case PACKED: run->arguments[p] = &packed[param->value]; break;
        case INT32: case INT64: run->values[p] = evaluate(&node->plan, param->expression, run->shapes, &bad); break;
        default: run->values[p] = param->kind == NOTHING ? 0 : param->value;
        }
    }
    return !bad && grid[0] >= 0 && grid[1] >= 0 && grid[2] >= 0;
}

/* What messages call a launch. */
static const char *describe(const Node *node, const Launch *launch, const int64_t grid[3], char *into, size_t size) {
    char name[256] = "?";
    kernel_name(node, launch->kernel, name, sizeof name);
    snprintf(into, size, "%s with grid %ld x %ld x %ld and %d threads", name, (long)grid[0], (long)grid[1], (long)grid[2],
             launch->threads);
    return into;
}

static void end_run(Run *run) {
    for (int i = 0; run->allocator && i < run->variant->scratches; i++) /* back to the arena, which gives it to later work only */
        if (run->scratches[i]) AllocatorFree(run->allocator, run->scratches[i]);
    if (run->allocator) ReleaseAllocator(run->allocator);
    free(run->whole);
}

/* ---- kernels on GPUs --------------------------------------------------------------------------------------------- */

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

/* ---- kernels on processors --------------------------------------------------------------------------------------- */

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
    int64_t bytes = evaluate(plan, packing->bytes, shapes, &bad);
    for (int i = 0; i < packing->sizes; i++) sizes[i] = evaluate(plan, packing->size[i], shapes, &bad);
    if (bad || bytes < 0) { status = fail("onnx.superopt: what %s packs has no size%.0ld", name, 0); goto done; }
    for (int v = 0; v < plan->variants && function == NULL; v++)
        *(void **)&function = dlsym(kernel->opened[v].object->handle, name);
    if (function == NULL) { status = fail("onnx.superopt: the object has no function %s%.0ld", name, 0); goto done; }
    if (posix_memalign(packed, 64, (size_t)bytes + 64) != 0) { *packed = NULL; status = no_memory(); goto done; }
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

/* ---- the operators ----------------------------------------------------------------------------------------------- */

static const CustomOp cpu_op;

static OrtStatus *infer(const void *op, Handle *context) {
    OrtStatus *status = NULL;
    const Handle *attribute = NULL;
    Plan *plan = calloc(1, sizeof(Plan));
    Shape *shapes = NULL;
    size_t bytes = 0, count = 0;
    int64_t version = 0;
    int bad = 0;
    PlanForm form;
    if (plan == NULL) return no_memory();
    TRY(ShapeInferContext_GetAttribute(context, "version", &attribute));
    TRY(ReadOpAttr(attribute, ATTRIBUTE_INT, &version, sizeof version, &bytes));
    TRY(form_of(version, op == &cpu_op, &form));
    TRY(ShapeInferContext_GetAttribute(context, "plan", &attribute));
    status = ReadOpAttr(attribute, ATTRIBUTE_INTS, NULL, 0, &bytes); /* says how much there is by failing */
    if (status != NULL) { ReleaseStatus(status); status = NULL; }
    plan->code = calloc(bytes / sizeof(int64_t) + 1, sizeof(int64_t));
    if (plan->code == NULL) { status = no_memory(); goto done; }
    TRY(ReadOpAttr(attribute, ATTRIBUTE_INTS, plan->code, bytes, &bytes));
    plan->length = bytes / sizeof(int64_t);
    if (!read_plan(plan, form)) { status = malformed(); goto done; }
    TRY(ShapeInferContext_GetInputCount(context, &count));
    if (count != (size_t)plan->inputs) { status = fail("onnx.superopt: %s%ld inputs, not what the plan says", "", (long)count); goto done; }
    shapes = calloc(count + 1, sizeof(Shape));
    if (shapes == NULL) { status = no_memory(); goto done; }
    for (int i = 0; i < plan->inputs; i++) {
        Handle *info = NULL;
        TRY(ShapeInferContext_GetInputTypeShape(context, (size_t)i, &info));
        TRY(shape_of(info, &shapes[i]));
    }
    for (int i = 0; i < plan->outputs; i++) {
        static _Atomic unsigned unknown; /* no two sizes that nobody knows are said to be equal */
        int64_t dims[MAX_RANK];
        char names[MAX_RANK][32];
        const char *symbols[MAX_RANK];
        Handle *info = NULL;
        for (int d = 0; d < plan->output[i].rank; d++) {
            dims[d] = evaluate(plan, plan->output[i].dims[d], shapes, &bad);
            symbols[d] = names[d];
            if (dims[d] < 0) snprintf(names[d], sizeof names[d], "onnx.superopt.%u", unknown++);
            else names[d][0] = 0;
        }
        if (bad) { status = fail("onnx.superopt: the inputs do not fit the plan%s%.0ld", "", 0); goto done; }
        TRY(CreateTensorTypeAndShapeInfo(&info));
        status = SetTensorElementType(info, plan->output[i].type);
        if (status == NULL) status = SetDimensions(info, dims, (size_t)plan->output[i].rank);
        if (status == NULL) status = SetSymbolicDimensions(info, symbols, (size_t)plan->output[i].rank);
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

static const char *name(const void *op) { return op == &cpu_op ? "CpuKernel" : "Kernel"; }
static const char *cpu_provider(const void *op) { (void)op; return "CPUExecutionProvider"; }

static int any_type(const void *op, size_t index) { (void)op, (void)index; return 0; }
static size_t one(const void *op) { (void)op; return 1; }
static int variadic(const void *op, size_t index) { (void)op, (void)index; return CHARACTERISTIC_VARIADIC; }
static int default_memory(const void *op, size_t index) { (void)op, (void)index; return 0; }
static int at_least_one(const void *op) { (void)op; return 1; }
static int mixed(const void *op) { (void)op; return 0; }
static int first_version(const void *op) { (void)op; return 1; }
static int last_version(const void *op) { (void)op; return INT32_MAX; }

#define OPERATOR(provider_of, create_with, destroy_with, compute_with) { \
    .version = CUSTOM_OP_VERSION, \
    .get_name = name, \
    .get_provider = provider_of, \
    .get_input_type = any_type, \
    .get_input_type_count = one, \
    .get_output_type = any_type, \
    .get_output_type_count = one, \
    .destroy = destroy_with, \
    .get_input_characteristic = variadic, \
    .get_output_characteristic = variadic, \
    .get_input_memory_type = default_memory, \
    .get_variadic_input_min = at_least_one, \
    .get_variadic_input_homogeneity = mixed, \
    .get_variadic_output_min = at_least_one, \
    .get_variadic_output_homogeneity = mixed, \
    .create = create_with, \
    .compute = compute_with, \
    .infer = infer, \
    .get_start_version = first_version, \
    .get_end_version = last_version, \
}

static const CustomOp kernel_op = OPERATOR(provider, create, destroy, compute);
static const CustomOp cpu_op = OPERATOR(cpu_provider, create_on_cpu, destroy_on_cpu, compute_on_cpu);

/* Whether these options are of a session on the CPU alone, in which operator Kernel is left to its body. */
static OrtStatus *is_cpu_session(const Handle *options, int *answer) {
    static const char key[] = "onnx_superopt.provider";
    char value[16] = "";
    size_t size = sizeof value;
    int there = 0;
    OrtStatus *status = HasSessionConfigEntry(options, key, &there);
    if (status == NULL && there) status = GetSessionConfigEntry(options, key, value, &size);
    *answer = strcmp(value, "cpu") == 0;
    return status;
}

EXPORT OrtStatus *RegisterCustomOps(Handle *options, const OrtApiBase *base) {
    static Handle *domains[2]; /* for sessions on the CPU alone, and for others */
    static GpuState gpu;
    static char message[512];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    OrtStatus *status = NULL;
    int on_cpu_only = 0;
    const OrtApi *api = base->get_api(ORT_API_VERSION);
    if (api == NULL) { /* what a status is made by has been in the table from the first version on */
        ort = base->get_api(1);
        return ort == NULL ? NULL : CreateStatus(ORT_FAIL, "onnx.superopt: this onnxruntime is older than 1.18; install a newer one");
    }
    pthread_mutex_lock(&lock);
    ort = api;
    if (processor.count == 0) ask_processor();
    TRY(is_cpu_session(options, &on_cpu_only));
    if (!on_cpu_only && gpu == GPU_UNKNOWN) gpu = open_driver(message, sizeof message);
    int with_cpu = processor.features != 0, with_gpu = !on_cpu_only && gpu == GPU_READY;
    if (!on_cpu_only && gpu == GPU_BROKEN) {
        gpu = GPU_UNKNOWN; /* it may have started the next time */
        status = CreateStatus(ORT_FAIL, message);
        goto done;
    }
    if (!with_cpu && !with_gpu) {
        if (!on_cpu_only)
            status = fail("%s, and this processor is older than x86-64-v3; run the model without the library%.0ld", message, 0);
        goto done;
    }
    Handle **domain = &domains[with_gpu];
    if (*domain == NULL) {
        TRY(CreateCustomOpDomain("onnx.superopt", domain));
        if (with_gpu) TRY(CustomOpDomain_Add(*domain, &kernel_op));
        if (with_cpu) TRY(CustomOpDomain_Add(*domain, &cpu_op));
    }
    TRY(AddCustomOpDomain(options, *domain));
done:
    pthread_mutex_unlock(&lock);
    return status;
}

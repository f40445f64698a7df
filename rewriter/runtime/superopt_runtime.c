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
 *   version   int     2, or 3 where the sizes of the inputs choose among variants, or 4 where launches compare buffers; the
 *                     library refuses others by name
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
#include "gpu_kernels.h"
#include "cpu_kernels.h"

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
        /* onnxruntime tells a tensor whose rank it does not know as it tells a scalar; a run knows which it is */
        if (shapes[i].rank == 0) shapes[i].rank = UNKNOWN_RANK;
    }
    for (int i = 0; i < plan->outputs; i++) {
        static _Atomic unsigned unknown; /* no two sizes that nobody knows are said to be equal */
        int64_t dims[MAX_RANK];
        char names[MAX_RANK][32];
        const char *symbols[MAX_RANK];
        Handle *info = NULL;
        for (int d = 0; d < plan->output[i].rank; d++) {
            dims[d] = evaluate(plan, plan->output[i].dims[d], shapes, NULL, &bad);
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

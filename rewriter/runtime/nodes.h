/* Of superopt_runtime.c: nodes: their attributes, the shapes of their inputs, and what a run of one holds. */
#pragma once
#include "plans.h"

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
    *form = on_cpu ? CPU_PLAN : version == FORMAT_VERSION ? ONE_VARIANT : version == CHOICE_FORMAT_VERSION ? SEVERAL_VARIANTS : ANY_VARIANTS;
    int64_t oldest = on_cpu ? CPU_FORMAT_VERSION : FORMAT_VERSION, newest = on_cpu ? CPU_FORMAT_VERSION : BUFFER_FORMAT_VERSION;
    if (version >= oldest && version <= newest) return NULL;
    snprintf(message, sizeof message, "onnx.superopt: the model is of format %ld, the library reads %s; %s", (long)version,
             on_cpu ? "1 of kernels for processors" : "2, 3 and 4",
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

/* A run of a node: the shapes of its inputs, pointers to all tensors (outputs behind inputs), and the values of a launch's parameters, in one piece of
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
            dims[d] = evaluate(plan, plan->output[i].dims[d], run->shapes, NULL, &bad);
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
        int64_t bytes = evaluate(&node->plan, run->variant->scratch[i], run->shapes, NULL, &bad);
        if (bad || bytes < 0) { status = fail("onnx.superopt: scratch memory of kernel %s has no size%.0ld", node->title, 0); goto done; }
        TRY(KernelContext_GetScratchBuffer(context, memory, (size_t)bytes, &run->scratches[i]));
    }
done:
    return status;
}

/* The grid and the parameters of a launch; 0 where they have no value. */
static int fill_launch(const Node *node, const Launch *launch, void **packed, Run *run, int64_t grid[3]) {
    int bad = 0;
    for (int axis = 0; axis < 3; axis++) grid[axis] = evaluate(&node->plan, launch->grid[axis], run->shapes, run->inputs, &bad);
    for (int p = 0; p < launch->params; p++) {
        const Param *param = &launch->param[p];
        run->arguments[p] = &run->values[p];
        switch (param->kind) {
        case INPUT: run->arguments[p] = &run->inputs[param->value]; break;
        case OUTPUT: run->arguments[p] = &run->outputs[param->value]; break;
        case SCRATCH: run->arguments[p] = &run->scratches[param->value]; break;
        case PACKED: run->arguments[p] = &packed[param->value]; break;
        case INT32: case INT64: run->values[p] = evaluate(&node->plan, param->expression, run->shapes, run->inputs, &bad); break;
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

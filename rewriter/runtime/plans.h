/* Of superopt_runtime.c: plans of nodes: how they are read, and their expressions. */
#pragma once
#include "onnxruntime_slots.h"

enum { CONSTANT, DIMENSION, ADD, SUBTRACT, MULTIPLY, CEIL_DIVIDE, FLOOR_DIVIDE, MINIMUM, MAXIMUM, APART };
enum { INPUT, OUTPUT, SCRATCH, INT32, INT64, FLOAT32, NOTHING, PACKED };

typedef struct { int start, length; } Expression; /* within the plan: a postfix program over the inputs' dimensions and buffers */
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

typedef enum { ONE_VARIANT, SEVERAL_VARIANTS, ANY_VARIANTS, CPU_PLAN } PlanForm;

/* inputs; outputs, each: element type, rank, dimensions; in formats 3 and 4 the number of variants and, of several, the measure
 * that chooses among them and the limits between them, ascending: the first variant runs up to the first limit, the last one beyond
 * the last; then each variant. Of a CpuKernel a checksum stands before all that, and before the variants, whose number is told,
 * what is packed once, each: input, function, bytes, then the sizes that the function is told. */
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
    plan->variants = form == ONE_VARIANT ? 1 : (int)within(&reader, form == SEVERAL_VARIANTS ? 2 : 1, MAX_VARIANTS);
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

enum { UNKNOWN_RANK = -1 };
typedef struct { int rank; int64_t dims[MAX_RANK]; } Shape;

/* The value of an expression; -1 where it depends on a dimension that is not known yet, and *bad where it has no value, as one that
 * compares buffers has none where there are none yet: "buffers" is null, else all inputs and then all outputs. */
static int64_t evaluate(const Plan *plan, Expression expression, const Shape *shapes, void *const *buffers, int *bad) {
    int64_t stack[64];
    int top = 0, unknown = 0, overflows = 0;
    const int64_t *code = plan->code + expression.start;
    for (int i = 0; i < expression.length; i++) {
        int64_t a, b, operation = code[i];
        if (operation == CONSTANT || operation == DIMENSION || operation == APART) {
            int wide = operation == CONSTANT ? 1 : 2;
            if (i + wide >= expression.length || top == 64) { *bad = 1; return -1; }
            if (operation == CONSTANT) stack[top++] = code[i + 1];
            else if (operation == APART) {
                int64_t input = code[i + 1], output = code[i + 2];
                if (buffers == NULL || input < 0 || input >= plan->inputs || output < 0 || output >= plan->outputs) { *bad = 1; return -1; }
                stack[top++] = buffers[input] != buffers[plan->inputs + output];
            } else {
                int64_t input = code[i + 1], axis = code[i + 2];
                if (input < 0 || input >= plan->inputs || axis < 0 || axis >= MAX_RANK) { *bad = 1; return -1; }
                const Shape *shape = &shapes[input];
                if (shape->rank != UNKNOWN_RANK && axis >= shape->rank) { *bad = 1; return -1; }
                int64_t size = shape->rank == UNKNOWN_RANK ? -1 : shape->dims[axis];
                if (size < 0) unknown = 1;
                stack[top++] = size;
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
    int64_t measure = evaluate(plan, plan->measure, shapes, NULL, bad);
    while (chosen < plan->variants - 1 && measure > plan->limit[chosen]) chosen++;
    return chosen;
}

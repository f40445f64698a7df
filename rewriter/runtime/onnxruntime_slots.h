/* Of superopt_runtime.c: what the library asks of the system, limits, and onnxruntime: API version 17, reached by slot. */
#pragma once
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
#define BUFFER_FORMAT_VERSION 4
#define CPU_FORMAT_VERSION 1
#define EXPORT __attribute__((visibility("default")))
#define MAX_RANK 16
#define MAX_VARIANTS 8
#define MAX_PACKED_SIZES 16
#define MAX_DEVICES 64
#define MAX_INPUTS (1 << 20) /* onnxruntime says how many there are; more are malformed */

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

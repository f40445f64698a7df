/* Scalar functions of 32-bit floats, written so that a compiler computes a vector of them: no branch, no table.
 *
 * Errors are in units in the last place against the exact result rounded once, over all exponents; tests measure them. NaN stays
 * NaN, infinities and denormal numbers are what they are in the standard library. The polynomials are near-minimax fits at
 * Chebyshev nodes, made with mpmath's chebyfit. */
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline int32_t f32_bits(float x) { int32_t bits; memcpy(&bits, &x, 4); return bits; }
static inline float f32_of_bits(int32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline float f32_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

/* NaN where one of both is, as onnxruntime has it. */
static inline float f32_max(float a, float b) { return (a > b) | (a != a) ? a : b; }
static inline float f32_min(float a, float b) { return (a < b) | (a != a) ? a : b; }

/* The extremes of floats along a loop, of which vectors need three operations an entry: the bits of the greatest as signed numbers,
 * and of the greatest and the least as unsigned ones. A positive NaN is the greatest signed number, a negative one the greatest
 * unsigned; among negative floats the greatest is the least unsigned number. */
static inline int32_t bits_most(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t bits_least(int32_t a, int32_t b) { return a < b ? a : b; }
static inline uint32_t bits_above(uint32_t a, uint32_t b) { return a > b ? a : b; }
static inline uint32_t bits_below(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline float f32_greatest(int32_t most, uint32_t above, uint32_t below) {
    float found = f32_of_bits(most >= 0 ? most : (int32_t)below);
    return (most > 0x7f800000) | (above > 0xff800000u) ? NAN : found;
}
static inline float f32_smallest(int32_t most, uint32_t above, uint32_t below) {
    float found = f32_of_bits((int32_t)(above > 0x7fffffffu ? above : below));
    return (most > 0x7f800000) | (above > 0xff800000u) ? NAN : found;
}

/* The sum of 32 lanes, in 64 bits, by halves: a reduction of the compiler's adds the last sixteen one after another. The first halves
 * are a loop, since of a vector of eight GCC converts every two. */
typedef double f32_wide_four __attribute__((vector_size(32), aligned(8), may_alias));
typedef double f32_wide_two __attribute__((vector_size(16), aligned(8), may_alias));
static inline double f32_sum_of_lanes(const float *lanes) {
    double eight[8] __attribute__((aligned(64)));
    #pragma omp simd
    for (int i = 0; i < 8; ++i) eight[i] = ((double)lanes[i] + lanes[i + 8]) + ((double)lanes[i + 16] + lanes[i + 24]);
    const f32_wide_four four = *(const f32_wide_four *)eight + *(const f32_wide_four *)(eight + 4);
    const f32_wide_two two = *(const f32_wide_two *)&four + *((const f32_wide_two *)&four + 1);
    return two[0] + two[1];
}

static inline float f32_sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }

/* exp(x) = 2^n exp(r) with |r| <= log(2)/2, of which this is exp(r); 1.1 units. n + bias is what adding 1.5 2^23 to it leaves in the
 * last bits. */
static inline float f32_exp_rest(float x, float shifted, float bias) {
    float n = shifted - (0x1.8p23f + bias);
    float r = f32_fma(n, -0.693359375f, x);
    r = f32_fma(n, 2.12194440e-4f, r);
    float p = 0.0013926387f;
    p = f32_fma(p, r, 0.008363342f);
    p = f32_fma(p, r, 0.041666552f);
    p = f32_fma(p, r, 0.16666576f);
    p = f32_fma(p, r, 0.5f);
    p = f32_fma(p, r, 1.0f);
    return f32_fma(p, r, 1.0f);
}

/* 2^n is two factors, whose biased exponents add up to n + 254, so that denormal results are rounded once and 2^128 is none. Bits
 * bring x between -110 and 100, the lesser signed number and then the lesser unsigned one: GCC makes three comparisons and as many
 * selections of two conditional floats, a seventh of a softmax. */
static inline float f32_exp(float x) {
    uint32_t bits = (uint32_t)bits_least(f32_bits(x), 0x42c80000);
    float within = f32_of_bits((int32_t)bits_below(bits, 0xc2dc0000u));
    float shifted = f32_fma(within, 1.44269504f, 0x1.8p23f + 254.0f);
    float p = f32_exp_rest(within, shifted, 254.0f);
    int32_t whole = f32_bits(shifted) << 23, half = f32_bits(shifted) << 22 & 0x7f800000;
    float y = p * f32_of_bits(half) * f32_of_bits(whole - half);
    return x != x ? x : y;
}

/* The same of what is not positive, where zero is near enough to a result that is no normal number. */
static inline float f32_exp_weight(float x) {
    float within = f32_of_bits((int32_t)bits_below((uint32_t)f32_bits(x), 0xc2ae999au)); /* -87.3 */
    float shifted = f32_fma(within, 1.44269504f, 0x1.8p23f + 127.0f);
    float y = f32_exp_rest(within, shifted, 127.0f) * f32_of_bits(f32_bits(shifted) << 23);
    return x < -87.3f ? 0.0f : x != x ? x : y;
}

/* The same of numbers from -80 to 80, where 2^n is a normal number. */
static inline float f32_exp_normal(float x) {
    float shifted = f32_fma(x, 1.44269504f, 0x1.8p23f + 127.0f);
    return f32_exp_rest(x, shifted, 127.0f) * f32_of_bits(f32_bits(shifted) << 23);
}

/* log(x) = k log(2) + log(1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); 1 unit. */
static inline float f32_log(float x) {
    int tiny = x < 1.17549435e-38f;
    float scaled = tiny ? x * 8388608.0f : x;
    int32_t above = f32_bits(scaled) - 0x3f3504f3;
    float k = (float)(above >> 23) - (tiny ? 23.0f : 0.0f);
    float f = f32_of_bits((above & 0x007fffff) + 0x3f3504f3) - 1.0f;
    float p = 0.06971612f;
    p = f32_fma(p, f, -0.11479734f);
    p = f32_fma(p, f, 0.1168542f);
    p = f32_fma(p, f, -0.12425687f);
    p = f32_fma(p, f, 0.14249058f);
    p = f32_fma(p, f, -0.16667803f);
    p = f32_fma(p, f, 0.20000716f);
    p = f32_fma(p, f, -0.24999997f);
    p = f32_fma(p, f, 0.3333333f);
    float square = f * f;
    float y = f32_fma(k, -2.12194440e-4f, f * square * p);
    y = f32_fma(square, -0.5f, y) + f;
    y = f32_fma(k, 0.693359375f, y);
    y = x == INFINITY ? INFINITY : y;
    y = x == 0.0f ? -INFINITY : y;
    return (x < 0.0f) | (x != x) ? NAN : y;
}

/* log(1 + x) for 0 <= x <= 1: what rounding 1 + x loses is added to first order. */
static inline float f32_log1p(float x) {
    float sum = 1.0f + x;
    return f32_log(sum) + (x - (sum - 1.0f)) / sum;
}

/* 2 units. Up to 1 an odd polynomial, beyond it 1 - exp(log(erfc(x))). */
static inline float f32_erf(float x) {
    float t = fabsf(x), s = x * x;
    float p = 7.875875e-05f;
    p = f32_fma(p, s, -0.00080168643f);
    p = f32_fma(p, s, 0.0051890872f);
    p = f32_fma(p, s, -0.026854211f);
    p = f32_fma(p, s, 0.11283594f);
    p = f32_fma(p, s, -0.37612626f);
    p = f32_fma(p, s, 0.12837917f);
    float near = f32_fma(p, x, x);
    float u = f32_of_bits(bits_least(f32_bits(t), 0x40800000)); /* 4 at most */
    float q = 1.6371514e-06f;
    q = f32_fma(q, u, -4.605804e-05f);
    q = f32_fma(q, u, 0.00059680565f);
    q = f32_fma(q, u, -0.004759596f);
    q = f32_fma(q, u, 0.026421135f);
    q = f32_fma(q, u, -0.110080086f);
    q = f32_fma(q, u, -0.63182604f);
    q = f32_fma(q, u, -1.1302334f);
    q = f32_fma(q, u, 0.00032013806f);
    float far = copysignf(1.0f - f32_exp_normal(q), x);
    return t > 1.0f ? far : near;
}

/* 2 units. Up to 0.6 an odd polynomial, beyond it 1 - 2 / (exp(2x) + 1). */
static inline float f32_tanh(float x) {
    float t = fabsf(x), s = x * x;
    float p = -0.0062691197f;
    p = f32_fma(p, s, 0.02111096f);
    p = f32_fma(p, s, -0.05387395f);
    p = f32_fma(p, s, 0.13332915f);
    p = f32_fma(p, s, -0.3333333f);
    float near = f32_fma(p * s, x, x);
    float u = f32_of_bits(bits_least(f32_bits(t), 0x42200000)); /* 40 at most */
    float far = copysignf(1.0f - 2.0f / (f32_exp_normal(2.0f * u) + 1.0f), x);
    return t > 0.6f ? far : near;
}

/* 3 units. The exponential is of a negative number, so that it overflows nowhere. */
static inline float f32_sigmoid(float x) {
    float decay = f32_exp(-fabsf(x));
    return (x >= 0.0f ? 1.0f : decay) / (1.0f + decay);
}

static inline float f32_softplus(float x) {
    return f32_max(x, 0.0f) + f32_log1p(f32_exp(-fabsf(x)));
}

/* Numbers of 16 bits in memory; what is too long is rounded to the nearest, halves to even. */
static inline float f32_of_bf16(uint16_t bits) { return f32_of_bits((int32_t)((uint32_t)bits << 16)); }
static inline uint16_t bf16_of_f32(float x) {
    uint32_t bits = (uint32_t)f32_bits(x);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(x != x ? (bits >> 16 | 0x40) : rounded);
}
static inline float f32_of_f16(uint16_t bits) {
    uint32_t magnitude = (uint32_t)(bits & 0x7fff) << 13;
    float scaled = f32_of_bits((int32_t)magnitude) * 0x1p112f;
    int32_t special = (int32_t)(magnitude | 0x7f800000);
    int32_t value = magnitude >= 0x0f800000 ? special : f32_bits(scaled);
    return f32_of_bits(value | (int32_t)((uint32_t)(bits & 0x8000) << 16));
}
static inline uint16_t f16_of_f32(float x) {
    uint32_t sign = (uint32_t)f32_bits(x) & 0x80000000u, bits = (uint32_t)f32_bits(x) & 0x7fffffffu;
    uint32_t normal = (bits - 0x38000000u + 0xfff + (bits >> 13 & 1)) >> 13;
    uint32_t tiny = (uint32_t)f32_bits(f32_of_bits((int32_t)bits) + 0.5f) - 0x3f000000u;
    uint32_t half = bits < 0x38800000u ? tiny : normal;
    half = bits >= 0x477ff000u ? 0x7c00u : half;
    half = bits > 0x7f800000u ? 0x7e00u : half;
    return (uint16_t)(half | sign >> 16);
}

/* The quotient and the remainder of positions by a size that may be zero where nothing has the position. */
static inline int64_t at_divided(int64_t at, int64_t by) { return by ? at / by : 0; }
static inline int64_t at_remaining(int64_t at, int64_t by) { return by ? at % by : 0; }
static inline int64_t at_least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t at_most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Sums of products of tiles, blocked for registers: c[m][n] += sum over k of a[m][k] b[k][n]. Entries of a row of b and of c lie one
 * after another. The terms of an entry are added up in the order of k, DOT_SLAB at a time, before they are added to what c has, so
 * an entry does not depend on the block that it is in, and long sums are sums of shorter ones. */
#ifdef __AVX512F__
enum { DOT_LANES = 16, DOT_ROWS = 14 };
#else
enum { DOT_LANES = 8, DOT_ROWS = 6 };
#endif
enum { DOT_SLAB = 128 };
typedef float dot_lanes __attribute__((vector_size(4 * DOT_LANES), aligned(4), may_alias));
typedef void (*dot_block)(float *, int64_t, const float *, int64_t, const float *, int64_t, int64_t);

#define DOT_BLOCK(ROWS, VECTORS)                                                                                               \
    static __attribute__((noinline)) void dot_block_##ROWS##_##VECTORS(                                                        \
        float *c, int64_t c_m, const float *a, int64_t a_m, const float *b, int64_t b_k, int64_t depth) {                      \
        dot_lanes sums[ROWS][VECTORS];                                                                                         \
        const float *at[(ROWS + 2) / 3]; /* of every third row: others are an index away, which saves registers */             \
        _Pragma("GCC unroll 16") for (int m = 0; m < ROWS; ++m)                                                                \
            for (int v = 0; v < VECTORS; ++v) sums[m][v] = (dot_lanes){0};                                                     \
        _Pragma("GCC unroll 16") for (int m = 0; m < ROWS; m += 3) at[m / 3] = a + m * a_m;                                    \
        for (int64_t k = 0; k < depth; ++k, b += b_k) {                                                                        \
            dot_lanes row[VECTORS];                                                                                            \
            for (int v = 0; v < VECTORS; ++v) row[v] = *(const dot_lanes *)(b + v * DOT_LANES);                                \
            _Pragma("GCC unroll 16") for (int m = 0; m < ROWS; ++m)                                                            \
                for (int v = 0; v < VECTORS; ++v) sums[m][v] += at[m / 3][m % 3 * a_m] * row[v];                               \
            _Pragma("GCC unroll 16") for (int m = 0; m < ROWS; m += 3) ++at[m / 3];                                            \
        }                                                                                                                      \
        _Pragma("GCC unroll 16") for (int m = 0; m < ROWS; ++m)                                                                \
            for (int v = 0; v < VECTORS; ++v) *(dot_lanes *)(c + m * c_m + v * DOT_LANES) += sums[m][v];                       \
    }
DOT_BLOCK(1, 1)
DOT_BLOCK(1, 2)
DOT_BLOCK(1, 4)
DOT_BLOCK(2, 1)
DOT_BLOCK(2, 2)
DOT_BLOCK(4, 1)
DOT_BLOCK(4, 2)
DOT_BLOCK(6, 1)
DOT_BLOCK(6, 2)
#ifdef __AVX512F__
DOT_BLOCK(10, 1)
DOT_BLOCK(10, 2)
DOT_BLOCK(14, 1)
DOT_BLOCK(14, 2)
#endif
static const struct { int rows; dot_block of[2]; } dot_blocks[] = {
#ifdef __AVX512F__
    {14, {dot_block_14_1, dot_block_14_2}}, {10, {dot_block_10_1, dot_block_10_2}},
#endif
    {6, {dot_block_6_1, dot_block_6_2}}, {4, {dot_block_4_1, dot_block_4_2}}, {2, {dot_block_2_1, dot_block_2_2}},
    {1, {dot_block_1_1, dot_block_1_2}},
};

/* Of one vector of columns or two, which stay in the first cache while rows pass. */
static void dot_rows(float *c, int64_t c_m, const float *a, int64_t a_m, const float *b, int64_t b_k, int64_t rows, int vectors,
                     int64_t depth) {
    for (int size = 0; rows > 0; ++size)
        for (const int high = dot_blocks[size].rows; rows >= high; rows -= high, a += high * a_m, c += high * c_m)
            dot_blocks[size].of[vectors - 1](c, c_m, a, a_m, b, b_k, depth);
}

/* Columns that do not fill a vector: as one that is filled up with zeros. */
static __attribute__((noinline)) void dot_rest(float *c, int64_t c_m, const float *a, int64_t a_m, const float *b, int64_t b_k,
                                               int64_t rows, int64_t columns, int64_t depth) {
    float filled[DOT_SLAB * DOT_LANES] __attribute__((aligned(64))), sums[DOT_ROWS * DOT_LANES] __attribute__((aligned(64)));
    for (int64_t k = 0; k < depth; ++k)
        for (int64_t n = 0; n < DOT_LANES; ++n) filled[k * DOT_LANES + n] = n < columns ? b[k * b_k + n] : 0.0f;
    for (int64_t m = 0; m < rows; m += DOT_ROWS) {
        const int64_t high = rows - m < DOT_ROWS ? rows - m : DOT_ROWS;
        memset(sums, 0, sizeof sums);
        dot_rows(sums, DOT_LANES, a + m * a_m, a_m, filled, DOT_LANES, high, 1, depth);
        for (int64_t i = 0; i < high; ++i)
            for (int64_t n = 0; n < columns; ++n) c[(m + i) * c_m + n] += sums[i * DOT_LANES + n];
    }
}

static void dot_slab(float *c, int64_t c_m, const float *a, int64_t a_m, const float *b, int64_t b_k, int64_t rows, int64_t columns,
                     int64_t depth) {
    int64_t n = 0;
    for (; rows == 1 && n + 4 * DOT_LANES <= columns; n += 4 * DOT_LANES) /* two sums would wait for themselves */
        dot_block_1_4(c + n, c_m, a, a_m, b + n, b_k, depth);
    for (; n + 2 * DOT_LANES <= columns; n += 2 * DOT_LANES) dot_rows(c + n, c_m, a, a_m, b + n, b_k, rows, 2, depth);
    if (n + DOT_LANES <= columns) dot_rows(c + n, c_m, a, a_m, b + n, b_k, rows, 1, depth), n += DOT_LANES;
    if (n < columns) dot_rest(c + n, c_m, a, a_m, b + n, b_k, rows, columns - n, depth);
}

static __attribute__((noinline)) void dot_add(float *c, int64_t c_m, const float *a, int64_t a_m, int64_t a_k, const float *b,
                                              int64_t b_k, int64_t rows, int64_t columns, int64_t depth) {
    for (int64_t from = 0; from < depth; from += DOT_SLAB) {
        const int64_t steps = depth - from < DOT_SLAB ? depth - from : DOT_SLAB;
        const float *const here = a + from * a_k, *const slab = b + from * b_k;
        if (a_k == 1) {
            dot_slab(c, c_m, here, a_m, slab, b_k, rows, columns, steps);
            continue;
        }
        for (int64_t m = 0; m < rows; m += DOT_ROWS) { /* rows whose entries lie apart are brought together */
            const int64_t high = rows - m < DOT_ROWS ? rows - m : DOT_ROWS;
            float left[DOT_ROWS * DOT_SLAB] __attribute__((aligned(64)));
            for (int64_t i = 0; i < high; ++i)
                for (int64_t k = 0; k < steps; ++k) left[i * DOT_SLAB + k] = here[(m + i) * a_m + k * a_k];
            dot_slab(c + m * c_m, c_m, left, DOT_SLAB, slab, b_k, high, columns, steps);
        }
    }
}

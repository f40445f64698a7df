/* Sums of products of tiles, blocked for registers: c[m][n] += sum over k of a[m][k] b[k][n]. Entries of a row of b and of c lie one
 * after another. The terms of an entry are added up in the order of k before they are added to what c has, so an entry does not
 * depend on the block that it is in, and long sums are sums of shorter ones. */
#ifdef __AVX512F__
#define DOT_LANES 16
#else
#define DOT_LANES 8
#endif
typedef float dot_lanes __attribute__((vector_size(4 * DOT_LANES), aligned(4), may_alias));

#define DOT_BLOCK(ROWS, VECTORS)                                                                                               \
    static inline __attribute__((always_inline)) void dot_block_##ROWS##_##VECTORS(                                            \
        float *c, int64_t c_m, const float *a, int64_t a_m, int64_t a_k, const float *b, int64_t b_k, int64_t depth) {         \
        dot_lanes sums[ROWS][VECTORS];                                                                                         \
        for (int m = 0; m < ROWS; ++m)                                                                                         \
            for (int v = 0; v < VECTORS; ++v) sums[m][v] = (dot_lanes){0};                                                     \
        for (int64_t k = 0; k < depth; ++k)                                                                                    \
            for (int m = 0; m < ROWS; ++m)                                                                                     \
                for (int v = 0; v < VECTORS; ++v)                                                                              \
                    sums[m][v] += a[m * a_m + k * a_k] * *(const dot_lanes *)(b + k * b_k + v * DOT_LANES);                    \
        for (int m = 0; m < ROWS; ++m)                                                                                         \
            for (int v = 0; v < VECTORS; ++v) *(dot_lanes *)(c + m * c_m + v * DOT_LANES) += sums[m][v];                       \
    }
DOT_BLOCK(6, 2)
DOT_BLOCK(2, 2)
DOT_BLOCK(1, 4)
DOT_BLOCK(6, 1)
DOT_BLOCK(1, 1)

static __attribute__((noinline)) void dot_add(float *c, int64_t c_m, const float *a, int64_t a_m, int64_t a_k, const float *b, int64_t b_k,
                           int64_t rows, int64_t columns, int64_t depth) {
    int64_t m = 0;
    while (m < rows) {
        int64_t left = rows - m, n = 0, step = left >= 6 ? 6 : left >= 2 ? 2 : 1;
        float *c_at = c + m * c_m;
        const float *a_at = a + m * a_m;
        if (step == 1)
            for (; n + 4 * DOT_LANES <= columns; n += 4 * DOT_LANES) dot_block_1_4(c_at + n, c_m, a_at, a_m, a_k, b + n, b_k, depth);
        for (; step > 1 && n + 2 * DOT_LANES <= columns; n += 2 * DOT_LANES) {
            if (step == 6) dot_block_6_2(c_at + n, c_m, a_at, a_m, a_k, b + n, b_k, depth);
            else dot_block_2_2(c_at + n, c_m, a_at, a_m, a_k, b + n, b_k, depth);
        }
        for (; n + DOT_LANES <= columns; n += DOT_LANES) {
            if (step == 6) dot_block_6_1(c_at + n, c_m, a_at, a_m, a_k, b + n, b_k, depth);
            else
                for (int64_t i = 0; i < step; ++i)
                    dot_block_1_1(c_at + i * c_m + n, c_m, a_at + i * a_m, a_m, a_k, b + n, b_k, depth);
        }
        for (int64_t i = 0; n < columns && i < step; ++i)
            for (int64_t j = n; j < columns; ++j) {
                float sum = 0.0f;
                for (int64_t k = 0; k < depth; ++k) sum = __builtin_fmaf(a_at[i * a_m + k * a_k], b[k * b_k + j], sum);
                c_at[i * c_m + j] += sum;
            }
        m += step;
    }
}

/* to[k][n] = from[n][k], squares of eight at a time in registers. Entries of a row of either lie one after another. */
typedef float turned_row __attribute__((vector_size(32), aligned(4), may_alias));
#ifdef __clang__
#define TURNED(A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
typedef int32_t turned_places __attribute__((vector_size(32)));
#define TURNED(A, B, ...) __builtin_shuffle(A, B, (turned_places){__VA_ARGS__})
#endif

static inline __attribute__((always_inline)) void dot_turn_square(float *to, int64_t to_k, const float *from, int64_t from_n) {
    turned_row one[8], two[8];
    for (int i = 0; i < 8; ++i) one[i] = *(const turned_row *)(from + i * from_n);
    for (int i = 0; i < 8; i += 2) {
        two[i] = TURNED(one[i], one[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        two[i + 1] = TURNED(one[i], one[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            one[i + 2 * j] = TURNED(two[i + j], two[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            one[i + 2 * j + 1] = TURNED(two[i + j], two[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; ++i) {
        *(turned_row *)(to + i * to_k) = TURNED(one[i], one[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(turned_row *)(to + (i + 4) * to_k) = TURNED(one[i], one[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

static __attribute__((noinline)) void dot_turn(float *to, int64_t to_k, const float *from, int64_t from_n, int64_t columns, int64_t depth) {
    const int64_t n_whole = columns / 8 * 8, k_whole = depth / 8 * 8;
    for (int64_t k = 0; k < k_whole; k += 8)
        for (int64_t n = 0; n < n_whole; n += 8) dot_turn_square(to + k * to_k + n, to_k, from + n * from_n + k, from_n);
    for (int64_t k = 0; k < depth; ++k)
        for (int64_t n = k < k_whole ? n_whole : 0; n < columns; ++n) to[k * to_k + n] = from[n * from_n + k];
}

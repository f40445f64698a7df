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

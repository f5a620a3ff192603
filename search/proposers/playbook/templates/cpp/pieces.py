"""C++ code that several templates share."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs
from search.proposers.playbook.templates.cpp import machine

FAST = "-O3 -march=native"
"""The flags for this machine's widest vectors."""

REGISTER = """
#if defined(__AVX512F__)
constexpr int REGISTER = 64;  // bytes of a vector
#elif defined(__AVX__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif
""".strip()
VEC = f"""{REGISTER}
constexpr int LANES = REGISTER / 4;
typedef float vec __attribute__((vector_size(REGISTER), aligned(4), may_alias));
"""
"""`vec` is one register: the compiler keeps values of wider types in memory."""

BF16 = """
#ifndef __AVX512BF16__
#error "this machine has no AVX512-BF16 dot products"
#endif

// Rounds to the nearest bfloat16, ties to even.
static inline uint16_t bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Two neighbouring values, repeated in every lane.
static inline __m512bh pair(const uint16_t* from) {
    int32_t both;
    memcpy(&both, from, 4);
    return (__m512bh)_mm512_set1_epi32(both);
}

static inline vec dot(vec sum, __m512bh a, __m512bh b) {
    return (vec)_mm512_dpbf16_ps((__m512)sum, a, b);
}
"""

STREAM = """
#ifdef __SSE2__
#include <immintrin.h>
#endif

// Writes a cache line past the caches, to memory that is not read soon. The address is a multiple of 64.
template <class O>
static inline void stream(O* to, const O* line) {
#if defined(__AVX512F__)
    _mm512_stream_si512((__m512i*)to, _mm512_load_si512((const __m512i*)line));
#elif defined(__AVX__)
    for (int part = 0; part < 2; ++part)
        _mm256_stream_si256((__m256i*)to + part, _mm256_load_si256((const __m256i*)line + part));
#elif defined(__SSE2__)
    for (int part = 0; part < 4; ++part)
        _mm_stream_si128((__m128i*)to + part, _mm_load_si128((const __m128i*)line + part));
#else
    memcpy(to, line, 64);
#endif
}
"""

HUGE_PAGES = """
#include <sys/mman.h>

// Asks for huge pages for memory that has not been written yet.
static void huge_pages(void* start, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 4096, first = (uintptr_t(start) + page - 1) & ~(page - 1);
    if (bytes > page)
        madvise((void*)first, (uintptr_t(start) + bytes - first) & ~(page - 1), MADV_HUGEPAGE);
#endif
}
"""

TRANSPOSE = """
// Transposes LANES x LANES values: blocks of 1, 2, 4, ... swap across the diagonal.
static inline void transpose(vec* rows) {
    typedef int index __attribute__((vector_size(4 * LANES)));
    #pragma GCC unroll 4
    for (int step = 1; step < LANES; step *= 2) {
        index low, high;
        #pragma GCC unroll 16
        for (int lane = 0; lane < LANES; ++lane) {
            low[lane] = lane & step ? LANES + lane - step : lane;
            high[lane] = lane & step ? LANES + lane : lane + step;
        }
        #pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
            if (!(i & step)) {
                vec upper = rows[i], lower = rows[i + step];
                rows[i] = __builtin_shuffle(upper, lower, low);
                rows[i + step] = __builtin_shuffle(upper, lower, high);
            }
    }
}
"""


def flags(knobs: Knobs) -> str:
    """The compiler's flags: those of the knob, within the machine's limit, and OpenMP for threads."""
    chosen = str(knobs["flags"])
    limit = machine.limiting_flags() if "native" in chosen else []
    return " ".join([chosen, *limit, *(["-fopenmp"] if knobs["threads"] else []), "-shared", "-fPIC"])


def joined(*parts: str) -> str:
    """The non-empty parts of a source, separated by blank lines."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip())


def parallel_for(knobs: Knobs, loops: int = 1, indent: str = "    ") -> str:
    """The OpenMP line before `loops` nested loops; empty for a kernel with one thread."""
    if not knobs["threads"]:
        return ""
    collapse = f" collapse({loops})" if loops > 1 else ""
    schedule = f" schedule({knobs['schedule']})" if "schedule" in knobs else ""
    return f"{indent}#pragma omp parallel for{collapse}{schedule} num_threads(threads)\n"

#pragma once

#include "worker/rank/kernels/cpu/simd.h"
#include "worker/rank/kernels/cpu/team.h"
#include "worker/rank/kernels/dtype.h"

// Divides the work of bodies among threads, and addresses numbers of several types.
namespace titan::kernels::TITAN_LEVEL {
namespace {

// Treats denormals as zero while it lives, because one result in their range costs as much as seventy others.
class FlushDenormals {
 public:
  [[gnu::always_inline]] FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  [[gnu::always_inline]] ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_;
};

// Calls body(begin, end, part) for parts of [0, count), one per thread, with part < threads. No result may depend on
// where parts meet.
template <typename Body>
TITAN_INLINE void in_numbered_parts(int threads, int64_t count, const Body& body) {
  in_team(count <= 1 ? 1 : threads, [&](int64_t part, int64_t parts) {
    const FlushDenormals flush;
    const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
    if (begin < end) body(begin, end, part);
  });
}

template <typename Body>
TITAN_INLINE void in_parts(int threads, int64_t count, const Body& body) {
  in_numbered_parts(threads, count, [&](int64_t begin, int64_t end, int64_t) { body(begin, end); });
}

// Returns the address of an element of an untyped buffer.
template <typename T>
TITAN_INLINE const T* at(const void* base, int64_t element) {
  return static_cast<const T*>(base) + element;
}
template <typename T>
TITAN_INLINE T* at(void* base, int64_t element) {
  return static_cast<T*>(base) + element;
}

}  // namespace
}  // namespace titan::kernels::TITAN_LEVEL

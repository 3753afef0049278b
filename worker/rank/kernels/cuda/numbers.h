#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

// Loads and stores numbers for the bodies of the device's row operations. The bodies are plain C++: nvcc compiles them
// for a GPU (team.h), and tests for the host.
#if defined(__CUDACC__)
#define TITAN_BODY __device__ __forceinline__
#define TITAN_UNROLL _Pragma("unroll")
#else
#define TITAN_BODY inline
#define TITAN_UNROLL
#endif

namespace titan::kernels::device {

// Numbers side by side. A pack of eight is aligned to 16 bytes and moves at once.
template <int N>
struct Pack {
  float v[N];
};
inline constexpr int kVector = 8;

TITAN_BODY float widened(uint32_t narrow) {
  const uint32_t bits = narrow << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds two floats to bf16, to nearest with ties to even. The first goes to the lower half.
TITAN_BODY uint32_t narrowed(float first, float second) {
#if defined(__CUDA_ARCH__)
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
#else
  const auto one = [](float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (bits >> 16) | 0x40;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  };
  return one(first) | one(second) << 16;
#endif
}

struct Words {
  uint32_t w[4];
};
TITAN_BODY Words load_16_bytes(const void* from) {
#if defined(__CUDA_ARCH__)
  const uint4 all = *static_cast<const uint4*>(from);
  return {{all.x, all.y, all.z, all.w}};
#else
  Words all;
  memcpy(&all, __builtin_assume_aligned(from, 16), sizeof all);
  return all;
#endif
}
TITAN_BODY void store_16_bytes(void* to, const Words& all) {
#if defined(__CUDA_ARCH__)
  *static_cast<uint4*>(to) = make_uint4(all.w[0], all.w[1], all.w[2], all.w[3]);
#else
  memcpy(__builtin_assume_aligned(to, 16), &all, sizeof all);
#endif
}

template <int N>
TITAN_BODY Pack<N> load(const uint16_t* from) {
  Pack<N> result;
  if constexpr (N == kVector) {
    const Words words = load_16_bytes(from);
    TITAN_UNROLL
    for (int i = 0; i < N / 2; ++i) {
      result.v[2 * i] = widened(words.w[i]);
      result.v[2 * i + 1] = widened(words.w[i] >> 16);
    }
  } else {
    for (int i = 0; i < N; ++i) result.v[i] = widened(from[i]);
  }
  return result;
}
template <int N>
TITAN_BODY Pack<N> load(const float* from) {
  Pack<N> result;
  if constexpr (N == kVector) {
    const Words words[2] = {load_16_bytes(from), load_16_bytes(from + 4)};
    memcpy(&result, words, sizeof result);
  } else {
    for (int i = 0; i < N; ++i) result.v[i] = from[i];
  }
  return result;
}

template <int N>
TITAN_BODY void store(uint16_t* to, const Pack<N>& pack) {
  if constexpr (N == kVector) {
    Words words;
    TITAN_UNROLL
    for (int i = 0; i < N / 2; ++i) words.w[i] = narrowed(pack.v[2 * i], pack.v[2 * i + 1]);
    store_16_bytes(to, words);
  } else {
    for (int i = 0; i < N; ++i) to[i] = static_cast<uint16_t>(narrowed(pack.v[i], 0));
  }
}
template <int N>
TITAN_BODY void store(float* to, const Pack<N>& pack) {
  if constexpr (N == kVector) {
    Words words[2];
    memcpy(words, &pack, sizeof pack);
    store_16_bytes(to, words[0]);
    store_16_bytes(to + 4, words[1]);
  } else {
    for (int i = 0; i < N; ++i) to[i] = pack.v[i];
  }
}

// Eight codes of one byte, the first in the lowest byte.
struct Codes {
  uint32_t w[2];
};
TITAN_BODY void store_codes(uint8_t* to, const Codes& codes) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<uint2*>(to) = make_uint2(codes.w[0], codes.w[1]);
#else
  memcpy(__builtin_assume_aligned(to, 8), &codes, sizeof codes);
#endif
}
TITAN_BODY Codes load_codes(const uint8_t* from) {
#if defined(__CUDA_ARCH__)
  const uint2 both = *reinterpret_cast<const uint2*>(from);
  return {{both.x, both.y}};
#else
  Codes codes;
  memcpy(&codes, __builtin_assume_aligned(from, 8), sizeof codes);
  return codes;
#endif
}

// Builds a pack of value(i) for each position i.
template <int N, typename F>
TITAN_BODY Pack<N> each_of(const F& value) {
  Pack<N> result;
  TITAN_UNROLL
  for (int i = 0; i < N; ++i) result.v[i] = value(i);
  return result;
}

template <int N>
TITAN_BODY Pack<N> all(float value) {
  return each_of<N>([=](int) { return value; });
}

// Loads the pack at from + i. Every position is `otherwise` if `from` is null.
template <int N, typename T>
TITAN_BODY Pack<N> load_or(const T* from, int64_t i, float otherwise) {
  return from == nullptr ? all<N>(otherwise) : load<N>(from + i);
}

// Addresses an element of a matrix when only the body knows its type.
template <typename T>
TITAN_BODY const T* at(const void* base, int64_t element) {
  return static_cast<const T*>(base) + element;
}
template <typename T>
TITAN_BODY T* at(void* base, int64_t element) {
  return static_cast<T*>(base) + element;
}

// Whether every pack of eight is aligned as load() requires. Takes pointers (null too) and strides in bytes.
template <typename... Places>
bool lie_at_16(Places... places) {
  const auto bits = [](auto place) {
    if constexpr (std::is_pointer_v<decltype(place)>) return reinterpret_cast<uintptr_t>(place);
    if constexpr (!std::is_pointer_v<decltype(place)>) return static_cast<uintptr_t>(place);
  };
  return ((bits(places) | ...) % 16) == 0;
}

}  // namespace titan::kernels::device

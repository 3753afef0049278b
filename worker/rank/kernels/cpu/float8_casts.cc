#include "worker/rank/kernels/cpu/float8_casts.h"

#include <algorithm>
#include <bit>

#include "worker/rank/kernels/cpu/team.h"

namespace titan::kernels {
namespace {

constexpr int64_t kGrain = 1 << 14;  // Fewest numbers per thread.

constexpr uint32_t kSign = 0x80000000U;
constexpr int kFloatMantissa = 23, kFloatBias = 127;

float of_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
// Exact for numbers that bf16 represents.
uint16_t to_bf16(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

// An eight-bit format. It rounds fp32 numbers by their bits.
template <int kMantissa, int kBias, int kMost>
struct Format {
  static constexpr int kDropped = kFloatMantissa - kMantissa;
  static constexpr int kMinExponent = 1 - kBias;
  static constexpr uint32_t kMinNormal = static_cast<uint32_t>(kMinExponent + kFloatBias) << kFloatMantissa;
  // Its last bit is the step of numbers below the smallest normal one, so adding and subtracting it rounds them to that
  // step.
  static constexpr float kSubnormals = static_cast<float>(1 << (kFloatMantissa - kMantissa + kMinExponent));

  // Rounds to the nearest magnitude, ties to even, and saturates. NaN stays NaN.
  static float nearest(float magnitude) {
    const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
    const uint32_t half = (1U << (kDropped - 1)) - 1 + ((bits >> kDropped) & 1);
    const float normal = std::bit_cast<float>((bits + half) & ~((1U << kDropped) - 1));
    const float subnormal = (magnitude + kSubnormals) - kSubnormals;
    float result = bits < kMinNormal ? subnormal : normal;
    result = result > static_cast<float>(kMost) ? static_cast<float>(kMost) : result;
    return magnitude == magnitude ? result : magnitude;
  }

  static uint8_t encode(float x) {
    const uint32_t sign = std::bit_cast<uint32_t>(x) & kSign;
    const float magnitude = nearest(std::bit_cast<float>(std::bit_cast<uint32_t>(x) & ~kSign));
    const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
    constexpr uint32_t kOffset = static_cast<uint32_t>(kFloatBias - kBias) << kMantissa;
    // The last bits of the sum are those of the subnormal.
    const uint32_t subnormal = std::bit_cast<uint32_t>(magnitude + kSubnormals) & ((1U << kMantissa) - 1);
    uint32_t code = bits < kMinNormal ? subnormal : (bits >> kDropped) - kOffset;
    code = magnitude == magnitude ? code : 0x7f;
    return static_cast<uint8_t>(code | sign >> 24);
  }
};
using E4m3 = Format<3, 7, 448>;
using E5m2 = Format<2, 15, 57344>;

uint16_t rounded_number(uint16_t x, float scale, float inverse) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  const float magnitude = E4m3::nearest(std::bit_cast<float>(bits & ~kSign) * scale) * inverse;
  return static_cast<uint16_t>(to_bf16(magnitude) | (x & 0x8000));
}

// Calls body(begin, end) for parts of [0, count), one per thread, on as many threads as get at least `grain` each.
template <typename Body>
void in_parts(int threads, int64_t count, int64_t grain, const Body& body) {
  const int64_t worth = std::max<int64_t>(count / grain, 1);
  in_team(static_cast<int>(std::min<int64_t>(threads, worth)), [&](int64_t part, int64_t parts) {
    const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
    if (begin < end) body(begin, end);
  });
}

// Calls visit(first number, length, position of the block) for runs of contiguous numbers that share a scale or, if
// `inner` is more than 1, use the scales from that position on.
template <typename Visit>
void each_run(const Blocks& blocks, int threads, const Visit& visit) {
  const int64_t outer = blocks.outer, size = blocks.size, inner = blocks.inner, block = blocks.block;
  const int64_t count = blocks.count();
  if (inner == 1) {
    in_parts(threads, outer * count, std::max<int64_t>(kGrain / block, 1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % count * block;
        visit(i / count * size + first, std::min(block, size - first), i);
      }
    });
    return;
  }
  const int64_t grain = std::max<int64_t>(kGrain / std::max<int64_t>(outer * size, 1), 64);
  in_parts(threads, inner, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < outer * size; ++row) {
      const int64_t place = row / size * count + row % size / block;
      visit(row * inner + begin, end - begin, place * inner + begin);
    }
  });
}

template <typename F8>
void encode_all(const uint16_t* x, int64_t count, float scale, uint8_t* codes, int threads) {
  in_parts(threads, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) codes[i] = F8::encode(of_bf16(x[i]) * scale);
  });
}

}  // namespace

void amax_of_blocks(const Blocks& blocks, const uint16_t* x, uint16_t* amax, int threads) {
  // Magnitudes are ordered like their bits, with NaNs above all.
  each_run(blocks, threads, [&](int64_t first, int64_t length, int64_t place) {
    const uint16_t* run = x + first;
    if (blocks.inner > 1) {
      uint16_t* at = amax + place;
      for (int64_t i = 0; i < length; ++i) at[i] = std::max<uint16_t>(at[i], run[i] & 0x7fff);
      return;
    }
    uint16_t greatest = 0;
    for (int64_t i = 0; i < length; ++i) greatest = std::max<uint16_t>(greatest, run[i] & 0x7fff);
    amax[place] = greatest;
  });
}

void round_by_blocks(const Blocks& blocks, const uint16_t* x, const float* scale, const float* inverse,
                     uint16_t* rounded, int threads) {
  each_run(blocks, threads, [&](int64_t first, int64_t length, int64_t place) {
    const uint16_t* run = x + first;
    uint16_t* to = rounded + first;
    if (blocks.inner > 1) {
      for (int64_t i = 0; i < length; ++i) to[i] = rounded_number(run[i], scale[place + i], inverse[place + i]);
    } else {
      for (int64_t i = 0; i < length; ++i) to[i] = rounded_number(run[i], scale[place], inverse[place]);
    }
  });
}

void encode(Float8Type format, const uint16_t* x, int64_t count, float scale, uint8_t* codes, int threads) {
  (format == Float8Type::kE4m3 ? encode_all<E4m3> : encode_all<E5m2>)(x, count, scale, codes, threads);
}

void decode(const std::array<uint16_t, 256>& table, const uint8_t* codes, int64_t count, uint16_t* numbers,
            int threads) {
  in_parts(threads, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) numbers[i] = table[codes[i]];
  });
}

}  // namespace titan::kernels

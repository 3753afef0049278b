#include "common/io/storage/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace titan::storage {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Reflected 0x1edc6f41.

// Slicing by 8: table[k][b] is the effect of byte b that lies k bytes before the end of an 8-byte group.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

Tables make_tables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (uint32_t b = 0; b < 256; ++b) {
    for (size_t k = 1; k < 8; ++k) tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xff];
  }
  return tables;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const unsigned char* p, size_t size, uint32_t crc) {
  uint64_t state = ~crc;
  for (; size >= 8; p += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    state = _mm_crc32_u64(state, word);
  }
  auto tail = static_cast<uint32_t>(state);
  for (; size > 0; ++p, --size) tail = _mm_crc32_u8(tail, *p);
  return ~tail;
}
#endif

}  // namespace

uint32_t crc32c_portable(const void* bytes, size_t size, uint32_t crc) {
  static const Tables tables = make_tables();
  const auto* p = static_cast<const unsigned char*>(bytes);
  uint32_t state = ~crc;
  for (; size >= 8; p += 8, size -= 8) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= state;  // Assumes little endian, like every machine this runs on.
    state = tables[7][low & 0xff] ^ tables[6][(low >> 8) & 0xff] ^ tables[5][(low >> 16) & 0xff] ^
            tables[4][low >> 24] ^ tables[3][high & 0xff] ^ tables[2][(high >> 8) & 0xff] ^
            tables[1][(high >> 16) & 0xff] ^ tables[0][high >> 24];
  }
  for (; size > 0; ++p, --size) state = (state >> 8) ^ tables[0][(state ^ *p) & 0xff];
  return ~state;
}

uint32_t crc32c(const void* bytes, size_t size, uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2");
  if (has_sse42) return crc32c_sse42(static_cast<const unsigned char*>(bytes), size, crc);
#endif
  return crc32c_portable(bytes, size, crc);
}

}  // namespace titan::storage

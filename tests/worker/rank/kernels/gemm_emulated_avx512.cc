// Emulates the products of tiles with arrays.
#define TITAN_LEVEL emulated_tiles
#define TITAN_EMULATED_TILES
#include <string.h>

#include "worker/rank/kernels/cpu/simd.h"

namespace titan::kernels::TITAN_LEVEL {
namespace {

struct Tile {
  float sums[16][16];      // For tiles of sums.
  uint16_t words[16][32];  // For tiles of factors.
};
thread_local Tile tiles[8];

class TileSession {};

template <int tile>
void tile_zero() {
  memset(tiles[tile].sums, 0, sizeof(tiles[tile].sums));
}
template <int tile>
void tile_load(const void* base, int64_t stride) {
  void* const to = tile < 4 ? static_cast<void*>(tiles[tile].sums) : tiles[tile].words;
  for (int64_t row = 0; row < 16; ++row) {
    memcpy(static_cast<char*>(to) + 64 * row, static_cast<const char*>(base) + row * stride, 64);
  }
}
template <int tile>
void tile_store(void* base, int64_t stride) {
  for (int64_t row = 0; row < 16; ++row) memcpy(static_cast<char*>(base) + row * stride, tiles[tile].sums[row], 64);
}
float wide(uint16_t word) {
  const uint32_t bits = static_cast<uint32_t>(word) << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
template <int sum, int a, int b>
void tile_multiply() {
  for (int row = 0; row < 16; ++row) {
    for (int pair = 0; pair < 16; ++pair) {
      for (int column = 0; column < 16; ++column) {
        for (int i = 0; i < 2; ++i) {
          tiles[sum].sums[row][column] +=
              wide(tiles[a].words[row][2 * pair + i]) * wide(tiles[b].words[pair][2 * column + i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace titan::kernels::TITAN_LEVEL

#include "worker/rank/kernels/cpu/gemm_body.h"

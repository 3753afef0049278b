// Compares rows of 4-bit weights on the CPU with a plain reading of their layout.
#include "worker/rank/kernels/cpu/nf4.h"

#include "tests/worker/rank/kernels/harness.h"

namespace titan::kernels::testing {
namespace {

template <typename T>
void unpacks(Random& random, int64_t columns, int64_t block) {
  const Buffer<uint8_t> row(columns / 2 + columns / block * static_cast<int64_t>(sizeof(float)), random.edge());
  std::vector<uint8_t> codes(columns);
  std::vector<float> scales(columns / block);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random.pick(0, 15));
  for (float& scale : scales) scale = static_cast<float>(random.normal());
  for (int64_t i = 0; i < columns; i += 2) row[i / 2] = static_cast<uint8_t>(codes[i] * 16 + codes[i + 1]);
  if (columns > 0) std::memcpy(row.data() + columns / 2, scales.data(), scales.size() * sizeof(float));

  const Buffer<T> numbers(columns, random.edge());
  unpack_nf4_row(row.data(), columns, block, numbers.data());
  for (int64_t i = 0; i < columns; ++i) {
    const float exact = kNf4Numbers[codes[i]] * scales[i / block];
    ASSERT_EQ(numbers[i], static_cast<T>(exact)) << i << " of " << columns;
  }
}

TEST(Nf4RowsTest, UnpacksRowsOfEveryLength) {
  Random random(1);
  for (int64_t blocks = 0; blocks <= 40; ++blocks) {
    unpacks<float>(random, blocks * 64, 64);
    unpacks<double>(random, blocks * 64, 64);
  }
}

}  // namespace
}  // namespace titan::kernels::testing

#include "worker/rank/optim/chance.h"

#include <array>

#include "worker/rank/random/random_math.h"

namespace titan::optim {
namespace {

constexpr int64_t kWord = 0xffffffff;  // Words are held in int64: LibTorch multiplies no uint32.

at::Tensor upper(const at::Tensor& product) { return product.bitwise_right_shift(32).bitwise_and(kWord); }

// The word of each index of a stream, in the order of worker/rank/nn/random.h's chunks.
at::Tensor words(const at::Tensor& index, uint64_t key, const at::Tensor& step) {
  const at::Tensor counter = index.bitwise_right_shift(6).mul(16).add_(index.bitwise_and(15));
  std::array<at::Tensor, 4> word = {counter.bitwise_and(kWord), upper(counter), step.to(at::kLong).expand_as(index),
                                    at::zeros_like(index)};
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const at::Tensor a = word[0].mul(int64_t{0xD2511F53}), b = word[2].mul(int64_t{0xCD9E8D57});
    word = {upper(b).bitwise_xor_(word[1]).bitwise_xor_(int64_t{k0}), b.bitwise_and(kWord),
            upper(a).bitwise_xor_(word[3]).bitwise_xor_(int64_t{k1}), a.bitwise_and(kWord)};
    k0 += random::kPhiloxKey0;
    k1 += random::kPhiloxKey1;
  }
  const at::Tensor which = index.bitwise_right_shift(4).bitwise_and(3);
  at::Tensor result = word[0];
  for (int w = 1; w < 4; ++w) result = at::where(which.eq(w), word[w], result);
  return result;
}

}  // namespace

at::Tensor round_by_chance(const at::Tensor& exact, uint64_t key, const at::Tensor& step, const Place& place) {
  const auto whole = exact.options().dtype(at::kLong);
  const at::Tensor index = at::arange(exact.size(0), whole)
                               .mul_(place.stride)
                               .add_(place.first)
                               .unsqueeze(1)
                               .add(at::arange(exact.size(1), whole));
  const at::Tensor half = words(index, key, step).bitwise_right_shift(16).to(at::kInt);
  const at::Tensor moved = exact.view(at::kInt).add(half).bitwise_and(static_cast<int>(0xffff0000)).view(at::kFloat);
  return at::where(exact.isfinite(), moved, exact).to(at::kBFloat16);
}

}  // namespace titan::optim

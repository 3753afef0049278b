#include "worker/rank/optim/grad_norm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

namespace titan::optim {
namespace {

constexpr int64_t kPiece = 8192;  // Elements that one thread sums at a time; partial sums are added in order.

template <typename T>
double piece_sum(const T* values, int64_t count) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (; i < count; ++i) lanes[i % 8] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

template <typename T>
double tensor_sum(const at::Tensor& tensor) {
  const T* values = tensor.const_data_ptr<T>();
  const int64_t count = tensor.numel(), pieces = (count + kPiece - 1) / kPiece;
  std::vector<double> partial(static_cast<size_t>(pieces));
  at::parallel_for(0, pieces, /*grain_size=*/4, [&](int64_t from, int64_t to) {
    for (int64_t piece = from; piece < to; ++piece) {
      const int64_t start = piece * kPiece;
      partial[static_cast<size_t>(piece)] = piece_sum(values + start, std::min(kPiece, count - start));
    }
  });
  double sum = 0;
  for (const double value : partial) sum += value;
  return sum;
}

double sum_on_cpu(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return tensor_sum<float>(tensor);
    case at::kBFloat16:
      return tensor_sum<at::BFloat16>(tensor);
    default:
      return tensor_sum<double>(tensor.to(at::kDouble));
  }
}

// Computes the sum for tensors on other devices or not contiguous, in one call that widens numbers as it reads them. So
// no double-precision copy of a whole embedding is made.
at::Tensor squares_elsewhere(const std::vector<at::Tensor>& tensors) {
  return at::stack(at::_foreach_norm(tensors, 2, at::kDouble)).square_().sum();
}

}  // namespace

at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors) {
  const at::Device device = tensors.empty() ? at::Device(at::kCPU) : tensors.front().device();
  double cpu_total = 0;
  std::vector<at::Tensor> others;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_cpu() && tensor.is_contiguous()) {
      cpu_total += sum_on_cpu(tensor);
    } else {
      others.push_back(tensor.detach());
    }
  }
  const at::Tensor total = at::full({}, cpu_total, at::TensorOptions().dtype(at::kDouble).device(device));
  return others.empty() ? total : total.add_(squares_elsewhere(others));
}

at::Tensor clip_divisor(const at::Tensor& norm, double max_norm) {
  if (max_norm == 0) return at::ones_like(norm);
  return norm.add(1e-6).div_(max_norm).clamp_min_(1);
}

}  // namespace titan::optim

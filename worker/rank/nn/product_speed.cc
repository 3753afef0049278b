#include "worker/rank/nn/product_speed.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <ctime>

#include "worker/rank/nn/products.h"

namespace titan::nn {
namespace {

// Of this thread alone: what else the machine does at the moment says nothing about it.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_of_product(const at::Tensor& x, const at::Tensor& weight) {
  const double began = cpu_seconds();
  const at::Tensor product = times_transposed(x, weight);
  return cpu_seconds() - began;
}

class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_ = at::get_num_threads();
};

}  // namespace

double product_speed(at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const int threads = at::get_num_threads();
  const OneThread one_thread;
  double best = 0, spent = 0;
  int64_t size = 256;
  for (int runs = 0; runs < 2 || spent < 8e-3; ++runs) {
    const at::Tensor x = at::ones({size / 2, size}, type), weight = at::ones({size, size}, type);
    const double seconds = seconds_of_product(x, weight);
    spent += seconds;
    best = std::max(best, static_cast<double>(size * size * size) / seconds);  // 2 * rows * in * out.
    if (seconds < 1e-3 && size < 2048) size *= 2;
  }
  return threads * best;
}

}  // namespace titan::nn

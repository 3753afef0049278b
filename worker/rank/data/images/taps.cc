#include "worker/rank/data/images/taps.h"

#include <algorithm>
#include <cmath>

namespace titan::images {
namespace {

// The reach of the filter to both sides, in pixels of the smaller of the two images.
constexpr double kReach = 2;

// Keys' kernel (Cubic Convolution Interpolation for Digital Image Processing, 1981) with a = -1/2.
double cubic(double distance) {
  constexpr double a = -0.5;
  const double x = std::abs(distance);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

}  // namespace

Taps<double> bicubic_taps(int from, int to, int begin, int size) {
  const double scale = static_cast<double>(from) / to, stretch = std::max(scale, 1.0);
  const double reach = kReach * stretch, per_pixel = 1 / stretch;
  Taps<double> taps;
  taps.stride = 2 * static_cast<size_t>(std::ceil(reach)) + 1;
  taps.weights.resize(static_cast<size_t>(size) * taps.stride);
  for (int i = 0; i < size; ++i) {
    const double center = (begin + i + 0.5) * scale;
    const int first = std::max(static_cast<int>(std::floor(center - reach + 0.5)), 0);
    const int count = std::min(static_cast<int>(std::floor(center + reach + 0.5)), from) - first;
    double* const weights = taps.weights.data() + static_cast<size_t>(i) * taps.stride;
    double sum = 0;
    for (int j = 0; j < count; ++j) sum += weights[j] = cubic((first + j - center + 0.5) * per_pixel);
    for (int j = 0; j < count; ++j) weights[j] /= sum;
    taps.first.push_back(first);
    taps.count.push_back(count);
  }
  return taps;
}

Taps<int32_t> bicubic_integer_taps(int from, int to, int begin, int size) {
  Taps<double> exact = bicubic_taps(from, to, begin, size);
  Taps<int32_t> taps{std::move(exact.first), std::move(exact.count), {}, exact.stride};
  taps.weights.reserve(exact.weights.size());
  for (const double weight : exact.weights) {
    taps.weights.push_back(static_cast<int32_t>(std::round(weight * (1 << kWeightBits))));
  }
  return taps;
}

std::vector<int> nearest_pixels(int from, int to, int begin, int size) {
  std::vector<int> pixels;
  const double step = static_cast<double>(from) / to;
  double at = step * 0.5;  // Summed up, because a product would round differently.
  for (int i = 0; i < begin + size; ++i, at += step) {
    if (i >= begin) pixels.push_back(static_cast<int>(at));
  }
  return pixels;
}

}  // namespace titan::images

#include "worker/rank/nn/init.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "worker/rank/nn/random.h"

namespace titan::nn {
namespace {

// Draws chunks that are wholly inside [begin, end) straight to `out`. A chunk at the edge is drawn as a whole and then
// cut, so that its bits do not depend on the cut.
template <typename DrawChunk>
void draw(const DrawChunk& draw_chunk, int64_t begin, int64_t end, float* out) {
  const int64_t first = begin / kChunk, last = (end + kChunk - 1) / kChunk;
  at::parallel_for(first, last, /*grain_size=*/512, [&](int64_t from, int64_t to) {
    float aside[kChunk];
    for (int64_t chunk = from; chunk < to; ++chunk) {
      const int64_t start = chunk * kChunk;
      if (start >= begin && start + kChunk <= end) {
        draw_chunk(chunk, out + (start - begin));
        continue;
      }
      draw_chunk(chunk, aside);
      const int64_t low = std::max(begin, start), high = std::min(end, start + kChunk);
      std::copy(aside + (low - start), aside + (high - start), out + (low - begin));
    }
  });
}

int64_t product_until(at::IntArrayRef sizes, int64_t dim) {
  return std::accumulate(sizes.begin(), sizes.begin() + dim, int64_t{1}, std::multiplies<int64_t>());
}

void draw_values(const Parameter& parameter, uint64_t key, int64_t begin, int64_t end, float* out) {
  const Init& init = parameter.init;
  if (init.kind == Init::Kind::kUniform) {
    const auto bound = static_cast<float>(init.upper);
    return draw([&](int64_t chunk, float* to) { draw_uniform_chunk(key, chunk, bound, to); }, begin, end, out);
  }
  TORCH_CHECK(init.std > 0, parameter.fqn, ": a normal distribution needs a positive standard deviation, got ",
              init.std);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool cut = init.kind == Init::Kind::kTruncatedNormal;
  const TruncatedNormal distribution(init.std, cut ? init.lower : -kInfinity, cut ? init.upper : kInfinity);
  draw([&](int64_t chunk, float* to) { draw_chunk(key, chunk, distribution, to); }, begin, end, out);
}

}  // namespace

void fill(const Parameter& parameter, uint64_t seed, int64_t begin, int64_t end, const at::Tensor& out) {
  const int64_t size = std::accumulate(parameter.global_shape.begin(), parameter.global_shape.end(), int64_t{1},
                                       std::multiplies<int64_t>());
  TORCH_CHECK(0 <= begin && begin <= end && end <= size, parameter.fqn, ": elements [", begin, ", ", end,
              ") are out of range for its size of ", size);
  TORCH_CHECK(out.numel() == end - begin && out.is_contiguous() && out.is_cpu(), parameter.fqn,
              ": needs a contiguous CPU tensor of ", end - begin, " elements to fill, got ", out.sizes());
  if (begin == end) return;
  at::NoGradGuard no_grad;
  const Init& init = parameter.init;
  if (init.kind == Init::Kind::kOnes || init.kind == Init::Kind::kZeros) {
    out.fill_(init.kind == Init::Kind::kOnes ? 1 : 0);
    return;
  }
  const at::Tensor values = out.scalar_type() == at::kFloat ? out : at::empty({end - begin}, at::kFloat);
  draw_values(parameter, stream_key(seed, parameter.fqn), begin, end, values.data_ptr<float>());
  if (!values.is_same(out)) out.copy_(values.view(out.sizes()));
}

void fill_box(const Parameter& parameter, uint64_t seed, const std::vector<int64_t>& offset, const at::Tensor& out) {
  const std::vector<int64_t>& shape = parameter.global_shape;
  const auto dims = static_cast<int64_t>(shape.size());
  TORCH_CHECK(out.dim() == dims && static_cast<int64_t>(offset.size()) == dims && out.is_contiguous(), parameter.fqn,
              ": needs a contiguous box with as many dims and offsets as the parameter, got a box of ", out.sizes(),
              " in a parameter of ", at::IntArrayRef(shape));
  if (out.numel() == 0) return;
  // The trailing dims that the box covers completely, and the dim before them, form one run of elements.
  int64_t run_dim = dims;
  while (run_dim > 0) {
    --run_dim;
    if (out.size(run_dim) != shape[run_dim]) break;
  }
  const int64_t run = out.numel() / product_until(out.sizes(), run_dim);
  at::Tensor flat = out.view({-1});
  std::vector<int64_t> index(run_dim, 0);
  for (int64_t done = 0; done < out.numel(); done += run) {
    int64_t begin = 0;
    for (int64_t d = 0; d < dims; ++d) begin = begin * shape[d] + offset[d] + (d < run_dim ? index[d] : 0);
    fill(parameter, seed, begin, begin + run, flat.narrow(0, done, run));
    for (int64_t d = run_dim; d-- > 0;) {
      if (++index[d] < out.size(d)) break;
      index[d] = 0;
    }
  }
}

}  // namespace titan::nn

#include "worker/rank/model/vision/positions.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "worker/rank/device/host_waits.h"
#include "worker/rank/nn/layers.h"

namespace titan::model {

at::Tensor resize_weights(int64_t from, int64_t to) {
  at::Tensor weights = at::zeros({to, from}, at::kDouble);
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double support = std::max(scale, 1.0);  // Half the width of the triangle filter.
  for (int64_t i = 0; i < to; ++i) {
    double* const row = weights.mutable_data_ptr<double>() + i * from;
    const double center = scale * (static_cast<double>(i) + 0.5);
    const int64_t begin = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const int64_t end = std::min<int64_t>(static_cast<int64_t>(center + support + 0.5), from);
    double sum = 0;
    for (int64_t j = begin; j < end; ++j) {
      const double distance = std::abs(static_cast<double>(j) + 0.5 - center) / support;
      sum += row[j] = std::max(0.0, 1.0 - distance);
    }
    for (int64_t j = begin; j < end; ++j) row[j] /= sum;
  }
  return weights;
}

namespace {

// The weights [length, side] for each length in `lengths`. One copy brings all to the device.
std::map<int64_t, at::Tensor> weights_of(const std::map<int64_t, at::Tensor>& lengths, int64_t side,
                                         const at::TensorOptions& options) {
  std::vector<at::Tensor> all;
  for (const auto& [length, unused] : lengths) all.push_back(resize_weights(side, length));
  const at::Tensor on_device =
      device::copy_async(at::cat(all).to(c10::typeMetaToScalarType(options.dtype())), options.device());
  std::map<int64_t, at::Tensor> weights;
  int64_t begin = 0;
  for (const auto& [length, unused] : lengths) {
    weights[length] = on_device.narrow(0, begin, length);
    begin += length;
  }
  return weights;
}

}  // namespace

at::Tensor resize_positions(const at::Tensor& table, const std::vector<models::PatchGrid>& grids) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(table.size(0)))));
  const int64_t dim = table.size(1);
  TORCH_CHECK(side * side == table.size(0), "positions: a table of ", table.size(0), " rows is not square");
  const at::Tensor exact = table.to(nn::accumulate_type(table.scalar_type()));
  std::map<int64_t, at::Tensor> weights;
  for (const models::PatchGrid& grid : grids) weights[grid.height], weights[grid.width];
  weights = weights_of(weights, side, exact.options());
  std::map<std::pair<int64_t, int64_t>, at::Tensor> resized;
  std::vector<at::Tensor> all;
  for (const models::PatchGrid& grid : grids) {
    at::Tensor& one = resized[{grid.height, grid.width}];
    if (!one.defined()) {
      const at::Tensor rows = at::matmul(weights[grid.height], exact.view({side, side * dim}));  // [height, side * dim]
      one = at::matmul(weights[grid.width], rows.view({grid.height, side, dim}));                // [height, width, dim]
      one = one.view({grid.patches(), dim}).to(table.scalar_type());
    }
    all.push_back(one);
  }
  return at::cat(all);
}

}  // namespace titan::model

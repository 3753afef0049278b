#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"

#include <algorithm>
#include <utility>

namespace titan::checkpoint {
namespace {

// Reorders the rows of each head: from halves (i, i + D/2) in the file to neighbors (2i, 2i + 1) in the model.
at::Tensor halves_to_pairs(const at::Tensor& value, int64_t head_rows) {
  const int64_t heads = value.size(0) / head_rows;
  return value.reshape({heads, 2, head_rows / 2, -1}).transpose(1, 2).reshape(value.sizes());
}

at::Tensor pairs_to_halves(const at::Tensor& value, int64_t head_rows) {
  const int64_t heads = value.size(0) / head_rows;
  return value.reshape({heads, head_rows / 2, 2, -1}).transpose(1, 2).reshape(value.sizes());
}

int64_t head_rows(const HfLayout& layout, const std::vector<int64_t>& shape) {
  return shape.at(0) / layout.permute_heads;
}

void swap_last_two(std::vector<int64_t>& dims) { std::swap(dims.at(dims.size() - 1), dims.at(dims.size() - 2)); }

// Returns tensor number `key` of a layout with `rows`.
at::Tensor tensor_of_rows(const HfLayout& layout, const at::Tensor& full, size_t key) {
  std::vector<std::pair<int64_t, at::Tensor>> pieces;  // First row there, and the rows.
  int64_t row = 0;
  for (const HfRows& rows : layout.rows) {
    if (rows.key == key) pieces.emplace_back(rows.begin, full.narrow(0, row, rows.count));
    row += rows.count;
  }
  if (pieces.size() == 1) return pieces[0].second;
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<at::Tensor> ordered;
  for (auto& [begin, piece] : pieces) ordered.push_back(std::move(piece));
  return at::cat(ordered, 0);
}

}  // namespace

std::vector<int64_t> hf_shape(const HfLayout& layout, const std::vector<int64_t>& shape, size_t key) {
  std::vector<int64_t> there = shape;
  if (!layout.rows.empty()) {
    there.at(0) = 0;
    for (const HfRows& rows : layout.rows) there[0] += rows.key == key ? rows.count : 0;
    return there;
  }
  if (!layout.kernel.empty()) {
    there = layout.kernel;
    there.insert(there.begin(), shape.at(0));
  }
  if (layout.stacked) there.erase(there.begin());
  if (layout.transposed) swap_last_two(there);
  if (layout.parts > 1) there.back() *= layout.parts;
  if (layout.total_rows > 0) there.at(0) = layout.total_rows;
  return there;
}

std::vector<HfRead> hf_reads(const HfLayout& layout, const Box& box) {
  std::vector<HfRead> reads;
  const int64_t first = box.offset.at(0), end = first + box.shape.at(0);
  int64_t row = 0;  // The parameter's row that `rows` begins with.
  for (const HfRows& rows : layout.rows) {
    const int64_t from = std::max(first, row), to = std::min(end, row + rows.count);
    if (from < to) {
      HfRead& read = reads.emplace_back(HfRead{rows.key, box});
      read.box.offset[0] = rows.begin + from - row;
      read.box.shape[0] = to - from;
    }
    row += rows.count;
  }
  return reads;
}

Box hf_box(const HfLayout& layout, const std::vector<int64_t>& shape, const Box& box) {
  Box there = box;
  if (layout.permute_heads > 0) {
    const int64_t rows = head_rows(layout, shape);
    const int64_t first = box.offset[0] / rows, last = (box.offset[0] + box.shape[0] + rows - 1) / rows;
    there.offset[0] = first * rows;
    there.shape[0] = (last - first) * rows;
  }
  if (!layout.kernel.empty()) {  // Whole rows, because columns of the matrix are not a box of the kernel.
    there.shape = hf_shape(layout, shape);
    there.shape[0] = box.shape[0];
    there.offset.assign(there.shape.size(), 0);
    there.offset[0] = box.offset[0];
  }
  if (layout.stacked) {
    there.offset.erase(there.offset.begin());
    there.shape.erase(there.shape.begin());
  }
  if (layout.transposed) {
    swap_last_two(there.offset);
    swap_last_two(there.shape);
  }
  if (layout.parts > 1) there.offset.back() += layout.part * hf_shape(layout, shape).back() / layout.parts;
  if (layout.total_rows > 0) there.offset.at(0) += layout.first_row;
  return there;
}

at::Tensor from_hf_box(const HfLayout& layout, const std::vector<int64_t>& shape, const Box& box,
                       const at::Tensor& read) {
  if (!layout.kernel.empty()) return read.flatten(1).narrow(1, box.offset.at(1), box.shape.at(1));
  at::Tensor value = layout.transposed ? read.transpose(-1, -2) : read;
  if (layout.permute_heads > 0) {
    const int64_t rows = head_rows(layout, shape);
    value = halves_to_pairs(value, rows).narrow(0, box.offset[0] % rows, box.shape[0]);
  }
  return value;
}

const HfLayout* layout_to_write(const std::vector<HfLayout>& layouts) {
  return layouts.empty() || layouts[0].read_only ? nullptr : layouts.data();
}

at::ScalarType stored_type(const HfLayout& layout, at::ScalarType wanted) {
  const bool keep =
      layout.float32 == KeepFloat32::kAlways || (layout.float32 == KeepFloat32::kNotFloat16 && wanted == at::kHalf);
  return keep ? at::kFloat : wanted;
}

std::vector<at::Tensor> to_hf(const HfLayout& layout, const at::Tensor& full) {
  if (!layout.rows.empty()) {
    std::vector<at::Tensor> tensors;
    for (size_t key = 0; key < layout.keys.size(); ++key) tensors.push_back(tensor_of_rows(layout, full, key));
    return tensors;
  }
  at::Tensor value = layout.kernel.empty() ? full : full.unflatten(1, layout.kernel);
  if (layout.permute_heads > 0) value = pairs_to_halves(value, value.size(0) / layout.permute_heads);
  if (layout.transposed) value = value.transpose(-1, -2);
  if (!layout.stacked) return {value};
  return value.unbind(0);
}

}  // namespace titan::checkpoint

#include "worker/rank/checkpoint/formats/hugging_face/hf_coded.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_dequantize.h"
#include "worker/rank/checkpoint/shards/tensor_view.h"

namespace titan::checkpoint {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kSlab = int64_t{2} << 20;  // Quantized bytes held at once, in memory that is reused.

absl::Status damaged(const Stored& tensor, const std::string& what) {
  return absl::DataLossError(
      absl::StrCat(tensor.path, ": ", tensor.entry.key, ": ", what, ": the file is damaged, download it again"));
}

// Widens `box` where leaving bytes out would not save a page.
Box widened(const TensorEntry& entry, const Box& box) {
  Box wide = box;
  auto run = static_cast<int64_t>(c10::elementSize(entry.dtype));
  for (size_t d = box.shape.size(); d-- > 1;) {
    if ((entry.shape[d] - box.shape[d]) * run >= kPage) break;
    wide.offset[d] = 0;
    wide.shape[d] = entry.shape[d];
    run *= entry.shape[d];
  }
  return wide;
}

// The smallest range of blocks of `size` that holds [offset, offset + count).
struct Range {
  int64_t first = 0, count = 0;
};
Range blocks_of(int64_t offset, int64_t count, int64_t size) {
  const int64_t first = offset / size;
  return {first, (offset + count + size - 1) / size - first};
}

// Calls `visit(first, count)` for parts of `rows`, each of about kSlab bytes and at least one row.
template <typename Visit>
absl::Status for_each_slab(int64_t rows, int64_t row_bytes, Visit visit) {
  const int64_t step = std::max<int64_t>(1, kSlab / std::max<int64_t>(1, row_bytes));
  for (int64_t first = 0; first < rows; first += step) {
    TITAN_RETURN_IF_ERROR(visit(first, std::min(step, rows - first)));
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> read_float8_scales(const Stored& scales, const Box& box) {
  TITAN_ASSIGN_OR_RETURN(const at::Tensor read, read_stored(scales, box));
  at::Tensor values = read.to(at::kFloat).contiguous();
  const float* const all = values.const_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    if (std::isfinite(all[i]) && all[i] >= 0) continue;
    return damaged(scales, absl::StrCat("the scale of block [", box.offset[0] + i / box.shape[1], ", ",
                                        box.offset[1] + i % box.shape[1], "] is ", all[i]));
  }
  return values;
}

absl::StatusOr<at::Tensor> read_mxfp4_scales(const Stored& scales, const Box& box) {
  TITAN_ASSIGN_OR_RETURN(const at::Tensor read, read_stored(scales, box));
  at::Tensor values = (read.scalar_type() == at::kByte ? read : read.view(at::kByte)).contiguous();
  const void* const bad = std::memchr(values.const_data_ptr(), 255, values.nbytes());
  if (bad != nullptr) return damaged(scales, "an exponent is 255, which stands for NaN");
  return values;
}

}  // namespace

absl::StatusOr<at::Tensor> read_stored(const Stored& tensor, const Box& box) {
  const TensorEntry& entry = tensor.entry;
  const auto size = static_cast<int64_t>(c10::elementSize(entry.dtype));
  const Box wide = widened(entry, box);
  at::Tensor out = at::empty(wide.shape, at::TensorOptions().dtype(entry.dtype));
  auto* const bytes = static_cast<char*>(out.mutable_data_ptr());
  TITAN_RETURN_IF_ERROR(
      for_each_run(wide, whole(entry.shape), wide, [&](int64_t from, int64_t to, int64_t count) -> absl::Status {
        return tensor.file->read(entry.begin + from * size, count * size, bytes + to * size);
      }));
  return part_of(std::move(out), wide, box);
}

absl::StatusOr<at::Tensor> read_float8(const Stored& tensor, const Stored& scales, const Quantization& said,
                                       const Box& box) {
  at::Tensor out = at::empty(box.shape, at::kFloat);
  if (out.numel() == 0) return out;
  const Range down = blocks_of(box.offset[0], box.shape[0], said.block_rows);
  const Range along = blocks_of(box.offset[1], box.shape[1], said.block_columns);
  TITAN_ASSIGN_OR_RETURN(const at::Tensor factors,
                         read_float8_scales(scales, {{down.first, along.first}, {down.count, along.count}}));
  const auto decode = [&](int64_t first, int64_t count) -> absl::Status {
    const int64_t row = box.offset[0] + first;
    TITAN_ASSIGN_OR_RETURN(const at::Tensor read, read_stored(tensor, {{row, box.offset[1]}, {count, box.shape[1]}}));
    const at::Tensor dense = read.contiguous();
    const Float8Box part{.bytes = static_cast<const uint8_t*>(dense.const_data_ptr()),
                         .rows = count,
                         .columns = box.shape[1],
                         .first_row = row - down.first * said.block_rows,
                         .first_column = box.offset[1] - along.first * said.block_columns,
                         .scales = factors.const_data_ptr<float>(),
                         .scale_columns = along.count,
                         .block_rows = said.block_rows,
                         .block_columns = said.block_columns};
    if (dequantize_float8(part, out.mutable_data_ptr<float>() + first * box.shape[1])) return absl::OkStatus();
    return damaged(tensor, absl::StrCat("a number of rows ", row, " to ", row + count, " is NaN"));
  };
  TITAN_RETURN_IF_ERROR(for_each_slab(box.shape[0], tensor.entry.shape[1], decode));
  return out;
}

absl::StatusOr<at::Tensor> read_mxfp4(const Stored& tensor, const Stored& scales, const Box& box) {
  at::Tensor out = at::empty(box.shape, at::kFloat);
  if (out.numel() == 0) return out;
  const Range groups = blocks_of(box.offset.back(), box.shape.back(), kMxfp4Group);
  Box exponents_there = box;  // Box of the scales; the bytes have one more dim.
  exponents_there.offset.back() = groups.first;
  exponents_there.shape.back() = groups.count;
  const auto decode = [&](int64_t first, int64_t count) -> absl::Status {
    Box there = exponents_there;
    there.offset[0] += first;
    there.shape[0] = count;
    TITAN_ASSIGN_OR_RETURN(const at::Tensor exponents, read_mxfp4_scales(scales, there));
    there.offset.push_back(0);
    there.shape.push_back(tensor.entry.shape.back());
    TITAN_ASSIGN_OR_RETURN(const at::Tensor read, read_stored(tensor, there));
    const at::Tensor bytes = read.contiguous();
    const at::Tensor part = out.narrow(0, first, count);
    there.shape.pop_back();
    there.shape.back() *= kMxfp4Group;
    const at::Tensor numbers = there.shape.back() == box.shape.back() ? part : at::empty(there.shape, at::kFloat);
    dequantize_mxfp4(bytes.const_data_ptr<uint8_t>(), exponents.const_data_ptr<uint8_t>(), exponents.numel(),
                     numbers.mutable_data_ptr<float>());
    if (!numbers.is_same(part)) {
      part.copy_(numbers.narrow(-1, box.offset.back() - groups.first * kMxfp4Group, box.shape.back()));
    }
    return absl::OkStatus();
  };
  const int64_t row_bytes = tensor.entry.bytes() / std::max<int64_t>(1, tensor.entry.shape[0]);
  TITAN_RETURN_IF_ERROR(for_each_slab(box.shape[0], row_bytes, decode));
  return out;
}

}  // namespace titan::checkpoint

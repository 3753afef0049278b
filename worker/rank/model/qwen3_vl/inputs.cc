#include "worker/rank/model/qwen3_vl/inputs.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/models/qwen3_vl.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/model/decoder/options.h"
#include "worker/rank/model/vision/image_tokens.h"
#include "worker/rank/nn/rope.h"

namespace titan::model::qwen3_vl {
namespace {

using models::PatchGrid;
using models::Qwen3VlSpec;

// Positions of the tokens of one row, [T] for each axis.
struct RowPlaces {
  int64_t* axes[3];
};

// Puts an image's tokens from token `at` on, and returns the first position after it.
int64_t place_image(RowPlaces places, int64_t at, int64_t start, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column, ++at) {
      places.axes[0][at] = start;
      places.axes[1][at] = start + row;
      places.axes[2][at] = start + column;
    }
  }
  return start + std::max(rows, columns);
}

absl::Status wrong_images(int64_t row, int64_t at, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("row ", row, " of the batch, token ", at, ": ", what));
}

absl::Status place_row(int64_t row, std::span<const int64_t> tokens, std::span<const PatchGrid> grids,
                       const Qwen3VlSpec& spec, RowPlaces places) {
  const auto length = static_cast<int64_t>(tokens.size());
  size_t image = 0;
  int64_t position = 0;
  for (int64_t at = 0; at < length;) {
    const int64_t token = tokens[static_cast<size_t>(at)];
    if (token == spec.video_token) {
      return absl::UnimplementedError(
          absl::StrCat("row ", row, " of the batch, token ", at, ": videos (token ", token, ") are not supported"));
    }
    if (token != spec.image_token) {
      for (int64_t* const axis : places.axes) axis[at] = position;
      ++position, ++at;
      continue;
    }
    if (image == grids.size())
      return wrong_images(row, at, absl::StrCat("more image tokens than those of its ", grids.size(), " images"));
    const int64_t rows = grids[image].height / spec.vision.merge, columns = grids[image].width / spec.vision.merge;
    const auto run = tokens.subspan(static_cast<size_t>(at));
    const auto found = std::find_if(run.begin(), run.end(), [&](int64_t one) { return one != spec.image_token; });
    if (found - run.begin() < rows * columns) {
      return wrong_images(row, at,
                          absl::StrCat("image ", image, " has ", rows, " x ", columns, " tokens, but only ",
                                       found - run.begin(), " image tokens follow"));
    }
    position = place_image(places, at, position, rows, columns);
    at += rows * columns;
    ++image;
  }
  if (image == grids.size()) return absl::OkStatus();
  return wrong_images(row, length, absl::StrCat("the row has ", grids.size(), " images, but tokens of ", image));
}

void check_images(const at::Tensor& tokens, const RowImages& images) {
  int64_t count = 0;
  for (const int64_t of_row : images.images_of_row) count += of_row;
  TORCH_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong && tokens.is_cpu(),
              "images: tokens must be int64 [B, T] on the CPU");
  TORCH_CHECK(static_cast<int64_t>(images.images_of_row.size()) == tokens.size(0) &&
                  count == static_cast<int64_t>(images.grids.size()),
              "images: ", images.grids.size(), " images are not those of ", tokens.size(0), " rows");
}

}  // namespace

absl::StatusOr<at::Tensor> rope_positions(const at::Tensor& tokens, const RowImages& images, const Qwen3VlSpec& spec) {
  check_images(tokens, images);
  const at::Tensor dense = tokens.contiguous();
  const auto rows = static_cast<size_t>(dense.size(0)), length = static_cast<size_t>(dense.size(1));
  at::Tensor positions = at::empty({3, dense.size(0), dense.size(1)}, at::kLong);
  const std::span<const PatchGrid> grids(images.grids);
  size_t first = 0;
  for (size_t row = 0; row < rows; ++row) {
    RowPlaces places{};
    for (size_t axis = 0; axis < 3; ++axis)
      places.axes[axis] = positions.mutable_data_ptr<int64_t>() + (axis * rows + row) * length;
    const auto count = static_cast<size_t>(images.images_of_row[row]);
    TITAN_RETURN_IF_ERROR(place_row(static_cast<int64_t>(row), {dense.const_data_ptr<int64_t>() + row * length, length},
                                    grids.subspan(first, count), spec, places));
    first += count;
  }
  return positions;
}

at::Tensor token_rotation(const models::ModelSpec& text, const Qwen3VlSpec& spec, const at::Tensor& positions,
                          at::ScalarType compute) {
  return nn::rope_rows(rope_options(text, /*seq_len=*/0), positions, models::mrope_axes(text, spec), compute);
}

absl::Status add_rotation(const models::ModelSpec& text, const Qwen3VlSpec& spec, const at::Tensor& tokens,
                          const RowImages& images, at::ScalarType compute, nn::MicrobatchContext& context) {
  TITAN_ASSIGN_OR_RETURN(at::Tensor positions, rope_positions(tokens, images, spec));
  positions = device::copy_async(positions, context.tokens.device());
  if (context.positions.defined()) positions = positions.index_select(2, context.positions);  // A share of each row.
  context.tensors[kTokenRotation] = token_rotation(text, spec, positions, compute);
  return absl::OkStatus();
}

absl::Status add_places(const models::ModelSpec& text, const Qwen3VlSpec& spec, const at::Tensor& tokens,
                        const RowImages& images, at::ScalarType compute, nn::MicrobatchContext& context) {
  TITAN_RETURN_IF_ERROR(add_rotation(text, spec, tokens, images, compute, context));
  const at::Tensor is_image = tokens.eq(spec.image_token);
  at::Tensor rows = image_rows(tokens, spec.image_token, at::arange(is_image.sum().item<int64_t>(), at::kLong));
  rows = device::copy_async(rows, context.tokens.device());
  if (context.positions.defined()) rows = rows.index_select(1, context.positions);
  context.tensors[kImageRows] = rows;
  return absl::OkStatus();
}

}  // namespace titan::model::qwen3_vl

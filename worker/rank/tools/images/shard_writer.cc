#include "worker/rank/tools/images/shard_writer.h"

#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "worker/rank/checkpoint/shards/safetensors.h"

namespace titan::tools {
namespace {

using checkpoint::TensorEntry;

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::string_view bytes_of(const std::vector<int64_t>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t)};
}

int64_t checksum(const EncodedSample& sample) {
  uint32_t sum = 0;
  for (const std::string_view bytes :
       {bytes_of(sample.latents), bytes_of(sample.t5), bytes_of(sample.clip), std::string_view(sample.caption)}) {
    sum = storage::crc32c(bytes.data(), bytes.size(), sum);
  }
  return sum;
}

std::vector<int64_t> with_rows(int64_t rows, at::IntArrayRef shape) {
  std::vector<int64_t> all = {rows};
  all.insert(all.end(), shape.begin(), shape.end());
  return all;
}

}  // namespace

absl::StatusOr<data::EncodingsManifest::Shard> write_encodings(storage::Files& files, const std::string& folder,
                                                               const std::string& name, const std::string& mark,
                                                               const std::vector<EncodedSample>& samples) {
  const auto rows = static_cast<int64_t>(samples.size());
  data::EncodingsManifest::Shard shard{.name = name, .samples = rows};
  if (rows == 0) return shard;
  std::vector<int64_t> sums, ends, sources;
  int64_t end = 0;
  for (const EncodedSample& sample : samples) {
    sums.push_back(checksum(sample));
    ends.push_back(end += static_cast<int64_t>(sample.caption.size()));
    sources.push_back(sample.source);
  }
  const EncodedSample& first = samples.front();
  const at::ScalarType type = first.t5.scalar_type();
  // The order of types, from the widest, is that in which layout() places them.
  std::vector<TensorEntry> entries = {
      {.key = data::kStoredSums, .dtype = at::kLong, .shape = {rows}},
      {.key = data::kStoredCaptionEnds, .dtype = at::kLong, .shape = {rows}},
      {.key = data::kStoredSource, .dtype = at::kLong, .shape = {rows}},
      {.key = data::kStoredLatents, .dtype = type, .shape = with_rows(rows, first.latents.sizes())},
      {.key = data::kStoredT5, .dtype = type, .shape = with_rows(rows, first.t5.sizes())},
      {.key = data::kStoredClip, .dtype = type, .shape = with_rows(rows, first.clip.sizes())},
      {.key = data::kStoredCaptions, .dtype = at::kByte, .shape = {end}}};
  TITAN_ASSIGN_OR_RETURN(const checkpoint::Layout layout, checkpoint::layout(entries));
  std::string head = layout.header;
  for (const std::vector<int64_t>* numbers : {&sums, &ends, &sources}) head.append(bytes_of(*numbers));
  shard.bytes = layout.file_bytes;
  shard.head_bytes = static_cast<int64_t>(head.size());
  shard.head_sum = storage::crc32c(head.data(), head.size());

  const std::string path = storage::join_path(folder, name), temporary = absl::StrCat(path, ".", mark, ".tmp");
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<storage::WritableFile> file,
                         storage::create_large(files, temporary, layout.file_bytes));
  TITAN_RETURN_IF_ERROR(file->append(head));
  for (const at::Tensor EncodedSample::*member : {&EncodedSample::latents, &EncodedSample::t5, &EncodedSample::clip}) {
    for (const EncodedSample& sample : samples) TITAN_RETURN_IF_ERROR(file->append(bytes_of(sample.*member)));
  }
  for (const EncodedSample& sample : samples) TITAN_RETURN_IF_ERROR(file->append(sample.caption));
  TITAN_RETURN_IF_ERROR(file->sync());
  TITAN_RETURN_IF_ERROR(file->close());
  TITAN_RETURN_IF_ERROR(files.rename(temporary, path));
  TITAN_RETURN_IF_ERROR(files.sync_folder(folder));
  return shard;
}

absl::StatusOr<std::string> empty_file(const at::Tensor& t5, const at::Tensor& clip) {
  std::vector<TensorEntry> entries = {
      {.key = data::kStoredT5, .dtype = t5.scalar_type(), .shape = t5.sizes().vec()},
      {.key = data::kStoredClip, .dtype = clip.scalar_type(), .shape = clip.sizes().vec()}};
  TITAN_ASSIGN_OR_RETURN(const checkpoint::Layout layout, checkpoint::layout(entries));
  return std::string(layout.header).append(bytes_of(t5)).append(bytes_of(clip));
}

}  // namespace titan::tools

#include "worker/rank/data/multimodal/batch.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace titan::data {
namespace {

constexpr int64_t kIgnoreIndex = -100;

void append_row(MultimodalRow row, const MultimodalOptions& options, MultimodalBatch& batch) {
  const size_t begin = batch.tokens.size(), end = begin + static_cast<size_t>(options.seq_len);
  int64_t document = 0, images = 0;
  for (MultimodalSample& sample : row) {
    batch.tokens.insert(batch.tokens.end(), sample.tokens.begin(), sample.tokens.end());
    batch.labels.insert(batch.labels.end(), sample.labels.begin() + 1, sample.labels.end());
    batch.labels.push_back(kIgnoreIndex);
    batch.documents.insert(batch.documents.end(), sample.tokens.size(), document++);
    images += static_cast<int64_t>(sample.images.size());
    std::move(sample.images.begin(), sample.images.end(), std::back_inserter(batch.images));
  }
  batch.images_of_row.push_back(images);
  const size_t filled = batch.tokens.size();
  batch.padding_of_row.push_back(static_cast<int64_t>(end - filled));
  batch.tokens.resize(end, options.pad_token);
  batch.labels.resize(end, kIgnoreIndex);
  batch.documents.resize(end);
  std::iota(batch.documents.begin() + static_cast<int64_t>(filled), batch.documents.end(), document);
  ++batch.rows;
}

}  // namespace

MultimodalBatch collate(std::vector<MultimodalRow> rows, const MultimodalOptions& options) {
  MultimodalBatch batch{.seq_len = options.seq_len};
  for (MultimodalRow& row : rows) append_row(std::move(row), options, batch);
  return batch;
}

MultimodalBatch take_rows(MultimodalBatch& batch, int64_t first, int64_t count) {
  MultimodalBatch part{.rows = count, .seq_len = batch.seq_len};
  const auto some = [&](const std::vector<int64_t>& all) {
    return std::vector<int64_t>(all.begin() + first * batch.seq_len, all.begin() + (first + count) * batch.seq_len);
  };
  part.tokens = some(batch.tokens);
  part.labels = some(batch.labels);
  part.documents = some(batch.documents);
  const auto counts = batch.images_of_row.begin() + first;
  part.images_of_row.assign(counts, counts + count);
  const auto padding = batch.padding_of_row.begin() + first;
  part.padding_of_row.assign(padding, padding + count);
  const auto begin = batch.images.begin() + std::accumulate(batch.images_of_row.begin(), counts, int64_t{0});
  const auto end = begin + std::accumulate(counts, counts + count, int64_t{0});
  std::move(begin, end, std::back_inserter(part.images));
  return part;
}

void append(MultimodalBatch batch, MultimodalBatch& to) {
  const auto add = [](const auto& from, auto& all) { all.insert(all.end(), from.begin(), from.end()); };
  to.rows += batch.rows;
  add(batch.tokens, to.tokens);
  add(batch.labels, to.labels);
  add(batch.documents, to.documents);
  add(batch.images_of_row, to.images_of_row);
  add(batch.padding_of_row, to.padding_of_row);
  std::move(batch.images.begin(), batch.images.end(), std::back_inserter(to.images));
}

absl::StatusOr<std::vector<float>> packed_patches(const std::vector<SampleImage>& images, int64_t patch_values) {
  std::vector<float> all;
  for (size_t i = 0; i < images.size(); ++i) {
    const auto values = static_cast<int64_t>(images[i].patches.size());
    if (values != images[i].grid.patches() * patch_values) {
      return absl::FailedPreconditionError(
          absl::StrCat("image ", i, " has ", values, " numbers, need ", images[i].grid.patches() * patch_values));
    }
    all.insert(all.end(), images[i].patches.begin(), images[i].patches.end());
  }
  return all;
}

}  // namespace titan::data

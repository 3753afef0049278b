#include "worker/rank/model/vlm/row_dealer.h"

#include <algorithm>
#include <any>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/images/image_size.h"
#include "worker/rank/data/multimodal/collator.h"
#include "worker/rank/data/rows/stream_state.h"
#include "worker/rank/data/samples/row_balance.h"

namespace titan::model::vlm {
namespace {

int64_t bytes_of(const std::any& value) {
  int64_t bytes = 0;
  for (const data::SampleImage& image : std::any_cast<const data::MultimodalSample&>(value).images)
    bytes += static_cast<int64_t>(image.patches.size() * sizeof(float));
  return bytes;
}

// One sample a row.
class SampleDealer final : public RowDealer {
 public:
  SampleDealer(std::shared_ptr<data::SampleSet> samples, const data::SampleOrder& order, data::DecodeSample decode,
               const RowDealerOptions& options)
      : options_(options), rows_(std::move(samples), order, std::move(decode), options.rows) {}

  absl::StatusOr<data::MultimodalBatch> next() override {
    std::vector<data::MultimodalRow> rows(static_cast<size_t>(options_.rows.batch));
    for (data::MultimodalRow& row : rows) {
      TITAN_ASSIGN_OR_RETURN(std::optional<data::SampleRow> one, rows_.next());
      if (one) row.push_back(std::any_cast<data::MultimodalSample>(std::move(one->value)));
    }
    return data::collate(std::move(rows), options_.limits);
  }
  nlohmann::json state() const override { return rows_.state(); }
  absl::Status restore(const nlohmann::json& state) override { return rows_.restore(state); }
  std::vector<std::string> take_warnings() override { return rows_.take_warnings(); }
  bool reads_all_samples() const override { return false; }
  data::SampleRows& samples() override { return rows_; }

 private:
  const RowDealerOptions options_;
  data::SampleRows rows_;
};

// All samples of the dataset, as the collator reads them.
class AllSamples final : public data::SampleSource {
 public:
  explicit AllSamples(std::unique_ptr<data::SampleRows> rows) : rows_(std::move(rows)) {}

  absl::StatusOr<data::MultimodalSample> next() override {
    TITAN_ASSIGN_OR_RETURN(std::optional<data::SampleRow> row, rows_->next());
    if (!row) return absl::OutOfRangeError("the dataset is at its end");
    return std::any_cast<data::MultimodalSample>(std::move(row->value));
  }
  nlohmann::json position() const override { return rows_->state(); }
  absl::Status seek(const nlohmann::json& position) override { return rows_->restore(position); }

 private:
  const std::unique_ptr<data::SampleRows> rows_;
};

// Rows that the collator makes of all samples. It makes some at a time, and a global microbatch may end between them.
class CollatedDealer final : public RowDealer {
 public:
  CollatedDealer(data::Collator collator, data::SampleRows* samples, const RowDealerOptions& options)
      : options_(options), samples_(samples), collator_(std::move(collator)), before_(collator_.state()) {}

  absl::StatusOr<data::MultimodalBatch> next() override {
    const data::SampleRows::Options& share = options_.rows;
    const int64_t first = share.dp_rank * share.batch;
    data::MultimodalBatch mine{.seq_len = options_.limits.seq_len};
    if (options_.balance.cost_of != nullptr && share.dp_size > 1) {
      TITAN_ASSIGN_OR_RETURN(data::MultimodalBatch all, take(0, share.batch * share.dp_size));
      pad(share.batch * share.dp_size, all);
      const std::vector<int64_t> dealt =
          data::balance_rows(costs_of(all), {.ranks = share.dp_size, .rows = share.batch});
      for (int64_t place = first; place < first + share.batch; ++place)
        data::append(data::take_rows(all, dealt[static_cast<size_t>(place)], 1), mine);
      return mine;
    }
    TITAN_ASSIGN_OR_RETURN(mine, take(first, share.batch));
    pad(share.batch, mine);
    return mine;
  }

  nlohmann::json state() const override {
    if (given_ == made_.rows) return {{"rows_before", collator_.state()}, {"given", 0}};
    return {{"rows_before", before_}, {"given", given_}};
  }

  absl::Status restore(const nlohmann::json& state) override {
    if (!state.is_object() || !state.contains("rows_before")) {
      return absl::InvalidArgumentError(
          "dataloader state: not one of packed rows: data.packing_buffer_size, data.max_images_per_batch or the "
          "dataset has changed");
    }
    TITAN_ASSIGN_OR_RETURN(const int64_t given, data::state_number(state, "given"));
    TITAN_RETURN_IF_ERROR(collator_.restore(state["rows_before"]));
    made_ = {};
    given_ = 0;
    if (given == 0) return absl::OkStatus();
    TITAN_RETURN_IF_ERROR(make());
    if (given >= made_.rows) {
      return absl::InvalidArgumentError(absl::StrCat("dataloader state: after row ", given, " of ", made_.rows,
                                                     ": training.local_batch_size has changed"));
    }
    given_ = given;
    return absl::OkStatus();
  }

  std::vector<std::string> take_warnings() override {
    std::vector<std::string> warnings = samples_->take_warnings();
    for (std::string& one : collator_.take_warnings()) warnings.push_back(std::move(one));
    return warnings;
  }
  bool reads_all_samples() const override { return true; }
  data::SampleRows& samples() override { return *samples_; }

 private:
  // Passes over the next global microbatch, and returns its rows [first, first + count) that there are.
  absl::StatusOr<data::MultimodalBatch> take(int64_t first, int64_t count) {
    const int64_t all = options_.rows.batch * options_.rows.dp_size;
    data::MultimodalBatch taken{.seq_len = options_.limits.seq_len};
    for (int64_t row = 0; row < all;) {
      if (given_ == made_.rows) {
        if (const absl::Status none = make(); !none.ok()) {
          if (!absl::IsOutOfRange(none) || row == 0) return none;
          break;  // The rest of the microbatch is padding.
        }
      }
      const int64_t begin = std::max(row, first), end = std::min(row + made_.rows - given_, first + count);
      const int64_t used = std::min(made_.rows - given_, all - row);
      if (begin < end) data::append(data::take_rows(made_, given_ + begin - row, end - begin), taken);
      given_ += used;
      row += used;
    }
    return taken;
  }

  void pad(int64_t rows, data::MultimodalBatch& batch) const {
    const auto missing = static_cast<size_t>(rows - batch.rows);
    data::append(data::collate(std::vector<data::MultimodalRow>(missing), options_.limits), batch);
  }

  std::vector<int64_t> costs_of(const data::MultimodalBatch& batch) const {
    std::vector<int64_t> costs;
    auto image = batch.images.begin();
    for (const int64_t images : batch.images_of_row) {
      int64_t& cost = costs.emplace_back(0);
      for (int64_t i = 0; i < images; ++i) cost += options_.balance.cost_of((image++)->grid);
    }
    return costs;
  }

  // Makes the next rows.
  absl::Status make() {
    before_ = collator_.state();
    TITAN_ASSIGN_OR_RETURN(made_, collator_.next());
    given_ = 0;
    return absl::OkStatus();
  }

  const RowDealerOptions options_;
  data::SampleRows* const samples_;  // The collator's.
  data::Collator collator_;
  nlohmann::json before_;       // The collator's position before `made_`.
  data::MultimodalBatch made_;  // The newest rows.
  int64_t given_ = 0;           // Number of them that were in microbatches.
};

// Bytes of an image that are looked at for its size, one number after another: a JPEG image may have a preview or a
// colour profile first.
constexpr int64_t kHeaderBytes[] = {2048, int64_t{1} << 18, std::numeric_limits<int64_t>::max()};

// Returns the cost of a sample with one image. An image whose size cannot be read will not be used, and costs nothing.
absl::StatusOr<int64_t> cost_of_sample(data::SampleSet& samples, int64_t sample, const ImageBalance& balance) {
  for (const int64_t bytes : kHeaderBytes) {
    TITAN_ASSIGN_OR_RETURN(const std::string start, samples.image_start(sample, bytes));
    const std::optional<images::ImageSize> size = images::image_size(start);
    if (!size && static_cast<int64_t>(start.size()) == bytes) continue;
    const absl::StatusOr<models::PatchGrid> grid =
        size ? balance.grid_of(*size) : absl::InvalidArgumentError("no header of an image");
    return grid.ok() ? balance.cost_of(*grid) : 0;
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowDealer>> open_rows(std::shared_ptr<data::SampleSet> samples,
                                                     const data::SampleOrder& order, data::DecodeSample decode,
                                                     const RowDealerOptions& wanted) {
  TITAN_RETURN_IF_ERROR(data::check_options(wanted.limits));
  RowDealerOptions options = wanted;
  options.rows.bytes_of = bytes_of;
  const data::MultimodalOptions& limits = options.limits;
  if (options.one_image_a_sample && limits.packing_window == 0 && limits.max_images >= limits.rows) {
    if (options.balance.cost_of != nullptr) {
      options.rows.microbatches = options.balance.microbatches;
      options.rows.cost_of = [balance = options.balance](data::SampleSet& set, int64_t sample) {
        return cost_of_sample(set, sample, balance);
      };
    }
    return std::make_unique<SampleDealer>(std::move(samples), order, std::move(decode), options);
  }
  data::SampleRows::Options all = options.rows;
  all.batch = 1;
  all.dp_rank = 0;
  all.dp_size = 1;
  auto rows = std::make_unique<data::SampleRows>(std::move(samples), order, std::move(decode), all);
  data::SampleRows* const reader = rows.get();
  TITAN_ASSIGN_OR_RETURN(data::Collator collator,
                         data::Collator::open(std::make_unique<AllSamples>(std::move(rows)), limits));
  return std::make_unique<CollatedDealer>(std::move(collator), reader, options);
}

}  // namespace titan::model::vlm

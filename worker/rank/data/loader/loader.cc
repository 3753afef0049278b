#include "worker/rank/data/loader/loader.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/sync/sync.h"
#include "worker/rank/data/loader/batch.h"
#include "worker/rank/data/rows/open_rows.h"
#include "worker/rank/data/rows/stream_state.h"

namespace titan::data {
namespace {

RowsWanted rows_wanted(const LoaderOptions& options) {
  return {.files = options.files,
          .kind = options.kind,
          .tokenizer_folder = options.tokenizer_folder,
          .row_tokens = options.seq_len + 1,
          .loop = options.loop,
          .max_bad_lines = options.max_bad_lines,
          .per_rank = options.order == Order::kPerRank,
          .dp_rank = options.dp_rank,
          .dp_size = options.dp_size,
          .shuffle = options.shuffle,
          .shuffle_seed = options.shuffle_seed,
          .packing_window = options.packing_window,
          .counts_folder = options.counts_folder};
}

// Ends requests to hubs, so that a loader's destructor does not wait for them.
void stop_hubs(const LoaderOptions& options) {
  if (options.kind.remote != nullptr) options.kind.remote->stop();
  for (const SourceWanted& source : options.sources) {
    if (source.kind.remote != nullptr) source.kind.remote->stop();
  }
}

class PrefetchingLoader final : public DataLoader {
 public:
  PrefetchingLoader(const LoaderOptions& options, BatchMaker maker, int32_t max_token_id,
                    std::optional<int32_t> end_of_document)
      : options_(options),
        max_token_id_(max_token_id),
        end_of_document_(end_of_document),
        maker_(std::move(maker)),
        returned_(maker_.stream().start()) {}
  ~PrefetchingLoader() override {
    stop_hubs(options_);
    stop();
  }

  absl::StatusOr<Batch> next() override {
    MadeBatch item = take();
    for (std::string& warning : item.warnings) warnings_.push_back(std::move(warning));
    if (!item.status.ok()) return item.status;
    returned_ = item.after;
    padding_ += item.padding;
    ++batches_;
    return std::move(item.batch);
  }

  nlohmann::json state() const override {
    nlohmann::json state = to_json(returned_, maker_.stream());
    state["order"] = options_.order == Order::kGlobal ? "global" : "per_rank";
    if (options_.order == Order::kPerRank) {
      state["dp_rank"] = options_.dp_rank;
      state["dp_size"] = options_.dp_size;
    }
    return state;
  }

  absl::Status restore(const nlohmann::json& state) override {
    TITAN_ASSIGN_OR_RETURN(const MixCursor cursor, cursor_of(state));
    return go_to(cursor);
  }

  absl::Status begin_at(int64_t row) override {
    if (options_.sources.empty()) return absl::OkStatus();
    MixCursor cursor = maker_.stream().start();
    cursor.mix.row = row;
    return go_to(cursor);
  }

  std::vector<SourceProgress> progress() const override {
    std::vector<SourceProgress> all;
    for (size_t i = 0; i < options_.sources.size(); ++i) {
      all.push_back({options_.sources[i].name, returned_.rows[i], returned_.sources[i].pass});
    }
    return all;
  }

  std::optional<double> take_padding() override {
    const double padding = std::exchange(padding_, 0);
    const int64_t batches = std::exchange(batches_, 0);
    if (options_.packing_window == 0 || batches == 0) return std::nullopt;
    return padding / static_cast<double>(batches);
  }

  std::vector<std::string> take_warnings() override { return std::exchange(warnings_, {}); }
  int32_t max_token_id() const override { return max_token_id_; }
  std::optional<int32_t> end_of_document() const override { return end_of_document_; }

 private:
  absl::Status check_owner(const nlohmann::json& state) const {
    if (!state.is_object()) return absl::InvalidArgumentError("dataloader state: not a JSON object");
    const std::string order = options_.order == Order::kGlobal ? "global" : "per_rank";
    const std::string saved = state.value("order", "missing");
    if (saved != order) {
      return absl::InvalidArgumentError(absl::StrCat("dataloader state: saved with training.dataloader.order \"", saved,
                                                     "\", but the job has \"", order,
                                                     "\", in which the position is not valid"));
    }
    if (options_.order == Order::kGlobal) return absl::OkStatus();
    const int rank = state.value("dp_rank", -1), size = state.value("dp_size", -1);
    if (rank == options_.dp_rank && size == options_.dp_size) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "dataloader state: saved by data-parallel rank ", rank, " of ", size, ", this is rank ", options_.dp_rank,
        " of ", options_.dp_size, "; order \"per_rank\" cannot change its degree, order \"global\" can"));
  }

  absl::StatusOr<MixCursor> cursor_of(const nlohmann::json& state) const {
    if (!state.is_object() || !state.contains("sample_idx")) {
      TITAN_RETURN_IF_ERROR(check_owner(state));
      return mix_from_json(state, maker_.stream());
    }
    if (!options_.sources.empty()) {
      return absl::InvalidArgumentError(
          "the checkpoint's data position is torchtitan's, of one dataset, and the job has "
          "training.dataloader.sources: put \"dataloader\" into checkpoint.exclude_from_loading");
    }
    MixCursor cursor = maker_.stream().start();
    TITAN_ASSIGN_OR_RETURN(cursor.sources[0],
                           position_from_torchtitan(rows_wanted(options_), state.at("sample_idx").get<int64_t>(),
                                                    state.at("tokens_left").get<int64_t>()));
    return cursor;
  }

  absl::Status go_to(const MixCursor& cursor) {
    stop();
    TITAN_ASSIGN_OR_RETURN(returned_, maker_.seek(cursor));
    warnings_.clear();
    return absl::OkStatus();
  }

  MadeBatch make() {
    const trace::ThreadSpanScope work(options_.spans.get(), "data loader", "read and tokenise");
    return maker_.make();
  }

  // Returns the next item: from the thread, which the first call starts, or with prefetch 0 from the maker.
  MadeBatch take() {
    if (options_.prefetch <= 0) {
      if (failed_.ok()) {
        MadeBatch item = make();
        failed_ = item.status;
        return item;
      }
      return {failed_, {}, {}, {}, 0};
    }
    sync::Lock lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.wait(mutex_, [this]() TITAN_REQUIRES(mutex_) { return !ready_.empty(); });
    if (!ready_.front().status.ok()) {  // The error stays for later calls.
      MadeBatch last = ready_.front();
      ready_.front().warnings.clear();
      return last;
    }
    MadeBatch item = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return item;
  }

  // Runs on the thread: keeps `prefetch` items ready until it is stopped, or reaches the end or an error.
  void run() {
    bool more = true;
    while (more) {
      {
        sync::Lock lock(mutex_);
        changed_.wait(mutex_, [this]() TITAN_REQUIRES(mutex_) {
          return stopping_ || ready_.size() < static_cast<size_t>(options_.prefetch);
        });
        if (stopping_) return;
      }
      MadeBatch item = make();
      more = item.status.ok();
      sync::Lock lock(mutex_);
      ready_.push_back(std::move(item));
      changed_.notify_all();
    }
  }

  void stop() {
    {
      sync::Lock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    sync::Lock lock(mutex_);
    stopping_ = false;
    ready_.clear();
    failed_ = absl::OkStatus();
  }

  const LoaderOptions options_;
  const int32_t max_token_id_;
  const std::optional<int32_t> end_of_document_;
  BatchMaker maker_;    // Used only by the thread while it runs, except for the sources' names and files.
  MixCursor returned_;  // After the last batch that next() returned.
  std::vector<std::string> warnings_;
  double padding_ = 0;  // Sum over the `batches_` batches since the last take_padding().
  int64_t batches_ = 0;
  absl::Status failed_;  // Used without a thread.

  sync::Mutex mutex_;
  sync::Condition changed_;
  std::deque<MadeBatch> ready_ TITAN_GUARDED_BY(mutex_);
  bool stopping_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

absl::Status check(const LoaderOptions& options) {
  if (options.files.empty() && options.sources.empty()) {
    return absl::InvalidArgumentError("the dataset has no files");
  }
  if (options.batch < 1 || options.seq_len < 1) {
    return absl::InvalidArgumentError(absl::StrCat("training: local_batch_size ", options.batch, " and seq_len ",
                                                   options.seq_len, " have to be 1 or more"));
  }
  if (options.dp_size < 1 || options.dp_rank < 0 || options.dp_rank >= options.dp_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("data-parallel rank ", options.dp_rank, " of ", options.dp_size, " does not exist"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataLoader>> open_loader(const LoaderOptions& options) {
  TITAN_RETURN_IF_ERROR(check(options));
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<Tokenizer> tokenizer, Tokenizer::load(options.tokenizer_folder));
  const bool global = options.order == Order::kGlobal;
  std::vector<SourceWanted> sources = options.sources;
  if (sources.empty()) sources.push_back({"", options.files, options.kind});
  TITAN_ASSIGN_OR_RETURN(MixedRows rows, open_mixed_rows(rows_wanted(options), sources, options.weights, tokenizer));
  const BatchMaker::Options dealt{.rows = global ? options.batch * options.dp_size : options.batch,
                                  .first = global ? options.batch * options.dp_rank : 0,
                                  .batch = options.batch,
                                  .seq_len = options.seq_len,
                                  .pieces = rows.has_pieces(),
                                  .document_end = tokenizer->eos_id()};
  BatchMaker maker(std::move(rows), dealt);
  return std::make_unique<PrefetchingLoader>(options, std::move(maker), tokenizer->max_id(), tokenizer->eos_id());
}

}  // namespace titan::data

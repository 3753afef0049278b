#include "worker/data/loader.h"

#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "common/sync/sync.h"
#include "worker/data/open_rows.h"
#include "worker/data/row_source.h"
#include "worker/data/stream_state.h"

namespace titan::data {
namespace {

constexpr int64_t kIgnoredLabel = -100;

// One microbatch with the place behind it, or why there is none.
struct Item {
  absl::Status status;
  Batch batch;
  StreamPosition after;
  std::vector<std::string> warnings;
};

// Deals rows of a stream: of every `rows` consecutive ones, `batch` from `first` on are this rank's.
class BatchMaker {
 public:
  BatchMaker(std::unique_ptr<RowSource> stream, int64_t rows, int64_t first, int64_t batch, int64_t seq_len)
      : stream_(std::move(stream)), rows_(rows), first_(first), batch_(batch), seq_len_(seq_len) {}

  Item make() {
    Item item;
    item.status = fill(item.batch);
    const absl::StatusOr<StreamPosition> after = stream_->position();
    if (item.status.ok()) item.status = after.status();
    if (after.ok()) item.after = *after;
    item.warnings = stream_->take_warnings();
    return item;
  }

  absl::StatusOr<StreamPosition> position() { return stream_->position(); }
  absl::Status seek(const StreamPosition& position) { return stream_->seek(position); }

 private:
  absl::Status fill(Batch& batch) {
    batch.tokens = at::zeros({batch_, seq_len_}, at::kLong);
    batch.labels = at::empty({batch_, seq_len_}, at::kLong);
    std::fill_n(batch.labels.data_ptr<int64_t>(), batch_ * seq_len_, kIgnoredLabel);
    TITAN_ASSIGN_OR_RETURN(const int64_t before, stream_->skip(first_));
    bool more = before == first_;
    int64_t seen = before;
    for (int64_t row = 0; more && row < batch_; ++row) {
      TITAN_ASSIGN_OR_RETURN(const int32_t* tokens, stream_->next());
      if (more = tokens != nullptr; !more) break;
      ++seen;
      std::copy_n(tokens, seq_len_, batch.tokens.data_ptr<int64_t>() + row * seq_len_);
      std::copy_n(tokens + 1, seq_len_, batch.labels.data_ptr<int64_t>() + row * seq_len_);
    }
    if (more) TITAN_RETURN_IF_ERROR(stream_->skip(rows_ - first_ - batch_).status());
    if (seen == 0) return absl::OutOfRangeError("the dataset is at its end");
    return absl::OkStatus();
  }

  std::unique_ptr<RowSource> stream_;
  int64_t rows_, first_, batch_, seq_len_;
};

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
          .counts_folder = options.counts_folder};
}

class PrefetchingLoader final : public Loader {
 public:
  PrefetchingLoader(const LoaderOptions& options, std::vector<std::string> files, BatchMaker maker,
                    const StreamPosition& start, int32_t max_token_id, std::optional<int32_t> end_of_document)
      : options_(options),
        files_(std::move(files)),
        max_token_id_(max_token_id),
        end_of_document_(end_of_document),
        maker_(std::move(maker)),
        returned_(start) {}
  ~PrefetchingLoader() override {
    if (options_.kind.remote != nullptr) options_.kind.remote->stop();  // Else it might wait for a hub.
    stop();
  }

  absl::StatusOr<Batch> next() override {
    Item item = take();
    for (std::string& warning : item.warnings) warnings_.push_back(std::move(warning));
    if (!item.status.ok()) return item.status;
    returned_ = item.after;
    return std::move(item.batch);
  }

  nlohmann::json state() const override {
    nlohmann::json state = to_json(returned_, files_);
    state["order"] = options_.order == Order::kGlobal ? "global" : "per_rank";
    if (options_.order == Order::kPerRank) {
      state["dp_rank"] = options_.dp_rank;
      state["dp_size"] = options_.dp_size;
    }
    return state;
  }

  absl::Status restore(const nlohmann::json& state) override {
    StreamPosition position;
    if (state.is_object() && state.contains("sample_idx")) {
      TITAN_ASSIGN_OR_RETURN(position, place_behind(rows_wanted(options_), state.at("sample_idx").get<int64_t>(),
                                                    state.at("tokens_left").get<int64_t>()));
    } else {
      TITAN_RETURN_IF_ERROR(check_owner(state));
      TITAN_ASSIGN_OR_RETURN(position, position_from_json(state, files_));
    }
    stop();
    TITAN_RETURN_IF_ERROR(maker_.seek(position));
    TITAN_ASSIGN_OR_RETURN(returned_, maker_.position());
    warnings_.clear();
    return absl::OkStatus();
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
                                                     "\", the job has \"", order,
                                                     "\"; the position means nothing there"));
    }
    if (options_.order == Order::kGlobal) return absl::OkStatus();
    const int rank = state.value("dp_rank", -1), size = state.value("dp_size", -1);
    if (rank == options_.dp_rank && size == options_.dp_size) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "dataloader state: saved by data-parallel rank ", rank, " of ", size, ", this is rank ", options_.dp_rank,
        " of ", options_.dp_size, "; order \"per_rank\" cannot change its degree, order \"global\" can"));
  }

  Item make() {
    const trace::WorkScope work(options_.spans.get(), "data loader", "read and tokenise");
    return maker_.make();
  }

  // The next item from the thread, which starts with the first call; from the maker itself without one.
  Item take() {
    if (options_.prefetch <= 0) {
      if (failed_.ok()) {
        Item item = make();
        failed_ = item.status;
        return item;
      }
      return {failed_, {}, {}, {}};
    }
    sync::Lock lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.wait(mutex_, [this]() TITAN_REQUIRES(mutex_) { return !ready_.empty(); });
    if (!ready_.front().status.ok()) {  // Stays for the calls after this one.
      Item last = ready_.front();
      ready_.front().warnings.clear();
      return last;
    }
    Item item = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return item;
  }

  // The thread: keeps `prefetch` items ready until it is stopped or has met the end or an error.
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
      Item item = make();
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
  const std::vector<std::string> files_;
  const int32_t max_token_id_;
  const std::optional<int32_t> end_of_document_;
  BatchMaker maker_;         // The thread's while it runs.
  StreamPosition returned_;  // Behind the last batch that next() gave.
  std::vector<std::string> warnings_;
  absl::Status failed_;  // Without a thread.

  sync::Mutex mutex_;
  sync::Condition changed_;
  std::deque<Item> ready_ TITAN_GUARDED_BY(mutex_);
  bool stopping_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

absl::Status check(const LoaderOptions& options) {
  if (options.files.empty()) return absl::InvalidArgumentError("the dataset has no files");
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

absl::StatusOr<std::unique_ptr<Loader>> open_loader(const LoaderOptions& options) {
  TITAN_RETURN_IF_ERROR(check(options));
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::load(options.tokenizer_folder));
  const int32_t max_token_id = tokenizer->max_id();
  const std::optional<int32_t> end_of_document = tokenizer->eos_id();
  const bool global = options.order == Order::kGlobal;
  TITAN_ASSIGN_OR_RETURN(OpenedRows opened, open_rows(rows_wanted(options), std::move(tokenizer)));
  TITAN_ASSIGN_OR_RETURN(const StreamPosition start, opened.rows->position());
  BatchMaker maker(std::move(opened.rows), global ? options.batch * options.dp_size : options.batch,
                   global ? options.batch * options.dp_rank : 0, options.batch, options.seq_len);
  return std::make_unique<PrefetchingLoader>(options, std::move(opened.files), std::move(maker), start, max_token_id,
                                             end_of_document);
}

}  // namespace titan::data

#include "worker/rank/runtime/metrics_out/metrics_logger.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/fence.h"
#include "nlohmann/json.hpp"
#include "worker/rank/runtime/metrics_out/console_line.h"
#include "worker/rank/runtime/metrics_out/event_file.h"
#include "worker/rank/runtime/metrics_out/wandb_sidecar.h"

namespace titan::runtime {
namespace {

using rank_protocol::Phase;

bool is_count(const std::string& name) {
  return name == "n_tokens_seen" || name == "memory/num_alloc_retries" || name == "memory/num_ooms" ||
         name == "moe/idle_experts" || name == "data/bad_samples" || name == "data/rows_ready";
}

// The phases of a step and the metrics of their waiting times. A save and the validation come after a step's line and
// count towards the next one.
constexpr std::pair<Phase, const char*> kStepPhases[] = {{Phase::kData, "time_metrics/data(s)"},
                                                         {Phase::kForward, "time_metrics/forward(s)"},
                                                         {Phase::kBackward, "time_metrics/backward(s)"},
                                                         {Phase::kOptimizer, "time_metrics/optimizer(s)"},
                                                         {Phase::kCheckpoint, "time_metrics/checkpoint(s)"}};

// Time in each phase of a window, per step like end_to_end.
class PhaseTimes {
 public:
  explicit PhaseTimes(const MetricsSetup& setup) : setup_(setup) { start(); }

  void start() {
    for (size_t i = 0; i < std::size(kStepPhases); ++i) before_[i] = total(i);
  }
  void add_to(NamedMetrics& metrics, double steps) const {
    if (!setup_.time_in_phase) return;
    for (size_t i = 0; i < std::size(kStepPhases); ++i) {
      const double seconds = absl::ToDoubleSeconds(total(i) - before_[i]);
      metrics.emplace_back(kStepPhases[i].second, seconds / steps);
    }
  }

 private:
  absl::Duration total(size_t i) const {
    return setup_.time_in_phase ? setup_.time_in_phase(kStepPhases[i].first) : absl::ZeroDuration();
  }

  const MetricsSetup& setup_;
  absl::Duration before_[std::size(kStepPhases)];
};

// {dump}/metrics.jsonl, appended to under the fence. A partial line left by a full disk or a killed writer is removed
// before the next line, so that every line is whole.
class JsonLines {
 public:
  JsonLines(storage::Files& files, const MetricsSetup& setup)
      : files_(files),
        path_(storage::join_path(setup.dump_folder, "metrics.jsonl")),
        fence_(setup.dump_folder, files),
        job_uid_(setup.job_uid),
        attempt_(setup.attempt) {}

  // `pictures`: the pictures of the step that are shown, as JSON.
  absl::Status append(int64_t step, absl::Time now, const NamedMetrics& metrics, const NamedLists& lists,
                      const nlohmann::ordered_json& pictures) {
    nlohmann::ordered_json line = {{"step", step},
                                   {"attempt", attempt_},
                                   {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone())},
                                   {"job", job_uid_}};
    for (const auto& [name, value] : metrics) {
      if (is_count(name)) {
        line[name] = static_cast<int64_t>(value);
      } else {
        line[name] = value;  // Not finite: null, because JSON has no such number.
      }
    }
    for (const auto& [name, values] : lists) line[name] = values;
    if (!pictures.empty()) line["pictures"] = pictures;
    const std::string text = line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    return publish([&]() -> absl::Status {
      if (file_ == nullptr) {
        TITAN_RETURN_IF_ERROR(cut_torn_line());
        TITAN_ASSIGN_OR_RETURN(file_, files_.append_to(path_));
      }
      absl::Status status = file_->append(text);
      if (!status.ok()) file_.reset();  // The next append repairs the file.
      return status;
    });
  }

  // Calls a function that writes into the dump folder, unless a newer attempt owns the folder.
  absl::Status publish(absl::FunctionRef<absl::Status()> write) { return fence_.publish(job_uid_, attempt_, write); }

 private:
  absl::Status cut_torn_line() {
    auto file = files_.open(path_);
    if (absl::IsNotFound(file.status())) return absl::OkStatus();
    if (!file.ok()) return file.status();
    const int64_t size = (*file)->size();
    constexpr int64_t kStride = 4096;
    std::string tail;
    for (int64_t end = size; end > 0;) {
      const int64_t begin = std::max<int64_t>(0, end - kStride);
      tail.resize(static_cast<size_t>(end - begin));
      TITAN_RETURN_IF_ERROR((*file)->read(begin, end - begin, tail.data()));
      if (const size_t newline = tail.rfind('\n'); newline != std::string::npos) {
        const int64_t keep = begin + static_cast<int64_t>(newline) + 1;
        return keep == size ? absl::OkStatus() : files_.truncate(path_, keep);
      }
      end = begin;
    }
    return size == 0 ? absl::OkStatus() : files_.truncate(path_, 0);
  }

  storage::Files& files_;
  std::string path_;
  storage::Fence fence_;
  std::string job_uid_;
  int attempt_;
  std::unique_ptr<storage::WritableFile> file_;
};

class TensorBoard {
 public:
  TensorBoard(storage::Files& files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  // Discards this run folder's data after `step`, until this attempt adds it.
  void start_after(int64_t step) { first_step_ = step + 1; }

  absl::Status add(int64_t step, absl::Time now, const NamedMetrics& metrics) {
    TITAN_RETURN_IF_ERROR(open(now));
    absl::Status status = file_->add_scalars(step, now, metrics);
    first_step_ = step + 1;
    if (!status.ok()) file_.reset();
    return status;
  }

  absl::Status add_image(int64_t step, absl::Time now, const BoardImage& image) {
    TITAN_RETURN_IF_ERROR(open(now));
    absl::Status status = file_->add_image(step, now, image);
    if (!status.ok()) file_.reset();
    return status;
  }

 private:
  absl::Status open(absl::Time now) {
    if (file_ != nullptr) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(file_, EventFile::create(files_, folder_, now, first_step_));
    return absl::OkStatus();
  }

  storage::Files& files_;
  std::string folder_;
  int64_t first_step_ = 1;  // First step of the next file.
  std::unique_ptr<EventFile> file_;
};

class Logger : public MetricsLogger {
 public:
  explicit Logger(MetricsSetup setup)
      : setup_(std::move(setup)),
        files_(setup_.files != nullptr ? *setup_.files : storage::posix_files()),
        clock_(setup_.clock != nullptr ? *setup_.clock : system_clock()),
        memory_(setup_.memory != nullptr ? std::move(setup_.memory) : make_cpu_memory_monitor()),
        phases_(setup_),
        window_start_(clock_.monotonic()) {
    if (setup_.rank == setup_.metrics_rank) lines_ = std::make_unique<JsonLines>(files_, setup_);
    if (setup_.config.enable_tensorboard && (setup_.config.save_for_all_ranks || setup_.rank == setup_.metrics_rank)) {
      const std::string stamp = absl::FormatTime("%Y%m%d-%H%M", clock_.now(), absl::LocalTimeZone());
      std::string folder =
          storage::join_path(storage::join_path(setup_.dump_folder, setup_.config.save_tb_folder), stamp);
      if (setup_.config.save_for_all_ranks) folder = storage::join_path(folder, absl::StrCat("rank_", setup_.rank));
      board_ = std::make_unique<TensorBoard>(files_, folder);
    }
    if (setup_.config.enable_wandb && lines_ != nullptr) start_wandb();
    memory_->reset_peak();
  }

  bool should_log(int64_t step) const override { return step == 1 || step % setup_.config.log_freq == 0; }

  void start_after(int64_t step) override {
    window_step_ = step;
    if (board_ != nullptr) board_->start_after(step);
  }

  void add_batch(int64_t tokens, absl::Duration data_loading) override {
    tokens_ += tokens;
    data_loading_ += data_loading;
    ++batches_;
  }

  void add_validation_tokens(int64_t tokens) override { tokens_ += tokens; }

  absl::StatusOr<NamedMetrics> log(int64_t step, const StepMetrics& metrics) override {
    const double seconds = window_seconds();
    const double loading = absl::ToDoubleSeconds(data_loading_);
    // The first line of an attempt and the one after a validation cover fewer steps than log_freq.
    const auto steps = static_cast<double>(std::max<int64_t>(step - window_step_, 1));
    const MemoryStats memory = memory_->peak();
    const double tps = tokens_per_second(seconds);
    const double flops = setup_.flops_per_token * tps;
    NamedMetrics named = {
        {"loss_metrics/global_avg_loss", metrics.global_avg_loss},
        {"loss_metrics/global_max_loss", metrics.global_max_loss},
        {"grad_norm", metrics.grad_norm},
        {"throughput(tps)", tps},
        {"tflops", flops / 1e12},
        {"time_metrics/end_to_end(s)", seconds / steps},
        {"time_metrics/data_loading(s)", batches_ > 0 ? loading / static_cast<double>(batches_) : 0},
        {"time_metrics/data_loading(%)", 100 * loading / seconds},
        {"memory/max_active(GiB)", memory.max_active_gib},
        {"memory/max_active(%)", memory.max_active_percent},
        {"memory/max_reserved(GiB)", memory.max_reserved_gib},
        {"memory/max_reserved(%)", memory.max_reserved_percent},
        {"memory/num_alloc_retries", static_cast<double>(memory.num_alloc_retries)},
        {"memory/num_ooms", static_cast<double>(memory.num_ooms)},
        {"n_tokens_seen", static_cast<double>(metrics.n_tokens_seen)},
        {"lr", metrics.lr},
    };
    std::optional<double> mfu;
    if (setup_.device_peak) mfu = 100 * flops / *setup_.device_peak;
    if (mfu) named.emplace_back("mfu(%)", *mfu);
    phases_.add_to(named, steps);
    named.insert(named.end(), metrics.extra.begin(), metrics.extra.end());
    last_lists_ = metrics.lists;
    TITAN_RETURN_IF_ERROR(write(step, named, named));
    print(train_line({step, metrics.global_avg_loss, metrics.grad_norm, memory, tps, flops / 1e12, mfu},
                     !setup_.config.disable_color_printing));
    start_window(step);
    last_step_ = step;
    last_ = named;
    return named;
  }

  absl::StatusOr<NamedMetrics> log_validation(int64_t step, double loss) override {
    const MemoryStats memory = memory_->peak();
    const double tps = tokens_per_second(window_seconds());
    NamedMetrics named = {
        {"validation_metrics/loss", loss},
        {"validation_metrics/throughput(tps)", tps},
        {"validation_metrics/memory/max_active(GiB)", memory.max_active_gib},
        {"validation_metrics/memory/max_active(%)", memory.max_active_percent},
        {"validation_metrics/memory/max_reserved(GiB)", memory.max_reserved_gib},
        {"validation_metrics/memory/max_reserved(%)", memory.max_reserved_percent},
    };
    // A step's last line in metrics.jsonl wins, so the line with validation metrics repeats the training metrics.
    NamedMetrics whole = last_step_ == step ? last_ : NamedMetrics{};
    if (last_step_ != step) last_lists_.clear();
    whole.insert(whole.end(), named.begin(), named.end());
    TITAN_RETURN_IF_ERROR(write(step, whole, named));
    print(validation_line({.step = step, .loss = loss, .memory = memory, .tokens_per_second = tps},
                          !setup_.config.disable_color_printing));
    start_window(step);
    return named;
  }

  absl::Status log_pictures(int64_t step, const std::string& folder,
                            const std::vector<LoggedPicture>& pictures) override {
    if (lines_ == nullptr) return absl::OkStatus();
    const absl::Status written =
        lines_->publish([&]() -> absl::Status { return write_pictures(step, folder, pictures); });
    if (storage::is_fenced(written)) return written;
    if (!written.ok()) warnings_.push_back(absl::StrCat("step ", step, ": pictures: ", written.message()));
    for (const LoggedPicture& one : pictures) {
      if (!one.shown || board_ == nullptr) continue;
      const absl::Status status =
          board_->add_image(step, clock_.now(), {"validation/pictures", one.png, one.width, one.height});
      if (!status.ok())
        warnings_.push_back(absl::StrCat("step ", step, ": pictures in TensorBoard: ", status.message()));
    }
    return absl::OkStatus();
  }

  void no_more() override {
    if (wandb_ != nullptr) wandb_->no_more_lines();
  }
  void end(absl::Duration timeout) override {
    if (wandb_ != nullptr) report(wandb_->end(timeout));
    wandb_.reset();
  }

  std::vector<std::string> take_warnings() override {
    if (wandb_ != nullptr) report(wandb_->look());
    return std::exchange(warnings_, {});
  }

 private:
  void start_wandb() {
    absl::StatusOr<std::unique_ptr<WandbSidecar>> started =
        WandbSidecar::start({setup_.dump_folder, setup_.job_uid, setup_.attempt});
    if (started.ok()) {
      wandb_ = *std::move(started);
    } else {
      warnings_.push_back(absl::StrCat("metrics.enable_wandb: ", started.status().message()));
    }
  }
  void report(WandbSidecar::News news) {
    if (!news.run.empty()) print(absl::StrCat("Weights & Biases: ", news.run));
    if (!news.warning.empty()) warnings_.push_back(std::move(news.warning));
  }

  absl::Status write_pictures(int64_t step, const std::string& folder, const std::vector<LoggedPicture>& pictures) {
    TITAN_RETURN_IF_ERROR(files_.make_folders(storage::join_path(setup_.dump_folder, folder)));
    for (const LoggedPicture& one : pictures) {
      const std::string path = storage::join_path(folder, absl::StrCat("step-", step, "-", one.name, ".png"));
      TITAN_RETURN_IF_ERROR(storage::atomic_write(files_, storage::join_path(setup_.dump_folder, path), one.png));
      if (one.shown) last_pictures_.push_back({{"file", path}, {"caption", one.caption}});
    }
    return absl::OkStatus();
  }

  double window_seconds() const { return std::max(absl::ToDoubleSeconds(clock_.monotonic() - window_start_), 1e-9); }
  double tokens_per_second(double seconds) const {
    return static_cast<double>(tokens_) / (seconds * setup_.non_data_parallel_size);
  }

  // The fence comes first: an attempt that may not publish writes nowhere.
  absl::Status write(int64_t step, const NamedMetrics& line, const NamedMetrics& board) {
    if (lines_ != nullptr) {
      absl::Status status = lines_->append(step, clock_.now(), line, last_lists_,
                                           std::exchange(last_pictures_, nlohmann::ordered_json::array()));
      if (storage::is_fenced(status)) return status;
      if (!status.ok())
        warnings_.push_back(
            absl::StrCat("step ", step, " is missing in metrics.jsonl: ", std::string(status.message())));
    }
    if (board_ != nullptr) {
      if (absl::Status status = board_->add(step, clock_.now(), board); !status.ok()) {
        warnings_.push_back(absl::StrCat("step ", step, " is missing in TensorBoard: ", std::string(status.message())));
      }
    }
    return absl::OkStatus();
  }

  void print(const std::string& message) const {
    if (setup_.console) return setup_.console(message);
    std::printf("%s\n", log_line(clock_.now(), message).c_str());
    std::fflush(stdout);
  }

  void start_window(int64_t step) {
    window_step_ = step;
    tokens_ = 0;
    data_loading_ = absl::ZeroDuration();
    batches_ = 0;
    window_start_ = clock_.monotonic();
    phases_.start();
    memory_->reset_peak();
  }

  MetricsSetup setup_;
  storage::Files& files_;
  const Clock& clock_;
  std::unique_ptr<MemoryMonitor> memory_;
  std::unique_ptr<JsonLines> lines_;
  std::unique_ptr<TensorBoard> board_;
  std::unique_ptr<WandbSidecar> wandb_;
  int64_t tokens_ = 0;
  int64_t batches_ = 0;
  absl::Duration data_loading_;
  PhaseTimes phases_;
  absl::Duration window_start_;
  int64_t window_step_ = 0;  // The last step before the window.
  int64_t last_step_ = -1;
  NamedMetrics last_;
  NamedLists last_lists_;
  nlohmann::ordered_json last_pictures_ = nlohmann::ordered_json::array();  // For the next line.
  std::vector<std::string> warnings_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsLogger>> MetricsLogger::create(MetricsSetup setup) {
  if (setup.config.log_freq < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics.log_freq = ", setup.config.log_freq, ": must be at least 1"));
  }
  return std::make_unique<Logger>(std::move(setup));
}

}  // namespace titan::runtime

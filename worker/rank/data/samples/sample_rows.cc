#include "worker/rank/data/samples/sample_rows.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/io/data_files/check_files.h"

namespace titan::data {
namespace {

constexpr int64_t kMaxNamed = 100;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

absl::Status too_many_bad_samples(const std::string& skipped, int64_t number, int64_t most) {
  return absl::InvalidArgumentError(absl::StrCat(skipped, "; that is unusable sample ", number,
                                                 " of the pass, more than dataloader.max_bad_samples = ", most));
}

SampleRows::SampleRows(std::shared_ptr<SampleSet> samples, SampleOrder order, DecodeSample decode, Options options)
    : samples_(std::move(samples)),
      order_(std::move(order)),
      decode_(std::move(decode)),
      options_(std::move(options)),
      progress_began_(seconds_now()) {
  const RowPlaces step{.microbatches = options_.microbatches, .ranks = options_.dp_size, .rows = options_.batch};
  if (options_.cost_of == nullptr || options_.dp_size == 1) return;
  balance_ = std::make_unique<RowBalance>(
      step, [this](int64_t row) { return options_.cost_of(*samples_, order_.sample(order_.place(row))); });
}

SampleRows::~SampleRows() {
  samples_->stop();
  stop_threads();
}

// Returns the number in the stream of this rank's row `index`, counted since the last seek().
int64_t SampleRows::number_of(int64_t index) const {
  const int64_t batch = options_.batch, microbatch = index / batch;
  return order_.number(start_.next) + (microbatch * options_.dp_size + options_.dp_rank) * batch + index % batch;
}

// Returns the same after the rows of its step were balanced.
absl::StatusOr<int64_t> SampleRows::balanced_number_of(int64_t index) {
  const int64_t plain = number_of(index), before = order_.number(start_.next);
  if (balance_ == nullptr) return plain;
  const int64_t rows = options_.microbatches * options_.dp_size * options_.batch;
  const int64_t first = before + (plain - before) / rows * rows;
  if (order_.place(first).pass != order_.place(first + rows - 1).pass) return plain;
  return balance_->row_at(first, plain - first);
}

// Reads and decodes one attempt of a row. Sets `problem` if its sample cannot be used.
absl::Status SampleRows::attempt(int64_t attempt, Prepared& prepared, std::string& problem) {
  SampleRow& row = prepared.row;
  TITAN_ASSIGN_OR_RETURN(const Sample sample, samples_->read(order_.sample(row.place, attempt)));
  prepared.bytes += sample.stored_bytes;
  row.sample = sample.name;
  problem = sample.problem;
  if (!problem.empty()) return absl::OkStatus();
  absl::StatusOr<std::any> value = decode_(sample, row.number);
  if (value.ok()) {
    row.value = *std::move(value);
  } else if (absl::IsInvalidArgument(value.status())) {
    problem = std::string(value.status().message());
    if (problem.empty()) problem = "it cannot be decoded";
  } else {
    return annotate(value.status(), sample.name);
  }
  return absl::OkStatus();
}

SampleRows::Prepared SampleRows::prepare(int64_t index) {
  const trace::ThreadSpanScope work(options_.spans.get(), "data loader", "read and decode");
  const double began = seconds_now();
  Prepared prepared;
  const absl::StatusOr<int64_t> number = balanced_number_of(index);
  if (!number.ok()) {
    prepared.status = number.status();
    return prepared;
  }
  prepared.row.number = *number;
  prepared.row.place = order_.place(prepared.row.number);
  std::vector<std::string> problems;
  bool good = false;
  try {
    for (int64_t i = 0; i < order_.attempts() && prepared.status.ok() && !good; ++i) {
      std::string problem;
      prepared.status = attempt(i, prepared, problem);
      good = prepared.status.ok() && problem.empty();
      if (!problem.empty()) problems.push_back(absl::StrCat(prepared.row.sample, ": ", problem));
    }
  } catch (...) {
    prepared.thrown = std::current_exception();
  }
  if (!problems.empty()) prepared.row.skipped = problems.front();
  if (!good && prepared.thrown == nullptr && prepared.status.ok()) {
    prepared.status = absl::InvalidArgumentError(
        absl::StrCat("the dataset has no usable sample for row ", prepared.row.place.row, " of pass ",
                     prepared.row.place.pass, ", nor has any substitute: ", data_files::first_reasons(problems)));
  }
  sync::Lock lock(mutex_);
  bytes_read_ += prepared.bytes;
  work_ += seconds_now() - began;
  if (options_.bytes_of != nullptr && good) prepared.bytes = options_.bytes_of(prepared.row.value);
  return prepared;
}

bool SampleRows::may_begin() const {
  if (ended_ || !exists(next_index_)) return false;
  if (begun_.empty()) return true;  // The caller waits for this row.
  return static_cast<int64_t>(begun_.size()) < options_.look_ahead && ready_bytes_ < options_.look_ahead_bytes;
}

// Runs on each thread. Rows are begun in order, so the row that the caller waits for is always ready or under way.
void SampleRows::run() {
  while (true) {
    int64_t index = 0;
    {
      sync::Lock lock(mutex_);
      changed_.wait(mutex_, [this]() TITAN_REQUIRES(mutex_) { return stopping_ || may_begin(); });
      if (stopping_) return;
      index = next_index_++;
      begun_.emplace_back();
    }
    Prepared prepared = prepare(index);
    sync::Lock lock(mutex_);
    ended_ |= !prepared.status.ok() || prepared.thrown != nullptr;
    ready_bytes_ += prepared.bytes;
    const auto first = next_index_ - static_cast<int64_t>(begun_.size());
    begun_[static_cast<size_t>(index - first)] = std::move(prepared);
    changed_.notify_all();
  }
}

void SampleRows::start_threads() {
  while (static_cast<int>(threads_.size()) < options_.threads) threads_.emplace_back([this] { run(); });
}

void SampleRows::stop_threads() {
  {
    sync::Lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  sync::Lock lock(mutex_);
  begun_.clear();
  next_index_ = ready_bytes_ = 0;
  ended_ = stopping_ = false;
}

// Returns the next row, which exists.
SampleRows::Prepared SampleRows::take() {
  const double began = seconds_now();
  if (options_.threads <= 0) {
    Prepared prepared = prepare(returned_);
    waited_ += seconds_now() - began;
    return prepared;
  }
  sync::Lock lock(mutex_);
  start_threads();
  changed_.wait(mutex_, [this]() TITAN_REQUIRES(mutex_) { return !begun_.empty() && begun_.front().has_value(); });
  waited_ += seconds_now() - began;
  Prepared prepared = *std::move(begun_.front());
  begun_.pop_front();
  ready_bytes_ -= prepared.bytes;
  changed_.notify_all();
  return prepared;
}

absl::StatusOr<std::optional<SampleRow>> SampleRows::next() {
  if (!failed_.ok()) return failed_;
  if (!exists(returned_)) {
    const int64_t first = returned_ / options_.batch * options_.batch;  // In this rank's part of the microbatch.
    if (number_of(first) - options_.dp_rank * options_.batch < order_.samples()) {
      ++returned_;
      return std::nullopt;
    }
    return failed_ = absl::OutOfRangeError("the dataset is at its end");
  }
  Prepared prepared = take();
  failed_ = prepared.status;
  if (prepared.thrown != nullptr) {
    failed_ = absl::InternalError("an earlier sample could not be decoded");
    std::rethrow_exception(prepared.thrown);
  }
  if (failed_.ok()) failed_ = note_skipped(prepared.row);
  if (!failed_.ok()) return failed_;
  ++returned_;
  ++rows_;
  return std::move(prepared.row);
}

absl::Status SampleRows::note_skipped(const SampleRow& row) {
  if (row.skipped.empty()) return absl::OkStatus();
  if (row.place.pass > bad_pass_) {
    bad_pass_ = row.place.pass;
    bad_samples_ = 0;
  }
  ++bad_samples_;
  last_skipped_ = row.skipped;
  const int64_t before = bad_before(row.place.pass);
  if (before + bad_samples_ > options_.max_bad_samples) {
    return too_many_bad_samples(row.skipped, before + bad_samples_, options_.max_bad_samples);
  }
  if (row.place.pass > named_pass_ || named_ > kMaxNamed) return absl::OkStatus();
  warnings_.push_back(++named_ <= kMaxNamed ? absl::StrCat(row.skipped, ", skipped")
                                            : "further skipped samples are counted, but not named");
  return absl::OkStatus();
}

SampleCursor SampleRows::cursor() const {
  const int64_t rows = returned_ / options_.batch * options_.batch * options_.dp_size;
  SampleCursor cursor{.next = order_.place(order_.number(start_.next) + rows)};
  if (cursor.next.pass == current_pass()) cursor.bad_samples = bad_samples();
  return cursor;
}

// Returns the pass of the last row before cursor().
int64_t SampleRows::current_pass() const {
  const int64_t rows = returned_ / options_.batch * options_.batch * options_.dp_size;
  const int64_t last = order_.number(start_.next) + std::max<int64_t>(0, rows - 1);
  return order_.place(options_.loop ? last : std::min(last, order_.samples() - 1)).pass;  // Rows may be missing.
}

int64_t SampleRows::own_bad_samples() const { return current_pass() == bad_pass_ ? bad_samples_ : 0; }

absl::Status SampleRows::set_bad_samples(int64_t of_all_ranks) {
  bad_of_all_ = of_all_ranks;
  const int64_t all = bad_samples();
  if (all <= options_.max_bad_samples) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      counted(all, "unusable sample"), " of all ranks in the pass, more than dataloader.max_bad_samples = ",
      options_.max_bad_samples, last_skipped_.empty() ? "" : absl::StrCat("; this rank's last: ", last_skipped_)));
}

int64_t SampleRows::bad_samples() const { return bad_before(current_pass()) + bad_of_all_.value_or(own_bad_samples()); }

int64_t SampleRows::bad_before(int64_t pass) const { return pass == start_.next.pass ? start_.bad_samples : 0; }

void SampleRows::seek(const SampleCursor& cursor) {
  stop_threads();
  start_ = cursor;
  returned_ = bad_samples_ = named_ = 0;
  bad_pass_ = named_pass_ = cursor.next.pass;
  bad_of_all_.reset();
  failed_ = absl::OkStatus();
  warnings_.clear();
}

absl::Status SampleRows::restore(const nlohmann::json& state) {
  TITAN_ASSIGN_OR_RETURN(const SampleCursor cursor, order_.cursor_from_json(state));
  seek(cursor);
  return absl::OkStatus();
}

std::vector<std::string> SampleRows::take_warnings() {
  std::vector<std::string> warnings = samples_->take_warnings();
  for (std::string& warning : warnings_) warnings.push_back(std::move(warning));
  warnings_.clear();
  return warnings;
}

SampleProgress SampleRows::take_progress() {
  SampleProgress progress{.rows = std::exchange(rows_, 0), .waited_seconds = std::exchange(waited_, 0)};
  const double time = seconds_now();
  progress.seconds = time - std::exchange(progress_began_, time);
  sync::Lock lock(mutex_);
  progress.bytes_read = std::exchange(bytes_read_, 0);
  progress.work_seconds = std::exchange(work_, 0);
  progress.ready = std::count_if(begun_.begin(), begun_.end(), [](const auto& one) { return one.has_value(); });
  return progress;
}

}  // namespace titan::data

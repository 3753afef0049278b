#include "worker/rank/runtime/profiling/tracer.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/rank_protocol/spool.h"

namespace titan::runtime {

using rank_protocol::TraceState;

ProfilerAction profiler_action(const config::ProfilingSection& config, int64_t step) {
  if (!config.enable_profiling) return {};
  const int64_t place = (step - 1) % config.profile_freq;
  const int64_t first_recorded = config.profile_freq - config.profiler_active;
  return {.warms_up = place < first_recorded && place >= first_recorded - config.profiler_warmup,
          .records = place >= first_recorded,
          .saves = place + 1 == config.profile_freq};
}

TraceRequestReader::TraceRequestReader(rank_protocol::TraceRequest& words, std::string run_folder, int rank)
    : words_(words), run_folder_(std::move(run_folder)), rank_(rank) {
  words_.takes_requests.store(1, std::memory_order_release);
}

std::optional<TraceRequestReader::Order> TraceRequestReader::take(int64_t step) {
  const uint64_t request = words_.request.load(std::memory_order_acquire);
  if (request == taken_) return std::nullopt;
  const int64_t wanted = words_.first_step.load(std::memory_order_relaxed);
  if (step + 1 < wanted) return std::nullopt;
  Order order;
  order.first_step = std::max(wanted, step + 1);
  order.last_step = order.first_step + std::max<int64_t>(1, words_.steps.load(std::memory_order_relaxed)) - 1;
  order.path = rank_protocol::trace_path(run_folder_, rank_, request);
  words_.recorded_first.store(order.first_step, std::memory_order_relaxed);
  words_.recorded_last.store(order.last_step, std::memory_order_relaxed);
  report(TraceState::kWaiting);
  words_.taken.store(request, std::memory_order_release);
  taken_ = request;
  return order;
}

void TraceRequestReader::report(TraceState state) {
  words_.state.store(static_cast<uint32_t>(state), std::memory_order_release);
}

void TraceRequestReader::written(int64_t last_step) {
  words_.recorded_last.store(last_step, std::memory_order_relaxed);
  report(TraceState::kWritten);
}

namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

const std::set<ActivityType>& activities() {
  static const auto& all = *new std::set<ActivityType>(at::hasCUDA() ? std::set{ActivityType::CPU, ActivityType::CUDA}
                                                                     : std::set{ActivityType::CPU});
  return all;
}

torch::profiler::impl::ProfilerConfig profiler_config() {
  return torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO,
                                               /*report_input_shapes=*/true, /*profile_memory=*/false,
                                               /*with_stack=*/false, /*with_flops=*/false, /*with_modules=*/false);
}

// Kineto does not report a full disk, but then the text is cut off.
bool is_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() < 2) return false;
  file.seekg(-2, std::ios::end);
  char end[2] = {};
  return file.read(end, 2) && (end[1] == '}' || (end[0] == '}' && end[1] == '\n'));
}

}  // namespace

void prepare_profiler() {
  profiler::prepareProfiler(profiler_config(), activities());
  profiler::enableProfiler(profiler_config(), activities());
  (void)profiler::disableProfiler();
}

Tracer::Tracer(const config::ProfilingSection& config, std::string folder, TraceOwner owner, bool records,
               std::optional<TraceRequestReader> requests, std::shared_ptr<trace::SpanRecorder> spans)
    : config_(config),
      folder_(std::move(folder)),
      owner_(std::move(owner)),
      records_(records),
      spans_(spans ? std::move(spans) : std::make_shared<trace::SpanRecorder>()),
      requests_(std::move(requests)) {}

Tracer::~Tracer() {
  // Kineto treats a second preparation as a request to stop, because it assumes a running trace. So a warm-up must end
  // with a recording.
  if (!prepared_) return;
  spans_->stop();
  try {
    if (!recording_) profiler::enableProfiler(profiler_config(), activities());
    (void)profiler::disableProfiler();
  } catch (const std::exception&) {  // The recording is not needed.
  }
}

ProfilerAction Tracer::work(int64_t step) const {
  if (!order_) return profiler_action(config_, step);
  const bool records = step >= order_->first_step;
  return {.warms_up = !records, .records = records, .saves = step >= order_->last_step};
}

void Tracer::report(TraceState state) {
  if (order_) requests_->report(state);
}

void Tracer::begin_step(int64_t step) {
  if (!records_ || recording_) return;
  if (!order_ && requests_) order_ = requests_->take(step);
  const ProfilerAction due = work(step);
  if (!(due.warms_up || due.records)) return;
  if (!prepared_) profiler::prepareProfiler(profiler_config(), activities());
  prepared_ = true;
  if (!due.records) return;
  profiler::enableProfiler(profiler_config(), activities());
  spans_->start();
  recording_ = true;
  first_step_ = step;
  report(TraceState::kRecording);
}

absl::StatusOr<std::optional<Tracer::Saved>> Tracer::end_step(int64_t step) {
  if (!recording_ || !work(step).saves) return std::nullopt;
  return save(step);
}

absl::StatusOr<std::optional<Tracer::Saved>> Tracer::finish(int64_t step) {
  if (!recording_) return std::nullopt;
  return save(step);
}

absl::StatusOr<std::optional<Tracer::Saved>> Tracer::save(int64_t step) {
  report(TraceState::kWriting);
  Saved saved{
      .path = order_ ? order_->path : absl::StrCat(folder_, "/iteration_", step, "/rank", owner_.rank, "_trace.json"),
      .first_step = first_step_,
      .last_step = step,
      .on_request = order_.has_value()};
  const absl::StatusOr<int64_t> bytes = write(saved.path);
  if (order_ && bytes.ok()) requests_->written(step);
  if (!bytes.ok()) report(TraceState::kFailed);
  order_.reset();
  if (!bytes.ok()) return bytes.status();
  saved.bytes = *bytes;
  return saved;
}

// Writes the file, which gets its name once it is complete, and returns its size in bytes.
absl::StatusOr<int64_t> Tracer::write(const std::string& path) {
  recording_ = prepared_ = false;
  const trace::RecordedSpans background_work = spans_->stop();
  const auto result = profiler::disableProfiler();
  const std::filesystem::path file(path);
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  if (error) return absl::UnavailableError(absl::StrCat("create ", file.parent_path().string(), ": ", error.message()));
  std::filesystem::remove(file, error);  // From an earlier attempt.
  const std::string fresh = path + ".new";
  result->save(fresh);
  error = {};
  if (is_whole(fresh) && add_to_trace(fresh, background_work, owner_).ok()) {
    std::filesystem::rename(fresh, file, error);
    const auto bytes = std::filesystem::file_size(file, error);
    if (!error) return static_cast<int64_t>(bytes);
  }
  std::filesystem::remove(fresh, error);
  return absl::UnavailableError(absl::StrCat(path, " could not be written completely; is the disk full?"));
}

}  // namespace titan::runtime

#include "worker/runtime/profiling/tracer.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/runtime/profiling/trace_schedule.h"

namespace titan::runtime {
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

// Kineto says nothing of a disk that is full; the end of its text does.
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

Tracer::Tracer(const config::Profiling& config, std::string folder, int rank, bool records)
    : config_(config), folder_(std::move(folder)), rank_(rank), records_(records) {}

Tracer::~Tracer() {
  // Kineto takes a second preparation for a request to stop what it believes to run: warming up ends with a recording.
  if (!prepared_) return;
  try {
    if (!recording_) profiler::enableProfiler(profiler_config(), activities());
    (void)profiler::disableProfiler();
  } catch (const std::exception&) {  // What it recorded is not wanted.
  }
}

void Tracer::begin_step(int64_t step) {
  const TraceWork work = trace_work(config_, step);
  if (!records_ || recording_ || !(work.warms_up || work.records)) return;
  if (!prepared_) profiler::prepareProfiler(profiler_config(), activities());
  prepared_ = true;
  if (!work.records) return;
  profiler::enableProfiler(profiler_config(), activities());
  recording_ = true;
}

absl::StatusOr<std::optional<std::string>> Tracer::end_step(int64_t step) {
  if (!recording_ || !trace_work(config_, step).saves) return std::nullopt;
  return save(step);
}

absl::StatusOr<std::optional<std::string>> Tracer::finish(int64_t step) {
  if (!recording_) return std::nullopt;
  return save(step);
}

absl::StatusOr<std::optional<std::string>> Tracer::save(int64_t step) {
  recording_ = prepared_ = false;
  const auto result = profiler::disableProfiler();
  const std::string folder = absl::StrCat(folder_, "/iteration_", step);
  const std::string path = absl::StrCat(folder, "/rank", rank_, "_trace.json");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat("create ", folder, ": ", error.message()));
  std::filesystem::remove(path, error);  // Of an attempt before this one.
  result->save(path);
  if (is_whole(path)) return path;
  std::filesystem::remove(path, error);
  return absl::UnavailableError(absl::StrCat(path, " could not be written to its end; is the disk full?"));
}

}  // namespace titan::runtime

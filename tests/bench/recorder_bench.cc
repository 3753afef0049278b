// Measures what recording costs: a collective of a backend that does nothing, with and without recording, and writing
// the file of a full ring.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <filesystem>

#include "common/rank_protocol/flight_tail.h"
#include "worker/rank/comm/fake_backend.h"
#include "worker/rank/comm/flight_pickle.h"
#include "worker/rank/comm/recording_backend.h"

namespace titan::comm {
namespace {

c10::intrusive_ptr<c10d::Backend> nothing() {
  return make_fake_device()->make_backend({.store = {}, .rank = 0, .size = 4});
}

void gather(c10d::Backend& backend, at::Tensor& output, at::Tensor& input) {
  backend._allgather_base(output, input, {})->wait();
}

void plain(benchmark::State& state) {
  const auto backend = nothing();
  at::Tensor input = at::empty({1024});
  at::Tensor output = at::empty({4096});
  for (auto _ : state) gather(*backend, output, input);
}
BENCHMARK(plain);

// If the second argument is set, the newest calls are also written to a file.
void recorded(benchmark::State& state) {
  FlightRecorder recorder(state.range(0), FlightRecorder::Waits::kCompletesOnWait);
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("titan-recorder-bench-" + std::to_string(::getpid()));
  if (state.range(1) != 0) recorder.attach(rank_protocol::FlightTail::create(file, 0).value());
  const int group = recorder.add_group("fsdp", {0, 1, 2, 3});
  const auto backend = c10::make_intrusive<RecordingBackend>(nothing(), recorder, group, std::chrono::seconds(100));
  at::Tensor input = at::empty({1024});
  at::Tensor output = at::empty({4096});
  for (auto _ : state) gather(*backend, output, input);
  std::filesystem::remove(file);
}
BENCHMARK(recorded)->ArgsProduct({{2'000, 20'000, 1'000'000}, {0, 1}});

void written(benchmark::State& state) {
  FlightRecorder recorder(state.range(0), FlightRecorder::Waits::kCompletesOnWait);
  const int group = recorder.add_group("fsdp", {0, 1, 2, 3});
  const at::Tensor tensor = at::empty({8, 2048, 4096}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  for (int64_t i = 0; i < state.range(0); ++i) {
    const int64_t number = recorder.begin(group, "all_reduce", tensor, tensor, std::chrono::seconds(100));
    recorder.started(number);
    recorder.waited(number);
  }
  size_t bytes = 0;
  for (auto _ : state) bytes = to_pickle(recorder.flight()).size();
  state.counters["file MB"] = static_cast<double>(bytes) / 1e6;
  state.counters["ring MB"] = static_cast<double>(state.range(0) * sizeof(Recording)) / 1e6;
}
BENCHMARK(written)->Arg(2'000)->Arg(20'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace titan::comm

BENCHMARK_MAIN();

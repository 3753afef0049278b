// image_pipeline TOKENIZER SIZE: measures the whole reading of pictures for the training of Flux. A line of input is a
// request, {"path": "..", "rows": 500, "threads": 0}: reads the samples at the path in their order, decodes, resizes
// and cuts their pictures, tokenizes their captions, draws their noise, and forms batches of four. A line of output has
// the processor seconds of all threads and the seconds that passed, without those of opening the files and of the first
// batch. With "pause" the caller waits that long after each batch, like a step; then "waited" is the share of the time
// in which it waited for rows.
#include <ATen/Parallel.h>
#include <malloc.h>

#include <ctime>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/samples/sample_files.h"
#include "worker/rank/model/flux/image_batches.h"
#include "worker/rank/model/flux/picture_rows.h"
#include "worker/rank/runtime/memory/cpu_memory.h"

namespace {

using namespace titan;
using nlohmann::json;

constexpr int64_t kBatch = 4, kT5Length = 256, kClipLength = 77;
constexpr double kDropped = 0.447;

template <typename T>
T value(absl::StatusOr<T> result) {
  if (result.ok()) return *std::move(result);
  std::cerr << result.status() << "\n";
  std::exit(1);
}

double seconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

std::unique_ptr<data::BatchSource> open(const std::string& tokenizer, int size, const json& request) {
  const data::SampleFiles found = value(data::find_sample_files(request.at("path")));
  auto samples = value(data::SampleSet::open({.files = found.files, .kind = found.kind}));
  const data::SampleOrder order({.samples = samples->samples()});
  auto tokenizers = std::make_shared<model::flux::CaptionTokenizers>(
      value(data::PromptTokenizer::load_for_test(tokenizer, kT5Length)),
      value(data::PromptTokenizer::load_for_test(tokenizer, kClipLength)));
  return std::make_unique<model::flux::ImageBatches>(
      std::move(samples), order, std::make_shared<model::flux::PictureRows>(std::move(tokenizers), size),
      model::flux::ImageRowOptions{.image_size = size, .drop_probability = kDropped},
      data::SampleRows::Options{.batch = kBatch, .threads = request.value("threads", 0)}, /*seed=*/1);
}

json measure(const std::string& tokenizer, int size, const json& request) {
  const std::unique_ptr<data::BatchSource> batches = open(tokenizer, size, request);
  value(batches->next());
  (void)batches->take_reading_cost();
  const double processor = seconds(CLOCK_PROCESS_CPUTIME_ID), clock = seconds(CLOCK_MONOTONIC);
  int64_t rows = 0;
  for (; rows < request.at("rows").get<int64_t>(); rows += kBatch) {
    value(batches->next());
    std::this_thread::sleep_for(std::chrono::duration<double>(request.value("pause", 0.0)));
  }
  const std::optional<data::ReadingCost> cost = batches->take_reading_cost();
  return {{"rows", rows},
          {"processor_seconds", seconds(CLOCK_PROCESS_CPUTIME_ID) - processor},
          {"seconds", seconds(CLOCK_MONOTONIC) - clock},
          {"waited", cost ? cost->waited_percent / 100 : 0},
          {"busy_threads", cost ? cost->busy_threads : 0}};
}

// Keeps freed memory as a rank does (worker/rank/runtime/rank_main.cc).
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  runtime::install_cpu_allocator();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  keep_freed_memory();
  at::set_num_threads(1);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << measure(argv[1], std::stoi(argv[2]), json::parse(line)) << std::endl;
  }
}

// Measures how fast a job's state is saved and loaded: checkpoint_speed FOLDER save|load --ranks N --mebibytes M. Ranks
// are threads that hold rows of the same tensors, cut as FSDP cuts them. Prints one JSON line: for each save, seconds
// until the ranks continue and until everything is durable; for a load, its seconds and the memory that it took in
// addition to the state. checkpoint_bandwidth.py runs it alongside other programs.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/io/storage/fence.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/checkpointer.h"

namespace {

using namespace titan;
using checkpoint::Checkpointer;
using checkpoint::Slice;

struct Options {
  std::string folder, what;
  int ranks = 1, saves = 2;
  int64_t mebibytes = 1024;
};

void check(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

// Makes weights and the two states of Adam, a third of the bytes each: matrices of 16 MiB, each with a vector.
std::vector<Slice> make_slices(const Options& options, int rank) {
  std::vector<Slice> slices;
  const auto add = [&](const std::string& key, const std::vector<int64_t>& shape) {
    const int64_t rows = shape[0] / options.ranks;
    std::vector<int64_t> offset(shape.size(), 0), size = shape;
    offset[0] = rows * rank;
    size[0] = rank + 1 == options.ranks ? shape[0] - offset[0] : rows;
    slices.push_back({key, shape, offset, at::full(size, static_cast<float>(rank) + 0.5f)});
  };
  const int64_t matrices = options.mebibytes / 16 / 3;
  for (const char* kind : {"model.", "optim.exp_avg.", "optim.exp_avg_sq."}) {
    for (int64_t i = 0; i < matrices; ++i) {
      add(kind + std::string("layers.") + std::to_string(i) + ".weight", {4096, 1024});
      add(kind + std::string("layers.") + std::to_string(i) + ".norm", {1024});
    }
  }
  return slices;
}

int64_t bytes_of(const std::vector<Slice>& slices) {
  int64_t bytes = 0;
  for (const Slice& slice : slices) bytes += static_cast<int64_t>(slice.local.nbytes());
  return bytes;
}

// Reads a member of /proc/self/status, in bytes.
int64_t memory(const std::string& member) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(member + ":", 0) == 0) return std::stoll(line.substr(member.size() + 1)) * 1024;
  }
  return 0;
}

// Drops the page cache of the files; fdatasync first writes what is still dirty.
void drop_cache(const std::string& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ::fdatasync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

class Job {
 public:
  explicit Job(const Options& options) : options_(options), store_(c10::make_intrusive<c10d::HashStore>()) {
    check(storage::Fence(options.folder).raise("bench", 1));
    for (int rank = 0; rank < options.ranks; ++rank) {
      checkpoint::Setup setup{.dump_folder = options.folder};
      setup.config.enable = true;
      setup.config.async_mode = "async";
      setup.config.keep_latest_k = 0;
      setup.rank = rank;
      setup.world = options.ranks;
      setup.job_uid = "bench";
      setup.store = store_;
      // A restarted job knows its committed step. Without it, create() would read the step twice.
      if (options.what == "load") setup.committed_step = options.saves;
      setup.failed_saves_allowed = 1;
      auto made = Checkpointer::create(std::move(setup));
      check(made.status());
      ranks_.push_back(*std::move(made));
      slices_.push_back(make_slices(options, rank));
    }
  }

  int64_t bytes() const {
    int64_t bytes = 0;
    for (const std::vector<Slice>& one : slices_) bytes += bytes_of(one);
    return bytes;
  }

  // Runs `body` on all ranks at once. Returns the seconds of the slowest.
  template <typename Body>
  double run(const Body& body) {
    std::vector<absl::Status> statuses(ranks_.size());
    std::vector<std::thread> threads;
    const absl::Time begin = absl::Now();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = body(*ranks_[rank], slices_[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
    const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    for (const absl::Status& status : statuses) check(status);
    return seconds;
  }

  nlohmann::json save() {
    nlohmann::json rows = nlohmann::json::array();
    for (int64_t step = 1; step <= options_.saves; ++step) {
      const double stalled =
          run([&](Checkpointer& one, std::vector<Slice>& slices) { return one.save(step, slices, {}); });
      const double rest = run([&](Checkpointer& one, std::vector<Slice>&) { return one.wait(); });
      rows.push_back({{"stall", stalled}, {"safe", stalled + rest}});
    }
    return rows;
  }

  nlohmann::json load() {
    const int64_t before = memory("VmRSS");
    const double seconds =
        run([&](Checkpointer& one, std::vector<Slice>& slices) { return one.load(slices).status(); });
    return {{"load", seconds}, {"extra_bytes", std::max<int64_t>(0, memory("VmHWM") - before)}};
  }

 private:
  const Options& options_;
  c10::intrusive_ptr<c10d::HashStore> store_;
  std::vector<std::unique_ptr<Checkpointer>> ranks_;
  std::vector<std::vector<Slice>> slices_;
};

int run(const Options& options) {
  at::set_num_threads(1);
  if (options.what == "load") drop_cache(options.folder);
  Job job(options);
  nlohmann::json row = {{"bytes", job.bytes()}};
  if (options.what == "save") {
    row["saves"] = job.save();
  } else {
    row.update(job.load());
  }
  std::cout << row.dump() << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Saves or loads a job's state and prints how long it took.", "checkpoint_speed"};
  app.add_option("folder", options.folder, "The dump folder")->required();
  app.add_option("what", options.what, "save or load")->required()->check(CLI::IsMember({"save", "load"}));
  app.add_option("--ranks", options.ranks, "Ranks as threads, each with a part of the state")
      ->check(CLI::PositiveNumber);
  app.add_option("--mebibytes", options.mebibytes, "Size of the whole state")->check(CLI::PositiveNumber);
  app.add_option("--saves", options.saves, "Number of saves, one after the other")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::cerr << "checkpoint_speed: " << error.what() << std::endl;
    return 1;
  }
}

// Measures what a checkpoint costs in addition to its tensors if many ranks write it: the real reports, manifest and
// agreement, with ranks as a loop over a store that counts. Calls and bytes are compared with closed forms;
// docs/scale.md has the tables of TITAN_LONG=1.

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/clock/clock.h"
#include "worker/rank/checkpoint/loading/load_agreement.h"
#include "worker/rank/checkpoint/steps/rank_reports.h"

namespace titan::checkpoint {
namespace {

struct Traffic {
  int64_t calls = 0, written = 0, read = 0;
};

// A wait would be a bug: the loops run children before their parents.
class CountingStore : public c10d::Store {
 public:
  explicit CountingStore(int world) : traffic(static_cast<size_t>(world)) {}
  std::vector<Traffic> traffic;
  size_t rank = 0;  // The calling rank.

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
  }
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    ++traffic[rank].calls;
    traffic[rank].written += static_cast<int64_t>(key.size() + value.size());
    values_[key] = value;
  }
  std::vector<uint8_t> get(const std::string& key) override {
    ++traffic[rank].calls;
    traffic[rank].read += static_cast<int64_t>(values_.at(key).size());
    return values_.at(key);
  }
  int64_t add(const std::string& key, int64_t value) override {
    ++traffic[rank].calls;
    return counters_[key] += value;
  }
  bool deleteKey(const std::string& key) override {
    ++traffic[rank].calls;
    return values_.erase(key) > 0;
  }
  bool check(const std::vector<std::string>& keys) override {
    ++traffic[rank].calls;
    return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) { return values_.contains(key); });
  }
  int64_t getNumKeys() override { return static_cast<int64_t>(values_.size()); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    if (!check(keys)) C10_THROW_ERROR(DistStoreError, "no rank will ever set " + keys.front());
  }

 private:
  std::map<std::string, std::vector<uint8_t>> values_;
  std::map<std::string, int64_t> counters_;
};

// Sizes of Llama 3, as released.
struct Llama {
  const char* name;
  int64_t layers, dim, heads, kv_heads, hidden, vocabulary = 128256;
};
constexpr Llama k70B{"70B", 80, 8192, 64, 8, 28672}, k405B{"405B", 126, 16384, 128, 8, 53248};

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  size_t tensor_dim;  // The dim that tensor parallelism cuts; beyond the shape: none.
};

std::vector<Parameter> parameters_of(const Llama& model) {
  const int64_t dim = model.dim, kv = dim / model.heads * model.kv_heads;
  std::vector<Parameter> all = {{"tok_embeddings.weight", {model.vocabulary, dim}, 0},
                                {"norm.weight", {dim}, 1},
                                {"output.weight", {model.vocabulary, dim}, 0}};
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string at = absl::StrCat("layers.", layer, ".");
    for (const auto& [name, rows, columns, cut] :
         std::vector<std::tuple<const char*, int64_t, int64_t, size_t>>{{"attention.wq", dim, dim, 0},
                                                                        {"attention.wk", kv, dim, 0},
                                                                        {"attention.wv", kv, dim, 0},
                                                                        {"attention.wo", dim, dim, 1},
                                                                        {"feed_forward.w1", model.hidden, dim, 0},
                                                                        {"feed_forward.w2", dim, model.hidden, 1},
                                                                        {"feed_forward.w3", model.hidden, dim, 0}}) {
      all.push_back({at + name + ".weight", {rows, columns}, cut});
    }
    all.push_back({at + "attention_norm.weight", {dim}, 1});
    all.push_back({at + "ffn_norm.weight", {dim}, 1});
  }
  return all;
}

// [offset, offset + size) of the `part`-th of `parts` chunks, as torch chunks a dim.
std::pair<int64_t, int64_t> chunk(int64_t size, int64_t part, int64_t parts) {
  const int64_t each = (size + parts - 1) / parts, offset = std::min(size, each * part);
  return {offset, std::min(each, size - offset)};
}

struct Job {
  Llama model;
  int world;
  int tensor;  // Degree of tensor parallelism, of neighbouring ranks; FSDP over the rest.
};

// A rank's shard: the model and AdamW's two states in fp32.
WrittenShard shard_of(const Job& job, const std::vector<Parameter>& parameters, int rank) {
  WrittenShard shard;
  for (const char* state : {"model.", "optim.exp_avg.", "optim.exp_avg_sq."}) {
    for (const Parameter& parameter : parameters) {
      Box box = whole(parameter.shape);
      if (parameter.tensor_dim < box.shape.size()) {
        std::tie(box.offset[parameter.tensor_dim], box.shape[parameter.tensor_dim]) =
            chunk(parameter.shape[parameter.tensor_dim], rank % job.tensor, job.tensor);
      } else if (rank % job.tensor != 0) {
        continue;  // Replicated: the first one writes it.
      }
      const auto [offset, size] = chunk(box.shape[0], rank / job.tensor, job.world / job.tensor);
      box.offset[0] += offset;
      box.shape[0] = size;
      if (size > 0) shard.pieces.push_back({state + parameter.name, c10::ScalarType::Float, parameter.shape, box});
    }
  }
  if (rank == 0) shard.pieces.push_back({"optim.step", c10::ScalarType::Float, {}, {}});
  if (shard.pieces.empty()) return shard;  // There are more ranks than rows.
  shard.has_file = true;
  std::sort(shard.pieces.begin(), shard.pieces.end(), lies_before);
  int64_t data = 0;
  for (const PieceRecord& piece : shard.pieces) data += 4 * piece.box.elements();
  char name[32];
  std::snprintf(name, sizeof name, "a1-%05d.safetensors", rank);
  shard.file = {.name = name, .bytes = 64 + data + index_bytes(data), .index_bytes = index_bytes(data)};
  return shard;
}

struct Cost {
  int world = 0;
  int64_t manifest = 0, rows = 0, indexes = 0, messages = 0;  // Bytes.
  int64_t leaf_calls = 0, leaf_bytes = 0, max_calls = 0, leader_calls = 0, leader_read = 0;
  int64_t load_calls = 0;  // Calls of a leaf.
  size_t files_same = 0, files_halved = 0;
  double save_seconds = 0, open_seconds = 0;  // Times of rank 0.
  int64_t total() const { return manifest + indexes + messages; }
};

double seconds_since(absl::Duration begin) { return absl::ToDoubleSeconds(system_clock().monotonic() - begin); }

// The files that hold a rank's pieces, in a step that another mesh may have written.
size_t files_for(const Manifest& manifest, const PlacementIndex& placement, const WrittenShard& shard) {
  std::set<int64_t> files;
  for (const PieceRecord& piece : shard.pieces) {
    const auto tensor = static_cast<size_t>(manifest.find(piece.key) - manifest.tensors.data());
    placement.for_each_piece(tensor, piece.box, [&](int64_t file, const Box&) { files.insert(file); });
  }
  return files.size();
}

class ScaleTest : public ::testing::Test {
 protected:
  void begin(const Job& job) {
    job_ = job;
    parameters_ = parameters_of(job.model);
    cost_ = {.world = job.world};
    exchanges_.clear();
    store_ = c10::make_intrusive<CountingStore>(job.world);
    for (int rank = 0; rank < job.world; ++rank) {
      exchanges_.push_back(std::make_unique<ReportExchange>(
          store_, rank, job.world, ReportExchange::Timeout{.timeout = absl::Seconds(1)}, &stop_));
    }
  }

  size_t a_leaf() const {
    int rank = job_.world / 2;
    while (!branches(branch_of(rank, job_.world, kFanOut), kFanOut).empty()) ++rank;
    return static_cast<size_t>(rank);
  }

  // Calls of one gather and the following broadcast.
  int64_t calls_of(int rank) const {
    const auto below = static_cast<int64_t>(branches(branch_of(rank, job_.world, kFanOut), kFanOut).size());
    return (below > 0 ? 1 + 2 * below : 0) + (rank == 0 ? 1 : 3);
  }

  // Runs children first.
  template <typename Call>
  void each_rank(Call&& call) {
    for (int rank = job_.world - 1; rank >= 0; --rank) {
      store_->rank = static_cast<size_t>(rank);
      call(rank);
    }
  }
  void announce(const std::string& topic) {
    for (int rank = 0; rank < job_.world; ++rank) {
      store_->rank = static_cast<size_t>(rank);
      ASSERT_TRUE(exchanges_[static_cast<size_t>(rank)]->broadcast(topic, R"({"code":0,"message":""})").ok());
    }
  }

  void save() {
    Manifest manifest{.step = 1, .job_uid = "job", .world = job_.world};
    each_rank([&](int rank) {
      const WrittenShard shard = shard_of(job_, parameters_, rank);
      cost_.indexes += shard.file.index_bytes;
      ShardReports reports(*exchanges_[static_cast<size_t>(rank)]);
      const absl::Duration start = system_clock().monotonic();
      const auto joined = reports.gather("save", shard, nullptr);
      ASSERT_TRUE(joined.ok()) << joined.status();
      if (rank != 0) return;
      const absl::Status complete = reports.complete(*joined, manifest);
      ASSERT_TRUE(complete.ok()) << complete;
      text_ = to_text(manifest);
      cost_.save_seconds = seconds_since(start);
    });
    announce("verdict");
    cost_.manifest = static_cast<int64_t>(text_.size());
    for (const PlacementRow& row : manifest.rows) cost_.rows += static_cast<int64_t>(row.places.size());
  }

  void load() {
    const std::vector<Traffic> before = store_->traffic;
    const absl::Duration start = system_clock().monotonic();
    const auto manifest = manifest_from_text(text_);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    const PlacementIndex placement(manifest->rows, manifest->tensors.size());
    cost_.open_seconds = seconds_since(start);
    for (const int rank : {0, 1, job_.world / 3, job_.world / 2, job_.world - 1}) {
      const WrittenShard own = shard_of(job_, parameters_, rank);
      std::vector<PieceRecord> read;
      placement.for_each_piece_in(rank, [&](size_t tensor, const Box& box) {
        const TensorRecord& record = manifest->tensors[tensor];
        read.push_back({record.key, record.dtype, record.shape, box});
      });
      std::sort(read.begin(), read.end(), lies_before);
      EXPECT_EQ(pieces_crc(read), pieces_crc(own.pieces)) << "what rank " << rank << " wrote";
      cost_.files_same = std::max(cost_.files_same, files_for(*manifest, placement, own));
    }
    Job half = job_;
    half.world /= 2;
    cost_.files_halved = files_for(*manifest, placement, shard_of(half, parameters_, half.world / 3));
    each_rank([&](int rank) {
      const auto joined =
          exchanges_[static_cast<size_t>(rank)]->gather("load", to_text(LoadReport{}), join_load_reports);
      ASSERT_TRUE(joined.ok()) << joined.status();
      EXPECT_TRUE(rank != 0 || load_report_from_text(*joined).status.ok());
    });
    announce("load verdict");
    for (int rank = 1; rank < job_.world; ++rank) {
      const auto at = static_cast<size_t>(rank);
      ASSERT_EQ(store_->traffic[at].calls - before[at].calls, calls_of(rank)) << rank;
    }
    cost_.load_calls = store_->traffic[a_leaf()].calls - before[a_leaf()].calls;
  }

  // A save makes one call more than an agreement: it checks for the list of tensors. The first rank that finds none
  // writes it, and rank 0 looks for it and reads it, unless it equals its own.
  void check_save_calls() {
    int64_t more = 0;
    for (int rank = 1; rank < job_.world; ++rank) {
      const int64_t extra = store_->traffic[static_cast<size_t>(rank)].calls - calls_of(rank) - 1;
      ASSERT_GE(extra, -1) << rank;  // A rank that writes nothing makes no call about the list.
      ASSERT_LE(extra, 1) << rank;
      more += std::max<int64_t>(extra, 0);
      cost_.max_calls = std::max(cost_.max_calls, store_->traffic[static_cast<size_t>(rank)].calls);
    }
    EXPECT_LE(more, 16) << "lists of tensors";
    const int64_t leaders = store_->traffic[0].calls - calls_of(0);
    EXPECT_TRUE(leaders % 2 == 0 && leaders <= 2 * more) << leaders;
    cost_.leader_calls = store_->traffic[0].calls;
    cost_.leader_read = store_->traffic[0].read;
    const Traffic& leaf = store_->traffic[a_leaf()];
    cost_.leaf_calls = leaf.calls;
    cost_.leaf_bytes = leaf.written + leaf.read;
    for (const Traffic& one : store_->traffic) cost_.messages += one.written;
  }

  Cost run(const Job& job) {
    begin(job);
    save();
    check_save_calls();
    load();
    return cost_;
  }

 private:
  Job job_{};
  std::vector<Parameter> parameters_;
  Cost cost_;
  std::string text_;
  std::atomic<bool> stop_{false};
  c10::intrusive_ptr<CountingStore> store_;
  std::vector<std::unique_ptr<ReportExchange>> exchanges_;
};

// The power of the number of ranks with which a figure grew between the last two sizes.
double power(const Cost& from, const Cost& to, double before, double after) {
  return std::log(after / before) / std::log(static_cast<double>(to.world) / from.world);
}

void print(const Job& job, const std::vector<Cost>& costs) {
  std::printf("\nLlama 3 %s, %s\n", job.model.name, job.tensor == 1 ? "FSDP" : "TP 8 x FSDP");
  const auto line = [&](const char* what, double scale, const char* format, auto of) {
    std::printf("| %-34s |", what);
    for (const Cost& cost : costs) {
      char figure[32];
      std::snprintf(figure, sizeof figure, format, static_cast<double>(of(cost)) / scale);
      std::printf(" %10s |", figure);
    }
    const Cost &from = costs[costs.size() - 2], &to = costs.back();
    std::printf(" %5.2f |\n", power(from, to, static_cast<double>(of(from)), static_cast<double>(of(to))));
  };
  line("ranks", 1, "%.0f", [](const Cost& c) { return c.world; });
  line("manifest, kB", 1e3, "%.1f", [](const Cost& c) { return c.manifest; });
  line("its progressions", 1, "%.0f", [](const Cost& c) { return c.rows; });
  line("all indexes, MB", 1e6, "%.2f", [](const Cost& c) { return c.indexes; });
  line("an index, kB", 1e3, "%.2f", [](const Cost& c) { return c.indexes / c.world; });
  line("all messages of a save, MB", 1e6, "%.2f", [](const Cost& c) { return c.messages; });
  line("metadata in all, MB", 1e6, "%.2f", [](const Cost& c) { return c.total(); });
  line("rank 0: calls, save", 1, "%.0f", [](const Cost& c) { return c.leader_calls; });
  line("rank 0: read from the store, kB", 1e3, "%.1f", [](const Cost& c) { return c.leader_read; });
  line("rank 0: reports to manifest, s", 1, "%.3f", [](const Cost& c) { return c.save_seconds; });
  line("a leaf: calls, save", 1, "%.0f", [](const Cost& c) { return c.leaf_calls; });
  line("a leaf: bytes, save", 1, "%.0f", [](const Cost& c) { return c.leaf_bytes; });
  line("any other: max calls, save", 1, "%.0f", [](const Cost& c) { return c.max_calls; });
  line("a leaf: calls, load's agreement", 1, "%.0f", [](const Cost& c) { return c.load_calls; });
  line("any rank: manifest read, s", 1, "%.3f", [](const Cost& c) { return c.open_seconds; });
  line("shards opened, same mesh", 1, "%.0f", [](const Cost& c) { return static_cast<double>(c.files_same); });
  line("shards opened, half as many ranks", 1, "%.0f",
       [](const Cost& c) { return static_cast<double>(c.files_halved); });
}

TEST_F(ScaleTest, MetadataStaysSmall) {
  const bool all = std::getenv("TITAN_LONG") != nullptr;
  std::vector<Job> jobs = {{k70B, 0, 1}};
  if (all) jobs = {{k70B, 0, 1}, {k405B, 0, 1}, {k405B, 0, 8}};
  for (Job job : jobs) {
    std::vector<Cost> costs;
    for (const int world : all ? std::vector<int>{104, 1000, 10000} : std::vector<int>{40, 120}) {
      job.world = world;
      costs.push_back(run(job));
      if (HasFailure()) return;
      const Cost& cost = costs.back();
      const auto tensors = static_cast<int64_t>(3 * parameters_of(job.model).size() + 1);
      int64_t mebibytes = 0;
      for (const Parameter& one : parameters_of(job.model)) mebibytes += 3 * 4 * whole(one.shape).elements() >> 20;
      EXPECT_LT(cost.manifest, 100 * (tensors + world) + 5000);
      EXPECT_LT(cost.indexes, 4 * mebibytes + 48 * world);
      EXPECT_LT(cost.leaf_bytes, 900);
      EXPECT_LT(cost.messages, 1200 * world + 16 * 100 * tensors);
      EXPECT_LT(cost.total(), 50'000'000);
    }
    print(job, costs);
    EXPECT_EQ(costs.back().files_same, 1u) << "a rank opens only its own shard";
  }
}

}  // namespace
}  // namespace titan::checkpoint

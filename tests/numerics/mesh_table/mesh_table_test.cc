// Compares every row of the table with the same model on one rank, and with the closed form of its split.
//   mesh_table_test                        most rows in fp64, every third in fp32 as well; TITAN_LONG=1: all in both
//   mesh_table_test --markdown=FILE        all in both, and writes the measured differences as a table

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/numerics/mesh_table/closed_form.h"
#include "tests/numerics/mesh_table/rows.h"
#include "tests/numerics/mesh_table/table_model.h"

namespace titan::testing {
namespace {

constexpr double kExact = 1e-10;  // fp64, relative: only the order of sums may differ.
constexpr double kFirstStep = 1e-5, kAllSteps = 1e-4, kAllStepsExperts = 1e-3;  // fp32, relative.
constexpr double kNorm = 2e-4, kNormExperts = 1e-2;

// Largest differences of any rank from one rank.
struct Differences {
  double first_loss = 0, loss = 0, norm = 0, gradient = 0, value = 0;
};

void raise(double& worst, double difference) {
  if (!(difference <= worst)) worst = difference;  // NaN counts as the largest.
}

at::Tensor piece_of(const at::Tensor& whole, const Piece& piece) {
  at::Tensor part = whole;
  for (size_t d = 0; d < piece.offset.size(); ++d) {
    part = part.narrow(static_cast<int64_t>(d), piece.offset[d], piece.value.size(static_cast<int64_t>(d)));
  }
  return part;
}

// Largest error of a piece, relative to the whole tensor's largest value.
double error(const Piece& got, const at::Tensor& whole) {
  if (got.value.numel() == 0) return 0;
  const double scale = whole.abs().max().item<double>();
  const double worst = (got.value - piece_of(whole, got)).abs().max().item<double>();
  return scale == 0 ? worst : worst / scale;
}

double largest(const Piece& piece) { return piece.value.numel() == 0 ? 0 : piece.value.abs().max().item<double>(); }

Differences compare(const TableModel& model, const RankRecord& reference, const std::vector<RankRecord>& world) {
  Differences worst;
  for (const RankRecord& rank : world) {
    for (size_t step = 0; step < reference.losses.size(); ++step) {
      const double loss = std::abs(rank.losses[step] / reference.losses[step] - 1);
      if (step == 0) raise(worst.first_loss, loss);
      raise(worst.loss, loss);
      raise(worst.norm, std::abs(rank.norms[step] / reference.norms[step] - 1));
    }
    for (const auto& [fqn, piece] : rank.gradients) {
      const bool none = model.has_no_gradient(fqn);
      raise(worst.gradient,
            none ? largest(piece) / reference.norms[0] : error(piece, reference.gradients.at(fqn).value));
    }
    for (const auto& [fqn, piece] : rank.values) {
      // The optimizer scales rounding to whole updates.
      if (!model.has_no_gradient(fqn)) raise(worst.value, error(piece, reference.values.at(fqn).value));
    }
    for (const auto& [fqn, buffer] : rank.buffers) {
      raise(worst.value, (buffer - reference.buffers.at(fqn)).abs().max().item<double>());
    }
  }
  return worst;
}

// Checks that together the ranks hold every element of every parameter.
void expect_complete(const RankRecord& reference, const std::vector<RankRecord>& world) {
  for (const auto& [fqn, whole] : reference.values) {
    at::Tensor seen = at::zeros(whole.value.sizes(), at::kBool);
    for (const RankRecord& rank : world) {
      const auto found = rank.values.find(fqn);
      if (found != rank.values.end()) piece_of(seen, found->second).fill_(true);
    }
    EXPECT_TRUE(seen.all().item<bool>()) << "no rank holds all of " << fqn;
  }
}

// Checks that every rank starts from the same bits as one rank.
void expect_same_start(const RankRecord& reference, const std::vector<RankRecord>& world) {
  for (const RankRecord& rank : world) {
    for (const auto& [fqn, piece] : rank.initial) {
      EXPECT_TRUE(piece.value.equal(piece_of(reference.initial.at(fqn).value, piece))) << "initial " << fqn;
    }
  }
}

// Checks that the biases moved; otherwise comparing them would prove nothing.
void expect_biases_moved(const RankRecord& reference) {
  for (const auto& [fqn, bias] : reference.buffers) EXPECT_GT(bias.abs().max().item<double>(), 0) << fqn;
}

// Bytes alive before each piece of work. The closed form leaves out single numbers: the loss and its gradient, weights
// of norms before their sum, placeholders for shapes.
constexpr int64_t kSingleNumbers = 256;
constexpr double kMaxHeld = 1.02, kMinHeld = 0.98;

// Returns the measured peak divided by the predicted one.
double expect_held(const std::vector<int64_t>& got, const std::vector<int64_t>& expected, int rank) {
  EXPECT_EQ(got.size(), expected.size()) << "pieces of work of rank " << rank;
  if (got.size() != expected.size()) return INFINITY;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto predicted = static_cast<double>(expected[i]);
    EXPECT_LE(static_cast<double>(got[i]), kMaxHeld * predicted + kSingleNumbers) << "rank " << rank << ", work " << i;
    EXPECT_GE(static_cast<double>(got[i]), kMinHeld * predicted - kSingleNumbers) << "rank " << rank << ", work " << i;
  }
  const auto highest = [](const std::vector<int64_t>& all) {
    return static_cast<double>(*std::max_element(all.begin(), all.end()));
  };
  EXPECT_LE(highest(got), kMaxHeld * highest(expected)) << "peak of rank " << rank;
  return highest(got) / highest(expected);
}

// Returns the largest ratio of held to predicted bytes.
double expect_closed_form(const MeshJob& job, const std::vector<RankRecord>& world) {
  double held = 0;
  for (int rank = 0; rank < job.world; ++rank) {
    const ClosedForm expected = closed_form(job, rank, world);
    const RankRecord& got = world[rank];
    for (const auto& [key, entry] : expected.traffic) {
      const auto found = got.traffic.find(key);
      const comm::LedgerEntry seen = found == got.traffic.end() ? comm::LedgerEntry{} : found->second;
      EXPECT_EQ(seen.calls, entry.calls) << "calls of " << key << " on rank " << rank;
      EXPECT_EQ(seen.bytes, entry.bytes) << "bytes of " << key << " on rank " << rank;
    }
    for (const auto& [key, entry] : got.traffic) {
      EXPECT_TRUE(expected.traffic.count(key)) << key << " is not in the closed form: " << entry.calls << " calls";
    }
    EXPECT_EQ(got.product_flops, expected.product_flops) << "FLOPs of products on rank " << rank;
    EXPECT_EQ(got.attention_flops, expected.attention_flops) << "FLOPs of attention on rank " << rank;
    EXPECT_EQ(got.parameter_bytes, expected.parameter_bytes) << "parameter bytes of rank " << rank;
    EXPECT_EQ(got.optimizer_bytes, expected.optimizer_bytes) << "optimizer bytes of rank " << rank;
    raise(held, expect_held(got.held, expected.held, rank));
  }
  return held;
}

// Returns the one-rank run of a row, which is made once.
const RankRecord& reference_of(const MeshRow& row, const std::string& dtype) {
  static auto& known = *new std::map<std::string, RankRecord>;
  const std::string key = row.reference + " " + dtype;
  auto found = known.find(key);
  if (found == known.end()) {
    MeshJob job = one_rank(row);
    job.config.training.dtype = dtype;
    job.config.training.mixed_precision_param = "float32";
    found = known.emplace(key, run_mesh_job(job)[0]).first;
  }
  return found->second;
}

struct Measured {
  Differences in_double, in_float;
  double held = 0;  // Divided by the prediction.
};

std::map<std::string, Measured>& measured() {
  static auto& all = *new std::map<std::string, Measured>;
  return all;
}

// fp64 shows whether a split changes the numbers. fp32 adds only rounding and half the bytes, for which a third of the
// rows, of all families and axes, is enough.
bool also_in_float(size_t row) { return std::getenv("TITAN_LONG") != nullptr || row % 3 == 0; }

class MeshTableTest : public ::testing::TestWithParam<size_t> {};

TEST_P(MeshTableTest, EqualsOneRankAndItsClosedForm) {
  const MeshRow& row = mesh_rows()[GetParam()];
  if (row.only_long && std::getenv("TITAN_LONG") == nullptr) GTEST_SKIP() << "in the long form";
  MeshJob job = row.job;
  job.config.training.mixed_precision_param = "float32";

  job.config.training.dtype = "float64";
  const RankRecord& exact = reference_of(row, "float64");
  std::vector<RankRecord> world = run_mesh_job(job);
  const Differences in_double = compare(table_model(job.spec), exact, world);
  EXPECT_LE(in_double.loss, kExact);
  EXPECT_LE(in_double.norm, kExact);
  EXPECT_LE(in_double.gradient, kExact);
  EXPECT_LE(in_double.value, kExact);
  expect_complete(exact, world);
  expect_same_start(exact, world);
  if (!job.config.debug.moe_force_load_balance) expect_biases_moved(exact);
  double held = expect_closed_form(job, world);
  if (!also_in_float(GetParam())) return;

  job.config.training.dtype = "float32";
  world = run_mesh_job(job);
  const Differences in_float = compare(table_model(job.spec), reference_of(row, "float32"), world);
  expect_same_start(reference_of(row, "float32"), world);
  EXPECT_LE(in_float.first_loss, kFirstStep);
  EXPECT_LE(in_float.loss, job.spec.moe ? kAllStepsExperts : kAllSteps);
  EXPECT_LE(in_float.norm, job.spec.moe ? kNormExperts : kNorm);
  raise(held, expect_closed_form(job, world));
  measured()[row.name] = {in_double, in_float, held};
}

std::string test_name(const ::testing::TestParamInfo<size_t>& info) {
  std::string name = absl::StrCat(info.index, "_");
  for (const char c : mesh_rows()[info.param].name) {
    if (std::isalnum(static_cast<unsigned char>(c))) name += c;
    if (c == ' ' && name.back() != '_') name += '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Rows, MeshTableTest, ::testing::Range<size_t>(0, mesh_rows().size()), test_name);

// Writes the table after the marker of a page and replaces the old one.
void write_markdown(const std::string& path) {
  constexpr char kMarker[] = "<!-- What follows is written by mesh_table_test --markdown. -->\n";
  std::ifstream old_page(path);
  std::string page((std::istreambuf_iterator<char>(old_page)), {});
  const size_t place = page.find(kMarker);
  if (place != std::string::npos) page.resize(place);
  absl::StrAppend(&page, kMarker,
                  "| mesh | torchtitan's test | fp64 loss | fp64 gradients | fp64 weights | fp32 loss, step 1 "
                  "| fp32 loss | fp32 norm | bytes held |\n|---|---|---|---|---|---|---|---|---|\n");
  for (const MeshRow& row : mesh_rows()) {
    const auto found = measured().find(row.name);
    if (found == measured().end()) continue;
    const auto& [d, f, held] = found->second;
    absl::StrAppend(
        &page, absl::StrFormat("| %s | %s | %.1e | %.1e | %.1e | %.1e | %.1e | %.1e | %.3f |\n", row.name, row.covers,
                               d.loss, d.gradient, d.value, f.first_loss, f.loss, f.norm, held));
  }
  std::ofstream(path) << page;
}

}  // namespace
}  // namespace titan::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  // Yields to other tests: this one runs up to eight threads and has no deadline.
  if (nice(10) == -1) std::perror("nice");
  if (argc > 1) setenv("TITAN_LONG", "1", 1);  // The table has all rows in both types.
  const int result = RUN_ALL_TESTS();
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (absl::StartsWith(word, "--markdown=")) titan::testing::write_markdown(word.substr(11));
  }
  return result;
}

// Measures how evenly each balancer spreads attention over the context ranks, on packed rows of a dataset
// (docs/howto/long-context.md):
//   context_balance --path .deps/assets/c4_test --tokenizer .deps/assets/tokenizer
// Prints the work of the busiest rank over the mean of all, and the attention calls of one rank and layer.

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <stdexcept>

#include "CLI/CLI.hpp"
#include "common/io/data_files/datasets.h"
#include "worker/rank/data/loader/loader.h"
#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/parallel/context_load_balance.h"

namespace titan {
namespace {

struct Plan {
  std::string dataset = "c4_test", path, tokenizer;
  int64_t rows = 1, batches = 64, window = 0, chunk = 0;
};

struct Evenness {
  double mean = 0, worst = 0, calls = 0;

  void add(const Plan& plan, const nn::RowShares& shares, const std::vector<int64_t>& work, const nn::Spans& spans) {
    const auto sum = static_cast<double>(std::accumulate(work.begin(), work.end(), int64_t{0}));
    const double ratio =
        static_cast<double>(parallel::max_work(shares, work)) * static_cast<double>(shares.size()) / sum;
    mean += ratio / static_cast<double>(plan.batches);
    worst = std::max(worst, ratio);
    size_t pairs = 0;
    for (const std::vector<nn::Segment>& mine : shares) {
      for (const std::vector<nn::Segment>& owned : shares) {
        pairs += nn::visible_pairs(spans, plan.window, mine, owned).size();
      }
    }
    calls += static_cast<double>(pairs) / static_cast<double>(shares.size()) / static_cast<double>(plan.batches);
  }
};

template <typename T>
T require(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(std::string(value.status().message()));
  return *std::move(value);
}

void measure(const Plan& plan, int64_t seq_len) {
  data::LoaderOptions options;
  const data_files::DatasetFiles found = require(data_files::dataset_files(plan.dataset, plan.path));
  options.files = found.files;
  options.kind.format = found.format;
  options.tokenizer_folder = plan.tokenizer;
  options.batch = plan.rows;
  options.seq_len = seq_len;
  const auto loader = require(data::open_loader(options));
  const int rings[] = {2, 4, 8};
  Evenness head_tail[3], by_work[3];
  for (int64_t batch = 0; batch < plan.batches; ++batch) {
    const at::Tensor documents =
        nn::number_documents(require(loader->next()).tokens, loader->end_of_document().value());
    const nn::AttentionMask mask{.window = plan.window, .chunk = plan.chunk, .documents = true};
    const std::vector<int64_t> work = parallel::attention_work(documents, plan.rows, seq_len, {{mask}});
    const nn::Spans spans = nn::spans_of(documents, plan.chunk, seq_len);
    for (int i = 0; i < 3; ++i) {
      head_tail[i].add(plan, parallel::split_head_tail(seq_len, rings[i]), work, spans);
      by_work[i].add(plan, parallel::split_by_work(work, rings[i]), work, spans);
    }
  }
  for (int i = 0; i < 3; ++i) {
    std::printf("| %ld | %d | %.3f | %.2f | %.1f | %.3f | %.2f | %.1f |\n", seq_len, rings[i], head_tail[i].mean,
                head_tail[i].worst, head_tail[i].calls, by_work[i].mean, by_work[i].worst, by_work[i].calls);
  }
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  titan::Plan plan;
  CLI::App app("Measures how evenly attention's work is split over context ranks");
  app.add_option("--dataset", plan.dataset);
  app.add_option("--path", plan.path)->required();
  app.add_option("--tokenizer", plan.tokenizer)->required();
  app.add_option("--rows", plan.rows, "Rows of a microbatch");
  app.add_option("--batches", plan.batches);
  app.add_option("--window", plan.window);
  app.add_option("--chunk", plan.chunk);
  CLI11_PARSE(app, argc, argv);
  std::printf("| row | ranks | headtail: most over mean | worst | calls | ptrr: most over mean | worst | calls |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  for (const int64_t seq_len : {2048, 8192}) titan::measure(plan, seq_len);
}

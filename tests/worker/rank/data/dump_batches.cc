// Prints a rank's batches for comparison with torchtitan: dump_batches OPTIONS, a JSON object; one line of JSON per
// batch.
#include <iostream>

#include "common/io/data_files/datasets.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/loader/loader.h"

namespace {

nlohmann::json rows(const at::Tensor& tensor) {
  nlohmann::json all = nlohmann::json::array();
  for (int64_t row = 0; row < tensor.size(0); ++row) {
    const int64_t* values = tensor[row].data_ptr<int64_t>();
    all.push_back(std::vector<int64_t>(values, values + tensor.size(1)));
  }
  return all;
}

int run(const nlohmann::json& arguments) {
  using namespace titan::data;
  LoaderOptions options;
  const auto files = titan::data_files::dataset_files(arguments.at("dataset"), arguments.at("path"));
  if (!files.ok()) return std::cerr << files.status() << "\n", 2;
  options.files = files->files;
  options.kind.format = files->format;
  options.tokenizer_folder = arguments.at("tokenizer");
  options.batch = arguments.at("batch");
  options.seq_len = arguments.at("seq_len");
  options.order = arguments.at("order") == "global" ? Order::kGlobal : Order::kPerRank;
  options.dp_rank = arguments.at("dp_rank");
  options.dp_size = arguments.at("dp_size");
  auto loader = open_loader(options);
  if (!loader.ok()) return std::cerr << loader.status() << "\n", 3;
  for (int i = 0; i < arguments.at("batches").get<int>(); ++i) {
    const auto batch = (*loader)->next();
    if (!batch.ok()) return std::cerr << batch.status() << "\n", 4;
    std::cout << nlohmann::json{{"tokens", rows(batch->at(kTokens))}, {"labels", rows(batch->at(kLabels))}}.dump()
              << "\n";
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return argc == 2 ? run(nlohmann::json::parse(argv[1])) : 1; }

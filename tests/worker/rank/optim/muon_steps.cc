// Runs five steps of Muon over tensors in files, for an oracle in Python: muon_steps FOLDER KERNELS. FOLDER holds
// job.json {"shapes": [[rows, columns], ...], "steps", "lr", "weight_decay", "momentum", "nesterov", "adjust_lr"} and
// numbers of float32 in start-I.bin and grad-STEP-I.bin. The program writes end-I.bin and momentum-I.bin.

#include <ATen/ATen.h>

#include <fstream>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/optim/optimizer.h"

namespace {

void read(const std::string& path, const at::Tensor& into) {
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(into.mutable_data_ptr()), static_cast<std::streamsize>(into.nbytes()));
  TORCH_CHECK(file.good(), path, ": cannot be read");
}

void write(const std::string& path, const at::Tensor& tensor) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(tensor.const_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
}

void run(const std::string& folder) {
  std::ifstream file(folder + "/job.json");
  const nlohmann::json job = nlohmann::json::parse(file);
  titan::optim::OptimizerOptions options{.name = "Muon",
                                         .weight_decay = job.at("weight_decay"),
                                         .momentum = job.at("momentum"),
                                         .nesterov = job.at("nesterov"),
                                         .adjust_lr = job.at("adjust_lr")};
  std::vector<titan::optim::Slot> slots;
  for (const nlohmann::json& shape : job.at("shapes")) {
    const at::Tensor value = at::empty(shape.get<std::vector<int64_t>>());
    read(absl::StrCat(folder, "/start-", slots.size(), ".bin"), value);
    slots.push_back({"w", value, at::empty_like(value)});
  }
  const auto muon = titan::optim::make_optimizer(options, slots);
  for (int step = 0; step < job.at("steps"); ++step) {
    for (size_t i = 0; i < slots.size(); ++i) read(absl::StrCat(folder, "/grad-", step, "-", i, ".bin"), slots[i].grad);
    muon->step(job.at("lr"));
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    write(absl::StrCat(folder, "/end-", i, ".bin"), slots[i].value);
    write(absl::StrCat(folder, "/momentum-", i, ".bin"), muon->states()[i]["momentum_buffer"]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || !titan::kernels::choose(argv[2])) {
    std::cerr << "usage: muon_steps FOLDER KERNELS\n";
    return 2;
  }
  run(argv[1]);
  return 0;
}

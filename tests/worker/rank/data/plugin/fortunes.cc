// A dataset from outside of Titan's tree: files of texts with a line "%" after each, as the program fortune reads them.
// The example of docs/howto/add-a-dataset.md; dataset_plugin_test.py compiles it and trains on it.
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "worker/rank/data/plugin/plugin.h"

namespace {

using namespace titan;

class Fortunes final : public data::PluginReader {
 public:
  Fortunes(const std::string& file, const data_files::FilePlace& place) : in_(file, std::ios::binary), place_(place) {
    in_.seekg(place.offset);
  }
  bool there() const { return in_.good(); }

  absl::StatusOr<bool> next(data::PluginDocument& document) override {
    std::string line;
    bool any = false;
    while (std::getline(in_, line)) {
      place_.offset += static_cast<int64_t>(line.size()) + (in_.eof() ? 0 : 1);
      any = true;
      if (line == "%") break;
      document.text += line + "\n";
    }
    if (in_.bad()) return absl::DataLossError("cannot be read");
    if (any && document.text.empty()) document.problem = "empty";
    return any;
  }

  data_files::FilePlace place() const override { return place_; }  // A byte offset; no second number is needed.

 private:
  std::ifstream in_;
  data_files::FilePlace place_;
};

absl::StatusOr<std::unique_ptr<data::PluginReader>> open(const std::string& file, const data_files::FilePlace& place) {
  auto reader = std::make_unique<Fortunes>(file, place);
  if (!reader->there()) return absl::NotFoundError("cannot be opened");
  return reader;
}

std::vector<data::PluginDataset> datasets() { return {{.name = "fortunes", .ending = ".fortunes", .open = open}}; }

}  // namespace

TITAN_DATA_PLUGIN(datasets)

#include "common/io/hub/inventory.h"

#include "nlohmann/json.hpp"

namespace titan::hub {
namespace {

using nlohmann::json;

constexpr char kName[] = ".titan-assets.json";

int64_t changed_at(const struct stat& about) {
  return int64_t{about.st_mtim.tv_sec} * 1'000'000'000 + about.st_mtim.tv_nsec;
}

}  // namespace

Inventory Inventory::load(const Folder& folder) {
  Inventory out;
  const auto text = folder.read(kName);
  if (!text.ok()) return out;
  const json found = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!found.is_object()) return out;
  for (const auto& [name, entry] : found.items()) {
    if (!entry.is_object() || !entry.value("digest", json()).is_string() ||
        !entry.value("size", json()).is_number_integer() || !entry.value("changed", json()).is_number_integer())
      continue;
    out.entries_[name] = {entry["digest"].get<std::string>(), entry["size"].get<int64_t>(),
                          entry["changed"].get<int64_t>()};
  }
  return out;
}

absl::Status Inventory::save(const Folder& folder) const {
  json out = json::object();
  for (const auto& [name, entry] : entries_)
    out[name] = {{"digest", entry.digest}, {"size", entry.size}, {"changed", entry.changed}};
  return folder.write(kName, out.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
}

bool Inventory::has(const RemoteFile& remote, const struct stat& about) const {
  const auto found = entries_.find(remote.name);
  return found != entries_.end() && found->second.digest == remote.digest() && found->second.size == about.st_size &&
         found->second.changed == changed_at(about);
}

void Inventory::add(const RemoteFile& remote, const struct stat& about) {
  entries_[remote.name] = {remote.digest(), about.st_size, changed_at(about)};
}

}  // namespace titan::hub

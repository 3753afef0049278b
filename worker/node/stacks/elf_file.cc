#include "worker/node/stacks/elf_file.h"

#include <cxxabi.h>
#include <fcntl.h>
#include <gelf.h>
#include <sys/stat.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/host/file_io.h"
#include "worker/node/stacks/thread_facts.h"

namespace titan::stacks {
namespace {

host::Descriptor open_plain_file(const std::string& path) {
  const host::Descriptor place(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat info {};
  if (!place || ::fstat(place.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  return host::Descriptor(::open(absl::StrCat("/proc/self/fd/", place.get()).c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

std::vector<Mapping> mappings_of(pid_t pid) {
  std::vector<Mapping> mappings;
  const absl::StatusOr<std::string> text = host::read_file(absl::StrCat("/proc/", pid, "/maps"));
  if (!text.ok()) return mappings;
  for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    Mapping mapping;
    int path_at = 0;
    const std::string copy(line);
    if (std::sscanf(copy.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %*x %x:%x %" SCNu64 " %n", &mapping.begin, &mapping.end,
                    &mapping.major, &mapping.minor, &mapping.inode, &path_at) < 5) {
      continue;
    }
    if (path_at > 0) mapping.path = copy.substr(static_cast<size_t>(path_at));
    mappings.push_back(std::move(mapping));
  }
  return mappings;
}

host::Descriptor open_mapped(pid_t pid, const Mapping& mapping) {
  if (mapping.inode == 0) return {};
  host::Descriptor file = open_plain_file(
      absl::StrCat("/proc/", pid, "/map_files/", absl::Hex(mapping.begin), "-", absl::Hex(mapping.end)));
  return file ? std::move(file) : open_plain_file(mapping.path);
}

namespace {

constexpr size_t kMaxCharacters = 120;
constexpr size_t kMaxMangled = 8192;
constexpr int kMaxDepth = 8;

// Returns whether the bracket belongs to "operator<", "operator->>" or the like.
bool of_an_operator(const std::string& name, size_t at) {
  size_t begin = at;
  while (begin > 0 && (name[begin - 1] == '<' || name[begin - 1] == '>' || name[begin - 1] == '-')) --begin;
  return absl::EndsWith(absl::string_view(name).substr(0, begin), "operator");
}

// Replaces text in brackets deeper than `depth` by "...". Keeps "()", which marks a call operator.
std::string folded(const std::string& name, int depth) {
  std::string text;
  int inside = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool bracket = (c == '<' || c == '>' || c == '(' || c == ')') && !of_an_operator(name, i);
    const bool opens = bracket && (c == '<' || c == '('), closes = bracket && !opens;
    if (closes) inside = inside > 0 ? inside - 1 : 0;
    if (inside <= depth) text += c;
    if (!opens) continue;
    ++inside;
    if (inside == depth + 1 && i + 1 < name.size() && name[i + 1] != ')') text += "...";
  }
  return text;
}

}  // namespace

std::string function_name(const std::string& symbol) {
  if (!absl::StartsWith(symbol, "_Z") || symbol.size() > kMaxMangled) {
    return shortened_name(printable(symbol), kMaxCharacters);
  }
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &failed), &std::free);
  return shortened_name(printable(plain == nullptr ? symbol : plain.get()), kMaxCharacters);
}

std::string shortened_name(const std::string& name, size_t most) {
  if (name.size() <= most) return name;
  std::string text;
  for (int depth = kMaxDepth; depth >= 0; --depth) {
    text = folded(name, depth);
    if (text.size() <= most) return text;
  }
  return absl::StrCat(text.substr(0, most - 3), "...");
}

namespace {

bool is_code(const GElf_Sym& symbol) {
  const auto type = GELF_ST_TYPE(symbol.st_info);
  return (type == STT_FUNC || type == STT_GNU_IFUNC || type == STT_NOTYPE) && symbol.st_shndx != SHN_UNDEF &&
         symbol.st_value != 0;
}

// Returns the most complete symbol table: a stripped file has only the dynamic one.
Elf_Scn* symbol_section(Elf* elf) {
  Elf_Scn* dynamic = nullptr;
  for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf, section)) != nullptr;) {
    GElf_Shdr header;
    if (gelf_getshdr(section, &header) == nullptr) continue;
    if (header.sh_type == SHT_SYMTAB) return section;
    if (header.sh_type == SHT_DYNSYM) dynamic = section;
  }
  return dynamic;
}

struct Candidate {
  uint64_t begin = 0;
  uint64_t size = UINT64_MAX;
  size_t name = 0;
};

}  // namespace

ElfFile::~ElfFile() {
  if (elf_ != nullptr) elf_end(elf_);
}

Elf* ElfFile::open(pid_t pid, const Mapping& mapping) {
  if (!tried_) {
    tried_ = true;
    fd_ = open_mapped(pid, mapping);
    if (fd_) elf_ = elf_begin(fd_.get(), ELF_C_READ_MMAP, nullptr);
    if (elf_ != nullptr && elf_kind(elf_) != ELF_K_ELF) {
      elf_end(elf_);
      elf_ = nullptr;
    }
  }
  return elf_ == nullptr ? nullptr : elf_begin(fd_.get(), ELF_C_READ_MMAP, elf_);
}

void ElfFile::adopt(Elf* elf) {
  tried_ = true;
  elf_ = elf_begin(-1, ELF_C_READ, elf);
}

void ElfFile::look_up(std::vector<uint64_t> addresses) {
  std::ranges::sort(addresses);
  addresses.erase(std::ranges::unique(addresses).begin(), addresses.end());
  std::erase_if(addresses, [this](uint64_t address) { return !known_.try_emplace(address).second; });
  Elf_Scn* const section = elf_ == nullptr || addresses.empty() ? nullptr : symbol_section(elf_);
  if (section != nullptr) read_symbols(section, addresses);
}

void ElfFile::read_symbols(Elf_Scn* section, const std::vector<uint64_t>& addresses) {
  GElf_Shdr header;
  Elf_Data* const data = elf_getdata(section, nullptr);
  if (data == nullptr || gelf_getshdr(section, &header) == nullptr || header.sh_entsize == 0) return;
  std::vector<Candidate> best(addresses.size());
  const auto count = static_cast<int>(std::min<uint64_t>(data->d_size / header.sh_entsize, INT32_MAX));
  for (int i = 0; i < count; ++i) {
    GElf_Sym symbol;
    if (gelf_getsym(data, i, &symbol) == nullptr || !is_code(symbol)) continue;
    const auto from = std::ranges::lower_bound(addresses, symbol.st_value);
    for (auto at = from; at != addresses.end() && *at - symbol.st_value < symbol.st_size; ++at) {
      Candidate& candidate = best[static_cast<size_t>(at - addresses.begin())];
      if (symbol.st_size < candidate.size) candidate = {symbol.st_value, symbol.st_size, symbol.st_name};
    }
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (best[i].size == UINT64_MAX) continue;
    const char* const name = elf_strptr(elf_, header.sh_link, best[i].name);
    if (name != nullptr && *name != '\0') known_[addresses[i]] = {function_name(name), best[i].begin};
  }
}

const Function& ElfFile::at(uint64_t address) const {
  static const Function nothing;
  const auto found = known_.find(address);
  return found == known_.end() ? nothing : found->second;
}

ElfFile& ElfFiles::of(const Mapping& mapping) {
  std::unique_ptr<ElfFile>& file = files_[{mapping.major, mapping.minor, mapping.inode, mapping.path}];
  if (file == nullptr) {
    file = std::make_unique<ElfFile>(printable(mapping.path.substr(mapping.path.rfind('/') + 1)));
  }
  return *file;
}

ElfFile& ElfFiles::nameless(const std::string& name) {
  return *nameless_.emplace_back(std::make_unique<ElfFile>(name));
}

}  // namespace titan::stacks

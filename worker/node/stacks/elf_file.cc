#include "worker/node/stacks/elf_file.h"

#include <gelf.h>

#include <algorithm>

#include "worker/node/stacks/function_name.h"
#include "worker/node/stacks/thread_facts.h"

namespace titan::stacks {
namespace {

bool is_code(const GElf_Sym& symbol) {
  const auto type = GELF_ST_TYPE(symbol.st_info);
  return (type == STT_FUNC || type == STT_GNU_IFUNC || type == STT_NOTYPE) && symbol.st_shndx != SHN_UNDEF &&
         symbol.st_value != 0;
}

// The symbol table that knows most: a stripped file has the second kind alone.
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

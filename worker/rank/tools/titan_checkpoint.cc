// titan-checkpoint inspects, checks and converts checkpoints without a job.

#include <CLI/CLI.hpp>
#include <iostream>

#include "common/base/status/status.h"
#include "common/base/version/version.h"
#include "common/io/s3/object_files.h"
#include "worker/rank/checkpoint/steps/rank_reports.h"
#include "worker/rank/tools/diff.h"
#include "worker/rank/tools/offline.h"
#include "worker/rank/tools/prune.h"

namespace {

using titan::checkpoint::caught;
using titan::s3::all_files;

void add_model_flags(CLI::App& command, titan::tools::ModelChoice& model, bool required) {
  const std::string known = required ? "" : "; recorded in the step, unless an older Titan wrote it";
  const std::string own = required ? "; may be left out with --flavor config.json" : known;
  command.add_option("--model", model.name, "Model family, as model.name of the job" + own);
  command.add_option("--flavor", model.flavor, "Its size, as model.flavor of the job" + known)->required(required);
  command.add_option("--library", model.library,
                     "Library that has the model, as experimental.custom_import of the job");
}

// Exit codes: 0 done, 1 failed or damaged, 2 usage, 3 not found.
int finish(const absl::Status& status) {
  if (status.ok()) return 0;
  std::cerr << "titan-checkpoint: " << std::string(status.message()) << "\n";
  return absl::IsInvalidArgument(status) ? 2 : absl::IsNotFound(status) ? 3 : 1;
}

// Exit codes like diff(1): 0 the same, 1 they differ, 2 they could not be compared.
int finish_diff(const absl::StatusOr<bool>& same) {
  if (same.ok()) return *same ? 0 : 1;
  finish(same.status());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Inspects, checks and converts Titan checkpoints. No job needs to run, and running jobs are not disturbed.\n\n"
      "  titan-checkpoint inspect outputs/checkpoint\n"
      "  titan-checkpoint verify outputs/checkpoint/step-500\n"
      "  titan-checkpoint verify s3://bucket/run/step-500\n"
      "  titan-checkpoint diff outputs/checkpoint/step-500 other/checkpoint/step-500\n"
      "  titan-checkpoint diff outputs/checkpoint/step-500 hf-weights\n"
      "  titan-checkpoint prune outputs/checkpoint --keep 3 --keep-every 1000 --dry-run\n"
      "  titan-checkpoint export outputs/checkpoint/step-500 hf-weights --dtype bfloat16\n"
      "  titan-checkpoint export outputs/checkpoint/step-500 s3://bucket/weights\n"
      "  titan-checkpoint export outputs/checkpoint/step-500 served --dtype float8_block\n"
      "  titan-checkpoint export outputs/checkpoint/step-500 adapter --format peft\n"
      "  titan-checkpoint export outputs/checkpoint/step-500 torchtitan/checkpoint/step-500 --format dcp\n"
      "  titan-checkpoint export outputs/checkpoint/step-500 llama.cpp --format gguf --dtype q8_0\n"
      "  titan-checkpoint export outputs/checkpoint/step-500 model --format onnx --dtype float16\n"
      "  titan-checkpoint import hf-weights seeds/step-0 --model llama3 --flavor 8B\n"
      "  titan-checkpoint import Llama3.1-70B seeds/step-0 --model llama3 --flavor 70B\n",
      "titan-checkpoint"};
  app.require_subcommand(1);
  app.set_version_flag("--version", titan::version_text("titan-checkpoint", {argv, argv + argc}), titan::kVersionHelp);

  std::string path, target, output = "text";
  bool tensors = false;
  titan::tools::ModelChoice model;
  titan::tools::ExportOptions options;

  CLI::App* inspect = app.add_subcommand("inspect", "Lists steps, their kind, size and train state");
  inspect->add_option("path", path, "A step-N folder, or the folder of all steps")->required();
  inspect->add_flag("--tensors", tensors, "Also list every tensor's type and shape");
  inspect->add_option("-o,--output", output, "text or json (one object per line)")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();

  CLI::App* verify =
      app.add_subcommand("verify", "Reads everything and checks every checksum; exit 1 if something is damaged");
  verify->add_option("path", path, "A step-N folder, or the folder of all steps")->required();

  titan::tools::DiffOptions comparing;
  std::string other;
  CLI::App* diff = app.add_subcommand("diff",
                                      "Shows which tensors of two steps, or of other programs' folders, differ, and by "
                                      "how much; exit 0 if none does, 1 if "
                                      "any does, 2 if they cannot be compared. Folders of different kinds are compared "
                                      "under a step's names; with Hugging "
                                      "Face weights, only the model is compared");
  diff->add_option("a", path,
                   "A step-N folder, one with .metadata of torch.distributed.checkpoint, or one with *.safetensors")
      ->required();
  diff->add_option("b", other, "Another one, of any kind, mesh and type")->required();
  diff->add_flag("--model-only", comparing.model_only, "Ignore the optimizer's state");
  diff->add_option("-o,--output", output, "text or json (one object per differing tensor)")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  add_model_flags(*diff, comparing.model, /*required=*/false);

  titan::tools::PruneOptions pruning;
  CLI::App* prune = app.add_subcommand(
      "prune", "Removes old steps of a folder that no job uses; reads and always keeps the newest intact step");
  prune->add_option("folder", path, "The folder of all steps")->required();
  prune->add_option("--keep", pruning.keep, "Number of newest steps to keep")->required()->check(CLI::PositiveNumber);
  prune->add_option("--keep-every", pruning.keep_every, "Also keep steps whose number is a multiple of this")
      ->check(CLI::PositiveNumber);
  prune->add_flag("--dry-run", pruning.dry_run, "Show what would be removed, and remove nothing");
  prune
      ->add_option("--dump-folder", pruning.dump_folder,
                   "Dump folder of the job that wrote the steps, if no step records it")
      ->check(CLI::ExistingDirectory);

  CLI::App* out = app.add_subcommand(
      "export", "Writes a step as a Hugging Face folder, or in a format that torchtitan or torchtune loads");
  out->add_option("step", path, "A step-N folder")->required();
  out->add_option("target", target, "The new folder, or s3://BUCKET/PLACE")->required();
  out->add_option("--dtype", options.dtype,
                  "float32, float16, bfloat16; with hf also float8_block, for vLLM and SGLang: layers in float8 with a "
                  "scale per 128 x 128 numbers, the rest in bfloat16; with gguf also q8_0; dcp: a step with an "
                  "optimizer keeps its types "
                  "unless --model-only is given")
      ->default_str("float32");
  out->add_option("--max-file-bytes", options.max_file_bytes, "Start a new file beyond this size")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  out->add_option(
         "--format", options.format,
         "hf: a whole model; peft: the adapters of a job with model.converters = [\"lora\"], for the PEFT "
         "library; dcp: "
         "a folder of torch.distributed.checkpoint, with all that torchtitan needs to resume; torch: model.pt "
         "of torch.save, under torchtitan's names; torchtune: the same under torchtune's; gguf: model.gguf for "
         "llama.cpp and "
         "the programs around it, with the tokenizer in it; onnx: model.onnx, its data, and what onnxruntime-genai "
         "reads")
      ->check(CLI::IsMember({"hf", "peft", "dcp", "torch", "torchtune", "gguf", "onnx"}))
      ->capture_default_str();
  out->add_flag("--model-only", options.model_only, "dcp: the weights without optimizer, schedule and train state");
  out->add_flag("--merge", options.merge, "Add the step's adapters to the weights of their model, and write that");
  out->add_option("--base", options.base,
                  "The model of the adapters: a step-N or Hugging Face folder; default: the one that its job used");
  out->add_option(
         "--tokenizer", options.tokenizer,
         "Folder of the model's tokenizer, whose files and chat templates are copied and whose ids config.json "
         "has; default: the one that the step's job used")
      ->check(CLI::ExistingDirectory);
  out->add_option("--gguf-pre", options.gguf_pre,
                  "gguf: llama.cpp's name of the rule by which the tokenizer cuts texts into words, such as llama-bpe; "
                  "default: found from tokenizer.json");
  out->add_option("--onnx-operators", options.onnx_operators,
                  "onnx: standard, for any runtime; microsoft: ONNX Runtime's own for attention and experts, which "
                  "computes only the chosen experts")
      ->check(CLI::IsMember({"standard", "microsoft"}))
      ->capture_default_str();
  out->add_option("--onnx-opset", options.onnx_opset,
                  "onnx: version of the operators, 23 to 25, or 21 to 25 with microsoft; default: the lowest");
  out->add_flag("--allow-overflow", options.allow_overflow,
                "Write numbers beyond --dtype's range as infinite, with a warning, instead of refusing");
  add_model_flags(*out, model, /*required=*/false);

  CLI::App* in = app.add_subcommand(
      "import", "Writes another program's weights as a model-only step in float32; fp8 and MXFP4 are dequantized");
  in->add_option(
        "source", path,
        "Folder with *.safetensors, as Meta or Mistral releases it (params.json and consolidated.*) or with .metadata "
        "of "
        "torch.distributed.checkpoint, or a file of torch.save; the latter two under torchtitan's names or torchtune's")
      ->required();
  in->add_option("step", target,
                 "The new step folder, e.g. {dump}/checkpoint/step-0 to seed a job; or s3://BUCKET/PLACE/step-0")
      ->required();
  int64_t piece_bytes = int64_t{256} << 20;
  in->add_option("--max-file-bytes", piece_bytes,
                 "Cut larger tensors and start a new file; about three times as much is held")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_model_flags(*in, model, /*required=*/true);
  in->footer("--flavor config.json imports the model of the folder's own config.json or params.json.");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  if (*diff) {
    comparing.json = output == "json";
    return finish_diff(caught([&] { return titan::tools::diff(all_files(), path, other, comparing, std::cout); }));
  }
  return finish(caught([&] {
    if (*inspect) return titan::tools::inspect(all_files(), path, tensors, output == "json", std::cout);
    if (*verify) return titan::tools::verify(all_files(), path, std::cout);
    if (*prune) return titan::tools::prune(all_files(), path, pruning, std::cout);
    if (*out) return titan::tools::export_step(all_files(), path, target, model, options, std::cout);
    return titan::tools::import_weights(all_files(), path, target, model, std::cout, piece_bytes);
  }));
}

# Defines what `cmake --install build/release --prefix P` installs, and where. No installed file contains the build
# folder, and only the units contain P: programs find each other, LibTorch and data files relative to themselves.
#
#   bin/                       the programs
#   lib/titan/                 LibTorch in its wheel's layout, torch/lib next to nvidia/*/lib, by which its parts find each other
#   lib/titan/titan-parquet.so, lib/titan/arrow/   the Parquet reader, and Arrow's two libraries from the pyarrow wheel
#   lib/titan/titan_wandb.py   sends a job's metrics to Weights & Biases, with the wandb of the node's Python
#   lib/titan/sdk/             headers, flags and script to build a library of models or datasets outside this tree
#   lib/systemd/system/        units that start the programs in P
#   share/titan/               configs, their text, pictures, tokenizer and small encoders (assets), files for Prometheus and Grafana
#   share/titan/env/           settings of the units, to copy to /etc/titan
#   share/doc/titan/           the pages of docs/, the license and the changelog
#   share/{bash-completion,zsh,fish}/   completions of titanctl
#
# Components, which are also the Debian packages (deploy/package.sh): titanctl, titan-controller, titan-worker,
# titan-rank, titan-common (configs and assets), titan-doc, titan-libtorch (460 MB), titan-sdk (70 MB), titan-parquet
# (60 MB), titan-cuda (5 GB: the rest of lib/titan/{torch,nvidia}, for nodes with GPUs). deploy/install.sh builds and
# installs them.

install(TARGETS titanctl RUNTIME DESTINATION bin COMPONENT titanctl)
install(CODE "set(_completed $<TARGET_FILE:titanctl>)" COMPONENT titanctl)
install(SCRIPT cmake/install_completions.cmake COMPONENT titanctl)

install(TARGETS titan-controller RUNTIME DESTINATION bin COMPONENT titan-controller)
install(TARGETS titan-worker titan-shim titan-stacks RUNTIME DESTINATION bin COMPONENT titan-worker)
foreach(daemon controller worker)
  install(FILES deploy/env/${daemon}.env DESTINATION share/titan/env COMPONENT titan-${daemon})
  install(CODE "set(_unit ${PROJECT_SOURCE_DIR}/deploy/systemd/titan-${daemon}.service)" COMPONENT titan-${daemon})
  install(SCRIPT cmake/install_unit.cmake COMPONENT titan-${daemon})
endforeach()

install(TARGETS titan-data RUNTIME DESTINATION bin COMPONENT titan-rank)

install(DIRECTORY configs DESTINATION share/titan COMPONENT titan-common FILES_MATCHING PATTERN "*.toml")
foreach(folder c4_test c4_validation tokenizer shapes shapes_validation t5-tiny clip-tiny autoencoder-tiny qwen3-vl-tiny)
  install(DIRECTORY ${TITAN_DEPS}/assets/${folder} DESTINATION share/titan/assets COMPONENT titan-common)
endforeach()
install(DIRECTORY deploy/prometheus deploy/grafana DESTINATION share/titan COMPONENT titan-common
  FILES_MATCHING PATTERN "*.yml" PATTERN "*.json" PATTERN "alerts_test.yml" EXCLUDE)
install(DIRECTORY docs/ DESTINATION share/doc/titan COMPONENT titan-doc FILES_MATCHING PATTERN "*.md" PATTERN "*.png" PATTERN "*.svg")
install(FILES LICENSE CHANGELOG.md DESTINATION share/doc/titan COMPONENT titan-doc)

if(TITAN_TORCH)
  set(_torch_to lib/titan/torch/lib)
  set(_cuda_from nvidia/cu13/lib)
  install(TARGETS titan-rank titan-checkpoint titan-data titan-generate RUNTIME DESTINATION bin COMPONENT titan-rank)
  install(FILES worker/rank/runtime/metrics_out/titan_wandb.py DESTINATION lib/titan COMPONENT titan-rank)
  set_target_properties(titan-rank titan-checkpoint titan-generate PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/titan/torch/lib")
  # LibTorch's CPU half, and the two CUDA libraries that it loads.
  install(FILES ${_torch}/lib/libtorch_cpu.so ${_torch}/lib/libc10.so ${_torch_gomp} DESTINATION ${_torch_to} COMPONENT titan-libtorch)
  install(FILES ${TITAN_SITE_PACKAGES}/${_cuda_from}/libcudart.so.13 ${TITAN_SITE_PACKAGES}/${_cuda_from}/libcupti.so.13
    DESTINATION lib/titan/${_cuda_from} COMPONENT titan-libtorch)
  install(DIRECTORY ${_torch}/include DESTINATION lib/titan/torch COMPONENT titan-sdk)
  install(CODE "set(_plugin_sdk ${PROJECT_SOURCE_DIR}/deploy/plugin_sdk.sh)\nset(_build ${PROJECT_BINARY_DIR})" COMPONENT titan-sdk)
  install(SCRIPT cmake/install_sdk.cmake COMPONENT titan-sdk)
endif()

if(TARGET titan_parquet)
  install(TARGETS titan_parquet LIBRARY DESTINATION lib/titan COMPONENT titan-parquet)
  set_target_properties(titan_parquet PROPERTIES INSTALL_RPATH "$ORIGIN/arrow")
  install(FILES ${_arrow_libraries} DESTINATION lib/titan/arrow COMPONENT titan-parquet)
endif()

if(TARGET titan_cuda)
  install(TARGETS titan_cuda LIBRARY DESTINATION lib/titan COMPONENT titan-rank OPTIONAL)
  set_target_properties(titan_cuda PROPERTIES INSTALL_RPATH "$ORIGIN/torch/lib:$ORIGIN/nvidia/cu13/lib:$ORIGIN/nvidia/nccl/lib")
  # Installs all of it: most libraries are loaded by name while training, so the needed ones cannot be determined.
  install(DIRECTORY ${TITAN_SITE_PACKAGES}/torch/lib/ DESTINATION ${_torch_to} COMPONENT titan-cuda
    FILES_MATCHING PATTERN "*.so*" PATTERN "libtorch_python.so" EXCLUDE PATTERN "libshm*" EXCLUDE)
  install(DIRECTORY ${TITAN_SITE_PACKAGES}/nvidia DESTINATION lib/titan COMPONENT titan-cuda FILES_MATCHING PATTERN "*.so*")
endif()
